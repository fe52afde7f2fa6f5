"""Policies pinned over a log."""

import pyarrow as pa
import pytest

from schemas.commands import Admin, BrokerConfig, decode
from streaming.log.partition import partition_log
from streaming.log.policies import pin
from streaming.log.table import LogError
from tests.spark.helpers import log_of

TTL = "/namespaces/public/default/messageTTL"
QUOTA = "/namespaces/public/default/backlogQuota"


def admin(path: str, body: object, method: str = "POST") -> dict[str, object]:
    return {"command": "ADMIN", "method": method, "path": path, "body": body}


def recorded() -> pa.Table:
    config = {"command": "BROKER_CONFIG", "profile": "2.x", "settings": {"a": 1, "b": 2}}
    log = log_of(
        (10, None, config),
        (11, None, admin(TTL, 100)),
        (12, None, admin(QUOTA, 5)),
        (13, "t", {"producer": "p", "sequence_id": 1}),
        (14, None, admin(TTL, None, "GET")),
        (15, None, config | {"settings": {"b": 3}}),
    )
    return partition_log(log, 2)


@pytest.mark.feature("I1")
def test_what_the_log_says_of_a_pinned_setting_is_left_out() -> None:
    policies = log_of((0, None, admin(TTL, 7)), (0, None, {"command": "BROKER_CONFIG", "settings": {"b": 9}}))
    records, shift = pin(recorded(), policies)
    assert shift == 2
    for partition in (0, 1):
        own = records.filter(pa.compute.equal(records["partition"], partition))
        offsets, commands = own["offset"].to_pylist(), [decode(value) for value in own["value"].to_pylist()]
        assert offsets == sorted(set(offsets))
        assert commands[:2] == [
            BrokerConfig(profile="2.x", settings={"a": 1, "b": 9}),
            Admin(method="POST", path=TTL, body=7),
        ]
        assert own["timestamp"].to_pylist()[:3] == [10, 10, 12]
        assert [each.path for each in commands if isinstance(each, Admin)] == [TTL, QUOTA, TTL]
        assert commands[-1] == BrokerConfig(profile="2.x", settings={"b": 9})


@pytest.mark.feature("I1")
def test_records_keep_their_offsets_but_for_the_shift() -> None:
    before = recorded()
    records, shift = pin(before, log_of((0, None, admin(TTL, 7))))
    moved = {(r["partition"], r["offset"] - shift): r["value"] for r in records.to_pylist()}
    for record in before.to_pylist():
        command = decode(record["value"])
        if not isinstance(command, BrokerConfig) and not (isinstance(command, Admin) and command.path == TTL):
            assert moved[record["partition"], record["offset"]] == record["value"]


@pytest.mark.feature("I1")
def test_a_topics_policy_goes_where_the_topic_is() -> None:
    policy = admin("/persistent/public/default/x/messageTTL", 7)
    log = partition_log(log_of(*((n, f"t{n}", {"producer": "p", "sequence_id": 1}) for n in range(9))), 3)
    records, _ = pin(log, log_of((0, "t3", policy), (0, "unknown", policy)))
    extra = [row for row in records.to_pylist() if b"ADMIN" in row["value"]]
    home = next(row for row in log.to_pylist() if row["topic"] == "t3")
    assert [(row["partition"], row["topic"]) for row in extra] == [(home["partition"], "t3")]


@pytest.mark.feature("I1")
def test_a_log_without_a_configuration_gets_the_pinned_one() -> None:
    log = partition_log(log_of((5, "t", {"producer": "p", "sequence_id": 1})), 1)
    records, _ = pin(log, log_of((0, None, {"command": "BROKER_CONFIG", "profile": "2.x"})))
    assert decode(records["value"][0].as_py()) == BrokerConfig(profile="2.x")
    assert records["offset"].to_pylist() == [0, 1]


@pytest.mark.feature("I1")
def test_only_policies() -> None:
    with pytest.raises(LogError, match="neither an ADMIN nor a BROKER_CONFIG"):
        pin(recorded(), log_of((0, None, {"command": "TICK"})))
    with pytest.raises(LogError, match="policies: "):
        pin(recorded(), log_of((0, None, b"rubbish")))
