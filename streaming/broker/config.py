"""The broker's configuration (ServiceConfiguration) and the profiles that give its defaults by Pulsar version.

Names are Pulsar's. A difference between versions is a setting here, never a test of the version elsewhere.
"""

from typing import Annotated, Any, Literal

import msgspec

from schemas.units import unit
from streaming.broker import entry_filters

QuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]

Millis = Annotated[int, unit("ms")]
Seconds = Annotated[int, unit("s")]
FractionalSeconds = Annotated[float, unit("s")]
Minutes = Annotated[int, unit("min")]
FractionalMinutes = Annotated[float, unit("min")]
Bytes = Annotated[int, unit("bytes")]
Mebibytes = Annotated[int, unit("MiB")]
Gibibytes = Annotated[float, unit("GiB")]
Entries = Annotated[int, unit("entries")]
Messages = Annotated[int, unit("messages")]


class BadSetting(ValueError):
    """The setting doesn't exist in Pulsar, Magnetar can neither apply nor safely ignore it, or its value is invalid."""


BROKER_TIMESTAMP = "AppendBrokerTimestampMetadataInterceptor"

LARGEST = 10**15
"""The largest number in a configuration. It keeps times in any unit within 64 bits as milliseconds."""


class ServiceConfiguration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The broker's settings, by Pulsar's names. Defaults are those of profile ``4.x``."""

    # General
    profile: str = "4.x"
    """The profile of the defaults. It comes from the command's field `profile`, not from its `settings`."""
    clusterName: str = "standalone"
    """The cluster's name. Generated producer names start with it."""
    statsUpdateFrequencyInSecs: Seconds = 60
    """The length of the intervals over which the rates in stats are averaged. Less than 1 counts as 1."""

    # Ledgers and retention
    managedLedgerMaxEntriesPerLedger: Entries = 50000
    """A ledger with this many entries is full: it closes, and another one opens."""
    managedLedgerMinLedgerRolloverTimeMinutes: FractionalMinutes = 10
    """A full ledger stays open until it is older than this. 0: it closes immediately."""
    managedLedgerMaxLedgerRolloverTimeMinutes: FractionalMinutes = 240
    """A ledger of this age is full."""
    managedLedgerMaxSizePerLedgerMbytes: Mebibytes = 2048
    """A ledger of this size is full."""
    managedLedgerInactiveLedgerRolloverTimeSeconds: Seconds = 0
    """A ledger that got no entry for longer than this closes at the next retention check. 0: off."""
    retentionCheckIntervalInSeconds: Seconds = 120
    """The interval of the retention check (`consumedLedgers`), which trims ledgers. 0: off."""
    defaultRetentionTimeInMinutes: Minutes = 0
    """How long ledgers are kept after every subscription has acknowledged them, unless a policy says so. −1: forever."""
    defaultRetentionSizeInMB: Mebibytes = 0
    """How much is kept after every subscription has acknowledged it, unless a policy says so. −1: everything."""

    # Cursors
    managedLedgerDefaultMarkDeleteRateLimit: float = 1.0
    """How often each cursor's position may be written, in writes per second. A position whose write is delayed trims no
    ledgers until it is written. 0 or less: no limit."""
    managedLedgerCursorPositionFlushSeconds: Seconds = 60
    """The interval of the check (`cursorFlush`) that writes the delayed positions. 0: off."""
    managedLedgerMaxUnackedRangesToPersist: int = 10000
    """How many runs of individual acks of a subscription survive an unload. Messages acknowledged beyond them are
    delivered again."""
    managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis: Millis = 60000
    """How far clients' clocks may differ when the closing times of ledgers narrow a search by time. −1: the search covers
    all stored entries."""
    acknowledgmentAtBatchIndexLevelEnabled: bool = False
    """Whether single messages of a batch can be acknowledged. If not, a batch is acknowledged as a whole."""

    # Producers
    maxMessageSize: Bytes = 5 * 1024 * 1024
    """The largest payload. Chunks may be larger."""
    maxConcurrentNonPersistentMessagePerConnection: Messages = 1000
    """How many messages of a connection may be in flight on a non-persistent topic; further ones are dropped."""
    maxProducersPerTopic: int = 0
    """The maximum number of producers of a topic. 0: no limit."""
    encryptionRequireOnProducer: bool = False
    """Whether producers must encrypt."""
    keepAliveIntervalSeconds: Seconds = 30
    """For this long after the broker closed a producer, what its client still sends is ignored. After it, a SEND closes
    the connection."""

    # Deduplication
    brokerDeduplicationEnabled: bool = False
    """Whether messages are deduplicated by producer name and sequence id."""
    brokerDeduplicationMaxNumberOfProducers: int = 10000
    """How many producers' sequence ids a snapshot holds."""
    brokerDeduplicationEntriesInterval: Entries = 1000
    """A snapshot of the sequence ids is taken after this many entries."""
    brokerDeduplicationSnapshotIntervalSeconds: Seconds = 120
    """The periodic check takes a snapshot if the last one is at least this old. 0 or less: never."""
    brokerDeduplicationSnapshotFrequencyInSeconds: Seconds = 120
    """The interval of that check (`deduplicationSnapshot`). 0: off."""
    brokerDeduplicationProducerInactivityTimeoutMinutes: Minutes = 360
    """The sequence ids of a producer that has been disconnected for longer than this are forgotten. The check
    (`inactiveProducers`) runs three times in this interval. 0: off."""

    # Topics, subscriptions and dispatch
    subscriptionTypesEnabled: str = "Exclusive,Shared,Failover,Key_Shared"
    """The subscription types that consumers may ask for, separated by commas."""
    allowAutoSubscriptionCreation: bool = True
    """Whether SUBSCRIBE creates a subscription that does not exist. If not, it is refused (SubscriptionNotFound)."""
    allowAutoTopicCreation: bool = True
    """Whether use creates a topic that does not exist. If not, it is refused (TopicNotFound)."""
    maxTopicsPerNamespace: int = 0
    """The maximum number of topics of a namespace. Each ingress partition counts its own topics. 0: no limit."""
    maxSubscriptionsPerTopic: int = 0
    """The maximum number of subscriptions of a topic. 0: no limit."""
    maxConsumersPerTopic: int = 0
    """The maximum number of consumers of a topic. 0: no limit."""
    maxConsumersPerSubscription: int = 0
    """The maximum number of consumers of a subscription. 0: no limit."""
    maxUnackedMessagesPerConsumer: Messages = 50000
    """A consumer of Shared or Key_Shared with this many unacknowledged messages gets no more. 0 or less: no limit."""
    maxUnackedMessagesPerSubscription: Messages = 200000
    """A Shared or Key_Shared subscription with this many unacknowledged messages gets no more. 0 or less: no limit."""
    dispatcherMaxReadBatchSize: Entries = 100
    """How many entries a dispatcher reads at a time."""
    dispatcherMaxRoundRobinBatchSize: Entries = 20
    """How many entries a consumer of Shared gets in a turn."""
    preciseDispatcherFlowControl: bool = False
    """Whether dispatchers convert permits to entries by the average size of a consumer's batches. If not, an entry counts
    as one message."""
    subscriptionExpirationTimeMinutes: Minutes = 0
    """A durable subscription that has had no consumers for longer than this is deleted. 0: off."""
    subscriptionExpiryCheckIntervalInMinutes: Minutes = 5
    """The interval of that check (`inactiveSubscriptions`). 0: off."""
    activeConsumerFailoverDelayTimeMillis: Millis = 1000
    """How long a Failover subscription waits before another consumer takes over."""
    activeConsumerFailoverConsistentHashing: bool = False
    """Whether a hash ring chooses the active consumer on partitions, too. If not, the partition's number does."""
    delayedDeliveryEnabled: bool = True
    """Whether messages wait for their `deliver_at_time`."""
    delayedDeliveryTickTimeMillis: Millis = 1000
    """The precision of delivery times, and the minimum time between two checks for delayed messages."""
    isDelayedDeliveryDeliverAtTimeStrict: bool = False
    """Whether no message is delivered before its time. If not, it may come up to a tick early."""
    delayedDeliveryMaxDelayInMillis: Millis = 0
    """A message with a longer delay is refused (NotAllowedError). 0: no limit."""
    delayedDeliveryFixedDelayDetectionLookahead: Messages = 50000
    """With this many delayed messages that all have about the same delay, the dispatcher reads no more until one is due.
    0: off."""
    dispatcherEntryFilterRescheduledMessageDelay: Millis = 1000
    """How long after a filter rescheduled an entry it judges the entry again. At least 1."""
    entryFilterNames: str = ""
    """The entry filters in force, separated by commas. `PropertyFilter` is built in: a subscription with a property
    ``filter.NAME`` gets only messages whose property NAME has the same value. `entry_filters.register` adds others."""
    maxUnackedMessagesPerBroker: Messages = 0
    """With this many unacknowledged messages in the ingress partition, the subscriptions that have most of them get no
    more, until there are less than half. 0: no limit."""
    maxUnackedMessagesPerSubscriptionOnBrokerBlocked: float = 0.16
    """The fraction of `maxUnackedMessagesPerBroker` that a subscription may have while that limit is exceeded."""

    # Key_Shared
    subscriptionKeySharedEnable: bool = True
    """Whether Key_Shared is allowed."""
    subscriptionKeySharedUseConsistentHashing: bool = True
    """Whether a hash ring divides the keys among consumers. If not, each new consumer halves the widest range."""
    subscriptionKeySharedConsistentHashingReplicaPoints: int = 100
    """How many points a consumer has on the hash ring."""
    subscriptionKeySharedUseClassicPersistentImplementation: bool = False
    """Whether a new consumer waits until all messages read before it joined are acknowledged (2.x). If not, it waits for
    those of its own keys (4.x)."""
    keySharedLookAheadMsgInReplayThresholdPerConsumer: Messages = 2000
    """With this many messages per consumer that wait for their keys' consumers, nothing new is read. 0: off."""
    keySharedLookAheadMsgInReplayThresholdPerSubscription: Messages = 20000
    """With this many messages that wait for their keys' consumers, nothing new is read. 0: off."""
    keySharedUnblockingIntervalMs: Millis = 10
    """How long acks that free a key are collected before messages of that key are sent."""

    # Time to live
    brokerEntryMetadataInterceptors: str = ""
    """AppendBrokerTimestampMetadataInterceptor, with or without its package: entries get the broker's time, which takes
    precedence over the client's publish time. Empty: none."""
    ttlDurationDefaultInSeconds: Seconds = 0
    """Messages older than this expire, unless a policy says otherwise. 0: never."""
    messageExpiryCheckIntervalInMinutes: FractionalMinutes = 5
    """The interval of the check (`messageExpiry`). 0: off."""

    # Backlog quotas
    backlogQuotaCheckEnabled: bool = True
    """Whether backlog quotas are checked periodically. The creation of a producer checks them in any case."""
    backlogQuotaCheckIntervalInSeconds: FractionalSeconds = 60
    """The interval of the check (`backlogQuota`). 0: off."""
    backlogQuotaDefaultLimitGB: Gibibytes = -1
    """The largest backlog of a topic, unless a policy says so. 0 or less: `backlogQuotaDefaultLimitBytes` applies."""
    backlogQuotaDefaultLimitBytes: Bytes = -1
    """The largest backlog of a topic, unless a policy says so. Less than 0: no limit."""
    backlogQuotaDefaultLimitSecond: Seconds = -1
    """The maximum age of a topic's oldest unacknowledged message, unless a policy says so. 0 or less: no limit."""
    backlogQuotaDefaultRetentionPolicy: QuotaPolicy = "producer_request_hold"
    """What happens when those limits are exceeded. producer_request_hold and producer_exception close producers and refuse
    new ones. consumer_backlog_eviction removes the oldest messages from the backlog."""
    preciseTimeBasedBacklogQuotaCheck: bool = False
    """Whether the age is that of the oldest message itself. If not, it is the time since its ledger closed."""

    # Differences between Pulsar versions: Pulsar has no settings for these, so the names are Magnetar's.
    activeConsumerFailoverRingForNonPartitioned: bool = True
    """Failover on a topic that is not a partition: a hash ring chooses the active consumer (4.x). If false, the first by
    priority and name is active (2.x)."""
    messageExpirySharedPosition: bool = True
    """TTL: one search on the slowest cursor moves every subscription (4.x). If false, each subscription is searched
    separately (2.x)."""
    messageExpirySearchActiveEntries: bool = False
    """Expiry of one subscription searches its unacknowledged entries only (2.x). If false, all stored entries (4.x)."""
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
    by consumers (later than 4.0)."""
    moveCursorOverConsumedLedger: bool = False
    """At a rollover, a cursor that is acknowledged to the end of its ledger moves to before the next one (later than
    4.0). If false, it stays."""
    keepOldestPositionWhenUnknown: bool = True
    """Age quota: if the age becomes unknown, the last known age applies until there is no backlog (4.0). If false, no age
    applies (later)."""
    delayedDeliveryRoundsTimes: bool = False
    """Delivery times are rounded down to a multiple of the largest power of two in the tick (later than 4.0). If false,
    they are exact (4.0)."""
    trimAtRolloverSparesClosedLedger: bool = False
    """Without a durable cursor, a rollover that finds no older ledger to trim keeps the one it closed (as recorded from
    4.0.7). If false, it trims that ledger, too (ledger.md, Determinism)."""
    trimLedgerAckedToItsEnd: bool = True
    """A closed ledger whose last entry is the slowest mark-delete position may be trimmed (4.x). If false, it stays until
    that position is in the next one (2.x)."""


PROFILES: dict[str, dict[str, Any]] = {
    "4.x": {},
    "2.x": {
        "managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis": -1,
        "subscriptionKeySharedUseClassicPersistentImplementation": True,
        "activeConsumerFailoverRingForNonPartitioned": False,
        "messageExpirySharedPosition": False,
        "messageExpirySearchActiveEntries": True,
        "messageExpiryStopsAtOpenLedger": False,
        "backlogSizeWholeLedgers": False,
        "backlogQuotaSkipByFactor": True,
        "backlogQuotaSparesProducersForDedupCursor": False,
        "backlogQuotaSkipsFencedTopics": False,
        "backlogQuotaMessageAge": False,
        "deduplicationChecksLastChunkOnly": False,
        "retentionWithoutDurableCursor": False,
        "retentionCheckEveryTopic": False,
        "trimLedgerAckedToItsEnd": False,
    },
}

WITHOUT_EFFECT = frozenset(
    {"allowAutoTopicCreationType", "brokerDeleteInactiveTopicsEnabled", "managedLedgerCacheEvictionTimeThresholdMillis",
     "systemTopicEnabled", "topicLevelPoliciesEnabled", "dispatcherRetryBackoffInitialTimeInMs",
     "dispatcherRetryBackoffMaxTimeInMs", "managedLedgerMaxBatchDeletedIndexToPersist",
     "transactionCoordinatorEnabled"}
)  # fmt: skip
"""Settings of a real broker that have no effect here (caches, storage, system topics, retries of reads)."""


def configuration(profile: str, settings: dict[str, Any]) -> ServiceConfiguration:
    """The defaults of `profile`, overridden by `settings`. Values may be strings, as in broker.conf.

    Raises `BadSetting` with the name of the setting.
    """
    known = ServiceConfiguration.__struct_fields__
    given = {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}
    if unknown := sorted(set(given) - set(known)):
        raise BadSetting(f"unknown broker settings: {', '.join(unknown)}")
    if str(settings.get("transactionCoordinatorEnabled", "false")).lower() == "true":
        raise BadSetting("transactionCoordinatorEnabled: transactions are not supported")
    interceptors = str(given.get("brokerEntryMetadataInterceptors", ""))
    if [name for name in interceptors.split(",") if name and not name.endswith(BROKER_TIMESTAMP)]:
        raise BadSetting(f"brokerEntryMetadataInterceptors: only {BROKER_TIMESTAMP} is supported")
    filters = str(given.get("entryFilterNames", ""))
    if missing := [name for name in filters.split(",") if name and not entry_filters.known(name)]:
        raise BadSetting(f"unknown entry filters: {', '.join(missing)}")
    try:
        config = msgspec.convert(
            {**PROFILES[profile], **given, "profile": profile}, ServiceConfiguration, strict=False
        )
    except msgspec.ValidationError as error:
        raise BadSetting(f"broker settings: {error}") from None
    for name in known:
        value = getattr(config, name)
        if isinstance(value, int | float) and not abs(value) <= LARGEST:
            raise BadSetting(f"broker setting {name}: {value} is no number up to {LARGEST}")
    return config
