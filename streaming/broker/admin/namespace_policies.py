"""Pulsar's object of all policies of a namespace (mirrors `Policies`): as the answer to GET, and as the body that creates a
namespace.
"""

from typing import Any

import msgspec

from schemas.commands import Admin
from schemas.units import Int32
from streaming.broker import bundles
from streaming.broker.admin.permissions import AuthAction
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context, namespace_of
from streaming.broker.errors import AdminError
from streaming.broker.names import CLUSTER
from streaming.broker.policies.admin_calls import quota_map, set_policy
from streaming.broker.policies.arguments import convert
from streaming.broker.policies.hierarchy import Policies

SUBSCRIPTION_PERMISSIONS = "permissions/subscription"
"""Where a namespace keeps who may use its subscriptions."""

_FIELDS = {
    "message_ttl_in_seconds": "messageTTL",
    "retention_policies": "retention",
    "deduplicationEnabled": "deduplication",
    "deduplicationSnapshotIntervalSeconds": "deduplicationSnapshotInterval",
    "max_topics_per_namespace": "maxTopicsPerNamespace",
    "max_producers_per_topic": "maxProducersPerTopic",
    "max_consumers_per_topic": "maxConsumersPerTopic",
    "max_consumers_per_subscription": "maxConsumersPerSubscription",
    "max_subscriptions_per_topic": "maxSubscriptionsPerTopic",
    "max_unacked_messages_per_consumer": "maxUnackedMessagesPerConsumer",
    "max_unacked_messages_per_subscription": "maxUnackedMessagesPerSubscription",
    "encryption_required": "encryptionRequired",
    "subscription_expiration_time_minutes": "subscriptionExpirationTime",
    "delayed_delivery_policies": "delayedDelivery",
    "subscription_types_enabled": "subscriptionTypesEnabled",
    "autoTopicCreationOverride": "autoTopicCreation",
    "autoSubscriptionCreationOverride": "autoSubscriptionCreation",
    "schema_validation_enforced": "schemaValidationEnforced",
    "is_allow_auto_update_schema": "isAllowAutoUpdateSchema",
    "inactive_topic_policies": "inactiveTopicPolicies",
    "schema_compatibility_strategy": "schemaCompatibilityStrategy",
}
"""Name in the object → name of the policy, besides the quotas and the rates."""

_RATES = {
    "topicDispatchRate": "dispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "clusterSubscribeRate": "subscribeRate",
    "publishMaxMessageRate": "publishRate",
}
"""The same for rates, which the object has by cluster."""

_KEPT = {
    "persistence": "persistence",
    "antiAffinityGroup": "antiAffinity",
    "compaction_threshold": "compactionThreshold",
    "offload_policies": "offloadPolicies",
    "offload_deletion_lag_ms": "offloadDeletionLagMs",
    "offload_threshold": "offloadThreshold",
    "offload_threshold_in_seconds": "offloadThresholdInSeconds",
    "subscription_auth_mode": "subscriptionAuthMode",
    "schema_auto_update_compatibility_strategy": "schemaAutoUpdateCompatibilityStrategy",
    "dispatcherPauseOnAckStatePersistentEnabled": "dispatcherPauseOnAckStatePersistent",
    "allowed_topic_property_keys_for_metrics": "allowedTopicPropertyKeysForMetrics",
}
"""The same for policies without effect."""

_EMPTY: dict[str, Any] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": [CLUSTER],
    "allowed_clusters": [],
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": True,
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""The object of a namespace without policies."""


class AuthPolicies(msgspec.Struct):
    """Who may do what in a new namespace."""

    namespace_auth: dict[str, list[AuthAction]] = {}
    subscription_auth_roles: dict[str, list[str]] = {}


_IGNORED = frozenset({"deleted", "migrated", "latency_stats_sample_rate"})


def shown(ctx: Context, namespace: str) -> dict[str, Any]:
    """The policies of a namespace as Pulsar's object."""
    policies = ctx.namespaces.get(namespace, Policies())
    topics = {topic: roles for topic, roles in ctx.permissions.items() if "://" in topic}
    found = _EMPTY | {
        "auth_policies": {
            "namespace_auth": ctx.permissions.get(namespace, {}),
            "destination_auth": {name: topics[name] for name in topics if namespace_of(name) == namespace},
            "subscription_auth_roles": policies.kept.get(SUBSCRIPTION_PERMISSIONS, {}),
        },
        "replication_clusters": policies.kept.get("replication", [CLUSTER]),
        "allowed_clusters": policies.kept.get("allowedClusters", []),
        "bundles": bundles.shown(policies),
        "backlog_quota_map": quota_map(policies.backlogQuota),
        "properties": policies.properties,
    }
    for name, field in _KEPT.items():
        if field in policies.kept:
            found[name] = policies.kept[field]
    if (rate := policies.kept.get("replicatorDispatchRate")) is not None:
        found["replicatorDispatchRate"] = {CLUSTER: rate}
    for name, field in (_FIELDS | _RATES).items():
        if (value := getattr(policies, field)) is not None:
            built = msgspec.to_builtins(value)
            found[name] = {CLUSTER: built} if name in _RATES else built
    return found


def read(body: Any, config: ServiceConfiguration) -> Policies:
    """The policies in the body of a call that creates a namespace. Raises `AdminError` for a bad value, and for a policy that
    is not supported."""
    policies = Policies()

    def set_(field: str, value: Any, parameters: str = "") -> None:
        set_policy(policies, Admin(method="POST", path=parameters, body=value), field, config)

    for name, value in convert({} if body is None else body, dict[str, Any]).items():
        if value is None or value == _EMPTY.get(name) or name in _IGNORED:
            continue
        if name == "bundles":
            bundles.create(policies, convert(value, _Bundles).numBundles or 0)
        elif name == "auth_policies":
            roles = convert(value, AuthPolicies).subscription_auth_roles
            if roles:
                policies.kept = {**policies.kept, SUBSCRIPTION_PERMISSIONS: roles}
        elif name == "properties":
            policies.properties = convert(value, dict[str, str])
        elif name in _KEPT:
            set_(_KEPT[name], value)
        elif name == "backlog_quota_map":
            for type_, quota in convert(value, dict[str, Any]).items():
                set_("backlogQuota", quota, f"?backlogQuotaType={type_}")
        elif name in _FIELDS:
            set_(_FIELDS[name], value)
        elif name in _RATES:
            for rate in convert(value, dict[str, Any]).values():  # of each cluster, and there is only one
                set_(_RATES[name], rate)
        elif name == "replication_clusters" and set(convert(value, list[str])) <= {CLUSTER}:
            continue
        elif value and name in _EMPTY:
            raise AdminError(501, f"{name} of a new namespace is not supported")
    return policies


class _Bundles(msgspec.Struct):
    numBundles: Int32 | None = None
