"""What each admin call asks before it does anything: which operation, or what power, its resource in Pulsar 4.0.7 checks
(docs/rules/authorization.md §6). Whether a role may is decided in `streaming.server.authorization`."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from streaming.broker.admin_table import NAMESPACE as NS
from streaming.broker.admin_table import SCHEMAS, TOPIC

Kind = Literal[
    "anyone", "superuser", "admin", "broker", "cluster", "clusterPolicy", "tenants", "tenant", "namespace", "namespacePolicy",
    "topic", "topicPolicy", "produce", "lookup",
]  # fmt: skip
"""What is asked about. ``anyone``: nothing is. ``superuser`` and ``admin``: for that power itself, ``admin`` of the tenant. ``tenants``: an
operation of superusers and the tenant's admins; ``tenant``: one on a tenant that exists. ``produce``: messages through HTTP. ``lookup``: that of a topic,
which tells everybody that a namespace does not exist."""


class Ask(NamedTuple):
    """An operation, or READ or WRITE of a policy."""

    kind: Kind
    operation: str = ""
    policy: str = ""


_ANYONE, _SUPERUSER, _ADMIN = (Ask("anyone"),), (Ask("superuser"),), (Ask("admin"),)

_Key = tuple[str, str]
_Asks = Mapping[_Key, tuple[Ask, ...]]


def _each(kind: Kind, operations: Mapping[str, str]) -> _Asks:
    """Operation → the calls that ask for it, each a method and a path, with a semicolon between two."""
    return {
        (method, path): (Ask(kind, operation),)
        for operation, calls in operations.items()
        for method, path in (call.split() for call in calls.split(";"))
    }


def _policies(kind: Kind, root: str, policies: Mapping[str, str]) -> _Asks:
    """Policy → the ends of its paths."""
    return {
        (method, f"{root}/{end}"): (Ask(kind, "READ" if method == "GET" else "WRITE", policy),)
        for policy, ends in policies.items()
        for end in ends.split()
        for method in ("GET", "PUT", "POST", "DELETE")
    }


_RATES = "dispatchRate subscriptionDispatchRate publishRate subscribeRate"
_BOTH = {
    "RETENTION": "retention", "REPLICATION": "replication", "REPLICATION_RATE": "replicatorDispatchRate", "TTL": "messageTTL",
    "AUTO_SUBSCRIPTION_CREATION": "autoSubscriptionCreation", "DEDUPLICATION_SNAPSHOT": "deduplicationSnapshotInterval",
    "DELAYED_DELIVERY": "delayedDelivery", "INACTIVE_TOPIC": "inactiveTopicPolicies", "MAX_SUBSCRIPTIONS": "maxSubscriptionsPerTopic",
    "ENTRY_FILTERS": "entryFilters", "COMPACTION": "compactionThreshold", "BACKLOG": "backlogQuotaMap backlogQuota",
    "DISPATCHER_PAUSE_ON_ACK_STATE_PERSISTENT": "dispatcherPauseOnAckStatePersistent", "PERSISTENCE": "persistence",
    "SUBSCRIPTION_EXPIRATION_TIME": "subscriptionExpirationTime",
}  # fmt: skip
"""Policies with the same path on namespaces and topics."""

_SUB = f"{TOPIC}/subscription/{{subscription}}"
_BUNDLE = f"{NS}/{{bundle}}"
_CLUSTER = "/clusters/{cluster}"
_DOMAIN = f"{_CLUSTER}/failureDomains"
_ISOLATION = f"{_CLUSTER}/namespaceIsolationPolicies"
_LOOKUP = f"/lookup/v2/topic{TOPIC}"

ASKS: Mapping[_Key, tuple[Ask, ...]] = {
    **_policies("namespacePolicy", NS, _BOTH | {
        "ALLOW_CLUSTERS": "allowedClusters", "ANTI_AFFINITY": "antiAffinity", "AUTO_TOPIC_CREATION": "autoTopicCreation",
        "DEDUPLICATION": "deduplication", "ENCRYPTION": "encryptionRequired", "MAX_PRODUCERS": "maxProducersPerTopic",
        "MAX_CONSUMERS": "maxConsumersPerTopic maxConsumersPerSubscription", "MAX_TOPICS": "maxTopicsPerNamespace",
        "MAX_UNACKED": "maxUnackedMessagesPerConsumer maxUnackedMessagesPerSubscription", "RATE": _RATES,
        "OFFLOAD": "offloadDeletionLagMs offloadPolicies removeOffloadPolicies offloadThreshold offloadThresholdInSeconds",
        "RESOURCEGROUP": "resourcegroup resourcegroup/{group}",
        "SCHEMA_COMPATIBILITY_STRATEGY": "isAllowAutoUpdateSchema schemaAutoUpdateCompatibilityStrategy schemaCompatibilityStrategy "
                                         "schemaValidationEnforced",
        "SUBSCRIPTION_AUTH_MODE": "subscriptionAuthMode subscriptionTypesEnabled",
        "ALLOW_CUSTOM_METRIC_LABELS": "allowedTopicPropertyKeysForMetrics",
    }),
    **_policies("topicPolicy", TOPIC, _BOTH | {
        "DEDUPLICATION": "deduplicationEnabled", "MAX_CONSUMERS": "maxConsumers maxConsumersPerSubscription", "MAX_PRODUCERS": "maxProducers policies",
        "MAX_UNACKED": "maxUnackedMessagesOnConsumer maxUnackedMessagesOnSubscription", "OFFLOAD": "offloadPolicies",
        "RATE": f"{_RATES} {{subscription}}/dispatchRate", "SHADOW_TOPIC": "shadowTopics",
        "SCHEMA_COMPATIBILITY_STRATEGY": "schemaCompatibilityStrategy schemaValidationEnforced",
        "SUBSCRIPTION_AUTH_MODE": "subscriptionTypesEnabled", "PARTITION": "partitions",
    }),
    **_each("topic", {
        "LOOKUP": f"GET {TOPIC}/partitions;POST {TOPIC}/createMissedPartitions",
        "CONSUME": f"GET {_SUB}/properties;POST {_SUB}/analyzeBacklog",
        "EXPIRE_MESSAGES": f"POST {TOPIC}/all_subscription/expireMessages/{{seconds}};POST {_SUB}/expireMessages;POST {_SUB}/expireMessages/{{seconds}}",
        "GET_BACKLOG_SIZE": f"PUT {TOPIC}/backlogSize",
        "GET_METADATA": f"GET {SCHEMAS}/metadata;GET {SCHEMAS}/schema;GET {SCHEMAS}/schema/{{version}};GET {SCHEMAS}/schemas;GET {TOPIC}/properties;"
                        f"POST {SCHEMAS}/version",
        "UPDATE_METADATA": f"PUT {TOPIC}/properties",
        "DELETE_METADATA": f"DELETE {TOPIC}/properties",
        "GET_REPLICATED_SUBSCRIPTION_STATUS": f"GET {_SUB}/replicatedSubscriptionStatus",
        "SET_REPLICATED_SUBSCRIPTION_STATUS": f"POST {_SUB}/replicatedSubscriptionStatus",
        "GET_STATS": f"GET {TOPIC}/internal-info;GET {TOPIC}/internalStats;GET {TOPIC}/partitioned-internalStats;GET {TOPIC}/partitioned-stats;"
                     f"GET {TOPIC}/stats",
        "GET_SUBSCRIPTIONS": f"GET {TOPIC}/subscriptions",
        "PEEK_MESSAGES": f"GET {TOPIC}/examinemessage;GET {TOPIC}/lastMessageId;GET {TOPIC}/ledger/{{ledger}}/entry/{{entry}};"
                         f"GET {TOPIC}/messageid/{{time}};GET {TOPIC}/getMessageIdByIndex;GET {_SUB}/position/{{n}}",
        "PRODUCE": f"POST {SCHEMAS}/schema",
        "RESET_CURSOR": f"POST {_SUB}/resetcursor;POST {_SUB}/resetcursor/{{time}}",
        "SKIP": f"POST {_SUB}/skip/{{count}};POST {_SUB}/skip_all",
        "SUBSCRIBE": f"PUT {_SUB};PUT {_SUB}/properties",
        "UNSUBSCRIBE": f"DELETE {_SUB}",
        "TERMINATE": f"POST {TOPIC}/terminate;POST {TOPIC}/terminate/partitions",
        "TRIM_TOPIC": f"POST {TOPIC}/trim",
        "UNLOAD": f"PUT {TOPIC}/unload",
        "COMPACT": f"GET {TOPIC}/compaction;PUT {TOPIC}/compaction",
        "OFFLOAD": f"GET {TOPIC}/offload;PUT {TOPIC}/offload;POST {TOPIC}/offload;DELETE {TOPIC}/offload",
    }),
    **_each("namespace", {
        "CLEAR_BACKLOG": f"POST {NS}/clearBacklog;POST {NS}/clearBacklog/{{subscription}};POST {_BUNDLE}/clearBacklog;"
                         f"POST {_BUNDLE}/clearBacklog/{{subscription}}",
        "UNSUBSCRIBE": f"POST {NS}/unsubscribe/{{subscription}};POST {_BUNDLE}/unsubscribe/{{subscription}}",
        "CREATE_TOPIC": f"PUT {TOPIC}",
        "DELETE_TOPIC": f"DELETE {TOPIC};DELETE {TOPIC}/partitions",
        # Pulsar has no DELETE of these policies: it takes their names for those of bundles.
        "DELETE_BUNDLE": f"DELETE {_BUNDLE};DELETE {NS}/deduplicationSnapshotInterval;DELETE {NS}/encryptionRequired",
        "GET_BUNDLE": f"GET {NS}/bundles;GET {_LOOKUP}/bundle;GET /non-persistent/{{tenant}}/{{namespace}}/{{bundle}}",
        "GET_TOPICS": f"GET {NS}/topics;GET /{{domain}}/{{tenant}}/{{namespace}};GET /{{domain}}/{{tenant}}/{{namespace}}/partitioned",
        "GET_PERMISSION": f"GET {NS}/permissions;GET {NS}/permissions/subscription",
        "GRANT_PERMISSION": f"POST {NS}/permissions/{{role}};POST {NS}/permissions/subscription/{{subscription}}",
        "REVOKE_PERMISSION": f"DELETE {NS}/permissions/{{role}};DELETE {NS}/permissions/{{subscription}}/{{role}}",
    }),
    **_each("tenant", {
        "CREATE_NAMESPACE": f"PUT {NS}", "DELETE_NAMESPACE": f"DELETE {NS}", "LIST_NAMESPACES": "GET /namespaces/{tenant}",
    }),
    **_each("tenants", {
        "LIST_TENANTS": "GET /tenants", "GET_TENANT": "GET /tenants/{tenant}", "CREATE_TENANT": "PUT /tenants/{tenant}",
        "UPDATE_TENANT": "POST /tenants/{tenant}", "DELETE_TENANT": "DELETE /tenants/{tenant}",
    }),
    **_each("broker", {
        "CHECK_BACKLOG_QUOTA": "GET /brokers/backlog-quota-check",
        "DELETE_DYNAMIC_CONFIGURATION": "DELETE /brokers/configuration/{setting}",
        "UPDATE_DYNAMIC_CONFIGURATION": "POST /brokers/configuration/{setting}/{value}",
        "LIST_DYNAMIC_CONFIGURATIONS": "GET /brokers/configuration;GET /brokers/configuration/values",
        "LIST_RUNTIME_CONFIGURATIONS": "GET /brokers/configuration/runtime",
        "GET_INTERNAL_CONFIGURATION_DATA": "GET /brokers/internal-configuration",
        "GET_LEADER_BROKER": "GET /brokers/leaderBroker",
        "HEALTH_CHECK": "GET /brokers/health",
        "LIST_BROKERS": "GET /brokers;GET /brokers/{cluster}",
        "LIST_OWNED_NAMESPACES": "GET /brokers/{cluster}/{broker}/ownedNamespaces",
    }),
    **_each("cluster", {
        "CREATE_CLUSTER": f"PUT {_CLUSTER}", "UPDATE_CLUSTER": f"POST {_CLUSTER}", "GET_CLUSTER": f"GET {_CLUSTER}",
        "DELETE_CLUSTER": f"DELETE {_CLUSTER}", "GET_PEER_CLUSTER": f"GET {_CLUSTER}/peers", "UPDATE_PEER_CLUSTER": f"POST {_CLUSTER}/peers",
        "GET_FAILURE_DOMAIN": f"GET {_DOMAIN};GET {_DOMAIN}/{{failure_domain}}",
        "UPDATE_FAILURE_DOMAIN": f"POST {_DOMAIN}/{{failure_domain}}", "DELETE_FAILURE_DOMAIN": f"DELETE {_DOMAIN}/{{failure_domain}}",
    }),
    **_each("clusterPolicy", {
        "READ": f"GET {_CLUSTER}/migrate;GET {_ISOLATION};GET {_ISOLATION}/{{policy}};GET {_ISOLATION}/brokers;GET {_ISOLATION}/brokers/{{broker}}",
        "WRITE": f"POST {_CLUSTER}/migrate;POST {_ISOLATION}/{{policy}};DELETE {_ISOLATION}/{{policy}}",
    }),
    **dict.fromkeys([("GET", f"{TOPIC}/permissions"), ("POST", f"{TOPIC}/permissions/{{role}}"), ("DELETE", f"{TOPIC}/permissions/{{role}}"),
                     *((method, f"{TOPIC}/maxMessageSize") for method in ("GET", "POST", "DELETE")),
                     *((method, f"{NS}/properties") for method in ("GET", "PUT", "DELETE")),
                     ("GET", f"{NS}/property/{{key}}"), ("PUT", f"{NS}/property/{{key}}/{{value}}"), ("DELETE", f"{NS}/property/{{key}}"),
                     ("DELETE", f"{SCHEMAS}/schema"), ("POST", f"{SCHEMAS}/compatibility")], _ADMIN),
    **dict.fromkeys([("GET", "/bookies/all"), ("GET", "/bookies/racks-info"), *((method, "/bookies/racks-info/{bookie}") for method in ("GET", "POST", "DELETE")),
                     *(("GET", f"/broker-stats/{name}") for name in ("allocator-stats/{allocator}", "load-report", "mbeans", "metrics", "topics")),
                     *((method, f"{NS}/persistence/bookieAffinity") for method in ("GET", "POST", "DELETE")),
                     ("POST", f"{NS}/delayedDelivery"), ("DELETE", f"{NS}/delayedDelivery"), ("POST", f"{NS}/migration"),
                     ("GET", "/resource-quotas"), ("POST", "/resource-quotas"),
                     *((method, "/resource-quotas/{tenant}/{namespace}/{bundle}") for method in ("GET", "POST", "DELETE")),
                     ("GET", "/resourcegroups"), *((method, "/resourcegroups/{group}") for method in ("GET", "PUT", "DELETE")),
                     ("PUT", f"{NS}/unload"), ("PUT", f"{_BUNDLE}/unload"), ("PUT", f"{_BUNDLE}/split"),
                     # Pulsar 4.0.7 fails before it asks.
                     ("GET", "/namespaces/{cluster}/antiAffinity/{group}")], _SUPERUSER),
    **dict.fromkeys([("GET", "/brokers/ready"), ("GET", "/brokers/version"), ("GET", "/clusters")], _ANYONE),
    **dict.fromkeys([("POST", f"/topics{TOPIC}"), ("POST", f"/topics{TOPIC}/partitions/{{partition}}")], (Ask("produce"),)),
    ("GET", _LOOKUP): (Ask("lookup", "LOOKUP"),),
    ("GET", NS): (Ask("namespacePolicy", "READ", "ALL"),),
    ("GET", f"{_BUNDLE}/topicHashPositions"): (Ask("namespacePolicy", "READ", "PERSISTENCE"),),
    ("GET", f"{TOPIC}/partitions"): (Ask("topic", "LOOKUP"),),
    ("DELETE", f"{TOPIC}/partitions"): (Ask("namespace", "DELETE_TOPIC"),),
    ("DELETE", f"{TOPIC}/truncate"): (Ask("topic", "LOOKUP"), *_ADMIN),
}  # fmt: skip
"""Method and path of a call → what it asks, in this order. More rows than calls: no call has every method of a policy."""

_AS_SUPERUSERS = frozenset({"tenants", "broker", "cluster", "clusterPolicy"})
_LOOKUP_FIRST = frozenset(
    {
        *((method, f"{TOPIC}/{policy}") for policy in ("backlogQuota", "replication") for method in ("POST", "DELETE")),
        *((method, f"{TOPIC}/{policy}") for policy in ("entryFilters", "schemaCompatibilityStrategy", "shadowTopics")
          for method in ("GET", "PUT", "POST", "DELETE")),
        ("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}"), ("GET", f"{TOPIC}/messageid/{{time}}"), ("PUT", f"{TOPIC}/backlogSize"),
        ("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}"), ("POST", f"{_SUB}/expireMessages"), ("POST", f"{_SUB}/resetcursor"),
    }
)  # fmt: skip
_BEFORE_4_0: Mapping[_Key, tuple[Ask, ...]] = {
    ("GET", f"{TOPIC}/stats"): (Ask("lookup", "GET_STATS"),),
    ("GET", f"{TOPIC}/subscriptions"): (Ask("lookup", "GET_SUBSCRIPTIONS"),),
    ("GET", f"{TOPIC}/partitions"): (Ask("lookup", "LOOKUP"),),
    ("PUT", f"{TOPIC}/shadowTopics"): (Ask("topic", "LOOKUP"),),
}


def asks_of(method: str, path: str, *, by_operation: bool) -> tuple[Ask, ...]:
    """What a call asks, in this order. `by_operation`: see the setting `adminCallsAskByOperation`. Raises `KeyError`."""
    asks = ASKS[method, path]
    if by_operation:
        return asks
    if (method, path) in _BEFORE_4_0:
        return _BEFORE_4_0[method, path]
    asks = tuple(_SUPERUSER[0] if each.kind in _AS_SUPERUSERS else each for each in asks)
    return (Ask("topic", "LOOKUP"), *asks) if (method, path) in _LOOKUP_FIRST else asks


def asks_of_missing(method: str, path: str) -> tuple[Ask, ...]:
    """What a call asks that the broker's version lacks. quirk: what can be deleted below a namespace is a bundle."""
    is_bundle = method == "DELETE" and path.startswith(NS)
    return (Ask("namespace", "DELETE_BUNDLE"),) if is_bundle else _ANYONE
