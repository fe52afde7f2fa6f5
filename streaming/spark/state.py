"""Reads the query's state from its checkpoint: at the end of a replay, for inspection, for tests.

The query need not be running. Spark keeps the states of the last 100 micro-batches
(``spark.sql.streaming.minBatchesToRetain``), so any of them can be read.
"""

from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from streaming.fold import StateRow

_NOT_BEGUN = (
    "STDS_COMMITTED_BATCH_UNAVAILABLE",
    "STDS_OFFSET_LOG_UNAVAILABLE",
    "STDS_NO_PARTITION_DISCOVERED_IN_STATE_STORE",
)


def state(spark: SparkSession, checkpoint: str | Path, batch_id: int | None = None) -> DataFrame:
    """The state after micro-batch `batch_id` (default: the last): partition, and the columns of `schema.STATE`."""
    # Creates Spark's coordinator of state stores, which a session otherwise has only after it ran a streaming query.
    # Spark can't load a store that starts with a snapshot without it.
    spark.streams.active  # noqa: B018
    reader = spark.read.format("statestore")
    if batch_id is not None:
        reader = reader.option("batchId", batch_id)
    return reader.load(str(checkpoint)).select("key.partition", "value.groupState.*")


def partition_states(
    spark: SparkSession, checkpoint: str | Path, batch_id: int | None = None
) -> list[StateRow]:
    """The `state` in memory, by ingress partition."""
    rows = state(spark, checkpoint, batch_id).collect()
    return sorted(StateRow(*row)._replace(broker=bytes(row.broker)) for row in rows)


def committed_states(spark: SparkSession, checkpoint: str | Path) -> list[StateRow]:
    """The `state` with which a query starts that has this checkpoint: empty if no micro-batch was committed."""
    try:
        return partition_states(spark, checkpoint)
    except PySparkException as error:
        if str(error.getCondition()).startswith(_NOT_BEGUN):
            return []
        raise
