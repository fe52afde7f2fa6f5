"""Faults that a test asks for: what a command costs the server is given back whatever becomes of it, and a fault hits what it names."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_magnetar import BrokerError, PulsarBroker
from streaming.protocol.codec import Frame, FrameReader, decode, encode, entry
from streaming.server.binary import BinaryServer, Limits
from streaming.server.client_times import published
from streaming.server.clock import HeldClock
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.faults import BadFault, FaultSpec, InjectedFault
from streaming.server.server import CONTROL, Address, Server, bound
from tests.examples import examples
from tests.server.test_fuzz import frames
from tests.server.test_limits import CONNECT, KINDS, NOW, TOPIC, Wire, rest

NON_PERSISTENT = "non-persistent://public/default/n"


class Double:
    """A server as a test double, without sockets."""

    def __init__(self, server: BinaryServer, engine: EmbeddedEngine, clock: HeldClock) -> None:
        self.server, self._engine, self._clock = server, engine, clock
        self._start = engine.snapshot()

    async def advance(self, milliseconds: int) -> None:
        self._clock.move_to(self._clock.now() + milliseconds)
        self.server.release()
        await self._engine.tick()

    async def reset(self) -> None:
        self.server.faults.clear("a reset")
        self.server.forget_connections()
        await self._engine.restore(self._start)

    async def said(self, wire: Wire) -> list[Frame]:
        """What a client gets."""
        await rest(self.server)
        return [decode(each) for each in FrameReader(1 << 24).feed(wire.read())]

    async def producer(self, name: str, topic: str = TOPIC) -> Wire:
        wire = Wire(self.server)
        fields = {"topic": topic, "producer_id": 1, "request_id": 1, "producer_name": name}
        wire.protocol.data_received(CONNECT + encode("PRODUCER", fields))
        assert "PRODUCER_SUCCESS" in [each.cmd for each in await self.said(wire)]
        return wire


def on_double(
    work: Callable[[Double], Awaitable[None]], bounds: Limits | None = None, **broker: bool | int
) -> None:
    """Run `work`. Then every client leaves, and the server counts nothing any more."""

    async def main() -> None:
        clock = HeldClock(NOW)
        engine = EmbeddedEngine(clock=clock, test_double=True, begins_with=STANDALONE, settings=broker)
        async with engine:
            server = BinaryServer(engine, "pulsar://localhost:6650", bounds)
            server.put_right = lambda metadata: published(metadata, clock.now())
            try:
                await work(Double(server, engine, clock))
                for each in list(server.connections.values()):
                    each.drop("the test ends")
                await rest(server)
                gauges = server.under_way, server.unread, server.held, server.names, server.is_full
                assert gauges == (0, 0, 0, 0, False)
            finally:
                server.close()
                await asyncio.sleep(0)

    asyncio.run(main())


def send(sequence_id: int, size: int = 1, **metadata: Any) -> bytes:
    own = {"producer_name": "p", "sequence_id": sequence_id, "publish_time": NOW, **metadata}
    return encode("SEND", {"producer_id": 1, "sequence_id": sequence_id}, entry(own, b"x" * size))


FAULTS = st.builds(
    FaultSpec,
    action=st.sampled_from(["error", "delay", "drop", "disconnect"]),
    command=st.sampled_from([None, "SEND", "PRODUCER", "LOOKUP"]),
    times=st.sampled_from([None, 1, 3]),
    delay=st.sampled_from([0, 500, 3_600_000]),
)
_WIRE = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("frame"), _WIRE, frames()),
    st.tuples(st.just("frame"), _WIRE, st.sampled_from(sorted(KINDS)).map(lambda kind: KINDS[kind](1))),
    st.tuples(st.just("frame"), _WIRE, st.builds(send, st.integers(0, 9), st.sampled_from([1, 30_000]))),
    st.tuples(st.just("fault"), st.just(0), FAULTS),
    st.tuples(st.sampled_from(["loss", "reset", "advance", "rest"]), _WIRE, st.none()),
)


@settings(max_examples=examples(60))
@given(st.lists(FAULTS, min_size=1, max_size=3), st.lists(STEPS, min_size=8, max_size=40))
def test_what_goes_is_carried_out_once_whatever_becomes_of_it(
    faults: list[FaultSpec], steps: list[tuple[str, int, Any]]
) -> None:
    async def work(double: Double) -> None:
        for fault in faults:
            double.server.faults.add(fault)
        wires: dict[int, Wire] = {}
        every: list[Wire] = []
        for step, number, value in steps:
            if number not in wires or wires[number].is_closing():
                wires[number] = Wire(double.server)
                wires[number].protocol.data_received(CONNECT)
                every.append(wires[number])
            match step:
                case "frame":
                    wires[number].protocol.data_received(value)
                case "fault":
                    double.server.faults.add(value)
                case "loss":
                    wires[number].close()
                case "reset":
                    await double.reset()
                case "advance":
                    await double.advance(1_000)
                case _:
                    await double.said(wires[number])
        for each in every:
            each.close()
        await rest(double.server)
        assert [each.protocol.under_way for each in every] == [0] * len(every)

    on_double(work, Limits(buffered=1 << 16, unread=1 << 17))


@pytest.mark.parametrize("size", [1, 100_000], ids=["many", "large"])
def test_a_client_goes_on_after_dropped_commands(size: int) -> None:
    async def work(double: Double) -> None:
        wire = await double.producer("p")
        double.server.faults.add(FaultSpec(action="drop", command="SEND", times=1_100))
        for number in range(1_100):
            wire.protocol.data_received(send(number, size if number < 10 else 1))
        wire.protocol.data_received(send(1_100))
        receipts = [
            each.fields["sequence_id"] for each in await double.said(wire) if each.cmd == "SEND_RECEIPT"
        ]
        assert receipts == [1_100]

    on_double(work, Limits(buffered=1 << 16))


@pytest.mark.parametrize("end", ["loss", "reset"])
def test_the_double_goes_on_after_delayed_commands_whose_connections_end(end: str) -> None:
    async def work(double: Double) -> None:
        for _ in range(5):
            wire = await double.producer("p")
            double.server.faults.add(FaultSpec(action="delay", command="SEND", delay=3_600_000))
            wire.protocol.data_received(send(0, 40_000))
            if end == "loss":
                wire.close()
            else:
                await double.reset()
            await rest(double.server)
        wire = await double.producer("p")
        wire.protocol.data_received(send(7))
        assert [each.cmd for each in await double.said(wire)] == ["SEND_RECEIPT"]

    on_double(work, Limits(buffered=1 << 16, unread=1 << 17))


FAILS = FaultSpec(action="error", command="SEND")


def test_a_write_that_fails_is_that_of_the_send() -> None:
    """Neither that of one that was delayed before it, nor that of another producer."""

    async def work(double: Double) -> None:
        one, other = await double.producer("p"), await double.producer("q")
        double.server.faults.add(FaultSpec(action="delay", command="SEND", when={"sequence_id": 1}))
        double.server.faults.add(FaultSpec(action="error", command="SEND", when={"sequence_id": 2}))
        one.protocol.data_received(send(1) + send(2))
        other.protocol.data_received(send(5, producer_name="q"))
        assert [each.cmd for each in await double.said(other)] == ["SEND_RECEIPT"]
        await double.advance(1_000)
        answers = [each for each in await double.said(one) if each.cmd != "CLOSE_PRODUCER"]
        assert [(each.cmd, each.fields["sequence_id"]) for each in answers] == [
            ("SEND_RECEIPT", 1), ("SEND_ERROR", 2)
        ]  # fmt: skip
        assert answers[1].fields["error"] == "PersistenceError"

    on_double(work)


@pytest.mark.parametrize("kind", ["duplicate", "too large"])
def test_the_fault_of_a_send_that_is_not_written_hits_no_other(kind: str) -> None:
    async def work(double: Double) -> None:
        one, other = await double.producer("p"), await double.producer("q")
        one.protocol.data_received(send(1))
        await double.said(one)
        double.server.faults.add(FAILS)
        one.protocol.data_received(send(1) if kind == "duplicate" else send(2, 2_000))
        assert [each.cmd for each in await double.said(one)] == [
            "SEND_RECEIPT" if kind == "duplicate" else "SEND_ERROR"
        ]
        other.protocol.data_received(send(1, producer_name="q"))
        assert [each.cmd for each in await double.said(other)] == ["SEND_RECEIPT"]

    on_double(work, brokerDeduplicationEnabled=True, maxMessageSize=1_000)


def test_no_write_to_a_non_persistent_topic_fails() -> None:
    async def work(double: Double) -> None:
        wire = await double.producer("p", NON_PERSISTENT)
        fault = double.server.faults.add(FAILS)
        wire.protocol.data_received(send(1))
        assert [each.cmd for each in await double.said(wire)] == ["SEND_RECEIPT"]
        assert fault.hits == 0
        with pytest.raises(BadFault, match="non-persistent topic writes nothing"):
            double.server.faults.add(FaultSpec(action="error", command="SEND", topic=NON_PERSISTENT))

    on_double(work)


@pytest.mark.parametrize(
    ("publish_time", "deliver_at", "refused"),
    [
        (0, 2**63 - 1, False), (1, 2**63 - 1, False), (2**63 - 1, -(2**63), False), (NOW, -1, False),
        (2**63, None, True), (2**64 - 1, 5, True), (2**64 - 1, 2**63 - 1, True),
    ],
)  # fmt: skip
def test_times_of_messages_that_are_put_right_stay_within_64_bits(
    publish_time: int, deliver_at: int | None, refused: bool
) -> None:
    async def work(double: Double) -> None:
        wire = await double.producer("p")
        delay = {} if deliver_at is None else {"deliver_at_time": deliver_at}
        wire.protocol.data_received(send(1, publish_time=publish_time, **delay))
        answers = [each.cmd for each in await double.said(wire)]
        assert answers == (["SEND_ERROR"] if refused else ["SEND_RECEIPT"])

    on_double(work)


class Served:
    """A test double behind sockets, and what its HTTP server works on."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = server.admin_url.removeprefix("http://localhost:") if server.admin_url else ""

    async def ask(self, method: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.address))
        asked = f"{method} {CONTROL}{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(asked.encode() + b"Content-Type: application/json\r\nContent-Length: 0\r\n\r\n")
        return reader, writer

    async def answer(self, method: str, path: str) -> bytes:
        return await self.rest(*await self.ask(method, path))

    async def rest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            return await reader.read()
        finally:
            writer.close()

    async def nothing_under_way(self) -> None:
        assert self.server._http is not None
        while self.server._http._server.server_state.tasks:
            await asyncio.sleep(0.001)


def on_served(work: Callable[[Served], Awaitable[Any]]) -> Any:
    """Run `work` on a double. What it returns is awaited once the double has stopped."""

    async def main() -> Any:
        clock = HeldClock(NOW)
        sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
        async with (
            EmbeddedEngine(clock=clock, test_double=True, begins_with=STANDALONE) as engine,
            Server(engine, sockets[0], admin_listener=sockets[1], clock=clock) as server,
        ):
            found = await asyncio.wait_for(work(Served(server)), 60)
        return None if found is None else await found

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("hit", b'"hits":1'),
        ("DELETE /faults/1", b"the fault was removed before the fault had hit 1 commands: it hit 0"),
        ("POST /reset", b"the broker was reset"),
        ("POST /snapshots/1/restore", b"the broker went back to a snapshot"),
        ("stop", b"the server is being stopped"),
        ("leave", None),
    ],
)
def test_a_request_that_waits_for_hits_ends(
    how: str, said: bytes | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the hits, with the fault, with its client, or with the server, which waits for nothing and logs nothing."""
    waits = asyncio.Event()
    wait = InjectedFault.wait

    async def noted(self: InjectedFault, hits: int) -> None:
        waits.set()
        await wait(self, hits)

    monkeypatch.setattr(InjectedFault, "wait", noted)

    async def work(served: Served) -> Any:
        faults = served.server.binary.faults
        faults.add(FaultSpec(action="drop"))
        assert b'{"id":1}' in await served.answer("POST", "/snapshots")
        reader, writer = await served.ask("GET", "/faults/1?hits=1")
        await waits.wait()
        match how:
            case "hit":
                faults.hit(None, {"command": "SEND"})
            case "leave":
                writer.close()
                await served.nothing_under_way()
                return None
            case "stop":
                return served.rest(reader, writer)
            case _:
                assert b"200 OK" in await served.answer(*how.split())
        await served.nothing_under_way()
        return served.rest(reader, writer)

    with caplog.at_level(logging.WARNING):
        found = on_served(work)
    assert said is None or said in found
    assert not caplog.records


def test_a_wait_of_the_plugin_that_times_out_leaves_no_request_behind() -> None:
    async def work(served: Served) -> None:
        url = f"http://127.0.0.1:{served.address}"
        broker = PulsarBroker("", url, Path())
        fault = await asyncio.to_thread(broker.fault, "drop", times=3)
        with pytest.raises(TimeoutError, match="the fault hit 0 commands in 0.2 s, not 3"):
            await asyncio.to_thread(fault.wait, 3, 0.2)
        with pytest.raises(BrokerError, match="hits 4: the fault hits 3 at most, which its `times` says"):
            await asyncio.to_thread(fault.wait, 4)
        await served.nothing_under_way()

    on_served(work)
