"""Whatever changes several files or folders is whole or repaired by the next attempt: one that is killed at each of its steps."""

from __future__ import annotations

import ast
import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from schemas.commands import Tick
from schemas.records import Coordinates
from sinks.ledger_store import LedgerStore, read_entries
from sinks.outputs import WHATIF, new_file
from sinks.replayed import read_replayed
from sinks.storage import Storage
from streaming.answers.check.minimize import Minimized, write
from streaming.answers.history.timeline import Timeline
from streaming.answers.whatif import query
from streaming.answers.whatif.folder import opened
from streaming.answers.whatif.projection import LiveState
from streaming.broker.state.codec import decode_state
from streaming.cli.app import app
from streaming.cli.errors import FAILED
from streaming.fold.columns import Fold
from streaming.jobs.demo import make_log
from streaming.jobs.replay import load, replay_in_process
from streaming.log.files import read_log, write_log
from streaming.log.partition import by_partition
from streaming.log.table import digest, slices
from streaming.quarantine.store import Quarantine
from streaming.server import data_folder
from streaming.server.clock import HeldClock
from streaming.server.data_folder import TEST_DOUBLE, BadData
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.state.dump import Header, read_dump, write_dump
from streaming.state.move import _put
from streaming.state.saved import read_states
from streaming.state.seed import Origin, Seed, SeedWriter, read_seed
from tests.server.test_data import START, publish
from tests.steps import KILLED, fails, in_process

MOST_STEPS = 400
SCENARIOS = Path(__file__).parents[1] / "docs" / "scenarios"
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


def _double(folder: Path) -> None:
    """A double, which never leaves a log without its mark."""
    data = folder / "data"

    async def main() -> None:
        async with EmbeddedEngine(
            data, clock=HeldClock(START), begins_with=STANDALONE, test_double=True
        ) as engine:
            await engine.submit(None, Tick())

    assert (data / TEST_DOUBLE).exists() or not any(data.rglob("*.jsonl"))
    asyncio.run(main())


def _is_doubles(folder: Path) -> None:
    with pytest.raises(BadData, match="has the log of a test double"):
        _engine(folder)
    _double(folder)


def _often(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_folder, "CHECKPOINT_RECORDS", 5)
        patch.setattr(
            data_folder, "CHECKPOINT_PATIENCE", 1
        )  # the same files each time, however slow the disk
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
    write(Minimized("stored(t)>0", 6, 1, 1, [LOG.splitlines()[0]]), None, log, test)


def _batches(folder: Path, *, first: int, last: int) -> None:
    """Micro-batches of a query, of which the sixteenth merges the segments of those before. The last one may be repeated."""
    lines = [each.replace('"topic"', '"partition":0,"topic"') for each in LOG.splitlines()] * 3
    (folder / "many.jsonl").write_text("\n".join(lines))
    store = LedgerStore(str(folder / "store"))
    fold = Fold(store)
    for batch, part in enumerate(slices(load(folder / "many.jsonl").records, len(lines))):
        if first <= batch < last:
            store.begin(batch)
        for partition, rows in fold.apply(part):
            if first <= batch < last:
                store.write(batch, partition, rows)


def _batched(folder: Path) -> Any:
    return LedgerStore(str(folder / "store")).scan().to_pylist()


def _dump(folder: Path) -> None:
    states = read_states(folder / "out" / "state") or []
    with new_file(folder / "dump", replace=True) as file:
        write_dump(file, Header(), [each.broker for each in states])


def _dumped(folder: Path) -> Any:
    with (folder / "dump").open("rb") as file:
        return [*read_dump(file)], sorted(each.name for each in folder.iterdir())


def _seed(folder: Path) -> None:
    if read_whole(folder):
        return
    writer = SeedWriter(str(folder / "store"))
    writer.begin(Origin(states="s", ingress="t", topic_id=None, partitions=2, ends=[]))
    entries, target = LedgerStore(str(folder / "out" / "store")), LedgerStore(str(folder / "store"))
    for row in read_states(folder / "out" / "state") or []:
        writer.write_piece(0, row.partition, row.broker)
        (piece,) = writer.take_pieces(row.partition)
        state = decode_state(piece)
        _put(writer, state, entries, target, dict.fromkeys(state.topics, row.partition))
    writer.finish(Seed(partitions=2))


def read_whole(folder: Path) -> bool:
    return (folder / "store" / "seed" / "whole.json").exists()


def _seeded(folder: Path) -> Any:
    reader = read_seed(str(folder / "store"))
    assert reader is not None
    reader.check({})
    names = sorted(each.name for each in (folder / "store").rglob("*") if each.name != "_temporary")
    assert "000000001.parquet" in names
    return reader.states(), names, read_entries(str(folder / "store"))


def _note(folder: Path) -> None:
    origin = Coordinates(0, 1)
    Quarantine(str(folder / "out")).note("t", [origin]).write([origin])


def _noted(folder: Path) -> Any:
    return {origin: each.place for origin, each in Quarantine(str(folder / "out")).resubmitted().items()}


def _with_ledgers(folder: Path) -> None:
    """A replay with a closed ledger, and an open one."""
    config = '{"timestamp":1,"command":"BROKER_CONFIG","settings":{"managedLedgerMaxEntriesPerLedger":4,"managedLedgerMinLedgerRolloverTimeMinutes":0,"defaultRetentionTimeInMinutes":-1,"defaultRetentionSizeInMB":-1}}\n'
    (folder / "log.jsonl").write_text(config + LOG)
    _replay(folder)


def _with_replay(folder: Path) -> None:
    (folder / "log.jsonl").write_text(LOG)
    _replay(folder)


def _command(*words: str) -> Callable[[Path], None]:
    """A command that fills the folder ``answer``."""

    def do(folder: Path) -> None:
        ran = CliRunner().invoke(app, [each.replace("IN", str(folder)) for each in words])
        whole = (
            "answer isn't empty: choose another folder" in ran.output
        )  # it was killed when it had written all
        assert whole or ran.exit_code in (0, FAILED), ran.output

    return do


def _answered(folder: Path) -> Any:
    answer = folder / "answer"
    return {
        str(each.relative_to(answer)): each.read_bytes().replace(str(folder).encode(), b"")
        for each in answer.rglob("*")
        if each.is_file()
    }


def _whatif_begins(folder: Path) -> None:
    """The files of a what-if with a checkpoint, from the state of a query, up to the start of its own."""
    live = LiveState(read_states(folder / "out" / "state") or [], LedgerStore(str(folder / "out" / "store")))
    with opened(folder / "kept", ()) as kept:
        log, before = kept.as_begun(read_log(folder / "log.jsonl"), live)
        kept.note(log, live, before)
        parts = by_partition(load(log, partitions=2).records)
        partitions = [query.Partition(number, own, [], [], None, None) for number, own in parts.items()]
        begun = kept.next()
        query._begun(partitions, begun, Storage(str(begun)))


def _whatif_began(folder: Path) -> Any:
    files = [each for each in (folder / "kept").rglob("*") if each.is_file() and each.name[0] != "."]
    return {
        # which says where it is
        str(each.relative_to(folder)): b"" if each.name == WHATIF else each.read_bytes()
        for each in files
        if "_temporary" not in each.parts
    }


def _scenario(folder: Path) -> None:
    (folder / "scenario.yaml").write_text((SCENARIOS / "acks_and_unloads.yaml").read_text())


WORKS: dict[str, Work] = {
    "whatif": Work(
        _command("whatif", "IN/log.jsonl", "--profile", "2.x", "--partitions", "1", "--processes", "1", "--out", "IN/answer"), _answered,
    ),
    "whatif --checkpoint": Work(_whatif_begins, _whatif_began, _with_replay),
    "diff": Work(_command("diff", "IN/out", "IN/out", "--out", "IN/answer"), _answered, _with_replay),
    "advise": Work(_command("advise", "IN/log.jsonl", "--partitions", "1", "--processes", "1", "--out", "IN/answer"), _answered),
    "check": Work(_command("check", "IN/scenario.yaml", "--processes", "1", "--to", "IN/answer"), _answered, _scenario),
    "serve, first start": Work(_engine, _engine),
    "serve, restart": Work(_engine, _engine, lambda folder: _engine(folder, lambda engine: publish(engine, 1, 2))),
    "serve, checkpoints": Work(_often, lambda folder: _engine(folder)[0]),
    "serve --test-double": Work(_double, _is_doubles),
    "replay": Work(_replay, _replayed),
    "replay --overwrite": Work(_replay, _replayed, _with_replay),
    "snapshots of a log": Work(_timeline, _timeline),
    "write a log": Work(
        lambda folder: write_log(folder / "x.jsonl.gz", read_log(folder / "log.jsonl")),
        lambda folder: (digest(load(folder / "x.jsonl.gz").records), sorted(each.name for each in folder.iterdir())),
    ),
    "minimize": Work(_minimize, lambda folder: sorted((each.name, each.read_bytes()) for each in folder.iterdir() if each.name[0] != ".")),
    "state export": Work(_dump, _dumped, _with_replay),
    "state import and move": Work(_seed, _seeded, _with_ledgers),
    "quarantine resubmit": Work(_note, _noted, _with_replay),
    "micro-batches": Work(
        lambda folder: _batches(folder, first=16, last=17), _batched, lambda folder: _batches(folder, first=0, last=16),
    ),
    "demo": Work(lambda folder: make_log(folder / "d" / "log.jsonl"), lambda folder: sorted((each.name, each.stat().st_size) for each in (folder / "d").iterdir()), lambda folder: None),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
def test_killed_at_any_step(name: str, tmp_path: Path) -> None:
    work = WORKS[name]
    plain = tmp_path / "plain"
    plain.mkdir()
    work.prepare(plain)
    reached = _reached(lambda: work.do(plain))
    assert {each for each, of in WRITERS.items() if of == name} <= reached
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


@pytest.mark.parametrize("name", ["whatif", "diff", "advise", "check"])
def test_an_answer_that_fails_at_any_step_can_be_asked_for_again(name: str, tmp_path: Path) -> None:
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
        if not fails(lambda: work.do(folder), step):  # noqa: B023 (it is called at once)
            assert step > 3
            return
        work.do(folder)
        found = work.look(folder)
        # A draft whose removal failed stays, with a name that nobody takes for an answer.
        assert {each: found[each] for each in found if not each.endswith(".part")} == expected, step
    raise AssertionError("there are more steps")


# ---- what changes files, so that something new is noticed

_ONE = "one file that is whole or not there, by `new_file` or `Storage`"
_LOCK = "the lock of a folder, which means nothing without its process"
_APPENDS = "the end of a file, in one write; a line that was cut off is not one"
_KEPT = "a recording, of which every line is whole: the next one needs another folder"
_CACHE = "made under another name, or made again when it is read"
_TEMPORARY = "a folder that nobody looks for after its process"
_TRIED = "by a real query that is killed, in tests/chaos/ and tests/e2e/"
_MARKS = "what a page or a view shows, and nothing goes on from"

_CANARIES = "before each file that is published or deleted, in tests/canaries/test_beside.py"
_COMPACTED = "at each call of a compaction and between them, in tests/sinks/test_compaction_killed.py"

WRITERS = {
    "sinks/batch_files.py:prepare": "replay",
    "sinks/delta_log.py:_write": _TRIED,
    "sinks/delta_log.py:add_columns": _TRIED,
    "sinks/delta_log.py:compact": _COMPACTED,
    "sinks/delta_log.py:create": _TRIED,
    "sinks/entry_file.py:write_entries": "replay",
    "sinks/ledger_store.py:_seal": _ONE,
    "sinks/ledger_store.py:begin": "micro-batches",
    "sinks/ledger_store.py:take": "state import and move",
    "sinks/begun.py:_write": _TRIED,
    "sinks/ledger_store.py:write": "micro-batches",
    "sinks/lock.py:_lock": _LOCK,
    "sinks/lock.py:_locked": _LOCK,
    "sinks/lock.py:_remove_empty": _LOCK,
    "sinks/lock.py:_renew": _LOCK,
    "sinks/outputs.py:_draft": "write a log",
    "sinks/outputs.py:_publish": "minimize",
    "sinks/outputs.py:_remove_unlocked": _TEMPORARY,
    "sinks/outputs.py:filling": "whatif",
    "sinks/outputs.py:new_file": "write a log",
    "sinks/outputs.py:new_lines": "write a log",
    "sinks/quarantine.py:write": _TRIED,
    "sinks/folded.py:write": _CANARIES,
    "sinks/segments.py:_rewrite": "micro-batches",
    "sinks/segments.py:append": "micro-batches",
    "sinks/storage.py:_create": "micro-batches",
    "sinks/storage.py:_rename": "micro-batches",
    "sinks/storage.py:_tidy": "micro-batches",
    "sinks/storage.py:_upload": "by a store on S3, in tests/sinks/test_s3.py",
    "sinks/storage.py:delete": "state import and move",
    "sinks/storage.py:take": "state import and move",
    "sinks/storage.py:write_json": "state import and move",
    "sinks/tables.py:_compact": _COMPACTED,
    "sinks/tables.py:commit": _TRIED,
    "sinks/tables.py:_publish": "replay",
    "sinks/tables.py:begin": _TRIED,
    "sinks/tables.py:write": "replay",
    "streaming/answers/advise/needs.py:write": "advise",
    "streaming/answers/history/timeline.py:_claim": "snapshots of a log",
    "streaming/answers/history/timeline.py:_fold": "snapshots of a log",
    "streaming/answers/history/timeline.py:_locked": "snapshots of a log",
    "streaming/answers/history/timeline.py:_used": "snapshots of a log",
    "streaming/answers/history/timeline.py:_touch": _CACHE,
    "streaming/answers/history/timeline.py:forget": _CACHE,
    "streaming/answers/whatif/answer.py:_write_parted": "whatif",
    "streaming/answers/whatif/answer.py:put": "whatif",
    "streaming/answers/whatif/answer.py:write": "whatif",
    "streaming/answers/whatif/folder.py:note": "whatif --checkpoint",
    "streaming/answers/whatif/folder.py:as_begun": "whatif --checkpoint",
    "streaming/answers/whatif/folder.py:opened": _TEMPORARY,
    "streaming/answers/whatif/query.py:_begun": "whatif --checkpoint",
    "streaming/answers/whatif/query.py:_stage": "whatif --checkpoint",
    "streaming/answers/whatif/query.py:_write": _ONE,
    "streaming/answers/whatif/query.py:write": _ONE,
    "streaming/canaries/beside.py:_begin": _CANARIES,
    "streaming/canaries/beside.py:_earlier": _CANARIES,
    "streaming/canaries/files.py:_write": _CANARIES,
    "streaming/canaries/files.py:_write_rows": _CANARIES,
    "streaming/canaries/files.py:_write_table": _CANARIES,
    "streaming/canaries/files.py:commit": _CANARIES,
    "streaming/canaries/files.py:only": _CANARIES,
    "streaming/canaries/files.py:write": _CANARIES,
    "streaming/cli/advise.py:advise_command": "advise",
    "streaming/cli/compact.py:compact_command": _COMPACTED,
    "streaming/cli/check.py:_written": "check",
    "streaming/cli/check.py:check_command": "check",
    "streaming/cli/minimize.py:minimize_command": "a folder that may be empty",
    "streaming/cli/outputs.py:invoke": "whatif",
    "streaming/cli/record.py:record_command": _KEPT,
    "streaming/cli/state.py:export_command": _ONE,
    "streaming/cli/whatif.py:write_answer": "whatif",
    "streaming/answers/check/minimize.py:write": "minimize",
    "streaming/jobs/demo.py:make_log": "demo",
    "streaming/kafka/ingress.py:_note_written": _ONE,
    "streaming/kafka/ingress.py:ensure_dataframe": _ONE,
    "streaming/kafka/ingress.py:ensure_ingress": _ONE,
    "streaming/kafka/local.py:start": "two files, each whole; the next start makes both again",
    "streaming/log/files.py:append": "back to the end that the file had, if the disk is full",
    "streaming/log/files.py:appending": _APPENDS,
    "streaming/log/files.py:write_log": "write a log",
    "streaming/log/spool.py:_write": "a file without a name, which is gone with its process",
    "streaming/quality/data_docs.py:write": _MARKS,
    "streaming/quality/sink.py:_sample": _MARKS,
    "streaming/quality/sink.py:write": _MARKS,
    "streaming/quality/watch.py:look": _MARKS,
    "streaming/quarantine/store.py:write": "quarantine resubmit",
    "streaming/mirror/journal.py:keep": _ONE,
    "streaming/mirror/journal.py:_open": "a mirror whose log ends anywhere, in tests/mirror/test_mirror.py",
    "streaming/mirror/journal.py:_records": "a mirror whose log ends anywhere, in tests/mirror/test_mirror.py",
    "streaming/record/capture.py:capture": _ONE,
    "streaming/record/recording.py:__enter__": _APPENDS,
    "streaming/jobs/replay.py:_clear": "replay --overwrite",
    "streaming/jobs/replay.py:_translation": _TEMPORARY,
    "streaming/jobs/replay.py:fold": "by a replay with Spark, whose folder the next one clears, as `replay --overwrite` does",
    "sinks/links.py:__init__": _TEMPORARY,
    "sinks/rows.py:_write": "into a buffer in memory",
    "streaming/runtime/jars.py:_fetch_into": _CACHE,
    "streaming/runtime/java.py:make_shim": _CACHE,
    "streaming/state/seed.py:_publish": "state import and move",
    "streaming/state/seed.py:begin": "state import and move",
    "streaming/state/seed.py:finish": "state import and move",
    "streaming/server/data_folder.py:__enter__": "serve, first start",
    "streaming/server/data_folder.py:_checked": "by files that end anywhere, in tests/server/test_damage.py",
    "streaming/server/data_folder.py:_open": "serve, first start",
    "streaming/server/data_folder.py:_write": "serve, checkpoints",
    "streaming/server/data_folder.py:append": "serve, first start",
    "streaming/server/data_folder.py:cut": "in tests/server/, for the control of a test double",
    "streaming/server/data_folder.py:recover": "by files that end anywhere, in tests/server/test_damage.py",
    "streaming/server/start.py:ready": _ONE,
    "streaming/server/start.py:ready_file": "it removes that file; after a kill it stays, and the next start refuses it",
    "streaming/spark/session.py:_packed": _TEMPORARY,
    "streaming/spark/source.py:stage": _TEMPORARY,
    "streaming/spark/source.py:stage_batch": "whatif --checkpoint",
    "streaming/spark/source.py:write": "whatif --checkpoint",
    "sinks/replayed.py:write_replayed": "replay",
    "streaming/state/saved.py:write_states": "replay",
    "streaming/traces/importer.py:import_traces": "demo",
}
"""Every function that changes files, and the work that is killed in it, or why there is none."""

_CALLS = {
    "rename", "unlink", "rmdir", "rmtree", "mkdir", "hardlink_to", "symlink_to", "write_text", "write_bytes", "truncate", "ftruncate",
    "write_table", "publish", "write_json", "sweep", "new_file", "new_lines", "delete_file", "delete_dir_contents", "create_dir",
    "open_output_stream", "copy_file", "mkdtemp", "TemporaryDirectory", "copytree",
    "compact", "vacuum", "optimize", "create_write_transaction", "create_table_with_add_actions", "add_columns",
}  # fmt: skip
_FLAGS = {"O_CREAT", "O_RDWR", "O_WRONLY"}


def _changes_files(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    given = [*call.args, *(each.value for each in call.keywords)]
    if name == "replace":  # of a path, not of a text
        return len(given) == 1 and not call.keywords and isinstance(call.func, ast.Attribute)
    if name == "open":
        modes = {
            each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)
        }
        return any(set(each) <= set("wxabr+") and set(each) & set("wxa+") for each in modes) or bool(
            _FLAGS
            & {inner.attr for each in given for inner in ast.walk(each) if isinstance(inner, ast.Attribute)}
        )
    return name in _CALLS


def _writers() -> Iterator[str]:
    root = Path(__file__).parents[1]

    def visit(node: ast.AST, path: str, function: str) -> Iterator[str]:
        for each in ast.iter_child_nodes(node):
            inner = each.name if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(each, ast.Call) and _changes_files(each):
                yield f"{path}:{function}"
            yield from visit(each, path, inner)

    for path in [*root.glob("streaming/**/*.py"), *root.glob("sinks/**/*.py")]:
        yield from visit(ast.parse(path.read_text()), str(path.relative_to(root)), "")


_OTHERS = {
    "sinks/delta_log.py:_uri", "streaming/broker/persistent/compaction/compactor.py:trigger",
    "streaming/broker/persistent/compaction/compactor.py:check", "streaming/answers/whatif/side_by_side.py:publish", "streaming/broker/topics.py:stats", "streaming/broker/topics.py:take_steady_step", "streaming/broker/persistent/delivery_run.py:fold", "streaming/fold/record_fold.py:fold",
    "streaming/answers/whatif/clients/reactive.py:_record", "streaming/record/capture.py:_write", "streaming/runtime/signals.py:_leave", "streaming/state/spread.py:_unused",
    "streaming/answers/whatif/diff.py:_moved", "streaming/answers/whatif/folds.py:_table_bytes", "streaming/cli/errors.py:main",
}  # fmt: skip
"""Calls of other things that have such a name."""


def test_every_function_that_changes_files_is_killed() -> None:
    """A new one needs a line in `WRITERS`, and a work, unless there is a reason for none."""
    found = set(_writers())
    assert found - _OTHERS == set(WRITERS)
    assert set(WORKS) <= {*WRITERS.values(), "serve, restart", "serve --test-double", "state export", "diff"}


def _reached(call: Callable[[], Any]) -> set[str]:
    """The functions of ours that a call gets to, in all threads."""
    found, root = set[Any](), str(Path(__file__).parents[1]) + "/"

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code)

    before = sys.getprofile()
    threading.setprofile_all_threads(profile) if hasattr(
        threading, "setprofile_all_threads"
    ) else threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return {f"{each.co_filename.removeprefix(root)}:{each.co_name}" for each in found}
