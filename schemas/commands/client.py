"""What clients say: publishing in the short form, and the commands of Pulsar's binary protocol.

Each needs a topic in the record's coordinates, except CONNECT and CONNECTION_LOST. A `request_id` is chosen by the
client and comes back in the answer.
"""

from typing import Literal

import msgspec

from schemas.commands.parts import (
    AccessMode,
    KeyLongValue,
    KeySharedMeta,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    SchemaData,
    SubType,
    TxnAction,
    TxnSubscription,
)
from schemas.units import EpochMillis, Int32, Int64, Messages, Seconds64


class Publish(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False, kw_only=True):
    """The short form: publish one message without a connection.

    It has no field ``command``, so any Kafka producer can write it. The producer is registered on the topic at its first
    message, with access mode Shared. SEND_RECEIPT or SEND_ERROR is an output row; there is no connection to answer.
    """

    producer: str
    """The producer's name, unique on the topic."""
    sequence_id: Int64
    """The message's sequence id. Deduplication, if it is enabled, compares it with the producer's highest one."""
    payload: str = ""
    """The payload as text, stored in UTF-8. Give `payload` or `payload_bytes`, not both."""
    payload_bytes: bytes = b""
    """The payload as bytes."""
    key: str | None = None
    """The message's key. Key_Shared delivers all messages of a key to one consumer."""
    properties: dict[str, str] = {}
    """The application's properties. Entry filters read them."""
    publish_time: EpochMillis | None = None
    """The time at which the client published. Absent: the partition's clock."""
    event_time: EpochMillis | None = None
    """The application's own time. Stored and delivered, not used."""
    deliver_at_time: EpochMillis | None = None
    """The earliest time of delivery. Only Shared and Key_Shared subscriptions observe it; others deliver immediately."""
    rest: bool = False
    """True: published as ``POST /topics/…`` does (`TopicsBase`). No producer joins the topic, so nothing that concerns producers
    applies: their number, access modes, encryption, or a quota that holds them back. A persistent topic with deduplication refuses it."""

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
    """What all commands have in common."""

    connection: str = ""
    """The client's connection: any text, unique in the log. The answers to a command go to its connection."""


class Connect(Command, tag="CONNECT"):
    """Open a connection.

    Optional and without effect: a connection is known from its first command on.
    """

    client_version: str = ""
    """The client library and its version. Recorded, not used."""
    protocol_version: Int32 = 0
    """The highest version of the protocol that the client knows. Recorded, not used."""
    auth_method_name: str = ""
    """How the client authenticates. Recorded, not used: a server asks for tokens before anything is a command."""
    auth_data: bytes = b""
    """The client's credentials. Recorded, not used. Keep real ones out of logs."""
    feature_flags: dict[str, bool] = {}
    """What the client supports, by Pulsar's names. Recorded, not used."""


class ConnectionLost(Command, tag="CONNECTION_LOST"):
    """The connection is gone, as when TCP closes: the broker closes its producers and consumers.

    It has no topic. In Kafka, write it to every ingress partition where the connection has a producer or a consumer.
    """

    prefix: str = ""
    """Instead of the connection, all connections whose names begin with this text are gone, except those whose names begin
    with `connection`, unless that is empty. A server that starts says this of its former lives."""


class Producer(Command, tag="PRODUCER"):
    """Create a producer on the topic. The answer is PRODUCER_SUCCESS or ERROR.

    A queued producer (WaitForExclusive) gets PRODUCER_SUCCESS twice: at once, not ready, and when its turn comes.
    """

    producer_id: Int64
    """The client's number for the producer, unique on its connection."""
    request_id: Int64
    """Comes back in the answer."""
    producer_name: str | None = None
    """The name, unique on the topic. Absent or empty: the broker generates one, such as ``standalone-0-3``."""
    encrypted: bool = False
    """True: the client encrypts its messages. A topic that requires encryption refuses other producers (MetadataError)."""
    metadata: list[KeyValue] = []
    """The application's notes on the producer. Recorded, not used."""
    schema: SchemaData | None = None
    """The schema of the messages. A new schema gets the topic's next version number. One that is malformed, or that the policies refuse, is IncompatibleSchema."""
    epoch: Int64 = 0
    """Counts the client's attempts to create the producer. A request for a `producer_id` that is connected already gets the
    former answer, whatever its epoch. Of two producers with one name, connection and id, the higher epoch stays."""
    user_provided_producer_name: bool = True
    """False: the broker generated the name at an earlier attempt. Recorded, not used."""
    producer_access_mode: AccessMode = "Shared"
    """Who else may produce. Shared: everybody who is Shared. Exclusive: nobody, or the request fails. WaitForExclusive:
    nobody, and the request waits for that. ExclusiveWithFencing: nobody, and the present producers are closed."""
    topic_epoch: Int64 | None = None
    """The topic epoch of the producer's last exclusive access. In an exclusive mode, a lower one than the topic's is
    refused (ProducerFenced), another becomes the topic's. Absent: the topic's epoch rises by one. Less than 2^53."""
    txn_enabled: bool = False
    """True: the producer may take part in transactions. See `producersReadyTopicForAborts`; else without effect."""
    initial_subscription_name: str | None = None
    """A durable subscription to create at the earliest message, unless it exists. Refused (NotAllowedError) if
    `allowAutoSubscriptionCreation` is off, and (ProducerBusy) if SUBSCRIBE would refuse its name. Ignored on a non-persistent topic."""


class Send(Command, tag="SEND"):
    """Publish one entry: a message, a batch of messages, or a chunk of a message.

    The answer is SEND_RECEIPT or SEND_ERROR. A SEND for a producer that the connection has not created closes the
    connection; for one that the broker closed within the last `keepAliveIntervalSeconds` it is ignored.
    """

    producer_id: Int64
    """The producer, as in PRODUCER."""
    sequence_id: Int64
    """The sequence id of the message, or the lowest of a batch. Deduplication, if it is enabled, compares it."""
    metadata: MessageMetadata
    """The entry's metadata, stored with it."""
    num_messages: Messages = 1
    """The number of messages that the topic's counters add, which can be negative. Delivery counts
    `metadata.num_messages_in_batch`."""
    highest_sequence_id: Int64 | None = None
    """The highest sequence id of a batch. Ignored if it is lower than `sequence_id`."""
    is_chunk: bool = False
    """True: the entry is a chunk. Recorded, not used: `metadata.chunk_id` decides."""
    marker: bool = False
    """True: the entry is a marker. Recorded, not used: `metadata.marker_type` decides."""
    message_id: MessageIdData | None = None
    """The position of an entry in the source topic of a [shadow topic](../rules/ledgers.md#15-shadow-topics), which keeps
    it. It needs no producer. Refused (NotAllowedError) on another topic."""
    txnid_least_bits: Int64 | None = None
    """The number of the transaction to which the message belongs, see NEW_TXN. Without transactions, other than 0: refused (NotAllowedError)."""
    txnid_most_bits: Int64 | None = None
    """The transaction's coordinator. Both or none are given. Without transactions, other than 0: refused (NotAllowedError)."""
    payload: str = ""
    """The payload as text, stored in UTF-8. Give `payload` or `payload_bytes`, not both."""
    payload_bytes: bytes = b""
    """The payload as bytes."""
    fails: bool = False
    """True: the write fails, as by the fault ``FailWrites`` of [FAULT](#fault). A test asks for it, no client does. Without effect if nothing
    is written: for a duplicate, a message that is refused, a shadow or a non-persistent topic."""

    def __post_init__(self) -> None:
        if self.payload and self.payload_bytes:
            raise ValueError("give payload or payload_bytes, not both")


class CloseProducer(Command, tag="CLOSE_PRODUCER"):
    """Close a producer. The answer is SUCCESS, as soon as none of its writes is unconfirmed."""

    producer_id: Int64
    """The producer, as in PRODUCER. For an unknown one the answer is SUCCESS, too."""
    request_id: Int64
    """Comes back in the answer."""


class Subscribe(Command, tag="SUBSCRIBE"):
    """Attach a consumer to a subscription, and create the subscription if it does not exist.

    The answer is SUCCESS or ERROR. Messages follow when the consumer gives permits with FLOW. If the `consumer_id` is
    known already, the answer is SUCCESS and nothing changes.
    """

    subscription: str
    """The subscription's name. Empty, ``pulsar.dedup`` and ``pulsar.repl…`` are refused (ProducerBusy, as in Pulsar)."""
    subType: SubType
    """How consumers share the subscription. Exclusive: one consumer. Failover: one active, the others stand by. Shared:
    entries in turn. Key_Shared: entries by key. While consumers are connected, another type is refused (ConsumerBusy)."""
    consumer_id: Int64
    """The client's number for the consumer, unique on its connection."""
    request_id: Int64
    """Comes back in the answer."""
    consumer_name: str | None = None
    """The consumer's name. Failover orders consumers by it, Key_Shared places them on the hash ring by it."""
    priority_level: Int32 = 0
    """0 is the highest priority. Shared sends to a lower level only if no higher one has permits; Failover chooses the
    active consumer from the highest level. Key_Shared ignores it."""
    durable: bool = True
    """False: a reader's subscription. It ends with its last consumer and keeps no ledger from being trimmed."""
    start_message_id: MessageIdData | None = None
    """Where a new subscription that is not durable starts: with this entry. Ignored for a durable one."""
    metadata: list[KeyValue] = []
    """The application's notes on the consumer. Recorded, not used. See maxConsumerMetadataSize."""
    read_compacted: bool = False
    """True: read compacted data, and behind that the topic. On a topic that was never compacted: the whole topic. Exclusive and Failover only,
    otherwise refused (NotAllowedError)."""
    schema: SchemaData | None = None
    """The schema that the consumer expects. It becomes that of a topic without schema, producers, messages and consumers. Other
    topics without a schema refuse it (IncompatibleSchema)."""
    initialPosition: Literal["Latest", "Earliest"] = "Latest"
    """Where a new subscription starts: after the last message, or at the first that is stored."""
    replicate_subscription_state: bool = False
    """True: replicate the subscription to other clusters. There are none: an UNSUPPORTED row says so, and the consumer
    is attached."""
    force_topic_creation: bool = True
    """False: a topic that does not exist is not created, but refused (TopicNotFound)."""
    start_message_rollback_duration_sec: Seconds64 = 0
    """Above 0: first reset the subscription, new or not, to the messages published in this last stretch of time."""
    keySharedMeta: KeySharedMeta | None = None
    """How the consumer takes part in Key_Shared. Absent: AUTO_SPLIT, in order."""
    subscription_properties: list[KeyValue] = []
    """Properties of a new durable subscription. Entry filters read them. Ignored if the subscription exists."""
    consumer_epoch: Int64 | None = None
    """The consumer's epoch, which comes back in MESSAGE. Exclusive and Failover only."""


class Flow(Command, tag="FLOW"):
    """Give a consumer permits for more messages. It has no answer; for an unknown consumer it is ignored."""

    consumer_id: Int64
    """The consumer, as in SUBSCRIBE."""
    messagePermits: Messages
    """How many more messages the consumer can take. 0 or less closes the connection, and so does a sum above 1,000,000 that
    were not delivered yet. More than 1,000,000 at once goes to quarantine."""


class Ack(Command, tag="ACK"):
    """Acknowledge messages. For an unknown consumer it is ignored."""

    consumer_id: Int64
    """The consumer, as in SUBSCRIBE."""
    ack_type: Literal["Individual", "Cumulative"]
    """Individual: the entries of `message_id`. Cumulative: all entries up to `message_id`, on Exclusive and Failover
    only; on other types it has no effect."""
    message_id: list[MessageIdData] = []
    """The entries; exactly one if Cumulative. Otherwise the ack has no effect, and is answered."""
    validation_error: str | None = None
    """Why the client discarded a corrupt message. Recorded, not used: the ack counts as any other."""
    properties: list[KeyLongValue] = []
    """The application's notes, kept with the cursor in Pulsar. Recorded, not used."""
    txnid_least_bits: Int64 | None = None
    """The number of the transaction that acknowledges, see NEW_TXN. Without transactions, other than 0: an UNSUPPORTED row, and nothing is acknowledged."""
    txnid_most_bits: Int64 | None = None
    """The transaction's coordinator. Both or none are given. Without transactions, other than 0: an UNSUPPORTED row, and nothing is acknowledged."""
    request_id: Int64 | None = None
    """Asks for an ACK_RESPONSE, in which it comes back. Absent: no answer."""


class RedeliverUnacknowledgedMessages(Command, tag="REDELIVER_UNACKNOWLEDGED_MESSAGES"):
    """Ask for redelivery of messages that are not acknowledged. It has no answer; for an unknown consumer it is
    ignored."""

    consumer_id: Int64
    """The consumer, as in SUBSCRIBE."""
    message_ids: list[MessageIdData] = []
    """Shared, Key_Shared: these entries; empty: all that the consumer has. Exclusive and Failover redeliver everything
    that is not acknowledged, if the consumer is the active one."""
    consumer_epoch: Int64 | None = None
    """Exclusive, Failover: the consumer's epoch from now on, if it is higher than before."""


class Unsubscribe(Command, tag="UNSUBSCRIBE"):
    """Delete the consumer's subscription. The answer is SUCCESS or ERROR."""

    consumer_id: Int64
    """The consumer, as in SUBSCRIBE. An unknown one is refused (MetadataError)."""
    request_id: Int64
    """Comes back in the answer."""
    force: bool = False
    """True: also if other consumers are connected, which are closed. False: that is refused (MetadataError)."""


class CloseConsumer(Command, tag="CLOSE_CONSUMER"):
    """Close a consumer. The answer is SUCCESS. Its unacknowledged messages go to the subscription's other consumers."""

    consumer_id: Int64
    """The consumer, as in SUBSCRIBE. For an unknown one the answer is SUCCESS, too."""
    request_id: Int64
    """Comes back in the answer."""


class Seek(Command, tag="SEEK"):
    """Move the consumer's subscription to another position. The answer is SUCCESS or ERROR.

    First the broker closes the consumers: the active one of Exclusive and Failover, all of Shared and Key_Shared. On a
    non-persistent topic nothing happens but the answer.
    """

    consumer_id: Int64
    """The consumer, as in SUBSCRIBE. An unknown one is refused (MetadataError)."""
    request_id: Int64
    """Comes back in the answer."""
    message_id: MessageIdData | None = None
    """The next entry to be read. Takes precedence over `message_publish_time`; without both the request is refused
    (MetadataError)."""
    message_publish_time: EpochMillis | None = None
    """The next entry to be read follows the last one that was published before this time."""


class GetLastMessageId(Command, tag="GET_LAST_MESSAGE_ID"):
    """Ask for the position of the topic's last message. The answer is GET_LAST_MESSAGE_ID_RESPONSE or ERROR."""

    consumer_id: Int64
    """The consumer, as in SUBSCRIBE. An unknown one is refused (MetadataError)."""
    request_id: Int64
    """Comes back in the answer."""


class PartitionedMetadata(Command, tag="PARTITIONED_METADATA"):
    """Ask how many partitions the topic has. The answer is PARTITIONED_METADATA_RESPONSE."""

    request_id: Int64
    """Comes back in the answer."""
    metadata_auto_creation_enabled: bool = True
    """True: a topic that could be created counts as one without partitions. False: one that does not exist is answered
    TopicNotFound. The topic is not created either way."""


class Lookup(Command, tag="LOOKUP"):
    """Ask which broker serves the topic. The answer is LOOKUP_RESPONSE: this one serves all."""

    request_id: Int64
    """Comes back in the answer."""
    authoritative: bool = False
    """True: another broker redirected the client here. Recorded, not used."""
    advertised_listener_name: str = ""
    """The listener whose address the client wants. There is none: ServiceNotReady, unless this is empty."""
    properties: list[KeyValue] = []
    """The client's own notes. Recorded, not used."""


class GetSchema(Command, tag="GET_SCHEMA"):
    """Ask for a schema of the topic. The answer is GET_SCHEMA_RESPONSE."""

    request_id: Int64
    """Comes back in the answer."""
    schema_version: bytes = b""
    """The version number, 8 bytes, big-endian. Empty: the latest."""


class GetOrCreateSchema(Command, tag="GET_OR_CREATE_SCHEMA"):
    """Ask for the version of a schema; a new one is kept. The answer is GET_OR_CREATE_SCHEMA_RESPONSE."""

    request_id: Int64
    """Comes back in the answer."""
    schema: SchemaData
    """The schema."""


class TcClientConnectRequest(Command, tag="TC_CLIENT_CONNECT_REQUEST"):
    """Ask for a coordinator of transactions, which takes requests from then on. The answer is TC_CLIENT_CONNECT_RESPONSE.

    Requests to a coordinator belong to its topic, ``persistent://pulsar/system/transaction_coordinator_assign-partition-N``, or come without one to all ingress
    partitions, as they must if there are several. Without
    `transactionCoordinatorEnabled`, all of them are refused (NotAllowedError, in ERROR).
    """

    request_id: Int64
    """Comes back in the answer."""
    tc_id: Int64
    """The coordinator, from 0 to 15."""


class NewTxn(Command, tag="NEW_TXN"):
    """Begin a transaction. The answer is NEW_TXN_RESPONSE."""

    request_id: Int64
    """Comes back in the answer."""
    txn_ttl_seconds: Int64 = 0
    """After so many milliseconds, whatever the name says, the coordinator aborts the transaction if it is open. Less than 100: at once."""
    tc_id: Int64 = 0
    """The coordinator."""
    principal: str = ""
    """The role of the client: the owner of the transaction. Empty: there is no authentication, and everybody may use it."""


class AddPartitionToTxn(Command, tag="ADD_PARTITION_TO_TXN"):
    """Say on which topics the transaction publishes. The answer is ADD_PARTITION_TO_TXN_RESPONSE."""

    request_id: Int64
    """Comes back in the answer."""
    txnid_least_bits: Int64 = 0
    """The transaction's number."""
    txnid_most_bits: Int64 = 0
    """The transaction's coordinator."""
    partitions: list[str] = []
    """The names of the topics."""
    principal: str = ""
    """The role of the client, who must be the owner. Empty: it may use the transactions of all."""


class AddSubscriptionToTxn(Command, tag="ADD_SUBSCRIPTION_TO_TXN"):
    """Say on which subscriptions the transaction acknowledges. The answer is ADD_SUBSCRIPTION_TO_TXN_RESPONSE."""

    request_id: Int64
    """Comes back in the answer."""
    txnid_least_bits: Int64 = 0
    """The transaction's number."""
    txnid_most_bits: Int64 = 0
    """The transaction's coordinator."""
    subscription: list[TxnSubscription] = []
    """The subscriptions."""
    principal: str = ""
    """The role of the client, who must be the owner. Empty: it may use the transactions of all."""


class EndTxn(Command, tag="END_TXN"):
    """Commit or abort a transaction. The answer is END_TXN_RESPONSE."""

    request_id: Int64
    """Comes back in the answer."""
    txnid_least_bits: Int64 = 0
    """The transaction's number."""
    txnid_most_bits: Int64 = 0
    """The transaction's coordinator."""
    txn_action: TxnAction = "COMMIT"
    """How it ends."""
    principal: str = ""
    """The role of the client, who must be the owner. Empty: it may use the transactions of all."""
