"""Plain publishes as columns, for `Broker.publish`, and its receipts as a table."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import Decoded, Publish
from schemas.effects import KINDS, SendReceipt
from schemas.outputs import SCHEMAS
from streaming.broker.persistent.publish_run import Publishes, Receipts
from streaming.broker.persistent.publishing import DUPLICATE
from streaming.broker.producer.message_size import HEADER

RECEIPTS = KINDS[SendReceipt]

_SHORTEST = 8
"""A run of fewer records costs more to set up than it saves."""

_SCHEMA = SCHEMAS[RECEIPTS]
_VARINT_BYTES = np.array([1 << bits for bits in range(7, 64, 7)], np.uint64)
_Integers = npt.NDArray[np.int64]


class PublishColumns(NamedTuple):
    """The plain publishes among some records. `records`: which records they are."""

    records: list[int]
    rows: Publishes
    payloads: pa.Array

    def runs(self) -> list[tuple[int, int]]:
        """The rows, each run from its first row to before its last, of records without a gap, and not too few."""
        records = np.array(self.records)
        breaks = np.flatnonzero(np.diff(records) != 1) + 1
        starts, stops = np.append(0, breaks), np.append(breaks, len(records))
        long = stops - starts >= _SHORTEST
        return list(zip(starts[long].tolist(), stops[long].tolist(), strict=True))

    def receipts(self, partition: int, receipts: Receipts, start: int) -> pa.Table:
        """Those of `receipts` from number `start` on, as a table of SEND_RECEIPT."""
        rows = receipts.rows[start:]
        ledgers = pa.array(receipts.ledgers[start:], pa.int64())
        columns: dict[str, Any] = {
            "offset": pa.array(self.rows.offsets),
            "clock": pa.array(self.rows.clocks),
            "topic": pa.array(self.rows.topics, pa.string()),
            "producer_name": pa.array(self.rows.producers, pa.string()),
            "sequence_id": pa.array(self.rows.sequence_ids, pa.int64()),
            "size": pa.array(self.rows.sizes),
            "publish_time": pa.array(self.rows.publish_times, pa.int64()),
            "partition_key": pa.array(self.rows.keys, pa.string()),
            "payload": self.payloads,
        }
        if len(rows) < len(self.records):
            taken = pa.array(rows, pa.int64())
            columns = {name: column.take(taken) for name, column in columns.items()}
        columns |= {
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), len(rows)),
            "ordinal": pa.repeat(pa.scalar(0, pa.int32()), len(rows)),
            "connection": pa.repeat(pa.scalar(""), len(rows)),
            "messages": pa.repeat(pa.scalar(1, pa.int32()), len(rows)),
            "ledger_id": ledgers,
            "entry_id": pa.array(receipts.entries[start:], pa.int64()),
        }
        stored = pc.greater_equal(ledgers, 0)
        if not pc.all(stored).as_py():
            for name in ("size", "publish_time", "partition_key", "payload", "messages"):
                columns[name] = pc.if_else(stored, columns[name], None)
            columns["cause"] = pc.if_else(stored, None, DUPLICATE)
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(len(rows), field.type)
            for field in _SCHEMA
        ]
        return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def publish_columns(
    offsets: Sequence[int],
    timestamps: Sequence[int],
    topics: Sequence[str | None],
    commands: Sequence[Decoded],
    clock: int,
) -> PublishColumns | None:
    """The plain publishes among records with rising offsets and plausible timestamps (ms), if they are worth it.

    `clock` (ms): the partition's clock before them.
    """
    records = [
        row
        for row, each in enumerate(commands)
        if type(each) is Publish
        and not each.properties
        and each.event_time is None
        and each.deliver_at_time is None
    ]
    if len(records) < _SHORTEST:
        return None
    clocks = np.maximum(np.maximum.accumulate(np.array(timestamps, np.int64)), clock)
    if len(records) < len(commands):
        clocks = clocks[records]
        offsets = [offsets[row] for row in records]
        topics = [topics[row] for row in records]
        commands = [commands[row] for row in records]
    producers, ids, keys, times, texts, binaries = (
        list(map(attrgetter(name), commands))
        for name in ("producer", "sequence_id", "key", "publish_time", "payload", "payload_bytes")
    )
    clock_list = clocks.tolist()
    if times.count(None) == len(times):
        times = clock_list
    elif None in times:
        times = [now if time is None else time for time, now in zip(times, clock_list, strict=True)]
    if any(texts):
        binaries = [binary or text.encode() for binary, text in zip(binaries, texts, strict=True)]
    payloads = pa.array(binaries, pa.binary())
    lengths = pc.binary_length(payloads).to_numpy()
    sizes = (
        HEADER + 3 + _texts(pa.array(producers, pa.string())) + _varints(np.array(ids, np.int64)) + lengths
    )
    sizes += _varints(clocks if times is clock_list else np.array(times, np.int64))
    if keys.count(None) < len(keys):
        keyed = pa.array(keys, pa.string())
        sizes += np.where(keyed.is_valid(), 1 + _texts(keyed), 0)
    rows = Publishes(
        list(offsets), clock_list, list(topics), producers, ids, times, keys, sizes.tolist(),
        (int(sizes.max()), int(lengths.max())),
    )  # fmt: skip
    return PublishColumns(records, rows, payloads)


def _varints(values: _Integers) -> _Integers:
    """`message_size.varint` of each."""
    found: _Integers = np.searchsorted(_VARINT_BYTES, values.astype(np.uint64), side="right") + 1
    return found


def _texts(values: pa.Array) -> _Integers:
    """The bytes of each text and of its length; those of an empty text for null."""
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.int64)
    total: _Integers = lengths + _varints(lengths)
    return total
