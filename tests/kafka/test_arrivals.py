"""A query without traffic waits for the next record, and misses none."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaProducer

from streaming.kafka.arrivals import Arrivals
from streaming.kafka.config import PLAIN
from streaming.kafka.local import LocalKafka
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from streaming.spark.query import Written, batch_writer
from streaming.spark.trigger import seconds

FOR_EVER = 3600.0


def test_it_waits_from_the_second_idle_micro_batch_on(kafka: LocalKafka) -> None:
    url = KafkaUrl(kafka.bootstrap, "arrivals")
    ensure_topic(url, 2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    stop = threading.Event()
    arrivals = Arrivals(url, PLAIN, FOR_EVER, stop)
    try:
        producer.send(url.topic, b"old", partition=0).get()
        arrivals.wait(4)  # the first after others: notes the end
        producer.send(
            url.topic, b"new", partition=1
        ).get()  # before the next one ends: perhaps not read by it
        arrivals.wait(5)  # sees it
        arrivals.wait(6)  # is a first one again
        arrivals.wait(8)  # so is this one, as 7 did something
        waiting = threading.Thread(target=arrivals.wait, args=(9,))
        waiting.start()
        producer.send(url.topic, b"newer", partition=0).get()
        waiting.join()
        arrivals.wait(10)
        stop.set()
        arrivals.wait(11)  # the query is about to end
    finally:
        arrivals.close()
        producer.close()


def test_it_does_not_wait_for_ever(kafka: LocalKafka) -> None:
    url = KafkaUrl(kafka.bootstrap, "no-arrivals")
    ensure_topic(url, 1)
    arrivals = Arrivals(url, PLAIN, 0.2, threading.Event())
    for batch_id in range(3):
        arrivals.wait(batch_id)
    arrivals.close()


def test_without_a_kafka_it_does_not_wait() -> None:
    arrivals = Arrivals(KafkaUrl("127.0.0.1:1", "t"), PLAIN, FOR_EVER, threading.Event())
    for batch_id in range(3):
        arrivals.wait(batch_id)
    arrivals.close()


@pytest.mark.parametrize("rows", [0, 3])
def test_only_a_micro_batch_that_wrote_nothing_is_idle(rows: int) -> None:
    written = [SimpleNamespace(partition=0, kind="TICK", rows=1)] * rows
    batch: Any = SimpleNamespace(collect=lambda: written)
    batches: list[Written] = []
    idle: list[int] = []
    batch_writer([], batches.append, idle.append)(batch, 7)
    assert [each.batch_id for each in batches] == [7]
    assert idle == ([] if rows else [7])


@pytest.mark.parametrize(
    ("text", "expected"), [("0s", 0), ("200ms", 0.2), ("1s", 1), ("2m", 120), ("1h", 3600)]
)
def test_an_interval_in_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected
