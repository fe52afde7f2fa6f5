"""Rollover and trimming: close full ledgers, advance caught-up cursors, delete consumed ledgers
(docs/rules/ledgers.md §6, docs/rules/retention.md §2–§6)."""

from collections.abc import Callable
from typing import ParamSpec

from schemas.effects import CursorMoved, LedgerClosed, LedgerDeleted
from streaming.broker.context import Context
from streaming.broker.ledger.cursor_writes import change_cursor
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import MEGABYTE, LedgerInfo
from streaming.broker.persistent.topic import PersistentTopic, Reason
from streaming.broker.policies.hierarchy import RetentionPolicies
from streaming.broker.position import Position

P = ParamSpec("P")


def roll_over(ctx: Context, topic: PersistentTopic, cause: str) -> None:
    """Close the open ledger, open the next one, advance caught-up cursors, and trim, always in this order."""
    ledger = topic.ledger
    closed = ledger.current
    info = ledger.close_current(ctx.clock)
    if info is not None:
        ctx.emit(LedgerClosed(topic.name, closed, info.entries, info.size, cause))
    open_ledger(ctx, topic)
    advance_cursors(ctx, topic)
    pass_consumed_ledgers(ctx, topic)
    trim(ctx, topic, just_closed=closed)


def open_ledger(ctx: Context, topic: PersistentTopic) -> None:
    """Open the next ledger and schedule the check of its age."""
    topic.ledger.open_ledger(ctx.clock)
    ctx.wake(topic.name, rollover_due(ctx, topic))


def advance_cursors(ctx: Context, topic: PersistentTopic) -> None:
    """Move cursors at the last entry of a closed ledger to before the first entry of the next one
    (docs/rules/retention.md §2)."""
    if not ctx.config.moveCursorOverConsumedLedger:
        return
    ledger = topic.ledger
    for cursor in topic.cursors.values():
        mark_delete = cursor.mark_delete
        info = ledger.ledgers.get(mark_delete.ledger)
        following = ledger.next_ledger(mark_delete.ledger)
        if info is None or following is None or mark_delete.entry + 1 < info.entries:
            continue
        target = Position(following, -1)
        change_cursor(ctx, cursor, cursor.move, ledger, target, None)


def pass_consumed_ledgers(ctx: Context, topic: PersistentTopic) -> None:
    """After a ledger was opened: cursors count from their next ledger if they have consumed their own to the end."""
    if ctx.config.trimLedgerAckedToItsEnd:
        for cursor in topic.cursors.values():
            if cursor.durable:
                cursor.pass_consumed_ledger(topic.ledger)


def rollover_due(ctx: Context, topic: PersistentTopic) -> int:
    """When the open ledger reaches its maximum age (ms)."""
    return topic.ledger.created + int(ctx.config.managedLedgerMaxLedgerRolloverTimeMinutes * 60_000)


def check_rollover(ctx: Context, topic: PersistentTopic) -> bool:
    """Roll over at the open ledger's maximum age. It is checked once: an empty or too young ledger isn't checked again.
    Returns True if the ledger rolled over."""
    ledger = topic.ledger
    ledger.rollover_checked = True
    full = bool(ledger.current_entries) and not topic.pending and ledger.is_full(ctx.clock, ctx.config)
    if full:
        roll_over(ctx, topic, "managedLedgerMaxLedgerRolloverTimeMinutes")
    return full


def check_inactive_ledger(ctx: Context, topic: PersistentTopic) -> None:
    """Close a ledger that got no entry for managedLedgerInactiveLedgerRolloverTimeSeconds (0: off)."""
    timeout = ctx.config.managedLedgerInactiveLedgerRolloverTimeSeconds * 1000
    ledger = topic.ledger
    if timeout > 0 and ledger.current_entries and not topic.pending and ctx.clock > ledger.last_add + timeout:
        roll_over(ctx, topic, "managedLedgerInactiveLedgerRolloverTimeSeconds")


def move_cursor(
    ctx: Context,
    topic: PersistentTopic,
    cursor: ManagedCursor,
    reason: Reason,
    operation: Callable[P, object],
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Move a cursor on the broker's own decision, with all consequences.

    Emits and counts the move, lets the dispatcher forget the entries passed, and trims ledgers no longer needed.
    """
    if move_without_trimming(ctx, topic, cursor, reason, operation, *args, **kwargs):
        trim(ctx, topic)


def move_without_trimming(
    ctx: Context,
    topic: PersistentTopic,
    cursor: ManagedCursor,
    reason: Reason,
    operation: Callable[P, object],
    *args: P.args,
    **kwargs: P.kwargs,
) -> bool:
    """Like `move_cursor`, but leaves trimming to the caller. Returns whether to trim."""
    former = topic.record_move(ctx, cursor, reason, operation, *args, **kwargs)
    subscription = topic.subscriptions.get(cursor.name)
    if subscription is not None:
        subscription.mark_delete_moved(topic.context_of(ctx, subscription), by_expiry=reason.expires)
    return _may_free_ledgers(topic, cursor, former)


def free_ledgers(
    ctx: Context, topic: PersistentTopic, cursor: ManagedCursor, former: Position | None
) -> None:
    """Trim if a cursor's key left a ledger (`former`: see `change_cursor`) and it was the only slowest cursor
    (docs/rules/retention.md §3)."""
    if _may_free_ledgers(topic, cursor, former):
        trim(ctx, topic)


def _may_free_ledgers(topic: PersistentTopic, cursor: ManagedCursor, former: Position | None) -> bool:
    if former is None:
        return False
    # The oldest cursors move first in eviction, so the youngest are the likely ones to be behind.
    others = (other for other in list(topic.cursors.values())[::-1] if other.durable and other is not cursor)
    return all(former < other.key for other in others)


def consumed_up_to(ctx: Context, topic: PersistentTopic) -> int:
    """The first ledger that a cursor still needs. Retention decides which older ones are deleted."""
    ledger = topic.ledger
    slowest = topic.slowest_cursor()
    if slowest is None:
        return ledger.current
    key = slowest.key
    info = ledger.ledgers.get(key.ledger)
    to_its_end = info is not None and info.entries == key.entry + 1 and ctx.config.trimLedgerAckedToItsEnd
    return min(key.ledger + to_its_end, ledger.current)


def is_checked(ctx: Context, topic: PersistentTopic) -> bool:
    """Whether the periodic check trims the topic. Pulsar leaves out those without a retention of their own."""
    retention = ctx.policies_of(topic).retention
    return ctx.config.retentionCheckEveryTopic or retention != (RetentionPolicies(), "broker")


def trim(ctx: Context, topic: PersistentTopic, *, truncate: bool = False, just_closed: int = -1) -> None:
    """Delete consumed ledgers, oldest first, as far as retention allows. Never deletes the open ledger.

    `just_closed`: the ledger whose rollover causes the trim.
    """
    ledger = topic.ledger
    boundary = consumed_up_to(ctx, topic)
    if next(iter(ledger.ledgers), ledger.current) >= boundary:
        return
    doomed: list[tuple[int, str]] = []
    total = 0
    for id_, info in ledger.ledgers.items():
        if id_ >= boundary:
            break
        total += info.size
        cause = deletable(ctx, topic, info, total)
        if cause is None and not truncate:
            break
        doomed.append((id_, "truncate" if truncate or cause is None else cause))
    if (
        topic.slowest_cursor() is None
        and ctx.config.trimAtRolloverSparesClosedLedger
        and [id_ for id_, _ in doomed] == [just_closed]
    ):
        return  # quirk: Pulsar trims before it opens the next ledger, and again afterwards only if the first trim found a ledger
    if doomed:
        retention = ctx.policies_of(topic).retention
        minutes, megabytes = retention.value.retentionTimeInMinutes, retention.value.retentionSizeInMB
        text = None if truncate else f"{minutes} min, {megabytes} MB ({retention.level})"
        _delete(ctx, topic, doomed, text)


def deletable(ctx: Context, topic: PersistentTopic, info: LedgerInfo, total: int) -> str | None:
    """Why a consumed ledger may be deleted. None: retention keeps it. `total`: the bytes up to its end."""
    retention = ctx.policies_of(topic).retention.value
    minutes, megabytes = retention.retentionTimeInMinutes, retention.retentionSizeInMB
    if megabytes >= 0 and topic.ledger.total_size - total >= megabytes * MEGABYTE:
        return "retention size"
    if minutes >= 0 and ctx.clock - info.timestamp > minutes * 60_000:
        return "retention time"
    if topic.slowest_cursor() is None and not ctx.config.retentionWithoutDurableCursor:
        return "no durable subscription"
    return None


def _delete(ctx: Context, topic: PersistentTopic, doomed: list[tuple[int, str]], policy: str | None) -> None:
    ledger = topic.ledger
    last = doomed[-1][0]
    end = Position(last, ledger.ledgers[last].entries - 1)
    for cursor in topic.cursors.values():
        if cursor.mark_delete < end <= ledger.last_confirmed:
            reason = Reason(CursorMoved, "ledger trimmed", policy)
            topic.record_move(ctx, cursor, reason, cursor.move, ledger, end, None)
    for id_, cause in doomed:
        info = ledger.ledgers.pop(id_)
        ledger.number_of_entries -= info.entries
        ledger.total_size -= info.size
        topic.counters.trimmed += info.entries
        topic.counters.ledgers_trimmed += 1
        ctx.entries.forget(topic.name, id_)
        ctx.emit(LedgerDeleted(topic.name, id_, info.entries, info.size, cause, policy))
