"""The stateful operator: passes the records of an ingress partition in a micro-batch through its broker, and writes what
comes out to the sinks.

Spark calls it once per partition and micro-batch, with the partition's records and state, in any order of partitions.
`streaming.fold.columns` does the work in between. What the sinks got is counted in rows `schema.WRITTEN`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.state import GroupState

from schemas import metrics
from schemas.effects import KINDS, Tick
from sinks.base import Sink
from sinks.begun import LastRecord, Repeated
from sinks.folded import FoldedBefore, FoldedFiles
from streaming.broker.broker import Broker
from streaming.fold.columns import PartitionFold
from streaming.fold.records import BrokerType, Records, SetAside, StateRow, Store
from streaming.quality.gate import Judge, judge
from streaming.runtime.clock import FoldClock
from streaming.spark.packing import unpack
from streaming.spark.schema import LAST, METRICS

FirstState = Callable[[int], StateRow | None]
"""The state with which an ingress partition begins: `streaming.state.seed.SeedReader.state`. Pickled and shipped to Spark's workers."""

IDLE_TICK_MS = 60_000
"""The tick of an idle partition is kept if it had effects, or else once in this time (ms)."""

_BATCH_ID = "streaming.sql.batchId"
_RETURN_AT_NEXT_TRIGGER_MS = 1
_TICK = KINDS[Tick]


def batch_id() -> int:
    """The number of the micro-batch that the task at hand belongs to, as Spark tells its tasks."""
    context = TaskContext.get()
    assert context is not None
    return int(context.getLocalProperty(_BATCH_ID) or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldOptions:
    """How a query folds: everything that its tasks need to know. Pickled and shipped to Spark's workers.

    Args:
        sinks: written in this order, by the task of each ingress partition. Include the store.
        store: where the broker reads entries of earlier micro-batches.
        clock: what advances time.
        broker: stands in for the broker in tests.
        judge: decodes the records, see `streaming.quality.gate`.
        set_aside: records and topics that go to quarantine.
        max_ahead_ms: quarantine records whose timestamp is so much, or more, after the time of the micro-batch, which Spark keeps for a
            re-run. None: accept any time.
        repeated: a micro-batch that has another `max_ahead_ms`.
        measured: a row `schema.METRICS` follows those of a partition whose state changed.
        first_state: with what a partition begins. None: with nothing.
        folded: notes what is folded, for canaries. None: nobody asks.
    """

    sinks: Sequence[Sink]
    store: Store
    clock: FoldClock
    broker: BrokerType = Broker
    judge: Judge = judge
    set_aside: SetAside | None = None
    max_ahead_ms: int | None = None
    repeated: Repeated | None = None
    measured: bool = False
    first_state: FirstState | None = None
    folded: FoldedFiles | None = None


def operator(
    options: FoldOptions,
) -> Callable[[tuple[Any, ...], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The function for applyInPandasWithState, grouped by (partition, …), over columns `packing.PACKED`.

    Its state is `schema.STATE`, its output `schema.WRITTEN`.

    Raises `SuiteError` immediately if a suite can't be compiled. The function raises what
    `PartitionFold` and the sinks raise.
    """
    options.judge((), ())

    def fold(
        key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        partition = int(key[0])
        records = None if state.hasTimedOut else unpack(frames)
        now = state.getCurrentProcessingTimeMs()
        max_ahead_ms = options.max_ahead_ms
        if options.repeated is not None and options.repeated.batch == batch_id():
            max_ahead_ms = options.repeated.max_ahead_ms
        own = PartitionFold(
            partition,
            options.store,
            _restored(partition, state, options.first_state),
            broker=options.broker,
            judge=options.judge,
            set_aside=options.set_aside,
            latest=None if max_ahead_ms is None else now + max_ahead_ms - 1,
            measured=options.measured,
        )
        before = FoldedBefore(own.clock, own.last)
        if records is not None:
            own.apply(records)
        if options.clock == "trigger":
            own.tick(now)
        rows = own.rows()
        # A visit without effects leaves neither rows nor state, as if it had not happened. So an idle partition
        # doesn't write a file every second, and the output still replays exactly.
        if records is not None or now - before.clock >= IDLE_TICK_MS or rows.keys() != {_TICK}:
            counts = {kind: len(table) for kind, table in rows.items()}
            began = time.monotonic()
            if rows:
                batch = batch_id()
                for sink in options.sinks:
                    sink.write(batch, partition, rows)
            if options.folded is not None:
                given = Records([], [], [], []) if records is None else records
                ticked = now if options.clock == "trigger" else None
                # They are no part of the query, and notice what is missing by what was before the next one.
                with suppress(OSError):
                    options.folded.write(batch_id(), partition, before, given, own.aside, ticked)
            took = time.monotonic() - began
            after = own.state()
            state.update(after[1:])
            figures = {}
            if records is not None and len(records.offsets):
                figures[LAST] = _last(records).encode()
            if options.measured:
                found = own.metrics(after)
                found.write_seconds = took if rows else None
                figures[METRICS] = metrics.encode(found)
            yield _written(partition, counts, figures)
        if options.clock == "trigger":
            state.setTimeoutDuration(_RETURN_AT_NEXT_TRIGGER_MS)

    return fold


def _written(partition: int, counts: Mapping[str, int], figures: Mapping[str, bytes]) -> pd.DataFrame:
    kinds = [*counts, *figures]
    return pd.DataFrame(
        {
            "partition": np.full(len(kinds), partition, np.int32),
            "kind": kinds,
            "rows": np.array([counts.get(kind, 1) for kind in kinds], np.int64),
            "metrics": [figures.get(kind) for kind in kinds],
        }
    )


def _last(records: Records) -> LastRecord:
    return LastRecord.of(records.offsets[-1], records.timestamps[-1], records.values[-1])


def _restored(partition: int, state: GroupState, first_state: FirstState | None) -> StateRow | None:
    if not state.exists:
        return None if first_state is None else first_state(partition)
    before = StateRow(partition, *state.get)
    return before._replace(broker=bytes(before.broker))
