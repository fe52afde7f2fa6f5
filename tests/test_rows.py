"""Effects to columns: nothing changes on the way."""

from pathlib import Path

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
from schemas.outputs import SCHEMAS
from sinks.rows import SpooledRows, concat, pack, to_tables, unpack

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
    tables = to_tables(3, ROWS)
    assert tables.keys() == {KINDS[type(effect)] for effect in EFFECTS}
    for kind, table in tables.items():
        assert table.schema.equals(SCHEMAS[kind], check_metadata=True)
        rows = [row for row in ROWS if KINDS[type(row.effect)] == kind]
        for got, row in zip(table.to_pylist(), rows, strict=True):
            expected: dict[str, object] = {
                "partition": 3,
                "offset": row.offset,
                "ordinal": row.ordinal,
                "clock": row.clock,
            }
            expected |= {name: encoded(name, value) for name, value in row.effect._asdict().items()}
            assert got == expected
            assert [type(value) for value in got.values()] == [type(expected[name]) for name in got]
    metadata = tables["SEND_RECEIPT"]["metadata"][0].as_py()
    assert msgspec.msgpack.decode(metadata, type=MessageMetadata) == METADATA
    assert (
        tables["ADMIN_RESPONSE"]["fields"][0].as_py() == '{"response":{"b":[null,true],"z":1},"status":200}'
    )


@pytest.mark.feature("J5")
def test_one_kind_and_none() -> None:
    assert to_tables(3, ROWS[:2]) == {"SEND_RECEIPT": to_tables(3, ROWS)["SEND_RECEIPT"]}
    assert to_tables(0, []) == {}


@pytest.mark.feature("J5")
def test_chunks_are_put_together_in_order() -> None:
    assert concat(to_tables(1, [row]) for row in ROWS) == to_tables(1, ROWS)
    assert concat([]) == {}


@pytest.mark.feature("J5")
def test_packing_keeps_all() -> None:
    for kind, table in to_tables(1, ROWS).items():
        for packed in (pack(table), pa.py_buffer(pack(table))):
            assert unpack(kind, packed).equals(table)
            assert unpack(kind, packed).schema.equals(table.schema, check_metadata=True)


def spooled(chunks: int) -> SpooledRows:
    rows = SpooledRows()
    for _ in range(chunks):
        rows.append(to_tables(1, ROWS))
    return rows


@pytest.mark.feature("J5")
def test_many_rows_wait_in_a_file_and_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = concat([to_tables(1, ROWS)] * 20)
    size = sum(table.nbytes for table in to_tables(1, ROWS).values())
    for limit in (0, 3 * size, 100 * size):
        monkeypatch.setattr("sinks.rows.SPOOL_BYTES", limit)
        rows = spooled(20)
        in_memory = sum(
            each.nbytes for chunk in rows._chunks for each in chunk.values() if isinstance(each, pa.Table)
        )
        assert in_memory <= limit
        assert (rows._file is None) == (limit > 20 * size)
        assert concat(rows.take()) == whole
        assert not rows
        assert list(rows.take()) == []
    monkeypatch.setattr("sinks.rows.SPOOL_BYTES", 0)
    assert concat([to_tables(1, ROWS)] * 20) == whole


@pytest.mark.feature("J5")
def test_waiting_rows_leave_no_file_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sinks.rows.SPOOL_BYTES", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = spooled(2)
    assert list(tmp_path.iterdir()) == []
    tables = list(rows.take())
    assert list(tmp_path.iterdir()) == []
    assert tables == [to_tables(1, ROWS)] * 2
