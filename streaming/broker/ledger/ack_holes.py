"""Individually acknowledged positions above a mark-delete position, with one bitmap per ledger.

The bitmaps are Python integers. Setting a bit, counting, and finding a run are big-integer operations. The size of a
ledger bounds their cost, not the backlog and not the number of ledgers.
"""

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice

from streaming.broker.position import Position

_RUN = re.compile(r"\((-?\d{1,19}):(-?\d{1,19})\.\.(-?\d{1,19}):(-?\d{1,19})\]")

_CHUNK = 128
"""How many bytes of a bitmap `AckHoles.runs` looks at together: it takes them off one run at a time."""


def _run_length(bits: int) -> int:
    """The length of the run of ones at the lowest bit."""
    return (~bits & (bits + 1)).bit_length() - 1


def _runs(bits: int) -> Iterator[tuple[int, int]]:
    """The runs of ones in a bitmap, in order: (lowest bit, the bit after the highest)."""
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    start = end = 0  # of the last run, which the next chunk may continue
    for first in range(0, len(data), _CHUNK):
        chunk, base = int.from_bytes(data[first : first + _CHUNK], "little"), first * 8
        while chunk:
            gap = (chunk & -chunk).bit_length() - 1
            length = _run_length(chunk >> gap)
            if base + gap > end:
                if end:
                    yield start, end
                start = base + gap
            end = base + gap + length
            chunk >>= gap + length
            base = end
    if end:
        yield start, end


class AckHoles:
    """A set of positions (Pulsar's individualDeletedMessages). A run never spans two ledgers."""

    __slots__ = ("_ids", "ledgers")

    def __init__(self, ledgers: dict[int, int] | None = None) -> None:
        self.ledgers: dict[int, int] = {} if ledgers is None else ledgers
        self._ids = sorted(self.ledgers)

    def __bool__(self) -> bool:
        return bool(self.ledgers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AckHoles) and self.ledgers == other.ledgers

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, position: Position) -> bool:
        ledger, entry = position
        return entry >= 0 and ledger in self.ledgers and self.ledgers[ledger] >> entry & 1 == 1

    def copy(self) -> "AckHoles":
        """A copy that changes independently."""
        return AckHoles(dict(self.ledgers))

    def first(self) -> Position:
        """The lowest position. There must be one."""
        bits = self.ledgers[self._ids[0]]
        return Position(self._ids[0], (bits & -bits).bit_length() - 1)

    def add(self, position: Position) -> None:
        """Mark an entry as acked."""
        bits = self.ledgers.get(position.ledger)
        if bits is None:
            insort(self._ids, position.ledger)
            bits = 0
        self.ledgers[position.ledger] = bits | 1 << position.entry

    def discard_to(self, position: Position) -> None:
        """Forget everything at or before `position`."""
        passed = bisect_left(self._ids, position.ledger)
        for ledger in self._ids[:passed]:
            del self.ledgers[ledger]
        if position.ledger in self.ledgers and position.entry >= 0:
            left = self.ledgers[position.ledger] >> position.entry + 1 << position.entry + 1
            if left:
                self.ledgers[position.ledger] = left
            else:
                del self.ledgers[position.ledger]
                passed += 1
        del self._ids[:passed]

    def run_end(self, position: Position) -> Position:
        """The last position of the run that contains `position`."""
        bits = self.ledgers[position.ledger] >> position.entry
        return Position(position.ledger, position.entry + _run_length(bits) - 1)

    def runs(self) -> Iterator[tuple[Position, Position]]:
        """The runs in order as (low, high], which is how Pulsar shows them."""
        for ledger in self._ids:
            for start, end in _runs(self.ledgers[ledger]):
                yield Position(ledger, start - 1), Position(ledger, end - 1)

    def count_runs(self) -> int:
        """How many runs there are."""
        return sum((bits & ~(bits << 1)).bit_count() for bits in self.ledgers.values())

    def keep_first(self, limit: int) -> None:
        """Forget all but the first `limit` runs."""
        for low, _ in islice(self.runs(), limit, limit + 1):
            kept = self.ledgers.pop(low.ledger) & ((1 << low.entry + 1) - 1)
            self.ledgers = {ledger: bits for ledger, bits in self.ledgers.items() if ledger < low.ledger}
            if kept:
                self.ledgers[low.ledger] = kept
            self._ids = sorted(self.ledgers)

    def count(self, start: Position, end: Position) -> int:
        """How many positions in the set are from `start` to `end`, both inclusive."""
        total = 0
        for ledger in self._ids[bisect_left(self._ids, start.ledger) : bisect_right(self._ids, end.ledger)]:
            bits = self.ledgers[ledger]
            if ledger == end.ledger:
                bits &= (1 << end.entry + 1) - 1 if end.entry >= 0 else 0
            if ledger == start.ledger and start.entry > 0:
                bits >>= start.entry
            total += bits.bit_count()
        return total

    def __str__(self) -> str:
        return "[" + ",".join(f"({low}..{high}]" for low, high in self.runs()) + "]"


def runs_of(text: str) -> Iterator[tuple[Position, Position]]:
    """The runs, each (low, high], in what `AckHoles` and Pulsar's internal stats show: ``[(7:0..7:2],(7:4..8:1]]``."""
    for match in _RUN.finditer(text):
        low, first, high, last = map(int, match.groups())
        yield Position(low, first), Position(high, last)
