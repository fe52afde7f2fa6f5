"""`make soak`: run a live query for hours with clients that publish, receive and acknowledge. Does anything grow?

It starts a Kafka broker and a client process, and runs the query in this process as `magnetar run --ui` does, with a visitor
who leaves the live page open. The load is steady. Each topic has two subscriptions: one acknowledges at once, the other has no consumer and is bounded by its TTL.
So memory, the state, the backlog, the duration of micro-batches and of the page's answers, and the number of files must stay
flat. Now and then the clients are silent for a while, in which the query is started again: time goes on, so that the TTL leaves no
backlog. With canaries, other TTLs are judged beside the query. Writes ``samples.jsonl`` and ``soak.svg``. Exits with 1 if something grew, if a silence left a backlog, or if there are too few samples.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from bench.memory import of_this_process, resident
from bench.soak_client import CHECK_SECONDS, TOPICS, TTL_SECONDS
from sinks.delta_log import DeltaLog
from sinks.storage import Storage
from sinks.tables import TABLES
from streaming.canaries.beside import Canaries, CanarySource
from streaming.jobs.run import run_query
from streaming.kafka.local import LocalKafka
from streaming.metrics.endpoint import Endpoint
from streaming.metrics.query import QueryMetrics
from streaming.spark.session import spark_session
from streaming.spark.state import state, states_beside
from streaming.ui.application import application
from streaming.ui.explanation import SECONDS
from streaming.ui.view import RunView

_LATE_SECONDS = 5.0
_STALE_SECONDS = 90 * 60
"""Replaced files of the output table stay for an hour, and until the next compaction."""


class Visitor(threading.Thread):
    """Asks the live page for what each of its parts shows, round after round, as an open browser does."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.rounds: list[float] = []
        """The seconds that the answers of each round took together."""
        self.failures: list[str] = []
        self.ended = threading.Event()

    def run(self) -> None:
        """Visit until `ended` is set."""
        topic = TOPICS[0]
        while True:
            began = time.monotonic()
            for part in ("overview", "topics", "subscriptions", "history", "batches", "latest"):
                self._ask(part)
            self._ask("topic", topic=topic)
            if len(self.rounds) % 12 == 11:
                self._ask("explain", about="delivery", topic=topic, subscription="idle")
            self.rounds.append(time.monotonic() - began)
            if self.ended.wait(5):
                return

    def _ask(self, part: str, **parameters: str) -> None:
        try:
            with urllib.request.urlopen(
                f"{self._url}/api/{part}?{urlencode(parameters)}", timeout=60
            ) as answer:
                json.load(answer)
        except (OSError, ValueError) as error:
            reason = error.read().decode() if isinstance(error, HTTPError) else ""
            self.failures.append(f"{part}: {error} {reason}")


class Sampler(threading.Thread):
    """Periodically writes a sample of the batches since the last one, as a line of JSON. Bytes and seconds."""

    def __init__(
        self, spark: SparkSession, checkpoint: Path, store: Path, visitor: Visitor, file: Path, seconds: float
    ) -> None:
        super().__init__(daemon=True)
        self._spark, self._checkpoint, self._store, self._file = spark, checkpoint, store, file
        self._visitor, self._failed = visitor, 0
        self._seconds = seconds
        self._query: StreamingQuery | None = None
        self._last = -1
        self.ended = threading.Event()

    def begin(self, query: StreamingQuery) -> None:
        """Sample a query that was started, for the first time or again."""
        self._query = query
        if not self.is_alive():
            self.start()

    def backlog(self) -> int:
        """The entries that wait in all subscriptions."""
        with state(self._spark, self._checkpoint) as found:
            return int(found.agg(F.sum("backlog")).collect()[0][0])

    def run(self) -> None:
        """Sample until `ended` is set."""
        begun = time.monotonic()
        with self._file.open("a") as file:
            while not self.ended.wait(self._seconds):
                sample = self._sample()
                if sample is not None:
                    file.write(json.dumps({"minutes": (time.monotonic() - begun) / 60} | sample) + "\n")
                    file.flush()

    def _sample(self) -> dict[str, Any] | None:
        assert self._query is not None
        done = [p for p in self._query.recentProgress if p["batchId"] > self._last and p["numInputRows"]]
        if not done:
            return None
        self._last = done[-1]["batchId"]
        with state(self._spark, self._checkpoint) as found:
            (sizes,) = found.agg(
                F.sum(F.length("broker")).alias("state"),
                F.sum("backlog").alias("backlog"),
                F.sum("storage").alias("storage"),
            ).collect()
        memory = resident()
        return {
            "batch": self._last,
            "batch_seconds": statistics.median(p["durationMs"]["triggerExecution"] for p in done) / 1000,
            "page_seconds": statistics.median(self._visitor.rounds[-3:] or [0]),
            "page_failures": self._failures(),
            "records": sum(p["numInputRows"] for p in done),
            "java": memory.java,
            "heap": self._heap(),
            "workers": memory.workers,
            "driver": of_this_process(),
            **files_of(self._store, self._checkpoint),
            **sizes.asDict(),
        }

    def _heap(self) -> int:
        """What the JVM's heap holds when its garbage is collected."""
        java = self._spark._jvm.java.lang  # type: ignore[union-attr]
        java.System.gc()
        runtime = java.Runtime.getRuntime()
        return int(runtime.totalMemory() - runtime.freeMemory())

    def _failures(self) -> int:
        before, self._failed = self._failed, len(self._visitor.failures)
        return self._failed - before


def files_of(store: Path, checkpoint: Path) -> dict[str, int]:
    """The number of files in the store's ledgers and segments, in the rest of it but for the output table, and in the checkpoint;
    of the files that the output table consists of; and of those in its folder that should have been deleted."""
    parts = {"ledger_files": "ledgers", "segment_files": "segments"}
    counts = {name: _count(store / folder) for name, folder in parts.items()}
    tables = store / "tables"
    others = _count(store) - sum(counts.values()) - _count(tables)
    return counts | {
        **_of_table(tables), "other_files": others, "checkpoint_files": _count(checkpoint)
    }  # fmt: skip


def _of_table(folder: Path) -> dict[str, int]:
    log = DeltaLog(Storage(str(folder)))
    live = {str(folder / path) for kind in TABLES for path in log.files(kind)} if log.exists else set[str]()
    old = time.time() - _STALE_SECONDS
    stale = 0
    for place, _, names in os.walk(folder):
        for path in (Path(place) / name for name in names):
            with suppress(FileNotFoundError):  # deleted meanwhile
                stale += str(path) not in live and path.stat().st_mtime < old
    return {"table_files": len(live), "stale_files": stale}


def _count(folder: Path) -> int:
    # Not `rglob`: it holds every path until it ends, so its memory would grow with the number of files.
    return sum(len(files) for _, _, files in os.walk(folder))


class Soak(NamedTuple):
    """The file of samples, and the backlog at the end of each silence."""

    samples: Path
    left: list[int]


def soak(
    minutes: float,
    rate: int,
    folder: Path,
    trigger: str,
    sample_seconds: float,
    every: float,
    silence: float,
    canaries: int = 0,
) -> Soak:
    """Run the soak with `rate` messages per second, every so many minutes a silence of so many seconds, and so many canaries."""
    folder.mkdir(parents=True)
    samples, ended = folder / "samples.jsonl", threading.Event()
    starts = [threading.Event()]
    """Set: what stops each start of the query."""
    left: list[int] = []
    kafka = LocalKafka(folder / "kafka")
    bootstrap = kafka.start().bootstrap
    spark = spark_session("magnetar soak", shuffle_partitions=2, master="local[2,3]", with_kafka=True)
    checkpoint, store = folder / "checkpoint", folder / "store"
    measured, page = QueryMetrics(label_sets=1000), Endpoint("127.0.0.1:0", option="--ui")
    view = RunView(
        "soak", measured, str(store), lambda partition: states_beside(checkpoint, partition, SECONDS)
    )
    page.start(application(view))
    visitor = Visitor(page.url)
    sampler = Sampler(spark, checkpoint, store, visitor, samples, sample_seconds)
    clients: list[subprocess.Popen[str]] = []

    def begin(query: StreamingQuery) -> None:
        sampler.begin(query)
        if not clients:
            command = [sys.executable, "-m", "bench.soak_client", bootstrap, str(rate)]
            clients.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))
            threading.Thread(target=pace, args=(query,), daemon=True).start()

    def tell(word: str) -> None:
        pipe = clients[0].stdin
        assert pipe is not None
        print(word, file=pipe, flush=True)

    def pace(query: StreamingQuery) -> None:
        # The first micro-batches of a busy machine can take longer than a short soak.
        while not any(progress.numInputRows for progress in query.recentProgress):
            time.sleep(0.5)
        visitor.start()
        until = time.monotonic() + minutes * 60
        while (remaining := until - time.monotonic()) > every * 60 + silence:
            ended.wait(every * 60)
            tell("pause")
            ended.wait(_LATE_SECONDS)  # what is still under way
            starts.append(threading.Event())
            starts[-2].set()
            ended.wait(silence)
            left.append(sampler.backlog())
            tell("resume")
        ended.wait(remaining)
        ended.set()
        starts[-1].set()

    sources = []
    for number in range(canaries):
        policies = folder / f"ttl-{number}.yaml"
        policies.write_text(f"broker: {{ttlDurationDefaultInSeconds: {TTL_SECONDS * (number + 1) // 2}}}\n")
        sources.append(CanarySource(f"ttl-{number}", str(policies)))

    try:
        while not ended.is_set():
            beside = (
                Canaries(str(store), sources, on_note=partial(print, file=sys.stderr)) if sources else None
            )
            run_query(
                f"kafka://{bootstrap}/commands", checkpoint, str(store), responses=f"kafka://{bootstrap}/responses",
                trigger=trigger, spark=spark, metrics=measured, on_progress=view.progress, on_start=begin, stop=starts[-1],
                canaries=beside,
            )  # fmt: skip
    finally:
        sampler.ended.set()
        visitor.ended.set()
        for client in clients:
            client.communicate()  # closes its standard input, which ends it
        spark.stop()
        kafka.stop()
        page.close()
    for failure in visitor.failures:
        print(f"the live page: {failure}", file=sys.stderr)
    return Soak(samples, left)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--rate", type=int, default=200, help="messages per second")
    parser.add_argument("--trigger", default="1s")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="the folder to create")
    parser.add_argument("--sample", type=float, default=15, metavar="SECONDS")
    parser.add_argument("--every", type=float, default=20, metavar="MINUTES", help="between silences")
    parser.add_argument("--silence", type=float, default=240, metavar="SECONDS", help="how long each is")
    parser.add_argument("--canaries", type=int, default=0, help="how many judge other TTLs beside the query")
    given = parser.parse_args()
    written = soak(
        given.minutes,
        given.rate,
        given.out,
        given.trigger,
        given.sample,
        given.every,
        given.silence,
        given.canaries,
    )
    from bench.soak_plot import judge, plot, read

    plot(written.samples, given.out / "soak.svg")
    verdict = judge(read(written.samples))
    print(*verdict.lines, sep="\n")
    print(f"backlog after {len(written.left)} silences: {', '.join(map(str, written.left))}")
    stood_still = given.silence > TTL_SECONDS + CHECK_SECONDS and any(written.left)
    sys.exit(not verdict.passed or stood_still)
