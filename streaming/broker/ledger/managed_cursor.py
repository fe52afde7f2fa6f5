"""ManagedCursor: what a subscription has acknowledged (mirrors `ManagedCursorImpl`; rules: docs/rules/cursors.md).

The problem
    A subscription acknowledges entries in any order, and single messages of a batch. The backlog, which stats, quotas and
    trimming ask for again and again, may be millions of entries. So a cursor must neither keep a set of what was acked
    nor count entries when it is asked.

The data
    `mark_delete`      this entry and all before it are acked
    `acked`            entries acked above it: one integer per ledger, used as a bitmap (`AckHoles`)
    `batches`          partly acked batches: the messages that are *not* acked, as bits
    `read_position`    the next entry to read. Reading and acknowledging are independent.
    `consumed`         a counter. The backlog is the ledger's `entries_added` minus `consumed`: no entry is counted.
    `persisted`        what a crash brings back. The mark-delete rate limiter delays writes, so that may be older than
                       the cursor. None: all is written.
    `tokens`, `tokens_at`   that limiter's token bucket
    `next_ledger`      see `ManagedCursor`

    A cursor holds no entries and does not know its ledger: each method that needs it gets the `ManagedLedger`.

In order
    `acknowledge` takes one entry of a command: it sets a bit, or moves the mark-delete position if the entry is the
    next one, and then past the run of acked entries behind it (`advance`). `collapse` comes once after the last entry
    of a command, since the first unacked entry may be in a later ledger. A cumulative ack is a `move`.

    Entries 1:0 to 1:4, all delivered, acked one by one::

                         mark_delete    acked             consumed    backlog
                         1:-1           {}                0           5
        ack 1:1          1:-1           {1:1}             1           4
        ack 1:3          1:-1           {1:1, 1:3}        2           3
        ack 1:0          1:1            {1:3}             3           2

    The methods here change the cursor in memory. `cursor_writes.change_cursor` calls them and decides whether the change
    is written now or waits for permits, and then for the check `cursorFlush`.

Invariants
    * Nothing in `acked` is at or before `mark_delete`.
    * `read_position` is after `mark_delete`, unless an entry was acked before it was written.
    * `entries_added - consumed` is the number of unacked entries. As in Pulsar, it may be off after a reset past or to
      before acked entries (``quirk`` in `reset`), and if the ledger of a position is gone. If it is below 0, `backlog`
      counts the entries.

What it costs
    An ack and a search for a run are operations on one big integer, bounded by the size of a ledger. A count takes one
    for each ledger with acks in the range. The backlog is a subtraction.
"""

import math
from collections.abc import Iterable

import msgspec

from streaming.broker.errors import CursorError
from streaming.broker.ledger.ack_holes import AckHoles
from streaming.broker.ledger.ack_set import first_unacked, to_bits, to_bytes
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.position import EARLIEST, LATEST, Position, from_tuple


class Persisted(msgspec.Struct, array_like=True):
    """The last written state of a cursor that has since changed only in memory (docs/rules/cursors.md §11)."""

    mark_delete: Position
    acked: AckHoles
    batches: dict[Position, bytes]
    properties: dict[str, int]


class ManagedCursor(msgspec.Struct, array_like=True):
    """The state of a cursor, with Pulsar's names for its parts.

    * `durable`: False for a reader's cursor, which no unload keeps.
    * `mark_delete`, `read_position`: markDeletePosition and readPosition.
    * `consumed`: messagesConsumedCounter, which counts entries.
    * `acked`: individualDeletedMessages.
    * `batches`: batchDeletedIndexes, see `ack_set`.
    * `properties`: the position's properties, which a cumulative ack clears.
    * `persisted`: the state after a crash; None: the last change was written.
    * `tokens`, `tokens_at`: permits for writes, and when they were counted (ms); 0: nothing was written yet.
    * `next_ledger`: the ledger that followed when the cursor had consumed its own to the end, if nothing was written
      since; 0: none.
    * `reads_compacted`: of a reader that reads compacted data (isReadCompacted).
    * `read_entries`, `read_bytes`: what dispatchers have read for the first time since the topic was loaded, up to `read_to`, unless
      readsByLedgerSizes is set.
    """

    name: str
    durable: bool
    mark_delete: Position
    read_position: Position
    consumed: int
    acked: AckHoles = msgspec.field(default_factory=AckHoles)
    batches: dict[Position, bytes] = {}
    properties: dict[str, int] = {}
    persisted: Persisted | None = None
    tokens: float = 0.0
    tokens_at: int = 0
    next_ledger: int = 0
    read_entries: int = 0
    read_bytes: int = 0
    read_to: Position = EARLIEST
    reads_compacted: bool = False

    # -- creation (docs/rules/cursors.md §2, §3) ----------------------------------------------------------------------

    @classmethod
    def create(cls, name: str, ledger: ManagedLedger, *, earliest: bool) -> "ManagedCursor":
        """A new durable cursor at the end, or before the first entry."""
        if not earliest:
            mark_delete, consumed = ledger.last_confirmed, ledger.entries_added
        else:
            mark_delete = ledger.first_position()
            consumed = ledger.entries_added - ledger.count(
                mark_delete, ledger.last_confirmed, include_start=False, include_end=True
            )
        return cls(name, True, mark_delete, ledger.next_valid(mark_delete), consumed)

    @classmethod
    def non_durable(
        cls,
        name: str,
        ledger: ManagedLedger,
        start: Position | None,
        *,
        earliest: bool,
        keeps_start: bool = False,
        reads_compacted: bool = False,
    ) -> "ManagedCursor":
        """A reader's cursor with mark-delete position `start`. `earliest` decides if that is None or past the end. `keeps_start`: see
        readerStartsAtItsPosition. `reads_compacted`: it starts at the next entry, whether the topic has it or not."""
        last = ledger.last_confirmed
        if start is None or start > last:
            cursor = cls.create(name, ledger, earliest=earliest)
            cursor.durable, cursor.reads_compacted = False, reads_compacted
            return cursor
        if start.ledger == -1:
            start = ledger.previous(ledger.first_position())
        read = start.next() if reads_compacted else ledger.next_valid(start)
        unread = ledger.count(read, last, include_start=True, include_end=True) if read <= last else 0
        mark_delete = start if keeps_start else ledger.previous(read)
        consumed = ledger.entries_added - unread
        return cls(name, False, mark_delete, read, consumed, reads_compacted=reads_compacted)

    def recover(self, ledger: ManagedLedger, most_runs: int = 10000, *, leaves_gone: bool = False) -> None:
        """Reopen the cursor after an unload, in its last written state. Everything unacked is read again.

        Only the first runs of individual acks are stored. quirk: `most_runs` (managedLedgerMaxUnackedRangesToPersist) and one more.
        `leaves_gone`: it leaves a ledger that is gone for the next one also if it was behind an entry (`trimMovesToNextLedger`).
        """
        if self.persisted is not None:
            saved, self.persisted = self.persisted, None
            self.mark_delete, self.acked = saved.mark_delete, saved.acked
            self.batches, self.properties = saved.batches, saved.properties
        self.acked.keep_first(most_runs + 1)
        self.next_ledger = self.read_entries = self.read_bytes = 0
        self.read_to = EARLIEST
        mark_delete = self.mark_delete
        if (leaves_gone or mark_delete.entry == -1) and mark_delete.ledger not in ledger.ledgers:
            following = ledger.next_ledger(mark_delete.ledger)
            mark_delete = Position(following, -1) if following is not None else mark_delete
        self.mark_delete = min(mark_delete, ledger.last_confirmed)
        self.consumed = -self.live(ledger, self.mark_delete, ledger.last_confirmed)
        self.rewind(ledger)

    # -- counters (docs/rules/cursors.md §7) --------------------------------------------------------------------------

    def live(
        self, ledger: ManagedLedger, start: Position, end: Position, *, include_start: bool = False
    ) -> int:
        """How many entries in (start, end], or [start, end] with `include_start`, aren't individually acked."""
        if start > end:
            return 0
        stored = ledger.count(start, end, include_start=include_start, include_end=True)
        return stored - self.acked.count(start, end) if self.acked else stored

    def backlog(self, ledger: ManagedLedger, *, precise: bool = False) -> int:
        """How many entries aren't acked. A partly acked batch counts as 1."""
        if not precise:
            backlog = ledger.entries_added - self.consumed
            if backlog >= 0:
                return backlog
        return self.live(ledger, self.mark_delete, ledger.last_confirmed)

    def entries_to_read(self, ledger: ManagedLedger) -> int:
        """How many entries at or after the read position are not individually acked."""
        return self.live(ledger, self.read_position, ledger.last_confirmed, include_start=True)

    def backlog_size(self, ledger: ManagedLedger) -> int:
        """The estimated bytes of the backlog. Each individually acked entry subtracts the average size
        (docs/rules/ledgers.md §10)."""
        last = ledger.last_confirmed
        if self.mark_delete >= last:
            return 0
        size = ledger.backlog_size_from(self.mark_delete)
        holes = self.acked.count(self.mark_delete, last)
        if not holes:
            return size
        stored = ledger.count(self.mark_delete, last, include_start=False, include_end=True)
        return size - holes * (size // stored)

    # -- acks (docs/rules/cursors.md §4–§6) ---------------------------------------------------------------------------

    def acknowledge_cumulative(self, ledger: ManagedLedger, position: Position, ack_set: int | None) -> None:
        """Cumulative ack, possibly inside a batch. Ignored inside an acked batch.

        A position past the end of a closed ledger means that end, also if the ledger is gone, since the cursor had consumed it to
        the end, unless it reads compacted data: a trim leaves that cursor behind. Raises `CursorError` and then changes nothing.
        """
        info, mark_delete = ledger.ledgers.get(position.ledger), self.mark_delete
        if info is not None and 0 < info.entries <= position.entry and position < ledger.last_confirmed:
            position = Position(position.ledger, info.entries - 1)
        elif (
            info is None
            and not self.reads_compacted
            and position.ledger == mark_delete.ledger
            and mark_delete < position < ledger.last_confirmed
        ):
            position, ack_set = mark_delete, None
        if ack_set is None:
            self.move(ledger, position, {})
        elif position > self.mark_delete:
            before = ledger.previous(position)
            if before > self.mark_delete:
                self.move(ledger, before, {})
            stored = self.batches.get(position)
            if position > self.mark_delete and (
                stored is None or first_unacked(ack_set) > first_unacked(to_bits(stored))
            ):
                self.batches[position] = to_bytes(ack_set)
        if not self.durable:
            self.forget_batches(ledger, mark_delete)

    def move(self, ledger: ManagedLedger, position: Position, properties: dict[str, int] | None) -> None:
        """Move the mark-delete to `position`. `properties` replaces the present ones unless it is None.

        Raises `CursorError` for a position before the mark-delete or past the end.

        quirk: a non-durable cursor keeps the acks within the batches that it passes (`passedBatchesAreForgotten`).
        """
        if self.is_past_the_end(ledger, position):
            raise CursorError(
                f"mark-delete position {position} is past the last confirmed entry {ledger.last_confirmed}"
            )
        if position < self.mark_delete:
            raise CursorError(f"{position} is before the mark-delete position {self.mark_delete}")
        before = self.mark_delete
        self.consumed += self.live(ledger, before, position)
        self.advance(ledger, position)
        if self.durable:
            self.forget_batches(ledger, before)
        if properties is not None:
            self.properties = properties

    def is_past_the_end(self, ledger: ManagedLedger, position: Position) -> bool:
        """Whether `move` refuses a position after the last confirmed entry. A cursor at the end of its ledger may move
        into the next one."""
        last = ledger.last_confirmed
        if position <= last:
            return False
        here = ledger.ledgers.get(self.mark_delete.ledger)
        following = ledger.next_ledger(last.ledger)
        return here is None or position.ledger != following or self.mark_delete.entry + 1 < here.entries

    def advance(self, ledger: ManagedLedger, position: Position) -> None:
        """Move the mark-delete, and past acked entries that follow. The caller updates the counter and the batches."""
        acked = self.acked
        if acked.ledgers:
            following = ledger.next_valid(position)
            while following <= ledger.last_confirmed and following in acked:
                position = acked.run_end(following)
                following = ledger.next_valid(position)
        self.mark_delete = position
        if acked.ledgers:
            acked.discard_to(position)
        if self.read_position <= position:
            self.read_position = ledger.next_valid(position)

    def forget_batches(self, ledger: ManagedLedger, before: Position, *, last: bool = True) -> None:
        """Forget the acks within batches that the mark-delete position passed since it was at `before`, and of that at the position (`last`)."""
        for batch in ledger.passed(self.batches, before, self.mark_delete):
            if last or batch != self.mark_delete:
                del self.batches[batch]

    def acknowledge(self, ledger: ManagedLedger, position: Position, ack_set: int | None) -> bool:
        """Ack an entry, or some messages of its batch. Returns True if the entry left the backlog.

        Call `collapse` after the last of a command's acks. Before it, acks within batches that the mark-delete position
        passed are still there.

        Raises `CursorError` for a position past the end. Ignores a position that was never written. Pulsar counts it, but
        here an invented entry id could make the bitmap arbitrarily large. Of a cursor that a trim left behind, it counts what a deleted
        ledger may have had.
        """
        if position > ledger.last_confirmed:
            raise CursorError(f"ack of {position}: the last confirmed entry is {ledger.last_confirmed}")
        batches, acked = self.batches, self.acked
        if (
            position <= self.mark_delete
            or (acked.ledgers and position in acked)
            or not (ledger.valid(position) or ledger.may_have_had(position))
        ):
            batches.pop(position, None)
            return False
        if ack_set:
            stored = batches.get(position)
            left = ack_set if stored is None else ack_set & to_bits(stored)
            if left:
                batches[position] = to_bytes(left)
                return False
        if batches:
            batches.pop(position, None)
        self.acknowledge_whole(ledger, position)
        return True

    def acknowledge_whole(self, ledger: ManagedLedger, position: Position) -> None:
        """Ack an entry of the backlog. See `acknowledge`."""
        self.consumed += 1
        if position.entry == self.mark_delete.entry + 1 and position.ledger == self.mark_delete.ledger:
            self.advance(ledger, position)
        else:
            self.acked.add(position)

    def has_acked(self, position: Position) -> bool:
        """Whether an entry, as a whole, is acked or passed."""
        return position <= self.mark_delete or position in self.acked

    def acknowledge_all(self, ledger: ManagedLedger, positions: Iterable[Position]) -> None:
        """Ack whole entries individually. Raises `CursorError` at the first position past the end."""
        before = self.mark_delete
        for position in positions:
            self.acknowledge(ledger, position, None)
        self.collapse(ledger, before)

    def collapse(self, ledger: ManagedLedger, before: Position) -> None:
        """After individual acks, move the mark-delete past the first run if no unacked entry precedes it
        (docs/rules/cursors.md §5).

        `before`: the mark-delete position before these acks.

        quirk: also entries of deleted ledgers before that run count. A trim may leave such a cursor behind (trimMovesToNextLedger).
        """
        if self.batches:
            self.forget_batches(ledger, before)
        if not self.acked.ledgers:
            return
        first = self.acked.first()
        low = Position(first.ledger, first.entry - 1)
        if (
            low <= self.mark_delete
            or ledger.count(self.mark_delete, low, include_start=False, include_end=True) <= 0
        ):
            self.move(ledger, self.acked.run_end(first), None)

    # -- skip, peek (docs/rules/cursors.md §8) ------------------------------------------------------------------------

    def position_after(self, ledger: ManagedLedger, n: int, *, exclude_acked: bool) -> Position:
        """The n-th entry after the mark-delete. `exclude_acked`: don't count individually acked entries."""
        acked = 0
        if exclude_acked:
            start, seen = self.mark_delete, 0
            for low, high in self.acked.runs():
                unacked = ledger.count(start, low, include_start=False, include_end=True)
                if seen + unacked >= n:
                    break
                seen += unacked
                acked += ledger.count(low, high, include_start=False, include_end=True)
                start = high
        return ledger.position_after(self.mark_delete, n + acked)

    def skip(self, ledger: ManagedLedger, n: int, *, exclude_acked: bool) -> None:
        """Move the mark-delete past the next `n` entries and clear the properties (docs/rules/cursors.md §8)."""
        target = self.position_after(ledger, n, exclude_acked=exclude_acked)
        if target >= self.mark_delete:
            self.move(ledger, target, {})

    def peek(self, ledger: ManagedLedger, n: int, *, exclude_acked: bool = True) -> Position | None:
        """The n-th entry of the backlog (from 1), or None if the backlog is smaller."""
        start = ledger.next_valid(self.mark_delete)
        if (
            start > ledger.last_confirmed
            or self.live(ledger, start, ledger.last_confirmed, include_start=True) < n
        ):
            return None
        return self.position_after(ledger, n, exclude_acked=exclude_acked)

    def clear_backlog(self, ledger: ManagedLedger) -> None:
        """Move the mark-delete position to the last confirmed entry and clear the properties."""
        if ledger.last_confirmed >= self.mark_delete:
            self.move(ledger, ledger.last_confirmed, {})

    # -- reading (docs/rules/cursors.md §9, §10) ----------------------------------------------------------------------

    def rewind(self, ledger: ManagedLedger, *, compacted: bool = False) -> None:
        """Read again from the first entry after the mark-delete position. `compacted`: of compacted data, which may have entries that the
        ledger has not."""
        mark_delete = self.mark_delete
        self.read_position = mark_delete.next() if compacted else ledger.next_valid(mark_delete)

    def reset(
        self,
        ledger: ManagedLedger,
        target: Position,
        *,
        counts_anew: bool = False,
        keeps_target: bool = False,
    ) -> None:
        """Seek: `target` and everything after it becomes unacked, everything before it acked. `counts_anew`: see
        seekCountsConsumedAnew. `keeps_target`: also if the ledger does not have it, since compacted data does."""
        if target <= EARLIEST:
            read = ledger.first_position()  # quirk: this read position has entry −1
        elif target >= LATEST:
            read = ledger.next_valid(ledger.last_confirmed)
        else:
            read = target if keeps_target or ledger.valid(target) else ledger.next_valid(target)
        mark_delete = ledger.previous(read)
        if self.mark_delete > mark_delete:
            # quirk: the range includes its start and excludes its end, so it is one short if the ledger of its start is gone
            self.consumed -= ledger.count(
                mark_delete, self.mark_delete, include_start=True, include_end=False
            )
        elif self.mark_delete < mark_delete:
            passed = ledger.count(self.mark_delete, mark_delete, include_start=True, include_end=False)
            # quirk: a durable cursor counts individually acked entries on the way twice, so its backlog is too low
            self.consumed += (
                passed if self.durable else passed - self.acked.count(self.mark_delete, mark_delete)
            )
        # quirk: individually acked entries after the new mark-delete stay counted, though they are unacked again (4.0.7)
        self.acked, self.batches, self.properties = AckHoles(), {}, {}
        self.mark_delete, self.read_position = mark_delete, read
        if counts_anew:
            self.consumed = ledger.entries_added - self.live(ledger, mark_delete, ledger.last_confirmed)

    def left(
        self, ledger: ManagedLedger, before: Position, acked: AckHoles, consumed: int, holes: AckHoles | None
    ) -> int:
        """How many entries left the backlog in a move or a reset; negative: how many came back. The others: what the cursor had then.
        `holes`: a copy of what it had acked, if it was behind deleted ledgers, in which some of that may be.

        It counts entries that the ledgers have, which Pulsar's counters may not do. What comes back behind a reset forward is left out.
        """
        after = self.mark_delete
        if (
            self.acked is acked
        ):  # a move, whose change of the counter is right but for what `count` gets wrong
            counted = ledger.count(before, after, include_start=False, include_end=True)
            gone = 0 if holes is None else holes.count(before, min(after, ledger.first_position()))
            return self.consumed - consumed + gone + ledger.stored(before, after) - counted
        begin = ledger.first_position()  # a cursor may be behind what was deleted
        before, after = max(before, begin), max(after, begin)
        if before < after:
            return ledger.stored(before, after) - acked.count(before, after)
        return -ledger.stored(after, before) - acked.count(before, ledger.last_confirmed)

    def set_batch(self, position: Position, bits: int) -> None:
        """A seek into a batch: only the messages in `bits` are unacked."""
        if position > self.mark_delete:
            self.batches[position] = to_bytes(bits)

    def read(self, ledger: ManagedLedger, n: int, *, stays: bool = False) -> list[Position]:
        """Up to `n` unacked positions from the read position on. `stays`: who asks reads compacted data, and so it may be behind an entry
        that the ledgers do not have. If nothing follows, it waits there.

        The read position moves to the successor of the last position visited, whether it exists or not. At the end of a
        closed ledger it moves to the next ledger only with the next read, unless all its entries are acked: such a ledger is
        never opened (isLedgerFullyAcked of 4.0).
        """
        positions: list[Position] = []
        last, position, acked = ledger.last_confirmed, self.read_position, self.acked
        if ledger.max_read is not None and ledger.max_read < last:
            last = ledger.max_read
            if position > last:
                self.leave_acked_ledger(ledger)
                return positions
        while len(positions) < n:
            if position > last and not ledger.terminated:
                break
            if (
                position.ledger not in ledger.ledgers
                and (following := ledger.next_ledger(position.ledger)) is not None
            ):
                position = Position(following, 0)
                if position > last and stays and not ledger.terminated:
                    break  # it waits where it is
                self.read_position = position
            elif position.entry < 0 or not ledger.valid(position):
                position = ledger.next_valid(Position(position.ledger, position.entry - 1))
            if position > last:
                break
            if not acked.ledgers or position not in acked:
                positions.append(position)
                position = from_tuple(Position, (position.ledger, position.entry + 1))
            elif self._has_acked_all(ledger, position.ledger):
                position = Position(ledger.next_ledger(position.ledger) or position.ledger + 1, 0)
            else:
                position = acked.run_end(position).next()
            self.read_position = position
        return positions

    def leave_acked_ledger(self, ledger: ManagedLedger) -> None:
        """quirk: a read that waits for entries which open transactions hold back goes to the next ledger as soon as all of its own is
        acknowledged. With readsOnInClosedLedger, as soon as it has read all of it."""
        id_ = self.read_position.ledger
        info, following = ledger.ledgers.get(id_), ledger.next_ledger(id_)
        if info is None or following is None:
            return
        if self.mark_delete >= (id_, info.entries - 1) or (
            ledger.reads_on and self.read_position.entry >= info.entries
        ):
            self.read_position = max(self.read_position, Position(following, 0))

    def note_read(self, position: Position, size: int) -> None:
        """An entry of `size` bytes was read. Those that are read again don't count: a subscription may do so for ever."""
        if position > self.read_to:
            self.read_to = position
            self.read_entries += 1
            self.read_bytes += size

    def average_size(self, ledger: ManagedLedger) -> float:
        """The size of an entry (bytes) by which reads were bounded before 4.0; 0: it is not known."""
        if counts := ledger.entry_sizes.last:
            return counts[-1] / sum(counts[:-1])
        return self.read_bytes / self.read_entries if self.read_entries else 0.0

    def _has_acked_all(self, ledger: ManagedLedger, id_: int) -> bool:
        """Whether all entries of a closed ledger are individually acked."""
        first = Position(id_, 0)
        return (
            id_ != ledger.current
            and first in self.acked
            and self.acked.run_end(first).entry + 1 == ledger.ledgers[id_].entries
        )

    # -- persistence (docs/rules/cursors.md §11) ----------------------------------------------------------------------

    @property
    def key(self) -> Position:
        """The last persisted mark-delete position, or the start of `next_ledger`. Trimming and the slowest cursor depend on
        it."""
        if self.next_ledger:
            return Position(self.next_ledger, -1)
        return self.mark_delete if self.persisted is None else self.persisted.mark_delete

    def pass_consumed_ledger(self, ledger: ManagedLedger) -> None:
        """A ledger was opened: the key moves to the next ledger if the cursor has consumed its own to the end.

        The mark-delete position stays (mirrors maybeUpdateCursorBeforeTrimmingConsumedLedger of 4.0).
        """
        info = ledger.ledgers.get(self.mark_delete.ledger)
        following = ledger.next_ledger(self.mark_delete.ledger)
        if info is not None and following is not None and 0 <= info.entries - 1 <= self.mark_delete.entry:
            self.next_ledger = following

    def snapshot(self) -> Persisted:
        """What an unload keeps if it is persisted now."""
        return Persisted(self.mark_delete, self.acked.copy(), dict(self.batches), self.properties)

    def permits_at(self, now: int, rate: float) -> float:
        """How many writes the mark-delete rate limiter allows at `now` (ms): a token bucket that holds one second's worth.

        `rate` is in writes per second; 0 or less turns the limiter off.
        """
        if rate <= 0:
            return math.inf
        if not self.tokens_at:
            return max(1.0, rate / 1000)  # one millisecond's worth, since the clock is no finer
        most, permits = rate if rate >= 1 else 1.0, self.tokens + rate * (now - self.tokens_at) / 1000
        return most if most <= permits else permits

    def written(self, now: int, permits: float) -> None:
        """Record a write, which takes one of `permits`."""
        if permits != math.inf:
            self.tokens, self.tokens_at = permits - 1, now
        self.persisted = None
        self.next_ledger = 0
