"""The admin REST API: each call as a real Pulsar 4.0.7 answered it, and what is said of errors."""

import asyncio
import json
import re
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import AnyCommand, KeyValue, MessageMetadata, decode_or_refuse, to_json
from schemas.effects import AdminResponse, Row
from schemas.entries import EntryNotFound
from streaming.broker import schema_registry
from streaming.broker.persistent import admin_operations
from streaming.broker.policies.admin_calls import POLICY_CALLS
from streaming.protocol.admin_calls import headers
from streaming.server.admin.routes import LOCAL, ROUTES, UNSUPPORTED, Route
from streaming.server.embedded import EmbeddedEngine
from streaming.server.engine import StoredEntry
from streaming.server.server import Address, Server, bound
from streaming.traces import RECORDED
from streaming.traces.session import Session
from streaming.traces.trace import read_trace
from tests.server.rest import PATH, TOPIC, Answer, Api, on_api

pytestmark = pytest.mark.feature("I7")

CONVERSATION = Path(__file__).with_name("conversation.jsonl")
"""Calls to a Pulsar 4.0.7, in order, with its status and, where it is the same on every broker, its response. `ours`: the
status that Magnetar answers instead, and `why`."""


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

    assert on_api(replay, schemaCompatibilityStrategy="FULL") == []


def _ordered(body: Any) -> Any:
    return sorted(body) if isinstance(body, list) else body


# -- what is in the list ----------------------------------------------------------------------------------------------


def test_each_call_of_the_broker_is_in_the_list() -> None:
    listed = {(route.method, _shape(route.path)) for route in ROUTES}
    for method, pattern, _ in admin_operations.ROUTES:
        assert (method, _shape("/D/T/N/X" + pattern.pattern)) in listed, pattern.pattern
    for method, pattern, _ in schema_registry.ROUTES:
        assert (method, _shape("/schemas/T/N/X" + pattern.pattern)) in listed, pattern.pattern
    names = {route.path.rpartition("/")[2] for route in ROUTES}
    fields = {POLICY_CALLS[name][0] for name in names & POLICY_CALLS.keys()}
    assert fields == {field for field, _ in POLICY_CALLS.values()}


def _shape(path: str) -> tuple[str, ...]:
    """A path's elements, each parameter as ``*``."""
    plain = re.sub(r"\(\?P<\w+>[^()]*\)", "*", path)
    return tuple(
        "*" if part[:1] == "{" or part in ("D", "T", "N", "X") else part for part in plain.split("/")
    )


REFUSED = [Route("POST", "/namespaces/{tenant}/{namespace}/resourcegroup/{group}")]


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if route not in REFUSED],
    ids=lambda route: f"{route.method} {route.path}",
)
def test_the_broker_knows_each_call_in_the_list(route: Any) -> None:
    async def ask(api: Api) -> Answer:
        await api.call("PUT", PATH)
        await api.call("PUT", f"{PATH}/subscription/s")
        await api.call("PUT", "/resourcegroups/g", {})
        await api.call("PUT", "/clusters/c", {"serviceUrl": "http://h:8080"})
        body = BODIES.get(route.path.rpartition("/")[2]) if route.method in ("PUT", "POST") else None
        return await api.call(route.method, _filled(route.path), body)

    answer = on_api(ask)
    assert answer.status not in (405, 501), answer
    if answer.status == 404:
        assert "not supported" not in answer.reason


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
        "group": "g", "policy": "p", "bookie": "b",
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
        ("PUT", "/persistent/public/n/t/compaction", 501),
        ("PUT", "/persistent/public/n/t/offload", 501),
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
    looked = on_api(look)
    assert looked[:4] == [
        (200, found), (200, found), (200, b"0x00000000_0xffffffff"), (404, {"reason": "Namespace not found"}),
    ]  # fmt: skip
    assert looked[4][0] == 404


# -- messages ---------------------------------------------------------------------------------------------------------


def test_a_message_has_its_metadata_in_headers() -> None:
    metadata: dict[str, Any] = {
        "properties": [KeyValue("a", "ü"), KeyValue("b", "two\nlines")], "partition_key": "k", "event_time": 1_500,
        "deliver_at_time": 10**14, "ordering_key": b"o", "num_messages_in_batch": 2, "partition_key_b64_encoded": True,
        "compression": "ZLIB", "uncompressed_size": 2, "publish_time": 1_795_352_570_590,
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
        "compression": "ZLIB", "uncompressed-size": "2",
    }  # fmt: skip


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=10**17)
    assert headers(1, 2, metadata)["X-Pulsar-publish-time"] == "100000000000000000"


# -- partitioned topics -----------------------------------------------------------------------------------------------


def test_a_partitioned_topic_sums_its_partitions() -> None:
    async def ask(api: Api) -> tuple[Any, ...]:
        assert await api.status("PUT", f"{PATH}/partitions", 2) == 204
        assert await api.status("PUT", f"{PATH}/subscription/s", {"ledgerId": -1, "entryId": -1}) == 204
        await api.publish(3, f"{TOPIC}-partition-0")
        await api.publish(2, f"{TOPIC}-partition-1")
        return (
            (await api.call("GET", f"{PATH}/partitioned-stats")).body,
            (await api.call("GET", f"{PATH}/partitioned-internalStats")).body,
            (await api.call("GET", f"{PATH}/internal-info")).body,
            (await api.call("GET", f"{PATH}/subscriptions")).body,
            (await api.call("POST", f"{PATH}/terminate/partitions")).body,
        )

    stats, internal, info, subscriptions, ended = on_api(ask)
    assert stats["metadata"] == {"partitions": 2, "deleted": False}
    assert stats["msgInCounter"] == 5
    assert stats["subscriptions"]["s"]["msgBacklog"] == 5
    assert stats["partitions"][f"{TOPIC}-partition-1"]["msgInCounter"] == 2
    assert [one["producerName"] for one in stats["publishers"]] == ["p", "p"]
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

    async def submit(self, topic: str | None, command: AnyCommand) -> list[Row]:
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

    def submit(self, topic: str | None, command: AnyCommand) -> list[Row]:
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
    st.sampled_from([route.path for route in (*ROUTES, *LOCAL)] + list(UNSUPPORTED)).flatmap(
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


@settings(max_examples=60)
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
