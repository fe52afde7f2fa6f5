"""GET of policies, also with `?applied=true`, and the values that are refused (I1), as Pulsar 4.0.7 answered."""

from typing import Any

import pytest
from msgspec import UNSET

from schemas.effects import AdminResponse
from streaming.broker.policies.admin_calls import policy_of
from tests.broker.kit import Run, one
from tests.broker.test_rate_limits import rate

pytestmark = pytest.mark.feature("I1")

NO_LIMIT = {"limit": -1, "limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
QUOTA = {"limitSize": -1, "limitTime": 10, "policy": "consumer_backlog_eviction"}
SUBSCRIBE = {"subscribeThrottlingRatePerConsumer": 3, "ratePeriodInSecond": 10}
RETENTION = {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}

APPLIED: list[tuple[str, Any, str, Any]] = [
    ("messageTTL", 0, "messageTTL", 7),
    ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, "retention", RETENTION),
    ("deduplicationEnabled", False, "deduplication", True),
    ("maxProducers", 0, "maxProducersPerTopic", 7),
    ("maxConsumers", 0, "maxConsumersPerTopic", 7),
    ("maxUnackedMessagesOnConsumer", 50000, "maxUnackedMessagesPerConsumer", 7),
    ("maxUnackedMessagesOnSubscription", 200000, "maxUnackedMessagesPerSubscription", 7),
    ("dispatchRate", rate(0, 0), "dispatchRate", rate(9, 9, 9)),
    ("subscriptionDispatchRate", rate(0, 0), "subscriptionDispatchRate", rate(9, 9, 9)),
    ("a/dispatchRate", rate(0, 0), "subscriptionDispatchRate", rate(9, 9, 9)),
    (
        "subscribeRate",
        {"subscribeThrottlingRatePerConsumer": 0, "ratePeriodInSecond": 30},
        "subscribeRate",
        SUBSCRIBE,
    ),
    (
        "delayedDelivery",
        {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 0},
        "delayedDelivery",
        {"tickTime": 5, "active": False, "maxDeliveryDelayInMillis": 0},
    ),
]
"""A policy of a topic, the broker's default, and the policy of the namespace with a value."""


def ask(run: Run, method: str, level: str, name: str, body: Any = None) -> tuple[int, Any]:
    """Status and body of the answer to a call; None: no body."""
    effects = run.admin(method, f"/{name}", body) if level == "topic" else run.namespace(method, name, body)
    fields = one(effects, AdminResponse).fields
    return fields.status, None if fields.response is UNSET else fields.response


@pytest.fixture
def run() -> Run:
    found = Run()
    found.create_producer()
    return found


@pytest.mark.parametrize(("name", "default", "of_namespace", "value"), APPLIED)
def test_applied_policies_are_those_of_the_first_level_that_sets_them(
    run: Run, name: str, default: Any, of_namespace: str, value: Any
) -> None:
    assert ask(run, "GET", "topic", f"{name}?applied=true") == (200, default)
    assert ask(run, "GET", "topic", name) == ask(run, "GET", "topic", f"{name}?applied=false") == (200, None)
    assert ask(run, "POST", "namespace", of_namespace, value) == (204, None)
    assert ask(run, "GET", "topic", f"{name}?applied=true") == (200, value)
    assert ask(run, "GET", "topic", name) == (200, None)
    own = default if name != "deduplicationEnabled" else False
    assert ask(run, "POST", "topic", name, rate(4) if name == "a/dispatchRate" else own)[0] == 204
    expected = rate(4) if name == "a/dispatchRate" else own
    assert ask(run, "GET", "topic", f"{name}?applied=true") == (200, expected)


def test_the_dispatch_rate_of_a_subscription_applies_from_that_of_all(run: Run) -> None:
    ask(run, "POST", "topic", "subscriptionDispatchRate", rate(2))
    assert ask(run, "GET", "topic", "a/dispatchRate?applied=true") == (200, rate(2))
    assert ask(run, "GET", "topic", "a/dispatchRate") == (200, None)


def test_applied_quotas_are_those_of_the_first_level_that_sets_any(run: Run) -> None:
    assert ask(run, "GET", "topic", "backlogQuotaMap") == (200, {})
    both = {"destination_storage": NO_LIMIT, "message_age": NO_LIMIT}
    assert ask(run, "GET", "topic", "backlogQuotaMap?applied=true") == (200, both)
    ask(run, "POST", "namespace", "backlogQuota?backlogQuotaType=message_age", QUOTA)
    shown = {"message_age": {"limit": -1, **QUOTA}}
    assert ask(run, "GET", "topic", "backlogQuotaMap?applied=true") == (200, shown)
    assert ask(run, "GET", "namespace", "backlogQuotaMap?applied=true") == (200, shown)


@pytest.mark.parametrize(
    "name",
    [
        "maxConsumersPerSubscription",
        "maxSubscriptionsPerTopic",
        "maxMessageSize",
        "publishRate",
        "deduplicationSnapshotInterval",
    ],
)
def test_other_policies_know_no_applied_value(run: Run, name: str) -> None:
    """quirk: most of them answer 204 if they are not set."""
    status = 200 if name == "deduplicationSnapshotInterval" else 204
    assert ask(run, "GET", "topic", name) == (status, None)
    assert ask(run, "GET", "topic", f"{name}?applied=true") == (status, None)


def test_some_policies_of_a_namespace_are_shown_though_they_are_not_set(run: Run) -> None:
    assert ask(run, "GET", "namespace", "encryptionRequired") == (200, False)
    assert ask(run, "GET", "namespace", "maxTopicsPerNamespace") == (200, 0)
    assert ask(run, "GET", "namespace", "subscriptionTypesEnabled") == (200, [])
    assert ask(run, "GET", "namespace", "maxProducersPerTopic?applied=true") == (200, None)


@pytest.mark.parametrize(
    ("level", "name"),
    [
        *[
            ("namespace", f"max{name}")
            for name in (
                "TopicsPerNamespace", "ProducersPerTopic", "ConsumersPerTopic", "ConsumersPerSubscription",
                "SubscriptionsPerTopic", "UnackedMessagesPerConsumer", "UnackedMessagesPerSubscription",
            )
        ],
        ("namespace", "subscriptionExpirationTime"),
        ("namespace", "deduplicationSnapshotInterval"),
        *[
            ("topic", f"max{name}")
            for name in (
                "Producers", "Consumers", "ConsumersPerSubscription", "SubscriptionsPerTopic", "MessageSize",
                "UnackedMessagesOnConsumer", "UnackedMessagesOnSubscription",
            )
        ],
        ("topic", "deduplicationSnapshotInterval"),
    ],
)  # fmt: skip
def test_limits_below_0_are_refused(run: Run, level: str, name: str) -> None:
    assert ask(run, "POST", level, name, 1)[0] == 204
    assert ask(run, "POST", level, name, -1)[0] == 412
    assert ask(run, "GET", level, name) == (200, 1)
    assert ask(run, "POST", level, name, 0)[0] == 204


def test_a_message_size_above_the_brokers_is_refused(run: Run) -> None:
    assert ask(run, "POST", "topic", "maxMessageSize", 5 * 1024 * 1024)[0] == 204
    assert ask(run, "POST", "topic", "maxMessageSize", 5 * 1024 * 1024 + 1)[0] == 412


@pytest.mark.parametrize(
    ("call", "path", "policy"),
    [
        ("maxProducers", "", "maxProducersPerTopic"),
        ("maxProducersPerTopic", "", "maxProducersPerTopic"),
        ("persistence", "", "persistence"),
        ("backlogQuota", "/x", "backlogQuota destination_storage"),
        ("backlogQuota", "/x?backlogQuotaType=message_age", "backlogQuota message_age"),
        ("a%2Fb/dispatchRate", "", "subscriptionDispatchRates a/b"),
        ("dispatchRate", "", "dispatchRate"),
        ("unload", "", None),
    ],
)
def test_the_policy_that_a_call_sets(call: str, path: str, policy: str | None) -> None:
    assert policy_of(call, path) == policy


@pytest.mark.parametrize(
    ("level", "name", "value", "status"),
    [
        ("topic", "retention", RETENTION, 204),
        ("topic", "dispatchRate", rate(9, 9, 9), 204),
        ("topic", "subscribeRate", SUBSCRIBE, 204),
        ("topic", "publishRate", {"publishThrottlingRateInMsg": 5}, 204),
        ("topic", "deduplicationEnabled", True, 204),
        ("topic", "messageTTL", 5, 204),
        ("topic", "maxProducers", 5, 400),
        ("namespace", "retention", RETENTION, 204),
        ("namespace", "publishRate", {"publishThrottlingRateInMsg": 5}, 204),
        ("namespace", "deduplication", True, 400),
        ("namespace", "messageTTL", 5, 400),
    ],
)
def test_a_call_without_a_value_removes_a_policy_that_is_an_object(
    run: Run, level: str, name: str, value: Any, status: int
) -> None:
    assert ask(run, "POST", level, name, value)[0] == 204
    before = ask(run, "GET", level, name)
    unset = ask(Run(), "GET", "namespace", name) if level == "namespace" else None
    assert ask(run, "POST", level, name)[0] == status
    after = ask(run, "GET", level, name)
    assert (after == before) == (status == 400)
    assert unset is None or status == 400 or after == unset


@pytest.mark.parametrize(
    ("query", "status"), [("x", 404), ("1.5", 404), ("99999999999", 404), ("-1", 412), ("", 204)]
)
def test_a_ttl_of_a_topic_that_is_not_a_number(run: Run, query: str, status: int) -> None:
    assert ask(run, "POST", "topic", "messageTTL?messageTTL=5")[0] == 204
    assert ask(run, "POST", "topic", f"messageTTL?messageTTL={query}")[0] == status
    assert ask(run, "GET", "topic", "messageTTL")[1] == (None if status == 204 else 5)
