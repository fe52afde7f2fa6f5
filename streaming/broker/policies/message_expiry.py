"""Message TTL and expiry of a subscription by age or position (mirrors `PersistentMessageExpiryMonitor`,
`PersistentMessageFinder`; rules: ttl.md, cursor.md §9, §10). Expiry only acks: data goes by retention.
"""

from collections.abc import Callable

from schemas.effects import Evicted, Expired
from streaming.broker.context import Context
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.ledger.trimming import free_ledgers
from streaming.broker.position import Position
from streaming.broker.subscription.subscription import Subscription
from streaming.broker.topic import Topic, emit_moved

MINIMUM_BACKLOG_FOR_EXPIRY_CHECK = 1000
CAUGHT_UP_FACTOR = 1.5


def check(ctx: Context, topic: Topic) -> None:
    """The periodic check of a topic, and the one after a policy change (ttl.md §3; profile 2.x: §4)."""
    ttl = ctx.policies_of(topic).messageTTL
    if ttl.value <= 0:
        return
    policy = f"messageTTL {ttl.value} s ({ttl.level})"
    names = topic.known_subscriptions()
    if not ctx.config.messageExpirySharedPosition:
        for name in names:
            expire_subscription(ctx, topic, topic.subscriptions[name], ttl.value, policy)
        return
    slowest = topic.slowest_cursor()
    if slowest is None:
        return
    found = find_newest_before(ctx, topic, ctx.clock - ttl.value * 1000)
    if found is None:
        return
    for name in names:
        subscription = topic.subscriptions[name]
        subscription.last_expire = ctx.clock
        expire_to(ctx, topic, subscription, found, Expired, "message TTL", policy)


def expire_subscription(
    ctx: Context, topic: Topic, subscription: Subscription, seconds: int, policy: str
) -> bool:
    """Expire what is older than `seconds`, unless the subscription has nearly caught up (ttl.md §4). False: refused."""
    cursor = topic.cursors[subscription.name]
    backlog = cursor.backlog(topic.ledger)
    if backlog == 0:
        return False
    if subscription.consumers and backlog < MINIMUM_BACKLOG_FOR_EXPIRY_CHECK:
        oldest = cursor.position_after(topic.ledger, 1, exclude_acked=False)
        if oldest.ledger not in topic.ledger.ledgers:
            return False  # trimmed before the cursor came: Pulsar can't read it and leaves it
        time = ctx.entries.get(topic.name, oldest).timestamp
        if not time < ctx.clock - int(seconds * CAUGHT_UP_FACTOR) * 1000:
            return False
    subscription.last_expire = ctx.clock
    expire_by_age(ctx, topic, subscription, seconds, Expired, "message TTL", policy)
    return True


def expire_by_age(
    ctx: Context, topic: Topic, subscription: Subscription, seconds: int, kind: type[Expired] | type[Evicted],
    cause: str, policy: str,
) -> None:  # fmt: skip
    """The monitor: ledgers closed longer ago than `seconds`, then the search by timestamp (cursor.md §10)."""
    cursor = topic.cursors[subscription.name]
    if seconds > 0:
        end = closed_before(ctx, topic, cursor.mark_delete, ctx.clock - seconds * 1000)
        if end is not None:
            expire_to(ctx, topic, subscription, end, kind, f"{cause}: the ledger closed before", policy)
    start = (
        topic.ledger.next_valid(cursor.mark_delete) if ctx.config.messageExpirySearchActiveEntries else None
    )
    found = find_newest_before(ctx, topic, ctx.clock - seconds * 1000, start)
    if found is not None:
        expire_to(ctx, topic, subscription, found, kind, cause, policy)


def closed_before(
    ctx: Context, topic: Topic, mark_delete: Position, limit: int, flips: list[int] | None = None
) -> Position | None:
    """The last entry of the newest of the ledgers in a row from the mark-delete on that closed before `limit`.

    `flips` gets a later limit from which on another ledger counts.
    """
    ledger, end = topic.ledger, None
    id_: int | None = (
        mark_delete.ledger if mark_delete.ledger in ledger.ledgers else ledger.next_ledger(mark_delete.ledger)
    )
    while id_ is not None:
        info = ledger.ledgers[id_]
        is_open = not info.timestamp and ctx.config.messageExpiryStopsAtOpenLedger
        if is_open or not limit > info.timestamp:
            if flips is not None and not is_open:
                flips.append(info.timestamp + 1)
            break
        end = Position(id_, info.entries - 1)
        id_ = ledger.next_ledger(id_)
    return None if end is None else min(end, ledger.last_confirmed)


def expire_to_position(ctx: Context, topic: Topic, subscription: Subscription, position: Position) -> bool:
    """Expire up to a position (admin). False, and nothing done: it lies beyond the topic's end."""
    subscription.last_expire = ctx.clock
    ledger = topic.ledger
    cursor = topic.cursors[subscription.name]
    info = ledger.ledgers.get(position.ledger)
    if info is not None and 0 <= position.entry < info.entries:
        expire_to(
            ctx, topic, subscription, position, Expired, "expired by an administrator", f"position {position}"
        )
        return True
    if position > ledger.last_confirmed:
        return False
    start = ledger.next_valid(cursor.mark_delete)
    found = find_newest(ledger, lambda candidate: candidate <= position, start, ledger.last_confirmed)
    if found is not None:
        expire_to(
            ctx, topic, subscription, found, Expired, "expired by an administrator", f"position {position}"
        )
    return True


def expire_to(
    ctx: Context, topic: Topic, subscription: Subscription, position: Position, kind: type[Expired] | type[Evicted],
    cause: str, policy: str | None,
) -> None:  # fmt: skip
    """Move a subscription's mark-delete to `position` if it is before it; count what left the backlog."""
    ledger = topic.ledger
    cursor: ManagedCursor = topic.cursors[subscription.name]
    if position <= cursor.mark_delete:
        return
    before, backlog = cursor.mark_delete, cursor.backlog(ledger)
    former = topic.change_cursor(ctx, cursor, lambda: cursor.move(ledger, position, None))
    left = backlog - cursor.backlog(ledger)
    if kind is Expired:
        subscription.expired += left
        subscription.expired_rate.record(left, ctx.clock, ctx.config)
    else:
        subscription.evicted += left
    emit_moved(ctx, kind, topic, cursor, before, left, cause, policy)
    subscription.mark_delete_moved(ctx, topic)
    free_ledgers(ctx, topic, cursor, former)


# -- finding by timestamp (cursor.md §9) --------------------------------------------------------------------------


def find_newest_before(
    ctx: Context, topic: Topic, time: int, start: Position | None = None, flips: list[int] | None = None
) -> Position | None:
    """The newest entry with a publish time < `time` (ms), by binary search over all that is stored, or from `start`:
    exact when times never go back, some matching entry otherwise, nothing if the first one looked at doesn't match.

    `flips` gets the later times from which on the search may look at other entries.
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
    """Pulsar's binary search (OpFindNewest), probe by probe, between two positions (`end` None: the last entry)."""
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
    """Where a search by timestamp begins and ends, from the close times of ledgers (getFindPositionRange).

    `flips` gets the later times at which that changes.
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
