"""A trace file: JSON Lines with a header, then what a proxy saw between clients and a real broker, in order."""

import base64
import hashlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from schemas.lines import LONGEST_LINE, why_unreadable
from sinks.small_files import in_utf8
from streaming.protocol.codec import Frame, FrameError, check

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
            value = msgspec.json.decode(line.decode())
        except ValueError as error:
            if parsed and parsed[0].get("gated") is False and not line.endswith(b"\n"):
                break
            raise TraceError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise TraceError(
                f"{path}:{number}: expected an object, found {line.strip()[:40].decode(errors='replace')}"
            )
        if parsed and (mistake := _mistake(value)) is not None:
            raise TraceError(f"{path}:{number}: {mistake}")
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
    try:
        msgspec.convert(parsed[0], _Header)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: the header: {error}") from None
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
            answer: dict[str, Any] = {
                key: record[key] for key in ("status", "headers", "response") if key in record
            }
            calls[record["call"]].update(answer)
    return [record for record in records if record["dir"] != "answer"]


_Time = Annotated[int, Meta(ge=0, le=2**53)] | Annotated[float, Meta(ge=0, le=2**53)]
_Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Interval = Annotated[str, Meta(pattern="^-?[0-9]{1,9}$")] | Annotated[int, Meta(ge=-(10**9), le=10**9)]
_LONGEST_WAIT = 60 * 60 * 1000
"""The ms that a note of a periodic check may tell of: Magnetar makes each check that was due in it."""


class _Config(msgspec.Struct):
    """The settings that a session computes with; the broker judges all."""

    backlogQuotaCheckIntervalInSeconds: _Interval = 0
    messageExpiryCheckIntervalInMinutes: _Interval = 0


class _Header(msgspec.Struct):
    broker_config: _Config
    scenario: str = ""
    pulsar_version: Annotated[str, Meta(max_length=100)] = ""
    gated: bool = True


class _Record(msgspec.Struct):
    t: _Time


class _Frame(_Record):
    conn: int
    cmd: str
    fields: dict[str, Any] = {}
    metadata: dict[str, Any] | None = None
    payload: bytes = b""
    payload_repeat: tuple[Annotated[int, Meta(ge=0, le=255)], _Number] | UnsetType = UNSET
    payload_sha256: tuple[Annotated[str, Meta(pattern="^[0-9a-f]{64}$")], _Number] | UnsetType = UNSET
    intact: bool = True


class _Message(_Frame, kw_only=True):
    metadata: dict[str, Any]
    entry_size: _Number


class _Call(_Record, kw_only=True):
    method: str
    path: str
    call: int | UnsetType = UNSET
    status: _Number | UnsetType = UNSET
    headers: dict[str, str] | None = None


class _CallWithAnswer(_Call, kw_only=True):
    status: _Number


class _Answer(_Record):
    call: int
    status: _Number
    headers: dict[str, str] | None = None


class _Note(_Record):
    step: str = ""
    event: str = ""


class _Check(_Note, kw_only=True):
    ms: Annotated[int, Meta(ge=0, le=_LONGEST_WAIT)] | Annotated[float, Meta(ge=0, le=_LONGEST_WAIT)]


class _Snapshot(_Record):
    topic: str
    stats: dict[str, Any] = {}


_KINDS: dict[str, type[_Record]] = {
    "in": _Frame, "out": _Frame, "admin": _Call, "note": _Note, "stats": _Snapshot, "answer": _Answer,
}  # fmt: skip
"""What a record must have, by its `dir`. What nobody computes with may have any type."""

_OF_PROXIES = ("_TCP_OPEN", "_TCP_CLOSE")
"""What a proxy notes like a frame, and is none."""


def _mistake(record: dict[str, Any]) -> str | None:
    """What is missing from a record or has the wrong type; None if the record can be replayed."""
    kind = record.get("dir")
    if not isinstance(kind, str) or kind not in _KINDS:
        return f"dir {kind!r}: expected one of {', '.join(_KINDS)}"
    wanted = _KINDS[kind]
    if wanted is _Frame and ("metadata" in record or record.get("cmd") in ("SEND", "MESSAGE")):
        wanted = _Message
    elif wanted is _Call and "call" not in record:
        wanted = _CallWithAnswer
    elif wanted is _Note and record.get("event") in ("backlog_quota_check", "message_expiry_check"):
        wanted = _Check
    try:
        found = msgspec.convert(record, wanted)
        if isinstance(found, _Frame) and (found.fields or found.cmd not in _OF_PROXIES):
            check(Frame("", found.cmd, found.fields, found.metadata))
    except (msgspec.ValidationError, FrameError) as error:
        return f"a record of {kind}: {error}"
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
