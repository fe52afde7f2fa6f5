"""The fold of a log record by record: as the fold in batches, back and forth."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.effects import Row
from schemas.entries import EntryNotFound
from streaming.answers.history.log_fold import KeptEntries, LogFold, partitions_of
from streaming.jobs.replay import load
from streaming.traces import RECORDED
from streaming.traces.importer import import_traces


def test_steps_runs_and_snapshots_give_one_state(tmp_path: Path) -> None:
    import_traces(sorted(RECORDED.glob("s*.jsonl")), tmp_path / "log.jsonl")
    records = load(tmp_path / "log.jsonl", partitions=2).records
    assert partitions_of(records) == [0, 1]
    fold = LogFold(records, 1)
    stepped = LogFold(records, 1)
    rows = []
    middle = len(fold) // 2
    snapshot = None
    for _ in range(len(fold)):
        rows += stepped.step()
        if stepped.position == middle:
            snapshot = stepped.snapshot()
    seen: list[Row] = []
    fold.run(len(fold), seen.extend)
    assert seen == rows
    assert fold.snapshot() == stepped.snapshot()
    assert snapshot is not None
    stepped.restore(snapshot)
    assert stepped.position == middle
    stepped.run(len(stepped))
    assert fold.snapshot() == stepped.snapshot()
    with pytest.raises(IndexError):
        fold.step()


def test_entries_that_are_not_there() -> None:
    with pytest.raises(EntryNotFound, match="there are 0 entries"):
        KeptEntries().read("t", 1, 0, 0)
