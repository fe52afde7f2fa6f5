"""A short soak: it runs, its clients receive and acknowledge what they publish, and it draws the plot."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SECONDS = 20
RATE = 100


@pytest.mark.feature("J2")
def test_a_short_soak(tmp_path: Path) -> None:
    command = ["-m", "bench.soak", "--minutes", str(SECONDS / 60), "--rate", str(RATE), "--sample", "4"]
    command += ["--every", "0.1", "--silence", "4"]
    done = subprocess.run(
        [sys.executable, *command, "--out", str(tmp_path / "soak")],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 1, done.stderr
    assert "too few" in done.stdout
    assert "backlog after 1 silences: " in done.stdout
    assert (tmp_path / "soak" / "soak.svg").read_text().startswith("<?xml")
    samples = [json.loads(line) for line in (tmp_path / "soak" / "samples.jsonl").read_text().splitlines()]
    assert sum(sample["records"] for sample in samples) > SECONDS * RATE / 4
    assert any(sample["page_seconds"] for sample in samples)
    assert all(0 < sample["heap"] < sample["java"] for sample in samples)
    assert samples[-1]["backlog"] > 0  # of `idle`; `work` acknowledges
    assert all(sample["state"] < 100_000 for sample in samples)
