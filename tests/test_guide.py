"""docs/reference/python.md, run from top to bottom in one process, prints what it shows; and so does what other pages do with `magnetar`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import Step, shows, steps

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
