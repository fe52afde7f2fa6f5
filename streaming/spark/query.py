"""The query: source → operator and sinks per ingress partition, with one Spark job per micro-batch."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery as StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

from schemas.errors import MagnetarError
from schemas.metrics import PartitionMetrics, decode
from sinks.base import CommittingSink, Sink, StoringSink
from sinks.begun import Begun, LastRecord, Planned
from streaming.spark import logs
from streaming.spark.operator import FoldOptions, operator
from streaming.spark.schema import LAST, METRICS, STATE, WRITTEN
from streaming.spark.trigger import interval

AVAILABLE_NOW = "availableNow"

_POLL_SECONDS = 0.1
_WATCH_SECONDS = 1
_SETTLE_SECONDS = 0.01


log = logging.getLogger(__name__)


OnEnd = Callable[[Mapping[tuple[int, str], int], Mapping[int, LastRecord]], None]
"""See `start`."""


class Written(NamedTuple):
    """The number of a micro-batch, the rows it wrote by (ingress partition, kind), and the figures of the ingress partitions that
    it changed, if the query is `measured`."""

    batch_id: int
    rows: dict[tuple[int, str], int]
    metrics: Sequence[PartitionMetrics] = ()


class Owner(StreamingQuery):
    """A query and what it has until it ends: its locks, and what runs beside it. When it is seen to have ended, it has let go of these."""

    def __init__(
        self, query: StreamingQuery, stopped: threading.Event, held: ExitStack, watch: Callable[[], None]
    ) -> None:
        """`stopped` is set when the query is told to stop. `watch`: called often; what it raises ends the query."""
        super().__init__(query._jsq)
        self._stopped, self._held, self._watch = stopped, held, watch
        self._ended_by: StreamingQueryException | None = None
        self._keeper = threading.Thread(target=self._keep, name="magnetar", daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        # An error is for those who ask the query.
        with self._held, suppress(Exception):
            try:
                while not super().awaitTermination(_WATCH_SECONDS):
                    self._watch()
            except MagnetarError as error:
                log.error("the query ends: %s", error)
                self._ended_by = StreamingQueryException(str(error))
                super().stop()

    def stop(self) -> None:
        """Stop the query, and wait until it has ended."""
        self._stopped.set()
        super().stop()
        self._keeper.join()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait until the query has ended, see `StreamingQuery.awaitTermination`."""
        try:
            ended = super().awaitTermination(timeout)
        finally:
            if not self.isActive:
                self._keeper.join()
        if self._ended_by is not None:
            raise self._ended_by
        return ended

    def exception(self) -> StreamingQueryException | None:
        """What ended the query, see `StreamingQuery.exception`."""
        return self._ended_by or super().exception()


def start(
    spark: SparkSession,
    source: DataFrame,
    options: FoldOptions,
    *,
    checkpoint: str | Path,
    trigger: str,
    on_batch: Callable[[Written], None] | None = None,
    on_idle: Callable[[int], None] | None = None,
    name: str | None = None,
    check: Callable[[], None] = lambda: None,
    check_time: Callable[[], None] = lambda: None,
    begun: Begun | None = None,
    on_end: OnEnd = lambda *_: None,
) -> StreamingQuery:
    """Start the query over `source` (columns `packing.PACKED`).

    Args:
        checkpoint: Spark's folder of offsets and state. Spark refuses that of another query.
        trigger: `AVAILABLE_NOW` (process all available records, then stop), or an interval such as ``1s``. By the clock
            ``trigger``, the former ends only if the session has Spark's noDataMicroBatches disabled.
        on_batch: called on the driver after the writes of a batch, before Spark commits it. Keep it short.
        on_idle: the same with the number of a batch that wrote nothing. It may wait until there is something to do.
        check: called on the driver before a batch is folded, and before the sinks commit it. May raise what stops the query.
        check_time: called before a batch is folded. If it raises, or does not return, the time of that batch counts as wrong: the next
            start plans it again if it is then `max_ahead_ms` or more in the future.
        begun: told of each micro-batch after these checks and before anything is written. It stops the query at one that is no repeat of
            the one with its number. None: no micro-batch counts as begun.
        on_end: called on the driver when all sinks have committed a batch, with its rows by (ingress partition, kind), and its last
            record by partition.
    """
    if options.clock == "trigger":
        _plan(spark, checkpoint, options.max_ahead_ms, begun, goes_on=trigger != AVAILABLE_NOW)

    last: Planned | None = None

    def begin(batch_id: int) -> bool:
        nonlocal last
        if begun is not None and offsets is not None:
            previous = last
            if previous is None and batch_id and (before := offsets.get(batch_id - 1)).isDefined():
                previous = _planned(before.get(), batch_id - 1)
            last = _planned(offsets.get(batch_id).get(), batch_id)
            return begun.begin(last, previous, options.max_ahead_ms)
        return False

    if begun is not None:
        options = replace(options, repeated=begun.repeated())
    offsets = None if begun is None else logs.offsets(spark, checkpoint)
    writer = operate(source, options).writeStream
    if name is not None:
        writer = writer.queryName(name)
    triggered = (
        writer.trigger(availableNow=True)
        if trigger == AVAILABLE_NOW
        else writer.trigger(processingTime=interval(trigger))
    )
    return (
        triggered.outputMode("append")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(batch_writer(options.sinks, on_batch, on_idle, check, check_time, begin, on_end))
        .start()
    )


def _plan(
    spark: SparkSession,
    checkpoint: str | Path,
    max_ahead_ms: int | None,
    begun: Begun | None,
    *,
    goes_on: bool,
) -> None:
    """Let a query that goes on from `checkpoint` begin with an empty micro-batch, so that time goes on without records, too: unless it
    ends when there are none (not `goes_on`).

    Spark runs micro-batches without records, in which timeouts fire, only after another one of the same process. So after a
    start there would be none until a record arrives. What it plans for certain is what its log of offsets says and its log of commits
    does not: after a crash, the micro-batch to repeat. So the last micro-batch, if it is committed, is noted once more under the next
    number: the same end of the topic, so no records, and the same time, so no timeouts. With records waiting, the
    next one has these, and is the first to advance the clock, as it would be without an empty one before it.

    A micro-batch that was planned for a time `max_ahead_ms` or more from now, and stopped before it began (`start`: `check_time`), is
    forgotten. One that did begin is repeated as it was planned, whatever the clock shows: some of it may be written, and sent.
    """
    planned, committed = logs.offsets(spark, checkpoint), logs.last_commit(spark, checkpoint)
    last = planned.getLatest()
    if max_ahead_ms is not None and last.isDefined() and last.get()._1() != committed:
        plan = _planned(last.get()._2(), last.get()._1())
        ahead_ms = plan.time - time.time_ns() // 1_000_000
        if ahead_ms >= max_ahead_ms and not (begun is not None and begun.may_have_begun(plan.batch)):
            planned.purgeAfter(plan.batch - 1)
            last = planned.getLatest()
    if goes_on and committed is not None and last.isDefined() and last.get()._1() == committed:
        planned.add(committed + 1, last.get()._2())


def _planned(noted: Any, batch_id: int) -> Planned:
    """What that log has of a micro-batch."""
    return Planned(batch_id, noted.metadataOpt().get().batchTimestampMs(), noted.toString())


def operate(source: DataFrame, options: FoldOptions) -> DataFrame:
    """Fold packed records (`packing.PACKED`) and write the output rows, by ingress partition. The result counts them (`WRITTEN`)."""
    ticks = options.clock == "trigger"
    timeout = GroupStateTimeout.ProcessingTimeTimeout if ticks else GroupStateTimeout.NoTimeout
    return source.groupBy("partition", "slot").applyInPandasWithState(
        operator(options), WRITTEN, STATE, "append", timeout
    )


def batch_writer(
    sinks: Sequence[Sink],
    on_batch: Callable[[Written], None] | None,
    on_idle: Callable[[int], None] | None = None,
    check: Callable[[], None] = lambda: None,
    check_time: Callable[[], None] = lambda: None,
    begin: Callable[[int], bool] = lambda _: False,
    end: OnEnd = lambda *_: None,
) -> Callable[[DataFrame, int], None]:
    """The function for foreachBatch."""

    def write(batch: DataFrame, batch_id: int) -> None:
        check_time()
        check()
        is_repeat = begin(batch_id)
        for sink in sinks:
            sink.begin(batch_id)
            if is_repeat and isinstance(sink, StoringSink):
                sink.clear(batch_id)
        # One action that consumes everything: a second one would run the operator again, and an unread partition
        # would leave its state uncommitted.
        written = batch.collect()
        check()
        rows = {(row.partition, row.kind): row.rows for row in written if row.kind not in (METRICS, LAST)}
        last = {row.partition: LastRecord.decode(row.metrics) for row in written if row.kind == LAST}
        for sink in sinks:
            if isinstance(sink, CommittingSink):
                sink.commit(batch_id, rows)
        end(rows, last)
        if on_batch is not None:
            figures = [decode(row.metrics) for row in written if row.kind == METRICS]
            on_batch(Written(batch_id, rows, figures))
        if on_idle is not None and not rows:
            on_idle(batch_id)

    return write


def wait(query: StreamingQuery, stop: threading.Event, watch: Callable[[], None] = lambda: None) -> None:
    """Wait until `stop` is set and the current micro-batch is done. Raises the error that ended the query, if any, and what `watch` raises,
    which is called often."""
    while query.isActive and not stop.wait(_POLL_SECONDS):
        watch()
    before = _batch(query)
    # Between two polls, a batch may end and the next one begin. Then one was finished, too.
    while query.isActive and query.status["isTriggerActive"] and _batch(query) == before:
        time.sleep(_SETTLE_SECONDS)
    if (error := query.exception()) is not None:
        raise error


def _batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])
