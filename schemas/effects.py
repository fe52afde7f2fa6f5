"""Effects: what the broker does in answer to a command, one immutable row each.

The names of client answers are the protocol's, see `KINDS`. Fields are a subset of the columns of `schemas.outputs.OUTPUT`, where
each is documented; ``fields`` holds what only this kind has. The broker adds the identity (partition, offset, ordinal)
and the clock when it emits one.
"""

import re
from typing import Any, NamedTuple


class SendReceipt(NamedTuple):
    """An entry was stored and confirmed, or (−1:−1) the message was a duplicate."""

    topic: str
    connection: str
    producer_id: int | None
    producer_name: str
    sequence_id: int
    highest_sequence_id: int | None
    ledger_id: int
    entry_id: int
    cause: str | None = None
    size: int | None = None
    messages: int | None = None
    publish_time: int | None = None
    partition_key: str | None = None
    metadata: Any = None
    payload: bytes | None = None
    broker_timestamp: int | None = None


class SendError(NamedTuple):
    topic: str
    connection: str
    producer_id: int | None
    producer_name: str
    sequence_id: int
    error: str
    cause: str


class ProducerSuccess(NamedTuple):
    topic: str
    connection: str
    request_id: int
    producer_id: int
    producer_name: str
    fields: dict[str, Any]


class Success(NamedTuple):
    topic: str
    connection: str
    request_id: int


class Error(NamedTuple):
    """A request is refused. `cause` says why, for people."""

    topic: str | None
    connection: str
    request_id: int
    error: str
    cause: str


class CloseProducer(NamedTuple):
    """The broker disconnects a producer."""

    topic: str
    connection: str
    producer_id: int | None
    producer_name: str
    cause: str


class CloseConsumer(NamedTuple):
    """The broker disconnects a consumer."""

    topic: str
    connection: str
    consumer_id: int
    subscription: str
    cause: str


class CloseConnection(NamedTuple):
    """The broker closes a connection whose client broke the protocol."""

    topic: str | None
    connection: str
    cause: str


class Message(NamedTuple):
    """An entry goes to a consumer. The payload stays in the ledger: read it there by position.

    Only the entry of a non-persistent topic, 0:0, is in no ledger: its `metadata` and `payload` are here.
    """

    topic: str
    connection: str
    consumer_id: int
    subscription: str
    ledger_id: int
    entry_id: int
    messages: int
    size: int
    redelivery_count: int
    ack_set: list[int] | None = None
    consumer_epoch: int | None = None
    metadata: Any = None
    payload: bytes | None = None


class AckResponse(NamedTuple):
    topic: str
    connection: str
    request_id: int
    consumer_id: int


class ActiveConsumerChange(NamedTuple):
    topic: str
    connection: str
    consumer_id: int
    fields: dict[str, Any]


class ReachedEndOfTopic(NamedTuple):
    topic: str
    connection: str
    consumer_id: int


class GetLastMessageIdResponse(NamedTuple):
    topic: str
    connection: str
    request_id: int
    consumer_id: int
    ledger_id: int
    entry_id: int
    fields: dict[str, Any]


class PartitionedMetadataResponse(NamedTuple):
    topic: str
    connection: str
    request_id: int
    fields: dict[str, Any]
    error: str | None = None
    cause: str | None = None


class LookupResponse(NamedTuple):
    """Every topic is served here; the gateway adds its address."""

    topic: str
    connection: str
    request_id: int
    fields: dict[str, Any]


class GetSchemaResponse(NamedTuple):
    topic: str
    connection: str
    request_id: int
    fields: dict[str, Any]
    error: str | None = None
    cause: str | None = None


class GetOrCreateSchemaResponse(NamedTuple):
    topic: str
    connection: str
    request_id: int
    fields: dict[str, Any]


class AdminResponse(NamedTuple):
    """The answer to an admin call: `fields` = {status, response}. With a position the response is that entry."""

    topic: str | None
    connection: str
    cause: str
    fields: dict[str, Any]
    ledger_id: int | None = None
    entry_id: int | None = None


class CursorMoved(NamedTuple):
    """The broker (not an ack) moved a mark-delete position. `entries` = what left the backlog."""

    topic: str
    subscription: str
    before_ledger: int
    before_entry: int
    after_ledger: int
    after_entry: int
    entries: int
    cause: str
    policy: str | None = None


class Expired(NamedTuple):
    """TTL (or an admin's expiry) moved a subscription over old entries."""

    topic: str
    subscription: str
    before_ledger: int
    before_entry: int
    after_ledger: int
    after_entry: int
    entries: int
    cause: str
    policy: str | None = None


class Evicted(NamedTuple):
    """The backlog quota moved a cursor over its oldest entries."""

    topic: str
    subscription: str
    before_ledger: int
    before_entry: int
    after_ledger: int
    after_entry: int
    entries: int
    cause: str
    policy: str | None = None


class LedgerClosed(NamedTuple):
    """A ledger took its last entry; no write will change it."""

    topic: str
    ledger_id: int
    entries: int
    size: int
    cause: str


class LedgerDeleted(NamedTuple):
    """Trimming removed a whole ledger: its entries can't be read again."""

    topic: str
    ledger_id: int
    entries: int
    size: int
    cause: str
    policy: str | None = None


class TopicEvent(NamedTuple):
    """Something happened to a topic as a whole: loaded, unloaded, fenced, recovered, terminated, deleted."""

    topic: str
    cause: str
    fields: dict[str, Any] | None = None


class SubscriptionEvent(NamedTuple):
    """A subscription was created or deleted."""

    topic: str
    subscription: str
    cause: str


class Tick(NamedTuple):
    """The clock was advanced by the trigger, not by a record: a live run is replayed exactly with these as TICKs."""

    topic: str | None = None


class Quarantined(NamedTuple):
    """A record that is no command. `rule` names what it broke, `cause` says it in words, `payload` is the raw value."""

    topic: str | None
    rule: str
    cause: str
    payload: bytes


class Unsupported(NamedTuple):
    """A command Magnetar knows and doesn't carry out."""

    topic: str | None
    connection: str
    cause: str


Effect = (
    SendReceipt | SendError | ProducerSuccess | Success | Error | CloseProducer | CloseConsumer | CloseConnection
    | Message | AckResponse | ActiveConsumerChange | ReachedEndOfTopic | GetLastMessageIdResponse | PartitionedMetadataResponse
    | LookupResponse | GetSchemaResponse | GetOrCreateSchemaResponse | AdminResponse | CursorMoved
    | Expired | Evicted | LedgerClosed | LedgerDeleted | TopicEvent | SubscriptionEvent | Tick | Quarantined
    | Unsupported
)  # fmt: skip

KINDS: dict[type[Effect], str] = {
    effect: re.sub(r"(?<!^)(?=[A-Z])", "_", effect.__name__).upper() for effect in Effect.__args__
}
"""The name of each kind of effect in the outputs: SendReceipt is SEND_RECEIPT."""

RESPONSES = frozenset(
    kind for effect, kind in KINDS.items() if "connection" in effect._fields and effect is not Unsupported
)
"""Kinds that answer a client: these go to its connection."""


class Row(NamedTuple):
    """An effect with its identity (partition, offset, ordinal) and the clock (ms) at which it happened."""

    offset: int
    ordinal: int
    clock: int
    effect: Effect
