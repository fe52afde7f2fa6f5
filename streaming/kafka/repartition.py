"""More ingress partitions: copy a Kafka topic of commands to a topic with any number of partitions.

A broker is a function of its log, so the new query starts with an empty checkpoint and an empty store, and folds the same
commands. docs/operate/partitions.md describes the whole procedure and what the old topic must be like.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from schemas.records import RECORD, Coordinates
from sinks.quarantine import read_set_aside
from streaming.kafka.client import PATIENCE_MS, KafkaUnreachable, administration, consuming
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.ingress import IngressChanged, partition_counts
from streaming.kafka.produce import NotProduced, produce_log
from streaming.kafka.records import READ, ingress_records
from streaming.kafka.topics import Offsets, are_distinct, topic_offsets, topic_settings
from streaming.kafka.url import KafkaUrl
from streaming.log.merge import merge_partitions
from streaming.log.partition import by_partition, note_on_strays
from streaming.log.spool import Spool
from streaming.log.table import LogError

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_CHUNK = 1 << 16
_POLL_MS = 1000
_EMPTY_POLLS = 30


class TopicLog(NamedTuple):
    """The records of a topic (columns `RECORD`) and where its partitions end."""

    records: pa.Table
    offsets: Offsets


class Repartitioned(NamedTuple):
    """`read` records of the old topic became `sent` records of the new one. `notes`: what may come out differently (see
    `streaming.log.merge.Merged`) and what to watch."""

    read: int
    sent: int
    notes: list[str]


def repartition_topic(
    source: str,
    ingress: str,
    *,
    partitions: int | None = None,
    store: str | None = None,
    config: KafkaConfig = PLAIN,
    paced: bool = False,
    progress: Callable[[int, int], None] | None = None,
    stop: threading.Event | None = None,
) -> Repartitioned:
    """Copies the topic `source` to the topic `ingress` (both ``kafka://…``). The whole log is held in memory.

    Args:
        ingress: an empty topic, or one that is created with `partitions`.
        store: the store of the query that folded `source`. Its output tables have the ticks of the trigger, which are
            then part of time; without it, time is that of the records alone. Records that the query set aside (see
            `schemas.effects.RULES_OF_A_RUN`) are left out.
        config: credentials for both.
        paced, progress, stop: as in `streaming.kafka.produce.produce_log`.

    Raises:
        LogError, KafkaUrlError, KafkaConfigError: an argument is wrong, such as the store of a query on another topic, or `source` is
            incomplete or cannot be given other partitions.
        KafkaUnreachable: no Kafka answers.
        NotProduced: Kafka refused a record, the copy was stopped, `source` grew, or another process wrote: start again with another topic.
    """
    old, new = KafkaUrl.parse(source), KafkaUrl.parse(ingress)
    if old == new or not are_distinct([old, new], config):
        raise LogError(f"{source} can't be read and written at once: choose another topic to write")
    with administration(new, config) as admin:
        if _records(admin, new):
            raise LogError(f"topic {new.topic} has records already: choose another topic to write")
    ticks = None if store is None else _ticks(store, old, config)
    log = read_topic(old, config)
    records, notes = log.records, []
    if store is not None and (aside := read_set_aside(store)):
        records = _without(records, aside)
        notes.append(
            f"{len(log.records) - len(records)} records were left out, because the query on {source} set them aside: see "
            f"`magnetar quarantine list {store}`"
        )
    merged = merge_partitions(records, ticks)
    sent = produce_log(
        merged.log, ingress, partitions=partitions, config=config, paced=paced, progress=progress, stop=stop
    )
    if stop is not None and stop.is_set():
        raise NotProduced(f"stopped after {sent} records: start again with another topic than {new.topic}")
    with administration(new, config) as admin:
        if (found := _records(admin, new)) != sent:
            raise NotProduced(
                f"topic {new.topic} has {found} records, of which this copy sent {sent}: another producer "
                "wrote to it; start again with another topic"
            )
    with administration(old, config) as admin:
        now = _records(admin, old)
    if more := now - sum(end for _, end in log.offsets.values()):
        raise NotProduced(
            f"topic {old.topic} got {more} more records, which {new.topic} lacks: stop its writers, and "
            "start again with another topic"
        )
    return Repartitioned(len(log.records), sent, [*notes, *merged.notes, *_other_choice(log)])


def _records(admin: KafkaAdminClient, url: KafkaUrl) -> int:
    """The number of records that were ever written to a topic."""
    return sum(end for _, end in topic_offsets(admin, url.topic).values())


def read_topic(url: KafkaUrl, config: KafkaConfig = PLAIN) -> TopicLog:
    """The whole log in a Kafka topic, as the query reads it, one ingress partition after the other: so it is the same whenever it is read.

    Raises `LogError` if the topic does not exist or no longer holds all that was written to it, or if a transaction does not end;
    `KafkaUnreachable`, also if Kafka deletes records before they are read.
    """
    with administration(url, config) as admin:
        offsets = topic_offsets(admin, url.topic)
        if not offsets:
            raise LogError(f"{url.bootstrap} has no topic {url.topic}: check the address")
        (policy,) = topic_settings(admin, url, "cleanup.policy")
    gone = "so its brokers can't be folded again: see docs/operate/partitions.md"
    for partition, (first, _) in offsets.items():
        if first:
            raise LogError(
                f"topic {url.topic}, partition {partition}: the records before offset {first} are deleted, {gone}"
            )
    if "compact" in policy:
        raise LogError(f"topic {url.topic} is compacted, {gone}")
    found = Spool(RECORD)
    for piece in read_records(url, offsets, config):
        found.add(piece)
    parts = by_partition(found.table()).values()
    return TopicLog(pa.concat_tables([RECORD.empty_table(), *parts]), offsets)


def read_records(url: KafkaUrl, offsets: Offsets, config: KafkaConfig = PLAIN) -> Iterator[pa.Table]:
    """The committed records of a Kafka topic between `offsets`, some thousand at a time. Each partition's are in order.

    `offsets` has all partitions of the topic. Raises `KafkaUnreachable`, also if Kafka deletes some of the records before they are read, and
    `LogError` if a transaction does not end.
    """
    from kafka import TopicPartition

    ends = {
        TopicPartition(url.topic, partition): end
        for partition, (first, end) in offsets.items()
        if first < end
    }
    with consuming(
        url, config, allow_auto_create_topics=False, isolation_level="read_committed", max_poll_records=_CHUNK
    ) as consumer:
        consumer.assign([*ends])
        for part in ends:
            consumer.seek(part, offsets[part.partition][0])
        empty = 0
        while any(consumer.position(part) < end for part, end in ends.items()):
            rows = [record for own in consumer.poll(_POLL_MS).values() for record in own]
            if rows:
                read = {name: [getattr(record, name) for record in rows] for name in READ.names}
                yield pa.Table.from_batches([ingress_records(pa.record_batch(read, READ), len(offsets))])
            empty = 0 if rows else empty + 1
            if empty == _EMPTY_POLLS:
                committed = consumer.end_offsets([*ends], PATIENCE_MS)  # of what is committed
                if all(consumer.position(part) >= min(end, committed[part]) for part, end in ends.items()):
                    raise open_transaction(url.topic)
                raise KafkaUnreachable(
                    f"Kafka at {url.bootstrap} has returned no record of topic {url.topic} for {_EMPTY_POLLS} s, though some "
                    "are left: check that all its brokers are up"
                )


def open_transaction(topic: str) -> LogError:
    """The error of a topic that can't be read to its end now."""
    return LogError(
        f"topic {topic} has records of a transaction that is open: wait until its writer, such as a server, ends it, or Kafka does because "
        "that is gone (transaction.timeout.ms), and start again"
    )


def _other_choice(log: TopicLog) -> list[str]:
    pairs = log.records.group_by(["topic", "partition"]).aggregate([])
    homes = zip(pairs["topic"].to_pylist(), pairs["partition"].to_pylist(), strict=True)
    return note_on_strays(((topic, home) for topic, home in homes if topic), len(log.offsets))


def _without(records: pa.Table, aside: Collection[Coordinates]) -> pa.Table:
    places = zip(records["partition"].to_pylist(), records["offset"].to_pylist(), strict=True)
    return records.filter(pa.array([place not in aside for place in places], pa.bool_()))


def _ticks(store: str, source: KafkaUrl, config: KafkaConfig) -> pa.Table:
    """The ticks of the query that folded `source`. Raises `LogError` if the store is another one's, or has none."""
    from sinks.storage import within
    from sinks.tables import read_table

    try:
        partition_counts(source, store, config)
    except IngressChanged as error:
        raise LogError(
            f"{store} is not the store of a query on topic {source.topic}, but on another one, or on one of that name that was deleted or "
            "recreated since: its ticks belong to another log. Give the store of the query on the old topic, if it wrote tables, or none"
        ) from error
    ticks = read_table(within(store, "tables"), "TICK")
    if not len(ticks):
        raise LogError(
            f"{store} has no table of ticks: give the store of the query on the old topic, if it wrote tables, or none"
        )
    return ticks
