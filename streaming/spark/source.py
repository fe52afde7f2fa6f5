"""The sources of records: staged files for a replay, and Kafka. Both are streams of `schemas.records.RECORD`."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from schemas.keys import NOT_UTF8
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.log.table import ordered, slices
from streaming.spark.schema import RECORDS

_ROW_GROUP = 1 << 16
_FIRST_MTIME_S = 1_000_000_000


def stage(records: pa.Table, folder: Path, *, batches: int) -> int:
    """Cut `records` (columns `RECORD`) into `batches` contiguous slices. Each becomes a Parquet file and a micro-batch.

    Returns the number of files: at least 1, at most one per record. The folder must not exist. Raises `LogError` if an
    offset occurs twice in a partition.
    """
    folder.mkdir(parents=True)
    number = 0
    for number, part in enumerate(slices(ordered(records), batches), 1):
        # Spark ignores names that start with a dot, so it never lists an incomplete file.
        partial, file = folder / f".{number:08d}", folder / f"{number:08d}.parquet"
        # A task reads at least a row group, so several of them let all cores read a large file.
        pq.write_table(part, partial, row_group_size=_ROW_GROUP, compression="lz4")
        # Spark orders files by modification time in ms, so times of the clock could be equal.
        stamp = _FIRST_MTIME_S + number
        os.utime(partial, (stamp, stamp))
        partial.rename(file)
    return number


def staged(spark: SparkSession, folder: Path) -> DataFrame:
    """The stream of what `stage` wrote: one file per micro-batch, in order."""
    # Staged files have artificial times. Spark must not drop "old" ones.
    options = {"maxFilesPerTrigger": "1", "maxFileAge": "36500d", "pathGlobFilter": "*.parquet"}
    return spark.readStream.schema(RECORDS).options(**options).parquet(folder.absolute().as_uri())


def kafka(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    *,
    max_offsets_per_trigger: int | None = None,
    config: KafkaConfig = PLAIN,
    partitions: int | None = None,
) -> DataFrame:
    """The stream of a Kafka topic, from its earliest record or from the checkpoint.

    Records of a transaction count when it is committed. A record with an absent or empty key has no topic. A record whose key is not UTF-8 goes to quarantine, as does a record
    without a value. If Kafka deleted records before they were read, the query stops, because
    the log would have a gap. `max_offsets_per_trigger` applies to all partitions of the topic together.
    `partitions`: their number, so that the field `topic` of a record's value may stand in for its key.
    """
    options = config.spark() | {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }
    if max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    return records(spark.readStream.format("kafka").options(**options).load(), partitions)


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
