"""Subscriptions that nobody uses are deleted (docs/rules/subscriptions.md §11), and what is left of those whose reader did not
come back (docs/rules/subscriptions.md §4)."""

from streaming.broker.context import NEVER, Context
from streaming.broker.persistent import leaving
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.topic.inactive_subscriptions import expires_at

READER_COMES_BACK = 360
"""A client whose reader was closed by a seek subscribes again at once. After so many minutes, its cursor goes (in Pulsar, only when the
topic is unloaded)."""


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic."""
    for subscription in list(topic.subscriptions.values()):
        minutes = _expires_after(ctx, topic, subscription)
        if expires_at(subscription.consumers, subscription.last_active, minutes) <= ctx.clock:
            leaving.delete(ctx, topic, subscription, f"unused for {minutes} min")


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """When the first subscription without consumers expires."""
    all_ = topic.subscriptions.values()
    return min(
        (expires_at(each.consumers, each.last_active, _expires_after(ctx, topic, each)) for each in all_),
        default=NEVER,
    )


def _expires_after(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> int:
    """For how many minutes a subscription may be without consumers, 0 or less: for ever."""
    minutes = ctx.policies_of(topic).subscriptionExpirationTime
    if subscription.durable:
        return 0 if topic.follows_source(ctx) else minutes
    return min(minutes, READER_COMES_BACK) if minutes > 0 else READER_COMES_BACK
