"""The ingress record: one command and its coordinates, in the same shape from Kafka, Parquet and JSON Lines.

* Kafka: the key is the topic name in UTF-8 (absent: the whole ingress partition), the value is the command, and partition, offset
  and timestamp are those of Kafka.
* Parquet: the columns of `RECORD`.
* JSON Lines: one object per line, with the command's fields and ``partition``, ``offset``, ``timestamp`` and ``topic``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa


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

PARTITIONS = range(10**5)
"""The ingress partitions that there can be: the names of files have five digits for them."""

OFFSETS = range(10**18)
"""The offsets that a log in a file can have. When policies move them up, they stay numbers of 64 bits."""

LARGEST = 16 << 20
"""The size of the largest record in Kafka, in bytes: a Pulsar message may have 5 MiB, and base64 adds a third."""


class Coordinates(NamedTuple):
    """The place of a record in the ingress."""

    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> Coordinates | None:
        """Parses ``PARTITION:OFFSET``; None if the text has another form."""
        found = re.fullmatch(r"(\d{1,5}):(\d{1,18})", text, re.ASCII)
        return None if found is None else cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class TopicAside(NamedTuple):
    """A topic that is set aside, in one ingress partition after an offset, or wherever it is (None) from the start of the run on."""

    topic: str
    partition: int | None = None
    after: int = -1
