"""`make cluster`: a query on a Spark cluster with everything on S3, a worker that is killed, and the result in comparison.

Starts an S3 server, Kafka, and Spark's master and workers as processes of their own on this machine, and stops them at the end.
Exits with 1 if what the query left differs from a fold of the same log in one process.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from streaming.spark.session import spark_session
from tests.cluster.life import VICTIMS, cluster, live


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--records", type=int, default=600, help="how many commands (default: 600)")
    parser.add_argument("--seed", type=int, default=1, help="of the traffic and the moments (default: 1)")
    parser.add_argument("--workers", type=int, default=2, help="workers with a core each (default: 2)")
    parser.add_argument(
        "--kill",
        nargs="*",
        choices=VICTIMS,
        default=["worker"],
        help="what to kill, in this order (default: worker)",
    )
    parser.add_argument("--state-store", choices=["hdfs", "rocksdb"], default="hdfs", help="default: hdfs")
    asked = parser.parse_args()
    # Also where it is ignored, as in the background of a shell: without cleanup, the processes would outlive us.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="magnetar-cluster-"))
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {text}", flush=True)

    say(f"starting S3, Kafka, a Spark master and {asked.workers} workers; their logs are in {folder}")
    with cluster(folder, asked.workers) as running:
        say(
            f"S3 at {running.s3.environment['AWS_ENDPOINT_URL']}, Kafka at {running.kafka.bootstrap}, {running.spark.url}"
        )
        say("magnetar run, with checkpoint and store on S3")
        report = live(
            running,
            folder,
            seed=asked.seed,
            records=asked.records,
            victims=asked.kill,
            spark=lambda: spark_session("magnetar cluster", master="local[2]", shuffle_partitions=2),
            options=["--cores", str(asked.workers), "--state-store", asked.state_store],
            say=say,
        )
    say(f"{report.batches} micro-batches; comparing with a fold of the same log in one process")
    for difference in report.differences:
        print(f"         {difference}")
    if report.differences:
        say(f"DIFFERENT; everything is in {folder}")
        return 1
    say(
        f"equal: {report.rows:,} output rows, entries, responses and states; nothing lost, nothing there twice "
        f"({report.repeated} responses were sent again, with the same identity)"
    )
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
