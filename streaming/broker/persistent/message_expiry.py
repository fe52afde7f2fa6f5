"""Message TTL, and expiry of a subscription by age or position (mirrors `PersistentMessageExpiryMonitor`; rules:
ttl.md, cursor.md §10). Expiry only acks entries. Retention deletes them.
"""

from schemas.effects import Expired
from streaming.broker.context import Context
from streaming.broker.persistent.message_finder import find_newest, find_newest_before
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic, Reason
from streaming.broker.persistent.trimming import move_cursor
from streaming.broker.position import Position

MINIMUM_BACKLOG_FOR_EXPIRY_CHECK = 1000
CAUGHT_UP_FACTOR = 1.5


def check(ctx: Context, topic: PersistentTopic) -> None:
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
        expire_to(ctx, topic, subscription, found, Reason(Expired, "message TTL", policy))


def expire_subscription(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, seconds: int, policy: str
) -> bool:
    """Expire entries older than `seconds` (ttl.md §4). Returns False if it has no backlog or has nearly caught up."""
    cursor = topic.cursors[subscription.name]
    backlog = cursor.backlog(topic.ledger)
    if backlog == 0:
        return False
    if subscription.consumers and backlog < MINIMUM_BACKLOG_FOR_EXPIRY_CHECK:
        oldest = cursor.position_after(topic.ledger, 1, exclude_acked=False)
        if oldest.ledger not in topic.ledger.ledgers:
            return False  # trimmed before the cursor reached it: Pulsar can't read it and does nothing
        time = ctx.entries.get(topic.name, oldest).timestamp
        if not time < ctx.clock - int(seconds * CAUGHT_UP_FACTOR) * 1000:
            return False
    subscription.last_expire = ctx.clock
    expire_by_age(ctx, topic, subscription, seconds, Reason(Expired, "message TTL", policy))
    return True


def expire_by_age(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, seconds: int, reason: Reason
) -> None:
    """Expire ledgers closed more than `seconds` ago, then entries found by timestamp (cursor.md §10)."""
    cursor = topic.cursors[subscription.name]
    if seconds > 0:
        end = closed_before(ctx, topic, cursor.mark_delete, ctx.clock - seconds * 1000)
        if end is not None:
            closed = reason._replace(cause=f"{reason.cause}: the ledger closed before")
            expire_to(ctx, topic, subscription, end, closed)
    start = (
        topic.ledger.next_valid(cursor.mark_delete) if ctx.config.messageExpirySearchActiveEntries else None
    )
    found = find_newest_before(ctx, topic, ctx.clock - seconds * 1000, start)
    if found is not None:
        expire_to(ctx, topic, subscription, found, reason)


def closed_before(
    ctx: Context, topic: PersistentTopic, mark_delete: Position, limit: int, flips: list[int] | None = None
) -> Position | None:
    """The last entry of the consecutive ledgers, starting at the mark-delete, that closed before `limit` (ms).

    Appends to `flips` the later limit (ms) from which another ledger counts. None if no ledger does.
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


def expire_to_position(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, position: Position
) -> bool:
    """Expire up to a position (admin). Does nothing and returns False if it is past the topic's end."""
    subscription.last_expire = ctx.clock
    reason = Reason(Expired, "expired by an administrator", f"position {position}")
    ledger = topic.ledger
    cursor = topic.cursors[subscription.name]
    info = ledger.ledgers.get(position.ledger)
    if info is not None and 0 <= position.entry < info.entries:
        expire_to(ctx, topic, subscription, position, reason)
        return True
    if position > ledger.last_confirmed:
        return False
    start = ledger.next_valid(cursor.mark_delete)
    found = find_newest(ledger, lambda candidate: candidate <= position, start, ledger.last_confirmed)
    if found is not None:
        expire_to(ctx, topic, subscription, found, reason)
    return True


def expire_to(
    ctx: Context,
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    position: Position,
    reason: Reason,
) -> None:
    """Move a subscription's mark-delete position to `position`, never backwards."""
    cursor = topic.cursors[subscription.name]
    if position > cursor.mark_delete:
        move_cursor(ctx, topic, cursor, reason, cursor.move, topic.ledger, position, None)
