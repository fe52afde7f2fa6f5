"""A trace file: JSON Lines with a header, then what a proxy saw between clients and a real broker, in order."""

import base64
import hashlib
import json
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from schemas.lines import LONGEST_LINE, why_unreadable
from sinks.small_files import in_utf8
from streaming.protocol.codec import Frame

FORMAT = 1


class TraceError(ValueError):
    """A file is not a trace, or has a format that this version does not read."""


class Trace(NamedTuple):
    """`header`: scenario, broker_config, …; `records`: frames, admin calls, notes, snapshots.

    A trace is `gated` if clients sent a frame only when the broker had answered all frames before and was idle. In a trace that
    is not, the broker may have done some things in another order than that in which a proxy saw them asked for.
    """

    header: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """The scenario's name, from the header."""
        return str(self.header["scenario"])

    @property
    def gated(self) -> bool:
        """See `Trace`."""
        return bool(self.header.get("gated", True))


def trace_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The trace files among `paths`, folders searched. Raises `TraceError` for a path that holds none."""
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files or not all(file.is_file() for file in files):
            raise TraceError(f"{path}: no trace found (expected a .jsonl file or a folder of them)")
        yield from files


def read_trace(path: Path) -> Trace:
    """Read a trace. Raises `TraceError` naming the file and line.

    The last line of a trace that is not gated may be cut off: its recorder was killed.
    """
    parsed: list[dict[str, Any]] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        if (why := why_unreadable(line)) is not None:
            raise TraceError(f"{path}:{number}: {why}")
        try:
            value = json.loads(line.decode())  # json would guess the encoding of bytes
        except ValueError as error:
            if parsed and parsed[0].get("gated") is False and not line.endswith(b"\n"):
                break
            raise TraceError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise TraceError(
                f"{path}:{number}: expected an object, found {line.strip()[:40].decode(errors='replace')}"
            )
        if parsed and (missing := _missing(value)) is not None:
            raise TraceError(f"{path}:{number}: {missing}")
        parsed.append(value)
    if not parsed or parsed[0].get("format") != FORMAT:
        what = (
            "a log of commands, not a trace: magnetar replay takes it"
            if parsed and "value" in parsed[0]
            else f"not a trace of format {FORMAT}"
        )
        raise TraceError(f"{path}: {what}")
    if not isinstance(parsed[0].get("broker_config"), dict):
        raise TraceError(f"{path}: the header has no broker_config")
    header = {"scenario": path.stem, **parsed[0]}
    return Trace(header, _answered(parsed[1:]))


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, one after the other: a file may be longer than what fits into memory."""
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if number == 1 and line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                    line += file.read(LONGEST_LINE)
                if len(line) > LONGEST_LINE:
                    raise TraceError(
                        f"{path}:{number}: more than {LONGEST_LINE >> 20} MiB: name another file"
                    )
                yield from BytesIO(in_utf8(line)) if number == 1 else (line,)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None


def _answered(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with each answer in the record of its admin call, which stands where the call was issued."""
    calls = {record["call"]: record for record in records if record["dir"] == "admin" and "call" in record}
    for record in records:
        if record["dir"] == "answer" and record["call"] in calls:
            calls[record["call"]].update(
                {key: value for key, value in record.items() if key not in ("t", "dir")}
            )
    return [record for record in records if record["dir"] != "answer"]


FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "in": {"conn": int, "cmd": str},
    "out": {"conn": int, "cmd": str},
    "admin": {"method": str, "path": str},
    "note": {},
    "stats": {"topic": str},
    "answer": {"call": int, "status": int},
}
"""The fields of a record besides `t`, by its `dir`."""

OF_MESSAGES: dict[str, type | tuple[type, ...]] = {"metadata": dict, "entry_size": int}
"""The further fields of SEND and MESSAGE."""


def _missing(record: dict[str, Any]) -> str | None:
    """What is missing from a record or has the wrong type; None if the record can be replayed."""
    kind = record.get("dir")
    if not isinstance(kind, str) or kind not in FIELDS:
        return f"dir {kind!r}: expected one of {', '.join(FIELDS)}"
    wanted: dict[str, type | tuple[type, ...]] = {"t": (int, float), **FIELDS[kind]}
    if kind == "admin" and not isinstance(record.get("call"), int):
        wanted["status"] = int
    if kind in ("in", "out"):
        if not isinstance(record.get("fields", {}), dict):
            return "fields is not an object"
        if str(record.get("cmd")) in ("SEND", "MESSAGE"):
            wanted |= OF_MESSAGES
    if str(record.get("event")) in ("backlog_quota_check", "message_expiry_check"):
        wanted |= {"ms": (int, float)}
    for name, type_ in wanted.items():
        if not isinstance(record.get(name), type_):
            return f"a record of {kind} without {name}, or with another type"
    return None


Payloads = Literal["keep", "hash", "drop"]
"""What a recording has of payloads: their bytes, their SHA-256 and size, or their size."""

LARGE = 1000
"""Bytes from which on a payload of a single repeated byte is recorded as such."""


def frame_record(frame: Frame, payloads: Payloads = "keep") -> dict[str, Any]:
    """The record of a frame, without time, connection and direction."""
    found: dict[str, Any] = {"cmd": frame.cmd, "fields": msgspec.to_builtins(frame.fields)}
    payload = frame.payload
    if payload is None:
        return found
    found |= {"metadata": msgspec.to_builtins(frame.metadata), "entry_size": frame.entry_size}
    if payloads == "drop":
        found["payload_repeat"] = [0, len(payload)]
    elif len(payload) >= LARGE and payload.count(payload[:1]) == len(payload):
        found["payload_repeat"] = [payload[0], len(payload)]
    elif payloads == "hash":
        found["payload_sha256"] = [hashlib.sha256(payload).hexdigest(), len(payload)]
    else:
        found["payload"] = base64.b64encode(payload).decode()
    return found


def payload_of(record: dict[str, Any]) -> bytes:
    """The payload of a SEND or MESSAGE record. Of a hashed one, bytes of its size that depend on the hash alone."""
    if "payload_repeat" in record:
        byte, count = record["payload_repeat"]
        return bytes([byte]) * int(count)
    if "payload_sha256" in record:
        digest, count = bytes.fromhex(record["payload_sha256"][0]), int(record["payload_sha256"][1])
        return (digest * (count // len(digest) + 1))[:count]
    return base64.b64decode(record.get("payload", ""))
