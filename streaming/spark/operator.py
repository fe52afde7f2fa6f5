"""The stateful operator: one ingress partition's records of a micro-batch go through its broker.

Spark calls it once a partition and micro-batch, with the partition's records and its state, and in any order of
partitions. It decodes the broker, applies the records by rising offset, and hands on what the broker put out.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import pandas as pd
from pyspark.sql.streaming.state import GroupState

from schemas.effects import Row, Tick
from schemas.entries import EntryNotFound, EntryReader
from streaming.quality.gate import Judge
from streaming.spark.rows import pack, to_table

if TYPE_CHECKING:
    from streaming.broker.broker import Broker

Clock = Literal["log", "trigger"]
"""What advances time: the records alone, or also the micro-batch's own timestamp (Spark keeps it: a re-run sees the
same)."""

CHUNK_RECORDS = 1 << 14
CHUNK_BYTES = 1 << 25
"""After so many records, or bytes of their values, the effects so far are handed on: they take more room as Python
objects than as Arrow columns, and Spark keeps one packed value in memory several times."""

IDLE_TICK_MS = 60_000
"""An idle partition's tick is kept if it had effects, and else once in this time (ms)."""

_RETURN_AT_NEXT_TRIGGER_MS = 1


class Store(Protocol):
    """Where the broker finds entries of batches before. Pickled and shipped to Spark's workers."""

    def reader(self, partition: int) -> EntryReader: ...


class BrokerType(Protocol):
    """How to get a broker: `streaming.broker.broker.Broker`, or a stand-in."""

    def __call__(self, partition: int, entries: EntryReader) -> "Broker": ...

    def decode(self, state: bytes, entries: EntryReader) -> "Broker": ...


class OffsetError(RuntimeError):
    """An ingress partition's records aren't the continuation of what its state has seen."""


class ApplyError(RuntimeError):
    """The broker failed on a record: a bug of Magnetar's, since a bad record is quarantined. Names the record."""


Records = tuple[list[int], list[int], list[str | None], list[bytes]]
"""Offsets, timestamps (ms), topics and values, by rising offset."""


def operator(
    *, store: Store, clock: Clock, broker: BrokerType, judge: Judge
) -> Callable[[tuple[Any, ...], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The function for applyInPandasWithState, grouped by (partition, …), over columns `RECORD`.

    Its state is `schema.STATE`, its output `schema.CHUNKS`. `judge` decodes the records, see `streaming.quality.gate`.
    Raises `SuiteError` at once if a suite can't be compiled; the function raises `OffsetError`, `ApplyError`, what the store raises when an entry can't be read, and what the
    broker raises for a state it can't decode.
    """
    judge((), ())

    def fold(
        key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        partition = int(key[0])
        records = None if state.hasTimedOut else sort(frames)
        own, last = restore(broker, partition, store.reader(partition), state)
        before = own.clock
        if records is not None:
            with uncollected():
                for rows in apply(own, partition, last, records, judge):
                    yield chunk(partition, rows)
            last = records[0][-1]
        changed = records is not None
        if clock == "trigger":
            now = state.getCurrentProcessingTimeMs()
            own.tick(now)
            rows = own.take()
            # A visit that did nothing leaves no trace, neither row nor state: as if it had not been. So an idle
            # partition doesn't write a file a second, and what was written still replays exactly.
            changed = changed or now - before >= IDLE_TICK_MS or not all(_is_tick(row) for row in rows)
            if changed and rows:
                yield chunk(partition, rows)
        if changed:
            state.update(encode(own, last))
        if clock == "trigger":
            state.setTimeoutDuration(_RETURN_AT_NEXT_TRIGGER_MS)

    return fold


def restore(
    broker: BrokerType, partition: int, entries: EntryReader, state: GroupState
) -> "tuple[Broker, int | None]":
    """The partition's broker and its last offset (`None`: it is new)."""
    if not state.exists:
        return broker(partition, entries), None
    *_, last, encoded = state.get
    return broker.decode(bytes(encoded), entries), int(last)


def encode(broker: "Broker", last: int | None) -> tuple[Any, ...]:
    """The partition's state, see `schema.STATE`."""
    encoded = broker.encode()  # before the summary, which is of what was encoded
    summary = broker.summary()
    return summary.clock, summary.topics, summary.backlog, summary.storage, last, encoded


def sort(frames: Iterable[pd.DataFrame]) -> Records:
    """The records of `frames`. Spark promises no order, though they nearly always come in order."""
    parts = list(frames)
    offsets = np.concatenate([part["offset"].to_numpy(np.int64) for part in parts])
    timestamps = np.concatenate([part["timestamp"].to_numpy(np.int64) for part in parts])
    topics = np.concatenate([part["topic"].to_numpy(object) for part in parts])
    values = np.concatenate([part["value"].to_numpy(object) for part in parts])
    if np.any(np.diff(offsets) < 0):
        order = np.argsort(offsets, kind="stable")
        offsets, timestamps, topics, values = offsets[order], timestamps[order], topics[order], values[order]
    return offsets.tolist(), timestamps.tolist(), topics.tolist(), values.tolist()


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's cyclic garbage collector: it would go through a hundred thousand effects again and again, which
    took half of the whole time, and find nothing, as effects hold no cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def apply(
    broker: "Broker", partition: int, last: int | None, records: Records, judge: Judge
) -> Iterator[list[Row]]:
    """Applies `records`, checks their offsets on the way, and gives what the broker put out, some thousand at a time."""
    offsets, timestamps, topics, values = records
    count = size = 0
    for offset, timestamp, topic, command, value in zip(
        offsets, timestamps, topics, judge(topics, values), values, strict=True
    ):
        if last is not None and offset <= last:
            raise OffsetError(
                f"partition {partition}: offset {offset} after {last}. Offsets must rise: the checkpoint belongs to "
                "another topic or log, or the topic was deleted and made again. Start with a new checkpoint and store"
            )
        last = offset
        try:
            broker.apply(offset, timestamp, topic, command, value)
        except (EntryNotFound, OSError):
            raise  # the store's, not this record's doing: it says itself what to do
        except Exception as error:
            raise ApplyError(
                f"partition {partition}, offset {offset}, topic {topic}: {type(error).__name__}: {error}; "
                f"the record's value begins {bytes(value[:200])!r}"
            ) from error
        count += 1
        size += len(value)
        if count >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            count = size = 0
            if rows := broker.take():
                yield rows
    if rows := broker.take():
        yield rows


def chunk(partition: int, rows: list[Row]) -> pd.DataFrame:
    """A frame of one row, columns `schema.CHUNKS`."""
    return pd.DataFrame(
        {
            "partition": np.array([partition], np.int32),
            "rows": np.array([len(rows)], np.int32),
            "effects": [pack(to_table(partition, rows))],
        }
    )


def _is_tick(row: Row) -> bool:
    return isinstance(row.effect, Tick)
