"""Runs: where a ledger's entries are in a sorted table of entries. They are compact, since memory has all segments'."""

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Ledger = tuple[str, int]
"""Topic and ledger id."""

Unsealed = tuple[str, int, int]
"""Topic and ledger id of a closed ledger, and the bytes of its entries."""

RawRun = tuple[str, int, int, int]
"""Topic, ledger id, and first and last entry of a run. Its row follows from the runs before it."""


class EntryRun(NamedTuple):
    """Consecutive entries of a ledger. Entry `first` is in row `row`, entry `last` in the row before `stop`."""

    first: int
    last: int
    row: int

    @property
    def stop(self) -> int:
        """The row after the run's last one."""
        return self.row + self.last - self.first + 1


def runs_of(entries: pa.Table) -> list[RawRun]:
    """The runs of entries sorted by (topic, ledger_id, entry_id). Takes Python time per run, not per entry."""
    if not entries.num_rows:
        return []
    topic = entries["topic"].combine_chunks()
    ledger, entry = entries["ledger_id"].to_numpy(), entries["entry_id"].to_numpy()
    other_topic = pc.not_equal(topic[1:], topic[:-1]).to_numpy(zero_copy_only=False)
    breaks = other_topic | (ledger[1:] != ledger[:-1]) | (entry[1:] != entry[:-1] + 1)
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    stops = np.concatenate((starts[1:], [len(entry)])) - 1
    topics = topic.take(pa.array(starts)).to_pylist()
    return list(
        zip(topics, ledger[starts].tolist(), entry[starts].tolist(), entry[stops].tolist(), strict=True)
    )


class RunIndex:
    """Runs by ledger, at about 50 bytes per run."""

    def __init__(self, runs: list[RawRun]) -> None:
        """`runs` in the table's order."""
        # Segments of a partition mostly have the same topics, so share one copy of each name.
        self._topics = [sys.intern(topic) for topic in dict.fromkeys(run[0] for run in runs)]
        number = {topic: i for i, topic in enumerate(self._topics)}
        columns = ((number[topic], ledger, first, last) for topic, ledger, first, last in runs)
        table = np.array(list(columns), np.int64).reshape(-1, 4)
        self._ledger, self._first, self._last = np.ascontiguousarray(table[:, 1:].T)
        self._row = np.concatenate(([0], np.cumsum(self._last - self._first + 1)))
        self._start = np.searchsorted(table[:, 0], np.arange(len(self._topics) + 1))
        self.num_rows = int(self._row[-1])
        self.nbytes = 200 + 120 * len(self._topics) + 40 * len(runs)

    def __contains__(self, ledger: Ledger) -> bool:
        begin, end = self._range(ledger)
        return begin < end

    def __iter__(self) -> Iterator[Ledger]:
        """The ledger of each run, in order, so a ledger may occur several times."""
        for i, topic in enumerate(self._topics):
            for ledger in self._ledger[self._start[i] : self._start[i + 1]].tolist():
                yield topic, ledger

    def find(self, ledger: Ledger) -> list[EntryRun]:
        """A ledger's runs in order, empty if it has no entry here."""
        begin, end = self._range(ledger)
        return [
            EntryRun(int(self._first[i]), int(self._last[i]), int(self._row[i])) for i in range(begin, end)
        ]

    def _range(self, ledger: Ledger) -> tuple[int, int]:
        topic = bisect_left(self._topics, ledger[0])
        if topic == len(self._topics) or self._topics[topic] != ledger[0]:
            return 0, 0
        start, stop = int(self._start[topic]), int(self._start[topic + 1])
        begin, end = np.searchsorted(self._ledger[start:stop], (ledger[1], ledger[1] + 1))
        return start + int(begin), start + int(end)

    def rows_outside(self, ledgers: Iterable[Ledger]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """A mask of the rows that belong to other ledgers."""
        outside = np.ones(self.num_rows, bool)
        for ledger in ledgers:
            for run in self.find(ledger):
                outside[run.row : run.stop] = False
        return outside
