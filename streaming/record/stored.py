"""An entry as a cluster has it, and the command that stores it again."""

from typing import Any, NamedTuple

import msgspec

from schemas.lines import LONGEST_LINE, Unreadable
from streaming.protocol.codec import Frame, entry
from streaming.traces.trace import Payloads, frame_record, payload_of

_ROOM = 1 << 17
"""For what else is in a line: the names of the topic and the connection, and numbers."""


class Stored(NamedTuple):
    """An entry of a topic as it is stored: its position on the broker, its metadata as in a frame, and when the broker got it (ms), if
    it shows that. `size`: its bytes, if they were counted. `unreadable`: see `streaming.protocol.codec.Frame`."""

    ledger: int
    entry: int
    metadata: dict[str, Any]
    payload: bytes
    broker_time: int | None = None
    size: int | None = None
    unreadable: str | None = None

    @property
    def time(self) -> int:
        """When the broker got it (ms), or else when it was published."""
        return self.metadata["publish_time"] if self.broker_time is None else self.broker_time


def send_of(stored: Stored, payloads: Payloads) -> dict[str, Any]:
    """The SEND of an entry, as JSON, without its connection and producer. The bytes of its payload are as `payloads` says. Raises
    `Unreadable` for one that is too large for a line, or whose metadata can't be read."""
    if stored.unreadable is not None:
        raise Unreadable(f"entry {stored.ledger}:{stored.entry}: {stored.unreadable}")
    metadata = stored.metadata
    tail = entry(metadata, stored.payload)
    record = frame_record(Frame("", "SEND", {}, metadata, stored.payload, len(tail)), payloads)
    fields = {
        "command": "SEND",
        "sequence_id": metadata["sequence_id"],
        "num_messages": metadata.get("num_messages_in_batch", 1),
        "metadata": record["metadata"],
        "payload_bytes": payload_of(record),
    }
    if "highest_sequence_id" in metadata:
        fields["highest_sequence_id"] = metadata["highest_sequence_id"]
    if "chunk_id" in metadata:
        fields["is_chunk"] = True
    # In a line, a byte takes six at most. Few entries are so large that it matters.
    if len(tail) > LONGEST_LINE // 8 and len(msgspec.json.encode(fields)) > LONGEST_LINE - _ROOM:
        raise Unreadable(
            f"entry {stored.ledger}:{stored.entry} has {len(tail):,} bytes: a line of a log has no room for it, which has at most "
            f"{LONGEST_LINE >> 20} MiB, and bytes as base64"
        )
    return fields
