"""`magnetar advise`: its values lose nothing of what was consumed, and one unit less loses something."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from schemas.commands import Ack, decode
from schemas.effects import Message, SendReceipt
from schemas.records import RECORD
from streaming.answers.advise.needs import CURVES, NEEDS, Advice, Need, advise, curves, needs, to_json
from streaming.answers.advise.report import ESTIMATES, by_owner, consumed, report, value_text
from streaming.answers.advise.search import ESTIMATED, POLICY_NAMES, ROUNDS, TOGETHER, PolicyName
from streaming.answers.history.log_fold import KeptEntries
from streaming.answers.whatif import settling, side_by_side
from streaming.broker.broker import Broker
from streaming.broker.position import Position
from streaming.cli.advise import notes
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process
from streaming.log.partition import partition_log
from streaming.log.pins import pin
from streaming.log.policies import read_policies
from streaming.log.table import LOGICAL, log_table, ordered
from streaming.quality.gate import judge
from tests.examples import examples

START = 1_767_225_600_000
T = "persistent://a/b/t"
LEAST: dict[PolicyName, int] = {"messageTTL": 1, "limitSize": 0, "limitTime": 1, "retentionTimeInMinutes": 0, "retentionSizeInMB": 0}  # fmt: skip
SETTINGS = {
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "managedLedgerMaxEntriesPerLedger": 4,
    "backlogQuotaCheckIntervalInSeconds": 10,
    "messageExpiryCheckIntervalInMinutes": 0.5,
    "retentionCheckIntervalInSeconds": 60,
}

Record = tuple[int, str | None, dict[str, Any]]
"""Milliseconds since `START`, topic, command."""


def table(records: Sequence[Record]) -> pa.Table:
    return log_table(
        LOGICAL,
        timestamp=[START + time for time, _, _ in records],
        topic=pa.array([topic for _, topic, _ in records], pa.string()),
        value=[json.dumps(command).encode() for _, _, command in records],
    )


def policy(name: PolicyName, value: int, topic: str = T) -> pa.Table:
    """What sets a value, written by hand."""
    path = topic.replace("://", "/")
    quota = "backlogQuota?backlogQuotaType="
    call, body = {
        "messageTTL": ("messageTTL", value),
        "limitSize": (f"{quota}destination_storage", {"limitSize": value, "policy": "consumer_backlog_eviction"}),
        "limitTime": (f"{quota}message_age", {"limitTime": value, "policy": "consumer_backlog_eviction"}),
        "retentionTimeInMinutes": ("retention", {"retentionTimeInMinutes": value, "retentionSizeInMB": -1 if value else 0}),
        "retentionSizeInMB": ("retention", {"retentionTimeInMinutes": -1 if value else 0, "retentionSizeInMB": value}),
    }[name]  # fmt: skip
    command = {"command": "ADMIN", "method": "POST", "path": f"/{path}/{call}", "body": body}
    return log_table(LOGICAL, timestamp=[0], topic=pa.array([topic]), value=[json.dumps(command).encode()])


# ---- what is consumed, found by looking at the cursors after each command


Entries = Counter[tuple[str, str, Position]]
"""How often each subscription of a topic acked, or got, an entry."""


class Outcome:
    """What became of a log: how often entries were acked and sent, and the ledgers that are left."""

    def __init__(self, log: pa.Table, policies: pa.Table | None = None) -> None:
        records = ordered(partition_log(log, 1).select(RECORD.names))
        if policies is not None:
            records = pin(records, read_policies(policies, records, judge)).records
        self.acked: Entries = Counter()
        self.sent: Entries = Counter()
        entries = KeptEntries()
        self.broker = Broker(0, entries)
        for number, row in enumerate(records.to_pylist()):
            if number:
                self._look(entries, self.broker.tick, row["timestamp"])
            command = decode(row["value"])
            before = self._unacked()
            arguments = (row["offset"], row["timestamp"], row["topic"], command, row["value"])
            self._look(entries, self.broker.apply, *arguments)
            if isinstance(command, Ack):
                self.acked.update(before - self._unacked())

    def _look(self, entries: KeptEntries, do: Any, *arguments: Any) -> None:
        do(*arguments)
        rows = self.broker.take()
        entries.add(rows)
        self.broker.stored()
        for row in rows:
            effect = row.effect
            if isinstance(effect, Message):
                self.sent[effect.topic, effect.subscription, Position(effect.ledger_id, effect.entry_id)] += 1

    def _unacked(self) -> set[tuple[str, str, Position]]:
        found = set()
        for name in self.broker.topic_names():
            topic = self.broker.topic(name)
            ledgers = {**{id_: info.entries for id_, info in topic.ledger.ledgers.items()}}
            ledgers[topic.ledger.current] = max(
                topic.ledger.current_entries, ledgers.get(topic.ledger.current, 0)
            )
            for subscription, cursor in topic.cursors.items():
                found |= {
                    (name, subscription, position)
                    for ledger, count in ledgers.items()
                    for position in (Position(ledger, entry) for entry in range(count))
                    if position > cursor.mark_delete and position not in cursor.acked
                }
        return found

    def lost(self, other: Outcome, name: PolicyName) -> Entries:
        """What was consumed here and is not there."""
        if not name.startswith("retention"):
            return self.acked - other.acked
        left = {topic: other.broker.topic(topic).ledger for topic in other.broker.topic_names()}
        return Counter({
            key: count for key, count in (self.sent - other.sent).items()
            if key[2].ledger not in left[key[0]].ledgers and key[2].ledger != left[key[0]].current
        })  # fmt: skip


def need(
    found: Advice, name: PolicyName, level: str = "topic", of: str = T, subscription: str | None = None
) -> Need:
    (only,) = (
        each for each in found.needs
        if (each.level, each.name, each.policy, each.subscription) == (level, of, name, subscription)
    )  # fmt: skip
    return only


def hold(log: pa.Table, found: Advice) -> None:
    """The property: applied, each value loses nothing; one unit less loses something."""
    recorded = Outcome(log)
    for wanted in (each for each in found.needs if each.level == "topic"):
        assert wanted.smallest is not None, wanted
        exact = Outcome(log, policy(wanted.policy, wanted.smallest, wanted.name))
        assert not recorded.lost(exact, wanted.policy), wanted
        if wanted.loses is None:
            assert wanted.smallest == LEAST[wanted.policy], wanted
            continue
        assert wanted.loses == wanted.smallest - 1, wanted
        less = recorded.lost(Outcome(log, policy(wanted.policy, wanted.loses, wanted.name)), wanted.policy)
        assert 0 < len(less) == wanted.lost, wanted


# ---- random logs


KINDS = ("publish", "ack", "cumulative", "wait", "wait long", "subscribe", "seek", "unload", "close", "check", "policy", "redeliver")  # fmt: skip


def lives(actions: Sequence[tuple[str, int, int]], types: tuple[str, str]) -> Iterator[Record]:
    """The records of a log: actions, each with two numbers that say on what. Commands name entries that are there."""
    entries = KeptEntries()
    broker = Broker(0, entries)
    stored: list[Position] = []
    open_ = [False, False]
    now = number = 0

    def do(topic: str | None, command: dict[str, Any]) -> Record:
        nonlocal number
        value = json.dumps(command).encode()
        broker.apply(number, START + now, topic, decode(value), value)
        number += 1
        rows = broker.take()
        entries.add(rows)
        broker.stored()
        stored.extend(Position(row.effect.ledger_id, row.effect.entry_id) for row in rows if isinstance(row.effect, SendReceipt) and row.effect.ledger_id > 0)  # fmt: skip
        return now, topic, command

    def client(of: int, name: str, **fields: Any) -> Record:
        return do(T, {"command": name, "connection": f"c{of}", "consumer_id": 1, **fields})

    def subscribe(of: int) -> Iterator[Record]:
        open_[of] = True
        yield client(
            of,
            "SUBSCRIBE",
            subscription=f"s{of}",
            subType=types[of],
            request_id=1,
            initialPosition="Earliest",
        )
        yield client(of, "FLOW", messagePermits=50)

    yield do(None, {"command": "BROKER_CONFIG", "settings": SETTINGS})
    yield from subscribe(0)
    sequence = 0
    for kind, first, second in actions:
        of = first % 2
        if kind == "publish":
            for _ in range(1 + second % 5):
                sequence += 1
                fields = {"publish_time": START + now - 20_000} if first % 7 == 6 else {}
                yield do(
                    T,
                    {"producer": "p", "sequence_id": sequence, "payload": "x" * (first * 13 % 90), **fields},
                )
        elif kind in ("wait", "wait long"):
            now += (second % 60) * (1000 if kind == "wait" else 20_000) + first % 3
            yield do(None, {"command": "TICK"})
        elif kind == "subscribe" and not open_[of]:
            yield from subscribe(of)
        elif kind == "close" and open_[of]:
            open_[of] = False
            yield client(of, "CLOSE_CONSUMER", request_id=2)
        elif kind == "unload":
            yield do(
                T,
                {
                    "command": "ADMIN",
                    "connection": "admin",
                    "method": "PUT",
                    "path": "/persistent/a/b/t/unload",
                },
            )
        elif kind == "check":
            yield do(
                None,
                {
                    "command": "RUN_CHECK",
                    "check": ("messageExpiry", "backlogQuota", "consumedLedgers")[second % 3],
                },
            )
        elif kind == "policy":
            yield do(T, decoded(policy(POLICY_NAMES[first % 5], second * (7 if first % 5 != 1 else 40))))
        elif stored and open_[of]:
            position = stored[-1 - second % min(len(stored), 12)]
            id_ = {"ledgerId": position.ledger, "entryId": position.entry}
            if kind == "seek" and first % 5 == 0:
                yield client(of, "SEEK", message_id=id_, request_id=3)
                open_[of] = False
            elif kind == "redeliver":
                yield client(of, "REDELIVER_UNACKNOWLEDGED_MESSAGES")
            elif kind in ("ack", "cumulative"):
                type_ = "Individual" if kind == "ack" and types[of] == "Shared" else "Cumulative"
                if type_ == "Cumulative" and types[of] == "Shared":
                    type_ = "Individual"
                yield client(of, "ACK", ack_type=type_, message_id=[id_])
    now += 200_000
    yield do(None, {"command": "TICK"})


def decoded(log: pa.Table) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(log["value"][0].as_py()) | {"connection": "admin"}
    return found


ACTIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 40), st.integers(0, 60)), max_size=40)


@settings(max_examples=examples(25), deadline=None)
@given(ACTIONS, st.tuples(*[st.sampled_from(["Shared", "Exclusive", "Failover"])] * 2))
def test_the_values_lose_nothing_and_one_unit_less_loses_something(
    actions: list[tuple[str, int, int]], types: tuple[str, str]
) -> None:
    log = table(list(lives(actions, types)))
    found = advise(log, partitions=1)
    assert found.folds <= 1 + len(POLICY_NAMES) * ROUNDS * (TOGETHER + 1)
    hold(log, found)


@settings(max_examples=examples(25), deadline=None)
@given(ACTIONS, st.tuples(*[st.sampled_from(["Shared", "Exclusive", "Failover"])] * 2))
def test_it_makes_no_difference_when_messages_are_settled(
    actions: list[tuple[str, int, int]], types: tuple[str, str]
) -> None:
    log = table(list(lives(actions, types)))
    at_once, at_the_end = (advised(log, at_least) for at_least in (1, 1 << 60))
    assert at_once == at_the_end


def advised(log: pa.Table, at_least: int, pieces: int = 60) -> Advice:
    """`at_least`: so many messages are settled at a time."""
    with (
        mock.patch.object(settling, "AT_LEAST", at_least),
        mock.patch.object(side_by_side, "PIECES", pieces),
    ):
        return advise(log, partitions=1)


@pytest.mark.parametrize("count", [200, 800])
def test_what_is_kept_does_not_grow_with_the_log(count: int) -> None:
    kept: list[int] = []
    settle = settling.Settling.settle

    def note(self: settling.Settling, runs: side_by_side.Runs, judge: settling.JudgeSettled) -> None:
        settle(self, runs, judge)
        kept.extend(len(each) - each.first for each in runs.messages.values())

    log = table(plain_traffic(count))
    with mock.patch.object(settling.Settling, "settle", note):
        found = advised(log, 8, count)
    assert max(kept) < 64
    assert found == advised(log, 1 << 60, count)


# ---- logs written by hand


def begin(**more: Any) -> Record:
    return 0, None, {"command": "BROKER_CONFIG", "settings": SETTINGS | more}


def publish(second: int, sequence_id: int, topic: str = T, **fields: Any) -> Record:
    return second * 1000, topic, {"producer": "p", "sequence_id": sequence_id, "payload": "x" * 40, **fields}


def client(second: int, command: str, of: str = "s", topic: str = T, **fields: Any) -> Record:
    return second * 1000, topic, {"command": command, "connection": of, "consumer_id": 1, **fields}


def subscribe(second: int, of: str = "s", topic: str = T) -> list[Record]:
    fields = {"subscription": of, "subType": "Shared", "request_id": 1, "initialPosition": "Earliest"}
    return [
        client(second, "SUBSCRIBE", of, topic, **fields),
        client(second, "FLOW", of, topic, messagePermits=100),
    ]


def ack(second: int, *entries: int, of: str = "s", topic: str = T) -> Record:
    ids = [{"ledgerId": 1 + entry // 4, "entryId": entry % 4} for entry in entries]
    return client(second, "ACK", of, topic, ack_type="Individual", message_id=ids)


def tick(second: int) -> Record:
    return second * 1000, None, {"command": "TICK"}


def plain_traffic(count: int) -> list[Record]:
    """A message each second, acked 25 s later."""
    records = [begin(), *subscribe(0)]
    for number in range(count):
        records += [publish(number, number), ack(number + 25, number)]
    return [*sorted(records, key=lambda each: each[0]), tick(count + 1000)]


FIVE = [
    begin(),
    *subscribe(0),
    *(publish(0, number) for number in range(5)),
    ack(100, 1),
    ack(400, 0, 2),
    tick(3000),
]
"""Five messages. One is acked after 100 s, two after 400 s, two never."""


def smallest(found: Advice, name: PolicyName, **of: Any) -> tuple[int | None, int | None, int]:
    wanted = need(found, name, **of)
    return wanted.smallest, wanted.loses, wanted.lost


def test_the_age_at_the_last_check_before_an_ack_is_the_ttl() -> None:
    found = advise(table(FIVE), partitions=1)
    assert smallest(found, "messageTTL") == (390, 389, 2)
    wanted = need(found, "messageTTL", "subscription", subscription="s")
    assert (wanted.consumed, wanted.waiting, wanted.unknown, wanted.exact_until) == (3, 2, 0, None)
    hold(table(FIVE), found)
    coarse = [begin(messageExpiryCheckIntervalInMinutes=5), *FIVE[1:]]
    assert smallest(advise(table(coarse), partitions=1), "messageTTL") == (300, 299, 2)
    off = [begin(messageExpiryCheckIntervalInMinutes=0), *FIVE[1:]]
    assert smallest(advise(table(off), partitions=1), "messageTTL") == (1, None, 0)


def test_the_first_estimates_are_exact_for_plain_traffic() -> None:
    """One fold of the log, and then one round for each policy: at most `TOGETHER` values."""
    log = table(plain_traffic(60))
    for name in ("messageTTL", "limitSize", "retentionSizeInMB"):
        found = advise(log, policies=[name], partitions=1)
        assert found.folds <= 1 + (TOGETHER + 1)
        hold(log, found)


def test_an_estimate_takes_one_fold() -> None:
    log = table(plain_traffic(60))
    found, confirmed = advise(log, partitions=1, estimate=True), advise(log, partitions=1)
    assert (found.folds, found.curves) == (1, [])
    estimates = {
        (each.level, each.name, each.subscription, each.policy): each.smallest for each in found.needs
    }
    assert {policy for *_, policy in estimates} == set(ESTIMATED)
    values = {
        (each.level, each.name, each.subscription, each.policy): each.smallest for each in confirmed.needs
    }
    assert estimates == {of: value for of, value in values.items() if of[3] in ESTIMATED}
    assert notes(found)[-1] == ESTIMATES
    assert ESTIMATES in report(found)
    assert value_text(need(found, "messageTTL")) == "≈ 25 s"


def test_retention_has_no_estimate() -> None:
    done = CliRunner().invoke(app, ["advise", "log.jsonl", "--estimate", "--policy", "retentionSizeInMB"])
    assert done.exit_code == 2
    assert "there are estimates of messageTTL, limitSize, limitTime only" in done.output.replace("\n", " ")


def test_a_quota_that_no_check_looks_at_is_folded_once() -> None:
    records = [
        begin(backlogQuotaCheckEnabled=False),
        *subscribe(1),
        *(publish(2 + 7 * i, i) for i in range(12)),
    ]
    records += [ack(120, *range(12)), tick(400)]
    found = advise(table(records), policies=["limitSize", "limitTime"])
    assert smallest(found, "limitSize") == (0, None, 0)
    assert smallest(found, "limitTime") == (1, None, 0)
    assert found.folds == 1 + 2 * 2  # the log as it is, then the least value of each beside it


def test_a_subscription_that_acks_nothing_needs_nothing_and_evicts_for_others() -> None:
    records = [begin(), *subscribe(0), *subscribe(0, "dead")]
    for number in range(40):
        records += [publish(number * 5, number), ack(number * 5 + 4, number)]
    log = table([*records, tick(1000)])
    found = advise(log, partitions=1)
    dead = need(found, "limitSize", "subscription", subscription="dead")
    assert (dead.smallest, dead.consumed, dead.waiting, dead.text) == (None, 0, 40, "nothing was consumed")
    assert smallest(found, "limitSize") == smallest(
        found, "limitSize", level="subscription", subscription="s"
    )
    hold(log, found)


def test_what_was_delivered_and_not_acked_is_not_consumed() -> None:
    found = advise(table([begin(), *subscribe(0), publish(1, 1), tick(1000)]), partitions=1)
    rows = [(first.level, consumed(own)) for first, own in by_owner(found.needs)]
    assert rows == [("subscription", 0), ("topic", 0), ("namespace", 0)]


def test_a_log_without_records_has_no_times() -> None:
    found = advise(table([]), partitions=1)
    assert notes(found)[0] == "\n0 records; 0 folds; clients as recorded."


def test_retention_keeps_what_is_read_again() -> None:
    policies = decoded(policy("retentionTimeInMinutes", 60))
    records = [begin(), (0, T, policies), *subscribe(0), *(publish(1, number) for number in range(9))]
    records += [
        ack(2, *range(9)),
        tick(600),
        *subscribe(1000, "late"),
        ack(1001, *range(9), of="late"),
        tick(2000),
    ]
    found = advise(table(records), partitions=1)
    assert smallest(found, "retentionTimeInMinutes") == (16, 15, 8)
    assert smallest(found, "retentionSizeInMB") == (1, 0, 8)
    hold(table(records), found)
    # the broker takes no retention below the quota
    records[0] = begin(backlogQuotaDefaultLimitGB=0, backlogQuotaDefaultLimitBytes=50_000_000)
    wanted = need(advise(table(records), partitions=1), "retentionSizeInMB")
    assert (wanted.smallest, wanted.text) == (None, "the broker refuses the value")


def test_a_log_whose_policies_take_something_is_advised_by_what_they_left() -> None:
    records = [FIVE[0], (0, T, decoded(policy("messageTTL", 200))), *FIVE[1:]]
    found = advise(table(records), partitions=1)
    assert smallest(found, "messageTTL") == (90, 89, 1)
    hold(table(records), found)


def test_a_topic_that_comes_again_needs_what_its_second_life_needed() -> None:
    path = f"/persistent/{T.removeprefix('persistent://')}?force=true"
    delete = (500_000, T, {"command": "ADMIN", "method": "DELETE", "path": path})
    log = table([begin(), *subscribe(0), publish(0, 0), ack(1, 0), delete, *subscribe(600), publish(600, 0),
                 client(900, "ACK", ack_type="Individual", message_id=[{"ledgerId": 2, "entryId": 0}]), tick(3000)])  # fmt: skip
    found = advise(log, partitions=1)
    assert smallest(found, "messageTTL") == (300, 299, 1)
    hold(log, found)


@pytest.mark.parametrize("call", ["?force=true", "/policies"])
def test_a_topic_that_loses_its_policies_needs_what_it_needed_before(call: str) -> None:
    """A value that is gone at the end is not one that the broker refuses."""
    path = f"/persistent/{T.removeprefix('persistent://')}{call}"
    loses = (2500_000, T, {"command": "ADMIN", "method": "DELETE", "path": path})
    log = table([*FIVE[:-1], loses, publish(2600, 9), FIVE[-1]])
    found = advise(log, partitions=1)
    assert smallest(found, "messageTTL") == (390, 389, 2)
    assert all(need(found, name).smallest is not None for name in POLICY_NAMES)
    hold(log, found)


def test_what_partitioned_topics_and_namespaces_need_is_what_their_neediest_topic_needs() -> None:
    topics = [f"{T}-partition-{number}" for number in range(2)]
    records = [begin()]
    for number, topic in enumerate([*topics, "persistent://a/b/u"]):
        records += [*subscribe(0, topic=topic), publish(0, 1, topic), ack(60 + 60 * number, 0, topic=topic)]
    records = sorted(records, key=lambda each: each[0])
    found = advise(table([*records, tick(500)]), partitions=3, processes=2)
    assert [smallest(found, "messageTTL", of=topic)[0] for topic in topics] == [60, 120]
    assert smallest(found, "messageTTL", level="partitioned topic") == (120, 119, 1)
    assert smallest(found, "messageTTL", level="namespace", of="a/b") == (180, 179, 1)


def test_messages_acked_after_a_client_would_have_seen_something_else_are_unknown() -> None:
    """The TTL takes the second message, which is redelivered in the log and never acked."""
    records = [begin(), *subscribe(0), publish(0, 0), publish(0, 1), ack(40, 0), client(200, "REDELIVER_UNACKNOWLEDGED_MESSAGES"),
               publish(210, 2), ack(220, 2), tick(300)]  # fmt: skip
    wanted = need(advise(table(records), partitions=1), "messageTTL")
    assert (wanted.smallest, wanted.unknown, wanted.exact_until) == (30, 1, START + 200_000)


def test_the_command_gives_what_the_function_gives_and_replay_takes_the_values(tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    with lines.open("w") as file:
        for time, topic, command in FIVE:
            of = {"timestamp": START + time} | ({"topic": topic} if topic else {})
            file.write(json.dumps(of | command) + "\n")
    arguments = ["advise", str(lines), "--policy", "messageTTL", "--policy", "limitSize"]
    done = CliRunner().invoke(app, [*arguments, "--json", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    found = advise(lines, policies=["messageTTL", "limitSize"])
    assert json.loads(done.output) == json.loads(to_json(found))
    assert (tmp_path / "out/advice.json").read_text() == done.output
    assert needs(found).schema == NEEDS
    assert curves(found).schema == CURVES
    assert len(curves(found)) == sum(len(each.points) for each in found.curves)
    page = (tmp_path / "out/report.html").read_text()
    assert page == report(found)
    assert "<circle" in page
    assert "http" not in page
    text = CliRunner().invoke(app, arguments).output
    assert "390 s" in text
    assert "namespace" in text
    for value, expired in ((390, 2), (389, 4)):
        file_ = tmp_path / f"{value}.yaml"
        file_.write_text(f"topics: {{{T!r}: {{messageTTL: {value}}}}}")
        result = replay_in_process(lines, tmp_path / f"r{value}", policies=file_)
        assert [row["expired"] for row in result.stats if row["subscription"] == "s"] == [expired]
