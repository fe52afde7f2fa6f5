"""The periodic checks of topics on the logical clock, and the rounds in which they run.

Each check is due at the multiples of its interval after the partition's first record: these are its rounds. An interval
of 0 turns it off. A round of a check in which it has no effect on a topic is skipped there.
"""

from collections.abc import Callable
from typing import NamedTuple

from streaming.broker import inactive_topics, next_effect
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.persistent import (
    backlog_quota,
    deduplication_snapshots,
    inactivity,
    leaving,
    message_expiry,
    trimming,
)
from streaming.broker.persistent.topic import PersistentTopic


def _flush_cursors(ctx: Context, topic: PersistentTopic) -> None:
    """Write the cursor positions that the mark-delete rate limiter held back (docs/rules/cursors.md §11)."""
    for cursor in topic.cursors.values():
        if cursor.persisted is not None:
            _flush(ctx, topic, cursor)


def _flush(ctx: Context, topic: PersistentTopic, cursor: ManagedCursor) -> None:
    former = cursor.key
    cursor.persisted = None
    cursor.next_ledger = 0
    trimming.free_ledgers(ctx, topic, cursor, former if former.ledger != cursor.mark_delete.ledger else None)


def _consumed_ledgers(ctx: Context, topic: PersistentTopic) -> None:
    trimming.check_inactive_ledger(ctx, topic)
    if trimming.is_checked(ctx, topic):
        trimming.trim(ctx, topic)


def _inactive_subscriptions(ctx: Context, topic: PersistentTopic) -> None:
    """Delete the subscriptions that were unused for subscriptionExpirationTime (docs/rules/subscriptions.md §11), and what is
    left of those whose reader did not come back (docs/rules/subscriptions.md §4)."""
    for subscription in [each for each in topic.subscriptions.values() if not each.consumers]:
        minutes = next_effect.expires_after(ctx, topic, subscription)
        if minutes > 0 and ctx.clock - subscription.last_active > minutes * 60_000:
            leaving.delete(ctx, topic, subscription, f"unused for {minutes} min")


class Check(NamedTuple):
    """A periodic check: its interval (ms), what it does to a topic, and when it next has an effect there (ms).

    `skipped`: what skipped rounds would have left behind, given their number, with the clock at the last one. None: nothing.
    `deletes`: whether the topic is deleted after the check. None: never.
    """

    interval: Callable[[ServiceConfiguration], float]
    run: Callable[[Context, PersistentTopic], None]
    next_effect: Callable[[Context, PersistentTopic], int]
    skipped: Callable[[Context, PersistentTopic, int], None] | None = None
    deletes: Callable[[Context, PersistentTopic], bool] | None = None


CHECKS: dict[str, Check] = {
    "cursorFlush": Check(
        lambda c: c.managedLedgerCursorPositionFlushSeconds * 1000, _flush_cursors, next_effect.cursor_flush,
    ),
    "messageExpiry": Check(
        lambda c: c.messageExpiryCheckIntervalInMinutes * 60_000, message_expiry.check, next_effect.message_expiry,
        lambda ctx, topic, _: message_expiry.check(ctx, topic),  # it expires nothing, but its time is in the stats
    ),
    "backlogQuota": Check(
        lambda c: c.backlogQuotaCheckIntervalInSeconds * 1000 if c.backlogQuotaCheckEnabled else 0, backlog_quota.check,
        next_effect.backlog_quota, backlog_quota.count_skipped,
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
    "inactiveTopics": Check(
        lambda c: inactive_topics.interval(c), inactivity.check, next_effect.inactive_topics,
        lambda ctx, topic, _: inactivity.check(ctx, topic), inactivity.deletes,
    ),
}  # fmt: skip
"""The checks by name. Those that are due at the same time run in this order."""


class Rounds:
    """The times of the checks' rounds under one configuration. Times are in ms."""

    def __init__(self, config: ServiceConfiguration, origin: int) -> None:
        """`origin`: the time of the partition's first record. −1: there was none, so no round is due."""
        self._config, self._origin = config, origin
        intervals = ((check, int(check.interval(config))) for check in CHECKS.values())
        self._checks = [(check, interval) for check, interval in intervals if interval > 0 and origin >= 0]
        self._between = (next_effect.NEVER, next_effect.NEVER)  # a time, and the first round after it

    def first_after(self, time: int) -> int:
        """The first round of any check after `time`, or `NEVER`."""
        since, until = self._between
        if not since <= time < until:
            until = min(
                (self._next(interval, time) for _, interval in self._checks), default=next_effect.NEVER
            )
            self._between = time, until
        return until

    def due(self, time: int) -> list[Check]:
        """The checks that have a round at `time`, in the order in which they run."""
        return [check for check, interval in self._checks if (time - self._origin) % interval == 0]

    def next_of(self, name: str, after: int) -> int | None:
        """The first round of a check after `after` (ms), or None if it is turned off."""
        interval = int(CHECKS[name].interval(self._config))
        return self._next(interval, after) if interval > 0 and self._origin >= 0 else None

    def next_effect(self, ctx: Context, topic: PersistentTopic, after: int) -> int:
        """The first round after `after` in which a check has an effect on the topic, or `NEVER`."""
        soonest = next_effect.NEVER
        for check, interval in self._checks:
            if (effect := check.next_effect(ctx, topic)) < soonest:
                soonest = min(soonest, self._next(interval, max(after, effect - 1)))
        return soonest

    def skipped(self, ctx: Context, topic: PersistentTopic, since: int, until: int) -> None:
        """No round after `since` and up to `until` was run on the topic. Make up for what they would have left behind."""
        clock = ctx.clock
        for check, interval in self._checks:
            if check.skipped is None:
                continue
            rounds = (until - self._origin) // interval - (since - self._origin) // interval
            if rounds > 0:
                ctx.clock = until - (until - self._origin) % interval
                check.skipped(ctx, topic, rounds)
        ctx.clock = clock

    def _next(self, interval: int, time: int) -> int:
        return self._origin + ((time - self._origin) // interval + 1) * interval
