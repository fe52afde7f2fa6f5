"""The differences of a what-if as a table that may be larger than memory.

The problem
    A message, a subscription and a policy set make a row, if the message's fate differs: a week of traffic may have more rows than memory
    holds. They are settled topic by topic, in the order of time, in all ingress partitions at once. Who reads the answer wants them
    topic after topic.

The idea
    What is settled of a topic comes after what was settled of it before, so it is put in order at once, and goes to a spool. At
    the end, the rows of the topics are taken from there, topic after topic, and go to another one. Texts repeat, so each is kept once, in
    memory, and the rows have its number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.answers.fates import CHANGES
from streaming.answers.whatif.answer import DIFFERENCES
from streaming.answers.whatif.texts import ranks_of
from streaming.log.spool import ROWS, Spool, mapped

_TEXTS = [field.name for field in DIFFERENCES if pa.types.is_dictionary(field.type)]
CODED = pa.schema(
    [pa.field(field.name, pa.int32() if field.name in _TEXTS else field.type) for field in DIFFERENCES]
)
"""`DIFFERENCES` with numbers in place of the texts that repeat."""

_ORDER = ("offset", "subscription", "policies")

Texts = dict[str, dict[str, int]]
"""By column, the number of each text."""


class Slice(NamedTuple):
    """Some rows of a table that follow each other."""

    start: int
    rows: int


class PartitionDifferences(NamedTuple):
    """The differences of an ingress partition. `places`: those of each topic. `opened`: the policy sets under which a topic became
    open-loop, perhaps after its rows were made. `rows` is None if they are in the file that their maker was given."""

    rows: pa.Table | None
    texts: Texts
    places: dict[str, list[Slice]]
    opened: dict[str, list[str]]

    def of(self, topic: str) -> pa.Table:
        """The rows of a topic, in order if no message was there before the log."""
        assert self.rows is not None
        rows = pa.concat_tables(self.rows.slice(*each) for each in self.places[topic])
        if topic in self.opened:
            # Of what is unknown, nobody can say that it came before.
            rows = self._with_unknown_opened(rows, self.opened[topic])
        return rows

    def _with_unknown_opened(self, rows: pa.Table, policies: Collection[str]) -> pa.Table:
        opened = [number for name, number in self.texts["policies"].items() if name in policies]
        unknown = pc.equal(rows["change"], pa.scalar(self.texts["change"].get(CHANGES[-1], -1), pa.int32()))
        after = pc.and_(unknown, pc.is_in(rows["policies"], pa.array(opened, pa.int32())))
        place = rows.schema.get_field_index("open_loop")
        return rows.set_column(place, rows.schema.field(place), pc.if_else(after, True, rows["open_loop"]))


class DifferenceTable:
    """Takes the differences of an ingress partition. `policies`: the names of the policy sets. `file`: see `Spool`. `texts`: those of
    another one, whose rows come before."""

    def __init__(self, policies: Sequence[str], file: Any = None, texts: Texts | None = None) -> None:
        self._rows, self._file = _Rows(file), file
        self._texts: Texts = {name: {} for name in _TEXTS} if texts is None else texts
        if texts is None:
            self._texts["policies"] = {name: number for number, name in enumerate(policies)}
        self._places: defaultdict[str, list[Slice]] = defaultdict(list)

    def add(self, topic: str, tables: Sequence[pa.Table]) -> None:
        """The rows, with the columns of `DIFFERENCES`, of the next messages of a topic: a table for each subscription and policy set, in
        their order."""
        if not tables:
            return
        found = pa.concat_tables([self._coded(each) for each in tables])
        found = found.take(
            pc.sort_indices(found["offset"])
        )  # which leaves rows with the same offset in their order
        self._places[topic].append(Slice(self._rows.count, len(found)))
        self._rows.add(found)

    def _coded(self, table: pa.Table) -> pa.Table:
        columns = [
            _codes(table[name], self._texts[name]) if name in _TEXTS else table[name] for name in CODED.names
        ]
        return pa.Table.from_arrays(columns, schema=CODED)

    @property
    def texts(self) -> Texts:
        """The numbers of all texts so far."""
        return self._texts

    def finish(self, opened: Mapping[str, list[str]]) -> PartitionDifferences:
        """Nothing comes any more. `opened`: see `PartitionDifferences`."""
        rows = self._rows.table()
        in_file = self._file is not None and self._rows.is_large
        return PartitionDifferences(None if in_file else rows, self._texts, dict(self._places), dict(opened))


def from_file(found: PartitionDifferences, file: Any) -> PartitionDifferences:
    """Differences that another process has found, perhaps with its rows in a file."""
    return found if found.rows is not None else found._replace(rows=mapped(file))


def gathered(found: PartitionDifferences, tables: Iterable[pa.Table]) -> PartitionDifferences:
    """The differences of an ingress partition whose rows are in several tables (columns `CODED`), in the order in which they were
    settled. `found` has everything else."""
    topics, rows = [*found.texts["topic"]], _Rows()
    places: defaultdict[str, list[Slice]] = defaultdict(list)
    for table in tables:
        for start, stop, code in _runs(table["topic"].to_numpy()):
            places[topics[code]].append(Slice(rows.count + start, stop - start))
        rows.add(table)
    return found._replace(rows=rows.table(), places=dict(places))


def _runs(codes: np.ndarray[Any, Any]) -> Iterator[tuple[int, int, int]]:
    """Where equal codes follow each other: from, to before, and the code."""
    cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    return ((start, stop, int(codes[start])) for start, stop in pairwise(cuts) if start < stop)


def together(parts: Sequence[PartitionDifferences]) -> pa.Table:
    """The rows of all ingress partitions, with the columns of `DIFFERENCES`: by topic, offset and subscription."""
    texts: Texts = {name: {} for name in _TEXTS}
    codes = [{name: _numbers(each.texts[name], texts[name]) for name in _TEXTS} for each in parts]
    homes: defaultdict[str, list[int]] = defaultdict(list)
    for number, each in enumerate(parts):
        for topic in each.places:
            homes[topic].append(number)
    rank = ranks_of([*texts["subscription"]])
    rows = _Rows()
    for topic in sorted(homes):
        found = pa.concat_tables(
            [_renumbered(parts[number].of(topic), codes[number]) for number in homes[topic]]
        )
        if len(homes[topic]) > 1 or found["offset"].null_count:
            found = found.take(_order(found, rank))
        rows.add(found)
    return decoded(rows.table(), texts)


def _renumbered(rows: pa.Table, codes: Mapping[str, np.ndarray[Any, Any]]) -> pa.Table:
    for name in _TEXTS:
        place = rows.schema.get_field_index(name)
        chunks = [_at(codes[name], chunk) for chunk in rows[name].chunks]
        rows = rows.set_column(place, rows.schema.field(place), pa.chunked_array(chunks, pa.int32()))
    return rows


def _order(rows: pa.Table, rank: np.ndarray[Any, Any]) -> pa.Array:
    """The order of a topic's rows. `rank`: of the subscriptions by their numbers."""
    keys = [rows["offset"], pa.chunked_array([_at(rank, chunk) for chunk in rows["subscription"].chunks], pa.int32()), rows["policies"]]  # fmt: skip
    return pc.sort_indices(pa.Table.from_arrays(keys, list(_ORDER)), [(name, "ascending") for name in _ORDER])


def _numbers(of_part: Mapping[str, int], of_all: dict[str, int]) -> np.ndarray[Any, Any]:
    """The numbers in all parts of the texts of one, by its numbers. The last is for none."""
    return np.array([*(of_all.setdefault(text, len(of_all)) for text in of_part), -1], np.int32)


def _codes(column: pa.ChunkedArray, known: dict[str, int]) -> pa.ChunkedArray:
    """The numbers of a column's texts, which new ones get here."""
    chunks = []
    for chunk in column.chunks:
        places = [known.setdefault(text, len(known)) for text in chunk.dictionary.to_pylist()]
        chunks.append(_at(np.array([*places, -1], np.int32), chunk.indices))
    return pa.chunked_array(chunks, pa.int32())


def _at(values: np.ndarray[Any, Any], places: pa.Array) -> pa.Array:
    """Values by their places; null where there is none."""
    found = values[places.fill_null(-1).to_numpy()]
    return pa.array(found, pa.int32(), mask=found < 0)


def decoded(rows: pa.Table, texts: Texts) -> pa.Table:
    """Numbers as the texts that they stand for: each column has one dictionary."""
    columns = []
    for field in DIFFERENCES:
        column = rows[field.name]
        if field.name in _TEXTS:
            dictionary = pa.array([*texts[field.name]], pa.string())
            chunks = [pa.DictionaryArray.from_arrays(chunk, dictionary) for chunk in column.chunks]
            column = pa.chunked_array(chunks, field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=DIFFERENCES)


class _Rows:
    """A spool for many small tables, in large chunks."""

    def __init__(self, file: Any = None) -> None:
        self._spool = Spool(CODED, file)
        self._small: list[pa.Table] = []
        self.count = self._waiting = 0

    @property
    def is_large(self) -> bool:
        """Whether the rows are in a file."""
        return self._spool.is_large

    def add(self, rows: pa.Table) -> None:
        """Add rows at the end."""
        self._small.append(rows)
        self.count += len(rows)
        self._waiting += len(rows)
        if self._waiting >= ROWS:
            self._flush()

    def _flush(self) -> None:
        for start in range(0, self._waiting, ROWS):
            self._spool.add(pa.concat_tables(self._small).slice(start, ROWS).combine_chunks())
        self._small, self._waiting = [], 0

    def table(self) -> pa.Table:
        """All rows: in one chunk, if they are in memory."""
        self._flush()
        rows = self._spool.table()
        return rows if self._spool.is_large else rows.combine_chunks()
