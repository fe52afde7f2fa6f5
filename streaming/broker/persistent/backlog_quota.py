"""Backlog quotas: what happens when a backlog is too large or too old (mirrors `BacklogQuotaManager`;
docs/rules/quotas.md §1–§8)."""

import heapq

from schemas.effects import Evicted
from streaming.broker.context import Context
from streaming.broker.errors import BrokerError
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent import deduplication_snapshots
from streaming.broker.persistent.message_expiry import expire_by_age
from streaming.broker.persistent.topic import OldestPosition, PersistentTopic, Reason
from streaming.broker.persistent.trimming import move_cursor
from streaming.broker.policies.hierarchy import BacklogQuota, Effective, QuotaType
from streaming.broker.position import Position
from streaming.broker.producer import registration

EVICTION_TARGET = 0.9
"""Eviction stops at this fraction of the limit."""


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic (§2): first the size, then the age if the size is within its quota."""
    topic.oldest = oldest_position(ctx, topic)
    if topic.fenced and ctx.config.backlogQuotaSkipsFencedTopics:
        return
    policies = ctx.policies_of(topic)
    size, age = policies.destination_storage_quota, policies.message_age_quota
    if size_exceeded(topic, size.value):
        _act(ctx, topic, "destination_storage", size)
    elif time_exceeded(ctx, topic.oldest, age.value):
        _act(ctx, topic, "message_age", age)


def size_exceeded(topic: PersistentTopic, quota: BacklogQuota) -> bool:
    """Whether the backlog of the slowest cursor has reached the quota's bytes. A negative limit: never."""
    return quota.limitSize >= 0 and topic.backlog_size() >= quota.limitSize


def time_exceeded(ctx: Context, oldest: OldestPosition | None, quota: BacklogQuota) -> bool:
    """Whether the oldest unacked entry is older than the quota's seconds. A limit of 0 or less: never."""
    if quota.limitTime <= 0 or oldest is None:
        return False
    return ctx.clock > oldest.timestamp + quota.limitTime * 1000


def oldest_position(ctx: Context, topic: PersistentTopic) -> OldestPosition | None:
    """The oldest unacked entry and its time (§3), which the caller must keep. If not precise, the time is when its
    ledger closed."""
    precise = ctx.config.preciseTimeBasedBacklogQuotaCheck
    ledger = topic.ledger
    if not any(topic.cursors[name].backlog(ledger, precise=precise) for name in topic.subscriptions):
        return None
    cursor, known = topic.slowest_cursor(), topic.oldest
    if cursor is None:
        return None
    position = cursor.key
    if known is not None and known.position == position and position >= ledger.first_position():
        return OldestPosition(position, cursor.name, known.timestamp)
    since = _oldest_timestamp(ctx, topic, position, precise=precise)
    if since is not None:
        return OldestPosition(position, cursor.name, since)
    return known if ctx.config.keepOldestPositionWhenUnknown else None


def _oldest_timestamp(
    ctx: Context, topic: PersistentTopic, position: Position, *, precise: bool
) -> int | None:
    ledger = topic.ledger
    if precise:
        following = ledger.next_valid(position)
        return (
            ctx.entries.get(topic.name, following).timestamp if following <= ledger.last_confirmed else None
        )
    if position.ledger == ledger.current:
        return None
    if position.ledger not in ledger.ledgers:
        position = ledger.next_valid(position)
    info = ledger.ledgers.get(position.ledger)
    if info is not None and position.entry + 1 >= info.entries:
        info = ledger.ledgers.get(ledger.next_valid(position).ledger)
    return info.timestamp if info is not None and info.timestamp > 0 else None


def count_skipped(ctx: Context, topic: PersistentTopic, rounds: int) -> None:
    """Count the evictions of periodic checks that evict nothing, as if they had run: `rounds` up to now."""
    if topic.fenced and ctx.config.backlogQuotaSkipsFencedTopics:
        return
    policies = ctx.policies_of(topic)
    size, age = policies.destination_storage_quota.value, policies.message_age_quota.value
    if size_exceeded(topic, size):
        if size.policy == "consumer_backlog_eviction":
            topic.counters.size_evictions += rounds
    elif age.policy == "consumer_backlog_eviction" and time_exceeded(ctx, topic.oldest, age):
        topic.counters.time_evictions += rounds


def check_producer_creation(ctx: Context, topic: PersistentTopic) -> None:
    """Raise `BrokerError` for a new producer while a quota that blocks producers is exceeded (§7)."""
    policies = ctx.policies_of(topic)
    for type_, effective in (
        ("destination_storage", policies.destination_storage_quota),
        ("message_age", policies.message_age_quota),
    ):
        quota = effective.value
        if quota.policy == "consumer_backlog_eviction":
            continue
        if type_ == "destination_storage":
            exceeded = size_exceeded(topic, quota)
        else:
            if quota.limitTime <= 0:
                continue
            topic.oldest = oldest_position(ctx, topic)
            exceeded = time_exceeded(ctx, topic.oldest, quota)
        if exceeded:
            suffix = "Error" if quota.policy == "producer_request_hold" else "Exception"
            raise BrokerError(
                f"ProducerBlockedQuotaExceeded{suffix}", f"the {type_} quota of the topic is exceeded"
            )


def _act(ctx: Context, topic: PersistentTopic, type_: QuotaType, effective: Effective[BacklogQuota]) -> None:
    quota = effective.value
    limit = f"{quota.limitSize} B" if type_ == "destination_storage" else f"{quota.limitTime} s"
    policy = f"{quota.policy} {type_} {limit} ({effective.level})"
    if quota.policy == "consumer_backlog_eviction":
        if type_ == "destination_storage":
            topic.counters.size_evictions += 1
            _evict_by_size(ctx, topic, quota.limitSize, policy)
        else:
            topic.counters.time_evictions += 1
            _evict_by_time(ctx, topic, quota.limitTime, policy)
        return
    slowest = topic.slowest_cursor() if ctx.config.backlogQuotaSparesProducersForDedupCursor else None
    if slowest is not None and slowest.name == DEDUP_CURSOR:
        deduplication_snapshots.timed_snapshot(ctx, topic)
        return  # without disconnecting producers in this round (§6)
    for producer in list(topic.producers.values()):
        registration.disconnect(ctx, topic, producer, f"backlog quota exceeded: {policy}")


def _evict_by_size(ctx: Context, topic: PersistentTopic, limit: int, policy: str) -> None:
    """Skip entries at the slowest cursor, repeatedly, in proportion to the bytes above 0.9 of the limit (§4)."""
    target, previous = int(EVICTION_TARGET * limit), None
    slowest = _Slowest(topic)
    while (cursor := slowest.first()) is not None and cursor is not previous:
        position = over_size(ctx, topic, limit, cursor)
        if position is None:
            return
        size = topic.ledger.backlog_size_from(cursor.mark_delete)
        reason = Reason(Evicted, f"backlog {size} B over its quota, down to {target} B", policy)
        move_cursor(ctx, topic, cursor, reason, cursor.move, topic.ledger, position, {})
        previous = cursor


class _Slowest:
    """The slowest cursor of a topic, while its cursors only move forward: for eviction, which moves one after the other."""

    def __init__(self, topic: PersistentTopic) -> None:
        self._heap = [
            (cursor.key, age, cursor) for age, cursor in enumerate(topic.cursors.values()) if cursor.durable
        ]
        heapq.heapify(self._heap)

    def first(self) -> ManagedCursor | None:
        """What `PersistentTopic.slowest_cursor` gives."""
        heap = self._heap
        while heap and (key := heap[0][2].key) != heap[0][0]:
            heapq.heapreplace(heap, (key, *heap[0][1:]))
        return heap[0][2] if heap else None


def over_size(
    ctx: Context, topic: PersistentTopic, limit: int, cursor: ManagedCursor | None
) -> Position | None:
    """Where size eviction moves the slowest cursor to. None: it evicts nothing (more)."""
    if cursor is None:
        return None
    target, ledger = int(EVICTION_TARGET * limit), topic.ledger
    size = ledger.backlog_size_from(cursor.mark_delete)
    if size <= target:
        return None
    skip = int((size - target) * float(cursor.backlog(ledger)) / size)
    if ctx.config.backlogQuotaSkipByFactor:
        skip = int((size - EVICTION_TARGET * limit) / size * cursor.backlog(ledger))
    if skip == 0:
        return None
    position = cursor.position_after(ledger, skip, exclude_acked=False)
    return position if position > cursor.mark_delete else None


def _evict_by_time(ctx: Context, topic: PersistentTopic, limit: int, policy: str) -> None:
    """Drop entries older than the limit (§5): single entries if precise, else whole closed ledgers."""
    if ctx.config.preciseTimeBasedBacklogQuotaCheck:
        reason = Reason(Evicted, "message age", policy, by_expiry=True)
        expire_by_age(ctx, topic, topic.known_subscriptions(), int(EVICTION_TARGET * limit), reason)
        return
    slowest = _Slowest(topic)
    while (cursor := slowest.first()) is not None:
        found = over_age(topic, limit, cursor)
        if found is None or found[0] >= ctx.clock:
            return
        position = found[1]
        reason = Reason(Evicted, "the ledger's entries are over their age quota", policy)
        move_cursor(ctx, topic, cursor, reason, cursor.move, topic.ledger, position, {})


def over_age(topic: PersistentTopic, limit: int, cursor: ManagedCursor | None) -> tuple[int, Position] | None:
    """When (ms) and where to age eviction, if not precise, moves the slowest cursor over a whole ledger. None: its ledger is
    open, or the topic has nothing after it."""
    ledger = topic.ledger
    if cursor is None:
        return None
    info = ledger.ledgers.get(cursor.mark_delete.ledger)
    following = ledger.next_ledger(cursor.mark_delete.ledger)
    if following is None or (info is not None and not info.timestamp):
        return None
    position = Position(following, -1)
    if cursor.is_past_the_end(ledger, position):
        return None
    return (0 if info is None else info.timestamp + limit * 1000), position
