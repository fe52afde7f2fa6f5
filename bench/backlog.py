"""`python -m bench.backlog`: does peak memory grow with the backlog in Kafka when the query starts far behind?

Two backlogs of plain publishes, one ten times the size of the other. A separate process runs the query over each.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from bench.logs import PARTITIONS, publishes
from bench.memory import Peaks, of_this_process
from streaming.jobs.run import run_query
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log


def take(ingress: str, count: int, folder: Path) -> None:
    """Run the query until it has read `count` records. Prints batches, rate (records/s) and memory peaks (MB)."""
    done, batches, driver = threading.Event(), 0, 0

    def watch(query: StreamingQuery) -> None:
        nonlocal batches, driver
        taken: dict[int, int] = {}
        while sum(taken.values()) < count and query.isActive:
            time.sleep(0.2)
            taken |= {p["batchId"]: p["numInputRows"] for p in query.recentProgress}
            driver = max(driver, of_this_process())
        batches = sum(1 for rows in taken.values() if rows)
        done.set()

    begun = time.perf_counter()
    with Peaks() as peaks:
        run_query(
            ingress, folder / "checkpoint", str(folder / "store"), partitions=PARTITIONS, stop=done,
            on_start=lambda query: threading.Thread(target=watch, args=(query,), daemon=True).start(),
        )  # fmt: skip
    seconds = time.perf_counter() - begun
    print(
        f"{count:>9,} records in {batches} micro-batches, {count / seconds:,.0f} per second including startup; peaks: "
        f"JVM {peaks.java / 2**20:,.0f} MB, the largest Python process {peaks.worker / 2**20:,.0f} MB, the driver {driver / 2**20:,.0f} MB",
        flush=True,
    )


def measure(count: int) -> None:
    """Measure a backlog of a tenth of `count` records, then one of `count`."""
    folder = Path(tempfile.mkdtemp(prefix="magnetar-backlog-"))
    kafka = LocalKafka(folder / "kafka")
    try:
        bootstrap = kafka.start().bootstrap
        for size in (count // 10, count):
            ingress = f"kafka://{bootstrap}/backlog-{size}"
            produce_log(publishes(size), ingress, partitions=PARTITIONS)
            command = [sys.executable, "-m", "bench.backlog", "--records", str(size), "--take", ingress]
            subprocess.run([*command, "--folder", str(folder / str(size))], check=True)
    finally:
        kafka.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--take", metavar="kafka://…", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.take:
        take(given.take, given.records, given.folder)
    else:
        measure(given.records)
