"""A query whose S3 goes away and comes back, and what came of it in comparison with an undisturbed fold."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Literal, NamedTuple

from pyspark.sql import SparkSession

from streaming.kafka.local import HOST, LocalKafka
from streaming.kafka.produce import produce_log
from streaming.log.partition import partition_log
from tests.chaos.compare import compare
from tests.cluster.s3 import BUCKET, LocalS3
from tests.e2e.live import LiveQuery
from tests.e2e.outcome import of_log, of_run
from tests.e2e.processes import wait_until
from tests.e2e.traffic import Traffic

PARTITIONS = 2
_START = 1_700_000_000_000

Where = Literal["both", "store", "checkpoint"]
"""What is on S3. The rest is on this machine."""

Outage = Literal["short", "busy", "long"]
"""S3 is killed, and back before anybody gives up; it answers 503 for a number of requests; it is killed, and back when the query has
ended."""


class Report(NamedTuple):
    rows: int
    differences: list[str]
    said: dict[int, str]
    """The last line of a query that gave up, by the number of the outage."""


class S3Query(LiveQuery):
    """The query of `name` with its folders on S3. Those of this object are the ones that the S3 server keeps them in."""

    def __init__(
        self, s3: LocalS3, kafka: LocalKafka, folder: Path, name: str, where: Where, *options: str
    ) -> None:
        ingress = f"kafka://{kafka.bootstrap}/{name}"
        super().__init__(folder, ingress, f"{ingress}-responses")
        root = s3.folder / "objects" / BUCKET / name
        checkpoint, store = str(folder / "checkpoint"), str(folder / "store")
        if where != "store":
            checkpoint, self.checkpoint = f"s3a://{BUCKET}/{name}/checkpoint", root / "checkpoint"
        if where != "checkpoint":
            store, self.store = f"s3://{BUCKET}/{name}/store", root / "store"
        self._arguments = [
            "--ingress", ingress, "--responses", f"{ingress}-responses", "--checkpoint", checkpoint, "--store", store,
            *options,
        ]  # fmt: skip
        self.environment = s3.environment


def live(
    s3: LocalS3,
    kafka: LocalKafka,
    folder: Path,
    where: Where,
    outages: Sequence[Outage],
    *,
    seed: int,
    records: int,
    spark: SparkSession,
) -> Report:
    """Send traffic, run a query over it, and let S3 fail again and again, each time after some micro-batches.

    A query that ended is started again when S3 is back.
    """
    dice = random.Random(seed)
    log = Traffic(seed, _START).write(records)
    name = f"outage-{where}-{seed}"
    batch = str(max(10, records // (6 * len(outages))))
    query = S3Query(
        s3, kafka, folder, name, where, "--clock", "log", "--trigger", "0ms", "--max-offsets", batch
    )
    produce_log(log, query.ingress, partitions=PARTITIONS)
    said = dict[int, str]()
    try:
        query.start()
        for number, outage in enumerate(outages):
            reached = query.committed() + dice.randint(1, 2)
            query.wait(lambda reached=reached: query.committed() >= reached, f"micro-batch {reached}")  # type: ignore[misc]
            begun = query.begun()
            s3.kill()
            if outage == "busy":
                with Busy(s3.port) as busy:
                    wait_until(lambda: len(busy.asked) >= 40 or ended(query), "requests")
            elif outage == "short":
                time.sleep(1 + 4 * dice.random())
            else:
                wait_until(lambda: ended(query), "the end of the query")
            s3.start()
            # Until it went on, or gave up.
            wait_until(lambda begun=begun: query.committed() > begun or ended(query), "what follows")  # type: ignore[misc]
            if ended(query):
                assert query.end() == 1
                said[number] = query.said().strip().splitlines()[-1]
                query.start()
        counts = Counter(partition_log(log, PARTITIONS)["partition"].to_pylist())
        query.wait(lambda: query.consumed() == counts, "all records")
        assert query.process is not None
        query.process.terminate()
        assert query.end() == 0
    finally:
        query.close()
    found = of_run(spark, query.store, query.checkpoint, kafka.bootstrap, query.responses)
    expected = of_log(partition_log(log, PARTITIONS), folder / "expected")
    rows, differences = compare(found, expected, query.store)
    return Report(rows, differences, said)


def ended(query: LiveQuery) -> bool:
    return query.process is not None and query.process.poll() is not None


class Busy:
    """A server in place of S3 that answers every request with 503, as S3 does when it has too much to do."""

    def __init__(self, port: int) -> None:
        self.asked: list[str] = []
        """What it was asked: method and target."""
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def refuse(self) -> None:
                asked.append(f"{self.command} {self.path}")
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = (
                    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
                )
                self.send_response(503)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)
                self.close_connection = True

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = refuse

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, port), Handler)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "Busy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
