"""Publish runs: the plain publishes of a micro-batch, folded topic by topic instead of record by record.

The problem
    `publishing` defines what a publish does, one record at a time. Most publishes are plain: they have nothing but a
    key and a publish time, their producer is known, and their topic has no consumers, limits or faults. Ledger, counters
    and sequence ids of such a topic could take many of them with a few additions. But folding one topic after the other
    would be wrong: checks and timers run between two particular records, and a ledger is full at one.

The idea
    Plain publishes on one topic do not affect any other topic. So a run goes from one *decision* to the next, in the
    order of the records. A decision is a row from which on a topic may no longer take its rows without a look: its
    first row, the row where its ledger may be full or too old, the first row of an unknown sender. Between two of its
    decisions nothing reads a topic, so it takes the rows in between together, at the later one.

The data
    `Publishes`      the plain publishes as columns, by rising offset
    `Run`            a stretch of them without other records in between, with the rows of each topic (`RowsOfTopic`)
    `_Topic`         how far a topic is: rows before number `at` are done, rows before `to` may be taken
    `OpenTopic`          what a topic needs while it takes rows, and what it took
    `ProducerLane`          a producer of an open topic, and its highest sequence id
    `PublishRun`     two heaps: the rows of the decisions to come, and the times at which open topics end

Invariants
    * Rows and state are those of the scalar step, for any log and any cuts into micro-batches
      (``tests/broker/test_publish_run.py``).
    * Whatever reads a topic's state closes the topic first: `_close` before a record takes the scalar step there,
      `close` before something happens on other topics than the record's own.
    * An open topic takes no row at or after `OpenTopic.end`, and no entry at or after `OpenTopic.stop`.

In order (`PublishRun.fold`)
    1. `_next` finds the next decision. If a check or timer is due before it, `_pass_by` lets the rounds of checks pass
       the open topics by, and closes those where it cannot. See `Topics.postpone_rounds`.
    2. `_takes` lets the topic take what is outstanding, opens it if it qualifies, and computes how far it may go.
    3. If the topic may not take this row, it is closed and the record takes the scalar step. Its next row is a decision.

    Twelve publishes on topics A and B by one producer::

        row            0  1  2  3  4  5  6  7  8  9 10 11
        topic          A  B  A  A  B  A  A  A  A  A  A  A
        sequence id    0  0  1  2  1  2  3  4  5  6  7  8

    Rows 0 and 1 take the scalar step: the topics do not exist. At row 2, A opens and may take all of its rows. At row 4,
    B does. There are no more decisions. At the end, A takes rows 2, 3 and 5 to 11 together, and B takes row 4. With
    deduplication, row 5 repeats sequence id 2, so A judges its rows one by one. Row 5 gets a receipt without an entry.

What it costs
    A decision costs a few operations and a heap of the topics. Rows of one sender with rising, new sequence ids are
    taken by slices and sums; others cost an iteration of a Python loop (`_judge`). `Entry` objects are made only if
    something reads them.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import NamedTuple, Protocol

from schemas.commands import MessageMetadata
from schemas.entries import Entry
from streaming.broker.context import Context
from streaming.broker.ledger.managed_ledger import MEGABYTE
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent.publish import deduplication_snapshots
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.rates.rate import ProducerCounters

_LOWEST = -(1 << 63) - 1
_WINDOW = 16
"""A topic of several senders takes at most so many rows at first, and twice as many each time that it goes on: it must know all their
senders, and looks at each row for that, perhaps in vain."""
Connected = tuple[str, int, str]
"""A producer as a SEND names it: its connection, its number there, and its name."""


class Largest(NamedTuple):
    """The bytes of the largest entry and of the largest payload, and the most messages of an entry."""

    entry: int
    payload: int
    messages: int = 1


class Publishes(NamedTuple):
    """Publishes as columns, by rising offset: all in the short form, or all SENDs. Those of publish runs have nothing but a key and a publish
    time, and one message.

    `clocks` (ms): the partition's clock at each record. `publish_times` (ms) are those of the metadata, `sizes` the stored
    sizes in bytes. `senders`: in the short form, the producers. `marks`: the highest sequence id of each. `messages`: how many each has.
    `metadata`: that of SENDs. `payloads`: None, where entries need not have them (`Entries.recent_payloads`).
    """

    offsets: list[int]
    clocks: list[int]
    topics: list[str | None]
    producers: list[str]
    sequence_ids: list[int]
    publish_times: list[int]
    keys: list[str | None]
    sizes: list[int]
    largest: Largest
    senders: Sequence[str | Connected]
    marks: list[int]
    messages: list[int]
    metadata: Sequence[MessageMetadata] | None = None
    payloads: Sequence[bytes] | None = None

    def entry(self, row: int) -> Entry:
        """The entry of a publish."""
        payload = None if self.payloads is None else self.payloads[row]
        if self.metadata is not None:
            return Entry(self.metadata[row], self.sizes[row], None, payload)
        metadata = MessageMetadata(
            self.producers[row], self.sequence_ids[row], self.publish_times[row], partition_key=self.keys[row]
        )
        return Entry(metadata, self.sizes[row], None, payload)


class RowsOfTopic(NamedTuple):
    """The rows of a run on one topic, and their columns. `rise`: all are of one sender, with rising sequence ids. `senders`: a number
    for the sender of each."""

    rise: bool
    rows: list[int]
    clocks: list[int]
    sequence_ids: list[int]
    sizes: list[int]
    senders: list[int]


class Run(NamedTuple):
    """The rows of `Publishes` from `start` to before `stop`, by topic."""

    start: int
    stop: int
    topics: list[RowsOfTopic]


class Receipts(NamedTuple):
    """Receipts of a run: rows of its `Publishes`, in any order, and the positions of their entries. Ledger −1: a duplicate."""

    rows: list[int]
    ledgers: list[int]
    entries: list[int]

    def add(self, rows: list[int], ledger: int, entries: Sequence[int]) -> None:
        """Add receipts for entries of a ledger."""
        self.rows.extend(rows)
        self.ledgers.extend(repeat(ledger, len(rows)))
        self.entries.extend(entries)


class TopicsOfRun(Protocol):
    """The persistent topics, as a run needs them: see `streaming.broker.topics.PersistentTopics`."""

    def touch_without_effects(self, name: str | None) -> PersistentTopic | None:
        """The topic of that name, as something happens on it now; None if that can have effects."""

    def next_due(self) -> int:
        """When the next check or timer is due (ms)."""

    def postpone_rounds(self, topic: PersistentTopic) -> int:
        """Leave the topic out of the rounds of checks. Returns when its next snapshot is due (ms), −1: it can't be left out."""

    def next_snapshot(self, topic: PersistentTopic) -> int:
        """When the next snapshot is due (ms) of a topic that is left out of the rounds."""

    def next_purge(self, topic: PersistentTopic) -> int:
        """The round in which the first producer of the topic leaves or is forgotten if it stays inactive (ms)."""

    def make_up_rounds(self, topic: PersistentTopic, happened: int) -> None:
        """Do what rounds that were put off would have done up to now. `happened`: when something happened there last (ms)."""


class ProducerLane:
    """A producer of a topic in a run. `mark`: its highest sequence id, `former` the one that the topic knows."""

    __slots__ = ("counters", "former", "mark", "producer")

    def __init__(self, producer: str, counters: ProducerCounters, mark: int) -> None:
        self.producer, self.counters = producer, counters
        self.mark = self.former = mark

    def count(self, messages: int, size: int, last: int) -> None:
        """Count what was published up to `last` (ms), with duplicates. `size` in bytes."""
        counters = self.counters
        counters.messages_in += messages
        counters.bytes_in += size
        counters.last = last


class OpenTopic:
    """A topic that takes rows.

    What it is:

    * `topic`: the persistent topic.
    * `enabled`: whether deduplication is enabled.
    * `ledger`: the id of its current ledger.
    * `lanes`: its producers, by the numbers of the senders.

    How far it may go:

    * `stop`: the entry id that needs the scalar step, because the ledger may be full or a snapshot due.
    * `end`: the time (ms) from which it takes no rows: `plain_until`, or a round in which a producer may leave.
    * `snapshot`: when its next snapshot is due (ms); −1: it is not left out of the rounds of checks.
    * `until`: when `_goes_on` is next needed (ms): an interval of the topic's rates ends, or a snapshot is due.
    * `window`: for how many rows it looks for new senders next time.

    What it took:

    * `first`: the entry id of the first row in `taken`.
    * `taken`: the rows that became entries.
    * `seen`: how many of these came before the last snapshot.
    * `written`: how many of these are in the topic's ledger and sequence ids. Counters have all of them.
    * `size`: the bytes of the entries that are not written.
    * `duplicates`: the rows that became no entries.
    """

    __slots__ = (
        "duplicates", "enabled", "end", "first", "lanes", "ledger", "seen", "size", "snapshot", "stop", "taken", "topic", "until", "window", "written",
    )  # fmt: skip

    def __init__(self, topic: PersistentTopic, ctx: Context, largest: int, end: int) -> None:
        """`largest`: the size of the largest entry (bytes)."""
        # The rates of a subscription's consumers may set timers, which must be known in time.
        self.topic, self.end = topic, min(end, topic.rates_until) if topic.subscriptions else end
        self.snapshot = -1
        self.look_again()
        ledger, config, dedup = topic.ledger, ctx.config, topic.dedup
        self.enabled = dedup.status == "Enabled"
        self.ledger, self.first = ledger.current, ledger.current_entries
        room = config.managedLedgerMaxSizePerLedgerMbytes * MEGABYTE - ledger.current_size
        stops = [config.managedLedgerMaxEntriesPerLedger - 1, self.first + (room - 1) // largest]
        if self.enabled:
            stops.append(self.first + config.brokerDeduplicationEntriesInterval - 1 - dedup.snapshot_counter)
        self.stop = min(stops)
        self.taken: list[int] = []
        self.duplicates: list[int] = []
        self.written = self.size = self.seen = 0
        self.lanes: dict[int, ProducerLane] = {}
        self.window = _WINDOW

    def add_lane(self, number: int, sender: str | Connected) -> ProducerLane | None:
        """The lane of a sender, which has a number. None: its publishes take the scalar step."""
        topic = self.topic
        if isinstance(sender, str):
            producer = sender
        else:
            connection, producer_id, producer = sender
            if topic.producer_handles.get(connection, producer_id) != producer:
                return None
        counters = topic.producer_counters.get(producer)
        known = topic.producers.get(producer)
        if counters is None or known is None or producer in topic.closing_producers:
            return None
        if isinstance(sender, str) and known.producer_id is not None:  # the receipts name its connection
            return None
        mark = topic.dedup.persisted.get(producer, _LOWEST) if self.enabled else _LOWEST
        found = self.lanes[number] = ProducerLane(producer, counters, mark)
        return found

    def write(self, ctx: Context, publishes: Publishes) -> None:
        """Write the sequence ids and the size of what it took to its state."""
        if new := len(self.taken) - self.written:
            topic = self.topic
            topic.ledger.add_all(new, self.size, publishes.clocks[self.taken[-1]], ctx.config)
            self.written, self.size = len(self.taken), 0
            if self.enabled:
                topic.dedup.snapshot_counter += new
                for lane in self.lanes.values():
                    if lane.mark > lane.former:
                        topic.dedup.persisted[lane.producer] = lane.former = lane.mark

    def hand_over(self, ctx: Context, publishes: Publishes, receipts: Receipts) -> None:
        """Give away the entries that it took, and their receipts."""
        if taken := self.taken:
            ctx.entries.add_all(self.topic.name, self.ledger, self.first, publishes.entry, taken)
            receipts.add(taken, self.ledger, range(self.first, self.first + len(taken)))

    def look_again(self) -> None:
        """Find out `until`."""
        until = self.topic.rates_until
        self.until = until if self.snapshot < 0 else min(until, self.snapshot)


class _Topic:
    """A topic's rows: those before number `at` are done, those before `to` may be taken. `open`: None while it takes none."""

    __slots__ = ("at", "open", "own", "to")

    def __init__(self, own: RowsOfTopic) -> None:
        self.own, self.at, self.to = own, 0, 0
        self.open: OpenTopic | None = None


class PublishRun:
    """A run over some rows of `Publishes`. Use it once."""

    def __init__(
        self, ctx: Context, topics: TopicsOfRun, rows: Publishes, run: Run, receipts: Receipts
    ) -> None:
        """`receipts`: where those of the rows that the run takes are added."""
        self._ctx, self._all, self._publishes, self._run, self._receipts = ctx, topics, rows, run, receipts
        self._topics = {rows.topics[own.rows[0]]: _Topic(own) for own in run.topics}
        # Heap: rows at which it must be decided how their topics go on. Some no longer need it.
        self._decisions = [own.rows[0] for own in run.topics]
        heapify(self._decisions)
        self._taking: list[_Topic] = []  # every open topic; some are closed again
        self._opened: list[_Topic] = []  # those of them that were opened since a check or timer was due
        self._ends: list[tuple[int, int]] = []  # heap: when a topic ends (ms), the row that opened it
        self._row = run.start  # what came before is done, but for what topics may still take
        self._due = self._next_due()

    def fold(self, step: Callable[[int], object]) -> None:
        """Fold the rows. `step` carries out a row that takes the scalar step."""
        ctx, rows, (start, stop, _) = self._ctx, self._publishes, self._run
        clocks, stepped, done = rows.clocks, start - 1, start
        while (row := self._next(done)) < stop:
            topic = self._of(row)
            self._row = row
            if clocks[row] >= self._due or not self._takes(topic, row):
                if row > start:
                    ctx.clock = clocks[row - 1]
                self._close(topic)
                step(row)
                self._due = min(self._due, self._next_due())
                stepped = row
                topic.at = topic.to = topic.at + 1
                self._decide(topic)
            done = row + 1
        self._row = stop
        if stepped < stop - 1:
            ctx.offset, ctx.ordinal, ctx.clock = rows.offsets[stop - 1], 1, clocks[stop - 1]
        self.close()

    def close(self) -> None:
        """Write what the topics took to their states. Do it before something happens on other topics than a record's own."""
        taking, self._taking = self._taking, []
        for topic in taking:
            self._close(topic)

    # -- decisions ------------------------------------------------------------------------------------------------

    def _next_due(self) -> int:
        """When the next check or timer is due, or a topic ends (ms)."""
        due = self._all.next_due()
        return min(due, self._ends[0][0]) if self._ends else due

    def _of(self, row: int) -> _Topic:
        return self._topics[self._publishes.topics[row]]

    def _decide(self, topic: _Topic) -> None:
        """Let it be decided how a topic goes on, once the run is where it may not take rows any more."""
        if topic.to < len(topic.own.rows):
            heappush(self._decisions, topic.own.rows[topic.to])

    def _next(self, done: int) -> int:
        """The next row at which something must be decided. Rows before `done` are done."""
        clocks, (start, stop, _) = self._publishes.clocks, self._run
        while True:
            row = stop
            while self._decisions:
                found = self._decisions[0]
                topic = self._of(found)
                if topic.to < len(topic.own.rows) and topic.own.rows[topic.to] == found:
                    row = found
                    break
                heappop(self._decisions)
            last = min(row, stop - 1)
            if last < done or clocks[last] < self._due:
                return row
            # A check or timer is due before that row, or with it.
            row = self._row = bisect_left(clocks, self._due, done, last)
            if row > start:
                self._ctx.clock = clocks[row - 1]
            self._pass_by(clocks[row])
            self._due = self._next_due()
            if clocks[row] >= self._due:
                return row

    def _pass_by(self, clock: int) -> None:
        """Let rounds up to `clock` pass the open topics by, and close those where that can't be."""
        opened, self._opened = self._opened, []
        while self._ends and self._ends[0][0] <= clock:
            opened.append(self._of(heappop(self._ends)[1]))
        for topic in opened:
            found = topic.open
            if found is not None and (
                clock >= found.end or (found.snapshot < 0 and not self._postpone_rounds(found))
            ):
                self._close(topic)

    def _takes(self, topic: _Topic, row: int) -> bool:
        """Decide from this row on, which is the topic's next, how many a topic may take. False: it takes the scalar step."""
        ctx, rows = self._ctx, self._publishes
        clock = ctx.clock = rows.clocks[row]
        self._take(topic, topic.to)
        if (found := topic.open) is None:
            if rows.largest.payload > ctx.config.maxMessageSize:
                return False
            persistent = self._all.touch_without_effects(rows.topics[row])
            if persistent is None or (end := plain_until(ctx, persistent)) <= clock:
                return False
            end = min(end, self._all.next_purge(persistent))
            found = topic.open = OpenTopic(persistent, ctx, rows.largest.entry, end)
            self._taking.append(topic)
            self._opened.append(topic)
            heappush(self._ends, (found.end, row))
            self._due = min(self._due, self._next_due())
        topic.to = self._extent(topic, found)
        self._decide(topic)
        return topic.to > topic.at

    def _extent(self, topic: _Topic, found: OpenTopic) -> int:
        """The number of a topic's first row that it perhaps may not take, from the next one on."""
        own, at = topic.own, topic.at
        to = min(len(own.rows), at + max(0, found.stop - found.first - len(found.taken)))
        if to > at and own.clocks[to - 1] >= found.end:
            to = bisect_left(own.clocks, found.end, at, to)
        senders = own.senders[at : at + 1]
        if not own.rise:
            to = min(to, at + found.window)
            found.window *= 2
            senders = own.senders[at:to]
        for number, sender in enumerate(senders, at):
            if sender not in found.lanes and not self._add_lane(found, own, number):
                return number
        return to

    def _add_lane(self, found: OpenTopic, own: RowsOfTopic, number: int) -> bool:
        """The lane of the sender of a row. False: its publishes take the scalar step."""
        return found.add_lane(own.senders[number], self._publishes.senders[own.rows[number]]) is not None

    def _postpone_rounds(self, found: OpenTopic) -> bool:
        """Leave a topic out of the rounds of checks, until its next snapshot, if that can be."""
        if (snapshot := self._all.postpone_rounds(found.topic)) < 0:
            return False
        found.snapshot = snapshot
        found.look_again()
        return True

    # -- rows -----------------------------------------------------------------------------------------------------

    def _take(self, topic: _Topic, to: int) -> None:
        """Take a topic's rows up to before number `to`."""
        found, own, at = topic.open, topic.own, topic.at
        if found is None or at >= to:
            return
        ctx, clocks, ids = self._ctx, own.clocks, own.sequence_ids
        lane, now, last = found.lanes[own.senders[at]], ctx.clock, clocks[to - 1]
        all_new = own.rise and ids[at] > lane.mark
        counters, entry_sizes = found.topic.counters, found.topic.ledger.entry_sizes
        while at < to:
            if (clock := clocks[at]) >= found.until:
                ctx.clock = clock
                self._goes_on(found, last if all_new else clock)
            stop = to if last < found.until else bisect_left(clocks, found.until, at, to)
            sizes = own.sizes[at:stop]
            if all_new:
                total = entry_sizes.add_all(sizes)
                lane.count(stop - at, total, clocks[stop - 1])
                if found.enabled:
                    lane.mark = ids[stop - 1]
                found.taken += own.rows[at:stop]
                found.size += total
            else:
                total = sum(sizes)
                if new := self._judge(found, own, at, stop):
                    found.size += entry_sizes.add_all(new)
            counters.messages_in += stop - at
            counters.bytes_in += total
            at = stop
        topic.at, ctx.clock = at, now

    def _judge(self, found: OpenTopic, own: RowsOfTopic, at: int, to: int) -> list[int]:
        """Judge rows from number `at` to before `to` one by one. Returns the sizes of those that become entries."""
        new = []
        columns = (
            column[at:to] for column in (own.rows, own.senders, own.sequence_ids, own.sizes, own.clocks)
        )
        for row, sender, id_, size, clock in zip(*columns, strict=True):
            lane = found.lanes[sender]
            lane.count(1, size, clock)
            if id_ <= lane.mark:
                found.duplicates.append(row)
                continue
            if found.enabled:
                lane.mark = id_
            found.taken.append(row)
            new.append(size)
        return new

    def _goes_on(self, found: OpenTopic, last: int) -> None:
        """An interval of a topic's rates ended, or a snapshot is due, before the row at hand. `last`: see `_take_snapshot`."""
        ctx, topic = self._ctx, found.topic
        if 0 <= found.snapshot <= ctx.clock:
            self._take_snapshot(found, last)
        if ctx.clock >= topic.rates_until:
            topic.update_rates(ctx)
        found.look_again()

    def _take_snapshot(self, found: OpenTopic, last: int) -> None:
        """Take the snapshot that is due, unless a later one will surely replace it: entries are written from now on, up to `last` (ms)."""
        ctx, topic, due, is_new = self._ctx, found.topic, found.snapshot, len(found.taken) > found.seen
        cursor, before = topic.cursors[DEDUP_CURSOR], topic.dedup.last_snapshot
        topic.dedup.last_snapshot = due
        found.seen, found.snapshot = len(found.taken), self._all.next_snapshot(topic)
        # The cursor's first write, and the one with which it enters a ledger, leave more behind than its position.
        is_first = not cursor.tokens_at or cursor.mark_delete.ledger != found.ledger
        if is_new and last >= found.snapshot and not is_first:
            return
        found.write(self._ctx, self._publishes)
        now, ctx.clock, topic.dedup.last_snapshot = ctx.clock, due, before
        deduplication_snapshots.check(ctx, topic)
        ctx.clock = now
        found.snapshot = self._all.next_snapshot(topic)

    def _close(self, topic: _Topic) -> None:
        """Write what a topic took up to the row at hand to its state, and leave the rows from there on to a decision."""
        if (found := topic.open) is None:
            return
        own, persistent, receipts = topic.own, found.topic, self._receipts
        self._take(topic, bisect_left(own.rows, self._row, topic.at, topic.to))
        found.write(self._ctx, self._publishes)
        found.hand_over(self._ctx, self._publishes, receipts)
        if duplicates := found.duplicates:
            receipts.add(duplicates, -1, [-1] * len(duplicates))
            persistent.counters.duplicates += len(duplicates)
        if found.snapshot >= 0:
            self._all.make_up_rounds(persistent, own.clocks[topic.at - 1])
        topic.open, topic.to = None, topic.at
        self._decide(topic)


def plain_until(ctx: Context, topic: PersistentTopic) -> int:
    """Until when (ms) nothing special can come of a plain publish by a known producer, apart from rates and what consumers get,
    −1: it can."""
    config, policies = ctx.config, ctx.policies_of(topic)
    if (
        topic.pending
        or topic.transactions is not None
        or topic.ledger.closed
        or topic.is_shadow
        or topic.fail_writes
        or topic.delay_writes
        or topic.dedup.ahead
        or policies.encryptionRequired
        or policies.publish_throttled
        or 0 < policies.maxMessageSize < config.maxMessageSize
        or config.brokerEntryMetadataInterceptors
        or config.maxUnackedMessagesPerBroker > 0
    ):
        return -1
    return int(topic.ledger.created + config.managedLedgerMaxLedgerRolloverTimeMinutes * 60_000)
