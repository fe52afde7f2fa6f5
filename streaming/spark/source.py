"""The sources of records: staged files for a replay, and Kafka. Both are streams of packed records (`packing.PACKED`)."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.records import READ, ingress_records
from streaming.log.table import ordered, slices
from streaming.spark.packing import ARROW, PACKED, PIECE_BYTES, pack

_BATCH_ROWS = 1 << 16
_ROW_GROUP = (8 << 20) // PIECE_BYTES
_FIRST_MTIME_S = 1_000_000_000


def stage(records: pa.Table, folder: Path, *, batches: int) -> int:
    """Cut `records` (columns `RECORD`) into `batches` contiguous slices. Each becomes a Parquet file of packed
    records and a micro-batch.

    Returns the number of files: at least 1, at most one per record. The folder must not exist. Raises `LogError` if an
    offset occurs twice in a partition.
    """
    folder.mkdir(parents=True)
    number = 0
    for number, part in enumerate(slices(ordered(records), batches), 1):
        stage_batch(part, folder, number)
    return number


def stage_batch(records: pa.Table, folder: Path, number: int) -> None:
    """Write the records (columns `RECORD`) of a micro-batch: of numbers from 1, the lowest comes first."""
    # Spark ignores names that start with a dot, so it never lists an incomplete file.
    partial, file = folder / f".{number:08d}", folder / f"{number:08d}.parquet"
    write(records, partial)
    # Spark orders files by modification time in ms, so times of the clock could be equal.
    stamp = _FIRST_MTIME_S + number
    os.utime(partial, (stamp, stamp))
    partial.rename(file)


def write(records: pa.Table, file: Path) -> None:
    """Write `records` (columns `RECORD`) to a file for `staged`."""
    packed_records = pa.Table.from_batches(pack(records.to_batches(max_chunksize=_BATCH_ROWS)), ARROW)
    # A task reads at least a row group, so several of them let all cores read a large file. Java takes long to decompress it.
    pq.write_table(packed_records, file, row_group_size=_ROW_GROUP, compression="none", use_dictionary=False)


def staged(spark: SparkSession, folder: Path) -> DataFrame:
    """The stream of what `stage` wrote: one file per micro-batch, in order."""
    # Staged files have artificial times. Spark must not drop "old" ones.
    options = {"maxFilesPerTrigger": "1", "maxFileAge": "36500d", "pathGlobFilter": "*.parquet"}
    read = spark.readStream.schema(PACKED).options(**options).parquet(folder.absolute().as_uri())
    # Spark takes any column of a file for nullable, and refuses a checkpoint if one of its key wasn't.
    return read.withColumn("slot", F.coalesce("slot", F.lit(0)))


def kafka(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    *,
    max_offsets_per_trigger: int | None = None,
    config: KafkaConfig = PLAIN,
    partitions: int,
    offsets: Mapping[str, int] | None = None,
) -> DataFrame:
    """The stream of a Kafka topic, from its earliest record, from `offsets` (by partition, in decimal), or from the checkpoint.

    Records of a transaction count when it is committed. `streaming.kafka.records` says which topics they have. A record
    without a value goes to quarantine. If Kafka deleted records before they were read, the query stops, because
    the log would have a gap. `max_offsets_per_trigger` applies to all partitions of the topic together.
    `partitions`: how many there are.
    """
    options = config.spark() | {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": json.dumps({topic: offsets}) if offsets else "earliest",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }
    if max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)

    def from_kafka(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pack(ingress_records(batch, partitions) for batch in batches)

    # Conversions as expressions would be planned again in each micro-batch, which took longer than a small one takes here.
    read = spark.readStream.format("kafka").options(**options).load()
    return read.select(*READ.names).mapInArrow(from_kafka, PACKED)
