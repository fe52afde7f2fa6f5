"""Where a record is in the ingress, and the bounds of that. `schemas.records` has its columns, for which it needs Arrow."""

from __future__ import annotations

import re
from typing import NamedTuple

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
