"""The ledger store: reading, sealing, deleting, re-runs, crashes. Merging over many batches: test_segments.py."""

import pickle
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.effects import Effect, Row, SendReceipt
from schemas.entries import Entry, EntryNotFound
from schemas.outputs import ENTRY
from sinks import ledger_reader, segments
from sinks.base import ForeignFiles
from sinks.ledger_store import LedgerStore, TopicLedgers, read_entries
from sinks.storage import Storage
from streaming.server.engine import StoredEntry
from streaming.server.entries import RecentEntries
from tests.sinks.helpers import (
    TOPIC,
    Killed,
    Mortal,
    closed,
    deleted,
    metadata_of,
    output,
    payload_of,
    receipt,
    receipts,
    tree,
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def expected(ledger_id: int, first: int, last: int, topic: str = TOPIC) -> list[Entry]:
    return [
        Entry(metadata_of(topic, ledger_id, e), len(payload_of(topic, ledger_id, e)) + 20)
        for e in range(first, last + 1)
    ]


def sealed_files(url: str) -> list[str]:
    return sorted(p.name for p in Path(url).glob("ledgers/*/*.parquet"))


def test_entries_of_an_open_ledger_are_read_from_segments(url: str) -> None:
    store: LedgerStore = pickle.loads(pickle.dumps(LedgerStore(url)))
    store.begin(0)
    store.write(0, 5, output(receipts(1, 0, 9)))
    store.begin(2)
    store.write(2, 5, output(receipts(1, 10, 14)))
    reader = store.reader(5)
    assert reader.read(TOPIC, 1, 0, 14) == expected(1, 0, 14)
    assert reader.read(TOPIC, 1, 8, 11) == expected(1, 8, 11)
    assert reader.read(TOPIC, 1, 12, 12) == expected(1, 12, 12)
    assert reader.read(TOPIC, 1, 12, 11) == []
    assert reader.payloads(TOPIC, 1, 9, 10) == [payload_of(TOPIC, 1, 9), payload_of(TOPIC, 1, 10)]
    assert store.read(TOPIC, 1, 3, 4) == expected(1, 3, 4)
    assert store.payloads(TOPIC, 1, 3, 3) == [payload_of(TOPIC, 1, 3)]


@pytest.mark.parametrize(
    ("topic", "ledger_id", "first", "last"), [(TOPIC, 1, 9, 10), (TOPIC, 2, 0, 0), ("other", 1, 0, 0)]
)
def test_a_missing_entry_is_an_error(url: str, topic: str, ledger_id: int, first: int, last: int) -> None:
    LedgerStore(url).write(0, 0, output(receipts(1, 0, 9)))
    with pytest.raises(EntryNotFound, match="store and checkpoint are from different points in time"):
        LedgerStore(url).reader(0).read(topic, ledger_id, first, last)


def test_a_reader_finds_what_came_after_it_looked(url: str) -> None:
    store = LedgerStore(url)
    store.write(0, 0, output(receipts(1, 0, 3)))
    reader = store.reader(0)
    assert reader.read(TOPIC, 1, 0, 3) == expected(1, 0, 3)
    store.write(1, 0, output([*receipts(1, 4, 5), closed(1, 6)]))
    assert reader.read(TOPIC, 1, 2, 5) == expected(1, 2, 5)


def test_the_receipt_of_a_duplicate_has_no_entry(url: str) -> None:
    duplicate = SendReceipt(TOPIC, "c", 1, "p", 3, None, -1, -1, "duplicate")
    LedgerStore(url).write(0, 0, output([receipt(1, 0), duplicate]))
    assert read_entries(url).num_rows == 1
    LedgerStore(url).write(1, 0, output([duplicate]))
    assert read_entries(url).num_rows == 1


def test_a_closed_ledger_is_sealed_into_one_file(url: str) -> None:
    store = LedgerStore(url)
    store.write(0, 0, output([*receipts(1, 0, 4), *receipts(7, 0, 2, topic="b")]))
    store.write(3, 0, output([*receipts(1, 5, 9), closed(1, 10), *receipts(2, 0, 1), closed(9, 0)]))
    assert sealed_files(url) == ["000000001.parquet"]
    (path,) = Path(url).glob("ledgers/*/*.parquet")
    table = pq.read_table(path)
    assert table.column_names == ENTRY.names
    assert table["entry_id"].to_pylist() == list(range(10))
    assert table["payload"].to_pylist() == [payload_of(TOPIC, 1, e) for e in range(10)]
    assert store.reader(0).read(TOPIC, 1, 0, 9) == expected(1, 0, 9)
    assert store.reader(0).read(TOPIC, 2, 0, 1) == expected(2, 0, 1)
    # What was sealed at once went into no segment.
    assert pq.read_table(next(Path(url).glob("segments/*/0-000000003-*")))["ledger_id"].to_pylist() == [2, 2]


def test_sealing_fails_when_earlier_entries_are_missing(url: str) -> None:
    store = LedgerStore(url)
    with pytest.raises(
        EntryNotFound,
        match=r"lacks its entries 0\.\.4: .* store and checkpoint are from different points in time",
    ):
        store.write(3, 0, output([*receipts(1, 5, 9), closed(1, 10)]))


def test_entries_confirmed_after_their_ledger_closed_are_found(url: str) -> None:
    store = LedgerStore(url)
    store.write(0, 0, output([*receipts(1, 0, 4), closed(1, 7)]))
    reader = store.reader(0)
    assert reader.read(TOPIC, 1, 0, 4) == expected(1, 0, 4)
    store.write(1, 0, output(receipts(1, 5, 6)))
    assert reader.read(TOPIC, 1, 3, 6) == expected(1, 3, 6)
    assert store.scan()["entry_id"].to_pylist() == list(range(7))


@pytest.mark.feature("J2")
def test_segments_are_counted(url: str) -> None:
    store = LedgerStore(url)
    assert segments.count(Storage(url)) == 0
    for batch in range(3):
        for partition in range(2):
            store.write(batch, partition, output(receipts(1, batch, batch)))
    assert segments.count(Storage(url)) == 6


def test_deleting_waits_for_the_next_batch(url: str) -> None:
    store = LedgerStore(url)
    store.write(0, 0, output([*receipts(1, 0, 4), closed(1, 5), *receipts(2, 0, 4)]))
    store.begin(1)
    store.write(1, 0, output([deleted(1), closed(2, 5), deleted(2)]))
    for _ in range(2):  # the batch runs again
        store.begin(1)
        assert store.reader(0).read(TOPIC, 1, 0, 4) == expected(1, 0, 4)
        assert store.reader(0).read(TOPIC, 2, 0, 4) == expected(2, 0, 4)
        store.write(1, 0, output([deleted(1), closed(2, 5), deleted(2)]))
    assert sealed_files(url) == ["000000001.parquet"]
    assert store.scan().num_rows == 0  # people don't see it any more
    store.begin(2)
    assert sealed_files(url) == []
    assert not list(Path(url).glob("deletions/*"))
    with pytest.raises(EntryNotFound):
        LedgerStore(url).reader(0).read(TOPIC, 1, 0, 4)


def test_a_ledger_that_comes_and_goes_in_one_batch(url: str) -> None:
    store = LedgerStore(url)
    store.write(0, 0, output([*receipts(1, 0, 4), closed(1, 5), deleted(1), receipt(2, 0)]))
    assert sealed_files(url) == []
    assert store.scan().select(["ledger_id", "entry_id"]).to_pylist() == [{"ledger_id": 2, "entry_id": 0}]
    store.begin(1)
    assert store.reader(0).read(TOPIC, 2, 0, 0) == expected(2, 0, 0)


def test_scan_and_ledgers(url: str) -> None:
    store = LedgerStore(url)
    store.write(0, 0, output([*receipts(1, 0, 2), *receipts(1, 0, 1, topic="z")]))
    store.write(0, 1, output(receipts(1, 0, 1, topic="a")))
    store.write(1, 0, output([*receipts(1, 3, 4), closed(1, 5), *receipts(2, 0, 0)]))
    rows = read_entries(url)
    positions = list(zip(*(rows[n].to_pylist() for n in ("topic", "ledger_id", "entry_id")), strict=True))
    assert positions == [("a", 1, 0), ("a", 1, 1), *((TOPIC, 1, e) for e in range(5)), (TOPIC, 2, 0), ("z", 1, 0), ("z", 1, 1)]  # fmt: skip
    assert read_entries(url, "z")["payload"].to_pylist() == [payload_of("z", 1, e) for e in range(2)]
    assert read_entries(url, TOPIC).num_rows == 6
    assert [tuple(r.values()) for r in store.ledgers().to_pylist()] == [
        ("a", 1, False, 0, 1),
        (TOPIC, 1, True, 0, 4),
        (TOPIC, 2, False, 0, 0),
        ("z", 1, False, 0, 1),
    ]


def test_an_empty_store(url: str) -> None:
    store = LedgerStore(url)
    store.begin(0)
    store.write(0, 0, {})
    assert store.scan().num_rows == 0
    assert store.ledgers().num_rows == 0
    assert not tree(Path(url))


def test_topics_of_any_name(url: str) -> None:
    topics = ["../../escape", "a/b", "a\0b", "", ".", "x" * 10_000, "é", "e\u0301"]
    store = LedgerStore(url)
    store.write(
        0, 0, output([e for t in topics for e in (*receipts(1, 0, 2, topic=t), closed(1, 3, topic=t))])
    )
    for topic in topics:
        assert store.reader(0).read(topic, 1, 0, 2) == expected(1, 0, 2, topic)
    assert {p.name for p in Path(url).parent.iterdir()} == {"store"}
    assert len(list(Path(url).glob("ledgers/*/*.parquet"))) == len(topics)


def test_a_store_of_another_checkpoint_is_refused(url: str) -> None:
    LedgerStore(url).write(7, 0, output([receipt(1, 0)]))
    with pytest.raises(ForeignFiles, match="micro-batch 7.*at micro-batch 6"):
        LedgerStore(url).begin(6)
    LedgerStore(url).begin(7)


def test_a_reader_of_metadata_reads_no_payload(url: str) -> None:
    payload = random.Random(1).randbytes
    large = [receipt(1, e)._replace(payload=payload(100_000), size=100_000) for e in range(64)]
    LedgerStore(url).write(0, 0, output([*large, *(r._replace(ledger_id=2) for r in large), closed(1, 64)]))
    assert sum(map(len, tree(Path(url)).values())) > 12_800_000
    filesystem = Mortal()
    reader = LedgerStore(url, filesystem).reader(0)
    assert len(reader.read(TOPIC, 1, 0, 63)) == 64  # sealed
    assert len(reader.read(TOPIC, 2, 0, 63)) == 64  # a segment
    assert filesystem.bytes_read < 200_000  # mostly the ends of the files, where footers are looked for
    assert reader.payloads(TOPIC, 1, 63, 63) == [large[-1].payload]


def test_what_was_read_is_read_once(url: str) -> None:
    LedgerStore(url).write(0, 0, output([*receipts(1, 0, 99), closed(1, 100)]))
    filesystem = Mortal()
    store = LedgerStore(url, filesystem)
    store.reader(0).read(TOPIC, 1, 0, 50)
    once = filesystem.bytes_read
    for first in range(50):
        store.reader(0).read(TOPIC, 1, first, first + 50)
    assert filesystem.bytes_read == once


def test_whoever_reads_on_reads_ahead(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, as a server sends them, from sealed files and segments, and no more bytes than fit."""
    monkeypatch.setattr(ledger_reader, "_AHEAD", 10)
    rows = [*receipts(1, 0, 24), closed(1, 25), *receipts(2, 0, 24)]
    store = LedgerStore(url)
    store.write(0, 0, output(rows))
    reader = store.reader(0)
    reads = 0
    ahead = reader.ahead

    def counted(*position: Any) -> Any:
        nonlocal reads
        reads += 1
        return ahead(*position)

    monkeypatch.setattr(reader, "ahead", counted)
    entries = RecentEntries(reader)
    for ledger in (1, 2):
        for number, known in enumerate(expected(ledger, 0, 24)):
            found = entries.get(TOPIC, ledger, number)
            assert found == StoredEntry(
                known.metadata, payload_of(TOPIC, ledger, number), known.size, known.broker_timestamp
            )
    assert reads == 6
    assert len(ahead(TOPIC, 1, 20)) == 5
    monkeypatch.setattr(ledger_reader, "_AHEAD_BYTES", sum(each.size for each in expected(1, 0, 1)))
    assert len(ahead(TOPIC, 1, 0)) == 2
    monkeypatch.setattr(ledger_reader, "_AHEAD_BYTES", 1)
    assert [payload for _, payload in ahead(TOPIC, 1, 7)] == [payload_of(TOPIC, 1, 7)]
    with pytest.raises(EntryNotFound):
        entries.get(TOPIC, 2, 25)
    entries.delete([Row(1, 0, 0, deleted(2))])
    with pytest.raises(EntryNotFound):
        RecentEntries(LedgerStore(f"{url}/none").reader(0)).get(TOPIC, 2, 24)
    assert entries._ahead[-1] == []


def test_a_store_made_anew_in_the_same_folder_is_not_served_from_the_cache(url: str) -> None:
    for size in (5, 7):
        rows = [r._replace(size=size) for r in map(receipt, [1] * 9, range(9))]
        LedgerStore(url).write(0, 0, output([*rows, closed(1, 9)]))
        assert [e.size for e in LedgerStore(url).reader(0).read(TOPIC, 1, 0, 8)] == [size] * 9


HISTORY: list[list[Effect]] = [
    [*receipts(1, 0, 4), *receipts(1, 0, 3, topic="b")],
    [*receipts(1, 5, 9), closed(1, 10), *receipts(2, 0, 2), closed(1, 4, topic="b")],
    [*receipts(2, 3, 4), closed(2, 5), deleted(1), deleted(1, topic="b"), *receipts(3, 0, 3)],
]


def play(store: LedgerStore, until: int) -> None:
    for batch_id, effects in enumerate(HISTORY[: until + 1]):
        store.begin(batch_id)
        store.write(batch_id, 0, output(effects, offset=100 * batch_id))


@pytest.mark.feature("J2")
@pytest.mark.parametrize("batch_id", range(len(HISTORY)))
def test_a_crash_at_any_moment_is_repaired_by_the_rerun(tmp_path: Path, batch_id: int) -> None:
    whole = tmp_path / "whole"
    play(LedgerStore(str(whole)), batch_id)
    lives = 0
    while True:
        folder = tmp_path / str(lives)
        play(LedgerStore(str(folder)), batch_id - 1)
        committed = read_entries(str(folder)).to_pylist()
        store = LedgerStore(str(folder), Mortal(lives))
        try:
            store.begin(batch_id)
            store.write(batch_id, 0, output(HISTORY[batch_id], offset=100 * batch_id))
        except Killed:
            pass
        else:
            break
        again = LedgerStore(str(folder))
        again.begin(batch_id)
        reader = again.reader(0)
        for entry in committed:  # every attempt of the batch reads what the first one did
            topic, ledger_id, entry_id = entry["topic"], entry["ledger_id"], entry["entry_id"]
            assert reader.payloads(topic, ledger_id, entry_id, entry_id) == [entry["payload"]]
        again.write(batch_id, 0, output(HISTORY[batch_id], offset=100 * batch_id))
        assert tree(folder) == tree(whole)
        assert not (folder / "_temporary").exists()
        lives += 1
    assert lives > 3


@pytest.mark.feature("J2")
def test_a_task_that_fails_leaves_nothing_and_can_run_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LedgerStore(url)
    rows = output([*receipts(1, 0, 4), closed(1, 5)])

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(OSError, match="no space"):
            store.write(0, 0, rows)
    assert not tree(Path(url))
    assert not (Path(url) / "_temporary").exists()
    store.write(0, 0, rows)
    assert store.scan()["entry_id"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_url_works_like_a_path(tmp_path: Path) -> None:
    store = LedgerStore((tmp_path / "a b").as_uri())
    store.begin(0)
    store.write(0, 0, output([*receipts(1, 0, 4), closed(1, 5)]))
    assert store.reader(0).read(TOPIC, 1, 0, 4) == expected(1, 0, 4)
    assert (tmp_path / "a b" / "ledgers").is_dir()
    assert isinstance(store.scan(), pa.Table)


@pytest.mark.feature("J1")
def test_another_store_takes_over_topics(tmp_path: Path) -> None:
    """Closed ledgers as files, and entries that are in segments as a segment before the first micro-batch."""
    old, new = LedgerStore(str(tmp_path / "old")), LedgerStore(str(tmp_path / "new"))
    others = receipts(1, 0, 3, topic="t-2")
    history: list[list[Effect]] = [
        receipts(1, 0, 3), [receipt(1, 4), closed(1, 5), receipt(2, 0), *others[:2]], [receipt(2, 1), *others[2:]],
    ]  # fmt: skip
    for batch, effects in enumerate(history):
        old.begin(batch)
        old.write(batch, 3, output(effects, partition=3))
    mine = TopicLedgers(TOPIC, 3, {1: 5, 2: 2}, {1}, 7, 700)
    theirs = TopicLedgers("t-2", 3, {1: 3}, set(), 3, 300)  # the state knows three of its four entries
    for _ in range(2):  # an attempt that was repeated
        new.take(old, 0, [mine])
        new.take(old, 1, [theirs])
    assert new.reader(0).read(TOPIC, 1, 0, 4) == old.reader(3).read(TOPIC, 1, 0, 4)
    assert new.reader(0).payloads(TOPIC, 2, 0, 1) == old.reader(3).payloads(TOPIC, 2, 0, 1)
    assert len(new.scan("t-2")) == 3
    assert sealed_files(new._storage.url) == sealed_files(old._storage.url)

    # The new query goes on: it seals what it took over, and a store that has been used is not that of a new one.
    for batch in range(40):
        new.begin(batch)
        new.write(batch, 0, output([receipt(2, 2 + batch)]))
    new.begin(40)
    new.write(40, 0, output([closed(2, 42)]))
    assert LedgerStore(new._storage.url).read(TOPIC, 2, 0, 41)[0] == old.reader(3).read(TOPIC, 2, 0, 0)[0]
    assert len(new.scan(TOPIC)) == 47
    with pytest.raises(ForeignFiles):
        LedgerStore(new._storage.url).begin(-1)


@pytest.mark.feature("J1")
def test_entries_that_another_store_lacks(tmp_path: Path) -> None:
    old, new = LedgerStore(str(tmp_path / "old")), LedgerStore(str(tmp_path / "new"))
    old.write(0, 0, output([receipt(1, 0), receipt(1, 1)]))
    with pytest.raises(
        EntryNotFound, match="has 2 entries of .*orders, and the state has 3: a file is missing"
    ):
        new.take(old, 0, [TopicLedgers(TOPIC, 0, {1: 3}, set(), 3, 300)])
    assert new.scan().num_rows == 0
