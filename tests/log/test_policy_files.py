"""Settings and policies as a real cluster shows them: what of a file is applied, what is told about the rest."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from schemas.commands import Admin, BrokerConfig, decode
from sinks.small_files import MOST_BYTES
from streaming.broker import setting_names
from streaming.broker.broker import Broker
from streaming.broker.config import WITHOUT_EFFECT, NotSupported, ServiceConfiguration, configuration
from streaming.broker.entries import NoEntries
from streaming.broker.policies.admin_calls import POLICY_CALLS
from streaming.broker.policies.hierarchy import NO_POLICIES, Policies
from streaming.broker.setting_names import RELEASED
from streaming.cli.app import app
from streaming.log.broker_settings import nearest_setting, sort_out
from streaming.log.merge import without_coordinates
from streaming.log.partition import partition_log
from streaming.log.pins import pin
from streaming.log.policies import policy_notes, read_policies
from streaming.log.policy_files import PolicyError, is_log
from streaming.log.policy_sources import name_of, policy_sources
from streaming.log.properties import read_properties
from streaming.log.table import LOGICAL, LogError, log_table
from streaming.quality.gate import judge
from tools.setting_names import module

pytestmark = pytest.mark.feature("I1")

NAMESPACE = "public/default"
PATH = f"/namespaces/{NAMESPACE}"
T = f"persistent://{NAMESPACE}/t"
QUOTA = {"limit": 2**31, "limitSize": 2**31, "limitTime": -1, "policy": "producer_exception"}
RETENTION = {"retentionTimeInMinutes": 1440, "retentionSizeInMB": 500}
RATE = {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False, "ratePeriodInSecond": 1}  # fmt: skip

DUMP: dict[str, Any] = {
    "auth_policies": {"namespace_auth": {"me": ["produce"]}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": ["pulsar-prod"],
    "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
    "backlog_quota_map": {"destination_storage": QUOTA},
    "clusterDispatchRate": {"pulsar-prod": RATE},
    "topicDispatchRate": {"pulsar-prod": RATE},
    "subscriptionDispatchRate": {},
    "message_ttl_in_seconds": 3600,
    "retention_policies": RETENTION,
    "deleted": False,
    "encryption_required": False,
    "autoTopicCreationOverride": {"allowAutoTopicCreation": True},
    "persistence": {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2},
    "is_allow_auto_update_schema": True,
    "resource_group_name": "x",
}  # fmt: skip
"""The policies of a namespace as `pulsar-admin namespaces policies` shows them."""

TOPIC: dict[str, Any] = {
    "backLogQuotaMap": {"destination_storage": {"limitSize": 1 << 20, "limitTime": -1, "policy": "consumer_backlog_eviction"}},
    "subscriptionTypesEnabled": [],
    "isGlobal": False,
    "retentionPolicies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10},
    "messageTTLInSeconds": 3,
    "delayedDeliveryEnabled": True,
    "delayedDeliveryTickTimeMillis": 1000,
    "maxProducerPerTopic": 4,
    "compactionThreshold": 5,
    "subscriptionPolicies": {"a/s": {"dispatchRate": RATE}},
}  # fmt: skip
"""The policies of a topic as an event in ``__change_events`` has them."""


def recorded(*commands: tuple[str | None, dict[str, Any]], topics: tuple[str, ...] = (T,)) -> pa.Table:
    """A log with commands, and a publish to each topic at its end."""
    publishes = [(topic, {"producer": "p", "sequence_id": 1}) for topic in topics]
    rows = [*commands, *publishes]
    return partition_log(
        log_table(
            LOGICAL,
            timestamp=range(len(rows)),
            topic=pa.array([topic for topic, _ in rows], pa.string()),
            value=[json.dumps(command).encode() for _, command in rows],
        ),
        1,
    )


def folded(records: pa.Table, source: str | Path) -> Broker:
    """The broker at the end of a log under policies."""
    broker = Broker(0, NoEntries())
    pinned = pin(records, read_policies(source, records, judge)).records
    for row in pinned.select(["offset", "timestamp", "topic", "value"]).to_pylist():
        (command,) = judge([row["topic"]], [row["value"]])
        broker.apply(row["offset"], row["timestamp"], row["topic"], command, row["value"])
    return broker


def test_what_a_value_says_of_its_record_hides_no_policy(tmp_path: Path) -> None:
    """A log in Kafka may have whole lines as values."""
    file = tmp_path / "policies.yaml"
    file.write_text(f"namespaces:\n  {NAMESPACE}:\n    message_ttl_in_seconds: 7\n")
    call = {"command": "ADMIN", "method": "POST", "path": f"/namespaces/{NAMESPACE}/messageTTL", "body": 3}
    records = recorded((None, call), (None, {"command": "BROKER_CONFIG"}))
    times = records["timestamp"].to_pylist()
    values = [
        json.dumps(json.loads(value) | {"timestamp": time}).encode()
        for value, time in zip(records["value"].to_pylist(), times, strict=True)
    ]
    lines = records.set_column(
        records.schema.get_field_index("value"), records.schema.field("value"), pa.array(values, pa.binary())
    )
    policies = read_policies(file, records, judge)
    found, expected = (without_coordinates(pin(each, policies).records)[0] for each in (lines, records))
    assert [*map(decode, found["value"].to_pylist())] == [*map(decode, expected["value"].to_pylist())]
    assert len(found) == len(records)  # the call of the log is gone, the policy is there


def namespace(source: str | Path, *commands: tuple[str | None, dict[str, Any]]) -> Policies:
    """The policies of the namespace at the end of a log under policies."""
    return folded(recorded(*commands), source).namespace_policies.get(NAMESPACE, Policies())


def config(source: str | Path, *commands: tuple[str | None, dict[str, Any]]) -> ServiceConfiguration:
    return folded(recorded(*commands), source)._ctx.config


def admin(path: str, body: Any, method: str = "POST") -> dict[str, Any]:
    return {"command": "ADMIN", "method": method, "path": path, "body": body}


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(content: Any, name: str = "file") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


# ---- settings


def test_every_setting_of_a_release_has_a_name_here() -> None:
    assert len(RELEASED) > 700
    assert {*ServiceConfiguration.__struct_fields__, *WITHOUT_EFFECT} >= RELEASED
    assert not WITHOUT_EFFECT.intersection(ServiceConfiguration.__struct_fields__)
    for profile in ("2.10", "3.0", "4.0", "4.2", "5.0"):
        unset = {name: value for name in RELEASED for value in ("",) if name not in _LISTS}
        assert configuration(profile, unset) == configuration(profile, {})
        assert configuration(profile, dict.fromkeys(RELEASED)) == configuration(profile, {})


def test_the_names_are_as_their_tool_writes_them() -> None:
    assert Path(setting_names.__file__).read_text() == module({*RELEASED})


_LISTS = ("subscriptionTypesEnabled", "brokerEntryMetadataInterceptors", "entryFilterNames")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("entryFilterNames", "[]", ""),
        ("entryFilterNames", None, ""),
        ("brokerEntryMetadataInterceptors", "[ a.AppendBrokerTimestampMetadataInterceptor ]", "a.AppendBrokerTimestampMetadataInterceptor"),
        ("subscriptionTypesEnabled", "[Key_Shared, Exclusive]", "Exclusive,Key_Shared"),
        ("subscriptionTypesEnabled", "[Failover, Shared, Key_Shared, Exclusive]", "Exclusive,Shared,Failover,Key_Shared"),
        ("subscriptionTypesEnabled", "", ""),
        ("maxProducersPerTopic", " 5 ", 5),
        ("maxProducersPerTopic", "", 0),
        ("maxProducersPerTopic", "null", 0),
        ("brokerDeleteInactiveTopicsMaxInactiveDurationSeconds", "", -1),
        ("brokerDeduplicationEnabled", "TRUE", True),
        ("clusterName", "", "standalone"),
    ],
)  # fmt: skip
def test_values_as_java_shows_them(name: str, value: Any, expected: Any) -> None:
    assert getattr(configuration("4.x", {name: value}), name) == expected


@pytest.mark.parametrize("value", ["true", True, "TRUE"])
def test_policies_do_not_turn_transactions_on(value: Any) -> None:
    found = sort_out({"transactionCoordinatorEnabled": value}, "4.0")
    assert (found.applied, list(found.not_applied)) == ({}, ["transactionCoordinatorEnabled"])
    assert sort_out({"transactionCoordinatorEnabled": "false"}, "4.0").not_applied == {}


@pytest.mark.parametrize(
    ("name", "harmless", "other"),
    [
        ("topicLevelPoliciesEnabled", "true", "false"),
        ("systemTopicEnabled", True, False),
        ("dispatcherPauseOnAckStatePersistentEnabled", "false", "true"),
        ("strictlyVerifySubscriptionName", "false", "true"),
        ("maxTenants", "0", 5),
        ("enableNonPersistentTopics", "true", "false"),
        ("subscriptionRedeliveryTrackerEnabled", "True", "False"),
        ("maxSameAddressConsumersPerTopic", 0, 3),
        ("brokerInterceptors", "[]", "[a, b]"),
        ("entryFilterNames", "[]", "no.such.Filter"),
        ("brokerEntryMetadataInterceptors", "", "x.AppendIndexMetadataInterceptor"),
        ("maxMessageSize", "5242880", 2**31 - 1),
    ],
)
def test_a_value_that_magnetar_can_not_apply(name: str, harmless: Any, other: Any) -> None:
    configuration("4.x", {name: harmless})
    with pytest.raises(NotSupported, match=name if name != "entryFilterNames" else "entry filters"):
        configuration("4.x", {name: other})
    found = sort_out({name: other}, "4.0")
    assert (found.applied, list(found.not_applied), found.without_effect) == ({}, [name], 0)


def test_settings_that_a_broker_passes_on_have_any_name() -> None:
    names = ("bookkeeper_tcpKeepIdle", "brokerClient_memoryLimitBytes", "dbStorage_rocksDB_blockSize")
    assert sort_out(dict.fromkeys(names, "5"), "4.0").without_effect == len(names)


def test_the_nearest_setting() -> None:
    assert nearest_setting("ttlDurationDefaultInSecond") == "ttlDurationDefaultInSeconds"
    assert nearest_setting("loadBalancerEnable") == "loadBalancerEnabled"
    assert nearest_setting("kafkaListeners") is None
    assert nearest_setting("x" * 1_000_000) is None


def test_an_unknown_setting_of_serve_is_named_with_the_nearest() -> None:
    ran = CliRunner().invoke(app, ["serve", "--set", "loadBalancerEnable=false"])
    assert ran.exit_code == 2
    assert "unknown broker settings: loadBalancerEnable (perhaps loadBalancerEnabled)" in ran.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b", 1)]),
        ("\n # c=d\n! e=f\n  a = b \r\n", [("a", "b ", 4)]),
        ("a : b\nc d e\nf    [g, h]", [("a", "b", 1), ("c", "d e", 2), ("f", "[g, h]", 3)]),
        ("a=b\\\n   c\\\n\td\ne=f", [("a", "bcd", 1), ("e", "f", 4)]),
        ("a=b\\\\\nc=d", [("a", "b\\", 1), ("c", "d", 2)]),
        ("a=1\na=2", [("a", "1", 1), ("a", "2", 2)]),
        ("a=b=c:d", [("a", "b=c:d", 1)]),
        ("a\\ b\\=c=d\\u0041\\n", [("a b=c", "dA\n", 1)]),
        ("PULSAR_PREFIX_a=b", [("a", "b", 1)]),
        ("a=\nb", [("a", "", 1), ("b", "", 2)]),
        ("a=b\\", [("a", "b", 1)]),
        ("#a\\\nb=c", [("b", "c", 2)]),
    ],
)
def test_properties_are_those_of_java(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert [(each.name, each.value, each.line) for each in read_properties(text)] == expected


CONF = """# A broker.
ttlDurationDefaultInSeconds=60
loadBalancerEnabled=true
brokerClientAuthenticationParameters=PASSWORD
tlsTrustStorePassword=
ttlDurationDefaultInSecond=5
transactionCoordinatorEnabled=true
maxMessageSize=999999999999
PASSWORD
some.thing=PASSWORD
ttlDurationDefaultInSeconds=\\
  70
entryFilterNames=
"""


def test_what_is_told_of_a_conf_file(file: Any) -> None:
    path = file(CONF, "my.conf")
    assert policy_notes(path) == [
        f"{path}: {note}"
        for note in (
            "2 settings applied, 3 without effect here",
            "not applied: line 7: transactionCoordinatorEnabled: transactions are those of the log, and policies can't turn them on",
            "not applied: line 8: broker setting maxMessageSize: '999999999999': expected an integer, 1 to 134,217,728 bytes",
            "unknown, so Pulsar ignores it, too: line 6: ttlDurationDefaultInSecond (perhaps ttlDurationDefaultInSeconds)",
            "line 9: this is not a setting: expected NAME=VALUE",
            "line 10: this is not a setting: expected NAME=VALUE",
            "line 2: ttlDurationDefaultInSeconds is set again on line 11, which counts",
        )
    ]
    found = config(path, (None, {"command": "BROKER_CONFIG", "settings": {"maxProducersPerTopic": 3}}))
    assert (found.ttlDurationDefaultInSeconds, found.maxProducersPerTopic) == (70, 3)


def test_no_password_is_printed_or_kept(file: Any, tmp_path: Path) -> None:
    path, log = file(CONF, "my.conf"), tmp_path / "log.jsonl"
    log.write_text(json.dumps({"topic": T, "producer": "p", "sequence_id": 1}) + "\n")
    out = tmp_path / "out"
    for words in (["whatif"], ["whatif", "--json"], ["replay", "--no-spark", "--out", str(out)]):
        ran = CliRunner().invoke(app, [*words, str(log), "--policies", str(path)])
        assert ran.exit_code == 0, ran.output
        assert "PASSWORD" not in ran.output
    assert not [each for each in out.rglob("*") if each.is_file() and b"PASSWORD" in each.read_bytes()]
    (bad := file("ttlDurationDefaultInSeconds=x\nPASSWORD=PASSWORD", "bad.conf")).exists()
    ran = CliRunner().invoke(app, ["whatif", str(log), "--policies", str(bad)])
    assert (ran.exit_code, ran.output.count("PASSWORD")) == (2, 0)


def test_values_that_pulsar_refuses_are_mistakes(file: Any) -> None:
    path = file("a=b\nttlDurationDefaultInSeconds=soon\nbrokerDeduplicationEnabled=maybe\n", "x.conf")
    with pytest.raises(LogError) as caught:
        policy_notes(path)
    assert str(caught.value).splitlines() == [
        f"{path} has 2 mistakes, so it is not used:",
        "  line 2: broker setting ttlDurationDefaultInSeconds: 'soon': expected an integer, 0 to 2,147,483,647 s",
        "  line 3: broker setting brokerDeduplicationEnabled: 'maybe': Expected `bool`, got `str`",
    ]


RUNTIME = {
    "ttlDurationDefaultInSeconds": "60",
    "entryFilterNames": "[]",
    "webServicePort": "Optional[8080]",
    "subscriptionTypesEnabled": "[Failover, Shared, Key_Shared, Exclusive]",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "",
}


@pytest.mark.parametrize("name", ["runtime", "runtime.json", "runtime.yaml", "runtime.txt", "runtime.jsonl"])
@pytest.mark.parametrize("form", ["json", "pretty", "lines"])
def test_the_settings_of_a_running_broker(form: str, name: str, file: Any) -> None:
    """As curl shows them, and as `pulsar-admin brokers get-runtime-config` prints them."""
    if form == "lines" and name.endswith(("yaml", "jsonl")):
        pytest.skip("such a file has another form")
    texts = {
        "json": json.dumps(RUNTIME),
        "pretty": json.dumps(RUNTIME, indent=2),
        "lines": "".join(f"{key}    {value}\n" for key, value in RUNTIME.items()),
    }
    path = file(texts[form], name)
    assert policy_notes(path) == [f"{path}: 4 settings applied, 1 without effect here"]
    assert config(path).ttlDurationDefaultInSeconds == 60


def test_the_settings_that_a_server_of_magnetar_shows_of_itself(file: Any) -> None:
    server = configuration("2.10", {"namespacesMustExist": True, "ttlDurationDefaultInSeconds": 60})
    found = config(file(server.as_texts()))
    assert found == configuration("2.10", {"ttlDurationDefaultInSeconds": 60})


def test_a_log_of_commands_tells_once_how_many_settings_have_no_effect(file: Any) -> None:
    lines = [
        {"command": "BROKER_CONFIG", "settings": {"messageExpiryCheckIntervalInMinutes": 5, "numIOThreads": ""}},
        {"command": "BROKER_CONFIG", "settings": {"entryFilterNames": "[]", "loadBalancerEnabled": False}},
    ]  # fmt: skip
    path = file("\n".join(map(json.dumps, lines)), "conf.jsonl")
    assert policy_notes(path) == [f"{path}: 2 settings applied, 2 without effect here"]
    assert config(path).messageExpiryCheckIntervalInMinutes == 5


# ---- policies of a namespace


@pytest.mark.parametrize("name", ["dump", "dump.json", "dump.yaml", "dump.jsonl"])
def test_the_policies_of_a_namespace(name: str, file: Any) -> None:
    path = file(json.dumps(DUMP, indent=1), name)
    found = namespace(path)
    assert found.messageTTL == 3600
    assert found.backlogQuota["destination_storage"].limitSize == 2**31  # above the retention
    assert found.retention is not None
    assert found.dispatchRate is not None
    assert found.dispatchRate.dispatchThrottlingRateInMsg == 10
    assert found.autoTopicCreation is not None
    assert policy_notes(path) == [f"{path}: 6 policies applied, 4 without effect here"]


def test_a_dump_replaces_all_policies_of_the_log(file: Any) -> None:
    logged = [
        (None, admin(f"{PATH}/messageTTL", 5)),
        (None, admin(f"{PATH}/maxProducersPerTopic", 5)),
        (None, admin("/namespaces/public/other/maxProducersPerTopic", 6)),
        (T, admin(f"/persistent/{NAMESPACE}/t/maxProducers", 7)),
        (None, admin(PATH, {"max_consumers_per_topic": 8, "properties": {"a": "b"}}, "PUT")),
    ]
    records = recorded(*logged, topics=(T, "persistent://public/other/t"))
    broker = folded(records, f"{NAMESPACE}={file(DUMP)}")
    found = broker.namespace_policies[NAMESPACE]
    assert (found.messageTTL, found.maxProducersPerTopic, found.maxConsumersPerTopic) == (3600, None, None)
    assert found.properties == {"a": "b"}
    assert broker.namespace_policies["public/other"].maxProducersPerTopic == 6
    assert broker.topic(T).policies.maxProducersPerTopic == 7


def test_a_dump_without_policies_leaves_none(file: Any) -> None:
    empty = {"bundles": {"numBundles": 1}, "message_ttl_in_seconds": None, "backlog_quota_map": {}}
    assert namespace(file(empty), (None, admin(f"{PATH}/messageTTL", 5))).messageTTL is None


YAML = """
namespaces:
  public/default:
    message_ttl_in_seconds: 3600
    retention_policies: {retentionTimeInMinutes: 1440, retentionSizeInMB: 500}
    backlog_quota_map: {destination_storage: {limitSize: 1000000, limitTime: -1, policy: consumer_backlog_eviction}}
    maxProducersPerTopic: 3
"""


def test_the_names_of_a_dump_in_a_file_of_policies(file: Any) -> None:
    """Both kinds of names, and what the file does not name stays as the log says."""
    path = file(YAML, "p.yaml")
    logged = [
        (None, admin(f"{PATH}/messageTTL", 5)),
        (None, admin(f"{PATH}/maxConsumersPerTopic", 6)),
        (None, admin(f"{PATH}/maxProducersPerTopic", 7)),
    ]
    found = namespace(path, *logged)
    assert (found.messageTTL, found.maxConsumersPerTopic, found.maxProducersPerTopic) == (3600, 6, 3)
    assert found.backlogQuota["destination_storage"].limitSize == 1_000_000
    assert policy_notes(path) == []


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_namespace_that_the_log_creates_has_the_policies(method: str, file: Any) -> None:
    """Its creation sets all policies, so it would undo those that came before it."""
    created = {
        "message_ttl_in_seconds": 5,
        "max_consumers_per_topic": 6,
        "clusterDispatchRate": {"standalone": RATE},
        "topicDispatchRate": {"standalone": RATE},
        "backlog_quota_map": {"destination_storage": QUOTA, "message_age": {"limitTime": 5}},
    }
    slower = RATE | {"dispatchThrottlingRateInMsg": 1}
    calls = [
        admin(f"{PATH}/messageTTL", 60, method),
        admin(f"{PATH}/dispatchRate", slower, method),
        admin(f"{PATH}/backlogQuota?backlogQuotaType=destination_storage", {"limitSize": 9}, method),
    ]
    path = file("\n".join(map(json.dumps, calls)), "p.jsonl")
    found = namespace(path, (None, admin(PATH, created, "PUT")))
    assert found.maxConsumersPerTopic == 6
    assert found.backlogQuota["message_age"].limitTime == 5
    if method == "POST":
        assert found.messageTTL == 60
        assert found.dispatchRate is not None
        assert found.dispatchRate.dispatchThrottlingRateInMsg == 1
        assert found.backlogQuota["destination_storage"].limitSize == 9
    else:
        assert (found.messageTTL, found.dispatchRate) == (None, None)
        assert "destination_storage" not in found.backlogQuota


CALLS = "\n".join(
    map(json.dumps, [admin(f"{PATH}/messageTTL", 60), admin(f"{PATH}/maxProducersPerTopic", 3)])
)


@pytest.mark.parametrize("again", [False, True], ids=["", "again"])
@pytest.mark.parametrize("created", [None, {}, {"message_ttl_in_seconds": 5, "max_consumers_per_topic": 6}])
@pytest.mark.parametrize("content", [DUMP, YAML, CALLS], ids=["dump", "YAML", "calls"])
def test_a_namespace_that_must_be_created_has_the_policies(
    content: Any, created: Any, again: bool, file: Any
) -> None:
    """As in the log of a server, where nothing exists but what is created. The policies come before, and last if it is created again."""
    name, about = {CALLS: ("p.jsonl", ""), YAML: ("p.yaml", "")}.get(
        content if isinstance(content, str) else "", ("dump.json", f"{NAMESPACE}=")
    )
    source = f"{about}{file(content, name)}"
    log = [
        (None, {"command": "BROKER_CONFIG", "settings": {"namespacesMustExist": True}}),
        (None, admin("/tenants/public", {"allowedClusters": ["standalone"]}, "PUT")),
        (None, admin(PATH, created, "PUT")),
        (None, admin(f"{PATH}/messageTTL", 7)),
        (None, admin(f"{PATH}/maxConsumersPerSubscription", 8)),
        *([(None, admin(PATH, None, "DELETE")), (None, admin(PATH, created, "PUT"))] if again else []),
    ]
    found, expected = namespace(source, *log), namespace(source)
    for field in Policies.__struct_fields__:
        if (value := getattr(expected, field)) != getattr(NO_POLICIES, field):
            assert getattr(found, field) == value, field
    # A dump has all that there is; the others leave the rest as the log has it.
    others = found.maxConsumersPerTopic, found.maxConsumersPerSubscription
    in_log = (created or {}).get("max_consumers_per_topic"), None if again else 8
    assert others == ((None, None) if content is DUMP else in_log)


def test_what_a_dump_has_that_can_not_be_applied(file: Any) -> None:
    path = file(
        {
            "message_ttl_in_seconds": 5,
            "entryFilters": {"entryFilterNames": "a"},
            "topicDispatchRate": {"east": RATE, "west": RATE | {"dispatchThrottlingRateInMsg": 1}},
            "subscriptionDispatchRate": {"east": RATE, "west": RATE},
            "offload_policies": {"s3ManagedLedgerOffloadCredentialSecret": "PASSWORD"},
            "nonsense": "PASSWORD",
        }
    )
    assert policy_notes(path) == [
        f"{path}: {note}"
        for note in (
            "2 policies applied, 1 without effect here",
            "not applied: entryFilters: entry filters of a namespace or topic are not supported: use the setting entryFilterNames",
            "not applied: topicDispatchRate: it differs between east, west: leave one of them",
            "unknown, so Pulsar ignores it, too: nonsense",
        )
    ]
    assert "PASSWORD" not in str(read_policies(path, recorded(), judge))


# ---- policies of a topic


def of_topic(source: str | Path, *commands: tuple[str | None, dict[str, Any]], topic: str = T) -> Policies:
    return folded(recorded(*commands, topics=(topic,)), source).topic(topic).policies


@pytest.mark.parametrize("about", [T, "t", f"{NAMESPACE}/t"])
def test_the_policies_of_a_topic(about: str, file: Any) -> None:
    path = file(TOPIC)
    source = f"{about}={path}"
    logged = (T, admin(f"/persistent/{NAMESPACE}/t/maxConsumers", 5))
    found = of_topic(source, logged)
    assert (found.messageTTL, found.maxProducersPerTopic, found.maxConsumersPerTopic) == (3, 4, None)
    assert found.backlogQuota["destination_storage"].limitSize == 1 << 20
    assert found.delayedDelivery is not None
    assert (found.delayedDelivery.active, found.delayedDelivery.tickTime) == (True, 1000)
    assert found.subscriptionDispatchRates["a/s"].dispatchThrottlingRateInMsg == 10
    assert policy_notes(source) == [f"{path}: 6 policies applied, 1 without effect here"]


def test_the_policies_of_a_topic_are_those_of_its_partitions(file: Any) -> None:
    part = f"{T}-partition-1"
    assert of_topic(f"t={file(TOPIC)}", topic=part).messageTTL == 3


OF_TOPIC = "\n".join(
    json.dumps({"topic": T, **admin(f"/persistent/{NAMESPACE}/t/{call}", body)})
    for call, body in [
        ("messageTTL", 3),
        ("backlogQuota?backlogQuotaType=message_age", {"limitTime": 9, "policy": "producer_exception"}),
    ]
)
IN_YAML = f"topics: {{'{T}': {{messageTTL: 3, backlogQuota: {{message_age: {{limitTime: 9, policy: producer_exception}}}}}}}}"


@pytest.mark.parametrize("asked", [False, True], ids=["", "asked about"])
@pytest.mark.parametrize("kind", ["dump", "YAML", "calls"])
def test_policies_of_a_partitioned_topic_are_those_of_its_partitions(
    kind: str, asked: bool, file: Any
) -> None:
    """Whether or not a client has asked how many there are, which is a record of the whole topic. What the log sets on it is overridden."""
    name, content = {"dump": ("dump", TOPIC), "YAML": ("p.yaml", IN_YAML), "calls": ("p.jsonl", OF_TOPIC)}[
        kind
    ]
    source = f"{'t=' if kind == 'dump' else ''}{file(content, name)}"
    parts = [f"{T}-partition-{index}" for index in range(2)]
    path = f"/persistent/{NAMESPACE}/t"
    log: list[tuple[str | None, dict[str, Any]]] = [
        (parts[0], admin(f"/persistent/{NAMESPACE}/t-partition-0/messageTTL", 99)),
        (parts[0], admin(f"/persistent/{NAMESPACE}/t-partition-0/maxProducers", 98)),
    ]
    if asked:
        log += [
            (T, admin(f"{path}/partitions", 2, "PUT")),
            (T, {"command": "PARTITIONED_METADATA", "connection": "c", "topic": T, "request_id": 1}),
            (T, admin(f"{path}/messageTTL", 97)),
        ]
    broker = folded(recorded(*log, topics=tuple(parts)), source)
    for number, part in enumerate(parts):
        found = broker.topic(part).policies
        assert found.messageTTL == 3
        if kind != "dump":
            assert found.backlogQuota["message_age"].limitTime == 9
        own = 98 if number == 0 else None
        assert found.maxProducersPerTopic == (4 if kind == "dump" else own)


def test_a_topic_without_policies_has_none(file: Any) -> None:
    path = file({"isGlobal": True, "backLogQuotaMap": {}, "messageTTLInSeconds": None})
    logged = (T, admin(f"/persistent/{NAMESPACE}/t/maxConsumers", 5))
    assert of_topic(f"{T}={path}", logged).maxConsumersPerTopic is None


def test_the_names_of_a_topics_dump_in_a_file_of_policies(file: Any) -> None:
    text = "topics:\n  t:\n    messageTTLInSeconds: 9\n    maxProducers: 5\n    maxConsumerPerTopic: null\n"
    logged = (T, admin(f"/persistent/{NAMESPACE}/t/maxConsumers", 5))
    found = of_topic(file(text, "p.yaml"), logged)
    assert (found.messageTTL, found.maxProducersPerTopic, found.maxConsumersPerTopic) == (9, 5, None)


def event(topic: str, policies: dict[str, Any] | None) -> dict[str, Any]:
    named = {"domain": "persistent", "tenant": "public", "namespace": "default", "topic": topic}
    return {"eventType": "TOPIC_POLICY", "actionType": "UPDATE", "topicPoliciesEvent": named | {"policies": policies}}  # fmt: skip


@pytest.mark.parametrize("form", ["list", "lines", "pretty"])
def test_events_of_topics_policies(form: str, file: Any) -> None:
    """The last event of a topic counts, and topics that the log does not have are left out."""
    events = [event("t", {"messageTTLInSeconds": 1}), event("gone", TOPIC), event("t", TOPIC)]
    texts = {
        "list": json.dumps(events),
        "lines": "\n".join(map(json.dumps, events)),
        "pretty": "\n".join(json.dumps(each, indent=2) for each in events),
    }
    path = file(texts[form])
    assert of_topic(path).messageTTL == 3
    assert policy_notes(path) == [f"{path}: the policies of 2 topics, as far as the log has them"]
    with pytest.raises(LogError, match="the log has none of its topics"):
        of_topic(path, topic="persistent://a/b/c")


# ---- several files, and what is wrong with one


def test_files_with_commas_are_one_set(file: Any) -> None:
    conf, dump = file("ttlDurationDefaultInSeconds=7\n", "broker.conf"), file(DUMP, "dump.json")
    source = f"{conf},{NAMESPACE}={dump}"
    assert name_of(source) == "broker+dump"
    broker = folded(recorded(), source)
    assert broker._ctx.config.ttlDurationDefaultInSeconds == 7
    assert broker.namespace_policies[NAMESPACE].messageTTL == 3600
    assert [note.split(": ")[0] for note in policy_notes(source)] == [str(conf), str(dump)]


def test_contradictions_between_files_are_named(file: Any) -> None:
    dump = file(DUMP, "dump.json")
    text = f"broker:\n  maxProducersPerTopic: 5\nnamespaces:\n  {NAMESPACE}:\n    messageTTL: 5\n"
    yaml = file(text, "p.yaml")
    conf = file("maxProducersPerTopic=6\n", "my.conf")
    with pytest.raises(PolicyError) as caught:
        folded(recorded(), f"{dump},{yaml},{conf}")
    assert caught.value.problems == (
        f"{yaml} line 5: {PATH}/messageTTL: {dump} {NAMESPACE} sets this already, remove one of them",
        f"{conf} line 1: maxProducersPerTopic: {yaml} line 2 sets this already, remove one of them",
    )


@pytest.mark.parametrize(
    "policies",
    [
        {"namespaces": {NAMESPACE: {"messageTTL": 50, "message_ttl_in_seconds": 200}}},
        {"topics": {"t": {"messageTTL": 50}, "persistent://public/default/t": {"messageTTL": 200}}},
        {"namespaces": {NAMESPACE: {
            "backlogQuota": {"destination_storage": {"limitSize": 5000, "policy": "producer_exception"}},
            "backlog_quota_map": {"destination_storage": {"limitSize": 50, "policy": "producer_exception"}},
        }}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("indent", [None, 1])
def test_a_policy_that_is_set_twice_is_a_mistake_on_one_line_too(
    policies: dict[str, Any], indent: int | None, file: Any
) -> None:
    with pytest.raises(PolicyError, match="sets this already, remove one of them"):
        folded(recorded(), file(json.dumps(policies, indent=indent), "p.yaml"))


@pytest.mark.parametrize(
    ("kind", "of", "base"), [("namespaces", NAMESPACE, PATH), ("topics", T, T.replace("://", "/"))]
)
@pytest.mark.parametrize("parts", [None, {"destination_storage": None, "message_age": None}])
def test_null_removes_what_has_parts(kind: str, of: str, base: str, parts: Any, file: Any) -> None:
    path = f"/{base.lstrip('/')}/backlogQuota"
    limits = ((path, {"limitSize": 9}), (f"{path}?backlogQuotaType=message_age", {"limitTime": 9}))
    calls = [
        (T if kind == "topics" else None, {"command": "ADMIN", "method": "POST", "path": call, "body": body})
        for call, body in limits
    ]
    first = (T, {"producer": "q", "sequence_id": 1})

    def quotas(source: Path) -> int:
        broker = folded(recorded(first, *calls), source)
        own = broker.namespace_policies[NAMESPACE] if kind == "namespaces" else broker.topic(T).policies
        return len(own.backlogQuota)

    assert quotas(file(json.dumps({kind: {of: {"messageTTL": 5}}}), "other.yaml")) == 2
    assert quotas(file(json.dumps({kind: {of: {"backlogQuota": parts, "messageTTL": 5}}}), "null.yaml")) == 0
    assert (
        quotas(
            file(json.dumps({kind: {of: {"subscriptionDispatchRates": None, "messageTTL": 5}}}), "rates.yaml")
        )
        == 2
    )


@pytest.mark.parametrize(("one", "other"), [(NAMESPACE, NAMESPACE), ("t", T), (T, T)])
def test_two_files_with_all_policies_of_one_are_a_mistake(one: str, other: str, file: Any) -> None:
    first, second = file("{}", "first.json"), file('{"messageTTL": 5}', "second.json")
    whose = T if one == "t" else one
    with pytest.raises(LogError, match=rf"first\.json and .*second\.json: each has all policies of {whose}"):
        folded(recorded(), f"{one}={first},{other}={second}")


def test_a_path_that_exists_is_taken_as_it_is(tmp_path: Path) -> None:
    odd = tmp_path / "a=b,c.conf"
    odd.write_text("ttlDurationDefaultInSeconds=7\n")
    assert policy_sources(odd) == [(None, odd)]
    assert policy_sources("x,y=z") == [(None, Path("x")), ("y", Path("z"))]
    assert policy_sources("x" * 100_000) == [(None, Path("x" * 100_000))]
    assert config(odd).ttlDurationDefaultInSeconds == 7


OTHER = "persistent://public/other/t"


@pytest.mark.parametrize(
    ("content", "about", "says"),
    [
        (DUMP, "", "does not name it, and the log has 2 (public/default, public/other): write --policies public/default=FILE"),
        (DUMP, "public/no=", "the log has no topic in the namespace public/no: it has public/other"),
        (DUMP, f"{T}=", f"it has the policies of a namespace, and {T} is not the name of one"),
        (DUMP | {"message_ttl_in_seconds": -1}, "public/other=", "message_ttl_in_seconds: Invalid value for message TTL"),
        (DUMP | {"retention_policies": {"retentionTimeInMinutes": "x"}}, "public/other=", "retention_policies: Expected `int`"),
        (TOPIC, "", "it has the policies of a topic and does not name it: write --policies TOPIC=FILE"),
        (TOPIC, "public/other=", "it has the policies of a topic, and public/other is a namespace"),
        (TOPIC, "public/other/no=", "the log has no records of the topic persistent://public/other/no"),
        (TOPIC | {"messageTTLInSeconds": -1}, f"{OTHER}=", "messageTTLInSeconds: Invalid value for message TTL"),
        (RUNTIME, "public/other=", "it has the settings of a broker, which are not about public/other"),
        ("ttlDurationDefaultInSeconds=5", "public/other=", "it has the settings of a broker, which are not about public/other"),
        ("loadBalancerEnabled=false", "", "no setting in it has an effect here"),
        ("broker: {maxProducersPerTopic: 5}", "public/other=", "it names what it is about: leave out public/other="),
        ({"a": 1}, "", "expected the settings of a broker, the policies of a namespace or of a topic"),
        ([DUMP, DUMP], "", "expected the settings of a broker"),
        ([1], "", "expected an object in braces"),
        ('{"message_ttl_in_seconds": 5, "message_ttl_in_seconds": 6}', "", "message_ttl_in_seconds occurs twice: remove one"),
        ('{"message_ttl_in_seconds": NaN}', "", "NaN is not a number"),
        ('{"message_ttl_in_seconds": 5', "", "line 1: this is not JSON"),
        ("[" * 100_000, "", "nests too deeply"),
        ('{"message_ttl_in_seconds": ' + "9" * 5000 + "}", "public/other=", "is not a number that can be used"),
        (json.dumps({"command": "TICK"}), "", "it is a log of commands: give it a name that ends in .jsonl"),
        ("\0\1\2", "", "it is not a text"),
        (" " * (MOST_BYTES + 1), "", "MiB"),
        (event("t", {}) | {"topicPoliciesEvent": {"topic": "t"}}, "", "must have a domain, a tenant"),
    ],
)  # fmt: skip
def test_mistakes_are_named(content: Any, about: str, says: str, file: Any) -> None:
    path = file(content)
    records = recorded(topics=(T, OTHER))
    with pytest.raises(LogError) as caught:
        read_policies(f"{about}{path}", records, judge)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("path", ["/namespaces/public/no/messageTTL", "/persistent/public/no/t/messageTTL"])
def test_a_policy_for_a_log_without_topics(path: str, file: Any) -> None:
    call = {"timestamp": 1, "command": "ADMIN", "method": "POST", "path": path, "body": 5}
    with pytest.raises(
        LogError, match=r"(the log has no|there is no).* public/no\b|persistent://public/no/t"
    ):
        read_policies(file(json.dumps(call), "calls.jsonl"), recorded(topics=()), judge)


OF_OBJECTS = [
    name for name, (_, type_) in POLICY_CALLS.items() if any(hasattr(each, "__struct_fields__") for each in (type_, *get_args(type_)))
]  # fmt: skip


@pytest.mark.parametrize("policy", [*OF_OBJECTS, "backlogQuota", "s/dispatchRate"])
def test_a_misspelled_field_is_a_mistake(policy: str, file: Any) -> None:
    """A broker ignores it, so the policy would lack what it means."""
    call = admin(f"/persistent/{NAMESPACE}/t/{policy}", {"oops": 1}) | {"topic": T, "timestamp": 0}
    table = file(json.dumps(call), "a.jsonl")
    with pytest.raises(PolicyError, match="unknown field `oops`"):
        read_policies(table, recorded(), judge)


def test_fields_that_pulsar_has_are_no_mistake(file: Any) -> None:
    quota, persistence = (
        {"limit": 5, "policy": "producer_exception"},
        {"managedLedgerStorageClassName": "a", "bookkeeperEnsemble": 2},
    )
    found = namespace(
        file(
            f"namespaces: {{{NAMESPACE}: {{backlogQuota: {{destination_storage: {json.dumps(quota)}}}, persistence: {json.dumps(persistence)}}}}}",
            "a.yaml",
        )
    )
    assert found.backlogQuota["destination_storage"].limitSize == 5


def test_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "my.conf"
    for text in (
        b"\xef\xbb\xbf# caf\xc3\xa9\nmaxProducersPerTopic=5",
        b"\xef\xbb\xbf# caf\xe9\r\nmaxProducersPerTopic=5\r\n",
    ):
        path.write_bytes(text)
        assert config(path).maxProducersPerTopic == 5
        assert len(policy_notes(path)) == 1
    path.write_bytes("maxProducersPerTopic=5".encode("utf-16"))  # as Windows' shell writes it
    assert config(path).maxProducersPerTopic == 5
    path.write_bytes("maxProducersPerTopic=5".encode("utf-16-le"))
    with pytest.raises(LogError, match="it is not a text"):
        policy_notes(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file of policies"):
        policy_notes(f"public/default={tmp_path / 'nope'}")
    assert is_log(tmp_path)


def test_many_unknown_settings_cost_little_and_are_not_all_told(file: Any) -> None:
    path = file(
        "".join(f"unknown{number}=1\n" for number in range(50_000)) + "maxProducersPerTopic=5\n", "x.conf"
    )
    notes = policy_notes(path)
    assert notes[-1] == f"{path}: and 49,980 more like this"
    assert len(notes) == 22


@pytest.mark.parametrize(
    "text",
    [
        "{}" * 200_000,
        "{" + ",".join(f'"x{number % 49_999}":1' for number in range(50_000)) + "}",
        "{" + ",".join(f'"bookkeeper_{number}":"1"' for number in range(50_000)) + "}",
        "bookkeeper_x=1\n" * 100_000,
        "bookkeeper_x=\\\n" + "\\\n" * 200_000,
        " " * 1_000_000,
        "[" * 1_000_000,
        "x" * 500_000,
    ],
    ids=["objects", "twice", "many", "again", "continued", "spaces", "nested", "long"],
)
def test_no_file_costs_much(text: str, file: Any) -> None:
    path = file(text)
    began = time.process_time()
    with pytest.raises(LogError):
        policy_notes(path)
    assert time.process_time() - began < 5


def test_the_commands_of_a_dump_are_calls_that_pulsar_has(file: Any) -> None:
    found = read_policies(f"{file(DUMP, 'd')},t={file(TOPIC, 't')}", recorded(), judge)
    assert {type(each.command) for each in found} == {Admin}
    decoded = [decode(json.dumps(each.fields).encode()) for each in found]
    assert not [each for each in decoded if isinstance(each, BrokerConfig)]


@pytest.mark.parametrize("name", ["broker.yaml", "broker.jsonl", "broker.conf"])
def test_a_file_of_settings_that_all_have_no_effect_is_refused(name: str, file: Any) -> None:
    texts = {
        "broker.yaml": "broker:\n  numIOThreads: 5\n  loadBalancerEnabled: false\n",
        "broker.jsonl": json.dumps(
            {"command": "BROKER_CONFIG", "settings": {"numIOThreads": 5, "loadBalancerEnabled": False}}
        ),
        "broker.conf": "numIOThreads=5\nloadBalancerEnabled=false\n",
    }
    with pytest.raises(LogError, match="no setting in it has an effect here"):
        config(file(texts[name], name))


def test_what_is_told_of_settings_in_yaml(file: Any) -> None:
    path = file("broker:\n  numIOThreads: 5\n  maxProducersPerTopic: 3\n", "broker.yaml")
    assert policy_notes(path) == [f"{path}: 1 setting applied, 1 without effect here"]
    assert config(path).maxProducersPerTopic == 3
    assert policy_notes(file("broker:\n  maxProducersPerTopic: 3\n", "applied.yaml")) == []
