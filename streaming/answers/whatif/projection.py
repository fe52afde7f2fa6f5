"""The traffic of a log, as if it began now: on the states of a live query.

The commands move in time so that the first one that has a time comes at the queries' latest clock; the times that they name move as well. The
clients of the states are gone, and those of the log come. Writes that a fault put off are lost, as in a restart: nobody waits for
their answers. Sequence ids go on after those that the states have. The policies and
the configuration are those of the states. Positions are translated through the message that they named in the log, see
`streaming.answers.whatif.side_by_side`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import commands as c
from schemas.commands import AnyCommand, Decoded, Line, Refused, command_in, to_binary
from schemas.effects import AdminResponse
from schemas.entries import Entry, EntryReader
from schemas.records import RECORD
from schemas.units import LATEST_TIME
from sinks.ledger_store import LedgerStore
from streaming.answers.history.folders import NotFound
from streaming.answers.whatif.observed import TopicEntry
from streaming.answers.whatif.shadow_positions import ShadowPositions
from streaming.broker import admin_requests
from streaming.broker.admin import namespaces
from streaming.broker.broker import Broker
from streaming.broker.config import ServiceConfiguration, configuration
from streaming.broker.entries import NoEntries
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.policies.admin_calls import policy_of
from streaming.broker.position import Position
from streaming.fold.records import StateRow
from streaming.log.partition import ingress_partition
from streaming.log.pins import PartitionPins, created_by
from streaming.log.table import log_table
from streaming.quality.gate import judge

_RESET = re.compile(r"(/subscription/[^/]+/resetcursor/)(-?\d{1,15})")

T = TypeVar("T", bound=msgspec.Struct)


class Start(NamedTuple):
    """Where the traffic of an ingress partition begins. `entries`: what each topic has, in order. `recorded`: which records the
    fold of the log by itself leaves out; None: that is the baseline, and needs no other fold. `now`: the pins of a fold from the state under
    its own policies. `follows`: the records are those that follow the state."""

    state: StateRow | None
    entries: dict[str, list[TopicEntry]]
    recorded: PartitionPins | None
    now: PartitionPins
    follows: bool = False

    def under(self, pins: PartitionPins) -> PartitionPins:
        """The pins of a fold from the state under other policies."""
        front = [(topic, self.over_own(topic, command)) for topic, command in pins.front]
        return PartitionPins([*front, *self.now.front[1:]], pins.dropped | self.now.dropped, pins.replaced)

    def over_own(self, topic: str | None, command: AnyCommand) -> AnyCommand:
        """A call that would set all policies of a namespace, with those that the state has and the call does not name."""
        if self.state is None or not isinstance(command, c.Admin) or created_by(topic, command) is None:
            return command
        broker = Broker.decode(self.state.broker, NoEntries())
        asked = c.Admin(method="GET", path=command.path)
        broker.apply((self.state.offset or 0) + 1, self.state.clock, None, asked, b"")
        answers = (
            row.effect.fields.response for row in broker.take() if isinstance(row.effect, AdminResponse)
        )
        own = next(answers)
        assert isinstance(own, dict)
        assert isinstance(command.body, dict)
        return msgspec.structs.replace(command, body=own | command.body)


class Before(msgspec.Struct):
    """All that a projection needs of a live query: its states, and the entries of each topic, in order, by ingress partition."""

    states: Sequence[StateRow]
    entries: dict[int, dict[str, list[TopicEntry]]]


class LiveState(NamedTuple):
    """What a live query has: the states of its ingress partitions, and the store of its entries."""

    states: Sequence[StateRow]
    store: LedgerStore

    def read(self) -> Before:
        """What it has now, as a what-if keeps it. It may go on, and delete entries. Raises `MagnetarError` if the store lacks some."""
        return Before(
            self.states,
            {
                each.partition: entries_of(
                    Broker.decode(each.broker, NoEntries()), self.store.reader(each.partition)
                )
                for each in self.states
            },
        )


class _Traffic(NamedTuple):
    """The records of an ingress partition, in order."""

    times: list[int]
    topics: list[str | None]
    commands: list[AnyCommand | c.Publish | Refused]
    values: list[bytes]

    @classmethod
    def of(cls, own: pa.Table) -> _Traffic:
        """Of a table with the columns `RECORD`."""
        given, values = own["topic"].to_pylist(), own["value"].to_pylist()
        decoded = list(judge(given, values))
        topics = [
            command.topic if topic is None and isinstance(command, Line) else topic
            for topic, command in zip(given, decoded, strict=True)
        ]
        commands = [command_in(each) for each in decoded]
        return cls(own["timestamp"].to_pylist(), topics, commands, values)

    @property
    def begin(self) -> int:
        """The time of the first command that has one. 0: none has."""
        told = (
            time
            for time, command in zip(self.times, self.commands, strict=True)
            if 0 < time <= LATEST_TIME and not isinstance(command, Refused)
        )
        return next(told, 0)


class _Later(NamedTuple):
    """Where times of the log are now, if `begin` is `now`. One that no broker takes stays what it is."""

    begin: int
    now: int

    def record(self, time: int) -> int:
        """Of a record. One before the log's beginning does not take a broker's clock back: it comes at the beginning."""
        return self.named(max(time, self.begin)) if time <= LATEST_TIME else time

    def named(self, time: int) -> int:
        """One that a command names."""
        return min(max(time + self.now - self.begin, 0), LATEST_TIME) if 0 <= time <= LATEST_TIME else time


class Projected(NamedTuple):
    """The traffic as records (columns `RECORD`), and by ingress partition where it begins."""

    records: pa.Table
    starts: dict[int, Start]


def project(records: pa.Table, before: Before) -> Projected:
    """The traffic of a log (columns `RECORD`, over the query's ingress partitions) on the states of a query.

    Raises `NotFound` if there is no state, or the log has no records.
    """
    states = before.states
    if not states or not len(records):
        raise NotFound("there is nothing to project: the query has no state, or the log has no records")
    by_partition = {each.partition: each for each in states}
    brokers = {each.partition: Broker.decode(each.broker, NoEntries()) for each in states}
    by_number = {
        partition: _Traffic.of(records.filter(pc.equal(records["partition"], partition)))
        for partition in sorted({*by_partition, *records["partition"].unique().to_pylist()})
    }
    begin = min((first for each in by_number.values() if (first := each.begin)), default=0)
    later = _Later(begin, max(each.clock for each in states))
    end = max(
        later.record(time)
        for each in by_number.values()
        for time in [begin, *each.times]
        if time <= LATEST_TIME
    )
    parts, starts = [], {}
    for partition, traffic in by_number.items():
        part, start = _partition(
            traffic,
            partition,
            by_partition.get(partition),
            brokers.get(partition),
            before.entries.get(partition, {}),
            later,
            end,
        )
        parts.append(part)
        starts[partition] = start
    return Projected(pa.concat_tables(parts), starts)


def partitions_of(states: Sequence[StateRow], given: int | None = None) -> int:
    """The number of ingress partitions of a query: that which is `given`, or as many as have states. Raises `NotFound` if its topics are
    not where Magnetar's producers put them."""
    least = max((each.partition for each in states), default=0) + 1
    count = least if given is None else given
    if count < least:
        raise NotFound(
            f"the query has {least} ingress partitions, or more, and not {count}: give its own --partitions, or none"
        )
    for state in states:
        for topic in Broker.decode(state.broker, NoEntries()).topic_names():
            if ingress_partition(topic, count) != state.partition:
                raise NotFound(
                    f"{topic} is in ingress partition {state.partition}, but belongs in another of "
                    f"{count}: give the number of partitions of the query's own topic as --partitions"
                )
    return count


def _partition(
    traffic: _Traffic, partition: int, state: StateRow | None, broker: Broker | None, entries: dict[str, list[TopicEntry]], later: _Later, end: int
) -> tuple[pa.Table, Start]:  # fmt: skip
    broker = Broker(partition, NoEntries()) if broker is None else broker
    times, topics, commands, values = traffic
    ids, positions = _SequenceIds(broker), ShadowPositions(broker)
    for topic, command in zip(topics, commands, strict=True):
        ids.note(topic, command)
        positions.note(topic, command)
    moved = [
        value if isinstance(command, Refused) else to_binary(_moved(topic, command, later, ids, positions))
        for topic, command, value in zip(topics, commands, values, strict=True)
    ]
    first = (-1 if state is None or state.offset is None else state.offset) + 1
    begin = min(later.record(times[0]), end) if moved else end
    config = config_of(broker.config)
    table = log_table(
        RECORD,
        partition=np.full(len(moved) + 2, partition, np.int32),
        offset=range(first, first + len(moved) + 2),
        timestamp=[begin, *map(later.record, times), end],
        topic=pa.array([None, *topics, None], pa.string()),
        value=[to_binary(config), *moved, to_binary(c.Tick())],
    )
    set_now = frozenset(
        first + 1 + row
        for row, (topic, command) in enumerate(zip(topics, commands, strict=True))
        if _sets_policy(topic, command)
    )
    gone: list[tuple[str | None, AnyCommand]] = [
        (None, c.ConnectionLost(connection=each)) for each in broker.connections
    ]
    gone += [  # they are in `config`, and would outlive another one
        (None, c.Admin(method="DELETE", path=f"/brokers/configuration/{name}"))
        for name in broker.changed_settings
    ]
    gone += [
        (name, c.Fault(fault="LoseWrites"))
        for name in broker.topic_names()
        if not is_non_persistent(name) and broker.topic(name).pending
    ]
    return table, Start(
        state,
        entries,
        PartitionPins((), frozenset({first})),
        PartitionPins([(None, config), *gone], set_now | {first}),
    )


def entries_of(broker: Broker, reader: EntryReader, *, pending: bool = False) -> dict[str, list[TopicEntry]]:
    """What each topic of a broker has, in order. `pending`: also the writes that a fault has put off."""
    found: dict[str, list[TopicEntry]] = {}
    for name in broker.topic_names():
        if is_non_persistent(name):
            continue
        ledger = broker.topic(name).ledger
        last = ledger.last_confirmed  # what comes after it is not in the store
        kept = found.setdefault(name, [])
        for id_, info in ledger.ledgers.items():
            is_open = id_ == ledger.current and not info.timestamp
            count = info.entries if not is_open else last.entry + 1 if last.ledger == id_ else 0
            if count:
                kept += (
                    TopicEntry(Position(id_, number), entry)
                    for number, entry in enumerate(reader.read(name, id_, 0, count - 1))
                )
        kept += (
            TopicEntry(None, Entry(each.metadata, each.size, each.broker_timestamp))
            for each in (broker.topic(name).pending if pending else ())
        )
    return found


def config_of(config: ServiceConfiguration) -> c.BrokerConfig:
    """The command that sets this configuration."""
    defaults = configuration(config.profile, {})
    names = (name for name in config.__struct_fields__ if getattr(config, name) != getattr(defaults, name))
    return c.BrokerConfig(profile=config.profile, settings={name: getattr(config, name) for name in names})  # type: ignore[arg-type]


def _sets_policy(topic: str | None, command: Decoded) -> bool:
    """Whether a command of the log sets what the states have."""
    if isinstance(command, c.BrokerConfig):
        return True
    if not isinstance(command, c.Admin) or command.method == "GET":
        return False
    about = namespaces.call_of(command.path)
    call = admin_requests.call_of(command)[1:] if topic is not None else "" if about is None else about[1]
    return bool(call) and policy_of(call, command.path) is not None


class _SequenceIds:
    """How much higher the sequence ids of each producer are now: they go on after those that its topic has."""

    def __init__(self, broker: Broker) -> None:
        self._last = {
            (name, producer): id_
            for name in broker.topic_names()
            if not is_non_persistent(name)
            for producer, id_ in broker.topic(name).dedup.persisted.items()
        }
        self._first: dict[tuple[str, str], int] = {}

    def note(self, topic: str | None, command: Decoded) -> None:
        """A command of the log: of a producer's publishes, the lowest sequence id counts."""
        if topic and isinstance(command, c.Publish | c.Send):
            producer = command.producer if isinstance(command, c.Publish) else command.metadata.producer_name
            id_ = self._first.get((topic, producer), command.sequence_id)
            self._first[topic, producer] = min(command.sequence_id, id_)

    def shift(self, topic: str | None, producer: str) -> int:
        """What to add to the sequence ids of a producer."""
        key = topic or "", producer
        return max(self._last[key] + 1 - self._first[key], 0) if key in self._last else 0


def _moved(
    topic: str | None, command: AnyCommand | c.Publish, later: _Later, ids: _SequenceIds, positions: ShadowPositions
) -> AnyCommand | c.Publish:  # fmt: skip
    """A command at its later time, with other sequence ids, and with the positions that entries of a source have now."""
    match command:
        case c.Publish():
            return _higher(_with_times(command, later, _TIMES), ids.shift(topic, command.producer))
        case c.Send():
            more = ids.shift(topic, command.metadata.producer_name)
            metadata = _higher(_with_times(command.metadata, later, _TIMES), more)
            return _higher(msgspec.structs.replace(positions.send(topic, command), metadata=metadata), more)
        case c.Mirror():
            since = command.since and later.named(command.since)
            return msgspec.structs.replace(positions.mirror(topic, command), since=since)
        case c.Seek():
            return _with_times(command, later, ("message_publish_time",))
        case c.Admin() if (named := _RESET.search(command.path)) is not None:
            path = (
                f"{command.path[: named.start(2)]}{later.named(int(named[2]))}{command.path[named.end(2) :]}"
            )
            return msgspec.structs.replace(command, path=path)
    return command


_HIGHEST = 2**63 - 1
_TIMES = ("publish_time", "deliver_at_time")


def _with_times(part: T, later: _Later, names: Sequence[str]) -> T:
    given = {name: later.named(time) for name in names if (time := getattr(part, name)) is not None}
    return msgspec.structs.replace(part, **given)


def _higher(part: T, more: int) -> T:
    if not more:
        return part
    names = [name for name in ("sequence_id", "highest_sequence_id") if getattr(part, name, None) is not None]
    # What would be higher than an id can be is what it is in Pulsar: a duplicate.
    return msgspec.structs.replace(
        part, **{name: min(getattr(part, name) + more, _HIGHEST) for name in names}
    )
