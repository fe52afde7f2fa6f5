"""More ingress partitions: a Kafka topic of commands is written again, to a topic that has as many as one wants.

A broker is what its log makes of it, so the new query begins with an empty checkpoint and an empty store, and folds the
same commands. What is asked of the old topic, and what else there is to do, is told in docs/operations.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

from schemas.records import RECORD
from streaming.kafka.client import KafkaUnreachable, administration
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.produce import NotProduced, produce_log
from streaming.kafka.topics import Offsets, topic_offsets
from streaming.kafka.url import KafkaUrl
from streaming.log.merge import merge_partitions
from streaming.log.partition import ingress_partition
from streaming.log.table import LogError

_CHUNK = 1 << 16
_POLL_MS = 1000
_EMPTY_POLLS = 30


class TopicLog(NamedTuple):
    """What is in a topic (columns `RECORD`), and where it ends."""

    records: pa.Table
    offsets: Offsets


class Repartitioned(NamedTuple):
    """`read` records of the old topic became `sent` of the new one. `notes` tell what may be otherwise now, see
    `streaming.log.merge.Merged`, and what to mind."""

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
    """Writes all that is in the topic `source` to the topic `ingress` (both ``kafka://…``). It is in memory meanwhile.

    Args:
        ingress: an empty topic, or one that is made now, with `partitions`.
        store: of the query that folded `source`. The times that records found are then also those of its trigger's
            ticks, which are in its output tables; otherwise those of the records alone.
        config: credentials, for both.
        paced, progress, stop: as of `streaming.kafka.produce.produce_log`.

    Raises:
        LogError, KafkaUrlError, KafkaConfigError: what was asked makes no sense, or `source` isn't whole, or can't be
            given other partitions.
        KafkaUnreachable: no Kafka there.
        NotProduced: a record was refused, it was stopped, or `source` grew: begin again with another topic.
    """
    old, new = KafkaUrl.parse(source), KafkaUrl.parse(ingress)
    if old == new:
        raise LogError(f"{source} can't be read and written at once: name another topic to be written")
    log = read_topic(old, config)
    with administration(new, config) as admin:
        if any(end for _, end in topic_offsets(admin, new.topic).values()):
            raise LogError(f"topic {new.topic} has records already: name another to be written")
    merged = merge_partitions(log.records, None if store is None else _ticks(store))
    sent = produce_log(
        merged.log, ingress, partitions=partitions, config=config, paced=paced, progress=progress, stop=stop
    )
    if stop is not None and stop.is_set():
        raise NotProduced(f"stopped after {sent} records: begin again with another topic than {new.topic}")
    with administration(old, config) as admin:
        now = topic_offsets(admin, old.topic)
    if more := sum(end for _, end in now.values()) - sum(end for _, end in log.offsets.values()):
        raise NotProduced(
            f"topic {old.topic} got {more} more records, which {new.topic} lacks: stop whoever writes to it, and begin "
            "again with another topic"
        )
    return Repartitioned(len(log.records), sent, [*merged.notes, *_other_choice(log)])


def read_topic(url: KafkaUrl, config: KafkaConfig = PLAIN) -> TopicLog:
    """The whole log in a Kafka topic, as Spark's source reads it (see `streaming.spark.source.kafka`).

    Raises `LogError` if the topic isn't there or doesn't hold all that was ever written to it; `KafkaUnreachable`.
    """
    from kafka.admin import ConfigResource

    with administration(url, config) as admin:
        offsets = topic_offsets(admin, url.topic)
        if not offsets:
            raise LogError(f"{url.bootstrap} has no topic {url.topic}: check the address")
        wanted = ConfigResource("TOPIC", url.topic, ["cleanup.policy"])
        found = admin.describe_configs([wanted], config_filter="all")["topic"][url.topic]
    gone = "so its brokers can't be folded again: docs/operations.md says what then"
    for partition, (first, _) in offsets.items():
        if first:
            raise LogError(
                f"topic {url.topic}, partition {partition}: the records before offset {first} are deleted, {gone}"
            )
    if "compact" in found["cleanup.policy"]["value"]:
        raise LogError(f"topic {url.topic} is compacted, {gone}")
    return TopicLog(pa.concat_tables([RECORD.empty_table(), *_read(url, config, offsets)]), offsets)


def _read(url: KafkaUrl, config: KafkaConfig, offsets: Offsets) -> Iterator[pa.Table]:
    from kafka import KafkaConsumer, TopicPartition

    ends = {TopicPartition(url.topic, partition): end for partition, (_, end) in offsets.items() if end}
    consumer = KafkaConsumer(
        bootstrap_servers=url.bootstrap.split(","),
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        max_poll_records=_CHUNK,
        **config.client(),
    )
    try:
        consumer.assign([*ends])
        for part in ends:
            consumer.seek(part, 0)
        empty = 0
        while any(consumer.position(part) < end for part, end in ends.items()):
            rows = [record for own in consumer.poll(_POLL_MS).values() for record in own]
            if rows:
                yield pa.table(
                    [
                        [record.partition for record in rows],
                        [record.offset for record in rows],
                        [record.timestamp for record in rows],
                        # An empty key is no topic, and one that isn't UTF-8 ends in quarantine.
                        [record.key.decode(errors="replace") if record.key else None for record in rows],
                        [record.value or b"" for record in rows],
                    ],
                    schema=RECORD,
                )
            empty = 0 if rows else empty + 1
            if empty == _EMPTY_POLLS:
                raise KafkaUnreachable(
                    f"Kafka at {url.bootstrap} has given no record of topic {url.topic} for {_EMPTY_POLLS} s, though not "
                    "all are read: check that all its brokers are up"
                )
    finally:
        consumer.close()


def _other_choice(log: TopicLog) -> list[str]:
    """A note if who wrote the topic chooses partitions otherwise than `ingress_partition`."""
    pairs = (
        log.records.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([]).to_pylist()
    )
    strays = sorted(
        each["topic"]
        for each in pairs
        if each["topic"] and ingress_partition(each["topic"], len(log.offsets)) != each["partition"]
    )
    if not strays:
        return []
    note = (
        f"{len(strays)} topics (as {strays[0]}) were not in the partition that crc32 of their name gives, where they are "
        "now: whoever writes them must choose it so from now on, or they become two topics each"
    )
    return [note]


def _ticks(store: str) -> pa.Table:
    from sinks.tables import read_table

    ticks = read_table(f"{store.rstrip('/')}/tables", "TICK")
    if not len(ticks):
        raise LogError(
            f"{store} has no table of ticks: name the store of the query on the old topic, if it wrote tables, or none"
        )
    return ticks
