"""Transactions: what the recordings of a real 4.0.7 do not show, and how the state, faults and time go with them (docs/rules/transactions.md)."""

from itertools import chain
from random import Random
from typing import Any

import pytest

from schemas.commands import (
    Ack,
    AddPartitionToTxn,
    AddSubscriptionToTxn,
    EndTxn,
    MessageIdData,
    MessageMetadata,
    NewTxn,
    Publish,
    Refused,
    Restart,
    Send,
    TcClientConnectRequest,
    TxnSubscription,
)
from schemas.effects import (
    AckResponse,
    CompactedEntry,
    Effect,
    EndTxnResponse,
    Error,
    LedgerDeleted,
    Message,
    NewTxnResponse,
    Quarantined,
    SendError,
    SendReceipt,
    TcClientConnectResponse,
)
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.names import COORDINATOR_ASSIGN
from streaming.broker.position import Position
from streaming.broker.transactions import coordinator, pending_acks, transaction_buffer
from streaming.broker.transactions.transaction_buffer import TxnID
from tests.broker.kit import TOPIC, Run, of, one, response

COORDINATOR = f"{COORDINATOR_ASSIGN}-partition-0"

pytestmark = pytest.mark.feature("L1", "L2", "L3")


class Transacting(Run):
    """A broker with transactions, a client with producer `p`, and coordinator 0."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            transactionCoordinatorEnabled=True, acknowledgmentAtBatchIndexLevelEnabled=True, **settings
        )
        self.create_producer()
        self.connect()

    def connect(self, id_: int = 0) -> TcClientConnectResponse:
        command = TcClientConnectRequest(connection="client", request_id=self.request(), tc_id=id_)
        return one(self.do(command, f"{COORDINATOR_ASSIGN}-partition-{id_}"), TcClientConnectResponse)

    def ask(self, command: Any) -> list[Effect]:
        return self.do(command, COORDINATOR)

    def begin(self, ttl: int = 600_000, *, topic: str | None = TOPIC, subscription: str | None = None) -> int:
        effects = self.ask(NewTxn(connection="client", request_id=self.request(), txn_ttl_seconds=ttl))
        least = one(effects, NewTxnResponse).fields.txnid_least_bits
        assert isinstance(least, int)
        if topic is not None:
            self.ask(
                AddPartitionToTxn(
                    connection="client", request_id=1, txnid_least_bits=least, partitions=[topic]
                )
            )
        if subscription is not None:
            parts = [TxnSubscription(TOPIC, subscription)]
            self.ask(
                AddSubscriptionToTxn(
                    connection="client", request_id=1, txnid_least_bits=least, subscription=parts
                )
            )
        return least

    def end(self, least: int, action: Any = "COMMIT") -> list[Effect]:
        return self.ask(
            EndTxn(connection="client", request_id=self.request(), txnid_least_bits=least, txn_action=action)
        )

    def send_in(self, least: int, sequence_id: int, **more: Any) -> list[Effect]:
        metadata = MessageMetadata(
            "p", sequence_id, self.now, txnid_least_bits=least, txnid_most_bits=0, **more
        )
        return self.do(
            Send(
                connection="client", producer_id=1, sequence_id=sequence_id, metadata=metadata, payload="x",
                txnid_least_bits=least, txnid_most_bits=0,
            )
        )  # fmt: skip

    def ack_in(self, least: int, name: str, *positions: tuple[int, int]) -> AckResponse:
        ids = [MessageIdData(*at) for at in positions]
        command = Ack(
            connection=name, consumer_id=1, ack_type="Individual", message_id=ids, request_id=1,
            txnid_least_bits=least, txnid_most_bits=0,
        )  # fmt: skip
        return one(self.do(command), AckResponse)

    def ongoing(self) -> list[str]:
        assert self.topic.transactions is not None
        return [str(each) for each in self.topic.transactions.ongoing]


def entries(effects: list[Effect]) -> list[int]:
    return [each.entry_id for each in of(effects, Message)]


def test_a_transaction_ends_at_its_time_also_after_a_long_silence() -> None:
    run = Transacting()
    run.subscribe("s", permits=10)
    txn = run.begin(60_000)
    run.send_in(txn, 0)
    assert entries(run.wait(59)) == []
    assert entries(run.publish(1, "q")) == []
    assert run.broker.next_due() == run.now + 1000
    assert entries(run.wait(365 * 24 * 3600)) == [1]
    assert run.topic.transactions is not None
    assert [str(each) for each in run.topic.transactions.aborted] == ["(0,0)"]
    assert one(run.end(txn), EndTxnResponse).error == "TransactionNotFound"


def test_a_client_may_leave_out_the_default_namespace() -> None:
    run, short = Transacting(), TOPIC.rpartition("/")[2]
    run.subscribe("s", permits=10)
    run.publish(0, "q")
    txn = run.begin(topic=short)
    parts = [TxnSubscription(short, "s")]
    run.ask(AddSubscriptionToTxn(connection="client", request_id=1, txnid_least_bits=txn, subscription=parts))
    run.send_in(txn, 0)
    run.ack_in(txn, "s", (1, 0))
    assert entries(run.end(txn)) == [1]
    assert run.mark_delete("s") == Position(1, 0)


def test_a_pending_ack_is_sent_again_at_the_end_of_its_time() -> None:
    run = Transacting()
    run.subscribe("s", "Shared", permits=10)
    run.publish(0, "q")
    txn = run.begin(5_000, subscription="s")
    assert run.ack_in(txn, "s", (1, 0)).error is None
    assert entries(run.redeliver("s")) == []
    assert entries(run.wait(5)) == [0]


def test_the_state_has_everything() -> None:
    """A broker goes on from its state as one that was never encoded."""

    def life(*, encoded: bool) -> list[Effect]:
        run = Transacting()
        found: list[Effect] = []

        def step(effects: list[Effect]) -> None:
            found.extend(effects)
            if encoded:
                kept = run.broker._ctx.entries  # entries stay in memory
                run.broker = Broker.decode(run.broker.encode(), NoEntries())
                run.broker._ctx.entries = kept

        run.subscribe("s", "Shared", permits=10)
        step(run.publish(0, "q"))
        first, other = run.begin(subscription="s"), run.begin(9_000)
        step(run.send_in(first, 0))
        step(run.send_in(other, 1))
        step([run.ack_in(first, "s", (1, 0))])
        step(run.redeliver("s"))
        step(run.end(first))
        step(run.wait(10))
        step(run.publish(1, "q"))
        step(run.send_in(other, 2))
        return found

    assert life(encoded=True) == life(encoded=False)


def test_a_restart_loses_no_open_transaction() -> None:
    run = Transacting()
    run.subscribe("s", "Shared", permits=10)
    run.publish(0, "q")
    txn, short = run.begin(subscription="s"), run.begin(30_000)
    run.send_in(txn, 0)
    run.ack_in(txn, "s", (1, 0))
    run.send_in(short, 1)
    run.do(Restart(), None)
    refused = one(run.end(txn), EndTxnResponse)
    assert (refused.error, refused.cause) == (
        "TransactionCoordinatorNotFound", "Transaction coordinator with id 0 not found!",
    )  # fmt: skip
    run.wait(60)
    assert entries(run.subscribe("s", "Shared", permits=10)) == []
    assert run.ongoing() == ["(0,0)", "(0,1)"]
    run.connect()  # what should have ended meanwhile ends now
    assert run.ongoing() == ["(0,0)"]
    assert entries(run.end(txn)) == [1]
    assert run.backlog("s") == 1


def test_a_marker_comes_behind_writes_that_a_fault_delays() -> None:
    run = Transacting()
    run.subscribe("s", permits=10)
    txn = run.begin()
    run.send_in(txn, 0)
    run.fault("DelayWrites", 1)
    run.publish(0, "q")
    assert one(run.end(txn), EndTxnResponse).error is None
    assert run.ongoing() == ["(0,0)"]
    assert entries(run.fault("CompleteWrites")) == [0, 1]
    assert run.ongoing() == []


def test_a_marker_whose_write_fails_is_written_again() -> None:
    run = Transacting()
    run.subscribe("s", permits=10)
    txn = run.begin()
    run.send_in(txn, 0)
    run.fault("DelayWrites", 1)
    run.publish(0, "q")
    run.end(txn)
    assert entries(run.fault("LoseWrites")) == [0]
    assert run.ongoing() == []


def test_a_write_of_a_message_that_fails_leaves_no_trace_in_the_transaction() -> None:
    run = Transacting()
    txn = run.begin()
    run.fault("FailWrites", 1)
    assert one(run.send_in(txn, 0), SendError).error == "PersistenceError"
    assert run.ongoing() == []


def test_too_many_transactions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MOST_OPEN", 2)
    run = Transacting()
    first = run.begin()
    run.begin()
    answer = one(run.ask(NewTxn(connection="client", request_id=1, txn_ttl_seconds=1000)), NewTxnResponse)
    assert answer.error == "NotAllowedError"
    assert answer.cause == "2 transactions are open: end some first, or give them less time"
    run.end(first)
    run.begin()


def test_a_transaction_may_not_have_too_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MOST_PARTS", 2)
    run = Transacting()
    txn = run.begin(subscription="s")
    topics = [f"{TOPIC}-{number}" for number in range(2)]
    answers = run.ask(
        AddPartitionToTxn(connection="client", request_id=1, txnid_least_bits=txn, partitions=topics)
    )
    answers += run.ask(
        AddSubscriptionToTxn(
            connection="client", request_id=1, txnid_least_bits=txn,
            subscription=[TxnSubscription(TOPIC, each) for each in "ab"],
        )
    )  # fmt: skip
    assert [getattr(each, "error", "") for each in answers] == ["NotAllowedError"] * 2
    assert one(run.end(txn), EndTxnResponse).error is None


def test_a_subscription_may_not_have_too_many_pending_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_acks, "MOST_POSITIONS", 2)
    run = Transacting()
    run.subscribe("s", "Shared", permits=10)
    for number in range(3):
        run.publish(number, "q")
    txn = run.begin(subscription="s")
    assert run.ack_in(txn, "s", (1, 0), (1, 1)).error is None
    refused = run.ack_in(txn, "s", (1, 2))
    assert refused.error == "NotAllowedError"
    run.end(txn)
    assert run.mark_delete("s") == Position(1, 1)
    other = run.begin(subscription="s")
    run.publish(3, "q")
    run.publish(4, "q")
    assert run.ack_in(other, "s", (1, 2), (1, 4)).error is None
    assert run.ack_in(other, "s", (1, 5)).error == "NotAllowedError"


def of_a_batch(
    run: Transacting, least: int, name: str, left: int, ack_type: Any = "Individual"
) -> AckResponse:
    """Acknowledge a part of the batch of three messages at 1:0. `left`: the messages that stay, as bits."""
    command = Ack(
        connection=name, consumer_id=1, ack_type=ack_type, message_id=[MessageIdData(1, 0, ack_set=[left], batch_size=3)],
        request_id=1, txnid_least_bits=least, txnid_most_bits=0,
    )  # fmt: skip
    return one(run.do(command), AckResponse)


@pytest.mark.parametrize("reopened", [False, True])
def test_parts_of_a_batch_come_back_when_their_transactions_abort(reopened: bool) -> None:
    run = Transacting()
    run.subscribe("s", "Shared", permits=10)
    run.send(0, highest=2)
    one_, other = run.begin(subscription="s"), run.begin(subscription="s")
    assert of_a_batch(run, one_, "s", 0b110).error is None
    assert of_a_batch(run, other, "s", 0b101).error is None
    if reopened:
        run.unload()
    pending = run.topic.subscriptions["s"].pending_acks
    assert pending is not None
    assert [each.left for each in pending.positions.values()] == [b"\x04"]
    run.end(one_, "ABORT")
    run.end(other, "ABORT")
    assert pending.positions == {}
    assert run.mark_delete("s") == Position(1, -1)


def test_a_cumulative_ack_of_a_part_is_not_behind_one_of_the_whole() -> None:
    run = Transacting()
    run.subscribe("s", permits=10)
    run.send(0, highest=2)
    txn = run.begin(subscription="s")
    assert of_a_batch(run, txn, "s", 0b100, "Cumulative").error is None
    whole = Ack(connection="s", consumer_id=1, ack_type="Cumulative", message_id=[MessageIdData(1, 0)], request_id=1, txnid_least_bits=txn, txnid_most_bits=0)  # fmt: skip
    assert one(run.do(whole), AckResponse).error is None
    assert of_a_batch(run, txn, "s", 0b100, "Cumulative").error == "TransactionConflict"


def test_a_committed_cumulative_ack_of_what_nobody_wrote_moves_nothing() -> None:
    run = Transacting()
    run.subscribe("s", permits=10)
    run.publish(0, "q")
    txn = run.begin(topic=None, subscription="s")
    beyond = Ack(connection="s", consumer_id=1, ack_type="Cumulative", message_id=[MessageIdData(7, 7)], request_id=1, txnid_least_bits=txn, txnid_most_bits=0)  # fmt: skip
    assert one(run.do(beyond), AckResponse).error is None
    assert one(run.end(txn), EndTxnResponse).error is None
    assert run.mark_delete("s") == Position(1, -1)


def test_committed_acks_free_ledgers_and_are_told_to_who_watches() -> None:
    run = Transacting(managedLedgerMaxEntriesPerLedger=2, managedLedgerMinLedgerRolloverTimeMinutes=0)
    run.broker.watch_acks()
    run.subscribe("s", "Shared", permits=10)
    for number in range(3):
        run.publish(number, "q")
    txn = run.begin(subscription="s")
    run.ack_in(txn, "s", (1, 0), (1, 1))
    assert run.broker.take_acks() == []
    assert one(run.end(txn), LedgerDeleted).ledger_id == 1
    assert 1 not in run.topic.ledger.ledgers
    seen, of_the_marker = run.broker.take_acks()
    assert (seen.subscription, seen.after) == ("s", Position(1, 1))
    assert of_the_marker.positions == [Position(2, 1)]


@pytest.mark.parametrize("id_", [16, 2**40])
def test_there_are_sixteen_coordinators(id_: int) -> None:
    assert Transacting().connect(id_).error == "TransactionCoordinatorNotFound"


def test_a_request_belongs_to_the_topic_of_its_coordinator() -> None:
    run = Transacting()
    refused = one(run.do(NewTxn(request_id=1, tc_id=3), COORDINATOR), Quarantined)
    assert refused.rule == "wrong_topic"


def test_without_the_setting_everything_is_refused() -> None:
    run = Run()
    for command in (
        NewTxn(request_id=1),
        TcClientConnectRequest(request_id=1, tc_id=0),
        EndTxn(request_id=1),
    ):
        error = one(run.do(command, COORDINATOR), Error)
        assert (error.error, error.cause) == ("NotAllowedError", "Transactions are not enabled.")


def test_a_message_in_a_transaction_is_not_plain() -> None:
    """After many plain ones, when the topic is in its steady state."""
    run = Transacting()
    run.subscribe("s", permits=100)
    for number in range(5):
        assert entries(run.publish(number, "q")) == [number]
    txn = run.begin(subscription="s")
    assert entries(run.send_in(txn, 0)) == []
    assert entries(run.publish(6, "q")) == []
    assert run.ack_in(txn, "s", (1, 0)).error is None
    assert entries(run.redeliver("s")) == [1, 2, 3, 4]
    assert entries(run.end(txn)) == [5, 6]


def test_a_marker_is_a_row_of_its_own() -> None:
    run = Transacting()
    txn = run.begin()
    run.send_in(txn, 0)
    marker = one(run.end(txn), SendReceipt)
    assert (marker.connection, marker.producer_id, marker.producer_name, marker.sequence_id) == (
        "", None, "pulsar.txn.marker", -1,
    )  # fmt: skip
    assert (marker.size, marker.cause) == (56, "the marker of transaction (0,0), which committed")


def test_aborted_transactions_are_forgotten_with_their_ledgers() -> None:
    run = Transacting(managedLedgerMaxEntriesPerLedger=2)
    for number in range(6):
        run.end(run.begin(), "ABORT") if number else None
        txn = run.begin()
        run.send_in(txn, number)
        run.end(txn, "ABORT")
    assert run.topic.transactions is not None
    assert run.topic.transactions.rolled_back == 11
    assert len(run.topic.transactions.aborted) <= 2


FULL: dict[str, Any] = {"managedLedgerMaxEntriesPerLedger": 3, "managedLedgerMinLedgerRolloverTimeMinutes": 0}


def test_what_a_dispatcher_passes_frees_ledgers_at_once() -> None:
    """As recorded by parity: messages of an aborted transaction, and its marker."""
    run = Transacting(**FULL)
    run.subscribe("s", "Shared", permits=10)
    txn = run.begin()
    for number in range(4):
        run.send_in(txn, number)
    assert list(run.topic.ledger.ledgers) == [1, 2]
    effects = run.end(txn, "ABORT")
    assert [each.ledger_id for each in of(effects, LedgerDeleted)] == [1]
    assert run.topic.ledger.number_of_entries == 2


def test_a_read_that_waits_leaves_a_ledger_of_which_all_is_acknowledged() -> None:
    """As recorded by parity: what comes next is held back, and the read goes to it all the same."""
    run = Transacting(**FULL)
    run.subscribe("s", "Shared", permits=10)
    for number in range(3):
        run.publish(number, "q")
    txn = run.begin()
    run.send_in(txn, 0)
    cursor = run.topic.cursors["s"]
    run.ack("s", (1, 0), (1, 1))
    assert cursor.read_position == (1, 3)
    run.ack("s", (1, 2))
    assert cursor.read_position == (2, 0)
    assert entries(run.end(txn)) == [0]


def test_compaction_reads_what_consumers_may() -> None:
    """As a 4.0.7 does beside a committed, an aborted and an open transaction. Where its cursor reads on depends on a race there."""
    run = Transacting()
    for number, key in enumerate("ab"):
        run.send(number, partition_key=key)
    for action, number, key in (("COMMIT", 2, "a"), ("ABORT", 3, "b"), (None, 4, "c")):
        txn = run.begin()
        run.send_in(txn, number, partition_key=key)
        if action is not None:
            run.end(txn, action)
    run.send(5, partition_key="d")
    kept = of(run.admin("PUT", "/compaction"), CompactedEntry)
    assert [each.partition_key for each in kept] == ["b", "a"]
    found = response(run.admin("GET", "/stats"))
    assert found["msgOutCounter"] == 10  # the markers, too, twice
    assert run.mark_delete("__compaction") == Position(1, 2)
    assert entries(run.subscribe("s", permits=10, read_compacted=True)) == [1, 2]
    assert entries(run.end(txn)) == [6, 7]


def test_what_nobody_stored_is_not_sent_when_its_ack_is_given_up() -> None:
    """Found by a random life: a client may acknowledge anything in a transaction."""
    run = Transacting()
    run.subscribe("s", "Shared", permits=10)
    run.publish(0, "q")
    txn = run.begin(subscription="s")
    assert run.ack_in(txn, "s", (99, 0), (1, 7), (1, 0)).error is None
    assert entries(run.end(txn, "ABORT")) == [0]


def test_explain_says_what_an_open_transaction_holds_back() -> None:
    run = Transacting()
    run.subscribe("s", "Shared", permits=10)
    run.publish(0, "q")
    run.publish(1, "q")
    txn, other = run.begin(60_000, subscription="s"), run.begin()
    run.ack_in(txn, "s", (1, 0))
    run.send_in(txn, 0)
    run.send_in(other, 1)
    run.publish(2, "q")
    found = run.broker.delivery(TOPIC, "s")
    verdicts = {each.decider: each for each in found.verdicts}
    held = verdicts["open transaction"]
    assert (held.blocks, held.scope, held.until) == (True, "new", run.now + 60_000)
    assert held.text == (
        "transaction (0,0) is open since 1:2: 3 entries from there on are not read before it ends, or before 1 other that began behind it"
    )
    assert (
        verdicts["pending acks"].text == "1 entry acked in open transactions: not sent again before these end"
    )
    assert (found.state, found.unread, found.lost, found.sends) == ("held back", 3, 0, 0)
    states = [run.broker.entry_state(TOPIC, "s", Position(1, entry)).state for entry in range(3)]
    assert states == ["pending ack", "in flight", "unread"]
    stats = response(run.admin("GET", "/stats"))
    assert [stats[name] for name in ("ongoingTxnCount", "committedTxnCount", "abortedTxnCount")] == [2, 0, 0]
    run.end(txn, "ABORT")
    run.end(other)
    stats = response(run.admin("GET", "/stats"))
    assert [stats[name] for name in ("ongoingTxnCount", "committedTxnCount", "abortedTxnCount")] == [0, 1, 1]
    assert "open transaction" not in {each.decider for each in run.broker.delivery(TOPIC, "s").verdicts}


@pytest.mark.parametrize(("behind", "first"), [(0, (3, 0)), (4, None)])
def test_a_topic_finds_an_open_transaction_in_the_ledgers_that_are_left(
    behind: int, first: tuple[int, int] | None
) -> None:
    """Nobody has subscribed, so that full ledgers are deleted. The coordinator does not know the topic, and never ends it there."""
    run = Transacting(managedLedgerMaxEntriesPerLedger=2, managedLedgerMinLedgerRolloverTimeMinutes=0)
    txn = run.begin(topic=None)
    for sequence_id in range(5):
        run.send_in(txn, sequence_id)
    for sequence_id in range(behind):
        run.publish(sequence_id, "q")
    run.end(txn, "ABORT")
    assert run.topic.transactions is not None
    assert run.topic.transactions.ongoing == {(0, 0): (1, 0)}
    assert len(run.topic.transactions.later[TxnID(0, 0)]) == 1, "no deleted ledger is kept"
    run.do(Restart(), None)
    run.subscribe("s", permits=10)
    found = run.topic.transactions
    assert (found.ongoing, found.later) == ({} if first is None else {(0, 0): first}, {})
    assert entries(run.publish(9, "q")) == ([0] if first is None else [])


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 1, 2**31 - 1])
@pytest.mark.parametrize("action", ["ABORT", "COMMIT"])
def test_a_client_may_lie_about_the_size_of_a_batch(size: int, action: str) -> None:
    """A negative one stopped the broker at an abort, and a large one took 6 s and 512 MB."""
    run = Transacting()
    run.subscribe("s", "Shared", permits=10)
    run.publish(0, "q")
    for left in ([1], [2]):
        txn = run.begin(subscription="s")
        ids = [MessageIdData(1, 0, ack_set=left, batch_size=size)]
        ack = Ack(
            connection="s", consumer_id=1, ack_type="Individual", message_id=ids, request_id=1,
            txnid_least_bits=txn, txnid_most_bits=0,
        )  # fmt: skip
        one(run.do(ack), AckResponse)
    assert one(run.end(txn, action), EndTxnResponse).error is None
    assert len(run.broker.encode()) < 5000


@pytest.mark.parametrize("action", ["ABORT", "COMMIT"])
@pytest.mark.parametrize("ledger", [0, 1, 7])
def test_acks_of_what_nobody_has_written_leave_nothing(action: str, ledger: int) -> None:
    run = Transacting()
    run.subscribe("s", "Shared", permits=10)
    run.publish(0, "q")
    pending = None
    for number in range(20):
        txn = run.begin(subscription="s")
        run.ack_in(txn, "s", *((ledger, 100 * (1 + number) + each) for each in range(50)))
        part = [MessageIdData(ledger, 10_000 + number, ack_set=[1])]
        run.do(Ack(connection="s", consumer_id=1, ack_type="Individual", message_id=part))
        run.end(txn, action)
        pending = run.topic.subscriptions["s"].pending_acks
        assert pending is not None
        assert not pending.positions
        assert not pending.held


def test_times_of_transactions_that_have_ended_do_not_add_up() -> None:
    """Each kept its time, which clients choose, until then."""
    run = Transacting()
    for number in range(1000):
        run.end(run.begin(10**12 - number, topic=None))
    assert len(run.broker._coordinators._due) < 200
    assert len(run.broker._ctx.timers) < 200
    last = run.begin(60_000)
    run.send_in(last, 0)
    run.wait(61)
    assert run.ongoing() == []


def test_a_request_tries_few_topics_again_on_which_transactions_cannot_end() -> None:
    """All of them were tried, with a row for each."""
    run = Transacting()
    run.publish(0, "q")
    stuck = [run.begin() for _ in range(30)]
    run.admin("POST", "/terminate")
    for txn in stuck:
        run.end(txn)
    assert (
        len(run.ask(NewTxn(connection="client", request_id=1, txn_ttl_seconds=600_000)))
        == 1 + coordinator.MOST_AGAIN
    )
    run.admin("DELETE", "?force=true")
    assert one(run.end(stuck[-1]), EndTxnResponse).error is None
    for _ in range(3):
        run.begin(topic=None)
    assert not run.broker.coordinators[0].ending
    assert not set(stuck) & set(run.broker.coordinators[0].transactions)


@pytest.mark.parametrize(("profile", "refuses"), [("3.0", False), ("4.0", True), ("4.2", False)])
def test_after_a_refusal_a_topic_takes_other_transactions_but_not_in_4_0(profile: str, refuses: bool) -> None:
    run = Transacting(profile=profile)
    ended, following, other = run.begin(), run.begin(), run.begin()
    run.end(ended)
    run.end(following)  # tells the topic that the one before it has ended
    assert of(run.send_in(ended, 1), SendError)
    assert bool(of(run.send_in(other, 2), SendError)) == refuses


@pytest.mark.parametrize(("profile", "markers"), [("3.0", 1), ("4.0", 0)])
def test_before_4_0_a_producer_readies_a_topic_for_aborts(profile: str, markers: int) -> None:
    run = Transacting(profile=profile)
    run.create_producer("q", 2, txn_enabled=True)
    before = run.topic.ledger.entries_added
    run.end(run.begin(), "ABORT")
    assert run.topic.ledger.entries_added - before == markers


@pytest.mark.parametrize(
    ("owner", "by", "ends"),
    [("a", "a", True), ("a", "b", False), ("a", "", True), ("", "b", True)],
)
def test_a_transaction_belongs_to_the_role_that_began_it(owner: str, by: str, ends: bool) -> None:
    run = Transacting()
    begun = run.ask(NewTxn(connection="client", request_id=1, txn_ttl_seconds=600_000, principal=owner))
    least = one(begun, NewTxnResponse).fields.txnid_least_bits
    assert isinstance(least, int)
    end = EndTxn(connection="client", request_id=2, txnid_least_bits=least, txn_action="COMMIT", principal=by)
    found = one(run.ask(end), EndTxnResponse)
    assert found.error == (None if ends else "TransactionNotFound")


def test_markers_have_the_time_of_the_broker_and_committed_acks_free_ledgers() -> None:
    run = Transacting(
        brokerEntryMetadataInterceptors="AppendBrokerTimestampMetadataInterceptor",
        managedLedgerMaxEntriesPerLedger=2, managedLedgerMinLedgerRolloverTimeMinutes=0,
    )  # fmt: skip
    run.subscribe("s", "Shared", permits=10)
    for number in range(5):
        run.publish(number, "q")
    first = next(iter(run.topic.ledger.ledgers))
    txn = run.begin(subscription="s")
    run.ack_in(txn, "s", *((first + number // 2, number % 2) for number in range(4)))
    ended = run.end(txn)
    assert [each.ledger_id for each in of(ended, LedgerDeleted)] == [first, first + 1]
    last = run.broker._ctx.entries.get(TOPIC, run.topic.ledger.last_confirmed)
    run.send_in(committed := run.begin(), 9)
    run.end(committed)
    marker = run.broker._ctx.entries.get(TOPIC, run.topic.ledger.last_confirmed)
    assert marker.metadata.marker_type is not None
    assert marker.broker_timestamp == run.now
    assert last.broker_timestamp is not None


@pytest.mark.parametrize("position", [(1, 50), (1, 1), (0, 0), (7, 0), (-1, -1)])
def test_a_size_that_a_client_makes_up_for_what_is_not_there_counts_by_its_words(
    position: tuple[int, int],
) -> None:
    run = Transacting()
    run.subscribe("s", "Shared", permits=10)
    run.publish(0, "q")
    txn = run.begin(subscription="s")
    ids = [MessageIdData(*position, ack_set=[1], batch_size=100_000)]
    run.do(Ack(connection="s", consumer_id=1, ack_type="Individual", message_id=ids, request_id=1,
               txnid_least_bits=txn, txnid_most_bits=0))  # fmt: skip
    assert one(run.end(txn, "ABORT"), EndTxnResponse).error is None
    assert len(run.broker.encode()) < 5000


def test_figures_of_transactions() -> None:
    run = Transacting()
    run.send_in(run.begin(), 0)
    found = run.broker.metrics(everything=True)
    (of_topic,) = (each.transactions for each in found.topics if each.name == TOPIC)
    assert of_topic is not None
    assert of_topic.active == 1
    assert found.coordinators[0].active == 1


@pytest.mark.parametrize(
    ("messages", "size", "expected"),
    [(100, 100_000, 100), (100, 80, 80), (3, 100_000, 64), (3, 60, 60), (1, -5, 0)],
)
def test_a_part_of_a_batch_counts_as_many_messages_as_there_may_be(
    messages: int, size: int, expected: int
) -> None:
    run = Transacting()
    run.subscribe("s", "Shared", permits=10)
    metadata = MessageMetadata("p", 0, run.now, num_messages_in_batch=messages)
    run.do(
        Send(connection="client", producer_id=1, sequence_id=0, num_messages=messages, metadata=metadata, payload="x" * messages)
    )  # fmt: skip
    txn = run.begin(subscription="s")
    last = run.topic.ledger.last_confirmed
    ids = [MessageIdData(last.ledger, last.entry, ack_set=[1], batch_size=size)]
    run.do(Ack(connection="s", consumer_id=1, ack_type="Individual", message_id=ids, request_id=1,
               txnid_least_bits=txn, txnid_most_bits=0))  # fmt: skip
    pending = run.topic.subscriptions["s"].pending_acks
    assert pending is not None
    assert pending.positions[last].size == expected


def test_what_most_dispatchers_have_none_of() -> None:
    run = Transacting()
    run.subscribe("s", permits=10)
    subscription = run.topic.subscriptions["s"]
    dispatcher, sub = subscription.dispatcher, run.topic.context_of(run.broker._ctx, subscription)
    assert dispatcher is not None
    assert not dispatcher.remembered()
    assert not dispatcher.deals_chunks(run.broker._ctx.config)
    assert not dispatcher.owners_of_chunks(sub)
    assert not dispatcher.stuck_chunks(sub)


def test_a_topic_is_set_aside_once() -> None:
    run = Transacting()
    for _ in range(2):
        run.broker.set_aside(TOPIC, Refused("set_aside", "an operator wants it"))
    assert len(run.broker.take()) == 1


def test_transactions_that_never_end_are_forgotten_with_their_ledgers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may make up as many numbers as it sends messages. What it wrote is gone, and its topic is never loaded again."""
    monkeypatch.setattr(transaction_buffer, "MOST_WITHOUT_MESSAGES", 10)
    run = Transacting(managedLedgerMaxEntriesPerLedger=3, managedLedgerMinLedgerRolloverTimeMinutes=0)
    run.subscribe("s", permits=9)
    buffer, sizes = run.topic.buffer(), list[int]()
    for number in range(200):
        run.send_in(1_000 + number, 2 * number)
        run.send_in(7, 2 * number + 1)
        run.wait(300)
        run.admin("POST", "/subscription/s/skip_all")
        run.wait(300)
        assert len(buffer.ongoing) <= 10 + 3 * len(run.topic.ledger.ledgers)
        assert sum(map(len, buffer.later.values())) <= len(run.topic.ledger.ledgers) + 1
        sizes.append(len(run.broker.encode()))
    assert max(sizes[100:]) - max(sizes[:100]) < 32
    assert next(iter(buffer.ongoing)) == (0, 1_000)
    assert str(run.topic.ledger.max_read) == "1:-1"  # the first one holds back, as in Pulsar
    assert (0, 7) in buffer.ongoing


def test_a_transaction_that_was_forgotten_may_go_on_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a load: what is left of it counts."""
    monkeypatch.setattr(transaction_buffer, "MOST_WITHOUT_MESSAGES", 3)
    run = Transacting(managedLedgerMaxEntriesPerLedger=2, managedLedgerMinLedgerRolloverTimeMinutes=0)
    txn = [run.begin(10**9) for _ in range(9)]
    for number in txn[:8]:
        run.send_in(number, number)
        run.wait(300)
    assert run.ongoing() == ["(0,0)", "(0,4)", "(0,5)", "(0,6)", "(0,7)"]
    run.subscribe("s", permits=9)
    run.send_in(txn[2], 20)
    for number in (0, 4, 5, 6, 7):
        assert one(run.end(txn[number], "ABORT"), EndTxnResponse).error is None
    assert run.ongoing() == ["(0,2)"]
    assert len(entries(run.end(txn[2]))) == 1
    assert one(run.end(txn[3]), EndTxnResponse).error is None
    assert run.ongoing() == []


@pytest.mark.parametrize("seed", range(4))
def test_names_in_open_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Those of all transactions of a coordinator together, and what has ended counts no more."""
    monkeypatch.setattr(coordinator, "MOST_NAMED", 3_000)
    draw, run, open_, refused = Random(seed), Transacting(), list[int](), 0
    run.do(Publish(producer="x", sequence_id=0), f"{TOPIC}-0")
    run.admin("POST", "/terminate", topic=f"{TOPIC}-0")
    for _ in range(120):
        if draw.random() < 0.3:
            open_.append(run.begin(draw.choice([1, 10**9]), topic=None))
        if open_ and draw.random() < 0.2:
            run.end(open_.pop(draw.randrange(len(open_))), draw.choice(["COMMIT", "ABORT"]))
        if draw.random() < 0.1:
            run.broker = type(run.broker).decode(run.broker.encode(), NoEntries())
        names = [f"{TOPIC}-{draw.randrange(9)}", "x" * draw.randrange(800)]
        command: Any = AddPartitionToTxn(connection="client", request_id=1, partitions=names)
        if draw.random() < 0.5:
            parts = [TxnSubscription(each, "s") for each in names]
            command = AddSubscriptionToTxn(connection="client", request_id=1, subscription=parts)
        if open_:
            command.txnid_least_bits = draw.choice(open_)
            refused += any(getattr(each, "error", None) == "NotAllowedError" for each in run.ask(command))
        found = run.broker.coordinators[0].transactions.values()
        named = [name for each in found for name in (*each.topics, *chain.from_iterable(each.subscriptions))]
        assert sum(map(len, named)) <= 3_000
        assert run.broker._coordinators._named_by(0) == sum(map(len, named))
    assert refused


def test_acks_of_transactions_that_never_end_do_not_block_a_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending_acks, "MOST_POSITIONS", 10)
    monkeypatch.setattr(pending_acks, "WORTH_A_LOOK", 1)
    run = Transacting()
    run.subscribe("s", "Shared", permits=1_000)
    for number in range(50):
        run.send(number)
        at = (1, number)
        assert run.ack_in(5_000 + number, "s", at).error is None
        run.ack("s", Position(*at))
        pending = run.topic.subscriptions["s"].pending_acks
        assert pending is not None
        assert pending.held == sum(map(len, pending.of_transactions.values())) <= 10
    for number in range(50, 61):
        run.send(number)
        refused = run.ack_in(9_000, "s", (1, number)).error
        assert refused == ("NotAllowedError" if number == 60 else None)


def test_acks_without_a_place_rarely_look_at_all_pending_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_acks, "MOST_POSITIONS", 20)
    monkeypatch.setattr(pending_acks, "WORTH_A_LOOK", 10)
    looks: list[Position] = []
    has_acked = ManagedCursor.has_acked

    def looked(cursor: ManagedCursor, position: Position) -> bool:
        looks.append(position)
        return has_acked(cursor, position)

    monkeypatch.setattr(ManagedCursor, "has_acked", looked)
    run = Transacting()
    run.subscribe("s", "Shared", permits=1_000)
    for number in range(21):
        run.send(number)
    for number in range(20):
        assert run.ack_in(5_000, "s", (1, number)).error is None
    looks.clear()
    for _ in range(100):
        assert run.ack_in(5_000, "s", (1, 20)).error == "NotAllowedError"
    assert len(looks) <= 100 + 20 * 10
    run.ack("s", *(Position(1, number) for number in range(20)))
    errors = [run.ack_in(5_000, "s", (1, 20)).error for _ in range(11)]
    assert errors[-1] is None
