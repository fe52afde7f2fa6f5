"""Stats and internal stats of a topic with Pulsar's field names (I2), as its admin API shows them."""

from typing import Any

from streaming.broker.config import ServiceConfiguration
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.non_persistent.topic import NonPersistentTopic
from streaming.broker.rate import Rate
from streaming.broker.subscription.persistent import PersistentSubscription
from streaming.broker.topic import Topic

NO_BACKLOG: dict[str, Any] = {
    "msgBacklog": 0,
    "backlogSize": 0,
    "msgBacklogNoDelayed": 0,
    "msgDelayed": 0,
    "nonContiguousDeletedMessagesRanges": 0,
}
"""Of a subscription to a topic that stores nothing."""


def stats(topic: Topic, config: ServiceConfiguration) -> dict[str, Any]:
    """Counters in messages (…Counter, msgBacklog: entries) and bytes; ages in seconds, −1 = none."""
    subscriptions = {
        name: _subscription(topic, found, config)
        for name, found in topic.subscriptions.items()
        if not found.awaits_its_reader
    }
    found: dict[str, Any] = {
        "msgInCounter": topic.counters.messages_in,
        "bytesInCounter": topic.counters.bytes_in,
        "msgOutCounter": topic.counters.messages_out_gone
        + sum(s["msgOutCounter"] for s in subscriptions.values()),
        "bytesOutCounter": topic.counters.bytes_out_gone
        + sum(s["bytesOutCounter"] for s in subscriptions.values()),
        "storageSize": topic.ledger.total_size,
        "backlogSize": topic.backlog_size(),
        "deduplicationStatus": topic.dedup.status,
        "waitingPublishers": len(topic.access.waiting),
        "nonContiguousDeletedMessagesRanges": sum(
            sub["nonContiguousDeletedMessagesRanges"] for sub in subscriptions.values()
        ),
        "publishers": [
            {"producerName": producer.name, "accessMode": producer.access_mode}
            for producer in topic.producers.values()
        ],
        "subscriptions": subscriptions,
    }
    if topic.access.epoch is not None:
        found["topicEpoch"] = topic.access.epoch
    if isinstance(topic, NonPersistentTopic):
        del found["deduplicationStatus"]
    return found


def stats_with_rates(topic: Topic, config: ServiceConfiguration, now: int) -> dict[str, Any]:
    """`stats` with msgRateExpired of the subscriptions: entries/s over the last interval that ended by `now` (ms)."""
    found = stats(topic, config)
    for name, subscription in found["subscriptions"].items():
        subscription["msgRateExpired"] = topic.subscriptions[name].expired_rate.per_second(now, config)
    return found


def stats_with_drops(topic: NonPersistentTopic, config: ServiceConfiguration, now: int) -> dict[str, Any]:
    """`stats` with msgDropRate of the topic, of its publishers and of its subscriptions: messages/s as of `now` (ms).

    A publisher's messages are dropped above the limit in flight, a subscription's where nobody can take them. The
    topic's rate is that of its publishers.
    """
    found, none = stats(topic, config), Rate()
    for publisher in found["publishers"]:
        drops = topic.publisher_drops.get(publisher["producerName"], none)
        publisher["msgDropRate"] = drops.per_second(now, config)
    for name, subscription in found["subscriptions"].items():
        subscription["msgDropRate"] = topic.drops.get(name, none).per_second(now, config)
    return {**found, "msgDropRate": sum(publisher["msgDropRate"] for publisher in found["publishers"])}


def _subscription(
    topic: Topic, subscription: PersistentSubscription, config: ServiceConfiguration
) -> dict[str, Any]:
    dispatcher = subscription.dispatcher
    found: dict[str, Any] = {
        "type": subscription.type or "None",
        "isDurable": subscription.durable,
        **(NO_BACKLOG if isinstance(topic, NonPersistentTopic) else _backlog(topic, subscription, config)),
        "unackedMessages": sum(consumer.unacked for consumer in subscription.consumers),
        "blockedSubscriptionOnUnackedMsgs": subscription.broker_blocked
        or (dispatcher is not None and dispatcher.blocked_on_unacked),
        "totalMsgExpired": subscription.expired - subscription.expired_before_load,
        "lastExpireTimestamp": subscription.last_expire,
        "msgOutCounter": subscription.messages_out,
        "bytesOutCounter": subscription.bytes_out,
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
            for consumer in subscription.consumers
        ],
    }
    if dispatcher is not None:
        found |= dispatcher.stats(subscription.consumers)
    if isinstance(topic, NonPersistentTopic):  # quirk: recorded from 4.0.7
        found.pop("keySharedMode", None)
        found.pop("activeConsumerName", None)
    return found


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


def internal_stats(topic: Topic) -> dict[str, Any]:
    """The managed ledger and its cursors. The open ledger shows 0 entries: its content is in currentLedger…"""
    ledger = topic.ledger
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
        "cursors": {name: _cursor(ledger, cursor) for name, cursor in topic.cursors.items()},
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
