"""Repaired records go back through the ingress of a live query; what Kafka does not confirm is reported."""

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from pyspark.sql import SparkSession

from schemas.effects import Quarantined
from schemas.records import Coordinates
from sinks.base import INGRESS
from sinks.dead_letters import read_dead_letters
from sinks.quarantine import QuarantineSink, read_quarantine
from sinks.storage import Storage
from sinks.tables import read_table
from streaming.jobs.run import run_query
from streaming.kafka.ingress import Ingress
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from streaming.quarantine.resubmit import to_ingress
from streaming.quarantine.store import Quarantine, QuarantineError
from streaming.spark.query import Written
from tests.quarantine.test_quarantine import BAD, GOOD, OTHER, TOPIC, complaint, edited, magnetar, message
from tests.sinks.helpers import output
from tests.spark.helpers import START, log_of

pytestmark = [pytest.mark.kafka, pytest.mark.feature("J6")]


class Counts:
    """Output rows by kind, and a way to wait for some."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._more = threading.Condition()

    def batch(self, written: Written) -> None:
        with self._more:
            for (_, kind), count in written.rows.items():
                self._rows[kind] += count
            self._more.notify_all()

    def wait(self, kind: str, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: self._rows[kind] >= count, 120), self._rows


def records(kafka: LocalKafka, topic: str) -> list[Any]:
    consumer = KafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=1000
    )
    try:
        return list(consumer)
    finally:
        consumer.close()


@pytest.mark.feature("J1")
@pytest.mark.spark
def test_out_of_quarantine_and_through_the_query(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    name = f"resubmit-{uuid4().hex}"
    ingress, store = f"kafka://{kafka.bootstrap}/{name}", tmp_path / "store"
    begun = int(time.time() * 1000)
    produce_log(log_of(GOOD[0], *BAD[:5], GOOD[1]), ingress, partitions=4)
    counts, stop = Counts(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            run_query,
            ingress,
            tmp_path / "checkpoint",
            str(store),
            dead_letters=f"{ingress}-dead",
            trigger="100ms",
            clock="log",
            shuffle_partitions=1,
            quality=False,
            on_batch=counts.batch,
            stop=stop,
            spark=spark,
        )
        running.add_done_callback(lambda _: stop.set())
        try:
            counts.wait("QUARANTINED", 5)
            counts.wait("SEND_RECEIPT", 2)
            bad = edited(store, tmp_path / "bad.jsonl", p0_0=message(3) | {"topic": OTHER}, p1_0=message(4),
                         p3_1=message(2), p3_2={"value": "rubbish"})  # fmt: skip
            assert complaint("resubmit", store, bad, "--ingress", ingress).startswith("1 of 4 records")
            assert len(records(kafka, name)) == 7
            assert Quarantine(str(store)).resubmitted() == {}

            good = tmp_path / "good.jsonl"
            good.write_text("".join(bad.read_text().splitlines(keepends=True)[:3]))
            sent = magnetar("resubmit", store, good, "--ingress", ingress)
            assert sent.stdout == f"3 records to {ingress}: 0:0 as 1:1, 1:0 as 1:2, 3:1 as 3:5\n", sent.output
            (tmp_path / "value").write_text(json.dumps(message(5)))
            one = magnetar("resubmit", store, "3:3", "--value", tmp_path / "value", "--ingress", ingress)
            assert one.stdout == f"1 record to {ingress}: 3:3 as 3:6\n", one.output
            assert complaint("resubmit", store, good, "--ingress", ingress).startswith(
                "resubmitted before: 0:0 (20"
            )
            counts.wait("SEND_RECEIPT", 6)
        finally:
            stop.set()
    running.result()

    receipts = read_table(str(store / "tables"), "SEND_RECEIPT").to_pylist()
    assert sorted((r["topic"], r["sequence_id"]) for r in receipts) == [
        *((OTHER, n) for n in (3, 4)), *((TOPIC, n) for n in (1, 2, 5, 9)),
    ]  # fmt: skip
    listed = {each["rule"]: each for each in json.loads(magnetar("list", store, "--json").stdout)}
    assert {rule: (each["records"], each["resubmitted"]) for rule, each in listed.items()} == {
        "malformed": (3, 2), "no_topic": (1, 1), "input.PUBLISH/producer_length": (1, 1),
    }  # fmt: skip
    (left,) = magnetar("export", store).stdout.splitlines()
    assert json.loads(left)["value_base64"] == "/wAgcnViYmlzaA=="
    assert f"to {ingress} as 3:5" in magnetar("show", store, "3:1").stdout

    *_, last = [r for r in records(kafka, name) if r.partition == 3]
    assert (last.key, json.loads(last.value), last.headers) == (
        TOPIC.encode(), message(5), [("magnetar.resubmitted", b"3:3")],
    )  # fmt: skip
    assert begun <= last.timestamp <= int(time.time() * 1000)

    letters = list(read_dead_letters(kafka.bootstrap, f"{name}-dead", timeout=0.01))
    quarantined = read_quarantine(str(store)).to_pylist()
    assert len(letters) == len(quarantined) == 5
    assert sorted((each.key, each.value) for each in letters if each.key) == sorted(
        (row["topic"].encode(), row["value"]) for row in quarantined if row["topic"]
    )


# -- without a query


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Records in quarantine: 0:0, 0:1, … of a live query."""
    rows = [Quarantined(TOPIC, "malformed", "no", b"{}") for _ in range(3)]
    QuarantineSink(str(tmp_path / "store")).write(0, 0, output(rows, clock=START))
    return tmp_path / "store"


@pytest.fixture
def ingress(kafka: LocalKafka) -> str:
    url = KafkaUrl(kafka.bootstrap, f"resubmit-{uuid4().hex}")
    ensure_topic(url, 1)
    return f"kafka://{url.bootstrap}/{url.topic}"


def test_without_confirmation_it_is_not_sent_again_unawares(
    store: Path, ingress: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between sending and noting; and Kafka refusing one."""
    bad = edited(store, tmp_path / "bad.jsonl", p0_0=message(1), p0_1=message(2))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("streaming.quarantine.resubmit._send", killed)
        magnetar("resubmit", store, bad, "--ingress", ingress)
    assert Quarantine(str(store)).resubmitted()[Coordinates(0, 1)].place is None
    assert "but Kafka has not confirmed it" in complaint("resubmit", store, bad, "--ingress", ingress)
    again = magnetar("resubmit", store, bad, "--ingress", ingress, "--again")
    assert again.stdout == f"2 records to {ingress}: 0:0 as 0:0, 0:1 as 0:1\n"
    assert Quarantine(str(store)).resubmitted()[Coordinates(0, 1)].place == Coordinates(0, 1)


@pytest.mark.parametrize("size", [3000, 17 << 20], ids=["the broker", "the client"])
def test_kafka_refuses_one(store: Path, kafka: LocalKafka, tmp_path: Path, size: int) -> None:
    topic = f"resubmit-{uuid4().hex}"
    kafka.create_topic(topic, 1, {"max.message.bytes": "2000"})
    bad = edited(store, tmp_path / "bad.jsonl", p0_0=message(1), p0_1=message(2) | {"payload": "x" * size})
    said = complaint("resubmit", store, bad, "--ingress", f"kafka://{kafka.bootstrap}/{topic}", code=1)
    assert said.startswith(f"Kafka at {kafka.bootstrap} confirmed 1 of 2 records: MessageSizeTooLargeError")
    noted = Quarantine(str(store)).resubmitted()
    assert [noted[Coordinates(0, n)].place for n in range(2)] == [Coordinates(0, 0), None]


def test_a_topic_that_is_not_there_is_not_made(
    store: Path, kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("kafka.client", "quarantine.resubmit"):
        monkeypatch.setattr(f"streaming.{module}.PATIENCE_MS", 1000)
    monkeypatch.setattr("streaming.kafka.client.PROBE_SECONDS", 1.0)
    bad = edited(store, tmp_path / "bad.jsonl", p0_0=message(1))
    said = complaint("resubmit", store, bad, "--ingress", f"kafka://{kafka.bootstrap}/typo")
    assert said.startswith(f"Kafka at {kafka.bootstrap} has no topic 'typo'")
    said = complaint("resubmit", store, bad, "--ingress", "kafka://127.0.0.1:1/t")
    assert said.startswith("no Kafka answered at 127.0.0.1:1 within 1 s")
    assert "expected kafka://HOST" in complaint("resubmit", store, bad, "--ingress", "http://127.0.0.1:1/t")
    assert Quarantine(str(store)).resubmitted() == {}
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    assert "typo" not in admin.list_topics()
    admin.close()


def test_the_partition_it_was_in_must_be_there(ingress: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    QuarantineSink(str(store)).write(
        0, 2, output([Quarantined(TOPIC, "malformed", "no", b"{}")], partition=2)
    )
    bad = edited(store, tmp_path / "bad.jsonl", p2_0=message(1))
    said = complaint("resubmit", store, bad, "--ingress", ingress)
    assert "has 1 partitions, and a record was in partition 2" in said


def test_the_topic_of_another_query_gets_nothing(store: Path) -> None:
    """A typo would send a command to a foreign topic, and note the record as resubmitted."""
    Storage(str(store)).write_json(INGRESS, Ingress("mine", None, 1))
    with pytest.raises(
        QuarantineError, match="reads 'mine', and not 'mime': give its ingress; nothing was resubmitted"
    ):
        to_ingress(Quarantine(str(store)), [], "kafka://127.0.0.1:1/mime")
