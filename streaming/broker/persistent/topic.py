"""The state of a topic that stores its messages, and what all mechanisms do with its cursors (mirrors `PersistentTopic`)."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import NamedTuple, ParamSpec

import msgspec

from schemas.effects import CursorMoved, Evicted, Expired
from streaming.broker.context import Context
from streaming.broker.ledger.compacted_ledger import CompactedLedger
from streaming.broker.ledger.cursor_writes import change_cursor
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.names import COMPACTION_CURSOR
from streaming.broker.persistent.publish.message_deduplication import MessageDeduplication
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.position import EARLIEST, Position
from streaming.broker.producer.producer import Producer
from streaming.broker.rates.dispatch_rate_limiter import DispatchRateLimiter, ReadThrottle
from streaming.broker.rates.publish_rate_limiter import PublishRateLimiter
from streaming.broker.rates.rate import Rate
from streaming.broker.rates.token_bucket import TokenBucket
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.context import SubscriptionContext
from streaming.broker.subscription.timers import SubscriptionTimers
from streaming.broker.topic.abstract_topic import AbstractTopic, Counters
from streaming.broker.topic.handles import Handles
from streaming.broker.transactions.transaction_buffer import TransactionBuffer

P = ParamSpec("P")


_LEAST = 2.0**-1022
"""Below this, a float that is halved is rounded, so that it matters how many intervals end at once."""


def _average(before: float, rate: float, half: float) -> float:
    """A rate that falls is halfway between the last two. `half`: a half for each empty interval that follows."""
    average = (rate if rate > before else (rate + before) / 2) * half
    return average if average >= _LEAST else 0.0


class Reason(NamedTuple):
    """Why the broker moves a cursor: the kind of effect, the cause in words, and the policy that demands it.

    `by_expiry`: an eviction that Pulsar leaves to the expiry of messages, so that its stats count it as expired.
    """

    kind: Callable[..., CursorMoved | Expired | Evicted]
    cause: str
    policy: str | None = None
    by_expiry: bool = False

    @property
    def expires(self) -> bool:
        """Whether the expiry of messages moves the cursor."""
        return self.kind is Expired or self.by_expiry


class PersistentCounters(Counters):
    """Counts since the topic's creation. `duplicates` and `unknown`: messages that deduplication refused. `trimmed` in
    entries.
    """

    duplicates: int = 0
    unknown: int = 0
    trimmed: int = 0
    ledgers_trimmed: int = 0
    size_evictions: int = 0
    time_evictions: int = 0


SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""The property that makes a shadow topic. Its value is the name of the source."""

ENTRIES = "magnetar.entries"
"""The property of a topic that has entries that are not those of its source, but made of what its stats say. Its value is ``sampled``."""


class OldestPosition(msgspec.Struct, array_like=True):
    """What the age quota remembers (docs/rules/quotas.md §3): the oldest unacked position, its cursor and its time
    (ms)."""

    position: Position
    cursor: str
    timestamp: int


class Drift(msgspec.Struct, array_like=True, frozen=True):
    """How much more there is here than on the source. Of a subscription: `entries` in the backlog, unacknowledged `messages`, and as
    `size` the entries after its mark-delete position. Of a topic: stored `entries` and their `size` in bytes."""

    entries: int = 0
    messages: int = 0
    size: int = 0


SOURCE_UNSEEN = 900_000
"""After so long without a MIRROR (ms), nobody is looking at a source any more: `magnetar mirror` writes one each ten minutes at least."""


class MirroredCursor(msgspec.Struct, array_like=True):
    """`expired_to`: up to where rules of the source have moved the subscription. `since`: the time (ms) of the MIRROR since which its backlog or
    mark-delete position differs; 0: they do not. `cause`: of its drift, if it has any."""

    expired_to: Position = EARLIEST
    drift: Drift = Drift()
    since: int = 0
    cause: str = ""


class Mirrored(msgspec.Struct, array_like=True):
    """What a shadow topic knows of its source. `bases`: how many messages consumers, by connection, had got on the source and
    acknowledged when they connected here. `seen`: the time (ms) of the latest MIRROR; 0: there was none. `cause`: of its drift, if it has any."""

    drift: Drift = Drift()
    subscriptions: dict[str, MirroredCursor] = {}
    bases: dict[str, int] = {}
    seen: int = 0
    cause: str = ""


class Compaction(msgspec.Struct, array_like=True):
    """`ledger`: what the last compaction kept; None: there was none. Since the topic was loaded: `has_run` and `error` (the reason if the
    last one failed) are its status, `succeeded` and `failed` the times (ms) of the last that did, 0: none. `removed`: how many messages
    the last one removed. `settled`: the last message of the topic and the cursor's mark-delete position when the last one that read the
    topic ended. `successes`, `failures`, `removed_in_all`: of all since the topic was loaded."""

    ledger: CompactedLedger | None = None
    has_run: bool = False
    error: str = ""
    removed: int = 0
    succeeded: int = 0
    failed: int = 0
    settled: tuple[Position, Position] | None = None
    successes: int = 0
    failures: int = 0
    removed_in_all: int = 0


class PersistentTopic(AbstractTopic, kw_only=True, dict=True):
    """`cursors` has every cursor by name, in order of creation. `fail_writes`: how many more writes fail because of the
    fault FailWrites. `properties`: what operators note on the topic. `dispatch_limiter` limits all dispatchers of the topic.
    `publish_rates`: how many messages and bytes per second dispatch rates see that are relative to that. `publish_limited`:
    how often the publish rate made the broker stop reading from a connection. `subscribe_buckets`: how often consumers may
    still subscribe, by name and id. `mirrored`: what a shadow topic knows of its source. `updated_ttl`: the TTL (s) at the last change
    of policies since the topic was loaded, see messageExpiryOnEachPolicyUpdate. `compaction`: what compaction has left.
    `transactions`: which ones the topic knows; None: it, and its subscriptions, have had none.
    """

    has_transactions = True

    ledger: ManagedLedger
    dedup: MessageDeduplication = msgspec.field(default_factory=MessageDeduplication)
    cursors: dict[str, ManagedCursor] = msgspec.field(default_factory=dict)
    subscriptions: dict[str, PersistentSubscription] = msgspec.field(default_factory=dict)
    fail_writes: int = 0
    oldest: OldestPosition | None = None
    counters: PersistentCounters = msgspec.field(default_factory=PersistentCounters)
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    dispatch_limiter: DispatchRateLimiter | None = None
    publish_limiter: PublishRateLimiter = msgspec.field(default_factory=PublishRateLimiter)
    publish_rates: tuple[float, float] = (0.0, 0.0)
    publish_limited: Rate = msgspec.field(default_factory=Rate)
    subscribe_buckets: dict[tuple[str, int], TokenBucket] = msgspec.field(default_factory=dict)
    mirrored: Mirrored = msgspec.field(default_factory=Mirrored)
    updated_ttl: int = 0
    compaction: Compaction = msgspec.field(default_factory=Compaction)
    transactions: TransactionBuffer | None = None

    def buffer(self) -> TransactionBuffer:
        """`transactions`, from now on."""
        if self.transactions is None:
            self.transactions = TransactionBuffer()
            self.ledger.max_read = self.ledger.last_confirmed
        return self.transactions

    # -- what producers ask of a topic ----------------------------------------------------------------------------

    @property
    def terminated(self) -> bool:
        """Whether the topic takes no more messages, for good."""
        return self.ledger.terminated

    @property
    def is_shadow(self) -> bool:
        """Does the topic take its entries, and their positions, from a source topic (docs/rules/ledgers.md §15)?"""
        return SHADOW_SOURCE in self.properties

    @property
    def is_sampled(self) -> bool:
        """Has it entries that were made of the stats of its source, so that only their number, times and sizes mean something?"""
        return self.properties.get(ENTRIES) == "sampled"

    @property
    def is_new(self) -> bool:
        """Has nothing happened on the topic but that policies were set?"""
        written = self.ledger.last_confirmed.entry >= 0 or self.ledger.terminated
        return not (written or self.subscriptions or self.producers or self.properties)

    def follows_source(self, ctx: Context) -> bool:
        """Is it a shadow topic on which the source's broker decides what is deleted?"""
        return self.is_shadow and ctx.config.shadowTopicFollowsSource

    def source_expires_until(self, ctx: Context) -> int:
        """Until when (ms) the broker of its source decides what expires. Later nobody knows what happens there. −1: it never did."""
        return self.mirrored.seen + SOURCE_UNSEEN if self.follows_source(ctx) and self.mirrored.seen else -1

    def last_sequence_id(self, producer: str) -> int:
        """The highest pushed sequence id of a producer, or −1 if deduplication knows none."""
        return self.dedup.last_sequence_id(producer)

    def producer_added(self, producer: str) -> None:
        """Note for deduplication that a producer connected."""
        self.dedup.producer_added(producer)

    def producer_removed(self, producer: Producer, now: int) -> None:
        """Note for deduplication that a producer left, at `now` (ms)."""
        super().producer_removed(producer, now)
        self.dedup.producer_removed(producer.name, now, short_form=producer.producer_id is None)

    # -- connections ----------------------------------------------------------------------------------------------

    def remove_handle(self, ctx: Context, handles: Handles, handle: Handle) -> None:
        """A producer or consumer of a connection leaves."""
        if handles is self.consumer_handles and (name := handles.get(*handle)) is not None:
            self._left[handle[0]].add(name)
        super().remove_handle(ctx, handles, handle)

    def holds(self, connection: str) -> bool:
        """Does the topic have something of a connection, if only the memory of a consumer that left?"""
        if super().holds(connection):
            return True
        left = self._left.pop(connection, ())
        if remember := {name for name in left if connection in self._remembered(name)}:
            self._left[connection] = remember
        return bool(remember)

    def _remembered(self, name: str) -> Collection[str]:
        subscription = self.subscriptions.get(name)
        if subscription is None or subscription.dispatcher is None:
            return ()
        return subscription.dispatcher.remembered()

    @cached_property
    def _left(self) -> defaultdict[str, set[str]]:
        """Connection → the subscriptions that its consumers left, as far as these may remember some."""
        found = defaultdict(set)
        for name in self.subscriptions:
            for connection in self._remembered(name):
                found[connection].add(name)
        return found

    # -- consumers ------------------------------------------------------------------------------------------------

    @cached_property
    def connected(self) -> list[PersistentSubscription]:
        """The subscriptions that have consumers. Call `consumers_changed` when a consumer joins or leaves."""
        return [subscription for subscription in self.subscriptions.values() if subscription.consumers]

    def consumers_changed(self) -> None:
        """A consumer joins or leaves."""
        self.__dict__.pop("connected", None)

    @cached_property
    def timers(self) -> SubscriptionTimers[PersistentSubscription]:
        """The timers of the subscriptions."""
        return SubscriptionTimers(self.subscriptions)

    # -- rates ----------------------------------------------------------------------------------------------------

    def all_consumers(self) -> Iterable[Consumer]:
        """The connected consumers of all subscriptions."""
        return [consumer for each in self.subscriptions.values() for consumer in each.consumers]

    def end_intervals(self, ctx: Context, until: int, count: int) -> None:
        """Compute the rates of all clients, and the publish rate that dispatch rates may follow."""
        messages, size = self.end_intervals_of_clients(until)
        self.ledger.entry_sizes.end_interval()
        half = 0.5 ** min(count - 1, 1074)
        self.check_backlogged(ctx)
        before, size_before = self.publish_rates
        self.publish_rates = _average(before, messages, half), _average(size_before, size, half)

    def check_backlogged(self, ctx: Context) -> None:
        """Find out which subscriptions have caught up, if dispatch rates do not limit these."""
        if not ctx.config.dispatchThrottlingOnNonBacklogConsumerEnabled:
            for subscription in self.subscriptions.values():
                sub = self.context_of(ctx, subscription)
                subscription.caught_up = bool(subscription.consumers) and not sub.is_backlogged

    # -- cursors --------------------------------------------------------------------------------------------------

    def slowest_cursor(self) -> ManagedCursor | None:
        """The durable cursor with the smallest key, the oldest one of equals (docs/rules/retention.md §1)."""
        slowest, least = None, None
        for cursor in self.cursors.values():
            if cursor.durable and (least is None or cursor.key < least):
                slowest, least = cursor, cursor.key
        return slowest

    def context_of(self, ctx: Context, subscription: PersistentSubscription) -> SubscriptionContext:
        """A subscription of the topic, with all that its dispatcher needs."""
        cursor = self.cursors[subscription.name]
        policies = ctx.policies_of(self)
        limit = policies.maxUnackedMessagesPerConsumer
        if limit < 0 or not subscription.durable:
            limit = 0
        if policies.throttled and not (
            subscription.caught_up and not ctx.config.dispatchThrottlingOnNonBacklogConsumerEnabled
        ):
            throttle = subscription.throttle = subscription.throttle or ReadThrottle()
            published = int(self.publish_rates[0]), int(self.publish_rates[1])
            for limiter in (self.dispatch_limiter, throttle.limiter):
                if limiter is not None and limiter.rate.relativeToPublishRate:
                    limiter.follow(published, ctx.clock)
                    ctx.wake_waiting(limiter)
            limiters = tuple(
                limiter
                for limiter in (ctx.limits.dispatch, self.dispatch_limiter, throttle.limiter)
                if limiter is not None
            )
            return SubscriptionContext(
                ctx, self.name, policies, self.ledger, cursor, subscription, subscription.consumers, self.timers, limit,
                self.compaction.ledger, throttle, limiters, self.transactions,
            )  # fmt: skip
        return SubscriptionContext(
            ctx,
            self.name,
            policies,
            self.ledger,
            cursor,
            subscription,
            subscription.consumers,
            self.timers,
            limit,
            self.compaction.ledger,
            transactions=self.transactions,
        )

    def record_move(
        self,
        ctx: Context,
        cursor: ManagedCursor,
        reason: Reason,
        operation: Callable[P, object],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Position | None:
        """The broker moves a cursor by its own decision: do the `operation`, emit the move, count what left the backlog.

        Returns what `change_cursor` does. See `trimming.move_cursor` for all that follows from a move.
        """
        ledger = self.ledger
        before, acked, consumed = cursor.mark_delete, cursor.acked, cursor.consumed
        holes = acked.copy() if acked.ledgers and before < ledger.first_position() else None
        backlog = cursor.backlog(ledger) if reason.expires else 0
        if ctx.acks is not None:
            unacked = cursor.backlog(ledger, precise=True)
            ctx.observe_ack(self.name, cursor.name, (), before, before, unacked)
        former = change_cursor(ctx, ctx.policies_of(self), cursor, operation, *args, **kwargs)
        if cursor.batches and ctx.config.passedBatchesAreForgotten:
            cursor.forget_batches(ledger, before, last=False)
        entries = cursor.left(ledger, before, acked, consumed, holes)
        kind = reason.kind
        ctx.emit(
            kind(self.name, cursor.name, *before, *cursor.mark_delete, entries, reason.cause, reason.policy)
        )
        subscription = self.subscriptions.get(cursor.name)
        if subscription is not None and subscription.dispatcher is not None:
            subscription.dispatcher.passed(ledger, cursor, before)
        else:
            cursor.forget_batches(ledger, before)
        if subscription is not None and kind is Evicted:
            subscription.evicted += entries
        if subscription is not None and kind is Expired:
            subscription.expired += entries
            subscription.expired_before_load += entries
        if subscription is not None and reason.expires:
            # quirk: Pulsar counts by its backlog before and after, which may be off after a seek (docs/rules/cursors.md §7)
            counted = backlog - cursor.backlog(ledger)
            subscription.expired_before_load -= counted
            subscription.expired_rate.record(counted, ctx.clock, ctx.config)
            if cursor.mark_delete != before:
                subscription.last_mark_delete_advanced = ctx.clock
        return former

    def known_subscriptions(self) -> list[str]:
        """The sorted names of the subscriptions, without those whose reader was closed by a seek: Pulsar has dropped these."""
        return sorted(name for name, found in self.subscriptions.items() if not found.awaits_its_reader)

    def expiring_subscriptions(self) -> list[str]:
        """The subscriptions whose messages expire: all but that of compaction."""
        return [name for name in self.known_subscriptions() if name != COMPACTION_CURSOR]

    def backlog_size(self) -> int:
        """getEstimatedBacklogSize: bytes from the slowest durable cursor on (docs/rules/ledgers.md §10)."""
        slowest = self.slowest_cursor()
        return 0 if slowest is None else self.ledger.backlog_size_from(slowest.mark_delete)

    def backlog(self, *, precise: bool = False) -> int:
        """The unacked entries of the subscription with the most of them. `precise`: see `ManagedCursor.backlog`."""
        return max(
            (self.cursors[name].backlog(self.ledger, precise=precise) for name in self.subscriptions),
            default=0,
        )
