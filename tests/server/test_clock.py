"""The clock of a server: what a machine's clock may do to it."""

import asyncio
import logging
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import Publish
from streaming.runtime.clock import MAX_AHEAD_MS, RealClock
from streaming.server.clock import HeldClock
from streaming.server.embedded import EmbeddedEngine
from streaming.server.server import Address, Server, bound
from tests.metrics.test_topics import scraped

START, HOUR, YEAR = 1_700_000_000_000, 3_600_000, 365 * 86_400_000
TOPIC = "persistent://public/default/t"


class Machine:
    """A machine's two clocks, in ms."""

    def __init__(self) -> None:
        self.running, self.off = 0, 0

    def passes(self, ms: int) -> None:
        self.running += ms

    def clock(self, max_ahead: int | None = MAX_AHEAD_MS) -> RealClock:
        return RealClock(
            max_ahead,
            machine=lambda: (START + self.running + self.off) * 1_000_000,
            running=lambda: self.running * 1_000_000,
        )


_STEPS = st.lists(
    st.tuples(st.integers(0, 10 * HOUR), st.integers(-YEAR, YEAR) | st.integers(-2 * HOUR, 2 * HOUR)),
    max_size=20,
)


@given(_STEPS)
def test_time_goes_on_whatever_the_machines_clock_does(steps: list[tuple[int, int]]) -> None:
    """It never goes back or stands still, and jumps less far ahead of where it has been than it may."""
    machine = Machine()
    clock = machine.clock()
    times, furthest = [clock.now()], 0
    for passed, jump in steps:
        machine.passes(passed)
        machine.off += jump
        times.append(clock.now())
        assert times[-1] - START - machine.running < furthest + MAX_AHEAD_MS
        furthest = max(furthest, times[-1] - START - machine.running)
    for (before, after), (passed, _) in zip(pairwise(times), steps, strict=True):
        assert after - before >= passed // 2 - 1


@given(_STEPS)
def test_time_comes_back_when_the_machines_clock_does(steps: list[tuple[int, int]]) -> None:
    machine = Machine()
    clock = machine.clock()
    for passed, jump in steps:
        machine.passes(passed)
        machine.off += jump
        clock.now()
    machine.off = 0
    late = clock.now() - (START + machine.running)
    machine.passes(2 * max(late, 0) + 2)
    assert clock.now() == START + machine.running
    assert clock.machine_ahead == 0
    assert clock.trouble is None


def test_a_jump_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    machine = Machine()
    clock = machine.clock()
    machine.off = YEAR
    for _ in range(3):
        machine.passes(1000)
        assert clock.now() == START + machine.running
    assert "31,536,000 s ahead" in caplog.text
    machine.off = 0
    machine.passes(1000)
    assert clock.now() == START + machine.running
    assert len(caplog.records) == 2


def test_a_clock_that_follows_wherever_the_machines_goes() -> None:
    machine = Machine()
    clock = machine.clock(max_ahead=None)
    machine.off = YEAR
    assert clock.now() == START + YEAR


def test_the_clock_of_a_double_that_runs_is_bounded_too() -> None:
    machine = Machine()
    clock = HeldClock(START, machine.clock())
    clock.mode = "real"
    machine.off = YEAR
    machine.passes(1000)
    assert clock.now() == START + 1000
    assert clock.trouble is not None


def test_a_jump_expires_nothing_and_shows_in_metrics_and_health() -> None:
    machine = Machine()

    async def main() -> None:
        engine = EmbeddedEngine(clock=machine.clock(), settings={"ttlDurationDefaultInSeconds": 30})
        sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
        async with engine, Server(engine, sockets[0], admin_listener=sockets[1]) as server:
            await engine.submit(TOPIC, Publish(producer="p", sequence_id=1))
            machine.off = YEAR
            await engine.tick()
            assert engine.broker.clock == START
            async with httpx.AsyncClient(trust_env=False) as http:
                answer = await http.get(f"{server.admin_url}/healthz")
                assert answer.status_code == 200
                assert "31,536,000 s ahead" in answer.text
                found = scraped(server.binary.metrics.collect())
                assert found["magnetar_server_clock_ahead_seconds",] == YEAR / 1000
                machine.off = 0
                await engine.tick()
                assert (await http.get(f"{server.admin_url}/readyz")).text == "ok\n"

    asyncio.run(main())


def test_a_server_goes_on_with_the_time_of_its_data(tmp_path: Path) -> None:
    """Started while the machine's clock was ahead, and again when it was right: time does not stand still."""
    machine = Machine()

    async def serve() -> list[int]:
        async with EmbeddedEngine(tmp_path, clock=machine.clock()) as engine:
            found = [engine.broker.clock]
            machine.passes(1000)
            await engine.tick()
            return [*found, engine.broker.clock]

    machine.off = YEAR
    first = asyncio.run(serve())
    machine.off = 0
    second = asyncio.run(serve())
    assert first == [START + YEAR, START + YEAR + 1000]
    assert second == [first[1], first[1] + 500]
