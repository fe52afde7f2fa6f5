"""What the gates cost: a micro-batch of plain publishes with Spark, gates on and off by turns, in one run.

``python -m tests.quality.measure [--rounds N]`` prints for 10,000 and 100,000 rows the batch times (ms), the processor
time of all processes (which other work on the machine disturbs less), and the ratios on / off.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.__main__ import publishes
from streaming.jobs.replay import replay_log
from streaming.spark.session import spark_session

BATCHES = 6
"""Of a replay; the first, with the query's start, isn't counted."""


class Spent(NamedTuple):
    """Seconds by the clock on the wall, and of processors."""

    wall: float
    cpu: float


def now() -> Spent:
    return Spent(time.perf_counter(), processor_time(psutil.Process()))


def processor_time(process: psutil.Process) -> float:
    """Seconds of a process and all below it, including those that ended."""
    spent = 0.0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


def measure(rounds: int, sizes: list[int]) -> None:
    """Print, for each size, the medians of both and of the rounds' ratios."""
    spark = spark_session("magnetar gates", shuffle_partitions=2, master="local[2]")
    folder = Path(tempfile.mkdtemp(prefix="magnetar-gates-"))
    try:
        for size in sizes:
            records = publishes(size * BATCHES)
            spent: dict[str, list[Spent]] = {"off": [], "on": []}
            for number in range(rounds + 1):
                # By turns, and each time the other first: the machine's load weighs on both alike.
                for name in ("off", "on") if number % 2 else ("on", "off"):
                    ends: list[Spent] = []

                    def note(*_: int, ends: list[Spent] = ends) -> None:
                        ends.append(now())

                    replay_log(
                        records, folder / "out", spark=spark, batches=BATCHES, gates=name == "on", overwrite=True,
                        progress=note,
                    )  # fmt: skip
                    if number:  # the first round warms up
                        per_batch = (
                            (end - start) / (BATCHES - 1)
                            for start, end in zip(ends[0], ends[-1], strict=True)
                        )
                        spent[name].append(Spent(*per_batch))
            print(f"{size:,} rows a batch, {rounds} rounds")
            for field in Spent._fields:
                off, on = ([getattr(each, field) * 1000 for each in spent[name]] for name in ("off", "on"))
                ratios = sorted(b / a for a, b in zip(off, on, strict=True))
                print(
                    f"  {field:5} off {statistics.median(off):7.0f} ms, on {statistics.median(on):7.0f} ms; ratio: "
                    f"of medians {statistics.median(on) / statistics.median(off):.3f}, of the best "
                    f"{min(on) / min(off):.3f}, median of rounds {statistics.median(ratios):.3f} "
                    f"({ratios[0]:.3f} to {ratios[-1]:.3f})",
                    flush=True,
                )
    finally:
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    given = parser.parse_args()
    measure(given.rounds, given.sizes)
