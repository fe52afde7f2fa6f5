"""What calls of the admin API take and answer, by Pulsar's names, where it is no policy: `tools.openapi` describes the API with it.

Fields that are `UNSET` are absent where there is nothing to say, or where a version of Pulsar does not have them. Of what Magnetar does not have
(replication, offloading, compaction, transactions, memory), fields are always 0, false or empty.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from schemas.units import EpochMillis, Int64, unit

_Id = Annotated[Int64, unit("number of its kind")]
_Count = Annotated[Int64, unit("messages")]
_Entries = Annotated[Int64, unit("entries")]
_Events = Annotated[Int64, unit("times")]
_Bytes = Annotated[Int64, unit("bytes")]
_Seconds = Annotated[Int64, unit("s")]
_Millis = Annotated[Int64, unit("ms")]
_Version = Annotated[Int64, unit("versions, from 0")]
_Partitions = Annotated[Int64, unit("partitions")]
_Rate = Annotated[float, unit("messages/s")]
_ByteRate = Annotated[float, unit("bytes/s")]
_AverageSize = Annotated[float, unit("bytes/message")]


class RefusedCall(msgspec.Struct):
    """Why a call was not carried out."""

    reason: str
    """In words."""


# -- positions


class MessageId(msgspec.Struct):
    """The id of a message."""

    ledgerId: _Id
    """Its ledger."""
    entryId: _Id
    """Its entry in the ledger. −1: none."""
    partitionIndex: _Id
    """Its partition. −1: the topic has none, or it is not said."""
    batchIndex: _Id | UnsetType = UNSET
    """Its place in its batch, from 0. −1: it is the whole entry."""
    batchSize: _Count | UnsetType = UNSET
    """0: it is not said."""
    outstandingAcksInSameBatch: _Count | UnsetType = UNSET
    """0: it is not said."""
    originalBatchSize: _Count | UnsetType = UNSET
    """0: it is not said."""


class MessagePosition(msgspec.Struct):
    """A position. Without ids, it is the latest."""

    ledgerId: _Id = 2**63 - 1
    """The ledger. −1, with entry −1: the earliest."""
    entryId: _Id = 2**63 - 1
    """The entry in the ledger."""
    partitionIndex: _Id = -1
    """Nothing looks at it."""
    batchIndex: _Id = -1
    """The message of the batch, from 0. −1: the whole entry."""
    excluded: bool = False
    """Whether the message after it is meant."""
    properties: dict[str, str] = {}
    """Those of a subscription that is created there."""


# -- statistics of a topic


class PublisherStats(msgspec.Struct):
    """A producer that is connected. Rates are those of the last interval."""

    accessMode: str | UnsetType = UNSET
    """How it shares the topic: Shared, Exclusive, WaitForExclusive or ExclusiveWithFencing."""
    msgRateIn: _Rate = 0.0
    """What it publishes."""
    msgThroughputIn: _ByteRate = 0.0
    """What it publishes."""
    averageMsgSize: _AverageSize = 0.0
    """The average size of its messages."""
    chunkedMessageRate: _Rate = 0.0
    """The chunks among them."""
    producerId: _Id | UnsetType = UNSET
    """Its number on its connection."""
    supportsPartialProducer: bool = False
    """Always false."""
    producerName: str | UnsetType = UNSET
    """Its name."""
    address: str | UnsetType = UNSET
    """The address of its client, /HOST:PORT."""
    connectedSince: str | UnsetType = UNSET
    """When it connected, ISO 8601."""
    clientVersion: str | UnsetType = UNSET
    """The version of its library."""
    metadata: dict[str, str] = {}
    """Its properties."""
    msgDropRate: _Rate | UnsetType = UNSET
    """What it publishes to a non-persistent topic and nobody gets."""


class ConsumerStats(msgspec.Struct):
    """A consumer that is connected. Rates are those of the last interval."""

    consumerName: str | UnsetType = UNSET
    """Its name."""
    availablePermits: _Count = 0
    """How many more may be sent to it. Below 0: so many more were sent than it asked for."""
    unackedMessages: _Count = 0
    """What it has not acknowledged."""
    blockedConsumerOnUnackedMsgs: bool = False
    """Whether it gets nothing because it has too many of these."""
    msgRateOut: _Rate = 0.0
    """What is sent to it."""
    msgThroughputOut: _ByteRate = 0.0
    """What is sent to it."""
    msgRateRedeliver: _Rate = 0.0
    """What is sent to it once more."""
    messageAckRate: _Rate = 0.0
    """What it acknowledges."""
    chunkedMessageRate: _Rate = 0.0
    """The chunks among what is sent to it."""
    msgOutCounter: _Count = 0
    """What was sent to it."""
    bytesOutCounter: _Bytes = 0
    """What was sent to it."""
    avgMessagesPerEntry: Annotated[Int64, unit("messages/entry")] = 0
    """The average size of the batches that it gets."""
    lastConsumedFlowTimestamp: EpochMillis | UnsetType = UNSET
    """When it last asked for messages. 0: never."""
    lastConsumedTimestamp: EpochMillis = 0
    """When it was last sent messages. 0: never."""
    lastAckedTimestamp: EpochMillis = 0
    """When it last acknowledged. 0: never."""
    lastConsumedTime: str | UnsetType = UNSET
    """`lastConsumedTimestamp`, ISO 8601."""
    lastAckedTime: str | UnsetType = UNSET
    """`lastAckedTimestamp`, ISO 8601."""
    keyHashRanges: list[str] | UnsetType = UNSET
    """The hashes of keys that it gets, of Key_Shared: [FIRST, LAST]."""
    keyHashRangeArrays: list[list[Annotated[Int64, unit("hashes of keys")]]] | UnsetType = UNSET
    """The same as numbers."""
    address: str | UnsetType = UNSET
    """The address of its client, /HOST:PORT."""
    connectedSince: str | UnsetType = UNSET
    """When it connected, ISO 8601."""
    clientVersion: str | UnsetType = UNSET
    """The version of its library."""
    metadata: dict[str, str] = {}
    """Its properties."""


class SubscriptionStats(msgspec.Struct):
    """A subscription. Rates are those of the last interval, of its consumers together."""

    type: str | UnsetType = UNSET
    """Exclusive, Shared, Failover or Key_Shared. None: nobody has subscribed since the topic was loaded."""
    activeConsumerName: str | UnsetType = UNSET
    """The consumer that gets the messages, of Exclusive and Failover."""
    keySharedMode: str | UnsetType = UNSET
    """How keys are shared, of Key_Shared: AUTO_SPLIT or STICKY."""
    msgBacklog: _Entries = 0
    """What is not acknowledged."""
    msgBacklogNoDelayed: _Entries = 0
    """The same without what waits for its delivery time."""
    msgDelayed: _Entries = 0
    """What waits for its delivery time."""
    msgInReplay: _Entries | UnsetType = UNSET
    """What is to be sent once more."""
    backlogSize: _Bytes | UnsetType = UNSET
    """The size of the backlog. −1: it is not said."""
    earliestMsgPublishTimeInBacklog: EpochMillis = 0
    """When the oldest message of the backlog was published, if the call asks for it. −1: there is none. 0: it is not said."""
    unackedMessages: _Count = 0
    """What consumers have not acknowledged."""
    blockedSubscriptionOnUnackedMsgs: bool = False
    """Whether nobody gets anything because there are too many of these."""
    msgRateOut: _Rate = 0.0
    """What is sent."""
    msgThroughputOut: _ByteRate = 0.0
    """What is sent."""
    msgRateRedeliver: _Rate = 0.0
    """What is sent once more."""
    messageAckRate: _Rate = 0.0
    """What is acknowledged."""
    chunkedMessageRate: _Rate = 0.0
    """The chunks among what is sent."""
    msgRateExpired: _Rate = 0.0
    """What expires."""
    msgDropRate: _Rate | UnsetType = UNSET
    """What a subscription of a non-persistent topic loses."""
    msgOutCounter: _Count = 0
    """What was sent."""
    bytesOutCounter: _Bytes = 0
    """What was sent."""
    totalMsgExpired: _Count = 0
    """What has expired since the topic was loaded."""
    lastExpireTimestamp: EpochMillis = 0
    """When expiry last looked. 0: never."""
    lastConsumedFlowTimestamp: EpochMillis = 0
    """When a consumer last asked for messages. 0: never."""
    lastConsumedTimestamp: EpochMillis = 0
    """When a consumer that is connected was last sent messages. 0: never."""
    lastAckedTimestamp: EpochMillis = 0
    """When a consumer that is connected last acknowledged. 0: never."""
    lastMarkDeleteAdvancedTimestamp: EpochMillis = 0
    """When the position up to which all is acknowledged last moved. 0: never."""
    nonContiguousDeletedMessagesRanges: Annotated[Int64, unit("ranges")] = 0
    """The runs of what is acknowledged while older messages are not."""
    nonContiguousDeletedMessagesRangesSerializedSize: _Bytes = 0
    """Always 0."""
    delayedMessageIndexSizeInBytes: _Bytes | UnsetType = UNSET
    """Always 0."""
    filterProcessedMsgCount: _Count | UnsetType = UNSET
    """What entry filters have looked at."""
    filterAcceptedMsgCount: _Count | UnsetType = UNSET
    """What they let through."""
    filterRejectedMsgCount: _Count | UnsetType = UNSET
    """What they kept back for good."""
    filterRescheduledMsgCount: _Count | UnsetType = UNSET
    """What they put off."""
    dispatchThrottledMsgEventsBySubscriptionLimit: _Events | UnsetType = UNSET
    """Always 0."""
    dispatchThrottledBytesEventsBySubscriptionLimit: _Events | UnsetType = UNSET
    """Always 0."""
    dispatchThrottledMsgEventsByTopicLimit: _Events | UnsetType = UNSET
    """Always 0."""
    dispatchThrottledBytesEventsByTopicLimit: _Events | UnsetType = UNSET
    """Always 0."""
    dispatchThrottledMsgEventsByBrokerLimit: _Events | UnsetType = UNSET
    """Always 0."""
    dispatchThrottledBytesEventsByBrokerLimit: _Events | UnsetType = UNSET
    """Always 0."""
    isDurable: bool = False
    """Whether it stays without consumers."""
    durable: bool = False
    """The same."""
    isReplicated: bool = False
    """Whether it is said to be replicated."""
    replicated: bool = False
    """The same."""
    allowOutOfOrderDelivery: bool = False
    """Whether messages of a key may come in another order, of Key_Shared."""
    consumersAfterMarkDeletePosition: dict[str, str] = {}
    """Always empty."""
    subscriptionProperties: dict[str, str] = {}
    """Its properties."""
    consumers: list[ConsumerStats] = []
    """Those that are connected."""


class CompactionStats(msgspec.Struct):
    """The last compaction: there never was one."""

    lastCompactionRemovedEventCount: _Count = 0
    """Always 0."""
    lastCompactionSucceedTimestamp: EpochMillis = 0
    """Always 0."""
    lastCompactionFailedTimestamp: EpochMillis = 0
    """Always 0."""
    lastCompactionDurationTimeInMills: _Millis = 0
    """Always 0."""


class TopicStats(msgspec.Struct):
    """A topic. Rates are those of the last interval."""

    msgRateIn: _Rate = 0.0
    """What is published."""
    msgThroughputIn: _ByteRate = 0.0
    """What is published."""
    msgRateOut: _Rate = 0.0
    """What is sent to consumers."""
    msgThroughputOut: _ByteRate = 0.0
    """What is sent to consumers."""
    averageMsgSize: _AverageSize = 0.0
    """The average size of what is published."""
    msgDropRate: _Rate | UnsetType = UNSET
    """What is published to a non-persistent topic and nobody gets."""
    msgInCounter: _Count = 0
    """What was published since the topic was loaded."""
    bytesInCounter: _Bytes = 0
    """What was published since the topic was loaded."""
    msgOutCounter: _Count = 0
    """What was sent to consumers since the topic was loaded."""
    bytesOutCounter: _Bytes = 0
    """What was sent to consumers since the topic was loaded."""
    systemTopicBytesInCounter: _Bytes | UnsetType = UNSET
    """Always 0."""
    bytesOutInternalCounter: _Bytes | UnsetType = UNSET
    """Always 0."""
    msgChunkPublished: bool = False
    """Always false."""
    storageSize: _Bytes = 0
    """What is stored."""
    backlogSize: _Bytes = 0
    """The size of the largest backlog."""
    backlogQuotaLimitSize: _Bytes | UnsetType = UNSET
    """The quota for that. Below 0: none."""
    backlogQuotaLimitTime: _Seconds | UnsetType = UNSET
    """The quota for the age of the oldest message that is not acknowledged. 0 or below: none."""
    oldestBacklogMessageAgeSeconds: _Seconds | UnsetType = UNSET
    """That age, as the last check of the quotas found it. −1: it found none."""
    oldestBacklogMessageSubscriptionName: str | UnsetType = UNSET
    """The subscription whose message that is."""
    earliestMsgPublishTimeInBacklogs: EpochMillis = 0
    """When the oldest message of all backlogs was published, if the call asks for it. 0: it is not said."""
    publishRateLimitedTimes: _Events = 0
    """How often producers exceeded a publish rate in the last interval."""
    waitingPublishers: Annotated[Int64, unit("producers")] = 0
    """Those that wait for exclusive access."""
    topicEpoch: Annotated[Int64, unit("times")] | UnsetType = UNSET
    """How often somebody has had exclusive access."""
    nonContiguousDeletedMessagesRanges: Annotated[Int64, unit("ranges")] = 0
    """The sum of those of its subscriptions."""
    nonContiguousDeletedMessagesRangesSerializedSize: _Bytes = 0
    """Always 0."""
    delayedMessageIndexSizeInBytes: _Bytes | UnsetType = UNSET
    """Always 0."""
    deduplicationStatus: str | UnsetType = UNSET
    """Whether messages are deduplicated: Enabled or Disabled, or what it is about to become."""
    ownerBroker: str | UnsetType = UNSET
    """The broker, HOST:PORT."""
    offloadedStorageSize: _Bytes = 0
    """Always 0."""
    lastOffloadLedgerId: _Id = 0
    """Always 0."""
    lastOffloadSuccessTimeStamp: EpochMillis = 0
    """Always 0."""
    lastOffloadFailureTimeStamp: EpochMillis = 0
    """Always 0."""
    ongoingTxnCount: Annotated[Int64, unit("transactions")] | UnsetType = UNSET
    """Always 0."""
    abortedTxnCount: Annotated[Int64, unit("transactions")] | UnsetType = UNSET
    """Always 0."""
    committedTxnCount: Annotated[Int64, unit("transactions")] | UnsetType = UNSET
    """Always 0."""
    compaction: CompactionStats = msgspec.field(default_factory=CompactionStats)
    """The last compaction."""
    replication: dict[str, Any] = {}
    """Always empty."""
    publishers: list[PublisherStats] = []
    """Its producers."""
    subscriptions: dict[str, SubscriptionStats] = {}
    """Its subscriptions, by name."""


class PartitionedTopicMetadata(msgspec.Struct):
    """A topic as partitions."""

    partitions: _Partitions = 0
    """How many it has. 0: it is not partitioned."""
    deleted: bool | UnsetType = UNSET
    """Always false."""
    properties: dict[str, str] | UnsetType = UNSET
    """Its properties, if it has any."""


class PartitionedTopicStats(TopicStats):
    """The sums over the partitions of a topic."""

    metadata: PartitionedTopicMetadata = msgspec.field(default_factory=PartitionedTopicMetadata)
    """The topic as partitions."""
    partitions: dict[str, TopicStats] = {}
    """Each partition that is in use, by its name, if the call asks for that."""


# -- ledgers


class LedgerStats(msgspec.Struct):
    """A ledger."""

    ledgerId: _Id
    """Its number."""
    entries: _Entries
    """What is in it. 0: it is open. −1: there is no such ledger."""
    size: _Bytes
    """Its size. −1: there is no such ledger."""
    offloaded: bool
    """Always false."""
    underReplicated: bool
    """Always false."""


class CursorStats(msgspec.Struct):
    """The cursor of a subscription."""

    markDeletePosition: str | UnsetType = UNSET
    """All up to here is acknowledged, LEDGER:ENTRY."""
    readPosition: str | UnsetType = UNSET
    """What is read next, LEDGER:ENTRY."""
    waitingReadOp: bool = False
    """Always false."""
    pendingReadOps: Annotated[Int64, unit("reads")] = 0
    """Always 0."""
    messagesConsumedCounter: _Entries = 0
    """What it has acknowledged, counted from where it began. Below 0: it went back."""
    cursorLedger: _Id = -1
    """Always −1."""
    cursorLedgerLastEntry: _Id = -1
    """Always −1."""
    individuallyDeletedMessages: str | UnsetType = UNSET
    """What is acknowledged beyond `markDeletePosition`: [(LEDGER:ENTRY..LEDGER:ENTRY], …]."""
    lastLedgerSwitchTimestamp: str | UnsetType = UNSET
    """When its own ledger was created, ISO 8601."""
    state: str | UnsetType = UNSET
    """Always Open."""
    active: bool | UnsetType = UNSET
    """Whether its subscription has consumers."""
    numberOfEntriesSinceFirstNotAckedMessage: _Entries = 0
    """What lies between the two positions."""
    totalNonContiguousDeletedMessagesRange: Annotated[Int64, unit("ranges")] = 0
    """The runs in `individuallyDeletedMessages`."""
    subscriptionHavePendingRead: bool = False
    """Always false."""
    subscriptionHavePendingReplayRead: bool = False
    """Always false."""
    properties: dict[str, Annotated[Int64, unit("as its name says")]] | UnsetType = UNSET
    """Numbers that are stored with it."""


class TopicInternalStats(msgspec.Struct):
    """The ledgers of a topic, and the cursors on them. Of a non-persistent topic, all is 0."""

    entriesAddedCounter: _Entries = 0
    """What was stored since the topic was loaded."""
    numberOfEntries: _Entries = 0
    """What is stored."""
    totalSize: _Bytes = 0
    """What is stored."""
    currentLedgerEntries: _Entries = 0
    """What is in the open ledger."""
    currentLedgerSize: _Bytes = 0
    """What is in the open ledger."""
    lastLedgerCreatedTimestamp: str | UnsetType = UNSET
    """When that was created, ISO 8601."""
    waitingCursorsCount: Annotated[Int64, unit("cursors")] = 0
    """Always 0."""
    pendingAddEntriesCount: _Entries = 0
    """Always 0."""
    lastConfirmedEntry: str | UnsetType = UNSET
    """The last entry, LEDGER:ENTRY."""
    state: str | UnsetType = UNSET
    """LedgerOpened, ClosedLedger or Terminated."""
    ledgers: list[LedgerStats] | UnsetType = UNSET
    """The ledgers, the oldest first."""
    cursors: dict[str, CursorStats] = {}
    """The cursors, by the encoded names of their subscriptions."""
    schemaLedgers: list[LedgerStats] | UnsetType = UNSET
    """Always empty."""
    compactedLedger: LedgerStats | UnsetType = UNSET
    """There is none."""
    properties: dict[str, str] | UnsetType = UNSET
    """Always empty."""


class PartitionedTopicInternalStats(msgspec.Struct):
    """The ledgers of the partitions of a topic."""

    metadata: PartitionedTopicMetadata
    """The topic as partitions."""
    partitions: dict[str, TopicInternalStats]
    """Each partition that is in use, by its name."""


class LedgerMetadata(msgspec.Struct):
    """A ledger as it is stored."""

    ledgerId: _Id
    """Its number."""
    entries: _Entries
    """What is in it."""
    size: _Bytes
    """Its size."""
    isOffloaded: bool
    """Always false."""


class StoredPosition(msgspec.Struct):
    """A position."""

    ledgerId: _Id
    """The ledger."""
    entryId: _Id
    """The entry. −1: before the first."""


class CursorMetadata(msgspec.Struct):
    """A cursor as it is stored."""

    version: _Version
    """Always 0."""
    cursorsLedgerId: _Id
    """Always −1."""
    markDelete: StoredPosition
    """All up to here is acknowledged."""


class TopicInternalInfo(msgspec.Struct):
    """A topic as it is stored."""

    version: _Version
    """Of what is stored: 1, or 0 of a topic with partitions."""
    ledgers: list[LedgerMetadata] | UnsetType = UNSET
    """Its ledgers, the oldest first."""
    cursors: dict[str, CursorMetadata] | UnsetType = UNSET
    """Its cursors, by the encoded names of their subscriptions."""
    partitions: "dict[str, TopicInternalInfo] | UnsetType" = UNSET
    """Its partitions, by name, in place of the two."""


class AnalyzedBacklog(msgspec.Struct):
    """What entry filters make of a backlog."""

    entries: _Entries
    """What was looked at."""
    messages: _Count
    """What was looked at."""
    filterAcceptedEntries: _Entries
    """What they let through."""
    filterRejectedEntries: _Entries
    """What they keep back for good."""
    filterRescheduledEntries: _Entries
    """What they put off."""
    filterAcceptedMessages: _Count
    """What they let through."""
    filterRejectedMessages: _Count
    """What they keep back for good."""
    filterRescheduledMessages: _Count
    """What they put off."""
    aborted: bool
    """Whether there is more, which was not looked at."""
    firstMessageId: str | UnsetType = UNSET
    """The first of them, LEDGER:ENTRY."""
    lastMessageId: str | UnsetType = UNSET
    """The last of them, LEDGER:ENTRY."""


class LongRunning(msgspec.Struct):
    """The state of a process that never runs here."""

    status: str
    """Always NOT_RUN."""
    lastError: str
    """Always empty."""
    firstUnoffloadedMessage: MessageId | UnsetType = UNSET
    """Of offloading: none."""


# -- schemas


class SchemaBody(msgspec.Struct):
    """A schema."""

    type: str
    """Its type, such as JSON, AVRO or STRING."""
    schema: str = ""
    """Its definition. Of KEY_VALUE, a JSON object with those of `key` and `value`."""
    properties: dict[str, str] | None = None
    """Any texts by name."""


class SchemaInfo(msgspec.Struct):
    """A schema of a topic."""

    version: _Version
    """Its version."""
    type: str
    """Its type, such as JSON, AVRO or STRING."""
    timestamp: EpochMillis
    """When it was added."""
    data: str
    """Its definition."""
    properties: dict[str, str]
    """Any texts by name."""


class AllSchemas(msgspec.Struct):
    """The schemas of a topic."""

    getSchemaResponses: list[SchemaInfo]
    """The oldest first."""


class SchemaVersion(msgspec.Struct):
    """A version of a schema."""

    version: _Version
    """Its number. −1: there is none."""


class AddedSchema(msgspec.Struct):
    """A schema that the topic has."""

    version: SchemaVersion
    """Its version."""


class Compatibility(msgspec.Struct):
    """Whether a schema may be added."""

    schemaCompatibilityStrategy: str
    """What decides it."""
    compatibility: bool
    """Whether it may."""


class SchemaEntry(msgspec.Struct):
    """Where a schema is stored."""

    ledgerId: _Id
    """Always −1."""
    entryId: _Id
    """Always −1."""
    version: _Version
    """Its version."""


class SchemaMetadata(msgspec.Struct):
    """Where the schemas of a topic are stored."""

    info: SchemaEntry
    """The latest."""
    index: list[SchemaEntry]
    """All of them."""


# -- the cluster


class ClusterData(msgspec.Struct):
    """The addresses of a cluster. Other fields are kept and shown, too."""

    serviceUrl: str | UnsetType = UNSET
    """Of its admin API: http://HOST:PORT."""
    serviceUrlTls: str | UnsetType = UNSET
    """The same with TLS: https://HOST:PORT."""
    brokerServiceUrl: str | UnsetType = UNSET
    """For clients: pulsar://HOST:PORT."""
    brokerServiceUrlTls: str | UnsetType = UNSET
    """The same with TLS: pulsar+ssl://HOST:PORT."""
    peerClusterNames: list[str] | UnsetType = UNSET
    """Its peers."""
    brokerClientTlsEnabled: bool | UnsetType = UNSET
    """No effect here."""
    brokerClientTlsEnabledWithKeyStore: bool | UnsetType = UNSET
    """No effect here."""
    tlsAllowInsecureConnection: bool | UnsetType = UNSET
    """No effect here."""


class MigratedClusterUrl(msgspec.Struct):
    """Where the clients of a migrated cluster are sent."""

    serviceUrl: str | UnsetType = UNSET
    """Of its admin API: http://HOST:PORT."""
    serviceUrlTls: str | UnsetType = UNSET
    """The same with TLS: https://HOST:PORT."""
    brokerServiceUrl: str | UnsetType = UNSET
    """For clients: pulsar://HOST:PORT."""
    brokerServiceUrlTls: str | UnsetType = UNSET
    """The same with TLS: pulsar+ssl://HOST:PORT."""
    empty: bool | UnsetType = UNSET
    """Whether it has none of them."""


class MigrationState(msgspec.Struct):
    """Whether a cluster is migrated."""

    migrated: bool
    """Whether it is said to be."""
    migratedClusterUrl: MigratedClusterUrl
    """Where to."""


class FailureDomain(msgspec.Struct):
    """Brokers that may fail together."""

    brokers: list[str] = []
    """Their names."""


class AutoFailoverPolicy(msgspec.Struct):
    """When secondary brokers take over."""

    policy_type: str | UnsetType = UNSET
    """Such as min_available."""
    parameters: dict[str, str] | UnsetType = UNSET
    """Those of the type."""


class IsolationPolicy(msgspec.Struct):
    """Which brokers some namespaces are for."""

    namespaces: list[str]
    """Patterns of namespaces."""
    primary: list[str]
    """Patterns of brokers."""
    auto_failover_policy: AutoFailoverPolicy
    """When the secondary brokers take over."""
    secondary: list[str] | UnsetType = UNSET
    """Patterns of brokers."""
    unload_scope: str | UnsetType = UNSET
    """Which namespaces to unload when it changes."""


class IsolatedBroker(msgspec.Struct):
    """What isolation policies say about a broker."""

    brokerName: str
    """Its name, HOST:PORT."""
    namespaceRegex: list[str]
    """Patterns of the namespaces that it is for."""
    primary: bool
    """Whether it is a primary broker for them."""
    policyName: str | UnsetType = UNSET
    """The policy that says so. Absent: none does."""


class LeaderBroker(msgspec.Struct):
    """A broker."""

    serviceUrl: str
    """Its admin API: http://HOST:PORT."""
    brokerId: str
    """Its name, HOST:PORT."""


class OwnedNamespace(msgspec.Struct):
    """A bundle that a broker has."""

    broker_assignment: str
    """Always shared."""
    is_controlled: bool
    """Always false."""
    is_active: bool
    """Always true."""


class InternalConfiguration(msgspec.Struct):
    """Where a broker keeps what it knows."""

    ledgersRootPath: str
    """Always /ledgers."""


class Bookies(msgspec.Struct):
    """The bookies."""

    bookies: list[dict[str, Any]]
    """Always empty."""


class BookieInfo(msgspec.Struct):
    """The rack of a bookie."""

    rack: str | UnsetType = UNSET
    """Its name."""
    hostname: str | UnsetType = UNSET
    """The bookie's host."""


class Metrics(msgspec.Struct):
    """Metrics, and what they are of."""

    metrics: dict[str, Annotated[float, unit("as its name says")]]
    """Numbers by name."""
    dimensions: dict[str, str]
    """What they are of."""


class AllocatorStats(msgspec.Struct):
    """An allocator of memory: there is none."""

    numDirectArenas: Annotated[Int64, unit("arenas")]
    """Always 0."""
    numHeapArenas: Annotated[Int64, unit("arenas")]
    """Always 0."""
    numThreadLocalCaches: Annotated[Int64, unit("caches")]
    """Always 0."""
    normalCacheSize: Annotated[Int64, unit("buffers")]
    """Always 64."""
    smallCacheSize: Annotated[Int64, unit("buffers")]
    """Always 256."""
    usedDirectMemory: _Bytes
    """Always 0."""
    usedHeapMemory: _Bytes
    """Always 0."""
    directArenas: list[dict[str, Any]]
    """Always empty."""
    heapArenas: list[dict[str, Any]]
    """Always empty."""


# -- namespaces


class Bundles(msgspec.Struct):
    """The bundles of a namespace: ranges of the hashes of its topics."""

    boundaries: list[str]
    """Where they begin and end, such as 0x40000000. There is one more than bundles."""
    numBundles: Annotated[Int64, unit("bundles")]
    """How many there are."""


class TopicHashPositions(msgspec.Struct):
    """The hashes of the topics in a bundle."""

    namespace: str
    """The namespace."""
    bundle: str
    """The bundle."""
    topicHashPositions: dict[str, Annotated[Int64, unit("hashes of topics")]]
    """Topic → its hash."""
