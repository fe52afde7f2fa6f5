"""Names come from clients. Whatever they hold, a terminal obeys none of it, and no name forges a line."""

from __future__ import annotations

import ast
import http.client
import json
import logging
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from schemas.printable import quoted
from streaming.cli import console
from streaming.cli.app import app
from streaming.fold.record_fold import RecordFold
from streaming.fold.records import FoldError
from streaming.jobs.replay import replay_in_process
from streaming.metrics.endpoint import Endpoint
from streaming.runtime.logs import last_resort
from streaming.server.logs import InBackground
from streaming.spark.failure import explanation
from streaming.spark.session import _pass_on
from tests.spark.helpers import Nowhere

CLI = Path(console.__file__).parent
EVIL = "a\x1b]0;owned\x07\x1b[2J\r\nmagnetar: all is well\x9b31m\u202eb[red]c[/]"
TOPIC = "persistent://public/default/[red]t[/]"

PRINTING = {"echo", "secho", "print", "write"}
OF_CLI = {"Console", "Table"}
"""Of rich, which only the command line has."""
ALLOWED = {
    "streaming/cli/console.py": {"typer.echo"},
    "streaming/cli/__init__.py": {"sys.exit"},  # its own words alone
    "streaming/cli/app.py": {"typer.echo"},  # its own words alone, and `traceback_text`
    "streaming/cli/errors.py": {"typer.echo"},  # through `printable`
    "streaming/cli/double.py": {"print"},  # through `one_line`
    "streaming/cli/debug.py": {"self.stdout.write"},  # through `one_line`
    "streaming/cli/run.py": {"sys.stderr.write", "self._console.print"},  # JSON, and a `console`
    "streaming/cli/quarantine.py": {"sys.stdout.buffer.write"},  # the export, and --raw
    "streaming/runtime/signals.py": {"os.write"},  # its own words alone
    "streaming/runtime/java.py": {"print", "sys.exit"},  # `make` calls it
    "streaming/runtime/jars.py": {"print"},  # a folder of the machine's
    "streaming/runtime/logs.py": {"setFormatter"},
    "streaming/server/logs.py": {"InBackground", "setFormatter", "os.write"},
    "streaming/quality/watch.py": {"print"},  # through `one_line`
    "streaming/spark/session.py": {"os.write"},  # through `printable`
    "streaming/spark/worker_daemon.py": {"print"},  # through `traceback_text`
    "streaming/ui/explanation.py": {"sys.stdout.buffer.write"},  # a process's answer to another one
    "streaming/log/files.py": {"os.write"},  # these three: files
    "streaming/mirror/journal.py": {"os.write"},
    "streaming/server/data_folder.py": {"os.write"},
    "streaming/server/start.py": {"sys.stdout.write"},  # its own addresses, as JSON
    "streaming/kafka/client.py": {"_Collector"},  # which writes nothing
}


def _writes(call: ast.Call, path: str) -> str | None:
    """The name of a call that writes to a terminal or a log in a form of its own."""
    called = ast.unparse(call.func)
    first, last = called.split(".")[0], called.split(".")[-1]
    of_cli = path.startswith("streaming/cli/")
    if (
        called in ("print", "os.write", "sys.excepthook", "sys.exit")
        or (first in ("typer", "sys", "click", *(("self",) if of_cli else ())) and last in PRINTING)
        or (of_cli and called in OF_CLI)
        or (first == "traceback" and last.startswith("print"))
        or called
        in ("logging.basicConfig", "logging.Formatter", "logging.StreamHandler", "logging.FileHandler")
        or last in ("_Collector", "InBackground")
    ):
        return called
    return last if last == "setFormatter" else None


def test_one_place_prints_names() -> None:
    """Everything else goes through `say`, `say_json`, `new_table` or `console`, or is logged."""
    root = CLI.parents[1]
    found: dict[str, set[str]] = {}
    for path in sorted(
        each for top in ("streaming", "sinks", "schemas", "magnetar") for each in root.glob(f"{top}/**/*.py")
    ):
        name = str(path.relative_to(root))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (called := _writes(node, name)) is not None:
                found.setdefault(name, set()).add(called)
            if isinstance(node, ast.ClassDef) and any(
                ast.unparse(base).endswith("Handler") and "logging" in ast.unparse(base)
                for base in node.bases
            ):
                found.setdefault(name, set()).add(node.name)
    assert found == ALLOWED


def _forged(text: str) -> list[str]:
    return [
        line
        for line in text.split("\n")
        if not line.isprintable() or line.startswith("magnetar: all is well")
    ]


def _failing() -> BaseException:
    try:
        raise ValueError(f"no such topic: {EVIL}")
    except ValueError as error:
        error.add_note(EVIL)
        return error


def test_no_name_reaches_a_log_raw() -> None:
    reading, writing = os.pipe()
    handler = InBackground(writing)
    for error in (None, _failing()):
        info = None if error is None else (type(error), error, error.__traceback__)
        handler.emit(logging.LogRecord("x", logging.WARNING, __file__, 1, "the topics of %s", (EVIL,), info))
    handler.close()
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    assert said.count("the topics of a\\x1b]0;owned") == 2
    assert "Traceback" in said
    assert _forged(said) == []


def test_no_name_is_logged_raw_by_a_command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a handler, as in all commands but `serve`, Python logs to the standard error."""
    assert CliRunner().invoke(app, ["--version"]).exit_code == 0
    monkeypatch.setattr(logging.root, "handlers", [])
    logging.getLogger("streaming.x").warning("the topics of %s", EVIL)
    said = capfd.readouterr().err
    assert "the topics of a" in said
    assert _forged(said) == []


def test_no_name_in_a_traceback_is_raw(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A mistake of Magnetar's own."""

    def failing(*_: Any, **__: Any) -> None:
        raise _failing()

    monkeypatch.setattr(typer.Typer, "__call__", failing)
    with pytest.raises(SystemExit):
        app()
    said = capfd.readouterr().err
    assert "Traceback" in said
    assert "no such topic: a" in said
    assert _forged(said) == []


def test_no_name_passes_from_spark_raw(capfd: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, "\tat x(Y.java:1)\nx.Error: ä\x1b[2J\x9b31m\n".encode() + b"\xff\n")
    os.close(writing)
    _pass_on(reading)
    assert capfd.readouterr().err == "\tat x(Y.java:1)\nx.Error: ä\\x1b[2J\\x9b31m\n\\xff\n"


ADVICE = "start the query again"


def test_no_name_in_an_error_of_the_page_is_raw(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    last_resort()
    monkeypatch.setattr(logging.root, "handlers", [])

    def application(*_: object) -> Iterable[bytes]:
        raise _failing()

    served = Endpoint("127.0.0.1:0")
    served.start(application)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(served.url.rpartition(":")[2]), timeout=60)
        connection.request("GET", "/")
        assert connection.getresponse().status == 500
    finally:
        served.close()
    said = capfd.readouterr().err
    assert "a request can't be answered" in said
    assert said.count("\n") == 1
    assert _forged(said) == []


@given(st.text() | st.sampled_from([EVIL, "a\n: ValueError: b", "a\x85b", "a\u2028b"]))
def test_a_topic_forges_no_line_of_a_failed_fold(name: str) -> None:
    """Neither here nor in Spark, where the text is a line of a traceback, of which all is told."""
    topic = f"persistent://public/default/{name}"
    fold = RecordFold(0, Nowhere(), None, set_aside={})
    with pytest.raises(FoldError) as caught:
        fold.failed("carrying out", ValueError(name), offset=7, topic=topic)
    text = str(caught.value)
    assert text.isprintable()
    assert f"--quarantine-topic {quoted(topic)} (" in text
    story = f"org.apache.spark.SparkException: Job aborted\nstreaming.fold.records.FoldError: {text}\n"
    assert explanation(story, ADVICE) == text.rstrip(".")


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1))
def test_a_shell_takes_a_quoted_name_for_what_it_is(name: str) -> None:
    assert quoted(name).isprintable()
    said = subprocess.run(
        ["bash", "-c", f"printf %s {quoted(name)}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert said.stdout.decode() == name


def test_names_in_a_log_forge_no_line_of_its_error(tmp_path: Path) -> None:
    """A log may come from anybody."""
    pq.write_table(pa.table({f"x\nmagnetar: all is well {EVIL}": [1]}), tmp_path / "log.parquet")
    ran = CliRunner().invoke(app, ["inspect", str(tmp_path / "log.parquet")])
    assert ran.exit_code == 2
    assert ran.output.count("\n") == 1
    assert _forged(ran.output) == []


def test_names_in_policies_forge_no_line_of_its_error(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"timestamp":1,"topic":"t","producer":"p","sequence_id":1}\n')
    (tmp_path / "policies.yaml").write_text(
        json.dumps({"namespaces": {EVIL: {EVIL: 1}}, "topics": {EVIL: {"ttl": EVIL}}})
    )
    ran = CliRunner().invoke(
        app, ["whatif", str(tmp_path / "log.jsonl"), "--policies", str(tmp_path / "policies.yaml")]
    )
    assert ran.exit_code == 2
    assert _forged(ran.output) == []


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
    "explain --ttl": ("explain", "replayed", TOPIC, "--ttl"),
    "explain --inactive": ("explain", "replayed", TOPIC, "--inactive"),
    "explain --deduplication": ("explain", "replayed", TOPIC, "--deduplication"),
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
