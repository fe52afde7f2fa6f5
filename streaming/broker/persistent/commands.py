"""Commands on a persistent topic, and who handles each (mirrors `ServerCnx`)."""

from collections.abc import Callable
from typing import Any

from schemas import commands as c
from schemas.effects import AckResponse, Unsupported
from streaming.broker.context import Context
from streaming.broker.errors import BrokerError
from streaming.broker.persistent import (
    acks_in_transactions,
    admin_operations,
    leaving,
    lifecycle,
    mirroring,
    seeking,
    subscribing,
)
from streaming.broker.persistent.cleanup import backlog_quota
from streaming.broker.persistent.cleanup.trimming import free_ledgers
from streaming.broker.persistent.publish import publishing
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import EARLIEST, from_wire
from streaming.broker.subscription.subscription import INDIVIDUAL_TYPES
from streaming.broker.topic import creation, registration
from streaming.broker.topic.topic_commands import TopicCommand
from streaming.broker.transactions.transaction_buffer import TxnID


def _create_producer(ctx: Context, topic: PersistentTopic, command: c.Producer) -> None:
    producer = creation.new_producer(ctx, topic, command)
    if producer is None:
        return
    with creation.refusals_answered(ctx, topic, command):
        creation.check_max_producers(ctx, topic, producer)
        backlog_quota.check_producer_creation(ctx, topic)
        creation.check_encryption(ctx, topic, command)
        creation.register_schema(ctx, topic, command, producer)
        if (
            command.txn_enabled
            and ctx.config.transactionCoordinatorEnabled
            and ctx.config.producersReadyTopicForAborts
        ):
            topic.buffer().ready = True
        _create_initial_subscription(ctx, topic, command)
        creation.admit(ctx, topic, producer, command.request_id)


def _create_initial_subscription(ctx: Context, topic: PersistentTopic, command: c.Producer) -> None:
    name = command.initial_subscription_name
    if not name or name in topic.subscriptions:
        return
    if not ctx.policies_of(topic).autoSubscriptionCreation:
        raise BrokerError(
            "NotAllowedError",
            "Could not create the initial subscription due to the auto subscription creation is not allowed",
        )
    subscribing.check_max_subscriptions(ctx, topic, name)
    subscribing.create(ctx, topic, name, earliest=True)


def _flow(ctx: Context, topic: PersistentTopic, command: c.Flow) -> None:
    name = topic.consumer_handles.get(command.connection, command.consumer_id)
    if command.messagePermits <= 0:
        cause = f"FLOW of {command.messagePermits} permits: expected 1 or more"
        ctx.close_connection(topic.name, command.connection, cause)
    elif name is not None:  # the FLOW of an unknown consumer is lost (docs/rules/protocol.md §13)
        subscription = topic.subscriptions[name]
        consumer = subscription.consumer(command.connection, command.consumer_id)
        if (excess := consumer.exceeds(command.messagePermits)) is not None:
            ctx.close_connection(topic.name, command.connection, excess)
            return
        subscription.last_flow = consumer.last_flow = ctx.clock
        assert subscription.dispatcher is not None
        subscription.dispatcher.flow(topic.context_of(ctx, subscription), consumer, command.messagePermits)


def _ack(ctx: Context, topic: PersistentTopic, command: c.Ack) -> None:
    name = topic.consumer_handles.get(command.connection, command.consumer_id)
    if name is None:
        return  # dropped without an answer, even with a request id (docs/rules/protocol.md §15)
    if (
        ctx.config.closesOnAckOfNoEntry
        and command.ack_type == "Individual"
        and any(from_wire(each.ledgerId, each.entryId) == EARLIEST for each in command.message_id)
    ):
        ctx.close_connection(topic.name, command.connection, "ACK of the message id -1:-1")
        return
    subscription = topic.subscriptions[name]
    if ctx.config.transactionCoordinatorEnabled:
        if command.txnid_least_bits is not None and command.txnid_most_bits is not None:
            consumer = subscription.consumer(command.connection, command.consumer_id)
            txn = TxnID(command.txnid_most_bits, command.txnid_least_bits)
            acks_in_transactions.acknowledge(ctx, topic, subscription, consumer, txn, command)
            return
    elif (command.txnid_least_bits or command.txnid_most_bits) and (
        command.ack_type == "Individual" or subscription.type not in INDIVIDUAL_TYPES
    ):
        _refuse_ack_in_transaction(ctx, topic, command)
        return
    consumer = subscription.consumer(command.connection, command.consumer_id)
    former = subscription.acknowledge(topic.context_of(ctx, subscription), consumer, command)
    if former is not None:
        free_ledgers(ctx, topic, topic.cursors[name], former)


def _refuse_ack_in_transaction(ctx: Context, topic: PersistentTopic, command: c.Ack) -> None:
    if command.request_id is None:
        cause = "ACK in a transaction: transactions are not supported, nothing is acked"
        ctx.emit(Unsupported(topic.name, command.connection, cause))
        return
    error, cause = "NotAllowedError", "Server don't support transaction ack!"
    ctx.emit(
        AckResponse(topic.name, command.connection, command.request_id, command.consumer_id, error, cause)
    )


def _redeliver(ctx: Context, topic: PersistentTopic, command: c.RedeliverUnacknowledgedMessages) -> None:
    name = topic.consumer_handles.get(command.connection, command.consumer_id)
    if name is None:
        return
    subscription = topic.subscriptions[name]
    consumer = subscription.consumer(command.connection, command.consumer_id)
    assert subscription.dispatcher is not None
    ids = [from_wire(id_.ledgerId, id_.entryId) for id_ in command.message_ids] or None
    subscription.dispatcher.redeliver(
        topic.context_of(ctx, subscription), consumer, ids, command.consumer_epoch
    )


def _close_producer(ctx: Context, topic: PersistentTopic, command: c.CloseProducer) -> None:
    registration.close(ctx, topic, command.connection, command.producer_id, command.request_id)


def _close_consumer(ctx: Context, topic: PersistentTopic, command: c.CloseConsumer) -> None:
    leaving.close(ctx, topic, command.connection, command.consumer_id, command.request_id)


def _admin(ctx: Context, topic: PersistentTopic, command: c.Admin) -> None:
    if admin_operations.call_topic(ctx, topic, command):
        lifecycle.policies_changed(ctx, topic)


def _mirror(ctx: Context, topic: PersistentTopic, command: c.Mirror) -> None:
    mirroring.handle_mirror(ctx, topic, command, _carry_out)


def _carry_out(ctx: Context, topic: PersistentTopic, command: TopicCommand) -> None:
    """A client's command that a MIRROR stands for."""
    HANDLERS[type(command)](ctx, topic, command)


HANDLERS: dict[type[TopicCommand], Callable[[Context, PersistentTopic, Any], None]] = {
    c.Publish: publishing.handle_publish,
    c.Send: publishing.handle_send,
    c.Flow: _flow,
    c.Ack: _ack,
    c.Producer: _create_producer,
    c.CloseProducer: _close_producer,
    c.Subscribe: subscribing.subscribe,
    c.CloseConsumer: _close_consumer,
    c.Unsubscribe: leaving.unsubscribe,
    c.RedeliverUnacknowledgedMessages: _redeliver,
    c.Seek: seeking.seek,
    c.GetLastMessageId: seeking.last_message_id,
    c.Admin: _admin,
    c.Mirror: _mirror,
    c.Fault: publishing.handle_fault,
}
