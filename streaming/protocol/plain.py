"""The most frequent frames as most clients write them, decoded at once: SENDs of a message or batch with no more than a key, its
sizes and its ids, and ACKs of whole entries.

`codec.decode` defines what a frame says. This reads the same from frames whose fields come in the order of their numbers, and
leaves all others to it. A property test holds both equal, and that the gate refuses nothing of what is read here.
"""

import re
import struct
from functools import lru_cache

from crc32c import crc32c

from schemas.commands import Ack, MessageIdData, MessageMetadata, Send

LONGEST_TOPIC = 1024
"""The characters of a longest topic on which these commands can be."""

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

_ACK = re.compile(
    rb"\0\0\0(.)\x08\x0a\x52(.)\x08" + _NUMBER + rb"\x10([\0\x01])((?:\x1a.\x08" + _NUMBER + rb"\x10" + _NUMBER + rb")+)"
    + _optional(b"\x40", _NUMBER), re.DOTALL,
)  # fmt: skip
"""The sizes of the command and its fields; consumer_id, ack_type, all of message_id, (two numbers of it,) request_id."""
_ID = re.compile(rb"\x1a(.)\x08" + _NUMBER + rb"\x10" + _NUMBER, re.DOTALL)


def plain_command(data: bytes, connection: str) -> Send | Ack | None:
    """The command of a frame, which lacks the total size, if it is one that can be read here, and intact."""
    return plain_ack(data, connection) if data[4:7] == b"\x08\x0a\x52" else plain_send(data, connection)


def sender(command: Send | Ack) -> tuple[str, int]:
    """The producer or consumer of a command, as `streaming.protocol.requests` knows it."""
    return ("producer", command.producer_id) if type(command) is Send else ("consumer", command.consumer_id)  # type: ignore[union-attr]


def plain_ack(data: bytes, connection: str) -> Ack | None:
    """The command of a frame, which lacks the total size, if it is an ACK that can be read here."""
    if (found := _ACK.fullmatch(data)) is None:
        return None
    size, length, consumer_id, kind, ids, _, _, request_id = found.groups()
    if length[0] > 0x7F or length[0] != size[0] - 4 or len(data) != 4 + size[0]:
        return None
    entries = []
    for each in _ID.finditer(ids):
        own, ledger_id, entry_id = each.groups()
        if own[0] != each.end() - each.start() - 2:
            return None
        entries.append(MessageIdData(ledgerId=_integer(ledger_id), entryId=_integer(entry_id)))
    return Ack(
        connection=connection,
        consumer_id=_integer(consumer_id),
        ack_type="Cumulative" if kind[0] else "Individual",
        message_id=entries,
        request_id=None if request_id is None else _integer(request_id),
    )


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
