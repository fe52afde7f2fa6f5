"""Chunked messages on Shared subscriptions: one consumer gets all chunks of a message (mirrors
`SharedConsumerAssignor`; rules: docs/rules/shared.md §12)."""

from collections import Counter
from collections.abc import Callable, Collection
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from streaming.broker.dispatch.sending import Found
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.subscription import Subscription

NextConsumer = Callable[[list[Consumer]], Consumer | None]
"""Returns the consumer whose turn it is, or None if no consumer can receive."""


class ChunkRun(NamedTuple):
    """Entries for a consumer. `gone`: it has left."""

    consumer: Consumer
    gone: bool
    entries: Found


ChunkedMessage = tuple[Handle, int]
"""A consumer. Those that are gone may have the handle of one that is connected, and count from 1."""


MOST_UNFINISHED = 1000
"""Of so many messages whose last chunk has not come, the owners are known. Chunks of older ones wait. Pulsar has no limit."""


class ChunkOwners(msgspec.Struct, array_like=True, dict=True):
    """Which consumer gets the chunks of a message, until its last chunk is assigned.

    `by_uuid`: a connected consumer, or an index in `gone`: those that left before. quirk: they still get chunks, which nobody
    receives any more, as long as the permits last that they left with. A `blocked` one is not even sent them: see
    closesPendingAcksOfLeaving.
    """

    by_uuid: dict[str, Handle | int] = {}
    gone: list[Consumer] = []

    def of(
        self, subscription: Subscription, current: Consumer, uuid: str, chunk: int
    ) -> tuple[Consumer | None, int]:
        """The consumer of a message, or None if its first chunk is not known, and its number if it is gone. A first chunk makes
        `current` the owner."""
        owner = self.by_uuid.get(uuid)
        if isinstance(owner, int):
            return self.gone[owner], owner + 1
        if owner is not None:
            return subscription.connected(*owner), 0
        if chunk != 0:
            return None, 0
        self.by_uuid[uuid] = current.handle
        self._owned.setdefault(current.handle, {})[uuid] = None
        if len(self.by_uuid) > MOST_UNFINISHED:
            self.forget(next(iter(self.by_uuid)))
        return current, 0

    def permits(self, subscription: Subscription) -> dict[str, int]:
        """Those of the consumer of each message."""
        found: dict[str, int] = {}
        for uuid, owner in self.by_uuid.items():
            consumer = self.gone[owner] if isinstance(owner, int) else subscription.connected(*owner)
            if consumer is not None:
                found[uuid] = consumer.permits
        return found

    def nobody_can_take(self, uuid: str, chunk: int) -> bool:
        """Whether a chunk has to wait, whatever the permits of those who are connected."""
        owner = self.by_uuid.get(uuid)
        if owner is None:
            return chunk != 0
        return isinstance(owner, int) and self.gone[owner].permits <= 0

    def leaves(self, consumer: Consumer, *, is_sent_more: bool) -> None:
        """A consumer leaves. Keep its permits if it owns messages. `is_sent_more`: whether it is sent chunks while its connection is open."""
        uuids = self._owned.pop(consumer.handle, None)
        if not uuids:
            return
        of_gone, free, connections = self._of_gone, self._free, self._connections  # as they are before that
        index = heappop(free) if free else len(self.gone)
        left = Consumer(
            consumer.connection,
            consumer.consumer_id,
            consumer.name,
            permits=consumer.permits,
            blocked=not is_sent_more,
        )
        self.gone[index : index + 1] = [left]
        self.by_uuid.update(dict.fromkeys(uuids, index))
        of_gone[index] = len(uuids)
        connections[left.connection] += 1

    def forget(self, uuid: str) -> None:
        """The last chunk of a message is assigned, or none is expected any more."""
        owned, of_gone, free, connections = (
            self._owned,
            self._of_gone,
            self._free,
            self._connections,
        )  # before that
        owner = self.by_uuid.pop(uuid, None)
        if isinstance(owner, int):
            of_gone[owner] -= 1
            if not of_gone[owner]:
                del of_gone[owner]
                heappush(free, owner)
                connection = self.gone[owner].connection
                self._parted.append(connection)
                connections[connection] -= 1
                if not connections[connection]:
                    del connections[connection]
        elif owner is not None:
            del owned[owner][uuid]
            if not owned[owner]:
                del owned[owner]

    def remembered(self) -> Collection[str]:
        """The connections of those that left."""
        return self._connections.keys()

    def take_parted(self) -> list[str]:
        """The connections of those that left and have no message any more since the last call."""
        parted, self._parted = self._parted, []
        return parted

    @cached_property
    def _owned(self) -> dict[Handle, dict[str, None]]:
        """The messages of each connected consumer."""
        found: dict[Handle, dict[str, None]] = {}
        for uuid, owner in self.by_uuid.items():
            if not isinstance(owner, int):
                found.setdefault(owner, {})[uuid] = None
        return found

    @cached_property
    def _of_gone(self) -> Counter[int]:
        """How many messages those have that left, by index. Without those that have none."""
        return Counter(owner for owner in self.by_uuid.values() if isinstance(owner, int))

    @cached_property
    def _free(self) -> list[int]:
        """Heap: the indexes in `gone` of those that have no message any more."""
        return [index for index in range(len(self.gone)) if index not in self._of_gone]

    @cached_property
    def _connections(self) -> Counter[str]:
        """How many of those that left and have messages were on each connection."""
        return Counter(self.gone[index].connection for index in self._of_gone)

    @cached_property
    def _parted(self) -> list[str]:
        return []


def assign(
    found: Found, subscription: Subscription, next_consumer: NextConsumer, owners: ChunkOwners
) -> tuple[list[ChunkRun], list[Position]]:
    """Assign each chunk to the consumer that got the message's first chunk, and other entries to consumers in turn.

    Returns the entries by consumer, in the order of the subscription's consumers and then of those that are gone, and the
    positions that no consumer could take. Permits count entries here. Updates `owners`.
    """
    consumers = subscription.consumers
    permits = _Permits()
    assigned: dict[ChunkedMessage, ChunkRun] = {}
    left: list[Position] = []
    current: Consumer | None = None
    available = 0
    for index, (position, entry) in enumerate(found):
        if available <= 0:
            if current is not None:
                permits.leave((current.handle, 0), available)
            current = _choose(next_consumer, consumers, permits)
            if current is None:
                left += [position for position, _ in found[index:]]
                break
            available = current.permits
        assert current is not None  # without permits anywhere, the loop has ended
        metadata = entry.metadata
        owner, number = current, 0
        if metadata.uuid is not None:
            first, number = owners.of(subscription, current, metadata.uuid, metadata.chunk_id or 0)
            if first is None or permits.of(first, (first.handle, number)) <= 0:
                left.append(position)
                continue
            owner = first
            if metadata.chunk_id == (metadata.num_chunks_from_msg or 1) - 1:
                owners.forget(metadata.uuid)
            permits.leave(
                (owner.handle, number), available - 1
            )  # quirk: those of the current consumer, whoever the owner is
        available -= 1
        run = assigned.setdefault((owner.handle, number), ChunkRun(owner, number > 0, []))
        run.entries.append((position, entry))
    runs = list(assigned.values())
    if len(runs) > 1:
        keys: list[ChunkedMessage] = [(each.handle, 0) for each in consumers]
        keys += [(each.handle, number) for number, each in enumerate(owners.gone, 1)]
        runs = [assigned[key] for key in keys if key in assigned]
    for consumer, _, entries in runs:
        left += [position for position, _ in entries[max(consumer.permits, 0) :]]
        del entries[max(consumer.permits, 0) :]
    return runs, sorted(left)


class _Permits:
    """The permits that are left while entries are assigned. It looks only at consumers whose turn comes."""

    def __init__(self) -> None:
        self._left: dict[ChunkedMessage, int] = {}

    def of(self, consumer: Consumer, key: ChunkedMessage | None = None) -> int:
        return self._left.setdefault(key or (consumer.handle, 0), consumer.permits)

    def leave(self, key: ChunkedMessage, permits: int) -> None:
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
