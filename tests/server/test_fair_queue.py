"""Whoever asks for little gets it soon, however much others ask for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import (
    ConnectionLost,
    Flow,
    MessageMetadata,
    Producer,
    Publish,
    Send,
    Subscribe,
    to_json,
)
from schemas.effects import Message, Row, SendReceipt, Success
from streaming.broker.broker import Broker
from streaming.server import embedded
from streaming.server.clock import HeldClock
from streaming.server.data_folder import DataFolder
from streaming.server.embedded import EmbeddedEngine
from streaming.server.engine import EngineStopped
from streaming.server.fair_queue import FairQueue, TakenTurn

_COSTS = st.sampled_from([0.001, 0.01, 0.1, 1.0])
_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), _COSTS),
        st.tuples(st.just("take"), st.integers(1, 4), _COSTS),
        st.tuples(st.just("put back"), st.integers(1, 4), _COSTS),
    ),
    max_size=60,
)


@given(_OPERATIONS)
def test_each_comes_once_and_in_the_order_of_its_key(operations: list[tuple[str, int, float]]) -> None:
    queue: FairQueue[int, int] = FairQueue()
    put, got = defaultdict(list), defaultdict(list)
    for number, (operation, many, cost) in enumerate(operations):
        if operation == "put":
            queue.put(many, number, cost)
            put[many].append(number)
            continue
        taken = [queue.take() for _ in range(many) if len(queue)]
        if operation == "take":
            queue.spent([(each, cost) for each in taken])
        else:
            done, left = taken[:1], taken[1:]
            for each in reversed(left):
                queue.put_back(each, cost=cost)
            queue.spent([(each, cost) for each in done])
            taken = done
        for each in taken:
            got[each.key].append(each.item)
    while len(queue):
        each = queue.take()
        got[each.key].append(each.item)
    assert got == put


@given(
    st.lists(st.lists(st.tuples(_COSTS, _COSTS), min_size=1, max_size=30), min_size=1, max_size=8),
    st.integers(0, 40),
)
def test_little_comes_before_much(others: list[list[tuple[float, float]]], when: int) -> None:
    """Whatever others ask for, by whatever estimates: before it, each has what it lags behind, and an item whose cost was not known."""
    queue: FairQueue[str, float] = FairQueue()
    for key, items in enumerate(others):
        for estimate, cost in items:
            queue.put(f"other {key}", cost, estimate)
    costs: list[tuple[str, float]] = []

    def one() -> TakenTurn[str, float]:
        taken = queue.take()
        queue.spent([(taken, taken.item)])
        costs.append((taken.key, taken.item))
        return taken

    for _ in range(min(when, sum(map(len, others)))):
        one()
    queue.put("little", 0.0, 0.0)
    del costs[:]
    while one().key != "little":
        pass
    had: dict[str, float] = defaultdict(float)
    for who, cost in costs:
        had[who] += cost
    assert max(had.values()) <= 2 * max(max(each) for items in others for each in items)


@given(st.lists(_COSTS, min_size=2, max_size=6), st.integers(1, 300))
def test_all_have_the_same(costs: list[float], rounds: int) -> None:
    """Of those that always want more, none gets ahead of another by more than the largest item of each."""
    queue: FairQueue[int, None] = FairQueue()
    had = [0.0] * len(costs)
    for key in range(len(costs)):
        queue.put(key, None, 0.01)
    for _ in range(rounds):
        taken = queue.take()
        had[taken.key] += costs[taken.key]
        queue.put(taken.key, None, 0.01)
        queue.spent([(taken, costs[taken.key])])
    assert max(had) - min(had) <= 2 * max(costs) + 0.01 * len(costs)


def test_it_keeps_nothing_of_those_that_are_gone() -> None:
    queue: FairQueue[int, None] = FairQueue()
    queue.put(-1, None, 1.0)
    for key in range(100_000):
        queue.put(key, None, 1e-4)
        taken = queue.take()
        queue.spent([(taken, 1e-5)])
    assert len(queue) <= 2
    assert len(queue._had) <= 2048
    assert len(queue._tags) <= 2048


TOPIC, OTHER = "persistent://public/default/t", "persistent://public/default/other"
_METADATA = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
_ROW = 0.001
"""What a row costs here (s): a round has 50 of them."""


class _Rows:
    """Time that goes on with the rows which an engine has made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        emit = Broker.apply

        def counted(broker: Broker, *words: object) -> None:
            before = len(broker._ctx.rows)
            emit(broker, *words)  # type: ignore[arg-type]
            self.made += max(len(broker._ctx.rows) - before, 0)

        monkeypatch.setattr(Broker, "apply", counted)
        now = SimpleNamespace(monotonic=lambda: self.made * _ROW, thread_time=lambda: self.made * _ROW)
        monkeypatch.setattr(embedded, "time", now)
        monkeypatch.setattr(embedded, "_ROW_SECONDS", _ROW)


def _sends(connection: str, count: int) -> list[Send]:
    return [
        Send(
            connection=connection, producer_id=1, sequence_id=number, payload="x", metadata=_METADATA
        )
        for number in range(count)
    ]  # fmt: skip


async def _opened(engine: EmbeddedEngine, topic: str, connection: str) -> None:
    await engine.submit(topic, Producer(connection=connection, producer_id=1, request_id=1))


def _subscribe(connection: str, number: int) -> Subscribe:
    return Subscribe(
        connection=connection, consumer_id=number, request_id=number, subscription=f"{connection}-{number}",
        subType="Exclusive", initialPosition="Earliest",
    )  # fmt: skip


@pytest.mark.parametrize("attack", ["many that flow", "publishes with many deliveries"])
@pytest.mark.parametrize("durable", [False, True])
def test_a_publish_waits_for_little(
    attack: str, durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connections ask for deliveries, and however many a publish of theirs has."""
    rows = _Rows(monkeypatch)
    delivered: list[Row] = []

    async def work() -> None:
        folder = tmp_path if durable else None
        engine = EmbeddedEngine(folder, clock=HeldClock(1_700_000_000_000), test_double=True)
        async with engine:
            engine.connect(delivered.extend)
            await _opened(engine, OTHER, "other")
            if attack == "many that flow":
                for number in range(200):
                    await engine.submit(TOPIC, Publish(producer="q", sequence_id=number))
                for number in range(40):
                    await engine.submit(TOPIC, _subscribe(f"{number}", 1))
                flow = Flow(connection="", consumer_id=1, messagePermits=1000)
                before = rows.made
                for number in range(40):
                    engine.post(f"{number}", TOPIC, to_json(_of(flow, f"{number}")), answers=1000)
            else:
                for number in range(100):
                    await engine.submit(TOPIC, _subscribe("c", number))
                    await engine.submit(TOPIC, Flow(connection="c", consumer_id=number, messagePermits=1000))
                for number in range(4):
                    await _opened(engine, TOPIC, f"p{number}")
                before = rows.made
                for number in range(4):
                    engine.post_run(TOPIC, _sends(f"p{number}", 50), _nothing)
            most = 0
            for send in _sends("other", 10):
                came = rows.made
                engine.post_run(OTHER, [send], _nothing)
                while not any(_is_receipt(row, send) for row in delivered):
                    await asyncio.sleep(0)
                most = max(most, rows.made - came)
            assert (
                most <= 3 * 0.05 / _ROW + 300
            )  # the rounds of a turn of the loop, each with the command that goes beyond it
            await engine.submit(TOPIC, Publish(producer="last", sequence_id=1))
            assert engine.broker.topic(TOPIC)
            assert rows.made - before >= 8_000
            state = engine._fold.state().broker
        if durable:
            assert sum(type(row.effect) is Message for row in delivered) >= 8_000
            again = EmbeddedEngine(tmp_path, clock=HeldClock(1_700_000_000_000), test_double=True)
            folded = DataFolder(tmp_path, fsync=False, test_double=True)
            with folded:
                assert folded.recover(None, first=1)[1].state().broker == state
            assert again.shows_topic_events

    asyncio.run(work())


def _of(flow: Flow, connection: str) -> Flow:
    return Flow(connection=connection, consumer_id=flow.consumer_id, messagePermits=flow.messagePermits)


def _is_receipt(row: Row, send: Send) -> bool:
    effect = row.effect
    return (
        type(effect) is SendReceipt
        and effect.connection == send.connection
        and effect.sequence_id == send.sequence_id
    )


def _nothing(count: int) -> None:
    pass


def test_rows_that_take_long_to_deliver_come_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds are written to the disk while others, which are on it, wait to be delivered."""
    rows = _Rows(monkeypatch)
    delivered: list[Row] = []

    def slow(come: Sequence[Row]) -> None:
        delivered.extend(come)
        rows.made += 1000  # each takes longer than a turn

    async def work() -> None:
        async with EmbeddedEngine(tmp_path, clock=HeldClock(1_700_000_000_000)) as engine:
            engine.connect(slow)
            await _opened(engine, TOPIC, "p")
            done: list[int] = []
            for send in _sends("p", 300):
                engine.post_run(TOPIC, [send], done.append)
                await asyncio.sleep(0.0005 if send.sequence_id % 7 == 0 else 0)
            while len(done) < 300 and not engine.failed.done():
                await asyncio.sleep(0)
            assert not engine.failed.done()
            assert not engine._durable
            assert not engine._undelivered

    asyncio.run(work())
    receipts = [row.effect.sequence_id for row in delivered if type(row.effect) is SendReceipt]
    assert receipts == list(range(300))


def test_a_connection_is_lost_before_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the lost one has used much, and another one is busy."""
    _Rows(monkeypatch)
    delivered: list[Row] = []

    async def work() -> None:
        async with EmbeddedEngine(clock=HeldClock(1_700_000_000_000)) as engine:
            engine.connect(delivered.extend)
            for connection in ("a", "busy"):
                for number in range(50):
                    await engine.submit(TOPIC, _subscribe(connection, number))
                    flow = Flow(connection=connection, consumer_id=number, messagePermits=10_000)
                    await engine.submit(TOPIC, flow)
                await _opened(engine, TOPIC, connection)
            sent: list[int] = []
            engine.post_run(TOPIC, _sends("busy", 100), _nothing)
            engine.post_run(TOPIC, _sends("a", 20), sent.append)
            while sum(sent) < 20:
                await asyncio.sleep(0)
            engine.post("a", None, to_json(ConnectionLost(connection="a")))
            again = _subscribe("b", 1)
            again.subscription = "a-1"
            rows = await engine.submit(TOPIC, again, "b")
            assert [type(row.effect) for row in rows] == [Success]

    asyncio.run(work())


def test_a_server_that_stops_leaves_what_would_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _Rows(monkeypatch)

    async def work() -> Sequence[object]:
        engine = EmbeddedEngine(clock=HeldClock(1_700_000_000_000))
        async with engine:
            for number in range(100):
                await engine.submit(TOPIC, _subscribe("c", number))
                await engine.submit(TOPIC, Flow(connection="c", consumer_id=number, messagePermits=1000))
            await _opened(engine, TOPIC, "p")
            engine.post_run(TOPIC, _sends("p", 1000), _nothing)
            asked = asyncio.ensure_future(engine.submit(TOPIC, Publish(producer="q", sequence_id=1), "p"))
            await asyncio.sleep(0)
            before = rows.made
        assert rows.made - before <= 1 / _ROW + 300
        return await asyncio.gather(asked, return_exceptions=True)

    (why,) = asyncio.run(work())
    assert isinstance(why, EngineStopped)


def test_what_a_publish_is_expected_to_cost() -> None:
    """A row for each subscription of a topic that is loaded."""

    async def work() -> None:
        async with EmbeddedEngine(clock=HeldClock(1_700_000_000_000)) as engine:
            assert engine.broker.fan_out(TOPIC) == 0
            for number in range(3):
                await engine.submit(TOPIC, _subscribe("c", number))
            assert engine.broker.fan_out(TOPIC) == 3

    asyncio.run(work())


def test_what_a_lost_connection_asked_for_is_not_done() -> None:
    """Its messages would go nowhere. What it sent is carried out."""
    delivered: list[Row] = []
    done: list[str] = []

    async def work() -> None:
        async with EmbeddedEngine(clock=HeldClock(1_700_000_000_000)) as engine:
            engine.connect(delivered.extend)
            await _opened(engine, TOPIC, "c")
            await engine.submit(TOPIC, _subscribe("c", 1))
            engine.post_run(TOPIC, _sends("c", 3), lambda count: done.append(f"{count} sent"))
            flow = to_json(Flow(connection="c", consumer_id=1, messagePermits=1000))
            engine.post("c", TOPIC, flow, lambda: done.append("flow"), answers=1000)
            engine.post("c", None, to_json(ConnectionLost(connection="c")), lambda: done.append("lost"))
            await engine.tick()
            assert engine.broker.topic_stats(TOPIC)["stats"]["msgInCounter"] == 3

    asyncio.run(work())
    assert sorted(done) == ["3 sent", "flow", "lost"]
    assert not any(isinstance(row.effect, Message) for row in delivered)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), _COSTS), max_size=30),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_what_is_dropped_is_gone_and_all_else_stays(
    items: list[tuple[int, int, float]], key: int, value: int
) -> None:
    queue: FairQueue[int, int] = FairQueue()
    expected = defaultdict(list)
    for of, item, cost in items:
        queue.put(of, item, cost)
        if (of, item) != (key, value):
            expected[of].append(item)
    assert queue.drop(key, lambda item: item == value) == [
        item for of, item, _ in items if (of, item) == (key, value)
    ]
    found = defaultdict(list)
    while len(queue):
        taken = queue.take()
        found[taken.key].append(taken.item)
        queue.spent([(taken, 0.01)])
    assert found == expected
