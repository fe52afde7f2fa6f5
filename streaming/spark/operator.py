"""The stateful operator: passes the records of an ingress partition in a micro-batch through its broker.

Spark calls it once per partition and micro-batch, with the partition's records and state, in any order of partitions. It
converts pandas frames to records, and output rows to `schema.CHUNKS`. `streaming.fold` does the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal

import numpy as np
import pandas as pd
from pyspark.sql.streaming.state import GroupState

from schemas import metrics
from schemas.effects import KINDS, Tick
from schemas.outputs import Rows
from streaming.broker.broker import Broker
from streaming.fold import BrokerType, PartitionFold, Records, SetAside, StateRow, Store
from streaming.quality.gate import Judge, judge
from streaming.rows import pack
from streaming.spark.schema import METRICS

Clock = Literal["log", "trigger"]
"""What advances time: only the records, or also the timestamp of the micro-batch, which Spark keeps for a re-run."""

IDLE_TICK_MS = 60_000
"""The tick of an idle partition is kept if it had effects, or else once in this time (ms)."""

PIECE_BYTES = 4 << 10
"""A packed table travels in pieces of this size. Python's worker and the JVM hold back rows until there are 10,000
(``spark.sql.execution.arrow.maxRecordsPerBatch``), however large they are."""

_RETURN_AT_NEXT_TRIGGER_MS = 1
_TICK = KINDS[Tick]


def operator(
    *,
    store: Store,
    clock: Clock,
    broker: BrokerType = Broker,
    judge: Judge = judge,
    set_aside: SetAside | None = None,
    max_ahead_ms: int | None = None,
    measured: bool = False,
) -> Callable[[tuple[Any, ...], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The function for applyInPandasWithState, grouped by (partition, …), over columns `RECORD`.

    Its state is `schema.STATE`, its output `schema.CHUNKS`. `judge` decodes the records, see `streaming.quality.gate`.
    Records in `set_aside` are quarantined, and so are those whose timestamp is `max_ahead_ms` or more after the time of the
    micro-batch, which Spark keeps for a re-run (None: any time is accepted). `measured`: a row `schema.METRICS` follows the rows
    of a partition whose state changed.

    Raises `SuiteError` immediately if a suite can't be compiled. The function raises what `PartitionFold` raises.
    """
    judge((), ())

    def fold(
        key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        partition = int(key[0])
        records = None if state.hasTimedOut else sort(frames)
        now = state.getCurrentProcessingTimeMs()
        own = PartitionFold(
            partition,
            store,
            _restored(partition, state),
            broker=broker,
            judge=judge,
            set_aside=set_aside,
            latest=None if max_ahead_ms is None else now + max_ahead_ms - 1,
            measured=measured,
        )
        before = own.clock
        if records is not None:
            for rows in own.apply(records):
                yield chunk(partition, rows)
        changed = records is not None
        if clock == "trigger":
            ticked = own.tick(now)
            first = next(ticked)
            # A visit without effects leaves neither rows nor state, as if it had not happened. So an idle partition
            # doesn't write a file every second, and the output still replays exactly.
            changed = changed or now - before >= IDLE_TICK_MS or first.keys() != {_TICK}
            if changed:
                for rows in chain([first], ticked):
                    yield chunk(partition, rows)
        if changed:
            after = own.state()
            state.update(after[1:])
            if measured:
                yield _frame(partition, {METRICS: (1, metrics.encode(own.metrics(after)))})
        if clock == "trigger":
            state.setTimeoutDuration(_RETURN_AT_NEXT_TRIGGER_MS)

    return fold


def _restored(partition: int, state: GroupState) -> StateRow | None:
    if not state.exists:
        return None
    before = StateRow(partition, *state.get)
    return before._replace(broker=bytes(before.broker))


def sort(frames: Iterable[pd.DataFrame]) -> Records:
    """The records of `frames` in order. Spark guarantees no order, though they nearly always arrive in order."""
    parts = list(frames)
    offsets = np.concatenate([part["offset"].to_numpy(np.int64) for part in parts])
    timestamps = np.concatenate([part["timestamp"].to_numpy(np.int64) for part in parts])
    topics = np.concatenate([part["topic"].to_numpy(object) for part in parts])
    values = np.concatenate([part["value"].to_numpy(object) for part in parts])
    if np.any(np.diff(offsets) < 0):
        order = np.argsort(offsets, kind="stable")
        offsets, timestamps, topics, values = offsets[order], timestamps[order], topics[order], values[order]
    return Records(offsets.tolist(), timestamps.tolist(), topics.tolist(), values.tolist())


def chunk(partition: int, rows: Rows) -> pd.DataFrame:
    """Output rows as a frame with columns `schema.CHUNKS`."""
    return _frame(partition, {kind: (len(table), pack(table)) for kind, table in rows.items()})


def _frame(partition: int, packed_rows: Mapping[str, tuple[int, bytes]]) -> pd.DataFrame:
    kinds: list[str] = []
    counts: list[int] = []
    pieces: list[bytes] = []
    for kind, (count, packed) in packed_rows.items():
        own = [packed[start : start + PIECE_BYTES] for start in range(0, len(packed), PIECE_BYTES)]
        pieces += own
        kinds += [kind] * len(own)
        counts += [0] * (len(own) - 1) + [count]
    return pd.DataFrame(
        {
            "partition": np.full(len(pieces), partition, np.int32),
            "kind": kinds,
            "rows": np.array(counts, np.int32),
            "effects": pieces,
        }
    )
