"""maxEffectsPerCommand: what one command sets off comes in parts, each of a bounded size, and all of it comes."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.commands import SubType
from schemas.effects import Effect, Message
from tests.broker.kit import START, Run

SUBSCRIPTIONS, ENTRIES, READ, MOST = 12, 60, 10, 40

Event = Callable[[Run], list[Effect]]


def _subscribe(run: Run, type_: SubType, connection: str, permits: int) -> None:
    for n in range(SUBSCRIPTIONS):
        run.subscribe(f"s{n}", type_, connection=connection, id_=n, permits=permits)


def _fill(run: Run, count: int = ENTRIES, **fields: Any) -> None:
    for n in range(count):
        run.send(n, partition_key=str(n), **fields)


def _lost_connection(run: Run, type_: SubType) -> Event:
    """One connection has all entries of all subscriptions, another one has consumers for them."""
    _subscribe(run, type_, "a", ENTRIES)
    _fill(run)
    _subscribe(run, type_, "b", ENTRIES)
    return lambda run: run.lose("a")


def _removed_rate(run: Run, type_: SubType) -> Event:
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 3600}
    run.namespace("POST", "subscriptionDispatchRate", rate)
    _subscribe(run, type_, "a", ENTRIES)
    _fill(run)
    run.namespace("DELETE", "subscriptionDispatchRate")
    return lambda run: run.wait(1)


def _delayed(run: Run, type_: SubType) -> Event:
    _fill(run, deliver_at_time=START + 60_000)
    _subscribe(run, type_, "a", ENTRIES)
    return lambda run: run.wait(61)


def _redelivery(run: Run, type_: SubType) -> Event:
    run.subscribe("s", type_, connection="a", permits=10 * ENTRIES)
    _fill(run, 4 * ENTRIES)
    return lambda run: run.redeliver("a")


def _flow(run: Run, type_: SubType) -> Event:
    run.subscribe("s", type_, connection="a")
    _fill(run)
    return lambda run: run.flow("a", ENTRIES)


def _failover_delay(run: Run, type_: SubType) -> Event:
    _subscribe(run, type_, "a", ENTRIES)
    _fill(run)
    return lambda run: run.wait(10)


CASES: list[tuple[Callable[[Run, SubType], Event], SubType]] = [
    (_lost_connection, "Shared"), (_lost_connection, "Key_Shared"), (_lost_connection, "Failover"),
    (_removed_rate, "Exclusive"), (_removed_rate, "Shared"), (_removed_rate, "Key_Shared"),
    (_delayed, "Shared"), (_delayed, "Key_Shared"),
    (_redelivery, "Exclusive"), (_redelivery, "Shared"), (_redelivery, "Key_Shared"),
    (_flow, "Exclusive"), (_flow, "Failover"), (_flow, "Shared"), (_flow, "Key_Shared"),
    (_failover_delay, "Failover"),
]  # fmt: skip


def _parts(case: Callable[[Run, SubType], Event], type_: SubType, most: int) -> list[list[Message]]:
    """The messages of the event, and of each millisecond after it until nothing is due."""
    run = Run(
        dispatcherMaxReadBatchSize=READ, maxEffectsPerCommand=most, activeConsumerFailoverDelayTimeMillis=5000,
        maxUnackedMessagesPerConsumer=0, maxUnackedMessagesPerSubscription=0,
    )  # fmt: skip
    run.create_producer()
    event = case(run, type_)
    found = [[each for each in event(run) if isinstance(each, Message)]]
    while run.broker.next_due() <= run.now + 60_000:
        run.now = max(run.now, run.broker.next_due() - 1)
        found.append([each for each in run.wait(0.001) if isinstance(each, Message)])
    return found


@pytest.mark.parametrize(("case", "type_"), CASES)
def test_what_a_command_sets_off_comes_in_parts(
    case: Callable[[Run, SubType], Event], type_: SubType
) -> None:
    def received(parts: list[list[Message]]) -> dict[tuple[str, int], list[tuple[int, int]]]:
        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for message in (each for part in parts for each in part):
            found.setdefault((message.connection, message.consumer_id), []).append(
                (message.ledger_id, message.entry_id)
            )
        return found

    at_once, parts = _parts(case, type_, 0), _parts(case, type_, MOST)
    assert max(map(len, at_once)) > MOST + READ
    assert max(map(len, parts)) <= MOST + READ
    assert received(parts) == received(at_once)
    total = sum(map(len, at_once))
    assert len(parts) <= len(at_once) + total // MOST + 1
