"""Dead letters on a real Kafka."""

import pickle
from typing import Any
from uuid import uuid4

import pytest

from schemas.effects import Effect, Quarantined, Success
from sinks.dead_letters import DeadLettersNotSent, KafkaDeadLetters, read_dead_letters
from streaming.kafka.local import LocalKafka
from tests.sinks.helpers import TOPIC, output, receipts

pytestmark = [pytest.mark.kafka, pytest.mark.feature("J6")]


def make_topic(kafka: LocalKafka, partitions: int = 3, **config: str) -> str:
    name = f"dead-letters-{uuid4().hex}"
    kafka.create_topic(name, partitions, {key.replace("_", "."): value for key, value in config.items()})
    return name


def letters(kafka: LocalKafka, topic: str) -> list[tuple[bytes | None, bytes, dict[str, str]]]:
    """Key, value and headers of all letters, by ingress partition and offset. A slow broker takes longer than any timeout
    to answer, and is still read to its end."""
    found = [
        (each.key, each.value, {name.removeprefix("magnetar."): text.decode() for name, text in each.headers})
        for each in read_dead_letters(kafka.bootstrap, topic, timeout=0.01)
    ]
    return sorted(found, key=lambda letter: [int(letter[2][name]) for name in ("partition", "offset")])


def shipped(sink: KafkaDeadLetters, batch_id: int) -> KafkaDeadLetters:
    """As a task gets it."""
    sink.begin(batch_id)
    copy: KafkaDeadLetters = pickle.loads(pickle.dumps(sink))
    return copy


def test_a_letter_is_the_record_as_it_came_with_what_is_wrong(kafka: LocalKafka) -> None:
    topic = make_topic(kafka)
    effects: list[Effect] = [
        *receipts(1, 0, 1),
        Quarantined("tópico", "malformed", "unexpected énd", b'{"a"\xff'),
        Success(TOPIC, "c", 1),
        Quarantined(None, "no_topic", "the command needs a topic", b""),
    ]
    shipped(KafkaDeadLetters(kafka.bootstrap, topic), 4).write(4, 5, output(effects, partition=5, offset=40))
    identity: dict[str, Any] = {"batch": "4", "partition": "5", "ordinal": "0"}
    assert letters(kafka, topic) == [
        ("tópico".encode(), b'{"a"\xff', {**identity, "offset": "42", "rule": "malformed", "cause": "unexpected énd",
                                          "topic": "tópico"}),
        (None, b"", {**identity, "offset": "44", "rule": "no_topic", "cause": "the command needs a topic"}),
    ]  # fmt: skip


@pytest.mark.feature("J2")
def test_a_repeated_batch_leaves_each_letter_once(kafka: LocalKafka) -> None:
    """Attempts that were cut, from tasks of several processes, with and without a key."""
    topic = make_topic(kafka)

    def rows(partition: int, count: int, offset: int = 0) -> Any:
        bad = [Quarantined(None if n % 2 else f"t{n}", "malformed", "no", b"%d" % n) for n in range(count)]
        return output(bad, partition=partition, offset=offset)

    for partition in (0, 1, 4):  # 1 and 4 share a Kafka partition
        for count in (7, 20, 20):
            shipped(KafkaDeadLetters(kafka.bootstrap, topic), 0).write(0, partition, rows(partition, count))
        shipped(KafkaDeadLetters(kafka.bootstrap, topic), 1).write(1, partition, rows(partition, 3, 20))
    found = [(headers["partition"], headers["offset"]) for _, _, headers in letters(kafka, topic)]
    assert found == [(str(partition), str(offset)) for partition in (0, 1, 4) for offset in range(23)]


def test_what_is_too_large_goes_without_its_value(kafka: LocalKafka) -> None:
    """A record that the topic doesn't take must not stop the query."""
    topic = make_topic(kafka, max_message_bytes="40000")
    effects = [
        Quarantined("t", "malformed", "small", b"x" * 30_000),
        Quarantined("t", "malformed", "large", b"x" * 40_000),
        Quarantined("é" * 30_000, "input.RECORD/topic_length", "é" * 30_000, b"{}"),
    ]
    shipped(KafkaDeadLetters(kafka.bootstrap, topic), 0).write(0, 0, output(effects))
    small, large, name = letters(kafka, topic)
    assert (len(small[1]), "size" in small[2]) == (30_000, False)
    assert (large[:2], large[2]["size"]) == ((b"t", b""), "40000")
    assert name[:2] == (None, b"")
    assert name[2]["topic"] == name[2]["cause"] == "é" * 4096


def test_a_missing_topic_is_told_before_the_first_batch(kafka: LocalKafka) -> None:
    with pytest.raises(DeadLettersNotSent, match="did not take dead letters for topic 'no-such-topic'"):
        KafkaDeadLetters(kafka.bootstrap, "no-such-topic").begin(0)


def test_without_bad_records_no_broker_is_needed() -> None:
    KafkaDeadLetters("127.0.0.1:1", "t").write(0, 0, output(receipts(1, 0, 3)))
