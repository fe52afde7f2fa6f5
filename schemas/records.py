"""The ingress record: one command and its coordinates. The same shape from Kafka, Parquet and JSON Lines.

* Kafka: key = topic name (absent: the whole ingress partition), value = the command, timestamp = the record's.
* Parquet: these columns.
* JSON Lines: one object a line, the command's fields plus ``partition``, ``offset``, ``timestamp`` and ``topic``.
"""

import pyarrow as pa


def column(name: str, type_: pa.DataType, doc: str, *, nullable: bool = True) -> pa.Field:
    """A column with its documentation (kept as Arrow field metadata ``doc``)."""
    return pa.field(name, type_, nullable, {"doc": doc})


RECORD = pa.schema(
    [
        column(
            "partition", pa.int32(), "ingress partition: Pulsar's bundle, the unit of state", nullable=False
        ),
        column(
            "offset", pa.int64(), "position in the ingress partition, strictly increasing", nullable=False
        ),
        column(
            "timestamp", pa.int64(), "ingress time, ms since the epoch; advances the clock", nullable=False
        ),
        column("topic", pa.string(), "full topic name; null: the command is for the whole ingress partition"),
        column(
            "value", pa.binary(), "the command: JSON or MessagePack, see schemas.commands", nullable=False
        ),
    ]
)

LARGEST = 16 << 20
"""The size of the largest record in Kafka, in bytes: a Pulsar message may have 5 MiB, and base64 adds a third."""
