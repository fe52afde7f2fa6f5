"""Policies at the levels topic, namespace and broker: the first level that sets a policy decides (I1).

Names are those of Pulsar's admin API.
"""

from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from schemas.commands import SubType
from schemas.units import Int32, Int64, unit
from streaming.broker.config import (
    InactiveTopicDeleteMode,
    QuotaPolicy,
    SchemaCompatibilityStrategy,
    ServiceConfiguration,
)

QuotaType = Literal["destination_storage", "message_age"]
Level = Literal["topic", "namespace", "broker"]

T = TypeVar("T")


class RetentionPolicies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much is kept of what every subscription has acknowledged. Both 0: nothing; both must be 0 or neither."""

    retentionTimeInMinutes: Annotated[Int32, unit("min")] = 0
    """How long. −1: forever."""
    retentionSizeInMB: Annotated[Int32, unit("MiB")] = 0
    """How much. −1: everything."""


class BacklogQuota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limit of a backlog, and what happens beyond it."""

    limitSize: Annotated[Int64, unit("bytes")] = -1
    """The largest backlog. Negative: no limit. For the type destination_storage."""
    limitTime: Annotated[Int32, unit("s")] = -1
    """The greatest age of the oldest unacknowledged message. 0 or negative: no limit. For the type message_age."""
    policy: QuotaPolicy = "producer_request_hold"
    """producer_request_hold, producer_exception: producers are closed and new ones refused.
    consumer_backlog_eviction: the oldest messages leave the backlog."""


class DispatchRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast messages are sent to consumers. Both rates 0 or less: as if not set."""

    dispatchThrottlingRateInMsg: Annotated[Int32, unit("messages")] = 0
    """So many per period. 0 or less: no limit."""
    dispatchThrottlingRateInByte: Annotated[Int64, unit("bytes")] = 0
    """So many per period. 0 or less: no limit."""
    relativeToPublishRate: bool = False
    """Whether the rate at which the topic is published to, per second, is added to both."""
    ratePeriodInSecond: Annotated[Int32, unit("s")] = 0
    """The period. Less than 1 counts as 1."""

    @property
    def limits(self) -> bool:
        """Whether it limits anything."""
        return self.dispatchThrottlingRateInMsg > 0 or self.dispatchThrottlingRateInByte > 0


class PublishRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast a topic may be published to. Both rates 0 or less: as if not set."""

    publishThrottlingRateInMsg: Annotated[Int32, unit("messages")] = -1
    """So many per second. 0 or less: no limit."""
    publishThrottlingRateInByte: Annotated[Int64, unit("bytes")] = -1
    """So many per second. 0 or less: no limit."""

    @property
    def limits(self) -> bool:
        """Whether it limits anything."""
        return self.publishThrottlingRateInMsg > 0 or self.publishThrottlingRateInByte > 0


class SubscribeRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a consumer may subscribe. A rate or a period of 0 or less: as if not set."""

    subscribeThrottlingRatePerConsumer: Annotated[Int32, unit("times")] = -1
    """So often per period."""
    ratePeriodInSecond: Annotated[Int32, unit("s")] = 30
    """The period."""

    @property
    def limits(self) -> bool:
        """Whether it limits anything."""
        return self.subscribeThrottlingRatePerConsumer > 0 and self.ratePeriodInSecond > 0


class DelayedDeliveryPolicies(msgspec.Struct, frozen=True):
    """Whether and how messages wait for their delivery time."""

    tickTime: Annotated[Int64, unit("ms")] = 0
    """The precision of delivery times."""
    active: bool = False
    """Whether messages wait. If not, those that wait already go on doing so."""
    maxDeliveryDelayInMillis: Annotated[Int64, unit("ms")] = 0
    """A message with a longer delay is refused (NotAllowedError). 0 or negative: no limit."""


class PersistencePolicies(msgspec.Struct, frozen=True):
    """How bookies keep a topic. Magnetar has none: the policy is kept and returned."""

    bookkeeperEnsemble: Annotated[Int32, unit("bookies")] = 2
    """Bookies that a ledger is spread over."""
    bookkeeperWriteQuorum: Annotated[Int32, unit("bookies")] = 2
    """Copies of an entry."""
    bookkeeperAckQuorum: Annotated[Int32, unit("bookies")] = 2
    """Copies that must be written before an entry counts."""
    managedLedgerMaxMarkDeleteRate: float = 0.0
    """How often a cursor is written, per second."""


class AutoTopicCreationOverride(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether use creates topics, and what kind."""

    allowAutoTopicCreation: bool | None = None
    """Whether it does."""
    topicType: str | None = None
    """partitioned or non-partitioned."""
    defaultNumPartitions: Annotated[Int32 | None, unit("partitions")] = None
    """The number of partitions of a partitioned topic."""


class AutoSubscriptionCreationOverride(msgspec.Struct, frozen=True):
    """Whether SUBSCRIBE creates subscriptions."""

    allowAutoSubscriptionCreation: bool = False
    """Whether it does."""


class InactiveTopicPolicies(msgspec.Struct, frozen=True):
    """Whether and when a topic that nobody uses is deleted. It never is where brokerDeleteInactiveTopicsEnabled is false."""

    inactiveTopicDeleteMode: InactiveTopicDeleteMode | None = None
    """delete_when_no_subscriptions: only without subscriptions. delete_when_subscriptions_caught_up: also with subscriptions that
    have no backlog, and with their consumers. Neither: a persistent topic is not deleted."""
    maxInactiveDurationSeconds: Annotated[Int32, unit("s")] = 0
    """How long nobody must have used it."""
    deleteWhileInactive: bool = False
    """Whether it is deleted."""


class Policies(msgspec.Struct, omit_defaults=True):
    """What one level sets. None: the level does not set this policy."""

    messageTTL: int | None = None
    """Messages older than this expire, in seconds. 0: never."""
    retention: RetentionPolicies | None = None
    """What is kept of messages that every subscription has acknowledged."""
    backlogQuota: dict[QuotaType, BacklogQuota] = {}
    """The limits of the backlog, one for each type: destination_storage (size) and message_age."""
    deduplication: bool | None = None
    """Whether messages are deduplicated by producer name and sequence id."""
    deduplicationSnapshotInterval: int | None = None
    """The minimum time between two periodic snapshots of the sequence ids, in seconds. 0 or less: none."""
    maxProducersPerTopic: int | None = None
    """The maximum number of producers of a topic. 0: no limit."""
    maxConsumersPerTopic: int | None = None
    """The maximum number of consumers of a topic. 0: no limit."""
    maxConsumersPerSubscription: int | None = None
    """The maximum number of consumers of a subscription. 0: no limit."""
    maxSubscriptionsPerTopic: int | None = None
    """The maximum number of subscriptions of a topic. 0: no limit."""
    maxUnackedMessagesPerConsumer: int | None = None
    """A consumer of Shared or Key_Shared with this many unacknowledged messages gets no more. 0: no limit."""
    maxUnackedMessagesPerSubscription: int | None = None
    """A Shared or Key_Shared subscription with this many unacknowledged messages gets no more. 0: no limit."""
    maxMessageSize: int | None = None
    """The largest entry, in bytes, if it is less than the broker's `maxMessageSize`. 0: no limit of its own."""
    encryptionRequired: bool | None = None
    """Whether producers must encrypt."""
    subscriptionExpirationTime: int | None = None
    """A durable subscription without consumers for longer than this is deleted, in minutes. 0: never."""
    delayedDelivery: DelayedDeliveryPolicies | None = None
    """Whether and how messages wait for their delivery time."""
    subscriptionTypesEnabled: list[SubType] | None = None
    """The types that new consumers' subscriptions may have. Empty: as if not set."""
    maxTopicsPerNamespace: int | None = None
    """The maximum number of topics of the namespace. Each ingress partition counts its own. 0: no limit."""
    dispatchRate: DispatchRate | None = None
    """How fast a topic's messages are sent to all its consumers together."""
    subscriptionDispatchRate: DispatchRate | None = None
    """How fast messages are sent to the consumers of each subscription."""
    subscriptionDispatchRates: dict[str, DispatchRate] = {}
    """How fast messages are sent to the consumers of a subscription, by its name. Of a topic only."""
    publishRate: PublishRate | None = None
    """How fast a topic may be published to. A limit that is exceeded only shows in the stats, see
    [rate limits](#rate-limits)."""
    subscribeRate: SubscribeRate | None = None
    """How often each consumer, known by its name and id, may subscribe to a topic."""
    autoTopicCreation: AutoTopicCreationOverride | None = None
    """Whether use creates topics, and what kind. Of a namespace only."""
    autoSubscriptionCreation: AutoSubscriptionCreationOverride | None = None
    """Whether SUBSCRIBE creates subscriptions."""
    inactiveTopicPolicies: InactiveTopicPolicies | None = None
    """Whether and when a topic that nobody uses is deleted."""
    schemaCompatibilityStrategy: SchemaCompatibilityStrategy | None = None
    """With which of a topic's schemas a new one must be compatible, and how."""
    schemaValidationEnforced: bool | None = None
    """Whether producers without a schema are refused on a topic that has one."""
    isAllowAutoUpdateSchema: bool | None = None
    """Whether producers may add a schema to a topic. Of a namespace only."""
    properties: dict[str, str] = {}
    """Any texts by name. Of a namespace only."""
    kept: dict[str, Any] = {}
    """The policies that have [no effect](#policies-without-effect), by name."""


class PartitionedTopic(msgspec.Struct, array_like=True):
    """What operators set on a partitioned topic as a whole."""

    policies: Policies = msgspec.field(default_factory=Policies)
    properties: dict[str, str] = msgspec.field(default_factory=dict)


class HasPolicies(Protocol):
    """A topic: its full name and the policies set on it."""

    name: str
    policies: Policies


class Effective(NamedTuple, Generic[T]):
    """A policy's value and the level that sets it, for the ``policy`` column of the outputs."""

    value: T
    level: Level


class HierarchyTopicPolicies(msgspec.Struct, frozen=True, gc=False):
    """The policies in force on one topic (mirrors `HierarchyTopicPolicies`).

    Units: `messageTTL` and `deduplicationSnapshotInterval` in seconds, `subscriptionExpirationTime` in minutes,
    `maxMessageSize` in bytes. A limit of 0 is off, and so is a rate that is None. `throttled`: a dispatch rate limits
    some of the topic's subscriptions, at least. `publish_throttled`: a publish rate limits the topic.
    """

    messageTTL: Effective[int]
    retention: Effective[RetentionPolicies]
    destination_storage_quota: Effective[BacklogQuota]
    message_age_quota: Effective[BacklogQuota]
    deduplication: bool
    deduplicationSnapshotInterval: int
    maxProducersPerTopic: int
    maxConsumersPerTopic: int
    maxConsumersPerSubscription: int
    maxSubscriptionsPerTopic: int
    maxUnackedMessagesPerConsumer: int
    maxUnackedMessagesPerSubscription: int
    maxMessageSize: int
    encryptionRequired: bool
    subscriptionExpirationTime: int
    inactiveTopicPolicies: InactiveTopicPolicies
    dispatchRate: DispatchRate | None
    subscriptionDispatchRate: DispatchRate | None
    subscriptionDispatchRates: dict[str, DispatchRate]
    publishRate: PublishRate | None
    subscribeRate: SubscribeRate | None
    autoSubscriptionCreation: bool
    schemaCompatibilityStrategy: SchemaCompatibilityStrategy
    schemaValidationEnforced: bool
    isAllowAutoUpdateSchema: bool
    delayedDelivery: Effective[DelayedDeliveryPolicies]
    subscriptionTypesEnabled: frozenset[str]
    throttled: bool
    publish_throttled: bool

    def dispatch_rate_of(self, subscription: str) -> DispatchRate | None:
        """The dispatch rate of a subscription."""
        return self.subscriptionDispatchRates.get(subscription, self.subscriptionDispatchRate)


NO_POLICIES = Policies()


def default_quota(config: ServiceConfiguration) -> BacklogQuota:
    """The broker's quota, for both types."""
    size = int(config.backlogQuotaDefaultLimitGB * 2**30)
    return BacklogQuota(
        size if size > 0 else config.backlogQuotaDefaultLimitBytes,
        config.backlogQuotaDefaultLimitSecond,
        config.backlogQuotaDefaultRetentionPolicy,
    )


def _default_inactive_topic_policies(config: ServiceConfiguration) -> InactiveTopicPolicies:
    duration = config.brokerDeleteInactiveTopicsMaxInactiveDurationSeconds
    return InactiveTopicPolicies(
        config.brokerDeleteInactiveTopicsMode,
        config.brokerDeleteInactiveTopicsFrequencySeconds if duration < 0 else duration,
        config.brokerDeleteInactiveTopicsEnabled,
    )


def resolve(topic: Policies, namespace: Policies, config: ServiceConfiguration) -> HierarchyTopicPolicies:
    """The policies in force on a topic. A negative TTL counts as not set (docs/rules/ttl.md §1)."""
    quota = default_quota(config)
    dispatch_rate = _rate(
        topic.dispatchRate, namespace.dispatchRate,
        DispatchRate(config.dispatchThrottlingRatePerTopicInMsg, config.dispatchThrottlingRatePerTopicInByte),
    )  # fmt: skip
    subscription_dispatch_rate = _rate(
        topic.subscriptionDispatchRate, namespace.subscriptionDispatchRate,
        DispatchRate(
            config.dispatchThrottlingRatePerSubscriptionInMsg, config.dispatchThrottlingRatePerSubscriptionInByte
        ),
    )  # fmt: skip
    publish_rate = _rate(
        topic.publishRate, namespace.publishRate,
        PublishRate(config.maxPublishRatePerTopicInMessages, config.maxPublishRatePerTopicInBytes),
    )  # fmt: skip
    return HierarchyTopicPolicies(
        messageTTL=_effective(
            _not_negative(topic.messageTTL), _not_negative(namespace.messageTTL), config.ttlDurationDefaultInSeconds
        ),
        retention=_effective(
            topic.retention, namespace.retention,
            RetentionPolicies(config.defaultRetentionTimeInMinutes, config.defaultRetentionSizeInMB),
        ),
        destination_storage_quota=_quota("destination_storage", topic, namespace, quota),
        message_age_quota=(
            _quota("message_age", topic, namespace, quota)
            if config.backlogQuotaMessageAge
            else Effective(BacklogQuota(), "broker")
        ),
        deduplication=_first(topic.deduplication, namespace.deduplication, config.brokerDeduplicationEnabled),
        deduplicationSnapshotInterval=_first(
            topic.deduplicationSnapshotInterval, namespace.deduplicationSnapshotInterval,
            config.brokerDeduplicationSnapshotIntervalSeconds,
        ),
        maxProducersPerTopic=_first(
            topic.maxProducersPerTopic, namespace.maxProducersPerTopic, config.maxProducersPerTopic
        ),
        maxConsumersPerTopic=_first(
            topic.maxConsumersPerTopic, namespace.maxConsumersPerTopic, config.maxConsumersPerTopic
        ),
        maxConsumersPerSubscription=_first(
            topic.maxConsumersPerSubscription, namespace.maxConsumersPerSubscription,
            config.maxConsumersPerSubscription,
        ),
        maxSubscriptionsPerTopic=_first(
            topic.maxSubscriptionsPerTopic, namespace.maxSubscriptionsPerTopic, config.maxSubscriptionsPerTopic
        ),
        maxUnackedMessagesPerConsumer=_first(
            topic.maxUnackedMessagesPerConsumer, namespace.maxUnackedMessagesPerConsumer,
            config.maxUnackedMessagesPerConsumer,
        ),
        maxUnackedMessagesPerSubscription=_first(
            topic.maxUnackedMessagesPerSubscription, namespace.maxUnackedMessagesPerSubscription,
            config.maxUnackedMessagesPerSubscription,
        ),
        maxMessageSize=_first(topic.maxMessageSize, namespace.maxMessageSize, config.maxMessageSize),
        encryptionRequired=_first(
            topic.encryptionRequired, namespace.encryptionRequired, config.encryptionRequireOnProducer
        ),
        subscriptionExpirationTime=_first(
            topic.subscriptionExpirationTime, namespace.subscriptionExpirationTime,
            config.subscriptionExpirationTimeMinutes,
        ),
        inactiveTopicPolicies=_first(
            topic.inactiveTopicPolicies, namespace.inactiveTopicPolicies, _default_inactive_topic_policies(config)
        ),
        dispatchRate=dispatch_rate,
        subscriptionDispatchRate=subscription_dispatch_rate,
        subscriptionDispatchRates=topic.subscriptionDispatchRates,
        publishRate=publish_rate,
        subscribeRate=_rate(
            topic.subscribeRate, namespace.subscribeRate,
            SubscribeRate(config.subscribeThrottlingRatePerConsumer, config.subscribeRatePeriodPerConsumerInSecond),
        ),
        autoSubscriptionCreation=_first(
            topic.autoSubscriptionCreation, namespace.autoSubscriptionCreation,
            AutoSubscriptionCreationOverride(config.allowAutoSubscriptionCreation),
        ).allowAutoSubscriptionCreation,
        schemaCompatibilityStrategy=_strategy(topic, namespace, config),
        schemaValidationEnforced=bool(
            topic.schemaValidationEnforced or namespace.schemaValidationEnforced or config.isSchemaValidationEnforced
        ),
        isAllowAutoUpdateSchema=_first(None, namespace.isAllowAutoUpdateSchema, config.isAllowAutoUpdateSchemaEnabled),
        throttled=bool(
            dispatch_rate or subscription_dispatch_rate or topic.subscriptionDispatchRates or broker_dispatch_rate(config)
        ),
        publish_throttled=bool(publish_rate or broker_publish_rate(config)),
        delayedDelivery=_effective(
            topic.delayedDelivery, namespace.delayedDelivery,
            DelayedDeliveryPolicies(
                config.delayedDeliveryTickTimeMillis, config.delayedDeliveryEnabled,
                config.delayedDeliveryMaxDelayInMillis,
            ),
        ),
        subscriptionTypesEnabled=frozenset(
            topic.subscriptionTypesEnabled or namespace.subscriptionTypesEnabled
            or config.subscriptionTypesEnabled.split(",")
        ),
    )  # fmt: skip


def broker_level(config: ServiceConfiguration) -> Policies:
    """What holds where no level sets a policy, as the admin API shows it (`?applied=true`): of the policies that it shows."""
    quota = default_quota(config)
    return Policies(
        messageTTL=config.ttlDurationDefaultInSeconds,
        retention=RetentionPolicies(config.defaultRetentionTimeInMinutes, config.defaultRetentionSizeInMB),
        backlogQuota={"destination_storage": quota, "message_age": quota},
        deduplication=config.brokerDeduplicationEnabled,
        maxProducersPerTopic=config.maxProducersPerTopic,
        maxConsumersPerTopic=config.maxConsumersPerTopic,
        maxUnackedMessagesPerConsumer=config.maxUnackedMessagesPerConsumer,
        maxUnackedMessagesPerSubscription=config.maxUnackedMessagesPerSubscription,
        delayedDelivery=DelayedDeliveryPolicies(
            config.delayedDeliveryTickTimeMillis, config.delayedDeliveryEnabled, config.delayedDeliveryMaxDelayInMillis
        ),
        dispatchRate=DispatchRate(
            config.dispatchThrottlingRatePerTopicInMsg, config.dispatchThrottlingRatePerTopicInByte, ratePeriodInSecond=1
        ),
        subscriptionDispatchRate=DispatchRate(
            config.dispatchThrottlingRatePerSubscriptionInMsg, config.dispatchThrottlingRatePerSubscriptionInByte,
            ratePeriodInSecond=1,
        ),
        subscribeRate=SubscribeRate(
            config.subscribeThrottlingRatePerConsumer, config.subscribeRatePeriodPerConsumerInSecond
        ),
        autoSubscriptionCreation=AutoSubscriptionCreationOverride(config.allowAutoSubscriptionCreation),
        inactiveTopicPolicies=_default_inactive_topic_policies(config),
        schemaCompatibilityStrategy=config.schemaCompatibilityStrategy,
        schemaValidationEnforced=config.isSchemaValidationEnforced,
    )  # fmt: skip


def _strategy(
    topic: Policies, namespace: Policies, config: ServiceConfiguration
) -> SchemaCompatibilityStrategy:
    """The first strategy that is not UNDEFINED."""
    levels = (
        topic.schemaCompatibilityStrategy,
        namespace.schemaCompatibilityStrategy,
        config.schemaCompatibilityStrategy,
    )
    return next((found for found in levels if found is not None and found != "UNDEFINED"), "FULL")


def broker_publish_rate(config: ServiceConfiguration) -> PublishRate | None:
    """The publish rate of all topics of the ingress partition together."""
    rate = PublishRate(
        config.brokerPublisherThrottlingMaxMessageRate, config.brokerPublisherThrottlingMaxByteRate
    )
    return rate if rate.limits else None


def broker_dispatch_rate(config: ServiceConfiguration) -> DispatchRate | None:
    """The dispatch rate of all topics of the ingress partition together."""
    rate = DispatchRate(config.dispatchThrottlingRateInMsg, config.dispatchThrottlingRateInByte)
    return rate if rate.limits else None


def over(own: Policies, whole: Policies) -> Policies:
    """The policies of a partition: its `own`, then those of its partitioned topic."""
    merged = {
        name: getattr(whole if getattr(own, name) is None else own, name)
        for name in Policies.__struct_fields__
    }
    both = ("backlogQuota", "subscriptionDispatchRates", "properties", "kept")
    return Policies(**merged | {name: getattr(whole, name) | getattr(own, name) for name in both})


def max_topics(namespace: Policies, config: ServiceConfiguration) -> int:
    """maxTopicsPerNamespace of a namespace; 0 or negative: no limit."""
    return _first(None, namespace.maxTopicsPerNamespace, config.maxTopicsPerNamespace)


def _first(topic: T | None, namespace: T | None, broker: T) -> T:
    return _effective(topic, namespace, broker).value


R = TypeVar("R", DispatchRate, PublishRate, SubscribeRate)


def _rate(*levels: R | None) -> R | None:
    """The rate of the first level that limits anything."""
    return next((rate for rate in levels if rate is not None and rate.limits), None)


def _effective(topic: T | None, namespace: T | None, broker: T) -> Effective[T]:
    if topic is not None:
        return Effective(topic, "topic")
    if namespace is not None:
        return Effective(namespace, "namespace")
    return Effective(broker, "broker")


def _not_negative(value: int | None) -> int | None:
    return None if value is None or value < 0 else value


def _quota(
    type_: QuotaType, topic: Policies, namespace: Policies, broker: BacklogQuota
) -> Effective[BacklogQuota]:
    """A level that sets one type of quota does not hide the other type of a lower level (docs/rules/quotas.md §1)."""
    return _effective(topic.backlogQuota.get(type_), namespace.backlogQuota.get(type_), broker)
