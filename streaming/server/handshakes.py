"""TLS handshakes, before a connection counts as one: how many may be under way, and what each may take.

Anybody can begin one. asyncio would hold a quarter of a megabyte for each, without an end to their number. And each takes some
milliseconds of the loop, depending on the key of the certificate: one begins in a round of the loop.
"""

import asyncio
import ssl
from asyncio import sslproto
from collections import deque
from collections.abc import Callable

from streaming.server.tls_transport import TlsTransport

MOST = 1024
"""Handshakes under way. Beyond them, the one is closed that has waited for longest."""

_BUFFER = 1 << 15
"""Bytes that are decrypted at a time: two records of TLS."""

NewProtocol = Callable[[], asyncio.Protocol]


class Handshakes:
    """The handshakes of a listener."""

    def __init__(self, context: ssl.SSLContext, seconds: float) -> None:
        """`seconds`: how long a handshake may take."""
        self.context, self.seconds = context, seconds
        self.under_way: dict[_Handshake, None] = {}
        self._first: deque[_Handshake] = deque()
        """Those that have not begun. The client may be gone."""
        sslproto.SSLProtocol.max_size = _BUFFER

    def new_connection(self, new_protocol: NewProtocol) -> asyncio.Protocol:
        """The asyncio protocol of a connection that a client opens. Once the handshake is complete, one from `new_protocol` follows."""
        return _Handshake(self, new_protocol)

    def begin(self, handshake: "_Handshake") -> None:
        """One more is under way."""
        self.under_way[handshake] = None
        if len(self.under_way) > MOST:
            next(iter(self.under_way)).abort()
        self._first.append(handshake)
        if len(self._first) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Have one begin whose client is still there."""
        while self._first and not self._first.popleft().begin():
            pass
        if self._first:
            asyncio.get_running_loop().call_soon(self._next)


class _Handshake(asyncio.Protocol):
    """Keeps what a client sends with the end of its handshake for the protocol that follows."""

    def __init__(self, handshakes: Handshakes, new_protocol: NewProtocol) -> None:
        self._all, self._new_protocol = handshakes, new_protocol
        self._early = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connects."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # Before Python 3.11.4, asyncio begins to read after this call, whatever the transport was told in it.
        asyncio.get_running_loop().call_soon(transport.pause_reading)
        self._all.begin(self)

    def data_received(self, data: bytes) -> None:
        """The client sends before the next protocol is there."""
        self._early += data

    def begin(self) -> bool:
        """Begin, unless it is over already."""
        if self._transport.is_closing():
            return False
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone before it began."""
        self._all.under_way.pop(self, None)

    def abort(self) -> None:
        """End it."""
        self._all.under_way.pop(self, None)
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()

    async def _shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        secured = None
        try:
            secured = await loop.start_tls(
                self._transport, self, self._all.context, server_side=True, ssl_handshake_timeout=self._all.seconds
            )  # fmt: skip
        except (OSError, EOFError, asyncio.CancelledError) as error:  # ssl.SSLError is an OSError
            # asyncio keeps it, and it keeps the frames that led to it, which keep what asyncio has: 70 KB, until Python collects garbage.
            error.__traceback__ = None
        if secured is not None and not secured.is_closing():
            protocol = self._new_protocol()
            TlsTransport(secured, self._transport, protocol)
            if self._early:
                protocol.data_received(bytes(self._early))
        self._all.under_way.pop(self, None)
