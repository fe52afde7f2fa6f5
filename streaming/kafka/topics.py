"""Topics of commands in a Kafka: create them, and see what they hold."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from schemas.records import LARGEST
from streaming.kafka.client import PATIENCE_MS, KafkaUnreachable, administration, consuming
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.url import KafkaUrl
from streaming.log.partition import PARTITIONS

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_TOPIC_CONFIG = {
    # Records carry the log's own timestamps, which may be years old, and the log is the truth: nothing expires.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": str(LARGEST),
}


LATEST = 9 * 10**15
"""No record of a topic has a later time (ms)."""

_BEYOND_SPARK = dict.fromkeys(
    ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"), str(LATEST)
)
"""Spark holds times in microseconds: it fails on a record whose timestamp is more than 292,000 years away. Kafka has these since 3.6."""

_POLL_MS = 100


class NoSuchTopic(RuntimeError):
    """A Kafka topic does not exist. The text says which, and who creates it."""


class NotShown(KafkaUnreachable):
    """Kafka does not show a topic's settings to this user. The text says which right is missing."""


Offsets = dict[int, tuple[int, int]]
"""By partition: the offset of the first record, and the offset after the last."""


def ensure_topic(url: KafkaUrl, partitions: int = PARTITIONS, config: KafkaConfig = PLAIN) -> int:
    """Creates the topic, for records of any age and up to 16 MiB, unless it exists. Returns its number of partitions.

    Raises `KafkaUnreachable`.
    """
    with administration(url, config) as admin:
        create_topic(admin, url.topic, partitions)
        (topic,) = admin.describe_topics([url.topic])
        return len(topic["partitions"])


def largest_value(url: KafkaUrl, config: KafkaConfig = PLAIN) -> int:
    """The bytes of the largest record that a topic takes from Magnetar's producers. Raises `KafkaUnreachable`."""
    from sinks.kafka import topic_limit

    with administration(url, config) as admin:
        return topic_limit(admin, url.topic)


def create_topic(admin: KafkaAdminClient, topic: str, partitions: int) -> None:
    """Creates a topic as `ensure_topic` does, unless it exists."""
    from kafka.errors import InvalidConfigurationError, TopicAlreadyExistsError

    if topic not in admin.list_topics():
        spec = {
            "num_partitions": partitions,
            "replication_factor": -1,
            "configs": _TOPIC_CONFIG | _BEYOND_SPARK,
        }
        with suppress(TopicAlreadyExistsError):  # somebody else was faster
            try:
                admin.create_topics({topic: spec}, wait_for_metadata=True)
            except InvalidConfigurationError:
                admin.create_topics({topic: spec | {"configs": _TOPIC_CONFIG}}, wait_for_metadata=True)


def existing_topic(url: KafkaUrl, created_by: str, config: KafkaConfig = PLAIN) -> Offsets:
    """What the partitions of a topic hold. Raises `NoSuchTopic` with what creates it, and `KafkaUnreachable`."""
    with administration(url, config) as admin:
        offsets = topic_offsets(admin, url.topic)
    if not offsets:
        raise NoSuchTopic(f"Kafka at {url.bootstrap} has no topic {url.topic!r}: {created_by}")
    return offsets


def holds_records(url: KafkaUrl, config: KafkaConfig = PLAIN) -> bool:
    """Whether the topic holds a record, or held one that is deleted. Records of a transaction that did not end are none.

    Raises `KafkaUnreachable`, also if Kafka does not answer for `PATIENCE_MS`.
    """
    from kafka import TopicPartition

    with consuming(url, config, isolation_level="read_committed", max_poll_records=1) as consumer:
        parts = [TopicPartition(url.topic, part) for part in consumer.partitions_for_topic(url.topic) or ()]
        if any(consumer.beginning_offsets(parts, PATIENCE_MS).values()):
            return True
        ends = consumer.end_offsets(parts, PATIENCE_MS)  # of what is committed
        consumer.assign(parts)
        for part in parts:
            consumer.seek(part, 0)

        def passed() -> int:
            return sum(min(consumer.position(part, _POLL_MS) or 0, ends[part]) for part in parts)

        at, until = 0, time.monotonic() + PATIENCE_MS / 1000
        while (now := passed()) < sum(ends.values()):
            if consumer.poll(timeout_ms=_POLL_MS):
                return True
            if now > at:  # it is past records of transactions that were aborted
                at, until = now, time.monotonic() + PATIENCE_MS / 1000
            if time.monotonic() > until:
                raise KafkaUnreachable(
                    f"Kafka at {url.bootstrap} does not show what topic {url.topic} has: check that all "
                    "its brokers are up, and try again"
                )
        return False


def are_distinct(topics: Iterable[KafkaUrl], config: KafkaConfig = PLAIN) -> bool:
    """Whether the topics differ, even if two addresses lead to one Kafka. Connects to each address, unless there is one.

    Raises `KafkaUnreachable`.
    """
    urls = list(topics)
    addresses = {url.bootstrap: url for url in urls}
    if len(addresses) == 1:
        return len(set(urls)) == len(urls)
    clusters = {}
    for bootstrap, url in addresses.items():
        with administration(url, config) as admin:
            clusters[bootstrap] = admin.describe_cluster()["cluster_id"] or bootstrap
    return len({(clusters[url.bootstrap], url.topic) for url in urls}) == len(urls)


def records_within(url: KafkaUrl, size: int, config: KafkaConfig = PLAIN) -> int | None:
    """How many average records of the topic take `size` bytes, as Kafka stores them; at least 1.

    None: the topic is empty, or Kafka does not show sizes to this user. Raises `KafkaUnreachable`.
    """
    with administration(url, config) as admin:
        records = sum(end - first for first, end in topic_offsets(admin, url.topic).values())
        sizes: dict[int, int] = {}  # of the largest replica of each partition
        for broker in admin.describe_log_dirs([url.topic]):
            for own in (own for folder in broker["log_dirs"] for own in folder["topics"]):
                for part in own["partitions"]:
                    index = part["partition_index"]
                    sizes[index] = max(sizes.get(index, 0), part["partition_size"])
    stored = sum(sizes.values())
    return max(1, records * size // stored) if records and stored else None


def topic_settings(admin: KafkaAdminClient, url: KafkaUrl, *names: str) -> list[str]:
    """The values of some settings of a topic that exists. Raises `NotShown`."""
    from kafka.admin import ConfigResource

    wanted = ConfigResource("TOPIC", url.topic, list(names))
    found = admin.describe_configs([wanted], config_filter="all")["topic"].get(url.topic, {})
    if hidden := [name for name in names if name not in found]:
        raise NotShown(
            f"Kafka at {url.bootstrap} does not show {' and '.join(hidden)} of topic {url.topic!r} to this user: grant it the right "
            f"DescribeConfigs on the topic (kafka-acls.sh --add --allow-principal User:NAME --operation DescribeConfigs --topic {url.topic}), "
            "see docs/operate/security.md#rights-in-kafka"
        )
    return [found[name]["value"] for name in names]


def committed_ends(admin: KafkaAdminClient, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Up to which offset the partitions can be read as a query reads them. Where a transaction is open, that is its first record, and
    otherwise the end."""
    from kafka import IsolationLevel, TopicPartition
    from kafka.admin import OffsetSpec

    latest = {TopicPartition(topic, partition): OffsetSpec.LATEST for partition in partitions}
    found = admin.list_partition_offsets(latest, IsolationLevel.READ_COMMITTED) if latest else {}
    return {part.partition: each.offset for part, each in found.items()}


def topic_offsets(admin: KafkaAdminClient, topic: str) -> Offsets:
    """What the partitions of the topic hold, also of transactions that are open; empty if there is no such topic."""
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec

    (described,) = admin.describe_topics([topic])
    parts = [TopicPartition(topic, int(each["partition_index"])) for each in described["partitions"]]
    first, end = (
        admin.list_partition_offsets(dict.fromkeys(parts, at)) if parts else {}
        for at in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    return {part.partition: (first[part].offset, end[part].offset) for part in parts}
