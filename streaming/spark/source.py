"""The sources of records: staged files for a replay, and Kafka. Both are streams of packed records (`packing.PACKED`)."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from schemas.keys import NOT_UTF8
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.log.table import ordered, slices
from streaming.spark.packing import ARROW, PACKED, PIECE_BYTES, pack, packed

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
        # Spark ignores names that start with a dot, so it never lists an incomplete file.
        partial, file = folder / f".{number:08d}", folder / f"{number:08d}.parquet"
        write(part, partial)
        # Spark orders files by modification time in ms, so times of the clock could be equal.
        stamp = _FIRST_MTIME_S + number
        os.utime(partial, (stamp, stamp))
        partial.rename(file)
    return number


def write(records: pa.Table, file: Path) -> None:
    """Write `records` (columns `RECORD`) to a file for `staged`."""
    packed_records = pa.Table.from_batches(pack(records.to_batches(max_chunksize=_BATCH_ROWS)), ARROW)
    # A task reads at least a row group, so several of them let all cores read a large file.
    pq.write_table(packed_records, file, row_group_size=_ROW_GROUP, compression="lz4", use_dictionary=False)


def staged(spark: SparkSession, folder: Path) -> DataFrame:
    """The stream of what `stage` wrote: one file per micro-batch, in order."""
    # Staged files have artificial times. Spark must not drop "old" ones.
    options = {"maxFilesPerTrigger": "1", "maxFileAge": "36500d", "pathGlobFilter": "*.parquet"}
    return spark.readStream.schema(PACKED).options(**options).parquet(folder.absolute().as_uri())


def kafka(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    *,
    max_offsets_per_trigger: int | None = None,
    config: KafkaConfig = PLAIN,
    partitions: int | None = None,
    offsets: Mapping[str, int] | None = None,
) -> DataFrame:
    """The stream of a Kafka topic, from its earliest record, from `offsets` (by partition, in decimal), or from the checkpoint.

    Records of a transaction count when it is committed. A record with an absent or empty key has no topic. A record whose key is not UTF-8 goes to quarantine, as does a record
    without a value. If Kafka deleted records before they were read, the query stops, because
    the log would have a gap. `max_offsets_per_trigger` applies to all partitions of the topic together.
    `partitions`: their number, so that the field `topic` of a record's value may stand in for its key.
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
    return packed(records(spark.readStream.format("kafka").options(**options).load(), partitions))


def records(read: DataFrame, partitions: int | None = None) -> DataFrame:
    """Convert the rows of Spark's Kafka source, streaming or batch, to columns `RECORD`. Topics are as `topic_of` gives
    them, and without a key, if the number of `partitions` is given, as `topic_in_value` does."""
    key = F.col("key").cast("string")
    is_text = F.is_valid_utf8(key) & ~F.startswith(F.col("key"), F.lit(NOT_UTF8.encode()))
    topic = F.when(is_text, key).otherwise(F.concat(F.lit(NOT_UTF8), F.lower(F.hex("key"))))
    topic = F.when(F.length("key") > 0, topic)
    if partitions is not None:
        named = F.get_json_object(F.col("value").cast("string"), "$.topic")
        own = F.crc32(named.cast("binary")) % partitions == F.col("partition")
        topic = topic.otherwise(F.when((named != "") & own, named))
    return read.select(
        F.col("partition"),
        F.col("offset"),
        F.unix_millis("timestamp").alias("timestamp"),
        topic.alias("topic"),
        F.coalesce("value", F.lit(b"")).alias("value"),
    )
