"""What a client sends, or does not, is no bug: it gets an answer, or its connection ends. Nothing with a traceback is logged."""

import asyncio
import base64
import gc
import http.client
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from streaming.metrics import endpoint
from streaming.metrics.endpoint import Endpoint
from streaming.metrics.query import QueryMetrics
from streaming.protocol import codec
from streaming.protocol.codec import encode, entry
from streaming.record.admin_proxy import AdminProxy
from streaming.record.recording import Recording
from streaming.record.rest import Rest
from streaming.server.admin.http import HttpServer
from streaming.server.authentication import TokenAuthentication
from streaming.server.binary import BinaryServer
from streaming.server.clock import HeldClock
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.server import CONTROL, OPEN, Address, Security, Server, bound
from streaming.ui.application import application as page
from tests.server.test_limits import COMMANDS, TOPIC, Wire, opened, rest, run

NOW = 1_700_000_000_000


@pytest.fixture(autouse=True, scope="module")
def nothing_left_over() -> None:
    """What earlier tests in this process left to be collected is logged before these begin."""
    gc.collect()


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing with a traceback is logged."""
    caplog.set_level(logging.INFO)
    yield
    records = caplog.get_records("call")  # `caplog.records` has those of the teardown here
    # A Spark that an earlier test in this process has stopped is let go of at any time, and says so.
    records = [each for each in records if "py4j" not in each.pathname]
    assert [(each.getMessage(), each.exc_text) for each in records if each.exc_info] == []
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
    ended, free = SimpleQueue[None](), served._server._free.release

    def release() -> None:
        free()
        ended.put(None)

    monkeypatch.setattr(served._server._free, "release", release)
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
                if data.endswith(b"\r\n\r\n"):
                    client.recv(10)
            ended.get(timeout=60)
    finally:
        served.close()


# -- every HTTP port, and every way to use it wrongly

_UPLOAD = "Content-Type: application/json\r\n"
_LENGTHS = ("1000", "-1", "x", "1" * 30, "10, 11", "+5", "")
_LINES = (
    b"\0\xff\xfe", b"GET", b"GET /", b"GET / HTTP/9.9", b"GET / HTTP/1.1 x", b"get / http/1.1", b"\x16\x03\x01\2\0\1\0\1\xfc\3\3", b"GET  HTTP/1.1",
    b"GET * HTTP/1.1", b"GET //[ HTTP/1.1", b"GET http://[::1 HTTP/1.1", b"GET /%ff%fe%00?%zz=%ff&&=;a=\xff HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"PRI * HTTP/2.0",
    b"HEAD / HTTP/1.1", b"OPTIONS / HTTP/1.1", b"BREW / HTTP/1.1", b"GET /" + b"a" * 70_000 + b" HTTP/1.1", b": HTTP/1.1", b"GET @127.0.0.1:1/admin HTTP/1.1",
    b"POST /topics/persistent/public/default/t/partitions/" + b"9" * 5_000 + b" HTTP/1.1", b"GET /magnetar/v1/faults/" + b"9" * 5_000 + b" HTTP/1.1",
)  # fmt: skip
_HEADERS = (
    "A: " + "x" * 70_000, "\r\n".join(f"A{number}: 1" for number in range(3_000)), "A", ": a", " a: b", "A\0: b", "A: \0", "A: ü\x80", "Host: a\r\nHost: b",
    "Host: [", "Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: x", "Connection: close", "Origin: null", "Cookie: " + ";" * 9_000,
    "Authorization: Basic \xff", "If-None-Match: *", "Range: bytes=9-1", "Accept: \xff/*;q=x", "Accept-Encoding: ;;q=,gzip;q=a",
)  # fmt: skip
_CODINGS = (
    ("chunked", b"zz\r\n"), ("chunked", b"5\r\nab"), ("chunked", b"5;" + b"x" * 70_000), ("chunked", b"-5\r\n\r\n"), ("chunked", b"f" * 40 + b"\r\n"),
    ("chunked", b"1\r\nab\r\n"), ("gzip, chunked", b"0\r\n\r\n"), ("gzip", b"x"), ("chunked\r\nContent-Length: 5", b"0\r\n\r\nGET"), ("\x0bchunked", b"0\r\n\r\n"),
)  # fmt: skip


def misuses(path: str) -> dict[str, bytes]:
    """What a client sends to an HTTP port, some of it unfinished. `path`: of something that takes a POST."""
    post = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{_UPLOAD}"
    get = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    whole = f"{post}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    return {
        "nothing": b"",
        **{
            f"{size} bytes of a POST": whole[:size]
            for size in (1, len(post), len(whole) - len(BODY), len(whole) - 1, len(whole))
        },
        "10 of 1000 bytes": f"{post}Content-Length: 1000\r\n\r\n".encode() + b"x" * 10,
        "Expect": f"{post}Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n".encode(),
        "Expect of something else": f"{post}Expect: x\r\nContent-Length: 1000\r\n\r\n".encode(),
        "pipelined": get * 20,
        "pipelined, and then none": get * 3 + b"\r\n" * 9 + b"\xff" * 9,
        "pipelined POSTs": whole * 20 + whole[:-1],
        "a large body": f"{post}Content-Length: {1 << 40}\r\n\r\n".encode() + b"x" * (1 << 17),
        **{
            what: f"{post}Content-Length: {len(body)}\r\n\r\n".encode() + body
            for what, body in (("deep JSON", b"[" * 9000), ("JSON that is not UTF-8", b'{"mode":"\xff"}'))
        },
        **{
            f"length {each}": f"{post}Content-Length: {each}\r\n\r\n".encode() + b"x" * 10
            for each in _LENGTHS
        },
        **{f"line {each[:30]!r}": each + b"\r\nHost: localhost\r\n\r\n" for each in _LINES},
        **{
            f"header {each[:30]!r}": f"GET /metrics HTTP/1.1\r\n{each}\r\n\r\n".encode("latin-1")
            for each in _HEADERS
        },
        **{
            f"coding {name!r} {data[:9]!r}": f"{post}Transfer-Encoding: {name}\r\n\r\n".encode() + data
            for name, data in _CODINGS
        },
    }


@contextmanager
def on_a_loop(enter: Callable[[AsyncExitStack], Awaitable[int]]) -> Iterator[int]:
    """What is entered on a loop in a thread, and the port of it."""
    loop, ready, end = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    ports: list[int] = []

    async def work() -> None:
        async with AsyncExitStack() as stack:
            ports.append(await enter(stack))
            ready.set()
            await end.wait()

    def main() -> None:
        try:
            loop.run_until_complete(work())
        finally:
            ready.set()

    thread = threading.Thread(target=main)
    thread.start()
    try:
        ready.wait()
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


async def _serve(stack: AsyncExitStack, clock: HeldClock | None, security: Security = OPEN) -> int:
    engine = EmbeddedEngine(clock=clock, begins_with=STANDALONE, test_double=True)
    sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
    await stack.enter_async_context(engine)
    server = Server(engine, sockets[0], admin_listener=sockets[1], clock=clock, security=security)
    await stack.enter_async_context(server)
    port: int = sockets[1].getsockname()[1]
    return port


async def _record(stack: AsyncExitStack, folder: Path) -> int:
    recording = stack.enter_context(Recording(folder, {}, "keep"))
    upstream = await _serve(stack, None)
    proxy: Any = None  # for lookups alone
    api = AdminProxy(recording, Rest(f"http://127.0.0.1:{upstream}"), proxy, "http://localhost")
    stack.callback(api.close)
    listener = bound(Address("127.0.0.1", 0), "")
    listener.listen()
    server = HttpServer(api, listener)
    await server.start()
    stack.push_async_callback(server.close)
    port: int = listener.getsockname()[1]
    return port


@contextmanager
def _threads(application: endpoint.WsgiApplication) -> Iterator[int]:
    served = Endpoint("127.0.0.1:0")
    served.start(application)
    try:
        yield int(served.url.rpartition(":")[2])
        while (
            served._server._free._value != endpoint.CONNECTIONS
        ):  # the threads of all connections have ended
            time.sleep(0)
    finally:
        served.close()


def _surface(name: str, folder: Path) -> AbstractContextManager[int]:
    view: Any = SimpleNamespace()
    metrics = QueryMetrics()
    surfaces: dict[str, Callable[[], AbstractContextManager[int]]] = {
        "serve": lambda: on_a_loop(lambda stack: _serve(stack, None)),
        "insecure": lambda: on_a_loop(lambda stack: _serve(stack, None, Security(insecure=True))),
        "token": lambda: on_a_loop(lambda stack: _serve(stack, None, Security(authentication=_TOKENS))),
        "double": lambda: on_a_loop(lambda stack: _serve(stack, HeldClock(NOW))),
        "record": lambda: on_a_loop(lambda stack: _record(stack, folder)),
        "metrics": lambda: _threads(endpoint.application(metrics)),
        "page": lambda: _threads(page(view, elsewhere=endpoint.application(metrics))),
    }
    return surfaces[name]()


_TOKENS = TokenAuthentication.with_secret(f"data:;base64,{base64.b64encode(b'k' * 32).decode()}")
_POSTS = {"double": f"{CONTROL}/clock"}
_POST = "/admin/v2/namespaces/public/default/messageTTL"


def misuse(port: int, data: bytes, end: str) -> None:
    """Send data, and then read what comes, hang up or reset the connection."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(60)
        try:
            client.sendall(data)
            if end == "reads":
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass
        except OSError:
            pass  # the server has closed it
        if end == "resets":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.parametrize("end", ["reads", "closes", "resets"])
@pytest.mark.parametrize("name", ["serve", "double", "record", "metrics", "page"])
def test_http_clients_that_misbehave(
    name: str, end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line at most is logged for each, and the next client gets its answer."""
    monkeypatch.setattr(endpoint._Quiet, "timeout", 0.2)
    monkeypatch.setattr("streaming.server.admin.http.REQUEST_SECONDS", 0.2)
    with _surface(name, tmp_path) as port:
        before = len(caplog.records)
        for done, (what, data) in enumerate(misuses(_POSTS.get(name, _POST)).items(), 1):
            misuse(port, data, end)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/admin/v2/tenants" if name == "record" else "/metrics")
            assert connection.getresponse().status == 200, what
            connection.close()
            # The line of a client that is gone may come a little later.
            assert len(caplog.records) - before <= done, what


_LOCAL = "Host: localhost\r\n"
_HEADS = [
    f"{line} HTTP/1.1\r\n{headers}"
    for lines, ways in (
        ((f"POST {_POST}", "POST /nowhere", "PATCH /admin/v2/tenants", "POST /metrics", "GET /metrics", "HEAD /healthz", "HEAD /nowhere", "GET /",
          "POST @/admin", "GET /admin/v2/tenants", f"POST {CONTROL}/clock", f"PUT {CONTROL}/nowhere", "POST /topics/persistent/public/default/t",
          "GET /admin/v2/worker/cluster", "POST /admin/v3/functions/public/default/f"), (_LOCAL,)),
        ((f"POST {_POST}", "GET /nowhere", "GET /metrics"),
         ("Host: x\r\n", *(f"{_LOCAL}{each}\r\n" for each in ("Origin: http://evil.example", "Expect: 100-continue", "Connection: close")))),
    )
    for line in lines
    for headers in ways
]  # fmt: skip
"""Of requests that something answers before it has read the body."""
_CHUNKED, _FIVE = "Transfer-Encoding: chunked\r\n\r\n", "Content-Length: 5\r\n\r\n"
_BODIES = [
    (_CHUNKED, b"", b"ZZ\r\n"), (_CHUNKED, b"", b"5\r\nab"), (_CHUNKED, b"20\r\n" + b"x" * 32 + b"\r\n", b"ZZ\r\n"), (_CHUNKED, b"", b"0\r\n: x\r\n\r\n"),
    (_CHUNKED, b"", b"0\r\n\r\n\0\r\n\r\n"), (_FIVE, b"", b"ab"), (_FIVE, b"abcd", b"e\0\r\n\r\n"),
    (_FIVE, b"", b"abcdeGET /metrics HTTP/1.1\r\nHost: x\r\n" + _CHUNKED.encode() + b"Z\r\n"),
]  # fmt: skip
"""How a body is sent, how it begins, and how it goes on."""
_ANSWERS = {
    "serve": {200, 403, 404, 405, 409, 413}, "token": {200, 401}, "insecure": {200, 404, 405, 409, 413}, "double": {200, 403, 404, 405, 409, 413},
    "record": {413}, "metrics": {200, 404, 405}, "page": {200, 403, 404, 405},
}  # fmt: skip
"""What comes before a body is read."""


@pytest.mark.parametrize("name", _ANSWERS)
def test_answers_to_requests_whose_bodies_are_no_bodies(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come at once, or go on when they are answered."""
    monkeypatch.setattr("streaming.server.admin.http.REQUEST_SECONDS", 0.1)
    monkeypatch.setattr("streaming.server.admin.application.MOST_BYTES", 3)
    monkeypatch.setattr("streaming.record.admin_proxy.MOST_BYTES", 3)
    early = set[int]()
    with _surface(name, tmp_path) as port:
        before, done = len(caplog.records), 0
        for head in _HEADS:
            for framing, first, tail in _BODIES:
                for late in (False, True):
                    done += 1
                    sent = f"{head}{_UPLOAD}{framing}".encode() + first
                    with (
                        suppress(ConnectionError),  # the server has closed it
                        socket.create_connection(("127.0.0.1", port), timeout=60) as client,
                    ):
                        client.sendall(sent if late else sent + tail)
                        if late:
                            status = client.recv(1 << 16).split()
                            early.update(int(status[1]) for _ in status[:1])
                            client.sendall(tail)
                        with suppress(OSError):
                            client.shutdown(socket.SHUT_WR)
                        while client.recv(1 << 16):
                            pass
                    assert len(caplog.records) - before <= done, (sent, tail)
    assert early - {100} == _ANSWERS[name]


_BEGINNINGS = {
    "Host": ("", "127.0.0.1", "["), "Origin": ("", "http://", "http://127.0.0.1"), "Referer": ("", "http://"), "Content-Type": ("", "text/plain;"),
    "Accept": ("", "text/plain;version=", "application/openmetrics-text;version="), "Accept-Encoding": ("", "gzip;"), "Authorization": ("", "Bearer "),
    "Range": ("", "bytes="), "Upgrade": ("", "websocket"),
    **dict.fromkeys(("Sec-Fetch-Site", "Sec-Fetch-Mode", "Cookie", "Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "If-None-Match",
                     "User-Agent"), ("",)),
}  # fmt: skip
"""Headers that something may parse, and how what it parses begins."""
_PIECES = (
    "http://",
    "[",
    "]",
    "::1",
    "a",
    ":",
    "80",
    "@",
    "/",
    "?",
    "%zz",
    ";",
    ",",
    "=",
    "\t",
    '"',
    "\xff",
    "-1",
    "9" * 30,
    "null",
    "1.0.0",
    ".",
    "x",
    "q=",
)
_TARGETS = (
    "/metrics",
    "/healthz",
    "/",
    "/nowhere",
    "/admin/v2/tenants",
    "/lookup/v2/topic/persistent/public/default/t",
)


@pytest.mark.parametrize("name", ["serve", "insecure", "double", "record", "metrics", "page"])
def test_headers_of_any_value(name: str, tmp_path: Path) -> None:
    """They are no error of the server's."""
    targets = _TARGETS[:-1] if name == "record" else _TARGETS  # that proxy has no address for lookups
    chance = Random(name)
    with _surface(name, tmp_path) as port:
        for header, beginnings in _BEGINNINGS.items():
            for beginning in beginnings:
                for target in targets * 5:
                    value = beginning + "".join(chance.choices(_PIECES, k=chance.randrange(4)))
                    lines = {"Host": "localhost", header: value, "Connection": "close"}
                    asked = f"GET {target} HTTP/1.1\r\n" + "".join(f"{a}: {b}\r\n" for a, b in lines.items())
                    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                        client.sendall(f"{asked}\r\n".encode("latin-1"))
                        status = client.makefile("rb").readline()
                    assert 100 < int(status.split()[1]) < 500, asked


def asked(port: int, line: str, headers: str = "Host: localhost\r\n") -> int:
    """The status of the answer to a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(f"{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n".encode())
        return int(client.makefile("rb").readline().split()[1])


@pytest.mark.parametrize(
    "path", ["/admin/v2/clusters", "/metrics", "/healthz", f"{CONTROL}/clock", "/admin/v2/tenants?x=http://y"]
)
def test_a_target_may_name_the_server(path: str) -> None:
    """RFC 9112 §3.2.2. Its name counts, and not that in Host."""
    with on_a_loop(lambda stack: _serve(stack, HeldClock(NOW))) as port:
        assert asked(port, f"GET http://localhost:{port}{path}") == 200
        assert asked(port, f"GET http://evil.example{path}") == 403
        assert asked(port, f"GET http://localhost{path}", "Host: evil.example\r\n") == 200


@pytest.mark.parametrize("name", ["serve", "metrics"])
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_what_only_shows_something_takes_nothing_else(name: str, path: str, tmp_path: Path) -> None:
    with _surface(name, tmp_path) as port:
        assert asked(port, f"GET {path}") in (200, 503)
        assert {asked(port, f"{method} {path}") for method in ("POST", "PUT", "DELETE", "PATCH")} == {405}


def test_a_recording_proxy_asks_its_broker_alone(tmp_path: Path) -> None:
    """A target without a slash, after the broker's address, would be that of another host."""
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        on_a_loop(lambda stack: _record(stack, tmp_path)) as port,
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.putrequest("GET", f"@127.0.0.1:{other.getsockname()[1]}/secret")
        connection.endheaders()
        assert connection.getresponse().status == 400
        connection.close()
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.mark.parametrize("body", [b"{", b'{"x":"\xff"}', b"[" * 9000])
def test_a_recording_proxy_lets_the_broker_answer_a_body_that_is_no_json(body: bytes, tmp_path: Path) -> None:
    with on_a_loop(lambda stack: _record(stack, tmp_path)) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", _POST, body)
        answer = connection.getresponse()
        assert answer.status == 400
        assert answer.read().startswith(b'{"reason":"the body ')
        connection.close()


def test_http_connections_that_only_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take the open files that clients of the binary protocol need. Whoever asks has an answer meanwhile."""
    monkeypatch.setattr("streaming.server.admin.http.MOST_OPEN", 5)
    with on_a_loop(lambda stack: _serve(stack, None)) as port:
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        try:
            clients[-1].sendall(b"GET /admin/v2/tenants HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in clients[-1].recv(1 << 12)
            for client in clients[:15]:
                client.settimeout(20)
                with suppress(ConnectionResetError):
                    assert client.recv(1) == b""
        finally:
            for client in clients:
                client.close()
