"""A log is folded some records at a time. How many changes nothing in the answer."""

from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pytest

from streaming.answers.whatif import side_by_side
from streaming.answers.whatif.compare import PolicySet, whatif
from tests.answers.test_reactive import as_table
from tests.answers.test_settled import POLICIES
from tests.broker.random_lives import live
from tests.broker.recorded_lives import WITHOUT_PAYLOADS

SAMPLED = {"peak_backlog", "oldest", "peak_oldest"}
"""Columns of the summary that are looked at after each piece."""

FIRST = {"open_loop_offset", "open_loop_baseline", "open_loop_proposed"}
"""Which of the things that clients see at one moment counts as the first."""


def answer(log: Any, pieces: int, policies: list[PolicySet]) -> list[Any]:
    with mock.patch.object(side_by_side, "PIECES", pieces):
        found = whatif(log, policies, partitions=1, processes=1)
    summary = [
        {name: value for name, value in row.items() if name not in SAMPLED | FIRST}
        for row in found.summary.to_pylist()
    ]
    return [found.totals, summary, found.differences.to_pylist()]


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_the_answer_is_the_same(theme: str, seed: int) -> None:
    log = as_table(live(theme, seed).log)
    policies = [POLICIES[seed % 2], POLICIES[2 + seed // 2 % 2]]
    assert answer(log, 1, policies) == answer(log, 1 << 30, policies)


def test_only_a_fault_ends_a_piece() -> None:
    payload = {"command": "SEND", "payload": 'DEFAULT "FAULT"', "key": "FAULT"}
    values: list[dict[str, Any]] = [
        payload,
        {"command": "TICK"},
        payload,
        {"command": "FAULT", "fault": "FailWrites"},
        payload,
    ]
    for encode in (msgspec.json.encode, msgspec.msgpack.encode):
        part = pa.table({"value": [encode(each) for each in values]})
        assert side_by_side._first_fault(part) == 3
        assert side_by_side._first_fault(part.slice(3)) == 0
        assert side_by_side._first_fault(part.slice(4)) == 1
