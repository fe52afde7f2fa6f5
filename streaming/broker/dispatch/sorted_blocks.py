"""Sorted sets that may hold millions of positions: of entries to replay, and of entries that wait for their delivery time; and
the points of consumers on a hash ring, which are not in the state.

A set is a list of blocks, each sorted. Adding or removing an item touches one block. In the state, each block is encoded
by itself, and only the blocks that a micro-batch touches are decoded and encoded again. Where blocks are split depends on
the items and their order, never on where a log is cut into micro-batches.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import lt
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import msgspec

from streaming.broker.position import Position

FULL = 512
"""How many items a block has at most. A larger one is split in half."""

T = TypeVar("T", bound=int | tuple[int, ...])

_encode = msgspec.msgpack.Encoder().encode


class SortedBlocks(Generic[T]):
    """A sorted set. Do not change it while iterating over it."""

    __slots__ = ("_blocks", "_last", "length")

    _decoder: ClassVar[msgspec.msgpack.Decoder[Any]]

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._blocks: list[list[T] | bytes] = []
        self._last: list[T] = []  # the last item of each block
        self.length = 0
        """How many items there are, for those that ask for every message."""
        self.update(items)

    # -- as a collection ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(map(self._block, range(len(self._blocks))))

    def __contains__(self, item: T) -> bool:
        at = bisect_left(self._last, item)
        if at == len(self._last):
            return False
        block = self._block(at)
        return block[bisect_left(block, item)] == item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedBlocks) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"

    def first(self, count: int) -> list[T]:
        """The first `count` items, or all if there are fewer."""
        return list(islice(self, count))

    def at_or_after(self, item: T) -> T | None:
        """The first item that is `item` or greater, or None if there is none."""
        at = bisect_left(self._last, item)
        if at == len(self._last):
            return None
        block = self._blocks[at]
        if isinstance(block, bytes):
            block = self._block(at)
        return block[bisect_left(block, item)]

    def before(self, item: T) -> T | None:
        """The last item that is less than `item`, or None if there is none."""
        at = bisect_left(self._last, item)
        if at < len(self._last):
            block = self._block(at)
            if place := bisect_left(block, item):
                return block[place - 1]
        return self._last[at - 1] if at else None

    def last(self) -> T | None:
        """The last item, or None if there is none."""
        return self._last[-1] if self._last else None

    def copy(self) -> Self:
        """A set with the same items."""
        other = type(self)()
        other._blocks = [block if isinstance(block, bytes) else block.copy() for block in self._blocks]
        other._last, other.length = self._last.copy(), self.length
        return other

    # -- changes --------------------------------------------------------------------------------------------------

    def add(self, item: T) -> None:
        """Add an item if it is not there yet."""
        at = bisect_left(self._last, item)
        if at == len(self._last):
            if not at or len(self._block(at - 1)) >= FULL:
                self._blocks.append([item])
                self._last.append(item)
            else:
                self._block(at - 1).append(item)
                self._last[at - 1] = item
        else:
            block = self._block(at)
            place = bisect_left(block, item)
            if block[place] == item:
                return
            block.insert(place, item)
            if len(block) > FULL:
                half = len(block) // 2
                self._blocks[at : at + 1] = [block[:half], block[half:]]
                self._last.insert(at, block[half - 1])
        self.length += 1

    def update(self, items: Iterable[T]) -> None:
        """Add items. Ascending ones that follow all others cost much less."""
        items = list(items)
        if not all(map(lt, chain(self._last[-1:], items), items if self._last else islice(items, 1, None))):
            for item in items:
                self.add(item)
            return
        start = 0
        if self._blocks and (room := FULL - len(self._block(-1))) > 0:
            self._block(-1).extend(items[:room])
            self._last[-1] = self._block(-1)[-1]
            start = room
        for at in range(start, len(items), FULL):
            block = items[at : at + FULL]
            self._blocks.append(block)
            self._last.append(block[-1])
        self.length += len(items)

    def discard(self, item: T) -> None:
        """Remove an item if it is there."""
        at = bisect_left(self._last, item)
        if at == len(self._last):
            return
        block = self._block(at)
        place = bisect_left(block, item)
        if block[place] == item:
            self._remove(at, place, place + 1)

    def take_to(self, item: T, most: int | None = None) -> list[T]:
        """Remove and return the items up to and including `item`, the first `most` of them if there are more."""
        taken: list[T] = []
        while self._blocks and (most is None or len(taken) < most):
            block = self._block(0)
            end = bisect_right(
                block, item, hi=len(block) if most is None else min(len(block), most - len(taken))
            )
            if not end:
                break
            taken += block[:end]
            self._remove(0, 0, end)
        return taken

    def clear(self) -> None:
        """Remove everything."""
        self._blocks.clear()
        self._last.clear()
        self.length = 0

    def _block(self, at: int) -> list[T]:
        block = self._blocks[at]
        if isinstance(block, bytes):
            block = self._blocks[at] = self._decoder.decode(block)
        return block

    def _remove(self, at: int, start: int, end: int) -> None:
        block = self._block(at)
        del block[start:end]
        self.length -= end - start
        if not block:
            del self._blocks[at], self._last[at]
        else:
            self._last[at] = block[-1]

    # -- the state ------------------------------------------------------------------------------------------------

    def encoded(self) -> tuple[int, list[tuple[T, bytes]]]:
        """The number of items, then each block's last item and encoding."""
        blocks = (block if isinstance(block, bytes) else _encode(block) for block in self._blocks)
        return self.length, list(zip(self._last, blocks, strict=True))

    @classmethod
    def decoded(cls, value: Any) -> Self:
        """The set that `encoded` gave."""
        found = cls()
        found.length, blocks = value
        found._last = [cast(T, tuple(last)) for last, _ in blocks]
        found._blocks = [block for _, block in blocks]
        return found


class Positions(SortedBlocks[Position]):
    """Positions in a topic."""

    __slots__ = ()

    _decoder = msgspec.msgpack.Decoder(list[Position])


class TimedPositions(SortedBlocks[tuple[int, int, int]]):
    """Positions with a time (ms), sorted by time: (time, ledger, entry)."""

    __slots__ = ()

    _decoder = msgspec.msgpack.Decoder(list[tuple[int, int, int]])


class Slots(SortedBlocks[int]):
    """Hash slots. They are never encoded."""

    __slots__ = ()
