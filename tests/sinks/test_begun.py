"""A micro-batch is repeated as it was planned, or refused."""

from pathlib import Path
from typing import Any

import pytest

from sinks.base import BEGUN, ForeignFiles
from sinks.begun import Begun, Planned
from sinks.storage import Damaged, Storage

pytestmark = pytest.mark.feature("J2")

FIRST = Planned(0, 1_700_000_000_000, '[{"commands":{"0":3}}]')
SECOND = Planned(1, 1_700_000_000_000, '[{"commands":{"0":7}}]')


def test_a_repeat_is_accepted_and_any_other_refused(tmp_path: Path) -> None:
    url = str(tmp_path)
    assert not Begun(url).begin(FIRST, None)
    assert not Begun(url).begin(SECOND, FIRST)
    note = (tmp_path / "begun.json").read_bytes()
    assert Begun(url).begin(SECOND, FIRST)
    for other in (
        Planned(1, SECOND.time + 1, SECOND.offsets),
        Planned(1, SECOND.time, '[{"commands":{"0":8}}]'),
    ):
        with pytest.raises(ForeignFiles, match=r"another micro-batch 1 .* Restore checkpoint and store of"):
            Begun(url).begin(other, FIRST)
    with pytest.raises(
        ForeignFiles, match="holds output of micro-batch 1, but the query is at micro-batch 0"
    ):
        Begun(url).begin(FIRST, None)
    assert (tmp_path / "begun.json").read_bytes() == note


def test_the_one_before_is_the_one_that_the_checkpoint_has(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    Begun(str(tmp_path)).begin(SECOND, FIRST)  # the store of a release without this note
    third = Planned(2, SECOND.time, "")
    with pytest.raises(ForeignFiles, match="another micro-batch 1 than the one that the query has"):
        Begun(str(tmp_path)).begin(third, Planned(1, 0, ""))
    Begun(str(tmp_path)).begin(third, SECOND)
    for number in (4, 9):
        with pytest.raises(
            ForeignFiles, match=f"up to 2, but the query is at micro-batch {number}: the store"
        ):
            Begun(str(tmp_path)).begin(Planned(number, 0, ""), None)


def test_a_store_that_is_gone(tmp_path: Path) -> None:
    Begun(str(tmp_path / "new")).check(-1)
    Begun(str(tmp_path / "new")).check(0)  # nothing of it was written before the crash
    with pytest.raises(
        ForeignFiles, match="holds nothing, but the query is at micro-batch 1: the store is older"
    ):
        Begun(str(tmp_path / "new")).check(1)


def test_a_checkpoint_has_planned_what_began(tmp_path: Path) -> None:
    Begun(str(tmp_path)).check(-1)
    (tmp_path / "segments").mkdir()
    Begun(str(tmp_path)).begin(SECOND, FIRST)
    Begun(str(tmp_path)).check(1)
    Begun(str(tmp_path)).check(2)
    for last, at in ((0, "at micro-batch 0"), (-1, "new")):
        with pytest.raises(ForeignFiles, match=f"output of micro-batch 1, but the query is {at}: "):
            Begun(str(tmp_path)).check(last)


def test_a_damaged_note(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    Begun(str(tmp_path)).begin(SECOND, FIRST)
    (tmp_path / "begun.json").write_bytes((tmp_path / "begun.json").read_bytes()[:9])
    with pytest.raises(Damaged, match=r"begun.json .the micro-batch that began last. is damaged"):
        Begun(str(tmp_path)).check(1)


def test_the_micro_batches_without_output_tables(tmp_path: Path) -> None:
    url, planned = str(tmp_path), [Planned(number, 0, str(number)) for number in range(8)]
    for number, tables in enumerate([True, False, False, True, False, True, True]):
        begun = Begun(url, tables=tables)
        begun.begin(planned[number], planned[number - 1] if number else None)
        begun.end([], {})
    assert Begun(url).without_tables() == [(1, 2), (4, 4)]
    for tables in (True, False, False, True):  # the query was killed, and started again otherwise
        Begun(url, tables=tables).begin(planned[6], planned[5])
    assert Begun(url).without_tables() == [(1, 2), (4, 4), (6, 6)]
    Begun(url, tables=False).begin(planned[7], planned[6])
    assert Begun(url).without_tables() == [(1, 2), (4, 4), (6, 7)]


def test_what_may_have_begun(tmp_path: Path) -> None:
    assert not Begun(str(tmp_path)).may_have_begun(0)
    assert Begun(str(tmp_path)).may_have_begun(1)  # the store of a release without this note
    (tmp_path / "segments").mkdir()
    Begun(str(tmp_path)).begin(SECOND, FIRST)
    assert [Begun(str(tmp_path)).may_have_begun(batch) for batch in (0, 1, 2)] == [True, True, False]


def test_the_options_of_the_first_attempt_are_noted(tmp_path: Path) -> None:
    url = str(tmp_path)
    assert Begun(url).repeated() is None
    Begun(url).begin(FIRST, None, 5)
    Begun(url).begin(FIRST, None, None)
    assert Begun(url).repeated() == (0, 5)
    Begun(url).begin(SECOND, FIRST, None)
    Begun(url).begin(SECOND, FIRST, 7)
    assert Begun(url).repeated() == (1, None)
    storage = Storage(url)
    note = storage.read_json(BEGUN, dict[str, Any], "the note")
    assert note is not None
    del note["max_ahead_ms"]  # as an earlier version wrote it
    storage.write_json(BEGUN, note)
    assert Begun(url).repeated() is None
    Begun(url).begin(SECOND, FIRST, 7)
    assert Begun(url).repeated() is None
