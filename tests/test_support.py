"""`docs/reference/support.md` agrees with the marks of the tests."""

import subprocess
import sys

import pytest

from streaming.traces import RECORDED
from tools.support import ROOT, Features, Marks, features, marked, mistakes, page, support

TRACES = {path.stem: ["A1"] for path in RECORDED.glob("*.jsonl")}
SMALL = Features(
    areas={"A": "Sending"},
    features={"A1": "first", "A2": "second", "A3": "third"},
    partly={"A2": "no end"},
    refused={},
    not_yet={"A3": "no time"},
    every_trace={"A2": "frames"},
    traces=TRACES,
)
TESTS = {
    "A1": [
        "tests/broker/test_x_cases.py::test_x_case_04_b",
        "tests/broker/test_x_cases.py::test_x_case_03_a",
        "tests/broker/test_x_cases.py::test_x_case_05_c",
        "tests/broker/test_x_cases.py::test_x_case_05_d",
        "tests/broker/test_x_cases.py::test_x_case_01",
        "tests/broker/test_x_cases.py::test_other",
        "tests/sinks/test_y.py::TestY::test_seed_003_a",
        "tests/sinks/test_y.py::test_x_case_02",
    ],
    "A2": ["tests/test_z.py::test_a"],
}
MARKS = Marks(TESTS)


def test_it_is_fresh() -> None:
    assert (ROOT / "docs/reference/support.md").read_text() == support(), "run `make docs`"


def test_features_tests_and_traces_fit_together() -> None:
    assert mistakes(features(), marked()) == []


def test_ttl_quotas_and_retention_have_several_traces() -> None:
    for feature in features().features:
        if feature[0] in "FGH":
            assert sum(feature in ids for ids in features().traces.values()) >= 3, feature


def test_the_page() -> None:
    text = page(SMALL, MARKS)
    assert "Of 3 features, 1 are supported.\nPartly: A2.\nNot yet: A3.\n" in text
    cases = "[broker/x_cases](../../tests/broker/test_x_cases.py) 1, 3–5"
    others = "[sinks/y](../../tests/sinks/test_y.py) 2 of x (article 003)"
    assert f"| A1 | first | supported | {cases}; {others} | {', '.join(sorted(TRACES))} |\n" in text
    assert "| A2 | second | **partly**: no end | [z](../../tests/test_z.py) | all: frames |\n" in text
    assert "| A3 | third | **not yet**: no time |  |  |\n" in text


def test_a_column_for_each_version() -> None:
    versions = page(SMALL, MARKS).partition("\n## Versions\n")[2].partition("\n## ")[0]
    assert "| id | 2.10.5 | 3.0.7 | 4.0.7 | 4.2.4 | 5.0.0-M1 |\n" in versions
    rows = {row.split(" | ")[0]: row.split(" | ")[1:] for row in versions.splitlines()}
    assert rows["| A2"] == rows["| all"]  # every trace shows it
    assert "| A3" not in rows  # none does
    for version, count in zip(("2.10.5", "3.0.7", "4.0.7", "4.2.4", "5.0.0-M1"), rows["| all"], strict=True):
        equal, recorded = map(int, count.removesuffix(" |").split(" of "))
        assert recorded - equal == versions.count(f"\n* {version}, ")


def test_a_feature_with_a_known_failure_is_not_supported() -> None:
    text = page(SMALL, Marks(TESTS, {"A1": ["a case [Shared]", "another"], "A2": ["a third"]}))
    assert "Of 3 features, 0 are supported.\nPartly: A1, A2.\n" in text
    assert "| A1 | first | **partly**: Known to fail: a case [Shared]; another |" in text
    assert "| A2 | second | **partly**: no end. Known to fail: a third |" in text


@pytest.mark.parametrize(
    ("name", "value", "marks", "mistake"),
    [
        ("areas", {}, {}, "A1 has no area"),
        ("partly", {"Z1": ""}, {}, "no feature Z1: partly"),
        ("partly", {"A3": ""}, {}, "A3 is at once partly and not yet"),
        ("not_yet", {}, {}, "A3 is supported, but no test shows it"),
        ("refused", {"A2": "", "A3": ""}, {"A2": []}, "A2 is partly, but no test shows it"),
        ("partly", {"A2": ""}, {"A9": ["t.py::t"]}, "no feature A9: marks of t.py::t"),
        ("traces", {**TRACES, "ack_holes": ["A8"]}, {}, "no feature A8: trace ack_holes"),
        ("traces", {}, {}, "trace ack_holes has no features"),
        ("traces", {**TRACES, "ack_hole": ["A1"]}, {}, "no trace ack_hole"),
    ],
)
def test_mistakes(name: str, value: dict[str, str], marks: dict[str, list[str]], mistake: str) -> None:
    assert mistakes(SMALL, MARKS) == []
    known = Features(**{field: getattr(SMALL, field) for field in SMALL.__struct_fields__} | {name: value})
    assert mistake in mistakes(known, Marks(TESTS | marks))


def test_an_unknown_id_is_an_error() -> None:
    command = [sys.executable, "-m", "tools.support", "A1", "Z9"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.startswith("no feature Z9: there are A1, A2,")
