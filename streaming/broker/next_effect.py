"""The earliest time (ms) at which a periodic check can have an effect on a topic in its present state.

After a long silence, the clock has to pass thousands of rounds of checks. Until this time they have no effect but the
time of the last round, so `Broker._advance` skips the others. Each function mirrors the check of the same name in
`streaming.broker.periodic_checks`. A time that is not after the clock means "at once".
"""

from streaming.broker.context import Context
from streaming.broker.ledger.managed_ledger import MEGABYTE
from streaming.broker.persistent.backlog_quota import oldest_position, size_exceeded, time_exceeded
from streaming.broker.persistent.message_deduplication import DEDUP_CURSOR
from streaming.broker.persistent.message_expiry import (
    CAUGHT_UP_FACTOR,
    MINIMUM_BACKLOG_FOR_EXPIRY_CHECK,
    closed_before,
)
from streaming.broker.persistent.message_finder import find_newest_before
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.persistent.trimming import consumed_up_to
from streaming.broker.policies.hierarchy import BacklogQuota, RetentionPolicies
from streaming.broker.position import Position

NEVER = 1 << 62
"""The check has no effect before the next command."""


def cursor_flush(ctx: Context, topic: PersistentTopic) -> int:
    """At once if a cursor has changes that are not persisted."""
    return NEVER if all(cursor.persisted is None for cursor in topic.cursors.values()) else ctx.clock


def message_expiry(ctx: Context, topic: PersistentTopic) -> int:
    """When the next entry of a subscription exceeds the TTL."""
    seconds = ctx.policies_of(topic).messageTTL.value
    if seconds <= 0 or not topic.subscriptions:
        return NEVER
    if not ctx.config.messageExpirySharedPosition:
        return min(_subscription_expiry(ctx, topic, each, seconds) for each in topic.subscriptions.values())
    if topic.slowest_cursor() is None:
        return NEVER
    least = min(topic.cursors[name].mark_delete for name in topic.subscriptions)
    return _search(ctx, topic, seconds, None, least)


def _subscription_expiry(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, seconds: int
) -> int:
    ledger, cursor = topic.ledger, topic.cursors[subscription.name]
    backlog = cursor.backlog(ledger)
    if backlog == 0:
        return NEVER
    if subscription.consumers and backlog < MINIMUM_BACKLOG_FOR_EXPIRY_CHECK:
        oldest = cursor.position_after(ledger, 1, exclude_acked=False)
        if oldest.ledger not in ledger.ledgers:
            return NEVER
        due = ctx.entries.get(topic.name, oldest).timestamp + int(seconds * CAUGHT_UP_FACTOR) * 1000 + 1
        if due > ctx.clock:
            return due
    flips: list[int] = []
    limit = ctx.clock - seconds * 1000
    end = closed_before(ctx, topic, cursor.mark_delete, limit, flips)
    if end is not None and end > cursor.mark_delete:
        return ctx.clock
    start = ledger.next_valid(cursor.mark_delete) if ctx.config.messageExpirySearchActiveEntries else None
    searched = _search(ctx, topic, seconds, start, cursor.mark_delete)
    return min([searched, *(flip + seconds * 1000 for flip in flips)])


def _search(
    ctx: Context, topic: PersistentTopic, seconds: int, start: Position | None, mark_delete: Position
) -> int:
    """When a search for entries older than `seconds` can first find others than now."""
    flips: list[int] = []
    found = find_newest_before(ctx, topic, ctx.clock - seconds * 1000, start, flips)
    if found is not None and found > mark_delete:
        return ctx.clock
    return min(flips, default=NEVER - seconds * 1000) + seconds * 1000


def backlog_quota(ctx: Context, topic: PersistentTopic) -> int:
    """At once if a quota is exceeded, else when the oldest entry exceeds the quota of age."""
    if topic.fenced and ctx.config.backlogQuotaSkipsFencedTopics:
        return NEVER
    size = ctx.policies_of(topic).destination_storage_quota.value
    if size_exceeded(topic, size):
        return _exceeded(ctx, topic, size)
    age = ctx.policies_of(topic).message_age_quota.value
    oldest = oldest_position(ctx, topic)  # `topic.oldest` is only as new as the last check
    if time_exceeded(ctx, oldest, age):
        return _exceeded(ctx, topic, age)
    return NEVER if age.limitTime <= 0 or oldest is None else oldest.timestamp + age.limitTime * 1000 + 1


def _exceeded(ctx: Context, topic: PersistentTopic, quota: BacklogQuota) -> int:
    if quota.policy == "consumer_backlog_eviction" or topic.producers:
        return ctx.clock  # every round has an effect
    slowest = topic.slowest_cursor()
    if slowest is not None and slowest.name == DEDUP_CURSOR:
        return deduplication_snapshot(ctx, topic)
    return NEVER


def consumed_ledgers(ctx: Context, topic: PersistentTopic) -> int:
    """When an inactive ledger closes, or when retention lets a closed ledger go."""
    ledger, due = topic.ledger, NEVER
    timeout = ctx.config.managedLedgerInactiveLedgerRolloverTimeSeconds * 1000
    if timeout > 0 and ledger.current_entries and not topic.pending:
        due = ledger.last_add + timeout + 1
    retention = ctx.policies_of(topic).retention
    if ctx.config.retentionCheckEveryTopic or retention != (RetentionPolicies(), "broker"):
        due = min(due, _trimming(ctx, topic, retention.value))
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
    interval = ctx.policies_of(topic).deduplicationSnapshotInterval
    if topic.dedup.status != "Enabled" or interval <= 0:
        return NEVER
    if topic.ledger.last_confirmed <= topic.cursors[DEDUP_CURSOR].mark_delete:
        return NEVER
    return topic.dedup.last_snapshot + interval * 1000


def inactive_producers(ctx: Context, topic: PersistentTopic) -> int:
    """When deduplication forgets the first inactive producer."""
    if topic.dedup.status != "Enabled":
        return ctx.clock if topic.dedup.inactive else NEVER
    timeout = ctx.config.brokerDeduplicationProducerInactivityTimeoutMinutes * 60_000
    return min(topic.dedup.inactive.values(), default=NEVER) + timeout + 1


def inactive_subscriptions(ctx: Context, topic: PersistentTopic) -> int:
    """When the first subscription without consumers expires."""
    minutes = ctx.policies_of(topic).subscriptionExpirationTime
    unused = [each.last_active for each in topic.subscriptions.values() if not each.consumers]
    return NEVER if minutes <= 0 else min(unused, default=NEVER) + minutes * 60_000 + 1
