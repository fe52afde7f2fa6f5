"""Random lives have the rows, and cost the work, that were recorded, however they are cut, and whether or not silent rounds are skipped."""

from random import Random

import msgspec
import pytest

from schemas.effects import KINDS
from tests.broker import other_folds
from tests.broker.random_lives import live, without_choices
from tests.broker.recorded_lives import NAMES, checksums, difference, recorded

RECORDED = recorded()


@pytest.mark.parametrize(("theme", "seed"), NAMES)
def test_the_rows_are_those_recorded(theme: str, seed: int) -> None:
    """If the broker's behaviour has changed on purpose: see `recorded_lives`."""
    life, expected = live(theme, seed), RECORDED[f"{theme} {seed}"]
    if checksums(life) != expected:
        pytest.fail(difference(life, expected))


@pytest.mark.parametrize(("theme", "seed"), NAMES[::4])
def test_cuts_make_no_difference(theme: str, seed: int) -> None:
    log, expected, *_ = live(theme, seed)
    other_folds.cut(log, expected, Random(f"{theme} {seed}"))


@pytest.mark.parametrize(("theme", "seed"), [*NAMES[1::4], ("filters", 122)])
def test_skipped_rounds_make_no_difference(theme: str, seed: int) -> None:
    log, expected, *_ = live(theme, seed)
    other_folds.without_skipping(log, expected)


@pytest.mark.parametrize("seed", [360, 366])
def test_nothing_stops_the_fold(seed: int) -> None:
    """Found by the fuzzer, which draws other lives."""
    live("producers", seed)


def test_every_setting_has_values() -> None:
    assert without_choices() == set()


def test_everything_happens() -> None:
    """All kinds of rows but those of ticks that the trigger clock adds. The life that is not recorded has records that are refused, which are
    rare."""
    left = {*KINDS.values()}
    for theme, seed in [("policies", 15), *sorted(NAMES, key=lambda name: name[1])]:  # of each theme first
        life = live(theme, seed)
        left -= {KINDS[type(row.effect)] for out in life.rows for row in out}
        if left == {"TICK"}:
            break
    assert left == {"TICK"}


def test_the_recording_is_small() -> None:
    assert len(msgspec.json.encode(RECORDED)) < 200_000
