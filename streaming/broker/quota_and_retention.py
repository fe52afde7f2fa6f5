"""Why a topic's ledgers are still there, and why its backlog quotas have evicted nothing.

The predicates are those of the checks themselves: `trimming`, `backlog_quota` and `next_effect`.
"""

from typing import Literal

import msgspec

from streaming.broker.context import Context
from streaming.broker.ledger.managed_ledger import MEGABYTE, LedgerInfo
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.next_effect import expiry_by_age
from streaming.broker.persistent.backlog_quota import (
    EVICTION_TARGET,
    oldest_position,
    over_age,
    over_size,
    size_exceeded,
    time_exceeded,
)
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.persistent.trimming import consumed_up_to, deletable, is_checked
from streaming.broker.policies.hierarchy import BacklogQuota, Effective, QuotaType

KeptBecause = Literal["open", "cursor", "retention", "older ledger", "not checked yet"]
"""Why a ledger is there. ``older ledger``: ledgers go oldest first, and retention keeps an older one."""


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
    check if no command comes before.
    """

    topic: str
    clock: int
    minutes: int
    megabytes: int
    level: str
    size: int
    next_check: int | None
    unchecked: str | None
    ledgers: list[KeptLedger]
    deletes: list[int]


QuotaState = Literal["no limit", "within its limit", "exceeded"]


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


class Quotas(msgspec.Struct):
    """Why the backlog quotas of a topic have evicted nothing more, at `clock` (ms).

    `slowest`: the cursor whose backlog counts, and its mark-delete position. `oldest`: the time of the oldest unacknowledged
    entry as the check knows it (ms). `next_check`, `unchecked`: see `Retention`. `evicts`: what leaves the backlog by the end of the
    next check if no command comes before; `disconnects`: the producers that it closes.
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


def explain_retention(ctx: Context, topic: PersistentTopic) -> Retention:
    """Why the topic's ledgers are there. `next_check`, `unchecked` and `deletes` are left to the caller."""
    effective = ctx.policies_of(topic).retention
    ledger, boundary = topic.ledger, consumed_up_to(ctx, topic)
    found = Retention(
        topic=topic.name,
        clock=ctx.clock,
        minutes=effective.value.retentionTimeInMinutes,
        megabytes=effective.value.retentionSizeInMB,
        level=effective.level,
        size=ledger.total_size,
        next_check=None,
        unchecked=None
        if is_checked(ctx, topic)
        else "retentionCheckEveryTopic is false, and no level sets a retention: only the end of a ledger and the move of a cursor "
        "delete ledgers",
        ledgers=[],
        deletes=[],
    )
    total, keeper = 0, None
    for id_, info in ledger.ledgers.items():
        total += info.size
        if id_ == ledger.current:
            entries, size, cursors, until = ledger.current_entries, ledger.current_size, list[str](), None
            reason: KeptBecause = "open"
            text = (
                "the last ledger of a terminated topic" if ledger.terminated else "messages are written to it"
            )
        else:
            entries, size, until = info.entries, info.size, None
            cursors = [
                each.name for each in topic.cursors.values() if each.durable and each.key.ledger <= id_
            ]
            if id_ >= boundary:
                reason, text = "cursor", _held(topic, cursors)
            elif keeper is not None:
                reason, text = "older ledger", f"ledgers go oldest first, and {keeper} stays"
            elif (cause := deletable(ctx, topic, info, total)) is not None:
                reason, text = "not checked yet", f"may go ({cause}), which the next check sees"
            else:
                reason, keeper = "retention", id_
                text, until = _retained(found, info, ledger.total_size - total)
        found.ledgers.append(
            KeptLedger(id_, entries, size, info.timestamp or None, reason, text, cursors, until)
        )
    return found


def _held(topic: PersistentTopic, cursors: list[str]) -> str:
    held = (f"{name} (mark-delete position {topic.cursors[name].mark_delete})" for name in cursors)
    return f"still needed by {', '.join(held)}"


def _retained(found: Retention, info: LedgerInfo, newer: int) -> tuple[str, int | None]:
    """Why retention keeps a consumed ledger, and until when. `newer`: the bytes of the ledgers after it."""
    limits = [
        "retention has no limit of time"
        if found.minutes < 0
        else f"it was closed less than {found.minutes} min ago",
        "and none of size"
        if found.megabytes < 0
        else f"and the {newer} bytes after it are less than {found.megabytes} MB ({found.megabytes * MEGABYTE} bytes)",
    ]
    until = None if found.minutes < 0 else info.timestamp + found.minutes * 60_000 + 1
    return f"consumed, but {' '.join(limits)} (retention of the {found.level})", until


def explain_quotas(ctx: Context, topic: PersistentTopic) -> Quotas:
    """What the topic's backlog quotas say. `next_check`, `evicts` and `disconnects` are left to the caller."""
    policies, slowest = ctx.policies_of(topic), topic.slowest_cursor()
    oldest = oldest_position(ctx, topic)
    unchecked = None
    if topic.fenced and ctx.config.backlogQuotaSkipsFencedTopics:
        unchecked = "the topic is fenced after a failed write: the check passes it over"
    elif not ctx.config.backlogQuotaCheckEnabled:
        unchecked = "backlogQuotaCheckEnabled is false: quotas are checked only when a producer connects"
    size = _size_quota(ctx, topic, policies.destination_storage_quota)
    age_quota = policies.message_age_quota
    age = _age_quota(ctx, topic, age_quota, None if oldest is None else ctx.clock - oldest.timestamp)
    if time_exceeded(ctx, oldest, age_quota.value):
        age.state = "exceeded"
        if size.state == "exceeded":
            age.text = "the check does not come to it: the quota of size, which goes first, is exceeded, too"
        else:
            age.evicts, age.text = _age_effect(ctx, topic, age_quota.value)
    return Quotas(
        topic=topic.name,
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


def _size_quota(ctx: Context, topic: PersistentTopic, effective: Effective[BacklogQuota]) -> Quota:
    quota, used = effective.value, topic.backlog_size()
    found = Quota(
        type="destination_storage",
        policy=quota.policy,
        level=effective.level,
        limit=quota.limitSize,
        used=used,
        headroom=None if quota.limitSize < 0 else quota.limitSize - used,
        state="no limit" if quota.limitSize < 0 else "within its limit",
        evicts=False,
        text="a negative limit is none"
        if quota.limitSize < 0
        else "the backlog of the slowest cursor is smaller",
    )
    if size_exceeded(topic, quota):
        found.state = "exceeded"
        if quota.policy != "consumer_backlog_eviction":
            found.text = _blocks(ctx, topic, quota)
        elif over_size(ctx, topic, quota.limitSize, topic.slowest_cursor()) is not None:
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
    limit = quota.limitTime * 1000
    text = "the oldest unacknowledged entry is younger"
    if limit <= 0:
        text = "a limit of 0 or less is none"
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
        headroom=None if limit <= 0 or used is None else limit - used,
        state="no limit" if limit <= 0 else "within its limit",
        evicts=False,
        text=text,
    )


def _age_effect(ctx: Context, topic: PersistentTopic, quota: BacklogQuota) -> tuple[bool, str]:
    """Whether an exceeded quota of age evicts, and why not."""
    if quota.policy != "consumer_backlog_eviction":
        return False, _blocks(ctx, topic, quota)
    if ctx.config.preciseTimeBasedBacklogQuotaCheck:
        seconds = int(EVICTION_TARGET * quota.limitTime)
        cursors = (topic.cursors[name] for name in topic.known_subscriptions())
        evicts = any(expiry_by_age(ctx, topic, cursor, seconds) <= ctx.clock for cursor in cursors)
        nothing = f"it expires what is older than {seconds} s, nine tenths of the limit in whole seconds (0: nothing)"
    else:
        found = over_age(topic, quota.limitTime, topic.slowest_cursor())
        evicts = found is not None and found[0] < ctx.clock
        nothing = (
            "it evicts whole closed ledgers, and the slowest cursor's is open or was closed too recently"
        )
    if evicts:
        return True, "not checked yet: the next check evicts what is too old"
    return False, f"there is nothing to evict: {nothing}"


def _blocks(ctx: Context, topic: PersistentTopic, quota: BacklogQuota) -> str:
    slowest = topic.slowest_cursor() if ctx.config.backlogQuotaSparesProducersForDedupCursor else None
    if slowest is not None and slowest.name == DEDUP_CURSOR:
        return f"{quota.policy} evicts nothing, and the slowest cursor is that of deduplication: the check takes a snapshot"
    return f"{quota.policy} evicts nothing: the check closes the topic's producers, and new ones are refused"
