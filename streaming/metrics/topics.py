"""Metrics of topics and subscriptions, with the names and labels that Pulsar's brokers use.

What Pulsar has no metric for begins with ``magnetar_``. The number of label sets is bounded: topics beyond the bound, and
subscriptions beyond it, are added up in one label set each, in which namespace, topic and subscription are ``other``. So sums
over all topics stay right. Who has a label set keeps it, since the first ones known are shown.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.metrics import (
    CONSUMER_RATES,
    ENTRY_SIZES,
    SUBSCRIPTION_RATES,
    SUBSCRIPTION_TIMES,
    TOPIC_RATES,
    ConsumerMetrics,
    PartitionMetrics,
    SubscriptionMetrics,
    TopicMetrics,
)
from streaming.metrics.storage_use import READS, WRITES, StorageUse

LABEL_SETS = 1000
"""The default of the most topics, and the most subscriptions, that have a label set of their own."""

OTHER = "other"
"""The label of what is added up. It is not the name of a topic or a namespace."""

_TOPICS = {
    "pulsar_subscriptions_count": "Subscriptions of the topic.",
    "pulsar_producers_count": "Connected producers.",
    "pulsar_consumers_count": "Connected consumers.",
    "pulsar_rate_in": "Messages published, per second over the last interval.",
    "pulsar_rate_out": "Messages sent to consumers, per second over the last interval.",
    "pulsar_throughput_in": "Bytes published, per second over the last interval.",
    "pulsar_throughput_out": "Bytes sent to consumers, per second over the last interval.",
    "pulsar_storage_size": "Bytes stored.",
    "pulsar_storage_logical_size": "The same, since nothing is stored twice.",
    "pulsar_storage_write_rate": "Entries stored, per second over the last interval.",
    "pulsar_storage_backlog_size": "Bytes from the slowest subscription's position on.",
    "pulsar_msg_backlog": "Unacknowledged entries, the sum over all subscriptions.",
    "pulsar_publish_rate_limit_times": "How often the publish rate limited a connection in the interval.",
    "pulsar_in_messages_total": "Messages published since the topic was loaded.",
    "pulsar_in_bytes_total": "Bytes published since the topic was loaded.",
    "pulsar_storage_offloaded_size": "Bytes moved to long-term storage: 0, since Magnetar offloads nothing.",
    "magnetar_duplicate_messages_total": "Messages that deduplication refused as duplicates.",
    "magnetar_unknown_messages_total": "Messages for which deduplication could not yet tell.",
}
_COMPACTIONS = {
    "pulsar_compaction_removed_event_count": "Messages that compactions removed since the topic was loaded.",
    "pulsar_compaction_succeed_count": "Compactions since the topic was loaded.",
    "pulsar_compaction_failed_count": "Compactions that failed since the topic was loaded.",
    "pulsar_compaction_compacted_entries_count": "Entries of the compacted ledger.",
    "pulsar_compaction_compacted_entries_size": "Bytes of the compacted ledger.",
}
_OF_TRANSACTIONS = {
    "pulsar_txn_tb_active_total": "Open transactions with messages in the topic.",
    "pulsar_txn_tb_committed_total": "Transactions that committed on the topic since it was loaded.",
    "pulsar_txn_tb_aborted_total": "Transactions that were aborted on the topic since it was loaded.",
}
_COORDINATORS = {
    "pulsar_txn_active_count": "Open transactions of the coordinator.",
    "pulsar_txn_created_total": "Transactions begun since the coordinator was loaded.",
    "pulsar_txn_committed_total": "Transactions committed since the coordinator was loaded.",
    "pulsar_txn_aborted_total": "Transactions aborted since the coordinator was loaded.",
    "pulsar_txn_timeout_total": "Those of them that were not ended in time.",
}
_NOT_ADDED = {
    "pulsar_average_msg_size": "Bytes of a message published in the last interval, on average; 0: there was none.",
    "pulsar_storage_backlog_quota_limit": "The quota of the backlog's size in bytes; -1: none.",
    "pulsar_storage_backlog_quota_limit_time": "The quota of the backlog's age in seconds; -1: none.",
    "pulsar_storage_backlog_age_seconds": "The age of the oldest unacknowledged message that the last check of quotas found; -1: none.",
}
_BY_QUOTA = {
    "pulsar_storage_backlog_quota_exceeded_evictions_total": "How often a check evicted, by quota.",
    "magnetar_backlog_quota_used_ratio": "How much of a quota is used: eviction, or closing producers, begins at 1.",
}
_ENTRY_SIZES = [f"pulsar_entry_size_le_{bucket}" for bucket in ENTRY_SIZES]
_TOPICS |= dict.fromkeys(_ENTRY_SIZES, "Entries of the last interval by size, in bytes.") | {
    "pulsar_entry_size_count": "Entries of the last interval.",
    "pulsar_entry_size_sum": "The sizes of the last interval's entries, in bytes.",
}

_TOPICS |= READS | WRITES

_FILTERED = [
    f"pulsar_subscription_filter_{each}_msg_count"
    for each in ("processed", "accepted", "rejected", "rescheduled")
]
_TIMES = {
    f"pulsar_subscription_{re.sub('[A-Z]', lambda found: '_' + found[0].lower(), field)}": field
    for field in SUBSCRIPTION_TIMES
}
_SUBSCRIPTIONS = {
    "pulsar_subscription_back_log": "Unacknowledged entries.",
    "pulsar_subscription_back_log_no_delayed": "Unacknowledged entries without the delayed ones.",
    "pulsar_subscription_delayed": "Delayed entries.",
    "magnetar_subscription_backlog_size": "The backlog in bytes.",
    "pulsar_subscription_unacked_messages": "Messages sent to consumers and not acknowledged.",
    "pulsar_subscription_blocked_on_unacked_messages": "1 if too many unacknowledged messages block it.",
    "pulsar_subscription_consumers_count": "Connected consumers.",
    "pulsar_subscription_msg_rate_out": "Messages sent, per second over the last interval.",
    "pulsar_subscription_msg_throughput_out": "Bytes sent, per second over the last interval.",
    "pulsar_subscription_msg_ack_rate": "Messages acknowledged, per second over the last interval.",
    "pulsar_subscription_msg_rate_redeliver": "Messages sent again, per second over the last interval.",
    "pulsar_subscription_msg_rate_expired": "Entries expired, per second over the last interval.",
    "pulsar_subscription_msg_drop_rate": "Messages dropped, per second; of non-persistent topics.",
    "pulsar_subscription_total_msg_expired": "Entries expired since the topic was loaded.",
    "pulsar_out_messages_total": "Messages sent since the topic was loaded.",
    "pulsar_out_bytes_total": "Bytes sent since the topic was loaded.",
    "pulsar_subscription_in_replay": "Entries that are to be sent again.",
    "magnetar_subscription_evicted_entries_total": "Entries that backlog quotas took from the backlog.",
}
_SUBSCRIPTIONS |= {name: f"Messages that entry filters {name.split('_')[3]}." for name in _FILTERED} | {
    name: f"{field}, in ms since the epoch; 0: never." for name, field in _TIMES.items()
}
_CONSUMERS = {
    "pulsar_consumer_msg_rate_out": "Messages sent to the consumer, per second over the last interval.",
    "pulsar_consumer_msg_throughput_out": "Bytes sent to the consumer, per second over the last interval.",
    "pulsar_consumer_msg_ack_rate": "Messages that the consumer acknowledged, per second over the last interval.",
    "pulsar_consumer_msg_rate_redeliver": "Messages sent to the consumer again, per second over the last interval.",
    "pulsar_consumer_unacked_messages": "Messages that the consumer has and did not acknowledge.",
    "pulsar_consumer_blocked_on_unacked_messages": "Whether the consumer gets no more before it acknowledges some: 0 or 1.",
    "pulsar_consumer_available_permits": "Messages that the consumer takes now.",
}
_SEEN = "magnetar_mirror_source_seen_timestamp_seconds"
_DRIFTS = {
    "magnetar_mirror_drift_storage_entries": "How many more entries a shadow topic stores than its source; negative: fewer.",
    "magnetar_mirror_drift_storage_bytes": "How many more bytes a shadow topic stores than its source; negative: fewer.",
    _SEEN: "The time of the latest look at the source of a shadow topic; 0: there was none.",
}
_SUBSCRIPTION_DRIFTS = {
    "magnetar_mirror_drift_backlog_entries": "How many more entries the backlog has than on the source; negative: fewer.",
    "magnetar_mirror_drift_mark_delete_entries": "How many more entries come after the mark-delete position than on the source; negative: fewer.",
    "magnetar_mirror_drift_unacked_messages": "How many more messages consumers hold than on the source; negative: fewer.",
}
_TOPICS_COUNT = {"pulsar_topics_count": "Topics of the namespace."}
_VERSION = {
    "pulsar_version_info": "1. The label version is the version of Pulsar whose rules are in force, commit is empty."
}


class KnownTopic(NamedTuple):
    """A topic, and the ingress partition that measured it."""

    partition: int
    topic: TopicMetrics


class MetricsSnapshot(NamedTuple):
    """Figures of all topics at `time` (ms), and what the ingress partitions measured last, without the topics."""

    topics: list[KnownTopic]
    partitions: Mapping[int, PartitionMetrics]
    time: int

    def at(self, partition: int) -> int:
        """The time (ms) in an ingress partition: its clock where that is later."""
        return max(self.time, self.partitions[partition].clock)


class TopicFigures:
    """The latest figures of all topics, by the ingress partitions that measured them. Not safe for several threads."""

    def __init__(self, storage: StorageUse | None = None) -> None:
        """`storage`: what topics write and read, of all ingress partitions. None: `update` says it."""
        self._known: dict[str, KnownTopic] = {}
        self._partitions: dict[int, PartitionMetrics] = {}
        self._whole_storage = storage
        self._storage: dict[int, StorageUse] = {}

    def update(self, measured: PartitionMetrics) -> None:
        """Take in what an ingress partition measured. What it does not name is as it was."""
        if self._whole_storage is None:
            self._note_storage(measured)
        for name in measured.deleted:
            self._known.pop(name, None)
        for topic in measured.topics:
            self._known[topic.name] = KnownTopic(measured.partition, topic)
        self._partitions[measured.partition] = msgspec.structs.replace(measured, topics=[], reads={})

    def _note_storage(self, measured: PartitionMetrics) -> None:
        interval = measured.clock // measured.interval
        storage = self._storage.setdefault(measured.partition, StorageUse())
        if (seconds := measured.write_seconds) is not None:
            for topic in measured.topics:
                known = self._known.get(topic.name)
                entries = stored_since(None if known is None else known.topic, topic, measured.interval)
                if entries:
                    storage.wrote(topic.name, entries, seconds, interval)
        for name, entries in measured.reads.items():
            storage.read(name, entries, interval)

    @property
    def partitions(self) -> Mapping[int, PartitionMetrics]:
        """What the ingress partitions measured last, without the topics."""
        return self._partitions

    def snapshot(self, time: int) -> MetricsSnapshot:
        """The figures as of `time` (ms). They do not change any more."""
        return MetricsSnapshot(list(self._known.values()), dict(self._partitions), time)

    def topic(self, name: str) -> KnownTopic | None:
        """The figures of a topic."""
        return self._known.get(name)

    @property
    def closed_ledgers(self) -> int:
        """How many closed ledgers all topics have."""
        return sum(each.topic.closed_ledgers for each in self._known.values())

    def collect(self, time: int, label_sets: int = LABEL_SETS) -> Iterator[Metric]:
        """The metrics as of `time` (ms), or of a partition's clock where that is later."""
        topics = _Families(_TOPICS, "cluster", "namespace", "topic")
        not_added = _Families(_NOT_ADDED, "cluster", "namespace", "topic")
        by_quota = _Families(_BY_QUOTA, "cluster", "namespace", "topic", "quota_type")
        subscriptions = _Families(_SUBSCRIPTIONS, "cluster", "namespace", "topic", "subscription")
        consumers = _Families(
            _CONSUMERS, "cluster", "namespace", "topic", "subscription", "consumer_name", "consumer_id"
        )
        drifts = _Families(_DRIFTS, "cluster", "namespace", "topic")
        drifts_of_subscriptions = _Families(
            _SUBSCRIPTION_DRIFTS, "cluster", "namespace", "topic", "subscription"
        )
        compactions = _Families(_COMPACTIONS, "cluster", "namespace", "topic")
        of_transactions = _Families(_OF_TRANSACTIONS, "cluster", "namespace", "topic")
        coordinators = _Families(_COORDINATORS, "cluster", "coordinator_id")
        namespaces = _Families(_TOPICS_COUNT, "cluster", "namespace")
        versions = _Families(_VERSION, "cluster", "version", "commit")
        for cluster, release in {(each.cluster, each.release) for each in self._partitions.values()}:
            versions.add((cluster, release, ""), {"pulsar_version_info": 1})
        # Where there are several ingress partitions, each has all coordinators: the one that is furthest says how they are.
        of_all = {
            (each.cluster, str(id_)): coordinator
            for each in sorted(self._partitions.values(), key=lambda each: each.clock)
            for id_, coordinator in each.coordinators.items()
        }
        for of, coordinator in of_all.items():
            coordinators.add(of, dict(zip(_COORDINATORS, msgspec.structs.astuple(coordinator), strict=True)))
        shown = members = 0
        for number, (partition, topic) in enumerate(self._known.values()):
            own = self._partitions[partition]
            at, cluster = max(time, own.clock), own.cluster
            namespace = topic.name.partition("://")[2].rpartition("/")[0]
            listed = number < label_sets
            labels = (cluster, namespace, topic.name) if listed else (cluster, OTHER, OTHER)
            storage = self._whole_storage or self._storage[partition]
            topics.add(labels, topic_values(topic, at, own.interval))
            topics.add(labels, storage.values(topic.name, at, own.interval))
            namespaces.add((cluster, namespace if listed else OTHER), {"pulsar_topics_count": 1})
            drifts.add(labels, _drift_values(topic))
            if topic.compaction is not None:
                of_it = msgspec.structs.astuple(topic.compaction)
                compactions.add(labels, dict(zip(_COMPACTIONS, of_it, strict=True)))
            if topic.transactions is not None:
                of_it = msgspec.structs.astuple(topic.transactions)
                of_transactions.add(labels, dict(zip(_OF_TRANSACTIONS, of_it, strict=True)))
            if listed:
                if topic.drift is not None:  # times have no sum
                    drifts.add(labels, {_SEEN: topic.source_seen / 1000})
                not_added.add(labels, average_size(topic, at, own.interval) | quota_limits(topic, at))
                for quota_type, values in quota_use(topic, at).items():
                    by_quota.add((*labels, quota_type), values)
            for subscription in topic.subscriptions:
                shown += 1
                has_own = listed and shown <= label_sets
                of_subscription = (*labels, subscription.name) if has_own else (cluster, *[OTHER] * 3)
                values = subscription_values(subscription, topic, at, own.interval)
                if has_own:  # times have no sum
                    values |= dict(zip(_TIMES, subscription.times, strict=True))
                subscriptions.add(of_subscription, values)
                drifts_of_subscriptions.add(of_subscription, _subscription_drift_values(subscription))
                for consumer in subscription.members:
                    members += 1
                    consumers.add(
                        (*of_subscription, consumer.name, str(consumer.consumer_id))
                        if has_own and members <= label_sets
                        else (cluster, *[OTHER] * 5),
                        _consumer_values(consumer, topic, at, own.interval),
                    )
        for families in (
            versions, namespaces, topics, not_added, by_quota, subscriptions, consumers, drifts, drifts_of_subscriptions,
            compactions, of_transactions, coordinators,
        ):  # fmt: skip
            yield from families.metrics()


class BrokerMetrics(Collector):
    """Collects the metrics of a broker in this process, by measuring all its topics at each scrape."""

    def __init__(
        self, measure: Callable[[], PartitionMetrics], now: Callable[[], int], storage: StorageUse
    ) -> None:
        """`now`: the time in ms. `storage`: what the topics write and read."""
        self._measure, self._now, self._storage = measure, now, storage

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        figures = TopicFigures(self._storage)
        figures.update(self._measure())
        return figures.collect(self._now())


class _Families:
    """Values by name and labels. Those with the same labels are added up."""

    def __init__(self, described: Mapping[str, str], *labels: str) -> None:
        self._described, self._labels = described, labels
        self._values: dict[tuple[str, ...], dict[str, float]] = {}

    def add(self, labels: tuple[str, ...], values: Mapping[str, float]) -> None:
        found = self._values.setdefault(labels, {})
        for name, value in values.items():
            found[name] = found.get(name, 0) + value

    def metrics(self) -> Iterator[Metric]:
        for name, text in self._described.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, text, labels=self._labels)
            for labels, values in self._values.items():
                if name in values:
                    family.add_metric(labels, values[name])
            yield family


def _rates(
    names: Sequence[str],
    now: Sequence[float],
    later: Sequence[float],
    topic: TopicMetrics,
    at: int,
    interval: int,
) -> dict[str, float]:
    """The rates at a time (ms), see `schemas.metrics`."""
    if at < topic.rates_until:
        return dict(zip(names, now, strict=True))
    return (
        dict(zip(names, later, strict=True))
        if at < topic.rates_until + interval
        else dict.fromkeys(names, 0.0)
    )


def topic_values(topic: TopicMetrics, at: int, interval: int) -> dict[str, float]:
    """The metrics of a topic by name, at a time (ms). `interval`: of the rates, in ms."""
    rates = _rates(TOPIC_RATES, topic.rates, topic.next_rates, topic, at, interval)
    sizes = _entry_sizes(topic, at, interval)
    of_subscriptions = [_subscription_rates(each, topic, at, interval) for each in topic.subscriptions]
    return {
        "pulsar_subscriptions_count": len(topic.subscriptions),
        "pulsar_producers_count": topic.producers,
        "pulsar_consumers_count": sum(each.consumers for each in topic.subscriptions),
        "pulsar_rate_in": rates["msgRateIn"],
        "pulsar_rate_out": sum((each["msgRateOut"] for each in of_subscriptions), 0.0),
        "pulsar_throughput_in": rates["msgThroughputIn"],
        "pulsar_throughput_out": sum((each["msgThroughputOut"] for each in of_subscriptions), 0.0),
        "pulsar_storage_size": topic.storage_size,
        "pulsar_storage_logical_size": topic.storage_size,
        "pulsar_storage_write_rate": sizes["pulsar_entry_size_count"] * 1000 / interval,
        "pulsar_storage_offloaded_size": 0,
        "pulsar_storage_backlog_size": topic.backlog_size,
        "pulsar_msg_backlog": sum(each.backlog for each in topic.subscriptions),
        "pulsar_publish_rate_limit_times": topic.publish_limited if at < topic.publish_limited_until else 0,
        "pulsar_in_messages_total": topic.messages_in,
        "pulsar_in_bytes_total": topic.bytes_in,
        "magnetar_duplicate_messages_total": topic.duplicates,
        "magnetar_unknown_messages_total": topic.unknown,
        **sizes,
    }


def stored_since(before: TopicMetrics | None, now: TopicMetrics, interval: int) -> int:
    """How many entries a topic has stored since it was measured before, as far as the present interval (of so many ms) and the last
    one show. An unload forgets those before it."""
    last, current = sum(now.entry_sizes[:-1]), sum(now.next_entry_sizes[:-1])
    if before is None:
        return last + current
    known = sum(before.next_entry_sizes[:-1])
    if now.rates_until == before.rates_until:
        return current - known if current >= known else current
    if now.rates_until == before.rates_until + interval and last >= known:
        last -= known
    return last + current


def average_size(topic: TopicMetrics, at: int, interval: int) -> dict[str, float]:
    """How large messages were on average, as a metric."""
    rates = _rates(TOPIC_RATES, topic.rates, topic.next_rates, topic, at, interval)
    rate = rates["msgRateIn"]
    return {"pulsar_average_msg_size": rates["msgThroughputIn"] / rate if rate else 0.0}


def _entry_sizes(topic: TopicMetrics, at: int, interval: int) -> dict[str, float]:
    """The sizes of the last interval's entries by metric."""
    counts: Sequence[int] = topic.next_entry_sizes if at < topic.rates_until + interval else ()
    if at < topic.rates_until:
        counts = topic.entry_sizes
    *buckets, total = counts or [0] * (len(ENTRY_SIZES) + 1)
    found: dict[str, float] = dict(zip(_ENTRY_SIZES, buckets, strict=True))
    return found | {"pulsar_entry_size_count": sum(buckets), "pulsar_entry_size_sum": total}


def _drift_values(topic: TopicMetrics) -> dict[str, float]:
    """The drift of a topic's storage by metric, of a shadow topic."""
    if (drift := topic.drift) is None:
        return {}
    return {
        "magnetar_mirror_drift_storage_entries": drift.entries,
        "magnetar_mirror_drift_storage_bytes": drift.size,
    }


def _subscription_drift_values(subscription: SubscriptionMetrics) -> dict[str, float]:
    """The drift of a subscription by metric, if it was compared with its source."""
    if (drift := subscription.drift) is None:
        return {}
    return {
        "magnetar_mirror_drift_backlog_entries": drift.entries,
        "magnetar_mirror_drift_mark_delete_entries": drift.mark_delete,
        "magnetar_mirror_drift_unacked_messages": drift.messages,
    }


def quota_limits(topic: TopicMetrics, at: int) -> dict[str, float]:
    """The metrics of a topic's quotas by name; -1: there is none, or it is not known."""
    return {
        "pulsar_storage_backlog_quota_limit": max(topic.quota_size, -1),
        "pulsar_storage_backlog_quota_limit_time": topic.quota_time if topic.quota_time > 0 else -1,
        "pulsar_storage_backlog_age_seconds": -1 if topic.oldest is None else (at - topic.oldest) / 1000,
    }


def quota_use(topic: TopicMetrics, at: int) -> dict[str, dict[str, float]]:
    """The metrics that a topic has for each quota, by the label quota_type."""
    evictions, used = (
        "pulsar_storage_backlog_quota_exceeded_evictions_total",
        "magnetar_backlog_quota_used_ratio",
    )
    size: dict[str, float] = {evictions: topic.size_evictions}
    time: dict[str, float] = {evictions: topic.time_evictions}
    if topic.quota_size > 0:
        size[used] = topic.backlog_size / topic.quota_size
    if topic.quota_time > 0:
        time[used] = 0.0 if topic.oldest is None else (at - topic.oldest) / 1000 / topic.quota_time
    return {"size": size, "time": time}


def _subscription_rates(
    subscription: SubscriptionMetrics, topic: TopicMetrics, at: int, interval: int
) -> dict[str, float]:
    return _rates(SUBSCRIPTION_RATES, subscription.rates, subscription.next_rates, topic, at, interval)


def subscription_values(
    subscription: SubscriptionMetrics, topic: TopicMetrics, at: int, interval: int
) -> dict[str, float]:
    """The metrics of a subscription by name, at a time (ms). `interval`: of the rates, in ms."""
    rates = _subscription_rates(subscription, topic, at, interval)
    return {
        "pulsar_subscription_back_log": subscription.backlog,
        "pulsar_subscription_back_log_no_delayed": subscription.backlog_no_delayed,
        "pulsar_subscription_delayed": subscription.delayed,
        "magnetar_subscription_backlog_size": subscription.backlog_size,
        "pulsar_subscription_unacked_messages": subscription.unacked,
        "pulsar_subscription_blocked_on_unacked_messages": subscription.blocked,
        "pulsar_subscription_consumers_count": subscription.consumers,
        "pulsar_subscription_msg_rate_out": rates["msgRateOut"],
        "pulsar_subscription_msg_throughput_out": rates["msgThroughputOut"],
        "pulsar_subscription_msg_ack_rate": rates["messageAckRate"],
        "pulsar_subscription_msg_rate_redeliver": rates["msgRateRedeliver"],
        "pulsar_subscription_msg_rate_expired": rates["msgRateExpired"],
        "pulsar_subscription_msg_drop_rate": rates["msgDropRate"],
        "pulsar_subscription_total_msg_expired": subscription.expired,
        "pulsar_out_messages_total": subscription.messages_out,
        "pulsar_out_bytes_total": subscription.bytes_out,
        "magnetar_subscription_evicted_entries_total": subscription.evicted,
        "pulsar_subscription_in_replay": subscription.in_replay,
        **dict(zip(_FILTERED, subscription.filtered, strict=True)),
    }


def _consumer_values(
    consumer: ConsumerMetrics, topic: TopicMetrics, at: int, interval: int
) -> dict[str, float]:
    rates = _rates(CONSUMER_RATES, consumer.rates, consumer.next_rates, topic, at, interval)
    return {
        "pulsar_consumer_msg_rate_out": rates["msgRateOut"],
        "pulsar_consumer_msg_throughput_out": rates["msgThroughputOut"],
        "pulsar_consumer_msg_ack_rate": rates["messageAckRate"],
        "pulsar_consumer_msg_rate_redeliver": rates["msgRateRedeliver"],
        "pulsar_consumer_unacked_messages": consumer.unacked,
        "pulsar_consumer_blocked_on_unacked_messages": consumer.blocked,
        "pulsar_consumer_available_permits": consumer.permits,
    }
