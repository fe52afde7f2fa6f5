"""Calls of an application in turn. A GET may ask for the stats of ten thousand partitions with a hundred bytes, and go away. A change may
go through all topics of a namespace."""

import asyncio
from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST = 4
"""GETs that are worked on at a time, and changes. Others wait."""


class InTurn:
    """Passes requests on to an application: so many GETs at a time, and none whose client is gone. Changes have their turns in the
    application, once their bodies are there, and whether or not their clients are.

    A GET has its turn until its answer begins to be sent: how fast a client reads is its own affair.
    """

    def __init__(self, app: ASGIApp, most: int = MOST) -> None:
        """`app`: gets the requests. `most`: GETs at a time."""
        self._app = app
        self._turns = asyncio.Semaphore(most)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        request = _Request(send)
        try:
            asked = await receive() if scope["type"] == "http" and scope["method"] == "GET" else None
            if asked is None or asked.get("more_body"):
                await self._app(scope, receive if asked is None else _after(asked, receive), request.send)
            elif asked["type"] == "http.request":
                await self._answer(scope, asked, receive, request)
        except asyncio.CancelledError:  # the server ends
            if not request.begun:
                await JSONResponse({"reason": "the server is being stopped"}, 503)(scope, receive, send)

    async def _answer(self, scope: Scope, asked: Message, receive: Receive, request: "_Request") -> None:
        gone = asyncio.ensure_future(receive())
        work = asyncio.ensure_future(self._in_turn(scope, asked, gone, request))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for each in (work, gone):
                each.cancel()
            with suppress(asyncio.CancelledError):
                await work

    async def _in_turn(
        self, scope: Scope, asked: Message, gone: "asyncio.Future[Message]", request: "_Request"
    ) -> None:
        async def rest() -> Message:
            return await asyncio.shield(gone)

        await self._turns.acquire()
        request.has_turn = self._turns
        try:
            await self._app(scope, _after(asked, rest), request.send)
        finally:
            request.end_turn()


class _Request:
    """How far a request is. `begun`: its answer is on the way."""

    def __init__(self, send: Send) -> None:
        self._send, self.begun = send, False
        self.has_turn: asyncio.Semaphore | None = None

    async def send(self, message: Message) -> None:
        self.begun = True
        self.end_turn()
        await self._send(message)

    def end_turn(self) -> None:
        if self.has_turn is not None:
            self.has_turn.release()
            self.has_turn = None


def _after(first: Message, receive: Receive) -> Receive:
    """Gives a message that came already, and then what comes."""
    taken = False

    async def again() -> Message:
        nonlocal taken
        if taken:
            return await receive()
        taken = True
        return first

    return again
