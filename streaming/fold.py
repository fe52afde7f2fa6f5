"""The driver: folds records of a log into the state of their ingress partition and gives the output rows.

It needs neither Spark nor pandas. Spark's operator drives one `PartitionFold` per partition and micro-batch; `Fold`
does the same for a whole micro-batch in this process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.entries import EntryNotFound, EntryReader
from schemas.outputs import Rows
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.quality.gate import Judge, judge
from streaming.rows import concat, to_tables

CHUNK_RECORDS = 1 << 14
CHUNK_BYTES = 1 << 25
"""After so many records, or bytes of their values, the effects so far are handed on: they take more room as Python
objects than as Arrow columns, and Spark keeps a packed value in memory several times."""


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


class OffsetError(RuntimeError):
    """An ingress partition's records don't continue what its state has seen."""


class ApplyError(RuntimeError):
    """The broker failed on a record. That is a bug of Magnetar, since a bad record is quarantined. Names the record."""


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
    """The fold of one ingress partition during one micro-batch: `apply` and `tick`, then `state`."""

    def __init__(
        self,
        partition: int,
        store: Store,
        before: StateRow | None,
        *,
        broker: BrokerType = Broker,
        judge: Judge = judge,
    ) -> None:
        """`before`: the state to continue from; None: the partition is new. `judge` decodes the records, see
        `streaming.quality.gate`. Raises what the broker raises for a state that it can't decode."""
        self._partition = partition
        self._judge = judge
        entries = store.reader(partition)
        self._broker = broker(partition, entries) if before is None else broker.decode(before.broker, entries)
        self._last = None if before is None else before.offset

    @property
    def clock(self) -> int:
        """The partition's clock, ms since the epoch."""
        return self._broker.clock

    def apply(self, records: Records) -> Iterator[Rows]:
        """Folds `records` and gives their output rows, some thousand records at a time.

        Raises `OffsetError`, `ApplyError`, and what the store raises when an entry can't be read.
        """
        count = size = 0
        broker = self._broker
        judged = self._judge(records.topics, records.values)
        with _without_gc():
            for offset, timestamp, topic, value, command in zip(*records, judged, strict=True):
                if self._last is not None and offset <= self._last:
                    raise OffsetError(
                        f"partition {self._partition}: offset {offset} after {self._last}. Offsets must rise: the "
                        "checkpoint belongs to another topic or log, or the topic was deleted and recreated. Start "
                        "with a new checkpoint and store"
                    )
                self._last = offset
                try:
                    broker.apply(offset, timestamp, topic, command, value)
                except (EntryNotFound, OSError):
                    raise  # the store's fault, not this record's: it says what to do
                except Exception as error:
                    raise ApplyError(
                        f"partition {self._partition}, offset {offset}, topic {topic}: {type(error).__name__}: {error}; "
                        f"the record's value begins {bytes(value[:200])!r}"
                    ) from error
                count += 1
                size += len(value)
                if count >= CHUNK_RECORDS or size >= CHUNK_BYTES:
                    count = size = 0
                    yield from self._take()
            yield from self._take()

    def tick(self, timestamp: int) -> Rows:
        """Advances the clock to `timestamp` (ms), as a TICK record would, and gives the output rows."""
        self._broker.tick(timestamp)
        return to_tables(self._partition, self._broker.take())

    def state(self) -> StateRow:
        """The state to continue from in the next micro-batch."""
        encoded = self._broker.encode()  # before the summary, which is of what was encoded
        return StateRow(self._partition, *self._broker.summary(), self._last, encoded)

    def _take(self) -> Iterator[Rows]:
        if rows := self._broker.take():
            yield to_tables(self._partition, rows)


class Fold:
    """The fold of a log in this process: `apply` the records of each micro-batch in turn."""

    def __init__(
        self,
        store: Store,
        states: Iterable[StateRow] = (),
        *,
        broker: BrokerType = Broker,
        judge: Judge = judge,
    ) -> None:
        """`states`: to continue from. Raises `SuiteError` if a suite of the gate can't be compiled."""
        judge((), ())
        self._store, self._broker, self._judge = store, broker, judge
        self._states = {each.partition: each for each in states}

    def apply(self, records: pa.Table) -> Iterator[tuple[int, Rows]]:
        """The output rows of each ingress partition that has any. `records`: columns `schemas.records.RECORD`."""
        for partition in sorted(records["partition"].unique().to_pylist()):
            own = records.filter(pc.equal(records["partition"], partition))
            fold = PartitionFold(
                partition, self._store, self._states.get(partition), broker=self._broker, judge=self._judge
            )
            rows = concat(fold.apply(_sorted(own)))
            if rows:
                yield partition, rows
            self._states[partition] = fold.state()

    def states(self) -> list[StateRow]:
        """The states by ingress partition."""
        return [self._states[partition] for partition in sorted(self._states)]


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


def _sorted(own: pa.Table) -> Records:
    offsets = own["offset"].to_numpy()
    if np.any(np.diff(offsets) < 0):
        own = own.take(np.argsort(offsets, kind="stable"))
    return Records(*(own[name].to_pylist() for name in ("offset", "timestamp", "topic", "value")))


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disables Python's cyclic garbage collector. It would go through a hundred thousand effects again and again, which
    took half of the time, and find nothing, as effects hold no cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
