"""A server in a thread of its own, for clients that block, on either engine."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from schemas.commands import BrokerConfig
from streaming.kafka.url import KafkaUrl
from streaming.runtime.jars import JarsUnavailableError
from streaming.runtime.java import java_binary
from streaming.server.binary import Limits
from streaming.server.clock import Clock, HeldClock
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.engine import Engine
from streaming.server.query_engine import QueryEngine
from streaming.server.server import OPEN, Address, Security, Server, bound
from tests.parity.pulsar import jars_of

PROFILE: Any = os.environ.get("MAGNETAR_PROFILE", "4.x")
"""The profile of the servers that clients talk to: `make clients` tries each."""

ON_SPARK = {
    "test_batches_and_compression[spark-CompressionType.ZSTD]",
    "test_deduplication[spark]",
    "test_what_applications_use_most[spark]",
}
"""Tests that run on the Spark query by default, too. The others are slow there."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Most tests on the Spark query are slow."""
    for item in items:
        if item.get_closest_marker("spark") and "[spark" in item.name and item.name not in ON_SPARK:
            item.add_marker(pytest.mark.slow)


class Running:
    """A server that runs, and the loop on which it does."""

    def __init__(self, server: Server, engine: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.engine, self._loop = server, engine, loop
        self.service_url = server.service_url.replace("localhost", "127.0.0.1")

    def call(self, function: Callable[[], Any]) -> Any:
        """Call `function` on the server's loop, and wait for its result."""

        async def result() -> Any:
            found = function()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(result(), self._loop).result(120)

    @contextmanager
    def client(self, **settings: Any) -> Iterator[Any]:
        """An official client, closed at the end."""
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        settings = {"operation_timeout_seconds": 120, **settings}
        client = pulsar.Client(self.service_url, logger=logger, **settings)
        try:
            yield client
        finally:
            client.close()


@contextmanager
def running(
    data: Path | None = None,
    *,
    clock: Clock | None = None,
    security: Security = OPEN,
    **settings: Any,
) -> Iterator[Running]:
    """Run a server on an embedded engine with the broker settings `settings`."""
    with running_on(
        lambda: EmbeddedEngine(data, clock=clock, profile=PROFILE, settings=settings), security
    ) as found:
        yield found


@contextmanager
def running_on(
    new_engine: Callable[[], Engine],
    security: Security = OPEN,
    limits: Limits | None = None,
    held: HeldClock | None = None,
) -> Iterator[Running]:
    """Run a server on an engine. `held`: the clock of the engine, if the server is a test double."""
    started: Any = threading.Event()
    found: list[Running] = []
    ends: list[asyncio.Event] = []

    async def serve() -> None:
        engine = new_engine()
        sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
        async with (
            engine,
            Server(engine, sockets[0], limits, sockets[1], held, security) as server,
        ):
            ends.append(asyncio.Event())
            found.append(Running(server, engine, asyncio.get_running_loop()))
            started.set()
            await ends[0].wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        yield found[0]
    finally:
        found[0].call(ends[0].set)
        thread.join()


STANDALONE_SETTINGS: dict[str, Any] = {"namespacesMustExist": True}


class Query:
    """A Spark query that runs, and servers before it."""

    def __init__(self, ingress: KafkaUrl, responses: KafkaUrl) -> None:
        self.ingress, self.responses = ingress, responses
        self._servers = 0

    @contextmanager
    def server(self, name: str | None = None, **settings: Any) -> Iterator[Running]:
        """Run a server before the query, whose broker gets the `settings`."""
        self._servers += 1
        config = BrokerConfig(profile=PROFILE, settings={**STANDALONE_SETTINGS, **settings})
        name = name or f"server-{self._servers}"

        def engine() -> QueryEngine:
            return QueryEngine(self.ingress, self.responses, name, broker=config, begins_with=STANDALONE)

        with running_on(engine) as found:
            found.call(lambda: found.engine.partitions("persistent://public/default/t"))  # it answers
            yield found
            if settings:
                found.call(lambda: found.engine.submit(None, BrokerConfig(settings=STANDALONE_SETTINGS)))


@pytest.fixture(scope="module")
def query(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Query]:
    """A Spark query on topics of its own, in this process. It ends with the module: a session runs one at a time."""
    from streaming.jobs.run import run_query

    kafka, spark = (request.getfixturevalue(each) for each in ("kafka", "spark"))
    ingress, responses = (
        f"kafka://{kafka.bootstrap}/{name}-{uuid4().hex}" for name in ("commands", "responses")
    )
    folder = tmp_path_factory.mktemp("query")
    running, stop = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            run_query(
                ingress,
                folder / "checkpoint",
                str(folder / "store"),
                responses=responses,
                spark=spark,
                trigger="0s",
                partitions=2,
                tables=False,
                quality=False,
                shuffle_partitions=1,
                on_start=lambda _: running.set(),
                stop=stop,
            )
        except BaseException as error:
            errors.append(error)
        finally:
            running.set()

    patch = pytest.MonkeyPatch()
    patch.setattr("streaming.server.query_engine.ANSWER_SECONDS", 110.0)  # the machine may be busy
    thread = threading.Thread(target=run, name="query-of-the-module")
    thread.start()
    running.wait()
    try:
        yield Query(KafkaUrl.parse(ingress), KafkaUrl.parse(responses))
    finally:
        patch.undo()
        stop.set()
        thread.join()
    assert errors == []


def java(program: Path, *arguments: object) -> list[str]:
    """The command that runs a Java program with Pulsar's own client and `pulsar-admin`. Skips the test if Maven is missing."""
    try:
        jars = jars_of(Path(__file__).parent / "pulsar_admin" / "pom.xml")
    except JarsUnavailableError as error:
        pytest.skip(str(error))
    options = "-Xmx400m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"
    return [str(java_binary()), *options, str(program), *map(str, arguments)]


BOTH = [
    "embedded",
    pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.kafka]),
]
"""The engines, for fixtures with parameters."""

Configured = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(scope="module", params=BOTH)
def configured(request: pytest.FixtureRequest) -> Configured:
    """What runs a server whose broker has settings, given as keywords, on one engine and then on the other."""
    if request.param == "embedded":
        return running
    found: Query = request.getfixturevalue("query")
    return found.server


@pytest.fixture(scope="module")
def broker(configured: Configured) -> Iterator[Running]:
    with configured() as found:
        yield found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    return f"persistent://public/default/{name}"


@pytest.fixture
def client(broker: Running) -> Iterator[Any]:
    with broker.client() as client:
        yield client


@pytest.fixture
def resources() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
