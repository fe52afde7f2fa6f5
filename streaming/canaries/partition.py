"""The canaries of one ingress partition: the brokers that fold its traffic as it is and under other policies, and how they compare.

Each function makes bytes of what is needed to go on (`whatif.folds.Folds.keep`), and needs no others than those and what the query folded since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import pyarrow as pa

from schemas.commands import Admin, AnyCommand, BrokerConfig, Refused, decode, to_binary
from schemas.errors import MagnetarError
from schemas.units import LATEST_TIME
from sinks.folded import FoldedBefore, Visit
from sinks.ledger_store import LedgerStore
from streaming.answers.fates import CHANGE_COLUMNS
from streaming.answers.whatif.differences import PartitionCompared
from streaming.answers.whatif.folds import Folds, rearranged
from streaming.answers.whatif.projection import Start, config_of, entries_of
from streaming.answers.whatif.side_by_side import PIECE, Name
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.persistent.topic import PersistentTopic
from streaming.fold.records import StateRow
from streaming.log.partition import ingress_partition
from streaming.log.pins import (
    PartitionPins,
    PolicyCommand,
    config_over,
    first_of_mirror,
    front_of,
    may_be_overridden,
    pins_of_piece,
)


class Missed(MagnetarError, RuntimeError):
    """Canaries can't fold what the query folded: some of it is missing."""


_NOWHERE = FoldedBefore(0, None)


class CanaryPolicy(msgspec.Struct, array_like=True):
    """A `PolicyCommand` that can be kept."""

    place: str
    topic: str | None
    command: bytes
    fields: bytes
    whole: bool

    @classmethod
    def of(cls, policy: PolicyCommand) -> CanaryPolicy:
        """One to keep."""
        return cls(
            policy.place,
            policy.topic,
            to_binary(policy.command),
            msgspec.json.encode(policy.fields),
            policy.whole,
        )

    def command_of(self) -> PolicyCommand:
        """The one that was kept."""
        command = decode(self.command)
        assert isinstance(command, Admin | BrokerConfig)
        return PolicyCommand(self.place, self.topic, command, msgspec.json.decode(self.fields), self.whole)


class Canary(msgspec.Struct):
    """Policies under a name. `digest`: of the files that they are from. `since`: the time (ms) from which on they are judged."""

    name: str
    digest: str
    since: int
    policies: list[CanaryPolicy]

    def commands(self) -> list[PolicyCommand]:
        """The policies."""
        return [each.command_of() for each in self.policies]


class Place(NamedTuple):
    """An ingress partition, of so many."""

    partition: int
    partitions: int

    def owns(self, state: Broker | None, topic: str) -> bool:
        """Whether a topic belongs there."""
        there = state is not None and topic in state.topic_names()
        return there or ingress_partition(topic, self.partitions) == self.partition


class Kept(NamedTuple):
    """What canaries need to go on. `apart`: the records are a mirror's, whose topics do not follow their source under other policies, nor in the
    baseline that these are compared with. So the query's own fold is beside that. `gone`: what is deleted, and no policies changed anything
    of. It is forgotten: readers, for example, have a new name each time."""

    folds: bytes
    apart: bool
    gone: Sequence[Name] = ()


def begun(place: Place, state: StateRow, store: LedgerStore, canaries: Sequence[Canary]) -> Kept:
    """Canaries that begin with a state of the query. `store` has its entries, all of which are read."""
    broker = Broker.decode(state.broker, NoEntries())
    start = Start(
        state,
        entries_of(broker, store.reader(place.partition), pending=True),
        None,
        PartitionPins(),
        follows=True,
    )
    pins = [PartitionPins(_front(place, state, each)) for each in canaries]
    folds = Folds(place.partition, [each.name for each in canaries], pins, start, None, PIECE)
    folds.begin(state.clock)
    kept = Kept(folds.keep(), apart=False)
    return _apart(place, kept, canaries) if _has_mirrored_topics(broker) else kept


def changed(place: Place, kept: Kept, before: Sequence[Canary], canaries: Sequence[Canary]) -> Kept:
    """Other canaries, some of which were there before. A new one begins as the baseline is now."""
    places = {(each.name, each.digest): number for number, each in enumerate(before, 1)}
    order = [places.get((each.name, each.digest), 0) for each in canaries]
    kept = kept._replace(folds=rearranged(kept.folds, order, beside=kept.apart, recorded=kept.apart))
    begin = [None, *(None if number else each for number, each in zip(order, canaries, strict=True))]
    return _put_over(
        place,
        kept,
        canaries,
        lambda run, state: _front(place, state, each, mirrored=kept.apart) if (each := begin[run]) else [],
    )


def _apart(place: Place, kept: Kept, canaries: Sequence[Canary]) -> Kept:
    """From here on, no topic follows its source but in the query's own fold."""
    order = range(1, len(canaries) + 1)
    kept = Kept(rearranged(kept.folds, order, beside=False, recorded=True), apart=True)
    return _put_over(place, kept, canaries, lambda _, state: _front(place, state, None, mirrored=True))


Front = list[tuple[str | None, AnyCommand]]


def _put_over(
    place: Place, kept: Kept, canaries: Sequence[Canary], front: Callable[[int, StateRow], Front]
) -> Kept:
    """Put commands over the states of the baseline (0) and of each canary (from 1)."""
    states = _folds(place, canaries, *_unpinned(canaries), kept).states
    own, *pins = (PartitionPins(front(run, state)) for run, state in enumerate(states))
    folds = _folds(place, canaries, own, pins, kept)
    folds.begin(states[0].clock)
    return kept._replace(folds=folds.keep())


class Looked(NamedTuple):
    """What canaries came to: what to keep, the query's state, the rows of differences that became settled (columns `CODED`), how all
    compare now, and the rows of differences that are not settled."""

    kept: Kept
    state: StateRow
    settled: pa.Table
    compared: PartitionCompared
    open: pa.Table


def looked(
    place: Place, kept: Kept | None, canaries: Sequence[Canary], visits: Iterable[Visit]
) -> Looked | None:
    """Fold what the query folded, a micro-batch at a time. `kept`: of the canaries so far; None: there is nothing yet, and the records are the
    first. None: there still is nothing."""
    folds = None if kept is None else _folds(place, canaries, *_unpinned(canaries), kept)
    if folds is not None and kept is not None:
        folds.forget(kept.gone)
    policies = [each.commands() for each in canaries]
    apart, settled = kept is not None and kept.apart, list[pa.Table]()
    for before, records, aside, tick in visits:
        if before != (_NOWHERE if folds is None else folds.place):
            raise Missed("the query could not note all that it folded, or a note is gone")
        if folds is None and not len(records):
            continue
        pins = _pins(place, records, policies, apart=apart, begins=folds is None)
        if folds is None:
            folds = _folds(place, canaries, *pins, None)
            folds.begin(_time(records, aside))
        folds.pin(*pins)
        if not apart and (row := first_of_mirror(records)) is not None:
            folds.fold(records.slice(0, row), aside)
            settled.append(folds.take())
            kept, records, apart = (
                _apart(place, Kept(folds.keep(), apart), canaries),
                records.slice(row),
                True,
            )
            folds = _folds(place, canaries, *_pins(place, records, policies, apart=apart), kept)
        folds.fold(records, aside)
        if tick is not None:
            folds.tick(tick)
    if folds is None:
        return None
    settled.append(folds.take())
    after = Kept(folds.keep(), apart)
    compared, rows = _folds(place, canaries, *_unpinned(canaries), after).end()
    after = after._replace(gone=folds.gone(_unchanged(compared.summary)))
    return Looked(after, folds.recorded, pa.concat_tables(settled), compared, rows)


def _unchanged(summary: pa.Table) -> list[Name]:
    """The subscriptions and topics of which no policies changed anything that anybody would have seen."""
    columns = ["topic", "subscription", *CHANGE_COLUMNS.values(), "answered_otherwise", "open_loop_from"]
    changed: dict[Name, bool] = {}
    for topic, subscription, *counts in zip(*(summary[name].to_pylist() for name in columns), strict=True):
        for of in ((topic, subscription), (topic, None)):
            changed[of] = changed.get(of, False) or any(counts)
    return [of for of, differs in changed.items() if not differs]


def _pins(
    place: Place,
    records: pa.Table,
    policies: Sequence[list[PolicyCommand]],
    *,
    apart: bool,
    begins: bool = False,
) -> tuple[PartitionPins, list[PartitionPins]]:
    """What is done to some records for the baseline, and under the policies of each canary. `begins`: they are the first."""
    owned, rows = partial(place.owns, None), may_be_overridden(records)

    def pinned(own: list[PolicyCommand]) -> PartitionPins:
        return pins_of_piece(records, own, owned, begins=begins, mirrored=apart, rows=rows)

    return pinned([]) if apart else PartitionPins(), [pinned(each) for each in policies]


def _time(records: pa.Table, aside: Mapping[int, Refused]) -> int:
    """The time (ms) at which canaries begin that do so with the first record."""
    time: int = records["timestamp"][0].as_py()
    return 0 if records["offset"][0].as_py() in aside or time > LATEST_TIME else time


def _unpinned(canaries: Sequence[Canary]) -> tuple[PartitionPins, list[PartitionPins]]:
    return PartitionPins(), [PartitionPins()] * len(canaries)


def _folds(
    place: Place,
    canaries: Sequence[Canary],
    baseline: PartitionPins,
    pins: Sequence[PartitionPins],
    kept: Kept | None,
) -> Folds:
    recorded = PartitionPins() if kept is not None and kept.apart else None
    start = Start(None, {}, recorded, PartitionPins(), follows=True)
    names = [each.name for each in canaries]
    return Folds(place.partition, names, pins, start, baseline, PIECE, None if kept is None else kept.folds)


def _front(place: Place, state: StateRow, canary: Canary | None, *, mirrored: bool = False) -> Front:
    """The commands that put policies over those of a state."""
    broker = Broker.decode(state.broker, NoEntries())
    policies = [] if canary is None else canary.commands()
    config = config_over(policies, config_of(broker.initial_config), mirrored=mirrored)
    start = Start(state, {}, None, PartitionPins())
    front = front_of(policies, partial(place.owns, broker), config)
    found: Front = [(topic, start.over_own(topic, command)) for topic, command in front]
    named = {
        name for each in policies if isinstance(each.command, BrokerConfig) for name in each.command.settings
    }
    if config is not None:
        # What the admin API has changed would be in force in place of these.
        found[1:1] = [
            (None, Admin(method="DELETE", path=f"/brokers/configuration/{name}"))
            for name in broker.changed_settings
            if name in named
        ]
    return found


def _has_mirrored_topics(broker: Broker) -> bool:
    return any(
        isinstance(topic, PersistentTopic) and topic.mirrored.seen for topic in broker.topics().values()
    )
