"""A proxy between clients and a real Pulsar's admin API, which records the calls that concern topics."""

import asyncio
import base64
import http.client
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from schemas.commands.nesting import is_deep
from schemas.undecodable import UNDECODABLE
from streaming.broker.admin_requests import may_have_secrets
from streaming.record.proxy import BadBrokerUrl, Proxy
from streaming.record.recording import Recording
from streaming.record.rest import CallFailed, CutOff, Rest, check_whole
from streaming.traces.ungated import Unrecorded

MOST_BYTES = 16 << 20
"""Of a request's body, and of a response's in the recording."""

_CALLS = 64
"""That are under way at a time. Further ones wait."""

_CHUNK = 1 << 16
_ADMIN, _LOOKUP = "/admin/v2", "/lookup/v2/topic/"
_DOMAINS = ("persistent", "non-persistent")
_RECORDED = (*_DOMAINS, "namespaces", "tenants", "schemas")
_OF_PULSAR_1 = (*_DOMAINS, "namespaces", "properties")
_READS = ("GET", "HEAD", "OPTIONS")
_PER_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "accept-encoding", "content-length",
     "proxy-authenticate", "proxy-authorization"}
)  # fmt: skip
_OWN = _PER_HOP | {"date"}
"""Headers of an answer that the server itself sends."""


class _Broken(Exception):
    """The broker's answer ends before its end. The text says so."""


class _Passing(NamedTuple):
    """A call that changes something and can't be recorded: what it is, its topic, and when it was made (ms)."""

    what: Unrecorded
    topic: str | None
    since: int


class _Ack(msgspec.Struct):
    errorCode: int = 0


class _Acks(msgspec.Struct):
    """What is used of the answer to POST /topics/…."""

    messagePublishResults: list[_Ack]


class AdminProxy:
    """An ASGI application. `url`: where clients reach it."""

    def __init__(self, recording: Recording, rest: Rest, proxy: Proxy, url: str) -> None:
        self._recording, self._rest, self._proxy, self._url = recording, rest, proxy, url
        self._threads = ThreadPoolExecutor(_CALLS, "admin-call")

    def close(self) -> None:
        """End, when the calls under way have."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request of a client. If the answer is cut off when some of it has been passed on, the connection is closed."""
        if scope["type"] == "http":
            try:
                response = await self._response(Request(scope, receive))
            except ClientDisconnect:  # nobody is there to be answered
                return
            with suppress(_Broken):
                await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                return _reason(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {MOST_BYTES:,} bytes")
        query = request.scope["query_string"].decode("latin-1")
        target = request.scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        if not target.startswith("/"):  # after the broker's address, it would make another one
            return _reason(HTTPStatus.BAD_REQUEST, f"{target[:100]!r}: expected a path that begins with /")
        headers = [(name, value) for name, value in request.headers.items() if name not in _PER_HOP]
        call = self._record(request.method, target, body)
        passing = _passing(request.method, target, self._recording.now())
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(
                self._threads, self._rest.open, request.method, target, headers, body or None
            )
        except CallFailed as error:  # where a broker redirects to
            return _reason(HTTPStatus.BAD_GATEWAY, str(error))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return _reason(HTTPStatus.BAD_GATEWAY, f"{self._rest.url} can't be reached: {error}")
        shown = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN}
        parts = self._body(answer, call, passing)
        try:
            if target.startswith(_LOOKUP) and answer.status == HTTPStatus.OK:
                return await self._lookup(b"".join([each async for each in parts]))
            first = await anext(parts, b"")
        except (_Broken, BadBrokerUrl) as error:
            return _reason(HTTPStatus.BAD_GATEWAY, f"{request.method} {target[:100]}: {error}")

        async def whole() -> AsyncIterator[bytes]:
            async with aclosing(parts):
                yield first
                async for chunk in parts:
                    yield chunk

        return StreamingResponse(whole(), answer.status, shown)

    async def _body(
        self, answer: http.client.HTTPResponse, call: int | None, passing: _Passing | None
    ) -> AsyncGenerator[bytes, None]:
        """The body of a response. It is recorded with its status before its last part goes on, so before the client can know that it is
        whole and end the recording, or else counted. Raises `_Broken`."""
        kept: bytearray | None = bytearray()
        is_kept = call is not None or passing is not None
        is_empty = True

        async def read() -> bytes:
            nonlocal is_empty
            try:
                found = await asyncio.get_running_loop().run_in_executor(self._threads, answer.read, _CHUNK)
                if not found:
                    check_whole(answer, is_empty=is_empty)
            except (OSError, http.client.HTTPException, CutOff):
                raise _Broken("the broker's answer is cut off") from None
            is_empty = False
            return found

        try:
            with answer:
                chunk = await read()
                while chunk:
                    if kept is not None and not (is_kept and len(kept) + len(chunk) <= MOST_BYTES):
                        kept = None
                    if kept is not None:
                        kept += chunk
                    if not (following := await read()):
                        break
                    yield chunk
                    chunk = following
            if call is not None:
                self._recording.answer(call, answer.status, **_shown(answer, kept))
            yield chunk
        finally:  # whether or not the client waits for the end
            if passing is not None and answer.status < HTTPStatus.BAD_REQUEST:
                count = _done(passing, kept)
                self._recording.not_recorded(passing.what, passing.topic, passing.since, count)

    def _record(self, method: str, target: str, body: bytes) -> int | None:
        """Record a call, if it concerns topics and may not have passwords. Returns its number."""
        path = target.removeprefix(_ADMIN)
        if path == target or path.lstrip("/").partition("/")[0] not in _RECORDED or may_have_secrets(path):
            return None
        try:
            value = msgspec.json.decode(body) if body.strip() and not is_deep(body) else None
        except UNDECODABLE:
            return None  # the broker refuses it
        return self._recording.call(method, path, value)

    async def _lookup(self, body: bytes) -> Response:
        """The answer to an HTTP lookup, with the proxy's addresses. Raises `BadBrokerUrl`."""
        try:
            found = msgspec.json.decode(body, type=dict[str, Any])
        except UNDECODABLE:
            return Response(body)  # a bundle
        if self._proxy.is_tls:
            found["brokerUrl"] = found.get("brokerUrlTls")
        named = found.get("brokerUrl")
        if not isinstance(named, str | None):
            raise BadBrokerUrl(f"{named!r}: expected the URL of a broker")
        for name in found:
            if name.endswith(("Ssl", "Tls", "UrlTLS")):
                found[name] = None
            elif name in ("brokerUrl", "nativeUrl"):
                found[name] = await self._proxy.url_of(named) if named else None
            elif name == "httpUrl":
                found[name] = self._url
        return JSONResponse(found)


def _passing(method: str, target: str, now: int) -> _Passing | None:
    """What passes and changes something without being recorded."""
    root, *parts = [part for part in target.partition("?")[0].split("/") if part] or [""]
    if method in _READS or not parts:
        return None
    if root == "topics" and parts[0] in _DOMAINS and len(parts) > 3:
        return _Passing("rest", _topic(parts[:4]), now)
    if root == "admin" and parts[0] in _OF_PULSAR_1:
        return _Passing("v1", _topic(parts[:5]) if parts[0] in _DOMAINS and len(parts) > 4 else None, now)
    return None


def _topic(parts: list[str]) -> str:
    domain, *names, name = parts
    return f"{domain}://{'/'.join(names)}/{unquote(name)}"


def _done(passing: _Passing, body: bytearray | None) -> int:
    """How many calls it was, or messages that are stored, by the answer."""
    if passing.what == "rest" and body:
        try:
            acks = msgspec.json.decode(body, type=_Acks).messagePublishResults
        except UNDECODABLE:
            return 1
        return sum(not each.errorCode for each in acks)
    return 1


def _shown(answer: http.client.HTTPResponse, body: bytearray | None) -> dict[str, Any]:
    """What a recording has of a response besides its status: JSON that is not too deep, or a message with its headers."""
    own = {name: value for name, value in answer.getheaders() if name.lower().startswith("x-pulsar-")}
    found: dict[str, Any] = {"headers": own} if own else {}
    if not body:
        return found
    if own:
        return _binary(found, body)
    if is_deep(bytes(body)):
        return found
    try:
        return {**found, "response": msgspec.json.decode(body)}
    except UNDECODABLE:
        return _binary(found, body)


def _binary(found: dict[str, Any], body: bytearray) -> dict[str, Any]:
    return {**found, "response": {"base64": base64.b64encode(body).decode()}}


def _reason(status: HTTPStatus, text: str) -> Response:
    return JSONResponse({"reason": text}, status)
