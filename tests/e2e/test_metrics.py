"""The metrics of a running query, scraped as Prometheus does, and its log in JSON."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from sinks.delta_log import DeltaLog
from sinks.ledger_store import LedgerStore
from sinks.storage import Storage
from streaming.answers.history.folders import Folders
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.metrics.storage_use import READS, WRITES
from streaming.spark.state import partition_states
from streaming.ui import figures
from streaming.ui.view import FolderView
from tests.e2e.live import LiveQuery
from tests.e2e.traffic import Traffic
from tests.metrics.test_topics import Values, expected, stats_of, values

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

START = 1_700_000_000_000
PARTITIONS = 2


@pytest.fixture
def query(kafka: LocalKafka, tmp_path: Path) -> Iterator[LiveQuery]:
    url = f"kafka://{kafka.bootstrap}/metrics"
    produce_log(Traffic(7, START).write(400), url, partitions=PARTITIONS)
    options = ["--clock", "log", "--max-offsets", "40", "--metrics", "0", "--ui", "0", "--log-format", "json"]
    made = LiveQuery(tmp_path, url, f"{url}-responses", *options)
    yield made
    made.close()


def lines(query: LiveQuery, event: str) -> list[dict[str, Any]]:
    """The lines that the query has said about an event."""
    said = [line for line in query.said().splitlines() if line.startswith("{") and line.endswith("}")]
    return [found for found in map(json.loads, said) if found["event"] == event]


def get(query: LiveQuery, path: str, what: str = "metrics") -> tuple[int, str]:
    (url,) = (each["url"] for each in lines(query, "serving") if each["what"] == what)
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ask(query: LiveQuery, path: str, **asked: object) -> Any:
    """What the page gets."""
    status, text = get(query, f"/api/{path}?{urlencode(asked)}", "page")
    assert status == 200, text
    return json.loads(text)


def of_ledgers(store: Path) -> set[tuple[str, int]]:
    """The closed ledgers with a file that the last micro-batch did not delete."""
    deleted = {
        (topic, ledger)
        for file in (store / "deletions").glob("*")
        for topic, ledger in json.loads(file.read_text())["ledgers"]
    }
    kept = {(unquote(file.parent.name), int(file.stem)) for file in (store / "ledgers").rglob("*.parquet")}
    return kept - deleted


def of_topics(text: str) -> Values:
    return {key: value for key, value in values(text).items() if len(key) > 3}


@pytest.mark.feature("I2")
def test_a_running_query_shows_the_stats_of_its_topics(query: LiveQuery, spark: SparkSession) -> None:
    query.start()
    query.wait(lambda: bool(lines(query, "serving")), "an endpoint")
    assert get(query, "/healthz") == (200, "ok\n")
    query.wait(lambda: sum(line["records"] for line in lines(query, "batch")) >= 400, "all records")
    query.wait(lambda: get(query, "/readyz")[0] == 200, "a micro-batch")
    status, text = get(query, "/metrics")
    assert status == 200
    assert get(query, "/other")[0] == 404
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    said = lines(query, "batch")
    assert [line["batch"] for line in said] == list(range(len(said)))
    rows = {kind for line in said for kind in line["rows"]}
    for kind in rows:
        assert found["magnetar_output_rows_total", kind] == sum(line["rows"].get(kind, 0) for line in said)
    assert found["magnetar_batch_seconds_count",] == len(said)
    assert 0 < found["magnetar_store_write_seconds_count",] <= len(said) * PARTITIONS
    assert found["magnetar_records_behind",] == 0
    assert found["magnetar_batch_phase_seconds_total", "addBatch"] > 0
    refused = sum(value for key, value in found.items() if key[0] == "magnetar_quarantined_records_total")
    assert refused == found.get(("magnetar_output_rows_total", "QUARANTINED"), 0)

    assert get(query, "/readyz", "page")[0] == get(query, "/metrics", "page")[0] == 200
    overview, topics = ask(query, "overview"), ask(query, "topics")["rows"]
    assert (overview["status"]["state"], overview["status"]["behind"]) == ("running", 0)
    assert overview["totals"]["topics"] == len(topics) > 0
    assert overview["totals"]["storage"] == sum(each["storage"] for each in topics)
    assert [each["batch"] for each in ask(query, "batches")] == [
        line["batch"] for line in lines(query, "batch")
    ]
    assert ask(query, "history")["times"]
    assert {each["kind"] for each in ask(query, "latest")["rows"]} <= rows
    named = next(
        each["topic"] for each in topics if each["messagesIn"] and each["topic"].startswith("persistent")
    )
    (told,) = ask(query, "explain", topic=named, position="1:0")
    assert told["events"] or told["subscriptions"]
    assert ask(query, "explain", about="policies", topic=named)

    assert query.stop(signal.SIGTERM) == 0
    assert lines(query, "stopped")
    assert found["magnetar_files", "tables"] == DeltaLog(Storage(f"{query.store}/tables")).count()
    assert found["magnetar_files", "ledgers"] == len(of_ledgers(query.store))
    assert {"segments", "checkpoint"} <= {key[1] for key in found if key[0] == "magnetar_files"}
    states = partition_states(spark, query.checkpoint)
    assert len(states) == PARTITIONS
    wanted: Values = {}
    for state in states:
        broker = Broker.decode(state.broker, NoEntries())
        entries = LedgerStore(str(query.store)).reader(state.partition)
        assert found["magnetar_offset", str(state.partition)] == state.offset
        assert found["magnetar_state_bytes", str(state.partition)] == len(state.broker)
        for name in broker.topic_names():
            stats = stats_of(state.broker, entries, name, 10**6, state.clock)
            wanted |= expected("standalone", name, stats)
    assert wanted
    shown = of_topics(text)
    assert {key: shown.get(key) for key in wanted} == wanted

    # The page of its folders shows what that of the query showed.
    folders = Folders.of(query.store, query.checkpoint)
    view = FolderView(
        str(query.store), folders, lambda: partition_states(spark, query.checkpoint), finished=False
    )
    assert figures.topics(view.figures(), "", "storage", 0)["rows"] == topics
    assert [each["batch"] for each in view.batches()] == [line["batch"] for line in said]
    assert all(each["seconds"] > 0 for each in view.batches())
    history = view.history(None)
    assert history is not None
    assert history["storage"][-1] == overview["totals"]["storage"]

    # A query that goes on knows the topics of which no record comes. What it wrote and read before is not in its state.
    query.start()
    query.wait(lambda: bool(lines(query, "started")), "the query")
    again = of_topics(get(query, "/metrics")[1])
    assert again.keys() == shown.keys()
    assert {key: again[key] for key in shown if key[0] not in WRITES | READS} == {
        key: shown[key] for key in shown if key[0] not in WRITES | READS
    }
    assert get(query, "/readyz")[0] == 503
    assert query.stop(signal.SIGTERM) == 0
