"""What a broker with authorization is asked, by whom, and what it says: the same of a real Pulsar and of `magnetar serve`."""

import base64
import json
import re
import socket
import time
from collections.abc import Container, Iterator
from typing import Any
from uuid import uuid4

import httpx
import jwt

from streaming.broker.admin_calls import CALLS
from streaming.protocol.codec import FrameReader, decode, encode
from streaming.server.admin.absent import UNSUPPORTED
from streaming.server.admin.application import BESIDE, OWN

SECRET = b"a secret key of thirty-two bytes"
SUPERUSER, TENANT_ADMIN, NOBODY = "root", "boss", "nobody"
ROLES = (
    SUPERUSER, TENANT_ADMIN, "producer", "consumer", "topic-producer", "topic-consumer", "packager", "star-one", "two-star", "stranger",
)  # fmt: skip
"""Those of tokens. What each may do is in `_GRANTS`."""

_OF_CALLS = tuple(role for role in ROLES if "star" not in role)

_GRANTS = {
    "": {"producer": ["produce"], "consumer": ["consume"], "packager": ["packages", "functions", "sources", "sinks"]},
    "topic": {"topic-producer": ["produce"], "topic-consumer": ["consume"], "star-*": ["produce"], "*-star": ["consume"]},
}  # fmt: skip

SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "tokenSecretKey": "data:;base64," + base64.b64encode(SECRET).decode(),
    "authorizationEnabled": "true",
    "authorizationAllowWildcardsMatching": "true",
    "superUserRoles": SUPERUSER,
    "defaultNumberOfNamespaceBundles": "1",
}
"""The broker's."""


def token(role: str, **claims: Any) -> str:
    """A token of a role. That of `NOBODY` has no subject."""
    return jwt.encode({**({} if role == NOBODY else {"sub": role}), **claims}, SECRET, "HS256")


class Admin:
    """The admin API of a broker at `url`."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60)

    def ask(
        self, role: str | None, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """The status and the reason of a call, or its whole body if it has no reason. `role` None: without a token."""
        if role is not None:
            headers["Authorization"] = f"Bearer {token(role)}"
        content = None if body is None else json.dumps(body).encode()
        root = "" if path.startswith(("/lookup", "/topics", "/admin")) else "/admin/v2"
        found = self._http.request(
            method,
            root + path,
            content=content,
            headers={"Content-Type": "application/json", **headers},
        )
        try:
            read = found.json() if found.content else None
        except ValueError:
            read = found.text
        return found.status_code, read.get("reason", read) if isinstance(read, dict) else read

    def must(self, method: str, path: str, body: Any = None) -> None:
        """A superuser's call that succeeds."""
        status, reason = self.ask(SUPERUSER, method, path, body)
        assert status < 300, (method, path, status, reason)

    def prepare(self, tenant: str) -> None:
        """A tenant with its admin, the namespace ``n``, the topic ``t`` and its subscription ``s``, and what roles may do there."""
        path = f"{tenant}/n"
        self.must(
            "PUT", f"/tenants/{tenant}", {"adminRoles": [TENANT_ADMIN], "allowedClusters": ["standalone"]}
        )
        self.must("PUT", f"/namespaces/{path}")
        for role, actions in _GRANTS[""].items():
            self.must("POST", f"/namespaces/{path}/permissions/{role}", actions)
        self.must("PUT", f"/persistent/{path}/t")
        self.must("PUT", f"/persistent/{path}/t/subscription/s", {"ledgerId": -1, "entryId": -1})
        for role, actions in _GRANTS["topic"].items():
            self.must("POST", f"/persistent/{path}/t/permissions/{role}", actions)


_NAMES = {
    "domain": "persistent", "namespace": "n", "topic": "t", "subscription": "s", "time": "0", "count": "1", "seconds": "1", "n": "1",
    "ledger": "1", "entry": "0", "role": "r", "version": "0", "bundle": "0x00000000_0xffffffff", "cluster": "c", "failure_domain": "d",
    "key": "k", "value": "v", "setting": "defaultNumPartitions", "group": "g", "policy": "p", "bookie": "b", "broker": "h",
    "allocator": "default", "partition": "0",
}  # fmt: skip

_PERSISTENCE = {
    "bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 1.0,
}  # fmt: skip
_RATE = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": 1, "ratePeriodInSecond": 1}
_SCHEMA = {"type": "STRING", "schema": "", "properties": {}}
_BODIES: dict[str, Any] = {
    "properties": {"k": "v"}, "replication": ["standalone"], "allowedClusters": [], "offloadThreshold": 1, "messageTTL": 60,
    "schemaCompatibilityStrategy": "FULL", "schemaAutoUpdateCompatibilityStrategy": "Full", "offloadThresholdInSeconds": 1,
    "offloadDeletionLagMs": 1, "offloadPolicies": {"managedLedgerOffloadDriver": "filesystem"}, "compactionThreshold": 1,
    "subscriptionAuthMode": "None", "schemaValidationEnforced": True, "isAllowAutoUpdateSchema": True, "persistence": _PERSISTENCE,
    "retention": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}, "backlogQuota": {"limitSize": 1, "policy": "producer_exception"},
    "deduplication": True, "deduplicationEnabled": True, "deduplicationSnapshotInterval": 10, "encryptionRequired": False,
    "dispatchRate": _RATE, "subscriptionDispatchRate": _RATE, "replicatorDispatchRate": _RATE, "maxMessageSize": 1000,
    "publishRate": {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": 1},
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 30},
    "delayedDelivery": {"active": True, "tickTime": 1000}, "subscriptionTypesEnabled": ["Shared"],
    "autoTopicCreation": {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": True},
    "inactiveTopicPolicies": {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 60,
                              "deleteWhileInactive": True},
    "bookieAffinity": {"bookkeeperAffinityGroupPrimary": "a"}, "antiAffinity": "east", "dispatcherPauseOnAckStatePersistent": None,
    "entryFilters": {"entryFilterNames": "f"}, "allowedTopicPropertyKeysForMetrics": ["k"], "migration": True, "shadowTopics": [],
    "partitions": 2, "schema": _SCHEMA, "compatibility": _SCHEMA, "version": _SCHEMA, "permissions": ["consume"],
    "subscriptionExpirationTime": 1, "{tenant}": {"adminRoles": [TENANT_ADMIN], "allowedClusters": ["standalone"]},
    "{cluster}": {"serviceUrl": "http://127.0.0.1:1"}, "peers": [], "migrate": {"serviceUrl": "http://127.0.0.1:1"},
    "{failure_domain}": {"brokers": ["h"]}, "{policy}": {"namespaces": ["a/b"], "primary": ["h"], "secondary": [],
        "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}}},
    "resource-quotas": {"msgRateIn": 1, "msgRateOut": 1, "bandwidthIn": 1, "bandwidthOut": 1, "memory": 1, "dynamic": False},
    "{bookie}": {"rack": "r"}, "resetcursor": {"ledgerId": -1, "entryId": -1}, "expireMessages": {"ledgerId": -1, "entryId": -1},
    "{role}": ["consume"], "trim": None, "offload": {"ledgerId": 0, "entryId": 0}, "backlogSize": {"ledgerId": -1, "entryId": -1},
}  # fmt: skip
"""Last element of a path → a body that its PUT and POST take, where that is not a number."""


def _body(method: str, path: str) -> Any:
    if method not in ("PUT", "POST"):
        return None
    last = path.rpartition("/")[2]
    if path == "/namespaces/{tenant}/{namespace}/permissions/subscription/{subscription}":
        return ["consumer"]
    if path.startswith("/resource-quotas"):
        return _BODIES["resource-quotas"]
    if path.startswith("/topics/"):
        return {"producerName": "p", "schemaVersion": -1, "keySchema": "", "valueSchema": "", "messages": []}
    if path == "/resourcegroups/{group}":
        return {}
    if last == "migration":
        return True
    if last in ("analyzeBacklog", "{subscription}", "replicatedSubscriptionStatus"):
        return True if last == "replicatedSubscriptionStatus" else None
    if last in _BODIES:
        return _BODIES[last]
    return 1 if last.startswith("max") else None


_QUERIES = {
    ("DELETE", "/{domain}/{tenant}/{namespace}/{topic}/properties"): "?key=k",
    ("GET", "/{domain}/{tenant}/{namespace}/{topic}/getMessageIdByIndex"): "?index=0",
}
"""Queries of calls that a broker does not answer without."""


def calls() -> list[tuple[str, str]]:
    """Method and path of every admin call that there is, each once."""
    unsupported = {(method, path) for path in UNSUPPORTED for method in ("GET", "PUT")}
    return sorted({(each.method, each.path) for each in (*CALLS, *OWN, *BESIDE)} | unsupported)


def _new_tenant() -> str:
    return f"tenant-{uuid4().hex[:8]}"


def grouped(found: dict[str, Any]) -> list[list[Any]]:
    """Answers by role as pairs: an answer, and the roles that get it. A role's name in it is ROLE."""
    roles: dict[str, list[str]] = {}
    for role, answer in found.items():
        text = json.dumps(answer).replace(f"[{role}]", "[ROLE]").replace(f" {role}-xxxx", " ROLE-xxxx")
        roles.setdefault(text, []).append(role)
    return [[json.loads(text), " ".join(each)] for text, each in roles.items()]


def of_calls(admin: Admin, only: Container[str] | None = None) -> Iterator[tuple[str, list[list[Any]]]]:
    """What each role is told about each call, or `only` some of them."""
    unchanged = _new_tenant()
    admin.prepare(unchanged)
    for method, path in calls():
        if only is not None and f"{method} {path}" not in only:
            continue
        tenant = unchanged if method == "GET" else _new_tenant()
        if method != "GET" and "{tenant}" in path:
            admin.prepare(tenant)
        yield f"{method} {path}", grouped(_of_call(admin, tenant, method, path))


def _of_call(admin: Admin, tenant: str, method: str, path: str) -> dict[str, Any]:
    """The status, and with a refusal its reason, by role. Those with the greatest power ask last."""
    query = f"?property={tenant}" if "antiAffinity/" in path else _QUERIES.get((method, path), "")
    asked = path.format(**_NAMES, tenant=tenant) + query
    found: dict[str, Any] = {}
    for role in reversed(_OF_CALLS):
        status, reason = admin.ask(role, method, asked, _body(method, path))
        said = re.sub(r"on broker \[.*?\]", "on broker [BROKER]", str(reason).replace(tenant, "TENANT"))
        found[role] = [status, said] if status in (401, 403) else status
    return {role: found[role] for role in _OF_CALLS}


class Connection:
    """A client's connection to a broker at HOST:PORT."""

    def __init__(self, address: str, role: str, **fields: Any) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._reader, self._ready = FrameReader(), list[tuple[str, dict[str, Any]]]()
        connect = {"client_version": "test", "protocol_version": 21, "auth_method_name": "token", "auth_data": token(role).encode(),
                   "feature_flags": {"supports_auth_refresh": True, "supports_topic_watchers": True}}  # fmt: skip
        self.greeting = self.ask("CONNECT", connect | fields)

    def send(self, cmd: str, fields: dict[str, Any], tail: bytes = b"") -> None:
        """Send a frame. `tail`: a message."""
        self._socket.sendall(encode(cmd, fields, tail))

    def ask(self, cmd: str, fields: dict[str, Any], tail: bytes = b"") -> tuple[str, dict[str, Any]]:
        """The answer to a frame: its command and fields, or CLOSED. `tail`: see `send`."""
        self.send(cmd, fields, tail)
        return self.next()

    def next(self) -> tuple[str, dict[str, Any]]:
        """The next frame that is not a PING, or CLOSED."""
        while not self._ready:
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                return "CLOSED", {}
            self._ready += [(each.cmd, each.fields) for each in map(decode, self._reader.feed(data))]
            self._ready = [each for each in self._ready if each[0] not in ("PING", "PONG")]
        return self._ready.pop(0)

    def rest(self, seconds: float) -> list[tuple[str, dict[str, Any]]]:
        """The frames that come until none came for so many seconds."""
        found = list[tuple[str, dict[str, Any]]]()
        self._socket.settimeout(seconds or 0.001)
        try:
            while not found or found[-1][0] != "CLOSED":
                found.append(self.next())
        except TimeoutError:
            return found
        finally:
            self._socket.settimeout(30)
        return found

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def shown(answer: tuple[str, dict[str, Any]], tenant: str) -> Any:
    """A refusal with its code and text; anything else is its command."""
    cmd, fields = answer
    error = fields.get("error", fields.get("error_code"))
    if error is None:
        return cmd
    text = str(fields.get("message", fields.get("error_message", ""))).replace(tenant, "TENANT")
    text = re.sub(r"instance(:[0-9.:]+)?\.", "instance.", text)  # quirk: ours does not say its address
    return [cmd, error, text]


def _topic(tenant: str, name: str = "t", domain: str = "persistent") -> str:
    return f"{domain}://{tenant}/n/{name}"


def _lookup(topic: str) -> tuple[str, dict[str, Any]]:
    return "LOOKUP", {"topic": topic, "request_id": 1}


def _metadata(topic: str) -> tuple[str, dict[str, Any]]:
    return "PARTITIONED_METADATA", {"topic": topic, "request_id": 1}


def _producer(topic: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "PRODUCER", {"topic": topic, "producer_id": 1, "request_id": 1, **more}


def _subscribe(topic: str, subscription: str = "s") -> tuple[str, dict[str, Any]]:
    return "SUBSCRIBE", {"topic": topic, "subscription": subscription, "subType": "Shared", "consumer_id": 1, "request_id": 1}  # fmt: skip


def frames(tenant: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Frames that stand alone, by what they are."""
    topic = _topic(tenant)
    schema = {"type": "String", "name": "", "schema_data": b""}
    watch = {"request_id": 1, "watcher_id": 1, "namespace": f"{tenant}/n", "topics_pattern": ".*"}
    return {
        "LOOKUP": _lookup(topic),
        "LOOKUP of a topic that is not there": _lookup(_topic(tenant, "other")),
        "PARTITIONED_METADATA": _metadata(topic),
        "PARTITIONED_METADATA of a partition": _metadata(_topic(tenant, "p-partition-0")),
        "PRODUCER": _producer(topic),
        "PRODUCER of a new topic": _producer(_topic(tenant, "new")),
        "PRODUCER on a partition": _producer(_topic(tenant, "p-partition-0")),
        "PRODUCER with an initial subscription": _producer(topic, initial_subscription_name="i"),
        "PRODUCER on a non-persistent topic": _producer(_topic(tenant, "t", "non-persistent")),
        "SUBSCRIBE": _subscribe(topic),
        "SUBSCRIBE to a partition": _subscribe(_topic(tenant, "p-partition-0")),
        "SUBSCRIBE to a subscription of some": _subscribe(topic, "of-some"),
        "SUBSCRIBE to a subscription of nobody": _subscribe(topic, "of-nobody"),
        "GET_TOPICS_OF_NAMESPACE": (
            "GET_TOPICS_OF_NAMESPACE",
            {"request_id": 1, "namespace": f"{tenant}/n", "mode": "ALL"},
        ),
        "WATCH_TOPIC_LIST": ("WATCH_TOPIC_LIST", watch),
        "WATCH_TOPIC_LIST of a missing tenant": ("WATCH_TOPIC_LIST", {**watch, "namespace": "missing/n"}),
        "LOOKUP of a name that is none": _lookup("persistent://bad name/n/t"),
        "GET_SCHEMA": ("GET_SCHEMA", {"request_id": 1, "topic": topic}),
        "GET_OR_CREATE_SCHEMA": ("GET_OR_CREATE_SCHEMA", {"request_id": 1, "topic": topic, "schema": schema}),
        "LOOKUP of a missing namespace": _lookup("persistent://TENANT/missing/t".replace("TENANT", tenant)),
        "PARTITIONED_METADATA of a missing namespace": _metadata(f"persistent://{tenant}/missing/t"),
        "PRODUCER in a missing namespace": _producer(f"persistent://{tenant}/missing/t"),
        "SUBSCRIBE in a missing namespace": _subscribe(f"persistent://{tenant}/missing/t"),
        "GET_TOPICS_OF_NAMESPACE of a missing one": (
            "GET_TOPICS_OF_NAMESPACE",
            {"request_id": 1, "namespace": f"{tenant}/missing", "mode": "ALL"},
        ),
        "LOOKUP of a missing tenant": _lookup("persistent://missing/n/t"),
        "PARTITIONED_METADATA of a missing tenant": _metadata("persistent://missing/n/t"),
        "PRODUCER in a missing tenant": _producer("persistent://missing/n/t"),
        "SUBSCRIBE in a missing tenant": _subscribe("persistent://missing/n/t"),
        "GET_TOPICS_OF_NAMESPACE of a missing tenant": (
            "GET_TOPICS_OF_NAMESPACE",
            {"request_id": 1, "namespace": "missing/n", "mode": "ALL"},
        ),
    }


def of_frames(admin: Admin, address: str) -> Iterator[tuple[str, list[list[Any]]]]:
    """What each role is told about each frame, and about what it may do once it is connected."""
    tenant = _new_tenant()
    admin.prepare(tenant)
    admin.must("PUT", f"/persistent/{tenant}/n/p/partitions", 2)
    for role, actions in _GRANTS["topic"].items():
        admin.must("POST", f"/persistent/{tenant}/n/p/permissions/{role}", actions)
    admin.must(
        "POST",
        f"/namespaces/{tenant}/n/permissions/subscription/of-some",
        ["consumer", "stranger", "topic-consumer"],
    )
    admin.must("POST", f"/namespaces/{tenant}/n/permissions/subscription/of-nobody", [])
    for what, (cmd, fields) in frames(tenant).items():
        yield what, grouped(_each_role(address, tenant, cmd, fields))
    admin.must("POST", f"/namespaces/{tenant}/n/subscriptionAuthMode", "Prefix")
    for name in ("s", "consumer-s", "consumers"):
        yield (
            f"SUBSCRIBE to {name} with the auth mode Prefix",
            grouped(_each_role(address, tenant, *_subscribe(_topic(tenant), name))),
        )
    admin.must("POST", f"/namespaces/{tenant}/n/subscriptionAuthMode", "None")


def _each_role(address: str, tenant: str, cmd: str, fields: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for role in (*ROLES, NOBODY):
        client = Connection(address, role)
        if client.greeting[0] == "CONNECTED":
            found[role] = shown(client.ask(cmd, fields), tenant)
        else:
            found[role] = ["at CONNECT", shown(client.greeting, tenant)]
        client.close()
    return found


def of_connections(admin: Admin, address: str) -> Iterator[tuple[str, Any]]:
    """What a connection may do after a permission is revoked, and with another principal."""
    tenant = _new_tenant()
    admin.prepare(tenant)
    topic = _topic(tenant)
    producer, consumer = Connection(address, "producer"), Connection(address, "consumer")
    producer.ask(*_producer(topic))
    consumer.ask(*_subscribe(topic))
    for role in ("producer", "consumer"):
        admin.must("DELETE", f"/namespaces/{tenant}/n/permissions/{role}")
    for name, client in (("producer", producer), ("consumer", consumer)):
        yield f"a {name} whose permission is revoked", shown(client.next(), tenant)
    last = consumer.ask("GET_LAST_MESSAGE_ID", {"consumer_id": 1, "request_id": 5})
    yield "GET_LAST_MESSAGE_ID then", shown(last, tenant)
    yield "PRODUCER then", shown(producer.ask(*_producer(topic, producer_id=2, request_id=6)), tenant)
    yield "SUBSCRIBE then", shown(consumer.ask(*_subscribe(topic)), tenant)
    producer.close()
    consumer.close()
    path = f"/namespaces/{tenant}/n"
    for what, role, asked, change in (
        ("a grant on the topic is revoked", "topic-producer", _producer(topic),
         ("DELETE", f"/persistent/{tenant}/n/t/permissions/topic-producer", None)),
        ("the subscription is for others", "topic-consumer", _subscribe(topic),
         ("POST", f"{path}/permissions/subscription/s", ["consumer"])),
        ("the auth mode becomes Prefix", "topic-consumer", _subscribe(topic, "other"),
         ("POST", f"{path}/subscriptionAuthMode", "Prefix")),
    ):  # fmt: skip
        client = Connection(address, role)
        yield f"{role}, before {what}", shown(client.ask(*asked), tenant)
        admin.must(*change)
        yield f"{role}, when {what}", shown(client.next(), tenant)
        client.close()
    client = Connection(address, TENANT_ADMIN)
    client.ask(*_subscribe(topic, "admins"))
    admin.must("POST", f"/tenants/{tenant}", {"adminRoles": [], "allowedClusters": ["standalone"]})
    time.sleep(0.5)
    still = client.ask("GET_LAST_MESSAGE_ID", {"consumer_id": 1, "request_id": 5})
    yield "GET_LAST_MESSAGE_ID of one who was an admin", shown(still, tenant)
    yield "LOOKUP of one who was an admin", shown(client.ask(*_lookup(topic)), tenant)
    client.close()
    for role, principal in [
        ("stranger", "root"),
        ("stranger", "stranger"),
        ("root", "stranger"),
        ("root", "root"),
    ]:
        client = Connection(address, role, original_principal=principal)
        yield (
            f"CONNECT of {role} for {principal}",
            [shown(client.greeting, tenant), shown(client.ask(*_lookup(topic)), tenant)],
        )
        client.close()
        yield (
            f"GET of {role} for {principal}",
            _refusal(admin.ask(role, "GET", "/tenants", **{"X-Original-Principal": principal})),
        )


def _refusal(answer: tuple[int, Any]) -> Any:
    """A status, and with a refusal in JSON its reason."""
    status, reason = answer
    is_page = isinstance(reason, str) and reason.startswith("<html>")
    return status if status < 400 or is_page else [status, reason]


def of_subscriptions(admin: Admin) -> Iterator[tuple[str, Any]]:
    """What calls on a subscription say that is for others, or whose name does not begin with the role."""
    tenant = _new_tenant()
    admin.prepare(tenant)
    admin.must("POST", f"/namespaces/{tenant}/n/permissions/subscription/s", ["consumer"])
    for mode in ("None", "Prefix"):
        admin.must("POST", f"/namespaces/{tenant}/n/subscriptionAuthMode", mode)
        for method, path in calls():
            if "{topic}/subscription/" not in path:
                continue
            for role in ("topic-consumer", "consumer"):
                status, reason = admin.ask(
                    role, method, path.format(**_NAMES, tenant=tenant), _body(method, path)
                )
                said = re.sub(r"(?s).*Message: ([^\n]*).*", r"\1", str(reason)).replace(tenant, "TENANT")
                yield f"{mode}: {method} {path} of {role}", [status, said] if status in (401, 500) else status


def of_names(admin: Admin) -> Iterator[tuple[str, Any]]:
    """What requests are told that name what is not there, whose token has no subject, or that have no token."""
    for name, role in (("without a subject", NOBODY), ("without a token", None)):
        for path in ("/tenants", "/namespaces/public/default", "/persistent/public/default/t/stats", "/brokers/version",
                     "/lookup/v2/topic/persistent/public/default/t"):  # fmt: skip
            yield f"GET {path} {name}", _refusal(admin.ask(role, "GET", path))
    for path in ("/tenants/missing", "/namespaces/missing", "/namespaces/missing/n", "/namespaces/public/missing",
                 "/namespaces/missing/n/topics", "/namespaces/public/missing/topics", "/namespaces/missing/n/properties",
                 "/persistent/missing/n/t/stats", "/persistent/public/missing/t/stats", "/persistent/public/default/missing/stats",
                 "/persistent/missing/n/t/retention", "/persistent/missing/n/t/permissions", "/namespaces/missing/n/bundles",
                 "/persistent/public/missing/t/subscriptions", "/persistent/missing/n/t/partitions", "/schemas/missing/n/t/schema",
                 "/lookup/v2/topic/persistent/missing/n/t", "/lookup/v2/topic/persistent/public/missing/t"):  # fmt: skip
        yield (
            f"GET {path}",
            {role: _refusal(admin.ask(role, "GET", path)) for role in (SUPERUSER, "stranger")},
        )


def everything(admin: Admin, address: str) -> dict[str, Any]:
    """All answers of a broker."""
    return {
        "calls": dict(of_calls(admin)),
        "frames": dict(of_frames(admin, address)),
        "connections": dict(of_connections(admin, address)),
        "subscriptions": dict(of_subscriptions(admin)),
        "names": dict(of_names(admin)),
    }
