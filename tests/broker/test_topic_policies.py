"""delayedDelivery and subscriptionTypesEnabled as policies of namespaces and topics (I4), as Pulsar 4.0.7 answered."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from schemas.commands import Admin, Restart, SubType
from schemas.effects import AdminResponse, Effect, Error, Message, SendError, SendReceipt, Success
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from tests.broker.kit import TOPIC, Run, of, one, response, sent
from tests.broker.test_admin_calls import OTHER, status

pytestmark = pytest.mark.feature("I4", "I1")


def delayed(run: Run, sequence_id: int, seconds: float) -> list[int]:
    """Publish a message with a delay. What is delivered at once."""
    return sent(run.publish(sequence_id, deliver_at_time=run.now + int(seconds * 1000)))


def policy(active: bool, tick: int = 1000, longest: int = 0) -> dict[str, Any]:
    return {"active": active, "tickTime": tick, "maxDeliveryDelayInMillis": longest}


def with_consumer(type_: SubType = "Shared", **settings: Any) -> Run:
    run = Run(**settings)
    run.subscribe("s", type_, permits=100)
    return run


# -- delayedDelivery --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["topic", "namespace"])
def test_delayed_delivery_off_and_on(level: str) -> None:
    run = with_consumer()

    def call(method: str, body: Any = None) -> list[Effect]:
        if level == "topic":
            return run.admin(method, "/delayedDelivery", body)
        return run.namespace(method, "delayedDelivery", body)

    assert one(call("GET"), AdminResponse).fields.status == 200
    assert delayed(run, 0, 60) == []
    assert status(call("POST", {"active": False, "tickTime": 1000})) == 204
    assert response(call("GET")) == policy(False)
    assert delayed(run, 1, 60) == [1]
    run.broker = Broker.decode(run.broker.encode(), run.broker._ctx.entries._reader)
    assert delayed(run, 2, 60) == [2]
    assert status(call("DELETE")) == 204
    assert delayed(run, 3, 60) == []


def test_messages_that_wait_go_on_waiting_when_the_policy_is_off() -> None:
    run = with_consumer()
    assert delayed(run, 0, 6) == []
    run.admin("POST", "/delayedDelivery", policy(False))
    assert delayed(run, 1, 6) == [1]
    assert sent(run.publish(2)) == [2]
    assert sent(run.wait(6)) == [0]


def test_the_topics_policy_comes_before_the_namespaces() -> None:
    run = with_consumer(delayedDeliveryEnabled=False)
    run.namespace("POST", "delayedDelivery", policy(True))
    assert delayed(run, 0, 60) == []
    run.admin("POST", "/delayedDelivery", policy(False))
    assert delayed(run, 1, 60) == [1]
    run.admin("POST", "/delayedDelivery")  # no body: as DELETE
    assert delayed(run, 2, 60) == []


@pytest.mark.parametrize(
    ("type_", "classic"), [("Shared", False), ("Key_Shared", False), ("Key_Shared", True)]
)
def test_a_new_tick_counts_from_the_next_message_on(type_: SubType, classic: bool) -> None:
    """With a tick of 20 s a message may be 20 s early: but first, the broker reads a message under the new policy."""
    run = with_consumer(type_, subscriptionKeySharedUseClassicPersistentImplementation=classic)
    run.admin("POST", "/delayedDelivery", policy(True, 500))
    assert delayed(run, 3, 8) == []
    run.admin("POST", "/delayedDelivery", policy(True, 20_000))
    run.flow("s", 10)
    assert sent(run.publish(4)) == [1, 0]
    assert delayed(run, 5, 25) == []
    assert sent(run.publish(6)) == [3]


def test_the_tick_in_force_is_part_of_the_state() -> None:
    run = with_consumer()
    run.admin("POST", "/delayedDelivery", policy(True, 20_000))
    assert delayed(run, 0, 25) == []
    run.admin("POST", "/delayedDelivery", policy(True, 1000))
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert run.topic.subscriptions["s"].dispatcher.delayed.tick == 20_000  # type: ignore[union-attr]
    assert sent(run.wait(4)) == []
    assert len(of(run.wait(2), Message)) == 0


def test_too_long_a_delay_is_refused() -> None:
    run = with_consumer()
    run.admin("POST", "/delayedDelivery", policy(True, 500, 3000))
    refused = run.publish(0, deliver_at_time=run.now + 3001, publish_time=run.now)
    assert one(refused, SendError).error == "NotAllowedError"
    assert one(run.publish(1, deliver_at_time=run.now + 3000, publish_time=run.now), SendReceipt)
    run.admin("POST", "/delayedDelivery", policy(False, 500, 3000))
    assert one(run.publish(2, deliver_at_time=run.now + 3001, publish_time=run.now), SendReceipt)


@pytest.mark.parametrize(
    "body", [{}, {"active": True}, policy(True, -5, -1), policy(True, 2**62), {"tickTime": 0}]
)
def test_any_times_are_taken(body: dict[str, Any]) -> None:
    run = with_consumer()
    assert status(run.admin("POST", "/delayedDelivery", body)) == 204
    delayed(run, 0, 60)
    run.wait(120)
    run.broker.encode()
    assert status(run.admin("POST", "/delayedDelivery", {"active": "x"})) == 400


# -- subscriptionTypesEnabled -----------------------------------------------------------------------------------------


def allowed(run: Run, name: str, type_: Any, id_: int, **fields: Any) -> bool:
    """Is a consumer of this type accepted?"""
    effects = run.subscribe(name, type_, id_=id_, **fields)
    if of(effects, Success):
        return True
    assert one(effects, Error).error == "NotAllowedError"
    return False


def test_only_the_enabled_types_are_accepted() -> None:
    """The topic's types hide those of its namespace; consumers that are connected stay."""
    run = Run()
    run.subscribe("old", "Exclusive")
    run.namespace("POST", "subscriptionTypesEnabled", ["Exclusive", "Failover"])
    assert allowed(run, "f", "Failover", 2)
    assert not allowed(run, "x", "Shared", 3)
    assert run.topic.known_subscriptions() == ["f", "old"]
    assert status(run.admin("GET", "/subscriptionTypesEnabled")) == 204
    run.admin("POST", "/subscriptionTypesEnabled", ["Shared", "Key_Shared"])
    assert sorted(response(run.admin("GET", "/subscriptionTypesEnabled"))) == ["Key_Shared", "Shared"]
    assert allowed(run, "x", "Shared", 4)
    assert not allowed(run, "y", "Exclusive", 5)
    assert not allowed(run, "r", "Exclusive", 6, durable=False)
    assert len(run.topic.subscriptions["old"].consumers) == 1
    run.admin("DELETE", "/subscriptionTypesEnabled")
    assert response(run.admin("GET", "/subscriptionTypesEnabled")) == []
    assert not allowed(run, "y", "Shared", 7)
    run.namespace("POST", "subscriptionTypesEnabled", [])
    assert response(run.namespace("GET", "subscriptionTypesEnabled")) == []
    assert allowed(run, "y", "Shared", 8)


def test_the_types_hold_for_topics_that_store_nothing_too() -> None:
    run = Run()
    run.create_producer(topic=OTHER)
    assert status(run.admin("POST", "/subscriptionTypesEnabled", ["Shared"], topic=OTHER)) == 204
    assert not allowed(run, "x", "Exclusive", 1, topic=OTHER)
    assert allowed(run, "y", "Shared", 2, topic=OTHER)


@pytest.mark.parametrize("body", ["Shared", ["Nope"], None, {"a": 1}])
def test_what_is_not_a_list_of_types_is_refused(body: Any) -> None:
    run = Run()
    run.create_producer()
    assert status(run.admin("POST", "/subscriptionTypesEnabled", body)) == 400
    assert allowed(run, "s", "Exclusive", 1)


# -- policies without effect, and calls that are none -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "in_force", "body"),
    [
        ("persistence", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0.5}, {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2, "managedLedgerMaxMarkDeleteRate": 1.0}),
        ("compactionThreshold", 0, 5),
        ("replication", ["standalone"], ["standalone"]),
        ("entryFilters", {"entryFilterNames": ""}, None),
    ],
)  # fmt: skip
def test_what_holds_is_the_brokers_if_the_topic_has_none(policy: str, in_force: Any, body: Any) -> None:
    run = Run(managedLedgerDefaultMarkDeleteRateLimit=0.5)
    run.create_producer()
    assert response(run.admin("GET", f"/{policy}")) is UNSET
    assert response(run.admin("GET", f"/{policy}?applied=true")) == in_force
    if body is not None:
        assert status(run.admin("POST", f"/{policy}", body)) == 204
        assert response(run.admin("GET", f"/{policy}?applied=true")) == body


@pytest.mark.parametrize(
    ("call", "body", "expected"),
    [
        ("replication", ["other"], (412, "Can not remove local cluster from the local topic-level replication clusters policy")),
        ("replication", ["standalone", "other"], (403, "Invalid cluster id: other")),
        ("compactionThreshold", -1, (412, "Invalid value for compactionThreshold")),
        ("shadowTopics", ["a"], (501, "shadow topics are not supported")),
        ("entryFilters", {"entryFilterNames": "PropertyFilter"}, (501, "entry filters of a namespace or topic are not supported: use the setting entryFilterNames")),
    ],
)  # fmt: skip
def test_kept_policies_that_a_topic_does_not_take(call: str, body: Any, expected: tuple[int, str]) -> None:
    run = Run()
    run.create_producer()
    refused = run.admin("POST", f"/{call}", body)
    assert (status(refused), response(refused)["reason"]) == expected
    assert response(run.admin("GET", f"/{call}")) == ([] if call == "shadowTopics" else UNSET)


# -- policies that last -----------------------------------------------------------------------------------------------


def lasting(call: str, body: Any, topic: str = TOPIC, method: Any = "POST") -> Admin:
    path = topic.replace("://", "/", 1)
    return Admin(method=method, path=f"/{path}/{call}", body=body, lasting=True)


QUOTA = {"limitSize": 5, "policy": "producer_exception"}
RATE = {"dispatchThrottlingRateInMsg": 5}
LASTING: list[tuple[str, Any]] = [
    ("messageTTL", 7), ("maxProducers", 3), ("s/dispatchRate", RATE), ("deduplicationEnabled", True),
    *((f"backlogQuota?backlogQuotaType={type_}", QUOTA) for type_ in ("message_age", "destination_storage")),
]  # fmt: skip


@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/t"])
def test_policies_that_last_hold_whenever_the_topic_exists(topic: str) -> None:
    run = Run(profile="4.2")
    for call, value in LASTING:
        answer = run.do(lasting(call, value, topic), topic)
        assert [type(each) for each in answer] == [AdminResponse]
        assert status(answer) == 204
    assert run.broker.topic_names() == []
    for _ in range(2):
        run.publish(1, topic=topic, rest=True)
        for call, value in LASTING[:4]:
            found = response(run.admin("GET", f"/{call}", topic=topic))
            assert found.items() >= value.items() if isinstance(value, dict) else found == value
        if topic == TOPIC:
            quotas = response(run.admin("GET", "/backlogQuotaMap"))
            assert {type_: each["limitSize"] for type_, each in quotas.items()} == {
                "message_age": 5,
                "destination_storage": 5,
            }
        assert status(run.admin("DELETE", "", topic=topic)) == 204


def test_a_call_that_removes_all_policies_leaves_those_that_last() -> None:
    run = Run(profile="4.2")
    run.publish(1)
    for call, value in LASTING:
        assert status(run.admin("POST", f"/{call}", value)) == 204
    for call, value in (LASTING[0], LASTING[2], LASTING[4]):
        assert status(run.do(lasting(call, value))) == 204
    assert status(run.admin("DELETE", "/policies")) == 204
    left = run.topic.policies
    assert (left.messageTTL, {*left.backlogQuota}, {*left.subscriptionDispatchRates}) == (
        7,
        {"message_age"},
        {"s"},
    )
    assert (left.maxProducersPerTopic, left.deduplication) == (None, None)


def test_a_policy_that_lasts_may_be_refused_or_removed() -> None:
    run = Run(profile="4.2")
    assert status(run.do(lasting("maxProducers", -1))) == 412
    assert run.broker.lasting == {}
    assert status(run.do(lasting("messageTTL", 7))) == 204
    run.publish(1)
    assert response(run.admin("GET", "/messageTTL")) == 7
    assert status(run.do(lasting("messageTTL", None, method="DELETE"))) == 204
    assert run.topic.policies.messageTTL is None
    assert status(run.do(lasting("stats", None, method="GET"))) == 200  # it is about no policy


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("GET", "policies"),
        ("POST", "policies"),
        ("GET", "backlogQuota"),
        ("POST", "backlogQuotaMap"),
        ("GET", "stats"),
    ],
)
def test_what_is_no_policy_to_set_is_answered_as_ever(method: Any, call: str) -> None:
    found: list[Any] = []
    for lasts in (False, True):
        run = Run(profile="4.2")
        found.append(
            status(run.do(msgspec.structs.replace(lasting(call, None, method=method), lasting=lasts)))
        )
        assert run.broker.lasting == {}
    assert found[0] == found[1] or method == "GET"


def test_a_policy_that_the_topic_refuses_does_not_last() -> None:
    run = Run(profile="4.2")
    run.publish(1)
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1}
    assert status(run.admin("POST", "/retention", retention)) == 204
    assert (
        status(run.do(lasting("backlogQuota", {"limitSize": 5_000_000, "policy": "producer_exception"})))
        == 412
    )
    assert run.broker.lasting == {}


def test_a_policy_may_wait_for_a_namespace_and_for_a_partition() -> None:
    run = Run(namespacesMustExist=True)
    topic = "persistent://t/n/w-partition-0"
    assert status(run.do(lasting("messageTTL", 7, topic), topic)) == 204
    tenant: Any = {"allowedClusters": ["standalone"]}
    for path, body in [
        ("/tenants/t", tenant),
        ("/namespaces/t/n", None),
        ("/persistent/t/n/w/partitions", 2),
    ]:
        assert status(run.do(Admin(method="PUT", path=path, body=body), None)) == 204
    run.publish(1, topic=topic)
    assert run.broker.topic(topic).policies.messageTTL == 7
    assert status(run.do(lasting("messageTTL", 9, topic), topic)) == 204
    assert run.broker.topic(topic).policies.messageTTL == 9


def test_a_restart_forgets_a_non_persistent_topic_with_nothing_but_policies_that_last() -> None:
    run, topic = Run(), "non-persistent://public/default/t"
    run.do(lasting("messageTTL", 7, topic), topic)
    run.publish(1, topic=topic)
    run.do(Restart(), None)
    assert run.broker.topic_names() == []


def test_policies_that_last_are_part_of_the_state() -> None:
    run = Run()
    run.do(lasting("messageTTL", 7))
    again = Broker.decode(run.broker.encode(), NoEntries())
    assert again.lasting == run.broker.lasting != {}


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("messageTTL", "Invalid value for message TTL"),
        ("maxConsumers", "maxConsumers must be 0 or more"),
        ("maxConsumersPerSubscription", "Invalid value for maxConsumersPerSubscription"),
        ("maxUnackedMessagesOnConsumer", "maxUnackedNum must be 0 or more"),
        ("maxUnackedMessagesOnSubscription", "maxUnackedNum must be 0 or more"),
        ("deduplicationSnapshotInterval", "interval must be 0 or more"),
    ],
)
def test_a_topic_refuses_negative_numbers_in_words_of_its_own(policy: str, said: str) -> None:
    run = Run()
    run.create_producer()
    answer = one(run.admin("POST", f"/{policy}", -1), AdminResponse).fields
    assert (answer.status, answer.response) == (412, {"reason": said})
