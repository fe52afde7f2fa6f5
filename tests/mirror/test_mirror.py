"""`magnetar mirror`: a log that follows a broker, whose replay is the broker's twin."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from streaming.record.rest import Rest
from tests.mirror.kit import Twin, differences, mirror, positions
from tests.record.test_capture import fill
from tests.server.conftest import Running, running

pytestmark = pytest.mark.feature("K3")

WAIT = 10_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running(managedLedgerMaxEntriesPerLedger=7, managedLedgerMinLedgerRolloverTimeMinutes=0) as found:
        yield found


@pytest.fixture
def rest(broker: Running) -> Rest:
    return Rest(str(broker.server.admin_url))


@pytest.fixture
def client(broker: Running) -> Iterator[Any]:
    with broker.client() as client:
        yield client


def test_a_twin_follows_its_broker(client: Any, rest: Rest, broker: Running, tmp_path: Path) -> None:
    topic = "persistent://public/default/followed"
    fill(client, topic)
    kept: list[Any] = []

    def more() -> None:
        kept.append(client.subscribe(topic, "late", pulsar.ConsumerType.Shared))
        producer = client.create_producer(topic, producer_name="q")
        for number in range(10):
            producer.send(b"%d" % number)
        consumer = client.subscribe(topic, "idle")
        for _ in range(5):
            consumer.acknowledge(consumer.receive(WAIT))
        consumer.close()

    done, said = mirror(broker.service_url, rest, [topic], tmp_path / "log", 2, more)
    assert said == []
    twin = Twin(tmp_path / "log")
    assert twin.refused == []
    assert differences(rest, topic, twin) == {}
    assert done.entries == 31
    assert len(set(positions(tmp_path / "log", topic))) == 31
