"""Find an entry by its publish time (mirrors `PersistentMessageFinder` and `OpFindNewest`; rules: cursor.md §9)."""

from collections.abc import Callable

from streaming.broker.context import Context
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position


def find_newest_before(
    ctx: Context,
    topic: PersistentTopic,
    time: int,
    start: Position | None = None,
    flips: list[int] | None = None,
) -> Position | None:
    """The newest entry published before `time` (ms), by binary search over the stored entries from `start` (None: all).

    The result is exact if publish times ascend. Otherwise it may be any matching entry. None if the first entry of the
    search doesn't match. Appends to `flips` the later values of `time` (ms) from which the search may take another path.
    """
    ledger = topic.ledger
    skew = ctx.config.managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis
    first, end = search_range(ledger, time, skew, flips) if skew >= 0 else (None, None)
    start = start or first
    if start is None:
        start = Position(next(iter(ledger.ledgers), ledger.current), 0)

    def is_older(position: Position) -> bool:
        published = ctx.entries.get(topic.name, position).timestamp
        if flips is not None and published >= time:
            flips.append(published + 1)
        return published < time

    return find_newest(ledger, is_older, start, end)


def find_newest(
    ledger: ManagedLedger, matches: Callable[[Position], bool], start: Position, end: Position | None
) -> Position | None:
    """Pulsar's binary search (OpFindNewest), with the same probes, from `start` to `end` (None: the last entry)."""
    last = ledger.last_confirmed
    end = last if end is None else min(end, last)
    if start > end:
        return None
    size = ledger.count(start, end, include_start=True, include_end=True)

    def item(index: int) -> Position:
        if index == 0:
            return start if ledger.valid(start) else ledger.next_valid(start)
        return min(ledger.position_after(start, index), last)

    if not matches(item(0)):
        return None
    found = item(0)
    if matches(item(size)):
        return item(size)
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
