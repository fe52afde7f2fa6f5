"""What output rows say: the latest expiries and evictions, and what was stored, sent and lost over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import effects as e
from schemas.effects import KINDS, Effect
from sinks import batch_files
from sinks.parquet import fragment
from sinks.storage import Storage
from sinks.tables import TABLES, table_files
from streaming.answers.history.folders import Budget, Folders, TooMuch

LOSSES: dict[str, type[Effect]] = {
    KINDS[kind]: kind for kind in (e.Evicted, e.Expired, e.LedgerDeleted, e.Quarantined)
}
"""The kinds of rows that `latest` finds."""

BUCKETS = 120
"""How many intervals `flows` divides the time into."""

_COLUMNS = (
    "partition", "offset", "ordinal", "clock", "topic", "subscription", "before_ledger", "before_entry", "after_ledger",
    "after_entry", "ledger_id", "entries", "size", "rule", "cause", "policy",
)  # fmt: skip
_ORDER = [(name, "ascending") for name in ("clock", "partition", "offset", "ordinal")]
_ROWS = 1 << 14

_FLOWS: dict[str, tuple[type[Effect], str | None]] = {
    "stored": (e.SendReceipt, None),
    "sent": (e.Message, None),
    "expired": (e.Expired, "entries"),
    "evicted": (e.Evicted, "entries"),
}
"""A flow → the rows that it counts, or of which it adds up a column."""


def latest(
    tables: Storage, kinds: Sequence[str], most: int, topic: str | None, budget: Budget
) -> dict[str, Any]:
    """The last rows of some `LOSSES`, of all topics or of one, the newest first, and whether they are ``complete``: that no
    newer one can be missing since the `budget` was too small.

    The newest files are read first, and of each no more than is needed. Memory holds a few thousand rows at a time.
    """
    rows: list[dict[str, Any]] = []
    complete = True
    for kind in kinds:
        try:
            rows += _latest(tables, kind, most, topic, budget)
        except TooMuch:
            complete = False
    rows.sort(key=lambda row: [row[name] for name, _ in _ORDER], reverse=True)
    return {"rows": rows[:most], "complete": complete}


def _latest(tables: Storage, kind: str, most: int, topic: str | None, budget: Budget) -> list[dict[str, Any]]:
    files = [(batch_files.of(path), path) for path in table_files(tables, kind)]
    # A compacted file has no batch in its name. It is older than the others, and newer the later its day, which its path has.
    files.sort(key=lambda file: (-1 if file[0] is None else file[0].batch, file[1]), reverse=True)
    found: list[dict[str, Any]] = []
    for _, group in groupby(files, key=lambda file: file[1] if file[0] is None else file[0].batch):
        for written, path in group:
            last = _last_rows(tables, path, kind, most, topic, budget, sorted_=written is not None)
            found += ({"kind": kind, **row} for row in last.to_pylist())
        if len(found) >= most:
            break
    return found


def _last_rows(
    tables: Storage, path: str, kind: str, most: int, topic: str | None, budget: Budget, *, sorted_: bool
) -> pa.Table:
    """The last rows of a file, which is in the order of time if it is `sorted_`."""
    columns = [name for name in _COLUMNS if name in TABLES[kind].names]
    kept = pa.schema([TABLES[kind].field(name) for name in columns]).empty_table()
    with fragment(tables, path) as file:
        for group in reversed(file.split_by_row_group()):
            for batch in group.to_batches(kept.schema, columns, batch_size=_ROWS, use_threads=False):
                budget.spend(len(batch))
                rows = pa.Table.from_batches([batch])
                if topic is not None:
                    rows = rows.filter(pc.equal(rows["topic"], topic))
                if len(rows):
                    rows = pa.concat_tables([kept, rows]).sort_by(_ORDER)
                    kept = rows.slice(max(0, len(rows) - most)).combine_chunks()
            if sorted_ and len(kept) == most:
                break
    return kept


def flows(folders: Folders, topic: str | None, storage: int) -> dict[str, Any] | None:
    """What happened over time, to all topics or to one: ``times`` (ms, the end of each of `BUCKETS` intervals), ``storage``
    (bytes at that time), and the entries that were ``stored``, ``sent``, ``expired`` and ``evicted`` in each interval. None:
    there are no rows.

    `storage`: that at the end, from which the rows lead back. Raises `TooMuch`.
    """
    where = None if topic is None else pc.field("topic") == topic
    kinds = (*(kind for kind, _ in _FLOWS.values()), e.LedgerDeleted)
    edges = [edge for kind in kinds for edge in _edges(folders, kind, where)]
    if not edges:
        return None
    first, last = min(edges), max(edges)
    width = max(1, -(-(last - first + 1) // BUCKETS))

    def add_up(kind: type[Effect], column: str | None, where: pc.Expression | None) -> np.ndarray[Any, Any]:
        sums = np.zeros(BUCKETS)
        for batch in folders.scan(kind, where, ["clock", *([] if column is None else [column])]):
            slots = (batch["clock"].to_numpy() - first) // width
            weights = (
                None if column is None else pc.fill_null(batch[column], 0).to_numpy(zero_copy_only=False)
            )
            sums += np.bincount(slots, weights, BUCKETS)
        return sums

    stored = pc.field("ledger_id") > 0
    of_stored = stored if where is None else where & stored
    of_topics = ~pc.starts_with(pc.field("cause"), e.COMPACTED_LEDGER)
    deleted = of_topics if where is None else where & of_topics
    changes = add_up(e.SendReceipt, "size", of_stored) - add_up(e.LedgerDeleted, "size", deleted)
    after = changes.sum() - np.cumsum(changes)
    return {
        "times": [first + width * (number + 1) for number in range(BUCKETS)],
        "storage": (storage - after).tolist(),
        **{
            name: add_up(kind, column, of_stored if kind is e.SendReceipt else where).tolist()
            for name, (kind, column) in _FLOWS.items()
        },
    }


def _edges(folders: Folders, kind: type[Effect], where: pc.Expression | None) -> Iterator[int]:
    """The least and the greatest time of rows."""
    for batch in folders.scan(kind, where, ["clock"]):
        if len(batch):
            yield from pc.min_max(batch["clock"]).as_py().values()
