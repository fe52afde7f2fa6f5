"""Consumers come and go: SUBSCRIBE, CLOSE_CONSUMER, UNSUBSCRIBE, SEEK, last id (rules: subscriptions.md, protocol.md §6)."""

from schemas.commands import GetLastMessageId, Seek, Subscribe, Unsubscribe
from schemas.effect_fields import GetLastMessageIdResponseFields, MarkDeletePosition
from schemas.effects import (
    CloseConsumer,
    CursorMoved,
    Error,
    GetLastMessageIdResponse,
    ReachedEndOfTopic,
    SubscriptionEvent,
    Success,
    Unsupported,
)
from streaming.broker.context import Context
from streaming.broker.dispatch.dispatcher import is_server_only
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.dispatch.selectors import HashRangeExclusive
from streaming.broker.dispatch.single_active_consumer import SingleActiveConsumer
from streaming.broker.dispatch.sticky_key import KeySharedMode, StickyKeyMultipleConsumers
from streaming.broker.dispatch.sticky_key_classic import ClassicStickyKeyMultipleConsumers
from streaming.broker.errors import BrokerError
from streaming.broker.ledger.ack_set import from_words
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.trimming import free_ledgers, trim
from streaming.broker.policies.message_expiry import find_newest_before
from streaming.broker.position import EARLIEST, LATEST, Position, from_wire
from streaming.broker.producer.message_deduplication import DEDUP_CURSOR
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.subscription import Subscription
from streaming.broker.topic import Topic, emit_moved


def _dispatcher(ctx: Context, command: Subscribe) -> SingleActiveConsumer | MultipleConsumers:
    """A new dispatcher of the type that a consumer wants."""
    match command.subType:
        case "Shared":
            return MultipleConsumers()
        case "Key_Shared":
            mode, out_of_order = _key_shared(command)
            classic = ctx.config.subscriptionKeySharedUseClassicPersistentImplementation
            kind = ClassicStickyKeyMultipleConsumers if classic else StickyKeyMultipleConsumers
            return kind.create(ctx.config, mode, out_of_order=out_of_order)
        case _:
            return SingleActiveConsumer(failover=command.subType == "Failover")


def _key_shared(command: Subscribe) -> tuple[KeySharedMode, bool]:
    """What a consumer of Key_Shared asks for: its mode, and whether out of order will do."""
    meta = command.keySharedMeta
    return ("AUTO_SPLIT", False) if meta is None else (meta.keySharedMode, meta.allowOutOfOrderDelivery)


def _mismatch(subscription: Subscription, command: Subscribe) -> str | None:
    """Why a consumer can't share its subscription with those of the present type and mode; None: it can."""
    if subscription.type != command.subType:
        return (
            f"Active subscription type of '{subscription.type}' is different than the connecting consumer's type "
            f"'{command.subType}'."
        )
    dispatcher = subscription.dispatcher
    if not isinstance(dispatcher, StickyKeyMultipleConsumers):
        return None
    mode, out_of_order = _key_shared(command)
    if dispatcher.mode != mode:
        return (
            f"Active subscription key_shared mode of '{dispatcher.mode}' is different than the connecting consumer's "
            f"key_shared mode '{mode}'."
        )
    if dispatcher.out_of_order != out_of_order:
        return (
            f"Active subscription's allowOutOfOrderDelivery of {dispatcher.out_of_order} is different than the "
            f"connecting consumer's {out_of_order}."
        )
    return None


def subscribe(ctx: Context, topic: Topic, command: Subscribe) -> None:
    """Attach a consumer, creating the subscription if need be; SUCCESS or the refusal of Pulsar."""
    handle = (command.connection, command.consumer_id)
    try:
        if handle not in topic.consumer_handles:
            _check(ctx, topic, command)
            _attach(ctx, topic, command)
            return
    except BrokerError as error:
        ctx.emit(Error(topic.name, command.connection, command.request_id, error.code, error.cause))
        return
    ctx.emit(Success(topic.name, command.connection, command.request_id))


def _check(ctx: Context, topic: Topic, command: Subscribe) -> None:
    """The refusals of subscriptions.md §1 in their order, and those of what isn't built."""
    name, config = command.subscription, ctx.config
    existing = topic.subscriptions.get(name)
    limit = ctx.policies_of(topic).maxConsumersPerTopic
    if 0 < limit <= sum(len(subscription.consumers) for subscription in topic.subscriptions.values()):
        raise BrokerError("ConsumerBusy", f"the topic has its maximum of {limit} consumers")
    if command.durable and existing is None and not config.allowAutoSubscriptionCreation:
        raise BrokerError("SubscriptionNotFound", f"Subscription {name} does not exist")
    if command.read_compacted and command.subType not in ("Exclusive", "Failover"):
        raise BrokerError(
            "NotAllowedError", "readCompacted only allowed on failover or exclusive subscriptions"
        )
    if command.subType == "Key_Shared" and not config.subscriptionKeySharedEnable:
        raise BrokerError("NotAllowedError", "Key_Shared subscription is disabled by broker.")
    if command.subType not in config.subscriptionTypesEnabled.split(","):
        raise BrokerError("NotAllowedError", f"Subscription type {command.subType} is not enabled")
    if not is_free_name(name):
        raise BrokerError("ProducerBusy", f"'{name}' is empty or reserved")
    if command.read_compacted:
        raise BrokerError("NotAllowedError", "read_compacted isn't supported yet")
    if topic.fenced:
        raise BrokerError("ServiceNotReady", "the topic is fenced")
    limit = ctx.policies_of(topic).maxSubscriptionsPerTopic
    if existing is None and 0 < limit <= len(topic.subscriptions):
        raise BrokerError("NotAllowedError", f"Exceed the maximum of {limit} subscriptions of the topic")
    if existing is None:
        return
    if existing.durable != command.durable:
        kind = "Durable" if existing.durable else "NonDurable"
        raise BrokerError("NotAllowedError", f"{kind} subscription with the same name already exists.")
    if existing.consumers:
        if (mismatch := _mismatch(existing, command)) is not None:
            raise BrokerError("ConsumerBusy", f"Subscription is of different type. {mismatch}")
        if command.subType == "Exclusive":
            raise BrokerError("ConsumerBusy", "Exclusive consumer is already connected")
        limit = ctx.policies_of(topic).maxConsumersPerSubscription
        if 0 < limit <= len(existing.consumers):
            raise BrokerError("ConsumerBusy", f"the subscription has its maximum of {limit} consumers")


def is_free_name(name: str) -> bool:
    """May a subscription be called so?"""
    return bool(name.strip()) and not name.startswith("pulsar.repl") and name != DEDUP_CURSOR


def _attach(ctx: Context, topic: Topic, command: Subscribe) -> None:
    name = command.subscription
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        if command.durable:
            properties = {pair.key: pair.value for pair in command.subscription_properties}
            subscription = create(
                ctx, topic, name, earliest=command.initialPosition == "Earliest", properties=properties
            )
        else:
            subscription = _create_reader(ctx, topic, command)
    if command.start_message_rollback_duration_sec > 0:
        time = ctx.clock - command.start_message_rollback_duration_sec * 1000
        reset(ctx, topic, subscription, position_at(ctx, topic, time), "start_message_rollback_duration")
    if not subscription.consumers and _mismatch(subscription, command) is not None:
        subscription.type, subscription.dispatcher = command.subType, _dispatcher(ctx, command)
    consumer = Consumer(
        command.connection, command.consumer_id, command.consumer_name or "", command.priority_level,
        -1 if command.consumer_epoch is None else command.consumer_epoch,
        hash_ranges=[] if command.keySharedMeta is None else command.keySharedMeta.hashRanges,
    )  # fmt: skip
    try:
        if isinstance(subscription.dispatcher, StickyKeyMultipleConsumers):
            subscription.dispatcher.check(consumer)
        elif command.subType == "Exclusive" and consumer.hash_ranges:
            HashRangeExclusive().check(consumer.hash_ranges)
    except BrokerError:
        if not subscription.durable and not subscription.consumers:
            delete(ctx, topic, subscription, "its consumer was refused")
        raise
    subscription.last_active = ctx.clock
    topic.consumer_handles[command.connection, command.consumer_id] = name
    ctx.attach(command.connection, topic.name)
    if command.replicate_subscription_state:
        cause = (
            "replicate_subscription_state: there is no other cluster, the subscription is this one's alone"
        )
        ctx.emit(Unsupported(topic.name, command.connection, cause))
    assert subscription.dispatcher is not None
    subscription.dispatcher.add_consumer(ctx, topic, subscription, consumer)
    ctx.emit(Success(topic.name, command.connection, command.request_id))
    if topic.ledger.terminated and topic.cursors[name].backlog(topic.ledger) == 0:
        ctx.emit(ReachedEndOfTopic(topic.name, consumer.connection, consumer.consumer_id))
        subscription.end_reached = True


def create(
    ctx: Context, topic: Topic, name: str, *, earliest: bool, properties: dict[str, str] | None = None
) -> Subscription:
    """A new durable subscription with its cursor."""
    topic.cursors[name] = ManagedCursor.create(name, topic.ledger, earliest=earliest)
    subscription = topic.subscriptions[name] = Subscription(
        name, properties=properties or {}, last_active=ctx.clock
    )
    ctx.emit(SubscriptionEvent(topic.name, name, f"created at {'Earliest' if earliest else 'Latest'}"))
    return subscription


def _create_reader(ctx: Context, topic: Topic, command: Subscribe) -> Subscription:
    """A non-durable subscription: it lives as long as its consumers and holds nothing back."""
    start: Position | None = None
    if (wire := command.start_message_id) is not None:
        start = from_wire(wire.ledgerId, wire.entryId)
        if start >= LATEST:
            start = None
        elif start > EARLIEST and start.entry >= 0:
            start = Position(start.ledger, start.entry - 1)
    name = command.subscription
    earliest = command.initialPosition == "Earliest"
    topic.cursors[name] = ManagedCursor.non_durable(name, topic.ledger, start, earliest=earliest)
    subscription = topic.subscriptions[name] = Subscription(name, durable=False, last_active=ctx.clock)
    ctx.emit(SubscriptionEvent(topic.name, name, "created, not durable"))
    return subscription


def detach(ctx: Context, topic: Topic, subscription: Subscription, *consumers: Consumer) -> None:
    """Consumers leave, for whatever reason: what they had goes to those that stay. A non-durable subscription goes with
    its last one."""
    subscription.last_active = ctx.clock
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    reads = False
    for consumer in consumers:
        del topic.consumer_handles[consumer.handle]
        reads |= dispatcher.remove_consumer(ctx, topic, subscription, consumer)
    if not subscription.consumers:
        if not subscription.durable:
            delete(ctx, topic, subscription, "its last consumer left")
    elif reads and isinstance(dispatcher, MultipleConsumers):
        dispatcher.dispatch(ctx, topic, subscription)


def disconnect_all(ctx: Context, topic: Topic, subscription: Subscription, cause: str) -> None:
    """The broker closes every consumer of a subscription, whose dispatcher isn't used any more."""
    if subscription.consumers:
        subscription.last_active = ctx.clock
    _close_all(ctx, topic, subscription, subscription.consumers, cause)
    subscription.consumers.clear()


def _close_all(
    ctx: Context, topic: Topic, subscription: Subscription, consumers: list[Consumer], cause: str
) -> None:
    """Tell them; their handles are free. The dispatcher is the caller's affair."""
    for consumer in consumers:
        ctx.emit(CloseConsumer(topic.name, *consumer.handle, subscription.name, cause))
        del topic.consumer_handles[consumer.handle]


def close(ctx: Context, topic: Topic, connection: str, consumer_id: int, request_id: int) -> None:
    """CLOSE_CONSUMER: success also when there is no such consumer."""
    name = topic.consumer_handles.get((connection, consumer_id))
    if name is not None:
        subscription = topic.subscriptions[name]
        detach(ctx, topic, subscription, subscription.consumer(connection, consumer_id))
    ctx.emit(Success(topic.name, connection, request_id))


def delete(ctx: Context, topic: Topic, subscription: Subscription, cause: str) -> None:
    """Remove a subscription and its cursor; ledgers it held back may go."""
    disconnect_all(ctx, topic, subscription, cause)
    del topic.subscriptions[subscription.name]
    _count_as_gone(topic, subscription)
    cursor = topic.cursors.pop(subscription.name)
    ctx.emit(SubscriptionEvent(topic.name, subscription.name, f"deleted: {cause}"))
    if cursor.durable:
        trim(ctx, topic)


def _count_as_gone(topic: Topic, subscription: Subscription) -> None:
    """What it has sent counts for the topic from now on."""
    topic.counters.messages_out_gone += subscription.messages_out
    topic.counters.bytes_out_gone += subscription.bytes_out
    subscription.messages_out = subscription.bytes_out = 0


def unsubscribe(ctx: Context, topic: Topic, command: Unsubscribe) -> None:
    """UNSUBSCRIBE of the only consumer, or of any with force (subscriptions.md §7)."""
    name = topic.consumer_handles.get((command.connection, command.consumer_id))
    if name is None:
        _error(ctx, topic, command, "MetadataError", "Consumer not found")
        return
    subscription = topic.subscriptions[name]
    if not command.force and len(subscription.consumers) > 1:
        _error(
            ctx, topic, command, "MetadataError", "Unconnected or shared consumer attempting to unsubscribe"
        )
        return
    caller = subscription.consumer(command.connection, command.consumer_id)
    if not command.force:
        subscription.consumers.remove(caller)
        del topic.consumer_handles[command.connection, command.consumer_id]
    delete(ctx, topic, subscription, "unsubscribed")
    ctx.emit(Success(topic.name, command.connection, command.request_id))


def seek(ctx: Context, topic: Topic, command: Seek) -> None:
    """SEEK: its consumers are closed (of Exclusive: the active one), the cursor is reset, then SUCCESS."""
    name = topic.consumer_handles.get((command.connection, command.consumer_id))
    if name is None:
        _error(ctx, topic, command, "MetadataError", "Consumer not found")
        return
    subscription = topic.subscriptions[name]
    batch: int | None = None
    if (wire := command.message_id) is not None:
        target, cause = from_wire(wire.ledgerId, wire.entryId), "seek to a message id"
        if ctx.config.acknowledgmentAtBatchIndexLevelEnabled:
            batch = from_words(wire.ack_set) or None
    elif command.message_publish_time is not None:
        target, cause = position_at(ctx, topic, command.message_publish_time), "seek to a publish time"
    else:
        _error(ctx, topic, command, "MetadataError", "seek needs a message id or a publish time")
        return
    reset(ctx, topic, subscription, target, cause, batch)
    ctx.emit(Success(topic.name, command.connection, command.request_id))


def position_at(ctx: Context, topic: Topic, time: int) -> Position:
    """Where a seek to a publish time (ms) lands: after the newest entry published before it, else at the first."""
    found = find_newest_before(ctx, topic, time)
    if found is None:
        return Position(next(iter(topic.ledger.ledgers), topic.ledger.current), 0)
    return found.next()


def reset(
    ctx: Context,
    topic: Topic,
    subscription: Subscription,
    target: Position,
    cause: str,
    batch: int | None = None,
) -> None:
    """Move a subscription to `target`, disconnecting who reads from it (of Failover: the active one). Acks after it are forgotten.

    A non-durable subscription outlives this loss of its consumers, so that its reader finds it when it returns. For
    Pulsar only its cursor does: its counters begin anew.
    """
    ledger, dispatcher = topic.ledger, subscription.dispatcher
    closed = list(subscription.consumers)
    if isinstance(dispatcher, SingleActiveConsumer):
        closed = [closed[dispatcher.active]] if dispatcher.active >= 0 else []
    _close_all(ctx, topic, subscription, closed, cause)
    subscription.last_active = ctx.clock
    subscription.end_reached = False
    cursor = topic.cursors[subscription.name]
    before, backlog = cursor.mark_delete, cursor.backlog(ledger)
    former = topic.change_cursor(ctx, cursor, lambda: cursor.reset(ledger, target))
    if batch is not None:
        cursor.set_batch(target, batch)
    emit_moved(ctx, CursorMoved, topic, cursor, before, backlog - cursor.backlog(ledger), cause)
    if isinstance(dispatcher, SingleActiveConsumer):
        if closed:
            dispatcher.drop_active(subscription)
    elif dispatcher is not None:
        subscription.consumers.clear()
        subscription.dispatcher = dispatcher.renewed()
        subscription.dispatcher.delayed = dispatcher.delayed  # quirk: until the next consumer comes
    if not subscription.durable and not subscription.consumers:
        _count_as_gone(topic, subscription)
    free_ledgers(ctx, topic, cursor, former)


def last_message_id(ctx: Context, topic: Topic, command: GetLastMessageId) -> None:
    """GET_LAST_MESSAGE_ID: the last entry that a consumer could get, and the caller's mark-delete position."""
    name = topic.consumer_handles.get((command.connection, command.consumer_id))
    if name is None:
        _error(ctx, topic, command, "MetadataError", "Consumer not found")
        return
    ledger, position, batch_index = topic.ledger, topic.ledger.last_confirmed, -1
    while position.entry >= 0 and position.ledger in ledger.ledgers:
        entry = ctx.entries.get(topic.name, position)
        if not is_server_only(entry):
            if (messages := entry.metadata.num_messages_in_batch) is not None:
                batch_index = messages - 1
            break
        position = ledger.previous(position)
    else:
        position = Position(-1, -1)
    mark_delete = topic.cursors[name].mark_delete
    fields = GetLastMessageIdResponseFields(
        batch_index=batch_index,
        consumer_mark_delete_position=MarkDeletePosition(
            ledgerId=mark_delete.ledger, entryId=mark_delete.entry
        ),
    )
    ctx.emit(
        GetLastMessageIdResponse(
            topic.name, command.connection, command.request_id, command.consumer_id, *position, fields
        )
    )


def _error(
    ctx: Context, topic: Topic, command: Unsubscribe | Seek | GetLastMessageId, error: str, cause: str
) -> None:
    ctx.emit(Error(topic.name, command.connection, command.request_id, error, cause))
