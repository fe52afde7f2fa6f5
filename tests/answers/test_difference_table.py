"""The table of differences: put in order piece by piece, in memory or in files, it is what sorting all rows at once gives."""

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from streaming.answers.fates import CHANGES
from streaming.answers.whatif import answer, difference_table
from streaming.answers.whatif.answer import DIFFERENCES, WhatIf, to_json, write
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.difference_table import DifferenceTable, from_file, together
from streaming.log import spool
from streaming.log.partition import partition_log
from streaming.log.policies import configuring
from tests.state.test_other_partitions import made_log

POLICIES = ["one", "another", "last"]


@pytest.fixture(params=["in memory", "in files"])
def kept(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the rows are: with little memory, in files, in which a piece has a few rows."""
    if request.param == "in memory":
        yield request.param
        return
    with (
        mock.patch.object(spool, "IN_MEMORY", 0),
        mock.patch.object(spool, "ROWS", 5),
        mock.patch.object(difference_table, "ROWS", 7),
    ):
        yield request.param


def row(dice: random.Random, **known: Any) -> dict[str, Any]:
    made: dict[str, Any] = dict.fromkeys(DIFFERENCES.names)
    texts = {
        "producer": "pqr", "key": ["k", None], "change": CHANGES, "baseline_cause": ["x", "y", None],
        "proposed_policy": ["v", "w", None],
    }  # fmt: skip
    made |= {name: dice.choice(values) for name, values in texts.items()}
    made |= {"sequence_id": dice.randrange(10**6), "open_loop": dice.choice([False, None])}
    return made | known


def windows(dice: random.Random, topic: str, before: int) -> Iterator[list[pa.Table]]:
    """What is settled of a topic, one after the other: a table for each subscription and policy set. `before`: as many of the first
    messages were there before the log."""
    number = 0
    for _ in range(dice.randrange(4)):
        stop = number + dice.randrange(1, 6)
        tables = []
        for subscription in sorted(dice.sample(["z", "a", "m", "b"], dice.randrange(1, 4))):
            for policies in POLICIES:
                rows = [
                    row(dice, topic=topic, subscription=subscription, policies=policies, offset=None if each < before else 10 * each)
                    for each in range(number, stop)
                    if dice.random() < 0.6
                ]  # fmt: skip
                if rows:
                    tables.append(pa.Table.from_pylist(rows, DIFFERENCES))
        yield tables
        number = stop


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_in_order(seed: int, kept: str) -> None:
    dice = random.Random(seed)
    before = dice.choice([0, 3])
    parts, expected = [], []
    for _ in range(dice.randrange(1, 4)):
        file: Any = TemporaryFile() if dice.random() < 0.5 else None  # noqa: SIM115
        table = DifferenceTable(POLICIES, file)
        # Of several ingress partitions, each has topics of its own, but a log may say otherwise.
        topics = [f"topic-{dice.randrange(5)}" for _ in range(4)]
        settled = [(topic, windows(dice, topic, before)) for topic in dict.fromkeys(topics)]
        opened = {topic: dice.sample(POLICIES, 2) for topic, _ in settled if dice.random() < 0.5}
        by_run = defaultdict(list)
        while settled:
            topic, coming = dice.choice(settled)
            tables = next(coming, None)
            if tables is None:
                settled.remove((topic, coming))
                continue
            table.add(topic, tables)
            for each in (each for found in tables for each in found.to_pylist()):
                if each["change"] == CHANGES[-1] and each["policies"] in opened.get(topic, ()):
                    each["open_loop"] = True
                by_run[each["policies"]].append(each)
        found = table.finish(opened)
        assert (found.rows is None) == (kept == "in files" and file is not None and bool(by_run))
        parts.append(from_file(found, file))
        expected += [each for policies in POLICIES for each in by_run[policies]]
    highest = 1 << 62
    expected.sort(
        key=lambda each: (
            each["topic"],
            highest if each["offset"] is None else each["offset"],
            each["subscription"],
            POLICIES.index(each["policies"]),
        )
    )
    found_rows = together(parts)
    assert found_rows.schema == DIFFERENCES
    assert found_rows.to_pylist() == expected
    for name in ("topic", "proposed_policy"):
        dictionaries = {str(chunk.dictionary) for chunk in found_rows[name].chunks}
        assert len(dictionaries) <= 1
        assert set(found_rows[name].unique().to_pylist()) == {each[name] for each in expected}


def test_nothing_differs() -> None:
    for parts in ([], [DifferenceTable(POLICIES).finish({})]):
        assert together(parts).equals(DIFFERENCES.empty_table())


@pytest.mark.parametrize("processes", [1, 2])
def test_an_answer_with_little_memory(processes: int, kept: str, tmp_path: Path) -> None:
    log = partition_log(made_log(500), 3)
    policies = [
        PolicySet("ttl", configuring(settings={"ttlDurationDefaultInSeconds": 2, "messageExpiryCheckIntervalInMinutes": 1})),
        PolicySet("dedup", configuring(settings={"brokerDeduplicationEnabled": True})),
    ]  # fmt: skip
    with mock.patch.object(spool, "IN_MEMORY", 1 << 30):
        expected = whatif(log, policies, processes=1)
    assert len(expected.differences) > 100
    found = whatif(log, policies, processes=processes)
    assert found.differences.to_pylist() == expected.differences.to_pylist()
    assert to_json(found) == to_json(expected)
    for name, each in (("found", found), ("expected", expected)):
        write(each, tmp_path / name)
    tables = [pa.parquet.read_table(tmp_path / name / "differences") for name in ("found", "expected")]
    assert tables[0].to_pylist() == tables[1].to_pylist()


def written(found: WhatIf, folder: Path) -> list[dict[str, Any]]:
    """The differences of an answer as a reader of its files gets them."""
    write(found, folder)
    rows: list[dict[str, Any]] = pa.parquet.read_table(folder / "differences").to_pylist()
    return rows


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)


@pytest.mark.parametrize("together", [1, 8])
def test_each_policy_set_and_change_has_a_file(tmp_path: Path, together: int) -> None:
    """Whatever the names of policy sets are: readers get them from the paths."""
    names = ["a/b=c", "%2F", "100 % ü 🙂", "..", "x" * 200, "~"]
    ttl = configuring(settings={"ttlDurationDefaultInSeconds": 2, "messageExpiryCheckIntervalInMinutes": 1})
    found = whatif(partition_log(made_log(300), 3), [PolicySet(name, ttl) for name in names], processes=1)
    with mock.patch.multiple(answer, _ROW_GROUP=16, _TOGETHER=together):
        assert in_order(written(found, tmp_path)) == in_order(found.differences.to_pylist())
    paths = {str(each.parent.relative_to(tmp_path)) for each in tmp_path.rglob("rows.parquet")}
    assert "differences/policies=a%2Fb%3Dc/change=lost newly" in paths
    for path in paths:  # in the order of topics
        topics = pa.parquet.read_table(tmp_path / path / "rows.parquet")["topic"].to_pylist()
        assert topics == sorted(topics)


def test_a_name_that_is_too_long_for_a_path_is_cut(tmp_path: Path) -> None:
    names = ["ü" * 250 + end for end in "ab"]
    ttl = configuring(settings={"ttlDurationDefaultInSeconds": 2, "messageExpiryCheckIntervalInMinutes": 1})
    found = whatif(partition_log(made_log(300), 3), [PolicySet(name, ttl) for name in names], processes=1)
    rows = written(found, tmp_path)
    assert {row["policies"] for row in rows} == {"ü" * 33 + "~0", "ü" * 33 + "~1"}
    assert len(rows) == len(found.differences)


def test_an_answer_without_differences_has_its_columns(tmp_path: Path) -> None:
    """And nothing of what a process left that was killed."""
    (tmp_path / "differences" / "policies=old" / "change=saved").mkdir(parents=True)
    found = whatif(
        partition_log(made_log(50), 3),
        [PolicySet("same", configuring(settings={"ttlDurationDefaultInSeconds": 0}))],
        processes=1,
    )
    assert written(found, tmp_path) == []
    assert {*pa.parquet.read_table(tmp_path / "differences").column_names} == {*answer.DIFFERENCES.names}
    assert [each.name for each in (tmp_path / "differences").iterdir()] == ["policies=same"]
