"""Which of the cases that are marked as `sampled` a change runs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def parts(cases: Iterable[tuple[float, T]], count: int) -> list[list[T]]:
    """Deal `cases`, each with its seconds, to `count` parts that take about as long: the longest first, each to the shortest part."""
    shortest = [(0.0, number) for number in range(count)]
    dealt: list[list[T]] = [[] for _ in shortest]
    for seconds, case in sorted(cases, key=lambda each: -each[0]):
        taken, number = shortest[0]
        heapq.heapreplace(shortest, (taken + seconds, number))
        dealt[number].append(case)
    return dealt
