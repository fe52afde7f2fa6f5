r"""Java's properties, as ``broker.conf`` and ``standalone.conf`` have them, and as `pulsar-admin brokers get-runtime-config` prints them.

A line is a name and a value, with ``=``, ``:`` or spaces between them. ``#`` and ``!`` begin comments. A ``\`` at the end continues the
line. If a name occurs twice, the last one counts. Values may be passwords: nothing here puts one into a text for people.
"""

import re
from typing import NamedTuple

_NAME = re.compile(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_MEANT = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_COMMENT = ("#", "!")

FROM_ENVIRONMENT = "PULSAR_PREFIX_"
"""Begins the names of environment variables from which Pulsar's images make settings."""

SETTING = re.compile(r"[A-Za-z]\w{0,99}")
"""What may be the name of a setting, and not a piece of something else."""


class Property(NamedTuple):
    """A setting, and the line on which it begins, from 1. `separated`: something stands between name and value."""

    name: str
    value: str
    line: int
    separated: bool


def read_properties(text: str) -> list[Property]:
    """The settings in a text, in its order."""
    found: list[Property] = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        first, line = number, lines[number].rstrip("\r").lstrip()
        number += 1
        if not line or line.startswith(_COMMENT):
            continue
        parts = [line]
        while _continues(parts[-1]) and number < len(lines):
            parts[-1] = parts[-1][:-1]
            parts.append(lines[number].rstrip("\r").lstrip())
            number += 1
        if _continues(parts[-1]):
            parts[-1] = parts[-1][:-1]
        whole = "".join(parts)
        match = _NAME.match(whole)
        assert match is not None
        name = _unescaped(match[1]).removeprefix(FROM_ENVIRONMENT)
        value = _unescaped(whole[match.end() :])
        found.append(Property(name, value, first + 1, separated=match.end() > match.end(1)))
    return found


def _continues(line: str) -> bool:
    r"""Whether a line ends in a ``\`` that is not escaped itself."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    def meant(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _MEANT.get(escape, escape)

    return _ESCAPED.sub(meant, text) if "\\" in text else text
