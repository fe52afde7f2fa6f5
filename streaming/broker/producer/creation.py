"""Creation of a producer: PRODUCER and its refusals in Pulsar's order (producer.md §1, §2, §6)."""

from schemas.commands import Producer as ProducerCommand
from schemas.effect_fields import ProducerSuccessFields
from schemas.effects import Error, ProducerSuccess
from streaming.broker import lookup
from streaming.broker.context import Context
from streaming.broker.errors import BrokerError
from streaming.broker.policies import backlog_quota
from streaming.broker.producer import closing
from streaming.broker.producer.access_mode import WaitingProducer
from streaming.broker.producer.producer import Producer
from streaming.broker.subscription import subscribing
from streaming.broker.topic import Topic


def create(ctx: Context, topic: Topic, command: ProducerCommand) -> None:
    """A PRODUCER request: success, at once or when its turn for exclusive access comes, or a refusal.

    Who was refused and asks again is judged anew: Pulsar could tell it the former refusal, but forgets it at once.
    """
    if _asked_before(ctx, topic, command):
        return
    producer = Producer(
        command.producer_name or _generated_name(ctx, topic), command.connection, command.producer_id,
        command.epoch, command.producer_access_mode, command.topic_epoch,
    )  # fmt: skip
    try:
        check_limits(ctx, topic, producer)
        _check_encryption(ctx, topic, command)
        producer.schema_version = lookup.version_text(lookup.register(ctx, topic.name, command.schema))
        _create_initial_subscription(ctx, topic, command)
        added = add(ctx, topic, producer, command.request_id)
    except BrokerError as error:
        _refuse(ctx, topic, command, error.code, error.cause)
        return
    ctx.attach(command.connection, topic.name)
    if added:
        closing.welcome(ctx, topic, producer, command.request_id)
    else:
        closing.succeed(ctx, topic, producer, command.request_id, ready=False)


def _asked_before(ctx: Context, topic: Topic, command: ProducerCommand) -> bool:
    """Answer a request whose producer id is known on its connection (§1.3)."""
    connection, id_ = command.connection, command.producer_id
    if (name := topic.producer_handles.get((connection, id_))) is not None:
        # quirk: this answer doesn't tell the last sequence id
        fields = ProducerSuccessFields(last_sequence_id=-1, producer_ready=True)
        ctx.emit(ProducerSuccess(topic.name, connection, command.request_id, id_, name, fields))
    elif topic.access.find_waiting(connection, id_) is not None:
        _refuse(ctx, topic, command, "ServiceNotReady", "Producer is already present on the connection")
    else:
        return False
    return True


def _refuse(ctx: Context, topic: Topic, command: ProducerCommand, code: str, cause: str) -> None:
    ctx.emit(Error(topic.name, command.connection, command.request_id, code, cause))


def add(ctx: Context, topic: Topic, producer: Producer, request_id: int = 0) -> bool:
    """addProducer (§2): through the gate, then on the topic. False: it has to wait for exclusive access.

    Raises `BrokerError`. quirk: what passing the gate changed stays when the producer is refused after it.
    """
    access = topic.access
    verdict = access.ask(producer, others=bool(topic.producers))
    if verdict == "wait":
        access.waiting.append(WaitingProducer(producer, request_id))
        return False
    if verdict == "fence":
        closing.fence_out(ctx, topic, f"exclusive access goes to {producer.name}")
    if verdict != "admit":
        access.own(producer)
    closing.register(ctx, topic, producer)
    return True


def check_limits(ctx: Context, topic: Topic, producer: Producer) -> None:
    """The number of producers, then the backlog quotas (§1). Raises `BrokerError`."""
    limit = ctx.policies_of(topic).maxProducersPerTopic
    if limit > 0 and not producer.is_remote:
        present = sum(not other.is_remote for other in topic.producers.values())
        if present >= limit:
            raise BrokerError("ProducerBusy", f"Topic '{topic.name}' reached max producers limit of {limit}")
    backlog_quota.check_producer_creation(ctx, topic)


def _check_encryption(ctx: Context, topic: Topic, command: ProducerCommand) -> None:
    if not command.encrypted and ctx.policies_of(topic).encryptionRequired:
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
    subscribing.create(ctx, topic, name, earliest=True)


def _generated_name(ctx: Context, topic: Topic) -> str:
    """Unique on the topic: Pulsar's ``cluster-instance-counter``."""
    while True:
        name = f"{ctx.config.clusterName}-0-{topic.generated_names}"
        topic.generated_names += 1
        if name not in topic.producers:
            return name
