"""Creation of a producer: name clashes, quota and other refusals (producer.md §1–§4, §6)."""

from typing import Any

from schemas.commands import Producer as ProducerCommand
from streaming.broker import backlog_quota, subscribe
from streaming.broker.context import Context
from streaming.broker.effects import Error, ProducerSuccess
from streaming.broker.errors import BrokerError
from streaming.broker.topic import Producer, Topic


def create(ctx: Context, topic: Topic, command: ProducerCommand) -> None:
    """A PRODUCER request: registered and answered with its last sequence id, or refused."""
    handle = (command.connection, command.producer_id)
    known = topic.producer_handles.get(handle)
    replaced = (
        known is not None and known == command.producer_name and command.epoch > topic.producers[known].epoch
    )
    if known is not None and not replaced:
        # quirk: the answer to a repeated request leaves last_sequence_id out, which reads as −1
        ctx.emit(_success(topic, command, known, {"producer_ready": True}))
        return
    name = command.producer_name or _generated_name(ctx, topic)
    producer = Producer(name, command.connection, command.producer_id, command.epoch)
    try:
        if command.producer_access_mode != "Shared":
            raise BrokerError(
                "NotAllowedError", f"access mode {command.producer_access_mode} isn't supported yet"
            )
        if not command.encrypted and ctx.policy(topic.name, topic.policies, "encryptionRequired").value:
            raise BrokerError("MetadataError", "Encryption is required")
        if command.initial_subscription_name and command.initial_subscription_name not in topic.subscriptions:
            if not ctx.config.allowAutoSubscriptionCreation:
                raise BrokerError(
                    "NotAllowedError", "Could not create the initial subscription: it is not allowed"
                )
            subscribe.create(ctx, topic, command.initial_subscription_name, earliest=True)
        add(ctx, topic, producer, replaces=known if replaced else None)
    except BrokerError as error:
        ctx.emit(Error(topic.name, command.connection, command.request_id, error.code, error.cause))
        return
    fields = {"last_sequence_id": topic.dedup.last_sequence_id(name), "producer_ready": True}
    ctx.emit(_success(topic, command, name, fields))


def _success(topic: Topic, command: ProducerCommand, name: str, fields: dict[str, Any]) -> ProducerSuccess:
    return ProducerSuccess(
        topic.name, command.connection, command.request_id, command.producer_id, name, fields
    )


def _generated_name(ctx: Context, topic: Topic) -> str:
    """Unique on the topic: Pulsar's ``cluster-instance-counter``."""
    while True:
        name = f"{ctx.config.clusterName}-0-{topic.generated_names}"
        topic.generated_names += 1
        if name not in topic.producers:
            return name


def add(ctx: Context, topic: Topic, producer: Producer, *, replaces: str | None = None) -> None:
    """Register a producer by name. Raises `BrokerError` with the answer's code; the topic is then unchanged."""
    limit = ctx.policy(topic.name, topic.policies, "maxProducersPerTopic").value
    if 0 < limit <= len(topic.producers) and replaces is None:
        raise BrokerError("ProducerBusy", f"the topic has its maximum of {limit} producers")
    backlog_quota.check_producer_creation(ctx, topic)
    if topic.fenced:
        raise BrokerError("ServiceNotReady", "the topic is fenced")
    if topic.ledger.terminated:
        raise BrokerError("TopicTerminatedError", "the topic is terminated")
    if producer.name in topic.producers and producer.name != replaces:
        raise BrokerError(
            "ProducerBusy", f"Producer with name '{producer.name}' is already connected to topic"
        )
    topic.producers[producer.name] = producer
    if producer.producer_id is not None:
        topic.producer_handles[producer.connection, producer.producer_id] = producer.name
        topic.closed_producers.pop((producer.connection, producer.producer_id), None)
    topic.dedup.producer_added(producer.name)
