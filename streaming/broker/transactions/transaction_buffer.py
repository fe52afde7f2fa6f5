"""What a topic keeps of transactions: which are open on it, and which were aborted (mirrors `TopicTransactionBuffer` and
`SingleSnapshotAbortedTxnProcessorImpl`; docs/rules/transactions.md §3, §4).

Writing is in `streaming.broker.persistent.publish.publishing`. Up to where consumers may read is in the ledger (`ManagedLedger.max_read`),
since cursors ask for it.
"""

from collections.abc import Iterable
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.position import Position


class TxnID(NamedTuple):
    """The id of a transaction: that of its coordinator, and its number there."""

    most: int
    least: int

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


def note_low_water_mark(
    marks: dict[int, int], coordinator: int, mark: int, ongoing: Iterable[TxnID]
) -> TxnID | None:
    """A coordinator has ended all up to the number `mark`, which goes to `marks` (coordinator → number). Returns the first of the transactions
    that are still open here if it is one of them: what it did here came too late."""
    marks[coordinator] = max(mark, marks.get(coordinator, mark))
    first = next(iter(ongoing), None)
    return first if first is not None and marks.get(first.most, -1) >= first.least else None


MOST_WITHOUT_MESSAGES = 1_000
"""A topic with so many open transactions forgets those whose messages are in deleted ledgers. Nobody may ever end them."""


class TransactionBuffer(msgspec.Struct, array_like=True):
    """`ongoing`: the first entry of each transaction that is open on the topic, by the order in which they began here. `aborted`: the position of the
    marker of each that was aborted, as long as the topic has that ledger. `low_water_marks`: by coordinator, up to which number all have ended, as far as the topic has
    heard. `ready`: the topic has had a message of a transaction. `committed`, `rolled_back`: how many ended on the topic since it was loaded.
    `failed`: why the first message of a transaction was refused since then; empty: none was. `later`: the first entry of an open transaction
    in each further ledger, which the topic needs when it is loaded without the earlier ledgers.
    """

    ongoing: dict[TxnID, Position] = {}
    aborted: dict[TxnID, Position] = {}
    low_water_marks: dict[int, int] = {}
    ready: bool = False
    committed: int = 0
    rolled_back: int = 0
    failed: str = ""
    later: dict[TxnID, list[Position]] = {}

    def refusal(self, txn: TxnID, *, stays: bool) -> str:
        """Why the topic takes no message of a transaction that it knows to have ended. Empty: it takes it.

        quirk: in 4.0 a refusal `stays`: the topic takes none of any transaction until it is loaded again (recorded).
        """
        if self.failed and stays:
            return self.failed
        if self.low_water_marks.get(txn.most, -1) < txn.least:
            return ""
        self.failed = f"Transaction [{txn}] has been ended. Please use a new transaction to send message."
        return self.failed

    def added(self, ledger: ManagedLedger, txn: TxnID, position: Position) -> None:
        """A message of a transaction was stored.

        quirk: one of an aborted transaction does not count as new until something else is stored.
        """
        self.ready = True
        if txn not in self.ongoing and txn not in self.aborted:
            self.ongoing[txn] = position
            self._bound(ledger)
            self._hold_back(ledger)
        elif txn in self.ongoing and position.ledger > self._last(txn).ledger:
            kept = [each for each in self.later.get(txn, ()) if each.ledger in ledger.ledgers]
            self.later[txn] = [*kept, position]

    def _last(self, txn: TxnID) -> Position:
        return self.later[txn][-1] if txn in self.later else self.ongoing[txn]

    def published(self, ledger: ManagedLedger, position: Position) -> None:
        """A message outside of transactions was stored."""
        if not self.ongoing:
            ledger.max_read = position

    def ended(self, ledger: ManagedLedger, txn: TxnID, marker: Position, *, committed: bool) -> None:
        """The marker of a transaction was stored."""
        if committed:
            self.committed += 1
        else:
            self.rolled_back += 1
            self.aborted[txn] = marker
        self.ongoing.pop(txn, None)
        self.later.pop(txn, None)
        if self.ongoing:
            self._hold_back(ledger)
        else:
            ledger.max_read = ledger.last_confirmed
        self._trim(ledger)

    def reopen(self, ledger: ManagedLedger) -> None:
        """The topic is loaded again: what its ledgers tell is known, the rest is forgotten."""
        self.low_water_marks = {}
        self.committed = self.rolled_back = 0
        self.failed = ""
        self._forget_deleted(ledger)
        if self.ongoing:
            self._hold_back(ledger)
        else:
            ledger.max_read = ledger.last_confirmed

    def _bound(self, ledger: ManagedLedger) -> None:
        """Forget what a load would forget, too, but for the first transaction, which holds consumers back."""
        last_of_most = next(islice(self.ongoing.values(), MOST_WITHOUT_MESSAGES, None), None)
        if last_of_most is None or last_of_most.ledger in ledger.ledgers:
            return
        first, position = next(iter(self.ongoing.items()))
        later = self.later.get(first)
        self._forget_deleted(ledger)
        self.ongoing.pop(first, None)
        self.ongoing = {first: position, **self.ongoing}
        if later is not None:
            self.later[first] = later

    def _hold_back(self, ledger: ManagedLedger) -> None:
        ledger.max_read = ledger.previous(next(iter(self.ongoing.values())))

    def _forget_deleted(self, ledger: ManagedLedger) -> None:
        """Of an open transaction, count only what is in ledgers that the topic still has, in this order."""
        found = dict[TxnID, list[Position]]()
        for txn, first in self.ongoing.items():
            if left := [each for each in (first, *self.later.get(txn, ())) if each.ledger in ledger.ledgers]:
                found[txn] = left
        self.ongoing = {txn: left[0] for txn, left in sorted(found.items(), key=lambda item: item[1][0])}
        self.later = {txn: left[1:] for txn, left in found.items() if len(left) > 1}

    def _trim(self, ledger: ManagedLedger) -> None:
        """Forget aborted transactions whose marker is in a deleted ledger. It looks at these, and at one more."""
        ledgers = ledger.ledgers
        for txn, _ in [*takewhile(lambda each: each[1].ledger not in ledgers, self.aborted.items())]:
            del self.aborted[txn]
