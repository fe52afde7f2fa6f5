"""Stats of a persistent topic, with Pulsar's field names (I2)."""

from typing import Any

from streaming.broker import stats
from streaming.broker.config import ServiceConfiguration
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic


def topic_stats(topic: PersistentTopic, config: ServiceConfiguration) -> dict[str, Any]:
    """Counters in messages (…Counter) or entries (msgBacklog) and bytes, times in ms since the epoch, 0 = never."""
    subscriptions = {
        name: _subscription(topic, found, config)
        for name, found in topic.subscriptions.items()
        if not found.awaits_its_reader
    }
    storage = {
        "storageSize": topic.ledger.total_size,
        "backlogSize": topic.backlog_size(),
        "deduplicationStatus": topic.dedup.status,
    }
    return {**stats.topic_fields(topic, subscriptions), **storage}


def stats_with_rates(topic: PersistentTopic, config: ServiceConfiguration, now: int) -> dict[str, Any]:
    """`topic_stats` with the rates of the last interval that ended by `now` (ms)."""
    found = topic_stats(topic, config)
    stats.add_rates(topic, found)
    found["publishRateLimitedTimes"] = topic.publish_limited.in_interval(now, config)
    for name, subscription in found["subscriptions"].items():
        subscription |= stats.sums(subscription["consumers"], "chunkedMessageRate")
        subscription["msgRateExpired"] = topic.subscriptions[name].expired_rate.per_second(now, config)
    return found


def _subscription(
    topic: PersistentTopic, subscription: PersistentSubscription, config: ServiceConfiguration
) -> dict[str, Any]:
    dispatcher = subscription.dispatcher
    found = {
        **stats.subscription_fields(
            subscription.type, subscription.consumers, subscription.messages_out, subscription.bytes_out
        ),
        "isDurable": subscription.durable,
        **_backlog(topic, subscription, config),
        "blockedSubscriptionOnUnackedMsgs": subscription.broker_blocked
        or (dispatcher is not None and dispatcher.blocked_on_unacked),
        "totalMsgExpired": subscription.expired - subscription.expired_before_load,
        "lastExpireTimestamp": subscription.last_expire,
    }
    if dispatcher is None:
        return found
    for consumer, fields in zip(subscription.consumers, found["consumers"], strict=True):
        if (ranges := dispatcher.hash_ranges(consumer)) is not None:
            fields["keyHashRanges"] = ranges
    return found | dispatcher.stats(subscription.consumers)


def _backlog(
    topic: PersistentTopic, subscription: PersistentSubscription, config: ServiceConfiguration
) -> dict[str, Any]:
    cursor, dispatcher = topic.cursors[subscription.name], subscription.dispatcher
    backlog = cursor.backlog(topic.ledger, precise=True)
    delayed = 0 if dispatcher is None else dispatcher.delayed_messages
    return {
        "msgBacklog": backlog,
        "backlogSize": (
            cursor.backlog_size(topic.ledger)
            if config.subscriptionBacklogSizeWithoutAcked
            else topic.ledger.estimate_backlog_from(cursor.mark_delete)
        ),
        "msgBacklogNoDelayed": backlog - delayed,
        "msgDelayed": delayed,
        "nonContiguousDeletedMessagesRanges": cursor.acked.count_runs(),
    }


def rows(topic: PersistentTopic) -> list[dict[str, Any]]:
    """A row for a topic, then one for each subscription, by name."""
    ledger, counters = topic.ledger, topic.counters
    found = [stats.row(topic=topic.name, entries=ledger.number_of_entries, duplicates=counters.duplicates,
                 unknown=counters.unknown, trimmed=counters.trimmed, backlog=topic.backlog(), storage=ledger.total_size)]  # fmt: skip
    for name in sorted(topic.subscriptions):
        subscription, cursor = topic.subscriptions[name], topic.cursors[name]
        found.append(
            stats.row(
                topic=topic.name, subscription=name, dispatched=subscription.dispatched, acked=subscription.acked,
                expired=subscription.expired, evicted=subscription.evicted, backlog=cursor.backlog(ledger),
                storage=cursor.backlog_size(ledger), mark_delete=str(cursor.mark_delete),
            )
        )  # fmt: skip
    return found
