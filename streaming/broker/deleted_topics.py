"""What outlives a deleted topic, for how long, and what stays for ever: a number.

Pulsar takes the ids of ledgers from one allocator, so a topic that is created again never has a message id that its name had
before. Here, each topic counts its ledgers. So a name's last ledger id is remembered. That has a bound: of the topics that
were deleted, the last `REMEMBERED` are known by name. Of the others, one number is left for all: the highest ledger id that any of
them had. A topic of an unknown name begins above it.

The deleted partitions of a partitioned topic are remembered as long as that is there, for they count as deleted until
somebody uses them again.
"""

import msgspec

from streaming.broker.names import is_partition, whole_of
from streaming.broker.subscription.consumer import Handle

REMEMBERED = 1000
"""Of how many deleted topics the names are remembered."""


class DeletedTopic(msgspec.Struct, array_like=True):
    """What a deleted topic leaves to the next one of its name, and to clients that do not know yet.

    `last_ledger`: ledger ids are never used again. The other field is that of `AbstractTopic`.
    """

    last_ledger: int = 0
    closed_producers: dict[Handle, int] = {}


class DeletedTopics:
    """The deleted topics of an ingress partition. `forgotten`: the highest ledger id of those whose names are forgotten."""

    def __init__(
        self,
        topics: dict[str, DeletedTopic],
        partitions: dict[str, dict[str, DeletedTopic]],
        forgotten: int,
        partitioned: dict[str, int],
    ) -> None:
        """`topics`: those that are remembered, the last one last. `partitions`: those of the partitioned topics that are there, by
        partitioned topic. `partitioned`: the numbers of partitions. The dicts are the state's own."""
        self._topics, self._partitions, self._partitioned = topics, partitions, partitioned
        self.forgotten = forgotten

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, str)
        return name in self._topics or name in self._partitions.get(whole_of(name), ())

    def former(self, name: str) -> DeletedTopic:
        """What is left of the deleted topic of a name, or of all that had unknown names."""
        found = self._topics.get(name) or self._partitions.get(whole_of(name), {}).get(name)
        return DeletedTopic(self.forgotten) if found is None else found

    def take(self, name: str) -> DeletedTopic:
        """`former`, for a topic that is created now."""
        found, whole = self.former(name), whole_of(name)
        self._topics.pop(name, None)
        if (partitions := self._partitions.get(whole)) is not None:
            partitions.pop(name, None)
            if not partitions:
                del self._partitions[whole]
        return found

    def add(self, name: str, left: DeletedTopic) -> None:
        """A topic was deleted."""
        if is_partition(name, self._partitioned):
            self._partitions.setdefault(whole_of(name), {})[name] = left
        else:
            self._remember({name: left})

    def partitioned_topic_deleted(self, name: str) -> None:
        """A partitioned topic is no longer there: its partitions were topics like any other."""
        self._remember(self._partitions.pop(name, {}))

    def _remember(self, left: dict[str, DeletedTopic]) -> None:
        topics = self._topics
        topics.update(left)
        while len(topics) > REMEMBERED:
            oldest = next(iter(topics))
            left_of_it = topics.pop(oldest)
            if is_partition(
                oldest, self._partitioned
            ):  # its partitioned topic is younger, or got more partitions
                self._partitions.setdefault(whole_of(oldest), {})[oldest] = left_of_it
            else:
                self.forgotten = max(self.forgotten, left_of_it.last_ledger)
