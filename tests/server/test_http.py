"""The HTTP server: what its connections may hold, and for how long they may keep others from their turn."""

import asyncio
import gc
import logging
import socket
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from streaming.server.admin import http
from streaming.server.admin.application import MOST_BYTES, Bodies, _header
from streaming.server.admin.http import HttpServer
from streaming.server.server import tls_context
from tests.certificates import Certificate

LARGE = 16 << 20
"""More than a socket buffers (bytes)."""


async def large(request: Request) -> Response:
    return Response(b"x" * LARGE)


async def length(request: Request) -> Response:
    return Response(str(len(await request.body())))


async def bounded(request: Request) -> Response:
    return Response(str(len(await Bodies().of(request))))


async def endless(request: Request) -> Response:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return Response()


class Served:
    """A server on the loop of the test."""

    def __init__(self, tls: Path | None) -> None:
        """`tls`: a file with a key and a certificate."""
        routes = [
            Route("/large", large),
            Route("/endless", endless),
            Route("/bounded", bounded, methods=["POST"]),
            Route("/length", length, methods=["GET", "POST"]),
        ]
        self.listener = socket.create_server(("127.0.0.1", 0))
        context = None if tls is None else tls_context(tls, tls)
        self._tls = None if tls is None else ssl.create_default_context(cafile=tls)
        self.server = HttpServer(Starlette(routes=routes), self.listener, context)

    async def open(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(
            *self.listener.getsockname(), limit=1 << 10, ssl=self._tls
        )
        writer.write(request)
        return reader, writer

    @property
    def connections(self) -> list[Any]:
        return list(self.server._server.server_state.connections)

    def has_answered(self, count: int) -> bool:
        return self.server._server.server_state.total_requests >= count

    @property
    def unread(self) -> int:
        """Bytes of answers that wait."""
        return sum(each.transport.get_write_buffer_size() for each in self.connections)


@pytest.fixture(params=["http", "https"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    if request.param == "http":
        return None
    file = tmp_path / "own.pem"
    file.write_bytes(Certificate("server").pem(with_key=True))
    return file


def run(work: Callable[[Served], Awaitable[None]], tls: Path | None = None) -> None:
    async def main() -> None:
        served = Served(tls)
        await served.server.start()
        try:
            await asyncio.wait_for(work(served), 60)
        finally:
            await served.server.close()

    asyncio.run(main())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_answers_that_nobody_reads_have_a_bound_together(
    monkeypatch: pytest.MonkeyPatch, tls: Path | None
) -> None:
    """The connection that has waited for longest is closed. One answer may be larger than the bound."""
    monkeypatch.setattr(http, "MOST_UNREAD", LARGE)

    async def work(served: Served) -> None:
        clients = []
        for answers in range(1, 7):
            clients.append(await served.open(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n"))
            await until(partial(served.has_answered, answers))
            assert LARGE // 2 < served.unread < 2 * LARGE
        await until(lambda: len(served.connections) == 1)
        last, _ = clients[-1]
        assert len(await last.readexactly(LARGE)) == LARGE
        for _, each in clients:
            each.close()
        await until(lambda: not served.connections and served.unread == 0)

    run(work, tls)


def test_a_connection_that_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch, tls: Path | None) -> None:
    monkeypatch.setattr(http, "UNREAD_SECONDS", 0.05)

    async def work(served: Served) -> None:
        _, writer = await served.open(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: bool(served.connections) and served.unread > 0)
        await until(lambda: not served.connections)
        writer.close()

    run(work, tls)


def test_a_closing_connection_whose_rest_is_not_read_is_closed_at_once(
    monkeypatch: pytest.MonkeyPatch, tls: Path | None
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.05)

    async def work(served: Served) -> None:
        _, writer = await served.open(b"GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        await until(lambda: bool(served.connections) and served.unread > 0)
        await until(lambda: not served.connections)
        writer.close()

    run(work, tls)


def test_a_client_that_reads_slowly_gets_all(monkeypatch: pytest.MonkeyPatch, tls: Path | None) -> None:
    """Though the server would close it if it read nothing for as long as this takes."""
    monkeypatch.setattr(http, "UNREAD_SECONDS", 0.1)
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.1)

    async def work(served: Served) -> None:
        reader, writer = await served.open(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        read = 0
        while read < LARGE:
            got = await reader.read(LARGE // 100)
            assert got, f"cut off after {read} of {LARGE} bytes"
            read += len(got)
        writer.close()

    run(work, tls)


def test_nothing_is_left_of_clients_that_are_gone(tls: Path | None) -> None:
    """Neither of their answers nor of what OpenSSL has for them, until Python collects garbage."""

    def there() -> int:
        return sum(isinstance(each, sslproto.SSLProtocol | ssl.SSLObject) for each in gc.get_objects())

    async def work(served: Served) -> None:
        gc.collect()
        gc.disable()
        before = there()
        try:
            for count in range(1, 6):
                _, writer = await served.open(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
                await until(partial(served.has_answered, count))
                writer.transport.abort()
                del _, writer
            await until(lambda: not served.connections)
            await asyncio.sleep(0.01)
            assert there() <= before + 1
        finally:
            gc.enable()

    run(work, tls)


def test_input_is_parsed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the chunks of a body are, which cost much more than their bytes."""
    parsed: list[int] = []  # bytes by turn of the loop
    received = H11Protocol.data_received

    def noted(protocol: H11Protocol, data: bytes) -> None:
        assert len(data) <= http.PIECE
        parsed[-1] += len(data)
        received(protocol, data)

    monkeypatch.setattr(H11Protocol, "data_received", noted)
    monkeypatch.setattr(http, "PARSE_SECONDS", 0)
    head = b"POST /length HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"

    async def work(served: Served) -> None:
        def turn() -> None:
            parsed.append(0)
            asyncio.get_running_loop().call_soon(turn)

        turn()
        clients = [await served.open(head + body) for _ in range(5)]
        for reader, writer in clients:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(5) == b"20000"
            writer.close()
        assert max(parsed) <= (http._PIECES + 1) * http.PIECE

    run(work)


def test_no_connection_ends_the_turns_of_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    received = H11Protocol.data_received

    def fails(protocol: H11Protocol, data: bytes) -> None:
        if b"bad" in data:
            raise TypeError("of a test")
        received(protocol, data)

    monkeypatch.setattr(H11Protocol, "data_received", fails)
    request = b"POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 10000\r\n\r\n"

    async def work(served: Served) -> None:
        for first in b"bad", b"x", b"bad", b"x":
            reader, writer = await served.open(request + first + b"x" * (10_000 - len(first)))
            if first == b"bad":
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await reader.readuntil(b"\r\n\r\n")
            else:
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.close()

    run(work)
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert ["of a test" in line for line in lines] == [True]


def test_pipelined_requests_are_answered_in_order() -> None:
    async def work(served: Served) -> None:
        bodies = [b"x" * number for number in range(1, 400)]
        requests = [
            b"POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            for body in bodies
        ]
        reader, writer = await served.open(b"".join(requests))
        for body in bodies:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            text = str(len(body)).encode()
            assert await reader.readexactly(len(text)) == text
        writer.close()

    run(work)


def test_a_connection_with_too_much_input_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_INPUT", 10_000)

    async def work(served: Served) -> None:
        request = b"POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n"
        reader, writer = await served.open(request + b"x" * 100_000)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    run(work)


@pytest.mark.parametrize(
    ("text", "value"),
    [("a\n", "a"), (" order 17 ", "order 17"), ("a\tb", "a b"), ("\u202ea", "a"), ("\n", "")],
)
def test_a_header_has_no_space_at_its_ends(text: str, value: str) -> None:
    assert _header(text) == value


def test_what_is_cut_off_at_the_end_is_said_in_our_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "CLOSE_SECONDS", 0.05)

    async def work(served: Served) -> None:
        await served.open(b"GET /endless HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: bool(served.server._server.server_state.tasks))
        await served.server.close()

    run(work)
    said = [each.getMessage() for each in caplog.records]
    assert "requests to the admin API that were not done 0.05 s after the stop, and are refused: 1" in said
    assert not any("task" in each for each in said)


@pytest.mark.parametrize(
    ("length", "status"),
    [
        (b"2", b"200"),
        (b"0002", b"200"),
        (b"%d" % (MOST_BYTES + 1), b"413"),
        (b"9" * 20, b"413"),
        (b"9" * 5000, b"400"),
    ],
)
def test_a_body_that_is_too_large_is_not_waited_for(length: bytes, status: bytes) -> None:
    """Its client asks whether it may send it."""

    async def work(served: Served) -> None:
        head = (
            b"POST /bounded HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: "
            + length
            + b"\r\n\r\n"
        )
        reader, writer = await served.open(head)
        line = await reader.readline()
        if status == b"200":
            assert line.startswith(b"HTTP/1.1 100 ")
            writer.write(b"{}")
            await reader.readline()
            line = await reader.readline()
        assert line.startswith(b"HTTP/1.1 " + status)
        writer.close()

    run(work)
