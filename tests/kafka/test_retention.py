"""How long a topic keeps its records, and what a query says about that."""

import time
from pathlib import Path

import msgspec
import pytest
from kafka import TopicPartition

from streaming.jobs.run import run_query
from streaming.kafka.client import administration
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.retention import LogLost, check_retention
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from streaming.state.seed import NotWhole, Origin, Seed, SeedWriter
from tests.spark.helpers import log_of

pytestmark = [pytest.mark.kafka, pytest.mark.feature("J1")]

HOUR = 3_600_000


def topic(kafka: LocalKafka, name: str, age: int = 0, **config: str) -> KafkaUrl:
    """A topic of one partition with three records, the first of which is `age` ms old."""
    url = KafkaUrl(kafka.bootstrap, name)
    now = time.time_ns() // 1_000_000
    with administration(url) as admin:
        configs = {key.replace("_", "."): value for key, value in config.items()}
        spec = {"num_partitions": 1, "replication_factor": 1, "configs": configs}
        admin.create_topics({name: spec}, wait_for_metadata=True)
    records = [
        (now - (age if n == 0 else 0), "persistent://a/b/t", {"producer": "p", "sequence_id": n})
        for n in range(3)
    ]
    produce_log(log_of(*records), f"kafka://{kafka.bootstrap}/{name}")
    return url


def test_a_topic_that_keeps_everything_needs_no_word(kafka: LocalKafka) -> None:
    url = KafkaUrl(kafka.bootstrap, "kept-for-ever")
    ensure_topic(url, 2)
    assert check_retention(url, None) == []
    assert check_retention(url, {0: 0, 1: 0}) == []


def test_how_long_the_query_may_be_stopped(kafka: LocalKafka) -> None:
    url = topic(kafka, "kept-a-week", retention_ms=str(7 * 24 * HOUR), retention_bytes="5000000")
    (note,) = check_retention(url, {0: 3})
    assert note == (
        "topic kept-a-week keeps records for 7 days, up to 5,000,000 bytes per partition, counted from their timestamps: that must be "
        "longer than the query is ever stopped or behind. It needs only records that it has not folded; a replay needs all"
    )


def test_a_query_that_is_far_behind_is_warned(kafka: LocalKafka) -> None:
    url = topic(kafka, "behind-retention", age=HOUR + 5_000, retention_ms=str(2 * HOUR))
    said = check_retention(url, {0: 0})
    assert said[0].startswith("topic behind-retention keeps records for 2 hours, counted")
    assert said[1].startswith(
        "the oldest record that the query has not folded is from 1 hour ago: Kafka may delete it"
    )
    assert len(check_retention(url, {0: 1})) == 1
    assert len(check_retention(url, None)) == 2


def test_records_that_are_gone(kafka: LocalKafka) -> None:
    url = topic(kafka, "beheaded", retention_ms="-1")
    with administration(url) as admin:
        admin.delete_records({TopicPartition("beheaded", 0): 2})
    assert check_retention(url, {0: 2}) == []
    with pytest.raises(
        LogLost, match="has deleted the records before offset 2, and the query has not folded those from 1 on"
    ):
        check_retention(url, {0: 1})
    (note,) = check_retention(url, None)
    assert note.startswith("topic beheaded has lost its beginning (partition 0: the records before offset 2)")
    assert "see magnetar state" in note


def test_a_compacted_topic(kafka: LocalKafka) -> None:
    url = KafkaUrl(kafka.bootstrap, "compacted-commands")
    configs = {"cleanup.policy": "compact", "retention.ms": "300"}
    with administration(url) as admin:
        spec = {"num_partitions": 1, "replication_factor": 1, "configs": configs}
        admin.create_topics({url.topic: spec}, wait_for_metadata=True)
    for offsets in ({0: 0}, None):
        with pytest.raises(LogLost, match="topic compacted-commands is compacted .cleanup.policy=compact."):
            check_retention(url, offsets)


def test_a_query_does_not_start_with_a_part_of_the_states(tmp_path: Path) -> None:
    """Long before Spark and Kafka."""
    store = str(tmp_path / "store")
    writer = SeedWriter(store)
    origin = Origin(states="the checkpoint c", ingress="t", topic_id=None, partitions=2, ends=[])
    writer.begin(origin)
    writer.write(0, b"state")
    with pytest.raises(
        NotWhole, match="has only part of the states of the checkpoint c: run the same magnetar state"
    ):
        run_query("kafka://127.0.0.1:1/t", tmp_path / "checkpoint", store)
    writer.finish(Seed(partitions=2))
    with pytest.raises(NotWhole, match="has its states: start the query"):
        writer.begin(origin)
    for other in ({"states": "the checkpoint d"}, {"ingress": "u"}, {"ends": [1]}):
        with pytest.raises(NotWhole, match="has the states of the checkpoint c, .*: use another store and"):
            writer.begin(msgspec.structs.replace(origin, **other))
