"""Trimming: consumed ledgers are deleted as far as retention allows (docs/rules/ledgers.md §6, docs/rules/retention.md §3–§6), and
why a topic's ledgers are still there."""

from collections.abc import Callable
from typing import Literal, ParamSpec

import msgspec

from schemas.effects import COMPACTED_LEDGER, CursorMoved, LedgerDeleted
from streaming.broker.context import NEVER, Context
from streaming.broker.ledger.compacted_ledger import CompactedLedger
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import MEGABYTE, LedgerInfo
from streaming.broker.persistent.topic import PersistentTopic, Reason
from streaming.broker.policies.hierarchy import Effective, RetentionPolicies
from streaming.broker.position import Position

P = ParamSpec("P")

KeptBecause = Literal[
    "open", "cursor", "retention", "older ledger", "not checked yet", "terminated", "source", "not known"
]
"""Why a ledger is there. ``source``: the topic follows another one, which had it at the last look. ``older ledger``: ledgers go oldest first, and retention keeps an older one. ``terminated``: see
opensLedgerOfTerminated. ``not known``: of a cluster whose policies are not."""


class KeptLedger(msgspec.Struct):
    """A ledger, and why it is there. `cursors`: those that need it. `until`: when retention time has passed (ms), None if it is
    unlimited or not what keeps the ledger."""

    ledger: int
    entries: int
    size: int
    closed_at: int | None
    reason: KeptBecause
    text: str
    cursors: list[str]
    until: int | None = None


class Retention(msgspec.Struct):
    """Why a topic has the ledgers that it has, at `clock` (ms). Sizes in bytes.

    `minutes`, `megabytes`: the retention in force (−1: unlimited), set at `level`. `next_check`: when the check runs next (ms);
    None: it is turned off. `unchecked`: why the check passes the topic over. `deletes`: the ledgers that go by the end of the next
    check if no command comes before. Of a cluster's stats only: `unknown`, what can't be concluded, as the next check, and why; then a
    policy that is not known is None. `to_do`: what to do about it. `sampled`: see
    `PersistentTopic.is_sampled`.
    """

    topic: str
    clock: int
    minutes: int | None
    megabytes: int | None
    level: str | None
    size: int
    next_check: int | None
    unchecked: str | None
    ledgers: list[KeptLedger]
    deletes: list[int]
    unknown: list[str] = []
    to_do: list[str] = []
    sampled: bool = False


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic."""
    if _is_checked(ctx, topic):
        trim(ctx, topic)


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """When retention first lets the oldest ledger go."""
    if not _is_checked(ctx, topic) or topic.follows_source(ctx):
        return NEVER
    ledger = topic.ledger
    oldest = next(iter(ledger.ledgers), ledger.current)
    if oldest >= _consumed_up_to(ctx, topic):
        return NEVER
    info = ledger.ledgers[oldest]
    if _may_be_needed(topic, info):
        return NEVER
    if _deletable(ctx, topic, info, info.size) is not None:
        return ctx.clock
    return _retained_until(info, ctx.policies_of(topic).retention.value)


def _consumed_up_to(ctx: Context, topic: PersistentTopic) -> int:
    """The first ledger that a cursor still needs. Retention decides which older ones are deleted. 0: none is."""
    ledger = topic.ledger
    if ledger.without_open:
        return 0  # quirk: Pulsar compares each ledger with the open one, and fails if there is none
    slowest = topic.slowest_cursor()
    if slowest is None:
        return ledger.current
    key = slowest.key
    info = ledger.ledgers.get(key.ledger)
    config = ctx.config
    to_its_end = (
        info is not None
        and info.entries == key.entry + 1
        and config.trimLedgerAckedToItsEnd
        and config.trimsLedgerOfSlowestPosition
    )
    return min(key.ledger + to_its_end, ledger.current)


def _is_checked(ctx: Context, topic: PersistentTopic) -> bool:
    """Whether the periodic check trims the topic. Pulsar leaves out those without a retention of their own."""
    retention = ctx.policies_of(topic).retention
    return ctx.config.retentionCheckEveryTopic or retention != (RetentionPolicies(), "broker")


def trim(ctx: Context, topic: PersistentTopic, *, truncate: bool = False, just_closed: int = -1) -> None:
    """Delete consumed ledgers, oldest first, as far as retention allows. Never deletes the open ledger.

    `just_closed`: the ledger whose rollover causes the trim. For a shadow topic, that waits for the next MIRROR.
    """
    if not (topic.follows_source(ctx) or (topic.is_shadow and just_closed >= 0)):
        _trim(ctx, topic, truncate=truncate, just_closed=just_closed)


def trim_after_source(ctx: Context, topic: PersistentTopic, first_ledger: int, since: int) -> None:
    """Delete the ledgers of a shadow topic that its source has deleted. `first_ledger`: the oldest one there. `since`: the time of the
    MIRROR before (ms).

    Without shadowTopicFollowsSource, retention decides, as on other topics: for the ledgers that were closed since then, only now.
    """
    if not topic.follows_source(ctx):
        closed = ((id_, info) for id_, info in reversed(topic.ledger.ledgers.items()) if info.timestamp)
        last, info = next(closed, (-1, None))
        if info is not None and info.timestamp > since:
            _trim(ctx, topic, just_closed=last)
        return
    doomed = [(id_, "deleted on the source") for id_ in topic.ledger.ledgers if id_ < first_ledger]
    if doomed:
        _delete(ctx, topic, doomed, None)


def _trim(ctx: Context, topic: PersistentTopic, *, truncate: bool = False, just_closed: int = -1) -> None:
    ledger = topic.ledger
    boundary = _consumed_up_to(ctx, topic)
    if next(iter(ledger.ledgers), ledger.current) >= boundary:
        return
    doomed: list[tuple[int, str]] = []
    total = 0
    for id_, info in ledger.ledgers.items():
        if id_ >= boundary or _may_be_needed(topic, info):
            break
        total += info.size
        cause = _deletable(ctx, topic, info, total)
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


def _may_be_needed(topic: PersistentTopic, info: LedgerInfo) -> bool:
    """Is it a ledger of a shadow topic that was closed after the latest MIRROR? Its source may have a subscription that needs it."""
    return topic.is_shadow and info.timestamp > topic.mirrored.seen


def _deletable(ctx: Context, topic: PersistentTopic, info: LedgerInfo, total: int) -> str | None:
    """Why a consumed ledger may be deleted. None: retention keeps it. `total`: the bytes up to its end."""
    retention = ctx.policies_of(topic).retention.value
    megabytes = retention.retentionSizeInMB
    if megabytes >= 0 and topic.ledger.total_size - total >= megabytes * MEGABYTE:
        return "retention size"
    if _retained_until(info, retention) <= ctx.clock:
        return "retention time"
    if topic.slowest_cursor() is None and not ctx.config.retentionWithoutDurableCursor:
        return "no durable subscription"
    return None


def _retained_until(info: LedgerInfo, retention: RetentionPolicies) -> int:
    """When a closed ledger is older than the time of retention (ms)."""
    minutes = retention.retentionTimeInMinutes
    return NEVER if minutes < 0 else info.timestamp + minutes * 60_000 + 1


def _delete(ctx: Context, topic: PersistentTopic, doomed: list[tuple[int, str]], policy: str | None) -> None:
    ledger = topic.ledger
    last = doomed[-1][0]
    end = to = Position(last, ledger.ledgers[last].entries - 1)
    if ctx.config.trimMovesToNextLedger and (following := ledger.next_ledger(last)) is not None:
        to = Position(following, -1)
    reason = Reason(CursorMoved, "ledger trimmed", policy)
    follows = to <= ledger.last_confirmed
    for cursor in topic.cursors.values():
        if (
            not cursor.mark_delete < (to if follows else end) <= ledger.last_confirmed
            or cursor.reads_compacted
        ):
            continue  # who reads compacted data may still get what these ledgers had
        if follows:
            topic.record_move(ctx, cursor, reason, cursor.move, ledger, to, None)
            continue
        if lost := cursor.live(ledger, cursor.mark_delete, end):
            ctx.emit(
                CursorMoved(topic.name, cursor.name, *cursor.mark_delete, *end, lost, reason.cause, policy)
            )
        subscription = topic.subscriptions.get(cursor.name)
        if subscription is not None and subscription.dispatcher is not None:
            subscription.dispatcher.entries_deleted(end)
    # Acks of what these ledgers had may still count: of a cursor that stays behind, or of one that reads compacted data.
    if ctx.config.trimMovesToNextLedger or topic.compaction.ledger or _has_compacted_readers(topic):
        ledger.largest_deleted = max(
            ledger.largest_deleted, *(ledger.ledgers[id_].entries for id_, _ in doomed)
        )
    for id_, cause in doomed:
        info = ledger.ledgers.pop(id_)
        ledger.number_of_entries -= info.entries
        ledger.total_size -= info.size
        topic.counters.trimmed += info.entries
        topic.counters.ledgers_trimmed += 1
        ctx.entries.forget(topic.name, id_)
        ctx.emit(LedgerDeleted(topic.name, id_, info.entries, info.size, cause, policy))


def _has_compacted_readers(topic: PersistentTopic) -> bool:
    return any(each.reads_compacted for each in topic.cursors.values())


def delete_compacted(ctx: Context, topic: PersistentTopic, ledger: CompactedLedger, cause: str) -> None:
    """Delete a compacted ledger. One without entries was never stored."""
    ctx.entries.forget(topic.name, ledger.id)
    if ledger.entries:
        ctx.emit(
            LedgerDeleted(topic.name, ledger.id, ledger.entries, ledger.size, f"{COMPACTED_LEDGER}: {cause}")
        )


# -- why ledgers are still there --------------------------------------------------------------------------------------


def explain(ctx: Context, topic: PersistentTopic) -> Retention:
    """Why the topic's ledgers are there. `next_check`, `unchecked` and `deletes` are left to the caller."""
    effective = ctx.policies_of(topic).retention
    ledger, boundary = topic.ledger, _consumed_up_to(ctx, topic)
    found = Retention(
        topic=topic.name,
        sampled=topic.is_sampled,
        clock=ctx.clock,
        minutes=effective.value.retentionTimeInMinutes,
        megabytes=effective.value.retentionSizeInMB,
        level=effective.level,
        size=ledger.total_size,
        next_check=None,
        unchecked=None
        if _is_checked(ctx, topic)
        else "retentionCheckEveryTopic is false, and no level sets a retention: only the end of a ledger and the move of a cursor "
        "delete ledgers",
        ledgers=[],
        deletes=[],
    )
    total, keeper = 0, None
    for id_, info in ledger.ledgers.items():
        total += info.size
        if id_ == ledger.current:
            # Nothing was written to the last ledger of a terminated topic since it was loaded again.
            entries, size = ledger.current_entries or info.entries, ledger.current_size or info.size
            cursors, until = list[str](), None
            reason: KeptBecause = "open"
            text = (
                LAST_OF_TERMINATED
                if ledger.terminated
                else "full: the next one opens with the next message"
                if ledger.closed
                else WRITTEN_TO
            )
        else:
            entries, size, until = info.entries, info.size, None
            cursors = [
                each.name for each in topic.cursors.values() if each.durable and each.key.ledger <= id_
            ]
            if ledger.without_open:
                reason, text = "terminated", "the topic was terminated and loaded again: nothing is trimmed"
            elif topic.follows_source(ctx):
                reason, text = "source", ON_THE_SOURCE
            elif _may_be_needed(topic, info):
                reason, text = "source", SINCE_THE_LOOK
            elif id_ >= boundary:
                reason, text = "cursor", _held(topic, cursors)
            elif keeper is not None:
                reason, text = "older ledger", goes_after(keeper)
            elif (cause := _deletable(ctx, topic, info, total)) is not None:
                reason, text = "not checked yet", f"may go ({cause}), which the next check sees"
            else:
                reason, keeper = "retention", id_
                text, until = _retained(effective, info, ledger.total_size - total)
        found.ledgers.append(
            KeptLedger(id_, entries, size, info.timestamp or None, reason, text, cursors, until)
        )
    return found


LAST_OF_TERMINATED, WRITTEN_TO = "the last ledger of a terminated topic", "messages are written to it"


ON_THE_SOURCE = "its source had it at the last look: it goes when the source deletes it, by the source's retention and subscriptions"
SINCE_THE_LOOK = "it was closed after the last look at its source, which may have a subscription that needs it: the next look tells"


def goes_after(keeper: int) -> str:
    """Why a ledger that could go stays: an older one does."""
    return f"ledgers go oldest first, and {keeper} stays"


def _held(topic: PersistentTopic, cursors: list[str]) -> str:
    return held_by({name: str(topic.cursors[name].mark_delete) for name in cursors})


def less_than(newer: int, megabytes: int) -> str:
    """Why retention by size keeps a ledger. `newer`: the bytes after it."""
    return f"the {newer} bytes after it are less than {megabytes} MB ({megabytes * MEGABYTE} bytes)"


def held_by(cursors: dict[str, str], count: int | None = None) -> str:
    """Which cursors need a ledger: their mark-delete positions by name. `count`: how many there are, if these are not all."""
    held = [f"{name} (mark-delete position {mark_delete})" for name, mark_delete in cursors.items()]
    others = (len(held) if count is None else count) - len(held[:_MOST_HELD])
    return f"still needed by {', '.join(held[:_MOST_HELD])}{f' and {others:,} more' if others else ''}"


_MOST_HELD = 10
"""So many cursors that need a ledger are named."""


def _retained(
    effective: Effective[RetentionPolicies], info: LedgerInfo, newer: int
) -> tuple[str, int | None]:
    """Why retention keeps a consumed ledger, and until when. `newer`: the bytes of the ledgers after it."""
    minutes, megabytes = effective.value.retentionTimeInMinutes, effective.value.retentionSizeInMB
    limits = [
        "retention has no limit of time" if minutes < 0 else f"it was closed less than {minutes} min ago",
        "and none of size" if megabytes < 0 else f"and {less_than(newer, megabytes)}",
    ]
    until = _retained_until(info, effective.value)
    text = f"consumed, but {' '.join(limits)} (retention of the {effective.level})"
    return text, until if until < NEVER else None


# -- cursors that the broker moves ------------------------------------------------------------------------------------


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
