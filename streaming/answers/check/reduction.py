"""Delta debugging: the smallest part of something that still shows what the whole shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def reduced(
    items: Sequence[T], shows: Callable[[list[T]], Sequence[T] | None], *, most: int | None = None
) -> list[T]:
    """A part of `items` from which no single item can be left out.

    `shows` tries a part. It returns None if the part does not show it, else the items of it that matter, which are usually
    all of it. `most`: how often to try at most; what is found by then may not be the smallest.
    """
    items, parts, tried = list(items), 2, 0
    while items:
        parts = min(parts, len(items))
        for candidate in _without(items, parts):
            if tried == most:
                return items
            tried += 1
            found = shows(candidate)
            if found is not None:
                items, parts = list(found), max(parts - 1, 2)
                break
        else:
            if parts == len(items):
                return items
            parts *= 2
    return items


def _without(items: list[T], parts: int) -> Iterator[list[T]]:
    """The items without each of `parts` parts of almost the same size."""
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    for start, stop in pairwise(bounds):
        yield items[:start] + items[stop:]
