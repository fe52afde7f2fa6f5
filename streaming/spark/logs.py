"""Spark's own logs of a query in its checkpoint, whatever file system that is on. Makes their folders, as the query does."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

_READ_ONLY = False


def offsets(spark: SparkSession, checkpoint: str | Path) -> Any:
    """What it planned: an ``OffsetSeqLog``."""
    return _logs(spark).OffsetSeqLog(spark._jsparkSession, f"{checkpoint}/offsets", _READ_ONLY)


def last_commit(spark: SparkSession, checkpoint: str | Path) -> int | None:
    """The last micro-batch that it committed."""
    last = (
        _logs(spark).CommitLog(spark._jsparkSession, f"{checkpoint}/commits", _READ_ONLY).getLatestBatchId()
    )
    return int(last.get()) if last.isDefined() else None


def _logs(spark: SparkSession) -> Any:
    return spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing  # type: ignore[union-attr]
