"""What the admin API tells of transactions, asked by ADMIN commands (docs/rules/transactions.md §10)."""

from typing import Any, Literal

import pytest

from schemas.commands import Ack, AddPartitionToTxn, Admin, MessageIdData
from schemas.effects import AdminResponse
from streaming.broker.admin import transactions
from streaming.broker.errors import AdminError
from streaming.broker.transactions.transaction_buffer import TxnID
from tests.broker.kit import TOPIC, Run, one
from tests.broker.test_transactions import Transacting

pytestmark = pytest.mark.feature("I7", "L1")

ON = "public/default/t"
TIMES = {"recoverStartTime": 0, "recoverEndTime": 0}


def ask(run: Run, path: str, method: Literal["GET", "POST"] = "GET") -> tuple[int, Any]:
    found = one(run.do(Admin(method=method, path=f"/transactions/{path}"), None), AdminResponse)
    return found.fields.status, found.fields.response


def begun(**settings: Any) -> Transacting:
    """A transaction with a message and two acks, and another one, which has acknowledged all up to the second message on another subscription."""
    run = Transacting(**settings)
    run.subscribe("s")
    run.subscribe("f", "Exclusive")
    for number in range(2):
        run.publish(number, "q")
    first, second = run.begin(subscription="s"), run.begin(1000, subscription="f")
    run.send_in(first, 0)
    run.ack_in(first, "s", (1, 0), (1, 1))
    run.do(
        Ack(
            connection="f", consumer_id=1, ack_type="Cumulative", message_id=[MessageIdData(1, 1)],
            txnid_least_bits=second, txnid_most_bits=0,
        )
    )  # fmt: skip
    return run


def test_coordinators_tell_what_is_open() -> None:
    run = begun()
    stats = {"state": "Ready", "leastSigBits": 1, "lowWaterMark": -1, "ongoingTxnSize": 2, **TIMES}
    assert ask(run, "coordinators") == (200, [{"id": 0}])
    assert ask(run, "coordinatorStats") == (200, {"0": stats})
    assert ask(run, "coordinatorStats?coordinatorId=0") == (200, stats)
    assert ask(run, "coordinatorStats?coordinatorId=1")[0] == 404
    for least in range(2):
        run.end(least)
    assert ask(run, "coordinatorStats?coordinatorId=0")[1]["lowWaterMark"] == 0


def test_a_transaction_tells_what_it_has() -> None:
    run = begun()
    run.ask(
        AddPartitionToTxn(
            connection="client",
            request_id=1,
            txnid_least_bits=0,
            partitions=["t", "persistent://a/b/none"],
        )
    )
    written = {"startPosition": "1:2", "aborted": False}
    first = {
        "txnId": "(0,0)", "status": "OPEN", "openTimestamp": run.now, "timeoutAt": 600_000,
        "producedPartitions": {TOPIC: written, "t": written}, "ackedPartitions": {TOPIC: {"s": {}}},
    }  # fmt: skip
    assert ask(run, "transactionMetadata/0/0") == (200, first)
    assert ask(run, "slowTransactions/1000") == (200, {"(0,0)": first})
    assert [*ask(run, "slowTransactions/999?coordinatorId=0")[1]] == ["(0,0)", "(0,1)"]
    for path in ("0/7", "7/0", "0/x", "0/1000000000000000000"):
        assert ask(run, f"transactionMetadata/{path}")[0] == 404
    assert ask(run, "slowTransactions/1?coordinatorId=5")[0] == 404


def test_topics_and_subscriptions_tell_what_they_know() -> None:
    run = begun()
    buffer = {
        "state": "Ready", "maxReadPosition": "1:1", "lastSnapshotTimestamps": 0, "ongoingTxnSize": 1, **TIMES,
        "totalAbortedTransactions": 0, "snapshotType": "Single",
    }  # fmt: skip
    assert ask(run, f"transactionBufferStats/{ON}") == (200, buffer)
    assert ask(run, f"transactionBufferStats/{ON}?lowWaterMarks=true") == (
        200,
        buffer | {"lowWaterMarks": {}},
    )
    assert ask(run, f"transactionInBufferStats/{ON}/0/0") == (200, {"startPosition": "1:2", "aborted": False})
    pending = {"state": "Ready", "ongoingTxnSize": 1, **TIMES}
    assert ask(run, f"pendingAckStats/{ON}/s") == (200, pending)
    assert ask(run, f"pendingAckStats/{ON}/s?lowWaterMarks=true") == (200, pending | {"lowWaterMarks": {}})
    assert ask(run, f"transactionInPendingAckStats/{ON}/f/0/1") == (200, {"cumulativeAckPosition": "1:1"})
    assert ask(run, f"transactionInPendingAckStats/{ON}/f/0/0") == (200, {})
    assert ask(run, f"pendingAckStats/{ON}/none") == (404, {"reason": "Subscription not found"})
    run.end(0, "ABORT")
    marks = ask(run, f"transactionBufferStats/{ON}?lowWaterMarks=true")[1]
    assert (marks["totalAbortedTransactions"], marks["lowWaterMarks"]) == (1, {"0": -1})
    assert ask(run, f"pendingAckStats/{ON}/s?lowWaterMarks=true")[1]["lowWaterMarks"] == {"0": -1}
    for path in (f"transactionBufferStats/{ON}x", f"pendingAckStats/{ON}x/s"):
        assert ask(run, path)[0] == 404


def test_a_topic_without_transactions() -> None:
    run = Transacting()
    run.publish(0, "q", topic="persistent://public/default/a b")
    run.subscribe("s", topic="persistent://public/default/a b")
    plain = "public/default/a%20b"
    buffer = ask(run, f"transactionBufferStats/{plain}?lowWaterMarks=true")[1]
    assert (buffer["state"], buffer["lowWaterMarks"]) == ("NoSnapshot", {})
    assert ask(run, f"transactionInBufferStats/{plain}/0/0") == (200, {"aborted": False})
    assert ask(run, f"pendingAckStats/{plain}/s?lowWaterMarks=true")[1]["lowWaterMarks"] == {}
    assert ask(run, f"transactionInPendingAckStats/{plain}/s/0/0") == (200, {})


def test_so_much_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MOST_PARTS", 5)
    run = begun()
    told = "2 transactions have 6 topics and subscriptions, themselves included. At most 5 are shown: ask for those with more time"
    assert ask(run, "slowTransactions/1") == (413, {"reason": told})
    assert [*ask(run, "slowTransactions/1000")[1]] == ["(0,0)"]


def test_other_paths_and_methods() -> None:
    run = Transacting()
    assert ask(run, "nothing") == (501, {"reason": "GET /admin/v3/transactions/nothing is not supported"})
    assert ask(run, "abortTransaction/0/0", "POST")[0] == 404
    assert transactions.to_abort("abortTransaction/0/3") == TxnID(0, 3)
    assert transactions.to_abort("nothing/0/3") is None
    with pytest.raises(AdminError, match="expected a number"):
        transactions.to_abort("abortTransaction/0/-3")


def test_without_transactions_there_are_none() -> None:
    assert ask(Run(), "coordinatorStats") == (
        503,
        {"reason": "This Broker is not configured with transactionCoordinatorEnabled=true."},
    )
