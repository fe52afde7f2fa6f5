"""The whole way on Kafka and Spark: a query, of whose log Kafka deletes what was folded, goes on over more ingress partitions."""

import json
import subprocess
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from kafka import KafkaProducer, TopicPartition
from pyspark.sql import SparkSession

from schemas.commands import Admin, Tick, to_json
from schemas.effects import KINDS, AdminResponse
from sinks.ledger_store import LedgerStore, read_entries
from sinks.quarantine import read_quarantine
from sinks.tables import TABLES, read_table
from streaming.answers.history.folders import Folders
from streaming.answers.history.inspection import states_at
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.state.codec import VERSION
from streaming.jobs.run import run_query
from streaming.kafka.client import administration
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.topics import Offsets, ensure_topic, topic_offsets
from streaming.kafka.url import KafkaUrl
from streaming.log.table import LOGICAL
from streaming.metrics.query import QueryMetrics
from streaming.spark import state
from streaming.spark.checkpoint import committed_offsets
from streaming.spark.failure import QueryFailed, explained
from streaming.state.seed import Seed, SeedWriter, read_seed
from tests.broker.kit import START, feed
from tests.e2e.live import MAGNETAR
from tests.e2e.outcome import Outcome
from tests.e2e.traffic import TOPICS
from tests.kafka.test_move import AFTER, BEFORE, undisturbed
from tests.state.by_topic import by_topic

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.feature("J1")]

UNFOLDED = 40


class Live:
    """A query in this process, which stops when it has folded all that its topic has."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, name: str, folder: Path) -> None:
        self.url = KafkaUrl(kafka.bootstrap, name)
        self.address = f"kafka://{kafka.bootstrap}/{name}"
        self.checkpoint, self.store = folder / f"{name}-checkpoint", str(folder / f"{name}-store")
        self.notes: list[str] = []
        self._spark = spark

    def offsets(self) -> Offsets:
        with administration(self.url) as admin:
            return topic_offsets(admin, self.url.topic)

    def run(self, metrics: QueryMetrics | None = None) -> None:
        ends = {partition: end for partition, (_, end) in self.offsets().items()}
        stop = threading.Event()

        def watch() -> None:
            deadline = time.monotonic() + 240
            while not stop.is_set() and time.monotonic() < deadline:
                folded = committed_offsets(self.checkpoint, self.url.topic)
                if all(folded.get(partition, 0) >= end for partition, end in ends.items()):
                    break
                time.sleep(0.2)
            stop.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            run_query(
                self.address, self.checkpoint, self.store, clock="log", trigger="0s", quality=False, max_ahead_ms=None,
                records_per_batch=150, stop=stop, spark=self._spark, metrics=metrics, on_note=self.notes.append,
            )  # fmt: skip
        finally:
            stop.set()
            watcher.join()
        assert committed_offsets(self.checkpoint, self.url.topic) == ends

    def forget(self) -> None:
        """Kafka deletes all records so far."""
        ends = {TopicPartition(self.url.topic, part): end for part, (_, end) in self.offsets().items()}
        with administration(self.url) as admin:
            admin.delete_records(ends)

    def outcome(self) -> Outcome:
        return Outcome(
            {kind: read_table(f"{self.store}/tables", kind) for kind in TABLES},
            read_entries(self.store),
            read_quarantine(self.store),
            {},
            state.partition_states(self._spark, self.checkpoint),
        )


def magnetar(*arguments: str) -> str:
    ran = subprocess.run([MAGNETAR, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_query_goes_on_over_more_partitions(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> None:
    old = Live(spark, kafka, "two-partitions", tmp_path)
    produce_log(BEFORE, old.address, partitions=2)
    old.run()
    old.forget()
    produce_log(AFTER.slice(0, UNFOLDED), old.address)

    new = Live(spark, kafka, "eight-partitions", tmp_path)
    said = magnetar(
        "state", "move", str(old.checkpoint), "--ingress", old.address, "--store", old.store,
        "--to-ingress", new.address, "--to-store", new.store, "--partitions", "8",
    )  # fmt: skip
    assert f"{len(TOPICS)} topics moved, and " in said
    assert f"magnetar run --ingress {new.address} --store {new.store} --checkpoint NEW" in said
    produce_log(AFTER.slice(UNFOLDED), new.address)
    metrics = QueryMetrics(time_passes=False)
    new.run(metrics)
    found = joined(old, new)
    assert found == undisturbed(8, tmp_path / "whole")
    assert len(new.offsets()) == 8

    # The dump of where it is now becomes a third query, which goes on in the same topic.
    dump = tmp_path / "states.jsonl"
    assert (
        magnetar("state", "export", str(new.checkpoint), "--out", str(dump))
        == f"{len(TOPICS)} topics to {dump}\n"
    )
    new.forget()
    third = Live(spark, kafka, "eight-partitions", tmp_path / "third")
    magnetar(
        "state", "import", str(dump), "--ingress", new.address, "--entries", new.store, "--store", third.store
    )
    ask = Admin(method="GET", path=f"/{TOPICS[0].replace('://', '/')}/stats")
    asked = {"timestamp": AFTER["timestamp"][-1].as_py(), "topic": TOPICS[0], "value": to_json(ask)}
    produce_log(pa.Table.from_pylist([asked], LOGICAL), new.address)
    third.run()
    assert read_entries(third.store).equals(read_entries(new.store))
    (answer,) = read_table(f"{third.store}/tables", KINDS[AdminResponse]).to_pylist()
    assert json.loads(answer["fields"])["status"] == 200
    before, after = (by_topic(each.outcome()) for each in (new, third))
    for topic in TOPICS[1:]:
        assert after[topic]["state"] == before[topic]["state"]


def joined(old: Live, new: Live) -> dict[str, object]:
    first, second = old.outcome(), new.outcome()
    tables = {kind: pa.concat_tables([first.tables[kind], second.tables[kind]]) for kind in TABLES}
    quarantine = pa.concat_tables([first.quarantine, second.quarantine])
    return {**by_topic(Outcome(tables, second.entries, quarantine, {}, second.states))}


def test_partitions_without_records_have_the_states_of_the_beginning(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    query = Live(spark, kafka, "half-visited", tmp_path)
    writer, ledgers = SeedWriter(query.store), LedgerStore(query.store)
    for partition in range(2):
        broker = Broker(partition, NoEntries())
        topic = f"persistent://public/default/t{partition}"
        feed(broker, 0, START, topic, b'{"producer":"p","sequence_id":1}')
        ledgers.take(ledgers, partition, [])
        writer.write(partition, broker.encode())
    writer.finish(Seed(partitions=2, offsets={"0": 1, "1": 1}))
    seed = read_seed(query.store)
    assert seed is not None
    ensure_topic(query.url, 2)

    def send(partition: int) -> None:
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
        producer.send(query.url.topic, to_json(Tick()), partition=partition, timestamp_ms=START + 1)
        producer.close()

    for partition in (0, 1, 0):
        send(partition)
    query.run()
    (visited,) = state.partition_states(spark, query.checkpoint)
    assert (visited.partition, visited.offset) == (0, 1)
    found = states_at(spark, query.checkpoint, store=query.store)
    assert found == [visited, seed.state(1)]
    assert Folders.of(query.store, query.checkpoint).states() == found
    metrics = QueryMetrics(time_passes=False)
    send(0)
    query.run(metrics)
    assert metrics.topic("persistent://public/default/t1") is not None


def test_a_query_does_not_go_back_to_an_older_version(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    query = Live(spark, kafka, "newer-states", tmp_path)
    produce_log(BEFORE, query.address, partitions=1)
    state_of_99 = bytes([99]) + Broker(0, NoEntries()).encode()[1:]
    writer, ledgers = SeedWriter(query.store), LedgerStore(query.store)
    ledgers.take(ledgers, 0, [])
    writer.write(0, state_of_99)
    writer.finish(Seed(partitions=1))
    with pytest.raises(QueryFailed) as failed, explained("Nothing is lost"):
        query.run()
    sentence = f"the checkpoint's state has version 99, this Magnetar reads {VERSION} and older: run the version that wrote it"
    assert sentence in str(failed.value)
    assert "\n" not in str(failed.value)
