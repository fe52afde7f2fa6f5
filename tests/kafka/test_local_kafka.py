from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from streaming.kafka.local import LocalKafka, LocalKafkaError

pytestmark = pytest.mark.kafka


def produce(kafka: LocalKafka, topic: str, values: list[bytes], timestamp_ms: int | None = None) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    sent = [producer.send(topic, value, partition=0, timestamp_ms=timestamp_ms) for value in values]
    producer.close()
    for future in sent:
        future.get(timeout=10)


def consume(kafka: LocalKafka, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, consumer_timeout_ms=20_000)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    try:
        return [next(consumer).value for _ in range(count)]
    finally:
        consumer.close()


def test_what_goes_in_comes_out(kafka: LocalKafka) -> None:
    kafka.create_topic("in-out", 1)
    values = [b"%d" % number for number in range(1000)]
    produce(kafka, "in-out", values)
    assert consume(kafka, "in-out", 1000) == values


@pytest.mark.parametrize("timestamp_ms", [0, 4_000_000_000_000])
def test_any_time_is_kept(kafka: LocalKafka, timestamp_ms: int) -> None:
    topic = f"time-{timestamp_ms}"
    kafka.create_topic(topic, 1)
    produce(kafka, topic, [b"then"], timestamp_ms)
    assert consume(kafka, topic, 1) == [b"then"]


def test_the_largest_pulsar_message_fits(kafka: LocalKafka) -> None:
    kafka.create_topic("large-message", 1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, max_request_size=16 * 1024 * 1024)
    producer.send("large-message", b"x" * (7 * 1024 * 1024)).get(timeout=20)
    producer.close()
    assert [len(value) for value in consume(kafka, "large-message", 1)] == [7 * 1024 * 1024]


def test_topic_errors(kafka: LocalKafka) -> None:
    kafka.create_topic("taken", 1)
    with pytest.raises(LocalKafkaError, match="'taken' already exists"):
        kafka.create_topic("taken", 1)
    with pytest.raises(LocalKafkaError, match="name is invalid"):
        kafka.create_topic("not legal", 1)


def test_another_handle_finds_it_and_start_says_it_is_up(kafka: LocalKafka) -> None:
    other = LocalKafka(kafka.directory)
    assert other.bootstrap == kafka.bootstrap
    with pytest.raises(LocalKafkaError, match=r"already up at 127\.0\.0\.1"):
        other.start()


def test_only_this_machine_reaches_it(kafka: LocalKafka) -> None:
    port = int(kafka.bootstrap.partition(":")[2])
    # 127.0.0.2 is this machine as well, but another address: a broker bound to all would answer.
    with socket.socket() as probe:
        probe.settimeout(2)
        assert probe.connect_ex(("127.0.0.2", port)) != 0


def test_a_taken_port_is_told(kafka: LocalKafka, tmp_path: Path) -> None:
    port = int(kafka.bootstrap.partition(":")[2])
    with pytest.raises(LocalKafkaError, match=f"port {port} on 127.0.0.1 is taken"):
        LocalKafka(tmp_path, port).start()


def test_nothing_is_up_in_an_empty_folder(tmp_path: Path) -> None:
    kafka = LocalKafka(tmp_path)
    assert kafka.status() is None
    kafka.stop()
    kafka.kill()
    with pytest.raises(LocalKafkaError, match="not up"):
        _ = kafka.bootstrap


def test_a_process_that_got_the_number_of_a_dead_broker_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kafka.json").write_text(json.dumps({"pid": os.getpid(), "port": 9092}))
    kafka = LocalKafka(tmp_path)
    assert kafka.status() is None
    kafka.kill()


def test_a_broker_that_cannot_start_shows_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=77\n")
    with pytest.raises(LocalKafkaError, match="(?s)exited at once.*77"):
        LocalKafka(tmp_path).start()


@pytest.mark.feature("J1")
@pytest.mark.slow
def test_kill_restart_stop_restart_keep_the_data(tmp_path: Path) -> None:
    kafka = LocalKafka(tmp_path)
    try:
        first = kafka.start()
        kafka.create_topic("kept", 1)
        produce(kafka, "kept", [b"before the kill"])
        kafka.kill()
        assert kafka.status() is None

        again = kafka.start()
        assert again.port == first.port
        assert again.pid != first.pid
        produce(kafka, "kept", [b"after the kill"])
        # As `magnetar kafka down` does: another handle, which did not start it.
        LocalKafka(tmp_path).stop()
        assert kafka.status() is None

        with LocalKafka(tmp_path) as third:
            assert consume(third, "kept", 2) == [b"before the kill", b"after the kill"]
    finally:
        kafka.kill()
