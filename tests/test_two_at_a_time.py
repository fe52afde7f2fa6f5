"""Two commands on one file or folder: both do what they do alone, or one of them is refused with a sentence.

`THINGS` says for every argument of every command that names a path what kind of thing it is. The first of two commands stops at a step
at which it changes a file, and goes on when the second one has ended or waits for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from schemas.records import Coordinates
from sinks.lock import exclusive
from sinks.storage import Storage
from streaming.answers.history.timeline import Timeline, forget
from streaming.cli.app import app
from streaming.cli.outputs import USES, Use
from streaming.jobs.replay import replay_in_process
from streaming.quarantine.store import Quarantine
from streaming.server import data_folder
from streaming.server.clock import HeldClock
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.state.dump import Header, write_dump
from tests.server.test_data import START, publish
from tests.steps import count_steps, together

STEPS = 4
"""At so many steps, spread over all, the first command of a pair stops."""

TOPIC = "persistent://public/default/t"
LOG = "".join(
    f'{{"timestamp":{n},"topic":"{TOPIC}","producer":"p","sequence_id":{n}}}\n' for n in range(1, 7)
)
BAD = f'{{"timestamp":9,"topic":"{TOPIC}","producer":"p","sequenceid":9}}\n'


class Way(NamedTuple):
    """A way to use a thing. `words`: a command, or what stands for it; `{n}` is 1 in the first process and 2 in the second.

    `covers`: the arguments that are for this."""

    words: str | Callable[[Path], Any]
    covers: tuple[str, ...]


def _serve(folder: Path) -> Any:
    async def main() -> Any:
        async with EmbeddedEngine(folder / "data", clock=HeldClock(START), begins_with=STANDALONE) as engine:
            await publish(engine, *range(1, 12))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_folder, "CHECKPOINT_RECORDS", 5)
        patch.setattr(
            data_folder, "CHECKPOINT_PATIENCE", 1
        )  # the same files each time, however slow the disk
        asyncio.run(main())


_OPERATED = tuple(f"{command} {name}" for (command, name), use in USES.items() if use is Use.LOG)

THINGS: dict[str, dict[str, Way]] = {
    "log": {
        "reads": Way("replay log.jsonl --no-spark --partitions 2 --out of-{n}", (
            "replay log", "whatif log", "advise log", "minimize log", "produce log", "produce ticks", "quarantine resubmit log",
            "quarantine resubmit repaired", "check scenario",
        )),
        "appends": Way("policy set ttl {n}0 public/default --log log.jsonl", _OPERATED),
    },
    "new log": {
        "imports": Way("import trace.jsonl --out new.jsonl", ("import out", "capture to", "serve ready_at")),
        "minimizes": Way("minimize log.jsonl --keep stored(t)>0 --out new.jsonl", ("minimize out",)),
        "resubmits": Way(
            "quarantine resubmit bad fixed.jsonl --log bad.jsonl --out new.jsonl", ("quarantine resubmit out",)
        ),
        "reads": Way("replay new.jsonl --no-spark --partitions 2 --out of-{n}", ()),
    },
    "replay": {
        "replays": Way("replay log.jsonl --no-spark --partitions 2 --overwrite --out out", ("replay out", "demo out")),
        "explains": Way("explain out t", ("explain folder", "peek folder", "ui folder", "quality path")),
        "compares": Way("diff out out", ("diff before", "diff after")),
        "lists": Way("quarantine list out", ("quarantine list store", "quarantine show store", "quarantine export store")),
        "exports": Way("state export out --out states-{n}", ("state export checkpoint",)),
    },
    "quarantine": {
        "resubmits": Way(
            "quarantine resubmit bad fixed.jsonl --log bad.jsonl --out fixed-{n}.jsonl", ("quarantine resubmit store",)
        ),
        "lists": Way("quarantine list bad", ()),
    },
    "answers": {
        "whatif": Way("whatif log.jsonl --profile 2.x --out answers", ("whatif out",)),
        "diff": Way("diff replayed replayed --out answers", ("diff out",)),
        "advise": Way("advise log.jsonl --processes 1 --out answers", ("advise out", "record out", "check to", "mirror to", "canaries out")),
    },
    "snapshots": {
        "inspects": Way("inspect log.jsonl --at 4 --snapshots snapshots", ("inspect snapshots", "peek snapshots")),
        "explains": Way(
            "explain log.jsonl t --at 5 --snapshots snapshots", ("explain snapshots", "debug snapshots", "debug log")
        ),
        "explains another log": Way("explain bad.jsonl t --snapshots snapshots", ()),
    },
    "dump": {
        "exports": Way("state export replayed --out states", ("state export out",)),
        "exports another": Way("state export bad --out states", ()),
        "imports": Way(
            "state import states --ingress kafka://127.0.0.1:1/t --entries s{n} --store t{n}", ("state import dump",)
        ),
    },
    "pages": {"quality": Way("quality replayed --docs pages", ("quality docs",))},
    "data": {
        "serves": Way(_serve, ("serve data",)),
        "replays": Way("replay data/commands --no-spark --out of-{n}", ()),
    },
}  # fmt: skip

READS_ONLY = (
    "replay policies", "whatif policies", "run canary", "minimize keep", "serve tls_cert", "serve tls_key", "serve token_secret_key",
    "serve token_public_key", "record tls_ca", "record token_file", "capture tls_ca", "capture token_file", "mirror tls_ca", "mirror token_file", "import traces",
    "conform traces", "quarantine resubmit value", "explain stats", "explain internal_stats", "explain policies", "explain tls_ca",
    "explain token_file",
)  # fmt: skip
"""No command writes what these name."""

OF_A_QUERY = (
    "run checkpoint", "run store", "canaries store", "state move checkpoint", "state move store", "state move to_store", "state import entries",
    "state import store", "compact store", "kafka up directory", "kafka down directory", "kafka status directory",
    # Those that look at a query that runs, see tests/spark/ and tests/e2e/.
    "replay quarantined", "whatif checkpoint", "whatif from_", "whatif store", "explain checkpoint", "inspect checkpoint", "inspect store",
    "peek checkpoint", "ui checkpoint", "state export store",
)  # fmt: skip
"""What these name is in use by one process at a time, or made to be read meanwhile: see the last tests here."""


def test_every_path_is_a_thing() -> None:
    """A new argument that names a path needs a place there."""
    named = [each for ways in THINGS.values() for way in ways.values() for each in way.covers]
    named += [*READS_ONLY, *OF_A_QUERY]
    wanted = {f"{command} {name}" for (command, name), use in USES.items() if use is not Use.NO_PATH}
    assert sorted(named) == sorted(wanted)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "log.jsonl").write_text(LOG)
    (folder / "bad.jsonl").write_text(LOG + BAD)
    (folder / "trace.jsonl").write_text('{"format":1,"broker_config":{}}\n')
    for name, log in {"replayed": "log", "out": "log", "bad": "bad"}.items():
        replay_in_process(folder / f"{log}.jsonl", folder / name, partitions=2)
    exported = CliRunner().invoke(app, ["quarantine", "export", str(folder / "bad")]).stdout
    (folder / "fixed.jsonl").write_text(exported.replace("sequenceid", "sequence_id"))
    _serve(folder)
    return folder


READERS = {"reads", "explains", "compares", "lists", "exports", "replays"}
PAIRS = [
    (thing, one, other)
    for thing, ways in THINGS.items()
    for one, other in product(ways, ways)
    if not (
        thing in ("log", "new log", "replay", "quarantine", "data")
        and {one, other} <= READERS - {"replays" if thing == "replay" else ""}
    )
]
"""All but two that only read."""


@pytest.mark.parametrize(("thing", "one", "other"), PAIRS, ids=[" - ".join(each) for each in PAIRS])
def test_two_at_a_time(
    thing: str, one: str, other: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = THINGS[thing][one], THINGS[thing][other]
    allowed = list(_serial(first, second, inputs, tmp_path))
    folder = _folder(inputs, tmp_path, first, second)
    steps = count_steps(lambda: _do(first, folder, 1))
    shutil.rmtree(folder)
    for step in sorted({1 + (steps - 1) * each // STEPS for each in range(STEPS + 1)}):
        folder = _folder(inputs, tmp_path, first, second)
        for number in (1, 2):
            (tmp_path / f"answer-{number}").unlink(missing_ok=True)
        together(lambda: _do(first, folder, 1), lambda: _do(second, folder, 2), step)  # noqa: B023 (at once)
        found = (_answer(folder, 1), _answer(folder, 2), _contents(folder))
        if (one, other) == ("serves", "replays"):  # the log as it is then, in whole lines
            assert [each[0] for each in found[:2]] == ["0", "0"]
            assert "quarantine" not in found[1][1]
        else:
            assert found in allowed, f"step {step} of {steps}: {found}"
        shutil.rmtree(folder)


REFUSED = "refused"


def _serial(first: Way, second: Way, inputs: Path, tmp_path: Path) -> Iterator[tuple[Any, Any, Any]]:
    """What may come of two: as if one came after the other, or one were refused."""
    for order in ((1, 2), (2, 1), (1,), (2,)):
        folder = _folder(inputs, tmp_path, first, second)
        for number in order:
            _do(first if number == 1 else second, folder, number)  # here, so that all is imported
        yield _answer(folder, 1), _answer(folder, 2), _contents(folder)
        os.chdir(tmp_path)
        shutil.rmtree(folder)


def _folder(inputs: Path, tmp_path: Path, *ways: Way) -> Path:
    """What they read."""
    folder = tmp_path / "all"
    folder.mkdir()
    words = {
        word.partition("/")[0]
        for way in ways
        for word in (way.words.split() if isinstance(way.words, str) else ["data"])
    }
    for each in words & {each.name for each in inputs.iterdir()}:
        (shutil.copytree if (inputs / each).is_dir() else shutil.copy)(inputs / each, folder / each)
    return folder


def _do(way: Way, folder: Path, number: int) -> None:
    """Do it, and note what it answered."""
    os.chdir(folder)
    if isinstance(way.words, str):
        ran = CliRunner().invoke(app, way.words.replace("{n}", str(number)).split())
        code, text, said = str(ran.exit_code), ran.stdout, ran.stderr
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
    else:
        try:
            way.words(folder)
            code, text, said = "0", "", ""
        except RuntimeError as error:
            code, text, said = "2", "", f"magnetar: {error}\n"
    if code == "2" and re.fullmatch(
        r"magnetar: .*\b(in use by|being read by|already exists|isn't empty|resubmitted before)\b.*\n", said
    ):
        code, text = REFUSED, ""
    text = re.sub(r"[\d.]+ s\b|(states|fixed|of)-[12]", "", text).replace("all", "")
    (folder.parent / f"answer-{number}").write_text(json.dumps([code, text]))


def _answer(folder: Path, number: int) -> Any:
    """What the command answered. None, and refused, are the same here: it changed nothing."""
    path = folder.parent / f"answer-{number}"
    if not path.exists():
        return [REFUSED, ""]
    found = json.loads(path.read_text())
    path.unlink()
    return found


def _contents(folder: Path) -> Any:
    """The files, with the contents of those that do not depend on the time."""
    return {
        _name(each.relative_to(folder)): each.read_bytes() if each.suffix in (".jsonl", ".json") and "tables" not in each.parts
        and "_resubmitted" not in each.parts and "whatif" not in each.name and "advice" not in each.name else b""
        for each in sorted(folder.rglob("*"))
        if each.name not in ("_used", "_folding")
    }  # fmt: skip


def _name(path: Path) -> str:
    return re.sub(r"[0-9]{13}-[0-9a-f]{8}", "note", str(path))


# ---- a query: what it uses is in use by it alone

_QUERY = "--ingress kafka://127.0.0.1:1/t"
HELD = [
    (f"run {_QUERY} --checkpoint used --store new", "magnetar run"),
    (f"run {_QUERY} --checkpoint new --store used", "magnetar state move"),
    (f"state import states {_QUERY} --entries used --store new", "magnetar run"),
    (f"state import states {_QUERY} --entries new --store used", "magnetar state import"),
    ("kafka up --dir used --port 0", "magnetar kafka up"),
    ("demo --out used", "magnetar demo"),
    ("replay log.jsonl --no-spark --out used", "magnetar replay"),
    ("quality replayed --docs used", "magnetar quality"),
]
"""Commands, and one that uses the folder `used`. `magnetar state move` has its own test."""


@pytest.mark.parametrize(("words", "other"), HELD)
def test_what_another_command_uses(
    words: str, other: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(inputs / "log.jsonl", tmp_path)
    shutil.copytree(inputs / "replayed", tmp_path / "replayed")
    with (tmp_path / "states").open("wb") as file:
        write_dump(file, Header(), [])
    with exclusive([str(tmp_path / "used")], other):
        ran = CliRunner().invoke(app, words.split())
        assert ran.exit_code == 2, ran.exception
        (line,) = ran.stderr.splitlines()
        assert re.fullmatch(rf"magnetar: .*used is in use by {other} \(pid .*", line)
        assert [each.name for each in (tmp_path / "used").iterdir()] == ["_lock"]


def test_a_note_survives_a_query_that_starts(inputs: Path, tmp_path: Path) -> None:
    """A query that starts clears what killed writes left in its store, while somebody resubmits records."""
    shutil.copytree(inputs / "bad", tmp_path / "bad")
    origin = [Coordinates(0, 1)]

    def resubmit() -> None:
        Quarantine(str(tmp_path / "bad")).note("t", origin).write(origin)

    steps = count_steps(resubmit)
    for step in range(1, steps + 1):
        assert together(resubmit, lambda: Storage(str(tmp_path / "bad")).sweep(), step)
    assert len(list((tmp_path / "bad/quarantine/_resubmitted").glob("*.json"))) == steps + 1


def test_snapshots_that_are_forgotten_when_they_are_needed(inputs: Path, tmp_path: Path) -> None:
    """Another command takes a folder in the cache for one that nobody uses any more."""

    def states() -> None:
        timeline = Timeline(inputs / "log.jsonl", tmp_path / "cache", every=2)
        assert len(timeline.states(4)) == 1

    steps = count_steps(states)
    for step in range(1, steps + 1, 3):
        together(states, lambda: forget(tmp_path / "cache"), step)
        together(states, states, step)
        forget(tmp_path / "cache")
    for step in range(1, count_steps(lambda: forget(tmp_path / "cache")) + 1):
        states()
        together(lambda: forget(tmp_path / "cache"), states, step)
