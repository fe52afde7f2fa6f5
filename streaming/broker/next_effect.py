"""The earliest time (ms) at which a periodic check can have an effect on a topic in its present state.

An effect is anything that a row or a later record can show, except for what `Check.skipped` makes up for. Until that time
no round of the check runs on the topic. Each function mirrors the check of the same name in
`streaming.broker.periodic_checks`. A time that is not after the clock means the next round. A time may be too early, but
only finitely often: as each message expires, say.
"""

from streaming.broker.context import Context
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import MEGABYTE
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent import inactivity
from streaming.broker.persistent.backlog_quota import (
    EVICTION_TARGET,
    oldest_position,
    over_age,
    over_size,
    size_exceeded,
    time_exceeded,
)
from streaming.broker.persistent.message_expiry import (
    CAUGHT_UP_FACTOR,
    MINIMUM_BACKLOG_FOR_EXPIRY_CHECK,
    closed_before,
)
from streaming.broker.persistent.message_finder import find_newest_before, find_newest_unacked_before
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.persistent.trimming import consumed_up_to, is_checked
from streaming.broker.policies.hierarchy import RetentionPolicies

NEVER = 1 << 62
"""The check has no effect before the next command."""


def takes_only_snapshots(ctx: Context, topic: PersistentTopic) -> bool:
    """Whether checks have no effect on a topic but snapshots of its sequence ids, as long as nothing but publishes of its producers
    happens there. Before `inactive_producers`, that is."""
    return not (
        topic.subscriptions
        or topic.oldest is not None
        or not topic.producers
        or len(topic.ledger.ledgers) > 1
        or ctx.config.managedLedgerInactiveLedgerRolloverTimeSeconds > 0
        or ctx.policies_of(topic).destination_storage_quota.value.limitSize >= 0
        or any(cursor.persisted is not None for cursor in topic.cursors.values())
    )


def snapshot_due(ctx: Context, topic: PersistentTopic) -> int:
    """When the next snapshot of a topic's sequence ids is due, if there are new ones."""
    interval = ctx.policies_of(topic).deduplicationSnapshotInterval
    if topic.dedup.status != "Enabled" or interval <= 0:
        return NEVER
    return topic.dedup.last_snapshot + interval * 1000


def cursor_flush(ctx: Context, topic: PersistentTopic) -> int:
    """At once if a cursor has changes that are not persisted."""
    return NEVER if all(cursor.persisted is None for cursor in topic.cursors.values()) else ctx.clock


def message_expiry(ctx: Context, topic: PersistentTopic) -> int:
    """When the next entry of a subscription exceeds the TTL."""
    seconds, names = ctx.policies_of(topic).messageTTL.value, topic.known_subscriptions()
    if seconds <= 0 or not names:
        return NEVER
    if not ctx.config.messageExpirySharedPosition:
        return min(_subscription_expiry(ctx, topic, topic.subscriptions[name], seconds) for name in names)
    if topic.slowest_cursor() is None:
        return NEVER
    flips: list[int] = []
    found = find_newest_before(ctx, topic, ctx.clock - seconds * 1000, flips)
    if found is not None and found > min(topic.cursors[name].mark_delete for name in names):
        return ctx.clock
    return min(flips, default=NEVER - seconds * 1000) + seconds * 1000


def _subscription_expiry(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, seconds: int
) -> int:
    ledger, cursor = topic.ledger, topic.cursors[subscription.name]
    backlog = cursor.backlog(ledger)
    if backlog == 0:
        return NEVER
    if subscription.consumers and backlog < MINIMUM_BACKLOG_FOR_EXPIRY_CHECK:
        oldest = cursor.position_after(ledger, 1, exclude_acked=False)
        if oldest.ledger not in ledger.ledgers or oldest.entry < 0:
            return NEVER
        due = ctx.entries.get(topic.name, oldest).timestamp + int(seconds * CAUGHT_UP_FACTOR) * 1000 + 1
        if due > ctx.clock:
            return due
    return expiry_by_age(ctx, topic, cursor, seconds)


def expiry_by_age(ctx: Context, topic: PersistentTopic, cursor: ManagedCursor, seconds: int) -> int:
    """When `message_expiry.expire_by_age` first moves the cursor."""
    if seconds == 0:
        return NEVER
    flips: list[int] = []
    limit = ctx.clock - seconds * 1000
    end = closed_before(ctx, topic, cursor.mark_delete, limit, flips)
    if end is not None and end > cursor.mark_delete:
        return ctx.clock
    if find_newest_unacked_before(ctx, topic, cursor, limit, flips) is not None:
        return ctx.clock
    return min(flips, default=NEVER - seconds * 1000) + seconds * 1000


def backlog_quota(ctx: Context, topic: PersistentTopic) -> int:
    """When the oldest entry changes or exceeds the quota of age, or when an exceeded quota has an effect."""
    oldest = oldest_position(ctx, topic)
    if oldest != topic.oldest:
        return ctx.clock
    if topic.fenced and ctx.config.backlogQuotaSkipsFencedTopics:
        return NEVER
    policies = ctx.policies_of(topic)
    size, age = policies.destination_storage_quota.value, policies.message_age_quota.value
    if size_exceeded(topic, size):
        if size.policy != "consumer_backlog_eviction":
            return _blocked_producers(ctx, topic)
        return NEVER if over_size(ctx, topic, size.limitSize, topic.slowest_cursor()) is None else ctx.clock
    if not time_exceeded(ctx, oldest, age):
        return NEVER if age.limitTime <= 0 or oldest is None else oldest.timestamp + age.limitTime * 1000 + 1
    if age.policy != "consumer_backlog_eviction":
        return _blocked_producers(ctx, topic)
    if ctx.config.preciseTimeBasedBacklogQuotaCheck:
        seconds = int(EVICTION_TARGET * age.limitTime)
        cursors = (topic.cursors[name] for name in topic.known_subscriptions())
        return min((expiry_by_age(ctx, topic, cursor, seconds) for cursor in cursors), default=NEVER)
    found = over_age(topic, age.limitTime, topic.slowest_cursor())
    return NEVER if found is None else found[0] + 1


def _blocked_producers(ctx: Context, topic: PersistentTopic) -> int:
    slowest = topic.slowest_cursor() if ctx.config.backlogQuotaSparesProducersForDedupCursor else None
    if slowest is not None and slowest.name == DEDUP_CURSOR:
        return deduplication_snapshot(ctx, topic)
    return ctx.clock if topic.producers else NEVER


def consumed_ledgers(ctx: Context, topic: PersistentTopic) -> int:
    """When an inactive ledger closes, or when retention lets a closed ledger go."""
    ledger, due = topic.ledger, NEVER
    timeout = ctx.config.managedLedgerInactiveLedgerRolloverTimeSeconds * 1000
    if timeout > 0 and ledger.current_entries and not topic.pending:
        due = ledger.last_add + timeout + 1
    if is_checked(ctx, topic):
        due = min(due, _trimming(ctx, topic, ctx.policies_of(topic).retention.value))
    return due


def _trimming(ctx: Context, topic: PersistentTopic, retention: RetentionPolicies) -> int:
    """When retention first allows the deletion of the oldest ledger."""
    ledger = topic.ledger
    oldest = next(iter(ledger.ledgers), ledger.current)
    if oldest >= consumed_up_to(ctx, topic):
        return NEVER
    info, minutes, megabytes = (
        ledger.ledgers[oldest],
        retention.retentionTimeInMinutes,
        retention.retentionSizeInMB,
    )
    over = megabytes >= 0 and ledger.total_size - info.size >= megabytes * MEGABYTE
    if over or (topic.slowest_cursor() is None and not ctx.config.retentionWithoutDurableCursor):
        return ctx.clock
    return NEVER if minutes < 0 else info.timestamp + minutes * 60_000 + 1


def deduplication_snapshot(ctx: Context, topic: PersistentTopic) -> int:
    """When the next snapshot of the sequence ids is due."""
    due = snapshot_due(ctx, topic)
    if due < NEVER and topic.ledger.last_confirmed <= topic.cursors[DEDUP_CURSOR].mark_delete:
        return NEVER
    return due


def inactive_producers(ctx: Context, topic: PersistentTopic) -> int:
    """When deduplication forgets the first inactive producer, or the first one of the short form leaves."""
    inactive, silent = topic.dedup.inactive_since(), topic.silent_since()
    if inactive is not None and topic.dedup.status != "Enabled":
        return ctx.clock
    timeout = ctx.config.brokerDeduplicationProducerInactivityTimeoutMinutes * 60_000
    return min((since for since in (inactive, silent) if since is not None), default=NEVER) + timeout + 1


def inactive_subscriptions(ctx: Context, topic: PersistentTopic) -> int:
    """When the first subscription without consumers expires."""
    unused = [each for each in topic.subscriptions.values() if not each.consumers]
    times = ((each.last_active, expires_after(ctx, topic, each)) for each in unused)
    return min([since + minutes * 60_000 + 1 for since, minutes in times if minutes > 0], default=NEVER)


READER_COMES_BACK = 360
"""A client whose reader was closed by a seek subscribes again at once. After so many minutes, its cursor goes (in Pulsar, only when the
topic is unloaded)."""


def expires_after(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> int:
    """For how many minutes a subscription may be without consumers, 0 or less: for ever."""
    minutes = ctx.policies_of(topic).subscriptionExpirationTime
    if subscription.durable:
        return minutes
    return min(minutes, READER_COMES_BACK) if minutes > 0 else READER_COMES_BACK


def inactive_topics(ctx: Context, topic: PersistentTopic) -> int:
    """When the topic is deleted because nobody uses it."""
    at = inactivity.deleted_at(ctx, topic)
    return NEVER if at is None else at
