"""Settings that the admin API changes while the broker runs (mirrors `BrokersBase`).

Pulsar keeps any value of a dynamic setting. One that is a [setting](../settings.md) of Magnetar takes effect if it is valid. The
others are kept and returned.
"""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import msgspec

from schemas.commands import Admin
from streaming.broker.admin import respond
from streaming.broker.config import BadSetting, ServiceConfiguration, configuration
from streaming.broker.context import Context

_SETTING = re.compile(r"/brokers/configuration/(?P<name>[^/?]+)(?:/(?P<value>[^?]*))?(?:\?.*)?")
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


def call_settings(
    ctx: Context, command: Admin, reconfigure: Callable[[ServiceConfiguration], object]
) -> bool:
    """Answer a call on the dynamic settings. False, and no answer: the call is about something else. `reconfigure` puts the
    new settings into force."""
    path = command.path.partition("?")[0]
    values = ctx.resources.get(_VALUES, {})
    match command.method, path:
        case "GET", "/brokers/configuration":
            respond(ctx, None, command, 200, sorted(DYNAMIC))
            return True
        case "GET", "/brokers/configuration/values":
            respond(ctx, None, command, 200, values)
            return True
        case "GET", "/brokers/configuration/runtime":
            respond(ctx, None, command, 200, ctx.config.as_texts())
            return True
    found = _SETTING.fullmatch(command.path)
    if found is None or (command.method, found["value"] is None) not in (("POST", False), ("DELETE", True)):
        return False
    name, verb = unquote(found["name"]), "update" if command.method == "POST" else "delete"
    if name not in DYNAMIC:
        respond(ctx, None, command, 412, {"reason": f"Can't {verb} non-dynamic configuration"})
        return True
    kept = {other: values[other] for other in values if other != name}
    initial: dict[str, Any] = ctx.resources.get(_INITIAL, {})
    if command.method == "POST":
        kept[name] = unquote(found["value"])
    if name in ServiceConfiguration.__struct_fields__:
        initial = {name: getattr(ctx.config, name)} | initial
        _apply(ctx, name, kept.get(name, initial[name]), reconfigure)
        if command.method == "DELETE":
            del initial[name]
    ctx.resources[_VALUES], ctx.resources[_INITIAL] = kept, initial
    respond(ctx, None, command, 200)
    return True


def _apply(
    ctx: Context, name: str, value: Any, reconfigure: Callable[[ServiceConfiguration], object]
) -> None:
    settings = msgspec.structs.asdict(ctx.config) | {name: value}
    profile = settings.pop("profile")
    try:
        config = configuration(profile, settings)
    except BadSetting:
        return  # quirk: Pulsar keeps a bad value, and goes on with the former one
    reconfigure(config)
