"""What is taken of policies and settings as a real cluster shows them: each kind of value, and each that can't be."""

from typing import Any

import pytest

from schemas.effects import AdminResponse
from streaming.broker.admin import namespace_policies
from streaming.broker.config import abbreviated, setting_text
from streaming.broker.policies import topic_policies
from streaming.broker.policies.kept import NO_ENTRY_FILTERS
from tests.broker.kit import Run, one

RATE = {"dispatchThrottlingRateInMsg": 5}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"message_ttl_in_seconds": -1}, 412),
        ({"message_ttl_in_seconds": 60}, 204),
        ({"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}}, 400),
        ({"autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 20_000}}, 406),
        ({"subscription_types_enabled": ["Shared", "Other"]}, 204),
        ({"subscription_types_enabled": "Shared"}, 400),
        ({"schema_compatibility_strategy": "OTHER"}, 204),
        ({"inactive_topic_policies": {"maxInactiveDurationSeconds": 5, "deleteWhileInactive": True, "other": 1}}, 204),
        ({"persistence": {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 3}}, 400),
        ({"offload_policies": {"offloadersDirectory": "x"}}, 204),
        ({"bundles": {"numBundles": 2, "boundaries": ["0x00000000", "0x7fffffff", "0xffffffff"]}}, 204),
        ({"bundles": {"numBundles": 2, "boundaries": ["0x7fffffff"]}}, 400),
        ({"replication_clusters": ["standalone", "other"]}, 403),
        ({"allowed_clusters": ["other"]}, 204),
        ({"entryFilters": {"entryFilterNames": "x"}}, 501),
        ({"auth_policies": {"subscription_auth_roles": {"s": ["me"]}}}, 204),
        ({"topicDispatchRate": {"standalone": RATE}}, 204),
        ({"clusterDispatchRate": {"standalone": RATE}, "topicDispatchRate": {"other": RATE}}, 204),
        ({"replicatorDispatchRate": {"standalone": RATE}}, 204),
        ({"subscription_auth_mode": "Other"}, 204),
    ],
)  # fmt: skip
def test_a_namespace_that_is_put(body: dict[str, Any], status: int) -> None:
    run = Run()
    (effect,) = [
        each
        for each in run.do(_put(body), None)
        if isinstance(each, AdminResponse)
    ]  # fmt: skip
    assert effect.fields.status == status, effect.fields.response


def _put(body: dict[str, Any]) -> Any:
    from schemas.commands import Admin

    return Admin(method="PUT", path="/namespaces/public/other", body=body)


def test_what_is_taken_of_a_namespace() -> None:
    taken = namespace_policies.take(
        {
            "message_ttl_in_seconds": 5, "unheard_of": 1, "clusterDispatchRate": {"a": RATE}, "topicDispatchRate": {"a": RATE, "b": {}},
            "subscriptionDispatchRate": {"a": RATE}, "publishMaxMessageRate": 5, "clusterSubscribeRate": {}, "entryFilters": [1],
            "offload_policies": {"secret": "x"}, "deleted": True, "compaction_threshold": 9, "max_producers_per_topic": None,
        }
    )  # fmt: skip
    assert taken.unknown == ["unheard_of"]
    assert taken.body["message_ttl_in_seconds"] == 5
    assert taken.body["subscriptionDispatchRate"] == {"standalone": RATE}
    assert sorted(taken.not_applied) == ["entryFilters", "publishMaxMessageRate", "topicDispatchRate"]
    assert taken.not_applied["topicDispatchRate"] == "it differs between a, b: leave one of them"
    assert "offload_policies" not in taken.body
    of_cluster = namespace_policies.take({"subscriptionDispatchRate": {"a": RATE, "b": {}}}, "b")
    assert of_cluster.body == {"subscriptionDispatchRate": {"standalone": {}}}
    assert namespace_policies.take({"subscriptionDispatchRate": {"a": RATE}}, "c").body == {
        "subscriptionDispatchRate": {}
    }


def test_a_namespace_with_other_policies() -> None:
    body = {
        "backlog_quota_map": {"message_age": {"limitTime": 5}},
        "clusterDispatchRate": {"standalone": RATE},
    }
    found = namespace_policies.overlaid(
        body,
        [
            ("backlogQuota destination_storage", {"limitSize": 1}),
            ("backlogQuota message_age", None),
            ("dispatchRate", RATE),
            ("messageTTL", 7),
            ("subscribeRate", None),
            ("unheard of", 1),
        ],
    )
    assert found == {
        "backlog_quota_map": {"destination_storage": {"limitSize": 1}},
        "topicDispatchRate": {"standalone": RATE},
        "message_ttl_in_seconds": 7,
        "clusterSubscribeRate": None,
    }
    assert namespace_policies.policies_of("unheard of") == ()
    assert namespace_policies.policies_of("clusterDispatchRate") == ("dispatchRate",)


def test_what_is_taken_of_a_topic() -> None:
    taken = topic_policies.take(
        {
            "messageTTLInSeconds": 5, "unheardOf": 1, "backLogQuotaMap": {"destination_storage": {"limitSize": 1}, "message_age": None},
            "delayedDeliveryEnabled": True, "delayedDeliveryTickTimeMillis": 9, "compactionThreshold": 5, "replicationClusters": [],
            "subscriptionPolicies": {"s": {"dispatchRate": RATE}, "t": {}, "u": 5}, "maxProducerPerTopic": None, "isGlobal": False,
        }
    )  # fmt: skip
    assert taken.unknown == ["unheardOf"]
    calls = {each.call for each in taken.calls}
    assert {
        "backlogQuota?backlogQuotaType=destination_storage",
        "backlogQuota?backlogQuotaType=message_age",
        "s/dispatchRate",
        "delayedDelivery",
    } <= calls
    wrong = topic_policies.take({"backLogQuotaMap": 5, "subscriptionPolicies": 5})
    assert wrong.not_applied == {"backLogQuotaMap": "a quota for each type is expected"}
    assert wrong.calls == []


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("subscriptionTypesEnabled", "[Failover, Shared, Exclusive]", "Exclusive,Shared,Failover"),
        ("subscriptionTypesEnabled", "[ ]", ""),
        ("clusterName", "", "standalone"),
        ("maxProducersPerTopic", "null", 0),
        ("brokerDeduplicationEnabled", " true ", True),
    ],
)
def test_values_as_java_shows_them(name: str, text: str, value: object) -> None:
    run = Run()
    run.configure(**{name: text})  # type: ignore[arg-type]
    assert getattr(run.broker.config, name) == value


def test_settings_for_people() -> None:
    assert setting_text("a") == "a"
    assert setting_text("") == '""'
    assert setting_text(5) == "5"
    assert abbreviated(",".join("a" * 200)) == "200 of them"
    assert one(Run().admin("GET", "/stats"), AdminResponse).fields.status == 404


@pytest.mark.parametrize("value", [{"entryFilterNames": ""}, {"entryFilterNames": "a"}, "a"])
def test_entry_filters_are_taken_only_if_there_are_none(value: Any) -> None:
    refused = value != {"entryFilterNames": ""}
    for take in (namespace_policies.take, topic_policies.take):
        taken = take({"entryFilters": value})
        assert taken.not_applied == ({"entryFilters": NO_ENTRY_FILTERS} if refused else {})
        assert not taken.unknown


def test_shadow_topics_of_a_topic_are_not_taken() -> None:
    taken = topic_policies.take({"shadowTopics": ["persistent://public/default/t"]})
    assert taken.not_applied == {"shadowTopics": "shadow topics are not supported"}
    assert topic_policies.take({"shadowTopics": []}).not_applied == {}
