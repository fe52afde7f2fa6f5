"""`magnetar whatif`: what other policies would have done equals what separate replays under them do."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from ruamel.yaml import YAML as Yaml
from typer.testing import CliRunner

from streaming.answers.fates import CHANGES
from streaming.answers.whatif.answer import BASELINE, WhatIf, to_json
from streaming.answers.whatif.clients.made_log import ClientSettings
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.report import report
from streaming.broker.config import LINES
from streaming.cli.app import app
from streaming.jobs.replay import ReplayResult, replay_in_process
from streaming.log.policy_files import PolicyError, read_policy_file
from streaming.log.table import LOGICAL, LogError, log_table
from streaming.traces import RECORDED
from streaming.traces.importer import import_traces
from tools.json_schema import policies_schema

START = 1_767_225_600_000
T = "persistent://a/b/t"
QUIET = {
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "managedLedgerDefaultMarkDeleteRateLimit": 0,
    "backlogQuotaCheckIntervalInSeconds": 10,
    "messageExpiryCheckIntervalInMinutes": 1,
}

Record = tuple[int, str | None, dict[str, Any]]
"""Seconds since `START`, topic, command."""


def table(records: Sequence[Record], profile: str = "4.0", **settings: Any) -> pa.Table:
    all_ = [
        (0, None, {"command": "BROKER_CONFIG", "profile": profile, "settings": QUIET | settings}),
        *records,
    ]
    return log_table(
        LOGICAL,
        timestamp=[START + 1000 * second for second, _, _ in all_],
        topic=pa.array([topic for _, topic, _ in all_], pa.string()),
        value=[json.dumps(command).encode() for _, _, command in all_],
    )


def publish(second: int, sequence_id: int, **fields: Any) -> Record:
    return second, T, {"producer": "p", "sequence_id": sequence_id, "payload": "x" * 40, **fields}


def subscribe(second: int = 0, name: str = "s", type_: str = "Shared", **fields: Any) -> Record:
    return second, T, {"command": "SUBSCRIBE", "connection": name, "consumer_id": 1, "request_id": 1, "subscription": name,
                       "subType": type_, "initialPosition": "Earliest", **fields}  # fmt: skip


def flow(second: int, permits: int, name: str = "s") -> Record:
    return second, T, {"command": "FLOW", "connection": name, "consumer_id": 1, "messagePermits": permits}


def ack(second: int, *entries: int, name: str = "s") -> Record:
    ids = [{"ledgerId": 1, "entryId": entry} for entry in entries]
    return second, T, {"command": "ACK", "connection": name, "consumer_id": 1, "ack_type": "Individual", "message_id": ids}  # fmt: skip


def tick(second: int) -> Record:
    return second, None, {"command": "TICK"}


def ttl(seconds: int) -> pa.Table:
    return admin("POST", "messageTTL", seconds)


def admin(method: str, call: str, body: Any) -> pa.Table:
    value = {"command": "ADMIN", "method": method, "path": f"/persistent/a/b/t/{call}", "body": body}
    return log_table(LOGICAL, timestamp=[0], topic=pa.array([T]), value=[json.dumps(value).encode()])


def broker(**settings: Any) -> pa.Table:
    value = {"command": "BROKER_CONFIG", "settings": settings}
    return log_table(
        LOGICAL, timestamp=[0], topic=pa.array([None], pa.string()), value=[json.dumps(value).encode()]
    )


def eviction(size: int) -> pa.Table:
    body = {"limitSize": size, "policy": "consumer_backlog_eviction"}
    return admin("POST", "backlogQuota?backlogQuotaType=destination_storage", body)


def hold(size: int) -> pa.Table:
    body = {"limitSize": size, "policy": "producer_request_hold"}
    return admin("POST", "backlogQuota?backlogQuotaType=destination_storage", body)


def ask(log: pa.Table, **policies: pa.Table) -> WhatIf:
    return whatif(log, [PolicySet(name, source) for name, source in policies.items()], partitions=2)


def differences(found: WhatIf) -> list[tuple[Any, ...]]:
    """Sequence id, change, and how the message was taken in the baseline and under the policies."""
    return [
        (row["sequence_id"], row["change"], row["baseline_taken"], row["proposed_taken"])
        for row in found.differences.to_pylist()
    ]


def of_subscription(found: WhatIf, policies: str, subscription: str = "s") -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = (
        row
        for row in found.summary.to_pylist()
        if (row["policies"], row["topic"], row["subscription"]) == (policies, T, subscription)
    )
    return row


FIVE = [subscribe(), flow(0, 3), *(publish(1, number, key=f"k{number}") for number in range(5))]
"""Five messages, of which a consumer gets the first three."""


# ---- each fate


def test_lost_says_what_was_delivered_and_acked_before() -> None:
    log = table([*FIVE, ack(10, 1), tick(1000)])
    found = ask(log, short=ttl(300))
    assert differences(found) == [
        (0, "lost newly", None, "delivered"),
        (2, "lost newly", None, "delivered"),
        (3, "lost newly", None, "never delivered"),
        (4, "lost newly", None, "never delivered"),
    ]
    row = found.differences.to_pylist()[0]
    assert (row["key"], row["producer"], row["proposed_fate"], row["proposed_cause"]) == (
        "k0",
        "p",
        "expired",
        "message TTL",
    )
    assert row["proposed_policy"] == "messageTTL 300 s (topic)"
    assert row["proposed_age"] == row["proposed_clock"] - row["publish_time"] > 300_000
    mine = of_subscription(found, "short")
    assert (mine["lost_undelivered"], mine["lost_delivered"], mine["taken_acked"], mine["expired"]) == (
        2,
        2,
        1,
        4,
    )
    assert mine["unchanged"] == 1
    assert mine["peak_backlog"] == 5


def test_saved_earlier_later_and_another_rule() -> None:
    log = pa.concat_tables([table(FIVE[:2]), *(log_table(LOGICAL, timestamp=[START], topic=pa.array([T]), value=ttl(300)["value"]) for _ in "x"),
                            table([*FIVE[2:], tick(2000)]).slice(1)])  # fmt: skip
    found = ask(
        log, shorter=ttl(100), longer=ttl(900), never=ttl(0), quota=pa.concat_tables([ttl(0), eviction(100)])
    )
    by_set = {name: Counter() for name in ("shorter", "longer", "never", "quota")}  # type: ignore[var-annotated]
    for row in found.differences.to_pylist():
        by_set[row["policies"]][row["change"]] += 1
    assert by_set["shorter"] == {"lost earlier": 5}
    assert by_set["longer"] == {"lost later": 5}
    assert by_set["never"] == {"saved": 5}
    assert by_set["quota"] == {"lost by another rule": 3, "saved": 2}
    rows = [row for row in found.differences.to_pylist() if row["policies"] == "quota"]
    assert {row["proposed_fate"] for row in rows if row["change"] == "lost by another rule"} == {"evicted"}


def test_a_refused_producer_makes_its_topic_open_loop() -> None:
    create = {
        "command": "PRODUCER",
        "connection": "c",
        "producer_id": 1,
        "request_id": 1,
        "producer_name": "q",
    }
    records = [subscribe(), (0, T, create), *(publish(1, number) for number in range(5)),
               *(publish(100, number) for number in range(5, 8)), tick(200)]  # fmt: skip
    found = ask(table(records), hold=hold(200))
    assert {row["change"] for row in found.differences.to_pylist()} == {"unknown"}
    (rows,) = (
        row for row in found.summary.to_pylist() if row["policies"] == "hold" and row["subscription"] is None
    )
    assert rows["open_loop_from"] is not None
    assert rows["closed_producers"] > 0
    assert rows["held"] > 0
    assert found.totals[1].open_loop_topics == 1
    assert found.totals[1].unjudged > 0


def test_a_slower_dispatch_delivers_later_and_untouched_policies_change_nothing() -> None:
    log = table([subscribe(), flow(0, 100), *(publish(1, number) for number in range(5)), tick(30)])
    rate = {"dispatchThrottlingRateInMsg": 2, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    found = ask(log, slow=admin("POST", "dispatchRate", rate), same=ttl(0))
    late = [row for row in found.differences.to_pylist() if row["policies"] == "slow"]
    assert {row["change"] for row in late} == {"delivered later"}
    assert all(row["open_loop"] for row in late)
    assert not [row for row in found.differences.to_pylist() if row["policies"] == "same"]
    assert of_subscription(found, "same")["unchanged"] == 5


# ---- equal to separate replays


def equal_to_a_replay(found: WhatIf, name: str, result: ReplayResult) -> None:
    """The totals of a policy set, and every message that a rule took or that was sent, against a replay's own output."""
    summary = [row for row in found.summary.to_pylist() if row["policies"] == name]
    assert {
        (row["topic"], row["subscription"]) for row in result.stats if "non-persistent" not in row["topic"]
    } <= {(row["topic"], row["subscription"]) for row in summary}
    by_name = {(row["topic"], row["subscription"]): row for row in summary}
    kinds = {
        each: rows_of(result.out, each)
        for each in ("EXPIRED", "EVICTED", "MESSAGE", "LEDGER_DELETED", "SEND_RECEIPT")
    }
    for stats in result.stats:
        mine = by_name.get((stats["topic"], stats["subscription"]))
        if mine is None:
            continue
        assert mine["backlog"] == stats["backlog"], mine
        if stats["subscription"] is None:
            assert mine["storage"] == stats["storage"], mine
    for kind, column in (("EXPIRED", "expired"), ("EVICTED", "evicted")):
        entries: Counter[tuple[str, str]] = Counter()
        for row in kinds[kind]:
            entries[row["topic"], row["subscription"]] += row["entries"]
        for key, count in entries.items():
            if key in by_name:
                assert by_name[key][column] == count, (kind, key)
    sent: Counter[tuple[str, str]] = Counter()
    for row in kinds["MESSAGE"]:
        if row["ledger_id"] > 0:
            sent[row["topic"], row["subscription"]] += 1
    assert sent == {key: row["dispatched"] for key, row in by_name.items() if row["dispatched"]}
    trimmed: Counter[str] = Counter()
    for row in kinds["LEDGER_DELETED"]:
        trimmed[row["topic"]] += row["entries"]
    assert trimmed == {
        topic: row["trimmed"] for (topic, of), row in by_name.items() if of is None and row["trimmed"]
    }
    moves = {
        (row["topic"], row["subscription"], row["clock"], row["cause"]): row
        for kind in ("EXPIRED", "EVICTED")
        for row in kinds[kind]
    }
    positions = {
        (row["topic"], row["ledger_id"], row["entry_id"])
        for row in kinds["SEND_RECEIPT"]
        if row["ledger_id"] > 0
    }
    for row in found.differences.to_pylist():
        if row["policies"] != name or row["proposed_fate"] not in ("expired", "evicted"):
            continue
        assert (row["topic"], row["proposed_ledger"], row["proposed_entry"]) in positions
        move = moves[row["topic"], row["subscription"], row["proposed_clock"], row["proposed_cause"]]
        assert (move["before_ledger"], move["before_entry"]) < (row["proposed_ledger"], row["proposed_entry"])
        assert (row["proposed_ledger"], row["proposed_entry"]) <= (move["after_ledger"], move["after_entry"])
        assert move["policy"] == row["proposed_policy"]


def rows_of(out: Path, kind: str) -> list[dict[str, Any]]:
    files = sorted((out / "tables" / f"kind={kind}").glob("*.parquet"))
    return [row for each in files for row in pq.read_table(each).to_pylist()]


BROKER = {
    "short": {"ttlDurationDefaultInSeconds": 1},
    "evict": {
        "backlogQuotaDefaultLimitBytes": 300,
        "backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction",
    },
    "hold": {"backlogQuotaDefaultLimitBytes": 300},
}


@pytest.mark.slow
def test_recorded_traffic_equals_separate_replays(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    import_traces([RECORDED], log)
    sets = {
        name: log_table(
            LOGICAL, timestamp=[0], topic=pa.array([None], pa.string()),
            value=[json.dumps({"command": "BROKER_CONFIG", "settings": settings}).encode()],
        )
        for name, settings in BROKER.items()
    }  # fmt: skip
    found = whatif(log, [PolicySet(name, source) for name, source in sets.items()], partitions=3, processes=1)
    equal_to_a_replay(found, BASELINE, replay_in_process(log, tmp_path / "baseline", partitions=3))
    for name, source in sets.items():
        equal_to_a_replay(found, name, replay_in_process(log, tmp_path / name, policies=source, partitions=3))


def test_a_small_log_equals_separate_replays_and_processes_change_nothing(tmp_path: Path) -> None:
    records = [subscribe(), flow(0, 50), *(publish(number, number) for number in range(200)), ack(200, *range(0, 50, 2)),
               subscribe(210, "late"), flow(211, 500, "late"), tick(5000)]  # fmt: skip
    log = table(records, managedLedgerMaxEntriesPerLedger=30)
    sets = {"short": ttl(100), "evict": eviction(2000), "hold": hold(2000)}
    found = ask(log, **sets)
    for name, source in sets.items():
        equal_to_a_replay(found, name, replay_in_process(log, tmp_path / name, policies=source, partitions=2))
    again = whatif(log, [PolicySet(*each) for each in sets.items()], partitions=2, processes=2)
    assert to_json(again) == to_json(found)


@pytest.mark.spark
def test_tasks_of_spark_give_the_same(spark: SparkSession) -> None:
    records = [
        subscribe(),
        flow(0, 50),
        *(publish(number, number) for number in range(40)),
        ack(50, *range(0, 30, 2)),
        tick(5000),
    ]
    log = table(records, managedLedgerMaxEntriesPerLedger=30)
    sets = [PolicySet("short", ttl(100)), PolicySet("evict", eviction(500))]
    found = whatif(log, sets, partitions=3, spark=spark)
    expected = whatif(log, sets, partitions=3)
    assert to_json(found) == to_json(expected)
    assert found.series == expected.series


# ---- files and the command


YAML_READER = Yaml(typ="safe")
YAML = """\
profile: 4.x
broker:
  ttlDurationDefaultInSeconds: 60
topics:
  persistent://a/b/t:
    messageTTL: 100
    retention: {retentionTimeInMinutes: 5, retentionSizeInMB: 10}
    backlogQuota:
      message_age: {limitTime: 120, policy: consumer_backlog_eviction}
"""


def test_a_file_of_policies_and_the_command_give_what_the_function_gives(tmp_path: Path) -> None:
    log = table([*FIVE, tick(1000)])
    lines = tmp_path / "log.jsonl"
    with lines.open("w") as file:
        for row in log.to_pylist():
            coordinates = {"timestamp": row["timestamp"]} | ({"topic": row["topic"]} if row["topic"] else {})
            file.write(json.dumps(coordinates | json.loads(row["value"])) + "\n")
    policies = tmp_path / "short.yaml"
    policies.write_text(YAML)
    arguments = ["whatif", str(lines), "--policies", str(policies), "--profile", "2.x"]
    found = CliRunner().invoke(app, [*arguments, "--json", "--out", str(tmp_path / "out")])
    assert found.exit_code == 0, found.output
    assert json.loads(found.output) == json.loads(to_json(whatif(lines, [policies], profile="2.x")))
    assert (tmp_path / "out/whatif.json").read_text() == found.output
    assert pq.read_table(tmp_path / "out/differences").num_rows == 5
    page = (tmp_path / "out/report.html").read_text()
    assert "<svg" in page and "lost newly" in page and "messageTTL 100 s (topic)" in page  # noqa: PT018
    assert not re.search(r"(src|href)=|url\(|https?:", page)
    text = CliRunner().invoke(app, arguments).output
    assert "lost newly" in text and "short" in text and "profile 2.x" in text  # noqa: PT018
    result = replay_in_process(lines, tmp_path / "replayed", policies=policies)
    assert [row["expired"] for row in result.stats if row["subscription"] == "s"] == [5]


def test_the_schema_accepts_files_that_are_read_and_refuses_misspelled_names() -> None:
    validator = jsonschema.Draft202012Validator(policies_schema())
    validator.validate(YAML_READER.load(YAML))
    for text in (
        "brokers: {}",
        "topics: {t: {messageTtl: 5}}",
        "broker: {ttl: 5}",
        "topics: {t: {messageTTL: x}}",
    ):
        assert not validator.is_valid(YAML_READER.load(text)), text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topics:\n  t: {messageTTL: [}\n", "line 2"),
        ("a: 1\n", "line 1: a: expected profile, broker, namespaces, topics"),
        ("broker: 5\n", "line 1: broker must have names"),
        ("topics:\n  persistent://a/b/t: 5\n", "line 2: persistent://a/b/t must have policies"),
        ("topics:\n  persistent://a/b/t:\n    messageTtl: 5\n", "line 3: messageTtl is not a policy"),
        ("topics:\n  persistent://a/b/t:\n    messageTtl: 5\n", "perhaps messageTTL is meant"),
        ("topics:\n  persistent://a/b/t:\n    unload: 5\n", "policies are autoSubscriptionCreation, "),
        (
            "topics:\n  persistent://a/b/t:\n    offloadPolicies: 5\n",
            "line 3: Magnetar keeps offloadPolicies without acting on it",
        ),
        ("broker:\n  profile: 2.x\n", "line 2: the profile is not a setting: give it separately"),
        ("profile: 9.x\n", "line 1: Invalid enum value '9.x'"),
        ("namespaces:\n  a:\n    messageTTL: 5\n", "line 2: a is not a namespace: write TENANT/NAMESPACE"),
        ("broker:\n  <<: {ttlDurationDefaultInSecond: 5}\n", "line 2: "),
        ("namespaces:\n  a/b:\n    <<: {messageTtl: 5}\n", "perhaps messageTTL is meant"),
        ("topics:\n  <<:\n    persistent://a/b/t: {messageTtl: 5}\n", "perhaps messageTTL is meant"),
        ("<<: {topics: {persistent://a/b/t: {messageTtl: 5}}}\n", "perhaps messageTTL is meant"),
        ("topics:\n  persistent://a/b/t:\n    backlogQuota: 5\n", "line 3: backlogQuota must have types"),
        ("topics:\n  persistent://a/b/t:\n    messageTTL: 2020-01-01\n", "in quotes"),
        ("topics:\n  persistent://a/b/t:\n    messageTTL: -5\n", "line 3: "),
        (
            "topics:\n  persistent://a/b/other:\n    messageTTL: 5\n",
            "line 3: the log has no records of the topic",
        ),
        ("broker:\n  ttlDurationDefaultInSecond: 5\n", "line 2: "),
        ("- 1\n", "expected some of"),
    ],
)
def test_mistakes_in_a_file_are_named_by_line(text: str, says: str, tmp_path: Path) -> None:
    policies = tmp_path / "p.yaml"
    policies.write_text(text)
    with pytest.raises((LogError, PolicyError), match=says.replace("(", r"\(")):
        whatif(table(FIVE), [policies], partitions=2)


@pytest.mark.parametrize("form", ["yaml", "jsonl"])
def test_of_many_mistakes_the_first_are_named(form: str, tmp_path: Path) -> None:
    """The file of another cluster has thousands. What each could mean is looked for among the topics of the log."""
    policies = tmp_path / f"p.{form}"
    names = [f"persistent://a/b/other-{number}" for number in range(500)]
    if form == "yaml":
        policies.write_text("topics:\n" + "".join(f"  {name}:\n    messageTTL: 5\n" for name in names))
    else:
        calls = [
            {"command": "ADMIN", "topic": name, "method": "POST", "path": f"/{name.replace('://', '/')}/messageTTL?messageTTL=5"}
            for name in names
        ]  # fmt: skip
        policies.write_text("".join(json.dumps(call) + "\n" for call in calls))
    with pytest.raises(PolicyError, match="more than 20 mistakes") as error:
        whatif(table(FIVE), [policies], partitions=2)
    lines = str(error.value).splitlines()
    assert len(lines) == 21
    assert all(
        "the log has no records of the topic" in line and "it has persistent://a/b/t" in line
        for line in lines[1:]
    )


@pytest.mark.parametrize("section", ["namespaces:\n  a/b", "topics:\n  persistent://a/b/t"])
@pytest.mark.parametrize("name", ["deduplication", "deduplicationEnabled"])
def test_a_policy_has_each_of_its_names_in_the_admin_api(section: str, name: str, tmp_path: Path) -> None:
    policies = tmp_path / "p.yaml"
    policies.write_text(f"{section}:\n    {name}: true\n")
    twice = table([*FIVE, publish(2, 0, key="k0")])
    backlogs = whatif(twice, [policies], partitions=1).summary["backlog"].drop_null().to_pylist()
    assert backlogs == [6, 5] * 2  # of the subscription, and in all


@pytest.mark.parametrize("version", LINES)
def test_a_version_needs_no_quotes(version: str, tmp_path: Path) -> None:
    """Although YAML takes 2.10 for the number 2.1."""
    policies = tmp_path / "p.yaml"
    policies.write_text(f"profile: {version}\n")
    (value,) = read_policy_file(policies).commands["value"].to_pylist()
    assert json.loads(value)["profile"] == version


def test_a_configuration_of_the_log_that_is_refused_counts_for_nothing(tmp_path: Path) -> None:
    """As in a replay, where it is quarantined. Policies without a mistake are not to blame."""
    policies = tmp_path / "p.yaml"
    policies.write_text("broker:\n  ttlDurationDefaultInSeconds: 5\n")
    typo = table(FIVE, ttlDurationDefaultInSecond=1)
    (broken, *_), (right, *_) = (
        whatif(log, [policies], partitions=1).summary.to_pylist() for log in (typo, table(FIVE)[1:])
    )
    assert broken == right


def test_all_changes_have_a_column_of_the_summary() -> None:
    found = ask(table(FIVE), same=ttl(0))
    assert {change.replace(" ", "_") for change in CHANGES} <= set(found.summary.column_names)
    assert pc.sum(found.summary["published"]).as_py() == 10


def test_the_report_shows_texts_of_clients_as_text() -> None:
    log = table([subscribe(name="<b>s</b>"), publish(1, 0, key="<script>"), tick(1000)])
    found = ask(log, short=ttl(300))
    page = report(found)
    assert "<b>" not in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "No message is affected" in report(ask(log, same=ttl(0)))


# -- topics that close, and that end and begin again


def called(second: int, method: str, call: str) -> Record:
    return second, T, {"command": "ADMIN", "method": method, "path": f"/persistent/a/b/t{call}"}


@pytest.mark.parametrize(("method", "call"), [("PUT", "/unload"), ("DELETE", "?force=true")])
def test_a_write_that_a_closed_topic_lost_is_not_the_next_one_of_its_sequence_id(
    method: str, call: str
) -> None:
    log = [
        subscribe(),
        (1, T, {"command": "FAULT", "fault": "DelayWrites", "count": 1}),
        publish(2, 0),
        called(10, method, call),
        subscribe(15),
        publish(20, 0),
        (40, None, {"command": "RUN_CHECK", "check": "messageExpiry"}),
    ]
    assert differences(ask(table(log, messageExpiryCheckIntervalInMinutes=0), proposed=ttl(30))) == []


@pytest.mark.parametrize("clients", [None, ClientSettings()], ids=["recorded", "reactive"])
def test_a_message_sent_again_while_its_write_waits_has_an_answer_of_its_own(clients: Any) -> None:
    """Deduplication can't tell, and refuses the second one. The first one is stored, sent, and expires."""
    log = [
        subscribe(), flow(0, 10), publish(1, 0),
        (2, T, {"command": "FAULT", "fault": "DelayWrites", "count": 2}),
        publish(3, 1), publish(3, 2), publish(4, 1),
        (5, T, {"command": "FAULT", "fault": "CompleteWrites"}),
        publish(6, 3), tick(100),
    ]  # fmt: skip
    found = whatif(
        table(log, brokerDeduplicationEnabled=True),
        [PolicySet("proposed", ttl(50))],
        partitions=1,
        clients=clients,
    )
    of_topic = next(
        row for row in found.summary.to_pylist() if (row["policies"], row["topic"], row["subscription"]) == ("baseline", T, None)
    )  # fmt: skip
    assert (of_topic["published"], of_topic["stored"], of_topic["refused"]) == (5, 4, 1)
    assert [taken for *_, taken in differences(found)] == ["delivered"] * 4


def test_the_storage_of_a_topic_that_came_again() -> None:
    log = [
        subscribe(), *(publish(1, each) for each in range(3)), called(5, "DELETE", "?force=true"),
        subscribe(6), *(publish(7, each) for each in range(5)),
    ]  # fmt: skip
    (row,) = (
        row
        for row in ask(table(log), proposed=ttl(500)).summary.to_pylist()
        if (row["policies"], row["topic"], row["subscription"]) == ("baseline", T, None)
    )
    assert row["peak_storage"] == row["storage"] > 0


def test_a_policy_is_tried_on_a_topic_that_comes_late_and_on_each_of_its_lives() -> None:
    """An empty topic that is there for its policies would be deleted for inactivity before, and they with it."""
    log = [
        tick(0), subscribe(600), publish(601, 0), tick(700), called(800, "DELETE", "?force=true"), tick(850),
        subscribe(900), (900, T, {"command": "ADMIN", "method": "POST", "path": "/persistent/a/b/t/messageTTL", "body": 9000}),
        publish(901, 1), tick(1100),
    ]  # fmt: skip
    found = ask(table(log), proposed=ttl(5))
    assert [row[:2] for row in differences(found)] == [(0, "lost newly"), (1, "lost newly")]


def test_a_call_about_a_topic_that_is_gone_is_answered_otherwise() -> None:
    """Its answer names no topic, other than that of the baseline."""
    skip = {"command": "ADMIN", "method": "POST", "path": "/persistent/a/b/t/subscription/s/skip/1"}
    gone = {"command": "CONNECTION_LOST", "connection": "s"}
    log = table(
        [subscribe(), (1, None, gone), tick(500), (501, T, skip), (502, T, skip)],
    )
    inactive = {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    }
    found = ask(log, proposed=admin("POST", "inactiveTopicPolicies", inactive))
    (row,) = (
        row
        for row in found.summary.to_pylist()
        if (row["policies"], row["topic"], row["subscription"]) == ("proposed", T, None)
    )
    assert row["answered_otherwise"] == 2


def leaves_what_it_holds(entries: int) -> list[Record]:
    """A consumer gets some messages and leaves beside another one, which gets them then. That one leaves last, which forgets all counts: the next
    one gets them again, with count 0."""

    def leave(second: int, id_: int) -> Record:
        return (
            second,
            T,
            {"command": "CLOSE_CONSUMER", "connection": "s", "consumer_id": id_, "request_id": 9},
        )

    second = {"command": "FLOW", "connection": "s", "consumer_id": 2, "messagePermits": 9}
    return [
        subscribe(), flow(0, 9), *(publish(1, number) for number in range(entries)),
        subscribe(2, consumer_id=2), (2, T, second), leave(3, 1), leave(4, 2), subscribe(5), flow(5, 9),
    ]  # fmt: skip


def test_the_highest_redelivery_count_is_compared() -> None:
    """Each of two messages is sent three times, and the second time with a count, if one that leaves counts."""
    log = table(leaves_what_it_holds(2))
    found = ask(log, counts=broker(leavingConsumerCountsRedelivery=True))
    columns = (
        "sequence_id",
        "change",
        "baseline_deliveries",
        "proposed_deliveries",
        "baseline_redelivery_count",
        "proposed_redelivery_count",
    )
    assert [tuple(row[name] for name in columns) for row in found.differences.to_pylist()] == [
        (0, "other redelivery count", 3, 3, 0, 1),
        (1, "other redelivery count", 3, 3, 0, 1),
    ]
    assert of_subscription(found, "counts")["other_redelivery_count"] == 2


def test_what_a_seek_brings_back_is_not_skipped_less() -> None:
    """Entries that came back have not left the backlog a second time, nor were they skipped less often."""

    def seek(second: int, entry: int) -> Record:
        target = {"ledgerId": 1, "entryId": entry}
        return second, T, {"command": "SEEK", "connection": "s", "consumer_id": 1, "request_id": 2, "message_id": target}  # fmt: skip

    log = table([subscribe(), *(publish(n, n) for n in range(1, 9)), seek(10, 6), subscribe(11), seek(12, 2)])
    (row,) = [row for row in ask(log, x=ttl(0)).summary.to_pylist() if row["policies"] == BASELINE and row["subscription"] == "s"]  # fmt: skip
    assert (row["skipped"], row["backlog"]) == (6, 6)
