"""Faults during a running query: sinks that fail halfway, and a Kafka that goes down. The query continues where it was."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from streaming.jobs.run import run_query
from streaming.kafka.client import administration
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from streaming.log.partition import partition_log
from streaming.spark.failure import QueryFailed, explained
from tests.e2e.faulty_run import fold_with_faults, put_faults, waiting_faults
from tests.e2e.live import LiveQuery
from tests.e2e.outcome import assert_equal, of_log, of_run
from tests.e2e.processes import wait_until
from tests.e2e.traffic import Traffic

pytestmark = [
    pytest.mark.feature("J2"),
    pytest.mark.kafka,
    pytest.mark.spark,
]

PARTITIONS = 3
START = 1_700_000_000_000
ADVICE = "Nothing is lost"


# -- sinks


def test_sinks_that_fail_halfway_and_a_query_started_again(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    """The session runs each task once, so each fault ends the query."""
    records = partition_log(Traffic(4, START).write(400), PARTITIONS)
    kafka.create_topic("halfway", PARTITIONS)
    put_faults(tmp_path, ["ledgers-3", "tables-5", "responses-1", "ledgers-9"])
    said: list[str] = []
    while waiting_faults(tmp_path) or not said:
        with pytest.raises(QueryFailed) as raised, explained(ADVICE):
            fold_with_faults(spark, records, tmp_path, kafka.bootstrap, "halfway")
        said.append(str(raised.value))
    fold_with_faults(spark, records, tmp_path, kafka.bootstrap, "halfway")
    assert len(said) > 1  # parallel tasks may meet one each
    for each in said:
        assert each.endswith(
            ("could not be written: the disk said no. Nothing is lost", "failed halfway. Nothing is lost")
        )
    found = of_run(spark, tmp_path / "store", tmp_path / "checkpoint", kafka.bootstrap, "halfway")
    assert_equal(found, of_log(records, tmp_path / "expected"))


@pytest.mark.slow
def test_tasks_that_fail_halfway_are_run_again(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    """In a session that tries each task three times, the query never ends."""
    log = Traffic(4, START).write(400)
    kafka.create_topic("halfway-again", PARTITIONS)
    put_faults(tmp_path, ["ledgers-3", "tables-5", "responses-1", "ledgers-9"])
    command = [
        sys.executable,
        "-m",
        "tests.e2e.faulty_run",
        str(tmp_path),
        kafka.bootstrap,
        "halfway-again",
    ]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the disk said no") >= 3  # Spark reports each failed task
    assert not waiting_faults(tmp_path)
    found = of_run(spark, tmp_path / "store", tmp_path / "checkpoint", kafka.bootstrap, "halfway-again")
    assert_equal(found, of_log(partition_log(log, PARTITIONS), tmp_path / "expected"))


# -- Kafka


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[LocalKafka]:
    """A Kafka that the test may stop."""
    broker = LocalKafka(tmp_path / "kafka")
    broker.start()
    yield broker
    if (running := broker.status()) is not None:
        os.kill(running.pid, signal.SIGCONT)
    broker.kill()


def feed(bootstrap: str, records: pa.Table) -> None:
    """Send records (columns `RECORD`) like a client that waits for its broker, in order and each once."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", delivery_timeout_ms=600_000, max_block_ms=600_000,
        bootstrap_timeout_ms=600_000, reconnect_backoff_max_ms=1000,
    )  # fmt: skip
    sent = [
        producer.send(
            "commands",
            row["value"],
            key=None if row["topic"] is None else row["topic"].encode(),
            partition=row["partition"],
            timestamp_ms=row["timestamp"],
        )
        for row in records.to_pylist()
    ]
    producer.flush()
    producer.close()
    assert all(each.succeeded() for each in sent)


class Run:
    """`streaming.jobs.run.run_query` in a thread, over a Kafka that goes down, with a client that sends records meanwhile."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, folder: Path, records: int) -> None:
        self.spark, self.kafka, self.folder = spark, kafka, folder
        self._bootstrap = kafka.bootstrap  # valid also while it is down
        self.records = partition_log(Traffic(5, START).write(records), PARTITIONS)
        url = f"kafka://{kafka.bootstrap}/commands"
        ensure_topic(KafkaUrl.parse(url), PARTITIONS)
        self.files = LiveQuery(folder, url, f"{url}-responses")  # to look at the checkpoint
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(2)
        self._run = self._threads.submit(
            run_query, url, self.files.checkpoint, str(self.files.store), responses=f"{url}-responses", trigger="100ms",
            clock="log", records_per_batch=40, quality=False, stop=self._stop, spark=spark,
        )  # fmt: skip
        self._fed: Future[None] | None = None
        self._sent = 0

    def feed(self, records: int | None = None) -> None:
        """Send more records (None: all that are left) in the background."""
        if self._fed is not None:
            self._fed.result()
        part = self.records.slice(self._sent, records)
        self._sent += len(part)
        self._fed = self._threads.submit(feed, self._bootstrap, part)

    def commits(self, batches: int) -> None:
        """Wait for more micro-batches."""
        target = self.files.committed() + batches
        self.wait(lambda: self.files.committed() >= target, f"batch {target}")

    def finish(self) -> None:
        counts = Counter(self.records["partition"].to_pylist())
        self.wait(lambda: self.files.consumed() == counts, "all records")
        self._stop.set()
        self._run.result()
        found = of_run(
            self.spark, self.files.store, self.files.checkpoint, self._bootstrap, "commands-responses"
        )
        assert_equal(found, of_log(self.records, self.folder / "expected"))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: self._run.done() or condition(), what)
        if not self._stop.is_set() and self._run.done():
            self._run.result()  # raises what ended it
            raise AssertionError(f"the query ended before {what}")

    def close(self) -> None:
        self._stop.set()
        self._threads.shutdown()


@pytest.fixture
def runs(spark: SparkSession, own_kafka: LocalKafka, tmp_path: Path) -> Iterator[Callable[[int], Run]]:
    made: list[Run] = []

    def make(records: int) -> Run:
        made.append(Run(spark, own_kafka, tmp_path, records))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_kafka_killed_and_started_again(runs: Callable[[int], Run]) -> None:
    query = runs(500)
    kafka = query.kafka
    query.feed(200)
    query.commits(2)
    kafka.kill()
    query.feed(150)
    kafka.start()
    query.commits(1)
    running = kafka.status()
    assert running is not None
    # Like a network that drops all packets.
    os.kill(running.pid, signal.SIGSTOP)
    threading.Timer(2, os.kill, (running.pid, signal.SIGCONT)).start()
    query.feed()
    query.finish()


@pytest.mark.slow
def test_kafka_unreachable_for_a_minute(runs: Callable[[int], Run]) -> None:
    """Longer than clients wait for a response, which is 30 s in Python and 60 s in Java."""
    query = runs(400)
    query.feed(200)
    query.commits(2)
    running = query.kafka.status()
    assert running is not None
    os.kill(running.pid, signal.SIGSTOP)
    time.sleep(65)
    os.kill(running.pid, signal.SIGCONT)
    query.feed()
    query.finish()


# -- as a user sees it


@pytest.mark.slow
def test_what_a_user_sees(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> None:
    """`magnetar run` exits with 1 and a sentence. After the repair in that sentence it continues, otherwise it fails again."""
    url = f"kafka://{kafka.bootstrap}/faults-seen"
    log = Traffic(6, START).write(500)
    query = LiveQuery(
        tmp_path, url, f"{url}-responses", "--clock", "log", "--trigger", "0ms", "--max-offsets", "40"
    )
    counts: Counter[int] = Counter()

    def feed(part: pa.Table) -> None:
        produce_log(part, url, partitions=PARTITIONS)
        counts.update(partition_log(part, PARTITIONS)["partition"].to_pylist())

    def fails() -> str:
        query.start()
        assert query.end() == 1
        *_, last = query.said().strip().splitlines()
        assert last.startswith("magnetar: ")
        assert "Traceback" not in last
        return last

    def goes_on() -> None:
        query.start()
        query.wait(lambda: query.consumed() == counts, "all records were taken")
        assert query.stop(signal.SIGINT) == 0

    try:
        feed(log.slice(0, 300))
        goes_on()
        feed(log.slice(300))
        segments = sorted(query.store.glob("segments/*/*.parquet"))
        whole = {file: file.read_bytes() for file in segments}
        for file in segments:
            file.write_bytes(whole[file][:-20])
        assert " is damaged: " in fails()
        for file in segments:
            file.write_bytes(whole[file])

        commit = query.checkpoint / "commits" / str(query.committed())
        commit.write_bytes(b"v1")
        assert f"{commit} (2 bytes) is damaged. Delete it" in fails()
        commit.unlink()  # as the error says

        state = query.checkpoint / "state"
        state.rename(tmp_path / "state")
        assert "folder 'state' is empty or missing. Restore it" in fails()
        (tmp_path / "state").rename(state)
        goes_on()
        found = of_run(spark, query.store, query.checkpoint, kafka.bootstrap, query.responses)
        assert_equal(found, of_log(partition_log(log, PARTITIONS), tmp_path / "expected"))

        from kafka import TopicPartition

        end = query.consumed()
        feed(log)  # again: its messages are duplicates
        with administration(KafkaUrl.parse(url)) as admin:
            admin.delete_records({TopicPartition("faults-seen", p): end[p] + 20 for p in range(PARTITIONS)})
        for _ in range(2):
            assert "Kafka deleted records before they were read" in fails()
        with administration(KafkaUrl.parse(url)) as admin:
            admin.delete_topics(["faults-seen"])
        assert "no longer has a topic 'faults-seen'" in fails()
        produce_log(log, url, partitions=PARTITIONS)
        assert "was deleted and recreated" in fails()
    finally:
        query.close()
