"""Every answer about a topic that a mirror sampled says so, and no other answer does."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.answers.sampled import WHAT_IT_MEANS, sampled_note
from streaming.broker.persistent.topic import ENTRIES, SHADOW_SOURCE
from streaming.cli.app import app
from tests.mirror.kit import entries_of_mirror

pytestmark = pytest.mark.feature("K4")

T = "persistent://public/default/t"
PATH = "/persistent/public/default/t"
ANSWERS = [
    ["explain", "LOG", "t"], ["explain", "LOG", "t", "--quota"], ["explain", "LOG", "t", "--retention"],
    ["explain", "LOG", "t", "7:1"], ["explain", "LOG", "t", "--producer", "p", "--sequence-id", "1"], ["explain", "LOG"],
    ["peek", "LOG", "t", "s"], ["whatif", "LOG", "--policies", "ttl.yaml"], ["advise", "LOG"], ["diff", "OUT", "OUT"],
]  # fmt: skip


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
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert (f"Sampled: {T}" in ran.output) is is_sampled
    ran = CliRunner().invoke(app, [*words, "--json"])
    found = json.loads(ran.stdout)
    if answer[0] == "peek":  # its rows are those of a table of entries
        assert (f"Sampled: {T}" in ran.stderr) is is_sampled
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
