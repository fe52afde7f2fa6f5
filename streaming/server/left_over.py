"""Clients that a test leaves behind, in a test double: the next test has another address, and theirs answers nobody.

A client that a test does not close connects again by itself, and would take messages of the next test. Nothing in the protocol says
which client it is, so each test has a port of its own. What comes to the ports of earlier tests is closed at once, and counted.

Behind mapped ports, such as those of a container, all tests have one address. What a client still has is its connection: as long as that is
open, the client does not come by another one. So the connections of an earlier test stay open, and nothing behind them answers but to say so.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from schemas.effects import Quarantined
from streaming.protocol import frames
from streaming.protocol.codec import Frame, FrameError, FrameReader, decode, encode
from streaming.server.refusals import answer_of

KEPT = 100
"""The ports of so many earlier tests are listened on, and their connections held. Beyond that, clients find nobody, and are not counted."""

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
    its address since the one began that runs, by the versions of their libraries. `held`: the connections that are still open."""

    name: str
    clients: list[str]
    tries: Counter[str]
    held: "dict[Held, None]"

    def came(self, version: str) -> None:
        """A client of this version came."""
        known = self.tries
        known[version if version in known or len(known) < _VERSIONS else _OTHERS] += 1


def _begun(name: str) -> Left:
    return Left(name, [], Counter(), {})


class Addresses:
    """The addresses of a double's tests, one after the other."""

    def __init__(self, new_connection: NewConnection) -> None:
        """`new_connection`: for the clients of the test that runs."""
        self._new_connection = new_connection
        self._here = [_begun("before the first test")]
        """The last test at the address of the test that runs."""
        self._earlier: deque[Left] = deque()

    def entrance(self) -> NewConnection:
        """Makes the connections of clients that come to the address of the test that runs now, as long as that has it, and afterwards."""
        here = self._here
        return lambda: self._new_connection() if here is self._here else _ShutOut(here[0])

    def begin(self, name: str, left: list[str], *, same_address: bool = False) -> Left:
        """The next test begins. `left`: the clients that the last one has open. Returns that one."""
        former = self._here[0]
        former.clients.extend(left)
        self._earlier.append(former)
        if len(self._earlier) > KEPT:
            _end(self._earlier.popleft())
        for each in self._earlier:
            each.tries.clear()
        if same_address:
            self._here[0] = _begun(name)
        else:
            self._here = [_begun(name)]
        return former

    def shut_out(self) -> list[dict[str, Any]]:
        """The earlier tests whose clients have come since the one began that runs, or are still connected."""
        found = []
        for each in self._earlier:
            tries = each.tries + Counter(held.version for held in each.held if held.counts)
            if tries:
                found.append({"test": each.name, "clients": each.clients, "tries": dict(tries)})
        return found

    def close(self) -> None:
        """Close the connections that are held."""
        for each in self._earlier:
            _end(each)


def _end(test: Left) -> None:
    for each in list(test.held):
        each.close()


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
        self._test.came(self._version)


class Held(asyncio.Protocol):
    """A connection that a client of an earlier test still has.

    PING is answered, so that the client keeps it, and so is what closes a producer or consumer. Other requests fail. Sent messages have no
    answer: clients that get a SEND_ERROR connect again. `counts`: the client would disturb others, as it has something open, or asks for it.
    """

    def __init__(self, test: Left, transport: asyncio.Transport, version: str, *, opened: bool) -> None:
        self._test, self._transport, self._reader = test, transport, FrameReader()
        self.version, self.counts = version[:_NAMED], opened
        test.held[self] = None

    def data_received(self, data: bytes) -> None:
        """The client asks for something, and does not read more than it asks for."""
        try:
            for each in self._reader.feed(data):
                answer = self._answer(decode(each, any_metadata=True))
                if answer is not None and not self._transport.is_closing():
                    self._transport.write(encode(answer.cmd, answer.fields))
        except FrameError:
            self._transport.close()

    def pause_writing(self) -> None:
        """The client asks, and does not read."""
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """The client is closed."""
        self._test.held.pop(self, None)

    def close(self) -> None:
        """Close it."""
        self._transport.close()

    def _answer(self, asked: Frame) -> Frame | None:
        if asked.cmd == "PING":
            return Frame("", "PONG", {})
        if "request_id" not in asked.fields or asked.cmd == "SEND":
            return None
        if asked.cmd in ("CLOSE_PRODUCER", "CLOSE_CONSUMER"):
            return Frame("", "SUCCESS", {"request_id": asked.fields["request_id"]})
        self.counts = True
        command = msgspec.json.encode({**asked.fields, "command": asked.cmd, "connection": "c"})
        refused = Quarantined(
            None, "left over", f"the test of this client has ended: {self._test.name}", command
        )
        effect = answer_of(refused, in_order=True)
        return None if effect is None else frames.frame(effect, _no_entries)


def _no_entries(*position: object) -> Any:
    raise AssertionError("a refusal has no entry")
