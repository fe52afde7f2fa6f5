"""The admin REST API as an ASGI application: each call becomes ADMIN commands of the engine, and their answers one response.

A row of the core's table is a route. `OWN` and `BESIDE` have those that the server answers by itself.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, nullcontext
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Receive, Scope, Send

import schemas
from schemas.commands import Admin, MessageMetadata, Publish, RunCheck
from schemas.commands.nesting import is_deep
from schemas.effects import AdminResponse, Quarantined, SendError, SendReceipt
from schemas.entries import EntryNotFound
from schemas.undecodable import UNDECODABLE
from streaming.broker import bundles
from streaming.broker.admin_calls import CALLS
from streaming.broker.admin_requests import topic_of, topic_path
from streaming.broker.admin_table import NAMESPACE, NUMBERS, TOPIC, Call, check_numbers, decoded
from streaming.broker.config import PROFILE_OF, RELEASES
from streaming.broker.context import namespace_of
from streaming.broker.errors import AdminError
from streaming.broker.names import CLUSTER, partition_index, partition_of
from streaming.broker.parameters import flag
from streaming.protocol.admin_calls import http_response, on_partitions
from streaming.protocol.frames import NotUncompressed
from streaming.server.admin import (
    broker_stats,
    isolation,
    merging,
    rest_producer,
    topics_of_bundles,
    transactions,
)
from streaming.server.admin.absent import ABSENT, UNSUPPORTED
from streaming.server.admin.turns import MOST
from streaming.server.authentication import ROLE
from streaming.server.authorization import Authorization
from streaming.server.clients import Clients
from streaming.server.engine import Engine, EngineStopped, NoAnswer

log = logging.getLogger(__name__)

MOST_BYTES, MOST_BYTES_OF_ALL = 1 << 20, 64 << 20
"""Of a request's body, and of all that are being read, or wait for the turn of their request."""

OPENAPI = "/openapi.json"
"""Where the description of these calls is. A real broker has none."""

_HEALTH = "persistent://public/default/healthcheck"
_METHODS = ("GET", "PUT", "POST", "DELETE")

RequestHandler = Callable[[Request], Awaitable[Response]]
OwnHandler = Callable[["_Api", Request], Awaitable[Response]]


def application(
    engine: Engine,
    service_url: Callable[[], str],
    admin_url: str,
    clients: Clients | None = None,
    *,
    changes_in_turn: bool = False,
    authorization: Authorization | None = None,
) -> ASGIApp:
    """The application. `service_url` and `admin_url`: where clients reach the binary protocol and this API. `clients`: what
    is known of them. `changes_in_turn`: the broker is in this process, so that a change takes the time of others: `MOST` are worked
    on at a time. `authorization`: None, and every request may do everything."""
    known = Clients() if clients is None else clients
    return _Encoded(_Api(engine, service_url, admin_url, known, changes_in_turn, authorization).starlette())


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
    def __init__(
        self,
        engine: Engine,
        service_url: Callable[[], str],
        admin_url: str,
        clients: Clients,
        changes_in_turn: bool,
        authorization: Authorization | None = None,
    ) -> None:
        self._authorization, self._has_warned = authorization, False
        self._changes = asyncio.Semaphore(MOST) if changes_in_turn else nullcontext()
        self._engine, self._clients, self._bodies = engine, clients, Bodies()
        self._service_url, self._admin_url = service_url, admin_url
        self._entry = asyncio.Lock()
        scheme, _, self._broker = admin_url.partition("://")
        self._tls = "Tls" if scheme == "https" else ""
        """What the names of URLs end in."""

    def starlette(self) -> Starlette:
        app = Starlette(
            routes=_in_mounts(self.routes()),
            exception_handlers={HTTPException: _refused, EngineStopped: _stopped, NoAnswer: _stopped},
        )
        app.router.redirect_slashes = False
        return app

    def routes(self) -> Iterator[HttpRoute]:
        """The routes, of which the first one that matches counts."""
        handlers = {(call.method, call.path): self._of_engine(call) for call in CALLS}
        handlers |= {(call.method, call.path): self._own(call) for call in OWN}
        for method, path in _literal_first(handlers):
            yield from _http(method, path, self._authorized(method, path, handlers[method, path]))
        for path, unset in UNSUPPORTED.items():
            for method in _METHODS:
                yield from _http(method, path, self._authorized(method, path, self._never_run(unset)))
        for path, answer in ABSENT.items():
            yield HttpRoute(path, _absent(*answer), methods=_METHODS)
        yield HttpRoute(transactions.PATH, self._transactions, methods=_METHODS)
        yield HttpRoute(f"/admin/v2{OPENAPI}", _openapi, methods=["GET"])
        for call in BESIDE:
            handler = self._authorized(call.method, call.path, self._own(call))
            yield HttpRoute(call.path, handler, methods=[call.method])

    async def _transactions(self, request: Request) -> Response:
        """What is told of transactions, and POST that aborts one."""
        path, query = request.path_params["rest"], request.url.query
        try:
            if self._authorization is not None:
                ask = transactions.ask_of(request.method, path, request.query_params)
                role, original = request.scope.get(ROLE, ""), request.headers.get("X-Original-Principal")
                self._authorization.check_call(role, original, ask, transactions.ASSIGN_NAMES)
            if request.method == "GET":
                asked = f"{path}?{query}" if query else path
                return _json(200, await transactions.told(self._engine, asked, self._service_url()))
            if request.method == "POST" and await transactions.abort(self._engine, path):
                return Response(status_code=204)
            await transactions.told(self._engine, "coordinators", "")  # raises, if there are no transactions
        except AdminError as error:
            return _reason(error.status, error.reason)
        return _reason(501, f"{request.method} {request.url.path} is not supported")

    async def _body(self, request: Request) -> Any:
        return _decoded(await self._bodies.of(request))

    def _authorized(self, method: str, path: str, handle: RequestHandler) -> RequestHandler:
        """A handler that is asked only if the role of a request may make the call (docs/rules/authorization.md §6)."""
        sets = (method, path) in _GRANTS
        if self._authorization is None and not sets:
            return handle

        async def checked(request: Request) -> Response:
            if self._authorization is None:
                self._warn()
                return await handle(request)
            names = {"domain": _domain(request), "address": self._broker, **request.path_params}
            role, original = request.scope.get(ROLE, ""), request.headers.get("X-Original-Principal")
            try:
                for ask in self._authorization.asks(method, path):
                    self._authorization.check_call(role, original, ask, names)
            except AdminError as error:
                return _reason(error.status, error.reason)
            response = await handle(request)
            if (method != "GET" and path.startswith(NAMESPACE)) or sets or (method, path) in _REVOKES:
                self._authorization.on_change(_namespace(request))
            return response

        return checked

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "permissions are set, and are NOT enforced: there is no authorization (--set authorizationEnabled=true and tokens), "
                "so every client may do everything"
            )

    def _own(self, call: Call[OwnHandler]) -> RequestHandler:
        async def handle(request: Request) -> Response:
            return await call.handler(self, request)

        return _with_numbers(call, handle)

    # -- calls that are commands

    def _of_engine(self, call: Call[Any]) -> RequestHandler:
        async def handle(request: Request) -> Response:
            destination = request.query_params.get("destinationBroker", self._broker)
            if call.path.endswith("/unload") and destination != self._broker:
                return _reason(409, "Not allowed unload namespace bundle to inactive destination broker")
            decoded = _decoded_text if call.path in _TEXT_BODIES else _decoded
            async with self._command(call.method, request, decoded) as command:
                return await self._answer(call, command)

        return _with_numbers(call, handle)

    @asynccontextmanager
    async def _command(
        self, method: str, request: Request, decoded: Callable[[bytes], Any] | None = None
    ) -> AsyncIterator[Admin]:
        """The command of a call whose turn it is."""
        async with self._bodies.held(request) as body:  # also while it waits for its turn
            value = (decoded or _decoded)(body)
            command = Admin(method=method, path=_path(request), body=value)  # type: ignore[arg-type]
            async with nullcontext() if method == "GET" else self._changes:
                yield command

    async def _answer(self, call: Call[Any], command: Admin) -> Response:
        topic = topic_of(command.path)
        if topic is None:
            return await self._answer_to(call, None, command)
        partitions = await self._engine.partitions(topic)
        if partitions and call.refusal:
            return _reason(405, call.refusal)
        if partitions and call[:2] == _MORE_PARTITIONS:
            return await self._add_partitions(call, topic, command, partitions)
        if (partitions and call.on_partitioned == "whole") or call[:2] == _NEW_PARTITIONS:
            return await self._answer_to(call, None, command)
        if not partitions or call.on_partitioned == "one":
            return await self._answer_to(call, topic, command)
        answers = [answer for _, answer in await self._on_each(command, partitions)]
        return await self._response(merging.of_partitions(answers))

    async def _on_each(
        self, command: Admin, partitions: int, first: int = 0
    ) -> list[tuple[str, AdminResponse]]:
        return [
            (partition, merging.first_failure(await self._call(partition, call)))
            for partition, call in islice(on_partitions(command, partitions), first, None)
        ]

    # -- calls on a partitioned topic that are several commands

    async def _add_partitions(self, call: Call[Any], topic: str, command: Admin, before: int) -> Response:
        """Give a partitioned topic more partitions. Every partition gets the subscriptions of the first one, from its first message on,
        so that consumers which come later miss nothing (PersistentTopicsBase.internalUpdatePartitionedTopicAsync)."""
        first = partition_of(topic, 0)
        asked = await self._call(first, Admin(method="GET", path=topic_path(first, "/stats")))
        stats: Any = merging.first_failure(asked).fields.response or {}
        kept = {
            name: each for name, each in stats.get("subscriptions", {}).items() if each.get("isDurable", True)
        }
        body: Any = command.body
        count = body.get("partitions") if isinstance(body, dict) else body
        if isinstance(count, int) and count * len(kept) > MOST_COPIED:
            return _reason(
                412,
                f"{len(kept):,} subscriptions on {count:,} partitions are more than {MOST_COPIED:,}: delete some",
            )
        old = before if (await self._settings())["partitionsMustIncrease"] == "true" else 0
        response = await self._answer_to(call, None, command)
        partitions = await self._engine.partitions(topic)
        for name, each in kept.items() if response.status_code < 300 else ():
            path = topic_path(topic, f"/subscription/{quote(name, safe='')}")
            at = {"ledgerId": -1, "entryId": -1, "properties": each.get("subscriptionProperties") or {}}
            create = Admin(method="PUT", path=path, body=at)
            for _, answer in await self._on_each(create, partitions, old):
                if answer.fields.status not in (204, 409):  # 409: the partition has it
                    return await self._response(answer)
        return response

    async def _partitioned_stats(self, request: Request) -> Response:
        """The sums of the statistics of a topic's partitions, and those of each unless `?perPartition=false`."""
        found = await self._of_partitions(request, "GET", "/stats")
        if isinstance(found, Response):
            return found
        metadata, missing = await self._partitioned_metadata(request)
        path = _path(request)
        parts = {
            partition: merging.shown("stats", self._stats(partition, each, path), missing)
            for partition, each in found.items()
        }
        shown = parts if flag(path, "perPartition", default=True) else {}
        return _json(200, {**merging.sum_of([*parts.values()]), "metadata": metadata, "partitions": shown})

    async def _partitioned_internal_stats(self, request: Request) -> Response:
        """The statistics of the ledgers and cursors of each partition of a topic."""
        found = await self._of_partitions(request, "GET", "/internalStats")
        if isinstance(found, Response):
            return found
        metadata, missing = await self._partitioned_metadata(request)
        parts = {
            partition: merging.shown("internalStats", merging.internal_stats(each), missing)
            for partition, each in found.items()
        }
        return _json(200, {"metadata": metadata, "partitions": parts})

    async def _terminate_partitions(self, request: Request) -> Response:
        """Terminate all partitions of a topic. The answer has the last position of each, by its number."""
        found = await self._of_partitions(request, "POST", "/terminate")
        if isinstance(found, Response):
            return _reason(405, _NOT_PARTITIONED)
        return _json(200, {partition.rpartition("-")[2]: each for partition, each in found.items()})

    async def _of_partitions(
        self, request: Request, method: Literal["GET", "POST"], call: str
    ) -> dict[str, Any] | Response:
        """The answers of the partitions to a call, by name; or that the topic has none."""
        async with self._command(method, request) as command:
            topic = topic_of(command.path) or ""
            partitions = await self._engine.partitions(topic)
            if not partitions:
                return _reason(404, f"Partitioned Topic {topic} not found")
            asked = "?" + command.path.partition("?")[2]
            path = _topic_path(request) + call + (asked if len(asked) > 1 else "")
            answers = await self._on_each(Admin(method=method, path=path), partitions)
        return {
            partition: answer.fields.response
            for partition, answer in answers
            if answer.fields.status == 200  # else the partition was deleted
        }

    async def _partitioned_metadata(self, request: Request) -> tuple[Any, str]:
        """What a partitioned topic is, and the fields that are missing in the version."""
        asked = Admin(method="GET", path=f"{_topic_path(request)}/partitions")
        answers, settings = await asyncio.gather(self._call(None, asked), self._settings())
        missing = settings["missingAdminFields"]
        found: Any = answers[0].fields.response
        return merging.shown("partitions", found, missing), missing

    def _never_run(self, answer: Any) -> RequestHandler:
        async def handle(request: Request) -> Response:
            async with self._command("GET", request) as command:
                topic = topic_of(command.path) or ""
            reads = request.method in ("GET", "HEAD")
            if not reads and await self._engine.partitions(topic):
                return await _unsupported(request)
            asked = Admin(method="GET", path=topic_path(topic, "/stats"))
            found = merging.first_failure(await self._call(topic, asked))
            if found.fields.status != 200:
                return await self._response(found)
            return _json(200, answer) if reads else await _unsupported(request)

        return handle

    async def _internal_info(self, request: Request) -> Response:
        """The ledgers and cursors of a topic as they are stored; of a partitioned topic, those of each partition."""
        async with self._command("GET", request) as command:
            topic = topic_of(command.path) or ""
        asked = Admin(method="GET", path=f"{_topic_path(request)}/internalStats")
        if not (partitions := await self._engine.partitions(topic)):
            answer = merging.first_failure(await self._call(topic, asked))
            if (
                answer.fields.status == 404
            ):  # quirk: Pulsar looks for its metadata, and does not expect that there are none
                return _reason(500, "Request failed.")
            if answer.fields.status >= 400:
                return await self._response(answer)
            return _json(200, merging.internal_info(answer.fields.response))
        found = {
            partition: merging.internal_info(answer.fields.response)
            for partition, answer in await self._on_each(asked, partitions)
            if answer.fields.status == 200
        }
        return _json(200, {"version": 0, "partitions": found})

    # -- commands and their answers

    async def _call(self, topic: str | None, command: Admin) -> list[AdminResponse]:
        """The answers to a command, one from each ingress partition."""
        rows = [row.effect for row in await self._engine.submit(topic, command)]
        answers = [effect for effect in rows if isinstance(effect, AdminResponse)]
        if not answers:
            causes = [effect.cause for effect in rows if isinstance(effect, Quarantined)]
            raise HTTPException(400, "; ".join(causes))
        return answers

    async def _answer_to(self, call: Call[Any], topic: str | None, command: Admin) -> Response:
        """The answer to a command, with the fields that the version has."""
        name = merging.VERSIONED.get(call.path) if call.method == "GET" else None
        if name is None:
            answer = merging.first_failure(await self._call(topic, command))
            text = answer.fields.response
            if call.path in _TEXTS and isinstance(text, str):
                return Response(text, answer.fields.status, media_type="text/plain")
            return await self._response(answer)
        answers, settings = await asyncio.gather(self._call(topic, command), self._settings())
        answer = merging.first_failure(answers)
        found: Any = answer.fields.response
        if answer.fields.status != 200 or found is UNSET:
            return await self._response(answer)
        if name == "stats":
            found = self._stats(answer.topic or "", found, command.path)
        elif name == "internalStats":
            found = merging.internal_stats(found, answer.topic or "")
        return _json(200, merging.shown(name, found, settings["missingAdminFields"]))

    async def _response(self, answer: AdminResponse) -> Response:
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
        if flag(path, "excludePublishers"):
            shown["publishers"] = []
        if flag(path, "excludeConsumers"):
            shown["subscriptions"] = {
                name: each | {"consumers": []} for name, each in shown["subscriptions"].items()
            }
        return shown

    def _stored(self, topic: str, ledger: int, entry: int) -> tuple[MessageMetadata, bytes, int | None]:
        found = self._engine.entry(topic, ledger, entry)
        return found.metadata, found.payload, found.broker_timestamp

    # -- messages through HTTP

    async def _produce(self, request: Request) -> Response:
        if not self._engine.shows_topic_events:
            return _reason(501, "messages can't be published through HTTP before a query that runs elsewhere")
        topic = _topic(request)
        asked = request.path_params.get("partition")
        if asked is not None and partition_index(topic) >= 0:
            return _reason(400, "Topic name can't contain '-partition-' suffix.")
        try:
            given = rest_producer.messages_of(await self._body(request))
            partitions = await self._engine.partitions(topic)
            path = topic_path(topic, "/partitions" if partitions else "/stats")
            await self._found_or_failed(None if partitions else topic, Admin(method="GET", path=path))
            if given.version is None:
                schema = rest_producer.schema_of(given)
                commands = rest_producer.commands(given, schema)  # before the topic has the schema
                version = await self._add_schema(topic, schema)
            else:
                version = given.version
                commands = rest_producer.commands(given, await self._schema(topic, version))
        except rest_producer.BadMessage as error:
            return _reason(400, str(error))
        results = []
        for number, command in enumerate(commands):
            index = asked if asked is not None else number % partitions if partitions else -1
            results.append(await self._publish(topic, index, partitions, command, version))
        return _json(200, {"messagePublishResults": results, "schemaVersion": version})

    async def _found_or_failed(self, topic: str | None, command: Admin) -> Any:
        """What a call answers. Raises `HTTPException` if it fails."""
        fields = merging.first_failure(await self._call(topic, command)).fields
        response: Any = fields.response
        if fields.status >= 400:
            raise HTTPException(500, f"Fail to publish message: {response['reason']}")
        return response

    async def _schema(self, topic: str, version: int) -> rest_producer.Schema:
        """The schema of a version that the topic has. Raises `HTTPException`, and `BadMessage` if no payload can be encoded by it."""
        name, path = _schema_call(topic, f"/schema/{version}")
        fields = merging.first_failure(await self._call(name, Admin(method="GET", path=path))).fields
        if fields.status != 200:
            raise HTTPException(500, f"Fail to publish message: {topic} has no schema of version {version}")
        found: Any = fields.response
        schema = rest_producer.Schema(found["type"])
        rest_producer.check_type(schema)
        return schema

    async def _add_schema(self, topic: str, schema: rest_producer.Schema) -> int:
        """The version of a schema, which is added if the topic does not have it. Raises `HTTPException` if it can't be added."""
        name, path = _schema_call(topic, "/schema")
        body: Any = {
            "type": schema.type,
            "schema": schema.schema.decode("utf-8", "replace"),
            "properties": schema.properties,
        }
        found = await self._found_or_failed(name, Admin(method="POST", path=path, body=body))
        version: int = found["version"]["version"]
        return version

    async def _publish(
        self, topic: str, index: int, partitions: int, command: Publish, version: int
    ) -> dict[str, Any]:
        """Publish a message to a topic or to one of its partitions (−1: it has none). What became of it."""

        def failed(cause: str) -> dict[str, Any]:
            # quirk: the id of a message that was not stored is its partition
            return {"errorMsg": cause, "messageId": str(index), "errorCode": 2, "schemaVersion": version}

        if not (0 if partitions else -1) <= index < partitions:
            return failed(f"Topic {partition_of(topic, index)} not found")
        name = topic if index < 0 else partition_of(topic, index)
        rows = [row.effect for row in await self._engine.submit(name, command)]
        for effect in rows:
            if isinstance(effect, SendReceipt):
                id_ = f"{effect.ledger_id}:{effect.entry_id}:{index}"
                return {"messageId": id_, "errorCode": 0, "schemaVersion": version}
        causes = [effect.cause for effect in rows if isinstance(effect, SendError | Quarantined)]
        cause = causes[0] if causes and causes[0] else "the message was not stored"
        return failed(cause)

    # -- calls without state

    async def _cluster(self, request: Request) -> Response:
        """The cluster's addresses. Of the broker's own one, those of the server."""
        answer = merging.first_failure(await self._call(None, Admin(method="GET", path=_path(request))))
        if answer.fields.response != {} or request.path_params["cluster"] != CLUSTER:
            return await self._response(answer)
        tls = self._tls
        urls = {f"serviceUrl{tls}": self._admin_url, f"brokerServiceUrl{tls}": self._service_url()}
        return _json(200, {**urls, "brokerClientTlsEnabled": False, "tlsAllowInsecureConnection": False})

    async def _brokers(self, request: Request) -> Response:
        """The brokers of a cluster: this one. quirk: every other cluster that is asked for has it, too."""
        return _json(200, [self._broker])

    async def _leader(self, request: Request) -> Response:
        """The broker that leads: this one."""
        return _json(200, {"serviceUrl": self._admin_url, "brokerId": self._broker})

    async def _health(self, request: Request) -> Response:
        """Whether the broker works: `ok`, or an error. With `?brokerId=…`, another one than this is unknown."""
        asked = request.query_params.get("brokerId") or self._broker
        if asked != self._broker:
            return _reason(404, f"Broker id '{asked}' not found in available brokers.")
        await self._engine.partitions(_HEALTH)  # which fails if the engine does
        return Response("ok", media_type="text/plain")

    async def _version(self, request: Request) -> Response:
        """The version of Pulsar whose rules are in force."""
        return Response(await self._release(), media_type="text/plain")

    async def _internal(self, request: Request) -> Response:
        """Where a broker would keep its ledgers."""
        return _json(200, {"ledgersRootPath": "/ledgers"})

    async def _owned(self, request: Request) -> Response:
        """The bundles that a broker has: of this one, all, by NAMESPACE/BUNDLE."""
        if request.path_params["broker"] != self._broker:
            return _reason(
                404, f"Broker id '{request.path_params['broker']}' not found in available brokers."
            )
        names = await self._namespaces()
        owned = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return _json(
            200, {f"{name}/{bundle}": owned for name in names for bundle in await self._bundles(name)}
        )

    async def _isolation(self, request: Request) -> Response:
        """What the cluster's isolation policies say about its brokers, or about one of them."""
        cluster, asked = request.path_params["cluster"], request.path_params.get("broker")
        path = f"/clusters/{cluster}/namespaceIsolationPolicies"
        answer = merging.first_failure(await self._call(None, Admin(method="GET", path=path)))
        if answer.fields.status != 200:
            return await self._response(answer)
        policies: Any = answer.fields.response
        if asked is None:
            return _json(200, [isolation.of_broker(self._broker, policies)])
        return _json(200, isolation.of_broker(unquote(asked), policies))

    async def _bundles(self, namespace: str) -> list[str]:
        """The bundles of a namespace that exists."""
        return [f"{first}_{last}" for first, last in pairwise(await self._boundaries(namespace))]

    async def _topics_in_bundle(self, request: Request) -> Response:
        """The non-persistent topics in a bundle."""
        found = await self._in_bundle(_namespace(request), request.path_params["bundle"])
        if isinstance(found, Response):
            return found
        return _json(200, [topic for topic in found if not topic.startswith("persistent://")])

    async def _hash_positions(self, request: Request) -> Response:
        """The hashes of the persistent topics in a bundle, by name; with `?topics=…`, only of these."""
        namespace, bundle = _namespace(request), request.path_params["bundle"]
        found = await self._in_bundle(namespace, bundle)
        if isinstance(found, Response):
            return found
        persistent = (topic for topic in found if topic.startswith("persistent://"))
        positions = topics_of_bundles.positions(persistent, request.query_params.getlist("topics"))
        return _json(200, {"namespace": namespace, "bundle": bundle, "topicHashPositions": positions})

    async def _split(self, request: Request) -> Response:
        """Split a bundle where its topics say, or in the middle: that is for the broker."""
        call = next(each for each in CALLS if each.path == _SPLIT)
        namespace, bundle = _namespace(request), request.path_params["bundle"]
        algorithm = request.query_params.get("splitAlgorithmName", "")
        async with self._command(call.method, request) as command:
            if bundle == topics_of_bundles.LARGEST:
                topics = await self._engine.topics(namespace)
                bundle = topics_of_bundles.largest(topics, await self._boundaries(namespace))
                command = msgspec.structs.replace(
                    command, path=command.path.replace(f"/{request.path_params['bundle']}/", f"/{bundle}/")
                )
            if algorithm not in _BY_TOPICS or (
                algorithm == bundles.AT_POSITIONS and not topics_of_bundles.are_positions(command.body)
            ):
                return await self._answer_to(call, None, command)
            found = await self._in_bundle(namespace, bundle)
            if isinstance(found, Response):
                return found
            at = topics_of_bundles.split_at(found, algorithm, command.body)
            if not at:  # quirk: that it was not split is no error
                return Response(status_code=204)
            path = command.path.replace(algorithm, bundles.AT_POSITIONS)
            return await self._answer_to(call, None, msgspec.structs.replace(command, path=path, body=at))

    async def _in_bundle(self, namespace: str, bundle: str) -> list[str] | Response:
        """The topics in a bundle, or the answer that says that the namespace does not have it."""
        path = f"/namespaces/{_quoted(namespace)}/{bundle}/topicHashPositions"
        answer = merging.first_failure(await self._call(None, Admin(method="GET", path=path)))
        if answer.fields.status != 200:
            return await self._response(answer)
        return [each for each in await self._engine.topics(namespace) if bundles.contains(bundle, each)]

    async def _boundaries(self, namespace: str) -> list[str]:
        path = f"/namespaces/{_quoted(namespace)}/bundles"
        answer = merging.first_failure(await self._call(None, Admin(method="GET", path=path)))
        found: Any = answer.fields.response
        if answer.fields.status != 200:
            return bundles.boundaries(int((await self._settings())["defaultNumberOfNamespaceBundles"]))
        boundaries: list[str] = found["boundaries"]
        return boundaries

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
        """Statistics of all topics, by namespace, bundle, domain and name."""
        stats = await self._topics_stats()
        boundaries = {name: await self._boundaries(name) for name in {*map(namespace_of, stats)}}
        return _json(200, broker_stats.topics(stats, boundaries))

    async def _broker_metrics(self, request: Request) -> Response:
        """Sums of the statistics of each namespace's topics, and the open connections."""
        return _json(200, broker_stats.metrics(await self._topics_stats(), self._clients.connections))

    async def _load_report(self, request: Request) -> Response:
        """A standalone broker has no load manager."""
        return Response(status_code=204)

    async def _mbeans(self, request: Request) -> Response:
        """What is known of the process, in place of MBeans."""
        return _json(200, broker_stats.mbeans(self._clients.connections))

    async def _allocator(self, request: Request) -> Response:
        """An allocator of memory. There is none, so all is 0."""
        name = unquote(request.path_params["allocator"])
        if name not in broker_stats.ALLOCATORS:
            return _reason(406, f"Invalid allocator name : {name}")
        return _json(200, broker_stats.ALLOCATOR)

    async def _settings(self) -> dict[str, str]:
        """The settings in force."""
        call = Admin(method="GET", path="/brokers/configuration/runtime")
        settings = merging.first_failure(await self._call(None, call)).fields.response
        assert isinstance(settings, dict)
        return settings

    async def _release(self) -> str:
        """The version of Pulsar whose rules are in force."""
        return RELEASES[PROFILE_OF[(await self._settings())["profile"]]]

    async def _found(self, path: str) -> list[str]:
        found = merging.first_failure(await self._call(None, Admin(method="GET", path=path))).fields.response
        return found if isinstance(found, list) else []

    async def _check_quotas(self, request: Request) -> Response:
        """Check the backlog quotas now."""
        async with self._changes:
            await self._engine.submit(None, RunCheck(check="backlogQuota"))
        return Response(status_code=204)

    # -- lookup

    async def _lookup(self, request: Request) -> Response:
        if (refused := await self._refuse_lookup(request)) is not None:
            return refused
        listener = request.query_params.get("listenerName") or request.headers.get("X-Pulsar-ListenerName")
        if listener:
            return _reason(500, f"the broker do not have {listener} listener")
        url = self._service_url()
        # brokerUrl is there under TLS, too: the C++ client crashes without it.
        found = {"brokerUrl": "", f"brokerUrl{self._tls}": url, f"httpUrl{self._tls}": self._admin_url}
        return _json(200, {**found, "nativeUrl": url, "brokerUrlSsl": ""})

    async def _lookup_bundle(self, request: Request) -> Response:
        """quirk: the namespace may be one that does not exist."""
        if request.path_params["domain"] not in _DOMAINS:
            return await self._lookup(request)
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


_GRANTS = frozenset(
    {("POST", f"{NAMESPACE}/permissions/{{role}}"), ("POST", f"{NAMESPACE}/permissions/subscription/{{subscription}}"),
     ("POST", f"{NAMESPACE}/subscriptionAuthMode"), ("POST", f"{TOPIC}/permissions/{{role}}")}
)  # fmt: skip
"""The calls that say who may do what."""

_REVOKES = frozenset({("DELETE", f"{TOPIC}/permissions/{{role}}")})
"""What takes something back, besides calls on namespaces."""


def _domain(request: Request) -> str:
    """The domain of the topics in the path of a call."""
    parts = _path(request).partition("?")[0].split("/")
    return (
        "non-persistent"
        if "non-persistent" in parts[1:6] and parts[1] in ("non-persistent", "lookup", "topics")
        else "persistent"
    )


_NOT_PARTITIONED = "Termination of a non-partitioned topic is not allowed using partitioned-terminate, please use terminate commands"

_BUNDLE = f"{NAMESPACE}/{{bundle}}"
_SPLIT = f"{_BUNDLE}/split"
_BY_TOPICS = (bundles.AT_POSITIONS, "topic_count_equally_divide", "flow_or_qps_equally_divide")
"""The algorithms that look at the topics of the bundle they split."""

_ISOLATION = "/clusters/{cluster}/namespaceIsolationPolicies"

OWN: tuple[Call[OwnHandler], ...] = (
    Call("GET", "/clusters/{cluster}", _Api._cluster),
    Call("GET", "/brokers", _Api._brokers),
    Call("GET", "/brokers/{cluster}", _Api._brokers),
    Call("GET", "/brokers/leaderBroker", _Api._leader),
    Call("GET", "/brokers/health", _Api._health),
    Call("GET", "/brokers/ready", _Api._health),
    Call("GET", "/brokers/version", _Api._version),
    Call("GET", "/brokers/internal-configuration", _Api._internal),
    Call("GET", "/brokers/{cluster}/{broker}/ownedNamespaces", _Api._owned),
    Call("GET", "/brokers/backlog-quota-check", _Api._check_quotas),
    Call("GET", f"{_ISOLATION}/brokers", _Api._isolation),
    Call("GET", f"{_ISOLATION}/brokers/{{broker}}", _Api._isolation),
    Call("GET", "/broker-stats/topics", _Api._broker_topics),
    Call("GET", "/broker-stats/metrics", _Api._broker_metrics),
    Call("GET", "/broker-stats/load-report", _Api._load_report),
    Call("GET", "/broker-stats/mbeans", _Api._mbeans),
    Call("GET", "/broker-stats/allocator-stats/{allocator}", _Api._allocator),
    Call("PUT", _SPLIT, _Api._split),
    Call("GET", f"{_BUNDLE}/topicHashPositions", _Api._hash_positions),
    Call("GET", "/non-persistent/{tenant}/{namespace}/{bundle}", _Api._topics_in_bundle),
    Call("GET", f"{TOPIC}/internal-info", _Api._internal_info, "each"),
    Call("GET", f"{TOPIC}/partitioned-stats", _Api._partitioned_stats),
    Call("GET", f"{TOPIC}/partitioned-internalStats", _Api._partitioned_internal_stats),
    Call("POST", f"{TOPIC}/terminate/partitions", _Api._terminate_partitions),
)
"""Calls that are not ADMIN commands of their own. The server answers them, some with what it asks the broker. `GET
/clusters/{cluster}` goes before the broker's, since only the server knows its addresses."""

_REST_TOPIC = f"/topics{TOPIC}"
_LOOKUP = f"/lookup/v2/topic{TOPIC}"

BESIDE: tuple[Call[OwnHandler], ...] = (
    Call("POST", _REST_TOPIC, _Api._produce),
    Call("POST", f"{_REST_TOPIC}/partitions/{{partition}}", _Api._produce),
    Call("GET", _LOOKUP, _Api._lookup),
    Call("GET", f"{_LOOKUP}/bundle", _Api._lookup_bundle),
)
"""Calls that are not below ``/admin/v2``: messages through HTTP, and lookup."""

_ANTI_AFFINITY = "/namespaces/{tenant}/{namespace}/antiAffinity"

_TEXT_BODIES = frozenset({_ANTI_AFFINITY})
"""Calls whose body is a bare text."""

_TEXTS = frozenset({_ANTI_AFFINITY, "/namespaces/{tenant}/{namespace}/property/{key}"})
"""Calls that answer with a bare text, not JSON (a `String` in Pulsar)."""

_NEW_PARTITIONS, _MORE_PARTITIONS = ("PUT", f"{TOPIC}/partitions"), ("POST", f"{TOPIC}/partitions")
"""The calls that create a partitioned topic, and give it more partitions."""

MOST_COPIED = 100_000
"""With more partitions, so many subscriptions are created at most."""


_DOMAINS = ("persistent", "non-persistent")


def _http(method: str, path: str, handler: RequestHandler) -> Iterator[HttpRoute]:
    for domain in _DOMAINS if path.startswith("/{domain}/") else ("",):
        yield HttpRoute(f"/admin/v2{path.replace('{domain}', domain)}", handler, methods=[method])


def _in_mounts(routes: Iterable[HttpRoute]) -> list[BaseRoute]:
    """The same routes, but a request is only compared with those whose paths begin as its own: there are hundreds."""
    found, below = list[BaseRoute](), dict[str, list[HttpRoute]]()
    for route in routes:
        first, end = re.fullmatch(r"((?:/[^/]+){3})?(/.*)", route.path).groups()  # type: ignore[union-attr]
        if first is None:
            found.append(route)
        else:
            below.setdefault(first, []).append(HttpRoute(end, route.endpoint, methods=route.methods))
    return [*found, *(Mount(first, routes=each) for first, each in below.items())]


def _literal_first(calls: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Methods and paths in an order in which a path with a name goes before one with a parameter at that place."""

    def key(call: tuple[str, str]) -> list[tuple[bool, str]]:
        path = call[1].replace("/non-persistent/", "/{domain}/")
        return [(part.startswith("{"), part) for part in path.split("/")]

    return sorted(calls, key=key)


def _quoted(namespace: str) -> str:
    """A namespace in a path: that of one with a cluster has two parts, too."""
    tenant, _, name = namespace.partition("/")
    return f"{tenant}/{quote(name, safe='')}"


def _namespace(request: Request) -> str:
    """The namespace in the path of a call."""
    return unquote("{tenant}/{namespace}".format(**request.path_params))


def _topic(request: Request) -> str:
    """The full name of the topic in the path of a lookup, or of messages."""
    parts = request.path_params
    return f"{parts['domain']}://{parts['tenant']}/{parts['namespace']}/{unquote(parts['topic'])}"


def _schema_call(topic: str, path: str) -> tuple[str, str]:
    """The topic and the path of a call on the schemas of a topic."""
    name = topic.replace("non-persistent://", "persistent://", 1)
    return name, f"/schemas{topic_path(name, path).removeprefix('/persistent')}"


def _topic_path(request: Request) -> str:
    """The path of a call on a topic, up to the topic's name."""
    return "/".join(_path(request).partition("?")[0].split("/")[:5])


def _of_version_2(path: str) -> str:
    """The path of a call of Pulsar 1 as that of today's: what has a cluster there is one name with an encoded slash here."""
    for root, today in (("/admin/", "/admin/v2/"), ("/lookup/v2/destination/", "/lookup/v2/topic/")):
        if not path.startswith(root):
            continue
        kind, *parts = path.removeprefix(root).split("/")
        of_cluster = kind == "namespaces" and (len(parts) == 1 or parts[1] == "antiAffinity")
        if kind in ("clusters", "brokers", "broker-stats") or of_cluster:
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


_TOO_LARGE = f"the body has more than {MOST_BYTES:,} bytes"


class Bodies:
    """Reads the bodies of requests. Those that are being read or held have `MOST_BYTES` each and `MOST_BYTES_OF_ALL` together at most."""

    def __init__(self) -> None:
        self.read = 0

    async def of(self, request: Request) -> bytes:
        """The body of a request. Raises `HTTPException`."""
        async with self.held(request) as body:
            return body

    @asynccontextmanager
    async def held(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request, which counts until the context ends. Raises `HTTPException`."""
        body = b""
        # h11 takes numbers only, of at most 20 digits.
        if int(request.headers.get("content-length", "0")) > MOST_BYTES:
            raise HTTPException(413, _TOO_LARGE)
        try:
            async for chunk in request.stream():
                body += chunk
                self.read += len(chunk)
                if len(body) > MOST_BYTES:
                    raise HTTPException(413, _TOO_LARGE)
                if self.read > MOST_BYTES_OF_ALL:
                    raise HTTPException(503, "other requests have too much in their bodies: try again")
            yield body
        except ClientDisconnect:
            raise HTTPException(400, "the body is cut off") from None  # nobody gets this
        finally:
            self.read -= len(body)


def _decoded(body: bytes) -> Any:
    """A body as JSON; None if it is empty. Raises `HTTPException`."""
    if not body.strip():
        return None
    if is_deep(body):
        raise HTTPException(400, "the body nests too deep")
    try:
        return msgspec.json.decode(body)
    except UNDECODABLE as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None


def _decoded_text(body: bytes) -> Any:
    """A body that is a text. quirk: quotes are part of it, as `pulsarctl` sends and expects them. Raises `HTTPException`."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8") from None


def _header(text: str) -> str:
    """A header's value as bytes of UTF-8, which cannot end the header, and has no space at its ends: HTTP has none there."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return clean.strip().encode("utf-8", "replace").decode("latin-1")


def _json(status: int, value: Any) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _reason(status: int, reason: str) -> Response:
    return _json(status, {"reason": reason})


def _with_numbers(call: Call[Any], handle: RequestHandler) -> RequestHandler:
    """A handler that is asked only if the numbers in path and query are of their types. It finds those of the path as `int`."""

    async def checked(request: Request) -> Response:
        names = request.path_params
        try:
            check_numbers(call, names, _path(request))
            names.update({name: int(text) for name, text in decoded(names).items() if name in NUMBERS})
        except AdminError as error:
            return _reason(error.status, error.reason)
        return await handle(request)

    return checked


async def _openapi(request: Request) -> Response:
    return Response(_description(), media_type="application/json")


@cache
def _description() -> bytes:
    return Path(schemas.__file__).with_name("admin.openapi.json").read_bytes()


async def _unsupported(request: Request) -> Response:
    return _reason(501, f"{request.method} {_path(request)} is not supported")


def _absent(status: int, reason: str) -> RequestHandler:
    async def handle(request: Request) -> Response:
        return _reason(status, reason)

    return handle


async def _refused(request: Request, error: Exception) -> Response:
    """Unknown paths, other methods, and bad bodies."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405 and request.method == "OPTIONS":
        return Response(headers={"Allow": ", ".join(sorted({"OPTIONS", *_allowed(request)}))})
    reason = {
        404: f"{request.method} {request.scope['path']} is not supported",
        405: f"{request.method} is not allowed here",
    }
    found = _reason(error.status_code, reason.get(error.status_code, error.detail))
    found.headers.update(error.headers or {})
    return found


def _allowed(request: Request) -> Iterator[str]:
    """The methods of a path: those of all routes that match it."""
    scope = {**request.scope, "root_path": "", "app_root_path": ""}
    waiting: list[tuple[BaseRoute, Any]] = [(each, scope) for each in request.app.routes]
    for route, asked in waiting:
        match, below = route.matches(asked)
        if match is not Match.NONE and isinstance(route, Mount):
            waiting += [(each, {**asked, **below}) for each in route.routes]
        elif match is not Match.NONE and isinstance(route, HttpRoute):
            yield from route.methods or ()


async def _stopped(request: Request, error: Exception) -> Response:
    return _reason(503, str(error))
