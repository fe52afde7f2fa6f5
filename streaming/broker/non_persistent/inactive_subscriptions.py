"""Subscriptions of non-persistent topics that stay without consumers are deleted in time (mirrors
`NonPersistentTopic.checkInactiveSubscriptions`; docs/rules/subscriptions.md §11).
"""

from streaming.broker.context import NEVER, Context
from streaming.broker.non_persistent import consumers
from streaming.broker.non_persistent.subscription import NonPersistentSubscription
from streaming.broker.non_persistent.topic import NonPersistentTopic


def check(ctx: Context, topic: NonPersistentTopic) -> None:
    """The periodic check of a topic."""
    for subscription in list(topic.subscriptions.values()):
        if _expires_at(ctx, topic, subscription) <= ctx.clock:
            consumers.delete(ctx, topic, subscription, f"unused for {_expires_after(ctx, topic)} min")


def next_effect(ctx: Context, topic: NonPersistentTopic) -> int:
    """When the first subscription without consumers expires."""
    if _expires_after(ctx, topic) <= 0:  # a look at each subscription would cost every command as much
        return NEVER
    return min((_expires_at(ctx, topic, each) for each in topic.subscriptions.values()), default=NEVER)


def _expires_at(ctx: Context, topic: NonPersistentTopic, subscription: NonPersistentSubscription) -> int:
    minutes = 0 if subscription.consumers else _expires_after(ctx, topic)
    return NEVER if minutes <= 0 else subscription.last_active + minutes * 60_000 + 1


def _expires_after(ctx: Context, topic: NonPersistentTopic) -> int:
    """For how many minutes a subscription may be without consumers, 0 or less: for ever."""
    return ctx.policies_of(topic).subscriptionExpirationTime
