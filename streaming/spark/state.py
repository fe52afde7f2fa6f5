"""Reads the query's state from its checkpoint: at the end of a replay, for inspection, for tests.

The query need not be running. Spark keeps the states of the last 100 micro-batches
(``spark.sql.streaming.minBatchesToRetain``), so any of them can be read.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, Row, SparkSession

from sinks.links import Link
from sinks.storage import plain
from streaming.fold.records import StateRow
from streaming.spark.checkpoint import BadCheckpoint, check_state, opened
from streaming.spark.logs import last_commit

_POLL_SECONDS = 0.05

_ESCAPED = re.compile(r"[^\w/.!~'()*,;:$&+=@-]")
"""What Java's ``URI`` escapes."""


@contextmanager
def state(spark: SparkSession, checkpoint: str | Path, batch_id: int | None = None) -> Iterator[DataFrame]:
    """The state after micro-batch `batch_id` (default: the last): partition, and the columns of `schema.STATE`. Evaluate it within the
    context. Raises `BadCheckpoint` if some of it is missing."""
    check_state(checkpoint)
    storage = opened(checkpoint)
    # Spark escapes the name that its source gets, and looks for a folder of that other name.
    link = None if storage is None or storage.folder is None else Link(storage.folder)
    if link is None and (found := _ESCAPED.search(str(checkpoint))):
        raise BadCheckpoint(
            f"{checkpoint}: Spark can't read the states of a checkpoint with {found[0]!r} in its URL. Copy it to another URL"
        )
    # Creates Spark's coordinator of state stores, which a session otherwise has only after it ran a streaming query.
    # Spark can't load a store that starts with a snapshot without it.
    spark.streams.active  # noqa: B018
    reader = spark.read.format("statestore")
    if batch_id is not None:
        reader = reader.option("batchId", batch_id)
    frame = reader.load(str(checkpoint if link is None else link.path))
    yield frame.select("key.partition", "value.groupState.*")


def partition_states(
    spark: SparkSession, checkpoint: str | Path, batch_id: int | None = None
) -> list[StateRow]:
    """The `state` in memory, by ingress partition."""
    with state(spark, checkpoint, batch_id) as found:
        return _rows(found)


def _rows(found: DataFrame) -> list[StateRow]:
    return sorted(map(_row, found.collect()))


def _row(found: Row) -> StateRow:
    return StateRow(*found)._replace(broker=bytes(found.broker))


def states_in_turn(spark: SparkSession, checkpoint: str | Path, batch_id: int) -> Iterator[StateRow]:
    """The `state`, by ingress partition, one in memory at a time."""
    with state(spark, checkpoint, batch_id) as found:
        for row in found.orderBy("partition").toLocalIterator():
            yield _row(row)


def committed_states(spark: SparkSession, checkpoint: str | Path) -> list[StateRow]:
    """The `state` with which a query starts that has this checkpoint: empty if no micro-batch was committed."""
    return [] if last_commit(spark, checkpoint) is None else partition_states(spark, checkpoint)


class NotReadable(RuntimeError):
    """The state of a running query can't be read now. The text says why."""


def states_beside(checkpoint: str | Path, partition: int | None, seconds: float) -> list[StateRow]:
    """The last state of an ingress partition (None: of all) of the query that runs in this process.

    One task reads it, so the query keeps its other cores. Raises `NotReadable`, also if it takes longer than so many seconds.
    """
    group, late, done = f"states-{uuid4()}", threading.Event(), threading.Event()
    try:
        spark = SparkSession.active()

        def cancel() -> None:
            if not done.wait(seconds):
                late.set()
                while not done.wait(_POLL_SECONDS):  # a job that has not begun can't be cancelled yet
                    spark.sparkContext.cancelJobGroup(group)

        threading.Thread(target=cancel, name="cancel", daemon=True).start()
        try:
            spark.sparkContext.setJobGroup(group, "a state for the page")
            with state(spark, checkpoint) as found:
                if partition is not None:
                    found = found.where(found["partition"] == partition)
                rows = _rows(found.coalesce(1))
        finally:
            done.set()
        if late.is_set():
            raise TimeoutError  # it ended between two attempts to cancel it
        return rows
    except Exception as error:  # of Spark, of py4j, and of Java that is gone
        why = f"that takes longer than {seconds:g} s" if late.is_set() else plain(error)
        raise NotReadable(f"the state of the query can't be read now: {why}") from error
