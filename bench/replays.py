"""The same log through three operators on Spark: Magnetar's, one that gives every row back, and the naive one.

All read the same records from Parquet files in the same micro-batches, end in one job per micro-batch, and write their rows to
Parquet files that are encoded alike. The identity groups as Magnetar does, so with the same spread over tasks. It reads a row per
record, as a query of Spark does. Magnetar packs its records before Spark has them.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupStateTimeout

from bench.logs import PARTITIONS
from bench.memory import Cost, Meter
from schemas.commands import decode_or_refuse, to_json
from schemas.records import RECORD
from sinks.parquet import options
from streaming.jobs.replay import micro_batches, replay_log
from streaming.log.table import slices
from streaming.spark.keys import slot

RECORDS = from_arrow_schema(RECORD)

Operator = Callable[[SparkSession, pa.Table, Path, int], Cost]
"""Folds a log in so many micro-batches, in a folder of its own."""


def identity(spark: SparkSession, records: pa.Table, folder: Path, batches: int) -> Cost:
    """Gives every row back."""

    def give_back(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        seen = state.get[0] if state.exists else 0
        for frame in frames:
            seen += len(frame)
            yield frame[RECORD.names]
        state.update((seen,))

    def out(stream: DataFrame) -> DataFrame:
        slots = F.lit([slot(partition) for partition in range(PARTITIONS)])
        keyed = stream.withColumn("slot", F.get(slots, stream["partition"]))
        return keyed.groupBy("partition", "slot").applyInPandasWithState(
            give_back, RECORDS, "seen bigint", "append", GroupStateTimeout.NoTimeout
        )

    return _run(spark, records, folder, batches, out)


def naive(spark: SparkSession, records: pa.Table, folder: Path, batches: int) -> Cost:
    """Deduplicates as one would write it first: grouped by topic and producer, row by row."""

    def deduplicate(
        key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any
    ) -> Iterator[pd.DataFrame]:
        last, entries = state.get if state.exists else (-1, 0)
        rows = []
        for frame in frames:
            for _, record in frame.iterrows():
                command = msgspec.json.decode(record["value"])
                accepted = command["sequence_id"] > last
                if accepted:
                    last = command["sequence_id"]
                    entries += 1
                rows.append(
                    (record["offset"], key[0], key[1], command["sequence_id"], accepted, record["value"])
                )
        state.update((last, entries))
        yield pd.DataFrame(rows, columns=["offset", "topic", "producer", "sequence_id", "accepted", "value"])

    def out(stream: DataFrame) -> DataFrame:
        producer = F.get_json_object(stream["value"].cast("string"), "$.producer")
        return (
            stream.withColumn("producer", producer)
            .groupBy("topic", "producer")
            .applyInPandasWithState(
                deduplicate,
                "offset bigint, topic string, producer string, sequence_id bigint, accepted boolean, value binary",
                "last bigint, entries bigint",
                "append",
                GroupStateTimeout.NoTimeout,
            )
        )

    records = records.filter(pc.is_valid(records["topic"]))
    values = [to_json(decode_or_refuse(value)) for value in records["value"].to_pylist()]  # type: ignore[arg-type]
    records = records.set_column(4, RECORD.field("value"), pa.array(values, pa.binary()))
    return _run(spark, records, folder, batches, out)


def magnetar(spark: SparkSession, records: pa.Table, folder: Path, batches: int) -> Cost:
    """Replays the log: receipts, entries and state are written."""
    with Meter() as meter:
        seconds = replay_log(records, folder, spark=spark, batches=batches).seconds
    return meter.cost._replace(seconds=seconds)


def run(operator: Operator, spark: SparkSession, records: pa.Table, folder: Path) -> Cost:
    """Fold a log in micro-batches of the usual size. The folder is deleted afterwards."""
    try:
        return operator(spark, records, folder, micro_batches(records))
    finally:
        shutil.rmtree(folder)


def _run(
    spark: SparkSession, records: pa.Table, folder: Path, batches: int, out: Callable[[DataFrame], DataFrame]
) -> Cost:
    def take(batch: DataFrame, batch_id: int) -> None:
        def rows(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            task = TaskContext.get()
            assert task is not None
            count = 0
            with ExitStack() as stack:
                writer: pq.ParquetWriter | None = None
                for part in parts:
                    count += part.num_rows
                    if writer is None:
                        file = folder / f"{batch_id}-{task.partitionId()}.parquet"
                        writer = stack.enter_context(
                            pq.ParquetWriter(file, part.schema, **options(part.schema, "zstd"))
                        )
                    writer.write_batch(part)
            yield pa.RecordBatch.from_pydict({"rows": [count]})

        batch.mapInArrow(rows, "rows bigint").collect()

    staged = folder / "staged"
    staged.mkdir(parents=True)
    for number, part in enumerate(slices(records, batches)):
        file = staged / f"{number:08d}.parquet"
        pq.write_table(part, file, row_group_size=1 << 16, compression="lz4")
        os.utime(file, (number, number))  # Spark orders files by time
    read = spark.readStream.schema(RECORDS).options(maxFilesPerTrigger="1", maxFileAge="36500d")
    stream = out(read.parquet(str(staged)))
    with Meter() as meter:
        begun = time.perf_counter()
        query = (
            stream.writeStream.trigger(availableNow=True)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .foreachBatch(take)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - begun
    return meter.cost._replace(seconds=seconds)
