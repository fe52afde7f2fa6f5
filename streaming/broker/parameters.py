"""Parameters in the path and the query of an admin call, as Pulsar reads them (mirrors what Jersey does before Pulsar's resources)."""

import re
from urllib.parse import parse_qsl, urlsplit

from streaming.broker.errors import AdminError


def query(path: str) -> dict[str, str]:
    """The query parameters of a path. One that is given twice has its first value; one without a value is not there."""
    return dict(reversed(parse_qsl(urlsplit(path).query)))


def flag(path: str, name: str, *, default: bool = False) -> bool:
    """A query parameter that is true or false. Any text but ``true``, in capital letters or not, is false, as in Java."""
    given = query(path).get(name)
    return default if given is None or _BLANK.fullmatch(given) else given.lower() == "true"


INT, LONG = 32, 64
"""The types of numbers that parameters have: their bits."""

_NUMBER = re.compile(r"([+-]?)0*(\d{0,19})")
_BLANK = re.compile(r"[\x00-\x20]*")


def read_number(text: str, bits: int, *, boxed: bool = False) -> int:
    """A parameter as Java reads an `INT` or a `LONG`. quirk: a blank one is 0, unless its type is `boxed`: ``Integer``. Raises
    `AdminError` (404) for any other text."""
    if not boxed and _BLANK.fullmatch(text):
        return 0
    match = _NUMBER.fullmatch(text)
    if match is not None and text[-1:].isdecimal():
        found = int(match[1] + (match[2] or "0"))
        if -(1 << bits - 1) <= found < 1 << bits - 1:
            return found
    raise AdminError(404, f"{text[:_SHOWN]!r} is not a {bits}-bit integer")


_SHOWN = 30
