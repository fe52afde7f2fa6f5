"""Which cases of the tests a change runs: all of most tests, and of those that take long other ones after each commit.

``durations.json`` says which tests take long: the seconds of processor time of each of their cases. All cases of a test that is not there run,
so those of a new one, too. ``make durations`` writes it.
"""

from __future__ import annotations

import heapq
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import TypeVar

T = TypeVar("T")

DURATIONS = Path(__file__).with_name("durations.json")

FREE = float(os.environ.get("MAGNETAR_FREE", "2"))
"""All cases of a test run if they take no more seconds than this together. CI gives the core's tests more."""

FREE_NEAR = max(4.0, FREE)
"""The same for tests of the rooms that the last commits changed (tests/log of streaming/log)."""

FREE_FILES = 120.0
"""The same for all tests together in the test files that the last commits changed."""

TEST_TURNS, CASE_TURNS = 16, 64
"""On average some case of each test runs in so many commits, and each case runs once in each round of so many: so within twice as many, as
long as the tests stay the same."""

ALWAYS = {
    "test_documents.py",
    "test_imports.py",
    "test_no_code_from_outside.py",
    "test_reference.py",
    "test_support.py",
    "test_undecodable.py",
}
"""Files whose tests always run: nearly any change may break what they check."""


def durations() -> dict[str, float]:
    """The seconds of each case, by test."""
    files = json.loads(DURATIONS.read_bytes())
    return {f"{file}::{test}": seconds for file, tests in files.items() for test, seconds in tests.items()}


def turns(seconds: float, free: float, at_most: int = CASE_TURNS) -> int:
    """In how many commits cases that take `seconds` together take turns, so that `free` of them are for each: a power of two."""
    return min(at_most, 1 << max(0, math.ceil(math.log2(max(seconds, free) / free))))


def turns_of_test(cases: int, seconds: float, free: float = FREE) -> int:
    """In how many commits so many cases of a test take turns, of which each takes `seconds`."""
    return turns(cases * seconds, free, min(CASE_TURNS, TEST_TURNS << (cases.bit_length() - 1)))


def drawn(
    cases: Iterable[tuple[str, float, T]], commit: int, free: float = FREE, together: float = 0
) -> list[T]:
    """The cases, each with its test and its seconds, that run after so many commits: those of a test that takes `free` seconds or less, and
    all of them, if they take `together` or less.

    Cases with as many turns are dealt to parts that take about as long. Each round of commits has an order of the parts of its own: so a
    case is as likely as another also where not every commit is tested.
    """
    cases = list(cases)
    count = Counter(test for test, _, _ in cases)
    most_turns = turns(sum(seconds for _, seconds, _ in cases), max(free, together))
    sharing: defaultdict[int, list[tuple[float, T]]] = defaultdict(list)
    for test, seconds, case in cases:
        sharing[min(most_turns, turns_of_test(count[test], seconds, free))].append((seconds, case))
    found = []
    for among, shared in sharing.items():
        number, turn = divmod(commit, among)
        found += parts(shared, among)[Random(number).sample(range(among), among)[turn]]
    return found


def parts(cases: Iterable[tuple[float, T]], count: int) -> list[list[T]]:
    """Deal `cases`, each with its seconds, to `count` parts that take about as long: the longest first, each to the shortest part."""
    shortest = [(0.0, number) for number in range(count)]
    dealt: list[list[T]] = [[] for _ in shortest]
    for seconds, case in sorted(cases, key=lambda each: -each[0]):
        taken, number = shortest[0]
        heapq.heapreplace(shortest, (taken + seconds, number))
        dealt[number].append(case)
    return dealt
