"""A histogram of durations."""

from bisect import bisect_left
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily


class Durations:
    """Counts durations in seconds by `bounds`. Not safe for several threads."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def metric(self, name: str, text: str) -> HistogramMetricFamily:
        """The histogram as a metric."""
        buckets = zip((*map(str, self._bounds), "+Inf"), accumulate(self._counts), strict=True)
        return HistogramMetricFamily(name, text, buckets=list(buckets), sum_value=self._sum)
