"""The stored size of an entry: the bytes that Pulsar writes for its metadata and payload (docs/rules/protocol.md §1).

2 magic + 4 checksum + 4 metadata size + MessageMetadata + payload. Sizes, quotas and estimates count these bytes.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from schemas.commands import EncryptionKeys, KeyValue, MessageMetadata

HEADER = 2 + 4 + 4
_UINT64 = 2**64


def varint(value: int) -> int:
    """Bytes of a protobuf varint; a negative number takes 10."""
    return ((value % _UINT64).bit_length() + 6) // 7 or 1


def _sized(length: int) -> int:
    return varint(length) + length


def _text(value: str | bytes) -> int:
    length = len(value) if isinstance(value, bytes) or value.isascii() else len(value.encode())
    return length + 1 if length < 128 else _sized(length)


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
    size = plain_metadata_size(
        metadata.producer_name, metadata.sequence_id, metadata.publish_time, metadata.partition_key
    )
    for name in _present(metadata):
        if (size_of := _OTHERS.get(name)) is not None:
            size += size_of(getattr(metadata, name))
    return size


def _present(metadata: MessageMetadata) -> Iterable[str]:
    """The names of the fields that are set. Without a look at each of the thirty in Python."""
    fields: dict[str, Any] = msgspec.to_builtins(metadata, builtin_types=(bytes,))
    return fields


_Size = Callable[[Any], int]


def _integer(tag: int) -> _Size:
    return lambda value: tag + varint(value)


def _string(tag: int) -> _Size:
    return lambda value: tag + _text(value)


def _repeated(size_of: _Size) -> _Size:
    return lambda values: sum(map(size_of, values))


_BOOL: _Size = lambda value: 3  # noqa: E731
_OTHERS: dict[str, _Size] = {
    "compression": lambda value: 2,
    "properties": _repeated(lambda pair: 1 + _sized(_key_value(pair))),
    "encryption_keys": _repeated(lambda keys: 1 + _sized(_encryption_keys(keys))),
    "replicate_to": _repeated(_string(1)),
    "compacted_batch_indexes": _repeated(_integer(2)),
    **dict.fromkeys(("partition_key_b64_encoded", "null_value", "null_partition_key"), _BOOL),
    **dict.fromkeys(
        ("uncompressed_size", "num_messages_in_batch", "event_time"), _integer(1)
    ),
    **dict.fromkeys(
        ("deliver_at_time", "marker_type", "txnid_least_bits", "txnid_most_bits", "highest_sequence_id",
         "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id"),
        _integer(2),
    ),
    **dict.fromkeys(
        ("replicated_from", "encryption_algo", "encryption_param"), _string(1)
    ),
    **dict.fromkeys(("schema_version", "ordering_key", "uuid", "schema_id"), _string(2)),
}  # fmt: skip
"""The bytes of a field, with its tag, for those that a plain message does not have."""
