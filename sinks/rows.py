"""Effects as Arrow tables, one per kind, and the packed form in which a table travels."""

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from mmap import ACCESS_READ, mmap
from typing import IO, Any

import msgspec
import pyarrow as pa

from schemas.effects import KINDS, Effect, Row
from schemas.outputs import SCHEMAS, Rows

_json = msgspec.json.Encoder(order="sorted").encode
_msgpack = msgspec.msgpack.Encoder().encode

_ENCODED: dict[str, Callable[[Any], bytes]] = {"fields": _json, "metadata": _msgpack}


def to_tables(partition: int, rows: Sequence[Row]) -> Rows:
    """The `rows` of one ingress partition by kind, each kind in the order given.

    Values pass unchanged: no integer goes through a float, however many nulls are beside it. Raises
    `OverflowError` for an integer that doesn't fit its column.
    """
    by_kind: defaultdict[type[Effect], list[Row]] = defaultdict(list)
    for row in rows:
        by_kind[type(row.effect)].append(row)
    return {KINDS[kind]: _table(partition, kind, own) for kind, own in by_kind.items()}


def _table(partition: int, kind: type[Effect], rows: list[Row]) -> pa.Table:
    schema = SCHEMAS[KINDS[kind]]
    offsets, ordinals, clocks, effects = zip(*rows, strict=True)
    values: dict[str, Sequence[Any]] = {"offset": offsets, "ordinal": ordinals, "clock": clocks}
    values |= zip(kind._fields, zip(*effects, strict=True), strict=True)
    columns = {"partition": pa.repeat(pa.scalar(partition, pa.int32()), len(rows))}
    for name, own in values.items():
        encode = _ENCODED.get(name)
        if encode is not None:
            own = [None if value is None else encode(value) for value in own]
        columns[name] = pa.array(own, schema.field(name).type)
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


SPOOL_BYTES = 32 << 20
"""So many bytes of waiting rows stay in memory. Further ones go to a temporary file."""

_ALIGNMENT = 64


class SpooledRows:
    """Consecutive rows of one ingress partition that wait: up to `SPOOL_BYTES` in memory, then in a temporary file.

    One record can cause a million rows, and a sink needs all rows of a partition at once. The file is in the folder for
    temporary files (``TMPDIR``) and has no name there, so a killed process leaves nothing behind.
    """

    def __init__(self) -> None:
        # By kind, a table or its place in the file.
        self._chunks: list[dict[str, pa.Table | tuple[int, int]]] = []
        self._size = 0
        self._file: IO[bytes] | None = None

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def append(self, rows: Rows) -> None:
        """Add rows. Raises `OSError` if the temporary file can't be written."""
        chunk: dict[str, pa.Table | tuple[int, int]] = {}
        for kind, table in rows.items():
            self._size += table.nbytes
            chunk[kind] = table if self._size <= SPOOL_BYTES else self._write(table)
        self._chunks.append(chunk)

    def _write(self, table: pa.Table) -> tuple[int, int]:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (`take` closes it)
        start = self._file.tell()
        _write(pa.PythonFile(self._file, "w"), table)
        end = self._file.tell()
        self._file.write(bytes(-end % _ALIGNMENT))
        return start, end - start

    def __len__(self) -> int:
        return len(self._chunks)

    def waiting(self, chunk: int, kind: str) -> pa.Table | None:
        """The rows of a kind that were added with the number `chunk`, from 0 on since the last `take`."""
        found = self._chunks[chunk].get(kind)
        if not isinstance(found, tuple):
            return found
        start, size = found
        assert self._file is not None
        self._file.flush()
        return unpack(kind, os.pread(self._file.fileno(), size, start))

    def take(self) -> Iterator[Rows]:
        """The rows since the last call, as they were added. Those in the file are mapped into memory, not read."""
        chunks, file = self._chunks, self._file
        self._chunks, self._size, self._file = [], 0, None
        mapped = None
        if file is not None:
            with file:
                file.flush()
                mapped = pa.py_buffer(mmap(file.fileno(), 0, access=ACCESS_READ))
        for chunk in chunks:
            yield {
                kind: unpack(kind, mapped.slice(*found)) if isinstance(found, tuple) and mapped else found
                for kind, found in chunk.items()
            }

    def take_whole(self) -> Rows:
        """The rows since the last call, put together."""
        tables: defaultdict[str, list[pa.Table]] = defaultdict(list)
        for chunk in self.take():
            for kind, table in chunk.items():
                tables[kind].append(table)
        return {kind: pa.concat_tables(own) for kind, own in tables.items()}


def concat(chunks: Iterable[Rows]) -> Rows:
    """Consecutive rows of one ingress partition, put together. See `SpooledRows` for where they are."""
    spool = SpooledRows()
    for chunk in chunks:
        spool.append(chunk)
    return spool.take_whole()


def pack(table: pa.Table) -> bytes:
    """A table of one kind as one value: an Arrow stream of the columns that aren't null throughout.

    A receipt often fills half of its columns; leaving the others out halves what goes through two pipes and the JVM.
    """
    sink = pa.BufferOutputStream()
    _write(sink, table)
    return bytes(sink.getvalue())


def _write(sink: pa.NativeFile, table: pa.Table) -> None:
    slim = table.select([name for name in table.column_names if table[name].null_count < len(table)])
    with pa.ipc.new_stream(sink, slim.schema) as writer:
        writer.write_table(slim)


def unpack(kind: str, packed: pa.Buffer | bytes) -> pa.Table:
    """The table that `pack` packed, without copying what is in `packed`."""
    slim, schema = pa.ipc.open_stream(packed).read_all(), SCHEMAS[kind]
    columns = [
        slim[field.name] if field.name in slim.column_names else pa.nulls(len(slim), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
