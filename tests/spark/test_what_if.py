"""Policies pinned over a log."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import Admin, BrokerConfig, SubType, decode
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.policies.admin_calls import POLICY_CALLS, QUOTA_TYPES
from streaming.broker.policies.hierarchy import (
    AutoSubscriptionCreationOverride,
    AutoTopicCreationOverride,
    BacklogQuota,
    DelayedDeliveryPolicies,
    DispatchRate,
    InactiveTopicPolicies,
    PersistencePolicies,
    Policies,
    PublishRate,
    RetentionPolicies,
    SubscribeRate,
)
from streaming.broker.policies.kept import KEPT
from streaming.cli.replay import replay_command
from streaming.fold.columns import Fold
from streaming.log.files import write_log
from streaming.log.partition import partition_log
from streaming.log.pins import Pinned, pin
from streaming.log.policies import read_policies
from streaming.log.policy_files import PolicyError
from streaming.quality.gate import judge
from tests.broker.kit import feed
from tests.examples import examples
from tests.spark.helpers import Nowhere, log_of

NAMESPACE = "/namespaces/public/default"
TTL, QUOTA = f"{NAMESPACE}/messageTTL", f"{NAMESPACE}/backlogQuota"
TOPIC = "persistent://public/default/t"
SIZE, PRODUCERS = "maxMessageSize", "maxProducersPerTopic"


def admin(path: str, body: object, method: str = "POST") -> dict[str, object]:
    return {"command": "ADMIN", "method": method, "path": path, "body": body}


def under(records: pa.Table, *policies: tuple[str | None, object]) -> Pinned:
    """The log under policies, each with its topic."""
    return pin(records, read_policies(log_of(*((0, *policy) for policy in policies)), records, judge))


def problems(*policies: tuple[str | None, object], log: pa.Table | None = None) -> tuple[str, ...]:
    """What is wrong with policies, each with its topic."""
    with pytest.raises(PolicyError) as caught:
        under(recorded() if log is None else log, *policies)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def recorded() -> pa.Table:
    config = {"command": "BROKER_CONFIG", "profile": "2.x", "settings": {SIZE: 1, PRODUCERS: 2}}
    log = log_of(
        (10, None, config),
        (11, None, admin(TTL, 100)),
        (12, None, admin(QUOTA, 5)),
        (13, TOPIC, {"producer": "p", "sequence_id": 1}),
        (14, None, admin(TTL, None, "GET")),
        (15, None, config | {"settings": {PRODUCERS: 3}}),
    )
    return partition_log(log, 2)


@pytest.mark.feature("I1")
def test_what_the_log_says_of_a_pinned_setting_is_left_out() -> None:
    config = {"command": "BROKER_CONFIG", "settings": {PRODUCERS: 9}}
    records, shift = under(recorded(), (None, admin(TTL, 7)), (None, config))
    assert shift == 2
    for partition in (0, 1):
        own = records.filter(pa.compute.equal(records["partition"], partition))
        offsets, commands = own["offset"].to_pylist(), [decode(value) for value in own["value"].to_pylist()]
        assert offsets == sorted(set(offsets))
        assert commands[:2] == [
            BrokerConfig(profile="2.x", settings={SIZE: 1, PRODUCERS: 9}),
            Admin(method="POST", path=TTL, body=7, lasting=True),
        ]
        assert own["timestamp"].to_pylist()[:3] == [10, 10, 12]
        assert [each.path for each in commands if isinstance(each, Admin)] == [TTL, QUOTA, TTL]
        assert commands[-1] == BrokerConfig(profile="2.x", settings={PRODUCERS: 9})


@pytest.mark.feature("I1")
def test_records_keep_their_offsets_but_for_the_shift() -> None:
    before = recorded()
    records, shift = under(before, (None, admin(TTL, 7)))
    moved = {(r["partition"], r["offset"] - shift): r["value"] for r in records.to_pylist()}
    for record in before.to_pylist():
        command = decode(record["value"])
        if not isinstance(command, BrokerConfig) and not (isinstance(command, Admin) and command.path == TTL):
            assert moved[record["partition"], record["offset"]] == record["value"]


@pytest.mark.feature("I1")
def test_a_topics_policy_goes_where_the_topic_is() -> None:
    topics = [f"persistent://public/default/t{n}" for n in range(9)]
    log = partition_log(log_of(*((0, topic, {"producer": "p", "sequence_id": 1}) for topic in topics)), 3)
    records, _ = under(log, (topics[3], admin("/persistent/public/default/t3/messageTTL", 7)))
    extra = [row for row in records.to_pylist() if b"ADMIN" in row["value"]]
    home = next(row for row in log.to_pylist() if row["topic"] == topics[3])
    assert [(row["partition"], row["topic"]) for row in extra] == [(home["partition"], topics[3])]


@pytest.mark.feature("I1")
def test_a_log_without_a_configuration_gets_the_pinned_one() -> None:
    log = partition_log(log_of((5, TOPIC, {"producer": "p", "sequence_id": 1})), 1)
    records, _ = under(log, (None, {"command": "BROKER_CONFIG", "profile": "2.x"}))
    assert decode(records["value"][0].as_py()) == BrokerConfig(profile="2.x")
    assert records["offset"].to_pylist() == [0, 1]


@pytest.mark.feature("I1")
def test_a_policy_of_the_log_is_left_out_whichever_of_its_names_it_has() -> None:
    """Else the log's own would override the pinned one."""
    of_topic = "/persistent/public/default/t"
    log = partition_log(
        log_of(
            (1, TOPIC, {"producer": "p", "sequence_id": 1}),
            (2, TOPIC, admin(f"{of_topic}/messageTTL?messageTTL=5", None)),
            (2, TOPIC, admin(f"{of_topic}/maxProducersPerTopic", 5)),
            (2, None, admin(f"{NAMESPACE}/deduplication", False)),
            (2, None, admin(QUOTA, {"limitSize": 5})),
            (2, None, admin(f"{QUOTA}?backlogQuotaType=message_age", {"limitTime": 5})),
        ),
        1,
    )
    records, shift = under(
        log,
        (TOPIC, admin(f"{of_topic}/messageTTL?messageTTL=9", None)),
        (TOPIC, admin(f"{of_topic}/maxProducers", 9)),
        (None, admin(f"{NAMESPACE}/deduplicationEnabled", True)),
        (None, admin(f"{QUOTA}?backlogQuotaType=destination_storage", {"limitSize": 9})),
    )
    rest = [decode(value) for value in records["value"].to_pylist()[shift:]]
    assert [each.path for each in rest if isinstance(each, Admin)] == [
        f"{QUOTA}?backlogQuotaType=message_age"
    ]


PARTITIONED = log_of(
    *((5, f"{TOPIC}-partition-{n}", {"producer": "p", "sequence_id": 1}) for n in range(2)),
)
GOOD = (None, admin(f"{NAMESPACE}/deduplication", True))
OF_TOPIC = admin("/persistent/public/default/t/messageTTL", 7)


@pytest.mark.feature("I1")
@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ((None, b"rubbish"), "neither a JSON object, which begins with {"),
        ((None, admin(TTL, 7) | {"methd": 1}), "Object contains unknown field `methd`"),
        ((None, admin("x" * 5000, 7)), "path"),
        ((None, {"command": "TICK"}), "neither an ADMIN nor a BROKER_CONFIG command"),
        ((None, admin(TTL, None, "GET")), "GET asks and sets nothing"),
        ((None, admin(f"{NAMESPACE}/messageTL", 7)), "messageTL is not a policy: perhaps messageTTL is meant"),
        ((None, admin(f"{NAMESPACE}/unload", None, "PUT")), "unload is not a policy: policies are autoSubscriptionCreation, "),
        ((TOPIC, admin("/persistent/public/default/t/skip", 7)), "skip is not a policy"),
        ((None, admin("/clusters/public", 7)), "POST /clusters/public sets no policy of a topic or a namespace"),
        ((None, admin(f"{NAMESPACE}/offloadThreshold", 5)), "keeps offloadThreshold without acting on it"),
        ((TOPIC, admin("/persistent/public/default/t/offloadPolicies", {})), "keeps offloadPolicies without"),
        ((None, OF_TOPIC), f'the command is about a topic, but its record has none: add "topic": "{TOPIC}"'),
        ((f"{TOPIC}t", OF_TOPIC), f"the log has no records of the topic {TOPIC}t: it has {TOPIC}"),
        ((TOPIC, admin("/persistent/public/default/u/messageTTL", 7)), "is not about the record's topic"),
        ((None, admin("/namespaces/public/defaults/messageTTL", 7)), "no topic in the namespace public/defaults: it "),
        ((None, admin(TTL, "soon")), "Expected `int`, got `str`"),
        ((None, admin(TTL, 2**31)), "Expected `int` <= 2147483647"),
        ((None, admin(QUOTA, {"limitSize": 1, "limitBytes": 2})), "unknown field `limitBytes`"),
        ((None, admin(f"{QUOTA}?backlogQuotaType=size", {"limitSize": 1})), "unknown backlogQuotaType size"),
        ((None, admin(f"{NAMESPACE}/retention", {"retentionSizeInMB": 1})), "Setting a single time or size limit to 0 is invalid"),
        ((None, {"command": "BROKER_CONFIG"}), "gives neither a profile nor settings"),
        ((None, {"command": "BROKER_CONFIG", "profile": "3.x"}), "Invalid enum value '3.x'"),
        ((None, {"command": "BROKER_CONFIG", "settings": {"maxMesageSize": 1}}), "(perhaps maxMessageSize)"),
        ((None, {"command": "BROKER_CONFIG", "settings": {"maxMessageSize": "big"}}), "expected an integer, 1 to "),
        ((None, admin(f"{NAMESPACE}/deduplicationEnabled", False)), "row 1 sets this already, remove one of them"),
    ],
)  # fmt: skip
def test_a_mistake(policy: tuple[str | None, object], problem: str) -> None:
    """Each would leave the result unchanged, and it would be taken for the answer."""
    [found] = problems((TOPIC, OF_TOPIC), GOOD, policy)
    assert found.startswith("row 2: ")
    assert problem in found


@pytest.mark.feature("I1")
def test_a_mistake_is_found_by_the_settings_that_the_log_itself_has() -> None:
    config = {"command": "BROKER_CONFIG", "settings": {"allowAutoTopicCreation": False, SIZE: 1}}
    log = partition_log(log_of((0, None, config), (1, TOPIC, {"producer": "p", "sequence_id": 1})), 2)
    larger = admin("/persistent/public/default/t/maxMessageSize", 2)
    assert "must be smaller than that in the broker-level" in problems((TOPIC, larger), log=log)[0]
    under(log, (TOPIC, OF_TOPIC))  # it holds as soon as anything creates the topic


@pytest.mark.feature("I1")
def test_a_partitioned_topic_has_its_policies_on_its_partitions() -> None:
    log = partition_log(PARTITIONED, 2)
    pinned = under(log, (TOPIC, OF_TOPIC)).records.to_pylist()
    assert {row["topic"] for row in pinned if b"messageTTL" in row["value"]} == {
        f"{TOPIC}-partition-{index}" for index in range(2)
    }
    of_partition = admin("/persistent/public/default/t-partition-1/messageTTL", 7)
    assert len(under(log, (f"{TOPIC}-partition-1", of_partition)).records) == 3


@pytest.mark.feature("I1")
def test_all_mistakes_are_told_at_once_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, file, out = tmp_path / "log.jsonl", tmp_path / "policies.jsonl", tmp_path / "out"
    write_log(log, recorded())
    config = {"command": "BROKER_CONFIG", "settings": {"one": 1, PRODUCERS: 2, "three": 3}}
    lines = [admin(TTL, 7), None, admin(f"{NAMESPACE}/x", 7), config, admin(TTL, -1), {"command": "TICK"}]
    file.write_bytes(b"\n".join(b"" if line is None else msgspec.json.encode(line) for line in lines))
    with pytest.raises(typer.Exit) as caught:
        replay_command(log, out, policies=str(file))
    assert caught.value.exit_code == 2
    said = capsys.readouterr().err
    places = [line.split(":")[0].strip() for line in said.splitlines()]
    assert places == ["magnetar", "line 3", "line 4", "line 4", "line 5", "line 5", "line 6"]
    assert f"{file} has 6 mistakes" in said
    assert not out.exists()


@pytest.mark.feature("I1")
def test_no_policies_are_a_mistake(tmp_path: Path) -> None:
    assert "has no policies" in problems()[0]
    assert "has no policies" in problems(log=partition_log(log_of(), 1))[0]


VALUES: dict[Any, Any] = {
    bool: True,
    list[SubType]: ["Shared"],
    DelayedDeliveryPolicies | None: {"active": False, "tickTime": 9},
    PersistencePolicies | None: {"managedLedgerMaxMarkDeleteRate": 0.9},
    RetentionPolicies: {"retentionTimeInMinutes": 9, "retentionSizeInMB": 9},
    DispatchRate: {"dispatchThrottlingRateInMsg": 9},
    PublishRate: {"publishThrottlingRateInMsg": 9},
    SubscribeRate: {"subscribeThrottlingRatePerConsumer": 9},
    InactiveTopicPolicies | None: {"maxInactiveDurationSeconds": 9},
    AutoTopicCreationOverride | None: {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
    AutoSubscriptionCreationOverride | None: {"allowAutoSubscriptionCreation": True},
    POLICY_CALLS["schemaCompatibilityStrategy"][1]: "FULL",
}


@pytest.mark.feature("I1")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "scope", [NAMESPACE, "/persistent/public/default/t", "/persistent/public/default/t%20u"]
)
def test_every_policy_can_be_pinned(scope: str, method: str) -> None:
    log = recorded()
    topic = None if scope == NAMESPACE else f"{TOPIC} u" if "%" in scope else TOPIC
    if topic is not None:
        # Topics have all of them since 4.2.
        config = {"command": "BROKER_CONFIG", "profile": "4.2"}
        log = partition_log(log_of((4, None, config), (5, topic, {"producer": "p", "sequence_id": 1})), 2)
    for name, (_, type_) in POLICY_CALLS.items():
        if name in KEPT:
            continue
        body = 1 if name == "maxMessageSize" else VALUES.get(type_, 7)  # the broker's is 1 in that log
        under(log, (topic, admin(f"{scope}/{name}", body, method)))
    quota = msgspec.to_builtins(BacklogQuota(limitSize=5))
    under(log, (topic, admin(f"{scope}/backlogQuota?backlogQuotaType=message_age", quota, method)))


@pytest.mark.feature("I1")
def test_a_pinned_policy_outlives_a_call_that_removes_all_of_its_topic() -> None:
    """As a mirror writes it that goes on. The others are removed."""
    scope, quota = "/persistent/public/default/t", msgspec.to_builtins(BacklogQuota(limitSize=5))
    bodies = {name: VALUES.get(type_, 7) for name, (_, type_) in POLICY_CALLS.items() if name not in KEPT}
    bodies |= {f"backlogQuota?backlogQuotaType={type_}": quota for type_ in QUOTA_TYPES}
    bodies["s/dispatchRate"] = VALUES[DispatchRate]
    for name, body in bodies.items():
        calls = [(TOPIC, admin(f"{scope}/{each}", body)) for each, body in bodies.items() if each != name]
        config = {"command": "BROKER_CONFIG", "profile": "4.2"}
        removal = (TOPIC, admin(f"{scope}/policies", None, "DELETE"))
        log = [(None, config), (TOPIC, {"producer": "p", "sequence_id": 1}), *calls, removal]
        records, _ = under(
            partition_log(log_of(*((5, *each) for each in log)), 1), (TOPIC, admin(f"{scope}/{name}", body))
        )
        broker, alone = Broker(0, NoEntries()), Broker(0, NoEntries())
        for row in records.to_pylist():
            feed(broker, row["offset"], row["timestamp"], row["topic"], row["value"])
        for offset, (topic, command) in enumerate([*log[:2], (TOPIC, admin(f"{scope}/{name}", body))]):
            feed(alone, offset, 5, topic, json.dumps(command).encode())
        found = broker.topic(TOPIC).policies
        assert found == alone.topic(TOPIC).policies != Policies(), name


CALLS = st.builds(
    admin,
    st.builds(
        "{}{}".format,
        st.sampled_from([NAMESPACE, "/persistent/public/default/t", "/namespaces/public/other", "/tenants/public"]),
        st.sampled_from(
            ["", "/messageTTL", "/messageTTL?messageTTL=3", "/messageTL", "/persistence", "/properties", "/retention", "/backlogQuota", "/deduplication",
             "/backlogQuota?backlogQuotaType=message_age", "/maxConsumers", "/subscription/s", "/subscription/s/skip/3",
             "/partitions", "/unload"]
        ),
    ),
    st.sampled_from(
        [None, 0, 7, -1, 2**40, True, "x", {}, {"limitSize": 5}, {"limitTime": 9, "policy": "producer_exception"},
         {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}, {"retentionTimeInMinutes": 1, "retentionSizeInMB": 0}]
    ),
    st.sampled_from(["POST", "PUT", "DELETE", "GET"]),
)  # fmt: skip
CONFIGS = st.builds(
    lambda settings: {"command": "BROKER_CONFIG", "settings": settings},
    st.dictionaries(
        st.sampled_from([SIZE, PRODUCERS, "maxMesageSize", "allowAutoTopicCreation", "managedLedgerMaxEntriesPerLedger"]),
        st.sampled_from([0, 1, -1, 10**16, "5", "x", True, "false"]),
        max_size=3,
    ),
)  # fmt: skip


@pytest.mark.feature("I1")
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.sampled_from([None, TOPIC, f"{TOPIC}u"]), CALLS | CONFIGS), max_size=4))
def test_what_passes_takes_effect(policies: list[tuple[str | None, object]]) -> None:
    """The broker refuses nothing of what the check lets pass."""
    log = recorded()
    try:
        records, shift = under(log, *policies)
    except PolicyError:
        return
    for _, rows in Fold(Nowhere()).apply(records):
        for kind in ("QUARANTINED", "UNSUPPORTED"):
            assert kind not in rows or min(rows[kind]["offset"].to_pylist()) >= shift
        for row in rows["ADMIN_RESPONSE"].to_pylist() if "ADMIN_RESPONSE" in rows else []:
            assert row["offset"] >= shift or msgspec.json.decode(row["fields"])["status"] < 400
