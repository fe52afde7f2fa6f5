"""Dispatch to one active consumer: Exclusive and Failover (mirrors `PersistentDispatcherSingleActiveConsumer`;
rules: subscriptions.md §8)."""

import re
from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

from schemas.effect_fields import ActiveConsumerChangeFields
from schemas.effects import ActiveConsumerChange
from streaming.broker.context import Context
from streaming.broker.dispatch.dispatcher import Found, filter_entries, read, redelivery_time, send
from streaming.broker.dispatch.murmur3 import murmur3_31
from streaming.broker.dispatch.selectors import HashRangeExclusive
from streaming.broker.dispatch.sticky_key_hash import sticky_key_hash
from streaming.broker.subscription.consumer import Consumer

if TYPE_CHECKING:
    from streaming.broker.subscription.subscription import Subscription
    from streaming.broker.topic import Topic

RING_POINTS = 100
"""Points of a consumer on the hash ring that picks the active one."""

_PARTITION = re.compile(r"-partition-(\d+)$")


class SingleActiveConsumer(msgspec.Struct, array_like=True, tag="single"):
    """`active` = index in the subscription's consumers, −1: none. `pending_read` = entries a waiting read asked for.

    `takes_over` (ms, −1: no) = when the consumer that became active may start: the failover delay.
    `redeliver_at` (ms) = when all is read again because an entry filter put something off; each time has its own.
    """

    failover: bool = False
    active: int = -1
    pending_read: int = 0
    takes_over: int = -1
    redeliver_at: list[int] = []

    def active_consumer(self, subscription: "Subscription") -> Consumer | None:
        return subscription.consumers[self.active] if self.active >= 0 else None

    # -- consumers ------------------------------------------------------------------------------------------------

    def add_consumer(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer
    ) -> None:
        before = self.active_consumer(subscription)
        subscription.consumers.append(consumer)
        if not self._pick(ctx, topic, subscription, before) and self.failover:
            active = consumer is self.active_consumer(subscription)
            ctx.emit(_change(topic, consumer, is_active=active))

    def remove_consumer(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer
    ) -> bool:
        """Take a consumer out; whoever becomes active reads at once. False: nothing is left for the caller to do."""
        before = self.active_consumer(subscription)
        subscription.consumers.remove(consumer)
        if subscription.consumers:
            self._pick(ctx, topic, subscription, before)
        else:
            self._nobody_reads()
        return False

    def drop_active(self, subscription: "Subscription") -> None:
        """A seek disconnects the active consumer.

        quirk: nobody takes its place before another comes or goes; mostly it is itself that comes back.
        """
        subscription.consumers.pop(self.active)
        self._nobody_reads()

    def _nobody_reads(self) -> None:
        self.active, self.pending_read = -1, 0
        self.redeliver_at.clear()

    def _pick(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", before: Consumer | None
    ) -> bool:
        """Choose the active consumer. True: it is another one, which starts at the first unacked entry."""
        consumers = subscription.consumers
        consumers.sort(key=lambda consumer: (consumer.priority, consumer.name.encode("utf-16-be")))
        best = sum(consumer.priority == consumers[0].priority for consumer in consumers)
        partition = _PARTITION.search(topic.name)
        first = partition is None and not ctx.config.activeConsumerFailoverRingForNonPartitioned
        if not self.failover or first:
            self.active = 0
        elif partition is not None and not ctx.config.activeConsumerFailoverConsistentHashing:
            self.active = int(partition[1]) % best
        else:
            self.active = pick_on_ring([consumer.name for consumer in consumers[:best]], topic.name)
        if consumers[self.active] is before:
            return False
        self.pending_read = 0
        delay = ctx.config.activeConsumerFailoverDelayTimeMillis if self.failover else 0
        if delay <= 0:
            self._take_over(ctx, topic, subscription)
        elif self.takes_over < 0:
            self.takes_over = ctx.clock + delay
            ctx.wake(topic.name, self.takes_over)
        return True

    def _take_over(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        self.redeliver_at.clear()
        topic.cursors[subscription.name].rewind(topic.ledger)
        active = self.active_consumer(subscription)
        if self.failover:
            for consumer in subscription.consumers:
                ctx.emit(_change(topic, consumer, is_active=consumer is active))
        self.read_more(ctx, topic, subscription)

    # -- triggers -------------------------------------------------------------------------------------------------

    def flow(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer, permits: int
    ) -> None:
        """Permits count always; they start a read only if they come from the active consumer and none is waiting."""
        consumer.permits += permits
        if consumer is self.active_consumer(subscription) and not self.pending_read and self.takes_over < 0:
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
        if consumer is not self.active_consumer(subscription) or self.takes_over >= 0:
            return
        self._read_again(ctx, topic, subscription)

    def _read_again(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        self.pending_read = 0
        topic.cursors[subscription.name].rewind(topic.ledger)
        self.read_more(ctx, topic, subscription)

    def new_entries(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """Entries were confirmed: a waiting read completes, with nothing (see `MultipleConsumers`): another one follows."""
        if self.pending_read:
            self.pending_read = 0
            self.read_more(ctx, topic, subscription)

    def due(self, ctx: Context) -> int:
        """When a timer of the dispatcher fires (ms), −1: none."""
        return min((at for at in (self.takes_over, *self.redeliver_at) if at >= 0), default=-1)

    def timer(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """Do what is due: hand over to the active consumer of now, read again what a filter put off.

        When all consumers have left in the meantime, there is still the rewind.
        """
        if 0 <= self.takes_over <= ctx.clock:
            self.takes_over = -1
            self._take_over(ctx, topic, subscription)
        later = [at for at in self.redeliver_at if at > ctx.clock]
        if len(later) < len(self.redeliver_at):
            self.redeliver_at = later
            if self.active >= 0 and self.takes_over < 0:
                self._read_again(ctx, topic, subscription)

    # -- reading --------------------------------------------------------------------------------------------------

    def read_more(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """Read and send while the active consumer has permits; then leave a read waiting."""
        active = self.active_consumer(subscription)
        while active is not None and active.permits > 0:
            wanted = min(active.permits, ctx.config.dispatcherMaxReadBatchSize)
            if ctx.config.preciseDispatcherFlowControl and active.average:
                per_entry = active.messages_per_entry
                wanted = min(-(-active.permits // per_entry), ctx.config.dispatcherMaxReadBatchSize)
            if not self._read(ctx, topic, subscription, wanted):
                self.pending_read = wanted
                return

    def _read(self, ctx: Context, topic: "Topic", subscription: "Subscription", wanted: int) -> bool:
        positions = topic.cursors[subscription.name].read(topic.ledger, wanted)
        if not positions:
            return False
        active = self.active_consumer(subscription)
        assert active is not None  # a read is only ever issued for one
        found = read(ctx, topic, positions)
        if active.hash_ranges and not self.failover:
            found = _in_ranges(found, active)
        found, rescheduled = filter_entries(ctx, topic, subscription, found, None)
        if rescheduled:
            due = redelivery_time(ctx)
            if due not in self.redeliver_at:
                self.redeliver_at.append(due)
                ctx.wake(topic.name, due)
        send(ctx, topic, subscription, active, found, None)
        return True


def _in_ranges(found: Found, consumer: Consumer) -> Found:
    """The entries whose keys an Exclusive consumer asked for; the others stay unacked."""
    selector = HashRangeExclusive()
    selector.assign(consumer.handle, consumer.hash_ranges)
    return [
        (position, entry)
        for position, entry in found
        if selector.select(selector.slot(sticky_key_hash(entry.metadata))) is not None
    ]


def pick_on_ring(names: list[str], topic: str) -> int:
    """Which of the consumers a hash ring picks for a topic (its full name)."""
    ring = {
        murmur3_31(f"{name}{point}".encode()): i
        for i, name in enumerate(names)
        for point in range(RING_POINTS)
    }
    points = sorted(ring)
    place = bisect_left(points, murmur3_31(topic.encode()))
    return ring[points[place if place < len(points) else 0]]


def _change(topic: "Topic", consumer: Consumer, *, is_active: bool) -> ActiveConsumerChange:
    return ActiveConsumerChange(
        topic.name, consumer.connection, consumer.consumer_id, ActiveConsumerChangeFields(is_active=is_active)
    )
