"""The levels of policies: each policy holds that its topic sets, or else its namespace, or else the broker."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streaming.broker.config import ServiceConfiguration
from streaming.broker.policies.hierarchy import (
    LEVELS,
    NO_POLICIES,
    AutoSubscriptionCreationOverride,
    BacklogQuota,
    DelayedDeliveryPolicies,
    DispatchRate,
    Effective,
    HierarchyTopicPolicies,
    InactiveTopicPolicies,
    PersistencePolicies,
    Policies,
    PublishRate,
    RetentionPolicies,
    SubscribeRate,
    broker_level,
    effective,
    max_topics,
    resolve,
)

BROKER = ServiceConfiguration(
    ttlDurationDefaultInSeconds=31, defaultRetentionTimeInMinutes=32, defaultRetentionSizeInMB=33, brokerDeduplicationEnabled=True,
    brokerDeduplicationSnapshotIntervalSeconds=34, maxProducersPerTopic=35, maxConsumersPerTopic=36, maxConsumersPerSubscription=37,
    maxSubscriptionsPerTopic=38, maxUnackedMessagesPerConsumer=39, maxUnackedMessagesPerSubscription=40, maxMessageSize=41_000,
    maxTopicsPerNamespace=42, encryptionRequireOnProducer=True, subscriptionExpirationTimeMinutes=43,
    brokerDeleteInactiveTopicsEnabled=False, brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=44,
    dispatchThrottlingRatePerTopicInMsg=45, dispatchThrottlingRatePerTopicInByte=46, dispatchThrottlingRatePerSubscriptionInMsg=47,
    dispatchThrottlingRatePerSubscriptionInByte=48, maxPublishRatePerTopicInMessages=49, maxPublishRatePerTopicInBytes=50,
    subscribeThrottlingRatePerConsumer=51, subscribeRatePeriodPerConsumerInSecond=52, allowAutoSubscriptionCreation=False,
    schemaCompatibilityStrategy="BACKWARD", isSchemaValidationEnforced=True, isAllowAutoUpdateSchemaEnabled=False,
    delayedDeliveryTickTimeMillis=53, delayedDeliveryEnabled=False, delayedDeliveryMaxDelayInMillis=54,
    subscriptionTypesEnabled="Exclusive,Shared", managedLedgerDefaultMarkDeleteRateLimit=55,
)  # fmt: skip
"""Every value is one that no other policy has."""

OF_BROKER: dict[str, Any] = {
    "messageTTL": 31, "retention": RetentionPolicies(32, 33), "deduplication": True, "deduplicationSnapshotInterval": 34,
    "maxProducersPerTopic": 35, "maxConsumersPerTopic": 36, "maxConsumersPerSubscription": 37, "maxSubscriptionsPerTopic": 38,
    "maxUnackedMessagesPerConsumer": 39, "maxUnackedMessagesPerSubscription": 40, "maxMessageSize": 41_000,
    "maxTopicsPerNamespace": 42, "encryptionRequired": True, "subscriptionExpirationTime": 43,
    "inactiveTopicPolicies": InactiveTopicPolicies(BROKER.brokerDeleteInactiveTopicsMode, 44, False),
    "dispatchRate": DispatchRate(45, 46, ratePeriodInSecond=1), "subscriptionDispatchRate": DispatchRate(47, 48, ratePeriodInSecond=1),
    "publishRate": PublishRate(49, 50), "subscribeRate": SubscribeRate(51, 52),
    "autoSubscriptionCreation": AutoSubscriptionCreationOverride(False), "schemaCompatibilityStrategy": "BACKWARD",
    "schemaValidationEnforced": True, "isAllowAutoUpdateSchema": False, "delayedDelivery": DelayedDeliveryPolicies(53, False, 54),
    "subscriptionTypesEnabled": ["Exclusive", "Shared"], "persistence": PersistencePolicies(1, 1, 1, 55),
}  # fmt: skip
SET: dict[str, tuple[Any, Any]] = {
    "messageTTL": (1, 0), "retention": (RetentionPolicies(1, 2), RetentionPolicies()), "deduplication": (True, False),
    "encryptionRequired": (True, True), "inactiveTopicPolicies": (InactiveTopicPolicies("delete_when_no_subscriptions", 1, True),) * 2,
    "dispatchRate": (DispatchRate(1), DispatchRate(0, 2)), "subscriptionDispatchRate": (DispatchRate(1), DispatchRate(0, 2)),
    "publishRate": (PublishRate(1), PublishRate(0, 2)), "subscribeRate": (SubscribeRate(1, 2), SubscribeRate(3, 4)),
    "autoSubscriptionCreation": (AutoSubscriptionCreationOverride(True),) * 2, "schemaCompatibilityStrategy": ("FULL", "ALWAYS_COMPATIBLE"),
    "schemaValidationEnforced": (True, True), "isAllowAutoUpdateSchema": (True, False),
    "delayedDelivery": (DelayedDeliveryPolicies(1, True, 2), DelayedDeliveryPolicies(3, True, 4)),
    "subscriptionTypesEnabled": (["Failover"], ["Key_Shared"]),
    "persistence": (PersistencePolicies(1, 1, 1, 0.5), PersistencePolicies(2, 2, 2, 0)),
}  # fmt: skip
"""Two values that a level may set. Of others: 1 and 0."""

NOT_SET: dict[str, Any] = {
    "messageTTL": -1, "dispatchRate": DispatchRate(), "subscriptionDispatchRate": DispatchRate(), "publishRate": PublishRate(),
    "subscribeRate": SubscribeRate(), "schemaCompatibilityStrategy": "UNDEFINED", "schemaValidationEnforced": False,
    "subscriptionTypesEnabled": [], "encryptionRequired": False,
}  # fmt: skip
"""Values that count as none."""

SHOWN = set(OF_BROKER) - {
    "deduplicationSnapshotInterval", "maxConsumersPerSubscription", "maxSubscriptionsPerTopic", "maxMessageSize",
    "maxTopicsPerNamespace", "encryptionRequired", "subscriptionExpirationTime", "publishRate", "isAllowAutoUpdateSchema",
    "subscriptionTypesEnabled",
}  # fmt: skip
OF_NAMESPACES = {"maxTopicsPerNamespace", "isAllowAutoUpdateSchema"}


def policies(policy: str, value: Any) -> Policies:
    return Policies(**{policy: value})


@pytest.mark.parametrize("policy", LEVELS)
def test_the_first_level_that_sets_a_policy_decides(policy: str) -> None:
    for value in SET.get(policy, (1, 0)):
        own = policies(policy, value)
        assert effective(policy, NO_POLICIES, own, BROKER) == Effective(value, "namespace")
        level = effective(policy, own, policies(policy, SET.get(policy, (2,))[0]), BROKER).level
        assert level == ("namespace" if policy in OF_NAMESPACES else "topic")
    none = policies(policy, NOT_SET.get(policy))
    for topic in (none, NO_POLICIES):
        assert effective(policy, topic, none, BROKER) == Effective(OF_BROKER[policy], "broker")


def test_what_holds_and_what_the_admin_api_shows_of_the_broker() -> None:
    found = resolve(NO_POLICIES, NO_POLICIES, BROKER)
    for policy in OF_BROKER.keys() - {
        "maxTopicsPerNamespace",
        "autoSubscriptionCreation",
        "subscriptionTypesEnabled",
    }:
        value = getattr(found, policy)
        assert (value.value if isinstance(value, Effective) else value) == OF_BROKER[policy], policy
    assert found.autoSubscriptionCreation is False
    assert found.subscriptionTypesEnabled == {"Exclusive", "Shared"}
    assert max_topics(NO_POLICIES, BROKER) == 42
    assert max_topics(Policies(maxTopicsPerNamespace=3), BROKER) == 3
    assert LEVELS.keys() == OF_BROKER.keys()
    shown = msgspec.structs.asdict(broker_level(BROKER))
    assert {policy: shown[policy] for policy in SHOWN} == {policy: OF_BROKER[policy] for policy in SHOWN}
    assert {policy for policy, value in shown.items() if value not in (None, {})} == SHOWN | {"backlogQuota"}


def test_a_rate_without_a_limit_is_none() -> None:
    found = resolve(NO_POLICIES, NO_POLICIES, ServiceConfiguration())
    assert {found.dispatchRate, found.subscriptionDispatchRate, found.publishRate, found.subscribeRate} == {
        None
    }
    assert not found.throttled
    assert not found.publish_throttled
    for policy in ("dispatchRate", "subscriptionDispatchRate"):
        assert resolve(policies(policy, DispatchRate(1)), NO_POLICIES, ServiceConfiguration()).throttled
    of_one = Policies(subscriptionDispatchRates={"s": DispatchRate(1)})
    assert resolve(of_one, NO_POLICIES, ServiceConfiguration()).throttled
    assert resolve(NO_POLICIES, NO_POLICIES, ServiceConfiguration(dispatchThrottlingRateInMsg=1)).throttled
    assert resolve(
        policies("publishRate", PublishRate(1)), NO_POLICIES, ServiceConfiguration()
    ).publish_throttled
    limited = ServiceConfiguration(brokerPublisherThrottlingMaxMessageRate=1)
    assert resolve(NO_POLICIES, NO_POLICIES, limited).publish_throttled


def test_no_strategy_at_all_is_full() -> None:
    config = ServiceConfiguration(schemaCompatibilityStrategy="UNDEFINED")
    assert resolve(NO_POLICIES, NO_POLICIES, config).schemaCompatibilityStrategy == "FULL"


def test_an_older_policy_of_a_namespace_comes_before_the_brokers_setting() -> None:
    config = ServiceConfiguration(schemaCompatibilityStrategy="BACKWARD")

    def strategy(older: str | None, topic: Policies = NO_POLICIES, **own: Any) -> str:
        namespace = Policies(kept={"schemaAutoUpdateCompatibilityStrategy": older} if older else {}, **own)
        return resolve(topic, namespace, config).schemaCompatibilityStrategy

    assert strategy(None) == "BACKWARD"
    assert strategy("ForwardTransitive") == "FORWARD_TRANSITIVE"
    assert strategy("AutoUpdateDisabled", schemaCompatibilityStrategy="UNDEFINED") == "ALWAYS_INCOMPATIBLE"
    assert strategy("AlwaysCompatible", schemaCompatibilityStrategy="FULL") == "FULL"
    assert strategy("AlwaysCompatible", Policies(schemaCompatibilityStrategy="FULL")) == "FULL"
    assert strategy("another text") == "BACKWARD"


def test_each_type_of_quota_has_its_own_levels() -> None:
    size, age = BacklogQuota(limitSize=5), BacklogQuota(limitTime=6)
    topic, namespace = (
        Policies(backlogQuota={"destination_storage": size}),
        Policies(backlogQuota={"message_age": age}),
    )
    found: HierarchyTopicPolicies = resolve(topic, namespace, BROKER)
    assert found.destination_storage_quota == Effective(size, "topic")
    assert found.message_age_quota == Effective(age, "namespace")
    assert resolve(namespace, topic, BROKER).destination_storage_quota == Effective(size, "namespace")
    assert resolve(NO_POLICIES, namespace, BROKER).destination_storage_quota.level == "broker"
    without = ServiceConfiguration(backlogQuotaMessageAge=False)
    assert resolve(NO_POLICIES, namespace, without).message_age_quota == Effective(BacklogQuota(), "broker")
