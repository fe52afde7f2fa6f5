"""The broker's configuration (ServiceConfiguration) and the profiles that give its defaults by Pulsar version.

Names are Pulsar's. A difference between versions is a setting here, never a test of the version elsewhere.
"""

from typing import Any, Literal

import msgspec

from streaming.broker.dispatch import entry_filters

QuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]


class BadSetting(ValueError):
    """A setting that Pulsar doesn't have, that Magnetar neither heeds nor can safely ignore, or of a bad value."""


BROKER_TIMESTAMP = "AppendBrokerTimestampMetadataInterceptor"

LARGEST = 10**15
"""No number in a configuration is larger: times in any unit stay within 64 bits when they become milliseconds."""


class ServiceConfiguration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Defaults are those of profile ``4.x``. Units are in Pulsar's names; 0 usually means off or unlimited."""

    profile: str = "4.x"
    clusterName: str = "standalone"
    statsUpdateFrequencyInSecs: int = 60
    # managed ledger
    managedLedgerMaxEntriesPerLedger: int = 50000
    managedLedgerMinLedgerRolloverTimeMinutes: float = 10
    managedLedgerMaxLedgerRolloverTimeMinutes: float = 240
    managedLedgerMaxSizePerLedgerMbytes: int = 2048
    managedLedgerInactiveLedgerRolloverTimeSeconds: int = 0
    retentionCheckIntervalInSeconds: int = 120
    defaultRetentionTimeInMinutes: int = 0
    defaultRetentionSizeInMB: int = 0
    # cursors
    managedLedgerDefaultMarkDeleteRateLimit: float = 1.0
    managedLedgerCursorPositionFlushSeconds: int = 60
    managedLedgerMaxUnackedRangesToPersist: int = 10000
    managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis: int = 60000
    acknowledgmentAtBatchIndexLevelEnabled: bool = False
    # producers
    maxMessageSize: int = 5 * 1024 * 1024
    maxConcurrentNonPersistentMessagePerConnection: int = 1000
    maxProducersPerTopic: int = 0
    encryptionRequireOnProducer: bool = False
    keepAliveIntervalSeconds: int = 30
    # deduplication
    brokerDeduplicationEnabled: bool = False
    brokerDeduplicationMaxNumberOfProducers: int = 10000
    brokerDeduplicationEntriesInterval: int = 1000
    brokerDeduplicationSnapshotIntervalSeconds: int = 120
    brokerDeduplicationSnapshotFrequencyInSeconds: int = 120
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = 360
    # subscriptions and dispatch
    subscriptionTypesEnabled: str = "Exclusive,Shared,Failover,Key_Shared"
    allowAutoSubscriptionCreation: bool = True
    allowAutoTopicCreation: bool = True
    maxTopicsPerNamespace: int = 0
    """Of an ingress partition, which is the broker here: each counts the topics it has."""
    maxSubscriptionsPerTopic: int = 0
    maxConsumersPerTopic: int = 0
    maxConsumersPerSubscription: int = 0
    maxUnackedMessagesPerConsumer: int = 50000
    maxUnackedMessagesPerSubscription: int = 200000
    dispatcherMaxReadBatchSize: int = 100
    dispatcherMaxRoundRobinBatchSize: int = 20
    preciseDispatcherFlowControl: bool = False
    subscriptionExpirationTimeMinutes: int = 0
    subscriptionExpiryCheckIntervalInMinutes: int = 5
    activeConsumerFailoverDelayTimeMillis: int = 1000
    activeConsumerFailoverConsistentHashing: bool = False
    delayedDeliveryEnabled: bool = True
    delayedDeliveryTickTimeMillis: int = 1000
    isDelayedDeliveryDeliverAtTimeStrict: bool = False
    delayedDeliveryMaxDelayInMillis: int = 0
    delayedDeliveryFixedDelayDetectionLookahead: int = 50000
    dispatcherEntryFilterRescheduledMessageDelay: int = 1000
    entryFilterNames: str = ""
    maxUnackedMessagesPerBroker: int = 0
    maxUnackedMessagesPerSubscriptionOnBrokerBlocked: float = 0.16
    subscriptionKeySharedEnable: bool = True
    subscriptionKeySharedUseConsistentHashing: bool = True
    subscriptionKeySharedConsistentHashingReplicaPoints: int = 100
    subscriptionKeySharedUseClassicPersistentImplementation: bool = False
    keySharedLookAheadMsgInReplayThresholdPerConsumer: int = 2000
    keySharedLookAheadMsgInReplayThresholdPerSubscription: int = 20000
    keySharedUnblockingIntervalMs: int = 10
    # TTL
    brokerEntryMetadataInterceptors: str = ""
    """AppendBrokerTimestampMetadataInterceptor (with or without its package): entries get the broker's time."""
    ttlDurationDefaultInSeconds: int = 0
    messageExpiryCheckIntervalInMinutes: float = 5
    # backlog quota
    backlogQuotaCheckEnabled: bool = True
    backlogQuotaCheckIntervalInSeconds: float = 60
    backlogQuotaDefaultLimitGB: float = -1
    backlogQuotaDefaultLimitBytes: int = -1
    backlogQuotaDefaultLimitSecond: int = -1
    backlogQuotaDefaultRetentionPolicy: QuotaPolicy = "producer_request_hold"
    preciseTimeBasedBacklogQuotaCheck: bool = False
    # what differs between Pulsar versions and has no setting there (see docs/profiles.md)
    activeConsumerFailoverRingForNonPartitioned: bool = True
    """Failover on a topic that is no partition picks by the hash ring (4.x), or the first by priority and name (2.x)."""
    messageExpirySharedPosition: bool = True
    """TTL: one search on the slowest cursor moves every subscription (4.x), or each subscription is searched (2.x)."""
    messageExpirySearchActiveEntries: bool = False
    """Expiry of one subscription searches its unacked entries alone (2.x), or all that is stored (4.x)."""
    messageExpiryStopsAtOpenLedger: bool = True
    """The closure-time pass ends before the open ledger (4.x), or takes its close time of 0 for an old one (2.x)."""
    backlogSizeWholeLedgers: bool = True
    """A ledger acked to its end counts nothing (4.x), or keeps the remainder of its size / entries (2.x)."""
    backlogQuotaSkipByFactor: bool = False
    """Size eviction multiplies entries by the part of the backlog over an exact 0.9 of the limit (2.x), or truncates the
    target to bytes and divides last (4.x)."""
    backlogQuotaSparesProducersForDedupCursor: bool = True
    """When dedup's cursor is the slowest, a snapshot is tried and producers stay for that round (4.x), or they go (2.x)."""
    backlogQuotaSkipsFencedTopics: bool = True
    """The quota check leaves fenced topics alone (4.x), or acts on them too (2.x)."""
    backlogQuotaMessageAge: bool = True
    """There are quotas of type message_age (4.x), or of size alone: age quotas that are set have no effect (2.x)."""
    deduplicationChecksLastChunkOnly: bool = True
    """Only the last chunk of a message is judged and recorded (4.x), or each is, so that all but the first are
    duplicates (2.x). Read when a topic is loaded or told of a policy."""
    retentionWithoutDurableCursor: bool = True
    """Retention holds on topics without a durable cursor (4.x), or they keep no closed ledger at all (2.x)."""
    retentionCheckEveryTopic: bool = True
    """The retention check trims every topic (4.x), or only those for which any level sets a retention (2.x)."""
    subscriptionBacklogSizeWithoutAcked: bool = False
    """A subscription's backlogSize takes individually acked entries off (HEAD), or counts all after the mark-delete."""
    removePendingAcksOnMarkDeleteMove: bool = False
    """A mark-delete moved by TTL, skip or eviction takes entries off the consumers' unacked ones (HEAD), or not."""
    moveCursorOverConsumedLedger: bool = False
    """At a rollover a cursor acked to the end of its ledger moves to before the next one (HEAD), or stays."""
    keepOldestPositionWhenUnknown: bool = True
    """Age quota: when the age becomes unknown the last known one holds until there is no backlog (4.0), or none (HEAD)."""
    delayedDeliveryRoundsTimes: bool = False
    """Delivery times are rounded to the largest power of two in the tick (HEAD), or kept as they are (4.0)."""
    trimAtRolloverSparesClosedLedger: bool = False
    """Without a durable cursor: a rollover that finds no older ledger to trim leaves the one that it closed (as recorded
    from 4.0.7), or trims that too (ledger.md, Determinism)."""
    trimLedgerAckedToItsEnd: bool = True
    """A closed ledger whose last entry is the slowest mark-delete may go (4.x), or waits till the next is entered (2.x)."""


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
"""Settings of a real broker that change nothing here (caches, storage, system topics, retries of reads)."""


def configuration(profile: str, settings: dict[str, Any]) -> ServiceConfiguration:
    """`settings` over the defaults of `profile`. Values may be text, as in broker.conf.

    Raises `BadSetting` naming the setting.
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
