"""Reading entries, filtering them, and sending them to one consumer (mirrors `AbstractBaseDispatcher`)."""

from schemas.effects import Message
from schemas.entries import Entry
from streaming.broker import entry_filters
from streaming.broker.dispatch.delayed_delivery import DelayedDeliveryTracker
from streaming.broker.ledger.ack_set import to_bits, to_words
from streaming.broker.ledger.cursor_writes import change_cursor
from streaming.broker.position import Position, from_tuple
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.context import SubscriptionContext
from streaming.broker.transactions.transaction_buffer import TransactionBuffer, TxnID

Found = list[tuple[Position, Entry]]
"""Entries read, in position order."""

_WORD_BYTES = 40
"""The memory of a word of an ack set, as an object of Python in a list."""

SERVER_ONLY_MARKERS = range(10, 22)
"""Marker types (replicated subscriptions, transactions) that never reach a consumer."""


COMMIT_MARKER, ABORT_MARKER = 21, 22
"""Types of the markers that end a transaction."""


def is_server_only(entry: Entry) -> bool:
    """Whether the entry is a marker meant for brokers only."""
    metadata = entry.metadata
    if metadata.marker_type is None:
        return False
    return metadata.marker_type in SERVER_ONLY_MARKERS or (
        metadata.marker_type == ABORT_MARKER and metadata.txnid_least_bits is not None
    )


def is_aborted(transactions: TransactionBuffer, entry: Entry) -> bool:
    """Whether the entry is a message of a transaction that was aborted."""
    most, least = entry.metadata.txnid_most_bits, entry.metadata.txnid_least_bits
    return most is not None and least is not None and TxnID(most, least) in transactions.aborted


def read(sub: SubscriptionContext, positions: list[Position]) -> Found:
    """The entries at `positions`, which the cursor has passed with a read."""
    if sub.subscription.read_batch:
        sub.read_completed()
    if len(positions) == 1:
        found = [(positions[0], sub.ctx.entries.get(sub.topic, positions[0]))]
    else:
        found = list(zip(positions, sub.ctx.entries.get_all(sub.topic, positions), strict=True))
    if not sub.ctx.config.readsByLedgerSizes:
        for position, entry in found:
            sub.cursor.note_read(position, entry.size)
    return found


def filter_entries(
    sub: SubscriptionContext, found: Found, delayed: DelayedDeliveryTracker | None
) -> tuple[Found, list[Position]]:
    """The entries to send now, and the positions that a filter rescheduled (docs/rules/shared.md §11).

    Acks rejected entries and markers. Entries with a later delivery time go to `delayed`, or are sent at once if it is
    None.
    """
    ctx = sub.ctx
    config = ctx.config
    filters, counts = config.entryFilterNames, sub.subscription.filtered
    transactions, pending = sub.transactions, sub.subscription.pending_acks
    if not sub.policies.delayedDelivery.value.active:
        delayed = None
    kept: Found = []
    acked: list[Position] = []
    rescheduled: list[Position] = []
    for each in found:
        position, entry = each
        metadata = entry.metadata
        if filters:
            counts.processed += entry.messages
            result = entry_filters.judge(filters, metadata, sub.subscription.properties)
            if result == "REJECT":
                counts.rejected += entry.messages
                acked.append(position)
                continue
            if result == "RESCHEDULE":
                counts.rescheduled += entry.messages
                rescheduled.append(position)
                continue
        if (metadata.marker_type is not None and is_server_only(entry)) or (
            transactions is not None and is_aborted(transactions, entry)
        ):
            acked.append(position)
        elif delayed is None or not delayed.add(
            position, metadata.deliver_at_time, ctx.clock, config, sub.tick
        ):
            kept.append(each)
    if filters:
        counts.accepted += sum(entry.messages for _, entry in kept)
    if acked:
        _acknowledge(sub, acked)
    if pending is not None and pending.positions and not config.pendingAcksCountAsSent:
        kept = [each for each in kept if pending.left_to_send(sub.cursor, each[0]) != 0]
    return kept, rescheduled


def _acknowledge(sub: SubscriptionContext, positions: list[Position]) -> None:
    """Ack on behalf of the subscription. Ledgers that this frees go when the topic is at rest, since a read may be under way."""
    ctx, cursor = sub.ctx, sub.cursor
    before, mark_delete = cursor.consumed, cursor.mark_delete
    backlog = cursor.backlog(sub.ledger, precise=True) if ctx.acks is not None else 0
    former = change_cursor(ctx, sub.policies, cursor, cursor.acknowledge_all, sub.ledger, positions)
    if former is not None:
        ctx.freed.append((sub.topic, cursor.name, former))
    if cursor.mark_delete != mark_delete:
        sub.subscription.last_mark_delete_advanced = ctx.clock
    if ctx.acks is not None:
        name = sub.subscription.name
        ctx.observe_ack(sub.topic, name, positions, mark_delete, cursor.mark_delete, backlog)
    sub.subscription.acked += cursor.consumed - before
    sub.check_end_of_topic()


def goes_out_at_once(sub: SubscriptionContext, position: Position, entry: Entry) -> bool:
    """Whether nothing but the consumers decides who gets an entry that was just confirmed: it is the next one to read, and no
    filter, rate, limit of a read or chunk is involved. Then a read that waits need not search for it."""
    ctx, metadata = sub.ctx, entry.metadata
    config = ctx.config
    return (
        sub.cursor.read_position == position
        and sub.throttle is None
        and not sub.subscription.read_batch
        and not config.entryFilterNames
        and config.readsByLedgerSizes
        and metadata.marker_type is None
        and metadata.uuid is None
        and sub.transactions is None
        and ctx.ordinal + 1 < ctx.spent_at
    )


def send(
    sub: SubscriptionContext,
    consumer: Consumer,
    found: Found,
    counts: dict[Position, int] | None,
    *,
    whole: bool = False,
) -> list[int]:
    """Send entries to a consumer. Returns the permits charged for each, in messages (acked ones of a batch are free).

    `counts`: redelivery counts, or None for a single active consumer, which gets its epoch instead. `whole`: the rows have the entries
    themselves, since what the ledger has at their positions is gone, or more than compaction has left.
    """
    ctx, topic, subscription = sub.ctx, sub.topic, sub.subscription
    batches, pending = sub.cursor.batches, subscription.pending_acks
    name, connection, id_ = subscription.name, consumer.connection, consumer.consumer_id
    epoch = consumer.epoch if counts is None and consumer.epoch >= 0 and not whole else None
    charged, size, total, sent = [], 0, 0, 0
    for position, entry in found:
        in_entry = messages = entry.messages
        ack_set = None
        total += in_entry
        if batches and (stored := batches.get(position)) is not None:
            bits = to_bits(stored)
            messages, ack_set = bits.bit_count(), to_words(bits)
        if pending is not None and (left := pending.left_to_send(sub.cursor, position)) is not None:
            messages, ack_set = left.bit_count(), to_words(left)
            if not messages:  # as pendingAcksCountAsSent has it: all of its messages cost permits
                charged.append(in_entry)
                size += entry.size
                continue
        charged.append(messages)
        size += entry.size
        sent += 1
        if entry.metadata.chunk_id is not None:
            consumer.chunks_out += 1
        message = from_tuple(Message, (
            topic, connection, id_, name, position.ledger, position.entry, in_entry, entry.size,
            counts.get(position, 0) if counts else 0, ack_set, epoch, None, None,
        ))  # fmt: skip
        if whole:
            message = message._replace(metadata=entry.metadata, payload=entry.payload)
            ctx.emit_large(message, len(entry.payload or b"") + _WORD_BYTES * len(ack_set or ()))
        elif ack_set is None:
            ctx.emit(message)
        else:
            ctx.emit_large(message, _WORD_BYTES * len(ack_set))
    consumer.permits -= sum(charged)
    consumer.sent(total, sent, size, ctx.clock)
    subscription.messages_out += total
    subscription.bytes_out += size
    subscription.dispatched += sent
    if sub.limiters:
        sub.sent(sent, total, size)
    return charged
