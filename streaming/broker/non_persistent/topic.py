"""A non-persistent topic's state, and the delivery of a message (mirrors `NonPersistentTopic`).

A non-persistent topic stores nothing: it has no ledger, no cursor and no deduplication. A message goes to each
subscription that can take it at this moment. For every other subscription it is lost and counts as dropped.
"""

from collections.abc import Iterable

import msgspec

from schemas.effects import Message
from schemas.entries import Entry
from streaming.broker import entry_filters
from streaming.broker.context import Context
from streaming.broker.dispatch.sending import is_server_only
from streaming.broker.non_persistent.subscription import NonPersistentSubscription
from streaming.broker.policies.hierarchy import BacklogQuota, Policies, QuotaType
from streaming.broker.position import Position
from streaming.broker.producer.producer import Producer
from streaming.broker.rates.rate import Rate
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.subscription import INDIVIDUAL_TYPES
from streaming.broker.topic.abstract_topic import AbstractTopic, PendingWrite

SCHEME = "non-persistent://"

NO_POSITION = Position(0, 0)
"""The position of every message."""


def no_quota() -> dict[QuotaType, BacklogQuota]:
    """The quotas set on every non-persistent topic. They hide those of its namespace: there is no backlog to limit."""
    return {"destination_storage": BacklogQuota(), "message_age": BacklogQuota()}


class NonPersistentTopic(AbstractTopic, array_like=False, omit_defaults=True):
    """`pending` holds messages in flight, which only a fault keeps there. `drops` by subscription, `publisher_drops` by
    producer.
    """

    policies: Policies = msgspec.field(default_factory=lambda: Policies(backlogQuota=no_quota()))
    subscriptions: dict[str, NonPersistentSubscription] = msgspec.field(default_factory=dict)
    drops: dict[str, Rate] = msgspec.field(default_factory=dict)
    publisher_drops: dict[str, Rate] = msgspec.field(default_factory=dict)

    def all_consumers(self) -> Iterable[Consumer]:
        """The connected consumers of all subscriptions."""
        return (consumer for each in self.subscriptions.values() for consumer in each.consumers)

    def producer_removed(self, producer: Producer, now: int) -> None:
        """A producer left at `now` (ms)."""
        super().producer_removed(producer, now)
        self.publisher_drops.pop(producer.name, None)


def is_non_persistent(name: str) -> bool:
    """Does a full topic name have the domain ``non-persistent``?"""
    return name.startswith(SCHEME)


def deliver(ctx: Context, topic: NonPersistentTopic, write: PendingWrite) -> None:
    """Send a message to one consumer of each subscription. Where nobody can take it, drop it."""
    entry = Entry(write.metadata, write.size)
    for name, subscription in topic.subscriptions.items():
        dispatcher = subscription.dispatcher
        consumer = dispatcher.consumer_for(
            subscription.consumers, write.metadata, spreads_keyless=ctx.config.keySharedSpreadsKeyless
        )
        if consumer is not None and consumer.available:
            if _passes(ctx, subscription, entry):
                _send(ctx, topic, subscription, consumer, entry, write.payload)
        elif consumer is not None or dispatcher.counts_unassigned:
            topic.drops.setdefault(name, Rate()).record(entry.messages, ctx.clock, ctx.config)


def _passes(ctx: Context, subscription: NonPersistentSubscription, entry: Entry) -> bool:
    """Do the entry filters accept the message? A rescheduled one is lost as well, and delivery times mean nothing here."""
    names, counts, messages = ctx.config.entryFilterNames, subscription.filtered, entry.messages
    if names:
        counts.processed += messages
        result = entry_filters.judge(names, entry.metadata, subscription.properties)
        if result != "ACCEPT":
            counts.rejected += messages if result == "REJECT" else 0
            counts.rescheduled += messages if result == "RESCHEDULE" else 0
            return False
    if is_server_only(entry):
        return False
    if names:
        counts.accepted += messages
    return True


def _send(
    ctx: Context,
    topic: NonPersistentTopic,
    subscription: NonPersistentSubscription,
    consumer: Consumer,
    entry: Entry,
    payload: bytes,
) -> None:
    """Send to a consumer and charge its permits by the message: they may fall below 0 by a batch. There is nothing to ack."""
    messages = entry.messages
    ctx.emit_large(
        Message(
            topic.name, consumer.connection, consumer.consumer_id, subscription.name, 0, 0, messages, entry.size, 0,
            metadata=entry.metadata, payload=payload,
        ),
        entry.size,
    )  # fmt: skip
    if subscription.type in INDIVIDUAL_TYPES:
        consumer.pending[NO_POSITION] = messages  # of the last message: all have this position
        if ctx.config.nonPersistentCountsUnacked:
            consumer.unacked += messages
            limit = ctx.policies_of(topic).maxUnackedMessagesPerConsumer
            consumer.blocked = consumer.blocked or 0 < limit <= consumer.unacked
    if entry.metadata.chunk_id is not None:
        consumer.chunks_out += 1
    consumer.permits -= messages
    consumer.sent(messages, 1, entry.size, ctx.clock)
    subscription.dispatcher.permits_changed(-messages)
    subscription.messages_out += messages
    subscription.bytes_out += entry.size
    subscription.dispatched += 1
