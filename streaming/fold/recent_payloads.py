"""The payloads of entries that a micro-batch has stored so far, for the compaction of a topic: where rows wait, in memory or in a file.

Each table of rows is looked at once, and only after a compaction has asked for the first payload. So a micro-batch without one costs nothing,
and one with many costs as much as its rows, whatever it compacts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from schemas.effects import KINDS, CompactedEntry, SendReceipt
from sinks.rows import SpooledRows

_WITH_ENTRIES = tuple(KINDS[kind] for kind in (SendReceipt, CompactedEntry))


class _Run(NamedTuple):
    """Entries from `first` on of a ledger: the payloads that they have, in a table of a chunk, are at `rows`."""

    first: int
    chunk: int
    kind: str
    rows: Sequence[int]


class RecentPayloads:
    """The payloads by topic, ledger and entries, see `find`."""

    def __init__(self, spool: SpooledRows) -> None:
        """`spool`: where the rows wait."""
        self._spool = spool
        self._indexed = 0
        self._runs: dict[tuple[str, int], list[_Run]] = {}

    def find(self, topic: str, ledger_id: int, first: int, last: int, piece: pa.Table | None) -> list[bytes]:
        """The payloads of entries `first` to `last`, inclusive, in order. `piece`: receipts that are not in the spool yet."""
        for chunk in range(self._indexed, len(self._spool)):
            for kind in _WITH_ENTRIES:
                table = self._spool.waiting(chunk, kind)
                for ledger, start, rows in () if table is None else _runs(table):
                    self._runs.setdefault(ledger, []).append(_Run(start, chunk, kind, rows))
        self._indexed = len(self._spool)
        found: list[bytes] = []
        runs = self._runs.get((topic, ledger_id), [])
        at = max(bisect_right(runs, first, key=lambda run: run.first) - 1, 0)
        for run in runs[at:]:
            own = run.rows[max(first - run.first, 0) : max(last + 1 - run.first, 0)]
            table = self._spool.waiting(run.chunk, run.kind) if own else None
            if table is not None:
                found += table["payload"].take(pa.array(own)).to_pylist()
        if len(found) < last + 1 - first and piece is not None:
            for at_hand, start, rows in _runs(piece):
                if at_hand == (topic, ledger_id):
                    own = rows[max(first + len(found) - start, 0) : last + 1 - start]
                    found += piece["payload"].take(pa.array(own)).to_pylist()
        return found


def _runs(table: pa.Table) -> Iterator[tuple[tuple[str, int], int, list[int]]]:
    """Topic and ledger, the first entry, and the rows of entries that follow each other in it."""
    topics = table["topic"].combine_chunks().dictionary_encode()
    codes, ledgers = topics.indices.to_numpy(), table["ledger_id"].to_numpy()
    entries = table["entry_id"].to_numpy()
    order = np.lexsort((entries, ledgers, codes))
    order = order[ledgers[order] > 0]
    if not len(order):
        return
    codes, ledgers, entries = codes[order], ledgers[order], entries[order]
    breaks = np.flatnonzero((np.diff(codes) != 0) | (np.diff(ledgers) != 0)) + 1
    for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(order)], strict=True):
        topic = topics.dictionary[int(codes[start])].as_py()
        yield (topic, int(ledgers[start])), int(entries[start]), order[start:stop].tolist()
