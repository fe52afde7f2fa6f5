"""What commands are made of: the nested messages and the enumerations of Pulsar's binary protocol."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from schemas.units import Bytes32, EpochMillis, Int32, Int64, Messages

_UINT64, _INT64 = 2**64, -(2**63)

LARGEST_BATCH = 10**6
"""The most messages that an entry can have under any configuration, the largest value of `maxMessagesPerBatch`."""

ServerError = Literal[
    "UnknownError", "MetadataError", "PersistenceError", "AuthenticationError", "AuthorizationError", "ConsumerBusy",
    "ServiceNotReady", "ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException", "ChecksumError",
    "UnsupportedVersionError", "TopicNotFound", "SubscriptionNotFound", "ConsumerNotFound", "TooManyRequests",
    "TopicTerminatedError", "ProducerBusy", "InvalidTopicName", "IncompatibleSchema", "ConsumerAssignError",
    "TransactionCoordinatorNotFound", "InvalidTxnStatus", "NotAllowedError", "TransactionConflict",
    "TransactionNotFound", "ProducerFenced",
]  # fmt: skip
SubType = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
TxnAction = Literal["COMMIT", "ABORT"]
AccessMode = Literal["Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing"]


class Part(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A nested message of the protocol."""


class FirstChunkMessageId(Part):
    """The position of the first chunk of a chunked message: a message id that has no first chunk itself."""

    ledgerId: int
    """The ledger, numbered from 1 in each topic. From −2^63 to 2^64−1."""
    entryId: int
    """The entry in its ledger, from 0. From −2^63 to 2^64−1."""
    partition: Int32 = -1
    """The partition of a partitioned topic. Recorded, not used: the record's topic names the partition."""
    batch_index: Int32 = -1
    """The message in a batch, from 0. Recorded, not used: `ack_set` says which messages are concerned."""
    ack_set: Annotated[list[Int64], Meta(max_length=-(-LARGEST_BATCH // 64))] = []
    """The messages of a batch that are not acknowledged yet: a bit set in words of 64 bits, least significant first.
    Bit 1 is "not acknowledged". ACK and SEEK read it if `acknowledgmentAtBatchIndexLevelEnabled` is on. If it is off, an
    individual ack with an `ack_set` acknowledges nothing, and a cumulative one ends before this entry. It has at most
    15,625 words, those of the largest batch."""
    batch_size: Messages | None = None
    """The number of messages in the batch. Recorded, not used."""

    def __post_init__(self) -> None:
        if not (_INT64 <= self.ledgerId < _UINT64 and _INT64 <= self.entryId < _UINT64):
            raise ValueError(f"message id {self.ledgerId}:{self.entryId} has more than 64 bits")


class MessageIdData(FirstChunkMessageId):
    """The position of an entry: `ledgerId:entryId`.

    `-1:-1` is the position before the first entry, 2^63−1:2^63−1 the one after the last. Protobuf sends −1 as 2^64−1;
    both mean the same.
    """

    first_chunk_message_id: FirstChunkMessageId | None = None
    """The first chunk of a chunked message. Recorded, not used."""


class TxnSubscription(Part):
    """A subscription of a topic."""

    topic: str
    """The topic's full name."""
    subscription: str
    """The subscription's name."""


class KeyValue(Part):
    """A name and a text."""

    key: str
    """The name."""
    value: str
    """The text."""


class KeyLongValue(Part):
    """A named number."""

    key: str
    """The name."""
    value: Int64
    """The number."""


class IntRange(Part):
    """A range of hash slots of Key_Shared. A key's slot is the Murmur3 hash of the key modulo 65536, and never 0."""

    start: Int32
    """The first slot, included."""
    end: Int32
    """The last slot, included. At least `start`."""


class EncryptionKeys(Part):
    """The data key of an encrypted message, encrypted for one reader."""

    key: str
    """The name of the reader's key."""
    value: bytes
    """The encrypted data key."""
    metadata: list[KeyValue] = []
    """The client's own notes on the key."""


class KeySharedMeta(Part):
    """How a consumer takes part in a Key_Shared subscription. All consumers of a subscription must agree on the mode
    and on `allowOutOfOrderDelivery`; SUBSCRIBE is refused with ConsumerBusy otherwise."""

    keySharedMode: Literal["AUTO_SPLIT", "STICKY"]
    """AUTO_SPLIT: the broker divides the hash slots among the consumers. STICKY: each consumer asks for its own."""
    hashRanges: list[IntRange] = []
    """STICKY: the slots that the consumer asks for. Ranges must not be empty, overlap, or belong to another consumer
    (ConsumerAssignError). An Exclusive consumer with ranges gets only entries whose keys are in them."""
    allowOutOfOrderDelivery: bool = False
    """True: a key may move to another consumer while its messages are still unacknowledged. Has no effect on a
    non-persistent topic."""


class SchemaData(Part):
    """The schema of a topic's messages. The broker numbers schemas and keeps them. The policies say with which of them a new one must be compatible."""

    name: str = ""
    """The schema's name."""
    schema_data: bytes = b""
    """The definition, in the form that belongs to `type`."""
    type: str = "None"
    """Pulsar's name of the type: String, Json, Avro, Protobuf, KeyValue, … None means no schema."""
    properties: list[KeyValue] = []
    """The client's own notes."""


class MessageMetadata(Part):
    """The metadata of an entry, as its client sends it.

    The broker stores all fields and delivers them with the entry; all of them count in the entry's stored size. "Not
    used" marks a field that has no other effect. An absent field is absent on the wire, too.
    """

    producer_name: str
    """The producer's name. Recovery of deduplication counts the entry for this name."""
    sequence_id: Int64
    """The sequence id of the message, or the lowest of a batch. Recovery of deduplication reads it; a SEND is judged by
    its own `sequence_id`."""
    publish_time: EpochMillis
    """The time at which the client published. Message TTL, age quotas, and seeks and resets to a time compare it, unless
    the broker adds its own time to entries (`brokerEntryMetadataInterceptors`)."""
    properties: list[KeyValue] = []
    """The application's properties. Entry filters read them."""
    replicated_from: str | None = None
    """The cluster that the message was replicated from. Not used."""
    partition_key: str | None = None
    """The message's key. Key_Shared delivers all messages of a key to one consumer; compaction keeps the last one."""
    replicate_to: list[str] = []
    """The clusters that the message may be replicated to. Not used."""
    compression: Literal["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"] | None = None
    """The codec of the payload. The broker stores payloads as they come; compaction unpacks batches."""
    uncompressed_size: Bytes32 | None = None
    """The size of the payload before compression. Limits the number of messages in a compressed batch."""
    num_messages_in_batch: Messages | None = None
    """The number of messages in a batch. Absent: one message, not a batch. Refused (NotAllowedError): more than
    `maxMessagesPerBatch`, or more than there are bytes in the payload, before compression (`uncompressed_size`). An
    empty payload, as in a log that leaves payloads out, is not compared."""
    event_time: EpochMillis | None = None
    """The application's own time. Not used."""
    encryption_keys: list[EncryptionKeys] = []
    """The keys of an encrypted message. A topic that requires encryption refuses messages without them (MetadataError)."""
    encryption_algo: str | None = None
    """The encryption algorithm. Not used."""
    encryption_param: bytes | None = None
    """The parameter of the encryption, such as the initial vector. Not used."""
    schema_version: bytes | None = None
    """The version of the message's schema. Not used."""
    partition_key_b64_encoded: bool | None = None
    """True: `partition_key` is the base64 form of a binary key, and Key_Shared hashes the binary key."""
    ordering_key: bytes | None = None
    """The key that Key_Shared uses in place of `partition_key`."""
    deliver_at_time: EpochMillis | None = None
    """The earliest time of delivery. Only Shared and Key_Shared subscriptions observe it; others deliver immediately.
    A delay longer than `delayedDeliveryMaxDelayInMillis` after `publish_time` is refused (NotAllowedError)."""
    marker_type: Int32 | None = None
    """Marks an entry that brokers write for themselves. Deduplication ignores markers. Types 10 to 21 are never
    delivered: every subscription acknowledges them on reading."""
    txnid_least_bits: Int64 | None = None
    """Half of the id of the transaction to which the message belongs, or whose marker this is. Once that was aborted, the message is not delivered."""
    txnid_most_bits: Int64 | None = None
    """The other half, the transaction's coordinator."""
    highest_sequence_id: Int64 | None = None
    """The highest sequence id of a batch. Recovery of deduplication reads it."""
    null_value: bool | None = None
    """True: the message has no value. Compaction deletes its key, with `compactionSeesNullValues`."""
    uuid: str | None = None
    """The chunked message that the entry is a part of. Shared subscriptions deliver all chunks of a message to one
    consumer."""
    num_chunks_from_msg: Int32 | None = None
    """The number of chunks of the message."""
    total_chunk_msg_size: Bytes32 | None = None
    """The size of the whole message. Not used."""
    chunk_id: Int32 | None = None
    """The chunk's number, from 0. Deduplication judges a message by its last chunk. A chunk may be of any size."""
    null_partition_key: bool | None = None
    """True: the key is null, not empty. Not used."""
    compacted_batch_indexes: list[Int32] = []
    """The messages of a batch that compaction kept. It writes them, with `compactedBatchesNameMessages`."""
    schema_id: bytes | None = None
    """The id of the message's schema in an external registry. Not used."""
