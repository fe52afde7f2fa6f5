"""The core does what a real Pulsar 4.0.7 did: every recorded trace, and a comparison that can fail."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streaming.cli import app
from streaming.traces import RECORDED
from streaming.traces.conform import compare, known_gaps
from streaming.traces.trace import Trace, read_trace

TRACES = sorted(RECORDED.glob("*.jsonl"))


@pytest.mark.feature("I2", "K1")
@pytest.mark.parametrize("path", TRACES, ids=[path.stem for path in TRACES])
def test_trace(path: Path) -> None:
    verdict = compare(read_trace(path))
    assert verdict.frames > 0
    if path.stem in known_gaps():
        pytest.xfail(known_gaps()[path.stem])
    assert verdict.differences == []


def changed(name: str, **changes: Any) -> Trace:
    """A trace of which one recorded answer is made another: `cmd`, and what becomes of its fields."""
    trace = read_trace(RECORDED / f"{name}.jsonl")
    cmd, fields = changes.pop("cmd"), changes
    records = json.loads(json.dumps(trace.records))
    victim = [record for record in records if record.get("cmd") == cmd and record["dir"] == "out"][-1]
    victim["fields"].update(fields)
    return Trace(trace.header, records)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dedup_inorder_gaps", {"cmd": "SEND_RECEIPT", "sequence_id": 99}),
        ("nack_shared", {"cmd": "MESSAGE", "redelivery_count": 7}),
        ("ack_holes", {"cmd": "MESSAGE", "message_id": {"ledgerId": 75, "entryId": 0, "partition": -1}}),
        ("quota_exception", {"cmd": "ERROR", "error": "ProducerBusy"}),
        ("quota_hold", {"cmd": "CLOSE_PRODUCER", "producer_id": 5}),
    ],
)
def test_another_answer_is_a_difference(name: str, changes: dict[str, Any]) -> None:
    assert compare(changed(name, **changes)).differences


def test_a_lost_answer_is_a_difference() -> None:
    trace = read_trace(RECORDED / "dedup_off.jsonl")
    records = list(trace.records)
    records.remove(next(record for record in records if record.get("cmd") == "SEND_RECEIPT"))
    assert any("recorded has none" in text for _, text in compare(Trace(trace.header, records)).differences)


def test_another_payload_is_a_difference() -> None:
    trace = read_trace(RECORDED / "dedup_off.jsonl")
    records = json.loads(json.dumps(trace.records))
    next(record for record in records if record.get("cmd") == "MESSAGE")["payload"] = "AAAA"
    assert any("payload" in text for _, text in compare(Trace(trace.header, records)).differences)


@pytest.mark.parametrize(
    "path",
    [
        ("stats", "subscriptions", "s", "msgBacklog"),
        ("stats", "storageSize"),
        ("internal", "cursors", "s", "markDeletePosition"),
        ("internal", "cursors", "s", "individuallyDeletedMessages"),
        ("internal", "ledgers", 0, "size"),
    ],
)
def test_another_snapshot_is_a_difference(path: tuple[str | int, ...]) -> None:
    trace = read_trace(RECORDED / "ack_holes.jsonl")
    records = json.loads(json.dumps(trace.records))
    place = next(record for record in records if record["dir"] == "stats")
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = "(9:9..9:10]" if isinstance(place[path[-1]], str) else place[path[-1]] + 1
    assert compare(Trace(trace.header, records)).differences


def test_the_command_says_how_many_are_equal(tmp_path: Path) -> None:
    for name in ("dedup_off", "ack_receipt"):
        (tmp_path / f"{name}.jsonl").write_bytes((RECORDED / f"{name}.jsonl").read_bytes())
    result = CliRunner().invoke(app, ["conform", str(tmp_path)])
    assert result.output.splitlines()[-1] == "conform: 2 of 2 traces equal"
    assert result.exit_code == 0
    lines = (
        (tmp_path / "dedup_off.jsonl").read_text().replace('"last_sequence_id":-1', '"last_sequence_id":5')
    )
    (tmp_path / "dedup_off.jsonl").write_text(lines)
    result = CliRunner().invoke(app, ["conform", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "conform: 1 of 2 traces equal"
    assert "first difference" in result.output


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"format": 99}\n')
    result = CliRunner().invoke(app, ["conform", str(tmp_path)])
    assert result.exit_code == 1
    assert "not a trace of format 1" in result.output
