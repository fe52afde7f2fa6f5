"""No command destroys what it reads, or what others wrote: every argument of every command that names a path is in one table."""

from __future__ import annotations

import gzip
import os
import re
import shutil
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main
from typer.testing import CliRunner

from sinks.lock import LOCK, Holder
from sinks.outputs import InTheWay, check_folder, check_nested, check_new_file, filling, new_file, new_lines
from streaming.cli.app import app
from streaming.cli.outputs import KEPT, USES, CheckedCommand, Use, use
from streaming.jobs.live_sinks import LiveSinks
from streaming.jobs.replay import replay_in_process

CREATED = '{"timestamp":1,"topic":"persistent://public/default/t","producer":"p","sequence_id":1}\n'
NO_PULSAR = (
    "--service-url",
    "pulsar://127.0.0.1:1",
    "--admin-url",
    "http://127.0.0.1:1",
)


def commands() -> dict[str, Any]:
    """Every command by its words."""
    found = {}

    def visit(command: Any, path: str) -> None:
        for name, each in getattr(command, "commands", {}).items():
            visit(each, f"{path} {name}".strip())
        if not hasattr(command, "commands"):
            found[path] = command

    visit(typer.main.get_command(app), "")
    return found


def test_every_argument_is_in_the_table() -> None:
    """A new option needs a line there, unless it is a number, a flag or a choice."""
    unknown, known = [], set()
    for path, command in commands().items():
        assert isinstance(command, CheckedCommand), path
        for param in command.params:
            known.add((path, param.name))
            text = not getattr(param, "is_flag", False) and str(
                getattr(param, "type_name", param.type if hasattr(param, "type") else "")
            )
            if (
                use(path, param.name) is None
                and text not in ("integer", "float", "integer range", "float range")
                and not _is_number(param)
            ):
                unknown.append((path, param.name))
    assert unknown == []
    assert set(USES) <= known


def _is_number(param: Any) -> bool:
    return param.name in {
        "help", "batches", "partitions", "cores", "spark", "overwrite", "as_json", "processes", "with_spark", "seed", "send_timeout",
        "sequence_id", "retention", "quota", "ttl", "inactive", "deduplication", "batch", "diff", "number", "max_states", "tries", "shuffle_partitions", "max_offsets",
        "tables", "quality", "metrics_label_sets", "insecure", "fsync", "test_double", "paced", "count", "timestamp", "force", "applied",
        "port", "raw", "every", "again", "producers", "estimate",
    }  # fmt: skip


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replayed")
    (path / "log.jsonl").write_text(CREATED)
    replay_in_process(path / "log.jsonl", path / "out", partitions=1)
    return path / "out"


@pytest.fixture
def folder(tmp_path: Path, replayed: Path) -> Path:
    """Inputs of all commands."""
    (tmp_path / "log.jsonl").write_text(CREATED)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "log.jsonl")
    (tmp_path / "dangling.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    (tmp_path / "trace.jsonl").write_text('{"format":1,"broker_config":{}}\n')
    (tmp_path / "scenario.yaml").write_text("time: [1s]")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "0.jsonl").write_text(CREATED)
    shutil.copytree(replayed, tmp_path / "replayed")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("of mine")
    (tmp_path / "linked").symlink_to(tmp_path / "foreign")
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked-empty").symlink_to(tmp_path / "empty")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "tables").symlink_to(tmp_path / "foreign")
    (tmp_path / "query" / "store").mkdir(parents=True)
    (tmp_path / "query" / "store" / "ingress.json").write_text("{}")
    return tmp_path


WRITING: dict[tuple[str, str], tuple[str, ...]] = {
    ("demo", "out"): ("demo", "--out", "OUT"),
    ("replay", "out"): ("replay", "INPUT", "--no-spark", "--overwrite", "--out", "OUT"),
    ("whatif", "out"): ("whatif", "INPUT", "--profile", "2.x", "--out", "OUT"),
    ("whatif", "checkpoint"): ("whatif", "INPUT", "--profile", "2.x", "--spark", "--checkpoint", "OUT"),
    ("diff", "out"): ("diff", "replayed", "replayed", "--out", "OUT"),
    ("canaries", "out"): ("canaries", "replayed", "--out", "OUT"),
    ("advise", "out"): ("advise", "INPUT", "--processes", "1", "--out", "OUT"),
    ("explain", "snapshots"): ("explain", "INPUT", "t", "--snapshots", "OUT"),
    ("inspect", "snapshots"): ("inspect", "INPUT", "--snapshots", "OUT"),
    ("peek", "snapshots"): ("peek", "INPUT", "t", "s", "--snapshots", "OUT"),
    ("debug", "snapshots"): ("debug", "INPUT", "--snapshots", "OUT"),
    ("check", "to"): ("check", "scenario.yaml", "--to", "OUT"),
    ("minimize", "out"): ("minimize", "INPUT", "--keep", "stuck(t, s)", "--out", "OUT"),
    ("quality", "docs"): ("quality", "replayed", "--docs", "OUT"),
    ("record", "out"): ("record", "OUT", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
    ("capture", "to"): ("capture", "t", "--to", "OUT", *NO_PULSAR),
    ("mirror", "to"): ("mirror", "t", "--to", "OUT", *NO_PULSAR),
    ("serve", "ready_at"): ("serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--ready-file", "OUT"),
    ("import", "out"): ("import", "trace.jsonl", "--out", "OUT"),
    ("state export", "out"): ("state", "export", "replayed", "--out", "OUT"),
    ("quarantine resubmit", "out"): ("quarantine", "resubmit", "replayed", "INPUT", "--log", "INPUT", "--out", "OUT"),
}  # fmt: skip
"""A command line for each output. INPUT: what is read, OUT: what is written."""

_FILES = ("log.jsonl", "link.jsonl", "dangling.jsonl", "./logs/../log.jsonl", "replayed", "logs/0.jsonl")
_FOLDERS = (".", "foreign", "linked", "linked-empty", "inside", "query", "log.jsonl", "logs")
CASES = [
    (key, out)
    for key in WRITING
    for out in (_FILES if use(*key) in (Use.FILE, Use.FILE_WITH_TEST) else _FOLDERS)
]


def test_every_output_is_tried() -> None:
    files = (Use.FILE, Use.FILE_WITH_TEST, Use.FOLDER, Use.OWN)
    assert set(WRITING) == {key for key, of in USES.items() if of in files}


@pytest.mark.parametrize(("key", "out"), CASES, ids=[f"{' '.join(key)} {out}" for key, out in CASES])
def test_what_is_in_the_way_stays(
    folder: Path, key: tuple[str, str], out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input itself, links, files in an input, folders with foreign files: refused with a sentence, and nothing changed."""
    monkeypatch.chdir(folder)
    before = contents(folder)
    words = {"OUT": out, "INPUT": "logs" if out == "logs" else "log.jsonl"}
    ran = CliRunner().invoke(app, [words.get(word, word) for word in WRITING[key]])
    assert ran.exit_code == 2, ran.output
    (line,) = ran.stderr.splitlines()
    assert line.startswith("magnetar: ")
    assert contents(folder) == before


CONTINUING: dict[tuple[str, str], tuple[str, ...]] = {
    ("run", "checkpoint"): ("run", "--ingress", "kafka://127.0.0.1:1/t", "--store", "new", "--checkpoint", "OUT"),
    ("run", "store"): ("run", "--ingress", "kafka://127.0.0.1:1/t", "--checkpoint", "new", "--store", "OUT"),
    ("serve", "data"): ("serve", "--data", "OUT", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
    ("state import", "store"): ("state", "import", "log.jsonl", "--ingress", "kafka://127.0.0.1:1/t", "--entries", "new", "--store", "OUT"),
    ("state move", "to_store"): (
        "state", "move", "new", "--ingress", "kafka://127.0.0.1:1/t", "--store", "newer", "--partitions", "2",
        "--to-ingress", "kafka://127.0.0.1:1/u", "--to-store", "OUT",
    ),
    ("kafka up", "directory"): ("kafka", "up", "--dir", "OUT"),
}  # fmt: skip
"""A command line for each store that may be a new one."""
_ONLY_GO_ON = {("compact", "store"), ("quarantine resubmit", "store"), ("kafka down", "directory")}
NESTED = [
    (key, out)
    for key in {**WRITING, **CONTINUING}
    if use(*key) in (Use.FOLDER, Use.OWN, *KEPT) and key != ("quality", "docs")
    for out in (
        "a/store/x/out",
        "a/store/tables/out",
        "a/checkpoint/out",
        "b/data/out",
        "r/tables/out",
        "a",
        ".",
    )
    if (key, out) != (("serve", "data"), "a")  # a server on Spark has a store and a checkpoint of these names
]


def owned(folder: Path) -> None:
    """The folders of a query, a, of a server, b, of a replay, r, and the store to which states were being moved, s/half."""
    for path in (
        "a/store",
        "a/store/tables",
        "a/checkpoint/offsets",
        "b/data/commands",
        "r/state",
        "r/tables",
        "s/half/seed/pieces",
    ):
        (folder / path).mkdir(parents=True)
    (folder / "s/half/seed/begun.json").write_text("{}")
    (folder / "a/store/ingress.json").write_text("{}")
    (folder / "a/checkpoint/metadata").write_text("{}")
    (folder / "b/data/checkpoint").write_bytes(b"magnetar checkpoint 2 00000000\n")
    (folder / "log.jsonl").write_text(CREATED)
    (folder / "scenario.yaml").write_text("time: [1s]")


def test_every_store_is_tried() -> None:
    assert {*CONTINUING} | _ONLY_GO_ON == {key for key, of in USES.items() if of in KEPT}


@pytest.mark.parametrize(("key", "out"), NESTED, ids=[f"{' '.join(key)} {out}" for key, out in NESTED])
def test_nothing_begins_in_the_folders_of_a_query_or_around_them(
    tmp_path: Path, key: tuple[str, str], out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    owned(tmp_path)
    before = contents(tmp_path)
    words = {"OUT": out, "INPUT": "log.jsonl", "replayed": "nowhere"}
    ran = CliRunner().invoke(app, [words.get(word, word) for word in {**WRITING, **CONTINUING}[key]])
    assert ran.exit_code == 2, ran.output
    (line,) = ran.stderr.splitlines()
    assert re.search(
        r"which is (the (store|checkpoint) of a query|the data folder of a server|the result of a replay|an input)",
        line,
    )
    assert line.endswith(": choose another folder")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "out", ["a/store", "a/checkpoint", "b/data", "r", "s/half", "s/new", "new", "a/new", "b/new/x", "link"]
)
def test_what_began_goes_on_and_what_is_beside_it_may_begin(out: str, tmp_path: Path) -> None:
    owned(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a/store")
    check_nested(tmp_path / out)
    check_nested(f"file://{tmp_path / out}")
    check_nested(f"s3://bucket{tmp_path}/a/store/x")
    check_nested(tmp_path / "a/store/new", [tmp_path / "a/store"])  # of one query


@pytest.mark.parametrize(
    ("checkpoint", "store"),
    [("a/store/own", "new"), ("a/checkpoint/own", "new"), ("own", "a/store/new"), ("own", "a"), (".", "new"), ("b/data/own", "new"), ("own", "s/half/seed/new"), ("own", "s")],
)  # fmt: skip
def test_a_query_of_the_api_begins_in_folders_of_its_own(checkpoint: str, store: str, tmp_path: Path) -> None:
    owned(tmp_path)
    before = contents(tmp_path)
    sinks = LiveSinks(str(tmp_path / store), tables=False, keep_outputs=None, quality=False)
    with pytest.raises(InTheWay, match="which is the .* of a (query|server): choose another folder"):
        sinks.begin(tmp_path / checkpoint)
    sinks.close()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("folder", ["r", "log"])
@pytest.mark.parametrize(
    "command",
    [
        "run --ingress kafka://x:1/t --checkpoint {new} --store", "run --ingress kafka://x:1/t --store {new} --checkpoint", "serve --data",
        "state import {file} --ingress kafka://x:1/t --entries {new} --store",
    ],
)  # fmt: skip
def test_nothing_goes_on_in_the_folder_of_a_log_or_of_results(
    command: str, folder: str, tmp_path: Path
) -> None:
    owned(tmp_path)
    (tmp_path / "log").mkdir()
    (tmp_path / "log/000000000001.jsonl").write_text("{}")
    before = contents(tmp_path)
    command = command.format(new=tmp_path / "new", file=tmp_path / "log/000000000001.jsonl")
    ran = CliRunner().invoke(app, [*command.split(), str(tmp_path / folder)])
    assert ran.exit_code == 2
    what = {"r": "the result of a replay", "log": "the folder of a command log"}[folder]
    assert f"{tmp_path / folder} is {what}: choose another folder" in ran.output
    assert contents(tmp_path) == before


def test_a_server_goes_on_in_its_folder_which_has_those_of_its_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `--engine spark` leaves it. The folder of another query in it is in the way."""
    for path in ("data/store", "data/checkpoint/offsets", "data/other"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "data/store/ingress.json").write_text("{}")
    (tmp_path / "data/checkpoint/metadata").write_text("{}")
    began: list[Any] = []
    monkeypatch.setattr("typer.core.TyperCommand.invoke", lambda self, ctx: began.append(ctx.params["data"]))
    assert CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data")]).exit_code == 0
    assert began == [tmp_path / "data"]
    (tmp_path / "data/other/ingress.json").write_text("{}")
    assert CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data")]).exit_code == 2
    assert len(began) == 1


def test_a_store_named_as_the_folder_of_states_is_one_itself(tmp_path: Path) -> None:
    store = tmp_path / "seed"
    store.mkdir()
    for name in ("ingress.json", "begun.json"):
        (store / name).write_text("{}")
    check_nested(store)
    check_nested(tmp_path / "other")
    with pytest.raises(InTheWay, match="seed, which is the store of a query"):
        check_nested(store / "new")


def test_links_hide_nothing(tmp_path: Path) -> None:
    owned(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a/store")
    with pytest.raises(InTheWay, match=r"link/new is in .*a/store, which is the store of a query"):
        check_nested(tmp_path / "link/new")
    (tmp_path / "c").symlink_to(tmp_path / "a")  # what a link leads to is elsewhere
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").symlink_to(tmp_path / "a/store")
    check_nested(tmp_path / "d")


def contents(folder: Path) -> dict[Path, object]:
    return {
        each: each.readlink() if each.is_symlink() else each.read_bytes() if each.is_file() else None
        for each in sorted(folder.rglob("*"))
    }


def test_a_test_beside_the_log_is_not_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "test_small.py").write_text("mine")
    ran = CliRunner().invoke(app, ["minimize", "log.jsonl", "--keep", "stuck(t, s)", "--out", "small.jsonl"])
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1)
    assert "test_small.py already exists: choose another file" in ran.stderr


def test_what_is_new_may_be_written(tmp_path: Path) -> None:
    check_new_file(tmp_path / "new", [tmp_path / "log", "kafka://h:1/t", "s3://bucket/x"])
    check_folder(tmp_path / "new", ["file:///nowhere"])
    check_folder(tmp_path, own=lambda _: True)


@pytest.mark.parametrize("written", [new_file, filling])
def test_a_full_disk_is_told_with_what_has_no_room(written: Any, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as failed, written(tmp_path / "out"):
        raise OSError(ENOSPC, os.strerror(ENOSPC))
    assert failed.value.filename == str(tmp_path / "out")
    with pytest.raises(OSError, match="Input/output") as failed, written(tmp_path / "out"):
        raise OSError(EIO, os.strerror(EIO))
    assert failed.value.filename is None


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    def write(replace: bool) -> None:
        with new_file(tmp_path / "x", replace=replace) as file:
            file.write(b"half")
            raise OSError(28, "No space left on device")

    for replace in (False, True):
        with pytest.raises(OSError, match="No space"):
            write(replace)
        assert list(tmp_path.iterdir()) == []
    with new_lines(tmp_path / "x.gz") as lines:
        lines.write(b"1")
        assert not (tmp_path / "x.gz").exists()
    assert gzip.decompress((tmp_path / "x.gz").read_bytes()) == b"1"
    with pytest.raises(InTheWay, match="already exists"), new_lines(tmp_path / "x.gz") as lines:
        lines.write(b"2")
    assert gzip.decompress((tmp_path / "x.gz").read_bytes()) == b"1"
    assert [each.name for each in tmp_path.iterdir()] == ["x.gz"]


@pytest.mark.parametrize(
    ("last", "more", "said"),
    [
        ("magnetar diff", None, "isn't empty: choose another folder"),
        (
            "magnetar whatif",
            "thesis.txt",
            "contains files that no magnetar whatif wrote (thesis.txt): remove them by hand",
        ),
        ("", None, "isn't empty: choose another folder"),
        ("magnetar whatif", None, ""),
    ],
)
def test_what_a_killed_command_left_is_replaced_and_nothing_else(
    last: str, more: str | None, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "empty" / "summary.parquet").write_text("half")
    if more is not None:
        (folder / "empty" / more).write_text("of mine")
    holder = Holder(last, "h", 1, 0, "x")
    (folder / "empty" / LOCK).write_bytes(msgspec.json.encode(holder) if last else b"")
    before = contents(folder)
    ran = CliRunner().invoke(app, ["whatif", "log.jsonl", "--profile", "2.x", "--out", "empty"])
    assert ran.exit_code == (2 if said else 0)
    assert said in ran.stderr
    if said:
        assert contents(folder) == before
    else:
        assert sorted(each.name for each in (folder / "empty").iterdir()) == [
            "differences", "report.html", "series.parquet", "summary.parquet", "whatif.json",
        ]  # fmt: skip
