"""The one way in which a name (a topic, a subscription: any text) becomes part of a path."""

from hashlib import sha256
from urllib.parse import quote

_LONGEST = 200  # file systems allow 255 bytes; suffixes and extensions need some
_KEPT = 120


def escape(name: str) -> str:
    """One path component for `name`: ASCII letters, digits and ``_.-~%``, 1 to 200 characters.

    Injective (for long names as far as SHA-256 is), never ``.`` or ``..``, never begins with ``.`` or ``_`` (which
    readers of data folders take for hidden). Not meant to be reversed: files keep their names inside.
    """
    escaped = quote(name, safe="", errors="surrogatepass")
    if not escaped:
        return "%"  # a % otherwise always has two hex digits after it, or an h
    if escaped[0] in "._":
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    if len(escaped) > _LONGEST:
        escaped = f"{escaped[:_KEPT]}%h{sha256(name.encode(errors='surrogatepass')).hexdigest()}"
    return escaped
