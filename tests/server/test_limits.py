"""Whatever a client sends and does not read the answers to: what waits for it is bounded, and others have their turn.

The client is a transport in memory, so bytes are counted, and nothing is timed.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from schemas.commands import Admin, ConnectionLost, to_json
from streaming.protocol import pulsar_api_pb2
from streaming.protocol.codec import FrameReader, decode, encode, entry
from streaming.protocol.frames import matching, topics_hash
from streaming.server import binary, topic_watchers
from streaming.server.binary import BinaryServer, Connection, Limits
from streaming.server.clock import HeldClock
from streaming.server.embedded import EmbeddedEngine

NOW = 1_700_000_000_000
TOPIC = "persistent://public/default/t"
OTHERS = 2_000
BOUNDS = Limits(buffered=1 << 16)
ASKED = 310_000
"""The bytes of requests that a client sends."""

CONNECT = encode("CONNECT", {"client_version": "test", "protocol_version": 21})
_BASE: Descriptor = pulsar_api_pb2.DESCRIPTOR.message_types_by_name["BaseCommand"]
COMMANDS = {
    value.name: _BASE.fields_by_number[value.number].message_type
    for value in _BASE.enum_types_by_name["Type"].values
}


class Wire(asyncio.Transport):
    """The connection of a client, who takes what was written when `read` is called. `most`: so many bytes waited at a time."""

    def __init__(self, server: BinaryServer) -> None:
        super().__init__()
        self.protocol: Connection = server.new_connection()
        self.written = bytearray()
        self.is_read, self._closing, self._paused = True, False, False
        self.high = self.most = 0
        self.protocol.connection_made(self)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self.high = high

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def write(self, data: Any) -> None:
        self.written += data
        self.most = max(self.most, len(self.written))
        if len(self.written) > self.high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()

    def read(self) -> bytes:
        found = bytes(self.written)
        self.written.clear()
        if self._paused:
            self._paused = False
            self.protocol.resume_writing()
        return found

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_protocol(self) -> Connection:
        return self.protocol


async def rest(server: BinaryServer) -> None:
    """Let all be done that can be done now."""
    loop = asyncio.get_running_loop()
    for _ in range(20):
        await loop.run_in_executor(server.matching, int)
        await asyncio.sleep(0)
        server.engine.broker  # type: ignore[attr-defined]  # noqa: B018  # folds what is pending


def warned(caplog: pytest.LogCaptureFixture) -> Counter[str]:
    """What an operator reads of limits that were exceeded: how many lines of each."""
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return Counter(name for line in lines for name in re.findall(r" \(--limit (\w+)=\d+\)", line))


def run(work: Callable[[BinaryServer], Awaitable[None]], bounds: Limits = BOUNDS, topics: int = 0) -> None:
    async def main() -> None:
        async with EmbeddedEngine(clock=HeldClock(NOW)) as engine:
            server = BinaryServer(engine, "pulsar://localhost:6650", bounds)
            if topics:
                path = f"/persistent/public/default/{'x' * 60}/partitions"
                await engine.submit(None, Admin(method="PUT", path=path, body=topics))
            try:
                await work(server)
            finally:
                server.close()
                await asyncio.sleep(0)

    asyncio.run(main())


def least(message: Descriptor) -> dict[str, Any]:
    """The fields that a message must have, and those that name something."""
    return {
        field.name: _least(field)
        for field in message.fields
        if field.is_required or field.name in ("request_id", "topic", "consumer_id", "producer_id")
    }


def _least(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[0].name
    if field.message_type is not None:
        return least(field.message_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return TOPIC if field.name == "topic" else "s"
    return True if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else 1


_SCHEMA = {"name": "s", "schema_data": b"x" * 30_000, "type": "None", "properties": []}
_METADATA = {"producer_name": "p", "sequence_id": 1, "publish_time": NOW}
_SENT = {"producer_id": 1, "sequence_id": 1}
MORE: dict[str, dict[str, Any]] = {
    "GET_TOPICS_OF_NAMESPACE": {"namespace": "public/default"},
    "WATCH_TOPIC_LIST": {"namespace": "public/default", "topics_pattern": "public/default/.*"},
    "GET_OR_CREATE_SCHEMA": {"schema": _SCHEMA},
    "ACK": {"message_id": [{"ledgerId": 1, "entryId": 0}]},
    "SUBSCRIBE": {"consumer_id": 2},
    "PRODUCER": {"producer_id": 2, "producer_name": "other"},
    "FLOW": {"messagePermits": 1},
    "SEEK": {"message_publish_time": 1},
}
"""Fields of frames beyond those that each must have."""


def frames_of(cmd: str) -> Callable[[int], bytes]:
    """The frames of a command, by number."""
    fields = {**least(COMMANDS[cmd]), **MORE.get(cmd, {})}

    def frame(number: int) -> bytes:
        if cmd == "SEND":
            sent = {"producer_id": 1, "sequence_id": number}
            return encode("SEND", sent, entry({**_METADATA, "sequence_id": number}, b"x"))
        if "watcher_id" in fields:
            return encode(cmd, {**fields, "watcher_id": number})
        return encode(cmd, fields)

    return frame


KINDS: dict[str, Callable[[int], bytes]] = {
    **{cmd: frames_of(cmd) for cmd in COMMANDS},
    "SEND with a wrong checksum": lambda _: encode("SEND", _SENT, entry(_METADATA, b"x"))[:-1] + b"?",
    "GET_TOPICS_OF_NAMESPACE by pattern": lambda _: encode(
        "GET_TOPICS_OF_NAMESPACE",
        {"request_id": 1, "namespace": "public/default", "topics_pattern": "public/default/.*"},
    ),
    "WATCH_TOPIC_LIST again": lambda _: encode(
        "WATCH_TOPIC_LIST", {**MORE["WATCH_TOPIC_LIST"], "request_id": 1, "watcher_id": 0}
    ),
}
"""Every command of the protocol, so also those that will be added, and what else has answers of its own."""


async def opened(server: BinaryServer) -> Wire:
    """A client with a producer, a consumer and a schema on a topic with messages, who has read all answers."""
    wire = Wire(server)
    names = {"topic": TOPIC, "request_id": 1}
    subscribed = {**names, "subscription": "s", "subType": "Shared", "consumer_id": 1}
    schema = {**names, "schema": _SCHEMA}
    wire.protocol.data_received(
        CONNECT + encode("PRODUCER", {**names, "producer_id": 1, "producer_name": wire.protocol.name})
        + encode("GET_OR_CREATE_SCHEMA", schema) + encode("SUBSCRIBE", subscribed)
    )  # fmt: skip
    await rest(server)
    answers = [decode(each).cmd for each in FrameReader().feed(wire.read())]
    assert {"CONNECTED", "PRODUCER_SUCCESS", "GET_OR_CREATE_SCHEMA_RESPONSE", "SUCCESS"} <= {*answers}
    return wire


async def sends(wire: Wire, server: BinaryServer, frame: Callable[[int], bytes]) -> None:
    """The client sends `ASKED` bytes, as far as the server reads them, and does not read."""
    size, number, most = 0, 0, 1 << 14
    while size < ASKED and wire.is_read and not wire.is_closing():
        chunk = b""
        while len(chunk) < most:
            chunk += frame(number)
            number += 1
        size += len(chunk)
        wire.protocol.data_received(chunk)
        await rest(server)


async def pong(other: Wire) -> bytes:
    """What a client gets that asks whether the server is there: it has its turn in the next round of the loop, if not at once."""
    other.protocol.data_received(encode("PING", {}))
    for _ in range(2):
        if said := other.read():
            return said
        await asyncio.sleep(0)
    return other.read()


@pytest.mark.parametrize("kind", KINDS)
def test_answers_that_nobody_reads_take_bounded_memory(kind: str) -> None:
    async def work(server: BinaryServer) -> None:
        wire, other = await opened(server), await opened(server)
        await sends(wire, server, KINDS[kind])
        largest = 90 * (OTHERS + 10)  # the list of all topics
        assert wire.most <= BOUNDS.buffered + largest
        assert wire.protocol.waiting <= BOUNDS.commands + binary._TURN
        assert server.unread <= 1 << 15
        assert "PONG" in [decode(each).cmd for each in FrameReader().feed(await pong(other))]
        for _ in range(5000):  # it reads at last, and nothing is left over
            if not wire.read() and not wire.protocol.under_way and not server.unread:
                break
            await rest(server)
        await rest(server)  # what was carried out last lets the client go on in the loop's next round
        if not wire.is_closing():
            assert (server.unread, server.under_way, wire.is_read) == (0, 0, True)

    run(work, topics=OTHERS)


def test_before_connect_less_waits() -> None:
    async def work(server: BinaryServer) -> None:
        for cmd in COMMANDS:
            wire = Wire(server)
            await sends(wire, server, frames_of(cmd))
            assert wire.most <= binary._HELLO + 100

    run(work, Limits())


def test_nothing_is_lost_when_the_client_reads_at_last() -> None:
    async def work(server: BinaryServer) -> None:
        wire = await opened(server)
        count = 20_000
        wire.protocol.data_received(encode("PING", {}) * count)
        found = 0
        for _ in range(count):
            found += sum(decode(each).cmd == "PONG" for each in FrameReader().feed(wire.read()))
            if found == count:
                break
            await asyncio.sleep(0)
        assert found == count

    run(work)


def test_a_connection_takes_so_many_frames_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many came in one piece. So the time until others have their turn is bounded."""
    monkeypatch.setattr(binary, "_TURNS", 1e-9)  # one turn in each round of the loop

    async def work(server: BinaryServer) -> None:
        busy, other = await opened(server), await opened(server)
        for data, command, most in (
            (
                encode("LOOKUP", {"topic": TOPIC, "request_id": 1}) * 5_000,
                "LOOKUP",
                binary._TURN // binary._COST,
            ),
            (b"".join(map(KINDS["SEND"], range(3_000))), "SEND", binary._TURN),
        ):
            before = server.metrics.commands[command]
            busy.protocol.data_received(data)
            assert server.metrics.commands[command] - before <= most
            assert await pong(other) == encode("PONG", {})
            taken = server.metrics.commands[command]
            while busy.protocol.under_way or not busy.is_read:
                await asyncio.sleep(0)
                busy.read()
                assert server.metrics.commands[command] - taken <= most
                taken = server.metrics.commands[command]

    run(work)


def test_a_bug_in_a_turn_ends_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: BinaryServer) -> None:
        busy, other = await opened(server), await opened(server)
        monkeypatch.setattr(busy.protocol, "next_turn", lambda: 1 / 0)
        busy.protocol.data_received(encode("LOOKUP", {"topic": TOPIC, "request_id": 1}) * 5_000)
        for _ in range(3):
            await asyncio.sleep(0)
        assert busy.is_closing()
        assert not other.is_closing()
        assert await pong(other) == encode("PONG", {})

    run(work)


def test_few_schemas_of_a_connection_are_compared_at_a_time() -> None:
    """Comparing one may take as long as thousands of messages."""

    async def work(server: BinaryServer) -> None:
        busy, other = await opened(server), await opened(server)
        ask = encode("GET_OR_CREATE_SCHEMA", {"topic": TOPIC, "request_id": 7, "schema": _SCHEMA})
        busy.read()
        busy.protocol.data_received(ask * 300)
        answers = 0
        for _ in range(5000):
            assert busy.protocol.under_way <= binary._SCHEMAS + 1
            assert await pong(other) == encode("PONG", {})
            answers += len(list(FrameReader().feed(busy.read())))
            if answers == 300:
                break
            await asyncio.sleep(0)
        assert answers == 300
        await rest(server)
        assert busy.is_read

    run(work, Limits())


@pytest.mark.parametrize("seconds", [3600.0, 1e-9])
def test_frames_that_never_end_are_bounded_over_all_connections(
    seconds: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 connections with 5 MB each. The oldest go. A client that goes on with its frames stays, and so does one whose frames
    wait for their turn because a round of the loop has had its `seconds`."""
    bounds = Limits(unread=1 << 20)
    monkeypatch.setattr(binary, "_TURNS", seconds)

    async def work(server: BinaryServer) -> None:
        steady = await opened(server)
        wires = [await opened(server) for _ in range(60)]
        half = encode("SEND", _SENT, entry(_METADATA, b"x" * 100_000))[:60_000]
        most = 0
        for wire in wires:
            for part in (half[:20_000], half[20_000:]):
                wire.protocol.data_received(part)
                most = max(most, server.unread)
            frame = encode("LOOKUP", {"topic": TOPIC, "request_id": 1})
            steady.protocol.data_received(frame[:9])
            steady.protocol.data_received(frame[9:])
        assert most <= bounds.unread + len(half)
        assert server.unread <= bounds.unread
        closed = [wire.is_closing() for wire in wires]
        assert closed == sorted(closed, reverse=True)
        assert sum(closed) == 60 - bounds.unread // len(half)
        assert not steady.is_closing()
        for wire in wires:
            wire.close()
        await rest(server)
        assert server.unread == 0

    run(work, bounds)
    assert warned(caplog) == {"unread": 1}


def test_frames_before_connect_are_small() -> None:
    async def work(server: BinaryServer) -> None:
        wire = Wire(server)
        wire.protocol.data_received(b"\0\x4f\xff\xff" + b"x" * 100)
        await rest(server)
        assert wire.is_closing()
        assert server.unread == 0

    run(work)


def test_commands_under_way_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a connection, and those of all, whom then nobody reads from."""
    bounds = Limits(buffered=100_000, unread=250_000)
    held: list[Callable[[], None]] = []

    async def work(server: BinaryServer) -> None:
        wires = [await opened(server) for _ in range(8)]
        monkeypatch.setattr(server.engine, "post", lambda topic, value, done=None: held.append(done))
        monkeypatch.setattr(
            server.engine, "post_run", lambda topic, commands, done: held.append(lambda: done(len(commands)))
        )
        data = encode("SEND", _SENT, entry(_METADATA, b"x" * 10_000))
        for _ in range(20):
            for wire in wires:
                if wire.is_read:
                    wire.protocol.data_received(data)
                    await asyncio.sleep(0)
        assert 200_000 < server.under_way <= bounds.unread + len(data)
        assert max(wire.protocol._under_way_bytes for wire in wires) <= bounds.buffered + len(data)
        for done in held:
            done()
        assert server.under_way == 0
        assert all(wire.is_read for wire in wires)

    run(work, bounds)


def test_a_closed_connection_whose_client_does_not_read_ends() -> None:
    """What was written waits for the client for one keep-alive interval more."""

    async def work(server: BinaryServer) -> None:
        wire = await opened(server)
        aborted: list[bool] = []
        wire.close = lambda: None  # type: ignore[method-assign]
        wire.abort = lambda: aborted.append(True)  # type: ignore[method-assign]
        wire.protocol.close("a test")
        wire.protocol.keep_alive()
        assert aborted == []
        wire.protocol.keep_alive()
        assert aborted == [True]

    run(work)


@pytest.mark.parametrize("reads", [0, 1], ids=["nothing", "slowly"])
def test_a_client_that_reads_nothing_for_an_interval_is_closed(reads: int) -> None:
    """Nobody would know else that it is frozen: a PING would wait behind what it does not read."""

    async def work(server: BinaryServer) -> None:
        wire = await opened(server)
        aborted: list[bool] = []
        wire.abort = lambda: aborted.append(True)  # type: ignore[method-assign]
        wire.protocol._write(bytes(2 * wire.high))
        for _ in range(5):
            wire.protocol.keep_alive()
            del wire.written[:reads]
        assert bool(aborted) is not bool(reads)

    run(work)


def test_the_consumers_of_a_closed_connection_leave_at_once() -> None:
    """A client with TLS that is dead does not end its connection: asyncio waits 30 s for it."""

    async def work(server: BinaryServer) -> None:
        wire, other = await opened(server), await opened(server)
        wire.close = lambda: None  # type: ignore[method-assign]
        subscription = {
            "topic": TOPIC,
            "subscription": "x",
            "subType": "Exclusive",
            "consumer_id": 2,
            "request_id": 2,
        }
        for each, answer in ((wire, "SUCCESS"), (other, "ERROR"), (other, "SUCCESS")):
            each.protocol.data_received(encode("SUBSCRIBE", subscription))
            await rest(server)
            assert answer in [decode(frame).cmd for frame in FrameReader().feed(each.read())]
            if answer == "ERROR":
                wire.protocol.close("a test")
        assert wire.protocol.name in server.connections

    run(work)


def test_no_connection_ends_the_keep_alive_of_others(caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: BinaryServer) -> None:
        wires = [await opened(server) for _ in range(3)]
        asked: list[int] = []

        def fail() -> None:
            asked.append(0)
            raise TypeError("of a test")

        wires[0].protocol.keep_alive = fail  # type: ignore[method-assign]
        for number in 1, 2:
            wires[number].protocol.keep_alive = partial(asked.append, number)  # type: ignore[method-assign]
        server.start()
        async with asyncio.timeout(20):
            while asked.count(2) < 2:
                await asyncio.sleep(0.001)
        assert asked[:5] == [0, 1, 2, 1, 2]
        assert wires[0].protocol.name not in server.connections
        lines = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
        assert ["of a test" in line for line in lines] == [True]

    run(work, Limits(keep_alive=0.001))


def test_names_and_properties_that_are_kept_are_bounded_over_all_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is refused, closed or unsubscribed, by whomever, or lost with its connection, counts no more."""
    bounds = Limits(names=1 << 20)
    metadata = [{"key": "k", "value": "x" * 100_000}]
    large = {"topic": TOPIC, "request_id": 9, "subscription": "s", "metadata": metadata}

    async def work(server: BinaryServer) -> None:
        steady = await opened(server)
        kept, remembered = server.names, len(steady.protocol._requests)
        for number in range(100, 300, 2):
            for id_, subscription in (number, "s"), (number + 1, "u"):
                steady.protocol.data_received(
                    encode("SUBSCRIBE", {**large, "subscription": subscription, "subType": "Shared", "consumer_id": id_})
                )  # fmt: skip
            steady.protocol.data_received(
                encode("CLOSE_CONSUMER", {"consumer_id": number, "request_id": number})
                + encode("UNSUBSCRIBE", {"consumer_id": number + 1, "request_id": number + 1})
            )
            await rest(server)
            steady.read()
        assert not steady.is_closing()
        assert (server.names, len(steady.protocol._requests)) == (kept, remembered)
        for metadata_ in metadata, []:  # asking again for what is open does not make it less
            steady.protocol.data_received(
                encode("SUBSCRIBE", {**large, "metadata": metadata_, "subType": "Shared", "consumer_id": 9})
            )
            await rest(server)
            steady.read()
            assert server.names > kept + 100_000
        unload = Admin(method="PUT", path=f"/{TOPIC.replace('://', '/')}/unload")
        server.engine.post("c", TOPIC, to_json(unload))
        await rest(server)
        steady.read()
        assert not steady.is_closing()
        assert server.names == 0
        wires = [await opened(server) for _ in range(3)]
        for number in range(20):
            for wire in wires:
                wire.protocol.data_received(
                    encode("SUBSCRIBE", {**large, "subType": "Shared", "consumer_id": 10 + number})
                )
                assert server.names <= bounds.names + 110_000
                await rest(server)
                wire.read()
        assert all(wire.is_closing() for wire in wires)
        assert not steady.is_closing()
        assert server.names == 0

    run(work, bounds)
    assert warned(caplog) == {"names": 1}


def test_what_is_refused_is_not_open() -> None:
    """However often a client tries again, with new numbers or with that of what is open."""

    def subscribe(consumer: int, request: int) -> bytes:
        fields = {"topic": TOPIC, "subscription": "held", "subType": "Exclusive"}
        return encode("SUBSCRIBE", {**fields, "consumer_id": consumer, "request_id": request})

    async def work(server: BinaryServer) -> None:
        holder, other = [await opened(server) for _ in range(2)]
        kept = server.names
        holder.protocol.data_received(subscribe(50, 1))
        await rest(server)
        held = server.names
        assert held > kept
        for number in range(100, 150):
            other.protocol.data_received(subscribe(number, number) + subscribe(100, 1000 + number))
            await rest(server)
        assert not other.is_closing()
        assert server.names == held
        assert len(other.protocol._opening) == 0
        holder.protocol.data_received(encode("CLOSE_CONSUMER", {"consumer_id": 50, "request_id": 2}))
        await rest(server)
        # One request is refused and the next granted, in one packet: it is open, and a third one does not end it.
        holder.protocol.data_received(subscribe(51, 3))
        await rest(server)
        other.protocol.data_received(subscribe(9, 1) + encode("PING", {}))
        holder.protocol.data_received(encode("CLOSE_CONSUMER", {"consumer_id": 51, "request_id": 4}))
        other.protocol.data_received(subscribe(9, 2) + subscribe(9, 3))
        await rest(server)
        assert other.protocol._requests.topic_of_consumer(9) == TOPIC
        assert server.names > kept
        assert not holder.is_closing()
        assert not other.is_closing()

    run(work, Limits(opened=10))


@pytest.mark.parametrize(
    "trick", ["a refused request", "an answer to another command", "an answer of the server's own"]
)
def test_what_is_open_counts_whatever_numbers_its_requests_have(trick: str) -> None:
    """A client may give several requests one number. The answer to another one is none to the request that opened a consumer, or would close
    it: the consumer stays open, and counts."""

    def subscribe(consumer: int, request: int, name: str) -> bytes:
        fields = {"topic": TOPIC, "subscription": name, "subType": "Shared", "consumer_id": consumer, "request_id": request}  # fmt: skip
        return encode("SUBSCRIBE", fields)

    async def work(server: BinaryServer) -> None:
        wire = await opened(server)
        broker = server.engine.folded  # type: ignore[attr-defined]
        before = len(broker.topic(TOPIC).consumer_handles)
        wire.protocol.data_received(subscribe(98, 1, "many"))  # so that no other one can end the subscription
        await rest(server)
        for number in range(100, 120):
            match trick:
                case "a refused request":
                    wire.protocol.data_received(subscribe(99, number, "pulsar.dedup") + subscribe(number, number, "many"))  # fmt: skip
                case "an answer to another command":
                    seek = encode(
                        "SEEK", {"consumer_id": 99, "request_id": number, "message_publish_time": 1}
                    )
                    wire.protocol.data_received(seek + subscribe(number, number, "many"))
                case _:
                    wire.protocol.data_received(subscribe(number, number, "many"))
                    await rest(server)
                    unsubscribe = encode("UNSUBSCRIBE", {"consumer_id": number, "request_id": 9})
                    wire.protocol.data_received(unsubscribe + encode("WATCH_TOPIC_LIST_CLOSE", {"watcher_id": 1, "request_id": 9}))  # fmt: skip
            await rest(server)
        held = len(broker.topic(TOPIC).consumer_handles) - before
        assert held == 21
        assert len(wire.protocol._requests) >= held
        assert server.names > 20 * 20

    run(work)


def test_an_id_is_that_of_one_producer_or_consumer() -> None:
    """A client that used one for any number of topics would have any number of consumers. As in Pulsar, no second one appears."""

    async def work(server: BinaryServer) -> None:
        wire = await opened(server)
        wire.read()
        broker = server.engine.folded  # type: ignore[attr-defined]
        before = broker.topic_names()
        for number, cmd in enumerate(("PRODUCER", "SUBSCRIBE") * 10):
            topic = f"persistent://public/default/other-{number}"
            wire.protocol.data_received(
                encode(cmd, {**least(COMMANDS[cmd]), "topic": topic, "request_id": 50 + number})
            )
        await rest(server)
        answers = [(each.cmd, each.fields.get("error"), each.fields.get("message")) for each in map(decode, FrameReader().feed(wire.read()))]  # fmt: skip
        assert answers == [
            ("ERROR", "ServiceNotReady", f"{kind} is already present on the connection") for kind in ("Producer", "Consumer") * 10
        ]  # fmt: skip
        assert broker.topic_names() == before
        for cmd, kind in (("CLOSE_PRODUCER", "producer"), ("CLOSE_CONSUMER", "consumer")):
            wire.protocol.data_received(encode(cmd, {f"{kind}_id": 1, "request_id": 1}))
        wire.protocol.data_received(encode("SUBSCRIBE", {**least(COMMANDS["SUBSCRIBE"]), "topic": topic}))
        await rest(server)
        assert topic in broker.topic_names()

    run(work)


@pytest.mark.parametrize("asked", ["GET_TOPICS_OF_NAMESPACE", "WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST again"])
def test_the_topics_of_a_namespace_are_listed_once_until_one_comes_or_goes(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask. Lookups, statistics and messages in between change nothing."""
    listed: list[str] = []

    async def work(server: BinaryServer) -> None:
        wire, other = await opened(server), await opened(server)
        broker = server.engine.broker  # type: ignore[attr-defined]
        topics = broker.listed_topics

        def noted(namespace: str, *, to_client: bool) -> list[str]:
            listed.append(namespace)
            return list(topics(namespace, to_client=to_client))

        monkeypatch.setattr(broker, "listed_topics", noted)
        for number in range(100):
            wire.protocol.data_received(KINDS[asked](number))
            other.protocol.data_received(
                b"".join(KINDS[each](number) for each in ("PARTITIONED_METADATA", "CONSUMER_STATS", "SEND"))
            )
            await rest(server)
            wire.read(), other.read()
        assert listed == ["public/default"]
        await create(server, "b")
        for number in range(100, 110):
            wire.protocol.data_received(KINDS[asked](number))
            await rest(server)
            wire.read()
        for _ in range(50):  # on a busy machine, an executor is late
            if len(listed) > 1:
                break
            await rest(server)
        assert listed == ["public/default"] * 2

    run(work, Limits(), topics=20)


def test_the_topics_that_are_kept_are_those_that_there_are() -> None:
    """After everything that makes topics come or go."""
    names = "public/default", "public/other"

    async def main() -> None:
        settings: dict[str, Any] = {"allowAutoTopicCreationType": "partitioned", "defaultNumPartitions": 2}
        settings |= {
            "brokerDeleteInactiveTopicsFrequencySeconds": 1,
            "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 1,
        }
        clock = HeldClock(NOW)
        async with EmbeddedEngine(clock=clock, settings=settings, test_double=True) as engine:
            empty = engine.snapshot()

            async def check() -> int:
                found = [await engine.topics(name) for name in names]
                assert found == [engine.broker.listed_topics(name) for name in names]
                return sum(map(len, found))

            async def call(method: Any, path: str, topic: str | None = None, body: Any = None) -> int:
                await check()
                await engine.submit(topic, Admin(method=method, path=path, body=body))
                return await check()

            async def command(topic: str, **fields: Any) -> int:
                await check()
                engine.post("c", topic, msgspec.json.encode({"connection": "c", "request_id": 1, **fields}))
                return await check()

            counts = [
                await command("persistent://public/default/a-partition-0", command="PRODUCER", producer_id=1),
                await command("persistent://public/default/b", command="PARTITIONED_METADATA"),
                await call(
                    "GET",
                    "/persistent/public/default/c/partitions?checkAllowAutoCreation=true",
                    "persistent://public/default/c",
                ),
                await call("PUT", "/persistent/public/other/d/partitions", "persistent://public/other/d", 3),
                await call("POST", "/persistent/public/other/d/partitions", "persistent://public/other/d", 5),
                await command(
                    "persistent://public/other/d-partition-1",
                    command="SUBSCRIBE",
                    consumer_id=1,
                    subscription="s",
                    subType="Shared",
                ),
                await call(
                    "DELETE",
                    "/persistent/public/other/d/partitions?force=true",
                    "persistent://public/other/d",
                ),
                await call(
                    "DELETE",
                    "/persistent/public/default/a-partition-0?force=true",
                    "persistent://public/default/a-partition-0",
                ),
                await command(
                    "non-persistent://public/other/e-partition-0", command="PRODUCER", producer_id=2
                ),
            ]
            engine.post("c", None, to_json(ConnectionLost(connection="c")))
            counts.append(await check())
            clock.move_to(NOW + 3_600_000)
            await engine.tick()
            counts.append(await check())
            assert len({*counts}) >= 6, counts
            await engine.restore(empty)
            assert await check() == 0

    asyncio.run(main())


# -- what waits for clients that do not read

NON_PERSISTENT = "non-persistent://public/default/t"


def consumers(topic: str, numbers: Sequence[int], permits: int) -> bytes:
    """Frames that open consumers, each on a subscription of its own."""
    return b"".join(
        encode("SUBSCRIBE", {
            "topic": topic, "subscription": f"s{number}", "subType": "Exclusive", "consumer_id": number,
            "request_id": number, "initialPosition": "Earliest",
        }) + encode("FLOW", {"consumer_id": number, "messagePermits": permits})
        for number in numbers
    )  # fmt: skip


async def publish(server: BinaryServer, topic: str, payloads: Sequence[bytes]) -> None:
    wire = Wire(server)
    wire.protocol.data_received(
        CONNECT + encode("PRODUCER", {"topic": topic, "request_id": 1, "producer_id": 1})
        + b"".join(
            encode("SEND", {"producer_id": 1, "sequence_id": number},
                   entry({**_METADATA, "sequence_id": number}, payload))
            for number, payload in enumerate(payloads)
        )
    )  # fmt: skip
    while wire.protocol.under_way or not wire.is_read:
        await rest(server)
        wire.read()
    wire.close()
    await rest(server)


async def lazy(server: BinaryServer, topic: str, numbers: Sequence[int], permits: int = 1_000) -> Wire:
    """A client that has consumers, and reads nothing since."""
    wire = Wire(server)
    wire.protocol.data_received(CONNECT + consumers(topic, numbers, permits))
    while wire.protocol.under_way or not wire.is_read:
        await rest(server)
        wire.read()
    wire.write(b"\0" * (wire.high + 1))
    return wire


def messages(data: bytes) -> list[Any]:
    return [each for each in map(decode, FrameReader().feed(data)) if each.cmd == "MESSAGE"]


class Gone(Wire):
    """The connection of a client that is no longer there, which the first write finds out."""

    def write(self, data: Any) -> None:
        super().write(data)
        self.close()


def test_rows_are_sent_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that is due to a client who reads, so much goes out at a time, and others are answered in between."""
    monkeypatch.setattr(binary, "_SENT", 50)
    monkeypatch.setattr(binary, "_TURNS", 1e-9)  # one turn in a round

    async def work(server: BinaryServer) -> None:
        await publish(server, TOPIC, [b"%d" % number for number in range(300)])
        wire, other = Wire(server), await opened(server)
        wire.protocol.data_received(CONNECT + consumers(TOPIC, [2], 1000))
        found: list[Any] = []
        pongs = 0
        for _ in range(1000):
            other.protocol.data_received(encode("PING", {}))
            await asyncio.sleep(0)
            new = messages(wire.read())
            assert len(new) <= 2 * 50  # as they come, and in a turn
            pongs += len(other.read()) > 0 and 0 < len(found) < 300
            found += new
        assert [each.payload for each in found] == [b"%d" % number for number in range(300)]
        assert pongs > 2

    run(work, Limits())


def test_nothing_more_is_sent_to_a_client_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "_WRITE_AT_ONCE", 1000)

    async def work(server: BinaryServer) -> None:
        await publish(server, TOPIC, [bytes(400)] * 100)
        wire = Wire(server)
        wire.protocol.data_received(CONNECT + consumers(TOPIC, [2], 1))
        await rest(server)
        wire.read()
        wire.__class__ = Gone
        wire.protocol.data_received(encode("FLOW", {"consumer_id": 2, "messagePermits": 99}))
        await rest(server)
        assert len(messages(wire.read())) == 3
        assert wire.protocol.waiting == 0

    run(work, Limits())


@pytest.mark.parametrize("version", [0, 10, 11, 21])
def test_clients_before_version_11_get_messages_without_checksums(version: int) -> None:
    async def work(server: BinaryServer) -> None:
        await publish(server, TOPIC, [b"x"])
        wire = Wire(server)
        connect = encode("CONNECT", {"client_version": "test", "protocol_version": version})
        wire.protocol.data_received(connect + consumers(TOPIC, [2], 1))
        await rest(server)
        *_, frame = FrameReader().feed(wire.read())
        message = decode(frame)
        assert (message.cmd, message.payload, message.intact) == ("MESSAGE", b"x", True)
        head = 4 + int.from_bytes(frame[:4], "big")
        assert (frame[head : head + 2] == b"\x0e\x01") == (version >= 11)

    run(work)


def test_a_transport_that_goes_on_is_not_written_to_meanwhile() -> None:
    """asyncio's closes a connection twice if a write fails that was made from within `resume_writing`."""

    async def work(server: BinaryServer) -> None:
        wire = await lazy(server, TOPIC, [1])
        await publish(server, TOPIC, [b"x"])
        wire.written.clear()
        wire._paused = False
        wire.protocol.resume_writing()
        assert not wire.written
        await asyncio.sleep(0)
        assert len(messages(wire.read())) == 1

    run(work)


def test_the_pings_of_a_turn_are_answered_at_once() -> None:
    async def work(server: BinaryServer) -> None:
        wire = await opened(server)
        writes: list[bytes] = []
        wire.write = writes.append  # type: ignore[method-assign, assignment]
        wire.protocol.data_received(encode("PING", {}) * 100)
        assert writes == [encode("PONG", {}) * 100]

    run(work)


def test_an_entry_waits_once_for_all_its_deliveries() -> None:
    payloads = [bytes([number]) * 50_000 for number in range(5)]

    async def work(server: BinaryServer) -> None:
        wires = [
            await lazy(server, NON_PERSISTENT, range(first, first + 100)) for first in range(100, 400, 100)
        ]
        await publish(server, NON_PERSISTENT, payloads)
        assert 250_000 < server.spool.size < 251_000
        assert [wire.protocol.spooled for wire in wires] == [500] * 3
        wires.pop().close()
        await rest(server)
        for wire in wires:
            wire.written.clear()
            found: list[Any] = []
            while wire.protocol.waiting or wire.written:
                found += messages(wire.read())
                await asyncio.sleep(0)
            for id_ in {each.fields["consumer_id"] for each in found}:
                assert [each.payload for each in found if each.fields["consumer_id"] == id_] == payloads
            assert len(found) == 500
        assert (server.spool.size, server.held) == (0, 0)

    run(work)


def test_entries_that_wait_in_files_are_bounded_in_sum(caplog: pytest.LogCaptureFixture) -> None:
    """Beyond that, the connection is closed that has waited longest. One that reads now and then stays, whenever it came."""
    bounds = Limits(buffered=1 << 16, spooled=4_000_000)

    async def work(server: BinaryServer) -> None:
        slow = await lazy(server, NON_PERSISTENT, [1])
        first = await lazy(server, NON_PERSISTENT, [2])
        last = await lazy(server, NON_PERSISTENT, [3])
        other = await lazy(server, TOPIC, [4])  # has nothing in files
        for number in range(120):
            await publish(server, NON_PERSISTENT, [bytes([number]) * 100_000])
            await publish(server, TOPIC, [b"x"])
            assert server.spool.size <= bounds.spooled
            if number == 20:
                last.read()
            slow.read()
        assert [each.is_closing() for each in (first, last, slow, other)] == [True, True, False, False]
        for each in slow, other:
            each.close()
        await rest(server)
        assert (server.spool.size, server.held) == (0, 0)

    run(work, bounds)
    assert warned(caplog) == {"spooled": 1}


@pytest.mark.parametrize("topic", [TOPIC, NON_PERSISTENT])
def test_rows_that_wait_are_bounded_in_sum(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    bounds = Limits(buffered=1 << 12, held=300 * 1_000)

    async def work(server: BinaryServer) -> None:
        slow = await lazy(server, topic, [0])
        wires = [await lazy(server, topic, range(first, first + 10)) for first in range(10, 100, 10)]
        for _ in range(30):
            await publish(server, topic, [b"x"])
            assert server.held <= bounds.held
            slow.read()
        closed = [wire.is_closing() for wire in wires]
        assert closed == sorted(closed, reverse=True)
        assert (sum(closed), slow.is_closing()) == (6, False)

    run(work, bounds)
    assert warned(caplog) == {"held": 1}


def test_schemas_count_in_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: BinaryServer) -> None:
        wire = await opened(server)
        topic = f"{TOPIC}-with-schema"
        data = b'{"type":"record","name":"r","doc":"%s","fields":[{"name":"a","type":"int"}]}' % (
            b"x" * 30_000
        )
        schema = {**_SCHEMA, "type": "Json", "schema_data": data}
        wire.protocol.data_received(
            encode("PRODUCER", {"topic": topic, "request_id": 7, "producer_id": 7, "producer_name": "another",
                                "schema": schema})
        )  # fmt: skip
        await rest(server)
        assert [each.cmd for each in _frames(wire)] == ["PRODUCER_SUCCESS"]
        wire.write(b"\0" * (wire.high + 1))
        ask = encode("GET_SCHEMA", {"topic": topic, "request_id": 1})
        monkeypatch.setattr(wire.protocol, "_may_take", lambda: True)  # all came before it stopped reading
        wire.protocol.data_received(ask * 20)
        await rest(server)
        assert server.held == 20 * (300 + len(data))
        wire.protocol.data_received(ask * 20)
        await rest(server)
        assert (wire.is_closing(), server.held) == (True, 0)

    run(work, Limits(buffered=1 << 16, held=1_000_000))


def test_many_permits_go_to_the_broker_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They add up, what follows comes after them, and others have turns in between."""
    asked: list[int] = []

    async def work(server: BinaryServer) -> None:
        await publish(server, TOPIC, [b"x"] * 12_000)
        wire, other = await opened(server), await opened(server)
        post = server.engine.post

        def noted(connection: str, topic: str | None, value: bytes, *rest: Any) -> None:
            fields = msgspec.json.decode(value)
            if fields["command"] == "FLOW":
                asked.append(fields["messagePermits"])
            post(connection, topic, value, *rest)

        monkeypatch.setattr(server.engine, "post", noted)
        wire.protocol.data_received(
            consumers(TOPIC, [5], 1_000_000) + encode("CLOSE_CONSUMER", {"consumer_id": 5, "request_id": 6})
        )
        found: list[Any] = []
        between = most = 0
        while not found or found[-1].cmd != "SUCCESS" or found[-1].fields["request_id"] != 6:
            other.protocol.data_received(encode("SEND", _SENT, entry(_METADATA, b"x")))
            await asyncio.sleep(0)
            between += "SEND_RECEIPT" in [each.cmd for each in _frames(other)]
            came = _frames(wire)
            most = max(most, len(came))
            found += came
        assert asked[:12] == [2_000] * 7 + [4_000, 8_000, 16_000, 32_000, 50_000]
        assert (sum(asked), max(asked)) == (1_000_000, 50_000)
        assert most <= 2 * 2_000 + 2
        assert between >= 3
        entries = [each for each in found if each.cmd == "MESSAGE"]
        assert len(entries) >= 12_000
        asked.clear()
        for permits in (1_000, 2_000, 1_000_001):
            wire.protocol.data_received(consumers(TOPIC, [7], permits))
            await rest(server)
            wire.read()
        assert asked == [1_000, 2_000, 1_000_001]
        assert wire.is_closing()

    run(work, Limits())


def test_parts_of_permits_wait_until_the_client_reads() -> None:
    async def work(server: BinaryServer) -> None:
        await publish(server, TOPIC, [b"x" * 100] * 12_000)
        wire = await opened(server)
        wire.protocol.data_received(consumers(TOPIC, [5], 20_000))
        for _ in range(10):
            await rest(server)
        assert not wire.is_read
        assert wire.protocol.waiting <= 5_000
        wire.protocol.data_received(encode("PING", {}))  # what came before the server stopped reading
        count, pongs = 0, 0
        for _ in range(100):
            came = [each.cmd for each in _frames(wire)]
            count, pongs = count + came.count("MESSAGE"), pongs + came.count("PONG")
            assert not pongs or count == 12_000
            await rest(server)
        assert (count, pongs, server.under_way, server.unread) == (12_000, 1, 0, 0)

    run(work)


def _frames(wire: Wire) -> list[Any]:
    return [decode(each) for each in FrameReader().feed(wire.read())]


# -- topic list watchers


def watch(number: int, pattern: str = "public/default/.*") -> bytes:
    asked = {"request_id": number, "watcher_id": number, "namespace": "public/default"}
    return encode("WATCH_TOPIC_LIST", {**asked, "topics_pattern": pattern})


async def looked(server: BinaryServer) -> None:
    """Let the watchers find what has changed."""
    while any(each.under_way and each.writable for each in server.connections.values()):
        await rest(server)
    while server.watchers._looking is not None and not server.watchers._looking.done():
        await server.watchers._looking


async def create(server: BinaryServer, name: str) -> None:
    await server.engine.submit(
        f"persistent://public/default/{name}", Admin(method="PUT", path=f"/persistent/public/default/{name}")
    )


def updates(data: bytes) -> list[dict[str, Any]]:
    return [
        frame.fields for frame in map(decode, FrameReader().feed(data)) if frame.cmd == "WATCH_TOPIC_UPDATE"
    ]


@pytest.mark.parametrize("count", [30, 300])
def test_a_new_topic_costs_a_pattern_once_and_nothing_for_topics_that_stay(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many watch it. What each of them costs are the bytes of its update."""
    applied: list[int] = []
    hashed: list[int] = []

    def noted_matching(pattern: str, topics: Sequence[str]) -> list[str] | None:
        applied.append(len(topics))
        return matching(pattern, topics)

    def noted_hash(topics: Sequence[str]) -> str:
        hashed.append(len(topics))
        return topics_hash(topics)

    async def work(server: BinaryServer) -> None:
        wires = [await opened(server) for _ in range(3)]
        for number in range(count):
            wires[number % 3].protocol.data_received(
                watch(number) + watch(number + 10_000, "public/default/a.*")
            )
        await looked(server)
        for wire in wires:
            wire.read()
        monkeypatch.setattr(topic_watchers, "matching", noted_matching)
        monkeypatch.setattr(topic_watchers, "topics_hash", noted_hash)
        await create(server, "b")
        await looked(server)
        assert applied == [1, 1]
        assert len(hashed) == 1
        told = [each for wire in wires for each in updates(wire.read())]
        assert sorted(each["watcher_id"] for each in told) == list(range(count))
        assert all(each["new_topics"] == ["persistent://public/default/b"] for each in told)

    run(work, Limits(), topics=20)


def test_a_watcher_that_does_not_read_is_told_the_sum_later() -> None:
    async def work(server: BinaryServer) -> None:
        wire, other = await opened(server), await opened(server)
        for each in (wire, other):
            each.protocol.data_received(watch(1))
        await looked(server)
        wire.read(), other.read()
        wire.write(b"\0" * (BOUNDS.buffered + 1))
        for name in ("a", "b"):
            await create(server, name)
            await looked(server)
        await server.engine.submit(
            "persistent://public/default/a", Admin(method="DELETE", path="/persistent/public/default/a")
        )
        await looked(server)
        assert len(updates(other.read())) == 3
        assert wire.read() == b"\0" * (BOUNDS.buffered + 1)
        await asyncio.sleep(0)
        (update,) = updates(wire.read())
        assert update["new_topics"] == ["persistent://public/default/b"]
        assert "deleted_topics" not in update

    run(work)


def test_a_watcher_that_has_missed_too_much_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watchers, "MOST_CHANGES", 3)

    async def work(server: BinaryServer) -> None:
        wire, other = await opened(server), await opened(server)
        for each in (wire, other):
            each.protocol.data_received(watch(1))
        await looked(server)
        wire.read()
        wire.write(b"\0" * (BOUNDS.buffered + 1))
        for number in range(5):
            await create(server, f"a{number}")
            await looked(server)
        (group,) = server.watchers._groups.values()
        assert len(group.changes) == 3
        wire.read()
        await asyncio.sleep(0)
        assert (wire.is_closing(), other.is_closing()) == (True, False)

    run(work)


def test_so_many_names_that_are_watched_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watchers, "MOST_NAMES", 25)

    async def work(server: BinaryServer) -> None:
        wire = await opened(server)
        wire.protocol.data_received(
            b"".join(watch(number, f"public/default/x+{'y?' * number}") for number in range(4))
        )
        await looked(server)
        answers = [decode(each) for each in FrameReader().feed(wire.read())]
        assert [each.cmd for each in answers] == ["WATCH_TOPIC_LIST_SUCCESS"] * 2 + ["ERROR"] * 2
        assert answers[-1].fields["error"] == "TooManyRequests"

    run(work, Limits(), topics=10)


def test_patterns_are_applied_in_turns_and_no_more_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watchers, "_GROUPS_AT_ONCE", 4)
    turns: list[int] = []
    look = topic_watchers._look

    def noted_look(groups: Any, *rest: Any) -> Any:
        turns.append(len(groups))
        return look(groups, *rest)

    async def work(server: BinaryServer) -> None:
        wire = await opened(server)
        wire.protocol.data_received(
            b"".join(watch(number, f"public/default/.*{'x?' * number}") for number in range(10))
        )
        await looked(server)
        monkeypatch.setattr(topic_watchers, "_look", noted_look)
        await create(server, "a")
        await looked(server)
        assert turns == [4, 4, 2]
        assert (
            server.watchers._names == sum(len(each.topics) for each in server.watchers._groups.values()) > 0
        )
        await create(server, "b")
        while len(turns) < 4:
            await asyncio.sleep(0)
        server.watchers.stop()
        looking = server.watchers._looking
        assert looking is not None
        with suppress(asyncio.CancelledError):
            await looking
        assert turns == [4, 4, 2, 4]

    run(work, Limits(), topics=3)


def test_the_names_of_watchers_that_go_no_longer_count() -> None:
    async def work(server: BinaryServer) -> None:
        wire = await opened(server)
        wire.protocol.data_received(watch(1) + watch(2) + watch(3, "public/default/t.*"))
        await looked(server)
        await create(server, "a")
        await looked(server)
        assert (
            server.watchers._names == sum(len(each.topics) for each in server.watchers._groups.values()) > 0
        )
        server.watchers.lost(next(iter(server.watchers._of)))
        assert server.watchers._names == 0

    run(work, Limits(), topics=3)
