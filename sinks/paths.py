"""The one way in which a name (a topic, a subscription: any text) becomes part of a path."""

import re
from hashlib import sha256
from urllib.parse import quote

_LONGEST = 200  # file systems allow 255 bytes; suffixes and extensions need some
_KEPT = 120
_CAPITAL = re.compile("%..|[A-Z]")


def escape(name: str) -> str:
    """One path component for `name`: lower-case ASCII letters, digits, ``_.-~`` and ``%`` with two hex digits, 1 to 200
    characters.

    Two names never share a path, on file systems that take capitals for small letters neither (for long names as far as
    SHA-256 can tell them apart). Never ``.`` or ``..``, never begins with ``.`` or ``_`` (which readers of data folders
    take for hidden). Not meant to be reversed: files keep their names inside.
    """
    escaped = _CAPITAL.sub(_small, quote(name, safe="", errors="surrogatepass"))
    if not escaped:
        return "%"  # a % otherwise always has two hex digits after it, or an h
    if escaped[0] in "._":
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    if len(escaped) > _LONGEST:
        escaped = f"{escaped[:_KEPT]}%h{sha256(name.encode(errors='surrogatepass')).hexdigest()}"
    return escaped


def _small(match: re.Match[str]) -> str:
    found = match[0]
    return found if len(found) > 1 else f"%{ord(found):02X}"
