"""The outcome of a run, and that of a fold of the same records in this process. They must be equal."""

import base64
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import SparkSession

from schemas.commands import Tick as TickCommand
from schemas.commands import to_json
from schemas.effects import KINDS, RESPONSES, Tick
from schemas.outputs import IDENTITY
from schemas.records import RECORD
from sinks.base import Sink
from sinks.kafka import drop_repeats
from sinks.ledger_store import LedgerStore, read_entries
from sinks.quarantine import QuarantineSink, read_quarantine
from sinks.tables import TABLES, TableSink, read_table
from streaming.fold.columns import Fold
from streaming.fold.records import StateRow, stats
from streaming.spark.state import partition_states
from tests.rows import together

Identity = tuple[int, ...]


class Outcome(NamedTuple):
    """All output of a query without repeats, and its last state."""

    tables: dict[str, pa.Table]
    """The output tables by kind, each with its own columns."""
    entries: pa.Table
    quarantine: pa.Table
    responses: dict[Identity, dict[str, Any]]
    states: list[StateRow]
    repeated: int = 0
    """How many repeated responses were dropped."""


def of_run(spark: SparkSession, store: Path, checkpoint: Path, bootstrap: str, responses: str) -> Outcome:
    answers, repeated = read_answers(bootstrap, responses)
    by_identity = {_identity(answer): answer for answer in answers}
    assert len(by_identity) == len(answers), "a response is repeated"
    return Outcome(
        {kind: read_table(str(store / "tables"), kind) for kind in TABLES},
        read_entries(str(store)),
        read_quarantine(str(store)),
        by_identity,
        partition_states(spark, checkpoint),
        repeated,
    )


def read_answers(bootstrap: str, topic: str) -> tuple[list[dict[str, Any]], int]:
    """`sinks.kafka.read_responses` up to the current end of the topic. Also returns the number of dropped repeats."""
    records, repeated = read_to_the_end(bootstrap, topic)
    values = [msgspec.json.decode(record.value) for record in records]
    for value in values:
        if "payload" in value:
            value["payload"] = base64.b64decode(value["payload"])
    return values, repeated


def read_to_the_end(bootstrap: str, topic: str) -> tuple[list[Any], int]:
    """`sinks.kafka.read_records` without waiting for new records. Also returns the number of repeats."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        records: list[Any] = []
        deadline = time.monotonic() + 60
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, f"topic {topic} can't be read to its end, {ends}"
            records += chain.from_iterable(consumer.poll(timeout_ms=200).values())
    finally:
        consumer.close()
    kept = list(drop_repeats(records))
    return kept, len(records) - len(kept)


def of_log(records: pa.Table, folder: Path) -> Outcome:
    """Fold `records` (columns `RECORD`) as one micro-batch, without Spark, Kafka or a crash."""
    store = LedgerStore(str(folder))
    fold = Fold(store)
    sinks: list[Sink] = [store, QuarantineSink(str(folder)), TableSink(str(folder / "tables"))]
    for sink in sinks:
        sink.begin(0)
    outputs = []
    for partition, rows in fold.apply(records):
        outputs.append(together(rows))
        for sink in sinks:
            sink.write(0, partition, rows)
    return Outcome(
        {kind: read_table(str(folder / "tables"), kind) for kind in TABLES},
        read_entries(str(folder)),
        read_quarantine(str(folder)),
        _answers(pa.concat_tables(outputs)),
        fold.states(),
    )


def with_ticks(records: pa.Table, ticks: pa.Table) -> pa.Table:
    """The log (columns `RECORD`) with a TICK after each record at which the trigger advanced the clock."""
    value = to_json(TickCommand())
    merged = [((row["partition"], row["offset"], -1), row) for row in records.to_pylist()]
    for tick in ticks.to_pylist():
        row = {"partition": tick["partition"], "timestamp": tick["clock"], "topic": None, "value": value}
        merged.append(((tick["partition"], tick["offset"], tick["ordinal"]), row))
    count: Counter[int] = Counter()
    rows = []
    for _, row in sorted(merged, key=lambda each: each[0]):
        rows.append(row | {"offset": count[row["partition"]]})
        count[row["partition"]] += 1
    return pa.Table.from_pylist(rows, RECORD)


def assert_equal(found: Outcome, expected: Outcome) -> None:
    for kind, table in expected.tables.items():
        assert _rows(found.tables[kind]) == _rows(table), kind
    assert _rows(found.entries) == _rows(expected.entries)
    assert _rows(found.quarantine) == _rows(expected.quarantine)
    assert found.responses.keys() == expected.responses.keys()
    for identity, answer in expected.responses.items():
        assert answer.items() <= found.responses[identity].items()
    assert found.states == expected.states


def assert_same_story(found: Outcome, expected: Outcome) -> None:
    """`assert_equal` without offsets and ordinals: rows of an ingress partition need only be in the same order."""
    for kind, table in expected.tables.items():
        if kind != KINDS[Tick]:
            assert _stories(found.tables[kind]) == _stories(table), kind
    assert _rows(found.entries) == _rows(expected.entries)
    assert _stories(found.quarantine) == _stories(expected.quarantine)
    ours, theirs = (
        [answers[key] for key in sorted(answers)] for answers in (found.responses, expected.responses)
    )
    assert len(ours) == len(theirs)
    for answer, other in zip(ours, theirs, strict=True):
        assert _story(other).items() <= answer.items()
    assert stats(found.states) == stats(expected.states)
    assert [s._replace(offset=0, broker=b"") for s in found.states] == [
        s._replace(offset=0, broker=b"") for s in expected.states
    ]


def _stories(table: pa.Table) -> list[dict[str, Any]]:
    return [_story(row) for row in _rows(table)]


def _story(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("offset", "ordinal")}


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _identity(row: dict[str, Any]) -> Identity:
    return tuple(row[name] for name in IDENTITY)


def _answers(rows: pa.Table) -> dict[Identity, dict[str, Any]]:
    """The responses to clients among all output rows, with the payloads of delivered messages."""
    stored = rows.filter(pc.and_(pc.equal(rows["kind"], "SEND_RECEIPT"), pc.greater(rows["ledger_id"], 0)))
    position = ("topic", "ledger_id", "entry_id")
    payloads = {tuple(row[name] for name in position): row["payload"] for row in stored.to_pylist()}
    answers = {}
    for row in rows.to_pylist():
        if row["kind"] not in RESPONSES or not row["connection"]:
            continue
        answer = {
            k: v for k, v in row.items() if v is not None and k not in ("payload", "metadata", "fields")
        }
        if row["kind"] == "MESSAGE":
            # One of compacted data has its own, as that may be less than what the topic has.
            own = row["payload"]
            answer["payload"] = payloads[tuple(row[name] for name in position)] if own is None else own
        answers[_identity(row)] = answer
    return answers
