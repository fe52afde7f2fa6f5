"""Effects: what the broker does in answer to a command. Each is one immutable row of the output.

The names of answers to clients are the protocol's, see `KINDS`. An effect's fields are columns of
`schemas.outputs.OUTPUT`, where each is described; a field with a meaning of its own in one kind is described here.
``fields`` holds what only this kind has, see `schemas.effect_fields`. The broker adds the identity (partition, offset,
ordinal) and the clock.
"""

import re
from typing import NamedTuple

from schemas import effect_fields as f
from schemas.commands import MessageMetadata


class SendReceipt(NamedTuple):
    """A message is stored and confirmed, or is a duplicate that was stored before.

    Emitted for each SEND, and each message in the short form, that is not refused.
    """

    topic: str
    connection: str
    """The client's connection that gets the answer. Empty: the message came in the short form."""
    producer_id: int | None
    """The client's number for the producer. Null: the message came in the short form."""
    producer_name: str
    sequence_id: int
    highest_sequence_id: int | None
    ledger_id: int
    """The ledger of the entry. −1: a duplicate, or dropped by a non-persistent topic. 0: delivered by a non-persistent
    topic."""
    entry_id: int
    """The entry in its ledger. −1: a duplicate, or dropped by a non-persistent topic. 0 in ledger 0: delivered by a
    non-persistent topic."""
    cause: str | None = None
    """Why nothing was stored, or why a non-persistent topic dropped the message. Null: it was stored or delivered."""
    size: int | None = None
    """The size of the entry as stored: headers, metadata and payload. Null: a duplicate."""
    messages: int | None = None
    """The number of messages in the entry. Null: a duplicate."""
    publish_time: int | None = None
    """The client's publish time. Null: a duplicate."""
    partition_key: str | None = None
    """The message's key. Null: it has none, or is a duplicate."""
    metadata: MessageMetadata | None = None
    payload: bytes | None = None
    broker_timestamp: int | None = None


class SendError(NamedTuple):
    """A message is refused or could not be stored."""

    topic: str
    connection: str
    """The client's connection that gets the answer. Empty: the message came in the short form."""
    producer_id: int | None
    """The client's number for the producer. Null: the message came in the short form."""
    producer_name: str
    sequence_id: int
    """The sequence id of the message, or the highest of a batch."""
    error: str
    cause: str
    lowest_sequence_id: int | None = None


class ProducerSuccess(NamedTuple):
    """A producer is created, or waits for exclusive access. Answers PRODUCER."""

    topic: str
    connection: str
    request_id: int
    producer_id: int
    producer_name: str
    fields: f.ProducerSuccessFields


class Success(NamedTuple):
    """A request is done. Answers SUBSCRIBE, CLOSE_PRODUCER, CLOSE_CONSUMER, UNSUBSCRIBE and SEEK."""

    topic: str
    connection: str
    request_id: int


class Error(NamedTuple):
    """A request is refused. Answers PRODUCER, SUBSCRIBE, UNSUBSCRIBE, SEEK and GET_LAST_MESSAGE_ID."""

    topic: str
    connection: str
    request_id: int
    error: str
    cause: str


class CloseProducer(NamedTuple):
    """The broker closes a producer: a write failed, a backlog quota is exceeded, or the topic is unloaded or
    terminated."""

    topic: str
    connection: str
    """The client's connection. Empty: the producer published in the short form."""
    producer_id: int | None
    """The client's number for the producer. Null: the producer published in the short form."""
    producer_name: str
    cause: str


class CloseConsumer(NamedTuple):
    """The broker closes a consumer: its subscription is reset or deleted, or the topic is unloaded."""

    topic: str
    connection: str
    consumer_id: int
    subscription: str
    cause: str


class CloseConnection(NamedTuple):
    """The broker closes a connection whose client broke the protocol, with all its producers and consumers."""

    topic: str
    """The topic of the command that broke the protocol."""
    connection: str
    cause: str


class Message(NamedTuple):
    """An entry is delivered to a consumer. Its payload is in the ledger store, at the position.

    The entry of a non-persistent topic, 0:0, is in no ledger, and compacted data may differ from what the ledger has: then the row itself
    carries its `metadata` and `payload`.
    """

    topic: str
    connection: str
    consumer_id: int
    subscription: str
    ledger_id: int
    """The ledger of the entry; 0: the topic is not persistent."""
    entry_id: int
    """The entry in its ledger; 0 in ledger 0: the topic is not persistent."""
    messages: int
    size: int
    redelivery_count: int
    ack_set: list[int] | None = None
    """The messages of the batch that are not acknowledged yet: words of a bit set, bit 1 is "not acknowledged". Null:
    all of them."""
    consumer_epoch: int | None = None
    metadata: MessageMetadata | None = None
    """The MessageMetadata of an entry of a non-persistent topic, or of compacted data, in MessagePack. Null: the entry is in a ledger."""
    payload: bytes | None = None
    """The payload of an entry of a non-persistent topic, or of compacted data. Null: the entry is in a ledger."""


class AckResponse(NamedTuple):
    """An ACK that asked for an answer is done, or refused."""

    topic: str
    connection: str
    request_id: int
    consumer_id: int
    error: str | None = None
    cause: str | None = None


class ActiveConsumerChange(NamedTuple):
    """A consumer of a Failover subscription learns whether it is the active one."""

    topic: str
    connection: str
    consumer_id: int
    fields: f.ActiveConsumerChangeFields


class ReachedEndOfTopic(NamedTuple):
    """The topic is terminated, and the consumer's subscription has acknowledged all of it. Emitted once."""

    topic: str
    connection: str
    consumer_id: int


class GetLastMessageIdResponse(NamedTuple):
    """The position of the topic's last message. Answers GET_LAST_MESSAGE_ID."""

    topic: str
    connection: str
    request_id: int
    consumer_id: int
    ledger_id: int
    """The ledger of the last message; −1: the topic is empty."""
    entry_id: int
    """The entry of the last message in its ledger; −1: the topic is empty."""
    fields: f.GetLastMessageIdResponseFields


class PartitionedMetadataResponse(NamedTuple):
    """The number of the topic's partitions. Answers PARTITIONED_METADATA."""

    topic: str
    connection: str
    request_id: int
    fields: f.PartitionedMetadataResponseFields
    error: str | None = None
    """The error's name in the protocol (ServerError). Null: the request succeeded."""
    cause: str | None = None
    """Why the request failed, in words. Null: it succeeded."""


class LookupResponse(NamedTuple):
    """The broker that serves the topic: this one. Answers LOOKUP."""

    topic: str
    connection: str
    request_id: int
    fields: f.LookupResponseFields
    error: str | None = None
    """The error's name in the protocol (ServerError). Null: the request succeeded."""
    cause: str | None = None
    """Why the request failed, in words. Null: it succeeded."""


class GetSchemaResponse(NamedTuple):
    """A schema of the topic. Answers GET_SCHEMA."""

    topic: str
    connection: str
    request_id: int
    fields: f.GetSchemaResponseFields
    error: str | None = None
    """The error's name in the protocol (ServerError). Null: the request succeeded."""
    cause: str | None = None
    """Why the request failed, in words. Null: it succeeded."""


class GetOrCreateSchemaResponse(NamedTuple):
    """The version of a schema. Answers GET_OR_CREATE_SCHEMA."""

    topic: str
    connection: str
    request_id: int
    fields: f.GetOrCreateSchemaResponseFields
    error: str | None = None
    """The error's name in the protocol (ServerError). Null: the request succeeded."""
    cause: str | None = None
    """Why the request failed, in words. Null: it succeeded."""


class TcClientConnectResponse(NamedTuple):
    """A coordinator of transactions takes requests. Answers TC_CLIENT_CONNECT_REQUEST."""

    topic: str
    """The topic of the coordinator."""
    connection: str
    request_id: int
    error: str | None = None
    """The error's name in the protocol (ServerError). Null: the coordinator is there."""
    cause: str | None = None
    """Why there is no such coordinator, in words. Null: it is there."""


class NewTxnResponse(NamedTuple):
    """A transaction begins. Answers NEW_TXN."""

    topic: str
    """The topic of the coordinator."""
    connection: str
    request_id: int
    fields: f.TransactionFields
    error: str | None = None
    """The error's name in the protocol (ServerError). Null: it began."""
    cause: str | None = None
    """Why the request failed, in words. Null: it began."""


class AddPartitionToTxnResponse(NamedTuple):
    """The coordinator knows on which topics a transaction publishes. Answers ADD_PARTITION_TO_TXN."""

    topic: str
    """The topic of the coordinator."""
    connection: str
    request_id: int
    fields: f.TransactionFields
    error: str | None = None
    """The error's name in the protocol (ServerError). Null: it knows them."""
    cause: str | None = None
    """Why the request failed, in words. Null: it knows them."""


class AddSubscriptionToTxnResponse(NamedTuple):
    """The coordinator knows on which subscriptions a transaction acknowledges. Answers ADD_SUBSCRIPTION_TO_TXN."""

    topic: str
    """The topic of the coordinator."""
    connection: str
    request_id: int
    fields: f.TransactionFields
    error: str | None = None
    """The error's name in the protocol (ServerError). Null: it knows them."""
    cause: str | None = None
    """Why the request failed, in words. Null: it knows them."""


class EndTxnResponse(NamedTuple):
    """A transaction has ended. Answers END_TXN."""

    topic: str
    """The topic of the coordinator."""
    connection: str
    request_id: int
    fields: f.TransactionFields
    error: str | None = None
    """The error's name in the protocol (ServerError). Null: it has ended."""
    cause: str | None = None
    """Why the request failed, in words. Null: it has ended."""


class AdminResponse(NamedTuple):
    """The answer to an admin call. Answers ADMIN."""

    topic: str | None
    connection: str
    cause: str
    """The call: its method and path."""
    fields: f.AdminResponseFields
    ledger_id: int | None = None
    """The ledger of the entry that was asked for. Null: the answer is in `fields`."""
    entry_id: int | None = None
    """The entry that was asked for, in its ledger. Null: the answer is in `fields`."""


class CursorMoved(NamedTuple):
    """The broker moved a mark-delete position without an ack: by a skip, a reset, a seek, a cleared backlog or a trimmed
    ledger."""

    topic: str
    subscription: str
    before_ledger: int
    before_entry: int
    after_ledger: int
    after_entry: int
    entries: int
    """How many entries left the backlog. Negative: so many came back, with the acks that a move back voids."""
    cause: str
    policy: str | None = None


class Expired(NamedTuple):
    """Message TTL, or an admin call that expires messages, moved a subscription over old entries."""

    topic: str
    subscription: str
    before_ledger: int
    before_entry: int
    after_ledger: int
    after_entry: int
    entries: int
    """How many entries left the backlog."""
    cause: str
    policy: str
    """The value of the policy that caused it, and the level that sets it; or what the admin call asked for."""


class Evicted(NamedTuple):
    """A backlog quota moved a cursor over its oldest entries (policy `consumer_backlog_eviction`)."""

    topic: str
    subscription: str
    """The subscription. ``pulsar.dedup`` is the cursor of deduplication."""
    before_ledger: int
    before_entry: int
    after_ledger: int
    after_entry: int
    entries: int
    """How many entries left the backlog."""
    cause: str
    policy: str
    """The value of the policy that caused it, and the level that sets it."""


class LedgerClosed(NamedTuple):
    """A ledger took its last entry and changes no more. The next entry opens another."""

    topic: str
    ledger_id: int
    entries: int
    """How many entries the ledger holds."""
    size: int
    """How large its entries are as stored."""
    cause: str


COMPACTED = "compacted up to"
"""How the cause of a TOPIC_EVENT begins that says up to where a topic was compacted."""

COMPACTED_LEDGER = "compacted ledger"
"""How the cause of a LEDGER_CLOSED or LEDGER_DELETED begins that is about a compacted ledger, which is no part of its topic's storage."""


class LedgerDeleted(NamedTuple):
    """Trimming deleted a ledger, or a compacted ledger is not needed any more. Its entries can no longer be read."""

    topic: str
    ledger_id: int
    entries: int
    """How many entries the ledger held."""
    size: int
    """How large its entries were as stored."""
    cause: str
    policy: str | None = None


TOPIC_CREATED = "created"
"""The cause of the row of a new topic."""


class CompactedEntry(NamedTuple):
    """Compaction kept an entry: its copy in the topic's compacted ledger, in which a batch has only the messages that are left."""

    topic: str
    producer_name: str
    sequence_id: int
    ledger_id: int
    """The compacted ledger."""
    entry_id: int
    """The entry in the compacted ledger."""
    size: int
    messages: int
    """The number of messages in the entry, with those that were compacted out."""
    publish_time: int
    partition_key: str | None
    """The message's key. Null: it has none, or each message of the batch has its own."""
    metadata: MessageMetadata
    payload: bytes
    broker_timestamp: int | None
    fields: f.CompactedEntryFields


class TopicEvent(NamedTuple):
    """Something happened to a topic as a whole: it was created, unloaded, terminated, fenced, or recovered."""

    topic: str
    cause: str
    """What happened, and why."""
    fields: f.TopicEventFields | None = None
    """What only this kind has, as JSON. Null: nothing."""


class SubscriptionEvent(NamedTuple):
    """A subscription was created or deleted."""

    topic: str
    subscription: str
    cause: str
    """What happened, and why."""


class MirrorDrift(NamedTuple):
    """A shadow topic, or a subscription of it, differs in another way than before from what MIRROR shows of its source."""

    topic: str
    subscription: str | None
    """The subscription. Null: the topic as a whole."""
    entries: int
    """How many more entries there are than on the source, negative if fewer: in the subscription's backlog, or stored."""
    messages: int
    """How many more messages the subscription's consumers hold than on the source, negative if fewer."""
    size: int
    """How many more bytes the topic stores than the source, negative if fewer. 0 for a subscription."""
    cause: str
    """Why: `missed interval`, `race` or `rule unknown` where something shows it, else `unknown`, and what is known of it."""
    fields: f.MirrorDriftFields | None = None
    """What only this kind has, as JSON. Null: the row is of a topic."""


class Tick(NamedTuple):
    """The trigger of a live query advanced the clock, not a record. As TICK commands in the log, these rows make a replay
    of a live run exact."""

    topic: None = None
    """Always null."""


SET_ASIDE = "set_aside"
TOPIC_SET_ASIDE = "topic_set_aside"
"""The rule of the row, without a payload, that says from which record on a topic is set aside. The topic's later records have the rule
`SET_ASIDE`."""
TIMESTAMP_AHEAD = "timestamp_ahead"
RULES_OF_A_RUN = (SET_ASIDE, TIMESTAMP_AHEAD)
"""The rules of QUARANTINED rows that depend on the run, not on the record and those before it: an operator named the record,
or its timestamp is far ahead of the query's own time. Such a record does not even advance the clock."""


class Quarantined(NamedTuple):
    """A record that is not a command, breaks a rule, or was set aside by the run. It has no other effect than, except for the
    rules `timestamp`, `timestamp_ahead` and `set_aside`, to advance the clock. The rule `topic_set_aside` is of no record: from this row
    on, its topic is set aside."""

    topic: str | None
    rule: str
    cause: str
    payload: bytes
    """The record's value as it came."""


class Unsupported(NamedTuple):
    """A command that Magnetar knows and does not carry out, or not in full."""

    topic: str | None
    connection: str
    """The client's connection that sent the command. The row is not an answer."""
    cause: str
    """What is not supported."""


class PublishThrottled(NamedTuple):
    """A message exceeded a publish rate. A broker then reads no more from its connection for a while, and `magnetar serve` carries out no
    more of its commands. In a log, nothing is delayed: another row follows when the rate is exceeded again after that."""

    topic: str
    connection: str
    """The producer's connection; empty: the message is in the short form, or came through REST. The row is not an answer."""
    producer_name: str
    cause: str
    """Whose rate was exceeded."""
    fields: f.PublishThrottledFields


Effect = (
    SendReceipt | SendError | ProducerSuccess | Success | Error | CloseProducer | CloseConsumer | CloseConnection
    | Message | AckResponse | ActiveConsumerChange | ReachedEndOfTopic | GetLastMessageIdResponse | PartitionedMetadataResponse
    | LookupResponse | GetSchemaResponse | GetOrCreateSchemaResponse | AdminResponse | CursorMoved
    | Expired | Evicted | LedgerClosed | LedgerDeleted | CompactedEntry | TopicEvent | SubscriptionEvent | MirrorDrift | Tick | Quarantined
    | Unsupported | PublishThrottled
    | TcClientConnectResponse | NewTxnResponse | AddPartitionToTxnResponse | AddSubscriptionToTxnResponse | EndTxnResponse
)  # fmt: skip

KINDS: dict[type[Effect], str] = {
    effect: re.sub(r"(?<!^)(?=[A-Z])", "_", effect.__name__).upper() for effect in Effect.__args__
}
"""Each kind's name in the output: SendReceipt is SEND_RECEIPT."""

RESPONSES = frozenset(
    kind
    for effect, kind in KINDS.items()
    if "connection" in effect._fields and effect not in (Unsupported, PublishThrottled)
)
"""The kinds that go to a client's connection."""


class Row(NamedTuple):
    """An effect with its identity (partition, offset, ordinal) and the clock (ms) at which it happened."""

    offset: int
    ordinal: int
    clock: int
    effect: Effect
