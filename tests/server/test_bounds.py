"""What clients can use of a server is bounded, and a client that misbehaves harms nobody else."""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streaming.protocol.codec import Frame, FrameReader, decode, encode, entry
from streaming.server.admin import http
from streaming.server.binary import BadLimit, Limits, limits
from streaming.server.clock import HeldClock
from streaming.server.embedded import EmbeddedEngine
from streaming.server.server import OPEN, Address, Security, Server, allow_connections, bound

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

    def __init__(self, server: Server) -> None:
        self.server = server
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

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


def run(
    work: Callable[[Scene], Awaitable[None]], bounds: Limits | None = None, security: Security = OPEN
) -> None:
    async def main() -> None:
        engine = EmbeddedEngine(clock=HeldClock(1_700_000_000_000))
        listener = bound(Address("127.0.0.1", 0), "")
        async with engine, Server(engine, listener, bounds, security=security) as server:
            scene = Scene(server)
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


def subscribe(name: str, permits: int) -> bytes:
    fields = {"topic": TOPIC, "subscription": name, "subType": "Exclusive", "consumer_id": 1, "request_id": 9}
    return encode("SUBSCRIBE", fields) + encode("FLOW", {"consumer_id": 1, "messagePermits": permits})


@pytest.mark.parametrize(
    "data",
    [
        encode("PING", {}),
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
        ("CONSUMER_STATS", {"request_id": 7, "consumer_id": 1}, "CONSUMER_STATS_RESPONSE"),
        ("NEW_TXN", {"request_id": 7}, "ERROR"),
        ("TC_CLIENT_CONNECT_REQUEST", {"request_id": 7}, "ERROR"),
        (
            "WATCH_TOPIC_LIST",
            {"request_id": 7, "watcher_id": 1, "namespace": "a/b", "topics_pattern": "x"},
            "ERROR",
        ),
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
    ],
    ids=["none", "no pattern", "cut off", "too long to be applied"],
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


def test_so_many_connections_and_no_more() -> None:
    async def work(scene: Scene) -> None:
        peers = [await scene.connected() for _ in range(3)]
        assert await (await scene.peer(CONNECT)).next() is None
        peers[0].send(encode("PING", {}))
        await peers[0].until("PONG")

    run(work, Limits(connections=3))


def test_so_many_producers_of_a_connection_and_no_more() -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(*(producer(id_) for id_ in range(1, 5)))
        while await peer.next() is not None:
            pass

    run(work, Limits(opened=3))


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


def test_so_many_commands_under_way_and_no_more() -> None:
    """While the engine holds what a client sent, nothing more is read from it. Others are served."""

    async def work(scene: Scene) -> None:
        engine = scene.server.engine
        assert isinstance(engine, EmbeddedEngine)
        peer, other = await scene.connected(), await scene.connected()
        (connection, _) = scene.server.binary.connections.values()
        peer.send(producer())
        await peer.until("PRODUCER_SUCCESS")
        held: list[tuple[str | None, bytes, Any]] = []
        post = engine.post
        engine.post = lambda *words: held.append(words)  # type: ignore[method-assign]
        peer.send(*map(send, range(100)))
        while not connection.paused:
            await asyncio.sleep(0)
        first = len(held)
        peer.send(*(send(number, b"x" * 100_000) for number in range(100, 120)))
        other.send(encode("PING", {}))
        await other.until("PONG")
        assert 10 < first == len(held)
        engine.post = post  # type: ignore[method-assign]
        for words in held:
            engine.post(*words)
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
            writer.write(b"GET /admin/v2/clusters HTTP/1.1\r\nHost: x\r\n\r\n")
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

    run(work, Limits().for_messages_of(1000))


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
