"""Feeds one trace to the core: recorded requests become commands, and recorded responses are matched with Magnetar's.

Responses are matched stream by stream (a producer, a consumer, the lookups of a connection): the protocol promises no order
beyond that. Matching binds recorded ledger ids to Magnetar's, so that later acks and seeks can be translated.
"""

import base64
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from schemas.commands import Admin, MessageMetadata, decode_or_refuse
from schemas.effects import AdminResponse, Quarantined, Row, SendReceipt, Unsupported
from streaming.broker.admin.partitioned_topics import is_for_whole
from streaming.broker.admin_requests import deletes_topic, topic_of, topic_path
from streaming.broker.broker import Broker
from streaming.broker.config import PROTOCOL_VERSION, ServiceConfiguration, profile_of, stand_in
from streaming.broker.entries import NoEntries
from streaming.protocol.admin_calls import headers, on_partitions
from streaming.protocol.codec import Frame
from streaming.protocol.frames import (
    CLOSES_OTHERS,
    KNOWN_SINCE,
    connected,
    frame,
    topics_of_namespace,
    uncompressed,
)
from streaming.protocol.requests import LOOKUPS as REQUESTS
from streaming.protocol.requests import OF_THE_GATEWAY, Requests
from streaming.traces.normalise import Normaliser
from streaming.traces.trace import Trace, payload_of

LOOKUPS = frozenset(
    f"{name}{kind}" for kind in ("", "_RESPONSE") for name in (*REQUESTS, "GET_TOPICS_OF_NAMESPACE")
)

TIMED_CHECKS = {
    "backlogQuotaCheckIntervalInSeconds": ("backlogQuota", "backlog_quota_check", 1000),
    "messageExpiryCheckIntervalInMinutes": ("messageExpiry", "message_expiry_check", 60_000),
}
"""Settings of periodic checks that a trace marks with a note, since their phase is unknown: check, note, ms per unit."""

DEFAULTS = ServiceConfiguration()

Stream = tuple[str, str, int]
"""(connection, kind, producer or consumer id)."""


class SessionRecord(NamedTuple):
    """A record of the resulting log: `timestamp` in ms, `value` the command as JSON."""

    timestamp: int
    topic: str | None
    value: dict[str, Any]


class Session:
    """Feeds a trace to its own broker. `connection_prefix` keeps the connections of several traces apart.

    `differences`: each as (step, text), in order. `explained`: see `streaming.traces.conform.TraceComparison`.
    """

    def __init__(self, trace: Trace, *, connection_prefix: str = "") -> None:
        self.trace = trace
        self.version = str(trace.header.get("pulsar_version", "4.0"))
        self.stand_in = stand_in(self.version)
        self.broker = Broker(0, NoEntries())
        self.skipped: Counter[str] = Counter()
        self.normaliser = Normaliser()
        self.differences: list[tuple[str, str]] = []
        self.explained: Counter[str] = Counter()
        self.step = "start"
        self._prefix = connection_prefix
        self._offset = -1
        self._versions: dict[str, int] = {}
        self._outdated: list[str] = []  # of clients that are too old to be told why
        self._topics: dict[Stream, str] = {}
        self._requests: dict[str, Requests] = defaultdict(Requests)
        self._owners: dict[tuple[str, int], Stream] = {}
        self._stored: dict[tuple[str, int, int], tuple[MessageMetadata, bytes]] = {}
        self._generated = {
            (record["conn"], fields.get("request_id")): fields.get("producer_name")
            for record in trace.records
            if record["dir"] == "out"
            and record["cmd"] == "PRODUCER_SUCCESS"
            and (fields := record.get("fields"))
        }
        self._recorded: dict[Stream, deque[dict[str, Any]]] = defaultdict(deque)
        self._ours: dict[Stream, deque[Frame]] = defaultdict(deque)

    def run(self) -> Iterator[tuple[dict[str, Any] | None, SessionRecord | None]]:
        """Go through the trace in order: each record with None, then with each command that was made from it."""
        start = int(self.trace.records[0]["t"]) if self.trace.records else 0
        config = {
            "command": "BROKER_CONFIG",
            "profile": profile_of(self.version),
            "settings": self._settings(),
        }
        yield None, self._feed(SessionRecord(start, None, config), {})
        for record in self.trace.records:
            yield record, None
            for command in self._commands_of(record):
                yield record, self._feed(command, record)
            if record["dir"] == "out":
                stream = self._stream(self._connection(record), record["cmd"], record.get("fields", {}))
                self._recorded[stream].append(record)
                self._match(stream)

    def _settings(self) -> dict[str, Any]:
        """The settings of the recorded broker."""
        config = self.trace.header["broker_config"]
        return {**config, **dict.fromkeys(TIMED_CHECKS, 0)}

    def _feed(self, command: SessionRecord, record: dict[str, Any]) -> SessionRecord:
        self._offset += 1
        value = msgspec.json.encode(command.value)
        decoded = decode_or_refuse(value)
        self.broker.apply(self._offset, command.timestamp, command.topic, decoded, value)
        known = len(self._outdated)
        for row in self.broker.take():
            self._take(row, record)
        for connection in self._outdated[known:]:
            lost = {"command": "CONNECTION_LOST", "connection": connection}
            self._feed(SessionRecord(command.timestamp, None, lost), record)
        return command

    def _take(self, row: Row, record: dict[str, Any]) -> None:
        effect = row.effect
        if isinstance(effect, SendReceipt) and effect.metadata is not None:
            self._stored[effect.topic, effect.ledger_id, effect.entry_id] = (
                effect.metadata,
                effect.payload or b"",
            )
        elif isinstance(effect, AdminResponse):
            self._match_admin(effect, record)
        elif isinstance(effect, Quarantined | Unsupported):
            self.differ(effect.cause)
        answer = frame(effect, lambda *position: self._stored[position])
        if answer is None or not answer.connection:
            return
        version = self._versions.get(answer.connection, PROTOCOL_VERSION)
        if version < CLOSES_OTHERS.get(answer.cmd, 0):
            if answer.connection not in self._outdated:
                self._outdated.append(answer.connection)
                self._answer(Frame(answer.connection, "_TCP_CLOSE", {}))
        elif version >= KNOWN_SINCE.get(answer.cmd, 0) and answer.connection not in self._outdated:
            self._answer(answer)

    def _answer(self, answer: Frame) -> None:
        stream = self._stream(answer.connection, answer.cmd, answer.fields)
        self._ours[stream].append(answer)
        self._match(stream)

    # -- matching -------------------------------------------------------------------------------------------------

    def differ(self, text: str) -> None:
        """Note a difference in the current step."""
        self.differences.append((self.step, text))

    def end_step(self, following: str) -> None:
        """Report every frame that has no counterpart by now, and begin the step `following`."""
        for stream, records in self._recorded.items():
            for record in records:
                self.differ(
                    f"{stream_name(stream)}: recorded {record['cmd']} {record.get('fields', {})}, ours has none"
                )
            records.clear()
        for stream, frames in self._ours.items():
            for answer in frames:
                self.differ(f"{stream_name(stream)}: ours {answer.cmd} {answer.fields}, recorded has none")
            frames.clear()
        self.step = following

    def _match(self, stream: Stream) -> None:
        recorded, ours = self._recorded[stream], self._ours[stream]
        while recorded and ours:
            record, answer = recorded.popleft(), ours.popleft()
            found = self._frame_difference(self._topics.get(stream, ""), record, answer)
            if found is not None:
                self.differ(f"{stream_name(stream)}: {record['cmd']} {found}")

    def _frame_difference(self, topic: str, record: dict[str, Any], answer: Frame) -> str | None:
        """The difference between a recorded frame and Magnetar's."""
        fields = record.get("fields", {})
        if record["cmd"] != answer.cmd:
            return f"{fields} recorded, ours {answer.cmd} {answer.fields}"
        if "topics" in fields:  # their order has no meaning
            fields = {**fields, "topics": sorted(fields["topics"])}
        found = self.normaliser.difference(topic, fields, answer.fields)
        if found is None and "metadata" in record:
            # delivered as published: what looks like a position in it is the client's text
            if record["metadata"] != answer.metadata:
                return f".metadata: recorded {record['metadata']}, ours {answer.metadata}"
            if (payload_of(record), record["entry_size"]) != (answer.payload, answer.entry_size):
                return ".payload: different"
        return found

    def _match_admin(self, effect: AdminResponse, record: dict[str, Any]) -> None:
        if record.get("dir") != "admin" or "status" not in record:
            return
        where = f"{record['method']} {record['path']}"
        if record["status"] != effect.fields.status:
            theirs = answered(record["status"], record.get("response"))
            mine = answered(effect.fields.status, effect.fields.response)
            self.differ(f"{where}: recorded {theirs}, ours {mine}")
        elif effect.ledger_id is not None and effect.entry_id is not None:
            found = self._message_difference(effect, record)
            if found is not None:
                self.differ(f"{where}: {found}")
        elif (
            record["status"] < 300
            and isinstance(record.get("response"), dict | list | int)
            and effect.fields.response is not UNSET
            and not record["path"]
            .partition("?")[0]
            .endswith(("/stats", "/internalStats"))  # a snapshot is compared instead
        ):
            recorded, ours = (
                sorted(response, key=str) if isinstance(response, list) else response
                for response in (record["response"], effect.fields.response)
            )
            found = self.normaliser.difference(effect.topic or "", recorded, ours)
            if found is not None:
                self.differ(f"{where}: {found}")

    def _message_difference(self, effect: AdminResponse, record: dict[str, Any]) -> str | None:
        """The difference in a message that an admin call returned: in its payload, or in the recorded headers."""
        topic, ledger, entry = effect.topic or "", effect.ledger_id or 0, effect.entry_id or 0
        metadata, payload = self._stored[topic, ledger, entry]
        response = record.get("response")
        if isinstance(response, dict) and isinstance(response.get("base64"), str):
            try:
                response = base64.b64decode(response["base64"])
            except ValueError:
                return f"recorded {response!r}, which is not base64"
        elif isinstance(response, str):
            response = response.encode()
        if isinstance(response, bytes) and response != (ours := uncompressed(metadata, payload)):
            return f"recorded {response!r}, ours {ours!r}"
        found = headers(ledger, entry, metadata, len(payload))
        expected = {name.lower(): value for name, value in found.items()}
        recorded = {
            name.lower(): value
            for name, value in (record.get("headers") or {}).items()
            if name.lower() in expected and not name.endswith("-time")  # they are in the broker's time zone
        }
        return self.normaliser.difference(topic, recorded, {name: expected[name] for name in recorded})

    # -- streams --------------------------------------------------------------------------------------------------

    def _connection(self, record: dict[str, Any]) -> str:
        return f"{self._prefix}{record['conn']}"

    def _stream(self, connection: str, cmd: str, fields: dict[str, Any]) -> Stream:
        if cmd in LOOKUPS:
            return connection, "lookup", 0
        if "producer_id" in fields:
            return connection, "producer", fields["producer_id"]
        if "consumer_id" in fields:
            return connection, "consumer", fields["consumer_id"]
        return self._owners.get((connection, fields.get("request_id", -1)), (connection, "connection", 0))

    # -- frames and calls to commands -----------------------------------------------------------------------------

    def _commands_of(self, record: dict[str, Any]) -> Iterator[SessionRecord]:
        time = int(record["t"])
        kind = record["dir"]
        if kind == "in":
            command = self._frame(record)
            if command is not None:
                yield SessionRecord(time, *command)
        elif kind == "admin":
            for topic, called in self._admin_topics(record["method"], record["path"]):
                path, body = self._admin_ids(topic, called, record.get("body"))
                value = {"command": "ADMIN", "method": record["method"], "path": path}
                yield SessionRecord(time, topic, value if body is None else {**value, "body": body})
        elif kind == "note":
            yield from self._note(record, time)
        elif kind == "stats":
            yield self._look(time, record["topic"])

    def _look(self, time: int, topic: str) -> SessionRecord:
        """What a snapshot of a topic does: its stats were asked for, which loads it after a restart."""
        if not self.broker.is_closed(topic):
            return SessionRecord(time, None, {"command": "TICK"})
        value = {"command": "ADMIN", "method": "GET", "path": topic_path(topic, "/stats")}
        return SessionRecord(time, topic, value)

    def _admin_topics(self, method: Any, path: str) -> list[tuple[str | None, str]]:
        """The topics that a call concerns, each with its path. A call on a partitioned topic concerns each partition, as the
        broker's own admin client calls them one by one."""
        topic = topic_of(path)
        partitions = 0 if topic is None else self.broker.partitioned.get(topic, 0)
        command = Admin(method=method, path=path)
        if not partitions or is_for_whole(command) or deletes_topic(command):
            return [(topic, path)]
        return [(partition, call.path) for partition, call in on_partitions(command, partitions)]

    def _note(self, record: dict[str, Any], time: int) -> Iterator[SessionRecord]:
        if record.get("event") == "broker_restart" and record.get("phase") == "started":
            yield SessionRecord(time, None, {"command": "RESTART"})
        if "step" in record:
            yield SessionRecord(time, None, {"command": "TICK"})
        for setting, (check, note, unit) in TIMED_CHECKS.items():
            if record.get("event") == note:
                of_the_broker = self.trace.header["broker_config"].get(setting, getattr(DEFAULTS, setting))
                interval, ms = max(int(of_the_broker), 1) * unit, int(record["ms"])
                for due in range(time + min(interval, ms), time + ms + 1, interval):
                    yield SessionRecord(due, None, {"command": "RUN_CHECK", "check": check})

    def _frame(self, record: dict[str, Any]) -> tuple[str | None, dict[str, Any]] | None:
        name, connection = record["cmd"], self._connection(record)
        fields = dict(record.get("fields", {}))
        if name == "_TCP_CLOSE":
            return None, {"command": "CONNECTION_LOST", "connection": connection}
        if name == "_TCP_OPEN":
            return None
        if name in OF_THE_GATEWAY:
            self.skipped[name] += 1
            self._answer_as_gateway(connection, name, fields)
            return None
        stream = self._stream(connection, name, fields)
        if "request_id" in fields and name not in LOOKUPS:
            self._owners[connection, fields["request_id"]] = stream
        asked = Frame(connection, name, fields, record.get("metadata"), payload_of(record))
        topic, value = self._requests[connection].command(asked)
        if topic is not None and name not in LOOKUPS:
            self._topics.setdefault(stream, topic)
            if "topic" in fields:
                self._topics[stream] = topic
        if name == "PRODUCER" and not fields.get("producer_name"):
            # the client uses the name that it was given then, in messages and when it reconnects
            given = self._generated.get((record["conn"], fields.get("request_id")))
            value |= {} if given is None else {"producer_name": given}
        if topic is not None:
            for key in ("message_id", "message_ids", "start_message_id"):
                if key in value:
                    value[key] = self._ids(topic, value[key])
        return topic, value

    def _answer_as_gateway(self, connection: str, name: str, fields: dict[str, Any]) -> None:
        """Answer a frame that is not a command."""
        if name == "CONNECT":
            self._versions[connection] = fields.get("protocol_version", 0)
            self._answer(
                Frame(
                    connection,
                    "CONNECTED",
                    connected(fields, highest=self.broker.config.highestProtocolVersion),
                )
            )
        if name == "GET_TOPICS_OF_NAMESPACE":
            topics = self.broker.listed_topics(fields["namespace"], to_client=True)
            self._answer(Frame(connection, *topics_of_namespace(fields, topics)))

    def _ids(self, topic: str, ids: Any) -> Any:
        if isinstance(ids, list):
            return [self._ids(topic, id_) for id_ in ids]
        return {**ids, "ledgerId": self.normaliser.our_ledger(topic, ids["ledgerId"])}

    def _admin_ids(self, topic: str | None, path: str, body: Any) -> tuple[str, Any]:
        if topic is None:
            return path, body
        ours = partial(self.normaliser.our_ledger, topic)
        path = re.sub(r"(?<=/ledger/)\d{1,19}", lambda match: str(ours(int(match[0]))), path)
        if isinstance(body, dict) and isinstance(body.get("ledgerId"), int):
            body = {**body, "ledgerId": ours(body["ledgerId"])}
        return path, body


def answered(status: int, response: Any) -> str:
    """What an admin call was answered, in words."""
    if isinstance(response, dict) and isinstance(response.get("reason"), str):
        text = response["reason"]
    elif response is None or response is UNSET:
        text = ""
    else:
        text = msgspec.json.encode(response).decode()
    more = "…" if len(text) > _MOST_SAID else ""
    return f"status {status}" + (f" ({text[:_MOST_SAID]}{more})" if text else "")


_MOST_SAID = 200
"""Characters of an answer."""


def stream_name(stream: Stream) -> str:
    """A stream, in words."""
    connection, kind, id_ = stream
    return f"connection {connection}" + (
        f", {kind} {id_}" if kind in ("producer", "consumer") else f", {kind}" * (kind == "lookup")
    )
