"""What the admin API tells of transactions, under ``/admin/v3/transactions`` (mirrors `TransactionsBase`; docs/rules/transactions.md §10)."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from streaming.broker.broker import Broker
from streaming.broker.errors import AdminError
from streaming.broker.names import COORDINATOR_ASSIGN, complete
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.transactions.coordinator import Coordinator, OpenTransaction
from streaming.broker.transactions.transaction_buffer import TxnID
from streaming.server.admin.asks import Ask

PATH = "/admin/v3/transactions/{rest:path}"

MOST_PARTS = 10_000
"""Transactions, and their topics and subscriptions, that an answer shows, at 15 µs each. Nobody else is served meanwhile."""

_NO_TIMES = {"recoverStartTime": 0, "recoverEndTime": 0}
"""Nothing is recovered: the state has all of it."""


def answer(broker: Broker, service_url: str, path: str, query: Mapping[str, str]) -> Any:
    """The answer to GET of a `path` below transactions, and its `query`. None: there is no such path. Raises `AdminError`."""
    match path.split("/"):
        case ["coordinators"]:
            return [{"id": 0, "brokerServiceUrl": service_url}]
        case ["coordinatorStats"]:
            if (given := query.get("coordinatorId")) is not None:
                return _coordinator_stats(_coordinator(broker, given))
            _coordinator(broker, "0")
            return {str(id_): _coordinator_stats(each) for id_, each in broker.coordinators.items()}
        case ["transactionMetadata", most, least]:
            txn = TxnID(_number(most), _number(least))
            return _metadata(broker, txn, open_transaction(broker, txn))
        case ["slowTransactions", timeout]:
            only = query.get("coordinatorId")
            found = broker.coordinators if only is None else {_number(only): _coordinator(broker, only)}
            return dict(_slow(broker, found, _number(timeout)))
        case ["transactionBufferStats", *name] if len(name) == 3:
            return _buffer_stats(_topic(broker, name), marks=query.get("lowWaterMarks") == "true")
        case ["transactionInBufferStats", *name, most, least] if len(name) == 3:
            txn = TxnID(_number(most), _number(least))
            return _in_buffer(_topic(broker, name), txn)
        case ["pendingAckStats", *name, subscription] if len(name) == 3:
            pending = _subscription(broker, name, subscription).pending_acks
            found_stats = {
                "state": "Ready",
                "ongoingTxnSize": 0 if pending is None else len(pending.of_transactions),
            }
            marks = (
                {} if pending is None else {str(id_): mark for id_, mark in pending.low_water_marks.items()}
            )
            return (
                found_stats
                | _NO_TIMES
                | ({"lowWaterMarks": marks} if query.get("lowWaterMarks") == "true" else {})
            )
        case ["transactionInPendingAckStats", *name, subscription, most, least] if len(name) == 3:
            pending = _subscription(broker, name, subscription).pending_acks
            cumulative = None if pending is None else pending.cumulative
            if cumulative is None or cumulative.txn != TxnID(_number(most), _number(least)):
                return {}
            return {"cumulativeAckPosition": str(cumulative.position)}
    return None


def ask_of(method: str, path: str, query: Mapping[str, str]) -> Ask:
    """What a call on a `path` below transactions asks. quirk: most calls ask nothing, so every role learns of all transactions."""
    call = path.partition("/")[0]
    if method == "GET":
        of_all = call in ("coordinatorStats", "slowTransactions") and "coordinatorId" not in query
        return Ask("topic", "LOOKUP") if of_all else Ask("anyone")
    return Ask("superuser")


ASSIGN_NAMES = {"tenant": "pulsar", "namespace": "system", "topic": COORDINATOR_ASSIGN.rpartition("/")[2]}
"""The parts of the name of the topic that `ask_of` asks about."""


def to_abort(path: str) -> TxnID | None:
    """The transaction that POST of a `path` below transactions aborts. None: there is no such path. Raises `AdminError`."""
    match path.split("/"):
        case ["abortTransaction", most, least]:
            return TxnID(_number(most), _number(least))
    return None


def open_transaction(broker: Broker, txn: TxnID) -> OpenTransaction:
    """What a coordinator knows of a transaction. Raises `AdminError`."""
    coordinator = broker.coordinators.get(txn.most)
    if coordinator is None or not coordinator.connected:
        raise AdminError(404, f"Transaction coordinator with id {txn.most} not found!")
    if (found := coordinator.transactions.get(txn.least)) is None:
        raise AdminError(404, f"The transaction with this txdID `{txn}`not found ")
    return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise AdminError(404, f"{text[:30]}: expected a number")
    return int(text)


def _coordinator(broker: Broker, id_: str) -> Coordinator:
    found = broker.coordinators.get(_number(id_))
    if found is None or not found.connected:
        raise AdminError(404, f"Transaction coordinator not found! coordinator id : {id_}")
    return found


def _coordinator_stats(coordinator: Coordinator) -> dict[str, Any]:
    first = next(iter(coordinator.transactions), None)
    return {
        "state": "Ready", "leastSigBits": coordinator.next_id - 1, "lowWaterMark": 0 if first is None else first - 1,
        "ongoingTxnSize": len(coordinator.transactions), **_NO_TIMES,
    }  # fmt: skip


def _slow(
    broker: Broker, coordinators: Mapping[int, Coordinator], timeout: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The transactions that were given more than so many ms. Raises `AdminError`."""
    slow = [
        (TxnID(most, least), each)
        for most, coordinator in coordinators.items()
        for least, each in coordinator.transactions.items()
        if each.timeout > timeout
    ]
    if (parts := sum(1 + len(each.topics) + len(each.subscriptions) for _, each in slow)) > MOST_PARTS:
        cause = f"{len(slow):,} transactions have {parts:,} topics and subscriptions, themselves included"
        raise AdminError(413, f"{cause}. At most {MOST_PARTS:,} are shown: ask for those with more time")
    for txn, each in slow:
        yield str(txn), _metadata(broker, txn, each)


def _metadata(broker: Broker, txn: TxnID, found: OpenTransaction) -> dict[str, Any]:
    acked: dict[str, dict[str, Any]] = {}
    for topic, subscription in found.subscriptions:
        acked.setdefault(topic, {})[subscription] = {}
    produced = {}
    for topic in found.topics:
        with suppress(KeyError):  # it is gone
            produced[topic] = _in_buffer(broker.topic(complete(topic)), txn)
    return {
        "txnId": str(txn), "status": found.status, "openTimestamp": found.opened, "timeoutAt": found.timeout,
        "producedPartitions": produced, "ackedPartitions": acked,
    }  # fmt: skip


def _in_buffer(topic: PersistentTopic, txn: TxnID) -> dict[str, Any]:
    transactions = topic.transactions
    if transactions is None:
        return {"aborted": False}
    start = transactions.ongoing.get(txn)
    shown = {} if start is None else {"startPosition": str(start)}
    return shown | {"aborted": txn in transactions.aborted}


def _buffer_stats(topic: PersistentTopic, *, marks: bool) -> dict[str, Any]:
    transactions, ledger = topic.transactions, topic.ledger
    found = {
        "state": "Ready" if transactions is not None and transactions.ready else "NoSnapshot",
        "maxReadPosition": str(ledger.last_readable), "lastSnapshotTimestamps": 0,
        "ongoingTxnSize": 0 if transactions is None else len(transactions.ongoing), **_NO_TIMES,
        "totalAbortedTransactions": 0 if transactions is None else len(transactions.aborted), "snapshotType": "Single",
    }  # fmt: skip
    known = {} if transactions is None else transactions.low_water_marks
    return found | ({"lowWaterMarks": {str(id_): mark for id_, mark in known.items()}} if marks else {})


def _topic(broker: Broker, name: list[str]) -> PersistentTopic:
    full = f"persistent://{'/'.join(name)}"
    try:
        return broker.topic(full)
    except KeyError:
        raise AdminError(404, f"Topic not found {full}") from None


def _subscription(broker: Broker, name: list[str], subscription: str) -> Any:
    found = _topic(broker, name).subscriptions.get(subscription)
    if found is None:
        raise AdminError(404, "Subscription not found")
    return found
