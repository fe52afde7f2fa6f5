"""Dispatch to one active consumer: Exclusive (mirrors `PersistentDispatcherSingleActiveConsumer`; subscriptions.md §8)."""

from typing import TYPE_CHECKING

import msgspec

from streaming.broker.consumer import Consumer
from streaming.broker.context import Context
from streaming.broker.dispatch import is_server_only, send

if TYPE_CHECKING:
    from streaming.broker.subscription import Subscription
    from streaming.broker.topic import Topic


class SingleActiveConsumer(msgspec.Struct, array_like=True, tag="single"):
    """`active` = index in the subscription's consumers, −1: none. `pending_read` = entries a waiting read asked for."""

    active: int = -1
    pending_read: int = 0

    def active_consumer(self, subscription: "Subscription") -> Consumer | None:
        return subscription.consumers[self.active] if self.active >= 0 else None

    def add_consumer(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer
    ) -> None:
        subscription.consumers.append(consumer)
        self._pick(ctx, topic, subscription, None)

    def remove_consumer(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer
    ) -> None:
        was_active = self.active_consumer(subscription)
        subscription.consumers.remove(consumer)
        if not subscription.consumers:
            self.active, self.pending_read = -1, 0
            return
        self._pick(ctx, topic, subscription, was_active)

    def _pick(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", before: Consumer | None
    ) -> None:
        """Choose the active consumer; a new one starts at the first unacked entry."""
        self.active = 0
        if subscription.consumers[0] is not before:
            self.pending_read = 0
            topic.cursors[subscription.name].rewind(topic.ledger)
            self.read_more(ctx, topic, subscription)

    def flow(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer, permits: int
    ) -> None:
        """Permits count always; they start a read only if they come from the active consumer and none is waiting."""
        consumer.permits += permits
        if consumer is self.active_consumer(subscription) and not self.pending_read:
            self.read_more(ctx, topic, subscription)

    def redeliver(
        self,
        ctx: Context,
        topic: "Topic",
        subscription: "Subscription",
        consumer: Consumer,
        epoch: int | None,
    ) -> None:
        """Everything unacked comes again, whatever was asked for. Not from the active consumer: ignored."""
        if epoch is not None and epoch > consumer.epoch:
            consumer.epoch = epoch
        if consumer is not self.active_consumer(subscription):
            return
        self.pending_read = 0
        topic.cursors[subscription.name].rewind(topic.ledger)
        self.read_more(ctx, topic, subscription)

    def new_entries(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """Entries were confirmed: a waiting read completes with what it asked for at most."""
        if self.pending_read:
            wanted, self.pending_read = self.pending_read, 0
            self._read(ctx, topic, subscription, wanted)
            self.read_more(ctx, topic, subscription)

    def read_more(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """Read and send while the active consumer has permits; then leave a read waiting."""
        active = self.active_consumer(subscription)
        while active is not None and active.permits > 0:
            wanted = min(active.permits, ctx.config.dispatcherMaxReadBatchSize)
            if not self._read(ctx, topic, subscription, wanted):
                self.pending_read = wanted
                return

    def _read(self, ctx: Context, topic: "Topic", subscription: "Subscription", wanted: int) -> bool:
        cursor = topic.cursors[subscription.name]
        positions = cursor.read(topic.ledger, wanted)
        if not positions:
            return False
        active = self.active_consumer(subscription)
        assert active is not None  # a read is only ever issued for one
        found = list(zip(positions, ctx.entries.get_all(topic.name, positions), strict=True))
        markers = [position for position, entry in found if is_server_only(entry)]
        if markers:
            found = [item for item in found if item[0] not in markers]
            for position in markers:
                cursor.acknowledge(topic.ledger, position, None)
            cursor.collapse(topic.ledger)
        send(ctx, topic, subscription, active, found, None)
        return True
