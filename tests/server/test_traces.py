"""Every recorded trace goes through sockets: the server sends the frames that a real Pulsar sent."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.commands import AnyCommand, MessageMetadata, Publish, decode
from schemas.effects import Row
from streaming.protocol.codec import Frame, FrameReader, encode, entry
from streaming.protocol.codec import decode as decode_frame
from streaming.server.clock import HeldClock
from streaming.server.embedded import EmbeddedEngine
from streaming.server.server import Address, Server, bound
from streaming.traces import RECORDED
from streaming.traces.conform import compare, known_gaps
from streaming.traces.session import Session, SessionRecord
from streaming.traces.trace import Trace, read_trace

TRACES = sorted(RECORDED.glob("*.jsonl"))


class Client:
    """A client's connection, which reads what has come when it is asked to."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name, self._reader, self._writer = name, reader, writer
        self._frames = FrameReader()
        self.open = True

    def send(self, cmd: str, fields: dict[str, Any], tail: bytes = b"") -> None:
        self._writer.write(encode(cmd, fields, tail))

    async def read(self) -> list[Frame]:
        """The frames up to the answer to a PING that is sent now."""
        self.send("PING", {})
        found: list[Frame] = []
        while self.open:
            data = await self._reader.read(1 << 16)
            if not data:
                self.open = False
                return [*found, Frame(self.name, "_TCP_CLOSE", {})]
            for each in self._frames.feed(data):
                if (frame := decode_frame(each, self.name)).cmd == "PONG":
                    return found
                found.append(frame)
        return found

    def close(self) -> None:
        self.open = False
        self._writer.close()


class StoredEntries(dict[tuple[str, int, int], tuple[MessageMetadata, bytes]]):
    """The metadata and payloads of an engine's entries by position."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine

    def __getitem__(self, position: tuple[str, int, int]) -> tuple[MessageMetadata, bytes]:
        entry = self._engine.entry(*position)
        return entry.metadata, entry.payload


class SocketSession(Session):
    """A session that feeds the trace to a server, each recorded connection through a socket of its own."""

    def __init__(self, trace: Trace, loop: asyncio.AbstractEventLoop, clock: HeldClock) -> None:
        super().__init__(trace)
        self._loop, self._clock = loop, clock
        self._clients: dict[str, Client] = {}

    async def start(self) -> None:
        self._engine = await EmbeddedEngine(clock=self._clock).__aenter__()
        self._server = await Server(self._engine, bound(Address("127.0.0.1", 0), "")).__aenter__()
        self.broker = self._engine.broker
        self._stored = StoredEntries(self._engine)

    async def stop(self) -> None:
        for client in self._clients.values():
            client.close()
        await self._server.__aexit__()
        await self._engine.__aexit__()

    def _feed(self, command: SessionRecord, record: dict[str, Any]) -> SessionRecord:
        self._loop.run_until_complete(self._exchange(command, record))
        return command

    def _answer_as_gateway(self, connection: str, name: str, fields: dict[str, Any]) -> None:
        self._loop.run_until_complete(self._ask(connection, name, fields, b""))

    async def _exchange(self, command: SessionRecord, record: dict[str, Any]) -> None:
        self._clock.move_to(command.timestamp)
        value = dict(command.value)
        name, connection = value.pop("command"), value.pop("connection", "")
        if name == "CONNECTION_LOST":
            self._clients.pop(connection).close()
            while len(self._server.binary.connections) > sum(each.open for each in self._clients.values()):
                await asyncio.sleep(0)
            await self._read_all()
        elif not connection:
            rows = await self._engine.submit(command.topic, self._decoded(command))
            for row in rows:
                self._take(row, record)
            await self._read_all()
        else:
            tail = b""
            if name == "SEND":
                tail = entry(value.pop("metadata"), value.pop("payload_bytes"))
            if "topic" in record.get("fields", {}):
                value["topic"] = record["fields"]["topic"]
            await self._ask(connection, name, value, tail)

    def _take(self, row: Row, record: dict[str, Any]) -> None:
        if not getattr(row.effect, "connection", ""):  # the others come as frames
            super()._take(row, record)

    def _decoded(self, command: SessionRecord) -> AnyCommand:
        decoded = decode(msgspec.json.encode(command.value))
        assert not isinstance(decoded, Publish)
        return decoded

    async def _ask(self, connection: str, name: str, fields: dict[str, Any], tail: bytes) -> None:
        if name in ("PING", "PONG"):
            return
        if (client := self._clients.get(connection)) is None:
            host, port = self._server.address
            client = Client(connection, *await asyncio.open_connection(host, port))
            self._clients[connection] = client
            if name != "CONNECT":
                client.send("CONNECT", {"client_version": "test", "protocol_version": 21})
                await client.read()
        client.send(name, fields, tail)
        await self._read_all()

    async def _read_all(self) -> None:
        for _ in range(2):  # what a client sent may concern the others
            for client in self._clients.values():
                if client.open:
                    for frame in await client.read():
                        if frame.cmd != "PING":
                            # as in a trace: bytes in base64
                            fields, metadata = msgspec.to_builtins((frame.fields, frame.metadata))
                            self._answer(frame._replace(fields=fields, metadata=metadata))
            assert self._engine.broker is not None  # everything that came is folded


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.mark.feature("K1")
@pytest.mark.parametrize("path", TRACES, ids=[path.stem for path in TRACES])
def test_trace_through_sockets(path: Path, loop: asyncio.AbstractEventLoop) -> None:
    trace = read_trace(path)
    session = SocketSession(trace, loop, HeldClock(int(trace.records[0]["t"])))
    loop.run_until_complete(session.start())
    try:
        verdict = compare(session)
    finally:
        loop.run_until_complete(session.stop())
    assert verdict.frames > 0
    if path.stem in known_gaps():
        pytest.xfail(known_gaps()[path.stem])
    assert verdict.differences == []
