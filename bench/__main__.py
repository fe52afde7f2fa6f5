"""`make bench`: replay of a million plain publishes beside the identity function in the same operator.

Both read the same Parquet files, in the same micro-batches, group by the same key and end in one job a batch. The
identity gives every row back and only counts them; the replay folds the broker, writes receipts, entries and state.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout

from bench.memory import resident
from schemas.commands import Publish, to_binary
from schemas.records import RECORD
from streaming.replay import RECORDS_PER_BATCH, replay
from streaming.spark import source
from streaming.spark.schema import RECORDS
from streaming.spark.session import spark_session

TOPICS, PRODUCERS, PARTITIONS, PAYLOAD = 64, 1000, 16, 100


def publishes(count: int) -> pa.Table:
    """`count` plain publishes of 100 bytes: 64 topics, 1,000 producers, 16 ingress partitions, one a millisecond."""
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


def identity(spark: SparkSession, records: pa.Table, folder: Path, batches: int) -> float:
    """Seconds for giving every row back from a stateful operator of the same key, state and source."""

    def give_back(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        seen = state.get[0] if state.exists else 0
        for frame in frames:
            seen += len(frame)
            yield frame
        state.update((seen,))

    def count(batch: DataFrame, _: int) -> None:
        def rows(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"rows": [sum(part.num_rows for part in parts)]})

        batch.mapInArrow(rows, "rows bigint").collect()

    source.stage(records, folder / "staged", batches=batches)
    stream = source.staged(spark, folder / "staged")
    out = stream.groupBy("partition").applyInPandasWithState(
        give_back, RECORDS, "seen bigint", "append", GroupStateTimeout.NoTimeout
    )
    begun = time.perf_counter()
    query = (
        out.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(count)
        .start()
    )
    query.awaitTermination()
    return time.perf_counter() - begun


class Peaks:
    """Watches this process and its children: the largest resident size (bytes) of the JVM and of a Python worker."""

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
    """Print rows a second of both, their ratio and the peaks of memory: the best and the median of `rounds`."""
    records = publishes(count)
    batches = max(1, count // RECORDS_PER_BATCH)
    spark = spark_session("magnetar bench", shuffle_partitions=cores, master=f"local[{cores}]")
    folder = Path(tempfile.mkdtemp(prefix="magnetar-bench-"))
    runs: dict[str, list[float]] = {"identity": [], "replay": []}
    try:
        warm = records.slice(0, 20_000)
        _timed(identity, spark, warm, folder / "warm-identity", 1)
        replay(warm, folder / "warm-replay", spark=spark, batches=1)
        with Peaks() as peaks:
            for number in range(rounds):
                runs["identity"].append(identity(spark, records, folder / f"identity-{number}", batches))
                runs["replay"].append(
                    replay(records, folder / f"replay-{number}", spark=spark, batches=batches).seconds
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
        print(f"  {name:9} {count / middle:>10,.0f} rows/s (median), {count / min(seconds):,.0f} (best)")
    ratios = sorted(i / r for i, r in zip(runs["identity"], runs["replay"], strict=True))
    print(
        f"  replay is {ratios[len(ratios) // 2]:.2f} of identity (median; {ratios[0]:.2f} to {ratios[-1]:.2f})"
    )
    print(f"  peaks: JVM {peaks.java / 2**20:,.0f} MB, a Python worker {peaks.worker / 2**20:,.0f} MB")


def _timed(run: Callable[..., Any], *arguments: Any) -> None:
    run(*arguments)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    measure(given.rounds, given.records, given.cores)
