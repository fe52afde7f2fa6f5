"""Publishing to a topic that stores its messages: check, append, confirm (mirrors `PersistentTopic.publishMessage`;
docs/rules/producers.md §13, §14, docs/rules/deduplication.md §3).

The broker confirms a write at once, since a micro-batch commits its entries before its receipts leave. Only a fault
delays a write or makes it fail.
"""

from schemas.commands import Fault, MessageIdData, MessageMetadata, Publish, Send
from schemas.effects import LedgerClosed, SendReceipt, TopicEvent, Unsupported
from schemas.entries import Entry
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context
from streaming.broker.dispatch.sending import ABORT_MARKER, COMMIT_MARKER
from streaming.broker.errors import BrokerError
from streaming.broker.persistent import rate_limits
from streaming.broker.persistent.cleanup import backlog_quota
from streaming.broker.persistent.cleanup.ledger_rollover import (
    FULL,
    open_for_entry,
    open_ledger,
    roll_over,
)
from streaming.broker.persistent.publish import deduplication_snapshots, shadow
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.hierarchy import HierarchyTopicPolicies
from streaming.broker.position import Position, from_tuple, from_wire
from streaming.broker.producer.message_size import HEADER, broker_entry_metadata_size, metadata_size
from streaming.broker.producer.producer import Producer
from streaming.broker.topic import creation, registration
from streaming.broker.topic.abstract_topic import PendingWrite
from streaming.broker.topic.publish_requests import (
    from_send,
    from_short_form,
    from_source,
    may_publish,
    may_send,
    refuse,
    too_large,
    too_many_messages,
)
from streaming.broker.transactions.transaction_buffer import (
    TransactionBuffer,
    TxnID,
    note_low_water_mark,
)

DUPLICATE = "duplicate: sequence id already persisted"
"""The cause of a receipt for which nothing was stored."""

_NOWHERE = Position(-1, -1)
"""The position in the receipt of a duplicate (docs/rules/deduplication.md §7)."""


def handle_send(ctx: Context, topic: PersistentTopic, command: Send) -> None:
    """A SEND of a connected producer, or with an entry of a shadow topic's source."""
    if command.message_id is not None and topic.is_shadow:
        _store_of_source(ctx, topic, command, command.message_id)
        return
    policies = ctx.policies_of(topic)
    write = from_send(ctx, topic, command)
    if write is not None and command.txnid_least_bits is not None and command.txnid_most_bits is not None:
        write.txn = TxnID(command.txnid_most_bits, command.txnid_least_bits)
    if write is not None and may_send(ctx, topic, policies, command, write):
        _publish(ctx, topic, policies, write, command.num_messages, fails=command.fails)


def handle_publish(ctx: Context, topic: PersistentTopic, command: Publish) -> None:
    """The short form. Its producer is registered with its first message, but for one that came through REST."""
    policies = ctx.policies_of(topic)
    write = from_short_form(ctx, topic, command)
    if not may_publish(ctx, topic, policies, write, rest=command.rest):
        return
    producer = write.producer
    try:
        if command.rest:
            registration.check_open(topic)
            _check_no_deduplication(topic)
        elif producer.name not in topic.producers:
            creation.check_max_producers(ctx, topic, producer)
            backlog_quota.check_producer_creation(ctx, topic)
            creation.add(ctx, topic, producer)
    except BrokerError as error:
        refuse(ctx, topic, write, error.code, error.cause)
        return
    _publish(ctx, topic, policies, write, 1)


def _check_no_deduplication(topic: PersistentTopic) -> None:
    """quirk: deduplication knows messages by their producers, and one through REST has none. In Pulsar, that is a NullPointerException.
    Raises `BrokerError`."""
    if topic.dedup.status == "Enabled":
        cause = "deduplication is enabled: it takes no messages through REST, which have no producer"
        raise BrokerError("UnknownError", cause)


def _note_absent(ctx: Context, topic: PersistentTopic, producer: Producer) -> None:
    """Deduplication forgets the name of a message without a connection some time after now, if no producer of the topic has it."""
    if producer.producer_id is None and producer.name not in topic.producers:
        topic.dedup.producer_added(producer.name)  # it may have left before
        topic.dedup.producer_removed(producer.name, ctx.clock, short_form=True)


def _publish(
    ctx: Context,
    topic: PersistentTopic,
    policies: HierarchyTopicPolicies,
    write: PendingWrite,
    messages: int,
    *,
    fails: bool = False,
) -> None:
    """The checks in Pulsar's order, then the write. `messages`: the number of messages that the command states. `fails`: whether it asks
    that its write fails.

    A fenced or terminated topic has no producers, and takes nothing through REST, so no message gets here.
    """
    topic.counters.messages_in += messages
    topic.counters.bytes_in += write.size
    if policies.publish_throttled:
        rate_limits.published(ctx, topic, write.producer, messages, write.size)
    refusal = too_large(ctx, policies, write)
    if refusal is None and write.metadata.deliver_at_time is not None:
        refusal = _too_late(ctx.config, policies, write, write.metadata.deliver_at_time)
    if refusal is not None:
        return refuse(ctx, topic, write, "NotAllowedError", refusal)
    name, highest = write.producer.name, write.highest_sequence_id
    verdict = topic.dedup.check(
        name, write.sequence_id, write.sequence_id if highest is None else highest, write.metadata
    )
    if verdict == "Dup":
        topic.counters.duplicates += messages
        return _receipt(ctx, topic, write, _NOWHERE, DUPLICATE)
    if verdict == "Unknown":
        topic.counters.unknown += messages
        cause = f"[{topic.name}][{name}]Cannot determine whether the message is a duplicate at this time"
        return refuse(ctx, topic, write, "PersistenceError", cause)
    if write.txn is not None:
        cause = topic.buffer().refusal(write.txn, stays=ctx.config.refusedTransactionsStay)
        if cause:
            return refuse(ctx, topic, write, "NotAllowedError", cause)
    if ctx.config.brokerEntryMetadataInterceptors:
        _note_broker_time(ctx, write)
    if fails or topic.fail_writes:
        topic.fail_writes -= not fails
        if topic.ledger.closed:
            open_for_entry(ctx, topic)
        _fail(ctx, topic, [write])
    elif topic.delay_writes or topic.pending:
        topic.delay_writes = max(topic.delay_writes - 1, 0)
        if not (topic.pending and (topic.pending[-1].last_of_ledger or topic.pending[-1].position is None)):
            _submit(ctx, topic, write)
        topic.put_off(write)
    else:
        _submit(ctx, topic, write)
        _confirm(ctx, topic, write)
    return None


def _store_of_source(ctx: Context, topic: PersistentTopic, command: Send, message_id: MessageIdData) -> None:
    """Store an entry of the source. The source's broker has accepted it, so neither policies nor deduplication judge it."""
    write = from_source(ctx, topic, command)
    source = from_wire(message_id.ledgerId, message_id.entryId)
    refusal = shadow.refusal(topic, source) or too_many_messages(ctx.config, write.metadata, write.payload)
    if refusal is not None:
        refuse(ctx, topic, write, "NotAllowedError", refusal)
        return
    topic.counters.messages_in += command.num_messages
    topic.counters.bytes_in += write.size
    if ctx.config.brokerEntryMetadataInterceptors:
        _note_broker_time(ctx, write)
    topic.last_active = ctx.clock  # somebody has published on the source
    shadow.follow(ctx, topic, source.ledger)
    _submit(ctx, topic, write)
    _confirm(ctx, topic, write)


def _note_broker_time(ctx: Context, write: PendingWrite) -> None:
    """AppendBrokerTimestampMetadataInterceptor."""
    write.broker_timestamp = ctx.clock
    write.size += broker_entry_metadata_size(ctx.clock)


def _submit(ctx: Context, topic: PersistentTopic, write: PendingWrite) -> None:
    """Give an entry its position."""
    if topic.ledger.closed:
        open_for_entry(ctx, topic)
    write.position, full = topic.ledger.submit(write.size, ctx.clock, ctx.config)
    write.last_of_ledger = full and not topic.is_shadow


def _too_late(
    config: ServiceConfiguration, policies: HierarchyTopicPolicies, write: PendingWrite, deliver_at: int
) -> str | None:
    """Why a message is delayed for too long; None: it is not."""
    if not config.limitsDeliveryDelays:
        return None
    policy = policies.delayedDelivery.value
    longest = policy.maxDeliveryDelayInMillis
    if policy.active and 0 < longest < deliver_at - write.metadata.publish_time:
        return f"Exceeds max allowed delivery delay of {longest} milliseconds"
    return None


def _confirm(ctx: Context, topic: PersistentTopic, write: PendingWrite) -> None:
    """The write succeeded (addComplete): consumers may see the entry, and the receipt leaves."""
    position = write.position
    assert position is not None
    topic.ledger.confirm(position, write.size, ctx.clock)
    payload = write.payload if ctx.entries.recent_payloads is None else None
    entry = Entry(write.metadata, write.size, write.broker_timestamp, payload)
    ctx.entries.add(topic.name, position, entry)
    highest = write.highest_sequence_id
    dedup = topic.dedup
    marker = topic.transactions is not None and _note_in_buffer(topic, topic.transactions, write, position)
    if dedup.status == "Enabled" and not marker:
        dedup.record_persisted(
            write.producer.name, write.sequence_id if highest is None else highest, write.metadata
        )
        if dedup.snapshot_counter >= ctx.config.brokerDeduplicationEntriesInterval:
            dedup.snapshot_counter = 0
            deduplication_snapshots.take_snapshot(ctx, topic, position)
    if marker:
        _marker_receipt(ctx, topic, write, position)
    else:
        _receipt(ctx, topic, write, position, None)
    for subscription in topic.connected:
        dispatcher = subscription.dispatcher
        if subscription.consumers and dispatcher is not None and dispatcher.pending_read:
            dispatcher.new_entry(topic.context_of(ctx, subscription), position, entry)
    if write.last_of_ledger:
        roll_over(ctx, topic, FULL)


# -- the ends of transactions are entries, too (mirrors `TopicTransactionBuffer`; docs/rules/transactions.md §4) ----

MARKER_PRODUCER = "pulsar.txn.marker"
"""The name of the producer in the metadata of a marker."""

MARKED = {
    COMMIT_MARKER: "the marker of transaction {}, which committed",
    ABORT_MARKER: "the marker of transaction {}, which aborted",
}
"""The cause of the receipt of a marker, by its type."""


def _is_marker(write: PendingWrite) -> bool:
    return write.txn is not None and write.producer.producer_id is None


def _note_in_buffer(
    topic: PersistentTopic, buffer: TransactionBuffer, write: PendingWrite, position: Position
) -> bool:
    """Returns whether the write is a marker."""
    if write.txn is None:
        buffer.published(topic.ledger, position)
        return False
    if _is_marker(write):
        buffer.ended(topic.ledger, write.txn, position, committed=write.metadata.marker_type == COMMIT_MARKER)
        return True
    buffer.added(topic.ledger, write.txn, position)
    return False


def _marker_receipt(ctx: Context, topic: PersistentTopic, write: PendingWrite, position: Position) -> None:
    cause = MARKED[write.metadata.marker_type or 0].format(write.txn)
    ctx.emit(SendReceipt(topic.name, "", None, MARKER_PRODUCER, -1, None, *position, cause, write.size, 1,
                         write.metadata.publish_time, None, write.metadata, write.payload, write.broker_timestamp))  # fmt: skip


def end_transaction(
    ctx: Context, topic: PersistentTopic, txn: TxnID, low_water_mark: int, *, commit: bool
) -> bool:
    """Write the marker of a transaction, and abort one more that came too late (docs/rules/transactions.md §4). False: the topic is
    terminated. A fault that delays writes delays the marker behind them."""
    buffer = topic.transactions
    if not commit and (buffer is None or not buffer.ready):
        return True  # no message was sent
    if topic.terminated:
        ctx.emit(TopicEvent(topic.name, f"transaction {txn} can't end: the topic is terminated"))
        return False
    buffer = topic.buffer()
    _write_marker(ctx, topic, txn, COMMIT_MARKER if commit else ABORT_MARKER)
    late = note_low_water_mark(buffer.low_water_marks, txn.most, low_water_mark, buffer.ongoing)
    if late is not None and not topic.pending:
        _write_marker(ctx, topic, late, ABORT_MARKER)
    return True


def _write_marker(ctx: Context, topic: PersistentTopic, txn: TxnID, marker: int) -> None:
    metadata = MessageMetadata(
        MARKER_PRODUCER,
        -1,
        ctx.clock,
        marker_type=marker,
        txnid_least_bits=txn.least,
        txnid_most_bits=txn.most,
    )
    producer = Producer(MARKER_PRODUCER, "", None, created=ctx.clock)
    size = HEADER + metadata_size(metadata)
    write = PendingWrite(producer, -1, None, metadata, b"", size, plain=False, txn=txn)
    if ctx.config.brokerEntryMetadataInterceptors:
        _note_broker_time(ctx, write)
    if topic.pending:
        if not (topic.pending[-1].last_of_ledger or topic.pending[-1].position is None):
            _submit(ctx, topic, write)
        topic.put_off(write)
    else:
        _submit(ctx, topic, write)
        _confirm(ctx, topic, write)


def _receipt(
    ctx: Context, topic: PersistentTopic, write: PendingWrite, position: Position, cause: str | None
) -> None:
    producer, metadata = write.producer, write.metadata
    num = metadata.num_messages_in_batch
    counters = topic.counters_of(ctx, producer)
    counters.messages_in += 1 if num is None else num
    counters.bytes_in += write.size
    counters.last = ctx.clock
    if not write.plain and metadata.chunk_id is not None:
        counters.chunks_in += 1
    if position is _NOWHERE:
        ctx.emit(SendReceipt(topic.name, producer.connection, producer.producer_id, producer.name, write.sequence_id,
                             write.highest_sequence_id, -1, -1, cause))  # fmt: skip
        return
    receipt = (
        topic.name, producer.connection, producer.producer_id, producer.name, write.sequence_id, write.highest_sequence_id,
        position.ledger, position.entry, cause, write.size, 1 if num is None else num, metadata.publish_time,
        metadata.partition_key, None if write.plain else metadata, write.payload, write.broker_timestamp,
    )  # fmt: skip
    ctx.emit(from_tuple(SendReceipt, receipt))


# -- faults come as commands, so that a log repeats them (docs/rules/deduplication.md §10) ------------------------


def handle_fault(ctx: Context, topic: PersistentTopic, command: Fault) -> None:
    """FAULT: make coming writes fail or wait, or decide the fate of those that wait."""
    if topic.is_shadow and command.fault in ("FailWrites", "DelayWrites"):
        cause = f"{command.fault} on a shadow topic, whose source has written its entries"
        ctx.emit(Unsupported(topic.name, command.connection, cause))
        return
    if command.fault == "FailWrites":
        topic.fail_writes += command.count
    elif command.fault == "DelayWrites":
        topic.delay_writes += command.count
    elif command.fault == "CompleteWrites":
        _complete(ctx, topic, command.count or len(topic.pending))
    elif topic.pending:
        _fail(ctx, topic, topic.take_pending())


def _complete(ctx: Context, topic: PersistentTopic, count: int) -> None:
    """Confirm the oldest pending writes. Those behind a full ledger get positions in the next one."""
    for _ in range(min(count, len(topic.pending))):
        write = topic.take_oldest()
        _confirm(ctx, topic, write)
        if not _is_marker(write):
            registration.write_done(ctx, topic, write.producer)
            _note_absent(ctx, topic, write.producer)
        if write.last_of_ledger:
            for waiting in topic.pending:
                _submit(ctx, topic, waiting)
                if waiting.last_of_ledger:
                    break
    if not topic.pending:
        _recover(ctx, topic)


def _fail(ctx: Context, topic: PersistentTopic, writes: list[PendingWrite]) -> None:
    """Writes failed (addFailed): fence the topic and disconnect its producers. If no write is pending, it recovers."""
    topic.fenced = True
    ctx.emit(TopicEvent(topic.name, "fenced: a write failed"))
    for producer in list(topic.producers.values()):
        registration.disconnect(ctx, topic, producer, "a write failed")
    for write in writes:
        if not _is_marker(write):
            refuse(ctx, topic, write, "PersistenceError", "the write failed")
    if not topic.pending:
        _recover(ctx, topic)
    for write in writes:
        if write.txn is not None and _is_marker(write):  # the coordinator tries again
            _write_marker(ctx, topic, write.txn, write.metadata.marker_type or 0)


def _recover(ctx: Context, topic: PersistentTopic) -> None:
    """No write is pending on a fenced topic: pushed := persisted, a new ledger opens, the topic is unfenced.

    A ledger with a failed write takes no more entries. It holds those that were confirmed.
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
