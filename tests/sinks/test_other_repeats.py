"""A micro-batch that is repeated with other rows, as after a topic was set aside: what the first attempt wrote does not stay."""

from datetime import timedelta
from itertools import permutations
from pathlib import Path

import pytest

from schemas.effects import Effect, Quarantined
from sinks import tables
from sinks.base import ForeignFiles, StoringSink
from sinks.delta_log import today
from sinks.ledger_store import LedgerStore
from sinks.quarantine import QuarantineSink
from sinks.tables import DeltaSink, read_table
from tests.sinks.helpers import closed, deleted, output, receipts, tree

pytestmark = pytest.mark.feature("J2")

BEFORE = [*receipts(1, 0, 4), closed(1, 5), *receipts(2, 0, 2)]
ATTEMPTS: list[list[Effect]] = [
    [],
    [*receipts(2, 3, 4), closed(2, 5), *receipts(3, 0, 1), deleted(1, 5)],
    [*receipts(2, 3, 3), Quarantined("t", "set_aside", "by an operator", b"x")],
    [closed(2, 3)],
    [Quarantined("t", "json", "empty", b""), deleted(1, 5)],
]


def sinks(folder: Path) -> list[StoringSink]:
    return [
        LedgerStore(str(folder)),
        QuarantineSink(str(folder)),
        DeltaSink(str(folder / "tables")),
    ]


def attempt(
    folder: Path, batch_id: int, effects: list[Effect], *, commit: bool = True, is_repeat: bool = False
) -> None:
    rows = {
        0: output(effects, partition=0, offset=100 * batch_id),
        1: output(receipts(9, batch_id, batch_id), partition=1),
    }
    for sink in sinks(folder):
        sink.begin(batch_id)
        if is_repeat:
            sink.clear(batch_id)
        for partition, each in rows.items():
            if each:
                sink.write(batch_id, partition, each)
        if commit and isinstance(sink, DeltaSink):
            sink.commit(
                batch_id,
                {
                    (partition, kind): len(table)
                    for partition, each in rows.items()
                    for kind, table in each.items()
                },
            )


def found(folder: Path) -> object:
    files = {path: data for path, data in tree(folder).items() if not path.startswith("tables/")}
    tables = read_table(str(folder / "tables"))
    return files, tables.to_pylist()


@pytest.mark.parametrize(("first", "second"), [*permutations(range(len(ATTEMPTS)), 2)])
def test_the_rows_of_the_last_attempt_count(tmp_path: Path, first: int, second: int) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    for folder in (once, twice):
        attempt(folder, 0, BEFORE)
    attempt(twice, 1, ATTEMPTS[first], commit=False)
    for folder in (once, twice):
        attempt(folder, 1, ATTEMPTS[second], is_repeat=folder == twice)
        attempt(folder, 2, receipts(4, 0, 0))
    assert found(twice) == found(once)


@pytest.mark.parametrize("after_midnight", [False, True])
@pytest.mark.parametrize(("first", "second"), [*permutations(range(len(ATTEMPTS)), 2)])
def test_other_rows_than_the_committed_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, second: int, after_midnight: bool
) -> None:
    """Also those of a kind that only one of the attempts has. The table stays as it was."""
    attempt(tmp_path, 0, BEFORE)
    attempt(tmp_path, 1, ATTEMPTS[first])
    before = read_table(str(tmp_path / "tables"))
    if after_midnight:
        tomorrow = today() + timedelta(days=1)
        monkeypatch.setattr(tables, "today", lambda: tomorrow)
    with pytest.raises(ForeignFiles, match="has other rows than the query would write: it began this micro-"):
        attempt(tmp_path, 1, ATTEMPTS[second], is_repeat=True)
    attempt(tmp_path, 1, ATTEMPTS[first], is_repeat=True)
    assert read_table(str(tmp_path / "tables")).equals(before)
