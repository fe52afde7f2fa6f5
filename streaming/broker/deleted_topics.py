"""What outlives a deleted topic, for how long, and what stays for ever: a number.

Pulsar takes the ids of ledgers from one allocator, so a topic that is created again never has a message id that its name had
before. Here, each topic counts its ledgers. So a name's last ledger id is remembered. That has a bound: of the topics that
were deleted, the last `REMEMBERED` are known by name. Of the others, one number is left for all: the highest ledger id that any of
them had. A topic of an unknown name begins above it.

The deleted partitions of a partitioned topic are remembered as long as that is there, for they count as deleted until
somebody uses them again.
"""

from streaming.broker.names import is_partition, whole_of

REMEMBERED = 1000
"""Of how many deleted topics the names are remembered."""


class DeletedTopics:
    """The last ledger ids of an ingress partition's deleted topics, 0: it stored nothing. `forgotten`: the highest one of those whose
    names are forgotten."""

    def __init__(
        self,
        topics: dict[str, int],
        partitions: dict[str, dict[str, int]],
        forgotten: int,
        partitioned: dict[str, int],
    ) -> None:
        """`topics`: those that are remembered, the last one last. `partitions`: those of the partitioned topics that are there, by
        partitioned topic. `partitioned`: the numbers of partitions. The dicts are the state's own."""
        self._topics, self._partitions, self._partitioned = topics, partitions, partitioned
        self.forgotten = forgotten

    def __contains__(self, name: object) -> bool:
        """Is it a partition that was deleted since it became one? Its partitioned topic created it."""
        assert isinstance(name, str)
        return name in self._partitions.get(whole_of(name), ())

    def former(self, name: str) -> int:
        """The last ledger id of the deleted topic of a name, or of all that had unknown names."""
        found = self._topics.get(name) or self._partitions.get(whole_of(name), {}).get(name)
        return self.forgotten if found is None else found

    def take(self, name: str) -> int:
        """`former`, for a topic that is created now."""
        found, whole = self.former(name), whole_of(name)
        self._topics.pop(name, None)
        if (partitions := self._partitions.get(whole)) is not None:
            partitions.pop(name, None)
            if not partitions:
                del self._partitions[whole]
        return found

    def add(self, name: str, last_ledger: int) -> None:
        """A topic was deleted."""
        if is_partition(name, self._partitioned):
            self._partitions.setdefault(whole_of(name), {})[name] = last_ledger
        else:
            self._remember({name: last_ledger})

    def has_all_partitions(self, name: str) -> bool:
        """Are all partitions of a partitioned topic deleted?"""
        return len(self._partitions.get(name, ())) == self._partitioned[name]

    def partitioned_topic_deleted(self, name: str) -> None:
        """A partitioned topic is no longer there: its partitions were topics like any other."""
        self._remember(self._partitions.pop(name, {}))

    def _remember(self, last_ledgers: dict[str, int]) -> None:
        topics = self._topics
        topics.update({name: last for name, last in last_ledgers.items() if last})
        while len(topics) > REMEMBERED:
            self.forgotten = max(self.forgotten, topics.pop(next(iter(topics))))
