"""What the clients of a log did with what they got: which delivery each ack answered, and how long it took.

One ingress partition is folded as it is. Records are known by their offsets, messages by their number in their topic (see
`streaming.answers.whatif.observed`), consumers and producers by their connection and id.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from schemas import commands as c
from schemas import effects as e
from schemas.commands import Decoded, command_in
from streaming.answers.fates import deletes, loses_writes
from streaming.answers.whatif.put_off import PutOffWrites, pending_writes
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.position import Position, from_wire
from streaming.log.positions import WrittenEntries, WrittenEntry
from streaming.quality.gate import judge

PIECE = 1 << 13
"""Records are decoded so many at a time."""

ConsumerKey = tuple[str, str, int]
"""Topic, connection, and the client's number for it."""

Sender = tuple[str, str, int | str]
"""Topic, connection, and the client's number for the producer; or topic, nothing, and its name in the short form."""

ACK, CUMULATIVE, NACK = range(3)


class Action(NamedTuple):
    """What a client did with a delivery: `delay` ms after it, with the record at `offset`. `named`: the id as the command
    had it; None for messages that a cumulative ack covered."""

    delay: int
    offset: int
    kind: int
    named: c.MessageIdData | None


class Taken(NamedTuple):
    """When the application took a delivery, by the FLOW at `offset` that gave its permits back."""

    delay: int
    offset: int


class DeliveryTo:
    """A delivery of a message to a consumer at `clock` (ms)."""

    __slots__ = ("actions", "clock", "consumer", "messages", "taken")

    def __init__(self, consumer: ConsumerKey, clock: int, messages: int) -> None:
        self.consumer, self.clock, self.messages = consumer, clock, messages
        self.taken: Taken | None = None
        self.actions: list[Action] = []


class ConsumerHabits:
    """How a consumer acked and gave permits: its acked deliveries, those it took, and its smallest FLOW after the first."""

    def __init__(self) -> None:
        self.acked: list[DeliveryTo] = []
        self.took: list[DeliveryTo] = []
        self.smallest_flow = 0
        self.started = False
        self.untaken: deque[DeliveryTo] = deque()


class SubscriptionHistory:
    """The deliveries of each message, in order, and those that wait for an ack."""

    def __init__(self) -> None:
        self.deliveries: dict[int, list[DeliveryTo]] = defaultdict(list)
        self.waiting: dict[int, DeliveryTo] = {}
        self.acked: list[DeliveryTo] = []


class MessagePositions:
    """Where the messages of a topic are in a run, by their numbers in the log: what `translate` asks of `WrittenEntries`.

    Messages that are sent again come later than their numbers say.
    """

    def __init__(self) -> None:
        self.publishes = 0
        self._ledgers, self._entries = array("q"), array("q")
        self._written = WrittenEntries()
        self._numbers = array("q")

    def add(self, number: int, position: Position) -> None:
        """A message is stored. Of two entries of one message, the first counts."""
        grown = number + 1 - len(self._ledgers)
        if grown > 0:
            self._ledgers.extend([-1] * grown)
            self._entries.extend([-1] * grown)
        self._written.add(len(self._numbers), position)
        self._numbers.append(number)
        if self._ledgers[number] < 0:
            self._ledgers[number], self._entries[number] = position

    def number_at(self, position: Position) -> int | None:
        """The number of the message at a position."""
        found = self._written.at(position)
        return None if found is None else self._numbers[found.number]

    def position_of(self, number: int) -> Position | None:
        """Where a message is."""
        if number >= len(self._ledgers) or self._ledgers[number] < 0:
            return None
        return Position(self._ledgers[number], self._entries[number])

    def last_up_to(self, number: int) -> WrittenEntry | None:
        """See `WrittenEntries.last_up_to`."""
        for each in range(min(number, len(self._ledgers) - 1), -1, -1):
            if (position := self.position_of(each)) is not None:
                return WrittenEntry(each, position)
        return None

    def first_after(self, number: int, end: int) -> WrittenEntry | None:
        """See `WrittenEntries.first_after`."""
        for each in range(number + 1, min(end, len(self._ledgers))):
            if (position := self.position_of(each)) is not None:
                return WrittenEntry(each, position)
        return None


class TopicHistory:
    """The publishes of a topic: `offsets` of the records by number, and which wrote which entry (`written`, `positions`)."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.written = WrittenEntries()
        self.positions = MessagePositions()
        self.subscriptions: dict[str, SubscriptionHistory] = defaultdict(SubscriptionHistory)

    def number_of(self, offset: int) -> int:
        """The number of the publish in the record at an offset."""
        return bisect_left(self.offsets, offset)


Break = tuple[Any, ...]
"""Something that makes a client act: what, to whom, and the clock. Equal in two runs: the client saw the same."""


def break_of(row: e.Row) -> Break | None:
    """The break that an effect is; None if it is none."""
    effect = row.effect
    match effect:
        case e.CloseProducer():
            who: Sender = _sender(effect.topic, effect.connection, effect.producer_id, effect.producer_name)
            return ("closed producer", who, row.clock)
        case e.SendError():
            who = _sender(effect.topic, effect.connection, effect.producer_id, effect.producer_name)
            return ("send error", who, row.clock, effect.sequence_id)
        case e.CloseConsumer():
            return (
                "closed consumer",
                (effect.topic, effect.connection, effect.consumer_id),
                row.clock,
            )
        case e.Error():
            return ("error", (effect.topic, effect.connection, effect.request_id), row.clock)
        case e.CloseConnection():
            return ("closed connection", effect.connection, row.clock)
    return None


def _sender(topic: str, connection: str, producer_id: int | None, name: str) -> Sender:
    return (topic, connection, name if producer_id is None else producer_id)


def sender_of(topic: str, command: c.Publish | c.Send) -> Sender:
    """Who publishes."""
    if isinstance(command, c.Publish):
        return topic, "", command.producer
    return topic, command.connection, command.producer_id


NO_CHUNK = -1
"""In place of a chunk's number: a whole message."""


class MessageNumber(NamedTuple):
    """Which message of its producer: all chunks of a message have its sequence id."""

    sequence_id: int
    chunk_id: int = NO_CHUNK


def number_in_producer(command: c.Publish | c.Send) -> MessageNumber:
    """Which message of its producer is published."""
    chunk = None if isinstance(command, c.Publish) else command.metadata.chunk_id
    return MessageNumber(command.sequence_id, NO_CHUNK if chunk is None else chunk)


class MessageKey(NamedTuple):
    """A message, or a chunk of one. `producer`: the name that the message has."""

    topic: str
    producer: str
    number: MessageNumber


def message_of(topic: str, command: c.Publish | c.Send) -> MessageKey:
    """What is published."""
    name = command.producer if isinstance(command, c.Publish) else command.metadata.producer_name
    return MessageKey(topic, name, number_in_producer(command))


class DecodedRecord(NamedTuple):
    """A record, decoded. `inner` is the command without coordinates of its own."""

    offset: int
    timestamp: int
    topic: str | None
    value: bytes
    command: Decoded
    inner: Any


def decoded(records: pa.Table) -> Iterator[DecodedRecord]:
    """The records of a partition (columns `schemas.records.RECORD`)."""
    for start in range(0, len(records), PIECE):
        part = records.slice(start, PIECE)
        topics, values = part["topic"].to_pylist(), part["value"].to_pylist()
        for offset, timestamp, topic, value, command in zip(
            part["offset"].to_pylist(),
            part["timestamp"].to_pylist(),
            topics,
            values,
            judge(topics, values),
            strict=True,
        ):
            yield DecodedRecord(offset, timestamp, topic, value, command, command_in(command))


class NumberedPublish(NamedTuple):
    """A publish: its number in its topic, and what it publishes."""

    number: int
    message: MessageKey


class PublishNumbers:
    """Which publish an answer is for: the record's own, or an earlier one whose write a fault put off. `unstored`: messages that were sent
    and are not stored, as far as whoever uses this notes them."""

    def __init__(self, broker: Broker) -> None:
        self.unstored: set[MessageKey] = set()
        self._broker = broker
        self._own: NumberedPublish | None = None
        self._put_off: PutOffWrites[NumberedPublish] = PutOffWrites()

    def begin(self, number: int, message: MessageKey) -> None:
        """A record publishes."""
        self._own = NumberedPublish(number, message)

    def answered(self, effect: e.SendReceipt | e.SendError) -> NumberedPublish | None:
        """The publish that an answer is for."""
        found = self._put_off.answered(effect, self._broker)
        if found is not None:
            return found
        own, self._own = self._own, None
        return own if own is not None and own.message.topic == effect.topic else None

    def topic_event(self, effect: e.TopicEvent) -> None:
        """A topic begins, ends or closes."""
        if loses_writes(effect.cause):
            self._put_off.lost(effect.topic)
        if deletes(effect.cause):  # sequence ids begin again
            self.unstored = {each for each in self.unstored if each.topic != effect.topic}

    def end(self) -> bool:
        """The record is done. Does its publish wait?"""
        own, self._own = self._own, None
        if own is None:
            return False
        topic = own.message.topic
        return self._put_off.note(topic, pending_writes(self._broker, topic), own)


class History:
    """What a partition's log did.

    `breaks` are all breaks as (offset of the record, break), in order; `created` the offsets of PRODUCER records that
    succeeded; `covered` how many messages a FLOW gave permits back for, and `cumulative` the messages that a cumulative ACK
    covered, both by offset; `sent` the offsets of the publishes of each sender. `repeats` are the offsets of publishes that were
    tried before and not stored then; `repeated` names these messages.
    """

    def __init__(self, records: pa.Table, partition: int) -> None:
        self.topics: dict[str, TopicHistory] = defaultdict(TopicHistory)
        self.breaks: list[tuple[int, Break]] = []
        self.created: set[int] = set()
        self.covered: dict[int, int] = {}
        self.cumulative: dict[int, list[int]] = {}
        self.sent: dict[Sender, array[int]] = defaultdict(lambda: array("q"))
        self.habits: dict[ConsumerKey, ConsumerHabits] = defaultdict(ConsumerHabits)
        self.subscription_of: dict[ConsumerKey, str] = {}
        self.repeats: set[int] = set()
        self.repeated: set[MessageKey] = set()
        self._requests: dict[tuple[str, str, int], int] = {}
        self._broker = Broker(partition, NoEntries())
        self._numbers = PublishNumbers(self._broker)
        for record in decoded(records):
            self._fold(record)
        for of in self.topics.values():
            for subscription in of.subscriptions.values():
                subscription.waiting.clear()
        for habits in self.habits.values():
            habits.untaken.clear()

    def _fold(self, record: DecodedRecord) -> None:
        topic, inner = record.topic, record.inner
        if topic is not None and not is_non_persistent(topic) and isinstance(inner, c.Publish | c.Send):
            self._publish(topic, record.offset, inner)
        if isinstance(inner, c.Producer):
            self._requests[topic or "", inner.connection, inner.request_id] = record.offset
        self._broker.apply(record.offset, record.timestamp, topic, record.command, record.value)
        rows = self._broker.take()
        now = self._broker.clock
        # What a timer did on the way came before the command.
        before = 0
        while before < len(rows) and rows[before].clock < now:
            self._row(rows[before], record.offset)
            before += 1
        if topic is not None and not is_non_persistent(topic):
            self._command(topic, record.offset, inner, now)
        for row in rows[before:]:
            self._row(row, record.offset)
        self._numbers.end()

    def _publish(self, topic: str, offset: int, command: c.Publish | c.Send) -> None:
        of = self.topics[topic]
        number = len(of.offsets)
        of.offsets.append(offset)
        self.sent[sender_of(topic, command)].append(offset)
        message = message_of(topic, command)
        self._numbers.begin(number, message)
        if message in self._numbers.unstored:
            self.repeats.add(offset)
            self.repeated.add(message)
        self._numbers.unstored.add(message)

    # -- what the broker said

    def _row(self, row: e.Row, offset: int) -> None:
        effect = row.effect
        kind = type(effect)
        if kind is e.SendReceipt:
            self._receipt(effect)  # type: ignore[arg-type]
        elif kind is e.Message:
            self._message(effect, row.clock)  # type: ignore[arg-type]
        elif kind is e.ProducerSuccess:
            self._producer_success(effect)  # type: ignore[arg-type]
        elif kind is e.TopicEvent:
            self._numbers.topic_event(effect)  # type: ignore[arg-type]
        elif (found := break_of(row)) is not None:
            if kind is e.SendError:
                self._numbers.answered(effect)  # type: ignore[arg-type]
            self.breaks.append((offset, found))

    def _receipt(self, effect: e.SendReceipt) -> None:
        published = self._numbers.answered(effect)
        if published is None:
            return
        self._numbers.unstored.discard(published.message)
        if effect.ledger_id > 0:
            of, position = self.topics[effect.topic], Position(effect.ledger_id, effect.entry_id)
            of.written.add(published.number, position)
            of.positions.add(published.number, position)

    def _producer_success(self, effect: e.ProducerSuccess) -> None:
        offset = self._requests.get((effect.topic, effect.connection, effect.request_id))
        if offset is not None and effect.fields.producer_ready:
            self.created.add(offset)

    def _message(self, effect: e.Message, clock: int) -> None:
        if effect.ledger_id <= 0:
            return
        of = self.topics[effect.topic]
        number = of.positions.number_at(Position(effect.ledger_id, effect.entry_id))
        if number is None:
            return
        consumer = effect.topic, effect.connection, effect.consumer_id
        delivery = DeliveryTo(consumer, clock, effect.messages)
        subscription = of.subscriptions[effect.subscription]
        subscription.deliveries[number].append(delivery)
        subscription.waiting.pop(number, None)
        subscription.waiting[number] = delivery
        self.habits[consumer].untaken.append(delivery)

    # -- what the clients said

    def _command(self, topic: str, offset: int, command: Any, now: int) -> None:
        match command:
            case c.Subscribe():
                consumer = topic, command.connection, command.consumer_id
                self.subscription_of[consumer] = command.subscription
                habits = self.habits[consumer]
                habits.started = False
                habits.untaken.clear()
            case c.Flow():
                self._flow(topic, offset, command, now)
            case c.Ack() if command.ack_type == "Cumulative":
                self._cumulative(topic, offset, command, now)
            case c.Ack():
                self._named(topic, offset, command, command.message_id, ACK, now)
            case c.RedeliverUnacknowledgedMessages():
                self._named(topic, offset, command, command.message_ids, NACK, now)

    def _flow(self, topic: str, offset: int, command: c.Flow, now: int) -> None:
        habits = self.habits[topic, command.connection, command.consumer_id]
        if not habits.started:
            habits.started = True
            return
        if command.messagePermits > 0:
            habits.smallest_flow = min(habits.smallest_flow or command.messagePermits, command.messagePermits)
        left = command.messagePermits
        while habits.untaken and left >= habits.untaken[0].messages:
            delivery = habits.untaken.popleft()
            left -= delivery.messages
            delivery.taken = Taken(now - delivery.clock, offset)
            habits.took.append(delivery)
        self.covered[offset] = command.messagePermits - left

    def _of(
        self, topic: str, command: c.Ack | c.RedeliverUnacknowledgedMessages
    ) -> SubscriptionHistory | None:
        name = self.subscription_of.get((topic, command.connection, command.consumer_id))
        return None if name is None else self.topics[topic].subscriptions[name]

    def _named(
        self,
        topic: str,
        offset: int,
        command: c.Ack | c.RedeliverUnacknowledgedMessages,
        ids: list[c.MessageIdData],
        kind: int,
        now: int,
    ) -> None:
        subscription = self._of(topic, command)
        if subscription is None:
            return
        positions = self.topics[topic].positions
        for named in ids:
            number = positions.number_at(from_wire(named.ledgerId, named.entryId))
            if number is None or number not in subscription.deliveries:
                continue
            delivery = subscription.deliveries[number][-1]
            delivery.actions.append(Action(now - delivery.clock, offset, kind, named))
            if not named.ack_set:
                subscription.waiting.pop(number, None)
            if kind == ACK:
                self._acked(subscription, delivery)

    def _cumulative(self, topic: str, offset: int, command: c.Ack, now: int) -> None:
        subscription = self._of(topic, command)
        if subscription is None or not command.message_id:
            return
        named = command.message_id[0]
        last = self.topics[topic].written.last_number_up_to(from_wire(named.ledgerId, named.entryId))
        covered = [number for number in subscription.waiting if number <= last]
        for number in covered:
            delivery = subscription.waiting.pop(number)
            own = named if number == last else None
            delivery.actions.append(Action(now - delivery.clock, offset, CUMULATIVE, own))
            self._acked(subscription, delivery)
        if covered:
            self.cumulative[offset] = covered

    def _acked(self, subscription: SubscriptionHistory, delivery: DeliveryTo) -> None:
        self.habits[delivery.consumer].acked.append(delivery)
        subscription.acked.append(delivery)
