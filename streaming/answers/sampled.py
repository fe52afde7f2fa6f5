"""What an answer says about topics of which a mirror made entries of their stats (docs/guide/recording.md#mirror)."""

from collections.abc import Sequence

from schemas.printable import some_of

WHAT_IT_MEANS = (
    "The number, sizes and times of the entries are right to the mirror's interval, but none whose producer is magnetar-mirror is a "
    "message of the cluster."
)

_NAMED = 5


def sampled_note(topics: Sequence[str]) -> list[str]:
    """At most one sentence about the topics of an answer that are sampled, see `streaming.broker.persistent.topic.PersistentTopic.is_sampled`."""
    if not topics:
        return []
    return [f"Sampled: {some_of(topics, _NAMED)}. {WHAT_IT_MEANS}"]
