"""The ledger store: the entries of every ledger, until retention deletes it.

::

    <url>/segments/<partition>/<level>-….parquet    entries of open ledgers, see sinks.segments
    <url>/ledgers/<topic, escaped>/<ledger>.parquet    a closed ledger, immutable
    <url>/deletions/<batch>-<partition>.json    what the next batch's `begin` will delete

The problem
    While Spark runs micro-batch N, the broker reads entries that earlier batches stored: for a consumer that replays a
    backlog, or a subscription created at the earliest message. Spark may stop anywhere in N and run it again. The second
    attempt must read what the first one read, or its rows would differ. So N must not change anything that N can read.

    A file per ledger would have to be rewritten for each batch that adds to it. A file per batch would never be deleted,
    since one entry in it may be retained for years, and reads would have to search all of them.

The data
    An entry first goes to a *segment*: one Parquet file for each batch and ingress partition, with entries of all its
    open ledgers. `segments.compact` merges segments, so an entry is rewritten once per level, and their number stays
    small. When a ledger closes, its entries are *sealed*: copied from the segments into a file of its own. Deleting a
    ledger is then deleting that file. Its rows in segments are obsolete, and merges leave them out. If too many close at once,
    the smaller ones stay in their segments, noted as *unsealed*, until a later batch seals them.

    `EntryFile` is an open file with the index of its runs (`sinks.runs`): which rows are entries first to last of a
    ledger. `LedgerReader` finds entries by these indexes.

In order
    `begin(N)`, on the driver: deletes what batches before N noted in ``deletions/``. They are committed.
    `write(N, partition, rows)`, in a task for each ingress partition:

    1. merges segments of batches before N (`segments.compact`);
    2. notes the ledgers that N deletes;
    3. seals the ledgers that N closes or earlier batches left unsealed, from earlier segments and N's own entries;
    4. publishes N's segment: its other entries, and which ledgers N sealed, deleted, and left unsealed.

    A topic's entries over four batches::

        batch 0    stores 1:0 to 1:4                          segments/00000/0-000000000-000000000-0
        batch 1    stores 1:5 to 1:9, closes ledger 1,        ledgers/<topic>/000000001
                   stores 2:0 to 2:2                          segments/00000/0-000000001-000000001-0
        batch 2    stores 2:3 and 2:4, closes ledger 2,       ledgers/<topic>/000000002
                   deletes ledger 1, stores 3:0 to 3:3        deletions/000000002-00000.json,
                                                              segments/00000/0-000000002-000000002-0
        batch 3    begins                                     deletes ledgers/<topic>/000000001 and the note

Invariants
    * Every attempt of N reads the same. `write` adds files and changes none, and what N deletes stays until N+1 begins.
      Merges use segments of batches before N, and drop only entries that earlier batches sealed or deleted.
    * A file appears whole or not at all (`Storage.publish`).
    * Entries of a ledger are stored without gaps. Only at its end may some be missing, whose writes were not confirmed
      when it closed. A gap means that the store and the checkpoint do not belong together: `EntryNotFound`.
    * A topic name never reuses a ledger id, not even after the topic was deleted and recreated.

What it costs
    An entry is written for its batch (unless its ledger closes in it), for each level that it reaches, and when its
    ledger closes. A merged segment in which most entries are obsolete is rewritten. A partition has at most 31 segments
    per level. A read takes only the row groups it needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from schemas.effects import KINDS, CompactedEntry, LedgerClosed, LedgerDeleted, SendReceipt
from schemas.entries import Entry, EntryNotFound
from schemas.outputs import ENTRY, Rows
from sinks import batch_files, ledger_reader, segments
from sinks.base import ForeignFiles
from sinks.entry_file import SCHEMA, EntryFile, group_rows, sort_entries, write_entries
from sinks.ledger_reader import LedgerReader, sealed_path
from sinks.runs import Ledger, RunIndex, runs_of
from sinks.storage import RESTORE, Storage

_DELETIONS = "deletions"

SEALED_AT_ONCE = 500
"""A micro-batch seals so many ledgers, the largest first, in 0.7 s. When thousands of topics are unloaded at once, the others wait in
their segments for the next micro-batches."""

_STORED = frozenset(KINDS[each] for each in (SendReceipt, CompactedEntry, LedgerClosed, LedgerDeleted))
"""The kinds of rows with which a micro-batch has a segment, though it is empty if all its receipts are those of duplicates."""


class TopicLedgers(NamedTuple):
    """What a topic has stored, as its state says.

    * `partition`: its ingress partition in the store that has it.
    * `ledgers`: the number of entries by ledger id, ascending. Perhaps not all of them were confirmed.
    * `closed`: the ledgers that get no more entries.
    * `confirmed`: how many entries were confirmed, in all ledgers.
    * `size`: the bytes of these.
    """

    name: str
    partition: int
    ledgers: dict[int, int]
    closed: set[int]
    confirmed: int
    size: int


class _Deleted(msgspec.Struct):
    """Ledgers that retention deletes when their micro-batch is committed. Earlier versions wrote a list, without a checksum."""

    ledgers: list[Ledger]


_DELETED: Any = _Deleted | list[Ledger]


class LedgerStore:
    """The sink of entries. `reader` reads them back. Pickles to its URL."""

    def __init__(
        self, url: str, filesystem: fs.FileSystem | None = None, *, restore: str | None = None
    ) -> None:
        """`url`: a local folder or any URI that pyarrow can open, or, with a `filesystem`, a path on it. `restore`: see `Storage`."""
        self._storage = Storage(url, filesystem, restore=restore)
        self._checked = False

    @property
    def url(self) -> str:
        """Where it is."""
        return self._storage.url

    # -- the sink

    def begin(self, batch_id: int) -> None:
        """Delete the ledgers that earlier micro-batches noted. The first call also clears what killed writes left.

        Raises `MagnetarError` if another query wrote the files.
        """
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
        last = max((each.last for each in segments.everywhere(self._storage)), default=-1)
        if last > batch_id:
            raise ForeignFiles.found(self._storage.url, batch_id, last)

    def clear(self, batch_id: int) -> None:
        """See `StoringSink`."""
        batch_files.clear(self._storage, [_DELETIONS], batch_id)
        for own in [each for each in segments.everywhere(self._storage) if each.first == batch_id]:
            (file,) = segments.opened(self._storage, [own])
            for ledger in file.closed:
                self._storage.delete(sealed_path(*ledger))
            self._storage.delete(self._storage.relative(own.info))

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Store the entries among `rows`, seal closed ledgers, and record deletions.

        Raises `MagnetarError` if a ledger closes and the store lacks earlier entries of it (the store doesn't match the
        checkpoint), if a file is damaged, or if one can't be written.
        """
        if _STORED.isdisjoint(rows):
            return
        own, closed, deleted = _select(rows)
        earlier = segments.compact(self._storage, partition, batch_id)
        if deleted:
            path = batch_files.path(_DELETIONS, batch_id, partition, "json")
            self._storage.write_json(path, _Deleted(sorted(deleted)))
        waiting = {(topic, ledger_id): size for topic, ledger_id, size in segments.unsealed(earlier)}
        # Ledgers closed and deleted in one batch are not worth sealing.
        sizes = {ledger: size for ledger, size in (waiting | closed).items() if ledger not in deleted}
        chosen = nsmallest(SEALED_AT_ONCE, sizes, key=lambda ledger: (-sizes[ledger], ledger))
        sealed = {ledger for ledger in chosen if self._seal(ledger, sizes[ledger], earlier, own)}
        # A ledger without entries has nothing to look for. Sealed entries don't need a segment.
        empty = set(chosen) - sealed
        segments.append(
            self._storage,
            partition,
            batch_id,
            own.without(deleted | set(chosen)),
            sealed,
            deleted | (empty & waiting.keys()),
            [(*ledger, closed[ledger]) for ledger in closed.keys() - deleted - set(chosen)],
        )

    def _seal(self, ledger: Ledger, size: int, earlier: list[EntryFile], own: "_Own") -> bool:
        """Whether the ledger has entries, and so a file."""
        stored = [(file, run) for file in earlier for run in file.runs.find(ledger)]
        new = own.runs.find(ledger)
        found = 0
        for first, last in [(run.first, run.last) for _, run in stored] + [
            (run.first, run.last) for run in new
        ]:
            # Entries may be missing at the end: their writes were not confirmed when the ledger closed.
            if first != found:
                raise EntryNotFound(
                    f"ledger {ledger[1]} of {ledger[0]} closes, and {self._storage.url} lacks its entries "
                    f"{found}..{first - 1}: a segment file is missing, or store and checkpoint are from "
                    f"different points in time. {self._storage.restore or RESTORE}"
                )
            found = last + 1
        if not found:
            return False

        def pieces() -> Iterator[pa.Table]:
            for file, run in stored:
                for table in file.rows(run.row, run.stop, tuple(SCHEMA.names)):
                    yield table.cast(SCHEMA)
            for run in new:
                yield own.table.slice(run.row, run.stop - run.row)

        def write(stream: pa.NativeFile) -> None:
            rows_per_group = group_rows(found, size)
            write_entries(stream, pieces(), rows_per_group=rows_per_group, compression="zstd")

        self._storage.publish(sealed_path(*ledger), write)
        return True

    def places(self, rows: Mapping[tuple[int, str], int]) -> set[str]:
        """See `StoringSink`: the folder of each partition's segments."""
        return {segments.folder(partition) for partition, kind in rows if kind in _STORED}

    def missing(self, wrote: Mapping[str, int], committed: int) -> dict[str, int]:
        """See `StoringSink`. Reads the footer of each partition's newest segment, unless that was merged since."""
        found: dict[str, list[segments.Segment]] = {}
        for each in segments.everywhere(self._storage):
            folder = self._storage.relative(each.info).rpartition("/")[0]
            found.setdefault(folder, []).append(each)
        missing: dict[str, int] = {}
        for folder, batch in wrote.items():
            if not folder.startswith("segments/"):
                continue
            last = [each for each in found.get(folder, ()) if each.first <= batch <= each.last]
            if not last:
                missing[segments.path(int(folder.rpartition("/")[2]), 0, batch, batch)] = batch
            for own in segments.opened(self._storage, (each for each in last if each.first == batch)):
                sealed = {sealed_path(*ledger) for ledger in own.closed}
                missing |= dict.fromkeys(sealed - self._storage.infos(sealed).keys(), batch)
        return missing

    def _deletions(self) -> Iterator[tuple[int, str, list[Ledger]]]:
        """The pending deletions: (batch, file, ledgers)."""
        for info in self._storage.files(_DELETIONS):
            path = self._storage.relative(info)
            if (written := batch_files.of(path)) is None:
                continue
            found: _Deleted | list[Ledger] | None = self._storage.read_json(
                path, _DELETED, "ledgers that retention deletes"
            )
            if found is not None:
                yield written.batch, path, found if isinstance(found, list) else found.ledgers

    # -- another store's entries

    def take(self, source: "LedgerStore", partition: int, topics: Sequence[TopicLedgers]) -> None:
        """Before the first micro-batch: take over the entries of some topics, sorted by name, that are in an ingress partition now.
        Files of closed ledgers are copied or linked, and the other entries become a segment, which notes these files for `missing`. A
        repeated call does the same again.

        Raises `MagnetarError` if an entry is missing in `source`, if a file is damaged, or if one can't be written.
        """
        files = set[Ledger]()

        def pieces() -> Iterator[pa.Table]:
            for topic in topics:
                reader = source.reader(topic.partition)
                found = 0
                for ledger_id, entries in topic.ledgers.items():
                    sealed = reader.sealed(topic.name, ledger_id) if ledger_id in topic.closed else 0
                    if sealed:
                        self._storage.take(source._storage, sealed_path(topic.name, ledger_id))
                    left = unsealed = entries - sealed
                    for table in reader.stored(topic.name, ledger_id, sealed) if left > 0 else ():
                        own = table.slice(0, left).cast(SCHEMA)
                        left -= own.num_rows
                        yield own
                        if not left:
                            break
                    if sealed and left == unsealed:
                        files.add((topic.name, ledger_id))
                    found += entries - max(left, 0)
                if found < topic.confirmed:
                    raise EntryNotFound(
                        f"{source._storage.url} has {found} entries of {topic.name}, and the state has "
                        f"{topic.confirmed}: a file is missing, or store and state are from different "
                        "points in time. Restore both from the same backup"
                    )

        rows_per_group = group_rows(sum(each.confirmed for each in topics), sum(each.size for each in topics))

        def write(stream: pa.NativeFile) -> None:
            # The files are known when the pieces are written.
            write_entries(stream, pieces(), rows_per_group=rows_per_group, compression="lz4", closed=files)

        self._storage.publish(segments.path(partition, 0, segments.MOVED, segments.MOVED), write)

    # -- reading

    def reader(self, partition: int | None = None) -> LedgerReader:
        """A reader of the committed entries of one ingress partition, or (slower) of all.

        Use it for one micro-batch: it lists files again only if an entry is missing.
        """
        return LedgerReader(self._storage, partition)

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> list[Entry]:
        """`LedgerReader.read`, in any partition."""
        return self.reader().read(topic, ledger_id, first, last)

    def payloads(self, topic: str, ledger_id: int, first: int, last: int) -> list[bytes]:
        """`LedgerReader.payloads`, in any partition."""
        return self.reader().payloads(topic, ledger_id, first, last)

    def scan(self, topic: str | None = None) -> pa.Table:
        """All stored entries (of a topic, or all), columns `ENTRY`, sorted by position, without repeats.

        Meant for inspection: it reads everything, and includes what an attempt of the running micro-batch has written.
        """
        return ledger_reader.scan(self._storage, self._deleting(), topic)

    def ledgers(self) -> pa.Table:
        """One row per ledger, columns ``topic``, ``ledger_id``, ``sealed``, ``first_entry`` and ``last_entry``, sorted."""
        return ledger_reader.ledgers(self._storage, self._deleting())

    def _deleting(self) -> set[Ledger]:
        return {ledger for _, _, ledgers in self._deletions() for ledger in ledgers}


def read_entries(url: str, topic: str | None = None) -> pa.Table:
    """`LedgerStore.scan` of the store at `url`."""
    return LedgerStore(url).scan(topic)


class _Own:
    """The sorted entries of the batch being written, and the place of each ledger's entries."""

    def __init__(self, entries: pa.Table) -> None:
        self.table = sort_entries(entries)
        self.runs = RunIndex(runs_of(self.table))

    def without(self, ledgers: set[Ledger]) -> pa.Table:
        if not any(ledger in self.runs for ledger in ledgers):
            return self.table
        return self.table.filter(pa.array(self.runs.rows_outside(ledgers)))


def _select(rows: Rows) -> tuple[_Own, dict[Ledger, int], set[Ledger]]:
    """The stored entries, closed ledgers with their sizes, and deleted ledgers among output rows."""
    receipts = rows.get(KINDS[SendReceipt])
    entries = ENTRY.empty_table() if receipts is None else receipts.select(ENTRY.names)
    # The receipt of a duplicate has no entry, and its ledger is −1.
    stored = pc.greater_equal(entries["ledger_id"], 1)
    if not pc.all(stored).as_py():
        entries = entries.filter(stored)
    if (copies := rows.get(KINDS[CompactedEntry])) is not None:
        # They have no ids of their own besides those in their metadata.
        ids = pa.nulls(len(copies), ENTRY.field("highest_sequence_id").type)
        entries = pa.concat_tables(
            [entries, copies.append_column("highest_sequence_id", ids).select(ENTRY.names)]
        )
    return (
        _Own(entries),
        {(row["topic"], row["ledger_id"]): row["size"] for row in _ledgers(rows, LedgerClosed)},
        {(row["topic"], row["ledger_id"]) for row in _ledgers(rows, LedgerDeleted)},
    )


def _ledgers(rows: Rows, effect: type[LedgerClosed | LedgerDeleted]) -> list[dict[str, Any]]:
    table = rows.get(KINDS[effect])
    if table is None:
        return []
    found: list[dict[str, Any]] = table.select(["topic", "ledger_id", "size"]).to_pylist()
    return found
