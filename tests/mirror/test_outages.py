"""`magnetar mirror` of a cluster whose brokers come and go."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming.mirror import mirror as mirroring
from streaming.record import unreachable
from streaming.record.rest import Rest
from tests.broker.kit import QUIET
from tests.mirror.cluster import Cluster, Part, cluster
from tests.mirror.kit import Twin, differences, mirror, positions
from tests.server.conftest import running

pytestmark = pytest.mark.feature("K4")

EVERY = 20.0
AWAY, BACK, ROUNDS = 3 * EVERY, 33 * EVERY, 60
"""A broker is away for ten minutes."""


class Rounds(threading.Event):
    """Stops a mirror after so many rounds, which take no time: its clock moves on when it waits. `before` is called with the time before each but the
    first, in seconds since the beginning."""

    def __init__(self, rounds: int, before: Callable[[float], Any], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._left, self._before, self._now = rounds, before, 0.0
        for module in (mirroring, unreachable):
            monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(mirroring, "SLOWEST", 1)  # each topic is looked at in each round

    def monotonic(self) -> float:
        return self._now

    def wait(self, timeout: float | None = None) -> bool:
        self._now += timeout or 0.0
        self._left -= 1
        if self._left <= 0:
            self.set()
        else:
            self._before(self._now)
        return self.is_set()


def publish(part: Part, topic: str, count: int) -> None:
    with part.broker.client() as client:
        producer = client.create_producer(topic)
        for number in range(count):
            producer.send(b"%d" % number)


def is_twin(rest: Rest, folder: Path, *topics: str) -> None:
    twin = Twin(folder)
    assert twin.refused == []
    for topic in topics:
        assert differences(rest, topic, twin.broker) == {}
        assert len(set(positions(folder, topic))) == len(positions(folder, topic))


@pytest.fixture(scope="module", params=[False, True], ids=["named", "redirects"])
def brokers(request: Any) -> Iterator[Cluster]:
    with cluster(3, redirects=request.param) as found:
        yield found


@pytest.fixture
def topics(request: Any, brokers: Cluster) -> list[str]:
    """Two on each broker, in a namespace of their own."""
    namespace = f"public/of-{abs(hash(request.node.name)) % 10_000}"
    for part in brokers.parts:
        assert part.rest.call("PUT", f"/namespaces/{namespace}").status == 204
    return [f"persistent://{namespace}/{name}{number}" for number in range(3) for name in "ab"]


def test_topics_of_several_brokers(brokers: Cluster, topics: list[str], tmp_path: Path) -> None:
    """Lookups and calls go on to the broker that serves a topic."""

    def more() -> None:
        for topic in topics:
            publish(brokers.parts[int(topic[-1])], topic, 2)

    more()
    namespace = topics[0].split("//")[1].rpartition("/")[0]
    done, said = mirror(brokers.service_url, brokers.rest, [namespace], tmp_path / "log", 3, more)
    assert said == []
    assert done.topics == 6
    mirror(brokers.service_url, brokers.rest, [namespace], tmp_path / "log")
    is_twin(brokers.rest, tmp_path / "log", *topics)


def test_one_of_several_brokers_is_away(
    brokers: Cluster, topics: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topics wait, and others go on. When it is back, its topics go on, too, with all that has come meanwhile."""
    folder, away = tmp_path / "log", brokers.parts[1]
    seen = dict[str, int]()

    def before(now: float) -> None:
        if now == AWAY:
            away.cut()
        if now == BACK:
            seen.update({topic: len(positions(folder, topic)) for topic in topics})
            away.mend()
        if now < BACK and now % (10 * EVERY) == 0:
            for topic in topics:
                publish(brokers.parts[int(topic[-1])], topic, 1)

    for topic in topics:
        publish(brokers.parts[int(topic[-1])], topic, 2)
    namespace = topics[0].split("//")[1].rpartition("/")[0]
    rounds = Rounds(ROUNDS, before, monkeypatch)
    _, said = mirror(brokers.service_url, brokers.rest, [namespace], folder, rounds, every=EVERY)
    assert seen == {topic: 2 if topic.endswith("1") else 5 for topic in topics}
    begins = [each for each in said if each.startswith(f"broker {away.admin_url}: 2 topics wait, such as ")]
    ends = [f"broker {away.admin_url}: all go on"]
    assert [each for each in said if "policies" not in each] == begins + ends
    assert len(begins) == 1
    is_twin(brokers.rest, folder, *topics)
    assert {len(positions(folder, topic)) for topic in topics} == {5}


@pytest.mark.parametrize("away", ["all", "admin", "service"])
def test_ten_minutes_without_a_broker(away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line when it begins and a line when it is over. Nothing of what came meanwhile is missing, and nothing is there twice."""
    topic, folder = "persistent://public/default/t", tmp_path / "log"
    with running(**QUIET, managedLedgerMaxEntriesPerLedger=4) as broker:
        part = Part(broker)
        service, admin = part.gates
        gates = {"all": [service, admin], "admin": [admin], "service": [service]}[away]
        back = list[int]()

        def before(now: float) -> None:
            if now == AWAY:
                for gate in gates:
                    gate.close()
            if now == BACK:
                for gate in gates:
                    gate.open()
            if now % (10 * EVERY) == 0:
                publish(part, topic, 3)
            if now >= BACK:
                back.append(len(positions(folder, topic)))

        with broker.client() as client:
            client.subscribe(topic, "s")  # else entries are gone before they are read
        publish(part, topic, 3)
        rounds = Rounds(ROUNDS, before, monkeypatch)
        _, said = mirror(part.service_url, Rest(part.admin_url), [topic], folder, rounds, every=EVERY)
        begin, end = said
        if away == "service":
            assert begin.startswith(f"{topic}: waits: 127.0.0.1:")
            assert end == f"{topic}: goes on"
        else:
            assert begin.startswith(f"the cluster: {part.admin_url} can't be reached: ")
            assert begin.endswith(": trying again every 20 s")
            assert end == "the cluster: goes on"
            assert back[1] == 12  # at the next interval
        is_twin(part.rest, folder, topic)
        assert len(positions(folder, topic)) == 3 * 6
        part.cut()
