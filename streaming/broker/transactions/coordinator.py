"""The coordinators of transactions: which are open, what they touch, and how they end (mirrors `TransactionMetadataStoreService`,
`MLTransactionMetadataStore` and `TransactionTimeoutTrackerImpl`; docs/rules/transactions.md §1, §2, §7).
"""

import heapq
from collections.abc import Iterable
from typing import Literal, Protocol, TypeVar

import msgspec

from schemas import commands as c
from schemas.commands import Refused
from schemas.effect_fields import TransactionFields
from schemas.effects import (
    AddPartitionToTxnResponse,
    AddSubscriptionToTxnResponse,
    EndTxnResponse,
    Error,
    NewTxnResponse,
    TcClientConnectResponse,
)
from schemas.metrics import CoordinatorMetrics
from streaming.broker.context import Context
from streaming.broker.names import COORDINATOR_ASSIGN, partition_of
from streaming.broker.transactions.transaction_buffer import TxnID

T = TypeVar("T")

TransactionCommand = (
    c.TcClientConnectRequest | c.NewTxn | c.AddPartitionToTxn | c.AddSubscriptionToTxn | c.EndTxn
)
COMMANDS = (c.TcClientConnectRequest, c.NewTxn, c.AddPartitionToTxn, c.AddSubscriptionToTxn, c.EndTxn)

MOST_COORDINATORS = 16
"""The coordinators of a cluster, unless its operator says otherwise."""
MOST_OPEN = 10_000
"""The open transactions of a coordinator."""
MOST_PARTS = 1_000
"""The topics, and the subscriptions, of a transaction."""

MOST_NAMED = 16 << 20
"""The characters of the names of topics and subscriptions of a coordinator's transactions: each micro-batch reads and writes all of them."""

MOST_AGAIN = 10
"""The topics on which each request tries again to end what could not end there. With more of them, a client could make each later request
as expensive as all its transactions."""

_ENDED = 100
"""So many times of transactions that have ended may be kept, besides as many as are open."""

TICK = 100
"""A transaction with less time than this (ms) ends at once."""

GRACE = 60_000
"""Where requests come to all ingress partitions, a transaction is aborted so long after its end by the clock of one (ms), if no request came since: by
then, all have the requests from before its end, unless a writer's clock is wrong by more than that."""

TIMER = "transactions"
"""Names the timer of the coordinators among those of topics. No topic is named so."""


class OpenTransaction(msgspec.Struct, array_like=True):
    """`opened` (ms): when it began. `timeout`: for how long it may be open (ms). `status`: other than OPEN if it ends and cannot yet on all of its `topics`.
    `subscriptions`: each as topic and name. `owner`: the role that alone may use it; empty: everybody may."""

    opened: int
    timeout: int
    status: Literal["OPEN", "COMMITTING", "ABORTING"] = "OPEN"
    topics: list[str] = []
    subscriptions: list[tuple[str, str]] = []
    owner: str = ""

    @property
    def due(self) -> int:
        """When it is aborted, if it is open then (ms)."""
        return self.opened + self.timeout


class Coordinator(msgspec.Struct, array_like=True):
    """`next_id`: the number of the next transaction. `transactions`: those that have not ended, by number. `ending`: those of them that could not end yet. `connected`: whether a
    client has asked for it since the broker started. Since then: how many were `created`, `committed`, `aborted`, and `timed_out`, which
    are aborted, too. `time`: the latest time of a request that came to all ingress partitions (ms); −1: requests come to this one."""

    next_id: int = 0
    transactions: dict[int, OpenTransaction] = {}
    ending: list[int] = []
    connected: bool = True
    created: int = 0
    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    time: int = -1

    @property
    def is_common(self) -> bool:
        """Whether all ingress partitions have it. Then it must be the same in all, whatever their clocks and topics."""
        return self.time >= 0


class Parts(Protocol):
    """The topics and subscriptions on which transactions end."""

    @property
    def alone(self) -> bool:
        """Whether no other ingress partition has topics, too."""

    def end_on_topic(self, topic: str, txn: TxnID, low_water_mark: int, *, commit: bool) -> bool:
        """End a transaction on a topic. False: it can't now. A topic that is gone has nothing to end."""

    def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnID, low_water_mark: int, *, commit: bool
    ) -> None:
        """End a transaction on a subscription. One that is gone has nothing to end."""


class Coordinators:
    """The coordinators of an ingress partition, in its state."""

    def __init__(self, ctx: Context, coordinators: dict[int, Coordinator], parts: Parts) -> None:
        self._ctx, self._all, self._parts = ctx, coordinators, parts
        self._due: list[
            tuple[int, int, int]
        ] = []  # time (ms), coordinator and number, a heap; of some that have ended, too
        self._woken: int | None = None  # when the timer is due (ms)
        self._named: dict[int, int] = {}  # see `MOST_NAMED`; of a coordinator once it is asked for
        for id_, each in coordinators.items():
            if each.connected:
                self._load(id_, each)

    # -- commands -------------------------------------------------------------------------------------------------

    def carry_out(self, name: str | None, command: TransactionCommand) -> Refused | None:
        """Carry out a request to a coordinator, or say why its record must be refused."""
        asked = (
            command.tc_id
            if isinstance(command, c.TcClientConnectRequest | c.NewTxn)
            else command.txnid_most_bits
        )
        expected, for_all = partition_of(COORDINATOR_ASSIGN, asked), not name
        if name and name != expected:
            return Refused("wrong_topic", f"a request to coordinator {asked} belongs to the topic {expected}")
        if not (for_all or self._parts.alone):
            cause = "there are several ingress partitions, and requests to a coordinator go to all of them: leave out the topic"
            return Refused("wrong_topic", cause)
        name = expected
        if not self._ctx.config.transactionCoordinatorEnabled:
            refusal = "NotAllowedError", "Transactions are not enabled."
            self._ctx.emit(Error(name, command.connection, command.request_id, *refusal))
            return None
        self._try_again()
        if for_all:
            self._keep_time()
        if isinstance(command, c.TcClientConnectRequest):
            self._connect(name, command, for_all=for_all)
        elif (found := self._all.get(asked)) is None or not found.connected:
            cause = f"Transaction coordinator with id {asked} not found!"
            least = msgspec.UNSET if isinstance(command, c.NewTxn) else command.txnid_least_bits
            fields = TransactionFields(txnid_most_bits=asked, txnid_least_bits=least)
            self._answer(name, command, fields, "TransactionCoordinatorNotFound", cause)
        elif isinstance(command, c.NewTxn):
            self._begin(name, command, found)
        else:
            self._change(name, command, found)
        return None

    def _connect(self, name: str, command: c.TcClientConnectRequest, *, for_all: bool) -> None:
        ctx, id_ = self._ctx, command.tc_id
        if id_ >= MOST_COORDINATORS:
            cause = (
                f"Transaction coordinator with id {id_} not found! There are {MOST_COORDINATORS}, from 0 on"
            )
            answer = "TransactionCoordinatorNotFound", cause
            ctx.emit(TcClientConnectResponse(name, command.connection, command.request_id, *answer))
            return
        coordinator = self._all.setdefault(id_, Coordinator(time=max(ctx.recorded, 0) if for_all else -1))
        ctx.emit(TcClientConnectResponse(name, command.connection, command.request_id))
        if not coordinator.connected:
            coordinator.connected = True
            self._load(id_, coordinator)
            if for_all:
                self._keep_time()
            else:
                self.run_timers()

    def _begin(self, name: str, command: c.NewTxn, coordinator: Coordinator) -> None:
        ctx, most, count = self._ctx, command.tc_id, len(coordinator.transactions)
        if (
            ctx.config.limitsActiveTransactions
            and 0 < ctx.config.maxActiveTransactionsPerCoordinator <= count
        ):
            return  # quirk: no answer, so that the client does not ask again at once
        if count >= MOST_OPEN:
            cause = f"{MOST_OPEN:,} transactions are open: end some first, or give them less time"
            self._answer(name, command, TransactionFields(txnid_most_bits=most), "NotAllowedError", cause)
            return
        least, coordinator.next_id = coordinator.next_id, coordinator.next_id + 1
        opened = coordinator.time if coordinator.is_common else ctx.clock
        begun = OpenTransaction(opened, command.txn_ttl_seconds, owner=command.principal)
        coordinator.transactions[least] = begun
        coordinator.created += 1
        self._answer(name, command, TransactionFields(txnid_most_bits=most, txnid_least_bits=least))
        if begun.timeout < TICK:
            self._end(most, least, commit=False)
        else:
            heapq.heappush(self._due, (begun.due, most, least))
            self._wake()

    def _change(
        self,
        name: str,
        command: c.AddPartitionToTxn | c.AddSubscriptionToTxn | c.EndTxn,
        coordinator: Coordinator,
    ) -> None:
        most, least = command.txnid_most_bits, command.txnid_least_bits
        fields = TransactionFields(txnid_most_bits=most, txnid_least_bits=least)
        found = coordinator.transactions.get(least)
        if found is None:
            cause = f"The transaction with this txdID `{TxnID(most, least)}`not found "
            self._answer(name, command, fields, "TransactionNotFound", cause)
            return
        if found.owner and command.principal not in ("", found.owner):
            cause = f"Client ({command.principal}) is neither the owner of the transaction {TxnID(most, least)} nor a super user"
            self._answer(name, command, fields, "TransactionNotFound", cause)
            return
        if isinstance(command, c.EndTxn):
            wanted = "COMMITTING" if command.txn_action == "COMMIT" else "ABORTING"
        else:
            wanted = "OPEN"
        if found.status not in ("OPEN", wanted):
            cause = f"Expect Txn `{TxnID(most, least)}` to be in {wanted} status but it is in {found.status} status"
            self._answer(name, command, fields, "InvalidTxnStatus", cause)
        elif isinstance(command, c.EndTxn):
            if self._end(most, least, commit=command.txn_action == "COMMIT"):
                self._answer(name, command, fields)  # quirk: none while it can't end
        elif (refusal := self._add(most, found, command)) is None:
            self._answer(name, command, fields)
        else:
            self._answer(name, command, fields, "NotAllowedError", refusal)

    def _add(
        self, most: int, found: OpenTransaction, command: c.AddPartitionToTxn | c.AddSubscriptionToTxn
    ) -> str | None:
        """Add parts to a transaction, or say why there are too many of them."""
        topics, subscriptions = found.topics, found.subscriptions
        if isinstance(command, c.AddPartitionToTxn):
            topics = _with(topics, command.partitions)
        else:
            subscriptions = _with(
                subscriptions, [(each.topic, each.subscription) for each in command.subscription]
            )
        if max(len(topics), len(subscriptions)) > MOST_PARTS:
            return (
                f"a transaction may have {MOST_PARTS:,} topics and as many subscriptions: begin another one"
            )
        more = _characters(topics, subscriptions) - _characters(found.topics, found.subscriptions)
        if self._named_by(most) + more > MOST_NAMED:
            return (
                f"the names of what open transactions touch have more than {MOST_NAMED:,} characters: end some first, or give "
                "them less time"
            )
        self._named[most] += more
        found.topics, found.subscriptions = topics, subscriptions
        return None

    def _named_by(self, most: int) -> int:
        if most not in self._named:
            found = self._all[most].transactions.values()
            self._named[most] = sum(_characters(each.topics, each.subscriptions) for each in found)
        return self._named[most]

    def _answer(
        self,
        name: str,
        command: TransactionCommand,
        fields: TransactionFields,
        error: str | None = None,
        cause: str | None = None,
    ) -> None:
        if error is not None and not self._ctx.config.errorsNameTransactions:
            fields = TransactionFields(txnid_most_bits=fields.txnid_most_bits)
        answer = command.connection, command.request_id, fields, error, cause
        match command:
            case c.NewTxn():
                self._ctx.emit(NewTxnResponse(name, *answer))
            case c.AddPartitionToTxn():
                self._ctx.emit(AddPartitionToTxnResponse(name, *answer))
            case c.AddSubscriptionToTxn():
                self._ctx.emit(AddSubscriptionToTxnResponse(name, *answer))
            case _:
                self._ctx.emit(EndTxnResponse(name, *answer))

    # -- ends -----------------------------------------------------------------------------------------------------

    def _end(self, most: int, least: int, *, commit: bool) -> bool:
        """End a transaction on all that it has touched. False: it can't now on some topics, where it will be tried again."""
        coordinator = self._all[most]
        found, txn = coordinator.transactions[least], TxnID(most, least)
        found.status = "COMMITTING" if commit else "ABORTING"
        mark = next(iter(coordinator.transactions)) - 1
        subscriptions, found.subscriptions = found.subscriptions, []
        if most in self._named:
            self._named[most] -= _characters(subscriptions=subscriptions)
        for topic, subscription in subscriptions:
            self._parts.end_on_subscription(topic, subscription, txn, mark, commit=commit)
        return self._end_on_topics(most, least, len(found.topics))

    def _end_on_topics(self, most: int, least: int, count: int) -> bool:
        """End a transaction on so many of its topics. False: some are left, and it comes behind the others that can't end."""
        coordinator = self._all[most]
        found, txn = coordinator.transactions[least], TxnID(most, least)
        commit, mark = found.status == "COMMITTING", next(iter(coordinator.transactions)) - 1
        tried, rest = found.topics[:count], found.topics[count:]
        before = found.topics
        found.topics = rest + [
            topic for topic in tried if not self._parts.end_on_topic(topic, txn, mark, commit=commit)
        ]
        is_left = bool(found.topics) and not coordinator.is_common
        if most in self._named:
            self._named[most] -= _characters(before) - _characters(found.topics if is_left else ())
        if is_left:
            if least not in coordinator.ending:
                coordinator.ending.append(least)
            return False
        del coordinator.transactions[least]
        coordinator.committed += commit
        coordinator.aborted += not commit
        if least in coordinator.ending:
            coordinator.ending.remove(least)
        self._forget_ended()
        return not found.topics

    def _try_again(self) -> None:
        """End what could not end before, on a few topics: those that have waited longest. quirk: Pulsar tries all each second."""
        left = MOST_AGAIN
        for most, coordinator in self._all.items():
            for _ in range(min(left, len(coordinator.ending))):
                least = coordinator.ending.pop(0)
                count = min(left, len(coordinator.transactions[least].topics))
                self._end_on_topics(most, least, count)
                left -= count
                if left <= 0:
                    return

    def _forget_ended(self) -> None:
        """Forget the times of transactions that have ended, once most are such: clients may have given them years."""
        known = [each for each in self._all.items() if each[1].connected]
        if len(self._due) > 2 * sum(len(each.transactions) for _, each in known) + _ENDED:
            self._due.clear()
            for id_, each in known:
                self._load(id_, each)

    def run_timers(self) -> None:
        """Abort the transactions whose time is over."""
        while self._due and self._ends_at() <= self._ctx.clock:
            self._abort_first()
        self._wake()

    def _keep_time(self) -> None:
        """A request has come to all ingress partitions. In all of them, transactions whose time was over then are aborted before it."""
        for each in self._all.values():
            if each.is_common:
                each.time = max(each.time, self._ctx.recorded)
        while self._due and self._due[0][0] <= self._all[self._due[0][1]].time:
            self._abort_first()
        self._wake()

    def _abort_first(self) -> None:
        _, most, least = heapq.heappop(self._due)
        found = self._all[most].transactions.get(least)
        if found is not None and found.status == "OPEN":
            self._all[most].timed_out += 1
            self._end(most, least, commit=False)

    def _ends_at(self) -> int:
        """When the first transaction is aborted by this partition's clock (ms)."""
        due, most, _ = self._due[0]
        return due + GRACE if self._all[most].is_common else due

    def _load(self, id_: int, coordinator: Coordinator) -> None:
        for least, each in coordinator.transactions.items():
            if each.status == "OPEN":
                heapq.heappush(self._due, (each.due, id_, least))
        self._wake()

    def _wake(self) -> None:
        due = self._ends_at() if self._due else None
        if due != self._woken:
            if self._woken is not None:
                self._ctx.sleep(TIMER, self._woken)
            if due is not None:
                self._ctx.wake(TIMER, due)
            self._woken = due

    def ends_by(self, txn: TxnID) -> int | None:
        """When a transaction is aborted at the latest (ms), if a coordinator knows it as open."""
        found = self._all.get(txn.most)
        open_ = None if found is None or not found.connected else found.transactions.get(txn.least)
        return open_.due if open_ is not None and open_.status == "OPEN" else None

    def metrics(self) -> dict[int, CoordinatorMetrics]:
        """The figures of those that clients have asked for, by id."""
        return {
            id_: CoordinatorMetrics(
                len(each.transactions), each.created, each.committed, each.aborted, each.timed_out
            )
            for id_, each in self._all.items()
            if each.connected
        }

    def restarted(self) -> None:
        """The broker stops: coordinators are loaded again when clients ask for them."""
        self._due.clear()
        self._wake()
        for coordinator in self._all.values():
            coordinator.connected = False
            coordinator.created = coordinator.committed = coordinator.aborted = coordinator.timed_out = 0


def _characters(topics: Iterable[str] = (), subscriptions: Iterable[tuple[str, str]] = ()) -> int:
    return sum(map(len, topics)) + sum(len(topic) + len(name) for topic, name in subscriptions)


def _with(present: list[T], more: Iterable[T]) -> list[T]:
    """A list without duplicates, and what is new in another one behind it."""
    return list(dict.fromkeys([*present, *more]))
