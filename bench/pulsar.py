"""A real Pulsar broker on this machine: the processor time that it takes to publish with deduplication."""

import socket
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from streaming.kafka.local import HOST
from streaming.protocol.codec import batch, encode, entry
from tests.parity.pulsar import LocalPulsar

WINDOW = 1000
"""Messages that wait for their receipts."""

_TYPE = 9
"""Where a frame has the number of its command, behind its two sizes and a tag."""
_PING = 18


class Published(NamedTuple):
    """Messages, seconds, and the broker's seconds of processor time."""

    messages: int
    seconds: float
    processor: float


def publish(count: int, payload: int, batches_of: int = 1) -> Published:
    """Publish `count` entries of one producer on one topic to a broker that has done twice as many before, so that Java has
    compiled."""
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        broker = LocalPulsar(
            Path(folder), {"brokerDeduplicationEnabled": "true"}
        )  # the rest is Pulsar's default
        broker.java_options = ["-Xmx1g", "-XX:MaxDirectMemorySize=1g"]  # with Java's optimising compiler
        with broker, socket.create_connection((HOST, broker.ports.broker)) as connection:
            connection.sendall(encode("CONNECT", {"client_version": "bench", "protocol_version": 19}))
            _read(connection)
            topic = "persistent://public/default/bench"
            lookup = {"topic": topic, "producer_id": 1, "request_id": 1, "producer_name": "p"}
            connection.sendall(encode("PRODUCER", lookup))
            _read(connection)
            frames = [_send(number, bytes(payload), batches_of) for number in range(3 * count)]
            _pump(connection, frames[: 2 * count])
            process = psutil.Process(broker._process.pid)
            begun, before = time.perf_counter(), process.cpu_times()
            _pump(connection, frames[2 * count :])
            after = process.cpu_times()
            used = after.user + after.system - before.user - before.system
            return Published(count * batches_of, time.perf_counter() - begun, used)


def _send(number: int, payload: bytes, batches_of: int) -> bytes:
    first, last = number * batches_of, (number + 1) * batches_of - 1
    command = {"producer_id": 1, "sequence_id": first, "num_messages": batches_of}
    metadata = {"producer_name": "p", "sequence_id": first, "publish_time": 1_700_000_000_000 + number}
    if batches_of > 1:
        command["highest_sequence_id"] = metadata["highest_sequence_id"] = last
        metadata["num_messages_in_batch"] = batches_of
        payload = batch([{} for _ in range(batches_of)], [payload] * batches_of)
    return encode("SEND", command, entry(metadata, payload))


def _pump(connection: socket.socket, frames: list[bytes]) -> None:
    """Send all, with at most `WINDOW` waiting, and await the last receipt."""
    received = sent = 0
    buffer = b""
    while received < len(frames):
        ready = frames[sent : min(received + WINDOW, len(frames))]
        if ready:
            connection.sendall(b"".join(ready))
            sent += len(ready)
        buffer += connection.recv(1 << 20)
        at = 0
        while len(buffer) >= at + 4 and len(buffer) >= (end := at + 4 + int.from_bytes(buffer[at : at + 4])):
            if buffer[at + _TYPE] == _PING:
                connection.sendall(encode("PONG", {}))
            else:
                received += 1
            at = end
        buffer = buffer[at:]


def _read(connection: socket.socket) -> bytes:
    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(size, socket.MSG_WAITALL)
