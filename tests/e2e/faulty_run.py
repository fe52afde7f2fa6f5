"""A query whose sinks fail in the middle of their writes. Files in ``<folder>/faults`` say where. Each fault happens once.

``<sink>-<n>``: the task that makes the sink's n-th change (``responses-…``: that sends) fails there and deletes the file.
As a command, it runs in a new session, which repeats failed tasks: ``python -m tests.e2e.faulty_run FOLDER BOOTSTRAP
TOPIC``.
"""

import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from schemas.outputs import Rows
from sinks.base import Sink
from sinks.kafka import KafkaResponses
from sinks.ledger_store import LedgerStore
from sinks.quarantine import QuarantineSink
from sinks.tables import TableSink
from streaming.log.partition import partition_log
from streaming.spark import query, source
from streaming.spark.operator import FoldOptions
from streaming.spark.session import spark_session
from tests.e2e.traffic import Traffic
from tests.rows import by_kind, together
from tests.sinks.helpers import Mortal


def put_faults(folder: Path, faults: list[str]) -> None:
    (folder / "faults").mkdir()
    for fault in faults:
        (folder / "faults" / fault).touch()


def waiting_faults(folder: Path) -> list[str]:
    return [each.name for each in (folder / "faults").iterdir()]


class Disk(Mortal):
    """A disk that refuses change number n if ``<sink>-<n>`` exists. Each task counts from the start."""

    def __init__(self, sink: str, faults: Path) -> None:
        super().__init__()
        self._sink, self._faults = sink, faults

    def _live(self) -> None:
        self.calls += 1
        if taken(self._faults / f"{self._sink}-{self.calls}"):
            raise OSError("the disk said no")


class Halfway:
    """A sink that fails after half of the rows."""

    def __init__(self, sink: Sink, fault: Path) -> None:
        self._sink, self._fault = sink, fault

    def begin(self, batch_id: int) -> None:
        self._sink.begin(batch_id)

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        if batch_id < 2 or not taken(self._fault):
            return self._sink.write(batch_id, partition, rows)
        table = together(rows)
        self._sink.write(batch_id, partition, by_kind(table.slice(0, len(table) // 2)))
        raise OSError("the sink failed halfway")


def taken(fault: Path) -> bool:
    """Delete the fault's file. Returns whether it existed. Only one of several tasks gets it."""
    try:
        fault.unlink()
    except FileNotFoundError:
        return False
    return True


def fold_with_faults(
    spark: SparkSession, records: pa.Table, folder: Path, bootstrap: str, topic: str
) -> None:
    """Run the query over the rest of `records`. Raises the error that ended it."""
    faults, url = folder / "faults", str(folder / "store")
    staged = folder / "staged"
    if not staged.exists():
        source.stage(records, staged, batches=6)
    store = LedgerStore(url, Disk("ledgers", faults))
    sinks: list[Sink] = [
        store,
        QuarantineSink(url),
        TableSink(f"{url}/tables", Disk("tables", faults)),
        Halfway(KafkaResponses(bootstrap, topic, store=LedgerStore(url)), faults / "responses-1"),
    ]
    running = query.start(
        spark, source.staged(spark, staged), FoldOptions(sinks=sinks, store=LedgerStore(url), clock="log"),
        checkpoint=folder / "checkpoint", trigger=query.AVAILABLE_NOW,
    )  # fmt: skip
    running.awaitTermination()


if __name__ == "__main__":
    session = spark_session("faults", shuffle_partitions=2, master="local[2,3]", with_kafka=True)
    log = partition_log(Traffic(4, 1_700_000_000_000).write(400), 3)
    fold_with_faults(session, log, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    session.stop()
