"""GETs of the admin API: a few at a time, none for a client that is gone, and no traceback where the server ends."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from streaming.server.admin.turns import MOST, InTurn


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
