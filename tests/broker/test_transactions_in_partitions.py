"""A transaction whose topics lie in different ingress partitions: requests to its coordinator come to all of them (docs/rules/transactions.md §9)."""

from typing import Any

import pytest

from schemas.commands import (
    AddPartitionToTxn,
    AddSubscriptionToTxn,
    AnyCommand,
    BrokerConfig,
    EndTxn,
    NewTxn,
    Restart,
    TcClientConnectRequest,
    TxnSubscription,
)
from schemas.effects import Effect, EndTxnResponse, Message, NewTxnResponse, Quarantined
from streaming.broker.broker import Broker, OneOfSeveral
from streaming.broker.entries import NoEntries
from streaming.broker.names import COORDINATOR_ASSIGN
from streaming.broker.position import Position
from streaming.broker.transactions.coordinator import GRACE
from tests.broker.kit import START, of, one
from tests.broker.test_transactions import COORDINATOR, Transacting, entries

pytestmark = pytest.mark.feature("L1", "L2", "L3")

SECOND = 1000


class Part(Transacting):
    """An ingress partition with the topic of the kit, a producer, and a consumer."""

    def __init__(self, now: int) -> None:
        super().__init__(now=now)
        self.subscribe("s", "Shared", permits=99)

    def configure(self, *_: Any, **settings: Any) -> None:
        self.broker = OneOfSeveral()
        super().configure(**settings)

    def connect(self, id_: int = 0) -> Any:
        """For the base's sake: all partitions connect together."""


class Parts:
    """Two ingress partitions. `now` (ms): the time of the next request, which goes to both."""

    def __init__(self, ahead: int = 0) -> None:
        """`ahead`: by so many ms is the second one's clock ahead."""
        self.now = START
        self.parts = [Part(START), Part(START + ahead)]
        self.ask(TcClientConnectRequest(connection="client", request_id=1, tc_id=0))

    def ask(self, command: AnyCommand) -> list[list[Effect]]:
        """The effects in each."""
        found = []
        for each in self.parts:
            own, each.now = each.now, self.now
            found.append(each.do(command, None))
            each.now = max(own, self.now)
        return found

    def begin(self, seconds: int = 60) -> int:
        answers = self.ask(NewTxn(connection="client", request_id=2, txn_ttl_seconds=seconds * SECOND))
        first, second = (one(each, NewTxnResponse) for each in answers)
        assert first == second
        least = first.fields.txnid_least_bits
        assert isinstance(least, int)
        topics = ["t", "elsewhere"]
        self.ask(
            AddPartitionToTxn(connection="client", request_id=3, txnid_least_bits=least, partitions=topics)
        )
        parts = [TxnSubscription("t", "s")]
        self.ask(
            AddSubscriptionToTxn(
                connection="client", request_id=4, txnid_least_bits=least, subscription=parts
            )
        )
        return least

    def end(self, least: int, action: Any = "COMMIT") -> list[tuple[str | None, list[int]]]:
        """The error and the entries that are sent in each."""
        effects = self.ask(
            EndTxn(connection="client", request_id=5, txnid_least_bits=least, txn_action=action)
        )
        return [(one(each, EndTxnResponse).error, entries(each)) for each in effects]

    def again(self) -> None:
        """Go on from their states."""
        for each in self.parts:
            each.broker = OneOfSeveral.decode(each.broker.encode(), NoEntries())


def test_it_ends_in_all_of_them() -> None:
    both = Parts(ahead=30 * SECOND)
    first, second = both.begin(), both.begin()
    for each in both.parts:
        each.publish(0, "q")
        each.send_in(first, 0)
        each.send_in(second, 1)
        each.ack_in(first, "s", (1, 0))
    assert both.end(first) == [(None, [1])] * 2
    assert both.end(second, "ABORT") == [(None, [])] * 2
    assert [each.mark_delete("s") for each in both.parts] == [Position(1, 0)] * 2
    assert [each.ongoing() for each in both.parts] == [[], []]


def test_a_request_at_its_time_ends_it_in_all_whatever_their_clocks() -> None:
    both = Parts(ahead=30 * SECOND)
    in_time, late = both.begin(20), both.begin(20)
    for each in both.parts:
        each.send_in(in_time, 0)
        each.send_in(late, 1)
        assert entries(each.wait(0)) == []  # the second one's clock is past its end
    both.now += 19 * SECOND
    assert both.end(in_time) == [(None, [0])] * 2
    both.now += SECOND
    assert both.end(late) == [("TransactionNotFound", [])] * 2
    assert [each.ongoing() for each in both.parts] == [[], []]


def test_a_silence_ends_it_too() -> None:
    both = Parts()
    least = both.begin(20)
    for each in both.parts:
        each.send_in(least, 0)
        each.wait(20 + GRACE / SECOND - 1)
        assert each.ongoing() == ["(0,0)"]
        each.wait(1)
        assert each.ongoing() == []


def test_states_have_it() -> None:
    both = Parts()
    least = both.begin()
    for each in both.parts:
        each.send_in(least, 0)
    both.again()
    both.ask(Restart())
    both.ask(TcClientConnectRequest(connection="client", request_id=1, tc_id=0))
    assert both.end(least, "ABORT") == [(None, [])] * 2
    assert [each.ongoing() for each in both.parts] == [[], []]


def test_what_cannot_end_is_not_answered_where_it_cannot() -> None:
    both = Parts()
    least = both.begin()
    both.parts[1].admin("POST", "/terminate")
    answers = both.ask(EndTxn(connection="client", request_id=5, txnid_least_bits=least))
    assert [len(of(each, EndTxnResponse)) for each in answers] == [1, 0]
    assert both.end(least) == [("TransactionNotFound", [])] * 2


def test_a_request_to_one_of_several_is_refused() -> None:
    request = NewTxn(connection="client", request_id=1)
    refused = one(Parts().parts[0].do(request, COORDINATOR), Quarantined)
    assert refused.rule == "wrong_topic"
    assert "leave out the topic" in refused.cause


def test_one_that_is_alone_takes_both() -> None:
    run = Transacting()
    run.subscribe("s", permits=9)
    request = NewTxn(connection="client", request_id=1, txn_ttl_seconds=60_000)
    assert [one(run.do(request, where), NewTxnResponse).topic for where in (None, COORDINATOR)] == [
        COORDINATOR
    ] * 2
    assert not of(run.do(BrokerConfig(), None), Message)
    assert isinstance(run.broker, Broker)
    assert COORDINATOR.startswith(COORDINATOR_ASSIGN)
