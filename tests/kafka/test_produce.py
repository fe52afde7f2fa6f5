"""The time of records that `magnetar produce` sends."""

import time
from pathlib import Path

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, TopicPartition

from streaming.kafka.client import administration
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.topics import holds_records
from streaming.kafka.url import KafkaUrl
from streaming.log.table import LOGICAL, LogError

pytestmark = pytest.mark.kafka

LINE = '{{"timestamp":{},"topic":"persistent://shop/day/t","producer":"p","sequence_id":{}}}\n'


def sent(kafka: LocalKafka, topic: str, log: Path, times: list[int], *, paced: bool = False) -> list[int]:
    log.write_text("".join(LINE.format(each, number) for number, each in enumerate(times)))
    produce_log(log, f"kafka://{kafka.bootstrap}/{topic}", partitions=1, paced=paced)
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap)
    part = TopicPartition(topic, 0)
    consumer.assign([part])
    consumer.seek_to_beginning()
    found: list[int] = []
    while len(found) < len(times):
        found += [each.timestamp for each in consumer.poll(timeout_ms=1000).get(part, ())]
    consumer.close()
    return found


def test_a_log_that_tells_time_keeps_it(kafka: LocalKafka, tmp_path: Path) -> None:
    """A record at 0 would take the time of its partition to today, and TTLs along."""
    times = [0, 1000, 0, 2000]
    assert sent(kafka, "with-time", tmp_path / "log.jsonl", times) == times
    times = [0, 1_700_000_000_000, 1_700_000_000_001]
    assert sent(kafka, "paced", tmp_path / "log.jsonl", times, paced=True) == times


def test_a_log_without_time_is_of_now(kafka: LocalKafka, tmp_path: Path) -> None:
    before = time.time_ns() // 1_000_000
    found = sent(kafka, "without-time", tmp_path / "log.jsonl", [0, 0])
    assert before <= found[0] <= found[1] <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("odd", [-1, 2**63 - 1])
def test_a_time_that_kafka_does_not_take_is_named_before_any_record_is_sent(
    kafka: LocalKafka, odd: int
) -> None:
    url = KafkaUrl(kafka.bootstrap, f"odd{odd}")
    log = pa.Table.from_pylist(
        [{"timestamp": time, "topic": "persistent://a/b/c", "value": b"{}"} for time in (5, odd, 7)], LOGICAL
    )
    with pytest.raises(LogError, match=f"record 2 of the log has the timestamp {odd}, .* nothing was sent"):
        produce_log(log, f"kafka://{url.bootstrap}/{url.topic}")
    with administration(url) as admin:
        assert url.topic not in admin.list_topics()


@pytest.mark.kafka
def test_a_record_that_is_too_large_is_named_before_any_is_sent(kafka: LocalKafka) -> None:
    url = KafkaUrl(kafka.bootstrap, "one-too-large")
    log = pa.Table.from_pylist(
        [{"timestamp": 1, "topic": "persistent://a/b/c", "value": b"x" * size} for size in (5, 17 << 20, 5)],
        LOGICAL,
    )
    with pytest.raises(
        LogError,
        match="record 2 of the log has 17,825,792 bytes, and topic one-too-large takes 16,760,832: nothing was sent",
    ):
        produce_log(log, f"kafka://{url.bootstrap}/{url.topic}")
    assert not holds_records(url)
