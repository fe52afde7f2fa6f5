from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from streaming import __version__
from streaming.cli.app import app


def magnetar(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_version() -> None:
    assert magnetar("--version") == (0, f"magnetar {__version__}\n")


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from streaming.cli.app import app;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "print([name for name in ('pyspark', 'pandas', 'pyarrow', 'numpy', 'kafka', 'great_expectations') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_kafka_that_is_not_up(tmp_path: Path) -> None:
    assert magnetar("kafka", "status", "--dir", str(tmp_path)) == (1, f"Kafka is not up in {tmp_path}\n")
    assert magnetar("kafka", "down", "--dir", str(tmp_path)) == (0, f"Kafka was not up in {tmp_path}\n")


def test_nothing_is_logged_after_the_reason_of_a_failure() -> None:
    """Threads of py4j notice later that Spark's process is gone."""
    program = (
        "import logging, typer\n"
        "from streaming.cli.errors import expected_errors\n"
        "try:\n"
        "  with expected_errors(failed=(RuntimeError,)): raise RuntimeError('it is gone')\n"
        "except typer.Exit: logging.getLogger('py4j').error('late')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stderr == "magnetar: it is gone\n"


def test_what_clients_name_reaches_no_terminal(tmp_path: Path) -> None:
    """A name or a payload may hold what a terminal obeys: it would set the title, clear the screen, or hide a line."""
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    topic, name = "persistent://a/b/t", "s\x1b[31mred"
    subscribe = {"command": "SUBSCRIBE", "connection": "c", "consumer_id": 0, "request_id": 1}
    records = [
        {"timestamp": 1, "topic": topic, **subscribe, "subscription": name, "subType": "Shared"},
        {"topic": topic, "producer": "p\x1b]0;title\x07", "sequence_id": 0, "payload": "x\x1b[2J"},
        {"topic": topic, "producer": "p", "sequence\x1b[2J": 0},
    ]
    log.write_text("\n".join(map(json.dumps, records)))
    for arguments in (
        ("replay", str(log), "--out", str(out), "--no-spark"),
        ("explain", str(out), topic),
        ("explain", str(out), topic, "1:0"),
        ("peek", str(out), topic, name),
        ("peek", str(out), topic, f"{name}?"),
        ("inspect", str(out)),
        ("quarantine", "list", str(out)),
    ):
        _, text = magnetar(*arguments)
        assert "\\x1b[" in text or "\\x1b]" in text or arguments[0] == "inspect"
        assert "\x1b" not in text
        assert "\x07" not in text
