"""The columns of the operator's state and output, as Spark has them."""

from typing import Final

STATE: Final = "clock bigint, topics int, backlog bigint, storage bigint, offset bigint, broker binary"
"""An ingress partition's state: clock (ms), topics, backlog (entries), storage (bytes), last offset, and the broker
itself, in its own versioned encoding. Spark refuses to restart with another schema, so everything that may change is in
the encoding."""

METRICS: Final = "METRICS"
"""The kind of a row of `WRITTEN` that carries `schemas.metrics.PartitionMetrics` and is not for the sinks."""

LAST: Final = "LAST"
"""The same of one that carries the last record of the partition in the micro-batch, a `sinks.begun.LastRecord`."""

WRITTEN: Final = "partition int, kind string, rows bigint, metrics binary"
"""The operator's output: the rows that it wrote to the sinks, by ingress partition and kind. `metrics`: in rows `METRICS`
and `LAST` alone."""
