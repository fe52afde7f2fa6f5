"""The driver: folds records of a log into the state of their ingress partition and gives the output rows.

It needs neither Spark nor pandas. Spark's operator drives one `PartitionFold` per partition and micro-batch; `Fold`
does the same for a whole micro-batch in this process.
"""

from __future__ import annotations

import gc
import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, compress, islice, repeat
from operator import ge
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable
from weakref import WeakMethod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import Decoded, Refused, Send, decode
from schemas.effects import KINDS, SET_ASIDE, TIMESTAMP_AHEAD, Quarantined, Row
from schemas.entries import EntryNotFound, EntryReader
from schemas.errors import MagnetarError
from schemas.metrics import PartitionMetrics
from schemas.outputs import Rows
from schemas.records import Coordinates, TopicAside
from streaming.broker.broker import LATEST_TIME, Broker, topic_set_aside
from streaming.broker.entries import NoEntries
from streaming.broker.errors import StateVersionError
from streaming.broker.persistent.publish_run import Receipts
from streaming.broker.persistent.send_run import Sends
from streaming.plain_publishes import PlainPublishes, plain_publishes
from streaming.publish_columns import (
    RECEIPTS,
    PublishColumns,
    plain_columns,
    publish_columns,
    send_columns,
)
from streaming.quality.gate import Judge, judge, passes
from streaming.rows import SpooledRows, concat, to_tables

CHUNK_RECORDS = 1 << 16
CHUNK_BYTES = 1 << 25
"""After so many records, or bytes of their values, the effects so far are handed on, even if they are few (see
`streaming.broker.context.ROWS`): they take more room as Python objects than as Arrow columns."""

SetAside = Mapping[Coordinates, Refused] | Mapping[Coordinates | TopicAside, Refused]
"""Records that go to quarantine without being decoded, and topics whose state is not decoded either, and why.

Of a topic, all records go to quarantine from then on, in later runs, too: the state says so.
"""

_QUARANTINED = KINDS[Quarantined]
_SHOWN = 200
_SHORTEST = 4
"""A run of fewer SENDs is not worth its setup."""
_NO_TIME = 0
_DECODING = "decoding and checking it"


class Store(Protocol):
    """Where the broker finds the entries of earlier micro-batches. Pickled and shipped to Spark's workers."""

    def reader(self, partition: int) -> EntryReader:
        """The entries of committed micro-batches of an ingress partition."""
        ...


class BrokerType(Protocol):
    """How to get a broker: `streaming.broker.broker.Broker`, or in a test one that fails on purpose."""

    def __call__(self, partition: int, entries: EntryReader) -> Broker:
        """A new broker for an ingress partition."""
        ...

    def decode(self, state: bytes, entries: EntryReader) -> Broker:
        """The broker of an encoded state. Raises what the broker raises for a state that it can't decode."""
        ...


class OffsetError(MagnetarError, RuntimeError):
    """An ingress partition's records don't continue what its state has seen."""


class FoldError(MagnetarError, RuntimeError):
    """Magnetar failed while it folded a partition. This is a bug, since bad records are quarantined.

    The text names the partition, the record, and what was being done with it, and says what to do.
    """


class NoSuchRecord(MagnetarError, ValueError):
    """A record that should be set aside isn't there, or was folded before. The text names it."""


class StateRow(NamedTuple):
    """The state of an ingress partition between two micro-batches: columns for people, and the broker.

    `clock` in ms since the epoch, `backlog` in entries, `storage` in bytes; `offset` is that of the last record (None:
    there was none); `broker` is the broker in its own versioned encoding.
    """

    partition: int
    clock: int
    topics: int
    backlog: int
    storage: int
    offset: int | None
    broker: bytes


class Records(NamedTuple):
    """Records of one ingress partition, by rising offset. Timestamps in ms since the epoch."""

    offsets: list[int]
    timestamps: list[int]
    topics: list[str | None]
    values: list[bytes]


class PartitionFold:
    """The fold of one ingress partition during one micro-batch: `apply` and `tick`, then `state`.

    Each raises `FoldError`, and what the store raises when an entry can't be read. Both name the partition and the record.
    """

    def __init__(
        self,
        partition: int,
        store: Store,
        before: StateRow | None,
        *,
        broker: BrokerType = Broker,
        judge: Judge = judge,
        set_aside: SetAside | None = None,
        latest: int | None = None,
        measured: bool = False,
    ) -> None:
        """`before`: the state to continue from; None: the partition is new. `judge` decodes the records, see
        `streaming.quality.gate`. Records in `set_aside`, and those with a timestamp (ms) after `latest`, are quarantined.
        `measured`: `metrics` will be asked.

        Raises `StateVersionError` for a state of another version, `FoldError` for one that can't be decoded.
        """
        self._partition = partition
        self._judge = judge
        aside = (set_aside or {}).items()
        self._set_aside = {
            at.offset: why for at, why in aside if isinstance(at, Coordinates) and at.partition == partition
        }
        self._topics_aside = [
            (at, why) for at, why in aside if isinstance(at, TopicAside) and at.partition in (None, partition)
        ]
        self._latest = LATEST_TIME if latest is None else latest
        self._last = None if before is None else before.offset
        self._ticking = False
        self._spool = SpooledRows()
        self._plain: PlainPublishes | None = None
        self._publishes: PublishColumns | None = None
        self._receipts = Receipts([], [], [])
        self._held: list[pa.Table] = []  # receipts of the piece at hand, but for those of runs
        entries = store.reader(partition)
        try:
            self._broker = (
                broker(partition, entries) if before is None else broker.decode(before.broker, entries)
            )
        except StateVersionError:
            raise
        except Exception as error:
            raise FoldError(
                f"partition {partition}, after offset {self._last}, decoding the state: {_described(error)}; the "
                "checkpoint is damaged, or this is a bug in Magnetar. Restore checkpoint and store from a copy, or start "
                "with a new checkpoint and an empty store"
            ) from error
        there = self._broker.topic_names() if self._topics_aside else ()
        for at, why in self._topics_aside:
            if at.topic in there and self._last is not None and at.after <= self._last:
                self._broker.set_aside(at.topic, why)
        self._topics_before = frozenset(self._broker.topic_names() if measured else ())
        self._quarantined: Counter[str] = Counter()
        # A strong reference would be a cycle, which keeps broker and rows in memory until Python collects its garbage.
        convert = WeakMethod(self._convert)
        self._broker.when_full(lambda: convert()())  # type: ignore[misc]

    @property
    def clock(self) -> int:
        """The partition's clock, ms since the epoch."""
        return self._broker.clock

    def apply(self, records: Records) -> Iterator[Rows]:
        """Folds `records` and gives their output rows, some thousand at a time. Also raises `OffsetError`."""
        with without_gc():
            for part in self._without_topics(records):
                yield from self._apply(part)

    def _apply(self, records: Records) -> Iterator[Rows]:
        aside = self._aside(records)
        for piece in _pieces(records):
            self._plain = self._plain_publishes(piece, aside)
            self._fold(piece, self._commands(piece, aside), aside)
            self._convert()
            self._convert_receipts()
            self._publishes = self._plain = None
            yield from self._spool.take()

    def _without_topics(self, records: Records) -> Iterator[Records]:
        """The records in the parts between which topics are set aside, each of which is when its part is asked for."""
        cuts: list[tuple[int, TopicAside, Refused]] = []
        for at, why in self._topics_aside:
            if at.topic in self._broker.aside:
                continue
            start = bisect_right(records.offsets, at.after)
            if at.partition is None:  # it is not here yet
                start = next(
                    (row for row in range(start, len(records.topics)) if records.topics[row] == at.topic), -1
                )
            if 0 <= start < len(records.offsets):
                cuts.append((start, at, why))
        done = 0
        for start, at, why in sorted(cuts):
            if start > done:
                yield _piece(records, done, start)
                done = start
            self._broker.set_aside(at.topic, why)
        yield _piece(records, done, len(records.offsets)) if done else records

    def _plain_publishes(self, records: Records, aside: Mapping[int, Refused]) -> PlainPublishes | None:
        """Those among the records that were read by column and that the gate passes."""
        plain = None if aside else plain_publishes(records.values)
        if plain is None:
            return None
        sizes = pc.binary_length(plain.payloads)
        ids = pa.array(plain.sequence_ids)
        return plain if passes(self._judge, records.topics, plain.names, ids, sizes) else None

    def _commands(self, records: Records, aside: Mapping[int, Refused]) -> Sequence[Decoded | None]:
        """The commands of the records, None for plain publishes that were read by column."""
        if self._plain is None:
            return list(self._judged(records, aside))
        mask = np.ones(len(records.offsets), bool)
        mask[self._plain.rows] = False
        return self._judged_where(records, aside, mask.tolist(), repeat(None))

    def _judged_where(
        self, records: Records, aside: Mapping[int, Refused], mask: Sequence[bool], others: Iterable[Any]
    ) -> list[Any]:
        """The commands of the records where `mask` is true, and `others` where it isn't."""
        of_those: Any = (list(compress(column, mask)) for column in records)
        judged = self._judged(Records(*of_those), aside)
        return [next(judged) if asked else other for asked, other in zip(mask, others, strict=False)]

    def _fold(
        self, records: Records, commands: Sequence[Decoded | None], aside: Mapping[int, Refused]
    ) -> None:
        """Folds some records: runs of plain publishes or SENDs by `Broker.publish`, all others one by one."""
        offsets, timestamps, topics, values = records
        carry_out = self._broker.apply

        def one(record: int) -> None:
            offset, topic, value = offsets[record], topics[record], values[record]
            if self._last is not None and offset <= self._last:
                raise OffsetError(
                    f"partition {self._partition}: offset {offset} after {self._last}. Offsets must rise: the "
                    "checkpoint belongs to another topic or log, or the topic was deleted and recreated. Start "
                    "with a new checkpoint and store"
                )
            self._last = offset
            try:
                if aside and (why := aside.get(offset)) is not None:
                    carry_out(offset, _NO_TIME, topic, why, value)
                else:
                    command = commands[record] or decode(value)
                    carry_out(offset, timestamps[record], topic, command, value)
            except Exception as error:
                self._failed("carrying out the command", error, offset, topic, value)

        done = 0
        columns = self._publishes = self._columns(records, commands, aside)
        self._receipts = Receipts([], [], [])
        if columns is not None:
            for run in columns.runs():
                first = columns.records[run.start]
                for record in range(done, first):
                    one(record)
                done = first + run.stop - run.start
                try:
                    self._broker.publish(
                        columns.rows, run, lambda row: one(columns.records[row]), self._receipts
                    )
                except Exception as error:
                    self._failed("carrying out publishes", error)
                self._last = records.offsets[done - 1]
        for record in range(done, len(commands)):
            one(record)

    def _columns(
        self, records: Records, commands: Sequence[Decoded | None], aside: Mapping[int, Refused]
    ) -> PublishColumns | None:
        offsets = records.offsets
        if (
            (aside and not aside.keys().isdisjoint(offsets))
            or max(records.timestamps) > LATEST_TIME
            or any(map(ge, offsets, offsets[1:]))
            or (self._last is not None and offsets[0] <= self._last)
        ):
            return None
        coordinates = offsets, records.timestamps, records.topics
        clock = self._broker.clock
        if self._plain is not None:
            return plain_columns(*coordinates, self._plain, clock)
        decoded: Any = commands
        return publish_columns(*coordinates, decoded, clock) or send_columns(*coordinates, decoded, clock)

    def tick(self, timestamp: int) -> Iterator[Rows]:
        """Advances the clock to `timestamp` (ms), as a TICK record would, and gives the output rows."""
        self._ticking = True
        try:
            self._broker.tick(timestamp)
        except Exception as error:
            self._failed(f"advancing the clock to {timestamp}", error)
        self._convert()
        self._ticking = False
        return self._spool.take()

    def state(self) -> StateRow:
        """The state to continue from in the next micro-batch."""
        try:
            encoded = self._broker.encode()  # before the summary, which is of what was encoded
            return StateRow(self._partition, *self._broker.summary(), self._last, encoded)
        except Exception as error:
            self._failed("encoding the state", error)

    def metrics(self, state: StateRow) -> PartitionMetrics:
        """The figures of the topics that were touched, to show, after `state` was made of all that was folded."""
        try:
            found = self._broker.metrics(everything=False)
            found.deleted = sorted(self._topics_before.difference(self._broker.topic_names()))
        except Exception as error:
            self._failed("measuring the topics", error)
        found.state_bytes = len(state.broker)
        found.quarantined = dict(self._quarantined)
        return found

    def _aside(self, records: Records) -> dict[int, Refused]:
        """The records that aren't folded, by offset, and why."""
        aside = {}
        if max(records.timestamps, default=0) > self._latest:
            for offset, timestamp in zip(records.offsets, records.timestamps, strict=True):
                if self._latest < timestamp <= LATEST_TIME:  # a later one is not in ms: the broker refuses it
                    cause = f"timestamp {timestamp} is after {self._latest}, the latest that the query accepts now"
                    aside[offset] = Refused(TIMESTAMP_AHEAD, cause)
        if topics := self._broker.aside:
            for offset, topic in zip(records.offsets, records.topics, strict=True):
                if topic is not None and topic in topics:
                    aside[offset] = topic_set_aside(topic)
        if self._set_aside:
            aside |= {
                offset: self._set_aside[offset] for offset in records.offsets if offset in self._set_aside
            }
        return aside

    def _judged(self, records: Records, aside: Mapping[int, Refused]) -> Iterator[Decoded]:
        topics, values = records.topics, records.values
        if aside:  # the gate must not see them: perhaps it is what fails
            topics = [None if at in aside else each for at, each in zip(records.offsets, topics, strict=True)]
            values = [b"" if at in aside else each for at, each in zip(records.offsets, values, strict=True)]
        try:
            yield from self._judge(topics, values)
        except Exception as error:
            # It judges many records at once. To name the one that it fails on, judge each alone.
            start = 0 if self._last is None else bisect_right(records.offsets, self._last)
            for row in range(start, len(values)):
                try:
                    next(self._judge(topics[row : row + 1], values[row : row + 1]))
                except Exception as alone:
                    self._failed(_DECODING, alone, records.offsets[row], topics[row], values[row])
            self._failed(_DECODING, error)

    def _convert(self) -> None:
        """Turn the effects so far into columns, which take less memory. They wait until the record at hand is done."""
        tables: dict[str, pa.Table] = {}
        if rows := self._broker.take():
            try:
                tables |= to_tables(self._partition, rows)
            except Exception as error:
                self._not_converted(rows, error)
        if _QUARANTINED in tables:
            self._quarantined.update(tables[_QUARANTINED]["rule"].to_pylist())
        if self._publishes is not None and RECEIPTS in tables:
            self._held.append(tables.pop(RECEIPTS))
        if tables:
            self._spool.append(tables)

    def _convert_receipts(self) -> None:
        """The same for the receipts of a piece, of which runs give theirs by topic."""
        held, self._held = self._held, []
        if self._publishes is not None and (held or self._receipts.rows):
            self._spool.append({RECEIPTS: self._publishes.receipts(self._partition, self._receipts, held)})

    def _not_converted(self, rows: Sequence[Row], error: Exception) -> NoReturn:
        for row in rows:
            try:
                to_tables(self._partition, [row])
            except Exception as alone:
                doing = f"converting a row {KINDS[type(row.effect)]}"
                self._failed(doing, alone, row.offset, getattr(row.effect, "topic", None))
        self._failed("converting rows", error)

    def _failed(
        self,
        doing: str,
        error: Exception,
        offset: int | None = None,
        topic: str | None = None,
        value: bytes = b"",
    ) -> NoReturn:
        """Raise `error` with the place where it happened."""
        if isinstance(error, FoldError):
            raise error
        of_record = offset is not None and not self._ticking
        place = f"offset {offset}, topic {topic!r}" if of_record else f"after offset {self._last}"
        at_fault = self._broker.at_work or (topic if of_record else None)
        place = f"partition {self._partition}, {place}, {doing}"
        # The store or the disk is to blame, and the text says so.
        if isinstance(error, EntryNotFound | OSError):
            raise type(error)(f"{place}: {' '.join(str(error).split())}") from error
        ways = [f"without it, start with --quarantine {self._partition}:{offset}"] if of_record else []
        if at_fault:
            ways.append(f"without the topic at hand, start with --quarantine-topic {shlex.quote(at_fault)}")
        if of_record:
            to_do = "Started again, Magnetar comes to this record again"
        else:
            to_do = "No single record is to blame. Nothing of the micro-batch is committed, but started again, Magnetar does the same again"
        if ways:
            to_do += (
                f": to go on {', or '.join(ways)} (`magnetar run`, `replay` and `serve` have these options)"
            )
        if of_record:
            to_do += f". Its value begins {bytes(value[:_SHOWN])!r}"
        raise FoldError(
            f"{place}: {_described(error)}; this is a bug in Magnetar: please report it. {to_do}"
        ) from error


class LiveFold(PartitionFold):
    """The fold of a partition that goes on: a server's, which answers clients after each few records.

    It gives effects as they are, since nobody needs columns of so few. Raises what `PartitionFold` raises.
    """

    _answers: list[Row]
    _known: Iterator[Decoded | None] | None

    def answer(self, records: Records, known: Sequence[Decoded | None] | None = None) -> list[Row]:
        """Folds `records` and gives their effects in order. From the next call on, the store must have their entries.

        `known`: of each record, what the gate would say of it. None: ask the gate.
        """
        self._broker.stored()
        self._answers, self._known = [], None if known is None else iter(known)
        for _ in self.apply(records):
            raise AssertionError("effects became columns")
        return self._answers

    @property
    def broker(self) -> Broker:
        """The broker as it is between two calls, to look at."""
        return self._broker

    def _plain_publishes(self, records: Records, aside: Mapping[int, Refused]) -> PlainPublishes | None:
        return None  # each effect is a row

    def _commands(self, records: Records, aside: Mapping[int, Refused]) -> Sequence[Decoded]:
        if self._known is None:
            return list(self._judged(records, aside))
        known = list(islice(self._known, len(records.offsets)))
        return self._judged_where(records, aside, [each is None for each in known], known)

    def _fold(  # type: ignore[override]
        self, records: Records, commands: Sequence[Decoded], aside: Mapping[int, Refused]
    ) -> None:
        """Folds runs of SENDs by `Broker.send`, all other records one by one."""
        done, offsets = 0, records.offsets
        is_special = aside or any(map(ge, offsets, offsets[1:]))
        for start, stop in () if is_special else _runs_of_sends(records.topics, commands):
            super()._fold(_piece(records, done, start), commands[done:start], aside)
            done, of_run = start, _piece(records, start, stop)
            sends = Sends(of_run.offsets, of_run.timestamps, commands[start:stop])  # type: ignore[arg-type]
            while done < stop and (taken := self._send(of_run, sends, done - start)):
                done += taken
                after = min(done + 1, stop)
                super()._fold(_piece(records, done, after), commands[done:after], aside)
                done = after
        super()._fold(_piece(records, done, len(commands)), commands[done:], aside)

    def _send(self, records: Records, sends: Sends, start: int) -> int:
        """How many SENDs from number `start` on the broker carried out together."""
        try:
            stop = self._broker.send(records.topics[start], sends, start)
        except Exception as error:
            place = records.offsets[start], records.topics[start], records.values[start]
            self._failed("carrying out SENDs", error, *place)
        if stop > start:
            self._last = records.offsets[stop - 1]
        return stop - start

    def _columns(
        self, records: Records, commands: Sequence[Decoded | None], aside: Mapping[int, Refused]
    ) -> PublishColumns | None:
        return None  # each effect is a row

    def _convert(self) -> None:
        self._answers += self._broker.take()


class SharedRecords(NamedTuple):
    """Records that several brokers fold: their commands, decoded once, and the plain publishes among them as columns."""

    records: Records
    commands: Sequence[Decoded]
    columns: PublishColumns | None


class SharedFold(PartitionFold):
    """One of several folds of the same records, which an observer watches. Its broker hands effects to the observer itself.

    Raises what `PartitionFold` raises.
    """

    _shared: PublishColumns | None = None

    @property
    def broker(self) -> Broker:
        """The broker as it is between two calls, to look at."""
        return self._broker

    def fold(self, shared: SharedRecords) -> None:
        """Fold some records. The store must have the entries of those before."""
        self._broker.stored()
        self._shared = shared.columns
        with without_gc():
            self._fold(shared.records, shared.commands, {})
        self._convert()

    def _columns(
        self, records: Records, commands: Sequence[Decoded | None], aside: Mapping[int, Refused]
    ) -> PublishColumns | None:
        return self._shared

    def _convert(self) -> None:
        """The broker's own `flush` hands on its effects."""
        assert isinstance(self._broker, Flushing)
        self._broker.flush()


@runtime_checkable
class Flushing(Protocol):
    """A broker that hands its effects to an observer."""

    def flush(self) -> None:
        """Hand on the effects so far."""
        ...


class Fold:
    """The fold of a log in this process: `apply` the records of each micro-batch in turn."""

    def __init__(
        self,
        store: Store,
        states: Iterable[StateRow] = (),
        *,
        broker: BrokerType = Broker,
        judge: Judge = judge,
        set_aside: SetAside | None = None,
    ) -> None:
        """`states`: to continue from. `set_aside`: see `PartitionFold`. Raises `SuiteError` if a suite of the gate can't
        be compiled."""
        judge((), ())
        self._store, self._broker, self._judge, self._set_aside = store, broker, judge, set_aside
        self._states = {each.partition: each for each in states}

    def apply(self, records: pa.Table) -> Iterator[tuple[int, Rows]]:
        """The output rows of each ingress partition that has any. `records`: columns `schemas.records.RECORD`."""
        for partition in sorted(records["partition"].unique().to_pylist()):
            own = records.filter(pc.equal(records["partition"], partition))
            fold = PartitionFold(
                partition,
                self._store,
                self._states.get(partition),
                broker=self._broker,
                judge=self._judge,
                set_aside=self._set_aside,
            )
            rows = concat(fold.apply(_sorted(own)))
            if rows:
                yield partition, rows
            self._states[partition] = fold.state()

    def states(self) -> list[StateRow]:
        """The states by ingress partition."""
        return [self._states[partition] for partition in sorted(self._states)]


def set_aside_by_name(
    records: Iterable[Coordinates], topics: Iterable[TopicAside] = ()
) -> dict[Coordinates | TopicAside, Refused]:
    """The `SetAside` of records and topics that an operator names."""
    found: dict[Coordinates | TopicAside, Refused] = {at: topic_set_aside(at.topic) for at in topics}
    for at in records:
        found[at] = Refused(SET_ASIDE, f"an operator set the record aside: --quarantine {at}")
    return found


def stats(
    states: Iterable[StateRow], *, broker: BrokerType = Broker, entries: EntryReader | None = None
) -> list[dict[str, Any]]:
    """`Broker.stats` of all partitions, sorted by topic, with the ingress partition added to each row."""
    rows = [
        {"partition": each.partition} | row
        for each in states
        for row in broker.decode(each.broker, entries or NoEntries()).stats()
    ]
    return sorted(rows, key=lambda row: str(row["topic"]))


def partition_metrics(
    states: Iterable[StateRow], *, broker: BrokerType = Broker
) -> Iterator[PartitionMetrics]:
    """`Broker.metrics` of everything in each partition."""
    for each in states:
        found = broker.decode(each.broker, NoEntries()).metrics(everything=True)
        found.state_bytes = len(each.broker)
        yield found


def _pieces(records: Records) -> Iterator[Records]:
    """The records in pieces of at most `CHUNK_RECORDS`, and of few more than `CHUNK_BYTES`."""
    ends = list(accumulate(map(len, records.values)))
    start = 0
    while start < len(ends):
        most = (ends[start - 1] if start else 0) + CHUNK_BYTES
        stop = min(bisect_right(ends, most) + 1, start + CHUNK_RECORDS, len(ends))
        yield _piece(records, start, stop)
        start = stop


def _piece(records: Records, start: int, stop: int) -> Records:
    return Records(*(column[start:stop] for column in records))  # type: ignore[arg-type]


def _runs_of_sends(topics: Sequence[str | None], commands: Sequence[Decoded]) -> Iterator[tuple[int, int]]:
    """The SENDs of a producer that follow each other, and are not too few: each run from its first to before its last."""
    start, producer = 0, None
    for row, command in enumerate(commands):
        found = None
        if type(command) is Send:
            found = command.producer_id, command.connection, topics[row]
        if found != producer:
            if producer is not None and row - start >= _SHORTEST:
                yield start, row
            start, producer = row, found
    if producer is not None and len(commands) - start >= _SHORTEST:
        yield start, len(commands)


def _sorted(own: pa.Table) -> Records:
    offsets = own["offset"].to_numpy()
    if np.any(np.diff(offsets) < 0):
        own = own.take(np.argsort(offsets, kind="stable"))
    return Records(*(own[name].to_pylist() for name in ("offset", "timestamp", "topic", "value")))


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def without_gc() -> Iterator[None]:
    """Disables Python's cyclic garbage collector. It would go through a hundred thousand effects again and again, which
    took half of the time, and find nothing, as effects hold no cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
