"""Clients that a test leaves behind, in a test double: the next test has another address, and theirs answers nobody.

A client that a test does not close connects again by itself, and would take messages of the next test. Nothing in the protocol says
which client it is, so each test has a port of its own. What comes to the ports of earlier tests is closed at once, and counted.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from streaming.protocol.codec import FrameError, FrameReader, decode

KEPT = 100
"""The ports of so many earlier tests are listened on. Beyond that, clients find nobody, and are not counted."""

_CONNECT = 1 << 16
"""Bytes of the largest CONNECT that is read."""

_SECONDS = 5.0
"""How long it may take until it has come."""

_NAMED = 100
"""Characters of a version that are kept."""

_VERSIONS, _OTHERS = 20, "others"
"""The versions that are counted by themselves, and what all more are counted as."""

NewConnection = Callable[[], asyncio.Protocol]


class Left(NamedTuple):
    """What a test left behind. `name`: the test's. `clients`: what it had open when the next one began. `tries`: how often they came to
    its address since the one began that runs, by the versions of their libraries."""

    name: str
    clients: list[str]
    tries: Counter[str]


class Addresses:
    """The addresses of a double's tests, one after the other."""

    def __init__(self, new_connection: NewConnection) -> None:
        """`new_connection`: for the clients of the test that runs."""
        self._new_connection = new_connection
        self._now = Left("before the first test", [], Counter())
        self._earlier: deque[Left] = deque(maxlen=KEPT)

    def entrance(self) -> NewConnection:
        """Makes the connections of clients that come to the address of the test that runs now, as long as it does, and afterwards."""
        test = self._now
        return lambda: self._new_connection() if test is self._now else _ShutOut(test)

    def begin(self, name: str, left: list[str]) -> None:
        """The next test begins. `left`: the clients that the last one has open."""
        self._now.clients.extend(left)
        self._earlier.append(self._now)
        for each in self._earlier:
            each.tries.clear()
        self._now = Left(name, [], Counter())

    def shut_out(self) -> list[dict[str, Any]]:
        """The earlier tests whose clients have come since the one began that runs."""
        return [
            {"test": each.name, "clients": each.clients, "tries": dict(each.tries)}
            for each in self._earlier
            if each.tries
        ]


class _ShutOut(asyncio.Protocol):
    """A connection of a client of an earlier test: it is closed as soon as it has said which library it is."""

    def __init__(self, test: Left) -> None:
        self._test, self._reader = test, FrameReader(_CONNECT)
        self._version = "an unknown client"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connects."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        asyncio.get_running_loop().call_later(_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        """It says who it is."""
        try:
            for each in self._reader.feed(data):
                self._version = decode(each).fields.get("client_version", self._version)[:_NAMED]
                self._transport.close()
                return
        except FrameError:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone, until it tries again."""
        tries = self._test.tries
        tries[self._version if self._version in tries or len(tries) < _VERSIONS else _OTHERS] += 1
