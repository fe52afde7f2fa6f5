"""Policies at the levels topic, namespace and broker; the first level that sets one decides (I1).

A value of `None` = not set at this level. Names are those of Pulsar's admin API.
"""

from typing import Any, Literal, NamedTuple

import msgspec

from schemas.commands import Int32, Int64
from streaming.broker.config import QuotaPolicy, ServiceConfiguration

QuotaType = Literal["destination_storage", "message_age"]


class RetentionPolicies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Minutes and MB; −1 = without limit, 0/0 = nothing is kept."""

    retentionTimeInMinutes: Int32 = 0
    retentionSizeInMB: Int32 = 0


class BacklogQuota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes (< 0 off), seconds (≤ 0 off)."""

    limitSize: Int64 = -1
    limitTime: Int32 = -1
    policy: QuotaPolicy = "producer_request_hold"


class Policies(msgspec.Struct, omit_defaults=True):
    """What one level sets."""

    messageTTL: int | None = None
    retention: RetentionPolicies | None = None
    backlogQuota: dict[str, BacklogQuota] = {}
    deduplication: bool | None = None
    deduplicationSnapshotInterval: int | None = None
    maxProducersPerTopic: int | None = None
    maxConsumersPerTopic: int | None = None
    maxConsumersPerSubscription: int | None = None
    maxSubscriptionsPerTopic: int | None = None
    maxUnackedMessagesPerConsumer: int | None = None
    maxUnackedMessagesPerSubscription: int | None = None
    maxMessageSize: int | None = None
    encryptionRequired: bool | None = None
    subscriptionExpirationTime: int | None = None
    maxTopicsPerNamespace: int | None = None


class Effective(NamedTuple):
    """A policy's value and the level it comes from, for the outputs' ``policy`` column."""

    value: Any
    level: str


NO_POLICIES = Policies()

_BROKER_DEFAULT = {
    "messageTTL": "ttlDurationDefaultInSeconds",
    "deduplication": "brokerDeduplicationEnabled",
    "deduplicationSnapshotInterval": "brokerDeduplicationSnapshotIntervalSeconds",
    "maxTopicsPerNamespace": "maxTopicsPerNamespace",
    "maxProducersPerTopic": "maxProducersPerTopic",
    "maxConsumersPerTopic": "maxConsumersPerTopic",
    "maxConsumersPerSubscription": "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic": "maxSubscriptionsPerTopic",
    "maxUnackedMessagesPerConsumer": "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesPerSubscription": "maxUnackedMessagesPerSubscription",
    "maxMessageSize": "maxMessageSize",
    "encryptionRequired": "encryptionRequireOnProducer",
    "subscriptionExpirationTime": "subscriptionExpirationTimeMinutes",
}


def effective(name: str, topic: Policies, namespace: Policies, config: ServiceConfiguration) -> Effective:
    """The policy `name` that holds on a topic. A negative TTL counts as not set (ttl.md §1)."""
    for level, policies in (("topic", topic), ("namespace", namespace)):
        value = getattr(policies, name)
        if value is not None and not (name == "messageTTL" and value < 0):
            return Effective(value, level)
    if name == "retention":
        return Effective(
            RetentionPolicies(config.defaultRetentionTimeInMinutes, config.defaultRetentionSizeInMB), "broker"
        )
    return Effective(getattr(config, _BROKER_DEFAULT[name]), "broker")


def effective_quota(
    type_: QuotaType, topic: Policies, namespace: Policies, config: ServiceConfiguration
) -> Effective:
    """The backlog quota of a type; setting one type at a level doesn't hide the other's (backlog_quota.md §1)."""
    if type_ == "message_age" and not config.backlogQuotaMessageAge:
        return Effective(BacklogQuota(), "broker")
    for level, policies in (("topic", topic), ("namespace", namespace)):
        if type_ in policies.backlogQuota:
            return Effective(policies.backlogQuota[type_], level)
    size = int(config.backlogQuotaDefaultLimitGB * 2**30)
    return Effective(
        BacklogQuota(
            size if size > 0 else config.backlogQuotaDefaultLimitBytes,
            config.backlogQuotaDefaultLimitSecond,
            config.backlogQuotaDefaultRetentionPolicy,
        ),
        "broker",
    )
