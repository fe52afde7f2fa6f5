"""A subscription of a persistent topic: consumers, their dispatcher, and acknowledgement (mirrors
`PersistentSubscription`; rules: docs/rules/subscriptions.md §2, §5–§7). Its cursor has the same name.
"""

from schemas.commands import Ack, MessageIdData
from schemas.effects import AckResponse
from streaming.broker.dispatch.types import AnyDispatcher
from streaming.broker.errors import CursorError
from streaming.broker.ledger.ack_set import from_words
from streaming.broker.ledger.cursor_writes import change_cursor
from streaming.broker.position import Position, from_wire
from streaming.broker.rates.dispatch_rate_limiter import ReadThrottle
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.context import SubscriptionContext
from streaming.broker.subscription.subscription import INDIVIDUAL_TYPES, Subscription
from streaming.broker.transactions.pending_acks import PendingAcks

AckedEntry = tuple[Position, int | None]
"""The position, and a bit set of the messages in its batch that stay unacked, or None if the whole entry is acked."""


class PersistentSubscription(Subscription):
    """`dispatcher` is None until the first consumer joins. It outlives the consumers. `throttle`: what a dispatch rate needs
    to remember, None if none ever limited this dispatcher. `caught_up`: whether no dispatch rate limits it, if such rates are
    only for those that lag behind (mirrors `ManagedCursor.isActive`). `refused`: whether the first consumer of a reader was refused
    (refusedConsumerLeavesSubscription). `read_batch`: how many entries the next read may return, since one failed; 0:
    dispatcherMaxReadBatchSize. `replicated`: said to be, which spares it from the expiry of unused subscriptions. There is one cluster.
    `pending_acks`: those of transactions that are open; None: it has had none.
    """

    dispatcher: AnyDispatcher | None = None
    throttle: ReadThrottle | None = None
    caught_up: bool = False
    refused: bool = False
    read_batch: int = 0
    replicated: bool = False
    pending_acks: PendingAcks | None = None

    def forget_dispatcher(self) -> None:
        """See `Subscription.forget_dispatcher`."""
        super().forget_dispatcher()
        self.read_batch = 0

    @property
    def awaits_its_reader(self) -> bool:
        """Whether a seek closed the reader of this non-durable subscription. In Pulsar only its cursor exists until the
        reader reconnects."""
        return not self.durable and not self.consumers and not self.refused

    @property
    def due(self) -> int:
        """When the first of the subscription's own timers fires (ms), or −1."""
        due = -1 if self.dispatcher is None else self.dispatcher.due()
        look = -1 if self.throttle is None else self.throttle.due
        return look if due < 0 or 0 <= look < due else due

    def put_off(self, now: int, until: int) -> int:
        """See `Subscription.put_off`. A dispatcher that waits for permits of a rate looks later anyway."""
        throttle = self.throttle = self.throttle or ReadThrottle()
        if not throttle.waits(now):
            throttle.retry_at = until
        return self.due

    @property
    def is_asleep(self) -> bool:
        """Whether retries are put off until something happens on the topic."""
        return self.dispatcher is not None and bool(self.dispatcher.asleep)

    def mark_delete_moved(self, sub: SubscriptionContext, *, by_expiry: bool = False) -> None:
        """The mark-delete position moved for a reason other than an ack (TTL, skip, quota). `by_expiry`: see `Reason.expires`."""
        if self.dispatcher is not None:
            self.dispatcher.mark_delete_moved(sub, by_expiry=by_expiry)

    def mark_delete_advanced(self, sub: SubscriptionContext) -> None:
        """Acks moved the mark-delete position."""
        self.last_mark_delete_advanced = sub.ctx.clock
        ledger, cursor = sub.ledger, sub.cursor
        if (
            ledger.max_read is not None
            and ledger.max_read < ledger.last_confirmed
            and ledger.max_read < cursor.read_position
            and self.dispatcher is not None
            and self.dispatcher.pending_read
        ):
            cursor.leave_acked_ledger(ledger)

    def acknowledge(self, sub: SubscriptionContext, consumer: Consumer, command: Ack) -> Position | None:
        """Apply an ACK and respond to it.

        The response is the same if the cursor refuses the ack, unless refusedCumulativeAckIsAnError is on. It comes before the messages that the ack makes room for.
        Returns the cursor's former key if ledgers may have become free (see `change_cursor`).
        """
        ctx, cursor, ledger = sub.ctx, sub.cursor, sub.ledger
        self.last_active = consumer.last_ack = ctx.clock
        individual = command.ack_type == "Individual"
        index_acks = ctx.config.acknowledgmentAtBatchIndexLevelEnabled
        before, mark_delete = cursor.consumed, cursor.mark_delete
        former, acks = None, consumer.acks
        error = cause = None
        owners: list[Consumer] = []
        backlog = cursor.backlog(ledger, precise=True) if ctx.acks is not None else 0
        try:
            if individual:
                ids = [_acked(message_id) for message_id in command.message_id]
                owners = self._credit(sub, consumer, ids, index_acks)
                former = change_cursor(ctx, sub.policies, cursor, self.individual, sub, ids, index_acks)
            elif self.type not in INDIVIDUAL_TYPES and len(command.message_id) == 1:
                position, ack_set = _acked(command.message_id[0])
                if ack_set is not None and not index_acks:
                    position, ack_set = ledger.previous(position), None
                former = change_cursor(
                    ctx, sub.policies, cursor, cursor.acknowledge_cumulative, ledger, position, ack_set
                )
                consumer.acks += 1
        except CursorError as refusal:
            consumer.acks = acks
            if ctx.config.refusedCumulativeAckIsAnError and not individual:
                error, cause = "UnknownError", str(refusal)
        self.acked += cursor.consumed - before
        if cursor.mark_delete != mark_delete:
            self.mark_delete_advanced(sub)
        if self.pending_acks is not None:
            names = [position for position, _ in ids] if individual else ()
            self.pending_acks.acknowledged(ledger, cursor, mark_delete, names)
        if ctx.acks is not None:
            named = [position for position, _ in ids if cursor.has_acked(position)] if individual else ()
            ctx.observe_ack(sub.topic, self.name, named, mark_delete, cursor.mark_delete, backlog)
        sub.check_end_of_topic()
        if command.request_id is not None:
            ctx.emit(
                AckResponse(
                    sub.topic, command.connection, command.request_id, command.consumer_id, error, cause
                )
            )
        if individual and self.dispatcher is not None:
            self.dispatcher.after_acks(sub, owners, mark_delete_moved=cursor.mark_delete > mark_delete)
        return former

    def _credit(
        self, sub: SubscriptionContext, consumer: Consumer, acks: list[AckedEntry], index_acks: bool
    ) -> list[Consumer]:
        """Credit the consumers with the messages acked, before the cursor changes. Returns those of whole entries.

        quirk: this counts ids that the cursor then refuses, too.
        """
        dispatcher, owners = self.dispatcher, []
        assert dispatcher is not None  # the first consumer created it
        for position, ack_set in acks:
            if ack_set is None:
                if (owner := dispatcher.acknowledged(sub, consumer, position)) is not None:
                    owners.append(owner)
            elif index_acks:
                dispatcher.acknowledged_partly(sub, consumer, position, ack_set)
                if sub.ctx.config.transactionCoordinatorEnabled and self.type in INDIVIDUAL_TYPES:
                    self.pending_acks = self.pending_acks or PendingAcks()
                    self.pending_acks.acknowledged_partly(sub.ledger, position, ack_set)
            else:
                dispatcher.forget_redeliveries(position)  # quirk: a partial ack has no other effect then
        return owners

    def individual(self, sub: SubscriptionContext, acks: list[AckedEntry], index_acks: bool) -> None:
        """Ack each id. Raises `CursorError` if the cursor refuses an id before any entry was acked."""
        cursor = sub.cursor
        before, mark_delete = cursor.consumed, cursor.mark_delete
        try:
            for position, ack_set in acks:
                if ack_set is None or index_acks:
                    cursor.acknowledge(sub.ledger, position, ack_set)
        except CursorError:
            if cursor.consumed == before:
                raise
            # quirk: the ids before the refused one stay acked
        cursor.collapse(sub.ledger, mark_delete)


def _acked(message_id: MessageIdData) -> AckedEntry:
    ack_set = from_words(message_id.ack_set) or None if message_id.ack_set else None
    return from_wire(message_id.ledgerId, message_id.entryId), ack_set
