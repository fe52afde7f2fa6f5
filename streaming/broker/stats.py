"""Stats and internal stats of a topic with Pulsar's field names (I2), as its admin API shows them."""

from collections.abc import Iterable
from typing import Any

from streaming.broker.abstract_topic import AbstractTopic
from streaming.broker.config import ServiceConfiguration
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.persistent import PersistentSubscription
from streaming.broker.topic import Topic

# -- what all topics show -----------------------------------------------------------------------------------------


def topic_fields(topic: AbstractTopic, subscriptions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The fields that do not concern storage. `subscriptions`: the fields of each by name."""
    counters = topic.counters
    found: dict[str, Any] = {
        "msgInCounter": counters.messages_in,
        "bytesInCounter": counters.bytes_in,
        "msgOutCounter": counters.messages_out_gone + _total(subscriptions, "msgOutCounter"),
        "bytesOutCounter": counters.bytes_out_gone + _total(subscriptions, "bytesOutCounter"),
        "waitingPublishers": len(topic.access.waiting),
        "nonContiguousDeletedMessagesRanges": _total(subscriptions, "nonContiguousDeletedMessagesRanges"),
        "publishers": [
            {"producerName": producer.name, "accessMode": producer.access_mode}
            for producer in topic.producers.values()
        ],
        "subscriptions": subscriptions,
    }
    if topic.access.epoch is not None:
        found["topicEpoch"] = topic.access.epoch
    return found


def _total(subscriptions: dict[str, dict[str, Any]], field: str) -> int:
    return sum(subscription[field] for subscription in subscriptions.values())


def subscription_fields(
    type_: str | None, consumers: Iterable[Consumer], messages_out: int, bytes_out: int
) -> dict[str, Any]:
    """The fields of a subscription that do not concern its cursor."""
    return {
        "type": type_ or "None",
        "unackedMessages": sum(consumer.unacked for consumer in consumers),
        "msgOutCounter": messages_out,
        "bytesOutCounter": bytes_out,
        "allowOutOfOrderDelivery": False,
        "consumersAfterMarkDeletePosition": {},
        "consumers": [
            {
                "consumerName": consumer.name,
                "availablePermits": consumer.permits,
                "unackedMessages": consumer.unacked,
                "blockedConsumerOnUnackedMsgs": consumer.blocked,
                "msgOutCounter": consumer.messages_out,
                "avgMessagesPerEntry": consumer.messages_per_entry,
            }
            for consumer in consumers
        ],
    }


# -- what persistent topics show ----------------------------------------------------------------------------------


def topic_stats(topic: Topic, config: ServiceConfiguration) -> dict[str, Any]:
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
    return {**topic_fields(topic, subscriptions), **storage}


def stats_with_rates(topic: Topic, config: ServiceConfiguration, now: int) -> dict[str, Any]:
    """`topic_stats` with msgRateExpired of the subscriptions: entries/s over the last interval that ended by `now` (ms)."""
    found = topic_stats(topic, config)
    for name, subscription in found["subscriptions"].items():
        subscription["msgRateExpired"] = topic.subscriptions[name].expired_rate.per_second(now, config)
    return found


def _subscription(
    topic: Topic, subscription: PersistentSubscription, config: ServiceConfiguration
) -> dict[str, Any]:
    dispatcher = subscription.dispatcher
    found = {
        **subscription_fields(
            subscription.type, subscription.consumers, subscription.messages_out, subscription.bytes_out
        ),
        "isDurable": subscription.durable,
        **_backlog(topic, subscription, config),
        "blockedSubscriptionOnUnackedMsgs": subscription.broker_blocked
        or (dispatcher is not None and dispatcher.blocked_on_unacked),
        "totalMsgExpired": subscription.expired - subscription.expired_before_load,
        "lastExpireTimestamp": subscription.last_expire,
    }
    return found if dispatcher is None else found | dispatcher.stats(subscription.consumers)


def _backlog(
    topic: Topic, subscription: PersistentSubscription, config: ServiceConfiguration
) -> dict[str, Any]:
    cursor, dispatcher = topic.cursors[subscription.name], subscription.dispatcher
    backlog = cursor.backlog(topic.ledger, precise=True)
    delayed = 0 if dispatcher is None else dispatcher.delayed_messages
    return {
        "msgBacklog": backlog,
        "backlogSize": (
            cursor.backlog_size(topic.ledger)
            if config.subscriptionBacklogSizeWithoutAcked
            else topic.ledger.backlog_size_from(cursor.mark_delete)
        ),
        "msgBacklogNoDelayed": backlog - delayed,
        "msgDelayed": delayed,
        "nonContiguousDeletedMessagesRanges": sum(1 for _ in cursor.acked.runs()),
    }


def internal_stats(ledger: ManagedLedger, cursors: dict[str, ManagedCursor]) -> dict[str, Any]:
    """A managed ledger and its cursors. The open ledger shows 0 entries: currentLedgerEntries has its number."""
    return {
        "entriesAddedCounter": ledger.entries_added,
        "numberOfEntries": ledger.number_of_entries,
        "totalSize": ledger.total_size,
        "currentLedgerEntries": ledger.current_entries,
        "currentLedgerSize": ledger.current_size,
        "lastConfirmedEntry": str(ledger.last_confirmed),
        "state": "Terminated" if ledger.terminated else "LedgerOpened",
        "ledgers": [
            {"ledgerId": id_, "entries": info.entries, "size": info.size}
            for id_, info in ledger.ledgers.items()
        ],
        "cursors": {name: _cursor(ledger, cursor) for name, cursor in cursors.items()},
    }


def _cursor(ledger: ManagedLedger, cursor: ManagedCursor) -> dict[str, Any]:
    since = (
        ledger.count(cursor.mark_delete, cursor.read_position, include_start=False, include_end=True)
        if cursor.read_position >= cursor.mark_delete
        else 0
    )
    return {
        "markDeletePosition": str(cursor.mark_delete),
        "readPosition": str(cursor.read_position),
        "individuallyDeletedMessages": str(cursor.acked),
        "messagesConsumedCounter": cursor.consumed,
        "numberOfEntriesSinceFirstNotAckedMessage": since,
        "totalNonContiguousDeletedMessagesRange": sum(1 for _ in cursor.acked.runs()),
        "properties": cursor.properties,
    }


# -- rows of `Broker.stats` ---------------------------------------------------------------------------------------

_COLUMNS = (
    "topic", "subscription", "entries", "duplicates", "unknown", "dispatched", "acked", "expired", "evicted", "trimmed",
    "backlog", "storage", "mark_delete",
)  # fmt: skip


def row(**known: Any) -> dict[str, Any]:
    """A row; what it does not know is None."""
    return {**dict.fromkeys(_COLUMNS), **known}


def rows(topic: Topic) -> list[dict[str, Any]]:
    """A row for a topic, then one for each subscription, by name."""
    ledger, counters = topic.ledger, topic.counters
    found = [row(topic=topic.name, entries=ledger.number_of_entries, duplicates=counters.duplicates,
                 unknown=counters.unknown, trimmed=counters.trimmed, backlog=topic.backlog(), storage=ledger.total_size)]  # fmt: skip
    for name in sorted(topic.subscriptions):
        subscription, cursor = topic.subscriptions[name], topic.cursors[name]
        found.append(
            row(
                topic=topic.name, subscription=name, dispatched=subscription.dispatched, acked=subscription.acked,
                expired=subscription.expired, evicted=subscription.evicted, backlog=cursor.backlog(ledger),
                storage=cursor.backlog_size(ledger), mark_delete=str(cursor.mark_delete),
            )
        )  # fmt: skip
    return found
