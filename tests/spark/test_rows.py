"""Effects to columns: nothing changes on the way."""

import msgspec
import pyarrow as pa
import pytest

from schemas.commands import KeyValue, MessageMetadata
from schemas.effect_fields import AdminResponseFields
from schemas.effects import (
    KINDS,
    AdminResponse,
    Effect,
    Expired,
    Message,
    Quarantined,
    Row,
    SendReceipt,
    Tick,
)
from schemas.outputs import OUTPUT
from streaming.spark.rows import pack, to_table, unpack

LARGEST, SMALLEST = 2**63 - 1, -(2**63)
METADATA = MessageMetadata(
    producer_name="p",
    sequence_id=LARGEST,
    publish_time=1,
    properties=[KeyValue("k", "v")],
    ordering_key=b"\x00\xff",
)
EFFECTS: list[Effect] = [
    SendReceipt("t", "c", None, "p", LARGEST, None, 1, 0, metadata=METADATA, payload=b"\x00\xff"),
    SendReceipt("t", "c", 0, "p", SMALLEST, 2**53 + 1, 1, 1, payload=b""),
    Message("t", "c", 2**53 + 1, "s", 1, 0, 1, 10, 0, [-1, SMALLEST, LARGEST], None),
    Message("t", "c", 1, "s", 1, 0, 1, 10, 0, [], LARGEST),
    Message("t", "c", 1, "s", 1, 0, 1, 10, 0, None, None),
    Quarantined(None, "r", "ünïcode \U0001f40d", b"\xff"),
    AdminResponse(None, "", "GET", AdminResponseFields(status=200, response={"z": 1, "b": [None, True]})),
    Tick(),
    Expired("t", "s", 1, -1, 1, 0, 1, "ttl", "5 s"),
]
ROWS = [Row(LARGEST - 7 + n // 2, n % 2, LARGEST, effect) for n, effect in enumerate(EFFECTS)]


def encoded(name: str, value: object) -> object:
    if value is None:
        return None
    if name == "metadata":
        return msgspec.msgpack.encode(value)
    return msgspec.json.encode(value, order="sorted").decode() if name == "fields" else value


@pytest.mark.feature("B3", "J5")
def test_every_value_is_what_it_was() -> None:
    table = to_table(3, ROWS)
    assert table.schema == OUTPUT
    for got, row in zip(table.to_pylist(), ROWS, strict=True):
        expected = dict.fromkeys(OUTPUT.names) | {
            "partition": 3, "offset": row.offset, "ordinal": row.ordinal, "clock": row.clock,
            "kind": KINDS[type(row.effect)],
        }  # fmt: skip
        expected |= {name: encoded(name, value) for name, value in row.effect._asdict().items()}
        assert got == expected
        assert [type(value) for value in got.values()] == [type(expected[name]) for name in got]
    assert msgspec.msgpack.decode(table["metadata"][0].as_py(), type=MessageMetadata) == METADATA
    assert table["fields"][6].as_py() == '{"response":{"b":[null,true],"z":1},"status":200}'


@pytest.mark.feature("J5")
def test_one_kind_and_none() -> None:
    assert to_table(0, ROWS[:2]).equals(
        to_table(0, ROWS).slice(0, 2).set_column(0, OUTPUT.field(0), pa.array([0, 0], pa.int32()))
    )
    assert to_table(0, []).equals(OUTPUT.empty_table())


@pytest.mark.feature("J5")
def test_packing_keeps_all() -> None:
    for rows in (ROWS, ROWS[:1], ROWS[7:8]):
        table = to_table(1, rows)
        assert unpack(pack(table)).equals(table)
        assert (
            unpack(pa.py_buffer(pack(table))).schema.field("offset").metadata
            == OUTPUT.field("offset").metadata
        )
