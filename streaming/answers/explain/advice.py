"""What to do about the reasons for which subscriptions get nothing and producers are refused: one sentence each."""

from __future__ import annotations

from schemas.printable import quoted
from streaming.broker.dispatch.verdict import LEFT_BY_READER
from streaming.broker.names import COMPACTION_CURSOR, DEDUP_CURSOR
from streaming.broker.persistent.cleanup.backlog_quota import Quota
from streaming.broker.persistent.cleanup.trimming import Retention
from streaming.broker.persistent.delivery import Delivery
from streaming.broker.position import from_text
from streaming.broker.topic.producing import Producing

MOST = 4
"""So many pieces of advice are enough for one subscription."""

_REJOIN = "Disconnect all consumers of the subscription at the same time, or unload the topic: pulsar-admin topics unload {topic}"

_STATES = {
    "no consumers": "Start a consumer of the subscription. If nobody needs it any more, delete it, since its backlog keeps ledgers and "
    "counts against quotas: pulsar-admin topics unsubscribe -s {subscription} {topic}",
    "in flight": "See why the application does not acknowledge what it has. An entry comes again if its consumer disconnects, or "
    "asks for redelivery.",
    "deleted": "Nothing: messages that come are delivered. If the backlog's count matters, unload the topic, and it is counted anew: "
    "pulsar-admin topics unload {topic}",
    "waiting for a time": "Nothing, unless the delivery times are wrong: the entries are sent when they are due.",
    "not triggered": "Ask again in a minute. If the backlog and the read position are the same then, unload the topic: pulsar-admin "
    "topics unload {topic}",
}
"""By the state of a delivery."""

_LEFT_BY_READER = "Nothing: it keeps no ledger, and a reader that comes back goes on with it."

_DECIDERS = {
    "permits": "See whether the application of {consumer} still receives: its queue is full, and its client asks for more only when "
    "messages are taken out of it.",
    "maxUnackedMessagesPerConsumer": "See why {consumer} does not acknowledge what it has, or raise the limit.",
    "maxUnackedMessagesPerSubscription": "See why the consumers do not acknowledge what they have, or raise the limit.",
    "maxUnackedMessagesPerBroker": "See which subscriptions of the broker have the most unacked messages: maxUnackedMessagesPerBroker "
    "blocks those above their share.",
    "never unblocks": "Set the limit to 2 or more, or to 0 for none, and unload the topic: pulsar-admin topics unload {topic}",
    "draining hash": "Let the consumer that holds the key hash acknowledge, or disconnect it: then its entries go to {consumer}.",
    "recently joined": "Let the other consumers acknowledge what they have, or disconnect the one that does not.",
    "dispatchRate": "Wait, or raise the dispatch rate of the subscription, the topic or the broker.",
    "chunk owner": _REJOIN,
    "read position": _REJOIN,
    "chunk owner left": "Unload the topic: pulsar-admin topics unload {topic}",
    "first chunk": "Nobody can complete the message. Skip what is left of it: pulsar-admin topics skip -n N -s {subscription} {topic} skips the N oldest "
    "entries. Or unload the topic and reset the cursor to a time before the message, if its ledger is still there.",
    "ack holes": "See why {first} is not acknowledged: pulsar-admin topics get-message-by-id -l {ledger} -e {entry} {topic}",
    "active consumer": "Wait for the failover delay. If no consumer becomes active, let one of them reconnect.",
    "fenced": "See the broker's log for the failed write, and whether the bookies take writes.",
    "replay queue": "Let the consumers acknowledge: what waits for them fills the look-ahead.",
    "hashRanges": "Start a consumer with the missing hash ranges.",
    "unconfirmed writes": "See whether the bookies confirm writes.",
}
"""By the decider of a verdict that blocks."""

_QUOTA = (
    "Let the slowest subscription consume, or delete it if nobody needs it: pulsar-admin topics unsubscribe -s {subscription} {topic}. "
    "Its messages can be given up (pulsar-admin topics clear-backlog), or the quota raised."
)

_COMPACT = "Compact the topic, which moves the cursor of compaction: pulsar-admin topics compact {topic}"

_SNAPSHOT = (
    "Wait for the next snapshot of deduplication, which moves its cursor: one follows brokerDeduplicationEntriesInterval entries, or "
    "deduplicationSnapshotInterval (brokerDeduplicationSnapshotIntervalSeconds). Lower these, or switch deduplication off if nobody "
    "needs it: pulsar-admin topics set-deduplication --disable {topic}"
)
"""Deduplication's cursor is no subscription: nobody can consume from it, or delete it (docs/rules/deduplication.md §11)."""

_PRODUCERS = {
    "access mode": "Close the producer that has the access, let a new one wait for it (WaitForExclusive), or let it take the access "
    "(ExclusiveWithFencing).",
    "publishRate": "Publish less, or raise the publish rate of the topic, the namespace or the broker.",
    "maxProducersPerTopic": "Close producers, or raise the limit: pulsar-admin topics set-max-producers -p N {topic}",
    "fenced": "See the broker's log for the failed write, and whether the bookies take writes.",
    "terminated": "Use another topic: termination can't be undone.",
}
"""By the decider of a verdict on producers that blocks."""


def of_delivery(found: Delivery) -> list[str]:
    """What to do about a subscription that gets nothing, the most likely first."""
    first = from_text(found.first[0].position) if found.first else None
    ledger, entry = ("LEDGER", "ENTRY") if first is None else first
    known = {
        "topic": quoted(found.topic), "subscription": quoted(found.subscription), "ledger": ledger, "entry": entry,
        "first": first or "the first unacknowledged entry",
    }  # fmt: skip
    advice: dict[str, None] = {}
    if found.state in ("held back", "lost", "not triggered"):
        for each in sorted(found.verdicts, key=lambda verdict: not verdict.blocks):
            decider = "never unblocks" if "never unblocks" in each.text else each.decider
            inactive = decider == "active consumer" and each.consumer is not None
            if (each.blocks or not each.sure) and decider in _DECIDERS and not inactive:
                advice[_DECIDERS[decider].format(**known, consumer=each.consumer or "the consumer")] = None
    if any(each.decider == LEFT_BY_READER for each in found.verdicts):
        advice[_LEFT_BY_READER] = None
    elif found.state in _STATES:
        advice[_STATES[found.state].format(**known)] = None
    if found.backlog and any(each.decider == "ack holes" for each in found.verdicts):
        advice[_DECIDERS["ack holes"].format(**known)] = None
    return [*advice][:MOST]


def of_producers(found: Producing) -> list[str]:
    """What to do if a producer does not get in."""
    known = {decider: text.format(topic=quoted(found.topic)) for decider, text in _PRODUCERS.items()}
    known["backlogQuota"] = _of_quota(found.topic, found.slowest)
    return [
        known[each.decider]
        for each in found.verdicts
        if (each.blocks or not each.sure) and each.decider in known
    ][:MOST]


def of_quotas(topic: str, quotas: list[Quota], slowest: str | None) -> list[str]:
    """What to do about a quota that is exceeded."""
    if not any(each.state == "exceeded" for each in quotas):
        return []
    return [_of_quota(topic, slowest)]


def _of_quota(topic: str, slowest: str | None) -> str:
    if slowest == DEDUP_CURSOR:
        return _SNAPSHOT.format(topic=quoted(topic)) + ". Or raise the quota."
    if slowest == COMPACTION_CURSOR:
        return _COMPACT.format(topic=quoted(topic)) + ". Or raise the quota."
    subscription = "SUBSCRIPTION" if slowest is None else quoted(slowest)
    return _QUOTA.format(topic=quoted(topic), subscription=subscription)


def of_retention(found: Retention) -> list[str]:
    """What to do about ledgers that nobody needs."""
    advice = []
    first = next((each for each in found.ledgers if each.reason == "cursor"), None)
    if first is not None:
        topic = quoted(found.topic)
        internal = (DEDUP_CURSOR, COMPACTION_CURSOR)
        subscription = next((each for each in first.cursors if each not in internal), None)
        if subscription is not None:
            advice.append(_LEDGER.format(topic=topic, subscription=quoted(subscription)))
        if DEDUP_CURSOR in first.cursors:
            advice.append(_SNAPSHOT.format(topic=topic))
        if COMPACTION_CURSOR in first.cursors:
            advice.append(_COMPACT.format(topic=topic))
    if any(each.reason == "retention" for each in found.ledgers):
        advice.append("Lower the retention, if nobody reads consumed messages again.")
    if any(each.reason == "not checked yet" for each in found.ledgers):
        advice.append(
            f"Wait for the next check, or start one: pulsar-admin topics trim-topic {quoted(found.topic)}"
        )
    return advice


_LEDGER = "Let {subscription} consume, or delete it if nobody needs it: pulsar-admin topics unsubscribe -s {subscription} {topic}"
