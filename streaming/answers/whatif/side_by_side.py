"""One ingress partition of a log, folded under several policy sets beside its own, in one pass.

Records are decoded once, and the positions in recorded commands are translated through the baseline, which is folded beside (see
`streaming.log.positions`). Everything is observed from outside the broker, see `streaming.answers.whatif.observed`.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise, repeat, zip_longest
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from schemas import commands as c
from schemas import effects as e
from schemas.commands import Decoded, Line, Refused, command_in, decode, decode_or_refuse
from schemas.errors import MagnetarError
from schemas.units import LATEST_TIME
from streaming.answers.whatif import kept as kept_runs
from streaming.answers.whatif.clients.reactive import Reacted
from streaming.answers.whatif.kept import KeptRun
from streaming.answers.whatif.observed import (
    ColumnsOfRun,
    Ints,
    Observer,
    OfTopic,
    OpenLoop,
    PlainReceipts,
    Seen,
    SeenRun,
    SharedEntries,
    TopicPublishes,
)
from streaming.answers.whatif.projection import Start
from streaming.answers.whatif.put_off import pending_writes
from streaming.broker.broker import Broker
from streaming.broker.context import Acked
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.delivery_run import Deliveries, DeliveryRun, Took
from streaming.broker.persistent.publish.publish_run import Publishes, Receipts, Run
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position
from streaming.fold.reading import ReadRecords
from streaming.fold.records import Records, StateRow
from streaming.fold.shared import SharedFold
from streaming.log.pins import PartitionPins, mentioning
from streaming.log.positions import NAMING, WrittenEntries, translate

PIECE = 1 << 13
"""Records are folded so many at a time."""

PIECES = 200
"""A log is folded in at least so many pieces, to draw what changes over time."""


def piece_size(records: int) -> int:
    """How many of the records of an ingress partition are folded at a time. Whatever is drawn depends on it."""
    return max(1, min(PIECE, records // PIECES))


_LOOK = (c.Subscribe, c.Producer, c.Admin, c.Mirror)
"""Commands that may create subscriptions, whose first position the observer looks up at once."""

_PUBLISHES = (c.Publish, c.Send)

_NOTHING = WrittenEntries()

Name = tuple[str, str | None]
"""A topic, and a subscription of it; None: the topic itself."""


NO_TRANSACTIONS = "transactionCoordinatorEnabled: what-if, advise and canaries can't judge a log with transactions: replay it"


class NoTransactions(MagnetarError, ValueError):
    """A log has transactions. What holds them back and what ends them differs between policy sets, and their markers are nobody's messages."""


class ObservedBroker(Broker):
    """A broker whose effects go to an observer. With a `baseline`, positions in commands are those of the baseline."""

    def _configure(self, command: c.BrokerConfig) -> Refused | None:
        """Raises `NoTransactions`."""
        refused = super()._configure(command)
        if self.config.transactionCoordinatorEnabled:
            raise NoTransactions(NO_TRANSACTIONS)
        return refused

    def begin(self, observer: Observer, baseline: Observer | None, pins: PartitionPins) -> None:
        """Call it before anything else."""
        self._observer, self._baseline, self.pins = observer, baseline, pins
        self.unmatched = 0
        # How many publishes there were by topic, which the observer is told with the next effects, and whether writes may wait there: to
        # tell it, or to ask, after each of them takes time.
        self._counts: dict[str, int] = {}
        self._faulty: dict[str, bool] = {}
        self._run_at_hand: _RunAtHand | None = None
        observer.broker = self
        self.watch_acks()

    def apply(self, offset: int, timestamp: int, topic: str | None, command: Decoded, value: bytes) -> None:
        """See `Broker.apply`. A record that the policies override is left out."""
        if offset in self.pins.dropped:
            return
        command = self.pins.replaced.get(offset, command)
        inner = command_in(command)
        if isinstance(inner, NAMING) and topic and not is_non_persistent(topic):
            self.flush()
            if self._baseline is not None:
                inner = self._translated(topic, inner)
                command = command._replace(command=inner) if isinstance(command, Line) else inner
        super().apply(offset, timestamp, topic, command, value)
        kind = type(inner)
        if kind in _LOOK:
            self.flush()
        elif kind in _PUBLISHES and (number := self._observer.numbers.get(offset)) is not None:
            assert topic is not None
            self._counts[topic] = number + 1
            if self._faulty.get(topic, True):
                self._note_put_off(topic, number)
        elif kind is c.Fault and topic:
            self._faulty[topic] = True

    def _note_put_off(self, topic: str, number: int) -> None:
        """If a fault puts the write of a publish off, a later record answers it."""
        if topic not in self._faulty:
            try:
                of = self.topic(topic)
            except KeyError:
                return
            self._faulty[topic] = bool(of.pending or of.delay_writes)
        if pending := pending_writes(self, topic):
            self.flush()
            if not self._observer.of(topic).answer.between(number, number + 1)[0]:
                self._observer.unanswered(topic, pending, number)

    def _translated(self, topic: str, command: Any) -> Any:
        assert self._baseline is not None
        own, baseline = self._observer.topics.get(topic), self._baseline.topics.get(topic)
        written = _NOTHING if own is None else own.written
        translated = translate(command, _NOTHING if baseline is None else baseline.written, written)
        self.unmatched += not translated.complete
        return translated.command or c.Tick()

    def publish(self, rows: Publishes, run: Run, step: Callable[[int], object], receipts: Receipts) -> None:
        """See `Broker.publish`."""
        self._run_at_hand = _RunAtHand(rows, run, receipts, self._observer.numbers)
        super().publish(rows, run, step, receipts)
        self.flush()
        self._run_at_hand = None

    def delivery_run(
        self, publishes: Publishes, numbers: Sequence[int], receipts: Receipts, deliveries: Deliveries
    ) -> DeliveryRun:
        """See `Broker.delivery_run`."""
        run = super().delivery_run(publishes, numbers, receipts, deliveries)
        run.watcher, self._columns = self, ColumnsOfRun.of(publishes)
        return run

    def may_open(self, topic: str, ledger: int, first: int, acked: int) -> int:
        """See `Watcher`. A topic opens while the positions in acks need no translation, since the baseline has the same publishes there."""
        self.flush()
        if self._baseline is None:
            return sys.maxsize
        own, baseline = self._observer.topics.get(topic), self._baseline.topics.get(topic)
        if own is None or baseline is None:
            return first
        return own.written.same_until(baseline.written, ledger, first, acked)

    def took(self, took: Took) -> None:
        """See `Watcher`."""
        self._observer.took(took, self._columns)

    def flush(self) -> None:
        """Hand on the effects so far."""
        acks, effects = self.take_acks(), self.take()
        counts, self._counts = self._counts, {}
        for topic, publishes in counts.items():
            self._observer.of(topic).written.publishes = publishes
        done = 0
        if self._run_at_hand is not None:
            for place, topic, receipts in self._run_at_hand.take(effects, acks):
                if done < place:
                    self._observer.observe(effects[done:place], _shifted(acks, done, place))
                    done = place
                self._observer.plain(topic, receipts)
        if effects or acks:
            self._observer.observe(effects[done:], _shifted(acks, done, len(effects) + 1))


class _RunAtHand:
    """A run of plain publishes, and the receipts of it that an observer has got. `numbers`: of publishes, by the record's offset."""

    def __init__(self, rows: Publishes, run: Run, receipts: Receipts, numbers: Mapping[int, int]) -> None:
        self._receipts, self._told, self._start = receipts, len(receipts.rows), run.start
        self._names = [rows.topics[own.rows[0]] for own in run.topics]
        self._topics = np.empty(run.stop - run.start, np.int64)
        for topic, own in enumerate(run.topics):
            self._topics[np.array(own.rows) - run.start] = topic
        offsets = rows.offsets[run.start : run.stop]
        self._offsets, self._sizes = np.array(offsets), np.array(rows.sizes[run.start : run.stop])
        self._numbers = np.array(
            [numbers.get(offset, -1) for offset in offsets]
        )  # there are none on non-persistent topics

    def take(self, effects: Sequence[e.Row], acks: Sequence[Acked]) -> list[tuple[int, str, PlainReceipts]]:
        """The receipts since the last call: of each topic those together that stand between two of its effects, in the order of the records,
        and how many of all `effects` come before them."""
        told, self._told = self._told, len(self._receipts.rows)
        if told == self._told:
            return []
        rows, ledgers, entries = (np.array(column[told:], np.int64) for column in self._receipts)
        rows -= self._start
        order = np.lexsort((rows, self._topics[rows]))
        rows, topics = rows[order], self._topics[rows[order]]
        receipts = PlainReceipts(self._numbers[rows], ledgers[order], entries[order], self._sizes[rows])
        of_topic: dict[str | None, list[int]] = defaultdict(list)
        for place, row in enumerate(effects):
            of_topic[getattr(row.effect, "topic", None)].append(place)
        for ack in acks:
            of_topic[ack.topic].append(ack.effects)
        before = np.searchsorted(np.array([row.offset for row in effects], np.int64), self._offsets[rows])
        firsts = np.flatnonzero(np.diff(topics, prepend=-1)).tolist()
        found: list[tuple[int, str, PlainReceipts]] = []
        for first, stop in pairwise([*firsts, len(rows)]):
            name = self._names[topics[first]]
            assert name is not None
            places = sorted(of_topic.get(name, ()))
            cuts = (first + np.searchsorted(before[first:stop], places, side="right")).tolist()
            for place, start, end in zip([-1, *places], [first, *cuts], [*cuts, stop], strict=True):
                if start < end:
                    found.append(
                        (place + 1, name, PlainReceipts(*(column[start:end] for column in receipts)))
                    )
        return sorted(found, key=itemgetter(0))


def _shifted(acks: Sequence[Any], first: int, stop: int) -> list[Any]:
    """The acks that stand among the effects from `first` to before `stop`."""
    return [each._replace(effects=each.effects - first) for each in acks if first <= each.effects < stop]


@dataclass(kw_only=True)
class Runs:
    """The runs of a partition, of which a part is folded: the messages by topic, then for the baseline and each policy set its observer,
    and where its topics became open-loop. `beside`: the observers of what else is folded."""

    messages: dict[str, TopicPublishes]
    observers: list[Observer]
    open_loop: list[dict[str, OpenLoop]]
    beside: Sequence[Observer] = ()


@dataclass(kw_only=True)
class Folded(Runs):
    """What came of a partition. For the baseline and each policy set: the stats of its broker, how many commands named nothing, and by
    topic which fields of the admin API's stats are not the baseline's at the end. `sampled`: the topics of the baseline whose entries are
    sampled, see `PersistentTopic.is_sampled`. `first` and `last`: the time (ms) of the first record, and the clock at the end.
    `reacted`: the log of each policy set if it has one of its own."""

    stats: list[list[dict[str, Any]]]
    unmatched: list[int]
    other_stats: list[dict[str, list[str]]]
    first: int
    last: int
    sampled: list[str]
    reacted: Sequence[Reacted] = ()


def sampled_topics(broker: Broker) -> list[str]:
    """The topics whose entries are sampled."""
    topics = sorted(broker.topics().items())
    return [name for name, topic in topics if isinstance(topic, PersistentTopic) and topic.is_sampled]


class _Run:
    def __init__(
        self, partition: int, messages: dict[str, TopicPublishes], numbers: dict[int, int], baseline: Observer | None,
        pins: PartitionPins, start: Start | None = None, reacted: Reacted | None = None, kept: KeptRun | None = None,
    ) -> None:  # fmt: skip
        self.messages, self.numbers, self.reacted = messages, numbers, reacted
        self.observer = Observer(messages, numbers, names_producers=baseline is None)
        self.open_loop: dict[str, OpenLoop] = {} if kept is None else kept.open_loop
        state = kept.state if kept is not None else None if start is None else start.state
        self.fold = SharedFold(partition, SharedEntries(self.observer), state, broker=ObservedBroker)
        assert isinstance(self.fold.broker, ObservedBroker)
        self.broker = self.fold.broker
        self.broker.begin(self.observer, baseline, pins)
        if kept is not None:
            self.broker.unmatched = kept.unmatched
            self.observer.go_on(kept.observed)
        elif start is not None:
            self.observer.begin(start.entries)


class SideBySide:
    """The folds of the records of an ingress partition as they are (or with the pins of a `baseline`), and under each policy set.

    With a `start`, these folds go on from its state. Positions in commands are then those of a fold of the records by themselves,
    which is folded beside, unless the records are the state's own. `shift`: how much higher offsets are than in the log, the largest
    number of pinned commands, 0 for a state's own records. `runs`: what became of the records so far. `kept`: what another one kept
    (`keep`), with the same other arguments; this one goes on from there.
    """

    def __init__(
        self,
        partition: int,
        pins: Sequence[PartitionPins],
        start: Start | None = None,
        baseline: PartitionPins | None = None,
        kept: bytes | None = None,
    ) -> None:
        before = None if kept is None else kept_runs.decode(kept)
        self._numbers: dict[int, int] = {}
        self._first: int | None = None if before is None else before.first
        self._everything = [baseline or (PartitionPins() if start is None else start.now), *pins]
        self._is_own = start is not None and start.follows
        self.shift = 0 if self._is_own else max(len(each.front) for each in self._everything)
        messages = {} if before is None else before.messages
        if start is not None and before is None:
            messages |= {name: TopicPublishes.of(entries) for name, entries in start.entries.items()}
        folded = [(each, start) for each in self._everything]
        if start is not None and start.recorded is not None:
            folded.insert(0, (start.recorded, start if start.follows else None))
        self._all: list[_Run] = []
        for place, (each, begins) in enumerate(folded):
            positions = self._all[0].observer if self._all else None
            run = _Run(
                partition, messages, self._numbers, positions, each.moved(self.shift), begins,
                kept=None if before is None else before.runs[place],
            )  # fmt: skip
            self._all.append(run)
        self._runs = self._all[len(self._all) - len(self._everything) :]
        self.runs = Runs(
            messages=messages,
            observers=[run.observer for run in self._runs],
            open_loop=[run.open_loop for run in self._runs],
            beside=[run.observer for run in self._all[: -len(self._runs)]],
        )

    def begin(self, timestamp: int, offset: int | None = None) -> None:
        """The policies hold from now on: from the first record on, if this is not called before. `offset`: of the first pinned command;
        None: they have no offsets."""
        if self._first is None:
            self._first = timestamp
        for run, each in zip(self._runs, self._everything, strict=True):
            for place, (topic, command) in enumerate(each.front):
                if offset is None:
                    run.broker.apply_between(timestamp, topic, command)
                else:
                    run.broker.apply(offset + place, timestamp, topic, command, b"")
            run.broker.flush()
            run.observer.sample()

    def pin(self, baseline: PartitionPins, pins: Sequence[PartitionPins]) -> None:
        """What is done to the next records, in place of what was done to those so far."""
        for run, each in zip(self._runs, (baseline, *pins), strict=True):
            run.broker.pins = each.moved(self.shift)

    def gone(self, names: Iterable[Name]) -> list[Name]:
        """Those of some subscriptions (topic, name) and (None) topics that are deleted in all runs, and have to do with no message that
        is not settled."""
        there = {topic for run in self._all for topic in run.broker.topic_names()}

        def is_gone(topic: str, subscription: str | None) -> bool:
            messages = self.runs.messages[topic]
            known = [run.observer.topics[topic] for run in self._all if topic in run.observer.topics]
            if subscription is None:
                return topic not in there and len(messages) == messages.first
            own = (of.subscriptions.get(subscription) for of in known)
            return all(each is None or each.is_over(messages.first) for each in own)

        return [each for each in names if is_gone(*each)]

    @property
    def place(self) -> tuple[int, int | None]:
        """The clock (ms) of the fold whose positions are those in the records, and the offset of its last record; None: there was none."""
        own = self._all[0].fold
        return own.broker.clock, own.last

    @property
    def recorded(self) -> StateRow:
        """The state of that fold."""
        return self._all[0].fold.state()

    @property
    def states(self) -> list[StateRow]:
        """The states of the baseline, and under each policy set."""
        return [run.fold.state() for run in self._runs]

    def fold(
        self,
        records: pa.Table,
        settle: Callable[[Runs], object] | None = None,
        aside: Mapping[int, Refused] = MappingProxyType({}),
    ) -> int:
        """Fold the first of some records (columns `schemas.records.RECORD`), at least one, and say how many. Then call `settle`, which may
        let the runs forget what is settled. `aside`: why some are quarantined, by their offset."""
        if self._first is None:
            offset = None if self._is_own else records["offset"][0].as_py()
            self.begin(records["timestamp"][0].as_py(), offset)
        waits = any(run.observer.waits for run in self._all)
        part = records.slice(0, 1 if waits else len(records))
        # The baseline is a piece ahead. What it writes late must not be there when a command before that names the position.
        part = part.slice(0, _first_fault(part) or 1)
        first, known = self._runs[0].fold, part["offset"].to_pylist()
        moved = {offset + self.shift: why for offset, why in aside.items()}
        records = _records(part, [offset + self.shift for offset in known], moved)
        shared = first.read(records, moved)
        _number_publishes(shared, known, first.broker.clock, self.runs.messages, self._numbers)
        for run in self._all:
            run.fold.fold(shared, moved)
        self._end_piece(settle)
        return len(part)

    def tick(self, timestamp: int, settle: Callable[[Runs], object] | None = None) -> None:
        """Advance the clock to `timestamp` (ms) after the records so far. See `fold`."""
        for run in self._all:
            run.fold.tick(timestamp)
        self._end_piece(settle)

    def _end_piece(self, settle: Callable[[Runs], object] | None) -> None:
        for run in self._runs[1:]:
            note_open_loop(self._runs[0].observer, run.observer, run.open_loop, self.shift)
        if settle is not None:
            settle(self.runs)
        for run in self._runs:
            run.observer.sample()
        for observer in self.runs.beside:
            observer.pass_over()
        self._numbers.clear()

    def fold_all(
        self,
        records: pa.Table,
        size: int,
        settle: Callable[[Runs], object] | None = None,
        progress: Callable[[int], object] | None = None,
        aside: Mapping[int, Refused] = MappingProxyType({}),
    ) -> None:
        """Fold some records in pieces of `size`. `progress` gets the number of records after each piece."""
        done = 0
        while done < len(records):
            folded = self.fold(records.slice(done, size - done % size), settle, aside)
            done += folded
            if progress is not None:
                progress(folded)

    def keep(self) -> bytes:
        """What is needed to go on after the records so far."""
        return kept_runs.encode(
            self.runs.messages,
            self._first,
            [(run.fold.state(), run.observer, run.open_loop, run.broker.unmatched) for run in self._all],
        )

    def end(self) -> Folded:
        """No more records come."""
        for run in self._runs:
            run.observer.end()
        unmatched = [run.broker.unmatched for run in self._runs]
        return _folded(self.runs.messages, self._runs, unmatched, self._first or 0)


def fold_side_by_side(
    records: pa.Table,
    partition: int,
    pins: Sequence[PartitionPins],
    progress: Callable[[int], object] | None = None,
    start: Start | None = None,
    baseline: PartitionPins | None = None,
    settle: Callable[[Runs], object] | None = None,
) -> Folded:
    """Fold all records of an ingress partition, see `SideBySide`. `progress` gets the number of records after each piece."""
    folds = SideBySide(partition, pins, start, baseline)
    folds.fold_all(records, piece_size(len(records)), settle, progress)
    return folds.end()


def fold_reacted(
    records: pa.Table,
    partition: int,
    reacted: Sequence[Reacted],
    progress: Callable[[int], object] | None = None,
) -> Folded:
    """Fold the `records` of an ingress partition as they are, and each log that clients would have made of it instead."""
    runs = [_Run(partition, {}, {}, None, PartitionPins())]
    runs += [_Run(partition, {}, {}, None, PartitionPins(), reacted=each) for each in reacted]
    size = piece_size(len(records))
    offsets = records["offset"].to_numpy()
    done = [0] * len(runs)
    while done[0] < len(records):
        reached = min(done[0] + size, len(records))
        for place, run in enumerate(runs):
            stop, part, origins = reached, records, None
            if run.reacted is not None:
                last = reached == len(records)
                part, origins = run.reacted.records, run.reacted.origins
                stop = len(part) if last else int(np.searchsorted(run.reacted.after, reached, side="right"))
            if stop > done[place]:
                piece = part.slice(done[place], stop - done[place])
                offsets_of = piece["offset"].to_pylist()
                own = offsets_of if origins is None else origins[done[place] : stop].tolist()
                shared = run.fold.read(_records(piece, offsets_of), {})
                _number_publishes(shared, own, run.broker.clock, run.messages, run.numbers)
                run.fold.fold(shared)
            run.numbers.clear()
            done[place], before = stop, done[place]
            if progress is not None and place == 0:
                progress(stop - before)
        for run in runs[1:]:
            known = set(run.open_loop)
            note_open_loop(runs[0].observer, run.observer, run.open_loop, 0)
            for name in run.open_loop.keys() - known:
                run.open_loop[name] = _in_log(run.open_loop[name], run.reacted, offsets)
        for run in runs:
            run.observer.sample()
    for run in runs:
        run.observer.end()
    first = records["timestamp"][0].as_py() if len(records) else 0
    unmatched = [0, *(each.unmatched for each in reacted)]
    return _folded(runs[0].messages, runs, unmatched, first, reacted)


def _records(part: pa.Table, offsets: list[int], aside: Container[int] = ()) -> Records:
    """`aside`: the offsets of those that have no time, as they are quarantined unread."""
    times, topics, values = (part[name].to_pylist() for name in ("timestamp", "topic", "value"))
    if aside:
        times = [0 if offset in aside else time for offset, time in zip(offsets, times, strict=True)]
    return Records(offsets, times, topics, values)


def _first_fault(part: pa.Table) -> int:
    """How many records come before the first FAULT."""
    for row in mentioning(part, b'"FAULT"', b"\xa5FAULT"):  # in JSON, in MessagePack
        command = decode_or_refuse(part["value"][row].as_py())
        if isinstance(command_in(command), c.Fault):
            return row
    return len(part)


def _folded(
    messages: dict[str, TopicPublishes], runs: Sequence[_Run], unmatched: list[int], first: int,
    reacted: Sequence[Reacted] = (),
) -> Folded:  # fmt: skip
    return Folded(
        messages=messages,
        observers=[run.observer for run in runs],
        open_loop=[run.open_loop for run in runs],
        stats=[run.broker.stats() for run in runs],
        unmatched=unmatched,
        other_stats=other_stats([run.broker for run in runs]),
        first=first,
        last=runs[0].broker.clock,
        sampled=sampled_topics(runs[0].broker),
        reacted=reacted,
    )


def _number_publishes(
    shared: ReadRecords, origins: Sequence[int], clock: int, messages: dict[str, TopicPublishes], numbers: dict[int, int]
) -> None:  # fmt: skip
    """Number the publishes of a piece. `origins`: which records of the log they are, by offset. `clock`: before the piece (ms)."""
    (offsets, timestamps, topics, values), commands, columns = shared
    clocks = [*accumulate([0 if time > LATEST_TIME else time for time in timestamps], max, initial=clock)][1:]
    persistent = {topic for topic in set(topics) if topic and not is_non_persistent(topic)}
    published: dict[int, _Published] = {}
    if columns is not None:
        plain = columns.rows
        metadata = plain.metadata or repeat(None)
        own = zip(
            plain.publish_times, plain.sequence_ids, plain.producers, plain.keys, metadata, strict=False
        )
        published.update(zip(columns.records, own, strict=True))
    acks = frozenset(() if columns is None else columns.acks.records)
    rows: dict[str, list[int]] = defaultdict(list)
    for row, (topic, command) in enumerate(zip(topics, commands, strict=True)):
        if topic in persistent and type(command) in _MAY_PUBLISH and row not in acks:
            if row not in published:
                if command is None:  # read by column, but too few to be folded so
                    command = commands[row] = decode(values[row])
                if (found := _published(command, clocks[row])) is None:
                    continue
                published[row] = found
            rows[topic].append(row)
    for topic, own_rows in rows.items():
        of = messages.get(topic)
        if of is None:
            of = messages[topic] = TopicPublishes()
        found_all = zip(*[published[row] for row in own_rows], strict=True)
        first = of.add([origins[row] for row in own_rows], [clocks[row] for row in own_rows], *found_all)
        numbers.update(zip([offsets[row] for row in own_rows], count(first), strict=False))


_MAY_PUBLISH = frozenset({c.Publish, c.Send, Line, type(None)})

_Published = tuple[int, int, str, str | None, c.MessageMetadata | None]
"""Of a publish: its time (ms), its sequence id, its producer, its key, and a SEND's metadata."""


def _published(command: Decoded, clock: int) -> _Published | None:
    inner = command_in(command)
    if isinstance(inner, c.Publish):
        time = clock if inner.publish_time is None else inner.publish_time
        return time, inner.sequence_id, inner.producer, inner.key, None
    if isinstance(inner, c.Send):
        of = inner.metadata
        return of.publish_time, inner.sequence_id, of.producer_name, of.partition_key, of
    return None


def other_stats(brokers: Sequence[Broker]) -> list[dict[str, list[str]]]:
    """By run and topic: the fields of stats that are not those of the first run."""
    found: list[dict[str, list[str]]] = [{} for _ in brokers]
    for topic in sorted({name for broker in brokers for name in broker.topic_names()}):
        baseline = _stats(brokers[0], topic)
        for broker, other in zip(brokers[1:], found[1:], strict=True):
            if fields := sorted(_differing(baseline, _stats(broker, topic))):
                other[topic] = fields
    return found


def _stats(broker: Broker, topic: str) -> dict[str, Any]:
    try:
        return broker.topic_stats(topic)
    except KeyError:
        return {}


def _differing(before: Any, after: Any, field: str = "topic") -> set[str]:
    """The names of the fields that differ, however deep."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = before.keys() | after
        return {each for name in names for each in _differing(before.get(name), after.get(name), name)}
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return {each for pair in zip(before, after, strict=True) for each in _differing(*pair, field)}
    return {field} if before != after else set()


def note_open_loop(
    baseline: Observer, other_run: Observer, open_loop: dict[str, OpenLoop], shift: int
) -> None:
    """Note where clients of a topic would have seen something else for the first time, in the piece that was just observed, and
    count the admin calls that are answered otherwise."""
    for offset in baseline.admin_answers.keys() & other_run.admin_answers:  # policies leave calls out
        before, after = baseline.admin_answers[offset], other_run.admin_answers[offset]
        # What is refused may name no topic. In a log of its own, another call may have the offset.
        if before != after and before.cause == after.cause:
            other_run.known(after.topic or before.topic or "").answered_otherwise += 1
    for name in sorted(baseline.touched | other_run.touched):
        own, other = baseline.known(name), other_run.known(name)
        if name in open_loop:
            continue
        found = [
            each for each in (_first_answer(name, own, other), _first_sight(name, own, other, shift)) if each
        ]
        if found:
            open_loop[name] = min(found, key=lambda each: (each.clock, each.offset))


def _in_log(found: OpenLoop, reacted: Reacted | None, offsets: Ints) -> OpenLoop:
    """A moment of a run with a log of its own, with the offset of the last record of the log that was reached by then."""
    if reacted is None or not found.own:
        return found
    row = int(np.searchsorted(reacted.records["offset"].to_numpy(), found.offset))
    reached = int(reacted.after[min(row, len(reacted.after) - 1)])
    return found._replace(offset=int(offsets[max(reached - 1, 0)]), own=False)


_ANSWERS = ("no answer", "stored", "a duplicate", "refused")


def numbers_in(baseline: TopicPublishes, own: TopicPublishes) -> Ints:
    """The number in the baseline of each message of a run with a log of its own."""
    known, asked = (each.offset.between(0, len(each)) for each in (baseline, own))
    found: Ints = np.searchsorted(known, asked)
    return found


def _first_answer(name: str, own: OfTopic, other: OfTopic) -> OpenLoop | None:
    """The first publish of the piece that is answered otherwise."""
    count = len(own.messages)
    before = own.answer.between(own.compared, count)
    if other.messages is own.messages:
        after = other.answer.between(own.compared, count)
    else:
        numbers = numbers_in(own.messages, other.messages)[other.compared :]
        answers = other.answer.between(other.compared, len(other.messages))
        here = (numbers >= own.compared) & (numbers < count)
        after = np.zeros_like(before)
        after[numbers[here] - own.compared] = answers[here]
    differ = np.flatnonzero(before != after)
    if not len(differ):
        return None
    number = own.compared + int(differ[0])
    messages = own.messages
    what = f"sequence id {messages.sequence_id[number]} of {messages.producers[messages.producer[number]]}: "
    saw, would_see = (what + _ANSWERS[int(side[differ[0]])] for side in (before, after))
    return OpenLoop(name, messages.clock[number], messages.offset[number], saw, would_see)


def _first_sight(name: str, own: OfTopic, other: OfTopic, shift: int) -> OpenLoop | None:
    """The first answer or delivery of the piece that is another one, or comes at another time."""
    if own.messages is other.messages and _same(own.seen, other.seen):
        return None
    for before, after in zip_longest(_each(own.seen), _each(other.seen)):
        if before is None or after is None or _normal(before, own, own) != _normal(after, other, own):
            first = min(
                (each for each in (before, after) if each), key=lambda each: (each.clock, each.offset)
            )
            moment = first.clock, first.offset
            own_text, other_text = (
                _text(each if each and (each.clock, each.offset) == moment else None, of)
                for each, of in ((before, own), (after, other))
            )
            return OpenLoop(name, first.clock, first.offset - shift, own_text, other_text, first is after)
    return None


def _same(own: Sequence[Seen], other: Sequence[Seen]) -> bool:
    """Whether clients see the same at the same time, in the same runs. Ordinals tell what else a record does, which may be another number of
    rows."""
    return own == other or (
        len(own) == len(other)
        and all(
            one.is_as(two)
            if isinstance(one, SeenRun)
            else isinstance(two, e.Row)
            and (one.offset, one.clock) == (two.offset, two.clock)
            and one.effect == two.effect
            for one, two in zip(own, other, strict=True)
        )
    )


def _each(seen: Sequence[Seen]) -> Iterator[e.Row]:
    """What clients see, one by one."""
    for each in seen:
        if isinstance(each, SeenRun):
            yield from each.rows()
        else:
            yield each


def _normal(seen: e.Row, of: OfTopic, baseline: OfTopic) -> tuple[int, Any]:
    """What a client sees, with the message's number in the baseline for its position."""
    effect = seen.effect
    if isinstance(effect, e.Message):
        number = _number(effect, of)
        if number >= 0 and of.messages is not baseline.messages:
            number = bisect_left(baseline.messages.offset, of.messages.offset[number])
        return seen.clock, effect._replace(ledger_id=number, entry_id=0)
    return seen.clock, effect


def _number(effect: e.Message, of: OfTopic) -> int:
    found = of.written.at(Position(effect.ledger_id, effect.entry_id))
    return -1 if found is None else found.number


def _text(seen: e.Row | None, of: OfTopic) -> str:
    if seen is None:
        return "nothing"
    effect = seen.effect
    if isinstance(effect, e.Message):
        number = _number(effect, of)
        again = f", redelivery {effect.redelivery_count}" if effect.redelivery_count else ""
        what = f"sequence id {of.messages.sequence_id[number]}" if number >= 0 else "an entry"
        return f"{what} sent to {effect.subscription}{again}"
    cause = getattr(effect, "cause", None)
    return e.KINDS[type(effect)] + (f": {cause}" if cause else "")
