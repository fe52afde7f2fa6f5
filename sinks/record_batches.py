"""Record batches that are encoded here, column by column, and sent by kafka-python.

`KafkaProducer.send` checks, measures and encodes each record by itself and gives it a future, which takes 25 µs. Here, a
batch has one future. From there on it is like any other: kafka-python's sender numbers it for idempotence, sends it again
after an error, and splits it if it is too large for its topic.

That needs parts of kafka-python that another minor version may change, so pyproject.toml admits only the one that the tests know.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from kafka import KafkaProducer, TopicPartition
from kafka.errors import MessageSizeTooLargeError
from kafka.partitioner.default import murmur2
from kafka.producer.future import FutureRecordMetadata
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.record.util import encode_varint

_MAGIC = 2
_UNCOMPRESSED = 0
_NO_ATTRIBUTES_NO_DELAY = b"\0\0"
_NO_KEY = b"\1"  # −1
_MOST_BEFORE = 12  # bytes of a record before its contents: its length, these two, and its number
_SHORT = 1 << 13  # numbers that take two bytes at most
_UNCONFIRMED_BYTES = 64 << 20


class RecordBatches:
    """Sends records to the partitions of one topic, in order per partition."""

    def __init__(self, producer: KafkaProducer, topic: str) -> None:
        """The size of batches and of records is limited by the producer's settings. Raises `KafkaError` if there is no such topic."""
        self._producer = producer
        self._topic = topic
        self._size: int = producer.config["batch_size"]
        self._largest: int = producer.config["max_request_size"]
        self._partitions: list[int] = sorted(producer.partitions_for(topic))
        self._of_key: dict[bytes, int] = {}
        self._waiting: dict[int, pa.Array] = {}
        self._sent: deque[Batch] = deque()
        self._unconfirmed = 0

    def partition_of(self, key: bytes) -> int:
        """The partition that Kafka's own clients choose for a key."""
        found = self._of_key.get(key)
        if found is None:
            found = self._partitions[(murmur2(key) & 0x7FFFFFFF) % len(self._partitions)]
            self._of_key[key] = found
        return found

    def add(self, partition: int, records: pa.Array) -> None:
        """Add records, from `encode`. May wait until Kafka has confirmed earlier ones. Raises `KafkaError`, such as
        `MessageSizeTooLargeError`."""
        if (waiting := self._waiting.pop(partition, None)) is not None:
            records = pa.concat_arrays([waiting, records])
        ends = np.cumsum(pc.binary_length(records).to_numpy().astype(np.int64) + _MOST_BEFORE)
        start, size = 0, 0
        while ends[-1] - size > self._size:
            stop = max(start + 1, int(np.searchsorted(ends, size + self._size, side="right")))
            self._send(partition, records.slice(start, stop - start))
            start, size = stop, int(ends[stop - 1])
        if start < len(records):
            self._waiting[partition] = records.slice(start)

    def add_by_key(self, keys: pa.Array, records: pa.Array) -> None:
        """The same, where the `keys` (bytes, none is null) of the records choose their partitions."""
        found = keys.dictionary_encode()
        of_keys = np.array([self.partition_of(key) for key in found.dictionary.to_pylist()])
        partitions = of_keys[found.indices.to_numpy()]
        order = np.argsort(partitions, kind="stable")
        records, partitions = records.take(pa.array(order)), partitions[order]
        starts = np.flatnonzero(np.diff(partitions, prepend=-1)).tolist()
        for start, stop in pairwise([*starts, len(records)]):
            self.add(int(partitions[start]), records.slice(start, stop - start))

    def confirm(self) -> None:
        """Send the rest, and wait until Kafka has confirmed all. Raises `KafkaError`."""
        for partition, records in self._waiting.items():
            self._send(partition, records)
        self._waiting.clear()
        while self._sent:
            self._confirm_one()

    def _send(self, partition: int, records: pa.Array) -> None:
        to = TopicPartition(self._topic, partition)
        batch = Batch(to, records)
        if batch.max_record_size > self._largest:
            raise MessageSizeTooLargeError(
                f"a record has {batch.max_record_size:,} bytes, and {self._largest:,} are allowed"
            )
        accumulator = self._producer._accumulator
        with accumulator._tp_lock(to):
            accumulator._batches[to].append(batch)
            accumulator._incomplete.add(batch)
        self._producer._sender.wakeup()
        self._sent.append(batch)
        self._unconfirmed += batch.size
        while self._unconfirmed > _UNCONFIRMED_BYTES:
            self._confirm_one()

    def _confirm_one(self) -> None:
        batch = self._sent.popleft()
        batch.confirm()
        self._unconfirmed -= batch.size


class Batch(ProducerBatch):  # type: ignore[misc]
    """Encoded records for one Kafka partition."""

    def __init__(self, to: TopicPartition, records: pa.Array) -> None:
        """`records`: from `encode`, one or more."""
        content = MemoryRecordsBuilder(
            _MAGIC, _UNCOMPRESSED, batch_size=0
        )  # full, so the sender doesn't wait for more
        super().__init__(to, content)
        del self._record_futures
        numbers = _varints(pa.array(np.arange(len(records))))
        bodies = _joined(_NO_ATTRIBUTES_NO_DELAY, numbers, records)
        encoded = _joined(_varints(pc.binary_length(bodies)), bodies)
        self.max_record_size: int = pc.max(pc.binary_length(encoded)).as_py()
        everything = pa.ListArray.from_arrays(pa.array([0, len(encoded)], pa.int32()), encoded)
        builder = content._builder
        builder._buffer += pc.binary_join(everything, b"")[0].as_buffer()
        builder._first_timestamp = builder._max_timestamp = int(time.time() * 1000)
        builder._num_records = content._next_offset = len(records)
        builder._last_offset = len(records) - 1
        self.size = len(builder._buffer)

    @cached_property
    def _record_futures(self) -> list[FutureRecordMetadata]:
        """What kafka-python binds to the parts when it splits the batch. It needs them for nothing else."""
        unknown = None, None, -1, -1, -1
        return [FutureRecordMetadata(self.produce_future, n, *unknown) for n in range(self.record_count)]

    def confirm(self) -> None:
        """Wait until Kafka has confirmed all records. Raises `KafkaError`."""
        self.produce_future.wait()
        if not self.produce_future.is_done:  # it was split
            for future in self._record_futures:
                future.get()
            return
        _, _, error_of = self.produce_future.value
        if error_of is not None:
            raise error_of(0)


def encode(keys: pa.Array, values: pa.Array, headers: pa.Array) -> pa.Array:
    """What records have besides their place: columns of bytes, `keys` null for none, and `headers` from `encode_headers`."""
    own = _joined(_varints(pc.binary_length(keys)), keys).fill_null(_NO_KEY)
    return _joined(own, _varints(pc.binary_length(values)), values, headers)


def encode_headers(named: Mapping[str, pa.Array], more: Sequence[Mapping[str, bytes]] = ()) -> pa.Array:
    """The headers of records: a column of bytes for each name, and what each record has besides, unless `more` is empty."""
    parts: list[bytes | pa.Array] = [_varint(len(named))]
    if more:
        parts = [_varints(pa.array([len(named) + len(each) for each in more]))]
    for name, values in named.items():
        parts += [_text(name.encode()), _varints(pc.binary_length(values)), values]
    if more:
        encoded = (b"".join(_text(n.encode()) + _text(v) for n, v in each.items()) for each in more)
        parts.append(pa.array(encoded, pa.binary()))
    return _joined(*parts)


def _joined(*parts: bytes | pa.Array) -> pa.Array:
    """Columns of bytes, row by row. Null where one is."""
    return pc.binary_join_element_wise(*parts, b"")


def _text(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _varints(numbers: pa.Array) -> pa.Array:
    if (pc.max(numbers).as_py() or 0) < _SHORT:
        return _short_varints().take(numbers)
    found = numbers.dictionary_encode()
    return pa.array(map(_varint, found.dictionary.to_pylist()), pa.binary()).take(found.indices)


@cache
def _short_varints() -> pa.Array:
    return pa.array(map(_varint, range(_SHORT)), pa.binary())


def _varint(number: int) -> bytes:
    encoded = bytearray()
    encode_varint(number, encoded.append)
    return bytes(encoded)
