"""The ledger store: the entries of every ledger, until retention deletes it.

::

    <url>/segments/<partition>/<level>-….parquet    entries of open ledgers, see sinks.segments
    <url>/ledgers/<topic, escaped>/<ledger>.parquet    a closed ledger, immutable
    <url>/deletions/<batch>-<partition>.json    what the next batch's `begin` will delete

Ledger ids must never come twice under one topic name, not even after the topic was deleted and created again.

How attempts stay equal. While batch N runs, the broker asks for entries of batches before N. `write` of N adds files and
changes none of those: what N deletes goes when N+1 begins, and merging drops only what batches before N sealed or
deleted. So every attempt of N reads the same, whatever the one before it left.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from schemas.effects import KINDS, LedgerClosed, LedgerDeleted, SendReceipt
from schemas.entries import Entry, EntryNotFound
from schemas.outputs import ENTRY, Rows
from sinks import batch_files, ledger_reader, segments
from sinks.base import ForeignFiles
from sinks.entry_file import SCHEMA, EntryFile, group_rows, sort_entries, write_entries
from sinks.ledger_reader import LedgerReader, sealed_path
from sinks.runs import Ledger, RunIndex, runs_of
from sinks.storage import RESTORE, Damaged, Storage, plain

_DELETIONS = "deletions"


class LedgerStore:
    """The sink of entries, and the way to read them back (`reader`). Pickles to its URL."""

    def __init__(self, url: str, filesystem: fs.FileSystem | None = None) -> None:
        """`url`: a local folder or any URI pyarrow can open; with a `filesystem`, a path on it."""
        self._storage = Storage(url, filesystem)
        self._checked = False

    # -- the sink

    def begin(self, batch_id: int) -> None:
        if not self._checked:
            self._check(batch_id)
            self._storage.sweep()
            self._checked = True
        for batch, path, ledgers in self._deletions():
            if batch < batch_id:
                for ledger in ledgers:
                    self._storage.delete(sealed_path(*ledger))
                self._storage.delete(path)

    def _check(self, batch_id: int) -> None:
        last = max(
            (segments.parse(i).last for i in self._storage.files("segments", recursive=True)), default=-1
        )
        if last > batch_id:
            raise ForeignFiles.found(self._storage.url, batch_id, last)

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Store the entries among `rows`, seal closed ledgers, note deletions.

        Raises `EntryNotFound` when a ledger closes and the store lacks earlier entries (it and the checkpoint differ),
        `Damaged` and `NotStored`.
        """
        own, closed, deleted = _select(rows)
        if not (own.runs.num_rows or closed or deleted):
            return
        earlier = segments.compact(self._storage, partition, batch_id)
        if deleted:
            self._storage.publish(
                batch_files.path(_DELETIONS, batch_id, partition, "json"),
                lambda stream: stream.write(msgspec.json.encode(sorted(deleted))),
            )
        # What leaves at once is not worth sealing.
        for ledger in sorted(closed.keys() - deleted):
            self._seal(ledger, closed[ledger], earlier, own)
        # Sealed entries need no segment.
        staying = own.without(deleted | closed.keys())
        segments.append(self._storage, partition, batch_id, staying, set(closed), deleted)

    def _seal(self, ledger: Ledger, closed: "_Closed", earlier: list[EntryFile], own: "_Own") -> None:
        stored = [(file, run) for file in earlier for run in file.runs.find(ledger)]
        new = own.runs.find(ledger)
        found = 0
        for first, last in [(run.first, run.last) for _, run in stored] + [
            (run.first, run.last) for run in new
        ]:
            # Entries missing at the end are possible: writes that were not confirmed when the ledger closed.
            if first != found:
                raise EntryNotFound(
                    f"ledger {ledger[1]} of {ledger[0]} closes, and {self._storage.url} lacks its entries "
                    f"{found}..{first - 1}: a file of its segments is missing, or the store and the checkpoint differ. "
                    f"{RESTORE}"
                )
            found = last + 1
        if not found:
            return

        def pieces() -> Iterator[pa.Table]:
            for file, run in stored:
                for table in file.rows(run.row, run.stop, tuple(SCHEMA.names)):
                    yield table.cast(SCHEMA)
            for run in new:
                yield own.table.slice(run.row, run.stop - run.row)

        def write(stream: pa.NativeFile) -> None:
            rows_per_group = group_rows(closed.entries, closed.size)
            write_entries(stream, pieces(), rows_per_group=rows_per_group, compression="zstd")

        self._storage.publish(sealed_path(*ledger), write)

    def _deletions(self) -> Iterator[tuple[int, str, list[Ledger]]]:
        """(batch, file, ledgers) of the deletions that wait."""
        for info in self._storage.files(_DELETIONS):
            path = self._storage.relative(info)
            with self._storage.open(path) as file:
                try:
                    ledgers = msgspec.json.decode(file.read(), type=list[Ledger])
                except msgspec.MsgspecError as error:
                    raise Damaged(
                        f"{self._storage.url}/{path} (ledgers that retention deletes) is damaged: {plain(error)}. {RESTORE}"
                    ) from error
            yield batch_files.batch_of(info), path, ledgers

    # -- reading

    def reader(self, partition: int | None = None) -> LedgerReader:
        """Reads what is committed of one ingress partition's topics; without a partition, of any (slower). Meant for
        one micro-batch: a reader looks again at what is stored only when it misses something."""
        return LedgerReader(self._storage, partition)

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> list[Entry]:
        """As `LedgerReader.read`, in whatever partition."""
        return self.reader().read(topic, ledger_id, first, last)

    def payloads(self, topic: str, ledger_id: int, first: int, last: int) -> list[bytes]:
        """As `LedgerReader.payloads`, in whatever partition."""
        return self.reader().payloads(topic, ledger_id, first, last)

    def scan(self, topic: str | None = None) -> pa.Table:
        """All entries that are stored (of one topic), columns `ENTRY`, sorted by position, without repeats.

        For people: it also shows what an attempt of the running micro-batch has written, and reads everything.
        """
        return ledger_reader.scan(self._storage, self._deleting(), topic)

    def ledgers(self) -> pa.Table:
        """One row a ledger, columns `sinks.ledger_reader.LEDGERS`, sorted."""
        return ledger_reader.ledgers(self._storage, self._deleting())

    def _deleting(self) -> set[Ledger]:
        return {ledger for _, _, ledgers in self._deletions() for ledger in ledgers}


def read_entries(url: str, topic: str | None = None) -> pa.Table:
    """`LedgerStore.scan` of the store at `url`."""
    return LedgerStore(url).scan(topic)


class _Closed(NamedTuple):
    """What a LEDGER_CLOSED row says of a ledger."""

    entries: int
    size: int


class _Own:
    """The entries of the batch being written, sorted, and where each ledger's are."""

    def __init__(self, entries: pa.Table) -> None:
        self.table = sort_entries(entries)
        self.runs = RunIndex(runs_of(self.table))

    def without(self, ledgers: set[Ledger]) -> pa.Table:
        if not any(ledger in self.runs for ledger in ledgers):
            return self.table
        return self.table.filter(pa.array(self.runs.rows_outside(ledgers)))


def _select(rows: Rows) -> tuple[_Own, dict[Ledger, _Closed], set[Ledger]]:
    """Of output rows: the stored entries, the ledgers closed, the ledgers deleted."""
    receipts = rows.get(KINDS[SendReceipt])
    entries = ENTRY.empty_table() if receipts is None else receipts.select(ENTRY.names)
    # The receipt of a duplicate has no entry: its ledger is −1.
    stored = pc.greater_equal(entries["ledger_id"], 1)
    if not pc.all(stored).as_py():
        entries = entries.filter(stored)
    return (
        _Own(entries),
        {
            (row["topic"], row["ledger_id"]): _Closed(row["entries"], row["size"])
            for row in _ledgers(rows, LedgerClosed)
        },
        {(row["topic"], row["ledger_id"]) for row in _ledgers(rows, LedgerDeleted)},
    )


def _ledgers(rows: Rows, effect: type[LedgerClosed | LedgerDeleted]) -> list[dict[str, Any]]:
    table = rows.get(KINDS[effect])
    if table is None:
        return []
    found: list[dict[str, Any]] = table.select(["topic", "ledger_id", "entries", "size"]).to_pylist()
    return found
