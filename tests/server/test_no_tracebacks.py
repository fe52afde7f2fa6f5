"""What a client sends, or does not, is no bug: it gets an answer, or its connection ends. Nothing with a traceback is logged."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from streaming.metrics import endpoint
from streaming.metrics.endpoint import Endpoint
from streaming.protocol import codec
from streaming.protocol.codec import encode, entry
from streaming.server.binary import BinaryServer
from streaming.server.clock import HeldClock
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.server import CONTROL, Address, Server, bound
from tests.server.test_limits import COMMANDS, TOPIC, Wire, opened, rest, run

NOW = 1_700_000_000_000


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing with a traceback is logged."""
    caplog.set_level(logging.INFO)
    yield
    assert [(each.getMessage(), each.exc_text) for each in caplog.records if each.exc_info] == []
    assert "Traceback" not in "".join(capfd.readouterr())


# -- frames


def full(message: Descriptor, depth: int = 2) -> dict[str, Any]:
    """All fields of a message, those in other messages, too."""
    return {
        field.name: [value] if field.is_repeated else value
        for field in message.fields
        if (value := _value(field, depth)) is not None
    }


def _value(field: FieldDescriptor, depth: int) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[0].name
    if field.message_type is not None:
        return full(field.message_type, depth - 1) if depth else None
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"x"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return {"topic": TOPIC, "namespace": "public/default"}.get(field.name, "s")
    return True if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else 1


def without(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The fields without each of them, those in other messages, too."""
    for name, value in fields.items():
        yield {other: fields[other] for other in fields if other != name}
        inner = value[0] if isinstance(value, list) else value
        if isinstance(inner, dict):
            for each in without(inner):
                yield {**fields, name: [each] if isinstance(value, list) else each}


def partial(cmd: str, fields: dict[str, Any], tail: bytes = b"") -> bytes:
    """A frame whose command may lack fields that it must have."""
    known = codec._BY_NAME[cmd]
    base = codec._Base(**{"type": known.number, known.field: codec._raw(fields, known.table)})
    body: bytes = base.SerializePartialToString()
    return codec._SIZES.pack(4 + len(body) + len(tail), len(body)) + body + tail


def variants(cmd: str) -> Iterator[bytes]:
    """A frame with all fields and with none, without each, and with what may follow a command: whole, damaged and cut off."""
    fields = full(COMMANDS[cmd])
    for each in (fields, {}, *without(fields)):
        yield partial(cmd, each)
    metadata = full(codec._METADATA)
    tail = entry({**metadata, "compression": "NONE"}, b"x" * 10)
    for each in (fields, *without(fields)):
        yield partial(cmd, each, tail)
    yield partial(cmd, fields, tail[:-1] + b"?")
    yield partial(cmd, {}, tail[:-1] + b"?")
    for length in range(len(tail)):
        yield partial(cmd, fields, tail[:length])


@pytest.mark.parametrize("cmd", COMMANDS)
def test_frames_that_lack_something(cmd: str) -> None:
    failures: list[dict[str, Any]] = []

    async def work(server: BinaryServer) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        wire: Wire | None = None
        for data in variants(cmd):
            if wire is None or wire.is_closing():
                wire = await opened(server)
            wire.protocol.data_received(data)
            for _ in range(3):
                await asyncio.sleep(0)
            server.engine.broker  # type: ignore[attr-defined]  # noqa: B018  # folds what is pending
            wire.read()
            if len(server.connections) > 5:
                await rest(server)
        await rest(server)
        other = await opened(server)
        other.protocol.data_received(encode("PING", {}))
        assert encode("PONG", {}) in other.read()

    run(work)
    assert failures == []


# -- HTTP

BODY = b'{"messages": [{"payload": "x"}]}'
REQUESTS = [
    f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    + BODY
    for method, path in (
        ("POST", "/topics/persistent/public/default/t"),
        ("POST", "/admin/v2/namespaces/public/default/messageTTL"),
        ("PUT", "/admin/v2/persistent/public/default/t/partitions"),
        ("POST", f"{CONTROL}/clock"),
        ("POST", f"{CONTROL}/faults"),
        ("GET", "/metrics"),
    )
]


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_http_clients_that_hang_up_anywhere(reset: bool) -> None:
    failures: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        clock = HeldClock(NOW)
        engine = EmbeddedEngine(clock=clock, begins_with=STANDALONE)
        sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
        address = sockets[1].getsockname()
        async with engine, Server(engine, sockets[0], admin_listener=sockets[1], clock=clock):
            for request in REQUESTS:
                for length in (3, len(request) - len(BODY), len(request) - 5, len(request)):
                    _, writer = await asyncio.open_connection(*address)
                    writer.write(request[:length])
                    await writer.drain()
                    await asyncio.sleep(0)
                    if reset:
                        linger = b"\1\0\0\0\0\0\0\0"
                        writer.get_extra_info("socket").setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, linger
                        )
                    writer.close()
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /admin/v2/tenants HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b"200" in await reader.read()

    asyncio.run(main())
    assert failures == []


def test_clients_of_the_page_that_say_nothing_or_do_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection, half a request, and one that hangs up before a large answer has gone."""
    monkeypatch.setattr(endpoint._Quiet, "timeout", 0.05)
    body = b"x" * (16 << 20)

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    served = Endpoint("127.0.0.1:0")
    served.start(application)
    address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
    try:
        for data in (
            b"",
            b"GET",
            b"GET / HTTP/1.1\r\nHost: ",
            b"GET / HTTP/1.1\r\n\r\n",
            b"x" * 70_000,
            b"\r\n" * 9,
        ):
            with socket.create_connection(address) as client:
                client.sendall(data)
                while served._server._free._value == endpoint.CONNECTIONS:
                    time.sleep(0)
                if data.endswith(b"\r\n\r\n"):
                    client.recv(10)
            while served._server._free._value != endpoint.CONNECTIONS:  # its thread has ended
                time.sleep(0)
    finally:
        served.close()
