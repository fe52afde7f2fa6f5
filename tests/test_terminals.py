"""Names come from clients. Whatever they hold, a terminal obeys none of it, and no name forges a line."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.cli import console
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process

CLI = Path(console.__file__).parent
EVIL = "a\x1b]0;owned\x07\x1b[2J\r\nmagnetar: all is well\x9b31m\u202eb[red]c[/]"
TOPIC = "persistent://public/default/[red]t[/]"

PRINTING = {"echo", "secho", "print", "write"}
ALLOWED = {
    ("console.py", "typer.echo"),
    ("app.py", "typer.echo"),  # of its own words alone
    ("errors.py", "typer.echo"),  # through `printable`
    ("debug.py", "self.stdout.write"),  # through `one_line`
    ("run.py", "sys.stderr.write"),  # JSON
    ("quarantine.py", "sys.stdout.buffer.write"),  # the export, and --raw
}


def test_one_place_prints_names() -> None:
    """Everything else goes through `say`, `say_json`, `new_table` or `console`."""
    found = set()
    for path in sorted(CLI.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("print", "Console", "Table") or (
                called.split(".")[0] in ("typer", "sys", "click", "self")
                and called.split(".")[-1] in PRINTING
            ):
                found.add((path.name, called))
    found -= {(path, called) for path, called in found if called == "self._console.print"}  # a `console`
    assert found - ALLOWED - {("console.py", "Console"), ("console.py", "Table")} == set()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("terminal")
    common = {"topic": TOPIC, "connection": EVIL}
    commands: list[dict[str, object]] = [
        {"command": "SUBSCRIBE", "subscription": EVIL, "consumer_id": 1, "request_id": 1, "sub_type": "Shared", "consumer_name": EVIL, **common},
        {"producer": EVIL, "sequence_id": 1, "payload": EVIL, "topic": TOPIC, "key": EVIL},
        {"command": "FLOW", "consumer_id": 1, "permits": 10, **common},
        {"command": EVIL, EVIL: EVIL, **common},
        {"command": "FLOW", "topic": f"persistent://public/default/{EVIL}"},
        {"producer": EVIL, "sequence_id": 2, "payload": "x", "topic": TOPIC},
    ]  # fmt: skip
    lines = [json.dumps({"timestamp": number, **each}) for number, each in enumerate(commands, 1)]
    (path / "log.jsonl").write_text("\n".join(lines) + "\n")
    replay_in_process(path / "log.jsonl", path / "replayed", partitions=1)
    return path


COMMANDS = {
    "replay": ("replay", "log.jsonl", "--no-spark", "--out", "OUT"),
    "replay --json": ("replay", "log.jsonl", "--no-spark", "--out", "OUT", "--json"),
    "explain": ("explain", "replayed", TOPIC),
    "explain a subscription": ("explain", "log.jsonl", TOPIC, "--subscription", EVIL),
    "explain --retention": ("explain", "replayed", TOPIC, "--retention"),
    "explain --quota": ("explain", "replayed", TOPIC, "--quota"),
    "explain nothing": ("explain", "replayed", EVIL + "x"),
    "inspect": ("inspect", "log.jsonl"),
    "inspect --diff": ("inspect", "log.jsonl", "--diff", "1", "5"),
    "inspect --json": ("inspect", "log.jsonl", "--json"),
    "inspect a topic": ("inspect", "log.jsonl", TOPIC),
    "peek": ("peek", "log.jsonl", TOPIC, EVIL),
    "peek --json": ("peek", "log.jsonl", TOPIC, EVIL, "--json"),
    "peek nothing": ("peek", "log.jsonl", TOPIC, EVIL, "--show", "delayed"),
    "debug": ("debug", "log.jsonl"),
    "whatif": ("whatif", "log.jsonl", "--profile", "2.x", "--processes", "1"),
    "advise": ("advise", "log.jsonl", "--processes", "1"),
    "quarantine list": ("quarantine", "list", "replayed"),
    "quarantine export": ("quarantine", "export", "replayed"),
    "quarantine show": ("quarantine", "show", "replayed", "0:3"),
    "minimize": ("minimize", "log.jsonl", "--keep", f"stuck({TOPIC}, {EVIL})", "--out", "OUT.jsonl"),
    "skip": ("skip", TOPIC, EVIL, "1", "--log", "operated.jsonl"),
}  # fmt: skip
TYPED = f"step 5\nrows\nstats {TOPIC}\nbreak topic {EVIL}\nbreak\nfly {EVIL}\ndiff\nquit\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_no_name_reaches_the_terminal_raw(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = [word.replace("OUT", str(tmp_path / "out")) for word in COMMANDS[name]]
    ran = CliRunner().invoke(app, words, input=TYPED if name == "debug" else None)
    assert ran.exit_code in (0, 1, 2)
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    assert ran.output.strip()
    for line in ran.output.split("\n"):
        assert line.isprintable(), line
        assert not line.startswith("magnetar: all is well")
