"""`python -m bench.state_store`: Spark's two state stores beside each other, with a large state and small micro-batches.

Both run in one session, one after the other, several times. The log first makes `--topics` topics, then each micro-batch publishes a
little on some of them, in all ingress partitions.
"""

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.logs import publishes
from sinks.ledger_store import LedgerStore
from streaming.jobs.run import StateStore, state_settings
from streaming.spark import query, source
from streaming.spark.operator import FoldOptions
from streaming.spark.session import spark_session
from streaming.spark.state import partition_states

PARTITIONS = 4
SMALL = 400
STORES: tuple[StateStore, StateStore] = ("hdfs", "rocksdb")


class Measured(NamedTuple):
    batch_ms: float
    """The median of a small micro-batch."""
    commit_ms: float
    """The median of what its stateful tasks took to commit their state, added up."""
    written_mb: float
    """What `state/` of the checkpoint grew by in a small micro-batch, on average, with snapshots. The last one is not counted."""
    state_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.state_store", description=__doc__)
    parser.add_argument("--topics", type=int, default=50_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    first = asked.topics * 2
    log = publishes(
        first + asked.batches * SMALL, topics=asked.topics, producers=asked.topics, partitions=PARTITIONS
    )
    spark = spark_session("state stores", master="local[2]", shuffle_partitions=2)
    found: dict[StateStore, list[Measured]] = {store: [] for store in STORES}
    for turn in range(asked.rounds):
        for store in STORES if turn % 2 == 0 else reversed(STORES):
            found[store].append(_run(spark, store, log, first, asked.batches))
            print(
                store,
                *(f"{name} {value:.1f}" for name, value in found[store][-1]._asdict().items()),
                flush=True,
            )
    for name in Measured._fields:
        hdfs, rocksdb = (statistics.median(getattr(each, name) for each in found[store]) for store in STORES)
        print(f"{name}: hdfs {hdfs:.1f}, rocksdb {rocksdb:.1f}, ratio {rocksdb / hdfs:.2f}")
    spark.stop()


def _run(spark: SparkSession, store: StateStore, log: pa.Table, first: int, batches: int) -> Measured:
    folder = Path(tempfile.mkdtemp(prefix="magnetar-state-"))
    for name, value in state_settings(store).items():
        spark.conf.set(name, value)
    staged, checkpoint = folder / "staged", folder / "checkpoint"
    staged.mkdir()
    pieces = [log.slice(0, first), *(log.slice(first + i * SMALL, SMALL) for i in range(batches))]
    for number, piece in enumerate(pieces):
        source.write(piece, staged / f"{number:04d}.parquet")
        os.utime(staged / f"{number:04d}.parquet", (1_000_000_000 + number,) * 2)
    ledgers = LedgerStore(str(folder / "store"))
    sizes: dict[Path, int] = {}

    def on_batch(written: query.Written) -> None:
        sizes.update((file, file.stat().st_size) for file in checkpoint.glob("state/**/*") if file.is_file())

    running = query.start(
        spark,
        source.staged(spark, staged),
        FoldOptions(sinks=[ledgers], store=ledgers, clock="log"),
        checkpoint=checkpoint,
        trigger=query.AVAILABLE_NOW,
        on_batch=on_batch,
    )
    running.awaitTermination()
    small = [each for each in running.recentProgress if each["batchId"] > 0 and each["numInputRows"]]
    states = partition_states(spark, checkpoint)
    measured = Measured(
        statistics.median(each["durationMs"]["triggerExecution"] for each in small),
        statistics.median(each["stateOperators"][0]["commitTimeMs"] for each in small),
        sum(size for file, size in sizes.items()) / 1e6 / batches,
        sum(len(each.broker) for each in states) / 1e6,
    )
    shutil.rmtree(folder)
    return measured


if __name__ == "__main__":
    main()
