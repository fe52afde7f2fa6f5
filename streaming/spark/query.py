"""The one query: source → operator by ingress partition → sinks, one Spark job a micro-batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

from sinks.base import Sink
from streaming.quality.gate import Judge, judge
from streaming.spark.keys import slot
from streaming.spark.operator import BrokerType, Clock, Store, operator
from streaming.spark.rows import unpack
from streaming.spark.schema import CHUNKS, OUTPUTS, STATE, WRITTEN

AVAILABLE_NOW = "availableNow"


class BadTrigger(ValueError):
    """A text isn't an interval."""


class Written(NamedTuple):
    """What a micro-batch wrote: its number, and rows by (ingress partition, kind)."""

    batch_id: int
    rows: dict[tuple[int, str], int]


def start(
    spark: SparkSession,
    source: DataFrame,
    *,
    sinks: Sequence[Sink],
    store: Store,
    checkpoint: str | Path,
    clock: Clock,
    trigger: str,
    broker: BrokerType | None = None,
    judge: Judge = judge,
    on_batch: Callable[[Written], None] | None = None,
    name: str | None = None,
) -> StreamingQuery:
    """Starts the query over `source` (columns `RECORD`).

    Args:
        sinks: written to in this order, each in the task that holds an ingress partition. Include the store.
        store: where the broker reads entries of batches before.
        checkpoint: Spark's folder of offsets and state; another query's is refused by Spark.
        trigger: `AVAILABLE_NOW` (all there is, then stop) or an interval as ``1s`` or ``500 milliseconds``.
        on_batch: called on the driver when a batch's writes are done, before Spark commits it. Keep it short.
    """
    writer = operate(source, store=store, clock=clock, broker=broker, judge=judge).writeStream
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
        .foreachBatch(batch_writer(sinks, on_batch))
        .start()
    )


def operate(
    source: DataFrame,
    *,
    store: Store,
    clock: Clock,
    broker: BrokerType | None = None,
    judge: Judge = judge,
) -> DataFrame:
    """Records (`RECORD`) to packed output rows (`CHUNKS`), by ingress partition."""
    if broker is None:
        from streaming.broker.broker import Broker

        broker = Broker
    timeout = GroupStateTimeout.ProcessingTimeTimeout if clock == "trigger" else GroupStateTimeout.NoTimeout
    keyed = source.withColumn("slot", slot(source["partition"]))
    return keyed.groupBy("partition", "slot").applyInPandasWithState(
        operator(store=store, clock=clock, broker=broker, judge=judge), CHUNKS, STATE, "append", timeout
    )


def outputs(chunks: DataFrame) -> DataFrame:
    """Packed output rows as plain ones, columns `OUTPUT`: for looking at a batch with Spark."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _, table in _tables(batches):
            yield from table.combine_chunks().to_batches()

    return chunks.mapInArrow(rows, OUTPUTS)


def batch_writer(
    sinks: Sequence[Sink], on_batch: Callable[[Written], None] | None
) -> Callable[[DataFrame, int], None]:
    """The function for foreachBatch."""

    def write(chunks: DataFrame, batch_id: int) -> None:
        for sink in sinks:
            sink.begin(batch_id)
        # One action, which consumes all: a second would run the operator again, and an unread partition would leave
        # its state uncommitted.
        written = chunks.mapInArrow(partition_writer(sinks, batch_id), WRITTEN).collect()
        if on_batch is not None:
            on_batch(Written(batch_id, {(row.partition, row.kind): row.rows for row in written}))

    return write


def partition_writer(
    sinks: Sequence[Sink], batch_id: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: columns `CHUNKS` in, `WRITTEN` out. Each ingress partition is written at once."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for partition, table in _tables(batches):
            for sink in sinks:
                sink.write(batch_id, partition, table)
            counts = table["kind"].value_counts()
            yield pa.RecordBatch.from_arrays(
                [pa.repeat(pa.scalar(partition, pa.int32()), len(counts)), counts.field("values"),
                 counts.field("counts")],
                names=["partition", "kind", "rows"],
            )  # fmt: skip

    return write


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """The ingress partitions of a task, each with all its rows. They come one after the other."""
    done: set[int] = set()
    current: int | None = None
    tables: list[pa.Table] = []
    for batch in batches:
        packed = batch.column("effects")
        for row, partition in enumerate(batch.column("partition").to_pylist()):
            if partition != current:
                if current is not None:
                    yield current, pa.concat_tables(tables)
                    done.add(current)
                if partition in done:
                    # A second write of a partition would replace the first.
                    raise RuntimeError(
                        f"ingress partition {partition} came twice: its rows must be contiguous"
                    )
                current, tables = partition, []
            tables.append(unpack(packed[row].as_buffer()))
    if current is not None:
        yield current, pa.concat_tables(tables)


def interval(text: str) -> str:
    """A trigger's interval in Spark's words: ``1s`` → ``1 seconds``. Raises `BadTrigger`."""
    units = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number):].strip()  # fmt: skip
    if not number.strip().isdigit() or (unit not in units and unit not in units.values()):
        raise BadTrigger(f"trigger {text!r}: expected a number and a unit, as 500ms, 1s or 2m")
    return f"{int(number)} {units.get(unit, unit)}"
