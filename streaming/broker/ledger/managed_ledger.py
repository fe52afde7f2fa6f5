"""ManagedLedger: a topic's entries as a list of ledgers (mirrors `ManagedLedgerImpl`; docs/rules/ledgers.md).

It holds positions, counts and sizes, never entries. The topic holds the cursors. Code that needs both is in `topic`,
`trimming` and `managed_cursor`.
"""

from collections.abc import Collection, Iterator

import msgspec

from streaming.broker.config import ServiceConfiguration
from streaming.broker.ledger.entry_sizes import EntrySizes
from streaming.broker.position import Position, from_tuple

MEGABYTE = 1024 * 1024

ENTRY_OVERHEAD = 64
"""What a stored entry is taken to need besides its own bytes."""


class LedgerInfo(msgspec.Struct, array_like=True):
    """The metadata of a ledger. Entries, size and close time (`timestamp`) are 0 until the ledger closes."""

    entries: int = 0
    size: int = 0
    timestamp: int = 0


class ManagedLedger(msgspec.Struct, array_like=True):
    """`ledgers` is ascending by id, and the last one, `current`, is open. Ids start at 1 in each topic and may have gaps.

    `whole_ledgers`: the setting backlogSizeWholeLedgers at the time of the last entry. `counts_deleted`: the setting
    countsEntriesOfDeletedLedgers when the last ledger opened, as `reads_on` is readsOnInClosedLedger. `closed`: the last ledger is full,
    and the next one opens with the next entry. `without_open`: the topic is terminated and no ledger is open (opensLedgerOfTerminated);
    no ledger has the id `current` then. `largest_deleted`: the most entries of a deleted ledger, for cursors that were left behind in
    one (trimMovesToNextLedger). `reserved`: the last id that a compacted ledger took. `max_read`: the last entry that cursors may read
    (maxReadPosition), which transactions hold back; None: the topic has had no transactions.
    """

    ledgers: dict[int, LedgerInfo] = {}
    current: int = 0
    current_entries: int = 0
    current_size: int = 0
    created: int = 0
    last_confirmed: Position = Position(0, -1)
    number_of_entries: int = 0
    total_size: int = 0
    entries_added: int = 0
    last_add: int = 0
    terminated: bool = False
    rollover_checked: bool = False
    whole_ledgers: bool = True
    entry_sizes: EntrySizes = msgspec.field(default_factory=EntrySizes)
    counts_deleted: bool = True
    reads_on: bool = False
    closed: bool = False
    without_open: bool = False
    largest_deleted: int = 0
    reserved: int = 0
    max_read: Position | None = None

    @classmethod
    def create(cls, now: int, after: int = 0) -> "ManagedLedger":
        """A new managed ledger with one open, empty ledger. `after`: the last ledger id that its name had before."""
        ledger = cls(current=after)
        ledger.open_ledger(now)
        ledger.last_confirmed = Position(ledger.current, -1)
        return ledger

    def configure(self, config: ServiceConfiguration) -> None:
        """Take over what the settings say for a ledger that opens."""
        self.counts_deleted, self.reads_on = (
            config.countsEntriesOfDeletedLedgers,
            config.readsOnInClosedLedger,
        )

    def open_ledger(self, now: int, id_: int | None = None) -> None:
        """Open an empty ledger with the next id, or that of the source (`id_`). `now` (ms) is its creation time."""
        self.closed = False
        self.current = self.last_id + 1 if id_ is None else id_
        self.ledgers[self.current] = LedgerInfo()
        self.current_entries = self.current_size = 0
        self.created = now
        self.rollover_checked = False

    @property
    def last_readable(self) -> Position:
        """The last entry that cursors may read."""
        return self.last_confirmed if self.max_read is None else min(self.max_read, self.last_confirmed)

    @property
    def last_id(self) -> int:
        """The highest id that a ledger of the topic has had, or a compacted one."""
        return max(self.current, self.reserved)

    def reserve(self) -> int:
        """The id of a new compacted ledger. No other ledger of the topic has had it, or will have it."""
        self.reserved = self.last_id + 1
        return self.reserved

    def reopen(self, now: int, *, opens_last: bool = True) -> None:
        """Recover after an unload: close the open ledger, or drop it if empty, and open a new one (docs/rules/ledgers.md §3).

        `opens_last`: see opensLedgerOfTerminated."""
        if self.current_entries and not self.closed:
            self.ledgers[self.current] = LedgerInfo(self.current_entries, self.current_size, now)
        self.closed = False
        self._forget_rest()
        self.ledgers = {id_: info for id_, info in self.ledgers.items() if info.entries}
        self.number_of_entries = sum(info.entries for info in self.ledgers.values())
        if not self.terminated:
            older = max(self.ledgers, default=None)
            self.open_ledger(now)
            if older is None:
                self.last_confirmed = Position(self.current, -1)
            else:
                self.last_confirmed = Position(older, self.ledgers[older].entries - 1)
        else:
            self.current_entries = self.current_size = 0
            self.without_open = not opens_last
            if self.without_open and self.current in self.ledgers:
                self.current += 1

    def reopen_source(self, now: int) -> None:
        """Recover the ledger of a shadow topic after an unload: the source's last ledger stays open."""
        self._forget_rest()
        self.created = now

    def _forget_rest(self) -> None:
        self.entries_added = 0
        self.entry_sizes = EntrySizes()

    # -- adding ---------------------------------------------------------------------------------------------------

    def submit(self, size: int, now: int, config: ServiceConfiguration) -> tuple[Position, bool]:
        """Reserve the next position for an entry of `size` bytes. Also returns whether it fills the ledger
        (docs/rules/ledgers.md §4, §5)."""
        position = from_tuple(Position, (self.current, self.current_entries))
        self.current_entries += 1
        self.current_size += size
        self.whole_ledgers = config.backlogSizeWholeLedgers
        return position, self.is_full(now, config)

    def confirm(self, position: Position, size: int, now: int) -> None:
        """Count a submitted entry whose write succeeded."""
        self.number_of_entries += 1
        self.total_size += size
        self.entries_added += 1
        self.entry_sizes.add(size)
        self.last_confirmed = position
        self.last_add = now

    def add_all(self, entries: int, size: int, now: int, config: ServiceConfiguration) -> None:
        """Submit and confirm so many entries of `size` bytes in all, of which none fills the ledger. `now` (ms): the time of the last
        one. `entry_sizes` has them already."""
        self.current_entries += entries
        self.current_size += size
        self.whole_ledgers = config.backlogSizeWholeLedgers
        self.number_of_entries += entries
        self.total_size += size
        self.entries_added += entries
        self.last_confirmed = Position(self.current, self.current_entries - 1)
        self.last_add = now

    def drop_unconfirmed(self) -> None:
        """Forget submitted entries whose writes weren't confirmed. Only confirmed ones stay in the open ledger."""
        if self.closed:
            return
        last = self.last_confirmed
        self.current_entries = last.entry + 1 if last.ledger == self.current else 0
        self.current_size = self.total_size - sum(info.size for info in self.ledgers.values())

    def is_full(self, now: int, config: ServiceConfiguration) -> bool:
        """Whether the next ledger is due: by entries, size or age, but not before its minimum age."""
        age = now - self.created
        if (
            self.current_entries < config.managedLedgerMaxEntriesPerLedger
            and self.current_size < config.managedLedgerMaxSizePerLedgerMbytes * MEGABYTE
            and age < config.managedLedgerMaxLedgerRolloverTimeMinutes * 60_000
        ):
            return False
        minimum = config.managedLedgerMinLedgerRolloverTimeMinutes
        return age > minimum * 60_000 if minimum > 0 else True

    def close_current(self, now: int) -> LedgerInfo | None:
        """Close the open ledger (docs/rules/ledgers.md §6). Returns its metadata, or None if it was empty and is
        dropped."""
        if not self.current_entries:
            del self.ledgers[self.current]
            return None
        info = LedgerInfo(self.current_entries, self.current_size, now)
        self.ledgers[self.current] = info
        return info

    # -- position algebra (docs/rules/ledgers.md §7–§9) ---------------------------------------------------------------

    def next_ledger(self, ledger: int) -> int | None:
        """The smallest existing ledger id above `ledger`."""
        first = next(iter(self.ledgers), None)
        if first is None or ledger < first:
            return first
        above = range(ledger + 1, self.current + 1)
        if len(above) > len(self.ledgers):  # most ids are missing, as after many unloads
            return next((existing for existing in self.ledgers if existing > ledger), None)
        return next((candidate for candidate in above if candidate in self.ledgers), None)

    def older_ledgers(self, ledger: int) -> Iterator[int]:
        """Existing ids below `ledger`, newest first."""
        first = next(iter(self.ledgers), self.current)
        below = range(min(ledger, self.current + 1) - 1, first - 1, -1)
        if len(below) > len(self.ledgers):
            return iter([existing for existing in self.ledgers if existing < ledger][::-1])
        return (candidate for candidate in below if candidate in self.ledgers)

    def first_position(self) -> Position:
        """The position before the first entry."""
        first = next(iter(self.ledgers), self.last_confirmed.ledger)
        return Position(min(first, self.last_confirmed.ledger), -1)

    def valid(self, position: Position) -> bool:
        """Whether the position exists, or may be the next one written."""
        ledger, entry = position
        last_ledger, last_entry = self.last_confirmed
        if self.reads_on and entry >= 0 and ledger >= last_ledger:
            is_next = entry == last_entry + 1
            return ledger == last_ledger and (is_next or (entry <= last_entry and ledger in self.ledgers))
        if entry < 0 or ledger not in self.ledgers:
            return False
        if ledger == self.current:
            return entry == 0 or (ledger == last_ledger and entry <= last_entry + 1)
        return entry <= last_entry if ledger == last_ledger else entry < self.ledgers[ledger].entries

    def has(self, position: Position) -> bool:
        """Whether an entry is stored there."""
        return position <= self.last_confirmed and self.valid(position)

    def may_have_had(self, position: Position) -> bool:
        """Whether a deleted ledger may have had the entry: one that had so many entries is gone, but maybe not that one."""
        ledger, entry = position
        return (
            0 <= entry < self.largest_deleted
            and position <= self.last_confirmed
            and ledger not in self.ledgers
        )

    def next_valid(self, position: Position) -> Position:
        """The next position to read after `position`. It may be one past the last confirmed entry."""
        candidate = position.next()
        while not self.valid(candidate):
            following = self.next_ledger(candidate.ledger)
            if following is None:
                # quirk: nothing was written to the last ledger of a terminated topic since it was loaded again, so
                # behind its end its first entry comes next
                last = self.last_confirmed
                written = self.without_open or (bool(self.current_entries) and last.ledger == self.current)
                written = written or (self.reads_on and position <= last and last.ledger in self.ledgers)
                return last.next() if written else Position(self.current, 0)
            candidate = Position(following, 0)
        return candidate

    def previous(self, position: Position) -> Position:
        """The last stored position before `position`."""
        ledger, entry = position
        if entry > 0:
            return Position(ledger, entry - 1)
        older = None
        for older in self.older_ledgers(ledger):
            if self.ledgers[older].entries > 0:
                return Position(older, self.ledgers[older].entries - 1)
        return Position(ledger if older is None else older, -1)

    def count(self, start: Position, end: Position, *, include_start: bool, include_end: bool) -> int:
        """How many stored entries lie between two positions, acked or not, as 4.0.7 counts.

        quirk: Pulsar checks neither that the ledger of `end` exists nor how many entries it has, and counts entry −1 if it is
        included. It counts stored entries only for the other ledgers. With `counts_deleted` off, it checks all that, but for
        the number of entries if `end` is in the ledger of `start` or in that of the last message, or behind the last message.
        """
        if start > end:
            raise ValueError(f"range from {start} to {end} is reversed")
        up_to = end.entry + include_end
        if not self.counts_deleted:
            include_start = include_start and start.entry >= 0
            if (info := self.ledgers.get(end.ledger)) is None:
                if start.ledger == end.ledger:
                    return 0
                up_to = 0
            elif end.entry < 0:
                up_to = 0
            elif (
                start.ledger < end.ledger < self.last_confirmed.ledger
                and end.entry >= info.entries
                and self.next_valid(end) < self.next_valid(self.last_confirmed)
            ):
                up_to = info.entries - 1 + include_end
        if start.ledger == end.ledger:
            return up_to - start.entry - 1 + include_start
        total = up_to
        if (info := self.ledgers.get(start.ledger)) is not None:
            total += info.entries - start.entry - 1 + include_start
        return total + self._entries_between(start.ledger, end.ledger)

    def _entries_between(self, low: int, high: int) -> int:
        """The entries of the ledgers between two ids. It looks at these, or at those that are older if that is faster."""
        first = next(iter(self.ledgers), low)
        if high == self.current and not self.terminated and low - first < high - low:
            confirmed = self.last_confirmed
            total = self.number_of_entries - (confirmed.entry + 1 if confirmed.ledger == high else 0)
            for id_, info in self.ledgers.items():
                if id_ > low or id_ == high:
                    break
                total -= info.entries
            return total
        between = range(low + 1, high)
        if high - low > len(self.ledgers):
            return sum(info.entries for id_, info in self.ledgers.items() if id_ in between)
        return sum(self.ledgers[id_].entries for id_ in between if id_ in self.ledgers)

    def stored(self, after: Position, to: Position) -> int:
        """How many entries the ledgers have after a position and up to another one, acked or not. `count` has Pulsar's quirks."""
        total = 0
        if to.ledger - after.ledger > len(self.ledgers):
            ids = [id_ for id_ in self.ledgers if after.ledger <= id_ <= to.ledger]
        else:
            ids = [id_ for id_ in range(after.ledger, to.ledger + 1) if id_ in self.ledgers]
        for id_ in ids:
            entries, _ = self._contents(id_)
            stop = min(entries, to.entry + 1) if id_ == to.ledger else entries
            total += max(stop - (after.entry + 1 if id_ == after.ledger else 0), 0)
        return total

    def passed(self, held: Collection[Position], after: Position, to: Position) -> list[Position]:
        """Those of `held` after `after` and up to `to`.

        Goes through `held` or through the ledger, whichever is shorter. Only `held` has the entries of deleted ledgers.
        """
        if not held or to <= after:
            return []
        entries = self.count(after, to, include_start=False, include_end=True)
        if entries >= len(held) or after.ledger not in self.ledgers:
            return [position for position in held if after < position <= to]
        found, position, to = [], self.next_valid(after), min(to, self.last_confirmed)
        while position <= to and self.valid(position):
            if position in held:
                found.append(position)
            position = self.next_valid(position)
        return found

    def position_after(self, position: Position, n: int) -> Position:
        """The n-th entry after `position`, or the last confirmed entry if there are fewer.

        quirk: nothing was written to the last ledger of a terminated topic since it was loaded again, so that ledger counts
        as empty. If it is empty, it is gone, and Pulsar goes through the last one with entries again and again.
        """
        ledger, entry = self.next_valid(position)
        last = self.last_confirmed
        while True:
            if ledger == last.ledger:
                stored = last.entry + 1 if ledger != self.current or self.current_entries else 0
            else:
                stored = self.ledgers[ledger].entries if ledger in self.ledgers else 0
            left = max(stored - entry, 0)
            if left >= n:
                entry += n
                break
            n -= left
            following = self.next_ledger(ledger)
            if following is None:
                if ledger == self.current or not stored:
                    entry = stored
                else:
                    entry = (n - 1) % stored + 1
                break
            ledger, entry = following, 0
        return min(self.previous(Position(ledger, entry)), last)

    def entries_within(self, size: int, position: Position, most: int) -> int:
        """How many entries a read from `position` on may return so that they have `size` bytes: 1 to `most`.

        An estimate by the average entry of each ledger, whether entries are acked or not, and with an overhead for each
        (mirrors `EntryCountEstimator` of 4.0.7; docs/rules/ledgers.md §12). Behind the last entry, further ones are
        expected to be like it.
        """
        first = next(iter(self.ledgers), self.current)
        if position.ledger > self.current:
            position = Position(self.current, max(self.current_entries - 1, 0))
        elif position.ledger < first:
            position = Position(first, 0)
        found = average = 0
        ledger: int | None = (
            position.ledger if position.ledger in self.ledgers else self.next_ledger(position.ledger)
        )
        while ledger is not None and size > 0 and found < most:
            entries, total = self._contents(ledger)
            if entries and total:
                average = max(total // entries, 1) + ENTRY_OVERHEAD
                inside = position.ledger == ledger and position.entry > 0
                if inside or size < total + entries * ENTRY_OVERHEAD:
                    left = max(entries - position.entry, 1) if inside else entries
                    taken = min(max(size // average, 1), left)
                    found += taken
                    size -= taken * average
                else:
                    found += entries
                    size -= total + entries * ENTRY_OVERHEAD
            ledger = self.next_ledger(ledger)
        if size > 0 and found < most:
            if not average:
                older = (self._contents(each) for each in self.older_ledgers(position.ledger))
                average = next((max(of // n, 1) + ENTRY_OVERHEAD for n, of in older if n and of), 0)
            if average:
                found += size // average
        return max(min(found, most), 1)

    def _contents(self, ledger: int) -> tuple[int, int]:
        """The entries of a ledger and their bytes."""
        if ledger == self.current and self.current_entries:
            return self.current_entries, self.current_size
        return self.ledgers[ledger].entries, self.ledgers[ledger].size

    # -- sizes (docs/rules/ledgers.md §10) ----------------------------------------------------------------------------

    def backlog_size_from(self, mark_delete: Position) -> int:
        """The estimated bytes after a mark-delete position: exact for whole ledgers, by the average entry within a ledger."""
        ledger, entry = mark_delete
        size = self.total_size
        for older in self.ledgers:
            if older >= ledger:
                break
            size -= self.ledgers[older].size
        info = self.ledgers.get(ledger)
        if info is None:
            return size if ledger <= self.last_confirmed.ledger else 0
        if info.entries == 0:
            return size - consumed_size(
                self.current_size, self.current_entries, entry, whole=self.whole_ledgers
            )
        return size - consumed_size(info.size, info.entries, entry, whole=self.whole_ledgers)

    def estimate_backlog_from(self, mark_delete: Position, *, all_if_missing: bool = False) -> int:
        """`backlog_size_from` as the stats of a subscription show it (estimateBacklogFromPosition). `all_if_missing`: see
        backlogSizeOfMissingLedgerIsAll.

        quirk: when a terminated topic is loaded again, its last ledger is the open one, of which nothing was written since.
        So all of it counts, whatever is acked.
        """
        if all_if_missing and mark_delete.ledger not in self.ledgers:
            return self.total_size
        last = self.ledgers.get(self.current)
        if mark_delete.ledger == self.current and last is not None and last.entries and not self.closed:
            return last.size
        return self.backlog_size_from(mark_delete)


def consumed_size(size: int, entries: int, entry: int, *, whole: bool = True) -> int:
    """Bytes of a ledger up to and including `entry`, by the average entry size, rounded down before multiplying.

    With `whole`, the last entry means all bytes of the ledger.
    """
    if entries <= 0 or entry < 0:
        return 0
    return size if whole and entries <= entry + 1 else (entry + 1) * (size // entries)
