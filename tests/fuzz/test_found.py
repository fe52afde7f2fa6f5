"""What the fuzzer found stays fixed. `python -m tests.fuzz` writes such files."""

import json
from pathlib import Path

import pytest

from tests.fuzz.cases import Load
from tests.fuzz.files import read
from tests.fuzz.judge import judge_load, judge_log

FOUND = Path(__file__).parent / "found"


@pytest.mark.parametrize(
    "path", sorted([*FOUND.glob("*.jsonl"), *FOUND.glob("*.parquet")]), ids=lambda path: path.stem
)
def test_a_log_costs_no_more_than_its_bound(path: Path) -> None:
    judge_log(read(path))


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.load")), ids=lambda path: path.stem)
def test_a_load_grows_as_it_may(path: Path) -> None:
    judge_load(Load(**json.loads(path.read_text())))
