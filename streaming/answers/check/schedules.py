"""All schedules of a small scenario: explicit-state search over the core, held against `streaming.answers.check.invariants`.

The problem
    Some mistakes show in one order of events only. A scenario of three clients with four commands each has 34,650
    orders, and random tests rarely find the one that matters. But most orders lead to states that others lead to as well.

The idea
    Explore *states*, not orders: two orders that end in the same state have the same future, so it is continued once.
    The core makes that possible. A broker is a value: it has no clock and no randomness, and `encode` gives its state as
    bytes. So a state can be copied, compared by a hash, and sent to another process.

The data
    `Scenario`   actors, each with its steps in order. Time and faults are actors, too.
    `_Node`      a state: how far each actor is (`done`), the encoded broker and monitor, and the first schedule that
                 reached it, as the numbers of the actors
    `World`      a node that is decoded: a broker and a monitor that take one command after the other
    `Monitor`    its own account of what was stored, delivered, acked and taken by a rule, so that a mistake of the
                 broker does not hide itself. It is part of the state: states with equal brokers and different accounts differ.

In order (`_explore`)
    A level is all states after the same number of steps. From each state of a level, each actor that can go on takes
    one step (`_Search.expand`). A step that names an entry can be taken once its consumer has one. After the step, the
    monitor judges the effects, and `World.starved` whether a consumer waits in vain. States are known by a hash of
    `done`, broker and monitor. Equal ones are merged, and the new ones are the next level.

    Actor p publishes twice, c subscribes once, on a topic that has a message. States are (steps of p, steps of c)::

        level 0    (0,0)
        level 1    (1,0)  (0,1)
        level 2    (2,0)  (1,1)          p c and c p: equal, if the subscription begins at the earliest message
        level 3    (2,1)                 an end: no actor can go on

    These are 6 states for 3 orders. If the subscription begins at the latest message, it begins elsewhere in p c than in
    c p, so there are 9 states.

Invariants
    * Each step adds one to the sum of `done`, so equal states are always on the same level. Only two levels are kept.
    * The first violation of an invariant is one after the fewest steps. Of several on a level, that of the smallest
      schedule counts, so the result does not depend on the number of processes.
    * The time of a state follows from `done` alone (`_now`).
    * No step of a counterexample can be left out (`_counterexample`, by delta debugging).

What it costs
    A step decodes a broker and a monitor and encodes both. The number of states may grow exponentially with actors and
    steps: ``docs/scenarios/key_shared.yaml`` has 1,735 states and 2,853 steps between them. Topics that have nothing in
    common are explored apart (`components`), and clients that do the same begin in one order only.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from schemas.arguments import checked
from schemas.commands import Admin, AnyCommand, BrokerConfig, Publish, Tick, to_json
from schemas.effects import (
    KINDS,
    AdminResponse,
    CursorMoved,
    Effect,
    Error,
    Evicted,
    Expired,
    Message,
    Quarantined,
    Row,
    SendError,
    Unsupported,
)
from streaming.answers.check.invariants import Invariant, Monitor, Violation, held_back
from streaming.answers.check.reduction import reduced
from streaming.answers.check.scenario import START, Scenario, ScenarioError, Step, components, read_scenario
from streaming.broker.broker import Broker
from streaming.broker.state.codec import PartitionState

MOST_STATES = 2_000_000
"""Where a search stops, if it is not told otherwise: after 4 to 10 minutes, and 2 to 4 GB."""

PATIENCE = 60_000
"""How long an entry may wait for a timer before its consumer counts as starved (ms)."""

_CHUNK = 256
_ALONE = 1024
"""A level of fewer states is explored in this process."""


class Record(NamedTuple):
    """A record of a counterexample: its time (ms), topic and command as in a log, and what the broker did, in words."""

    timestamp: int
    topic: str | None
    actor: str
    command: dict[str, Any]
    effects: list[str]


class Counterexample(NamedTuple):
    """The records that lead to a violation. None of its steps can be left out."""

    violation: Violation
    records: list[Record]

    def lines(self) -> Iterator[bytes]:
        """The log for `magnetar replay`, as JSON Lines."""
        for each in self.records:
            topic = {} if each.topic is None else {"topic": each.topic}
            yield msgspec.json.encode({"timestamp": each.timestamp, **topic, **each.command}) + b"\n"


class Checked(msgspec.Struct, kw_only=True):
    """What a search found.

    * `states`: how many states were reached.
    * `transitions`: by how many steps.
    * `deepest`: how many steps from the start the last of them are.
    * `ends`: how many of them are states in which no actor can go on.
    * `complete`: whether every schedule was explored.
    * `whole`: if not, every schedule of so many steps was, in the independent scenario at which the search stopped.
    * `components`: into how many independent scenarios it fell.
    * `never`: the steps that were never possible, by actor and number from 1.
    * `counterexamples`: one for each invariant that is violated.
    """

    states: int = 0
    transitions: int = 0
    deepest: int = 0
    ends: int = 0
    complete: bool = True
    whole: int | None = None
    components: int = 1
    never: list[str] = []
    counterexamples: list[Counterexample] = []


class _Node(NamedTuple):
    """A state: the schedule that first reached it (the numbers of the actors), how far each actor is, and the encoded broker
    and monitor."""

    schedule: bytes
    done: bytes
    broker: bytes
    monitor: bytes


class _Expanded(NamedTuple):
    """The states after some others, by their hashes, and the violations on the way, with their schedules."""

    nodes: dict[bytes, _Node]
    violations: list[tuple[Violation, bytes]]
    transitions: int
    ends: int
    heard: Heard


@checked
def check(
    scenario: Scenario | str | Path,
    *,
    processes: int = 1,
    most_states: int | None = MOST_STATES,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] | None = None,
) -> Checked:
    """Explore every schedule of a scenario. Returns one counterexample for each invariant that is violated.

    `scenario`: what `read_scenario` returns, or its YAML file. `processes`: explore in so many of them. `most_states`: where to stop; None: nowhere. The states of two levels are in memory. `stop` is asked again and again. `progress` is
    called after each level with the number of states and the depth.

    Raises `ScenarioError` and `OSError` for a file, and `ScenarioError` if every schedule was explored, none violates an invariant, and the
    broker refuses everything that is asked on a topic: then nothing was checked there.
    """
    if not isinstance(scenario, Scenario):
        scenario = read_scenario(scenario)
    parts = components(scenario)
    total = Checked(components=len(parts))
    heard = Heard()
    for part in parts:
        search = _Search(part)
        with _pool(part, processes) as pool:
            _explore(search, total, pool, most_states, stop, progress)
        if not total.complete:
            break
        heard.update(search.heard)
    if total.complete and not total.counterexamples and (vacuous := heard.vacuous()) is not None:
        raise ScenarioError(vacuous)
    return total


class Heard:
    """What the broker says to what is asked on each topic: whether it does anything, and why not.

    Calls of the admin API count if a topic has nothing else: they may work on topics that no client can use.
    """

    def __init__(self) -> None:
        self.does: set[tuple[str, bool]] = set()
        self.refuses: dict[tuple[str, bool], str] = {}

    def add(self, topic: str | None, command: AnyCommand | Publish, rows: Iterable[Row]) -> None:
        """The effects of a command on a topic."""
        if topic is None or (asked := (topic, isinstance(command, Admin))) in self.does:
            return
        why = "the broker does nothing"
        for row in rows:
            if (refusal := _refusal(row.effect)) is None:
                self.does.add(asked)
                return
            why = refusal
        self.refuses.setdefault(asked, why)

    def update(self, other: Heard) -> None:
        """Adds what another search heard, later in the order of the schedules."""
        self.does |= other.does
        self.refuses = {**other.refuses, **self.refuses}

    def vacuous(self) -> str | None:
        """A sentence about the first topic on which nothing can be done. None: there is none."""
        for topic, is_call in sorted(self.refuses):
            if (topic, is_call) not in self.does and not (is_call and (topic, False) in self.does):
                return (
                    f"nothing was checked on topic {topic}: in every order, the broker refuses all that is asked there, such as "
                    f"{self.refuses[topic, is_call]!r}. Name another topic, or let the setup create what it needs"
                )
        return None


def _refusal(effect: Effect) -> str | None:
    """Why an effect refuses a command. None: it does not."""
    if isinstance(effect, AdminResponse):
        return effect.cause if effect.fields.status >= 400 else None
    return effect.cause if isinstance(effect, Error | SendError | Unsupported | Quarantined) else None


class World:
    """A broker of one ingress partition with its monitor, which take one command after the other."""

    def __init__(self, config: BrokerConfig) -> None:
        self.monitor = Monitor()
        self.broker = Broker(0, self.monitor)
        self.now = START
        self.do(None, config)

    @classmethod
    def decode(cls, broker: bytes, monitor: bytes) -> World:
        """The world as it was encoded."""
        world = cls.__new__(cls)
        world.monitor = Monitor.decode(monitor)
        world.broker = Broker.decode(broker, world.monitor)
        world.now = world.broker.clock
        return world

    def copy(self) -> World:
        """Another one in the same state."""
        return World.decode(self.broker.encode(), self.monitor.encode())

    def do(self, topic: str | None, command: AnyCommand | Publish) -> tuple[list[Row], list[Violation]]:
        """Carry out a command. Returns its effects, and what they violate."""
        broker = self.broker
        broker.apply(broker.offset + 1, self.now, topic, command, b"")
        rows = broker.take()
        return rows, self.monitor.observe(topic, command, rows, broker)

    def step(self, step: Step) -> tuple[AnyCommand | Publish, list[Row], list[Violation]] | None:
        """Carry out a step. None: it has to wait for an entry."""
        self.now += step.wait
        held = [] if step.ids is None or step.topic is None else self.monitor.held(step.topic, *step.handle)
        command = step.at(self.now, held)
        return None if command is None else (command, *self.do(step.topic, command))

    def starved(self) -> Violation | None:
        """Does a consumer wait for an entry that it could have, and time brings nothing?"""
        for waiting in self.monitor.starved(self.broker):
            if held_back(self.copy().broker, waiting):
                continue
            later = self.copy()
            later.now += PATIENCE
            rows, _ = later.do(None, Tick())
            if not any(
                isinstance(row.effect, Message)
                and (row.effect.topic, row.effect.subscription) == (waiting.topic, waiting.subscription)
                for row in rows
            ):
                text = f"{waiting.position} waits, and {waiting.connection} has permits and gets nothing"
                return Violation("starved", waiting.topic, waiting.subscription, text)
        return None


class _Search:
    """The successors of states of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.heard = Heard()
        """In the setup, and in the nodes that `_explore` has added."""
        self._waits = [[step.wait for step in actor.steps] for actor in scenario.actors]

    def start(self) -> tuple[_Node, list[tuple[Violation, bytes]]]:
        """The state after the setup, and what it violates."""
        world = World(self.scenario.config)
        violations = []
        for step in self.scenario.setup:
            if (found := world.step(step)) is not None:
                self.heard.add(step.topic, *found[:2])
                violations += [(each, b"") for each in found[2]]
        node = _Node(b"", bytes(len(self.scenario.actors)), world.broker.encode(), world.monitor.encode())
        return node, violations

    def expand(self, nodes: Iterable[_Node]) -> _Expanded:
        """The states after each of `nodes`."""
        found: dict[bytes, _Node] = {}
        violations: list[tuple[Violation, bytes]] = []
        heard = Heard()
        transitions = ends = 0
        actors = self.scenario.actors
        for node in nodes:
            went_on = False
            for number, actor in enumerate(actors):
                at = node.done[number]
                if at == len(actor.steps) or (
                    actor.after is not None and not at and not node.done[actor.after]
                ):
                    continue
                world = World.decode(node.broker, node.monitor)
                world.now = self._now(node.done)
                step = world.step(actor.steps[at])
                if step is None:
                    continue
                went_on = True
                transitions += 1
                heard.add(actor.steps[at].topic, *step[:2])
                schedule = node.schedule + bytes([number])
                violations += [(each, schedule) for each in step[2]]
                done = node.done[:number] + bytes([at + 1]) + node.done[number + 1 :]
                broker, monitor = world.broker.encode(), world.monitor.encode()
                key = blake2b(b"".join((done, *_identity(broker), monitor)), digest_size=16).digest()
                known = found.get(key)
                if known is None:
                    if (starved := world.starved()) is not None:
                        violations.append((starved, schedule))
                    found[key] = _Node(schedule, done, broker, monitor)
                elif schedule < known.schedule:
                    found[key] = known._replace(schedule=schedule)
            ends += not went_on
        return _Expanded(found, violations, transitions, ends, heard)

    def _now(self, done: bytes) -> int:
        return START + sum(sum(waits[:at]) for waits, at in zip(self._waits, done, strict=True))

    def steps(self, schedule: bytes) -> list[tuple[str, Step]]:
        """The steps of a schedule with the names of their actors, after those of the setup."""
        done = [0] * len(self.scenario.actors)
        found = [("setup", step) for step in self.scenario.setup]
        for number in schedule:
            actor = self.scenario.actors[number]
            found.append((actor.name, actor.steps[done[number]]))
            done[number] += 1
        return found


_fields = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_ORDINAL = PartitionState.__struct_fields__.index("ordinal")


def _identity(state: bytes) -> list[msgspec.Raw]:
    """The parts of an encoded broker without how many rows its last record gave, which the next one does not see."""
    fields = _fields(memoryview(state)[1:])
    del fields[_ORDINAL]
    return fields


@contextmanager
def _pool(scenario: Scenario, processes: int) -> Iterator[ProcessPoolExecutor | None]:
    if processes == 1:
        yield None
        return
    with ProcessPoolExecutor(processes, initializer=_begin, initargs=(scenario,)) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


_own: list[_Search] = []
"""The search of a process of the pool."""


def _begin(scenario: Scenario) -> None:
    # They reach all processes of a terminal or a service. The first one ends the others.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()
    _own.append(_Search(scenario))


def _expand(nodes: list[_Node]) -> _Expanded:
    return _own[-1].expand(nodes)


def _explore(
    search: _Search,
    total: Checked,
    pool: ProcessPoolExecutor | None,
    most_states: int | None,
    stop: Callable[[], bool],
    progress: Callable[[int, int], None] | None,
) -> None:
    def enough(reached: int) -> bool:
        return (most_states is not None and total.states + reached >= most_states) or stop()

    start, violations = search.start()
    level = [start]
    first: dict[Invariant, tuple[Violation, bytes]] = {}
    known = {each.violation.invariant for each in total.counterexamples}
    reached = bytearray(len(start.done))
    depth = 0
    while True:
        for violation, schedule in sorted(violations, key=lambda each: each[1]):
            if violation.invariant not in known:
                first.setdefault(violation.invariant, (violation, schedule))
        known.update(first)
        total.states += len(level)
        total.deepest = max(total.deepest, depth)
        for node in level:
            reached[:] = map(max, reached, node.done)
        if progress is not None:
            progress(total.states, depth)
        if not level or not total.complete:
            break
        chunks = [level[at : at + _CHUNK] for at in range(0, len(level), _CHUNK)]
        apart = pool is not None and len(level) >= _ALONE
        results = pool.map(_expand, chunks) if pool is not None and apart else map(search.expand, chunks)
        following: dict[bytes, _Node] = {}
        violations = []
        for result in results:
            total.transitions += result.transitions
            total.ends += result.ends
            violations += result.violations
            search.heard.update(result.heard)
            for key, node in result.nodes.items():
                other = following.get(key)
                if other is None or node.schedule < other.schedule:
                    following[key] = node
            if enough(len(following)):
                total.complete, total.whole = False, depth
                break
        level = list(following.values())
        depth += 1
    total.never += [
        f"{actor.name}: {actor.steps[at].name}, step {at + 1}"
        for actor, at in zip(search.scenario.actors, reached, strict=True)
        if at < len(actor.steps) and total.complete
    ]
    total.counterexamples += [_counterexample(search, *each) for each in first.values()]


def _counterexample(search: _Search, violation: Violation, schedule: bytes) -> Counterexample:
    """The fewest steps of a schedule that violate the same invariant of the same subscription."""
    config = search.scenario.config

    def shows(steps: list[tuple[str, Step]]) -> list[tuple[str, Step]] | None:
        found = _retold(config, steps, violation)
        return None if found is None else steps

    steps = reduced(search.steps(schedule), shows)
    found = _retold(config, steps, violation)
    assert found is not None  # the search saw it
    return found


def _retold(config: BrokerConfig, steps: list[tuple[str, Step]], wanted: Violation) -> Counterexample | None:
    """The records of some steps up to a violation of an invariant, or None if they do not violate it."""
    world = World(config)
    records = [_record(world.now, None, "setup", config, [])]

    def same(violation: Violation | None) -> bool:
        return violation is not None and violation[:3] == wanted[:3]

    for actor, step in steps:
        found = world.step(step)
        if found is None:
            return None
        command, rows, violations = found
        records.append(_record(world.now, step.topic, actor, command, rows))
        if (violation := next(filter(same, violations), None)) is not None:
            return Counterexample(violation, records)
    violation = world.starved()
    if wanted.invariant != "starved" or not same(violation):
        return None
    assert violation is not None
    world.now += PATIENCE
    rows, _ = world.do(None, Tick())
    records.append(_record(world.now, None, "time", Tick(), rows))
    return Counterexample(violation, records)


def _record(
    now: int, topic: str | None, actor: str, command: AnyCommand | Publish, rows: Iterable[Row]
) -> Record:
    return Record(now, topic, actor, msgspec.json.decode(to_json(command)), [*map(in_words, rows)])


def in_words(row: Row) -> str:
    """An effect in a few words."""
    effect = row.effect
    words = [KINDS[type(effect)]]
    if isinstance(effect, CursorMoved | Expired | Evicted):
        words.append(
            f"{effect.subscription} {effect.before_ledger}:{effect.before_entry} to {effect.after_ledger}:{effect.after_entry}"
        )
    else:
        words += [
            str(getattr(effect, name))
            for name in ("connection", "producer_name", "subscription")
            if getattr(effect, name, None)
        ]
        if getattr(effect, "ledger_id", None) is not None and getattr(effect, "entry_id", None) is not None:
            words.append(f"{effect.ledger_id}:{effect.entry_id}")  # type: ignore[union-attr]
    if getattr(effect, "redelivery_count", 0):
        words.append(f"redelivery {effect.redelivery_count}")  # type: ignore[union-attr]
    if cause := getattr(effect, "cause", None):
        words.append(f"({cause})")
    return " ".join(words)
