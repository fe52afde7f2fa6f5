"""What the soak makes of its samples."""

import os
import random
from pathlib import Path

import pytest

from bench.soak import files_of
from bench.soak_plot import PANELS, Sample, judge
from sinks.tables import DeltaSink
from tests.sinks.helpers import output
from tests.sinks.test_tables import EFFECTS

STEADY: Sample = {
    "java": 900e6, "heap": 150e6, "workers": 400e6, "driver": 200e6, "state": 60_000, "batch_seconds": 1.2, "page_seconds": 0.4, "page_failures": 1,
    "backlog": 24_000,
    "records": 6_000, "ledger_files": 20, "segment_files": 120, "checkpoint_files": 900, "other_files": 12,
    "table_files": 400, "stale_files": 20,
}  # fmt: skip
"""Of a soak that is flat."""

FILES = ["ledger_files", "segment_files", "checkpoint_files", "other_files", "stale_files"]


def soaked(count: int = 100, growth: dict[str, float] | None = None) -> list[Sample]:
    """`count` samples with 2% of noise, each fifteen micro-batches and 15 s after the last; `growth`: by how many times
    a quantity grows in a straight line until the end."""
    dice, growth, found = random.Random(1), growth or {}, []
    for n in range(count):
        through = n / max(1, count - 1)
        grown = {name: 1 + (times - 1) * through for name, times in growth.items()}
        noisy = {
            name: value * grown.get(name, 1) * dice.uniform(0.98, 1.02) for name, value in STEADY.items()
        }
        found.append({"minutes": n / 4, "batch": 15 * (n + 1) - 1} | noisy)
    return found


def test_a_steady_soak_passes() -> None:
    samples = soaked()
    verdict = judge(samples)
    assert verdict.passed
    assert verdict.grew == []
    assert verdict.lines[-1] == "all flat"


@pytest.mark.parametrize("name", [each.name for _, quantities in PANELS for each in quantities])
def test_each_quantity_that_grows_fails(name: str) -> None:
    verdict = judge(soaked(growth={name: 4}))
    assert not verdict.passed
    assert verdict.grew == [name]
    assert verdict.lines[-1] == f"not flat: {name}"


def test_a_micro_batch_may_take_longer_on_a_busy_machine() -> None:
    assert judge(soaked(growth={"batch_seconds": 1.4})).passed
    assert not judge(soaked(growth={"heap": 1.4})).passed


@pytest.mark.parametrize("name", FILES)
def test_a_few_files_more_are_no_growth(name: str) -> None:
    samples = soaked()
    for n, sample in enumerate(samples):
        sample[name] = 0 if n < 50 else 16
    assert judge(samples).passed
    for n, sample in enumerate(samples):
        sample[name] = 0 if n < 50 else 17
    assert judge(samples).grew == [name]


def test_what_happens_in_the_warm_up_does_not_count() -> None:
    samples = soaked()
    for sample in samples[:20]:
        sample["java"] = 1
    assert judge(samples).passed


@pytest.mark.parametrize(("count", "passed"), [(0, False), (1, False), (36, False), (37, True)])
def test_too_few_samples_fail(count: int, passed: bool) -> None:
    verdict = judge(soaked(count))
    assert verdict.passed is passed
    assert ("too few" in verdict.lines[0]) is not passed


def test_files_are_counted_by_what_they_are(tmp_path: Path) -> None:
    table = DeltaSink(str(tmp_path / "store" / "tables"))
    table.begin(5)
    rows = output(EFFECTS)
    table.write(5, 0, rows)
    table.commit(5, {(0, kind): len(each) for kind, each in rows.items()})
    for path in (
        "store/ledgers/t/1.parquet",
        "store/segments/0/0-1-1-0.parquet",
        "store/segments/1/0-1-1-0.parquet",
        "store/tables/kind=MESSAGE/part-of-an-aborted-compaction.parquet",
        "store/tables/kind=MESSAGE/and-a-young-one.parquet",
        "store/deletions/1-0.json",
        "checkpoint/offsets/1",
        "checkpoint/metadata",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    os.utime(tmp_path / "store/tables/kind=MESSAGE/part-of-an-aborted-compaction.parquet", (0, 0))
    assert files_of(tmp_path / "store", tmp_path / "checkpoint") == {
        "ledger_files": 1,
        "segment_files": 2,
        "table_files": 5,
        "stale_files": 1,
        "other_files": 1,
        "checkpoint_files": 2,
    }
