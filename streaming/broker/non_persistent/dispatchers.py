"""Who gets a message that nothing keeps: a dispatcher for each subscription type (mirrors
`NonPersistentDispatcherSingleActiveConsumer`, `NonPersistentDispatcherMultipleConsumers` and
`NonPersistentStickyKeyDispatcherMultipleConsumers`).

A dispatcher names the consumer for one message. If that consumer cannot take it, the message is dropped.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import ClassVar

import msgspec

from schemas.commands import KeySharedMeta, MessageMetadata, SubType
from schemas.effect_fields import ActiveConsumerChangeFields
from schemas.effects import ActiveConsumerChange
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context
from streaming.broker.dispatch.selectors import (
    CLASSIC_RING_SIZE,
    RANGE_SIZE,
    ConsistentHashing,
    Selector,
    new_selector,
)
from streaming.broker.dispatch.single_active_consumer import pick_on_ring
from streaming.broker.dispatch.sticky_key import KeySharedMode, key_shared, key_shared_mismatch
from streaming.broker.dispatch.sticky_key_hash import sticky_key_hash
from streaming.broker.names import partition_index
from streaming.broker.subscription.consumer import Consumer


class NonPersistentDispatcher(msgspec.Struct, array_like=True):
    """The methods without a body must be there in each type; the others do nothing where a type has nothing to do.

    `counts_unassigned`: does a message that no consumer is named for count as dropped?
    """

    counts_unassigned: ClassVar[bool] = True

    def mismatch(self, meta: KeySharedMeta | None) -> str | None:
        """Why a consumer that asks for this Key_Shared mode cannot join the present ones; None: it can."""
        return None

    def check(self, consumer: Consumer) -> None:
        """Raises `BrokerError` if the consumer cannot have the hash ranges it asks for."""

    @abstractmethod
    def add_consumer(self, ctx: Context, topic: str, consumers: list[Consumer], consumer: Consumer) -> None:
        """Append a consumer to `consumers`."""

    @abstractmethod
    def consumers_removed(
        self, ctx: Context, topic: str, consumers: list[Consumer], gone: Sequence[Consumer]
    ) -> None:
        """Some left; `consumers` are the others, at least one."""

    def permits_changed(self, permits: int) -> None:
        """The permits of a consumer grew by a FLOW, or shrank by a message (then `permits` is negative)."""

    @abstractmethod
    def consumer_for(
        self, consumers: list[Consumer], metadata: MessageMetadata, *, spreads_keyless: bool
    ) -> Consumer | None:
        """The consumer that gets a message, available or not; None: nobody does. `spreads_keyless`: see keySharedSpreadsKeyless."""


class NonPersistentSingleActiveConsumer(NonPersistentDispatcher, tag="single"):
    """Exclusive and Failover. `active` = index in the subscription's consumers, −1: none."""

    failover: bool = False
    active: int = -1

    def _active(self, consumers: list[Consumer]) -> Consumer | None:
        return consumers[self.active] if self.active >= 0 else None

    def add_consumer(self, ctx: Context, topic: str, consumers: list[Consumer], consumer: Consumer) -> None:
        """Append the consumer and pick the active one. Failover tells it if it is not active."""
        before = self._active(consumers)
        consumers.append(consumer)
        self._pick(ctx, topic, consumers)
        if self.failover and self._active(consumers) is before:
            fields = ActiveConsumerChangeFields(is_active=False)
            ctx.emit(ActiveConsumerChange(topic, *consumer.handle, fields))

    def consumers_removed(
        self, ctx: Context, topic: str, consumers: list[Consumer], gone: Sequence[Consumer]
    ) -> None:
        """Pick the active consumer again."""
        self._pick(ctx, topic, consumers)

    def _pick(self, ctx: Context, topic: str, consumers: list[Consumer]) -> None:
        """Choose the active consumer. It is active at once, without the failover delay, and gets no notice.

        quirk: a topic without partitions counts as partition 0, where a persistent one asks the hash ring.
        """
        consumers.sort(key=lambda consumer: (consumer.priority, consumer.name.encode("utf-16-be")))
        best = [consumer.name for consumer in consumers if consumer.priority == consumers[0].priority]
        if not self.failover:
            self.active = 0
        elif ctx.config.activeConsumerFailoverConsistentHashing:
            self.active = pick_on_ring(best, topic)
        else:
            self.active = max(partition_index(topic), 0) % len(best)

    def consumer_for(
        self, consumers: list[Consumer], metadata: MessageMetadata, *, spreads_keyless: bool
    ) -> Consumer | None:
        """The active consumer."""
        return self._active(consumers)


class NonPersistentMultipleConsumers(NonPersistentDispatcher, tag="multiple"):
    """Shared. `round_robin` = index of the consumer whose turn it is; `total_permits` in messages."""

    round_robin: int = 0
    total_permits: int = 0

    def add_consumer(self, ctx: Context, topic: str, consumers: list[Consumer], consumer: Consumer) -> None:
        """Append the consumer, which has no permits yet."""
        consumers.append(consumer)  # quirk: not sorted by priority, unlike on a persistent topic

    def consumers_removed(
        self, ctx: Context, topic: str, consumers: list[Consumer], gone: Sequence[Consumer]
    ) -> None:
        """quirk: their permits stay in the total (nonPersistentKeepsPermits)."""
        if not ctx.config.nonPersistentKeepsPermits:
            self.total_permits -= sum(consumer.permits for consumer in gone)

    def permits_changed(self, permits: int) -> None:
        """Add to the total of permits, in messages. Negative when messages are sent."""
        self.total_permits += permits

    def consumer_for(
        self, consumers: list[Consumer], metadata: MessageMetadata, *, spreads_keyless: bool
    ) -> Consumer | None:
        """The next consumer with permits, in turn, or None if the total of permits is 0 or less."""
        # quirk: one consumer far below 0 keeps the others, which have permits, from getting anything
        if self.total_permits <= 0:
            return None
        if self.round_robin >= len(consumers):
            self.round_robin = 0
        index = _next_available(consumers, self.round_robin)
        if index is None:
            return None
        self.round_robin = index + 1
        return consumers[index]


def _next_available(consumers: list[Consumer], turn: int) -> int | None:
    """Like `round_robin.next_available`, among consumers in the order in which they joined.

    quirk: Pulsar searches as if they were sorted by priority. Higher levels end before the first consumer of this or a
    lower one, and the consumers of a level before the first of another. (Behind such a gap in the level whose turn it is, it
    searches forever.)
    """
    level = consumers[turn].priority
    for index in range(turn if level != 0 else 0):
        if consumers[index].priority >= level:
            break
        if consumers[index].available:
            return index
    end, first = (
        _level_end(consumers, turn),
        next(i for i in range(turn + 1) if consumers[i].priority == level),
    )
    again = range(first, min(_level_end(consumers, first), turn))
    candidates = chain(range(turn, end), again, range(end, len(consumers)))
    return next((index for index in candidates if consumers[index].available), None)


def _level_end(consumers: list[Consumer], start: int) -> int:
    level = consumers[start].priority
    return next((i for i in range(start, len(consumers)) if consumers[i].priority != level), len(consumers))


class NonPersistentStickyKeyMultipleConsumers(NonPersistentDispatcher, tag="sticky"):
    """Key_Shared. quirk: a message whose key belongs to nobody is lost and does not count as dropped."""

    counts_unassigned: ClassVar[bool] = False

    mode: KeySharedMode = "AUTO_SPLIT"
    selector: Selector = msgspec.field(default_factory=ConsistentHashing)
    out_of_order: bool = False

    def mismatch(self, meta: KeySharedMeta | None) -> str | None:
        """Mode and `allowOutOfOrderDelivery` must equal those of the connected consumers."""
        return key_shared_mismatch((self.mode, self.out_of_order), key_shared(meta))

    def check(self, consumer: Consumer) -> None:
        """Raises `BrokerError` if the consumer cannot have the hash ranges it asks for."""
        self.selector.check(consumer)

    def add_consumer(self, ctx: Context, topic: str, consumers: list[Consumer], consumer: Consumer) -> None:
        """Append the consumer and give it its hash slots."""
        consumers.append(consumer)  # quirk: not sorted by priority, unlike on a persistent topic
        self.selector.add(consumer)

    def consumers_removed(
        self, ctx: Context, topic: str, consumers: list[Consumer], gone: Sequence[Consumer]
    ) -> None:
        """Give their hash slots to the others."""
        if len(gone) > 1:
            self.selector.remove_together({consumer.handle for consumer in gone})
        else:
            self.selector.remove(gone[0].handle)

    def consumer_for(
        self, consumers: list[Consumer], metadata: MessageMetadata, *, spreads_keyless: bool
    ) -> Consumer | None:
        """The owner of the message's hash slot, with or without permits."""
        handle = self.selector.select(
            self.selector.slot(sticky_key_hash(metadata, spreads_keyless=spreads_keyless))
        )
        return next((consumer for consumer in consumers if consumer.handle == handle), None)


AnyNonPersistentDispatcher = (
    NonPersistentSingleActiveConsumer
    | NonPersistentMultipleConsumers
    | NonPersistentStickyKeyMultipleConsumers
)
"""The dispatchers that the state can hold."""


def new_dispatcher(
    type_: SubType,
    meta: KeySharedMeta | None,
    config: ServiceConfiguration,
    former: AnyNonPersistentDispatcher | None = None,
) -> AnyNonPersistentDispatcher:
    """A dispatcher without consumers; `meta`: what the first consumer asks for on Key_Shared. `former`: the one before it, of a
    subscription that stayed without consumers. In Pulsar, one of the same type is used again."""
    match type_:
        case "Shared":
            turn = former.round_robin if isinstance(former, NonPersistentMultipleConsumers) else 0
            return NonPersistentMultipleConsumers(turn)
        case "Key_Shared":
            mode, out_of_order = key_shared(meta)
            classic = config.subscriptionKeySharedUseClassicPersistentImplementation
            ring_size = CLASSIC_RING_SIZE if classic else RANGE_SIZE - 1
            selector = new_selector(config, fixed_ranges=mode == "STICKY", ring_size=ring_size)
            return NonPersistentStickyKeyMultipleConsumers(mode, selector, out_of_order)
        case "Exclusive" | "Failover":
            return NonPersistentSingleActiveConsumer(failover=type_ == "Failover")
