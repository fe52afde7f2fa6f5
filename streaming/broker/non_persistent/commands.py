"""Commands on a non-persistent topic (A8; rules: producer.md §3 and §5): messages that are passed on and never stored.

A message is answered 0:0 and delivered in the same breath, so nothing is ever in flight here. Only a fault,
DelayWrites, holds messages back; then the limit of a connection's messages in flight can be reached. In Pulsar that limit is
of the whole connection; here it is of the connection's messages on one topic, since only these stand in one order.
"""

from urllib.parse import unquote

import msgspec

from schemas import commands as c
from schemas.effect_fields import AdminResponseFields
from schemas.effects import (
    AdminResponse,
    SendReceipt,
    TopicEvent,
    Unsupported,
)
from schemas.entries import Entry
from streaming.broker import admin
from streaming.broker.context import Context
from streaming.broker.errors import AdminError
from streaming.broker.non_persistent import consumers
from streaming.broker.non_persistent.topic import NonPersistentTopic, deliver, no_quota
from streaming.broker.policies.hierarchy import HierarchyTopicPolicies
from streaming.broker.producer import closing, creation
from streaming.broker.producer.writes import from_send, from_short, may_send, refuse, too_large
from streaming.broker.rate import Rate
from streaming.broker.stats import stats_with_drops
from streaming.broker.topic import PendingWrite
from streaming.broker.topic_commands import TopicCommand


def create(ctx: Context, name: str) -> NonPersistentTopic:
    """A new topic, loaded for the first time."""
    ctx.emit(TopicEvent(name, "created"))
    return NonPersistentTopic(name)


def fold(ctx: Context, topic: NonPersistentTopic, command: TopicCommand) -> None:
    """Carry the command out, to the end of everything it sets off."""
    match command:
        case c.Publish():
            _publish_short(ctx, topic, command)
        case c.Send():
            _send(ctx, topic, command)
        case c.Producer():
            # An initial subscription would have no consumer, so no use and no life.
            without = msgspec.structs.replace(command, initial_subscription_name=None)
            creation.create(ctx, topic, without)
        case c.CloseProducer():
            closing.close(ctx, topic, command.connection, command.producer_id, command.request_id)
        case c.Subscribe():
            consumers.subscribe(ctx, topic, command)
        case c.Flow() if command.messagePermits <= 0:
            cause = f"FLOW of {command.messagePermits} permits: expected 1 or more"
            ctx.close_connection(topic.name, command.connection, cause)
        case c.Flow():
            consumers.flow(ctx, topic, command)
        case c.Ack():
            consumers.ack(ctx, topic, command)
        case c.CloseConsumer():
            consumers.close(ctx, topic, command)
        case c.Unsubscribe():
            consumers.unsubscribe(ctx, topic, command)
        case c.RedeliverUnacknowledgedMessages():
            pass  # nothing is kept that could come again
        case c.Seek():
            consumers.seek(ctx, topic, command)
        case c.GetLastMessageId():
            consumers.last_message_id(ctx, topic, command)
        case c.Admin():
            _admin(ctx, topic, command)
        case _:
            _fault(ctx, topic, command)
    _forget_drops(topic)


def connection_lost(ctx: Context, topic: NonPersistentTopic, connection: str) -> None:
    """Everything a connection had on the topic is closed, producers first."""
    closing.connection_lost(ctx, topic, connection)
    consumers.connection_lost(ctx, topic, connection)
    _forget_drops(topic)


def _forget_drops(topic: NonPersistentTopic) -> None:
    """The counters of producers that left go with them."""
    for name in topic.publisher_drops.keys() - topic.producers.keys():
        del topic.publisher_drops[name]


# -- publishing ---------------------------------------------------------------------------------------------------


def _send(ctx: Context, topic: NonPersistentTopic, command: c.Send) -> None:
    """A SEND of a connected producer."""
    policies = ctx.policies_of(topic)
    write = from_send(ctx, topic, command)
    if write is None or _too_many_in_flight(ctx, topic, write, command.num_messages):
        return
    if may_send(ctx, topic, policies, command, write):
        _publish(ctx, topic, policies, write, command.num_messages)


def _publish_short(ctx: Context, topic: NonPersistentTopic, command: c.Publish) -> None:
    """The short form."""
    policies = ctx.policies_of(topic)
    write = from_short(ctx, topic, policies, command)
    if write is not None and not _too_many_in_flight(ctx, topic, write, 1):
        _publish(ctx, topic, policies, write, 1)


def _too_many_in_flight(ctx: Context, topic: NonPersistentTopic, write: PendingWrite, messages: int) -> bool:
    """Is the limit of the connection exceeded? Then the message is dropped. One above the limit may be in flight."""
    limit = ctx.config.maxConcurrentNonPersistentMessagePerConnection
    if not topic.pending or topic.in_flight(write.producer.connection) <= limit:
        return False
    _drop(ctx, topic, write, messages, f"dropped: more than {limit} messages in flight")
    return True


def _publish(
    ctx: Context,
    topic: NonPersistentTopic,
    policies: HierarchyTopicPolicies,
    write: PendingWrite,
    messages: int,
) -> None:
    """`messages` is what the command says of itself."""
    topic.counters.messages_in += messages
    topic.counters.bytes_in += write.size
    if (refusal := too_large(ctx, policies, write)) is not None:
        refuse(ctx, topic, write, "NotAllowedError", refusal)
    elif topic.delay_writes or topic.pending:
        topic.delay_writes = max(topic.delay_writes - 1, 0)
        topic.pending.append(write)
    else:
        _complete(ctx, topic, write)


def _complete(ctx: Context, topic: NonPersistentTopic, write: PendingWrite) -> None:
    """The receipt first, whatever becomes of the message then."""
    _receipt(ctx, topic, write, 0, None, _messages(write))
    deliver(ctx, topic, write)


def _drop(ctx: Context, topic: NonPersistentTopic, write: PendingWrite, messages: int, cause: str) -> None:
    """The message of a producer goes nowhere: it is told so by the id −1:−1."""
    drops = topic.publisher_drops.setdefault(write.producer.name, Rate())
    drops.record(messages, ctx.clock, ctx.config)
    _receipt(ctx, topic, write, -1, cause, messages)


def _receipt(
    ctx: Context, topic: NonPersistentTopic, write: PendingWrite, id_: int, cause: str | None, messages: int
) -> None:
    producer, metadata = write.producer, write.metadata
    ctx.emit(
        SendReceipt(
            topic.name, producer.connection, producer.producer_id, producer.name, write.sequence_id,
            write.highest_sequence_id, id_, id_, cause, write.size, messages, metadata.publish_time,
            metadata.partition_key,
        )
    )  # fmt: skip


def _messages(write: PendingWrite) -> int:
    return Entry(write.metadata, write.size).messages


def _fault(ctx: Context, topic: NonPersistentTopic, command: c.Fault) -> None:
    """Hold messages in flight, or let them go: on to the consumers, or lost, which their producers are told."""
    match command.fault:
        case "DelayWrites":
            topic.delay_writes += command.count
        case "CompleteWrites":
            for _ in range(min(command.count or len(topic.pending), len(topic.pending))):
                write = topic.pending.pop(0)
                _complete(ctx, topic, write)
                closing.write_done(ctx, topic, write.producer)
        case "LoseWrites":
            lost, topic.pending = topic.pending, []
            for write in lost:
                _drop(ctx, topic, write, _messages(write), "dropped: lost in flight")
                closing.write_done(ctx, topic, write.producer)
        case _:
            cause = "FailWrites: a non-persistent topic writes nothing that could fail; use DelayWrites, LoseWrites"
            ctx.emit(Unsupported(topic.name, command.connection, cause))


# -- administration -----------------------------------------------------------------------------------------------


def _admin(ctx: Context, topic: NonPersistentTopic, command: c.Admin) -> None:
    """Policies, stats, unload, the deletion of a subscription. Other calls are about what is stored, so refused."""
    parts = command.path.partition("?")[0].split("/", 5)
    call = "/" + parts[5] if len(parts) > 5 else ""
    known = any(command.method == method and pattern.fullmatch(call) for method, pattern, _ in admin.ROUTES)
    if not known or (command.method, call) == ("GET", "/internalStats"):
        admin.call_topic(ctx, topic, command)
        topic.policies.backlogQuota = no_quota()
        return
    fields = AdminResponseFields(status=204)
    try:
        match command.method, call:
            case "GET", "/stats":
                stats = stats_with_drops(topic, ctx.config, ctx.clock)
                fields = AdminResponseFields(status=200, response=stats)
            case "PUT", "/unload":
                _unload(ctx, topic)
            case "DELETE", _ if call.startswith("/subscription/"):
                name = unquote(call.removeprefix("/subscription/"))
                _delete_subscription(ctx, topic, name, command.path)
            case _:
                raise AdminError(405, f"{command.method} {call} on a non-persistent topic is not allowed")
    except AdminError as error:
        fields = AdminResponseFields(status=error.status, response={"reason": error.reason})
    ctx.emit(AdminResponse(topic.name, command.connection, f"{command.method} {command.path}", fields))


def _delete_subscription(ctx: Context, topic: NonPersistentTopic, name: str, path: str) -> None:
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise AdminError(404, f"Subscription {name} not found")
    if "force=true" not in path:
        raise AdminError(412, "Subscription has active connected consumers")
    consumers.disconnect_all(ctx, topic, subscription, "by an administrator")


def _unload(ctx: Context, topic: NonPersistentTopic) -> None:
    """Close the topic and load it again: its clients are disconnected, and all it had in memory, which is everything but
    its policies, is gone: counters, the topic epoch, messages in flight."""
    ctx.emit(TopicEvent(topic.name, "unloaded by an administrator"))
    topic.fenced = True
    closing.unload(ctx, topic)
    for subscription in list(topic.subscriptions.values()):
        consumers.disconnect_all(ctx, topic, subscription, "topic unloaded")
    fresh = NonPersistentTopic(
        topic.name, policies=topic.policies, closed_producers=topic.closed_producers,
        generated_names=topic.generated_names,
    )  # fmt: skip
    for field in topic.__struct_fields__:
        setattr(topic, field, getattr(fresh, field))
