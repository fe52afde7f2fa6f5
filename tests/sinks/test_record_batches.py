"""Record batches encoded here are, byte for byte, those of kafka-python."""

from collections import defaultdict
from threading import Lock
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.cluster import ClusterMetadata
from kafka.errors import MessageSizeTooLargeError
from kafka.partitioner import DefaultPartitioner
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from sinks.record_batches import Batch, RecordBatches, encode, encode_headers

TO = TopicPartition("t", 0)
NOW = 1_700_000_000.5
EMPTY = MemoryRecordsBuilder(2, 0, 0).size_in_bytes()

contents = st.binary(max_size=5) | st.integers(0, 20_000).map(bytes)
records = st.tuples(
    st.none() | contents,
    contents,
    st.dictionaries(st.text(max_size=5), contents, max_size=5).map(lambda each: list(each.items())),
)


def batch_of(those: list[Any]) -> Batch:
    keys, values = (pa.array([each[place] for each in those], pa.binary()) for place in (0, 1))
    headers = encode_headers({}, [dict(each[2]) for each in those])
    with patch("time.time", return_value=NOW):
        return Batch(TO, encode(keys, values, headers))


@given(st.lists(records, min_size=1, max_size=80), st.integers(0, 2**31 - 1))
def test_a_batch_is_encoded_as_kafka_python_does(those: list[Any], sequence: int) -> None:
    theirs = MemoryRecordsBuilder(2, 0, 1 << 30)
    for key, value, headers in those:
        theirs.append(int(NOW * 1000), key, value, headers)
    own = batch_of(those).records
    for builder in (own, theirs):
        builder.set_producer_state(7, 1, sequence, False)
        builder.close()
    assert own.buffer() == theirs.buffer()
    assert own.next_offset() == theirs.next_offset()


@given(st.lists(st.tuples(contents, contents), min_size=1, max_size=9))
def test_columns_of_headers_are_those_of_each_record(values: list[tuple[bytes, bytes]]) -> None:
    columns = [pa.array(column, pa.binary()) for column in zip(*values, strict=True)]
    named = dict(zip("aé", columns, strict=True))
    alone: list[dict[str, bytes]] = [dict(zip("aé", each, strict=True)) for each in values]
    assert encode_headers(named) == encode_headers({}, alone)
    more = [{"b": value} for _, value in values]
    together = [one | other for one, other in zip(alone, more, strict=True)]
    assert encode_headers(named, more) == encode_headers({}, together)


class Producer:
    """Takes batches as kafka-python's producer does, and confirms each as soon as somebody waits for it."""

    def __init__(self, batch_size: int) -> None:
        self.config = {"batch_size": batch_size, "max_request_size": 1000}
        self.batches: defaultdict[TopicPartition, list[Batch]] = defaultdict(list)
        self._accumulator, self._sender = self, self
        self._batches, self._incomplete = self.batches, set[Batch]()

    def partitions_for(self, topic: str) -> set[int]:
        return {0, 1, 2}

    def _tp_lock(self, to: TopicPartition) -> Lock:
        return Lock()

    def wakeup(self) -> None:
        for batch in self._incomplete:
            if not batch.produce_future.is_done:
                batch.complete(0, -1)


def read(batch: Batch) -> list[Any]:
    batch.records.close()
    return [
        (each.key, each.value) for inner in MemoryRecords(bytes(batch.records.buffer())) for each in inner
    ]


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.binary(max_size=60))), max_size=5
    ),
    st.integers(1, 300),
    st.integers(0, 300),
)
def test_batches_are_as_large_as_they_may_be_and_in_order(
    chunks: list[list[tuple[bytes, bytes]]], size: int, unconfirmed: int
) -> None:
    producer = Producer(size)
    batches = RecordBatches(producer, "t")
    with patch("sinks.record_batches._UNCONFIRMED_BYTES", unconfirmed):
        for chunk in filter(None, chunks):
            keys, values = (pa.array(each, pa.binary()) for each in zip(*chunk, strict=True))
            batches.add_by_key(keys, encode(keys, values, encode_headers({}, [{}] * len(chunk))))
        batches.confirm()
    assert all(batch.produce_future.is_done for batch in producer._incomplete)
    sent = {to.partition: [read(batch) for batch in own] for to, own in producer.batches.items()}
    for partition in (0, 1, 2):
        own = [each for chunk in chunks for each in chunk if batches.partition_of(each[0]) == partition]
        assert [each for batch in sent.get(partition, ()) for each in batch] == own
    for to, made in producer.batches.items():
        assert all(batch.size - EMPTY <= size or batch.record_count == 1 for batch in made)
        for batch, following in zip(made, sent[to.partition][1:], strict=False):
            _, value = following[0]
            assert batch.size - EMPTY + len(value) + 20 > size - 12 * batch.record_count


def test_a_record_that_no_request_holds_is_an_error() -> None:
    batches = RecordBatches(Producer(100), "t")
    batches.add(0, encode(pa.array([b"k"]), pa.array([bytes(80)]), encode_headers({}, [{}])))
    with pytest.raises(MessageSizeTooLargeError, match="1,010 bytes, and 1,000 are allowed"):
        batches.add(0, encode(pa.array([b"k"]), pa.array([bytes(1000)]), encode_headers({}, [{}])))


@given(st.lists(st.binary(max_size=30), min_size=1), st.integers(1, 100))
def test_a_key_chooses_the_partition_as_in_kafka_python(keys: list[bytes], count: int) -> None:
    producer = Producer(1)
    cluster = ClusterMetadata()
    cluster._partitions["t"] = dict.fromkeys(range(count))
    with patch.object(producer, "partitions_for", lambda _: range(count)):
        batches = RecordBatches(producer, "t")
    theirs = DefaultPartitioner()
    with patch.object(cluster, "available_partitions_for_topic", return_value=set()):
        assert [batches.partition_of(key) for key in keys + keys] == [
            theirs.partition("t", key, key, None, None, cluster) for key in keys + keys
        ]
