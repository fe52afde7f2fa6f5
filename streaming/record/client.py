"""A client of the binary protocol that reads what a topic has stored."""

import os
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from streaming.protocol.codec import (
    HEADROOM,
    MAX_MESSAGE_SIZE,
    Frame,
    FrameError,
    FrameReader,
    decode,
    encode,
)
from streaming.protocol.frames import MINUS_ONE, position
from streaming.record.proxy import broker_address, is_tls

_SECONDS = 60
_PERMITS = 1000
_READ = 1 << 18
_MOST_REDIRECTS = 10


class ReadFailed(OSError):
    """A broker refuses to be read from, or its connection broke. The text says why."""


class Stored(NamedTuple):
    """An entry of a topic as it is stored: its position on the broker, and its metadata as in a frame."""

    ledger: int
    entry: int
    metadata: dict[str, Any]
    payload: bytes


class _Connection:
    def __init__(
        self, url: str, token: str | None, tls: ssl.SSLContext | None, proxied: str | None = None
    ) -> None:
        """`proxied`: the broker to which the proxy at `url` connects."""
        address = broker_address(url)
        self.url = url
        try:
            self._socket = socket.create_connection(address, timeout=_SECONDS)
            if is_tls(url):
                tls = tls or ssl.create_default_context()
                self._socket = tls.wrap_socket(self._socket, server_hostname=address.host)
        except OSError as error:
            raise ReadFailed(f"{address} can't be reached: {error}") from None
        self._frames = FrameReader()
        self._waiting: deque[Frame] = deque()
        self._requests = 0
        fields: dict[str, Any] = {"client_version": "Magnetar", "protocol_version": 20}
        if token is not None:
            fields |= {"auth_method_name": "token", "auth_data": token.encode()}
        if proxied is not None:
            fields["proxy_to_broker_url"] = proxied.partition("://")[2]
        self.send("CONNECT", fields)
        size = self.until("CONNECTED").get("max_message_size", MAX_MESSAGE_SIZE)
        self._frames.largest = size + HEADROOM

    def close(self) -> None:
        self._socket.close()

    def send(self, cmd: str, fields: dict[str, Any]) -> None:
        try:
            self._socket.sendall(encode(cmd, fields))
        except OSError as error:
            raise ReadFailed(f"{self.url}: {error}") from None

    def ask(self, cmd: str, answer: str, **fields: Any) -> dict[str, Any]:
        self._requests += 1
        self.send(cmd, {**fields, "request_id": self._requests})
        return self.until(answer)

    def until(self, cmd: str) -> dict[str, Any]:
        """The fields of the next `cmd`. What comes before waits."""
        passed = []
        while (frame := self.next()).cmd != cmd:
            if frame.cmd in ("ERROR", "CLOSE_CONSUMER"):
                raise ReadFailed(f"{self.url}: {frame.fields.get('message', 'the topic was unloaded')}")
            passed.append(frame)
        self._waiting.extendleft(reversed(passed))
        return frame.fields

    def next(self) -> Frame:
        while True:
            while not self._waiting:
                try:
                    data = self._socket.recv(_READ)
                    if not data:
                        raise ReadFailed(f"{self.url}: the broker closed the connection")
                    self._waiting += map(decode, self._frames.feed(data))
                except (FrameError, OSError) as error:
                    raise (
                        error if isinstance(error, ReadFailed) else ReadFailed(f"{self.url}: {error}")
                    ) from None
            frame = self._waiting.popleft()
            if frame.cmd != "PING":
                return frame
            self.send("PONG", {})


def entries(
    url: str, topic: str, token: str | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[Stored]:
    """The entries that a topic has now, the oldest first, through a subscription that ends with it.

    `tls`: whose signatures count for certificates of brokers; None: those of the system's authorities. Raises `ReadFailed`.
    """
    connection = _owner(url, topic, token, tls)
    try:
        connection.ask(
            "SUBSCRIBE", "SUCCESS", topic=topic, subscription=f"magnetar-capture-{os.urandom(5).hex()}",
            subType="Exclusive", consumer_id=1, durable=False, start_message_id=position(-1, -1),
            initialPosition="Earliest", force_topic_creation=False,
        )  # fmt: skip
        last = connection.ask("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)[
            "last_message_id"
        ]
        end = last["ledgerId"], last["entryId"]
        permits = 0
        at = -1, -1
        while MINUS_ONE not in end and at < end:
            if permits <= _PERMITS // 2:
                connection.send("FLOW", {"consumer_id": 1, "messagePermits": _PERMITS})
                permits += _PERMITS
            frame = connection.next()
            if frame.cmd in ("ERROR", "CLOSE_CONSUMER"):
                raise ReadFailed(f"{topic}: the topic was unloaded while it was read")
            if frame.cmd == "MESSAGE" and frame.metadata is not None:
                at = frame.fields["message_id"]["ledgerId"], frame.fields["message_id"]["entryId"]
                permits -= frame.metadata.get("num_messages_in_batch", 1)
                yield Stored(*at, frame.metadata, frame.payload or b"")
    finally:
        connection.close()


def _owner(url: str, topic: str, token: str | None, tls: ssl.SSLContext | None) -> _Connection:
    """A connection to the broker that serves a topic."""
    connection, authoritative = _Connection(url, token, tls), False
    for _ in range(_MOST_REDIRECTS):
        found = connection.ask("LOOKUP", "LOOKUP_RESPONSE", topic=topic, authoritative=authoritative)
        broker = found.get("brokerServiceUrlTls" if is_tls(url) else "brokerServiceUrl")
        if broker is None:
            raise ReadFailed(f"{topic}: {found.get('message') or found.get('error')}")
        if found.get("response") == "Connect" and broker == connection.url:
            return connection
        connection.close()
        if found.get("response") == "Connect":
            return (
                _Connection(url, token, tls, broker)
                if found.get("proxy_through_service_url")
                else _Connection(broker, token, tls)
            )
        connection, authoritative = _Connection(broker, token, tls), bool(found.get("authoritative"))
    connection.close()
    raise ReadFailed(f"{topic}: the brokers redirect the lookup in a circle")
