"""What the stats of all topics have in common, with Pulsar's field names (I2), as its admin API shows them."""

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote_plus

from schemas.metrics import CONSUMER_RATES, ConsumerMetrics
from streaming.broker.config import ServiceConfiguration
from streaming.broker.ledger.compacted_ledger import CompactedLedger
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.rates.rate import Rates
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.subscription import FilterCounts
from streaming.broker.topic.abstract_topic import AbstractTopic


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
    type_: str | None, consumers: Sequence[Consumer], messages_out: int, bytes_out: int
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


_IN = ("msgRateIn", "msgThroughputIn", "chunkedMessageRate")
_FILTERED = (
    "filterProcessedMsgCount",
    "filterAcceptedMsgCount",
    "filterRejectedMsgCount",
    "filterRescheduledMsgCount",
)
_OUT = ("msgRateOut", "msgThroughputOut", "messageAckRate", "msgRateRedeliver", "chunkedMessageRate")
"""The rates of a producer and of a consumer, in the order of their totals."""


def add_rates(topic: AbstractTopic, found: dict[str, Any]) -> None:
    """Add the rates of the last interval, per second, to the topic's fields: of connected clients, and their sums. With
    them comes what else is known of consumers."""
    for shown, producer in zip(found["publishers"], topic.producers.values(), strict=True):
        counters = topic.producer_counters.get(producer.name)
        shown |= (Rates() if counters is None else counters.rates).named(*_IN)
        shown["averageMsgSize"] = _average_size(shown)
    consumers = iter(topic.all_consumers())
    for subscription in found["subscriptions"].values():
        for shown in subscription["consumers"]:
            consumer = next(consumers)
            shown |= consumer.rates.named(*_OUT) | {
                "bytesOutCounter": consumer.bytes_out,
                "lastConsumedFlowTimestamp": consumer.last_flow,
                "lastConsumedTimestamp": consumer.last_sent,
                "lastAckedTimestamp": consumer.last_ack,
            }
        subscription |= sums(subscription["consumers"], *_OUT[:-1])
    found |= sums(found["publishers"], *_IN[:-1]) | sums(found["subscriptions"].values(), *_OUT[:2])
    found["averageMsgSize"] = _average_size(found)


def sums(parts: Iterable[dict[str, Any]], *names: str) -> dict[str, float]:
    """The sums of fields over all parts."""
    known = list(parts)
    return {name: sum((part[name] for part in known), 0.0) for name in names}


def _average_size(shown: dict[str, Any]) -> float:
    return shown["msgThroughputIn"] / shown["msgRateIn"] if shown["msgRateIn"] else 0.0


def producer_rates(topic: AbstractTopic) -> tuple[list[float], list[float]]:
    """The sums of msgRateIn and msgThroughputIn over the producers, and those of the next interval if nothing happens."""
    known = [
        counters for name in topic.producers if (counters := topic.producer_counters.get(name)) is not None
    ]
    return (
        _summed(2, (counters.rates.per_second for counters in known)),
        _summed(2, (counters.next_rates(topic.rates_until) for counters in known)),
    )


def consumer_rates(topic: AbstractTopic, consumers: Sequence[Consumer]) -> tuple[list[float], list[float]]:
    """The sums of the rates in `_OUT`, without the last, and those of the next interval if nothing happens."""
    return (
        _summed(4, (consumer.rates.per_second for consumer in consumers)),
        _summed(4, (consumer.next_rates(topic.rates_until) for consumer in consumers)),
    )


def details(filtered: FilterCounts, properties: dict[str, str]) -> dict[str, Any]:
    """More fields of a subscription that do not concern its cursor."""
    counts = dict(zip(_FILTERED, filter_counts(filtered), strict=True))
    return {"subscriptionProperties": properties, "isReplicated": False, **counts}


def filter_counts(counts: FilterCounts) -> tuple[int, ...]:
    """Messages that filters processed, accepted, rejected and rescheduled."""
    return counts.processed, counts.accepted, counts.rejected, counts.rescheduled


def members(
    topic: AbstractTopic, consumers: Sequence[Consumer], config: ServiceConfiguration
) -> list[ConsumerMetrics]:
    """The consumers of a subscription, if the broker exposes them."""
    if not config.exposeConsumerLevelMetricsInPrometheus:
        return []
    count, zeros = len(CONSUMER_RATES), (0.0,) * len(CONSUMER_RATES)
    return [
        ConsumerMetrics(
            consumer.name,
            consumer.consumer_id,
            consumer.permits,
            consumer.unacked,
            consumer.blocked,
            consumer.rates.per_second[:count] or zeros,
            consumer.next_rates(topic.rates_until)[:count] or zeros,
        )
        for consumer in consumers
    ]


def _summed(count: int, rates: Iterable[tuple[float, ...]]) -> list[float]:
    """The sums of the first `count` rates of each. Empty: zeros."""
    known = [each for each in rates if each]
    return [sum((each[index] for each in known), 0.0) for index in range(count)]


def internal_stats(
    ledger: ManagedLedger, cursors: dict[str, ManagedCursor], compacted: CompactedLedger | None = None
) -> dict[str, Any]:
    """A managed ledger and its cursors, by their names as Pulsar encodes them for URLs. The open ledger shows 0 entries: currentLedgerEntries has its number."""
    found = {
        "entriesAddedCounter": ledger.entries_added,
        "numberOfEntries": ledger.number_of_entries,
        "totalSize": ledger.total_size,
        "currentLedgerEntries": ledger.current_entries,
        "currentLedgerSize": ledger.current_size,
        "lastConfirmedEntry": str(ledger.last_confirmed),
        "state": "Terminated" if ledger.terminated else "ClosedLedger" if ledger.closed else "LedgerOpened",
        "ledgers": [
            {"ledgerId": id_, "entries": info.entries, "size": info.size}
            for id_, info in ledger.ledgers.items()
        ],
        "cursors": {cursor_name(name): _cursor(ledger, cursor) for name, cursor in cursors.items()},
    }
    if compacted is not None:
        found["compactedLedger"] = {
            "ledgerId": compacted.id, "entries": compacted.entries, "size": compacted.size,
            "offloaded": False, "underReplicated": False,
        }  # fmt: skip
    return found


def cursor_name(subscription: str) -> str:
    """The name of a subscription's cursor in the metadata store, encoded as Java's URLEncoder does."""
    return quote_plus(subscription, safe="*").replace("~", "%7E")


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
        "totalNonContiguousDeletedMessagesRange": cursor.acked.count_runs(),
        "properties": cursor.properties,
    }


_COLUMNS = (
    "topic", "subscription", "entries", "duplicates", "unknown", "dispatched", "acked", "expired", "evicted", "trimmed",
    "backlog", "storage", "mark_delete",
)  # fmt: skip


def row(**known: Any) -> dict[str, Any]:
    """A row; what it does not know is None."""
    return {**dict.fromkeys(_COLUMNS), **known}
