"""Metrics at the admin port of a server with the embedded engine."""

import asyncio
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from schemas.commands import Publish, to_json
from streaming.metrics.server import Gauges, ServerMetrics
from streaming.server import binary
from streaming.server.embedded import EmbeddedEngine
from streaming.server.server import Address, Page, Server, bound
from tests.metrics.test_topics import Values, scraped, values
from tests.server.test_bounds import CONNECT, Scene, producer, run, send

TOPIC = "persistent://public/default/t"


@pytest.mark.feature("I2")
def test_metrics_are_where_brokers_of_pulsar_have_them() -> None:
    async def scrape() -> None:
        engine = EmbeddedEngine()
        listener, admin_listener = (bound(Address("127.0.0.1", 0), "--listen") for _ in range(2))
        async with engine, Server(engine, listener, admin_listener=admin_listener) as server:
            for sequence_id in range(3):
                engine.post("c", TOPIC, to_json(Publish(producer="p", sequence_id=sequence_id)))
            async with httpx.AsyncClient(trust_env=False) as http:
                answer = await http.get(f"{server.admin_url}/metrics")
                stats = await http.get(f"{server.admin_url}/admin/v2/persistent/public/default/t/stats")
            found = values(answer.text)
            labels = ("standalone", "public/default", TOPIC)
            assert found["magnetar_server_connections_half_open",] == 0
            assert found["pulsar_in_messages_total", *labels] == stats.json()["msgInCounter"] == 3
            assert found["pulsar_storage_size", *labels] == stats.json()["storageSize"] > 0

    asyncio.run(scrape())


def test_a_page_that_takes_long_is_made_for_a_tenth_of_the_time() -> None:
    """Many topics, and many who ask for them: clients of the binary protocol have their turn, too."""
    made = []

    class Slow(Collector):
        def collect(self) -> Iterable[Metric]:
            made.append(time.monotonic())
            while time.monotonic() - made[-1] < 0.05:
                pass
            return []

    found = CollectorRegistry(auto_describe=False)
    found.register(Slow())
    made.clear()

    async def scrape() -> None:
        transport = httpx.ASGITransport(Page(found))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            for _ in range(100):
                assert (await http.get("/metrics")).status_code == 200

    asyncio.run(scrape())
    assert all(after - before > 0.4 for before, after in pairwise(made))


def metrics_of(scene: Scene) -> Values:
    return scraped(scene.server.binary.metrics.collect())


def test_a_server_counts_its_connections_and_times_answers() -> None:
    async def work(scene: Scene) -> None:
        active = "pulsar_active_connections", "standalone"
        half_open = await scene.peer(b"")
        peer = await scene.connected()
        peer.send(producer(), send(1))
        await peer.until("SEND_RECEIPT")
        peer.send(send(2))
        await peer.until("SEND_RECEIPT")
        found = metrics_of(scene)
        assert found[active] == 2
        assert found["magnetar_server_connections_half_open",] == 1
        assert found["magnetar_server_commands_total", "SEND"] == 2
        assert found["magnetar_server_received_bytes_total",] == len(CONNECT + producer() + send(1) + send(2))
        assert found["magnetar_server_sent_bytes_total",] > 0
        assert found["magnetar_server_answer_seconds_count",] == 2  # PRODUCER, and the second SEND
        assert found["pulsar_broker_publish_latency_count", "standalone"] == 1
        assert found["pulsar_broker_publish_latency", "standalone", "0.99"] > 0
        assert found["magnetar_server_opened",] == 1
        half_open.close()
        peer.close()
        while scene.server.binary.connections:
            await asyncio.sleep(0.001)
        found = metrics_of(scene)
        assert found[active] == 0
        assert found["pulsar_connection_closed_total_count", "standalone"] == 2
        assert found["pulsar_connection_create_success_count", "standalone"] == 1

    run(work)


def test_a_command_that_is_never_answered_is_timed_for_a_minute_at_most() -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(producer())
        await peer.until("PRODUCER_SUCCESS")
        (connection,) = scene.server.binary.connections.values()
        for sequence_id, since, answers in ((1, 0, 1), (2, 61, 2)):
            connection._timed = binary._Timed(99, time.monotonic() - since)
            peer.send(send(sequence_id))
            await peer.until("SEND_RECEIPT")
            assert metrics_of(scene)["magnetar_server_answer_seconds_count",] == answers

    run(work)


@pytest.mark.parametrize("fsync", [False, True])
def test_writes_of_the_log_are_timed(tmp_path: Path, fsync: bool) -> None:
    async def written() -> float:
        async with EmbeddedEngine(tmp_path, fsync=fsync) as engine:
            await engine.submit(TOPIC, Publish(producer="p", sequence_id=1))
            assert engine.written is not None
            return scraped([engine.written.metric("x", "")])["x_count",]

    assert asyncio.run(written()) >= 2


def test_a_server_before_a_query_says_how_long_that_has_not_answered() -> None:
    gauges = Gauges(0, 0, 0, 0, 0, 0, 0, -0.5, 1.5)
    found = scraped(ServerMetrics(lambda: gauges).collect())
    assert found["magnetar_server_unanswered_seconds",] == 1.5
    assert found["magnetar_server_clock_ahead_seconds",] == -0.5
    assert "magnetar_log_write_seconds_count" not in {name for name, *_ in found}
