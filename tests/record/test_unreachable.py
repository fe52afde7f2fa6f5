"""Brokers that can't be reached: each is tried once, and again after some time, whatever waits for it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.protocol.codec import encode
from streaming.record import client, rest, unreachable
from streaming.record.client import BrokerUnreachable, Reader
from streaming.record.rest import CallFailed, Rest
from streaming.record.unreachable import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Unreachable
from tests.record.test_record import Scripted, connected

pytestmark = pytest.mark.feature("K3")


class Clock:
    """A clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(unreachable, "time", self)

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("threads", [1, 8])
def test_the_time_between_two_tries_doubles(seed: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often and by how many threads at a time somebody asks."""
    clock, draw, known, tries = Clock(monkeypatch), Random(seed), Unreachable(), list[float]()
    while len(tries) < 9:
        trying = sum(known.why("broker") is None for _ in range(threads))
        assert trying in ((threads,) if not tries else (0, 1))
        for _ in range(trying):
            known.failed("broker", "why")
        tries += [clock.now] * bool(trying)
        clock.now += draw.random()
        assert known.why("other") is None
    gaps = [after - before for before, after in pairwise(tries)]
    pauses = [min(FIRST_PAUSE_SECONDS * 2**number, LONGEST_PAUSE_SECONDS) for number in range(8)]
    assert all(pause <= gap <= pause + 1 for gap, pause in zip(gaps, pauses, strict=True))
    clock.now += LONGEST_PAUSE_SECONDS
    assert [known.why("broker"), known.why("broker")] == [None, "why"]
    known.reached("broker")
    assert [known.why("broker"), known.why("broker")] == [None, None]


def redirecting(url: Callable[[str], str]) -> Callable[[Any], list[bytes]]:
    """A broker's answers that name the broker of a topic."""

    def answers(frame: Any) -> list[bytes]:
        if frame.cmd != "LOOKUP":
            return connected(frame)
        fields = {"request_id": frame.fields["request_id"], "response": "Connect", "brokerServiceUrl": url(frame.fields["topic"])}  # fmt: skip
        return [encode("LOOKUP_RESPONSE", fields)]

    return answers


@pytest.mark.parametrize("first_is_silent", [True, False])
def test_a_silent_broker_is_connected_once(first_is_silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, and does not answer. A later reader knows, until it is time to try again."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(client, "_CONNECT_SECONDS", 0.1)
    silent = Scripted(lambda _: [])
    first = silent if first_is_silent else Scripted(redirecting(lambda _: silent.url))
    known = Unreachable()
    for tries, seconds in ((1, FIRST_PAUSE_SECONDS / 2), (1, FIRST_PAUSE_SECONDS / 2), (2, 0)):
        with Reader(first.url, unreachable=known) as reader:
            for topic in "abcd":
                with pytest.raises(BrokerUnreachable) as caught:
                    next(reader.entries(topic))
                assert caught.value.broker == silent.url
        assert silent.got == ["CONNECT"] * tries
        clock.now += seconds
    for each in {first, silent}:
        each.close()


@contextmanager
def answering(
    answer: Callable[[str], tuple[int, dict[str, str], bytes] | None],
    connections: set[Any] | None = None,
    *,
    closes: bool = False,
) -> Iterator[str]:
    """The URL of an HTTP server. None: it does not answer before the block ends. `connections` gets the clients' addresses. `closes`: it
    closes a connection after each answer, without saying so."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if connections is not None:
                connections.add(self.client_address)
            found = answer(self.path)
            if found is None:
                ended.wait(60)
                self.close_connection = True
                return
            status, headers, body = found
            self.send_response(status)
            if "Transfer-Encoding" in headers:
                body = b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\n\r\n"
            else:
                headers = {**headers, "Content-Length": str(len(body))}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            if closes:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_calls_that_are_redirected_to_a_silent_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that other brokers answer go on."""
    clock, asked = Clock(monkeypatch), list[str]()
    monkeypatch.setattr(rest, "_SECONDS", 0.1)

    def silent(path: str) -> None:
        asked.append(path)

    with answering(silent) as silent_url:

        def first(path: str) -> tuple[int, dict[str, str], bytes]:
            return (307, {"Location": silent_url + path}, b"") if "silent" in path else (200, {}, b"{}")

        with answering(first) as url:
            api = Rest(url)
            for tries in (1, 2):
                for number in range(3):
                    with pytest.raises(CallFailed, match="can't be reached") as caught:
                        api.get(f"/silent/{number}")
                    assert caught.value.status == 502
                    assert api.get("/other") == {}
                assert len(asked) == tries
                clock.now += FIRST_PAUSE_SECONDS


@pytest.mark.parametrize("redirects", [0, 1, 3])
def test_redirects_are_requests_of_the_rate(redirects: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, asked = list[float](), list[str]()
    monkeypatch.setattr(rest, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: 1.0))

    def answer(path: str) -> tuple[int, dict[str, str], bytes]:
        asked.append(path)
        left = redirects - path.count("x")
        return (307, {"Location": f"{path}x"}, b"") if left > 0 else (200, {}, b"{}")

    with answering(answer) as url:
        api = Rest(url, rate=10)
        for _ in range(3):
            assert api.get("/a") == {}
    assert len(asked) == api.calls == 3 * (1 + redirects)
    assert pauses == pytest.approx([number / 10 for number in range(1, len(asked))])


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("closes", ["never", "at once", "says so", "unread"])
def test_connections_are_kept(chunked: bool, closes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a broker says that it closes one. One that it closes without a word is none too many."""
    connections, asked = set[Any](), list[str]()
    headers = {"Connection": "close"} if closes == "says so" else {}
    if closes == "unread":
        monkeypatch.setattr(rest, "_MOST_BYTES", 1)
    if chunked:
        headers["Transfer-Encoding"] = "chunked"

    def answer(path: str) -> tuple[int, dict[str, str], bytes]:
        asked.append(path)
        return (
            (307, {"Location": f"{path}x", **headers}, b"moved")
            if "x" not in path
            else (200, headers, b"{}        ")
        )

    with answering(answer, connections, closes=closes == "at once") as url:
        api = Rest(url)
        for _ in range(5):
            if closes == "unread":
                with pytest.raises(CallFailed, match="more than"):
                    api.get("/a")
            else:
                assert api.get("/a") == {}
    assert len(asked) == 10
    assert len(connections) == {"never": 1, "at once": 10, "says so": 10, "unread": 5}[closes]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"", r"GET /a: 401 \(the token is missing or not valid, or lacks a right: --token-file\)$"),
        (403, b'{"reason": "no"}', r"GET /a: 403 no \(the token .* lacks a right"),
        (
            404,
            b"<html>",
            r"GET /a: 404 \(http://.* does not answer as Pulsar's admin API does: is it one\?\)$",
        ),
        (404, b'{"reason": "Topic not found"}', r"GET /a: 404 Topic not found$"),
        (503, b"", r"GET /a: 503$"),
    ],
)
def test_an_error_says_what_to_look_at(status: int, body: bytes, words: str) -> None:
    with answering(lambda _: (status, {}, body)) as url, pytest.raises(CallFailed, match=words):
        Rest(url).get("/a")
