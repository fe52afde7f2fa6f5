"""When subscriptions of non-persistent topics stay without consumers, and for how long, see `streaming.broker.topic.inactive_subscriptions`
(mirrors `NonPersistentTopic.checkInactiveSubscriptions`)."""

from streaming.broker.context import NEVER, Context
from streaming.broker.non_persistent import consumers
from streaming.broker.non_persistent.topic import NonPersistentTopic
from streaming.broker.topic.inactive_subscriptions import expires_at


def check(ctx: Context, topic: NonPersistentTopic) -> None:
    """The periodic check of a topic."""
    minutes = expires_after(ctx, topic)
    for subscription in list(topic.subscriptions.values()):
        if expires_at(subscription.consumers, subscription.last_active, minutes) <= ctx.clock:
            consumers.delete(ctx, topic, subscription, f"unused for {minutes} min")


def next_effect(ctx: Context, topic: NonPersistentTopic) -> int:
    """When the first subscription without consumers expires."""
    minutes = expires_after(ctx, topic)
    return min(
        (expires_at(each.consumers, each.last_active, minutes) for each in topic.subscriptions.values()),
        default=NEVER,
    )


def expires_after(ctx: Context, topic: NonPersistentTopic) -> int:
    """For how many minutes a subscription may be without consumers, 0 or less: for ever."""
    return ctx.policies_of(topic).subscriptionExpirationTime
