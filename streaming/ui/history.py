"""What the figures of a running query were in the last hour, in a bounded number of rings."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from math import nan
from threading import Lock
from typing import Any, NamedTuple

from schemas.metrics import SubscriptionMetrics, TopicMetrics
from streaming.metrics.topics import MetricsSnapshot
from streaming.ui.figures import AllTopics

EVERY_MS, POINTS = 10_000, 360
"""The least time between two samples, and how many are kept: an hour."""

SERIES = 200
"""The most topics and subscriptions of which samples are kept: those that store most, and of each the largest backlogs. So all
samples take at most SERIES × POINTS × 2 measures × 8 bytes: 1.2 MB."""

SUBSCRIPTIONS = 5
"""The most subscriptions of a topic."""

TOTALS = ("storage", "backlog", "rateIn", "rateOut")
_MEASURES = ("storage", "backlog")

Series = tuple[str, str | None]
"""A topic, and a subscription of it or None."""


class _Values(NamedTuple):
    """A ring for each measure."""

    rings: tuple[array[float], ...]

    @classmethod
    def empty(cls, measures: int) -> _Values:
        return cls(tuple(array("d", [nan]) * POINTS for _ in range(measures)))


class SampleHistory:
    """Samples of all topics together, and of the largest. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._times = array("q", [0]) * POINTS
        self._samples = 0
        self._totals = _Values.empty(len(TOTALS))
        self._series: dict[Series, _Values] = {}
        self._last: dict[Series, int] = {}

    def __len__(self) -> int:
        return len(self._series)

    def is_due(self, now: int) -> bool:
        """Whether it is time (ms) for a sample."""
        return not self._samples or now - self._times[(self._samples - 1) % POINTS] >= EVERY_MS

    def add(self, now: int, figures: MetricsSnapshot, totals: AllTopics) -> None:
        """Take a sample at `now` (ms)."""
        chosen = dict(_largest(figures))
        with self._lock:
            slot = self._samples % POINTS
            self._times[slot] = now
            for ring, name in zip(self._totals.rings, TOTALS, strict=True):
                ring[slot] = getattr(totals, name)
            for values in self._series.values():
                for ring in values.rings:
                    ring[slot] = nan
            for key in [key for key, last in self._last.items() if self._samples - last >= POINTS]:
                del self._series[key], self._last[key]
            for key, found in chosen.items():
                if key not in self._series:
                    self._make_room(chosen)
                    self._series[key] = _Values.empty(len(_MEASURES))
                self._last[key] = self._samples
                for ring, value in zip(self._series[key].rings, found, strict=True):
                    ring[slot] = value
            self._samples += 1

    def _make_room(self, chosen: dict[Series, tuple[float, ...]]) -> None:
        """Forget the one that is not among the largest for the longest time, if there are too many."""
        if len(self._series) >= SERIES:
            oldest = min((key for key in self._series if key not in chosen), key=lambda key: self._last[key])
            del self._series[oldest], self._last[oldest]

    def totals(self) -> dict[str, Any]:
        """``times`` (ms) and, for each of `TOTALS`, the values; None: there is no sample."""
        with self._lock:
            return self._listed(self._totals, TOTALS)

    def topic(self, name: str) -> dict[str, Any] | None:
        """The same of a topic, for ``storage`` (bytes), ``backlog`` (entries, the sum over all subscriptions) and the backlogs
        of its ``subscriptions``; None: no sample of it is kept."""
        with self._lock:
            found = self._series.get((name, None))
            if found is None:
                return None
            subscriptions = {
                key[1]: self._listed(values, _MEASURES)["backlog"]
                for key, values in self._series.items()
                if key[0] == name and key[1] is not None
            }
            return {**self._listed(found, _MEASURES), "subscriptions": subscriptions}

    def _listed(self, values: _Values, names: tuple[str, ...]) -> dict[str, Any]:
        slots = [each % POINTS for each in range(max(0, self._samples - POINTS), self._samples)]
        found: dict[str, Any] = {"times": [self._times[slot] for slot in slots]}
        for name, ring in zip(names, values.rings, strict=True):
            found[name] = [None if ring[slot] != ring[slot] else ring[slot] for slot in slots]
        return found


def _largest(figures: MetricsSnapshot) -> Iterator[tuple[Series, tuple[float, ...]]]:
    """The topics and subscriptions of which a sample is kept, with their values by `_MEASURES`."""
    left = SERIES
    for each in heapq.nlargest(SERIES, figures.topics, key=lambda known: _size(known.topic)):
        topic = each.topic
        backlogs = heapq.nlargest(SUBSCRIPTIONS, topic.subscriptions, key=_backlog)
        if left <= len(backlogs):
            return
        left -= 1 + len(backlogs)
        yield (topic.name, None), (topic.storage_size, sum(map(_backlog, topic.subscriptions)))
        for subscription in backlogs:
            yield (topic.name, subscription.name), (nan, subscription.backlog)


def _size(topic: TopicMetrics) -> tuple[int, int]:
    return topic.storage_size, topic.backlog_size


def _backlog(subscription: SubscriptionMetrics) -> int:
    return subscription.backlog
