"""What all dispatchers share: which entries a consumer gets, and sending them (mirrors `AbstractBaseDispatcher`)."""

from typing import TYPE_CHECKING

from schemas.effects import Message
from schemas.entries import Entry
from streaming.broker.context import Context
from streaming.broker.dispatch import entry_filters
from streaming.broker.dispatch.delayed_delivery import NO_DELAY, DelayedDeliveryTracker
from streaming.broker.ledger.ack_set import to_bits, to_words
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer

if TYPE_CHECKING:
    from streaming.broker.subscription.subscription import Subscription
    from streaming.broker.topic import Topic

Found = list[tuple[Position, Entry]]
"""Entries read, in the order of their positions."""

SERVER_ONLY_MARKERS = range(10, 22)
"""Marker types (replicated subscriptions, transactions) that never reach a consumer."""


def is_server_only(entry: Entry) -> bool:
    """Is the entry a marker for brokers only?"""
    return entry.metadata.marker_type is not None and entry.metadata.marker_type in SERVER_ONLY_MARKERS


def read(ctx: Context, topic: "Topic", positions: list[Position]) -> Found:
    """The entries at `positions`."""
    return list(zip(positions, ctx.entries.get_all(topic.name, positions), strict=True))


def filter_entries(
    ctx: Context,
    topic: "Topic",
    subscription: "Subscription",
    found: Found,
    delayed: DelayedDeliveryTracker | None,
) -> tuple[Found, list[Position]]:
    """Leave out what isn't for a consumer now (dispatch_shared.md §8); also: positions to be redelivered later.

    Rejected entries and markers are acked. Entries with a delivery time are kept in `delayed` (None: sent at once).
    """
    config = ctx.config
    kept: Found = []
    acked: list[Position] = []
    rescheduled: list[Position] = []
    for position, entry in found:
        metadata = entry.metadata
        if config.entryFilterNames:
            result = entry_filters.judge(config.entryFilterNames, metadata, subscription.properties)
            if result == "REJECT":
                acked.append(position)
                continue
            if result == "RESCHEDULE":
                rescheduled.append(position)
                continue
        if metadata.marker_type is not None and is_server_only(entry):
            acked.append(position)
        elif (
            delayed is None
            or not config.delayedDeliveryEnabled
            or not delayed.add(
                position,
                NO_DELAY if metadata.deliver_at_time is None else metadata.deliver_at_time,
                ctx.clock,
                config,
            )
        ):
            kept.append((position, entry))
    if acked:
        _acknowledge(ctx, topic, subscription, acked)
    return kept, rescheduled


def redelivery_time(ctx: Context) -> int:
    """When what a filter puts off now is judged again (ms); never now, or time would stand still."""
    return ctx.clock + max(ctx.config.dispatcherEntryFilterRescheduledMessageDelay, 1)


def _acknowledge(
    ctx: Context, topic: "Topic", subscription: "Subscription", positions: list[Position]
) -> None:
    """The broker acks for the subscription. Ledgers that become free go with the next check."""
    cursor = topic.cursors[subscription.name]
    before = cursor.consumed

    def acknowledge() -> None:
        for position in positions:
            cursor.acknowledge(topic.ledger, position, None)
        cursor.collapse(topic.ledger)

    topic.change_cursor(ctx, cursor, acknowledge)
    subscription.acked += cursor.consumed - before
    if topic.ledger.terminated and not subscription.end_reached:
        subscription.tell_end(ctx, topic)


def send(
    ctx: Context,
    topic: "Topic",
    subscription: "Subscription",
    consumer: Consumer,
    found: Found,
    counts: dict[Position, int] | None,
) -> list[int]:
    """Send entries to a consumer; the messages charged for each (those of a batch already acked are free).

    `counts`: redelivery counts; None for a single active consumer, which is told its epoch instead.
    """
    batches = topic.cursors[subscription.name].batches
    name, connection, id_ = subscription.name, consumer.connection, consumer.consumer_id
    epoch = consumer.epoch if counts is None and consumer.epoch >= 0 else None
    charged, size, total = [], 0, 0
    for position, entry in found:
        total += entry.messages
        messages, ack_set = entry.messages, None
        if batches and (stored := batches.get(position)) is not None:
            bits = to_bits(stored)
            messages, ack_set = bits.bit_count(), to_words(bits)
        charged.append(messages)
        size += entry.size
        ctx.emit(
            Message(
                topic.name, connection, id_, name, position.ledger, position.entry, entry.messages, entry.size,
                counts.get(position, 0) if counts else 0, ack_set, epoch,
            )
        )  # fmt: skip
    consumer.permits -= sum(charged)
    consumer.sent(total, len(found), size)
    subscription.messages_out += total
    subscription.bytes_out += size
    subscription.dispatched += len(found)
    return charged
