"""A log at any command, and the debugger: each moment is as a fold of the log's beginning."""

from __future__ import annotations

import gc
import io
import json
import shutil
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from schemas.records import RECORD
from sinks.ledger_store import LedgerStore
from sinks.outputs import InTheWay
from sinks.storage import Damaged
from sinks.tables import read_table
from streaming.answers.explain import life
from streaming.answers.history import timeline as history
from streaming.answers.history.debugger import Breakpoint, Debugger
from streaming.answers.history.folders import Folders, NotFound
from streaming.answers.history.inspection import differences, topic_stats
from streaming.answers.history.timeline import Timeline
from streaming.broker.position import Position
from streaming.cli.app import app
from streaming.cli.debug import Shell
from streaming.fold.columns import Fold
from streaming.fold.records import StateRow
from streaming.jobs.replay import replay_in_process
from streaming.log.files import write_log
from streaming.log.partition import partition_log
from streaming.log.table import LOGICAL, log_table
from tests.answers.test_explain import QUIET, START, Record, T, ack, check, flow, policy, publish, subscribe
from tests.broker.random_lives import live
from tests.broker.recorded_lives import WITHOUT_PAYLOADS


def log_of(*records: Record, **settings: Any) -> pa.Table:
    """A log of records a second apart, the first of which sets `settings`."""
    all_ = [(None, {"command": "BROKER_CONFIG", "settings": QUIET | settings}), *records]
    return log_table(
        LOGICAL,
        timestamp=[START + 1000 * second for second in range(len(all_))],
        topic=[topic for topic, _ in all_],
        value=[json.dumps(command).encode() for _, command in all_],
    )


def random_log(seed: int, most: int = 400) -> pa.Table:
    """The beginning of a random life."""
    theme, number = WITHOUT_PAYLOADS[seed * 7 % len(WITHOUT_PAYLOADS)]
    log = live(theme, number).log[:most]
    return log_table(
        LOGICAL,
        timestamp=[each[0] for each in log],
        topic=[each[1] for each in log],
        value=[each[2] for each in log],
    )


def folded(log: pa.Table, commands: int, folder: Path) -> list[StateRow]:
    """The states after the first commands of a log, folded from the start at once."""
    timeline = Timeline(log, folder / "names")
    fold = Fold(LedgerStore(str(folder / "store")))
    records = [each for command in timeline.commands(0, commands) for each in command]
    for _ in fold.apply(pa.Table.from_pylist(records, RECORD)):
        pass
    return fold.states()


def same(found: list[StateRow], expected: list[StateRow]) -> bool:
    return sorted(found) == sorted(expected)


@pytest.mark.parametrize("seed", range(6))
def test_each_moment_is_as_the_fold_of_the_beginning(seed: int, tmp_path: Path) -> None:
    draw, log = Random(seed), random_log(seed)
    timeline = Timeline(log, tmp_path / "timeline", every=37)
    assert len(timeline) == len(log)
    for number in range(4):
        moment = draw.randrange(len(timeline) + 1)
        if number == 2:  # later, by another process
            timeline = Timeline(log, tmp_path / "timeline", every=37)
        assert same(timeline.states(moment), folded(log, moment, tmp_path / str(number)))
    assert len(list((tmp_path / "timeline" / "snapshots").iterdir())) <= len(log) // 37 + 1


def large_messages() -> pa.Table:
    """Every third message has 1 kB."""
    sent = [publish(number, payload="x" * 1000 * (number % 3 == 0)) for number in range(30)]
    return log_of(subscribe(), flow(20), *sent)


def test_large_commands_make_shorter_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BYTES", 3000)
    log = large_messages()
    timeline = Timeline(log, tmp_path / "timeline", every=10)
    for moment in (15, len(timeline)):
        assert same(timeline.states(moment), folded(log, moment, tmp_path / str(moment)))
        timeline = Timeline(log, tmp_path / "timeline", every=10)  # goes on
    stops = sorted(int(each.name) for each in (tmp_path / "timeline" / "snapshots").iterdir())
    for start, stop in pairwise([0, *stops]):
        sizes = [len(each["value"]) for command in timeline.commands(start, stop) for each in command]
        assert len(sizes) <= 10
        assert sum(sizes) <= 3000
    assert stops[-1] == len(timeline)
    assert len(stops) > len(timeline) / 10 + 1
    receipts = read_table(str(tmp_path / "timeline" / "tables"), "SEND_RECEIPT")
    assert sorted(receipts["sequence_id"].to_pylist()) == [*range(30)]


def test_a_command_that_is_larger_than_a_step_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BYTES", 1)
    timeline = Timeline(story(), tmp_path / "timeline")
    assert same(timeline.states(7), folded(story(), 7, tmp_path / "other"))
    assert len([*(tmp_path / "timeline" / "snapshots").iterdir()]) == 7


def test_snapshots_of_other_steps_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of earlier versions, which noted `every`."""
    Timeline(story(), tmp_path).states(7)
    claim = tmp_path / "timeline.json"
    noted = json.loads(claim.read_bytes())
    claim.write_text(json.dumps({"log": noted["log"], "every": 10_000, "encoding": noted["encoding"]}))
    with pytest.raises(InTheWay, match="or of another version of Magnetar"):
        Timeline(story(), tmp_path).states(7)


@pytest.mark.parametrize("seed", range(6))
def test_steps_back_are_as_the_fold_from_the_start(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BYTES", (1, 2000, history.BYTES)[seed % 3])
    draw, log = Random(seed), random_log(seed)
    timeline = Timeline(log, tmp_path / "timeline", every=29)
    debugger = Debugger(timeline)
    debugger.breakpoints = [Breakpoint("cause", "LEDGER_CLOSED"), Breakpoint("subscription", "s")]
    for number in range(12):
        before = debugger.moment
        match draw.randrange(5):
            case 0:
                debugger.goto(draw.randrange(len(timeline) + 1))
            case 1 if debugger.moment:
                debugger.back()
                assert debugger.moment == before - 1
            case 2:
                debugger.run()
            case 3:
                debugger.run_back()
            case _ if debugger.moment < len(timeline):
                debugger.forth()
                assert debugger.moment == before + 1
        if number % 3 == 2:
            assert same(debugger.states(), folded(log, debugger.moment, tmp_path / str(number)))
            if debugger.moment:
                earlier = timeline.states(debugger.moment - 1)
                found, expected = (
                    debugger.difference(),
                    differences(earlier, timeline.states(debugger.moment)),
                )
                assert found.to_pylist() == expected.to_pylist()


def story() -> pa.Table:
    """1:0 is acked, and 1:1 expires."""
    wait = (None, {"command": "TICK"})
    return log_of(
        subscribe(), flow(1), publish(0), publish(1), ack(0), (T, {"command": "CONNECTION_LOST", "connection": "c0"}),
        policy("messageTTL", 2), wait, wait, wait, check("messageExpiry"),
    )  # fmt: skip


def test_the_life_of_a_message_at_each_moment(tmp_path: Path) -> None:
    timeline = Timeline(story(), tmp_path, every=3)
    outcomes = {}
    for moment in range(6, len(timeline) + 1):
        folders = timeline.folders(moment)
        found = [life.by_position(folders, T, Position(1, entry)) for entry in (0, 1)]
        outcomes[moment] = [each.subscriptions[0].outcome for each in found]
    assert outcomes[6] == outcomes[7] == ["acked", "waiting"]
    assert outcomes[8] == outcomes[12] == ["acked", "expired"]
    assert life.by_position(timeline.folders(5), T, Position(1, 0)).subscriptions[0].outcome == "in flight"
    assert life.by_position(timeline.folders(4), T, Position(1, 1)).fate == "never seen"


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    """What looks like snapshots is what `replay` and `run` write, too."""
    log = random_log(1)
    Timeline(log, tmp_path / "own", every=50).states(200)
    for path in [each for each in (tmp_path / "own").rglob("*") if each.is_dir()]:
        foreign = path / "thesis.txt"
        foreign.write_text("mine")
        with pytest.raises(
            InTheWay,
            match=r"contains files that no timeline of a log wrote \(.*thesis.txt\)",
        ):
            Timeline(log, tmp_path / "own", every=50).states(60)
        assert foreign.read_text() == "mine"
        foreign.unlink()
    foreign = tmp_path / "own" / "snapshots" / "thesis"
    foreign.mkdir()
    with pytest.raises(InTheWay, match=r"contains folders that no timeline of a log wrote \(thesis\)"):
        Timeline(log, tmp_path / "own", every=50).states(60)
    foreign.rmdir()
    empty = foreign.with_name("000000000051")  # which it would go on from
    empty.mkdir()
    with pytest.raises(Damaged, match=r"000000000051/states.parquet \(broker states\) is missing"):
        Timeline(log, tmp_path / "own", every=50).states(60)
    empty.rmdir()
    Timeline(log, tmp_path / "own", every=50).states(60)
    for names in (["store", "tables"], ["store"], ["snapshots"]):
        other = tmp_path / "-".join(names)
        for name in names:
            shutil.copytree(tmp_path / "own" / name, other / name)
        before = {each: each.read_bytes() for each in other.rglob("*") if each.is_file()}
        with pytest.raises(InTheWay, match="choose another folder"):
            Timeline(log, other).states(20)
        assert {each: each.read_bytes() for each in before} == before


def test_at_the_end_it_is_as_a_replay(tmp_path: Path) -> None:
    replay_in_process(story(), tmp_path / "out")
    timeline = Timeline(story(), tmp_path / "timeline", every=3)
    one, two = Folders.of(tmp_path / "out"), timeline.folders(len(timeline))
    assert same(one.states(), two.states())
    assert life.by_position(one, T, Position(1, 1)).events == life.by_position(two, T, Position(1, 1)).events


def test_moments(tmp_path: Path) -> None:
    timeline = Timeline(story(), tmp_path)
    assert (len(timeline), timeline.moment("0"), timeline.moment("12")) == (12, 0, 12)
    first = timeline.command(1)
    assert (first.topic, first.timestamp, len(first.records)) == (None, START, 4)
    second = timeline.command(2)
    assert (second.topic, len(second.records)) == (T, 1)
    assert [timeline.moment(str(each)) for each in first.records] == [1] * 4
    assert timeline.moment(str(second.records[0])) == 2
    assert timeline.moment("2026-01-01 00:00:03.500") == 4
    assert timeline.moment("2026-01-01T01:00:03+01:00") == 4
    assert (timeline.moment("2025-12-31"), timeline.moment("2027-01-01")) == (0, 12)
    for wrong, text in (
        ("13", "12 commands"),
        ("9:9", "no record 9:9"),
        ("soon", "expected a number of commands"),
        ("9" * 5000, "9: the log has 12 commands"),
    ):
        with pytest.raises(NotFound, match=text):
            timeline.moment(wrong)


def test_moments_that_are_not_there(tmp_path: Path) -> None:
    """They leave nothing behind: the next question is answered."""
    timeline = Timeline(story(), tmp_path)
    ask: list[Any] = [timeline.states, timeline.snapshot, timeline.folders]
    for question in ask:
        for wrong in (13, 100, -1):
            with pytest.raises(NotFound, match=f"{wrong}: the log has 12 commands"):
                question(wrong)
        for odd in ("3", None, 2.0, True):
            with pytest.raises(TypeError, match="expected a moment, a number of commands such as 4"):
                question(odd)
        question(12)
    assert [each.name for each in tmp_path.rglob("new")] == []


def test_a_damaged_snapshot_is_made_again_when_its_folder_is_gone(tmp_path: Path) -> None:
    log = partition_log(story(), 1)
    Timeline(log, tmp_path, every=5).states(12)
    for each in tmp_path.glob("snapshots/*/states.parquet"):
        each.write_bytes(each.read_bytes()[:-20])
    with pytest.raises(
        Damaged, match=f"states.parquet is damaged. Delete the folder {tmp_path}: it is made again"
    ):
        Timeline(log, tmp_path, every=5).states(12)


def test_a_log_with_partitions_goes_by_time(tmp_path: Path) -> None:
    log = partition_log(story(), 2)
    by_partition = log.sort_by([("partition", "ascending"), ("offset", "ascending")])
    timeline = Timeline(by_partition, tmp_path)
    assert len(timeline) == 12
    assert [timeline.command(number).timestamp for number in range(1, 13)] == [
        START + 1000 * second for second in range(12)
    ]


def test_breakpoints(tmp_path: Path) -> None:
    debugger = Debugger(Timeline(story(), tmp_path, every=3))

    def stops(on: Any, value: str) -> list[int]:
        debugger.breakpoints, found = [Breakpoint(on, value)], []
        debugger.goto(0)
        while debugger.run() is not None:
            found.append(debugger.moment)
        back = []
        while debugger.run_back() is not None:
            back.append(debugger.moment)
        assert debugger.moment == 0
        assert back == found[::-1]
        return found

    assert stops("topic", "a/b/t") == [2, 3, 4, 5, 6, 7, 8]
    assert stops("message", "1:0") == [4, 6]
    assert stops("message", "1:1") == [5, 8]
    assert stops("subscription", "s") == [2, 3, 4, 6, 8]
    assert (
        stops("cause", "EXPIRED") == stops("cause", "message TTL") == stops("cause", "messageTTL 2 s") == [8]
    )
    assert stops("cause", "nothing") == []
    with pytest.raises(IndexError):
        debugger.back()
    debugger.goto(12)
    with pytest.raises(IndexError):
        debugger.forth()
    assert debugger.command is not None


def test_going_on_reads_the_states_of_each_part_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each command: there may be very many topics."""
    timeline = Timeline(random_log(1), tmp_path, every=10)
    timeline.states(len(timeline))
    debugger, reads = Debugger(timeline), list[int]()
    states = Timeline._states

    def noted(self: Timeline, moment: int) -> list[StateRow]:
        reads.append(moment)
        return states(self, moment)

    monkeypatch.setattr(Timeline, "_states", noted)
    assert debugger.run() is None
    assert debugger.moment == len(timeline)
    debugger.goto(0)
    for _ in range(len(timeline)):
        debugger.forth()
    debugger.breakpoints = [Breakpoint("topic", "nowhere")]
    assert debugger.run_back() is None
    parts = -(-len(timeline) // 10)
    assert 2 * parts < len(reads) <= 4 * parts + 4


def test_rows_of_calls_without_an_answer_are_shown(tmp_path: Path) -> None:
    timeline = Timeline(log_of(policy("messageTTL", 2)), tmp_path)
    shell = Shell(timeline, Debugger(timeline))
    shell.stdout = io.StringIO()
    for line in ("step 2", "rows"):
        assert not shell.onecmd(line)
    said = shell.stdout.getvalue()
    assert '"status": 204' in said
    assert "UNSET" not in said


def test_the_debugger_in_a_terminal(tmp_path: Path) -> None:
    timeline = Timeline(story(), tmp_path)
    shell = Shell(timeline, Debugger(timeline))
    shell.stdout = io.StringIO()

    def say(line: str) -> str:
        shell.stdout = io.StringIO()
        assert not shell.onecmd(line)
        return str(shell.stdout.getvalue())

    assert say("show") == "before the first command\n"
    text = say("step 2")
    assert "2026-01-01 00:00:01.000  persistent://a/b/t  {" in text
    assert "  → SUBSCRIPTION_EVENT subscription s, cause created" in text
    assert f"  + topics {T}: partition " in text
    assert shell.prompt == "(2/12) "
    say("")
    assert shell.prompt == "(4/12) "
    say("goto 4")
    assert "consumers persistent://a/b/t s c0 0: permits 1 → 0" in say("show")
    assert "MESSAGE in partition" in (rows := say("rows"))
    assert "\\n" not in rows
    assert json.loads(say("stats a/b/t"))["topic"] == T
    assert "there is no topic x" in say("stats x")
    assert (say("break cause EXPIRED"), say("break")) == ("", "1  cause EXPIRED\n")
    assert say("continue").startswith("breakpoint: cause EXPIRED\n")
    assert say("continue").startswith("the end of the log\n")
    assert say("reverse").startswith("breakpoint: cause EXPIRED\n")
    assert say("reverse").startswith("the beginning of the log\n")
    assert say("delete 9") == "there is 1 breakpoint\n"
    assert (say("delete 1"), say("break"), say("delete 1")) == ("", "", "there are 0 breakpoints\n")
    for wrong, complaint in (
        ("back", "the log has 12 commands, and this is after 0"), ("step x", "expected a number of commands"),
        ("break topic", "expected topic, message"), ("break message 1", "expected LEDGER:ENTRY"),
        (f"break message {'9' * 5000}:1", "expected LEDGER:ENTRY"), ("break message ٣:٤", "expected LEDGER:ENTRY"), ("goto soon", "expected a number"),
        (f"step {'9' * 5000}", "expected a number of commands"), (f"delete {'9' * 5000}", "there are 0 breakpoints"),
        ("fly away", "'fly' is not a command"),
    ):  # fmt: skip
        assert complaint in say(wrong)
    assert "back [N]" in say("help back")
    assert shell.onecmd("quit")


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, arguments)], input="step\nquit\n")
    return done.exit_code, done.output


def test_the_commands_on_a_folder_with_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `magnetar mirror` and a server write it: several files, one after the other."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log, folder = tmp_path / "log.jsonl", tmp_path / "folder"
    write_log(log, story())
    folder.mkdir()
    lines = log.read_text().splitlines(keepends=True)
    (folder / "1.jsonl").write_text("".join(lines[:7]))
    (folder / "2.jsonl").write_text("".join(lines[7:]))
    for question in (
        ["explain", log, T, "1:1"],
        ["inspect", log],
        ["inspect", log, T],
        ["peek", log, T, "s"],
    ):
        code, text = run(*question)
        assert run(*(folder if each == log else each for each in question)) == (code, text)
        assert code == 0
    code, text = run("inspect", folder, "--batch", "3")
    assert (code, "a log has no micro-batches" in text) == (2, True)


def test_the_commands_on_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = tmp_path / "log.jsonl"
    write_log(log, story())
    assert "s  expired: " in run("explain", log, T, "1:1")[1]
    assert "s  in flight" in run("explain", log, T, "1:0", "--at", "5")[1]
    code, text = run("inspect", log, "a/b/t", "--at", "2026-01-01T00:00:04")
    assert (code, json.loads(text)["clock"]) == (0, START + 4000)
    assert json.loads(text) == topic_stats(Timeline(story(), tmp_path / "other").states(5), T)
    code, text = run("inspect", log, "--diff", "5", "6", "--json")
    assert {
        "view": "subscriptions",
        "of": f"{T} s",
        "column": "acked",
        "before": "0",
        "after": "1",
    } in json.loads(text)["differences"]
    code, text = run("peek", log, T, "s", "--at", "5", "--json", "--snapshots", tmp_path / "mine")
    assert [each["position"] for each in json.loads(text)] == ["1:0", "1:1"]
    assert (tmp_path / "mine" / "snapshots").is_dir()
    code, text = run("debug", log, "--at", "1")
    assert (code, "12 commands." in text, "(2/12)" in text) == (0, True, True)
    for number in range(9):
        gc.collect()  # a timeline that this process still has would be kept
        write_log(tmp_path / f"{number}.jsonl", story().slice(0, 12 - number))
        run("inspect", tmp_path / f"{number}.jsonl", "--json", "--at", "1")
    assert len(list((tmp_path / "cache" / "magnetar" / "timelines").iterdir())) == 8
