"""The Kafka topics of a query: the one that it folds, and those that it writes.

A query's ingress topic must be the same one at every start: another one has another past.

Spark identifies a topic by its name. If a topic is deleted, recreated and filled beyond the offsets in the checkpoint, Spark
continues there and never reads what comes before. And if the number of partitions changes, the commands of one Pulsar topic
may be in two partitions, each with a part of its past. So ``<store>/ingress.json`` keeps what Kafka said of the topic at the
first start, and each micro-batch compares (`TopicWatch`). Spark itself notices partitions that Kafka deletes while the query runs.

What a query writes to Kafka belongs to it alone: its rows are numbered by its own micro-batches, so readers that drop repeats would
drop another query's rows, or its own after a start from nothing. So a topic that is new to a query must be empty (`claim`). The note has
the ids of those that it writes.

If somebody deletes a topic that a query writes and makes it anew, the old rows are gone, and the query has nothing to skip or to repeat:
so it goes on, unlike with another ingress topic. `TopicWatch` notes the new id, or the next start would take the query's own rows for
those of another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from schemas.errors import MagnetarError
from sinks.base import INGRESS
from sinks.begun import LastRecord
from sinks.storage import Storage
from streaming.kafka.client import PATIENCE_MS, KafkaUnreachable, administration, connect, consuming
from streaming.kafka.config import PLAIN, KafkaConfig, KafkaConfigError
from streaming.kafka.retention import check_policy
from streaming.kafka.topics import NotShown, create_topic, holds_records
from streaming.kafka.url import KafkaUrl
from streaming.log.partition import PARTITIONS

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaConsumer

DATAFRAME = "a DataFrame"
"""In place of a topic, for a query over something else. No topic of Kafka's has a space in its name."""
_PATIENCE_MS = 5_000
_POLICY_SECONDS = 60.0
_MOST_SECONDS = 60.0
_NOTED_SECONDS = 30.0
_ANEW = "Give the query a new checkpoint and a new store, or the Kafka that belongs to these"


class IngressChanged(MagnetarError, RuntimeError):
    """The ingress topic is not the one with which the query began."""


class TopicInUse(RuntimeError):
    """A topic that a query is to write has records which it did not write."""


class Ingress(msgspec.Struct, frozen=True, omit_defaults=True):
    """`id`: Kafka's id of the topic, which changes when it is recreated; None from a Kafka that has no ids.

    `written`: the ids of the topics that the query writes, or, if Kafka has none, its own id and their names. None: noted by an earlier
    version.
    """

    topic: str
    id: str | None
    partitions: int
    written: Sequence[str] | None = None


def ensure_ingress(
    url: KafkaUrl, store: str, partitions: int = PARTITIONS, config: KafkaConfig = PLAIN
) -> int:
    """For a new store, `ensure_topic`; afterwards the topic must not change. Returns its number of partitions.

    Raises `IngressChanged`, `KafkaUnreachable`, and the store's `Damaged` and `NotStored`.
    """
    storage = Storage(store)
    if _noted(storage) is None:
        with administration(url, config) as admin:
            create_topic(admin, url.topic, partitions)
            now = _described(admin, url)
        storage.write_json(INGRESS, msgspec.structs.replace(now, written=()))
        return now.partitions
    first, count = partition_counts(url, store, config)
    _compare_partitions(first, count, url)
    return count


def check_last(url: KafkaUrl, last: Mapping[int, LastRecord], config: KafkaConfig = PLAIN) -> None:
    """Whether the topic still has the records that a query folded `last`, by partition. Those that Kafka has deleted since are not compared.

    A Kafka whose files were restored from a backup ends before them. Once writers have filled it beyond, nothing else tells that the
    query would go on behind records that it never saw. Raises `IngressChanged`, `KafkaUnreachable`.
    """
    from kafka import TopicPartition

    parts = {TopicPartition(url.topic, partition): record for partition, record in sorted(last.items())}
    if not parts:
        return
    with consuming(url, config, allow_auto_create_topics=False, max_poll_records=1) as consumer:
        begins, ends = consumer.beginning_offsets([*parts]), consumer.end_offsets([*parts])
        for part, record in parts.items():
            if begins[part] > record.offset:
                continue
            found = None
            if record.offset < ends[part]:
                consumer.assign([part])
                consumer.seek(part, record.offset)
                found = _one(consumer, url)
            if found != record:
                raise IngressChanged(
                    f"Kafka's topic {url.topic!r} has another record at offset {record.offset} of partition {part.partition} than the one that "
                    "this query folded, or none: Kafka came back with older data, such as from a backup. Nothing is skipped silently: "
                    "restore the checkpoint and the store of the same time, or give the query new ones"
                )


def _one(consumer: KafkaConsumer, url: KafkaUrl) -> LastRecord:
    """The next record. Raises `KafkaUnreachable` if none comes."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < deadline:
        for records in consumer.poll(_PATIENCE_MS // 10).values():
            return LastRecord.of(records[0].offset, records[0].timestamp, records[0].value)
    raise KafkaUnreachable(
        f"Kafka at {url.bootstrap} does not return a record of topic {url.topic!r} that it has: check that all its brokers are up"
    )


def partition_counts(url: KafkaUrl, store: str, config: KafkaConfig = PLAIN) -> tuple[int, int]:
    """How many partitions the topic had when the query of `store` began, and how many it has now, which no query goes on with if they
    differ. Of a store without a note, both are those of now.

    Raises what `ensure_ingress` does if it is another topic.
    """
    storage = Storage(store)
    before = _noted(storage)
    if before is not None and before.topic != url.topic:
        raise IngressChanged(f"{storage.url} belongs to topic {before.topic!r}, not {url.topic!r}. {_ANEW}")
    with administration(url, config) as admin:
        now = _described(admin, url)
    if not now.partitions:
        raise IngressChanged(f"Kafka at {url.bootstrap} no longer has a topic {url.topic!r}. {_ANEW}")
    if before is None:
        return now.partitions, now.partitions
    _compare_ids(before, now, url)
    return before.partitions, now.partitions


def claim(topics: Sequence[KafkaUrl], store: str, partitions: int, config: KafkaConfig = PLAIN) -> None:
    """Make the topics that the query of `store` writes, unless they exist. `ensure_ingress` comes first.

    Two queries that are new to a topic are told apart when one of them has written to it, not before.

    Raises `TopicInUse`, `KafkaUnreachable`, and the store's `Damaged` and `NotStored`.
    """
    storage = Storage(store)
    note = _noted(storage)
    assert note is not None
    ids = []
    for url in topics:
        with administration(url, config) as admin:
            create_topic(admin, url.topic, partitions)
            id_, *others = _ids(admin, url)
        ids.append(id_)
        known = note.written is None or not {id_, *others}.isdisjoint(note.written)
        if not known and holds_records(url, config):
            raise TopicInUse(
                f"Kafka's topic {url.topic!r} has records that this query does not know as its own, such as those of another query, or of "
                "an earlier one: readers could not tell their rows from those of this one. Give each query its own output topics"
            )
    _note_written(storage, note, ids)


def _note_written(storage: Storage, note: Ingress, ids: Sequence[str]) -> Ingress:
    """Adds the ids of topics that the query writes. Returns the note as it is then."""
    written = sorted({*(note.written or ()), *ids})
    if written != note.written:
        note = msgspec.structs.replace(note, written=written)
        storage.write_json(INGRESS, note)
    return note


def ensure_dataframe(store: str, partitions: int) -> None:
    """For a new store, note that its query folds a DataFrame with so many ingress partitions. Afterwards neither may change.

    Raises `IngressChanged`, and the store's `Damaged` and `NotStored`.
    """
    storage = Storage(store)
    before = _noted(storage)
    if before is None:
        storage.write_json(INGRESS, Ingress(DATAFRAME, None, partitions))
    elif before.topic != DATAFRAME:
        raise IngressChanged(
            f"{storage.url} belongs to Kafka's topic {before.topic!r}, not to a DataFrame. Give the query a new checkpoint and a new store"
        )
    elif before.partitions != partitions:
        raise IngressChanged(
            f"the query of {storage.url} began with {before.partitions} ingress partitions, not {partitions}: the commands of one Pulsar "
            "topic would now be in two of them. Give it as many as before, or a new checkpoint and a new store"
        )


@dataclass
class _Failing:
    """Checks fail since a moment. The next one is not before `until`. `pause`: the seconds between."""

    since: float
    pause: float = 0.5
    until: float = 0.0
    is_noted: bool = False


class TopicWatch:
    """Compares the topics of a running query with those that its store has a note of: the one with which it began, and those that it
    writes. `claim` comes first."""

    def __init__(
        self,
        url: KafkaUrl,
        written: Sequence[KafkaUrl],
        store: str,
        config: KafkaConfig = PLAIN,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`written`: the topics that the query writes. `on_note` gets a sentence when one of them was made anew, or when Kafka no longer
        shows the settings of the ingress topic."""
        self._url, self._written, self._config, self._on_note = url, written, config, on_note
        self._storage = Storage(store)
        self._before = _noted(self._storage)
        self._admins: dict[str, KafkaAdminClient] = {}
        self._policy_checked = time.monotonic()
        self._policy_hidden = False
        self._failing: _Failing | None = None

    def check(self) -> None:
        """Raises `IngressChanged`, `LogLost` within a minute after Kafka was told to compact the topic, and the store's `NotStored`.

        A Kafka that does not answer, or does not have a topic now, is for the query to notice. If the query goes on nonetheless, such as
        with credentials that Kafka takes no more, these checks pause for up to a minute, and half a minute later a sentence says so.
        """
        from kafka.errors import KafkaError

        if self._before is None or (self._failing is not None and time.monotonic() < self._failing.until):
            return
        try:
            now = self._look(self._url)
            if now.partitions and time.monotonic() - self._policy_checked > _POLICY_SECONDS:
                self._check_policy()
            written = [self._look(url) for url in self._written]
        except (KafkaError, KafkaUnreachable, KafkaConfigError) as error:
            self.close()
            self._pause(error)
            return
        self._failing = None
        if now.partitions:
            _compare_ids(self._before, now, self._url)
            _compare_partitions(self._before.partitions, now.partitions, self._url)
        known = self._before.written or ()
        anew = {
            topic.id: topic.topic
            for topic in written
            if topic.partitions and topic.id is not None and topic.id not in known
        }
        if anew:
            self._before = _note_written(self._storage, self._before, list(anew))
        for name in anew.values():
            self._on_note(
                f"Kafka's topic {name!r} was deleted and recreated while the query writes to it: the rows that it had are gone, and the "
                "query goes on in the new one"
            )

    def _check_policy(self) -> None:
        """A user that no longer sees it is no reason to end."""
        try:
            check_policy(self._admins[self._url.bootstrap], self._url)
            self._policy_hidden = False
        except NotShown as error:
            if not self._policy_hidden:
                self._on_note(
                    f"{error}. Until then, the query goes on and does not notice if the topic is compacted"
                )
            self._policy_hidden = True
        self._policy_checked = time.monotonic()

    def _pause(self, error: Exception) -> None:
        """A check failed. Each may take seconds, so the next ones wait ever longer."""
        now = time.monotonic()
        failing = self._failing = self._failing or _Failing(now)
        failing.pause = min(2 * failing.pause, _MOST_SECONDS)
        failing.until = now + failing.pause
        if not failing.is_noted and now - failing.since >= _NOTED_SECONDS:
            failing.is_noted = True
            self._on_note(
                f"the query can't ask whether its topics are still the same ones, though it goes on: {error}. Until it can, it would not "
                "notice that a topic was deleted and recreated, or got partitions"
            )

    def _look(self, url: KafkaUrl) -> Ingress:
        from kafka import KafkaAdminClient

        if url.bootstrap not in self._admins:
            self._admins[url.bootstrap] = connect(
                KafkaAdminClient, url, self._config, request_timeout_ms=_PATIENCE_MS
            )
        return _described(self._admins[url.bootstrap], url)

    def close(self) -> None:
        """Close the connections. Another check would open new ones."""
        admins, self._admins = self._admins, {}
        for admin in admins.values():
            admin.close()


def noted_topic(store: str) -> str | None:
    """The ingress topic of the query with a store. None: it has not noted any. Raises `Damaged`."""
    noted = _noted(Storage(store))
    return None if noted is None else noted.topic


def _noted(storage: Storage) -> Ingress | None:
    return storage.read_json(INGRESS, Ingress, "the ingress topic's id")


def _described(admin: KafkaAdminClient, url: KafkaUrl) -> Ingress:
    (topic,) = admin.describe_topics([url.topic])
    return Ingress(url.topic, topic["topic_id"], len(topic["partitions"]))


def _ids(admin: KafkaAdminClient, url: KafkaUrl) -> list[str]:
    """What tells a topic from all others, then what earlier versions noted for it. A Kafka without ids of topics may have several
    addresses, and one id of its own."""
    if (id_ := _described(admin, url).id) is not None:
        return [id_]
    places = [admin.describe_cluster()["cluster_id"], url.bootstrap]
    return [f"{place}/{url.topic}" for place in places if place]


def _compare_ids(before: Ingress, now: Ingress, url: KafkaUrl) -> None:
    """Raises `IngressChanged` if a topic that exists is another one than before. Kafka takes no partition away, and may have no ids."""
    if (before.id != now.id and before.id is not None) or now.partitions < before.partitions:
        raise IngressChanged(
            f"Kafka's topic {url.topic!r} was deleted and recreated since this query began. Nothing is "
            "skipped silently: give the query a new checkpoint and a new store, and it starts with what "
            "the topic has now"
        )


def _compare_partitions(before: int, now: int, url: KafkaUrl) -> None:
    """Raises `IngressChanged` if a topic got partitions."""
    if now > before:
        raise IngressChanged(
            f"Kafka's topic {url.topic!r} has {now} partitions, and had {before} when this query began: the commands of one Pulsar topic "
            "may now be in two of them. Stop its writers at once, and move the states to a new topic (magnetar state move): see "
            "docs/operate/partitions.md#partitions-that-were-added"
        )
