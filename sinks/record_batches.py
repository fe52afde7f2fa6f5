"""Record batches that are encoded here and sent by kafka-python.

`KafkaProducer.send` checks, measures and encodes each record by itself and gives it a future, which takes 25 µs. Here, a
batch has one future. From there on it is like any other: kafka-python's sender numbers it for idempotence, sends it again
after an error, and splits it if it is too large for its topic.

That needs parts of kafka-python that another minor version may change, so pyproject.toml admits only the one that the tests know.
"""

import time
from collections.abc import Sequence
from functools import cached_property, lru_cache

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
        self._filling: dict[int, _Filling] = {}
        self._sent: list[Batch] = []

    def partition_of(self, key: bytes) -> int:
        """The partition that Kafka's own clients choose for a key."""
        found = self._of_key.get(key)
        if found is None:
            found = self._partitions[(murmur2(key) & 0x7FFFFFFF) % len(self._partitions)]
            self._of_key[key] = found
        return found

    def add(self, partition: int, key: bytes | None, value: bytes, headers: bytes) -> None:
        """Add a record. `headers`: from `encode_headers`. Raises `MessageSizeTooLargeError`."""
        filling = self._filling.get(partition)
        if filling is None:
            filling = self._filling[partition] = _Filling()
        record = encode(len(filling.records), key, value, headers)
        if len(record) > self._largest:
            raise MessageSizeTooLargeError(
                f"a record has {len(record):,} bytes, and {self._largest:,} are allowed"
            )
        if filling.size + len(record) > self._size and filling.records:
            self._send(partition)
            self.add(partition, key, value, headers)
            return
        filling.records.append(record)
        filling.size += len(record)

    def confirm(self) -> None:
        """Send the rest, and wait until Kafka has confirmed all. Raises `KafkaError`."""
        for partition in list(self._filling):
            self._send(partition)
        for batch in self._sent:
            batch.confirm()
        self._sent.clear()

    def _send(self, partition: int) -> None:
        to = TopicPartition(self._topic, partition)
        batch = Batch(to, self._filling.pop(partition).records)
        accumulator = self._producer._accumulator
        with accumulator._tp_lock(to):
            accumulator._batches[to].append(batch)
            accumulator._incomplete.add(batch)
        self._producer._sender.wakeup()
        self._sent.append(batch)


class _Filling:
    """Encoded records that are not sent yet, and their size in bytes."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.size = 0


class Batch(ProducerBatch):  # type: ignore[misc]
    """Encoded records for one Kafka partition."""

    def __init__(self, to: TopicPartition, records: list[bytes]) -> None:
        """`records`: from `encode`, numbered from 0."""
        content = MemoryRecordsBuilder(
            _MAGIC, _UNCOMPRESSED, batch_size=0
        )  # full, so the sender doesn't wait for more
        super().__init__(to, content)
        del self._record_futures
        self.max_record_size = max(map(len, records))
        builder = content._builder
        builder._buffer += b"".join(records)
        builder._first_timestamp = builder._max_timestamp = int(time.time() * 1000)
        builder._num_records = content._next_offset = len(records)
        builder._last_offset = len(records) - 1

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


def encode(number: int, key: bytes | None, value: bytes, headers: bytes) -> bytes:
    """A record as in a batch, where `number` is its place. All records of a batch have the batch's timestamp."""
    own_key = _NO_KEY if key is None else _varint(len(key)) + key
    body = b"".join((_NO_ATTRIBUTES_NO_DELAY, _varint(number), own_key, _varint(len(value)), value, headers))
    return _varint(len(body)) + body


def encode_headers(headers: Sequence[bytes]) -> bytes:
    """The headers of a record. Each is from `encode_header`."""
    return _varint(len(headers)) + b"".join(headers)


def encode_header(name: bytes, value: bytes) -> bytes:
    """A header. `name`: in UTF-8."""
    return b"".join((_varint(len(name)), name, _varint(len(value)), value))


@lru_cache(maxsize=1 << 14)
def _varint(number: int) -> bytes:
    encoded = bytearray()
    encode_varint(number, encoded.append)
    return bytes(encoded)
