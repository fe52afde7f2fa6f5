"""A query's topic becomes another one while the query runs, in a way that Spark does not notice."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from pyspark.sql import SparkSession

from sinks.begun import LastRecord
from sinks.kafka import read_responses
from streaming.jobs.run import run_query
from streaming.kafka import ingress
from streaming.kafka.client import administration
from streaming.kafka.ingress import IngressChanged, check_last
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.url import KafkaUrl
from streaming.spark.checkpoint import committed
from streaming.spark.failure import QueryFailed, explained
from streaming.spark.query import Written
from tests.e2e.processes import wait_until
from tests.e2e.traffic import Traffic

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LOG = Traffic(3, 1_700_000_000_000).write(200)


def recreated(admin: Any, url: KafkaUrl) -> None:
    """With more records than before, so that the offset of the query exists."""
    admin.delete_topics([url.topic])
    wait_until(lambda: url.topic not in admin.list_topics(), "the end of the topic")
    address = f"kafka://{url.bootstrap}/{url.topic}"
    produce_log(LOG, address, partitions=2)
    produce_log(LOG, address)


def deleted(admin: Any, url: KafkaUrl) -> None:
    admin.delete_topics([url.topic])


def more_partitions(admin: Any, url: KafkaUrl) -> None:
    admin.create_partitions({url.topic: 3})
    produce_log(LOG.slice(100), f"kafka://{url.bootstrap}/{url.topic}")


def compacted(admin: Any, url: KafkaUrl) -> None:
    produce_log(LOG.slice(100), f"kafka://{url.bootstrap}/{url.topic}")
    admin.alter_configs([ConfigResource("TOPIC", url.topic, {"cleanup.policy": "compact"})])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (recreated, "was deleted and recreated since"),
        (deleted, "no longer has the ingress topic: it was deleted"),
        (more_partitions, "has 3 partitions, and had 2 when"),
        (compacted, "is compacted (cleanup.policy=compact)"),
    ],
)
def test_a_topic_that_changes_under_a_query(
    spark: SparkSession,
    kafka: LocalKafka,
    tmp_path: Path,
    change: Callable[[Any, KafkaUrl], None],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ingress, "_POLICY_SECONDS", 0.0)
    url = KafkaUrl(kafka.bootstrap, f"changed-{change.__name__}")
    address = f"kafka://{url.bootstrap}/{url.topic}"
    produce_log(LOG, address, partitions=2)
    batches: list[Written] = []

    def on_batch(batch: Written) -> None:
        batches.append(batch)
        if len(batches) == 1:  # Spark looks for new records after it
            with administration(url) as admin:
                change(admin, url)

    with pytest.raises(QueryFailed) as failed, explained("Nothing is lost"):
        run_query(
            address, tmp_path / "checkpoint", str(tmp_path / "store"), clock="log", trigger="0s", quality=False,
            max_ahead_ms=None, spark=spark, on_batch=on_batch,
        )  # fmt: skip
    assert said in str(failed.value)
    assert "\n" not in str(failed.value)
    last = committed(tmp_path / "checkpoint")
    assert last is not None
    assert last.batch == 0


def test_a_topic_of_responses_that_is_made_anew_under_a_query(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    """The query goes on in it, and says so. It is not taken for another query's at the next start."""
    url, answers = (KafkaUrl(kafka.bootstrap, f"anew-under-{name}") for name in ("commands", "responses"))
    address = f"kafka://{url.bootstrap}/{url.topic}"
    produce_log(LOG, address, partitions=2)
    said: list[str] = []

    def run(count: int, change: Callable[[Any], None] = lambda _: None) -> None:
        """Until `count` micro-batches are done. `change` follows the first one."""
        stop, batches = threading.Event(), list[Written]()

        def on_batch(batch: Written) -> None:
            batches.append(batch)
            if len(batches) == count:
                stop.set()
            elif len(batches) == 1:
                with administration(url) as admin:
                    change(admin)

        run_query(
            address, tmp_path / "checkpoint", str(tmp_path / "store"), clock="log", trigger="0s", quality=False, max_ahead_ms=None,
            spark=spark, on_batch=on_batch, responses=f"kafka://{answers.bootstrap}/{answers.topic}", stop=stop, on_note=said.append,
        )  # fmt: skip

    def anew(admin: Any) -> None:
        admin.delete_topics([answers.topic])
        wait_until(lambda: answers.topic not in admin.list_topics(), "the end of the topic")
        kafka.create_topic(answers.topic, 2)
        produce_log(LOG.slice(100), address)

    run(2, anew)
    (note,) = said
    assert "'anew-under-responses' was deleted and recreated while" in note
    assert any(read_responses(answers.bootstrap, answers.topic, timeout=5))
    produce_log(LOG.slice(150), address)
    run(1)
    assert said == [note]


def test_a_kafka_that_comes_back_with_older_data(spark: SparkSession, tmp_path: Path) -> None:
    """The topic keeps its id. When writers have filled it beyond the query's offsets, only the records are other ones."""

    def run() -> None:
        stop = threading.Event()
        run_query(
            address, tmp_path / "checkpoint", str(tmp_path / "store"), clock="log", trigger="0s", quality=False, max_ahead_ms=None,
            spark=spark, on_batch=lambda _: stop.set(), stop=stop,
        )  # fmt: skip

    kafka = LocalKafka(tmp_path / "kafka")
    try:
        kafka.start()
        address = f"kafka://{kafka.bootstrap}/older"
        produce_log(LOG.slice(0, 80), address, partitions=2)
        kafka.kill()
        shutil.copytree(tmp_path / "kafka/data", tmp_path / "older")
        kafka.start()
        produce_log(LOG.slice(80, 40), address)
        run()
        produce_log(LOG.slice(80, 20), address)
        run()  # and goes on
        before = committed(tmp_path / "checkpoint")
        kafka.kill()
        shutil.rmtree(tmp_path / "kafka/data")
        shutil.copytree(tmp_path / "older", tmp_path / "kafka/data")
        kafka.start()
        with pytest.raises(IngressChanged, match="Kafka came back with older data"):
            run()  # while it is shorter
        produce_log(LOG.slice(120), address)
        with pytest.raises(
            IngressChanged, match="another record at offset .* Kafka came back with older data"
        ):
            run()
        assert committed(tmp_path / "checkpoint") == before
    finally:
        kafka.kill()


def test_the_last_records_of_a_topic(kafka: LocalKafka) -> None:
    url = KafkaUrl(kafka.bootstrap, "last-records")
    kafka.create_topic(url.topic, 3)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for partition, count in ((0, 5), (1, 1)):
        for number in range(count):
            value = None if number == 3 else b"%d" % number
            producer.send(url.topic, value, key=b"k", partition=partition, timestamp_ms=1_000 + number).get()
    producer.close()
    there = {0: LastRecord.of(3, 1_003, None), 1: LastRecord.of(0, 1_000, b"0")}
    check_last(url, {})
    check_last(url, there)
    for other in (
        LastRecord.of(4, 1_004, b"5"),
        LastRecord.of(4, 1_005, b"4"),
        LastRecord.of(5, 1_005, b"5"),
        LastRecord.of(9, 1_009, b"9"),
    ):
        with pytest.raises(IngressChanged, match=f"offset {other.offset} of partition 0"):
            check_last(url, there | {0: other})
    with pytest.raises(IngressChanged, match="offset 0 of partition 2"):
        check_last(url, there | {2: LastRecord.of(0, 1_000, b"0")})
    with administration(url) as admin:
        admin.delete_records({TopicPartition(url.topic, 0): 5})
    check_last(url, there | {0: LastRecord.of(4, 0, b"not there any more")})
