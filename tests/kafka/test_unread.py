"""What a query has not read of its topic, when a transaction is open and when Kafka is away."""

from pathlib import Path

import pytest
from kafka import KafkaProducer

from streaming.kafka.config import KafkaConfig
from streaming.kafka.local import LocalKafka
from streaming.kafka.topics import ensure_topic
from streaming.kafka.unread import Unread
from streaming.kafka.url import KafkaUrl

pytestmark = pytest.mark.kafka


def test_records_behind_an_open_transaction_are_unread(kafka: LocalKafka) -> None:
    """Spark says that there are none, because it can't read them."""
    url = KafkaUrl(kafka.bootstrap, "unread")
    ensure_topic(url, 2)
    said: list[str] = []
    unread = Unread(url, on_note=said.append, patience=0.0)
    assert unread.after({0: 3, 1: 0}, 0) == 0  # before the first look
    other = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    writer = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id="unread")
    for _ in range(3):
        other.send(url.topic, b"{}", partition=0).get()
    unread.look()
    assert (unread.after({0: 3, 1: 0}, 0), said) == (0, [])
    writer.init_transactions()
    writer.begin_transaction()
    writer.send(url.topic, b"{}", partition=0).get()
    for _ in range(5):
        other.send(url.topic, b"{}", partition=0).get()
    for _ in range(2):
        unread.look()
        assert unread.count == 6
    (note,) = said
    assert note.startswith(
        "topic unread, partition 0: a transaction is open at offset 3, and holds back the 6 records"
    )
    writer.commit_transaction()
    unread.look()
    assert unread.after({0: 10, 1: 0}, 0) == 0  # the end of the transaction has an offset, too
    for producer in (other, writer):
        producer.close()
    unread.close()


def test_what_spark_says_counts_if_it_is_more(kafka: LocalKafka) -> None:
    """It is newer than the last look."""
    url = KafkaUrl(kafka.bootstrap, "unread-more")
    ensure_topic(url, 1)
    unread = Unread(url)
    unread.look()
    assert unread.after({0: 4}, 7) == 7
    unread.close()


def test_without_a_kafka_spark_says_it() -> None:
    unread = Unread(KafkaUrl("127.0.0.1:1", "t"))
    unread.look()
    assert (unread.count, unread.after({0: 4}, 2), unread.after({}, None)) == (None, 2, None)


def test_without_a_usable_file_of_credentials_too(tmp_path: Path) -> None:
    """It may be half written, and whole a moment later: the thread that looks must not end."""
    file = tmp_path / "kafka.properties"
    file.write_text("security.protocol=SSL\n")
    config = KafkaConfig.of(file)
    file.unlink()
    unread = Unread(KafkaUrl("127.0.0.1:1", "t"), config)
    unread.look()
    assert unread.count is None
