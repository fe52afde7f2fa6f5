"""What answers from a folder answers from all of it, or says what is missing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.runtime.cache import cache_dir
from tests.e2e.processes import wait_until

MAGNETAR = Path(sys.executable).with_name("magnetar")
LINE = '{{"timestamp":{0},"topic":"persistent://public/default/t","producer":"p","sequence_id":{0}}}\n'
BAD = '{"timestamp":1,"topic":"persistent://public/default/t","x":1}\n'
QUESTIONS = [
    ["explain", "OUT", "t"], ["peek", "OUT", "t", "s"], ["quality", "OUT"], ["diff", "OUT", "WHOLE"], ["quarantine", "list", "OUT"],
    ["quarantine", "show", "OUT", "0:0"], ["quarantine", "export", "OUT"], ["ui", "OUT"],
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder ``out`` of a replay, and ``whole``, of another."""
    log = tmp_path / "log.jsonl"
    log.write_text(BAD + "".join(LINE.format(number) for number in range(1, 50)))
    for out in ("out", "whole"):
        done = CliRunner().invoke(app, ["replay", str(log), "--no-spark", "--out", str(tmp_path / out)])
        assert done.exit_code == 0, done.output
    return tmp_path


def _killed(out: Path) -> None:
    """What a replay leaves that is killed before its end."""
    for each in (out / "state").iterdir():
        each.unlink()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "killed": _killed,
    "a kind is missing": lambda out: shutil.rmtree(out / "tables" / "kind=SEND_RECEIPT"),
    "all rows are missing": lambda out: shutil.rmtree(out / "tables"),
    "the quarantine is missing": lambda out: shutil.rmtree(out / "quarantine"),
    "states are missing": lambda out: (out / "state" / "states.parquet").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("words", QUESTIONS, ids=" ".join)
def test_a_replay_that_is_not_whole_answers_nothing(folder: Path, words: list[str], damage: str) -> None:
    DAMAGES[damage](folder / "out")
    if words[0] == "diff" and damage == "the quarantine is missing":
        pytest.skip("what it compares is there")
    names = {"OUT": str(folder / "out"), "WHOLE": str(folder / "whole")}
    ran = CliRunner().invoke(app, [names.get(word, word) for word in words])
    assert ran.exit_code in (1, 2), ran.output
    (line,) = ran.stderr.splitlines()
    assert str(folder / "out") in line


@pytest.mark.parametrize(
    "words", ["quarantine list OUT", "quarantine export OUT", "quality OUT", "explain OUT t 1:0", "peek OUT t s", "ui OUT"]
)  # fmt: skip
def test_a_checkpoint_in_place_of_a_store(words: str, tmp_path: Path) -> None:
    for name in ("state", "offsets", "commits"):
        (tmp_path / "checkpoint" / name).mkdir(parents=True)
    (tmp_path / "checkpoint" / "metadata").write_text("{}")
    ran = CliRunner().invoke(app, words.replace("OUT", str(tmp_path / "checkpoint")).split())
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "checkpoint is the checkpoint of a query: name its store (--store) instead" in ran.stderr


def test_a_replay_that_is_interrupted_answers_nothing_until_it_is_done(tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    with log.open("w") as file:
        file.writelines(LINE.format(number) for number in range(1, 100_000))
    replay = ["replay", str(log), "--no-spark", "--out", str(out)]
    process = subprocess.Popen([MAGNETAR, *replay, "--batches", "100"], stdout=subprocess.DEVNULL)
    wait_until(lambda: (out / "tables").exists(), "rows", process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 128 + signal.SIGINT
    ran = CliRunner().invoke(app, ["explain", str(out), "t", "1:99998"])
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert "is incomplete: its replay did not finish" in ran.stderr
    again = CliRunner().invoke(app, [*replay, "--overwrite"])
    assert again.exit_code == 0, again.output
    assert CliRunner().invoke(app, ["explain", str(out), "t", "1:99998"]).exit_code == 0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Gives the folder of snapshots in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def only() -> Path:
        (found,) = (cache_dir() / "timelines").iterdir()
        return found

    return only


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_cache_says_what_to_delete(folder: Path, cache: Callable[[], Path], damage: str) -> None:
    words = ["explain", str(folder / "log.jsonl"), "t", "1:0"]
    assert CliRunner().invoke(app, words).exit_code == 0
    path = next(cache().glob("tables/kind=SEND_RECEIPT/*.parquet"))
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 1
    assert f"Delete the folder {cache()}: it is made again" in ran.stderr
    shutil.rmtree(cache())
    assert CliRunner().invoke(app, words).exit_code == 0


def test_a_log_that_changed_and_looks_as_before_has_other_snapshots(
    folder: Path, cache: Callable[[], Path]
) -> None:
    log = folder / "log.jsonl"
    assert CliRunner().invoke(app, ["explain", str(log), "t", "1:0"]).exit_code == 0
    at = time.time_ns()
    for name in "qr":
        log.write_text(
            log.read_text().replace('"producer":"p"', f'"producer":"{name}"').replace('"q"', f'"{name}"')
        )
        os.utime(log, ns=(at, at))
        ran = CliRunner().invoke(app, ["explain", str(log), "t", "1:0"])
        assert ran.exit_code == 0, ran.output
        assert f"producer {name}" in ran.stdout or name in ran.stdout
