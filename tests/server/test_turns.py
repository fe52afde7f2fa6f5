"""GETs and changes of the admin API: a few at a time, no GET for a client that is gone, probes at once, and no traceback where the server
ends."""

import asyncio
import time
from math import inf
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from streaming.server.admin.turns import MOST, InTurn
from streaming.server.clock import HeldClock
from streaming.server.embedded import EmbeddedEngine
from streaming.server.server import Address, Server, bound


class Client:
    """A client of an application, as a server sees it."""

    def __init__(self, app: InTurn, method: str = "GET") -> None:
        self.sent: list[Message] = []
        self.reads = asyncio.Event()
        self._gone = asyncio.Event()
        self._asked = False
        self.task = asyncio.ensure_future(app({"type": "http", "method": method}, self._receive, self._send))

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        await self.reads.wait()

    def leave(self) -> None:
        self._gone.set()


class Work:
    """An application whose answers come when `goes_on` is set."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.begun = self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        self.under_way += 1
        try:
            assert (await receive())["type"] == "http.request"
            await self.goes_on.wait()
        finally:
            self.under_way -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_few_are_worked_on_at_a_time() -> None:
    async def work() -> None:
        app = Work()
        turns = InTurn(app)
        clients = [Client(turns) for _ in range(20)]
        await settled()
        assert app.under_way == MOST
        app.goes_on.set()
        await settled()
        # Nobody reads, and everybody had a turn.
        assert app.begun == 20
        for each in clients:
            each.reads.set()
            await each.task
            assert [message["type"] for message in each.sent] == ["http.response.start", "http.response.body"]

    run(work)


def test_nothing_is_done_for_clients_that_are_gone() -> None:
    async def work() -> None:
        app = Work()
        turns = InTurn(app)
        clients = [Client(turns) for _ in range(1000)]
        await settled()
        for each in clients:
            each.leave()
        await asyncio.gather(*(each.task for each in clients))
        assert (app.begun, app.under_way) == (MOST, 0)
        assert all(each.sent == [] for each in clients)
        app.goes_on.set()
        last = Client(turns)
        last.reads.set()
        await last.task
        assert last.sent[0]["status"] == 200

    run(work)


def test_other_calls_do_not_wait() -> None:
    async def work() -> None:
        app = Work()
        turns = InTurn(app)
        clients = [Client(turns, method) for method in ("GET", "PUT") for _ in range(20)]
        await settled()
        assert app.under_way == MOST + 20
        for each in clients:
            each.task.cancel()
            each.reads.set()
        await asyncio.gather(*(each.task for each in clients))

    run(work)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_server_that_ends_says_so(method: str) -> None:
    async def work() -> None:
        client = Client(InTurn(Work()), method)
        client.reads.set()
        await settled()
        client.task.cancel()
        await client.task
        assert client.sent[0]["status"] == 503

    run(work)


def test_probes_are_answered_between_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 200 takes a while, as one does that goes through thousands of topics. GETs have their turn between them, too."""
    folded: list[int] = []
    fold = EmbeddedEngine._fold_some

    def slow(engine: EmbeddedEngine, taken: list[Any], until: float) -> None:
        changes = sum(b'"POST"' in value for each in taken for value in each.item.values)
        time.sleep(0.01 * changes)
        folded.append(changes)
        fold(engine, taken, inf)

    async def answer(port: int, method: str, path: str, body: bytes = b"") -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += "Content-Type: application/json\r\n" if body else ""
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        found = await reader.read()
        writer.close()
        return found.partition(b"\r\n")[0]

    async def work() -> None:
        sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
        port = sockets[1].getsockname()[1]
        engine = EmbeddedEngine(clock=HeldClock(1_700_000_000_000))
        async with engine, Server(engine, sockets[0], admin_listener=sockets[1]):
            monkeypatch.setattr(EmbeddedEngine, "_fold_some", slow)
            path = "/admin/v2/namespaces/public/default/messageTTL"
            changes = [asyncio.ensure_future(answer(port, "POST", path, b"100")) for _ in range(200)]
            while not sum(folded):
                await asyncio.sleep(0)
            for probe in ("/healthz", "/readyz", "/admin/v2/brokers/health"):
                before = sum(folded)
                assert await answer(port, "GET", probe) == b"HTTP/1.1 200 OK"
                assert sum(folded) - before <= 60
            assert {*await asyncio.gather(*changes)} == {b"HTTP/1.1 204 No Content"}
            assert max(folded) <= MOST

    run(work)
