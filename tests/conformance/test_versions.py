"""Each profile does what a real broker of its release line did: every recording of it in ``tests/golden/versions``."""

import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.broker.config import profile_of
from streaming.traces.conform import compare_trace
from streaming.traces.session import Session
from streaming.traces.trace import read_trace

VERSIONS = sorted((Path(__file__).parents[1] / "golden" / "versions").glob("*.jsonl.xz"))
"""The recordings of a broker of each version, one after the other, each with its header."""

GAPS = {
    (
        "2.10.5",
        "dd_levels",
    ): "A31: whether a producer learns its last sequence id after a load is a race of the broker",
    ("3.0.7", "ttl_unload"): "D7: totalMsgExpired counts some entries twice, in part a race of the broker",
    ("4.2.4", "raw_chunks_resend"): "a race of the broker: whether a first chunk is sent again",
    (
        "4.2.4",
        "rnd_ledger5_1",
    ): "B9: where a subscription reads on after entries that nobody can receive (internal stats)",
}
"""What is known to differ (docs/rules/versions.md)."""


def recordings() -> Iterator[tuple[str, str, str]]:
    """Version, scenario, and the lines of each trace."""
    for path in VERSIONS:
        _, *traces = lzma.decompress(path.read_bytes()).decode().split('{"format":')
        for trace in traces:
            scenario = trace.partition('"scenario":"')[2].partition('"')[0]
            yield path.name.removesuffix(".jsonl.xz"), scenario.removeprefix("n_"), '{"format":' + trace


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
    if (version, scenario) in GAPS:
        assert verdict.differences
        pytest.xfail(GAPS[version, scenario])
    assert verdict.differences == []


def test_a_recording_is_compared_with_the_profile_of_its_broker(tmp_path: Path) -> None:
    seen = set()
    for version, scenario, lines in recordings():
        if scenario == "admin_skip":
            path = tmp_path / f"{version}.jsonl"
            path.write_text(lines)
            session = Session(read_trace(path))
            next(iter(session.run()))
            assert session.broker.config.profile == profile_of(version)
            seen.add(version)
    assert seen == {path.name.removesuffix(".jsonl.xz") for path in VERSIONS}
