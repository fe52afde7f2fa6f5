"""Runs of plain SENDs of one producer: what `publishing` does for each, with a few additions for each.

`publishing` is the definition, as for `publish_run`. A run ends before the first SEND of which something special can come: its
topic has consumers, limits or faults; a check, a timer, a full ledger or a snapshot is due; it is a duplicate; or its
metadata has more than a key. A property test holds rows and state equal.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from schemas.commands import Send
from schemas.effects import Row, SendReceipt
from schemas.entries import Entry
from streaming.broker.context import Context
from streaming.broker.ledger.managed_ledger import MEGABYTE
from streaming.broker.persistent.publish.publish_run import plain_until
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import from_tuple
from streaming.broker.producer.message_size import HEADER, plain_metadata_size, varint

_LOWEST = -(1 << 63) - 1
_REQUIRED = 3
"""The fields that every metadata has: a plain one has no others but a key and the size before compression."""


class Sends(NamedTuple):
    """SENDs of one producer of a connection to one topic. `offsets` rise; `timestamps` are in ms since the epoch."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    commands: Sequence[Send]


def carry_out(ctx: Context, topic: PersistentTopic, sends: Sends, start: int, due: int) -> int:
    """Carry out the plain SENDs from number `start` on. Returns the number of the first that needs the scalar step.

    `due` (ms): when the next check or timer is due.
    """
    offsets, timestamps, commands = sends
    connection, producer_id = commands[start].connection, commands[start].producer_id
    name = topic.producer_handles.get(connection, producer_id)
    counters = None if name is None else topic.producer_counters.get(name)
    if (
        name is None
        or counters is None
        or name in topic.closing_producers
        or (topic.subscriptions and topic.connected)
    ):
        return start
    config, ledger, dedup, of_topic, clock = ctx.config, topic.ledger, topic.dedup, topic.name, ctx.clock
    limit = min(due, plain_until(ctx, topic), topic.rates_until)
    largest, fields_of = config.maxMessageSize, msgspec.to_builtins
    known, fixed = None, 0
    mark, room = _LOWEST, config.managedLedgerMaxEntriesPerLedger - 1 - ledger.current_entries
    if enabled := dedup.status == "Enabled":
        mark = dedup.persisted.get(name, _LOWEST)
        room = min(room, config.brokerDeduplicationEntriesInterval - 1 - dedup.snapshot_counter)
    left = config.managedLedgerMaxSizePerLedgerMbytes * MEGABYTE - ledger.current_size
    id_, first = ledger.current, ledger.current_entries
    rows: list[Row] = []
    sizes: list[int] = []
    messages = total = 0
    for at in range(start, min(len(commands), start + room)):
        command = commands[at]
        metadata, sequence_id, count = command.metadata, command.sequence_id, command.num_messages
        payload = command.payload_bytes or command.payload.encode()
        key, uncompressed = metadata.partition_key, metadata.uncompressed_size
        now = max(clock, timestamps[at])
        if known is None or key is not None or metadata.producer_name != known:
            known = None if key is not None else metadata.producer_name
            fixed = HEADER + plain_metadata_size(metadata.producer_name, 0, 0, key) - 2 * varint(0)
        size = len(payload) + fixed + varint(metadata.sequence_id) + varint(metadata.publish_time)
        if uncompressed is not None:
            size += 1 + varint(uncompressed)
        if (
            now >= limit
            or (enabled and sequence_id <= mark)
            or total + size >= left
            or len(payload) > largest
            or command.highest_sequence_id is not None
            or command.message_id is not None
            or command.txnid_least_bits is not None
            or command.txnid_most_bits is not None
            or command.fails
            or len(fields_of(metadata)) != _REQUIRED + (key is not None) + (uncompressed is not None)
        ):
            break
        clock, mark = now, sequence_id
        total += size
        messages += count
        sizes.append(size)
        receipt = from_tuple(
            SendReceipt,
            (of_topic, connection, producer_id, name, sequence_id, None, id_, first + at - start, None, size, 1,
             metadata.publish_time, key, metadata, payload, None),
        )  # fmt: skip
        rows.append(from_tuple(Row, (offsets[at], 0, clock, receipt)))
    if not (entries := len(rows)):
        return start

    def entry(row: int) -> Entry:
        command = commands[start + row]
        return Entry(command.metadata, sizes[row], None, command.payload_bytes or command.payload.encode())

    ctx.rows += rows
    ctx.offset, ctx.ordinal, ctx.clock = offsets[start + entries - 1], 1, clock
    ctx.entries.add_all(of_topic, id_, first, entry, range(entries))
    ledger.add_all(entries, ledger.entry_sizes.add_all(sizes), clock, config)
    topic.counters.messages_in += messages
    topic.counters.bytes_in += total
    counters.messages_in += entries
    counters.bytes_in += total
    counters.last = clock
    if enabled:
        dedup.persisted[name] = mark
        dedup.snapshot_counter += entries
    if ctx.full is not None and len(ctx.rows) >= ctx.most:
        ctx.full()
    return start + entries
