"""Faults that a test asks for: what happens to a client's commands before the broker gets them.

What the broker sees of a fault is in the log: a dropped command is not there, a delayed one comes later, a lost connection is
CONNECTION_LOST, and a SEND whose write fails says so (`fails`). So the log of a test with faults replays as it was.
"""

import asyncio
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from schemas.commands import AnyCommand
from streaming.broker.names import complete, is_topic_name, whole_of, why_not_topic_name
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.protocol import pulsar_api_pb2
from streaming.protocol.requests import LOOKUPS, OF_THE_BROKER

FaultAction = Literal["error", "delay", "drop", "disconnect"]

_ERRORS: Any = pulsar_api_pb2.DESCRIPTOR.enum_types_by_name["ServerError"].values_by_name

_LONGEST_DELAY = 366 * 86_400_000

_FIELDS = {each.__struct_config__.tag: each.__struct_fields__ for each in get_args(AnyCommand)}
_UNANSWERED = frozenset({"FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES"})


class BadFault(ValueError):
    """A fault makes no sense. The text says why."""


class FaultSpec(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which commands a fault hits, and what it does to them."""

    action: Annotated[
        FaultAction,
        Meta(description="error: the command fails. delay: it, and all that follow on its connection, reach the broker later. drop: the broker "
             "never gets it. disconnect: its connection is closed."),
    ]  # fmt: skip
    command: Annotated[
        str | None, Meta(description="The command, by its name in the protocol, such as SEND. Null: any.")
    ] = None
    topic: Annotated[
        str | None,
        Meta(description="The topic, or the partitioned topic of which it is a partition. Null: any."),
    ] = None
    producer: Annotated[
        str | None, Meta(description="The name of the producer, of SEND and PRODUCER. Null: any.")
    ] = None
    when: Annotated[
        dict[str, Any],
        Meta(description='Values that fields of the command must have, such as {"sequence_id": 3}.'),
    ] = {}
    times: Annotated[
        int | None,
        Meta(description="How many commands it hits, at least 1. Null: all.", extra_json_schema={"x-unit": "commands"}),
    ] = 1  # fmt: skip
    error: Annotated[
        str,
        Meta(description="What a client is answered (action error): a ServerError of the protocol. A SEND fails as its write does: SEND_ERROR "
             "PersistenceError. One that is not written, such as a duplicate, is hit without effect; one to a non-persistent topic, which "
             "writes nothing, is not hit."),
    ] = "ServiceNotReady"  # fmt: skip
    delay: Annotated[
        int,
        Meta(description="How long a command is delayed on the broker's clock, a year at most.", extra_json_schema={"x-unit": "ms"}),
    ] = 1000  # fmt: skip


class InjectedFault:
    """A fault. `hits`: how many commands it has hit."""

    def __init__(self, id_: int, spec: FaultSpec) -> None:
        if spec.command is not None and spec.command not in OF_THE_BROKER:
            raise BadFault(f"command {spec.command!r}: expected one of {', '.join(sorted(OF_THE_BROKER))}")
        kinds = OF_THE_BROKER if spec.command is None else (spec.command,)
        fields = sorted({field for kind in kinds for field in _FIELDS[kind]})
        if unknown := sorted(spec.when.keys() - set(fields)):
            raise BadFault(f"when {unknown[0]!r}: expected one of {', '.join(fields)}")
        if spec.action == "error" and spec.command in _UNANSWERED:
            raise BadFault(
                f"{spec.command} has no answer, so it can't fail: choose drop, delay or disconnect"
            )
        if (
            spec.action == "error"
            and spec.command == "SEND"
            and is_non_persistent(complete(spec.topic or ""))
        ):
            raise BadFault(
                "a non-persistent topic writes nothing that could fail: choose drop, delay or disconnect"
            )
        if spec.error not in _ERRORS:
            raise BadFault(f"error {spec.error!r}: expected one of {', '.join(sorted(_ERRORS))}")
        if not 0 <= spec.delay <= _LONGEST_DELAY:
            raise BadFault(f"delay {spec.delay}: expected 0 to {_LONGEST_DELAY:,} ms")
        if spec.times is not None and spec.times < 1:
            raise BadFault(f"times {spec.times}: expected at least 1, or null for all")
        self.id, self.spec = id_, spec
        self.hits = 0
        self._topic = None if spec.topic is None else complete(spec.topic)
        if self._topic is not None and not is_topic_name(self._topic):
            raise BadFault(f"topic {spec.topic!r}: {why_not_topic_name(self._topic)}")
        self._ended: str | None = None
        self._news = asyncio.Event()

    def matches(self, topic: str | None, command: dict[str, Any]) -> bool:
        """Whether it hits a command."""
        spec = self.spec
        if spec.times is not None and self.hits >= spec.times:
            return False
        name = command["command"]
        if spec.command not in (None, name):
            return False
        if spec.action == "error" and (
            name in _UNANSWERED or (name == "SEND" and is_non_persistent(topic or ""))
        ):
            return False
        if self._topic is not None and whole_of(topic or "") != self._topic != topic:
            return False
        if spec.producer is not None:
            of = command["metadata"] if name == "SEND" else command
            if of.get("producer_name") != spec.producer:
                return False
        return all(command.get(field) == value for field, value in spec.when.items())

    async def wait(self, hits: int) -> None:
        """Wait until it has hit so many commands. Raises `BadFault` if it ends before, or never hits so many."""
        if self.spec.times is not None and hits > self.spec.times:
            raise BadFault(f"hits {hits}: the fault hits {self.spec.times:,} at most, which its `times` says")
        while self.hits < hits:
            if self._ended is not None:
                raise BadFault(
                    f"{self._ended} before the fault had hit {hits:,} commands: it hit {self.hits:,}"
                )
            await self._news.wait()

    def hit(self) -> None:
        """It hits a command."""
        self.hits += 1
        self._tell()

    def end(self, why: str) -> None:
        """It hits no more commands. `why`: what happened, for those who wait."""
        self._ended = why
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Faults:
    """The faults of a server."""

    def __init__(self) -> None:
        self._faults: dict[int, InjectedFault] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._faults)

    def add(self, spec: FaultSpec) -> InjectedFault:
        """A new fault. Raises `BadFault`."""
        fault = InjectedFault(self._last + 1, spec)
        self._last = fault.id
        self._faults[fault.id] = fault
        return fault

    def get(self, id_: int) -> InjectedFault | None:
        """A fault by its number."""
        return self._faults.get(id_)

    def remove(self, id_: int) -> bool:
        """Remove a fault. What it delays still comes. Returns whether there is or was one of that number."""
        if (fault := self._faults.pop(id_, None)) is not None:
            fault.end("the fault was removed")
        return 0 < id_ <= self._last

    def clear(self, why: str) -> None:
        """Remove all faults. `why`: what happened, for those who wait for hits."""
        for fault in self._faults.values():
            fault.end(why)
        self._faults.clear()

    def hit(self, topic: str | None, command: dict[str, Any]) -> FaultSpec | None:
        """The oldest fault that hits a command, which counts."""
        for fault in self._faults.values():
            if fault.matches(topic, command):
                fault.hit()
                return fault.spec
        return None


def error_answer(spec: FaultSpec, command: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The frame that answers a command which fails."""
    name, text = command["command"], "a fault was asked for"
    request = {"request_id": command["request_id"]}
    if name not in LOOKUPS:
        return "ERROR", {**request, "error": spec.error, "message": text}
    if name in ("LOOKUP", "PARTITIONED_METADATA"):
        return f"{name}_RESPONSE", {**request, "response": "Failed", "error": spec.error, "message": text}
    return f"{name}_RESPONSE", {**request, "error_code": spec.error, "error_message": text}
