"""The cases that changes run in turn."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.durations import merged, written
from tests.samples import CASE_TURNS, FREE, TEST_TURNS, drawn, parts, turns, turns_of_test

SECONDS = st.lists(st.sampled_from([1, 1, 1, 14, 60, 150]), max_size=60)
TESTS = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([0.01, 0.3, 1, 3, 20])), min_size=1, max_size=30
)
"""Tests: how many cases, and the seconds of each."""


@given(SECONDS, st.integers(1, 32))
def test_each_case_comes_once_and_no_part_takes_much_longer(seconds: list[float], count: int) -> None:
    dealt = parts(list(zip(seconds, range(len(seconds)), strict=True)), count)
    assert len(dealt) == count
    assert sorted(case for part in dealt for case in part) == list(range(len(seconds)))
    taken = [sum(seconds[case] for case in part) for part in dealt]
    assert max(taken) - min(taken) <= max(seconds, default=0)


def _cases(tests: list[tuple[int, float]]) -> list[tuple[str, float, tuple[int, int]]]:
    return [
        (str(test), seconds, (test, case))
        for test, (count, seconds) in enumerate(tests)
        for case in range(count)
    ]


@given(TESTS, st.integers(0, 10**6))
def test_each_case_runs_in_its_turn(tests: list[tuple[int, float]], commit: int) -> None:
    cases = _cases(tests)
    # From the first commit of a round, each case runs as often as its test's turns say.
    first = commit - commit % CASE_TURNS
    often = Counter(case for turn in range(CASE_TURNS) for case in drawn(cases, first + turn))
    for test, seconds, case in cases:
        assert often[case] == CASE_TURNS // turns_of_test(tests[int(test)][0], seconds)
    # And from any commit within twice as many.
    seen = {case for turn in range(2 * CASE_TURNS - 1) for case in drawn(cases, commit + turn)}
    assert seen == {case for _, _, case in cases}


@given(TESTS)
def test_commits_take_about_as_long(tests: list[tuple[int, float]]) -> None:
    cases = _cases(tests)
    seconds = {case: each for _, each, case in cases}
    taken = [sum(seconds[case] for case in drawn(cases, commit)) for commit in range(CASE_TURNS)]
    expected = sum(count * each / turns_of_test(count, each) for count, each in tests)
    assert abs(sum(taken) / CASE_TURNS - expected) < 1e-6
    # Of tests with as many turns, the longest case is the most that two commits differ by.
    longest: dict[int, float] = {}
    for count, each in tests:
        if (among := turns_of_test(count, each)) > 1:
            longest[among] = max(longest.get(among, 0), each)
    assert max(taken) - min(taken) <= sum(longest.values()) + 1e-6


def test_a_test_with_many_cases_runs_as_often_as_one_with_few() -> None:
    assert turns_of_test(1, 100) == TEST_TURNS
    assert turns_of_test(3, 100) == 2 * TEST_TURNS
    assert turns_of_test(300, 1) == CASE_TURNS


@given(st.floats(0, 1000), st.floats(0.1, 1000))
def test_turns_are_no_more_than_needed(seconds: float, most: float) -> None:
    among = turns(seconds, most)
    assert seconds / among <= most * (1 + 1e-9) or among == CASE_TURNS
    assert among == 1 or seconds / (among / 2) > most


@given(TESTS, st.integers(0, 10**6), st.floats(1, 1000))
def test_what_changed_runs_whole_if_that_takes_no_more_than_it_may(
    tests: list[tuple[int, float]], commit: int, together: float
) -> None:
    cases = _cases(tests)
    if sum(seconds for _, seconds, _ in cases) <= together:
        assert sorted(drawn(cases, commit, together=together)) == sorted(case for _, _, case in cases)


def test_a_change_takes_another_order_of_turns_in_each_round() -> None:
    """So that each case comes where only each second commit is tested."""
    cases = _cases([(CASE_TURNS, 20)])
    assert len({case for commit in range(0, 400, 2) for case in drawn(cases, commit)}) == CASE_TURNS


def test_a_test_that_takes_little_always_runs() -> None:
    cases = _cases([(10, FREE / 10), (1, 100)])
    for commit in range(CASE_TURNS):
        assert {case for case in drawn(cases, commit) if case[0] == 0} == {(0, case) for case in range(10)}


@pytest.mark.parametrize(
    ("old", "found", "count", "expected"),
    [
        ({}, [3, 4.01], 1, {"t": 3.5}),
        ({}, [0.3], 1, {}),
        ({}, [0.3], 2, {"t": 0.3}),
        ({"t": 2}, [2.9], 1, {"t": 2}),  # about right
        ({"t": 2}, [3.1], 1, {"t": 3.1}),
        ({"t": 2}, [1.2], 1, {"t": 1.2}),
        ({"t": 2}, [0.4], 1, {}),  # it always runs now
        ({"u": 2}, [0.4], 1, {"u": 2}),  # not measured
    ],
)
def test_a_measurement_changes_figures_that_are_wrong(
    old: dict[str, float], found: list[float], count: int, expected: dict[str, float]
) -> None:
    assert merged(old, {"t": found}, {"t": count}) == expected


def test_the_file_has_the_tests_of_files_that_are_there() -> None:
    here = "tests/test_samples.py"
    assert json.loads(written({f"{here}::b": 2, "tests/test_gone.py::a": 3, f"{here}::a": 4})) == {
        here: {"a": 4, "b": 2}
    }
