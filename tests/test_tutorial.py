"""The tutorial, followed literally: its pages run in one empty folder, from top to bottom, and print what they show."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commands import shows
from tests.e2e.processes import wait_until
from tests.test_readme import Terminal

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs" / "tutorial"
PAGES = ("replay", "ask", "what-if", "kafka", "clients", "your-tests", "your-cluster", "record")
PORTS = ("6650", "6651", "8080", "8081", "8090", "9092")
"""The ports in the text. Here, they are free ones."""

SITTINGS = (("replay", "ask", "what-if"), ("clients", "record"), ("your-tests",), ("your-cluster",))
"""The pages without Kafka. Pages of one sitting need more of each other than the files to save."""

LIVE = ("kafka", "clients", "your-tests", "your-cluster", "record")
"""Pages on which times come from the machine's clock."""

SERVERS = ("magnetar serve", "magnetar record", "magnetar run", "magnetar mirror")
"""Commands that run until Ctrl-C: the reader gives each a terminal of its own."""

OPTIONS = {
    "magnetar serve": "--listen 127.0.0.1:6650 --admin-listen 127.0.0.1:8080",
    "magnetar record": "--listen 127.0.0.1:6651 --admin-listen 127.0.0.1:8081",
    "magnetar mirror": "--service-url pulsar://localhost:6650 --admin-url http://localhost:8080",
    "magnetar kafka up": "--port 9092",
}
"""The defaults that have a port in them."""

_BLOCK = re.compile(
    r"(?:`(?P<file>[\w.-]+)`:\n\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$|^<!-- Ctrl-C: (?P<stop>[^\n]+) -->$"
    r"|^<!-- (?P<kafka>with Kafka) -->$",
    re.MULTILINE | re.DOTALL,
)
_TYPED = re.compile(r"^(\(\d+/\d+\) )(.*)\n", re.MULTILINE)
_OWN = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?|\b1\d{12}\b|\d+\.\d\ds\b"  # times, in pytest's summary, too
    r"|(?<=\(pid )\d+|/\S*(?=/magnetar-failed-)|(?<=magnetar-failed-)\w+"
    r"|\d+ calls(?= of the admin API)"
)
"""What is another one in each run."""


class Step(NamedTuple):
    """What a reader does: saves a file, runs a script, or stops a server, whose command `script` then is. And what is shown. After
    ``kafka``, the page needs a Kafka."""

    action: str
    script: str
    output: str | None
    file: str = ""


def steps(page: str) -> Iterator[Step]:
    """The steps of a page. The name of a file to save stands right before its block."""
    found = list(_BLOCK.finditer((TUTORIAL / f"{page}.md").read_text()))
    for block, after in zip(found, [*found[1:], None], strict=True):
        output = after["body"] if after is not None and after["language"] == "text" else None
        if block["kafka"]:
            yield Step("kafka", "", None)
        elif block["stop"]:
            yield Step("stop", block["stop"], output)
        elif block["language"] == "sh":
            yield Step("run", block["body"], output)
        elif block["language"] == "python" and not block["file"]:
            yield Step("run", f"python - <<'END'\n{block['body']}END\n", output)
        elif block["language"] != "text":
            yield Step("save", block["body"], None, block["file"])


class Reader:
    """Somebody with a terminal for each server, and one for everything else."""

    def __init__(self, folder: Path) -> None:
        self.terminal = Terminal(folder)
        self.terminal.variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.terminal.variables["TMPDIR"] = str(folder / "tmp")
        (folder / "tmp").mkdir()
        self.servers: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self.ports = dict(zip(PORTS, _free(len(PORTS)), strict=True))

    def read(self, page: str, *, with_kafka: bool = False) -> None:
        """Do what a page says, up to where it needs a Kafka, or all of it."""
        for step in steps(page):
            if step.action == "kafka":
                if not with_kafka:
                    return
                continue
            looks = "magnetar mirror" in self.servers and step.action == "run" and step.output is not None
            if looks or (page == "kafka" and step.script.startswith("python")):
                wait_until(partial(self.succeeds, step), f"the query has done what\n{step.script}shows")
                continue
            said = self.follow(step)
            if step.output is not None:
                same = self.same(step.output, said, live=page in LIVE)
                assert same, f"{step.script}\nprints\n{said}\nand not\n{step.output}"

    def save(self, page: str) -> None:
        """Save the files of a page."""
        for step in steps(page):
            if step.action == "save":
                self.follow(step)

    def succeeds(self, step: Step) -> bool:
        """Whether a look at a query's rows finds what the page shows. Before the first micro-batch, there is no table."""
        try:
            return step.output is not None and self.same(step.output, self.follow(step))
        except AssertionError:
            return False

    def follow(self, step: Step) -> str:
        """What a step prints."""
        script = step.script
        if script.startswith("git clone"):
            return ""
        for command, options in OPTIONS.items():
            script = re.sub(rf"^({command}\b.*)$", rf"\1 {options}", script, flags=re.MULTILINE)
        script = self.here(script)
        if step.action == "save":
            (self.terminal.folder / step.file).write_text(script)
            return ""
        if step.action == "stop":
            return self.stop(step.script)
        if server := next((each for each in SERVERS if script.startswith(each)), None):
            assert step.output is not None, f"{script}: what says that it is ready?"
            return self.start(server, script.replace("\\\n", " "), step.output)
        if script.startswith("magnetar debug"):
            assert step.output is not None, script
            typed = "".join(f"{each}\n" for _, each in _TYPED.findall(step.output))
            script = f"{script.strip()} <<'END'\n{typed}END\n"
        return self.terminal.run(script)

    def start(self, server: str, script: str, ready: str) -> str:
        path = self.terminal.folder / f".{len(self.servers)}{server.replace(' ', '-')}.out"
        path.write_text("")
        with path.open("a") as output:
            process = subprocess.Popen(
                shlex.split(script), cwd=self.terminal.folder, env=self.terminal.variables,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.servers[server] = process, path
        wait_until(lambda: self.same(ready, path.read_text()), f"{script} says that it is ready", process)
        said = path.read_text()
        path.write_text("")
        return said

    def stop(self, server: str) -> str:
        """End a server as Ctrl-C does. What it said since it was ready."""
        process, path = self.servers.pop(server)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 0, path.read_text()
        return path.read_text()

    def same(self, expected: str, said: str, *, live: bool = True) -> bool:
        """Whether output is as the page shows it. In a dialog, the page has what was typed, too. If live, each run has times of its own."""
        expected = _TYPED.sub(r"\1", self.here(expected))
        expected, said = (f"{each.rstrip()}\n" for each in (expected, said))
        if live:
            expected, said = (_OWN.sub("own", each) for each in (expected, said))
        return shows(expected, said)

    def here(self, text: str) -> str:
        return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda found: self.ports[found[0]], text)

    def leave(self) -> None:
        for process, _ in self.servers.values():
            process.kill()
            process.wait()


def _free(count: int) -> list[str]:
    """Ports that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    for each in probes:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in probes]
    for each in probes:
        each.close()
    return ports


@contextmanager
def reading(folder: Path) -> Iterator[Reader]:
    reader = Reader(folder)
    try:
        yield reader
    finally:
        reader.leave()


@pytest.mark.parametrize("pages", SITTINGS, ids="-".join)
def test_what_it_says_without_kafka(tmp_path: Path, pages: tuple[str, ...]) -> None:
    with reading(tmp_path) as reader:
        for page in PAGES:
            if page in pages:
                reader.read(page)
            elif page != "kafka":
                reader.save(page)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
def test_what_it_says_about_kafka(tmp_path: Path) -> None:
    """With the Kafka that the reader starts. The page needs the log of the first one."""
    with reading(tmp_path) as reader:
        try:
            reader.read("replay")
            reader.read("kafka")
        finally:
            reader.terminal.run("magnetar kafka down")


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
def test_what_it_says_about_a_twin_with_kafka(tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        try:
            reader.read("your-cluster", with_kafka=True)
        finally:
            reader.terminal.run("magnetar kafka down")


def test_it_is_installed(tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        reader.read("index")


def test_every_page_is_read() -> None:
    assert {*chain(*SITTINGS), "kafka"} == {*PAGES}
    assert {path.stem for path in TUTORIAL.glob("*.md")} == {"index", *PAGES}
    for page in PAGES:
        found = [*steps(page)]
        assert sum(each.output is not None for each in found) > 2, page
        assert not any(each.output == "" for each in found), page


def test_the_blocks_of_a_page() -> None:
    found = [*steps("clients")]
    assert [each.action for each in found[:3]] == ["run", "save", "run"]
    assert found[1].file == "shop.py"
    assert Step("stop", "magnetar serve", None) in found


def test_the_comparison(tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        assert reader.same("(0/2) step\na\n(1/2) quit\n", "(0/2) a\n(1/2) ")
        assert not reader.same("(0/2) step\na\n(1/2) quit\n", "(0/2) b\n(1/2) ")
        assert reader.same("at 2026-01-01 12:00:00.000\n", "at 2027-01-01 12:00:00.001\n")
        assert not reader.same("stored at 1:0\n", "stored at 1:1\n")
        assert reader.same("pulsar://localhost:6650\n", f"pulsar://localhost:{reader.ports['6650']}\n")
