"""Key_Shared as before Pulsar 4.0 (mirrors `PersistentStickyKeyDispatcherMultipleConsumersClassic`; rules:
dispatch_key_shared.md §9).

No hash drains. Instead a consumer that joins while entries are unacked gets only what had been read by then, until
everything before that is acked. Pulsar reads on behind what it can't send without any bound; here the unacked limits
are one.
"""

import msgspec

from streaming.broker.dispatch.selectors import CLASSIC_RING_SIZE
from streaming.broker.dispatch.sticky_key import StickyKeyMultipleConsumers
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.context import SubscriptionContext


class ClassicStickyKeyMultipleConsumers(StickyKeyMultipleConsumers, tag="sticky-classic"):
    """`joined` = recentlyJoinedConsumers: (consumer, read position when it joined) in order of joining."""

    joined: list[tuple[Handle, Position]] = msgspec.field(default_factory=list)

    @classmethod
    def ring_size(cls) -> int:
        return CLASSIC_RING_SIZE

    @property
    def _drains(self) -> bool:
        return False

    def add_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> None:
        super().add_consumer(sub, consumer)
        cursor, ledger = sub.cursor, sub.ledger
        if self.out_of_order or len(sub.consumers) == 1 or cursor.read_position < cursor.mark_delete:
            return
        since = ledger.count(cursor.mark_delete, cursor.read_position, include_start=False, include_end=True)
        if since > 1:
            self.joined.append((consumer.handle, cursor.read_position))

    def remove_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> bool:
        self.joined = [entry for entry in self.joined if entry[0] != consumer.handle]
        if len(sub.consumers) <= 2:
            self.joined.clear()
        super().remove_consumer(sub, consumer)
        return True

    def forget_all(self) -> None:
        super().forget_all()
        self.joined.clear()

    def after_acks(
        self, sub: SubscriptionContext, owners: list[Consumer], *, mark_delete_moved: bool
    ) -> None:
        """What acks change is dealt with at once."""
        super().after_acks(sub, owners, mark_delete_moved=False)
        passed = self.replay and self.replay[0] <= sub.cursor.mark_delete
        if self._admit(sub) or passed:  # acks of what waits may make room for reading on
            self.dispatch(sub)

    def _round(self, sub: SubscriptionContext) -> bool:
        self._admit(sub)
        return super()._round(sub)

    def _admit(self, sub: SubscriptionContext) -> bool:
        """Lift the restriction of those for whom everything older than them is acked. True: there were some."""
        reached = sub.ledger.next_valid(sub.cursor.mark_delete)
        waiting = [entry for entry in self.joined if entry[1] > reached]
        if len(waiting) == len(self.joined):
            return False
        self.joined, self.stuck = waiting, False
        return True

    def _waits(self, handle: Handle, position: Position, hash_: int) -> bool:
        """The mark of whoever joined first holds for those after it, too."""
        return any(other == handle for other, _ in self.joined) and position >= self.joined[0][1]

    def _look_ahead(self, sub: SubscriptionContext) -> int:
        return self._unacked_bound(sub)
