"""Record batches encoded here are, byte for byte, those of kafka-python."""

from typing import Any, ClassVar
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.cluster import ClusterMetadata
from kafka.partitioner import DefaultPartitioner
from kafka.record.memory_records import MemoryRecordsBuilder

from sinks.record_batches import Batch, RecordBatches, encode, encode_header, encode_headers

TO = TopicPartition("t", 0)
NOW = 1_700_000_000.5

contents = st.binary(max_size=5) | st.integers(0, 20_000).map(bytes)
records = st.tuples(
    st.none() | contents, contents, st.lists(st.tuples(st.text(max_size=5), contents), max_size=5)
)


def batch_of(those: list[Any]) -> Batch:
    encoded = [
        encode(
            number, key, value, encode_headers([encode_header(name.encode(), each) for name, each in headers])
        )
        for number, (key, value, headers) in enumerate(those)
    ]
    with patch("time.time", return_value=NOW):
        return Batch(TO, encoded)


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


@given(st.lists(st.binary(max_size=30), min_size=1), st.integers(1, 100))
def test_a_key_chooses_the_partition_as_in_kafka_python(keys: list[bytes], count: int) -> None:
    class Producer:
        config: ClassVar = {"batch_size": 1, "max_request_size": 1}

        def partitions_for(self, topic: str) -> set[int]:
            return set(range(count))

    cluster = ClusterMetadata()
    cluster._partitions["t"] = dict.fromkeys(range(count))
    batches = RecordBatches(Producer(), "t")
    theirs = DefaultPartitioner()
    with patch.object(cluster, "available_partitions_for_topic", return_value=set()):
        assert [batches.partition_of(key) for key in keys + keys] == [
            theirs.partition("t", key, key, None, None, cluster) for key in keys + keys
        ]
