"""Runs of plain publishes: what `publishing` does for each, done with a few additions for each (design: two speeds, one
truth).

`publishing` is the definition. A run takes a record itself only if nothing special can come of it: its topic stores
messages and has no consumers, limits or faults; its producer is known; no check or timer is due, no ledger gets
full, and no snapshot is due. Every other record takes the scalar step. A property test holds rows and state equal.

While a run lasts, positions, sizes and sequence ids count up in a `_Topic` and its `_Lane`s. `_write` writes them to the
topic before anything else looks at it.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from schemas.commands import MessageMetadata
from schemas.entries import Entry
from streaming.broker.context import Context
from streaming.broker.ledger.managed_ledger import MEGABYTE
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


class _Topic:
    """A topic in a run: where its next entry goes, and the rows that it took.

    `stop`: the first entry that needs the scalar step, for a ledger or snapshot may be due. `until`: see `plain_until`.
    """

    __slots__ = ("duplicates", "enabled", "entry", "lanes", "ledger", "rows", "stop", "topic", "until")

    def __init__(self, topic: PersistentTopic, ctx: Context, largest: int, until: int) -> None:
        """`largest`: the size of the largest entry (bytes)."""
        self.until = until
        ledger, config, dedup = topic.ledger, ctx.config, topic.dedup
        self.topic = topic
        self.enabled = dedup.status == "Enabled"
        self.ledger, self.entry = ledger.current, ledger.current_entries
        room = config.managedLedgerMaxSizePerLedgerMbytes * MEGABYTE - ledger.current_size
        stops = [config.managedLedgerMaxEntriesPerLedger - 1, self.entry + (room - 1) // largest]
        if self.enabled:
            stops.append(self.entry + config.brokerDeduplicationEntriesInterval - 1 - dedup.snapshot_counter)
        self.stop = min(stops)
        self.duplicates = 0
        self.rows: list[int] = []
        self.lanes: list[_Lane] = []


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

    def __init__(
        self,
        ctx: Context,
        touch: Callable[[str | None], PersistentTopic | None],
        next_due: Callable[[], int],
        rows: Publishes,
    ) -> None:
        """`touch`: the topic of that name, as something happens on it now; None if that can have effects. `next_due`: when
        the next check or timer is due (ms)."""
        self._ctx, self._touch, self._next_due, self._publishes = ctx, touch, next_due, rows
        self._topics: dict[str | None, _Topic] = {}
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
                lane = self._open(key, clock)
                limit = self._limit
            if lane is None or (entry := (run := lane.run).entry) >= run.stop:
                self._close(key[0])
                if row > start:
                    ctx.clock = rows.clocks[row - 1]
                step(row)
                limit = self._limit = min(limit, self._next_due())
                stepped = row
                continue
            lane.messages += 1
            lane.size += size
            add_row(row)
            if id_ <= lane.mark:
                run.duplicates += 1
                add_ledger(-1)
                add_entry(-1)
                continue
            if run.enabled:
                lane.mark = id_
            add_ledger(run.ledger)
            add_entry(entry)
            run.rows.append(row)
            run.entry = entry + 1
        for name in list(self._topics):
            self._close(name)
        if stepped < stop - 1:
            ctx.offset, ctx.ordinal, ctx.clock = rows.offsets[stop - 1], 1, rows.clocks[stop - 1]

    def _open(self, key: _Key, clock: int) -> "_Lane | None":
        """The lane of a topic and producer. None: their next record takes the scalar step."""
        if clock >= self._limit:
            for name in list(self._topics):
                self._close(name)
            self._limit = min(self._next_due(), self._end)
            if clock >= self._limit:
                return None
        name, sender = key
        run = self._topics.get(name)
        if run is None or clock >= run.until:
            if run is not None:
                self._write(run)
            self._ctx.clock = clock
            topic = self._touch(name)
            if topic is None or (until := plain_until(self._ctx, topic)) <= clock:
                return None
            if run is None:
                run = self._topics[name] = _Topic(topic, self._ctx, self._largest, until)
                self._limit = min(self._limit, self._next_due())
            else:
                run.until = until
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
        if counters is None or producer not in topic.producers or producer in topic.closing_producers:
            return None
        lane = self._lanes[key] = _Lane(run, key, producer, counters)
        run.lanes.append(lane)
        return lane

    def _close(self, name: str | None) -> None:
        """Write what a topic took to its state, and forget the topic and its lanes."""
        if (run := self._topics.pop(name, None)) is not None:
            self._write(run)
            for lane in run.lanes:
                del self._lanes[lane.key]

    def _write(self, run: _Topic) -> None:
        """Write what a topic took to its state."""
        topic, ledger, dedup = run.topic, run.topic.ledger, run.topic.dedup
        for lane in run.lanes:
            if lane.messages:
                lane.counters.messages_in += lane.messages
                lane.counters.bytes_in += lane.size
                topic.counters.messages_in += lane.messages
                topic.counters.bytes_in += lane.size
                lane.messages = lane.size = 0
                if lane.mark > lane.former:
                    dedup.persisted[lane.producer] = lane.former = lane.mark
        topic.counters.duplicates += run.duplicates
        run.duplicates = 0
        if not (rows := run.rows):
            return
        run.rows = []
        ctx, publishes = self._ctx, self._publishes
        sizes = [*map(publishes.sizes.__getitem__, rows)]
        ctx.entries.add_all(topic.name, run.ledger, ledger.current_entries, publishes.entry, rows)
        if run.enabled:
            dedup.snapshot_counter += len(rows)
        ledger.add_all(sizes, publishes.clocks[rows[-1]], ctx.config)


def plain_until(ctx: Context, topic: PersistentTopic) -> int:
    """Until when (ms) nothing special can come of a plain publish by a known producer, −1: it can."""
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
    oldest = topic.ledger.created + config.managedLedgerMaxLedgerRolloverTimeMinutes * 60_000
    return min(topic.rates_until, int(oldest))
