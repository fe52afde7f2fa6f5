"""Commands: what clients, operators and tests say to the broker. Each is one JSON or MessagePack object.

The names of commands and fields are those of Pulsar's binary protocol (``PulsarApi.proto``), so a recorded frame is a
command almost as it stands. The command's name is in the field ``command``; the short form of publishing has none. Byte
fields are base64 in JSON and raw in MessagePack. An unknown field makes a record malformed, so that a misspelled name
does not pass as a default.

The coordinates of a record (ingress partition, offset, timestamp, topic) are not part of its value, see
`schemas.records`.
"""

from schemas.commands.client import (
    Ack,
    CloseConsumer,
    CloseProducer,
    Command,
    Connect,
    ConnectionLost,
    Flow,
    GetLastMessageId,
    GetOrCreateSchema,
    GetSchema,
    Lookup,
    PartitionedMetadata,
    Producer,
    Publish,
    RedeliverUnacknowledgedMessages,
    Seek,
    Send,
    Subscribe,
    Unsubscribe,
)
from schemas.commands.codec import (
    AnyCommand,
    Decoded,
    Line,
    MalformedCommand,
    Refused,
    decode,
    decode_or_refuse,
    to_binary,
    to_json,
)
from schemas.commands.control import Admin, BrokerConfig, Fault, Restart, RunCheck, Tick
from schemas.commands.parts import (
    AccessMode,
    EncryptionKeys,
    FirstChunkMessageId,
    IntRange,
    KeyLongValue,
    KeySharedMeta,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    Part,
    SchemaData,
    ServerError,
    SubType,
)

__all__ = [
    "AccessMode",
    "Ack",
    "Admin",
    "AnyCommand",
    "BrokerConfig",
    "CloseConsumer",
    "CloseProducer",
    "Command",
    "Connect",
    "ConnectionLost",
    "Decoded",
    "EncryptionKeys",
    "Fault",
    "FirstChunkMessageId",
    "Flow",
    "GetLastMessageId",
    "GetOrCreateSchema",
    "GetSchema",
    "IntRange",
    "KeyLongValue",
    "KeySharedMeta",
    "KeyValue",
    "Line",
    "Lookup",
    "MalformedCommand",
    "MessageIdData",
    "MessageMetadata",
    "Part",
    "PartitionedMetadata",
    "Producer",
    "Publish",
    "RedeliverUnacknowledgedMessages",
    "Refused",
    "Restart",
    "RunCheck",
    "SchemaData",
    "Seek",
    "Send",
    "ServerError",
    "SubType",
    "Subscribe",
    "Tick",
    "Unsubscribe",
    "decode",
    "decode_or_refuse",
    "to_binary",
    "to_json",
]
