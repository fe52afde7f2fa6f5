"""The periodic checks of topics on the logical clock: which are due, and when the next ones are.

Each check runs at the multiples of its interval after the partition's first record. An interval of 0 turns it off.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from streaming.broker import next_effect
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.persistent import (
    backlog_quota,
    deduplication_snapshots,
    leaving,
    message_expiry,
    trimming,
)
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.hierarchy import RetentionPolicies


def _flush_cursors(ctx: Context, topic: PersistentTopic) -> None:
    """Write the cursor positions that the mark-delete rate limiter held back (cursor.md §8)."""
    for cursor in topic.cursors.values():
        if cursor.persisted is not None:
            _flush(ctx, topic, cursor)


def _flush(ctx: Context, topic: PersistentTopic, cursor: ManagedCursor) -> None:
    former = cursor.key
    cursor.persisted = None
    trimming.free_ledgers(ctx, topic, cursor, former if former.ledger != cursor.mark_delete.ledger else None)


def _consumed_ledgers(ctx: Context, topic: PersistentTopic) -> None:
    trimming.check_inactive_ledger(ctx, topic)
    retention = ctx.policies_of(topic).retention
    if ctx.config.retentionCheckEveryTopic or retention != (RetentionPolicies(), "broker"):
        trimming.trim(ctx, topic)


def _inactive_subscriptions(ctx: Context, topic: PersistentTopic) -> None:
    """Delete the subscriptions that were unused for subscriptionExpirationTime (subscriptions.md §7)."""
    minutes = ctx.policies_of(topic).subscriptionExpirationTime
    if minutes <= 0:
        return
    for subscription in list(topic.subscriptions.values()):
        if not subscription.consumers and ctx.clock - subscription.last_active > minutes * 60_000:
            leaving.delete(ctx, topic, subscription, f"unused for {minutes} min")


class Check(NamedTuple):
    """A periodic check: its interval (ms), what it does to a topic, and when it can next have an effect there (ms)."""

    interval: Callable[[ServiceConfiguration], float]
    run: Callable[[Context, PersistentTopic], None]
    next_effect: Callable[[Context, PersistentTopic], int]


CHECKS: dict[str, Check] = {
    "cursorFlush": Check(
        lambda c: c.managedLedgerCursorPositionFlushSeconds * 1000, _flush_cursors, next_effect.cursor_flush,
    ),
    "messageExpiry": Check(
        lambda c: c.messageExpiryCheckIntervalInMinutes * 60_000, message_expiry.check, next_effect.message_expiry,
    ),
    "backlogQuota": Check(
        lambda c: c.backlogQuotaCheckIntervalInSeconds * 1000 if c.backlogQuotaCheckEnabled else 0, backlog_quota.check,
        next_effect.backlog_quota,
    ),
    "consumedLedgers": Check(
        lambda c: c.retentionCheckIntervalInSeconds * 1000, _consumed_ledgers, next_effect.consumed_ledgers,
    ),
    "deduplicationSnapshot": Check(
        lambda c: c.brokerDeduplicationSnapshotFrequencyInSeconds * 1000, deduplication_snapshots.timed_snapshot,
        next_effect.deduplication_snapshot,
    ),
    "inactiveProducers": Check(
        lambda c: c.brokerDeduplicationProducerInactivityTimeoutMinutes * 20_000, deduplication_snapshots.purge_inactive_producers,
        next_effect.inactive_producers,
    ),
    "inactiveSubscriptions": Check(
        lambda c: c.subscriptionExpiryCheckIntervalInMinutes * 60_000, _inactive_subscriptions,
        next_effect.inactive_subscriptions,
    ),
}  # fmt: skip
"""The checks by name. Those that are due at the same time run in this order."""


def quiet_until(ctx: Context, topics: Iterable[PersistentTopic]) -> int:
    """The first time (ms) at which an enabled check can have an effect on one of these topics."""
    on = [check for check in CHECKS.values() if check.interval(ctx.config) > 0]
    soonest = next_effect.NEVER
    for topic in topics:
        for check in on:
            soonest = min(soonest, check.next_effect(ctx, topic))
            if soonest <= ctx.clock:
                return soonest
    return soonest


def last_due(
    config: ServiceConfiguration, origin: int, after: int, until: int
) -> list[tuple[int, list[str]]]:
    """The last time of each check in (`after`, `until`] (ms), and the checks that have it, sorted by time."""
    last: dict[int, list[str]] = {}
    for name, check in CHECKS.items():
        interval = int(check.interval(config))
        if interval > 0 and (due := until - (until - origin) % interval) > after:
            last.setdefault(due, []).append(name)
    return sorted(last.items())


def next_due(config: ServiceConfiguration, origin: int, after: int) -> tuple[int, list[str]] | None:
    """The next time after `after` at which checks are due (ms), and which checks. None: all are off."""
    soonest, names = None, []
    for name, check in CHECKS.items():
        interval = int(check.interval(config))
        if interval <= 0:
            continue
        due = origin + ((after - origin) // interval + 1) * interval
        if soonest is None or due < soonest:
            soonest, names = due, [name]
        elif due == soonest:
            names.append(name)
    return None if soonest is None else (soonest, names)
