"""What must hold of a broker whatever its clients do, judged by what they send and get.

The monitor keeps its own account of what was stored, delivered, acked and taken by a rule. It asks the broker for nothing
but the cursors and which consumers are connected, so that a mistake in dispatching or acknowledging does not hide itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from schemas import effects as e
from schemas.commands import (
    Ack,
    ConnectionLost,
    Flow,
    MessageIdData,
    MessageMetadata,
    Mirror,
    RedeliverUnacknowledgedMessages,
    Restart,
    SubType,
)
from schemas.entries import Entry, EntryNotFound, metadata_of
from streaming.answers.fates import deletes, resets
from streaming.broker.broker import Broker
from streaming.broker.config import ServiceConfiguration
from streaming.broker.dispatch.sticky_key_hash import sticky_key
from streaming.broker.ledger.ack_set import from_words, to_bits, to_bytes
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.position import Position, from_wire
from streaming.broker.subscription.subscription import INDIVIDUAL_TYPES

Invariant = Literal["redelivered", "lost", "moved back", "two consumers", "starved"]
"""What is violated.

* ``redelivered``: an entry that was acked as a whole is delivered again, and no reset asked for it.
* ``lost``: a durable subscription has passed an entry, or the ledger of the entry is deleted, and neither an ack nor a
  rule (TTL, quota, skip, seek) took it.
* ``moved back``: a mark-delete position moves back, and no reset asked for it.
* ``two consumers``: two connected consumers of a Key_Shared subscription have unacked entries with the same key.
* ``starved``: a connected consumer has permits, an entry waits that it may have, and time brings nothing.
"""

INVARIANTS: tuple[Invariant, ...] = ("redelivered", "lost", "moved back", "two consumers", "starved")


class Violation(NamedTuple):
    """An invariant that does not hold of a subscription, and why, in words."""

    invariant: Invariant
    topic: str
    subscription: str
    text: str


class _Stored(msgspec.Struct, array_like=True):
    """An entry. `gone`: its ledger is deleted, so nobody can get it, and a later subscription can't lose it."""

    position: Position
    metadata: MessageMetadata
    size: int
    broker_timestamp: int | None
    gone: bool = False


_OfTopic = tuple[str, str, int]
"""A consumer: its topic, connection and id. A connection may use an id on several topics, which can be in different partitions."""


class _Consumer(msgspec.Struct, array_like=True):
    """`held`: what it got and nobody has acked, in order. `permits`: what it asked for and did not get, in messages."""

    topic: str
    subscription: str
    permits: int = 0
    held: list[Position] = []
    active: bool = False


class _Subscription(msgspec.Struct, array_like=True):
    """`acked` as a whole, and `taken` by a rule, or from before its time. `batches`: what is left unacked of them."""

    mark_delete: Position
    durable: bool
    type: SubType | None = None
    acked: set[Position] = set()
    taken: set[Position] = set()
    batches: dict[Position, bytes] = {}


class _Account(msgspec.Struct, array_like=True):
    entries: dict[str, list[_Stored]] = {}
    subscriptions: dict[str, dict[str, _Subscription]] = {}
    consumers: dict[_OfTopic, _Consumer] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    tuple[dict[str, list[_Stored]], dict[str, dict[str, _Subscription]], list[tuple[_OfTopic, _Consumer]]]
).decode


class Monitor:
    """Watches the broker of one ingress partition, record by record, and reports violations.

    It also is the store of the entries, which `Broker` reads back (`schemas.entries.EntryReader`).
    """

    def __init__(self) -> None:
        self._account = _Account()

    def encode(self) -> bytes:
        """What it knows. Equal accounts have equal bytes."""
        account = self._account
        subscriptions = {
            topic: {
                name: (
                    it.mark_delete,
                    it.durable,
                    it.type,
                    sorted(it.acked),
                    sorted(it.taken),
                    dict(sorted(it.batches.items())),
                )
                for name, it in found.items()
            }
            for topic, found in account.subscriptions.items()
        }
        return _encode((account.entries, subscriptions, sorted(account.consumers.items())))

    @classmethod
    def decode(cls, data: bytes) -> Monitor:
        """The monitor as `encode` left it."""
        monitor = cls.__new__(cls)
        entries, subscriptions, consumers = _decode(data)
        monitor._account = _Account(entries, subscriptions, dict(consumers))
        return monitor

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[Entry]:
        """The stored entries. Raises `EntryNotFound`."""
        found = [
            Entry(each.metadata, each.size, each.broker_timestamp)
            for each in self._account.entries.get(topic, ())
            if each.position.ledger == ledger_id and first <= each.position.entry <= last
        ]
        if len(found) != last - first + 1:
            raise EntryNotFound(f"{topic} {ledger_id}:{first}..{last}")
        return found

    def held(self, topic: str, connection: str, consumer_id: int) -> list[Position]:
        """The entries that a consumer got and nobody has acked, in the order in which they came."""
        consumer = self._account.consumers.get((topic, connection, consumer_id))
        return [] if consumer is None else consumer.held

    # -- what happens -----------------------------------------------------------------------------------------------

    def observe(
        self, topic: str | None, command: Any, rows: Sequence[e.Row], broker: Broker
    ) -> list[Violation]:
        """Note a command and its effects. Returns what they violate, apart from ``starved``."""
        account = self._account
        found: list[Violation] = []
        if isinstance(command, Ack | Flow | RedeliverUnacknowledgedMessages) and topic is not None:
            consumer = account.consumers.get((topic, command.connection, command.consumer_id))
            if consumer is None:
                pass
            elif isinstance(command, Ack):
                self._ack(consumer, command, broker.config)
            elif isinstance(command, Flow):
                consumer.permits += command.messagePermits
            else:
                ids = {from_wire(each.ledgerId, each.entryId) for each in command.message_ids}
                consumer.held = [each for each in consumer.held if ids and each not in ids]
        elif isinstance(command, Mirror) and topic is not None:
            for row in rows:  # the source may have acknowledged since what it has sent since
                if isinstance(row.effect, e.Message):
                    found += self._deliver(row.effect)
            self._mirrored(topic, broker)
        reset: set[tuple[str, str]] = set()
        touched = {} if topic is None else {topic: None}
        for row in rows:
            effect = row.effect
            if effect.topic is not None:
                touched[effect.topic] = None
            match effect:
                case e.Message() if not isinstance(command, Mirror):
                    found += self._deliver(effect)
                case e.SendReceipt() if effect.ledger_id > 0:
                    self._store(effect)
                case e.CursorMoved() | e.Expired() | e.Evicted():
                    if self._move(effect):
                        reset.add((effect.topic, effect.subscription))
                case e.ActiveConsumerChange():
                    handle = effect.topic, effect.connection, effect.consumer_id
                    if (consumer := account.consumers.get(handle)) is not None:
                        consumer.active = effect.fields.is_active
                    elif effect.fields.is_active:
                        account.consumers[handle] = _Consumer(effect.topic, "", active=True)
                case e.SubscriptionEvent() if deletes(effect.cause):
                    account.subscriptions.get(effect.topic, {}).pop(effect.subscription, None)
                case e.LedgerDeleted():
                    found += self._delete(effect)
        if isinstance(command, ConnectionLost | Restart):
            touched.update(dict.fromkeys(account.subscriptions))
        names = broker.topic_names()
        for name in touched:
            if name in names and not is_non_persistent(name):
                found += self._judge(broker, name, {each for of, each in reset if of == name})
            else:
                self._forget(name)
        return found

    def _forget(self, name: str) -> None:
        """A topic is gone."""
        account = self._account
        account.entries.pop(name, None)
        account.subscriptions.pop(name, None)
        account.consumers = {handle: it for handle, it in account.consumers.items() if it.topic != name}

    def _ack(self, consumer: _Consumer, command: Ack, config: ServiceConfiguration) -> None:
        account = self._account
        if command.txnid_least_bits or command.txnid_most_bits:
            return
        subscription = account.subscriptions[consumer.topic][consumer.subscription]
        entries = [each.position for each in account.entries.get(consumer.topic, ())]
        index_acks = config.acknowledgmentAtBatchIndexLevelEnabled
        if command.ack_type == "Cumulative":
            if subscription.type in INDIVIDUAL_TYPES or len(command.message_id) != 1:
                return
            position, left = _id(command.message_id[0])
            if entries and position <= entries[-1]:
                acked = (each for each in entries if each < position or (each == position and not left))
                subscription.acked.update(acked)
        else:
            for position, left in map(_id, command.message_id):
                if not entries or position > entries[-1]:
                    break  # the cursor refuses it, and does not look at the others
                if position not in entries or (left and not index_acks):
                    continue
                if left and (stored := subscription.batches.get(position)) is not None:
                    left &= to_bits(stored)
                if left:
                    subscription.batches[position] = to_bytes(left)
                else:
                    subscription.acked.add(position)
        for other in account.consumers.values():
            if (other.topic, other.subscription) == (consumer.topic, consumer.subscription):
                other.held = [each for each in other.held if each not in subscription.acked]

    def _mirrored(self, name: str, broker: Broker) -> None:
        """What a topic's source has acknowledged is acked, and nothing else: its clients did that, whom nobody watches here."""
        if name not in broker.topic_names():
            return
        account, cursors = self._account, broker.topic(name).cursors
        for each, subscription in account.subscriptions.get(name, {}).items():
            if (cursor := cursors.get(each)) is not None:
                subscription.acked = {
                    entry.position
                    for entry in account.entries.get(name, ())
                    if cursor.has_acked(entry.position)
                }

    def _store(self, receipt: e.SendReceipt) -> None:
        assert receipt.size is not None
        position = Position(receipt.ledger_id, receipt.entry_id)
        self._account.entries.setdefault(receipt.topic, []).append(
            _Stored(position, metadata_of(receipt), receipt.size, receipt.broker_timestamp)
        )

    def _deliver(self, sent: e.Message) -> Iterator[Violation]:
        account = self._account
        position = Position(sent.ledger_id, sent.entry_id)
        consumer = account.consumers.get((sent.topic, sent.connection, sent.consumer_id))
        if consumer is None:
            return
        left = sent.messages if sent.ack_set is None else from_words(sent.ack_set).bit_count()
        consumer.permits -= left
        if position not in consumer.held:
            consumer.held.append(position)
        if position in account.subscriptions[sent.topic][sent.subscription].acked:
            text = f"{position} was acked, and is delivered to {sent.connection} again"
            yield Violation("redelivered", sent.topic, sent.subscription, text)

    def _move(self, move: e.CursorMoved | e.Expired | e.Evicted) -> bool:
        """Note that the broker moved a cursor. Was it a reset, after which everything behind the position is unacked?"""
        subscription = self._account.subscriptions.get(move.topic, {}).get(move.subscription)
        if subscription is None:
            return False
        before, after = (
            Position(move.before_ledger, move.before_entry),
            Position(move.after_ledger, move.after_entry),
        )
        reset = resets(move)
        if reset:
            subscription.acked = {each for each in subscription.acked if each <= after}
            subscription.taken = {each for each in subscription.taken if each <= after}
            subscription.batches = {}
        subscription.taken.update(
            each.position
            for each in self._account.entries.get(move.topic, ())
            if each.gone or ((reset or each.position > before) and each.position <= after)
        )
        for consumer in self._account.consumers.values():
            if (consumer.topic, consumer.subscription) == (move.topic, move.subscription):
                consumer.held = [each for each in consumer.held if each not in subscription.taken]
        return reset

    def _delete(self, gone: e.LedgerDeleted) -> Iterator[Violation]:
        entries = [
            each
            for each in self._account.entries.get(gone.topic, ())
            if each.position.ledger == gone.ledger_id
        ]
        for each in entries:
            each.gone = True
        for name, subscription in self._account.subscriptions.get(gone.topic, {}).items():
            for each in entries:
                position = each.position
                if (
                    subscription.durable
                    and position not in subscription.acked
                    and position not in subscription.taken
                ):
                    text = f"ledger {gone.ledger_id} is deleted ({gone.cause}), and {position} was not acked"
                    yield Violation("lost", gone.topic, name, text)
                    break

    def _see(
        self, broker: Broker, name: str
    ) -> Iterator[tuple[str, _Subscription, PersistentSubscription, Position]]:
        """The subscriptions of a topic as the broker has them, with their mark-delete positions before. Brings the account
        of subscriptions and consumers up to date."""
        account = self._account
        known = account.subscriptions.setdefault(name, {})
        topic = broker.topic(name)
        connected: set[_OfTopic] = set()
        for each, subscription in topic.subscriptions.items():
            cursor = topic.cursors[each]
            found = known.get(each)
            if found is None:
                entries = account.entries.get(name, ())
                found = known[each] = _Subscription(
                    cursor.mark_delete,
                    subscription.durable,
                    taken={
                        entry.position for entry in entries if entry.gone or cursor.has_acked(entry.position)
                    },
                )
            found.type = subscription.type
            before, found.mark_delete = found.mark_delete, cursor.mark_delete
            for consumer in subscription.consumers:
                handle = name, *consumer.handle
                connected.add(handle)
                seen = account.consumers.get(handle)
                if seen is None:
                    account.consumers[handle] = _Consumer(name, each)
                else:
                    seen.subscription = each
            yield each, found, subscription, before
        for each in known.keys() - topic.subscriptions.keys():
            del known[each]
        for handle in [
            handle for handle, it in account.consumers.items() if it.topic == name and handle not in connected
        ]:
            del account.consumers[handle]

    # -- what is judged ---------------------------------------------------------------------------------------------

    def _judge(self, broker: Broker, name: str, reset: set[str]) -> Iterator[Violation]:
        entries = self._account.entries.get(name, ())
        cursors = broker.topic(name).cursors
        for each, account, subscription, before in [*self._see(broker, name)]:
            cursor = cursors[each]
            for entry in entries:
                position = entry.position
                if cursor.mark_delete < position <= before and each not in reset:
                    text = f"the mark-delete position moves from {before} back to {cursor.mark_delete}"
                    yield Violation("moved back", name, each, text)
                    account.acked = {it for it in account.acked if cursor.has_acked(it)}
                    break
                if (
                    account.durable
                    and cursor.has_acked(position)
                    and position not in account.acked
                    and position not in account.taken
                ):
                    how = (
                        f"the mark-delete position {cursor.mark_delete} passed"
                        if position <= cursor.mark_delete
                        else "the cursor has as acked"
                    )
                    text = f"{how} {position}, which was not acked"
                    yield Violation("lost", name, each, text)
                    account.taken.add(position)
            if subscription.type == "Key_Shared":
                yield from self._shared_keys(name, each)

    def _shared_keys(self, name: str, subscription: str) -> Iterator[Violation]:
        entries = {entry.position: entry.metadata for entry in self._account.entries.get(name, ())}
        holders: dict[bytes, tuple[_OfTopic, Position]] = {}
        for handle, consumer in self._account.consumers.items():
            if (consumer.topic, consumer.subscription) != (name, subscription):
                continue
            for position in consumer.held:
                if position not in entries:
                    continue
                key = sticky_key(entries[position])
                other, first = holders.setdefault(key, (handle, position))
                if other != handle:
                    text = f"{other[1]} has {first} and {handle[1]} has {position}, both with the key {key.decode(errors='replace')}"
                    yield Violation("two consumers", name, subscription, text)
                    return

    def starved(self, broker: Broker) -> list[Starved]:
        """What waits although somebody could have it, as far as the account can tell, for each subscription.

        It leaves out what delays, chunks and hash ranges may hold back; `held_back` says whether a limit does.
        """
        found = []
        for name, subscriptions in self._account.subscriptions.items():
            for each, subscription in subscriptions.items():
                waiting = self._waiting(broker, name, each, subscription)
                if waiting is not None:
                    found.append(Starved(name, each, *waiting))
        return found

    def _waiting(
        self, broker: Broker, name: str, each: str, subscription: _Subscription
    ) -> tuple[Position, str] | None:
        """The first entry that a consumer could have, and the connection of that consumer."""
        consumers = {
            handle: consumer
            for handle, consumer in self._account.consumers.items()
            if (consumer.topic, consumer.subscription) == (name, each)
        }
        able = [handle for handle, consumer in consumers.items() if consumer.permits > 0]
        if not able or (subscription.type == "Key_Shared" and len(able) < len(consumers)):
            return None
        if subscription.type == "Failover":
            able = [handle for handle in able if consumers[handle].active]
        if not able:
            return None
        individual = subscription.type in INDIVIDUAL_TYPES
        owners = consumers.values() if individual else [consumers[handle] for handle in able]
        entries = self._account.entries.get(name, ())
        held = {position for consumer in owners for position in consumer.held}
        keys = {sticky_key(entry.metadata) for entry in entries if entry.position in held}
        for entry in entries:
            position, metadata = entry.position, entry.metadata
            if (
                entry.gone
                or position in held
                or position in subscription.acked
                or position in subscription.taken
                or metadata.num_chunks_from_msg
                or (individual and (metadata.deliver_at_time or 0) > broker.clock)
                or (subscription.type == "Key_Shared" and sticky_key(metadata) in keys)
            ):
                continue
            return position, able[0][1]
        return None


class Starved(NamedTuple):
    """An entry that waits, and the connection of a consumer with permits."""

    topic: str
    subscription: str
    position: Position
    connection: str


LIMITS = frozenset({
    "maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription", "maxUnackedMessagesPerBroker", "dispatchRate",
    "entryFilters", "delayedDelivery", "hashRanges", "recently joined",
})  # fmt: skip
"""The deciders that may hold back entries for as long as they like. See `streaming.broker.dispatch.verdict`."""


def held_back(broker: Broker, waiting: Starved) -> bool:
    """Does a limit that somebody set hold the entries back? It dispatches to find out: give it a copy of the broker."""
    delivery = broker.delivery(waiting.topic, waiting.subscription)
    return any(verdict.blocks and verdict.decider in LIMITS for verdict in delivery.verdicts)


def _id(message_id: MessageIdData) -> tuple[Position, int]:
    """A position, and the bit set of the messages in its batch that stay unacked, or 0."""
    return from_wire(message_id.ledgerId, message_id.entryId), from_words(message_id.ack_set)
