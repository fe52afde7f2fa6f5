"""The periodic checks of topics on the logical clock, and the rounds in which they run.

Each check is due at the multiples of its interval after the partition's first record: these are its rounds. An interval
of 0 turns it off. A round of a check in which it has no effect on a topic is skipped there.

The problem
    Eight checks run on each topic, some of them every minute: TTL, quotas, retention, snapshots, and others. A log may be
    silent for a year, and a broker may have 100,000 topics that nobody uses. Running each round on each topic would cost
    time times topics. But a check must run in exactly the rounds in which it changes something, since its rows show when
    it did.

The idea
    A topic changes only by commands, by its timers and by checks. So in between, when a check will next do something
    follows from the state: the oldest entry exceeds the TTL at its publish time plus the TTL. `Check.next_effect` is a
    function that computes this time. `Rounds.next_effect` takes the first round of any check at or after its time, and
    `streaming.broker.topics` keeps the topics in a heap by that round. Rounds before it are skipped on this topic.

    What a round leaves behind although it has no effect (a time or a count in stats) `Check.skipped` makes up for, when
    something next happens on the topic.

In order
    A topic has a TTL of 60 s, a subscription without consumers, and one message of 12:00:10. The TTL is checked each
    minute, from 12:00:00 on, and all other checks are off::

        12:00:10    publish. The topic was busy since the last round, so the next round runs
        12:01:00    the check has no effect. Its next effect is at 12:01:10, so the next round is that of 12:02:00
        12:02:00    the message expires

    After a round of a busy topic, the next round runs, too: it is probably busy again, and looking ahead would be in
    vain (`topics._run_checks`).

Invariants
    * A time may be too early, but never too late. A time that is not after the clock means the next round.
    * It may be too early only finitely often, such as once for each message that expires. Otherwise skipping would save
      nothing.
    * Rows, states and stats are those of running every round (``tests/broker/test_silence.py``).

    So whoever changes a check changes its `next_effect`. An effect that it does not foresee comes too late.

What it costs
    A look at the topic after a round in which it was not busy: at its producers, subscriptions and cursors, and, for the
    TTL, a search for the first entry to expire.
"""

from collections.abc import Callable
from typing import NamedTuple

from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import NEVER, Context
from streaming.broker.persistent.cleanup import (
    backlog_quota,
    cursor_flush,
    inactive_subscriptions,
    inactivity,
    ledger_rollover,
    message_expiry,
    trimming,
)
from streaming.broker.persistent.compaction import compactor
from streaming.broker.persistent.publish import deduplication_snapshots, producer_purge
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.topic import inactive_producers, inactive_topics


class Check(NamedTuple):
    """A periodic check: its interval (ms), what a round does to a topic, and when a round next has an effect there (ms).

    An effect is anything that a row or a later record can show, except for what `skipped` makes up for. Until that time no round of
    the check runs on the topic. A time that is not after the clock means the next round. A time may be too early, but only finitely
    often: as each message expires, say.

    `skipped`: what skipped rounds would have left behind, given their number, with the clock at the last one. None: nothing.
    `deletes`: whether the topic is deleted after the check. None: never.
    """

    interval: Callable[[ServiceConfiguration], float]
    run: Callable[[Context, PersistentTopic], None]
    next_effect: Callable[[Context, PersistentTopic], int]
    skipped: Callable[[Context, PersistentTopic, int], None] | None = None
    deletes: Callable[[Context, PersistentTopic], bool] | None = None


def _check_consumed_ledgers(ctx: Context, topic: PersistentTopic) -> None:
    ledger_rollover.check(ctx, topic)
    trimming.check(ctx, topic)


def _next_consumed_ledgers(ctx: Context, topic: PersistentTopic) -> int:
    return min(ledger_rollover.next_effect(ctx, topic), trimming.next_effect(ctx, topic))


CHECKS: dict[str, Check] = {
    "cursorFlush": Check(
        lambda c: c.managedLedgerCursorPositionFlushSeconds * 1000, cursor_flush.check, cursor_flush.next_effect,
    ),
    "messageExpiry": Check(
        lambda c: c.messageExpiryCheckIntervalInMinutes * 60_000, message_expiry.check, message_expiry.next_effect,
        message_expiry.skipped,
    ),
    "backlogQuota": Check(
        lambda c: c.backlogQuotaCheckIntervalInSeconds * 1000 if c.backlogQuotaCheckEnabled else 0, backlog_quota.check,
        backlog_quota.next_effect, backlog_quota.skipped,
    ),
    "consumedLedgers": Check(
        lambda c: c.retentionCheckIntervalInSeconds * 1000, _check_consumed_ledgers, _next_consumed_ledgers,
    ),
    "deduplicationSnapshot": Check(
        lambda c: c.brokerDeduplicationSnapshotFrequencyInSeconds * 1000, deduplication_snapshots.check,
        deduplication_snapshots.next_effect,
    ),
    "inactiveProducers": Check(inactive_producers.interval, producer_purge.check, producer_purge.next_effect),
    "inactiveSubscriptions": Check(
        lambda c: c.subscriptionExpiryCheckIntervalInMinutes * 60_000, inactive_subscriptions.check,
        inactive_subscriptions.next_effect,
    ),
    "inactiveTopics": Check(
        inactive_topics.interval, inactivity.check, inactivity.next_effect, inactivity.skipped, inactivity.deletes,
    ),
    "compaction": Check(
        lambda c: c.brokerServiceCompactionMonitorIntervalInSeconds * 1000, compactor.check, compactor.next_effect,
    ),
}  # fmt: skip
"""The checks by name. Those that are due at the same time run in this order. What a check does stands in its module, beside when it
next does so, and an explanation of that, from the same conditions. The flush of cursors and rollover explain nothing: nobody asks."""


def is_idle(ctx: Context, topic: PersistentTopic) -> bool:
    """Can no periodic check change anything until a command, a policy or the configuration touches the topic?"""
    return (
        not topic.cursors
        and len(topic.ledger.ledgers) == 1
        and topic.oldest is None
        and inactivity.next_effect(ctx, topic) == NEVER
        and topic.dedup.inactive_since() is None
        and topic.short_form.first() is None
        and not (topic.producers and ctx.policies_of(topic).destination_storage_quota.value.limitSize == 0)
        and not (ledger_rollover.closes_inactive(ctx) and topic.ledger.current_entries)
        and compactor.next_effect(ctx, topic) == NEVER
    )


def takes_only_snapshots(ctx: Context, topic: PersistentTopic) -> bool:
    """Whether checks have no effect on a topic but snapshots of its sequence ids, as long as nothing but publishes of its producers
    happens there. Before its producers are purged, that is."""
    return not (
        topic.subscriptions
        or topic.oldest is not None
        or not topic.producers
        or len(topic.ledger.ledgers) > 1
        or ledger_rollover.closes_inactive(ctx)
        or ctx.policies_of(topic).destination_storage_quota.value.limitSize >= 0
        or cursor_flush.holds_back(topic)
        or ctx.policies_of(topic).compactionThreshold > 0
    )


class Rounds:
    """The times of the checks' rounds under one configuration. Times are in ms."""

    def __init__(self, config: ServiceConfiguration, origin: int) -> None:
        """`origin`: the time of the partition's first record. −1: there was none, so no round is due."""
        self._config, self._origin = config, origin
        intervals = ((check, int(check.interval(config))) for check in CHECKS.values())
        self._checks = [(check, interval) for check, interval in intervals if interval > 0 and origin >= 0]
        self._between = (NEVER, NEVER)  # a time, and the first round after it

    def first_after(self, time: int) -> int:
        """The first round of any check after `time`, or `NEVER`."""
        since, until = self._between
        if not since <= time < until:
            until = min((self._next(interval, time) for _, interval in self._checks), default=NEVER)
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
        soonest = NEVER
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
