"""Acks in transactions, and what becomes of them when a transaction ends (mirrors `Consumer.individualAckWithTransaction` and
`PersistentSubscription.endTxn`; docs/rules/transactions.md §5, §6).
"""

from schemas.commands import Ack, MessageIdData
from schemas.commands.parts import LARGEST_BATCH
from schemas.effects import AckResponse
from streaming.broker.context import Context
from streaming.broker.errors import BrokerError, CursorError
from streaming.broker.ledger.ack_set import from_words, to_bits
from streaming.broker.ledger.cursor_writes import change_cursor
from streaming.broker.persistent.cleanup.trimming import free_ledgers
from streaming.broker.persistent.subscription import AckedEntry, PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position, from_wire
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.context import SubscriptionContext
from streaming.broker.subscription.subscription import INDIVIDUAL_TYPES
from streaming.broker.transactions.pending_acks import AckInTransaction, PendingAcks
from streaming.broker.transactions.transaction_buffer import TxnID, note_low_water_mark


def acknowledge(
    ctx: Context,
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    consumer: Consumer,
    txn: TxnID,
    command: Ack,
) -> None:
    """Apply an ACK in a transaction and answer it. It counts when the transaction commits."""
    subscription.last_active = consumer.last_ack = ctx.clock
    error = cause = None
    try:
        if command.ack_type == "Individual":
            _individual(ctx, topic, subscription, consumer, txn, command)
        elif subscription.type not in INDIVIDUAL_TYPES and len(command.message_id) == 1:
            each = _ack(ctx, topic, command.message_id[0])
            cursor = topic.cursors[subscription.name]
            _pending_acks(topic, subscription).acknowledge_cumulative(cursor, txn, each.position, each.left)
            consumer.acks += 1
    except BrokerError as refusal:
        error, cause = refusal.code, f"[{topic.name}][{subscription.name}] {refusal.cause}"
    if command.request_id is not None:
        ctx.emit(
            AckResponse(topic.name, command.connection, command.request_id, command.consumer_id, error, cause)
        )


def _individual(
    ctx: Context,
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    consumer: Consumer,
    txn: TxnID,
    command: Ack,
) -> None:
    """quirk: the consumer is credited with the messages whether the acks are refused or not. Raises `BrokerError`."""
    sub = topic.context_of(ctx, subscription)
    pending, dispatcher = _pending_acks(topic, subscription), subscription.dispatcher
    assert dispatcher is not None  # the first consumer created it
    acks = [_ack(ctx, topic, message_id) for message_id in command.message_id]
    owners: list[Consumer] = []
    total = 0
    for each in acks:
        messages = (each.size or 1) if each.left is None else each.size - each.left.bit_count()
        total += messages
        owner = dispatcher.acknowledged_in_transaction(
            sub, consumer, each.position, messages, whole=each.left is None
        )
        if owner is not None:
            owners.append(owner)
    try:
        pending.acknowledge(sub.cursor, txn, acks)
        consumer.acks += total
    finally:
        for each in acks:
            if each.left is not None and pending.may_leave_consumer(each.position):
                owner = dispatcher.acknowledged_in_transaction(sub, consumer, each.position, 0, whole=True)
                if owner is not None:
                    owners.append(owner)
        dispatcher.after_acks(sub, owners, mark_delete_moved=False)


_WORD = 64
"""Bits of a word of an `ack_set`."""


def _ack(ctx: Context, topic: PersistentTopic, message_id: MessageIdData) -> AckInTransaction:
    """An id of an ACK. It counts as many messages as the client says, if there can be so many: an abort keeps a bit for each."""
    left = from_words(message_id.ack_set) if message_id.ack_set else None
    position = from_wire(message_id.ledgerId, message_id.entryId)
    size, words = min(max(message_id.batch_size or 0, 0), LARGEST_BATCH), len(message_id.ack_set)
    if words and size > _WORD * words:
        most = _WORD * words
        if position <= topic.ledger.last_confirmed and topic.ledger.valid(position):
            most = max(most, ctx.entries.get(topic.name, position).messages)
        size = min(size, most)
    return AckInTransaction(position, left, size)


def _pending_acks(topic: PersistentTopic, subscription: PersistentSubscription) -> PendingAcks:
    topic.buffer()  # it is no ordinary topic any more
    if subscription.pending_acks is None:
        subscription.pending_acks = PendingAcks()
    return subscription.pending_acks


def end(
    ctx: Context,
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    txn: TxnID,
    low_water_mark: int,
    *,
    commit: bool,
) -> None:
    """End a transaction on a subscription: its acks count, or what they named is sent again.

    quirk: while a transaction has a cumulative ack, the individual acks of others neither count nor come back when these end. And nothing is sent again when
    a transaction with a cumulative ack aborts, unless abortedCumulativeAckIsSentAgain.
    """
    pending = subscription.pending_acks
    if pending is None:
        return
    sub = topic.context_of(ctx, subscription)
    cumulative = pending.cumulative
    if cumulative is not None:
        if cumulative.txn == txn:
            pending.cumulative = None
            if commit:
                left = None if cumulative.left is None else to_bits(cumulative.left)
                _acknowledge(ctx, topic, subscription, sub, [(cumulative.position, left)], cumulative=True)
        if not commit and ctx.config.abortedCumulativeAckIsSentAgain and subscription.dispatcher is not None:
            subscription.dispatcher.redeliver_aborted(sub, [])
        return
    if txn not in pending.of_transactions:
        return
    if commit:
        own = pending.take_committed(txn)
        acks = [(position, None if left is None else to_bits(left)) for position, left in own.items()]
        _acknowledge(ctx, topic, subscription, sub, acks, cumulative=False)
    else:
        _give_back(sub, subscription, pending, txn)
    late = note_low_water_mark(pending.low_water_marks, txn.most, low_water_mark, pending.of_transactions)
    if late is not None:
        _give_back(sub, subscription, pending, late)


def _give_back(
    sub: SubscriptionContext, subscription: PersistentSubscription, pending: PendingAcks, txn: TxnID
) -> None:
    positions = pending.abort(txn)
    if subscription.dispatcher is not None:
        subscription.dispatcher.redeliver_aborted(sub, positions)


def _acknowledge(
    ctx: Context,
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    sub: SubscriptionContext,
    acks: list[AckedEntry],
    *,
    cumulative: bool,
) -> None:
    """Acks of a transaction count now."""
    cursor, ledger = sub.cursor, sub.ledger
    before, mark_delete = cursor.consumed, cursor.mark_delete
    backlog = cursor.backlog(ledger, precise=True) if ctx.acks is not None else 0
    index_acks = ctx.config.acknowledgmentAtBatchIndexLevelEnabled
    former: Position | None = None
    try:
        if cumulative:
            position, left = acks[0]
            if left is not None and not index_acks:
                position, left = ledger.previous(position), None
            former = change_cursor(
                ctx, sub.policies, cursor, cursor.acknowledge_cumulative, ledger, position, left
            )
        else:
            acks = [(position, left or None) for position, left in acks]
            former = change_cursor(ctx, sub.policies, cursor, subscription.individual, sub, acks, index_acks)
    except CursorError:
        pass  # quirk: as for any ack, nobody hears of it
    subscription.acked += cursor.consumed - before
    moved = cursor.mark_delete != mark_delete
    if moved:
        subscription.mark_delete_advanced(sub)
    named = () if cumulative else [position for position, _ in acks]
    if subscription.pending_acks is not None:
        subscription.pending_acks.acknowledged(ledger, cursor, mark_delete, named)
    if ctx.acks is not None:
        seen = [position for position in named if cursor.has_acked(position)]
        ctx.observe_ack(topic.name, subscription.name, seen, mark_delete, cursor.mark_delete, backlog)
    sub.check_end_of_topic()
    if subscription.dispatcher is not None and not cumulative:
        for position in named:
            subscription.dispatcher.forget_redeliveries(position)
        subscription.dispatcher.after_acks(sub, [], mark_delete_moved=moved)
    if former is not None:
        free_ledgers(ctx, topic, cursor, former)
