"""What all dispatchers share: turning positions into messages for one consumer (mirrors `AbstractBaseDispatcher`)."""

from typing import TYPE_CHECKING

from streaming.broker.ack_set import to_bits, to_words
from streaming.broker.consumer import Consumer
from streaming.broker.context import Context
from streaming.broker.effects import Message
from streaming.broker.entries import Entry
from streaming.broker.position import Position

if TYPE_CHECKING:
    from streaming.broker.subscription import Subscription
    from streaming.broker.topic import Topic

SERVER_ONLY_MARKERS = range(10, 22)
"""Marker types (replicated subscriptions, transactions) that never reach a consumer."""


def is_server_only(entry: Entry) -> bool:
    """Is the entry a marker for brokers only? It is acked and dropped (dispatch_shared.md §8)."""
    return (
        entry.metadata.marker_type in SERVER_ONLY_MARKERS if entry.metadata.marker_type is not None else False
    )


def send(
    ctx: Context,
    topic: "Topic",
    subscription: "Subscription",
    consumer: Consumer,
    entries: list[tuple[Position, Entry]],
    counts: dict[Position, int] | None,
) -> list[int]:
    """Send entries to a consumer; the messages charged for each (those of a batch already acked are free).

    `counts`: redelivery counts; None for a single active consumer, which is told its epoch instead.
    """
    batches = topic.cursors[subscription.name].batches
    name, connection, id_ = subscription.name, consumer.connection, consumer.consumer_id
    epoch = consumer.epoch if counts is None and consumer.epoch >= 0 else None
    charged, size, total = [], 0, 0
    for position, entry in entries:
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
    consumer.sent(total, len(entries), size)
    subscription.messages_out += total
    subscription.bytes_out += size
    subscription.dispatched += len(entries)
    return charged
