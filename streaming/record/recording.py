"""A trace as it is being recorded: a line is with the operating system before its frame goes on."""

import itertools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from schemas.lines import why_unreadable
from sinks.outputs import name_full
from streaming.broker.admin.namespace_policies import without_secrets
from streaming.protocol.codec import Frame
from streaming.protocol.requests import Requests
from streaming.runtime.clock import RealClock
from streaming.traces.trace import FORMAT, Payloads, frame_record
from streaming.traces.ungated import UNRECORDED, Unrecorded

TRACE, COMMANDS = "trace.jsonl", "commands.jsonl"
"""The files of a recording."""


class RecordingExists(RuntimeError):
    """There is a recording already. The text says where and what to do."""


class Recording:
    """The trace of a recording in `folder`. It survives the end of the process, however it ends. Closes with its `with` block.

    `failed`: the error with which a line could not be written. Nothing is recorded from then on. Entering it raises `RecordingExists`
    and OSError.
    """

    def __init__(
        self, folder: Path, header: dict[str, Any], payloads: Payloads, clock: RealClock | None = None
    ) -> None:
        """`header`: what is known of the broker."""
        self.path = folder / TRACE
        self.failed: OSError | None = None
        self._payloads = payloads
        self._header = {
            "format": FORMAT, "scenario": folder.resolve().name, "area": "recording", "gated": False, "stable_order": "per-stream",
            "payloads": payloads, "broker_config": {}, **header,
        }  # fmt: skip
        self._calls = itertools.count()
        self._clock = clock or RealClock()
        self._requests: dict[int, Requests] = defaultdict(Requests)
        """By connection."""

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = self.path.open("xb", buffering=0)
        except FileExistsError:
            raise RecordingExists(f"{self.path} already exists: choose another folder") from None
        self._write(self._header)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._file.close()

    def frame(self, connection: int, direction: str, frame: Frame) -> None:
        """A frame goes `in` to the broker or `out` to its client. One that is too large for a line is noted as not recorded."""
        record = frame_record(frame, self._payloads)
        if not frame.intact:
            record["intact"] = False
        for name in _SECRETS & record["fields"].keys():
            del record["fields"][name]
        topic, now = self._requests[connection].topic(frame), self.now()
        self._write(
            {"t": now, "conn": connection, "dir": direction, **record},
            lambda: {"t": now, **_unrecorded("large", topic, now, 1)},
        )

    def closed(self, connection: int, direction: str) -> None:
        """A connection is closed, by its client (`in`) or the broker (`out`)."""
        self._requests.pop(connection, None)
        self.note(conn=connection, dir=direction, cmd="_TCP_CLOSE", fields={})

    def call(self, method: str, path: str, body: Any) -> int:
        """An admin call is issued. Returns its number. Passwords in the policies of a namespace are left out, and so is a body that no reader
        of the trace would take."""
        number = next(self._calls)
        more = {} if body is None else {"body": without_secrets(body)}
        record = {"t": self.now(), "dir": "admin", "call": number, "method": method, "path": path}
        self._write({**record, **more}, lambda: record)
        return number

    def answer(self, call: int, status: int, **more: Any) -> None:
        """An admin call is answered. `more`: `response` and `headers`, as in a trace. A response that no reader of the trace would take is
        left out."""
        if self._payloads != "keep" and "headers" in more:  # a message
            more.pop("response", None)
        if "response" in more:
            more["response"] = without_secrets(more["response"])
        record = {"t": self.now(), "dir": "answer", "call": call, "status": status}
        without = {name: value for name, value in more.items() if name != "response"}
        self._write({**record, **more}, lambda: {**record, **without})

    def not_recorded(self, what: Unrecorded, topic: str | None, since: int, count: int) -> None:
        """Note so many messages or calls that passed and are not in the recording, on a topic since a time (ms)."""
        if count:
            self.note(**_unrecorded(what, topic, since, count))

    def note(self, **record: Any) -> None:
        """Write a record, with the time."""
        self._write({"t": self.now(), **record})

    def now(self) -> int:
        """The time (ms) of a record that is written now."""
        return self._clock.now()

    def _write(self, record: dict[str, Any], shorter: Callable[[], dict[str, Any]] | None = None) -> None:
        """`shorter`: makes what takes the record's place if no reader of the trace would take it."""
        if self.failed is not None:
            return
        whole = msgspec.json.encode(record) + b"\n"
        if shorter is not None and why_unreadable(whole) is not None:
            whole = msgspec.json.encode(shorter()) + b"\n"
        line = memoryview(whole)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            name_full(error, self.path)
            self.failed = error


_SECRETS = {"auth_data", "original_auth_data", "original_principal"}
"""Fields of CONNECT that no recording has."""


def _unrecorded(what: Unrecorded, topic: str | None, since: int, count: int) -> dict[str, Any]:
    return {"dir": "note", "event": UNRECORDED, "what": what, "topic": topic, "since": since, "count": count}
