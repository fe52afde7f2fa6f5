"""`make bench`: a replay of a million plain publishes, compared with the identity function in the same operator.

Both read the same Parquet files in the same micro-batches, group by the same key, so with the same spread over tasks,
and end in one job per micro-batch. The identity gives every row back. It runs twice: once the rows are only counted,
once they are also written to one Parquet sink. The replay folds the broker and writes receipts, entries and state.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout

from bench.memory import resident
from schemas.commands import Publish, to_binary
from schemas.records import RECORD
from sinks.parquet import options
from streaming.replay import RECORDS_PER_BATCH, replay_log
from streaming.spark import source
from streaming.spark.keys import slot
from streaming.spark.schema import RECORDS
from streaming.spark.session import spark_session

TOPICS, PRODUCERS, PARTITIONS, PAYLOAD = 64, 1000, 16, 100


def publishes(count: int) -> pa.Table:
    """`count` plain publishes of 100 bytes: 64 topics, 1,000 producers, 16 ingress partitions, one publish per millisecond."""
    dice = np.random.default_rng(7)
    producers = dice.integers(PRODUCERS, size=count)
    topics = producers % TOPICS
    sequence = np.empty(count, np.int64)
    for producer in range(PRODUCERS):
        own = np.flatnonzero(producers == producer)
        sequence[own] = np.arange(len(own))
    payload = bytes(PAYLOAD)
    values = [
        to_binary(Publish(producer=f"producer-{producer}", sequence_id=int(id_), payload_bytes=payload))
        for producer, id_ in zip(producers.tolist(), sequence, strict=True)
    ]
    partition = (topics % PARTITIONS).astype(np.int32)
    offset = np.empty(count, np.int64)
    for number in range(PARTITIONS):
        own = np.flatnonzero(partition == number)
        offset[own] = np.arange(len(own))
    names = np.array([f"persistent://bench/load/topic-{topic}" for topic in range(TOPICS)])
    columns = [
        partition,
        offset,
        1_700_000_000_000 + np.arange(count),
        names[topics],
        pa.array(values, pa.binary()),
    ]
    return pa.Table.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, RECORD, strict=True)], schema=RECORD
    )


def identity(spark: SparkSession, records: pa.Table, folder: Path, batches: int, *, write: bool) -> float:
    """Seconds for giving every row back from a stateful operator with the replay's source, key and spread of keys.

    The rows are counted; with `write` they also go to Parquet, one file per task, encoded as the sinks encode theirs.
    """

    def give_back(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        seen = state.get[0] if state.exists else 0
        for frame in frames:
            seen += len(frame)
            yield frame[RECORD.names]
        state.update((seen,))

    def take(batch: DataFrame, batch_id: int) -> None:
        def rows(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            task = TaskContext.get()
            assert task is not None
            file = folder / f"{batch_id}-{task.partitionId()}.parquet"
            count = 0
            with ExitStack() as stack:
                writer: pq.ParquetWriter | None = None
                for part in parts:
                    count += part.num_rows
                    if write:
                        if writer is None:
                            parquet = pq.ParquetWriter(file, part.schema, **options(part.schema, "zstd"))
                            writer = stack.enter_context(parquet)
                        writer.write_batch(part)
            yield pa.RecordBatch.from_pydict({"rows": [count]})

        batch.mapInArrow(rows, "rows bigint").collect()

    source.stage(records, folder / "staged", batches=batches)
    stream = source.staged(spark, folder / "staged")
    keyed = stream.withColumn("slot", slot(stream["partition"]))
    out = keyed.groupBy("partition", "slot").applyInPandasWithState(
        give_back, RECORDS, "seen bigint", "append", GroupStateTimeout.NoTimeout
    )
    begun = time.perf_counter()
    query = (
        out.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(take)
        .start()
    )
    query.awaitTermination()
    return time.perf_counter() - begun


class Peaks:
    """Records the peak resident size (bytes) of the JVM and of a Python worker among this process's children."""

    def __init__(self) -> None:
        self.java = self.worker = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Peaks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            now = resident()
            self.java, self.worker = max(self.java, now.java), max(self.worker, now.worker)


def measure(rounds: int, count: int, cores: int) -> None:
    """Print rows per second of each run, both ratios and the peaks of memory: the best and the median of `rounds`."""
    records = publishes(count)
    batches = max(1, count // RECORDS_PER_BATCH)
    spark = spark_session("magnetar bench", shuffle_partitions=cores, master=f"local[{cores}]")
    folder = Path(tempfile.mkdtemp(prefix="magnetar-bench-"))
    runs: dict[str, list[float]] = {"identity, counted": [], "identity, written": [], "replay": []}
    try:
        warm = records.slice(0, 20_000)
        identity(spark, warm, folder / "warm-identity", 1, write=True)
        replay_log(warm, folder / "warm-replay", spark=spark, batches=1)
        with Peaks() as peaks:
            for number in range(rounds):
                for name, write in (("counted", False), ("written", True)):
                    own = folder / f"{name}-{number}"
                    runs[f"identity, {name}"].append(identity(spark, records, own, batches, write=write))
                runs["replay"].append(
                    replay_log(records, folder / f"replay-{number}", spark=spark, batches=batches).seconds
                )
                print(
                    f"round {number + 1}: " + ", ".join(f"{name} {s[-1]:.2f} s" for name, s in runs.items()),
                    flush=True,
                )
    finally:
        spark.stop()
        shutil.rmtree(folder)
    print(
        f"\n{count:,} publishes of {PAYLOAD} B, {TOPICS} topics, {PRODUCERS} producers, {PARTITIONS} partitions, "
        f"{batches} micro-batches, {cores} cores"
    )
    for name, seconds in runs.items():
        middle = sorted(seconds)[len(seconds) // 2]
        print(f"  {name:17} {count / middle:>10,.0f} rows/s (median), {count / min(seconds):,.0f} (best)")
    for name in ("counted", "written"):
        ratios = sorted(i / r for i, r in zip(runs[f"identity, {name}"], runs["replay"], strict=True))
        middle = ratios[len(ratios) // 2]
        print(f"  replay is {middle:.2f} of identity, {name} (median; {ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"  peaks: JVM {peaks.java / 2**20:,.0f} MB, a Python worker {peaks.worker / 2**20:,.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    measure(given.rounds, given.records, given.cores)
