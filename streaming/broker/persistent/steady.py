"""The steady step: publishing and acknowledging on a topic on which nothing else happens.

The problem
    `commands` carries out any command on any topic. Most commands are publishes and acks on a topic in its usual state: no
    fault, no limit, nothing pending, its producers and consumers known. Each of them pays for finding that out again.

The idea
    A `SteadyTopic` is what has been found out. It keeps what does not change while only publishes, acks, permits and requests for redelivery come:
    the policies, the producers, the consumers' subscriptions, and up to where the open ledger and the deduplication
    counter may go without a rollover or a snapshot. It changes the topic's own state, so that whoever looks at the topic
    sees what `commands` would have left.

Invariants
    * Rows and state are those of `commands` (``tests/broker/test_steady.py``). A command that may come to anything else
      is left to it: then `publish`, `send` and `acknowledge` return False and have changed nothing.
    * What dispatchers do for it is in lanes (`streaming.broker.dispatch.lanes`), if they have one.
    * `PersistentTopics` forgets a steady topic when anything but a publish, an ack, a FLOW or a request for redelivery touches it, and
      all of them when a timer or a check runs.
"""

from collections.abc import Sequence
from typing import NamedTuple

from schemas.commands import Ack, MessageMetadata, Publish, Send
from schemas.effects import AckResponse, SendReceipt
from schemas.entries import Entry
from streaming.broker.context import Context
from streaming.broker.dispatch.lanes import Lane, lane_of
from streaming.broker.dispatch.types import AnyDispatcher
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import MEGABYTE, ManagedLedger
from streaming.broker.persistent.cleanup.trimming import free_ledgers
from streaming.broker.persistent.publish.publish_run import plain_until
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position, from_tuple
from streaming.broker.producer.message_size import HEADER, metadata_size, plain_metadata_size, varint
from streaming.broker.producer.producer import Producer
from streaming.broker.rates.rate import ProducerCounters
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.context import SubscriptionContext
from streaming.broker.subscription.subscription import INDIVIDUAL_TYPES
from streaming.broker.topic.publish_requests import too_many_messages

KnownProducer = tuple[Producer, ProducerCounters, int]
"""A producer, its counters, and what its name adds to the size of an entry without a key (bytes)."""


class SteadySubscription(NamedTuple):
    """A subscription with consumers. `lane`: None, if its dispatcher must be asked about everything."""

    sub: SubscriptionContext
    subscription: PersistentSubscription
    dispatcher: AnyDispatcher
    lane: Lane | None

    @classmethod
    def of(cls, sub: SubscriptionContext, subscription: PersistentSubscription) -> "SteadySubscription":
        """That of a subscription which has had a consumer."""
        dispatcher = subscription.dispatcher
        assert dispatcher is not None  # the first consumer created it
        return cls(sub, subscription, dispatcher, lane_of(sub, dispatcher))


class SteadyTopic:
    """A topic in its usual state. Ask for it with `steady_topic`."""

    __slots__ = (
        "_acknowledging", "_config", "_ctx", "_enabled", "_largest", "_most_entries", "_most_size", "_policies_epoch", "_senders", "_snapshot_at",
        "rate", "topic", "until", "waiting",
    )  # fmt: skip

    def __init__(self, ctx: Context, topic: PersistentTopic, until: int) -> None:
        """`until`: see `plain_until`."""
        config = self._config = ctx.config
        self._ctx, self.topic, self.until = ctx, topic, until
        self._policies_epoch = ctx.policies_epoch
        self.rate = ctx.policies_of(topic).persistence.managedLedgerMaxMarkDeleteRate
        self._largest = config.maxMessageSize
        self._most_entries = config.managedLedgerMaxEntriesPerLedger - 1
        self._most_size = config.managedLedgerMaxSizePerLedgerMbytes * MEGABYTE
        self._enabled = topic.dedup.status == "Enabled"
        self._snapshot_at = config.brokerDeduplicationEntriesInterval - 1
        self._senders: dict[str, KnownProducer] = {}
        self.waiting = [
            SteadySubscription.of(topic.context_of(ctx, each), each)
            for each in topic.connected
            if each.dispatcher is not None
        ]
        self._acknowledging: dict[Handle, tuple[SteadySubscription, Consumer]] = {}

    def is_as_it_was(self) -> bool:
        """Whether what was found out still holds."""
        ctx, topic = self._ctx, self.topic
        return (
            ctx.clock < topic.rates_until
            and ctx.policies_epoch == self._policies_epoch
            and topic.transactions is None
        )

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self, command: Publish) -> bool:
        """See `publishing.handle_publish`."""
        if (
            command.properties
            or command.event_time is not None
            or command.deliver_at_time is not None
            or command.rest
        ):
            return False
        name, id_, key = command.producer, command.sequence_id, command.key
        if (sender := self._senders.get(name) or self._sender(name)) is None:
            return False
        time = self._ctx.clock if command.publish_time is None else command.publish_time
        payload = command.payload_bytes or command.payload.encode()
        if key is None:
            size = sender[2] + varint(id_) + varint(time) + len(payload)
        else:
            size = HEADER + plain_metadata_size(name, id_, time, key) + len(payload)
        metadata = MessageMetadata(name, id_, time, partition_key=key)
        return self._store(sender, id_, None, metadata, payload, size, 1, plain=True)

    def send(self, command: Send) -> bool:
        """See `publishing.handle_send`."""
        metadata, id_, highest = command.metadata, command.sequence_id, command.highest_sequence_id
        if (
            command.message_id is not None
            or command.txnid_least_bits is not None
            or command.txnid_most_bits is not None
            or command.fails
            or metadata.deliver_at_time is not None
            or metadata.marker_type is not None
            or metadata.chunk_id is not None
        ):
            return False
        name = self.topic.producer_handles.get(command.connection, command.producer_id)
        if name is None or (sender := self._senders.get(name) or self._sender(name)) is None:
            return False
        payload = command.payload_bytes or command.payload.encode()
        if too_many_messages(self._config, metadata, payload) is not None:
            return False
        if highest is not None and highest < id_:
            highest = None
        size = HEADER + metadata_size(metadata) + len(payload)
        return self._store(sender, id_, highest, metadata, payload, size, command.num_messages, plain=False)

    def _sender(self, name: str) -> KnownProducer | None:
        topic = self.topic
        producer, counters = topic.producers.get(name), topic.producer_counters.get(name)
        if producer is None or counters is None or name in topic.closing_producers:
            return None
        fixed = HEADER + plain_metadata_size(name, 0, 0, None) - 2 * varint(0)
        found = self._senders[name] = producer, counters, fixed
        return found

    def _store(
        self,
        sender: KnownProducer,
        id_: int,
        highest: int | None,
        metadata: MessageMetadata,
        payload: bytes,
        size: int,
        messages: int,
        *,
        plain: bool,
    ) -> bool:
        """Store a message, confirm it, and let the reads that wait for it find it. `messages`: as the command states."""
        ctx, topic = self._ctx, self.topic
        ledger, dedup, now = topic.ledger, topic.dedup, ctx.clock
        producer, counters, _ = sender
        name = producer.name
        if (
            ledger.current_entries >= self._most_entries
            or ledger.current_size + size >= self._most_size
            or len(payload) > self._largest
            or now >= self.until
            or not self.is_as_it_was()
        ):
            return False
        if self._enabled:
            persisted = dedup.persisted
            if (
                dedup.ahead
                or dedup.snapshot_counter >= self._snapshot_at
                or ((mark := persisted.get(name)) is not None and id_ <= mark)
            ):
                return False
            persisted[name] = id_ if highest is None else highest
            dedup.snapshot_counter += 1
        of_topic, of_ledger, entry_id = topic.counters, ledger.current, ledger.current_entries
        of_topic.messages_in += messages
        of_topic.bytes_in += size
        position = from_tuple(Position, (of_ledger, entry_id))
        ledger.current_entries = entry_id + 1
        ledger.current_size += size
        ledger.whole_ledgers = self._config.backlogSizeWholeLedgers
        ledger.confirm(position, size, now)
        entry = Entry(metadata, size, None, payload if ctx.entries.recent_payloads is None else None)
        ctx.entries.add(topic.name, position, entry)
        in_entry = metadata.num_messages_in_batch
        if in_entry is None:
            in_entry = 1
        counters.messages_in += in_entry
        counters.bytes_in += size
        counters.last = now
        ctx.emit(
            from_tuple(SendReceipt, (
                topic.name, producer.connection, producer.producer_id, name, id_, highest, of_ledger, entry_id, None, size,
                in_entry, metadata.publish_time, metadata.partition_key, None if plain else metadata, payload, None,
            ))
        )  # fmt: skip
        for sub, _, dispatcher, lane in self.waiting:
            if dispatcher.pending_read and (
                lane is None
                or metadata.uuid is not None
                or not lane.new_entry(position, metadata, in_entry if in_entry > 0 else 1, size)
            ):
                dispatcher.new_entry(sub, position, entry)
        return True

    # -- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, command: Ack) -> bool:
        """See `commands`, on ACK."""
        handle, ids = (command.connection, command.consumer_id), command.message_id
        found = self._acknowledging.get(handle) or self.consumer(handle)
        if (
            found is None
            or command.txnid_least_bits is not None
            or command.txnid_most_bits is not None
            or not self.is_as_it_was()
        ):
            return False
        waiting, consumer = found
        if len(ids) == 1 and not ids[0].ack_set:
            position = from_tuple(Position, (ids[0].ledgerId, ids[0].entryId))
            take = self._acknowledge_one if command.ack_type == "Individual" else self._acknowledge_to
            if self._is_usual(waiting, position) and take(waiting, consumer, position, command.request_id):
                return True
        former = waiting.subscription.acknowledge(waiting.sub, consumer, command)
        if former is not None:
            free_ledgers(self._ctx, self.topic, waiting.sub.cursor, former)
        return True

    def consumer(self, handle: Handle) -> tuple[SteadySubscription, Consumer] | None:
        """A consumer that acknowledges, and its subscription. None: there is none, or each of its acks must be looked at."""
        name = self.topic.consumer_handles.get(*handle)
        if name is None or self._config.closesOnAckOfNoEntry:
            return None
        waiting = next((each for each in self.waiting if each.subscription.name == name), None)
        if waiting is None:
            return None
        found = self._acknowledging[handle] = waiting, waiting.subscription.consumer(*handle)
        return found

    def _acknowledge_one(
        self, waiting: SteadySubscription, consumer: Consumer, position: Position, request: int | None
    ) -> bool:
        """Acknowledge an entry of the backlog, as `PersistentSubscription.acknowledge` does. False: there is more to it."""
        sub, _, dispatcher, lane = waiting
        cursor, ledger = sub.cursor, sub.ledger
        before, holes, (of_ledger, entry) = cursor.mark_delete, cursor.acked, position
        if holes.ledgers.get(of_ledger, 0) >> entry & 1:
            return False
        backlog = self._backlog(cursor, ledger)
        owner = None
        if lane is not None and not lane.acknowledge(consumer, position):
            lane = None
        if lane is None:
            owner = dispatcher.acknowledged(sub, consumer, position)
        self._write(cursor)
        moved = entry == before[1] + 1
        cursor.consumed += 1
        if not moved:
            holes.add(position)
        elif holes.ledgers or cursor.read_position <= position:
            cursor.advance(ledger, position)
        else:
            cursor.mark_delete = position
        if holes.ledgers:
            cursor.collapse(ledger, before)
            moved = cursor.mark_delete != before
        self._acknowledged(waiting, consumer, [position], before, backlog, request)
        if lane is not None:
            lane.acknowledged(consumer, mark_delete_moved=moved)
        else:
            dispatcher.after_acks(sub, [] if owner is None else [owner], mark_delete_moved=moved)
        return True

    def _acknowledge_to(
        self, waiting: SteadySubscription, consumer: Consumer, position: Position, request: int | None
    ) -> bool:
        """The same for all entries up to one."""
        cursor, ledger, before = waiting.sub.cursor, waiting.sub.ledger, waiting.sub.cursor.mark_delete
        if (
            cursor.acked.ledgers
            or waiting.subscription.type in INDIVIDUAL_TYPES
            or position.ledger != ledger.current
        ):
            return False
        backlog = self._backlog(cursor, ledger)
        self._write(cursor)
        cursor.consumed += position.entry - before.entry
        cursor.advance(ledger, position)
        cursor.properties = {}
        consumer.acks += 1
        self._acknowledged(waiting, consumer, (), before, backlog, request)
        return True

    def _is_usual(self, waiting: SteadySubscription, position: Position) -> bool:
        """Whether an entry follows the mark-delete position in its ledger, and nothing but the cursor's place is to be changed and written."""
        cursor, ledger = waiting.sub.cursor, waiting.sub.ledger
        of_ledger, entry = position
        mark_ledger, mark_entry = cursor.mark_delete
        last_ledger, last_entry = ledger.last_confirmed
        persisted = cursor.persisted
        return (
            of_ledger == mark_ledger == last_ledger
            and mark_entry < entry <= last_entry
            and of_ledger in ledger.ledgers
            and not cursor.batches
            and cursor.durable
            and not cursor.next_ledger
            and (persisted is None or persisted.mark_delete[0] == of_ledger)
            and waiting.subscription.pending_acks is None
            and not ledger.terminated
        )

    def _backlog(self, cursor: ManagedCursor, ledger: ManagedLedger) -> int:
        """How many entries are unacked, for who watches acks."""
        return 0 if self._ctx.acks is None else cursor.backlog(ledger, precise=True)

    def _write(self, cursor: ManagedCursor) -> None:
        """Account for the write of a change that stays in the ledger, before it. See `cursor_writes`."""
        now = self._ctx.clock
        if (permits := cursor.permits_at(now, self.rate)) >= 1:
            cursor.written(now, permits)
        elif cursor.persisted is None:
            cursor.persisted = cursor.snapshot()

    def _acknowledged(
        self,
        waiting: SteadySubscription,
        consumer: Consumer,
        named: Sequence[Position],
        before: Position,
        backlog: int,
        request: int | None,
    ) -> None:
        """Note an ack, and answer it. `before`: the mark-delete position, `backlog`: the entries unacked, before it."""
        ctx, subscription, cursor = self._ctx, waiting.subscription, waiting.sub.cursor
        subscription.last_active = consumer.last_ack = ctx.clock
        subscription.acked += 1 if named else cursor.mark_delete.entry - before.entry
        if cursor.mark_delete != before:
            subscription.last_mark_delete_advanced = ctx.clock
        if ctx.acks is not None:
            ctx.observe_ack(self.topic.name, cursor.name, named, before, cursor.mark_delete, backlog)
        if request is not None:
            id_ = consumer.consumer_id
            ctx.emit(AckResponse(self.topic.name, consumer.connection, request, id_, None, None))


def steady_topic(ctx: Context, topic: PersistentTopic) -> SteadyTopic | None:
    """A topic on which something was just published, as long as only publishes and acks come. None: it is in an unusual state."""
    policies = ctx.policies_of(topic)
    if policies.throttled or policies.messages_encrypted:
        return None
    until = plain_until(ctx, topic)
    return SteadyTopic(ctx, topic, until) if until > ctx.clock else None
