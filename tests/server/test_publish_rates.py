"""A server carries out no commands of a connection that exceeds a publish rate, as a broker reads none."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from schemas.commands import Admin, ConnectionLost, MessageMetadata, Producer, Send, to_json
from schemas.effects import PublishThrottled, Row, SendReceipt
from streaming.broker.context import NEVER, Throttled
from streaming.server.binary import BinaryServer
from streaming.server.clock import HeldClock
from streaming.server.control import Control
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.paused import PausedConnections

START = 1_700_000_000_000
TOPIC = "persistent://public/default/t"
OTHER = "persistent://public/default/u"


class Traffic:
    """An engine under a held clock, and what its connections got."""

    def __init__(self, folder: Path | None = None) -> None:
        self.clock = HeldClock(START)
        self.engine = EmbeddedEngine(
            folder, clock=self.clock, begins_with=STANDALONE, test_double=folder is None
        )
        self.rows: list[Row] = []
        self.carried_out: dict[str, int] = {}

    async def __aenter__(self) -> "Traffic":
        await self.engine.__aenter__()
        self.engine.connect(self.rows.extend)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.engine.__aexit__(*error)

    async def limit(self, topic: str = TOPIC, **rate: Any) -> None:
        path = "/" + topic.replace("://", "/")
        await self.engine.submit(topic, Admin(connection="admin", method="PUT", path=path))
        call = Admin(connection="admin", method="POST", path=f"{path}/publishRate", body=rate)
        (row,) = await self.engine.submit(topic, call)
        assert row.effect.fields.status == 204  # type: ignore[union-attr]

    async def producer(self, *topics: str, producer_id: int = 1) -> str:
        connection = self.engine.new_connection()
        for number, topic in enumerate(topics or (TOPIC,)):
            command = Producer(connection=connection, producer_id=producer_id + number, request_id=number)
            await self.engine.submit(topic, command, connection)
        return connection

    def send(self, connection: str, count: int, topic: str = TOPIC, producer_id: int = 1) -> None:
        def done(commands: int) -> None:
            self.carried_out[connection] = self.carried_out.get(connection, 0) + commands

        sends = [
            Send(
                connection=connection, producer_id=producer_id, sequence_id=number, payload="x",
                metadata=MessageMetadata("p", number, START),
            )
            for number in range(count)
        ]  # fmt: skip
        self.engine.post_run(topic, sends, done)

    async def receipts(self, connection: str) -> int:
        await self.engine.tick()
        await asyncio.sleep(0)
        effects = [row.effect for row in self.rows]
        return sum(type(each) is SendReceipt and each.connection == connection for each in effects)

    async def wait(self, ms: int) -> None:
        self.clock.move_to(self.clock.now() + ms)
        await self.engine.tick()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_receipts_come_as_fast_as_the_rate() -> None:
    async def main() -> None:
        async with Traffic() as traffic:
            await traffic.limit(publishThrottlingRateInMsg=5)
            limited, free = await traffic.producer(), await traffic.producer(OTHER)
            traffic.send(limited, 25)
            traffic.send(free, 25, OTHER)
            assert await traffic.receipts(limited) == traffic.carried_out[limited] == 5
            assert await traffic.receipts(free) == 25
            got = []
            for _ in range(22):
                await traffic.wait(200)
                got.append(await traffic.receipts(limited))
            assert got == [*range(6, 26), 25, 25]
            throttled = [row.effect for row in traffic.rows if type(row.effect) is PublishThrottled]
            assert [each.fields.until - START for each in throttled] == [200 * (n + 1) for n in range(21)]
            assert {(each.topic, each.connection) for each in throttled} == {(TOPIC, limited)}

    run(main())


def test_two_connections_share_a_rate_in_turn() -> None:
    async def main() -> None:
        async with Traffic() as traffic:
            await traffic.limit(publishThrottlingRateInMsg=10)
            both = [await traffic.producer(), await traffic.producer()]
            for each in both:
                traffic.send(each, 50)
            for _ in range(60):
                await traffic.wait(100)
            counts = [await traffic.receipts(each) for each in both]
            assert sum(counts) <= 10 + 61
            assert min(counts) >= 25

    run(main())


def test_a_connection_that_is_lost_takes_what_was_not_read_with_it() -> None:
    async def main() -> None:
        async with Traffic() as traffic:
            await traffic.limit(publishThrottlingRateInMsg=5)
            lost = await traffic.producer()
            traffic.send(lost, 25)
            assert await traffic.receipts(lost) == 5
            traffic.engine.post(lost, None, to_json(ConnectionLost(connection=lost)))
            await traffic.wait(60_000)
            assert traffic.carried_out[lost] == 25  # none of them counts as under way any more
            assert traffic.engine.resumes_at == NEVER
            assert traffic.engine.broker.topic(TOPIC).counters.messages_in == 5
            assert not traffic.engine.broker.topic(TOPIC).producers

    run(main())


@pytest.mark.parametrize("how", ["policy", "unload", "delete"])
def test_a_rate_that_ends_lets_its_connections_go(how: str) -> None:
    """Once the time is over for which they were paused."""

    async def main() -> None:
        async with Traffic() as traffic:
            await traffic.limit(publishThrottlingRateInMsg=1)
            connection = await traffic.producer(TOPIC, OTHER)
            traffic.send(connection, 3)
            traffic.send(connection, 3, OTHER, producer_id=2)
            assert await traffic.receipts(connection) == 1
            path = TOPIC.replace("://", "/")
            method: Any
            method, call = {
                "policy": ("DELETE", "/publishRate"), "unload": ("PUT", "/unload"), "delete": ("DELETE", "?force=true"),
            }[how]  # fmt: skip
            await traffic.engine.submit(
                TOPIC, Admin(connection="admin", method=method, path=f"/{path}{call}")
            )
            assert await traffic.receipts(connection) == 1
            await traffic.wait(1000)
            assert await traffic.receipts(connection) >= 4

    run(main())


def test_a_log_of_it_replays_to_the_same(tmp_path: Path) -> None:
    """The log has the commands in the order and at the times in which they were carried out."""

    async def main() -> None:
        async with Traffic(tmp_path) as traffic:
            await traffic.limit(publishThrottlingRateInMsg=5)
            connection = await traffic.producer()
            traffic.send(connection, 25)
            for _ in range(8):
                await traffic.wait(350)
            assert 5 < await traffic.receipts(connection) < 25
            size = traffic.engine.broker.topic(TOPIC).ledger.total_size
        async with EmbeddedEngine(tmp_path, clock=HeldClock(START)) as again:
            assert again.broker.topic(TOPIC).ledger.total_size == size

    run(main())


def test_a_clock_that_jumps_stops_where_messages_are_due() -> None:
    async def main() -> None:
        async with Traffic() as traffic:
            await traffic.limit(publishThrottlingRateInMsg=5)
            connection = await traffic.producer()
            traffic.send(connection, 25)
            assert await traffic.receipts(connection) == 5
            assert traffic.engine.next_due() == START + 200
            server = BinaryServer(traffic.engine, "pulsar://localhost:6650")
            traffic.engine.connect(traffic.rows.extend)
            await Control(traffic.engine, server, traffic.clock)._move_to(START + 3000)
            assert await traffic.receipts(connection) == 20
            times = {row.clock - START for row in traffic.rows if type(row.effect) is SendReceipt}
            assert times == {0, *range(200, 3001, 200)}

    run(main())


def test_connections_that_come_and_go_leave_nothing() -> None:
    paused = PausedConnections()
    for number in range(5000):
        paused.add(Throttled(TOPIC, f"c{number}", START + number))
        if number >= 10:
            assert paused.remove(f"c{number - 10}")
    assert len(paused._by_time) < 2000
    assert paused.next == START + 4990
    found = [
        (connection, topics, paused.remove(connection)) for connection, topics in paused.over(START + 4994)
    ]
    assert found == [(f"c{number}", {TOPIC}, True) for number in range(4990, 4995)]
    paused.add(Throttled(OTHER, "c4995", START + 1))
    assert paused.next == START + 4995  # the other topic's pause is longer
    paused.put_off("c4995", START + 9000)
    assert sorted(paused) == [f"c{number}" for number in range(4995, 5000)]
    assert paused.next == START + 4996
