"""A proxy between clients and a real Pulsar, which records every frame.

What is not a frame goes on as it came, and the broker closes the connection as it would without a proxy. A side that does
not read holds up the other: a connection buffers a frame and a few socket buffers in each direction.

A lookup names a broker. Its answer is rewritten to an address of the proxy: each broker that was named gets a listener of its
own, so clients need not know that there is a proxy.

If the broker's URL asks for TLS, all connections to brokers have it. Clients talk to the proxy in plain text.
"""

import asyncio
import itertools
import logging
import re
import ssl
from contextlib import suppress
from typing import Any, NamedTuple

from streaming.protocol.codec import (
    HEADROOM,
    MAX_MESSAGE_SIZE,
    Frame,
    FrameError,
    FrameReader,
    decode,
    encode,
)
from streaming.record.recording import Recording
from streaming.server.server import Address, bound

log = logging.getLogger(__name__)

_READ = 1 << 16
_UNRECORDED = frozenset({"PING", "PONG", "AUTH_RESPONSE"})
_SCHEME, _TLS_SCHEME = "pulsar://", "pulsar+ssl://"
_PORT, _TLS_PORT = 6650, 6651
"""As Pulsar's clients take them for a URL that has none."""
_HOST = re.compile(r"(\[[^][/]+]|[^][:/]+)(?::([0-9]{1,5}))?")


class BadBrokerUrl(ValueError):
    """A URL is not that of a broker. The text says why."""


def broker_address(url: str) -> Address:
    """The address in a broker's URL, the first if there are several. Raises `BadBrokerUrl`."""
    return next(iter(broker_addresses(url).values()))


def broker_addresses(url: str) -> dict[str, Address]:
    """The addresses in a service URL, each by the URL of it alone. Raises `BadBrokerUrl`."""
    scheme, default = (_TLS_SCHEME, _TLS_PORT) if is_tls(url) else (_SCHEME, _PORT)
    hosts, found = url.removeprefix(scheme), dict[str, Address]()
    for each in hosts.rstrip("/").split(","):
        named = _HOST.fullmatch(each)
        port = int(named[2] or default) if named else 0
        if hosts == url or named is None or not 0 < port < 1 << 16:
            raise BadBrokerUrl(
                f"{url!r}: expected pulsar://HOST:PORT or pulsar+ssl://HOST:PORT, or several HOST:PORT with commas"
            )
        found[scheme + each] = Address(named[1].strip("[]"), port)
    return found


def is_tls(url: str) -> bool:
    """Whether a broker's URL asks for TLS."""
    return url.startswith(_TLS_SCHEME)


class _Listener(NamedTuple):
    server: asyncio.Server
    url: str


class Proxy:
    """Listens for clients of the broker at `to`, and of those that its lookups name.

    `address`: where clients connect. Its host is also that of the listeners for the other brokers. `tls`: whose signatures count
    for certificates of brokers; None: those of the system's authorities.
    """

    def __init__(
        self, recording: Recording, to: str, address: Address, tls: ssl.SSLContext | None = None
    ) -> None:
        self._recording, self._to, self._host, self._tls = recording, to, address.host, tls
        self._numbers = itertools.count()
        self._listeners: dict[str, _Listener] = {}
        self._creating = asyncio.Lock()
        self._connections: set[asyncio.Task[None]] = set()
        self._is_down = False
        """Whether the only broker refused the last connection."""

    @property
    def connections(self) -> int:
        """The open connections."""
        return len(self._connections)

    async def start(self, listener: Any) -> str | None:
        """Listen on a bound socket. Returns why the broker can't be reached now, if it can't."""
        await self._listen(self._to, listener)
        try:
            _, writer = await self._connected(self._to)
        except OSError as error:
            return str(error)
        writer.transport.abort()
        return None

    async def close(self) -> None:
        """Take no more connections and close all. What the clients had under way is lost, as with any proxy."""
        for listener in self._listeners.values():
            listener.server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def is_tls(self) -> bool:
        """Whether brokers are reached by TLS, so that what counts of their URLs is those for TLS."""
        return is_tls(self._to)

    async def url_of(self, broker: str) -> str:
        """The proxy's URL for that of a broker."""
        async with self._creating:
            if broker not in self._listeners:
                await self._listen(broker, bound(Address(self._host, 0), "--listen"))
        return self._listeners[broker].url

    async def _listen(self, broker: str, listener: Any) -> None:
        broker_address(broker)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            with suppress(asyncio.CancelledError):  # the proxy is closed
                await self._serve(broker, reader, writer)

        server = await asyncio.start_server(serve, sock=listener, limit=_READ)
        self._listeners[broker] = _Listener(server, f"{_SCHEME}{Address(*listener.getsockname()[:2])}")

    async def _serve(self, broker: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_broker, to_broker = await self._connected(broker)
        except OSError as error:
            log.warning("no broker can be reached, so a client's connection is closed")
            self._is_down = isinstance(error, ConnectionRefusedError) and len(self._listeners) == 1
            writer.transport.abort()
            return
        if self._is_down:
            self._is_down = False
            self._recording.note(dir="note", event="broker_restart", phase="started")
        number, limits = next(self._numbers), _Limits()
        self._recording.note(conn=number, dir="in", cmd="_TCP_OPEN")
        pipes = [
            asyncio.create_task(self._pipe(number, "in", reader, to_broker, limits)),
            asyncio.create_task(self._pipe(number, "out", from_broker, writer, limits)),
        ]
        closed_by = "in"
        try:
            done, _ = await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            closed_by = done.pop().result()
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
            self._recording.closed(number, closed_by)
            for each in (writer, to_broker):
                each.close()

    async def _connected(self, broker: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the first address of a broker's URL that takes one. Raises the OSError of the last one."""
        tls, last = (self._tls or True) if is_tls(broker) else None, OSError()
        for address in broker_addresses(broker).values():
            try:
                return await asyncio.open_connection(*address, limit=_READ, ssl=tls)
            except OSError as error:
                log.warning("%s can't be reached: %s", address, error)
                last = error
        raise last

    async def _pipe(
        self,
        number: int,
        direction: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: "_Limits",
    ) -> str:
        """Pass on what comes, until the sender closes its end or the receiver is gone. Returns the direction of who closed."""
        frames = limits.reader()
        readable = True
        while data := await _read(reader):
            if readable:
                parts = []
                try:
                    for each in frames.feed(data):
                        passed = await self._pass(number, direction, each, limits)
                        parts.append(passed)
                except FrameError as error:
                    self._unreadable(number, direction, error)
                    readable = False
                    parts.append(frames.unread)
                data = b"".join(parts)
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                return "out" if direction == "in" else "in"
        return direction

    async def _pass(self, number: int, direction: str, data: bytes, limits: "_Limits") -> bytes:
        """Record a frame without its total size, and return it as it goes on."""
        whole = len(data).to_bytes(4) + data
        try:
            frame = decode(data)
        except FrameError as error:
            self._unreadable(number, direction, error)
            return whole
        if direction == "out":
            if frame.cmd == "CONNECTED":
                limits.set(frame.fields.get("max_message_size", MAX_MESSAGE_SIZE))
            elif (field := _URL_FIELDS.get(frame.cmd)) is not None:
                try:
                    rewritten = await self._rewritten(frame, field)
                except BadBrokerUrl as error:  # which the client finds out, too
                    log.warning("a %s of a broker goes on as it came: %s", frame.cmd, error)
                    rewritten = frame
                if rewritten is not frame:
                    frame, whole = rewritten, encode(frame.cmd, rewritten.fields)
        if frame.cmd not in _UNRECORDED:
            self._recording.frame(number, direction, frame)
        return whole

    async def _rewritten(self, frame: Frame, field: str) -> Frame:
        """The frame with the proxy's URL for a broker's. A client that connects through Pulsar's own proxy names the broker to
        that one."""
        named = frame.fields.get(f"{field}Tls" if self.is_tls else field)
        fields = {name: value for name, value in frame.fields.items() if name not in (field, f"{field}Tls")}
        if frame.fields.get("proxy_through_service_url"):
            if not self.is_tls:
                return frame
            url = "" if named is None else _SCHEME + named.partition("://")[2]
        elif fields == frame.fields:
            return frame
        else:
            url = await self.url_of(named) if named else ""
        return frame._replace(fields=fields | ({field: url} if url else {}))

    def _unreadable(self, number: int, direction: str, error: FrameError) -> None:
        self._recording.note(dir="note", event="unreadable", conn=number, of=direction, text=str(error))


async def _read(reader: asyncio.StreamReader) -> bytes:
    """What comes next; nothing if the connection is closed or broken."""
    try:
        return await reader.read(_READ)
    except OSError:
        return b""


_URL_FIELDS = {
    "LOOKUP_RESPONSE": "brokerServiceUrl",
    "CLOSE_PRODUCER": "assignedBrokerServiceUrl",
    "CLOSE_CONSUMER": "assignedBrokerServiceUrl",
}
"""The fields that name a broker. Those that end with Tls go: clients talk to the proxy in plain text."""


class _Limits:
    """The size of the largest frame on a connection, which its broker names."""

    def __init__(self) -> None:
        self._readers: list[FrameReader] = []

    def reader(self) -> FrameReader:
        self._readers.append(FrameReader())
        return self._readers[-1]

    def set(self, max_message_size: int) -> None:
        for reader in self._readers:
            reader.largest = max_message_size + HEADROOM
