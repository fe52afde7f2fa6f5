"""Spark changes nothing: the query's rows and states are those of the broker in this process."""

from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from streaming.fold.columns import Fold
from streaming.fold.records import BrokerType, StateRow, stats
from streaming.jobs.run import state_settings
from streaming.log.table import slices
from streaming.spark import query, source, state
from streaming.spark.operator import FoldOptions
from tests.spark.fake import FakeBroker
from tests.spark.helpers import FolderSink, Nowhere, Stored, traffic


@cache
def records() -> pa.Table:
    return traffic()


def in_process(folder: Path, batches: int) -> tuple[pa.Table, list[StateRow]]:
    stored = Stored(folder)
    fold = Fold(stored.store)
    for batch_id, part in enumerate(slices(records(), batches)):
        for sink in stored.sinks:
            sink.begin(batch_id)
        for partition, rows in fold.apply(part):
            for sink in stored.sinks:
                sink.write(batch_id, partition, rows)
    return stored.sink.rows(), fold.states()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, list[StateRow]]:
    return in_process(tmp_path_factory.mktemp("whole"), 1)


def with_spark(
    spark: SparkSession, folder: Path, *, batches: int, shuffle: int, log: pa.Table | None = None
) -> tuple[pa.Table, list[StateRow]]:
    stored = Stored(folder)
    spark.conf.set("spark.sql.shuffle.partitions", shuffle)
    source.stage(records() if log is None else log, folder / "staged", batches=batches)
    seen: list[int] = []
    running = query.start(
        spark,
        source.staged(spark, folder / "staged"),
        FoldOptions(sinks=stored.sinks, store=stored.store, clock="log"),
        checkpoint=folder / "checkpoint",
        trigger=query.AVAILABLE_NOW,
        on_batch=lambda written: seen.append(written.batch_id),
    )
    running.awaitTermination()
    assert seen == list(range(batches))
    return stored.sink.rows(), state.partition_states(spark, folder / "checkpoint")


def test_the_traffic_is_worth_it(expected: tuple[pa.Table, list[StateRow]]) -> None:
    kinds = set(expected[0]["kind"].to_pylist())
    assert {"SEND_RECEIPT", "MESSAGE", "SUCCESS", "EXPIRED", "ADMIN_RESPONSE", "QUARANTINED"} <= kinds
    assert [each.partition for each in expected[1]] == [0, 1, 2, 3]


@pytest.mark.feature("J3")
@pytest.mark.parametrize("batches", [7, 100])
def test_the_cut_changes_nothing(
    tmp_path: Path, expected: tuple[pa.Table, list[StateRow]], batches: int
) -> None:
    rows, states = in_process(tmp_path, batches)
    assert rows.equals(expected[0])
    assert states == expected[1]


@pytest.mark.feature("J1")
@pytest.mark.spark
@pytest.mark.parametrize(
    ("batches", "shuffle"), [(1, 4), (7, 2), (7, 1), pytest.param(30, 1, marks=pytest.mark.slow)]
)
def test_spark_changes_nothing(
    spark: SparkSession,
    tmp_path: Path,
    expected: tuple[pa.Table, list[StateRow]],
    batches: int,
    shuffle: int,
) -> None:
    rows, states = with_spark(spark, tmp_path, batches=batches, shuffle=shuffle)
    assert rows.equals(expected[0])
    assert states == expected[1]


@pytest.mark.feature("J1")
@pytest.mark.spark
def test_records_that_arrive_in_disorder(
    spark: SparkSession,
    tmp_path: Path,
    expected: tuple[pa.Table, list[StateRow]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backwards = records().take(pa.array(range(len(records()) - 1, -1, -1)))
    monkeypatch.setattr(source, "ordered", lambda each: each)
    rows, states = with_spark(spark, tmp_path, batches=1, shuffle=2, log=backwards)
    assert rows.equals(expected[0])
    assert states == expected[1]


@pytest.mark.spark
def test_state_and_outputs_can_be_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "rows")
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    source.stage(records(), tmp_path / "staged", batches=3)
    brokers: BrokerType = FakeBroker  # type: ignore[assignment]

    def start() -> None:
        running = query.start(
            spark,
            source.staged(spark, tmp_path / "staged"),
            FoldOptions(sinks=[sink], store=Nowhere(), clock="log", broker=brokers),
            checkpoint=tmp_path / "checkpoint",
            trigger=query.AVAILABLE_NOW,
        )
        running.awaitTermination()

    start()
    first = state.partition_states(spark, tmp_path / "checkpoint", batch_id=0)
    last = state.partition_states(spark, tmp_path / "checkpoint")
    assert state.states_beside(tmp_path / "checkpoint", None, 300) == last
    assert state.states_beside(tmp_path / "checkpoint", last[1].partition, 300) == last[1:2]
    with pytest.raises(state.NotReadable, match="takes longer than 0 s"):
        state.states_beside(tmp_path / "checkpoint", None, 0)
    with pytest.raises(state.NotReadable, match="can't be read now"):
        state.states_beside(tmp_path / "nowhere", None, 300)
    assert sum(each.backlog for each in first) < sum(each.backlog for each in last) == 72
    assert stats(last, broker=brokers)[0] == {
        "partition": first[0].partition, "topic": "persistent://public/default/t0", "subscription": None, "entries": 12,
    }  # fmt: skip
    start()  # nothing new: nothing happens
    assert not (sink.folder / "begun-3").exists()


def test_the_state_may_be_in_rocksdb(
    spark: SparkSession, tmp_path: Path, expected: tuple[pa.Table, list[StateRow]]
) -> None:
    settings = state_settings("rocksdb")
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        rows, states = with_spark(spark, tmp_path, batches=3, shuffle=2)
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert (rows, states) == expected
    assert list((tmp_path / "checkpoint" / "state").rglob("*.changelog"))


def test_java_can_compare_the_error_of_a_query_that_is_stopped(spark: SparkSession) -> None:
    """Spark looks for an interruption in it, in a thread with Java's default stack. It recurses for each character."""
    jvm = spark._jvm
    assert jvm is not None
    pattern = jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution.PROXY_ERROR().pattern()
    called = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.foreachPartition.\n"
    error = called + "\tat java.base/java.lang.Thread.run\n" * 500 + "java.lang.InterruptedException"
    assert pattern.matcher(error).matches()
