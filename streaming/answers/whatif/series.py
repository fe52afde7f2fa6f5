"""A value over time, as a bounded number of points."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

POINTS = 1 << 10
"""A series has at most twice as many points. Then one of two stays, the higher."""


class TimeSeries:
    """A value (≥ 0) at moments (ms). `peak`: the highest so far."""

    def __init__(
        self, clocks: Iterable[int] = (), values: Iterable[int] = (), peak: int = 0,
    ) -> None:  # fmt: skip
        self.clocks, self.values = array("q", clocks), array("q", values)
        self.peak = peak

    @property
    def last(self) -> int:
        """The last value; 0: there is none."""
        return self.values[-1] if self.values else 0

    def note(self, clock: int, value: int) -> None:
        """Add a point, unless it goes on as it was."""
        self.peak = max(self.peak, value)
        if len(self.values) > 1 and self.values[-1] == value == self.values[-2]:
            self.clocks[-1] = clock
            return
        self.clocks.append(clock)
        self.values.append(value)
        if len(self.values) > 2 * POINTS:
            pairs = np.array(self.values[:-1]).reshape(-1, 2)
            kept = 2 * np.arange(len(pairs)) + pairs.argmax(axis=1)
            self.clocks, self.values = (_at(column, kept) for column in (self.clocks, self.values))


def _at(column: array[int], places: np.ndarray[Any, Any]) -> array[int]:
    """What a column has at some places, and at the last."""
    return array("q", np.append(np.array(column)[places], column[-1]).tobytes())
