"""What the stats of a topic show of its clients, which is no state of the broker."""

from typing import Any

import httpx
import pytest

from tests.server.conftest import Running, running

pytestmark = pytest.mark.feature("I7")

TOPIC = "persistent://public/default/t"


def _stats(broker: Running, query: str = "") -> dict[str, Any]:
    url = f"{broker.server.admin_url}/admin/v2/persistent/public/default/t/stats{query}"
    found: dict[str, Any] = httpx.get(url).json()
    return found


def test_stats_describe_connected_clients() -> None:
    with running() as broker, broker.client() as client:
        producer = client.create_producer(TOPIC, properties={"a": "b"})
        consumer = client.subscribe(TOPIC, "s", properties={"c": "d"})
        stats = _stats(broker)
        (publisher,), (shown,) = stats["publishers"], stats["subscriptions"]["s"]["consumers"]
        assert publisher["metadata"] == {"a": "b"}
        assert shown["metadata"] == {"c": "d"}
        for each in (publisher, shown):
            assert each["address"].startswith("/127.0.0.1:")
            assert each["clientVersion"].startswith("Pulsar-CPP")
            assert each["connectedSince"].endswith("Z")
        assert isinstance(publisher["producerId"], int)
        assert shown["lastConsumedFlowTimestamp"] > 0
        less = _stats(broker, "?excludePublishers=true&excludeConsumers=true")
        assert (less["publishers"], less["subscriptions"]["s"]["consumers"]) == ([], [])
        producer.close()
        consumer.close()
        assert _stats(broker)["publishers"] == []


def test_a_lost_connection_leaves_nothing() -> None:
    with running() as broker:
        with broker.client() as client:
            client.create_producer(TOPIC)
        assert _stats(broker)["publishers"] == []
        assert len(broker.server.binary.clients) == 0
