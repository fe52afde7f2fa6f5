"""What an answer says about topics whose entries a mirror made of their stats (docs/guide/recording.md#mirror)."""

from collections.abc import Sequence

_NAMED = 5


def sampled_note(topics: Sequence[str]) -> list[str]:
    """At most one sentence about the topics of an answer that are sampled, see `streaming.broker.persistent.topic.PersistentTopic.is_sampled`."""
    if not topics:
        return []
    more = f" and {len(topics) - _NAMED:,} more" if len(topics) > _NAMED else ""
    names = ", ".join(topics[:_NAMED]) + more
    return [
        f"Sampled: {names}. The number, sizes and times of the entries are right to the mirror's interval, but no entry is a message of the cluster."
    ]
