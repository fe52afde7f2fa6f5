"""Backlog quotas: what happens when a backlog is too large or too old (mirrors `BacklogQuotaManager`;
docs/rules/quotas.md §1–§8), and why nothing happens."""

from typing import Literal

import msgspec

from schemas.effects import Evicted
from streaming.broker.context import NEVER, Context
from streaming.broker.dispatch.verdict import Verdict
from streaming.broker.errors import BrokerError
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent.cleanup.message_expiry import expire_by_age, next_by_age
from streaming.broker.persistent.cleanup.trimming import move_cursor
from streaming.broker.persistent.publish import deduplication_snapshots
from streaming.broker.persistent.topic import OldestPosition, PersistentTopic, Reason
from streaming.broker.policies.hierarchy import BacklogQuota, Effective, QuotaType
from streaming.broker.position import Position
from streaming.broker.topic import producing, registration

EVICTION_TARGET = 0.9
"""Eviction stops at this fraction of the limit."""

QuotaState = Literal["no limit", "within its limit", "exceeded", "not known"]
"""``not known``: of a cluster whose stats and policies don't tell."""

NO_LIMIT: dict[QuotaType, str] = {
    "destination_storage": "a negative limit is none",
    "message_age": "a limit of 0 or less is none",
}
WITHIN: dict[QuotaType, str] = {
    "destination_storage": "the backlog of the slowest cursor is smaller",
    "message_age": "the oldest unacknowledged entry is younger",
}


class Quota(msgspec.Struct):
    """A backlog quota: bytes for `destination_storage`, ms for `message_age`. `used`: None if the age is not known.

    `evicts`: whether the check would move a cursor now.
    """

    type: QuotaType
    policy: str
    level: str
    limit: int
    used: int | None
    headroom: int | None
    state: QuotaState
    evicts: bool
    text: str


class Eviction(msgspec.Struct):
    """What a check takes from a subscription: entries, and its mark-delete position before and after."""

    subscription: str
    entries: int
    before: str
    after: str
    cause: str


class Backlog(msgspec.Struct):
    """The backlog of a subscription: entries, bytes, and when its first unacknowledged message was published (ms). None: not known."""

    subscription: str
    entries: int
    size: int | None
    oldest: int | None


class Quotas(msgspec.Struct):
    """Why the backlog quotas of a topic have evicted nothing more, at `clock` (ms).

    `slowest`: the cursor whose backlog counts, and its mark-delete position. `oldest`: the time of the oldest unacknowledged
    entry as the check knows it (ms). `next_check`, `unchecked`: see `trimming.Retention`. `evicts`: what leaves the backlog by
    the end of the next check if no command comes before; `disconnects`: the producers that it closes.

    Of a cluster's stats only: `backlogs`, the largest ones; `unknown`: what can't be concluded, as the next check, and why. `to_do`: what
    to do about it. `sampled`: see `PersistentTopic.is_sampled`.
    """

    topic: str
    clock: int
    slowest: str | None
    mark_delete: str | None
    oldest: int | None
    next_check: int | None
    unchecked: str | None
    quotas: list[Quota]
    evicts: list[Eviction]
    disconnects: list[str]
    backlogs: list[Backlog] = []
    unknown: list[str] = []
    to_do: list[str] = []
    sampled: bool = False


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic (§2)."""
    topic.oldest = _oldest_position(ctx, topic)
    if (exceeded := _exceeded(ctx, topic, topic.oldest)) is not None:
        _act(ctx, topic, *exceeded)


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """When the oldest entry changes or exceeds the quota of age, or when an exceeded quota has an effect."""
    oldest = _oldest_position(ctx, topic)
    if oldest != topic.oldest:
        return ctx.clock
    if (exceeded := _exceeded(ctx, topic, oldest)) is not None:
        return _next_act(ctx, topic, *exceeded)
    if _passes_over(ctx, topic):
        return NEVER
    return _time_exceeded_at(oldest, ctx.policies_of(topic).message_age_quota.value)


def skipped(ctx: Context, topic: PersistentTopic, rounds: int) -> None:
    """Count the evictions of periodic checks that evict nothing, as if they had run: `rounds` up to now."""
    exceeded = _exceeded(ctx, topic, topic.oldest)
    if exceeded is not None and evicts(exceeded[1].value.policy):
        _count(topic, exceeded[0], rounds)


def _exceeded(
    ctx: Context, topic: PersistentTopic, oldest: OldestPosition | None
) -> tuple[QuotaType, Effective[BacklogQuota]] | None:
    """The quota on which the check acts: first that of size, then that of age if the size is within its quota. None: on none."""
    if _passes_over(ctx, topic):
        return None
    policies = ctx.policies_of(topic)
    if _size_exceeded(topic, policies.destination_storage_quota.value):
        return "destination_storage", policies.destination_storage_quota
    if _time_exceeded(ctx, oldest, policies.message_age_quota.value):
        return "message_age", policies.message_age_quota
    return None


def _passes_over(ctx: Context, topic: PersistentTopic) -> bool:
    return topic.fenced and ctx.config.backlogQuotaSkipsFencedTopics


def evicts(policy: str) -> bool:
    """Whether a quota of this policy evicts. The others block producers."""
    return policy == "consumer_backlog_eviction"


def is_limit(type_: QuotaType, limit: int) -> bool:
    """Whether the limit of a quota is one, or means that there is none."""
    return limit >= 0 if type_ == "destination_storage" else limit > 0


def exceeds(type_: QuotaType, used: int, limit: int) -> bool:
    """Whether what is used, bytes or ms, exceeds a limit of the same unit: bytes do when they reach it."""
    return used >= limit if type_ == "destination_storage" else used > limit


def _size_exceeded(topic: PersistentTopic, quota: BacklogQuota) -> bool:
    """Whether the backlog of the slowest cursor has reached the quota's bytes. A negative limit: never."""
    limit = quota.limitSize
    return is_limit("destination_storage", limit) and exceeds(
        "destination_storage", topic.backlog_size(), limit
    )


def _time_exceeded(ctx: Context, oldest: OldestPosition | None, quota: BacklogQuota) -> bool:
    """Whether the oldest unacked entry is older than the quota's seconds. A limit of 0 or less: never."""
    return _time_exceeded_at(oldest, quota) <= ctx.clock


def _time_exceeded_at(oldest: OldestPosition | None, quota: BacklogQuota) -> int:
    if not is_limit("message_age", quota.limitTime) or oldest is None:
        return NEVER
    return oldest.timestamp + quota.limitTime * 1000 + 1


def _oldest_position(ctx: Context, topic: PersistentTopic) -> OldestPosition | None:
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


def check_producer_creation(ctx: Context, topic: PersistentTopic) -> None:
    """Raise `BrokerError` for a new producer while a quota that blocks producers is exceeded (§7)."""
    policies = ctx.policies_of(topic)
    for type_, effective in (
        ("destination_storage", policies.destination_storage_quota),
        ("message_age", policies.message_age_quota),
    ):
        quota = effective.value
        if evicts(quota.policy):
            continue
        if type_ == "destination_storage":
            exceeded = _size_exceeded(topic, quota)
        else:
            if not is_limit("message_age", quota.limitTime):
                continue
            topic.oldest = _oldest_position(ctx, topic)
            exceeded = _time_exceeded(ctx, topic.oldest, quota)
        if exceeded:
            suffix = "Error" if quota.policy == "producer_request_hold" else "Exception"
            reason = "Cannot create producer on topic with backlog quota exceeded"
            raise BrokerError(f"ProducerBlockedQuotaExceeded{suffix}", reason)


def _act(ctx: Context, topic: PersistentTopic, type_: QuotaType, effective: Effective[BacklogQuota]) -> None:
    quota = effective.value
    limit = f"{quota.limitSize} B" if type_ == "destination_storage" else f"{quota.limitTime} s"
    policy = f"{quota.policy} {type_} {limit} ({effective.level})"
    if evicts(quota.policy):
        _count(topic, type_, 1)
        if type_ == "destination_storage":
            _evict_by_size(ctx, topic, quota.limitSize, policy)
        else:
            _evict_by_time(ctx, topic, quota.limitTime, policy)
        return
    if _spares_producers(ctx, topic):
        deduplication_snapshots.check(ctx, topic)
        return
    for producer in list(topic.producers.values()):
        registration.disconnect(ctx, topic, producer, f"backlog quota exceeded: {policy}")


def _next_act(
    ctx: Context, topic: PersistentTopic, type_: QuotaType, effective: Effective[BacklogQuota]
) -> int:
    """When acting on an exceeded quota has an effect (ms)."""
    if evicts(effective.value.policy):
        return _next_eviction(ctx, topic, type_, effective.value)
    if _spares_producers(ctx, topic):
        return deduplication_snapshots.next_effect(ctx, topic)
    return ctx.clock if topic.producers else NEVER


def _next_eviction(ctx: Context, topic: PersistentTopic, type_: QuotaType, quota: BacklogQuota) -> int:
    """When an exceeded quota that evicts first moves a cursor (ms)."""
    if type_ == "destination_storage":
        to = _over_size(ctx, topic, quota.limitSize, topic.slowest_cursor())
        return NEVER if to is None else ctx.clock
    if ctx.config.preciseTimeBasedBacklogQuotaCheck:
        seconds = _target(quota.limitTime)
        cursors = (topic.cursors[name] for name in topic.known_subscriptions())
        return min((next_by_age(ctx, topic, cursor, seconds) for cursor in cursors), default=NEVER)
    found = over_age(topic, quota.limitTime, topic.slowest_cursor())
    return NEVER if found is None else found[0]


def _spares_producers(ctx: Context, topic: PersistentTopic) -> bool:
    """Whether a quota that blocks producers takes a snapshot instead of closing them in a round (§6): the slowest cursor is that
    of deduplication."""
    slowest = topic.slowest_cursor() if ctx.config.backlogQuotaSparesProducersForDedupCursor else None
    return slowest is not None and slowest.name == DEDUP_CURSOR


def _count(topic: PersistentTopic, type_: QuotaType, evictions: int) -> None:
    if type_ == "destination_storage":
        topic.counters.size_evictions += evictions
    else:
        topic.counters.time_evictions += evictions


def _evict_by_size(ctx: Context, topic: PersistentTopic, limit: int, policy: str) -> None:
    """Skip entries at the slowest cursor, repeatedly, in proportion to the bytes above 0.9 of the limit (§4)."""
    target, previous = _target(limit), None
    slowest = _Slowest(topic)
    while (cursor := slowest.first()) is not None and cursor is not previous:
        position = _over_size(ctx, topic, limit, cursor)
        if position is None:
            return
        size = topic.ledger.backlog_size_from(cursor.mark_delete)
        reason = Reason(Evicted, f"backlog {size} B over its quota, down to {target} B", policy)
        move_cursor(ctx, topic, cursor, reason, cursor.move, topic.ledger, position, {})
        previous = cursor


class _Slowest:
    """The slowest cursor of a topic, for eviction, which moves one after the other forward (mirrors `ManagedCursorContainer`).

    quirk: of cursors at the same position it is the one at the top of Pulsar's heap. So one that was moved to where others are stays
    the slowest, and eviction ends. Before anything moves, it is the oldest one, as for `PersistentTopic.slowest_cursor`.
    """

    def __init__(self, topic: PersistentTopic) -> None:
        self._heap: list[ManagedCursor] = []
        for cursor in topic.cursors.values():
            if cursor.durable:
                self._add(cursor)

    def first(self) -> ManagedCursor | None:
        """The slowest cursor. Only the one that this gave before may have moved since."""
        self._sift_down()
        return self._heap[0] if self._heap else None

    def _add(self, cursor: ManagedCursor) -> None:
        heap = self._heap
        at = len(heap)
        heap.append(cursor)
        while at > 0 and cursor.key < heap[parent := (at - 1) // 2].key:
            heap[at], at = heap[parent], parent
        heap[at] = cursor

    def _sift_down(self) -> None:
        heap, at = self._heap, 0
        while (left := 2 * at + 1) < len(heap):
            right = min(left + 1, len(heap) - 1)
            lower = left if heap[left].key < heap[right].key or heap[at].key <= heap[right].key else right
            if heap[at].key <= heap[lower].key:
                return
            heap[at], heap[lower] = heap[lower], heap[at]
            at = lower


def _over_size(
    ctx: Context, topic: PersistentTopic, limit: int, cursor: ManagedCursor | None
) -> Position | None:
    """Where size eviction moves the slowest cursor to. None: it evicts nothing (more)."""
    if cursor is None:
        return None
    target, ledger = _target(limit), topic.ledger
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
        expire_by_age(ctx, topic, topic.known_subscriptions(), _target(limit), reason)
        return
    slowest = _Slowest(topic)
    while (cursor := slowest.first()) is not None:
        found = over_age(topic, limit, cursor)
        if found is None or found[0] > ctx.clock:
            return
        position = found[1]
        reason = Reason(Evicted, "the ledger's entries are over their age quota", policy)
        move_cursor(ctx, topic, cursor, reason, cursor.move, topic.ledger, position, {})


def _target(limit: int) -> int:
    """How far eviction goes down: to so many bytes, or, if precise, to an age of so many seconds (0: it evicts nothing)."""
    return int(EVICTION_TARGET * limit)


def over_age(topic: PersistentTopic, limit: int, cursor: ManagedCursor | None) -> tuple[int, Position] | None:
    """From when on (ms) and where to age eviction, if not precise, moves the slowest cursor over a whole ledger. None: its ledger is
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
    return (0 if info is None else info.timestamp + limit * 1000 + 1), position


# -- why quotas have evicted nothing -----------------------------------------------------------------------------------


def explain(ctx: Context, topic: PersistentTopic) -> Quotas:
    """What the topic's backlog quotas say. `next_check`, `evicts` and `disconnects` are left to the caller."""
    policies, slowest = ctx.policies_of(topic), topic.slowest_cursor()
    oldest = _oldest_position(ctx, topic)
    unchecked = None
    if _passes_over(ctx, topic):
        unchecked = "the topic is fenced after a failed write: the check passes it over"
    elif not ctx.config.backlogQuotaCheckEnabled:
        unchecked = "backlogQuotaCheckEnabled is false: quotas are checked only when a producer connects"
    size = _size_quota(ctx, topic, policies.destination_storage_quota)
    age_quota = policies.message_age_quota
    age = _age_quota(ctx, topic, age_quota, None if oldest is None else ctx.clock - oldest.timestamp)
    if _time_exceeded(ctx, oldest, age_quota.value):
        age.state = "exceeded"
        if size.state == "exceeded":
            age.text = "the check does not come to it: the quota of size, which goes first, is exceeded, too"
        else:
            age.evicts, age.text = _age_effect(ctx, topic, age_quota.value)
    return Quotas(
        topic=topic.name,
        sampled=topic.is_sampled,
        clock=ctx.clock,
        slowest=None if slowest is None else slowest.name,
        mark_delete=None if slowest is None else str(slowest.mark_delete),
        oldest=None if oldest is None else oldest.timestamp,
        next_check=None,
        unchecked=unchecked,
        quotas=[size, age],
        evicts=[],
        disconnects=[],
    )


def blocking(found: Quotas) -> list[Verdict]:
    """The exceeded quotas that refuse producers."""
    return [
        producing.quota_blocks(each.type, each.policy, each.level, figures(each), found.slowest)
        for each in found.quotas
        if each.state == "exceeded" and each.policy in ("producer_request_hold", "producer_exception")
    ]


def figures(quota: Quota) -> str:
    """What a quota's backlog is, and may be."""
    if quota.type == "destination_storage":
        return f"used {quota.used} bytes, the limit is {quota.limit} bytes"
    used = "unknown" if quota.used is None else f"{quota.used / 1000:g} s"
    return f"used {used}, the limit is {quota.limit / 1000:g} s"


def _size_quota(ctx: Context, topic: PersistentTopic, effective: Effective[BacklogQuota]) -> Quota:
    quota, used = effective.value, topic.backlog_size()
    limited = is_limit("destination_storage", quota.limitSize)
    found = Quota(
        type="destination_storage",
        policy=quota.policy,
        level=effective.level,
        limit=quota.limitSize,
        used=used,
        headroom=quota.limitSize - used if limited else None,
        state="within its limit" if limited else "no limit",
        evicts=False,
        text=WITHIN["destination_storage"] if limited else NO_LIMIT["destination_storage"],
    )
    if _size_exceeded(topic, quota):
        found.state = "exceeded"
        if not evicts(quota.policy):
            found.text = _blocks(ctx, topic, quota)
        elif _next_eviction(ctx, topic, "destination_storage", quota) <= ctx.clock:
            found.evicts, found.text = (
                True,
                "not checked yet: the next check evicts down to nine tenths of the limit",
            )
        elif topic.slowest_cursor() is None:
            found.text = "there is nothing to evict: no durable subscription has a backlog"
        else:
            found.text = (
                "there is nothing to evict: the excess is less than one entry of the slowest cursor's backlog"
            )
    return found


def _age_quota(
    ctx: Context, topic: PersistentTopic, effective: Effective[BacklogQuota], used: int | None
) -> Quota:
    quota = effective.value
    limit, limited = quota.limitTime * 1000, is_limit("message_age", quota.limitTime)
    text = WITHIN["message_age"]
    if not limited:
        text = NO_LIMIT["message_age"]
    elif used is None and topic.backlog() and not ctx.config.preciseTimeBasedBacklogQuotaCheck:
        text = (
            "the age is that of the ledger's end, and the ledger of the oldest unacknowledged entry is open "
            "(preciseTimeBasedBacklogQuotaCheck is false)"
        )
    elif used is None:
        text = "no entry is unacknowledged"
    return Quota(
        type="message_age",
        policy=quota.policy,
        level=effective.level,
        limit=limit,
        used=used,
        headroom=None if not limited or used is None else limit - used,
        state="within its limit" if limited else "no limit",
        evicts=False,
        text=text,
    )


def _age_effect(ctx: Context, topic: PersistentTopic, quota: BacklogQuota) -> tuple[bool, str]:
    """Whether an exceeded quota of age evicts, and why not."""
    if not evicts(quota.policy):
        return False, _blocks(ctx, topic, quota)
    if _next_eviction(ctx, topic, "message_age", quota) <= ctx.clock:
        return True, "not checked yet: the next check evicts what is too old"
    nothing = "it evicts whole closed ledgers, and the slowest cursor's is open or was closed too recently"
    if ctx.config.preciseTimeBasedBacklogQuotaCheck:
        seconds = _target(quota.limitTime)
        nothing = f"it expires what is older than {seconds} s, nine tenths of the limit in whole seconds (0: nothing)"
    return False, f"there is nothing to evict: {nothing}"


def _blocks(ctx: Context, topic: PersistentTopic, quota: BacklogQuota) -> str:
    if _spares_producers(ctx, topic):
        return f"{quota.policy} evicts nothing, and the slowest cursor is that of deduplication: the check takes a snapshot"
    return closes_producers(quota.policy)


def closes_producers(policy: str) -> str:
    """What a policy does that blocks producers."""
    return f"{policy} evicts nothing: the check closes the topic's producers, and new ones are refused"
