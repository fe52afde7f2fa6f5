"""The gate for names: which tenants, namespaces, topics, subscriptions and producers there may be (mirrors `NamedEntity`,
`NamespaceName`, `TopicName` and the checks of `PersistentTopic.internalSubscribe`).

A name may come in by a command, an admin call, a policy or a default. Whatever brings it, what creates the thing asks here.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from streaming.broker.errors import BrokerError

DEDUP_CURSOR = "pulsar.dedup"
COMPACTION_CURSOR = "__compaction"
"""The cursor of deduplication. It is among the cursors of a topic, so no subscription can have its name."""

CLUSTER = "standalone"
"""The name of the only cluster."""

REPLICATOR_PREFIX = "pulsar.repl"
"""So begin the names of the cursors and the producers of replicators."""

NAMED_ENTITY = r"(?!\.{1,2}(?:/|\Z))[-=:.A-Za-z0-9_]+"
"""A pattern: how tenants and namespaces may be named."""

_NAMESPACE_NAME = re.compile(rf"{NAMED_ENTITY}(?:/{NAMED_ENTITY}){{1,2}}/")
_TOPIC_NAME = re.compile(
    rf"(?:persistent|non-persistent)://{NAMED_ENTITY}/{NAMED_ENTITY}/"
    rf"(?:{NAMED_ENTITY}/(?!\.{{1,2}}\Z)(?=.*\S).+|(?!\.{{1,2}}\Z)[^/]*[^/\s][^/]*)",
    re.DOTALL,
)
_DOMAINS = ("persistent", "non-persistent")
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_MARK = "-partition-"
PARTITION = re.compile(rf"(.+){_MARK}(\d+)")


_EVENTS = frozenset(
    {"__change_events", "__transaction_buffer_snapshot", "__transaction_buffer_snapshot_segments",
     "__transaction_buffer_snapshot_indexes"}
)  # fmt: skip
_PENDING_ACKS = "__transaction_pending_ack"
_COORDINATORS = tuple(
    f"persistent://pulsar/system/{name}" for name in ("transaction_coordinator_assign", "__transaction_log_")
)
_SERVICE_NAMESPACE = re.compile(r"pulsar/system|(?:pulsar|sla-monitor)/[^/]+/[^:/]+:\d+|pulsar/[^:/]+:\d+")


COORDINATOR_ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"
"""A partitioned topic that stores nothing: who owns its partition N has the coordinator of transactions N."""


def is_tenant_name(name: str) -> bool:
    """Whether a tenant, or a cluster, may be named so."""
    return re.fullmatch(NAMED_ENTITY, name) is not None


def is_namespace_name(name: str) -> bool:
    """Whether ``tenant/namespace`` or ``tenant/cluster/namespace`` may be named so, see `is_topic_name`."""
    return _NAMESPACE_NAME.fullmatch(f"{name}/") is not None


def is_topic_name(name: str) -> bool:
    """Whether topics may be named so (TopicName, NamespaceName, NamedEntity).

    Tenant and namespace consist of letters, digits and ``-=:._``; the topic's own name is not blank and has no slash. None
    of the three is ``.`` or ``..``, since they are parts of paths in the metadata store. A name of Pulsar 1 has a cluster
    between tenant and namespace, and the topic's own name may have slashes.
    """
    return _TOPIC_NAME.fullmatch(name) is not None


def why_not_topic_name(name: str) -> str:
    """Why topics may not be named so, as Pulsar says it."""
    domain, found, rest = name.partition("://")
    if not found:
        return f"Invalid short topic name '{name}', it should be in the format of <tenant>/<namespace>/<topic> or <topic>"
    if domain not in _DOMAINS:
        return f"Invalid topic domain: '{domain}'"
    namespace = rest.split("/", 3)[:-1]
    if len(namespace) < 2:
        return f"Invalid topic name: {name}"
    if not all(namespace):
        return f"Invalid namespace format. namespace: {'/'.join(namespace)}"
    for part in namespace:
        if re.fullmatch(NAMED_ENTITY, part) is None:
            return f"Invalid named entity: {part}"
    return f"Invalid topic name: {name}. Topic local name must not be blank."


def is_subscription_name(name: str) -> bool:
    """Whether a subscription may be named so: not blank, and not as the broker names cursors of its own."""
    return bool(name.strip()) and not name.startswith(REPLICATOR_PREFIX) and name != DEDUP_CURSOR


def check_subscription_name(name: str) -> None:
    """Raise `BrokerError` if no subscription may be named so.

    quirk: Pulsar creates the initial subscription of a producer without this check, and then fails.
    """
    if not is_subscription_name(name):
        raise BrokerError("ProducerBusy", f"'{name}' is empty or reserved")


def partition_index(name: str) -> int:
    """K of ``…-partition-K``, a decimal number of 32 bits without zeros before it; −1 for other topics."""
    whole, _, index = name.rpartition(_MARK)
    if not whole or _INDEX.fullmatch(index) is None or int(index) >= 1 << 31:
        return -1
    return int(index)


def is_partition(name: str, partitioned: Mapping[str, int]) -> bool:
    """Does a partitioned topic have that partition? `partitioned`: topic → number of partitions."""
    return 0 <= partition_index(name) < partitioned.get(whole_of(name), 0)


def whole_of(name: str) -> str:
    """The partitioned topic of which a topic may be a partition, by its name; empty: none."""
    return name.rpartition(_MARK)[0]


def base_of(name: str) -> str:
    """The partitioned topic if this is the name of a partition, else the topic itself (``TopicName.getPartitionedTopicName``)."""
    return whole_of(name) if partition_index(name) >= 0 else name


def partition_of(name: str, index: int) -> str:
    """The name of a partition."""
    return f"{name}{_MARK}{index}"


def partitions_of(name: str, count: int) -> list[str]:
    """The full names of a partitioned topic's partitions."""
    return [partition_of(name, index) for index in range(count)]


def is_transaction_topic(name: str) -> bool:
    """Is this a topic in which Pulsar keeps transactions? No list shows these (``SystemTopicNames.isTransactionInternalName``)."""
    return name.startswith(_COORDINATORS) or name.endswith(_PENDING_ACKS)


def is_hidden_topic(name: str) -> bool:
    """Is this a topic that clients which list topics don't see (``SystemTopicNames.isSystemTopic``)?"""
    base = base_of(name)
    return base.rpartition("/")[2] in _EVENTS or is_transaction_topic(base)


@lru_cache(maxsize=1 << 14)  # lists, and each round of the check of inactive topics, ask about the same ones
def is_system_topic(name: str) -> bool:
    """Is this a topic in which Pulsar keeps something for itself (``BrokerService.isSystemTopic``)?"""
    namespace = base_of(name).partition("://")[2].rpartition("/")[0]
    return is_hidden_topic(name) or _SERVICE_NAMESPACE.fullmatch(namespace) is not None


def complete(topic: str) -> str:
    """The full name of a topic: ``my-topic`` is ``persistent://public/default/my-topic``."""
    if "://" in topic:
        return topic
    match topic.count("/"):
        case 0:
            return f"persistent://public/default/{topic}"
        case 2:
            return f"persistent://{topic}"
    return topic
