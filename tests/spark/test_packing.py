"""Records between source and operator, packed and unpacked without Spark."""

import random

import pyarrow as pa
import pytest

from schemas.records import RECORD
from streaming.spark import packing
from tests.spark.helpers import traffic


def unpacked(values: list[pa.RecordBatch], partition: int) -> pa.Table:
    frames = [batch.to_pandas() for batch in values]
    records = packing.unpack(frame[frame["partition"] == partition] for frame in frames)
    arrays = [pa.array(column, field.type) for column, field in zip(records, list(RECORD)[1:], strict=True)]
    return pa.Table.from_arrays(arrays, names=RECORD.names[1:])


def test_every_record_arrives_once_and_in_order() -> None:
    log = traffic().sort_by([("partition", "ascending"), ("offset", "ascending")])
    order = list(range(len(log)))
    random.Random(7).shuffle(order)
    mixed = log.take(pa.array(order))
    for records in (log, mixed):
        values = list(packing.pack(records.to_batches(max_chunksize=100)))
        random.Random(8).shuffle(values)
        for partition in set(log["partition"].to_pylist()):
            own = log.filter(pa.compute.equal(log["partition"], partition)).drop_columns("partition")
            assert unpacked(values, partition).to_pylist() == own.to_pylist()


@pytest.mark.parametrize(
    ("size", "pieces"), [(10, 1), (packing.PIECE_BYTES // 10, 11), (packing.PIECE_BYTES, 100)]
)
def test_a_piece_has_a_bound_unless_a_record_is_larger(size: int, pieces: int) -> None:
    columns = [[3] * 100, range(100), [0] * 100, [None] * 100, [bytes(size)] * 100]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD, strict=True)]
    (batch,) = packing.pack([pa.RecordBatch.from_arrays(arrays, schema=RECORD)])
    assert len(batch) == pieces
    assert unpacked([batch], 3)["offset"].to_pylist() == list(range(100))


def test_equal_topics_are_one_object() -> None:
    columns = [[3] * 100, range(100), [0] * 100, ["a topic", "another"] * 50, [b""] * 100]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD, strict=True)]
    batches = packing.pack([pa.RecordBatch.from_arrays(arrays, schema=RECORD)])
    records = packing.unpack(batch.to_pandas() for batch in batches)
    assert len(set(map(id, records.topics))) == 2
