"""What the output column ``fields`` holds: one structure for each kind that has fields of its own.

The column is the structure's JSON with sorted names. A field that is `UNSET` is absent.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that only one kind of effect has."""


class ProducerSuccessFields(Fields, frozen=True):
    """What a client learns about its producer."""

    last_sequence_id: int
    """The highest sequence id that deduplication accepted from a producer of this name; −1: none, or not known."""
    producer_ready: bool
    """False: the producer waits for exclusive access. A second PRODUCER_SUCCESS follows when it has it."""
    schema_version: str | UnsetType = UNSET
    """The version of the producer's schema: 8 bytes, big-endian, in base64. Absent: it has no schema."""
    topic_epoch: int | UnsetType = UNSET
    """The topic's epoch, which rises with each exclusive access. Absent: no producer has had exclusive access yet."""


class TransactionFields(Fields, frozen=True):
    """The id of a transaction."""

    txnid_most_bits: int
    """Its coordinator."""
    txnid_least_bits: int | UnsetType = UNSET
    """Its number, counted from 0 by its coordinator. Absent: none began."""


class ActiveConsumerChangeFields(Fields, frozen=True):
    """Whether the consumer is the active one."""

    is_active: bool
    """True: the consumer gets the subscription's messages from now on. False: another one does."""


class MarkDeletePosition(Fields, frozen=True):
    """A mark-delete position."""

    ledgerId: int
    """The ledger."""
    entryId: int
    """The last entry that is acknowledged together with all before it; −1: before the ledger's first."""


class GetLastMessageIdResponseFields(Fields, frozen=True):
    """What the answer says beside the position."""

    batch_index: int
    """The last message of the batch, from 0; −1: the entry is not a batch, or the topic is empty."""
    consumer_mark_delete_position: MarkDeletePosition
    """How far the consumer's subscription has acknowledged."""


class PartitionedMetadataResponseFields(Fields, frozen=True):
    """How many partitions a topic has."""

    response: Literal["Success", "Failed"]
    """Failed: see the columns `error` and `cause`."""
    partitions: int | UnsetType = UNSET
    """The number of partitions; 0: the topic has none. Absent if Failed."""


class LookupResponseFields(Fields, frozen=True):
    """Which broker to connect to. There is no address: the answer means this broker."""

    response: Literal["Connect", "Failed"]
    """Failed: see the columns `error` and `cause`."""
    authoritative: bool | UnsetType = UNSET
    """True. Absent if Failed."""
    proxy_through_service_url: bool | UnsetType = UNSET
    """True: the client keeps using the address that it has. Absent if Failed."""


class SchemaFields(Fields, frozen=True):
    """A schema of a topic."""

    name: str
    """The schema's name."""
    schema_data: bytes
    """The definition, in base64."""
    type: str
    """Pulsar's name of the type, such as Json."""
    properties: list[tuple[str, str]]
    """The client's own notes, as pairs of name and text."""


class GetSchemaResponseFields(Fields, frozen=True):
    """A schema that was asked for. Empty if there is none: see the columns `error` and `cause`."""

    schema: SchemaFields | UnsetType = UNSET
    """The schema."""
    schema_version: str | UnsetType = UNSET
    """Its version number: 8 bytes, big-endian, in base64."""


class GetOrCreateSchemaResponseFields(Fields, frozen=True):
    """The version of a schema. Empty if the request failed: see the columns `error` and `cause`."""

    schema_version: str | UnsetType = UNSET
    """The version number: 8 bytes, big-endian, in base64. Empty for a schema of type None."""


class AdminResponseFields(Fields, frozen=True):
    """The HTTP answer to an admin call."""

    status: int
    """The HTTP status, as Pulsar's."""
    response: Any | UnsetType = UNSET
    """The body: what Pulsar answers to this call, in Pulsar's names (stats, internal stats, a policy, …), or
    ``{"reason": text}`` of a call that failed. Absent: no body, or the entry at `ledger_id`:`entry_id`."""


class TopicEventFields(Fields, frozen=True):
    """More about an event."""

    fenced_out: list[str]
    """The names of the producers that lost their access to another with ExclusiveWithFencing."""


class PublishThrottledFields(Fields, frozen=True):
    """How long a connection is not read."""

    until: int
    """When the broker reads it again (ms since the epoch), unless others use up the rate until then."""


class CompactedEntryFields(Fields, frozen=True):
    """More about what compaction kept."""

    position: str
    """The message's position in the topic, LEDGER:ENTRY, at which it is delivered."""


class MirrorDriftFields(Fields, frozen=True):
    """How else a subscription differs."""

    mark_delete: int
    """How many more stored entries come after its mark-delete position than after that on the source, acknowledged or not; negative if
    fewer."""
