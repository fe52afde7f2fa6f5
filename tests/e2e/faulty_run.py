"""A query whose sinks fail in the middle of their writes: files in ``<folder>/faults`` say where, each once.

``<sink>-<n>``: the task that makes the sink's n-th change (``responses-…``: that sends) fails there, and takes the file.
As a command it runs in a session of its own, which runs a failed task again: ``python -m tests.e2e.faulty_run FOLDER
BOOTSTRAP TOPIC``.
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
    """A disk that refuses the change number n, if ``<sink>-<n>`` says so. It counts anew in each task."""

    def __init__(self, sink: str, faults: Path) -> None:
        super().__init__()
        self._sink, self._faults = sink, faults

    def _live(self) -> None:
        self.calls += 1
        if taken(self._faults / f"{self._sink}-{self.calls}"):
            raise OSError("the disk said no")


class Halfway:
    """A sink that gets half of the rows, and fails."""

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
    """Whether it was there. Of several tasks one gets it."""
    try:
        fault.unlink()
    except FileNotFoundError:
        return False
    return True


def fold_with_faults(
    spark: SparkSession, records: pa.Table, folder: Path, bootstrap: str, topic: str
) -> None:
    """Runs the query over `records` to their end, from where it was, or raises what ended it."""
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
        spark, source.staged(spark, staged), sinks=sinks, store=LedgerStore(url),
        checkpoint=folder / "checkpoint", clock="log", trigger=query.AVAILABLE_NOW,
    )  # fmt: skip
    running.awaitTermination()


if __name__ == "__main__":
    session = spark_session("faults", shuffle_partitions=2, master="local[2,3]", with_kafka=True)
    log = partition_log(Traffic(4, 1_700_000_000_000).write(400), 3)
    fold_with_faults(session, log, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    session.stop()
