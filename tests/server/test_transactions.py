"""Transactions on a server: what the admin API tells of them, and a server that starts again in the middle of one."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.commands import (
    Ack,
    AddPartitionToTxn,
    AddSubscriptionToTxn,
    EndTxn,
    Flow,
    MessageIdData,
    MessageMetadata,
    NewTxn,
    Producer,
    Send,
    Subscribe,
    TcClientConnectRequest,
    TxnSubscription,
)
from schemas.effects import EndTxnResponse, Message, NewTxnResponse
from streaming.broker.admin import transactions
from streaming.broker.names import COORDINATOR_ASSIGN
from streaming.log.partition import ingress_partition
from streaming.protocol.codec import entry
from tests.authorization.questions import Connection
from tests.server.conftest import Configured, Running, running

COORDINATOR = f"{COORDINATOR_ASSIGN}-partition-0"
TOPIC = "persistent://public/default/t"
TXN: dict[str, Any] = {"txnid_least_bits": 0, "txnid_most_bits": 0}

pytestmark = pytest.mark.feature("L1", "I7")


def _do(broker: Running, topic: str, command: Any) -> list[Any]:
    return [row.effect for row in broker.call(lambda: broker.engine.submit(topic, command))]


def _subscribe(broker: Running) -> list[Any]:
    subscribe = Subscribe(
        connection="c",
        subscription="s",
        subType="Shared",
        consumer_id=1,
        request_id=1,
        initialPosition="Earliest",
    )
    return _do(broker, TOPIC, subscribe) + _do(
        broker, TOPIC, Flow(connection="c", consumer_id=1, messagePermits=9)
    )


def _begin(broker: Running) -> None:
    """Transaction (0,0): a message behind one outside, and an ack of that."""
    _do(broker, TOPIC, Producer(connection="c", producer_id=1, request_id=1, producer_name="p"))
    _subscribe(broker)
    metadata = MessageMetadata("p", 0, 1)
    _do(broker, TOPIC, Send(connection="c", producer_id=1, sequence_id=0, metadata=metadata, payload="a"))
    _do(broker, COORDINATOR, TcClientConnectRequest(connection="c", request_id=1, tc_id=0))
    (begun,) = _do(broker, COORDINATOR, NewTxn(connection="c", request_id=2, txn_ttl_seconds=600_000))
    assert isinstance(begun, NewTxnResponse)
    _do(broker, COORDINATOR, AddPartitionToTxn(connection="c", request_id=3, partitions=[TOPIC]))
    parts = [TxnSubscription(TOPIC, "s")]
    _do(broker, COORDINATOR, AddSubscriptionToTxn(connection="c", request_id=4, subscription=parts))
    own = MessageMetadata("p", 1, 1, **TXN)
    _do(broker, TOPIC, Send(connection="c", producer_id=1, sequence_id=1, metadata=own, payload="b", **TXN))
    ack = Ack(connection="c", consumer_id=1, ack_type="Individual", message_id=[MessageIdData(1, 0)], **TXN)
    _do(broker, TOPIC, ack)


def _ask(broker: Running, path: str, method: str = "GET") -> tuple[int, Any]:
    found = httpx.request(method, f"{broker.server.admin_url}/admin/v3/transactions/{path}")
    return found.status_code, found.json() if found.content else None


def test_the_admin_api_tells_of_transactions() -> None:
    """As a 4.0.7 does, but for the times of recoveries and snapshots, which are 0."""
    times = {"recoverStartTime": 0, "recoverEndTime": 0}
    with running(transactionCoordinatorEnabled=True) as broker:
        assert _ask(broker, "coordinatorStats")[0] == 404
        _begin(broker)
        stats = {"state": "Ready", "leastSigBits": 0, "lowWaterMark": -1, "ongoingTxnSize": 1, **times}
        assert _ask(broker, "coordinatorStats") == (200, {"0": stats})
        assert _ask(broker, "coordinatorStats?coordinatorId=0") == (200, stats)
        missing = {"reason": "Transaction coordinator not found! coordinator id : 9"}
        assert _ask(broker, "coordinatorStats?coordinatorId=9") == (404, missing)
        assert _ask(broker, "coordinators")[1][0]["id"] == 0
        status, metadata = _ask(broker, "transactionMetadata/0/0")
        opened = metadata.pop("openTimestamp")
        expected = {
            "txnId": "(0,0)", "status": "OPEN", "timeoutAt": 600_000, "ackedPartitions": {TOPIC: {"s": {}}},
            "producedPartitions": {TOPIC: {"startPosition": "1:1", "aborted": False}},
        }  # fmt: skip
        assert (status, metadata) == (200, expected)
        unknown = {"reason": "The transaction with this txdID `(0,77)`not found "}
        assert _ask(broker, "transactionMetadata/0/77") == (404, unknown)
        assert _ask(broker, "slowTransactions/1") == (200, {"(0,0)": {**expected, "openTimestamp": opened}})
        assert _ask(broker, "slowTransactions/900000") == (200, {})
        buffer = {
            "state": "Ready", "maxReadPosition": "1:0", "lastSnapshotTimestamps": 0, "ongoingTxnSize": 1, **times,
            "totalAbortedTransactions": 0, "snapshotType": "Single",
        }  # fmt: skip
        assert _ask(broker, "transactionBufferStats/public/default/t") == (200, buffer)
        marks = _ask(broker, "transactionBufferStats/public/default/t?lowWaterMarks=true")
        assert marks == (200, buffer | {"lowWaterMarks": {}})
        assert _ask(broker, "transactionBufferStats/public/default/none")[0] == 404
        assert _ask(broker, "transactionInBufferStats/public/default/t/0/5") == (200, {"aborted": False})
        assert _ask(broker, "transactionInPendingAckStats/public/default/t/s/0/0") == (200, {})
        pending = {"state": "Ready", "ongoingTxnSize": 1, **times}
        assert _ask(broker, "pendingAckStats/public/default/t/s") == (200, pending)
        assert _ask(broker, "pendingAckStats/public/default/t/none")[0] == 404
        assert _ask(broker, "nothing")[0] == 501
        assert _ask(broker, "transactionMetadata/0/x")[0] == 404
        assert _ask(broker, "abortTransaction/0/0", "POST") == (204, None)
        assert _ask(broker, "abortTransaction/0/0", "POST")[0] == 404
        assert _ask(broker, "transactionInBufferStats/public/default/t/0/0") == (200, {"aborted": True})


def test_topics_are_shown_as_the_client_named_them() -> None:
    with running(transactionCoordinatorEnabled=True) as broker:
        _begin(broker)
        _do(broker, COORDINATOR, AddPartitionToTxn(connection="c", request_id=5, partitions=["t"]))
        produced = _ask(broker, "transactionMetadata/0/0")[1]["producedPartitions"]
        assert produced == {name: {"startPosition": "1:1", "aborted": False} for name in (TOPIC, "t")}


@pytest.mark.parametrize(("enabled", "expected"), [(True, (200, 1)), (False, (404, None))])
def test_clients_find_coordinators_through_http(enabled: bool, expected: tuple[int, int | None]) -> None:
    with running(transactionCoordinatorEnabled=enabled) as broker:
        path = COORDINATOR_ASSIGN.replace("://", "/")
        found = httpx.get(f"{broker.server.admin_url}/admin/v2/{path}/partitions")
        assert (found.status_code, found.json().get("partitions")) == expected


def test_an_answer_shows_so_much_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with 300,000 topics took 7 s, during which nobody was served."""
    monkeypatch.setattr(transactions, "MOST_PARTS", 2)
    with running(transactionCoordinatorEnabled=True) as broker:
        _begin(broker)
        cause = "1 transactions have 3 topics and subscriptions, themselves included"
        told = {"reason": f"{cause}. At most 2 are shown: ask for those with more time"}
        assert _ask(broker, "slowTransactions/1") == (413, told)
        assert _ask(broker, "slowTransactions/600000") == (200, {})


def test_without_transactions_there_is_nothing_to_tell() -> None:
    off = 503, {"reason": "This Broker is not configured with transactionCoordinatorEnabled=true."}
    with running() as broker:
        assert _ask(broker, "coordinatorStats") == off
        for method in ("POST", "PUT", "DELETE"):
            assert _ask(broker, "transactionCoordinator/replicas", method) == off
    with running(transactionCoordinatorEnabled=True) as broker:
        assert _ask(broker, "transactionCoordinator/replicas", "POST")[0] == 501


def test_a_server_starts_again_in_the_middle_of_a_transaction(tmp_path: Path) -> None:
    with running(tmp_path / "data", transactionCoordinatorEnabled=True) as broker:
        _begin(broker)
    with running(tmp_path / "data", transactionCoordinatorEnabled=True) as broker:
        _do(broker, COORDINATOR, TcClientConnectRequest(connection="c", request_id=1, tc_id=0))
        assert not [each for each in _subscribe(broker) if isinstance(each, Message)]
        effects = _do(broker, COORDINATOR, EndTxn(connection="c", request_id=2))
        (ended,) = [each for each in effects if isinstance(each, EndTxnResponse)]
        assert ended.error is None
        assert [each.entry_id for each in effects if isinstance(each, Message)] == [1]


def test_its_topics_are_in_several_ingress_partitions(configured: Configured) -> None:
    topics = [f"persistent://public/default/part-{number}" for number in (0, 4)]
    assert {ingress_partition(topic, 2) for topic in topics} == {0, 1}
    with configured(transactionCoordinatorEnabled=True) as broker:
        client = Connection(broker.service_url.partition("://")[2], "c")
        client.ask("TC_CLIENT_CONNECT_REQUEST", {"request_id": 1, "tc_id": 0})
        begun = client.ask("NEW_TXN", {"request_id": 2, "txn_ttl_seconds": 600_000})[1]
        txn = {name: begun[name] for name in ("txnid_least_bits", "txnid_most_bits")}
        client.ask("ADD_PARTITION_TO_TXN", {"request_id": 3, "partitions": topics, **txn})
        for id_, topic in enumerate(topics):
            own = {"topic": topic, "request_id": 4 + id_}
            client.ask("SUBSCRIBE", {"consumer_id": id_, "subscription": "s", "subType": "Shared", **own})
            client.send("FLOW", {"consumer_id": id_, "messagePermits": 9})
            assert (
                client.ask("PRODUCER", {"producer_id": id_, "producer_name": "p", **own})[0]
                == "PRODUCER_SUCCESS"
            )
            metadata = {"producer_name": "p", "sequence_id": 0, "publish_time": 1, **txn}
            sent = {"producer_id": id_, "sequence_id": 0, **txn}
            assert client.ask("SEND", sent, entry(metadata, b"x"))[0] == "SEND_RECEIPT"
        status, told = _ask(broker, f"transactionMetadata/0/{txn['txnid_least_bits']}")
        written = {"startPosition": "1:0", "aborted": False}
        assert (status, told["producedPartitions"]) == (200, dict.fromkeys(topics, written))
        assert _ask(broker, "coordinatorStats?coordinatorId=0")[1]["ongoingTxnSize"] == 1
        assert _ask(broker, "coordinators")[1][0]["brokerServiceUrl"].startswith("pulsar://")
        for each in topics:
            path = each.replace("://", "/").partition("/")[2]
            assert _ask(broker, f"transactionBufferStats/{path}")[1]["ongoingTxnSize"] == 1
        assert _ask(broker, "transactionBufferStats/public/default/none")[0] == 404
        assert _ask(broker, "nothing")[0] == 501
        other = client.ask("NEW_TXN", {"request_id": 7, "txn_ttl_seconds": 600_000})[1]["txnid_least_bits"]
        assert _ask(broker, f"abortTransaction/0/{other}", "POST") == (204, None)
        assert _ask(broker, f"abortTransaction/0/{other}", "POST")[0] == 404
        ended = client.ask("END_TXN", {"request_id": 6, "txn_action": "COMMIT", **txn})
        came = [ended, client.next(), client.next()]
        assert sorted(cmd for cmd, _ in came) == ["END_TXN_RESPONSE", "MESSAGE", "MESSAGE"]
        assert {fields["consumer_id"] for cmd, fields in came if cmd == "MESSAGE"} == {0, 1}
        assert all("error" not in fields for _, fields in came)
        client.close()
