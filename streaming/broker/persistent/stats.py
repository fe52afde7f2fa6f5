"""Stats of a persistent topic, with Pulsar's field names (I2)."""

from typing import Any

from schemas.metrics import (
    SUBSCRIPTION_TIMES,
    CompactionMetrics,
    DriftMetrics,
    SubscriptionMetrics,
    TopicMetrics,
    TransactionMetrics,
)
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context
from streaming.broker.persistent.mirroring import EQUAL
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import Drift, Mirrored, MirroredCursor, PersistentTopic
from streaming.broker.rates.rate import end_of_interval
from streaming.broker.topic import stats


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


def stats_with_rates(topic: PersistentTopic, ctx: Context) -> dict[str, Any]:
    """`topic_stats` with the rates of the last interval, and what the last check of the backlog quotas found."""
    config, now, policies = ctx.config, ctx.clock, ctx.policies_of(topic)
    found = topic_stats(topic, config)
    stats.add_rates(topic, found)
    found["backlogQuotaLimitSize"] = policies.destination_storage_quota.value.limitSize
    found["backlogQuotaLimitTime"] = policies.message_age_quota.value.limitTime
    found["oldestBacklogMessageAgeSeconds"] = (
        -1 if topic.oldest is None else (now - topic.oldest.timestamp) // 1000
    )
    if topic.oldest is not None:
        found["oldestBacklogMessageSubscriptionName"] = topic.oldest.cursor
    if (compaction := topic.compaction).has_run:
        found["compaction"] = {
            "lastCompactionRemovedEventCount": compaction.removed,
            "lastCompactionSucceedTimestamp": compaction.succeeded,
            "lastCompactionFailedTimestamp": compaction.failed,
            "lastCompactionDurationTimeInMills": 0,
        }
    if (transactions := topic.transactions) is not None:
        found["ongoingTxnCount"] = len(transactions.ongoing)
        found["abortedTxnCount"], found["committedTxnCount"] = (
            transactions.rolled_back,
            transactions.committed,
        )
    found["publishRateLimitedTimes"] = topic.publish_limited.in_interval(now, config)
    for name, subscription in found["subscriptions"].items():
        subscription |= stats.sums(subscription["consumers"], "chunkedMessageRate")
        own = topic.subscriptions[name]
        subscription["msgRateExpired"] = own.expired_rate.per_second(now, config)
        subscription["msgInReplay"] = _in_replay(own)
        subscription |= dict(zip(SUBSCRIPTION_TIMES, _times(own), strict=True))
        subscription |= stats.details(own.filtered, own.properties)
        subscription["isReplicated"] = own.replicated
    return found


def add_earliest_times(ctx: Context, topic: PersistentTopic, shown: dict[str, Any]) -> None:
    """The publish time (ms) of the oldest message in each backlog, −1 without one, and the oldest of them all."""
    times = {name: _earliest_time(ctx, topic, name) for name in shown["subscriptions"]}
    for name, time in times.items():
        shown["subscriptions"][name]["earliestMsgPublishTimeInBacklog"] = time
    shown["earliestMsgPublishTimeInBacklogs"] = min((time for time in times.values() if time > 0), default=0)


def _earliest_time(ctx: Context, topic: PersistentTopic, subscription: str) -> int:
    position = topic.ledger.next_valid(topic.cursors[subscription].mark_delete)
    if position > topic.ledger.last_confirmed:
        return -1
    return ctx.entries.get(topic.name, position).timestamp


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
        topic.ledger.entry_sizes.last,
        topic.ledger.entry_sizes.current,
        _drift(topic.mirrored) if topic.is_shadow else None,
        topic.mirrored.seen,
        _compaction(topic),
        _transactions(topic),
    )


def _compaction(topic: PersistentTopic) -> CompactionMetrics | None:
    state = topic.compaction
    if not state.has_run:
        return None
    entries, size = (0, 0) if state.ledger is None else (state.ledger.entries, state.ledger.size)
    return CompactionMetrics(state.removed_in_all, state.successes, state.failures, entries, size)


def _transactions(topic: PersistentTopic) -> TransactionMetrics | None:
    found = topic.transactions
    return (
        None if found is None else TransactionMetrics(len(found.ongoing), found.committed, found.rolled_back)
    )


def _drift(of: Mirrored | MirroredCursor) -> DriftMetrics:
    """Of what a topic stores, or of a subscription."""
    drift = of.drift
    mark_delete, size = (0, drift.size) if isinstance(of, Mirrored) else (drift.size, 0)
    cause = EQUAL if drift == Drift() else of.cause
    return DriftMetrics(drift.entries, mark_delete, drift.messages, size, cause)


def _metrics(
    topic: PersistentTopic, subscription: PersistentSubscription, config: ServiceConfiguration
) -> SubscriptionMetrics:
    backlog, until = _backlog(topic, subscription, config), topic.rates_until
    consumers, expired = subscription.consumers, subscription.expired_rate
    rates, next_rates = stats.consumer_rates(topic, consumers)
    mirrored = topic.mirrored.subscriptions.get(subscription.name)
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
        _in_replay(subscription),
        stats.filter_counts(subscription.filtered),
        _times(subscription),
        stats.members(topic, consumers, config),
        None if mirrored is None else _drift(mirrored),
    )


def _times(subscription: PersistentSubscription) -> tuple[int, ...]:
    """Those of `SUBSCRIPTION_TIMES`. quirk: two of them are known of connected consumers only."""
    return (
        subscription.last_expire,
        max((consumer.last_ack for consumer in subscription.consumers), default=0),
        subscription.last_flow,
        max((consumer.last_sent for consumer in subscription.consumers), default=0),
        subscription.last_mark_delete_advanced,
    )


def _in_replay(subscription: PersistentSubscription) -> int:
    return 0 if subscription.dispatcher is None else subscription.dispatcher.entries_to_redeliver


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
    found: dict[str, Any] = {
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
    if (ranges := dispatcher.hash_ranges(by_point=config.keySharedRangesByPoint)) is not None:
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
            else topic.ledger.estimate_backlog_from(
                cursor.mark_delete, all_if_missing=config.backlogSizeOfMissingLedgerIsAll
            )
        ),
        "msgBacklogNoDelayed": backlog - delayed,
        "msgDelayed": delayed,
        "nonContiguousDeletedMessagesRanges": cursor.acked.count_runs(),
    }


def rows(topic: PersistentTopic) -> list[dict[str, Any]]:
    """A row for a topic, then one for each subscription, by name."""
    ledger, counters = topic.ledger, topic.counters
    found = [stats.row(topic=topic.name, entries=ledger.number_of_entries, duplicates=counters.duplicates,
                 unknown=counters.unknown, trimmed=counters.trimmed, backlog=topic.backlog(precise=True), storage=ledger.total_size)]  # fmt: skip
    for name in sorted(topic.subscriptions):
        subscription, cursor = topic.subscriptions[name], topic.cursors[name]
        found.append(
            stats.row(
                topic=topic.name, subscription=name, dispatched=subscription.dispatched, acked=subscription.acked,
                expired=subscription.expired, evicted=subscription.evicted, backlog=cursor.backlog(ledger, precise=True),
                storage=cursor.backlog_size(ledger), mark_delete=str(cursor.mark_delete),
            )
        )  # fmt: skip
    return found
