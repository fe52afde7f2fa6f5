"""Pulsar's object of all policies of a topic (mirrors `TopicPolicies`), as an event in ``__change_events`` has it, as admin calls.

No call of the admin API sets or shows all of them at once, so each becomes a call of its own.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from streaming.broker.policies.kept import NO_ENTRY_FILTERS

_CALLS = {
    "retentionPolicies": "retention",  # before the quotas, which must be below it
    "messageTTLInSeconds": "messageTTL",
    "deduplicationEnabled": "deduplicationEnabled",
    "deduplicationSnapshotIntervalSeconds": "deduplicationSnapshotInterval",
    "maxProducerPerTopic": "maxProducers",
    "maxConsumerPerTopic": "maxConsumers",
    "maxConsumersPerSubscription": "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic": "maxSubscriptionsPerTopic",
    "maxUnackedMessagesOnConsumer": "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription": "maxUnackedMessagesOnSubscription",
    "maxMessageSize": "maxMessageSize",
    "subscriptionExpirationTimeInMinutes": "subscriptionExpirationTime",
    "dispatchRate": "dispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "publishRate": "publishRate",
    "subscribeRate": "subscribeRate",
    "inactiveTopicPolicies": "inactiveTopicPolicies",
    "subscriptionTypesEnabled": "subscriptionTypesEnabled",
    "schemaCompatibilityStrategy": "schemaCompatibilityStrategy",
    "schemaValidationEnforced": "schemaValidationEnforced",
    "autoSubscriptionCreationOverride": "autoSubscriptionCreation",
    "persistence": "persistence",
}
"""Name in the object → call, besides those with a form of their own."""

_DELAYED = {
    "delayedDeliveryEnabled": "active",
    "delayedDeliveryTickTimeMillis": "tickTime",
    "delayedDeliveryMaxDelayInMillis": "maxDeliveryDelayInMillis",
}
"""Name in the object → field of the one call that sets them."""

_QUOTAS, _SUBSCRIPTIONS = "backLogQuotaMap", "subscriptionPolicies"

_WITHOUT_EFFECT = frozenset(
    {"isGlobal", "replicationClusters", "offloadPolicies", "compactionThreshold", "replicatorDispatchRate",
     "dispatcherPauseOnAckStatePersistentEnabled", "additionalSystemCursorNames"}
)  # fmt: skip

_NOT_SUPPORTED = {"entryFilters": NO_ENTRY_FILTERS, "shadowTopics": "shadow topics are not supported"}

NAMES = frozenset({*_CALLS, *_DELAYED, _QUOTAS, _SUBSCRIPTIONS, *_WITHOUT_EFFECT, *_NOT_SUPPORTED})
"""The names in the object, of Pulsar 2.10 to 5.0."""

OWN_NAMES = NAMES.difference(_CALLS.values(), ["offloadPolicies", "compactionThreshold", "replicatorDispatchRate", "entryFilters", "shadowTopics"])  # fmt: skip
"""Those that no call on a single policy has."""


class TopicCall(NamedTuple):
    """A call on a topic: which `name` in the object it is from, its path below the topic, and its body; None: the policy is removed."""

    name: str
    call: str
    body: Any


class TakenOfTopic(NamedTuple):
    """What of a topic's policies Magnetar can take. `without_effect`: the names of those that have none. `not_applied`: name → why
    Magnetar can't apply it. `unknown`: names that no release has."""

    calls: list[TopicCall]
    without_effect: list[str]
    not_applied: dict[str, str]
    unknown: list[str]


def take(policies: Mapping[str, Any]) -> TakenOfTopic:
    """What Magnetar can take of the policies of a topic, as Pulsar keeps them."""
    taken = TakenOfTopic([], [], {}, [])
    calls: dict[str, TopicCall] = {}
    delayed: dict[str, Any] = {}
    for name, value in policies.items():
        is_empty = value in (None, {}, [])
        if name not in NAMES:
            taken.unknown.append(name)
        elif name in _DELAYED:
            delayed[name] = value
        elif name == _QUOTAS:
            for type_, quota in (value or {}).items() if isinstance(value, dict | None) else ():
                call = f"backlogQuota?backlogQuotaType={quote(str(type_), safe='')}"
                calls[f"{name} {type_}"] = TopicCall(name, call, quota)
            if value is not None and not isinstance(value, dict):
                taken.not_applied[name] = "a quota for each type is expected"
        elif name == _SUBSCRIPTIONS:
            for subscription, of in (value or {}).items() if isinstance(value, dict | None) else ():
                rate = of.get("dispatchRate") if isinstance(of, dict) else None
                if rate is not None:
                    call = f"{quote(str(subscription), safe='')}/dispatchRate"
                    calls[f"{name} {subscription}"] = TopicCall(name, call, rate)
        elif name in _CALLS:
            if not is_empty or value is None:
                calls[name] = TopicCall(name, _CALLS[name], value)
        elif not is_empty and value is not False:
            if name in _NOT_SUPPORTED and value != {"entryFilterNames": ""}:
                taken.not_applied[name] = _NOT_SUPPORTED[name]
            else:
                taken.without_effect.append(name)
    if delayed:
        body = {_DELAYED[name]: value for name, value in delayed.items() if value is not None} or None
        calls[next(iter(delayed))] = TopicCall(next(iter(delayed)), "delayedDelivery", body)
    order = list(_CALLS)
    taken.calls.extend(sorted(calls.values(), key=lambda each: order.index(each.name) if each.name in order else len(order)))  # fmt: skip
    return taken
