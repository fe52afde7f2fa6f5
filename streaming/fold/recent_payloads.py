"""The payloads of entries that a micro-batch has stored so far, for the compaction of a topic: where rows wait, in memory or in a file.

Each table of rows is looked at once, and only after a compaction has asked for the first payload. So a micro-batch without one costs nothing,
and one with many costs as much as its rows, whatever it compacts.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from schemas.effects import KINDS, CompactedEntry, SendReceipt
from sinks.rows import SpooledRows

_WITH_ENTRIES = tuple(KINDS[kind] for kind in (SendReceipt, CompactedEntry))


class _Run(NamedTuple):
    """Entries from `first` on of a ledger: the payloads that they have are at `rows` of `table`, or of the table of a kind in a chunk of the spool."""

    first: int
    table: pa.Table | tuple[int, str]
    rows: Sequence[int]


_ByLedger = dict[tuple[str, int], list[_Run]]


class RecentPayloads:
    """The payloads by topic, ledger and entries, see `find`."""

    def __init__(self, spool: SpooledRows) -> None:
        """`spool`: where the rows wait."""
        self._spool = spool
        self._indexed = 0
        self._runs: _ByLedger = {}
        self._of_piece: _ByLedger = {}
        self._read: tuple[tuple[int, str], pa.Table] | None = None
        """The table that was read last: the next entries are often in it, too."""

    def find(
        self, topic: str, ledger_id: int, first: int, last: int, of_piece: Iterable[pa.Table]
    ) -> list[bytes]:
        """The payloads of entries `first` to `last`, inclusive, in order. `of_piece`: receipts of the piece at hand, which are not in the spool
        yet, and not those of earlier calls."""
        for chunk in range(self._indexed, len(self._spool)):
            for kind in _WITH_ENTRIES:
                table = self._spool.waiting(chunk, kind)
                for ledger, start, rows in () if table is None else _runs(table):
                    self._runs.setdefault(ledger, []).append(_Run(start, (chunk, kind), rows))
        self._indexed = len(self._spool)
        for table in of_piece:
            for ledger, start, rows in _runs(table):
                insort(self._of_piece.setdefault(ledger, []), _Run(start, table, rows), key=_first)
        found: list[bytes] = []
        for runs in (self._runs, self._of_piece):
            self._add(found, runs.get((topic, ledger_id), []), first, last)
        return found

    def end_piece(self) -> None:
        """All receipts of the piece at hand are in the spool now."""
        self._of_piece.clear()

    def _add(self, found: list[bytes], runs: list[_Run], first: int, last: int) -> None:
        """Add what some runs, which are in order, have of the entries that are not found yet."""
        at = max(bisect_right(runs, first + len(found), key=_first) - 1, 0)
        while first + len(found) <= last and at < len(runs):
            start, where, rows = runs[at]
            own = rows[max(first + len(found) - start, 0) : max(last + 1 - start, 0)]
            if own:
                found += self._table(where)["payload"].take(pa.array(own)).to_pylist()
            at += 1

    def _table(self, where: pa.Table | tuple[int, str]) -> pa.Table:
        if isinstance(where, pa.Table):
            return where
        if self._read is None or self._read[0] != where:
            table = self._spool.waiting(*where)
            assert table is not None  # it was there when it was indexed
            self._read = where, table
        return self._read[1]


def _first(run: _Run) -> int:
    return run.first


def _runs(table: pa.Table) -> Iterator[tuple[tuple[str, int], int, list[int]]]:
    """Topic and ledger, the first entry, and the rows, of entries that follow each other."""
    topics = table["topic"].combine_chunks().dictionary_encode()
    codes, ledgers = topics.indices.to_numpy(), table["ledger_id"].to_numpy()
    entries = table["entry_id"].to_numpy()
    order = np.lexsort((entries, ledgers, codes))
    order = order[ledgers[order] > 0]
    if not len(order):
        return
    codes, ledgers, entries = codes[order], ledgers[order], entries[order]
    breaks = np.flatnonzero((np.diff(codes) != 0) | (np.diff(ledgers) != 0) | (np.diff(entries) != 1)) + 1
    for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(order)], strict=True):
        topic = topics.dictionary[int(codes[start])].as_py()
        yield (topic, int(ledgers[start])), int(entries[start]), order[start:stop].tolist()
