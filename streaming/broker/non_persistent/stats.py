"""Stats and internal stats of a non-persistent topic, with Pulsar's field names (I2)."""

from typing import Any

from schemas.metrics import SUBSCRIPTION_TIMES, SubscriptionMetrics, TopicMetrics
from streaming.broker.config import ServiceConfiguration
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.non_persistent.subscription import NonPersistentSubscription
from streaming.broker.non_persistent.topic import NonPersistentTopic
from streaming.broker.rates.rate import Rate
from streaming.broker.topic import stats

NO_STORAGE = {"storageSize": 0, "backlogSize": 0}

NO_QUOTAS = {"backlogQuotaLimitSize": 0, "backlogQuotaLimitTime": 0, "oldestBacklogMessageAgeSeconds": 0}

NO_CURSOR: dict[str, Any] = {
    "isDurable": False,
    "msgBacklog": 0,
    "backlogSize": 0,
    "msgBacklogNoDelayed": 0,
    "msgDelayed": 0,
    "nonContiguousDeletedMessagesRanges": 0,
    "blockedSubscriptionOnUnackedMsgs": False,
    "totalMsgExpired": 0,
    "lastExpireTimestamp": 0,
}
"""The fields of a subscription that concern a cursor."""


def topic_stats(topic: NonPersistentTopic) -> dict[str, Any]:
    """Counters in messages and bytes."""
    subscriptions = {name: _subscription(found) for name, found in topic.subscriptions.items()}
    return {**stats.topic_fields(topic, subscriptions), **NO_STORAGE}


def stats_with_rates(topic: NonPersistentTopic, config: ServiceConfiguration, now: int) -> dict[str, Any]:
    """`topic_stats` with the rates of the last interval that ended by `now` (ms), among them msgDropRate.

    A publisher's messages are dropped above the limit in flight, a subscription's where nobody can take them. quirk: a
    publisher's rate counts a batch as one message, and the topic's is always 0.
    """
    found, none = topic_stats(topic), Rate()
    stats.add_rates(topic, found)
    for publisher in found["publishers"]:
        drops = topic.publisher_drops.get(publisher["producerName"], none)
        publisher["msgDropRate"] = drops.per_second(now, config)
    for name, subscription in found["subscriptions"].items():
        subscription["msgDropRate"] = topic.drops.get(name, none).per_second(now, config)
        subscription["chunkedMessageRate"] = 0.0  # quirk: not that of its consumers
        subscription |= {"msgRateExpired": 0.0, "msgInReplay": 0, **dict.fromkeys(SUBSCRIPTION_TIMES, 0)}
        subscription |= stats.details(
            topic.subscriptions[name].filtered, topic.subscriptions[name].properties
        )
    return {**found, **NO_QUOTAS, "msgDropRate": 0.0}


def metrics(topic: NonPersistentTopic, config: ServiceConfiguration) -> TopicMetrics:
    """The figures of `stats_with_rates` that are metrics."""
    rates, next_rates = stats.producer_rates(topic)
    return TopicMetrics(
        topic.name,
        len(topic.producers),
        [_metrics(topic, found, config) for found in topic.subscriptions.values()],
        topic.counters.messages_in,
        topic.counters.bytes_in,
        storage_size=0,
        backlog_size=0,
        duplicates=0,
        unknown=0,
        quota_size=-1,
        quota_time=-1,
        oldest=None,
        size_evictions=0,
        time_evictions=0,
        publish_limited=0,
        publish_limited_until=0,
        rates_until=topic.rates_until,
        rates=tuple(rates),
        next_rates=tuple(next_rates),
    )


def _metrics(
    topic: NonPersistentTopic, subscription: NonPersistentSubscription, config: ServiceConfiguration
) -> SubscriptionMetrics:
    rates, next_rates = stats.consumer_rates(topic, subscription.consumers)
    drops, until = topic.drops.get(subscription.name, Rate()), topic.rates_until
    return SubscriptionMetrics(
        subscription.name,
        len(subscription.consumers),
        backlog=0,
        backlog_no_delayed=0,
        delayed=0,
        backlog_size=0,
        unacked=sum(consumer.unacked for consumer in subscription.consumers),
        blocked=False,
        messages_out=subscription.messages_out,
        bytes_out=subscription.bytes_out,
        expired=0,
        evicted=0,
        rates=(*rates, 0.0, drops.per_second(until - 1, config)),
        next_rates=(*next_rates, 0.0, drops.per_second(until, config)),
        filtered=stats.filter_counts(subscription.filtered),
        members=stats.members(topic, subscription.consumers, config),
    )


def _subscription(subscription: NonPersistentSubscription) -> dict[str, Any]:
    counters = stats.subscription_fields(
        subscription.type, subscription.consumers, subscription.messages_out, subscription.bytes_out
    )
    # quirk: its consumers may have unacked messages (2.10), and still it has none
    return {**counters, **NO_CURSOR, "unackedMessages": 0}


def internal_stats() -> dict[str, Any]:
    """Those of a managed ledger that never had an entry, as Pulsar shows them."""
    return stats.internal_stats(ManagedLedger(), {})


def rows(topic: NonPersistentTopic) -> list[dict[str, Any]]:
    """The rows of `Broker.stats` for the topic and its subscriptions."""
    found = [stats.row(topic=topic.name, entries=0, duplicates=0, unknown=0, trimmed=0, backlog=0, storage=0)]
    for name in sorted(topic.subscriptions):
        dispatched = topic.subscriptions[name].dispatched
        found.append(
            stats.row(topic=topic.name, subscription=name, dispatched=dispatched, acked=0, expired=0, evicted=0,
                      backlog=0, storage=0)
        )  # fmt: skip
    return found
