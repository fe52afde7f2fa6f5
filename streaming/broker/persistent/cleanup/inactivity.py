"""The check that finds the persistent topics that nobody uses (mirrors `PersistentTopic.checkGC`), see
`streaming.broker.topic.inactive_topics`; and why a topic is not deleted, or when it is.
"""

from typing import Literal

import msgspec

from schemas.printable import some_of
from streaming.broker.context import NEVER, Context
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.hierarchy import InactiveTopicPolicies
from streaming.broker.topic.inactive_topics import has_local_producers, policy, why_off

InactivityState = Literal["off", "in use", "retention", "source", "unused"]
"""What the check finds. ``retention``: nobody uses the topic, and its retention has no limit of time. ``source``: it follows another topic,
and is deleted when that is."""


class InactiveTopic(msgspec.Struct):
    """Whether a topic is deleted because nobody uses it, at `clock` (ms).

    `mode`, `seconds`: inactiveTopicDeleteMode and maxInactiveDurationSeconds, set at `level`. `keeps`: for how many seconds it is kept after
    its last use, with its retention; None: without limit. `last_active`: its last use (ms), None: it is in use, or nobody looks. `due`: no
    check deletes it before (ms); None: nothing is in sight. `deletes_at`: the check that deletes it if no command comes (ms); None: neither
    the next one does, nor one that is in sight. `next_check`, `unchecked`, `sampled`: see `trimming.Retention`.
    """

    topic: str
    clock: int
    state: InactivityState
    text: str
    mode: str | None
    seconds: int
    level: str
    keeps: int | None
    last_active: int | None
    due: int | None
    next_check: int | None
    unchecked: str | None
    deletes_at: int | None = None
    sampled: bool = False


def check(ctx: Context, topic: PersistentTopic) -> None:
    """Note the time if the topic is in use."""
    found = policy(ctx, topic)
    if found is not None and _in_use(topic, found):
        topic.last_active = ctx.clock


def skipped(ctx: Context, topic: PersistentTopic, _rounds: int) -> None:
    """Only the time of the last round counts."""
    check(ctx, topic)


def deletes(ctx: Context, topic: PersistentTopic) -> bool:
    """Must the topic be deleted after the check?"""
    return next_effect(ctx, topic) <= ctx.clock


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """When the topic has been unused for long enough, and is deleted.

    quirk: of its retention only the time counts, not the size, and only if it has entries (or `retentionKeepsEmptyTopics`).
    """
    return _outlook(ctx, topic)[1]


def _outlook(ctx: Context, topic: PersistentTopic) -> tuple[InactivityState, int]:
    """What the check finds, and when it deletes the topic (ms), `NEVER`: not as long as it finds that."""
    if topic.producers:  # replicators do not make it active, but only an unused topic is deleted
        return "in use", NEVER
    # Who uses a shadow topic, it knows from the first MIRROR on.
    if topic.follows_source(ctx) or (topic.is_shadow and not topic.mirrored.seen):
        return "source", NEVER
    found = policy(ctx, topic)
    if found is None or found.inactiveTopicDeleteMode is None:
        return "off", NEVER
    if _in_use(topic, found):
        return "in use", NEVER
    seconds = found.maxInactiveDurationSeconds
    if _retention_keeps(ctx, topic):
        minutes = ctx.policies_of(topic).retention.value.retentionTimeInMinutes
        if minutes < 0:
            return "retention", NEVER
        seconds = max(seconds, minutes * 60)
    return "unused", topic.last_active + seconds * 1000


def _retention_keeps(ctx: Context, topic: PersistentTopic) -> bool:
    """Whether the time of retention counts."""
    return bool(topic.ledger.number_of_entries or ctx.config.retentionKeepsEmptyTopics)


def _in_use(topic: PersistentTopic, found: InactiveTopicPolicies) -> bool:
    """quirk: consumers do not make a topic active if its subscriptions may go."""
    if found.inactiveTopicDeleteMode == "delete_when_no_subscriptions":
        used = bool(topic.subscriptions)
    else:
        used = topic.backlog() > 0
    return used or has_local_producers(topic.producers.values())


# -- why the topic is not deleted ---------------------------------------------------------------------------------------


def explain(ctx: Context, topic: PersistentTopic) -> InactiveTopic:
    """Why the topic is not deleted, or when it is. `next_check` and `deletes_at` are left to the caller."""
    found, (state, due) = ctx.policies_of(topic).inactiveTopicPolicies, _outlook(ctx, topic)
    off = why_off(ctx, topic)
    if off is None and found.inactiveTopicDeleteMode is None:
        off = "inactiveTopicDeleteMode is not set"
    state = state if off is None else "off"
    return InactiveTopic(
        topic=topic.name,
        clock=ctx.clock,
        state=state,
        text=_users(topic, found) if off is None and state == "in use" else off or _WHY[state],
        mode=found.inactiveTopicDeleteMode,
        seconds=found.maxInactiveDurationSeconds,
        level=ctx.level_of(topic, "inactiveTopicPolicies"),
        keeps=None if due >= NEVER else (due - topic.last_active) // 1000,
        last_active=topic.last_active if state in ("retention", "unused") else None,
        due=None if due >= NEVER else max(due, ctx.clock),
        next_check=None,
        unchecked=off,
        sampled=topic.is_sampled,
    )


_WHY: dict[InactivityState, str] = {
    "source": "it follows another topic: its source's broker decides",
    "retention": "nobody uses it, but its retention has no limit of time",
    "unused": "nobody uses it",
}


def _users(topic: PersistentTopic, found: InactiveTopicPolicies) -> str:
    """Who uses a topic that is in use."""
    if has_local_producers(topic.producers.values()):
        return f"it has producers: {some_of(topic.producers, _MOST_NAMES)}"
    if topic.producers:
        return "a replicator is connected"
    if found.inactiveTopicDeleteMode == "delete_when_no_subscriptions":
        return f"it has subscriptions: {some_of(topic.subscriptions, _MOST_NAMES)}"
    behind = [name for name in topic.subscriptions if topic.cursors[name].backlog(topic.ledger) > 0]
    return f"subscriptions have a backlog: {some_of(behind, _MOST_NAMES)}"


_MOST_NAMES = 10
