"""The interface between a subscription and its dispatcher, for every subscription type (mirrors `Dispatcher`).

A dispatcher decides which consumer gets which entry, and when. It holds only the state that must survive between
commands. Each call passes in the subscription, its cursor and its ledger.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from schemas.commands import KeySharedMeta
from schemas.entries import Entry
from streaming.broker.config import ServiceConfiguration
from streaming.broker.dispatch.verdict import Verdict, Whereabouts
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.context import SubscriptionContext
from streaming.broker.subscription.subscription import Subscription


class Dispatcher(msgspec.Struct, array_like=True):
    """Every type implements the abstract methods. The others do nothing by default."""

    sends_at_once: ClassVar[bool] = True
    """Whether a new entry may go to a consumer without a search for it. False in a test, which shows that it makes no difference."""

    # -- consumers ------------------------------------------------------------------------------------------------

    def mismatch(self, meta: KeySharedMeta | None) -> str | None:
        """Why a consumer with this Key_Shared mode can't join the connected consumers, or None if it can."""
        return None

    def check(self, consumer: Consumer) -> None:
        """Raise `BrokerError` if the consumer can't have the hash ranges it asks for."""

    @abstractmethod
    def add_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> None:
        """Add a consumer that joins."""

    @abstractmethod
    def remove_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> bool:
        """Remove a consumer that leaves.

        Returns True if the caller must call `consumers_left` after removing every consumer that leaves at the same time.
        """

    def consumers_left(self, sub: SubscriptionContext) -> None:
        """Send to the remaining consumers what those that left have not acked."""
        self.dispatch(sub)

    def closed_by_seek(self, consumers: list[Consumer]) -> list[Consumer]:
        """The consumers that a seek disconnects."""
        return list(consumers)

    @abstractmethod
    def after_seek(self, sub: SubscriptionContext) -> None:
        """Remove the consumers in `closed_by_seek`."""

    @property
    def closed_active(self) -> Handle | None:
        """A consumer that an earlier seek closed, and which Pulsar still takes for the active one."""
        return None

    def remove_together(self, sub: SubscriptionContext, consumers: Sequence[Consumer]) -> bool:
        """`remove_consumer` for many that leave at once. It takes as long as if each were alone."""
        reads = False
        for consumer in consumers:
            reads |= self.remove_consumer(sub, consumer)
        return reads

    def remembered(self) -> Collection[str]:
        """The connections of consumers that left and may still be sent something."""
        return ()

    def can_unsubscribe(self, consumers: list[Consumer], consumer: Consumer) -> bool:
        """Whether the consumer may delete the subscription."""
        return len(consumers) == 1

    # -- triggers -------------------------------------------------------------------------------------------------

    def dispatch(self, sub: SubscriptionContext) -> None:
        """Read and send as much as possible, after the broker lifted its limit, for example."""

    @abstractmethod
    def flow(self, sub: SubscriptionContext, consumer: Consumer, permits: int) -> None:
        """Add a consumer's permits, in messages."""

    @abstractmethod
    def redeliver(
        self,
        sub: SubscriptionContext,
        consumer: Consumer,
        positions: list[Position] | None,
        epoch: int | None,
    ) -> None:
        """Redeliver `positions` (None: all that the consumer hasn't acked). `epoch` is the consumer's new epoch."""

    @abstractmethod
    def new_entry(self, sub: SubscriptionContext, position: Position, entry: Entry) -> None:
        """Complete a waiting read, since an entry was confirmed."""

    @abstractmethod
    def retry(self, sub: SubscriptionContext) -> None:
        """Read and send as much as possible, since a dispatch rate may allow it again."""

    @abstractmethod
    def due(self) -> int:
        """When the dispatcher's next timer fires (ms), or −1 if none is set."""

    @abstractmethod
    def timer(self, sub: SubscriptionContext) -> bool:
        """Run the timers that are due at the current clock.

        Returns False if all they did was to judge entries again that an entry filter rescheduled, with the same result. A
        filter depends only on its arguments, so until something happens on the topic, every later retry has that result,
        too: none is made.
        """

    def resume_retries(self, subscription: Subscription, now: int, delay: int) -> None:
        """Something happens on the topic at `now` (ms). Make up for the retries that were not made, which are `delay` ms
        apart, and schedule the next ones."""

    # -- acknowledgements -----------------------------------------------------------------------------------------

    def acknowledged(
        self, sub: SubscriptionContext, consumer: Consumer, position: Position
    ) -> Consumer | None:
        """A consumer acks a whole entry. Credit and return the consumer that the entry was sent to, unless it stays blocked.

        Called before the cursor changes, as `acknowledged_partly` is.
        """
        consumer.acks += 1
        return None

    def acknowledged_partly(
        self,
        sub: SubscriptionContext,
        consumer: Consumer,
        position: Position,
        ack_set: int,
    ) -> None:
        """A consumer acks some messages of a batch. Those in `ack_set` stay unacked."""

    def acknowledged_in_transaction(
        self, sub: SubscriptionContext, consumer: Consumer, position: Position, messages: int, *, whole: bool
    ) -> Consumer | None:
        """A consumer acks so many messages of an entry in a transaction, or the `whole` entry. Returns the consumer that does not have
        it pending any more."""
        return None

    @abstractmethod
    def redeliver_aborted(self, sub: SubscriptionContext, positions: list[Position]) -> None:
        """A transaction that acked entries was aborted. Send them again."""

    def forget_redeliveries(self, position: Position) -> None:
        """Reset the redelivery count of an entry to 0."""

    def after_acks(
        self, sub: SubscriptionContext, owners: list[Consumer], *, mark_delete_moved: bool
    ) -> None:
        """An ACK command was applied. `owners`: the consumers whose entries it acked."""

    def passed(self, ledger: ManagedLedger, cursor: ManagedCursor, before: Position) -> None:
        """The broker moved the mark-delete position, which was at `before`. `mark_delete_moved` may follow."""
        cursor.forget_batches(ledger, before)

    def entries_deleted(self, last: Position) -> None:
        """The entries up to `last` were deleted, but the mark-delete position did not move."""

    def mark_delete_moved(self, sub: SubscriptionContext, *, by_expiry: bool) -> None:
        """The broker moved the mark-delete position. Forget the entries it passed.

        `by_expiry`: the expiry of messages did, which tells the dispatcher. Nothing else does.
        """

    # -- delayed delivery -----------------------------------------------------------------------------------------

    @property
    def delayed_messages(self) -> int:
        """How many entries wait for their delivery time."""
        return 0

    def clear_delayed(self) -> None:
        """Forget the entries that wait for their delivery time."""

    # -- limits and stats -----------------------------------------------------------------------------------------

    @property
    def unacked_messages(self) -> int:
        """Messages sent but not acked, for types with a limit on them, else 0."""
        return 0

    @property
    def blocked_on_unacked(self) -> bool:
        """Whether maxUnackedMessagesPerSubscription blocks the subscription."""
        return False

    @abstractmethod
    def stats(self, consumers: list[Consumer]) -> dict[str, Any]:
        """The stats fields, by Pulsar's names, that only this type has."""

    # -- why nothing is delivered ---------------------------------------------------------------------------------

    @abstractmethod
    def verdicts(self, sub: SubscriptionContext) -> Iterator[Verdict]:
        """What decides whether the subscription's entries are delivered now, for the subscription and each consumer."""

    @property
    def entries_to_redeliver(self) -> int:
        """How many entries wait to be sent again, or for a consumer that can take them."""
        return 0

    def waiting_for_time(self, cursor: ManagedCursor) -> int:
        """How many entries of the backlog wait for their delivery time, or until an entry filter judges them again."""
        return 0

    def deals_chunks(self, config: ServiceConfiguration) -> bool:
        """Whether one consumer gets all chunks of a message."""
        return False

    def stuck_chunks(self, sub: SubscriptionContext) -> list[Position]:
        """Chunks that wait to be sent again and that no consumer can take, whatever it has permits for."""
        return []

    def owners_of_chunks(self, sub: SubscriptionContext) -> Mapping[str, int]:
        """The messages whose other chunks go to the consumer that got the first one, also if that leaves, and its permits."""
        return {}

    def accounted_for(self, sub: SubscriptionContext) -> Collection[Position] | None:
        """The entries before the read position that consumers have, or that wait to be sent. None: all that are not acked."""
        return None

    def whereabouts(self, sub: SubscriptionContext, position: Position) -> Whereabouts:
        """Where an unacknowledged entry is."""
        if position >= sub.cursor.read_position:
            return Whereabouts("unread", "not read yet")
        return Whereabouts("read", "read before, and with no consumer now")

    def hash_ranges(self, *, by_point: bool = False) -> dict[Handle, list[str]] | None:
        """`keyHashRanges` in the stats of each consumer that has any. None: stats do not show them. `by_point`: see
        keySharedRangesByPoint."""
        return None


def retry_delay(config: ServiceConfiguration) -> int:
    """After how long to judge an entry again that a filter rescheduled (ms). Always positive, so that time goes on."""
    return max(config.dispatcherEntryFilterRescheduledMessageDelay, 1)
