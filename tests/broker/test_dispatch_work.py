"""A message that is published, delivered and acknowledged causes no work without a result. Reads and timers are counted."""

from typing import Any

import pytest

from schemas.commands import SubType
from schemas.effects import Message
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.position import Position
from tests.broker.kit import Run, of

TYPES: list[SubType] = ["Exclusive", "Failover", "Shared", "Key_Shared"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries each read of a cursor found."""
    found: list[int] = []
    read = ManagedCursor.read

    def counted(cursor: ManagedCursor, ledger: ManagedLedger, n: int, **how: Any) -> list[Position]:
        positions = read(cursor, ledger, n, **how)
        found.append(len(positions))
        return positions

    monkeypatch.setattr(ManagedCursor, "read", counted)
    return found


def consumed(type_: SubType) -> Run:
    """A topic whose subscription has a consumer with permits, and has read everything."""
    run = Run()
    run.subscribe("s", type_, permits=100)
    run.publish(0)
    run.wait(10)
    return run


@pytest.mark.parametrize("type_", TYPES)
def test_a_new_message_is_sent_without_a_search_for_it(type_: SubType, reads: list[int]) -> None:
    run = consumed(type_)
    reads.clear()
    for number in range(1, 6):
        assert len(of(run.publish(number, key=str(number)), Message)) == 1
        run.ack("s", (1, number))
        run.wait(1)
    assert reads == []


@pytest.mark.parametrize("type_", TYPES)
def test_permits_and_acks_read_nothing_while_a_read_waits(type_: SubType, reads: list[int]) -> None:
    run = consumed(type_)
    reads.clear()
    run.flow("s", 5)
    run.ack("s", (1, 0))
    assert reads == []


def test_an_ack_sets_no_timer_while_a_read_waits() -> None:
    run = consumed("Key_Shared")
    before = run.broker.pending_timers()
    run.ack("s", (1, 0))
    assert run.broker.pending_timers() == before
