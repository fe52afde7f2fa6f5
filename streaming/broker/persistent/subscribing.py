"""SUBSCRIBE: add a consumer to a subscription, creating it if needed (mirrors `PersistentTopic.subscribe`; rules:
docs/rules/subscriptions.md §1–§4)."""

from schemas.commands import IntRange, Subscribe
from schemas.effects import Error, SubscriptionEvent, Success
from streaming.broker.context import Context
from streaming.broker.dispatch.types import new_dispatcher
from streaming.broker.errors import BrokerError
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.names import check_subscription_name
from streaming.broker.persistent import rate_limits
from streaming.broker.persistent.leaving import delete, part_remembered
from streaming.broker.persistent.seeking import position_at, reset
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import EARLIEST, LATEST, Position, from_wire
from streaming.broker.rates.rate import Rates
from streaming.broker.schema import schema_registry
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.topic.joining import check_joins, check_max_consumers, check_type_and_name, mismatch


def subscribe(ctx: Context, topic: PersistentTopic, command: Subscribe) -> None:
    """Add a consumer, creating the subscription if needed. Responds with SUCCESS or the error that Pulsar sends."""
    try:
        if topic.consumer_handles.get(command.connection, command.consumer_id) is None:
            _check(ctx, topic, command)
            _attach(ctx, topic, command)
            return
    except BrokerError as error:
        ctx.emit(Error(topic.name, command.connection, command.request_id, error.code, error.cause))
        return
    ctx.emit(Success(topic.name, command.connection, command.request_id))


def _check(ctx: Context, topic: PersistentTopic, command: Subscribe) -> None:
    """The checks of docs/rules/subscriptions.md §1, §2, in that order, and those for unsupported features. Raises
    `BrokerError`."""
    name = command.subscription
    existing = topic.subscriptions.get(name)
    idle = not topic.producers and not topic.ledger.total_size
    policies = schema_registry.policies_of(ctx, topic)
    others = (
        consumer for subscription in topic.subscriptions.values() for consumer in subscription.consumers
    )
    schema_registry.check_consumer(ctx, topic.name, command.schema, policies, idle=idle, consumers=others)
    if not ctx.config.refusedConsumerLeavesSubscription:
        check_max_consumers(ctx, topic)
    if command.durable and existing is None and not ctx.policies_of(topic).autoSubscriptionCreation:
        raise BrokerError("SubscriptionNotFound", "Subscription does not exist")
    if command.read_compacted and command.subType not in ("Exclusive", "Failover"):
        raise BrokerError(
            "NotAllowedError", "readCompacted only allowed on failover or exclusive subscriptions"
        )
    check_type_and_name(ctx, topic, command)
    rate_limits.check_subscribe(ctx, topic, command)
    if topic.fenced:
        raise BrokerError("ServiceNotReady", "the topic is fenced")
    check_max_subscriptions(ctx, topic, name)
    if existing is None:
        return
    if existing.durable != command.durable:
        kind = "Durable" if existing.durable else "NonDurable"
        raise BrokerError("NotAllowedError", f"{kind} subscription with the same name already exists.")
    if ctx.config.refusedConsumerLeavesSubscription:
        check_max_consumers(ctx, topic)
    if existing.consumers:
        check_joins(ctx, topic, existing, command)


def check_max_subscriptions(ctx: Context, topic: PersistentTopic, name: str) -> None:
    """Raise `BrokerError` if a new subscription would be one more than maxSubscriptionsPerTopic."""
    limit, known = ctx.policies_of(topic).maxSubscriptionsPerTopic, topic.subscriptions
    if not 0 < limit <= len(known) or (
        (found := known.get(name)) is not None and not found.awaits_its_reader
    ):
        return
    if limit <= sum(not each.awaits_its_reader for each in known.values()):
        reason = f"Exceed the maximum number of subscriptions of the topic: {topic.name}"
        raise BrokerError("NotAllowedError", reason)


def _attach(ctx: Context, topic: PersistentTopic, command: Subscribe) -> None:
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
        if (target := position_at(ctx, topic, time)) is not None:
            reset(ctx, topic, subscription, target, "start_message_rollback_duration")
    if ctx.config.refusedConsumerLeavesSubscription:
        subscription.refused = True
        check_max_consumers(ctx, topic)
        subscription.refused = False
    if not subscription.consumers and mismatch(subscription, command) is not None:
        part_remembered(ctx, topic, subscription)
        subscription.type = command.subType
        subscription.dispatcher = new_dispatcher(command.subType, command.keySharedMeta, ctx.config)
        subscription.forget_dispatcher()
        rate_limits.start(ctx, topic, subscription)
    dispatcher = subscription.dispatcher
    assert dispatcher is not None  # set above if the type was new
    consumer = Consumer(
        command.connection, command.consumer_id, command.consumer_name or "", command.priority_level,
        -1 if command.consumer_epoch is None else command.consumer_epoch,
        hash_ranges=[] if command.keySharedMeta is None else sorted(command.keySharedMeta.hashRanges, key=_slots),
        rates=Rates(ctx.clock), reads_any_schema=schema_registry.reads_any_schema(command.schema),
        reads_compacted=command.read_compacted, from_earliest=_starts_at_the_earliest(command),
    )  # fmt: skip
    try:
        dispatcher.check(consumer)
    except BrokerError:
        if not subscription.durable and not subscription.consumers:
            delete(ctx, topic, subscription, "its consumer was refused")
        raise
    subscription.last_active = ctx.clock
    topic.add_handle(ctx, topic.consumer_handles, consumer.handle, name)
    topic.consumers_changed()
    subscription.replicated |= command.replicate_subscription_state
    dispatcher.add_consumer(topic.context_of(ctx, subscription), consumer)
    topic.check_backlogged(ctx)
    ctx.emit(Success(topic.name, command.connection, command.request_id))


def _starts_at_the_earliest(command: Subscribe) -> bool:
    wire = command.start_message_id
    return wire is None or (from_wire(wire.ledgerId, wire.entryId) == EARLIEST and wire.batch_index < 0)


def _slots(given: IntRange) -> tuple[int, int]:
    return given.start, given.end


def create(
    ctx: Context,
    topic: PersistentTopic,
    name: str,
    *,
    earliest: bool,
    properties: dict[str, str] | None = None,
) -> PersistentSubscription:
    """A new durable subscription with its cursor. Raises `BrokerError`, as the gate for names and `_check_first_position` do."""
    check_subscription_name(name)
    if earliest:
        _check_first_position(topic)
    topic.cursors[name] = ManagedCursor.create(name, topic.ledger, earliest=earliest)
    subscription = topic.subscriptions[name] = PersistentSubscription(
        name, properties=properties or {}, last_active=ctx.clock
    )
    ctx.emit(SubscriptionEvent(topic.name, name, f"created at {'Earliest' if earliest else 'Latest'}"))
    return subscription


def _check_first_position(topic: PersistentTopic) -> None:
    """quirk: a terminated topic that was loaded again without any entries has no ledgers, so no cursor can start at the first
    of them. Raises `BrokerError`, with a cause that Pulsar does not tell."""
    if not topic.ledger.ledgers:
        raise BrokerError("UnknownError", "the topic is terminated and has no ledger to begin with")


def _create_reader(ctx: Context, topic: PersistentTopic, command: Subscribe) -> PersistentSubscription:
    """A new non-durable subscription. It lasts as long as its consumers and retains no ledgers."""
    start: Position | None = None
    if (wire := command.start_message_id) is not None:
        start = from_wire(wire.ledgerId, wire.entryId)
        if start >= LATEST:
            start = None
        elif start > EARLIEST and start.entry >= 0:
            start = Position(start.ledger, start.entry - 1)
    name = command.subscription
    earliest = command.initialPosition == "Earliest"
    if earliest if start is None else start <= EARLIEST:
        _check_first_position(topic)
    topic.cursors[name] = ManagedCursor.non_durable(
        name,
        topic.ledger,
        start,
        earliest=earliest,
        keeps_start=ctx.config.readerStartsAtItsPosition,
        reads_compacted=command.read_compacted,
    )
    subscription = topic.subscriptions[name] = PersistentSubscription(
        name, durable=False, last_active=ctx.clock
    )
    ctx.emit(SubscriptionEvent(topic.name, name, "created, not durable"))
    return subscription
