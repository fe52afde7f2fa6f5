import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from schemas.effect_fields import AdminResponseFields
from schemas.effects import AdminResponse, Effect, Message, Tick
from schemas.outputs import OUTPUT
from sinks.base import ForeignFiles
from sinks.tables import TABLES, TableSink, read_table
from tests.rows import together
from tests.sinks.helpers import TOPIC, Killed, Mortal, closed, output, receipt, receipts, tree

EFFECTS: list[Effect] = [
    *receipts(1, 0, 4),
    closed(1, 5),
    Message(TOPIC, "c1", 1, "sub", 1, 0, 1, 30, 0, [3, -1]),
    AdminResponse(None, "", "done", AdminResponseFields(status=200, response={"a": [1]})),
    Tick(),
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "tables")


@pytest.mark.feature("J5")
def test_every_kind_comes_back_in_its_columns(url: str) -> None:
    rows = output(EFFECTS)
    TableSink(url).write(3, 0, rows)
    assert read_table(url, "MESSAGE")["ack_set"].to_pylist() == [[3, -1]]
    receipts_ = read_table(url, "SEND_RECEIPT")
    assert "payload" not in receipts_.column_names
    assert "metadata" not in receipts_.column_names
    expected = together(rows).select(receipts_.column_names).slice(0, 5)
    assert receipts_.equals(expected)


@pytest.mark.feature("J5")
def test_all_kinds_together_are_the_output_less_the_entries(url: str) -> None:
    rows = output(EFFECTS)
    TableSink(url).write(3, 0, rows)
    expected = together(rows)
    for name in ("metadata", "payload"):
        nulls = pa.nulls(len(expected), OUTPUT.field(name).type)
        expected = expected.set_column(OUTPUT.get_field_index(name), OUTPUT.field(name), nulls)
    assert read_table(url).equals(expected)


@pytest.mark.feature("J5")
def test_rows_are_sorted_by_identity_whatever_file_they_are_in(url: str) -> None:
    sink = TableSink(url)
    sink.write(1, 1, output(receipts(1, 0, 2), partition=1))
    sink.write(1, 0, output(receipts(1, 0, 2), partition=0))
    sink.write(2, 0, output([*receipts(1, 3, 5), closed(1, 6)], partition=0, offset=3))
    rows = read_table(url)
    identities = list(zip(*(rows[n].to_pylist() for n in ("partition", "offset")), strict=True))
    assert identities == [*((0, i) for i in range(7)), *((1, i) for i in range(3))]


@pytest.mark.feature("J2", "J5")
def test_repeats_are_dropped(url: str) -> None:
    sink = TableSink(url)
    sink.write(1, 0, output(receipts(1, 0, 3)))
    sink.write(2, 0, output(receipts(1, 2, 5), offset=2))
    assert read_table(url, "SEND_RECEIPT")["offset"].to_pylist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.feature("J2", "J5")
def test_a_rerun_leaves_the_same_files(url: str) -> None:
    sink: TableSink = pickle.loads(pickle.dumps(TableSink(url)))
    sink.begin(7)
    sink.write(7, 0, output(EFFECTS))
    first = tree(Path(url))
    assert len(first) == 5
    sink.begin(7)
    sink.write(7, 0, output(EFFECTS))
    assert tree(Path(url)) == first


@pytest.mark.feature("J2", "J5")
def test_a_crash_at_any_moment_is_repaired_by_the_rerun(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    filesystem = Mortal()
    TableSink(str(whole), filesystem).write(1, 0, output(EFFECTS))
    for lives in range(filesystem.calls):
        folder = tmp_path / str(lives)
        with pytest.raises(Killed):
            TableSink(str(folder), Mortal(lives)).write(1, 0, output(EFFECTS))
        read_table(str(folder))  # nothing half-written shows
        sink = TableSink(str(folder))
        sink.begin(1)
        sink.write(1, 0, output(EFFECTS))
        assert tree(folder) == tree(whole)
        assert not (folder / "_temporary").exists()


@pytest.mark.feature("J5")
def test_other_readers_see_one_table_with_the_kind_as_column(url: str) -> None:
    sink = TableSink(url)
    sink.write(1, 0, output(EFFECTS))
    sink.write(2, 0, output(EFFECTS, offset=100))
    dataset = ds.dataset(url, format="parquet", partitioning="hive")
    assert dataset.count_rows(filter=ds.field("kind") == "SEND_RECEIPT") == 10


def test_empty(url: str) -> None:
    TableSink(url).write(1, 0, {})
    assert read_table(url).equals(OUTPUT.empty_table())
    assert read_table(url, "MESSAGE").num_rows == 0


def test_output_of_a_later_batch_is_another_query_s(url: str) -> None:
    sink = TableSink(url)
    sink.begin(0)
    sink.write(5, 0, output([receipt(1, 0)]))
    sink.begin(0)  # checked once, when the query starts
    with pytest.raises(ForeignFiles, match="micro-batch 5.*at micro-batch 4"):
        TableSink(url).begin(4)
    TableSink(url).begin(5)


@pytest.mark.feature("J5")
def test_each_kind_has_a_table() -> None:
    for schema in TABLES.values():
        assert schema.names[:4] == ["partition", "offset", "ordinal", "clock"]
