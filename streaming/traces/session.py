"""One trace fed to the core: recorded frames become commands, recorded answers meet ours.

Recorded ledger ids aren't ours, so a bijection grows as answers are matched, stream by stream: a receipt or a message
that Pulsar sent stands beside the one that Magnetar sent in the same place.
"""

import base64
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from streaming.broker.admin import topic_of
from streaming.broker.broker import Broker
from streaming.broker.effects import Message, Row, SendReceipt
from streaming.broker.entries import NoEntries
from streaming.broker.position import MAX
from streaming.traces.trace import Trace, payload_of

HANDSHAKE = frozenset({"CONNECT", "PARTITIONED_METADATA", "LOOKUP", "GET_OR_CREATE_SCHEMA", "GET_SCHEMA",
                       "GET_TOPICS_OF_NAMESPACE", "PING", "PONG"})  # fmt: skip
"""Frames that a gateway answers by itself, before any topic is concerned."""

TIMED_CHECKS = {
    "backlogQuotaCheckIntervalInSeconds": ("backlogQuota", "backlog_quota_check", 1000),
    "messageExpiryCheckIntervalInMinutes": ("messageExpiry", "message_expiry_check", 60_000),
}
"""Settings whose periodic check a trace marks with a note, since its phase isn't known: check, note, ms a unit."""

Stream = tuple[str, str, int]
"""(connection, "p" or "c", producer or consumer id)."""


class Command(NamedTuple):
    """A record of the log to be: `timestamp` in ms, `value` the command as JSON."""

    timestamp: int
    topic: str | None
    value: dict[str, Any]


class Session:
    """Feeds a trace to a broker of its own. `connection_prefix` keeps connections of several traces apart."""

    def __init__(self, trace: Trace, *, connection_prefix: str = "") -> None:
        self.trace = trace
        self.broker = Broker(0, NoEntries())
        self.skipped: dict[str, int] = defaultdict(int)
        self._prefix = connection_prefix
        self._offset = -1
        self._topics: dict[Stream, str] = {}
        self._ledgers: dict[tuple[str, int], int] = {}
        self._receipts: dict[Stream, list[list[int | None]]] = defaultdict(list)
        self._messages: dict[Stream, list[list[int | None]]] = defaultdict(list)
        self._seen: dict[Stream, int] = defaultdict(int)

    def commands(self) -> Iterator[tuple[Command, list[Row], dict[str, Any] | None]]:
        """Each command, what our broker answered to it, and the trace's record it was made of (None: made up)."""
        start = int(self.trace.records[0]["t"]) if self.trace.records else 0
        settings = {**self.trace.header["broker_config"], **dict.fromkeys(TIMED_CHECKS, 0)}
        yield self._feed(
            Command(start, None, {"command": "BROKER_CONFIG", "profile": "4.x", "settings": settings}), None
        )
        for record in self.trace.records:
            for command in self._commands_of(record):
                yield self._feed(command, record)
            if record["dir"] == "out":
                self._match(record)

    def _feed(
        self, command: Command, record: dict[str, Any] | None
    ) -> tuple[Command, list[Row], dict[str, Any] | None]:
        self._offset += 1
        self.broker.apply(self._offset, command.timestamp, command.topic, json.dumps(command.value).encode())
        rows = self.broker.take()
        for row in rows:
            effect = row.effect
            if isinstance(effect, SendReceipt) and effect.producer_id is not None:
                self._ours(self._receipts, (effect.connection, "p", effect.producer_id), effect.ledger_id)
            elif isinstance(effect, Message):
                self._ours(self._messages, (effect.connection, "c", effect.consumer_id), effect.ledger_id)
        return command, rows, record

    # -- the bijection of ledger ids ------------------------------------------------------------------------------

    def _ours(self, streams: dict[Stream, list[list[int | None]]], stream: Stream, ledger: int) -> None:
        streams[stream].append([ledger])

    def _match(self, record: dict[str, Any]) -> None:
        fields = record.get("fields", {})
        if record["cmd"] == "SEND_RECEIPT":
            stream, streams = (self._connection(record), "p", fields["producer_id"]), self._receipts
        elif record["cmd"] == "MESSAGE":
            stream, streams = (self._connection(record), "c", fields["consumer_id"]), self._messages
        else:
            return
        index = self._seen[stream]
        self._seen[stream] += 1
        recorded = fields["message_id"]["ledgerId"]
        if index < len(streams[stream]) and 0 <= recorded <= MAX:
            ours = streams[stream][index][0]
            if ours is not None and ours >= 0 and stream in self._topics:
                self._ledgers.setdefault((self._topics[stream], recorded), ours)

    def ledger(self, topic: str, recorded: int) -> int:
        """Our id of a recorded ledger; special values and unknown ones as they are."""
        return self._ledgers.get((topic, recorded), recorded)

    # -- frames and calls to commands -----------------------------------------------------------------------------

    def _connection(self, record: dict[str, Any]) -> str:
        return f"{self._prefix}{record['conn']}"

    def _commands_of(self, record: dict[str, Any]) -> Iterator[Command]:
        time = int(record["t"])
        kind = record["dir"]
        if kind == "in":
            command = self._frame(record)
            if command is not None:
                yield Command(time, *command)
        elif kind == "admin":
            topic = topic_of(record["path"])
            path, body = self._admin_ids(topic, record["path"], record.get("body"))
            value = {"command": "ADMIN", "method": record["method"], "path": path}
            yield Command(time, topic, value if body is None else {**value, "body": body})
        elif kind == "note":
            yield from self._note(record, time)
        elif kind == "stats":
            yield Command(time, None, {"command": "TICK"})

    def _note(self, record: dict[str, Any], time: int) -> Iterator[Command]:
        if record.get("event") == "broker_restart" and record["phase"] == "started":
            for topic in self.broker.topic_names():
                path = "/" + topic.replace("://", "/") + "/unload"
                yield Command(time, topic, {"command": "ADMIN", "method": "PUT", "path": path})
        if "step" in record:
            yield Command(time, None, {"command": "TICK"})
        for setting, (check, note, unit) in TIMED_CHECKS.items():
            if record.get("event") == note:
                interval = int(float(self.trace.header["broker_config"][setting]) * unit)
                for due in range(time + min(interval, record["ms"]), time + record["ms"] + 1, interval):
                    yield Command(due, None, {"command": "RUN_CHECK", "check": check})

    def _frame(self, record: dict[str, Any]) -> tuple[str | None, dict[str, Any]] | None:
        name, connection = record["cmd"], self._connection(record)
        if name == "_TCP_CLOSE":
            return None, {"command": "CONNECTION_LOST", "connection": connection}
        if name == "_TCP_OPEN" or name in HANDSHAKE:
            self.skipped[name] += name != "_TCP_OPEN"
            return None
        fields = dict(record.get("fields", {}))
        topic = fields.pop("topic", None)
        stream = (
            (connection, "p", fields["producer_id"])
            if "producer_id" in fields
            else (connection, "c", fields["consumer_id"])
        )
        if topic is None:
            topic = self._topics.get(stream)
        else:
            self._topics[stream] = topic
            self._seen[stream] = 0
            self._receipts.pop(stream, None)
            self._messages.pop(stream, None)
        value = {"command": name, "connection": connection, **fields}
        if name == "SEND":
            value["metadata"] = record["metadata"]
            value["payload_bytes"] = base64.b64encode(payload_of(record)).decode()
        if topic is not None:
            for key in ("message_id", "message_ids", "start_message_id"):
                if key in value:
                    value[key] = self._ids(topic, value[key])
        return topic, value

    def _ids(self, topic: str, ids: Any) -> Any:
        if isinstance(ids, list):
            return [self._ids(topic, id_) for id_ in ids]
        return {**ids, "ledgerId": self.ledger(topic, ids["ledgerId"])}

    def _admin_ids(self, topic: str | None, path: str, body: Any) -> tuple[str, Any]:
        if topic is None:
            return path, body
        path = re.sub(r"(?<=/ledger/)\d+", lambda match: str(self.ledger(topic, int(match[0]))), path)
        if isinstance(body, dict) and "ledgerId" in body:
            body = {**body, "ledgerId": self.ledger(topic, body["ledgerId"])}
        return path, body
