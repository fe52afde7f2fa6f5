"""Metrics at the admin port of a server with the embedded engine."""

import asyncio

import httpx
import pytest

from schemas.commands import Publish, to_json
from streaming.server.embedded import EmbeddedEngine
from streaming.server.server import Address, Server, bound
from tests.metrics.test_topics import values

TOPIC = "persistent://public/default/t"


@pytest.mark.feature("I2")
def test_metrics_are_where_brokers_of_pulsar_have_them() -> None:
    async def scrape() -> None:
        engine = EmbeddedEngine()
        listener, admin_listener = (bound(Address("127.0.0.1", 0), "--listen") for _ in range(2))
        async with engine, Server(engine, listener, admin_listener=admin_listener) as server:
            for sequence_id in range(3):
                engine.post(TOPIC, to_json(Publish(producer="p", sequence_id=sequence_id)))
            async with httpx.AsyncClient(trust_env=False) as http:
                answer = await http.get(f"{server.admin_url}/metrics")
                stats = await http.get(f"{server.admin_url}/admin/v2/persistent/public/default/t/stats")
            found = values(answer.text)
            labels = ("standalone", "public/default", TOPIC)
            assert found["pulsar_in_messages_total", *labels] == stats.json()["msgInCounter"] == 3
            assert found["pulsar_storage_size", *labels] == stats.json()["storageSize"] > 0

    asyncio.run(scrape())
