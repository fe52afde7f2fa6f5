"""Copying a Kafka topic to one with more partitions doesn't affect the broker's topics."""

import itertools
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from kafka import KafkaProducer, TopicPartition
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from schemas.records import RECORD
from sinks.tables import read_table
from streaming.cli.app import app
from streaming.jobs.replay import replay_log
from streaming.kafka import repartition
from streaming.kafka.client import administration
from streaming.kafka.ingress import ensure_dataframe, ensure_ingress
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import NotProduced, produce_log
from streaming.kafka.repartition import read_topic, repartition_topic
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from streaming.log.merge import merge_partitions
from streaming.log.partition import partition_log
from streaming.log.table import LogError
from tests.e2e.outcome import of_log
from tests.e2e.processes import wait_until
from tests.spark.helpers import log_of, read_with_spark
from tests.state.by_topic import by_topic
from tests.state.test_other_partitions import made_log

pytestmark = [pytest.mark.kafka, pytest.mark.feature("J1")]

CONFIG = {"command": "BROKER_CONFIG"}
MESSAGES = [
    (1_000 + n, f"persistent://public/default/t{n % 5}", {"producer": "p", "sequence_id": n})
    for n in range(20)
]
LOG = log_of((1_000, None, CONFIG), *MESSAGES)


def topic(kafka: LocalKafka, name: str) -> str:
    return f"kafka://{kafka.bootstrap}/{name}"


def test_two_partitions_become_five(kafka: LocalKafka, tmp_path: Path) -> None:
    old, new = topic(kafka, "two"), topic(kafka, "five")
    log = made_log(800)
    produce_log(log, old, partitions=2)
    read, sent, notes = repartition_topic(old, new, partitions=5)
    assert notes == []
    before, after = (read_topic(KafkaUrl.parse(url)).records for url in (old, new))
    assert (len(before), len(after)) == (read, sent)
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert before.sort_by(order).equals(partition_log(log, 2).sort_by(order))
    assert set(after["partition"].to_pylist()) == set(range(5))
    expected, found = (by_topic(of_log(each, tmp_path / str(len(each)))) for each in (before, after))
    assert found == expected


@pytest.mark.spark
def test_spark_comes_to_the_same_over_other_partitions(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    old, new = topic(kafka, "three"), topic(kafka, "four")
    produce_log(made_log(400), old, partitions=3)
    repartition_topic(old, new, partitions=4)
    before, after = (read_topic(KafkaUrl.parse(url)).records for url in (old, new))
    expected = of_log(before, tmp_path / "expected")
    result = replay_log(after, tmp_path / "replay", batches=3, spark=spark)

    def rows(table: pa.Table) -> list[str]:
        return sorted(
            str(
                {name: value for name, value in row.items() if name not in ("partition", "offset", "ordinal")}
            )
            for row in table.to_pylist()
            if row["topic"] is not None
        )

    for kind in ("SEND_RECEIPT", "MESSAGE", "EXPIRED", "LEDGER_DELETED"):
        assert rows(read_table(str(tmp_path / "replay" / "tables"), kind)) == rows(expected.tables[kind])
    assert result.rows["SEND_RECEIPT"] > 50


@pytest.mark.spark
def test_a_topic_is_read_as_sparks_source_reads_it(spark: SparkSession, kafka: LocalKafka) -> None:
    ensure_topic(KafkaUrl(kafka.bootstrap, "odd-ones"), 2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for key, value in ((b"", b"1"), (None, b"2"), (b"\xff", b"3"), ("ü".encode(), None), (b"a\xc3", b"5")):
        producer.send("odd-ones", value, key=key, partition=1, timestamp_ms=5)
    producer.close()
    expected = read_with_spark(spark, kafka.bootstrap, "odd-ones", 2)
    found = read_topic(KafkaUrl(kafka.bootstrap, "odd-ones")).records
    assert found.sort_by("offset").to_pylist() == expected.sort_by("offset").to_pylist()
    assert found["topic"].null_count == 2


def test_copies_have_one_time_where_the_log_names_none(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking = itertools.count(1_000, 7)  # as if each record took 7 ms
    monkeypatch.setattr("streaming.kafka.produce.time.time_ns", lambda: next(ticking) * 1_000_000)
    produce_log(
        log_of((0, None, CONFIG), (0, "t", {}), (0, None, CONFIG)),
        topic(kafka, "timeless-copies"),
        partitions=3,
    )
    records = read_topic(KafkaUrl.parse(topic(kafka, "timeless-copies"))).records
    times = {row["timestamp"] for row in records.to_pylist() if row["topic"] is None}
    assert (len(records), len(times)) == (7, 2)
    assert merge_partitions(records).notes == []


def test_a_topic_that_is_not_whole_is_refused(kafka: LocalKafka) -> None:
    old, new = topic(kafka, "deleted"), topic(kafka, "of-deleted")
    produce_log(LOG, old, partitions=1)
    with administration(KafkaUrl.parse(old)) as admin:
        admin.delete_records({TopicPartition("deleted", 0): 3})
        admin.create_topics({"compacted": {"num_partitions": 1, "replication_factor": 1, "configs": {"cleanup.policy": "compact"}}},
                            wait_for_metadata=True)  # fmt: skip
    with pytest.raises(
        LogError, match="partition 0: the records before offset 3 are deleted, .* docs/operate/partitions.md"
    ):
        repartition_topic(old, new)
    with pytest.raises(LogError, match="topic compacted is compacted, so its brokers can't"):
        repartition_topic(topic(kafka, "compacted"), new)
    with pytest.raises(LogError, match="has no topic absent: check the address"):
        repartition_topic(topic(kafka, "absent"), new)
    with pytest.raises(LogError, match="can't be read and written at once"):
        repartition_topic(old, old)


def test_a_topic_with_records_is_not_written_to(kafka: LocalKafka) -> None:
    old, new = topic(kafka, "whole"), topic(kafka, "not-empty")
    produce_log(LOG, old, partitions=2)
    produce_log(LOG, new, partitions=3)
    with pytest.raises(LogError, match="not-empty has records already"):
        repartition_topic(old, new)


def test_who_goes_on_writing_is_noticed(kafka: LocalKafka) -> None:
    old, new = topic(kafka, "busy"), topic(kafka, "behind")
    produce_log(LOG, old, partitions=2)

    def meanwhile(sent: int, total: int) -> None:
        produce_log(log_of(MESSAGES[0]), old)

    with pytest.raises(
        NotProduced, match="topic busy got 1 more records, which behind lacks: stop its writers"
    ):
        repartition_topic(old, new, partitions=3, progress=meanwhile)


def test_who_chooses_partitions_otherwise_is_told(kafka: LocalKafka) -> None:
    own = partition_log(LOG, 2)
    swapped = own.set_column(
        0, RECORD.field("partition"), pa.array([1 - each for each in own["partition"].to_pylist()], "int32")
    )
    produce_log(swapped, topic(kafka, "swapped"), partitions=2)
    notes = repartition_topic(topic(kafka, "swapped"), topic(kafka, "straight"), partitions=2).notes
    assert len(notes) == 1
    assert notes[0].startswith(
        "5 topics (such as persistent://public/default/t0) were not in the partition that crc32"
    )


def test_stopped_is_not_done(kafka: LocalKafka) -> None:
    stop = threading.Event()
    stop.set()
    produce_log(LOG, topic(kafka, "all"), partitions=1)
    with pytest.raises(
        NotProduced, match="stopped after 0 records: start again with another topic than part"
    ):
        repartition_topic(topic(kafka, "all"), topic(kafka, "part"), stop=stop)


def test_the_command(kafka: LocalKafka, tmp_path: Path) -> None:
    old, new = topic(kafka, "from-here"), topic(kafka, "to-there")
    produce_log(log_of(*MESSAGES), old, partitions=2)  # doesn't begin with a record for all
    run = CliRunner().invoke(app, ["produce", old, "--ingress", new, "--partitions", "3"])
    assert run.exit_code == 0, run.output
    assert "20 records in " in run.stdout
    assert run.stderr.startswith("magnetar: the log doesn't begin with one record for all partitions")
    again = CliRunner().invoke(app, ["produce", old, "--ingress", new, "--partitions", "3"])
    assert again.exit_code == 2
    assert "to-there has records already" in again.stderr
    no_ticks = CliRunner().invoke(
        app, ["produce", old, "--ingress", topic(kafka, "x"), "--ticks", str(tmp_path)]
    )
    assert "has no table of ticks" in no_ticks.stderr
    ensure_ingress(KafkaUrl.parse(new), str(tmp_path))
    others = CliRunner().invoke(
        app, ["produce", old, "--ingress", topic(kafka, "x"), "--ticks", str(tmp_path)]
    )
    assert others.exit_code == 2
    assert f"{tmp_path} is not the store of a query on topic from-here, but on another one" in others.stderr
    file = CliRunner().invoke(app, ["produce", "a.jsonl", "--ingress", new, "--ticks", str(tmp_path)])
    assert file.exit_code == 2


def test_ticks_are_those_of_the_topic(kafka: LocalKafka, tmp_path: Path) -> None:
    """Whose store it is shows before anything is read of it."""
    old, other, new = (topic(kafka, name) for name in ("own-ticks", "others-ticks", "without-ticks"))
    own, foreign, of_dataframe = (str(tmp_path / name) for name in ("own", "foreign", "of-a-dataframe"))
    for url, store in ((old, own), (other, foreign)):
        produce_log(LOG, url, partitions=2)
        ensure_ingress(KafkaUrl.parse(url), store)
    ensure_dataframe(of_dataframe, 2)
    with pytest.raises(LogError, match="own has no table of ticks"):
        repartition_topic(old, new, partitions=3, store=own)
    for store in (foreign, of_dataframe):
        with pytest.raises(LogError, match=f"{store} is not the store of a query on topic own-ticks"):
            repartition_topic(old, new, partitions=3, store=store)
    with administration(KafkaUrl.parse(old)) as admin:
        admin.delete_topics(["own-ticks"])
        wait_until(lambda: "own-ticks" not in admin.list_topics(), "the end of the topic")
        assert "without-ticks" not in admin.list_topics()
    produce_log(LOG, old, partitions=2)
    with pytest.raises(LogError, match="of that name that was deleted or recreated since"):
        repartition_topic(old, new, partitions=3, store=own)


def test_a_transaction_counts_when_it_is_committed(kafka: LocalKafka) -> None:
    url = KafkaUrl.parse(topic(kafka, "transactions"))
    ensure_topic(url, 2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=url.topic)
    producer.init_transactions()
    for value in (b"1", b"aborted", b"2"):
        producer.begin_transaction()
        sent = [producer.send(url.topic, value, partition=partition) for partition in range(2)]
        for each in sent:
            each.get()
        (producer.abort_transaction if value == b"aborted" else producer.commit_transaction)()
    producer.close()
    found = read_topic(url).records.sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert found["value"].to_pylist() == [b"1", b"2"] * 2


def test_a_transaction_that_is_open_is_named(kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repartition, "_EMPTY_POLLS", 2)
    url = KafkaUrl.parse(topic(kafka, "open-transaction"))
    ensure_topic(url, 2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=url.topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(url.topic, b"1", partition=1).get()
    with pytest.raises(
        LogError, match="topic open-transaction has records of a transaction that is open: wait"
    ):
        read_topic(url)
    producer.commit_transaction()
    producer.close()
    assert read_topic(url).records["value"].to_pylist() == [b"1"]
