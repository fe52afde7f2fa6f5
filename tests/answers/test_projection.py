"""`magnetar whatif --from`: the traffic of a log on the state of a query."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from schemas.commands import Ack, BrokerConfig, Publish, Seek, decode
from schemas.units import LATEST_TIME
from sinks.ledger_store import LedgerStore
from streaming.answers.history.folders import NotFound
from streaming.answers.history.inspection import states_at
from streaming.answers.whatif.answer import WhatIf
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.projection import LiveState, partitions_of, project
from streaming.jobs.replay import load, replay_in_process, replay_log
from streaming.log.partition import ingress_partition
from streaming.state.saved import read_states
from tests.answers.test_reactive import as_table
from tests.answers.test_whatif import (
    START,
    Record,
    T,
    ack,
    eviction,
    flow,
    publish,
    subscribe,
    table,
    tick,
    ttl,
)
from tests.broker.random_lives import live as life

DEDUP = (
    0,
    T,
    {"command": "ADMIN", "method": "POST", "path": "/persistent/a/b/t/deduplicationEnabled", "body": True},
)
TRAFFIC: list[Record] = [
    DEDUP, subscribe(), flow(0, 3), *(publish(1, number, publish_time=START + 1000) for number in range(5)), ack(10, 1),
    tick(1000),
]  # fmt: skip


def live_after(tmp_path: Path, records: Sequence[Record]) -> LiveState:
    """The state that a replay in this process left."""
    return state_after(tmp_path, table(records))


def state_after(tmp_path: Path, log: pa.Table) -> LiveState:
    """The same of a log."""
    out = tmp_path / "replayed"
    replay_in_process(log, out, partitions=2)
    return LiveState(read_states(out / "state") or [], LedgerStore(str(out / "store")))


def summary_of(found: WhatIf, policies: str) -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = (
        row for row in found.summary.to_pylist() if (row["policies"], row["subscription"]) == (policies, "s")
    )
    return row


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 5, 64])
def test_another_number_of_partitions_than_the_states_have(partitions: int, tmp_path: Path) -> None:
    live = live_after(tmp_path, TRAFFIC)
    expected = whatif(table(TRAFFIC), [PolicySet("short", ttl(300))], live=live)
    (of_topic,) = (each.partition for each in live.states if ingress_partition(T, 2) == each.partition)
    if partitions >= 2 and ingress_partition(T, partitions) == of_topic:
        found = whatif(table(TRAFFIC), [PolicySet("short", ttl(300))], live=live, partitions=partitions)
        assert found.summary.to_pylist() == expected.summary.to_pylist()
    else:
        with pytest.raises(NotFound, match="--partitions"):
            whatif(table(TRAFFIC), [], live=live, partitions=partitions)


@pytest.mark.spark
def test_the_checkpoint_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    log = table(TRAFFIC)
    replay_log(log, tmp_path / "out", partitions=2, spark=spark)
    states = states_at(spark, tmp_path / "out" / "checkpoint")
    live = LiveState(states, LedgerStore(str(tmp_path / "out" / "store")))
    found = whatif(log, [PolicySet("short", ttl(300))], live=live)
    # Five messages were there, of which one was acked; five come, of which one is acked: the second, wherever it is now.
    assert summary_of(found, "baseline")["backlog"] == 8
    assert summary_of(found, "baseline")["acked"] == 2
    rows = found.differences.to_pylist()
    # Those that were there expire at once, so the consumer gets others.
    (other,) = (row for row in rows if row["change"] != "lost newly")
    assert (other["change"], other["sequence_id"]) == ("redelivered", 6)
    rows.remove(other)
    assert [row["sequence_id"] for row in rows if row["offset"] is None] == [0, 2, 3, 4]
    assert [row["sequence_id"] for row in rows if row["offset"] is not None] == [5, 7, 8, 9]
    assert {row["baseline_fate"] for row in rows} == {"waiting"}
    assert found.begin == max(each.clock for each in states)
    assert found.end == found.begin + 1_000_000
    assert all(row["publish_time"] == found.begin + 1000 for row in rows if row["offset"] is not None)
    assert [each.unmatched for each in found.totals] == [0, 0]


def test_what_was_delivered_before_and_quotas_on_what_is_there(tmp_path: Path) -> None:
    live = live_after(tmp_path, TRAFFIC)
    found = whatif(table([tick(0), tick(500)]), [], live=live)
    assert summary_of(found, "baseline")["backlog"] == 4
    found = whatif(table([publish(1, 0), tick(500)]), [PolicySet("small", eviction(150))], live=live)
    assert {row["change"] for row in found.differences.to_pylist()} == {"lost newly"}
    assert summary_of(found, "small")["lost_delivered"] > 0


@pytest.mark.parametrize("must", [False, True], ids=["anything exists", "namespacesMustExist"])
def test_policies_of_a_namespace_as_pulsar_shows_them_on_what_is_there(must: bool, tmp_path: Path) -> None:
    """In YAML they leave the others of the state as they are. A dump is all that the namespace has."""
    calls: list[Record] = [
        (0, None, {"command": "ADMIN", "method": method, "path": path, "body": body})
        for method, path, body in [
            ("PUT", "/tenants/a", {"allowedClusters": ["standalone"]}),
            ("PUT", "/namespaces/a/b", None),
            ("POST", "/namespaces/a/b/messageTTL", 100),
        ]
    ]
    records = [*calls, subscribe(), *(publish(1, number) for number in range(3))]
    live = state_after(tmp_path, table(records, namespacesMustExist=must))
    dump = tmp_path / "dump.json"
    dump.write_text('{"max_producers_per_topic": 5}')
    some = tmp_path / "some.yaml"
    some.write_text("namespaces:\n  a/b:\n    max_producers_per_topic: 5\n")
    found = whatif(table([*calls[:2], publish(1, 9), tick(500)]), [some, f"a/b={dump}"], live=live)
    expired = {
        row["policies"]: row["expired"] for row in found.summary.to_pylist() if row["subscription"] == "s"
    }
    assert expired == {"baseline": 4, "some": 4, "dump": 0}


@pytest.mark.parametrize("start", [True, False], ids=["state", "log"])
def test_a_setting_that_the_admin_api_changed_is_another_one_under_policies(
    start: bool, tmp_path: Path
) -> None:
    """Wherever the call was: before the state, or in the log."""
    path = "/brokers/configuration/allowAutoSubscriptionCreation/false"
    records: list[Record] = [(0, None, {"command": "ADMIN", "method": "POST", "path": path}), publish(1, 0)]
    traffic = [subscribe(), publish(1, 9), tick(500)]
    policies = tmp_path / "other.yaml"
    policies.write_text("broker: {allowAutoSubscriptionCreation: true}")
    if start:
        found = whatif(table(traffic), [policies], live=live_after(tmp_path, records))
    else:
        found = whatif(table([*records, *traffic]), [policies])
    assert {row["policies"] for row in found.summary.to_pylist() if row["subscription"] == "s"} == {"other"}


def test_times_and_ids_move_and_settings_stay_as_they_are(tmp_path: Path) -> None:
    seek = {
        "command": "SEEK",
        "connection": "s",
        "consumer_id": 1,
        "request_id": 2,
        "message_publish_time": START + 5,
    }
    reset = {
        "command": "ADMIN",
        "method": "POST",
        "path": f"/persistent/a/b/t/subscription/s/resetcursor/{START}",
    }
    records = [
        *TRAFFIC,
        (1001, T, seek),
        (1002, T, reset),
        (1003, T, {"command": "FLOW", "connection": "s", "consumer_id": 1, "messagePermits": 1}),
    ]
    live = live_after(tmp_path, TRAFFIC)
    moved = project(load(table(records), partitions=2).records, live.read())
    shift = max(each.clock for each in live.states) - START
    own = [
        decode(value)
        for topic, value in zip(
            moved.records["topic"].to_pylist(), moved.records["value"].to_pylist(), strict=True
        )
        if topic
    ]
    assert [(each.sequence_id, each.publish_time) for each in own if isinstance(each, Publish)] == [
        (number, START + 1000 + shift) for number in range(5, 10)
    ]
    assert [each.message_publish_time for each in own if isinstance(each, Seek)] == [START + 5 + shift]
    assert any(str(START + shift) in getattr(each, "path", "") for each in own)
    assert any(isinstance(each, Ack) for each in own)
    for start in moved.starts.values():
        (first, *gone) = [command for _, command in start.now.front]
        assert isinstance(first, BrokerConfig)
        assert {getattr(each, "connection", None) for each in gone} <= {"s"}
    assert (
        sum(len(start.now.dropped) for start in moved.starts.values()) == 5
    )  # two configurations each, and DEDUP


EDGES = (-(2**63), -1, 0, 1, START, LATEST_TIME, LATEST_TIME + 1, 2**63 - 1)


@pytest.mark.parametrize("ahead", [-86_400, 0, 864_000], ids=["older", "as old", "newer"])
@pytest.mark.parametrize("time", EDGES)
def test_an_odd_time_moves_no_other_message(time: int, ahead: int, tmp_path: Path) -> None:
    """As a record's time, first, in between, or of what nobody can read; or as a time that a message names."""
    live = live_after(tmp_path, [ttl_of_namespace(3600), *TRAFFIC[1:]])
    traffic: list[Record] = [(ahead + second, topic, command) for second, topic, command in TRAFFIC[1:]]
    odd: list[tuple[Record, int | None]] = [
        ((ahead, None, {"command": "TICK"}), time),
        ((ahead, None, {"command": "NOPE"}), time),
        ((ahead, T, {"producer": "p", "sequence_id": 9, "payload": "x"}), time),
        ((ahead, T, {"producer": "p", "sequence_id": 9, "payload": "x", "publish_time": time}), None),
        ((ahead, T, {"producer": "p", "sequence_id": 9, "payload": "x", "deliver_at_time": time}), None),
    ]
    for (record, own), at in product(odd, [0, 5]):
        records = [*traffic[:at], record, *traffic[at:]]
        log = table(records)
        if own is not None and START + 1000 * ahead < own <= LATEST_TIME:
            continue  # so much time does pass
        times = log["timestamp"].to_pylist()
        times[0] += 1000 * ahead  # the configuration
        if own is not None:
            times[at + 1] = own
        log = log.set_column(log.column_names.index("timestamp"), "timestamp", [times])
        found = summary_of(whatif(log, [], live=live), "baseline")
        command = record[2]
        is_taken = (
            0 <= command.get("publish_time", 0) <= LATEST_TIME and command.get("deliver_at_time", 0) >= 0
        )
        more = "producer" in command and is_taken and (own is None or own <= LATEST_TIME)
        assert (found["expired"], found["backlog"]) == (0, 8 + more), (record, own, at)


def ttl_of_namespace(seconds: int) -> Record:
    return (
        0,
        None,
        {"command": "ADMIN", "method": "POST", "path": "/namespaces/a/b/messageTTL", "body": seconds},
    )


def test_no_id_is_higher_than_the_highest(tmp_path: Path) -> None:
    """In Pulsar, what follows it is a duplicate."""
    live = live_after(tmp_path, [*TRAFFIC, publish(1001, 2**63 - 1)])
    (row,) = (
        each
        for each in whatif(table(TRAFFIC), [], live=live).summary.to_pylist()
        if (each["policies"], each["subscription"]) == ("baseline", None) and each["topic"] == T
    )
    assert (row["duplicates"], row["refused"]) == (5, 0)


def test_what_cannot_be_projected(tmp_path: Path) -> None:
    live = live_after(tmp_path, TRAFFIC)
    with pytest.raises(NotFound, match="nothing to project"):
        whatif(table(TRAFFIC), [], live=live._replace(states=[]))
    wrong = [each._replace(partition=2 - each.partition) for each in live.states]
    with pytest.raises(NotFound, match="but belongs in another of 3: give the number of partitions"):
        partitions_of(wrong)
    assert isinstance(project(load(table(TRAFFIC), partitions=2).records, live.read()).records, pa.Table)


def test_writes_that_a_fault_put_off_are_lost_with_their_clients(tmp_path: Path) -> None:
    put_off = (20, T, {"command": "FAULT", "fault": "DelayWrites", "count": 2})
    np = "non-persistent://public/default/np"
    beside = (0, np, {"command": "PRODUCER", "connection": "c", "producer_id": 1, "request_id": 1})
    live = live_after(tmp_path, [beside, subscribe(), publish(1, 0), put_off, publish(30, 1), publish(31, 2)])
    found = whatif(table([publish(1, 9), tick(500)]), [PolicySet("short", ttl(1))], live=live)
    # The message that was stored, and the one that comes.
    assert summary_of(found, "baseline")["backlog"] == 2
    topic = next(row for row in found.summary.to_pylist() if (row["topic"], row["subscription"]) == (T, None))
    assert (topic["published"], topic["stored"], topic["refused"]) == (2, 2, 0)


@pytest.mark.parametrize("seed", range(4))
def test_the_state_of_any_life_with_faults_is_a_start(seed: int, tmp_path: Path) -> None:
    log = as_table(life("deduplication", seed).log)
    for stop in (len(log) // 2, len(log)):
        out = tmp_path / str(stop)
        replay_in_process(log.slice(0, stop), out, partitions=1)
        live = LiveState(read_states(out / "state") or [], LedgerStore(str(out / "store")))
        assert whatif(log, [], live=live).totals[0].policies == "baseline"
