"""What Spark reports about each micro-batch of a query."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from streaming.metrics.query import BatchProgress


@contextmanager
def listening(spark: SparkSession, name: str, report: Callable[[BatchProgress], None]) -> Iterator[None]:
    """Call `report`, in another thread, after each micro-batch of the query `name`."""
    listener = _Listener(name, report)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)


class _Listener(StreamingQueryListener):
    def __init__(self, name: str, report: Callable[[BatchProgress], None]) -> None:
        self.name, self.report = name, report

    @cached_property
    def _jlistener(self) -> Any:
        """What Java calls, instead of pyspark's own."""
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(_Fast(self))  # type: ignore[union-attr]

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Nothing: see `_Fast`."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing."""


class _Fast(JStreamingQueryListener):
    """pyspark's own asks Java for each field of a progress by itself, which slows the next micro-batch down."""

    pylistener: _Listener

    def onQueryProgress(self, jevent: Any) -> None:
        """A micro-batch is done."""
        progress = json.loads(jevent.progress().json())
        if progress.get("name") == self.pylistener.name:
            self.pylistener.report(parsed(progress))


def parsed(progress: dict[str, Any]) -> BatchProgress:
    """Spark's progress of a micro-batch, as it prints it. Its `behind` ends where a transaction is open."""
    behind = [
        int(source["metrics"]["maxOffsetsBehindLatest"])
        for source in progress["sources"]
        if (source.get("metrics") or {}).get("maxOffsetsBehindLatest") is not None
    ]
    began = datetime.fromisoformat(progress["timestamp"])
    return BatchProgress(
        progress["batchId"],
        round(began.timestamp() * 1000),
        progress["numInputRows"],
        {phase: ms / 1000 for phase, ms in progress["durationMs"].items()},
        progress.get("processedRowsPerSecond") or 0.0,
        max(behind, default=None),
        sum(each["memoryUsedBytes"] for each in progress["stateOperators"]),
        {
            int(partition): offset
            for source in progress["sources"]
            for offsets in (source.get("endOffset") or {}).values()
            for partition, offset in offsets.items()
        },
    )
