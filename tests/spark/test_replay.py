"""Replays: the folder they write, with Spark and without."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from schemas.records import RECORD
from sinks.outputs import InTheWay
from sinks.quarantine import read_quarantine
from sinks.tables import read_table
from streaming.cli.replay import replay_command, table, to_json
from streaming.fold.records import BrokerType
from streaming.jobs.replay import (
    NotEmptyError,
    ReplayResult,
    load,
    micro_batches,
    replay_in_process,
    replay_log,
)
from streaming.log.files import write_log
from streaming.log.table import LogError
from tests.spark.fake import FakeBroker
from tests.spark.helpers import log_of, traffic

TTL = {"command": "ADMIN", "method": "POST", "path": "/namespaces/public/default/messageTTL", "body": 0}


def outcome(result: ReplayResult) -> dict[str, Any]:
    files = [file.relative_to(result.out) for file in sorted((result.out / "store").rglob("*.parquet"))]
    return {
        "records": result.records,
        "rows": result.rows,
        "stats": result.stats,
        "tables": read_table(str(result.out / "tables")),
        "quarantine": read_quarantine(str(result.out)),
        "store": files,
    }


@pytest.mark.feature("J1", "J3")
@pytest.mark.spark
def test_with_spark_and_without(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl.gz"
    write_log(log, traffic(partitions=3))
    calls: list[tuple[int, int, int]] = []
    result = replay_log(
        log, tmp_path / "spark", batches=3, spark=spark, progress=lambda *now: calls.append(now)
    )
    alone = replay_in_process(log, tmp_path / "alone", batches=3)
    assert outcome(result) == outcome(alone)
    assert [call[:2] for call in calls] == [(1, 3), (2, 3), (3, 3)]
    assert calls[-1][2] == sum(result.rows.values()) == len(read_table(str(result.out / "tables")))
    found = {each.name for each in result.out.iterdir() if not each.name.startswith("_")}
    assert found == {"checkpoint", "quarantine", "state", "store", "tables"}
    assert {row["subscription"] for row in result.stats} == {None, "s"}


@pytest.mark.spark
def test_a_failure_says_which_record(spark: SparkSession, tmp_path: Path) -> None:
    log = log_of((5, "t", {"producer": "p", "sequence_id": 1, "payload": "boom"}))
    brokers: BrokerType = FakeBroker  # type: ignore[assignment]
    with pytest.raises(
        StreamingQueryException,
        match="partition 0, offset 0, topic 't', carrying out the command: ZeroDivisionError: boom",
    ):
        replay_log(log, tmp_path / "out", partitions=1, spark=spark, broker=brokers)


@pytest.mark.feature("J3")
def test_the_cut_changes_nothing(tmp_path: Path) -> None:
    whole = replay_in_process(traffic(), tmp_path / "whole")
    parts = replay_in_process(traffic(), tmp_path / "parts", batches=9)
    assert whole.batches == 1
    for key in ("rows", "stats", "tables", "quarantine"):
        assert outcome(whole)[key] == outcome(parts)[key]


@pytest.mark.feature("I1")
def test_what_if(tmp_path: Path) -> None:
    recorded = replay_in_process(traffic(), tmp_path / "recorded")
    forever = replay_in_process(traffic(), tmp_path / "forever", policies=log_of((0, None, TTL)))
    assert recorded.rows["EXPIRED"] > 0 == recorded.shift
    assert "EXPIRED" not in forever.rows
    assert forever.shift == 2
    assert sum(row["backlog"] for row in forever.stats) > sum(row["backlog"] for row in recorded.stats)


@pytest.mark.feature("I1", "J3")
@pytest.mark.spark
def test_what_if_with_spark_and_without(spark: SparkSession, tmp_path: Path) -> None:
    """Under policies that refuse some messages, so that the positions in the log are other messages'."""
    policies = log_of((0, None, {"command": "BROKER_CONFIG", "settings": {"maxMessageSize": 50}}))
    result = replay_log(traffic(), tmp_path / "spark", policies=policies, batches=3, spark=spark)
    alone = replay_in_process(traffic(), tmp_path / "alone", policies=policies, batches=5)
    for key in ("records", "rows", "stats", "tables", "quarantine"):
        assert outcome(result)[key] == outcome(alone)[key]
    assert result.unmatched == alone.unmatched > 0
    assert result.rows["SEND_ERROR"] > 0
    found = {each.name for each in result.out.iterdir() if not each.name.startswith("_")}
    assert found == {"checkpoint", "quarantine", "state", "store", "tables"}


def test_results_are_not_overwritten_by_accident(tmp_path: Path) -> None:
    out = tmp_path / "out"
    replay_in_process(traffic(), out)
    with pytest.raises(NotEmptyError, match="isn't empty"):
        replay_in_process(traffic(), out)
    replay_in_process(traffic(), out, overwrite=True)


@pytest.mark.parametrize("partitions", [None, 1, 2])
def test_a_topic_in_two_ingress_partitions_is_refused(partitions: int | None) -> None:
    """Each partition would have a topic of its own of that name, and an answer would be about one of them."""
    rows = [
        {**row, "partition": number % 2, "offset": number} for number, row in enumerate(traffic().to_pylist())
    ]
    twice = pa.Table.from_pylist(rows, RECORD)
    with pytest.raises(LogError, match=r"topic .* has records in partitions 0 and 1, where it is two topics"):
        load(twice, partitions=partitions)


@pytest.mark.spark
@pytest.mark.parametrize("with_spark", [False, True])
def test_what_a_replay_did_not_write_is_never_deleted(
    with_spark: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Wherever it is in the folder, and as what the file is disguised. Without it, the folder is overwritten."""
    out = tmp_path / "out"

    def again() -> None:
        if with_spark:
            replay_log(traffic(), out, overwrite=True, spark=request.getfixturevalue("spark"))
        else:
            replay_in_process(traffic(), out, overwrite=True)

    again()
    (tmp_path / "elsewhere.parquet").touch()
    folders = [out, *(each for each in out.rglob("*") if each.is_dir())]
    assert len(folders) > 15
    for folder in folders:
        for name in ("thesis.txt", "sums.parquet", "000000000-00000.parquet.bak", "plan.json"):
            foreign = folder / name
            foreign.write_text("mine")
            with pytest.raises(InTheWay, match="contains files that no replay wrote") as raised:
                again()
            assert str(foreign.relative_to(out)) in str(raised.value)
            assert foreign.read_text() == "mine"
            foreign.unlink()
        link = folder / "000000001-00000.parquet"
        link.symlink_to(tmp_path / "elsewhere.parquet")
        with pytest.raises(InTheWay):
            again()
        link.unlink()
    again()
    shutil.rmtree(out / "state")  # as in a folder with the store of a query
    with pytest.raises(InTheWay, match="contains files that no replay wrote|is the checkpoint of a query"):
        again()
    assert (out / "store").is_dir()


@pytest.mark.parametrize(
    ("records", "partitions", "bytes_", "batches"),
    [
        (0, 1, 0, 1),
        (1 << 18, 1, 0, 1),  # a worker has all of a partition's records in memory
        ((1 << 18) + 1, 1, 0, 2),
        (1 << 20, 16, 0, 1),
        ((1 << 20) + 1, 64, 0, 2),
        (300, 16, 1 << 20, 2),  # and the JVM all of their values
    ],
)
def test_micro_batches_are_few_but_bounded(records: int, partitions: int, bytes_: int, batches: int) -> None:
    value = pa.array([bytes(bytes_)]).take(pa.array(np.zeros(records, np.int64)))
    partition = pa.array(np.arange(records) % partitions, pa.int32())
    assert micro_batches(pa.table({"partition": partition, "value": value})) == batches


def test_an_empty_log(tmp_path: Path) -> None:
    result = replay_in_process(log_of(), tmp_path / "out")
    assert (result.records, result.rows, result.stats) == (0, {}, [])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    write_log(log, traffic())
    replay_command(log, tmp_path / "table", spark=False)
    text = capsys.readouterr().out
    assert "topics are in persistent://public/default/" in text
    assert "in quarantine" in text
    replay_command(log, tmp_path / "json", spark=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["stats"][0]["topic"] == "persistent://public/default/t0"


def test_a_narrow_terminal_gets_no_empty_columns(tmp_path: Path) -> None:
    result = replay_in_process(traffic(), tmp_path / "out")
    wide, narrow = table(result), table(result, width=80)
    assert len(wide.columns) == 13 > len(narrow.columns)
    assert "evicted" not in [column.header for column in narrow.columns]
    assert table(result, shown=2).row_count == 2
    assert to_json(result)
