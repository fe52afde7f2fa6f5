"""Message TTL, and expiry of a subscription by age or position (mirrors `PersistentMessageExpiryMonitor`;
docs/rules/ttl.md §1–§7, docs/rules/cursors.md §15), and why nothing has expired. Expiry only acks entries. Retention deletes them.
"""

from typing import Literal

import msgspec

from schemas.effects import Expired
from streaming.broker.context import NEVER, Context
from streaming.broker.entries import NoStore
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.persistent.cleanup.message_finder import (
    find_newest_before,
    find_newest_unacked_before,
    find_newest_unacked_up_to,
)
from streaming.broker.persistent.cleanup.trimming import move_without_trimming, trim
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic, Reason
from streaming.broker.position import Position

MINIMUM_BACKLOG_FOR_EXPIRY_CHECK = 1000
CAUGHT_UP_FACTOR = 1.5

ExpiryState = Literal[
    "nothing to expire", "not checked yet", "too young", "left alone", "no durable subscription", "not found", "source"
]  # fmt: skip
"""What keeps message TTL from a subscription. ``left alone``: it has nearly caught up (docs/rules/ttl.md §5). ``not found``: the search
for old entries does not come to its oldest one (docs/rules/ttl.md §6). ``source``: the topic follows another one, whose broker decides."""


class Expiration(msgspec.Struct):
    """What a check expires of a subscription at `at` (ms): entries, its mark-delete position before and after, and the rule."""

    at: int
    entries: int
    before: str
    after: str
    cause: str


class SubscriptionExpiry(msgspec.Struct):
    """What message TTL does to a subscription.

    `position`, `published`: its first unacknowledged entry, and when that was published (ms); None: it has none. `due`: it expires nothing
    before (ms); None: nothing is in sight. `expires`: what it expires next if no command comes; None: nothing, or it is not checked.
    """

    subscription: str
    state: ExpiryState
    text: str
    position: str | None
    published: int | None
    due: int | None
    expires: Expiration | None = None

    def add(self, at: int, row: Expired) -> None:
        """Add what a check at `at` (ms) expires to what it has expired already, unless that was an earlier one."""
        before, entries = f"{row.before_ledger}:{row.before_entry}", 0
        if (first := self.expires) is not None:
            if first.at < at:
                return
            before, entries = first.before, first.entries
        after = f"{row.after_ledger}:{row.after_entry}"
        self.expires = Expiration(at, entries + row.entries, before, after, row.cause)


class Expiry(msgspec.Struct):
    """What message TTL does to the subscriptions of a topic, at `clock` (ms).

    `ttl`: the messageTTL in force in seconds, set at `level`; 0: off. `next_check`, `unchecked`, `sampled`: see `trimming.Retention`.
    `unknown`: what can't be concluded, and why.
    """

    topic: str
    clock: int
    ttl: int
    level: str
    next_check: int | None
    unchecked: str | None
    subscriptions: list[SubscriptionExpiry]
    unknown: list[str] = []
    sampled: bool = False


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic, and the one after a policy change (docs/rules/ttl.md §3, §5 for profile 2.x)."""
    ttl = ctx.policies_of(topic).messageTTL
    if ttl.value <= 0 or ctx.clock <= topic.source_expires_until(ctx):
        return
    policy = f"messageTTL {ttl.value} s ({ttl.level})"
    names = topic.expiring_subscriptions()
    if not ctx.config.messageExpirySharedPosition:
        expire_older(ctx, topic, names, ttl.value, policy)
        return
    if topic.slowest_cursor() is None:
        return
    found = _newest_stored_before(ctx, topic, ctx.clock - ttl.value * 1000)
    if found is not None:
        expire_to_position(ctx, topic, names, found, Reason(Expired, "message TTL", policy))


def check_after_source(ctx: Context, topic: PersistentTopic, name: str, to: Position) -> None:
    """The check of a subscription of a shadow topic, for the entries up to `to`, which its source has moved it over."""
    ttl = ctx.policies_of(topic).messageTTL
    if ttl.value <= 0:
        return
    found = _newest_stored_before(ctx, topic, ctx.clock - ttl.value * 1000)
    if found is not None:
        reason = Reason(Expired, "message TTL", f"messageTTL {ttl.value} s ({ttl.level})")
        topic.subscriptions[name].last_expire = ctx.clock
        cursor, to = topic.cursors[name], min(found, to)
        # Not through the cursor: the source has searched already, maybe more than once.
        if topic.ledger.stored(cursor.mark_delete, to) and _expire_to(ctx, topic, cursor, to, reason):
            trim(ctx, topic)


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """When the next entry of a subscription exceeds the TTL, and no source's broker decides that."""
    return min(next_expiries(ctx, topic).values(), default=NEVER)


def next_expiries(ctx: Context, topic: PersistentTopic) -> dict[str, int]:
    """When the check may next expire entries of each subscription (ms), never too late."""
    due = _next_expiries(ctx, topic, ctx.policies_of(topic).messageTTL.value, topic.expiring_subscriptions())
    if due and (source := topic.source_expires_until(ctx) + 1):
        due = {name: max(each, source) for name, each in due.items()}
    return due


def _next_expiries(ctx: Context, topic: PersistentTopic, seconds: int, names: list[str]) -> dict[str, int]:
    if seconds <= 0 or not names:
        return {}
    if not ctx.config.messageExpirySharedPosition:
        return {name: _next_expiry(ctx, topic, topic.subscriptions[name], seconds) for name in names}
    if topic.slowest_cursor() is None:
        return {}
    flips: list[int] = []
    found = _newest_stored_before(ctx, topic, ctx.clock - seconds * 1000, flips)
    later = _first_flip(flips, seconds)
    if found is None:
        return dict.fromkeys(names, later)
    return {name: ctx.clock if found > topic.cursors[name].mark_delete else later for name in names}


def skipped(ctx: Context, topic: PersistentTopic, _rounds: int) -> None:
    """Rounds that expire nothing leave their time in the stats. That of the last one counts. Where a state is looked at without a store,
    it may be missing: nobody can tell whether an entry is old enough."""
    try:
        check(ctx, topic)
    except NoStore:
        return


def expire_older(
    ctx: Context, topic: PersistentTopic, names: list[str], seconds: int, policy: str
) -> list[str]:
    """Expire the subscriptions' entries that are older than `seconds` (docs/rules/ttl.md §5).

    Returns the subscriptions that are left alone, because they have no backlog or have nearly caught up.
    """
    issued: list[str] = []
    refused: list[str] = []
    for name in names:
        subscription = topic.subscriptions[name]
        if _has_old_backlog_at(ctx, topic, subscription, seconds) <= ctx.clock:
            subscription.last_expire = ctx.clock
            issued.append(name)
        else:
            refused.append(name)
    expire_by_age(ctx, topic, issued, seconds, Reason(Expired, "message TTL", policy))
    return refused


def _next_expiry(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, seconds: int
) -> int:
    """When `expire_older` first expires entries of a subscription."""
    due = _has_old_backlog_at(ctx, topic, subscription, seconds)
    return due if due > ctx.clock else next_by_age(ctx, topic, topic.cursors[subscription.name], seconds)


def _has_old_backlog_at(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, seconds: int
) -> int:
    """When a subscription is no longer left alone (ms). A time that is not after the clock: it is not."""
    cursor = topic.cursors[subscription.name]
    backlog = cursor.backlog(topic.ledger)
    if backlog == 0:
        return NEVER
    if not subscription.consumers or backlog >= MINIMUM_BACKLOG_FOR_EXPIRY_CHECK:
        return ctx.clock
    oldest = cursor.position_after(topic.ledger, 1, exclude_acked=False)
    if seconds == 0 or oldest.ledger not in topic.ledger.ledgers or oldest.entry < 0:
        return NEVER  # if trimmed before the cursor reached it: Pulsar can't read it and does nothing
    time = ctx.entries.get(topic.name, oldest).timestamp
    return time + int(seconds * CAUGHT_UP_FACTOR) * 1000 + 1


def expire_by_age(
    ctx: Context, topic: PersistentTopic, names: list[str], seconds: int, reason: Reason
) -> None:
    """For each subscription, expire ledgers closed more than `seconds` ago, then entries found by timestamp
    (docs/rules/ttl.md §5, docs/rules/cursors.md §15).

    quirk: an age of 0 s means that nothing expires. With messageExpiryThroughCursor off, all of this is otherwise: the
    entries that are stored are searched, as for the TTL.
    """
    limit, through_cursor = ctx.clock - seconds * 1000, ctx.config.messageExpiryThroughCursor
    if through_cursor and seconds == 0:
        return
    found = None if through_cursor else _newest_stored_before(ctx, topic, limit)
    closed_reason = reason._replace(cause=f"{reason.cause}: the ledger closed before")
    trims = False
    for name in names:
        cursor = topic.cursors[name]
        if through_cursor:
            closed = _closed_before(ctx, topic, cursor.mark_delete, limit)
            trims |= _expire_to(ctx, topic, cursor, closed, closed_reason)
            found = find_newest_unacked_before(ctx, topic, cursor, limit)
        trims |= _expire_to(ctx, topic, cursor, found, reason)
    if trims:
        trim(ctx, topic)


def next_by_age(ctx: Context, topic: PersistentTopic, cursor: ManagedCursor, seconds: int) -> int:
    """When `expire_by_age` first moves the cursor (ms)."""
    flips: list[int] = []
    limit = ctx.clock - seconds * 1000
    if not ctx.config.messageExpiryThroughCursor:
        found = _newest_stored_before(ctx, topic, limit, flips)
        moves = found is not None and found > cursor.mark_delete
        return ctx.clock if moves else _first_flip(flips, seconds)
    if seconds == 0:
        return NEVER
    end = _closed_before(ctx, topic, cursor.mark_delete, limit, flips)
    if end is not None and end > cursor.mark_delete:
        return ctx.clock
    if find_newest_unacked_before(ctx, topic, cursor, limit, flips) is not None:
        return ctx.clock
    return _first_flip(flips, seconds)


def _newest_stored_before(
    ctx: Context, topic: PersistentTopic, limit: int, flips: list[int] | None = None
) -> Position | None:
    """As `find_newest_before`, which also fails: then there is nothing to expire."""
    found = find_newest_before(ctx, topic, limit, flips)
    return found if found is not None and found.entry >= 0 else None


def _first_flip(flips: list[int], seconds: int) -> int:
    """When an entry's age limit (`flips`, ms) lies `seconds` back for the first time."""
    return min(flips, default=NEVER - seconds * 1000) + seconds * 1000


def _closed_before(
    ctx: Context, topic: PersistentTopic, mark_delete: Position, limit: int, flips: list[int] | None = None
) -> Position | None:
    """The last entry of the consecutive ledgers, starting at the mark-delete, that closed before `limit` (ms).

    Appends to `flips` the later limit (ms) from which another ledger counts. None if no ledger does.
    """
    ledger, end = topic.ledger, None
    if not ctx.config.messageExpiryPassesClosedLedgers:
        return None
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
    ctx: Context, topic: PersistentTopic, names: list[str], position: Position, reason: Reason
) -> bool:
    """Expire each subscription up to a position: at once if it is in a closed ledger, else as far as a search through the
    subscription's cursor gets.

    Does nothing and returns False if the position is past the topic's end.
    """
    ledger, trims = topic.ledger, False
    info = ledger.ledgers.get(position.ledger)
    is_closed = info is not None and 0 <= position.entry < info.entries
    for name in names:
        cursor = topic.cursors[name]
        topic.subscriptions[name].last_expire = ctx.clock
        found: Position | None = position
        if not is_closed:
            if position > ledger.last_confirmed:
                return False
            found = find_newest_unacked_up_to(ledger, cursor, position)
        trims |= _expire_to(ctx, topic, cursor, found, reason)
    if trims:
        trim(ctx, topic)
    return True


def _expire_to(
    ctx: Context, topic: PersistentTopic, cursor: ManagedCursor, position: Position | None, reason: Reason
) -> bool:
    """Move a subscription's mark-delete position to `position`, never backwards. Returns whether to trim.

    The caller trims after it has moved all cursors, since Pulsar trims in the background.
    """
    if position is None or position <= cursor.mark_delete:
        return False
    return move_without_trimming(ctx, topic, cursor, reason, cursor.move, topic.ledger, position, None)


# -- why nothing has expired --------------------------------------------------------------------------------------------


def explain(ctx: Context, topic: PersistentTopic) -> Expiry:
    """What message TTL does to the topic's subscriptions. `next_check` and what they expire are left to the caller."""
    ttl, due = ctx.policies_of(topic).messageTTL, next_expiries(ctx, topic)
    off = ttl.value <= 0
    return Expiry(
        topic=topic.name,
        clock=ctx.clock,
        ttl=ttl.value,
        level=ttl.level,
        next_check=None,
        unchecked="messageTTL is 0: nothing expires" if off else None,
        subscriptions=[]
        if off
        else [
            _explain_one(ctx, topic, topic.subscriptions[name], ttl.value, due.get(name, NEVER))
            for name in topic.expiring_subscriptions()
        ],
        sampled=topic.is_sampled,
    )


def _explain_one(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, seconds: int, due: int
) -> SubscriptionExpiry:
    ledger, cursor = topic.ledger, topic.cursors[subscription.name]
    position = ledger.next_valid(cursor.mark_delete)
    if cursor.mark_delete >= ledger.last_confirmed or position > ledger.last_confirmed:
        text = "no entry is unacknowledged"
        return SubscriptionExpiry(subscription.name, "nothing to expire", text, None, None, None)
    published = ctx.entries.get(topic.name, position).timestamp
    state, text = _why_not(ctx, topic, subscription, seconds, due, published)
    return SubscriptionExpiry(
        subscription.name,
        state,
        text,
        str(position),
        published,
        None if due >= NEVER else max(due, ctx.clock),
    )


def _why_not(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, seconds: int, due: int, published: int
) -> tuple[ExpiryState, str]:  # fmt: skip
    """What keeps the TTL from a subscription whose first unacknowledged entry was `published` then (ms)."""
    if due <= ctx.clock:
        return "not checked yet", "the next check expires what is older than the TTL"
    if topic.source_expires_until(ctx) >= ctx.clock:
        return "source", "the broker of its source decides what expires, as long as that is seen"
    if ctx.config.messageExpirySharedPosition:
        if topic.slowest_cursor() is None:
            return (
                "no durable subscription",
                "the topic has only readers, and the check goes by the slowest durable cursor",
            )
        where = "the first stored entry, which is younger or can't be read"
    else:
        alone = _has_old_backlog_at(ctx, topic, subscription, seconds)
        if alone >= NEVER:
            return "left alone", "its backlog counts no entry that can be read"
        if alone > ctx.clock:
            fewer = (
                f"it has consumers and fewer than {MINIMUM_BACKLOG_FOR_EXPIRY_CHECK} unacknowledged entries"
            )
            return "left alone", f"{fewer}, and the oldest is younger than {CAUGHT_UP_FACTOR} times the TTL"
        where = "an entry that is younger or can't be read"
    if published >= ctx.clock - seconds * 1000:
        return "too young", "its oldest unacknowledged entry is not older than the TTL"
    return (
        "not found",
        f"its oldest unacknowledged entry is older than the TTL, but the search for such entries begins at {where}",
    )
