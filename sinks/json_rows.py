"""Rows as JSON objects, encoded column by column.

A dictionary for each row and its conversion took 4 µs per row of a dozen columns. By columns it takes half a microsecond.
"""

from collections.abc import Collection, Mapping
from itertools import chain, repeat

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_encode = msgspec.json.Encoder().encode


def encode_rows(columns: Mapping[str, pa.Array], encoded: Collection[str] = ()) -> pa.Array:
    """Each row as a JSON object (type string) of its columns that aren't null, in their order.

    The columns have integers, texts or lists; those named in `encoded` have JSON. The first one has no nulls. Names of columns
    are plain.
    """
    parts: list[str | pa.Array] = []
    for before, (name, column) in zip(chain("{", repeat(",")), columns.items(), strict=False):
        text = column if name in encoded else _texts(column)
        member = (f'{before}"{name}":', text)
        parts += [_joined(*member)] if text.null_count else member
    return _joined(*parts, "}", null_handling="replace")


def _texts(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        return column.cast(pa.string())
    if pa.types.is_string(column.type):  # many rows share a few texts
        found = column.dictionary_encode()
        return _json(found.dictionary).take(found.indices)
    return _json(column)


def _json(values: pa.Array) -> pa.Array:
    return pa.array([None if each is None else _encode(each) for each in values.to_pylist()], pa.string())


def _joined(*parts: str | pa.Array, null_handling: str = "emit_null") -> pa.Array:
    return pc.binary_join_element_wise(*parts, "", null_handling=null_handling)
