"""The summary of publish latencies."""

from math import isnan
from random import Random

import pytest

from streaming.metrics.latencies import BOUNDS, QUANTILES, WINDOW, Latencies
from tests.metrics.test_topics import Values, scraped


class Timed:
    """Latencies, and the time that passes, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.latencies = Latencies(lambda: self.now)

    def shown(self) -> Values:
        return scraped([self.latencies.metric("x", "", "c")])


def test_quantiles_are_at_most_a_tenth_above_the_truth() -> None:
    random, timed = Random(1), Timed()
    known = sorted(random.lognormvariate(-6, 2) for _ in range(5000))
    for each in known:
        timed.latencies.add(each)
    found = timed.shown()
    for quantile in QUANTILES:
        exact = known[max(0, -(-int(quantile * 10**4) * len(known) // 10**4) - 1)] * 1000
        shown = found["x", "c", str(quantile)]
        assert exact <= shown * 1.000001
        assert shown <= max(exact * 1.1, BOUNDS[0] * 1000) + 1e-9
    assert found["x", "c", "0.0"] == pytest.approx(known[0] * 1000)
    assert found["x", "c", "1.0"] == pytest.approx(known[-1] * 1000)
    assert found["x_count", "c"] == 5000
    assert found["x_sum", "c"] == pytest.approx(sum(known) * 1000)


def test_a_latency_beyond_all_bounds() -> None:
    timed = Timed()
    timed.latencies.add(1000.0)
    assert {timed.shown()["x", "c", str(each)] for each in QUANTILES} == {1e6}


@pytest.mark.parametrize(
    ("passed", "is_there"),
    [(0, True), (WINDOW, True), (2 * WINDOW - 1, True), (2 * WINDOW, False), (1e6, False)],
)
def test_quantiles_forget_and_counts_do_not(passed: float, is_there: bool) -> None:
    timed = Timed()
    timed.latencies.add(0.02)
    timed.now += passed
    found = timed.shown()
    assert isnan(found["x", "c", "0.5"]) is not is_there
    assert found["x_count", "c"] == 1
    assert found["x_sum", "c"] == 20


def test_a_server_that_has_taken_nothing_has_no_quantiles() -> None:
    assert all(isnan(Timed().shown()["x", "c", str(each)]) for each in QUANTILES)
