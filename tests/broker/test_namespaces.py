"""Tenants, namespaces and topics as operators create and delete them (I5). The answers are those of Pulsar 4.0.7."""

from typing import Any

import msgspec
import pytest

from schemas.commands import Admin, GetSchema, Lookup, PartitionedMetadata, Publish, Subscribe, to_json
from schemas.effects import (
    AdminResponse,
    CloseProducer,
    Effect,
    Error,
    GetSchemaResponse,
    LookupResponse,
    PartitionedMetadataResponse,
    ProducerSuccess,
    Success,
    TopicEvent,
    Unsupported,
)
from streaming.broker import bundles
from streaming.broker.admin.namespace_policies import without_secrets
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.errors import AdminError
from streaming.broker.policies.hierarchy import Policies
from tests.broker.kit import TOPIC, Run, feed, of, one

pytestmark = pytest.mark.feature("I5")

AT = "/" + TOPIC.replace("://", "/")

INFO = {"adminRoles": ["admin"], "allowedClusters": ["standalone"]}


def call(run: Run, method: str, path: str, body: Any = None, topic: str | None = None) -> tuple[int, Any]:
    """Status and response."""
    effects = run.do(Admin(method=method, path=path, body=body), topic)  # type: ignore[arg-type]
    fields = one(effects, AdminResponse).fields
    return fields.status, fields.response


def status(run: Run, method: str, path: str, body: Any = None, topic: str | None = None) -> int:
    return call(run, method, path, body, topic)[0]


def reason(run: Run, method: str, path: str, body: Any = None, topic: str | None = None) -> tuple[int, str]:
    found, response = call(run, method, path, body, topic)
    return found, response["reason"]


@pytest.fixture
def strict() -> Run:
    """A broker in which everything must be created, with the tenant and namespace of `TOPIC`, and one bundle in each, as the broker had that was
    recorded."""
    run = Run(namespacesMustExist=True, forceDeleteNamespaceAllowed=True, defaultNumberOfNamespaceBundles=1)
    assert status(run, "PUT", "/tenants/public", INFO) == 204
    assert status(run, "PUT", "/namespaces/public/default") == 204
    return run


# -- tenants ----------------------------------------------------------------------------------------------------------


def test_a_tenant_from_its_creation_to_its_deletion(strict: Run) -> None:
    assert status(strict, "PUT", "/tenants/acme", INFO) == 204
    assert call(strict, "GET", "/tenants") == (200, ["acme", "public"])
    assert call(strict, "GET", "/tenants/acme") == (200, INFO)
    changed = {"adminRoles": [], "allowedClusters": ["standalone"]}
    assert status(strict, "POST", "/tenants/acme", changed) == 204
    assert call(strict, "GET", "/tenants/acme") == (200, changed)
    assert call(strict, "GET", "/namespaces/acme") == (200, [])
    assert status(strict, "PUT", "/namespaces/acme/n") == 204
    assert reason(strict, "DELETE", "/tenants/acme") == (409, "The tenant still has active namespaces")
    assert status(strict, "DELETE", "/namespaces/acme/n") == 204
    assert status(strict, "DELETE", "/tenants/acme") == 204
    assert reason(strict, "DELETE", "/tenants/acme") == (404, "Tenant doesn't exist")


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/tenants/none", None, (404, "Tenant does not exist")),
        ("PUT", "/tenants/public", INFO, (409, "Tenant already exist")),
        ("POST", "/tenants/none", INFO, (404, "Tenant none not found")),
        ("PUT", "/tenants/x%20y", INFO, (412, "Tenant name is not valid")),
        ("PUT", "/tenants/..", INFO, (412, "Tenant name is not valid")),
        ("PUT", "/tenants/x", {"allowedClusters": []}, (412, "Clusters cannot be empty or blank")),
        ("PUT", "/tenants/x", {"allowedClusters": ["nix"]}, (412, "Clusters do not exist")),
        ("PUT", "/tenants/x", None, (412, "TenantInfo is null")),
        ("DELETE", "/tenants/public?force=true", None, (405, "Broker doesn't allow forced deletion of tenants")),
        ("POST", "/tenants", None, (405, "POST of all tenants is not allowed")),
        ("GET", "/namespaces/none", None, (404, "Tenant not found")),
    ],
)  # fmt: skip
def test_refused_calls_on_tenants(
    strict: Run, method: str, path: str, body: Any, expected: tuple[int, str]
) -> None:
    assert reason(strict, method, path, body) == expected


def test_a_body_that_is_not_a_tenant(strict: Run) -> None:
    assert status(strict, "PUT", "/tenants/x", "{") == 400
    assert status(strict, "PUT", "/tenants/x", {"adminRoles": 3}) == 400


# -- namespaces -------------------------------------------------------------------------------------------------------


def test_a_namespace_exists_once_and_only_if_created(strict: Run) -> None:
    assert reason(strict, "PUT", "/namespaces/public/default") == (409, "Namespace already exists")
    assert reason(strict, "PUT", "/namespaces/none/n") == (404, "Tenant does not exist")
    assert reason(strict, "PUT", "/namespaces/public/n%20x") == (412, "Namespace name is not valid")
    for method, rest, body in (
        ("GET", "", None), ("GET", "/messageTTL", None), ("POST", "/messageTTL", 3), ("GET", "/topics", None),
        ("PUT", "/unload", None), ("GET", "/permissions", None), ("GET", "/bundles", None),
    ):  # fmt: skip
        said = "Namespace not found" if rest == "/unload" else "Namespace does not exist"
        assert reason(strict, method, f"/namespaces/public/n{rest}", body) == (404, said)
    assert reason(strict, "GET", "/persistent/public/n") == (404, "Namespace does not exist")
    assert reason(strict, "DELETE", "/namespaces/public/n") == (404, "Namespace public/n does not exist.")
    assert call(strict, "GET", "/namespaces/public") == (200, ["public/default"])


def test_a_log_needs_no_namespaces() -> None:
    run = Run()
    assert status(run, "POST", "/namespaces/any/where/messageTTL", 3) == 204
    assert call(run, "GET", "/tenants") == (200, ["any"])
    assert call(run, "GET", "/namespaces/any") == (200, ["any/where"])
    assert status(run, "PUT", "/namespaces/any/where") == 204
    assert call(run, "GET", "/namespaces/any/where/messageTTL") == (200, 3)
    assert status(run, "DELETE", "/namespaces/any/where") == 204
    assert call(run, "GET", "/namespaces/any")[0] == 404
    assert run.create_producer(topic="persistent://x/y/t") != []
    assert status(run, "DELETE", "/namespaces/x/y") == 409


def test_a_namespace_with_topics_is_deleted_by_force_only(strict: Run) -> None:
    path = "/namespaces/public/default"
    strict.create_producer()
    assert status(strict, "PUT", "/persistent/public/default/p/partitions", 2) == 204
    assert reason(strict, "DELETE", path) == (409, "Cannot delete non empty namespace")
    effects = strict.do(Admin(method="DELETE", path=f"{path}?force=true"), None)
    assert one(effects, AdminResponse).fields.status == 204
    assert one(effects, CloseProducer).topic == TOPIC
    assert strict.broker.topic_names() == []
    assert strict.broker.partitioned == {}
    assert status(strict, "PUT", path) == 204
    assert call(strict, "GET", f"{path}/topics") == (200, [])


@pytest.mark.parametrize(
    "path", ["/namespaces/public/default?force=true", "/namespaces/public/none?force=true"]
)
def test_force_deletes_no_namespace_unless_the_broker_allows_it(path: str) -> None:
    run = Run()
    run.create_producer()
    assert reason(run, "DELETE", path) == (405, "Broker doesn't allow forced deletion of namespaces")
    assert run.broker.topic_names() == [TOPIC]


def test_force_deletes_a_tenant_and_its_namespaces_if_the_broker_allows_it() -> None:
    run, path = Run(namespacesMustExist=True, forceDeleteTenantAllowed=True), "/tenants/public?force=true"
    assert reason(run, "DELETE", path) == (404, "Tenant doesn't exist")
    for call_ in ("/tenants/public", "/tenants/other"):
        assert status(run, "PUT", call_, INFO) == 204
    for namespace in ("public/default", "public/empty", "other/n"):
        assert status(run, "PUT", f"/namespaces/{namespace}") == 204
    run.create_producer()
    assert reason(run, "DELETE", path) == (405, "Broker doesn't allow forced deletion of namespaces")
    run.configure(namespacesMustExist=True, forceDeleteTenantAllowed=True, forceDeleteNamespaceAllowed=True)
    effects = run.do(Admin(method="DELETE", path=path), None)
    assert one(effects, CloseProducer).topic == TOPIC
    assert one(effects, AdminResponse).fields.status == 204
    assert run.broker.topic_names() == []
    assert call(run, "GET", "/tenants") == (200, ["other"])
    assert status(run, "PUT", "/tenants/public", INFO) == 204
    assert call(run, "GET", "/namespaces/public") == (200, [])


def test_policies_that_last_hold_whenever_the_namespace_exists() -> None:
    path = "/namespaces/public/default"

    def lasting(run: Run, method: Any, call_: str, body: Any = None) -> int:
        command = Admin(method=method, path=f"{path}{call_}", body=body, lasting=True)
        return one(run.do(command, None), AdminResponse).fields.status

    run = Run(namespacesMustExist=True)
    assert lasting(run, "PUT", "", {"max_producers_per_topic": 3}) == 204
    assert lasting(run, "POST", "/messageTTL", 7) == 204
    assert lasting(run, "POST", "/messageTTL", -1) == 412
    for method, call_ in (("GET", ""), ("GET", "/messageTTL"), ("PUT", "/unload")):
        assert lasting(run, method, call_) == status(run, method, f"{path}{call_}") == 404
    assert {*run.broker.lasting} == {"public/default"}
    assert reason(run, "PUT", path) == (404, "Tenant does not exist")
    assert status(run, "PUT", "/tenants/public", INFO) == 204
    for body in (None, {"message_ttl_in_seconds": 9, "max_consumers_per_topic": 4}):
        assert status(run, "PUT", path, body) == 204
        found = run.broker.namespace_policies["public/default"]
        expected = 7, 3, (body or {}).get("max_consumers_per_topic")
        assert (found.messageTTL, found.maxProducersPerTopic, found.maxConsumersPerTopic) == expected
        assert status(run, "DELETE", path) == 204
    assert status(run, "PUT", path) == 204
    assert lasting(run, "POST", "/messageTTL", 8) == 204
    assert run.broker.namespace_policies["public/default"].messageTTL == 8
    assert lasting(run, "PUT", "", {"message_ttl_in_seconds": 6}) == 204  # nothing is in its way
    found = run.broker.namespace_policies["public/default"]
    assert (found.messageTTL, found.maxProducersPerTopic) == (6, None)


def test_a_tenant_has_one_namespace_more_than_its_limit() -> None:
    """As in Pulsar, which does not count the one that is created."""
    run = Run(maxNamespacesPerTenant=2)
    for name in ("a", "b", "c", "a"):
        assert status(run, "PUT", f"/namespaces/t/{name}") == 204
    expected = (412, "Exceed the maximum number of namespace in tenant :t")
    assert reason(run, "PUT", "/namespaces/t/d") == expected
    assert status(run, "PUT", "/namespaces/u/d") == 204


def test_a_deleted_namespace_counts_its_topics_anew(strict: Run) -> None:
    path = "/namespaces/public/default"
    for _ in range(2):
        assert status(strict, "POST", f"{path}/maxTopicsPerNamespace", 1) == 204
        assert (
            status(strict, "PUT", "/persistent/public/default/a", None, "persistent://public/default/a")
            == 204
        )
        refused = reason(strict, "PUT", "/persistent/public/default/b", None, "persistent://public/default/b")
        assert refused == (409, "Exceed maximum number of topics in namespace.")
        assert status(strict, "DELETE", f"{path}?force=true") == 204
        assert status(strict, "PUT", path) == 204


def test_topics_of_a_missing_namespace_are_refused(strict: Run) -> None:
    topic = "persistent://public/none/t"
    cause = (
        f"Namespace bundle (public/none/0x00000000_0xffffffff) for topic ({topic}) not served by this instance. Please redo the "
        "lookup."
    )
    assert reason(strict, "GET", "/persistent/public/none/t/stats", None, topic) == (
        404,
        "Namespace not found",
    )
    assert reason(strict, "PUT", "/persistent/public/none/t", None, topic) == (404, "Namespace not found")
    for effects in (strict.create_producer(topic=topic), strict.subscribe("s", topic=topic)):
        assert one(effects, Error)[-2:] == ("ServiceNotReady", cause)
    for command, why in (
        (Lookup(connection="c", request_id=1), "Namespace not found"),
        (PartitionedMetadata(connection="c", request_id=1), "Namespace not found"),
        (GetSchema(connection="c", request_id=1), f"Topic not found or no-schema {topic}"),
    ):
        (answer,) = strict.do(command, topic)
        assert isinstance(answer, LookupResponse | PartitionedMetadataResponse | GetSchemaResponse)
        assert (answer.error, answer.cause) == ("TopicNotFound", why)
    assert strict.broker.topic_names() == []


def test_a_topic_of_pulsar_1_needs_no_namespace(strict: Run) -> None:
    """4.0.7 takes ``tenant/cluster/namespace``, and creates topics there by use. Its namespaces can be created, too."""
    topic = "persistent://prop/cluster/ns/a/b"
    assert one(strict.create_producer(topic=topic), ProducerSuccess)
    assert strict.broker.listed_topics("prop/cluster/ns") == [topic]
    assert strict.broker.listed_topics("prop/cluster") == []
    path = "/persistent/prop/cluster/ns%2Fa%2Fb/stats"
    assert call(strict, "GET", path, None, topic)[0] == 200
    assert status(strict, "PUT", "/namespaces/public/standalone%2Fn") == 204
    assert status(strict, "POST", "/namespaces/public/standalone%2Fn/messageTTL", 5) == 204
    assert "public/standalone/n" in strict.broker.namespace_policies


def test_a_namespace_is_created_with_policies(strict: Run) -> None:
    path = "/namespaces/public/n"
    body = {
        "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5},
        "message_ttl_in_seconds": 7,
        "deduplicationEnabled": False,
        "backlog_quota_map": {"message_age": {"limitTime": 9, "policy": "producer_exception"}},
        "topicDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 3}},
        "bundles": {"numBundles": 4},
        "replication_clusters": ["standalone"],
        "max_producers_per_topic": None,
    }
    assert status(strict, "PUT", path, body) == 204
    assert call(strict, "GET", f"{path}/retention") == (200, body["retention_policies"])
    assert call(strict, "GET", f"{path}/messageTTL") == (200, 7)
    assert call(strict, "GET", f"{path}/deduplication") == (200, False)
    shown = call(strict, "GET", path)[1]
    assert shown["message_ttl_in_seconds"] == 7
    assert shown["retention_policies"] == body["retention_policies"]
    assert shown["backlog_quota_map"]["message_age"]["limitTime"] == 9
    assert shown["topicDispatchRate"]["standalone"]["dispatchThrottlingRateInMsg"] == 3
    assert shown["bundles"] == {
        "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"], "numBundles": 4,
    }  # fmt: skip
    assert "max_producers_per_topic" not in shown


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"properties": {"a": "b"}}, {"properties": {"a": "b"}}),
        (
            {"auth_policies": {"namespace_auth": {"r": ["produce"]}, "subscription_auth_roles": {"s": ["q"]}}},
            {"auth_policies": {"namespace_auth": {"r": ["produce"]}, "destination_auth": {}, "subscription_auth_roles": {"s": ["q"]}}},
        ),
        (
            {"auth_policies": {"namespace_auth": {"r": ["consume"]}}},
            {"auth_policies": {"namespace_auth": {"r": ["consume"]}, "destination_auth": {}, "subscription_auth_roles": {}}},
        ),
        ({"subscription_auth_mode": "Prefix", "compaction_threshold": 5}, {"subscription_auth_mode": "Prefix", "compaction_threshold": 5}),
        ({"subscription_auth_mode": "nonsense"}, {"subscription_auth_mode": "None"}),
        ({"replication_clusters": ["standalone", "standalone"]}, {"replication_clusters": ["standalone"]}),
        ({"bundles": {"numBundles": 1}}, {"bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}}),
        ({"bundles": {}}, {"bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}}),
        ({"deleted": True, "unknown_to_us": 5, "clusterDispatchRate": {}}, {"deleted": False, "clusterDispatchRate": {}}),
    ],
)  # fmt: skip
def test_a_new_namespace_shows_what_it_was_created_with(
    strict: Run, body: Any, shown: dict[str, Any]
) -> None:
    assert status(strict, "PUT", "/namespaces/public/n", body) == 204
    strict.broker = Broker.decode(strict.broker.encode(), NoEntries())
    found = call(strict, "GET", "/namespaces/public/n")[1]
    assert {name: found[name] for name in shown} == shown
    assert "unknown_to_us" not in found


QUOTA = {"destination_storage": {"limitSize": 2**31, "limitTime": -1, "policy": "producer_exception"}}
RETENTION = {"retentionTimeInMinutes": 1440, "retentionSizeInMB": 500}
RATE = {"dispatchThrottlingRateInMsg": 3, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False, "ratePeriodInSecond": 1}  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        {"retention_policies": RETENTION, "backlog_quota_map": QUOTA},
        {"autoTopicCreationOverride": {"allowAutoTopicCreation": True}},
        {"autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "partitioned"}},
        {"autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "x"}},
        {"autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 3}},
        {"max_producers_per_topic": -1, "max_consumers_per_topic": -5, "max_topics_per_namespace": -2},
        {"deduplicationSnapshotIntervalSeconds": -4, "subscription_expiration_time_minutes": -3},
        {"compaction_threshold": -1},
        {"allowed_clusters": ["elsewhere"]},
        {"clusterDispatchRate": {"standalone": RATE}, "topicDispatchRate": {"standalone": RATE}},
        {"replicatorDispatchRate": {"standalone": RATE}},
        {"offload_threshold": 5, "offload_deletion_lag_ms": 9, "offload_threshold_in_seconds": 3},
        {"bundles": {"boundaries": ["0x00000000", "0x10000000", "0xffffffff"], "numBundles": 2}},
    ],
)  # fmt: skip
def test_a_put_of_a_namespace_takes_what_calls_on_its_policies_refuse(
    strict: Run, body: dict[str, Any]
) -> None:
    """As a real 4.0.7, which checks only what `NamespacesBase.validatePoliciesAsync` does."""
    assert status(strict, "PUT", "/namespaces/public/n", body) == 204
    strict.broker = Broker.decode(strict.broker.encode(), NoEntries())
    found = call(strict, "GET", "/namespaces/public/n")[1]
    for quota in found["backlog_quota_map"].values():
        del quota["limit"]
    assert {name: found[name] for name in body} == body


def test_the_calls_on_a_quota_and_on_the_retention_still_check(strict: Run) -> None:
    path = "/namespaces/public/n"
    body = {"retention_policies": RETENTION, "backlog_quota_map": QUOTA}
    assert status(strict, "PUT", path, body) == 204
    assert status(strict, "POST", f"{path}/backlogQuota", QUOTA["destination_storage"]) == 412
    assert status(strict, "POST", f"{path}/retention", RETENTION) == 412


def test_the_old_name_of_a_rate_counts_where_the_new_one_is_not_set(strict: Run) -> None:
    faster = RATE | {"dispatchThrottlingRateInMsg": 9}
    for number, (body, rate) in enumerate(
        [
            ({"clusterDispatchRate": {"standalone": RATE}}, RATE),
            ({"clusterDispatchRate": {"standalone": RATE}, "topicDispatchRate": {"standalone": faster}}, faster),
            ({"topicDispatchRate": {"standalone": faster}, "clusterDispatchRate": {"standalone": RATE}}, faster),
            ({"topicDispatchRate": {"elsewhere": faster}}, None),
        ]
    ):  # fmt: skip
        assert status(strict, "PUT", f"/namespaces/public/n{number}", body) == 204
        found = call(strict, "GET", f"/namespaces/public/n{number}/dispatchRate")[1]
        assert found == (msgspec.UNSET if rate is None else rate)


def test_fields_that_pulsar_does_not_know_are_ignored_in_a_put(strict: Run) -> None:
    path = "/namespaces/public/n"
    body = {"retention_policies": RETENTION | {"x": 1}, "topicDispatchRate": {"standalone": RATE | {"x": 1}},
            "backlog_quota_map": {"message_age": {"limitTime": 5, "x": 1}}}  # fmt: skip
    assert status(strict, "PUT", path, body) == 204
    assert call(strict, "GET", f"{path}/retention") == (200, RETENTION)
    assert status(strict, "PUT", f"{path}2", {"subscription_types_enabled": ["Shared", "Nope"]}) == 204
    assert call(strict, "GET", f"{path}2/subscriptionTypesEnabled") == (200, ["Shared"])


def test_a_put_gives_permissions_on_topics_of_the_namespace_alone(strict: Run) -> None:
    mine, other = "persistent://public/n/t", "persistent://public/default/t"
    body = {"auth_policies": {"destination_auth": {mine: {"r": ["produce"]}, other: {"r": ["produce"]}}}}
    assert status(strict, "PUT", "/namespaces/public/n", body) == 204
    found = call(strict, "GET", "/namespaces/public/n")[1]["auth_policies"]["destination_auth"]
    assert found == {mine: {"r": ["produce"]}}
    assert call(strict, "GET", "/namespaces/public/default")[1]["auth_policies"]["destination_auth"] == {}


def test_the_whole_object_shows_a_replicator_rate_by_cluster(strict: Run) -> None:
    path = "/namespaces/public/default"
    assert call(strict, "GET", path)[1]["replicatorDispatchRate"] == {}
    assert status(strict, "POST", f"{path}/replicatorDispatchRate", {"dispatchThrottlingRateInMsg": 5}) == 204
    shown = call(strict, "GET", path)[1]["replicatorDispatchRate"]
    assert shown["standalone"]["dispatchThrottlingRateInMsg"] == 5


def test_the_state_has_the_policies_of_each_namespace(strict: Run) -> None:
    assert status(strict, "POST", "/namespaces/public/default/messageTTL", 7) == 204
    assert status(strict, "PUT", "/namespaces/public/n") == 204
    found = {name: policies.messageTTL for name, policies in strict.broker.namespace_policies.items()}
    assert found == {"public/default": 7, "public/n": None}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"message_ttl_in_seconds": -1}, 412),
        ({"message_ttl_in_seconds": "x"}, 400),
        ({"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}}, 400),
        ({"retention_policies": {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}}, 400),
        ({"persistence": {"bookkeeperEnsemble": 9}}, 400),
        ({"backlog_quota_map": {"bogus": {"limitSize": 1}}}, 400),
        ({"clusterDispatchRate": []}, 400),
        ({"entryFilters": {"entryFilterNames": "a"}}, 501),
        ({"autoTopicCreationOverride": {"topicType": "partitioned", "defaultNumPartitions": 10_001}}, 406),
        ({"bundles": {"numBundles": 2, "boundaries": ["0x00000000", "0x80000000"]}}, 400),
        ({"bundles": {"numBundles": 2, "boundaries": ["zero", "0xffffffff"]}}, 400),
        ({"bundles": {"numBundles": 1025}}, 412),
        ({"auth_policies": {"namespace_auth": {"r": ["fly"]}}}, 400),
        ({"properties": ["a"]}, 400),
        ({"replication_clusters": ["standalone", "other"]}, 403),
        ({"topicDispatchRate": 3}, 400),
        ([1], 400),
    ],
)
def test_a_namespace_is_not_created_with_policies_that_do_not_hold(
    strict: Run, body: Any, expected: int
) -> None:
    assert status(strict, "PUT", "/namespaces/public/n", body) == expected
    assert call(strict, "GET", "/namespaces/public") == (200, ["public/default"])


def test_permissions_are_kept_and_shown(strict: Run) -> None:
    path, of_topic = "/namespaces/public/default", "/persistent/public/default/t"
    assert call(strict, "GET", f"{path}/permissions") == (200, {})
    assert status(strict, "POST", f"{path}/permissions/r", ["produce"]) == 204
    assert call(strict, "GET", f"{path}/permissions") == (200, {"r": ["produce"]})
    missing = 404, f"Topic {TOPIC} not found"
    assert reason(strict, "POST", f"{of_topic}/permissions/r%2Fs", ["consume"], TOPIC) == missing
    assert reason(strict, "GET", f"{of_topic}/permissions", None, TOPIC) == missing
    assert status(strict, "PUT", of_topic, None, TOPIC) == 204
    assert status(strict, "POST", f"{of_topic}/permissions/r%2Fs", ["consume"], TOPIC) == 204
    assert call(strict, "GET", f"{of_topic}/permissions", None, TOPIC) == (200, {"r/s": ["consume"]})
    shown = call(strict, "GET", path)[1]["auth_policies"]
    assert shown["namespace_auth"] == {"r": ["produce"]}
    assert shown["destination_auth"] == {TOPIC: {"r/s": ["consume"]}}
    assert status(strict, "POST", f"{path}/permissions/r", ["fly"]) == 400
    assert status(strict, "POST", f"{of_topic}/permissions/r", "produce", TOPIC) == 400
    assert status(strict, "POST", f"{path}/permissions", ["produce"]) == 405
    assert status(strict, "POST", f"{path}/permissions/q", ["consume"]) == 204
    assert status(strict, "DELETE", f"{path}/permissions/r") == 204
    assert call(strict, "GET", f"{path}/permissions") == (200, {"q": ["consume"]})
    assert status(strict, "DELETE", f"{path}/permissions/q") == 204
    assert status(strict, "DELETE", f"{of_topic}/permissions/r%2Fs", None, TOPIC) == 204
    assert call(strict, "GET", f"{path}/permissions") == (200, {})
    assert call(strict, "GET", f"{of_topic}/permissions", None, TOPIC) == (200, {})


def test_a_subscription_is_deleted_on_all_topics_of_a_namespace(strict: Run) -> None:
    for topic in (TOPIC, f"{TOPIC}2"):
        for name in ("s", "other"):
            strict.do(
                Admin(method="PUT", path="/" + topic.replace("://", "/") + f"/subscription/{name}"), topic
            )
    path = "/namespaces/public/default"
    assert status(strict, "POST", f"{path}/unsubscribe/s") == 204
    assert [strict.broker.topic(topic).known_subscriptions() for topic in (TOPIC, f"{TOPIC}2")] == [
        ["other"]
    ] * 2
    assert status(strict, "POST", f"{path}/0x00000000_0xffffffff/unsubscribe/other") == 204
    assert strict.broker.topic(TOPIC).known_subscriptions() == []


def test_a_subscription_with_consumers_stays(strict: Run) -> None:
    strict.subscribe("s")
    assert reason(strict, "POST", "/namespaces/public/default/unsubscribe/s") == (
        412, "Subscription has active connected consumers",
    )  # fmt: skip
    assert strict.broker.topic(TOPIC).known_subscriptions() == ["s"]


# -- bundles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "count"),
    [(None, 4), ({}, 4), ({"bundles": {}}, 4), ({"bundles": {"numBundles": 0}}, 4), ({"bundles": {"numBundles": 1}}, 1)],
)  # fmt: skip
def test_a_namespace_gets_four_bundles_if_nobody_says_how_many(body: Any, count: int) -> None:
    run = Run(namespacesMustExist=True)
    assert status(run, "PUT", "/tenants/public", INFO) == 204
    assert status(run, "PUT", "/namespaces/public/n", body) == 204
    shown = call(run, "GET", "/namespaces/public/n/bundles")[1]
    assert shown["numBundles"] == count
    first = f"{shown['boundaries'][0]}_{shown['boundaries'][1]}"
    assert status(run, "PUT", f"/namespaces/public/n/{first}/unload") == 204
    assert status(run, "PUT", f"/namespaces/public/n/{first}/split") == 204
    assert call(run, "GET", "/namespaces/public/n/bundles")[1]["numBundles"] == count + 1
    assert status(run, "PUT", f"/namespaces/public/n/{first}/unload") == 412


def test_a_bundle_is_split_and_topics_belong_to_one(strict: Run) -> None:
    path, whole = "/namespaces/public/default", "0x00000000_0xffffffff"
    assert call(strict, "GET", f"{path}/bundles")[1]["numBundles"] == 1
    assert status(strict, "PUT", f"{path}/{whole}/unload") == 204
    assert status(strict, "POST", f"{path}/{whole}/clearBacklog/s") == 204
    half = "public/default/0x00000000_0x7fffffff"
    refused = f"Invalid upper boundary for bundle {half}. Expected upper boundary of public/default/{whole}"
    assert reason(strict, "PUT", f"/namespaces/{half}/unload") == (412, refused)
    assert status(strict, "PUT", f"{path}/{whole}/split") == 204
    assert call(strict, "GET", f"{path}/bundles") == (
        200, {"boundaries": ["0x00000000", "0x7fffffff", "0xffffffff"], "numBundles": 2},
    )  # fmt: skip
    halves = ["0x00000000_0x7fffffff", "0x7fffffff_0xffffffff"]
    strict.do(Admin(method="PUT", path=f"{AT}/subscription/s"), TOPIC)
    has_it = [bundles.contains(half, TOPIC) for half in halves]
    assert sorted(has_it) == [False, True]
    other = halves[has_it.index(False)]
    assert status(strict, "POST", f"{path}/{other}/unsubscribe/s") == 204
    assert strict.broker.topic(TOPIC).known_subscriptions() == ["s"]
    assert status(strict, "POST", f"{path}/{halves[has_it.index(True)]}/unsubscribe/s") == 204
    assert strict.broker.topic(TOPIC).known_subscriptions() == []
    assert reason(strict, "DELETE", f"{path}/nonsense") == (412, "Invalid bundle range: nonsense")
    assert status(strict, "DELETE", f"{path}/{other}") == 204
    assert call(strict, "GET", f"{path}/{other}/topicHashPositions") == (
        200, {"namespace": "public/default", "bundle": other, "topicHashPositions": {}},
    )  # fmt: skip
    assert reason(strict, "GET", f"{path}/{whole}/topicHashPositions") == (
        412,
        f"Invalid upper boundary for bundle public/default/{whole}. Expected upper boundary of public/default/{halves[0]}",
    )  # fmt: skip
    assert reason(strict, "GET", f"{path}/0x00000001_0x00000002/topicHashPositions") == (
        412, "Cannot find bundle public/default/0x00000001_0x00000002 in the bundles list",
    )  # fmt: skip


def test_a_bundle_is_split_at_positions(strict: Run) -> None:
    path, whole = "/namespaces/public/default", "0x00000000_0xffffffff"
    split = f"{path}/{whole}/split?splitAlgorithmName=specified_positions_divide"
    nothing: list[Any] = [None, []]
    for body in nothing:
        assert reason(strict, "PUT", split, body) == (
            412, "With specified_positions_divide split algorithm, splitBoundaries must not be empty",
        )  # fmt: skip
    assert status(strict, "PUT", split, [0, 0x20, 0x10, 0xFFFFFFFF]) == 204
    assert call(strict, "GET", f"{path}/bundles")[1]["boundaries"] == ["0x00000000", "0x00000010", "0x00000020", "0xffffffff"]  # fmt: skip


def test_a_namespace_may_be_said_to_be_migrated(strict: Run) -> None:
    path = "/namespaces/public/default"
    for migrated in (True, False):
        assert status(strict, "POST", f"{path}/migration", migrated) == 204
        assert call(strict, "GET", path)[1]["migrated"] is migrated
    assert reason(strict, "POST", "/namespaces/public/none/migration", True) == (
        404,
        "Namespace does not exist",
    )


def test_the_namespaces_of_an_anti_affinity_group(strict: Run) -> None:
    path = "/namespaces/standalone/antiAffinity/g"
    assert status(strict, "POST", "/namespaces/public/default/antiAffinity", "g") == 204
    assert call(strict, "GET", f"{path}?tenant=public") == (200, ["public/default"])
    assert call(strict, "GET", f"{path}?tenant=other") == (200, [])
    assert call(strict, "GET", "/namespaces/standalone/antiAffinity/h?tenant=public") == (200, [])
    assert reason(strict, "GET", path) == (400, "Tenant should not be null")
    assert reason(strict, "GET", "/namespaces/none/antiAffinity/g?tenant=public") == (
        412,
        "Cluster none does not exist.",
    )
    assert status(strict, "GET", "/namespaces/public/none/antiAffinity") == 204
    assert reason(strict, "GET", "/namespaces/public/none/persistence/bookieAffinity") == (
        404,
        "Namespace not found",
    )
    assert reason(strict, "GET", "/namespaces/public/none/replicatorDispatchRate") == (404, "Namespace policies does not exist")  # fmt: skip


def test_a_partition_that_is_not_there(strict: Run) -> None:
    path = "/persistent/public/default"
    assert status(strict, "PUT", f"{path}/p/partitions", 2, f"{TOPIC[:-1]}p") == 204
    for name, said in (
        ("p-partition-2", "Topic partitions were not yet created"),
        ("q-partition-2", f"Partitioned Topic not found: {TOPIC[:-1]}q-partition-2 has zero partitions"),
        ("q", f"Topic {TOPIC[:-1]}q not found"),
    ):
        assert reason(strict, "GET", f"{path}/{name}/stats", None, f"{TOPIC[:-1]}{name}") == (404, said)
    created = reason(strict, "PUT", f"{path}/p-partition-2", None, f"{TOPIC[:-1]}p-partition-2")
    assert "a number smaller than number of partition of partitioned topic p" in created[1]


def test_a_namespace_has_a_limited_number_of_bundles(strict: Run) -> None:
    path = "/namespaces/public/n"
    assert status(strict, "PUT", path, {"bundles": {"numBundles": 1024}}) == 204
    assert reason(strict, "PUT", f"{path}/0x00000000_0x00400000/split") == (
        412, "the bundle 0x00000000_0x00400000 can't be split",
    )  # fmt: skip
    assert call(strict, "GET", f"{path}/bundles")[1]["numBundles"] == 1024
    assert reason(strict, "PUT", "/namespaces/public/m", {"bundles": {"numBundles": bundles._MOST + 1}}) == (
        412, f"at most {bundles._MOST:,} bundles are supported",
    )  # fmt: skip
    assert status(strict, "GET", "/namespaces/public/m/bundles") == 404


# -- policies without effect ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "body", "unset"),
    [
        ("persistence", {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0.8}, None),
        ("persistence/bookieAffinity", {"bookkeeperAffinityGroupPrimary": "a"}, None),
        ("antiAffinity", "group", None),
        ("compactionThreshold", 100, None),
        ("dispatcherPauseOnAckStatePersistent", None, False),
        ("replicatorDispatchRate", {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": 0, "relativeToPublishRate": False, "ratePeriodInSecond": 0}, None),
        ("offloadDeletionLagMs", 1000, None),
        ("subscriptionAuthMode", "Prefix", "None"),
    ],
)  # fmt: skip
def test_a_policy_without_effect_is_kept(strict: Run, policy: str, body: Any, unset: Any) -> None:
    path = f"/namespaces/public/default/{policy}"
    shown = {"status": 200, "body": body if body is not None else True}
    assert call(strict, "GET", path)[1] in (unset, msgspec.UNSET)
    assert status(strict, "POST", path, body) == 204
    assert call(strict, "GET", path) == (shown["status"], shown["body"])
    strict.broker = Broker.decode(strict.broker.encode(), NoEntries())
    assert call(strict, "GET", path) == (shown["status"], shown["body"])
    assert status(strict, "DELETE", path) == 204
    assert call(strict, "GET", path)[1] in (unset, msgspec.UNSET)


@pytest.mark.parametrize(
    ("policy", "body", "expected"),
    [
        ("persistence", None, (400, "persistence policies should not be null")),
        ("persistence", {"bookkeeperEnsemble": 0}, (400, "Bookkeeper-Ensemble must be <= 5 and > 0.")),
        ("persistence", {"bookkeeperEnsemble": 1}, (400, "Bookkeeper Ensemble (1) >= WriteQuorum (2) >= AckQuorum (2)")),
        ("compactionThreshold", -1, (412, "compactionThreshold must be 0 or more")),
        ("replication", [], (412, "ClusterIds should not be null or empty")),
        ("replication", ["global"], (412, "Cannot specify global in the list of replication clusters")),
        ("replication", ["other"], (403, "Invalid cluster id: other")),
        ("allowedClusters", ["x"], (403, "Cluster [x] is not in the list of allowed clusters list for tenant [public]")),
        ("entryFilters", {"entryFilterNames": ""}, (400, "entryFilterNames can't be empty. To remove entry filters use the remove method.")),
        ("entryFilters", {"entryFilterNames": "x"}, (400, "Entry filter 'x' not found")),
        ("offloadPolicies", {"managedLedgerOffloadDriver": "x"}, (412, "The driver is not supported, support value: S3,aws-s3,google-cloud-storage,filesystem,azureblob,aliyun-oss")),
        ("offloadPolicies", {"managedLedgerOffloadDriver": "S3"}, (412, "The bucket must be specified for namespace offload.")),
        ("autoTopicCreation", {"allowAutoTopicCreation": True}, (412, "Invalid configuration for autoTopicCreationOverride. the detail is Unknown topic type [null]")),
        ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "partitioned"}, (412, "Invalid configuration for autoTopicCreationOverride. the detail is [defaultNumPartitions] cannot be null when the type is partitioned.")),
        ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0}, (412, "Invalid configuration for autoTopicCreationOverride. the detail is [defaultNumPartitions] cannot be less than 1 for partition type.")),
        ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 10_001}, (406, "Number of partitions should be less than or equal to 10000")),
        ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 1}, (412, "Invalid configuration for autoTopicCreationOverride. the detail is [defaultNumPartitions] is not allowed to be set when the type is non-partition.")),
        ("resourcegroup/none", None, (412, "ResourceGroup does not exist")),
        ("shadowTopics", ["a"], (501, "shadow topics are not supported")),
        ("entryFilters", {"entryFilterNames": "PropertyFilter"}, (501, "entry filters of a namespace or topic are not supported: use the setting entryFilterNames")),
        ("permissions/s/r", ["q"], (405, "POST of permissions is not allowed")),
        ("permissions/subscription", ["q"], (405, "POST of permissions is not allowed")),
    ],
)  # fmt: skip
def test_a_bad_policy_is_refused_as_pulsar_does(strict: Run, policy: str, body: Any, expected: Any) -> None:
    assert reason(strict, "POST", f"/namespaces/public/default/{policy}", body) == expected


def test_a_namespace_names_only_its_own_cluster(strict: Run) -> None:
    path = "/namespaces/public/default"
    for name, unset in (("replication", ["standalone"]), ("allowedClusters", [])):
        assert call(strict, "GET", f"{path}/{name}") == (200, unset)
        assert status(strict, "POST", f"{path}/{name}", ["standalone"]) == 200
        assert call(strict, "GET", f"{path}/{name}") == (200, ["standalone"])
    assert call(strict, "GET", path)[1]["allowed_clusters"] == ["standalone"]


def test_a_namespace_has_no_resource_group(strict: Run) -> None:
    path = "/namespaces/public/default/resourcegroup"
    assert status(strict, "PUT", "/resourcegroups/g", {"publishRateInMsgs": 5}) == 204
    assert reason(strict, "POST", f"{path}/g") == (
        501, "the resource group of a namespace is not supported: use publishRate and dispatchRate",
    )  # fmt: skip
    assert call(strict, "GET", path) == (200, msgspec.UNSET)
    assert status(strict, "DELETE", path) == 204


@pytest.mark.parametrize(
    ("driver", "bucket", "kind"),
    [
        ("S3", "s3ManagedLedgerOffloadBucket", "s3Driver"),
        ("google-cloud-storage", "gcsManagedLedgerOffloadBucket", "gcsDriver"),
        ("azureblob", "managedLedgerOffloadBucket", None),
        ("filesystem", None, "fileSystemDriver"),
    ],
)
def test_offload_policies_tell_the_kind_of_their_driver(
    strict: Run, driver: str, bucket: str | None, kind: str | None
) -> None:
    path = "/namespaces/public/default/offloadPolicies"
    given: dict[str, Any] = {"managedLedgerOffloadDriver": driver, "offloadersDirectory": None}
    if bucket is not None:
        given[bucket] = "b"
    assert status(strict, "POST", path, given) == 204
    shown = call(strict, "GET", path)[1]
    assert shown["managedLedgerOffloadDriver"] == driver
    assert shown["offloadersDirectory"] == "./offloaders"
    kinds = ("s3Driver", "gcsDriver", "fileSystemDriver")
    assert {name: shown[name] for name in kinds} == {name: name == kind for name in kinds}
    assert bucket is None or shown[bucket] == "b"


def test_offload_policies_are_one_object(strict: Run) -> None:
    path = "/namespaces/public/default"
    assert call(strict, "GET", f"{path}/offloadThreshold") == (200, -1)
    assert status(strict, "PUT", f"{path}/offloadThreshold", 100) == 204
    assert status(strict, "PUT", f"{path}/offloadThresholdInSeconds", 60) == 204
    shown = call(strict, "GET", f"{path}/offloadPolicies")[1]
    assert shown["managedLedgerOffloadThresholdInBytes"] == 100
    assert shown["managedLedgerOffloadThresholdInSeconds"] == 60
    assert status(strict, "DELETE", f"{path}/offloadThreshold") == 204
    assert call(strict, "GET", f"{path}/offloadThreshold") == (200, -1)
    assert call(strict, "GET", f"{path}/offloadThresholdInSeconds") == (200, 60)
    assert status(strict, "DELETE", f"{path}/removeOffloadPolicies") == 204
    assert call(strict, "GET", f"{path}/offloadThresholdInSeconds") == (200, -1)
    assert call(strict, "GET", f"{path}/offloadThreshold") == (200, -1)


def test_properties_of_a_namespace(strict: Run) -> None:
    path = "/namespaces/public/default"
    assert call(strict, "GET", f"{path}/properties") == (200, {})
    assert status(strict, "PUT", f"{path}/properties", {"a": "b"}) == 204
    assert status(strict, "PUT", f"{path}/property/k/v%2Fw") == 204
    assert call(strict, "GET", f"{path}/properties") == (200, {"a": "b", "k": "v/w"})
    assert call(strict, "GET", f"{path}/property/a") == (200, "b")
    assert call(strict, "DELETE", f"{path}/property/a") == (200, "b")
    assert call(strict, "GET", path)[1]["properties"] == {"k": "v/w"}
    assert status(strict, "DELETE", f"{path}/properties") == 204
    assert call(strict, "GET", f"{path}/properties") == (200, {})


def test_permissions_of_subscriptions(strict: Run) -> None:
    path = "/namespaces/public/default/permissions"
    assert call(strict, "GET", f"{path}/subscription") == (200, {})
    assert status(strict, "POST", f"{path}/subscription/s", ["r", "q"]) == 204
    assert call(strict, "GET", f"{path}/subscription") == (200, {"s": ["q", "r"]})
    assert status(strict, "DELETE", f"{path}/s/r") == 204
    assert call(strict, "GET", f"{path}/subscription") == (200, {"s": ["q"]})
    assert status(strict, "DELETE", f"{path}/s/q") == 204  # the last one takes the subscription with it
    assert call(strict, "GET", f"{path}/subscription") == (200, {})
    assert status(strict, "DELETE", f"{path}/s/q") == 500


# -- what use creates -------------------------------------------------------------------------------------------------


def test_a_namespace_decides_what_use_creates(strict: Run) -> None:
    path = "/namespaces/public/default/autoTopicCreation"
    ask = PartitionedMetadata(connection="c", request_id=1)
    assert status(strict, "POST", path, {"allowAutoTopicCreation": False}) == 204
    assert one(strict.do(ask), PartitionedMetadataResponse).error == "TopicNotFound"
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    assert status(strict, "POST", path, override) == 204
    assert one(strict.do(ask), PartitionedMetadataResponse).fields.partitions == 3
    assert strict.broker.partitioned == {TOPIC: 3}
    assert status(strict, "DELETE", path) == 204
    assert call(strict, "GET", path)[1] is msgspec.UNSET


def test_a_namespace_and_a_topic_decide_whether_subscribe_creates(strict: Run) -> None:
    refused, allowed = ({"allowAutoSubscriptionCreation": value} for value in (False, True))
    assert status(strict, "POST", "/namespaces/public/default/autoSubscriptionCreation", refused) == 204
    strict.do(Admin(method="PUT", path=AT), TOPIC)
    request = Subscribe(connection="c", consumer_id=1, request_id=2, subscription="s", subType="Exclusive")
    assert one(strict.do(request), Error).error == "SubscriptionNotFound"
    assert status(strict, "POST", f"{AT}/autoSubscriptionCreation", allowed, TOPIC) == 204
    assert one(strict.do(request), Success)
    assert status(strict, "DELETE", f"{AT}/policies", None, TOPIC) == 204
    assert one(strict.do(msgspec.structs.replace(request, subscription="t", consumer_id=2)), Error)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("maxConsumersPerTopic", "maxConsumersPerTopic must be 0 or more"),
        ("maxTopicsPerNamespace", "maxTopicsPerNamespace must be 0 or more"),
        ("subscriptionExpirationTime", "Invalid value for subscription expiration time"),
        ("deduplicationSnapshotInterval", "interval must be greater than or equal to 0"),
    ],
)
def test_policies_that_are_not_negative(strict: Run, policy: str, expected: str) -> None:
    path = f"/namespaces/public/default/{policy}"
    assert reason(strict, "POST", path, -1) == (412, expected)
    assert status(strict, "POST", path, 0) == 204


# -- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_is_created_once(strict: Run) -> None:
    path = "/persistent/public/default/t"
    assert status(strict, "PUT", path, {"a": "b"}, TOPIC) == 204
    assert call(strict, "GET", f"{path}/properties", None, TOPIC) == (200, {"a": "b"})
    assert reason(strict, "PUT", path, None, TOPIC) == (409, "This topic already exists")
    assert status(strict, "GET", path, None, TOPIC) == 405
    other = "non-persistent://public/default/t"
    assert status(strict, "PUT", "/non-persistent/public/default/t", None, other) == 204
    assert call(strict, "GET", "/non-persistent/public/default/t/subscriptions", None, other) == (200, [])
    assert strict.broker.topic_names() == [other, TOPIC]


def test_a_topic_is_created_also_if_clients_create_none() -> None:
    run = Run(allowAutoTopicCreation=False)
    assert status(run, "PUT", "/persistent/public/default/t", None, TOPIC) == 204
    assert one(run.create_producer(), ProducerSuccess)


def test_a_topic_is_not_created_as_a_partition(strict: Run) -> None:
    topic = f"{TOPIC}-partition-0"
    path = "/persistent/public/default/t-partition-0"
    found, why = reason(strict, "PUT", path, None, topic)
    assert found == 412
    assert why.startswith("Can't create topic t-partition-0")
    assert status(strict, "PUT", "/persistent/public/default/t/partitions", 1) == 204
    assert status(strict, "PUT", path, None, topic) == 409
    assert status(strict, "PUT", "/persistent/public/default/t", None, TOPIC) == 409


def test_policies_do_not_create_a_topic(strict: Run) -> None:
    path = "/persistent/public/default/t"
    for method in ("GET", "POST", "DELETE"):
        refused = reason(strict, method, f"{path}/messageTTL", 3 if method == "POST" else None, TOPIC)
        assert refused == (404, f"Topic {TOPIC} not found")
    assert status(strict, "PUT", f"{path}/subscription/s", None, TOPIC) == 204
    assert status(strict, "POST", f"{path}/messageTTL", 3, TOPIC) == 204


def test_a_partition_exists_before_it_is_used(strict: Run) -> None:
    body = {"partitions": 2, "properties": {"a": "b"}}
    assert status(strict, "PUT", "/persistent/public/default/p/partitions", body) == 204
    found = {"partitions": 2, "deleted": False, "properties": {"a": "b"}}
    assert call(strict, "GET", "/persistent/public/default/p/partitions") == (200, found)
    name = "persistent://public/default/p-partition-"
    for index, expected in (("1", 200), ("2", 404), ("01", 404), ("x", 404)):
        path = f"/persistent/public/default/p-partition-{index}/stats"
        assert status(strict, "GET", path, None, name + index) == expected
    deleted = "/persistent/public/default/p-partition-0"
    assert status(strict, "DELETE", deleted, None, f"{name}0") == 204
    assert status(strict, "GET", f"{deleted}/stats", None, f"{name}0") == 404


@pytest.mark.parametrize("body", [None, "x", True, {"partitions": "x"}, [3]])
def test_what_is_not_a_number_of_partitions(strict: Run, body: Any) -> None:
    assert status(strict, "PUT", "/persistent/public/default/p/partitions", body) == 400


def test_tenants_and_permissions_are_state(strict: Run) -> None:
    status(strict, "POST", "/namespaces/public/default/permissions/r", ["produce"])
    strict.broker = Broker.decode(strict.broker.encode(), NoEntries())
    assert call(strict, "GET", "/tenants/public") == (200, INFO)
    assert call(strict, "GET", "/namespaces/public/default/permissions") == (200, {"r": ["produce"]})


def test_other_calls_are_unsupported(strict: Run) -> None:
    effects: list[Effect] = strict.do(Admin(method="GET", path="/namespaces/public/default/nonsense"), None)
    assert of(effects, Unsupported)
    assert one(effects, AdminResponse).fields.status == 404


def test_the_topics_of_a_bundle(strict: Run) -> None:
    """4.0.7: `?bundle=…` lists those that are in it."""
    status(strict, "PUT", "/namespaces/public/n")
    topics = [f"persistent://public/n/{name}" for name in ("zz", "a")]
    for topic in topics:
        assert status(strict, "PUT", f"/{topic.replace('://', '/')}", None, topic) == 204
    halves = ["0x00000000_0x7fffffff", "0x7fffffff_0xffffffff"]
    boundaries = ["0x00000000", "0x7fffffff", "0xffffffff"]
    for topic, bundle in zip(topics, halves, strict=True):
        assert bundles.of_topic(topic, boundaries) == bundle
        assert call(strict, "GET", f"/persistent/public/n?bundle={bundle}") == (200, [topic])
    assert call(strict, "GET", "/persistent/public/n?bundle=x") == (200, [])


@pytest.mark.parametrize("unload", [False, True])
def test_a_split_may_unload_the_topics_of_the_bundle(strict: Run, unload: bool) -> None:
    path = "/namespaces/public/default"
    strict.do(Admin(method="PUT", path=f"{AT}/subscription/s"), TOPIC)
    assert status(strict, "PUT", f"{path}/{bundles.WHOLE}/split") == 204
    for half in ("0x00000000_0x7fffffff", "0x7fffffff_0xffffffff"):
        split = Admin(method="PUT", path=f"{path}/{half}/split?unload={str(unload).lower()}")
        found = of(strict.do(split, None), TopicEvent)
        assert [each.topic for each in found] == [TOPIC] * (unload and bundles.contains(half, TOPIC))


def test_how_a_bundle_is_split(strict: Run) -> None:
    """4.0.7 knows four algorithms; with one broker, all of them split in the middle here."""
    status(strict, "PUT", "/namespaces/public/n")
    path = f"/namespaces/public/n/{bundles.WHOLE}/split?splitAlgorithmName="
    assert reason(strict, "PUT", f"{path}x")[0] == 412
    assert status(strict, "PUT", f"{path}topic_count_equally_divide") == 204


def test_too_many_bundles() -> None:
    with pytest.raises(AdminError, match="at most 1,024 bundles are supported"):
        bundles.create_with(Policies(), bundles.boundaries(1025))


def test_without_a_time_nothing_is_checked() -> None:
    broker = Broker(0, NoEntries())
    feed(broker, 0, 0, TOPIC, to_json(Publish(producer="p", sequence_id=0)))
    assert broker.changed_settings == []
    assert broker.retention(TOPIC).unchecked == "no record has a time yet"


def test_bundles_of_one_size() -> None:
    assert bundles.boundaries(4) == ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]


def test_passwords_stay_out_of_policies() -> None:
    policies = {"message_ttl_in_seconds": 5, "topicPolicies": {"a": "b"}}
    assert without_secrets(policies) == {
        key: each for key, each in policies.items() if key in without_secrets(policies)
    }
    assert "message_ttl_in_seconds" in without_secrets(policies)
    assert without_secrets(None) is None
    assert without_secrets("text") == "text"


def test_the_properties_of_a_namespace_whose_tenant_is_missing(strict: Run) -> None:
    path = "/namespaces/nobody/here/properties"
    assert reason(strict, "PUT", path, {"a": "b"}) == (404, "Tenant does not exist")
    assert reason(strict, "GET", path) == (404, "Namespace does not exist")
