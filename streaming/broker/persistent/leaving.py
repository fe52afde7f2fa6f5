"""Closing consumers and deleting subscriptions: CLOSE_CONSUMER, UNSUBSCRIBE, lost connections (rules:
docs/rules/subscriptions.md §9, §10, docs/rules/protocol.md §16)."""

from schemas.commands import Unsubscribe
from schemas.effects import CloseConsumer, Error, SubscriptionEvent, Success
from streaming.broker.context import Context
from streaming.broker.names import COMPACTION_CURSOR
from streaming.broker.persistent import rate_limits
from streaming.broker.persistent.cleanup.trimming import delete_compacted, trim
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.subscription.consumer import Consumer

MANY = 64
"""So many consumers leave one by one. More would take long to find among each other."""


def detach(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, *consumers: Consumer
) -> None:
    """Remove consumers that leave, for whatever reason. The remaining consumers get their pending entries.

    A non-durable subscription is deleted with its last consumer.
    """
    subscription.last_active = ctx.clock
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    sub, reads = topic.context_of(ctx, subscription), False
    if len(consumers) > MANY:
        for consumer in consumers:
            _forget(ctx, topic, subscription, consumer)
        reads = dispatcher.remove_together(sub, consumers)
    else:
        for consumer in consumers:
            _forget(ctx, topic, subscription, consumer)
            reads |= dispatcher.remove_consumer(sub, consumer)
    if not subscription.consumers:
        subscription.caught_up = False
        if not subscription.durable:
            delete(ctx, topic, subscription, "its last consumer left")
    elif reads:
        dispatcher.consumers_left(sub)


def _forget(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, consumer: Consumer
) -> None:
    topic.remove_handle(ctx, topic.consumer_handles, consumer.handle)
    subscription.forget(consumer)
    topic.consumers_changed()


def disconnect_all(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, cause: str
) -> None:
    """Close every consumer of a subscription on behalf of the broker. The dispatcher must not be used afterwards."""
    if subscription.consumers:
        subscription.last_active = ctx.clock
    close_consumers(ctx, topic, subscription, subscription.consumers, cause)
    subscription.consumers.clear()
    subscription.caught_up = False


def close_consumers(
    ctx: Context,
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    consumers: list[Consumer],
    cause: str,
) -> None:
    """Send CLOSE_CONSUMER to the consumers and free their handles. The caller updates the dispatcher."""
    for consumer in consumers:
        ctx.emit(CloseConsumer(topic.name, *consumer.handle, subscription.name, cause))
        _forget(ctx, topic, subscription, consumer)


def close(ctx: Context, topic: PersistentTopic, connection: str, consumer_id: int, request_id: int) -> None:
    """CLOSE_CONSUMER succeeds even if the consumer does not exist."""
    name = topic.consumer_handles.get(connection, consumer_id)
    if name is not None:
        subscription = topic.subscriptions[name]
        detach(ctx, topic, subscription, subscription.consumer(connection, consumer_id))
    ctx.emit(Success(topic.name, connection, request_id))


def delete(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, cause: str) -> None:
    """Delete a subscription and its cursor, and trim the ledgers that only it retained."""
    disconnect_all(ctx, topic, subscription, cause)
    part_remembered(ctx, topic, subscription)
    rate_limits.stop(ctx, topic, subscription)
    topic.timers.forget(subscription)
    del topic.subscriptions[subscription.name]
    count_as_gone(topic, subscription)
    cursor = topic.cursors.pop(subscription.name)
    ctx.emit(SubscriptionEvent(topic.name, subscription.name, f"deleted: {cause}"))
    if (
        cursor.name == COMPACTION_CURSOR
        and ctx.config.compactedDataGoesWithSubscription
        and (compacted := topic.compaction.ledger) is not None
    ):
        topic.compaction.ledger = None
        delete_compacted(ctx, topic, compacted, "its subscription is deleted")
    if cursor.durable:
        topic.last_active = ctx.clock
        trim(ctx, topic)


def part_remembered(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> None:
    """The dispatcher is about to go, and with it what it remembers of consumers that left."""
    if subscription.dispatcher is not None:
        for connection in subscription.dispatcher.remembered():
            ctx.part(connection, topic.name)


def count_as_gone(topic: PersistentTopic, subscription: PersistentSubscription) -> None:
    """Move what a subscription has sent to the topic's own counters."""
    topic.counters.messages_out_gone += subscription.messages_out
    topic.counters.bytes_out_gone += subscription.bytes_out
    subscription.messages_out = subscription.bytes_out = 0


def unsubscribe(ctx: Context, topic: PersistentTopic, command: Unsubscribe) -> None:
    """UNSUBSCRIBE, by the only consumer or, with force, by any (docs/rules/subscriptions.md §10)."""
    name = topic.consumer_handles.get(command.connection, command.consumer_id)
    if name is None:
        ctx.emit(
            Error(topic.name, command.connection, command.request_id, "MetadataError", "Consumer not found")
        )
        return
    subscription = topic.subscriptions[name]
    caller, dispatcher = (
        subscription.consumer(command.connection, command.consumer_id),
        subscription.dispatcher,
    )
    assert dispatcher is not None
    force = command.force and ctx.config.forceUnsubscribes
    if not force and not dispatcher.can_unsubscribe(subscription.consumers, caller):
        cause = "Unconnected or shared consumer attempting to unsubscribe"
        ctx.emit(Error(topic.name, command.connection, command.request_id, "MetadataError", cause))
        return
    if not force:
        subscription.consumers.remove(caller)
        _forget(ctx, topic, subscription, caller)
    delete(ctx, topic, subscription, "unsubscribed")
    if ctx.config.unsubscribeOfReaderFails and not subscription.durable:
        cause = f"ManagedCursor not found: {subscription.name}"
        ctx.emit(Error(topic.name, command.connection, command.request_id, "PersistenceError", cause))
        return
    ctx.emit(Success(topic.name, command.connection, command.request_id))
