"""Ten made bugs in long logs: the smallest log still shows each, and no single command of it can go."""

from __future__ import annotations

import ast
import cProfile
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from streaming.answers.check import minimize as subject
from streaming.answers.check.minimize import (
    Differs,
    FoldedLog,
    Function,
    Keep,
    KeepError,
    LogCommand,
    NothingSmaller,
    commands_of,
    keep_of,
    minimize,
    pytest_file,
    shown,
)
from streaming.answers.check.reduction import reduced
from streaming.cli.app import app
from streaming.log.files import read_lines
from tests.e2e.processes import no_nohup

TOPIC = "persistent://public/default/t"
START = 1_767_225_600_000
Line = dict[str, Any]


def config(**settings: Any) -> Line:
    return {"command": "BROKER_CONFIG", "settings": {"messageExpiryCheckIntervalInMinutes": 0, **settings}}


def subscribe(name: str, type_: str = "Shared", subscription: str = "s", **more: Any) -> Line:
    return {"topic": TOPIC, "command": "SUBSCRIBE", "connection": name, "subscription": subscription, "subType": type_,
            "consumer_id": 0, "request_id": 1, "consumer_name": name, "initialPosition": "Earliest", **more}  # fmt: skip


def flow(name: str, permits: int = 10) -> Line:
    return {
        "topic": TOPIC,
        "command": "FLOW",
        "connection": name,
        "consumer_id": 0,
        "messagePermits": permits,
    }


def ack(name: str, *entries: int, **more: Any) -> Line:
    ids = [{"ledgerId": 1, "entryId": entry} for entry in entries]
    return {"topic": TOPIC, "command": "ACK", "connection": name, "consumer_id": 0, "ack_type": "Individual",
            "message_id": ids, **more}  # fmt: skip


def close(name: str) -> Line:
    return {
        "topic": TOPIC,
        "command": "CLOSE_CONSUMER",
        "connection": name,
        "consumer_id": 0,
        "request_id": 9,
    }


def publish(number: int, producer: str = "p", **more: Any) -> Line:
    return {"topic": TOPIC, "producer": producer, "sequence_id": number, **more}


def admin(method: str, call: str, body: Any = None) -> Line:
    path = f"/persistent/public/default/t{call}"
    return {
        "topic": TOPIC,
        "command": "ADMIN",
        "connection": "admin",
        "method": method,
        "path": path,
        "body": body,
    }


def noise(seed: int) -> list[Line]:
    """Other clients, on the same topic and on another one, that have nothing to do with the bug."""
    dice = Random(seed)
    found: list[Line] = []
    for number in range(6):
        name = f"noise-{number}"
        other = {"topic": f"{TOPIC}-other"} if number % 2 else {}
        found += [
            subscribe(name, "Exclusive", f"n{number}") | other,
            flow(name, dice.randint(1, 9)) | other,
            {"topic": f"{TOPIC}-other", "command": "PRODUCER", "connection": name, "producer_id": 7, "request_id": 3},
            publish(number, f"other-{number}") | {"topic": f"{TOPIC}-other"},
            {"topic": f"{TOPIC}-other", "command": "SEND", "connection": name, "producer_id": 7, "sequence_id": 0,
             "metadata": {"producer_name": name, "sequence_id": 0, "publish_time": START}},
        ]  # fmt: skip
    return found


def among(bug: list[Line], seed: int) -> list[bytes]:
    """The log of a bug with noise in between. `wait`: how many seconds pass before a command."""
    dice, others, found = Random(seed), noise(seed), list[Line]()
    bug = [dict(each) for each in bug]
    while bug or others:
        found.append(others.pop(0) if others and (not bug or dice.random() < 0.6) else bug.pop(0))
    now, lines = START, []
    for each in found:
        now += int(each.pop("wait", 0)) * 1000
        lines.append(json.dumps({"timestamp": now, **each}).encode())
    return lines


EIGHT = [publish(number) for number in range(8)]
KEYED = [publish(number, key="ab"[number % 2]) for number in range(8)]
EXPIRE: list[Line] = [
    admin("POST", "/messageTTL", 60),
    {"command": "RUN_CHECK", "check": "messageExpiry", "wait": 100},
]
QUIRK = [subscribe("a", "Key_Shared"), subscribe("b", "Key_Shared"), flow("b", 100), *KEYED, close("a")]


def closes_producer(outputs: FoldedLog) -> bool:
    """A quota closes a producer."""
    return any(type(effect).__name__ == "CloseProducer" for effect in outputs.effects)


def is_duplicate(outputs: FoldedLog) -> bool:
    """Deduplication refuses a message."""
    return any(getattr(effect, "ledger_id", 0) == -1 for effect in outputs.effects)


SEND: list[Line] = [
    {"topic": TOPIC, "command": "PRODUCER", "connection": "p", "producer_id": 0, "request_id": 1, "producer_name": "p"},
    *({"topic": TOPIC, "command": "SEND", "connection": "p", "producer_id": 0, "sequence_id": number,
       "metadata": {"producer_name": "p", "sequence_id": number, "publish_time": START}} for number in (0, 1, 1, 2)),
]  # fmt: skip

BUGS: dict[str, tuple[list[Line], str | Callable[[FoldedLog], object]]] = {
    "no permits": ([*EIGHT, subscribe("a"), flow("a", 3), ack("a", 0, 1)], "stuck(t, s)"),
    "too many unacked messages": (
        [config(maxUnackedMessagesPerConsumer=2), *EIGHT, subscribe("a"), flow("a"), ack("a", 0)], "stuck(t, s)"
    ),
    "nothing triggers a read": ([*QUIRK], "stuck(t, s)"),
    "the same, as a violation": ([*QUIRK], "violates(starved)"),
    "expired": ([config(), *EIGHT, subscribe("a"), flow("a", 5), ack("a", 0, 1, 4), *EXPIRE], "lost(t, 1:3)"),
    "skipped": ([*EIGHT, subscribe("a"), admin("POST", "/subscription/s/skip/3")], "lost(t, 1:2)"),
    "cleared": ([*EIGHT, subscribe("a"), flow("a", 2), admin("POST", "/subscription/s/skip_all")], "lost(t, 1:7)"),
    "acks that are not stored": (
        [config(managedLedgerMaxUnackedRangesToPersist=0), *EIGHT, subscribe("a"), flow("a"), ack("a", 1, 3, 5),
         admin("PUT", "/unload"), subscribe("c"), flow("c")], "violates(redelivered)"
    ),
    "deduplication": ([admin("POST", "/deduplicationEnabled", True), *SEND], is_duplicate),
    "another profile": ([*EIGHT, *(each for name in "bca" for each in (subscribe(name, "Failover"), flow(name)))],
                        "differs(2.x, 4.x)"),
}  # fmt: skip


def kept(lines: list[bytes], keep: str | Callable[[FoldedLog], object]) -> Keep:
    return keep_of(keep, read_lines(lines, "the log")) if isinstance(keep, str) else Function(keep)


@pytest.mark.parametrize("bug", BUGS)
def test_the_smallest_log_shows_the_bug_and_no_command_can_go(bug: str) -> None:
    story, keep = BUGS[bug]
    lines = among(story, seed=len(bug))
    log = read_lines(lines, "the log")
    found = minimize(log, kept(lines, keep))
    assert found.before == len(lines)
    assert found.after == len(found.lines) <= len(story)
    smallest = [line.encode() for line in found.lines]
    again = kept(smallest, keep if callable(keep) else found.keep)
    commands = commands_of(read_lines(smallest, "the result"))

    def shape(left: list[LogCommand]) -> object:
        return again.shape(subject._folding(subject._valid(left)))

    wanted = shape(commands)
    assert wanted == kept(lines, keep).shape(subject._folding(commands_of(log)))
    for number in range(len(commands)):
        assert shape(commands[:number] + commands[number + 1 :]) != wanted, found.lines[number]


@pytest.mark.parametrize("settings", [{"nope": 1}, {"maxUnackedMessagesPerConsumer": "x"}])
def test_a_configuration_that_the_broker_refuses_is_no_difference(settings: Line) -> None:
    """The profile that each side has is not a part of the log: a row on the refused record must not have it."""
    refused = {"command": "BROKER_CONFIG", "settings": settings}
    with pytest.raises(KeepError, match="does not show"):
        minimize(read_lines(among([refused, *EIGHT], 1), "the log"), Differs("2.x", "4.x"))
    story, keep = BUGS["another profile"]
    found = minimize(read_lines(among([refused, *story], 1), "the log"), kept([], str(keep)))
    assert shown(found.keep, found.lines)
    assert not any("BROKER_CONFIG" in line for line in found.lines)


def test_positions_follow_the_entries_that_they_name() -> None:
    story, keep = BUGS["expired"]
    found = minimize(read_lines(among(story, 3), "the log"), kept(among(story, 3), keep))
    assert found.keep == f"lost({TOPIC}, 1:0)"
    assert shown(found.keep, found.lines)


HOSTILE = [
    '"""+str(exec(bytes.fromhex("{}")))+"""y'.format(b"raise SystemExit".hex()),
    '"""', "\'\'\'", 'x"', "x'", "x\\", '"x"', "a, b", "one\u2028two", "one\u0085two", "a\x1cb", "a\rb", "{x} %s", "\u202e", "é😀", ")",
]  # fmt: skip
TEXTS = st.text(min_size=1, max_size=20) | st.sampled_from(HOSTILE)


@given(TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)
@settings(max_examples=60, deadline=None)
@example(*HOSTILE[:5])
@example(*HOSTILE[5:10])
@example(*HOSTILE[10:15])
def test_nothing_of_a_log_is_code_in_its_test(
    topic: str, subscription: str, payload: str, key: str, producer: str
) -> None:
    named = {"topic": f"{TOPIC}/{topic}"}
    story = [
        subscribe("a", subscription=subscription) | named,
        publish(0, producer, payload=payload, key=key) | named,
    ]
    log = read_lines([json.dumps({"timestamp": START, **each}).encode() for each in story], "the log")
    keep = subject.Stuck(named["topic"], subscription)
    if keep.shape(subject._folding(commands_of(log))) is None:
        return  # the gate refuses a name
    assert keep_of(keep.text(subject._folding(commands_of(log))), log) == keep
    assert_is_plain(pytest_file(minimize(log, keep.text(subject._folding(commands_of(log))))))


def assert_is_plain(source: str) -> None:
    """The file of a test is a function of literals and one call, and passes."""
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    match function.body:
        case [
            ast.Expr(ast.Constant(str())),
            ast.ImportFrom("streaming.answers.check.minimize", [ast.alias("shown", None)]),
            ast.Assign([ast.Name("log")], ast.List(lines)),
            ast.Assert(ast.Call(ast.Name("shown"), [ast.Constant(str()), ast.Name("log")], [])),
        ]:
            assert all(isinstance(each, ast.Constant) for each in lines)
        case _:
            pytest.fail(ast.unparse(function))
    loaded: dict[str, Any] = {}
    exec(source, loaded)
    loaded["test_the_log_shows_it"]()


@given(st.lists(TEXTS | st.text(alphabet="ab,'\"\\ \n"), min_size=1, max_size=3))
@settings(deadline=None)
def test_any_name_can_be_an_argument(names: list[str]) -> None:
    assert subject._arguments(", ".join(map(subject._argument, names))) == names


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("t, s", ["t", "s"]), (" 't' ,\"s\"", ["t", "s"]), ('x", s', ['x"', "s"]), ("'x\"', s", ['x"', "s"]),
        ('"a, b", "c\\"d"', ["a, b", 'c"d']), ("", [""]), ("t,", ["t", ""]),
        ('"\udce9", s', ['"\udce9"', "s"]),  # a byte of the command line that is no UTF-8
    ],
)  # fmt: skip
def test_arguments_as_users_write_them(text: str, arguments: list[str]) -> None:
    assert subject._arguments(text) == arguments


DUPLICATE = "any(getattr(each, 'ledger_id', 0) == -1 for each in outputs.effects)"


@pytest.mark.parametrize(
    "source",
    [
        f"def keep(outputs):\n    return {DUPLICATE}\n",
        f'"""About it."""\n\nfrom __future__ import annotations\n\ndef keep(outputs: Any):\n    return {DUPLICATE}',
        f"LOG = log = shown_by = [-1]\n\ndef keep(outputs):\n    return {DUPLICATE.replace('-1', 'LOG[0]')}\n",
        f"# -*- coding: latin-1 -*-\nkeep = lambda outputs: {DUPLICATE} # é",
    ],
    ids=["plain", "from the future", "the same names", "another encoding"],
)
def test_the_command_writes_a_log_and_a_test_that_passes(source: str, tmp_path: Path) -> None:
    story = [
        admin("POST", "/deduplicationEnabled", True),
        *(each | {"payload": "one\u2028two\u0085\x1c é"} for each in SEND),
    ]
    del story[1]["payload"]
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(among(story, 1)))
    keep = tmp_path / "duplicate.py"
    keep.write_text(source)
    out = tmp_path / "small.jsonl"
    arguments = ["minimize", str(tmp_path / "log.jsonl"), "--keep", str(keep), "--out", str(out), "--json"]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    expected = minimize(read_lines(among(story, 1), "the log"), Function(is_duplicate))
    assert any("\u2028" in line for line in expected.lines)
    assert json.loads(ran.stdout)["lines"] == expected.lines
    assert out.read_text(encoding="utf-8").split("\n")[:-1] == expected.lines
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(tmp_path / "test_small.py"),
    ]
    tested = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert tested.returncode == 0, tested.stdout


def test_a_fold_costs_what_happens_and_not_what_the_backlog_has() -> None:
    def calls(count: int) -> int:
        subscribe = {"command": "SUBSCRIBE", "connection": "c", "consumer_id": 1, "request_id": 1, "subscription": "s"}  # fmt: skip
        sent = ({"producer": "p", "sequence_id": number, "payload": "x"} for number in range(count))
        lines = [json.dumps({"timestamp": 1, "topic": TOPIC} | each).encode() for each in (subscribe, *sent)]
        commands, profile = commands_of(read_lines(lines, "the log")), cProfile.Profile()
        profile.runcall(subject._fold, commands)
        return sum(each.callcount for each in profile.getstats())

    assert calls(800) < 5 * calls(200)


def test_one_that_is_stopped_gives_the_smallest_log_so_far() -> None:
    story, keep = BUGS["expired"]
    lines = among(story, 1)
    log, sizes = read_lines(lines, "the log"), list[int]()
    whole = minimize(log, kept(lines, keep))
    for moment in (0, len(lines), 200, 500, 1_000, 2_000, 1 << 30):
        asked = 0

        def stop(moment: int = moment) -> bool:
            nonlocal asked
            asked += 1
            return asked > moment

        try:
            found = minimize(log, kept(lines, keep), stop=stop)
        except NothingSmaller:
            assert not sizes
            continue
        assert shown(found.keep, found.lines)
        assert found.complete == (found == whole)
        sizes.append(found.after)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1] == whole.after


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", [1, 12])
def test_a_signal_leaves_the_smallest_log_so_far(after: int, number: signal.Signals, tmp_path: Path) -> None:
    story, _ = BUGS["deduplication"]
    lines = among(story, 1)
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(lines))
    keep = tmp_path / "duplicate.py"
    keep.write_text(
        f"import os\ncalls = 0\ndef keep(outputs):\n    global calls\n    calls += 1\n"
        f"    if calls == {after}:\n        os.kill(os.getpid(), {int(number)})\n"
        "    return any(getattr(each, 'ledger_id', 0) == -1 for each in outputs.effects)\n"
    )
    out = tmp_path / "small.jsonl"
    command = [
        sys.executable,
        "-c",
        "from streaming.cli.app import app; app()",
        "minimize",
        str(tmp_path / "log.jsonl"),
        "--keep",
        str(keep),
        "--out",
        str(out),
    ]
    ran = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=no_nohup,
        cwd=Path(__file__).parents[2],
    )
    assert ran.returncode == 128 + number, ran.stderr
    if after == 1:
        assert "nothing is written" in ran.stderr
        assert not out.exists()
        return
    assert "may not be the smallest" in ran.stdout
    left = out.read_bytes().splitlines()
    assert len(left) < len(lines)
    assert is_duplicate(subject._fold(commands_of(read_lines(left, "it"))))


@pytest.mark.parametrize(
    "keep", ["stuck(t)", "lost(t, 1)", "lost(t, 9:9)", "differs(1.x, 2.x)", "violates(laws)", "x"]
)
def test_what_is_not_understood(keep: str) -> None:
    with pytest.raises(KeepError):
        keep_of(keep, read_lines(among(EIGHT, 1), "the log"))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("keep = 1\n", "has no function `keep`"),
        ("def keep(outputs):\n    return 1 / 0\n", "keep failed in line 2: ZeroDivisionError"),
        ("def keep(outputs):\n    raise SystemExit(0)\n", "keep failed in line 2: SystemExit: 0"),
        (None, "keep.py: No such file or directory"),
    ],
)
def test_a_file_that_fails_is_told(source: str | None, says: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(among(EIGHT, 1)))
    if source is not None:
        (tmp_path / "keep.py").write_text(source)
    arguments = ["--keep", str(tmp_path / "keep.py"), "--out", str(tmp_path / "small.jsonl")]
    ran = CliRunner().invoke(app, ["minimize", str(tmp_path / "log.jsonl"), *arguments])
    assert ran.exit_code == 2
    assert "Traceback" not in ran.output
    assert says in " ".join(ran.output.split())
    assert "Errno" not in ran.output
    assert not (tmp_path / "small.jsonl").exists()


def test_what_the_log_does_not_show() -> None:
    lines = among([*EIGHT], 1)
    with pytest.raises(KeepError, match="does not show"):
        minimize(read_lines(lines, "the log"), keep_of("stuck(t, s)", read_lines(lines, "the log")))


def test_nothing_is_stuck_on_a_topic_that_stores_nothing() -> None:
    topic = f"non-{TOPIC}"
    log = read_lines(among([subscribe("a") | {"topic": topic}], 1), "the log")
    with pytest.raises(KeepError, match="does not show"):
        minimize(log, keep_of(f"stuck({topic}, s)", log))


def test_reduction_gives_a_part_from_which_no_item_can_go() -> None:
    for seed in range(30):
        dice = Random(seed)
        needed = set(dice.sample(range(40), dice.randint(0, 6)))

        def shows(left: list[int], needed: set[int] = needed) -> list[int] | None:
            return left if needed <= {*left} else None

        assert set(reduced(range(40), shows)) == needed
    assert reduced(range(9), lambda left: None, most=3) == [*range(9)]
    assert reduced(range(9), lambda left: [5] if 5 in left else None) == [5]
