"""A connection to the binary server that stays in this process: a transport without a socket."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Pipe(asyncio.Transport):
    """What a connection of `BinaryServer` takes for its transport. Bytes of both directions arrive in a later turn of the loop, as those of a
    socket do. The client takes all at once, so nothing waits on the way to it."""

    def __init__(
        self,
        connection: asyncio.Protocol,
        receive: Callable[[bytes], None],
        lost: Callable[[], None],
        peer: tuple[str, int] | None,
    ) -> None:
        """`receive`: takes what is sent to the client. `lost`: is called when the connection ends. `peer`: the client's address."""
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._connection, self._receive, self._lost, self._peer = connection, receive, lost, peer
        self._there: deque[bytes] = deque()
        self._back: deque[bytes] = deque()
        self._paused = self._closing = self._due = False
        self._drained = asyncio.Event()
        self._drained.set()
        connection.connection_made(self)

    # -- for the client

    def send(self, data: bytes) -> None:
        """Send bytes to the connection."""
        if not self._closing:
            self._there.append(data)
            self._schedule()

    async def drained(self) -> None:
        """Wait until the connection takes what it is sent."""
        await self._drained.wait()

    # -- for the connection

    def write(self, data: Any) -> None:
        """Send bytes to the client."""
        if not self._closing:
            self._back.append(bytes(data))
            self._schedule()

    def close(self) -> None:
        """End, when what is written has arrived."""
        if not self._closing:
            self._closing = True
            self._there.clear()
            self._schedule()

    def abort(self) -> None:
        """End at once."""
        self._back.clear()
        self.close()

    def is_closing(self) -> bool:
        """Whether it ends."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """The bytes that have not arrived at the client."""
        return sum(map(len, self._back))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits."""

    def pause_reading(self) -> None:
        """Take nothing from the client."""
        self._paused = True
        self._drained.clear()

    def resume_reading(self) -> None:
        """Take what the client sends."""
        self._paused = False
        self._drained.set()
        self._schedule()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Another protocol takes the connection over."""
        assert isinstance(protocol, asyncio.Protocol)
        self._connection = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The address of the client, as ``peername``."""
        return self._peer if name == "peername" else default

    # -- between them

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._carry)

    def _carry(self) -> None:
        self._due = False
        if self._back:
            data = b"".join(self._back)
            self._back.clear()
            self._receive(data)
        while self._there and not self._paused and not self._closing:
            self._connection.data_received(self._there.popleft())
        if self._closing:
            if self._back:  # the last words
                self._schedule()
                return
            self._drained.set()
            connection, self._connection = self._connection, _GONE
            if connection is not _GONE:
                connection.connection_lost(None)
                self._lost()


_GONE = asyncio.Protocol()
