"""Whatever changes several files or folders is whole or repaired by the next attempt: one that is killed at each of its steps."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from schemas.records import Coordinates
from sinks.outputs import new_file
from sinks.storage import Storage
from streaming.answers.timeline import Timeline
from streaming.broker.codec import decode_state
from streaming.demo import make_log
from streaming.dump import Header, read_dump, write_dump
from streaming.log.files import read_log, write_log
from streaming.log.table import digest
from streaming.quarantine.store import Quarantine
from streaming.replay import load, replay_in_process
from streaming.seed import Origin, Seed, SeedWriter, read_seed
from streaming.server import data_folder
from streaming.server.clock import HeldClock
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.states import read_replayed, read_states
from tests.server.test_data import START, publish

MOST_STEPS = 400
KILLED = 9
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}

LOG = "".join(
    f'{{"timestamp":{number},"topic":"persistent://public/default/t","producer":"p","sequence_id":{number}}}\n'
    for number in range(1, 7)
)


class Work(NamedTuple):
    """`do` changes a folder; `look` says what came of it. It may be done again after it was killed."""

    do: Callable[[Path], Any]
    look: Callable[[Path], Any]
    prepare: Callable[[Path], Any] = lambda folder: (folder / "log.jsonl").write_text(LOG)


def _engine(folder: Path, work: Callable[[EmbeddedEngine], Any] | None = None) -> Any:
    async def main() -> Any:
        clock = HeldClock(START)
        async with EmbeddedEngine(folder / "data", clock=clock, begins_with=STANDALONE) as engine:
            if work is not None:
                await work(engine)
            state = decode_state(engine.broker.encode())
            return sorted(state.namespaces), sorted(state.topics)

    return asyncio.run(main())


def _often(folder: Path) -> None:
    data_folder.CHECKPOINT_RECORDS = 5
    _engine(folder, lambda engine: publish(engine, *range(1, 12)))


def _replay(folder: Path, *, overwrite: bool = True) -> None:
    replay_in_process(folder / "log.jsonl", folder / "out", partitions=2, overwrite=overwrite)


def _replayed(folder: Path) -> Any:
    replayed, states = read_replayed(folder / "out" / "state"), read_states(folder / "out" / "state")
    names = sorted(each.name for each in (folder / "out").iterdir())
    return (
        replayed,
        states,
        names,
        sorted(str(each.relative_to(folder)) for each in (folder / "out").rglob("*.parquet")),
    )


def _timeline(folder: Path) -> Any:
    timeline = Timeline(folder / "log.jsonl", folder / "snapshots", every=2)
    return [timeline.states(moment) for moment in range(len(timeline) + 1)]


def _minimize(folder: Path) -> None:
    """The files of `magnetar minimize`. The log comes last: with it, the test is there. Without it, the user removes the test."""
    log, test = folder / "small.jsonl", folder / "test_small.py"
    if log.exists():
        return
    test.unlink(missing_ok=True)
    with new_file(log) as lines, new_file(test) as python:
        lines.write(b"1")
        python.write(b"2")


def _dump(folder: Path) -> None:
    states = read_states(folder / "out" / "state") or []
    with new_file(folder / "dump", replace=True) as file:
        write_dump(file, Header(), [each.broker for each in states])


def _dumped(folder: Path) -> Any:
    with (folder / "dump").open("rb") as file:
        return [*read_dump(file)], sorted(each.name for each in folder.iterdir())


def _seed(folder: Path) -> None:
    writer = SeedWriter(str(folder / "store"))
    writer.check_new()
    if read_whole(folder):
        return
    writer.begin(Origin(states="s", ingress="t", topic_id=None, partitions=2, ends=[]))
    for state in read_states(folder / "out" / "state") or []:
        writer.write_piece(0, state.partition, state.broker)
        (piece,) = writer.take_pieces(state.partition)
        writer.write(state.partition, piece)
    writer.finish(Seed(partitions=2))


def read_whole(folder: Path) -> bool:
    return (folder / "store" / "seed" / "whole.json").exists()


def _seeded(folder: Path) -> Any:
    reader = read_seed(str(folder / "store"))
    assert reader is not None
    return reader.states(), sorted(
        each.name for each in (folder / "store").rglob("*") if each.name != "_temporary"
    )


def _note(folder: Path) -> None:
    origin = Coordinates(0, 1)
    Quarantine(str(folder / "out")).note("t", [origin]).write([origin])


def _noted(folder: Path) -> Any:
    return {origin: each.place for origin, each in Quarantine(str(folder / "out")).resubmitted().items()}


def _with_replay(folder: Path) -> None:
    (folder / "log.jsonl").write_text(LOG)
    _replay(folder)


WORKS: dict[str, Work] = {
    "serve, first start": Work(_engine, _engine),
    "serve, restart": Work(_engine, _engine, lambda folder: _engine(folder, lambda engine: publish(engine, 1, 2))),
    "serve, checkpoints": Work(_often, lambda folder: _engine(folder)[0]),
    "replay": Work(_replay, _replayed),
    "replay --overwrite": Work(_replay, _replayed, _with_replay),
    "snapshots of a log": Work(_timeline, _timeline),
    "write a log": Work(
        lambda folder: write_log(folder / "x.jsonl.gz", read_log(folder / "log.jsonl")),
        lambda folder: (digest(load(folder / "x.jsonl.gz").records), sorted(each.name for each in folder.iterdir())),
    ),
    "minimize": Work(_minimize, lambda folder: sorted((each.name, each.read_bytes()) for each in folder.iterdir() if each.name[0] != ".")),
    "state export": Work(_dump, _dumped, _with_replay),
    "state import and move": Work(_seed, _seeded, _with_replay),
    "quarantine resubmit": Work(_note, _noted, _with_replay),
    "demo": Work(lambda folder: make_log(folder / "d" / "log.jsonl"), lambda folder: sorted((each.name, each.stat().st_size) for each in (folder / "d").iterdir()), lambda folder: None),
}  # fmt: skip


def in_process(call: Callable[[], Any], dies_at: int | None) -> int:
    """Do something in a process of its own, which is killed before its `dies_at`-th step. Its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(60)
    code = 3
    try:
        _count_steps(dies_at or MOST_STEPS * 100)
        call()
        code = 0
    finally:
        os._exit(code)


def _count_steps(left: int) -> None:
    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os._exit(KILLED)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES):
            step()

    def counted(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def run(*arguments: Any, **named: Any) -> Any:
            step()
            result = call(*arguments, **named)
            step()
            return result

        setattr(owner, name, run)

    for name in ("write", "fsync", "fdatasync"):
        counted(os, name)
    for name in ("publish", "delete", "take", "sweep", "_create", "_tidy"):
        counted(Storage, name)
    sys.addaudithook(audit)


@pytest.mark.parametrize("name", WORKS)
def test_killed_at_any_step(name: str, tmp_path: Path) -> None:
    work = WORKS[name]
    plain = tmp_path / "plain"
    plain.mkdir()
    work.prepare(plain)
    work.do(plain)
    expected = work.look(plain)
    for step in range(1, MOST_STEPS):
        folder = tmp_path / str(step)
        folder.mkdir()
        work.prepare(folder)
        code = in_process(lambda: work.do(folder), step)  # noqa: B023 (it is called at once)
        if code == 0:
            assert step > 1, "no step was counted"
            return
        assert code == KILLED
        work.do(folder)
        assert work.look(folder) == expected, step
    raise AssertionError("there are more steps")
