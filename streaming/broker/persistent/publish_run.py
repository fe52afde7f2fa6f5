"""Runs of plain publishes: what `publishing` does for each, done with a few additions for each (design: two speeds, one
truth).

`publishing` is the definition. A run takes a record itself only if nothing special can come of it: its topic stores
messages and has no consumers, limits or faults; its producer is known; no check or timer is due, no ledger gets
full, and no snapshot is due. Every other record takes the scalar step. A property test holds rows and state equal.

While a run lasts, positions, sizes and sequence ids count up in a `_Topic` and its `_Lane`s. `_write` writes them to the
topic before anything else looks at it. Rounds of checks that would only take a snapshot of sequence ids there pass a topic of the run
by: the run takes the snapshot, with the topic's next record.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple, Protocol

from schemas.commands import MessageMetadata
from schemas.entries import Entry
from streaming.broker.context import Context
from streaming.broker.ledger.managed_ledger import MEGABYTE
from streaming.broker.persistent.deduplication_snapshots import timed_snapshot
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.rate import ProducerCounters

_LOWEST = -(1 << 63) - 1
_NEVER = 1 << 62
Connected = tuple[str, int, str]
"""A producer as a SEND names it: its connection, its number there, and its name."""
_Key = tuple[str | None, str | Connected]


class Publishes(NamedTuple):
    """Publishes with nothing but a key and a publish time, as columns, by rising offset: all in the short form, or all SENDs.

    `clocks` (ms): the partition's clock at each record. `publish_times` (ms) are those of the metadata, `sizes` the stored
    sizes in bytes. `largest`: the bytes of the largest entry and of the largest payload. `senders`: in the short form, the
    producers. `metadata`: that of SENDs.
    """

    offsets: list[int]
    clocks: list[int]
    topics: list[str | None]
    producers: list[str]
    sequence_ids: list[int]
    publish_times: list[int]
    keys: list[str | None]
    sizes: list[int]
    largest: tuple[int, int]
    senders: Sequence[str | Connected]
    metadata: Sequence[MessageMetadata] | None = None

    def entry(self, row: int) -> Entry:
        """The entry of a publish."""
        if self.metadata is not None:
            return Entry(self.metadata[row], self.sizes[row])
        metadata = MessageMetadata(
            self.producers[row], self.sequence_ids[row], self.publish_times[row], partition_key=self.keys[row]
        )
        return Entry(metadata, self.sizes[row])


class Receipts(NamedTuple):
    """Receipts of a run: rows of its `Publishes`, and the positions of their entries. Ledger −1: a duplicate."""

    rows: list[int]
    ledgers: list[int]
    entries: list[int]


class Topics(Protocol):
    """The persistent topics, as a run needs them: see `streaming.broker.topics.PersistentTopics`."""

    def touch_without_effects(self, name: str | None) -> PersistentTopic | None:
        """The topic of that name, as something happens on it now; None if that can have effects."""
        ...

    def next_due(self) -> int:
        """When the next check or timer is due (ms)."""
        ...

    def put_rounds_off(self, topic: PersistentTopic) -> int:
        """Leave the topic out of the rounds of checks. Returns when its next snapshot is due (ms), −1: it can't be left out."""
        ...

    def make_up_rounds(self, topic: PersistentTopic, happened: int) -> None:
        """Do what rounds that were put off would have done up to now. `happened`: when something happened there last (ms)."""
        ...


class _Topic:
    """A topic in a run: where its next entry goes, and the rows that it took.

    `stop`: the first entry that needs the scalar step, for a ledger or snapshot may be due. Times (ms): `until` is the first of
    when an interval of its rates ends, `snapshot`, and `end`, which is `plain_until`. `snapshot`: see `Topics.put_rounds_off`.
    `counted`: how many of the rows its counts have, and their `size` (bytes). `last`: the last row that touched the topic, if it is
    after `rows`.
    """

    __slots__ = (
        "counted", "duplicates", "enabled", "end", "entry", "lanes", "last", "ledger", "rows", "size", "snapshot", "stop", "topic", "until",
    )  # fmt: skip

    def __init__(self, topic: PersistentTopic, ctx: Context, largest: int, end: int, row: int) -> None:
        """`largest`: the size of the largest entry (bytes). `row`: the one that opens it."""
        self.topic, self.end, self.snapshot, self.last = topic, end, -1, row
        self.look_again()
        ledger, config, dedup = topic.ledger, ctx.config, topic.dedup
        self.enabled = dedup.status == "Enabled"
        self.ledger, self.entry = ledger.current, ledger.current_entries
        room = config.managedLedgerMaxSizePerLedgerMbytes * MEGABYTE - ledger.current_size
        stops = [config.managedLedgerMaxEntriesPerLedger - 1, self.entry + (room - 1) // largest]
        if self.enabled:
            stops.append(self.entry + config.brokerDeduplicationEntriesInterval - 1 - dedup.snapshot_counter)
        self.stop = min(stops)
        self.counted = self.size = self.duplicates = 0
        self.rows: list[int] = []
        self.lanes: list[_Lane] = []

    def look_again(self) -> None:
        """Find out `until`."""
        self.until = min(self.end, self.topic.rates_until)
        if 0 <= self.snapshot < self.until:
            self.until = self.snapshot


class _Lane:
    """A producer of a topic in a run. `mark`: its highest sequence id, `former` the one that the topic knows. `messages`, `size`:
    what it published since then, with duplicates."""

    __slots__ = ("counters", "former", "key", "mark", "messages", "producer", "run", "size")

    def __init__(self, run: _Topic, key: _Key, producer: str, counters: ProducerCounters) -> None:
        self.run, self.key, self.producer, self.counters = run, key, producer, counters
        self.mark = self.former = run.topic.dedup.persisted.get(producer, _LOWEST) if run.enabled else _LOWEST
        self.messages = self.size = 0


class PublishRun:
    """A run over some rows of `Publishes`. Use it once."""

    def __init__(self, ctx: Context, topics: Topics, rows: Publishes) -> None:
        self._ctx, self._all, self._publishes = ctx, topics, rows
        self._topics: dict[str | None, _Topic] = {}
        self._opened: list[_Topic] = []  # since a check or timer was due; some are closed again
        self._ends: list[tuple[int, int, _Topic]] = []  # heap: when each ends (ms), the row that opened it
        self._lanes: dict[_Key, _Lane] = {}
        self._largest, payload = rows.largest
        self._end = _NEVER if payload <= ctx.config.maxMessageSize else -1
        self._limit = -1

    def fold(self, start: int, stop: int, step: Callable[[int], object], receipts: Receipts) -> None:
        """Fold the rows from `start` to before `stop`. `step` carries out a row that takes the scalar step. Receipts of the
        others are added to `receipts`."""
        ctx, rows, lanes = self._ctx, self._publishes, self._lanes
        add_row, add_ledger, add_entry = (column.append for column in receipts)
        limit, stepped = self._limit, start - 1
        keys = zip(islice(rows.topics, start, stop), islice(rows.senders, start, stop), strict=True)
        columns = (islice(column, start, stop) for column in (rows.sequence_ids, rows.sizes, rows.clocks))
        for row, key, id_, size, clock in zip(range(start, stop), keys, *columns, strict=True):
            lane = lanes.get(key)
            if lane is None or clock >= limit or clock >= lane.run.until:
                if row > start:
                    ctx.clock = rows.clocks[row - 1]
                lane = self._open(key, row, clock)
                limit = self._limit
            if lane is None or (entry := (run := lane.run).entry) >= run.stop:
                if row > start:
                    ctx.clock = rows.clocks[row - 1]
                self._close(key[0])
                step(row)
                limit = self._limit = min(limit, self._all.next_due())
                stepped = row
                continue
            lane.messages += 1
            lane.size += size
            add_row(row)
            if id_ <= lane.mark:
                run.duplicates += 1
                run.last = row
                add_ledger(-1)
                add_entry(-1)
                continue
            if run.enabled:
                lane.mark = id_
            add_ledger(run.ledger)
            add_entry(entry)
            run.rows.append(row)
            run.entry = entry + 1
        if stepped < stop - 1:
            ctx.offset, ctx.ordinal, ctx.clock = rows.offsets[stop - 1], 1, rows.clocks[stop - 1]
        self.close()

    def close(self) -> None:
        """Write what the topics took to their states, and forget them. Do it before something happens on other topics than a record's own."""
        for name in list(self._topics):
            self._close(name)

    def _open(self, key: _Key, row: int, clock: int) -> "_Lane | None":
        """The lane of a topic and producer. None: their next record, which is in this row, takes the scalar step."""
        if clock >= self._limit:
            opened, self._opened = self._opened, []
            while self._ends and self._ends[0][0] <= clock:
                opened.append(heappop(self._ends)[-1])
            for each in opened:
                if each is self._topics.get(each.topic.name) and (
                    clock >= each.end or not self._put_rounds_off(each)
                ):
                    self._close(each.topic.name)
            self._limit = min(self._all.next_due(), self._end)
            if clock >= self._limit:
                return None
        name, sender = key
        run = self._topics.get(name)
        if run is not None and clock >= run.until:
            self._ctx.clock = clock
            if clock >= run.end or not self._goes_on(run, row):
                self._close(name)
                run = None
        if run is None:
            self._ctx.clock = clock
            topic = self._all.touch_without_effects(name)
            if topic is None or (end := plain_until(self._ctx, topic)) <= clock:
                return None
            run = self._topics[name] = _Topic(topic, self._ctx, self._largest, end, row)
            self._opened.append(run)
            heappush(self._ends, (end, row, run))
            self._limit = min(self._limit, self._all.next_due())
        if (lane := self._lanes.get(key)) is not None:
            return lane
        topic = run.topic
        if isinstance(sender, str):
            producer = sender
        else:
            connection, producer_id, producer = sender
            if topic.producer_handles.get((connection, producer_id)) != producer:
                return None
        counters = topic.producer_counters.get(producer)
        known = topic.producers.get(producer)
        if counters is None or known is None or producer in topic.closing_producers:
            return None
        if isinstance(sender, str) and known.producer_id is not None:  # the receipts name its connection
            return None
        lane = self._lanes[key] = _Lane(run, key, producer, counters)
        run.lanes.append(lane)
        return lane

    def _close(self, name: str | None) -> None:
        """Write what a topic took to its state, and forget the topic and its lanes."""
        if (run := self._topics.pop(name, None)) is not None:
            self._write(run)
            run.topic.counters.duplicates += run.duplicates
            for lane in run.lanes:
                del self._lanes[lane.key]
            if run.snapshot >= 0:
                self._all.make_up_rounds(run.topic, self._publishes.clocks[run.last])

    def _goes_on(self, run: _Topic, row: int) -> bool:
        """An interval of a topic's rates ended, or a snapshot is due, before this row. Returns False if the topic must be opened anew."""
        ctx, topic = self._ctx, run.topic
        now = ctx.clock
        self._count(run)
        if 0 <= run.snapshot <= now:
            self._write(run)
            ctx.clock = run.snapshot
            timed_snapshot(ctx, topic)
            ctx.clock = now
            if not self._put_rounds_off(run):
                return False
        topic.update_rates(ctx)
        run.look_again()
        run.last = row
        return True

    def _put_rounds_off(self, run: _Topic) -> bool:
        """Leave a topic out of the rounds of checks, until its next snapshot, if that can be."""
        if (snapshot := self._all.put_rounds_off(run.topic)) < 0:
            return False
        run.snapshot = snapshot
        run.look_again()
        return True

    def _count(self, run: _Topic) -> None:
        """Write what a topic took to the counts of which rates are made."""
        topic, counters, rows = run.topic, run.topic.counters, run.rows
        for lane in run.lanes:
            if lane.messages:
                lane.counters.messages_in += lane.messages
                lane.counters.bytes_in += lane.size
                counters.messages_in += lane.messages
                counters.bytes_in += lane.size
                lane.messages = lane.size = 0
        if run.counted < len(rows):
            sizes = [*map(self._publishes.sizes.__getitem__, rows[run.counted :])]
            run.size += topic.ledger.entry_sizes.add_all(sizes)
            run.counted = len(rows)

    def _write(self, run: _Topic) -> None:
        """Write what a topic took to its state."""
        self._count(run)
        if not (rows := run.rows):
            return
        ctx, topic, ledger, dedup = self._ctx, run.topic, run.topic.ledger, run.topic.dedup
        ctx.entries.add_all(topic.name, run.ledger, ledger.current_entries, self._publishes.entry, rows)
        ledger.add_all(len(rows), run.size, self._publishes.clocks[rows[-1]], ctx.config)
        if run.enabled:
            dedup.snapshot_counter += len(rows)
            for lane in run.lanes:
                if lane.mark > lane.former:
                    dedup.persisted[lane.producer] = lane.former = lane.mark
        run.last = max(run.last, rows[-1])
        run.rows, run.counted, run.size = [], 0, 0


def plain_until(ctx: Context, topic: PersistentTopic) -> int:
    """Until when (ms) nothing special can come of a plain publish by a known producer, apart from rates, −1: it can."""
    config, policies = ctx.config, ctx.policies_of(topic)
    if (
        (topic.subscriptions and topic.connected)
        or topic.pending
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
