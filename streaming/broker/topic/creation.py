"""The steps of creating a producer, which both kinds of topics take in Pulsar's order (mirrors `ServerCnx.handleProducer`;
docs/rules/producers.md §1–§5, §17).
"""

from collections.abc import Container, Iterator
from contextlib import contextmanager

from schemas.commands import Producer as ProducerCommand
from schemas.effect_fields import ProducerSuccessFields
from schemas.effects import Error, ProducerSuccess
from streaming.broker.context import Context
from streaming.broker.errors import BrokerError
from streaming.broker.producer.producer import Producer
from streaming.broker.schema import schema_registry
from streaming.broker.topic import registration
from streaming.broker.topic.abstract_topic import AbstractTopic


def new_producer(ctx: Context, topic: AbstractTopic, command: ProducerCommand) -> Producer | None:
    """The producer that a PRODUCER request asks for. None: its id is in use, and the request is answered.

    A client that was refused and asks again is judged anew: Pulsar could repeat the first refusal, but it forgets it at
    once.
    """
    if _answer_known_id(ctx, topic, command):
        return None
    mode = command.producer_access_mode
    if mode == "ExclusiveWithFencing" and not ctx.config.fencesProducers:
        mode = "Shared"
    return Producer(
        command.producer_name or _generated_name(ctx, topic.producers), command.connection, command.producer_id,
        command.epoch, mode, command.topic_epoch, created=ctx.clock, encrypted=command.encrypted,
    )  # fmt: skip


def _answer_known_id(ctx: Context, topic: AbstractTopic, command: ProducerCommand) -> bool:
    """Answer a request whose producer id is already in use on its connection (§2)."""
    connection, id_ = command.connection, command.producer_id
    if (name := topic.producer_handles.get(connection, id_)) is not None:
        # quirk: this answer does not carry the last sequence id
        fields = ProducerSuccessFields(last_sequence_id=-1, producer_ready=True)
        ctx.emit(ProducerSuccess(topic.name, connection, command.request_id, id_, name, fields))
    elif topic.access.awaits_answer(connection, id_):
        cause = "Producer is already present on the connection"
        ctx.emit(Error(topic.name, connection, command.request_id, "ServiceNotReady", cause))
    else:
        return False
    return True


def _generated_name(ctx: Context, taken: Container[str]) -> str:
    """A name that no other producer gets, on any topic: Pulsar's ``cluster-instance-counter`` (mirrors `DistributedIdGenerator`).

    An ingress partition is an instance. A name that a client chose may be `taken`.
    """
    while True:
        name = f"{ctx.config.clusterName}-{ctx.partition}-{ctx.generated_names}"
        ctx.generated_names += 1
        if name not in taken:
            return name


@contextmanager
def refusals_answered(ctx: Context, topic: AbstractTopic, command: ProducerCommand) -> Iterator[None]:
    """Answer the request with ERROR if one of the steps raises `BrokerError`."""
    try:
        yield
    except BrokerError as error:
        ctx.emit(Error(topic.name, command.connection, command.request_id, error.code, error.cause))


def check_max_producers(ctx: Context, topic: AbstractTopic, producer: Producer) -> None:
    """maxProducersPerTopic, which does not count replicators (§4). Raises `BrokerError`."""
    limit = ctx.policies_of(topic).maxProducersPerTopic
    if 0 < limit <= len(topic.producers) - len(topic.remote_producers) and not producer.is_remote:
        raise BrokerError("ProducerBusy", f"Topic '{topic.name}' reached max producers limit")


def check_encryption(ctx: Context, topic: AbstractTopic, command: ProducerCommand) -> None:
    """encryptionRequired, or encryptionRequireOnProducer. Raises `BrokerError`."""
    if not command.encrypted and ctx.policies_of(topic).encryptionRequired:
        raise BrokerError("MetadataError", f"Encryption is required in {topic.name}")


def register_schema(ctx: Context, topic: AbstractTopic, command: ProducerCommand, producer: Producer) -> None:
    """Register the producer's schema, and note its version on the producer."""
    version = schema_registry.register_for_client(
        ctx, topic.name, command.schema, schema_registry.policies_of(ctx, topic)
    )
    producer.schema_version = schema_registry.version_text(version)


def admit(ctx: Context, topic: AbstractTopic, producer: Producer, request_id: int) -> None:
    """The last step: add the producer, and answer PRODUCER_SUCCESS. A producer that has to wait for exclusive access gets
    a second answer when its turn comes. Raises `BrokerError`.
    """
    if add(ctx, topic, producer, request_id):
        registration.make_ready(ctx, topic, producer, request_id)
    else:
        ctx.attach(producer.connection, topic.name)
        registration.emit_success(ctx, topic, producer, request_id, ready=False)


def add(ctx: Context, topic: AbstractTopic, producer: Producer, request_id: int = 0) -> bool:
    """addProducer (§5, §6): through the gate, then on the topic. False: the producer has to wait for exclusive access.

    Raises `BrokerError`. quirk: what passing the gate changed stays when the producer is refused after it.
    """
    access = topic.access
    verdict = access.ask(producer, others=bool(topic.producers))
    if verdict == "wait":
        access.wait(producer, request_id)
        return False
    if verdict == "fence":
        registration.fence_out(ctx, topic, f"exclusive access goes to {producer.name}")
    if verdict != "admit":
        access.own(producer)
    registration.register(ctx, topic, producer)
    return True
