"""A client of the binary protocol that reads what topics have stored."""

import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

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
from streaming.record.proxy import broker_address, broker_addresses, is_tls
from streaming.record.stored import Stored
from streaming.record.unreachable import Unreachable, why_not

_SECONDS = 30
"""For so long a broker may take for an answer, or for the next message, as in Pulsar's clients."""
_LEAST_SECONDS = 1
"""The same of a broker that has often taken longer."""
_CONNECT_SECONDS = 10
"""For so long a broker may take to be connected and to say so, as in Pulsar's clients, and to say anything."""
_PERMITS = 20_000
"""Of all readers. Messages for one wait while another one's are read: this bounds how many."""
_LEAST_PERMITS = 10
_BYTES = 64 << 20
"""Of the messages that wait, about."""
_MOST_PERMITS = 1000
_READ = 1 << 18
_MOST_REDIRECTS = 10
_VERSION = "Magnetar"
_NO_RIGHT = ("AuthorizationError", "AuthenticationError")


class ReadFailed(OSError):
    """A broker refuses to be read from, or its connection broke. The text says why."""


class NoRight(ReadFailed):
    """The token lacks the right to read a topic."""


class Unanswered(ReadFailed):
    """A broker is there, and does not answer what it was asked."""


class BrokerUnreachable(ReadFailed):
    """A broker can't be reached, or says nothing any more, so that no topic of it can be read. `broker`: its URL."""

    def __init__(self, broker: str, text: str) -> None:
        super().__init__(text)
        self.broker = broker


class _Connection:
    def __init__(
        self,
        url: str,
        token: Callable[[], str | None],
        tls: ssl.SSLContext | None,
        unreachable: Unreachable,
        proxied: str | None = None,
    ) -> None:
        """`proxied`: the broker to which the proxy at `url` connects. `unreachable`: gets to know whether it answers."""
        address = broker_address(url)
        self.url, self._token = url, token
        self._broker, self._unreachable = proxied or url, unreachable
        self._patience: float = _SECONDS
        self._works = self._is_closed = False
        self._broken: ReadFailed | None = None
        try:
            self._socket = socket.create_connection(address, timeout=_CONNECT_SECONDS)
            if is_tls(url):
                tls = tls or ssl.create_default_context()
                self._socket = tls.wrap_socket(self._socket, server_hostname=address.host)
        except OSError as error:
            raise ReadFailed(f"{address} can't be reached: {why_not(error)}") from None
        self._frames = FrameReader()
        self._consumers: dict[int, deque[Frame]] = {}
        self._answers: deque[Frame] = deque()
        self._requests = 0
        fields: dict[str, Any] = {
            "client_version": _VERSION, "protocol_version": 20,
            "feature_flags": {"supports_broker_entry_metadata": True, "supports_auth_refresh": True},
            **self._auth_data(),
        }  # fmt: skip
        if proxied is not None:
            fields["proxy_to_broker_url"] = proxied.partition("://")[2]
        try:
            self.send("CONNECT", fields)
            if not self._read(_CONNECT_SECONDS):
                raise self._silent()
            size = self._answered("CONNECTED").get("max_message_size", MAX_MESSAGE_SIZE)
        except ReadFailed as error:
            self._socket.close()
            if self._is_closed and not is_tls(url):
                raise ReadFailed(
                    f"{error} (does it speak TLS? Then the URL begins with pulsar+ssl://)"
                ) from None
            raise
        self._frames.largest = size + HEADROOM

    @property
    def broken(self) -> ReadFailed | None:
        """Why nothing comes any more."""
        return self._broken

    def close(self) -> None:
        self._fail("the connection is closed")
        self._socket.close()

    def send(self, cmd: str, fields: dict[str, Any]) -> None:
        try:
            self._socket.sendall(encode(cmd, fields))
        except TimeoutError:
            raise self._silent() from None
        except OSError as error:
            raise self._fail(str(error)) from None

    def ask(self, cmd: str, answer: str, **fields: Any) -> dict[str, Any]:
        self._answers.clear()
        self._requests += 1
        self.send(cmd, {**fields, "request_id": self._requests})
        return self._answered(answer)

    def works(self) -> None:
        """The broker has done what it is there for: it was reached."""
        if not self._works:
            self._works = True
            self._unreachable.reached(self._broker)

    def _auth_data(self) -> dict[str, Any]:
        token = self._token()
        return {} if token is None else {"auth_method_name": "token", "auth_data": token.encode()}

    def new_consumer(self) -> int:
        """The id of a consumer, whose messages wait for `next_of`."""
        self._requests += 1
        self._consumers[self._requests] = deque()
        return self._requests

    def next_of(self, consumer: int) -> Frame:
        """The next frame for a consumer."""
        return self._next(self._consumers[consumer])

    def close_consumer(self, consumer: int) -> None:
        """Nobody waits for the answer."""
        del self._consumers[consumer]
        if self._broken is None:
            self._requests += 1
            self.send("CLOSE_CONSUMER", {"consumer_id": consumer, "request_id": self._requests})

    def _answered(self, cmd: str) -> dict[str, Any]:
        """The answer to the request that was sent last."""
        frame = self._next(self._answers)
        if frame.cmd == cmd:
            return frame.fields
        reason = frame.fields.get("message", frame.cmd)
        refused = frame.fields.get("error") in _NO_RIGHT
        raise (NoRight if refused else ReadFailed)(f"{self.url}: {reason}")

    def _next(self, waiting: deque[Frame]) -> Frame:
        deadline = time.monotonic() + self._patience
        while not waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                self._patience = max(self._patience / 2, _LEAST_SECONDS)
                self.works()  # although not here
                raise Unanswered(f"{self.url}: no answer in time")
            if not self._read(min(left, _CONNECT_SECONDS)):
                self.send("PING", {})
                if not self._read(_CONNECT_SECONDS):
                    raise self._silent()
        return waiting.popleft()

    def _read(self, seconds: float) -> bool:
        """Read frames, which go to those for whom they are. Whether something has come in time."""
        if self._broken is not None:
            raise self._broken
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(_READ)
            frames = [decode(each, any_metadata=True) for each in self._frames.feed(data)]
        except TimeoutError:
            return False
        except (FrameError, OSError) as error:
            raise self._fail(str(error)) from None
        if not data:
            self._is_closed = True
            raise self._fail("the broker closed the connection")
        for frame in frames:
            if frame.cmd == "PING":
                self.send("PONG", {})
            elif frame.cmd == "AUTH_CHALLENGE":  # the token expires
                self.send("AUTH_RESPONSE", {"response": self._auth_data(), "client_version": _VERSION})
            elif (
                consumer := frame.fields.get("consumer_id")
            ) is not None and "request_id" not in frame.fields:
                if consumer in self._consumers:
                    self._consumers[consumer].append(frame)
            elif frame.cmd == "CLOSE_CONSUMER":  # the broker numbers these
                if (waiting := self._consumers.get(frame.fields["consumer_id"])) is not None:
                    waiting.append(frame)
            elif frame.cmd != "PONG" and (
                not self._requests or frame.fields.get("request_id") == self._requests
            ):  # not a late answer
                self._answers.append(frame)
        return True

    def _fail(self, reason: str) -> ReadFailed:
        self._broken = ReadFailed(f"{self.url}: {reason}")
        return self._broken

    def _silent(self) -> ReadFailed:
        self._broken = BrokerUnreachable(self._broker, f"{self._broker} does not answer")
        self._unreachable.failed(self._broker, str(self._broken))
        return self._broken


class Reader:
    """Reads entries of topics through subscriptions that end with it. Topics of one broker share a connection. Use it in one thread, as a
    context manager.

    `url`: the first of its brokers that can be reached is asked who serves a topic. `token`: that of now, or None. `streams`: how many topics are read at the same time, about. `tls`: whose signatures count for certificates of brokers; None: those of
    the system's authorities. `unreachable`: what is known of brokers from earlier readers. This one connects to a broker that can't be
    reached once.
    """

    def __init__(
        self,
        url: str,
        token: Callable[[], str | None] = lambda: None,
        tls: ssl.SSLContext | None = None,
        streams: int = 1,
        unreachable: Unreachable | None = None,
    ) -> None:
        self._urls, self._token, self._tls = [*broker_addresses(url)], token, tls
        self._unreachable = unreachable or Unreachable()
        self._failed: dict[str, ReadFailed] = {}
        self._streams = max(streams, 1)
        self._permits = min(max(_PERMITS // self._streams, _LEAST_PERMITS), _MOST_PERMITS)
        self._connections: dict[tuple[str, str | None], _Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def entries(self, topic: str, after: tuple[int, int] = (-1, -1), size: int = 1) -> Iterator[Stored]:
        """The entries after a position that a topic has when this begins, the oldest first. quirk: a broker sends the one at the position, too,
        as it may be a batch that was read in part; so that is the first one, if it is there and others are after it. `size`: their
        average, in bytes. Raises `ReadFailed`."""
        most = min(self._permits, max(_BYTES // self._streams // max(size, 1), 1))
        connection = self._owner(topic)
        consumer = connection.new_consumer()
        connection.ask(
            "SUBSCRIBE", "SUCCESS", topic=topic, subscription=f"magnetar-reader-{os.urandom(5).hex()}",
            subType="Exclusive", consumer_id=consumer, durable=False, start_message_id=position(*after),
            initialPosition="Earliest", force_topic_creation=False,
        )  # fmt: skip
        try:
            last = connection.ask(
                "GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=consumer
            )["last_message_id"]
            end = last["ledgerId"], last["entryId"]
            start: tuple[int, int] | None = after
            permits, since = 0, time.monotonic()
            while MINUS_ONE not in end and after < end:
                if permits <= most // 2:
                    connection.send("FLOW", {"consumer_id": consumer, "messagePermits": most})
                    permits += most
                frame = connection.next_of(consumer)
                connection.works()
                if frame.cmd == "CLOSE_CONSUMER":
                    raise ReadFailed(f"{topic}: the topic was unloaded while it was read")
                if frame.cmd == "MESSAGE" and frame.metadata is not None:
                    permits -= frame.metadata.get("num_messages_in_batch", 1)
                    at = frame.fields["message_id"]["ledgerId"], frame.fields["message_id"]["entryId"]
                    if at > after or at == start:
                        after, start = at, None
                        yield Stored(
                            *after,
                            frame.metadata,
                            frame.payload or b"",
                            frame.broker_time,
                            frame.entry_size,
                            frame.unreadable,
                        )
                        since = time.monotonic()
                if time.monotonic() > since + _SECONDS:
                    raise Unanswered(f"{topic}: the broker sends nothing new")
            connection.works()
        finally:
            connection.close_consumer(consumer)

    def _connection(self, url: str, proxied: str | None = None) -> _Connection:
        found = self._connections.get((url, proxied))
        if found is not None and isinstance(found.broken, BrokerUnreachable):
            raise found.broken
        if found is None or found.broken is not None:
            found = self._connections[url, proxied] = self._connected(url, proxied)
        return found

    def _connected(self, url: str, proxied: str | None) -> _Connection:
        """A new connection to a broker, unless it is known that this fails."""
        broker = proxied or url
        if broker in self._failed:
            raise self._failed[broker]
        try:
            if (why := self._unreachable.why(broker)) is not None:
                raise BrokerUnreachable(broker, why)
            try:
                found = _Connection(url, self._token, self._tls, self._unreachable, proxied)
            except NoRight:
                raise
            except ReadFailed as error:
                self._unreachable.failed(broker, str(error))
                raise BrokerUnreachable(broker, str(error)) from None
        except ReadFailed as error:
            self._failed[broker] = error
            raise
        return found

    def _owner(self, topic: str) -> _Connection:
        """A connection to the broker that serves a topic."""
        for url in self._urls[:-1]:
            try:
                return self._looked_up(topic, self._connection(url))
            except BrokerUnreachable as error:
                if error.broker != url:
                    raise
        return self._looked_up(topic, self._connection(self._urls[-1]))

    def _looked_up(self, topic: str, first: _Connection) -> _Connection:
        authoritative = False
        asked = first
        for _ in range(_MOST_REDIRECTS):
            found = asked.ask("LOOKUP", "LOOKUP_RESPONSE", topic=topic, authoritative=authoritative)
            broker = found.get("brokerServiceUrlTls" if is_tls(first.url) else "brokerServiceUrl")
            if not broker:
                kind = "with TLS" if is_tls(first.url) else "without TLS"
                no_address = f"the broker that serves it has no address for connections {kind}"
                reason = found.get("message") or found.get("error") or no_address
                refused = found.get("error") in _NO_RIGHT
                raise (NoRight if refused else ReadFailed)(f"{topic}: {reason}")
            if broker != asked.url:
                asked.works()
            if found.get("response") == "Connect":
                proxied = found.get("proxy_through_service_url") and broker != asked.url
                return self._connection(asked.url, broker) if proxied else self._connection(broker)
            asked, authoritative = self._connection(broker), bool(found.get("authoritative"))
        raise ReadFailed(f"{topic}: the brokers redirect the lookup in a circle")
