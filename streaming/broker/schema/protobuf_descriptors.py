"""The root message of a PROTOBUF_NATIVE schema, in its `FileDescriptorSet` (mirrors `ProtobufNativeSchemaUtils.deserialize`).

Of protobuf's messages, only the fields with names and with other messages are looked at.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

_FILE = 1
"""Of a set of files."""
_NAME, _PACKAGE, _DEPENDENCY, _MESSAGE = 1, 2, 3, 4
"""Of a file."""
_NESTED = 3
"""Of a message. Its name has the same number as that of a file."""

_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}
"""How the value of a field is encoded. The fixed ones have so many bytes."""


class ProtobufNativeSchemaData(msgspec.Struct):
    """The definition of a schema. `fileDescriptorSet` is in base64."""

    fileDescriptorSet: bytes
    rootMessageTypeName: str
    rootFileDescriptorName: str


def check_root_message(schema: ProtobufNativeSchemaData) -> None:
    """Raise `ValueError` if the set has not the root file with all that it imports, or this not the root message."""
    files = {_text(file, _NAME): file for file in _all(schema.fileDescriptorSet, _FILE)}
    waiting, imported = [schema.rootFileDescriptorName], set[str]()
    for name in waiting:
        if name not in files:
            raise ValueError(f"there is no file {name}")
        if name not in imported:
            imported.add(name)
            waiting += [each.decode() for each in _all(files[name], _DEPENDENCY)]
    root = files[schema.rootFileDescriptorName]
    # quirk: of a name without the package, a part is lost behind the first dot.
    path = schema.rootMessageTypeName.replace(_text(root, _PACKAGE), "", 1).replace(".", "", 1).split(".")
    found, kind = root, _MESSAGE
    for name in path:
        messages = (each for each in _all(found, kind) if _text(each, _NAME) == name)
        message = next(messages, None)
        if message is None or not name:
            raise ValueError(f"there is no message {schema.rootMessageTypeName}")
        found, kind = message, _NESTED


def _text(message: bytes, field: int) -> str:
    """A text of a message; empty if it is not there."""
    return next(islice(_all(message, field), 1), b"").decode()


def _all(message: bytes, field: int) -> Iterator[bytes]:
    """The values of a field of texts or messages. Raises `ValueError` for what is no message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        size, at = _varint(message, at) if kind == _BYTES else (_FIXED.get(kind, len(message)), at)
        end = at + size
        if end > len(message):
            raise ValueError("it is cut off")
        if (number, kind) == (field, _BYTES):
            yield message[at:end]
        at = end


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    found = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return found, at
    raise ValueError("it is cut off")
