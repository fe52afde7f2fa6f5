"""kill -9 of servers and of the query in mid traffic of the Python and the Java client: what was acknowledged is there, once."""

import http.client
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from streaming.kafka.local import LocalKafka
from tests.e2e.live import MAGNETAR, LiveQuery
from tests.server import kills
from tests.server.conftest import Query, java

pytestmark = [pytest.mark.feature("A1", "K1", "K2", "J2")]

WAIT = 120.0


class ServerProcess:
    """`magnetar serve`, as a process that can be killed."""

    def __init__(self, said: Path, *arguments: str) -> None:
        self.folder, self._said, self._arguments = said.parent, said, arguments
        self._ports = "0", "0"
        self.start("--set", "brokerDeduplicationEnabled=true")

    def start(self, *options: str) -> None:
        """On the same ports as before."""
        listen, admin = (f"127.0.0.1:{port}" for port in self._ports)
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [MAGNETAR, "serve", "--listen", listen, "--admin-listen", admin, *self._arguments, *options],
                stderr=said,
            )
        until(lambda: b"serving" in self._said.read_bytes() or self._process.poll() is not None)
        line = self._said.read_text()
        assert "serving" in line, line
        words = line.split()
        self.service_url = words[words.index("serving") + 1]
        self._ports = (
            self.service_url.rpartition(":")[2],
            words[words.index("and") + 1].rpartition(":")[2].rstrip(";"),
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def get(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", int(self._ports[1]), timeout=WAIT)
        connection.request("GET", f"/admin/v2{path}")
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        assert answer.status == 200, found
        return found


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def client(server: ServerProcess) -> Any:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(server.service_url, operation_timeout_seconds=int(WAIT), logger=logger)


class PythonTraffic:
    """A producer that sends numbers through one server, and a consumer that acknowledges them through another."""

    def __init__(self, sender: ServerProcess, receiver: ServerProcess, topic: str) -> None:
        self._topic = topic
        self._clients = [client(sender), client(receiver)]
        self._producer = self._clients[0].create_producer(
            topic, producer_name="p", batching_enabled=False, send_timeout_millis=0, block_if_queue_full=True
        )
        self._consumer = self._clients[1].subscribe(topic, "s", negative_ack_redelivery_delay_ms=100)
        self.stored: list[int] = []
        self.received: list[int] = []
        self._end = False
        self._sent = 0
        self._threads = [threading.Thread(target=each) for each in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._end:
            number = self._sent

            def stored(result: Any, _: Any, number: int = number) -> None:
                if result == pulsar.Result.Ok:
                    self.stored.append(number)

            self._producer.send_async(b"%d" % number, stored)
            self._sent += 1
            time.sleep(0.05)

    def _receive(self) -> None:
        while self._threads[0].is_alive() or len(set(self.received)) < self._sent:
            try:
                message = self._consumer.receive(1000)
            except pulsar.Timeout:
                continue
            self.received.append(int(message.data()))
            self._consumer.acknowledge(message)

    def goes_on(self) -> None:
        """Wait until ten more numbers are stored and received."""
        stored, received = len(self.stored) + 10, len(set(self.received)) + 10
        until(lambda: len(self.stored) >= stored and len(set(self.received)) >= received)

    def end(self) -> None:
        """All that was sent was stored and received, and is in the topic once and in order."""
        self._end = True
        for thread in self._threads:
            thread.join(2 * WAIT)
        until(lambda: len(self.stored) == self._sent)
        assert self.stored == [*range(self._sent)]
        assert sorted(set(self.received)) == self.stored
        reader = self._clients[1].create_reader(self._topic, pulsar.MessageId.earliest)
        found = [int(reader.read_next(60_000).data()) for _ in self.stored]
        assert found == self.stored
        assert not reader.has_message_available()
        for each in self._clients:
            each.close()


class JavaTraffic:
    """The same in Java."""

    _PROGRAM = Path(__file__).with_name("JavaTraffic.java")

    def __init__(self, sender: ServerProcess, receiver: ServerProcess, topic: str) -> None:
        command = java(self._PROGRAM, sender.service_url, receiver.service_url, topic)
        self._said = sender.folder / "traffic.log"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)
        until(lambda: self._counts() != (0, 0))

    def _counts(self) -> tuple[int, int]:
        """Numbers stored and received."""
        assert self._process.poll() is None, self._said.read_text()[-3000:]
        found = re.findall(r"^counts (\d+) (\d+)$", self._said.read_text(), re.M)
        return (int(found[-1][0]), int(found[-1][1])) if found else (0, 0)

    def goes_on(self) -> None:
        """Wait until ten more numbers are stored and received."""
        stored, received = self._counts()
        until(
            lambda: all(
                now >= each + 10 for now, each in zip(self._counts(), (stored, received), strict=True)
            )
        )

    def end(self) -> None:
        """All that was sent was stored and received, and is in the topic once and in order."""
        self._process.communicate(b"\n", timeout=2 * WAIT)
        assert re.search("^ok$", self._said.read_text(), re.M), self._said.read_text()[-3000:]


Traffic = type[PythonTraffic] | type[JavaTraffic]
BOTH = [PythonTraffic, pytest.param(JavaTraffic, marks=pytest.mark.slow)]
Start = Callable[..., ServerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server with a name and arguments."""
    servers: list[ServerProcess] = []

    def started(name: str, *arguments: str) -> ServerProcess:
        servers.append(ServerProcess(tmp_path / f"{name}.log", *arguments))
        return servers[-1]

    yield started
    for server in servers:
        server.kill()


def before(ingress: str, responses: str, name: str) -> tuple[str, ...]:
    """The arguments of a server before a query."""
    return name, "--ingress", ingress, "--responses", responses, "--name", name


@pytest.mark.parametrize("traffic_of", [PythonTraffic, JavaTraffic])
def test_an_embedded_server_is_killed(start: Start, tmp_path: Path, traffic_of: Traffic) -> None:
    server = start("a", "--data", str(tmp_path / "data"))
    traffic = traffic_of(server, server, "kills")
    traffic.goes_on()
    server.kill()
    server.start("--set", "brokerDeduplicationEnabled=true")
    traffic.goes_on()
    traffic.end()
    assert server.stop() == 0


@pytest.mark.slow
def test_a_server_is_killed_again_and_again_under_load(tmp_path: Path) -> None:
    """As `make kills` does it."""
    assert kills.run(6, 1, tmp_path) == []


@pytest.mark.parametrize("traffic_of", BOTH)
@pytest.mark.spark
@pytest.mark.kafka
def test_a_server_is_killed(query: Query, start: Start, traffic_of: Traffic) -> None:
    urls = [f"kafka://{url.bootstrap}/{url.topic}" for url in (query.ingress, query.responses)]
    name = uuid4().hex
    servers = [start(*before(urls[0], urls[1], f"{place}-{name}")) for place in ("east", "west")]
    traffic = traffic_of(servers[0], servers[1], f"kills-{name}")
    traffic.goes_on()
    for server in servers:
        server.kill()
        server.start()
        traffic.goes_on()
    (subscription,) = (
        servers[0].get(f"/persistent/public/default/kills-{name}/stats")["subscriptions"].values()
    )
    assert len(subscription["consumers"]) == 1
    traffic.end()
    for server in servers:
        assert server.stop() == 0


@pytest.mark.parametrize("traffic_of", [PythonTraffic, JavaTraffic])
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.slow
def test_the_query_is_killed(kafka: LocalKafka, tmp_path: Path, start: Start, traffic_of: Traffic) -> None:
    name = uuid4().hex
    urls = [f"kafka://{kafka.bootstrap}/{topic}-{name}" for topic in ("commands", "responses")]
    live = LiveQuery(tmp_path, urls[0], urls[1], "--trigger", "0s", "--no-tables", "--no-quality")
    try:
        live.start()
        live.wait(lambda: "running" in live.said(), "the query runs")
        server = start(*before(urls[0], urls[1], "a"))
        traffic = traffic_of(server, server, f"kills-{name}")
        traffic.goes_on()
        for kill in (live.kill, live.kill_driver):
            kill()
            time.sleep(1)
            live.start()
            traffic.goes_on()
        live.kill()
        server.kill()
        server.start()
        live.start()
        traffic.goes_on()
        traffic.end()
    finally:
        live.close()
