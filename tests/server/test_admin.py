"""The admin REST API: each call as a real Pulsar 4.0.7 answered it, and what is said of errors."""

import asyncio
import base64
import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import (
    AnyCommand,
    CloseProducer,
    EncryptionKeys,
    KeyValue,
    MessageMetadata,
    PartitionedMetadata,
    Producer,
    Publish,
    decode_or_refuse,
    to_json,
)
from schemas.effects import AdminResponse, ProducerSuccess, Row
from schemas.entries import EntryNotFound
from streaming.broker.admin_calls import CALLS
from streaming.broker.admin_table import Call
from streaming.broker.config import PROFILE_OF, profile_of, stand_in
from streaming.broker.policies.admin_calls import POLICY_CALLS
from streaming.broker.producer.message_size import broker_entry_metadata_size
from streaming.protocol.admin_calls import headers
from streaming.protocol.frames import MOST_UNCOMPRESSED
from streaming.server.admin import application, merging, topics_of_bundles, transactions
from streaming.server.admin.absent import ABSENT, UNSUPPORTED
from streaming.server.admin.application import BESIDE, OPENAPI, OWN, _Api
from streaming.server.clients import Clients
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.engine import StoredEntry
from streaming.server.server import Address, ListenError, Server, advertisable, bound
from streaming.traces import RECORDED
from streaming.traces.session import Session
from streaming.traces.trace import read_trace
from tests.examples import examples
from tests.server.rest import PATH, TOPIC, Answer, Api, on_api

pytestmark = pytest.mark.feature("I7")

CONVERSATION = Path(__file__).with_name("conversation.jsonl")
"""Calls to a Pulsar 4.0.7, in order, with its status and, where it is the same on every broker, its response. `ours`: the
status that Magnetar answers instead, and `why`."""


ONE_BUNDLE: dict[str, Any] = {"defaultNumberOfNamespaceBundles": 1}
"""As the broker had that was recorded."""


def test_a_conversation_with_a_real_broker() -> None:
    async def replay(api: Api) -> list[str]:
        differences = []
        for number, line in enumerate(CONVERSATION.read_text().splitlines(), 1):
            said = json.loads(line)
            if "publish" in said:
                await api.publish(said["publish"])
                continue
            answer = await api.call(said["method"], said["path"], said.get("body"))
            expected = said.get("ours", said["status"])
            if answer.status != expected:
                differences.append(f"{number}: {line}: {answer.status} {answer.body}")
            if (
                "response" in said
                and "ours" not in said
                and _ordered(answer.body) != _ordered(said["response"])
            ):
                differences.append(f"{number}: {line}: {answer.body}")
        return differences

    assert (
        on_api(replay, schemaCompatibilityStrategy="FULL", forceDeleteNamespaceAllowed=True, **ONE_BUNDLE)
        == []
    )


def _ordered(body: Any) -> Any:
    return sorted(body) if isinstance(body, list) else body


def test_texts_are_bare_as_pulsar_admin_sends_and_reads_them() -> None:
    async def work(api: Api) -> None:
        group, property_ = "/namespaces/public/n/antiAffinity", "/namespaces/public/n/property/a"
        quoted: list[tuple[bytes, Any]] = [
            (b'"east"', "east"),
            (b' "e w" ', "e w"),
        ]  # JSON, since the quotes are there
        for raw, shown in [(b"east", b"east"), (b'"', b'"'), *quoted]:
            assert (await api.call("POST", group, raw=raw)).status == 204
            found = await api.call("GET", group)
            assert (found.status, found.body, found.headers["content-type"]) == (
                200,
                shown,
                "text/plain; charset=utf-8",
            )
        assert (await api.call("POST", group, raw=b"\xff")).status == 400
        empty = await api.call("POST", group)
        assert (empty.status, empty.reason) == (412, "antiAffinityGroup can't be empty")
        assert await api.status("PUT", f"{property_}/b") == 204
        assert (await api.call("GET", property_)).body == b"b"
        assert (await api.call("DELETE", property_)).body == b"b"

    on_api(work)


def test_a_snapshot_interval_is_removed_by_null() -> None:
    async def work(api: Api) -> None:
        path = "/namespaces/public/n/deduplicationSnapshotInterval"
        for raw in b"null", b"":
            assert await api.status("POST", path, 10) == 204
            assert (await api.call("GET", path)).body == 10
            assert (await api.call("POST", path, raw=raw)).status == 204
            assert (await api.call("GET", path)).body is None

    on_api(work)


@pytest.mark.parametrize("what", ["compaction", "offload"])
def test_what_never_ran_on_a_topic_that_is_not_there(what: str) -> None:
    async def work(api: Api) -> None:
        assert await api.status("GET", f"{PATH}/{what}") == 404
        assert await api.status("PUT", PATH) == 204
        found = await api.call("GET", f"{PATH}/{what}")
        assert (found.status, found.body["status"]) == (200, "NOT_RUN")
        assert (await api.call("GET", f"{PATH}/shadowTopics")).body == []

    on_api(work)


def test_options_are_the_methods_of_a_path() -> None:
    async def work(api: Api) -> None:
        for path, allowed in [
            ("/namespaces/public/n", "DELETE, GET, HEAD, OPTIONS, PUT"),
            (f"{PATH}/stats", "GET, HEAD, OPTIONS"),
            ("/clusters/a", "DELETE, GET, HEAD, OPTIONS, POST, PUT"),
        ]:
            found = await api.call("OPTIONS", path)
            assert (found.status, found.headers["allow"]) == (200, allowed)
        assert await api.status("OPTIONS", "/nothing") == 404
        assert await api.status("PUT", f"{PATH}/stats") == 405

    on_api(work)


# -- what is in the list ----------------------------------------------------------------------------------------------


def test_the_routes_are_those_of_the_table_and_the_servers_own() -> None:
    """Each call of the broker is a route, and each route is listed."""

    engine: Any = None  # no call is made
    found = {
        (method, route.path)
        for route in _Api(engine, str, "http://h", Clients(), False).routes()
        for method in route.methods or ()
        if method != "HEAD"
    }
    below = [*CALLS, *OWN, *(Call(method, path, None) for path in UNSUPPORTED for method in METHODS)]
    listed = {
        (call.method, "/admin/v2" + call.path.replace("{domain}", domain))
        for call in below
        for domain in (("persistent", "non-persistent") if call.path.startswith("/{domain}/") else ("",))
    }
    listed |= {(call.method, call.path) for call in BESIDE} | {("GET", f"/admin/v2{OPENAPI}")}
    listed |= {(method, path) for path in (*ABSENT, transactions.PATH) for method in METHODS}
    assert found == listed


def test_connectors_that_are_turned_off_are_refused_on_the_paths_that_pulsar_has() -> None:
    async def work(api: Api) -> None:
        off = "Pulsar Function Worker is not enabled, probably functionsWorkerEnabled is set to false"
        for path in (
            "sinks/public/default",
            "sinks/public/default/x",
            "sinks/builtinsinks",
            "sink/builtinsinks",
            "source/reloadBuiltInSources",
            "functions/connectors",
        ):
            answer = await api.call("GET", f"/admin/v3/{path}")
            assert (answer.status, answer.reason) == (409, off)
        for path in ("sinks", "sinks/x", "sources/x", "functions/x"):
            assert await api.status("GET", f"/admin/v3/{path}") == 404

    on_api(work)


METHODS = ("GET", "PUT", "POST", "DELETE")


def test_no_call_has_two_rows() -> None:
    rows = [call[:2] for call in CALLS]
    assert [row for row in rows if rows.count(row) > 1] == []
    bundle = "/namespaces/{tenant}/{namespace}/{bundle}"
    overridden = {
        ("GET", "/clusters/{cluster}"),  # the server adds its own addresses
        ("PUT", f"{bundle}/split"), ("GET", f"{bundle}/topicHashPositions"),  # and all topics
    }  # fmt: skip
    assert {call[:2] for call in OWN}.intersection(rows) == overridden


def test_each_policy_has_a_call() -> None:
    names = {call.path.rpartition("/")[2] for call in CALLS}
    fields = {POLICY_CALLS[name][0] for name in names & POLICY_CALLS.keys()}
    assert fields == {field for field, _ in POLICY_CALLS.values()}


REFUSED = [
    ("POST", "/namespaces/{tenant}/{namespace}/resourcegroup/{group}"),
    ("POST", "/{domain}/{tenant}/{namespace}/{topic}/terminate/partitions"),  # of a topic without them
]


@pytest.mark.parametrize(
    "route",
    [call for call in (*CALLS, *OWN) if call[:2] not in REFUSED],
    ids=lambda call: f"{call.method} {call.path}",
)
def test_the_broker_knows_each_call_in_the_list(route: Any) -> None:
    async def ask(api: Api) -> Answer:
        await api.call("PUT", PATH)
        await api.call("PUT", f"{PATH}/subscription/s")
        await api.call("PUT", "/resourcegroups/g", {})
        await api.call("PUT", "/clusters/c", {"serviceUrl": "http://h:8080"})
        body = BODIES.get(route.path.rpartition("/")[2]) if route.method in ("PUT", "POST") else None
        return await api.call(route.method, _filled(route.path), body)

    answer = on_api(ask, missingAdminCalls="")
    assert answer.status not in (405, 501), answer
    if answer.status == 404:
        assert "not supported" not in answer.reason


def test_head_asks_what_get_asks() -> None:
    async def ask(api: Api) -> list[int]:
        await api.call("PUT", f"{PATH}/partitions", 2)
        paths = ("/clusters", "/clusters/standalone", "/tenants", f"{PATH}/partitions", f"{PATH}/partitioned-stats",
                 f"{PATH}/internal-info", "/namespaces/public/n/retention")  # fmt: skip
        return [await api.status("HEAD", path) for path in paths]

    assert set(on_api(ask)) == {200}


BODIES: dict[str, Any] = {
    "split": None, "properties": {}, "replication": ["standalone"], "allowedClusters": [], "offloadThreshold": 1,
    "schemaCompatibilityStrategy": "FULL", "schemaAutoUpdateCompatibilityStrategy": "Full", "offloadThresholdInSeconds": 1,
    "offloadDeletionLagMs": 1, "offloadPolicies": {"managedLedgerOffloadDriver": "filesystem"}, "compactionThreshold": 1,
    "subscriptionAuthMode": "None", "schemaValidationEnforced": True, "isAllowAutoUpdateSchema": True,
    "persistence": {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1},
}  # fmt: skip
"""Last element of a path → a body that its PUT and POST take, where that is not any body or none."""


def _filled(path: str) -> str:
    given_ = {
        "domain": "persistent", "tenant": "public", "namespace": "n", "topic": "t", "subscription": "s", "time": "0",
        "count": "1", "seconds": "1", "n": "1", "ledger": "1", "entry": "0", "role": "r", "version": "0",
        "bundle": "0x00000000_0xffffffff", "cluster": "c", "failure_domain": "d", "key": "k", "value": "v", "setting": "defaultNumPartitions",
        "group": "g", "policy": "p", "bookie": "b", "broker": "h", "allocator": "default",
    }  # fmt: skip
    return path.format(**given_)


# -- loud errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nonsense", 404),
        ("GET", "/persistent/public/n/t/nonsense", 404),
        ("GET", "/persistent/public", 404),
        ("POST", "/persistent/public/n/t/stats", 405),
        ("PATCH", "/persistent/public/n/t/stats", 405),
        ("PUT", "/persistent/public/n/t/compaction", 404),
        ("PUT", "/persistent/public/n/t/offload", 404),
        ("DELETE", "/clusters/standalone", 501),
        ("PATCH", "/clusters/other", 405),
        ("GET", "/clusters/other", 404),
        ("GET", "/persistent/public/n/t/subscription/s/position/x", 404),
        ("GET", "/persistent/public/n/%20/stats", 412),
    ],
)
def test_what_is_not_supported_says_so(method: str, path: str, status: int) -> None:
    answer = on_api(lambda api: api.call(method, path))
    assert answer.status == status
    assert answer.reason


@pytest.mark.parametrize(
    ("raw", "status"),
    [(b"{", 400), (b"\xff", 400), (b"[" * 1000, 400), (b" " * (1 << 20) + b"11", 413), (b"1e999", 400), (b"9" * 400, 400)],
)  # fmt: skip
def test_bad_bodies(raw: bytes, status: int) -> None:
    answer = on_api(lambda api: api.call("POST", "/namespaces/public/n/messageTTL", raw=raw))
    assert answer.status == status
    assert answer.reason


def test_an_engine_that_stopped_is_unavailable() -> None:
    async def stop(api: Api) -> Answer:
        await api.engine.__aexit__(None, None, None)
        return await api.call("GET", "/tenants")

    assert on_api(stop).status == 503


# -- calls without state ----------------------------------------------------------------------------------------------


def test_the_cluster_and_its_broker() -> None:
    async def ask(api: Api) -> list[Any]:
        return [(await api.call("GET", path)).body for path in (
            "/clusters", "/clusters/standalone", "/clusters/standalone/failureDomains", "/brokers", "/brokers/standalone",
            "/brokers/leaderBroker", "/brokers/health", "/brokers/ready", "/brokers/version",
            "/brokers/configuration/values", "/brokers/backlog-quota-check",
        )]  # fmt: skip

    assert on_api(ask) == [
        ["standalone"],
        {
            "serviceUrl": "http://localhost:8080", "brokerServiceUrl": "pulsar://localhost:6650",
            "brokerClientTlsEnabled": False, "tlsAllowInsecureConnection": False,
        },
        {}, ["localhost:8080"], ["localhost:8080"],
        {"serviceUrl": "http://localhost:8080", "brokerId": "localhost:8080"},
        b"ok", b"ok", b"4.0.7", {}, None,
    ]  # fmt: skip


@pytest.mark.parametrize("profile", PROFILE_OF)
def test_the_version_is_one_of_the_profile(profile: str) -> None:
    """So what `magnetar record` writes down in front of a server is compared with the same rules."""
    version = on_api(lambda api: api.call("GET", "/brokers/version"), profile=profile).body.decode()
    assert profile_of(version) == PROFILE_OF["2.10" if profile == "2.x" else profile]
    assert stand_in(version) is None


def test_the_settings() -> None:
    found = on_api(
        lambda api: api.call("GET", "/brokers/configuration/runtime"), ttlDurationDefaultInSeconds=7
    ).body
    assert found["ttlDurationDefaultInSeconds"] == "7"
    assert found["brokerDeduplicationEnabled"] == "false"


def test_the_quota_check_runs() -> None:
    async def check(api: Api) -> list[int]:
        await api.call(
            "POST",
            "/namespaces/public/n/backlogQuota",
            {"limitSize": 1, "policy": "consumer_backlog_eviction"},
        )
        await api.call("PUT", f"{PATH}/subscription/s", {"ledgerId": -1, "entryId": -1})
        await api.publish(3)
        await api.call("GET", "/brokers/backlog-quota-check")
        stats = (await api.call("GET", f"{PATH}/stats")).body
        return [stats["subscriptions"]["s"]["msgBacklog"]]

    assert on_api(check) != [3]


def test_lookup() -> None:
    async def look(api: Api) -> list[Any]:
        return [(await api.call("GET", f"/lookup/v2/topic/{path}"))[:2] for path in (
            "persistent/public/n/t", "non-persistent/public/n/t", "persistent/public/n/t/bundle", "persistent/public/no/t",
            "bogus/public/n/t",
        )]  # fmt: skip

    url = "pulsar://localhost:6650"
    found = {"brokerUrl": url, "httpUrl": "http://localhost:8080", "nativeUrl": url, "brokerUrlSsl": ""}
    looked = on_api(look, **ONE_BUNDLE)
    assert looked[:4] == [
        (200, found), (200, found), (200, b"0x00000000_0xffffffff"), (404, {"reason": "Namespace not found"}),
    ]  # fmt: skip
    assert looked[4][0] == 404


def test_lookup_names_a_bundle_and_no_listener() -> None:
    """4.0.7: the bundle as namespaces were split, and 500 for a listener that it does not have."""

    async def look(api: Api) -> list[Any]:
        await api.call("PUT", "/namespaces/public/n/0x00000000_0xffffffff/split")
        return [(await api.call("GET", f"/lookup/v2/topic/persistent/public/n/{each}"))[:2] for each in (
            "zz/bundle", "a/bundle", "zz?listenerName=ext",
        )]  # fmt: skip

    assert on_api(look, **ONE_BUNDLE) == [
        (200, b"0x00000000_0x7fffffff"), (200, b"0x7fffffff_0xffffffff"),
        (500, {"reason": "the broker do not have ext listener"}),
    ]  # fmt: skip


def test_paths_of_pulsar_1() -> None:
    """4.0.7 still has ``/admin/persistent/TENANT/CLUSTER/NAMESPACE/TOPIC`` and the like."""

    async def ask(api: Api) -> list[tuple[int, Any]]:
        topics, namespace = "/admin/persistent/public/c/ns", "/admin/namespaces/public/c/ns"
        return [
            (await api.call(method, path, body))[:2]
            for method, path, body in (
                ("PUT", namespace, None), ("POST", f"{namespace}/messageTTL", 5), ("GET", f"{namespace}/messageTTL", None),
                ("PUT", f"{topics}/t", None), ("PUT", f"{topics}/t", None), ("PUT", f"{topics}/t/subscription/s", None),
                ("GET", f"{topics}/t/subscriptions", None), ("PUT", f"{topics}/p/partitions", 1),
                ("GET", f"{topics}/partitioned", None), ("GET", topics, None), ("GET", f"{namespace}/destinations", None),
                ("GET", "/admin/clusters", None), ("GET", "/admin/properties", None), ("GET", "/admin/namespaces/public", None),
                ("GET", "/lookup/v2/destination/persistent/public/c/ns/t/bundle", None), ("GET", "/admin/tenants", None),
            )
        ]  # fmt: skip

    t, p = (f"persistent://public/c/ns/{name}" for name in "tp")
    all_ = [f"{p}-partition-0", t]
    found = on_api(ask, **ONE_BUNDLE)
    assert found[:-1] == [
        (204, None), (204, None), (200, 5), (204, None), (409, {"reason": "This topic already exists"}), (204, None),
        (200, ["s"]), (204, None), (200, [p]), (200, all_), (200, all_), (200, ["standalone"]), (200, ["public"]),
        (200, ["public/c/ns", "public/n"]), (200, b"0x00000000_0xffffffff"),
    ]  # fmt: skip
    assert found[-1][0] == 404


def test_what_has_another_broker_or_algorithm_is_refused() -> None:
    """As 4.0.7 does."""

    async def ask(api: Api) -> list[int]:
        await api.call("PUT", PATH)
        await api.call("PUT", f"{PATH}/subscription/s")
        bundle, status = (
            "/namespaces/public/n/0x00000000_0xffffffff",
            f"{PATH}/subscription/s/replicatedSubscriptionStatus",
        )
        return [
            await api.status(method, path, body)
            for method, path, body in (
                ("PUT", f"{bundle}/unload?destinationBroker=x", None),
                ("PUT", f"{bundle}/unload?destinationBroker=localhost:8080", None),
                ("GET", "/brokers/health?brokerId=x", None),
                ("GET", "/brokers/health?brokerId=localhost:8080", None),
                ("PUT", f"{bundle}/split?splitAlgorithmName=x", None),
                ("PUT", f"{bundle}/split?splitAlgorithmName=range_equally_divide", None),
                ("GET", status.replace("/s/", "/none/"), None),
                ("POST", status, False),
                ("POST", status, True),
            )
        ]

    assert on_api(ask, **ONE_BUNDLE) == [409, 204, 404, 200, 412, 204, 404, 204, 204]


def test_bundles_are_split_by_their_topics() -> None:
    """As 4.0.7 does: not at all with fewer than two topics, and by the load of no bundle."""

    async def ask(api: Api) -> list[Any]:
        bundle = "/namespaces/public/m/0x80000000_0xffffffff"
        split = f"{bundle}/split?splitAlgorithmName="
        await api.call("PUT", "/namespaces/public/m", {"bundles": {"numBundles": 2}})
        found: list[Any] = []
        for topic in ("a", "b", "c", "d"):
            await api.call("PUT", f"/persistent/public/m/{topic}")
        found.append((await api.call("GET", f"{bundle}/topicHashPositions")).body["topicHashPositions"])
        only = f"{bundle}/topicHashPositions?topics=persistent://public/m/a&topics=persistent://public/m/b"
        found.append((await api.call("GET", only)).body["topicHashPositions"])
        for algorithm, body in (
            ("flow_or_qps_equally_divide", None), ("specified_positions_divide", None),
            ("specified_positions_divide", [0xF0000000]), ("topic_count_equally_divide", None),
        ):  # fmt: skip
            found.append(await api.status("PUT", f"{split}{algorithm}", body))
            found.append((await api.call("GET", "/namespaces/public/m/bundles")).body["boundaries"])
        found.append(await api.status("PUT", "/namespaces/public/m/LARGEST/split"))
        found.append((await api.call("GET", "/namespaces/public/m/bundles")).body["boundaries"])
        await api.call("PUT", "/non-persistent/public/m/u")
        found += [
            (await api.call("GET", f"/non-persistent/public/m/{first}_{last}")).body
            for first, last in pairwise(found[-1])
        ]
        return found

    hashes, asked, *statuses_and_boundaries = on_api(ask)
    assert hashes == {"persistent://public/m/a": 0xFE10E173, "persistent://public/m/d": 0x8E7A15FC}
    assert asked == {"persistent://public/m/a": 0xFE10E173}
    whole = ["0x00000000", "0x80000000", "0xffffffff"]
    at_position = ["0x00000000", "0x80000000", "0xf0000000", "0xffffffff"]
    assert statuses_and_boundaries[:6] == [204, whole, 412, whole, 204, at_position]
    # the bundle is another one now, and the largest one is split in the middle
    assert statuses_and_boundaries[6:10] == [
        412, at_position, 204, ["0x00000000", "0x40000000", "0x80000000", "0xf0000000", "0xffffffff"],
    ]  # fmt: skip
    in_bundles = statuses_and_boundaries[10:]
    assert sorted(name for names in in_bundles for name in names) == ["non-persistent://public/m/u"]


def test_bundles_are_split_in_the_middle_of_their_topics() -> None:
    topics = [f"persistent://public/m/{name}" for name in "abcd"]
    assert topics_of_bundles.split_at(topics, "topic_count_equally_divide", None) == [
        (0x6719B0C9 + 0x8E7A15FC) // 2
    ]
    assert topics_of_bundles.split_at(topics[:1], "topic_count_equally_divide", None) == []
    assert topics_of_bundles.are_positions([1, 2])
    odd: list[Any] = [None, 5, [], {}, "1", ["1"], [1, None], [True], {"1": 2}]
    assert not any(map(topics_of_bundles.are_positions, odd))


def test_what_isolation_policies_give_to_a_broker() -> None:
    path = "/clusters/standalone/namespaceIsolationPolicies"

    def policy(primary: str, secondary: str) -> Any:
        return {"namespaces": ["a/.*"], "primary": [primary], "secondary": [secondary], "auto_failover_policy": {"policy_type": "min_available"}}  # fmt: skip

    async def ask(api: Api) -> list[Answer]:
        found = [await api.call("GET", f"{path}/brokers"), await api.call("GET", f"{path}/brokers/b:1")]
        await api.call("POST", f"{path}/p", policy("localhost.*", "b:1"))
        await api.call("POST", f"{path}/q", policy("[", "x"))
        return [*found, *[await api.call("GET", f"{path}/brokers{name}") for name in ("", "/b:1", "/c:1")]]

    none, also_none, all_, secondary, other = on_api(ask)
    for answer in (none, also_none):
        assert answer[:2] == (
            404,
            {"reason": "NamespaceIsolationPolicies for cluster standalone does not exist"},
        )
    of_ours = {"brokerName": "localhost:8080", "namespaceRegex": ["a/.*"], "primary": True, "policyName": "p"}
    assert all_[:2] == (200, [of_ours])
    assert secondary.body == of_ours | {"brokerName": "b:1", "primary": False}
    assert other.body == {"brokerName": "c:1", "namespaceRegex": [], "primary": False}


def test_topics_of_a_bundle() -> None:
    async def ask(api: Api) -> list[Any]:
        for name in ("zz", "a"):
            await api.call("PUT", f"/persistent/public/n/{name}")
        path = "/persistent/public/n?bundle="
        return [
            (await api.call("GET", path + bundle)).body
            for bundle in ("0x00000000_0x7fffffff", "0x7fffffff_0xffffffff", "x")
        ]

    assert on_api(ask) == [["persistent://public/n/zz"], ["persistent://public/n/a"], []]


def test_broker_stats() -> None:
    """By the names of 4.0.7. There is no JVM to say anything of."""

    async def ask(api: Api) -> dict[str, Answer]:
        await api.publish(3)
        await api.call("PUT", f"{PATH}/subscription/s", {"ledgerId": -1, "entryId": -1})
        await api.call("PUT", "/non-persistent/public/n/u")
        names = (
            "topics",
            "metrics",
            "load-report",
            "mbeans",
            "allocator-stats/default",
            "allocator-stats/none",
        )
        return {name: await api.call("GET", f"/broker-stats/{name}") for name in names}

    found = on_api(ask, **ONE_BUNDLE)
    bundle = found["topics"].body["public/n"]["0x00000000_0xffffffff"]
    assert list(bundle["non-persistent"]) == ["non-persistent://public/n/u"]
    topic = bundle["persistent"][TOPIC]
    assert (topic["msgInCount"], topic["producerCount"], topic["subscriptions"]["s"]["msgBacklog"]) == (
        3,
        1,
        3,
    )
    (of_namespace, of_broker) = found["metrics"].body
    assert of_namespace["dimensions"] == {"namespace": "public/n"}
    assert of_namespace["metrics"]["brk_msg_backlog"] == 3
    assert of_namespace["metrics"]["brk_no_of_subscriptions"] == 1
    assert of_broker["metrics"] == {"brk_active_connections": 0}
    assert found["load-report"].status == 204
    assert [each["dimensions"] for each in found["mbeans"].body] == [{"MBean": "magnetar:type=Server"}]
    assert found["allocator-stats/default"].body["directArenas"] == []
    assert found["allocator-stats/none"][:2] == (406, {"reason": "Invalid allocator name : none"})


# -- messages ---------------------------------------------------------------------------------------------------------


def test_a_message_has_its_metadata_in_headers() -> None:
    metadata: dict[str, Any] = {
        "properties": [KeyValue("a", "ü"), KeyValue("b", "two\nlines")], "partition_key": "k", "event_time": 1_500,
        "deliver_at_time": 10**14, "ordering_key": b"o", "num_messages_in_batch": 2, "partition_key_b64_encoded": True,
        "compression": "ZLIB", "uncompressed_size": 2, "publish_time": 1_795_352_570_590, "replicated_from": "c",
        "replicate_to": ["a", "b"], "marker_type": 3,
    }  # fmt: skip

    async def peek(api: Api) -> Answer:
        await api.call("PUT", PATH)
        await api.publish(1, payload=zlib.compress(b"m0"), **metadata)
        return await api.call("GET", f"{PATH}/examinemessage?initialPosition=earliest&messagePosition=1")

    answer = on_api(peek)
    assert answer.status == 200
    assert answer.body == b"m0"
    found = {
        name.removeprefix("x-pulsar-"): value for name, value in answer.headers.items() if "pulsar" in name
    }
    assert found == {
        "message-id": "1:0", "property": '{"a":"ü","b":"two\\nlines"}', "producer-name": "p",
        "sequence-id": "0", "publish-time": "2026-11-22T13:02:50.59Z", "is-encrypted": "false", "partition-key": "k",
        "partition-key-b64-encoded": "true", "event-time": "1970-01-01T00:00:01.5Z",
        "deliver-at-time": "5138-11-16T09:46:40Z", "base64-ordering-key": "bw==", "num-batch-message": "2",
        "compression": "ZLIB", "uncompressed-size": "2", "replicated-from": "c", "replicated-to": "a, b", "marker-type": "3",
        "batch-size": str(10 + len(zlib.compress(b"m0"))), "txn-uncommitted": "false",
    }  # fmt: skip


def test_further_headers_of_a_message() -> None:
    """As `PersistentTopicsBase.generateResponseWithEntry` of 4.0.7 has them; a batch of 78 bytes as a real one answered."""
    plain = MessageMetadata("p", 0, 0)
    assert headers(1, 2, plain, 78).keys() == {
        f"X-Pulsar-{name}"
        for name in ("Message-ID", "PROPERTY", "publish-time", "Is-Encrypted", "txn-uncommitted", "producer-name", "sequence-id")
    }  # fmt: skip
    pair = EncryptionKeys("k", b"v", [KeyValue("a", "b")])
    many = MessageMetadata(
        "p", 0, 0, num_messages_in_batch=3, num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=9, uuid="u",
        txnid_least_bits=1, txnid_most_bits=2, encryption_keys=[pair, EncryptionKeys("l", b"")],
    )  # fmt: skip
    found = headers(1, 2, many, 78)
    assert {name.removeprefix("X-Pulsar-"): value for name, value in found.items()} == {
        "Message-ID": "1:2", "PROPERTY": "{}", "publish-time": "1970-01-01T00:00:00Z", "Is-Encrypted": "true",
        "txn-uncommitted": "false", "producer-name": "p", "sequence-id": "0", "num-batch-message": "3", "batch-size": "88",
        "PROPERTY-TOTAL-CHUNKS": "2", "PROPERTY-CHUNK-ID": "0", "num-chunks-from-msg": "2", "chunk-id": "0",
        "total-chunk-msg-size": "9", "uuid": "u", "txnid-least-bits": "1", "txnid-most-bits": "2", "txn-aborted": "false",
        "Base64-encryption-keys": "CgFrEgF2GgYKAWESAWI=, CgFsEgA=",
    }  # fmt: skip
    timed = headers(1, 2, many, 78, 1_500)
    assert timed["X-Pulsar-Broker-Entry-METADATA-timestamp"] == "1970-01-01T00:00:01.5Z"
    assert timed["X-Pulsar-batch-size"] == str(88 + broker_entry_metadata_size(1_500))


def test_an_encrypted_payload_is_shown_as_it_is() -> None:
    keys = [EncryptionKeys("k", b"v")]

    async def peek(api: Api) -> Answer:
        await api.call("PUT", PATH)
        await api.publish(1, payload=b"secret", compression="ZLIB", uncompressed_size=9, encryption_keys=keys)
        return await api.call("GET", f"{PATH}/examinemessage")

    assert on_api(peek)[:2] == (200, b"secret")


@pytest.mark.parametrize(
    ("compression", "size", "payload"),
    [
        ("ZLIB", 2, zlib.compress(bytes(MOST_UNCOMPRESSED + 1))),
        ("ZLIB", 2**31 - 1, zlib.compress(b"x")),
        ("ZLIB", 1, b"x"),
        ("ZLIB", 2, zlib.compress(b"xy")[:-6]),
        ("LZ4", 2**31 - 1, b"x"),
        ("LZ4", 100, b"x"),
        ("ZSTD", 100, b"x"),
        ("SNAPPY", 1, b"x" * 100),
    ],
)
def test_a_payload_that_is_too_large_uncompressed_is_not_shown(
    compression: Literal["ZLIB", "LZ4", "ZSTD", "SNAPPY"], size: int, payload: bytes
) -> None:
    """A few kilobytes can become gigabytes. Damaged payloads get the same answer."""

    async def peek(api: Api) -> Answer:
        await api.call("PUT", PATH)
        await api.publish(1, payload=payload, compression=compression, uncompressed_size=size)
        return await api.call("GET", f"{PATH}/examinemessage?initialPosition=earliest&messagePosition=1")

    answer = on_api(peek)
    assert answer.status == 500
    assert b"the payload can't be uncompressed" in msgspec.json.encode(answer.body)


@pytest.mark.parametrize(
    "raw", [b'"\xff"', b"NaN", b"[" * 10_000, b"9" * 1_000_000], ids=["text", "NaN", "deep", "number"]
)
def test_a_body_that_is_not_json_is_refused(raw: bytes) -> None:
    async def post(api: Api) -> Answer:
        return await api.call("POST", "/namespaces/public/default/messageTTL", raw=raw)

    assert on_api(post).status == 400


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=10**17)
    assert headers(1, 2, metadata, 0)["X-Pulsar-publish-time"] == "100000000000000000"


# -- partitioned topics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("profile", "again", "second"), [("4.0", 204, ["only 0", "only 1", "s"]), ("2.10", 409, ["only 1", "s"])])  # fmt: skip
def test_new_partitions_have_the_subscriptions_of_the_first_one(
    profile: str, again: int, second: list[str]
) -> None:
    """As a real 4.0.7 and a real 2.10.5 do it."""

    async def ask(api: Api) -> Any:
        await api.call("PUT", f"{PATH}/partitions", 2)
        await api.call(
            "PUT", f"{PATH}/subscription/s", {"ledgerId": -1, "entryId": -1, "properties": {"a": "b"}}
        )
        for partition in range(2):
            await api.call("PUT", f"{PATH}-partition-{partition}/subscription/only%20{partition}")
        await api.publish(1, f"{TOPIC}-partition-1")
        assert await api.status("POST", f"{PATH}/partitions", 3) == 204
        await api.publish(2, f"{TOPIC}-partition-2")
        assert await api.status("POST", f"{PATH}/partitions", 3) == again
        stats = [(await api.call("GET", f"{PATH}-partition-{number}/stats")).body for number in range(3)]
        return [each["subscriptions"] for each in stats]

    first, old, new = on_api(ask, profile=profile)
    assert sorted(first) == ["only 0", "s"]
    assert sorted(old) == second
    assert {name: each["msgBacklog"] for name, each in new.items()} == {"only 0": 2, "s": 2}
    assert new["s"]["subscriptionProperties"] == {"a": "b"}


def test_too_many_subscriptions_for_new_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MOST_COPIED", 5)

    async def ask(api: Api) -> Any:
        await api.call("PUT", f"{PATH}/partitions", 2)
        await api.call("PUT", f"{PATH}/subscription/s")
        await api.call("PUT", f"{PATH}/subscription/t")
        answer = await api.call("POST", f"{PATH}/partitions", 3)
        return answer.status, answer.reason, (await api.call("GET", f"{PATH}/partitions")).body["partitions"]

    assert on_api(ask) == (412, "2 subscriptions on 3 partitions are more than 5: delete some", 2)


def test_a_client_with_transactions_is_told_that_there_is_no_coordinator() -> None:
    """It asks for the coordinators' topic, and says so if that has no partitions. Of a missing namespace it would say that."""

    async def ask() -> list[Any]:
        async with EmbeddedEngine(begins_with=STANDALONE, settings={"namespacesMustExist": True}) as engine:
            topic = "persistent://pulsar/system/transaction_coordinator_assign"
            asked = PartitionedMetadata(connection="c", request_id=1)
            return [row.effect for row in await engine.submit(topic, asked)]

    (answer,) = asyncio.run(ask())
    assert (answer.fields.partitions, answer.cause) == (0, None)


def test_a_partitioned_topic_sums_its_partitions() -> None:
    async def ask(api: Api) -> tuple[Any, ...]:
        assert await api.status("PUT", f"{PATH}/partitions", 2) == 204
        assert await api.status("PUT", f"{PATH}/subscription/s", {"ledgerId": -1, "entryId": -1}) == 204
        await api.publish(3, f"{TOPIC}-partition-0")
        await api.publish(2, f"{TOPIC}-partition-1")
        return (
            (await api.call("GET", f"{PATH}/partitioned-stats")).body,
            (await api.call("GET", f"{PATH}/partitioned-stats?perPartition=false")).body,
            (await api.call("GET", f"{PATH}/partitioned-internalStats")).body,
            (await api.call("GET", f"{PATH}/internal-info")).body,
            (await api.call("GET", f"{PATH}/subscriptions")).body,
            (await api.call("POST", f"{PATH}/terminate/partitions")).body,
        )

    stats, whole, internal, info, subscriptions, ended = on_api(ask)
    assert whole == stats | {"partitions": {}}
    assert stats["metadata"] == {"partitions": 2, "deleted": False}
    assert stats["msgInCounter"] == 5
    assert stats["subscriptions"]["s"]["msgBacklog"] == 5
    assert stats["partitions"][f"{TOPIC}-partition-1"]["msgInCounter"] == 2
    of_partition = stats["partitions"][f"{TOPIC}-partition-1"]
    assert [one["producerName"] for one in of_partition["publishers"]] == ["p"]
    # quirk: of producers at the same place of the partitions' lists, there is one without a name
    assert stats["publishers"] == [
        {"msgRateIn": 0.0, "msgThroughputIn": 0.0, "averageMsgSize": 0.0, "chunkedMessageRate": 0.0,
         "supportsPartialProducer": False},
    ]  # fmt: skip
    assert ("ownerBroker" in stats, "ownerBroker" in of_partition) == (False, True)
    assert internal["partitions"][f"{TOPIC}-partition-0"]["numberOfEntries"] == 3
    assert info["partitions"][f"{TOPIC}-partition-0"]["cursors"]["s"]["markDelete"] == {
        "ledgerId": 1,
        "entryId": -1,
    }
    assert subscriptions == ["s"]
    assert {index: position["entryId"] for index, position in ended.items()} == {"0": 2, "1": 1}


def test_names_may_have_encoded_slashes() -> None:
    async def ask(api: Api) -> tuple[int, Any]:
        assert await api.status("PUT", f"{PATH}/subscription/a%2Fb%3F") == 204
        return (await api.call("GET", f"{PATH}/subscriptions"))[:2]

    assert on_api(ask) == (200, ["a/b?"])


# -- recorded traces --------------------------------------------------------------------------------------------------


class _Engine:
    """The broker of a trace's session, as an engine."""

    def __init__(self, session: "_HttpSession") -> None:
        self._session = session

    async def submit(self, topic: str | None, command: AnyCommand | Publish) -> list[Row]:
        return self._session.submit(topic, command)

    async def partitions(self, topic: str) -> int:
        return self._session.broker.partitioned.get(topic, 0)

    def entry(self, topic: str, ledger_id: int, entry_id: int) -> StoredEntry:
        metadata, payload = self._session.stored(topic, ledger_id, entry_id)
        return StoredEntry(metadata, payload, 0)


class _HttpSession(Session):
    """Its recorded admin calls go through the REST API."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls = 0
        self._api = Api(_Engine(self))  # type: ignore[arg-type]
        self._record: dict[str, Any] = {}

    def submit(self, topic: str | None, command: AnyCommand | Publish) -> list[Row]:
        self._offset += 1
        value = to_json(command)
        self.broker.apply(self._offset, int(self._record["t"]), topic, decode_or_refuse(value), value)
        rows = self.broker.take()
        for row in rows:
            if not isinstance(row.effect, AdminResponse):
                self._take(row, self._record)
        return rows

    def stored(self, *position: Any) -> Any:
        if position not in self._stored:
            raise EntryNotFound(str(position))
        return self._stored[position]

    def _commands_of(self, record: dict[str, Any]) -> Any:
        if record["dir"] != "admin":
            yield from super()._commands_of(record)
            return
        self.calls, self._record = self.calls + 1, record
        (topic, path), *others = self._admin_topics(record["method"], record["path"])
        path, body = self._admin_ids(topic, path, record.get("body"))
        if others:
            path = record["path"]
        answer = asyncio.run(self._api.call(record["method"], path, body))
        if answer.status != record["status"]:
            self.differ(
                f"{record['method']} {path}: recorded {record['status']}, ours {answer.status} {answer.body}"
            )
        if answer.status >= 400:
            assert answer.reason
        elif isinstance(record.get("response"), list | dict) and not path.endswith(
            ("/stats", "/internalStats", "/terminate")
        ):
            found = self.normaliser.difference(topic or "", record["response"], answer.body)
            if found is not None:
                self.differ(f"{record['method']} {path}: {found}")


WITH_CALLS = sorted(
    file.stem for file in RECORDED.glob("*.jsonl") if file.read_text().count('"dir":"admin"') > 1
)


@pytest.mark.parametrize("name", WITH_CALLS)
def test_recorded_calls_through_the_api(name: str) -> None:
    session = _HttpSession(read_trace(RECORDED / f"{name}.jsonl"))
    for record, _ in session.run():
        if record is not None and record["dir"] == "note" and "step" in record:
            session.end_step(record["step"])
    assert session.calls
    assert [
        text for _, text in session.differences if text.startswith(("GET", "PUT", "POST", "DELETE"))
    ] == []


# -- anything at all --------------------------------------------------------------------------------------------------

_WORDS = st.sampled_from([
    "persistent", "non-persistent", "namespaces", "tenants", "schemas", "public", "n", "t", "t-partition-0", "p", "s", "stats",
    "subscription", "partitions", "0", "1", "-1", "99999999999999999999", "x", "%2F", "%00", "%FF", "..", "%20", "é", "schema",
    "messageTTL", "backlogQuota", "retention", "permissions", "unload", "position", "ledger", "entry", "skip", "terminate",
])  # fmt: skip
_PATHS = st.one_of(
    st.sampled_from([call.path for call in (*CALLS, *OWN)] + list(UNSUPPORTED)).flatmap(
        lambda path: st.builds(
            lambda names: "/".join(names.pop() if part.startswith("{") else part for part in path.split("/")),
            st.lists(_WORDS, min_size=6, max_size=6),
        )
    ),
    st.lists(_WORDS, max_size=8).map(lambda words: "/" + "/".join(words)),
)
_QUERIES = st.sampled_from(
    [
        "",
        "?",
        "?force=true",
        "?messageTTL=x",
        "?backlogQuotaType=y",
        "?%ff=%",
        "?initialPosition=latest&messagePosition=0",
    ]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["limitSize", "policy", "type", "schema", "ledgerId", "entryId", "partitions"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)
_BODIES = st.one_of(st.none(), _JSON.map(lambda value: json.dumps(value).encode()), st.binary(max_size=20))
_CALLS = st.lists(
    st.tuples(st.sampled_from(["GET", "PUT", "POST", "DELETE"]), _PATHS, _QUERIES, _BODIES), max_size=12
)


@pytest.mark.parametrize("path", ["/persistent", "/brokers", "/persistent/", "/lookup", "/schemas/public"])
def test_the_beginning_of_a_path_is_no_call(path: str) -> None:
    async def ask(api: Api) -> int:
        return (await api.call("DELETE", path)).status

    assert on_api(ask) in (404, 405)


@settings(max_examples=examples(60))
@given(_CALLS)
def test_every_call_is_answered(calls: list[tuple[str, str, str, bytes | None]]) -> None:
    """With a status that Pulsar's clients know, and a reason if it failed. The engine goes on."""

    async def ask(api: Api) -> None:
        await api.call("PUT", PATH)
        await api.call("PUT", "/persistent/public/n/p/partitions", 2)
        for method, path, query, body in calls:
            answer = await api.call(method, path + query, raw=body or b"")
            assert answer.status in (200, 202, 204, 400, 404, 405, 406, 409, 412, 422, 500, 501), (
                method,
                path,
                answer,
            )
            if answer.status >= 400:
                assert answer.reason
        assert await api.status("GET", "/tenants") == 200

    on_api(ask)


# -- sockets ----------------------------------------------------------------------------------------------------------


def test_a_server_has_both_protocols() -> None:
    async def run() -> None:
        here = Address("127.0.0.1", 0)
        engine = EmbeddedEngine()
        async with engine, Server(engine, bound(here, ""), admin_listener=bound(here, "")) as server:
            assert server.admin_url is not None
            async with httpx.AsyncClient(base_url=server.admin_url) as http:
                assert (await http.get("/admin/v2/clusters")).json() == ["standalone"]
                leader = (await http.get("/admin/v2/brokers/leaderBroker")).json()
                assert leader["serviceUrl"] == server.admin_url
                found = (await http.get("/lookup/v2/topic/persistent/public/default/t")).json()
                assert found["brokerUrl"] == server.service_url
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", int(server.admin_url.rpartition(":")[2]))

    asyncio.run(run())


def test_clients_are_told_the_advertised_host() -> None:
    async def run() -> None:
        here = Address("127.0.0.1", 0)
        engine, admin_listener = EmbeddedEngine(), bound(here, "")
        port = admin_listener.getsockname()[1]
        server = Server(engine, bound(here, ""), admin_listener=admin_listener, advertised="broker.example")
        async with engine, server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            found = (await http.get("/lookup/v2/topic/persistent/public/default/t")).json()
            assert found["brokerUrl"] == f"pulsar://broker.example:{server.address.port}"
            assert found["httpUrl"] == f"http://broker.example:{port}"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "announced"),
    [
        ("127.0.0.1", "localhost"), ("127.0.0.2", "127.0.0.2"), ("0.0.0.0", "localhost"),
        ("::", "localhost"), ("::1", "[::1]"),
    ],
)  # fmt: skip
def test_what_is_announced_reaches_the_server(host: str, announced: str) -> None:
    """localhost need not be ::1, as where /etc/hosts has only 127.0.0.1."""
    try:
        sockets = [bound(Address(host, 0), "") for _ in range(2)]
    except ListenError:
        pytest.skip(f"this machine does not have {host}")
    binary, admin = (each.getsockname()[1] for each in sockets)
    server = Server(EmbeddedEngine(), sockets[0], admin_listener=sockets[1])
    for each in sockets:
        each.close()
    assert (server.service_url, server.admin_url) == (
        f"pulsar://{announced}:{binary}",
        f"http://{announced}:{admin}",
    )


@pytest.mark.parametrize(
    ("given", "advertised"),
    [("broker-0.servers", "broker-0.servers"), ("192.0.2.7", "192.0.2.7"), ("::1", "::1")],
)
def test_hosts_that_can_be_advertised(given: str, advertised: str) -> None:
    assert advertisable(given) == advertised


@pytest.mark.parametrize("given", ["", "broker:6650", "http://broker", "-broker", "a b"])
def test_hosts_that_cannot(given: str) -> None:
    with pytest.raises(ListenError, match="without a port"):
        advertisable(given)


# -- messages through HTTP --------------------------------------------------------------------------------------------


async def _produced(api: Api, topic: str, body: Any) -> tuple[int, Any]:
    return (await api.call("POST", f"/topics/persistent/public/n/{topic}", body))[:2]


def _value_schema(type_: str, definition: bytes = b"") -> str:
    return json.dumps({"name": "", "type": type_, "schema": base64.b64encode(definition).decode()})


def test_messages_are_published_through_http() -> None:
    """As 4.0.7 does it: to a topic that is there, with a schema, which is STRING if none is named."""

    async def publish(api: Api) -> None:
        message = {"payload": "hello", "key": "k", "properties": {"a": "b"}, "eventTime": 5, "sequenceId": 1}
        refused = await _produced(api, "t", {"messages": [message]})
        assert refused == (500, {"reason": f"Fail to publish message: Topic {TOPIC} not found"})
        await api.call("PUT", PATH)
        await api.call("PUT", f"{PATH}/subscription/s")
        one = {"errorCode": 0, "schemaVersion": 0}
        assert await _produced(api, "t", {"messages": [message, {"payload": "x"}], "producerName": "rp"}) == (
            200,
            {
                "messagePublishResults": [{"messageId": "1:0:-1", **one}, {"messageId": "1:1:-1", **one}],
                "schemaVersion": 0,
            },
        )
        peeked = await api.call("GET", f"{PATH}/subscription/s/position/1")
        assert peeked.body == b"hello"
        assert (peeked.headers["X-Pulsar-producer-name"], peeked.headers["X-Pulsar-partition-key"]) == (
            "rp",
            "k",
        )
        schema = (await api.call("GET", "/schemas/public/n/t/schema")).body
        assert (schema["type"], schema["properties"]) == ("STRING", {"__charset": "UTF-8"})
        assert await _produced(api, "t", {"messages": []}) == (
            200,
            {"messagePublishResults": [], "schemaVersion": 0},
        )

    on_api(publish)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_no_producer_joins_a_topic_for_them(domain: str) -> None:
    """So a topic can have an exclusive producer, too, and can be deleted."""
    path = f"/{domain}/public/n/t"

    async def publish(api: Api) -> None:
        exclusive = Producer(
            connection="c", producer_id=1, request_id=1, producer_name="x", producer_access_mode="Exclusive"
        )
        await api.call("PUT", path)
        for names in [], ["x"]:
            if names:
                rows = await api.engine.submit(f"{domain}://public/n/t", exclusive)
                assert [type(row.effect) for row in rows] == [ProducerSuccess]
            _, found = (await api.call("POST", f"/topics{path}", {"messages": [{"payload": "x"}]}))[:2]
            assert [each["errorCode"] for each in found["messagePublishResults"]] == [0]
            publishers = (await api.call("GET", f"{path}/stats")).body["publishers"]
            assert [each["producerName"] for each in publishers] == names
        await api.engine.submit(
            f"{domain}://public/n/t", CloseProducer(connection="c", producer_id=1, request_id=2)
        )
        assert (await api.call("DELETE", path)).status == 204

    on_api(publish)


@pytest.mark.parametrize(
    ("schema", "payload", "stored"),
    [
        (_value_schema("INT32"), "5", b"\0\0\0\5"),
        (_value_schema("BOOLEAN"), "true", b"\1"),
        (_value_schema("DOUBLE"), "0", bytes(8)),
        (_value_schema("JSON", b'{"type":"record","name":"A","fields":[]}'), '{"x": 1}', {"x": 1}),
    ],
)
def test_payloads_are_encoded_by_their_schema(schema: str, payload: str, stored: Any) -> None:
    async def publish(api: Api) -> Any:
        await api.call("PUT", PATH)
        await api.call("PUT", f"{PATH}/subscription/s")
        await _produced(
            api, "t", {"valueSchema": schema, "messages": [{"payload": payload, "deliverAfterMs": 5}]}
        )
        return (await api.call("GET", f"{PATH}/subscription/s/position/1")).body

    assert on_api(publish) == stored


def test_messages_of_a_partitioned_topic_take_turns() -> None:
    async def publish(api: Api) -> list[Any]:
        await api.call("PUT", f"{PATH}/partitions", 2)
        both = await _produced(api, "t", {"messages": [{"payload": str(number)} for number in range(3)]})
        one = await _produced(api, "t/partitions/1", {"messages": [{"payload": "x"}]})
        none = await _produced(api, "t/partitions/9", {"messages": [{"payload": "x"}]})
        return [
            each["messageId"] for found in (both, one, none) for each in found[1]["messagePublishResults"]
        ]

    assert on_api(publish) == ["1:0:0", "1:0:1", "1:1:0", "1:1:1", "9"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400), ([], 400), (None, 400), ({"messages": [{"key": "k"}]}, 400),
        ({"messages": [{"payload": "x"}], "valueSchema": "no"}, 400),
        ({"messages": [{"payload": "x"}], "valueSchema": _value_schema("INT8")}, 400),
        ({"messages": [{"payload": "x"}], "valueSchema": _value_schema("AVRO", b'"int"')}, 400),
        ({"messages": [{"payload": "x"}], "valueSchema": _value_schema("STRING", b"x")}, 400),
        ({"messages": [{"payload": "x"}], "keySchema": _value_schema("STRING")}, 400),
        ({"messages": [{"payload": "5"}], "valueSchema": _value_schema("INT8")}, 500),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_published(body: Any, status: int) -> None:
    """The last: the topic has another schema."""

    async def publish(api: Api) -> Any:
        await api.call("PUT", PATH)
        await api.call("POST", "/schemas/public/n/t/schema", {"type": "STRING", "schema": ""})
        return await _produced(api, "t", body)

    found = on_api(publish, schemaCompatibilityStrategy="FULL")
    assert (found[0], bool(found[1]["reason"])) == (status, True)


_INT32 = {"type": "INT32", "schema": ""}


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("more", [{}, {"valueSchema": _value_schema("STRING")}, {"keySchema": "{"}])
def test_messages_may_name_a_version_of_the_schema(partitions: int, more: dict[str, Any]) -> None:
    """The topic gets no other schema, whatever else the request says of one."""

    async def publish(api: Api) -> None:
        await api.call("PUT", f"{PATH}/partitions" if partitions else PATH, partitions or None)
        one = f"{PATH}-partition-0" if partitions else PATH
        await api.call("PUT", f"{one}/subscription/s")
        await api.call("POST", "/schemas/public/n/t/schema", _INT32)
        status, found = await _produced(
            api, "t", {"schemaVersion": 0, "messages": [{"payload": "5"}], **more}
        )
        (result,) = found["messagePublishResults"]
        assert (status, found["schemaVersion"]) == (200, 0)
        assert (result["errorCode"], result["schemaVersion"]) == (0, 0)
        assert (await api.call("GET", f"{one}/subscription/s/position/1")).body == b"\0\0\0\5"
        all_ = (await api.call("GET", "/schemas/public/n/t/schemas")).body["getSchemaResponses"]
        assert [each["type"] for each in all_] == ["INT32"]

    on_api(publish)


@pytest.mark.parametrize("version", [1, -2, 7, 10**14, 10**18, 2**70, "3"])
def test_messages_of_a_version_that_the_schema_has_not(version: int | str) -> None:
    """500, as 4.0.7 answers."""

    async def publish(api: Api) -> None:
        await api.call("PUT", PATH)
        for _ in range(2):  # without a schema, and with one
            assert await _produced(api, "t", {"schemaVersion": version, "messages": [{"payload": "5"}]}) == (
                500,
                {"reason": f"Fail to publish message: {TOPIC} has no schema of version {version}"},
            )
            await api.call("POST", "/schemas/public/n/t/schema", _INT32)
        assert (await api.call("GET", f"{PATH}/internalStats")).body["numberOfEntries"] == 0

    on_api(publish)


def test_messages_of_a_version_whose_payloads_cannot_be_encoded() -> None:
    async def publish(api: Api) -> list[int]:
        await api.call("PUT", PATH)
        await api.call("POST", "/schemas/public/n/t/schema", {"type": "BYTES", "schema": ""})
        await api.call("POST", "/schemas/public/n/t/schema", _INT32)
        bodies = [{"schemaVersion": 0, "messages": [{"payload": each}]} for each in ("5", "x")]
        return [(await _produced(api, "t", body))[0] for body in bodies]

    assert on_api(publish) == [400, 400]


@pytest.mark.parametrize("index", [0, 7, 999_999_999])
def test_a_topic_without_partitions_has_no_messages_for_one(index: int) -> None:
    async def publish(api: Api) -> None:
        await api.call("PUT", PATH)
        status, found = await _produced(api, f"t/partitions/{index}", {"messages": [{"payload": "x"}]})
        (result,) = found["messagePublishResults"]
        assert (status, result["errorCode"], result["messageId"]) == (200, 2, str(index))
        assert result["errorMsg"] == f"Topic {TOPIC}-partition-{index} not found"
        assert (await api.call("GET", f"{PATH}/internalStats")).body["numberOfEntries"] == 0
        assert (await api.call("GET", "/persistent/public/n")).body == [TOPIC]

    on_api(publish)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_partitioned_topic_has_messages_in_its_partitions_alone(index: int) -> None:
    async def publish(api: Api) -> None:
        await api.call("PUT", f"{PATH}/partitions", 2)
        before = (await api.call("GET", "/persistent/public/n")).body
        status, found = await _produced(api, f"t/partitions/{index}", {"messages": [{"payload": "x"}]})
        assert (status, found["messagePublishResults"][0]["errorCode"]) == (200, 2)
        assert (await api.call("GET", "/persistent/public/n")).body == before

    on_api(publish)


def test_a_partition_has_no_partitions() -> None:
    async def publish(api: Api) -> tuple[int, Any]:
        await api.call("PUT", f"{PATH}/partitions", 2)
        return await _produced(api, "t-partition-0/partitions/0", {"messages": [{"payload": "x"}]})

    assert on_api(publish) == (400, {"reason": "Topic name can't contain '-partition-' suffix."})


@pytest.mark.parametrize(
    ("message", "headers"),
    [
        ({}, ("0", None, None)),
        ({"sequenceId": 7}, ("7", None, None)),
        ({"sequenceId": None, "deliverAt": None, "deliverAfterMs": None, "eventTime": ""}, ("0", None, None)),
        ({"eventTime": "5"}, ("0", 5, None)),
        ({"deliverAt": 9000}, ("0", None, None)),
        ({"deliverAt": 9000, "eventTime": 5}, ("0", 5, 9000)),
        ({"deliverAfterMs": 1000}, ("0", None, 1000)),
        ({"deliverAfterMs": 1000, "eventTime": "5"}, ("0", 5, 1005)),
        ({"deliverAt": 9000, "deliverAfterMs": 1000}, ("0", None, 1000)),
        ({"deliverAt": 9000, "deliverAfterMs": 1000, "eventTime": 6}, ("0", 6, 9000)),
        ({"deliverAt": 0, "deliverAfterMs": 0, "eventTime": 0}, ("0", 0, None)),
    ],
)
@pytest.mark.parametrize("unset", ["", None])
def test_the_metadata_of_messages(
    message: dict[str, Any], headers: tuple[str, int | None, int | None], unset: str | None
) -> None:
    """As a 4.0.7 answers these requests."""

    async def publish(api: Api) -> None:
        await api.call("PUT", PATH)
        await api.call("PUT", f"{PATH}/subscription/s")
        names = dict.fromkeys(("producerName", "keySchema", "valueSchema"), unset)
        body = {**names, "messages": [{"payload": "x", **message}] * 2}
        assert (await _produced(api, "t", body))[0] == 200
        for number in 1, 2:
            peeked = await api.call("GET", f"{PATH}/subscription/s/position/{number}")
            found = [
                peeked.headers.get(f"X-Pulsar-{name}")
                for name in ("producer-name", "sequence-id", "event-time", "deliver-at-time")
            ]
            assert found == ["RestProducer", headers[0], *(_at(each) for each in headers[1:])]

    on_api(publish)


def _at(time: int | None) -> str | None:
    """A time (ms) as headers have it."""
    if time is None:
        return None
    seconds, ms = divmod(time, 1000)
    return f"1970-01-01T00:00:{seconds:02}{f'.{ms:03}' if ms else ''}Z"


def test_values_that_nest_too_deep_are_refused() -> None:
    record = _value_schema("JSON", b'{"type":"record","name":"A","fields":[]}')

    async def publish(api: Api) -> list[int]:
        await api.call("PUT", PATH)
        return [
            (await _produced(api, "t", {"valueSchema": schema, "messages": [{"payload": payload}]}))[0]
            for schema, payload in (
                ('{"type":"STRING","x":' + "[" * 100_000, "x"),
                ('{"type":"STRING","x":' + "[" * 100_000 + "]" * 100_000 + "}", "x"),
                (record, "[" * 20_000 + "]" * 20_000),
            )
        ]

    assert on_api(publish) == [400, 400, 400]


def test_messages_that_the_broker_refuses_say_why() -> None:
    async def publish(api: Api) -> Any:
        await api.call("PUT", PATH)
        await api.call("POST", f"{PATH}/terminate")
        return (await _produced(api, "t", {"messages": [{"payload": "x"}]}))[1]["messagePublishResults"]

    (refused,) = on_api(publish)
    assert (refused["errorCode"], refused["messageId"]) == (2, "-1")
    assert "terminated" in refused["errorMsg"]


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("names", [({}, {}), ({"producerName": "p"}, {"sequenceId": 5})])
def test_no_message_is_a_success_that_deduplication_refuses(
    partitions: int, names: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """As 4.0.7 answers: with 200, each result with an error, and with its partition as an id."""
    of_all, of_each = names

    async def publish(api: Api) -> None:
        await api.call("PUT", f"{PATH}/partitions" if partitions else PATH, partitions or None)
        await api.call("POST", "/namespaces/public/n/deduplication", True)
        body = {"messages": [{"payload": "x", **of_each}] * 3, **of_all}
        calls = {"t": [0, 1, 0], "t/partitions/1": [1] * 3} if partitions else {"t": [-1] * 3}
        for call, ids in calls.items():
            status, found = await _produced(api, call, body)
            results = found["messagePublishResults"]
            assert (status, [each["errorCode"] for each in results]) == (200, [2] * 3)
            assert [each["messageId"] for each in results] == [str(each) for each in ids]
            assert all("deduplication" in each["errorMsg"] for each in results)
        stored = f"{PATH}-partition-0" if partitions else PATH
        assert (await api.call("GET", f"{stored}/internalStats")).body["numberOfEntries"] == 0

    on_api(publish)


def test_an_engine_without_all_rows_publishes_nothing_through_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedEngine, "shows_topic_events", False)

    async def publish(api: Api) -> int:
        return (await _produced(api, "t", {"messages": []}))[0]

    assert on_api(publish) == 501


# -- sums -------------------------------------------------------------------------------------------------------------


def test_of_partitions_times_are_not_summed_and_the_oldest_message_counts() -> None:
    """As a Pulsar 4.0.7 shows partitioned stats."""
    parts = [
        {
            "backlogQuotaLimitSize": 1000,
            "msgInCounter": count,
            "oldestBacklogMessageAgeSeconds": age,
            "subscriptions": {"s": {"lastExpireTimestamp": 5, "lastAckedTimestamp": 6, "msgInReplay": 2}},
            **({} if name is None else {"oldestBacklogMessageSubscriptionName": name}),
        }
        for count, age, name in ((1, -1, None), (2, 30, "s"), (4, 7, "t"))
    ]
    assert merging.sum_of(parts) == {
        "backlogQuotaLimitSize": 1000,
        "msgInCounter": 7,
        "oldestBacklogMessageAgeSeconds": 30,
        "oldestBacklogMessageSubscriptionName": "s",
        "subscriptions": {"s": {"lastExpireTimestamp": 0, "lastAckedTimestamp": 0, "msgInReplay": 6}},
    }
    assert merging.sum_of(parts[:1])["subscriptions"]["s"]["lastExpireTimestamp"] == 0
