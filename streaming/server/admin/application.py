"""The admin REST API as an ASGI application: each call becomes ADMIN commands of the engine, and their answers one response."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.commands import Admin, MessageMetadata, Publish, RunCheck
from schemas.commands.nesting import is_deep
from schemas.effects import AdminResponse, Quarantined, SendError, SendReceipt
from schemas.entries import EntryNotFound
from streaming.broker import bundles
from streaming.broker.admin import topic_of
from streaming.broker.context import CLUSTER, namespace_of
from streaming.broker.names import partition_of
from streaming.broker.policies.arguments import query
from streaming.protocol.admin_calls import http_response, on_partitions, topic_path
from streaming.protocol.frames import NotUncompressed
from streaming.server.admin import broker_stats, merging, rest_producer
from streaming.server.admin.routes import ABSENT, LOCAL, NEW_PARTITIONS, ROUTES, UNSUPPORTED, Route
from streaming.server.clients import Clients
from streaming.server.engine import Engine, EngineStopped, NoAnswer

VERSION = "4.0.7"
"""The version of Pulsar that clients are told."""

MOST_BYTES, MOST_BYTES_OF_ALL = 1 << 20, 64 << 20
"""Of a request's body, and of all that are being read."""

_HEALTH = "persistent://public/default/healthcheck"
_METHODS = ("GET", "PUT", "POST", "DELETE")
_REST_TOPIC = "/topics/{domain}/{tenant}/{namespace}/{topic}"

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
            try:
                unquote(path, errors="strict")
            except UnicodeDecodeError:
                await _reason(400, "the path is not UTF-8")(scope, receive, send)
                return
            scope = {**scope, "path": _of_version_2(path.rstrip("/")) or "/"}
        await self._app(scope, receive, send)


class _Api:
    def __init__(self, engine: Engine, service_url: str, admin_url: str, clients: Clients) -> None:
        self._engine, self._clients, self._bodies = engine, clients, Bodies()
        self._service_url, self._admin_url = service_url, admin_url
        self._entry = asyncio.Lock()
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
                HttpRoute(_REST_TOPIC, self._produce, methods=["POST"]),
                HttpRoute(f"{_REST_TOPIC}/partitions/{{partition:int}}", self._produce, methods=["POST"]),
                HttpRoute(of_topics, self._lookup, methods=["GET"]),
                HttpRoute(f"{of_topics}/bundle", self._lookup_bundle, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _refused, EngineStopped: _stopped, NoAnswer: _stopped},
        )

    async def _body(self, request: Request) -> Any:
        return _decoded(await self._bodies.of(request))

    # -- calls that are commands

    def _of_engine(self, route: Route) -> Handler:
        async def handle(request: Request) -> Response:
            destination = request.query_params.get("destinationBroker", self._broker)
            if route.path.endswith("/unload") and destination != self._broker:
                return _reason(409, "Not allowed unload namespace bundle to inactive destination broker")
            command = Admin(method=route.method, path=_path(request), body=await self._body(request))  # type: ignore[arg-type]
            return await self._answer(route, command)

        return handle

    async def _answer(self, route: Route, command: Admin) -> Response:
        topic = topic_of(command.path)
        if topic is None:
            return await self._response(merging.first_failure(await self._call(None, command)))
        partitions = await self._engine.partitions(topic)
        if route.path.endswith(("/partitioned-stats", "/partitioned-internalStats", "/terminate/partitions")):
            return await self._of_partitions(route, command, topic, partitions)
        if route.path.endswith("/internal-info"):
            return await self._internal_info(command, topic, partitions)
        if partitions and route.refusal:
            return _reason(405, route.refusal)
        if (partitions and route.on_partitioned == "whole") or route == NEW_PARTITIONS:
            return await self._response(merging.first_failure(await self._call(None, command)))
        if not partitions or route.on_partitioned == "one":
            return await self._response(merging.first_failure(await self._call(topic, command)))
        answers = [answer for _, answer in await self._on_each(command, partitions)]
        return await self._response(merging.of_partitions(answers))

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
                return await self._response(answer)
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

    async def _response(self, answer: AdminResponse) -> Response:
        cause = answer.cause.partition("?")[0]
        value = answer.fields.response
        if answer.fields.status == 200 and value is not UNSET and cause.endswith("/stats"):
            return _json(200, self._stats(answer.topic or "", value, answer.cause))
        if answer.fields.status == 200 and value is not UNSET and cause.endswith("/internalStats"):
            return _json(200, merging.internal_stats(value, answer.topic or ""))
        try:
            if answer.ledger_id is None:
                found = http_response(answer, self._stored)
            else:  # up to 32 MiB are uncompressed: between two of those, everybody else has a turn
                async with self._entry:
                    found = http_response(answer, self._stored)
                    await asyncio.sleep(0)
        except EntryNotFound as error:
            return _reason(500, f"the entry can't be read: {error}")
        except NotUncompressed as error:
            return _reason(500, f"the payload can't be uncompressed: {error}")
        headers = {name: _header(text) for name, text in found.headers.items()}
        return Response(found.body, found.status, headers)

    def _stats(self, topic: str, found: Any, path: str) -> Any:
        shown = self._clients.describe(topic, merging.stats(found)) | {"ownerBroker": self._broker}
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

    # -- messages through HTTP

    async def _produce(self, request: Request) -> Response:
        if not self._engine.shows_topic_events:
            return _reason(501, "messages can't be published through HTTP before a query that runs elsewhere")
        topic = _topic(request)
        asked = request.path_params.get("partition")
        partitions = await self._engine.partitions(topic)
        try:
            given = rest_producer.messages_of(await self._body(request))
            schema = rest_producer.schema_of(given)
            now, name = self._engine.now(), given.producer_name
            commands = [
                rest_producer.command(message, schema, name, number, now)
                for number, message in enumerate(given.messages)
            ]
        except rest_producer.BadMessage as error:
            return _reason(400, str(error))
        path = topic_path(topic, "/partitions" if partitions else "/stats")
        found = merging.first_failure(
            await self._call(None if partitions else topic, Admin(method="GET", path=path))
        )
        if found.fields.status >= 400:
            reason: Any = found.fields.response
            return _reason(500, f"Fail to publish message: {reason['reason']}")
        version = await self._schema_version(topic, schema)
        if isinstance(version, Response):
            return version
        results = []
        for number, command in enumerate(commands):
            index = -1 if not partitions else number % partitions if asked is None else asked
            results.append(await self._publish(topic, index, partitions, command, version))
        return _json(200, {"messagePublishResults": results, "schemaVersion": version})

    async def _schema_version(self, topic: str, schema: rest_producer.Schema) -> int | Response:
        """The version of a schema, which is added if the topic does not have it; or why it can't be added."""
        path = f"/schemas{topic_path(topic, '/schema').partition('persistent')[2]}"
        body: Any = {
            "type": schema.type,
            "schema": schema.schema.decode("utf-8", "replace"),
            "properties": schema.properties,
        }
        name = topic.replace("non-persistent://", "persistent://", 1)
        answer = merging.first_failure(await self._call(name, Admin(method="POST", path=path, body=body)))
        response: Any = answer.fields.response
        if answer.fields.status != 200:
            return _reason(500, f"Fail to publish message: {response['reason']}")
        version: int = response["version"]["version"]
        return version

    async def _publish(
        self, topic: str, index: int, partitions: int, command: Publish, version: int
    ) -> dict[str, Any]:
        """Publish a message to a topic or to one of its partitions (−1: it has none). What became of it."""
        if partitions and not 0 <= index < partitions:
            cause = f"Topic {partition_of(topic, index)} not found"
            return {"errorMsg": cause, "messageId": str(index), "errorCode": 2, "schemaVersion": version}
        name = topic if index < 0 else partition_of(topic, index)
        rows = [row.effect for row in await self._engine.submit(name, command)]
        for effect in rows:
            if isinstance(effect, SendReceipt):
                id_ = f"{effect.ledger_id}:{effect.entry_id}:{index}"
                return {"messageId": id_, "errorCode": 0, "schemaVersion": version}
        causes = [effect.cause for effect in rows if isinstance(effect, SendError | Quarantined)]
        cause = causes[0] if causes and causes[0] else "the message was not stored"
        return {"errorMsg": cause, "messageId": "", "errorCode": 2, "schemaVersion": version}

    # -- calls without state

    async def _cluster(self, request: Request) -> Response:
        answer = merging.first_failure(await self._call(None, Admin(method="GET", path=_path(request))))
        if answer.fields.response != {} or request.path_params["cluster"] != CLUSTER:
            return await self._response(answer)
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
        asked = request.query_params.get("brokerId") or self._broker
        if asked != self._broker:
            return _reason(404, f"Broker id '{asked}' not found in available brokers.")
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
        names = await self._namespaces()
        owned = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return _json(
            200, {f"{name}/{bundle}": owned for name in names for bundle in await self._bundles(name)}
        )

    async def _bundles(self, namespace: str) -> list[str]:
        """The bundles of a namespace that exists."""
        return [f"{first}_{last}" for first, last in pairwise(await self._boundaries(namespace))]

    async def _boundaries(self, namespace: str) -> list[str]:
        path = f"/namespaces/{_quoted(namespace)}/bundles"
        answer = merging.first_failure(await self._call(None, Admin(method="GET", path=path)))
        found: Any = answer.fields.response
        return found["boundaries"] if answer.fields.status == 200 else bundles.WHOLE.split("_")

    async def _namespaces(self) -> list[str]:
        tenants = await self._found("/tenants")
        return [name for tenant in tenants for name in await self._found(f"/namespaces/{tenant}")]

    async def _topics_stats(self) -> dict[str, Any]:
        """The stats of all topics, by name."""
        found: dict[str, Any] = {}
        for namespace in await self._namespaces():
            for topic in await self._engine.topics(namespace):
                path = topic_path(topic, "/stats")
                answer = merging.first_failure(await self._call(topic, Admin(method="GET", path=path)))
                if answer.fields.status == 200:  # else it was deleted
                    found[topic] = self._stats(topic, answer.fields.response, path)
        return found

    async def _broker_topics(self, request: Request) -> Response:
        stats = await self._topics_stats()
        boundaries = {name: await self._boundaries(name) for name in {*map(namespace_of, stats)}}
        return _json(200, broker_stats.topics(stats, boundaries))

    async def _broker_metrics(self, request: Request) -> Response:
        return _json(200, broker_stats.metrics(await self._topics_stats(), self._clients.connections))

    async def _load_report(self, request: Request) -> Response:
        owned = [
            f"{name}/{bundle}" for name in await self._namespaces() for bundle in await self._bundles(name)
        ]
        stats = await self._topics_stats()
        report = broker_stats.load_report(stats, owned, self._service_url, self._admin_url, VERSION)
        return _json(200, report)

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
        listener = request.query_params.get("listenerName") or request.headers.get("X-Pulsar-ListenerName")
        if listener:
            return _reason(500, f"the broker do not have {listener} listener")
        url = self._service_url
        found = {f"brokerUrl{self._tls}": url, f"httpUrl{self._tls}": self._admin_url}
        return _json(200, {**found, "nativeUrl": url, "brokerUrlSsl": ""})

    async def _lookup_bundle(self, request: Request) -> Response:
        if (refused := await self._refuse_lookup(request)) is not None:
            return refused
        topic = _topic(request)
        bundle = bundles.of_topic(topic, await self._boundaries(namespace_of(topic)))
        return Response(bundle, media_type="text/plain")

    async def _refuse_lookup(self, request: Request) -> Response | None:
        parts = request.path_params
        if parts["domain"] not in _DOMAINS:
            return _reason(404, f"no topics of the kind {parts['domain']}")
        path = f"/namespaces/{_quoted(namespace_of(_topic(request)))}"
        answer = merging.first_failure(await self._call(None, Admin(method="GET", path=path)))
        if answer.fields.status < 400 or "%2F" in path:
            return None
        return (
            _reason(answer.fields.status, "Namespace not found")
            if answer.fields.status == 404
            else await self._response(answer)
        )


_LOCAL = (
    "_cluster", "_brokers", "_brokers", "_leader", "_health", "_health", "_version", "_internal", "_owned", "_check_quotas",
    "_broker_topics", "_broker_metrics", "_load_report",
)  # fmt: skip
"""The handlers of `LOCAL`, in its order."""


_DOMAINS = ("persistent", "non-persistent")


def _http(method: str, path: str, handler: Handler) -> Iterator[HttpRoute]:
    for domain in _DOMAINS if path.startswith("/{domain}/") else ("",):
        yield HttpRoute(f"/admin/v2{path.replace('{domain}', domain)}", handler, methods=[method])


def _literal_first(routes: Iterable[Route]) -> list[Route]:
    """The routes in an order in which a route with a name goes before one with a parameter at that place."""
    return sorted(routes, key=lambda route: [(part.startswith("{"), part) for part in route.path.split("/")])


def _quoted(namespace: str) -> str:
    """A namespace in a path: that of one with a cluster has two parts, too."""
    tenant, _, name = namespace.partition("/")
    return f"{tenant}/{quote(name, safe='')}"


def _topic(request: Request) -> str:
    """The full name of the topic in the path of a lookup, or of messages."""
    parts = request.path_params
    return f"{parts['domain']}://{parts['tenant']}/{parts['namespace']}/{unquote(parts['topic'])}"


def _of_version_2(path: str) -> str:
    """The path of a call of Pulsar 1 as that of today's: what has a cluster there is one name with an encoded slash here."""
    for root, today in (("/admin/", "/admin/v2/"), ("/lookup/v2/destination/", "/lookup/v2/topic/")):
        if not path.startswith(root):
            continue
        kind, *parts = path.removeprefix(root).split("/")
        if kind in ("clusters", "brokers", "broker-stats") or (kind == "namespaces" and len(parts) == 1):
            return f"{today}{'/'.join([kind, *parts])}"
        if kind == "properties":
            return f"{today}{'/'.join(['tenants', *parts])}"
        if kind == "namespaces" and len(parts) >= 3:
            rest = ["topics" if part == "destinations" else part for part in parts[3:]]
            return f"{today}{'/'.join([kind, parts[0], '%2F'.join(parts[1:3]), *rest])}"
        if kind in _DOMAINS and (len(parts) == 3 or parts[3:] == ["partitioned"]):
            return f"{today}{'/'.join([kind, parts[0], '%2F'.join(parts[1:3]), *parts[3:]])}"
        if kind in _DOMAINS and len(parts) > 3:
            return f"{today}{'/'.join([kind, *parts[:2], '%2F'.join(parts[2:4]), *parts[4:]])}"
    return path


def _path(request: Request) -> str:
    """The path below ``/admin/v2`` as the client encoded it, with its query."""
    path = request.scope["path"].removeprefix("/admin/v2")
    asked = request.scope["query_string"].decode("latin-1")
    return f"{path}?{asked}" if asked else path


class Bodies:
    """Reads the bodies of requests. Those that are being read have `MOST_BYTES` each and `MOST_BYTES_OF_ALL` together at most."""

    def __init__(self) -> None:
        self.read = 0

    async def of(self, request: Request) -> bytes:
        """The body of a request. Raises `HTTPException`."""
        body = b""
        try:
            async for chunk in request.stream():
                body += chunk
                self.read += len(chunk)
                if len(body) > MOST_BYTES:
                    raise HTTPException(413, f"the body has more than {MOST_BYTES:,} bytes")
                if self.read > MOST_BYTES_OF_ALL:
                    raise HTTPException(503, "other requests have too much in their bodies: try again")
        except ClientDisconnect:
            raise HTTPException(400, "the body is cut off") from None  # nobody gets this
        finally:
            self.read -= len(body)
        return body


def _decoded(body: bytes) -> Any:
    """A body as JSON; None if it is empty. Raises `HTTPException`."""
    if not body.strip():
        return None
    if is_deep(body):
        raise HTTPException(400, "the body nests too deep")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None


def _header(text: str) -> str:
    """A header's value as bytes of UTF-8, which cannot end the header, and has no space at its ends: HTTP has none there."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return clean.strip().encode("utf-8", "replace").decode("latin-1")


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
