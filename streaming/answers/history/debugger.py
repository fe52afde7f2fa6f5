"""Stepping through a log command by command, back and forth, with breakpoints. It has no interface of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import UNSET

from schemas.commands import Refused, command_in, decode_or_refuse
from schemas.effects import KINDS, Row
from streaming.answers.history.inspection import differences
from streaming.answers.history.timeline import LoggedCommand, Timeline
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.position import Position, from_words
from streaming.fold.live import LiveFold
from streaming.fold.records import Records, StateRow

BreakOn = Literal["topic", "message", "subscription", "cause"]


class Breakpoint(NamedTuple):
    """Where to stop: after a command that concerns this. `cause`: a part of the cause, the policy, or the kind of an output row;
    `message`: LEDGER:ENTRY."""

    on: BreakOn
    value: str


class Debugger:
    """A moment of a timeline, with the last command, and what it did.

    `rows` are the last command's, by ingress partition.
    """

    def __init__(self, timeline: Timeline, moment: int = 0) -> None:
        """Raises what folding raises."""
        self._timeline = timeline
        self.breakpoints: list[Breakpoint] = []
        self.goto(moment)

    @property
    def moment(self) -> int:
        """How many commands were carried out."""
        return self._moment

    @property
    def command(self) -> LoggedCommand | None:
        """The last command; None at the beginning."""
        return self._timeline.command(self._moment) if self._moment else None

    def goto(self, moment: int) -> None:
        """Go to a moment. Raises `IndexError` if the log does not have it."""
        if not 0 <= moment <= len(self._timeline):
            raise IndexError(moment)
        self._load(max(moment - 1, 0))
        self.rows: list[tuple[int, Row]] = []
        self._before: list[StateRow] = []
        if moment:
            self._step()

    def forth(self, commands: int = 1) -> None:
        """Go on by some commands. Raises `IndexError` at the end of the log."""
        if commands == 1 and self._moment < len(self._timeline):
            self._step()
        else:
            self.goto(self._moment + commands)

    def back(self, commands: int = 1) -> None:
        """Go back by some commands. Raises `IndexError` at the beginning."""
        self.goto(self._moment - commands)

    def run(self) -> Breakpoint | None:
        """Go on until a breakpoint is met, or to the end of the log, which is None."""
        found = None
        start, before = self._moment, self._moment
        for moment, found in self._met(start, len(self._timeline)):
            before = moment
            if found is not None:
                break
        if before != start:
            self.goto(before)
        return found

    def run_back(self) -> Breakpoint | None:
        """Go back until a breakpoint is met, or to the beginning, which is None."""
        end = self._moment - 1
        while end > 0:
            base, _ = self._timeline.around(end - 1)
            met = [(moment, found) for moment, found in self._met(base, end) if found is not None]
            if met:
                moment, found = met[-1]
                self.goto(moment)
                return found
            end = base
        self.goto(0)
        return None

    def states(self) -> list[StateRow]:
        """The states now, of the ingress partitions that had a record, in order."""
        return [fold.state() for _, fold in sorted(self._folds.items())]

    def difference(self) -> pa.Table:
        """What the last command changed, see `streaming.answers.history.inspection.differences`."""
        partitions = {each.partition for each in self._before}
        after = [self._folds[partition].state() for partition in sorted(partitions | self._touched)]
        return differences(self._before, after)

    # -- folding

    def _load(self, moment: int) -> None:
        """Be at a moment, without rows."""
        base, states = self._timeline.snapshot(moment)
        self._folds = {
            each.partition: LiveFold(each.partition, self._timeline.store, each) for each in states
        }
        self._moment = self._loaded = base
        _, self._end = self._timeline.around(base)
        for records in self._timeline.commands(base, moment):
            self._fold(records)

    def _step(self) -> None:
        """Carry out the next command."""
        self._get_ready()
        (records,) = self._timeline.commands(self._moment, self._moment + 1)
        self._touched = {each["partition"] for each in records}
        self._before = [self._folds[each].state() for each in sorted(self._touched & self._folds.keys())]
        self.rows = self._fold(records)

    def _get_ready(self) -> None:
        """Before the first command of a part of the log: its entries are needed, which are there once it is folded."""
        if self._moment == self._end:
            self._timeline.extend(self._moment + 1)
            if self._loaded < self._moment:
                self._load(self._moment)
            _, self._end = self._timeline.around(self._moment)

    def _fold(self, records: Sequence[dict[str, Any]]) -> list[tuple[int, Row]]:
        rows: list[tuple[int, Row]] = []
        for each in records:
            partition = each["partition"]
            if partition not in self._folds:
                self._folds[partition] = LiveFold(partition, self._timeline.store, None)
            answer = self._folds[partition].answer(
                Records([each["offset"]], [each["timestamp"]], [each["topic"]], [each["value"]])
            )
            rows += [(partition, row) for row in answer]
        self._moment += 1
        return rows

    # -- breakpoints

    def _met(self, start: int, stop: int) -> Iterator[tuple[int, Breakpoint | None]]:
        """The moments after `start` up to `stop`, each with the first breakpoint that is met there. It moves the debugger."""
        self._load(start)
        while self._moment < stop:
            self._get_ready()
            (records,) = self._timeline.commands(self._moment, self._moment + 1)
            subscriptions = self._subscriptions(records[0])
            rows = self._fold(records)
            found = (each for each in self.breakpoints if _meets(each, records[0], rows, subscriptions))
            yield self._moment, next(found, None)

    def _subscriptions(self, record: dict[str, Any]) -> set[str]:
        """The subscriptions that a command names, or whose consumer it does."""
        command, topic = _decoded(record["value"]), record["topic"]
        found = {command["subscription"]} if isinstance(command.get("subscription"), str) else set[str]()
        fold = self._folds.get(record["partition"])
        if fold is None or topic is None or is_non_persistent(topic) or "consumer_id" not in command:
            return found
        if topic in fold.broker.topic_names():
            for each in fold.broker.topic(topic).subscriptions.values():
                for consumer in each.consumers:
                    if (consumer.connection, consumer.consumer_id) == (
                        command.get("connection"),
                        command["consumer_id"],
                    ):
                        found.add(each.name)
        return found


def _decoded(value: bytes) -> dict[str, Any]:
    command = decode_or_refuse(value)
    if isinstance(command, Refused):
        return {}
    found: dict[str, Any] = msgspec.to_builtins(command_in(command))
    return found


def _meets(
    at: Breakpoint, record: dict[str, Any], rows: Sequence[tuple[int, Row]], subscriptions: set[str]
) -> bool:
    effects = [row.effect for _, row in rows]
    if at.on == "topic":
        topics = {record["topic"], *(getattr(each, "topic", None) for each in effects)}
        return not topics.isdisjoint(full_names(at.value))
    if at.on == "subscription":
        return at.value in subscriptions or any(
            getattr(each, "subscription", None) == at.value for each in effects
        )
    if at.on == "cause":
        return any(
            at.value in (getattr(each, name, None) or "") for each in effects for name in ("cause", "policy")
        ) or any(KINDS[type(each)] == at.value for each in effects)
    position = from_words(at.value)
    return _names(_decoded(record["value"]), position) or any(_concerns(each, position) for each in effects)


def full_names(topic: str) -> list[str]:
    """The full names that a topic's name may stand for."""
    return [topic] if "://" in topic else [f"persistent://{topic}", f"persistent://public/default/{topic}"]


def _concerns(effect: Any, position: Position) -> bool:
    """Whether a row is about a position, or moves a subscription over it."""
    if hasattr(effect, "before_ledger"):
        before = Position(effect.before_ledger, effect.before_entry)
        after = Position(effect.after_ledger, effect.after_entry)
        return min(before, after) < position <= max(before, after)
    return (getattr(effect, "ledger_id", None), getattr(effect, "entry_id", None)) == position


def _names(value: Any, position: Position) -> bool:
    """Whether a command names a position."""
    if isinstance(value, dict):
        if (value.get("ledgerId"), value.get("entryId")) == position:
            return True
        return any(_names(each, position) for each in value.values())
    return isinstance(value, list) and any(_names(each, position) for each in value)


def kind_of(row: Row) -> str:
    """The kind of an output row."""
    return KINDS[type(row.effect)]


def summary(row: Row) -> str:
    """A row on a line: its kind, and the fields that are set, without those that only repeat the command."""
    fields: dict[str, Any] = row.effect._asdict()
    fields |= {name: _set_in(value) for name, value in fields.items() if isinstance(value, msgspec.Struct)}
    shown = {
        name: value
        for name, value in fields.items()
        if value is not None and name not in ("topic", "payload", "metadata", "connection")
    }
    return f"{kind_of(row)} " + ", ".join(f"{name} {value}" for name, value in shown.items())


def _set_in(value: msgspec.Struct) -> dict[str, Any]:
    return {
        name: each
        for name, each in msgspec.structs.asdict(value).items()
        if each is not None and each is not UNSET
    }
