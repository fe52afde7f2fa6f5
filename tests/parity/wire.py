"""The part of Pulsar's binary protocol that the scenarios use: frames on a socket ↔ records of a trace.

A frame is ``total size | command size | command`` and, for SEND and MESSAGE, ``0e01 | CRC32C | metadata size | metadata |
payload`` (sizes are 4 bytes, big-endian). Command and metadata are protobuf, described by the tables in `messages`, which
is too little to need a protobuf library. Fields are as in a trace: only those on the wire, enums by name, bytes in
base64.
"""

import base64
import struct
from typing import Any, NamedTuple

from crc32c import crc32c

from tests.parity.messages import COMMANDS, ENUMS, PARTS


class WireError(ValueError):
    """The tables do not describe a frame. The message names the part."""


class _Field(NamedTuple):
    number: int
    name: str
    type: str
    repeated: bool


def _fields(text: str) -> list[_Field]:
    found = [field.split() for field in text.split(", ") if field]
    return [_Field(int(number), name, kind.rstrip("*"), kind.endswith("*")) for number, name, kind in found]


_TYPES = {name: _fields(text) for name, text in PARTS.items()}
_TYPES |= {name: _fields(text) for name, (_, text) in COMMANDS.items()}
_NAMES = {number: name for name, (number, _) in COMMANDS.items()}
_MAGIC = b"\x0e\x01"
_LARGE = 1000
"""Bytes from which on a payload of a single repeated byte is recorded as such."""


def encode(
    command: str, fields: dict[str, Any], metadata: dict[str, Any] | None = None, payload: bytes = b""
) -> bytes:
    """Encode a frame or, with `metadata`, one with a message. Raises `WireError` for anything that is not in the tables."""
    number = COMMANDS[command][0]
    body = _key(1, 0) + _varint(number) + _sized(number, _message(command, fields))
    tail = b""
    if metadata is not None:
        content = _message("Metadata", metadata)
        content = struct.pack(">I", len(content)) + content + payload
        tail = _MAGIC + struct.pack(">I", crc32c(content)) + content
    return struct.pack(">II", 4 + len(body) + len(tail), len(body)) + body + tail


def batch(metadata: list[dict[str, Any]], payloads: list[bytes]) -> bytes:
    """The payload of an uncompressed batch: each message with the metadata of its own."""
    singles = [
        _message("SingleMetadata", {**each, "payload_size": len(payload)})
        for each, payload in zip(metadata, payloads, strict=True)
    ]
    return b"".join(
        struct.pack(">I", len(single)) + single + payload
        for single, payload in zip(singles, payloads, strict=True)
    )


def decode(frame: bytes) -> dict[str, Any]:
    """Decode a frame without its total size to `cmd`, `fields` and, for messages, `metadata`, `payload` (or `payload_repeat`) and
    `entry_size`.

    Raises:
        WireError: a command or field is not in the tables, or a message is malformed.
    """
    size = int.from_bytes(frame[:4])
    parts = dict(_split(frame[4 : 4 + size]))
    name = _NAMES.get(parts[1])
    if name is None:
        raise WireError(f"command {parts[1]} is in no table")
    found: dict[str, Any] = {"cmd": name, "fields": _read(name, parts[parts[1]])}
    if tail := frame[4 + size :]:
        if tail[:2] != _MAGIC:
            raise WireError(f"{name}: expected a checksum, found {tail[:2].hex()}")
        end = 10 + int.from_bytes(tail[6:10])
        found["metadata"], found["entry_size"] = _read("Metadata", tail[10:end]), len(tail)
        found |= _payload(tail[end:])
    return found


def _payload(payload: bytes) -> dict[str, Any]:
    if len(payload) >= _LARGE and payload.count(payload[:1]) == len(payload):
        return {"payload_repeat": [payload[0], len(payload)]}
    return {"payload": base64.b64encode(payload).decode()}


def _message(name: str, fields: dict[str, Any]) -> bytes:
    if unknown := fields.keys() - {field.name for field in _TYPES[name]}:
        raise WireError(f"{name}: {', '.join(sorted(unknown))}: in no table")
    there = [field for field in _TYPES[name] if field.name in fields]
    return b"".join(
        _value(field, value)
        for field in there
        for value in (fields[field.name] if field.repeated else [fields[field.name]])
    )


def _value(field: _Field, value: Any) -> bytes:
    match field.type:
        case "str":
            return _sized(field.number, value.encode())
        case "bytes":
            return _sized(field.number, base64.b64decode(value))
        case kind if kind in _TYPES:
            return _sized(field.number, _message(kind, value))
        case kind if kind in ENUMS:
            value = ENUMS[kind].index(value)
    return _key(field.number, 0) + _varint(value % 2**64)


def _read(name: str, data: bytes) -> dict[str, Any]:
    fields, found = {field.number: field for field in _TYPES[name]}, dict[str, Any]()
    for number, raw in _split(data):
        if (field := fields.get(number)) is None:
            raise WireError(f"{name}: its field {number} is in no table")
        value = _plain(field.type, raw)
        if field.repeated:
            found.setdefault(field.name, []).append(value)
        else:
            found[field.name] = value
    return found


def _plain(kind: str, raw: Any) -> Any:
    match kind:
        case "str":
            return raw.decode()
        case "bytes":
            return base64.b64encode(raw).decode()
        case "bool":
            return bool(raw)
        case "i32" | "i64":
            return raw - 2**64 if raw >= 2**63 else raw
        case _ if kind in _TYPES:
            return _read(kind, raw)
        case _ if kind in ENUMS:
            return ENUMS[kind][raw]
    return raw


def _split(data: bytes) -> list[tuple[int, Any]]:
    """The field numbers, each with its varint or its bytes."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        key, at = _varint_at(data, at)
        value, at = _varint_at(data, at)
        if key & 7 == 2:
            found.append((key >> 3, data[at : at + value]))
            at += value
        elif key & 7 == 0:
            found.append((key >> 3, value))
        else:
            raise WireError(f"wire type {key & 7}: none of Pulsar's commands has it")
    return found


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _sized(number: int, data: bytes) -> bytes:
    return _key(number, 2) + _varint(len(data)) + data
