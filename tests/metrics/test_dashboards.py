"""Public Grafana dashboards for Pulsar find what they ask for: panel by panel, with names and labels."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from streaming.metrics.endpoint import registry
from streaming.metrics.query import QueryMetrics
from streaming.metrics.server import Gauges, ServerMetrics
from streaming.server.embedded import EmbeddedEngine
from streaming.server.server import Address, Server, bound
from tests.broker.kit import Run
from tests.server.test_bounds import CONNECT, Peer, producer, send, subscribe

LISTED: dict[str, Any] = YAML(typ="safe").load(Path(__file__).parent / "dashboards.yaml")
DASHBOARDS = [(whose, name) for whose, found in LISTED["dashboards"].items() for name in found]
ROOT = Path(__file__).parents[2]


class Sample(NamedTuple):
    """A name with a quantile if it has one, as dashboards.yaml writes it, and its labels."""

    name: str
    labels: Mapping[str, str]


def samples(text: str) -> list[Sample]:
    """What a scrape shows."""
    return [
        Sample(
            each.name + (f" quantile={each.labels['quantile']}" if "quantile" in each.labels else ""),
            each.labels,
        )
        for family in text_string_to_metric_families(text)
        for each in family.samples
    ]


@cache
def of_server() -> list[Sample]:
    """What a server with a data folder and some traffic shows."""

    async def asked(data: Path) -> str:
        engine = EmbeddedEngine(data, settings={"exposeConsumerLevelMetricsInPrometheus": True})
        listener, admin_listener = (bound(Address("127.0.0.1", 0), "--listen") for _ in range(2))
        async with engine, Server(engine, listener, admin_listener=admin_listener) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            peer = Peer(reader, writer)
            peer.send(CONNECT, producer(), subscribe("s", 10))
            await peer.until("PRODUCER_SUCCESS")
            for number in range(3):
                peer.send(send(number))
                await peer.until("SEND_RECEIPT")
            async with httpx.AsyncClient(trust_env=False) as http:
                shown = (await http.get(f"{server.admin_url}/metrics")).text
            writer.transport.abort()
            return shown

    with TemporaryDirectory() as folder:
        return samples(asyncio.run(asked(Path(folder))))


@cache
def of_query() -> list[Sample]:
    """What a query with some traffic shows, and the server before it, which Prometheus asks, too."""
    run = Run(exposeConsumerLevelMetricsInPrometheus=True)
    run.subscribe("s", permits=10)
    run.publish(0)
    measured = run.broker.metrics(everything=True)
    measured.write_seconds = 0.004
    query = QueryMetrics()
    query.batch({(0, "SEND_RECEIPT"): 1}, [measured])
    server = ServerMetrics(lambda: Gauges(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0))
    return samples("".join(generate_latest(registry(each)).decode() for each in (query, server)))


def names(shown: list[Sample], labels: Collection[str]) -> set[str]:
    """The names of those that have labels."""
    return {each.name for each in shown if each.labels.keys() >= {*labels}}


def filled(whose: str, dashboard: str, shown: list[Sample]) -> dict[str, str]:
    """Of each panel of a dashboard: whether all, some or none of its series are there."""
    listed = LISTED["dashboards"][whose][dashboard]
    there = names(shown, listed["labels"])
    found = {title: {*wanted} & there == {*wanted} for title, wanted in listed["panels"].items()}
    return {
        title: "all" if found[title] else "some" if {*wanted} & there else "none"
        for title, wanted in listed["panels"].items()
    }


def count(of: list[tuple[str, str]]) -> dict[str, int]:
    counted = Counter(value for each in of for value in filled(*each, of_server()).values())
    return {each: counted[each] for each in ("all", "some", "none")}


@pytest.mark.feature("I2")
@pytest.mark.parametrize("shown", [of_server, of_query])
@pytest.mark.parametrize(("whose", "dashboard"), DASHBOARDS)
def test_a_panel_finds_its_series_unless_they_are_listed_as_missing(
    whose: str, dashboard: str, shown: Callable[[], list[Sample]]
) -> None:
    """If this fails because one has come, take it out of `missing` in dashboards.yaml, and out of the docs."""
    listed = LISTED["dashboards"][whose][dashboard]
    wanted = {name for panel in listed["panels"].values() for name in panel}
    there = names(shown(), listed["labels"])
    assert sorted(wanted - there) == sorted(wanted & LISTED["missing"].keys())
    assert {*LISTED["variables"][whose]} <= names(shown(), ["cluster"])


def test_the_panels_are_counted() -> None:
    """The numbers that the documents state."""
    found = {f"{whose}/{name}": count([(whose, name)]) for whose, name in DASHBOARDS}
    assert found == LISTED["filled"]
    total = count(DASHBOARDS)
    text = " ".join((ROOT / "docs/operate/metrics.md").read_text().split())
    assert f"Of the {sum(total.values())} panels, {total['all']} find all that they ask for" in text
    assert f"The other {total['some'] + total['none']} are:" in text
    assert f"the {total['some']} of the size of entries" in text
    assert f"{total['none'] - 1} of replication find nothing" in text


def test_nothing_is_listed_as_missing_that_nobody_asks_for() -> None:
    panels = [LISTED["dashboards"][whose][name]["panels"] for whose, name in DASHBOARDS]
    asked = {name for each in panels for wanted in each.values() for name in wanted}
    assert LISTED["missing"].keys() <= asked


def test_the_documents_say_why_something_is_missing() -> None:
    text = (ROOT / "docs/operate/metrics.md").read_text()
    for name in LISTED["missing"]:
        prefix = "pulsar_replication_"
        assert f"`{prefix}*`" in text if name.startswith(prefix) else f"`{name}`" in text, name
