import pickle
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaConsumer

from schemas.effect_fields import AdminResponseFields
from schemas.effects import (
    AdminResponse,
    CursorMoved,
    Effect,
    Message,
    SendReceipt,
    Success,
    Unsupported,
)
from schemas.entries import EntryNotFound
from sinks.kafka import KafkaResponses, ResponsesNotSent, drop_repeats, read_responses
from sinks.ledger_store import LedgerStore
from streaming.kafka.local import LocalKafka
from tests.sinks.helpers import TOPIC, closed, metadata_of, output, payload_of, receipt, receipts


def message(ledger_id: int, entry_id: int, connection: str = "c1") -> Message:
    return Message(TOPIC, connection, 1, "sub", ledger_id, entry_id, 1, 40, 0)


@dataclass
class Record:
    partition: int
    headers: list[tuple[str, bytes]]


def record(kafka_partition: int, partition: int, batch: int, offset: int, ordinal: int) -> Record:
    said = {"batch": batch, "partition": partition, "offset": offset, "ordinal": ordinal}
    return Record(kafka_partition, [(f"magnetar.{k}", str(v).encode()) for k, v in said.items()])


@pytest.mark.feature("J2", "J5")
@given(st.data())
def test_repeats_are_dropped_wherever_attempts_were_cut(data: st.DataObject) -> None:
    """Attempts of a batch send its rows in order, but for the last one perhaps not all of them; a task that was given
    up may still send when the next batch is under way. Rows of several ingress partitions mix."""
    batches = {p: [[record(0, p, b, 4 * b + o, n) for o in range(4) for n in range(2)] for b in range(2)] for p in (0, 1)}  # fmt: skip
    streams = []
    for first, second in batches.values():
        stream = []
        for rows in (first, second):
            for _ in range(data.draw(st.integers(0, 2))):
                kept = data.draw(st.sets(st.integers(0, len(rows) - 1)))
                stream += [row for i, row in enumerate(rows) if i in kept]
            # What a failed attempt left out comes late; then nothing more is promised than that it comes.
            stream += rows
        streams.append(stream + data.draw(st.lists(st.sampled_from(first), max_size=3)))
    mixed: list[Record] = []
    while any(streams):
        mixed.append(data.draw(st.sampled_from([s for s in streams if s])).pop(0))
    found = list(drop_repeats(mixed))
    for first, second in batches.values():
        own = [r for r in found if r in first or r in second]
        assert len(own) == len(first) + len(second)
        assert all(row in own[: len(first)] for row in first)


@pytest.fixture
def topic(kafka: LocalKafka) -> str:
    name = f"responses-{uuid4().hex}"
    kafka.create_topic(name, 3)
    return name


def read(kafka: LocalKafka, topic: str, count: int) -> list[dict[str, Any]]:
    """The first `count` responses, and that there are no more."""
    found = list(read_responses(kafka.bootstrap, topic, timeout=0.01))
    assert len(found) == count
    return sorted(found, key=lambda value: value["offset"])


@pytest.mark.feature("J5")
@pytest.mark.kafka
def test_answers_go_to_their_connections_in_order(kafka: LocalKafka, topic: str) -> None:
    effects: list[Effect] = [
        *(Success(TOPIC, f"connection {i % 3}", i) for i in range(30)),
        Success(TOPIC, "", 99),  # no client waits for it
        Unsupported(TOPIC, "connection 1", "transactions"),
        CursorMoved(TOPIC, "sub", 1, 0, 1, 1, 1, "skip"),
        AdminResponse(None, "é", "done", AdminResponseFields(status=200, response={"a": [1, None]})),
    ]
    sink: KafkaResponses = pickle.loads(pickle.dumps(KafkaResponses(kafka.bootstrap, topic)))
    sink.begin(0)
    sink.write(0, 7, output(effects, partition=7))
    found = read(kafka, topic, 31)
    assert [r.get("request_id") for r in found] == [*range(30), None]
    assert found[0] == {
        "partition": 7, "offset": 0, "ordinal": 0, "clock": 1000, "kind": "SUCCESS", "topic": TOPIC,
        "connection": "connection 0", "request_id": 0,
    }  # fmt: skip
    assert found[-1]["fields"] == {"status": 200, "response": {"a": [1, None]}}

    consumer = KafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=1500
    )
    records = list(consumer)
    consumer.close()
    for key in (b"connection 0", b"connection 1", b"connection 2"):
        own = [r for r in records if r.key == key]
        assert len({r.partition for r in own}) == 1
        assert [msgspec.json.decode(r.value)["offset"] for r in own] == sorted(range(int(key[-1:]), 30, 3))
    assert dict(records[0].headers).keys() == {
        f"magnetar.{name}" for name in ("batch", "partition", "offset", "ordinal")
    }


@pytest.mark.feature("J2", "J5")
@pytest.mark.kafka
def test_a_rerun_sends_repeats_that_the_reader_drops(kafka: LocalKafka, topic: str) -> None:
    sink = KafkaResponses(kafka.bootstrap, topic)
    half = output([Success(TOPIC, "c", i) for i in range(5)])
    sink.write(0, 0, half)
    for _ in range(2):
        sink.write(0, 0, output([Success(TOPIC, "c", i) for i in range(10)]))
    sink.write(1, 0, output([Success(TOPIC, "c", 10)], offset=10))
    assert [r["request_id"] for r in read(kafka, topic, 11)] == list(range(11))


@pytest.mark.feature("J5")
@pytest.mark.kafka
def test_the_documented_consumer(kafka: LocalKafka, topic: str, tmp_path: Path) -> None:
    """The program in docs/reference/outputs.md, as it stands, reads what the documents promise, and drops repeats."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "outputs.md").read_text()
    (program,) = re.findall(r"```python\n(import base64.*?)```", text, re.DOTALL)
    for name, own in (('"responses"', repr(topic)), ("127.0.0.1:9092", kafka.bootstrap)):
        assert name in program
        program = program.replace(name, own)

    store = LedgerStore(str(tmp_path))
    sink = KafkaResponses(kafka.bootstrap, topic, store=store)
    short_form = receipt(1, 0)._replace(connection="", producer_id=None)
    rows = output(
        [
            short_form,
            Success(TOPIC, "c1", 1),
            message(1, 0),
            receipt(1, 1, connection="c2"),
            message(1, 1, "c2"),
        ]
    )
    store.write(0, 0, rows)
    for _ in range(2):
        sink.write(0, 0, rows)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    printed = [
        f"{connection} 1 {entry} {payload_of(TOPIC, 1, entry).decode()}"
        for connection, entry in (("c1", 0), ("c2", 1))
    ]
    assert sorted(done.stdout.splitlines()) == printed
    kinds = [answer["kind"] for answer in read_responses(kafka.bootstrap, topic, timeout=0.01)]
    assert sorted(kinds) == ["MESSAGE", "MESSAGE", "SEND_RECEIPT", "SUCCESS"]


@pytest.mark.feature("B3", "J5")
@pytest.mark.kafka
def test_messages_carry_their_entries(kafka: LocalKafka, topic: str, tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path))
    sink = KafkaResponses(kafka.bootstrap, topic, store=store)
    store.write(0, 0, output([*receipts(1, 0, 4), closed(1, 5), *receipts(2, 0, 1)]))
    effects: list[Effect] = [
        message(1, 3),
        message(2, 0),
        receipt(2, 2, connection="p1"),
        message(2, 2),
        message(1, 3, "c2"),  # two subscriptions
    ]
    rows = output(effects, offset=50)
    sink.write(1, 0, rows)  # before the store has the batch's entries, or after: the same
    first, second, sent, third, again = read(kafka, topic, 5)
    for value, ledger_id, entry_id in ((first, 1, 3), (second, 2, 0), (third, 2, 2), (again, 1, 3)):
        assert value["payload"] == payload_of(TOPIC, ledger_id, entry_id)
        metadata = metadata_of(TOPIC, ledger_id, entry_id)
        assert msgspec.convert(value["metadata"], type(metadata)) == metadata
    assert sent["kind"] == "SEND_RECEIPT"
    assert not {"payload", "metadata"} & sent.keys()


def test_a_message_that_can_not_be_found_is_an_error(tmp_path: Path) -> None:
    rows = output([message(1, 3)])
    with pytest.raises(EntryNotFound, match="give KafkaResponses a store"):
        KafkaResponses("127.0.0.1:1", "t").write(0, 0, rows)
    with pytest.raises(EntryNotFound):
        KafkaResponses("127.0.0.1:1", "t", store=LedgerStore(str(tmp_path))).write(0, 0, rows)


def test_nothing_to_send_needs_no_broker() -> None:
    duplicate = SendReceipt(TOPIC, "", None, "p", 3, None, -1, -1, "duplicate")
    KafkaResponses("127.0.0.1:1", "t").write(0, 0, output([duplicate, closed(1, 0)]))


@pytest.mark.kafka
def test_a_missing_topic_is_an_error_that_says_what_to_do(kafka: LocalKafka, topic: str) -> None:
    with pytest.raises(ResponsesNotSent, match=rf"{kafka.bootstrap}.*'no-such-topic'.*topic exists"):
        KafkaResponses(kafka.bootstrap, "no-such-topic").begin(0)
    KafkaResponses(kafka.bootstrap, topic).begin(0)


@pytest.mark.kafka
def test_a_record_that_kafka_refuses_fails_the_write_and_the_next_one_works(
    kafka: LocalKafka, topic: str
) -> None:
    small = f"{topic}-small"
    kafka.create_topic(small, 1, {"max.message.bytes": "1000"})
    rows = output([Success(TOPIC, "c" * 2000, 1)])
    with pytest.raises(ResponsesNotSent, match="MessageSizeTooLarge"):
        KafkaResponses(kafka.bootstrap, small).write(0, 0, rows)
    KafkaResponses(kafka.bootstrap, topic).write(0, 0, rows)
    assert len(read(kafka, topic, 1)) == 1


@pytest.mark.kafka
def test_a_topic_that_takes_only_small_batches(kafka: LocalKafka, topic: str) -> None:
    small = f"{topic}-small-batches"
    kafka.create_topic(small, 1, {"max.message.bytes": "5000"})
    KafkaResponses(kafka.bootstrap, small).write(0, 0, output([Success(TOPIC, "c", n) for n in range(200)]))
    assert [value["request_id"] for value in read(kafka, small, 200)] == list(range(200))


@pytest.mark.kafka
def test_a_record_that_kafka_refuses_among_others_fails_the_write(kafka: LocalKafka, topic: str) -> None:
    """The batch is split until the record is alone."""
    small = f"{topic}-one-too-large"
    kafka.create_topic(small, 1, {"max.message.bytes": "2000"})
    rows = output([Success(TOPIC, "c" * 3000 if n == 20 else "c", n) for n in range(40)])
    with pytest.raises(ResponsesNotSent, match="MessageSizeTooLarge"):
        KafkaResponses(kafka.bootstrap, small).write(0, 0, rows)


@pytest.mark.feature("J5")
@pytest.mark.kafka
def test_large_payloads_and_many_rows(kafka: LocalKafka, topic: str) -> None:
    large = receipt(1, 0)._replace(payload=bytes(range(256)) * 4 * 5 * 1024)  # 5 MiB
    effects: list[Effect] = [large, message(1, 0), *(Success(TOPIC, "c1", i) for i in range(10_000))]
    KafkaResponses(kafka.bootstrap, topic).write(0, 0, output(effects))
    found = read(kafka, topic, 10_001)
    assert found[0]["payload"] == large.payload


@pytest.mark.kafka
def test_a_response_that_is_too_large_stops_nobody(kafka: LocalKafka, topic: str) -> None:
    """Another one that says so comes in its place, and the others as they are."""
    topics = {f"persistent://public/default/{'n' * 3900}-partition-{number}": 1 for number in range(6000)}
    large = AdminResponse(
        None, "admin", "GET /namespaces/public/default/topics", AdminResponseFields(200, [*topics])
    )
    entry = receipt(1, 0)._replace(payload=bytes(16 << 20))
    effects: list[Effect] = [
        entry,
        Success(TOPIC, "c1", 1),
        large,
        message(1, 0),
        Success(TOPIC, "c" * (15 << 20), 2),
    ]
    KafkaResponses(kafka.bootstrap, topic).write(0, 0, output(effects))
    found = read(kafka, topic, 4)
    kinds = [each["kind"] for each in found]
    assert sorted(kinds) == ["ADMIN_RESPONSE", "CLOSE_CONNECTION", "SUCCESS", "SUCCESS"]
    (told,) = [each for each in found if each["kind"] == "ADMIN_RESPONSE"]
    assert told["fields"]["status"] == 500
    assert "bytes, and the response topic takes 16,760,832" in told["fields"]["response"]["reason"]
    assert told["connection"] == "admin"
    (closed,) = [each for each in found if each["kind"] == "CLOSE_CONNECTION" and each["connection"] == "c1"]
    assert closed["topic"] == TOPIC
