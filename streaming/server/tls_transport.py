"""What is sent over TLS, of which asyncio knows too little.

The problem
    asyncio encrypts whatever is written at once, and hands it to the socket's transport, which keeps what the client has not read. The
    transport that a protocol sees counts none of it, so that it is never told to pause: a client that asks and does not read would cost
    as much memory as its answers have bytes, in no count and under no limit.

The idea
    Bytes wait here, unencrypted, and go on a piece at a time as the client reads. So all that is sent and not read is counted, and little of
    it is anywhere else.
"""

import asyncio
from collections import deque
from typing import Any

PIECE = 1 << 16
"""Bytes that are encrypted at a time. Four pieces, at most, are under way besides what waits here."""


class _Gone:
    """In place of the transports of a client that is gone."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return True

    def is_reading(self) -> bool:
        return False

    def nothing(self) -> None:
        pass

    close = abort = pause_reading = resume_reading = nothing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


_GONE = _Gone()


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """Between asyncio's transport over TLS, `secured`, and the protocol of a connection. `raw`: the transport of its socket."""

    def __init__(self, secured: Any, raw: Any, protocol: Any) -> None:
        super().__init__()
        self._secured, self._raw, self._protocol = secured, raw, protocol
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._may_send, self._is_closing, self._is_paused = True, False, False
        self.set_write_buffer_limits()
        secured.set_protocol(self)
        secured.set_write_buffer_limits(
            high=1, low=0
        )  # be told when anything waits there, and when it does not any more
        protocol.connection_made(self)

    # -- for the protocol -----------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        """Send bytes, when the client has read what came before."""
        if self._is_closing or not data:
            return
        view = memoryview(data if isinstance(data, bytes) else bytes(data))
        self._waiting.extend(view[start : start + PIECE] for start in range(0, len(view), PIECE))
        self._size += len(view)
        self._send()

    def get_write_buffer_size(self) -> int:
        """How many bytes the client has not read, with those that are encrypted."""
        under_way: int = self._secured.get_write_buffer_size() + self._raw.get_write_buffer_size()
        return self._size + under_way

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """With how many bytes that wait the protocol is told to pause, and with how many to go on."""
        self._high = PIECE if high is None else high
        self._low = self._high // 4 if low is None else low
        self._tell()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Both limits, the lower one first."""
        return self._low, self._high

    def can_write_eof(self) -> bool:
        """TLS can't close one direction."""
        return False

    def is_closing(self) -> bool:
        """Whether it is closed, or will be when everything is sent."""
        return self._is_closing or self._secured.is_closing()

    def close(self) -> None:
        """Close the connection when everything is sent."""
        self._is_closing = True
        self._send()

    def abort(self) -> None:
        """Close the connection at once."""
        self._is_closing = True
        self._forget()
        self._secured.abort()

    def pause_reading(self) -> None:
        """Take nothing from the client."""
        self._secured.pause_reading()

    def resume_reading(self) -> None:
        """Take what the client sends."""
        self._secured.resume_reading()

    def is_reading(self) -> bool:
        """Whether anything is taken from the client."""
        return bool(self._secured.is_reading())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What asyncio knows of the connection."""
        return self._secured.get_extra_info(name, default)

    def set_protocol(self, protocol: Any) -> None:
        """Another protocol takes over."""
        self._protocol = protocol

    def get_protocol(self) -> Any:
        """The protocol of the connection."""
        return self._protocol

    # -- from asyncio ---------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """The client has sent bytes."""
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends nothing any more. asyncio closes the connection then, and sends nothing either."""
        self._protocol.eof_received()
        self._is_closing = True
        self._forget()
        return None

    def pause_writing(self) -> None:
        """The socket takes nothing now."""
        self._may_send = False

    def resume_writing(self) -> None:
        """The client has read most of what was under way."""
        self._may_send = True
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self._is_closing = True
        self._forget()
        # Python would find out late that nobody needs what OpenSSL has for it any more: protocols and transports refer to each other.
        self._secured = self._raw = _GONE
        self._protocol.connection_lost(error)

    def _send(self) -> None:
        while self._waiting and self._may_send:
            piece = self._waiting.popleft()
            self._size -= len(piece)
            self._secured.write(piece)
        self._tell()
        if self._is_closing and not self._waiting and self._may_send:
            self._secured.close()

    def _tell(self) -> None:
        """Tell the protocol to pause or to go on."""
        if not self._is_paused and self._size > self._high:
            self._is_paused = True
            self._protocol.pause_writing()
        elif self._is_paused and self._size <= self._low:
            self._is_paused = False
            self._protocol.resume_writing()

    def _forget(self) -> None:
        self._waiting.clear()
        self._size = 0
