"""The check that finds the persistent topics that nobody uses (mirrors `PersistentTopic.checkGC`), see
`streaming.broker.inactive_topics`.
"""

from streaming.broker.context import Context
from streaming.broker.inactive_topics import has_local_producers, policy
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.hierarchy import InactiveTopicPolicies


def check(ctx: Context, topic: PersistentTopic) -> None:
    """Note the time if the topic is in use."""
    found = policy(ctx, topic)
    if found is not None and _in_use(topic, found):
        topic.last_active = ctx.clock


def deletes(ctx: Context, topic: PersistentTopic) -> bool:
    """Must the topic be deleted now?"""
    at = deleted_at(ctx, topic)
    return at is not None and at <= ctx.clock


def deleted_at(ctx: Context, topic: PersistentTopic) -> int | None:
    """When the topic has been unused for long enough (ms), if nothing happens; None: at no time.

    quirk: of its retention only the time counts, not the size, and only if it has entries.
    """
    if topic.producers:  # replicators do not make it active, but only an unused topic is deleted
        return None
    found = policy(ctx, topic)
    if found is None or found.inactiveTopicDeleteMode is None or _in_use(topic, found):
        return None
    seconds = found.maxInactiveDurationSeconds
    if topic.ledger.number_of_entries:
        minutes = ctx.policies_of(topic).retention.value.retentionTimeInMinutes
        if minutes < 0:
            return None
        seconds = max(seconds, minutes * 60)
    return topic.last_active + seconds * 1000


def _in_use(topic: PersistentTopic, found: InactiveTopicPolicies) -> bool:
    """quirk: consumers do not make a topic active if its subscriptions may go."""
    if found.inactiveTopicDeleteMode == "delete_when_no_subscriptions":
        used = bool(topic.subscriptions)
    else:
        used = topic.backlog() > 0
    return used or has_local_producers(topic.producers.values())
