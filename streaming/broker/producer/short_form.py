"""When producers of the short form leave. No connection says that they are gone, so it is their silence that says it.

One that has published nothing for longer than brokerDeduplicationProducerInactivityTimeoutMinutes leaves in the next round of the
check `inactiveProducers`, which also makes deduplication forget it. Its next message registers it again.
"""

from collections.abc import Iterator

from streaming.broker.abstract_topic import AbstractTopic
from streaming.broker.context import Context
from streaming.broker.producer import registration
from streaming.broker.producer.producer import Producer


def are_there(topic: AbstractTopic) -> bool:
    """Does the topic have such producers?"""
    return any(producer.producer_id is None for producer in topic.producers.values())


def silent_since(topic: AbstractTopic) -> int | None:
    """When the one published that has been silent for longest (ms). None: none can leave. None does while a fault puts off a write."""
    return None if topic.pending else min((since for _, since in _all(topic)), default=None)


def leave(ctx: Context, topic: AbstractTopic, before: int) -> dict[str, int]:
    """Those leave that published last before `before` (ms). Returns their names, and when they published last (ms)."""
    if topic.pending:
        return {}
    gone = [(producer, since) for producer, since in _all(topic) if since < before]
    for producer, _ in gone:
        registration.leave(ctx, topic, producer)
    return {producer.name: since for producer, since in gone}


def _all(topic: AbstractTopic) -> Iterator[tuple[Producer, int]]:
    for name, producer in topic.producers.items():
        if producer.producer_id is None:
            counters = topic.producer_counters.get(name)
            yield producer, producer.created if counters is None else max(producer.created, counters.last)
