"""Policies for canaries."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ttl.yaml").write_text("broker: {ttlDurationDefaultInSeconds: 60}\n")
    (tmp_path / "keep.yaml").write_text(
        "broker: {defaultRetentionTimeInMinutes: 600, defaultRetentionSizeInMB: 100}\n"
    )
    (tmp_path / "nothing.yaml").write_text("broker: {ttlDurationDefaultInSeconds: 0}\n")
    return tmp_path
