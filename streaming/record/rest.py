"""Calls of a real Pulsar's admin REST API."""

import http.client
import math
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

import msgspec

from schemas.commands.nesting import is_deep
from schemas.undecodable import UNDECODABLE
from streaming.broker.config import MOST_PARTITIONS
from streaming.record.unreachable import Unreachable, why_not

_SECONDS = 60
_CONNECT_SECONDS = 10
_MOST_SECONDS = 120
"""A response that is not complete after so long is given up, however steadily it comes."""
_REDIRECTS = (
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
)
_MOST_REDIRECTS = 10
DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""The statuses of a call for which a token lacks the right."""

INCOMPLETE = HTTPStatus.GATEWAY_TIMEOUT
"""The status of a call whose response did not come, or not all of it. Another time, it may."""

NOT_UNDERSTOOD = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""What reading an answer raises that is not like one of Pulsar's."""

_MOST_OF_REDIRECT = 1 << 16
_MOST_BYTES = 64 << 20
"""Of a response. The stats of a topic with 10,000 subscriptions have some 20 MB."""


class BadAdminUrl(ValueError):
    """A URL is not that of an admin API. The text says why."""


class CallFailed(OSError):
    """The admin API can't be reached, or refuses a call. The text says why. `status`: that of the response, None without one.
    `broker`: the one that can't be reached, if others redirect to it."""

    def __init__(self, text: str, status: int | None = None, broker: str | None = None) -> None:
        super().__init__(text)
        self.status, self.broker = status, broker


class _NotConnected(ConnectionError):
    """There is no connection, so nothing was asked."""


class CutOff(Exception):
    """A response ended before its end."""


class Said(NamedTuple):
    """Status and body of a response; `value`: the body as JSON or else as text, None if there is none."""

    status: int
    value: Any


class _Answered(NamedTuple):
    """A response, and the connection to a broker on which it came."""

    broker: str
    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse


class _Idle:
    """Connections that wait for another call. Threads may share it: each has the connections that it took for itself."""

    def __init__(self) -> None:
        self._of: dict[str, list[http.client.HTTPConnection]] = {}

    def take(self, broker: str) -> http.client.HTTPConnection | None:
        try:
            return self._of[broker].pop()
        except LookupError:
            return None

    def keep(self, answered: _Answered) -> None:
        """The response was read, and is closed. If that was not all of it, the connection is of no use."""
        broker, connection, response = answered
        left = response.chunk_left is not None if response.chunked else response.length
        if response.will_close or left:
            connection.close()
        else:
            self._of.setdefault(broker, []).append(connection)


class _Request(NamedTuple):
    """What is asked of a broker. `idle`: connections that may be used."""

    method: str
    headers: dict[str, str]
    body: bytes | None
    idle: _Idle


class Rest:
    """The admin API at a URL, which may name several brokers: ``http://HOST:PORT,HOST:PORT``. One is asked as long as it can be reached, then
    another one. `tls`: whose signatures count for the cluster's certificates; None: those of the system's authorities."""

    def __init__(
        self,
        url: str,
        headers: Callable[[], Mapping[str, str]] = dict,
        tls: ssl.SSLContext | None = None,
        rate: float = math.inf,
    ) -> None:
        """`headers`: makes those of every call by `call` and `get`, such as for authentication. `rate`: how many requests there are per second at most,
        from all threads. One that is redirected is two. Raises `BadAdminUrl`."""
        self.url, self.tls = url.rstrip("/"), tls
        self._brokers = _brokers(self.url)
        self.rate, self.calls = rate, 0
        self._headers = headers
        self._turn, self._next = threading.Lock(), 0.0
        self._unreachable, self._idle = Unreachable(), _Idle()

    def open(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
    ) -> http.client.HTTPResponse:
        """Sends a request, also to the broker that the first one names. The caller reads the response. Raises OSError and
        `http.client.HTTPException`, and ValueError for headers and a target that HTTP does not have."""
        return self._followed(_Request(method, dict(headers), body, _Idle()), target, Unreachable()).response

    def _followed(self, request: _Request, target: str, unreachable: Unreachable) -> _Answered:
        """As `open`. `unreachable`: brokers that are not tried for now."""
        answered = self._first(request, target)
        url = answered.broker + target
        for _ in range(_MOST_REDIRECTS):
            response = answered.response
            if response.status not in _REDIRECTS or not (elsewhere := response.getheader("Location")):
                return answered
            secure = urllib.parse.urlsplit(url).scheme == "https"
            try:
                url = urllib.parse.urljoin(url, elsewhere)
                urllib.parse.urlsplit(url).port  # noqa: B018 - is one that can be
                if secure and urllib.parse.urlsplit(url).scheme == "http":
                    raise ValueError(f"{url} is without TLS, where others could read the token")
            except ValueError as error:
                raise CallFailed(
                    f"{request.method} {target}: redirected to a bad URL: {error}", HTTPStatus.BAD_GATEWAY
                ) from None
            with response, suppress(OSError, http.client.HTTPException):
                response.read(_MOST_OF_REDIRECT)
            request.idle.keep(answered)
            answered = self._elsewhere(request, url, unreachable)
        raise CallFailed(
            f"{request.method} {target}: the brokers redirect it in a circle", HTTPStatus.LOOP_DETECTED
        )

    def _first(self, request: _Request, target: str) -> _Answered:
        """The response of a broker of the URL. The others are asked if it can't be reached."""
        failed = list[str]()
        for broker in self._unreachable.ordered(self._brokers):
            try:
                answered = self._sent(request, broker + target)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, TimeoutError) and not self._is_silent(broker):
                    raise  # that is a trouble of this call
                may_ask_another = request.method == "GET" or isinstance(error, _NotConnected)
                if not may_ask_another:
                    raise
                self._unreachable.failed(broker, str(error))
                failed.append(f"{broker}: {error}" if len(self._brokers) > 1 else str(error))
                continue
            self._unreachable.reached(broker)
            return answered
        raise ConnectionError("; ".join(failed))

    def _is_silent(self, broker: str) -> bool:
        """Whether a broker answers nothing at all."""
        try:
            answered = self._sent(_Request("GET", {}, None, _Idle()), f"{broker}/", _CONNECT_SECONDS)
        except (OSError, http.client.HTTPException):
            return True
        answered.connection.close()
        return False

    def _elsewhere(self, request: _Request, url: str, unreachable: Unreachable) -> _Answered:
        """The response of a broker to which another one redirects. If it can't be reached, that is no trouble of the whole API: raises
        `CallFailed` with a status."""
        broker = _broker(url)
        if (why := unreachable.why(broker)) is not None:
            raise CallFailed(why, HTTPStatus.BAD_GATEWAY, broker)
        try:
            answered = self._sent(request, url)
        except (OSError, http.client.HTTPException) as error:
            why = f"{broker} can't be reached: {error}"
            unreachable.failed(broker, why)
            raise CallFailed(why, HTTPStatus.BAD_GATEWAY, broker) from None
        unreachable.reached(broker)
        return answered

    def _sent(self, request: _Request, url: str, seconds: float | None = None) -> _Answered:
        """The response to a request. `seconds`: how long to wait for it."""
        parts, broker = urllib.parse.urlsplit(url), _broker(url)
        path = urllib.parse.urlunsplit(("", "", parts.path, parts.query, ""))
        method, headers, body, idle = request
        # The broker may have closed an idle connection. It is safe to ask again only for what changes nothing.
        while method == "GET" and (connection := idle.take(broker)) is not None:
            self._wait()
            try:
                connection.request(method, path, body, headers)
                return _Answered(broker, connection, connection.getresponse())
            except (ConnectionError, http.client.HTTPException, ssl.SSLError):
                connection.close()
        host, port = parts.hostname or "", parts.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=_CONNECT_SECONDS, context=self.tls)
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=_CONNECT_SECONDS)
        )
        self._wait()
        _connect(connection, _SECONDS if seconds is None else seconds)
        connection.request(method, path, body, headers)
        try:
            return _Answered(broker, connection, connection.getresponse())
        except http.client.RemoteDisconnected as error:
            if parts.scheme == "https":
                raise
            raise http.client.RemoteDisconnected(
                f"{error} (does it speak TLS? Then the URL begins with https://)"
            ) from None

    def call(self, method: str, path: str, body: Any = None) -> Said:
        """A call below ``/admin/v2``. Raises `CallFailed` if the API can't be reached."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", **self._headers()}
        try:
            request = _Request(method, headers, data, self._idle)
            answered = self._followed(request, f"/admin/v2{path}", self._unreachable)
            with answered.response as response:
                status, said = response.status, _body(response)
            self._idle.keep(answered)
        except TimeoutError:
            raise CallFailed(f"{method} {path}: no response in time", INCOMPLETE) from None
        except CutOff:
            raise CallFailed(f"{method} {path}: the response is cut off", INCOMPLETE) from None
        except CallFailed:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise CallFailed(f"{self.url} can't be reached: {error}") from None
        except ValueError:  # which shows the header, that may be a token
            why = "a header, such as the token, has a line break or another character that none may have"
            raise CallFailed(f"{method} {path}: can't be sent: {why}", HTTPStatus.BAD_GATEWAY) from None
        if len(said) > _MOST_BYTES:
            raise CallFailed(f"{method} {path}: the response has more than {_MOST_BYTES >> 20} MiB", status)
        if is_deep(said, around=1):  # a record that has it is an object
            raise CallFailed(f"{method} {path}: the response nests too deeply", status)
        try:
            return Said(status, msgspec.json.decode(said))
        except UNDECODABLE:
            return Said(status, said.decode(errors="replace") or None)

    def get(self, path: str, type_: Any = dict[str, Any]) -> Any:
        """What a GET shows: an object, or another type that `msgspec.convert` takes. Raises `CallFailed`, also for a status that is an error, and for
        something else than the admin API shows."""
        status, value = self.call("GET", path)
        if status >= HTTPStatus.BAD_REQUEST:
            reason = value.get("reason", "") if isinstance(value, dict) else ""
            text = f"GET {path}: {status} {reason}".rstrip()
            if status in DENIED:
                text += " (the token is missing or not valid, or lacks a right: --token-file)"
            elif status == HTTPStatus.NOT_FOUND and not isinstance(value, dict):  # Pulsar gives a reason
                text += f" ({self.url} does not answer as Pulsar's admin API does: is it one?)"
            raise CallFailed(text, status)
        with understood(self.url):
            return msgspec.convert(value, type_)

    def _wait(self) -> None:
        """Wait for the turn of a request."""
        with self._turn:
            self.calls += 1
            now = time.monotonic()
            turn = max(self._next, now)
            self._next = turn + 1 / self.rate
        if turn > now:
            time.sleep(turn - now)


class TenantShown(msgspec.Struct):
    """What the admin API shows of a tenant."""

    adminRoles: list[str] = []


class PartitionCount(msgspec.Struct):
    """What the admin API shows of a partitioned topic; 0: it is not one."""

    partitions: Annotated[int, msgspec.Meta(ge=0)]


class TooManyPartitions(CallFailed):
    """A topic has more partitions than one may have here. The text says how many."""


def check_partitions(path: str, count: int) -> int:
    """The number of partitions that a GET of a path shows, each of which the caller may name. Raises `TooManyPartitions`."""
    if count > MOST_PARTITIONS:
        why = f"GET {path}: {count:,} partitions: at most {MOST_PARTITIONS:,} are allowed here"
        raise TooManyPartitions(why, HTTPStatus.BAD_GATEWAY)
    return count


def partition_count(rest: Rest, path: str) -> int:
    """As `check_partitions`, of what is asked for. Raises `CallFailed`."""
    shown: PartitionCount = rest.get(path, PartitionCount)
    return check_partitions(path, shown.partitions)


@contextmanager
def understood(url: str) -> Iterator[None]:
    """Raises `CallFailed` where an answer of the admin API is not what its calls show."""
    try:
        yield
    except NOT_UNDERSTOOD as error:
        raise CallFailed(
            f"{url} does not answer like Pulsar's admin API ({error!r}): is it one? Give the URL of a broker or a "
            "proxy, such as http://localhost:8080",
            HTTPStatus.BAD_GATEWAY,
        ) from None


def _brokers(url: str) -> list[str]:
    """The URL of each broker that a URL names. Raises `BadAdminUrl`."""
    scheme, _, hosts = url.partition("://")
    found = [f"{scheme}://{each}" for each in hosts.split(",")]
    for each in found:
        with suppress(ValueError):
            parts = urllib.parse.urlsplit(each)
            is_port = parts.port != 0  # one that is too large raises
            if scheme in ("http", "https") and parts.hostname and is_port and each == _broker(each):
                continue
        raise BadAdminUrl(
            f"{url!r}: expected http://HOST:PORT, such as http://localhost:8080, or several HOST:PORT with commas"
        )
    return found


def _broker(url: str) -> str:
    """The broker of a URL."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _connect(connection: http.client.HTTPConnection, seconds: float) -> None:
    """Raises `_NotConnected`, and `TimeoutError` only from then on: that is a response which does not come."""
    try:
        connection.connect()
    except OSError as error:
        raise _NotConnected(why_not(error)) from None
    connection.sock.settimeout(seconds)


def _body(response: http.client.HTTPResponse) -> bytes:
    """The body, or a part of it that is larger than any may be. Raises `TimeoutError` and `CutOff`."""
    deadline, found = time.monotonic() + _MOST_SECONDS, bytearray()
    try:
        while len(found) <= _MOST_BYTES and (some := response.read1(_MOST_BYTES)):
            found += some
            if time.monotonic() > deadline:
                raise TimeoutError
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise CutOff from error
    if len(found) <= _MOST_BYTES:
        check_whole(response, is_empty=not found)
    return bytes(found)


def check_whole(response: http.client.HTTPResponse, *, is_empty: bool) -> None:
    """Nothing more comes of a response. Raises `CutOff` if it should: bytes of the announced ones are left, or even the headers are cut off, so that
    there is no announcement."""
    if not response.chunked and (response.length or (response.length is None and is_empty)):
        raise CutOff
