"""The parts of `make parity` that need no Pulsar, on frames of a real one."""

import itertools
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from streaming.broker.config import configuration
from streaming.jobs.replay import load
from streaming.log.table import LogError
from streaming.protocol.codec import CHECKSUM_BYTES, FrameError, encode, entry
from streaming.traces.conform import TraceComparison, compare_trace
from streaming.traces.normalise import Normaliser
from streaming.traces.trace import Trace, read_trace
from tests.parity import bursts
from tests.parity.__main__ import Run
from tests.parity.admin import Admin
from tests.parity.administrator import Administrator
from tests.parity.bursts import Bursts
from tests.parity.compactions import Compactions
from tests.parity.consumers import Consumers
from tests.parity.log import LogRunner, positions_of, settings_of
from tests.parity.plan import BLOCK, KINDS, Step, drawn, plan
from tests.parity.producers import Producers
from tests.parity.publisher import Publisher
from tests.parity.pulsar import LocalPulsar, Ports, has_zookeeper, settings
from tests.parity.recorder import Recorder, read
from tests.parity.scenario import Outcome, Recording, compared, hangs, held_to
from tests.parity.transactions import Transactions, count_from_0

RECORDED = Path(__file__).with_name("recorded")
"""The first operations of some scenarios, and `ack_parts`: a log with acks of parts that nobody checks."""

BURSTS = Path(__file__).parent / "recorded_bursts"

PLANNED = [Step("join", 2751701614), Step("publish", 697149587), Step("ack_any", 3202242002)]


@pytest.mark.parametrize(
    ("version", "has"),
    [("2.8.2", True), ("2.10.5", True), ("2.11.0", False), ("3.0.7", False), ("5.0.0-M1", False)],
)
def test_the_last_line_with_a_zookeeper_is_2_10(version: str, has: bool) -> None:
    assert has_zookeeper(version) == has


def test_a_seed_stands_for_a_scenario() -> None:
    assert [*itertools.islice(plan("shared", 7), 3)] == PLANNED
    assert [*itertools.islice(plan("shared", 8), 3)] != PLANNED


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_core_does_what_was_recorded(path: Path) -> None:
    verdict = compare_trace(read_trace(path))
    assert verdict.differences == []
    assert verdict.frames > 10
    assert verdict.snapshots >= 5


@pytest.mark.parametrize(
    ("scenario", "least"),
    [("publish_rates-4", 11), ("publish_rates-4.2.4", 11), ("publish_rates-2.10.5", 2)],
)
def test_receipts_come_when_a_real_broker_sent_them(scenario: str, least: int) -> None:
    """`least`: how many would differ without the rates. A 2.10.5 makes up for them each second, so few receipts are very late."""
    trace = read_trace(BURSTS / f"{scenario}.jsonl")
    verdict = compared(trace)
    assert verdict.differences == []
    assert verdict.frames > 100
    late = [dict(each) for each in trace.records]
    (last,) = [each for each in late if each.get("cmd") == "SEND_RECEIPT"][-1:]
    last["t"] += 2 * bursts.LATE
    step, text = compared(Trace(trace.header, late)).differences[0]
    assert step.endswith("burst")
    assert "SEND_RECEIPT recorded after" in text
    for each in late:  # a broker that does not know the rates
        if each.get("path", "").endswith("/publishRate"):
            each["path"] = each["path"].replace("publishRate", "unknown")
    assert len(compared(Trace(trace.header, late)).differences) >= least


def test_a_compacted_ledger_is_longer_where_ledgers_have_longer_ids() -> None:
    """Each of its entries has a message id."""
    known = Normaliser()
    known.ledger("t", 300, 1)
    ours = {"ledgerId": 2, "entries": 3, "size": 100}
    for size, equal in [(100, True), (103, True), (104, False), (99, False)]:
        recorded = {"internal": {"compactedLedger": {"ledgerId": 301, "entries": 3, "size": size}}}
        found = known.difference("t", recorded, {"internal": {"compactedLedger": ours}})
        assert (found is None) == equal


@pytest.mark.parametrize("kind", KINDS)
def test_a_kinds_operations_are_methods(kind: str) -> None:
    operations = KINDS[kind].operations
    clients: tuple[type, ...] = (Publisher, Consumers, Transactions, Compactions)
    if "produce" in operations or "burst" in operations:
        clients = (Producers,) if "produce" in operations else (Bursts,)
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


def test_a_field_that_a_recording_would_lack_is_an_error() -> None:
    with pytest.raises(FrameError, match="type is missing"):
        read(b"\0\0\0\2\x08\x63")
    with pytest.raises(FrameError, match="PONG has fields that the codec does not have"):
        read(b"\0\0\0\x07\x08\x13\x9a\x01\x02\x48\x01")
    message = encode(
        "MESSAGE",
        {"consumer_id": 1, "message_id": {"ledgerId": 1, "entryId": 0}},
        (tail := entry({"producer_name": "p", "sequence_id": 1, "publish_time": 1}, b"x")),
    )[4:]
    head = message[: -len(tail)]
    assert read(head + tail) == read(head + tail[CHECKSUM_BYTES:])


def test_a_scenario_whose_broker_is_renewed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker hung in another scenario of those that run together."""
    pulsar, tried = LocalPulsar(tmp_path / "pulsar"), list[int]()
    monkeypatch.setattr(pulsar, "stop", lambda: None)
    monkeypatch.setattr(pulsar, "start", lambda: None)
    verdict = TraceComparison("", 0, 0, [])

    def attempt(_: LocalPulsar, kind: str, seed: int, folder: Path) -> Outcome:
        tried.append(seed)
        if seed == 1 and len(tried) == 1:
            pulsar.renew()
        if seed == 2 or len(tried) == 1:
            raise ConnectionRefusedError
        return Outcome("equal", Recording([], verdict, folder / f"{kind}.jsonl"))

    monkeypatch.setattr("tests.parity.__main__.attempt", attempt)
    run = Run(tmp_path, "4.0.7", keep=tmp_path, shrinks=False, together=1)
    monkeypatch.setattr(run, "_pulsar", lambda _: nullcontext(pulsar))
    run.block({}, [("shared", 1), ("shared", 2)])
    assert tried == [1, 1, 2], "2 failed for another reason"
    assert run.words["shared"] == {"equal": 1, "FAILED": 1}


def test_what_affects_the_whole_broker_runs_alone() -> None:
    assert [name for name, kind in KINDS.items() if kind.alone] == [
        "quotas",
        "restarts",
        "terminated",
        "publish_rates",
        "partitions",
        "holes",
        "policies",
        "settings",
        "transactions",
        "old_clients",
    ]


@pytest.fixture
def broker() -> Iterator[tuple[Ports, list[str]]]:
    """A minimal broker and the commands it got. It greets, sends Success in two parts, and closes on SEEK."""
    got: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client, client.makefile("rb") as frames:
            while size := frames.read(4):
                command = read(frames.read(int.from_bytes(size)))
                got.append(command["cmd"])
                if command["cmd"] == "CONNECT":
                    client.sendall(encode("PING", {}) + encode("CONNECTED", {"server_version": "x"}))
                if command["cmd"] == "SUBSCRIBE":
                    said = encode("SUCCESS", {"request_id": command["fields"]["request_id"]})
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


@pytest.mark.parametrize(("statuses", "deleted"), [([204], True), ([500, 404], True), ([500] * 5, False)])
def test_a_recorder_says_whether_its_namespace_is_gone(
    monkeypatch: pytest.MonkeyPatch, statuses: list[int], deleted: bool
) -> None:
    left = [204, *statuses]  # the first one creates it
    monkeypatch.setattr(Admin, "call", lambda *_: {"status": left.pop(0)})
    monkeypatch.setattr("tests.parity.recorder.time.sleep", lambda _: None)
    assert Recorder(Ports(0, 0, 0), "x", {}).close() == deleted
    assert left == []


def test_a_recorder_does_not_wait_for_a_broker_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(_: Admin, method: str, *__: Any) -> dict[str, Any]:
        if method == "DELETE":
            raise TimeoutError
        return {"status": 204}

    monkeypatch.setattr(Admin, "call", call)
    assert not Recorder(Ports(0, 0, 0), "x", {}).close()


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


@pytest.mark.parametrize(
    ("after", "step"),
    [
        (["SEND", "SEND"], "1 publish"),
        (["SEND"], None),  # one may only be late
        (["SEND", "SEND", "SEND_RECEIPT"], None),
        (["SEND", "SEND", "_TCP_CLOSE"], None),
    ],
)
def test_a_broker_that_answers_no_message_any_more_hangs(after: list[str], step: str | None) -> None:
    said: list[dict[str, Any]] = [{"dir": "out", "cmd": each} for each in ("SEND", "SEND_RECEIPT")]
    said += [{"dir": "note", "step": "1 publish"}, *({"dir": "out", "cmd": each} for each in after)]
    assert hangs(Trace({}, said)) == step
    assert hangs(Trace({}, [*said, {"dir": "stats", "internal": {}}])) is None


def test_transactions_of_a_recording_count_from_0() -> None:
    """The coordinator has seen those of earlier scenarios."""
    id_ = {"txnid_least_bits": 7, "txnid_most_bits": 0}
    records: list[dict[str, Any]] = [
        {"dir": "note", "step": "1 begin"},
        {"cmd": "NEW_TXN_RESPONSE", "fields": {"request_id": 7, "error": "UnknownError"}},
        {"cmd": "NEW_TXN_RESPONSE", "fields": {"request_id": 8, **id_}},
        {"cmd": "NEW_TXN_RESPONSE", "fields": {**id_, "txnid_least_bits": 8}},
        {"cmd": "SEND", "fields": {"sequence_id": 7, **id_}, "metadata": {"sequence_id": 7, **id_}},
        {"cmd": "ACK_RESPONSE", "fields": {"message": "Transaction:(0,8) [7]"}},
    ]
    count_from_0(records)
    id_["txnid_least_bits"] = 0
    assert records[2]["fields"] == {"request_id": 8, **id_}
    assert records[3]["fields"]["txnid_least_bits"] == 1
    assert records[4]["fields"] == records[4]["metadata"] == {"sequence_id": 7, **id_}
    assert records[5]["fields"]["message"] == "Transaction:(0,1) [7]"


def test_a_field_that_no_broker_is_sure_of_excuses_no_other_difference() -> None:
    unsure = ("1", "stats.subscriptions.s.totalMsgExpired: recorded 1, ours 2")
    missing = ("1", "stats.subscriptions.s: recorded {'totalMsgExpired': 0}, ours has none")
    assert held_to(TraceComparison("x", 1, 1, [unsure, missing])) == [missing]


class Said:
    """Takes the place of a recorder: notes what clients do, and stores each message in a ledger of its own."""

    topic, path = "persistent://public/x/t", "/persistent/public/x/t"

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.listeners: list[Any] = []
        self.connections: list[int] = []

    def open(self) -> int:
        self.connections.append(len(self.connections))
        return self.connections[-1]

    def publish(self, number: int, metadata: dict[str, Any], **fields: Any) -> None:
        self.said.append(("publish", number, metadata.get("partition_key")))
        id_ = {"ledgerId": 70 + len(self.said), "entryId": 0}
        self.listeners[0]({"cmd": "SEND_RECEIPT", "fields": {"message_id": id_}})

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **fields: self.said.append((name, *arguments, fields))


def test_a_log_runs_with_the_positions_of_the_real_broker(tmp_path: Path) -> None:
    topic = {"topic": "persistent://a/b/t"}
    of = {"connection": "c", "consumer_id": 0}
    commands: list[dict[str, Any]] = [
        {"command": "BROKER_CONFIG", "settings": {"managedLedgerMaxEntriesPerLedger": 2, "acknowledgmentAtBatchIndexLevelEnabled": True}},
        topic | of | {"command": "SUBSCRIBE", "subscription": "s", "subType": "Shared", "request_id": 1},
        topic | {"producer": "p", "sequence_id": 1, "key": "k"},
        topic | {"producer": "p", "sequence_id": 2},
        topic | of | {"command": "ACK", "ack_type": "Individual", "message_id": [{"ledgerId": 1, "entryId": 1}]},
        topic | {"command": "ADMIN", "connection": "a", "method": "PUT", "path": "/persistent/a/b/t/unload"},
        {"command": "CONNECTION_LOST", "connection": "c"},
        {"command": "TICK", "timestamp": 1_000_060_000},
    ]  # fmt: skip
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"timestamp": 1_000_000_000} | each) + "\n" for each in commands))
    assert settings_of(log) == {
        "managedLedgerMaxEntriesPerLedger": "2",
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
    }
    records = load(log, partitions=1).records
    said = Said()
    LogRunner(said, None, positions_of(records), topic["topic"]).run(records)  # type: ignore[arg-type]
    done = [each for each in said.said if each[0] not in ("step", "snapshot")]
    asked = [each[2] for each in done if each[0] == "ask"]
    assert asked == ["LOOKUP", "SUBSCRIBE", "LOOKUP", "PRODUCER"]
    assert [each for each in done if each[0] == "publish"] == [("publish", 1, "k"), ("publish", 1, None)]
    (acked,) = (each for each in done if each[0] == "tell")
    second = max(number for number, each in enumerate(said.said) if each[0] == "publish")
    assert acked[2:] == (
        "ACK",
        {"consumer_id": 0, "ack_type": "Individual", "message_id": [{"ledgerId": 71 + second, "entryId": 0}]},
    )
    assert done[-3:] == [
        ("call", "PUT", "/persistent/public/x/t/unload", None, {}),
        ("cut", 0, {}),
        ("wait", 3.0, {}),
    ]


def test_what_no_client_can_send_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(
        json.dumps({"timestamp": 1, "topic": "persistent://a/b/t", "command": "FAULT", "fault": "write"})
        + "\n"
    )
    assert settings_of(log) == {}
    records = load(log, partitions=1).records
    with pytest.raises(LogError, match="FAULT cannot be sent"):
        LogRunner(Said(), None, {}, "persistent://a/b/t").run(records)  # type: ignore[arg-type]
