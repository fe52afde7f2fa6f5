"""Commands on a non-persistent topic (A8; docs/rules/producers.md §6, §15): it passes messages on and stores none.

The broker answers a message with 0:0 and delivers it at once, so nothing is ever in flight. Only the fault DelayWrites
holds messages back, and then a connection can reach its limit of messages in flight. In Pulsar that limit holds for the
whole connection. Here it holds for the connection's messages on one topic, since only these have a common order.
"""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from schemas import commands as c
from schemas.effects import TOPIC_CREATED, SendReceipt, TopicEvent, Unsupported
from schemas.entries import Entry
from streaming.broker import admin_requests
from streaming.broker.context import Context
from streaming.broker.errors import AdminError, BrokerError
from streaming.broker.non_persistent import consumers, stats
from streaming.broker.non_persistent.topic import NonPersistentTopic, deliver, no_quota
from streaming.broker.parameters import flag
from streaming.broker.persistent import admin_operations
from streaming.broker.policies.hierarchy import HierarchyTopicPolicies, overlay
from streaming.broker.producer.access_mode import ProducerAccess
from streaming.broker.rates.rate import Rate, end_of_interval
from streaming.broker.schema import schema_registry
from streaming.broker.topic import creation, registration
from streaming.broker.topic.abstract_topic import PendingWrite
from streaming.broker.topic.policy_calls import call_policy
from streaming.broker.topic.publish_requests import (
    from_send,
    from_short_form,
    may_publish,
    may_send,
    refuse,
    too_large,
)
from streaming.broker.topic.topic_commands import TopicCommand


def create(ctx: Context, name: str) -> NonPersistentTopic:
    """Create a topic."""
    ctx.emit(TopicEvent(name, TOPIC_CREATED))
    topic = empty(ctx, name)
    topic.last_active = ctx.clock
    topic.rates_until = end_of_interval(ctx.clock, ctx.config)
    return topic


def empty(ctx: Context, name: str) -> NonPersistentTopic:
    """A topic without clients, see `create`. It has no backlog, so it keeps no quota for one."""
    topic = NonPersistentTopic(name)
    overlay(topic.policies, ctx.lasting.get(name)).backlogQuota = no_quota()
    return topic


def delete(ctx: Context, topic: NonPersistentTopic, cause: str) -> int:
    """Disconnect the topic's clients, and delete its schema."""
    ctx.emit(TopicEvent(topic.name, f"deleted {cause}"))
    topic.fenced = True
    registration.disconnect_all(ctx, topic, "topic deleted")
    for subscription in list(topic.subscriptions.values()):
        consumers.disconnect_all(ctx, topic, subscription, "topic deleted")
    schema_registry.forget(ctx, topic.name)
    ctx.permissions.pop(topic.name, None)
    return 0


def connection_lost(ctx: Context, topic: NonPersistentTopic, connection: str) -> None:
    """Close everything that a connection had on the topic, producers first."""
    registration.connection_lost(ctx, topic, connection)
    consumers.connection_lost(ctx, topic, connection)


def _create_producer(ctx: Context, topic: NonPersistentTopic, command: c.Producer) -> None:
    """PRODUCER, without an initial subscription: it would have no consumer, and a subscription does not outlive its last
    one.
    """
    producer = creation.new_producer(ctx, topic, command)
    if producer is None:
        return
    with creation.refusals_answered(ctx, topic, command):
        creation.check_max_producers(ctx, topic, producer)
        creation.check_encryption(ctx, topic, command)
        creation.register_schema(ctx, topic, command, producer)
        creation.admit(ctx, topic, producer, command.request_id)


# -- publishing ---------------------------------------------------------------------------------------------------


def _handle_send(ctx: Context, topic: NonPersistentTopic, command: c.Send) -> None:
    """A SEND of a connected producer."""
    policies = ctx.policies_of(topic)
    write = from_send(ctx, topic, command)
    if write is None or _too_many_in_flight(ctx, topic, write, command.num_messages):
        return
    if may_send(ctx, topic, policies, command, write):
        _publish(ctx, topic, policies, write, command.num_messages)


def _handle_publish(ctx: Context, topic: NonPersistentTopic, command: c.Publish) -> None:
    """The short form. Its producer is registered with its first message, but for one that came through REST."""
    policies = ctx.policies_of(topic)
    write = from_short_form(ctx, topic, command)
    if not may_publish(ctx, topic, policies, write, rest=command.rest):
        return
    producer = write.producer
    try:
        if command.rest:
            registration.check_open(topic)
        elif producer.name not in topic.producers:
            creation.check_max_producers(ctx, topic, producer)
            creation.add(ctx, topic, producer)
    except BrokerError as error:
        refuse(ctx, topic, write, error.code, error.cause)
        return
    if not _too_many_in_flight(ctx, topic, write, 1):
        _publish(ctx, topic, policies, write, 1)


def _too_many_in_flight(ctx: Context, topic: NonPersistentTopic, write: PendingWrite, messages: int) -> bool:
    """Drop the message if its connection has too many in flight. Pulsar lets one more than the limit through."""
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
    """The checks, then the delivery. `messages`: the number of messages that the command states."""
    topic.counters.messages_in += messages
    topic.counters.bytes_in += write.size
    if (refusal := too_large(ctx, policies, write)) is not None:
        refuse(ctx, topic, write, "NotAllowedError", refusal)
    elif topic.delay_writes or topic.pending:
        topic.delay_writes = max(topic.delay_writes - 1, 0)
        topic.put_off(write)
    else:
        _complete(ctx, topic, write)


def _complete(ctx: Context, topic: NonPersistentTopic, write: PendingWrite) -> None:
    """Send the receipt, then deliver the message."""
    messages = _messages(write)
    counters = topic.counters_of(ctx, write.producer)
    counters.messages_in += messages
    counters.bytes_in += write.size
    counters.last = ctx.clock
    if write.metadata.chunk_id is not None:
        counters.chunks_in += 1
    _receipt(ctx, topic, write, 0, None, messages)
    deliver(ctx, topic, write)


def _drop(ctx: Context, topic: NonPersistentTopic, write: PendingWrite, messages: int, cause: str) -> None:
    """Drop a producer's message. Its receipt has the message id −1:−1."""
    if write.producer.name in topic.producers:
        drops = topic.publisher_drops.setdefault(write.producer.name, Rate())
        drops.record(1, ctx.clock, ctx.config)
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


def _handle_fault(ctx: Context, topic: NonPersistentTopic, command: c.Fault) -> None:
    """FAULT: hold messages back, then deliver or drop them."""
    match command.fault:
        case "DelayWrites":
            topic.delay_writes += command.count
        case "CompleteWrites":
            for _ in range(min(command.count or len(topic.pending), len(topic.pending))):
                write = topic.take_oldest()
                _complete(ctx, topic, write)
                registration.write_done(ctx, topic, write.producer)
        case "LoseWrites":
            for write in topic.take_pending():
                _drop(ctx, topic, write, _messages(write), "dropped: lost in flight")
                registration.write_done(ctx, topic, write.producer)
        case _:
            cause = "FailWrites: a non-persistent topic writes nothing that could fail; use DelayWrites, LoseWrites"
            ctx.emit(Unsupported(topic.name, command.connection, cause))


_SUBSCRIPTION = re.compile(r"/subscription/[^/]+")
_NOT_ALLOWED = tuple(
    (re.compile(form), words)
    for form, words in (
        (r"/lastMessageId", "GetLastMessageId"),
        (r"/subscription/[^/]+/expireMessages/.*", "Expire messages"),
        (r"/all_subscription/expireMessages/.*", "Expire messages for all subscriptions"),
        (r"/subscription/[^/]+/position/.*", "Peek messages"),
        (r"/examinemessage", "Examine messages"),
        (r"/messageid/.*", "Get message ID by timestamp"),
        (r"/trim", "Trim"),
    )
)
"""What Pulsar calls the calls that it refuses."""

_REPLICATED = "/replicatedSubscriptionStatus"
_OF_SUBSCRIPTION = re.compile(r"/subscription/(?P<name>[^/]+)/(?P<call>properties|resetcursor/[^/]+)")


# -- administration -----------------------------------------------------------------------------------------------


def _admin(ctx: Context, topic: NonPersistentTopic, command: c.Admin) -> None:
    """Policies, stats, unload, the deletion of a subscription. All other calls concern stored messages and are refused."""
    call = admin_requests.call_of(command)
    if (changed := call_policy(ctx, topic, command, call)) is not None:
        topic.policies.backlogQuota = no_quota()
        if changed:
            registration.check_encryption(ctx, topic)
        return
    if admin_operations.CALLS.knows(call):
        admin_requests.answer(ctx, topic.name, command, lambda: _answer(ctx, topic, command, call))
    else:
        admin_requests.refuse_as_unsupported(ctx, topic.name, command)


def _call_subscription(
    topic: NonPersistentTopic, command: c.Admin, name: str, call: str
) -> tuple[int, object]:
    """The properties of a subscription, or its reset to a time, which moves nothing. Raises `AdminError`."""
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise AdminError(404, f"Subscription {name} not found for topic {topic.name}")
    if (command.method, call) == ("GET", "properties"):
        return 200, subscription.properties
    if (command.method, call) == ("PUT", "properties"):
        subscription.properties = admin_operations.read_properties(command.body)
    elif command.method != "POST" or call == "properties":
        raise AdminError(405, f"{command.method} {call} is not allowed")
    return 204, None


def _answer(ctx: Context, topic: NonPersistentTopic, command: c.Admin, call: str) -> tuple[int, object]:
    """Status and response. Raises `AdminError`."""
    match command.method, call:
        case ("POST", "/terminate") | (_, "/properties"):
            raise AdminError(406, "Need to provide a persistent topic name")
        case (("GET" | "PUT" | "POST"), _) if (found := _OF_SUBSCRIPTION.fullmatch(call)) is not None:
            return _call_subscription(topic, command, unquote(found["name"]), found["call"])
        case "PUT", _ if _SUBSCRIPTION.fullmatch(call):
            raise AdminError(
                400, "Create subscription on non-persistent topic can only be done through client"
            )
        case "GET", _ if call.endswith(_REPLICATED):
            raise AdminError(405, "Cannot get replicated subscriptions on non-persistent topics")
        case "POST", _ if call.endswith(_REPLICATED):
            raise AdminError(405, "Cannot enable/disable replicated subscriptions on non-persistent topics")
        case "DELETE", "/truncate":
            raise AdminError(412, "unsupport truncate")
        case "PUT", "":
            pass  # it exists now
        case "GET", "/subscriptions":
            return 200, sorted(topic.subscriptions)
        case "GET", "/stats":
            return 200, stats.stats_with_rates(topic, ctx.config, ctx.clock)
        case "GET", "/internalStats":
            return 200, stats.internal_stats()
        case "PUT", "/unload":
            unload(ctx, topic, "unloaded by an administrator")
        case "DELETE", _ if call.startswith("/subscription/"):
            _delete_subscription(ctx, topic, unquote(call.removeprefix("/subscription/")), command.path)
        case _:
            words = next((words for form, words in _NOT_ALLOWED if form.fullmatch(call)), None)
            raise AdminError(
                405, f"{words or f'{command.method} {call}'} on a non-persistent topic is not allowed"
            )
    return 204, None


def _delete_subscription(ctx: Context, topic: NonPersistentTopic, name: str, path: str) -> None:
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise AdminError(404, f"Subscription {name} not found for topic {topic.name}")
    if subscription.consumers and not flag(path, "force"):
        raise AdminError(412, "Subscription has active connected consumers")
    consumers.remove(ctx, topic, subscription, "by an administrator")


def unload(ctx: Context, topic: NonPersistentTopic, cause: str) -> None:
    """Close the topic and load it again. Its clients are disconnected, and everything but its policies is lost: counters,
    the topic epoch, messages in flight.
    """
    ctx.emit(TopicEvent(topic.name, cause))
    topic.fenced = True
    registration.disconnect_all(ctx, topic, "topic unloaded")
    for subscription in list(topic.subscriptions.values()):
        consumers.disconnect_all(ctx, topic, subscription, "topic unloaded")
    fresh = NonPersistentTopic(
        topic.name, policies=topic.policies, access=ProducerAccess(stranded=topic.access.stranded),
        last_active=ctx.clock, rates_until=topic.rates_until,
    )  # fmt: skip
    for field in topic.__struct_fields__:
        setattr(topic, field, getattr(fresh, field))
    topic.__dict__.clear()  # what was made of the former values


# -- who handles what -----------------------------------------------------------------------------------------------


def _close_producer(ctx: Context, topic: NonPersistentTopic, command: c.CloseProducer) -> None:
    registration.close(ctx, topic, command.connection, command.producer_id, command.request_id)


def _flow(ctx: Context, topic: NonPersistentTopic, command: c.Flow) -> None:
    if command.messagePermits <= 0:
        cause = f"FLOW of {command.messagePermits} permits: expected 1 or more"
        ctx.close_connection(topic.name, command.connection, cause)
    else:
        consumers.flow(ctx, topic, command)


def _mirror(ctx: Context, topic: NonPersistentTopic, command: c.Mirror) -> None:
    ctx.emit(Unsupported(topic.name, command.connection, "MIRROR of a non-persistent topic"))


HANDLERS: dict[type[TopicCommand], Callable[[Context, NonPersistentTopic, Any], None]] = {
    c.Publish: _handle_publish,
    c.Send: _handle_send,
    c.Flow: _flow,
    c.Ack: consumers.ack,
    c.Producer: _create_producer,
    c.CloseProducer: _close_producer,
    c.Subscribe: consumers.subscribe,
    c.CloseConsumer: consumers.close,
    c.Unsubscribe: consumers.unsubscribe,
    c.RedeliverUnacknowledgedMessages: consumers.redeliver,
    c.Seek: consumers.seek,
    c.GetLastMessageId: consumers.last_message_id,
    c.Admin: _admin,
    c.Mirror: _mirror,
    c.Fault: _handle_fault,
}
