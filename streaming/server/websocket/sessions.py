"""The WebSockets of a server: an ASGI application (mirrors `WebSocketService` and its servlets, and `AbstractWebSocketHandler`)."""

import asyncio
import html
import logging
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from streaming.broker.errors import BrokerError
from streaming.protocol.codec import Frame
from streaming.server.admin.http import ABORT
from streaming.server.authentication import NotAuthenticated, TokenAuthentication
from streaming.server.binary import BinaryServer
from streaming.server.stalled import Stalled
from streaming.server.websocket import messages
from streaming.server.websocket.client import Client, NotGranted
from streaming.server.websocket.consumer import WebSocketConsumer
from streaming.server.websocket.known import KnownMessages
from streaming.server.websocket.messages import BadJson, ClientMessageId, Dropped, Fatal, NoText, NotPublished
from streaming.server.websocket.parameters import (
    RELEASES,
    USUAL,
    Asked,
    BadParameter,
    BadPath,
    NoKeyReader,
    asked,
    consumer_options,
    kind_of,
    producer_options,
    reader_options,
)
from streaming.server.websocket.producer import WebSocketProducer

log = logging.getLogger(__name__)

MOST_ANSWERS = 1000
"""Answers that wait for a client to read, and messages of a producer that wait for their receipts. While there are more, nothing is read
from it."""

_STATUS = {
    "AuthenticationError": 401, "AuthorizationError": 403, "TopicNotFound": 404, "ProducerBusy": 409, "ConsumerBusy": 409,
    "ProducerFenced": 409, "IncompatibleSchema": 409, "TooManyRequests": 429, "ProducerBlockedQuotaExceededError": 503,
    "ProducerBlockedQuotaExceededException": 503, "TopicTerminatedError": 503, "_Timeout": 504,
}  # fmt: skip
"""The status of an answer to a WebSocket that is refused, by the error of the broker. All others are 500."""

_INTERNAL_ERROR, _GOING_AWAY = 1011, 1001


class WebSockets:
    """Serves WebSockets, and is an application for them."""

    def __init__(self, server: BinaryServer, profile: Callable[[], str]) -> None:
        """`profile`: that of the broker's configuration."""
        self._server, self._profile = server, profile
        self._waiting = Stalled[_Session]()
        self.known = KnownMessages()

    def beside(self, app: ASGIApp) -> ASGIApp:
        """`app`, and WebSockets at their paths."""

        async def either(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["raw_path"].decode("latin-1") if "raw_path" in scope else scope.get("path", "")
            if scope["type"] == "websocket":
                await self._serve(path, scope, receive, send)
            elif scope["type"] == "http" and kind_of(path) is not None:
                status, what = 405, f"HTTP method {scope['method']} is not supported by this URL"
                try:
                    release = RELEASES.get(self._profile(), USUAL)
                    _token(self._server, scope, release.unauthenticated)
                except _NotAllowed as error:
                    status, what = error.status, str(error)
                await _page(status, what, path)(scope, receive, send)
            else:
                await app(scope, receive, send)

        return either

    async def _serve(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        session = _Session(self._server, scope, receive, send, self._count, self.known, self._profile())
        try:
            await session.run(path)
        except ClientDisconnected:
            log.debug("the client of a WebSocket is gone")
        except Exception as error:
            self._server.bugs.error("a WebSocket can't be served, which is a bug in Magnetar: %r", error)
            scope[ABORT]()
        finally:
            session.close()
            self._waiting.count(session, 0, goes_on=True)

    def _count(self, session: "_Session", size: int, goes_on: bool) -> None:
        """So many bytes wait for a client, since now if it `goes_on`."""
        self._waiting.count(session, size, goes_on=goes_on)
        limit = self._server.limits.held
        while size and self._waiting.total > limit:
            first = self._waiting.first
            self._waiting.count(first, 0, goes_on=True)
            first.drop()
            self._server.exceeded("held", "a WebSocket is closed: too much waits for clients that do not read, and for it for longest")  # fmt: skip


class _Session:
    """One WebSocket."""

    def __init__(
        self, server: BinaryServer, scope: Scope, receive: Receive, send: Send, count: Any, known: KnownMessages, profile: str
    ) -> None:  # fmt: skip
        self._server, self._scope, self._receive, self._send = server, scope, receive, send
        self._release = RELEASES.get(profile, USUAL)
        self._count_all, self._known = count, known
        self._client: Client | None = None
        self._producer: WebSocketProducer | None = None
        self._consumer: WebSocketConsumer | None = None
        self._is_reader = False
        self._out: deque[str] = deque()
        self._bytes = 0
        """Of answers that wait, and of a producer's messages that wait for their receipts, as the client sent them."""
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._ended = asyncio.Event()
        self._reason: tuple[int, str] | None = None
        self._closed = False

    # -- opening

    async def run(self, path: str) -> None:
        """Open it, and serve it until it is closed."""
        await self._receive()  # websocket.connect
        try:
            await self._open(path)
        except BadPath as error:
            if self._server.authentication is not None and not self._release.authenticates_bad_paths:
                return await self._refuse(401, self._release.unauthenticated, path)
            return await self._refuse(500, self._release.unexpected.format(error), path)
        except BadParameter as error:
            if self._is_reader and self._release.readers_apart:
                return await self._refuse(500, f"Failed to create reader: {error}", path)
            return await self._refuse(400, f"Invalid query params: {error}", path)
        except NoKeyReader as error:
            return await self._refuse(500, f"Failed to create producer/consumer: {error}", path)
        except NotGranted as error:
            status, what = _STATUS.get(error.code, 500), "Failed to create producer/consumer"
            if status == 404 and not self._release.says_not_found:
                status = 500
            if self._is_reader and self._release.readers_apart:
                status, what = 500, "Failed to create reader"
            told = error if self._client is None else self._client.told(error)
            return await self._refuse(status, f"{what}: {told}", path)
        except _NotAllowed as error:
            return await self._refuse(error.status, str(error), path)
        await self._send({"type": "websocket.accept"})
        await self._talk()
        return None

    async def _open(self, path: str) -> None:
        kind = kind_of(path)
        if kind is None or path.startswith(self._release.paths):
            raise _NotAllowed(404, "Not Found")
        self._is_reader = kind == "reader"
        token = _token(self._server, self._scope, self._release.unauthenticated)
        wanted = asked(kind, path, self._scope["query_string"].decode("latin-1"), self._release)
        if kind == "producer":
            self._check_role(wanted, token)
            producer_wanted = producer_options(wanted)
            client = await self._connect(token)
            self._producer = WebSocketProducer(client, producer_wanted)
            await self._producer.open(wanted.topics[0])
            return
        options = reader_options(wanted) if kind == "reader" else consumer_options(wanted)
        self._check_role(wanted, token)
        client = await self._connect(token)
        self._consumer = WebSocketConsumer(
            client, wanted.subscription, options, self._wake.set, self._count, self._known
        )
        if wanted.pattern is not None:
            await self._consumer.open_pattern(wanted.pattern)
        else:
            await self._consumer.open(wanted.topics)

    async def _connect(self, token: str | None) -> Client:
        self._client = Client(self._server, token, self._scope.get("client"), self.lost)
        await self._client.connect()
        return self._client

    def _check_role(self, wanted: Asked, token: str | None) -> None:
        """Raise `_NotAllowed` if the client's role may not use the topic."""
        authentication, authorization = self._server.authentication, self._server.authorization
        if authorization is None or authentication is None:
            return
        role = _role(authentication, token) or authorization.anonymous or ""
        cmd = "PRODUCER" if wanted.kind == "producer" else "SUBSCRIBE"
        for topic in wanted.topics or (wanted.pattern,):
            fields = {"topic": topic, "subscription": wanted.subscription}
            try:
                authorization.check_frame(role, Frame("", cmd, fields))
            except BrokerError as error:
                if not self._release.knows_missing_tenants or str(error).startswith(
                    "Client is not authorized"
                ):
                    raise _NotAllowed(403, "Not authorized") from None
                raise _NotAllowed(500, "Server error") from None

    async def _refuse(self, status: int, why: str, path: str) -> None:
        log.info("a WebSocket is refused: %s: %s", unquote(path), why)
        await _page(status, why, path)(self._scope, self._receive, self._send)

    # -- open

    async def _talk(self) -> None:
        writer = asyncio.create_task(self._write())
        reader = asyncio.create_task(self._read())
        over = asyncio.create_task(self._ended.wait())
        tasks = {writer, reader, over}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            if self._reason is not None:
                code, reason = self._reason
                await self._send({"type": "websocket.close", "code": code, "reason": _short(reason)})
        except Fatal as error:
            has_text = self._release.names_exceptions or not isinstance(error, NoText)
            reason = _short(str(error)) if has_text else ""
            await self._send({"type": "websocket.close", "code": _INTERNAL_ERROR, "reason": reason})
        except Dropped as error:
            log.info("a WebSocket is closed: %s", error)
            self._scope[ABORT]()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self) -> None:
        """Send what is due, one after the other, each in a round of the loop."""
        while True:
            text = self._next_text()
            if text is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            if text:
                await self._send({"type": "websocket.send", "text": text})
            await asyncio.sleep(
                0
            )  # a client that reads as fast as it gets would have all the time of the loop

    def _next_text(self) -> str | None:
        if self._out:
            text = self._out.popleft()
            self._keep(-len(text))
            self._make_room()
            return text
        return None if self._consumer is None else self._consumer.next_text()

    def _answer(self, text: str) -> None:
        self._out.append(text)
        self._keep(len(text))
        self._wake.set()

    def _keep(self, size: int) -> None:
        """So many bytes more wait. Those of a consumer's answers, which are short, are not in the sum of all."""
        self._bytes += size
        if self._producer is not None:
            self._count(self._bytes, size < 0)

    def _make_room(self) -> None:
        pending = 0 if self._producer is None else self._producer.pending
        if len(self._out) + pending < MOST_ANSWERS and self._bytes < self._server.limits.buffered:
            self._room.set()
            return
        self._room.clear()
        if self._producer is not None:
            self._producer.flush()  # a batch may wait for more, or for weeks

    async def _read(self) -> None:
        """Take what the client sends, until it has closed."""
        assert self._client is not None
        while True:
            message: Message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            if (text := message.get("text")) is None:  # quirk: Pulsar takes no notice of binary messages
                continue
            if self._producer is not None:
                self._publish(self._producer, text)
            elif self._consumer is not None:
                try:
                    await self._obey(self._consumer, text)
                except Dropped:
                    if self._release.drops:
                        raise
            self._make_room()
            await self._room.wait()
            await self._client.drained()

    def _publish(self, producer: WebSocketProducer, text: str) -> None:
        found = messages.published(text, is_encrypted=producer.is_encrypted)
        if isinstance(found, NotPublished):
            self._answer(messages.refused(found))
            return
        if not self._release.early_event_times and found.event_time is not None and found.event_time <= 0:
            raise Fatal(f"Invalid timestamp : '{found.event_time}'")
        context, size = found.context, len(text)
        self._keep(size)

        def done(result: ClientMessageId | NotPublished) -> None:
            if isinstance(result, ClientMessageId):
                self._answer(messages.receipt(result.encoded(), context))
            else:
                self._answer(messages.refused(result._replace(context=context)))
            self._keep(-size)
            self._make_room()

        producer.send(found, done)

    async def _obey(self, consumer: WebSocketConsumer, text: str) -> None:
        try:
            command = messages.command(text)
        except BadJson as error:
            raise Dropped(str(error)) from None
        match command["type"]:
            case "isEndOfTopic":
                self._answer(messages.end_of_topic(reached=consumer.reached_end))
            case _ if self._is_reader:
                consumer.resume()
            case "permit":
                if command["permitMessages"] is None:
                    raise Dropped("Missing required permitMessages field for 'permit' command")
                consumer.permit(command["permitMessages"])
            case "unsubscribe":
                try:
                    await consumer.unsubscribe()
                except NotGranted as error:
                    raise Dropped(f"it can't unsubscribe: {error}") from None
            case "negativeAcknowledge":
                consumer.nack(ClientMessageId.of(command["messageId"]))
            case _:
                consumer.ack(ClientMessageId.of(command["messageId"]))

    def _count(self, size: int, goes_on: bool) -> None:
        if not self._closed:  # something may come later
            self._count_all(self, size, goes_on)

    # -- the end

    def lost(self) -> None:
        """The connection to the broker has ended."""
        self._reason = self._reason or (_INTERNAL_ERROR, "the connection to the broker was closed")
        self._ended.set()

    def drop(self) -> None:
        """End it at once."""
        self._closed = True
        self._scope[ABORT]()

    def close(self) -> None:
        """It is closed: its producer or consumer goes, too."""
        self._closed = True
        if self._producer is not None:
            self._producer.flush()
        if self._consumer is not None:
            self._consumer.close()
        if self._client is not None:
            self._client.close()


class _NotAllowed(Exception):
    """A WebSocket is refused with this HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def _token(server: BinaryServer, scope: Scope, refusal: str) -> str | None:
    """The token of a request: in its header, or else in the query, where pages can put it. None: everybody may connect. Raises `_NotAllowed`."""
    if server.authentication is None:
        return None
    header = dict(scope["headers"]).get(b"authorization")
    if header is None:
        token: str | None = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token")
    else:
        scheme, _, value = header.decode("latin-1").partition(" ")
        token = value if scheme == "Bearer" else None
    try:
        if token is None:
            raise NotAuthenticated("no token")
        server.authentication.expiry(token)
    except NotAuthenticated:
        if server.authorization is None or server.authorization.anonymous is None:
            raise _NotAllowed(401, refusal) from None
        return None
    return token


def _role(authentication: TokenAuthentication, token: str | None) -> str:
    return "" if token is None else authentication.principal({"auth_data": token})


def _short(reason: str) -> str:
    """A reason fits into a frame of 125 bytes, with its code."""
    return reason.encode()[:120].decode(errors="ignore")


def _page(status: int, what: str, path: str) -> Response:
    """An answer with an error as Jetty gives it."""
    text, uri = html.escape(what).replace("&#x27;", "&apos;"), html.escape(path)
    title = f"{status} {text}"
    body = (
        f"<html>\n<head>\n<title>Error {title}</title>\n</head>\n<body><h2>HTTP ERROR {title}</h2>\n<table>\n"
        f"<tr><th>URI:</th><td>{uri}</td></tr>\n<tr><th>STATUS:</th><td>{status}</td></tr>\n"
        f"<tr><th>MESSAGE:</th><td>{text}</td></tr>\n</table>\n</body>\n</html>\n"
    )
    return Response(body, status, media_type="text/html;charset=iso-8859-1")
