"""The mutation testing tool: which mutants there are, how they are switched on, and what it says about tests."""

import ast
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tools.mutants.__main__ import CORE, ROOT, equivalents, lines_with, sampled
from tools.mutants.active import ACTIVE
from tools.mutants.mutations import instrumented, modules

CODE = '''\
"""Docstrings stay first."""

from __future__ import annotations

LIMIT = 3
"""Limits stay as they are."""

def check(amount: int, names: list[str]) -> bool:
    assert amount > -1
    for name in names:
        if not name:
            break
        log(f"{amount + 1}")
    return min(amount, 2) < LIMIT and bool(names)


def log(text: str) -> None:
    LOG.append(text)


LOG: list[str] = []
'''

CHANGES = {
    ("check", "if not name:", "if name:"),
    ("check", "break", "continue"),
    ("check", "log(f'{amount + 1}')", "pass"),
    ("check", "return min(amount, 2) < LIMIT and bool(names)", "return None"),
    ("check", "return min(amount, 2) < LIMIT and bool(names)", "return min(amount, 2) < LIMIT or bool(names)"),
    ("check", "return min(amount, 2) < LIMIT and bool(names)", "return min(amount, 2) <= LIMIT and bool(names)"),
    ("check", "return min(amount, 2) < LIMIT and bool(names)", "return min(amount, 2) >= LIMIT and bool(names)"),
    ("check", "return min(amount, 2) < LIMIT and bool(names)", "return max(amount, 2) < LIMIT and bool(names)"),
    ("check", "return min(amount, 2) < LIMIT and bool(names)", "return min(amount, 3) < LIMIT and bool(names)"),
    ("log", "LOG.append(text)", "pass"),
}  # fmt: skip


def project(folder: Path, tests: str) -> Path:
    """A small project with the tool in it."""
    (folder / "streaming" / "broker").mkdir(parents=True)
    (folder / "streaming" / "broker" / "rule.py").write_text(CODE)
    (folder / "tools").mkdir()
    for package in ("tools", "streaming"):
        (folder / package / "__init__.py").write_text("")  # hides the environment's package of this name
    shutil.copytree(ROOT / "tools" / "mutants", folder / "tools" / "mutants")
    (folder / "tools" / "mutants" / "equivalent.toml").write_text(
        """\
[[equivalent]]
file = "streaming/broker/rule.py"
function = "check"
was = "return min(amount, 2) < LIMIT and bool(names)"
becomes = "return min(amount, 3) < LIMIT and bool(names)"
reason = "for a test"
"""
    )
    (folder / "conftest.py").write_text(
        "from hypothesis import settings\n\nsettings.register_profile('mutants', deadline=None)\n"
    )
    (folder / "test_rule.py").write_text(tests)
    return folder


def impatient(folder: Path) -> Path:
    """The tool of a project waits a second for what never ends."""
    program = folder / "tools" / "mutants" / "run.py"
    text = program.read_text()
    for waits, shorter in (("WAIT = 120", "WAIT = 1"), ("most = 60", "most = 1"), ("return 5", "return 1")):
        assert waits in text
        text = text.replace(waits, shorter)
    program.write_text(text)
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tools.mutants",
        "--count",
        "50",
        "--seed",
        "1",
        *arguments,
        "test_rule.py",
    ]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_every_change(tmp_path: Path) -> None:
    module = modules(project(tmp_path, ""), CORE)[-1]
    found = {
        (each.identity.function, each.identity.was, each.identity.becomes): each.line
        for each in module.mutants
    }
    assert found.keys() == CHANGES
    assert found["log", "LOG.append(text)", "pass"] == 18


def test_a_switch_turns_one_mutant_on(tmp_path: Path) -> None:
    module = modules(project(tmp_path, ""), CORE)[-1]
    chosen = dict(enumerate(module.mutants))
    names: dict[str, object] = {}
    source = instrumented(module, chosen)
    assert ast.get_docstring(ast.parse(source)) == "Docstrings stay first."
    exec(compile(source, "rule.py", "exec"), names)
    ACTIVE.clear()
    assert names["check"](2, ["a"]) is True  # type: ignore[operator]
    assert set(ACTIVE) == set(chosen) - {1}, "all ran, except for the break"
    ACTIVE.clear()
    ACTIVE[next(n for n, each in chosen.items() if each.identity.becomes == "return None")] = True
    assert names["check"](2, ["a"]) is None  # type: ignore[operator]
    ACTIVE.clear()


def test_survivors_are_shown_and_a_floor_fails(tmp_path: Path) -> None:
    tests = "from streaming.broker.rule import check\n\ndef test_it() -> None:\n    assert check(2, ['a', '']) is True\n"
    ran = run(project(tmp_path, tests), "--jobs", "2", "--floor", "90")
    assert ran.returncode == 1, ran.stderr
    assert "9 of 10 mutants, seed 1\n1 tests pass unchanged" in ran.stdout
    assert "rule.py:18 log: not noticed by 1 tests that reach it\n- LOG.append(text)\n+ pass\n" in ran.stdout
    assert ran.stdout.endswith("%\n")
    assert ran.stderr == "fewer than 90 %\n"
    assert (tmp_path / "streaming" / "broker" / "rule.py").read_text() == CODE


def test_a_mutant_that_no_test_reaches_survives(tmp_path: Path) -> None:
    ran = run(project(tmp_path, "import streaming.broker.rule\n\ndef test_it() -> None:\n    pass\n"))
    assert ran.stdout.count("not noticed by 0 tests") == 9
    assert ran.stdout.endswith("noticed: 0 of 9, 0.0 %\n")


def test_sharp_tests_pass_the_floor_and_what_never_ends_is_noticed(tmp_path: Path) -> None:
    tests = """\
from streaming.broker.rule import LOG, check

def test_it() -> None:
    names = ["a", "", "b"]
    assert check(2, names) is True
    assert check(3, names) is True
    assert check(2, []) is False
    while LOG != ["3", "4"]:
        pass
"""
    ran = run(impatient(project(tmp_path, tests)), "--floor", "80")
    assert ran.returncode == 0, ran.stdout + ran.stderr


WAITS_WHEN_IMPORTED = """\
from streaming.broker.rule import LOG, check

check(2, ["a", "b"])
while LOG != ["3", "3"]:
    pass

def test_it() -> None:
    pass
"""
WAITS_IN_A_TEST = """\
from threading import Event

def test_it() -> None:
    from streaming.broker.rule import LOG, check

    check(2, ["a", "b"])
    given = Event()
    if LOG == ["3", "3"]:
        given.set()
    assert given.wait()
"""


@pytest.mark.parametrize("tests", [WAITS_WHEN_IMPORTED, WAITS_IN_A_TEST])
def test_what_waits_forever_is_noticed(tmp_path: Path, tests: str) -> None:
    impatient(project(tmp_path, tests))
    ran = run(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "log: not noticed" not in ran.stdout
    assert "check: not noticed" in ran.stdout


def test_what_time_does_not_allow_is_left_without_a_judgment(tmp_path: Path) -> None:
    ran = run(project(tmp_path, WAITS_IN_A_TEST), "--jobs", "9", "--minutes", "0.1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    waiting = re.search(r"not judged within 0.1 minutes: (\d) of 9\n", ran.stdout)
    assert waiting
    assert 0 < int(waiting[1]) < 9
    assert f"of {9 - int(waiting[1])}, " in ran.stdout.splitlines()[-1], "a share of those that were judged"


def test_nothing_goes_on_that_time_did_not_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the tests in a process of their own, which a change at import has."""
    folder = project(tmp_path / "project", WAITS_WHEN_IMPORTED)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the tool copies the project
    ran = run(folder, "--jobs", "9", "--minutes", "0.1")
    assert "not judged within 0.1 minutes" in ran.stdout, ran.stdout + ran.stderr
    left = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd().startswith(str(tmp_path)):
                left.append(process)
                process.kill()
    assert not left


@pytest.mark.parametrize("tests", ["def test_it() -> None:\n    assert False\n", "import nothing\n"])
def test_tests_that_fail_anyway_judge_nothing(tmp_path: Path, tests: str) -> None:
    ran = run(project(tmp_path, tests))
    assert ran.returncode == 1
    assert "the tests did not run to the end" in ran.stderr


def test_the_sample_of_a_seed_hardly_changes_with_the_code() -> None:
    found = modules(ROOT, CORE)
    before = [mutant.identity for _, mutant in sampled(found, 100, 1)]
    after = [mutant.identity for _, mutant in sampled(found[1:], 100, 1)]
    assert before != [mutant.identity for _, mutant in sampled(found, 100, 2)]
    changed = [each for each in before if each.file == found[0].file]
    assert before[: len(before)] != sorted(before, key=str)
    assert [each for each in before if each not in changed] == after[: len(before) - len(changed)]


def test_equivalent_mutants_are_mutants() -> None:
    every = {mutant.identity for module in modules(ROOT, CORE) for mutant in module.mutants}
    gone = [each for each in equivalents() if each.identity not in every]
    assert gone == [], "these are no mutants any more: take them out of equivalent.toml"
    assert all(each.reason for each in equivalents())


def test_a_sample_may_be_of_the_lines_with_some_words() -> None:
    found = modules(ROOT, CORE)
    within = lines_with(found, r"\.(ackTheSameTwice|strictBookieAffinityEnabled)\b")
    assert sampled(found, 10, 1, within=within) == []
    within = lines_with(found, r"\.messageExpiryStopsAtOpenLedger\b")
    chosen = sampled(found, 1000, 1, within=within)
    assert chosen
    for module, mutant in chosen:
        line = (ROOT / module.file).read_text().splitlines()[mutant.line - 1]
        assert "messageExpiryStopsAtOpenLedger" in line
