"""The parts of `make parity` that need no Pulsar, on frames of a real one."""

import base64
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming.broker.config import configuration
from streaming.traces.conform import Verdict, compare_trace
from streaming.traces.trace import Trace, payload_of, read_trace
from tests.parity import scenario, wire
from tests.parity.admin import Admin
from tests.parity.administrator import Administrator
from tests.parity.consumers import Consumers
from tests.parity.messages import COMMANDS
from tests.parity.plan import BLOCK, KINDS, Step, drawn, plan
from tests.parity.producers import Producers
from tests.parity.publisher import Publisher
from tests.parity.pulsar import Ports, settings
from tests.parity.recorder import Recorder
from tests.parity.scenario import compared, first, held_to, judge

RECORDED = Path(__file__).with_name("recorded")
OFFICIAL = Path(__file__).parents[2] / "streaming" / "traces" / "recorded"

PLANNED = [Step("join", 2751701614), Step("publish", 697149587), Step("ack_any", 3202242002)]


def test_a_seed_stands_for_a_scenario() -> None:
    assert [*itertools.islice(plan("shared", 7), 3)] == PLANNED
    assert [*itertools.islice(plan("shared", 8), 3)] != PLANNED


@pytest.mark.parametrize("kind", KINDS)
def test_a_kinds_operations_are_methods(kind: str) -> None:
    operations = KINDS[kind].operations
    clients = (Producers,) if "produce" in operations else (Publisher, Consumers)
    parts = (*clients, Administrator)
    assert [
        name for name in operations if sum(callable(getattr(part, name, None)) for part in parts) != 1
    ] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_kinds_settings_are_known_and_drawn_for_seeds_in_a_row(kind: str) -> None:
    for seed in range(0, 20 * BLOCK, BLOCK):
        configuration("4.x", settings() | drawn(kind, seed))
        assert drawn(kind, seed) == drawn(kind, seed + BLOCK - 1)
    differing = {str(drawn(kind, seed)) for seed in range(0, 20 * BLOCK, BLOCK)}
    assert len(differing) > 1 or all(len(set(values)) == 1 for values in KINDS[kind].settings.values())


def test_frames_survive_encoding_and_decoding() -> None:
    """Frames of official clients and of the broker."""
    met, frames = set[str](), 0
    for path in sorted(OFFICIAL.glob("*.jsonl")):
        for record in read_trace(path).records:
            known = record["dir"] in ("in", "out") and record["cmd"] in COMMANDS
            if not known or "payload_repeat" in record or _has_more(record):
                continue
            message = [record["metadata"], payload_of(record)] if "metadata" in record else []
            found = wire.decode(wire.encode(record["cmd"], record["fields"], *message)[4:])
            assert (found["fields"], found.get("metadata"), found.get("entry_size")) == (
                record["fields"], record.get("metadata"), record.get("entry_size"),
            )  # fmt: skip
            met.add(record["cmd"])
            frames += 1
    assert frames > 3500
    assert COMMANDS.keys() - met == {"PING", "PONG"}  # not recorded


def test_a_batch_is_encoded_as_clients_do() -> None:
    """A batch of an official client, made anew from its parts."""
    batches = [
        record
        for path in sorted(OFFICIAL.glob("*.jsonl"))
        for record in read_trace(path).records
        if record.get("cmd") == "SEND" and "batch" in record
    ]
    for record in batches:
        metadata = [each["metadata"] for each in record["batch"]]
        payloads = [base64.b64decode(each["payload"]) for each in record["batch"]]
        assert wire.batch(metadata, payloads) == payload_of(record)
    assert len(batches) > 10


def test_a_large_payload_of_one_byte_is_recorded_as_such() -> None:
    metadata = {"producer_name": "p", "sequence_id": 0, "publish_time": 1}
    frame = wire.encode("SEND", {"producer_id": 0, "sequence_id": 0}, metadata, b"x" * 5000)
    assert wire.decode(frame[4:])["payload_repeat"] == [ord("x"), 5000]


def _has_more(record: dict[str, Any]) -> bool:
    """Whether a frame has fields that no scenario uses, so that the tables lack them."""
    try:
        wire.encode(record["cmd"], record["fields"], record.get("metadata"))
    except wire.WireError:
        return True
    return False


def test_what_the_tables_lack_is_said() -> None:
    with pytest.raises(wire.WireError, match="SEEK: by: in no table"):
        wire.encode("SEEK", {"by": 1})
    with pytest.raises(wire.WireError, match="command 99 is in no table"):
        wire.decode(b"\0\0\0\2\x08\x63")
    with pytest.raises(wire.WireError, match="CONNECTED: its field 9 is in no table"):
        wire.decode(b"\0\0\0\6\x08\x03\x1a\x02\x48\x01")


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_recording_is_compared(path: Path) -> None:
    """The first operations of some scenarios."""
    trace = read_trace(path)
    kind, _, seed = path.stem.rpartition("-")
    assert trace.header["broker_config"] == settings() | drawn(kind, int(seed))
    verdict = compare_trace(trace)
    assert verdict.differences == []
    assert verdict.frames > 10
    assert verdict.snapshots > 5
    assert first(verdict) is None


def test_where_two_recordings_differ_alike_ledgers_do_not_count() -> None:
    trace = read_trace(RECORDED / "key_shared-0.jsonl")
    records = json.dumps([each for each in trace.records if each["dir"] != "stats"])
    ledger = next(
        each["fields"]["message_id"]["ledgerId"] for each in trace.records if each.get("cmd") == "MESSAGE"
    )
    found = []
    for text in (records, records.replace(f'"ledgerId": {ledger}', '"ledgerId": 4711')):
        others = json.loads(text)
        at = next(index for index, each in enumerate(others) if each.get("cmd") == "MESSAGE")
        others.insert(at, others[at])  # one more than ours
        found.append(compare_trace(Trace(trace.header, others)))
    assert found[0].differences != found[1].differences
    assert first(found[0]) == first(found[1]) != None  # noqa: E711


def without_a_message(records: list[dict[str, Any]], which: int) -> list[dict[str, Any]]:
    """What a broker would have sent without a MESSAGE."""
    (at, *_) = itertools.islice(
        (index for index, each in enumerate(records) if each.get("cmd") == "MESSAGE"), which, None
    )
    return records[:at] + records[at + 1 :]


def write(path: Path, trace: Trace, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in (trace.header, *records)))


@pytest.mark.parametrize(
    ("again", "word"),
    [([], "DIFFERS"), ([1, 1], "DIFFERS"), ([1, 2], "race"), ([0, 1], "race"), ([0, 0], "race")],
)
def test_traces_that_were_kept_are_judged_again(tmp_path: Path, again: list[int], word: str) -> None:
    """`again`: which message each of the further recordings lacks; 0: none."""
    trace = read_trace(RECORDED / "key_shared-0.jsonl")
    path = tmp_path / "key_shared-0.jsonl"
    write(path, trace, trace.records)
    assert judge(path)[0] == "equal"
    write(path, trace, without_a_message(trace.records, 3))
    for number, lacks in enumerate(again, start=1):
        records = trace.records if lacks == 0 else without_a_message(trace.records, lacks)
        write(tmp_path / f"key_shared-0.again-{number}.jsonl", trace, records)
    found, verdict = judge(path)
    assert found == word
    assert not verdict.equal


@pytest.mark.parametrize(
    ("text", "late", "races"),
    [
        ("stats.msgOutCounter: recorded 1, ours 2", 100, True),
        ("stats.msgOutCounter: recorded 1, ours 2", 1900, True),
        ("connection 1, consumer 0: ours MESSAGE {}, recorded has none", 1900, True),
        ("stats.msgOutCounter: recorded 1, ours 2", 2000, False),
        ("stats.msgOutCounter: recorded 2, ours 1", 100, False),
        ("stats.backlogSize: recorded 1, ours 2", 100, False),
    ],
)
def test_a_delivery_that_was_due_may_come_in_the_next_step(
    text: str, late: int, races: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`late`: how long before the end of the step the message was due (ms)."""
    differences = [("2 wait", text), ("3 ack", "stats.backlogSize: recorded 1, ours 2")]
    monkeypatch.setattr(scenario, "compare_trace", lambda _: Verdict("x", 1, 1, differences))
    records: list[dict[str, Any]] = [
        {"dir": "note", "step": "1 publish", "t": 1000},
        {"dir": "in", "cmd": "SEND", "t": 1000, "metadata": {"deliver_at_time": 9000 - late}},
        {"dir": "note", "step": "2 wait", "t": 8000},
        {"dir": "stats", "t": 9000},
        {"dir": "note", "step": "3 ack", "t": 9001},
    ]
    found = compared(Trace({"broker_config": {"delayedDeliveryTickTimeMillis": "1000"}}, records))
    assert held_to(found) == ([] if races else differences)


def test_what_affects_the_whole_broker_runs_alone() -> None:
    assert [name for name, kind in KINDS.items() if kind.alone] == ["quotas", "restarts", "partitions"]


@pytest.fixture
def broker() -> Iterator[tuple[Ports, list[str]]]:
    """A minimal broker and the commands it got. It greets, sends Success in two parts, and closes on SEEK."""
    got: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client, client.makefile("rb") as frames:
            while size := frames.read(4):
                command = wire.decode(frames.read(int.from_bytes(size)))
                got.append(command["cmd"])
                if command["cmd"] == "CONNECT":
                    client.sendall(
                        wire.encode("PING", {}) + wire.encode("CONNECTED", {"server_version": "x"})
                    )
                if command["cmd"] == "SUBSCRIBE":
                    said = wire.encode("SUCCESS", {"request_id": command["fields"]["request_id"]})
                    client.sendall(said[:3])
                    client.sendall(said[3:])
                if command["cmd"] == "SEEK":
                    return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield Ports(listener.getsockname()[1], 0, 0), got
    listener.close()
    thread.join(10)


def test_a_recording_is_gated(
    broker: tuple[Ports, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Admin, "call", lambda *_: {"status": 404})
    monkeypatch.setattr(Admin, "snapshot", lambda *_: {"stats": {"msgInCounter": 0}})
    ports, got = broker
    recorder = Recorder(ports, "x", {})
    heard: list[str] = []
    recorder.listeners.append(lambda record: heard.append(record["cmd"]))
    connection = recorder.open()
    said = recorder.ask(connection, "SUBSCRIBE", topic="t", subscription="s", subType="Shared", consumer_id=0)
    assert said["fields"] == {"request_id": 1}
    recorder.tell(connection, "FLOW", consumer_id=0, messagePermits=1)
    recorder.ask(connection, "SEEK", consumer_id=0)
    assert recorder.connections == []
    assert recorder.ask(connection, "CLOSE_CONSUMER", consumer_id=0) == {}
    recorder.snapshot()
    recorder.save(tmp_path / "x.jsonl", "")
    recorder.close()
    trace = read_trace(tmp_path / "x.jsonl")
    assert [each.get("cmd", each["dir"]) for each in trace.records] == [
        "_TCP_OPEN", "CONNECT", "CONNECTED", "SUBSCRIBE", "SUCCESS", "FLOW", "SEEK", "_TCP_CLOSE", "stats",
    ]  # fmt: skip
    assert heard == ["CONNECTED", "SUCCESS", "_TCP_CLOSE"]
    assert got == ["CONNECT", "PONG", "SUBSCRIBE", "FLOW", "SEEK"]


@pytest.mark.parametrize(
    ("said", "busy"),
    [
        ({}, False),
        ({"state": "CreatingLedger"}, True),
        ({"pendingAddEntriesCount": 1}, True),
        ({"reads": 1}, True),
    ],
)
def test_a_snapshot_waits_for_an_idle_topic(
    broker: tuple[Ports, list[str]], monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], busy: bool
) -> None:
    calls = 0

    def call(_: Admin, method: str, path: str, body: Any = None) -> dict[str, Any]:
        nonlocal calls
        calls += path.endswith("/internalStats")
        now = said if calls < 4 else {}
        cursor = {"pendingReadOps": now.get("reads", 0)}
        response: dict[str, Any] = {
            "subscriptions": {},
            "publishers": [],
            "ledgers": [],
            "cursors": {"s": cursor},
        }
        response |= {"state": now.get("state", "LedgerOpened"), "msgInCounter": 1}
        return {
            "status": 200,
            "response": {"pendingAddEntriesCount": now.get("pendingAddEntriesCount", 0)} | response,
        }

    monkeypatch.setattr(Admin, "call", call)
    recorder = Recorder(broker[0], "x", {})
    recorder.open()
    recorder.snapshot()
    recorder.close()
    assert calls == (
        5 if "state" in said else 4 if busy else 2
    )  # a snapshot has the state, so two more agree on it
    assert [each["dir"] for each in recorder.records[-1:]] == ["stats"]
