"""What the admin API tells of transactions, under ``/admin/v3/transactions`` (mirrors `TransactionsBase`; docs/rules/transactions.md §10)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from schemas.commands import Admin
from streaming.broker import admin_requests
from streaming.broker.admin_table import AdminAnswer
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context
from streaming.broker.errors import AdminError
from streaming.broker.names import complete
from streaming.broker.parameters import query
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.transactions.coordinator import Coordinator, OpenTransaction
from streaming.broker.transactions.transaction_buffer import TxnID

BELOW = "/transactions/"
"""Below ``/admin/v3``, and the beginning of the path of an ADMIN command that asks for one of these, which a server in front of a query writes."""

NO_TRANSACTIONS = 503, "This Broker is not configured with transactionCoordinatorEnabled=true."

MOST_PARTS = 10_000
"""Transactions, and their topics and subscriptions, that an answer shows, at 15 µs each. Nobody else is served meanwhile."""

_NO_TIMES = {"recoverStartTime": 0, "recoverEndTime": 0}
"""Nothing is recovered: the state has all of it."""


class TransactionSource(NamedTuple):
    """What calls on transactions tell of: the `coordinators` of an ingress partition, by id, and each `topic` by its full name (`KeyError`: there is
    none)."""

    coordinators: Mapping[int, Coordinator]
    topic: Callable[[str], PersistentTopic]


def call_transactions(ctx: Context, command: Admin, told: TransactionSource) -> bool:
    """Answer GET of a path below transactions. False, and no answer: the call is about something else."""
    if command.method != "GET" or not command.path.startswith(BELOW):
        return False
    admin_requests.answer(ctx, None, command, lambda: called(ctx.config, command.path, told))
    return True


def called(config: ServiceConfiguration, path: str, told: TransactionSource) -> AdminAnswer:
    """The answer to GET of a path below transactions, with its query. Raises `AdminError`."""
    if not config.transactionCoordinatorEnabled:
        raise AdminError(*NO_TRANSACTIONS)
    parts = path.partition("?")[0].removeprefix(BELOW).split("/")
    found = _answer(told, [unquote(each) for each in parts], query(path))
    if found is None:
        raise AdminError(501, f"GET /admin/v3{path} is not supported")
    return 200, found


def _answer(told: TransactionSource, parts: list[str], query: Mapping[str, str]) -> Any:
    """None: there is no such path. Raises `AdminError`."""
    match parts:
        case ["coordinators"]:
            return [{"id": 0}]
        case ["coordinatorStats"]:
            if (given := query.get("coordinatorId")) is not None:
                return _coordinator_stats(_coordinator(told, given))
            _coordinator(told, "0")
            return {str(id_): _coordinator_stats(each) for id_, each in told.coordinators.items()}
        case ["transactionMetadata", most, least]:
            txn = TxnID(_number(most), _number(least))
            return _metadata(told, txn, open_transaction(told, txn))
        case ["slowTransactions", timeout]:
            only = query.get("coordinatorId")
            found = told.coordinators if only is None else {_number(only): _coordinator(told, only)}
            return dict(_slow(told, found, _number(timeout)))
        case ["transactionBufferStats", *name] if len(name) == 3:
            return _buffer_stats(_topic(told, name), marks=query.get("lowWaterMarks") == "true")
        case ["transactionInBufferStats", *name, most, least] if len(name) == 3:
            txn = TxnID(_number(most), _number(least))
            return _in_buffer(_topic(told, name), txn)
        case ["pendingAckStats", *name, subscription] if len(name) == 3:
            pending = _subscription(told, name, subscription).pending_acks
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
            pending = _subscription(told, name, subscription).pending_acks
            cumulative = None if pending is None else pending.cumulative
            if cumulative is None or cumulative.txn != TxnID(_number(most), _number(least)):
                return {}
            return {"cumulativeAckPosition": str(cumulative.position)}
    return None


def to_abort(path: str) -> TxnID | None:
    """The transaction that POST of a `path` below transactions aborts. None: there is no such path. Raises `AdminError`."""
    match path.split("/"):
        case ["abortTransaction", most, least]:
            return TxnID(_number(most), _number(least))
    return None


def open_transaction(told: TransactionSource, txn: TxnID) -> OpenTransaction:
    """What a coordinator knows of a transaction. Raises `AdminError`."""
    coordinator = told.coordinators.get(txn.most)
    if coordinator is None or not coordinator.connected:
        raise AdminError(404, f"Transaction coordinator with id {txn.most} not found!")
    if (found := coordinator.transactions.get(txn.least)) is None:
        raise AdminError(404, f"The transaction with this txdID `{txn}`not found ")
    return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise AdminError(404, f"{text[:30]}: expected a number")
    return int(text)


def _coordinator(told: TransactionSource, id_: str) -> Coordinator:
    found = told.coordinators.get(_number(id_))
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
    told: TransactionSource, coordinators: Mapping[int, Coordinator], timeout: int
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
        yield str(txn), _metadata(told, txn, each)


def _metadata(told: TransactionSource, txn: TxnID, found: OpenTransaction) -> dict[str, Any]:
    acked: dict[str, dict[str, Any]] = {}
    for topic, subscription in found.subscriptions:
        acked.setdefault(topic, {})[subscription] = {}
    produced = {}
    for topic in found.topics:
        try:
            there = told.topic(complete(topic))
        except KeyError:
            continue  # it is gone
        produced[topic] = _in_buffer(there, txn)
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


def _topic(told: TransactionSource, name: list[str]) -> PersistentTopic:
    full = f"persistent://{'/'.join(name)}"
    try:
        return told.topic(full)
    except KeyError:
        raise AdminError(404, f"Topic not found {full}") from None


def _subscription(told: TransactionSource, name: list[str], subscription: str) -> Any:
    found = _topic(told, name).subscriptions.get(subscription)
    if found is None:
        raise AdminError(404, "Subscription not found")
    return found
