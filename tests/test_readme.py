"""The README and the first pages after it, followed literally: their commands run in a fresh clone, one after the other, and print what they show."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinks.kafka import read_responses
from streaming.kafka.url import KafkaUrl
from tests.commands import Step, shows, steps
from tests.e2e.processes import wait_until

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = (
    "README.md",
    "docs/guide/replay.md",
    "docs/guide/recording.md",
    "docs/operate/install.md",
    "docs/operate/run.md",
)
"""In the order in which they are followed: a page finds what those before it wrote."""
TEXT = "\n".join((ROOT / page).read_text() for page in PAGES)
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "demo", "*.egg-info")
PORT = "9092"

_PATH = re.compile(r"`([\w.=-]+(?:/[\w.=…-]*)+)`")

WITHOUT_SPARK = (
    f"{shlex.quote(sys.executable)} -c "
    "'from pathlib import Path; from streaming.jobs.demo import make_log; make_log(Path(\"demo/log.jsonl\"))'\n"
    ".venv/bin/magnetar replay demo/log.jsonl --out demo/results --no-spark"
)
"""What stands in for `make run`. Like that, it needs nothing on the path."""

ELSEWHERE = ("git clone", "pip install", "pip wheel", "pipx install")
"""Commands that do not run here: what has been done, and what `tests/packaging` tests."""


def commands(script: str) -> Iterator[str]:
    """The commands of a script, each with its continuation lines or its here-document."""
    lines = iter(script.replace("\\\n", " ").splitlines())
    for line in lines:
        command = re.sub(r"\s+#.*", "", line)
        if here := re.search(r"<<'(\w+)'", command):
            command = "\n".join([command, *iter(lambda: next(lines), here[1]), here[1]])
        yield command


NOT_ON_A_DESK = ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS", "FORCE_COLOR", "PY_COLORS", "NO_COLOR", "COLUMNS")
"""Variables of a CI, or of one person, that change what tools print: pytest shortens its summary only where no `CI` is set."""


class Terminal:
    """A reader's shell, 80 columns wide, that keeps its folder and its variables from one script to the next."""

    def __init__(self, folder: Path) -> None:
        own = {name: value for name, value in os.environ.items() if name not in NOT_ON_A_DESK}
        self.folder, self.variables = folder, {**own, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}

    def run(self, script: str) -> str:
        """The standard output of a script that succeeds."""
        keep = self.folder / ".variables"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{script}\nenv -0 > {shlex.quote(str(keep))}"],
            cwd=self.folder, env=self.variables, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        pairs = keep.read_text().split("\0")
        self.variables = dict(pair.split("=", 1) for pair in pairs if pair)
        return done.stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A terminal in a clone of the repository whose `.venv` is up to date: the environment of these tests."""
    clone = tmp_path / "magnetar"
    shutil.copytree(ROOT, clone, ignore=NOT_COPIED)
    (clone / ".venv").mkdir()
    (clone / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (clone / ".venv" / ".stamp").touch()
    return Terminal(clone)


def follow(terminal: Terminal, step: Step, *, spark: bool) -> None:
    """Run a block, and compare its output with what the page shows."""
    if step.language == "python":
        said = terminal.run(f"python - <<'END'\n{step.script}END")
    else:
        wanted = [each for each in commands(step.script) if not each.startswith(ELSEWHERE)]
        script = "\n".join(wanted)
        if not spark:
            script = script.replace("make run", WITHOUT_SPARK)
        said = terminal.run(script)
    if step.output is not None:
        assert shows(step.output, said), f"{step.script}\nprints\n{said}\nand not\n{step.output}"


def test_what_it_says_without_kafka(terminal: Terminal) -> None:
    followed = [step for step in steps(TEXT) if PORT not in step.script]
    for step in followed:
        follow(terminal, step, spark=False)
    assert len(followed) > 6
    assert sum(step.output is not None for step in followed) > 2
    _paths_are_there(terminal.folder, "store/")


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
def test_all_of_it(terminal: Terminal) -> None:
    """With Spark, and with Kafka in the place where the README starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    query: subprocess.Popen[str] | None = None
    try:
        for step in steps(TEXT):
            here = step._replace(script=step.script.replace(PORT, port))
            if PORT not in step.script and "kafka up" not in step.script:
                follow(terminal, here, spark=True)
                continue
            for command in commands(here.script):
                if command == "magnetar kafka up":
                    terminal.run(f"{command} --port {port}")
                elif command.startswith("magnetar run "):
                    query = subprocess.Popen(
                        shlex.split(command), cwd=terminal.folder, env=terminal.variables, text=True,
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    )  # fmt: skip
                else:
                    terminal.run(command)
        assert query is not None
        expired = terminal.folder / "store" / "tables" / "kind=EXPIRED"
        wait_until(lambda: any(expired.rglob("*.parquet")), "the messages expire")
        query.send_signal(signal.SIGINT)
        said = query.communicate(timeout=60)[0]
        assert query.returncode == 0, said
        url = KafkaUrl.parse(f"kafka://127.0.0.1:{port}/responses")
        found = [each["kind"] for each in read_responses(url.bootstrap, url.topic, timeout=5)]
        assert found.count("MESSAGE") == 2
        assert found.count("SUCCESS") == 1
    finally:
        if query is not None and query.poll() is None:
            query.kill()
            query.communicate()
        terminal.run("magnetar kafka down")
    _paths_are_there(terminal.folder)


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 700


def test_what_does_not_run_here_is_in_it() -> None:
    found = [command for step in steps(TEXT) for command in commands(step.script)]
    for start in (*ELSEWHERE, "make run", "magnetar run "):
        assert any(each.startswith(start) for each in found), start


@pytest.mark.parametrize(
    ("expected", "said", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\nc\n", False),
        ("a\n", "a\nb\n", False),
        ("…\nb\n", "a\na\nb\n", True),
        ("…\nb\n", "b\na\n", False),
        ("1 row in 2.5 s\n", "1 row in 0.0 s\n", True),
        ("a\n", "a   \n", True),
    ],
)
def test_the_comparison(expected: str, said: str, same: bool) -> None:
    assert shows(expected, said) is same


def _paths_are_there(folder: Path, *without: str) -> None:
    """Every path in the text is in the repository, or was made by a command."""
    named = {
        path.partition("…")[0]
        for path in _PATH.findall(README + (ROOT / "docs" / "guide" / "replay.md").read_text())
    }
    missing = {path for path in named if not (folder / path).exists() and not path.startswith(without)}
    assert missing == set()
    assert len(named) > 3
