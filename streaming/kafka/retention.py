"""How long an ingress topic keeps its records, and whether that is long enough for a query.

A query needs the records that it has not folded, and no others: its states are in the checkpoint, its entries in the store, and a
quarantined record is kept with its value. What needs the whole log is a replay of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streaming.kafka.client import administration, consuming
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.topics import topic_offsets, topic_settings
from streaming.kafka.url import KafkaUrl

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))
_ENOUGH = 2
"""Kafka deletes whole segments, and a query that is behind falls behind further, so half of the retention is when to worry."""
_POLL_MS = 2_000


class LogLost(RuntimeError):
    """Kafka has deleted records that a query has not folded, or does so by compaction. The text says which, and what to do."""


def check_retention(
    url: KafkaUrl, offsets: Mapping[int, int] | None, config: KafkaConfig = PLAIN
) -> list[str]:
    """Sentences on how long the topic must keep its records, and on what threatens those that the query has not folded.

    `offsets`: the first offset that was not folded, by partition; None: the query is new. Raises `LogLost`, also for a topic that
    is compacted, and `KafkaUnreachable`, also if the user may not see its settings.
    """
    with administration(url, config) as admin:
        held = topic_offsets(admin, url.topic)
        check_policy(admin, url)
        keeps_ms, keeps_bytes = topic_settings(admin, url, "retention.ms", "retention.bytes")
    notes = []
    if offsets is None:
        if gone := {partition: first for partition, (first, _) in held.items() if first}:
            partition, first = next(iter(gone.items()))
            notes.append(
                f"topic {url.topic} has lost its beginning (partition {partition}: the records before "
                f"offset {first}). The query is new and does not know what they did. To continue from the "
                "states of another query, see magnetar state"
            )
    else:
        for partition, (first, _) in held.items():
            if (at := offsets.get(partition, 0)) < first:
                raise LogLost(
                    f"topic {url.topic}, partition {partition}: Kafka has deleted the records before "
                    f"offset {first}, and the query has not folded those from {at} on. Nothing is skipped "
                    "silently: give the query a new checkpoint and a new store, and it starts with what "
                    "Kafka has"
                )
    if int(keeps_ms) < 0 and int(keeps_bytes) < 0:
        return notes
    keeps = [f"for {_span(int(keeps_ms))}"] if int(keeps_ms) >= 0 else []
    keeps += [f"up to {int(keeps_bytes):,} bytes per partition"] if int(keeps_bytes) >= 0 else []
    notes.append(
        f"topic {url.topic} keeps records {', '.join(keeps)}, counted from their timestamps: that must be longer than the query is ever stopped "
        "or behind. It needs only records that it has not folded; a replay needs all"
    )
    if int(keeps_ms) >= 0:
        starts = {partition: (offsets or {}).get(partition, first) for partition, (first, _) in held.items()}
        left = {partition: at for partition, at in starts.items() if at < held[partition][1]}
        oldest = _oldest(url, left, config)
        if oldest is not None and (age := time.time_ns() // 1_000_000 - oldest) * _ENOUGH > int(keeps_ms):
            notes.append(
                f"the oldest record that the query has not folded is from {_span(age)} ago: Kafka may delete it before the query comes to "
                "it. Raise retention.ms"
            )
    return notes


def check_policy(admin: KafkaAdminClient, url: KafkaUrl) -> None:
    """Raises `LogLost` if Kafka compacts the topic: of all commands on a Pulsar topic, it may then keep only the last. And `NotShown`."""
    (policy,) = topic_settings(admin, url, "cleanup.policy")
    if "compact" in policy:
        raise LogLost(
            f"topic {url.topic} is compacted (cleanup.policy={policy}): Kafka deletes commands that the "
            "query has not folded. Set cleanup.policy=delete. If it was compacted while commands were "
            "waiting, some are lost, and there is no way to tell which"
        )


def _oldest(url: KafkaUrl, offsets: Mapping[int, int], config: KafkaConfig) -> int | None:
    """The earliest timestamp (ms) of the first records at or after some offsets. None: Kafka gives none in time."""
    from kafka import TopicPartition

    with consuming(url, config, max_poll_records=1) as consumer:
        found = {}
        for partition, offset in offsets.items():
            part = TopicPartition(url.topic, partition)
            consumer.assign([part])
            consumer.seek(part, offset)
            for records in consumer.poll(timeout_ms=_POLL_MS).values():
                found[partition] = records[0].timestamp
        return min(found.values(), default=None)


def _span(ms: int) -> str:
    """A time in its largest unit that is at least 1."""
    for name, size in _UNITS:
        if ms >= size:
            count = ms // size
            return f"{count} {name}{'s' if count > 1 else ''}"
    return f"{ms} ms"
