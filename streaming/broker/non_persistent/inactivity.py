"""When nobody uses a non-persistent topic (mirrors `NonPersistentTopic.checkGC`), see `streaming.broker.topic.inactive_topics`."""

from streaming.broker.context import Context
from streaming.broker.non_persistent.topic import NonPersistentTopic
from streaming.broker.topic.inactive_topics import has_local_producers, policy


def is_used(topic: NonPersistentTopic) -> bool:
    """Does anybody use the topic now? Its policies have no say in this: a subscription has no backlog, and goes with its last
    consumer."""
    return bool(topic.subscriptions) or has_local_producers(topic.producers.values())


def unused_at(ctx: Context, topic: NonPersistentTopic) -> int | None:
    """The time (ms) at which the topic may be deleted if nobody uses it until then; None: at no time.

    quirk: it must have been unused for longer than its policy says; a persistent topic, as long as that.
    """
    found = policy(ctx, topic)
    if found is None or is_used(topic) or topic.producers:
        return None
    return topic.last_active + found.maxInactiveDurationSeconds * 1000 + 1
