"""What ``/broker-stats`` shows of a broker: its topics and their sums, with Pulsar's names. Of the JVM there is nothing to show."""

from collections import defaultdict
from collections.abc import Mapping

from streaming.broker import bundles
from streaming.broker.context import namespace_of
from streaming.server.clients import Json

_OF_SUBSCRIPTION = (
    "consumers", "msgBacklog", "msgRateExpired", "msgRateOut", "messageAckRate", "msgThroughputOut", "msgRateRedeliver",
    "type",
)  # fmt: skip
_OF_TOPIC = {
    "publishers": "publishers", "replication": "replication", "averageMsgSize": "averageMsgSize", "msgRateIn": "msgRateIn",
    "msgRateOut": "msgRateOut", "msgInCount": "msgInCounter", "bytesInCount": "bytesInCounter",
    "msgOutCount": "msgOutCounter", "bytesOutCount": "bytesOutCounter", "msgThroughputIn": "msgThroughputIn",
    "msgThroughputOut": "msgThroughputOut", "storageSize": "storageSize", "backlogSize": "backlogSize",
}  # fmt: skip
"""Field → the field of a topic's stats."""

_SUMS = {
    "brk_in_rate": "msgRateIn", "brk_in_tp_rate": "msgThroughputIn", "brk_out_rate": "msgRateOut",
    "brk_out_tp_rate": "msgThroughputOut", "brk_storage_size": "storageSize",
}  # fmt: skip
"""Metric of a namespace → the field of its topics' stats whose sum it is."""


def topics(stats: Mapping[str, Json], boundaries: Mapping[str, list[str]]) -> Json:
    """Stats of topics by namespace, bundle, domain and name. `boundaries`: those of the bundles, by namespace."""
    found: Json = {}
    for name, each in sorted(stats.items()):
        namespace = namespace_of(name)
        bundle = bundles.of_topic(name, boundaries[namespace])
        domain = name.partition("://")[0]
        found.setdefault(namespace, {}).setdefault(bundle, {}).setdefault(domain, {})[name] = _topic(each)
    return found


def _topic(stats: Json) -> Json:
    subscriptions = {
        name: {field: each[field] for field in _OF_SUBSCRIPTION if field in each}
        for name, each in stats["subscriptions"].items()
    }
    found = {field: stats[source] for field, source in _OF_TOPIC.items() if source in stats}
    counts = {"producerCount": len(stats["publishers"]), "pendingAddEntriesCount": 0}
    return found | counts | {"subscriptions": subscriptions}


def metrics(stats: Mapping[str, Json], connections: int) -> list[Json]:
    """Metrics with their dimensions: of each namespace, and of the broker's open connections."""
    of: defaultdict[str, list[Json]] = defaultdict(list)
    for name, each in stats.items():
        of[namespace_of(name)].append(each)
    shown = [
        {"metrics": _of_namespace(topics), "dimensions": {"namespace": namespace}}
        for namespace, topics in sorted(of.items())
    ]
    dimensions = {"cluster": "standalone", "metric": "broker_connection"}
    return [*shown, {"metrics": {"brk_active_connections": connections}, "dimensions": dimensions}]


def _of_namespace(topics: list[Json]) -> Json:
    subscriptions = [each for topic in topics for each in topic["subscriptions"].values()]
    sums = {metric: sum(topic.get(field, 0) for topic in topics) for metric, field in _SUMS.items()}
    return sums | {
        "brk_no_of_producers": sum(len(topic["publishers"]) for topic in topics),
        "brk_no_of_subscriptions": len(subscriptions),
        "brk_no_of_consumers": sum(len(each["consumers"]) for each in subscriptions),
        "brk_no_of_replicators": 0,
        "brk_msg_backlog": sum(each["msgBacklog"] for each in subscriptions),
    }


def mbeans(connections: int) -> list[Json]:
    """What is known of the process. There is no JVM, so this is all; tools expect an MBean."""
    return [{"metrics": {"connections": connections}, "dimensions": {"MBean": "magnetar:type=Server"}}]


ALLOCATORS = ("default", "ml-cache")

ALLOCATOR: Json = {
    "numDirectArenas": 0, "numHeapArenas": 0, "numThreadLocalCaches": 0, "normalCacheSize": 64, "smallCacheSize": 256,
    "usedDirectMemory": 0, "usedHeapMemory": 0, "directArenas": [], "heapArenas": [],
}  # fmt: skip
"""What there is of an allocator: Netty's sizes of caches. Without a JVM, it has nothing."""
