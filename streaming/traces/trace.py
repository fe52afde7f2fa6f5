"""A trace file: JSON Lines, a header and then what a proxy saw between clients and a real broker, in order."""

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FORMAT = 1


class TraceError(ValueError):
    """A file that is no trace, or of a format this version doesn't read."""


class Trace(NamedTuple):
    """`header`: scenario, broker_config, …; `records`: frames, admin calls, notes, snapshots."""

    header: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return str(self.header["scenario"])


def trace_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The trace files among `paths`, folders searched. Raises `TraceError` for a path that holds none."""
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files or not all(file.is_file() for file in files):
            raise TraceError(f"{path}: no trace there (expected a .jsonl file or a folder of them)")
        yield from files


def read_trace(path: Path) -> Trace:
    """Read a trace. Raises `TraceError` naming the file and line."""
    parsed = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                parsed.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise TraceError(f"{path}:{number}: not JSON: {error}") from None
    if not parsed or parsed[0].get("format") != FORMAT:
        raise TraceError(f"{path}: not a trace of format {FORMAT}")
    return Trace(parsed[0], parsed[1:])


def payload_of(record: dict[str, Any]) -> bytes:
    """The payload of a SEND or MESSAGE record."""
    if "payload_repeat" in record:
        byte, count = record["payload_repeat"]
        return bytes([byte]) * int(count)
    return base64.b64decode(record.get("payload", ""))
