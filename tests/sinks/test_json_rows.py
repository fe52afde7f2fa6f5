"""Rows encoded by columns are those that are encoded one by one."""

from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sinks.json_rows import encode_rows

texts = st.text(max_size=8) | st.sampled_from(['"', "\\", "\n", "\x7f", "\u2028", "🐈"])
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "first": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "text": (pa.string(), st.none() | texts),
    "number": (pa.int32(), st.none() | st.integers(-(1 << 31), (1 << 31) - 1)),
    "list": (pa.list_(pa.int64()), st.none() | st.lists(st.integers(-9, 9), max_size=3)),
    "json": (pa.string(), st.none() | st.dictionaries(texts, st.none() | texts, max_size=2)),
    "last": (pa.string(), texts),
}


@given(st.lists(st.fixed_dictionaries({name: values for name, (_, values) in COLUMNS.items()}), max_size=9))
def test_rows_are_encoded_as_one_by_one(rows: list[dict[str, Any]]) -> None:
    def column(name: str) -> pa.Array:
        own = [row[name] for row in rows]
        if name == "json":
            own = [None if each is None else msgspec.json.encode(each) for each in own]
        return pa.array(own, COLUMNS[name][0])

    found = encode_rows({name: column(name) for name in COLUMNS}, {"json"}).to_pylist()
    expected = [{name: row[name] for name in COLUMNS if row[name] is not None} for row in rows]
    assert found == [msgspec.json.encode(row).decode() for row in expected]
