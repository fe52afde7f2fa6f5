"""`magnetar policy`, `skip`, `expire` and the like: on a log in a file, and on a running query."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, TopicPartition
from typer.testing import CliRunner

from schemas.commands import decode_or_refuse
from sinks.kafka import KafkaResponses
from sinks.rows import to_tables
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process
from streaming.kafka.local import LocalKafka
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl

START = 1_767_225_600_000
T = "persistent://public/default/t"


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    return done.exit_code, done.output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Five messages a minute apart, and a subscription that has read none and whose consumer is gone."""
    subscribe = {"command": "SUBSCRIBE", "connection": "c", "consumer_id": 1, "request_id": 1, "subscription": "s",
                 "subType": "Shared"}  # fmt: skip
    lines: list[dict[str, Any]] = [{"topic": T, "timestamp": START, **subscribe}]
    lines += [{"command": "CONNECTION_LOST", "connection": "c"}]
    lines += [
        {"topic": T, "timestamp": START + 60_000 * n, "producer": "p", "sequence_id": n} for n in range(5)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))  # without a newline at the end
    return path


def backlog(log: Path) -> int:
    result = replay_in_process(log, log.parent / uuid4().hex, partitions=2)
    (found,) = [int(each["backlog"]) for each in result.stats if each["subscription"] == "s"]
    return found


def added(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()[7:]]


def test_policies_of_a_log(log: Path) -> None:
    for arguments in (
        ("retention", "public/default", "--size", "1G", "--time", "3h"),
        ("message-ttl", "public/default", "2d"),
        ("backlog-quota", "public/default", "--limit", "10M", "--policy", "producer_exception"),
        (
            "backlogQuota",
            T,
            "--limit-time",
            "1h",
            "--policy",
            "consumer_backlog_eviction",
            "--type",
            "message_age",
        ),
        ("maxProducers", T, "7"),
    ):
        assert run("policy", "set", *arguments, "--log", log) == (0, "")
    assert [each["body"] for each in added(log)] == [
        {"retentionTimeInMinutes": 180, "retentionSizeInMB": 1024}, 172_800,
        {"limitSize": 10_485_760, "policy": "producer_exception"}, {"limitTime": 3600, "policy": "consumer_backlog_eviction"}, 7,
    ]  # fmt: skip
    assert {each["timestamp"] for each in added(log)} == {START + 240_000}
    assert [each.get("topic") for each in added(log)] == [None, None, None, T, T]
    code, text = run("policy", "get", "retention", "public/default", "--log", log)
    assert (code, json.loads(text)) == (0, {"retentionTimeInMinutes": 180, "retentionSizeInMB": 1024})
    code, text = run("policy", "get", "message-ttl", T, "--applied", "--log", log)
    assert (code, json.loads(text)) == (0, 172_800)
    assert len(added(log)) == 5, "reading writes nothing"
    assert run("policy", "unset", "backlog-quota", T, "--type", "message_age", "--log", log) == (0, "")
    assert run("policy", "unset", "message-ttl", "public/default", "--log", log) == (0, "")
    assert run("policy", "get", "message-ttl", "public/default", "--log", log) == (0, "")


def test_pulsars_units_and_checks(log: Path) -> None:
    retention = ("policy", "set", "retention", "public/default", "--log", log)
    assert run(*retention, "--size", "-1", "--time", "-1")[0] == 0
    assert added(log)[-1]["body"] == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    for size, time in ("1G", "30s"), ("500K", "1h"):  # less than there can be is not "nothing"
        code, text = run(*retention, "--size", size, "--time", time)
        assert (code, "give at least one" in " ".join(text.split())) == (2, True)
    code, text = run(*retention, "--size", "1G", "--time", "0")
    assert (code, "Invalid retention policy" in text) == (1, True)
    code, text = run("skip", "t", "nobody", 3, "--log", log)
    assert (code, text.startswith("magnetar: 404 ")) == (1, True)
    assert len(added(log)) == 1, "what is refused is not written"


def test_subscriptions_of_a_log(log: Path) -> None:
    assert run("skip", "t", "s", 2, "--log", log) == (0, "")
    assert backlog(log) == 3
    assert run("expire", "t", "s", "--older-than", "90", "--log", log)[0] == 0
    assert backlog(log) == 2
    assert run("reset-cursor", T, "s", "--timestamp", START + 60_000, "--log", log) == (0, "")
    assert backlog(log) == 4
    assert run("reset-cursor", "public/default/t", "s", "--position", "1:3", "--log", log) == (0, "")
    assert backlog(log) == 2
    assert run("expire", "t", "s", "--position", "1:3", "--log", log)[0] == 0
    assert backlog(log) == 1
    assert run("clear-backlog", T, "s", "--log", log) == (0, "")
    assert backlog(log) == 0
    assert run("reset-cursor", T, "s", "--timestamp", START, "--log", log) == (0, "")
    assert run("expire", "t", "--older-than", "1h", "--log", log)[0] == 0
    assert run("clear-backlog", "public/default", "s", "--log", log) == (0, "")
    assert run("clear-backlog", "public/default", "--log", log) == (0, "")
    assert backlog(log) == 0
    assert run("unload", T, "--log", log) == (0, "")
    assert run("unload", "public/default", "--log", log) == (0, "")
    assert run("unsubscribe", "t", "s", "--force", "--log", log) == (0, "")
    assert run("unsubscribe", "t", "s", "--log", log)[0] == 1


def test_a_new_log(tmp_path: Path) -> None:
    new = tmp_path / "new.jsonl"
    assert run("policy", "set", "message-ttl", "shop/day", "1h", "--log", new) == (0, "")
    (line,) = map(json.loads, new.read_text().splitlines())
    assert (line["path"], line["body"]) == ("/namespaces/shop/day/messageTTL", 3600)
    assert line["timestamp"] > START


def test_a_partitioned_topic(log: Path) -> None:
    with log.open("a") as file:
        create = {
            "command": "ADMIN",
            "method": "PUT",
            "path": "/persistent/public/default/many/partitions",
            "body": 2,
        }
        file.write(f"\n{json.dumps(create)}\n")
    code, text = run("skip", "many", "s", 1, "--log", log)
    assert (code, "Skip messages on a partitioned topic is not allowed" in text) == (1, True)
    assert run("policy", "set", "max-consumers", "persistent://public/default/many", "3", "--log", log) == (
        0,
        "",
    )
    assert added(log)[-1]["path"] == "/persistent/public/default/many/maxConsumers"
    assert run("unload", "persistent://public/default/many", "--log", log)[0] in (0, 1)


# -- a running query


@pytest.fixture
def query(kafka: LocalKafka) -> Iterator[tuple[str, str]]:
    """The URLs of the ingress and the responses of a stand-in for a query: brokers that answer each record."""
    urls = [KafkaUrl(kafka.bootstrap, f"{name}-{uuid4().hex}") for name in ("commands", "responses")]
    for url in urls:
        ensure_topic(url, 2)
    stop = threading.Event()
    thread = threading.Thread(target=_answer, args=(*urls, stop))
    thread.start()
    yield f"kafka://{kafka.bootstrap}/{urls[0].topic}", f"kafka://{kafka.bootstrap}/{urls[1].topic}"
    stop.set()
    thread.join()


def _answer(ingress: KafkaUrl, responses: KafkaUrl, stop: threading.Event) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=ingress.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    consumer.assign([TopicPartition(ingress.topic, partition) for partition in range(2)])
    brokers, sink, batch = (
        [Broker(n, NoEntries()) for n in range(2)],
        KafkaResponses(responses.bootstrap, responses.topic),
        0,
    )
    while not stop.is_set():
        for of, records in consumer.poll(200).items():
            broker = brokers[of.partition]
            for each in records:
                key = None if each.key is None else each.key.decode()
                broker.apply(each.offset, each.timestamp, key, decode_or_refuse(each.value), each.value)
            if rows := broker.take():
                sink.write(batch, of.partition, to_tables(of.partition, rows))
            batch += 1
    consumer.close()


@pytest.mark.kafka
def test_a_running_query_answers(query: tuple[str, str]) -> None:
    ingress, responses = query
    both = ("--ingress", ingress, "--responses", responses)
    assert run("policy", "set", "retention", "public/default", "--size", "2G", "--time", "1h", *both) == (
        0,
        "",
    )
    code, text = run("policy", "get", "retention", "public/default", *both)
    assert (code, json.loads(text)) == (0, {"retentionTimeInMinutes": 60, "retentionSizeInMB": 2048})
    code, text = run("skip", "t", "s", 1, *both)
    assert (code, text) == (1, f"magnetar: 404 Topic {T} not found\n")


@pytest.mark.kafka
def test_without_responses_the_call_is_written(query: tuple[str, str]) -> None:
    ingress, responses = query
    code, text = run("policy", "set", "message-ttl", "public/default", "1h", "--ingress", ingress)
    assert (code, text) == (
        0,
        f"written to {ingress}; the query responds in its --responses topic, if it has one\n",
    )
    assert run("policy", "set", "max-producers", T, "5", "--ingress", ingress)[0] == 0
    both = ("--ingress", ingress, "--responses", responses)
    assert run("policy", "get", "message-ttl", "public/default", *both) == (0, "3600\n")
    assert run("policy", "get", "max-producers", T, *both) == (0, "5\n")
    code, text = run("policy", "get", "max-producers", T, "--ingress", ingress)
    assert (code, "give the query's --responses" in text) == (2, True)
