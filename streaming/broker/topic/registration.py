"""Producers on a topic: they register, leave, are disconnected or fenced out, and waiting ones get their turn (mirrors
`AbstractTopic.addProducer`, `removeProducer` and `Producer.close`; docs/rules/producers.md §5, §8–§10, §18).
"""

from msgspec import UNSET

from schemas.effect_fields import ProducerSuccessFields, TopicEventFields
from schemas.effects import CloseProducer, Error, ProducerSuccess, Success, TopicEvent
from streaming.broker.context import Context
from streaming.broker.errors import BrokerError
from streaming.broker.producer.access_mode import WaitingProducer
from streaming.broker.producer.producer import Producer
from streaming.broker.topic.abstract_topic import AbstractTopic

# -- registering --------------------------------------------------------------------------------------------------


def check_open(topic: AbstractTopic) -> None:
    """Raises `BrokerError` if the topic takes no messages."""
    if topic.fenced:
        raise BrokerError("ServiceNotReady", "Topic is temporarily unavailable")
    if topic.terminated:
        raise BrokerError("TopicTerminatedError", "Topic was already terminated")


def register(ctx: Context, topic: AbstractTopic, producer: Producer) -> None:
    """Add a producer that passed the gate (§5). Raises `BrokerError`; the topic is then unchanged."""
    check_open(topic)
    former = topic.producers.get(producer.name)
    if former is not None and not producer.is_successor_to(former):
        raise BrokerError(
            "ProducerBusy",
            f"Producer with name '{producer.name}' is already connected to topic '{topic.name}'",
        )
    topic.producers[producer.name] = producer
    topic.short_form.add(producer)
    if producer.is_remote:
        topic.remote_producers.add(producer.name)
    if former is not None:
        _pass_access_on(ctx, topic)
    topic.producer_added(producer.name)


def make_ready(ctx: Context, topic: AbstractTopic, producer: Producer, request_id: int) -> None:
    """Let a registered producer's client send."""
    assert producer.producer_id is not None
    topic.add_handle(ctx, topic.producer_handles, (producer.connection, producer.producer_id), producer.name)
    emit_success(ctx, topic, producer, request_id, ready=True)


def emit_success(
    ctx: Context, topic: AbstractTopic, producer: Producer, request_id: int, *, ready: bool
) -> None:
    """PRODUCER_SUCCESS. It carries the topic epoch in every access mode, as soon as the topic has one."""
    assert producer.producer_id is not None
    epoch = topic.access.epoch
    fields = ProducerSuccessFields(
        last_sequence_id=topic.last_sequence_id(producer.name),
        producer_ready=ready,
        schema_version=producer.schema_version or UNSET,
        topic_epoch=epoch if ready and epoch is not None else UNSET,
    )
    ctx.emit(
        ProducerSuccess(
            topic.name, producer.connection, request_id, producer.producer_id, producer.name, fields
        )
    )


# -- leaving ------------------------------------------------------------------------------------------------------


def close(ctx: Context, topic: AbstractTopic, connection: str, producer_id: int, request_id: int) -> None:
    """CLOSE_PRODUCER: success as soon as the producer's writes are confirmed, or at once if there is no such producer.

    A producer that waits for exclusive access keeps its place in the queue. When its turn comes, it is found gone.
    """
    name = topic.producer_handles.get(connection, producer_id)
    if name is not None:
        _close(ctx, topic, topic.producers[name], [request_id])
        return
    topic.access.leave(connection, producer_id)
    ctx.part(connection, topic.name)
    ctx.emit(Success(topic.name, connection, request_id))


def _close(ctx: Context, topic: AbstractTopic, producer: Producer, requests: list[int]) -> None:
    """Let a producer go as soon as none of its writes is unconfirmed, and answer `requests` then."""
    topic.closing_producers.setdefault(producer.name, []).extend(requests)
    write_done(ctx, topic, producer)


def write_done(ctx: Context, topic: AbstractTopic, producer: Producer) -> None:
    """One of the producer's writes is confirmed. If it is closing and has no other, it leaves.

    One that lost its connection is gone already, and another one may have its name.
    """
    if (
        producer.name in topic.closing_producers
        and topic.producers[producer.name] == producer
        and not topic.has_unconfirmed(producer)
    ):
        _unregister(ctx, topic, producer)
        _pass_access_on(ctx, topic)


def fence_out(ctx: Context, topic: AbstractTopic, cause: str) -> None:
    """Refuse the waiting producers and close the registered ones: ExclusiveWithFencing takes over (§8).

    quirk: the broker sends no CLOSE_PRODUCER. A client notices when its next message closes its connection.
    """
    for waiting in topic.access.take_queue():
        _refuse(ctx, topic, waiting, BrokerError("ProducerFenced", "Fenced out"))
    if topic.producers:
        ctx.emit(TopicEvent(topic.name, cause, TopicEventFields(fenced_out=list(topic.producers))))
    for producer in list(topic.producers.values()):
        _close(ctx, topic, producer, [])


def disconnect(ctx: Context, topic: AbstractTopic, producer: Producer, cause: str) -> None:
    """The broker closes a producer. It ignores what the client still sends for a keep-alive interval (§11)."""
    _unregister(ctx, topic, producer)
    if producer.producer_id is not None:
        # In the order of their ends, whether or not those whose time was over were forgotten before.
        ids = ctx.closed_producers.pop(producer.connection, {})
        ids.pop(producer.producer_id, None)
        ids[producer.producer_id] = ctx.clock + ctx.config.keepAliveIntervalSeconds * 1000
        ctx.closed_producers[producer.connection] = ids
    ctx.emit(CloseProducer(topic.name, producer.connection, producer.producer_id, producer.name, cause))
    _pass_access_on(ctx, topic)


def connection_lost(ctx: Context, topic: AbstractTopic, connection: str) -> None:
    """The producers of a connection leave at once, even with unconfirmed writes. Waiting ones stay in the queue."""
    topic.access.connection_lost(connection)
    for name in topic.producer_handles.of(connection).values():
        producer = topic.producers[name]
        topic.closing_producers.pop(producer.name, None)  # nobody is left to answer
        _unregister(ctx, topic, producer)
        _pass_access_on(ctx, topic)


def check_encryption(ctx: Context, topic: AbstractTopic) -> None:
    """A policy changed. If one requires encryption, disconnect the producers that have not declared it (mirrors
    `Producer.checkEncryption`; §18). A waiting producer that gets the access of one of them is not checked.
    """
    if ctx.policies_of(topic).messages_encrypted:
        for producer in list(topic.producers.values()):
            if not producer.encrypted:
                disconnect(ctx, topic, producer, "encryption is required")


def disconnect_all(ctx: Context, topic: AbstractTopic, cause: str) -> None:
    """The topic closes, and is fenced by now: disconnect every producer, and keep only the topic epoch.

    The first waiting producer, which owns the access by then, is refused. The others get no answer, as recorded from
    4.0.7. quirk: their ids stay in use on their connections until their clients close them.
    """
    for producer in list(topic.producers.values()):
        disconnect(ctx, topic, producer, cause)
    for waiting in topic.access.waiting:
        ctx.part(waiting.producer.connection, topic.name)
    topic.access = topic.access.closed()


def _unregister(ctx: Context, topic: AbstractTopic, producer: Producer) -> None:
    del topic.producers[producer.name]
    topic.remote_producers.discard(producer.name)
    if producer.producer_id is not None:
        handle = (producer.connection, producer.producer_id)
        if topic.producer_handles.get(*handle) == producer.name:
            topic.remove_handle(ctx, topic.producer_handles, handle)
    topic.producer_removed(producer, ctx.clock)
    for request_id in topic.closing_producers.pop(producer.name, ()):
        ctx.emit(Success(topic.name, producer.connection, request_id))


def leave_silent(ctx: Context, topic: AbstractTopic, before: int) -> dict[str, int]:
    """Producers of the short form leave that published last before `before` (ms). Returns their names, and when that was (ms)."""
    left: dict[str, int] = {}
    while not topic.pending and (first := topic.short_form.first()) is not None and first[0] < before:
        since, name = first
        left[name] = since
        _unregister(ctx, topic, topic.producers[name])
        _pass_access_on(ctx, topic)
    return left


# -- exclusive access (§9) ----------------------------------------------------------------------------------------


def _pass_access_on(ctx: Context, topic: AbstractTopic) -> None:
    """A producer left. If the access is free now, the first waiting producer gets it, and its creation goes on."""
    waits = bool(topic.producers) or not ctx.config.promotesBehindSharedProducers
    while (first := topic.access.pass_on(others=waits)) is not None:
        producer = first.producer
        try:
            register(ctx, topic, producer)
        except BrokerError as error:
            _refuse(ctx, topic, first, error)
            return
        if not first.gone:
            make_ready(ctx, topic, producer, first.request_id)
            return
        ctx.emit(TopicEvent(topic.name, f"{producer.name} had exclusive access and is gone"))
        _unregister(ctx, topic, producer)


def _refuse(ctx: Context, topic: AbstractTopic, waiting: WaitingProducer, error: BrokerError) -> None:
    """The second and last answer to a waiting producer."""
    producer = waiting.producer
    ctx.part(producer.connection, topic.name)
    if waiting.gone or producer.producer_id is None:
        return
    ctx.emit(Error(topic.name, producer.connection, waiting.request_id, error.code, error.cause))
