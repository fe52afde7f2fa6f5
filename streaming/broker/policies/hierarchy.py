"""Policies at the levels topic, namespace and broker: the first level that sets a policy decides (I1).

Names are those of Pulsar's admin API.
"""

from collections.abc import Callable
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


class RetentionPolicies(msgspec.Struct, frozen=True):
    """How much is kept of what every subscription has acknowledged. Both 0: nothing; both must be 0 or neither."""

    retentionTimeInMinutes: Annotated[Int32, unit("min")] = 0
    """How long. −1: forever."""
    retentionSizeInMB: Annotated[Int32, unit("MiB")] = 0
    """How much. −1: everything."""


class BacklogQuota(msgspec.Struct, frozen=True):
    """The limit of a backlog, and what happens beyond it."""

    limitSize: Annotated[Int64, unit("bytes")] = -1
    """The largest backlog. Negative: no limit. For the type destination_storage."""
    limitTime: Annotated[Int32, unit("s")] = -1
    """The greatest age of the oldest unacknowledged message. 0 or negative: no limit. For the type message_age."""
    policy: QuotaPolicy = "producer_request_hold"
    """producer_request_hold, producer_exception: producers are closed and new ones refused.
    consumer_backlog_eviction: the oldest messages leave the backlog."""


class DispatchRate(msgspec.Struct, frozen=True):
    """How fast messages are sent to consumers. Both rates 0 or less: as if not set."""

    dispatchThrottlingRateInMsg: Annotated[Int32, unit("messages")] = 0
    """How many per period. 0 or less: no limit."""
    dispatchThrottlingRateInByte: Annotated[Int64, unit("bytes")] = 0
    """How many per period. 0 or less: no limit."""
    relativeToPublishRate: bool = False
    """Whether the rate at which the topic is published to, per second, is added to both."""
    ratePeriodInSecond: Annotated[Int32, unit("s")] = 0
    """The period. Less than 1 counts as 1."""

    @property
    def limits(self) -> bool:
        """Whether it limits anything."""
        return self.dispatchThrottlingRateInMsg > 0 or self.dispatchThrottlingRateInByte > 0


class PublishRate(msgspec.Struct, frozen=True):
    """How fast a topic may be published to. Both rates 0 or less: as if not set."""

    publishThrottlingRateInMsg: Annotated[Int32, unit("messages")] = -1
    """How many per second. 0 or less: no limit."""
    publishThrottlingRateInByte: Annotated[Int64, unit("bytes")] = -1
    """How many per second. 0 or less: no limit."""

    @property
    def limits(self) -> bool:
        """Whether it limits anything."""
        return self.publishThrottlingRateInMsg > 0 or self.publishThrottlingRateInByte > 0


class SubscribeRate(msgspec.Struct, frozen=True):
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
    """How a topic is stored. Magnetar has no bookies: only the rate has an effect, the rest is kept and returned."""

    bookkeeperEnsemble: Annotated[Int32, unit("bookies")] = 2
    """Bookies that a ledger is spread over."""
    bookkeeperWriteQuorum: Annotated[Int32, unit("bookies")] = 2
    """Copies of an entry."""
    bookkeeperAckQuorum: Annotated[Int32, unit("bookies")] = 2
    """Copies that must be written before an entry counts."""
    managedLedgerMaxMarkDeleteRate: Annotated[float, unit("writes/s")] = 0.0
    """How often each cursor's position may be written, per second, see managedLedgerDefaultMarkDeleteRateLimit. 0 or less: no limit."""


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
    """Whether and when an inactive topic is deleted. It never is where brokerDeleteInactiveTopicsEnabled is false."""

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
    """Whether and when an inactive topic is deleted."""
    schemaCompatibilityStrategy: SchemaCompatibilityStrategy | None = None
    """With which of a topic's schemas a new one must be compatible, and how."""
    schemaValidationEnforced: bool | None = None
    """Whether producers without a schema are refused on a topic that has one."""
    isAllowAutoUpdateSchema: bool | None = None
    """Whether producers may add a schema to a topic. Of a namespace only."""
    properties: dict[str, str] = {}
    """Any texts by name. Of a namespace only."""
    persistence: PersistencePolicies | None = None
    """How a topic is stored, and how often its cursors are written."""
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
    some of the topic's subscriptions, at least. `compactionThreshold` in bytes, 0 or less: off. `publish_throttled`: a publish rate limits the topic. `encryptionRequired`: new
    producers must encrypt; `messages_encrypted`: so must those that are connected, since a policy requires it, not only the broker
    (mirrors `Topic.isEncryptionRequired`; docs/rules/batching.md §7).
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
    persistence: PersistencePolicies
    compactionThreshold: int
    throttled: bool
    publish_throttled: bool
    messages_encrypted: bool

    def dispatch_rate_of(self, subscription: str) -> DispatchRate | None:
        """The dispatch rate of a subscription."""
        return self.subscriptionDispatchRates.get(subscription, self.subscriptionDispatchRate)


NO_POLICIES = Policies()


def overlay(policies: Policies, over: Policies | None) -> Policies:
    """Set what `over` sets, too. Returns `policies`."""
    for name in Policies.__struct_fields__ if over is not None else ():
        value, unset = getattr(over, name), getattr(NO_POLICIES, name)
        if isinstance(unset, dict):
            value = getattr(policies, name) | value
        if value != unset:
            setattr(policies, name, value)
    return policies


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


class _Levels(NamedTuple):
    """Where a policy comes from: the topic or its namespace, whichever first has a value that `counts`, or else the `broker`. `shown`: the
    admin API shows it with ``?applied=true``. `of_topics`: a topic may set it. `older`: its value by an older policy of the namespace."""

    broker: Callable[[ServiceConfiguration], Any]
    counts: Callable[[Any], bool] = lambda value: value is not None
    shown: bool = False
    of_topics: bool = True
    older: Callable[[Policies], Any] = lambda namespace: None


def _is_limit(rate: DispatchRate | PublishRate | SubscribeRate | None) -> bool:
    return rate is not None and rate.limits


AUTO_UPDATE = "schemaAutoUpdateCompatibilityStrategy"
"""The older policy of a namespace for schemaCompatibilityStrategy. It counts where that is not set."""

AUTO_UPDATE_STRATEGIES: dict[Any, SchemaCompatibilityStrategy] = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE", "AlwaysCompatible": "ALWAYS_COMPATIBLE", "Backward": "BACKWARD",
    "Forward": "FORWARD", "Full": "FULL", "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE", "FullTransitive": "FULL_TRANSITIVE",
}  # fmt: skip
"""Its values, and what they mean (mirrors `SchemaCompatibilityStrategy.fromAutoUpdatePolicy`)."""

LEVELS: dict[str, _Levels] = {
    # A negative TTL counts as not set (docs/rules/ttl.md §1).
    "messageTTL": _Levels(lambda c: c.ttlDurationDefaultInSeconds, lambda value: value is not None and value >= 0, shown=True),
    "retention": _Levels(lambda c: RetentionPolicies(c.defaultRetentionTimeInMinutes, c.defaultRetentionSizeInMB), shown=True),
    "deduplication": _Levels(lambda c: c.brokerDeduplicationEnabled, shown=True),
    "deduplicationSnapshotInterval": _Levels(lambda c: c.brokerDeduplicationSnapshotIntervalSeconds),
    "maxProducersPerTopic": _Levels(lambda c: c.maxProducersPerTopic, shown=True),
    "maxConsumersPerTopic": _Levels(lambda c: c.maxConsumersPerTopic, shown=True),
    "maxConsumersPerSubscription": _Levels(lambda c: c.maxConsumersPerSubscription),
    "maxSubscriptionsPerTopic": _Levels(lambda c: c.maxSubscriptionsPerTopic),
    "maxUnackedMessagesPerConsumer": _Levels(lambda c: c.maxUnackedMessagesPerConsumer, shown=True),
    "maxUnackedMessagesPerSubscription": _Levels(lambda c: c.maxUnackedMessagesPerSubscription, shown=True),
    "maxMessageSize": _Levels(lambda c: c.maxMessageSize),
    "maxTopicsPerNamespace": _Levels(lambda c: c.maxTopicsPerNamespace, of_topics=False),
    # A policy of false counts as not set (docs/rules/batching.md §7).
    "encryptionRequired": _Levels(lambda c: c.encryptionRequireOnProducer, bool),
    "subscriptionExpirationTime": _Levels(lambda c: c.subscriptionExpirationTimeMinutes),
    "inactiveTopicPolicies": _Levels(lambda c: _default_inactive_topic_policies(c), shown=True),
    "dispatchRate": _Levels(
        lambda c: DispatchRate(c.dispatchThrottlingRatePerTopicInMsg, c.dispatchThrottlingRatePerTopicInByte, ratePeriodInSecond=1),
        _is_limit, shown=True,
    ),
    "subscriptionDispatchRate": _Levels(
        lambda c: DispatchRate(
            c.dispatchThrottlingRatePerSubscriptionInMsg, c.dispatchThrottlingRatePerSubscriptionInByte, ratePeriodInSecond=1
        ),
        _is_limit, shown=True,
    ),
    "publishRate": _Levels(lambda c: PublishRate(c.maxPublishRatePerTopicInMessages, c.maxPublishRatePerTopicInBytes), _is_limit),
    "subscribeRate": _Levels(
        lambda c: SubscribeRate(c.subscribeThrottlingRatePerConsumer, c.subscribeRatePeriodPerConsumerInSecond), _is_limit, shown=True
    ),
    "autoSubscriptionCreation": _Levels(lambda c: AutoSubscriptionCreationOverride(c.allowAutoSubscriptionCreation), shown=True),
    "schemaCompatibilityStrategy": _Levels(
        lambda c: c.schemaCompatibilityStrategy, lambda value: value not in (None, "UNDEFINED"), shown=True,
        older=lambda namespace: AUTO_UPDATE_STRATEGIES.get(namespace.kept.get(AUTO_UPDATE)),
    ),
    "schemaValidationEnforced": _Levels(lambda c: c.isSchemaValidationEnforced, bool, shown=True),
    "isAllowAutoUpdateSchema": _Levels(lambda c: c.isAllowAutoUpdateSchemaEnabled, of_topics=False),
    "delayedDelivery": _Levels(
        lambda c: DelayedDeliveryPolicies(c.delayedDeliveryTickTimeMillis, c.delayedDeliveryEnabled, c.delayedDeliveryMaxDelayInMillis),
        shown=True,
    ),
    "subscriptionTypesEnabled": _Levels(lambda c: c.subscriptionTypesEnabled.split(","), bool),
    "persistence": _Levels(lambda c: PersistencePolicies(1, 1, 1, c.managedLedgerDefaultMarkDeleteRateLimit), shown=True),
}  # fmt: skip
"""The policies that have levels, but for backlog quotas, of which each type has its own."""


def effective(
    policy: str, topic: Policies, namespace: Policies, config: ServiceConfiguration
) -> Effective[Any]:
    """The value of a policy of `LEVELS` that holds for a topic, and the level that sets it."""
    levels = LEVELS[policy]
    if levels.of_topics and levels.counts(value := getattr(topic, policy)):
        return Effective(value, "topic")
    if levels.counts(value := getattr(namespace, policy)) or levels.counts(value := levels.older(namespace)):
        return Effective(value, "namespace")
    return Effective(levels.broker(config), "broker")


def resolve(topic: Policies, namespace: Policies, config: ServiceConfiguration) -> HierarchyTopicPolicies:
    """The policies in force on a topic."""
    found = {policy: effective(policy, topic, namespace, config) for policy in LEVELS}
    values = {policy: each.value for policy, each in found.items()}
    del values["maxTopicsPerNamespace"]
    rates = {
        policy: rate if rate.limits else None for policy, rate in values.items() if policy.endswith("Rate")
    }
    strategy = values["schemaCompatibilityStrategy"]
    return HierarchyTopicPolicies(**{
        **values,
        **rates,
        "messageTTL": found["messageTTL"],
        "retention": found["retention"],
        "delayedDelivery": found["delayedDelivery"],
        "destination_storage_quota": effective_quota("destination_storage", topic, namespace, config),
        "message_age_quota": effective_quota("message_age", topic, namespace, config),
        "autoSubscriptionCreation": values["autoSubscriptionCreation"].allowAutoSubscriptionCreation,
        "schemaCompatibilityStrategy": "FULL" if strategy == "UNDEFINED" else strategy,
        "subscriptionTypesEnabled": frozenset(values["subscriptionTypesEnabled"]),
        "subscriptionDispatchRates": topic.subscriptionDispatchRates,
        "throttled": bool(
            rates["dispatchRate"] or rates["subscriptionDispatchRate"] or topic.subscriptionDispatchRates
            or broker_dispatch_rate(config)
        ),
        "publish_throttled": bool(rates["publishRate"] or broker_publish_rate(config)),
        "compactionThreshold": compaction_threshold(topic, namespace, config),
        "messages_encrypted": found["encryptionRequired"].level != "broker",
    })  # fmt: skip


COMPACTION_THRESHOLD = "compactionThreshold"
"""The policy, among those that are kept, that says how many bytes there are before a topic is compacted."""


def compaction_threshold(topic: Policies, namespace: Policies, config: ServiceConfiguration) -> int:
    """The bytes from which on a topic is compacted by itself; 0 or less: it is not."""
    of_broker = config.brokerServiceCompactionThresholdInBytes
    of_namespace = namespace.kept.get(COMPACTION_THRESHOLD, of_broker)
    return int(topic.kept.get(COMPACTION_THRESHOLD, of_namespace))


def broker_level(config: ServiceConfiguration) -> Policies:
    """What holds where no level sets a policy, as the admin API shows it (`?applied=true`): of the policies that it shows."""
    quota = default_quota(config)
    shown = {policy: levels.broker(config) for policy, levels in LEVELS.items() if levels.shown}
    return Policies(**shown, backlogQuota={"destination_storage": quota, "message_age": quota})


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
    return int(effective("maxTopicsPerNamespace", NO_POLICIES, namespace, config).value)


def effective_quota(
    type_: QuotaType, topic: Policies, namespace: Policies, config: ServiceConfiguration
) -> Effective[BacklogQuota]:
    """The backlog quota of a type that holds for a topic, and the level that sets it."""
    if type_ == "message_age" and not config.backlogQuotaMessageAge:
        return Effective(BacklogQuota(), "broker")
    return _quota(type_, topic, namespace, default_quota(config))


def _quota(
    type_: QuotaType, topic: Policies, namespace: Policies, broker: BacklogQuota
) -> Effective[BacklogQuota]:
    """A level that sets one type of quota does not hide the other type of a lower level (docs/rules/quotas.md §1)."""
    if (own := topic.backlogQuota.get(type_)) is not None:
        return Effective(own, "topic")
    if (of_namespace := namespace.backlogQuota.get(type_)) is not None:
        return Effective(of_namespace, "namespace")
    return Effective(broker, "broker")
