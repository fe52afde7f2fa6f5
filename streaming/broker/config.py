"""The broker's configuration (ServiceConfiguration) and the profiles that give its defaults by Pulsar version.

Names are Pulsar's. A difference between versions is a setting here, never a test of the version elsewhere.
"""

import re
from typing import Annotated, Any, Literal, NamedTuple, get_origin, get_type_hints

import msgspec

from schemas.commands.control import Profile
from schemas.commands.parts import LARGEST_BATCH
from streaming.broker import entry_filters
from streaming.broker.setting_names import RELEASED

SchemaCompatibilityStrategy = Literal[
    "UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE", "FULL_TRANSITIVE",
]  # fmt: skip
InactiveTopicDeleteMode = Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]
QuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]

PROTOCOL_VERSION = 21
"""The latest version of Pulsar's binary protocol that Magnetar speaks."""

MOST_PARTITIONS = 10_000
"""Of a partitioned topic. A short record can ask for all their names."""

MOST_PARTITIONS_IN_ALL = 100_000
"""Of all partitioned topics of a broker, since a record can ask for the names of all topics of a namespace, too."""

MOST = 2**31 - 1
"""The largest number of most settings, as in Pulsar."""


class Range(NamedTuple):
    """The numbers that a setting takes: `least` to `most`, and `also`."""

    least: float
    most: float
    also: float | None = None

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and (self.least <= value <= self.most or value == self.also)

    def __str__(self) -> str:
        text = f"{self.least:,} to {self.most:,}".replace("-", "−")
        return text if self.also is None else f"{self.also:,} or {text}"


def between(least: float, most: float, unit: str = "", *, or_: float | None = None) -> msgspec.Meta:
    """The annotation of a setting that takes numbers from `least` to `most`, and `or_`.

    No bound in the sense of msgspec: a state keeps settings that an earlier version took.
    """
    return msgspec.Meta(extra={"range": Range(least, most, or_)} | ({"unit": unit} if unit else {}))


LONGEST = 4096
"""The most characters of a setting that is text."""


class BadSetting(ValueError):
    """The setting doesn't exist in Pulsar, Magnetar can neither apply nor safely ignore it, or its value is invalid."""


class NotSupported(BadSetting):
    """The setting has a value that a real broker may have, and that Magnetar can't apply."""


BROKER_TIMESTAMP = "AppendBrokerTimestampMetadataInterceptor"


_TOPIC, _NAMESPACE = "/{domain}/{tenant}/{namespace}/{topic}", "/namespaces/{tenant}/{namespace}"
_MISSING_IN_4_0 = [
    *(f"{method} {_TOPIC}/subscriptionExpirationTime" for method in ("GET", "POST", "DELETE")),
    *(
        f"{method} {_NAMESPACE}/allowedTopicPropertyKeysForMetrics=405"
        for method in ("GET", "POST", "DELETE")
    ),
    f"GET {_TOPIC}/getMessageIdByIndex",
]
_NO_FIELDS_IN_4_0 = [
    "stats.subscriptions.consumers.keyHashRanges",
    "internalStats.properties",
    "namespace.is_allow_auto_update_schema_with_replicator",
]
_NO_FIELDS_IN_3_0 = [
    *_NO_FIELDS_IN_4_0[1:],
    *(
        f"stats.{field}"
        for field in (
            "bytesOutInternalCounter",
            "systemTopicBytesInCounter",
            "oldestBacklogMessageSubscriptionName",
        )
    ),
    *(
        f"stats.subscriptions.dispatchThrottled{what}EventsBy{level}Limit"
        for what in ("Msg", "Bytes")
        for level in ("Subscription", "Topic", "Broker")
    ),
    "stats.subscriptions.consumers.keyHashRangeArrays",
    "namespace.migrated",
]
_NO_FIELDS_IN_2_10 = [
    *_NO_FIELDS_IN_3_0,
    *(
        f"stats.{field}"
        for field in (
            "ongoingTxnCount", "abortedTxnCount", "committedTxnCount", "backlogQuotaLimitSize", "backlogQuotaLimitTime",
            "oldestBacklogMessageAgeSeconds", "ownerBroker", "delayedMessageIndexSizeInBytes",
        )
    ),
    *(
        f"stats.subscriptions.{field}"
        for field in (
            "msgInReplay", "delayedMessageIndexSizeInBytes", "filterProcessedMsgCount", "filterAcceptedMsgCount",
            "filterRejectedMsgCount", "filterRescheduledMsgCount",
        )
    ),
    *(
        f"stats.subscriptions.consumers.{field}"
        for field in ("lastAckedTime", "lastConsumedTime", "lastConsumedFlowTimestamp")
    ),
    "internalStats.cursors.active",
    "partitions.deleted",
    *(f"namespace.{field}" for field in ("allowed_clusters", "offload_threshold_in_seconds")),
]  # fmt: skip
_MISSING_IN_3_0 = [
    *_MISSING_IN_4_0,
    *(
        f"{method} {of}/dispatcherPauseOnAckStatePersistent{status}"
        for of, status in ((_TOPIC, ""), (_NAMESPACE, "=405"))
        for method in ("GET", "POST", "DELETE")
    ),
    f"DELETE {_TOPIC}/policies",
    "GET /schemas/{tenant}/{namespace}/{topic}/metadata",
    "GET /clusters/{cluster}/migrate=405",
    f"POST {_NAMESPACE}/migration=405",
]
_MISSING_IN_2_10 = [
    *(f"{method} {_NAMESPACE}/entryFilters=405" for method in ("GET", "POST", "DELETE")),
    *(f"{method} {_NAMESPACE}/allowedClusters=405" for method in ("GET", "POST")),
    *(f"{method} {_NAMESPACE}/offloadThresholdInSeconds=405" for method in ("GET", "PUT")),
    f"GET {_NAMESPACE}/{{bundle}}/topicHashPositions",
    *(f"{method} {_TOPIC}/{call}" for call in ("autoSubscriptionCreation", "entryFilters", "{subscription}/dispatchRate")
      for method in ("GET", "POST", "DELETE")),
    *(f"{method} {_TOPIC}/shadowTopics" for method in ("GET", "PUT", "DELETE")),
    *(f"{method} {_TOPIC}/schemaValidationEnforced" for method in ("GET", "POST")),
    *(f"{method} {_TOPIC}/properties=405" for method in ("PUT", "DELETE")),
    f"GET {_TOPIC}/subscription/{{subscription}}/properties=405",
    f"POST {_TOPIC}/subscription/{{subscription}}/analyzeBacklog",
    f"POST {_TOPIC}/trim",
]  # fmt: skip


CLASSIC_RATE_LIMITER = "org.apache.pulsar.broker.service.persistent.DispatchRateLimiterFactoryClassic"
"""See dispatchRateLimiterFactoryClassName."""

RateLimiterFactory = Literal[
    "org.apache.pulsar.broker.service.persistent.DispatchRateLimiterFactoryAsyncTokenBucket",
    "org.apache.pulsar.broker.service.persistent.DispatchRateLimiterFactoryClassic",
]


class ServiceConfiguration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The broker's settings, by Pulsar's names. Defaults are those of profile ``4.x``."""

    # General
    profile: str = "4.x"
    """The profile of the defaults. It comes from the command's field `profile`, not from its `settings`."""
    clusterName: str = "standalone"
    """The cluster's name. Generated producer names start with it."""
    statsUpdateFrequencyInSecs: Annotated[int, between(0, 86_400, "s")] = 60
    """The length of the intervals over which the rates in stats are averaged. Less than 1 counts as 1."""

    exposeConsumerLevelMetricsInPrometheus: bool = False
    """Whether metrics show each consumer, too."""

    # Ledgers and retention
    managedLedgerMaxEntriesPerLedger: Annotated[int, between(1, 1_000_000, "entries")] = 50000
    """A ledger with this many entries is full: it closes, and another one opens."""
    managedLedgerMinLedgerRolloverTimeMinutes: Annotated[float, between(0, MOST, "min")] = 10
    """A full ledger stays open until it is older than this. 0: it closes immediately."""
    managedLedgerMaxLedgerRolloverTimeMinutes: Annotated[float, between(0.01, MOST, "min")] = 240
    """A ledger of this age is full."""
    managedLedgerMaxSizePerLedgerMbytes: Annotated[int, between(1, 1_048_576, "MiB")] = 2048
    """A ledger of this size is full."""
    managedLedgerInactiveLedgerRolloverTimeSeconds: Annotated[int, between(0, MOST, "s")] = 0
    """A ledger that got no entry for longer than this closes at the next retention check. 0: off."""
    retentionCheckIntervalInSeconds: Annotated[int, between(0, MOST, "s")] = 120
    """The interval of the retention check (`consumedLedgers`), which trims ledgers. 0: off."""
    defaultRetentionTimeInMinutes: Annotated[int, between(-1, MOST, "min")] = 0
    """How long ledgers are kept after every subscription has acknowledged them, unless a policy sets it. −1: forever."""
    defaultRetentionSizeInMB: Annotated[int, between(-1, MOST, "MiB")] = 0
    """How much is kept after every subscription has acknowledged it, unless a policy sets it. −1: everything."""

    # Compaction
    brokerServiceCompactionThresholdInBytes: Annotated[int, between(0, 2**62, "bytes")] = 0
    """A topic with more bytes that compaction has not read is compacted by the check, unless a policy sets it. 0: off."""
    brokerServiceCompactionMonitorIntervalInSeconds: Annotated[int, between(0, MOST, "s")] = 60
    """The interval of that check (`compaction`). 0: off."""
    topicCompactionRetainNullKey: bool = False
    """Whether compaction keeps messages without a key. Those of 2.10 and 3.0 do."""

    # Cursors
    managedLedgerDefaultMarkDeleteRateLimit: Annotated[float, between(-1, 1_000_000)] = 1.0
    """How often each cursor's position may be written, in writes per second. A position whose write is delayed trims no
    ledgers until it is written. 0 or less: no limit."""
    managedLedgerCursorPositionFlushSeconds: Annotated[int, between(0, MOST, "s")] = 60
    """The interval of the check (`cursorFlush`) that writes the delayed positions. 0: off."""
    managedLedgerMaxUnackedRangesToPersist: Annotated[int, between(0, 10_000_000)] = 10000
    """At most this many runs of a subscription's individual acks, plus one, survive an unload. Messages acknowledged beyond them are redelivered."""
    managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis: Annotated[
        int, between(-1, MOST, "ms")
    ] = 60000
    """How far clients' clocks may differ when the closing times of ledgers narrow a search by time. −1: the search covers
    all stored entries."""
    acknowledgmentAtBatchIndexLevelEnabled: bool = False
    """Whether single messages of a batch can be acknowledged. If not, a batch is acknowledged as a whole."""

    # Producers
    maxMessageSize: Annotated[int, between(1, 134_217_728, "bytes")] = 5 * 1024 * 1024
    """The largest payload. Chunks may be larger."""
    maxMessagesPerBatch: Annotated[int, between(1, LARGEST_BATCH, "messages")] = 100_000
    """The most messages in a batch. Pulsar limits them in clients only (`batchingMaxMessages`)."""
    maxConcurrentNonPersistentMessagePerConnection: Annotated[int, between(0, 1_000_000, "messages")] = 1000
    """How many messages of a connection may be in flight on a non-persistent topic; further ones are dropped."""
    maxProducersPerTopic: Annotated[int, between(-1, MOST)] = 0
    """The maximum number of producers of a topic. 0: no limit."""
    encryptionRequireOnProducer: bool = False
    """Whether producers must encrypt."""
    brokerDeleteInactiveTopicsEnabled: bool = True
    """Whether the check (`inactiveTopics`) runs that deletes inactive topics, according to their inactiveTopicPolicies."""
    brokerDeleteInactiveTopicsFrequencySeconds: Annotated[int, between(1, MOST, "s")] = 60
    """The interval of that check."""
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds: Annotated[int, between(0, MOST, "s", or_=-1)] = -1
    """How long a topic must be inactive before it is deleted, unless a policy sets it. −1: as long as the interval."""
    brokerDeleteInactiveTopicsMode: InactiveTopicDeleteMode = "delete_when_no_subscriptions"
    """Which topics are deleted, unless a policy sets it: delete_when_no_subscriptions, or delete_when_subscriptions_caught_up."""
    brokerDeleteInactivePartitionedTopicMetadataEnabled: bool = False
    """Whether a partitioned topic is deleted when its last partition was deleted for inactivity. It must have all of its
    partitions in one ingress partition."""
    keepAliveIntervalSeconds: Annotated[int, between(0, 86_400, "s")] = 30
    """For this long after the broker closed a producer, commands that its client still sends to it are ignored. After that, a SEND closes the connection."""

    # Deduplication
    brokerDeduplicationEnabled: bool = False
    """Whether messages are deduplicated by producer name and sequence id."""
    brokerDeduplicationMaxNumberOfProducers: Annotated[int, between(1, 1_000_000)] = 10000
    """How many producers' sequence ids a snapshot holds."""
    brokerDeduplicationEntriesInterval: Annotated[int, between(1, MOST, "entries")] = 1000
    """A snapshot of the sequence ids is taken after this many entries."""
    brokerDeduplicationSnapshotIntervalSeconds: Annotated[int, between(-1, MOST, "s")] = 120
    """The periodic check takes a snapshot if the last one is at least this old. 0 or less: never."""
    brokerDeduplicationSnapshotFrequencyInSeconds: Annotated[int, between(0, MOST, "s")] = 120
    """The interval of that check (`deduplicationSnapshot`). 0: off."""
    brokerDeduplicationProducerInactivityTimeoutMinutes: Annotated[int, between(0, MOST, "min")] = 360
    """The sequence ids of a producer that has been disconnected for longer than this are forgotten. A producer of the short form that
    has published nothing for longer than this leaves, and its sequence ids are forgotten. The check (`inactiveProducers`) runs three
    times in this interval. 0: off."""

    # Topics, subscriptions and dispatch
    subscriptionTypesEnabled: str = "Exclusive,Shared,Failover,Key_Shared"
    """The subscription types that consumers may ask for, separated by commas."""
    allowAutoSubscriptionCreation: bool = True
    """Whether SUBSCRIBE creates a subscription that does not exist. If not, it is refused (SubscriptionNotFound)."""
    allowAutoTopicCreation: bool = True
    """Whether the first use of a topic creates it. If not, it is refused (TopicNotFound)."""
    allowAutoTopicCreationType: Literal["non-partitioned", "partitioned"] = "non-partitioned"
    """What the first use creates: a topic, or a partitioned topic once a client asks for its partitions."""
    defaultNumPartitions: Annotated[int, between(1, MOST_PARTITIONS, "partitions")] = 1
    """The number of partitions of a partitioned topic that its first use creates."""
    isAllowAutoUpdateSchemaEnabled: bool = True
    """Whether producers may add a schema to a topic. If not, they are refused (IncompatibleSchema)."""
    schemaCompatibilityStrategy: SchemaCompatibilityStrategy = "FULL"
    """With which of a topic's schemas a new one must be compatible, and how."""
    isSchemaValidationEnforced: bool = False
    """Whether producers without a schema are refused (IncompatibleSchema) on a topic that has one."""
    maxTopicsPerNamespace: Annotated[int, between(-1, MOST)] = 0
    """The maximum number of topics of a namespace. Each ingress partition counts its own topics. 0: no limit."""
    maxSubscriptionsPerTopic: Annotated[int, between(-1, MOST)] = 0
    """The maximum number of subscriptions of a topic. 0: no limit."""
    maxConsumersPerTopic: Annotated[int, between(-1, MOST)] = 0
    """The maximum number of consumers of a topic. 0: no limit."""
    maxConsumersPerSubscription: Annotated[int, between(-1, MOST)] = 0
    """The maximum number of consumers of a subscription. 0: no limit."""
    maxUnackedMessagesPerConsumer: Annotated[int, between(-1, MOST, "messages")] = 50000
    """A consumer of Shared or Key_Shared with this many unacknowledged messages gets no more. 0 or less: no limit."""
    maxUnackedMessagesPerSubscription: Annotated[int, between(-1, MOST, "messages")] = 200000
    """A Shared or Key_Shared subscription with this many unacknowledged messages gets no more. 0 or less: no limit."""
    dispatcherMaxReadBatchSize: Annotated[int, between(1, 100_000, "entries")] = 100
    """How many entries a dispatcher reads at a time."""
    dispatcherMinReadBatchSize: Annotated[int, between(1, 100_000, "entries")] = 1
    """How many entries a dispatcher reads after a read failed, as at the end of a terminated topic. Each later read may return twice as
    many, up to dispatcherMaxReadBatchSize."""
    dispatcherMaxReadSizeBytes: Annotated[int, between(1, MOST, "bytes")] = 5 * 1024 * 1024
    """How many bytes a dispatcher reads at a time, by the average size of the entries. It reads one entry at least."""
    dispatcherMaxRoundRobinBatchSize: Annotated[int, between(1, 100_000, "entries")] = 20
    """How many entries a consumer of Shared gets in a turn."""
    preciseDispatcherFlowControl: bool = False
    """Whether dispatchers convert permits to entries by the average size of a consumer's batches. If not, an entry counts
    as one message."""
    subscriptionExpirationTimeMinutes: Annotated[int, between(0, MOST, "min")] = 0
    """A durable subscription that has had no consumers for longer than this is deleted. 0: off."""
    subscriptionExpiryCheckIntervalInMinutes: Annotated[int, between(0, MOST, "min")] = 5
    """The interval of that check (`inactiveSubscriptions`). 0: off."""
    activeConsumerFailoverDelayTimeMillis: Annotated[int, between(0, MOST, "ms")] = 1000
    """How long a Failover subscription waits before another consumer takes over."""
    activeConsumerFailoverConsistentHashing: bool = False
    """Whether a hash ring chooses the active consumer on partitions, too. If not, the partition's number does."""
    delayedDeliveryEnabled: bool = True
    """Whether messages wait for their `deliver_at_time`."""
    delayedDeliveryTickTimeMillis: Annotated[int, between(1, 3_600_000, "ms")] = 1000
    """The precision of delivery times, and the minimum time between two checks for delayed messages."""
    isDelayedDeliveryDeliverAtTimeStrict: bool = False
    """Whether no message is delivered before its time. If not, it may come up to a tick early."""
    delayedDeliveryMaxDelayInMillis: Annotated[int, between(0, 10**14, "ms")] = 0
    """A message with a longer delay is refused (NotAllowedError). 0: no limit."""
    delayedDeliveryFixedDelayDetectionLookahead: Annotated[int, between(0, MOST, "messages")] = 50000
    """With this many delayed messages that all have about the same delay, the dispatcher reads no more until one is due.
    0: off."""
    subscriptionBacklogScanMaxEntries: Annotated[int, between(1, 1_000_000, "entries")] = 10_000
    """How many entries an analysis of a backlog looks at before it is aborted."""
    dispatcherEntryFilterRescheduledMessageDelay: Annotated[int, between(0, MOST, "ms")] = 1000
    """How long after a filter rescheduled an entry it judges the entry again. At least 1."""
    entryFilterNames: str = ""
    """The entry filters in force, separated by commas. `PropertyFilter` is built in: a subscription with a property
    ``filter.NAME`` receives only messages whose property NAME has the same value. `entry_filters.register` adds others."""
    maxUnackedMessagesPerBroker: Annotated[int, between(-1, MOST, "messages")] = 0
    """With this many unacknowledged messages in the ingress partition, the subscriptions that have most of them get no
    more, until there are less than half. 0: no limit."""
    maxUnackedMessagesPerSubscriptionOnBrokerBlocked: Annotated[float, between(0, 1)] = 0.16
    """The fraction of `maxUnackedMessagesPerBroker` that a subscription may have while that limit is exceeded."""

    # Transactions
    transactionCoordinatorEnabled: bool = False
    """Whether there are transactions. If not, what concerns one is refused (NotAllowedError)."""
    maxActiveTransactionsPerCoordinator: Annotated[int, between(0, MOST, "transactions")] = 0
    """With this many open transactions, a coordinator does not answer a request for another one, as in Pulsar. 0: no limit of its own, so that
    the server's holds: with 10,000, one is refused."""

    # Rate limits
    maxPublishRatePerTopicInMessages: Annotated[int, between(-1, MOST, "messages/s")] = 0
    """How many messages per second may be published to a topic, unless a policy sets it. 0 or less: no limit."""
    maxPublishRatePerTopicInBytes: Annotated[int, between(-1, 10**15, "bytes/s")] = 0
    """How many bytes per second may be published to a topic, unless a policy sets it. 0 or less: no limit."""
    brokerPublisherThrottlingMaxMessageRate: Annotated[int, between(-1, MOST, "messages/s")] = 0
    """How many messages per second may be published to the topics of an ingress partition. 0 or less: no limit."""
    brokerPublisherThrottlingMaxByteRate: Annotated[int, between(-1, 10**15, "bytes/s")] = 0
    """How many bytes per second may be published to the topics of an ingress partition. 0 or less: no limit."""
    dispatchThrottlingRateInMsg: Annotated[int, between(-1, MOST, "messages/s")] = 0
    """How many messages per second the consumers of an ingress partition get. 0 or less: no limit."""
    dispatchThrottlingRateInByte: Annotated[int, between(-1, 10**15, "bytes/s")] = 0
    """How many bytes per second the consumers of an ingress partition get. 0 or less: no limit."""
    dispatchThrottlingRatePerTopicInMsg: Annotated[int, between(-1, MOST, "messages/s")] = 0
    """How many messages per second the consumers of a topic get, unless a policy sets it. 0 or less: no limit."""
    dispatchThrottlingRatePerTopicInByte: Annotated[int, between(-1, 10**15, "bytes/s")] = 0
    """How many bytes per second the consumers of a topic get, unless a policy sets it. 0 or less: no limit."""
    dispatchThrottlingRatePerSubscriptionInMsg: Annotated[int, between(-1, MOST, "messages/s")] = 0
    """How many messages per second the consumers of a subscription get, unless a policy sets it. 0 or less: no
    limit."""
    dispatchThrottlingRatePerSubscriptionInByte: Annotated[int, between(-1, 10**15, "bytes/s")] = 0
    """How many bytes per second the consumers of a subscription get, unless a policy sets it. 0 or less: no limit."""
    dispatchRateLimiterFactoryClassName: RateLimiterFactory = (
        "org.apache.pulsar.broker.service.persistent.DispatchRateLimiterFactoryAsyncTokenBucket"
    )
    """What gives the permits of dispatch rates. AsyncTokenBucket: when somebody looks for some, and as many as the time since the last look
    is worth; all of them when a policy changes (4.0). Classic: when a window of the period begins, the first one with the
    first message; a change of any policy begins a window without giving permits (3.0)."""
    dispatchThrottlingOnBatchMessageEnabled: bool = False
    """Whether a batch counts as one message in the dispatch rates. If not, its messages count."""
    dispatchThrottlingOnNonBacklogConsumerEnabled: bool = True
    """Whether dispatch rates also limit subscriptions that have caught up: that had fewer entries left to read than
    `managedLedgerCursorBackloggedThreshold` when a consumer joined or when the last interval of stats ended."""
    managedLedgerCursorBackloggedThreshold: Annotated[int, between(-1, MOST, "entries")] = 1000
    """See `dispatchThrottlingOnNonBacklogConsumerEnabled`."""
    subscribeThrottlingRatePerConsumer: Annotated[int, between(-1, MOST, "times")] = 0
    """How often per `subscribeRatePeriodPerConsumerInSecond` a consumer may subscribe, unless a policy sets it. 0 or
    less: no limit."""
    subscribeRatePeriodPerConsumerInSecond: Annotated[int, between(0, MOST, "s")] = 30
    """The period of `subscribeThrottlingRatePerConsumer`. 0: no limit."""

    # Key_Shared
    subscriptionKeySharedEnable: bool = True
    """Whether Key_Shared is allowed."""
    subscriptionKeySharedUseConsistentHashing: bool = True
    """Whether a hash ring divides the keys among consumers. If not, each new consumer halves the widest range."""
    subscriptionKeySharedConsistentHashingReplicaPoints: Annotated[int, between(1, 1_000)] = 100
    """How many points a consumer has on the hash ring."""
    subscriptionKeySharedUseClassicPersistentImplementation: bool = False
    """Whether a new consumer waits until all messages read before it joined are acknowledged (2.x). If not, it waits for
    those of its own keys (4.x)."""
    keySharedLookAheadMsgInReplayThresholdPerConsumer: Annotated[int, between(0, MOST, "messages")] = 2000
    """With this many messages per consumer that wait for their keys' consumers, nothing new is read. 0: off."""
    keySharedLookAheadMsgInReplayThresholdPerSubscription: Annotated[int, between(0, MOST, "messages")] = (
        20000
    )
    """With this many messages that wait for their keys' consumers, nothing new is read. 0: off."""
    keySharedUnblockingIntervalMs: Annotated[int, between(0, 3_600_000, "ms")] = 10
    """How long acks that free a key are collected before messages of that key are sent."""

    # Time to live
    brokerEntryMetadataInterceptors: str = ""
    """AppendBrokerTimestampMetadataInterceptor, with or without its package: entries get the broker's time, which takes
    precedence over the client's publish time. Empty: none."""
    ttlDurationDefaultInSeconds: Annotated[int, between(0, MOST, "s")] = 0
    """Messages older than this expire, unless a policy sets another TTL. 0: never."""
    messageExpiryCheckIntervalInMinutes: Annotated[float, between(0.01, MOST, "min", or_=0)] = 5
    """The interval of the check (`messageExpiry`). 0: off."""

    # Backlog quotas
    backlogQuotaCheckEnabled: bool = True
    """Whether backlog quotas are checked periodically. The creation of a producer checks them in any case."""
    backlogQuotaCheckIntervalInSeconds: Annotated[float, between(1, MOST, "s", or_=0)] = 60
    """The interval of the check (`backlogQuota`). 0: off."""
    backlogQuotaDefaultLimitGB: Annotated[float, between(-1, 1_000_000, "GiB")] = -1
    """The largest backlog of a topic, unless a policy sets it. 0 or less: `backlogQuotaDefaultLimitBytes` applies."""
    backlogQuotaDefaultLimitBytes: Annotated[int, between(-1, 10**15, "bytes")] = -1
    """The largest backlog of a topic, unless a policy sets it. Less than 0: no limit."""
    backlogQuotaDefaultLimitSecond: Annotated[int, between(-1, MOST, "s")] = -1
    """The maximum age of a topic's oldest unacknowledged message, unless a policy sets it. 0 or less: no limit."""
    backlogQuotaDefaultRetentionPolicy: QuotaPolicy = "producer_request_hold"
    """What happens when those limits are exceeded. producer_request_hold and producer_exception close producers and refuse
    new ones. consumer_backlog_eviction removes the oldest messages from the backlog."""
    preciseTimeBasedBacklogQuotaCheck: bool = False
    """Whether the age is that of the oldest message itself. If not, it is the time since its ledger closed."""

    # What one command costs: Pulsar has no setting for this, so the name is Magnetar's.
    maxEffectsPerCommand: Annotated[int, between(0, MOST, "effects")] = 0
    """After this many effects of one command, and of what became due with it, dispatchers put their next reads off until
    the millisecond after it, so that nobody waits long behind it. 0: no limit, as a log that is replayed has nobody who waits."""

    # Mirrored clusters: Pulsar has no setting for this, so the name is Magnetar's.
    shadowTopicFollowsSource: bool = True
    """A shadow topic deletes the ledgers that its source has deleted, messages expire when they do on the source, a MIRROR that resynchronizes
    puts a subscription that differs for two minutes where it is there, and nothing is deleted for being inactive. If false, its own
    policies decide alone, which may be others than the source's."""

    # Differences between Pulsar versions: Pulsar has no settings for these, so the names are Magnetar's.
    activeConsumerFailoverRingForNonPartitioned: bool = True
    """Failover on a topic that is not a partition: a hash ring chooses the active consumer (4.x). If false, the first by
    priority and name is active (2.x)."""
    messageExpirySharedPosition: bool = True
    """TTL: one search over all stored entries finds the position up to which each subscription expires (4.x). If false,
    each subscription is searched separately (2.x)."""
    messageExpiryStopsAtOpenLedger: bool = True
    """The pass over closing times ends before the open ledger (4.x). If false, the open ledger's closing time of 0 counts
    as old (2.x)."""
    backlogSizeWholeLedgers: bool = True
    """A ledger that is acknowledged to its end adds nothing to the backlog size (4.x). If false, the remainder of its size
    divided by its entries stays in it (2.x)."""
    backlogQuotaSkipByFactor: bool = False
    """Size eviction multiplies the entries by the fraction of the backlog over an exact 0.9 of the limit (2.x). If false, it
    truncates the target to bytes and divides last (4.x)."""
    backlogQuotaSparesProducersForDedupCursor: bool = True
    """If the deduplication cursor is the slowest, the check tries a snapshot and keeps producers for that round (4.x). If
    false, it closes them (2.x)."""
    backlogQuotaSkipsFencedTopics: bool = True
    """The quota check leaves fenced topics alone (4.x). If false, it acts on them, too (2.x)."""
    backlogQuotaMessageAge: bool = True
    """Quotas of type message_age have an effect (4.x). If false, they have none (2.x)."""
    deduplicationChecksLastChunkOnly: bool = True
    """Deduplication judges and records the last chunk of a message only (4.x). If false, it judges each, so that all but
    the first are duplicates (2.x). Takes effect when a topic is loaded or a policy changes."""
    retentionWithoutDurableCursor: bool = True
    """Retention holds on topics without a durable cursor (4.x). If false, they keep no closed ledger (2.x)."""
    retentionCheckEveryTopic: bool = True
    """The retention check trims every topic (4.x). If false, only topics with a retention set at some level (2.x)."""
    subscriptionBacklogSizeWithoutAcked: bool = False
    """A subscription's backlogSize leaves out entries that are acknowledged individually (later than 4.0). If false, it
    counts all entries after the mark-delete position."""
    removePendingAcksOnMarkDeleteMove: bool = False
    """If TTL, a skip or an eviction moves a mark-delete position, the entries it passes no longer count as unacknowledged
    by consumers, and Key_Shared reads again. An ack that moves it does neither (later than 4.0). If false, Key_Shared reads again after an
    ack that moves it (4.0)."""
    moveCursorOverConsumedLedger: bool = False
    """At a rollover, and when its topic is loaded, a cursor that is acknowledged to the end of its ledger moves to before
    the next one (later than 4.0). If false, it stays."""
    messageExpiryThroughCursor: bool = True
    """Expiry by age first passes ledgers by their closing times, then searches each subscription's cursor, and an age of 0
    expires nothing (4.0). If false, it searches all stored entries as TTL does, and an age of 0 expires everything (4.2)."""
    countsEntriesOfDeletedLedgers: bool = True
    """A backlog counts the entries of a deleted ledger if its range ends there: on a topic whose ledgers are all deleted, a
    new subscription at Earliest has one (4.0). If false, it counts stored entries only, and internal stats don't count the position
    behind a closed ledger's last entry (4.2). Takes effect when a ledger opens."""
    seekCountsConsumedAnew: bool = False
    """A seek sets a cursor's messagesConsumedCounter anew, so that the backlog is exact after it (4.2). If false, it goes
    on (4.0)."""
    refusedCumulativeAckIsAnError: bool = False
    """A cumulative ack that the cursor refuses, as it would move the mark-delete position back or past the end, gets an error
    if it asks for a response (5.0). If false, it gets none (4.0)."""
    keySharedSpreadsKeyless: bool = True
    """Key_Shared: messages without a key spread over the consumers, by producer and sequence id (4.0). If false, they all
    have one key (3.0)."""
    keySharedRangesByPoint: bool = False
    """Key_Shared: stats show a range of hashes for each point on the hash ring, from 0 (3.0). If false, neighbours of one
    consumer are one range, and the first begins at 1 (4.0)."""
    keySharedModesMustAgree: bool = True
    """Key_Shared: a consumer with another mode than the connected ones, or that allows out-of-order delivery where they
    don't, is refused as busy (4.0). If false, only one without hash ranges among those that have some is refused (3.0)."""
    passedEntriesStayPending: bool = False
    """Entries that TTL or a skip passes stay with their consumer until it acknowledges them (3.0). If false, they are only
    left in its count of unacknowledged messages once the dispatcher reads again (4.0)."""
    passedBatchesAreForgotten: bool = False
    """If the broker moves a reader's cursor, it forgets which messages of the batches before it were acknowledged, so that an ack of such a
    batch counts all of its messages (3.0). If false, it remembers them (4.0)."""
    refusedConsumerLeavesSubscription: bool = False
    """A consumer that is refused because of maxConsumersPerTopic has created its subscription, which stays (2.10). If false, it is refused
    before (3.0)."""
    closesOnAckOfNoEntry: bool = False
    """An individual ACK of the message id `-1:-1` closes the connection (3.0). If false, it has no effect (4.0)."""
    unsubscribeOfReaderFails: bool = False
    """UNSUBSCRIBE of a reader, which goes with it, is answered by PersistenceError (2.10). If false, by Success (3.0)."""
    forceUnsubscribes: bool = True
    """UNSUBSCRIBE with `force` takes the subscription from other consumers, too (4.0). If false, it is refused as one without (3.0)."""
    lastMessageIdOfTerminatedCloses: bool = False
    """GET_LAST_MESSAGE_ID on a terminated topic without an open ledger (opensLedgerOfTerminated) closes the connection (2.10). If false, it is
    answered by UnknownError (3.0)."""
    unblocksConsumerOneAckLate: bool = False
    """maxUnackedMessagesPerConsumer: an ack unblocks a consumer that had at most half of the limit before it (3.0). If false,
    after it (4.0)."""
    highestProtocolVersion: Annotated[int, between(0, PROTOCOL_VERSION)] = PROTOCOL_VERSION
    """The highest version of the binary protocol in CONNECTED. Below 20, CONNECTED names no features, and nobody can watch a list of
    topics (2.10)."""
    missingAdminCalls: str = ",".join(_MISSING_IN_4_0)
    """Calls that the admin API lacks, as ``METHOD /path``, separated by commas. Their answer is 404, or with ``=405`` behind the path 405,
    as the path has another call (2.10, 3.0)."""
    missingAdminFields: str = ",".join(_NO_FIELDS_IN_4_0)
    """Fields that answers of the admin API over HTTP lack, as ``call.path``, separated by commas. The call is `stats`, `internalStats`, `partitions`
    or `namespace`; a list or map on the path stands for each of its values."""
    unsetNamespacePoliciesAre204: bool = False
    """GET of a policy that the namespace does not set, or of peers that a cluster does not have, has the status 204 (2.10). If false, 200,
    without a body, too (3.0)."""
    unsetAffinityIs204: bool = True
    """GET of the bookie affinity or the anti-affinity of a namespace that has none has the status 204 (4.0). If false, 200, without a
    body, too (later)."""
    adminMessageIdsNameBatch: bool = True
    """Message ids in answers of the admin API have a batch index and size (3.0). If false, they have neither (2.10)."""
    listsSystemTopics: bool = False
    """Lists of topics, of the admin API and of GET_TOPICS_OF_NAMESPACE, have system topics such as ``__change_events`` (2.10). If false,
    only calls with ``includeSystemTopic=true`` get them (3.0)."""
    metadataWithoutAutoCreation: bool = True
    """A client that asks for the partitions of a missing topic may say that it doesn't want it, and gets TopicNotFound (3.0). If false,
    the answer is 0 partitions (2.10)."""
    fencesProducers: bool = True
    """Producers may ask for ExclusiveWithFencing (3.0). If false, that is Shared (2.10)."""
    promotesBehindSharedProducers: bool = True
    """A producer that waits for exclusive access gets it when the last shared producer leaves (4.0). If false, it waits on (3.0)."""
    activeConsumerFailoverFirstConnected: bool = False
    """Failover on a topic that is not a partition: the consumer that connected first is active, whatever its name and priority
    (2.10). If false, `activeConsumerFailoverRingForNonPartitioned` says who (3.0)."""
    leavingConsumerCountsRedelivery: bool = False
    """When a consumer of Shared or Key_Shared leaves, the redelivery count of each entry that it held rises (2.10). If false, it
    stays (3.0)."""
    turnsCountMessages: bool = False
    """Shared: dispatcherMaxRoundRobinBatchSize counts messages, and the entries of a consumer's turn are rounded down (3.0). If false, it
    counts entries, and they are rounded up (4.0)."""
    keySharedPointsByNameAlone: bool = False
    """Key_Shared: consumers of one name share their points on the hash ring, and a key's hash chooses among them (2.10). If false,
    each has points of its own (3.0)."""
    keySharedPassesEntriesThatWait: bool = True
    """Key_Shared, classic: entries that no consumer can take are left out when the dispatcher looks for what to send again, and it reads on
    if a consumer that did not join recently has permits (3.0). If false, nothing is read while the first entries to send again wait for
    a consumer that joined recently (2.10)."""
    keySharedLooksAheadAtEnd: bool = True
    """Key_Shared: if nobody can take any entry of a read, the next round may leave out what waits to be sent again even if there is nothing
    more to read (4.0, 5.0). If false, only if there is, or if delivery may be out of order (4.2)."""
    keySharedRemembersHashes: bool = False
    """Key_Shared, classic: the entries that a consumer held keep the hashes of their keys when it leaves or asks for all of them again (3.0).
    If false, they have a hash that no key has, so that newer entries of their keys may overtake them (4.0)."""
    ackOfAnyEntryLowersUnacked: bool = False
    """Shared and Key_Shared: an ack lowers a consumer's count of unacknowledged messages even if no consumer holds the entry, also
    below 0 (2.10). If false, only acks of entries that a consumer holds do (3.0)."""
    keepsChunksTogether: bool = True
    """Shared: all chunks of a message go to the consumer that got the first (3.0). If false, they are dealt like other entries (2.10)."""
    closesPendingAcksOfLeaving: bool = True
    """Shared: a consumer that got the first chunk of a message and left, while others stayed, is sent no more chunks (4.0). If false, it is as long as its
    connection is open (3.0), as it always is if it left last."""
    opensLedgerAtOnce: bool = True
    """When a ledger is full, the next one opens at once (3.0). If false, it opens with the next message: until then the full one stays,
    whatever retention says (2.10)."""
    backlogSizeOfMissingLedgerIsAll: bool = False
    """A subscription whose mark-delete position is in a ledger that is gone has the size of the topic as its backlogSize (2.10). If false,
    the size of what is behind that ledger (3.0)."""
    opensLedgerOfTerminated: bool = True
    """A terminated topic that is loaded again takes its last ledger for the open one (4.0). If false, none is open: no ledger is trimmed any
    more, a skip passes the last one like any other, and no search by time succeeds (3.0). Takes effect when a topic is loaded."""
    trimsLedgerOfSlowestPosition: bool = True
    """Trimming may delete the ledger of the slowest mark-delete position if that is its last entry (3.0). If false, such a ledger stays
    until the next one opens or the topic is loaded (2.10)."""
    waitingReadsReturnEntries: bool = False
    """Shared and Key_Shared: a read that waits for entries returns the first that come, also if no consumer has permits for them any more;
    they are then sent again before others (2.10, 4.2). If false, it returns none, and the next read is for those with permits (3.0, 4.0)."""
    readerStartsAtItsPosition: bool = False
    """The mark-delete position of a reader is the one that it asks for (2.10). If false, the last entry before the first one that it
    reads (3.0)."""
    readsOnInClosedLedger: bool = False
    """The position after the last message is in that message's ledger even if that is closed (2.10). If false, it is the first of the
    next ledger (3.0). Takes effect when a ledger opens."""
    deduplicationReplayCounts: bool = True
    """The messages that deduplication reads again when a topic is loaded count for `brokerDeduplicationEntriesInterval`, so that a
    snapshot may follow (3.0). If false, they don't (2.10)."""
    nonPersistentCountsUnacked: bool = False
    """Shared and Key_Shared on non-persistent topics: what a consumer got counts as unacknowledged until an ack (2.10). If false, nothing
    does (3.0)."""
    nonPersistentSubscriptionsStay: bool = False
    """A durable non-persistent subscription stays when its last consumer leaves (3.0). If false, it goes with the last one (4.0)."""
    nonPersistentKeepsPermits: bool = True
    """Shared on non-persistent topics: the permits of a consumer that leaves stay in the total of all, while others remain (4.0). If false,
    they go with it (4.2)."""
    limitsDeliveryDelays: bool = True
    """`maxDeliveryDelayInMillis` of the policy `delayedDelivery` has an effect (4.0). If false, it has none (3.0)."""
    publishRatesInWindows: bool = False
    """Publish rates count in seconds that follow each other, and a broker looks every 10 ms whether one was exceeded, or 50 ms for that of the
    broker; then it reads no more of who publishes until the second is over (3.0). If false, they are buckets of permits (4.0)."""
    preciseTopicPublishRateLimiterEnable: bool = False
    """With `publishRatesInWindows`: whether the message that reaches a topic's rate is noticed at once. What was too much counts in the next
    second, too. Without effect from 4.0 on."""
    retentionKeepsEmptyTopics: bool = False
    """An inactive topic is kept for its retention time even if it has no entries (3.0). If false, only while it has some (4.0)."""
    readsByLedgerSizes: bool = True
    """How many entries a read returns at most for dispatcherMaxReadSizeBytes: by the average entry of each ledger (4.0). If false, by the
    average of the entries published in the last interval of stats, else of those that the cursor has read, else one (3.0)."""
    readsWithoutLedgers: bool = False
    """A read on a terminated topic that has no ledger left tells consumers that they have reached the end (4.2). If false, it fails without
    a word where `readsByLedgerSizes` is true (4.0); where that is false, it tells them (3.0)."""
    trimMovesToNextLedger: bool = False
    """A cursor in a ledger that is trimmed moves to before the first entry of the next one, if that has entries or when the topic is
    loaded (2.10). If false, to the last entry of the ledgers that are trimmed (3.0)."""
    messageExpiryOnEachPolicyUpdate: bool = True
    """A change of any policy of a topic or its namespace expires messages at once (4.0, 5.0). If false, only one that changes the TTL in force
    to another positive one (4.2)."""
    messageExpiryPassesClosedLedgers: bool = True
    """Expiry by age, through each subscription's cursor, first passes the ledgers that closed before the time (3.0). If false, it only
    searches (2.10)."""
    keepOldestPositionWhenUnknown: bool = True
    """Age quota: if the age becomes unknown, the last known age applies until there is no backlog (4.0). If false, no age
    applies (later)."""
    delayedDeliveryRoundsTimes: bool = False
    """Delivery times are rounded down to a multiple of the largest power of two in the tick (later than 4.0). If false,
    they are exact (4.0)."""
    trimAtRolloverSparesClosedLedger: bool = True
    """Without a durable cursor, a rollover that finds no older ledger to trim keeps the one it closed. If false, it trims that ledger,
    too (docs/rules/retention.md §3)."""
    compactionCountsMetadata: bool = True
    """Compaction: the value of a message whose metadata has no `uncompressed_size` counts with its metadata, so that an empty one does not
    delete its key (4.0). If false, its payload alone counts (3.0, 4.2)."""
    compactionSeesNullValues: bool = False
    """Compaction: a message whose metadata has `null_value` deletes its key, whatever its size (4.2). If false, its size alone counts (4.0)."""
    compactionNeedsNewMessages: bool = False
    """Compaction without a message since the last one does nothing (4.2). If false, it goes through what that kept, and its horizon goes back (4.0)."""
    compactionSeekKeepsMarkDelete: bool = False
    """Compaction goes through what is new from its beginning twice, as its seek leaves the mark-delete position where it is (4.2). If false, the
    second time begins at the first message that may stay (4.0)."""
    lastOfNothingHasIndex: bool = False
    """GET_LAST_MESSAGE_ID of a consumer of compacted data of which nothing was kept has `batch_index` 0 (4.2). If false, −1 (4.0)."""
    compactedBatchesNameMessages: bool = False
    """Compaction: the metadata of a batch names the messages that stayed, in `compacted_batch_indexes` (4.2). If false, it does not (4.0)."""
    findsCompactedByTime: bool = True
    """The admin call for a message id by time finds messages of the compacted ledger (4.0). If false, only those that the topic has (3.0)."""
    compactionCountsSingleMessages: bool = True
    """Compaction: nothing of a batch can stay if all of its messages are empty values (3.0). If false, already if one of them is: such batches
    at the beginning and at the end of what is compacted go, whatever else they have (2.10)."""
    compactedReadsTakeOneMore: bool = False
    """A read of compacted data returns one entry more than the consumer's permits allow, whatever `dispatcherMaxReadSizeBytes` says (2.10). If false,
    what both allow (3.0)."""
    durableReadsBeginAnew: bool = False
    """The first read of compacted data by a durable consumer begins at the first of it, whatever its cursor says (2.10). If false, only as long as
    the cursor has not moved within a ledger (3.0)."""
    compactionSubscriptionExpires: bool = False
    """`expireMessages` for all subscriptions is for that of compaction, too (2.10). If false, it leaves that alone (3.0)."""
    compactedDataGoesWithSubscription: bool = True
    """What was compacted goes when the subscription `__compaction` is deleted (3.0). If false, readers get it until the topic is loaded again (2.10)."""
    lastMessageIdIsReadable: bool = True
    """GET_LAST_MESSAGE_ID tells the last message that the consumer may read (3.0). If false, the last entry of the topic, also if that is a marker or
    held back by a transaction; or the last kept message of a compacted topic that has got nothing since, also to who reads all (2.10)."""
    refusedTransactionsStay: bool = True
    """After a topic has refused a message because its transaction had ended, it refuses all messages in transactions until it is loaded again
    (4.0). If false, only those of ended ones (3.0, 4.2)."""
    limitsActiveTransactions: bool = True
    """`maxActiveTransactionsPerCoordinator` has an effect (3.0). If false, it has none (2.10)."""
    errorsNameTransactions: bool = True
    """An error that answers ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN or END_TXN has the number of the transaction, `txnid_least_bits` (3.0). If
    false, only that of its coordinator (2.10)."""
    abortedCumulativeAckIsSentAgain: bool = False
    """While a transaction has a cumulative ack on a subscription, each transaction that is aborted there makes the broker send again what is not
    acknowledged (2.10). If false, none does (3.0)."""
    pendingAcksCountAsSent: bool = False
    """An entry that is not sent, since a transaction has acknowledged it, costs permits and counts as sent and unacknowledged all the same (2.10). If
    false, it does not count (3.0)."""
    producersReadyTopicForAborts: bool = False
    """On a topic that has had a producer with `txn_enabled`, an abort writes a marker also if no message was sent (3.0). If false, only on one that
    has had a message of a transaction (4.0)."""
    originalPrincipalsAreAsked: bool = False
    """Authorization: an admin call whose `X-Original-Principal` is another role is made if both roles may (4.2). If false, it is refused (4.0)."""
    adminCallsAskByOperation: bool = True
    """Authorization: calls on brokers, clusters and tenants ask for an operation, which their refusal names, and a tenant's admins may make those on
    it (4.0). If false, they ask for a superuser, and some calls on topics ask for a lookup before all else (3.0)."""
    namespacesMustExist: bool = False
    """Tenants and namespaces must be created before they are used, and topics before they get policies, as in Pulsar. If
    false, every valid name exists, so that a log needs no calls that create them."""
    partitionsMustIncrease: bool = False
    """A partitioned topic is given more partitions than it has, or the call is refused with 409; the new ones get the subscriptions of the
    first one (2.10). If false, the number may stay, and every partition gets those that it lacks (3.0)."""
    useRecreatesPartitions: bool = True
    """A partition that was deleted is created by its use also where use creates no topics, as long as its partitioned topic has it (4.0). If
    false, it is not (3.0)."""
    trimLedgerAckedToItsEnd: bool = True
    """A closed ledger whose last entry is the slowest mark-delete position may be trimmed (4.x). If false, it stays until
    that position is in the next one (2.x)."""
    defaultNumberOfNamespaceBundles: Annotated[int, between(1, 1024)] = 4
    """How many bundles a namespace gets that is created without saying so. Bundles only name topics here."""
    forceDeleteNamespaceAllowed: bool = False
    """Whether `DELETE` of a namespace with `?force=true` deletes its topics, too. If not, it is refused with 405."""
    forceDeleteTenantAllowed: bool = False
    """Whether `DELETE` of a tenant with `?force=true` deletes its namespaces, too, for which forceDeleteNamespaceAllowed must be true. If
    not, it is refused with 405."""
    maxNumPartitionsPerPartitionedTopic: Annotated[int, between(0, MOST, "partitions")] = 0
    """The most partitions that a call may give a partitioned topic. 0: no limit, but that of Magnetar, 10,000."""
    maxNamespacesPerTenant: Annotated[int, between(0, MOST)] = 0
    """A tenant with more namespaces than this gets no further one, so there may be one more. 0: no limit."""
    maxConsumerMetadataSize: Annotated[int, between(0, MOST)] = 1024
    """A consumer whose metadata has more characters than this, keys and values together, is refused (MetadataError)."""

    @property
    def most_partitions(self) -> int:
        """The most partitions that a call may give a partitioned topic."""
        return min(self.maxNumPartitionsPerPartitionedTopic or MOST_PARTITIONS, MOST_PARTITIONS)

    def as_texts(self) -> dict[str, str]:
        """All settings as in broker.conf."""
        defaults = zip(self.__struct_fields__, self.__struct_defaults__, strict=True)
        return {name: _text(getattr(self, name), default) for name, default in defaults}


def _text(value: Any, default: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # Pulsar's integers may be fractions here, so that tests need not wait for minutes.
    is_whole = isinstance(value, float) and not isinstance(default, float) and value.is_integer()
    return str(int(value) if is_whole else value)


_HINTS = get_type_hints(ServiceConfiguration, include_extras=True)
RANGES: dict[str, Range] = {
    name: hint.__metadata__[0].extra["range"]
    for name, hint in _HINTS.items()
    if get_origin(hint) is Annotated
}
"""The numbers that each setting takes, by its name."""

_SHOWN = 60
"""Characters of a bad value in an error."""

_LONG = 80
"""A longer text of a setting is a list, see `abbreviated`."""

_FROM_4_2: dict[str, Any] = {
    "compactionCountsMetadata": False,
    "compactedBatchesNameMessages": True,
    "compactionSeesNullValues": True,
    "compactionNeedsNewMessages": True,
    "compactionSeekKeepsMarkDelete": True,
    "lastOfNothingHasIndex": True,
    "originalPrincipalsAreAsked": True,
    "refusedTransactionsStay": False,
    "missingAdminCalls": "",
    "missingAdminFields": ",".join((_NO_FIELDS_IN_4_0[0], _NO_FIELDS_IN_4_0[2])),
    "unsetAffinityIs204": False,
    "acknowledgmentAtBatchIndexLevelEnabled": True,
    "removePendingAcksOnMarkDeleteMove": True,
    "moveCursorOverConsumedLedger": True,
    "keepOldestPositionWhenUnknown": False,
    "delayedDeliveryRoundsTimes": True,
    "messageExpiryThroughCursor": False,
    "countsEntriesOfDeletedLedgers": False,
    "seekCountsConsumedAnew": True,
    "waitingReadsReturnEntries": True,
    "readsWithoutLedgers": True,
    "nonPersistentKeepsPermits": False,
}


def _beyond_defaults(profile: dict[str, Any]) -> dict[str, Any]:
    defaults = ServiceConfiguration()
    return {name: value for name, value in profile.items() if value != getattr(defaults, name)}


_BEFORE_4_0: dict[str, Any] = {
    "producersReadyTopicForAborts": True,
    "adminCallsAskByOperation": False,
    "findsCompactedByTime": False,
    "compactionCountsMetadata": False,
    "refusedTransactionsStay": False,
    "missingAdminCalls": ",".join(_MISSING_IN_3_0),
    "missingAdminFields": ",".join(_NO_FIELDS_IN_3_0),
    "promotesBehindSharedProducers": False,
    "turnsCountMessages": True,
    "readsByLedgerSizes": False,
    "nonPersistentSubscriptionsStay": True,
    "limitsDeliveryDelays": False,
    "publishRatesInWindows": True,
    "retentionKeepsEmptyTopics": True,
    "subscriptionKeySharedUseClassicPersistentImplementation": True,
    "keepOldestPositionWhenUnknown": False,
    "backlogQuotaSkipByFactor": True,
    "backlogQuotaSkipsFencedTopics": False,
    "managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis": -1,
    "messageExpirySharedPosition": False,
    "closesPendingAcksOfLeaving": False,
    "keySharedSpreadsKeyless": False,
    "keySharedRemembersHashes": True,
    "keySharedRangesByPoint": True,
    "keySharedModesMustAgree": False,
    "unblocksConsumerOneAckLate": True,
    "passedEntriesStayPending": True,
    "closesOnAckOfNoEntry": True,
    "forceUnsubscribes": False,
    "passedBatchesAreForgotten": True,
    "opensLedgerOfTerminated": False,
    "useRecreatesPartitions": False,
    "dispatchRateLimiterFactoryClassName": CLASSIC_RATE_LIMITER,
    "topicCompactionRetainNullKey": True,
}

_BEFORE_3_0: dict[str, Any] = _BEFORE_4_0 | {
    "compactionCountsSingleMessages": False,
    "compactedReadsTakeOneMore": True,
    "durableReadsBeginAnew": True,
    "compactionSubscriptionExpires": True,
    "compactedDataGoesWithSubscription": False,
    "limitsActiveTransactions": False,
    "errorsNameTransactions": False,
    "abortedCumulativeAckIsSentAgain": True,
    "pendingAcksCountAsSent": True,
    "lastMessageIdIsReadable": False,
    "unsubscribeOfReaderFails": True,
    "lastMessageIdOfTerminatedCloses": True,
    "highestProtocolVersion": 19,
    "missingAdminCalls": ",".join((*_MISSING_IN_3_0, *_MISSING_IN_2_10)),
    "missingAdminFields": ",".join(_NO_FIELDS_IN_2_10),
    "unsetNamespacePoliciesAre204": True,
    "refusedConsumerLeavesSubscription": True,
    "adminMessageIdsNameBatch": False,
    "listsSystemTopics": True,
    "metadataWithoutAutoCreation": False,
    "fencesProducers": False,
    "activeConsumerFailoverFirstConnected": True,
    "leavingConsumerCountsRedelivery": True,
    "keySharedPointsByNameAlone": True,
    "keySharedPassesEntriesThatWait": False,
    "opensLedgerAtOnce": False,
    "messageExpiryPassesClosedLedgers": False,
    "trimMovesToNextLedger": True,
    "trimsLedgerOfSlowestPosition": False,
    "readsOnInClosedLedger": True,
    "waitingReadsReturnEntries": True,
    "readerStartsAtItsPosition": True,
    "nonPersistentCountsUnacked": True,
    "deduplicationReplayCounts": False,
    "ackOfAnyEntryLowersUnacked": True,
    "keepsChunksTogether": False,
    "unblocksConsumerOneAckLate": False,
    "deduplicationChecksLastChunkOnly": False,
    "backlogQuotaSparesProducersForDedupCursor": False,
    "backlogSizeOfMissingLedgerIsAll": True,
    "partitionsMustIncrease": True,
}

PROFILES: dict[Profile, dict[str, Any]] = {
    "2.10": _beyond_defaults(_BEFORE_3_0),
    "3.0": _BEFORE_4_0,
    "4.0": {},
    "4.2": _FROM_4_2 | {"keySharedLooksAheadAtEnd": False, "messageExpiryOnEachPolicyUpdate": False},
    "5.0": _FROM_4_2
    | {
        "missingAdminFields": ",".join(_NO_FIELDS_IN_4_0[:2]),
        "refusedCumulativeAckIsAnError": True,
        "keySharedLookAheadMsgInReplayThresholdPerConsumer": 4000,
        "keySharedLookAheadMsgInReplayThresholdPerSubscription": 40_000,
        "managedLedgerMaxUnackedRangesToPersist": 200_000,
    },
    "2.x": _beyond_defaults(
        _BEFORE_3_0
        | {
            "activeConsumerFailoverFirstConnected": False,
            "activeConsumerFailoverRingForNonPartitioned": False,
            "messageExpiryPassesClosedLedgers": True,
            "messageExpiryStopsAtOpenLedger": False,
            "backlogSizeWholeLedgers": False,
            "backlogQuotaMessageAge": False,
            "retentionWithoutDurableCursor": False,
            "retentionCheckEveryTopic": False,
            "trimLedgerAckedToItsEnd": False,
        }
    ),
}

"""What each profile sets, beyond the defaults. All but 2.x are release lines of Pulsar; 5.0 is a preview of one."""

LINES: tuple[Profile, ...] = tuple(profile for profile in PROFILES if profile != "2.x")
"""Those of release lines, ascending."""

PROFILE_OF: dict[str, Profile] = {**{profile: profile for profile in PROFILES}, "4.x": "4.0"}
"""The profile that each name stands for."""

RELEASES: dict[Profile, str] = {
    "2.10": "2.10.5", "3.0": "3.0.7", "4.0": "4.0.7", "4.2": "4.2.4", "5.0": "5.0.0-M1", "2.x": "2.10.5"
}  # fmt: skip
"""The release that each profile is compared with, and for 2.x that of the profile it is built on. Clients are told that version."""

WITHOUT_EFFECT = RELEASED.union(["messageExpirySearchActiveEntries"]).difference(
    ServiceConfiguration.__struct_fields__
)
"""Settings of a real broker that have no effect here (caches, storage, TLS, load balancing, …), and one of Magnetar 0.1.0."""

PASSED_ON = ("bookkeeper_", "brokerClient_", "dbStorage_")
"""Begin the names of settings that a broker passes on to its BookKeeper client, its own Pulsar client, and its bookie."""

ONLY: dict[str, tuple[str, str]] = {
    "enablePersistentTopics": ("true", "brokers without persistent topics are"),
    "enableNonPersistentTopics": ("true", "brokers without non-persistent topics are"),
    "subscriptionRedeliveryTrackerEnabled": ("true", "subscriptions that count no redeliveries are"),
    "subscriptionSharedUseClassicPersistentImplementation": ("false", "the classic implementation of Shared is"),
    "dispatchThrottlingRateRelativeToPublishRate": ("false", "dispatch rates of the broker that are relative to the publish rate are"),
    "streamingDispatch": ("false", "streaming dispatch is"),
    "maxSameAddressProducersPerTopic": ("0", "limits by address are"),
    "maxSameAddressConsumersPerTopic": ("0", "limits by address are"),
    "topicLevelPoliciesEnabled": ("true", "brokers without policies of topics are"),
    "systemTopicEnabled": ("true", "brokers without system topics, and so without policies of topics, are"),
    "dispatcherPauseOnAckStatePersistentEnabled": ("false", "pauses of delivery because of acks that can't be written are"),
    "strictlyVerifySubscriptionName": ("false", "stricter names of subscriptions are"),
    "maxTenants": ("0", "limits of tenants are"),
    "brokerInterceptors": ("", "broker interceptors are"),
    "httpRequestsFailOnUnknownPropertiesEnabled": ("false", "admin calls that fail because of unknown fields are"),
    "brokerEntryPayloadProcessors": ("", "payload processors are"),
}  # fmt: skip
"""Settings without effect that change what a broker does if they have another value than this, and what is not supported then."""


_TYPES = ServiceConfiguration().subscriptionTypesEnabled.split(",")


def is_known(name: str) -> bool:
    """Whether a real broker, or Magnetar, has a setting of this name."""
    return name in ServiceConfiguration.__struct_fields__ or is_without_effect(name)


def is_without_effect(name: str) -> bool:
    """Whether a real broker has a setting of this name that has no effect here."""
    return name in WITHOUT_EFFECT or name.startswith(PASSED_ON)


def _as_given(name: str, value: Any) -> Any:
    """A value without what Java adds: ``[a, b]`` is a list, and spaces around a value do not count. None: it is not set.

    Empty, a setting is not set, as in Pulsar, but a list is.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    if "," in text:
        parts = [part.strip() for part in text.split(",")]
        if name == "subscriptionTypesEnabled":  # a set, which Java shows in any order
            parts.sort(key=lambda part: _TYPES.index(part) if part in _TYPES else len(_TYPES))
        text = ",".join(parts)
    is_text = _HINTS.get(name) is str and name != "clusterName"
    return text if text not in ("", "null") or (is_text and text == "") else None


def changes(before: Profile, after: Profile) -> dict[str, tuple[Any, Any]]:
    """The settings whose defaults differ between two profiles, and both values."""
    first, second = (configuration(profile, {}) for profile in (before, after))
    found = {
        name: (getattr(first, name), getattr(second, name)) for name in ServiceConfiguration.__struct_fields__
    }
    return {name: values for name, values in found.items() if values[0] != values[1] and name != "profile"}


def abbreviated(text: str) -> str:
    """The text of a setting. Of a long list, how many items it has."""
    return text if len(text) <= _LONG or "," not in text else f"{text.count(',') + 1} of them"


def setting_text(value: Any) -> str:
    """The value of a setting, for people."""
    return abbreviated(value if isinstance(value, str) and value else msgspec.json.encode(value).decode())


def profile_of(version: str) -> Profile:
    """The profile for a broker's version, such as ``4.0.7`` or ``5.0.0-M1``: that of its release line, else the nearest. 4.0 for
    what is no version of Pulsar 2 or later."""
    major, minor, *_ = map(int, (*re.findall(r"\d+", version), 0, 0))
    if major < 2:
        return "4.0"

    def distance(profile: str) -> tuple[int, int]:
        line = profile.split(".")
        return abs(major - int(line[0])), abs(minor - int(line[1]))

    return min(LINES, key=distance)


def stand_in(version: str) -> str | None:
    """If no profile is that of a broker's release line: which one stands in for it, in words."""
    profile = profile_of(version)
    if re.match(rf"{re.escape(profile)}(?!\d)", version):
        return None
    return f"a profile of Pulsar {version[:_SHOWN]}: that of {profile}, the nearest, stands in"


def configuration(profile: str, settings: dict[str, Any]) -> ServiceConfiguration:
    """The defaults of `profile`, overridden by `settings`. Values may be strings, as in broker.conf.

    Raises `BadSetting` with the name of the setting.
    """
    known = ServiceConfiguration.__struct_fields__
    if "profile" in settings:
        raise BadSetting("the profile is not a setting: give it separately")
    if unknown := sorted(name for name in settings if not is_known(name)):
        raise BadSetting(f"unknown broker settings: {', '.join(unknown)}")
    given = {}
    for name, value in settings.items():
        if isinstance(value, str) and len(value) > LONGEST and name in known:
            raise NotSupported(
                f"broker setting {name}: {len(value):,} characters, at most {LONGEST:,} are allowed"
            )
        if name in ONLY:
            _check_only(name, value)
        elif name in known and (found := _as_given(name, value)) is not None:
            given[name] = found
    interceptors = str(given.get("brokerEntryMetadataInterceptors", ""))
    if [name for name in interceptors.split(",") if name and not name.endswith(BROKER_TIMESTAMP)]:
        raise NotSupported(f"brokerEntryMetadataInterceptors: only {BROKER_TIMESTAMP} is supported")
    filters = str(given.get("entryFilterNames", ""))
    if missing := [name for name in filters.split(",") if name and not entry_filters.known(name)]:
        raise NotSupported(f"unknown entry filters: {', '.join(missing)}")
    try:
        config = msgspec.convert(
            {**PROFILES[PROFILE_OF[profile]], **given, "profile": profile},
            ServiceConfiguration,
            strict=False,
        )
    except msgspec.ValidationError as error:
        cause, _, path = str(error).rpartition(" - at `$.")
        raise _bad(path.removesuffix("`"), given, cause) from None
    for name, allowed in RANGES.items():
        if name in given and getattr(config, name) not in allowed:
            raise NotSupported(str(_bad(name, given, "")))
    return config


def _check_only(name: str, value: Any) -> None:
    allowed, what = ONLY[name]
    given = str(value if (value := _as_given(name, value)) is not None else allowed).lower()
    if given != allowed:
        raise NotSupported(f"{name}: {what} not supported")


def _bad(name: str, given: dict[str, Any], cause: str) -> BadSetting:
    """The error for the value of a setting: what was expected, or else the `cause` in msgspec's words."""
    if name in RANGES:
        kind = "an integer" if _HINTS[name].__origin__ is int else "a number"
        unit = _HINTS[name].__metadata__[0].extra.get("unit", "")
        cause = f"expected {kind}, {RANGES[name]} {unit}".rstrip()
    shown = f"{given.get(name)!r}"[:_SHOWN]
    return BadSetting(f"broker setting {name}: {shown}: {cause}")
