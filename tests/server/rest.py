"""The admin REST API without sockets, in front of any engine."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import httpx

from schemas.commands import MessageMetadata, Producer, Send
from schemas.effects import SendReceipt
from streaming.server.admin.application import application
from streaming.server.embedded import EmbeddedEngine
from streaming.server.engine import Engine
from tests.server import described

T = TypeVar("T")

TOPIC = "persistent://public/n/t"
PATH = "/persistent/public/n/t"


_ROOTS = ("/admin/", "/lookup/", "/topics/")


class Answer(NamedTuple):
    """Status, body as JSON (None if there is none, bytes if it is not JSON), and headers."""

    status: int
    body: Any
    headers: httpx.Headers

    @property
    def reason(self) -> str:
        """Why a call failed."""
        assert isinstance(self.body, dict)
        return str(self.body["reason"])


class Api:
    """Calls below ``/admin/v2``, unless the path starts with another root. Each answer must be as it is described."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        app = application(engine, lambda: "pulsar://localhost:6650", "http://localhost:8080")
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://localhost:8080"
        )

    async def call(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None) -> Answer:
        """A call with a JSON body, or with the bytes `raw`."""
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        url = path if path.startswith(_ROOTS) else f"/admin/v2{path}"
        response = await self._http.request(method, url, content=content)
        try:
            found = response.json() if response.content else None
        except ValueError:
            found = response.content
        if path.startswith("/") and not path.startswith(_ROOTS):
            described.check(method, path.partition("?")[0].rstrip("/"), response.status_code, found)
        return Answer(response.status_code, found, response.headers)

    async def status(self, method: str, path: str, body: Any = None) -> int:
        return (await self.call(method, path, body)).status

    async def publish(
        self, count: int, topic: str = TOPIC, payload: bytes | None = None, **metadata: Any
    ) -> None:
        """Publish `payload`, or m0, m1, …, through a producer of its own."""
        await self.engine.submit(
            topic, Producer(connection="c", producer_id=1, request_id=1, producer_name="p")
        )
        for sequence_id in range(count):
            fields: dict[str, Any] = {
                "producer_name": "p",
                "sequence_id": sequence_id,
                "publish_time": self.engine.now(),
            } | metadata
            send = Send(
                connection="c", producer_id=1, sequence_id=sequence_id, metadata=MessageMetadata(**fields),
                num_messages=metadata.get("num_messages_in_batch", 1),
                payload_bytes=b"m%d" % sequence_id if payload is None else payload,
            )  # fmt: skip
            rows = [row.effect for row in await self.engine.submit(topic, send)]
            assert any(isinstance(effect, SendReceipt) for effect in rows), rows


def on_api(test: Callable[[Api], Awaitable[T]], profile: str = "4.x", **settings: Any) -> T:
    """Run a test on an engine in memory, with the tenant ``public`` and the namespace ``public/n``."""

    async def run() -> T:
        async with EmbeddedEngine(
            profile=profile, settings={"namespacesMustExist": True, **settings}
        ) as engine:
            api = Api(engine)
            assert await api.status("PUT", "/tenants/public", {"allowedClusters": ["standalone"]}) in (
                204,
                409,
            )
            assert await api.status("PUT", "/namespaces/public/n") == 204
            return await test(api)

    return asyncio.run(run())
