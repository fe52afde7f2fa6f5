"""The official Java client and its admin client, unchanged, on both engines. Maven fetches them."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.conftest import PROFILE, Configured, Running, java

pytestmark = [pytest.mark.feature("A1", "E8", "K1", "K2")]

PROGRAM = Path(__file__).with_name("JavaClient.java")
SHORT = "type-Key_Shared|batching-true|compression-ZSTD|keys|nack|deduplication|reader|schema-AVRO"


OTHERWISE = {"2.10": {"access-modes"}, "4.2": {"delayed"}, "5.0": {"delayed"}}
"""Checks that fail under a profile as they would with its broker: 2.10 can't fence, and 4.2 rounds delivery times down."""


@pytest.fixture(scope="module")
def broker(configured: Configured) -> Iterator[Running]:
    with configured(acknowledgmentAtBatchIndexLevelEnabled=True) as found:
        yield found


def checked(broker: Running, pattern: str) -> list[str]:
    """Run the checks of `JavaClient` whose names match, none of which may fail. Returns the names."""
    command = java(PROGRAM, broker.service_url, broker.server.admin_url, pattern)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    failed = re.findall("^FAIL .*(?:\n    .*)*", done.stdout, re.M)
    names = set(re.findall(r"^FAIL (\S+):", done.stdout, re.M))
    assert names == {name for name in OTHERWISE.get(PROFILE, ()) if re.fullmatch(pattern, name)}, "\n".join(
        failed
    )
    return [*names, *re.findall(r"^ok +(\S+)", done.stdout, re.M)]


@pytest.mark.slow
def test_the_java_client(broker: Running) -> None:
    assert len(checked(broker, ".*")) == 33


def test_what_applications_use_most(broker: Running) -> None:
    assert sorted(checked(broker, SHORT)) == sorted(SHORT.split("|"))
