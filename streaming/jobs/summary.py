"""What happened in a replay, and why: its output tables as a few sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from schemas import effects as e
from schemas.effects import KINDS
from sinks.parquet import fragment
from sinks.storage import Storage
from sinks.tables import TABLES, table_files

SHOWN = 5
"""How many groups of rows of one kind get a sentence of their own, if there are more than one above that."""

_ROWS = 1 << 14  # in memory at a time: a row may be as large as the stats of a topic
_STATUS = r'"status":(?P<status>\d+)\}$'  # the names in `fields` are sorted, so the status comes last
_SUMS = ("entries", "size")
_NO_COPY = -1


def what_happened(tables: str | Path, *, copied: bool) -> list[str]:
    """Sentences on what was refused, closed, dropped, expired, evicted and trimmed, and why.

    Only the columns needed are read, a few thousand rows at a time, and no kind of row gets more than `SHOWN` + 1
    sentences.

    Args:
        tables: the folder of a replay's output tables.
        copied: records without a topic were copied to every ingress partition. The rows of all copies count as one.
    """
    found = _Tables(Storage(str(tables)), copied)
    sentences = [*_refused(found), *_closed(found), *_dropped(found), *_passed_over(found), *_trimmed(found)]
    return sentences or ["Nothing was refused, expired, evicted or trimmed."]


@dataclass(slots=True)
class _Group:
    """Rows of one kind with the same `key`: the values of the columns by which they are grouped, and "" for null."""

    key: tuple[str, ...]
    counts: Counter[int] = field(default_factory=Counter)
    """The rows of copied records by ingress partition, and all others."""
    entries: int = 0
    size: int = 0
    causes: list[str] = field(default_factory=list)
    """The first two different causes: enough to name one, and to say that there are others."""

    @property
    def rows(self) -> int:
        return self.counts[_NO_COPY] + max(
            (self.counts[each] for each in self.counts if each != _NO_COPY), default=0
        )

    @property
    def why(self) -> str:
        cause = self.causes[0].removesuffix(".")
        return cause if len(self.causes) == 1 else f"for example, {cause}"


class _Tables(NamedTuple):
    storage: Storage
    copied: bool

    def groups(self, effect: type[e.Effect], *by: str, where: pc.Expression | None = None) -> list[_Group]:
        """The rows of a kind, grouped by columns. ``status`` is the HTTP status of an ADMIN_RESPONSE."""
        kind = KINDS[effect]
        needed = {*by, *_SUMS, "cause", "topic", "partition"} | ({"fields"} if "status" in by else set())
        columns = [name for name in TABLES[kind].names if name in needed]
        found: dict[tuple[str, ...], _Group] = {}
        for path in table_files(self.storage, kind):
            with fragment(self.storage, path) as file:
                for batch in file.to_batches(
                    TABLES[kind], columns, filter=where, batch_size=_ROWS, batch_readahead=1
                ):
                    self._add(found, batch, by)
        return list(found.values())

    def _add(self, found: dict[tuple[str, ...], _Group], batch: pa.RecordBatch, by: tuple[str, ...]) -> None:
        for row in self._aggregated(pa.Table.from_batches([batch]), by):
            key = tuple(row[name] or "" for name in by)
            group = found.setdefault(key, _Group(key))
            group.counts[row["copy"]] += row["count_all"]
            group.entries += row.get("entries_sum") or 0
            group.size += row.get("size_sum") or 0
            if len(group.causes) < 2 and row["cause"] not in group.causes:
                group.causes.append(row["cause"])

    def _aggregated(self, rows: pa.Table, by: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """The rows by key, cause and copy."""
        copy = pc.and_(pc.is_null(rows["topic"]), self.copied)
        rows = rows.append_column("copy", pc.if_else(copy, rows["partition"], _NO_COPY))
        if "status" in by:
            found = pc.extract_regex(rows["fields"], _STATUS)
            rows = rows.append_column("status", pc.struct_field(found, "status"))
        sums = [(name, "sum") for name in _SUMS if name in rows.column_names]
        grouped = rows.group_by(sorted({*by, "cause", "copy"})).aggregate([*sums, ([], "count_all")])
        yield from grouped.to_pylist()


def _refused(tables: _Tables) -> Iterator[str]:
    """Records, publishes, requests and admin calls that were not carried out."""
    yield from _sentences(
        tables.groups(e.Quarantined, "rule"),
        ("record was quarantined", "records were quarantined"),
        lambda group: f"by rule '{group.key[0]}': {group.why}",
        "by {} other rules",
    )
    yield from _sentences(
        tables.groups(e.Unsupported),
        ("command was not carried out", "commands were not carried out"),
        lambda group: f"in full: {group.why}",
    )
    for kind, one, many in ((e.SendError, "publish", "publishes"), (e.Error, "request", "requests")):
        yield from _sentences(
            tables.groups(kind, "error"),
            (f"{one} was refused", f"{many} were refused"),
            lambda group: f"with {group.key[0]}: {group.why}",
            "with {} other errors",
        )
    yield from _sentences(
        [group for group in tables.groups(e.AdminResponse, "status") if int(group.key[0]) >= 400],
        ("admin call was refused", "admin calls were refused"),
        lambda group: f"with HTTP status {group.key[0]}: {group.why}",
        "with {} other statuses",
    )


def _closed(tables: _Tables) -> Iterator[str]:
    """Producers, consumers and connections that the broker closed."""
    for kind, what in ((e.CloseProducer, "producer"), (e.CloseConsumer, "consumer")):
        yield from _sentences(
            tables.groups(kind, "cause"),
            (f"{what} was closed", f"{what}s were closed"),
            lambda group: f"by the broker: {group.why}",
            "by the broker for {} other reasons",
        )
    yield from _sentences(
        tables.groups(e.CloseConnection),
        ("connection was closed", "connections were closed"),
        lambda group: f"by the broker: {group.why}",
    )


def _dropped(tables: _Tables) -> Iterator[str]:
    """Messages that got a receipt and were not stored. The receipt of a duplicate has no size."""
    nowhere = pc.field("ledger_id") == -1
    yield from _sentences(
        tables.groups(e.SendReceipt, where=nowhere & pc.field("size").is_null()),
        ("message was a duplicate", "messages were duplicates"),
        lambda _: "and not stored again: the sequence id had been persisted before",
    )
    yield from _sentences(
        tables.groups(e.SendReceipt, "cause", where=nowhere & pc.field("size").is_valid()),
        ("message of a non-persistent topic was", "messages of non-persistent topics were"),
        lambda group: group.why,
        "dropped for {} other reasons",
    )


def _passed_over(tables: _Tables) -> Iterator[str]:
    """Entries that left a backlog without an acknowledgement."""

    def whose(group: _Group) -> str:
        topic, subscription, policy = group.key
        by_call = any("administrator" in cause for cause in group.causes)
        why = group.why if not policy else f"{group.why} ({policy})" if by_call else policy
        return f"for '{subscription}' of {topic.removeprefix('persistent://')}: {why}"

    for kind, one, many in (
        (e.Expired, "entry expired", "entries expired"),
        (e.Evicted, "entry was evicted", "entries were evicted"),
    ):
        found = tables.groups(kind, "topic", "subscription", "policy")
        yield from _sentences(
            [group for group in found if group.entries],
            (one, many),
            whose,
            "for {} other subscriptions",
            count=lambda group: group.entries,
        )


def _trimmed(tables: _Tables) -> Iterator[str]:
    """Ledgers that were deleted."""

    def how(group: _Group) -> str:
        size = f"{_count(group.entries, 'entry', 'entries')}, {group.size:,} bytes"
        (retention,) = group.key
        why = f"no subscription needed them, and they were beyond the retention of {retention}"
        return f"({size}): {why if retention else group.why}"

    yield from _sentences(
        tables.groups(e.LedgerDeleted, "policy"),
        ("ledger was trimmed", "ledgers were trimmed"),
        how,
        "under {} other policies",
    )


def _sentences(
    found: Iterable[_Group],
    subject: tuple[str, str],
    predicate: Callable[[_Group], str],
    others: str = "",
    *,
    count: Callable[[_Group], int] = lambda group: group.rows,
) -> Iterator[str]:
    """One sentence for each of the largest groups, and one for the others together."""
    groups = sorted(found, key=lambda group: (-count(group), group.key))
    shown = SHOWN if len(groups) > SHOWN + 1 else SHOWN + 1
    for group in groups[:shown]:
        yield f"{_count(count(group), *subject)} {predicate(group)}."
    if rest := groups[shown:]:
        yield f"{_count(sum(map(count, rest)), *subject)} {others.format(f'{len(rest):,}')}."


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
