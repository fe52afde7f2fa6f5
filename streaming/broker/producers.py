"""Producers that are registered on a topic, until they leave it (producer.md §5.1, §8)."""

from streaming.broker.context import Context
from streaming.broker.effects import CloseProducer, Success
from streaming.broker.topic import Producer, Topic


def remove(ctx: Context, topic: Topic, producer: Producer) -> None:
    """A producer is gone: closed, disconnected, or its connection lost."""
    del topic.producers[producer.name]
    if producer.producer_id is not None:
        del topic.producer_handles[producer.connection, producer.producer_id]
    topic.dedup.producer_removed(producer.name, ctx.clock)


def disconnect(ctx: Context, topic: Topic, producer: Producer, cause: str) -> None:
    """The broker closes a producer. What its client had under way is ignored for a keep-alive interval (§5.1)."""
    remove(ctx, topic, producer)
    if producer.producer_id is not None:
        oldest = ctx.clock - ctx.config.keepAliveIntervalSeconds * 1000
        for handle in [handle for handle, at in topic.closed_producers.items() if at < oldest]:
            del topic.closed_producers[handle]
        topic.closed_producers[producer.connection, producer.producer_id] = ctx.clock
    ctx.emit(CloseProducer(topic.name, producer.connection, producer.producer_id, producer.name, cause))


def close(ctx: Context, topic: Topic, connection: str, producer_id: int, request_id: int) -> None:
    """CLOSE_PRODUCER: success also when there is no such producer."""
    name = topic.producer_handles.get((connection, producer_id))
    if name is not None:
        remove(ctx, topic, topic.producers[name])
    ctx.emit(Success(topic.name, connection, request_id))
