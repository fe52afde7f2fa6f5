"""What the folds of a what-if have can be kept after any record. Others that go on from there come to the same."""

from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from sinks.ledger_store import LedgerStore
from streaming.answers.whatif import compare
from streaming.answers.whatif.projection import LiveState
from streaming.answers.whatif.side_by_side import SideBySide, piece_size
from streaming.jobs.replay import replay_in_process
from streaming.state.saved import read_states
from tests.answers.test_reactive import as_table
from tests.answers.test_settled import POLICIES, answer, rows
from tests.broker.random_lives import live
from tests.broker.recorded_lives import WITHOUT_PAYLOADS


def resumed(every: int) -> Any:
    """In place of `fold_side_by_side`: other folds go on after every so many pieces."""

    def fold(
        records: pa.Table, partition: int, pins: Any, progress: Any = None, start: Any = None, baseline: Any = None,
        settle: Any = None,
    ) -> Any:  # fmt: skip
        folds, done, pieces = SideBySide(partition, pins, start, baseline), 0, 0
        size = piece_size(len(records))
        while done < len(records):
            done += folds.fold(records.slice(done, size - done % size), settle)
            pieces += 1
            if pieces % every == 0:
                kept = folds.keep()
                folds = SideBySide(partition, pins, start, baseline, kept)
                assert folds.keep() == kept
        return folds.end()

    return mock.patch.object(compare, "fold_side_by_side", fold)


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_the_answer_is_the_same(theme: str, seed: int) -> None:
    log = as_table(live(theme, seed).log)
    policies = [POLICIES[seed % 2], POLICIES[2 + seed // 2 % 2]]
    expected = rows(answer(log, 1, policies=policies)[0])
    with resumed(1 + seed % 7):
        assert rows(answer(log, 1, policies=policies)[0]) == expected


def folded(log: pa.Table, folder: Path, partitions: int = 1) -> LiveState:
    """The state at the end of a log."""
    replay_in_process(log, folder, partitions=partitions, overwrite=True)
    return LiveState(read_states(folder / "state") or [], LedgerStore(str(folder / "store")))


def half_folded(log: pa.Table, folder: Path, partitions: int = 1) -> LiveState:
    """The state in the middle of a log."""
    return folded(log.slice(0, len(log) // 2), folder, partitions)


@pytest.mark.parametrize("seed", range(12))
def test_after_a_state(seed: int, tmp_path: Path) -> None:
    log = as_table(live("deduplication", seed).log)
    asked: dict[str, Any] = {"policies": POLICIES[:2], "live": half_folded(log, tmp_path / "replayed")}
    expected = rows(answer(log, 1, **asked)[0])
    with resumed(1 + seed % 3):
        assert rows(answer(log, 1, **asked)[0]) == expected
