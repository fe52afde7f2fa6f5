"""Small scenarios for `streaming.answers.check.schedules`: what several clients do, each in its own order.

A scenario is a YAML file. docs/guide/check.md describes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from schemas import commands as c
from schemas.commands import AnyCommand, MessageIdData, Publish, Refused, to_json
from schemas.errors import MagnetarError
from streaming.broker import admin_requests
from streaming.broker.config import LINES, BadSetting, configuration
from streaming.broker.names import is_topic_name, whole_of, why_not_topic_name
from streaming.broker.position import Position
from streaming.log.yaml_files import NotYaml, read_yaml
from streaming.quality.gate import judge

START = 1_767_225_600_000
"""When a scenario begins (ms): 2026-01-01 00:00 UTC."""

_T = TypeVar("_T")

GLOBAL = "broker"
"""The actor of steps that no client takes."""

_SHORT_FORM = "PUBLISH"
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FILE = frozenset(
    {"description", "profile", "settings", "topic", "setup", "clients", "time", "faults", "symmetry"}
)
_MOST_STEPS = 250
_COMMANDS: dict[str, Any] = {
    str(each.__struct_config__.tag): each
    for each in AnyCommand.__args__
    if each not in (c.BrokerConfig, c.Tick)
}
_NAMING = {"ACK": "message_id", "REDELIVER_UNACKNOWLEDGED_MESSAGES": "message_ids"}
_WHICH = ("oldest", "newest", "all")


class ScenarioError(MagnetarError, ValueError):
    """A file is not a scenario. The text names the place and the mistake."""


class Step(NamedTuple):
    """One command of an actor. `ids`: which of the entries that the consumer has the command names; it waits until there
    is one. `wait`: how much time passes before it (ms)."""

    name: str
    topic: str | None
    command: AnyCommand | Publish
    ids: str | None = None
    wait: int = 0

    def at(self, now: int, held: list[Position]) -> AnyCommand | Publish | None:
        """The command at a time (ms), or None if it has to wait for an entry. `held`: what the consumer has."""
        command = self.command
        if isinstance(command, c.Send):
            metadata = command.metadata
            due = metadata.deliver_at_time
            return msgspec.structs.replace(
                command,
                metadata=msgspec.structs.replace(
                    metadata, publish_time=now, deliver_at_time=None if due is None else now + due
                ),
            )
        if isinstance(command, Publish) and command.deliver_at_time is not None:
            return msgspec.structs.replace(command, deliver_at_time=now + command.deliver_at_time)
        if self.ids is None:
            return command
        if not held:
            return None
        chosen = {"oldest": held[:1], "newest": held[-1:], "all": held}[self.ids]
        ids = [MessageIdData(ledgerId=each.ledger, entryId=each.entry) for each in chosen]
        if isinstance(command, c.Ack):
            return msgspec.structs.replace(command, message_id=ids)
        return msgspec.structs.replace(command, message_ids=ids)

    @property
    def handle(self) -> tuple[str, int]:
        """The consumer whose entries the step names."""
        assert isinstance(self.command, c.Ack | c.RedeliverUnacknowledgedMessages)
        return self.command.connection, self.command.consumer_id


class Actor(NamedTuple):
    """What happens in this order, at any moments. `after`: the actor that must have begun before, see `symmetry`."""

    name: str
    steps: tuple[Step, ...]
    after: int | None = None


class Scenario(NamedTuple):
    """`setup` comes first. `actors`: what happens then, in every order. `config` configures the broker."""

    description: str
    config: c.BrokerConfig
    setup: tuple[Step, ...]
    actors: tuple[Actor, ...]


def read_scenario(path: str | Path) -> Scenario:
    """The scenario in a YAML file. Raises `ScenarioError` and `OSError`."""
    try:
        found = read_yaml(path)
    except NotYaml as error:
        raise ScenarioError(f"{path}: {error}") from None
    try:
        return scenario_of(found)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


def scenario_of(document: Any) -> Scenario:
    """The scenario in the content of a file. Raises `ScenarioError`."""
    fields = _fields("the scenario", document)
    if unknown := fields.keys() - _FILE:
        raise ScenarioError(f"{', '.join(sorted(unknown))}: expected {', '.join(sorted(_FILE))}")
    config = _configuration(fields)
    builder = _Builder(_topic("topic", fields.get("topic", "t")))
    setup = tuple(
        step
        for number, each in enumerate(_list("setup", fields))
        for step in builder.steps(f"setup, step {number + 1}", None, each)
    )
    clients = _fields("clients", fields.get("clients", {}))
    programs = {
        str(name): tuple(
            step
            for number, each in enumerate(_items(f"clients, {name}", steps))
            for step in builder.steps(f"{name}, step {number + 1}", str(name), each)
        )
        for name, steps in clients.items()
    }
    actors = [Actor(name, steps) for name, steps in programs.items()]
    for number, each in enumerate(_list("faults", fields)):
        actors += [Actor(GLOBAL, (step,)) for step in builder.steps(f"faults, step {number + 1}", None, each)]
    waits = [_milliseconds(f"time, step {n + 1}", each) for n, each in enumerate(_list("time", fields))]
    if waits:
        actors.append(Actor("time", tuple(Step("TICK", None, c.Tick(), wait=each) for each in waits)))
    builder.check()
    _pass_the_gate(builder.made, START + sum(waits))
    if "topic" in fields and not any(
        step.topic == builder.topic for steps in (setup, *(each.steps for each in actors)) for step in steps
    ):
        raise ScenarioError(
            f"topic: no step is about {builder.topic}: leave it out, or leave out the topics of steps"
        )
    if not isinstance(symmetry := fields.get("symmetry", True), bool):
        raise ScenarioError(f"symmetry is {symmetry!r}: expected true or false")
    if symmetry:
        actors = _symmetric(setup, actors, [repr(steps) for steps in clients.values()])
    if not actors:
        raise ScenarioError("nothing happens: give clients, time or faults")
    if sum(len(actor.steps) for actor in actors) > _MOST_STEPS:
        raise ScenarioError(f"more than {_MOST_STEPS} steps")
    return Scenario(str(fields.get("description", "")), config, setup, tuple(actors))


def _pass_the_gate(made: list[tuple[str, Step]], latest: int) -> None:
    """Refuse a step that the gate of a log refuses: a counterexample with it would not replay. Raises `ScenarioError`.

    What a step says may depend on the time, so it is judged at the earliest one and the `latest` (ms).
    """
    some = [Position(1, 0)]
    for now in {START, latest}:
        values = []
        for place, step in made:
            command = step.at(now, some)
            assert command is not None  # there is an entry
            try:
                values.append(to_json(command))
            except OverflowError as error:
                raise ScenarioError(f"{place}: {step.name}: {error}") from None
        judged = judge([step.topic for _, step in made], values)
        for (place, step), found in zip(made, judged, strict=True):
            if isinstance(found, Refused):
                raise ScenarioError(f"{place}: {step.name}: {found.cause}")


_COMMON = (
    "maxUnackedMessagesPerBroker", "maxTopicsPerNamespace", "brokerPublisherThrottlingMaxMessageRate",
    "brokerPublisherThrottlingMaxByteRate", "dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte",
)  # fmt: skip
"""Limits on several topics together."""

_Names = frozenset[tuple[str, str]]
"""What actors can meet at: ``topic`` or ``connection``, and the name of it."""


def components(scenario: Scenario) -> list[Scenario]:
    """The scenario as independent ones. Together they violate what it violates.

    Actors are in the same one if they, or the setup, use a topic or a connection of both. All are if anything concerns
    more than its topic: a limit on several topics, or a call on a namespace or the broker. The whole setup is part of each
    one, since all begin in the state that it leaves, and so is what concerns no topic, such as time and restarts.
    """
    config = configuration(scenario.config.profile, scenario.config.settings)
    programs = [*((step,) for step in scenario.setup), *(actor.steps for actor in scenario.actors)]
    if any(getattr(config, name) for name in _COMMON) or any(map(_concerns_all, programs)):
        return [scenario]
    of_actors = [_uses(actor.steps) for actor in scenario.actors]
    groups: list[_Names] = []
    for names in (
        *(_uses((step,)) for step in scenario.setup),
        *of_actors,
        *(  # an actor and the one that must have begun before
            of_actors[actor.after] | names
            for actor, names in zip(scenario.actors, of_actors, strict=True)
            if actor.after is not None
        ),
    ):
        bound = [each for each in groups if each & names]
        groups = [each for each in groups if each not in bound] + [names.union(*bound)]
    groups = [group for group in groups if any(names & group for names in of_actors)]
    if len(groups) < 2:
        return [scenario]
    return [
        _component(scenario, [number for number, names in enumerate(of_actors) if names <= group])
        for group in groups
    ]


def _concerns_all(steps: tuple[Step, ...]) -> bool:
    """Do steps that are taken in this order concern more than their topics and connections?"""
    return any(
        (isinstance(step.command, c.Admin) and step.topic is None)
        or _loses_many(step.command)
        or (isinstance(step.command, c.Restart | c.RunCheck) and _uses(steps))
        for step in steps
    )


def _uses(steps: tuple[Step, ...]) -> _Names:
    """The topics and connections of steps. A partitioned topic and its partitions, a topic and its schema count as one topic.

    ADMIN calls are HTTP: they need no connection.
    """
    topics = {_family(step.topic) for step in steps if step.topic is not None}
    connections = {_named(step.command) for step in steps if not isinstance(step.command, c.Admin)} - {""}
    return frozenset([*(("topic", name) for name in topics), *(("connection", name) for name in connections)])


def _family(topic: str) -> str:
    """What a topic shares with all that its state may depend on: its name without domain and partition."""
    name = topic.partition("://")[2]
    while whole := whole_of(name):
        name = whole
    return name


def _component(scenario: Scenario, kept: list[int]) -> Scenario:
    place = {number: at for at, number in enumerate(kept)}
    actors = [scenario.actors[number] for number in kept]
    return scenario._replace(
        actors=tuple(
            each._replace(after=None if each.after is None else place[each.after]) for each in actors
        )
    )


def _symmetric(setup: tuple[Step, ...], actors: list[Actor], programs: list[str]) -> list[Actor]:
    """Clients that do the same begin in the order of the file. Any other order is the same but for their names.

    That holds if nobody else names them: whoever does so does something to one of them alone. `programs`: those of the
    clients, which are the first `actors`, as the file gives them.
    """
    steps = [setup, *(actor.steps for actor in actors)]
    if any(_loses_many(step.command) for each in steps for step in each):
        return actors
    said = [{text for step in each for text in _texts(msgspec.to_builtins(step.command))} for each in steps]
    last: dict[str, int] = {}
    found = actors.copy()
    for number, program in enumerate(programs):
        actor = actors[number]
        if not any(actor.name in texts for by, texts in enumerate(said) if by != number + 1):
            found[number] = actor._replace(after=last.get(program))
            last[program] = number
    return found


def _texts(given: Any) -> Iterator[str]:
    """The texts in the fields of a command: any of them may be the name of a connection, a consumer or a producer."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, Mapping):
        for each in given.values():
            yield from _texts(each)
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _texts(each)


def _loses_many(command: AnyCommand | Publish) -> bool:
    """Does a command end all connections whose names begin alike?"""
    return isinstance(command, c.ConnectionLost) and command.prefix != ""


def _named(command: AnyCommand | Publish) -> str:
    """The connection that a command comes from or is about."""
    return "" if isinstance(command, Publish) else command.connection


class _Builder:
    """Makes steps of what a file says. Counts requests and sequence ids, so that they need not be given."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._requests: dict[str, int] = {}
        self._sequence: dict[tuple[str, int], int] = {}
        self._producers: dict[tuple[str, int], str] = {}
        self._opened: set[str] = set()
        self._used: dict[str, str] = {}
        self.made: list[tuple[str, Step]] = []
        """All steps, each with its place in the file."""

    def check(self) -> None:
        """Whether each connection that a command uses is one on which something is opened. Raises `ScenarioError`."""
        for connection, place in self._used.items():
            if connection not in self._opened:
                raise ScenarioError(
                    f"{place}: nothing is opened on the connection {connection!r}: expected {', '.join(sorted(self._opened)) or 'a SUBSCRIBE'}"
                )

    def steps(self, place: str, client: str | None, given: Any) -> Iterator[Step]:
        """The steps that one item of a list gives. Raises `ScenarioError`."""
        if isinstance(given, str):
            given = {given: None}
        item = _fields(place, given)
        if len(item) != 1:
            raise ScenarioError(f"{place}: expected one command, such as `FLOW: {{messagePermits: 5}}`")
        ((name, body),) = item.items()
        if name == "CONNECTION_LOST" and isinstance(body, str):
            body = {"connection": body}
        fields = dict(_fields(place, {} if body is None else body))
        times = fields.pop("times", 1)
        if not isinstance(times, int) or not 1 <= times <= _MOST_STEPS:
            raise ScenarioError(f"{place}: times is {times!r}, expected a number from 1 to {_MOST_STEPS}")
        for _ in range(times):
            self.made.append((place, self._step(place, client, str(name), dict(fields))))
            yield self.made[-1][1]

    def _step(self, place: str, client: str | None, name: str, fields: dict[str, Any]) -> Step:
        if name != _SHORT_FORM and name not in _COMMANDS:
            raise ScenarioError(
                f"{place}: {name} is not a command: expected {', '.join(sorted([*_COMMANDS, _SHORT_FORM]))}"
            )
        topic: str | None = _topic(place, fields.pop("topic", self.topic))
        ids = None
        if name == _SHORT_FORM:
            producer = fields.setdefault("producer", client or "producer")
            fields.setdefault("sequence_id", self._next(str(producer), -1))
            return Step(name, topic, _converted(place, fields, Publish))
        type_ = _COMMANDS[name]
        fields.setdefault("connection", client or ("" if name in _GLOBAL else "admin"))
        connection = str(fields["connection"])
        if name in _OPENING:
            self._opened.add(connection)
        elif connection and name not in _ANYBODYS:
            self._used.setdefault(connection, place)
        for each in ("consumer_id", "producer_id"):
            if each in type_.__struct_fields__:
                fields.setdefault(each, 0)
        if "request_id" in type_.__struct_fields__ and name != "ACK":
            self._requests[connection] = self._requests.get(connection, 0) + 1
            fields.setdefault("request_id", self._requests[connection])
        if name == "SUBSCRIBE":
            fields.setdefault("consumer_name", connection)
        elif name == "PRODUCER":
            fields.setdefault("producer_name", connection)
            self._producers[connection, fields["producer_id"]] = str(fields["producer_name"])
        elif name == "SEND":
            self._send(place, connection, fields)
        elif name in _NAMING:
            which = fields.get(_NAMING[name], "oldest" if name == "ACK" else [])
            if isinstance(which, str):
                if which not in _WHICH:
                    raise ScenarioError(
                        f"{place}: {which} entries: expected {', '.join(_WHICH)}, or a list of ids"
                    )
                ids, which = which, []
            fields[_NAMING[name]] = which
            if name == "ACK":
                fields.setdefault("ack_type", "Individual")
        elif name == "ADMIN":
            path = str(fields.get("path", ""))
            fields["path"] = path = path.replace("{topic}", admin_requests.topic_path(self.topic))
            if "{" in path:
                raise ScenarioError(f"{place}: {path}: only {{topic}} is a placeholder")
            topic = admin_requests.topic_of(fields["path"])
            if topic is not None and not is_topic_name(topic):
                raise ScenarioError(f"{place}: {path}: {why_not_topic_name(topic)}")
        if name in _GLOBAL:
            topic = None
        return Step(name, topic, _converted(place, fields, type_), ids)

    def _send(self, place: str, connection: str, fields: dict[str, Any]) -> None:
        handle = connection, fields["producer_id"]
        if handle not in self._producers:
            raise ScenarioError(f"{place}: SEND of producer {handle[1]}, which no PRODUCER before it creates")
        sequence_id = fields.setdefault("sequence_id", self._next(*handle))
        metadata = dict(_fields(place, fields.get("metadata", {})))
        if "key" in fields:
            metadata["partition_key"] = str(fields.pop("key"))
        if "deliver_after" in fields:
            metadata["deliver_at_time"] = _milliseconds(place, fields.pop("deliver_after"))
        fields["metadata"] = {
            "producer_name": self._producers[handle], "sequence_id": sequence_id, "publish_time": START, **metadata
        }  # fmt: skip
        fields.setdefault("payload", f"{connection}-{sequence_id}")

    def _next(self, name: str, number: int) -> int:
        found = self._sequence[name, number] = self._sequence.get((name, number), -1) + 1
        return found


_OPENING = frozenset({"CONNECT", "SUBSCRIBE", "PRODUCER"})
_ANYBODYS = frozenset(
    {
        "ADMIN",
        "RESTART",
        "RUN_CHECK",
        "FAULT",
        "PARTITIONED_METADATA",
        "LOOKUP",
        "GET_SCHEMA",
        "GET_OR_CREATE_SCHEMA",
    }
)
"""What a connection may send on which nothing is opened."""

_GLOBAL = frozenset({"RESTART", "RUN_CHECK", "CONNECTION_LOST", "CONNECT"})


def _converted(place: str, fields: dict[str, Any], type_: type[_T]) -> _T:
    try:
        return msgspec.convert(fields, type_)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{place}: {error}") from None


def _configuration(fields: Mapping[str, Any]) -> c.BrokerConfig:
    settings = _fields("settings", fields.get("settings", {}))
    profile = fields.get("profile", "4.x")
    if isinstance(profile, float):  # without quotes, YAML takes 2.10 for the number 2.1
        profile = next((name for name in LINES if float(name) == profile), str(profile))
    found = _converted(
        "profile and settings",
        {"profile": profile, "settings": settings},
        c.BrokerConfig,
    )
    try:
        config = configuration(found.profile, found.settings)
    except BadSetting as error:
        raise ScenarioError(f"settings: {error}") from None
    if config.transactionCoordinatorEnabled:
        raise ScenarioError(
            "settings: transactionCoordinatorEnabled: a scenario has no transactions: leave it out"
        )
    return found


def _fields(place: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(each, str) for each in given):
        raise ScenarioError(f"{place}: expected names with values, not {type(given).__name__}")
    return given


def _items(place: str, given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise ScenarioError(f"{place}: expected a list, not {type(given).__name__}")
    return given


def _list(name: str, fields: Mapping[str, Any]) -> list[Any]:
    return _items(name, fields.get(name, []))


def _topic(place: str, given: Any) -> str:
    if not isinstance(given, str) or not is_topic_name(name := full_topic_name(given)):
        raise ScenarioError(f"{place}: {given!r} is not the name of a topic, such as orders")
    return name


def full_topic_name(name: str) -> str:
    """The full name of a persistent topic, of which ``persistent://`` or ``persistent://public/default/`` may be left out."""
    return (
        name
        if "://" in name
        else f"persistent://{name}"
        if "/" in name
        else f"persistent://public/default/{name}"
    )


def _milliseconds(place: str, given: Any) -> int:
    text = str(given)
    number = text.rstrip("dhms")
    unit = text[len(number) :]
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and unit in _UNITS):
        raise ScenarioError(f"{place}: {text!r}: expected a number and a unit, such as 500ms, 30s, 5m or 1h")
    return int(number) * _UNITS[unit]
