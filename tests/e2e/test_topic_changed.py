"""A query's topic becomes another one while the query runs, in a way that Spark does not notice."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ConfigResource
from pyspark.sql import SparkSession

from sinks.kafka import read_responses
from streaming.jobs.run import run_query
from streaming.kafka import ingress
from streaming.kafka.client import administration
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


@pytest.mark.sampled(4, seconds=2)
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


@pytest.mark.sampled(4, seconds=3)
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
