"""Frames of Pulsar's binary protocol as bytes, and back (protocol.md §1).

A frame is ``total size | command size | command`` and, for SEND and MESSAGE, a tail: ``0e01 | CRC32C | metadata size |
metadata | payload``. Sizes are 4 bytes, big-endian. A broker may put its own metadata, ``0e02 | size | metadata``, in front
of the tail.

`Frame.fields` has the fields that are on the wire, by their names in the protocol: enums by name, bytes as bytes. Text in a
field of bytes is base64, as in JSON.
"""

import base64
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from crc32c import crc32c
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from streaming.protocol import pulsar_api_pb2

MAX_MESSAGE_SIZE = 5 << 20
HEADROOM = 10_240
"""The bytes of a frame besides a message's payload."""
LARGEST_FRAME = MAX_MESSAGE_SIZE + HEADROOM
"""A larger frame closes the connection. In bytes, without the frame's own size."""

_CHECKSUM, _BROKER_METADATA = b"\x0e\x01", b"\x0e\x02"
_SIZE = struct.Struct(">I")
_SIZES = struct.Struct(">II")
_TAIL = struct.Struct(">2sII")

_BASE: Descriptor = pulsar_api_pb2.DESCRIPTOR.message_types_by_name["BaseCommand"]
_METADATA: Descriptor = pulsar_api_pb2.DESCRIPTOR.message_types_by_name["MessageMetadata"]
_SINGLE: Descriptor = pulsar_api_pb2.DESCRIPTOR.message_types_by_name["SingleMessageMetadata"]


class FrameError(ValueError):
    """Bytes are not a frame of the protocol, or too many. The text says why."""


class Frame(NamedTuple):
    """A frame from or to a `connection`: its command, and for SEND and MESSAGE what follows it.

    `entry_size`: the size of the tail in bytes, which is what a ledger stores. `intact`: its checksum is right.
    """

    connection: str
    cmd: str
    fields: dict[str, Any]
    metadata: dict[str, Any] | None = None
    payload: bytes | None = None
    entry_size: int | None = None
    intact: bool = True


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self, largest: int = LARGEST_FRAME) -> None:
        """`largest`: the size in bytes of the largest frame, without the frame's own size."""
        self.largest = largest
        self._data = bytearray()

    @property
    def unread(self) -> bytes:
        """The bytes that are in no frame yet. After a `FrameError`, they begin with what is not a frame."""
        return bytes(self._data)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are complete with `data`, each without its total size. Raises `FrameError` for one that is too
        large or too small; nothing can be read after that."""
        self._data += data
        at = 0
        try:
            while len(self._data) >= at + 4:
                size = _SIZE.unpack_from(self._data, at)[0]
                if not 4 < size <= self.largest:
                    raise FrameError(f"a frame of {size} bytes: expected 5 to {self.largest}")
                if len(self._data) < at + 4 + size:
                    break
                frame = bytes(self._data[at + 4 : at + 4 + size])
                at += 4 + size
                yield frame
        finally:
            del self._data[:at]


def decode(data: bytes, connection: str = "") -> Frame:
    """The frame in `data`, which lacks the total size. Raises `FrameError` and nothing else, whatever the bytes."""
    if len(data) < 4:
        raise FrameError(f"{len(data)} bytes: too short for a frame")
    end = 4 + _SIZE.unpack_from(data)[0]
    if end > len(data):
        raise FrameError(f"a command of {end - 4} bytes in a frame of {len(data)}")
    base = _parsed(_Base, data[4:end])
    cmd = _TYPES.get(base.type)
    if cmd is None or not base.HasField(cmd.field):
        raise FrameError(f"a command of type {base.type} without its message")
    fields = _read(getattr(base, cmd.field), cmd.table)
    if end == len(data):
        return Frame(connection, cmd.name, fields)
    return _with_tail(connection, cmd.name, fields, data[end:])


def _with_tail(connection: str, name: str, fields: dict[str, Any], tail: bytes) -> Frame:
    if tail[:2] == _BROKER_METADATA and len(tail) >= 6:
        tail = tail[6 + _SIZE.unpack_from(tail, 2)[0] :]
    at, intact = 0, True
    if tail[:2] == _CHECKSUM and len(tail) >= 6:
        at, intact = 6, _SIZE.unpack_from(tail, 2)[0] == crc32c(tail[6:])
    if len(tail) < at + 4:
        raise FrameError(f"{name}: {len(tail)} bytes after the command: too short for a message")
    end = at + 4 + _SIZE.unpack_from(tail, at)[0]
    if end > len(tail):
        raise FrameError(f"{name}: metadata of {end - at - 4} bytes in {len(tail)}")
    metadata = _read(_parsed(_Metadata, tail[at + 4 : end]), _METADATA_TABLE)
    return Frame(connection, name, fields, metadata, tail[end:], len(tail), intact)


def encode(cmd: str, fields: Mapping[str, Any], tail: bytes = b"") -> bytes:
    """The bytes of a frame. Raises `FrameError` for a command or field that the protocol does not have."""
    known = _BY_NAME.get(cmd)
    if known is None:
        raise FrameError(f"{cmd}: no such command")
    try:
        base = _Base(**{"type": known.number, known.field: _raw(fields, known.table)})
        body: bytes = base.SerializeToString()
    except (EncodeError, TypeError, ValueError, OverflowError) as error:
        raise FrameError(f"{cmd}: {error}") from None
    return _SIZES.pack(4 + len(body) + len(tail), len(body)) + body + tail


def send_receipt(producer_id: int, sequence_id: int, ledger_id: int, entry_id: int, highest: int) -> bytes:
    """The bytes of a SEND_RECEIPT, which is the most frequent answer: `encode` without a dictionary. Numbers are unsigned."""
    _RECEIPT.producer_id, _RECEIPT.sequence_id, _RECEIPT.highest_sequence_id = (
        producer_id,
        sequence_id,
        highest,
    )
    _RECEIPT_ID.ledgerId, _RECEIPT_ID.entryId = ledger_id, entry_id
    body: bytes = _RECEIPT_BASE.SerializeToString()
    return _SIZES.pack(4 + len(body), len(body)) + body


def entry(metadata: Mapping[str, Any], payload: bytes) -> bytes:
    """The tail of a frame: a message as ledgers store it and consumers get it. Raises `FrameError`."""
    try:
        head: bytes = _Metadata(**_raw(metadata, _METADATA_TABLE)).SerializeToString()
    except (EncodeError, TypeError, ValueError, OverflowError) as error:
        raise FrameError(f"metadata: {error}") from None
    size = _SIZE.pack(len(head))
    return _TAIL.pack(_CHECKSUM, crc32c(payload, crc32c(head, crc32c(size))), len(head)) + head + payload


def batch(metadata: Iterable[Mapping[str, Any]], payloads: Iterable[bytes]) -> bytes:
    """The payload of an uncompressed batch: each message with the metadata of its own. Raises `FrameError`."""
    found = []
    for each, payload in zip(metadata, payloads, strict=True):
        try:
            single = _Single(**_raw(each, _SINGLE_TABLE), payload_size=len(payload)).SerializeToString()
        except (EncodeError, TypeError, ValueError, OverflowError) as error:
            raise FrameError(f"metadata of a message in a batch: {error}") from None
        found.append(_SIZE.pack(len(single)) + single + payload)
    return b"".join(found)


# ---- protobuf

_Base: Callable[..., Any] = GetMessageClass(_BASE)
_Metadata: Callable[..., Any] = GetMessageClass(_METADATA)
_Single: Callable[..., Any] = GetMessageClass(_SINGLE)


class _Field(NamedTuple):
    name: str
    repeated: bool
    values: dict[int, str] | None
    table: "_Table | None"
    is_bytes: bool
    is_text: bool


class _Table(NamedTuple):
    """What is known of a message. `plain`: the names of fields whose values are as in JSON. `fields`: all others. `other`: by
    name, those that JSON has in another form."""

    plain: dict[FieldDescriptor, str]
    fields: dict[FieldDescriptor, _Field]
    other: dict[str, _Field]


class _Command(NamedTuple):
    name: str
    number: int
    field: str
    table: _Table


def _table(message: Descriptor, known: dict[str, _Table]) -> _Table:
    if message.full_name in known:
        return known[message.full_name]
    table = known[message.full_name] = _Table({}, {}, {})
    for field in message.fields:
        values = None if field.enum_type is None else {v.number: v.name for v in field.enum_type.values}
        nested = None if field.message_type is None else _table(field.message_type, known)
        is_bytes = field.type == FieldDescriptor.TYPE_BYTES
        is_text = field.type == FieldDescriptor.TYPE_STRING
        own = _Field(field.name, field.is_repeated, values, nested, is_bytes, is_text)
        if values is None and nested is None and not (is_text or field.is_repeated):
            table.plain[field] = field.name
        else:
            table.fields[field] = own
        if own.is_bytes or nested is not None:
            table.other[field.name] = own
    return table


_tables: dict[str, _Table] = {}
_METADATA_TABLE, _SINGLE_TABLE = _table(_METADATA, _tables), _table(_SINGLE, _tables)
_TYPES = {
    value.number: _Command(
        value.name,
        value.number,
        (field := _BASE.fields_by_number[value.number]).name,
        _table(field.message_type, _tables),
    )
    for value in _BASE.enum_types_by_name["Type"].values
}
_BY_NAME = {command.name: command for command in _TYPES.values()}


_RECEIPT_BASE = _Base(type=_BY_NAME["SEND_RECEIPT"].number)
_RECEIPT = _RECEIPT_BASE.send_receipt
_RECEIPT_ID = _RECEIPT.message_id


def _parsed(message: Callable[..., Any], data: bytes) -> Any:
    found = message()
    try:
        found.ParseFromString(data)
    except DecodeError as error:
        raise FrameError(f"not a message of the protocol: {error}") from None
    return found


def _read(message: Message, table: _Table) -> dict[str, Any]:
    """The fields of a message. Raises `FrameError` for text that is not UTF-8, which protobuf gives as bytes or refuses."""
    try:
        return _plain(message, table)
    except UnicodeDecodeError as error:
        raise FrameError(f"text that is not UTF-8: {error}") from None


def _plain(message: Message, table: _Table) -> dict[str, Any]:
    found = {}
    plain = table.plain
    for descriptor, value in message.ListFields():
        name = plain.get(descriptor)
        if name is not None:
            found[name] = value
            continue
        field = table.fields[descriptor]
        if field.values is not None:
            value = field.values[value]
        elif field.table is not None:
            if field.repeated:
                value = [_plain(each, field.table) for each in value]
            else:
                value = _plain(value, field.table)
        elif field.repeated:
            value = list(value)
            if field.is_text and any(type(each) is bytes for each in value):
                raise FrameError(f"{field.name}: text that is not UTF-8")
        elif field.is_text and type(value) is bytes:
            raise FrameError(f"{field.name}: text that is not UTF-8")
        found[field.name] = value
    return found


def _raw(fields: Mapping[str, Any], table: _Table) -> Mapping[str, Any]:
    """`fields` as protobuf takes them."""
    if not table.other or not (there := table.other.keys() & fields.keys()):
        return fields
    found = dict(fields)
    for name in there:
        field, value = table.other[name], found[name]
        if field.table is not None:
            found[name] = (
                [_raw(each, field.table) for each in value] if field.repeated else _raw(value, field.table)
            )
        elif isinstance(value, str):
            found[name] = base64.b64decode(value)
    return found
