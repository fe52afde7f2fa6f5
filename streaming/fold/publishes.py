"""Plain publishes as columns, for `Broker.publish`, and its receipts as a table."""

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence, Set
from itertools import compress, islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import (
    Ack,
    Decoded,
    Flow,
    MessageMetadata,
    Publish,
    RedeliverUnacknowledgedMessages,
    Send,
)
from schemas.effects import KINDS, Message, SendReceipt
from schemas.outputs import SCHEMAS
from streaming.broker.persistent.delivery_run import FIRST_ACK, NO_PLACE, Acks, Deliveries, Stretch, To
from streaming.broker.persistent.publish.publish_run import Largest, Publishes, Receipts, RowsOfTopic, Run
from streaming.broker.persistent.publish.publishing import DUPLICATE
from streaming.broker.producer.message_size import HEADER, metadata_size, plain_metadata_size
from streaming.fold.plain_layout import PlainAcks, PlainPublishes

RECEIPTS, MESSAGES = KINDS[SendReceipt], KINDS[Message]

_SHORTEST = 8
"""A run of fewer records costs more to set up than it saves."""

_SHARE, _SHARE_OF_OTHERS = 20, 1000
"""One in so many records of a stretch is a plain publish, and one in so many is something else, or more are. Else nothing is gained, or publish runs
are faster. Client libraries acknowledge up to a thousand messages with one ACK."""

_SCHEMA, _MESSAGE = SCHEMAS[RECEIPTS], SCHEMAS[MESSAGES]
_COLUMN_OF_TO = {"epoch": "consumer_epoch"}
_OF_AN_ENTRY = {"size", "publish_time", "partition_key", "payload", "messages", "metadata"}
_encode = msgspec.msgpack.Encoder().encode
_HEADS = tuple(
    _encode(MessageMetadata("", 0, 0, partition_key=key, uncompressed_size=size))[:3]
    for key, size in ((None, None), ("", None), ("", 0))
)
"""How a plain metadata with none, one or both of these begins in MessagePack: with the number of its fields."""
_INTEGERS = (("uncompressed_size", 1), ("num_messages_in_batch", 1), ("highest_sequence_id", 2))
"""Fields of metadata that many SENDs have, and the bytes of their tags."""
_HEAD_OF = {3 + count: _HEADS[0][:-1] + bytes([_HEADS[0][-1] + count]) for count in range(2 + len(_INTEGERS))}
"""How metadata with so many fields begins."""
_VARINT_BYTES = np.array([1 << bits for bits in range(7, 64, 7)], np.uint64)
_Integers = npt.NDArray[np.int64]
T = TypeVar("T")


class PublishColumns(NamedTuple):
    """The plain publishes among some records that follow each other, perhaps with other commands on their topics between them. `records`: which records
    they are. `senders`: a number for the sender of each. `columns`: of their receipts, what doesn't depend on the fold. `stretches`: of these
    records and those between them, what is worth a delivery run. `acks`: those that were read by column."""

    records: list[int]
    rows: Publishes
    senders: _Integers
    columns: dict[str, pa.Array]
    stretches: list[Stretch]
    acks: Acks = Acks([], [], [], [], [], [])

    def places(self, count: int) -> list[int]:
        """`RecordsOfRun.places` of so many records."""
        places = np.full(count, NO_PLACE)
        places[self.records] = np.arange(len(self.records))
        places[self.acks.records] = FIRST_ACK - np.arange(len(self.acks.records))
        return places.tolist()

    def runs(self) -> Iterator[Run | Stretch]:
        """The rows in the order of their records: each run of publishes without a gap, and each stretch."""
        following = 0
        for each in self.stretches:
            if each.row > following:
                yield from self._publish_runs(following, each.row)
            yield each
            following = bisect_left(self.records, each.stop)
        if following < len(self.records):
            yield from self._publish_runs(following, len(self.records))

    def _publish_runs(self, first: int, last: int) -> Iterator[Run]:
        """The runs of the rows from `first` to before `last`."""
        starts, stops = _runs(np.array(self.records[first:last]))
        long = stops - starts >= _SHORTEST
        starts, stops = starts[long], stops[long]
        if not len(starts):
            return
        runs = np.repeat(np.arange(len(starts)), stops - starts)
        own = np.concatenate([np.arange(*each) for each in zip(starts, stops, strict=True)]) + first
        starts, stops = starts + first, stops + first
        topics = _codes(self.columns["topic"])[own]
        order = np.argsort(_small(runs * (int(topics.max()) + 1) + topics), kind="stable")
        rows = own[order]
        runs, topics, senders = runs[order], topics[order], self.senders[rows]
        clocks, ids, sizes = (
            self.columns[name].to_numpy()[rows] for name in ("clock", "sequence_id", "size")
        )
        firsts = np.flatnonzero((np.diff(runs, prepend=-1) != 0) | (np.diff(topics, prepend=-1) != 0))
        rises = np.append(True, (ids[1:] > ids[:-1]) & (senders[1:] == senders[:-1]))
        rises[firsts] = True
        bounds = zip(
            firsts.tolist(),
            [*firsts[1:].tolist(), len(rows)],
            np.logical_and.reduceat(rises, firsts).tolist(),
            strict=True,
        )
        columns = [column.tolist() for column in (rows, clocks, ids, sizes, senders)]
        by_topic = (
            RowsOfTopic(rise, *(column[first:stop] for column in columns)) for first, stop, rise in bounds
        )
        topics_of = np.bincount(runs[firsts]).tolist()
        for start, stop, count in zip(starts.tolist(), stops.tolist(), topics_of, strict=True):
            yield Run(start, stop, list(islice(by_topic, count)))

    def messages(self, partition: int, deliveries: Deliveries, others: Sequence[pa.Table]) -> pa.Table:
        """`deliveries` and `others`, which have those of other records, as one table of MESSAGE by offset and ordinal."""
        if not (count := len(deliveries.rows)):
            return pa.concat_tables(others)
        rows, numbers = pa.array(deliveries.rows, pa.int64()), pa.array(deliveries.numbers, pa.int64())
        columns: dict[str, pa.Array] = {
            name: self.columns[name].take(rows) for name in ("offset", "clock", "topic", "size", "messages")
        }
        to = zip(To._fields, zip(*deliveries.to, strict=True), strict=True)
        columns |= {
            name: pa.array(each, _MESSAGE.field(name).type).take(numbers)
            for name, each in ((_COLUMN_OF_TO.get(name, name), each) for name, each in to)
        }
        columns |= {
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
            "ordinal": pa.array(deliveries.ordinals, pa.int32()),
            "ledger_id": pa.array(deliveries.ledgers, pa.int64()),
            "entry_id": pa.array(deliveries.entries, pa.int64()),
            "redelivery_count": pa.repeat(pa.scalar(0, pa.int32()), count),
        }
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type)
            for field in _MESSAGE
        ]
        table = pa.concat_tables([pa.Table.from_arrays(arrays, schema=_MESSAGE), *others])
        keys = table["ordinal"].to_numpy(), table["offset"].to_numpy()
        return table.take(np.lexsort(keys))

    def stored(self, receipts: Receipts, start: int) -> pa.Table:
        """The receipts of runs from number `start` on, in any order: topic, ledger, entry and payload."""
        rows = pa.array(receipts.rows[start:], pa.int64())
        return pa.table(
            {
                "topic": self.columns["topic"].take(rows),
                "ledger_id": pa.array(receipts.ledgers[start:], pa.int64()),
                "entry_id": pa.array(receipts.entries[start:], pa.int64()),
                "payload": self.columns["payload"].take(rows),
            }
        )

    def receipts(self, partition: int, receipts: Receipts, others: Sequence[pa.Table]) -> pa.Table:
        """`receipts` and `others`, which have those of other records by offset, as one table of SEND_RECEIPT by offset."""
        count = len(self.records)
        rows, ledger_ids, entry_ids = (np.array(column, np.int64) for column in receipts)
        ledgers, entries = np.zeros((2, count), np.int64)
        ledgers[rows], entries[rows] = ledger_ids, entry_ids
        columns: dict[str, Any] = self.columns | {
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
            "ordinal": pa.repeat(pa.scalar(0, pa.int32()), count),
            "ledger_id": pa.array(ledgers),
            "entry_id": pa.array(entries),
        }
        columns.setdefault("connection", pa.repeat(pa.scalar(""), count))
        if (ledgers < 0).any():
            stored = pa.array(ledgers >= 0)
            for name in columns.keys() & _OF_AN_ENTRY:
                columns[name] = pc.if_else(stored, columns[name], None)
            columns["cause"] = pc.if_else(stored, None, DUPLICATE)
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in _SCHEMA
        ]
        table = pa.Table.from_arrays(arrays, schema=_SCHEMA)
        if len(rows) == count and not others:
            return table
        table = pa.concat_tables([table, *others])
        rows = np.append(rows, np.arange(count, len(table)))
        return table.take(rows[np.argsort(table["offset"].to_numpy()[rows], kind="stable")])


def publish_columns(
    offsets: Sequence[int],
    timestamps: Sequence[int],
    topics: Sequence[str | None],
    commands: Sequence[Decoded | None],
    clock: int,
    others: Sequence[int] = (),
) -> PublishColumns | None:
    """The plain publishes among records with rising offsets and plausible timestamps (ms), if they are worth it.

    `clock` (ms): the partition's clock before them. `others`: see `within_stretches`, if such records may be folded together with them.
    """
    records = [
        row
        for row, each in enumerate(commands)
        if type(each) is Publish
        and not each.properties
        and each.event_time is None
        and each.deliver_at_time is None
        and not each.rest
    ]
    records, stretches = _worth_it(records, others)
    if not records:
        return None
    own: list[Any] = [commands[row] for row in records]
    clocks = _clocks(timestamps, clock)[records]
    producers, ids, keys, times = (
        list(map(attrgetter(name), own)) for name in ("producer", "sequence_id", "key", "publish_time")
    )
    clock_list = clocks.tolist()
    if times.count(None) == len(times):
        times = clock_list
    elif None in times:
        times = [now if time is None else time for time, now in zip(times, clock_list, strict=True)]
    payloads, names = _payloads(own), pa.array(producers, pa.string())
    keyed = pa.array(keys, pa.string())
    sizes, largest = _sizes(_texts(names), ids, clocks if times is clock_list else times, keyed, payloads)
    rows = Publishes(
        _taken(offsets, records), clock_list, _taken(topics, records), producers, ids, times, keys, sizes.tolist(), largest,
        producers, ids, [1] * len(records),
    )  # fmt: skip
    columns = _columns(rows, producer_name=names, partition_key=keyed, payload=payloads)
    return PublishColumns(records, rows, _codes(names), columns, stretches)


def plain_columns(
    offsets: Sequence[int],
    timestamps: Sequence[int],
    topics: Sequence[str | None],
    publishes: PlainPublishes,
    clock: int,
    others: Sequence[int] = (),
) -> PublishColumns | None:
    """`publish_columns` of publishes that were read by column."""
    records, stretches = _worth_it(publishes.rows.tolist(), others)
    if not records:
        return None
    _, names, producers, ids, payloads, keys = publishes
    if len(records) < len(publishes.rows):
        taken = np.searchsorted(publishes.rows, records)
        producers, ids = producers[taken], ids[taken]
        payloads, keys = payloads.take(pa.array(taken)), keys.take(pa.array(taken))
    clocks = _clocks(timestamps, clock)[records]
    sizes, largest = _sizes(_texts(names)[producers], ids, clocks, keys, payloads)
    clock_list, id_list = clocks.tolist(), ids.tolist()
    senders = _taken(names.to_pylist(), producers.tolist())
    rows = Publishes(
        _taken(offsets, records), clock_list, _taken(topics, records), senders, id_list, clock_list, keys.to_pylist(),
        sizes.tolist(), largest, senders, id_list, [1] * len(records),
    )  # fmt: skip
    known = {
        "clock": pa.array(clocks),
        "producer_name": names.take(pa.array(producers)),
        "sequence_id": pa.array(ids),
        "size": pa.array(sizes),
        "publish_time": pa.array(clocks),
        "partition_key": keys,
        "payload": payloads,
    }
    return PublishColumns(records, rows, producers, _columns(rows, **known), stretches)


def _columns(rows: Publishes, **known: pa.Array) -> dict[str, pa.Array]:
    """What receipts have of `rows`. `known`: columns that are arrays already."""
    columns: dict[str, tuple[Sequence[Any], pa.DataType]] = {
        "offset": (rows.offsets, pa.int64()),
        "clock": (rows.clocks, pa.int64()),
        "topic": (rows.topics, pa.string()),
        "sequence_id": (rows.sequence_ids, pa.int64()),
        "size": (rows.sizes, pa.int64()),
        "publish_time": (rows.publish_times, pa.int64()),
        "messages": (rows.messages, pa.int32()),
    }
    return known | {name: pa.array(*column) for name, column in columns.items() if name not in known}


def send_columns(
    offsets: Sequence[int],
    timestamps: Sequence[int],
    topics: Sequence[str | None],
    commands: Sequence[Decoded | None],
    clock: int,
    others: Sequence[int] = (),
) -> PublishColumns | None:
    """The plain SENDs, as `publish_columns` has the short form. Their metadata may also have the size before compression. Stretches have
    batches and other metadata, too."""
    records = [row for row, each in enumerate(commands) if type(each) is Send and _is_usual(each)]
    sends: Any = commands
    batches = {row for row in records if sends[row].num_messages != 1}
    encoded = {row: _encode(sends[row].metadata) for row in _worth_it(records, others, batches)[0]}
    records, stretches = _worth_it(
        list(encoded), others, {row for row, each in encoded.items() if not _is_plain(sends[row], each)}
    )
    if not records:
        return None
    own = [sends[row] for row in records]
    metadata, encodings = [each.metadata for each in own], [encoded[row] for row in records]
    clocks = _clocks(timestamps, clock)[records]
    producers, numbers, keys, times = (
        list(map(attrgetter(name), metadata))
        for name in ("producer_name", "sequence_id", "partition_key", "publish_time")
    )
    connections, producer_ids, ids, counts, highest = (
        list(map(attrgetter(name), own))
        for name in ("connection", "producer_id", "sequence_id", "num_messages", "highest_sequence_id")
    )
    marks = ids
    if highest.count(None) < len(highest):
        highest = [None if h is None or h < id_ else h for h, id_ in zip(highest, ids, strict=True)]
        marks = [id_ if h is None else h for h, id_ in zip(highest, ids, strict=True)]
    payloads = _payloads(own)
    names = pa.array(producers, pa.string())
    keyed = pa.array(keys, pa.string())
    sizes, largest = _sizes(_texts(names), numbers, times, keyed, payloads, _more(metadata, encodings))
    largest = largest._replace(messages=max(counts))
    rows = Publishes(
        _taken(offsets, records), clocks.tolist(), _taken(topics, records), producers, ids, times, keys, sizes.tolist(), largest,
        list(zip(connections, producer_ids, producers, strict=True)), marks, counts, metadata,
    )  # fmt: skip
    columns = {
        **_columns(rows, producer_name=names, partition_key=keyed, payload=payloads),
        "connection": pa.array(connections, pa.string()),
        "producer_id": pa.array(producer_ids, pa.int64()),
        "highest_sequence_id": pa.array(highest, pa.int64()),
        "metadata": pa.array(encodings, pa.binary()),
    }
    return PublishColumns(records, rows, _numbered(rows.senders), columns, stretches)


def _numbered(values: Sequence[Hashable]) -> _Integers:
    """A number for each, the same for equal values."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values])


def _codes(texts: pa.Array) -> _Integers:
    """The same for texts that may be null."""
    codes: _Integers = pc.fill_null(texts.dictionary_encode().indices, -1).to_numpy().astype(np.int64) + 1
    return codes


def _small(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers from 0 on, as short as they can be: short ones are sorted faster."""
    return numbers.astype(np.min_scalar_type(int(numbers.max())))


def _taken(column: Sequence[T], records: list[int]) -> list[T]:
    return [column[row] for row in records]


def _is_usual(send: Send) -> bool:
    """Whether nothing but its producer, its size, its key and its ids decides what becomes of it."""
    metadata = send.metadata
    messages = metadata.num_messages_in_batch
    if messages is not None:
        payload = send.payload_bytes or send.payload.encode()
        size = metadata.uncompressed_size if metadata.compression not in (None, "NONE") else len(payload)
        if messages < 1 or (payload and size is not None and size < messages):  # see `too_many_messages`
            return False
    return (
        send.num_messages == (messages or 1)
        and send.message_id is None
        and send.txnid_least_bits is None
        and send.txnid_most_bits is None
        and not send.fails
        and metadata.deliver_at_time is None
        and metadata.marker_type is None
        and metadata.chunk_id is None
        and metadata.uuid is None
    )


def _is_plain(send: Send, encoded: bytes) -> bool:
    """Does its metadata have nothing but a key and the size before compression? `encoded`: that, in MessagePack."""
    metadata = send.metadata
    more = (metadata.partition_key is not None) + (metadata.uncompressed_size is not None)
    return send.highest_sequence_id is None and encoded.startswith(_HEADS[more])


def _more(metadata: Sequence[MessageMetadata], encoded: Sequence[bytes]) -> _Integers:
    """The bytes of what each metadata has besides a key. `encoded`: the same in MessagePack."""
    found = np.zeros(len(metadata), np.int64)
    fields = np.full(len(metadata), 3)  # those that are accounted for, with the key
    fields += np.fromiter((each.partition_key is not None for each in metadata), bool, len(metadata))
    for name, tag in _INTEGERS:
        values = list(map(attrgetter(name), metadata))
        if values.count(None) < len(values):
            given = pa.array(values, pa.int64())
            found += np.where(given.is_valid(), tag + _varints(pc.fill_null(given, 0).to_numpy()), 0)
            fields += given.is_valid().to_numpy(zero_copy_only=False)
    heads = zip(encoded, map(_HEAD_OF.__getitem__, fields.tolist()), strict=True)
    for row, (each_encoded, head) in enumerate(heads):
        if not each_encoded.startswith(head):
            each = metadata[row]
            plain = plain_metadata_size(
                each.producer_name, each.sequence_id, each.publish_time, each.partition_key
            )
            found[row] = metadata_size(each) - plain
    return found


def _runs(records: _Integers) -> tuple[_Integers, _Integers]:
    """Where consecutive numbers start and stop."""
    breaks = np.flatnonzero(np.diff(records) != 1) + 1
    return np.append(0, breaks), np.append(breaks, len(records))


_WITHIN = frozenset({Ack, Flow, RedeliverUnacknowledgedMessages, Publish, Send})
"""What may be between the plain publishes of a stretch: commands that concern nothing but their topic."""


def within_stretches(commands: Sequence[Decoded | None], acks: PlainAcks | None) -> Sequence[int]:
    """The records that may be in stretches. `acks`: those that were read by column."""
    found = [row for row, each in enumerate(commands) if type(each) in _WITHIN]
    return found if acks is None else [*found, *acks.rows.tolist()]


def acks_of(plain: PlainAcks) -> Acks:
    """ACKs that were read by column, for delivery runs."""
    names = plain.names.to_pylist()
    connections = map(names.__getitem__, plain.connections.tolist())
    consumers = list(zip(connections, plain.consumer_ids.tolist(), strict=True))
    columns = (plain.ledgers, plain.entries, plain.individual, plain.parts)
    return Acks(plain.rows.tolist(), consumers, *(column.tolist() for column in columns))


def _worth_it(
    records: list[int], others: Sequence[int], in_stretches: Set[int] = frozenset()
) -> tuple[list[int], list[Stretch]]:
    """The publishes that follow each other and are not too few, and the stretches of them and `others`. `in_stretches`: those that may only be in
    these."""
    if not records or not others:
        return _in_runs([each for each in records if each not in in_stretches]), []
    publishes = np.array(records)
    both = np.flatnonzero(_mask(1 + max(records[-1], max(others)), records, others))
    starts, stops = _runs(both)
    firsts, lasts = both[starts], both[stops - 1] + 1
    begins, ends = np.searchsorted(publishes, firsts), np.searchsorted(publishes, lasts)
    length, own = stops - starts, ends - begins
    is_stretch = (
        (length >= _SHORTEST) & (own * _SHARE >= length) & ((length - own) * _SHARE_OF_OTHERS >= length)
    )
    within = np.repeat(is_stretch, own)
    alone = _in_runs([each for each in publishes[~within].tolist() if each not in in_stretches])
    within |= _mask(1 + records[-1], alone)[publishes]
    publishes = publishes[within]
    firsts, lasts = firsts[is_stretch], lasts[is_stretch]
    rows = np.searchsorted(publishes, firsts)
    columns = (firsts.tolist(), lasts.tolist(), rows.tolist())
    return publishes.tolist(), [Stretch(*each) for each in zip(*columns, strict=True)]


def _mask(count: int, *numbers: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which of so many numbers are among these."""
    mask = np.zeros(count, bool)
    for each in numbers:
        mask[np.array(each, np.int64)] = True
    return mask


def _in_runs(records: list[int]) -> list[int]:
    """The records that follow each other and are not too few."""
    if len(records) < _SHORTEST:
        return []
    starts, stops = _runs(np.array(records))
    lengths = stops - starts
    return list(compress(records, np.repeat(lengths >= _SHORTEST, lengths).tolist()))


def _clocks(timestamps: Sequence[int], clock: int) -> _Integers:
    clocks: _Integers = np.maximum(np.maximum.accumulate(np.array(timestamps, np.int64)), clock)
    return clocks


def _payloads(commands: Sequence[Any]) -> pa.Array:
    texts, binaries = (list(map(attrgetter(name), commands)) for name in ("payload", "payload_bytes"))
    if any(texts):
        binaries = [binary or text.encode() for binary, text in zip(binaries, texts, strict=True)]
    return pa.array(binaries, pa.binary())


def _sizes(
    producers: _Integers,
    ids: list[int] | _Integers,
    times: list[int] | _Integers,
    keys: pa.Array,
    payloads: pa.Array,
    more: _Integers | int = 0,
) -> tuple[_Integers, Largest]:
    """The stored sizes of entries in bytes, and the largest of them and of their payloads. `producers`: `_texts` of them. `more`: the bytes of
    other metadata."""
    lengths = pc.binary_length(payloads).to_numpy()
    sizes = HEADER + 3 + producers + _varints(np.array(ids, np.int64)) + lengths
    sizes += _varints(np.array(times, np.int64))
    if keys.null_count < len(keys):
        sizes += np.where(keys.is_valid(), 1 + _texts(keys), 0)
    sizes += more
    return sizes, Largest(int(sizes.max()), int(lengths.max()))


def _varints(values: _Integers) -> _Integers:
    """`message_size.varint` of each."""
    found: _Integers = np.searchsorted(_VARINT_BYTES, values.astype(np.uint64), side="right") + 1
    return found


def _texts(values: pa.Array) -> _Integers:
    """The bytes of each text and of its length; those of an empty text for null."""
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.int64)
    total: _Integers = lengths + _varints(lengths)
    return total
