"""The segments of one ingress partition. They hold its entries until their ledgers are sealed.

Each micro-batch with entries adds a segment of level 0. When a level has enough segments, its sixteen oldest are merged
into one of the next level, without entries that are now in sealed files or deleted. So a partition has at most 31 segments
per level, and an entry is rewritten once per level: the cost of reads doesn't grow with the number of batches. A merged
segment in which most entries are obsolete is rewritten without them, so disk space follows the live data.

Names are ``<level>-<first batch>-<last batch>-<revision>.parquet``. Batch `MOVED` has the entries that another store had. A segment is *covered*, and ignored, once a segment of
a higher level or a later revision spans its batches. The new segment is published before anything else changes, and a
later call deletes covered files. All this uses only segments of batches before the one being written. Those are
committed, so the result is the same in every attempt of a batch, and no attempt needs what it drops.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
from pyarrow import fs

from sinks.entry_file import EntryFile, group_rows, sort_entries, write_entries
from sinks.runs import Ledger, Unsealed
from sinks.storage import Storage

FAN_IN = 16

MOVED = -1
"""In place of a micro-batch: entries that were there before the first one, see `LedgerStore.take`."""

_NAME = re.compile(r"(\d+)-(-?\d+)-(-?\d+)-(\d+)\.parquet")

_Key = tuple[str, int, int]


class Segment(NamedTuple):
    """A segment file. It spans the micro-batches `first` to `last`, both inclusive."""

    level: int
    first: int
    last: int
    revision: int
    info: fs.FileInfo

    @property
    def partition(self) -> int:
        """The ingress partition whose entries it has."""
        return int(str(self.info.path).split("/")[-2])

    def covers(self, other: "Segment") -> bool:
        """Whether `other` no longer counts because this segment replaces it."""
        spans = self.first <= other.first and other.last <= self.last
        return spans and (self.level, self.revision) > (other.level, other.revision)


def folder(partition: int) -> str:
    """The folder of an ingress partition's segments, below the store's root."""
    return f"segments/{partition:05d}"


def path(partition: int, level: int, first: int, last: int, revision: int = 0) -> str:
    """The file of a segment, below the store's root. `first`, `last`: micro-batches."""
    return f"{folder(partition)}/{level}-{first:09d}-{last:09d}-{revision}.parquet"


def parse(info: fs.FileInfo) -> Segment:
    """Parse a segment's file name."""
    found = _NAME.fullmatch(info.base_name)
    assert found is not None, info.base_name
    level, first, last, revision = map(int, found.groups())
    return Segment(level, first, last, revision, info)


def everywhere(storage: Storage) -> list[Segment]:
    """The segments of all ingress partitions, live and covered ones."""
    return [parse(info) for info in storage.files("segments", recursive=True, named=_NAME)]


def partitions(storage: Storage) -> list[int]:
    """The ingress partitions that have segments."""
    return sorted({each.partition for each in everywhere(storage)})


def moved(storage: Storage) -> set[int]:
    """The ingress partitions whose entries began with those of another store. Merges keep the first micro-batch that a segment spans."""
    return {each.partition for each in everywhere(storage) if each.first == MOVED}


def count(storage: Storage) -> int:
    """How many segments all ingress partitions have: 31 per level each, at most, and those that are about to be deleted."""
    return len(everywhere(storage))


def listed(storage: Storage, partition: int) -> tuple[list[Segment], list[Segment]]:
    """The live segments, oldest first, and the covered ones."""
    live: list[Segment] = []
    covered: list[Segment] = []
    found = [parse(i) for i in storage.files(folder(partition), named=_NAME)]
    for segment in sorted(found, key=lambda s: (s.first, -s.level, -s.revision)):
        # Ranges nest, so a covering segment sorts before the covered one, and the last live one is the widest.
        (covered if live and live[-1].covers(segment) else live).append(segment)
    return live, covered


def opened(storage: Storage, segments: Iterable[Segment]) -> list[EntryFile]:
    """The files of `segments`, with their indexes. Raises `Damaged`."""
    return [EntryFile.open(storage, s.info) for s in segments]


def append(
    storage: Storage,
    partition: int,
    batch_id: int,
    entries: pa.Table,
    closed: set[Ledger],
    deleted: set[Ledger],
    unsealed: list[Unsealed],
) -> None:
    """Publish a batch's segment: its sorted entries, and the ledgers that it sealed, deleted, and closed without sealing them."""
    rows_per_group = group_rows(entries.num_rows, entries.nbytes)

    def write(stream: pa.NativeFile) -> None:
        write_entries(
            stream,
            [entries],
            rows_per_group=rows_per_group,
            compression="lz4",
            closed=closed,
            deleted=deleted,
            unsealed=unsealed,
        )

    storage.publish(path(partition, 0, batch_id, batch_id), write)


def compact(storage: Storage, partition: int, batch_id: int) -> list[EntryFile]:
    """Delete covered segments, merge full levels, and rewrite one segment that is mostly obsolete.

    Uses only committed segments (batches before `batch_id`). Returns the committed live ones, oldest first.
    """
    live, covered = listed(storage, partition)
    for segment in covered:
        storage.delete(storage.relative(segment.info))
    committed = [s for s in live if s.last < batch_id]
    # Partitions merge in different batches: together, their merges would make every sixteenth batch slow.
    full = FAN_IN + partition % FAN_IN
    level = 0
    while any(s.level >= level for s in committed):
        of_level = [i for i, s in enumerate(committed) if s.level == level]
        if len(of_level) >= full:
            # They are consecutive, because levels descend from old to new.
            first, last = committed[of_level[0]], committed[of_level[FAN_IN - 1]]
            name = path(partition, level + 1, first.first, last.last)
            _rewrite(storage, name, opened(storage, committed), of_level[0], FAN_IN)
            committed = [s for s in listed(storage, partition)[0] if s.last < batch_id]
        level += 1
    files = opened(storage, committed)
    if files:
        # One check per batch is enough, and cheap.
        i = batch_id % len(files)
        segment, file = committed[i], files[i]
        useless = file.num_rows - int(file.runs.rows_outside(_gone(files, i)).sum())
        if segment.level and 2 * useless > file.num_rows:
            name = path(partition, segment.level, segment.first, segment.last, segment.revision + 1)
            _rewrite(storage, name, files, i, 1)
            files = opened(storage, (s for s in listed(storage, partition)[0] if s.last < batch_id))
    return files


def _gone(files: list[EntryFile], i: int) -> set[Ledger]:
    """The ledgers for which ``files[i]`` is not needed: those noted as sealed or deleted in it or a later segment."""
    return {ledger for file in files[i:] for ledger in (*file.closed, *file.deleted)}


def unsealed(files: list[EntryFile]) -> list[Unsealed]:
    """The ledgers that were closed and have no file of their own yet. `files`: all live segments, oldest first."""
    found = [(i, each) for i, file in enumerate(files) for each in file.unsealed]
    gone = _gone(files, found[0][0]) if found else set()
    return [each for _, each in found if each[:2] not in gone]


def _rewrite(storage: Storage, name: str, files: list[EntryFile], start: int, count: int) -> None:
    """Publish the live entries of ``files[start:start + count]`` as one segment."""
    inputs = files[start : start + count]
    # Notes are kept while an older segment has something to drop.
    older = files[:start]
    noted = {each[:2] for file in older for each in file.unsealed}
    closed, deleted = (
        {each for ledgers in notes for each in ledgers if each in noted or any(each in o.runs for o in older)}
        for notes in ([file.closed for file in inputs], [file.deleted for file in inputs])
    )
    gone = [_gone(files, start + i) for i in range(count)]
    waiting = [
        each
        for file, of_file in zip(inputs, gone, strict=True)
        for each in file.unsealed
        if each[:2] not in of_file
    ]
    rows_per_group = group_rows(sum(f.num_rows for f in inputs), sum(f.size for f in inputs))

    def write(stream: pa.NativeFile) -> None:
        rows = merged([file.entries_without(of_file) for file, of_file in zip(inputs, gone, strict=True)])
        write_entries(
            stream,
            rows,
            rows_per_group=rows_per_group,
            compression="lz4",
            closed=closed,
            deleted=deleted,
            unsealed=waiting,
        )

    storage.publish(name, write)


def merged(inputs: list[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Merge sorted sequences of tables into one. Holds about one table per input at a time."""
    heads: dict[int, pa.Table] = {}
    ends: dict[int, _Key] = {}
    empty = list(range(len(inputs)))
    while True:
        for i in empty:
            head = next(inputs[i], None)
            if head is not None:
                heads[i], ends[i] = head, _key(head, head.num_rows - 1)
        if not heads:
            return
        # No input can still produce rows up to the smallest end.
        end = min(ends.values())
        parts = []
        for i, head in heads.items():
            ready = _rows_up_to(head, end)
            parts.append(head.slice(0, ready))
            heads[i] = head.slice(ready)
        empty = [i for i, head in heads.items() if not head.num_rows]
        for i in empty:
            del heads[i], ends[i]
        parts = [p for p in parts if p.num_rows]
        yield parts[0] if len(parts) == 1 else sort_entries(pa.concat_tables(parts))


def _rows_up_to(table: pa.Table, end: _Key) -> int:
    return bisect_right(range(table.num_rows), end, key=lambda row: _key(table, row))


def _key(table: pa.Table, row: int) -> _Key:
    return table["topic"][row].as_py(), table["ledger_id"][row].as_py(), table["entry_id"][row].as_py()
