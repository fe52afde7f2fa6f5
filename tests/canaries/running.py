"""A query without Spark, whose micro-batches and ticks a test makes."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from pathlib import Path
from typing import Any

import pyarrow as pa

from sinks.folded import FoldedBefore, FoldedFiles
from sinks.ledger_store import LedgerStore
from sinks.storage import Storage
from streaming.fold.columns import PartitionFold
from streaming.fold.records import Records, StateRow


class Running:
    """The folds of ingress partition 0 of a log (columns `RECORD`), micro-batch after micro-batch, and what they note."""

    def __init__(self, folder: Path) -> None:
        self.store = LedgerStore(str(folder / "store"))
        self.storage = Storage(str(folder / "store" / "canaries"))
        self.files = FoldedFiles(self.storage)
        self.state: StateRow | None = None
        self.batch = -1

    def fold(
        self, records: pa.Table, tick: int | None = None, *, noted: bool = True, latest: int | None = None
    ) -> None:
        """A micro-batch."""
        self.batch += 1
        own = PartitionFold(0, self.store, self.state, latest=latest)
        before = FoldedBefore(own.clock, own.last)
        given = Records(*(records[name].to_pylist() for name in ("offset", "timestamp", "topic", "value")))
        if len(records):
            own.apply(given)
        if tick is not None:
            own.tick(tick)
        self.store.begin(self.batch)
        self.store.write(self.batch, 0, own.rows())
        self.state = own.state()
        if noted:
            self.files.write(self.batch, 0, before, given, own.aside, tick)

    def visits(self, after: int) -> Any:
        """What was noted of the micro-batches after one."""
        return [
            self.files.read(each.batch, 0) for each in self.files.waiting(self.batch) if each.batch > after
        ]


def batches(log: pa.Table, cuts: list[int]) -> list[pa.Table]:
    """The records between cuts."""
    edges = [0, *sorted({each for each in cuts if 0 < each < len(log)}), len(log)]
    return [log.slice(start, stop - start) for start, stop in itertools.pairwise(edges)]


def time_before(log: pa.Table, row: int) -> int:
    """The clock (ms) before a record."""
    times = [0, *log["timestamp"].to_pylist()]
    return max(times[: row + 1]) if bisect_right(times, 0) <= len(times) else 0
