"""A client of the binary server in its own process: what a WebSocket needs of Pulsar's Java client (mirrors `ClientCnx`).

It asks and is answered in frames. Producers and consumers whose number is in a frame get it.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from streaming.broker.config import PROTOCOL_VERSION
from streaming.protocol.codec import Frame, FrameReader, decode, encode
from streaming.server.authentication import METHOD
from streaming.server.binary import BinaryServer
from streaming.server.websocket.pipe import Pipe

VERSION = "Magnetar-WebSocket"
"""What the stats of topics show as the version of the client's library."""

ANSWER_SECONDS = 30.0
"""Pulsar's operationTimeout."""

FIRST_RETRY, LAST_RETRY = 0.1, 60.0
"""Seconds after which a producer or consumer that the broker has closed is asked for again: twice as long after each refusal."""

_LARGEST = 1 << 31


class NotGranted(Exception):
    """The broker refuses a request. `code`: its ServerError."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class TimedOut(NotGranted):
    """The broker did not answer."""

    def __init__(self) -> None:
        super().__init__("_Timeout", f"the broker has not answered for {ANSWER_SECONDS:.0f} s")


class FrameTaker(Protocol):
    """A producer or a consumer."""

    def took(self, frame: Frame) -> None:
        """A frame for it has come."""


class Client:
    """A connection to the broker, which ends with its WebSocket."""

    def __init__(
        self,
        server: BinaryServer,
        token: str | None,
        peer: tuple[str, int] | None,
        on_lost: Callable[[], None],
    ) -> None:
        """`token`: the one that the client of the WebSocket has. `peer`: its address."""
        self._token, self._on_lost = token, on_lost
        self._peer, self._address = peer, server.service_url.rpartition("//")[2]
        self._reader = FrameReader(_LARGEST)
        self._asked: dict[int, asyncio.Future[Frame]] = {}
        self._requests, self._numbers = count(), count()
        self._members: dict[tuple[str, int], FrameTaker] = {}
        self._watcher: Callable[[Frame], None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self.max_message_size = 0
        """The bytes of a largest message."""
        self.closed = False
        self._connected: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._pipe = Pipe(server.new_connection(), self._take, self._lost, peer)

    async def connect(self) -> None:
        """Connect. Raises `NotGranted`."""
        fields: dict[str, Any] = {"client_version": VERSION, "protocol_version": PROTOCOL_VERSION}
        if self._token is not None:
            fields |= {"auth_method_name": METHOD, "auth_data": self._token.encode()}
        self.tell("CONNECT", fields)
        answer = await self._answered(self._connected)
        self.max_message_size = answer.fields["max_message_size"]

    async def ask(self, cmd: str, fields: dict[str, Any]) -> Frame:
        """Ask for something. Raises `NotGranted`."""
        number = next(self._requests)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self.tell(cmd, {**fields, "request_id": number})
            return await self._answered(future)
        finally:
            del self._asked[number]

    async def _answered(self, future: "asyncio.Future[Frame]") -> Frame:
        if self.closed:
            raise NotGranted("ServiceNotReady", "the connection to the broker is closed")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await future
        except TimeoutError:
            raise TimedOut from None
        fields = found.fields
        if found.cmd == "ERROR" or "error" in fields:
            raise NotGranted(fields.get("error", "UnknownError"), fields.get("message", ""))
        return found

    def tell(self, cmd: str, fields: dict[str, Any], tail: bytes = b"") -> None:
        """Send a frame."""
        self._pipe.send(encode(cmd, fields, tail))

    async def drained(self) -> None:
        """Wait until the broker takes what it is sent."""
        await self._pipe.drained()

    def told(self, text: object) -> str:
        """What Pulsar's client says of an error of the broker."""
        host, port = self._peer or ("", 0)
        return f'{{"errorMsg":"{text}","reqId":{next(self._requests)}, "remote":"{self._address}", "local":"/{host}:{port}"}}'

    def new_member(self, kind: str, member: FrameTaker) -> int:
        """The number of a new producer or consumer."""
        number = next(self._numbers)
        self._members[kind, number] = member
        return number

    def forget(self, kind: str, number: int) -> None:
        """A producer or consumer is no more."""
        self._members.pop((kind, number), None)

    async def watch_topics(self, namespace: str, pattern: str, told: Callable[[Frame], None]) -> None:
        """Be told of topics that come and go. Raises `NotGranted`."""
        self._watcher = told
        asked = {"namespace": namespace, "topics_pattern": pattern, "watcher_id": 0}
        told(await self.ask("WATCH_TOPIC_LIST", asked))

    def later(self, seconds: float, call: Callable[[], Any]) -> None:
        """Call something later, by the machine's clock, as clients do; not once the connection has ended."""

        def due() -> None:
            self._timers.discard(timer)
            call()

        if not self.closed:
            timer = asyncio.get_running_loop().call_later(seconds, due)
            self._timers.add(timer)

    def begin(self, task: Any) -> None:
        """Run a coroutine until it is done or the connection ends."""
        started = asyncio.get_running_loop().create_task(task)
        self._tasks.add(started)
        started.add_done_callback(self._tasks.discard)

    async def again(self, reopen: Callable[[], Any]) -> None:
        """Ask for a producer or consumer again, until it is granted."""
        pause = FIRST_RETRY
        while not self.closed:
            await asyncio.sleep(pause)
            try:
                await reopen()
            except NotGranted:
                pause = min(2 * pause, LAST_RETRY)
            else:
                return

    def close(self) -> None:
        """End the connection, with all that it has."""
        self._pipe.close()

    def _lost(self) -> None:
        self.closed = True
        for task in self._tasks:
            task.cancel()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        gone = NotGranted("ServiceNotReady", "the connection to the broker was closed")
        for future in (self._connected, *self._asked.values()):
            if not future.done():
                future.set_exception(gone)
        if self._connected.done():
            self._connected.exception()  # nobody may ask any more
        self._on_lost()

    def _take(self, data: bytes) -> None:
        for each in self._reader.feed(data):
            self._took(decode(each, any_metadata=True))

    def _took(self, frame: Frame) -> None:
        fields = frame.fields
        if frame.cmd == "PING":
            self.tell("PONG", {})
        elif frame.cmd == "CONNECTED" or (frame.cmd == "ERROR" and not self._connected.done()):
            self._connected.set_result(frame)
        elif (future := self._asked.get(fields.get("request_id", -1))) is not None:
            if not future.done():
                future.set_result(frame)
        elif frame.cmd == "WATCH_TOPIC_UPDATE" and self._watcher is not None:
            self._watcher(frame)
        else:
            kind = "producer" if "producer_id" in fields else "consumer"
            member = self._members.get((kind, fields.get(f"{kind}_id", -1)))
            if member is not None:
                member.took(frame)


class Alarm:
    """A call later, of which at most one is due: messages would leave one each, for as long as their client has asked for."""

    def __init__(self, client: Client, call: Callable[[], Any]) -> None:
        self._client, self._call = client, call
        self._is_set = False

    def set(self, seconds: float) -> None:
        """Call in so many seconds, or earlier."""
        if not self._is_set:
            self._is_set = True
            self._client.later(seconds, self._ring)

    def _ring(self) -> None:
        self._is_set = False
        self._call()
