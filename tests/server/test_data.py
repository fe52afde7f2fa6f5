"""The embedded engine's data folder: what was answered is there after a restart, however the process ended."""

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulsar
import pytest

from schemas.commands import (
    Admin,
    CloseProducer,
    Flow,
    KeyValue,
    MessageMetadata,
    Producer,
    Publish,
    Send,
    Subscribe,
)
from schemas.effects import KINDS, AdminResponse, Row, SendReceipt
from sinks.lock import LOCK, InUse
from sinks.storage import Damaged
from sinks.tables import read_table
from streaming.fold.live import LiveFold
from streaming.fold.records import Records
from streaming.jobs.replay import replay_in_process
from streaming.server import data_folder
from streaming.server.clock import HeldClock
from streaming.server.data_folder import CHECKPOINT, COMMANDS, BadData, segment_name
from streaming.server.embedded import EmbeddedEngine
from streaming.server.engine import EngineStopped, StoredEntry
from tests.server.conftest import running

FIRST = Path(COMMANDS, segment_name(0))
TOPIC = "persistent://public/default/t"
START = 1_700_000_000_000


def run(
    folder: Path | None, work: Callable[[EmbeddedEngine], Coroutine[Any, Any, Any]], **settings: Any
) -> Any:
    """Do `work` with an engine, whose clock stands still."""

    async def main() -> Any:
        async with EmbeddedEngine(folder, clock=HeldClock(START), settings=settings) as engine:
            return await work(engine)

    return asyncio.run(main())


async def publish(engine: EmbeddedEngine, *numbers: int, payload: bytes = b"x") -> list[Row]:
    """Publish messages with these sequence ids."""
    connection = engine.new_connection()
    command = Producer(connection=connection, producer_id=1, request_id=1, producer_name="p")
    rows = await engine.submit(TOPIC, command)
    for number in numbers:
        metadata = MessageMetadata("p", number, START, properties=[KeyValue("a", "b")])
        rows += await engine.submit(
            TOPIC,
            Send(
                connection=connection,
                producer_id=1,
                sequence_id=number,
                metadata=metadata,
                payload_bytes=payload,
            ),
        )
    rows += await engine.submit(TOPIC, CloseProducer(connection=connection, producer_id=1, request_id=2))
    return rows


async def stats(engine: EmbeddedEngine) -> Any:
    path = f"/{TOPIC.replace('://', '/')}/internalStats"
    rows = await engine.submit(TOPIC, Admin(method="GET", path=path))
    (answer,) = [row.effect for row in rows if isinstance(row.effect, AdminResponse)]
    return answer.fields.response


def last(folder: Path) -> Path:
    """The segment that is being written."""
    return max((folder / COMMANDS).iterdir())


def test_a_restart_goes_on_where_the_log_ends(tmp_path: Path) -> None:
    run(tmp_path, lambda engine: publish(engine, 1, 2, 3))
    rows = run(tmp_path, lambda engine: publish(engine, 4))
    (receipt,) = [row.effect for row in rows if isinstance(row.effect, SendReceipt)]
    assert (receipt.ledger_id, receipt.entry_id) >= (1, 3)
    assert run(tmp_path, stats)["numberOfEntries"] == 4


def test_a_lost_checkpoint_is_made_up_for_by_the_log(tmp_path: Path) -> None:
    async def killed(engine: EmbeddedEngine) -> Any:
        await publish(engine, 1, 2, 3)
        return (tmp_path / FIRST).read_bytes()

    log = run(tmp_path, killed)
    before = run(tmp_path, stats)
    later = [path for path in (tmp_path / COMMANDS).iterdir() if path.name > FIRST.name]
    for path in (tmp_path / CHECKPOINT, *later, *(tmp_path / "store").rglob("*.parquet")):
        path.unlink()
    (tmp_path / FIRST).write_bytes(
        log + b'{"partition":0,"offset":99,"times'
    )  # the write that the kill cut off
    after = run(tmp_path, stats)
    assert before["totalSize"] == after["totalSize"]
    assert before["numberOfEntries"] == after["numberOfEntries"] == 3
    assert (tmp_path / FIRST).read_bytes().startswith(log)


def test_entries_of_a_former_life_are_read(tmp_path: Path) -> None:
    run(tmp_path, lambda engine: publish(engine, 1, 2, payload=b"earlier"))

    async def look(engine: EmbeddedEngine) -> bytes:
        assert [
            each.metadata.sequence_id for each in (engine.entry(TOPIC, 1, 0), engine.entry(TOPIC, 1, 1))
        ] == [1, 2]
        return engine.entry(TOPIC, 1, 1).payload

    assert run(tmp_path, look) == b"earlier"


def test_the_short_form_of_publishing_is_read_back(tmp_path: Path) -> None:
    async def publish_short(engine: EmbeddedEngine) -> StoredEntry:
        await engine.submit(TOPIC, Publish(producer="p", sequence_id=1, payload="x", key="k"))
        return engine.entry(TOPIC, 1, 0)

    async def look(engine: EmbeddedEngine) -> StoredEntry:
        return engine.entry(TOPIC, 1, 0)

    assert run(tmp_path, publish_short) == run(tmp_path, look)


def test_a_checkpoint_in_the_middle_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run(tmp_path / "a", lambda engine: publish(engine, *range(1, 30)))
    monkeypatch.setattr(data_folder, "CHECKPOINT_RECORDS", 7)
    often = run(tmp_path / "b", lambda engine: publish(engine, *range(1, 30)))
    assert plain == often
    assert run(tmp_path / "a", stats) == run(tmp_path / "b", stats)


def test_a_restart_folds_what_follows_the_checkpoint_and_needs_no_earlier_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_folder, "CHECKPOINT_RECORDS", 50)
    run(tmp_path, lambda engine: publish(engine, *range(1, 500)))
    segments = sorted((tmp_path / COMMANDS).iterdir())
    assert len(segments) >= 9
    for path in segments[:-1]:
        path.unlink()
    folded: list[int] = []
    answer = LiveFold.answer

    def counted(fold: LiveFold, records: Records, *known: Any) -> list[Row]:
        folded.append(len(records.offsets))
        return answer(fold, records, *known)

    monkeypatch.setattr(LiveFold, "answer", counted)
    assert run(tmp_path, stats)["numberOfEntries"] == 499
    assert sum(folded) <= 4  # RESTART, BROKER_CONFIG and the call


def test_a_crash_while_a_checkpoint_is_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on meanwhile, in the next segment. A restart begins at the checkpoint before."""
    begun, crash = threading.Event(), threading.Event()

    def write(*_: object) -> None:
        begun.set()
        crash.wait(30)
        raise OSError("crashed")

    async def crashing(engine: EmbeddedEngine) -> None:
        rows = await publish(engine, *range(1, 9))
        assert begun.is_set()
        assert len([row for row in rows if isinstance(row.effect, SendReceipt)]) == 8
        crash.set()
        await asyncio.sleep(0.1)
        with pytest.raises(EngineStopped, match="crashed"):
            await engine.tick()

    run(tmp_path, lambda engine: publish(engine, 0))
    with monkeypatch.context() as patch:
        patch.setattr(data_folder, "CHECKPOINT_RECORDS", 7)
        patch.setattr(data_folder.DataFolder, "_write", write)
        with pytest.raises(OSError, match="crashed"):
            run(tmp_path, crashing_then_failed(crashing))
    assert len(list((tmp_path / COMMANDS).iterdir())) == 3
    assert run(tmp_path, stats)["numberOfEntries"] == 9
    out = tmp_path.with_name(f"{tmp_path.name}-out")
    replay_in_process(tmp_path / COMMANDS, out)
    receipts = read_table(str(out / "tables"), KINDS[SendReceipt])
    assert sorted(receipts["sequence_id"].to_pylist()) == list(range(9))


def test_a_slow_checkpoint_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until as much was folded as there is memory and time for."""
    begun, may_end = threading.Event(), threading.Event()
    write = data_folder.DataFolder._write

    def slow(*arguments: Any) -> None:
        begun.set()
        assert may_end.wait(30)
        write(*arguments)

    async def work(engine: EmbeddedEngine) -> None:
        for number in range(1, 30):
            rows = await publish(engine, number)
            assert len([row for row in rows if isinstance(row.effect, SendReceipt)]) == 1
        assert begun.is_set()
        may_end.set()
        await publish(engine, *range(30, 40))

    monkeypatch.setattr(data_folder, "CHECKPOINT_RECORDS", 10)
    monkeypatch.setattr(data_folder.DataFolder, "_write", slow)
    run(tmp_path, work)
    assert run(tmp_path, stats)["numberOfEntries"] == 39


def crashing_then_failed(
    work: Callable[[EmbeddedEngine], Coroutine[Any, Any, None]],
) -> Callable[[EmbeddedEngine], Coroutine[Any, Any, None]]:
    async def both(engine: EmbeddedEngine) -> None:
        await work(engine)
        await engine.failed

    return both


def test_answers_leave_once_the_disk_has_their_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wait for the disk is enough for all that came meanwhile."""
    syncs: list[int] = []
    slow = threading.Event()
    slow.set()

    def fdatasync(file: int) -> None:
        slow.wait(30)
        syncs.append(file)

    async def work(engine: EmbeddedEngine) -> None:
        syncs.clear()
        slow.clear()
        commands = [asyncio.ensure_future(engine.tick()) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0.01)
            commands.append(asyncio.ensure_future(engine.tick()))
        await asyncio.sleep(0.05)
        assert engine.broker.offset >= 6
        assert not any(each.done() for each in commands)
        slow.set()
        await asyncio.gather(*commands)
        assert len(syncs) == 2

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    run(tmp_path, work)


def test_a_question_waits_for_the_disk_only_behind_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []

    async def work(engine: EmbeddedEngine) -> None:
        await publish(engine, 1)
        syncs.clear()
        assert await engine.topics("public/default")
        assert not syncs
        command = asyncio.ensure_future(engine.tick())
        await engine.topics("public/default")
        await command
        assert len(syncs) == 1

    monkeypatch.setattr(os, "fdatasync", syncs.append)
    run(tmp_path, work)


def test_without_fsync_nothing_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with EmbeddedEngine(tmp_path, clock=HeldClock(START), fsync=False) as engine:
            await publish(engine, 1)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", None)
        asyncio.run(main())
    assert run(tmp_path, stats)["numberOfEntries"] == 1


def test_a_disk_that_cannot_sync_stops_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fdatasync(file: int) -> None:
        raise OSError(5, "Input/output error")

    async def work(engine: EmbeddedEngine) -> None:
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        with pytest.raises(EngineStopped, match="Input/output"):
            await engine.tick()
        await engine.failed

    with pytest.raises(OSError, match="Input/output"):
        run(tmp_path, work)


def test_the_log_replays_to_the_same_rows(tmp_path: Path) -> None:
    rows = run(tmp_path / "data", lambda engine: publish(engine, 1, 2, 3))
    rows += run(tmp_path / "data", lambda engine: publish(engine, 3, 4), brokerDeduplicationEnabled=True)
    replay_in_process(tmp_path / "data" / COMMANDS, tmp_path / "out")
    receipts = read_table(str(tmp_path / "out" / "tables"), KINDS[SendReceipt]).sort_by("offset").to_pylist()
    found = [(row.offset, row.clock, row.effect.ledger_id, row.effect.entry_id) for row in rows
             if isinstance(row.effect, SendReceipt)]  # fmt: skip
    assert [(row["offset"], row["clock"], row["ledger_id"], row["entry_id"]) for row in receipts] == found
    assert len(found) == 5


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    async def again(engine: EmbeddedEngine) -> None:
        with pytest.raises(InUse, match="magnetar serve"):
            await EmbeddedEngine(tmp_path).__aenter__()

    run(tmp_path, again)


@pytest.mark.parametrize(
    "theirs",
    [
        "store/ledgers/t/000000001.parquet",
        "checkpoint/commits/0",
        "store/_x",
        "tables/a",
        "thesis.txt",
        "commands.jsonl",
    ],
)
def test_a_folder_of_somebody_else_stays_as_it_is(theirs: str, tmp_path: Path) -> None:
    path = tmp_path / theirs
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("theirs")
    with pytest.raises(
        BadData, match=f"it has {Path(theirs).parts[0]}, and no command log: choose another folder"
    ):
        run(tmp_path, publish)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]
    assert not (tmp_path / COMMANDS).exists()


@pytest.mark.parametrize("there", [".gitkeep", "lost+found/x", "commands/", "store/"])
def test_a_folder_with_nothing_in_it_is_a_new_one(there: str, tmp_path: Path) -> None:
    path = tmp_path / there
    (path if there.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
    if not there.endswith("/"):
        path.touch()
    assert run(tmp_path, lambda engine: publish(engine, 0))
    (tmp_path / "notes.txt").touch()  # and from then on it is its own
    assert run(tmp_path, stats)


def _without_checkpoint(folder: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the lines of the first segment, of which no checkpoint has anything."""
    (folder / CHECKPOINT).unlink()
    for each in (folder / COMMANDS).iterdir():
        if each.name != FIRST.name:
            each.unlink()
    (folder / FIRST).write_bytes(b"".join(change((folder / FIRST).read_bytes().splitlines(keepends=True))))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda folder: (folder / CHECKPOINT).write_bytes(b"x"), "is damaged"),
        (lambda folder: last(folder).rename(folder / COMMANDS / segment_name(70)), "missing"),
        (
            lambda folder: last(folder).open("ab").write(b'{"partition":0,"offset":77,"command":"TICK"}\n'),
            "offset 77",
        ),
        (
            lambda folder: (last(folder).write_bytes(b"{"), (folder / COMMANDS / segment_name(70)).touch()),
            "ends in the middle of a line",
        ),
        (
            lambda folder: _without_checkpoint(folder, lambda lines: [b"garbage\n"]),
            "is not a part of the log",
        ),
        (
            lambda folder: _without_checkpoint(folder, lambda lines: lines[:1] + lines[2:]),
            "continues with offset 2 after 0",
        ),
        (
            lambda folder: _without_checkpoint(folder, lambda lines: lines + lines[-1:]),
            "continues with offset 3 after 3",
        ),
        (
            lambda folder: _without_checkpoint(folder, lambda lines: [lines[1], lines[0], *lines[2:]]),
            "continues with offset 1 after -1",
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], object], text: str) -> None:
    run(tmp_path, lambda engine: publish(engine, 1))
    damage(tmp_path)
    with pytest.raises(BadData, match=text):
        run(tmp_path, stats)


def test_a_store_that_loses_a_file_meanwhile_stops_the_engine_with_a_sentence(tmp_path: Path) -> None:
    run(tmp_path, lambda engine: publish(engine, 1))

    async def read(engine: EmbeddedEngine) -> None:
        for file in (tmp_path / "store").rglob("*.parquet"):
            file.unlink()
        subscribe = Subscribe(
            connection="c",
            consumer_id=1,
            request_id=1,
            subscription="s",
            subType="Exclusive",
            initialPosition="Earliest",
        )
        await engine.submit(TOPIC, subscribe)
        with pytest.raises(EngineStopped, match="a file is missing"):
            await engine.submit(TOPIC, Flow(connection="c", consumer_id=1, messagePermits=1))
        with pytest.raises(BadData, match=f"{tmp_path}: .* a file is missing"):
            await engine.failed

    run(tmp_path, read)


def test_a_payload_that_is_damaged_meanwhile_stops_the_engine_with_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients ask for it when the broker has dispatched its message: no bug of anybody's, and nothing to go on with."""
    payload = b"a payload like no other"
    run(tmp_path, lambda engine: publish(engine, 1, payload=payload))
    (file,) = (file for file in (tmp_path / "store").rglob("*.parquet") if payload in file.read_bytes())
    file.write_bytes(file.read_bytes().replace(b"no other", b"nO other"))
    closed = suppress(pulsar.NotConnected)  # by the server, when its client closes
    with running(tmp_path, clock=HeldClock(START)) as server, closed, server.client() as client:
        client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)

        async def failure() -> BaseException | None:
            await asyncio.wait([server.engine.failed])
            return server.engine.failed.exception()  # type: ignore[no-any-return]

        failed = server.call(failure)
    assert isinstance(failed, Damaged)
    assert str(file) in str(failed)
    assert "Restore it from a backup" in str(failed)
    assert "bug" not in caplog.text


@pytest.mark.parametrize(("end", "lost"), [(b"\0" * 7, 7), (b'{"partition":0,"offs', 20), (b'{"part\0\0', 8)])
def test_what_is_cut_off_the_log_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: bytes, lost: int
) -> None:
    run(tmp_path, lambda engine: publish(engine, 1))
    with last(tmp_path).open("ab") as file:
        file.write(end)
    run(tmp_path, stats)
    (told,) = (each.getMessage() for each in caplog.records if "cut off" in each.getMessage())
    assert f"ends with {lost} bytes" in told


def test_only_the_end_of_a_line_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path, lambda engine: publish(engine, 1))
    whole = last(tmp_path).read_bytes()
    last(tmp_path).write_bytes(whole[:-1])
    assert run(tmp_path, stats)["numberOfEntries"] == 1
    assert "cut off" not in caplog.text


@pytest.mark.parametrize("how", ["moved", "moved, and another is there", "removed"])
def test_a_folder_that_goes_away_stops_the_engine_and_no_other(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What a server writes by path would be in the folder of whoever uses the path now.

    Who was told by a call is not told again by asyncio when the engine is collected.
    """
    folder = tmp_path / "data"
    folder.mkdir()

    async def others(engine: EmbeddedEngine) -> None:
        """Another server, if there is one, loses nothing by the end of the first."""
        await publish(engine, 1, 2)
        if how == "removed":
            shutil.rmtree(folder)
        else:
            folder.rename(tmp_path / "moved")
        if not how.endswith("there"):
            with pytest.raises(EngineStopped, match="was moved or removed while this server used it"):
                await publish(engine, 3)
            return
        folder.mkdir()
        async with EmbeddedEngine(folder, clock=HeldClock(START)) as second:
            await publish(second, 7)
            with pytest.raises(BadData, match="was moved or removed while this server used it"):
                await engine.__aexit__(None, None, None)
            await publish(second, 8)
            assert (folder / LOCK).exists()

    async def main() -> None:
        engine = EmbeddedEngine(folder, clock=HeldClock(START))
        await engine.__aenter__()
        await others(engine)
        if not how.endswith("there"):
            await engine.__aexit__(None, None, None)

    gc.collect()
    caplog.clear()
    asyncio.run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text
    if how.endswith("there"):
        assert run(folder, stats)["numberOfEntries"] == 2
    if how != "removed":
        assert run(tmp_path / "moved", stats)["numberOfEntries"] == 2


def test_a_log_that_cannot_be_written_stops_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(engine: EmbeddedEngine) -> None:
        await publish(engine, 1)
        before = (tmp_path / FIRST).read_bytes()

        def write(file: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            with pytest.raises(EngineStopped, match="No space left"):
                await publish(engine, 2)
        assert (tmp_path / FIRST).read_bytes() == before
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'"):
            await engine.failed

    run(tmp_path, full)
    assert run(tmp_path, stats)["numberOfEntries"] == 1


def test_kill_9_in_the_middle_of_traffic_loses_nothing(tmp_path: Path) -> None:
    """What was answered is there. With deduplication on, a client that sends again leaves nothing twice."""

    def serve() -> tuple[subprocess.Popen[str], str]:
        command = ["-c", "from streaming.cli import main; main()", "serve", "--listen", "127.0.0.1:0",
                   "--admin-listen", "127.0.0.1:0", "--data", str(tmp_path),
                   "--set", "brokerDeduplicationEnabled=true"]  # fmt: skip
        process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        return process, process.stderr.readline().split()[2].rstrip(";").replace("localhost", "127.0.0.1")

    process, url = serve()
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(url, logger=logger)
    client.subscribe(TOPIC, "s").close()  # keeps the messages
    producer = client.create_producer(
        TOPIC, producer_name="p", batching_enabled=False, block_if_queue_full=True
    )
    confirmed: list[int] = []

    def sent(number: int) -> Any:
        def answered(result: Any, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                confirmed.append(number)
                if len(confirmed) == 200:
                    process.send_signal(signal.SIGKILL)

        return answered

    for number in range(1, 1001):
        producer.send_async(str(number).encode(), sent(number), sequence_id=number)
    process.wait()
    client.shutdown()
    with running(tmp_path, brokerDeduplicationEnabled=True) as broker, broker.client() as client:
        producer = client.create_producer(
            TOPIC, producer_name="p", batching_enabled=False, block_if_queue_full=True
        )
        assert producer.last_sequence_id() >= max(confirmed)
        for number in range(1, 1001):
            producer.send_async(str(number).encode(), None, sequence_id=number)
        producer.flush()
        consumer = client.subscribe(TOPIC, "s")
        found = [int(consumer.receive(10_000).data()) for _ in range(1000)]
        assert found == list(range(1, 1001))
        assert max(confirmed) in found
        backlog = broker.call(lambda: stats(broker.engine))["numberOfEntries"]
        assert backlog == 1000


def test_what_an_operator_changed_holds_after_a_restart(tmp_path: Path) -> None:
    """With the settings that the server is started with, or others."""

    async def call(engine: EmbeddedEngine, method: str, rest: str) -> Any:
        rows = await engine.submit(None, Admin(method=method, path=f"/brokers/configuration{rest}"))  # type: ignore[arg-type]
        (answer,) = [row.effect for row in rows if isinstance(row.effect, AdminResponse)]
        assert answer.fields.status == 200
        return answer.fields.response

    async def change(engine: EmbeddedEngine) -> Any:
        await call(engine, "POST", "/allowAutoSubscriptionCreation/false")
        await call(engine, "POST", "/maxTopicsPerNamespace/7")
        return await shown(engine)

    async def shown(engine: EmbeddedEngine) -> Any:
        return [await call(engine, "GET", rest) for rest in ("/values", "/runtime")]

    before = run(tmp_path, change, maxTopicsPerNamespace=1)
    assert before[1]["maxTopicsPerNamespace"] == "7"
    assert run(tmp_path, shown, maxTopicsPerNamespace=1) == before
    assert run(tmp_path, shown, maxTopicsPerNamespace=2) == before
