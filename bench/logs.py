"""The logs that the benchmarks fold. Each is the same in every run."""

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

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
    RedeliverUnacknowledgedMessages,
    Send,
    Subscribe,
    SubType,
    to_binary,
)
from schemas.effects import Message
from schemas.records import RECORD
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.ledger.ack_set import to_words

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
    count: int,
    type_: SubType,
    *,
    consumers: int = 1,
    keys: int = 0,
    holes: float = 0.0,
    nacked: float = 0.0,
    topics: int = TOPICS,
    cumulative: bool = False,
    messages: int = 1,
    others: Sequence[SubType] = (),
) -> pa.Table:
    """`count` publishes, each delivered to one of the `consumers` of each of the topic's subscriptions, and acknowledged alone, or by a
    `cumulative` ack.

    Subscriptions are of `type_` and of `others`. Of the messages, the share `holes` is acknowledged 200 messages later, and the share
    `nacked` is first asked for again. With `messages`, each publish is a SEND of a batch of so many, which a first ACK acknowledges half.
    The clients are simulated: they acknowledge what a broker really sends them, and grant permits as client libraries do.
    """
    dice = random.Random(7)
    content = bytes(PAYLOAD)
    log, brokers = _Log(), [Broker(number, NoEntries()) for number in range(PARTITIONS)]
    received: defaultdict[tuple[int, int], int] = defaultdict(int)
    late: defaultdict[int, list[tuple[int, MessageIdData]]] = defaultdict(list)
    types = [type_, *others]

    def say(number: int, now: int, command: AnyCommand | Publish) -> None:
        broker = brokers[number % PARTITIONS]
        value = log.say(number, now, command)
        broker.apply(broker.offset + 1, now, topic(number), command, value)

    def ack(number: int, now: int, consumer: int, position: MessageIdData) -> None:
        ids = [position]
        if messages > 1:
            left = to_words((1 << messages) - (1 << messages // 2))
            ids = [
                MessageIdData(ledgerId=position.ledgerId, entryId=position.entryId, ack_set=left),
                position,
            ]
        kind: Literal["Individual", "Cumulative"] = "Cumulative" if cumulative else "Individual"
        for each in ids:
            say(
                number, now,
                Ack(connection=f"c{consumer}", consumer_id=number, ack_type=kind, message_id=[each]),
            )  # fmt: skip

    for number in range(topics):
        if messages > 1:
            say(number, START, Producer(connection="p", producer_id=number, request_id=1, producer_name=f"p{number}"))  # fmt: skip
        for each in range(len(types) * consumers):
            subscribe = Subscribe(
                connection=f"c{each}", consumer_id=number, request_id=1, subscription="s" * (1 + each // consumers),
                subType=types[each // consumers], initialPosition="Earliest", consumer_name=f"consumer-{each}",
            )  # fmt: skip
            if types[each // consumers] == "Exclusive" and each % consumers:
                continue
            say(number, START, subscribe)
            say(number, START, Flow(connection=f"c{each}", consumer_id=number, messagePermits=PERMITS))
    for n in range(count):
        number, now = n % topics, START + n
        key = f"key-{dice.randrange(keys)}" if keys else None
        command: AnyCommand | Publish = Publish(
            producer=f"p{number}", sequence_id=n, payload_bytes=content, key=key
        )
        if messages > 1:
            metadata = MessageMetadata(
                f"p{number}", n * messages, now, partition_key=key, num_messages_in_batch=messages
            )
            command = Send(
                connection="p", producer_id=number, sequence_id=n * messages, num_messages=messages, metadata=metadata,
                highest_sequence_id=(n + 1) * messages - 1, payload_bytes=content,
            )  # fmt: skip
        say(number, now, command)
        acks = late[number][:1] if len(late[number]) > 200 * holes else []
        del late[number][: len(acks)]
        broker = brokers[number % PARTITIONS]
        while rows := broker.take():
            for row in rows:
                if not isinstance(row.effect, Message):
                    continue
                consumer = int(row.effect.connection[1:])
                before = received[number, consumer]
                received[number, consumer] = after = before + row.effect.messages
                if after // (PERMITS // 2) > before // (PERMITS // 2):
                    flow = Flow(connection=f"c{consumer}", consumer_id=number, messagePermits=PERMITS // 2)
                    say(number, now, flow)
                position = MessageIdData(ledgerId=row.effect.ledger_id, entryId=row.effect.entry_id)
                if nacked and not row.effect.redelivery_count and dice.random() < nacked:
                    again = RedeliverUnacknowledgedMessages(
                        connection=f"c{consumer}", consumer_id=number, message_ids=[position]
                    )
                    say(number, now, again)
                    continue
                (late[number] if dice.random() < holes else acks).append((consumer, position))
            for each, position in acks:
                ack(number, now, each, position)
            acks = []
        for each, position in acks:
            ack(number, now, each, position)
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
