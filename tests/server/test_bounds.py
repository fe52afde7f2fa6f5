"""What clients can use of a server is bounded, and a client that misbehaves harms nobody else."""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from schemas.commands import Ack, Admin, Send
from schemas.effects import Row
from streaming.protocol.codec import Frame, FrameReader, decode, encode, entry
from streaming.protocol.frames import topics_of_namespace
from streaming.server import binary
from streaming.server.admin import http
from streaming.server.binary import BadLimit, Limits, limits
from streaming.server.clock import HeldClock
from streaming.server.embedded import EmbeddedEngine
from streaming.server.engine import EngineStopped
from streaming.server.server import OPEN, Address, Security, Server, allow_connections, bound
from tests.server.test_limits import warned

TOPIC = "persistent://public/default/t"
CONNECT = encode("CONNECT", {"client_version": "test", "protocol_version": 21})


class Peer:
    """A client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader(1 << 24)
        self._found: list[Frame] = []

    def send(self, *data: bytes) -> None:
        self._writer.write(b"".join(data))

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed the connection, or `close` was called."""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def next(self) -> Frame | None:
        """The next frame; None: the server has closed the connection."""
        while not self._found:
            try:
                data = await self._reader.read(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._found += [decode(each) for each in self._frames.feed(data)]
        return self._found.pop(0)

    async def until(self, cmd: str) -> Frame:
        while True:
            frame = await self.next()
            assert frame is not None
            if frame.cmd == cmd:
                return frame


class Scene:
    """A server on the loop of the test."""

    def __init__(self, server: Server, clock: HeldClock) -> None:
        self.server, self.clock = server, clock
        self._writers: list[asyncio.StreamWriter] = []

    async def peer(self, *first: bytes) -> Peer:
        reader, writer = await asyncio.open_connection(*self.server.address, limit=1 << 12)
        self._writers.append(writer)
        writer.write(b"".join(first))
        return Peer(reader, writer)

    async def connected(self) -> Peer:
        peer = await self.peer(CONNECT)
        await peer.until("CONNECTED")
        return peer

    async def admin(self, method: Literal["PUT", "DELETE"], path: str, body: Any = None) -> None:
        """Carry out an admin call on the broker as a whole."""
        await self.server.engine.submit(None, Admin(method=method, path=path, body=body))

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


def run(
    work: Callable[[Scene], Awaitable[None]],
    bounds: Limits | None = None,
    security: Security = OPEN,
    **settings: int,
) -> None:
    async def main() -> None:
        clock = HeldClock(1_700_000_000_000)
        engine = EmbeddedEngine(clock=clock, settings=settings)
        listener = bound(Address("127.0.0.1", 0), "")
        async with engine, Server(engine, listener, bounds, security=security) as server:
            scene = Scene(server, clock)
            try:
                await asyncio.wait_for(work(scene), 60)
            finally:
                scene.close()

    asyncio.run(main())


def producer(id_: int = 1, topic: str = TOPIC) -> bytes:
    return encode(
        "PRODUCER", {"topic": topic, "producer_id": id_, "request_id": id_, "producer_name": f"p{id_}"}
    )


def send(number: int, payload: bytes = b"x") -> bytes:
    metadata = {"producer_name": "p1", "sequence_id": number, "publish_time": 1_700_000_000_000}
    return encode("SEND", {"producer_id": 1, "sequence_id": number}, entry(metadata, payload))


LONG = "x" * 5_000
REFUSED: dict[str, tuple[bytes, str]] = {
    "SEND": (
        encode(
            "SEND",
            {"producer_id": 1, "sequence_id": 2, "highest_sequence_id": 4, "num_messages": 3},
            entry({"producer_name": "p1", "sequence_id": 2, "publish_time": 2**63}, b"xyz"),
        ),
        "SEND_ERROR",
    ),
    "ACK": (
        encode(
            "ACK",
            {
                "consumer_id": 1,
                "ack_type": "Individual",
                "message_id": [{"ledgerId": 1, "entryId": 0, "ack_set": [0] * 15_626}],
                "request_id": 70,
            },
        ),
        "ACK_RESPONSE",
    ),
    "PRODUCER": (
        encode("PRODUCER", {"topic": TOPIC, "producer_id": 7, "request_id": 70, "producer_name": LONG}),
        "ERROR",
    ),
    "SUBSCRIBE": (
        encode(
            "SUBSCRIBE",
            {"topic": TOPIC, "subscription": LONG, "subType": "Shared", "consumer_id": 7, "request_id": 70},
        ),
        "ERROR",
    ),
    "LOOKUP": (
        encode("LOOKUP", {"topic": TOPIC, "request_id": 70, "advertised_listener_name": LONG}),
        "LOOKUP_RESPONSE",
    ),
    "PARTITIONED_METADATA": (
        encode("PARTITIONED_METADATA", {"topic": TOPIC + LONG, "request_id": 70}),
        "PARTITIONED_METADATA_RESPONSE",
    ),
    "GET_SCHEMA": (
        encode("GET_SCHEMA", {"topic": TOPIC, "request_id": 70, "schema_version": bytes(65)}),
        "GET_SCHEMA_RESPONSE",
    ),
    "GET_OR_CREATE_SCHEMA": (
        encode(
            "GET_OR_CREATE_SCHEMA",
            {
                "topic": TOPIC,
                "request_id": 70,
                "schema": {"name": LONG, "schema_data": b"", "type": "String"},
            },
        ),
        "GET_OR_CREATE_SCHEMA_RESPONSE",
    ),
}
"""Of each kind with an answer: a command that the gate refuses, and the answer."""


@pytest.mark.parametrize("kind", REFUSED)
def test_a_command_that_the_gate_refuses_is_answered(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Else its client would open the connection again, and repeat it with all that came after it, for ever."""
    refused, answered = REFUSED[kind]

    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(producer(), send(1), refused, send(3))
        frames: list[Frame] = []
        while len(frames) < 4:
            frame = await peer.next()
            assert frame is not None
            frames.append(frame)
        assert frames[0].cmd == "PRODUCER_SUCCESS"
        by_kind = {frame.cmd: frame.fields for frame in frames}
        text = by_kind[answered].get("message", by_kind[answered].get("error_message", ""))
        assert ": expected " in text or "Expected " in text
        if kind == "SEND":
            assert [frame.cmd for frame in frames[1:]] == ["SEND_RECEIPT", "SEND_ERROR", "SEND_RECEIPT"]
            numbers = {name: by_kind["SEND_ERROR"][name] for name in ("producer_id", "sequence_id")}
            assert numbers == {"producer_id": 1, "sequence_id": 4}
        else:
            assert by_kind[answered]["request_id"] == 70
        assert by_kind[answered].get("error", by_kind[answered].get("error_code")) == "NotAllowedError"
        assert frames[-1].fields["message_id"] == {"ledgerId": 1, "entryId": 1}

    run(work)
    assert "a command is refused: " in caplog.text


def test_what_came_before_a_command_that_closes_its_connection_is_answered() -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(producer(), send(1), encode("FLOW", {"consumer_id": 2**64 - 1, "messagePermits": 1}))
        await peer.until("SEND_RECEIPT")
        assert await peer.next() is None

    run(work)


def subscribe(name: str, permits: int) -> bytes:
    fields = {"topic": TOPIC, "subscription": name, "subType": "Exclusive", "consumer_id": 1, "request_id": 9}
    return encode("SUBSCRIBE", fields) + encode("FLOW", {"consumer_id": 1, "messagePermits": permits})


@pytest.mark.parametrize(
    "data",
    [
        encode("LOOKUP", {"topic": TOPIC, "request_id": 1}),
        CONNECT + CONNECT,
        CONNECT + b"GET / HTTP/1.1\r\n\r\n",
        CONNECT + b"\0\0\0\x05\0\0\0\x01\xff",
        CONNECT + b"\x00\x60\x00\x00",
        CONNECT + encode("SEND", {"producer_id": 1, "sequence_id": 1}),
        CONNECT + send(1),
        CONNECT + encode("SUCCESS", {"request_id": 1}),
        CONNECT + encode("FLOW", {"consumer_id": 2**64 - 1, "messagePermits": 1}),
    ],
    ids=["no CONNECT", "two CONNECT", "HTTP", "no protobuf", "too large", "no message", "unknown producer",
         "not a client's", "refused by the gate"],
)  # fmt: skip
def test_what_breaks_the_protocol_closes_the_connection(data: bytes) -> None:
    async def work(scene: Scene) -> None:
        other = await scene.connected()
        peer = await scene.peer(data)
        while await peer.next() is not None:
            pass
        other.send(encode("PING", {}))
        await other.until("PONG")

    run(work)


def test_a_message_with_a_wrong_checksum_is_refused_in_its_turn() -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(producer())
        await peer.until("PRODUCER_SUCCESS")
        peer.send(send(1), send(2)[:-1] + b"?", send(3))
        answers: list[Any] = [await peer.next() for _ in range(3)]
        assert sorted((each.cmd, each.fields["sequence_id"]) for each in answers) == [
            ("SEND_ERROR", 2), ("SEND_RECEIPT", 1), ("SEND_RECEIPT", 3),
        ]  # fmt: skip
        assert [each.fields.get("error") for each in answers if each.cmd == "SEND_ERROR"] == ["ChecksumError"]

    run(work)


@pytest.mark.parametrize(
    ("cmd", "fields", "answer"),
    [
        ("NEW_TXN", {"request_id": 7}, "ERROR"),
        ("TC_CLIENT_CONNECT_REQUEST", {"request_id": 7, "tc_id": 0}, "ERROR"),
    ],
)
def test_what_is_not_supported_is_answered(cmd: str, fields: dict[str, Any], answer: str) -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(encode(cmd, fields))
        assert (await peer.until(answer)).fields["request_id"] == 7

    run(work)


@pytest.mark.parametrize(
    ("pattern", "answer", "filtered"),
    [
        ("persistent://public/default/no.*", "GET_TOPICS_OF_NAMESPACE_RESPONSE", True),
        ("[", "ERROR", None),
        ("\\", "ERROR", None),
        ("persistent://public/default/" + "x?" * 20, "GET_TOPICS_OF_NAMESPACE_RESPONSE", False),
        ("public/default/(?!x).*", "GET_TOPICS_OF_NAMESPACE_RESPONSE", False),
        ("public/default/x{4}y{5}", "GET_TOPICS_OF_NAMESPACE_RESPONSE", False),
        ("public/default/x{4}y{,4}", "GET_TOPICS_OF_NAMESPACE_RESPONSE", True),
    ],
    ids=[
        "none",
        "no pattern",
        "cut off",
        "too long to be applied",
        "not in RE2",
        "repeats too much",
        "repeats",
    ],
)
def test_patterns_of_topics(pattern: str, answer: str, filtered: bool | None) -> None:
    """As Pulsar 4.0.7 answers them."""

    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(producer())
        await peer.until("PRODUCER_SUCCESS")
        asked = {"request_id": 7, "namespace": "public/default", "topics_pattern": pattern}
        peer.send(encode("GET_TOPICS_OF_NAMESPACE", asked))
        frame = await peer.until(answer)
        assert frame.fields["request_id"] == 7
        if filtered is None:
            assert frame.fields["error"] == "MetadataError"
        else:
            assert frame.fields["filtered"] == filtered
            assert frame.fields.get("topics", []) == ([] if filtered else [TOPIC])

    run(work)


def test_no_pattern_takes_long() -> None:
    """Each of these takes Python's `re` years."""
    topic = "persistent://public/default/" + "a" * 60
    for pattern in ("public/default/(a*)*b", "public/default/(a|aa)*b", "(public|.*.*)*b"):
        asked = {"request_id": 7, "namespace": "public/default", "topics_pattern": pattern}
        cmd, fields = topics_of_namespace(asked, [topic])
        assert cmd == "GET_TOPICS_OF_NAMESPACE_RESPONSE"
        assert fields["filtered"]
        assert "topics" not in fields


def test_an_answer_that_cannot_be_encoded_costs_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*fields: int) -> bytes:
        raise ZeroDivisionError

    async def work(scene: Scene) -> None:
        unlucky, other = await scene.connected(), await scene.connected()
        unlucky.send(producer(1))
        await unlucky.until("PRODUCER_SUCCESS")
        monkeypatch.setattr(binary, "send_receipt", broken)
        unlucky.send(send(1))
        assert await unlucky.next() is None
        other.send(producer(2))
        await other.until("PRODUCER_SUCCESS")

    run(work)


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_error_in_delivering_stops_the_engine(on_disk: bool, tmp_path: Path) -> None:
    """Nobody waits for an answer that can't come."""

    def broken(rows: Sequence[Row]) -> None:
        raise ZeroDivisionError("broken")

    async def main() -> None:
        async with EmbeddedEngine(
            tmp_path if on_disk else None, clock=HeldClock(1_700_000_000_000)
        ) as engine:
            engine.connect(broken)
            with pytest.raises(EngineStopped, match="broken"):
                await asyncio.wait_for(engine.tick(), 10)
            with pytest.raises(EngineStopped, match="broken"):
                await engine.tick()
            with pytest.raises(ZeroDivisionError):
                await engine.failed

    asyncio.run(main())


def test_so_many_connections_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        peers = [await scene.connected() for _ in range(3)]
        assert await (await scene.peer(CONNECT)).next() is None
        peers[0].send(encode("PING", {}))
        await peers[0].until("PONG")

    run(work, Limits(connections=3))
    assert warned(caplog) == {"connections": 1}


def test_so_many_producers_of_a_connection_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(*(producer(id_) for id_ in range(1, 5)))
        while await peer.next() is not None:
            pass

    run(work, Limits(opened=3))
    assert warned(caplog) == {"opened": 1}


def test_idle_and_half_open_connections_are_closed() -> None:
    async def work(scene: Scene) -> None:
        half_open, silent, alive = await scene.peer(), await scene.connected(), await scene.connected()

        def interval() -> None:
            for connection in list(scene.server.binary.connections.values()):
                connection.keep_alive()

        while len(scene.server.binary.connections) < 3:
            await asyncio.sleep(0)
        interval()
        assert await half_open.next() is None
        await alive.until("PING")
        alive.send(encode("PONG", {}), encode("PING", {}))
        await alive.until("PONG")
        interval()
        await silent.until("PING")
        assert await silent.next() is None
        alive.send(encode("PING", {}))
        await alive.until("PONG")

    run(work)


def test_a_thousand_idle_connections_take_little_and_disturb_nobody() -> None:
    async def work(scene: Scene) -> None:
        busy = await scene.connected()
        gc.collect()
        tracemalloc.start()
        try:
            peers = [await scene.connected() for _ in range(1000)]
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()  # of both ends
        finally:
            tracemalloc.stop()
        assert len(scene.server.binary.connections) == 1001
        assert taken < 1001 * 40_000
        busy.send(producer(), send(1))
        await busy.until("SEND_RECEIPT")
        for connection in list(scene.server.binary.connections.values()):
            connection.keep_alive()
        for peer in peers[::100]:
            await peer.until("PING")

    allow_connections(3000)
    run(work)


def test_a_hundred_consumers_that_do_not_read_take_little_and_hold_up_nobody() -> None:
    """1 GB is due to them."""
    count, payload, readers = 100, b"x" * 100_000, 100
    bounds = Limits(buffered=1 << 18, waiting=20)

    async def work(scene: Scene) -> None:
        peers = [await scene.connected() for _ in range(readers)]
        slow = list(scene.server.binary.connections.values())
        for number, peer in enumerate(peers):
            peer.send(subscribe(f"slow{number}", count))
        for peer in peers:
            await peer.until("SUCCESS")
        fast, publisher = await scene.connected(), await scene.connected()
        fast.send(subscribe("fast", count))
        publisher.send(producer())
        await publisher.until("PRODUCER_SUCCESS")
        for number in range(count):
            publisher.send(send(number, payload))
            await publisher.until("SEND_RECEIPT")
            assert (await fast.until("MESSAGE")).fields["message_id"]["entryId"] == number
        assert all(each.paused for each in slow)
        assert max(each.buffered for each in slow) <= bounds.buffered + 2 * len(payload)
        for number, peer in enumerate(peers):
            for entry_id in range(count) if number < 3 else ():
                assert (await peer.until("MESSAGE")).fields["message_id"]["entryId"] == entry_id

    run(work, bounds)


def test_payloads_that_come_with_their_rows_do_not_wait_in_memory() -> None:
    """Before a query, and on non-persistent topics: 2 MB wait for a client that does not read."""
    payloads = [bytes([number]) * 10_000 for number in range(200)]
    topic = "non-persistent://public/default/t"

    async def work(scene: Scene) -> None:
        slow, publisher = await scene.connected(), await scene.connected()
        connection = next(iter(scene.server.binary.connections.values()))
        subscription = {
            "topic": topic,
            "subscription": "s",
            "subType": "Exclusive",
            "consumer_id": 1,
            "request_id": 1,
        }
        slow.send(
            encode("SUBSCRIBE", subscription), encode("FLOW", {"consumer_id": 1, "messagePermits": 1000})
        )
        await slow.until("SUCCESS")
        publisher.send(producer(topic=topic))
        await publisher.until("PRODUCER_SUCCESS")
        for _ in range(2):
            connection.pause_writing()
            for number, payload in enumerate(payloads):
                publisher.send(send(number, payload))
                await publisher.until("SEND_RECEIPT")
                assert connection.held == 0
            assert connection.spooled == len(payloads)
            assert 2_000_000 < scene.server.binary.spool.size < 2_010_000
            connection.resume_writing()
            for payload in payloads:
                assert (await slow.until("MESSAGE")).payload == payload
            assert (connection.spooled, scene.server.binary.spool.size) == (0, 0)
        connection.pause_writing()
        publisher.send(send(0, payloads[0]))
        await publisher.until("SEND_RECEIPT")
        connection.drop("the test ends")
        assert (connection.spooled, scene.server.binary.spool.size) == (0, 0)

    run(work)


@pytest.mark.parametrize("asks", ["permits", "redeliveries"])
def test_messages_that_a_client_asks_for_and_does_not_read_wait_in_the_broker(asks: str) -> None:
    """Each of many frames that come at once may make the broker send all that there is."""
    messages, subscriptions = 300, 40

    async def work(scene: Scene) -> None:
        publisher = await scene.connected()
        publisher.send(producer(), *(send(number, bytes(1000)) for number in range(messages)))
        for _ in range(messages):
            await publisher.until("SEND_RECEIPT")
        slow = await scene.connected()
        connection = list(scene.server.binary.connections.values())[-1]
        of = {"topic": TOPIC, "subType": "Exclusive", "initialPosition": "Earliest"}
        for number in range(subscriptions):
            slow.send(
                encode(
                    "SUBSCRIBE",
                    {**of, "subscription": f"s{number}", "consumer_id": number, "request_id": number},
                )
            )
            await slow.until("SUCCESS")
        if asks == "redeliveries":
            slow.send(encode("FLOW", {"consumer_id": 0, "messagePermits": 1_000_000}))
            for _ in range(messages):
                await slow.until("MESSAGE")
            frames = [encode("REDELIVER_UNACKNOWLEDGED_MESSAGES", {"consumer_id": 0})] * subscriptions
        else:
            frames = [
                encode("FLOW", {"consumer_id": number, "messagePermits": 1_000_000})
                for number in range(subscriptions)
            ]
        most = 0
        deliver = connection.deliver

        def delivered(effects: Any, coming: Any, **options: Any) -> None:
            nonlocal most
            connection.pause_writing()  # its client does not read
            deliver(effects, coming, **options)
            most = max(most, connection.waiting)

        connection.deliver = delivered  # type: ignore[method-assign]
        slow.send(b"".join(frames))
        while connection._under_way or not most:
            await asyncio.sleep(0.001)
        publisher.send(send(messages))
        await publisher.until("SEND_RECEIPT")
        assert most <= messages + 100
        connection.deliver = deliver  # type: ignore[method-assign]
        connection.resume_writing()
        for _ in range(messages * subscriptions):
            await slow.until("MESSAGE")

    run(work, Limits(waiting=100))


def test_receipts_that_wait_hold_no_payloads() -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        (connection,) = scene.server.binary.connections.values()
        peer.send(producer())
        await peer.until("PRODUCER_SUCCESS")
        peer.send(*(send(number, b"x" * 100) for number in range(100)))
        while not (taken := connection.under_way):
            await asyncio.sleep(0)
        connection.pause_writing()
        while connection.waiting < taken:
            await asyncio.sleep(0)
        assert connection.held == 0
        connection.resume_writing()
        for number in range(100):
            assert (await peer.until("SEND_RECEIPT")).fields["sequence_id"] == number

    run(work)


def test_a_connection_whose_payloads_fit_nowhere_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("streaming.server.entry_spool.EntrySpool.put", full)

    async def work(scene: Scene) -> None:
        slow, publisher = await scene.connected(), await scene.connected()
        connection = next(iter(scene.server.binary.connections.values()))
        topic = "non-persistent://public/default/t"
        subscription = {
            "topic": topic,
            "subscription": "s",
            "subType": "Exclusive",
            "consumer_id": 1,
            "request_id": 1,
        }
        slow.send(
            encode("SUBSCRIBE", subscription), encode("FLOW", {"consumer_id": 1, "messagePermits": 1000})
        )
        await slow.until("SUCCESS")
        connection.pause_writing()
        publisher.send(producer(topic=topic), send(0))
        await publisher.until("SEND_RECEIPT")
        while await slow.next() is not None:
            pass
        publisher.send(encode("PING", {}))
        await publisher.until("PONG")

    run(work)


def test_so_many_commands_under_way_and_no_more() -> None:
    """While the engine holds what a client sent, nothing more is read from it. Others are served."""

    async def work(scene: Scene) -> None:
        engine = scene.server.engine
        assert isinstance(engine, EmbeddedEngine)
        peer, other = await scene.connected(), await scene.connected()
        (connection, _) = scene.server.binary.connections.values()
        peer.send(producer())
        await peer.until("PRODUCER_SUCCESS")
        held: list[tuple[str, Sequence[Send | Ack], Any]] = []
        send_on = engine.post_run
        engine.post_run = lambda *words: held.append(words)  # type: ignore[method-assign]
        peer.send(*map(send, range(100)))
        while not connection.paused:
            await asyncio.sleep(0)
        first = sum(len(sends) for _, sends, _ in held)
        peer.send(*(send(number, b"x" * 100_000) for number in range(100, 120)))
        other.send(encode("PING", {}))
        await other.until("PONG")
        assert 10 < first == sum(len(sends) for _, sends, _ in held)
        engine.post_run = send_on  # type: ignore[method-assign]
        for words in held:
            engine.post_run(*words)
        for number in range(120):
            assert (await peer.until("SEND_RECEIPT")).fields["sequence_id"] == number
        assert not connection.paused

    run(work, Limits(commands=10))


def test_an_http_connection_without_a_whole_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)

    async def main() -> None:
        engine = EmbeddedEngine(clock=HeldClock(1_700_000_000_000))
        sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
        port = sockets[1].getsockname()[1]
        async with engine, Server(engine, sockets[0], admin_listener=sockets[1]):
            for data in (
                b"",
                b"GET /admin/v2/clusters HTTP/1.1\r\nHost:",
                b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                answer = await asyncio.wait_for(reader.read(), 20)
                assert not answer.startswith(b"HTTP/1.1 200")
                writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in await reader.readline()
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "text"),
    [({"x": "1"}, "unknown field"), ({"connections": "0"}, ">= 1"), ({"keep_alive": "soon"}, "float"),
     ({"keep_alive": "0"}, "> 0")],
)  # fmt: skip
def test_wrong_limits_are_named(given: dict[str, str], text: str) -> None:
    with pytest.raises(BadLimit, match=text):
        limits(given)


def test_limits_from_text() -> None:
    assert limits({"connections": "3", "keep_alive": "0.5"}) == Limits(connections=3, keep_alive=0.5)


def test_the_largest_message_is_the_settings() -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.peer(CONNECT)
        assert (await peer.until("CONNECTED")).fields["max_message_size"] == 1000
        peer.send(b"\0\0\x2f\0")
        assert await peer.next() is None

    run(work, maxMessageSize=1000)


def test_a_consumer_that_does_not_read_holds_up_nobody_and_takes_little_memory() -> None:
    """30 MB are due to it. The others get theirs, and it gets all as soon as it reads. Meanwhile nothing is read from it."""
    count, payload = 300, b"x" * 100_000
    bounds = Limits(buffered=1 << 20, waiting=20)

    async def work(scene: Scene) -> None:
        slow, fast, publisher = await scene.connected(), await scene.connected(), await scene.connected()
        (lazy, *_) = scene.server.binary.connections.values()
        slow.send(subscribe("slow", count))
        await slow.until("SUCCESS")
        fast.send(subscribe("fast", count))
        publisher.send(producer())
        await publisher.until("PRODUCER_SUCCESS")
        most = 0
        for number in range(count):
            publisher.send(send(number, payload))
            await publisher.until("SEND_RECEIPT")
            message = await fast.until("MESSAGE")
            assert message.fields["message_id"]["entryId"] == number
            most = max(most, lazy.buffered)
        assert most < 3 * bounds.buffered
        assert lazy.paused
        slow.send(encode("PING", {}))
        found: list[Any] = [await slow.next() for _ in range(count + 1)]
        entries = [each.fields["message_id"]["entryId"] for each in found if each.cmd == "MESSAGE"]
        assert entries == list(range(count))
        assert [each.cmd for each in found].index("PONG") > count // 2
        assert not lazy.paused

    run(work, bounds)
