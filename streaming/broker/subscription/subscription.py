"""PersistentSubscription: a cursor, its consumers and the dispatcher between them (mirrors `PersistentSubscription`)."""

from typing import TYPE_CHECKING

import msgspec

from schemas.commands import Ack, MessageIdData, SubType
from schemas.effects import AckResponse, ReachedEndOfTopic
from streaming.broker.context import Context
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.dispatch.single_active_consumer import SingleActiveConsumer
from streaming.broker.dispatch.sticky_key import StickyKeyMultipleConsumers
from streaming.broker.dispatch.sticky_key_classic import ClassicStickyKeyMultipleConsumers
from streaming.broker.errors import CursorError
from streaming.broker.ledger.ack_set import from_words, to_bits
from streaming.broker.position import Position, from_wire
from streaming.broker.rate import Rate
from streaming.broker.subscription.consumer import Consumer

if TYPE_CHECKING:
    from streaming.broker.topic import Topic

INDIVIDUAL_TYPES = frozenset({"Shared", "Key_Shared"})
"""Types that keep pendingAcks, redelivery counts and unacked limits."""


class Subscription(msgspec.Struct, array_like=True):
    """Its cursor has its name. `dispatcher` is None until the first consumer comes; it outlives the consumers.

    Counters are in entries (`expired`, `evicted`, `acked`) or messages (`messages_out`), times in ms.
    """

    name: str
    durable: bool = True
    type: SubType | None = None
    consumers: list[Consumer] = []
    dispatcher: (
        SingleActiveConsumer
        | MultipleConsumers
        | StickyKeyMultipleConsumers
        | ClassicStickyKeyMultipleConsumers
        | None
    ) = None
    properties: dict[str, str] = {}
    last_active: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    dispatched: int = 0
    acked: int = 0
    expired: int = 0
    evicted: int = 0
    last_expire: int = 0
    expired_before_load: int = 0
    end_reached: bool = False
    expired_rate: Rate = msgspec.field(default_factory=Rate)
    broker_blocked: bool = False

    def consumer(self, connection: str, consumer_id: int) -> Consumer:
        """The connected consumer of that handle."""
        return next(c for c in self.consumers if c.connection == connection and c.consumer_id == consumer_id)

    # -- acknowledgement (subscriptions.md §2, §4, §5) -------------------------------------------------------------

    def acknowledge(self, ctx: Context, topic: "Topic", consumer: Consumer, command: Ack) -> Position | None:
        """Apply and answer an ACK. What the cursor refuses leaves no trace on the wire: the answer doesn't depend on it,
        and comes before the messages that the ack makes room for.

        Returns the cursor's former key if ledgers may have become free (see `Topic.change_cursor`).
        """
        self.last_active = ctx.clock
        cursor = topic.cursors[self.name]
        index_acks = ctx.config.acknowledgmentAtBatchIndexLevelEnabled
        before, mark_delete = cursor.consumed, cursor.mark_delete
        former = None
        owners: list[Consumer] = []
        try:
            if command.ack_type == "Individual":
                former = topic.change_cursor(
                    ctx,
                    cursor,
                    lambda: owners.extend(self._individual(ctx, topic, consumer, command, index_acks)),
                )
            elif self.type not in INDIVIDUAL_TYPES and len(command.message_id) == 1:
                position, ack_set = _acked(command.message_id[0], index_acks)
                if ack_set is not None and not index_acks:
                    position, ack_set = topic.ledger.previous(position), None
                former = topic.change_cursor(
                    ctx, cursor, lambda: cursor.acknowledge_cumulative(topic.ledger, position, ack_set)
                )
        except CursorError:
            pass
        self.acked += cursor.consumed - before
        if topic.ledger.terminated and not self.end_reached:
            self.tell_end(ctx, topic)
        if command.request_id is not None:
            ctx.emit(AckResponse(topic.name, command.connection, command.request_id, command.consumer_id))
        if command.ack_type == "Individual" and isinstance(self.dispatcher, MultipleConsumers):
            if cursor.mark_delete > mark_delete:
                self.dispatcher.mark_delete_acked(ctx, topic)
            self.dispatcher.after_acks(ctx, topic, self, owners)
        return former

    def _individual(
        self, ctx: Context, topic: "Topic", consumer: Consumer, command: Ack, index_acks: bool
    ) -> list[Consumer]:
        """Ack each id; the consumers whose entries were acked as a whole. Raises `CursorError` if none was acked."""
        cursor = topic.cursors[self.name]
        before, owners = cursor.consumed, []
        try:
            for message_id in command.message_id:
                position, ack_set = _acked(message_id, index_acks)
                if ack_set is not None and not index_acks:
                    if isinstance(self.dispatcher, MultipleConsumers):
                        self.dispatcher.counts.pop(position, None)  # quirk: all that a partial ack does then
                    continue
                stored = cursor.batches.get(position)
                left = cursor.acknowledge(topic.ledger, position, ack_set)
                if isinstance(self.dispatcher, MultipleConsumers):
                    if ack_set and (left or position in cursor.batches):
                        known = -1 if stored is None else to_bits(stored)
                        had = (
                            ctx.entries.get(topic.name, position).messages
                            if stored is None
                            else known.bit_count()
                        )
                        acked = had - (ack_set & known).bit_count()
                        self.dispatcher.acknowledged_partly(self, consumer, position, acked)
                    elif (
                        owner := self.dispatcher.acknowledged(ctx, topic, self, consumer, position)
                    ) is not None:
                        owners.append(owner)
        except CursorError:
            if cursor.consumed == before:
                raise
            # quirk: the ids before the bad one stay acked
        cursor.collapse(topic.ledger)
        return owners

    def tell_end(self, ctx: Context, topic: "Topic") -> None:
        """Tell the consumers, once, that the topic is terminated and nothing is left (REACHED_END_OF_TOPIC).

        C++ clients can't bear that command: the gateway keeps it from them (protocol.md §2).
        """
        self.end_reached = topic.ledger.terminated and topic.cursors[self.name].backlog(topic.ledger) == 0
        if self.end_reached:
            for consumer in self.consumers:
                ctx.emit(ReachedEndOfTopic(topic.name, consumer.connection, consumer.consumer_id))

    @property
    def awaits_its_reader(self) -> bool:
        """A seek has closed the reader of a non-durable subscription: for Pulsar only the cursor is left till it returns."""
        return not self.durable and not self.consumers

    # -- what the broker does to the cursor ------------------------------------------------------------------------

    def mark_delete_moved(self, ctx: Context, topic: "Topic") -> None:
        """The mark-delete moved by other means than an ack (TTL, skip, quota, trim): forget what it passed."""
        if isinstance(self.dispatcher, MultipleConsumers):
            self.dispatcher.mark_delete_moved(ctx, topic, self)
        if topic.ledger.terminated and not self.end_reached:
            self.tell_end(ctx, topic)


def _acked(message_id: MessageIdData, index_acks: bool) -> tuple[Position, int | None]:
    position = from_wire(message_id.ledgerId, message_id.entryId)
    bits = from_words(message_id.ack_set)
    return position, bits or None
