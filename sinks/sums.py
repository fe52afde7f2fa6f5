"""Checksums. In text: an object in JSON whose last field, ``crc32``, is the checksum of all that comes before it. Of bytes: before them."""

import re
from zlib import crc32

SUM = re.compile(rb',"crc32":"([0-9a-f]{8})"\}')
"""The end of a text with a checksum."""


_LENGTH = len(b',"crc32":"01234567"}')


def sealed(text: bytes, start: int = 0) -> bytes:
    """An object in JSON, which has fields, with its checksum. `start`: the checksum of what comes before it."""
    body = text[:-1]
    return body + b',"crc32":"%08x"}' % crc32(body, start)


def is_whole(text: bytes) -> bool:
    """Whether the checksum of an object in JSON is right. One without a checksum is of an earlier version."""
    text = text.rstrip(b"\n")
    return sum_of(text) is not None or b"crc32" not in text[-_LENGTH:]


def sum_of(text: bytes, start: int = 0) -> int | None:
    """The checksum of an object in JSON. None: it has none, or a wrong one. `start`: as for `sealed`."""
    found = SUM.search(text, max(0, len(text) - _LENGTH))
    if found is None or found.end() != len(text):
        return None
    given = int(found[1], 16)
    return given if given == crc32(text[: found.start()], start) else None


_DIGITS = 8


def summed(data: bytes) -> bytes:
    """Bytes after their checksum."""
    return b"%08x" % crc32(data) + data


def unsummed(found: bytes) -> bytes | None:
    """What `summed` got. None: the checksum is wrong."""
    data = found[_DIGITS:]
    return data if summed(data) == found else None
