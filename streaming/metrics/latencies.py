"""A summary of latencies, with the quantiles that Pulsar's brokers show."""

import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from math import ceil, inf, nan

from prometheus_client.core import Metric

QUANTILES = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)
"""Pulsar's."""

WINDOW = 60.0
"""Seconds, as in Pulsar."""

_GROWTH = 1.1
BOUNDS = tuple(5e-5 * _GROWTH**power for power in range(148))
"""The upper bounds in seconds: from 50 µs to a minute."""


class Latencies:
    """Counts latencies in seconds. Quantiles are of the present window and the one before, so of one to two minutes, and at most a
    tenth above the truth; the least and the largest are exact. Its size does not depend on the number of latencies. Not safe for several threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: seconds that pass."""
        self._now = now
        self._since = now()
        self._count, self._sum = 0, 0.0
        self._current, self._last = _Window(), _Window()

    def add(self, seconds: float) -> None:
        """Count a latency."""
        self._go_on()
        self._count += 1
        self._sum += seconds
        self._current.add(seconds)

    def _go_on(self) -> None:
        passed = self._now() - self._since
        if passed >= WINDOW:
            self._last = self._current if passed < 2 * WINDOW else _Window()
            self._current = _Window()
            self._since += passed // WINDOW * WINDOW

    def metric(self, name: str, text: str, cluster: str) -> Metric:
        """The summary in ms, as Pulsar shows it. Without latencies, its quantiles are NaN."""
        self._go_on()
        found, labels = Metric(name, text, "summary"), {"cluster": cluster}
        both = self._current.with_(self._last)
        for quantile in QUANTILES:
            found.add_sample(name, {**labels, "quantile": str(quantile)}, both.quantile(quantile) * 1000)
        found.add_sample(f"{name}_count", labels, self._count)
        found.add_sample(f"{name}_sum", labels, self._sum * 1000)
        return found


class _Window:
    """The latencies of some time."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.least, self.largest = inf, 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        if seconds < self.least:
            self.least = seconds
        if seconds > self.largest:
            self.largest = seconds

    def with_(self, other: "_Window") -> "_Window":
        both = _Window()
        both.counts = [one + another for one, another in zip(self.counts, other.counts, strict=True)]
        both.least, both.largest = min(self.least, other.least), max(self.largest, other.largest)
        return both

    def quantile(self, wanted: float) -> float:
        """In seconds; NaN: there are no latencies."""
        if not (count := sum(self.counts)):
            return nan
        if wanted == 0:
            return self.least
        place = bisect_left([*accumulate(self.counts)], max(ceil(wanted * count), 1))
        return max(self.least, min((*BOUNDS, inf)[place], self.largest)) if wanted < 1 else self.largest
