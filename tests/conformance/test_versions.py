"""Each profile does what a real broker of its release line did: every recording of it in ``tests/golden/versions``."""

from pathlib import Path

import pytest

from streaming.broker.config import configuration, profile_of
from streaming.traces.conform import compare_trace
from streaming.traces.session import TIMED_CHECKS, Session
from streaming.traces.trace import read_trace
from tools.versions import GAPS, VERSIONS, recordings


@pytest.mark.feature("I2")
@pytest.mark.parametrize(
    ("version", "scenario", "lines"), [pytest.param(*each, id="-".join(each[:2])) for each in recordings()]
)
def test_trace(version: str, scenario: str, lines: str, tmp_path: Path) -> None:
    path = tmp_path / f"{scenario}.jsonl"
    path.write_text(lines)
    trace = read_trace(path)
    verdict = compare_trace(trace)
    assert verdict.frames > 0
    gap = GAPS[version].get(scenario)
    assert verdict.differences == ([] if gap is None else gap.differences)
    if gap is not None:
        pytest.xfail(gap.reason)


def test_each_known_difference_is_of_a_recording() -> None:
    scenarios = {(version, scenario) for version, scenario, _ in recordings()}
    assert scenarios >= {(version, scenario) for version in GAPS for scenario in GAPS[version]}


def test_a_recording_is_compared_with_the_profile_of_its_broker(tmp_path: Path) -> None:
    seen = set()
    for version, scenario, lines in recordings():
        if scenario == "admin_skip":
            path = tmp_path / f"{version}.jsonl"
            path.write_text(lines)
            session = Session(read_trace(path))
            next(iter(session.run()))
            of_the_broker = session.trace.header["broker_config"] | dict.fromkeys(TIMED_CHECKS, 0)
            assert session.broker.config == configuration(profile_of(version), of_the_broker)
            seen.add(version)
    assert seen == {path.name.removesuffix(".jsonl.xz") for path in VERSIONS}
