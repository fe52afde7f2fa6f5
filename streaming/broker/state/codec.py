"""The binary encoding of the state: a version byte, then the core's structures as MessagePack.

Every topic is a separate block. It is decoded, and later encoded again, only when a command or a check touches it.
Structures are encoded as arrays without field names, so a released encoding must never change. `upgrades` describes how
newer versions read older ones, and what a new field requires.
"""

from typing import Any

import msgspec

from schemas.commands import SchemaData
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import RateLimits, TenantInfo
from streaming.broker.dispatch.sorted_blocks import Positions, SortedBlocks, TimedPositions
from streaming.broker.errors import StateVersionError
from streaming.broker.ledger.ack_holes import AckHoles
from streaming.broker.non_persistent.topic import NonPersistentTopic
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.persistent.unacked_limit import UnackedMessages
from streaming.broker.policies.hierarchy import PartitionedTopic, Policies
from streaming.broker.state.upgrades import upgraded
from streaming.broker.topic.abstract_topic import AbstractTopic
from streaming.broker.transactions.coordinator import Coordinator

VERSION = 2
"""The version of the encoding written. 1: Magnetar 0.1.0. 2: maxTopicsPerNamespace, delayedDeliveryRoundsTimes,
maxMessagesPerBatch."""


class TopicBlock(msgspec.Struct, array_like=True):
    """An encoded topic, and what the broker must know without decoding it.

    `due` = when the topic's timer fires (ms; −1 if none is set). `idle`: periodic checks have nothing to do. `backlog` is
    in entries, `storage` in bytes. `next_round` = when periodic checks next run on the topic (ms; −1: not before something happens).
    `settled`: the rounds of checks up to this time (ms) have left in `data` what they leave; 0: none leaves anything; −1:
    something has happened on the topic since the last round. `closed`: the broker restarted, and nothing has used the topic since.
    """

    data: bytes
    due: int = -1
    idle: bool = False
    backlog: int = 0
    storage: int = 0
    next_round: int = -1
    settled: int = -1
    closed: bool = False


class PartitionState(msgspec.Struct, array_like=True):
    """The state of an ingress partition between two micro-batches.

    `deleted`, `deleted_partitions` and `forgotten_ledger`: see `DeletedTopics`. `origin` = the first timestamp (ms), which sets the phase of periodic checks; `connections`: connection → topics on
    which it has had producers or consumers; `partitioned`: topic → number of partitions; `schemas`: topic → its schemas
    by version, and `schema_times` when they came (ms); `permissions`: namespace or topic → role → actions;
    `resources`: kind (``clusters``, ``resourcegroups``, …) → name → what the admin API keeps of it. `generated_names`: how many
    producer names the broker has made up. `aside`: topics that an operator set aside, as they were; nothing looks into them.
    `closed_producers`: connection → producer id → until when the broker ignores what the client still sends for that producer, which
    the broker closed (ms; mirrors `recentlyClosedProducers`). `lasting`: the policies that a topic or a namespace has whenever it exists. `coordinators`: those of
    transactions, by id.
    """

    partition: int
    clock: int = 0
    offset: int = -1
    ordinal: int = 0
    origin: int = -1
    config: ServiceConfiguration = msgspec.field(default_factory=ServiceConfiguration)
    namespaces: dict[str, Policies] = {}
    topics: dict[str, TopicBlock] = {}
    connections: dict[str, dict[str, None]] = {}
    partitioned: dict[str, int] = {}
    schemas: dict[str, list[SchemaData]] = {}
    unacked: UnackedMessages = msgspec.field(default_factory=UnackedMessages)
    deleted: dict[str, int] = {}
    limits: RateLimits = msgspec.field(default_factory=RateLimits)
    partitioned_topics: dict[str, PartitionedTopic] = {}
    tenants: dict[str, TenantInfo] = {}
    permissions: dict[str, dict[str, list[str]]] = {}
    schema_times: dict[str, list[int]] = {}
    resources: dict[str, dict[str, Any]] = {}
    generated_names: int = 0
    aside: dict[str, TopicBlock] = {}
    deleted_partitions: dict[str, dict[str, int]] = {}
    forgotten_ledger: int = 0
    closed_producers: dict[str, dict[int, int]] = {}
    lasting: dict[str, Policies] = {}
    coordinators: dict[int, Coordinator] = {}


def _encode_hook(value: Any) -> Any:
    if isinstance(value, SortedBlocks):
        return value.encoded()
    assert isinstance(value, AckHoles)  # msgspec encodes everything else itself
    return {
        ledger: bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        for ledger, bits in value.ledgers.items()
    }


def _decode_hook(type_: type[Any], value: Any) -> Any:
    if type_ is AckHoles:
        return AckHoles({ledger: int.from_bytes(bits, "little") for ledger, bits in value.items()})
    assert type_ in (Positions, TimedPositions)
    return type_.decoded(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_topic_decoder = msgspec.msgpack.Decoder(PersistentTopic, dec_hook=_decode_hook)
_non_persistent_decoder = msgspec.msgpack.Decoder(NonPersistentTopic, dec_hook=_decode_hook)
_state_decoder = msgspec.msgpack.Decoder(PartitionState)


def encode_topic(topic: AbstractTopic) -> bytes:
    """The topic's part of the state, in MessagePack."""
    return _encoder.encode(topic)


def decode_topic(data: bytes) -> PersistentTopic:
    """A persistent topic as `encode_topic` left it."""
    return _topic_decoder.decode(data)


def decode_non_persistent_topic(data: bytes) -> NonPersistentTopic:
    """A non-persistent topic as `encode_topic` left it."""
    return _non_persistent_decoder.decode(data)


def encode_state(state: PartitionState) -> bytes:
    """Encode `state` with its version."""
    return bytes([VERSION]) + _encoder.encode(state)


def decode_state(data: bytes) -> PartitionState:
    """Decode a state of this version or an older one. Raises `StateVersionError` for any other."""
    found = data[0] if data else 0
    if not 0 < found <= VERSION:
        raise StateVersionError(
            f"the checkpoint's state has version {found or 'none'}, this Magnetar reads {VERSION} and older: "
            "run the version that wrote it, or start from a new checkpoint"
        )
    state = memoryview(data)[1:]
    return _state_decoder.decode(state if found == VERSION else upgraded(state, found, VERSION))
