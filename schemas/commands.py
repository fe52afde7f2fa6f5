"""Commands: what a client, an administrator or a test says to the broker. One object a command.

The names of commands and fields are those of Pulsar's binary protocol (``PulsarApi.proto``), so a recorded frame is a
command almost as it stands. A value is JSON (for people) or MessagePack (for machines); both hold the same object, with
the command's name under ``command``. Byte fields are base64 in JSON and raw in MessagePack. Unknown fields are refused:
a misspelt name must not pass as a default.

A record's coordinates (ingress partition, offset, timestamp, topic) are not part of its value, see `schemas.records`.
"""

from typing import Annotated, Any, Literal, NamedTuple

import msgspec

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_UINT64 = 2**64

ServerError = Literal[
    "UnknownError", "MetadataError", "PersistenceError", "AuthenticationError", "AuthorizationError", "ConsumerBusy",
    "ServiceNotReady", "ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException", "ChecksumError",
    "UnsupportedVersionError", "TopicNotFound", "SubscriptionNotFound", "ConsumerNotFound", "TooManyRequests",
    "TopicTerminatedError", "ProducerBusy", "InvalidTopicName", "IncompatibleSchema", "ConsumerAssignError",
    "TransactionCoordinatorNotFound", "InvalidTxnStatus", "NotAllowedError", "TransactionConflict",
    "TransactionNotFound", "ProducerFenced",
]  # fmt: skip
SubType = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
AccessMode = Literal["Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing"]


class Part(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A nested message of the protocol."""


class MessageIdData(Part):
    """A position on the wire. −1 and 2^64−1 both mean "before the first"; 2^63−1 means "after the last"."""

    ledgerId: int
    entryId: int
    partition: Int32 = -1
    batch_index: Int32 = -1
    ack_set: list[Int64] = []
    batch_size: Int32 | None = None
    first_chunk_message_id: "MessageIdData | None" = None

    def __post_init__(self) -> None:
        if not (-_UINT64 // 2 <= self.ledgerId < _UINT64 and -_UINT64 // 2 <= self.entryId < _UINT64):
            raise ValueError(f"message id {self.ledgerId}:{self.entryId} has more than 64 bits")


class KeyValue(Part):
    key: str
    value: str


class KeyLongValue(Part):
    key: str
    value: Int64


class IntRange(Part):
    start: Int32
    end: Int32


class EncryptionKeys(Part):
    key: str
    value: bytes
    metadata: list[KeyValue] = []


class KeySharedMeta(Part):
    keySharedMode: Literal["AUTO_SPLIT", "STICKY"]
    hashRanges: list[IntRange] = []
    allowOutOfOrderDelivery: bool = False


class SchemaData(Part):
    name: str = ""
    schema_data: bytes = b""
    type: str = "None"
    properties: list[KeyValue] = []


class MessageMetadata(Part):
    """What the broker reads of an entry. Times are epoch milliseconds. `None` = the field is absent on the wire."""

    producer_name: str
    sequence_id: Int64
    publish_time: Int64
    properties: list[KeyValue] = []
    replicated_from: str | None = None
    partition_key: str | None = None
    replicate_to: list[str] = []
    compression: Literal["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"] | None = None
    uncompressed_size: Int32 | None = None
    num_messages_in_batch: Int32 | None = None
    event_time: Int64 | None = None
    encryption_keys: list[EncryptionKeys] = []
    encryption_algo: str | None = None
    encryption_param: bytes | None = None
    schema_version: bytes | None = None
    partition_key_b64_encoded: bool | None = None
    ordering_key: bytes | None = None
    deliver_at_time: Int64 | None = None
    marker_type: Int32 | None = None
    txnid_least_bits: Int64 | None = None
    txnid_most_bits: Int64 | None = None
    highest_sequence_id: Int64 | None = None
    null_value: bool | None = None
    uuid: str | None = None
    num_chunks_from_msg: Int32 | None = None
    total_chunk_msg_size: Int32 | None = None
    chunk_id: Int32 | None = None
    null_partition_key: bool | None = None
    compacted_batch_indexes: list[Int32] = []
    schema_id: bytes | None = None


class Publish(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False, kw_only=True):
    """The short form: publish without a connection. It has no ``command``, so any Kafka producer can write it.

    `producer` is the producer's name; it is registered on the topic (access mode Shared) at its first message.
    `payload` is text, `payload_bytes` bytes; give one. Without `publish_time` (epoch ms) the record's timestamp counts.
    """

    producer: str
    sequence_id: Int64
    payload: str = ""
    payload_bytes: bytes = b""
    key: str | None = None
    properties: dict[str, str] = {}
    publish_time: Int64 | None = None
    event_time: Int64 | None = None
    deliver_at_time: Int64 | None = None

    def __post_init__(self) -> None:
        if self.payload and self.payload_bytes:
            raise ValueError("give payload or payload_bytes, not both")

    def key_values(self) -> list[KeyValue]:
        """`properties` as the protocol has them."""
        return [KeyValue(key, value) for key, value in self.properties.items()]


class Command(
    msgspec.Struct,
    tag_field="command",
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    gc=False,
):
    """`connection` names the client's connection (any text, unique in the log)."""

    connection: str = ""


class Connect(Command, tag="CONNECT"):
    """A connection is opened. Optional: a connection is known from its first command on."""

    client_version: str = ""
    protocol_version: Int32 = 0
    auth_method_name: str = ""
    auth_data: bytes = b""
    feature_flags: dict[str, bool] = {}


class ConnectionLost(Command, tag="CONNECTION_LOST"):
    """The connection is gone (TCP close): its producers and consumers are closed."""


class Producer(Command, tag="PRODUCER"):
    producer_id: Int64
    request_id: Int64
    producer_name: str | None = None
    encrypted: bool = False
    metadata: list[KeyValue] = []
    schema: SchemaData | None = None
    epoch: Int64 = 0
    user_provided_producer_name: bool = True
    producer_access_mode: AccessMode = "Shared"
    topic_epoch: Int64 | None = None
    txn_enabled: bool = False
    initial_subscription_name: str | None = None


class Send(Command, tag="SEND"):
    """Publish one entry: a message, a batch or a chunk. `payload` is text, `payload_bytes` bytes; give one."""

    producer_id: Int64
    sequence_id: Int64
    metadata: MessageMetadata
    num_messages: Int32 = 1
    highest_sequence_id: Int64 | None = None
    is_chunk: bool = False
    marker: bool = False
    message_id: MessageIdData | None = None
    txnid_least_bits: Int64 = 0
    txnid_most_bits: Int64 = 0
    payload: str = ""
    payload_bytes: bytes = b""

    def __post_init__(self) -> None:
        if self.payload and self.payload_bytes:
            raise ValueError("give payload or payload_bytes, not both")


class CloseProducer(Command, tag="CLOSE_PRODUCER"):
    producer_id: Int64
    request_id: Int64


class Subscribe(Command, tag="SUBSCRIBE"):
    subscription: str
    subType: SubType
    consumer_id: Int64
    request_id: Int64
    consumer_name: str | None = None
    priority_level: Int32 = 0
    durable: bool = True
    start_message_id: MessageIdData | None = None
    metadata: list[KeyValue] = []
    read_compacted: bool = False
    schema: SchemaData | None = None
    initialPosition: Literal["Latest", "Earliest"] = "Latest"
    replicate_subscription_state: bool = False
    force_topic_creation: bool = True
    start_message_rollback_duration_sec: Int64 = 0
    keySharedMeta: KeySharedMeta | None = None
    subscription_properties: list[KeyValue] = []
    consumer_epoch: Int64 | None = None


class Flow(Command, tag="FLOW"):
    consumer_id: Int64
    messagePermits: Int32


class Ack(Command, tag="ACK"):
    consumer_id: Int64
    ack_type: Literal["Individual", "Cumulative"]
    message_id: list[MessageIdData]
    validation_error: str | None = None
    properties: list[KeyLongValue] = []
    txnid_least_bits: Int64 = 0
    txnid_most_bits: Int64 = 0
    request_id: Int64 | None = None


class RedeliverUnacknowledgedMessages(Command, tag="REDELIVER_UNACKNOWLEDGED_MESSAGES"):
    consumer_id: Int64
    message_ids: list[MessageIdData] = []
    consumer_epoch: Int64 | None = None


class Unsubscribe(Command, tag="UNSUBSCRIBE"):
    consumer_id: Int64
    request_id: Int64
    force: bool = False


class CloseConsumer(Command, tag="CLOSE_CONSUMER"):
    consumer_id: Int64
    request_id: Int64


class Seek(Command, tag="SEEK"):
    consumer_id: Int64
    request_id: Int64
    message_id: MessageIdData | None = None
    message_publish_time: Int64 | None = None


class GetLastMessageId(Command, tag="GET_LAST_MESSAGE_ID"):
    consumer_id: Int64
    request_id: Int64


class PartitionedMetadata(Command, tag="PARTITIONED_METADATA"):
    """How many partitions has the record's topic?"""

    request_id: Int64
    metadata_auto_creation_enabled: bool = True


class Lookup(Command, tag="LOOKUP"):
    """Which broker serves the record's topic?"""

    request_id: Int64
    authoritative: bool = False
    advertised_listener_name: str = ""
    properties: list[KeyValue] = []


class GetSchema(Command, tag="GET_SCHEMA"):
    request_id: Int64
    schema_version: bytes = b""


class GetOrCreateSchema(Command, tag="GET_OR_CREATE_SCHEMA"):
    request_id: Int64
    schema: SchemaData


class Admin(Command, tag="ADMIN"):
    """A call of Pulsar's admin REST API: policies, subscriptions, skip, reset, expire, unload, trim, terminate, …

    `path` is the part below ``/admin/v2``. A call on a topic is a record of that topic; a call on a namespace or on the
    broker has no topic and is written to every ingress partition.
    """

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    body: Any = None


class BrokerConfig(Command, tag="BROKER_CONFIG"):
    """The broker's configuration, the first record of each ingress partition. `settings` has Pulsar's names
    (``managedLedgerMaxEntriesPerLedger``…), over the defaults of `profile`."""

    profile: Literal["2.x", "4.x"] = "4.x"
    settings: dict[str, bool | int | float | str | None] = {}


class Tick(Command, tag="TICK"):
    """Nothing but time: advances the partition's clock to the record's timestamp."""


class RunCheck(Command, tag="RUN_CHECK"):
    """Run a periodic check now, whatever its interval (an interval of 0 turns the periodic run off)."""

    check: Literal["backlogQuota", "messageExpiry", "consumedLedgers", "deduplicationSnapshot", "inactiveProducers",
                   "inactiveSubscriptions", "cursorFlush"]  # fmt: skip


class Fault(Command, tag="FAULT"):
    """Something goes wrong in the topic's storage, to reach Unknown, fencing and roll-back.

    * ``FailWrites``: the next `count` writes of the topic fail.
    * ``DelayWrites``: the next `count` writes stay unconfirmed until ``CompleteWrites`` or ``LoseWrites``.
    * ``CompleteWrites``: the `count` oldest unconfirmed writes succeed (0 = all).
    * ``LoseWrites``: all unconfirmed writes fail.
    """

    fault: Literal["FailWrites", "DelayWrites", "CompleteWrites", "LoseWrites"]
    count: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0


AnyCommand = (
    Connect | ConnectionLost | Producer | Send | CloseProducer | Subscribe | Flow | Ack
    | RedeliverUnacknowledgedMessages | Unsubscribe | CloseConsumer | Seek | GetLastMessageId | PartitionedMetadata
    | Lookup | GetSchema | GetOrCreateSchema | Admin | BrokerConfig
    | Tick | RunCheck | Fault
)  # fmt: skip

_json, _json_short = msgspec.json.Decoder(AnyCommand), msgspec.json.Decoder(Publish)
_pack, _pack_short = msgspec.msgpack.Decoder(AnyCommand), msgspec.msgpack.Decoder(Publish)
_WHITESPACE_OR_BRACE = frozenset(b"{ \t\r\n")
_json_encode = msgspec.json.Encoder().encode
_pack_encode = msgspec.msgpack.Encoder().encode


class MalformedCommand(ValueError):
    """A record's value is not a command. The text says what is wrong and where (a JSON path)."""


def decode(value: bytes) -> AnyCommand | Publish:
    """The command in a record's value: JSON if it begins like an object, MessagePack otherwise.

    Raises `MalformedCommand`. The absence of ``command`` makes it the short form.
    """
    if not value:
        raise MalformedCommand("empty value: expected a JSON object or its MessagePack form")
    full, short = (_json, _json_short) if value[0] in _WHITESPACE_OR_BRACE else (_pack, _pack_short)
    try:
        if b"command" not in value:
            return short.decode(value)
        try:
            command: AnyCommand = full.decode(value)
            return command
        except msgspec.ValidationError as error:
            if "missing required field `command`" not in str(error):
                raise
            return short.decode(value)  # the word was in its payload or in a name
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise MalformedCommand(str(error)) from None


class Refused(NamedTuple):
    """Why a record goes to quarantine instead of being folded: the name of the rule that it breaks, and the cause in
    words."""

    rule: str
    cause: str


Decoded = AnyCommand | Publish | Refused
"""What a record's value turned out to be."""


def decode_or_refuse(value: bytes) -> Decoded:
    """The command in a record's value. A value that is not a command is refused under the rule ``malformed``."""
    try:
        return decode(value)
    except MalformedCommand as error:
        return Refused("malformed", str(error))


def to_json(command: AnyCommand | Publish) -> bytes:
    """The form for people."""
    return _json_encode(command)


def to_binary(command: AnyCommand | Publish) -> bytes:
    """The form for machines (MessagePack): smaller, and bytes stay bytes."""
    return _pack_encode(command)
