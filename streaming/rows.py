"""Effects as Arrow tables, one per kind, and the packed form in which a table travels."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

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


def concat(chunks: Iterable[Rows]) -> Rows:
    """Consecutive rows of one ingress partition, put together."""
    tables: defaultdict[str, list[pa.Table]] = defaultdict(list)
    for chunk in chunks:
        for kind, table in chunk.items():
            tables[kind].append(table)
    return {kind: pa.concat_tables(own) for kind, own in tables.items()}


def pack(table: pa.Table) -> bytes:
    """A table of one kind as one value: an Arrow stream of the columns that aren't null throughout.

    A receipt often fills half of its columns; leaving the others out halves what goes through two pipes and the JVM.
    """
    slim = table.select([name for name in table.column_names if table[name].null_count < len(table)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, slim.schema) as writer:
        writer.write_table(slim)
    return bytes(sink.getvalue())


def unpack(kind: str, packed: pa.Buffer | bytes) -> pa.Table:
    """The table that `pack` packed, without copying what is in `packed`."""
    slim, schema = pa.ipc.open_stream(packed).read_all(), SCHEMAS[kind]
    columns = [
        slim[field.name] if field.name in slim.column_names else pa.nulls(len(slim), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
