"""The store, the lease and the output table on an S3 server."""

import re
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from schemas.effects import SendReceipt
from sinks import lock
from sinks.delta_log import DeltaLog
from sinks.ledger_store import LedgerStore
from sinks.lock import InUse, exclusive
from sinks.parquet import fragment
from sinks.s3 import S3Url
from sinks.storage import Damaged, NotStored, Storage, plain, within
from sinks.tables import DeltaSink, read_table
from streaming.answers.history.folders import Folders
from streaming.cli.app import app
from streaming.spark.checkpoint import (
    BadCheckpoint,
    check,
    committed_offsets,
    files,
    last_planned,
    noted,
    opened,
)
from tests.cluster.outage import Busy
from tests.cluster.s3 import LocalS3, away
from tests.sinks.helpers import TOPIC, output, receipts


def requests(server: LocalS3) -> list[str]:
    """What the server was asked: method, key, query."""
    lines = (server.folder / "s3.log").read_text(errors="replace").splitlines()
    parts = [[part.strip() for part in line.split("|")] for line in lines if line.count("|") >= 8]
    return [f"{part[5]} {part[6]} {part[8]}" for part in parts]


def put(storage: Storage, path: str, text: bytes) -> None:
    storage.publish(path, lambda stream: stream.write(text))


def test_a_file_is_one_request_and_no_copy(s3: str, s3_server: LocalS3) -> None:
    before = len(requests(s3_server))
    Storage(s3).publish("a/b", lambda stream: stream.write(b"one"))
    asked = requests(s3_server)[before:]
    assert [line.split()[0] for line in asked if "/a/b" in line and "HEAD" not in line] == ["PUT"]
    assert not any("uploads" in line or "_temporary" in line for line in asked)


def test_files_are_replaced_listed_and_deleted(s3: str) -> None:
    storage = Storage(s3)
    assert storage.files("a") == []
    put(storage, "a/b%2Fc", b"one")
    put(storage, "a/b%2Fc", b"three")
    (info,) = storage.files("a")
    assert (storage.relative(info), info.size) == ("a/b%2Fc", 5)
    with storage.open("a/b%2Fc") as file:
        assert file.read() == b"three"
    storage.sweep()
    storage.delete("a/b%2Fc")
    storage.delete("a/b%2Fc")
    assert storage.info("a/b%2Fc") is None


def test_a_file_of_another_store_is_copied_by_the_server(s3: str, s3_server: LocalS3) -> None:
    old, new = Storage(within(s3, "old")), Storage(within(s3, "new"))
    put(old, "ledgers/a%2Fb/1", b"x" * 1000)
    before = len(requests(s3_server))
    new.take(old, "ledgers/a%2Fb/1")
    asked = [line for line in requests(s3_server)[before:] if "/1" in line]
    assert not any(line.startswith("GET") for line in asked)
    with new.open("ledgers/a%2Fb/1") as file:
        assert file.read() == b"x" * 1000
    with pytest.raises(FileNotFoundError):
        new.take(old, "ledgers/none/1")


def test_a_failed_write_leaves_what_was_there(s3: str) -> None:
    storage = Storage(s3)
    storage.publish("a", lambda stream: stream.write(b"before"))

    def fail(stream: pa.NativeFile) -> None:
        stream.write(b"x" * (12 << 20))  # more than a part of an upload
        raise RuntimeError

    with pytest.raises(RuntimeError):
        storage.publish("a", fail)
    with storage.open("a") as file:
        assert file.read() == b"before"


def test_a_large_file_arrives_whole(s3: str) -> None:
    storage = Storage(s3)
    text = bytes(range(256)) * (21 << 12)
    storage.publish("large", lambda stream: stream.write(text))
    with storage.open("large") as file:
        assert file.read() == text


@pytest.mark.parametrize("size", [1, 12 << 20])
def test_a_write_that_s3_does_not_answer_is_an_error(
    size: int, s3: str, s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    storage = Storage(s3)
    put(storage, "a", b"before")
    with away(s3_server), pytest.raises(NotStored, match="/a could not be written: S3 did not answer "):
        put(storage, "a", b"x" * size)
    with storage.open("a") as file:
        assert file.read() == b"before"


def test_a_large_file_that_could_not_be_begun_is_not_published_empty(
    s3: str, s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    storage = Storage(s3)
    with away(s3_server), Busy(s3_server.port) as busy, pytest.raises(NotStored, match="SLOW_DOWN"):
        put(storage, "a", b"x" * (12 << 20))
    assert busy.asked
    assert {line.split()[0] for line in busy.asked} == {"POST"}


@pytest.mark.parametrize("part", [1, 2])
def test_a_large_file_of_which_a_part_is_missing_is_not_published(
    part: int, s3: str, s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `Storage` relies on: a stream that failed once publishes nothing, also if S3 is back when it is closed."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    url = S3Url.parse(s3)
    assert url is not None
    filesystem = url.filesystem(delayed=False)
    stream = filesystem.open_output_stream(f"{url.path}/a", compression=None)
    for _ in range(part - 1):
        stream.write(b"x" * (10 << 20))
        stream.flush()
    with away(s3_server):
        stream.write(b"x" * (10 << 20))
        with pytest.raises(OSError, match="NETWORK_CONNECTION"):
            stream.flush()
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        stream.close()
    del stream
    assert Storage(s3).info("a") is None


def test_s3_that_is_away_is_named(s3: str, s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """By commands that look at a store or a checkpoint, and before Spark starts."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    checkpoint = s3.replace("s3://", "s3a://")
    with away(s3_server):
        for command in (
            ["inspect", checkpoint],
            ["peek", s3, "t", "s"],
            ["explain", s3, "--checkpoint", checkpoint],
        ):
            done = CliRunner().invoke(app, command)
            assert done.exit_code == 1
            assert re.fullmatch(
                r"magnetar: S3 did not answer \(.* Could not connect to server\): check .*\n", done.stderr
            )


def test_entries(s3: str) -> None:
    store = LedgerStore(s3)
    for batch in range(20):
        store.begin(batch)
        store.write(batch, 0, output(receipts(1, batch * 3, batch * 3 + 2)))
    entries = store.scan(TOPIC)
    assert entries["entry_id"].to_pylist() == list(range(60))
    # Segments are merged, so their number stays bounded.
    assert len(Storage(s3).files("segments", recursive=True)) < 20
    assert store.payloads(TOPIC, 1, 4, 5) == entries["payload"].to_pylist()[4:6]


def test_the_output_table(s3: str) -> None:
    sink = DeltaSink(f"{s3}/tables")
    for batch in (0, 1, 1):
        sink.begin(batch)
        rows = output(receipts(1, batch * 3, batch * 3 + 2), offset=batch * 3)
        sink.write(batch, 0, rows)
        sink.commit(batch, {(0, kind): len(table) for kind, table in rows.items()})
    sink.close()
    assert read_table(f"{s3}/tables", "SEND_RECEIPT")["entry_id"].to_pylist() == list(range(6))
    log = DeltaLog(Storage(f"{s3}/tables"))
    assert log.last_batch() == 1
    assert log.compact().after == 1


def test_the_output_table_while_s3_is_away(
    s3: str, s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both libraries say so, and nobody takes it for damage."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    sink = DeltaSink(f"{s3}/tables")
    rows = output(receipts(1, 0, 2))
    sink.begin(0)
    sink.write(0, 0, rows)
    sink.commit(0, {(0, kind): len(table) for kind, table in rows.items()})
    folders, log = Folders.of(s3), DeltaLog(Storage(f"{s3}/tables"))
    (path,) = log.files("SEND_RECEIPT")
    every = folders.rows(SendReceipt, pc.field("offset") >= 0)
    assert len(list(every)) == 3
    storage = Storage(f"{s3}/tables")
    with away(s3_server):
        for attempt in (log.last_batch, lambda: read_table(f"{s3}/tables"), lambda: _scanned(storage, path)):
            with pytest.raises(OSError, match="Error") as error:
                attempt()
            assert not isinstance(error.value, Damaged)
            assert plain(error.value).startswith("S3 did not answer (")
    with pytest.raises(FileNotFoundError, match=f"{s3}/tables/kind=X/x"):
        _scanned(storage, "kind=X/x")


def _scanned(storage: Storage, path: str) -> pa.Table:
    with fragment(storage, path) as file:
        return file.to_table()


def test_only_one_query_has_the_store(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(lock, "EXPIRE_SECONDS", 3.0)
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.2)
    lost = threading.Event()
    with exclusive([s3], "one") as held:
        held.on_loss(lost.set)
        with pytest.raises(InUse, match="in use by one"), exclusive([s3], "two"):
            pass
        assert not lost.is_set()
    with exclusive([s3], "two"):
        pass
    assert Storage(s3).info(lock.LOCK) is None


def test_a_checkpoint_is_checked(s3: str) -> None:
    checkpoint = s3.replace("s3://", "s3a://")
    assert last_planned(checkpoint) == -1
    check(checkpoint, "commands")
    storage = opened(checkpoint)
    assert storage is not None
    for path, text in {
        "metadata": '{"id":"x"}',
        "offsets/9": 'v1\n{}\n{"commands":{"0":5}}',
        "offsets/10": 'v1\n{}\n{"commands":{"0":7}}',
        "commits/9": "v1\n{}",
    }.items():
        put(storage, path, text.encode())
    check(checkpoint, "commands")
    assert committed_offsets(checkpoint, "commands") == {0: 5}
    assert last_planned(checkpoint) == 10
    assert files(checkpoint) == 3
    assert sorted(noted(checkpoint, "offsets")) == [9, 10]
    with pytest.raises(BadCheckpoint, match="not 'other'"):
        check(checkpoint, "other")
    storage.publish("commits/10", lambda stream: stream.write(b"v1"))
    with pytest.raises(BadCheckpoint, match=r"commits/10 \(2 bytes\) is damaged"):
        check(checkpoint, "commands")


def test_a_checkpoint_that_only_spark_can_open() -> None:
    assert opened("dbfs://x/checkpoint") is None
    assert last_planned("dbfs://x/checkpoint") is None
    assert files("dbfs://x/checkpoint") == 0
    with pytest.raises(BadCheckpoint, match="can't be opened: give a folder, or an s3a:// URL"):
        noted("dbfs://x/checkpoint", "offsets")
    assert committed_offsets("dbfs://x/checkpoint", "commands") == {}
    check("dbfs://x/checkpoint", "commands")
    assert opened(Path("/x")) is not None
