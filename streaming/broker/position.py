"""Positions: (ledger, entry), ordered lexicographically (docs/rules/ledgers.md §1)."""

from typing import NamedTuple

MAX = 2**63 - 1
_UINT64 = 2**64


from_tuple = tuple.__new__
"""A named tuple of a tuple with all its fields: ``from_tuple(Position, (1, 0))``. Takes half of the time that its type takes, or less,
and checks nothing, so it is for what a record needs."""


class Position(NamedTuple):
    """``ledger:entry``. ``ledger:-1`` means "before the first entry of the ledger"."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"

    def next(self) -> "Position":
        """The position with the next entry id. It may not exist."""
        ledger, entry = self
        return from_tuple(Position, (ledger, entry + 1 if entry >= 0 else 0))


EARLIEST = Position(-1, -1)
LATEST = Position(MAX, MAX)


def from_wire(ledger_id: int, entry_id: int) -> Position:
    """A position from a MessageIdData: unsigned 64-bit −1 is −1 (docs/rules/protocol.md §2)."""
    if ledger_id > MAX:
        ledger_id -= _UINT64
    if entry_id > MAX:
        entry_id -= _UINT64
    return from_tuple(Position, (ledger_id, entry_id))


def from_text(text: str) -> Position:
    """A position as Pulsar's statistics have it: ``7:2``. Raises `ValueError`.

    From 4.0 on, one that a seek has set says which messages of a batch are left, too: ``7:2 (ackSet is null)``, of AckSetPositionImpl.
    """
    ledger, _, entry = text.partition(" (ackSet ")[0].partition(":")
    return Position(int(ledger), int(entry))


def from_words(text: str) -> Position:
    """The position of a message as people name it, in digits: ``3:42``. Raises `ValueError`, which says what is expected."""
    ledger, _, entry = text.partition(":")
    if not all(each.isascii() and each.isdigit() and len(each) <= _DIGITS for each in (ledger, entry)):
        raise ValueError(f"{text!r}: expected LEDGER:ENTRY, such as 3:42")
    return from_tuple(Position, (int(ledger), int(entry)))


_DIGITS = 18
"""No number of so many is larger than `MAX`."""
