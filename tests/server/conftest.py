"""A server in a thread of its own, for clients that block."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from streaming.server.clock import Clock
from streaming.server.embedded import EmbeddedEngine
from streaming.server.server import OPEN, Address, Security, Server, bound


class Running:
    """A server that runs, and the loop on which it does."""

    def __init__(self, server: Server, engine: EmbeddedEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.engine, self._loop = server, engine, loop
        self.service_url = server.service_url.replace("localhost", "127.0.0.1")

    def call(self, function: Callable[[], Any]) -> Any:
        """Call `function` on the server's loop, and wait for its result."""

        async def result() -> Any:
            found = function()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(result(), self._loop).result(30)

    @contextmanager
    def client(self, **settings: Any) -> Iterator[Any]:
        """An official client, closed at the end."""
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
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
    """Run a server with the broker settings `settings`."""
    started: Any = threading.Event()
    found: list[Running] = []
    ends: list[asyncio.Event] = []

    async def serve() -> None:
        engine = EmbeddedEngine(data, clock=clock, settings=settings)
        sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
        async with engine, Server(engine, sockets[0], admin_listener=sockets[1], security=security) as server:
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


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running() as found:
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
