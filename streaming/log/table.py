"""A command log in memory: one Arrow table, before or after its records have ingress partitions.

A log without partitions is *logical*: one order of records, columns `LOGICAL`. A log with partitions has the columns of
`schemas.records.RECORD`, with offsets that rise within each partition.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import MagnetarError
from schemas.records import OFFSETS, PARTITIONS, RECORD
from streaming.log import spool
from streaming.log.spool import Spool, pieces

LOGICAL = pa.schema([RECORD.field(name) for name in ("timestamp", "topic", "value")])
"""The columns of a log that has no ingress partitions yet."""


class LogError(MagnetarError, ValueError):
    """A file is not a command log, or its coordinates contradict each other. The text names the place and the remedy."""


def ordered(records: pa.Table, name: str = "the log") -> pa.Table:
    """`records` (columns `RECORD`) with rising offsets in each partition; sorted, in memory, only if they are not.

    Raises `LogError` if an offset occurs twice in a partition.
    """
    if _rises(records):
        return records
    order = pc.sort_indices(
        records.select(["partition", "offset"]), [("partition", "ascending"), ("offset", "ascending")]
    )
    records = taken(records, order.to_numpy().astype(np.int64))
    if not _rises(records):
        raise LogError(f"{name}: an offset occurs twice in a partition")
    return records


def taken(records: pa.Table, rows: np.ndarray[Any, Any]) -> pa.Table:
    """These rows of `records` (with a column ``value``), in this order. Arrow's own `take` puts a column together first, which fails if it
    has more than 2 GiB."""
    batches = records.to_batches()
    starts = np.cumsum([0, *map(len, batches)])
    sizes: Any = pc.binary_length(records["value"])
    piece = np.cumsum(sizes.to_numpy()[rows], dtype=np.int64) // spool.BYTES
    ends = np.flatnonzero(np.diff(piece, append=-1)) + 1
    found, start = Spool(records.schema), 0
    for end in ends.tolist():
        while start < end:
            own = rows[start : min(start + spool.ROWS, end)]
            place = np.searchsorted(starts, own, side="right") - 1
            parts = [batches[at].take(pa.array(own[place == at] - starts[at])) for at in np.unique(place)]
            back = np.argsort(np.argsort(place, kind="stable"))
            found.add(pa.Table.from_batches(parts).combine_chunks().take(pa.array(back)))
            start += len(own)
    return found.table()


def _rises(records: pa.Table) -> bool:
    """Whether the offsets of each partition rise."""
    last: dict[int, int] = {}
    for piece in pieces(records.select(["partition", "offset"])):
        partition, offset = piece["partition"].to_numpy(), piece["offset"].to_numpy()
        for number in np.unique(partition).tolist():
            own = offset[partition == number]
            if own[0] <= last.get(number, -1) or (np.diff(own) <= 0).any():
                return False
            last[number] = int(own[-1])
    return True


_COORDINATES = {"partition": PARTITIONS, "offset": OFFSETS}


def out_of_range(name: str, number: object, place: str) -> LogError:
    """What to say of a partition or an offset that there can't be."""
    return LogError(
        f"{place}: {name} {str(number)[:40]} is out of range, which is from 0 to {_COORDINATES[name][-1]:,}: correct it, or leave out "
        f"each {name}"
    )


def check_coordinates(records: pa.Table, name: str, first: int = 0) -> None:
    """Raises `LogError` if the columns ``partition`` and ``offset``, of which each may be missing, lack a number in a row, or have one
    that there can't be. The rows count from `first`."""
    for column in [each for each in _COORDINATES if each in records.column_names]:
        numbers = records[column]
        if numbers.null_count:
            row = first + pc.index(numbers.is_null(), True).as_py()
            raise LogError(f"{name}, row {row}: there is no {column}: fill it in, or leave the column out")
        for number in pc.min_max(numbers).values():
            if number.is_valid and number.as_py() not in _COORDINATES[column]:
                row = first + pc.index(numbers, number).as_py()
                raise out_of_range(column, number, f"{name}, row {row}")


def slices(records: pa.Table, batches: int) -> Iterator[pa.Table]:
    """`records` in `batches` contiguous slices, never more than one per record, and at least one."""
    batches = max(1, min(batches, len(records)))
    for start, end in pairwise(np.linspace(0, len(records), batches + 1).astype(int).tolist()):
        yield records.slice(start, end - start)


def digest(records: pa.Table) -> str:
    """What tells whether two logs (columns `RECORD`) have the same records in the same ingress partitions."""
    found = hashlib.blake2b(digest_size=16)
    for start in range(0, len(records), _HASHED):
        part = records.slice(start, _HASHED)
        for name in ("partition", "offset", "timestamp"):
            found.update(part[name].to_numpy().tobytes())
        found.update("\0".join(topic or "" for topic in part["topic"].to_pylist()).encode())
        lengths: Any = pc.binary_length(part["value"])
        found.update(lengths.to_numpy().astype(np.int64).tobytes())
        for chunk in part["value"].chunks:
            found.update(_bytes(chunk))
    return found.hexdigest()


_HASHED = 1 << 16


def _bytes(values: pa.BinaryArray) -> memoryview:
    """Values one after the other, where they are."""
    _, offsets, data = values.buffers()
    first, end = np.frombuffer(offsets, np.int32)[[values.offset, values.offset + len(values)]].tolist()
    return memoryview(data or b"")[first:end]


def replaced(table: pa.Table, name: str, values: Mapping[int, object]) -> pa.Table:
    """`table` with other values in some rows of the column `name`."""
    if not values:
        return table
    rows = np.array(sorted(values))
    field = table.schema.field(name)
    chunks, stop = [], 0
    for chunk in table[name].chunks:
        start, stop = stop, stop + len(chunk)
        own = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
        if len(own):
            mask = np.zeros(len(chunk), bool)
            mask[own - start] = True
            others = pa.array([values[row] for row in own.tolist()], field.type)
            chunk = pc.replace_with_mask(chunk, pa.array(mask), others)
        chunks.append(chunk)
    column = pa.chunked_array(chunks, field.type)
    return table.set_column(table.schema.get_field_index(name), field, column)


class OffsetCounter:
    """Gives the records of each ingress partition the offsets 0, 1, 2, …, some records at a time."""

    def __init__(self) -> None:
        self._next: dict[int, int] = defaultdict(int)

    def of(self, partition: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The offsets of the next records, which are in these partitions."""
        found = np.empty(len(partition), np.int64)
        for number in np.unique(partition).tolist():
            own = np.flatnonzero(partition == number)
            found[own] = self._next[number] + np.arange(len(own))
            self._next[number] += len(own)
        return found


def log_table(schema: pa.Schema, **columns: Iterable[Any]) -> pa.Table:
    """A table with the columns of `schema`, each given as any iterable and cast to the column's type."""

    def typed(field: pa.Field) -> Any:
        column = columns[field.name]
        return (
            column.cast(field.type)
            if isinstance(column, pa.Array | pa.ChunkedArray)
            else pa.array(column, field.type)
        )

    return pa.Table.from_arrays([typed(field) for field in schema], schema=schema)
