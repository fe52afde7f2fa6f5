"""Chunked messages on Shared subscriptions: one consumer gets all chunks of a message (mirrors
`SharedConsumerAssignor`; rules: dispatch_shared.md §9)."""

from collections.abc import Callable, Collection

from streaming.broker.dispatch.sending import Found
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.subscription import Subscription

NextConsumer = Callable[[list[Consumer]], Consumer | None]
"""Returns the consumer whose turn it is, or None if no consumer can receive."""


def assign(
    found: Found, subscription: Subscription, next_consumer: NextConsumer, chunk_owners: dict[str, Handle]
) -> tuple[list[tuple[Consumer, Found]], list[Position]]:
    """Assign each chunk to the consumer that got the message's first chunk, and other entries to consumers in turn.

    Returns the entries by consumer, in the order of the subscription's consumers, and the positions that no consumer could
    take. Permits count entries here. Updates `chunk_owners`.
    """
    consumers = subscription.consumers
    permits = _Permits()
    assigned: dict[Handle, Found] = {}
    left: list[Position] = []
    current: Consumer | None = None
    available = 0
    for index, (position, entry) in enumerate(found):
        if available <= 0:
            current = _choose(next_consumer, consumers, permits)
            if current is None:
                left += [position for position, _ in found[index:]]
                break
            available = permits.of(current)
        assert current is not None  # without permits anywhere, the loop has ended
        metadata = entry.metadata
        owner = current
        if metadata.uuid is not None:
            first = _owner(chunk_owners, subscription, current, metadata.uuid, metadata.chunk_id or 0)
            if first is None or permits.of(first) <= 0:
                left.append(position)
                continue
            owner = first
            if metadata.chunk_id == (metadata.num_chunks_from_msg or 1) - 1:
                chunk_owners.pop(metadata.uuid, None)
        permits.take(owner)
        available -= 1
        assigned.setdefault(owner.handle, []).append((position, entry))
    runs = []
    for consumer in _in_order(assigned, subscription):
        run, most = assigned[consumer.handle], max(consumer.permits, 0)
        runs.append((consumer, run[:most]))
        left += [position for position, _ in run[most:]]
    return runs, sorted(left)


class _Permits:
    """The permits that are left while entries are assigned. It looks only at consumers whose turn comes."""

    def __init__(self) -> None:
        self._left: dict[Handle, int] = {}

    def of(self, consumer: Consumer) -> int:
        left = self._left.get(consumer.handle)
        if left is None:
            left = self._left[consumer.handle] = consumer.permits if consumer.available else 0
        return left

    def take(self, consumer: Consumer) -> None:
        self._left[consumer.handle] = self.of(consumer) - 1


def _in_order(handles: Collection[Handle], subscription: Subscription) -> list[Consumer]:
    if len(handles) > 1:
        return [consumer for consumer in subscription.consumers if consumer.handle in handles]
    return [subscription.consumer(*handle) for handle in handles]


def _choose(next_consumer: NextConsumer, consumers: list[Consumer], permits: _Permits) -> Consumer | None:
    turns: dict[Handle, int] = {}
    left = len(consumers)
    while left > 0:
        consumer = next_consumer(consumers)
        if consumer is None:
            return None
        if permits.of(consumer) > 0:
            return consumer
        left -= 1
        if consumer.handle in turns:
            # Nobody can take an entry, and whole rounds would end where they begin.
            left %= turns[consumer.handle] - left
            turns.clear()
        else:
            turns[consumer.handle] = left
    return None


def _owner(
    chunk_owners: dict[str, Handle], subscription: Subscription, current: Consumer, uuid: str, chunk: int
) -> Consumer | None:
    """The consumer of a chunked message, or None if it is unknown or gone. A first chunk makes `current` the owner."""
    handle = chunk_owners.get(uuid)
    if handle is None:
        if chunk != 0:
            return None
        chunk_owners[uuid] = current.handle
        return current
    return subscription.connected(*handle)
