"""Find an entry by its publish time (mirrors `PersistentMessageFinder` and `OpFindNewest`; docs/rules/cursors.md
§12–§14)."""

from collections.abc import Callable

from streaming.broker.context import Context
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position


def find_newest_before(
    ctx: Context, topic: PersistentTopic, time: int, flips: list[int] | None = None
) -> Position | None:
    """The newest entry published before `time` (ms), by binary search over the stored entries.

    The result is exact if publish times ascend. Otherwise it may be any matching entry. None if the first entry of the
    search doesn't match. Appends to `flips` the later values of `time` (ms) from which the search may take another path.
    """
    ledger = topic.ledger
    skew = ctx.config.managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis
    start, end = search_range(ledger, time, skew, flips) if skew >= 0 else (None, None)
    if start is None:
        start = Position(next(iter(ledger.ledgers), ledger.current), 0)
    return find_newest(ledger, _is_older(ctx, topic, time, flips), start, end)


def find_newest_unacked_before(
    ctx: Context, topic: PersistentTopic, cursor: ManagedCursor, time: int, flips: list[int] | None = None
) -> Position | None:
    """Like `find_newest_before`, but the search goes through a cursor, and close times of ledgers don't restrict it."""
    return find_newest_unacked(topic.ledger, cursor, _is_older(ctx, topic, time, flips))


def _is_older(
    ctx: Context, topic: PersistentTopic, time: int, flips: list[int] | None
) -> Callable[[Position], bool]:
    def is_older(position: Position) -> bool:
        published = ctx.entries.get(topic.name, position).timestamp
        if flips is not None and published >= time:
            flips.append(published + 1)
        return published < time

    return is_older


def find_newest_unacked(
    ledger: ManagedLedger, cursor: ManagedCursor, matches: Callable[[Position], bool]
) -> Position | None:
    """The binary search through a cursor (SearchActiveEntries), from the first entry after its mark-delete position.

    quirk: before each probe, Pulsar asks whether an unacked entry follows (hasMoreEntries). If not, the search ends with
    what it has found so far. The second probe is the last entry. So if that is individually acked, only the first entry
    is found; if it isn't, an unacked entry follows every later probe.
    """
    start = ledger.next_valid(cursor.mark_delete)
    if ledger.last_confirmed in cursor.acked:
        return start if start <= ledger.last_confirmed and matches(start) else None
    return find_newest(ledger, matches, start, None)


def first_published_at(ctx: Context, topic: PersistentTopic, time: int) -> Position | None:
    """The position after the newest entry published before `time` (ms), else the first entry's. None: the search failed. Unlike
    `find_newest_before`, the search pays no regard to the close times of ledgers (ManagedLedgerImpl.asyncFindPosition).
    """
    ledger = topic.ledger
    first = Position(next(iter(ledger.ledgers), ledger.current), 0)
    found = find_newest(
        ledger,
        lambda position: ctx.entries.get(topic.name, position).timestamp < time,
        first,
        None,
        ledger.number_of_entries - 1,
    )
    if found is not None and found.entry < 0:
        return None
    return first if found is None else ledger.next_valid(found)


def find_newest_unacked_up_to(
    ledger: ManagedLedger, cursor: ManagedCursor, position: Position
) -> Position | None:
    """What the search through a cursor finds for entries up to a position behind its mark-delete position."""
    if ledger.last_confirmed not in cursor.acked and ledger.valid(position):
        return position
    return find_newest_unacked(ledger, cursor, lambda candidate: candidate <= position)


def find_newest(
    ledger: ManagedLedger,
    matches: Callable[[Position], bool],
    start: Position,
    end: Position | None,
    last_index: int | None = None,
) -> Position | None:
    """Pulsar's binary search (OpFindNewest), with the same probes, from `start` to `end` (None: the last entry).

    A result with entry −1 means that the search failed: `ManagedLedger.position_after` led before the first entry, as in a
    terminated topic that was loaded again with one ledger. quirk: without an open ledger, Pulsar fails to read any single entry.

    `last_index`: how far from `start` the search goes; None: a cursor's search, one further than the entries in the range.
    """
    last = ledger.last_confirmed
    end = last if end is None else min(end, last)
    if start > end:
        return None
    if ledger.without_open:
        return Position(start.ledger, -1)
    size = last_index
    if size is None:
        size = ledger.count(start, end, include_start=True, include_end=True)

    def item(index: int) -> Position:
        if index == 0:
            return start if ledger.valid(start) else ledger.next_valid(start)
        return min(ledger.position_after(start, index), last)

    if not matches(item(0)):
        return None
    found, furthest = item(0), item(size)
    if furthest.entry < 0 or matches(furthest):
        return furthest
    low, high = 0, size
    while True:
        middle = low + max((high - low) // 2, 1)
        if matches(item(middle)):
            found, low = item(middle), middle
        else:
            high = middle - 1
        if high <= low:
            return found


def search_range(
    ledger: ManagedLedger, time: int, skew: int, flips: list[int] | None = None
) -> tuple[Position | None, Position | None]:
    """Where a search by timestamp starts and ends, by the close times of ledgers (getFindPositionRange).

    `time` and `skew` are in ms. Appends to `flips` the later times at which the range changes.
    """
    start = end = None
    for id_, info in ledger.ledgers.items():
        if info.timestamp == 0:
            return start, None
        if flips is not None:
            flips += [at for at in (info.timestamp - skew, info.timestamp + skew) if at > time]
        if info.timestamp <= time - skew:
            start = Position(id_, info.entries - 1)
        elif info.timestamp > time + skew:
            end = Position(id_, info.entries - 1)
            break
    return start, end
