"""Which micro-batch a store's query began last, and what was planned for it: ``<url>/begun.json``.

Each micro-batch is noted before anything of it is written, so the note tells whether store and checkpoint are of the same time: the
last micro-batch of the store is the one that the query begins, or the one before it, with the contents that the checkpoint has planned.

A micro-batch that Spark repeats after a crash is the one that it planned: the same records and the same time. One that is planned anew,
because an older checkpoint was restored, has the same number and other contents, and what it wrote would replace what is there.

It is folded by the `max_ahead_ms` of its first attempt, too (`Repeated`); another one counts from the next one on. What an operator sets
aside counts at once: a repeat clears what its first attempt wrote (`StoringSink.clear`).

When all of a micro-batch is written, the note says so, and where. So the files that a power failure or an incomplete copy took are missed
at the next start. It has the last record of each ingress partition, too: a Kafka that came back with older data has another one at that
offset. It also says which micro-batches ran without output tables, so that nobody takes the rest for all that happened.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

import msgspec

from sinks.base import BEGUN, ForeignFiles, Sink, StoringSink
from sinks.storage import Storage


class Planned(msgspec.Struct, frozen=True):
    """A micro-batch as Spark planned it. `time`: ms since the epoch. `offsets`: where its sources end, in their own notation."""

    batch: int
    time: int
    offsets: str


class Repeated(NamedTuple):
    """A micro-batch, and the `max_ahead_ms` that decided at its first attempt what went to quarantine."""

    batch: int
    max_ahead_ms: int | None


class LastRecord(NamedTuple):
    """A record that was folded last: its offset in its ingress partition, its timestamp (ms), and the CRC-32 of its value."""

    offset: int
    timestamp: int
    crc32: int

    @classmethod
    def of(cls, offset: int, timestamp: int, value: bytes | None) -> "LastRecord":
        """Of a record with this value."""
        return cls(offset, timestamp, crc32(value or b""))

    def encode(self) -> bytes:
        """For the way from an operator to the driver."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "LastRecord":
        """What `encode` encoded."""
        return msgspec.msgpack.decode(data, type=cls)


class _Note(Planned, frozen=True, kw_only=True):
    """The file. `is_whole`: all of the micro-batch was written. `wrote`: the last micro-batch that wrote to a place, see `StoringSink`,
    up to the last one that was whole. None: not known, because an earlier version wrote the file. `without_tables`: the first and the
    last micro-batch of each time without output tables. `max_ahead_ms`: the option by which it was folded, which an earlier version did
    not note. `previous`: the micro-batch before it, None: not known.
    `last`: by ingress partition, the last record up to the last micro-batch that was whole."""

    is_whole: bool = False
    wrote: dict[str, int] | None = None
    without_tables: list[tuple[int, int]] = []
    max_ahead_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    previous: Planned | None = None
    last: dict[int, LastRecord] = {}

    @property
    def planned(self) -> Planned:
        return Planned(self.batch, self.time, self.offsets)


class Begun:
    """The note of a store, for its query alone."""

    def __init__(self, url: str, *, tables: bool = True) -> None:
        """`url`: as of `Storage`. `tables`: whether the query writes output tables."""
        self._storage, self._tables = Storage(url), tables
        self._last: _Note | None = None
        self._is_read = False

    def check(self, last: int, committed: int = -1) -> None:
        """Raises `ForeignFiles` if a micro-batch began after `last`, the last one that the checkpoint has planned (−1: none), or if
        those just before it did not begin here, or `committed` did not, the last one that it has committed."""
        before = self._noted()
        if before is None:
            if last > 0 and not self._storage.has_folders():
                raise self._older("nothing", last)
        elif before.batch > last:
            raise ForeignFiles.found(self._storage.url, last, before.batch)
        elif before.batch < max(last - 1, committed):
            raise self._older(f"output of micro-batches up to {before.batch}", last)

    def begin(self, planned: Planned, previous: Planned | None, max_ahead_ms: int | None = None) -> bool:
        """Call it before anything of a micro-batch is written. Returns whether it is a repeat, of which something may be written.

        `previous`: the one before it, None: the checkpoint does not have it. `max_ahead_ms`: by what it is folded, unless it is a repeat,
        see `repeated`.

        Raises `ForeignFiles` if the last one that began here is neither of these, `Damaged`, and `NotStored`.
        """
        self.check(planned.batch)
        before = self._noted()
        without = [] if before is None else before.without_tables
        if not self._tables:
            without = _extended(without, planned.batch)
        if before is not None and before.planned == planned:
            if without != before.without_tables:
                self._write(msgspec.structs.replace(before, without_tables=without))
            return True
        expected = planned if before is not None and before.batch == planned.batch else previous
        if before is not None and expected is not None and before.planned != expected:
            raise self._another(before.batch)
        wrote = {} if before is None else before.wrote
        self._write(
            _Note(
                planned.batch,
                planned.time,
                planned.offsets,
                wrote=wrote,
                without_tables=without,
                max_ahead_ms=max_ahead_ms,
                previous=previous if before is None else before.planned,
                last={} if before is None else before.last,
            )
        )
        return False

    def check_same(self, planned: Planned) -> None:
        """Raises `ForeignFiles` if the store notes a micro-batch of that number with other contents than the checkpoint has. It notes the
        last two that began, and one of them is the last one that is committed."""
        note = self._noted()
        known = [] if note is None else [note.planned, note.previous]
        if any(each is not None and each.batch == planned.batch and each != planned for each in known):
            raise self._another(planned.batch)

    def repeated(self) -> Repeated | None:
        """The micro-batch that began last, which a query that goes on may repeat. None: there is none, or an earlier version began it.
        Raises `Damaged`."""
        note = self._noted()
        if note is None or isinstance(note.max_ahead_ms, msgspec.UnsetType):
            return None
        return Repeated(note.batch, note.max_ahead_ms)

    def may_have_begun(self, batch: int) -> bool:
        """Whether something of a micro-batch may be written here already. Raises `Damaged`."""
        before = self._noted()
        # The store of an earlier version has no note, whatever it holds.
        return batch > 0 if before is None else before.batch >= batch

    def last(self) -> Mapping[int, LastRecord]:
        """By ingress partition, the last record that is folded. Those that an earlier version folded are not among them. Raises `Damaged`."""
        note = self._noted()
        return {} if note is None else note.last

    def end(
        self,
        sinks: Iterable[Sink],
        rows: Mapping[tuple[int, str], int],
        last: Mapping[int, LastRecord] = MappingProxyType({}),
    ) -> None:
        """Call it when all of the micro-batch at hand is written, and before the checkpoint has it committed. `rows`: the number of rows
        by (ingress partition, kind). `last`: the last record of each partition in it. Raises `NotStored`."""
        note = self._noted()
        assert note is not None
        places = (place for sink in sinks if isinstance(sink, StoringSink) for place in sink.places(rows))
        wrote = (note.wrote or {}) | dict.fromkeys(sorted(places), note.batch)
        if not note.is_whole or wrote != note.wrote:
            folded = {**note.last, **last}
            self._write(msgspec.structs.replace(note, is_whole=True, wrote=wrote, last=folded))

    def missing(self, sinks: Iterable[Sink], committed: int) -> dict[str, int]:
        """What is not there of what the micro-batches up to `committed` wrote last, and which one wrote it. Raises `Damaged`."""
        note = self._noted()
        if note is None or note.wrote is None:
            return {}
        if note.batch == committed and not note.is_whole:
            return {f"the last {BEGUN}": committed}
        wrote = {place: batch for place, batch in note.wrote.items() if batch <= committed}
        found: dict[str, int] = {}
        for sink in sinks:
            if isinstance(sink, StoringSink):
                found |= sink.missing(wrote, committed)
        return found

    def _write(self, note: _Note) -> None:
        self._storage.write_json(BEGUN, note)
        self._last = note

    def _another(self, batch: int) -> ForeignFiles:
        return ForeignFiles(
            f"{self._storage.url} holds output of another micro-batch {batch} than the one that the query has: the checkpoint is an older "
            f"copy, which went on without this store, or its file offsets/{batch} is damaged. Nothing was written. Restore checkpoint and "
            "store of the same time together, or give this query a new checkpoint and a new store"
        )

    def _older(self, holds: str, last: int) -> ForeignFiles:
        return ForeignFiles(
            f"{self._storage.url} holds {holds}, but the query is at micro-batch {last}: the store is older than the checkpoint, and lacks "
            "what was written since. Restore both from the same backup, or give this query a new checkpoint and a new store"
        )

    def _noted(self) -> _Note | None:
        # Earlier versions have none: then the names of the files must do.
        if not self._is_read:
            self._last = self._storage.read_json(BEGUN, _Note, "the micro-batch that began last")
            self._is_read = True
        return self._last

    def without_tables(self) -> list[tuple[int, int]]:
        """The first and the last micro-batch of each time in which the query ran without output tables. Raises `Damaged`."""
        note = self._noted()
        return [] if note is None else note.without_tables


def _extended(ranges: list[tuple[int, int]], batch: int) -> list[tuple[int, int]]:
    """Ranges of micro-batches with one more, which is none before the last."""
    if not ranges or ranges[-1][1] < batch - 1:
        return [*ranges, (batch, batch)]
    return [*ranges[:-1], (ranges[-1][0], batch)]
