"""Every answer about a topic that a mirror sampled says so, and no other answer does."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from streaming.answers.sampled import WHAT_IT_MEANS, sampled_note
from streaming.broker.persistent.topic import ENTRIES, SHADOW_SOURCE
from streaming.cli.app import COMMANDS, app
from tests.mirror.kit import entries_of_mirror

pytestmark = pytest.mark.feature("K4")

T = "persistent://public/default/t"
PATH = "/persistent/public/default/t"
ANSWERS = [
    ["explain", "LOG", "t"], ["explain", "LOG", "t", "--quota"], ["explain", "LOG", "t", "--retention"],
    ["explain", "LOG", "t", "--ttl"], ["explain", "LOG", "t", "--inactive"], ["explain", "LOG", "t", "--deduplication"],
    ["explain", "LOG", "t", "7:1"], ["explain", "LOG", "t", "--producer", "p", "--sequence-id", "1"], ["explain", "LOG"],
    ["explain", "LOG", "t", "--subscription", "s"], ["explain", "LOG", "t", "--producers"],
    ["inspect", "LOG"], ["inspect", "LOG", "t"], ["inspect", "LOG", "--diff", "0", "3"], ["debug", "LOG", "--at", "5"],
    ["peek", "LOG", "t", "s"], ["whatif", "LOG", "--policies", "ttl.yaml"], ["advise", "LOG"], ["diff", "OUT", "OUT"],
]  # fmt: skip

SILENT = {
    "demo": "makes its own log", "profiles": "has no log", "check": "its scenario has no mirror",
    "replay": "writes rows; the answers about them say it", "minimize": "writes a log; the answers about it say it",
}  # fmt: skip
"""What says nothing, of the commands that ask about logs, and why."""

NO_QUESTIONS = {
    "--checkpoint", "--at", "--snapshots", "--json", "--sequence-id", "--admin-url", "--token-file", "--tls-ca", "--stats",
    "--internal-stats", "--policies", "--help",
}  # fmt: skip
"""Options of `explain` that ask nothing else of a log."""


def test_no_answer_is_left_out() -> None:
    """A new command that asks about logs, and a new question of `explain`, must be in one of the lists."""
    asking = COMMANDS["Ask about a log or a query"]
    assert {each[0] for each in ANSWERS}.isdisjoint(SILENT)
    assert {*asking} == {each[0] for each in ANSWERS} | {*SILENT}
    explain = get_command(app).commands["explain"]  # type: ignore[attr-defined]
    options = {option for each in explain.params for option in each.opts if option.startswith("--")}
    asked = {word for each in ANSWERS if each[0] == "explain" for word in each if word.startswith("--")}
    assert options == asked - {"--sequence-id"} | NO_QUESTIONS - {"--help"}


@pytest.fixture(params=[True, False], ids=["sampled", "read"])
def is_sampled(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.chdir(tmp_path)
    properties = {SHADOW_SOURCE: T} | ({ENTRIES: "sampled"} if request.param else {})
    records: list[dict[str, object]] = [
        {"command": "ADMIN", "method": "PUT", "path": PATH, "body": properties},
        {"command": "ADMIN", "method": "PUT", "path": f"{PATH}/subscription/s"},
    ]
    records += entries_of_mirror(7, 3)
    lines = [json.dumps({"timestamp": 1000 * at, "topic": T, **each}) for at, each in enumerate(records)]
    Path("LOG.jsonl").write_text("\n".join(lines))
    Path("ttl.yaml").write_text("namespaces: {public/default: {messageTTL: 1}}")
    ran = CliRunner().invoke(app, ["replay", "LOG.jsonl", "--out", "OUT", "--no-spark"])
    assert ran.exit_code == 0, ran.output
    return bool(request.param)


@pytest.mark.parametrize("answer", ANSWERS, ids=" ".join)
def test_every_answer_says_so(answer: list[str], is_sampled: bool) -> None:
    words = ["LOG.jsonl" if each == "LOG" else each for each in answer]
    ran = CliRunner().invoke(app, words, input="back\nstats t\n" if answer[0] == "debug" else None)
    assert ran.exit_code == 0, ran.output
    assert ran.output.count(f"Sampled: {T}") == is_sampled
    if answer[0] == "debug":
        return
    ran = CliRunner().invoke(app, [*words, "--json"])
    found = json.loads(ran.stdout)
    if (
        answer[0] == "peek" or answer == ["inspect", "LOG"] or "--diff" in answer
    ):  # their rows are those of tables
        assert (f"Sampled: {T}" in ran.stderr) is is_sampled
    elif answer[0] == "inspect":
        assert found["sampled"] is is_sampled
    else:
        said = [each["sampled"] for each in (found if isinstance(found, list) else [found])]
        assert said == [([T] if is_sampled else []) if isinstance(found, dict) else is_sampled] * len(said)
    if answer[0] in ("whatif", "advise", "diff"):
        assert CliRunner().invoke(app, [*words, "--out", "answer"]).exit_code == 0
        assert (f"Sampled: {T}" in Path("answer/report.html").read_text()) is is_sampled


def test_few_names_of_many() -> None:
    assert sampled_note([]) == []
    (note,) = sampled_note([f"t{number}" for number in range(1007)])
    assert note.startswith("Sampled: t0, t1, t2, t3, t4 and 1,002 more. ")


def test_the_page_says_the_same() -> None:
    page = files("streaming.ui").joinpath("page.js").read_text()
    assert f'"Sampled: {WHAT_IT_MEANS[0].lower()}{WHAT_IT_MEANS[1:]}"' in page
