"""Frames of Pulsar's binary protocol as bytes, and back (docs/rules/protocol.md §1).

A frame is ``total size | command size | command`` and, for SEND and MESSAGE, a tail: ``0e01 | CRC32C | metadata size |
metadata | payload``. Sizes are 4 bytes, big-endian. A broker may put its own metadata, ``0e02 | size | metadata``, in front
of the tail.

`Frame.fields` has the fields that are on the wire, by their names in the protocol: enums by name, bytes as bytes. Text in a
field of bytes is base64, as in JSON.
"""

import base64
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from streaming.protocol import pulsar_api_pb2

MAX_MESSAGE_SIZE = 5 << 20
HEADROOM = 10_240
"""The bytes of a frame besides a message's payload."""
LARGEST_FRAME = MAX_MESSAGE_SIZE + HEADROOM
"""A larger frame closes the connection. In bytes, without the frame's own size."""

MOST_ITEMS = 50_000
"""The items of a longest list in a command. Clients send 1,000 at most; five megabytes of them would take seconds to read."""

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

    `entry_size`: the size of the tail in bytes, which is what a ledger stores. `intact`: its checksum is right. `broker_time`: when the
    broker got the message (ms), if it says so. `unreadable`: why the metadata can't be read, None: it can. Else that has its `NUMBERS` only.
    """

    connection: str
    cmd: str
    fields: dict[str, Any]
    metadata: dict[str, Any] | None = None
    payload: bytes | None = None
    entry_size: int | None = None
    intact: bool = True
    broker_time: int | None = None
    unreadable: str | None = None


NUMBERS = ("sequence_id", "publish_time", "num_messages_in_batch")
"""What is read of metadata in any case."""


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self, largest: int = LARGEST_FRAME) -> None:
        """`largest`: the size in bytes of the largest frame, without the frame's own size."""
        self.largest = largest
        self._data = bytearray()
        self._first = 0
        """The size of the frame at the beginning of the data, if it is known."""

    @property
    def unread(self) -> bytes:
        """The bytes that are in no frame yet. After a `FrameError`, they begin with what is not a frame."""
        return bytes(self._data)

    @property
    def size(self) -> int:
        """The number of bytes that are in no frame yet."""
        return len(self._data)

    def clear(self) -> None:
        """Forget the bytes that are in no frame yet."""
        self._data.clear()

    def keep(self, data: bytes) -> None:
        """Keep bytes for the next call of `feed`."""
        self._data += data

    def feed(self, data: bytes) -> Generator[bytes, None, None]:
        """The frames that are complete with `data`, each without its total size. Raises `FrameError` for one that is too
        large or too small; nothing can be read after that. If the generator is closed, the next call goes on with the others."""
        if self._data:
            self._data += data
            if len(self._data) < 4 + self._first:
                return
            data = bytes(self._data)
            self._data.clear()
        at, end, self._first = 0, len(data), 0
        try:
            while end >= at + 4:
                size = _SIZE.unpack_from(data, at)[0]
                if not 4 < size <= self.largest:
                    raise FrameError(f"a frame of {size} bytes: expected 5 to {self.largest}")
                if end < (after := at + 4 + size):
                    self._first = size
                    break
                frame = data[at + 4 : after]
                at = after
                yield frame
        finally:
            self._data += data[at:]


def decode(data: bytes, connection: str = "", *, any_metadata: bool = False) -> Frame:
    """The frame in `data`, which lacks the total size. Raises `FrameError` and nothing else, whatever the bytes. `any_metadata`: metadata
    that can't be read, such as a key that is not UTF-8, is none of the errors. See `Frame`."""
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
    return _with_tail(connection, cmd.name, fields, data, end, any_metadata=any_metadata)


def _with_tail(
    connection: str, name: str, fields: dict[str, Any], data: bytes, at: int, *, any_metadata: bool
) -> Frame:
    """The frame with the tail that begins at `at`."""
    magic, intact, broker_time = data[at : at + 2], True, None
    if magic == _BROKER_METADATA and len(data) >= at + 6:
        end = at + 6 + _SIZE.unpack_from(data, at + 2)[0]
        broker_time = _parsed(_BrokerEntry, data[at + 6 : end]).broker_timestamp or None
        at = end
        magic = data[at : at + 2]
    start = at
    if magic == _CHECKSUM and len(data) >= at + 6:
        at += 6
        intact = _SIZE.unpack_from(data, at - 4)[0] == crc32c(data[at:])
    if len(data) < at + 4:
        raise FrameError(
            f"{name}: {max(len(data) - start, 0)} bytes after the command: too short for a message"
        )
    end = at + 4 + _SIZE.unpack_from(data, at)[0]
    if end > len(data):
        raise FrameError(f"{name}: metadata of {end - at - 4} bytes in {max(len(data) - start, 0)}")
    message, unreadable = _parsed(_Metadata, data[at + 4 : end]), None
    try:
        metadata = _read(message, _METADATA_TABLE)
    except FrameError as error:
        if not any_metadata:
            raise
        unreadable = str(error)
        metadata = {number: getattr(message, number) for number in NUMBERS if message.HasField(number)}
    size = len(data) - start
    return Frame(connection, name, fields, metadata, data[end:], size, intact, broker_time, unreadable)


def encode(cmd: str, fields: Mapping[str, Any], tail: bytes = b"") -> bytes:
    """The bytes of a frame. An integer that its field can't hold wraps around, as those of Pulsar's Java code do: −1 is the last number
    of an unsigned field. Raises `FrameError` for a command or field that the protocol does not have."""
    known = _BY_NAME.get(cmd)
    if known is None:
        raise FrameError(f"{cmd}: no such command")
    try:
        own = _raw(fields, known.table)
        try:
            base = _Base(**{"type": known.number, known.field: own})
        except ValueError:
            base = _Base(**{"type": known.number, known.field: _wrapped(own, known.table)})
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


def check(frame: Frame) -> None:
    """Raises `FrameError`, which names the field, unless `decode` could have given the fields and metadata of a frame. Bytes may be
    base64."""
    known = _BY_NAME.get(frame.cmd)
    if known is None:
        raise FrameError(f"{frame.cmd}: no such command")
    _check(f"fields of {frame.cmd}", frame.fields, type(getattr(_Base(), known.field)), known.table)
    if frame.metadata is not None:
        _check("metadata", frame.metadata, _Metadata, _METADATA_TABLE)


def _check(what: str, given: Mapping[str, Any], message: Any, table: "_Table") -> None:
    made = _made(given, message, table)
    if made is None:
        name = next(each for each in given if _made({each: given[each]}, message, table) is None)
        shown = _sorted_json(given[name])[:100].decode(errors="replace")
        raise FrameError(f"{what}: {name} can't be {shown}")
    if not made.IsInitialized():
        raise FrameError(f"{what}: {', '.join(made.FindInitializationErrors())} is missing")


def _made(given: Mapping[str, Any], message: Any, table: "_Table") -> Any:
    """The message with these fields. None if it reads otherwise: protobuf takes some values of other types, and None as nothing."""
    try:
        made = message(**_raw(given, table))
        found = _read(made, table)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None
    return (
        made if _sorted_json({name: found.get(name, []) for name in given}) == _sorted_json(given) else None
    )


_sorted_json = msgspec.json.Encoder(order="sorted").encode


CHECKSUM_BYTES = 6
"""Bytes of an entry that are its checksum and say that it has one."""


def entry(metadata: Mapping[str, Any], payload: bytes) -> bytes:
    """The tail of a frame: a message as ledgers store it and consumers get it. Integers wrap around. Raises `FrameError`."""
    try:
        own = _raw(metadata, _METADATA_TABLE)
        try:
            message = _Metadata(**own)
        except ValueError:
            message = _Metadata(**_wrapped(own, _METADATA_TABLE))
        head: bytes = message.SerializeToString()
    except (EncodeError, TypeError, ValueError, OverflowError) as error:
        raise FrameError(f"metadata: {error}") from None
    size = _SIZE.pack(len(head))
    return _TAIL.pack(_CHECKSUM, crc32c(payload, crc32c(head, crc32c(size))), len(head)) + head + payload


def encryption_keys(fields: Mapping[str, Any]) -> bytes:
    """The bytes of an EncryptionKeys of the metadata."""
    found: bytes = _EncryptionKeys(**fields).SerializeToString()
    return found


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


def singles(payload: bytes, messages: int) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The messages of an uncompressed batch, each with the metadata of its own. Raises `FrameError` where it gets to what is none."""
    at = 0
    for _ in range(messages):
        end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
        if at + 4 > len(payload) or end > len(payload):
            raise FrameError("a batch ends within a message")
        metadata = _read(_parsed(_Single, payload[at + 4 : end]), _SINGLE_TABLE)
        at = end + max(metadata.pop("payload_size", 0), 0)
        if at > len(payload):
            raise FrameError("a batch ends within the payload of a message")
        yield metadata, payload[end:at]


def encode_message_id(fields: Mapping[str, Any], topic: int = 0) -> bytes:
    """The bytes of a MessageIdData. `topic`: a number that `decode_message_id` finds again; 0: none."""
    found: bytes = _MessageId(**fields).SerializeToString()
    return found + _TOPIC.pack(_TOPIC_TAG, topic) if topic else found


def decode_message_id(data: bytes) -> tuple[dict[str, Any], int]:
    """The fields of a MessageIdData, and the number of a topic that `encode_message_id` has added. Raises `FrameError`."""
    message = _parsed(_MessageId, data)
    topic = next((each.data for each in UnknownFieldSet(message) if each.field_number == _TOPIC_TAG >> 3), 0)
    return _read(message, _MESSAGE_ID_TABLE), topic


_TOPIC, _TOPIC_TAG = struct.Struct("<BI"), 15 << 3 | 5
"""A field of 4 bytes with a number that MessageIdData does not have."""


# ---- protobuf

_Base: Any = GetMessageClass(_BASE)
_Metadata: Any = GetMessageClass(_METADATA)
_Single: Any = GetMessageClass(_SINGLE)
_EncryptionKeys: Any = GetMessageClass(pulsar_api_pb2.DESCRIPTOR.message_types_by_name["EncryptionKeys"])
_MESSAGE_ID: Descriptor = pulsar_api_pb2.DESCRIPTOR.message_types_by_name["MessageIdData"]
_MessageId: Any = GetMessageClass(_MESSAGE_ID)
_BrokerEntry: Any = GetMessageClass(pulsar_api_pb2.DESCRIPTOR.message_types_by_name["BrokerEntryMetadata"])


class _Field(NamedTuple):
    name: str
    repeated: bool
    values: dict[int, str] | None
    table: "_Table | None"
    is_bytes: bool
    is_text: bool


class _Table(NamedTuple):
    """What is known of a message. `plain`: the names of fields whose values are as in JSON. `fields`: all fields. `other`: by
    name, those that JSON has in another form. `has_text`: some plain fields are text."""

    plain: dict[FieldDescriptor, str]
    fields: dict[FieldDescriptor, _Field]
    other: dict[str, _Field]
    has_text: bool


class _Command(NamedTuple):
    name: str
    number: int
    field: str
    table: _Table


def _table(message: Descriptor, known: dict[str, _Table]) -> _Table:
    if message.full_name in known:
        return known[message.full_name]
    has_text = any(each.type == FieldDescriptor.TYPE_STRING for each in message.fields)
    table = known[message.full_name] = _Table({}, {}, {}, has_text)
    for field in message.fields:
        values = None if field.enum_type is None else {v.number: v.name for v in field.enum_type.values}
        nested = None if field.message_type is None else _table(field.message_type, known)
        is_bytes = field.type == FieldDescriptor.TYPE_BYTES
        is_text = field.type == FieldDescriptor.TYPE_STRING
        own = table.fields[field] = _Field(field.name, field.is_repeated, values, nested, is_bytes, is_text)
        if values is None and nested is None and not field.is_repeated:
            table.plain[field] = field.name
        if own.is_bytes or nested is not None:
            table.other[field.name] = own
    return table


_tables: dict[str, _Table] = {}
_METADATA_TABLE, _SINGLE_TABLE = _table(_METADATA, _tables), _table(_SINGLE, _tables)
_MESSAGE_ID_TABLE = _table(_MESSAGE_ID, _tables)
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


def _parsed(message: Any, data: bytes) -> Any:
    try:
        found = message.FromString(data)
    except DecodeError as error:
        raise FrameError(f"not a message of the protocol: {error}") from None
    if not found.IsInitialized():
        raise FrameError(
            f"not a message of the protocol: {', '.join(found.FindInitializationErrors())} is missing"
        )
    return found


def _read(message: Message, table: _Table) -> dict[str, Any]:
    """The fields of a message. Raises `FrameError` for text that is not UTF-8, which protobuf gives as bytes or refuses."""
    plain = table.plain
    try:
        found = {plain[descriptor]: value for descriptor, value in message.ListFields()}
        if not (table.has_text and bytes in map(type, found.values())):
            return found
    except KeyError:
        pass
    except UnicodeDecodeError as error:
        raise FrameError(f"text that is not UTF-8: {error}") from None
    return {
        (field := table.fields[descriptor]).name: _value(field, value)
        for descriptor, value in message.ListFields()
    }


def _value(field: _Field, value: Any) -> Any:
    """The value of a field, as `Frame.fields` has it."""
    if field.values is not None:
        return field.values[value]
    if field.table is not None:
        if field.repeated and len(value) > MOST_ITEMS:
            raise FrameError(f"{field.name}: {len(value):,} of them, expected at most {MOST_ITEMS:,}")
        return [_read(each, field.table) for each in value] if field.repeated else _read(value, field.table)
    if field.repeated:
        value = list(value)
    if field.is_text and bytes in map(type, value if field.repeated else (value,)):
        raise FrameError(f"{field.name}: text that is not UTF-8")
    return value


_BITS = {
    FieldDescriptor.CPPTYPE_UINT64: (64, 0),
    FieldDescriptor.CPPTYPE_INT64: (64, 2**63),
    FieldDescriptor.CPPTYPE_UINT32: (32, 0),
    FieldDescriptor.CPPTYPE_INT32: (32, 2**31),
}
"""The bits of an integer, and how many numbers below 0 it can be."""


def _wrapped(fields: Mapping[str, Any], table: _Table) -> dict[str, Any]:
    """`fields` as protobuf takes them, with integers that wrap around."""
    found = dict(fields)
    for descriptor, field in table.fields.items():
        if (value := found.get(field.name)) is None:
            continue
        if field.table is not None:
            nested = field.table
            found[field.name] = (
                [_wrapped(each, nested) for each in value] if field.repeated else _wrapped(value, nested)
            )
        elif (wrap := _BITS.get(descriptor.cpp_type)) is not None:
            bits, below = wrap
            numbers = [
                (each + below) % 2**bits - below if isinstance(each, int) else each
                for each in (value if field.repeated else (value,))
            ]
            found[field.name] = numbers if field.repeated else numbers[0]
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
