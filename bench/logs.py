"""The logs that the benchmarks fold. Each is the same in every run."""

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.commands import (
    Ack,
    AnyCommand,
    BrokerConfig,
    Flow,
    MessageIdData,
    MessageMetadata,
    Producer,
    Publish,
    Send,
    Subscribe,
    SubType,
    to_binary,
)
from schemas.effects import Message
from schemas.records import RECORD
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries

TOPICS, PRODUCERS, PARTITIONS, PAYLOAD, PER_SECOND = 64, 1000, 16, 100, 1000
START = 1_700_000_000_000
PERMITS = 1000
DEDUPLICATED = BrokerConfig(settings={"brokerDeduplicationEnabled": True})


def topic(number: int) -> str:
    """The name of a topic."""
    return f"persistent://bench/load/topic-{number}"


def publishes(
    count: int, *, topics: int = TOPICS, producers: int = PRODUCERS, partitions: int = PARTITIONS, payload: int = PAYLOAD,
    per_second: int = PER_SECOND,
) -> pa.Table:  # fmt: skip
    """`count` plain publishes of `payload` bytes, `per_second` on all topics together, with deduplication. Each producer
    publishes on one topic."""
    dice = np.random.default_rng(7)
    producers = max(producers, topics)
    chosen = dice.integers(producers, size=count)
    order = np.argsort(chosen, kind="stable")
    starts = np.flatnonzero(np.diff(chosen[order], prepend=-1))
    sequence = np.empty(count, np.int64)
    sequence[order] = np.arange(count) - np.repeat(starts, np.diff(starts, append=count))
    content = bytes(payload)
    values = [
        to_binary(Publish(producer=f"producer-{producer}", sequence_id=id_, payload_bytes=content))
        for producer, id_ in zip(chosen.tolist(), sequence.tolist(), strict=True)
    ]
    names = np.array([topic(number) for number in range(topics)], object)
    on = chosen % topics
    return _table(
        np.concatenate((np.arange(partitions), on % partitions)),
        START + np.concatenate((np.zeros(partitions, int), np.arange(count) * 1000 // per_second)),
        [None] * partitions + names[on].tolist(),
        [to_binary(DEDUPLICATED)] * partitions + values,
    )


def sends(count: int, *, messages: int = 1, payload: int = PAYLOAD, topics: int = TOPICS) -> pa.Table:
    """`count` SENDs of connected producers, one a topic. Each entry is a batch of so many `messages`."""
    content = bytes(payload)
    log = _Log()
    for number in range(topics):
        log.say(
            number, START, Producer(connection=f"c{number}", producer_id=1, request_id=1, producer_name="p")
        )
    for n in range(count):
        number, first = n % topics, n // topics * messages
        highest = first + messages - 1
        metadata = MessageMetadata("p", first, START + n)
        if messages > 1:
            metadata.num_messages_in_batch, metadata.highest_sequence_id = messages, highest
        send = Send(
            connection=f"c{number}", producer_id=1, sequence_id=first, num_messages=messages, metadata=metadata,
            highest_sequence_id=highest if messages > 1 else None, payload_bytes=content,
        )  # fmt: skip
        log.say(number, START + n, send)
    return log.table()


def delivered(
    count: int, type_: SubType, *, consumers: int = 1, keys: int = 0, holes: float = 0.0, topics: int = TOPICS
) -> pa.Table:
    """`count` publishes, each delivered to one of the `consumers` of the topic's subscription and acknowledged alone.

    Of the messages, the share `holes` is acknowledged 200 messages later. The clients are simulated: they acknowledge what
    a broker really sends them, and grant permits as client libraries do.
    """
    dice = random.Random(7)
    content = bytes(PAYLOAD)
    log, brokers = _Log(), [Broker(number, NoEntries()) for number in range(PARTITIONS)]
    received: defaultdict[tuple[int, int], int] = defaultdict(int)
    late: defaultdict[int, list[tuple[int, MessageIdData]]] = defaultdict(list)

    def say(number: int, now: int, command: AnyCommand | Publish) -> None:
        broker = brokers[number % PARTITIONS]
        value = log.say(number, now, command)
        broker.apply(broker.offset + 1, now, topic(number), command, value)

    for number in range(topics):
        for consumer in range(consumers):
            subscribe = Subscribe(
                connection=f"c{consumer}", consumer_id=number, request_id=1, subscription="s", subType=type_,
                initialPosition="Earliest", consumer_name=f"consumer-{consumer}",
            )  # fmt: skip
            say(number, START, subscribe)
            say(number, START, Flow(connection=f"c{consumer}", consumer_id=number, messagePermits=PERMITS))
    for n in range(count):
        number, now = n % topics, START + n
        key = f"key-{dice.randrange(keys)}" if keys else None
        say(number, now, Publish(producer=f"p{number}", sequence_id=n, payload_bytes=content, key=key))
        acks = late[number][:1] if len(late[number]) > 200 * holes else []
        del late[number][: len(acks)]
        for row in brokers[number % PARTITIONS].take():
            if isinstance(row.effect, Message):
                consumer = int(row.effect.connection[1:])
                received[number, consumer] += 1
                if received[number, consumer] % (PERMITS // 2) == 0:
                    say(
                        number,
                        now,
                        Flow(connection=f"c{consumer}", consumer_id=number, messagePermits=PERMITS // 2),
                    )
                ack = consumer, MessageIdData(ledgerId=row.effect.ledger_id, entryId=row.effect.entry_id)
                (late[number] if dice.random() < holes else acks).append(ack)
        for consumer, position in acks:
            say(
                number, now,
                Ack(connection=f"c{consumer}", consumer_id=number, ack_type="Individual", message_id=[position]),
            )  # fmt: skip
    return log.table()


class _Log:
    """Records as they come."""

    def __init__(self) -> None:
        self._columns: tuple[list[Any], ...] = ([], [], [], [])

    def say(self, number: int, now: int, command: AnyCommand | Publish) -> bytes:
        """Add a command on a topic. Returns its value."""
        value = to_binary(command)
        for column, each in zip(self._columns, (number % PARTITIONS, now, topic(number), value), strict=True):
            column.append(each)
        return value

    def table(self) -> pa.Table:
        partition, timestamps, topics, values = self._columns
        return _table(np.array(partition), np.array(timestamps), topics, values)


def _table(partition: Any, timestamps: Any, topics: Any, values: list[bytes]) -> pa.Table:
    order = np.argsort(partition, kind="stable")
    starts = np.flatnonzero(np.diff(partition[order], prepend=-1))
    offset = np.empty(len(partition), np.int64)
    offset[order] = np.arange(len(partition)) - np.repeat(starts, np.diff(starts, append=len(partition)))
    columns = [partition.astype(np.int32), offset, timestamps, topics, values]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD, strict=True)]
    return pa.Table.from_arrays(arrays, schema=RECORD)
