"""SEND frames as most clients write them, decoded at once: a message or batch with no more than a key, its sizes and its ids.

`codec.decode` defines what a frame says. This reads the same from frames whose fields come in the order of their numbers, and
leaves all others to it. A property test holds both equal, and that the gate refuses nothing of what is read here.
"""

import re
import struct
from functools import lru_cache

from crc32c import crc32c

from schemas.commands import MessageMetadata, Send

LONGEST_TOPIC = 1024
"""The characters of a longest topic on which these SENDs can be."""

_LARGEST = 1 << 27
_SIZES = struct.Struct(">II")

_COUNT = rb"([\x80-\xff]{0,3}[\0-\x7f])"
_MILLIS = rb"([\x80-\xff]{0,5}[\0-\x7f])"
_NUMBER = rb"([\x80-\xff]{0,8}[\0-\x7f])"
"""Varints that fit into 31, 42 and 63 bits."""


def _optional(tag: bytes, varint: bytes) -> bytes:
    return b"(?:" + re.escape(tag) + varint + b")?"


_SEND = re.compile(
    rb"\0\0\0.\x08\x06\x32([\0-\x7f])\x08" + _NUMBER + rb"\x10" + _NUMBER
    + _optional(b"\x18", _COUNT) + _optional(b"\x30", _NUMBER) + rb"(\x0e\x01)(?=.{8}\x0a([\0-\x7f]))",
    re.DOTALL,
)  # fmt: skip
"""producer_id, sequence_id, num_messages, highest_sequence_id; then where the tail begins, and the length of producer_name."""
_IDS = re.compile(rb"\x10" + _NUMBER + rb"\x18" + _MILLIS + rb"(?:\x32([\0-\x7f]))?", re.DOTALL)
"""sequence_id, publish_time, and the length of partition_key."""
_SIZED = re.compile(_optional(b"\x48", _COUNT) + _optional(b"\x58", _COUNT) + _optional(b"\xc0\x01", _NUMBER))
"""uncompressed_size, num_messages_in_batch, highest_sequence_id."""


def plain_send(data: bytes, connection: str) -> Send | None:
    """The command of a frame, which lacks the total size, if it is a SEND that can be read here, and intact."""
    if (head := _SEND.match(data)) is None:
        return None
    length, producer_id, sequence_id, messages, highest, _, named = head.groups()
    end = head.start(6)
    checksum, size = _SIZES.unpack_from(data, end + 2)
    start, stop = end + 12, end + 10 + size
    if (
        end != 8 + length[0]
        or end != 4 + data[3]
        or (ids := _IDS.match(data, named_end := start + named[0], stop)) is None
        or len(data) > _LARGEST
        or crc32c(data[end + 6 :]) != checksum
    ):
        return None
    own_id, time, keyed = ids.groups()
    at, key = ids.end(), None
    try:
        name = _text(data[start:named_end])
        if keyed is not None:
            key = _text(data[at : at + keyed[0]])
            at += keyed[0]
    except UnicodeDecodeError:
        return None
    if (sized := _SIZED.match(data, at, stop)) is None or sized.end() != stop:
        return None
    metadata = MessageMetadata(name, _integer(own_id), _integer(time), partition_key=key)
    uncompressed, in_batch, own_highest = sized.groups()
    if uncompressed is not None:
        metadata.uncompressed_size = _integer(uncompressed)
    if in_batch is not None:
        metadata.num_messages_in_batch = _integer(in_batch)
    if own_highest is not None:
        metadata.highest_sequence_id = _integer(own_highest)
    return Send(
        connection=connection,
        producer_id=_integer(producer_id),
        sequence_id=_integer(sequence_id),
        metadata=metadata,
        num_messages=1 if messages is None else _integer(messages),
        highest_sequence_id=None if highest is None else _integer(highest),
        payload_bytes=data[stop:],
    )


@lru_cache(1 << 8)
def _integer(varint: bytes) -> int:
    """A number. Most come again, such as times and sizes."""
    found = 0
    for byte in reversed(varint):
        found = found << 7 | byte & 0x7F
    return found


@lru_cache(1 << 8)
def _text(data: bytes) -> str:
    return data.decode()
