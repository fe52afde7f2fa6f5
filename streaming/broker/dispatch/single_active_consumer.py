"""Dispatch to one active consumer: Exclusive and Failover (mirrors `PersistentDispatcherSingleActiveConsumer`;
rules: docs/rules/subscriptions.md §12–§16)."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import msgspec

from schemas.commands import IntRange
from schemas.effect_fields import ActiveConsumerChangeFields
from schemas.effects import ActiveConsumerChange
from schemas.entries import Entry
from streaming.broker.dispatch.dispatcher import Dispatcher, retry_delay
from streaming.broker.dispatch.murmur3 import murmur3_31
from streaming.broker.dispatch.selectors import HashRangeExclusive
from streaming.broker.dispatch.sending import Found, filter_entries, goes_out_at_once, read, send
from streaming.broker.dispatch.sticky_key_hash import sticky_key_hash
from streaming.broker.dispatch.verdict import (
    Verdict,
    Whereabouts,
    not_active,
    permits_of,
    rate_of,
)
from streaming.broker.names import partition_index
from streaming.broker.position import EARLIEST, Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.context import SubscriptionContext
from streaming.broker.subscription.subscription import Subscription

RING_POINTS = 100
"""Points per consumer on the hash ring that picks the active consumer."""


class SingleActiveConsumer(Dispatcher, tag="single"):
    """`active` = index in the subscription's consumers, or −1; `pending_read` = entries that a waiting read asked for.

    `departed` = name, connection and id of the active consumer if a seek closed it while others were connected: Pulsar
    still takes it for the active one. `takes_over` = when a new active consumer may start, after the failover delay (ms; −1 if none waits).
    `redeliver_at` = times (ms) at which to read everything unacked again because an entry filter rescheduled something;
    `asleep` = those of them at which nothing would come of it (see `Dispatcher.timer`). `has_read`: whether a read has ended since the first
    of the consumers joined, see `_compacted_start`.
    """

    failover: bool = False
    active: int = -1
    pending_read: int = 0
    takes_over: int = -1
    redeliver_at: list[int] = msgspec.field(default_factory=list)
    asleep: list[int] = msgspec.field(default_factory=list)
    departed: tuple[str, str, int] | None = None
    has_read: bool = False

    def active_consumer(self, consumers: list[Consumer]) -> Consumer | None:
        """The active consumer, or None."""
        return consumers[self.active] if self.active >= 0 else None

    # -- consumers ------------------------------------------------------------------------------------------------

    def check(self, consumer: Consumer) -> None:
        """Exclusive: the consumer's hash ranges, if it gives any, must be valid."""
        if not self.failover and consumer.hash_ranges:
            HashRangeExclusive().check(consumer)

    def add_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> None:
        """Add a consumer. If it becomes the active one, it starts at the first unacked entry."""
        before = self.active_consumer(sub.consumers)
        if not sub.consumers:
            self.has_read = False
        if self._takes_first(sub):
            sub.consumers.append(consumer)
        else:
            insort(sub.consumers, consumer, key=_order)
        if not self._pick(sub, before) and self.failover:
            active = consumer is self.active_consumer(sub.consumers)
            sub.ctx.emit(_change(sub, consumer, is_active=active))

    def remove_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> bool:
        """Remove a consumer. Returns False, since a new active consumer reads without help from the caller."""
        before = self.active_consumer(sub.consumers)
        sub.consumers.remove(consumer)
        if sub.consumers:
            self._pick(sub, before)
        else:
            self._forget_departed(sub)
            self._nobody_reads()
        return False

    def remove_together(self, sub: SubscriptionContext, consumers: Sequence[Consumer]) -> bool:
        """See `Dispatcher`. Nobody needs to know which of those that leave would have been active for a moment, but that one was: so
        the last to leave leaves after the active one."""
        active, last = self.active_consumer(sub.consumers), consumers[-1]
        leaving = {consumer.handle for consumer in consumers}
        sub.consumers[:] = [
            each for each in sub.consumers if each is active or each is last or each.handle not in leaving
        ]
        if active is not None:
            self.active = next(place for place, each in enumerate(sub.consumers) if each is active)
            if active is not last and active.handle in leaving:
                self.remove_consumer(sub, active)
        return self.remove_consumer(sub, last)

    def closed_by_seek(self, consumers: list[Consumer]) -> list[Consumer]:
        """The active consumer."""
        active = self.active_consumer(consumers)
        return [] if active is None else [active]

    @property
    def closed_active(self) -> Handle | None:
        """quirk: the active consumer that a seek closed. Each further seek closes it again."""
        return None if self.departed is None else self.departed[1:]

    def after_seek(self, sub: SubscriptionContext) -> None:
        """quirk: no other consumer becomes active until the next one joins or leaves. Usually the closed one reconnects."""
        if self.active >= 0:
            closed = sub.consumers.pop(self.active)
            self._nobody_reads()
            if sub.consumers:
                self.departed = (closed.name, *closed.handle)

    def can_unsubscribe(self, consumers: list[Consumer], consumer: Consumer) -> bool:
        """Whether the consumer is the only one, and the active one."""
        return super().can_unsubscribe(consumers, consumer) and consumer is self.active_consumer(consumers)

    def remembered(self) -> Collection[str]:
        """The connection of `closed_active`."""
        return () if self.departed is None else self.departed[1:2]

    def _forget_departed(self, sub: SubscriptionContext) -> None:
        if self.departed is not None:
            sub.ctx.part(self.departed[1], sub.topic)
            self.departed = None

    def _nobody_reads(self) -> None:
        self.active, self.pending_read = -1, 0
        self.redeliver_at.clear()

    def _pick(self, sub: SubscriptionContext, before: Consumer | None) -> bool:
        """Choose the active consumer. Returns True if it changed: the new one starts at the first unacked entry."""
        consumers, config = sub.consumers, sub.ctx.config
        best = bisect_right(consumers, consumers[0].priority, key=lambda consumer: consumer.priority)
        partition = partition_index(sub.topic)
        first = partition < 0 and not config.activeConsumerFailoverRingForNonPartitioned
        if not self.failover or first or self._takes_first(sub):
            self.active = 0
        elif partition >= 0 and not config.activeConsumerFailoverConsistentHashing:
            self.active = partition % best
        else:
            self.active = pick_on_ring([consumer.name for consumer in consumers[:best]], sub.topic)
        if consumers[self.active] is before:
            return False
        self._forget_departed(sub)
        self.pending_read = 0
        delay = config.activeConsumerFailoverDelayTimeMillis if self.failover else 0
        if delay <= 0:
            self._take_over(sub)
        elif self.takes_over < 0:
            self.takes_over = sub.ctx.clock + delay
            sub.wake(self.takes_over)
        return True

    def _takes_first(self, sub: SubscriptionContext) -> bool:
        """Whether the consumer that connected first is active."""
        return sub.ctx.config.activeConsumerFailoverFirstConnected and partition_index(sub.topic) < 0

    def _take_over(self, sub: SubscriptionContext) -> None:
        self.redeliver_at.clear()
        self.pending_read = 0  # a retry may have left one since the former consumer was active
        active = self.active_consumer(sub.consumers)
        sub.cursor.rewind(sub.ledger, compacted=active is not None and active.reads_compacted)
        if self.failover:
            for consumer in sub.consumers:
                sub.ctx.emit(_change(sub, consumer, is_active=consumer is active))
        self.read_more(sub)

    # -- triggers -------------------------------------------------------------------------------------------------

    def flow(self, sub: SubscriptionContext, consumer: Consumer, permits: int) -> None:
        """Add permits. They start a read only if the consumer is active and no read is waiting."""
        consumer.permits += permits
        active = consumer is self.active_consumer(sub.consumers)
        if active and not self.pending_read and self.takes_over < 0:
            self.read_more(sub)

    def redeliver(
        self,
        sub: SubscriptionContext,
        consumer: Consumer,
        positions: list[Position] | None,
        epoch: int | None,
    ) -> None:
        """Redeliver everything unacked, whatever `positions` says. Ignore consumers that aren't active."""
        if epoch is not None and epoch > consumer.epoch:
            consumer.epoch = epoch
        if consumer is self.active_consumer(sub.consumers) and self.takes_over < 0:
            self._read_again(sub)

    def redeliver_aborted(self, sub: SubscriptionContext, positions: list[Position]) -> None:
        """Everything unacked is sent again, in order."""
        if self.active >= 0 and self.takes_over < 0:
            self._read_again(sub)

    def _read_again(self, sub: SubscriptionContext) -> None:
        """Read from the first unacked entry. This cancels a waiting read, also that of a terminated topic, which failed."""
        self.pending_read, sub.subscription.end_reached = 0, False
        active = self.active_consumer(sub.consumers)
        sub.cursor.rewind(sub.ledger, compacted=active is not None and active.reads_compacted)
        self.read_more(sub)

    def new_entry(self, sub: SubscriptionContext, position: Position, entry: Entry) -> None:
        """Complete a waiting read with nothing (see `MultipleConsumers`), and issue the next one, which finds the entry."""
        active, self.pending_read = self.active_consumer(sub.consumers), 0
        if (
            active is None
            or active.permits <= 0
            or (active.hash_ranges and not self.failover)
            or not (self.sends_at_once and goes_out_at_once(sub, position, entry))
        ):
            self.read_more(sub)
            return
        sub.cursor.read_position = position.next()
        self.has_read = True
        send(sub, active, [(position, entry)], None)
        if active.permits > 0:
            self.pending_read = self._wanted(sub, active)

    def retry(self, sub: SubscriptionContext) -> None:
        """Read on, unless a read is waiting."""
        if not self.pending_read:
            self.read_more(sub)

    def due(self) -> int:
        """The earliest of the takeover by the active consumer and the redelivery times that filters asked for."""
        if not self.redeliver_at:
            return self.takes_over
        return min([at for at in (self.takes_over, *self.redeliver_at) if at >= 0])

    def timer(self, sub: SubscriptionContext) -> bool:
        """Hand over to the consumer that is active now, and read rescheduled entries again.

        The cursor rewinds even if all consumers have left in the meantime.
        """
        ctx, cursor = sub.ctx, sub.cursor
        filtered = sub.subscription.filtered
        before = ctx.ordinal, cursor.consumed, cursor.read_position, self.pending_read
        judged = filtered.processed
        if takes_over := 0 <= self.takes_over <= ctx.clock:
            self.takes_over = -1
            self._take_over(sub)
        later = [at for at in self.redeliver_at if at > ctx.clock]
        if len(later) < len(self.redeliver_at):
            self.redeliver_at = later
            if self.active >= 0 and self.takes_over < 0:
                self._read_again(sub)
        if takes_over or (ctx.ordinal, cursor.consumed, cursor.read_position, self.pending_read) != before:
            return True
        again = ctx.clock + retry_delay(ctx.config)
        # A look at a rate limiter makes a difference: permits are added when somebody looks.
        if again in self.redeliver_at and sub.throttle is None:
            self.redeliver_at.remove(again)
            self.asleep.append(again)
            sub.subscription.asleep_messages[again] = filtered.processed - judged
        return False

    def resume_retries(self, subscription: Subscription, now: int, delay: int) -> None:
        """They keep the rhythm of the first one, and each would have raised the counts of the filters."""
        for at in self.asleep:
            missed = max((now - at) // delay + 1, 0)
            subscription.filtered.reschedule(missed * subscription.asleep_messages[at])
            due = at + missed * delay
            if due not in self.redeliver_at:
                self.redeliver_at.append(due)
        self.asleep.clear()
        subscription.asleep_messages.clear()

    # -- reading --------------------------------------------------------------------------------------------------

    def read_more(self, sub: SubscriptionContext) -> None:
        """Read and send while the active consumer has permits. At the end of the topic, leave a read waiting."""
        active, at_end = self.active_consumer(sub.consumers), False
        takes_one_more = sub.ctx.config.compactedReadsTakeOneMore
        while active is not None and active.permits > 0:
            asked = self._wanted(sub, active)
            if not (wanted := sub.readable(asked, only_new=True)):
                return
            if self._read_compacted(sub, active, asked + 1 if takes_one_more else wanted):
                at_end = False
                continue
            if at_end or not (count := self._read(sub, active, wanted)):
                self.pending_read = sub.waiting(wanted)
                return
            at_end = count < wanted

    def _wanted(self, sub: SubscriptionContext, active: Consumer) -> int:
        """How many entries the active consumer, which has permits, lets a read ask for."""
        permits, config = active.permits, sub.ctx.config
        if config.preciseDispatcherFlowControl and active.average:
            permits = -(-permits // max(active.messages_per_entry, 1))  # rounded up
        most = sub.subscription.read_batch or config.dispatcherMaxReadBatchSize
        return permits if permits < most else most

    def _read(self, sub: SubscriptionContext, active: Consumer, wanted: int) -> int:
        """Read and send up to so many entries. Returns how many there were."""
        stays = active.reads_compacted and not sub.ctx.config.waitingReadsReturnEntries
        positions = sub.cursor.read(sub.ledger, wanted, stays=stays)
        if not positions:
            return 0
        self.has_read = True
        self._send(sub, active, read(sub, positions))
        return len(positions)

    def _read_compacted(self, sub: SubscriptionContext, active: Consumer, wanted: int) -> bool:
        """Read and send up to so many entries of the compacted ledger (mirrors `CompactedTopicUtils`). Returns False if the consumer reads
        the topic itself now."""
        compacted, cursor = sub.compacted, sub.cursor
        if compacted is None or not active.reads_compacted:
            return False
        start = self._compacted_start(sub, active)
        if start > compacted.horizon:
            return False
        self.has_read = True
        first, positions = compacted.find(start, wanted)
        if not positions:
            after = compacted.horizon.next()
            cursor.read_position = (
                after if after > cursor.mark_delete else sub.ledger.next_valid(cursor.mark_delete)
            )
            return True
        entries = sub.ctx.entries.whole(sub.topic, compacted.id, first, first + len(positions) - 1)
        if sub.subscription.read_batch:
            sub.read_completed()
        cursor.read_position = positions[-1].next()
        self._send(sub, active, list(zip(positions, entries, strict=True)), whole=True)
        return True

    def _compacted_start(self, sub: SubscriptionContext, active: Consumer) -> Position:
        """quirk: the first read of a consumer that starts at the earliest message goes through all compacted data, although its cursor may
        begin at a ledger behind some of it. Of a durable cursor, only while that has not moved from the beginning of a ledger, see
        durableReadsBeginAnew."""
        cursor = sub.cursor
        moved = cursor.durable and cursor.mark_delete.entry >= 0 and not sub.ctx.config.durableReadsBeginAnew
        if not self.has_read and active.from_earliest and not moved:
            return EARLIEST
        return cursor.read_position

    def _send(self, sub: SubscriptionContext, active: Consumer, found: Found, *, whole: bool = False) -> None:
        """Send what the active consumer may get of entries that were read. `whole`: with their payloads, see `send`."""
        if active.hash_ranges and not self.failover:
            found = _in_ranges(found, active, spreads_keyless=sub.ctx.config.keySharedSpreadsKeyless)
        found, rescheduled = filter_entries(sub, found, None)
        if rescheduled:
            due = sub.ctx.clock + retry_delay(sub.ctx.config)
            if due not in self.redeliver_at:
                self.redeliver_at.append(due)
                sub.wake(due)
        send(sub, active, found, None, whole=whole)

    # -- why nothing is delivered ---------------------------------------------------------------------------------

    def verdicts(self, sub: SubscriptionContext) -> Iterator[Verdict]:
        """Who is active, and whether that consumer has permits."""
        active = self.active_consumer(sub.consumers)
        if active is None and self.departed is not None:
            text = f"a seek closed {self.departed[0]}, and no consumer is active until one joins or leaves"
            yield Verdict("active consumer", True, text)
        if self.takes_over >= 0:
            text = f"{'the new one' if active is None else active.shown} is not active before the failover delay is over"
            yield Verdict("activeConsumerFailoverDelayTimeMillis", True, text, until=self.takes_over)
        yield from rate_of(sub)
        if later := [*self.redeliver_at, *self.asleep]:
            text = "an entry filter rescheduled entries, so everything unacked is read again"
            yield Verdict("entryFilters", False, text, until=min(later))
        for consumer in sub.consumers:
            if consumer is active:
                yield permits_of(consumer)
                continue
            yield not_active(consumer.name, None if active is None else active.shown)

    def whereabouts(self, sub: SubscriptionContext, position: Position) -> Whereabouts:
        """What the cursor has read is with the active consumer."""
        active = self.active_consumer(sub.consumers)
        if active is None or position >= sub.cursor.read_position:
            return super().whereabouts(sub, position)
        return Whereabouts("in flight", f"at {active.shown}, which has not acked it", active.name)

    # -- stats ----------------------------------------------------------------------------------------------------

    def stats(self, consumers: list[Consumer]) -> dict[str, Any]:
        """`activeConsumerName`, or nothing without an active consumer."""
        active = self.active_consumer(consumers)
        if active is not None:
            return {"activeConsumerName": active.name}
        return {} if self.departed is None else {"activeConsumerName": self.departed[0]}


def _in_ranges(found: Found, consumer: Consumer, *, spreads_keyless: bool) -> Found:
    """The entries whose keys an Exclusive consumer asked for. The others stay unacked."""
    slot_of, ranges = HashRangeExclusive().slot, consumer.hash_ranges
    kept: Found = []
    for position, entry in found:
        slot = slot_of(sticky_key_hash(entry.metadata, spreads_keyless=spreads_keyless))
        place = bisect_left(ranges, slot, key=_last_slot)
        if place < len(ranges) and ranges[place].start <= slot:
            kept.append((position, entry))
    return kept


def _last_slot(given: IntRange) -> int:
    return given.end


def pick_on_ring(names: list[str], topic: str) -> int:
    """The index of the consumer that a hash ring picks for a topic (its full name)."""
    places = list(map(_nearest, names, repeat(topic)))
    # of names with a point in the same place, the last one owns it
    return len(places) - 1 - places[::-1].index(min(places))


@lru_cache(maxsize=1 << 16)
def _nearest(name: str, topic: str) -> tuple[bool, int]:
    """A consumer's first point at or after the topic's place on the ring: does the way there pass 0, and the point."""
    place = murmur3_31(topic.encode())
    points = (murmur3_31(f"{name}{point}".encode()) for point in range(RING_POINTS))
    return min((point < place, point) for point in points)


def _order(consumer: Consumer) -> tuple[int, bytes]:
    """By priority, then by name as Java compares strings."""
    return consumer.priority, consumer.name.encode("utf-16-be")


def _change(sub: SubscriptionContext, consumer: Consumer, *, is_active: bool) -> ActiveConsumerChange:
    return ActiveConsumerChange(
        sub.topic, consumer.connection, consumer.consumer_id, ActiveConsumerChangeFields(is_active=is_active)
    )
