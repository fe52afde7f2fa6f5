"""Key_Shared selectors: three ways to divide the hash slots among consumers (mirrors
`ConsistentHashingStickyKeyConsumerSelector`, `HashRangeAutoSplitStickyKeyConsumerSelector` and
`HashRangeExclusiveStickyKeyConsumerSelector`; rules: docs/rules/key-shared.md §2–§5).

A slot is never 0, since 0 means "no hash" on the wire and in Pulsar's stats.
"""

from bisect import bisect_left, insort
from functools import cached_property, lru_cache
from itertools import pairwise

import msgspec

from streaming.broker.config import ServiceConfiguration
from streaming.broker.dispatch.murmur3 import murmur3_31
from streaming.broker.dispatch.sorted_blocks import Slots
from streaming.broker.errors import BrokerError
from streaming.broker.subscription.consumer import Consumer, Handle

RANGE_SIZE = 65536
"""Slots of the range selectors. The ring of consistent hashing has one less, because it leaves out 0."""

CLASSIC_RING_SIZE = 2**31 - 2
"""Slots on the ring before Pulsar 4.0."""


HashSlots = tuple[int, int, Handle]
"""First slot, last slot (both inclusive), and the consumer that owns them."""

Member = tuple[str, int]
"""A consumer on the ring of consistent hashing: its name, and a number that tells it from others with that name."""


def _by_name(member: Member) -> bytes:
    """As Java compares strings."""
    return member[0].encode("utf-16-be")


class Ring:
    """The slots that have a point, and the members with a point in each, in joining order. The first owns the slot, unless they
    `share` it: then they are ordered by name, and a slot is one of theirs by its number."""

    def __init__(self, slots: Slots, members: dict[int, tuple[Member, ...]], *, share: bool) -> None:
        self._slots, self._members, self._share = slots, members, share

    def copy(self) -> "Ring":
        """A ring with the same points."""
        return Ring(self._slots.copy(), self._members.copy(), share=self._share)

    def owner(self, slot: int) -> Member:
        """The owner of the first point at or after the slot, or of the first point on the ring if there is none."""
        place = self._slots.at_or_after(slot)
        members = self._members[self._slots.first(1)[0] if place is None else place]
        return members[(slot - 1) % len(members) if self._share else 0]

    def reached(self, point: int, size: int) -> list[tuple[int, int]]:
        """The slots that a point has or would have: those before it up to the one before, and for the first point those after the
        last one, up to `size`."""
        before = self._slots.before(point)
        if before is not None:
            return [(before + 1, point)]
        last = self._slots.last()
        return [(1, point)] if last is None else [(1, point), (max(last, point) + 1, size)]

    def owners(self) -> list[tuple[int, Member]]:
        """The slots that have a point, ascending, and the owner of each, or all owners."""
        return [
            (slot, each) for slot in self._slots for each in self._members[slot][: None if self._share else 1]
        ]

    def join(self, member: Member, slots: list[int]) -> None:
        """Add a member with its points."""
        for slot in slots:
            members = (*self._members.get(slot, ()), member)
            self._members[slot] = tuple(sorted(members, key=_by_name)) if self._share else members
        self._slots.update(slots)

    def leave(self, member: Member, slots: list[int]) -> None:
        """Remove a member and its points."""
        for slot in set(slots):
            others = tuple(other for other in self._members[slot] if other != member)
            if others:
                self._members[slot] = others
            else:
                del self._members[slot]
                self._slots.discard(slot)

    def leave_together(self, gone: set[Member]) -> None:
        """Remove many members, in one pass over all points."""
        for slot, members in list(self._members.items()):
            others = tuple(each for each in members if each not in gone)
            if not others:
                del self._members[slot]
                self._slots.discard(slot)
            elif len(others) < len(members):
                self._members[slot] = others


class ConsistentHashing(msgspec.Struct, array_like=True, tag="ring", dict=True):
    """A hash ring with `points` per consumer. `members`: (consumer, its name, name index) in joining order.

    The name index distinguishes consumers with the same name. It is the lowest free number. `by_name`: their points are the same.
    """

    points: int = 100
    size: int = RANGE_SIZE - 1
    members: list[tuple[Handle, str, int]] = []
    by_name: bool = False

    def slot(self, key_hash: int) -> int:
        """The slot of a hash, in [1, `size`]."""
        return key_hash % self.size + 1

    def check(self, consumer: Consumer) -> None:
        """Any consumer may join."""

    def add(self, consumer: Consumer) -> None:
        """Add a consumer and its points."""
        member = (consumer.name, self._free_index(consumer.name))
        self._own_ring.join(member, self._points_of(member))
        self.members.append((consumer.handle, *member))
        self._handles[member] = consumer.handle
        self._joined[consumer.handle] = member
        self._indexes.setdefault(member[0], set()).add(member[1])

    def remove(self, consumer: Handle) -> None:
        """Remove a consumer and its points."""
        gone = self._joined.pop(consumer, None)
        if gone is None:
            return
        self._own_ring.leave(gone, self._points_of(gone))
        del self._handles[gone]
        self._indexes[gone[0]].discard(gone[1])
        self.members.remove((consumer, *gone))

    def remove_together(self, consumers: set[Handle]) -> None:
        """Remove many consumers."""
        gone = {self._joined[each] for each in consumers}
        self._own_ring.leave_together(gone)
        self.members = [each for each in self.members if each[0] not in consumers]
        for name in ("_indexes", "_joined", "_handles"):
            self.__dict__.pop(name, None)

    def has(self, consumer: Handle) -> bool:
        """Whether the consumer has joined."""
        return consumer in self._joined

    def reach(self, consumer: Consumer) -> list[tuple[int, int]]:
        """Ranges of slots (both ends inclusive) in which all are that change their owner when a consumer joins or leaves."""
        member = self._joined.get(consumer.handle) or (consumer.name, self._free_index(consumer.name))
        points = self._points_of(member)
        return [each for point in points for each in self._ring.reached(point, self.size)]

    def _points_of(self, member: Member) -> list[int]:
        return _points(*member, self.points, self.size, by_name=self.by_name)

    def _free_index(self, name: str) -> int:
        taken = self._indexes.get(name, ())
        return next(index for index in range(len(taken) + 1) if index not in taken)

    def select(self, slot: int) -> Handle | None:
        """The owner of the first point at or after the slot, or of the first point on the ring if there is none."""
        return self._handles[self._ring.owner(slot)] if self.members else None

    def assignments(self) -> list[HashSlots]:
        """The ranges of slots and their owners, in order. Each point owns the slots before it, the first one also those
        after the last point."""
        return _ranges(1, self._bounds())

    def by_point(self) -> list[HashSlots]:
        """As `assignments`, with a range of hashes for each point, from 0. quirk: those after the last point are not shown where
        consumers share points (2.10)."""
        if self.by_name:
            found, last, before = list[HashSlots](), -1, -1
            for slot, member in self._ring.owners():
                if slot - 1 != last:
                    last, before = slot - 1, last
                found.append((before + 1, last, self._handles[member]))
            return found
        return _ranges(0, self._bounds(before=1), merges=False)

    def _bounds(self, before: int = 0) -> list[tuple[int, Handle]]:
        """The slots so far `before` points and their owners, then the last slot, as `_ranges` takes them."""
        bounds = [(slot - before, self._handles[member]) for slot, member in self._ring.owners()]
        return [*bounds, (self.size, bounds[0][1])] if bounds else []

    @cached_property
    def _ring(self) -> Ring:  # shared with others until the first change
        members = tuple((name, index) for _, name, index in self.members)
        return _ring(members, self.points, self.size, by_name=self.by_name)

    @cached_property
    def _own_ring(self) -> Ring:  # from the first change on, also as `_ring`
        self.__dict__["_ring"] = own = self._ring.copy()
        return own

    @cached_property
    def _indexes(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for _, name, index in self.members:
            found.setdefault(name, set()).add(index)
        return found

    @cached_property
    def _joined(self) -> dict[Handle, Member]:
        return {handle: (name, index) for handle, name, index in self.members}

    @cached_property
    def _handles(self) -> dict[Member, Handle]:
        return {(name, index): handle for handle, name, index in self.members}


@lru_cache(maxsize=4096)
def _points(name: str, index: int, points: int, size: int, *, by_name: bool) -> list[int]:
    """The slots of a consumer's points."""
    before = name.encode() if by_name else b"%s\0%d\0" % (name.encode(), index)
    return [murmur3_31(b"%s%d" % (before, point)) % size + 1 for point in range(points)]


@lru_cache(maxsize=256)
def _ring(members: tuple[Member, ...], points: int, size: int, *, by_name: bool) -> Ring:
    """The ring of members in joining order. Don't change it: hashing everybody's points again costs more than a copy."""
    ring = Ring(Slots(), {}, share=by_name)
    for member in members:
        ring.join(member, _points(*member, points, size, by_name=by_name))
    return ring


class AutoSplit(msgspec.Struct, array_like=True, tag="split", dict=True):
    """Each new consumer splits the widest range in half. `bounds`: ascending (highest slot of a range, its consumer)."""

    size: int = RANGE_SIZE
    bounds: list[tuple[int, Handle]] = []

    def slot(self, key_hash: int) -> int:
        """The slot of a hash, in [1, `size`). 0 becomes 1."""
        return key_hash % self.size or 1

    def check(self, consumer: Consumer) -> None:
        """Any consumer may join."""

    def add(self, consumer: Consumer) -> None:
        """Give the new consumer the lower half of the widest range. Ties go to the lowest range."""
        bound = self._half()[1] if self.bounds else self.size
        self._bound_of[consumer.handle] = bound
        insort(self.bounds, (bound, consumer.handle))

    def _half(self) -> tuple[int, int]:
        """The lower half of the widest range: its bounds, of which the first is not in it."""
        low = widest = start = half = 0
        for bound, _ in self.bounds:
            if bound - low > widest:
                widest, start, half = bound - low, low, bound - (bound - low >> 1)
            low = bound
        return start, half

    def remove(self, consumer: Handle) -> None:
        """Merge the consumer's range into the next higher one, or the highest range into the next lower one."""
        bound = self._bound_of.pop(consumer, None)
        if bound is None:
            return
        del self.bounds[bisect_left(self.bounds, (bound, consumer))]
        if self.bounds and self.bounds[-1][0] != self.size:
            last = self.bounds[-1][1]
            self.bounds[-1], self._bound_of[last] = (self.size, last), self.size

    def remove_together(self, consumers: set[Handle]) -> None:
        """Remove many consumers."""
        for consumer in consumers:
            self.remove(consumer)

    def has(self, consumer: Handle) -> bool:
        """Whether the consumer has joined."""
        return consumer in self._bound_of

    @cached_property
    def _bound_of(self) -> dict[Handle, int]:
        return {handle: bound for bound, handle in self.bounds}

    def reach(self, consumer: Consumer) -> list[tuple[int, int]]:
        """As `ConsistentHashing.reach`."""
        if not self.bounds:
            return [(0, self.size)]
        low = 0
        for bound, handle in self.bounds:
            if handle == consumer.handle:
                return [(low + 1, bound)]
            low = bound
        low, high = self._half()
        return [(low + 1, high)]

    def select(self, slot: int) -> Handle | None:
        """The owner of the range that holds the slot, or None without consumers."""
        place = bisect_left(self.bounds, (slot,))
        return self.bounds[place][1] if place < len(self.bounds) else None

    def assignments(self) -> list[HashSlots]:
        """The ranges of slots and their owners, in order."""
        return _ranges(0, self.bounds)


class HashRangeExclusive(msgspec.Struct, array_like=True, tag="sticky", dict=True):
    """Each consumer asks for fixed slots. `ranges`: ascending (first slot, last slot, consumer), both inclusive. No two
    overlap."""

    ranges: list[HashSlots] = []

    def slot(self, key_hash: int) -> int:
        """The slot of a hash, in [1, `RANGE_SIZE`). 0 becomes 1."""
        return key_hash % RANGE_SIZE or 1

    def check(self, consumer: Consumer) -> None:
        """Raise `BrokerError` if the consumer can't have the ranges it asks for."""
        wanted = consumer.hash_ranges
        if not wanted:
            raise BrokerError("ConsumerAssignError", "Ranges for KeyShared policy must not be empty.")
        for given in wanted:
            if given.start > given.end:
                raise BrokerError("ConsumerAssignError", "Fixed hash range start > end")
        ordered = sorted((given.start, given.end) for given in wanted)
        if any(following[0] <= before[1] for before, following in pairwise(ordered)):
            raise BrokerError("ConsumerAssignError", "Ranges for KeyShared policy with overlap.")
        for start, end in ordered:
            place = bisect_left(self.ranges, start, key=_last_slot)
            if place < len(self.ranges) and self.ranges[place][0] <= end:
                connection, id_ = self.ranges[place][2]
                reason = f"Range conflict with consumer {id_} of connection {connection}"
                raise BrokerError("ConsumerAssignError", reason)

    def add(self, consumer: Consumer) -> None:
        """Give a consumer the ranges it asks for. Call `check` first."""
        wanted = [(given.start, given.end, consumer.handle) for given in consumer.hash_ranges]
        self._ranges_of.setdefault(consumer.handle, []).extend(wanted)
        self.ranges = sorted([*self.ranges, *wanted])

    def remove(self, consumer: Handle) -> None:
        """Remove a consumer. Nobody owns its slots until another consumer asks for them."""
        for entry in self._ranges_of.pop(consumer, ()):
            del self.ranges[bisect_left(self.ranges, entry)]

    def remove_together(self, consumers: set[Handle]) -> None:
        """Remove many consumers."""
        for consumer in consumers:
            self.remove(consumer)

    def has(self, consumer: Handle) -> bool:
        """Whether the consumer has joined."""
        return consumer in self._ranges_of

    @cached_property
    def _ranges_of(self) -> dict[Handle, list[HashSlots]]:
        found: dict[Handle, list[HashSlots]] = {}
        for entry in self.ranges:
            found.setdefault(entry[2], []).append(entry)
        return found

    def reach(self, consumer: Consumer) -> list[tuple[int, int]]:
        """As `ConsistentHashing.reach`."""
        return [(given.start, given.end) for given in consumer.hash_ranges]

    def select(self, slot: int) -> Handle | None:
        """The consumer that asked for the slot, or None."""
        place = bisect_left(self.ranges, (slot + 1,)) - 1
        return self.ranges[place][2] if place >= 0 and self.ranges[place][1] >= slot else None

    def assignments(self) -> list[HashSlots]:
        """The ranges that consumers asked for and their owners, in order."""
        return self.ranges


def _last_slot(given: HashSlots) -> int:
    return given[1]


def _ranges(first: int, bounds: list[tuple[int, Handle]], *, merges: bool = True) -> list[HashSlots]:
    """Ranges from slot `first` on, by ascending (last slot, owner). `merges`: neighbours of the same owner are one range."""
    found: list[HashSlots] = []
    for last, owner in bounds:
        if merges and found and found[-1][2] == owner:
            found[-1] = (found[-1][0], last, owner)
        elif last >= first:
            found.append((first, last, owner))
        first = last + 1
    return found


Selector = ConsistentHashing | AutoSplit | HashRangeExclusive


def new_selector(config: ServiceConfiguration, *, fixed_ranges: bool, ring_size: int) -> Selector:
    """A selector without consumers, of the kind that the broker is configured for. `fixed_ranges`: the mode STICKY."""
    if fixed_ranges:
        return HashRangeExclusive()
    if config.subscriptionKeySharedUseConsistentHashing:
        points = config.subscriptionKeySharedConsistentHashingReplicaPoints
        return ConsistentHashing(max(points, 1), ring_size, by_name=config.keySharedPointsByNameAlone)
    return AutoSplit()
