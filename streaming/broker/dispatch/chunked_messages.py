"""Chunked messages on Shared subscriptions: one consumer gets all chunks of a message (mirrors
`SharedConsumerAssignor`; rules: dispatch_shared.md §9)."""

from collections.abc import Callable
from functools import cached_property

import msgspec

from streaming.broker.dispatch.sending import Found
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.subscription import Subscription

NextConsumer = Callable[[list[Consumer]], Consumer | None]
"""Returns the consumer whose turn it is, or None if no consumer can receive."""

Runs = list[tuple[Consumer, Found]]
"""Entries by consumer."""


Key = tuple[Handle, int]
"""A consumer. Those that are gone may have the handle of one that is connected, and count from 1."""


MOST_UNFINISHED = 1000
"""Of so many messages whose last chunk has not come, the owners are known. Chunks of older ones wait. Pulsar has no limit."""


class ChunkOwners(msgspec.Struct, array_like=True, dict=True):
    """Which consumer gets the chunks of a message, until its last chunk is assigned.

    `by_uuid`: a connected consumer, or an index in `gone`: those that left before. quirk: they still get chunks, which nobody
    receives any more, as long as the permits last that they left with.
    """

    by_uuid: dict[str, Handle | int] = {}
    gone: list[Consumer] = []

    def of(self, subscription: Subscription, current: Consumer, uuid: str, chunk: int) -> Consumer | None:
        """The consumer of a message, or None if its first chunk is not known. A first chunk makes `current` the owner."""
        owner = self.by_uuid.get(uuid)
        if isinstance(owner, int):
            return self.gone[owner]
        if owner is not None:
            return subscription.connected(*owner)
        if chunk != 0:
            return None
        self.by_uuid[uuid] = current.handle
        if len(self.by_uuid) > MOST_UNFINISHED:
            self.forget(next(iter(self.by_uuid)))
        return current

    def forget(self, uuid: str) -> None:
        """The last chunk of a message is assigned, or none is expected any more."""
        owner = self.by_uuid.pop(uuid, None)
        if isinstance(owner, int):
            self._parted.append(self.gone[owner].connection)

    def take_parted(self) -> list[str]:
        """The connections of consumers that left, for which a message less is kept since the last call."""
        parted, self._parted = self._parted, []
        return parted

    @cached_property
    def _parted(self) -> list[str]:
        return []

    def leaves(self, consumer: Consumer) -> None:
        """A consumer leaves. Keep its permits if it owns messages."""
        uuids = [uuid for uuid, owner in self.by_uuid.items() if owner == consumer.handle]
        if not uuids:
            return
        index = next((i for i in range(len(self.gone)) if i not in self.by_uuid.values()), len(self.gone))
        left = Consumer(consumer.connection, consumer.consumer_id, consumer.name, permits=consumer.permits)
        self.gone[index : index + 1] = [left]
        self.by_uuid.update(dict.fromkeys(uuids, index))

    def remembered(self) -> set[str]:
        """The connections of those that left."""
        return {self.gone[owner].connection for owner in self.by_uuid.values() if isinstance(owner, int)}

    def has_left(self, consumer: Consumer) -> bool:
        """Whether `of` gave a consumer that is gone."""
        return any(consumer is each for each in self.gone)


def assign(
    found: Found, subscription: Subscription, next_consumer: NextConsumer, owners: ChunkOwners
) -> tuple[Runs, list[Position]]:
    """Assign each chunk to the consumer that got the message's first chunk, and other entries to consumers in turn.

    Returns the entries by consumer, in the order of the subscription's consumers and then of those that are gone, and the
    positions that no consumer could take. Permits count entries here. Updates `owners`.
    """
    consumers = subscription.consumers
    permits = _Permits()
    assigned: dict[Key, tuple[Consumer, Found]] = {}
    left: list[Position] = []
    current: Consumer | None = None
    available = 0
    for index, (position, entry) in enumerate(found):
        if available <= 0:
            if current is not None:
                permits.leave(_key(owners, current), available)
            current = _choose(next_consumer, consumers, permits)
            if current is None:
                left += [position for position, _ in found[index:]]
                break
            available = current.permits
        assert current is not None  # without permits anywhere, the loop has ended
        metadata = entry.metadata
        owner = current
        if metadata.uuid is not None:
            first = owners.of(subscription, current, metadata.uuid, metadata.chunk_id or 0)
            if first is None or permits.of(first, _key(owners, first)) <= 0:
                left.append(position)
                continue
            owner = first
            if metadata.chunk_id == (metadata.num_chunks_from_msg or 1) - 1:
                owners.forget(metadata.uuid)
            permits.leave(
                _key(owners, owner), available - 1
            )  # quirk: those of the current consumer, whoever the owner is
        available -= 1
        assigned.setdefault(_key(owners, owner), (owner, []))[1].append((position, entry))
    runs = list(assigned.values())
    if len(runs) > 1:
        keys = [_key(owners, each) for each in [*consumers, *owners.gone]]
        runs = [assigned[key] for key in keys if key in assigned]
    for consumer, run in runs:
        left += [position for position, _ in run[max(consumer.permits, 0) :]]
        del run[max(consumer.permits, 0) :]
    return runs, sorted(left)


def _key(owners: ChunkOwners, consumer: Consumer) -> Key:
    index = next((index for index, each in enumerate(owners.gone, 1) if each is consumer), 0)
    return consumer.handle, index


class _Permits:
    """The permits that are left while entries are assigned. It looks only at consumers whose turn comes."""

    def __init__(self) -> None:
        self._left: dict[Key, int] = {}

    def of(self, consumer: Consumer, key: Key | None = None) -> int:
        return self._left.setdefault(key or (consumer.handle, 0), consumer.permits)

    def leave(self, key: Key, permits: int) -> None:
        self._left[key] = permits


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
