"""Spark's view of the contracts, derived from the Arrow schemas so that the two can't drift apart."""

from typing import Final

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from schemas.records import RECORD

RECORDS: Final[StructType] = from_arrow_schema(RECORD)
"""The columns of every source."""

STATE: Final = "clock bigint, topics int, backlog bigint, storage bigint, offset bigint, broker binary"
"""An ingress partition's state: clock (ms), topics, backlog (entries), storage (bytes), last offset, and the broker
itself, in its own versioned encoding. Spark refuses to restart with another schema, so everything that may change is in
the encoding."""

CHUNKS: Final = "partition int, kind string, rows int, effects binary"
"""The operator's output: `rows` output rows of a partition and kind, by identity, packed into one value, which is cut into
pieces: `rows` is 0 in all but the last piece.

Passing them as Spark rows took 11 s per million instead of 3.5 s (2 cores, 100 B payloads, from Parquet to the sink),
because 35 columns are converted from Arrow to pandas, to Arrow, to Spark's rows, and to Arrow again for the writer."""

METRICS: Final = "METRICS"
"""The kind of a row of `CHUNKS` and `WRITTEN` that carries `schemas.metrics.PartitionMetrics` and is not for the sinks."""

WRITTEN: Final = "partition int, kind string, rows bigint, metrics binary"
"""The result of a micro-batch's write job: rows written by ingress partition and kind. `metrics`: in rows `METRICS` alone."""
