"""docs/reference/python.md, run from top to bottom in one process, prints what it shows; and so does what other pages do with `magnetar`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.jobs.demo import make_log
from streaming.jobs.replay import replay_in_process
from tests.commands import Step, shows, steps
from tests.test_readme import Terminal

ROOT = Path(__file__).parent.parent
OTHERS = ("idea.md", "guide/answers.md", "guide/check.md", "reference/outputs.md")
END = "\x00\n"


def examples() -> list[Step]:
    """The Python of the guide, and then that of other pages, which finds what the guide wrote."""
    found = [*steps((ROOT / "docs" / "reference" / "python.md").read_text())]
    for name in OTHERS:
        found += [
            each
            for each in steps((ROOT / "docs" / name).read_text())
            if each.script.startswith("import magnetar\n")
        ]
    return found


@pytest.mark.spark
def test_what_it_shows(tmp_path: Path) -> None:
    found = examples()
    assert {each.language for each in found} == {"python"}
    assert len(found) > 15
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    script = "".join(
        f"exec(compile({each.script!r}, 'example {number}', 'exec'), globals())\nprint({END!r}, end='', flush=True)\n"
        for number, each in enumerate(found)
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = [
        f"{step.script}\nprints\n{said}\nand not\n{step.output}"
        for step, said in zip(found, done.stdout.removesuffix(END).split(END), strict=True)
        if step.output is not None and not shows(step.output, said)
    ]
    assert not wrong, "\n\n".join(wrong)


def test_the_first_what_if(tmp_path: Path) -> None:
    """The files that docs/guide/whatif.md shows, saved, and its first command print what it shows."""
    text = (ROOT / "docs" / "guide" / "whatif.md").read_text()
    files = re.findall(r"Save this as `([\w.]+)`:\n\n```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["ttl.yaml", "quota.yaml"]
    for name, body in files:
        (tmp_path / name).write_text(body)
    (tmp_path / "demo").mkdir()
    make_log(tmp_path / "demo" / "log.jsonl")
    first = next(each for each in steps(text) if each.language == "sh")
    terminal = Terminal(tmp_path)
    terminal.variables["PATH"] = f"{Path(sys.executable).parent}:{terminal.variables['PATH']}"
    terminal.variables["COLUMNS"] = "160"
    assert first.output is not None
    said = terminal.run(first.script)
    assert shows(first.output, said), said


def test_what_explain_prints(tmp_path: Path) -> None:
    """The questions of docs/guide/answers.md about topics of the demonstration."""
    text = (ROOT / "docs" / "guide" / "answers.md").read_text()
    asked = [
        each
        for each in steps(text)
        if each.script.startswith("magnetar explain demo/results") and each.output is not None
    ]
    assert len(asked) == 2
    (tmp_path / "demo").mkdir()
    make_log(tmp_path / "demo" / "log.jsonl")
    replay_in_process(tmp_path / "demo" / "log.jsonl", tmp_path / "demo" / "results")
    terminal = Terminal(tmp_path)
    terminal.variables["PATH"] = f"{Path(sys.executable).parent}:{terminal.variables['PATH']}"
    for each in asked:
        assert each.output is not None
        said = terminal.run(each.script)
        assert shows(each.output, said), said
