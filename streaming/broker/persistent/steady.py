"""The steady step: publishing and acknowledging on a topic on which nothing else happens.

The problem
    `commands` carries out any command on any topic. Most commands are publishes and acks on a topic in its usual state: no
    fault, no limit, nothing pending, its producers and consumers known. Each of them pays for finding that out again.

The idea
    A `SteadyTopic` is what has been found out. It keeps what does not change while only publishes, acks and permits come:
    the policies, the producers, the consumers' subscriptions, and up to where the open ledger and the deduplication
    counter may go without a rollover or a snapshot. It changes the topic's own state, so that whoever looks at the topic
    sees what `commands` would have left.

Invariants
    * Rows and state are those of `commands` (``tests/broker/test_steady.py``). A command that may come to anything else
      is left to it: then `publish`, `send` and `acknowledge` return False and have changed nothing.
    * `PersistentTopics` forgets a steady topic when anything but a publish, an ack or a FLOW touches it, and all of them when a
      timer or a check runs.
"""

from schemas.commands import Ack, MessageMetadata, Publish, Send
from schemas.effects import AckResponse, SendReceipt
from schemas.entries import Entry
from streaming.broker.context import Context
from streaming.broker.ledger.cursor_writes import begin_write, end_write
from streaming.broker.ledger.managed_ledger import MEGABYTE
from streaming.broker.persistent.cleanup.trimming import free_ledgers
from streaming.broker.persistent.publish.publish_run import plain_until
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position, from_tuple, from_wire
from streaming.broker.producer.message_size import HEADER, metadata_size, plain_metadata_size, varint
from streaming.broker.producer.producer import Producer
from streaming.broker.rates.rate import ProducerCounters
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.context import SubscriptionContext
from streaming.broker.topic.publish_requests import too_many_messages

KnownProducer = tuple[Producer, ProducerCounters, int]
"""A producer, its counters, and what its name adds to the size of an entry without a key (bytes)."""


class SteadyTopic:
    """A topic in its usual state. Ask for it with `steady_topic`."""

    __slots__ = (
        "_config", "_ctx", "_enabled", "_largest", "_most_entries", "_most_size", "_policies", "_policies_epoch", "_senders", "_snapshot_at",
        "_subscriptions", "_topic", "_until", "_waiting",
    )  # fmt: skip

    def __init__(self, ctx: Context, topic: PersistentTopic, until: int) -> None:
        """`until`: see `plain_until`."""
        config = self._config = ctx.config
        self._ctx, self._topic, self._until = ctx, topic, until
        self._policies, self._policies_epoch = ctx.policies_of(topic), ctx.policies_epoch
        self._largest = config.maxMessageSize
        self._most_entries = config.managedLedgerMaxEntriesPerLedger - 1
        self._most_size = config.managedLedgerMaxSizePerLedgerMbytes * MEGABYTE
        self._enabled = topic.dedup.status == "Enabled"
        self._snapshot_at = config.brokerDeduplicationEntriesInterval - 1
        self._senders: dict[str, KnownProducer] = {}
        self._subscriptions = {each.name: topic.context_of(ctx, each) for each in topic.connected}
        self._waiting = [
            (each.dispatcher, self._subscriptions[each.name])
            for each in topic.connected
            if each.dispatcher is not None
        ]

    def _is_as_it_was(self) -> bool:
        ctx, topic = self._ctx, self._topic
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
        name = self._topic.producer_handles.get(command.connection, command.producer_id)
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
        topic = self._topic
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
        ctx, topic = self._ctx, self._topic
        ledger, dedup, now = topic.ledger, topic.dedup, ctx.clock
        producer, counters, _ = sender
        name = producer.name
        if (
            ledger.current_entries >= self._most_entries
            or ledger.current_size + size >= self._most_size
            or len(payload) > self._largest
            or now >= self._until
            or not self._is_as_it_was()
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
        for dispatcher, sub in self._waiting:
            if dispatcher.pending_read:
                dispatcher.new_entry(sub, position, entry)
        return True

    # -- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, command: Ack) -> bool:
        """See `commands`, on ACK."""
        connection, id_ = command.connection, command.consumer_id
        name = self._topic.consumer_handles.get(connection, id_)
        if (
            name is None
            or command.txnid_least_bits is not None
            or command.txnid_most_bits is not None
            or self._config.closesOnAckOfNoEntry
            or not self._is_as_it_was()
        ):
            return False
        sub = self._subscriptions[name]
        subscription = self._topic.subscriptions[name]
        consumer = subscription.consumer(connection, id_)
        ids = command.message_id
        if (
            len(ids) == 1
            and not ids[0].ack_set
            and command.ack_type == "Individual"
            and self._acknowledge_one(
                sub, consumer, from_wire(ids[0].ledgerId, ids[0].entryId), command.request_id
            )
        ):
            return True
        former = subscription.acknowledge(sub, consumer, command)
        if former is not None:
            free_ledgers(self._ctx, self._topic, sub.cursor, former)
        return True

    def _acknowledge_one(
        self, sub: SubscriptionContext, consumer: Consumer, position: Position, request: int | None
    ) -> bool:
        """Acknowledge an entry of the backlog, as `PersistentSubscription.acknowledge` does. False: there is more to it."""
        ctx, topic, cursor, ledger = self._ctx, self._topic, sub.cursor, self._topic.ledger
        before, now = cursor.mark_delete, ctx.clock
        if (
            not before < position <= ledger.last_confirmed
            or not ledger.valid(position)
            or position in cursor.acked
            or cursor.batches
            or not cursor.durable
            or ledger.terminated
        ):
            return False
        subscription = topic.subscriptions[cursor.name]
        if subscription.pending_acks is not None:
            return False
        dispatcher = subscription.dispatcher
        assert dispatcher is not None  # the first consumer created it
        backlog = 0 if ctx.acks is None else cursor.backlog(ledger, precise=True)
        write = begin_write(ctx, self._policies, cursor)
        subscription.last_active = consumer.last_ack = now
        owner = dispatcher.acknowledged(sub, consumer, position)
        cursor.acknowledge_whole(ledger, position)
        if cursor.acked.ledgers:
            cursor.collapse(ledger, before)
        former = end_write(ctx, cursor, write)
        subscription.acked += 1
        moved = cursor.mark_delete != before
        if moved:
            subscription.last_mark_delete_advanced = now
        if ctx.acks is not None:
            ctx.observe_ack(topic.name, cursor.name, [position], before, cursor.mark_delete, backlog)
        if request is not None:
            ctx.emit(AckResponse(topic.name, consumer.connection, request, consumer.consumer_id, None, None))
        dispatcher.after_acks(sub, [] if owner is None else [owner], mark_delete_moved=moved)
        if former is not None:
            free_ledgers(ctx, topic, cursor, former)
        return True


def steady_topic(ctx: Context, topic: PersistentTopic) -> SteadyTopic | None:
    """A topic on which something was just published, as long as only publishes and acks come. None: it is in an unusual state."""
    policies = ctx.policies_of(topic)
    if policies.throttled or policies.messages_encrypted:
        return None
    until = plain_until(ctx, topic)
    return SteadyTopic(ctx, topic, until) if until > ctx.clock else None
