"""Two finished replays of one log: how the fate of each message changes, and why. The answer of what-if, from output tables.

The tables have no acks. So whether a message was acked follows from where the broker moved cursors, how many unacked entries it
passed each time, and the cursors at the end. A message that was never sent counts as not acked. What remains open is `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import effects as e
from schemas.arguments import checked
from schemas.effects import KINDS, Effect, Row
from sinks import batch_files
from sinks.parquet import fragment
from sinks.replayed import Replayed, read_replayed
from sinks.storage import Storage
from sinks.tables import TABLES, table_files
from streaming.answers.fates import deletes, resets
from streaming.answers.history.folders import NotFound
from streaming.answers.whatif.answer import WhatIf
from streaming.answers.whatif.compare import PolicySet, joined, named_sets
from streaming.answers.whatif.differences import compared
from streaming.answers.whatif.observed import (
    MISSED,
    OBSERVED,
    UNKNOWN,
    UNTIMED,
    Move,
    Observer,
    OfSubscription,
    OfTopic,
    OpenLoop,
    TopicPublishes,
)
from streaming.answers.whatif.side_by_side import (
    PIECE,
    PIECES,
    Folded,
    note_open_loop,
    sampled_topics,
)
from streaming.broker.broker import Broker
from streaming.broker.context import Acked
from streaming.broker.entries import NoEntries
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.position import EARLIEST, Position
from streaming.fold.records import StateRow
from streaming.log.positions import WrittenEntries
from streaming.state.saved import read_states


@checked
def diff(
    before: str | Path, after: str | Path, *, progress: Callable[[int, int], object] | None = None
) -> WhatIf:
    """How the fate of each message in `after` differs from that in `before`: folders of finished replays of one log.

    `whatif` needs no second replay. A publish that was answered in neither replay is not counted. A write that a
    fault put off has the offset of the record that answered it. A subscription that is not durable begins with the first message
    that it was sent. The largest backlogs and ages on the way are not known.

    Args:
        progress: called with the ingress partitions done, and in all.

    Raises `NotFound` for folders that are not such replays, or lack some of their output rows.
    """
    sides = _Side.of(before), _Side.of(after)
    if sides[0].replayed.log != sides[1].replayed.log:
        raise NotFound(
            f"{before} and {after} are replays of different logs, or over different ingress partitions"
        )
    (name,) = (each.name for each in named_sets([PolicySet(Path(after).resolve().name, after)], None))
    partitions = sorted(sides[0].states.keys() | sides[1].states.keys())
    parts = []
    for done, partition in enumerate(partitions):
        if progress is not None:
            progress(done, len(partitions))
        parts.append(compared(_observed(partition, sides), [name]))
    return joined(f"{before} and {after}", sides[0].replayed.records, parts, [name])


class _Side(NamedTuple):
    """A finished replay. `files`: of a kind's rows, in `tables`, by micro-batch and ingress partition."""

    replayed: Replayed
    states: dict[int, StateRow]
    tables: Storage
    files: dict[tuple[int, int], dict[type[Effect], str]]

    @classmethod
    def of(cls, folder: str | Path) -> _Side:
        """Raises `NotFound`."""
        root = Path(folder)
        replayed, states = read_replayed(root / "state"), read_states(root / "state")
        if replayed is None or states is None:
            raise NotFound(f"{folder} is not the --out of a finished replay")
        tables = Storage(str(root / "tables"))
        files: dict[tuple[int, int], dict[type[Effect], str]] = {}
        for kind in sorted(OBSERVED, key=KINDS.__getitem__):
            name, count = KINDS[kind], 0
            for path in table_files(tables, name):
                written = batch_files.of(path)
                if written is not None:
                    files.setdefault(written, {})[kind] = path
                    with fragment(tables, path) as file:
                        count += file.metadata.num_rows
            if count != (expected := replayed.rows.get(name, 0)):
                raise NotFound(
                    f"{folder} lacks output rows: of {expected:,} of kind {name}, {count:,} are there"
                )
        return cls(replayed, {each.partition: each for each in states}, tables, files)

    def rows(self, partition: int) -> Iterator[list[Row]]:
        """The rows of a partition, those of a micro-batch at a time, in order, with the offsets that the log has."""
        for batch in sorted(batch for batch, of in self.files if of == partition):
            rows: list[Row] = []
            for kind, path in self.files[batch, partition].items():
                with fragment(self.tables, path) as file:
                    rows += _read(kind, file.to_table(TABLES[KINDS[kind]]), self.replayed.shift)
            rows.sort(key=attrgetter("offset", "ordinal"))
            yield rows


def _read(kind: type[Effect], table: pa.Table, shift: int) -> Iterator[Row]:
    """The rows of a kind as effects."""
    offsets = pc.subtract(table["offset"], shift).to_pylist()
    empty = [None] * len(table)
    columns = (table[name].to_pylist() if name in table.column_names else empty for name in kind._fields)
    effects: Iterable[Any] = map(kind._make, zip(*columns, strict=True))
    return map(Row, offsets, table["ordinal"].to_pylist(), table["clock"].to_pylist(), effects)


class _Cut:
    """The rows of a side, up to one offset after another."""

    def __init__(self, batches: Iterator[list[Row]]) -> None:
        self._batches, self._rows, self._at = batches, list[Row](), 0
        self._more()

    def _more(self) -> bool:
        for rows in self._batches:
            if rows:
                self._rows, self._at = rows, 0
                return True
        self._rows, self._at = [], 0
        return False

    def next_offset(self) -> int | None:
        """The offset of the next row; None: there is none."""
        return self._rows[self._at].offset if self._at < len(self._rows) else None

    def up_to(self, end: int) -> list[Row]:
        """The rows before an offset."""
        found: list[Row] = []
        while self._rows:
            stop = self._at
            while stop < len(self._rows) and self._rows[stop].offset < end:
                stop += 1
            found += self._rows[self._at : stop]
            self._at = stop
            if stop < len(self._rows) or not self._more():
                break
        return found


def _observed(partition: int, sides: tuple[_Side, _Side]) -> Folded:
    """What the rows of an ingress partition say."""
    messages: dict[str, TopicPublishes] = {}
    numbers: _Numbers = {}
    observers = [_RowObserver(messages, numbers) for _ in sides]
    cuts = [_Cut(side.rows(partition)) for side in sides]
    states = [side.states.get(partition) for side in sides]
    open_loop: dict[str, OpenLoop] = {}
    last = max((each.offset for each in states if each is not None and each.offset is not None), default=0)
    size = max(1, min(PIECE, last // PIECES))
    first = None
    while offsets := [offset for cut in cuts if (offset := cut.next_offset()) is not None]:
        end = (min(offsets) // size + 1) * size
        pieces = [cut.up_to(end) for cut in cuts]
        if first is None:
            first = min(rows[0].clock for rows in pieces if rows)
        _number(pieces, messages, numbers)
        for observer, rows in zip(observers, pieces, strict=True):
            observer.begin_piece()
            observer.observe(rows, ())
        note_open_loop(observers[0], observers[1], open_loop, 0)
        for observer, rows in zip(observers, pieces, strict=True):
            observer.sample_storage(rows[-1].clock if rows else None)
        numbers.clear()
    brokers = [
        Broker(partition, NoEntries()) if state is None else Broker.decode(state.broker, NoEntries())
        for state in states
    ]
    for observer, broker in zip(observers, brokers, strict=True):
        observer.finish(broker)
    return Folded(
        messages=messages,
        observers=list(observers),
        open_loop=[{}, open_loop],
        stats=[broker.stats() for broker in brokers],
        unmatched=[side.replayed.unmatched if partition == min(side.states) else 0 for side in sides],
        other_stats=[{}, {}],
        first=brokers[0].clock if first is None else first,
        last=max(broker.clock for broker in brokers),
        sampled=sampled_topics(brokers[0]),
    )


_Publish = tuple[int, str, str, int, int]
"""The offset of the answer, the topic, the producer, and the message's first and last sequence id."""
_Numbers = dict[_Publish, list[int]]
"""The numbers of publishes, by how they are answered."""


def _answer(row: Row) -> _Publish | None:
    """Which publish of a persistent topic a row answers."""
    effect = row.effect
    if isinstance(effect, e.SendReceipt):
        if effect.ledger_id == 0 or (effect.ledger_id < 0 and effect.size is not None):
            return None
        highest = effect.highest_sequence_id
        last = effect.sequence_id if highest is None else highest
        return row.offset, effect.topic, effect.producer_name, effect.sequence_id, last
    if isinstance(effect, e.SendError) and not is_non_persistent(effect.topic):
        lowest, last = effect.lowest_sequence_id, effect.sequence_id
        return row.offset, effect.topic, effect.producer_name, last if lowest is None else lowest, last
    return None


def _number(pieces: list[list[Row]], messages: dict[str, TopicPublishes], numbers: _Numbers) -> None:
    """Number the publishes that the rows of a piece answer, in the order of the log."""
    found: dict[_Publish, list[list[Row]]] = {}
    for side, rows in enumerate(pieces):
        for row in rows:
            key = _answer(row)
            if key is not None:
                found.setdefault(key, [[] for _ in pieces])[side].append(row)
    order = sorted(
        found.items(), key=lambda each: min((rows[0].offset, rows[0].ordinal) for rows in each[1] if rows)
    )
    for key, by_side in order:
        for place in range(max(map(len, by_side))):
            answers = [rows[place] for rows in by_side if place < len(rows)]
            effects: list[Any] = [row.effect for row in answers]
            stored = next(
                (each for each in effects if isinstance(each, e.SendReceipt) and each.ledger_id > 0),
                effects[0],
            )
            of = messages.setdefault(stored.topic, TopicPublishes())
            time = getattr(stored, "publish_time", None) or answers[0].clock
            keys = [getattr(stored, "partition_key", None)]
            number = of.add(
                [key[0]], [answers[0].clock], [time], [stored.sequence_id], [key[2]], keys, [None]
            )
            numbers.setdefault(key, []).append(number)


class _RowObserver(Observer):
    """Observes output rows, without acks."""

    def __init__(self, messages: dict[str, TopicPublishes], by_answer: _Numbers) -> None:
        super().__init__(messages, {})
        self._by_answer = by_answer
        self._answered: dict[_Publish, int] = {}
        self._resets: dict[tuple[int, str, str], e.CursorMoved] = {}

    def begin_piece(self) -> None:
        """The rows of the next piece come."""
        self._answered.clear()

    def observe(self, rows: Sequence[Row], acks: Sequence[Acked]) -> None:
        self._resets = {
            (row.offset, row.effect.topic, row.effect.subscription): row.effect
            for row in rows
            if isinstance(row.effect, e.CursorMoved) and resets(row.effect)
        }
        super().observe(rows, acks)

    def _number(self, of: OfTopic, offset: int, effect: e.SendReceipt | e.SendError) -> int | None:
        key = _answer(Row(offset, 0, 0, effect))
        if key is None:
            return None
        place = self._answered.get(key, 0)
        self._answered[key] = place + 1
        return self._by_answer[key][place]

    def _subscription_event(self, row: e.Row, effect: e.SubscriptionEvent) -> None:
        of = self.of(effect.topic)
        if is_non_persistent(effect.topic):
            return  # it has no cursor, and no message a fate
        found = of.subscriptions.get(effect.subscription)
        if deletes(effect.cause):
            if found is not None:
                found.end(row.clock, of.written, of.stored)
            return
        start: int | None = of.written.last_number_up_to(of.written.last)
        if effect.cause == "created at Earliest":
            start = of.written.last_number_up_to(of.there(EARLIEST))
        elif effect.cause != "created at Latest":
            start = None
        if (reset := self._resets.get((row.offset, effect.topic, effect.subscription))) is not None:
            start = of.written.last_number_up_to(of.there(Position(reset.after_ledger, reset.after_entry)))
        if found is None:
            found = of.subscriptions[effect.subscription] = _OfSubscription(start)
        else:
            assert isinstance(found, _OfSubscription)
            found.begin_again_at(start, of.written, of.stored)
        found.created = row.offset

    def sample_storage(self, clock: int | None) -> None:
        """A piece is observed: note the storage of each topic that something happened on."""
        for name in self.touched:
            of = self.topics[name]
            of.begin_piece()
            if clock is not None:
                of.note_storage(clock)
        self.end_piece()

    def finish(self, broker: Broker) -> None:
        """The log ends with this state of the broker."""
        self.settle()
        for name, of in self.topics.items():
            of.admit(broker.clock)
            try:
                topic = broker.topic(name)
            except KeyError:
                topic = None
            count = len(of.messages)
            for subscription, found in of.subscriptions.items():
                assert isinstance(found, _OfSubscription)
                cursor = None if topic is None else topic.cursors.get(subscription)
                if topic is None or cursor is None:
                    if not found.gone:
                        found.end(broker.clock, of.written, count)
                    continue
                holes = [part for low, high in cursor.acked.runs() for part in of.written.numbers(low, high)]
                mark_delete = of.there(cursor.mark_delete)
                last = of.written.last_number_up_to(mark_delete)
                found.conclude(last, holes, of.written, count)
                backlog = cursor.backlog(topic.ledger, precise=True)
                number = of.written.first_number_after(mark_delete) if backlog > 0 else None
                age = 0 if number is None else max(broker.clock - of.messages.publish_time[number], 0)
                found.oldest.note(broker.clock, age)
            if topic is not None:
                of.note_storage(broker.clock)


_NOT_YET = 1 << 62
"""The start of a subscription of which nobody knows yet where it began: after all messages."""


class _OfSubscription(OfSubscription):
    """What became of a topic's messages for one subscription, as far as output rows tell. `start`: None if the rows don't say
    where it began."""

    def __init__(self, start: int | None) -> None:
        super().__init__(-1 if start is None else start)
        self.peak_backlog = None
        self._since = self._decided = self.start
        self._unknown_start = start is None
        self._first: Position | None = None
        if start is None:
            self.start = _NOT_YET

    def begin_again_at(self, start: int | None, written: WrittenEntries, count: int) -> None:
        """It was created again; None: the rows don't say where."""
        self._since = count - 1 if start is None else start
        self.begin_again(self._since, written, count)
        self._unknown_start, self._first = start is None, None

    def sent(self, ledger: int, entry: int, clock: int, redelivery_count: int) -> None:
        super().sent(ledger, entry, clock, redelivery_count)
        position = Position(ledger, entry)
        if self._unknown_start and (self._first is None or position < self._first):
            self._first = position

    def move(
        self, move: Move, clock: int, rule: int, written: WrittenEntries, count: int
    ) -> None:  # fmt: skip
        """The broker moved the cursor without an ack, forward or back. Everything up to where it was is acked."""
        self.settle(written)
        last = written.last_number_up_to(move.before)
        self._acked_up_to(last, written, count)
        if move.after > move.before:
            self._passed_again(last)
            self._pass(written.numbers(move.before, move.after), move.entries)
        super().move(move, clock, rule, written, count)

    def back_to(self, number: int) -> None:
        super().back_to(number)
        self._since = min(self._since, number)

    def revive(self, number: int, kept: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        super().revive(number, kept)
        self._decided = min(self._decided, number)

    def _acked_up_to(self, last: int, written: WrittenEntries, count: int) -> None:
        """Whatever was written and no rule took is acked. Up to `_decided`, all of that is known."""
        self._begin(written, count)
        first = max(self._since, self._decided) + 1
        if first > last:
            return
        acked = self.open(first, last + 1) & (written.positions_of(np.arange(first, last + 1))[0] >= 0)
        self.acked.to_set(first, last + 1)[acked] = UNTIMED
        self._decided = last

    def _begin(self, written: WrittenEntries, count: int) -> None:
        """If the rows don't say where it began, it began with the first message that was delivered."""
        if not self._unknown_start:
            return
        first = None if self._first is None else written.at(self._first)
        start = count - 1 if first is None else first.number - 1
        if start < self._done:
            self.revive(start)
        else:
            self._part(start + 1, MISSED)
        self.start = min(start, self.start)
        self._since, self._unknown_start = start, first is None

    def _passed_again(self, last: int) -> None:
        """The cursor was behind what a rule took: what it had was not written, and the topic was loaded again."""
        if self.passed.between(*self.passed.held(last + 1)).any():
            self.revive(last)

    def _pass(self, parts: list[tuple[int, int]], unacked: int) -> None:
        """A rule takes messages, of which so many are unacked."""
        delivered = [self.delivered.between(*part) > 0 for part in parts]
        total = sum(map(len, delivered))
        never = total - sum(int(each.sum()) for each in delivered)
        if unacked == total:
            return
        if unacked == 0:
            for part in parts:
                self.acked.to_set(*part)[:] = UNTIMED
            return
        mark = UNTIMED if unacked == never else UNKNOWN
        for part, sent in zip(parts, delivered, strict=True):
            self.acked.to_set(*part)[sent] = mark
        if mark == UNKNOWN:
            lost = max(unacked - never, 0)
            self.unknown_lost += lost
            self.unknown_acked += max(total - never - lost, 0)

    def end(self, clock: int, written: WrittenEntries, count: int) -> None:
        """It is deleted: nobody knows what was acked of what was delivered."""
        self.settle(written)
        self._begin(written, count)
        first, stop = self.delivered.held(self._since + 1)
        unknown = self.open(first, stop) & (self.delivered.between(first, stop) > 0)
        self.acked.to_set(first, stop)[unknown] = UNKNOWN
        super().end(clock, written, count)

    def conclude(self, last: int, holes: list[tuple[int, int]], written: WrittenEntries, count: int) -> None:
        """Its cursor is where the log ends: everything up to a message is acked, and some after it."""
        self._acked_up_to(last, written, count)
        self.revive(last)
        for first, stop in holes:
            self.acked.to_set(first, stop)[:] = UNTIMED
