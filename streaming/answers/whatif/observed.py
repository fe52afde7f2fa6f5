"""What became of each message of a topic for each subscription, in compact columns, observed from outside the broker.

A message is known by its *number*: which publish of its topic it was, in the order of the log, from 0. That is the same under
all policies, which its position is not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from schemas import effects as e
from schemas.commands import MessageMetadata
from schemas.entries import Entry, EntryNotFound
from streaming.answers.fates import LOST, MOVED, Outcome, deletes, loses_writes, resets
from streaming.answers.quarantined import QuarantineKey
from streaming.answers.whatif.put_off import PutOffWrites
from streaming.answers.whatif.series import TimeSeries
from streaming.broker.broker import Broker
from streaming.broker.context import Acked
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.persistent.delivery_run import Deliveries, Followed, Took
from streaming.broker.persistent.publish.publish_run import Publishes
from streaming.broker.persistent.publish.publishing import DUPLICATE as DUPLICATE_ID
from streaming.broker.position import EARLIEST, Position
from streaming.broker.topic.abstract_topic import PendingWrite
from streaming.log.positions import WrittenEntries

Ints = np.ndarray[Any, np.dtype[np.int64]]

if TYPE_CHECKING:
    Integers = array[int]
else:
    Integers = array  # which can't be subscripted

UNTIMED, UNKNOWN = 1, -1
"""In place of the moment of an ack: acked at a time that is not known; perhaps acked."""

MISSED = -1
"""In place of the moment at which a subscription was deleted: it was before the message came."""

_ZERO = 2
"""The moment of the time 0, which a log without times has. It is none of the above, nor 0: never."""

T = TypeVar("T", int, Ints)


def moment(time: T) -> T:
    """A time (ms) as it is in columns, where 0 is: never."""
    return time + _ZERO


def time_of(moment: T) -> T:
    """The time (ms) of a moment that was."""
    return moment - _ZERO


NO_ANSWER, STORED, DUPLICATE, REFUSED = range(4)
"""What a publish was answered. `NO_ANSWER`: nothing, for example because its producer was gone."""


class LossRule(NamedTuple):
    """Why messages left a backlog without an ack, or were not stored."""

    kind: str
    cause: str
    policy: str | None


class Move(NamedTuple):
    """A cursor's mark-delete position moved without an ack, over `entries` unacked ones. The positions are those of `OfTopic.there`.
    `resets`: acks after the new position are void."""

    outcome: Outcome
    before: Position
    after: Position
    entries: int
    resets: bool


class ColumnsOfRun(NamedTuple):
    """Publishes, and their clocks and sizes as arrays."""

    publishes: Publishes
    clocks: Ints
    sizes: Ints

    @classmethod
    def of(cls, publishes: Publishes) -> ColumnsOfRun:
        """Those of some publishes."""
        return cls(publishes, np.array(publishes.clocks, np.int64), np.array(publishes.sizes, np.int64))


class SeenRun(NamedTuple):
    """The messages of a topic that clients got in a delivery run, those of each subscription by themselves."""

    topic: str
    publishes: Publishes
    messages: list[Deliveries]

    def is_as(self, other: object) -> bool:
        """Whether it is known that clients see the same in another run."""
        return (
            isinstance(other, SeenRun)
            and self.publishes is other.publishes
            and len(self.messages) == len(other.messages)
            and all(vars(one) == vars(two) for one, two in zip(self.messages, other.messages, strict=True))
        )

    def rows(self) -> list[e.Row]:
        """The same as effects, in their order."""
        rows = [row for each in self.messages for row in self._rows(each)]
        return sorted(rows, key=itemgetter(0, 1))

    def _rows(self, messages: Deliveries) -> Iterator[e.Row]:
        publishes = self.publishes
        columns = messages.rows, messages.ordinals, messages.ledgers, messages.entries, messages.numbers
        for row, ordinal, ledger, entry, number in zip(*columns, strict=True):
            connection, consumer_id, subscription, epoch = messages.to[number]
            message = e.Message(
                self.topic, connection, consumer_id, subscription, ledger, entry, publishes.messages[row], publishes.sizes[row], 0,
                consumer_epoch=epoch,
            )  # fmt: skip
            yield e.Row(publishes.offsets[row], ordinal, publishes.clocks[row], message)


Seen = e.Row | SeenRun


class TopicEntry(NamedTuple):
    """An entry that a topic has, or (without a position) will have: a fault has put its write off."""

    position: Position | None
    entry: Entry


class Column:
    """A column of integers, which are 0 until they are set. It holds those from the first to the last place that was set: of a
    subscription, as many as messages came in its life."""

    __slots__ = ("_first", "_stop", "_values")

    def __init__(self, dtype: type[np.generic] = np.int64) -> None:
        self._values: np.ndarray[Any, Any] = np.zeros(0, dtype)
        self._first = self._stop = 0

    @classmethod
    def of(cls, first: int, stop: int, values: np.ndarray[Any, Any]) -> Column:
        """One that holds some values, from a place to before another."""
        found = cls()
        found._first, found._stop, found._values = first, stop, values
        return found

    def kept(self) -> tuple[int, int, str, bytes]:
        """What it holds: the arguments of `of`, the values as their type and bytes."""
        held = self._values[: self._stop - self._first]
        return self._first, self._stop, held.dtype.str, held.tobytes()

    def __len__(self) -> int:
        """How many integers it has room for."""
        return len(self._values)

    def to_set(self, first: int, stop: int) -> np.ndarray[Any, Any]:
        """The places `first`..`stop` − 1, to set them."""
        if first >= stop:
            return self._values[:0]
        if self._first == self._stop:
            self._first = self._stop = first
        room = len(self._values)
        if first < self._first or stop > self._first + room:
            # It grows to twice the size, at the end that it has to.
            start = self._first if first >= self._first else max(min(first, self._first - room), 0)
            end = self._stop if stop <= self._stop else max(stop, self._first + 2 * room)
            grown = np.zeros(end - start, self._values.dtype)
            grown[self._first - start : self._stop - start] = self._values[: self._stop - self._first]
            self._values, self._first = grown, start
        self._stop = max(self._stop, stop)
        return self._values[first - self._first : stop - self._first]

    def between(self, first: int, stop: int) -> np.ndarray[Any, Any]:
        """A copy of the places `first`..`stop` − 1."""
        found = np.zeros(max(stop - first, 0), self._values.dtype)
        low, high = max(first, self._first), min(stop, self._stop)
        if low < high:
            found[low - first : high - first] = self._values[low - self._first : high - self._first]
        return found

    def up_to(self, count: int) -> np.ndarray[Any, Any]:
        """A copy of the first `count` places."""
        return self.between(0, count)

    def held(self, first: int) -> tuple[int, int]:
        """From which place on, at or after `first`, and up to which it holds integers: (start, stop). All others are 0."""
        return min(max(first, self._first), self._stop), self._stop

    def forget(self, stop: int) -> None:
        """Set all places before `stop` to 0, for good: they take no memory any more."""
        start, end = self.held(stop)
        self._values, self._first = self._values[start - self._first : end - self._first].copy(), start

    def clear(self, first: int) -> None:
        """Set all places from `first` on to 0."""
        start, stop = self.held(first)
        self._values[start - self._first : stop - self._first] = 0
        self._stop = start


class ByNumber:
    """An integer for each publish of a topic, by its number. Those before `first` are forgotten."""

    def __init__(self, first: int = 0, values: Integers | None = None) -> None:
        self.first, self.values = first, array("q") if values is None else values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[int]:
        return iter(self.values)

    def __getitem__(self, number: int) -> int:
        return self.values[number - self.first]

    def __setitem__(self, number: int, value: int) -> None:
        self.values[number - self.first] = value

    def add(self, values: Iterable[int]) -> None:
        """Those of the next publishes."""
        self.values.extend(values)

    def set(self, numbers: Ints, values: Ints) -> None:
        """Set those of some publishes."""
        np.frombuffer(self.values, np.int64)[numbers - self.first] = values

    def between(self, first: int, stop: int) -> Ints:
        """A copy of those of the publishes `first`..`stop` − 1."""
        return np.frombuffer(self.values, np.int64)[first - self.first : stop - self.first].copy()

    def forget(self, stop: int) -> None:
        """Those before `stop` take no memory any more."""
        del self.values[: stop - self.first]
        self.first = stop


class KeptPublishes(NamedTuple):
    """What `TopicPublishes` has: of each publish, in this order, `offset`, `clock`, `publish_time`, `sequence_id`, `size` and `producer`."""

    columns: list[ByNumber]
    key: dict[int, str]
    metadata: dict[int, MessageMetadata]
    producers: list[str]


class TopicPublishes:
    """The publishes of a topic, which are the same in all runs: what clients and the log say of each. Times in ms. `producer`
    is a place in `producers`: the connected producer, or what the message says while nothing has answered it. Those before `first` are
    forgotten."""

    def __init__(self, kept: KeptPublishes | None = None) -> None:
        kept = kept or KeptPublishes([ByNumber() for _ in range(6)], {}, {}, [])
        self._columns, self.key, self.metadata, self.producers = kept
        self.offset, self.clock, self.publish_time, self.sequence_id, self.size, self.producer = self._columns
        self._producers = {name: place for place, name in enumerate(self.producers)}
        self._entries: dict[int, Entry] = {}

    def kept(self) -> KeptPublishes:
        """All that it has."""
        return KeptPublishes(self._columns, self.key, self.metadata, self.producers)

    @classmethod
    def of(cls, entries: Sequence[TopicEntry]) -> TopicPublishes:
        """The messages that a topic has. Their offsets are not known: −1."""
        found, metadata = cls(), [each.entry.metadata for each in entries]
        times = [each.publish_time for each in metadata]
        ids = [each.sequence_id for each in metadata]
        producers = [each.producer_name for each in metadata]
        keys = [each.partition_key for each in metadata]
        found.add([-1] * len(entries), times, times, ids, producers, keys, metadata)
        return found

    @property
    def first(self) -> int:
        """The number of the first that is not forgotten."""
        return self.clock.first

    def __len__(self) -> int:
        """How many there were."""
        return self.first + len(self.clock)

    def forget(self, stop: int) -> None:
        """Nobody asks for those before `stop` any more."""
        for column in self._columns:
            column.forget(stop)
        self._entries.clear()
        _forget(self.key, stop)
        _forget(self.metadata, stop)

    def add(
        self, offsets: Sequence[int], clocks: Sequence[int], publish_times: Sequence[int], sequence_ids: Sequence[int],
        producers: Sequence[str], keys: Sequence[str | None], metadata: Sequence[MessageMetadata | None],
    ) -> int:  # fmt: skip
        """Add the next publishes, and give the number of the first. `metadata`: of a SEND, None for the short form."""
        first = len(self)
        self.offset.add(offsets)
        self.clock.add(clocks)
        self.publish_time.add(publish_times)
        self.sequence_id.add(sequence_ids)
        self.size.add(repeat(0, len(producers)))
        self.producer.add(map(self._place, producers))
        if keys.count(None) < len(keys):
            self.key.update((number, key) for number, key in enumerate(keys, first) if key is not None)
        if metadata.count(None) < len(metadata):
            self.metadata.update((number, of) for number, of in enumerate(metadata, first) if of is not None)
        return first

    def name(self, number: int, producer: str) -> None:
        """The broker's answer to a publish names its producer. The metadata of a SEND may have any other name."""
        if self.producers[self.producer[number]] != producer:
            self.producer[number] = self._place(producer)

    def _place(self, producer: str) -> int:
        place = self._producers.get(producer)
        if place is None:
            place = self._producers[producer] = len(self.producers)
            self.producers.append(producer)
        return place

    def entry(self, number: int) -> Entry:
        """What a broker knows of the message once it is stored, if it notes no time of its own. All runs read the same entries in the same
        piece."""
        entry = self._entries.get(number)
        if entry is None:
            entry = Entry(self.metadata_of(number), self.size[number])
            if len(self._entries) < _ENTRIES:
                self._entries[number] = entry
        return entry

    def end_piece(self) -> None:
        """All runs have folded a piece."""
        self._entries.clear()

    def metadata_of(self, number: int) -> MessageMetadata:
        """The metadata of the message."""
        metadata = self.metadata.get(number)
        if metadata is None:
            metadata = MessageMetadata(
                self.producers[self.producer[number]],
                self.sequence_id[number],
                self.publish_time[number],
                partition_key=self.key.get(number),
            )
        return metadata


def _forget(known: dict[int, Any], stop: int) -> None:
    """Take out what is known of the messages before `stop`."""
    for number in [*takewhile(lambda each: each < stop, known)]:
        del known[number]


_ENTRIES = 1 << 16
"""Entries that are kept as objects for each topic during a piece. A consumer that comes may get a backlog of so many in one."""


@dataclass(eq=False)
class OfSubscription:
    """What became of a topic's messages for one subscription.

    Columns by number: when the message was first `delivered`, when it was `acked`, when a rule took it (`passed`; see `moment`), which `rule` (from 1, see `OfTopic.rules`), how often it was sent (`deliveries`), and the highest
    `redelivery_count` that it came with. Messages up to
    `start` are not for it. `created`: the offset of the record that created it last. `gone`: the moment when it was deleted; 0 while
    it is there. Where acks are not observed, `acked` may be `UNTIMED` or `UNKNOWN`, and `peak_backlog` is None; of the unknown messages
    that a rule took, `unknown_lost` were delivered and not acked, and `unknown_acked` acked.
    """

    start: int
    created: int = -1
    gone: int = 0
    delivered: Column = field(default_factory=Column)
    acked: Column = field(default_factory=Column)
    passed: Column = field(default_factory=Column)
    rule: Column = field(default_factory=lambda: Column(np.int32))
    deliveries: Column = field(default_factory=lambda: Column(np.int32))
    redelivery_count: Column = field(default_factory=lambda: Column(np.int32))
    peak_backlog: int | None = 0
    unknown_lost: int = 0
    unknown_acked: int = 0
    moved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOST, 0))
    oldest: TimeSeries = field(default_factory=TimeSeries)
    backlogs: TimeSeries = field(default_factory=TimeSeries)
    _former: Column = field(default_factory=lambda: Column(np.int32))
    _over: bool = False
    _parted: list[tuple[int, int, int]] = field(default_factory=list)
    _sent: Integers = field(default_factory=lambda: array("q"))
    _again: Integers = field(default_factory=lambda: array("q"))
    _acks: Integers = field(default_factory=lambda: array("q"))
    _ranges: list[tuple[Position, Position, int]] = field(default_factory=list)
    _done: int = -2

    def __post_init__(self) -> None:
        if self._done < -1:  # not given
            self._done = self.start
        self._columns = (
            self.delivered, self.acked, self.passed, self.rule, self.deliveries, self.redelivery_count, self._former,
        )  # fmt: skip

    def sent(self, ledger: int, entry: int, clock: int, redelivery_count: int) -> None:
        """An entry was sent to a consumer."""
        self._sent.extend((ledger, entry, clock + _ZERO))  # `moment` of it: this is called for each delivery
        if redelivery_count:  # few have one, so that the column takes little memory
            self._again.extend((ledger, entry, redelivery_count))

    def ack(self, ack: Acked) -> None:
        """A client, or a filter, acked entries."""
        self.note_backlog(ack.backlog)
        if ack.positions:
            # What is up to the mark-delete position needs no ack: it may be older than the subscription.
            for position in [each for each in ack.positions if each > ack.before]:
                self._acks.extend((*position, moment(ack.clock)))
        elif ack.after > ack.before:
            self._ranges.append((ack.before, ack.after, moment(ack.clock)))

    def take(self, followed: Followed, ledger: int, clocks: Ints) -> None:
        """Take what came of a delivery run for it. `clocks`: of the publishes (ms)."""
        _, deliveries, acks = followed
        if deliveries.rows:
            sent = np.array([deliveries.ledgers, deliveries.entries, deliveries.rows], np.int64)
            sent[2] = moment(clocks[sent[2]])
            self._sent.frombytes(sent.T.tobytes())
        if acks:
            before, after, at, backlogs = np.array(acks, np.int64).reshape(-1, 4).T
            self.note_backlog(int(backlogs.max()))
            counts = after - before
            entries = np.arange(int(counts.sum())) + np.repeat(after + 1 - counts.cumsum(), counts)
            acked = np.array(
                [np.full(len(entries), ledger), entries, np.repeat(moment(at), counts)], np.int64
            )
            self._acks.frombytes(acked.T.tobytes())

    def note_backlog(self, backlog: int) -> None:
        """So many entries are unacked now."""
        self.peak_backlog = max(self.peak_backlog or 0, backlog)

    def settle(self, written: WrittenEntries) -> None:
        """Note in the columns what was sent and acked since the last call. A client may ack an entry that is yet to be written."""
        if self._sent:
            numbers, clocks = _numbers(written, self._sent)
            first, stop = _span(numbers)
            delivered = self.delivered.to_set(first, stop)
            places = numbers[::-1] - first  # of several deliveries, the earliest is assigned last
            fresh = delivered[places] == 0
            delivered[places[fresh]] = clocks[::-1][fresh]
            np.add.at(self.deliveries.to_set(first, stop), numbers - first, 1)
            self._sent = array("q")
        if self._again:
            numbers, counts = _numbers(written, self._again)
            first, stop = _span(numbers)
            np.maximum.at(self.redelivery_count.to_set(first, stop), numbers - first, counts.astype(np.int32))
            self._again = array("q")
        if self._acks:
            numbers, clocks = _numbers(written, self._acks)
            known = numbers > self.start  # a client may ack what was trimmed before the subscription came
            numbers, clocks = numbers[known], clocks[known]
            first, stop = _span(numbers)
            acked, passed = self.acked.to_set(first, stop), self.passed.to_set(first, stop)
            places, clocks = numbers[::-1] - first, clocks[::-1]
            fresh = (acked[places] == 0) & (passed[places] == 0) & (self._parted_at(numbers[::-1]) == 0)
            acked[places[fresh]] = clocks[fresh]
            self._acks = _after(self._acks, written.last)
        for before, after, clock in self._ranges:
            for first, stop in written.numbers(before, after):
                first = max(first, self.start + 1)  # a cursor may begin before what was trimmed
                self.acked.to_set(first, stop)[self.open(first, stop)] = clock
        end = written.last
        self._ranges = [(max(each[0], end), *each[1:]) for each in self._ranges if each[1] > end]

    def forget(self, stop: int) -> None:
        """What became of the messages before `stop` is final, and known elsewhere."""
        if self.is_over(stop):
            return
        for column in self._columns:
            column.forget(stop)
        self._parted = [each for each in self._parted if each[1] > stop]

    def is_over(self, first: int) -> bool:
        """It is deleted, and never had to do with the messages from `first` on."""
        if self.gone and not self._over and not (self._parted and self._parted[-1][1] > first):
            held = (column.held(first) for column in self._columns)
            self._over = all(start == stop for start, stop in held)
        return self._over

    def open(self, first: int, stop: int) -> np.ndarray[Any, Any]:
        """Which of the messages `first`..`stop` − 1 are neither acked nor taken, nor parted from it."""
        found: np.ndarray[Any, Any] = self.acked.between(first, stop) == 0
        found &= self.passed.between(first, stop) == 0
        found &= self.parted(first, stop) == 0
        return found

    def parted(self, first: int, stop: int) -> Ints:
        """Of the messages `first`..`stop` − 1, when it was deleted with the message in its backlog, `MISSED` if the message came
        after that, or 0; it may have been created again since. Says nothing of a message that was acked, or that a rule took."""
        return self._parted_at(np.arange(first, stop))

    def _parted_at(self, numbers: Ints) -> Ints:
        found = np.zeros(len(numbers), np.int64)
        if not self._parted or not len(numbers):
            return found
        low, high = int(numbers.min()), int(numbers.max())
        for place in range(max(bisect_right(self._parted, (low, _MOST, 0)) - 1, 0), len(self._parted)):
            first, stop, value = self._parted[place]
            if first > high:
                break
            found[(numbers >= first) & (numbers < stop)] = value
        return found

    def move(
        self, move: Move, clock: int, rule: int, written: WrittenEntries, count: int
    ) -> None:  # fmt: skip
        """The broker moved the cursor without an ack, forward or back. `count`: of the topic's publishes."""
        self.settle(written)
        before, after = move.before, move.after
        if after < before:
            self.back_to(written.last_number_up_to(after))
            return
        self.moved[move.outcome] += move.entries
        for first, stop in written.numbers(before, after):
            passed = self.passed.to_set(first, stop)
            taken = (passed == 0) & (self.parted(first, stop) == 0)
            self.rule.to_set(first, stop)[taken] = rule
            passed[taken] = moment(clock)
        if move.resets:
            self.revive(written.last_number_up_to(after))

    def end(self, clock: int, written: WrittenEntries, count: int) -> None:
        """It is deleted. `count`: see `OfTopic.stored`."""
        self.settle(written)
        self.gone = moment(clock)
        self._part(count, self.gone)

    def begin_again(self, start: int, written: WrittenEntries, count: int) -> None:
        """It was created again, after a message. `count`: see `OfTopic.stored`."""
        self.settle(written)
        self._part(count, MISSED if self.gone else 0)
        self.revive(start)
        self._done = start
        self.start, self.gone, self._over = min(start, self.start), 0, False

    def _part(self, count: int, value: int) -> None:
        """It has nothing to do any more with what it has not acked. Up to `_done`, nothing changes for it any more."""
        if value and self._done + 1 < count:
            self._parted.append((self._done + 1, count, value))
        self._done = count - 1

    def waiting(self, first: int, stop: int) -> np.ndarray[Any, Any]:
        """Which of the publishes `first`..`stop` − 1 are in its backlog, if they were stored."""
        found = self.open(first, stop)
        found &= np.arange(first, stop) > self.start
        return found & (not self.gone)

    def back_to(self, number: int) -> None:
        """Whatever comes after a message is unacked again, and for it, also what came before the subscription."""
        self.revive(number)
        self.start = min(self.start, number)

    def recovered(self, ack: Acked, mark_delete: Position, written: WrittenEntries) -> None:
        """The topic was loaded again: acks and moves that were not written are void."""
        self.settle(written)
        kept = {each.number for at in ack.positions if (each := written.at(at)) is not None}
        self.revive(written.last_number_up_to(mark_delete), kept)

    def consumptions(self, first: int, stop: int) -> Ints:
        """How often each of the messages `first`..`stop` − 1 was acked: again after the cursor went back."""
        found: Ints = self._former.between(first, stop).astype(np.int64)
        found += self.acked.between(first, stop) > 0
        return found

    def revive(self, number: int, kept: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Whatever comes after a message is unacked again, but for what is `kept`."""
        start, stop = self.acked.held(number + 1)
        self._done = min(self._done, number)
        self._acks, self._ranges = array("q"), []
        acked = self.acked.between(start, stop)
        held = {each: clock for each in kept if start <= each < stop and (clock := int(acked[each - start]))}
        if (acked > 0).any():
            self._former.to_set(start, stop)[:] += acked > 0
        for column in (self.acked, self.passed, self.rule):
            column.clear(number + 1)
        while self._parted and self._parted[-1][1] > number + 1:
            first, _, value = self._parted.pop()
            if first <= number:
                self._parted.append((first, number + 1, value))
        for each, clock in held.items():
            self.acked.to_set(each, each + 1)[0] = clock
            self._former.to_set(each, each + 1)[0] -= 1


_MOST = 1 << 62
"""Above all numbers."""


def _span(numbers: Ints) -> tuple[int, int]:
    """From the first to after the last of some numbers."""
    return (int(numbers.min()), int(numbers.max()) + 1) if len(numbers) else (0, 0)


def _numbers(written: WrittenEntries, found: Integers) -> tuple[Ints, Ints]:
    """The numbers of entries, given as ledger, entry and clock (or count) in turn, and their clocks. Leaves out what was never written."""
    ledgers, entries, clocks = np.frombuffer(found, np.int64).reshape(-1, 3).T
    numbers = written.numbers_of(ledgers, entries)
    there = numbers >= 0
    return numbers[there], clocks[there].copy()


def _after(found: Integers, last: Position) -> Integers:
    """Of ledgers, entries and clocks in turn those of entries after `last`."""
    rows = np.frombuffer(found, np.int64).reshape(-1, 3)
    ahead = (rows[:, 0] > last.ledger) | ((rows[:, 0] == last.ledger) & (rows[:, 1] > last.entry))
    return array("q", rows[ahead].tobytes())


class Stamped(NamedTuple):
    """An entry with the broker's time (ms), and its size with that."""

    size: int
    time: int


class PlainReceipts(NamedTuple):
    """Receipts of plain publishes of a topic: their numbers, the positions of their entries and the sizes of these (bytes). Ledger −1: a
    duplicate, which has no entry."""

    numbers: Ints
    ledgers: Ints
    entries: Ints
    sizes: Ints


@dataclass(eq=False)
class OfTopic:
    """What one run did on a topic: what each publish was answered (`answer`, by number; `reason`: the rule, from 1), where the
    entries are, and what became of them for each subscription. `held`: how long (ms) a backlog quota kept producers off.
    `answered_otherwise`: how many admin calls were not answered as in the baseline. `compacted`: the entries of compacted ledgers, by their ids; `compacted_to`: up to where
    the last compaction went."""

    messages: TopicPublishes
    written: WrittenEntries = field(default_factory=WrittenEntries)
    answer: Column = field(default_factory=lambda: Column(np.int8))
    reason: Column = field(default_factory=lambda: Column(np.int32))
    stamped: dict[int, Stamped] = field(default_factory=dict)
    subscriptions: dict[str, OfSubscription] = field(default_factory=dict)
    storage: int = 0
    peak_storage: int = 0
    trimmed: int = 0
    storages: TimeSeries = field(default_factory=TimeSeries)
    held: int = 0
    held_since: int | None = None
    closed_producers: int = 0
    answered_otherwise: int = 0
    compared: int = 0
    _begins: Position = EARLIEST
    compacted: dict[int, list[Entry]] = field(default_factory=dict)
    compacted_to: Position = EARLIEST

    def __post_init__(self) -> None:
        self.seen: list[Seen] = []

    def store(self, number: int, position: Position, size: int, broker_timestamp: int | None = None) -> None:
        """A publish wrote an entry."""
        self.written.publishes = max(self.written.publishes, number + 1)
        self.written.add(number, position)
        self.answer.to_set(number, number + 1)[0] = STORED
        if broker_timestamp is None:
            self.messages.size[number] = size
        else:
            self.stamped[number] = Stamped(size, broker_timestamp)
        self.storage += size
        if self.storage > self.peak_storage:
            self.peak_storage = self.storage

    def entry(self, number: int) -> Entry:
        """What the broker knows of a message that is stored."""
        stamped = self.stamped.get(number)
        if stamped is None:
            return self.messages.entry(number)
        return Entry(self.messages.metadata_of(number), stamped.size, stamped.time)

    def sizes(self) -> Ints:
        """The stored size (bytes) of each publish that is not forgotten. Of others than stored ones, it says nothing."""
        return self._with_stamped(self.messages.size, 0)

    def times(self) -> Ints:
        """The time (ms) of each publish that is not forgotten: the broker's if it notes one, or else the client's."""
        return self._with_stamped(self.messages.publish_time, 1)

    def _with_stamped(self, column: ByNumber, place: int) -> Ints:
        found = column.between(column.first, len(self.messages))
        for number, each in self.stamped.items():
            found[number - column.first] = each[place]
        return found

    def store_plain(self, receipts: PlainReceipts) -> None:
        """Publishes wrote entries, without the broker's time."""
        numbers, _, _, sizes = receipts
        self.written.add_all(*receipts[:3])
        first, stop = _span(numbers)
        self.answer.to_set(first, stop)[numbers - first] = STORED
        self.messages.size.set(numbers, sizes)
        self.storage += int(sizes.sum())
        self.peak_storage = max(self.peak_storage, self.storage)

    def refuse(self, number: int, answer: int, rule: int) -> None:
        """A publish wrote nothing."""
        self.answer.to_set(number, number + 1)[0] = answer
        self.reason.to_set(number, number + 1)[0] = rule

    def trim(self, ledger: int, entries: int, size: int) -> None:
        """A ledger is deleted, as all before it are. What became of its messages is final. A compacted ledger has copies alone."""
        if self.compacted.pop(ledger, None) is not None:
            return
        self.storage = max(self.storage - size, 0)  # the ledgers of a topic that was deleted come after it
        self.trimmed += entries
        self._begins = max(self._begins, Position(ledger + 1, -1))

    def forget(self, stop: int) -> None:
        """What became of the messages before `stop` is final, and known elsewhere."""
        self.answer.forget(stop)
        self.reason.forget(stop)
        _forget(self.stamped, stop)
        for subscription in self.subscriptions.values():
            subscription.forget(stop)

    def waiting(self, first: int, stop: int) -> int:
        """The first of the messages `first`..`stop` − 1 that a subscription may still get or ack; `stop`: there is none."""
        stored = self.answer.between(first, stop) == STORED
        for subscription in self.subscriptions.values():
            if subscription.gone:
                continue
            subscription.settle(self.written)
            waits = subscription.open(first, stop) & stored
            waits[: max(subscription.start + 1 - first, 0)] = False
            stop = first + int(waits.argmax()) if waits.any() else stop
            stored = stored[: stop - first]
        return stop

    @property
    def first_kept(self) -> int | None:
        """The number of the first message that the topic still has. None: it has none."""
        return self.written.first_number_after(self._begins)

    def there(self, position: Position) -> Position:
        """A place of a cursor among the messages that the topic still has. It may be, and move, below them: no message is there."""
        return max(position, self._begins)

    def begin_piece(self) -> None:
        """What clients saw so far is compared."""
        self.seen.clear()
        self.messages.end_piece()
        self.compared = len(self.messages)

    @property
    def stored(self) -> int:
        """The number of the next message after the last one that is stored. There are more `messages` when a piece begins."""
        return self.written.last_number_up_to(self.written.last) + 1

    def note_storage(self, clock: int) -> None:
        """The storage is as it is now."""
        self.storages.note(clock, self.storage)

    def hold(self, clock: int) -> None:
        """A backlog quota keeps producers off."""
        if self.held_since is None:
            self.held_since = clock

    def admit(self, clock: int) -> None:
        """The topic takes messages."""
        if self.held_since is not None:
            self.held += clock - self.held_since
            self.held_since = None


class OpenLoop(NamedTuple):
    """The first moment at which a client of a topic would have seen something else: the clock (ms), the record's offset in
    the log, and what the client saw and would have seen. `own`: the offset is one of the run's own log."""

    topic: str
    clock: int
    offset: int
    baseline: str
    proposed: str
    own: bool = False


class ObservedRun(NamedTuple):
    """What an observer has between two pieces, see `Observer`. `put_off`: see `PutOffWrites.kept`."""

    topics: dict[str, OfTopic]
    rules: list[LossRule]
    quarantined: list[tuple[QuarantineKey, int]]
    put_off: dict[str, list[tuple[int, int]]]


class Observer:
    """Observes one run of an ingress partition. `numbers`: the number of each publish by the record's offset. `admin_answers`: those of the
    piece at hand, by the call's offset. `names_producers`: of several runs with the same messages, one tells who produced them."""

    def __init__(
        self, messages: dict[str, TopicPublishes], numbers: dict[int, int], *, names_producers: bool = True
    ) -> None:
        self.topics: dict[str, OfTopic] = {}
        self.rules: list[LossRule] = []
        self._messages, self.numbers, self._names_producers = messages, numbers, names_producers
        self._rules: dict[LossRule, int] = {}
        self._touched: set[str] = set()
        self.admin_answers: dict[int, e.AdminResponse] = {}
        self.quarantined = Counter[QuarantineKey]()
        self._put_off: PutOffWrites[int] = PutOffWrites()
        self.broker: Broker

    def observed(self) -> ObservedRun:
        """All that it has between two pieces."""
        self.settle()
        return ObservedRun(
            self.topics, self.rules, list(self.quarantined.items()), self._put_off.kept(self.broker)
        )

    def go_on(self, before: ObservedRun) -> None:
        """Go on after what another observer has, of the same broker."""
        self.topics, self.rules = before.topics, before.rules
        self._rules = {rule: number for number, rule in enumerate(before.rules, 1)}
        self.quarantined.update(dict(before.quarantined))
        self._put_off = PutOffWrites.of(before.put_off, self.broker)

    def of(self, topic: str) -> OfTopic:
        """What the run does on a topic."""
        self._touched.add(topic)
        return self.known(topic)

    def known(self, topic: str) -> OfTopic:
        """What the run did on a topic so far."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = OfTopic(self._messages.setdefault(topic, TopicPublishes()))
        return found

    @property
    def waits(self) -> bool:
        """Whether a fault has put off the write of a publish."""
        return self._put_off.waits

    @property
    def touched(self) -> set[str]:
        """The topics that something happened on in this piece."""
        return self._touched

    def _rule(self, kind: str, cause: str, policy: str | None) -> int:
        rule = LossRule(kind, cause, policy)
        number = self._rules.get(rule)
        if number is None:
            self.rules.append(rule)
            number = self._rules[rule] = len(self.rules)
        return number

    def observe(self, rows: Sequence[e.Row], acks: Sequence[Acked]) -> None:
        """Take effects and acks in their order."""
        done = 0
        for ack in acks:
            self._effects(rows[done : ack.effects])
            done = ack.effects
            self._ack(ack)
        self._effects(rows[done:] if done else rows)

    def _ack(self, ack: Acked) -> None:
        of = self.of(ack.topic)
        subscription = of.subscriptions.get(ack.subscription)
        if subscription is None:
            return
        if ack.recovered:
            subscription.recovered(ack, of.there(ack.after), of.written)
        else:
            subscription.ack(ack)

    def _effects(self, rows: Sequence[e.Row]) -> None:
        stored: dict[
            str, list[Sequence[int]]
        ] = {}  # receipts by topic, to note together; nothing but they and messages came since
        topic = name = ""  # of the messages at hand
        seen: list[Seen] = []
        found: OfSubscription | None = None
        effect: Any
        for row in rows:
            offset, _, clock, effect = row
            kind = type(effect)
            if kind is e.Message:
                if effect.ledger_id > 0:
                    if effect.topic != topic or effect.subscription != name:
                        topic, name = effect.topic, effect.subscription
                        of = self.of(topic)
                        seen, found = of.seen, of.subscriptions.get(name)
                    seen.append(row)
                    if found is not None:
                        found.sent(effect.ledger_id, effect.entry_id, clock, effect.redelivery_count)
            elif kind is e.SendReceipt:
                self._receipt(offset, clock, effect, stored)
            elif kind in OBSERVED:
                topic = name = ""
                of_topic = getattr(effect, "topic", None) or ""
                if of_topic in stored:
                    self.plain(of_topic, PlainReceipts(*np.array(stored.pop(of_topic)).T))
                if kind in _OTHERS:
                    getattr(self, _OTHERS[kind])(row, effect)
                elif kind is e.AdminResponse:
                    self.of(of_topic)
                    self.admin_answers[offset] = effect
                else:
                    self.of(of_topic).seen.append(row)
        for of_topic, receipts in stored.items():
            self.plain(of_topic, PlainReceipts(*np.array(receipts).T))

    def _receipt(
        self, offset: int, clock: int, effect: e.SendReceipt, stored: dict[str, list[Sequence[int]]]
    ) -> None:
        """`stored`: see `_effects`."""
        topic, ledger = effect.topic, effect.ledger_id
        if ledger == 0:
            return  # of a non-persistent topic
        of = self.of(topic)
        number = self._number(of, offset, effect)
        if number is None:
            return
        if ledger > 0:
            messages = of.messages
            if effect.metadata is not None and number not in messages.metadata:
                messages.metadata[number] = effect.metadata
            if effect.broker_timestamp is None and of.held_since is None and not self._put_off.waits:
                stored.setdefault(topic, []).append((number, ledger, effect.entry_id, effect.size or 0))
                return
            if topic in stored:
                self.plain(topic, PlainReceipts(*np.array(stored.pop(topic)).T))
            of.store(number, Position(ledger, effect.entry_id), effect.size or 0, effect.broker_timestamp)
            of.admit(clock)
        elif effect.size is None:
            of.refuse(number, DUPLICATE, self._rule("duplicate", effect.cause or "", None))

    def _number(self, of: OfTopic, offset: int, effect: e.SendReceipt | e.SendError) -> int | None:
        """Which publish an answer is for: the record's own, or one whose write a fault put off."""
        number = self._put_off.answered(effect, self.broker)
        if number is None:
            number = self.numbers.get(offset)
        if number is not None and self._names_producers:
            of.messages.name(number, effect.producer_name)
        return number

    def plain(self, topic: str, receipts: PlainReceipts) -> None:
        """Receipts of plain publishes of a topic, in their order."""
        of = self.of(topic)
        numbers, ledgers, _, _ = receipts
        if len(numbers) < _FEW:
            for number, ledger, entry, size in zip(*(column.tolist() for column in receipts), strict=True):
                self._plain_one(of, number, Position(ledger, entry), size)
            return
        of.written.publishes = max(of.written.publishes, int(numbers.max()) + 1)
        stored = ledgers >= 0
        if not stored.all():
            rule = self._rule("duplicate", DUPLICATE_ID, None)
            for number in numbers[~stored].tolist():
                of.refuse(number, DUPLICATE, rule)
            receipts = PlainReceipts(*(column[stored] for column in receipts))
        if len(receipts.numbers):
            of.store_plain(receipts)
            if of.held_since is not None:
                of.admit(of.messages.clock[int(receipts.numbers[0])])

    def took(self, took: Took, columns: ColumnsOfRun) -> None:
        """Take what a topic took in a delivery run."""
        topic, ledger, entry, rows, followed = took
        of, publishes = self.of(topic), columns.publishes
        if rows:
            count, number = len(rows), self.numbers[publishes.offsets[rows[0]]]
            numbers, entries = np.arange(number, number + count), np.arange(entry, entry + count)
            self.plain(topic, PlainReceipts(numbers, np.full(count, ledger), entries, columns.sizes[rows]))
        if messages := [each.deliveries for each in followed if each.deliveries.rows]:
            of.seen.append(SeenRun(topic, publishes, messages))
        for each in followed:
            if (found := of.subscriptions.get(each.subscription)) is not None:
                found.take(each, ledger, columns.clocks)

    def _plain_one(self, of: OfTopic, number: int, position: Position, size: int) -> None:
        of.written.publishes = max(of.written.publishes, number + 1)
        if position.ledger < 0:
            of.refuse(number, DUPLICATE, self._rule("duplicate", DUPLICATE_ID, None))
            return
        of.store(number, position, size)
        if of.held_since is not None:
            of.admit(of.messages.clock[number])

    def unanswered(self, topic: str, pending: Sequence[PendingWrite], number: int) -> None:
        """A publish was carried out without an answer. `pending`: the writes of the topic that a fault put off."""
        self._put_off.note(topic, pending, number)

    def _send_error(self, row: e.Row, effect: e.SendError) -> None:
        of = self.of(effect.topic)
        of.seen.append(row)
        number = self._number(of, row.offset, effect)
        if number is not None:
            of.refuse(number, REFUSED, self._rule("refused", f"{effect.error}: {effect.cause}", None))
        if _QUOTA in effect.cause:
            of.hold(row.clock)

    def _error(self, row: e.Row, effect: e.Error) -> None:
        of = self.of(effect.topic)
        of.seen.append(row)
        if effect.error in _BLOCKED:
            of.hold(row.clock)

    def _close_producer(self, row: e.Row, effect: e.CloseProducer) -> None:
        of = self.of(effect.topic)
        of.seen.append(row)
        if _QUOTA in effect.cause:
            of.closed_producers += 1
            of.hold(row.clock)

    def _producer_success(self, row: e.Row, effect: e.ProducerSuccess) -> None:
        of = self.of(effect.topic)
        of.seen.append(row)
        of.admit(row.clock)

    def _moved(self, row: e.Row, effect: e.Expired | e.Evicted | e.CursorMoved) -> None:
        of = self.of(effect.topic)
        found = of.subscriptions.get(effect.subscription)
        if found is None or (found.created == row.offset and resets(effect)):  # to where it begins
            return
        move = Move(
            MOVED[type(effect)],
            of.there(Position(effect.before_ledger, effect.before_entry)),
            of.there(Position(effect.after_ledger, effect.after_entry)),
            effect.entries,
            resets(effect),
        )
        rule = self._rule(move.outcome, effect.cause, effect.policy)
        found.move(move, row.clock, rule, of.written, len(of.messages))

    def _ledger_deleted(self, row: e.Row, effect: e.LedgerDeleted) -> None:
        self.of(effect.topic).trim(effect.ledger_id, effect.entries, effect.size)

    def _compacted_entry(self, row: e.Row, effect: e.CompactedEntry) -> None:
        copy = Entry(effect.metadata, effect.size, effect.broker_timestamp)
        self.of(effect.topic).compacted.setdefault(effect.ledger_id, []).append(copy)

    def _subscription_event(self, row: e.Row, effect: e.SubscriptionEvent) -> None:
        of = self.of(effect.topic)
        if deletes(effect.cause):
            found = of.subscriptions.get(effect.subscription)
            if found is not None:
                found.end(row.clock, of.written, of.stored)
            return
        try:
            cursor = self.broker.topic(effect.topic).cursors[effect.subscription]
        except KeyError:
            return
        start = of.written.last_number_up_to(of.there(cursor.mark_delete))
        found = of.subscriptions.get(effect.subscription)
        if found is None:
            found = of.subscriptions[effect.subscription] = OfSubscription(start)
        else:
            found.begin_again(start, of.written, of.stored)
        found.created = row.offset

    def _quarantined(self, row: e.Row, effect: e.Quarantined) -> None:
        self.quarantined[QuarantineKey(effect.rule, effect.topic is not None)] += 1

    def _topic_event(self, row: e.Row, effect: e.TopicEvent) -> None:
        if effect.cause.startswith(e.COMPACTED):
            self._compacted(effect)
        if not loses_writes(effect.cause):
            return
        of = self.of(effect.topic)
        self._put_off.lost(effect.topic)
        if deletes(effect.cause):
            of.storage = 0
            of.admit(row.clock)

    def _compacted(self, effect: e.TopicEvent) -> None:
        compaction = self.broker.topic(effect.topic).compaction
        if compaction.ledger is not None:
            of = self.of(effect.topic)
            of.compacted_to = of.there(compaction.ledger.horizon)

    def begin(self, entries: Mapping[str, Sequence[TopicEntry]]) -> None:
        """The broker has these entries by topic already, which are the first messages."""
        for name, kept in entries.items():
            of, topic = self.of(name), self.broker.topic(name)
            waiting = 0
            for number, each in enumerate(kept):
                if each.position is None:
                    waiting += 1
                    self._put_off.note(name, topic.pending[:waiting], number)
                else:
                    of.store(number, each.position, each.entry.size, each.entry.broker_timestamp)
            of.written.publishes = len(kept)
            for subscription in topic.subscriptions.values():
                cursor = topic.cursors[subscription.name]
                found = OfSubscription(of.written.last_number_up_to(cursor.mark_delete))
                of.subscriptions[subscription.name] = found
                for low, high in cursor.acked.runs():
                    for first, stop in of.written.numbers(low, high):
                        found.acked.to_set(first, stop)[:] = moment(self.broker.clock)
                dispatcher = subscription.dispatcher
                counts = dispatcher.counts if isinstance(dispatcher, MultipleConsumers) else {}
                for consumer in subscription.consumers:
                    for position in consumer.pending:
                        found.sent(*position, self.broker.clock, counts.get(position, 0))
                found.settle(of.written)

    def settled(self, topic: str) -> int:
        """The number of the first publish of a topic that is not answered yet, or of which the topic still has the message."""
        of = self.known(topic)
        kept = of.first_kept
        return min([*self._put_off.publishes(topic), len(of.messages) if kept is None else kept])

    def pass_over(self) -> None:
        """What clients saw so far is of no interest."""
        for name in self._touched:
            self.topics[name].begin_piece()
        self.end_piece()

    def settle(self) -> None:
        """Bring all columns up to date."""
        for of in self.topics.values():
            for subscription in of.subscriptions.values():
                subscription.settle(of.written)

    def end(self) -> None:
        """The log ends."""
        self.settle()
        self.sample(everything=True)
        for of in self.topics.values():
            of.admit(self.broker.clock)

    def sample(self, *, everything: bool = False) -> None:
        """A piece of the log is folded: note storage, backlog and the age of the oldest unacked message of each topic that
        something happened on, or of all."""
        clock = self.broker.clock
        for name in self.topics if everything else self._touched:
            of = self.topics[name]
            of.begin_piece()
            try:
                topic = self.broker.topic(name)
            except KeyError:
                topic = None
            else:
                of.note_storage(clock)
            for subscription, found in of.subscriptions.items():
                cursor = None if topic is None else topic.cursors.get(subscription)
                if topic is None or cursor is None:  # it is gone, and so is its backlog
                    found.backlogs.note(clock, 0)
                    found.oldest.note(clock, 0)
                    continue
                backlog = cursor.backlog(topic.ledger, precise=True)
                found.note_backlog(backlog)
                found.backlogs.note(clock, backlog)
                oldest = 0
                if backlog > 0:
                    number = of.written.first_number_after(of.there(cursor.mark_delete))
                    if number is not None:
                        oldest = max(clock - of.messages.publish_time[number], 0)
                found.oldest.note(clock, oldest)
        self.end_piece()

    def end_piece(self) -> None:
        """What comes is of the next piece."""
        self._touched.clear()
        self.admin_answers.clear()


_FEW = 8
"""So few receipts are noted one by one: NumPy takes some microseconds to begin."""

_QUOTA = "backlog quota"
_BLOCKED = ("ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException")
_SEEN = frozenset(
    {
        e.Success,
        e.AckResponse,
        e.CloseConsumer,
        e.CloseConnection,
        e.ActiveConsumerChange,
        e.ReachedEndOfTopic,
        e.LookupResponse,
        e.PartitionedMetadataResponse,
        e.GetSchemaResponse,
        e.GetOrCreateSchemaResponse,
    }
)
"""What else clients see of a topic."""

_OTHERS = {
    e.SendError: "_send_error",
    e.Error: "_error",
    e.CloseProducer: "_close_producer",
    e.ProducerSuccess: "_producer_success",
    e.Expired: "_moved",
    e.Evicted: "_moved",
    e.CursorMoved: "_moved",
    e.CompactedEntry: "_compacted_entry",
    e.LedgerDeleted: "_ledger_deleted",
    e.SubscriptionEvent: "_subscription_event",
    e.TopicEvent: "_topic_event",
    e.Quarantined: "_quarantined",
}
"""The method for each other kind that the observer needs."""

OBSERVED = frozenset({e.Message, e.SendReceipt, e.AdminResponse, *_OTHERS, *_SEEN})
"""The kinds of effects that an observer looks at."""


class SharedEntries:
    """The entries of one run: the messages that all runs share, at the positions that they have in this one."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def reader(self, partition: int) -> SharedEntries:
        """The entries of the only partition."""
        return self

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[Entry]:
        """Entries `first`..`last`, both included, in order. Raises `EntryNotFound`."""
        of = self._observer.of(topic)
        if (copies := of.compacted.get(ledger_id)) is not None:
            return copies[first : last + 1]
        if first == last:
            one = of.written.at(Position(ledger_id, first))
            if one is not None:
                return [of.entry(one.number)]
        numbers = of.written.numbers(Position(ledger_id, first - 1), Position(ledger_id, last))
        found = [of.entry(number) for start, stop in numbers for number in range(start, stop)]
        if len(found) != last + 1 - first:
            raise EntryNotFound(f"{topic} {ledger_id}:{first}..{last}: there are {len(found)} of them")
        return found
