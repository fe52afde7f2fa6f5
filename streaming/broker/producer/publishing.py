"""The publish path: check, append, confirm (mirrors `PersistentTopic.publishMessage`; rules: producer.md §5, dedup.md).

Writes are confirmed at once, since a micro-batch commits its entries before its receipts leave. Only armed faults put
a write off or make it fail.
"""

from schemas.commands import Fault, Publish, Send
from schemas.effects import LedgerClosed, SendReceipt, TopicEvent
from schemas.entries import Entry
from streaming.broker.context import Context
from streaming.broker.ledger.trimming import open_ledger, roll_over
from streaming.broker.policies.hierarchy import HierarchyTopicPolicies
from streaming.broker.position import Position
from streaming.broker.producer import closing, dedup_cursor
from streaming.broker.producer.message_size import broker_entry_metadata_size
from streaming.broker.producer.writes import from_send, from_short, may_send, refuse, too_large
from streaming.broker.topic import PendingWrite, Topic

_DUPLICATE = Position(-1, -1)


def send(ctx: Context, topic: Topic, command: Send) -> None:
    """A SEND of a connected producer."""
    policies = ctx.policies_of(topic)
    write = from_send(ctx, topic, command)
    if write is not None and may_send(ctx, topic, policies, command, write):
        publish(ctx, topic, policies, write, command.num_messages)


def publish_short(ctx: Context, topic: Topic, command: Publish) -> None:
    """The short form."""
    policies = ctx.policies_of(topic)
    write = from_short(ctx, topic, policies, command)
    if write is not None:
        publish(ctx, topic, policies, write, 1)


def publish(
    ctx: Context, topic: Topic, policies: HierarchyTopicPolicies, write: PendingWrite, messages: int
) -> None:
    """Checks in Pulsar's order, then the write. `messages` is what the command says of itself.

    A topic that is fenced or terminated has no producers, so nothing comes here.
    """
    topic.counters.messages_in += messages
    topic.counters.bytes_in += write.size
    if (refusal := too_large(ctx, policies, write) or _too_late(ctx, write)) is not None:
        return refuse(ctx, topic, write, "NotAllowedError", refusal)
    name, highest = write.producer.name, write.highest_sequence_id
    verdict = topic.dedup.check(
        name, write.sequence_id, write.sequence_id if highest is None else highest, write.metadata
    )
    if verdict == "Dup":
        topic.counters.duplicates += messages
        return _receipt(ctx, topic, write, _DUPLICATE, "duplicate: sequence id already persisted")
    if verdict == "Unknown":
        topic.counters.unknown += messages
        cause = f"[{topic.name}][{name}]Cannot determine whether the message is a duplicate at this time"
        return refuse(ctx, topic, write, "PersistenceError", cause)
    if ctx.config.brokerEntryMetadataInterceptors:
        write.broker_timestamp = ctx.clock
        write.size += broker_entry_metadata_size(ctx.clock)
    if topic.fail_writes:
        topic.fail_writes -= 1
        _fail(ctx, topic, [write])
    elif topic.delay_writes or topic.pending:
        topic.delay_writes = max(topic.delay_writes - 1, 0)
        if not (topic.pending and (topic.pending[-1].last_of_ledger or topic.pending[-1].position is None)):
            write.position, write.last_of_ledger = topic.ledger.submit(write.size, ctx.clock, ctx.config)
        topic.pending.append(write)
    else:
        write.position, write.last_of_ledger = topic.ledger.submit(write.size, ctx.clock, ctx.config)
        _confirm(ctx, topic, write)
    return None


def _too_late(ctx: Context, write: PendingWrite) -> str | None:
    """Why its delivery is delayed too long; None if it isn't."""
    metadata, config = write.metadata, ctx.config
    if metadata.deliver_at_time is not None and config.delayedDeliveryEnabled:
        longest = config.delayedDeliveryMaxDelayInMillis
        if 0 < longest < metadata.deliver_at_time - metadata.publish_time:
            return f"delayed by more than {longest} ms"
    return None


def _confirm(ctx: Context, topic: Topic, write: PendingWrite) -> None:
    """The write succeeded (addComplete): it becomes visible, and its receipt leaves."""
    position = write.position
    assert position is not None
    topic.ledger.confirm(position, write.size, ctx.clock)
    ctx.entries.add(topic.name, position, Entry(write.metadata, write.size, write.broker_timestamp))
    highest = write.highest_sequence_id
    dedup = topic.dedup
    if dedup.status == "Enabled":
        dedup.record_persisted(
            write.producer.name, write.sequence_id if highest is None else highest, write.metadata
        )
        if dedup.snapshot_counter >= ctx.config.brokerDeduplicationEntriesInterval:
            dedup.snapshot_counter = 0
            dedup_cursor.take_snapshot(ctx, topic, position)
    _receipt(ctx, topic, write, position, None)
    for subscription in topic.subscriptions.values():
        if subscription.consumers and subscription.dispatcher is not None:
            subscription.dispatcher.new_entries(topic.context_of(ctx, subscription))
    if write.last_of_ledger:
        roll_over(ctx, topic, "ledger full")


def _receipt(ctx: Context, topic: Topic, write: PendingWrite, position: Position, cause: str | None) -> None:
    producer, metadata = write.producer, write.metadata
    if position is _DUPLICATE:
        ctx.emit(SendReceipt(topic.name, producer.connection, producer.producer_id, producer.name, write.sequence_id,
                             write.highest_sequence_id, -1, -1, cause))  # fmt: skip
        return
    num = metadata.num_messages_in_batch
    ctx.emit(
        SendReceipt(
            topic.name, producer.connection, producer.producer_id, producer.name, write.sequence_id,
            write.highest_sequence_id, position.ledger, position.entry, cause, write.size, 1 if num is None else num,
            metadata.publish_time, metadata.partition_key, None if write.plain else metadata, write.payload,
            write.broker_timestamp,
        )
    )  # fmt: skip


# -- faults (dedup.md §5, design decision 8) ----------------------------------------------------------------------


def fault(ctx: Context, topic: Topic, command: Fault) -> None:
    """Arm or release a storage fault."""
    if command.fault == "FailWrites":
        topic.fail_writes += command.count
    elif command.fault == "DelayWrites":
        topic.delay_writes += command.count
    elif command.fault == "CompleteWrites":
        _complete(ctx, topic, command.count or len(topic.pending))
    elif topic.pending:
        lost, topic.pending = topic.pending, []
        _fail(ctx, topic, lost)


def _complete(ctx: Context, topic: Topic, count: int) -> None:
    """Confirm the oldest pending writes; those behind a full ledger get their positions in the next one."""
    for _ in range(min(count, len(topic.pending))):
        write = topic.pending.pop(0)
        _confirm(ctx, topic, write)
        closing.write_done(ctx, topic, write.producer)
        if write.last_of_ledger:
            for waiting in topic.pending:
                waiting.position, waiting.last_of_ledger = topic.ledger.submit(
                    waiting.size, ctx.clock, ctx.config
                )
                if waiting.last_of_ledger:
                    break
    if not topic.pending:
        _recover(ctx, topic)


def _fail(ctx: Context, topic: Topic, writes: list[PendingWrite]) -> None:
    """Writes failed (addFailed): the topic is fenced, its producers go; with nothing pending it recovers."""
    topic.fenced = True
    ctx.emit(TopicEvent(topic.name, "fenced: a write failed"))
    for producer in list(topic.producers.values()):
        closing.disconnect(ctx, topic, producer, "a write failed")
    for write in writes:
        refuse(ctx, topic, write, "PersistenceError", "the write failed")
    if not topic.pending:
        _recover(ctx, topic)


def _recover(ctx: Context, topic: Topic) -> None:
    """Nothing is pending on a fenced topic: pushed := persisted, a new ledger, unfenced.

    A ledger with a failed write takes no more; what it holds is what was confirmed.
    """
    if not topic.fenced:
        return
    topic.dedup.roll_back()
    ledger = topic.ledger
    ledger.drop_unconfirmed()
    closed = ledger.current
    info = ledger.close_current(ctx.clock)
    if info is not None:
        ctx.emit(LedgerClosed(topic.name, closed, info.entries, info.size, "a write failed"))
    open_ledger(ctx, topic)
    topic.fenced = False
    ctx.emit(TopicEvent(topic.name, "recovered: pushed sequence ids rolled back to persisted"))
