"""What a mirror asks a cluster's admin API: which topics there are, what they look like, and under which policies. Only GETs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from streaming.broker.admin_requests import topic_path
from streaming.broker.names import base_of, complete, is_namespace_name, partition_index, partitions_of
from streaming.record.policies import SYSTEM_NAMES, is_namespace
from streaming.record.rest import (
    DENIED,
    INCOMPLETE,
    CallFailed,
    Rest,
    TooManyPartitions,
    partition_count,
    understood,
)
from streaming.runtime.clock import RealClock

CALLS_PER_LOOK = 2
"""The GETs of `MirroredCluster.look`, without the one for what a topic's metadata shows, if nobody redirects them."""


class NotMirrored(RuntimeError):
    """A topic can't be mirrored. The text says why."""


class FoundTopics(NamedTuple):
    """The topics of a cluster that are mirrored: those without partitions and single partitions, and the number of partitions by
    partitioned topic. `missing`: why others are not."""

    topics: list[str]
    partitioned: dict[str, int]
    missing: dict[str, str]


class Look(NamedTuple):
    """What a topic's `stats` and `internalStats` showed at `time` (ms). `closed`: when its ledgers were closed (ms), as far as that was
    asked and is known. `created`: when the topic was (ms). 0: that is not known, None: it was not asked."""

    time: int
    stats: Mapping[str, Any]
    internal: Mapping[str, Any]
    closed: Mapping[int, int] = MappingProxyType({})
    created: int | None = None


class _Info(msgspec.Struct):
    """What `internal-info` shows, the metadata of a topic's ledgers. `creationDate`: of the metadata, so of the topic."""

    ledgers: list[_LedgerInfo] = []
    creationDate: datetime | None = None


class _LedgerInfo(msgspec.Struct):
    """A ledger. `timestamp`: when it was closed (ms). quirk: of the open one, which has no `entries`, it is when it was opened."""

    ledgerId: int
    entries: int | None = None
    timestamp: int | None = None


class MirroredCluster:
    """The cluster behind an admin API, of which `given` is mirrored: topics, or ``tenant/namespace`` for all in it."""

    def __init__(self, rest: Rest, given: Sequence[str], clock: RealClock | None = None) -> None:
        """`clock`: the time of looks. Raises `NotMirrored` for topics that are not persistent."""
        self.rest, self._clock = rest, clock or RealClock()
        self._given = [each if is_namespace(each) else complete(each) for each in given]
        self.given = {*self._given}
        self._partitions: dict[str, int] = {}
        for each in self._given:
            if is_namespace(each):
                if not is_namespace_name(each):
                    raise NotMirrored(f"{each!r}: expected TENANT/NAMESPACE, or the name of a topic")
            elif not each.startswith("persistent://"):
                raise NotMirrored(f"{each} is not persistent: it stores nothing that could be mirrored")
            elif base_of(each) != each:
                raise NotMirrored(
                    f"{each} is a partition: name its topic, {base_of(each)}, to mirror all of them"
                )

    def find(self) -> FoundTopics:
        """The topics that there are now. Raises `CallFailed` if the cluster can't say."""
        with understood(self.rest.url):
            return self._find()

    def _find(self) -> FoundTopics:
        topics, missing = dict[str, None](), dict[str, str]()
        counts = dict[str, int]()
        for given in self._given:
            try:
                counts |= (
                    self._of_namespace(given, topics, missing)
                    if is_namespace(given)
                    else self._of_topic(given, topics)
                )
            except CallFailed as error:
                passes = error.status not in (*DENIED, HTTPStatus.NOT_FOUND)
                if passes and not isinstance(error, TooManyPartitions):
                    raise
                missing[given] = str(error)
        self._partitions = counts
        return FoundTopics([*topics], counts, missing)

    def _of_topic(self, topic: str, topics: dict[str, None]) -> dict[str, int]:
        count = self._count(topic)
        topics |= dict.fromkeys(partitions_of(topic, count) or [topic])
        return {topic: count} if count else {}

    def _of_namespace(
        self, namespace: str, topics: dict[str, None], missing: dict[str, str]
    ) -> dict[str, int]:
        """A namespace has more calls than one only for partitioned topics that are new, or have more partitions than before."""
        counts = {
            topic: self._partitions.get(topic, 0)
            for topic in self.rest.get(f"/persistent/{namespace}/partitioned", list[str])
        }
        for topic in self.rest.get(f"/persistent/{namespace}", list[str]):
            if topic.rpartition("/")[2].startswith(SYSTEM_NAMES):
                continue
            if (whole := base_of(topic)) in counts:
                if partition_index(topic) >= counts[whole] and whole not in missing:
                    try:
                        counts[whole] = self._count(whole)
                    except TooManyPartitions as error:
                        missing[whole] = str(error)
            elif whole == topic:
                topics[topic] = None
            else:
                missing[topic] = f"it is named like a partition, and {whole} has none"
        for topic, count in counts.items():
            topics |= dict.fromkeys(partitions_of(topic, count))
        return {topic: count for topic, count in counts.items() if count}

    def _count(self, topic: str) -> int:
        """The number of a topic's partitions."""
        return partition_count(self.rest, f"{topic_path(topic)}/partitions")

    def look(self, topic: str, *, newest: int = -1, history: bool = False) -> Look:
        """What a topic looks like now. `newest`: the newest ledger that it had before. With none but newer ones, when the topic was created is
        asked for, where `stats` do not show it. `history`: ask when its ledgers were closed, too. Raises `CallFailed`."""
        path = topic_path(topic)
        internal = self.rest.get(f"{path}/internalStats")
        stats = self.rest.get(f"{path}/stats?getPreciseBacklog=true")
        look = Look(self._clock.now(), stats, internal)
        with understood(self.rest.url):
            oldest = min((each["ledgerId"] for each in internal["ledgers"]), default=-1)
            is_dated = stats.get("topicCreationTimeStamp", 0) > 0
            is_asked = (history and len(internal["ledgers"]) > 1) or (not is_dated and oldest > newest)
        if not is_asked:
            return look
        info = self._info(path)
        closed = {each.ledgerId: each.timestamp for each in info.ledgers if each.entries and each.timestamp}
        with understood(self.rest.url):
            created = 0 if info.creationDate is None else int(info.creationDate.timestamp() * 1000)
        return look._replace(closed=closed, created=max(created, 0))

    def _info(self, path: str) -> _Info:
        """The metadata of a topic's ledgers, as far as the cluster shows it. Raises `CallFailed` if it may do so later."""
        try:
            found: _Info = self.rest.get(f"{path}/internal-info", _Info)
            return found
        except CallFailed as error:
            if error.status in (None, INCOMPLETE):
                raise
            return _Info()
