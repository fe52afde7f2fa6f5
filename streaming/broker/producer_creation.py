"""Creation of a producer: PRODUCER and its refusals in Pulsar's order (producer.md §1, §2, §6)."""

from schemas.commands import Producer as ProducerCommand
from streaming.broker import backlog_quota, producers, subscribe
from streaming.broker.context import Context
from streaming.broker.effects import Error, ProducerSuccess
from streaming.broker.errors import BrokerError
from streaming.broker.exclusive_access import WaitingProducer
from streaming.broker.producer import Producer
from streaming.broker.topic import Topic


def create(ctx: Context, topic: Topic, command: ProducerCommand) -> None:
    """A PRODUCER request: success, at once or when its turn for exclusive access comes, or a refusal."""
    handle = (command.connection, command.producer_id)
    if (known := topic.producer_handles.get(handle)) is not None:
        # quirk: the answer to a repeated request leaves last_sequence_id out, which reads as −1
        fields = {"producer_ready": True}
        ctx.emit(ProducerSuccess(topic.name, *_request(command), command.producer_id, known, fields))
        return
    if topic.access.find_waiting(*handle) is not None:
        cause = "Producer is already present on the connection"
        ctx.emit(Error(topic.name, *_request(command), "ServiceNotReady", cause))
        return
    if (failure := topic.failed_producers.pop(handle, None)) is not None:
        cause = "Producer is already failed to register on the topic: ask again"
        ctx.emit(Error(topic.name, *_request(command), failure, cause))
        return
    producer = Producer(
        command.producer_name or _generated_name(ctx, topic), command.connection, command.producer_id,
        command.epoch, command.producer_access_mode, command.topic_epoch,
    )  # fmt: skip
    try:
        check_limits(ctx, topic, producer)
        _check_encryption(ctx, topic, command)
        _create_initial_subscription(ctx, topic, command)
    except BrokerError as error:
        ctx.emit(Error(topic.name, *_request(command), error.code, error.cause))
        return
    ctx.attach(command.connection, topic.name)
    try:
        if topic.access.ask(producer, others=bool(topic.producers)) == "wait":
            topic.access.waiting.append(WaitingProducer(producer, command.request_id))
            producers.succeed(ctx, topic, producer, command.request_id, ready=False)
            return
        add(ctx, topic, producer)
    except BrokerError as error:
        topic.failed_producers[handle] = error.code
        ctx.emit(Error(topic.name, *_request(command), error.code, error.cause))
        return
    producers.welcome(ctx, topic, producer, command.request_id)


def _request(command: ProducerCommand) -> tuple[str, int]:
    return command.connection, command.request_id


def add(ctx: Context, topic: Topic, producer: Producer) -> None:
    """addProducer for one that doesn't wait (§2): through the gate, then on the topic. Raises `BrokerError`.

    quirk: what the gate did stays when the producer is refused later.
    """
    access = topic.access
    verdict = access.ask(producer, others=bool(topic.producers))
    if verdict == "fence":
        producers.fence_out(ctx, topic, f"exclusive access goes to {producer.name}")
    if verdict != "admit":
        access.own(producer)
    producers.register(ctx, topic, producer)


def check_limits(ctx: Context, topic: Topic, producer: Producer) -> None:
    """The number of producers, then the backlog quotas (§1). Raises `BrokerError`."""
    limit = ctx.policy(topic.name, topic.policies, "maxProducersPerTopic").value
    if limit > 0 and not producer.is_remote:
        present = sum(not other.is_remote for other in topic.producers.values())
        if present >= limit:
            raise BrokerError("ProducerBusy", f"Topic '{topic.name}' reached max producers limit of {limit}")
    backlog_quota.check_producer_creation(ctx, topic)


def _check_encryption(ctx: Context, topic: Topic, command: ProducerCommand) -> None:
    if not command.encrypted and ctx.policy(topic.name, topic.policies, "encryptionRequired").value:
        raise BrokerError("MetadataError", f"Encryption is required in {topic.name}")


def _create_initial_subscription(ctx: Context, topic: Topic, command: ProducerCommand) -> None:
    name = command.initial_subscription_name
    if not name or name in topic.subscriptions:
        return
    if not ctx.config.allowAutoSubscriptionCreation:
        raise BrokerError(
            "NotAllowedError",
            "Could not create the initial subscription due to the auto subscription creation is not allowed",
        )
    subscribe.create(ctx, topic, name, earliest=True)


def _generated_name(ctx: Context, topic: Topic) -> str:
    """Unique on the topic: Pulsar's ``cluster-instance-counter``."""
    while True:
        name = f"{ctx.config.clusterName}-0-{topic.generated_names}"
        topic.generated_names += 1
        if name not in topic.producers:
            return name
