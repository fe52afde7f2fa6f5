"""A small fault test, and proof that it can fail. `make chaos` is the full one."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from schemas.outputs import IDENTITY, OUTPUT, Rows
from sinks.base import CommittingSink, Sink
from streaming.kafka.local import LocalKafka
from streaming.log.partition import partition_log
from tests.chaos import driver, runner
from tests.chaos.faults import Journal
from tests.chaos.plan import KINDS, PARTITIONS, PHASES, plan
from tests.e2e.outcome import of_log
from tests.rows import by_kind, together

pytestmark = [
    pytest.mark.feature("J2"),
    pytest.mark.kafka,
    pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes in /proc"),
]


def test_each_kind_of_fault_comes_in_each_phase() -> None:
    first = {(fault.kind, fault.phase) for seed in range(100, 154) for fault in plan(seed).faults[:1]}
    assert first == {(kind, phase) for kind in KINDS for phase in PHASES}


def test_three_seeds(tmp_path: Path) -> None:
    # They start with a driver killed in the fold, Kafka killed after the sinks, and an error before the commit.
    seeds = [8, 39, 48]
    results = [*runner.run(seeds, 1, tmp_path)]
    assert [result.failure for result in results] == [None, None, None]
    assert sorted(result.seed for result in results) == seeds
    hits = [hit for result in results for hit in result.hits]
    assert {hit.fault.kind for hit in hits} == {*KINDS}
    ending = [
        hit
        for hit in hits
        if hit.fault.kind == "driver"
        or (hit.fault.kind, hit.fault.phase) in (("error", "commit"), ("error", "done"))
    ]
    assert all(hit.restarts > 0 for hit in ending)
    assert all(result.rows > 500 for result in results)


class Told:
    """Replaces `runner.Broker`, `Drivers` and `Driver` with a scripted driver."""

    def __init__(self, folder: Path, *answers: driver.Ended | None) -> None:
        self.folder, self._answers = folder, iter(answers)

    def run(self, job: driver.Job) -> driver.Ended | None:
        Journal(Path(job.folder)).note("start", job.start)
        return next(self._answers)

    def take(self) -> "Told":
        return self

    def said(self) -> str:
        return "I fell over"

    def nothing(self, *_: Any) -> None:
        pass

    up = delete = give_up = nothing


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        ([None], "start 1: the driver ended by itself: I fell over"),
        (
            [driver.Ended("injected: but no fault was due")],
            "start 1: ended with an error that no fault explains: injected",
        ),
        ([driver.Ended(differences=["entries: 1 of 9 lost"])], "entries: 1 of 9 lost"),
        ([driver.Ended(rows=9)], "None"),
    ],
)
def test_what_fails_a_seed(answers: list[driver.Ended | None], failure: str, tmp_path: Path) -> None:
    told: Any = Told(tmp_path, *answers)
    result = runner.Slot(tmp_path, told, told).run(5)
    assert str(result.failure).startswith(failure)
    assert (tmp_path / "5").exists() == (result.failure is not None)  # kept to be looked at


class Sabotaged:
    """A sink that loses or doubles a row."""

    def __init__(self, sink: Sink, row: dict[str, Any], change: str) -> None:
        self._sink, self._row, self._change = sink, row, change

    def begin(self, batch_id: int) -> None:
        self._sink.begin(batch_id)

    def commit(self, batch_id: int, rows: Mapping[tuple[int, str], int]) -> None:
        if isinstance(self._sink, CommittingSink):
            self._sink.commit(batch_id, rows)

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        table = together(rows)
        places = [
            i for i, row in enumerate(table.select(IDENTITY).to_pylist()) if row.items() <= self._row.items()
        ]
        for place in places:
            before, row, after = table.slice(0, place), table.slice(place, 1), table.slice(place + 1)
            match self._change:
                case "lose":
                    table = pa.concat_tables([before, after])
                case "double":
                    table = pa.concat_tables([before, row, row, after])
                case "double under another name":
                    other = pa.Table.from_pylist([row.to_pylist()[0] | {"ordinal": 99}], OUTPUT)
                    table = pa.concat_tables([before, row, other, after])
                case "exchange":
                    table = pa.concat_tables([after, row, before])
        self._sink.write(batch_id, partition, by_kind(table))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"tables": "lose", "quarantine": "double", "letters": "lose", "responses": "double under another name"},
            ["table MESSAGE: N of N lost", "quarantine: N of N duplicated", "answers: N of N unexpected",
             "dead letters: N of N lost"],
        ),
        (
            {"tables": "double", "quarantine": "lose", "letters": "double under another name", "responses": "exchange"},
            ["quarantine: N of N lost", "table MESSAGE: N rows too many in its files", "answers: N out of order",
             "dead letters: N of N unexpected"],
        ),
    ],
)  # fmt: skip
def test_a_lost_or_doubled_row_is_found(
    changes: dict[str, str],
    found: list[str],
    spark: SparkSession,
    kafka: LocalKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "topics", lambda seed: [f"{tmp_path.name}-{i}" for i in range(3)])
    chaos = plan(0)._replace(records=600, cuts=(400,), faults=())
    undisturbed = of_log(partition_log(chaos.log(), PARTITIONS), tmp_path / "before").tables

    def sabotage(name: str, sink: Sink) -> Sink:
        if name not in changes:
            return sink
        kind = "MESSAGE" if name in ("responses", "tables") else "QUARANTINED"
        return Sabotaged(sink, undisturbed[kind].slice(1, 1).to_pylist()[0], changes[name])

    ended = driver.run(spark, driver.Job(0, 1, str(tmp_path), str(kafka.directory)), chaos, sabotage)
    assert ended.error is None
    said = [re.sub(r"\d+", "N", difference.partition(", the first")[0]) for difference in ended.differences]
    assert said == found
