"""Reads entries from the ledger store: metadata for the broker, payloads for responses, and tables for people."""

import re
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import MessageMetadata
from schemas.entries import Entry, EntryNotFound
from schemas.records import column
from sinks import segments
from sinks.entry_file import METADATA, SCHEMA, EntryFile, sort_entries
from sinks.paths import escape
from sinks.runs import EntryRun, Ledger
from sinks.storage import RESTORE, Storage

T = TypeVar("T")
Source = tuple[EntryFile, EntryRun]

_AHEAD, _AHEAD_BYTES = 64, 1 << 20
"""Entries that are read at once for somebody who asked for the first of them, and their bytes."""

_decode = msgspec.msgpack.Decoder(MessageMetadata).decode


def sealed_folder(topic: str) -> str:
    """Where the closed ledgers of a topic are, below the store's root."""
    return f"ledgers/{escape(topic)}"


_SEALED = re.compile(r"\d+\.parquet")


def sealed_path(topic: str, ledger_id: int) -> str:
    """The file of a closed ledger, below the store's root."""
    return f"{sealed_folder(topic)}/{ledger_id:09d}.parquet"


class LedgerReader:
    """An `EntryReader` over a store, for one ingress partition or, if None, for all.

    It lists the files on the first read, and again only if an entry is missing. So create one per micro-batch. What it reads
    stays in the process's cache, also for the next reader.
    """

    def __init__(self, storage: Storage, partition: int | None) -> None:
        self._storage = storage
        self._partition = partition
        self._segments: list[EntryFile] | None = None
        self._sealed: dict[Ledger, list[Source]] = {}
        self._open: dict[Ledger, list[Source]] = {}

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> list[Entry]:
        """Entries `first` to `last`, inclusive, in order. Raises `EntryNotFound` if one is missing."""

        def collect(tables: Iterator[pa.Table]) -> list[Entry]:
            return [entry for table in tables for entry in _entries(table)]

        return self._read((topic, ledger_id), first, last, METADATA, collect)

    def payloads(self, topic: str, ledger_id: int, first: int, last: int) -> list[bytes]:
        """Payloads of entries `first` to `last`, inclusive, in order. Raises `EntryNotFound`."""

        def collect(tables: Iterator[pa.Table]) -> list[bytes]:
            return [payload for table in tables for payload in table["payload"].to_pylist()]

        return self._read((topic, ledger_id), first, last, ("payload",), collect)

    def ahead(self, topic: str, ledger_id: int, first: int) -> list[tuple[Entry, bytes]]:
        """Entry `first` and a few that follow it in its file, with their payloads: whoever wants one is about to want the next, and one by one
        costs 30 times as much. Raises `EntryNotFound` if the first is missing."""
        entries = self.read(topic, ledger_id, first, first)
        run = next(run for _, run in self._of((topic, ledger_id)) if run.first <= first <= run.last)
        entries += self.read(topic, ledger_id, first + 1, min(first + _AHEAD - 1, run.last))
        sizes = accumulate(entry.size for entry in entries)
        count = max(sum(size <= _AHEAD_BYTES for size in sizes), 1)
        payloads = self.payloads(topic, ledger_id, first, first + count - 1)
        return list(zip(entries[:count], payloads, strict=True))

    def _read(
        self,
        ledger: Ledger,
        first: int,
        last: int,
        columns: tuple[str, ...],
        collect: Callable[[Iterator[pa.Table]], list[T]],
    ) -> list[T]:
        if last < first:
            return []
        try:
            return collect(self._rows(ledger, first, last, columns))
        except (EntryNotFound, FileNotFoundError):
            # A batch was written since this reader listed the files: segments were added, merged or sealed.
            self._segments = None
            self._sealed.clear()
            self._open.clear()
            return collect(self._rows(ledger, first, last, columns))

    def _rows(self, ledger: Ledger, first: int, last: int, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        while first <= last:
            # If several files have an entry, its bytes are the same in all of them.
            found = next((s for s in self._of(ledger) if s[1].first <= first <= s[1].last), None)
            if found is None:
                raise EntryNotFound(self._missing(ledger, first))
            file, run = found
            until = min(last, run.last)
            yield from file.rows(run.row + first - run.first, run.row + until + 1 - run.first, columns)
            first = until + 1

    def stored(self, topic: str, ledger_id: int, first: int) -> Iterator[pa.Table]:
        """All columns of the entries from `first` on, in order, as far as they are stored without a gap."""
        ledger = topic, ledger_id
        while found := next((s for s in self._of(ledger) if s[1].first <= first <= s[1].last), None):
            file, run = found
            yield from file.rows(run.row + first - run.first, run.stop, tuple(SCHEMA.names))
            first = run.last + 1

    def sealed(self, topic: str, ledger_id: int) -> int:
        """How many entries of a ledger are in a file of its own."""
        info = self._storage.info(sealed_path(topic, ledger_id))
        return 0 if info is None else EntryFile.open(self._storage, info).num_rows

    def _missing(self, ledger: Ledger, entry: int) -> str:
        partition = "<partition>" if self._partition is None else f"{self._partition:05d}"
        return (
            f"entry {ledger[1]}:{entry} of {ledger[0]} is not in {self._storage.url}: a file is missing "
            f"({sealed_path(*ledger)} or one of segments/{partition}), or store and checkpoint are from different points in time. "
            f"{self._storage.restore or RESTORE}"
        )

    def _of(self, ledger: Ledger) -> Iterator[Source]:
        """Where the ledger's entries are: first its sealed file, then the segments if entries are missing."""
        sealed = self._sealed.get(ledger)
        if sealed is None:
            info = self._storage.info(sealed_path(*ledger))
            file = None if info is None else EntryFile.open(self._storage, info)
            sealed = [] if file is None else [(file, run) for run in file.runs.find(ledger)]
            self._sealed[ledger] = sealed
        yield from sealed
        if ledger not in self._open:
            self._open[ledger] = [(file, run) for file in self.segments() for run in file.runs.find(ledger)]
        yield from self._open[ledger]

    def segments(self) -> list[EntryFile]:
        """The live segments, oldest first within a partition."""
        if self._segments is None:
            partitions = segments.partitions(self._storage) if self._partition is None else [self._partition]
            self._segments = [
                EntryFile.open(self._storage, segment.info)
                for partition in partitions
                for segment in segments.listed(self._storage, partition)[0]
            ]
        return self._segments


def message_metadata(
    producer_name: str, sequence_id: int, publish_time: int, partition_key: str | None, packed: bytes | None
) -> MessageMetadata:
    """An entry's metadata from its columns. Without the packed column, the others are complete."""
    if packed is not None:
        return _decode(packed)
    return MessageMetadata(
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time,
        partition_key=partition_key,
    )


def _entries(table: pa.Table) -> Iterator[Entry]:
    *columns, sizes, times = (table[name].to_pylist() for name in METADATA)
    return map(Entry, map(message_metadata, *columns), sizes, times)


def scan(storage: Storage, deleting: set[Ledger], topic: str | None) -> pa.Table:
    """See `LedgerStore.scan`. `deleting`: ledgers whose deletion is pending."""
    files = _files(storage, topic)
    gone = deleting.union(*(file.deleted for file in files))
    tables = [SCHEMA.empty_table()]
    for file in files:
        others = {ledger for ledger in file.runs if topic is not None and ledger[0] != topic}
        tables.extend(file.entries_without(gone | others))
    rows = sort_entries(pa.concat_tables(tables))
    repeat = np.ones(max(rows.num_rows - 1, 0), bool)
    for name in ("topic", "ledger_id", "entry_id"):
        column = rows[name].combine_chunks()
        repeat &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return rows.filter(pa.array(np.concatenate((np.ones(min(rows.num_rows, 1), bool), ~repeat))))


def ledgers(storage: Storage, deleting: set[Ledger]) -> pa.Table:
    """See `LedgerStore.ledgers`. Reads footers only."""
    files = _files(storage, None)
    gone = deleting.union(*(file.deleted for file in files))
    found: dict[Ledger, tuple[bool, int, int]] = {}
    for file in files:
        for ledger in file.runs:
            runs = file.runs.find(ledger)
            sealed, first, last = found.get(ledger, (False, runs[0].first, runs[-1].last))
            is_sealed = sealed or not file.path.startswith("segments/")
            found[ledger] = is_sealed, min(first, runs[0].first), max(last, runs[-1].last)
    rows = [(*ledger, *found[ledger]) for ledger in sorted(found.keys() - gone)]
    return pa.Table.from_arrays(
        [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), LEDGERS, strict=True)]
        if rows
        else [pa.array([], f.type) for f in LEDGERS],
        schema=LEDGERS,
    )


LEDGERS = pa.schema(
    [
        column("topic", pa.string(), "full topic name"),
        column("ledger_id", pa.int64(), "ledger, numbered from 1 in each topic"),
        column("sealed", pa.bool_(), "it is closed and has a file of its own"),
        column("first_entry", pa.int64(), "lowest entry id that is stored"),
        column("last_entry", pa.int64(), "highest entry id that is stored"),
    ]
)


def _files(storage: Storage, topic: str | None) -> list[EntryFile]:
    """The sealed files (of a topic, or all) and all live segments."""
    folder = "ledgers" if topic is None else sealed_folder(topic)
    sealed = [
        EntryFile.open(storage, i) for i in storage.files(folder, recursive=topic is None, named=_SEALED)
    ]
    return sealed + LedgerReader(storage, None).segments()
