"""`magnetar diff`: what two replays' outputs tell equals what what-if observes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from schemas.effects import Message, SendReceipt
from streaming.answers.history.folders import NotFound
from streaming.answers.whatif.answer import BASELINE, WhatIf, to_json
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.diff import diff
from streaming.answers.whatif.report import report
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process
from tests.answers.test_whatif import (
    FIVE,
    QUIET,
    START,
    Record,
    T,
    ack,
    admin,
    broker,
    eviction,
    flow,
    hold,
    leaves_what_it_holds,
    of_subscription,
    publish,
    subscribe,
    table,
    tick,
    ttl,
)
from tests.examples import examples

KNOWN = {
    "published", "stored", "duplicates", "refused", "unanswered", "dispatched", "expired", "evicted", "skipped", "backlog",
    "storage", "peak_storage", "trimmed", "held", "closed_producers", "oldest", "open_loop_from", "open_loop_offset",
    "open_loop_baseline", "open_loop_proposed", "answered_otherwise",
}  # fmt: skip
"""Columns of the summary that outputs tell."""


def both(tmp: Path, log: pa.Table, policies: pa.Table) -> tuple[WhatIf, WhatIf]:
    """What-if, and the difference of two replays."""
    replay_in_process(log, tmp / "before", partitions=2, batches=3)
    replay_in_process(log, tmp / "after", policies=policies, partitions=2, batches=2)
    expected = whatif(log, [PolicySet("after", policies)], partitions=2)
    return expected, diff(tmp / "before", tmp / "after")


def rows_of(found: WhatIf) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(row["topic"], row["subscription"], row["offset"]): row for row in found.differences.to_pylist()}


def equal(found: WhatIf, expected: WhatIf) -> int:
    """Every row that the outputs tell equals; returns how many."""
    rows, wanted = rows_of(found), rows_of(expected)
    unclear = {key for key, row in rows.items() if "unknown" in (row["baseline_fate"], row["proposed_fate"])}
    assert rows.keys() - unclear == wanted.keys() - unclear
    for key in wanted.keys() - unclear:
        row = rows[key]
        if row["open_loop"] is None:
            assert "acked" in (
                row["baseline_fate"],
                row["proposed_fate"],
                row["baseline_taken"],
                row["proposed_taken"],
            )
            row = row | {"open_loop": wanted[key]["open_loop"]}
        assert row == wanted[key]
    for row, other in zip(found.summary.to_pylist(), expected.summary.to_pylist(), strict=True):
        assert {name: row[name] for name in KNOWN} == {name: other[name] for name in KNOWN}
        if not unclear:
            names = ("lost_undelivered", "lost_delivered", "taken_acked", "acked", "unchanged")
            assert [row[name] for name in names] == [other[name] for name in names], row
    assert (found.records, found.begin, found.end) == (expected.records, expected.begin, expected.end)
    assert [each.unmatched for each in found.totals] == [each.unmatched for each in expected.totals]
    return len(wanted.keys() - unclear)


TYPES = {"s": "Shared", "x": "Failover"}


class Traffic:
    """A log in which consumers ack what they got."""

    def __init__(self, **settings: Any) -> None:
        self.settings = {"managedLedgerMaxEntriesPerLedger": 4} | settings
        self.records: list[Record] = []
        self.broker = Broker(0, NoEntries())
        self.waiting: dict[str, list[dict[str, int]]] = {"s": [], "x": []}
        self.stored: list[dict[str, int]] = []
        self.second = self.published = 0
        self._say(0, None, {"command": "BROKER_CONFIG", "settings": QUIET | self.settings})
        self.records.clear()

    def add(self, *records: Record) -> None:
        for second, topic, command in records:
            self.records.append((second, topic, command))
            self._say(second, topic, command)

    def _say(self, second: int, topic: str | None, command: dict[str, Any]) -> None:
        from schemas.commands import decode

        value = json.dumps(command).encode()
        self.broker.apply(self.broker.offset + 1, START + 1000 * second, topic, decode(value), value)
        for row in self.broker.take():
            effect = row.effect
            if isinstance(effect, Message):
                at = {"ledgerId": effect.ledger_id, "entryId": effect.entry_id}
                self.waiting[effect.subscription].append(at)
            if isinstance(effect, SendReceipt):
                assert effect.ledger_id != 0
                if effect.ledger_id > 0:
                    self.stored.append({"ledgerId": effect.ledger_id, "entryId": effect.entry_id})

    def act(self, what: str, number: int) -> None:
        if what == "time":
            self.second += 40 * number
            self.add(tick(self.second))
        elif what == "publish":
            for _ in range(number):
                self.add(publish(self.second, self.published))
                self.published += 1
        elif what == "again":
            self.add(publish(self.second, max(self.published - number, 0)))
        elif what == "flow":
            self.add(flow(self.second, number, "sx"[number % 2]))
        elif what == "ack":
            name = "sx"[number % 2]
            if self.waiting[name]:
                at = self.waiting[name].pop(number % len(self.waiting[name]))
                command = {
                    "command": "ACK",
                    "connection": name,
                    "consumer_id": 1,
                    "ack_type": "Individual",
                    "message_id": [at],
                }
                self.add((self.second, T, command))
        elif what == "end":  # acks all that it got
            name = "sx"[number % 2]
            if got := self.waiting[name]:
                last = max(got, key=lambda at: (at["ledgerId"], at["entryId"]))
                command = {"command": "ACK", "connection": name, "consumer_id": 1, "ack_type": "Cumulative"}
                if name == "s":
                    command["ack_type"] = "Individual"
                self.add((self.second, T, command | {"message_id": got if name == "s" else [last]}))
                self.waiting[name] = []
        elif what == "seek":
            name = "sx"[number % 2]
            if positions := self.stored:
                at = positions[-number] if number <= len(positions) else positions[0]
                seek = {"command": "SEEK", "connection": name, "consumer_id": 1, "request_id": 9}
                self.add(
                    (self.second, T, seek | {"message_id": at}), subscribe(self.second, name, TYPES[name])
                )
                self.waiting[name] = []
        elif what == "leave":
            name = "sx"[number % 2]
            self.add(
                (
                    self.second,
                    T,
                    {"command": "CLOSE_CONSUMER", "connection": name, "consumer_id": 1, "request_id": 7},
                )
            )
            self.add(subscribe(self.second, name))
        elif what == "join":
            # after ledgers were trimmed, perhaps
            begin = "Earliest" if number < 5 else "Latest"
            self.add(subscribe(self.second, "sx"[number % 2], initialPosition=begin))
        elif what == "unload":
            self.add(
                (self.second, T, {"command": "ADMIN", "method": "PUT", "path": "/persistent/a/b/t/unload"})
            )
        elif what == "delete":
            path = f"/persistent/a/b/t/subscription/{'sx'[number % 2]}?force=true"
            self.add((self.second, T, {"command": "ADMIN", "method": "DELETE", "path": path}))


LIVES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "time",
                "publish",
                "publish",
                "again",
                "flow",
                "ack",
                "leave",
                "join",
                "join",
                "unload",
                "delete",
            ]
        ),
        st.integers(1, 6),
    ),
    min_size=5,
    max_size=40,
)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["time", "publish", "publish", "again", "flow", "ack", "ack", "leave", "seek", "end"]
        ),
        st.integers(1, 6),
    ),
    min_size=5,
    max_size=40,
)
BACK = [
    ("publish", 3), ("flow", 3), ("flow", 4), ("time", 1), ("ack", 1), ("ack", 2), ("seek", 3), ("seek", 4), ("flow", 3), ("flow", 4),
    ("time", 1), ("end", 1), ("end", 2),
]  # fmt: skip
"""Acks out of order, back before them, and acks to the end."""
POLICIES = {
    "ttl": ttl(90), "evict": eviction(300), "hold": hold(400), "longer": ttl(300),
    "dedup": admin("POST", "deduplicationEnabled", True),
    "both": pa.concat_tables([ttl(200), eviction(500)]),
}  # fmt: skip


@given(ACTIONS, st.sampled_from(sorted(POLICIES)))
@settings(max_examples=examples(25), deadline=None)
@example(
    [
        ("publish", 6),
        ("flow", 6),
        ("flow", 5),
        ("ack", 2),
        ("ack", 4),
        ("time", 6),
        ("publish", 3),
        ("time", 6),
    ],
    "ttl",
)
@example([*BACK, ("publish", 1), ("time", 6), ("time", 6)], "ttl")
@example([*BACK, ("publish", 2), ("flow", 1), ("time", 6), ("time", 6)], "ttl")
@example([*BACK, ("publish", 6), ("time", 2)], "evict")
@example([("again", 1), ("flow", 4), ("ack", 2), ("publish", 3), ("ack", 4)], "dedup")
@example([("publish", 6), ("again", 3), ("publish", 2), ("flow", 6), ("time", 2)], "dedup")
def test_the_outputs_of_two_replays_tell_what_whatif_observes(
    actions: list[tuple[str, int]], name: str
) -> None:
    traffic = Traffic()
    traffic.add(subscribe(), subscribe(0, "x", "Failover"))
    for action in actions:
        traffic.act(*action)
    log = table(traffic.records, **traffic.settings)
    with TemporaryDirectory() as folder:
        expected, found = both(Path(folder), log, POLICIES[name])
        equal(found, expected)


@given(LIVES, st.sampled_from(sorted(POLICIES)))
@settings(max_examples=examples(40), deadline=None)
@example([("unload", 1), ("join", 1), ("publish", 2), ("time", 6)], "ttl")
@example([("publish", 6), ("unload", 1), ("join", 2), ("publish", 3), ("time", 6), ("time", 6)], "longer")
def test_they_tell_it_of_subscriptions_that_come_late(actions: list[tuple[str, int]], name: str) -> None:
    """Without a subscription, closed ledgers are trimmed at once: the cursors of later ones may be before them."""
    traffic = Traffic(brokerDeleteInactiveTopicsEnabled=False)
    for action in [("publish", 1), *actions]:
        traffic.act(*action)
    log = table(traffic.records, **traffic.settings)
    with TemporaryDirectory() as folder:
        expected, found = both(Path(folder), log, POLICIES[name])
        equal(found, expected)


def test_acks_between_the_rest_are_told_where_the_outputs_tell_them(tmp_path: Path) -> None:
    log = table([*FIVE, ack(10, 1), tick(1000)])
    expected, found = both(tmp_path, log, ttl(300))
    # one of the three that were delivered was acked: which of them no output says
    assert equal(found, expected) == 2
    (row,) = (
        row for row in found.summary.to_pylist() if row["policies"] == "after" and row["subscription"] == "s"
    )
    assert (row["lost_undelivered"], row["lost_delivered"], row["taken_acked"], row["unknown"]) == (
        2,
        2,
        1,
        3,
    )
    assert (row["peak_backlog"], row["peak_oldest"]) == (None, None)


AGE = {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}


@pytest.mark.parametrize("reverse", [False, True])
def test_another_rule_at_the_same_time(tmp_path: Path, reverse: bool) -> None:
    """Which messages it took that were not acked, no output says."""
    off = {"messageTTL": 0, "backlogQuota?backlogQuotaType=message_age": AGE | {"limitTime": -1}}
    on = off | {"messageTTL": 60}, off | {"backlogQuota?backlogQuotaType=message_age": AGE}
    before, after = reversed(on) if reverse else on
    base: list[Record] = [
        (0, T, {"command": "ADMIN", "method": "POST", "path": f"/persistent/a/b/t/{call}", "body": body})
        for call, body in before.items()
    ]
    checks = [
        (200, None, {"command": "RUN_CHECK", "check": each}) for each in ("messageExpiry", "backlogQuota")
    ]
    log = table(
        [*base, *FIVE, ack(10, 1), *checks],
        messageExpiryCheckIntervalInMinutes=0,
        backlogQuotaCheckIntervalInSeconds=0,
        preciseTimeBasedBacklogQuotaCheck=True,
        brokerDeleteInactiveTopicsEnabled=False,
    )
    policies = pa.concat_tables([admin("POST", call, body) for call, body in after.items()])
    expected, found = both(tmp_path, log, policies)
    assert {row["change"] for row in expected.differences.to_pylist()} == {"lost by another rule"}
    equal(found, expected)
    (row,) = (
        row for row in found.summary.to_pylist() if row["policies"] == "after" and row["subscription"] == "s"
    )
    assert (row["unchanged"], row["unknown"]) == (0, 3)


def test_equal_replays_differ_in_nothing(tmp_path: Path) -> None:
    log = table([*FIVE, ack(10, 1), tick(1000)])
    replay_in_process(log, tmp_path / "a", partitions=2)
    replay_in_process(log, tmp_path / "b", partitions=2, batches=4)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert len(found.differences) == 0
    assert [each.policies for each in found.totals] == [BASELINE, "b"]


def test_the_outputs_tell_the_highest_redelivery_count(tmp_path: Path) -> None:
    log = table(leaves_what_it_holds(1))
    expected, found = both(tmp_path, log, broker(leavingConsumerCountsRedelivery=True))
    (row,) = found.differences.to_pylist()
    assert (row["change"], row["proposed_redelivery_count"]) == ("other redelivery count", 1)
    assert equal(found, expected) == 1


def test_the_first_answers_of_a_log_are_compared(tmp_path: Path) -> None:
    records = [publish(1, 0), publish(1, 1), publish(1, 0), tick(10)]
    expected, found = both(tmp_path, table(records), POLICIES["dedup"])
    (opened,) = (
        (row["open_loop_baseline"], row["open_loop_proposed"])
        for row in expected.summary.to_pylist()
        if row["open_loop_from"] is not None
    )
    assert opened == ("sequence id 0 of p: stored", "sequence id 0 of p: a duplicate")
    equal(found, expected)


def test_the_command_gives_what_the_function_gives_and_names_wrong_folders(tmp_path: Path) -> None:
    log = table([*FIVE, ack(10, 1), tick(1000)])
    before, after = tmp_path / "before", tmp_path / "after"
    replay_in_process(log, before)
    replay_in_process(log, after, policies=ttl(300))
    replay_in_process(table([*FIVE, tick(999)]), tmp_path / "other")
    arguments = ["diff", str(before), str(after)]
    out = tmp_path / "out"
    result = CliRunner().invoke(app, [*arguments, "--json", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == json.loads(to_json(diff(before, after)))
    assert (out / "whatif.json").read_text() == result.output
    assert "lost newly" in (out / "report.html").read_text()
    text = CliRunner().invoke(app, arguments).output
    assert "lost newly" in text
    for folder, says in (
        (tmp_path / "other", "are replays of different logs"),
        (tmp_path, "is not the --out of a finished replay"),
    ):
        result = CliRunner().invoke(app, ["diff", str(before), str(folder)])
        assert result.exit_code == 2
        assert says in result.stderr
        assert result.stderr.count("\n") == 1
    with pytest.raises(NotFound):
        diff(log_folder(tmp_path / "empty"), after)
    shutil.rmtree(after / "tables" / "kind=EXPIRED")
    result = CliRunner().invoke(app, arguments)
    assert "lacks output rows: of 1 of kind EXPIRED, 0 are there" in result.stderr


def log_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_the_report_plots_what_the_outputs_tell(tmp_path: Path) -> None:
    log = table([*FIVE, ack(10, 1), tick(1000)])
    _, found = both(tmp_path, log, ttl(300))
    page = report(found)
    assert "Storage of the topic" in page
    assert "Backlog (entries)" not in page
    assert "Age of the oldest" not in page


def test_a_publish_that_a_non_persistent_topic_refuses(tmp_path: Path) -> None:
    """It has no number: nothing is stored there."""
    required = {
        "command": "ADMIN",
        "method": "POST",
        "path": "/namespaces/a/b/encryptionRequired",
        "body": True,
    }
    refused = (1, T.replace("persistent", "non-persistent"), {"producer": "p", "sequence_id": 0})
    log = table([(0, None, required), refused])
    replay_in_process(log, tmp_path / "before")
    replay_in_process(log, tmp_path / "after")
    assert not diff(tmp_path / "before", tmp_path / "after").differences.num_rows


def test_a_subscription_of_a_non_persistent_topic_has_no_row(tmp_path: Path) -> None:
    topic = T.replace("persistent", "non-persistent")
    records = [
        (second, topic, command) for second, _, command in (subscribe(), flow(0, 5), publish(1, 0), tick(60))
    ]
    expected, found = both(tmp_path, table(records), broker(ttlDurationDefaultInSeconds=60))
    rows = [
        [(row["policies"], row["topic"], row["subscription"]) for row in each.summary.to_pylist()]
        for each in (expected, found)
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("type_", ["Shared", "Failover"])
def test_an_ack_of_what_came_before_its_subscription(tmp_path: Path, type_: str) -> None:
    """Pulsar's cursor takes no ack at or below its mark-delete position, so the message remains one that is not for it."""
    log = table(
        [
            publish(1, 1),
            subscribe(2, type_=type_, initialPosition="Latest"),
            ack(3, 0),
            publish(4, 2),
            ack(5, 1),
            tick(60),
        ]
    )
    expected, found = both(tmp_path, log, ttl(3600))
    assert [each.totals[1].unchanged for each in (expected, found)] == [1, 1]
    equal(found, expected)


def test_an_ack_of_what_a_cursor_went_back_to(tmp_path: Path) -> None:
    """It may come before the subscription, and is one of its messages since."""
    seek = (
        3,
        T,
        {
            "command": "SEEK",
            "connection": "s",
            "consumer_id": 1,
            "request_id": 2,
            "message_id": {"ledgerId": 1, "entryId": 0},
        },
    )
    log = table(
        [publish(1, 1), subscribe(2, initialPosition="Latest"), seek, subscribe(4), ack(5, 0), tick(60)]
    )
    expected, found = both(tmp_path, log, ttl(3600))
    assert [each.totals[1].unchanged for each in (expected, found)] == [1, 1]


def test_a_message_is_that_of_the_producer_that_sent_it(tmp_path: Path) -> None:
    """The metadata of a SEND may have any other name. Deduplication goes by the connected producer's, too."""
    log = table([
        subscribe(), flow(0, 1),
        (0, T, {"command": "PRODUCER", "connection": "c", "producer_id": 1, "request_id": 1, "producer_name": "p"}),
        *((1, T, {"command": "SEND", "connection": "c", "producer_id": 1, "sequence_id": each,
                  "metadata": {"producer_name": "other", "sequence_id": each, "publish_time": START + 1000}})
          for each in (0, 1, 2, 2)),
        tick(1000),
    ])  # fmt: skip
    both_ways = broker(brokerDeduplicationEnabled=True, ttlDurationDefaultInSeconds=300)
    expected, found = both(tmp_path, log, both_ways)
    assert equal(found, expected) == 4
    assert {row["producer"] for row in expected.differences.to_pylist()} == {"p"}


def test_an_acked_message_that_was_never_sent_counts_as_lost(tmp_path: Path) -> None:
    """The outputs say only that one of the two was acked when the rule took both: so it was the delivered one."""
    log = table([subscribe(), flow(0, 1), publish(1, 0), publish(1, 1), ack(2, 1), tick(1000)])
    expected, found = both(tmp_path, log, ttl(300))
    rows = [of_subscription(each, "after") for each in (expected, found)]
    assert [(row["lost_undelivered"], row["lost_delivered"]) for row in rows] == [(0, 1), (1, 0)]
