"""`magnetar capture`: a broker's topics as a log, which ends in the state of that broker."""

import base64
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from schemas import lines
from schemas.commands import decode_or_refuse
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process
from streaming.record import stored
from streaming.record.capture import NotCaptured, _Cursor, _Log, capture
from streaming.record.client import Reader, ReadFailed, _Connection
from streaming.record.rest import CallFailed, Rest
from streaming.record.stored import Stored
from streaming.traces.normalise import Normaliser
from streaming.traces.trace import TraceError
from tests.broker.kit import QUIET
from tests.broker.test_long_lists import MOST, instructions
from tests.record.kit import of_batches
from tests.server.conftest import Running, running

pytestmark = pytest.mark.feature("K3")

WAIT = 10_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running(**QUIET, managedLedgerMaxEntriesPerLedger=7) as found:
        yield found


@pytest.fixture
def rest(broker: Running) -> Rest:
    return Rest(str(broker.server.admin_url))


@pytest.fixture
def client(broker: Running) -> Iterator[Any]:
    with broker.client() as client:
        yield client


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fill(client: Any, topic: str) -> None:
    """Three ledgers and a bit, a subscription with holes, one that has read nothing, one that is at the end."""
    first = client.subscribe(topic, "holes", pulsar.ConsumerType.Shared)
    client.subscribe(topic, "idle").close()
    last = client.subscribe(topic, "end")
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    for number in range(20):
        producer.send(b"%d" % number, partition_key="k", properties={"a": "b"}, event_timestamp=7)
    batches = client.create_producer(
        topic, producer_name="b", batching_enabled=True, batching_max_publish_delay_ms=50
    )
    for number in range(5):
        batches.send_async(b"b%d" % number, lambda *_: None)
    batches.flush()
    for number in range(20):
        message = first.receive(WAIT)
        if number not in (3, 4, 15):
            first.acknowledge(message)
    for _ in range(25):
        message = last.receive(WAIT)
    last.acknowledge_cumulative(message)
    for each in (first, last, producer, batches):
        each.close()


def folded(log: Path) -> Broker:
    """The broker at the end of a log."""
    broker, time = Broker(0, NoEntries()), 0
    for offset, command in enumerate(logged(log)):
        time, topic = command.pop("timestamp", time), command.pop("topic", None)
        value = json.dumps(command).encode()
        broker.apply(offset, time, topic, decode_or_refuse(value), value)
        broker.take()
    return broker


def same_state(rest: Rest, topic: str, log: Path) -> None:
    """A topic at the end of a log is what it is on the broker, but for the ids of its ledgers."""
    path = "/" + topic.replace("://", "/")
    ours: Any = folded(log).topic_stats(topic)
    real = rest.get(f"{path}/internalStats")
    names = Normaliser()
    for name in (
        "numberOfEntries",
        "totalSize",
        "currentLedgerEntries",
        "currentLedgerSize",
        "lastConfirmedEntry",
    ):
        assert names.difference(topic, real[name], ours["internal"][name], name, name) is None, name
    sizes = [(each["entries"], each["size"]) for each in real["ledgers"]]
    assert [(each["entries"], each["size"]) for each in ours["internal"]["ledgers"]] == sizes
    for name, cursor in ours["internal"]["cursors"].items():
        for key in ("markDeletePosition", "individuallyDeletedMessages"):
            assert names.difference(topic, real["cursors"][name][key], cursor[key], name, key) is None, (
                name,
                key,
            )
    backlogs = {name: sub["msgBacklog"] for name, sub in rest.get(f"{path}/stats")["subscriptions"].items()}
    assert {name: sub["msgBacklog"] for name, sub in ours["stats"]["subscriptions"].items()} == backlogs


def test_a_log_ends_in_the_state_of_the_broker(
    client: Any, rest: Rest, broker: Running, tmp_path: Path
) -> None:
    topic, log = "persistent://public/default/state", tmp_path / "log.jsonl"
    fill(client, topic)
    captured = capture(broker.service_url, rest, [topic], log)
    assert (captured.topics, captured.entries, captured.subscriptions, captured.missing) == (1, 21, 3, [])
    assert captured.commands == len(logged(log))
    same_state(rest, topic, log)
    again = tmp_path / "of_batches.jsonl"
    capture(broker.service_url, of_batches(rest), [topic], again)
    same_state(rest, topic, again)
    replayed = replay_in_process(log, tmp_path / "replayed", batches=3)
    assert replayed.rows["SEND_RECEIPT"] == 21
    assert "QUARANTINED" not in replayed.rows


def with_holes(ranges: int) -> tuple[_Log, str, _Cursor, io.BytesIO]:
    """A log of a topic with two entries for each of so many ranges of one acknowledged entry, in three ledgers."""
    topic, lines = "persistent://public/default/t", io.BytesIO()
    log, per_ledger = _Log(lines, "drop"), 2 * ranges // 3 + 1
    places = [(7 + number // per_ledger, number % per_ledger) for number in range(2 * ranges)]
    for number, place in enumerate(places):
        metadata = {"producer_name": "p", "sequence_id": number, "publish_time": 1}
        log.publish(1, topic, Stored(*place, metadata, b"", 1))
    lines.seek(0)
    lines.truncate()
    acked = ",".join(f"({ledger}:{entry - 1}..{ledger}:{entry}]" for ledger, entry in places[1::2])
    return log, topic, _Cursor(markDeletePosition="7:0", individuallyDeletedMessages=f"[{acked}]"), lines


def test_the_work_of_a_cursor_is_proportional_to_its_ranges() -> None:
    def work(ranges: int) -> int:
        log, topic, cursor, _ = with_holes(ranges)
        return instructions(lambda: log.acknowledge(topic, "s", cursor))

    assert work(600) < 3 * MOST * work(200)


def test_ranges_are_acknowledged_whatever_they_span() -> None:
    """A range over ledgers, one that begins before the mark-delete position, one beyond the end."""
    log, topic, _, lines = with_holes(9)  # 7:0 to 9:3
    acked = "[(6:3..7:2],(7:4..9:0],(9:2..12:5]]"
    log.acknowledge(topic, "s", _Cursor(markDeletePosition="7:1", individuallyDeletedMessages=acked))
    acks = [each for each in map(json.loads, lines.getvalue().splitlines()) if each["command"] == "ACK"]
    ids = [[(each["ledgerId"], each["entryId"]) for each in ack["message_id"]] for ack in acks]
    between = [(1, 5), (1, 6), *((2, entry) for entry in range(7)), (3, 0)]
    assert ids == [[(1, 1)], [(1, 2), *between, (3, 3)]]


def test_each_topic_with_entries_that_no_reader_gets_is_named_once() -> None:
    log, topics = (
        _Log(io.BytesIO(), "drop"),
        [f"persistent://public/default/{name}" for name in ("ab", "a", "ab")],
    )
    for number, topic in enumerate(topics):
        metadata = {"producer_name": "p", "sequence_id": number, "publish_time": 1}
        log.publish(1, topic, Stored(7, 3 + number, metadata, b"", 1))
    assert [each.partition(": ")[0] for each in log.missing] == topics[:2]


def test_entries_are_as_they_were_published(client: Any, rest: Rest, broker: Running, tmp_path: Path) -> None:
    topic, log = "persistent://public/default/entries", tmp_path / "log.jsonl"
    fill(client, topic)
    with Reader(broker.service_url) as reader:
        stored = [*reader.entries(topic)]
    assert [each.metadata["sequence_id"] for each in stored[:20]] == [*range(20)]
    capture(broker.service_url, rest, [topic], log)
    sends = [each for each in logged(log) if each["command"] == "SEND"]
    assert [base64.b64decode(each["payload_bytes"]) for each in sends] == [each.payload for each in stored]
    assert [each["metadata"]["producer_name"] for each in sends] == ["p"] * 20 + ["b"]
    assert [each["timestamp"] for each in sends] == [each.metadata["publish_time"] for each in stored]
    assert sends[0]["metadata"]["event_time"] == 7
    assert sends[20]["num_messages"] == 5


@pytest.mark.parametrize("payloads", ["hash", "drop"])
def test_payloads_may_be_left_out(
    payloads: Any, client: Any, rest: Rest, broker: Running, tmp_path: Path
) -> None:
    topic, log = f"persistent://public/default/without-{payloads}", tmp_path / "log.jsonl"
    fill(client, topic)
    capture(broker.service_url, rest, [topic], log, payloads)
    sends = [each for each in logged(log) if each["command"] == "SEND"]
    assert base64.b64decode(sends[19]["payload_bytes"]) != b"19"
    same_state(rest, topic, log)


@pytest.mark.parametrize("size", [1, 1000, 1 << 20, 5 << 20, 100 << 20])
@pytest.mark.parametrize("streams", [1, 50, 5000])
def test_a_reader_lets_so_many_bytes_wait(
    size: int, streams: int, broker: Running, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All readers together 20,000 messages, or 64 MiB by the average of their sizes; but each must get on."""
    topic = f"persistent://public/default/waiting-{size}-{streams}"
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(150):
        producer.send(b"%d" % number)
    asked: list[int] = []
    send = _Connection.send

    def counted(connection: _Connection, command: str, fields: dict[str, Any]) -> None:
        asked.append(fields.get("messagePermits", 0))
        send(connection, command, fields)

    monkeypatch.setattr(_Connection, "send", counted)
    most = 0
    with Reader(broker.service_url, streams=streams) as reader:
        for taken, _ in enumerate(reader.entries(topic, size=size)):
            most = max(most, sum(asked) - taken)
    assert taken == 149
    assert most <= max(1.5 * 20_000 / streams, 15)
    assert most * size <= max(1.5 * (64 << 20) / streams, 2 * size)


def test_partitions_policies_and_namespaces(client: Any, rest: Rest, broker: Running, tmp_path: Path) -> None:
    assert rest.call("PUT", "/namespaces/public/captured").status == 204
    assert rest.call("POST", "/namespaces/public/captured/messageTTL", 3600).status == 204
    quota = {"limit": 10_000_000, "policy": "consumer_backlog_eviction"}
    assert rest.call("POST", "/namespaces/public/captured/backlogQuota", quota).status == 204
    assert rest.call("PUT", "/persistent/public/captured/parts/partitions", 3).status == 204
    producer = client.create_producer(
        "persistent://public/captured/parts", batching_enabled=False,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )  # fmt: skip
    for number in range(9):
        producer.send(b"%d" % number)
    client.create_producer("persistent://public/captured/single").send(b"x")
    path = "/persistent/public/captured/single/messageTTL?messageTTL=60"
    assert rest.call("POST", path).status == 204
    log = tmp_path / "log.jsonl.gz"
    captured = capture(broker.service_url, rest, ["public/captured"], log)
    assert (captured.topics, captured.entries, captured.missing) == (4, 10, [])
    replayed = replay_in_process(log, tmp_path / "replayed")
    assert {each["topic"] for each in replayed.stats} == {
        "persistent://public/captured/single", *(f"persistent://public/captured/parts-partition-{n}" for n in range(3)),
    }  # fmt: skip
    calls = {
        each["path"]: each.get("body")
        for each in map(json.loads, gzip.decompress(log.read_bytes()).splitlines())
        if "path" in each
    }
    assert path in calls
    of_namespace = calls["/namespaces/public/captured"]
    assert of_namespace["message_ttl_in_seconds"] == 3600
    assert of_namespace["backlog_quota_map"]["destination_storage"]["limitSize"] == 10_000_000


def test_a_namespace_that_was_created_with_its_policies(
    client: Any, rest: Rest, broker: Running, tmp_path: Path
) -> None:
    """A quota above the retention, and topics that are created without a type: single calls refuse both."""
    policies = {
        "retention_policies": {"retentionTimeInMinutes": 1440, "retentionSizeInMB": 500},
        "backlog_quota_map": {
            "destination_storage": {"limitSize": 2**31, "limitTime": -1, "policy": "producer_exception"}
        },
        "autoTopicCreationOverride": {"allowAutoTopicCreation": True},
    }
    assert rest.call("PUT", "/namespaces/public/restored", policies).status == 204
    client.create_producer("persistent://public/restored/t").send(b"x")
    log = tmp_path / "log.jsonl"
    assert capture(broker.service_url, rest, ["public/restored"], log).missing == []
    ours = Broker(0, NoEntries())
    for offset, each in enumerate(map(json.loads, log.read_bytes().splitlines())):
        value = json.dumps({name: each[name] for name in each if name not in ("timestamp", "topic")}).encode()
        ours.apply(offset, each["timestamp"], each.get("topic"), decode_or_refuse(value), value)
    found = ours.namespace_policies["public/restored"]
    assert found.retention is not None
    assert found.backlogQuota["destination_storage"].limitSize == 2**31
    assert found.autoTopicCreation is not None


def test_nothing_is_removed_before_the_log_ends(
    client: Any, rest: Rest, broker: Running, tmp_path: Path
) -> None:
    """The messages are older than the TTL that was set later."""
    topic, log = "persistent://public/default/old", tmp_path / "log.jsonl"
    client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    assert rest.call("POST", "/persistent/public/default/old/messageTTL?messageTTL=1").status == 204
    capture(broker.service_url, rest, [topic], log)
    commands = logged(log)
    policies = [
        number
        for number, each in enumerate(commands)
        if each["command"] == "ADMIN" and each["method"] == "POST"
    ]
    assert min(policies) > max(number for number, each in enumerate(commands) if each["command"] == "SEND")
    assert commands[0]["settings"]["defaultRetentionTimeInMinutes"] == -1
    assert commands[-2]["command"] == "BROKER_CONFIG"
    assert commands[-2]["settings"]["managedLedgerMaxEntriesPerLedger"] == "7"


@pytest.mark.parametrize("names", [("Q a", "Q%20a"), ("ünï", "a?b#c"), ("a+b", "a:b@c~*")])
def test_names_of_any_characters(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, names: tuple[str, str]
) -> None:
    """No topic and no subscription is taken for another one, or left out."""
    topics = [f"persistent://public/default/{name}" for name in names]
    subscriptions = ["a b", "a+b", "a%20b", "shop:billing", "team@mail", "é/x", "~*"]
    for topic in topics:
        consumers = [client.subscribe(topic, name, pulsar.ConsumerType.Shared) for name in subscriptions]
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(len(subscriptions)):
            producer.send(b"%d" % number)
        for acked, consumer in enumerate(consumers):
            for _ in range(acked):
                consumer.acknowledge(consumer.receive(WAIT))
            consumer.close()
    log = tmp_path / "log.jsonl"
    captured = capture(broker.service_url, rest, topics, log)
    assert (captured.subscriptions, captured.missing) == (2 * len(subscriptions), [])
    for topic in topics:
        stats: Any = folded(log).topic_stats(topic)["stats"]
        backlogs = {name: sub["msgBacklog"] for name, sub in stats["subscriptions"].items()}
        assert backlogs == {name: len(subscriptions) - acked for acked, name in enumerate(subscriptions)}


def test_a_message_that_no_line_has_room_for(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, log = "persistent://public/default/large", tmp_path / "log.jsonl"
    client.subscribe(topic, "s").close()
    client.create_producer(topic, batching_enabled=False).send(bytes(8000))
    for module in (lines, stored):
        monkeypatch.setattr(module, "LONGEST_LINE", 10_000)
    monkeypatch.setattr(stored, "_ROOM", 500)
    with pytest.raises(
        NotCaptured, match=rf"{topic}: entry \d+:0 has 8,\d+ bytes: a line of a log has no room"
    ):
        capture(broker.service_url, rest, [topic], log)
    assert not log.exists()


def test_what_can_not_be_captured(rest: Rest, broker: Running, tmp_path: Path) -> None:
    with pytest.raises(NotCaptured, match="a non-persistent topic stores nothing"):
        capture(broker.service_url, rest, ["non-persistent://public/default/n"], tmp_path / "log.jsonl")
    with pytest.raises(CallFailed, match="404"):
        capture(broker.service_url, rest, ["persistent://public/default/none"], tmp_path / "log.jsonl")
    with pytest.raises(TraceError, match="ending in"):
        capture(broker.service_url, rest, [], tmp_path / "log.txt")
    with pytest.raises(ReadFailed, match="can't be reached"):
        next(Reader("pulsar://127.0.0.1:1").entries("t"))


def test_the_command(client: Any, rest: Rest, broker: Running, tmp_path: Path) -> None:
    client.create_producer("command").send(b"x")
    options = [
        "--service-url",
        broker.service_url,
        "--admin-url",
        rest.url,
        "--to",
        str(tmp_path / "log.jsonl"),
    ]
    done = CliRunner().invoke(app, ["capture", "command", *options])
    assert done.exit_code == 0, done.output
    assert "1 topic, 1 entry, 0 subscriptions" in done.output
    assert "acknowledgments of single messages in a batch" in done.output
    again = CliRunner().invoke(app, ["capture", "command", *options])
    assert "log.jsonl already exists" in again.output
    options[-1] = str(tmp_path / "none.jsonl")
    refused = CliRunner().invoke(app, ["capture", "none", *options])
    assert refused.exit_code != 0
    assert "404" in refused.output
    assert not (tmp_path / "none.jsonl").exists()
