"""An HTTP server on a bound socket, on the running loop."""

import asyncio
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from streaming.server.handshakes import Handshakes
from streaming.server.rarely import Rarely

log = logging.getLogger(__name__)

MOST_OPEN = 1024
"""Open connections: open files are for clients of the binary protocol, too. For one more, the oldest is closed from which no whole request
came since its last answer, or else the new one."""

CLOSE_SECONDS = 2
"""So long may requests take that are under way when the server closes."""


REQUEST_SECONDS = 30.0
"""A connection that has not sent a whole request after so long is closed."""


UNREAD_SECONDS = 30.0
"""A connection that has read nothing of an answer for so long is closed."""

MOST_UNREAD = 64 << 20
"""The bytes of answers that wait to be read, over all connections. Beyond them, the connection is closed that has waited for longest."""

PIECE = 4096
"""The bytes of input that are parsed before others have their turn on the loop: at worst some hundred chunks of a byte, 4 ms."""

PARSE_SECONDS = 0.004
"""So long pieces that queue are parsed in a turn of the loop, one at least: a turn that others make long must not be one for each
connection that waits."""

_PIECES = 8
"""The pieces that are parsed as they come, in a turn of the loop. Others queue."""

MOST_INPUT = 64 << 20
"""The bytes of input that wait to be parsed, over all connections. A connection that sends more is closed."""


MOST_TEXT = 1 << 20
"""The bytes of a largest message of a WebSocket: Pulsar's webSocketMaxTextFrameSize."""

MOST_PARTS = 10_000
"""The frames of a largest message of a WebSocket."""

_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

IDLE_SECONDS = 300.0
"""A WebSocket on which nothing has come or gone for so long is closed: Pulsar's webSocketSessionIdleTimeoutMillis."""

ABORT = "magnetar.abort"
"""What the scope of a WebSocket has the function under that ends its connection without a close frame."""


class _OwnWords(logging.Filter):
    """Says in our words what uvicorn says of its own accord."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets a record through."""
        if str(record.msg).startswith("Cancel %s running task(s)"):
            record.msg = f"requests to the admin API that were not done {CLOSE_SECONDS} s after the stop, and are refused: %s"
        elif str(record.msg).startswith("ASGI callable returned without completing"):
            record.msg = "an answer of the admin API ends before its end, and its connection is closed"
        elif str(record.msg).startswith("Invalid UTF-8"):
            return False  # of a client of a WebSocket, which is closed
        return True


_OWN_WORDS = _OwnWords()


class HttpServer:
    """Serves an application between `start` and `close`."""

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        shared = _Shared()
        plain = partial(_Impatient, shared)
        protocol: Any = plain
        if tls is not None:
            handshakes = Handshakes(tls, REQUEST_SECONDS)

            def secured(**given: Any) -> asyncio.Protocol:
                return handshakes.new_connection(partial(plain, **given))

            protocol = secured

        socket_protocol: Any = partial(_WebSocket, shared)
        config = uvicorn.Config(
            app, http=protocol, lifespan="off", log_config=None, access_log=False, log_level=logging.ERROR, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=CLOSE_SECONDS, ws=socket_protocol, ws_max_size=MOST_TEXT, ws_per_message_deflate=False,
            ws_ping_interval=None,
        )  # fmt: skip
        config.load()
        logging.getLogger("uvicorn.error").addFilter(_OWN_WORDS)
        self._server = _WithoutSignals(config)
        self._listener = listener
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve from now on."""
        self._running = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started and not self._running.done():
            await asyncio.sleep(0)
        if self._running.done():
            await self._running

    async def close(self) -> None:
        """Take no more requests, and end those under way."""
        self._server.should_exit = True
        if self._running is not None:
            await self._running


class _Shared:
    """What the connections of a server share. Pieces of their input are parsed in turn, for `PARSE_SECONDS` in each round of the loop.

    `open`: the connections, the oldest first. `slow`: those with an answer that waits to be read, in the order in which they began to.
    `of_sockets`: the bytes that came from WebSockets and are not taken.
    """

    def __init__(self) -> None:
        self.slow: dict[_ReadsAnswers, None] = {}
        self.of_sockets = 0
        self.open: dict[_Impatient, None] = {}
        self._waiting: deque[_TakesTurns] = deque()
        self._bytes = self._parsed = 0
        self._bugs = Rarely(log)

    def take(self, size: int) -> bool:
        """May so many bytes be parsed at once? Nobody else waits."""
        if self._waiting or size > PIECE or self._parsed >= _PIECES:
            return False
        if not self._parsed:
            asyncio.get_running_loop().call_soon(self._begin)
        self._parsed += 1
        return True

    def _begin(self) -> None:
        self._parsed = 0

    def add(self, client: "_TakesTurns", size: int) -> bool:
        """So many bytes more of a connection wait. False: they are too many."""
        self._bytes += size
        if client.waits:
            return self._bytes <= MOST_INPUT
        client.waits = True
        self._waiting.append(client)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)
        return self._bytes <= MOST_INPUT

    def _next(self) -> None:
        until = time.monotonic() + PARSE_SECONDS
        while True:
            client = self._waiting.popleft()
            try:
                self._bytes -= client.parse_piece()
            except Exception as error:  # the others still have their turns
                self._bugs.error("a request can't be parsed, which is a bug in Magnetar: %r", error)
                self._bytes -= client.give_up()
            if client.waits:
                self._waiting.append(client)
            if not self._waiting or time.monotonic() >= until:
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)


class _ReadsAnswers:
    """Closes a connection that does not read what is sent to it."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _shared: _Shared
    _progress: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """An answer waits to be read. If those of all connections are too large, the one that waits for longest is closed."""
        super().pause_writing()  # type: ignore[misc]
        self._expect_progress()
        slow = self._shared.slow
        slow[self] = None
        total = sum(each.transport.get_write_buffer_size() for each in slow)
        while total > MOST_UNREAD and len(slow) > 1:
            oldest = next(iter(slow))
            total -= oldest.transport.get_write_buffer_size()
            oldest.forget_answer()
            oldest.transport.abort()

    def resume_writing(self) -> None:
        """Most of it is read."""
        super().resume_writing()  # type: ignore[misc]
        self.forget_answer()

    def forget_answer(self) -> None:
        """Nothing waits any more."""
        self._shared.slow.pop(self, None)
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None

    def _expect_progress(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._progress = self.loop.call_later(UNREAD_SECONDS, self._check_progress, unread)

    def _check_progress(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._expect_progress()
        else:
            self.forget_answer()
            self.transport.abort()


class _TakesTurns(Protocol):
    """A connection whose input is parsed in turn with that of others. `waits`: for its turn."""

    waits: bool

    def parse_piece(self) -> int:
        """It is this connection's turn. Returns how many bytes no longer wait."""

    def give_up(self) -> int:
        """Close the connection at once. Returns how many bytes no longer wait."""


class _Impatient(_ReadsAnswers, H11Protocol):
    """Closes connections that send no request, or half of one, or do not read. `waits`: some of its input is not parsed yet."""

    _former: object = None
    _rest = -1
    waits = False

    def __init__(self, shared: _Shared, **given: Any) -> None:
        """`given`: what uvicorn gives a protocol."""
        super().__init__(**given)
        self._shared = shared

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects."""
        super().connection_made(transport)
        self._input = bytearray()
        everybody = self._shared.open
        if len(everybody) >= MOST_OPEN:
            idle = next((each for each in everybody if each.is_idle), None)
            if idle is None:
                transport.abort()
                return
            del everybody[idle]
            idle.transport.abort()
        everybody[self] = None
        self._check_later()

    @property
    def is_idle(self) -> bool:
        """No whole request came since the last answer."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    # -- input ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Input comes. It is parsed in turn with that of others."""
        if not self.waits and self._shared.take(len(data)):
            super().data_received(data)
            return
        self._input += data
        self.transport.pause_reading()
        if not self._shared.add(self, len(data)):
            self.transport.abort()

    def parse_piece(self) -> int:
        """It is this connection's turn. Returns how many bytes no longer wait."""
        if self.transport.is_closing():
            piece = bytes(self._input)
        else:
            piece = bytes(self._input[:PIECE])
            super().data_received(piece)
        del self._input[: len(piece)]
        self.waits = bool(self._input)
        if not self.waits and not self.flow.read_paused:
            self.transport.resume_reading()
        return len(piece)

    def give_up(self) -> int:
        """Close the connection at once. Returns how many bytes no longer wait."""
        size = len(self._input)
        self._input.clear()
        self.waits = False
        self.transport.abort()
        return size

    def send_400_response(self, msg: str) -> None:
        """What comes is no HTTP, and the connection ends. h11 sends one answer to a request: in a body, this one takes the place of the
        application's, unless that has begun."""
        cycle = self.cycle
        if cycle is None or not cycle.more_body:
            super().send_400_response(msg)
            return
        cycle.disconnected = True
        cycle.message_event.set()
        if cycle.response_started or cycle.scope["method"] == "HEAD":  # to which uvicorn's answer has a body
            self.transport.close()
        else:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        super().connection_lost(exc)
        self._leave()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """What follows is that of a WebSocket."""
        self._leave()
        super().handle_websocket_upgrade(event)

    def _leave(self) -> None:
        self._shared.open.pop(self, None)
        self.forget_answer()
        self._look.cancel()

    # -- requests -------------------------------------------------------------------------------------------------

    def _check_later(self) -> None:
        self._look = self.loop.call_later(REQUEST_SECONDS, self._check)

    def _check(self) -> None:
        cycle = self.cycle
        if self.transport.is_closing():
            self._check_rest()
            return
        idle = cycle is None or (cycle.response_complete and cycle is self._former)
        if idle or cycle.more_body:
            self.transport.close()
            self._check_rest()
        else:
            self._former = cycle
            self._check_later()

    def _check_rest(self) -> None:
        """The connection is closing. If the client does not read the rest of its answer, it is closed at once."""
        rest = self.transport.get_write_buffer_size()
        if rest and rest == self._rest:
            self.transport.abort()
        elif rest:
            self._rest = rest
            self._check_later()


class _WebSocket(_ReadsAnswers, WebSocketsSansIOProtocol):
    """The connection of a WebSocket, which is closed if nothing comes or goes, or if it does not read. Its input is parsed in turn with that of all
    others, and not while a message is not taken, or while what was sent is not read: a pong goes for each ping."""

    waits = False

    def __init__(self, shared: _Shared, **given: Any) -> None:
        """`given`: what uvicorn gives a protocol."""
        super().__init__(**given)
        self._shared = shared
        self._queued = self._untaken = 0
        self._input = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has asked for a WebSocket."""
        super().connection_made(transport)
        self._active = self.loop.time()
        self._look = self.loop.call_later(IDLE_SECONDS, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        super().connection_lost(exc)
        self._input.clear()
        self.forget_answer()
        self._look.cancel()
        self._count(0)

    def handle_connect(self, event: Any) -> None:
        """The request that asks for it has come."""
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            scope: Any = self.scope
            scope[ABORT] = self.transport.abort

    def data_received(self, data: bytes) -> None:
        """Input comes. All that is no whole message, or is not taken, is counted."""
        self._active = self.loop.time()
        if not self.handshake_initiated:
            self._begin(data)
        elif not (self._input or self._is_held) and self._shared.take(len(data)):
            super().data_received(data)
        else:
            self._input += data
            self.transport.pause_reading()
            self._go_on()
        self._count_input()
        if self._untaken and self._shared.of_sockets > MOST_INPUT:
            self.transport.abort()

    def _begin(self, data: bytes) -> None:
        """The request that asks for it has come, as a whole. uvicorn does not tell of one that the library refuses: with a body, another
        method, or too many or too long headers."""
        super().data_received(data)
        if not self.handshake_initiated:
            self.handshake_complete = self.close_sent = True
            self.transport.write(b"".join(self.conn.data_to_send()) or _BAD_REQUEST)
            self.transport.close()

    @property
    def _is_held(self) -> bool:
        """Nothing more is parsed for now."""
        return self.read_paused or not self.writable.is_set()

    def _go_on(self) -> None:
        if self._input and not self.waits and not self._is_held:
            self._shared.add(self, 0)

    def parse_piece(self) -> int:
        """See `_TakesTurns`. Its bytes are counted apart."""
        if self.transport.is_closing():
            self._input.clear()
        elif not self._is_held:
            piece = bytes(self._input[:PIECE])
            del self._input[: len(piece)]
            super().data_received(piece)
        self.waits = bool(self._input) and not self._is_held
        if not self._input and not self._is_held:
            self.transport.resume_reading()
        self._count_input()
        return 0

    def give_up(self) -> int:
        """See `_TakesTurns`."""
        self._input.clear()
        self.waits = False
        self.transport.abort()
        return 0

    def resume_writing(self) -> None:
        """Most of what was sent is read."""
        super().resume_writing()
        self._read_on()

    def _read_on(self) -> None:
        if self._input:
            self.transport.pause_reading()
            self._go_on()
        elif not self._is_held:
            self.transport.resume_reading()

    def handle_cont(self, event: Any) -> None:
        """A part of a message has come."""
        super().handle_cont(event)
        if len(self.frames) > MOST_PARTS and not self.close_sent:
            self.conn.fail(1009, f"a message in more than {MOST_PARTS:,} frames")
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """A whole message has come."""
        self._queued += sum(map(len, self.frames))
        super().send_receive_event_to_app()

    async def receive(self) -> Any:
        """The next message."""
        message: Any = await super().receive()
        self._queued = max(0, self._queued - len(message.get("text") or message.get("bytes") or b""))
        self._count(min(self._untaken, len(self.conn.reader.buffer) + self._queued + len(self._input)))
        self._read_on()
        return message

    async def send(self, message: Any) -> None:
        """Send a message."""
        self._active = self.loop.time()
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # uvicorn takes it for an application that has not answered
        elif message["type"] == "websocket.close":
            self._read_on()

    def _count_input(self) -> None:
        parts = sum(map(len, self.frames))
        self._count(len(self.conn.reader.buffer) + parts + self._queued + len(self._input))

    def _count(self, size: int) -> None:
        self._shared.of_sockets += size - self._untaken
        self._untaken = size

    def _check(self) -> None:
        idle = self.loop.time() - self._active
        if idle < IDLE_SECONDS:
            self._look = self.loop.call_later(IDLE_SECONDS - idle, self._check)
        elif self.close_sent or not self.handshake_complete:
            self.transport.abort()
        else:
            self.conn.fail(1001, f"Idle timeout expired: {IDLE_SECONDS * 1000:.0f} ms")
            self.handle_parser_exception()
            self._look = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)


class _WithoutSignals(uvicorn.Server):
    """Leaves the process's signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
