"""Records in Kafka as ingress records.

The key names the topic, see `schemas.keys`. Without one, the field ``topic`` of a value that is a line of a log does, see
`streaming.log.partition.topic_in_value`. A record without a value has an empty one.
"""

import pyarrow as pa

from schemas.keys import topic_of
from schemas.records import RECORD
from streaming.log.partition import topic_in_value

_MS = pa.timestamp("ms", "UTC")

READ = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", _MS), ("key", pa.binary()), ("value", pa.binary())]
)  # fmt: skip
"""What is read of a record in Kafka, by the names of Spark's Kafka source. That has timestamps in µs."""


def ingress_records(read: pa.RecordBatch, partitions: int) -> pa.RecordBatch:
    """Records in Kafka (columns `READ`, with timestamps of any unit) as columns `RECORD`.

    `partitions`: how many the Kafka topic has.
    """
    keys = read["key"].dictionary_encode()
    topics = pa.array(map(topic_of, keys.dictionary.to_pylist()), pa.string()).take(keys.indices)
    values = read["value"].fill_null(b"")
    if topics.null_count:
        rows = zip(topics, values, read["partition"].to_pylist(), strict=True)
        found = (key.as_py() or topic_in_value(value.as_py(), own, partitions) for key, value, own in rows)
        topics = pa.array(found, pa.string())
    time = read["timestamp"].cast(_MS).cast(pa.int64())
    return pa.RecordBatch.from_arrays(
        [read["partition"], read["offset"], time, topics, values], schema=RECORD
    )
