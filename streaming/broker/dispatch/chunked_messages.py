"""Chunks of large messages on Shared subscriptions: all of one message to one consumer (mirrors
`SharedConsumerAssignor`; rules: dispatch_shared.md §9)."""

from typing import TYPE_CHECKING

from streaming.broker.context import Context
from streaming.broker.dispatch.dispatcher import Found
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer

if TYPE_CHECKING:
    from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
    from streaming.broker.subscription.subscription import Subscription
    from streaming.broker.topic import Topic


def deal(
    dispatcher: "MultipleConsumers", ctx: Context, topic: "Topic", subscription: "Subscription", found: Found
) -> list[Position]:
    """Give chunks to the consumer that has the message's first chunk, other entries to consumers in turn.

    Returns the positions that nobody could take. Permits are counted in entries here.
    """
    consumers = subscription.consumers
    permits = {id(consumer): max(consumer.permits, 0) if consumer.available else 0 for consumer in consumers}
    assigned: dict[int, Found] = {id(consumer): [] for consumer in consumers}
    left: list[Position] = []
    current: Consumer | None = None
    available = 0
    for index, (position, entry) in enumerate(found):
        if available <= 0:
            current = _choose(dispatcher, consumers, permits)
            if current is None:
                left += [position for position, _ in found[index:]]
                break
            available = permits[id(current)]
        assert current is not None  # there are permits, so somebody has them
        metadata = entry.metadata
        owner: Consumer | None = current
        if metadata.uuid is not None:
            owner = _owner(dispatcher, consumers, current, metadata.uuid, metadata.chunk_id or 0)
            if owner is None or permits[id(owner)] <= 0:
                left.append(position)
                continue
            if metadata.chunk_id == (metadata.num_chunks_from_msg or 1) - 1:
                dispatcher.chunk_owners.pop(metadata.uuid, None)
        permits[id(owner)] -= 1
        available -= 1
        assigned[id(owner)].append((position, entry))
    for consumer in consumers:
        run = assigned[id(consumer)]
        most = max(consumer.permits, 0)
        if run[:most]:
            dispatcher.send(ctx, topic, subscription, consumer, run[:most])
        left += [position for position, _ in run[most:]]
    return sorted(left)


def _choose(
    dispatcher: "MultipleConsumers", consumers: list[Consumer], permits: dict[int, int]
) -> Consumer | None:
    for _ in consumers:
        consumer = dispatcher.next_consumer(consumers)
        if consumer is None:
            return None
        if permits[id(consumer)] > 0:
            return consumer
    return None


def _owner(
    dispatcher: "MultipleConsumers", consumers: list[Consumer], current: Consumer, uuid: str, chunk: int
) -> Consumer | None:
    """The consumer of a chunked message; its first chunk makes `current` that. None: it isn't known (any more)."""
    handle = dispatcher.chunk_owners.get(uuid)
    if handle is None:
        if chunk != 0:
            return None
        dispatcher.chunk_owners[uuid] = (current.connection, current.consumer_id)
        return current
    return next((c for c in consumers if (c.connection, c.consumer_id) == handle), None)
