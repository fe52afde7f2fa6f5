"""What was quarantined is told: policies that lose nothing may have lost nothing because the log was not understood."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import magnetar
from streaming.answers.quarantined import quarantine_note
from streaming.answers.whatif.report import report
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process

T = "persistent://a/b/t"
START = 1_700_000_000_000
LATE = 10**15
LINES: list[object] = [
    {"timestamp": START, "topic": T, "command": "SUBSCRIBE", "typo": 1},
    {"timestamp": START, "topic": T, "command": "SUBSCRIBE", "typo": 2},
    {"timestamp": START, "topic": T, "producer": "p", "sequence_id": 1, "payload": "x"},
    {"timestamp": START, "topic": "persistent://a/b/u", "command": "NONE"},
    {"timestamp": START, "command": "NONE"},
    {"timestamp": LATE, "command": "BROKER_CONFIG", "settings": {}},
    {"timestamp": START + 1, "topic": T, "command": "TICK"},
]
EXPECTED = {"malformed": 4, "timestamp": 1}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (tmp_path / "ttl.yaml").write_text("broker: {ttlDurationDefaultInSeconds: 60}")
    return file


@pytest.mark.parametrize("partitions", [1, 5])
def test_answers_count_what_they_leave_out(partitions: int, log: Path, tmp_path: Path) -> None:
    """As a replay does: a record that is in each ingress partition is one."""
    found = magnetar.whatif(log, tmp_path / "ttl.yaml", partitions=partitions)
    assert found.quarantined == EXPECTED
    assert magnetar.advise(log, partitions=partitions).quarantined == EXPECTED
    for name in ("before", "after"):
        replay_in_process(log, tmp_path / name, partitions=partitions)
    assert magnetar.diff(tmp_path / "before", tmp_path / "after").quarantined == EXPECTED
    for each in quarantine_note(EXPECTED):
        assert each.replace("&#x27;", "'") in report(found).replace("&#x27;", "'")


@pytest.mark.parametrize("command", ["whatif", "advise"])
def test_commands_say_it(command: str, log: Path, tmp_path: Path) -> None:
    policies = ["--policies", str(tmp_path / "ttl.yaml")] if command == "whatif" else []
    said = CliRunner().invoke(app, [command, str(log), *policies])
    assert said.exit_code == 0, said.output
    assert "4 records were quarantined by rule 'malformed', and changed nothing." in said.output
    as_json = CliRunner().invoke(app, [command, str(log), *policies, "--json"])
    assert json.loads(as_json.stdout)["quarantined"] == EXPECTED
