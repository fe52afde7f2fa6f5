"""The files that have command logs, by their names, and which lines readers of logs and traces take. What writes asks here, so that nobody
writes what nobody reads."""

from schemas.commands.nesting import DEEPEST, is_deep

JSON_LINES = (".jsonl", ".jsonl.gz")
LOGS = (*JSON_LINES, ".parquet")
"""How the names of command logs end."""

LONGEST_LINE = 64 << 20
"""Bytes, with the line's end."""


class Unreadable(ValueError):
    """No reader takes a line. The text says why."""


def why_unreadable(line: bytes) -> str | None:
    """Why no reader takes a line of JSON; None if they do."""
    if len(line) > LONGEST_LINE:
        return f"more than {LONGEST_LINE >> 20} MiB"
    if is_deep(line):
        return f"arrays and objects are nested more than {DEEPEST} deep"
    return None


def readable(line: bytes) -> bytes:
    """The line. Raises `Unreadable`."""
    if (why := why_unreadable(line)) is not None:
        raise Unreadable(f"no reader takes its line: {why}")
    return line
