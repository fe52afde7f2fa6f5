"""The calls of Pulsar's admin REST API that the server answers: the one list of what is supported.

Calls that need no broker state are answered by `local`. All others are ADMIN commands, and the broker answers them.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from streaming.broker.resources import CALLS as CLUSTER_CALLS

OnPartitioned = Literal["whole", "each", "one"]
"""What a call on a partitioned topic is: a call on it as a whole, on each partition, or on no topic, since only its partitions
are topics."""


class Route(NamedTuple):
    """A call: its method and its path below ``/admin/v2``.

    `refusal`: why it is not allowed on a partitioned topic; "" if it is.
    """

    method: str
    path: str
    on_partitioned: OnPartitioned = "whole"
    refusal: str = ""


NAMESPACE_POLICIES = (
    "messageTTL", "retention", "backlogQuota", "deduplication", "deduplicationSnapshotInterval", "maxTopicsPerNamespace",
    "maxProducersPerTopic", "maxConsumersPerTopic", "maxConsumersPerSubscription", "maxSubscriptionsPerTopic",
    "maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription", "encryptionRequired",
    "subscriptionExpirationTime", "dispatchRate", "subscriptionDispatchRate", "publishRate", "subscribeRate",
    "delayedDelivery", "subscriptionTypesEnabled", "autoTopicCreation", "autoSubscriptionCreation",
    "inactiveTopicPolicies", "persistence", "persistence/bookieAffinity", "antiAffinity", "replicatorDispatchRate",
    "dispatcherPauseOnAckStatePersistent", "entryFilters",
)  # fmt: skip

TOPIC_POLICIES = (
    "messageTTL", "retention", "backlogQuota", "deduplicationEnabled", "deduplicationSnapshotInterval", "maxProducers",
    "maxConsumers", "maxConsumersPerSubscription", "maxSubscriptionsPerTopic", "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription", "maxMessageSize", "dispatchRate", "subscriptionDispatchRate", "publishRate",
    "subscribeRate", "delayedDelivery", "subscriptionTypesEnabled", "autoSubscriptionCreation", "inactiveTopicPolicies",
    "persistence", "compactionThreshold", "replication", "replicatorDispatchRate", "offloadPolicies",
    "dispatcherPauseOnAckStatePersistent", "entryFilters",
)  # fmt: skip

_NAMESPACE = "/namespaces/{tenant}/{namespace}"
_BUNDLE = f"{_NAMESPACE}/{{bundle}}"
_TOPIC = "/{domain}/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION = f"{_TOPIC}/subscription/{{subscription}}"
_SCHEMAS = "/schemas/{tenant}/{namespace}/{topic}"

_NOT_ON_PARTITIONED = {
    "GET /messageid/{time}": "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on specific topic partition",
    "GET /subscription/{subscription}/position/{n}": "Peek messages on a partitioned topic is not allowed",
    "GET /examinemessage": "Examine messages on a partitioned topic is not allowed, please try examine message on specific topic partition",
    "GET /ledger/{ledger}/entry/{entry}": "GetMessageById is not allowed on partitioned-topic",
    "POST /subscription/{subscription}/skip/{count}": "Skip messages on a partitioned topic is not allowed",
    "POST /subscription/{subscription}/resetcursor": "Reset-cursor at position is not allowed for partitioned-topic",
    "POST /subscription/{subscription}/expireMessages": "Expire message at position is not supported for partitioned-topic",
    "POST /subscription/{subscription}/analyzeBacklog": "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic partition",
    "POST /terminate": "Termination of a partitioned topic is not allowed",
}  # fmt: skip
"""Call on a topic → why Pulsar refuses it on a partitioned topic."""

_EACH = (
    "GET /subscriptions",
    "GET /internal-info",
    "PUT /unload",
    "POST /trim",
    "DELETE /truncate",
    "PUT /subscription/{subscription}",
    "DELETE /subscription/{subscription}",
    "POST /subscription/{subscription}/skip_all",
    "POST /subscription/{subscription}/resetcursor/{time}",
    "POST /subscription/{subscription}/expireMessages/{seconds}",
    "POST /all_subscription/expireMessages/{seconds}",
    "GET /subscription/{subscription}/properties",
    "PUT /subscription/{subscription}/properties",
    "GET /subscription/{subscription}/replicatedSubscriptionStatus",
    "POST /subscription/{subscription}/replicatedSubscriptionStatus",
)
"""Calls on a topic that concern each partition of a partitioned one."""

_ONE = ("PUT ", "DELETE ", "GET /stats", "GET /internalStats", "GET /lastMessageId", "PUT /backlogSize")
"""Calls on a topic that know no partitioned topics."""

OF_PARTITIONS = ("GET /partitioned-stats", "GET /partitioned-internalStats", "POST /terminate/partitions")
"""Calls that only partitioned topics have."""

_WHOLE = (
    "DELETE /policies", "POST /createMissedPartitions", "GET /partitions", "PUT /partitions", "POST /partitions", "DELETE /partitions",
    "GET /properties", "PUT /properties", "DELETE /properties", "GET /permissions", "POST /permissions/{role}",
    "DELETE /permissions/{role}",
)  # fmt: skip
"""Calls on a topic that a partitioned one answers as a whole."""


NEW_PARTITIONS = Route("PUT", f"{_TOPIC}/partitions")
"""The call that creates a partitioned topic."""


def _of_topics() -> Iterator[Route]:
    for call in (*_WHOLE, *OF_PARTITIONS):
        yield _route(call)
    for call in _EACH:
        yield _route(call)._replace(on_partitioned="each")
    for call in _ONE:
        yield _route(call)._replace(on_partitioned="one")
    for call, refusal in _NOT_ON_PARTITIONED.items():
        yield _route(call)._replace(on_partitioned="one", refusal=refusal)
    for policy in TOPIC_POLICIES:
        yield from _of_policy(_TOPIC, policy)
    for method in ("GET", "POST", "DELETE"):
        yield Route(method, f"{_TOPIC}/{{subscription}}/dispatchRate", "each")
    for method in ("GET", "PUT", "DELETE"):
        yield Route(method, f"{_TOPIC}/schemaCompatibilityStrategy")
        yield Route(method, f"{_TOPIC}/shadowTopics")
    for method in ("GET", "POST"):
        yield Route(method, f"{_TOPIC}/schemaValidationEnforced")


def _route(call: str) -> Route:
    method, _, path = call.partition(" ")
    return Route(method, _TOPIC + path)


_NAMESPACE_CALLS = (
    ("GET", "bundles"), ("PUT", "{bundle}/split"), ("GET", "{bundle}/topicHashPositions"), ("DELETE", "{bundle}"),
    ("GET", "permissions/subscription"), ("POST", "permissions/subscription/{subscription}"),
    ("DELETE", "permissions/{subscription}/{role}"),
    ("GET", "properties"), ("PUT", "properties"), ("DELETE", "properties"),
    ("GET", "property/{key}"), ("PUT", "property/{key}/{value}"), ("DELETE", "property/{key}"),
    ("GET", "replication"), ("POST", "replication"), ("GET", "allowedClusters"), ("POST", "allowedClusters"),
    ("GET", "schemaCompatibilityStrategy"), ("PUT", "schemaCompatibilityStrategy"),
    ("GET", "schemaAutoUpdateCompatibilityStrategy"), ("PUT", "schemaAutoUpdateCompatibilityStrategy"),
    ("GET", "schemaValidationEnforced"), ("POST", "schemaValidationEnforced"),
    ("GET", "isAllowAutoUpdateSchema"), ("POST", "isAllowAutoUpdateSchema"),
    ("GET", "subscriptionAuthMode"), ("POST", "subscriptionAuthMode"),
    ("GET", "compactionThreshold"), ("PUT", "compactionThreshold"), ("DELETE", "compactionThreshold"),
    ("GET", "offloadThreshold"), ("PUT", "offloadThreshold"),
    ("GET", "offloadThresholdInSeconds"), ("PUT", "offloadThresholdInSeconds"),
    ("GET", "offloadDeletionLagMs"), ("PUT", "offloadDeletionLagMs"), ("DELETE", "offloadDeletionLagMs"),
    ("GET", "offloadPolicies"), ("POST", "offloadPolicies"), ("DELETE", "removeOffloadPolicies"),
    ("GET", "resourcegroup"), ("POST", "resourcegroup/{group}"), ("DELETE", "resourcegroup"),
)  # fmt: skip
"""Calls on a namespace that are not those of a policy with GET, POST and DELETE."""


def _of_policy(level: str, policy: str) -> Iterator[Route]:
    yield Route("GET", f"{level}/{policy}Map" if policy == "backlogQuota" else f"{level}/{policy}")
    yield Route("POST", f"{level}/{policy}")
    yield Route("DELETE", f"{level}/{policy}")


ROUTES: tuple[Route, ...] = (
    Route("GET", "/brokers/configuration"),
    Route("GET", "/brokers/configuration/values"),
    Route("GET", "/brokers/configuration/runtime"),
    Route("POST", "/brokers/configuration/{setting}/{value}"),
    Route("DELETE", "/brokers/configuration/{setting}"),
    *(Route(method, path) for method, path, _ in CLUSTER_CALLS),
    Route("GET", "/tenants"),
    *(Route(method, "/tenants/{tenant}") for method in ("GET", "PUT", "POST", "DELETE")),
    Route("GET", "/namespaces/{tenant}"),
    *(Route(method, _NAMESPACE) for method in ("GET", "PUT", "DELETE")),
    Route("GET", f"{_NAMESPACE}/topics"),
    *(
        Route(method, f"{prefix}/{call}")
        for method, call in (("PUT", "unload"), ("POST", "clearBacklog"), ("POST", "clearBacklog/{subscription}"),
                             ("POST", "unsubscribe/{subscription}"))
        for prefix in (_NAMESPACE, _BUNDLE)
    ),
    Route("GET", f"{_NAMESPACE}/permissions"),
    Route("POST", f"{_NAMESPACE}/permissions/{{role}}"),
    Route("DELETE", f"{_NAMESPACE}/permissions/{{role}}"),
    *(route for policy in NAMESPACE_POLICIES for route in _of_policy(_NAMESPACE, policy)),
    *(Route(method, f"{_NAMESPACE}/{call}") for method, call in _NAMESPACE_CALLS),
    Route("GET", "/{domain}/{tenant}/{namespace}"),
    Route("GET", "/{domain}/{tenant}/{namespace}/partitioned"),
    *_of_topics(),
    Route("GET", f"{_SCHEMAS}/schema"),
    Route("GET", f"{_SCHEMAS}/schema/{{version}}"),
    Route("GET", f"{_SCHEMAS}/schemas"),
    Route("POST", f"{_SCHEMAS}/schema"),
    Route("DELETE", f"{_SCHEMAS}/schema"),
    Route("POST", f"{_SCHEMAS}/compatibility"),
    Route("POST", f"{_SCHEMAS}/version"),
    Route("GET", f"{_SCHEMAS}/metadata"),
)  # fmt: skip
"""Calls that are ADMIN commands."""

LOCAL: tuple[Route, ...] = (
    Route("GET", "/clusters/{cluster}"),
    Route("GET", "/brokers"),
    Route("GET", "/brokers/{cluster}"),
    Route("GET", "/brokers/leaderBroker"),
    Route("GET", "/brokers/health"),
    Route("GET", "/brokers/ready"),
    Route("GET", "/brokers/version"),
    Route("GET", "/brokers/internal-configuration"),
    Route("GET", "/brokers/{cluster}/{broker}/ownedNamespaces"),
    Route("GET", "/brokers/backlog-quota-check"),
    Route("GET", "/broker-stats/topics"),
    Route("GET", "/broker-stats/metrics"),
    Route("GET", "/broker-stats/load-report"),
)
"""Calls that the server answers by itself."""

_NEVER_RUN = {"status": "NOT_RUN", "lastError": ""}

_NO_MESSAGE = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}

UNSUPPORTED: dict[str, Any] = {
    f"{_TOPIC}/compaction": _NEVER_RUN,
    f"{_TOPIC}/offload": _NEVER_RUN | {"firstUnoffloadedMessage": _NO_MESSAGE},
}  # fmt: skip
"""Paths of Pulsar's that are not supported, with what GET answers: that nothing is set, or was ever run. A call that would change
that is answered with 501."""

_NO_WORKER = 409, "Pulsar Function Worker is not enabled, probably functionsWorkerEnabled is set to false"
_NO_PACKAGES = 503, "Package Management Service is not enabled in the broker."
_NO_JVM = 501, "This broker runs without a JVM: it has no MBeans and no allocators."
_NO_TRANSACTIONS = 503, "This Broker is not configured with transactionCoordinatorEnabled=true."

ABSENT: dict[str, tuple[int, str]] = {
    **{
        f"/admin/{version}/{name}{rest}": _NO_WORKER
        for version in ("v2", "v3")
        for name in ("functions", "sources", "sinks", "source", "sink", "worker", "worker-stats")
        for rest in ("", "/{rest:path}")
    },
    "/admin/v2/broker-stats/mbeans": _NO_JVM,
    "/admin/v2/broker-stats/allocator-stats/{allocator}": _NO_JVM,
    "/admin/v3/packages/{rest:path}": _NO_PACKAGES,
    "/admin/v3/transactions/{rest:path}": _NO_TRANSACTIONS,
}
"""Paths of parts of Pulsar that Magnetar does not have, with the status and the reason that a broker without them answers."""
