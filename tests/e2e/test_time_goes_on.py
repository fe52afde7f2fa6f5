"""A query that is started, in whatever way, and gets no record: what time brings about comes within two triggers all the same."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sinks.tables import read_table
from streaming.cli import serve
from streaming.jobs import run
from streaming.jobs.run import run_query
from streaming.kafka.config import PLAIN
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.url import KafkaUrl
from streaming.runtime.clock import RealClock
from streaming.spark.checkpoint import committed
from streaming.spark.failure import QueryFailed, explained
from streaming.spark.query import Written
from streaming.spark.state import partition_states, states_in_turn
from streaming.state.move import States, move_states, restore_states
from tests.e2e.processes import wait_until
from tests.spark.helpers import log_of

pytestmark = [
    pytest.mark.feature("J4"),
    pytest.mark.kafka,
    pytest.mark.spark,
]

EXPIRING = [f"persistent://public/default/t{number}" for number in range(4)]
DELAYED = [f"persistent://public/later/t{number}" for number in range(4)]
CHECK_MS = 60_000
"""The interval of the check that expires messages."""
DUE_MS = 20_000
"""How long after it was sent each message is due. By then, the first query has folded it and is stopped."""


class Query:
    """A query in this process."""

    def __init__(self, spark: SparkSession, ingress: str, folder: Path) -> None:
        self.ingress, self.checkpoint, self.store = ingress, folder / "checkpoint", folder / "store"
        self._spark = spark

    def run(self, enough: Callable[[list[Written]], bool], *, seconds: float = 120) -> list[Written]:
        """Run until `enough` holds of the micro-batches so far, or for so long. Gives them."""
        seen: list[Written] = []
        stop = threading.Event()
        limit = threading.Timer(seconds, stop.set)

        def on_batch(batch: Written) -> None:
            seen.append(batch)
            if enough(seen):
                stop.set()

        limit.start()
        try:
            run_query(
                self.ingress, self.checkpoint, str(self.store), trigger="1s", quality=False, shuffle_partitions=2,
                stop=stop, spark=self._spark, on_batch=on_batch,
            )  # fmt: skip
        finally:
            limit.cancel()
        return seen

    def copy(self, folder: Path) -> "Query":
        """The same query, as it is now, in other folders."""
        # The last task of a query that was stopped may still rename what it wrote.
        half_written = shutil.ignore_patterns("*.tmp")
        shutil.copytree(self.checkpoint, folder / "checkpoint", ignore=half_written)
        shutil.copytree(self.store, folder / "store")
        return Query(self._spark, self.ingress, folder)

    def states(self, *, goes_on: bool) -> States:
        last = committed(self.checkpoint)
        assert last is not None
        encoded = (each.broker for each in states_in_turn(self._spark, self.checkpoint, last.batch))
        url = KafkaUrl.parse(self.ingress)
        return States("a query", encoded, str(self.store), None if goes_on else url, last.offsets)


def messages(now: int, due_ms: int = DUE_MS) -> pa.Table:
    """Messages that a TTL expires when its check is due, so long from `now`, and others that are delivered then."""
    first = now + due_ms - CHECK_MS
    ttl = {"command": "ADMIN", "method": "POST", "path": "/namespaces/public/default/messageTTL", "body": 1}
    records: list[tuple[int, str | None, object]] = [
        (first, None, {"command": "BROKER_CONFIG", "settings": {"messageExpiryCheckIntervalInMinutes": 1}}),
        (first, None, ttl),
    ]
    message = {"producer": "p", "sequence_id": 0, "payload": "x"}
    for topic in (*EXPIRING, *DELAYED):
        consumer = {"connection": topic, "consumer_id": 0}
        subscribe = {"command": "SUBSCRIBE", "subscription": "s", "subType": "Shared", "request_id": 1}
        records.append((first, topic, subscribe | consumer))
        if topic in DELAYED:
            records.append((first, topic, {"command": "FLOW", "messagePermits": 5} | consumer))
    records += [(now, topic, message) for topic in EXPIRING]
    records += [(now, topic, message | {"deliver_at_time": now + due_ms}) for topic in DELAYED]
    return log_of(*records)


def rows(batches: list[Written], kind: str) -> int:
    return sum(count for batch in batches for (_, each), count in batch.rows.items() if each == kind)


def happened(batches: list[Written]) -> bool:
    return rows(batches, "EXPIRED") == len(EXPIRING) and rows(batches, "MESSAGE") == len(DELAYED)


def written(store: Path) -> list[int]:
    """How many messages expired and were delivered, by the output tables."""
    return [read_table(str(store / "tables"), kind).num_rows for kind in ("EXPIRED", "MESSAGE")]


def in_tables(store: Path) -> bool:
    """Whether what is due is in the output tables."""
    return written(store) == [len(EXPIRING), len(DELAYED)]


def test_what_is_due_comes_without_records(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> None:
    """After a stop, a crash before and after the commit, a move, and an import."""
    address = f"kafka://{kafka.bootstrap}"
    old = Query(spark, f"{address}/time", tmp_path / "old")
    due = int(time.time() * 1000) + DUE_MS
    produce_log(messages(due - DUE_MS), old.ingress, partitions=2)
    sent = len(EXPIRING) + len(DELAYED)
    before = old.run(lambda seen: rows(seen, "SEND_RECEIPT") == sent)
    assert rows(before, "EXPIRED") == rows(before, "MESSAGE") == 0, "too slow a machine for DUE_MS"

    last = committed(old.checkpoint)
    assert last is not None
    started = {"stopped": old.copy(tmp_path / "stopped"), "killed": old.copy(tmp_path / "killed")}
    (started["killed"].checkpoint / "commits" / str(last.batch)).unlink()
    for each in started.values():
        if not last.is_last:  # the stop came within the next micro-batch, of which the store's note is
            (each.checkpoint / "offsets" / str(last.batch + 1)).unlink()
            (each.store / "begun.json").unlink(missing_ok=True)
    wait_until(lambda: time.time() * 1000 > due, "what is due")
    for name, query in started.items():
        after = query.run(happened, seconds=30)
        assert happened(after), name
        # The first micro-batch repeats the last one, or only lets Spark go on.
        assert len(after) <= 1 + 2, name

    # These begin with a record for each ingress partition, the first of them in the topic of the old query.
    imported = Query(spark, old.ingress, tmp_path / "imported")
    restore_states(old.states(goes_on=True), KafkaUrl.parse(old.ingress), str(imported.store), partitions=2)
    moved = Query(spark, f"{address}/time-moved", tmp_path / "moved")
    move_states(old.states(goes_on=False), KafkaUrl.parse(moved.ingress), str(moved.store), partitions=3)
    for query in (imported, moved):
        after = query.run(happened, seconds=30)
        assert happened(after)
        assert len(after) <= 2


def test_a_clock_that_jumps_ahead_takes_no_broker_along(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while the query runs, nor when it is started again and Spark has planned a micro-batch for that time."""
    query = Query(spark, f"kafka://{kafka.bootstrap}/jump", tmp_path)
    produce_log(messages(int(time.time() * 1000)), query.ingress, partitions=2)
    ahead_ns, readings = 48 * 3_600_000_000_000, 0

    def machine() -> int:
        # The clock is set right when the query has waited for that.
        nonlocal readings
        readings += 1
        return time.time_ns() + (ahead_ns if 3 < readings < 8 else 0)

    monkeypatch.setattr(run, "RealClock", partial(RealClock, machine=machine))
    back = "far ahead, and is back.* nothing is lost: start the query again$"
    with pytest.raises(QueryFailed, match=back), explained("Nothing is lost"):
        query.run(lambda seen: False)
    assert readings == 8
    monkeypatch.undo()

    last = committed(query.checkpoint)
    assert last is not None
    planned = query.checkpoint / "offsets" / str(last.batch + 1)
    version, metadata, offsets = planned.read_text().splitlines()
    jumped = json.loads(metadata) | {"batchTimestampMs": (time.time_ns() + ahead_ns) // 1_000_000}
    planned.write_text("\n".join([version, json.dumps(jumped), offsets]))
    query.run(lambda seen: len(seen) == 3)
    assert all(state.clock <= time.time() * 1000 for state in partition_states(spark, query.checkpoint))


@pytest.mark.usefixtures("spark")  # the command uses the existing session
def test_a_server_with_its_query_starts_again_without_records(kafka: LocalKafka, tmp_path: Path) -> None:
    """It serves clients after the first micro-batch, whose commands are the next records."""
    topics = f"kafka://{kafka.bootstrap}/time-served", f"kafka://{kafka.bootstrap}/time-served-answers"
    store = tmp_path / "data" / "store"
    due = int(time.time() * 1000) + DUE_MS
    produce_log(messages(due - DUE_MS), topics[0], partitions=2)
    stop = threading.Event()
    limit = threading.Timer(240, stop.set)
    limit.start()
    for seen in (lambda: True, lambda: in_tables(store)):
        with serve._query(topics, tmp_path / "data", "100ms", PLAIN, stop, ([], []), None):
            wait_until(lambda seen=seen: stop.is_set() or seen(), "what is due")  # type: ignore[misc]
            assert not stop.is_set(), "nothing came"
            stop.set()
        assert time.time() * 1000 > due or not any(written(store)), "too slow a machine for DUE_MS"
        wait_until(lambda: time.time() * 1000 > due, "what is due")
        stop.clear()
    limit.cancel()
