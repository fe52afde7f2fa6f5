"""A non-persistent topic's state, and who gets a message (mirrors `NonPersistentTopic` and its dispatchers).

Nothing is stored: no ledger, no cursor, no deduplication. A message goes to each subscription that can take it at this
moment and is lost to every other, where it counts as dropped.
"""

import msgspec

from schemas.commands import MessageMetadata
from schemas.effects import Message
from schemas.entries import Entry
from streaming.broker.context import Context
from streaming.broker.dispatch import entry_filters
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.dispatch.sending import is_server_only
from streaming.broker.dispatch.sticky_key import StickyKeyMultipleConsumers
from streaming.broker.dispatch.sticky_key_hash import sticky_key_hash
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.policies.hierarchy import BacklogQuota, Policies, QuotaType
from streaming.broker.rate import Rate
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.persistent import PersistentSubscription
from streaming.broker.topic import PendingWrite, Topic

SCHEME = "non-persistent://"


def no_quota() -> dict[QuotaType, BacklogQuota]:
    """Set on each of these topics, where it hides the quotas of its namespace: there is no backlog to limit."""
    return {"destination_storage": BacklogQuota(), "message_age": BacklogQuota()}


class NonPersistentTopic(Topic, array_like=False, omit_defaults=True):
    """Shares with `Topic` what concerns its producers; its ledger stays empty, never rolls over, and has no cursors.

    `pending` = messages in flight, which only a fault makes last. `drops` by subscription, `publisher_drops` by producer.
    """

    ledger: ManagedLedger = msgspec.field(default_factory=lambda: ManagedLedger(rollover_checked=True))
    policies: Policies = msgspec.field(default_factory=lambda: Policies(backlogQuota=no_quota()))
    drops: dict[str, Rate] = msgspec.field(default_factory=dict)
    publisher_drops: dict[str, Rate] = msgspec.field(default_factory=dict)

    def backlog(self) -> int:
        """None, ever."""
        return 0

    def in_flight(self, connection: str) -> int:
        """Messages of a connection that aren't answered yet."""
        return sum(write.producer.connection == connection for write in self.pending)


def is_non_persistent(name: str) -> bool:
    """Is a topic of that full name one that stores nothing?"""
    return name.startswith(SCHEME)


def deliver(ctx: Context, topic: NonPersistentTopic, write: PendingWrite) -> None:
    """Send a message to one consumer of each subscription; where nobody can take it, it is dropped."""
    entry = Entry(write.metadata, write.size)
    for name, subscription in topic.subscriptions.items():
        consumer = _taker(subscription, write.metadata)
        if consumer is not None and consumer.available:
            if _passes(ctx, subscription, entry):
                _send(ctx, topic, subscription, consumer, entry, write.payload)
        elif consumer is not None or not isinstance(subscription.dispatcher, StickyKeyMultipleConsumers):
            # quirk: on Key_Shared a message whose key is nobody's is lost without being counted
            topic.drops.setdefault(name, Rate()).record(entry.messages, ctx.clock, ctx.config)


def _taker(subscription: PersistentSubscription, metadata: MessageMetadata) -> Consumer | None:
    """The consumer that a message goes to. Permits gate on being more than 0, and may fall below it by a batch."""
    dispatcher = subscription.dispatcher
    if isinstance(dispatcher, StickyKeyMultipleConsumers):
        handle = dispatcher.selector.select(dispatcher.selector.slot(sticky_key_hash(metadata)))
        return None if handle is None else subscription.consumer(*handle)
    if isinstance(dispatcher, MultipleConsumers):
        # quirk: one consumer far below 0 keeps the others, which have permits, from getting anything
        return dispatcher.next_consumer(subscription.consumers) if dispatcher.total_permits > 0 else None
    return None if dispatcher is None else dispatcher.active_consumer(subscription.consumers)


def _passes(ctx: Context, subscription: PersistentSubscription, entry: Entry) -> bool:
    """Do the filters let it through? What they put off is lost as well. Delivery times count for nothing here."""
    names = ctx.config.entryFilterNames
    return not is_server_only(entry) and (
        not names or entry_filters.judge(names, entry.metadata, subscription.properties) == "ACCEPT"
    )


def _send(
    ctx: Context,
    topic: NonPersistentTopic,
    subscription: PersistentSubscription,
    consumer: Consumer,
    entry: Entry,
    payload: bytes,
) -> None:
    """Send to a consumer and charge its permits by the message. Nothing is kept to be acked."""
    messages = entry.messages
    ctx.emit(
        Message(
            topic.name, consumer.connection, consumer.consumer_id, subscription.name, 0, 0, messages, entry.size, 0,
            metadata=entry.metadata, payload=payload,
        )
    )  # fmt: skip
    consumer.permits -= messages
    consumer.sent(messages, 1, entry.size)
    if isinstance(subscription.dispatcher, MultipleConsumers):
        subscription.dispatcher.total_permits -= messages
    subscription.messages_out += messages
    subscription.bytes_out += entry.size
    subscription.dispatched += 1
