"""The admin REST API as an ASGI application: each call becomes ADMIN commands of the engine, and their answers one response."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.commands import Admin, MessageMetadata, RunCheck
from schemas.commands.nesting import is_deep
from schemas.effects import AdminResponse, Quarantined
from schemas.entries import EntryNotFound
from streaming.broker.admin import topic_of
from streaming.broker.context import CLUSTER
from streaming.broker.policies.arguments import query
from streaming.protocol.admin_calls import http_response, on_partitions
from streaming.server.admin import merging
from streaming.server.admin.routes import ABSENT, LOCAL, NEW_PARTITIONS, ROUTES, UNSUPPORTED, Route
from streaming.server.clients import Clients
from streaming.server.engine import Engine, EngineStopped, NoAnswer

VERSION = "4.0.7"
"""The version of Pulsar that clients are told."""

MOST_BYTES = 1 << 20
"""Of a request's body."""

_HEALTH = "persistent://public/default/healthcheck"
_BUNDLE = "0x00000000_0xffffffff"
_METHODS = ("GET", "PUT", "POST", "DELETE")

Handler = Callable[[Request], Awaitable[Response]]


def application(engine: Engine, service_url: str, admin_url: str, clients: Clients | None = None) -> ASGIApp:
    """The application. `service_url` and `admin_url`: where clients reach the binary protocol and this API. `clients`: what
    is known of them."""
    return _Encoded(
        _Api(engine, service_url, admin_url, Clients() if clients is None else clients).starlette()
    )


class _Encoded:
    """Routes by the encoded path, so that a name may have an encoded slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["raw_path"].decode("latin-1")
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


class _Api:
    def __init__(self, engine: Engine, service_url: str, admin_url: str, clients: Clients) -> None:
        self._engine, self._clients = engine, clients
        self._service_url, self._admin_url = service_url, admin_url
        scheme, _, self._broker = admin_url.partition("://")
        self._tls = "Tls" if scheme == "https" else ""
        """What the names of URLs end in."""

    def starlette(self) -> Starlette:
        local = {route.path: getattr(self, name) for route, name in zip(LOCAL, _LOCAL, strict=True)}
        of_topics = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
        return Starlette(
            routes=[
                *(
                    http
                    for route in _literal_first({*LOCAL, *ROUTES})
                    for http in _http(
                        route.method,
                        route.path,
                        local[route.path] if route in LOCAL else self._of_engine(route),
                    )
                ),
                *(
                    http
                    for path, unset in UNSUPPORTED.items()
                    for method in _METHODS
                    for http in _http(method, path, _unsupported if method != "GET" else _unset(unset))
                ),
                *(HttpRoute(path, _absent(*answer), methods=_METHODS) for path, answer in ABSENT.items()),
                HttpRoute(of_topics, self._lookup, methods=["GET"]),
                HttpRoute(f"{of_topics}/bundle", self._lookup_bundle, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _refused, EngineStopped: _stopped, NoAnswer: _stopped},
        )

    # -- calls that are commands

    def _of_engine(self, route: Route) -> Handler:
        async def handle(request: Request) -> Response:
            command = Admin(method=route.method, path=_path(request), body=await _body(request))  # type: ignore[arg-type]
            return await self._answer(route, command)

        return handle

    async def _answer(self, route: Route, command: Admin) -> Response:
        topic = topic_of(command.path)
        if topic is None:
            return self._response(merging.first_failure(await self._call(None, command)))
        partitions = await self._engine.partitions(topic)
        if route.path.endswith(("/partitioned-stats", "/partitioned-internalStats", "/terminate/partitions")):
            return await self._of_partitions(route, command, topic, partitions)
        if route.path.endswith("/internal-info"):
            return await self._internal_info(command, topic, partitions)
        if partitions and route.refusal:
            return _reason(405, route.refusal)
        if (partitions and route.on_partitioned == "whole") or route == NEW_PARTITIONS:
            return self._response(merging.first_failure(await self._call(None, command)))
        if not partitions or route.on_partitioned == "one":
            return self._response(merging.first_failure(await self._call(topic, command)))
        answers = [answer for _, answer in await self._on_each(command, partitions)]
        return self._response(merging.of_partitions(answers))

    async def _on_each(self, command: Admin, partitions: int) -> list[tuple[str, AdminResponse]]:
        return [
            (partition, merging.first_failure(await self._call(partition, call)))
            for partition, call in on_partitions(command, partitions)
        ]

    async def _of_partitions(self, route: Route, command: Admin, topic: str, partitions: int) -> Response:
        """Calls that only partitioned topics have."""
        if not partitions:
            return _reason(404, f"Partitioned Topic {topic} not found")
        rest = route.path.rpartition("/")[2]
        asked, method = {
            "partitioned-stats": ("/stats", "GET"),
            "partitioned-internalStats": ("/internalStats", "GET"),
            "partitions": ("/terminate", "POST"),
        }[rest]
        path = command.path.partition("?")[0]
        base = "/".join(path.split("/")[:5])
        answers = await self._on_each(Admin(method=method, path=base + asked), partitions)  # type: ignore[arg-type]
        found: dict[str, Any] = {
            partition: answer.fields.response
            for partition, answer in answers
            if answer.fields.status == 200  # else the partition was deleted
        }
        if rest == "partitions":
            return _json(200, {partition.rpartition("-")[2]: each for partition, each in found.items()})
        metadata = await self._call(None, Admin(method="GET", path=f"{base}/partitions"))
        shown = {"metadata": metadata[0].fields.response}
        parts = {
            partition: merging.internal_stats(each)
            if rest == "partitioned-internalStats"
            else self._stats(partition, each, command.path)
            for partition, each in found.items()
        }
        total = {} if rest == "partitioned-internalStats" else merging.sum_of([*parts.values()])
        return _json(200, {**total, **shown, "partitions": parts})

    async def _internal_info(self, command: Admin, topic: str, partitions: int) -> Response:
        path = command.path.partition("?")[0].removesuffix("/internal-info") + "/internalStats"
        asked = Admin(method="GET", path=path)
        if not partitions:
            answer = merging.first_failure(await self._call(topic, asked))
            if answer.fields.status >= 400:
                return self._response(answer)
            return _json(200, merging.internal_info(answer.fields.response))
        found = {
            partition: merging.internal_info(answer.fields.response)
            for partition, answer in await self._on_each(asked, partitions)
            if answer.fields.status == 200
        }
        return _json(200, {"version": 0, "partitions": found})

    async def _call(self, topic: str | None, command: Admin) -> list[AdminResponse]:
        """The answers to a command, one from each ingress partition."""
        rows = [row.effect for row in await self._engine.submit(topic, command)]
        answers = [effect for effect in rows if isinstance(effect, AdminResponse)]
        if not answers:
            causes = [effect.cause for effect in rows if isinstance(effect, Quarantined)]
            raise HTTPException(400, "; ".join(causes))
        return answers

    def _response(self, answer: AdminResponse) -> Response:
        cause = answer.cause.partition("?")[0]
        value = answer.fields.response
        if answer.fields.status == 200 and value is not UNSET and cause.endswith("/stats"):
            return _json(200, self._stats(answer.topic or "", value, answer.cause))
        if answer.fields.status == 200 and value is not UNSET and cause.endswith("/internalStats"):
            return _json(200, merging.internal_stats(value))
        try:
            found = http_response(answer, self._stored)
        except EntryNotFound as error:
            return _reason(500, f"the entry can't be read: {error}")
        headers = {name: _header(text) for name, text in found.headers.items()}
        return Response(found.body, found.status, headers)

    def _stats(self, topic: str, found: Any, path: str) -> Any:
        shown = self._clients.describe(topic, merging.stats(found))
        asked = query(path)
        if asked.get("excludePublishers") == "true":
            shown["publishers"] = []
        if asked.get("excludeConsumers") == "true":
            shown["subscriptions"] = {
                name: each | {"consumers": []} for name, each in shown["subscriptions"].items()
            }
        return shown

    def _stored(self, topic: str, ledger: int, entry: int) -> tuple[MessageMetadata, bytes]:
        found = self._engine.entry(topic, ledger, entry)
        return found.metadata, found.payload

    # -- calls without state

    async def _cluster(self, request: Request) -> Response:
        answer = merging.first_failure(await self._call(None, Admin(method="GET", path=_path(request))))
        if answer.fields.response != {} or request.path_params["cluster"] != CLUSTER:
            return self._response(answer)
        tls = self._tls
        urls = {f"serviceUrl{tls}": self._admin_url, f"brokerServiceUrl{tls}": self._service_url}
        return _json(200, {**urls, "brokerClientTlsEnabled": False, "tlsAllowInsecureConnection": False})

    async def _brokers(self, request: Request) -> Response:
        if request.path_params.get("cluster", CLUSTER) != CLUSTER:
            return _reason(404, f"Cluster {request.path_params['cluster']} does not exist.")
        return _json(200, [self._broker])

    async def _leader(self, request: Request) -> Response:
        return _json(200, {"serviceUrl": self._admin_url, "brokerId": self._broker})

    async def _health(self, request: Request) -> Response:
        await self._engine.partitions(_HEALTH)  # which fails if the engine does
        return Response("ok", media_type="text/plain")

    async def _version(self, request: Request) -> Response:
        return Response(VERSION, media_type="text/plain")

    async def _internal(self, request: Request) -> Response:
        return _json(200, {"ledgersRootPath": "/ledgers"})

    async def _owned(self, request: Request) -> Response:
        if request.path_params["broker"] != self._broker:
            return _reason(
                404, f"Broker id '{request.path_params['broker']}' not found in available brokers."
            )
        tenants = await self._found("/tenants")
        names = [name for tenant in tenants for name in await self._found(f"/namespaces/{tenant}")]
        owned = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return _json(200, {f"{name}/{_BUNDLE}": owned for name in names})

    async def _found(self, path: str) -> list[str]:
        found = merging.first_failure(await self._call(None, Admin(method="GET", path=path))).fields.response
        return found if isinstance(found, list) else []

    async def _check_quotas(self, request: Request) -> Response:
        await self._engine.submit(None, RunCheck(check="backlogQuota"))
        return Response(status_code=204)

    # -- lookup

    async def _lookup(self, request: Request) -> Response:
        if (refused := await self._refuse_lookup(request)) is not None:
            return refused
        url = self._service_url
        found = {f"brokerUrl{self._tls}": url, f"httpUrl{self._tls}": self._admin_url}
        return _json(200, {**found, "nativeUrl": url, "brokerUrlSsl": ""})

    async def _lookup_bundle(self, request: Request) -> Response:
        return await self._refuse_lookup(request) or Response(_BUNDLE, media_type="text/plain")

    async def _refuse_lookup(self, request: Request) -> Response | None:
        parts = request.path_params
        if parts["domain"] not in _DOMAINS:
            return _reason(404, f"no topics of the kind {parts['domain']}")
        path = f"/namespaces/{parts['tenant']}/{parts['namespace']}"
        answer = merging.first_failure(await self._call(None, Admin(method="GET", path=path)))
        if answer.fields.status < 400:
            return None
        return (
            _reason(answer.fields.status, "Namespace not found")
            if answer.fields.status == 404
            else self._response(answer)
        )


_LOCAL = (
    "_cluster", "_brokers", "_brokers", "_leader", "_health", "_health", "_version", "_internal", "_owned", "_check_quotas",
)  # fmt: skip
"""The handlers of `LOCAL`, in its order."""


_DOMAINS = ("persistent", "non-persistent")


def _http(method: str, path: str, handler: Handler) -> Iterator[HttpRoute]:
    for domain in _DOMAINS if path.startswith("/{domain}/") else ("",):
        yield HttpRoute(f"/admin/v2{path.replace('{domain}', domain)}", handler, methods=[method])


def _literal_first(routes: Iterable[Route]) -> list[Route]:
    """The routes in an order in which a route with a name goes before one with a parameter at that place."""
    return sorted(routes, key=lambda route: [(part.startswith("{"), part) for part in route.path.split("/")])


def _path(request: Request) -> str:
    """The path below ``/admin/v2`` as the client encoded it, with its query."""
    path = request.scope["path"].removeprefix("/admin/v2")
    asked = request.scope["query_string"].decode("latin-1")
    return f"{path}?{asked}" if asked else path


async def _body(request: Request) -> Any:
    """The body as JSON; None if it is empty. Raises `HTTPException`."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"the body has more than {MOST_BYTES:,} bytes")
    if not body.strip():
        return None
    if is_deep(body):
        raise HTTPException(400, "the body nests too deep")
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None


def _header(text: str) -> str:
    """A header's value as bytes of UTF-8, which cannot end the header."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return clean.encode("utf-8", "replace").decode("latin-1")


def _json(status: int, value: Any) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _reason(status: int, reason: str) -> Response:
    return _json(status, {"reason": reason})


async def _unsupported(request: Request) -> Response:
    return _reason(501, f"{request.method} {_path(request)} is not supported")


def _absent(status: int, reason: str) -> Handler:
    async def handle(request: Request) -> Response:
        return _reason(status, reason)

    return handle


def _unset(value: Any) -> Handler:
    async def handle(request: Request) -> Response:
        return Response() if value is None else _json(200, value)

    return handle


async def _refused(request: Request, error: Exception) -> Response:
    """Unknown paths, other methods, and bad bodies."""
    assert isinstance(error, HTTPException)
    reason = {
        404: f"{request.method} {request.url.path} is not supported",
        405: f"{request.method} is not allowed here",
    }
    found = _reason(error.status_code, reason.get(error.status_code, error.detail))
    found.headers.update(error.headers or {})
    return found


async def _stopped(request: Request, error: Exception) -> Response:
    return _reason(503, str(error))
