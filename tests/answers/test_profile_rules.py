"""`magnetar profiles`, and what shows each rule that it names."""

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streaming.answers.profile_rules import PROFILE_RULES, entries
from streaming.broker.config import LINES, PROFILES, changes, configuration, profile_of
from streaming.cli.app import app
from streaming.traces import RECORDED
from streaming.traces.conform import compare
from streaming.traces.session import Session
from streaming.traces.trace import Trace, read_trace
from tools.versions import recordings

DIFFER = {name for before in PROFILES for after in PROFILES for name in changes(before, after)}
VERSIONS = Path(__file__).parents[2] / "docs/rules/versions.md"


def test_each_setting_that_differs_between_two_profiles_has_a_rule() -> None:
    assert PROFILE_RULES.keys() == DIFFER


def test_each_rule_has_an_id_and_a_recording_or_says_why_not() -> None:
    for rule in PROFILE_RULES.values():
        assert rule.notices.endswith(".")
        assert (rule.ids and rule.recordings) or rule.why


def test_the_ids_are_those_of_the_documentation() -> None:
    """A row has the ids, and in its last column the settings that have the rule."""
    documented: defaultdict[str, set[str]] = defaultdict(set)
    for row in VERSIONS.read_text().splitlines():
        if row.startswith("| <a id="):
            for name in re.findall(r"`(\w+)`", row.split("|")[-2]):
                documented[name] |= {*re.findall(r'<a id="(\w+)">', row)}
    assert {name: {*rule.ids} for name, rule in PROFILE_RULES.items() if rule.ids} == {
        name: ids for name, ids in documented.items() if name in DIFFER
    }


class _Under(Session):
    """A recording under other settings than those of its broker."""

    def __init__(self, trace: Trace, **settings: Any) -> None:
        super().__init__(trace)
        self._others = settings

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | self._others


def test_each_recording_shows_its_rule(tmp_path: Path) -> None:
    """It differs from its own profile if the setting has the value of another line."""
    wanted = {recording for rule in PROFILE_RULES.values() for recording in rule.recordings}
    traces = {}
    for release, scenario, lines in recordings():
        if (release, scenario) in wanted:
            path = tmp_path / f"{release}-{scenario}.jsonl"
            path.write_text(lines)
            traces[release, scenario] = read_trace(path)
    for release, scenario in wanted - traces.keys():
        assert release == "4.0.7"
        traces[release, scenario] = read_trace(RECORDED / f"{scenario}.jsonl")
    own = {recording: compare(_Under(trace)).differences for recording, trace in traces.items()}
    for setting, rule in PROFILE_RULES.items():
        values = {line: getattr(configuration(line, {}), setting) for line in LINES}
        for recording in rule.recordings:
            others = {*values.values()} - {values[profile_of(recording[0])]}
            assert any(
                compare(_Under(traces[recording], **{setting: value})).differences != own[recording]
                for value in others
            ), (setting, recording)


def test_lists_differ_by_their_entries() -> None:
    assert entries("a,b", "b,c,d") == (["a"], ["c", "d"], 2, 3)
    assert entries("a,b", "") == (["a", "b"], [], 2, 0)
    assert entries("a", "b") is None
    assert entries(True, False) is None


@pytest.mark.parametrize(("before", "after"), [*pairwise(LINES), *pairwise(reversed(LINES)), ("2.10", "2.x")])
def test_the_command_says_what_changes(before: Any, after: Any) -> None:
    ran = CliRunner().invoke(app, ["profiles", before, after])
    assert ran.exit_code == 0, ran.output
    head, *parts = ran.output.strip().split("\n\n")
    found = changes(before, after)
    assert head.startswith(f"{before} -> {after}: {len(found)} setting")
    assert [part.partition(":")[0] for part in parts] == [*found]
    for part, (name, values) in zip(parts, found.items(), strict=True):
        rule, lists = PROFILE_RULES[name], entries(*values)
        assert rule.notices in part
        assert part.endswith(f"Shown by: {rule.shown_by}.")
        assert all(id_ in rule.shown_by for id_ in rule.ids)
        assert all(scenario in rule.shown_by for _, scenario in rule.recordings)
        assert rule.ids or rule.why in part
        assert "of them" not in part.partition("\n")[0]
        if lists is not None:
            said = re.findall(r"^  (no longer|new): (.+)$", part, re.MULTILINE)
            assert said == [("no longer", each) for each in lists.gone] + [
                ("new", each) for each in lists.new
            ]
            assert said
