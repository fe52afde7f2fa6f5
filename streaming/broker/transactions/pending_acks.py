"""The acks of open transactions on a subscription (mirrors `PendingAckHandleImpl`; docs/rules/transactions.md §5, §6).

They change the cursor when the transaction commits. Until then, what they name is not sent again, and nobody else may acknowledge it in
a transaction.
"""

from collections.abc import Iterable, Sequence

import msgspec

from streaming.broker.errors import BrokerError
from streaming.broker.ledger.ack_set import first_unacked, to_bits, to_bytes
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.position import Position
from streaming.broker.transactions.transaction_buffer import TxnID

MOST_POSITIONS = 100_000
"""The entries of a subscription that open transactions may have acknowledged."""

WORTH_A_LOOK = 1_000
"""To look which of all these entries were acknowledged meanwhile costs as much as there are. If that finds fewer than this, so many acks for which
there is no place come before the next look."""

_CONFLICT = "TransactionConflict"


class PendingPosition(msgspec.Struct, array_like=True):
    """`left`: of a batch, the messages that no transaction has acknowledged, and no ack outside of one since the first (`to_bytes`); None: it is
    acknowledged as a whole. `size`: the messages of the batch as the last ack said; 0: it did not."""

    left: bytes | None = None
    size: int = 0


class CumulativeAck(msgspec.Struct, array_like=True):
    """The cumulative ack of a transaction. `left`: see `PendingPosition`."""

    txn: TxnID
    position: Position
    left: bytes | None = None


class AckInTransaction(msgspec.Struct, frozen=True):
    """An id of an ACK. `left`: the messages of its batch that stay unacknowledged, as bits; None: the whole entry is acknowledged. `size`: the
    messages of the batch as the client says, at most `LARGEST_BATCH`; 0: it does not."""

    position: Position
    left: int | None
    size: int


class PendingAcks(msgspec.Struct, array_like=True):
    """`positions` has all entries with pending acks: those that the subscription has to deliver, and whatever open transactions name, `of_transactions` those of each transaction, in the order in which these began to acknowledge: what its acks
    leave of each; `held`: how many entries these have together. `low_water_marks`: see `TransactionBuffer`. `waits`: how many acks for which there
    is no place come before the next look, see `WORTH_A_LOOK`."""

    positions: dict[Position, PendingPosition] = {}
    of_transactions: dict[TxnID, dict[Position, bytes | None]] = {}
    cumulative: CumulativeAck | None = None
    low_water_marks: dict[int, int] = {}
    held: int = 0
    waits: int = 0

    # -- acks -------------------------------------------------------------------------------------------------------

    def acknowledge(self, cursor: ManagedCursor, txn: TxnID, acks: Sequence[AckInTransaction]) -> None:
        """Individual acks of a transaction. Raises `BrokerError`, and then no ack has changed."""
        for each in acks:
            self._check(cursor, txn, each)
        if self.held + len(acks) > MOST_POSITIONS:
            self._make_place(cursor)
        own = self.of_transactions.get(txn, {})
        new = {each.position for each in acks if each.position not in own}
        if self.held + len(new) > MOST_POSITIONS:
            cause = f"open transactions have acknowledged {MOST_POSITIONS:,} entries of the subscription: end some"
            raise BrokerError("NotAllowedError", cause)
        self.held += len(new)
        if acks:
            own = self.of_transactions.setdefault(txn, own)
        for each in acks:
            position, left = each.position, each.left
            known = self.positions.get(position)
            if left is None:
                own[position] = None
                if known is None:
                    self.positions[position] = PendingPosition(None, each.size)
                continue
            before = own.get(position)
            own[position] = to_bytes(left if before is None else left & to_bits(before))
            if known is None:
                self.positions[position] = PendingPosition(to_bytes(left), each.size)
            else:
                known.size = each.size
                if known.left is not None:
                    known.left = to_bytes(to_bits(known.left) & left)

    def _check(self, cursor: ManagedCursor, txn: TxnID, ack: AckInTransaction) -> None:
        position, left = ack.position, ack.left
        if cursor.has_acked(position):
            raise BrokerError(
                _CONFLICT, f"Transaction:{txn} try to ack message:{position} already acked before."
            )
        pending = self.positions.get(position)
        if left is None:
            if pending is not None:
                cause = f"Transaction:{txn} try to ack message:{position} in pending ack status."
                raise BrokerError(_CONFLICT, cause)
            return
        stored = cursor.batches.get(position)
        if stored is not None and _overlap(left, to_bits(stored), ack.size):
            raise BrokerError(
                _CONFLICT, f"Transaction:{txn} try to ack message:{position} already acked before."
            )
        if pending is not None and (
            pending.left is None or _overlap(left, to_bits(pending.left), max(ack.size, pending.size))
        ):
            cause = f"Transaction:{txn} try to ack batch message:{position} in pending ack status."
            raise BrokerError(_CONFLICT, cause)

    def acknowledge_cumulative(
        self, cursor: ManagedCursor, txn: TxnID, position: Position, left: int | None
    ) -> None:
        """The cumulative ack of a transaction. `left`: see `AckInTransaction`. Raises `BrokerError` and then changes nothing."""
        present = self.cumulative
        if position <= cursor.mark_delete:
            cause = (
                f"Transaction:{txn} try to cumulative ack position: {position} within range of cursor's markDeletePosition: "
                f"{cursor.mark_delete}"
            )
            raise BrokerError(_CONFLICT, cause)
        if present is not None and (present.txn != txn or not _is_further(position, left, present)):
            cause = (
                f"Transaction:{txn} try to cumulative batch ack position: {position} within range of current currentPosition: "
                f"{present.position}"
            )
            raise BrokerError(_CONFLICT, cause)
        self.cumulative = CumulativeAck(txn, position, None if left is None else to_bytes(left))

    def acknowledged_partly(self, ledger: ManagedLedger, position: Position, left: int) -> None:
        """A part of a batch was acknowledged outside of transactions."""
        known = self.positions.get(position)
        if known is None:
            if ledger.has(position):
                self.positions[position] = PendingPosition(to_bytes(left))
        elif known.left is not None:
            known.left = to_bytes(to_bits(known.left) & left)

    def acknowledged(
        self, ledger: ManagedLedger, cursor: ManagedCursor, before: Position, named: Iterable[Position]
    ) -> None:
        """Entries were acknowledged, by whomever: those that are `named`, and all up to the mark-delete position, which was `before`.

        Those that nobody has written go, too: no cursor would ever tell of them.
        """
        for position in named:
            if cursor.has_acked(position) or not ledger.has(position):
                self.positions.pop(position, None)
        for position in ledger.passed(self.positions, before, cursor.mark_delete):
            del self.positions[position]

    # -- what is not sent again -------------------------------------------------------------------------------------

    def left_to_send(self, cursor: ManagedCursor, position: Position) -> int | None:
        """What may be sent of an entry, as bits; 0: nothing. None: no ack is pending."""
        pending = self.positions.get(position)
        if pending is None:
            return None
        if pending.left is None:
            return 0
        stored = cursor.batches.get(position)
        left = to_bits(pending.left)
        return left if stored is None else left & to_bits(stored)

    def may_leave_consumer(self, position: Position) -> bool:
        """Whether nothing is left of a batch that transactions acknowledge in parts, so that it is not with its consumer any more."""
        pending = self.positions.get(position)
        return pending is None or not pending.left

    # -- ends -------------------------------------------------------------------------------------------------------

    def take_committed(self, txn: TxnID) -> dict[Position, bytes | None]:
        """The acks of a transaction that commits.

        quirk: none while another transaction has a cumulative ack.
        """
        return self._take(txn)

    def abort(self, txn: TxnID) -> list[Position]:
        """Give up the individual acks of a transaction. Returns the entries."""
        own = self._take(txn)
        for position, kept in own.items():
            pending = self.positions.get(position)
            if pending is None:
                continue
            if kept is None or pending.left is None:
                del self.positions[position]
                continue
            everything = (1 << pending.size) - 1
            left = to_bits(pending.left) | (to_bits(kept) ^ everything)
            if left.bit_count() == pending.size:
                del self.positions[position]
            else:
                pending.left = to_bytes(left)
        return list(own)

    def _take(self, txn: TxnID) -> dict[Position, bytes | None]:
        own = self.of_transactions.pop(txn, {})
        self.held -= len(own)
        return own

    def reopen(self, cursor: ManagedCursor) -> None:
        """The topic is loaded again: pending acks come back, without those of entries that were acknowledged meanwhile."""
        self.low_water_marks = {}
        sizes = {position: each.size for position, each in self.positions.items()}
        self.positions = {}
        self._forget_acked(cursor)
        for own in self.of_transactions.values():
            for position, kept in own.items():
                known = self.positions.get(position)
                if known is None or kept is None or known.left is None:
                    self.positions[position] = PendingPosition(kept, sizes.get(position, 0))
                else:
                    known.left = to_bytes(to_bits(known.left) & to_bits(kept))
        if self.cumulative is not None and self.cumulative.position <= cursor.mark_delete:
            self.cumulative = None

    def _make_place(self, cursor: ManagedCursor) -> None:
        if self.waits:
            self.waits -= 1
            return
        before = self.held
        self._forget_acked(cursor)
        if before - self.held < WORTH_A_LOOK:
            self.waits = WORTH_A_LOOK

    def _forget_acked(self, cursor: ManagedCursor) -> None:
        """Forget acks of entries that were acknowledged meanwhile: nobody may ever end their transactions."""
        for txn, own in list(self.of_transactions.items()):
            left = {position: kept for position, kept in own.items() if not cursor.has_acked(position)}
            if left:
                self.of_transactions[txn] = left
            else:
                del self.of_transactions[txn]
        self.held = sum(map(len, self.of_transactions.values()))


def _overlap(one: int, other: int, size: int) -> bool:
    """Whether two sets of messages that stay unacknowledged have acknowledged the same one. `size`: the messages of the batch, 0: unknown."""
    everything = (1 << max(size, one.bit_length(), other.bit_length())) - 1
    return bool((one ^ everything) & (other ^ everything))


def _is_further(position: Position, left: int | None, present: CumulativeAck) -> bool:
    """Whether a cumulative ack acknowledges more than the present one."""
    if position != present.position or (left is None and present.left is None):
        return position > present.position
    if present.left is None:
        return False
    return left is None or first_unacked(left) > first_unacked(to_bits(present.left))
