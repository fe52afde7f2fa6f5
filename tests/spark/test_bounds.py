"""What a query takes at once is bounded, whatever waits for it in Kafka."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sinks.kafka import read_responses
from streaming.jobs import run as live
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.topics import records_within
from streaming.kafka.url import KafkaUrl
from streaming.spark.query import Written
from tests.spark.helpers import START, log_of

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

TOPIC = "persistent://public/default/large"
LARGEST = 5 << 20  # Pulsar's maxMessageSize


@pytest.mark.feature("J1")
def test_the_largest_messages_a_few_at_a_time(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog of messages of 5 MiB: micro-batches by their size, and each is delivered whole. One byte more is refused."""
    ingress, responses = (f"kafka://{kafka.bootstrap}/{name}" for name in ("large", "large-responses"))
    texts = ["0" * LARGEST, "1" * (LARGEST - 1) + "é", "2" * LARGEST, "3" * (LARGEST + 1)]
    log = log_of(
        (START, TOPIC, {"command": "SUBSCRIBE", "connection": "c", "consumer_id": 1, "request_id": 1, "subscription": "s",
                    "subType": "Shared"}),
        (START, TOPIC, {"command": "FLOW", "connection": "c", "consumer_id": 1, "messagePermits": 9}),
        *((START, TOPIC, {"producer": "p", "sequence_id": n, "payload": text}) for n, text in enumerate(texts)),
    )  # fmt: skip
    produce_log(log, ingress, partitions=1)
    monkeypatch.setattr(live, "BYTES_PER_BATCH", 2 * LARGEST)
    stop, batches = threading.Event(), []

    def watch(written: Written) -> None:
        batches.append(written.rows)
        if sum(rows.get((0, "SEND_ERROR"), 0) for rows in batches) == 2:
            stop.set()

    live.run_query(
        ingress, tmp_path / "checkpoint", str(tmp_path / "store"), responses=responses, tables=False, quality=False,
        spark=spark, stop=stop, on_batch=watch,
    )  # fmt: skip
    assert len([rows for rows in batches if rows]) > 2
    answers = list(read_responses(kafka.bootstrap, "large-responses", timeout=0.01))
    delivered = [answer["payload"] for answer in answers if answer["kind"] == "MESSAGE"]
    assert delivered == [texts[0].encode(), texts[2].encode()]
    refused = [answer["sequence_id"] for answer in answers if answer["kind"] == "SEND_ERROR"]
    assert refused == []  # the short form has no connection that an answer could go to
    assert sum(rows.get((0, "SEND_ERROR"), 0) for rows in batches) == 2


def test_how_many_records_take_so_many_bytes(kafka: LocalKafka) -> None:
    url = KafkaUrl(kafka.bootstrap, "sized")
    produce_log(
        log_of(*((1, "t", b"x" * 1000) for _ in range(100))), f"kafka://{kafka.bootstrap}/sized", partitions=2
    )
    assert 80 <= (records_within(url, 100_000) or 0) <= 100
    assert records_within(url, 1) == 1
    produce_log(log_of(), f"kafka://{kafka.bootstrap}/unused", partitions=1)
    assert records_within(KafkaUrl(kafka.bootstrap, "unused"), 1) is None
