"""Stats and internal stats of a non-persistent topic, with Pulsar's field names (I2)."""

from typing import Any

from streaming.broker import stats
from streaming.broker.config import ServiceConfiguration
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.non_persistent.subscription import NonPersistentSubscription
from streaming.broker.non_persistent.topic import NonPersistentTopic
from streaming.broker.rate import Rate

NO_STORAGE = {"storageSize": 0, "backlogSize": 0}

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
    return {**found, "msgDropRate": 0.0}


def _subscription(subscription: NonPersistentSubscription) -> dict[str, Any]:
    counters = stats.subscription_fields(
        subscription.type, subscription.consumers, subscription.messages_out, subscription.bytes_out
    )
    return {**counters, **NO_CURSOR}


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
