"""SENDs and ACKs that are decoded at once and go on together: answers, log and state are those of one frame after the other."""

import asyncio
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import decode_or_refuse
from schemas.effects import Quarantined, Row
from streaming.fold.live import LiveFold
from streaming.fold.records import Records
from streaming.log.files import read_log
from streaming.protocol.codec import encode, entry
from streaming.server import binary
from streaming.server.binary import BinaryServer
from streaming.server.clock import HeldClock
from streaming.server.embedded import EmbeddedEngine
from streaming.server.entries import RecentEntries
from tests.examples import examples
from tests.server.test_bounds import CONNECT, TOPIC, producer, subscribe

NOW = 1_700_000_000_000
LONG = "persistent://public/default/" + "x" * 5000
"""The gate refuses every command to this topic."""


class Wire(asyncio.Transport):
    """What a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self._closing = b"", False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._closing = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Life(NamedTuple):
    """What was written to each connection, the commands in the log, and the state at the end."""

    written: list[bytes]
    log: list[Any]
    state: Any


def send(producer_id: int, number: int, more: dict[str, Any], payload: bytes) -> bytes:
    metadata = {"producer_name": f"p{producer_id}", "sequence_id": number, "publish_time": NOW, **more}
    return encode("SEND", {"producer_id": producer_id, "sequence_id": number}, entry(metadata, payload))


def ack(kind: str, entries: list[int]) -> bytes:
    ids = [{"ledgerId": 1, "entryId": each} for each in entries]
    return encode("ACK", {"consumer_id": 1, "ack_type": kind, "message_id": ids, "request_id": 8})


def lived(reads: list[tuple[int, bytes]]) -> Life:
    """A server that reads `reads`: from which connection, and what. Its log, folded again, must give the same state."""

    async def main(folder: Path) -> Life:
        engine = EmbeddedEngine(
            folder, clock=HeldClock(NOW), test_double=True, settings={"brokerDeduplicationEnabled": True}
        )
        async with engine:
            server = BinaryServer(engine, "pulsar://here")
            wires = [Wire() for _ in range(2)]
            connections = [server.new_connection() for _ in wires]
            for wire, connection in zip(wires, connections, strict=True):
                connection.connection_made(wire)
            for number, data in reads:
                connections[number].data_received(data)
                await asyncio.sleep(0)  # the engine's round
                await asyncio.sleep(0)  # what comes after it
            server.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            state = engine.snapshot().state
        log = read_log(folder / "commands")
        columns = Records(*(log[name].to_pylist() for name in ("offset", "timestamp", "topic", "value")))
        entries = RecentEntries()
        again = LiveFold(0, entries, None)
        for at in range(len(log)):
            rows = again.answer(Records(*([column[at]] for column in columns)))  # type: ignore[arg-type]
            entries.add(rows)
        assert again.state() == state
        return Life(
            [wire.written for wire in wires],
            list(zip(*columns[:3], map(decode_or_refuse, columns.values), strict=True)),
            state,
        )

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(main(Path(folder)))


MORE: dict[str, st.SearchStrategy[Any]] = {
    "partition_key": st.sampled_from(["", "k"]), "uncompressed_size": st.integers(0, 300), "event_time": st.just(1),
    "num_messages_in_batch": st.just(2),
}  # fmt: skip
SENDS = st.builds(
    send, st.sampled_from([1, 1, 1, 2, 3, 9]), st.integers(0, 300), st.fixed_dictionaries({}, optional=MORE),
    st.binary(max_size=20),
)  # fmt: skip
ACKS = st.builds(
    ack, st.sampled_from(["Individual", "Cumulative"]), st.lists(st.integers(0, 9), min_size=1, max_size=2)
)
OTHER = st.sampled_from(
    [encode("PING", {}), subscribe("s", 3), encode("CLOSE_PRODUCER", {"producer_id": 1, "request_id": 5}), producer(1),
     send(1, 301, {}, b"x")[:-1] + b"y", b"\0\0\0\x05\0\0\0\x01\xff", b"\x7f\0\0\0"]
)  # fmt: skip
FRAMES = st.lists(st.one_of(*[SENDS] * 9, *[ACKS] * 3, OTHER), max_size=30)


@st.composite
def reads(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """What comes through two connections, cut anywhere."""
    found: list[tuple[int, bytes]] = []
    for number in (0, 1):
        opened = CONNECT + producer(1) + producer(2) + producer(3, LONG) * draw(st.booleans())
        stream = opened + b"".join(draw(FRAMES))
        cuts = draw(st.lists(st.integers(0, len(stream)), max_size=4))
        found += [
            (number, stream[start:stop])
            for start, stop in pairwise([0, *sorted([len(opened), *cuts]), len(stream)])
        ]
    return found


@settings(max_examples=examples(40))
@given(reads())
def test_a_server_answers_as_if_it_took_one_frame_after_the_other(given: list[tuple[int, bytes]]) -> None:
    with mock.patch.object(binary, "plain_command", return_value=None):
        one_by_one = lived(given)
    assert lived(given) == one_by_one


@pytest.fixture(autouse=True)
def turns_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast the machine is makes no difference."""
    monkeypatch.setattr(binary, "_TURNS", 1e9)


def together(work: Callable[[EmbeddedEngine, Any, Wire], None]) -> list[int]:
    """How many commands the engine gets at a time from a connection that does `work`."""
    found: list[int] = []

    async def main() -> None:
        async with EmbeddedEngine(clock=HeldClock(NOW)) as engine:
            server, wire = BinaryServer(engine, "pulsar://here"), Wire()
            connection = server.new_connection()
            connection.connection_made(wire)
            connection.data_received(CONNECT + producer(1) + producer(2))
            await asyncio.sleep(0)
            passed_on = engine.post_run

            def seen(topic: str, commands: Any, done: Any) -> None:
                found.append(len(commands))
                passed_on(topic, commands, done)

            engine.post_run = seen  # type: ignore[method-assign]
            work(engine, connection, wire)
            server.close()

    asyncio.run(main())
    return found


def test_sends_of_a_producer_go_on_together() -> None:
    def work(engine: EmbeddedEngine, connection: Any, wire: Wire) -> None:
        data = [send(1, number, {}, b"x") for number in range(5)]
        connection.data_received(
            b"".join(data[:3]) + send(2, 0, {}, b"x") + encode("PING", {}) + b"".join(data[3:])
        )

    assert together(work) == [3, 1, 2]


def test_sends_before_what_is_no_frame_are_carried_out() -> None:
    def work(engine: EmbeddedEngine, connection: Any, wire: Wire) -> None:
        connection.data_received(send(1, 0, {}, b"x") + b"\x7f\0\0\0")
        assert wire.is_closing()
        assert engine.broker.topic(TOPIC).counters.messages_in == 1

    assert together(work) == [1]


def test_the_gate_refuses_sends_to_a_topic_with_too_long_a_name() -> None:
    rows: list[Row] = []

    def work(engine: EmbeddedEngine, connection: Any, wire: Wire) -> None:
        engine.connect(rows.extend)
        connection.data_received(producer(3, LONG) + send(3, 0, {}, b"x"))
        assert engine.broker.topic_names() == [TOPIC]

    assert together(work) == [1]
    assert [row.effect.rule for row in rows if isinstance(row.effect, Quarantined)] == [
        "input.RECORD/topic_length"
    ] * len(rows)
    assert len(rows) == 2
