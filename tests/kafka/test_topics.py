"""What a topic holds, of a Kafka that may go away meanwhile, and whose topic it is, of one that may have several addresses."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import InvalidTimestampError

from streaming.kafka import client, ingress, topics
from streaming.kafka.client import KafkaUnreachable
from streaming.kafka.ingress import Ingress, TopicInUse, claim, ensure_ingress
from streaming.kafka.local import LocalKafka
from streaming.kafka.repartition import read_records
from streaming.kafka.topics import ensure_topic, holds_records, largest_value
from streaming.kafka.url import KafkaUrl

pytestmark = pytest.mark.kafka


def send(url: KafkaUrl, **settings: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=url.bootstrap, **settings)
    if "transactional_id" in settings:
        producer.init_transactions()
        producer.begin_transaction()
    producer.send(url.topic, b"{}", partition=0).get()
    if "transactional_id" in settings:
        producer.abort_transaction()
    producer.close()
    if "transactional_id" in settings:
        # Kafka ends a transaction after it has answered, and before the next one begins.
        with closing(KafkaProducer(bootstrap_servers=url.bootstrap, **settings)) as next_one:
            next_one.init_transactions()


def test_whether_there_are_records(kafka: LocalKafka) -> None:
    url = KafkaUrl(kafka.bootstrap, "holds")
    ensure_topic(url, 2)
    assert not holds_records(url)
    for number in range(3):
        send(url, transactional_id=f"aborts-{number}")
    assert not holds_records(url)
    send(url)
    assert holds_records(url)


@contextmanager
def silent_from(kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch, method: str) -> Iterator[None]:
    """Kafka says nothing more from the moment at which a consumer's method is called."""
    running = kafka.status()
    assert running is not None
    real = getattr(KafkaConsumer, method)

    def stopped(self: KafkaConsumer, *given: Any, **named: Any) -> Any:
        os.kill(running.pid, signal.SIGSTOP)
        return real(self, *given, **named)

    monkeypatch.setattr(KafkaConsumer, method, stopped)
    try:
        yield
    finally:
        os.kill(running.pid, signal.SIGCONT)


@pytest.mark.parametrize("method", ["beginning_offsets", "end_offsets", "seek"])
def test_a_kafka_that_goes_away_is_named(
    method: str, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = KafkaUrl(kafka.bootstrap, f"silent-{method.replace('_', '-')}")
    ensure_topic(url, 1)
    send(url, transactional_id=f"silent-{method}")
    monkeypatch.setattr(topics, "PATIENCE_MS", 1_000)
    with (
        silent_from(kafka, monkeypatch, method),
        pytest.raises(KafkaUnreachable, match=f"{url.topic}.*try again"),
    ):
        holds_records(url)


def test_a_kafka_that_is_not_there_is_named_before_its_records_are_read() -> None:
    nowhere = KafkaUrl("127.0.0.1:1", "t")
    with pytest.raises(KafkaUnreachable, match="no Kafka answered at 127.0.0.1:1"):
        list(read_records(nowhere, {0: (0, 1)}))


def test_one_connection_for_each_topic(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = client.connect

    def counted(*given: Any, **named: Any) -> Any:
        made.append(given[1].topic)
        return real(*given, **named)

    monkeypatch.setattr(client, "connect", counted)
    url, out = KafkaUrl(kafka.bootstrap, "once-in"), KafkaUrl(kafka.bootstrap, "once-out")
    for _ in range(2):
        ensure_ingress(url, str(tmp_path), 1)
        claim([out], str(tmp_path), 1)
    assert made == [
        "once-in",
        "once-out",
        "once-out",
        "once-in",
        "once-out",
    ]  # once to see that a new one is empty


def test_another_address_of_a_kafka_without_ids_of_topics(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def described(admin: Any, url: KafkaUrl) -> Ingress:
        (topic,) = admin.describe_topics([url.topic])
        return Ingress(url.topic, None, len(topic["partitions"]))

    monkeypatch.setattr(ingress, "_described", described)
    url = KafkaUrl(kafka.bootstrap, "alias-in")
    out, alias = (
        KafkaUrl(each, "alias-out")
        for each in (kafka.bootstrap, kafka.bootstrap.replace("127.0.0.1", "localhost"))
    )
    one, old, other = (str(tmp_path / each) for each in ("one", "old", "other"))
    for store in (one, old, other):
        ensure_ingress(url, store, 1)
    with monkeypatch.context() as patch:  # as earlier versions did
        patch.setattr(ingress, "_ids", lambda admin, url: [f"{url.bootstrap}/{url.topic}"])
        claim([out], old, 1)
    claim([out], one, 1)
    send(out)
    claim([alias], one, 1)
    with pytest.raises(TopicInUse):
        claim([alias], other, 1)
    claim([out], old, 1)
    claim([alias], old, 1)


def test_a_topic_takes_no_timestamp_that_spark_can_not_hold(kafka: LocalKafka) -> None:
    url = KafkaUrl(kafka.bootstrap, "times")
    ensure_topic(url, 1)
    producer = KafkaProducer(bootstrap_servers=url.bootstrap, enable_idempotence=False)
    for timestamp in (0, 1_700_000_000_000, 10**14, 8 * 10**15):
        producer.send(url.topic, b"{}", timestamp_ms=timestamp).get(30)
    for timestamp in (9_223_372_036_854_776, 2**62, 2**63 - 1):
        with pytest.raises(InvalidTimestampError):
            producer.send(url.topic, b"{}", timestamp_ms=timestamp).get(30)
    producer.close()


def test_the_largest_record_of_a_topic(kafka: LocalKafka) -> None:
    url = KafkaUrl(kafka.bootstrap, "largest")
    ensure_topic(url, 1)
    assert largest_value(url) == 16 << 20
    kafka.create_topic("smaller", 1, {"max.message.bytes": "5000"})
    assert largest_value(url._replace(topic="smaller")) == 5000
