"""Key_Shared before Pulsar 4.0 (mirrors `PersistentStickyKeyDispatcherMultipleConsumersClassic`; rules:
dispatch_key_shared.md §9).

Hashes do not drain. Instead, a consumer that joins while entries are unacked gets only entries before the read position
at that time, until all of them are acked. Pulsar's look-ahead past entries that it can't send is unbounded. Here the
unacked limits bound it.
"""

import msgspec

from streaming.broker.dispatch.selectors import CLASSIC_RING_SIZE
from streaming.broker.dispatch.sticky_key import StickyKeyMultipleConsumers
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.context import SubscriptionContext


class ClassicStickyKeyMultipleConsumers(StickyKeyMultipleConsumers, tag="sticky-classic"):
    """`joined` = recentlyJoinedConsumers: (consumer, read position when it joined), in joining order."""

    joined: list[tuple[Handle, Position]] = msgspec.field(default_factory=list)

    @classmethod
    def ring_size(cls) -> int:
        """How many slots the ring of consistent hashing has."""
        return CLASSIC_RING_SIZE

    @property
    def _drains(self) -> bool:
        return False

    def add_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> None:
        """Restrict the consumer to entries before the read position while older ones are unacked."""
        super().add_consumer(sub, consumer)
        cursor, ledger = sub.cursor, sub.ledger
        if self.out_of_order or len(sub.consumers) == 1 or cursor.read_position < cursor.mark_delete:
            return
        since = ledger.count(cursor.mark_delete, cursor.read_position, include_start=False, include_end=True)
        if since > 1:
            self.joined.append((consumer.handle, cursor.read_position))

    def remove_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> bool:
        """Remove the consumer. The restriction ends when one consumer is left. The caller must always dispatch."""
        self.joined = [entry for entry in self.joined if entry[0] != consumer.handle]
        if len(sub.consumers) <= 2:
            self.joined.clear()
        super().remove_consumer(sub, consumer)
        return True

    def forget_all(self) -> None:
        """Forget the replay set and the restrictions of consumers that joined."""
        super().forget_all()
        self.joined.clear()

    def after_acks(
        self, sub: SubscriptionContext, owners: list[Consumer], *, mark_delete_moved: bool
    ) -> None:
        """Dispatch at once, unlike Key_Shared since 4.0."""
        super().after_acks(sub, owners, mark_delete_moved=False)
        passed = self.replay and self.replay.first(1)[0] <= sub.cursor.mark_delete
        if self._admit(sub) or passed:  # acks of waiting entries may make room for more reads
            self.dispatch(sub)

    def _round(self, sub: SubscriptionContext) -> bool:
        self._admit(sub)
        return super()._round(sub)

    def _admit(self, sub: SubscriptionContext) -> bool:
        """Lift the restriction of consumers for which everything older is acked. Returns True if there were any."""
        reached = sub.ledger.next_valid(sub.cursor.mark_delete)
        waiting = [entry for entry in self.joined if entry[1] > reached]
        if len(waiting) == len(self.joined):
            return False
        self.joined, self.stuck = waiting, False
        return True

    def _waits(self, handle: Handle, position: Position, hash_: int) -> bool:
        """The read position of the earliest `joined` consumer applies to all of them."""
        return any(other == handle for other, _ in self.joined) and position >= self.joined[0][1]

    def _look_ahead(self, sub: SubscriptionContext) -> int:
        return self._unacked_bound(sub)
