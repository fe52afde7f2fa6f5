"""Clients of a real broker that record everything they see, in the format of the traces.

Recording is gated: a client sends the next frame only when the broker has responded to the last one and was silent for a
while. So the frames between two client frames are the broker's reaction to the first of them.
"""

import json
import select
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streaming.kafka.local import HOST
from streaming.protocol.codec import CHECKSUM_BYTES, FrameError, FrameReader, decode, encode, entry
from streaming.traces.trace import FORMAT, frame_record
from tests.parity.admin import Admin
from tests.parity.pulsar import VERSION, LocalPulsar, Ports, has_zookeeper

Record = dict[str, Any]

SILENCE = 0.05
"""After this many seconds without a frame since a response, the broker is idle."""
_UNANSWERED = 0.08  # the same for commands without a response
_CALLED = 0.15  # after an admin call
_SNAPSHOTS = 40  # at most, until the stats are those of an idle topic
_ANSWER_SECONDS = 5.0  # for a response that never comes, such as to a SEND of a fenced producer


class Sent(NamedTuple):
    """A message to send: on which connection, the fields of its SEND, its metadata but for the publish time, and its payload."""

    connection: int
    fields: Record
    metadata: Record
    payload: bytes


class _Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames = FrameReader()
        self.requests = 0


class Recorder:
    """Connections to the topic of a separate namespace `name`. Names decide which consumer of a Failover subscription is
    active, so a scenario is reproducible only with the same name.

    `records` is the trace so far. Each of `listeners` gets each frame of the broker as a record when it
    arrives, and each connection that is cut.
    """

    def __init__(
        self, ports: Ports, name: str, config: dict[str, str], *, domain: str = "persistent",
        partitions: int = 0, patience: float = 1, version: str = VERSION, protocol: int = 20,
    ) -> None:  # fmt: skip
        """`config`: the broker's settings, for the header. `patience`: a factor for the usual silences. `protocol`: that of clients."""
        self._version, self._protocol = version, protocol
        self.name, self.namespace = name, f"public/{name}"
        self.topic, self.path = f"{domain}://{self.namespace}/t", f"/{domain}/{self.namespace}/t"
        self.topics = [f"{self.topic}-partition-{index}" for index in range(partitions)] or [self.topic]
        self.records: list[Record] = []
        self.listeners: list[Callable[[Record], None]] = []
        self._config = config
        self._port, self._admin = ports.broker, Admin(ports.admin)
        self._patience = patience
        self._open: dict[int, _Connection] = {}
        self._opened = 0
        self._admin.call("PUT", f"/namespaces/{self.namespace}")
        if partitions:
            self.call("PUT", f"{self.path}/partitions", partitions)
        self._look_up()

    @property
    def connections(self) -> list[int]:
        """The open connections."""
        return [*self._open]

    def step(self, name: str) -> None:
        """Start a step of the scenario. Traces are compared step by step."""
        self._note(dir="note", step=name)

    def open(self) -> int:
        """Open a connection and do the handshake."""
        number, self._opened = self._opened, self._opened + 1
        self._open[number] = _Connection(self._port)
        self._note(conn=number, dir="in", cmd="_TCP_OPEN")
        flags = {"supports_auth_refresh": True, "supports_broker_entry_metadata": True}
        self._send(number, "CONNECT", {"client_version": "Magnetar parity", "protocol_version": self._protocol,
                                       "auth_method_name": "none", "feature_flags": flags}, _greeted)  # fmt: skip
        return number

    def cut(self, number: int) -> None:
        """Close a connection as a crashed client does."""
        record = self._note(conn=number, dir="in", cmd="_TCP_CLOSE", fields={})
        self._open.pop(number).socket.close()
        self._tell(record)
        self._listen(_CALLED * self._patience)

    def tell(self, number: int, command: str, **fields: Any) -> None:
        """Send a command that has no response."""
        self._send(number, command, fields)

    def ask(self, number: int, command: str, **fields: Any) -> Record:
        """Send a command with a new request id and wait for the response. Returns it, or {} if none came."""
        if (connection := self._open.get(number)) is None:
            return {}
        connection.requests += 1
        fields["request_id"] = connection.requests
        return self._send(
            number, command, fields, lambda record: record["fields"].get("request_id") == fields["request_id"]
        )

    def publish(self, number: int, metadata: Record, payload: bytes | None = None, **fields: Any) -> Record:
        """Send a message and wait for its receipt. Returns it, or {} if none came."""
        metadata = {"publish_time": int(time.time() * 1000), **metadata}
        if payload is None:
            payload = f"m{metadata['sequence_id']}".encode()
        return self._send(number, "SEND", fields, _received, metadata, payload)

    def burst(self, messages: Sequence[Sent], *, seconds: float) -> None:
        """Send messages without a pause, and wait for their receipts for so many seconds, and some more."""
        left = 0
        for each in messages:
            if each.connection in self._open:
                metadata = {"publish_time": int(time.time() * 1000), **each.metadata}
                self._write(each.connection, "SEND", each.fields, metadata, each.payload)
                left += 1

        def are_answered(record: Record) -> bool:
            nonlocal left
            left -= _received(record)
            return left <= 0

        if left:
            self._listen(SILENCE * self._patience, are_answered, most=seconds + _ANSWER_SECONDS)

    def call(self, method: str, path: str, body: Any = None, *, seconds: float = _CALLED) -> Record:
        """Call the admin API. The resulting frames for clients are recorded after the call, until none came for `seconds`.

        Returns the record of the call.
        """
        record: Record = {"dir": "admin", "method": method, "path": path}
        said = self._note(**record if body is None else {**record, "body": body})
        said |= self._admin.call(method, path, body)
        self._listen(seconds * self._patience)
        return said

    def call_until(
        self, method: str, path: str, is_over: Callable[[Any], bool], *, most: int, pause: float
    ) -> Record:
        """Make a call up to `most` times, `pause` seconds apart, until its answer says that something is over. Only the last call is
        recorded."""
        for _ in range(most):
            if is_over(self._admin.call(method, path).get("response", {})):
                break
            self._listen(pause)
        return self.call(method, path)

    def check_backlog_quotas(self) -> None:
        """Run the periodic check of backlog quotas, of all topics."""
        self._note(dir="note", event="backlog_quota_check", ms=1)
        self._admin.call("GET", "/brokers/backlog-quota-check")
        self._listen(_CALLED * self._patience)

    def restart(self, pulsar: LocalPulsar) -> None:
        """Restart the broker on its data. Every connection is closed before."""
        for number in self.connections:
            self.cut(number)
        self._note(dir="note", event="broker_restart", phase="stop")
        pulsar.stop()
        pulsar.start()
        self._look_up()
        self._note(dir="note", event="broker_restart", phase="started")

    def _look_up(self) -> None:
        """As official clients do before they ask for a producer or a consumer. Later versions do without."""
        if has_zookeeper(self._version):
            for topic in self.topics:
                self._admin.look_up(topic)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._note(dir="note", event="wait", ms=int(seconds * 1000))
        self._listen(seconds, whole=True)

    def hear(self, enough: Callable[[], bool], seconds: float) -> None:
        """Listen until there was enough, or for so many seconds."""
        until = time.monotonic() + seconds
        while not enough() and time.monotonic() < until:
            self._listen(SILENCE)

    def snapshot(self) -> None:
        """Record the stats of each topic as soon as two reads agree and the topic is not busy."""
        for topic in self.topics:
            last = None
            for _ in range(_SNAPSHOTS):
                last, seen = self._admin.snapshot("/" + topic.replace("://", "/")), last
                if not last.pop("busy", False) and last == seen:
                    break
                self._listen(SILENCE)
            if last and last["stats"]:
                self._note(dir="stats", topic=topic, **last)

    def save(self, path: Path, description: str) -> None:
        """Write the trace."""
        header = {"format": FORMAT, "scenario": self.name, "area": "parity", "set": "parity", "pulsar_version": self._version,
                  "client": "tests/parity", "gated": True, "broker_config": self._config, "description": description,
                  "recordings": 1, "stable": True, "stable_order": "per-stream"}  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in (header, *self.records)))

    def close(self) -> bool:
        """Close every connection without recording it, and delete the namespace for the next scenario of this name. Returns whether the
        broker could: it fails to delete a terminated topic that was loaded without an open ledger, and may never answer."""
        for connection in self._open.values():
            connection.socket.close()
        self._open.clear()
        for _ in range(5):  # also of its policies; the first try may meet a topic that is loading
            try:
                said = self._admin.call("DELETE", f"/namespaces/{self.namespace}?force=true")
            except TimeoutError:
                return False
            if said["status"] in (204, 404):
                return True
            time.sleep(1)
        return False

    # -- the wire -------------------------------------------------------------------------------------------------

    def _tell(self, record: Record) -> None:
        for hear in self.listeners:
            hear(record)

    def _note(self, **record: Any) -> Record:
        self.records.append({"t": time.time() * 1000, **record})
        return self.records[-1]

    def _send(self, number: int, command: str, fields: Record, answers: Callable[[Record], bool] | None = None,
              metadata: Record | None = None, payload: bytes = b"") -> Record:  # fmt: skip
        if number not in self._open:
            return {}
        self._write(number, command, fields, metadata, payload)
        if answers is None:
            self._listen(_UNANSWERED * self._patience)
            return {}
        return self._listen(
            SILENCE * self._patience,
            lambda heard: heard["conn"] == number and (heard["cmd"] == "_TCP_CLOSE" or answers(heard)),
        )

    def _write(
        self, number: int, command: str, fields: Record, metadata: Record | None, payload: bytes
    ) -> None:
        frame = encode(command, fields, b"" if metadata is None else entry(metadata, payload))
        record = {"conn": number, "dir": "in"} | read(frame[4:])
        self._note(**record)
        self._open[number].socket.sendall(frame)

    def _listen(self, silence: float, answers: Callable[[Record], bool] | None = None, *, whole: bool = False,
                most: float = _ANSWER_SECONDS) -> Record:  # fmt: skip
        """Read until no frame came for `silence` seconds (`whole`: for that long in total), but not before a response.

        `answers` recognises the response, for which it waits at `most` so many seconds. Returns it, or {} without one.
        """
        answer: Record = {}
        until = time.monotonic() + (silence if answers is None else most)
        while (left := until - time.monotonic()) > 0:
            sockets = {connection.socket: number for number, connection in self._open.items()}
            readable, _, _ = select.select([*sockets], [], [], left)
            for record in [record for one in readable for record in self._read(sockets[one])]:
                self._tell(record)
                if not answer and answers is not None and answers(record):
                    answer = record
            if readable and not whole and (answer or answers is None):
                until = time.monotonic() + silence
        return answer

    def _read(self, number: int) -> list[Record]:
        connection, found = self._open[number], []
        try:
            data = connection.socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._open.pop(number).socket.close()
            return [self._note(conn=number, dir="out", cmd="_TCP_CLOSE", fields={})]
        for frame in connection.frames.feed(data):
            record = read(frame)
            if record["cmd"] == "PING":
                connection.socket.sendall(encode("PONG", {}))
            else:
                found.append(self._note(conn=number, dir="out", **record))
        return found


def read(data: bytes) -> Record:
    """The record of a frame without its total size. Raises `FrameError`, also for fields that the codec does not have, which
    a recording would lack."""
    frame = decode(data)
    tail = b"" if frame.metadata is None else entry(frame.metadata, frame.payload or b"")
    more = len(encode(frame.cmd, frame.fields, tail)) - len(data) - 4
    # 5.0 greets with features that no scenario asks for. Old clients get messages without checksums.
    if frame.cmd != "CONNECTED" and more and not (frame.cmd == "MESSAGE" and more == CHECKSUM_BYTES):
        raise FrameError(f"{frame.cmd} has fields that the codec does not have")
    found = frame_record(frame)
    if frame.cmd == "MESSAGE":
        found["entry_size"] += more
    return found


def _greeted(record: Record) -> bool:
    return bool(record["cmd"] == "CONNECTED")


def _received(record: Record) -> bool:
    return record["cmd"] in ("SEND_RECEIPT", "SEND_ERROR")
