"""Pulsar's object of all policies of a namespace (mirrors `Policies`): as the answer to GET, and as the body that creates a
namespace.
"""

from typing import Any

import msgspec

from schemas.commands import Admin
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import CLUSTER, Context, namespace_of
from streaming.broker.errors import AdminError
from streaming.broker.policies.admin_calls import convert, quota_map, set_policy
from streaming.broker.policies.hierarchy import Policies

BUNDLES = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
"""The only bundle."""

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
}
"""Name in the object → name of the policy, besides the quotas and the rates."""

_RATES = {
    "topicDispatchRate": "dispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "clusterSubscribeRate": "subscribeRate",
    "publishMaxMessageRate": "publishRate",
}
"""The same for rates, which the object has by cluster."""

_EMPTY: dict[str, Any] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": [CLUSTER],
    "allowed_clusters": [],
    "bundles": BUNDLES,
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
    "schema_compatibility_strategy": "ALWAYS_COMPATIBLE",
    "is_allow_auto_update_schema": True,
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""The object of a namespace without policies."""

_CLIENTS = frozenset(
    {"bundles", "schema_compatibility_strategy", "schema_auto_update_compatibility_strategy"}
)
"""What clients send with every new namespace, at the values of their own version."""


def shown(ctx: Context, namespace: str) -> dict[str, Any]:
    """The policies of a namespace as Pulsar's object."""
    policies = ctx.namespaces.get(namespace, Policies())
    topics = {topic: roles for topic, roles in ctx.permissions.items() if "://" in topic}
    found = _EMPTY | {
        "auth_policies": {
            "namespace_auth": ctx.permissions.get(namespace, {}),
            "destination_auth": {name: topics[name] for name in topics if namespace_of(name) == namespace},
            "subscription_auth_roles": {},
        },
        "backlog_quota_map": quota_map(policies.backlogQuota),
    }
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
        if value is None or value == _EMPTY.get(name) or name in _CLIENTS:
            continue
        if name == "backlog_quota_map":
            for type_, quota in convert(value, dict[str, Any]).items():
                set_("backlogQuota", quota, f"?backlogQuotaType={type_}")
        elif name in _FIELDS:
            set_(_FIELDS[name], value)
        elif name in _RATES:
            for rate in convert(value, dict[str, Any]).values():  # of each cluster, and there is only one
                set_(_RATES[name], rate)
        elif value:
            raise AdminError(501, f"{name} of a new namespace is not supported")
    return policies
