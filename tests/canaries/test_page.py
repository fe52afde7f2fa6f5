"""The report of canaries on the page."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from streaming.metrics.endpoint import Endpoint
from streaming.metrics.query import CanaryFigures, QueryMetrics
from streaming.ui.application import application
from streaming.ui.view import RunView
from tests.canaries.test_beside import Beside

pytestmark = pytest.mark.feature("J7")


def test_the_report(folder: Path) -> None:
    own = Beside(folder, "ttl")
    endpoint = Endpoint("0")
    endpoint.start(application(RunView("kafka://h:1/t", QueryMetrics(), own.query.store.url, lambda _: [])))
    try:
        with pytest.raises(HTTPError) as none:
            urlopen(f"{endpoint.url}/canaries")
        assert "start the query with --canary" in none.value.read().decode()
        own.begin()
        own.fold(60)
        own.look()
        with urlopen(f"{endpoint.url}/canaries") as answer:
            text = answer.read().decode()
            assert "script" not in answer.headers["Content-Security-Policy"]
        assert "ttl since the first record" in text
        own.names = ("ttl", "keep")
        own.begin()
        with urlopen(f"{endpoint.url}/canaries") as answer:
            assert re.search(r"keep since 2026-\d\d-\d\d", answer.read().decode())
        assert "Messages that differ" in text
        with urlopen(endpoint.url) as answer:
            assert 'href="canaries"' in answer.read().decode()
    finally:
        endpoint.close()


def test_metrics() -> None:
    """Of subscriptions, those with most messages that differ; of all, the sums."""
    metrics = QueryMetrics(label_sets=1)
    assert not [each for each in metrics.collect() if "canary" in each.name]
    rows = [
        CanaryFigures("baseline", "t", None, 3, 100, {}),
        CanaryFigures("ttl", "t", None, 3, 70, {}),
        CanaryFigures("ttl", "t", "few", 1, None, {"lost newly": 1}),
        CanaryFigures("ttl", "t", "many", 2, None, {"lost newly": 4, "saved": 2}),
    ]
    metrics.canaries(rows, {"ttl": 5000})
    samples = {
        (each.name, *each.labels.values()): each.value
        for family in metrics.collect()
        for each in family.samples
        if "canary" in each.name
    }
    assert samples.pop(("magnetar_canary_looked_timestamp_seconds",)) > 5000
    assert samples == {
        ("magnetar_canary_since_timestamp_seconds", "ttl"): 5,
        ("magnetar_canary_messages", "ttl", "lost newly"): 5,
        ("magnetar_canary_messages", "ttl", "saved"): 2,
        ("magnetar_canary_storage_bytes", "baseline"): 100,
        ("magnetar_canary_storage_bytes", "ttl"): 70,
        ("magnetar_canary_subscription_messages", "ttl", "t", "many", "lost newly"): 4,
        ("magnetar_canary_subscription_messages", "ttl", "t", "many", "saved"): 2,
    }
