"""Chunked messages on Shared subscriptions: one consumer gets all chunks of a message (mirrors
`SharedConsumerAssignor`; rules: dispatch_shared.md §9)."""

from collections.abc import Callable

from streaming.broker.dispatch.sending import Found
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle

NextConsumer = Callable[[list[Consumer]], Consumer | None]
"""Returns the consumer whose turn it is, or None if no consumer can receive."""


def assign(
    found: Found, consumers: list[Consumer], next_consumer: NextConsumer, chunk_owners: dict[str, Handle]
) -> tuple[list[Found], list[Position]]:
    """Assign each chunk to the consumer that got the message's first chunk, and other entries to consumers in turn.

    Returns one list of entries per consumer, in the order of `consumers`, and the positions that no consumer could
    take. Permits count entries here. Updates `chunk_owners`.
    """
    permits = {
        consumer.handle: max(consumer.permits, 0) if consumer.available else 0 for consumer in consumers
    }
    assigned: dict[Handle, Found] = {consumer.handle: [] for consumer in consumers}
    left: list[Position] = []
    current: Consumer | None = None
    available = 0
    for index, (position, entry) in enumerate(found):
        if available <= 0:
            current = _choose(next_consumer, consumers, permits)
            if current is None:
                left += [position for position, _ in found[index:]]
                break
            available = permits[current.handle]
        assert current is not None  # without permits anywhere, the loop has ended
        metadata = entry.metadata
        owner = current
        if metadata.uuid is not None:
            first = _owner(chunk_owners, consumers, current, metadata.uuid, metadata.chunk_id or 0)
            if first is None or permits[first.handle] <= 0:
                left.append(position)
                continue
            owner = first
            if metadata.chunk_id == (metadata.num_chunks_from_msg or 1) - 1:
                chunk_owners.pop(metadata.uuid, None)
        permits[owner.handle] -= 1
        available -= 1
        assigned[owner.handle].append((position, entry))
    runs = []
    for consumer in consumers:
        run, most = assigned[consumer.handle], max(consumer.permits, 0)
        runs.append(run[:most])
        left += [position for position, _ in run[most:]]
    return runs, sorted(left)


def _choose(
    next_consumer: NextConsumer, consumers: list[Consumer], permits: dict[Handle, int]
) -> Consumer | None:
    for _ in consumers:
        consumer = next_consumer(consumers)
        if consumer is None:
            return None
        if permits[consumer.handle] > 0:
            return consumer
    return None


def _owner(
    chunk_owners: dict[str, Handle], consumers: list[Consumer], current: Consumer, uuid: str, chunk: int
) -> Consumer | None:
    """The consumer of a chunked message, or None if it is unknown or gone. A first chunk makes `current` the owner."""
    handle = chunk_owners.get(uuid)
    if handle is None:
        if chunk != 0:
            return None
        chunk_owners[uuid] = current.handle
        return current
    return next((consumer for consumer in consumers if consumer.handle == handle), None)
