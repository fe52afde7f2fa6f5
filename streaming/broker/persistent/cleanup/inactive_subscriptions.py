"""Subscriptions that nobody uses are deleted (docs/rules/subscriptions.md §11), and what is left of those whose reader did not
come back (docs/rules/subscriptions.md §4)."""

from streaming.broker.context import NEVER, Context
from streaming.broker.persistent import leaving
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic

READER_COMES_BACK = 360
"""A client whose reader was closed by a seek subscribes again at once. After so many minutes, its cursor goes (in Pulsar, only when the
topic is unloaded)."""


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic."""
    for subscription in list(topic.subscriptions.values()):
        if _expires_at(ctx, topic, subscription) <= ctx.clock:
            minutes = _expires_after(ctx, topic, subscription)
            leaving.delete(ctx, topic, subscription, f"unused for {minutes} min")


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """When the first subscription without consumers expires."""
    return min((_expires_at(ctx, topic, each) for each in topic.subscriptions.values()), default=NEVER)


def _expires_at(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> int:
    minutes = 0 if subscription.consumers else _expires_after(ctx, topic, subscription)
    return NEVER if minutes <= 0 else subscription.last_active + minutes * 60_000 + 1


def _expires_after(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> int:
    """For how many minutes a subscription may be without consumers, 0 or less: for ever."""
    minutes = ctx.policies_of(topic).subscriptionExpirationTime
    if subscription.durable:
        return 0 if topic.follows_source(ctx) else minutes
    return min(minutes, READER_COMES_BACK) if minutes > 0 else READER_COMES_BACK
