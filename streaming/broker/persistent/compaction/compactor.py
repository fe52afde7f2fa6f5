"""Compaction of a topic: its last message of each key goes to a ledger of its own (mirrors `TwoPhaseCompactor`; docs/rules/compaction.md
§1–§4).

Pulsar's compactor is a client of the broker, and runs in the background. Here, a compaction is done with the command or the check that asks
for it. It goes through what is there twice: first for the last message of each key, then for these messages. So it has ids in memory, but no more
than `_AT_ONCE` payloads.
"""

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial

from schemas.commands import Admin, MessageMetadata
from schemas.effect_fields import CompactedEntryFields
from schemas.effects import COMPACTED, COMPACTED_LEDGER, CompactedEntry, CursorMoved, LedgerClosed, TopicEvent
from schemas.entries import Entry
from streaming.broker.admin_table import AdminAnswer, Names
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import NEVER, Context
from streaming.broker.dispatch.sending import is_aborted, is_server_only
from streaming.broker.dispatch.types import new_dispatcher
from streaming.broker.errors import AdminError, BrokerError
from streaming.broker.ledger.compacted_ledger import CompactedLedger
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.names import COMPACTION_CURSOR, partition_index
from streaming.broker.persistent import subscribing
from streaming.broker.persistent.cleanup.trimming import delete_compacted, free_ledgers
from streaming.broker.persistent.compaction import batches
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic, Reason
from streaming.broker.position import EARLIEST, Position
from streaming.broker.producer.message_size import HEADER, broker_entry_metadata_size, metadata_size, varint

_MessageId = tuple[Position, int]
"""A message by its entry and its place in the batch; −1: it is in no batch."""

_AT_ONCE = 64
"""So many entries are read at once."""

_MESSAGES, _MESSAGES_PER_BYTE, _REMOVED_PER_MESSAGE = 100_000, 8, 16
_BYTES, _BYTES_PER_BYTE = 64 << 20, 1000
"""How many messages batches may have in all, and how many bytes uncompressed: so many, and so many more for each stored byte, for 30 bytes can
unpack to 100,000 messages, which take half a second. What clients send has one to six messages for each byte at most, and messages that
were compacted out, which compress well, take a sixteenth of the time or less."""

LEDGER_PROPERTY = "CompactedTopicLedger"
"""The property of the compaction cursor's position."""


_TIMEOUT = "org.apache.pulsar.common.util.FutureUtil$LowOverheadTimeoutException: Timeout"
"""What Pulsar says when it has waited for 30 s (brokerServiceCompactionPhaseOneLoopTimeInSeconds) for a message that its cursor has passed."""


class _Failed(Exception):
    """A compaction fails. The text says why."""


def trigger(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Compact the topic: readers of the compacted topic then get the last message of each key. It is done when the answer comes."""
    if topic.is_shadow:
        raise AdminError(501, "compaction of a shadow topic is not supported")
    compact(ctx, topic)
    return 204, None


def status(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The status of the last compaction since the topic was loaded: `NOT_RUN`, `SUCCESS`, or `ERROR` with the reason."""
    error = topic.compaction.error
    found = "ERROR" if error else "SUCCESS" if topic.compaction.has_run else "NOT_RUN"
    return 200, {"status": found, "lastError": error}


def compact(ctx: Context, topic: PersistentTopic) -> None:
    """Compact a topic up to its last message. A compaction that fails leaves everything as it was, but for the cursor."""
    state = topic.compaction
    state.has_run, state.error, state.settled = True, "", None
    try:
        subscription = _subscription(ctx, topic)
        state.settled = _settled(topic)
        state.removed = _compact(ctx, topic, subscription)
        state.succeeded, state.settled = ctx.clock, _settled(topic)
        state.successes += 1
        state.removed_in_all += state.removed
    except _Failed as error:
        state.error, state.failed = str(error), ctx.clock
        state.failures += 1
        ctx.emit(TopicEvent(topic.name, f"not compacted: {error}"))


def _subscription(ctx: Context, topic: PersistentTopic) -> PersistentSubscription:
    """The compaction subscription as the compactor, an Exclusive consumer, leaves it."""
    found = topic.subscriptions.get(COMPACTION_CURSOR)
    if found is None:
        if not ctx.policies_of(topic).autoSubscriptionCreation:
            raise _Failed(f"Subscription {COMPACTION_CURSOR} does not exist")
        found = create_subscription(ctx, topic)
    elif found.consumers:
        raise _Failed(f"subscription {COMPACTION_CURSOR} has consumers")
    if found.type != "Exclusive":
        found.type, found.dispatcher = "Exclusive", new_dispatcher("Exclusive", None, ctx.config)
        found.forget_dispatcher()
    topic.cursors[COMPACTION_CURSOR].rewind(topic.ledger, compacted=True)
    return found


def create_subscription(ctx: Context, topic: PersistentTopic) -> PersistentSubscription:
    """The compaction subscription, at the earliest message. Raises `_Failed`."""
    try:
        return subscribing.create(ctx, topic, COMPACTION_CURSOR, earliest=True)
    except BrokerError as error:
        raise _Failed(error.cause) from None


def _compact(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> int:
    """Compact up to the last message, if there is one. Returns how many messages that removed, as Pulsar counts them."""
    end, markers = _last(ctx, topic)
    if end is None:
        return 0
    former = topic.compaction.ledger
    reading = _Reading(ctx, topic, former, end)
    first = _FirstPhase(ctx.config)
    mark_delete = topic.cursors[COMPACTION_CURSOR].mark_delete
    for position, entry in reading.behind(mark_delete):
        first.take(position, entry)
    if end <= mark_delete and (former is None or end > former.horizon):
        subscription.messages_out += first.messages
        subscription.bytes_out += first.size
        raise _Failed(_TIMEOUT)
    made = CompactedLedger(topic.ledger.reserve(), end)
    messages, size = first.messages + 2 * len(markers), first.size + 2 * sum(markers)
    start = first.start if first.start > EARLIEST else end  # to which the second phase seeks
    to = first.to if first.to > EARLIEST else end
    keeps = ctx.config.compactionSeekKeepsMarkDelete
    for position, entry in reading.behind(mark_delete if keeps else EARLIEST):
        if position < start and not keeps:
            continue
        messages += entry.messages
        size += entry.size
        if position <= to:
            _keep(ctx, topic, made, first, position, entry)
    _finish(ctx, topic, former, made, start)
    subscription.messages_out += messages
    subscription.bytes_out += size
    return first.removed


def _last(ctx: Context, topic: PersistentTopic) -> tuple[Position | None, list[int]]:
    """The last message that a compacting reader finds, None: there is none; and the sizes of the markers of transactions behind it, which it gets, too."""
    ledger, former, transactions = topic.ledger, topic.compaction.ledger, topic.transactions
    position, markers = ledger.last_readable, list[int]()
    while position.entry >= 0 and position.ledger in ledger.ledgers:
        if former is not None and position <= former.horizon:
            break
        entry = ctx.entries.get(topic.name, position)
        if is_server_only(entry):
            if transactions is not None:
                markers.append(entry.size)
        elif transactions is None or not is_aborted(transactions, entry):
            return position, markers
        position = ledger.previous(position)
    if former is None or ctx.config.compactionNeedsNewMessages:
        return None, markers
    return former.last, markers


class _Reading:
    """The entries that a reader of the compacted topic gets from the earliest on, with their payloads: those of the last compaction, then the
    topic's up to `end`."""

    def __init__(
        self, ctx: Context, topic: PersistentTopic, former: CompactedLedger | None, end: Position
    ) -> None:
        self._ctx, self._topic, self._former, self._end = ctx, topic, former, end

    def behind(self, mark_delete: Position) -> Iterator[tuple[Position, Entry]]:
        """quirk: the topic's are those behind the mark-delete position of the reader's cursor. So what an operator skips there is not kept."""
        former, start = self._former, mark_delete
        if former is not None:
            yield from _stored(self._ctx, self._topic.name, former)
            start = max(former.horizon, mark_delete)
        yield from self._from_topic(start)

    def _from_topic(self, after: Position) -> Iterator[tuple[Position, Entry]]:
        ledger, name, end, transactions = (
            self._topic.ledger,
            self._topic.name,
            self._end,
            self._topic.transactions,
        )
        for id_ in list(ledger.ledgers):
            entries = ledger.current_entries if id_ == ledger.current else ledger.ledgers[id_].entries
            entries = entries or ledger.ledgers[id_].entries
            at = after.entry + 1 if id_ == after.ledger else 0
            stop = end.entry + 1 if id_ == end.ledger else entries
            if not after.ledger <= id_ <= end.ledger:
                continue
            while at < stop:
                until = min(at + _AT_ONCE, stop)
                for entry in self._ctx.entries.whole(name, id_, at, until - 1):
                    if transactions is None or is_server_only(entry) or not is_aborted(transactions, entry):
                        yield Position(id_, at), entry
                    at += 1


def _stored(ctx: Context, topic: str, ledger: CompactedLedger) -> Iterator[tuple[Position, Entry]]:
    number, start = 0, EARLIEST
    while True:
        _, positions = ledger.find(start, _AT_ONCE)
        if not positions:
            return
        found = ctx.entries.whole(topic, ledger.id, number, number + len(positions) - 1)
        yield from zip(positions, found, strict=True)
        number += len(positions)
        start = positions[-1].next()


class _FirstPhase:
    """Which message of each key is the last one. `start`, `to`: the first and the last entry of which something may stay. Counts of all
    that was read: `messages`, their entries' `size` in bytes, and how many are `removed`."""

    def __init__(self, config: ServiceConfiguration) -> None:
        self.latest: dict[str | None, _MessageId] = {}
        self.retains_keyless = config.topicCompactionRetainNullKey
        self._counts_singles = config.compactionCountsSingleMessages
        self._counts_metadata, self._sees_nulls = (
            config.compactionCountsMetadata,
            config.compactionSeesNullValues,
        )
        self.start = self.to = EARLIEST
        self.messages = self.size = self.removed = 0
        self._batched = self._uncompressed = 0

    def take(self, position: Position, entry: Entry) -> None:
        """The next entry. Raises `_Failed`."""
        self.messages += entry.messages
        self.size += entry.size
        metadata = entry.metadata
        if is_server_only(entry):
            self.removed += 1
            stays = False
        elif batches.is_batch(metadata):
            stays = self._take_batch(position, entry)
        else:
            stays = self._take_one(metadata.partition_key, position, self._is_value(entry))
        if stays:
            self.to = position
        if stays and self.start == EARLIEST:
            self.start = position

    def _take_one(self, key: str | None, position: Position, is_value: bool) -> bool:
        if key is None:
            self.removed += not self.retains_keyless
            return self.retains_keyless
        former = self.latest.pop(key, None)
        if is_value:
            self.latest[key] = position, -1
        self.removed += not is_value or former is not None
        return is_value

    def _is_value(self, entry: Entry) -> bool:
        """quirk: in 4.0, an entry without a size of its own, which clients give, counts as a whole, so that an empty payload deletes nothing."""
        if self._sees_nulls and entry.metadata.null_value:
            return False
        size = entry.metadata.uncompressed_size
        return size > 0 if size is not None else self._counts_metadata or bool(entry.payload)

    def _take_batch(self, position: Position, entry: Entry) -> bool:
        self._count_bytes(entry.metadata)
        messages = _singles(entry)
        if messages is None:
            return True
        self._count_messages(messages)
        if not self._counts_singles:
            return self._take_as_one(position, messages)
        deleted = 0
        for index, each in enumerate(messages):
            if each.is_removed:
                continue
            if each.key is None:
                if not self.retains_keyless:
                    deleted += 1
                    self.removed += 1
                continue
            former = self.latest.pop(each.key, None)
            if each.size > 0:
                self.latest[each.key] = position, index
                self.removed += former is not None
            else:
                deleted += 1
                self.removed += 1
        return deleted < len(messages)

    def _take_as_one(self, position: Position, messages: list[batches.Single]) -> bool:
        """quirk: in 2.10, a batch with an empty value counts as deleted, and each message behind one that removed something as removed. Messages
        without a key have one in common, though all of them stay."""
        removes = deletes = False
        for index, each in enumerate(messages):
            if not each.is_removed:
                former = self.latest.pop(each.key, None)
                if each.size > 0:
                    self.latest[each.key] = position, index
                    removes = former is not None
                else:
                    deletes = True
                self.removed += removes or deletes
        return not deletes

    def _count_bytes(self, metadata: MessageMetadata) -> None:
        """A batch is about to be uncompressed. Raises `_Failed` if all of them become too large."""
        if metadata.compression is not None:
            self._uncompressed += metadata.uncompressed_size or 0
            self._check(self._uncompressed, _BYTES + _BYTES_PER_BYTE * self.size, "bytes uncompressed")

    def _count_messages(self, messages: list[batches.Single]) -> None:
        removed = sum([each.is_removed for each in messages])
        self._batched += len(messages) - removed + removed // _REMOVED_PER_MESSAGE
        self._check(self._batched, _MESSAGES + _MESSAGES_PER_BYTE * self.size, "messages")

    def _check(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise _Failed(
                f"batches of {count} {what} in {self.size} bytes of entries, at most {most} are read"
            )


def _singles(entry: Entry) -> list[batches.Single] | None:
    """The messages of a batch. None: it can't be uncompressed, and is kept as it is. Raises `_Failed`."""
    try:
        return batches.singles(entry.metadata, entry.payload or b"")
    except batches.Undecodable:
        return None
    except batches.Malformed as error:
        raise _Failed(str(error)) from None


def _keep(
    ctx: Context,
    topic: PersistentTopic,
    made: CompactedLedger,
    first: _FirstPhase,
    position: Position,
    entry: Entry,
) -> None:
    """The second phase: copy an entry, or what stays of a batch."""
    metadata, payload, size, last = entry.metadata, entry.payload or b"", entry.size, -1
    if is_server_only(entry):
        return
    if batches.is_batch(metadata):
        if (messages := _singles(entry)) is not None:
            keeps = [
                not each.is_removed
                and (
                    first.retains_keyless
                    if each.key is None
                    else each.size > 0 and first.latest.get(each.key) == (position, index)
                )
                for index, each in enumerate(messages)
            ]
            if not any(keeps):
                return
            metadata, payload = batches.rebatched(
                metadata, messages, keeps, names=ctx.config.compactedBatchesNameMessages
            )
            size = HEADER + metadata_size(metadata) + len(payload)
            if entry.broker_timestamp is not None:
                size += broker_entry_metadata_size(entry.broker_timestamp)
            last = batches.last_index(keeps)
    elif metadata.partition_key is None:
        if not first.retains_keyless:
            return
    elif first.latest.get(metadata.partition_key) != (position, -1):
        return
    number = made.entries
    made.add(position, size + _raw_message_size(topic.name, position))
    made.last_batch_index = last
    copy = Entry(
        metadata, size, entry.broker_timestamp, payload if ctx.entries.recent_payloads is None else None
    )
    ctx.entries.add(topic.name, Position(made.id, number), copy)
    ctx.emit_large(
        CompactedEntry(
            topic.name, metadata.producer_name, metadata.sequence_id, made.id, number, size, entry.messages,
            metadata.publish_time, metadata.partition_key, metadata, payload, entry.broker_timestamp,
            CompactedEntryFields(position=str(position)),
        ),
        len(payload),
    )  # fmt: skip


def _raw_message_size(topic: str, position: Position) -> int:
    """What a RawMessage has besides its entry: the message id, and 4 bytes each for its size and that of the entry."""
    partition = partition_index(topic)
    return 8 + 2 + varint(position.ledger) + varint(position.entry) + 1 + varint(partition)


def _finish(
    ctx: Context,
    topic: PersistentTopic,
    former: CompactedLedger | None,
    made: CompactedLedger,
    start: Position,
) -> None:
    """Readers get the new ledger from now on, and the cursor moves to the horizon, which may free ledgers."""
    topic.compaction.ledger = made
    kept = made.entries
    if kept:
        ctx.emit(LedgerClosed(topic.name, made.id, kept, made.size, f"{COMPACTED_LEDGER}: complete"))
    if former is not None:
        delete_compacted(ctx, topic, former, "another compaction")
    ctx.emit(TopicEvent(topic.name, f"{COMPACTED} {made.horizon}: kept {kept}"))
    cursor, reason = topic.cursors[COMPACTION_CURSOR], Reason(CursorMoved, "compaction")
    sought = list[Position]()
    moved = topic.record_move(
        ctx,
        cursor,
        reason,
        partial(
            _move,
            counts_anew=ctx.config.seekCountsConsumedAnew,
            stays=ctx.config.compactionSeekKeepsMarkDelete,
        ),
        cursor,
        topic.ledger,
        start,
        made,
        former,
        sought,
    )
    last = topic.ledger.last_readable
    cursor.read_position = (last if last.entry >= 0 else made.horizon).next()
    if moved is None and sought[0].ledger != cursor.key.ledger:
        (moved,) = sought  # the seek went back to another ledger, and the acknowledgment left that
    free_ledgers(ctx, topic, cursor, moved)


def _move(
    cursor: ManagedCursor,
    ledger: ManagedLedger,
    start: Position,
    made: CompactedLedger,
    former: CompactedLedger | None,
    sought: list[Position],
    *,
    counts_anew: bool,
    stays: bool,
) -> None:
    """As the compactor does: it seeks to the first entry that stays, unless the cursor `stays`, and acknowledges all at the end. `sought` gets
    the cursor's key between these."""
    if not stays:
        cursor.reset(
            ledger,
            start,
            counts_anew=counts_anew,
            keeps_target=former is not None and start <= former.horizon,
        )
    sought.append(cursor.key)
    cursor.move(ledger, made.horizon, {LEDGER_PROPERTY: made.id})


def first_published_at(ctx: Context, topic: PersistentTopic, time: int) -> Position | None:
    """The position of the first message of compacted data that was published at `time` (ms) or later. None: the topic itself must be
    searched."""
    compacted = topic.compaction.ledger
    if compacted is None or not compacted.entries:
        return None

    def published(number: int) -> int:
        return ctx.entries.get(topic.name, Position(compacted.id, number)).metadata.publish_time

    last = compacted.entries - 1
    if time >= (end := published(last)):
        return compacted.last if time == end else None
    number = bisect_left(range(last), time, key=published)
    _, found = compacted.find(EARLIEST, number + 1)
    return found[number]


# -- the check ------------------------------------------------------------------------------------------------------------


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check: compact a topic that has more bytes to compact than compactionThreshold."""
    if _is_due(ctx, topic):
        compact(ctx, topic)


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """Now, if there is enough to compact: nothing changes that but what happens on the topic."""
    return ctx.clock if _is_due(ctx, topic) else NEVER


def _is_due(ctx: Context, topic: PersistentTopic) -> bool:
    threshold = ctx.policies_of(topic).compactionThreshold
    if threshold <= 0 or topic.is_shadow or _is_in_vain(ctx, topic):
        return False
    ledger = topic.ledger
    cursor = topic.cursors.get(COMPACTION_CURSOR)
    if cursor is not None:
        return ledger.estimate_backlog_from(cursor.mark_delete) > threshold
    has_durable = any(each.durable for each in topic.subscriptions.values())
    return (topic.backlog_size() if has_durable else ledger.total_size) > threshold


def _is_in_vain(ctx: Context, topic: PersistentTopic) -> bool:
    """Whether nothing has changed since the last compaction, so that another one fails as it did, or leaves as much to compact. Pulsar tries
    in each round. Here, each would read the whole topic while others wait, and a silence of a year has half a million."""
    state, found = topic.compaction, topic.subscriptions.get(COMPACTION_CURSOR)
    if found is None:
        return bool(state.error) and not ctx.policies_of(topic).autoSubscriptionCreation
    return (bool(state.error) and bool(found.consumers)) or state.settled == _settled(topic)


def _settled(topic: PersistentTopic) -> tuple[Position, Position]:
    return topic.ledger.last_readable, topic.cursors[COMPACTION_CURSOR].mark_delete


def create_subscription_if_needed(ctx: Context, topic: PersistentTopic) -> None:
    """With a threshold, the compaction subscription is there from the beginning, so that it sees all messages."""
    if (
        ctx.policies_of(topic).compactionThreshold > 0
        and COMPACTION_CURSOR not in topic.subscriptions
        and topic.ledger.ledgers
    ):
        create_subscription(ctx, topic)
