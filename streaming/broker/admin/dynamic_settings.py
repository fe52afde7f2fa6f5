"""Settings that the admin API changes while the broker runs (mirrors `BrokersBase`).

Pulsar keeps any value of a dynamic setting, and a broker that starts takes it in place of its own. One that is a [setting](../settings.md) of Magnetar takes effect if it is valid. The
others are kept and returned.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from schemas.commands import Admin
from streaming.broker.admin_requests import answered_from
from streaming.broker.admin_table import AdminAnswer, Call, Names, Table, decoded
from streaming.broker.config import BadSetting, ServiceConfiguration, configuration
from streaming.broker.context import Context
from streaming.broker.errors import AdminError

_VALUES, _INITIAL = "dynamicSettings", "initialSettings"

DYNAMIC = frozenset(
    [
        "allowAutoSubscriptionCreation",
        "allowAutoTopicCreation",
        "allowAutoTopicCreationType",
        "allowOverrideEntryFilters",
        "autoSkipNonRecoverableData",
        "bookkeeperUseV2WireProtocol",
        "brokerClientAuthenticationParameters",
        "brokerClientAuthenticationPlugin",
        "brokerClientTlsEnabled",
        "brokerDeleteInactivePartitionedTopicMetadataEnabled",
        "brokerDeleteInactiveTopicsEnabled",
        "brokerDeleteInactiveTopicsFrequencySeconds",
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        "brokerDeleteInactiveTopicsMode",
        "brokerPublisherThrottlingMaxByteRate",
        "brokerPublisherThrottlingMaxMessageRate",
        "brokerPublisherThrottlingTickTimeMillis",
        "brokerShutdownTimeoutMs",
        "clientLibraryVersionCheckEnabled",
        "configurationMetadataSyncEventTopic",
        "defaultNamespaceBundleSplitAlgorithm",
        "defaultNumPartitions",
        "defaultNumberOfNamespaceBundles",
        "dispatchThrottlingOnBatchMessageEnabled",
        "dispatchThrottlingOnNonBacklogConsumerEnabled",
        "dispatchThrottlingRateInByte",
        "dispatchThrottlingRateInMsg",
        "dispatchThrottlingRatePerReplicatorInByte",
        "dispatchThrottlingRatePerReplicatorInMsg",
        "dispatchThrottlingRatePerSubscriptionInByte",
        "dispatchThrottlingRatePerSubscriptionInMsg",
        "dispatchThrottlingRatePerTopicInByte",
        "dispatchThrottlingRatePerTopicInMsg",
        "dispatchThrottlingRateRelativeToPublishRate",
        "dispatcherDispatchMessagesInSubscriptionThread",
        "dispatcherEntryFilterRescheduledMessageDelay",
        "dispatcherMaxReadBatchSize",
        "dispatcherMaxReadSizeBytes",
        "dispatcherMaxRoundRobinBatchSize",
        "dispatcherMinReadBatchSize",
        "dispatcherPauseOnAckStatePersistentEnabled",
        "dispatcherReadFailureBackoffInitialTimeInMs",
        "dispatcherReadFailureBackoffMandatoryStopTimeInMs",
        "dispatcherReadFailureBackoffMaxTimeInMs",
        "entryFilterNames",
        "entryFiltersDirectory",
        "exposeBundlesMetricsInPrometheus",
        "failureDomainsEnabled",
        "flowOrQpsDifferenceThresholdPercentage",
        "forceDeleteNamespaceAllowed",
        "forceDeleteTenantAllowed",
        "httpRequestsFailOnUnknownPropertiesEnabled",
        "isAllowAutoUpdateSchemaEnabled",
        "keySharedLookAheadMsgInReplayThresholdPerConsumer",
        "keySharedLookAheadMsgInReplayThresholdPerSubscription",
        "keySharedUnblockingIntervalMs",
        "loadBalanceSheddingDelayInSeconds",
        "loadBalancerAutoBundleSplitEnabled",
        "loadBalancerAutoUnloadSplitBundlesEnabled",
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage",
        "loadBalancerAvgShedderHighThreshold",
        "loadBalancerAvgShedderHitCountHighThreshold",
        "loadBalancerAvgShedderHitCountLowThreshold",
        "loadBalancerAvgShedderLowThreshold",
        "loadBalancerBandwidthInResourceWeight",
        "loadBalancerBandwidthOutResourceWeight",
        "loadBalancerBandwithInResourceWeight",
        "loadBalancerBandwithOutResourceWeight",
        "loadBalancerBrokerLoadDataTTLInSeconds",
        "loadBalancerBrokerLoadTargetStd",
        "loadBalancerBrokerMaxTopics",
        "loadBalancerBrokerOverloadedThresholdPercentage",
        "loadBalancerBrokerThresholdShedderPercentage",
        "loadBalancerBundleUnloadMinThroughputThreshold",
        "loadBalancerCPUResourceWeight",
        "loadBalancerDebugModeEnabled",
        "loadBalancerDirectMemoryResourceWeight",
        "loadBalancerDistributeBundlesEvenlyEnabled",
        "loadBalancerHistoryResourcePercentage",
        "loadBalancerHostUsageCheckIntervalMinutes",
        "loadBalancerLoadSheddingStrategy",
        "loadBalancerMaxNumberOfBrokerSheddingPerCycle",
        "loadBalancerMaxNumberOfBundlesInBundleLoadReport",
        "loadBalancerMaxNumberOfBundlesToSplitPerCycle",
        "loadBalancerMemoryResourceWeight",
        "loadBalancerMsgRateDifferenceShedderThreshold",
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold",
        "loadBalancerNamespaceBundleMaxBandwidthMbytes",
        "loadBalancerNamespaceBundleMaxMsgRate",
        "loadBalancerNamespaceBundleMaxSessions",
        "loadBalancerNamespaceBundleMaxTopics",
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold",
        "loadBalancerNamespaceMaximumBundles",
        "loadBalancerReportUpdateMaxIntervalMinutes",
        "loadBalancerReportUpdateMinIntervalMillis",
        "loadBalancerReportUpdateThresholdPercentage",
        "loadBalancerServiceUnitStateMaxConcurrentOverrides",
        "loadBalancerServiceUnitTableViewSyncer",
        "loadBalancerSheddingBundlesWithPoliciesEnabled",
        "loadBalancerSheddingConditionHitCountThreshold",
        "loadBalancerSheddingEnabled",
        "loadBalancerSheddingGracePeriodMinutes",
        "loadBalancerSheddingIntervalMinutes",
        "loadBalancerTransferEnabled",
        "loadManagerClassName",
        "managedLedgerCacheEvictionTimeThresholdMillis",
        "managedLedgerCacheEvictionWatermark",
        "managedLedgerCacheSizeMB",
        "managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis",
        "managedLedgerForceRecovery",
        "managedLedgerInactiveLedgerRolloverTimeSeconds",
        "managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds",
        "managedLedgerMaxBacklogBetweenCursorsForCaching",
        "managedLedgerMinimumBacklogCursorsForCaching",
        "managedLedgerMinimumBacklogEntriesForCaching",
        "managedLedgerTraceTaskExecution",
        "maxConcurrentLookupRequest",
        "maxConcurrentTopicLoadRequest",
        "maxMessagePublishBufferSizeInMB",
        "maxNamespacesPerTenant",
        "maxNumPartitionsPerPartitionedTopic",
        "maxPublishRatePerTopicInBytes",
        "maxPublishRatePerTopicInMessages",
        "maxTenants",
        "maxTopicsPerNamespace",
        "maxUnloadBundleNumPerShedding",
        "maxUnloadPercentage",
        "metadataSyncEventTopic",
        "minUnloadMessage",
        "minUnloadMessageThroughput",
        "namespaceBundleUnloadingTimeoutMs",
        "preciseDispatcherFlowControl",
        "preferLaterVersions",
        "replicationProducerQueueSize",
        "replicationStartAt",
        "resourceUsageTransportPublishIntervalInSecs",
        "schemaLedgerForceRecovery",
        "skipBrokerShutdownOnOOM",
        "strictlyVerifySubscriptionName",
        "subscribeRatePeriodPerConsumerInSecond",
        "subscribeThrottlingRatePerConsumer",
        "subscriptionKeySharedEnable",
        "subscriptionKeySharedUseClassicPersistentImplementation",
        "subscriptionRedeliveryTrackerEnabled",
        "subscriptionSharedUseClassicPersistentImplementation",
        "subscriptionTypesEnabled",
        "superUserRoles",
        "supportedNamespaceBundleSplitAlgorithms",
        "topicFactoryClassName",
        "topicNameCacheMaxCapacity",
        "topicPublisherThrottlingTickTimeMillis",
        "transactionLogBatchedWriteEnabled",
        "transactionPendingAckBatchedWriteEnabled",
        "unblockStuckSubscriptionEnabled",
    ]
)
"""The settings that Pulsar 4.0.7 lets operators change, by name."""


Reconfigure = Callable[[ServiceConfiguration], object]


def call_settings(ctx: Context, command: Admin, reconfigure: Reconfigure) -> bool:
    """Answer a call on the dynamic settings. False, and no answer: the call is about something else. `reconfigure` puts the
    new settings into force."""
    return answered_from(
        ctx, command, CALLS, lambda handler, names: handler(ctx, decoded(names), reconfigure)
    )


def changed(ctx: Context) -> list[str]:
    """The settings of Magnetar that were changed."""
    return [name for name in ctx.resources.get(_VALUES, {}) if name in ServiceConfiguration.__struct_fields__]


def changed_value(ctx: Context, name: str) -> str | None:
    """What a setting was changed to, as a text. None: it was not changed."""
    found: str | None = ctx.resources.get(_VALUES, {}).get(name)
    return found


def initial(ctx: Context) -> ServiceConfiguration:
    """The configuration without the changed settings."""
    config = ctx.config
    for name, value in ctx.resources.get(_INITIAL, {}).items():
        config = _with(config, name, value)
    return config


def over(ctx: Context, config: ServiceConfiguration) -> ServiceConfiguration:
    """A new configuration with the changed settings, which outlive a broker: Pulsar keeps them in the metadata store
    (BrokerService.updateDynamicServiceConfiguration)."""
    names = changed(ctx)
    if not names:
        return config
    ctx.resources[_INITIAL] = {name: getattr(config, name) for name in names}
    for name in names:
        config = _with(config, name, ctx.resources[_VALUES][name])
    return config


def _list(ctx: Context, names: Names, reconfigure: Reconfigure) -> AdminAnswer:
    """The names of the settings that can change while the broker runs."""
    return 200, sorted(DYNAMIC)


def _changed(ctx: Context, names: Names, reconfigure: Reconfigure) -> AdminAnswer:
    """The settings that were changed, and their values."""
    return 200, ctx.resources.get(_VALUES, {})


def _in_force(ctx: Context, names: Names, reconfigure: Reconfigure) -> AdminAnswer:
    """All settings in force."""
    return 200, ctx.config.as_texts()


def _update(ctx: Context, names: Names, reconfigure: Reconfigure) -> AdminAnswer:
    """Change a setting. One that Magnetar does not have, or a bad value, has no effect."""
    if names["setting"] not in DYNAMIC:
        raise AdminError(412, "Can't update non-dynamic configuration")
    _set(ctx, names["setting"], names["value"], reconfigure)
    return 200, None


def _delete(ctx: Context, names: Names, reconfigure: Reconfigure) -> AdminAnswer:
    """Take the change of a setting back."""
    if names["setting"] not in DYNAMIC:
        raise AdminError(412, "Can't delete non-dynamic configuration")
    _set(ctx, names["setting"], None, reconfigure)
    return 200, None


def _set(ctx: Context, name: str, value: str | None, reconfigure: Reconfigure) -> None:
    """Change a setting; None: take that back."""
    values = ctx.resources.get(_VALUES, {})
    kept = {other: values[other] for other in values if other != name}
    initial: dict[str, Any] = ctx.resources.get(_INITIAL, {})
    if value is not None:
        kept[name] = value
    if name in ServiceConfiguration.__struct_fields__:
        initial = {name: getattr(ctx.config, name)} | initial
        if (config := _with(ctx.config, name, kept.get(name, initial[name]))) != ctx.config:
            reconfigure(config)
        if value is None:
            del initial[name]
    ctx.resources[_VALUES], ctx.resources[_INITIAL] = kept, initial


def _with(config: ServiceConfiguration, name: str, value: Any) -> ServiceConfiguration:
    settings = msgspec.structs.asdict(config) | {name: value}
    profile = settings.pop("profile")
    try:
        return configuration(profile, settings)
    except BadSetting:
        return config  # quirk: Pulsar keeps a bad value, and goes on with the former one


CALLS: Table[Callable[[Context, Names, Reconfigure], AdminAnswer]] = Table(
    "",
    (
        Call("GET", "/brokers/configuration", _list),
        Call("GET", "/brokers/configuration/values", _changed),
        Call("GET", "/brokers/configuration/runtime", _in_force),
        Call("POST", "/brokers/configuration/{setting}/{value}", _update),
        Call("DELETE", "/brokers/configuration/{setting}", _delete),
    ),
)
"""The calls on the dynamic settings."""


def setting_of(command: Admin) -> str | None:
    """The setting that a call changes. None: it is not such a call."""
    found = CALLS.find(command.method, command.path.partition("?")[0])
    return None if found is None else decoded(found[1]).get("setting")
