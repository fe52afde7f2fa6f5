"""What an answer says about topics of which a mirror made entries of their stats (docs/guide/recording.md#mirror)."""

from collections.abc import Sequence

WHAT_IT_MEANS = (
    "The number, sizes and times of the entries are right to the mirror's interval, but none whose producer is magnetar-mirror is a "
    "message of the cluster."
)

_NAMED = 5


def sampled_note(topics: Sequence[str]) -> list[str]:
    """At most one sentence about the topics of an answer that are sampled, see `streaming.broker.persistent.topic.PersistentTopic.is_sampled`."""
    if not topics:
        return []
    more = f" and {len(topics) - _NAMED:,} more" if len(topics) > _NAMED else ""
    names = ", ".join(topics[:_NAMED]) + more
    return [f"Sampled: {names}. {WHAT_IT_MEANS}"]
