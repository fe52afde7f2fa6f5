"""Rollover: full, old and inactive ledgers close, and caught-up cursors advance (docs/rules/ledgers.md §6,
docs/rules/retention.md §2)."""

from schemas.effects import LedgerClosed
from streaming.broker.context import NEVER, Context
from streaming.broker.ledger.cursor_writes import change_cursor
from streaming.broker.persistent.cleanup.trimming import trim
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position

FULL = "ledger full"
"""The cause of a rollover by an entry that fills its ledger."""


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic: close a ledger that got no entry for managedLedgerInactiveLedgerRolloverTimeSeconds."""
    if next_effect(ctx, topic) <= ctx.clock:
        roll_over(ctx, topic, "managedLedgerInactiveLedgerRolloverTimeSeconds")


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """When the open ledger has been inactive for too long, and closes."""
    ledger = topic.ledger
    if (
        not closes_inactive(ctx)
        or topic.is_shadow
        or not ledger.current_entries
        or topic.pending
        or ledger.closed
    ):
        return NEVER
    return ledger.last_add + ctx.config.managedLedgerInactiveLedgerRolloverTimeSeconds * 1000 + 1


def closes_inactive(ctx: Context) -> bool:
    """Whether the check closes inactive ledgers at all."""
    return ctx.config.managedLedgerInactiveLedgerRolloverTimeSeconds > 0


def roll_over(ctx: Context, topic: PersistentTopic, cause: str, next_ledger: int | None = None) -> None:
    """Close the open ledger, open the next one, advance caught-up cursors, and trim, always in this order. `next_ledger`: the id
    that the source of a shadow topic gave the next one."""
    ledger = topic.ledger
    closed = ledger.current
    info = ledger.close_current(ctx.clock)
    if info is not None:
        ctx.emit(LedgerClosed(topic.name, closed, info.entries, info.size, cause))
    if cause == FULL and not (ctx.config.opensLedgerAtOnce or topic.pending):
        ledger.closed = True
    else:
        _open_behind(ctx, topic, next_ledger)
    trim(ctx, topic, just_closed=closed)


def open_for_entry(ctx: Context, topic: PersistentTopic) -> None:
    """An entry comes, and the last ledger is closed: the next one opens. Ledgers are trimmed if that moves the slowest cursor on."""
    before = topic.slowest_cursor()
    key = None if before is None else before.key
    _open_behind(ctx, topic)
    after = topic.slowest_cursor()
    if key is not None and after is not None and key.ledger < after.key.ledger:
        trim(ctx, topic)


def _open_behind(ctx: Context, topic: PersistentTopic, id_: int | None = None) -> None:
    open_ledger(ctx, topic, id_)
    advance_cursors(ctx, topic)
    pass_consumed_ledgers(ctx, topic)


def open_ledger(ctx: Context, topic: PersistentTopic, id_: int | None = None) -> None:
    """Open the next ledger, with an id that is given or the next one, and schedule the check of its age."""
    topic.ledger.open_ledger(ctx.clock, id_)
    topic.ledger.configure(ctx.config)
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
        change_cursor(ctx, ctx.policies_of(topic), cursor, cursor.move, ledger, target, None)


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
    full = (
        bool(ledger.current_entries)
        and not topic.is_shadow
        and not (topic.pending or ledger.closed)
        and ledger.is_full(ctx.clock, ctx.config)
    )
    if full:
        roll_over(ctx, topic, "managedLedgerMaxLedgerRolloverTimeMinutes")
    return full
