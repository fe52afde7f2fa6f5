"""Consumers of a non-persistent topic come, leave and make requests (mirrors `NonPersistentSubscription`).

A subscription lives as long as it has consumers, or longer if nonPersistentSubscriptionsStay. It has no position: as in Pulsar,
requests that concern a position succeed without effect or are refused.
"""

from schemas import effects
from schemas.commands import (
    Ack,
    CloseConsumer,
    Flow,
    GetLastMessageId,
    RedeliverUnacknowledgedMessages,
    Seek,
    Subscribe,
    Unsubscribe,
)
from schemas.effects import (
    AckResponse,
    Error,
    SubscriptionEvent,
    Success,
)
from streaming.broker.context import Context
from streaming.broker.errors import BrokerError
from streaming.broker.ledger.ack_set import from_words
from streaming.broker.non_persistent.dispatchers import new_dispatcher
from streaming.broker.non_persistent.subscription import NonPersistentSubscription
from streaming.broker.non_persistent.topic import NonPersistentTopic
from streaming.broker.position import from_wire
from streaming.broker.rates.rate import Rates
from streaming.broker.schema import schema_registry
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.subscription import INDIVIDUAL_TYPES
from streaming.broker.topic.joining import check_joins, check_max_consumers, check_type_and_name

# -- subscribing --------------------------------------------------------------------------------------------------


def subscribe(ctx: Context, topic: NonPersistentTopic, command: Subscribe) -> None:
    """SUBSCRIBE: attach a consumer, and create the subscription if there is none."""
    if topic.consumer_handles.get(command.connection, command.consumer_id) is None:
        try:
            _check(ctx, topic, command)
            _attach(ctx, topic, command)
        except BrokerError as error:
            ctx.emit(Error(topic.name, command.connection, command.request_id, error.code, error.cause))
            return
    ctx.emit(Success(topic.name, command.connection, command.request_id))


def _check(ctx: Context, topic: NonPersistentTopic, command: Subscribe) -> None:
    """The refusals of docs/rules/subscriptions.md §1, §2, without those that Pulsar has for persistent topics only: a
    subscription may always be created, their number is not limited, and durable or not makes no difference. Raises
    `BrokerError`.
    """
    policies = schema_registry.policies_of(ctx, topic)
    others = (
        consumer for subscription in topic.subscriptions.values() for consumer in subscription.consumers
    )
    schema_registry.check_consumer(
        ctx, topic.name, command.schema, policies, idle=not topic.producers, consumers=others
    )
    check_max_consumers(ctx, topic)
    if command.read_compacted:
        raise BrokerError("NotAllowedError", "readCompacted only valid on persistent topics")
    check_type_and_name(ctx, topic, command)
    if command.subType == "Exclusive" and command.keySharedMeta is not None:
        raise BrokerError("NotAllowedError", "Exclusive with hash ranges isn't supported yet")
    existing = topic.subscriptions.get(command.subscription)
    if existing is not None and existing.consumers:
        check_joins(ctx, topic, existing, command)


def _attach(ctx: Context, topic: NonPersistentTopic, command: Subscribe) -> None:
    """Add the consumer. Raises `BrokerError` if it cannot have the hash ranges it asks for; the topic is then unchanged."""
    name = command.subscription
    subscription = topic.subscriptions.get(name)
    if subscription is None or not subscription.consumers:
        former = None if subscription is None else subscription.dispatcher
        dispatcher = new_dispatcher(command.subType, command.keySharedMeta, ctx.config, former)
    else:
        dispatcher = subscription.dispatcher
    consumer = Consumer(
        command.connection, command.consumer_id, command.consumer_name or "", command.priority_level,
        hash_ranges=[] if command.keySharedMeta is None else command.keySharedMeta.hashRanges,
        rates=Rates(ctx.clock), reads_any_schema=schema_registry.reads_any_schema(command.schema),
    )  # fmt: skip
    dispatcher.check(consumer)
    if subscription is None:
        properties = {pair.key: pair.value for pair in command.subscription_properties}
        subscription = topic.subscriptions[name] = NonPersistentSubscription(
            name, command.subType, dispatcher, properties=properties, durable=command.durable
        )
        ctx.emit(SubscriptionEvent(topic.name, name, "created, not durable"))
    elif not subscription.consumers:
        subscription.type, subscription.dispatcher = command.subType, dispatcher
    subscription.last_active = ctx.clock
    topic.add_handle(ctx, topic.consumer_handles, consumer.handle, name)
    dispatcher.add_consumer(ctx, topic.name, subscription.consumers, consumer)


# -- leaving ------------------------------------------------------------------------------------------------------


def detach(
    ctx: Context, topic: NonPersistentTopic, subscription: NonPersistentSubscription, *consumers: Consumer
) -> None:
    """Consumers leave, for whatever reason. The last one takes its subscription with it, unless that stays."""
    leaving = {consumer.handle for consumer in consumers}
    subscription.last_active = ctx.clock
    for consumer in consumers:
        topic.remove_handle(ctx, topic.consumer_handles, consumer.handle)
    subscription.consumers[:] = [each for each in subscription.consumers if each.handle not in leaving]
    if subscription.consumers:
        subscription.dispatcher.consumers_removed(ctx, topic.name, subscription.consumers, consumers)
    elif ctx.config.nonPersistentSubscriptionsStay and subscription.durable:
        subscription.dispatcher = new_dispatcher(subscription.type, None, ctx.config, subscription.dispatcher)
    else:
        delete(ctx, topic, subscription, "its last consumer left")


def delete(
    ctx: Context, topic: NonPersistentTopic, subscription: NonPersistentSubscription, cause: str
) -> None:
    """A subscription without consumers goes."""
    del topic.subscriptions[subscription.name]
    topic.drops.pop(subscription.name, None)
    topic.counters.messages_out_gone += subscription.messages_out
    topic.counters.bytes_out_gone += subscription.bytes_out
    ctx.emit(SubscriptionEvent(topic.name, subscription.name, f"deleted: {cause}"))


def disconnect_all(
    ctx: Context, topic: NonPersistentTopic, subscription: NonPersistentSubscription, cause: str
) -> None:
    """Close every consumer of a subscription, which deletes it, unless it stays without them."""
    closed = list(subscription.consumers)
    for consumer in closed:
        ctx.emit(effects.CloseConsumer(topic.name, *consumer.handle, subscription.name, cause))
    if closed:
        detach(ctx, topic, subscription, *closed)


def remove(
    ctx: Context, topic: NonPersistentTopic, subscription: NonPersistentSubscription, cause: str
) -> None:
    """Close every consumer of a subscription, and delete it."""
    disconnect_all(ctx, topic, subscription, cause)
    if subscription.name in topic.subscriptions:
        delete(ctx, topic, subscription, cause)


def connection_lost(ctx: Context, topic: NonPersistentTopic, connection: str) -> None:
    """The consumers of a connection leave."""
    for name in dict.fromkeys(topic.consumer_handles.of(connection).values()):
        subscription = topic.subscriptions[name]
        lost = [consumer for consumer in subscription.consumers if consumer.connection == connection]
        detach(ctx, topic, subscription, *lost)


def close(ctx: Context, topic: NonPersistentTopic, command: CloseConsumer) -> None:
    """CLOSE_CONSUMER: success, even if there is no such consumer."""
    if (found := _find(topic, command.connection, command.consumer_id)) is not None:
        detach(ctx, topic, *found)
    ctx.emit(Success(topic.name, command.connection, command.request_id))


def unsubscribe(ctx: Context, topic: NonPersistentTopic, command: Unsubscribe) -> None:
    """UNSUBSCRIBE by the only consumer, or by any consumer with force: the others are closed
    (docs/rules/subscriptions.md §10)."""
    found = _find(topic, command.connection, command.consumer_id)
    if found is None:
        _error(ctx, topic, command, "MetadataError", "Consumer not found")
        return
    subscription, consumer = found
    if len(subscription.consumers) > 1 and not (command.force and ctx.config.forceUnsubscribes):
        cause = "Unconnected or shared consumer attempting to unsubscribe"
        _error(ctx, topic, command, "MetadataError", cause)
        return
    detach(ctx, topic, subscription, consumer)
    remove(ctx, topic, subscription, "unsubscribed")
    ctx.emit(Success(topic.name, command.connection, command.request_id))


# -- requests -----------------------------------------------------------------------------------------------------


def flow(ctx: Context, topic: NonPersistentTopic, command: Flow) -> None:
    """FLOW: permits for messages to come. Those of an unknown consumer are lost (docs/rules/protocol.md §13)."""
    if (found := _find(topic, command.connection, command.consumer_id)) is not None:
        subscription, consumer = found
        if (excess := consumer.exceeds(command.messagePermits)) is not None:
            ctx.close_connection(topic.name, command.connection, excess)
            return
        consumer.last_flow = ctx.clock
        if consumer.blocked:
            consumer.permits_while_blocked += command.messagePermits
            return
        consumer.permits += command.messagePermits
        subscription.dispatcher.permits_changed(command.messagePermits)


def ack(ctx: Context, topic: NonPersistentTopic, command: Ack) -> None:
    """ACK: there is nothing to acknowledge. It is answered if its consumer is known and asks for an answer."""
    if (found := _find(topic, command.connection, command.consumer_id)) is not None:
        found[1].last_ack = ctx.clock
        _count_acks(ctx, topic, command, *found)
        if command.request_id is not None:
            ctx.emit(AckResponse(topic.name, command.connection, command.request_id, command.consumer_id))


def _count_acks(
    ctx: Context,
    topic: NonPersistentTopic,
    command: Ack,
    subscription: NonPersistentSubscription,
    consumer: Consumer,
) -> None:
    """quirk: an ack counts the messages of what was last sent with its position, which all messages have in common."""
    individual = subscription.type in INDIVIDUAL_TYPES
    if command.ack_type == "Cumulative":
        consumer.acks += not individual and len(command.message_id) == 1
        return
    for id_ in command.message_id:
        position, left = from_wire(id_.ledgerId, id_.entryId), from_words(id_.ack_set)
        others = subscription.consumers if individual else []
        owner = next((each for each in (consumer, *others) if position in each.pending), None)
        if not left:
            acked = 1 if owner is None else owner.pending.pop(position)
            consumer.acks += acked
            if individual and ctx.config.nonPersistentCountsUnacked:
                _lower_unacked(ctx, topic, subscription, owner or consumer, acked, unblocks=owner is not None)
        elif owner is not None and ctx.config.acknowledgmentAtBatchIndexLevelEnabled:
            consumer.acks += owner.pending[position] - left.bit_count()


def _lower_unacked(
    ctx: Context, topic: NonPersistentTopic, subscription: NonPersistentSubscription, consumer: Consumer, messages: int,
    *, unblocks: bool,
) -> None:  # fmt: skip
    """Messages are acked (nonPersistentCountsUnacked). At half of its limit, a consumer gets the permits that it asked for since."""
    consumer.unacked -= messages
    limit = ctx.policies_of(topic).maxUnackedMessagesPerConsumer
    if unblocks and consumer.blocked and (limit <= 0 or consumer.unacked <= limit // 2):
        subscription.dispatcher.permits_changed(consumer.unblock())


def redeliver(ctx: Context, topic: NonPersistentTopic, command: RedeliverUnacknowledgedMessages) -> None:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES: there is nothing to redeliver, but it shows in the stats."""
    if (found := _find(topic, command.connection, command.consumer_id)) is not None:
        subscription, consumer = found
        wanted = [from_wire(id_.ledgerId, id_.entryId) for id_ in command.message_ids] or list(
            consumer.pending
        )
        messages = sum(consumer.pending.pop(position, 0) for position in wanted)
        consumer.redelivered += messages
        if ctx.config.nonPersistentCountsUnacked:
            consumer.unacked = consumer.unacked - messages if command.message_ids else 0
            subscription.dispatcher.permits_changed(consumer.unblock())


def seek(ctx: Context, topic: NonPersistentTopic, command: Seek) -> None:
    """SEEK. quirk: it succeeds without effect, and disconnects nobody."""
    if _find(topic, command.connection, command.consumer_id) is None:
        _error(ctx, topic, command, "MetadataError", "Consumer not found")
    elif command.message_id is None and command.message_publish_time is None:
        _error(ctx, topic, command, "MetadataError", "seek needs a message id or a publish time")
    else:
        ctx.emit(Success(topic.name, command.connection, command.request_id))


def last_message_id(ctx: Context, topic: NonPersistentTopic, command: GetLastMessageId) -> None:
    """GET_LAST_MESSAGE_ID is refused: messages have no ids here."""
    if _find(topic, command.connection, command.consumer_id) is None:
        _error(ctx, topic, command, "MetadataError", "Consumer not found")
    else:
        cause = "Failed to recover Transaction Buffer."  # quirk: what fails is that the topic is no persistent one
        _error(ctx, topic, command, "UnknownError", cause)


def _find(
    topic: NonPersistentTopic, connection: str, consumer_id: int
) -> tuple[NonPersistentSubscription, Consumer] | None:
    """The connected consumer with this id on this connection, and its subscription."""
    name = topic.consumer_handles.get(connection, consumer_id)
    if name is None:
        return None
    subscription = topic.subscriptions[name]
    return subscription, subscription.consumer(connection, consumer_id)


def _error(
    ctx: Context,
    topic: NonPersistentTopic,
    command: Unsubscribe | Seek | GetLastMessageId,
    error: str,
    cause: str,
) -> None:
    ctx.emit(Error(topic.name, command.connection, command.request_id, error, cause))
