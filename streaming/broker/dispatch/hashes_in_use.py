"""Where hashes are in use on a Key_Shared subscription: by entries that consumers have not acknowledged, and by entries that wait.

A consumer that joins takes a few ranges of slots from others, and gives them back when it leaves. With these indexes, that costs in
proportion to the entries in the ranges, not to all. They are derived from the state and not in it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from streaming.broker.dispatch.sorted_blocks import Positions, Slots
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle

_KEPT_FOR = 100


class UnackedHashes:
    """How many unacknowledged entries each consumer has of a hash. `is_outdated`: it was changed more often than making it anew
    costs, so whoever keeps it up to date should forget it until it is needed."""

    def __init__(self, consumers: Iterable[Consumer]) -> None:
        self._entries: dict[int, dict[Handle, int]] = {}
        self._changes = size = 0
        for consumer in consumers:
            size += len(consumer.hashes)
            for hash_ in consumer.hashes.values():
                self._count(consumer.handle, hash_)
        self._slots = Slots(sorted(self._entries))
        self._most = size + _KEPT_FOR

    @property
    def is_outdated(self) -> bool:
        """See the class."""
        return self._changes > self._most

    def outlives(self, leaving: int) -> bool:
        """Whether it takes less to remove so many entries than to make it anew without them."""
        return not leaving or 2 * leaving < self._most - _KEPT_FOR

    def __bool__(self) -> bool:
        return bool(self._entries)

    def entries(self, handle: Handle, hash_: int) -> int:
        """How many a consumer has."""
        return self._entries.get(hash_, {}).get(handle, 0)

    def between(self, first: int, last: int) -> Iterator[int]:
        """The hashes from `first` to `last` that entries have, ascending."""
        return _between(self._slots, first, last)

    def add(self, handle: Handle, hash_: int) -> None:
        """An entry was sent."""
        if hash_ not in self._entries:
            self._slots.add(hash_)
        self._count(handle, hash_)
        self._changes += 1

    def remove(self, handle: Handle, hash_: int) -> None:
        """An entry is not unacknowledged any more."""
        counts = self._entries[hash_]
        counts[handle] -= 1
        if not counts[handle]:
            del counts[handle]
            if not counts:
                del self._entries[hash_]
                self._slots.discard(hash_)
        self._changes += 1

    def _count(self, handle: Handle, hash_: int) -> None:
        counts = self._entries.setdefault(hash_, {})
        counts[handle] = counts.get(handle, 0) + 1


class WaitingHashes:
    """Positions that wait, by the consumer that gets them (None: nobody, or their hashes are not known), and by hash."""

    def __init__(
        self, waiting: Iterable[tuple[Position, int | None]], select: Callable[[int], Handle | None]
    ) -> None:
        """`waiting`: positions, ascending, with their hashes. `select`: the consumer of a hash."""
        by_hash: dict[int | None, list[Position]] = {}
        for position, hash_ in waiting:
            by_hash.setdefault(hash_, []).append(position)
        by_consumer: dict[Handle | None, list[Position]] = {}
        for hash_, positions in by_hash.items():
            by_consumer.setdefault(None if hash_ is None else select(hash_), []).extend(positions)
        self._by_consumer = {handle: Positions(sorted(each)) for handle, each in by_consumer.items()}
        self._by_hash = {hash_: set(each) for hash_, each in by_hash.items() if hash_ is not None}
        self._slots = Slots(sorted(self._by_hash))

    def __bool__(self) -> bool:
        return bool(self._by_hash)

    @property
    def by_consumer(self) -> Mapping[Handle | None, Positions]:
        """The consumers for which positions wait, and these."""
        return self._by_consumer

    def between(self, first: int, last: int) -> Iterator[int]:
        """The hashes from `first` to `last` that positions have, ascending."""
        return _between(self._slots, first, last)

    def add(self, handle: Handle | None, hash_: int | None, position: Position) -> None:
        """A position waits."""
        self._by_consumer.setdefault(handle, Positions()).add(position)
        if hash_ is not None:
            if hash_ not in self._by_hash:
                self._slots.add(hash_)
            self._by_hash.setdefault(hash_, set()).add(position)

    def discard(self, handle: Handle | None, hash_: int | None, position: Position) -> None:
        """A position waits no more, if it did."""
        if (waiting := self._by_consumer.get(handle)) is not None:
            waiting.discard(position)
            if not waiting:
                del self._by_consumer[handle]
        if hash_ is not None and (positions := self._by_hash.get(hash_)) is not None:
            positions.discard(position)
            if not positions:
                del self._by_hash[hash_]
                self._slots.discard(hash_)

    def move(self, hash_: int, former: Handle | None, handle: Handle | None) -> None:
        """The positions with a hash are another consumer's."""
        if positions := self._by_hash.get(hash_):
            source, target = self._by_consumer[former], self._by_consumer.setdefault(handle, Positions())
            for position in positions:
                source.discard(position)
                target.add(position)
            if not source:
                del self._by_consumer[former]


def _between(slots: Slots, first: int, last: int) -> Iterator[int]:
    slot = slots.at_or_after(first)
    while slot is not None and slot <= last:
        yield slot
        slot = slots.at_or_after(slot + 1)
