"""Stats of a persistent topic, with Pulsar's field names (I2)."""

from typing import Any

from schemas.metrics import SubscriptionMetrics, TopicMetrics
from streaming.broker import stats
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.rate import end_of_interval


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


def metrics(topic: PersistentTopic, ctx: Context) -> TopicMetrics:
    """The figures of `stats_with_rates` that are metrics, and those that its counters and quotas add."""
    config, counters = ctx.config, topic.counters
    policies = ctx.policies_of(topic)
    rates, next_rates = stats.producer_rates(topic)
    return TopicMetrics(
        topic.name,
        len(topic.producers),
        [
            _metrics(topic, found, config)
            for found in topic.subscriptions.values()
            if not found.awaits_its_reader
        ],
        counters.messages_in,
        counters.bytes_in,
        topic.ledger.total_size,
        topic.backlog_size(),
        counters.duplicates,
        counters.unknown,
        policies.destination_storage_quota.value.limitSize,
        policies.message_age_quota.value.limitTime,
        None if topic.oldest is None else topic.oldest.timestamp,
        counters.size_evictions,
        counters.time_evictions,
        topic.publish_limited.in_interval(ctx.clock, config),
        end_of_interval(ctx.clock, config),
        topic.rates_until,
        tuple(rates),
        tuple(next_rates),
        len(topic.ledger.ledgers) - (topic.ledger.current in topic.ledger.ledgers),
    )


def _metrics(
    topic: PersistentTopic, subscription: PersistentSubscription, config: ServiceConfiguration
) -> SubscriptionMetrics:
    backlog, until = _backlog(topic, subscription, config), topic.rates_until
    consumers, expired = subscription.consumers, subscription.expired_rate
    rates, next_rates = stats.consumer_rates(topic, consumers)
    return SubscriptionMetrics(
        subscription.name,
        len(consumers),
        backlog["msgBacklog"],
        backlog["msgBacklogNoDelayed"],
        backlog["msgDelayed"],
        backlog["backlogSize"],
        _unacked(subscription),
        _is_blocked(subscription),
        subscription.messages_out,
        subscription.bytes_out,
        subscription.expired - subscription.expired_before_load,
        subscription.evicted,
        (*rates, expired.per_second(until - 1, config), 0.0),
        (*next_rates, expired.per_second(until, config), 0.0),
    )


def _unacked(subscription: PersistentSubscription) -> int:
    total = sum(consumer.unacked for consumer in subscription.consumers)
    if subscription.dispatcher is None:
        return total
    unacked: int = subscription.dispatcher.stats(subscription.consumers).get("unackedMessages", total)
    return unacked


def _is_blocked(subscription: PersistentSubscription) -> bool:
    dispatcher = subscription.dispatcher
    return subscription.broker_blocked or (dispatcher is not None and dispatcher.blocked_on_unacked)


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
        "blockedSubscriptionOnUnackedMsgs": _is_blocked(subscription),
        "totalMsgExpired": subscription.expired - subscription.expired_before_load,
        "lastExpireTimestamp": subscription.last_expire,
    }
    if dispatcher is None:
        return found
    if (ranges := dispatcher.hash_ranges()) is not None:
        for consumer, fields in zip(subscription.consumers, found["consumers"], strict=True):
            fields["keyHashRanges"] = ranges.get(consumer.handle, [])
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
