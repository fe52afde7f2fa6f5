"""From a log through Kafka and the live query to tables, on a real Kafka broker."""

import threading
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from schemas.commands import Decoded, Publish
from schemas.keys import NOT_UTF8, topic_of
from schemas.outputs import OUTPUT
from schemas.records import Coordinates
from sinks.quarantine import read_quarantine, read_set_aside
from sinks.rows import to_tables
from sinks.tables import read_table
from streaming.broker.broker import Broker
from streaming.fold.records import NoSuchRecord
from streaming.jobs.replay import replay_in_process
from streaming.jobs.run import run_query
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.records import READ, ingress_records
from streaming.kafka.repartition import read_topic, repartition_topic
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl, KafkaUrlError
from streaming.log.partition import ingress_partition
from streaming.log.table import LogError
from streaming.runtime.clock import FoldClock
from streaming.spark import source, state
from streaming.spark.failure import explanation
from streaming.spark.query import Written
from tests.broker.kit import feed
from tests.rows import together
from tests.spark.fake import FakeBroker
from tests.spark.helpers import START, Nowhere, log_of, read_with_spark, traffic

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.feature("J1")
def test_a_log_is_in_kafka_as_it_was(spark: SparkSession, kafka: LocalKafka) -> None:
    url = f"kafka://{kafka.bootstrap}/as-it-was"
    records = traffic(partitions=3)
    calls: list[tuple[int, int]] = []
    assert produce_log(records, url, progress=lambda *now: calls.append(now)) == len(records)
    assert calls[-1] == (len(records), len(records))
    stored = read_with_spark(spark, kafka.bootstrap, "as-it-was", 4)
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert stored.sort_by(order).equals(records.sort_by(order).combine_chunks())
    with pytest.raises(LogError, match="topic as-it-was has 4"):
        produce_log(traffic(partitions=7), url)


def test_without_a_time_the_time_of_sending_counts(kafka: LocalKafka) -> None:
    from kafka import KafkaConsumer

    produce_log(log_of((0, "t", b"{}")), f"kafka://{kafka.bootstrap}/timeless", partitions=1)
    consumer = KafkaConsumer("timeless", bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
    assert next(consumer).timestamp > START
    consumer.close()


def test_odd_keys_and_values(spark: SparkSession, kafka: LocalKafka) -> None:
    from kafka import KafkaProducer

    ensure_topic(KafkaUrl(kafka.bootstrap, "odd"), 1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    keys = [
        b"\xff",
        b"\xfe\x00a",
        "ü\0".encode(),
        b"\xed\xa0\x80",
        b"\xc0\x80",
        f"{NOT_UTF8}ff".encode(),
        b"\0",
    ]
    for key, value in ((b"", b"1"), (None, b"2"), *((each, b"3") for each in keys), ("ü".encode(), None)):
        producer.send("odd", value, key=key, timestamp_ms=5)
    producer.close()
    rows = read_with_spark(spark, kafka.bootstrap, "odd", 1).sort_by("offset").to_pylist()
    assert [(row["topic"], row["value"], row["timestamp"]) for row in rows] == [
        (None, b"1", 5), (None, b"2", 5), *((topic_of(each), b"3", 5) for each in keys), ("ü", b"", 5),
    ]  # fmt: skip


def test_a_topic_in_the_value_stands_in_for_a_key() -> None:
    topics = [f"persistent://public/default/{n}" for n in range(9)]
    values = [b'{"topic": "%s", "producer": "p", "sequence_id": 1}' % topic.encode() for topic in topics]
    values += [
        b'{"producer": "topic", "sequence_id": 1}',
        b'{"topic": "", "command": "TICK"}',
        b"\x80",
        b"",
        b'{"topic',
    ]
    rows = [
        (partition, key, value)
        for partition in range(4)
        for key in (None, b"", b"key")
        for value in [*values, None]
    ]
    partitions, keys, sent = zip(*rows, strict=True)
    columns = [partitions, [0] * len(rows), [START] * len(rows), keys, sent]
    read = pa.record_batch([pa.array(*each) for each in zip(columns, READ.types, strict=True)], READ)
    found = ingress_records(read, 4)
    assert found["value"].to_pylist() == [value or b"" for value in sent]
    named = {
        (ingress_partition(topic, 4), value): topic for topic, value in zip(topics, values, strict=False)
    }
    assert found["topic"].to_pylist() == [
        key.decode() if key else named.get((partition, value or b"")) for partition, key, value in rows
    ]


def test_the_key_of_the_state_has_the_columns_of_old_checkpoints(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    # Spark refuses a checkpoint if another column of the key may be null.
    source.stage(traffic(), tmp_path / "staged", batches=1)
    files, topic = (
        source.staged(spark, tmp_path / "staged"),
        source.kafka(spark, kafka.bootstrap, "any", partitions=1),
    )
    for each in files.schema, topic.schema:
        assert (each["partition"].nullable, each["slot"].nullable) == (True, False)


@pytest.mark.feature("J1")
def test_the_live_query(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> None:
    """A live run, stopped and started again: what it wrote replays exactly, ticks included."""
    url = f"kafka://{kafka.bootstrap}/live-query"
    half = [
        (1000 + n, f"t{n % 5}", {"producer": "p", "sequence_id": n, "payload": "x" * n}) for n in range(20)
    ]
    for first, last in ((0, 10), (10, 20)):
        produce_log(log_of(*half[first:last]), url, partitions=2)
        stop = threading.Event()
        seen: list[int] = []

        def watch(written: Written, stop: threading.Event = stop, seen: list[int] = seen) -> None:
            seen.append(sum(n for (_, kind), n in written.rows.items() if kind == "SEND_RECEIPT"))
            if sum(seen) == 10 and len(seen) > 2:  # and idle triggers after it
                stop.set()

        run_query(
            url,
            tmp_path / "checkpoint",
            str(tmp_path / "store"),
            trigger="200ms",
            spark=spark,
            stop=stop,
            on_batch=watch,
            broker=FakeBroker,  # type: ignore[arg-type]
        )
        assert sum(seen) == 10

    rows = read_table(str(tmp_path / "store" / "tables"))
    states = state.partition_states(spark, tmp_path / "checkpoint")
    records = read_with_spark(spark, kafka.bootstrap, "live-query", 2).sort_by("offset").to_pylist()
    for each in states:
        broker = FakeBroker(each.partition, Nowhere().reader(each.partition))
        own = [row for row in rows.to_pylist() if row["partition"] == each.partition]
        for record in (record for record in records if record["partition"] == each.partition):
            feed(broker, record["offset"], record["timestamp"], record["topic"], record["value"])
            for row in own:
                if row["kind"] == "TICK" and row["offset"] == record["offset"]:
                    broker.tick(row["clock"])
        assert broker.encode() == each.broker
        again = together(to_tables(each.partition, broker.take())).to_pylist()
        stored = ["payload", "metadata"]
        assert [{k: v for k, v in row.items() if k not in stored} for row in again] == [
            {k: row[k] for k in OUTPUT.names if k not in stored} for row in own
        ]


def test_an_address_that_is_none() -> None:
    assert KafkaUrl.parse("kafka://a:1,b:2/t") == KafkaUrl("a:1,b:2", "t")
    for text in ("kafka://a:1", "http://a:1/t", "a:1/t", "kafka://a:1/t/u"):
        with pytest.raises(KafkaUrlError, match="expected kafka://"):
            KafkaUrl.parse(text)


class Poisoned(Broker):
    """A broker with a bug: it fails on one message."""

    each_record = True

    def apply(self, offset: int, timestamp: int, topic: str | None, command: Decoded, value: bytes) -> None:
        if isinstance(command, Publish) and command.payload == "poison":
            raise RecursionError("too deep\nfor this")
        super().apply(offset, timestamp, topic, command, value)


@pytest.mark.feature("J6")
def test_a_record_that_stops_the_query_and_one_ahead_of_time(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    """The first is set aside by name, the second by its timestamp. A replay with the quarantine gives the same rows."""
    url, topic = f"kafka://{kafka.bootstrap}/poisoned", "persistent://a/b/t"
    now = time.time_ns() // 1_000_000
    ahead = {6: 30 * 60_000, 7: 90_000}
    payloads = {5: "poison"}
    produce_log(
        log_of(
            *(
                (
                    now + ahead.get(n, n),
                    topic,
                    {"producer": "p", "sequence_id": n, "payload": payloads.get(n, "x")},
                )
                for n in range(10)
            )
        ),
        url,
        partitions=1,
    )
    stop = threading.Event()

    def watch(written: Written) -> None:
        if (0, "SEND_RECEIPT") in written.rows:
            stop.set()

    def run(*names: str, clock: FoldClock = "trigger", folder: str = "live") -> str:
        stop.clear()
        run_query(
            url,
            tmp_path / folder / "checkpoint",
            str(tmp_path / folder),
            clock=clock,
            trigger="200ms",
            spark=spark,
            stop=stop,
            on_batch=watch,
            broker=Poisoned,
            quality=False,
            set_aside=[Coordinates(*map(int, name.split(":"))) for name in names],
            max_ahead_ms=60_000,
        )
        return str(tmp_path / folder)

    with pytest.raises(StreamingQueryException) as failed:
        run()
    assert explanation(str(failed.value), "Start again").startswith(
        f"partition 0, offset 5, topic '{topic}', carrying out the command: RecursionError: too deep for this; this is a "
        "bug in Magnetar: please report it. Started again, Magnetar comes to this record again: to go on without it, "
        "start with --quarantine 0:5, or without the topic at hand, start with --quarantine-topic "
    )
    for name, problem in (
        ("0:10", "partition 0 of topic poisoned has offsets 0 to 9"),
        ("1:5", "topic poisoned has 1 partitions"),
    ):
        with pytest.raises(NoSuchRecord, match=f"--quarantine {name}: {problem}"):
            run(name)
    store = run("0:5")
    aside = read_set_aside(store)
    assert {str(at): why.rule for at, why in aside.items()} == {
        "0:5": "set_aside", "0:6": "timestamp_ahead", "0:7": "timestamp_ahead",
    }  # fmt: skip
    assert aside[Coordinates(0, 5)].cause == "an operator set the record aside: --quarantine 0:5"
    # A unit file may name it at every start. A record that was folded can't be named any more.
    stop.set()
    with pytest.raises(
        NoSuchRecord, match="--quarantine 0:4: the query has folded that record already, and is at offset 10"
    ):
        run("0:5", "0:4")
    # Neither dragged the clock along.
    (before,) = state.partition_states(spark, Path(store) / "checkpoint")
    assert now <= before.clock <= time.time_ns() // 1_000_000

    logged = run("0:5", clock="log", folder="by-the-log")
    records = read_topic(KafkaUrl.parse(url)).records
    replay_in_process(records, tmp_path / "replay", quarantined=logged, broker=Poisoned)
    assert read_table(f"{logged}/tables").equals(read_table(str(tmp_path / "replay/tables")))
    assert read_quarantine(logged).equals(read_quarantine(str(tmp_path / "replay")))

    copied = repartition_topic(url, f"kafka://{kafka.bootstrap}/poisoned-2", partitions=2, store=store)
    assert any("3 records were left out" in note for note in copied.notes)
    kept = read_topic(KafkaUrl(kafka.bootstrap, "poisoned-2")).records
    sequence_ids = [msgspec.json.decode(v).get("sequence_id") for v in kept["value"].to_pylist()]
    assert [each for each in sequence_ids if each is not None] == [0, 1, 2, 3, 4, 8, 9]
