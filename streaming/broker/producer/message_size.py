"""The stored size of an entry: the bytes that Pulsar writes for its metadata and payload (protocol.md §1).

2 magic + 4 checksum + 4 metadata size + MessageMetadata + payload. Sizes, quotas and estimates count these bytes.
"""

from schemas.commands import EncryptionKeys, KeyValue, MessageMetadata

HEADER = 2 + 4 + 4
_UINT64 = 2**64
_INTS = (("uncompressed_size", 1), ("num_messages_in_batch", 1), ("event_time", 1), ("deliver_at_time", 2),
         ("marker_type", 2), ("txnid_least_bits", 2), ("txnid_most_bits", 2), ("highest_sequence_id", 2),
         ("num_chunks_from_msg", 2), ("total_chunk_msg_size", 2), ("chunk_id", 2))  # fmt: skip
_BOOLS = (("partition_key_b64_encoded", 2), ("null_value", 2), ("null_partition_key", 2))
_TEXTS = (("replicated_from", 1), ("partition_key", 1), ("encryption_algo", 1), ("encryption_param", 1),
          ("schema_version", 2), ("ordering_key", 2), ("uuid", 2), ("schema_id", 2))  # fmt: skip


def varint(value: int) -> int:
    """Bytes of a protobuf varint; a negative number takes 10."""
    return ((value % _UINT64).bit_length() + 6) // 7 or 1


def _sized(length: int) -> int:
    return varint(length) + length


def _text(value: str | bytes) -> int:
    return _sized(len(value) if isinstance(value, bytes) or value.isascii() else len(value.encode()))


def _key_value(pair: KeyValue) -> int:
    return 2 + _text(pair.key) + _text(pair.value)


def _encryption_keys(keys: EncryptionKeys) -> int:
    return (
        2 + _text(keys.key) + _text(keys.value) + sum(1 + _sized(_key_value(pair)) for pair in keys.metadata)
    )


def broker_entry_metadata_size(broker_timestamp: int) -> int:
    """Bytes of the broker's own metadata in front of an entry: 2 magic + 4 size + BrokerEntryMetadata with a time."""
    return 2 + 4 + 1 + varint(broker_timestamp)


def plain_metadata_size(
    producer_name: str, sequence_id: int, publish_time: int, partition_key: str | None
) -> int:
    """Bytes of a serialised MessageMetadata that has only these fields."""
    size = 3 + _text(producer_name) + varint(sequence_id) + varint(publish_time)
    return size if partition_key is None else size + 1 + _text(partition_key)


def metadata_size(metadata: MessageMetadata) -> int:
    """Bytes of a serialised MessageMetadata."""
    size = plain_metadata_size(metadata.producer_name, metadata.sequence_id, metadata.publish_time, None)
    size += sum(1 + _sized(_key_value(pair)) for pair in metadata.properties)
    size += sum(1 + _text(cluster) for cluster in metadata.replicate_to)
    size += sum(1 + _sized(_encryption_keys(keys)) for keys in metadata.encryption_keys)
    size += sum(2 + varint(index) for index in metadata.compacted_batch_indexes)
    if metadata.compression is not None:
        size += 2
    for name, tag in _INTS:
        if (number := getattr(metadata, name)) is not None:
            size += tag + varint(number)
    for name, tag in _BOOLS:
        if getattr(metadata, name) is not None:
            size += tag + 1
    for name, tag in _TEXTS:
        if (text := getattr(metadata, name)) is not None:
            size += tag + _text(text)
    return size
