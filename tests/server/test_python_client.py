"""The official Python client, unchanged, on both engines."""

import asyncio
import re
import threading
import time
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from schemas.commands import Admin
from streaming.protocol.codec import FrameReader, decode, encode
from streaming.server.clock import HeldClock
from tests.server.conftest import PROFILE, Configured, Running, running

pytestmark = pytest.mark.feature("K1", "K2")

TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
]
WAIT = 60_000
"""ms to wait for a message that must come."""


def received(consumer: Any, count: int) -> list[bytes]:
    """The next `count` messages, acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def payloads(count: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(count)]


def admin(broker: Running, method: Any, path: str, body: Any = None) -> Any:
    topic = None
    if path.startswith("/persistent/") and not path.endswith("/partitions"):
        topic = "persistent://" + "/".join(path.split("/")[2:5])
    (row,) = [
        row.effect.fields
        for row in broker.call(
            lambda: broker.engine.submit(topic, Admin(method=method, path=path, body=body))
        )
        if type(row.effect).__name__ == "AdminResponse"
    ][:1]
    assert row.status < 300, row
    return row.response


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_subscription_types(client: Any, topic: str, type_: Any) -> None:
    consumer = client.subscribe(topic, "s", type_)
    producer = client.create_producer(topic, batching_enabled=False)
    for number, payload in enumerate(payloads(20)):
        producer.send(payload, partition_key=str(number % 3))
    assert received(consumer, 20) == payloads(20)


def test_shared_subscriptions_divide_the_messages(client: Any, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=5) for _ in "ab"
    ]
    producer = client.create_producer(topic, batching_enabled=False)
    for payload in payloads(10):
        producer.send(payload)
    assert sorted(received(consumers[0], 5) + received(consumers[1], 5)) == payloads(10)


def test_key_shared_keeps_each_key_with_one_consumer(client: Any, topic: str) -> None:
    of_key: defaultdict[str, set[int]] = defaultdict(set)
    counts: Counter[str] = Counter()
    all_done = threading.Event()

    def listener(number: int) -> Any:
        def listen(consumer: Any, message: Any) -> None:
            of_key[message.partition_key()].add(number)
            counts[message.partition_key()] += 1
            consumer.acknowledge(message)
            if counts.total() == 30:
                all_done.set()

        return listen

    for number in range(3):
        client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, message_listener=listener(number))
    last = client.subscribe(topic, "all")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased
    )
    for number in range(30):
        producer.send_async(b"x", None, partition_key=f"key {number % 6}")
    producer.flush()
    received(last, 30)
    assert all_done.wait(WAIT / 1000)
    assert all(len(consumers) == 1 for consumers in of_key.values())
    assert set(counts.values()) == {5}


@pytest.mark.parametrize(
    "compression",
    [
        pulsar.CompressionType.NONE,
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
    ids=str,
)
def test_batches_and_compression(client: Any, topic: str, compression: Any) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, compression_type=compression, batching_enabled=True)
    for payload in payloads(50):
        producer.send_async(payload, None)
    producer.flush()
    assert received(consumer, 50) == payloads(50)


@pytest.mark.parametrize("batching", [True, False])
def test_batching(client: Any, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_publish_delay_ms=60_000)
    for payload in payloads(10):
        producer.send_async(payload, None)
    producer.flush()
    messages = [consumer.receive(WAIT) for _ in range(10)]
    assert [message.data() for message in messages] == payloads(10)
    entries = {(message.message_id().ledger_id(), message.message_id().entry_id()) for message in messages}
    assert len(entries) == (1 if batching else 10)


def test_a_chunked_message(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    large = bytes(range(256)) * (6 << 12)  # 6 MiB: two chunks
    producer.send(large)
    assert received(consumer, 1) == [large]


def test_partitioned_topics(broker: Running, client: Any, topic: str) -> None:
    admin(broker, "PUT", f"/{topic.replace('://', '/')}/partitions", 3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(3)]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for payload in payloads(9):
        producer.send(payload)
    assert sorted(received(consumer, 9)) == payloads(9)


def test_keys_and_turns_route_to_partitions(broker: Running, client: Any, topic: str) -> None:
    admin(broker, "PUT", f"/{topic.replace('://', '/')}/partitions", 4)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    turns: Counter[int] = Counter()
    of_key: defaultdict[str, set[int]] = defaultdict(set)
    for number in range(12):
        turns[producer.send(b"turn").partition()] += 1
        key = f"key {number % 6}"
        of_key[key].add(producer.send(b"key", partition_key=key).partition())
    assert turns == dict.fromkeys(range(4), 3)
    assert all(len(partitions) == 1 for partitions in of_key.values())
    assert len(set.union(*of_key.values())) > 1
    assert sorted(received(consumer, 24)) == [b"key"] * 12 + [b"turn"] * 12


def test_pattern_and_multi_topic_consumers(client: Any, topic: str) -> None:
    names = [f"{topic}-{letter}" for letter in "ab"]
    producers = [client.create_producer(name) for name in names]
    by_pattern = client.subscribe(re.compile(f"{topic}-.*"), "pattern")
    by_list = client.subscribe(names, "list")
    for producer in producers:
        producer.send(producer.topic()[-1:].encode())
    assert sorted(received(by_pattern, 2)) == sorted(received(by_list, 2)) == [b"a", b"b"]


def test_access_modes(client: Any, topic: str) -> None:
    first = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    waiting: list[Any] = []
    mode = pulsar.ProducerAccessMode.WaitForExclusive
    thread = threading.Thread(target=lambda: waiting.append(client.create_producer(topic, access_mode=mode)))
    thread.start()
    first.close()
    thread.join(WAIT / 1000)
    waiting[0].send(b"x")
    fencing = pulsar.ProducerAccessMode.ExclusiveWithFencing
    if PROFILE == "2.10":  # it takes that for Shared
        with pytest.raises(pulsar.ProducerBusy):
            client.create_producer(topic, access_mode=fencing)
        return
    client.create_producer(topic, access_mode=fencing).send(b"y")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)


@pytest.mark.feature("E8")
def test_negative_acks_and_dead_letters(client: Any, topic: str) -> None:
    dead = client.subscribe(f"{topic}-dead", "s")
    consumer = client.subscribe(
        topic,
        "s",
        pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=1,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "initial"),
    )
    client.create_producer(topic, batching_enabled=False).send(b"bad")
    for count in range(3):
        message = consumer.receive(WAIT)
        assert (message.data(), message.redelivery_count()) == (b"bad", count)
        consumer.negative_acknowledge(message)
    assert received(dead, 1) == [b"bad"]


@pytest.mark.slow
def test_the_ack_timeout(client: Any, topic: str) -> None:
    """Ten seconds is the shortest that this client takes."""
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    client.create_producer(topic).send(b"x")
    assert consumer.receive(WAIT).redelivery_count() == 0
    assert consumer.receive(WAIT).redelivery_count() == 1


def test_messages_that_a_consumer_wants_again(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    client.create_producer(topic).send(b"x")
    consumer.receive(WAIT)
    consumer.redeliver_unacknowledged_messages()
    assert consumer.receive(WAIT).redelivery_count() == 1


def test_cumulative_acks(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for payload in payloads(5):
        producer.send(payload)
    messages = [consumer.receive(WAIT) for _ in range(5)]
    consumer.acknowledge_cumulative(messages[2])
    consumer.close()
    assert received(client.subscribe(topic, "s"), 2) == payloads(5)[3:]


def test_acks_of_messages_in_a_batch(configured: Configured, topic: str) -> None:
    with configured(acknowledgmentAtBatchIndexLevelEnabled=True) as broker, broker.client() as client:
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
        producer = client.create_producer(topic, batching_enabled=True)
        for payload in payloads(4):
            producer.send_async(payload, None)
        producer.flush()
        messages = [consumer.receive(WAIT) for _ in range(4)]
        consumer.acknowledge(messages[1])
        consumer.acknowledge(messages[3])
        consumer.close()
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
        assert received(consumer, 2) == [payloads(4)[0], payloads(4)[2]]


def test_a_delayed_message_comes_when_its_time_has_come(topic: str) -> None:
    clock = HeldClock(1_700_000_000_000)
    with running(clock=clock, delayedDeliveryTickTimeMillis=1) as broker, broker.client() as client:
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False)
        producer.send(b"late", deliver_at=clock.now() + 86_400_000)
        producer.send(b"now")
        assert received(consumer, 1) == [b"now"]

        def tomorrow() -> Any:
            clock.move_to(clock.now() + 86_400_000)
            return broker.engine.tick()

        broker.call(tomorrow)
        assert received(consumer, 1) == [b"late"]


def test_a_delayed_message(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send_async(b"late", None, deliver_after=timedelta(seconds=2))
    producer.send(b"now")
    assert received(consumer, 2) == [b"now", b"late"]


def test_seek(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(payload) for payload in payloads(5)]
    assert received(consumer, 5) == payloads(5)
    consumer.seek(ids[3])
    assert received(consumer, 1) == payloads(5)[4:]
    consumer.seek(pulsar.MessageId.earliest)
    assert received(consumer, 5) == payloads(5)
    time.sleep(0.01)
    now = int(1000 * time.time())
    producer.send(b"later")
    consumer.seek(now)
    assert received(consumer, 1) == [b"later"]


def test_a_reader(client: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    for payload in payloads(3):
        producer.send(payload)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(WAIT).data())
    assert found == payloads(3)


def test_a_table_view(client: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"1", partition_key="a")
    producer.send(b"2", partition_key="a")
    producer.send(b"3", partition_key="b")
    view = client.create_table_view(topic)
    assert (view.get("a"), view.get("b"), len(view)) == (b"2", b"3", 2)


@pytest.mark.feature("C4")
def test_a_compacted_topic(broker: Running, client: Any, topic: str) -> None:
    path = topic.replace("persistent://", "/persistent/")
    producer = client.create_producer(topic)
    for key, payload in [("a", b"1"), ("b", b"2"), ("a", b"3")]:
        producer.send(payload, partition_key=key)
    admin(broker, "PUT", f"{path}/compaction")
    assert admin(broker, "GET", f"{path}/compaction")["status"] == "SUCCESS"
    producer.send(b"4", partition_key="c")
    for compacted, expected in ((True, [b"2", b"3", b"4"]), (False, [b"1", b"2", b"3", b"4"])):
        reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
        assert [reader.read_next(WAIT).data() for _ in expected] == expected
        assert not reader.has_message_available()
        reader.close()


class Person(pulsar.schema.Record):  # type: ignore[misc]
    name = pulsar.schema.String()
    age = pulsar.schema.Integer()


@pytest.mark.parametrize(
    "schema", [pulsar.schema.JsonSchema(Person), pulsar.schema.StringSchema()], ids=["json", "text"]
)
def test_schemas(client: Any, topic: str, schema: Any) -> None:
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema)
    sent = "text" if isinstance(schema, pulsar.schema.StringSchema) else Person(name="Ada", age=36)
    producer.send(sent)
    found = consumer.receive(WAIT).value()
    assert (found if isinstance(sent, str) else (found.name, found.age)) == (
        sent if isinstance(sent, str) else ("Ada", 36)
    )


def test_a_schema_is_fetched_with_its_properties(broker: Running, topic: str) -> None:
    """As Java's AUTO_CONSUME fetches one that a Java producer has registered."""
    properties = [{"key": "a", "value": "b"}]
    schema = {"name": "s", "schema_data": b"[]", "type": "Json", "properties": properties}

    async def fetch() -> Any:
        reader, writer = await asyncio.open_connection(*broker.server.address)
        writer.write(encode("CONNECT", {"client_version": "test", "protocol_version": 21}))
        writer.write(encode("PRODUCER", {"request_id": 3, "producer_id": 1, "topic": topic}))
        writer.write(encode("GET_OR_CREATE_SCHEMA", {"request_id": 4, "topic": topic, "schema": schema}))
        writer.write(encode("GET_SCHEMA", {"request_id": 5, "topic": topic}))
        frames = FrameReader()
        while True:
            for data in frames.feed(await reader.read(1 << 16)):
                if (found := decode(data)).cmd == "GET_SCHEMA_RESPONSE":
                    writer.close()
                    return found.fields

    name = topic.removeprefix("persistent://")  # 4.0.7 does not show the one that the client gave
    assert broker.call(fetch)["schema"] == {**schema, "name": name}


def test_deduplication(configured: Configured, topic: str) -> None:
    with configured(brokerDeduplicationEnabled=True) as broker, broker.client() as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
        for number, payload in enumerate(payloads(3)):
            producer.send(payload, sequence_id=number + 1)
        producer.close()
        producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
        assert producer.last_sequence_id() == 3
        for number, payload in enumerate(payloads(5)):
            producer.send(payload, sequence_id=number + 1)
        assert received(consumer, 5) == payloads(5)


def test_a_producer_that_reconnects_sends_again(configured: Configured, topic: str) -> None:
    """Its topic is unloaded in mid traffic: nothing is lost, and nothing is there twice."""
    with configured(brokerDeduplicationEnabled=True) as broker, broker.client() as client:
        client.subscribe(topic, "s").close()  # keeps the messages
        producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        stored: list[bytes] = []

        def sent(payload: bytes) -> Any:
            return lambda result, _: stored.append(payload) if result == pulsar.Result.Ok else None

        for payload in payloads(100):
            producer.send_async(payload, sent(payload))
            if payload in payloads(100)[30::30]:
                admin(broker, "PUT", f"/{topic.replace('://', '/')}/unload")
        producer.flush()
        assert stored == payloads(100)
        stats = admin(broker, "GET", f"/{topic.replace('://', '/')}/internalStats")
        assert stats["numberOfEntries"] == 100
        assert received(client.subscribe(topic, "s"), 100) == payloads(100)


def test_a_non_persistent_topic(client: Any, topic: str) -> None:
    topic = topic.replace("persistent://", "non-persistent://")
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    assert consumer.receive(WAIT).data() == b"x"
