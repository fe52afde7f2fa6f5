"""Individually acknowledged positions above a mark-delete position, with one bitmap per ledger.

The bitmaps are Python integers. Setting a bit, counting, and finding a run are big-integer operations. The size of a
ledger bounds their cost, not the backlog.
"""

from collections.abc import Iterator
from itertools import islice

from streaming.broker.position import Position


def _run_length(bits: int) -> int:
    """The length of the run of ones at the lowest bit."""
    return (~bits & (bits + 1)).bit_length() - 1


class AckHoles:
    """A set of positions (Pulsar's individualDeletedMessages). A run never spans two ledgers."""

    __slots__ = ("ledgers",)

    def __init__(self, ledgers: dict[int, int] | None = None) -> None:
        self.ledgers: dict[int, int] = {} if ledgers is None else ledgers

    def __bool__(self) -> bool:
        return bool(self.ledgers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AckHoles) and self.ledgers == other.ledgers

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, position: Position) -> bool:
        return (
            self.ledgers.get(position.ledger, 0) >> position.entry & 1 == 1 if position.entry >= 0 else False
        )

    def copy(self) -> "AckHoles":
        """A copy that changes independently."""
        return AckHoles(dict(self.ledgers))

    def add(self, position: Position) -> None:
        """Mark an entry as acked."""
        self.ledgers[position.ledger] = self.ledgers.get(position.ledger, 0) | 1 << position.entry

    def discard_to(self, position: Position) -> None:
        """Forget everything at or before `position`."""
        for ledger in [ledger for ledger in self.ledgers if ledger < position.ledger]:
            del self.ledgers[ledger]
        if position.ledger in self.ledgers and position.entry >= 0:
            left = self.ledgers[position.ledger] >> position.entry + 1 << position.entry + 1
            if left:
                self.ledgers[position.ledger] = left
            else:
                del self.ledgers[position.ledger]

    def run_end(self, position: Position) -> Position:
        """The last position of the run that contains `position`."""
        bits = self.ledgers[position.ledger] >> position.entry
        return Position(position.ledger, position.entry + _run_length(bits) - 1)

    def runs(self) -> Iterator[tuple[Position, Position]]:
        """The runs in order as (low, high], which is how Pulsar shows them."""
        for ledger in sorted(self.ledgers):
            bits, base = self.ledgers[ledger], 0
            while bits:
                gap = (bits & -bits).bit_length() - 1
                bits >>= gap
                length = _run_length(bits)
                yield Position(ledger, base + gap - 1), Position(ledger, base + gap + length - 1)
                bits >>= length
                base += gap + length

    def keep_first(self, limit: int) -> None:
        """Forget all but the first `limit` runs."""
        for low, _ in islice(self.runs(), limit, limit + 1):
            kept = self.ledgers.pop(low.ledger) & ((1 << low.entry + 1) - 1)
            self.ledgers = {ledger: bits for ledger, bits in self.ledgers.items() if ledger < low.ledger}
            if kept:
                self.ledgers[low.ledger] = kept

    def count(self, start: Position, end: Position) -> int:
        """How many positions in the set are from `start` to `end`, both inclusive."""
        total = 0
        for ledger, bits in self.ledgers.items():
            if start.ledger <= ledger <= end.ledger:
                if ledger == end.ledger:
                    bits &= (1 << end.entry + 1) - 1 if end.entry >= 0 else 0
                if ledger == start.ledger and start.entry > 0:
                    bits >>= start.entry
                total += bits.bit_count()
        return total

    def __str__(self) -> str:
        return "[" + ",".join(f"({low}..{high}]" for low, high in self.runs()) + "]"
