"""The series of an answer are as long as a chart needs, whatever the length of the log."""

from itertools import pairwise
from random import Random
from unittest import mock

import pytest

from streaming.answers.whatif import series
from streaming.answers.whatif.series import TimeSeries


@pytest.mark.parametrize("seed", range(20))
def test_a_series_keeps_peaks_and_the_end_in_bounded_memory(seed: int) -> None:
    draw, found = Random(seed), TimeSeries()
    told: list[tuple[int, int]] = []
    with mock.patch.object(series, "POINTS", 8):
        for clock in range(draw.randrange(2000)):
            value = draw.choice([0, 3, draw.randrange(1 << 40)])
            found.note(clock, value)
            told.append((clock, value))
            points = [*zip(found.clocks, found.values, strict=True)]
            assert len(points) <= 16
            assert set(points) <= set(told)
            assert points[-1] == told[-1] == (clock, found.last)
            assert max(found.values) == found.peak == max(each for _, each in told)
            assert all(a < b for a, b in pairwise(found.clocks))


def test_what_stays_as_it_is_takes_two_points() -> None:
    found = TimeSeries()
    for clock in range(100):
        found.note(clock, 7 if clock < 50 else 0)
    assert [*zip(found.clocks, found.values, strict=True)] == [(0, 7), (49, 7), (50, 0), (99, 0)]
    assert (found.last, found.peak) == (0, 7)
    assert (TimeSeries().last, TimeSeries().peak) == (0, 0)
