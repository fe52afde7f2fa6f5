"""Brokers that can't be reached: each is tried once, and again after some time, whatever waits for it."""

import operator
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.protocol.codec import encode, entry
from streaming.protocol.frames import MINUS_ONE
from streaming.record import client, rest, unreachable
from streaming.record.client import BrokerUnreachable, Reader, ReadFailed, Unanswered
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
    monkeypatch.setattr(client, "_CONNECT_SECONDS", 1.0)
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


STAGES = ["LOOKUP", "SUBSCRIBE", "GET_LAST_MESSAGE_ID", "FLOW"]
"""What a reader sends to read a topic that has entries."""


def falling_silent(at: str, *, pongs: bool = False) -> Scripted:
    """A broker that serves topics without entries, and those whose name begins with "bad" up to a stage. `pongs`: it answers PING. What it has not
    answered it answers later, wrongly: before the next answer."""
    topics, late = dict[int, str](), list[bytes]()

    def answered(frame: Any) -> bytes:
        fields = {"request_id": frame.fields.get("request_id", 0)}
        match frame.cmd:
            case "LOOKUP":
                fields |= {"response": "Connect", "brokerServiceUrl": broker.url}
                return encode("LOOKUP_RESPONSE", fields)
            case "SUBSCRIBE":
                topics[frame.fields["consumer_id"]] = frame.fields["topic"]
                return encode("SUCCESS", fields)
            case "GET_LAST_MESSAGE_ID":
                is_bad = topics[frame.fields["consumer_id"]].startswith("bad")
                last = {"ledgerId": 5, "entryId": 0 if is_bad else MINUS_ONE}
                return encode("GET_LAST_MESSAGE_ID_RESPONSE", {**fields, "last_message_id": last})
        return b""

    def answers(frame: Any) -> list[bytes]:
        if frame.cmd not in STAGES:
            return [encode("PONG", {})] if frame.cmd == "PING" and pongs else connected(frame)
        topic = frame.fields.get("topic") or topics[frame.fields["consumer_id"]]
        if topic.startswith("bad") and frame.cmd == at:
            if at != "FLOW":
                id_ = frame.fields["request_id"]
                late.append(encode("ERROR", {"request_id": id_, "error": "UnknownError", "message": "late"}))
            return []
        found = [*late, answered(frame)]
        late.clear()
        return found

    broker = Scripted(answers)
    return broker


@pytest.mark.parametrize("at", STAGES)
def test_a_broker_that_says_nothing_any_more_is_asked_once(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was connected. Again as one that can't be reached: after a time that doubles, although it takes connections."""
    clock, known, broker = Clock(monkeypatch), Unreachable(), falling_silent(at)
    monkeypatch.setattr(client, "_CONNECT_SECONDS", 1.0)
    for tries, seconds in (
        (1, FIRST_PAUSE_SECONDS),
        (2, FIRST_PAUSE_SECONDS),
        (2, FIRST_PAUSE_SECONDS),
        (3, 0),
    ):
        with Reader(of_all(refusing("pulsar"), broker.url), unreachable=known) as reader:
            for number in range(4):
                with pytest.raises(BrokerUnreachable, match="does not answer") as caught:
                    next(reader.entries(f"bad{number}"))
                assert caught.value.broker == broker.url
        assert broker.got.count("CONNECT") == broker.got.count(at) == broker.got.count("PING") == tries
        clock.now += seconds
    broker.close()


def test_a_broker_that_sends_the_same_entry_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic waits for so long, and no longer."""
    monkeypatch.setattr(client, "_SECONDS", 0.3)
    metadata = {"producer_name": "p", "sequence_id": 0, "publish_time": 1}
    id_ = {"ledgerId": 5, "entryId": 0}

    def answers(frame: Any) -> list[bytes]:
        if frame.cmd == "FLOW":
            fields = {"consumer_id": frame.fields["consumer_id"], "message_id": id_}
            return [encode("MESSAGE", fields, entry(metadata, b"x"))] * frame.fields["messagePermits"]
        if frame.cmd == "GET_LAST_MESSAGE_ID":
            last = {
                "request_id": frame.fields["request_id"],
                "last_message_id": {"ledgerId": 5, "entryId": 1},
            }
            return [encode("GET_LAST_MESSAGE_ID_RESPONSE", last)]
        if frame.cmd == "SUBSCRIBE":
            return [encode("SUCCESS", {"request_id": frame.fields["request_id"]})]
        return redirecting(lambda _: broker.url)(frame)

    broker = Scripted(answers)
    with Reader(broker.url) as reader:
        entries = reader.entries("t")
        assert next(entries).payload == b"x"
        with pytest.raises(Unanswered, match="t: the broker sends nothing new"):
            next(entries)
    broker.close()


@pytest.mark.parametrize("at", STAGES)
def test_topics_that_a_broker_does_not_serve_do_not_hold_up_others(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker answers, but nothing about them. The more there are, the less each of them may take."""
    broker, patience = falling_silent(at, pongs=True), list[float]()
    monkeypatch.setattr(client, "_SECONDS", 2)
    monkeypatch.setattr(client, "_LEAST_SECONDS", 0.5)
    with Reader(broker.url) as reader:
        for number in range(4):
            begun = time.monotonic()
            with pytest.raises(Unanswered):
                next(reader.entries(f"bad{number}"))
            patience.append(time.monotonic() - begun)
            assert [*reader.entries(f"good{number}")] == []
    assert broker.got.count("CONNECT") == 1
    assert all(map(operator.ge, patience, [2, 1, 0.5, 0.5]))
    assert min(patience) < 1
    broker.close()


@contextmanager
def answering(
    answer: Callable[[str], tuple[int, dict[str, str], bytes] | None],
    connections: set[Any] | None = None,
    *,
    closes: bool = False,
) -> Iterator[str]:
    """The URL of an HTTP server. None: it does not answer before the block ends; status 0: it closes the connection instead. `connections` gets the clients' addresses. `closes`: it
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
            if not status:
                self.close_connection = True
                return
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

        do_POST = do_GET

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
    monkeypatch.setattr(rest, "_SECONDS", 1.0)

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


def refusing(scheme: str) -> str:
    """The URL of a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"{scheme}://127.0.0.1:{found.getsockname()[1]}"


def of_all(*urls: str) -> str:
    """The URL that names the brokers of all."""
    return ",".join([urls[0], *(each.partition("://")[2] for each in urls[1:])])


@pytest.mark.parametrize("seed", range(10))
def test_calls_go_to_a_broker_that_can_be_reached(seed: int) -> None:
    """Of a URL with several, as long as there is one; always to the same, as long as it can be."""
    draw, up, asked = Random(seed), [True] * 3, list[int]()

    def answers(number: int) -> Any:
        def answer(_: str) -> tuple[int, dict[str, str], bytes]:
            asked.append(number)
            return (200, {}, b"{}") if up[number] else (0, {}, b"")

        return answer

    with ExitStack() as stack:
        urls = [stack.enter_context(answering(answers(number))) for number in range(3)]
        api = Rest(of_all(refusing("http"), *urls))
        before = None
        for _ in range(30):
            up[:] = [draw.random() < 0.5 for _ in up]
            if any(up):
                assert api.get("/a") == {}
                assert up[asked[-1]]
                assert before is None or not up[before] or before == asked[-1]
                before = asked[-1]
            else:
                with pytest.raises(CallFailed, match="can't be reached: .*; .*; .*; ") as caught:
                    api.get("/a")
                assert "refused" in str(caught.value)
                assert caught.value.status is None
                before = None


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("is_silent", [True, False])
def test_a_broker_of_the_url_that_says_nothing(
    is_silent: bool, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to something else: another one is asked. If it is a single call that it does not answer, others go on."""
    monkeypatch.setattr(rest, "_SECONDS", 1.0)
    monkeypatch.setattr(rest, "_CONNECT_SECONDS", 1.0)

    def first(path: str) -> tuple[int, dict[str, str], bytes] | None:
        return None if is_silent or "slow" in path else (200, {}, b"{}")

    with answering(first) as url, answering(lambda _: (200, {}, b"{}")) as other:
        api = Rest(of_all(url, *[other] * several))
        for _ in range(2):
            if is_silent and several:
                assert api.get("/slow") == {}
            else:
                with pytest.raises(CallFailed) as caught:
                    api.get("/slow")
                assert caught.value.status == (None if is_silent else rest.INCOMPLETE)
        if not is_silent:
            assert api.get("/other") == {}
        assert api.calls == (4 if is_silent else 5)


@pytest.mark.parametrize(("method", "both"), [("GET", True), ("POST", False)])
def test_what_a_broker_may_have_done_is_not_asked_of_another(method: str, both: bool) -> None:
    asked = list[int]()

    def answers(number: int) -> Any:
        def answer(_: str) -> tuple[int, dict[str, str], bytes]:
            asked.append(number)
            return (number * 200, {}, b"")

        return answer

    with answering(answers(0)) as first, answering(answers(1)) as second:
        api = Rest(of_all(refusing("http"), first, second))
        for _ in range(2):
            with nullcontext() if both else pytest.raises(CallFailed, match="can't be reached"):
                api.call(method, "/a")
    assert asked == ([0, 1, 1] if both else [0, 0])


@pytest.mark.parametrize("kind", ["refuses", "is silent", "closes"])
def test_lookups_go_to_a_broker_that_can_be_reached(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a URL with several. The others are not tried by each reader."""
    monkeypatch.setattr(client, "_CONNECT_SECONDS", 1.0)
    owner, known, asked = refusing("pulsar"), Unreachable(), list[str]()

    def closing(_: Any) -> list[bytes]:
        raise ConnectionError

    def named(topic: str) -> str:
        asked.append(topic)
        return owner

    away = None if kind == "refuses" else Scripted(closing if kind == "closes" else lambda _: [])
    first = Scripted(redirecting(named))
    urls = of_all(refusing("pulsar") if away is None else away.url, refusing("pulsar"), first.url)
    for topics in ("ab", "c"):
        with Reader(urls, unreachable=known) as reader:
            for topic in topics:
                with pytest.raises(BrokerUnreachable) as caught:
                    next(reader.entries(topic))
                assert caught.value.broker == owner
    assert asked == [*"abc"]
    assert away is None or away.got == ["CONNECT"]
    first.close()
    with Reader(of_all(refusing("pulsar"), refusing("pulsar"))) as reader, pytest.raises(BrokerUnreachable):
        next(reader.entries("a"))


def test_a_proxy_is_the_one_that_was_asked() -> None:
    """One of several Pulsar proxies leads to a broker."""
    broker, connects = "pulsar://broker:6650", list[Any]()

    def answers(frame: Any) -> list[bytes]:
        if frame.cmd == "CONNECT":
            connects.append(frame.fields.get("proxy_to_broker_url"))
        if frame.cmd == "SUBSCRIBE":
            return [encode("ERROR", {"request_id": frame.fields["request_id"], "error": "UnknownError", "message": "enough"})]  # fmt: skip
        if frame.cmd != "LOOKUP":
            return connected(frame)
        fields = {"request_id": frame.fields["request_id"], "response": "Connect", "brokerServiceUrl": broker, "proxy_through_service_url": True}  # fmt: skip
        return [encode("LOOKUP_RESPONSE", fields)]

    proxy = Scripted(answers)
    with Reader(of_all(refusing("pulsar"), proxy.url)) as reader, pytest.raises(ReadFailed, match="enough"):
        next(reader.entries("t"))
    assert connects == [None, "broker:6650"]
    proxy.close()


def test_a_redirect_out_of_tls_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token went with it, for everybody to read."""
    asked = list[str]()

    def sent(self: Rest, request: Any, url: str, seconds: float | None = None) -> Any:
        asked.append(url)
        moved = SimpleNamespace(
            status=307,
            getheader=lambda _: "http://elsewhere:8080/admin/v2/a",
            read=lambda *_: b"",
            __enter__=lambda: None,
        )
        return SimpleNamespace(broker="https://here:8443", connection=None, response=moved)

    monkeypatch.setattr(Rest, "_sent", sent)
    with pytest.raises(CallFailed, match="elsewhere:8080/admin/v2/a is without TLS, where others could read"):
        Rest("https://here:8443", lambda: {"Authorization": "Bearer x"}).call("GET", "/a")
    assert asked == ["https://here:8443/admin/v2/a"]


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


@pytest.mark.parametrize("form", ["length", "chunks", "chunk"])
def test_a_response_that_is_cut_off_is_none(form: str) -> None:
    """Wherever it is. A later call is answered."""
    body = b'{"a": [1, 2, 3], "b": "x"}'
    if form == "length":
        head, sent = b"Content-Length: %d" % len(body), body
    else:
        size = len(body) if form == "chunk" else 9
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        head, sent = b"Transfer-Encoding: chunked", b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in [*parts, b""])  # fmt: skip
    whole = b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (head, sent)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = list[int]()

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    if not connection.recv(1 << 16):
                        return
                    connection.sendall(whole[: ends.pop()])

        thread = threading.Thread(target=serve)
        thread.start()
        api = Rest(f"http://127.0.0.1:{listener.getsockname()[1]}")
        for end in range(len(whole)):
            ends.append(end)
            if end >= len(whole) - 4 and form != "length":  # the last chunk is empty
                assert api.get("/a")["b"] == "x"
                continue
            with pytest.raises(CallFailed) as caught:
                api.get("/a")
            assert caught.value.status in (None, rest.INCOMPLETE)
            assert caught.value.status or end < whole.index(b"\r\n") + 2
        ends.append(len(whole))
        assert api.get("/a")["b"] == "x"
        socket.create_connection(listener.getsockname()).close()
        thread.join()


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
