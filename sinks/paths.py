"""Turns a name (of a topic, a subscription, any text) into a part of a path."""

import re
from hashlib import sha256
from urllib.parse import quote

_LONGEST = 200  # file systems allow 255 bytes, including suffixes and extensions
_KEPT = 120
_CAPITAL = re.compile("%..|[A-Z]")


def escape(name: str) -> str:
    """A path component for `name`: 1 to 200 lower-case ASCII letters, digits, ``_.-~``, and ``%`` with two hex digits.

    Different names get different paths, also on case-insensitive file systems (long names unless their SHA-256 collides).
    The result is never ``.`` or ``..`` and never starts with ``.`` or ``_``, which readers of data folders treat as hidden.
    It is not reversible: files contain their names.
    """
    escaped = _CAPITAL.sub(_small, quote(name, safe="", errors="surrogatepass"))
    if not escaped:
        return "%"  # unambiguous: any other % is followed by two hex digits or an h
    if escaped[0] in "._":
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    if len(escaped) > _LONGEST:
        escaped = f"{escaped[:_KEPT]}%h{sha256(name.encode(errors='surrogatepass')).hexdigest()}"
    return escaped


def _small(match: re.Match[str]) -> str:
    found = match[0]
    return found if len(found) > 1 else f"%{ord(found):02X}"
