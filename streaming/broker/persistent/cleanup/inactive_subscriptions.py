"""Subscriptions that nobody uses are deleted (docs/rules/subscriptions.md §11), and what is left of those whose reader did not
come back (docs/rules/subscriptions.md §4); and why a subscription is not deleted, or when it is."""

from typing import Literal

import msgspec

from streaming.broker.context import NEVER, Context
from streaming.broker.names import COMPACTION_CURSOR
from streaming.broker.persistent import leaving
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.topic.inactive_subscriptions import expires_at

READER_COMES_BACK = 360
"""A client whose reader was closed by a seek subscribes again at once. After so many minutes, its cursor goes (in Pulsar, only when the
topic is unloaded)."""

UnusedState = Literal["in use", "kept", "unused"]
"""What the check finds. ``kept``: nobody uses it, and it stays all the same."""


class InactiveSubscription(msgspec.Struct):
    """Whether a subscription is deleted because nobody uses it. `last_active`: its last use (ms), None: it has consumers. `minutes`: for how
    long it may be without consumers; 0: for ever. `due`: when that is over (ms), `deletes_at`: the check that deletes it then, if no
    command comes and the topic is still there (ms); None: none does."""

    subscription: str
    durable: bool
    state: UnusedState
    text: str
    minutes: int
    last_active: int | None
    due: int | None
    deletes_at: int | None = None


class InactiveSubscriptions(msgspec.Struct):
    """Which subscriptions of a topic are deleted because nobody uses them, at `clock` (ms). `minutes`: the subscriptionExpirationTime in
    force, set at `level`; 0: off. `next_check`, `unchecked`, `sampled`: see `trimming.Retention`."""

    topic: str
    clock: int
    minutes: int
    level: str
    next_check: int | None
    unchecked: str | None
    subscriptions: list[InactiveSubscription]
    sampled: bool = False


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic."""
    for subscription in list(topic.subscriptions.values()):
        if _expires_at(ctx, topic, subscription) <= ctx.clock:
            minutes = _expires_after(ctx, topic, subscription)
            leaving.delete(ctx, topic, subscription, f"unused for {minutes} min")


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """When the first subscription without consumers expires."""
    return min([_expires_at(ctx, topic, each) for each in topic.subscriptions.values()], default=NEVER)


def _expires_at(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> int:
    return expires_at(
        subscription.consumers, subscription.last_active, _expires_after(ctx, topic, subscription)
    )


def _expires_after(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> int:
    """For how many minutes a subscription may be without consumers, 0 or less: for ever."""
    minutes = ctx.policies_of(topic).subscriptionExpirationTime
    if subscription.durable:
        stays = subscription.replicated or topic.follows_source(ctx) or subscription.name == COMPACTION_CURSOR
        return 0 if stays else minutes
    return min(minutes, READER_COMES_BACK) if minutes > 0 else READER_COMES_BACK


# -- why subscriptions are not deleted ----------------------------------------------------------------------------------


def explain(ctx: Context, topic: PersistentTopic) -> InactiveSubscriptions:
    """Which subscriptions are deleted, and when. `next_check` and `deletes_at` are left to the caller."""
    return InactiveSubscriptions(
        topic=topic.name,
        clock=ctx.clock,
        minutes=ctx.policies_of(topic).subscriptionExpirationTime,
        level=ctx.level_of(topic, "subscriptionExpirationTime"),
        next_check=None,
        unchecked=None,
        subscriptions=[_explain_one(ctx, topic, each) for each in topic.subscriptions.values()],
        sampled=topic.is_sampled,
    )


def _explain_one(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription
) -> InactiveSubscription:
    minutes, due = _expires_after(ctx, topic, subscription), _expires_at(ctx, topic, subscription)
    state: UnusedState = "in use" if subscription.consumers else "kept" if due >= NEVER else "unused"
    if state == "in use":
        text = f"it has consumers ({len(subscription.consumers)})"
    elif state == "kept":
        followed = topic.follows_source(ctx)
        text = (
            "its source's broker decides"
            if followed
            else "subscriptionExpirationTime is 0: it may be without consumers for ever"
        )
    else:
        text = "no consumer" if subscription.durable else "a seek closed its reader, which has not come back"
    return InactiveSubscription(
        subscription.name,
        subscription.durable,
        state,
        text,
        max(minutes, 0),
        None if subscription.consumers else subscription.last_active,
        None if due >= NEVER else max(due, ctx.clock),
    )
