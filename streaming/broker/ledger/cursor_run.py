"""Acks of a delivery run: what `ManagedCursor` does for each, with a number and an integer of bits.

`ManagedCursor` and `cursor_writes` are the definition; a property test holds the states equal (``tests/broker/test_delivery_run.py``).
"""

from collections.abc import Sequence

from streaming.broker.ledger.ack_holes import AckHoles
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.position import Position


class CursorRun:
    """A cursor in the open ledger while whole entries of that ledger are acked. Ask for it with `cursor_run`; call `end` before anybody else
    looks at the cursor.

    `mark`: the entry of the mark-delete position. `_ahead`: the acked entries behind it, as bits, from the next entry on. `acks`: how many
    entries were acked. `moved`: when the mark-delete position moved last (ms), −1: it has not.
    """

    __slots__ = ("_ahead", "_cursor", "_ledger", "_rate", "_waits", "acks", "mark", "moved")

    def __init__(self, cursor: ManagedCursor, rate: float) -> None:
        """`rate`: managedLedgerMaxMarkDeleteRate (1/s)."""
        self._cursor, self._rate = cursor, rate
        self._ledger, self.mark = cursor.mark_delete
        self._ahead = cursor.acked.ledgers.get(self._ledger, 0) >> self.mark + 1
        self._waits, self.acks, self.moved = -1, 0, -1

    def has(self, entry: int) -> bool:
        """Whether an entry is in the backlog."""
        place = entry - self.mark - 1
        return place >= 0 and not self._ahead >> place & 1

    def acknowledge(self, entry: int, now: int) -> None:
        """Ack an entry of the backlog that was read, at `now` (ms)."""
        place, ahead = entry - self.mark - 1, self._ahead
        if now >= self._waits:
            self._write(now)
        self.acks += 1
        if place:
            self._ahead = ahead | 1 << place
            return
        ahead |= 1
        run = (~ahead & (ahead + 1)).bit_length() - 1  # how many acked entries follow each other
        self.mark += run
        self._ahead = ahead >> run
        self.moved = now

    def acknowledge_all(self, entries: Sequence[int], now: int) -> None:
        """Ack several, or none, as one command does: it is written, if anything is acked behind the mark-delete position."""
        if (entries or self._ahead) and now >= self._waits:
            self._write(now)
        self.acks += len(entries)
        ahead = self._ahead
        for entry in entries:
            ahead |= 1 << entry - self.mark - 1
        if ahead & 1:
            run = (~ahead & (ahead + 1)).bit_length() - 1
            self.mark, self.moved = self.mark + run, now
            ahead >>= run
        self._ahead = ahead

    def acknowledge_to(self, entry: int, now: int) -> bool:
        """Ack all entries up to one. False: more may come of that, and nothing has changed."""
        if entry <= self.mark or self._ahead:
            return False
        if now >= self._waits:
            self._write(now)
        self.acks += entry - self.mark
        self.mark, self.moved, self._cursor.properties = entry, now, {}
        return True

    def end(self) -> None:
        """Leave the cursor as the acks have made it."""
        self._put_down()
        self._cursor.consumed += self.acks
        self.acks = 0

    def _put_down(self) -> None:
        cursor = self._cursor
        cursor.mark_delete = Position(self._ledger, self.mark)
        cursor.acked = AckHoles({self._ledger: self._ahead << self.mark + 1} if self._ahead else {})

    def _write(self, now: int) -> None:
        """Account for the write of a change, before it: see `cursor_writes`."""
        cursor = self._cursor
        if (permits := cursor.permits_at(now, self._rate)) >= 1:
            cursor.written(now, permits)
            return
        if cursor.persisted is None:
            self._put_down()
            cursor.persisted = cursor.snapshot()
        # No write is permitted for so long. One millisecond less, since `permits_at` rounds.
        self._waits = now + int((1 - permits) * 1000 / self._rate) - 1


def cursor_run(cursor: ManagedCursor, ledger: ManagedLedger, rate: float) -> CursorRun | None:
    """The run of a cursor. None: it is in another ledger than the open one, or has more than whole entries that were read."""
    here, persisted, read = cursor.mark_delete.ledger, cursor.persisted, cursor.read_position
    if (
        here != ledger.current
        or here != ledger.last_confirmed.ledger
        or here not in ledger.ledgers
        or ledger.terminated
        or not cursor.durable
        or cursor.batches
        or cursor.next_ledger
        or (persisted is not None and persisted.mark_delete.ledger != here)
        or not cursor.acked.ledgers.keys() <= {here}
        or read.ledger != here
        or read <= cursor.mark_delete
        or cursor.acked.ledgers.get(here, 0) >> read.entry
        or cursor.acked.ledgers.get(here, 0) >> cursor.mark_delete.entry + 1 & 1
    ):
        return None
    return CursorRun(cursor, rate)
