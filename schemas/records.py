"""The ingress record: one command and its coordinates, in the same shape from Kafka, Parquet and JSON Lines.

* Kafka: the key is the topic name in UTF-8 (absent: the whole ingress partition), the value is the command, and partition, offset
  and timestamp are those of Kafka.
* Parquet: the columns of `RECORD`.
* JSON Lines: one object per line, with the command's fields and ``partition``, ``offset``, ``timestamp`` and ``topic``.
"""

from __future__ import annotations

import pyarrow as pa

from schemas.coordinates import LARGEST, OFFSETS, PARTITIONS, Coordinates, TopicAside

__all__ = ["LARGEST", "OFFSETS", "PARTITIONS", "RECORD", "Coordinates", "TopicAside", "column"]


def column(
    name: str, type_: pa.DataType, doc: str, *, unit: str | None = None, nullable: bool = True
) -> pa.Field:
    """A column with its description and unit, kept as Arrow field metadata ``doc`` and ``unit``."""
    return pa.field(name, type_, nullable, {"doc": doc} | ({"unit": unit} if unit else {}))


RECORD = pa.schema(
    [
        column("partition", pa.int32(), "The ingress partition: Pulsar's bundle, the unit of state.", nullable=False),
        column("offset", pa.int64(), "The position in the ingress partition. Strictly increasing.", nullable=False),
        column("timestamp", pa.int64(), "The time of ingress, to which the record advances the partition's clock.",
               unit="ms since the epoch", nullable=False),
        column("topic", pa.string(), "The full topic name. Null: the command is for the whole ingress partition."),
        column("value", pa.binary(), "The command, in JSON or MessagePack, see `schemas.commands`.", nullable=False),
    ]
)  # fmt: skip
