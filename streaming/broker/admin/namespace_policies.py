"""Pulsar's object of all policies of a namespace (mirrors `Policies`): as the answer to GET, as the body that creates a namespace, and as
`pulsar-admin namespaces policies` prints it.

This is the only place that knows its names. A PUT of a namespace takes what the calls on single policies refuse, such as a quota above
the retention: Pulsar checks only the clusters, the TTL, the bundles, the persistence and the retention (`NamespacesBase`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from schemas.commands import SubType
from streaming.broker import bundles
from streaming.broker.admin.permissions import AuthAction
from streaming.broker.config import MOST_PARTITIONS, SchemaCompatibilityStrategy
from streaming.broker.context import Context, namespace_of, tenant_of
from streaming.broker.errors import AdminError
from streaming.broker.names import CLUSTER
from streaming.broker.policies.admin_calls import (
    POLICY_CALLS,
    QUOTA_TYPES,
    check_persistence,
    check_retention,
    quota_map,
    with_known_mode,
    with_limit_size,
)
from streaming.broker.policies.arguments import convert
from streaming.broker.policies.hierarchy import AUTO_UPDATE, BacklogQuota, Policies, QuotaType
from streaming.broker.policies.kept import (
    AUTH_MODES,
    KEPT,
    MAY_HAVE_SECRETS,
    NO_ENTRY_FILTERS,
    offload_policies,
)

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
    "persistence": "persistence",
}
"""Name in the object → name of the policy, besides the quotas and the rates."""

_RATES = {
    "topicDispatchRate": "dispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "clusterSubscribeRate": "subscribeRate",
    "publishMaxMessageRate": "publishRate",
}
"""The same for rates, which the object has by cluster."""

_OLD_RATE = "clusterDispatchRate"
"""The name that topicDispatchRate had once. It counts where that is not set."""

_KEPT = {
    "antiAffinityGroup": "antiAffinity",
    "compaction_threshold": "compactionThreshold",
    "offload_policies": "offloadPolicies",
    "offload_deletion_lag_ms": "offloadDeletionLagMs",
    "offload_threshold": "offloadThreshold",
    "offload_threshold_in_seconds": "offloadThresholdInSeconds",
    "subscription_auth_mode": "subscriptionAuthMode",
    "schema_auto_update_compatibility_strategy": AUTO_UPDATE,
    "dispatcherPauseOnAckStatePersistentEnabled": "dispatcherPauseOnAckStatePersistent",
    "allowed_topic_property_keys_for_metrics": "allowedTopicPropertyKeysForMetrics",
}
"""The same for the policies of `KEPT`."""

_QUOTAS = "backlog_quota_map"

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

_CLUSTERS = ("replication_clusters", "allowed_clusters")
_IGNORED = frozenset(
    {"deleted", "migrated", "latency_stats_sample_rate", "resource_group_name", "scalableTopicAutoScalePolicy",
     "is_allow_auto_update_schema_with_replicator"}
)  # fmt: skip

NAMES = frozenset({*_FIELDS, *_RATES, *_KEPT, *_EMPTY, *_IGNORED, _OLD_RATE, "bundles", "entryFilters"})
"""The names in the object, of Pulsar 2.10 to 5.0."""

POLICY_NAMES = (_QUOTAS, *_FIELDS, *_RATES, _OLD_RATE, *_KEPT)
"""Those of policies, and not of clusters, bundles, permissions and properties."""

OWN_NAMES = NAMES.difference(KEPT, POLICY_CALLS)
"""Those that no call on a single policy has."""


class AuthPolicies(msgspec.Struct):
    """Who may do what in a new namespace."""

    namespace_auth: dict[str, list[AuthAction]] = {}
    """Role → what it may do in the namespace."""
    destination_auth: dict[str, dict[str, list[AuthAction]]] = {}
    """Topic → role → what it may do there."""
    subscription_auth_roles: dict[str, list[str]] = {}
    """Subscription → the roles that may use it."""


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
        "migrated": policies.kept.get("migration", False),
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
    return found | {_OLD_RATE: found["topicDispatchRate"]}


def read(body: Any, namespace: str) -> Policies:
    """The policies in the body of a call that creates a namespace. Raises `AdminError` for a bad value, and for a policy that
    is not supported."""
    policies = Policies()
    kept: dict[str, Any] = {}
    for name, value in convert({} if body is None else body, dict[str, Any]).items():
        if value is None or value == _EMPTY.get(name):
            continue
        if name == "bundles":
            _read_bundles(policies, value)
            kept |= policies.kept
        elif name == "auth_policies":
            if roles := convert(value, AuthPolicies).subscription_auth_roles:
                kept[SUBSCRIPTION_PERMISSIONS] = roles
        elif name == "properties":
            policies.properties = convert(value, dict[str, str])
        elif name == "subscription_auth_mode" and value not in AUTH_MODES:
            continue  # quirk: Pulsar takes any other text for the default
        elif name in _KEPT:
            kept[_KEPT[name]] = _kept(name, value)
        elif name == _QUOTAS:
            policies.backlogQuota = {
                type_: convert(with_limit_size(quota), BacklogQuota)
                for type_, quota in convert(value, dict[QuotaType, Any]).items()
            }
        elif name in _FIELDS:
            setattr(policies, *_read_policy(name, value))
        elif name in _RATES or name == _OLD_RATE:
            rate = convert(value, dict[str, Any]).get(CLUSTER)
            field, type_ = POLICY_CALLS[_RATES.get(name, "dispatchRate")]
            if rate is not None and (name != _OLD_RATE or policies.dispatchRate is None):
                setattr(policies, field, convert(rate, type_))
        elif name == "replicatorDispatchRate":
            rate = convert(value, dict[str, Any]).get(CLUSTER)
            type_ = KEPT[name].type
            if rate is not None:
                kept[name] = msgspec.to_builtins(convert(rate, type_))
        elif name == "replication_clusters":
            if foreign := [cluster for cluster in convert(value, list[str]) if cluster != CLUSTER]:
                raise AdminError(
                    403,
                    f"Cluster [{foreign[0]}] is not in the list of allowed clusters list for tenant "
                    f"[{tenant_of(namespace)}]",
                )
        elif name == "allowed_clusters":
            kept["allowedClusters"] = convert(value, list[str])
        elif name == "entryFilters" and convert(value, dict[str, Any]).get("entryFilterNames"):
            raise AdminError(501, NO_ENTRY_FILTERS)
    policies.kept = kept
    return policies


def _read_policy(name: str, value: Any) -> tuple[str, Any]:
    """The policy of a name in the object, and its value, with the checks that a PUT has."""
    field, type_ = POLICY_CALLS[_FIELDS[name]]
    if name == "inactive_topic_policies":
        value = with_known_mode(value)
    if field == "subscriptionTypesEnabled" and isinstance(value, list):
        value = [each for each in value if each in get_args(SubType)] or value  # quirk: Pulsar takes any text
    if field == "schemaCompatibilityStrategy" and value not in get_args(SchemaCompatibilityStrategy):
        value = "UNDEFINED"  # quirk: Pulsar takes any other text for this
    found = convert(value, type_)
    if field == "messageTTL" and found < 0:
        raise AdminError(412, "Invalid value for message TTL")
    if field == "retention":
        check_retention(found)
    if field == "persistence":
        check_persistence(found)
    if field == "autoTopicCreation" and (found.defaultNumPartitions or 0) > MOST_PARTITIONS:
        raise AdminError(406, f"Number of partitions should be less than or equal to {MOST_PARTITIONS}")
    return field, found


def _kept(name: str, value: Any) -> Any:
    """The value of a policy without effect."""
    found = convert(value, KEPT[_KEPT[name]].type)
    if name == "offload_policies":
        return offload_policies(found)
    return msgspec.to_builtins(found)


class _Bundles(msgspec.Struct):
    numBundles: int | None = None
    boundaries: list[str] | None = None


def gives_bundles(body: Any) -> bool:
    """Whether the object of a namespace that is created says how many bundles it gets."""
    return isinstance(body, dict) and (convert(body.get("bundles") or {}, _Bundles).numBundles or 0) > 0


def _read_bundles(policies: Policies, value: Any) -> None:
    given = convert(value, _Bundles)
    if (given.numBundles or 0) > 0 and given.boundaries:
        bundles.create_with(policies, given.boundaries)
    else:
        bundles.create(policies, given.numBundles or 0)


# -- the object of another cluster's namespace ---------------------------------------------------------------------


class TakenOfNamespace(NamedTuple):
    """What of a namespace's policies Magnetar can take. `body`: of a PUT of a namespace. `applied`: how many have an effect.
    `without_effect`: the names of those that have none. `not_applied`: name → why Magnetar can't apply it. `unknown`: names that no release
    has."""

    body: dict[str, Any]
    applied: int
    without_effect: list[str]
    not_applied: dict[str, str]
    unknown: list[str]


def take(policies: Mapping[str, Any], cluster: str | None = None) -> TakenOfNamespace:
    """What Magnetar can take of the policies of a namespace, as Pulsar shows them. `cluster`: the name of the cluster, which has rates of
    its own; None: it is unknown."""
    taken = TakenOfNamespace({}, 0, [], {}, [])
    applied = 0
    for name, value in policies.items():
        is_empty = is_unset(name, value)
        if name not in NAMES:
            taken.unknown.append(name)
        elif name == _OLD_RATE and policies.get("topicDispatchRate"):
            continue  # Pulsar shows the same rate under both names
        elif name in (*_RATES, _OLD_RATE) and not is_empty:
            try:
                rate = _rate_of(value, cluster)
            except ValueError as error:
                taken.not_applied[name] = str(error)
                continue
            taken.body[name] = rate
            applied += bool(rate)
        elif name in (*_FIELDS, *_RATES, _OLD_RATE, _QUOTAS):
            taken.body[name] = value
            applied += not is_empty
        elif is_empty:
            continue
        elif name == "entryFilters":
            if not isinstance(value, dict) or value.get("entryFilterNames"):
                taken.not_applied[name] = NO_ENTRY_FILTERS
        else:
            if name in (*_KEPT, "bundles", "properties") and not _may_have_secrets(name):
                taken.body[name] = value
            if name in _KEPT and KEPT[_KEPT[name]].has_effect:
                applied += 1
            else:
                taken.without_effect.append(name)
    return taken._replace(applied=applied)


def without_secrets(policies: Any) -> Any:
    """The policies of a namespace without those that may have passwords. Any other value, as it is."""
    if not isinstance(policies, dict):
        return policies
    return {name: value for name, value in policies.items() if not _may_have_secrets(name)}


def _may_have_secrets(name: str) -> bool:
    return _KEPT.get(name) == MAY_HAVE_SECRETS


def is_unset(name: str, value: Any) -> bool:
    """Whether a value in the object is that of a policy that is not set."""
    return value is None or value == _EMPTY.get(name) or value in ({}, [])


def _rate_of(rates: Any, cluster: str | None) -> dict[str, Any]:
    """The rate of a cluster, as that of Magnetar's."""
    if not isinstance(rates, dict):
        raise ValueError("a rate for each cluster is expected")
    if cluster is None:
        if CLUSTER not in rates and any(rate != next(iter(rates.values())) for rate in rates.values()):
            raise ValueError(f"it differs between {', '.join(sorted(map(str, rates)))}: leave one of them")
        cluster = CLUSTER if CLUSTER in rates else next(iter(rates))
    return {CLUSTER: rates[cluster]} if cluster in rates else {}


def policies_of(name: str) -> tuple[str, ...]:
    """The policies that a name in the object sets, as `policy_of` names them."""
    if name == _QUOTAS:
        return tuple(f"backlogQuota {type_}" for type_ in QUOTA_TYPES)
    if name == _OLD_RATE:
        return ("dispatchRate",)
    if (field := (_FIELDS | _RATES | _KEPT).get(name)) is not None:
        return (field,)
    return ()


_NAME_OF = {field: name for name, field in (_FIELDS | _RATES | _KEPT).items()}


def overlaid(body: Mapping[str, Any], policies: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The object with other values of some policies, which are named as `policy_of` names them. None: the policy is not set."""
    found = dict(body)
    for policy, value in policies:
        kind, _, type_ = policy.partition(" ")
        if kind == "backlogQuota":
            quotas = {name: quota for name, quota in (found.get(_QUOTAS) or {}).items() if name != type_}
            found[_QUOTAS] = quotas if value is None else {**quotas, type_: value}
        elif (name := _NAME_OF.get(policy)) is not None:
            found[name] = {CLUSTER: value} if name in _RATES and value is not None else value
            if name == "topicDispatchRate":
                found.pop(_OLD_RATE, None)
    return found
