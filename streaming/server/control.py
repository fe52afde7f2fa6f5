"""The API of a test double, below ``/magnetar/v1``: the clock, faults, a look into subscriptions, and going back.

Bodies are JSON, times are ms since the epoch. Each call returns when the broker is at rest. `streaming.server.control_api` describes it.
"""

import base64
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.undecodable import UNDECODABLE
from schemas.units import LATEST_TIME
from streaming.broker.context import NEVER
from streaming.broker.names import complete
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.delivery import Show
from streaming.broker.position import from_text
from streaming.server.admin.application import Bodies
from streaming.server.binary import BinaryServer
from streaming.server.client_times import Whose, published
from streaming.server.clock import HeldClock
from streaming.server.control_api import (
    MOST_FAULTS,
    MOST_PEEKED,
    MOST_SNAPSHOTS,
    OPENAPI,
    ClockAnswer,
    ClockCall,
    FaultAnswer,
    LeftClients,
    MovedAnswer,
    PeekAnswer,
    PeekedMessage,
    PendingTimer,
    RefusedAnswer,
    RemovedAnswer,
    ShutOutAnswer,
    SnapshotAnswer,
    TestAnswer,
    TestCall,
    TimeAnswer,
)
from streaming.server.embedded import EmbeddedEngine, Snapshot
from streaming.server.faults import BadFault, FaultSpec, InjectedFault


class BadCall(ValueError):
    """A call makes no sense. The text says why."""


class BeginTest(Protocol):
    """Begins a test of this name, and returns the address of its clients, see `streaming.server.left_over`."""

    async def __call__(self, name: str, *, same_address: bool) -> str:
        """Begin it."""


class Control:
    """What tests do to a server whose clock they hold."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        server: BinaryServer,
        clock: HeldClock,
        begin_test: BeginTest | None = None,
        shut_out: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        """`begin_test`, `shut_out`: see `streaming.server.left_over`; None: there are no sockets."""
        self._engine, self._server, self._clock = engine, server, clock
        self._begin_test, self._shut_out = begin_test, shut_out
        self._snapshots: dict[int, Snapshot] = {}
        self._last_snapshot = 0
        self._bodies = Bodies()
        self._delivery_times: Whose = "either"
        server.put_right = self._put_right

    def routes(self) -> list[Route]:
        """The routes below ``/magnetar/v1``."""
        return [
            Route("/openapi.json", _answered(self.openapi), methods=["GET"]),
            Route("/clock", _answered(self.clock), methods=["GET"]),
            Route("/clock", _answered(self.set_clock), methods=["POST"]),
            Route("/faults", _answered(self.add_fault), methods=["POST"]),
            Route("/faults/{id}", _answered(self.fault), methods=["GET"]),
            Route("/faults/{id}", _answered(self.remove_fault), methods=["DELETE"]),
            Route("/peek", _answered(self.peek), methods=["GET"]),
            Route("/snapshots", _answered(self.snapshot), methods=["POST"]),
            Route("/snapshots/{id}/restore", _answered(self.restore), methods=["POST"]),
            Route("/reset", _answered(self.reset), methods=["POST"]),
            Route("/tests", _answered(self.begin_test), methods=["POST"]),
            Route("/shut-out", _answered(self.shut_out), methods=["GET"]),
        ]

    async def openapi(self, request: Request) -> Any:
        """The description of the API."""
        return OPENAPI

    # -- the clock

    async def clock(self, request: Request) -> Any:
        """The time, how the clock goes, and what is due when."""
        timers = [PendingTimer(due, topic) for due, topic in self._engine.broker.pending_timers()]
        return ClockAnswer(self._clock.now(), self._clock.mode, self._delivery_times, timers)

    def _put_right(self, metadata: dict[str, Any]) -> dict[str, Any]:
        held = self._clock.mode == "held"
        return published(metadata, self._clock.now(), self._delivery_times, is_held=held)

    async def set_clock(self, request: Request) -> Any:
        """Move the clock, or let it go. `moved`: by how many ms."""
        call = _decoded(await self._bodies.of(request), ClockCall)
        before = self._clock.now()
        if call.delivery_times is not None:
            self._delivery_times = call.delivery_times
        elif call.mode is not None:
            self._clock.mode = call.mode
        elif call.advance is not None:
            if call.advance < 0:
                raise BadCall("advance: time can't go back")
            if before + call.advance > LATEST_TIME:
                raise BadCall("advance: the clock ends in the year 5138")
            await self._move_to(before + call.advance)
        elif call.advance_to_next is not None:
            due = self._engine.next_due()
            if due > min(LATEST_TIME, before + call.advance_to_next):
                return MovedAnswer(before, 0, None if due >= NEVER else due)
            self._clock.move_to(due)
        else:
            raise BadCall("expected advance, advance_to_next, mode or delivery_times")
        self._server.release()
        await self._engine.tick()
        now = self._clock.now()
        return MovedAnswer(now, now - before)

    async def _move_to(self, time: int) -> None:
        """Move the clock. On the way, what publish rates hold back is carried out when its time comes."""
        while (due := self._engine.resumes_at) < time:
            self._clock.move_to(due)
            self._server.release()
            await self._engine.tick()
        self._clock.move_to(time)

    # -- faults

    async def add_fault(self, request: Request) -> Any:
        """Ask for a fault."""
        if len(self._server.faults) >= MOST_FAULTS:
            raise BadCall(f"there are {MOST_FAULTS:,} faults: remove some")
        return _shown(self._server.faults.add(_decoded(await self._bodies.of(request), FaultSpec)))

    async def fault(self, request: Request) -> Any:
        """A fault; with ``?hits=N``, as soon as it has hit N commands. Fails if it is removed before, or hits fewer."""
        fault = self._server.faults.get(_id(request))
        if fault is None:
            raise BadCall("there is no such fault")
        if (hits := request.query_params.get("hits")) is not None:
            await fault.wait(_number("hits", hits))
        return _shown(fault)

    async def remove_fault(self, request: Request) -> Any:
        """Remove a fault. That may have happened before, as by a reset."""
        if not self._server.faults.remove(_id(request)):
            raise BadCall("there never was such a fault")
        return RemovedAnswer()

    # -- looking

    async def peek(self, request: Request) -> Any:
        """The messages of a subscription, at most `count`, see `Broker.peek`."""
        query = request.query_params
        topic = complete(query.get("topic", ""))
        show, count = query.get("show", "backlog"), _number("count", query.get("count", "100"))
        if show not in get_args(Show):
            raise BadCall(f"show {show!r}: expected backlog, inflight, delayed or holes")
        if count > MOST_PEEKED:
            raise BadCall(f"count {count}: expected at most {MOST_PEEKED}")
        if is_non_persistent(topic):
            raise BadCall(f"{topic}: a non-persistent topic keeps no messages")
        try:
            found = self._engine.broker.topic(topic)
        except KeyError:
            raise BadCall(f"there is no topic {topic}") from None
        name = query.get("subscription", "")
        if name not in found.subscriptions:
            raise BadCall(f"{topic} has no subscription {name!r}")
        entries = self._engine.broker.peek(topic, name, show, count)  # type: ignore[arg-type]
        return PeekAnswer([self._message(topic, each.position) for each in entries])

    def _message(self, topic: str, position: str) -> PeekedMessage:
        ledger_id, entry_id = from_text(position)
        entry = self._engine.entry(topic, ledger_id, entry_id)
        payload = base64.b64encode(entry.payload).decode()
        return PeekedMessage(ledger_id, entry_id, msgspec.to_builtins(entry.metadata), payload)

    # -- going back

    async def snapshot(self, request: Request) -> Any:
        """Remember the broker as it is now."""
        if len(self._snapshots) >= MOST_SNAPSHOTS:
            raise BadCall(f"there are {MOST_SNAPSHOTS:,} snapshots: go back to one of them, or reset")
        self._last_snapshot += 1  # never given out again: an old number must not lead to another state
        self._snapshots[self._last_snapshot] = self._engine.snapshot()
        return SnapshotAnswer(self._last_snapshot)

    async def restore(self, request: Request) -> Any:
        """Go back to a snapshot. All connections are closed. The faults and all later snapshots are gone."""
        id_ = _id(request)
        if id_ not in self._snapshots:
            raise BadCall("there is no such snapshot")
        self._leave("the broker went back to a snapshot")
        await self._engine.restore(self._snapshots[id_])
        self._snapshots = {each: kept for each, kept in self._snapshots.items() if each <= id_}
        return TimeAnswer(self._clock.now())

    async def reset(self, request: Request) -> Any:
        """Be as after a start with an empty folder: nothing in it, no fault and no snapshot. The clock is held, at the machine's time."""
        self._leave("the broker was reset")
        self._snapshots.clear()
        self._clock.mode, self._delivery_times = "held", "either"
        await self._engine.reset(self._clock.now() - self._clock.ahead)
        return TimeAnswer(self._clock.now())

    async def begin_test(self, request: Request) -> Any:
        """Be as after a reset, at another address or, if asked, the same. The clients of earlier tests are shut out: `shut_out` has those that
        try."""
        assert self._begin_test is not None
        call = _decoded(await self._bodies.of(request), TestCall)
        service_url = await self._begin_test(call.name, same_address=call.same_address)
        await self.reset(request)
        return TestAnswer(self._clock.now(), service_url)

    async def shut_out(self, request: Request) -> Any:
        """The earlier tests whose clients have come since the last one began: which they are, and how often they did."""
        return ShutOutAnswer([LeftClients(**each) for each in self._shut_out()])

    def _leave(self, why: str) -> None:
        self._server.faults.clear(why)
        self._server.forget_connections()


def _answered(call: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            status, found = 200, await call(request)
        except (BadCall, BadFault) as error:
            status, found = 400, RefusedAnswer(str(error))
        return Response(msgspec.json.encode(found), status, media_type="application/json")

    return answer


def _decoded(body: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except UNDECODABLE as error:
        raise BadCall(str(error)) from None


def _id(request: Request) -> int:
    return _number("id", request.path_params["id"])


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadCall(f"{name} {text!r}: expected a number")
    return int(text)


def _shown(fault: InjectedFault) -> FaultAnswer:
    return FaultAnswer(fault.id, fault.hits, fault.spec)
