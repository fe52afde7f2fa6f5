"""What a dispatcher needs of its subscription while the broker folds a command."""

from typing import Any

import msgspec

from schemas.effects import ReachedEndOfTopic
from streaming.broker.context import Context
from streaming.broker.ledger.compacted_ledger import CompactedLedger
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.policies.hierarchy import HierarchyTopicPolicies
from streaming.broker.position import Position
from streaming.broker.rates.dispatch_rate_limiter import (
    BACKOFF,
    DispatchRateLimiter,
    Permits,
    ReadThrottle,
    permits,
)
from streaming.broker.rates.rate import end_of_interval
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.subscription import Subscription
from streaming.broker.subscription.timers import SubscriptionTimers
from streaming.broker.transactions.transaction_buffer import TransactionBuffer


class SubscriptionContext(msgspec.Struct, frozen=True, gc=False):
    """A subscription and its cursor, with the name, policies and ledger of its topic. `consumers` are the subscription's.

    `throttle` is None if no dispatch rate limits the subscription, else `limiters` are those that do, as `permits` expects
    them. `consumer_limit`: how many unacked messages each consumer may have. 0: no limit, as on non-durable subscriptions. `compacted`: what the
    last compaction of the topic kept. None: there was none. `transactions`: see `PersistentTopic`.

    Created for each command. Do not keep one for longer.
    """

    ctx: Context
    topic: str
    policies: HierarchyTopicPolicies
    ledger: ManagedLedger
    cursor: ManagedCursor
    subscription: Subscription
    consumers: list[Consumer]
    timers: SubscriptionTimers[Any]
    consumer_limit: int
    compacted: CompactedLedger | None = None
    throttle: ReadThrottle | None = None
    limiters: tuple[DispatchRateLimiter, ...] = ()
    transactions: TransactionBuffer | None = None

    @property
    def tick(self) -> int | None:
        """The precision of delivery times by the policies of the topic (ms). None: that of the broker."""
        policy, level = self.policies.delayedDelivery
        return None if level == "broker" else policy.tickTime

    @property
    def passed_to(self) -> Position:
        """Entries up to here are not sent any more: the mark-delete position is behind them, or their ledgers are deleted."""
        first = next(iter(self.ledger.ledgers), self.ledger.current)
        return max(self.cursor.mark_delete, Position(first, -1))

    @property
    def is_backlogged(self) -> bool:
        """Whether the subscription has so many entries left to read that dispatch rates limit it in any case."""
        cursor, ledger = self.cursor, self.ledger
        left = 0
        if cursor.read_position <= ledger.last_confirmed:
            left = ledger.count(
                cursor.read_position, ledger.last_confirmed, include_start=True, include_end=True
            )
        return left >= self.ctx.config.managedLedgerCursorBackloggedThreshold

    def wake(self, due: int) -> None:
        """Run the subscription's timers when the clock reaches `due` (ms)."""
        self.timers.wake(self.subscription.name, due)
        self.ctx.wake(self.topic, due)

    def readable(self, entries: int, *, replay: bool = False, only_new: bool = False) -> int:
        """How many of so many `entries` a dispatcher may read now. 0: none, until the topic's timer.

        `replay`: entries before the read position may be among them. `only_new`: only new ones are, so that `fitting` asks nothing more.
        dispatcherMaxReadSizeBytes and dispatch rates limit the bytes, but one entry may always be read, however large.
        """
        if self.ctx.ordinal >= self.ctx.spent_at:
            self.wake(self.subscription.put_off(self.ctx.clock, self.ctx.until + 1))
            return 0
        config = self.ctx.config
        size = config.dispatcherMaxReadSizeBytes
        if self.throttle is not None:
            found = self._permits(self.throttle, Permits(entries, size))
            if found is None:
                return 0
            entries, size = found
        cursor, ledger = self.cursor, self.ledger
        if not config.readsByLedgerSizes:
            return self._within(size, entries) if only_new or self.throttle is not None else entries
        if replay or cursor.read_position < ledger.last_confirmed:
            return ledger.entries_within(size, cursor.read_position, entries)
        return entries

    def read_completed(self) -> None:
        """A read returned entries. After one that failed, the next may return twice as many, up to dispatcherMaxReadBatchSize."""
        if batch := self.subscription.read_batch:
            most = self.ctx.config.dispatcherMaxReadBatchSize
            self.subscription.read_batch = 2 * batch if 2 * batch < most else 0

    def fitting(self, entries: int) -> int:
        """How many of so many entries a read may return at the read position. See readsByLedgerSizes."""
        config = self.ctx.config
        return (
            entries if config.readsByLedgerSizes else self._within(config.dispatcherMaxReadSizeBytes, entries)
        )

    def _within(self, size: int, entries: int) -> int:
        average = self.cursor.average_size(self.ledger)
        return max(min(int(size / average), entries), 1) if average else 1

    def _permits(self, throttle: ReadThrottle, wanted: Permits) -> Permits | None:
        found = permits(self.limiters, throttle, (self.topic, self.subscription.name), wanted, self.ctx.clock)
        if found is None:
            self._retry_when_caught_up(throttle)
        if throttle.due >= 0:
            self.wake(throttle.due)
        for limiter in self.limiters:
            self.ctx.wake_waiting(limiter)
        return found

    def _retry_when_caught_up(self, throttle: ReadThrottle) -> None:
        """Nobody limits the subscription any more at its first look after the present interval of stats, if it has caught up."""
        config = self.ctx.config
        if not config.dispatchThrottlingOnNonBacklogConsumerEnabled and not self.is_backlogged:
            end = end_of_interval(self.ctx.clock, config)
            look = end + (throttle.retry_at - end) % BACKOFF
            if throttle.queued:
                throttle.caught_up_at = look
            else:
                throttle.retry_at = min(throttle.retry_at, look)

    def sent(self, entries: int, messages: int, size: int) -> None:
        """Take the permits of entries that were sent, with so many messages and bytes."""
        if self.ctx.config.dispatchThrottlingOnBatchMessageEnabled:
            messages = entries
        for limiter in self.limiters:
            limiter.use(messages, size, self.ctx.clock)

    def check_end_of_topic(self) -> None:
        """Send REACHED_END_OF_TOPIC to the consumers if the topic is terminated and there is no backlog.

        C++ clients close their connection because of that command (docs/rules/protocol.md §19).
        """
        if self.ledger.terminated and self.cursor.backlog(self.ledger) == 0:
            for consumer in self.consumers:
                self.ctx.emit(ReachedEndOfTopic(self.topic, consumer.connection, consumer.consumer_id))

    def waiting(self, wanted: int, *, each_shrinks: bool = False) -> int:
        """A read of `wanted` entries found none: how many it waits for.

        On a terminated topic it fails instead, which tells the consumers that they have reached the end, and the next read that
        returns anything returns dispatcherMinReadBatchSize entries at most. quirk: the cursor takes the read that failed for one that waits, so later reads
        do nothing until the topic is loaded again or a redelivery to an active consumer cancels it. Another quirk: without any
        ledger, no read of 4.0 gets that far. `each_shrinks`: those later reads make the next one smaller, too.
        """
        if not self.ledger.terminated:
            return wanted
        config = self.ctx.config
        gets_there = self.ledger.ledgers or config.readsWithoutLedgers or not config.readsByLedgerSizes
        if gets_there:
            first = not self.subscription.end_reached
            if first or each_shrinks:
                self.subscription.read_batch = config.dispatcherMinReadBatchSize
            if first:
                self.subscription.end_reached = True
                self.check_end_of_topic()
        return 0
