"""Figures of topics and subscriptions as the rows of the page: with the names of Pulsar's stats, sorted, filtered, in pages."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from schemas.metrics import DriftMetrics, SubscriptionMetrics, TopicMetrics
from streaming.metrics.topics import (
    KnownTopic,
    MetricsSnapshot,
    quota_limits,
    quota_use,
    subscription_values,
    topic_values,
)

PAGE = 50
"""The rows of a page."""

PAGES = 200
"""The most pages: who looks for a row further down, searches by name."""

_USED = "magnetar_backlog_quota_used_ratio"

TOPIC_ORDERS: Mapping[str, Callable[[TopicMetrics], float]] = {
    "storage": lambda topic: topic.storage_size,
    "backlog": lambda topic: _backlog(topic),
    "backlogSize": lambda topic: topic.backlog_size,
    "producers": lambda topic: topic.producers,
    "subscriptions": lambda topic: len(topic.subscriptions),
    "messagesIn": lambda topic: topic.messages_in,
}
SUBSCRIPTION_ORDERS: Mapping[str, Callable[[SubscriptionMetrics], float]] = {
    "backlog": lambda subscription: subscription.backlog,
    "backlogSize": lambda subscription: subscription.backlog_size,
    "unacked": lambda subscription: subscription.unacked,
    "delayed": lambda subscription: subscription.delayed,
    "consumers": lambda subscription: subscription.consumers,
    "expired": lambda subscription: subscription.expired,
    "evicted": lambda subscription: subscription.evicted,
}
DRIFT_ORDERS: Mapping[str, Callable[[DriftMetrics, int], float]] = {
    "drift": lambda drift, _: max(abs(drift.entries), abs(drift.mark_delete), abs(drift.messages)),
    "entries": lambda drift, _: abs(drift.entries),
    "markDelete": lambda drift, _: abs(drift.mark_delete),
    "messages": lambda drift, _: abs(drift.messages),
    "size": lambda drift, _: abs(drift.size),
    "unseen": lambda _, seen: -seen,
}
"""By what the rows can be sorted, the largest first. Those of a twin: by a drift and when the source was seen (ms)."""

_TOPIC = {
    "producers": "pulsar_producers_count",
    "consumers": "pulsar_consumers_count",
    "subscriptions": "pulsar_subscriptions_count",
    "storage": "pulsar_storage_size",
    "backlog": "pulsar_msg_backlog",
    "backlogSize": "pulsar_storage_backlog_size",
    "rateIn": "pulsar_rate_in",
    "rateOut": "pulsar_rate_out",
    "messagesIn": "pulsar_in_messages_total",
    "duplicates": "magnetar_duplicate_messages_total",
}
_SUBSCRIPTION = {
    "consumers": "pulsar_subscription_consumers_count",
    "backlog": "pulsar_subscription_back_log",
    "backlogSize": "magnetar_subscription_backlog_size",
    "unacked": "pulsar_subscription_unacked_messages",
    "blocked": "pulsar_subscription_blocked_on_unacked_messages",
    "delayed": "pulsar_subscription_delayed",
    "rateOut": "pulsar_subscription_msg_rate_out",
    "rateAck": "pulsar_subscription_msg_ack_rate",
    "expired": "pulsar_subscription_total_msg_expired",
    "evicted": "magnetar_subscription_evicted_entries_total",
}
"""A name of the page → the metric."""


class AllTopics(NamedTuple):
    """All topics together: `backlog` in entries, `storage` in bytes, rates in messages per second."""

    topics: int
    subscriptions: int
    backlog: int
    storage: int
    rateIn: float
    rateOut: float


def totals(figures: MetricsSnapshot) -> AllTopics:
    """The sums over all topics."""
    subscriptions = backlog = storage = 0
    rate_in = rate_out = 0.0
    for partition, topic in figures.topics:
        subscriptions += len(topic.subscriptions)
        backlog += _backlog(topic)
        storage += topic.storage_size
        own = figures.partitions[partition]
        at = figures.at(partition)
        if at < topic.rates_until + own.interval:  # after that, all rates are 0
            values = topic_values(topic, at, own.interval)
            rate_in += values["pulsar_rate_in"]
            rate_out += values["pulsar_rate_out"]
    return AllTopics(len(figures.topics), subscriptions, backlog, storage, rate_in, rate_out)


def topics(figures: MetricsSnapshot, search: str, order: str, page: int) -> dict[str, Any]:
    """A page of the topics whose names have `search` in them: ``rows``, and the ``total`` number of such topics.

    Raises `KeyError` for an unknown order.
    """
    key = TOPIC_ORDERS[order]
    found = [each for each in figures.topics if search in each.topic.name]
    rows = _page(found, lambda each: (key(each.topic), each.topic.name), page)
    return {"rows": [_topic(figures, each) for each in rows], "total": len(found)}


def subscriptions(figures: MetricsSnapshot, search: str, order: str, page: int) -> dict[str, Any]:
    """The same of subscriptions, found by their own name or the topic's."""
    key = SUBSCRIPTION_ORDERS[order]
    found = [
        (known, each)
        for known in figures.topics
        for each in known.topic.subscriptions
        if search in each.name or search in known.topic.name
    ]
    rows = _page(found, lambda each: (key(each[1]), each[0].topic.name, each[1].name), page)
    return {"rows": [_subscription(figures, *each) for each in rows], "total": len(found)}


def twin(figures: MetricsSnapshot, search: str, order: str, page: int) -> dict[str, Any]:
    """A page of the shadow topics and their subscriptions: how much more each has than its source (``entries``, after the
    mark-delete position ``markDelete``, ``messages``, ``size`` in bytes), why, and when the source was ``seen`` (ms; None: never). A row without ``subscription`` is about what the topic stores.

    ``topics``: how many shadow topics there are, ``differ``: how many rows differ from the source, and ``seen``: the latest look; these
    three are of all, ``total`` and ``rows`` of those found by a name. Raises `KeyError` for an unknown order.
    """
    key = DRIFT_ORDERS[order]
    mirrored = [each.topic for each in figures.topics if each.topic.drift is not None]
    rows = [(topic, name, drift) for topic in mirrored for name, drift in _drifts(topic)]
    found = [each for each in rows if search in each[0].name or (each[1] is not None and search in each[1])]
    shown = _page(found, lambda each: (key(each[2], each[0].source_seen), each[0].name, each[1] or ""), page)
    return {
        "rows": [
            {
                "topic": topic.name,
                "subscription": name,
                "entries": drift.entries,
                "markDelete": None if name is None else drift.mark_delete,
                "messages": None if name is None else drift.messages,
                "size": drift.size if name is None else None,
                "cause": drift.cause or "as its latest MIRROR_DRIFT row says",
                "seen": topic.source_seen or None,
            }
            for topic, name, drift in shown
        ],
        "total": len(found),
        "topics": len(mirrored),
        "differ": sum(drift.differs for _, _, drift in rows),
        "seen": max((topic.source_seen for topic in mirrored), default=0) or None,
    }


def _drifts(topic: TopicMetrics) -> Iterator[tuple[str | None, DriftMetrics]]:
    """What is known of a shadow topic (None) and of its subscriptions."""
    if topic.drift is not None:
        yield None, topic.drift
    for each in topic.subscriptions:
        if each.drift is not None:
            yield each.name, each.drift


def topic(figures: MetricsSnapshot, known: KnownTopic, page: int) -> dict[str, Any]:
    """A topic: its figures, its quotas, and a page of its subscriptions, the largest backlog first."""
    found = known.topic.subscriptions
    rows = _page(found, lambda each: (each.backlog, each.name), page)
    limits = quota_limits(known.topic, figures.at(known.partition))
    return {
        **_topic(figures, known),
        "oldest": None if known.topic.oldest is None else limits["pulsar_storage_backlog_age_seconds"],
        "quotas": list(_quotas(figures, known)),
        "rows": [_subscription(figures, known, each) for each in rows],
        "total": len(found),
    }


def quotas(figures: MetricsSnapshot, most: int) -> list[dict[str, Any]]:
    """The backlog quotas that are used most, the highest share first."""
    found = (quota for each in figures.topics if _has_quota(each.topic) for quota in _quotas(figures, each))
    return heapq.nlargest(most, found, key=lambda quota: quota["ratio"])


def _has_quota(topic: TopicMetrics) -> bool:
    return (topic.quota_size > 0 or topic.quota_time > 0) and topic.backlog_size > 0


def _quotas(figures: MetricsSnapshot, known: KnownTopic) -> Iterator[dict[str, Any]]:
    """How much of each quota of a topic is used: bytes for ``size``, seconds for ``time``."""
    at = figures.at(known.partition)
    limits = {"size": known.topic.quota_size, "time": known.topic.quota_time}
    evictions = {"size": known.topic.size_evictions, "time": known.topic.time_evictions}
    for type_, values in quota_use(known.topic, at).items():
        if _USED in values:
            yield {
                "topic": known.topic.name,
                "type": type_,
                "limit": limits[type_],
                "used": values[_USED] * limits[type_],
                "ratio": values[_USED],
                "evictions": evictions[type_],
            }


def _topic(figures: MetricsSnapshot, known: KnownTopic) -> dict[str, Any]:
    interval = figures.partitions[known.partition].interval
    values = topic_values(known.topic, figures.at(known.partition), interval)
    return {
        "topic": known.topic.name,
        "partition": known.partition,
        **{name: values[metric] for name, metric in _TOPIC.items()},
        "quota": max((each["ratio"] for each in _quotas(figures, known)), default=None),
    }


def _subscription(
    figures: MetricsSnapshot, known: KnownTopic, subscription: SubscriptionMetrics
) -> dict[str, Any]:
    interval = figures.partitions[known.partition].interval
    values = subscription_values(subscription, known.topic, figures.at(known.partition), interval)
    return {
        "topic": known.topic.name,
        "subscription": subscription.name,
        **{name: values[metric] for name, metric in _SUBSCRIPTION.items()},
    }


def _backlog(topic: TopicMetrics) -> int:
    return sum(each.backlog for each in topic.subscriptions)


def _page(found: Iterable[Any], key: Callable[[Any], Any], page: int) -> Sequence[Any]:
    return heapq.nlargest((page + 1) * PAGE, found, key=key)[page * PAGE :]
