"""Records on their way from the source to the operator: consecutive ones of an ingress partition packed into one value.

As rows of Spark, each record would be copied for the shuffle, sorted, and converted to Arrow and to pandas by itself, which
costs more than all that Magnetar does with a plain publish.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from schemas.records import RECORD
from streaming.fold.records import Records
from streaming.spark.keys import slot

PIECE_BYTES = 32 << 10
"""The bytes of records in a packed value, unless one record has more. Spark's JVM passes on up to 10,000 values at a time
(``spark.sql.execution.arrow.maxRecordsPerBatch``), however large they are."""

PACKED = "partition int, slot int NOT NULL, records binary"
"""The columns of packed records, as Spark has them. The first two are the key of the state, see `streaming.spark.keys`. Which of them
may be null is in every checkpoint, too."""

ARROW = pa.schema([("partition", pa.int32()), ("slot", pa.int32()), ("records", pa.binary())])
"""The same, as Arrow has them."""

_PARTITION = RECORD.field("partition").name
_SCHEMA = pa.schema([field.remove_metadata() for field in RECORD if field.name != _PARTITION])
_FIXED_BYTES = 20  # of a record: offset, timestamp, and an index per text


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The records in `batches` (columns `RECORD`) as columns `ARROW`."""
    for batch in filter(len, batches):
        partition = batch[_PARTITION].to_numpy()
        if np.any(partition[1:] < partition[:-1]):
            batch = batch.take(pa.array(np.argsort(partition, kind="stable")))
            partition = batch[_PARTITION].to_numpy()
        records = pa.RecordBatch.from_arrays([batch[name] for name in _SCHEMA.names], schema=_SCHEMA)
        pieces = np.cumsum(_sizes(records)) // PIECE_BYTES
        cuts = np.flatnonzero((np.diff(partition) != 0) | (np.diff(pieces) != 0)) + 1
        starts = [0, *cuts.tolist()]
        values = [
            records.slice(start, stop - start).serialize().to_pybytes()
            for start, stop in pairwise([*starts, len(records)])
        ]
        own = partition[starts].tolist()
        columns = zip((own, map(slot, own), values), ARROW.types, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(column, type_) for column, type_ in columns], schema=ARROW)


def _sizes(records: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    texts = (pc.fill_null(pc.binary_length(records[name]), 0).to_numpy() for name in ("topic", "value"))
    sizes = np.full(len(records), _FIXED_BYTES, np.int64)
    for each in texts:
        sizes += each
    return sizes


def unpack(frames: Iterable[pd.DataFrame]) -> Records:
    """The records in `frames` (columns `PACKED`) in order."""
    records = unpack_table(frames)
    columns = [
        records["offset"].to_numpy().tolist(),
        records["timestamp"].to_numpy().tolist(),
        records["topic"].to_pandas().tolist(),  # equal topics become one object
        records["value"].to_numpy().tolist(),
    ]
    return Records(*columns)


def unpack_table(frames: Iterable[pd.DataFrame]) -> pa.Table:
    """The same as a table with the columns `RECORD`, but for the partition. Spark guarantees no order, though they nearly always arrive in
    order."""
    values = chain.from_iterable(frame["records"] for frame in frames)
    records = pa.Table.from_batches((pa.ipc.read_record_batch(value, _SCHEMA) for value in values), _SCHEMA)
    offsets = records["offset"].to_numpy()
    if np.any(np.diff(offsets) < 0):
        return records.take(pa.array(np.argsort(offsets, kind="stable")))
    return records
