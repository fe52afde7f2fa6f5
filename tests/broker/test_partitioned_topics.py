"""Calls on partitioned topics as a whole (I4): partitions, policies, properties. The answers are those of a real 4.0.7."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec import UNSET

from schemas.commands import Admin, PartitionedMetadata
from schemas.effects import (
    AdminResponse,
    CloseProducer,
    Effect,
    Error,
    Expired,
    PartitionedMetadataResponse,
    ProducerSuccess,
    Quarantined,
)
from streaming.broker.broker import Broker
from streaming.broker.config import MOST_PARTITIONS_IN_ALL
from streaming.broker.entries import NoEntries
from streaming.log.merge import merge_partitions
from streaming.log.partition import ingress_partition, partition_log
from streaming.log.table import LOGICAL
from tests.broker.kit import TOPIC, Run, of, one, response
from tests.broker.test_admin_calls import status

pytestmark = pytest.mark.feature("I4")

PATH = "/" + TOPIC.replace("://", "/")
FIRST, SECOND = f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"


def call(run: Run, method: str, rest: str, body: Any = None) -> list[Effect]:
    """A call on the partitioned topic, in a record without a topic, as every ingress partition gets it."""
    return run.do(Admin(method=method, path=PATH + rest, body=body), None)  # type: ignore[arg-type]


def partitioned(count: int = 2, **settings: Any) -> Run:
    run = Run(**settings)
    assert status(call(run, "PUT", "/partitions", count)) == 204
    return run


def test_the_number_of_partitions() -> None:
    run = Run()
    asked = [
        ("GET", None, 404), ("DELETE", None, 404), ("POST", 3, 409), ("PUT", 0, 406), ("PUT", -1, 406), ("PUT", "x", 400),
        ("PUT", 3, 204), ("PUT", 3, 409), ("POST", 2, 422), ("POST", 3, 204), ("POST", 5, 204), ("POST", 0, 422),
        ("POST", 10_001, 422),
    ]  # fmt: skip
    assert [status(call(run, method, "/partitions", body)) for method, body, _ in asked] == [
        s for *_, s in asked
    ]
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert response(call(run, "GET", "/partitions")) == {"partitions": 5, "deleted": False}
    run.create_producer(topic=f"{TOPIC}2")
    assert response(run.admin("GET", "/partitions", topic=f"{TOPIC}2")) == {"partitions": 0, "deleted": False}
    for method in ("PUT", "POST", "DELETE"):
        assert status(run.admin(method, "/partitions", 2, topic=f"{TOPIC}2")) == 409
    assert status(run.admin("PUT", "/partitions", 2, topic=FIRST)) == 412
    for count, expected in ((10_001, 406), (2**31 - 1, 406), (10_000, 204)):
        assert status(run.admin("PUT", "/partitions", count, topic=f"{TOPIC}3")) == expected


def test_policies_hold_for_the_partitions() -> None:
    run = partitioned()
    run.create_producer("a", 1, topic=FIRST)
    assert status(call(run, "POST", "/maxProducers", 1)) == 204
    assert response(call(run, "GET", "/maxProducers")) == 1
    assert one(run.create_producer("b", 2, topic=FIRST), Error).error == "ProducerBusy"
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert one(run.create_producer("c", 3, topic=SECOND), ProducerSuccess)  # created after the policy
    assert one(run.create_producer("d", 4, topic=SECOND), Error).error == "ProducerBusy"
    assert one(run.create_producer("e", 5, topic=f"{TOPIC}x-partition-0"), ProducerSuccess)
    assert one(run.create_producer("f", 6, topic=f"{TOPIC}x-partition-0"), ProducerSuccess)
    call(run, "DELETE", "/maxProducers")
    assert one(run.create_producer("b", 2, topic=FIRST), ProducerSuccess)
    assert TOPIC not in run.broker.topic_names()


def test_a_partition_expires_messages_when_it_is_loaded_if_the_partitioned_topic_has_a_policy() -> None:
    """As recorded by `make parity`: as a topic with a policy of its own does, whichever it is."""
    run = partitioned(ttlDurationDefaultInSeconds=10)
    for topic in (FIRST, f"{TOPIC}x"):
        run.subscribe("s", topic=topic)
    call(run, "POST", "/maxConsumers", 5)
    for topic in (FIRST, f"{TOPIC}x"):
        run.fill(2, topic=topic)
    run.wait(20)
    for topic, expired in ((FIRST, 1), (f"{TOPIC}x", 0)):
        run.admin("PUT", "/unload", topic=topic)
        loaded = run.admin("GET", "/stats", topic=topic)
        assert len(of(loaded, Expired)) == expired


def test_a_partitions_own_policy_comes_first_and_the_namespaces_last() -> None:
    run = partitioned()
    run.namespace("POST", "maxProducersPerTopic", 1)
    call(run, "POST", "/maxProducers", 2)
    run.admin("POST", "/maxProducers", 3, topic=SECOND)
    for topic, most in ((FIRST, 2), (SECOND, 3), (f"{TOPIC}2", 1)):
        answers = [run.create_producer(f"p{n}", n, topic=topic) for n in range(5)]
        assert sum(bool(of(answer, ProducerSuccess)) for answer in answers) == most


def test_quotas_of_both_levels_hold() -> None:
    run = partitioned()
    run.publish(0, topic=FIRST)
    call(run, "POST", "/backlogQuota?backlogQuotaType=message_age", {"limitTime": 7})
    run.admin("POST", "/backlogQuota", {"limitSize": 9}, topic=FIRST)
    policies = run.broker._ctx.policies_of(run.broker.topic(FIRST))
    assert (
        policies.message_age_quota.value.limitTime,
        policies.destination_storage_quota.value.limitSize,
    ) == (7, 9)
    assert policies.message_age_quota.level == "topic"


def test_a_change_acts_on_the_partitions_at_once() -> None:
    run = partitioned()
    run.publish(0, topic=FIRST)
    assert run.broker.topic(FIRST).dedup.status == "Disabled"
    call(run, "POST", "/deduplicationEnabled", True)
    assert run.broker.topic(FIRST).dedup.status == "Enabled"


def test_properties_of_a_partitioned_topic_are_not_those_of_its_partitions() -> None:
    run = partitioned()
    run.create_producer(topic=FIRST)
    assert status(call(run, "PUT", "/properties", {"k": "v", "x": "y"})) == 204
    assert response(call(run, "GET", "/properties")) == {"k": "v", "x": "y"}
    assert response(run.admin("GET", "/properties", topic=FIRST)) == {}
    assert response(call(run, "GET", "/partitions"))["properties"] == {"k": "v", "x": "y"}
    call(run, "DELETE", "/properties?key=k")
    assert response(call(run, "GET", "/properties")) == {"x": "y"}


def test_a_partitioned_topic_is_deleted_with_its_partitions() -> None:
    run = partitioned(3)
    call(run, "POST", "/maxProducers", 1)
    run.create_producer(topic=FIRST)
    run.admin("PUT", "/subscription/s", topic=SECOND)
    run.subscribe("s", topic=SECOND)
    run.close_consumer("s", topic=SECOND)
    assert status(run.admin("DELETE", "?force=true")) == 409
    refused = call(run, "DELETE", "/partitions")
    assert status(refused) == 412
    assert run.broker.topic_names() == [FIRST]  # quirk: those that nobody uses are gone
    assert response(call(run, "GET", "/partitions"))["partitions"] == 3
    effects = call(run, "DELETE", "/partitions?force=true")
    assert (status(effects), one(effects, CloseProducer).topic) == (204, FIRST)
    assert run.broker.topic_names() == []
    assert status(call(run, "GET", "/partitions")) == 404
    assert run.broker.partitioned == {}
    call(run, "PUT", "/partitions", 2)
    assert one(call(run, "GET", "/maxProducers"), AdminResponse).fields.response is UNSET


def test_partitions_are_listed_before_anybody_uses_them() -> None:
    run = partitioned()
    run.create_producer(topic=SECOND)
    listed = {
        kind: response(run.do(Admin(method="GET", path=f"/persistent/public/default{kind}"), None))
        for kind in ("", "/partitioned")
    }
    assert listed == {"": [FIRST, SECOND], "/partitioned": [TOPIC]}
    run.admin("DELETE", "?force=true", topic=SECOND)
    assert response(run.do(Admin(method="GET", path="/persistent/public/default"), None)) == [FIRST]


def test_a_call_without_a_topic_needs_a_partitioned_one() -> None:
    assert one(call(Run(), "POST", "/maxProducers", 1), Quarantined).rule == "no_topic"


def record(command: dict[str, Any], topic: str | None) -> dict[str, Any]:
    return {"timestamp": 1_700_000_000_000, "topic": topic, "value": json.dumps(command).encode()}


def test_a_log_gives_these_calls_to_every_ingress_partition() -> None:
    """The partitions of a topic are in other ingress partitions than the topic's name."""
    admin = {"command": "ADMIN"}
    rows = [
        record(
            {**admin, "method": "POST", "path": PATH + "/maxProducers", "body": 9}, TOPIC
        ),  # not partitioned yet
        record({**admin, "method": "PUT", "path": PATH + "/partitions", "body": 4}, TOPIC),
        record({**admin, "method": "POST", "path": PATH + "/maxProducers", "body": 1}, TOPIC),
        record({**admin, "method": "GET", "path": PATH + "/maxProducers"}, TOPIC),
        record({**admin, "method": "DELETE", "path": PATH + "/partitions"}, None),
        record({**admin, "method": "POST", "path": PATH + "/maxProducers", "body": 2}, TOPIC),
    ]
    log = partition_log(pa.Table.from_pylist(rows, LOGICAL), 4)
    keyed = log.filter(pc.is_valid(log["topic"])).to_pylist()
    assert [json.loads(each["value"]).get("body") for each in keyed] == [9, None, 2]
    assert {each["partition"] for each in keyed} == {ingress_partition(TOPIC, 4)}
    everywhere = [
        [
            json.loads(each["value"])["method"]
            for each in log.to_pylist()
            if each["topic"] is None and each["partition"] == p
        ]
        for p in range(4)
    ]
    assert everywhere == [["PUT", "POST", "DELETE"]] * 4
    assert partition_log(merge_partitions(log).log, 4).equals(log)


def test_calls_on_the_whole_that_are_refused() -> None:
    run = partitioned()
    assert status(call(run, "POST", "/properties", {"k": "v"})) == 405
    assert status(call(run, "POST", "/messageTTL", -1)) == 412
    assert response(call(run, "GET", "/messageTTL")) is UNSET


def test_deleted_partitions_do_not_count_as_topics_of_the_namespace() -> None:
    run = partitioned(maxTopicsPerNamespace=3)
    for topic in (FIRST, SECOND):
        run.publish(0, topic=topic)
    assert status(call(run, "DELETE", "/partitions?force=true")) == 204
    for number in range(3):
        assert one(run.create_producer(f"{number}", number, topic=f"{TOPIC}{number}"), ProducerSuccess)
    assert one(run.create_producer("p", 9, topic=f"{TOPIC}9"), Error)


def test_no_partition_is_ever_missing() -> None:
    run = partitioned()
    assert status(call(run, "POST", "/createMissedPartitions")) == 204
    assert status(call(run, "DELETE", "/createMissedPartitions")) == 405
    assert response(call(run, "GET", "/partitions"))["partitions"] == 2


def test_only_delete_is_a_call_on_all_policies() -> None:
    run = partitioned()
    assert status(call(run, "POST", "/maxProducers", 1)) == 204
    assert status(call(run, "POST", "/policies")) == 405
    assert response(call(run, "GET", "/maxProducers")) == 1
    assert status(call(run, "DELETE", "/policies")) == 204
    assert response(call(run, "GET", "/maxProducers")) is UNSET


@pytest.mark.parametrize("type_", ["partitioned", "non-partitioned"])
def test_to_ask_for_the_number_of_partitions_may_create_them(type_: str) -> None:
    run = Run(allowAutoTopicCreationType=type_, defaultNumPartitions=3)
    assert status(call(run, "GET", "/partitions?checkAllowAutoCreation=false")) == 404
    answer = response(call(run, "GET", "/partitions?checkAllowAutoCreation=true"))
    assert answer == {"partitions": 3 if type_ == "partitioned" else 0, "deleted": False}
    assert run.broker.partitioned == ({TOPIC: 3} if type_ == "partitioned" else {})


# -- how many partitions there are in all ----------------------------------------------------------------------------


def test_however_they_come_there_are_so_many_partitions_at_most() -> None:
    """A record may list the topics of a namespace, so there must be a bound on how many a short record makes."""
    run = partitioned(5)
    for number in range(9):
        assert status(run.admin("PUT", "/partitions", 10_000, topic=f"{TOPIC}-{number}")) == 204
    left = 10_000 - 5
    assert status(call(run, "POST", "/partitions", left)) == 204
    assert status(run.admin("PUT", "/partitions", 6, topic=f"{TOPIC}-9")) == 412
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert status(run.admin("PUT", "/partitions", 6, topic=f"{TOPIC}-9")) == 412
    assert status(run.admin("PUT", "/partitions", 3, topic=f"{TOPIC}-9")) == 204
    assert status(run.admin("POST", "/partitions", 6, topic=f"{TOPIC}-9")) == 412
    assert status(run.admin("POST", "/partitions", 5, topic=f"{TOPIC}-9")) == 204

    policy: Any = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 1}
    run.do(Admin(method="POST", path="/namespaces/public/default/autoTopicCreation", body=policy), None)
    asked = PartitionedMetadata(connection="c", request_id=1, metadata_auto_creation_enabled=True)
    refused = one(run.do(asked, f"{TOPIC}-10"), PartitionedMetadataResponse)
    assert (refused.error, refused.fields.partitions) == ("NotAllowedError", UNSET)
    asked_by_http = run.admin("GET", "/partitions?checkAllowAutoCreation=true", topic=f"{TOPIC}-11")
    assert status(asked_by_http) == 412
    listed = response(run.do(Admin(method="GET", path="/namespaces/public/default/topics"), None))
    assert len(listed) == MOST_PARTITIONS_IN_ALL

    assert status(run.admin("DELETE", "/partitions", topic=f"{TOPIC}-0")) == 204  # makes room
    made = one(run.do(asked, f"{TOPIC}-10"), PartitionedMetadataResponse)
    assert made.fields.partitions == 1
    assert run.broker._ctx.partitions == sum(run.broker.partitioned.values()) == 90_001


@pytest.mark.parametrize("profile", ["4.0", "3.0", "2.10"])
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("by_namespace", [False, True])
def test_partitions_where_use_creates_no_topics(profile: Any, domain: str, by_namespace: bool) -> None:
    """As real brokers of 4.0.7 and 2.10.5 answer."""
    run = Run(profile=profile, allowAutoTopicCreation=by_namespace)
    if by_namespace:
        body: Any = {"allowAutoTopicCreation": False}
        found = run.do(
            Admin(method="POST", path="/namespaces/public/default/autoTopicCreation", body=body), None
        )
        assert status(found) == 204
    topic = f"{domain}://public/default/u"
    first, second, beyond = (f"{topic}-partition-{number}" for number in (0, 1, 2))
    path = f"/{domain}/public/default/u"
    assert status(run.do(Admin(method="PUT", path=f"{path}/partitions", body=2), None)) == 204
    assert of(run.subscribe("s", topic=first, force_topic_creation=False), Error) == []
    assert of(run.create_producer(topic=second), Error) == []
    for missing in (beyond, f"{topic}2"):
        assert one(run.create_producer(topic=missing, connection="other"), Error).error == "TopicNotFound"
        assert one(run.subscribe("s", topic=missing, id_=9), Error).error == "TopicNotFound"
    if domain == "non-persistent":
        return
    assert status(run.do(Admin(method="DELETE", path=f"{path}-partition-1?force=true"), second)) == 204
    assert (
        one(run.subscribe("s", topic=second, id_=8, force_topic_creation=False), Error).error
        == "TopicNotFound"
    )
    again = of(run.create_producer("q", id_=3, topic=second), Error)
    assert [each.error for each in again] == ([] if profile == "4.0" else ["TopicNotFound"])


def test_a_broker_may_allow_fewer_partitions() -> None:
    run = Run(maxNumPartitionsPerPartitionedTopic=3)
    too_many = {"reason": "Number of partitions should be less than or equal to 3"}
    refused = run.admin("PUT", "/partitions", 4)
    assert (status(refused), response(refused)) == (406, too_many)
    assert status(run.admin("PUT", "/partitions", 2)) == 204
    assert status(run.admin("POST", "/partitions", 4)) == 422
    assert status(run.admin("POST", "/partitions", 3)) == 204
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4}
    refused = run.namespace("POST", "autoTopicCreation", override)
    assert (status(refused), response(refused)) == (406, too_many)
    assert status(run.namespace("POST", "autoTopicCreation", override | {"defaultNumPartitions": 3})) == 204
