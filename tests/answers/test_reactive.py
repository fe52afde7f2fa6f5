"""`magnetar whatif --clients reactive`: clients act on what they see, and on nothing else."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from schemas.commands import to_json as command_to_json
from schemas.effects import SendReceipt
from schemas.records import RECORD
from streaming.answers.whatif.answer import WhatIf, to_json
from streaming.answers.whatif.clients.backoff import Backoff
from streaming.answers.whatif.clients.history import History, decoded
from streaming.answers.whatif.clients.made_log import ClientSettings
from streaming.answers.whatif.clients.reactive import Reacted, react
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.report import report
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.cli.app import app
from streaming.jobs.demo import demo_day
from streaming.jobs.replay import load, replay_in_process
from streaming.log.pins import pin
from streaming.log.policies import read_policies
from streaming.log.table import LOGICAL, log_table
from streaming.quality.gate import judge
from streaming.traces import RECORDED
from streaming.traces.importer import import_traces
from tests.answers.test_whatif import (
    START,
    Record,
    T,
    ack,
    admin,
    equal_to_a_replay,
    eviction,
    flow,
    hold,
    publish,
    subscribe,
    table,
    tick,
    ttl,
)
from tests.broker.kit import START as LIFE_START
from tests.broker.random_lives import THEMES, live
from tests.broker.test_cut_invariance import prelude, record, settings_of_a_broker
from tests.examples import examples


def in_one_partition(log: pa.Table) -> pa.Table:
    return load(log, partitions=1).records


def reacted(log: pa.Table, policies: pa.Table | None = None, **given: Any) -> Reacted:
    records = in_one_partition(log)
    pinned, shift = (
        (records, 0) if policies is None else pin(records, read_policies(policies, records, judge))
    )
    history = History(records, 0)
    return react(records, pinned, shift, 0, history, ClientSettings(**given))


def commands(found: Reacted, name: str | None, *, of_model: bool = True) -> list[tuple[int, dict[str, Any]]]:
    """The commands of a kind (None: publishes), with their times in seconds since `START`."""
    rows = []
    for row in found.records.to_pylist():
        value = row["value"]
        command = (msgspec.json if value[:1] == b"{" else msgspec.msgpack).decode(value)
        if command.get("command") == name and (not of_model or value[:1] != b"{"):
            rows.append(((row["timestamp"] - START) / 1000, command))
    return rows


def ask(log: pa.Table, given: ClientSettings | None = None, **policies: pa.Table) -> WhatIf:
    sets = [PolicySet(name, source) for name, source in policies.items()]
    return whatif(log, sets, partitions=1, clients=given or ClientSettings())


def topic_row(found: WhatIf, policies: str) -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = (
        row
        for row in found.summary.to_pylist()
        if (row["policies"], row["topic"], row["subscription"]) == (policies, T, None)
    )
    return row


def producer(second: int = 0, name: str = "p", **fields: Any) -> Record:
    return second, T, {"command": "PRODUCER", "connection": "c", "producer_id": 1, "request_id": 1, "producer_name": name,
                       **fields}  # fmt: skip


def send(second: int, sequence_id: int, name: str = "p", **fields: Any) -> Record:
    metadata = {"producer_name": name, "sequence_id": sequence_id, "publish_time": START + 1000 * second}
    return second, T, {"command": "SEND", "connection": "c", "producer_id": 1, "sequence_id": sequence_id,
                       "metadata": metadata | fields, "payload": "x" * 40}  # fmt: skip


def exception(size: int) -> pa.Table:
    body = {"limitSize": size, "policy": "producer_exception"}
    return admin("POST", "backlogQuota?backlogQuotaType=destination_storage", body)


# ---- nothing changes where clients see what they saw


def unchanged(records: pa.Table) -> bool:
    """Is the log as its clients would have made it under its own policies the log itself?"""
    for partition in records["partition"].unique().to_pylist():
        own = records.filter(pc.equal(records["partition"], partition)).combine_chunks()
        found = react(own, own, 0, partition, History(own, partition), ClientSettings())
        if not found.records.equals(own.cast(RECORD)) or found.own or found.dropped or found.given_up:
            return False
    return True


def test_the_demonstration_under_its_own_policies_is_itself() -> None:
    rows = list(islice(demo_day(START), 3000))
    log = as_table([(timestamp, topic, json.dumps(command).encode()) for timestamp, topic, command in rows])
    assert unchanged(log)


@pytest.mark.parametrize(
    "names",
    [("quota_exception", "quota_hold"), ("dedup_reconnect_resend", "nack_shared", "ack_cumulative", "seek_id"),
     ("access_fencing", "sub_conn_cut", "reader_start", "un_redeliver", "type_transitions")],
)  # fmt: skip
def test_recorded_clients_under_their_own_policies_do_what_they_did(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    import_traces([RECORDED / f"{name}.jsonl" for name in names], tmp_path / "log.jsonl")
    assert unchanged(load(tmp_path / "log.jsonl", partitions=2).records)


@pytest.mark.parametrize("theme", [each for number, each in enumerate(THEMES) if number % 3 == 0])
def test_random_lives_under_their_own_policies_are_themselves(theme: str) -> None:
    life = live(theme, 0)
    assert unchanged(as_table(life.log))


def as_table(log: list[tuple[int, str | None, bytes]]) -> pa.Table:
    return pa.table(
        {
            "partition": [0] * len(log),
            "offset": list(range(len(log))),
            "timestamp": [timestamp for timestamp, _, _ in log],
            "topic": pa.array([topic for _, topic, _ in log], pa.string()),
            "value": [value for *_, value in log],
        },
        schema=RECORD,
    )


@given(settings_of_a_broker(), st.lists(record(), min_size=5, max_size=40))
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
def test_any_log_under_its_own_policies_is_itself(configuration: Any, records: list[Any]) -> None:
    now, log = LIFE_START, []
    for jump, topic, command in [configuration, *prelude(), *records]:
        now += jump
        log.append((now, topic, command_to_json(command)))
    assert unchanged(as_table(log))


def test_policies_that_change_nothing_change_no_message() -> None:
    log = table([subscribe(), flow(0, 10), producer(), *(send(second, second) for second in range(1, 6)), ack(7, 0, 1), tick(90)])  # fmt: skip
    found = ask(log, same=ttl(0))
    assert len(found.differences) == 0
    assert found.totals[1].open_loop_topics == 0
    assert found.model is not None
    assert [(run.sent, run.left, run.given_up) for run in found.model.runs] == [(0, 0, 0)]


# ---- producers

FILLED = [
    subscribe(type_="Exclusive"), flow(0, 100), producer(), *(send(second, second) for second in range(1, 6)),
    *(send(second, second) for second in range(14, 18)),
]  # fmt: skip
"""Five messages before a check of the quota, four after it."""


@pytest.mark.parametrize("policy", [exception, hold])
def test_what_a_closed_producer_holds_is_in_the_topic_later(policy: Any) -> None:
    log = table([*FILLED, ack(25, *range(9)), tick(60)])
    found = reacted(log, policy(300))
    attempts = commands(found, "PRODUCER")
    assert [command["epoch"] for _, command in attempts] == list(range(1, len(attempts) + 1))
    waits = [later - earlier for (earlier, _), (later, _) in pairwise(attempts)]
    for number, wait in enumerate(waits):
        assert 0.9 * 0.2 * 2**number - 0.001 <= wait <= 0.2 * 2**number
    sent = commands(found, "SEND")
    assert [command["sequence_id"] for _, command in sent] == [14, 15, 16, 17]
    assert {second for second, _ in sent} == {attempts[-1][0]}
    answer = ask(log, quota=policy(300))
    assert topic_row(answer, "quota")["stored"] == 9
    assert topic_row(answer, "quota")["refused"] == 0
    assert not [row for row in answer.differences.to_pylist() if row["proposed_ledger"] is None]


@pytest.mark.parametrize("short", [False, True], ids=["connected", "short form"])
@pytest.mark.parametrize("timeout", [0, 30_000])
def test_a_silence_costs_no_attempts(timeout: int, short: bool) -> None:
    """However long a quota keeps producers out: they come back within a minute after there is room."""
    filled = [subscribe(type_="Exclusive"), flow(0, 100)]
    if short:
        filled += [publish(second, second) for second in (*range(1, 6), *range(14, 18))]
    else:
        filled = FILLED
    made = {}
    for days in (1, 300):
        end = days * 86_400
        log = table([*filled, ack(end, *range(9)), tick(end + 120)])
        made[days] = reacted(log, exception(300) if short else hold(300), send_timeout=timeout)
    assert len(made[1].records) == len(made[300].records) < 60
    for days, found in made.items():
        kind = "PRODUCER" if timeout and not short else None if short else "SEND"
        came_back = commands(found, kind)[-1][0] - days * 86_400
        assert (timeout and short) or 0 < came_back < 60
        assert bool(found.given_up) == bool(timeout)


def test_messages_are_given_up_after_the_send_timeout() -> None:
    log = table([*FILLED, tick(120), *(send(second, second) for second in range(130, 133)), tick(200)])
    found = reacted(log, hold(200))
    assert set(found.given_up.values()) == {"the client gave up: sendTimeout 30000 ms"}
    assert not commands(found, "SEND")
    answer = ask(log, quota=hold(200))
    row = topic_row(answer, "quota")
    assert (row["stored"], row["refused"]) == (5, 7)
    rows = [row for row in answer.differences.to_pylist() if row["proposed_fate"] == "refused"]
    assert {row["proposed_cause"] for row in rows} == {"the client gave up: sendTimeout 30000 ms"}
    assert not reacted(log, hold(200), send_timeout=0).given_up


def test_a_full_queue_fails_or_blocks_the_application() -> None:
    log = table([*FILLED, ack(25, *range(9)), tick(60)])
    full = reacted(log, hold(300), max_pending_messages=2)
    assert list(full.given_up.values()) == ["the client's queue was full: maxPendingMessages 2"] * 2
    blocked = reacted(log, hold(300), max_pending_messages=2, block_if_queue_full=True)
    assert not blocked.given_up
    assert [command["sequence_id"] for _, command in commands(blocked, "SEND")] == [14, 15, 16, 17]


def test_a_producer_in_the_short_form_comes_back_too() -> None:
    records = [subscribe(type_="Exclusive"), flow(0, 100), *(publish(second, second) for second in range(1, 6)),
               *(publish(second, second) for second in range(14, 18)), ack(25, *range(9)), tick(60)]  # fmt: skip
    found = reacted(table(records), exception(300))
    stored = [command["sequence_id"] for _, command in commands(found, None)]
    assert stored[-4:] == [14, 15, 16, 17]
    answer = ask(table(records), quota=exception(300))
    assert topic_row(answer, "quota")["stored"] == 9


def test_a_producer_that_the_log_refused_sends_when_its_application_did() -> None:
    quota = {"command": "ADMIN", "method": "POST", "path": "/persistent/a/b/t/backlogQuota?backlogQuotaType=destination_storage",
             "body": {"limitSize": 300, "policy": "producer_request_hold"}}  # fmt: skip
    late: dict[str, Any] = {"publish_time": START + 14_000}
    records: list[Record] = [
        (0, T, quota), subscribe(type_="Exclusive"), flow(0, 100), producer(), *(send(second, second) for second in range(1, 6)),
        producer(12, epoch=1, request_id=2), ack(25, *range(5)), producer(30, epoch=2, request_id=3),
        send(30, 6, **late), send(31, 7), tick(60),
    ]  # fmt: skip
    found = reacted(table(records), hold(-1))
    sent = commands(found, "SEND", of_model=False)
    assert [(second, command["sequence_id"]) for second, command in sent][5:] == [(14, 6), (31, 7)]
    assert found.dropped["PRODUCER"] == 2


def test_a_message_that_is_too_large_is_refused_and_the_producer_goes_on() -> None:
    log = table([subscribe(), producer(), send(1, 1), tick(60)])
    config = {"command": "BROKER_CONFIG", "settings": {"maxMessageSize": 10}}
    small = log_table(
        LOGICAL, timestamp=[0], topic=pa.array([None], pa.string()), value=[json.dumps(config).encode()]
    )
    found = ask(log, small=small)
    assert topic_row(found, "small")["stored"] == 0
    assert not [each for each in found.differences.to_pylist() if each["proposed_fate"] == "acked"]


# ---- chunks: all of a message have one sequence id

CHUNK: dict[str, Any] = {"uuid": "u", "total_chunk_msg_size": 160}
"""Metadata of each chunk."""


def chunked(second: int, sequence_id: int, chunks: int) -> list[Record]:
    """A message in chunks, whose entries are as large as those of `send`."""
    found = [
        send(second, sequence_id, **CHUNK, num_chunks_from_msg=chunks, chunk_id=each)
        for each in range(chunks)
    ]
    for *_, command in found:
        command["payload"] = "x" * 26
    return found


def stored(found: Reacted) -> list[tuple[int, int | None]]:
    """Sequence ids and chunks of the topic's entries, in their order."""
    broker, rows = Broker(0, NoEntries()), list[Any]()
    for each in decoded(found.records):
        broker.apply(each.offset, each.timestamp, each.topic, each.command, each.value)
        rows += broker.take()
    receipts = [
        row.effect for row in rows if isinstance(row.effect, SendReceipt) and row.effect.ledger_id > 0
    ]
    return [(each.sequence_id, each.metadata.chunk_id if each.metadata else None) for each in receipts]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=12),
    st.sampled_from([exception, hold]),
)
@settings(max_examples=examples(15), deadline=None)
@example([(9, 4)], hold)
@example([(5, 1), (0, 4), (1, 3), (0, 1)], exception)
def test_chunks_are_sent_as_messages_are(messages: list[tuple[int, int]], policy: Any) -> None:
    """A quota keeps the producer off from 10 s on, until acks make room; the same happens with a whole message in place of each chunk."""
    whole, parts, expected = list[Record](), list[Record](), list[tuple[int, int | None]]()
    second = 5
    for wait, chunks in messages:
        second += wait
        first = len(whole)
        whole += [send(second, 10 + first + each) for each in range(chunks)]
        parts += [send(second, 10 + first)] if chunks == 1 else chunked(second, 10 + first, chunks)
        expected += [(10 + first, None if chunks == 1 else each) for each in range(chunks)]
    answers = []
    for sent in (whole, parts):
        head = [subscribe(type_="Exclusive"), flow(0, 100), producer(), *(send(1, each) for each in range(5))]
        log = table([*head, *sent, ack(70, *range(5 + len(sent))), tick(300)])
        found = reacted(log, policy(300), send_timeout=0)
        assert not found.given_up
        if sent is parts:
            assert stored(found) == [*((each, None) for each in range(5)), *expected]
        answers.append(ask(log, ClientSettings(send_timeout=0), quota=policy(300)))
    of_whole, of_parts = answers
    assert of_parts.summary.equals(of_whole.summary)
    assert topic_row(of_parts, "quota")["stored"] == 5 + len(parts)


@pytest.mark.parametrize("limit", [300, -1])
def test_chunks_that_the_log_has_twice_are_repeats(limit: int) -> None:
    """The log's quota kept the producer off, and its client sent all chunks again."""
    body = {"limitSize": 300, "policy": "producer_request_hold"}
    late: dict[str, Any] = {"publish_time": START + 14_000}
    sent = chunked(14, 14, 4)
    again = [(28, topic, command | {"metadata": command["metadata"] | late}) for _, topic, command in sent]
    log = table(
        [
            admin_of_topic(0, "POST", "/backlogQuota?backlogQuotaType=destination_storage", body), *FILLED[:8], *sent,
            ack(25, *range(5)), producer(27, epoch=1, request_id=2), *again, tick(60),
        ]
    )  # fmt: skip
    records = in_one_partition(log)
    offsets = records["offset"].to_pylist()
    assert sorted(History(records, 0).repeats) == offsets[-5:-1]
    found = reacted(log, hold(limit))
    assert found.dropped.get("SEND", 0) == (0 if limit > 0 else 4)
    assert stored(found)[5:] == [(14, each) for each in range(4)]


# ---- consumers


def test_a_consumer_acks_what_it_still_gets() -> None:
    """Three messages are delivered at once, the others after permits at 100 s, when a short TTL has taken those before."""
    records = [subscribe(type_="Exclusive"), flow(0, 3), *(publish(1, number) for number in range(5)),
               ack(4, 0, 1, 2), publish(90, 5), flow(100, 10), ack(107, 3, 4, 5), tick(400)]  # fmt: skip
    log = table(records)
    found = ask(log, short=ttl(30))
    fates = {(row["sequence_id"], row["change"]) for row in found.differences.to_pylist()}
    assert fates == {(3, "lost newly"), (4, "lost newly")}
    (mine,) = (
        row
        for row in found.summary.to_pylist()
        if (row["policies"], row["topic"], row["subscription"]) == ("short", T, "s")
    )
    assert mine["acked"] == 4
    (only,) = commands(reacted(log, ttl(30)), "ACK")
    assert [each["entryId"] for each in only[1]["message_id"]] == [5]


def test_a_message_is_acked_as_long_after_its_delivery_as_in_the_log() -> None:
    rate = {"dispatchThrottlingRateInMsg": 2, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    log = table(
        [subscribe(), flow(0, 100), *(publish(1, number) for number in range(6)), ack(4, *range(6)), tick(30)]
    )
    found = reacted(log, admin("POST", "dispatchRate", rate))
    acks = commands(found, "ACK")
    assert sorted(each["entryId"] for _, command in acks for each in command["message_id"])[-1] == 5
    delivered = Counter(second - 3 for second, _ in acks)
    assert all(second >= 1 for second in delivered)
    answer = ask(log, slow=admin("POST", "dispatchRate", rate))
    for row in answer.differences.to_pylist():
        assert row["change"] == "delivered later"
        assert row["proposed_fate"] == row["baseline_fate"] == "acked"


def test_no_consumer_acks_what_it_did_not_get() -> None:
    """A quota that evicts takes messages before they are delivered: their acks are left out."""
    records = [subscribe(), flow(0, 2), *(publish(1, number) for number in range(12)), ack(5, 0, 1), flow(30, 20),
               ack(40, *range(2, 12)), tick(90)]  # fmt: skip
    found = reacted(table(records), eviction(500))
    result = ask(table(records), evict=eviction(500))
    evicted = {row["sequence_id"] for row in result.differences.to_pylist() if row["change"] == "lost newly"}
    assert evicted
    for row in result.differences.to_pylist():
        if row["sequence_id"] in evicted:
            assert row["proposed_taken"] == "never delivered"
    acked = [
        each["entryId"]
        for _, command in commands(found, "ACK", of_model=False)
        for each in command["message_id"]
    ]
    assert set(acked) == set(range(12)) - evicted


def test_messages_that_the_log_never_delivered_are_acked_after_a_drawn_delay() -> None:
    records = [subscribe(), flow(0, 100), *(publish(1, number) for number in range(3)), ack(5, 0, 1, 2),
               *(publish(20, number) for number in range(3, 6)), tick(90)]  # fmt: skip
    expiring = table([(0, T, {"command": "ADMIN", "method": "POST", "path": "/persistent/a/b/t/dispatchRate",
                              "body": {"dispatchThrottlingRateInMsg": 3, "dispatchThrottlingRateInByte": -1,
                                       "ratePeriodInSecond": 1000}}), *records])  # fmt: skip
    free = {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    found = reacted(expiring, admin("POST", "dispatchRate", free))
    assert [(second, len(command["message_id"])) for second, command in commands(found, "ACK")] == [(24, 3)]


# ---- seeds, files, and a replay of what the clients did


def test_the_seed_alone_decides() -> None:
    log = table([*FILLED, ack(25, *range(9)), tick(60)])
    first, again = reacted(log, hold(300), seed=5), reacted(log, hold(300), seed=5)
    assert first.records.equals(again.records)
    assert {reacted(log, hold(300), seed=seed).records["timestamp"].to_pylist()[-5] for seed in range(6)} != {
        0
    }
    times = {
        tuple(second for second, _ in commands(reacted(log, hold(300), seed=seed), "PRODUCER"))
        for seed in range(6)
    }
    assert len(times) > 1
    sets = {"hold": hold(300), "short": ttl(20)}
    alone = to_json(ask(log, ClientSettings(seed=5), **sets))
    assert alone == to_json(ask(log, ClientSettings(seed=5), **sets))
    spread = whatif(
        log,
        [PolicySet(*each) for each in sets.items()],
        partitions=2,
        processes=2,
        clients=ClientSettings(seed=5),
    )
    assert to_json(spread) == to_json(
        whatif(
            log,
            [PolicySet(*each) for each in sets.items()],
            partitions=2,
            processes=1,
            clients=ClientSettings(seed=5),
        )
    )


def test_backoff_doubles_to_a_minute_and_stops_once_before_the_send_timeout() -> None:
    backoff = Backoff(random.Random(1), 0)
    delays = [backoff.delay(0) for _ in range(12)]
    for number, delay in enumerate(delays):
        whole = min(100 * 2**number, 60_000)
        assert max(100, 0.9 * whole) <= delay <= whole
    backoff.reset()
    assert backoff.delay(0) == 100
    stopping, now, waited = Backoff(random.Random(1), 29_900), 0, []
    for _ in range(10):
        now += stopping.delay(now)
        waited.append(now)
    assert any(26_900 < each <= 30_000 for each in waited)


def test_a_replay_of_what_the_clients_did_gives_the_same(tmp_path: Path) -> None:
    log = table([*FILLED, ack(25, *range(9)), tick(60)])
    found = ask(log, hold=hold(300))
    result = replay_in_process(reacted(log, hold(300)).records, tmp_path / "replayed")
    equal_to_a_replay(found, "hold", result)


def test_files_and_the_page_say_how_clients_were_modelled(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with log.open("w") as file:
        for row in table([*FILLED, ack(25, *range(9)), tick(60)]).to_pylist():
            coordinates = {"timestamp": row["timestamp"]} | ({"topic": row["topic"]} if row["topic"] else {})
            file.write(json.dumps(coordinates | json.loads(row["value"])) + "\n")
    policies = tmp_path / "hold.yaml"
    policies.write_text("topics:\n  persistent://a/b/t:\n    backlogQuota:\n      destination_storage: {limitSize: 300, policy: producer_request_hold}\n")  # fmt: skip
    arguments = [
        "whatif",
        str(log),
        "--policies",
        str(policies),
        "--clients",
        "reactive",
        "--seed",
        "7",
        "--send-timeout",
        "5",
    ]
    found = CliRunner().invoke(app, [*arguments, "--json", "--out", str(tmp_path / "out")])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.output)
    assert answer["clients"] == "reactive"
    assert answer["model"]["settings"]["seed"] == 7
    assert answer["model"]["settings"]["send_timeout"] == 5000
    files = [*(tmp_path / "out").rglob("*.parquet")]
    assert {each.name for each in files} == {"rows.parquet", "summary.parquet", "series.parquet"}
    for each in files:
        metadata = pq.read_schema(each).metadata
        assert metadata[b"clients"] == b"reactive"
        assert json.loads(metadata[b"model"])["settings"]["seed"] == 7
    page = (tmp_path / "out/report.html").read_text()
    assert "Clients are modelled, with the seed 7" in page
    assert "The modelled clients" in page
    text = CliRunner().invoke(app, arguments).output
    assert "reactive clients, seed 7" in text
    assert "The model (Pulsar's Java client):" in text
    assert "seed" not in report(whatif(log, [policies]))


def test_what_is_not_modelled_is_counted() -> None:
    log = table(
        [(0, T.replace("persistent", "non-persistent"), {"producer": "p", "sequence_id": 1}), *FILLED]
    )
    found = ask(log, hold=hold(300))
    assert found.model is not None
    assert found.model.left_out == {"commands on non-persistent topics": 1}


def test_sequence_ids_of_a_topic_that_came_again_are_no_repeats() -> None:
    """One of the former life was refused. It is another message."""
    log = table(
        [
            subscribe(), admin_of_topic(1, "POST", "/backlogQuota?backlogQuotaType=destination_storage", {"limitSize": 10, "policy": "producer_exception"}),
            publish(2, 0), (3, None, {"command": "RUN_CHECK", "check": "backlogQuota"}), publish(5, 1),
            admin_of_topic(20, "DELETE", "?force=true", None), subscribe(21), *(publish(22, each) for each in range(3)),
        ]
    )  # fmt: skip
    assert topic_row(ask(log, proposed=eviction(1_000_000)), "proposed")["backlog"] == 3


def admin_of_topic(second: int, method: str, call: str, body: Any) -> Record:
    return second, T, {"command": "ADMIN", "method": method, "path": f"/persistent/a/b/t{call}", "body": body}
