"""`magnetar inspect` and `magnetar peek`: the state at each micro-batch, and the entries of a subscription."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from schemas.records import RECORD
from sinks.ledger_store import LedgerStore
from streaming.answers.explain.delivery import explain_deliveries, peek
from streaming.answers.history.folders import Folders, NotFound
from streaming.answers.history.inspection import (
    VIEWS,
    batches,
    differences,
    spark_views,
    states_at,
    topic_stats,
    views,
)
from streaming.cli.app import app
from streaming.fold.columns import Fold
from streaming.fold.records import StateRow
from streaming.jobs.replay import replay_in_process, replay_log
from streaming.log.table import ordered, slices
from tests.answers.test_explain import T, ack, flow, folders, publish, subscribe
from tests.spark.helpers import traffic

BATCHES = 4


def folded(folder: Path) -> list[list[StateRow]]:
    """The states in this process after each micro-batch of `traffic`."""
    store = LedgerStore(str(folder))
    fold, found = Fold(store), []
    for batch_id, part in enumerate(slices(ordered(traffic()), BATCHES)):
        for partition, rows in fold.apply(part):
            store.write(batch_id, partition, rows)
        found.append(fold.states())
    return found


@pytest.mark.spark
def test_each_micro_batch_is_as_in_this_process(spark: SparkSession, tmp_path: Path) -> None:
    replay_log(traffic(), tmp_path / "out", batches=BATCHES, spark=spark)
    checkpoint = tmp_path / "out" / "checkpoint"
    assert batches(checkpoint) == list(range(BATCHES))
    in_process = folded(tmp_path / "in-process")
    for batch_id, expected in enumerate(in_process):
        found = states_at(spark, checkpoint, batch_id)
        assert views(found) == views(expected)
        for name in views(expected)["topics"]["topic"].to_pylist():
            assert topic_stats(found, name) == topic_stats(expected, name)
    assert views(states_at(spark, checkpoint)) == views(in_process[-1])
    spark_views(spark, in_process[-1])
    rows = spark.sql("SELECT sum(backlog) FROM subscriptions").collect()
    assert rows[0][0] == sum(views(in_process[-1])["subscriptions"]["backlog"].to_pylist())
    with pytest.raises(NotFound, match="has no micro-batch 9: there are 0 to 3"):
        states_at(spark, checkpoint, 9)


def test_a_topic_whose_checks_were_passed_over_is_shown_without_a_store(tmp_path: Path) -> None:
    """The check of the TTL reads an entry. The time of one that expires nothing is then missing."""
    silence = [(None, {"command": "TICK"})] * 200
    settings = {"ttlDurationDefaultInSeconds": 3600, "messageExpiryCheckIntervalInMinutes": 1}
    found = folders(tmp_path, subscribe(), publish(0), *silence, **settings).states()
    assert topic_stats(found, T)["stats"]["subscriptions"]["s"]["msgBacklog"] == 1


def states(tmp_path: Path, *arguments: object) -> list[StateRow]:
    return folders(tmp_path, *arguments).states()  # type: ignore[arg-type]


def test_differences(tmp_path: Path) -> None:
    before = states(tmp_path / "a", subscribe(), flow(9), publish(0), publish(1))
    after = states(tmp_path / "b", subscribe(), flow(9), publish(0), publish(1), ack(1))
    found = {
        (row["view"], row["column"]): (row["before"], row["after"])
        for row in differences(before, after).to_pylist()
    }
    assert found["subscriptions", "acked"] == ("0", "1")
    assert found["cursors", "ack_holes"] == ("0", "1")
    assert found["ack_holes", "last"] == (None, "1")
    assert ("ledgers", "entries") not in found
    assert len(differences(after, after)) == 0


def test_views_have_what_they_say(tmp_path: Path) -> None:
    found = views(states(tmp_path, subscribe(), flow(9), publish(0), publish(1), ack(1)))
    assert list(found) == list(VIEWS)
    assert found["ack_holes"].to_pylist() == [{"topic": T, "cursor": "s", "ledger": 1, "first": 1, "last": 1}]
    assert found["consumers"]["in_flight"].to_pylist() == [1]
    assert found["producers"]["producer"].to_pylist() == ["p"]


@pytest.mark.parametrize(
    ("show", "positions"),
    [("backlog", ["1:0", "1:2", "1:3"]), ("inflight", ["1:0", "1:2"]), ("delayed", []), ("holes", ["1:1"])],
)
def test_peek(tmp_path: Path, show: str, positions: list[str]) -> None:
    found = folders(tmp_path, subscribe(), flow(3), *(publish(n) for n in range(4)), ack(1))
    table = peek(found, T, "s", show, 10)  # type: ignore[arg-type]
    assert table["position"].to_pylist() == positions
    assert peek(found, T, "s", show, 1)["position"].to_pylist() == positions[:1]  # type: ignore[arg-type]
    done = CliRunner().invoke(app, ["peek", str(tmp_path), "a/b/t", "s", "--show", show, "--json"])
    assert json.loads(done.output) == table.to_pylist()


def test_what_is_not_there(tmp_path: Path) -> None:
    replay_in_process(traffic(), tmp_path / "out")
    for arguments, complaint in (
        (["inspect", tmp_path], "is not the --checkpoint of a query"),
        (["peek", tmp_path / "out", "t0", "x"], "has no subscription x: there is s"),
    ):
        done = CliRunner().invoke(app, [*map(str, arguments)])
        assert done.exit_code == 2
        assert complaint in done.output
    with pytest.raises(NotFound, match="there is no topic"):
        topic_stats(Folders.of(tmp_path / "out").states(), "nope")


def test_a_topic_in_two_ingress_partitions_has_no_answer(tmp_path: Path) -> None:
    """Writers that choose different partitions made it two topics: half of it must not be told as the whole."""
    store = LedgerStore(str(tmp_path))
    fold = Fold(store)
    record = {"timestamp": 1_700_000_000_000, "topic": T, "value": json.dumps(publish(1)[1]).encode()}
    log = pa.Table.from_pylist(
        [record | {"partition": number, "offset": 0} for number in (0, 1)], schema=RECORD
    )
    for partition, rows in fold.apply(log):
        store.write(0, partition, rows)
    found = Folders(None, store, None, None, at=fold.states())
    two = "is in partitions 0 and 1, where it is two topics. All writers must choose the same partition"
    for ask in (
        lambda: found.broker_of(T),
        lambda: peek(found, T, "s", "backlog", 10),
        lambda: topic_stats(fold.states(), T),
        lambda: explain_deliveries(found, T),
    ):
        with pytest.raises(NotFound, match=two):
            ask()
