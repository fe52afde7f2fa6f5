"""The query: source → operator per ingress partition → sinks, with one Spark job per micro-batch."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery as StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

from schemas.metrics import PartitionMetrics, decode
from schemas.outputs import Rows
from sinks.base import Sink
from streaming.broker.broker import Broker
from streaming.fold import BrokerType, SetAside, Store
from streaming.quality.gate import Judge, judge
from streaming.rows import concat, unpack
from streaming.spark.keys import slot
from streaming.spark.operator import Clock, operator
from streaming.spark.schema import CHUNKS, METRICS, STATE, WRITTEN
from streaming.spark.trigger import interval

AVAILABLE_NOW = "availableNow"

_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 0.01


class Written(NamedTuple):
    """The number of a micro-batch, the rows it wrote by (ingress partition, kind), and the figures of the ingress partitions that
    it changed, if the query is `measured`."""

    batch_id: int
    rows: dict[tuple[int, str], int]
    metrics: Sequence[PartitionMetrics] = ()


def start(
    spark: SparkSession,
    source: DataFrame,
    *,
    sinks: Sequence[Sink],
    store: Store,
    checkpoint: str | Path,
    clock: Clock,
    trigger: str,
    broker: BrokerType = Broker,
    judge: Judge = judge,
    set_aside: SetAside | None = None,
    max_ahead_ms: int | None = None,
    on_batch: Callable[[Written], None] | None = None,
    on_idle: Callable[[int], None] | None = None,
    name: str | None = None,
    measured: bool = False,
) -> StreamingQuery:
    """Start the query over `source` (columns `RECORD`).

    Args:
        sinks: written in this order, by the task of each ingress partition. Include the store.
        store: where the broker reads entries of earlier batches.
        checkpoint: Spark's folder of offsets and state. Spark refuses that of another query.
        trigger: `AVAILABLE_NOW` (process all available records, then stop), or an interval such as ``1s``.
        judge, set_aside, max_ahead_ms, measured: see `streaming.spark.operator.operator`.
        on_batch: called on the driver after the writes of a batch, before Spark commits it. Keep it short.
        on_idle: the same with the number of a batch that wrote nothing. It may wait until there is something to do.
    """
    chunks = operate(
        source,
        store=store,
        clock=clock,
        broker=broker,
        judge=judge,
        set_aside=set_aside,
        max_ahead_ms=max_ahead_ms,
        measured=measured,
    )
    writer = chunks.writeStream
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
        .foreachBatch(batch_writer(sinks, on_batch, on_idle))
        .start()
    )


def operate(
    source: DataFrame,
    *,
    store: Store,
    clock: Clock,
    broker: BrokerType = Broker,
    judge: Judge = judge,
    set_aside: SetAside | None = None,
    max_ahead_ms: int | None = None,
    measured: bool = False,
) -> DataFrame:
    """Turn records (`RECORD`) into packed output rows (`CHUNKS`), by ingress partition."""
    timeout = GroupStateTimeout.ProcessingTimeTimeout if clock == "trigger" else GroupStateTimeout.NoTimeout
    keyed = source.withColumn("slot", slot(source["partition"]))
    function = operator(
        store=store,
        clock=clock,
        broker=broker,
        judge=judge,
        set_aside=set_aside,
        max_ahead_ms=max_ahead_ms,
        measured=measured,
    )
    return keyed.groupBy("partition", "slot").applyInPandasWithState(
        function, CHUNKS, STATE, "append", timeout
    )


def batch_writer(
    sinks: Sequence[Sink],
    on_batch: Callable[[Written], None] | None,
    on_idle: Callable[[int], None] | None = None,
) -> Callable[[DataFrame, int], None]:
    """The function for foreachBatch."""

    def write(chunks: DataFrame, batch_id: int) -> None:
        for sink in sinks:
            sink.begin(batch_id)
        # One action that consumes everything: a second one would run the operator again, and an unread partition
        # would leave its state uncommitted.
        written = chunks.mapInArrow(partition_writer(sinks, batch_id), WRITTEN).collect()
        rows = {(row.partition, row.kind): row.rows for row in written if row.kind != METRICS}
        if on_batch is not None:
            figures = [decode(row.metrics) for row in written if row.kind == METRICS]
            on_batch(Written(batch_id, rows, figures))
        if on_idle is not None and not rows:
            on_idle(batch_id)

    return write


def partition_writer(
    sinks: Sequence[Sink], batch_id: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: columns `CHUNKS` in, `WRITTEN` out. Writes one ingress partition at a time."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for partition, rows, metrics in _partitions(batches):
            if rows:
                for sink in sinks:
                    sink.write(batch_id, partition, rows)
            counts = {kind: len(table) for kind, table in rows.items()}
            if metrics is not None:
                counts[METRICS] = 1
            yield pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(partition, pa.int32()), len(counts)),
                    pa.array(counts, pa.string()),
                    pa.array(list(counts.values()), pa.int64()),
                    pa.array([metrics if kind == METRICS else None for kind in counts], pa.binary()),
                ],
                names=["partition", "kind", "rows", "metrics"],
            )

    return write


def _partitions(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Rows, bytes | None]]:
    """The ingress partitions of a task, one after the other, each with all its rows and its figures."""
    done: set[int] = set()
    for partition, chunks in groupby(_chunks(batches), itemgetter(0)):
        if partition in done:
            # A second write of a partition would replace the first.
            raise RuntimeError(f"ingress partition {partition} came twice: its rows must be contiguous")
        metrics: list[bytes] = []
        rows = concat(_tables(chunks, metrics))
        yield partition, rows, metrics[0] if metrics else None
        done.add(partition)


def _tables(chunks: Iterable[tuple[int, str, bytes]], metrics: list[bytes]) -> Iterator[Rows]:
    """The rows of chunks. Figures go to `metrics`."""
    for _, kind, packed in chunks:
        if kind == METRICS:
            metrics.append(packed)
        else:
            yield {kind: unpack(kind, packed)}


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, str, bytes]]:
    pieces: list[bytes] = []
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "kind", "rows", "effects")]
        for partition, kind, rows, piece in zip(*columns, strict=True):
            pieces.append(piece)
            if rows:
                yield partition, kind, b"".join(pieces)
                pieces.clear()


def wait(query: StreamingQuery, stop: threading.Event) -> None:
    """Wait until `stop` is set and the current micro-batch is done. Raises the error that ended the query, if any."""
    while query.isActive and not stop.wait(_POLL_SECONDS):
        pass
    before = _batch(query)
    # Between two polls, a batch may end and the next one begin. Then one was finished, too.
    while query.isActive and query.status["isTriggerActive"] and _batch(query) == before:
        time.sleep(_SETTLE_SECONDS)
    if (error := query.exception()) is not None:
        raise error


def _batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])
