"""`python -m bench.scaling`: a replay on a Spark cluster of 1, 2 and 4 executors with a core each, and 16 and 64 ingress partitions.

The master and the workers are processes of their own on this machine, which should have as many cores as the largest cluster has
executors, and two more. The driver runs in a new process for each cluster. It replays the log once to warm up, then once to measure.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.logs import publishes
from streaming.jobs.replay import replay_log
from streaming.spark.session import spark_session
from tests.cluster.standalone import EXECUTOR, Standalone

EXECUTORS = (1, 2, 4)
PARTITIONS = (16, 64)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--publishes", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    parser.add_argument("--executors", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.master:
        _drive(asked.master, asked.executors, asked.publishes)
        return
    print(f"{os.cpu_count()} cores, {asked.publishes:,} publishes on 64 topics; records per second")
    for _ in range(asked.rounds):
        for executors in EXECUTORS:
            with (
                tempfile.TemporaryDirectory() as folder,
                Standalone(Path(folder), {"SPARK_LOCAL_IP": "127.0.0.1"}, executors) as cluster,
            ):
                command = [sys.executable, "-m", "bench.scaling", "--master", cluster.url]
                counts = ["--executors", str(executors), "--publishes", str(asked.publishes)]
                subprocess.run([*command, *counts], check=True)


def _drive(master: str, executors: int, count: int) -> None:
    spark = spark_session("scaling", master=master, shuffle_partitions=executors, conf=EXECUTOR)
    with tempfile.TemporaryDirectory() as folder:
        for partitions in PARTITIONS:
            log = publishes(count, partitions=partitions)
            for what in ("warm", "measured"):
                before, begun = _busy(), time.perf_counter()
                replay_log(
                    log, Path(folder) / f"{what}-{partitions}", shuffle_partitions=executors, spark=spark
                )
                seconds, busy = time.perf_counter() - begun, _busy() - before
            print(
                f"{executors} executors, {partitions} partitions: {count / seconds:,.0f}, "
                f"the machine's processors busy {busy / seconds:.1f} of {os.cpu_count()}",
                flush=True,
            )
    spark.stop()


def _busy() -> float:
    """The processor time that the whole machine has used (s)."""
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))


if __name__ == "__main__":
    main()
