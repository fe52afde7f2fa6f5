"""Whatever the body of an admin call holds, the call is answered or quarantined, the state can be kept, and the fold goes on."""

import re
from pathlib import Path
from typing import Any

import pytest

from schemas.commands import Admin
from schemas.effects import AdminResponse, Quarantined
from streaming.broker import broker
from streaming.broker.admin_calls import CALLS
from streaming.broker.admin_requests import topic_of
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from tests.broker.kit import TOPIC, Run

VALUES = (
    "null", "true", "0", "-1", "1.5", "1e300", str(2**63 - 1), str(2**63), "1" + "0" * 30, '""', '"a"', '"1"', '"\\u0000"',
    '"standalone"', "[]", "[[]]", "[{}]", '["a", 1]', "{}", '{"a": []}', '{"": {"a": null}}',
)  # fmt: skip
NAMED = {
    "tenant": "public", "namespace": "default", "domain": "persistent", "topic": "t", "subscription": "s", "cluster": "standalone",
    "bundle": "0x00000000_0xffffffff",
}  # fmt: skip
FIELDS = sorted(
    {
        name
        for path in Path(broker.__file__).parent.rglob("*.py")
        for name in re.findall(r"^    ([a-z]\w+): |[\"'](\w{4,40})[\"']", path.read_text(), re.MULTILINE)
        for name in name
        if name and not name.isupper()
    }
)
"""Every name by which the core might look for something in a body."""


def harmless(run: Run, method: str, path: str, body: str) -> None:
    call = f'{{"command": "ADMIN", "method": "{method}", "path": "{path}", "body": {body}}}'.encode()
    topic = TOPIC if path.startswith("/persistent/public/default/t/") else None
    effects = run.raw(call, topic)
    assert any(isinstance(each, AdminResponse | Quarantined) for each in effects), call
    assert Broker.decode(run.broker.encode(), NoEntries()), call


def paths() -> list[tuple[str, str]]:
    found = set()
    for call in CALLS:
        if call.method != "GET":
            path = re.sub(r"\{(\w+)\}", lambda name: NAMED.get(name[1], "a"), call.path)
            found |= {(call.method, path), (call.method, path.replace("/default", "/new"))}
    return sorted(found)


OBJECTS: tuple[dict[str, Any], ...] = (
    {}, {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}, {"limitSize": 5, "limitTime": 5, "policy": "producer_exception"}, {"limit": 5},
    {"dispatchThrottlingRateInMsg": 5, "ratePeriodInSecond": 1}, {"publishThrottlingRateInMsg": 5}, {"subscribeThrottlingRatePerConsumer": 5},
    {"active": True, "tickTime": 5}, {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2},
    {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}, {"allowAutoSubscriptionCreation": True},
    {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 5, "deleteWhileInactive": True},
    {"adminRoles": ["a"], "allowedClusters": ["standalone"]}, {"serviceUrl": "http://a:1"}, {"numBundles": 2}, {"partitions": 2, "properties": {}},
    {"type": "STRING", "schema": "", "properties": {}}, {"ledgerId": 1, "entryId": 0}, {"publishRateInMsgs": 5}, {"msgRateIn": 5.0},
    {"bookkeeperAffinityGroupPrimary": "a"}, {"entryFilterNames": "a"}, {"managedLedgerOffloadDriver": "filesystem"},
    {"message_ttl_in_seconds": 5, "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}},
)  # fmt: skip
"""Bodies that are right for some call. Together, they have what each call takes."""
MAPS = re.compile(
    r"/(propert\w+|failureDomains/a|namespaceIsolationPolicies/a|racks-info/b|offloadPolicies)$|^/clusters/[^/]+$|/property"
)
"""Calls whose bodies have names of the caller's choice."""


def begun() -> Run:
    run = Run()
    run.subscribe("s", "Shared")
    return run


@pytest.mark.parametrize("body", OBJECTS, ids=str)
def test_unknown_fields_are_ignored(body: dict[str, Any]) -> None:
    """As in Pulsar (httpRequestsFailOnUnknownPropertiesEnabled is false): the call does what it does without them."""
    plain, more = begun(), begun()
    for method, path in paths():
        topic = topic_of(path)
        given = body if MAPS.search(path) else {**body, "unknown": 1, "Retention": {"a": [None]}}
        answers = [
            run.do(Admin(method=method, path=path, body=each), topic)  # type: ignore[arg-type]
            for run, each in ((plain, body), (more, given))
        ]
        assert answers[0] == answers[1], (method, path)
        assert plain.broker.encode() == more.broker.encode(), (method, path)


@pytest.mark.parametrize("value", VALUES)
def test_a_body_of_any_kind(value: str) -> None:
    run = begun()
    for method, path in paths():
        harmless(run, method, path, value)


@pytest.mark.parametrize(
    "value", ["[]", "{}", '"abc"', "1.5", "1" + "0" * 30, '{"numBundles": "a"}', '{"numBundles": 1.5}']
)
def test_a_body_with_a_field_of_any_kind(value: str) -> None:
    assert len(FIELDS) > 500
    for path in ("/namespaces/public/new", "/namespaces/public/default/offloadPolicies", "/clusters/a",
                 "/clusters/standalone/failureDomains/a", "/clusters/standalone/namespaceIsolationPolicies/a",
                 "/persistent/public/default/t/offloadPolicies", "/tenants/a", "/bookies/racks-info/b?group=g"):  # fmt: skip
        run = begun()
        for field in FIELDS:
            for method in ("PUT", "POST"):
                harmless(run, method, path, f'{{"{field}": {value}}}')
            run.raw(f'{{"command": "ADMIN", "method": "DELETE", "path": "{path}"}}'.encode(), None)
