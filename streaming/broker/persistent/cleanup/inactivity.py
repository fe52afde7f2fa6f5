"""The check that finds the persistent topics that nobody uses (mirrors `PersistentTopic.checkGC`), see
`streaming.broker.topic.inactive_topics`.
"""

from streaming.broker.context import NEVER, Context
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.hierarchy import InactiveTopicPolicies
from streaming.broker.topic.inactive_topics import has_local_producers, policy


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
    if topic.producers:  # replicators do not make it active, but only an unused topic is deleted
        return NEVER
    # Who uses a shadow topic, it knows from the first MIRROR on.
    if topic.follows_source(ctx) or (topic.is_shadow and not topic.mirrored.seen):
        return NEVER
    found = policy(ctx, topic)
    if found is None or found.inactiveTopicDeleteMode is None or _in_use(topic, found):
        return NEVER
    seconds = found.maxInactiveDurationSeconds
    if topic.ledger.number_of_entries or ctx.config.retentionKeepsEmptyTopics:
        minutes = ctx.policies_of(topic).retention.value.retentionTimeInMinutes
        if minutes < 0:
            return NEVER
        seconds = max(seconds, minutes * 60)
    return topic.last_active + seconds * 1000


def _in_use(topic: PersistentTopic, found: InactiveTopicPolicies) -> bool:
    """quirk: consumers do not make a topic active if its subscriptions may go."""
    if found.inactiveTopicDeleteMode == "delete_when_no_subscriptions":
        used = bool(topic.subscriptions)
    else:
        used = topic.backlog() > 0
    return used or has_local_producers(topic.producers.values())
