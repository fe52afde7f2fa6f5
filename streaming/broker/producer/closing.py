"""Producers on a topic: registered, closed, disconnected, fenced out; who waits gets its turn (producer.md §2–§5, §8)."""

from msgspec import UNSET

from schemas.effect_fields import ProducerSuccessFields, TopicEventFields
from schemas.effects import CloseProducer, Error, ProducerSuccess, Success, TopicEvent
from streaming.broker.context import Context
from streaming.broker.errors import BrokerError
from streaming.broker.producer.access_mode import ProducerAccess, WaitingProducer
from streaming.broker.producer.producer import Producer
from streaming.broker.topic import Topic

# -- coming -------------------------------------------------------------------------------------------------------


def register(ctx: Context, topic: Topic, producer: Producer) -> None:
    """Add a producer that passed the gate (§2, §4). Raises `BrokerError`; the topic is then unchanged."""
    if topic.fenced:
        raise BrokerError("ServiceNotReady", "Topic is temporarily unavailable")
    if topic.ledger.terminated:
        raise BrokerError("TopicTerminatedError", "Topic was already terminated")
    former = topic.producers.get(producer.name)
    if former is not None and not producer.is_successor_to(former):
        raise BrokerError(
            "ProducerBusy", f"Producer with name '{producer.name}' is already connected to topic"
        )
    topic.producers[producer.name] = producer
    if former is not None:
        _pass_access_on(ctx, topic)
    topic.dedup.producer_added(producer.name)


def welcome(ctx: Context, topic: Topic, producer: Producer, request_id: int) -> None:
    """A registered producer's client is told that it may send."""
    assert producer.producer_id is not None
    topic.producer_handles[producer.connection, producer.producer_id] = producer.name
    succeed(ctx, topic, producer, request_id, ready=True)


def succeed(ctx: Context, topic: Topic, producer: Producer, request_id: int, *, ready: bool) -> None:
    """PRODUCER_SUCCESS. The topic epoch is told to every mode as soon as the topic has one."""
    assert producer.producer_id is not None
    epoch = topic.access.epoch
    fields = ProducerSuccessFields(
        last_sequence_id=topic.dedup.last_sequence_id(producer.name),
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


def close(ctx: Context, topic: Topic, connection: str, producer_id: int, request_id: int) -> None:
    """CLOSE_PRODUCER: success when its writes are confirmed; also when there is no such producer.

    One that waits for exclusive access keeps its place in the queue: it is found gone when its turn comes.
    """
    handle = (connection, producer_id)
    name = topic.producer_handles.get(handle)
    if name is not None:
        _close(ctx, topic, topic.producers[name], [request_id])
        return
    waiting = topic.access.find_waiting(connection, producer_id)
    if waiting is not None:
        waiting.gone = True
    ctx.emit(Success(topic.name, connection, request_id))


def _close(ctx: Context, topic: Topic, producer: Producer, requests: list[int]) -> None:
    """Let a producer go as soon as none of its writes is unconfirmed, and answer `requests` then."""
    topic.closing_producers.setdefault(producer.name, []).extend(requests)
    write_done(ctx, topic, producer)


def write_done(ctx: Context, topic: Topic, producer: Producer) -> None:
    """One of its writes is confirmed: if it is closing and has no other, it leaves."""
    if producer.name in topic.closing_producers and all(
        write.producer != producer for write in topic.pending
    ):
        _unregister(ctx, topic, producer)
        _pass_access_on(ctx, topic)


def fence_out(ctx: Context, topic: Topic, cause: str) -> None:
    """Who waits is refused, who produces is closed: ExclusiveWithFencing takes over (§3).

    quirk: no CLOSE_PRODUCER is sent. A client learns it when its next message closes its connection.
    """
    waiting, topic.access.waiting = topic.access.waiting, []
    for one in waiting:
        _refuse(ctx, topic, one, BrokerError("ProducerFenced", "Fenced out"))
    if topic.producers:
        ctx.emit(TopicEvent(topic.name, cause, TopicEventFields(fenced_out=list(topic.producers))))
    for producer in list(topic.producers.values()):
        _close(ctx, topic, producer, [])


def disconnect(ctx: Context, topic: Topic, producer: Producer, cause: str) -> None:
    """The broker closes a producer. What its client had under way is ignored for a keep-alive interval (§5.1)."""
    _unregister(ctx, topic, producer)
    if producer.producer_id is not None:
        oldest = ctx.clock - ctx.config.keepAliveIntervalSeconds * 1000
        for handle in [handle for handle, at in topic.closed_producers.items() if at < oldest]:
            del topic.closed_producers[handle]
        topic.closed_producers[producer.connection, producer.producer_id] = ctx.clock
    ctx.emit(CloseProducer(topic.name, producer.connection, producer.producer_id, producer.name, cause))
    _pass_access_on(ctx, topic)


def connection_lost(ctx: Context, topic: Topic, connection: str) -> None:
    """The producers of a connection leave at once, whatever they have under way. Those that wait stay queued."""
    for waiting in topic.access.waiting:
        waiting.gone = waiting.gone or waiting.producer.connection == connection
    for handle in [handle for handle in topic.producer_handles if handle[0] == connection]:
        producer = topic.producers[topic.producer_handles[handle]]
        topic.closing_producers.pop(producer.name, None)  # nobody is left to be told
        _unregister(ctx, topic, producer)
        _pass_access_on(ctx, topic)


def unload(ctx: Context, topic: Topic) -> None:
    """The topic is closed, and by now fenced: every producer is disconnected, and of their access the epoch is left.

    The first of those who wait, which by then owns the access, is refused. The others are forgotten without an answer, as
    4.0.7 does (recorded).
    """
    for producer in list(topic.producers.values()):
        disconnect(ctx, topic, producer, "topic unloaded")
    topic.access = ProducerAccess(epoch=topic.access.epoch)


def _unregister(ctx: Context, topic: Topic, producer: Producer) -> None:
    del topic.producers[producer.name]
    if producer.producer_id is not None:
        handle = (producer.connection, producer.producer_id)
        if topic.producer_handles.get(handle) == producer.name:
            del topic.producer_handles[handle]
    topic.dedup.producer_removed(producer.name, ctx.clock)
    for request_id in topic.closing_producers.pop(producer.name, ()):
        ctx.emit(Success(topic.name, producer.connection, request_id))


# -- whose turn it is (§3) ----------------------------------------------------------------------------------------


def _pass_access_on(ctx: Context, topic: Topic) -> None:
    """A producer left: if access is free now, the first in the queue gets it, and its creation goes on."""
    while (first := topic.access.pass_on(others=bool(topic.producers))) is not None:
        producer = first.producer
        try:
            register(ctx, topic, producer)
        except BrokerError as error:
            _refuse(ctx, topic, first, error)
            return
        if not first.gone:
            welcome(ctx, topic, producer, first.request_id)
            return
        ctx.emit(TopicEvent(topic.name, f"{producer.name} had exclusive access and is gone"))
        _unregister(ctx, topic, producer)


def _refuse(ctx: Context, topic: Topic, waiting: WaitingProducer, error: BrokerError) -> None:
    """The second and last answer to a producer that waited."""
    producer = waiting.producer
    if waiting.gone or producer.producer_id is None:
        return
    ctx.emit(Error(topic.name, producer.connection, waiting.request_id, error.code, error.cause))
