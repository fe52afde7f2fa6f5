"""Effects as Arrow tables, and the packed form in which they travel through Spark."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from schemas.effects import KINDS, Effect, Row
from schemas.outputs import OUTPUT

_json = msgspec.json.Encoder(order="sorted").encode
_msgpack = msgspec.msgpack.Encoder().encode

_ENCODED: dict[str, Callable[[Any], bytes]] = {"fields": _json, "metadata": _msgpack}
_PLAIN = pa.schema([pa.field(field.name, field.type) for field in OUTPUT])


def to_table(partition: int, rows: Sequence[Row]) -> pa.Table:
    """`rows` of one ingress partition as a table of `OUTPUT`, in the order given.

    Values pass unchanged: no integer goes through a float, however many nulls are beside it. Raises
    `OverflowError` for an integer that doesn't fit its column.
    """
    count = len(rows)
    if not count:
        return OUTPUT.empty_table()
    offsets, ordinals, clocks, effects = zip(*rows, strict=True)
    columns = {
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": pa.array(offsets, pa.int64()),
        "ordinal": pa.array(ordinals, pa.int32()),
        "clock": pa.array(clocks, pa.int64()),
    }
    columns |= _effect_columns(effects)
    return pa.Table.from_arrays(
        [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in OUTPUT],
        schema=OUTPUT,
    )


def _effect_columns(effects: Sequence[Effect]) -> dict[str, pa.Array]:
    """The columns that the effects fill. Each kind is turned into columns on its own, then the kinds are mixed into
    the order of `effects`: row by row in Python would cost ten times as much."""
    positions: dict[type[Effect], list[int]] = defaultdict(list)
    for position, effect in enumerate(effects):
        positions[type(effect)].append(position)
    if len(positions) == 1:
        (kind,) = positions
        return _columns_of(kind, effects)

    parts = [(len(own), _columns_of(kind, [effects[i] for i in own])) for kind, own in positions.items()]
    # Row i of the result is row `place[i]` of the kinds one after the other.
    place: list[int] = [0] * len(effects)
    for after, position in enumerate(i for own in positions.values() for i in own):
        place[position] = after
    take = pa.array(place, pa.int64())
    columns = {}
    for field in _PLAIN:
        if any(field.name in part for _, part in parts):
            pieces = [part.get(field.name, None) for _, part in parts]
            filled = [
                pa.nulls(count, field.type) if piece is None else piece
                for (count, _), piece in zip(parts, pieces, strict=True)
            ]
            columns[field.name] = pa.concat_arrays(filled).take(take)
    return columns


def _columns_of(kind: type[Effect], effects: Sequence[Effect]) -> dict[str, pa.Array]:
    columns = {"kind": pa.repeat(pa.scalar(KINDS[kind], pa.string()), len(effects))}
    for name, own in zip(kind._fields, zip(*effects, strict=True), strict=True):
        encode = _ENCODED.get(name)
        values = own if encode is None else [None if value is None else encode(value) for value in own]
        columns[name] = pa.array(values, _PLAIN.field(name).type)
    return columns


def pack(table: pa.Table) -> bytes:
    """A table of `OUTPUT` as one value: an Arrow stream of the columns that aren't null throughout.

    A receipt fills half of the columns; leaving the others out halves what goes through two pipes and the JVM.
    """
    filled = [name for name in OUTPUT.names if table[name].null_count < len(table)]
    slim = table.select(filled).cast(pa.schema([_PLAIN.field(name) for name in filled]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, slim.schema) as writer:
        writer.write_table(slim)
    return bytes(sink.getvalue())


def unpack(packed: pa.Buffer | bytes) -> pa.Table:
    """The table of `OUTPUT` that `pack` packed, without copying what is in `packed`."""
    slim = pa.ipc.open_stream(packed).read_all()
    columns = [
        slim[field.name] if field.name in slim.column_names else pa.nulls(len(slim), field.type)
        for field in OUTPUT
    ]
    return pa.Table.from_arrays(columns, schema=OUTPUT)
