"""SEEK, and GET_LAST_MESSAGE_ID (docs/rules/subscriptions.md §17, docs/rules/cursors.md §10, docs/rules/protocol.md §17,
§18)."""

from functools import partial

from schemas.commands import GetLastMessageId, Seek
from schemas.effect_fields import GetLastMessageIdResponseFields, MarkDeletePosition
from schemas.effects import CloseConsumer, CursorMoved, Error, GetLastMessageIdResponse, Success
from streaming.broker.context import Context
from streaming.broker.dispatch.sending import is_aborted, is_server_only
from streaming.broker.ledger.ack_set import from_words
from streaming.broker.persistent import rate_limits
from streaming.broker.persistent.cleanup.message_finder import find_newest_before
from streaming.broker.persistent.cleanup.trimming import free_ledgers
from streaming.broker.persistent.leaving import close_consumers, count_as_gone, part_remembered
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic, Reason
from streaming.broker.position import EARLIEST, Position, from_wire

UNREADABLE = "org.apache.bookkeeper.mledger.ManagedLedgerException: Incorrect parameter input error code: -14"
"""The error of a read of entry −1."""

NO_OPEN_LEDGER = "a single entry was to be read, and no ledger is open"
"""Why Pulsar fails on a terminated topic that was loaded again (opensLedgerOfTerminated)."""


def seek(ctx: Context, topic: PersistentTopic, command: Seek) -> None:
    """SEEK: close the consumers (Exclusive and Failover: only the active one), reset the cursor, then send SUCCESS."""
    name = topic.consumer_handles.get(command.connection, command.consumer_id)
    if name is None:
        _error(ctx, topic, command, "MetadataError", "Consumer not found")
        return
    subscription = topic.subscriptions[name]
    batch: int | None = None
    if (wire := command.message_id) is not None:
        target, cause = from_wire(wire.ledgerId, wire.entryId), "seek to a message id"
        if ctx.config.acknowledgmentAtBatchIndexLevelEnabled:
            batch = from_words(wire.ack_set) or None
    elif command.message_publish_time is not None:
        found = position_at(ctx, topic, command.message_publish_time)
        if found is None and topic.ledger.without_open:
            ctx.close_connection(topic.name, command.connection, NO_OPEN_LEDGER)
            return
        if found is None:
            cause = f"Reset subscription to publish time error: {UNREADABLE}"
            _error(ctx, topic, command, "UnknownError", cause)
            return
        target, cause = found, "seek to a publish time"
    else:
        _error(ctx, topic, command, "MetadataError", "seek needs a message id or a publish time")
        return
    reset(ctx, topic, subscription, target, cause, batch)
    ctx.emit(Success(topic.name, command.connection, command.request_id))


def position_at(ctx: Context, topic: PersistentTopic, time: int) -> Position | None:
    """The position of a publish time (ms): after the newest entry published before it, else the first entry.

    None: the search failed with the error `UNREADABLE`.
    """
    found = find_newest_before(ctx, topic, time)
    if found is None:
        return Position(next(iter(topic.ledger.ledgers), topic.ledger.current), 0)
    return None if found.entry < 0 else found.next()


def reset(
    ctx: Context,
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    target: Position,
    cause: str,
    batch: int | None = None,
) -> None:
    """Move a subscription to `target` and forget the acks after it.

    Closes its consumers (Exclusive and Failover: only the active one). A non-durable subscription survives this, so that
    its reader finds it when it reconnects. In Pulsar only the cursor survives, so the counters restart at 0.
    """
    ledger, dispatcher = topic.ledger, subscription.dispatcher
    consumers = subscription.consumers
    closed = [] if dispatcher is None else dispatcher.closed_by_seek(consumers)
    close_consumers(ctx, topic, subscription, closed, cause)
    if dispatcher is not None and (gone := dispatcher.closed_active) is not None:
        connection, consumer_id = gone
        if topic.name in ctx.connections.get(connection, ()):
            ctx.emit(CloseConsumer(topic.name, connection, consumer_id, subscription.name, cause))
    subscription.last_active = ctx.clock
    cursor = topic.cursors[subscription.name]
    compacted = topic.compaction.ledger
    move = partial(
        cursor.reset,
        counts_anew=ctx.config.seekCountsConsumedAnew,
        keeps_target=compacted is not None and target <= compacted.horizon,
    )
    former = topic.record_move(ctx, cursor, Reason(CursorMoved, cause), move, ledger, target)
    if batch is not None:
        cursor.set_batch(target, batch)
    if dispatcher is not None:
        dispatcher.after_seek(topic.context_of(ctx, subscription))
    if not subscription.durable and not subscription.consumers:
        rate_limits.stop(ctx, topic, subscription)
        part_remembered(ctx, topic, subscription)
        subscription.type = subscription.dispatcher = None
        subscription.last_expire, subscription.expired_before_load = 0, subscription.expired
        subscription.last_flow = subscription.last_mark_delete_advanced = 0
        subscription.forget_dispatcher()
        count_as_gone(topic, subscription)
    free_ledgers(ctx, topic, cursor, former)


def last_message_id(ctx: Context, topic: PersistentTopic, command: GetLastMessageId) -> None:
    """GET_LAST_MESSAGE_ID: the last entry that consumers can get, and the mark-delete position of the caller."""
    name = topic.consumer_handles.get(command.connection, command.consumer_id)
    if name is None:
        _error(ctx, topic, command, "MetadataError", "Consumer not found")
        return
    ledger, readable, batch_index = topic.ledger, ctx.config.lastMessageIdIsReadable, -1
    position = ledger.last_readable if readable else ledger.last_confirmed
    if ledger.without_open and position.entry >= 0:
        if ctx.config.lastMessageIdOfTerminatedCloses:
            ctx.close_connection(topic.name, command.connection, NO_OPEN_LEDGER)
        else:
            cause = "Failed to recover Transaction Buffer."
            _error(ctx, topic, command, "UnknownError", cause)
        return
    if position.entry < 0 and topic.counters.messages_in:
        # quirk: the end of a terminated topic may lie in an empty ledger, but what was published since the topic was
        # loaded is remembered (recorded)
        position = ledger.previous(position)
    subscription = topic.subscriptions[name]
    compacted = topic.compaction.ledger
    if readable and not subscription.consumer(command.connection, command.consumer_id).reads_compacted:
        compacted = None
    while position.entry >= 0 and position.ledger in ledger.ledgers:
        if compacted is not None and position <= compacted.horizon:
            position, batch_index = compacted.last or EARLIEST, compacted.last_batch_index
            if compacted.last is None and ctx.config.lastOfNothingHasIndex:
                batch_index = 0
            break
        entry = ctx.entries.get(topic.name, position)
        if not readable or not (
            is_server_only(entry)
            or (topic.transactions is not None and is_aborted(topic.transactions, entry))
        ):
            if (messages := entry.metadata.num_messages_in_batch) is not None:
                batch_index = messages - 1
            break
        position = ledger.previous(position)
    else:
        position = EARLIEST
        if compacted is not None and compacted.last is not None:
            position, batch_index = compacted.last, compacted.last_batch_index
    mark_delete = topic.cursors[name].mark_delete
    fields = GetLastMessageIdResponseFields(
        batch_index=batch_index,
        consumer_mark_delete_position=MarkDeletePosition(
            ledgerId=mark_delete.ledger, entryId=mark_delete.entry
        ),
    )
    ctx.emit(
        GetLastMessageIdResponse(
            topic.name, command.connection, command.request_id, command.consumer_id, *position, fields
        )
    )


def _error(
    ctx: Context, topic: PersistentTopic, command: Seek | GetLastMessageId, error: str, cause: str
) -> None:
    ctx.emit(Error(topic.name, command.connection, command.request_id, error, cause))
