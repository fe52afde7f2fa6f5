"""An HTTP server on a bound socket, on the running loop."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 1024
"""A request beyond them is answered with 503."""

MOST_OPEN = MOST_CONNECTIONS * 3 // 2
"""A connection beyond them is closed immediately: open files are for clients of the binary protocol, too."""

CLOSE_SECONDS = 2
"""So long may requests take that are under way when the server closes."""


REQUEST_SECONDS = 30.0
"""A connection that has not sent a whole request after so long is closed."""


class HttpServer:
    """Serves an application between `start` and `close`."""

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        config = uvicorn.Config(
            app, http=_Impatient, lifespan="off", log_config=None, access_log=False, server_header=False, proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=CLOSE_SECONDS,
        )  # fmt: skip
        config.load()
        config.ssl = tls
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


class _Impatient(H11Protocol):
    """Closes connections that send no request, or half of one."""

    _former: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects."""
        super().connection_made(transport)
        if len(self.connections) > MOST_OPEN:
            transport.abort()
        else:
            self._check_later()

    def _check_later(self) -> None:
        self.loop.call_later(REQUEST_SECONDS, self._check)

    def _check(self) -> None:
        cycle = self.cycle
        if self.transport.is_closing():
            return
        idle = cycle is None or (cycle.response_complete and cycle is self._former)
        if idle or cycle.more_body:
            self.transport.close()
        else:
            self._former = cycle
            self._check_later()


class _WithoutSignals(uvicorn.Server):
    """Leaves the process's signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
