"""The official Java client and its admin client, unchanged, on the embedded engine. Maven fetches them."""

import subprocess
from pathlib import Path

import pytest

from streaming.runtime.java import java_binary
from tests.parity.pulsar import pulsar_jars
from tests.server.conftest import running

PROGRAM = Path(__file__).with_name("JavaClient.java")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("E8", "K1", "K2")
def test_the_java_client() -> None:
    """Each subscription type and compression, chunks, dead and retry letters, delays, ack timeout, seek, reader, partitioned
    topics, patterns, schemas, table view, access modes, batches, and a terminated topic."""
    with running() as broker:
        urls = broker.service_url, str(broker.server.admin_url)
        command = [str(java_binary()), "-cp", f"{pulsar_jars()}/*", str(PROGRAM), *urls]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "FAIL "))]
    assert [line for line in said if line.startswith("FAIL ")] == [], done.stdout[-5000:]
    assert len(said) == 22, done.stdout[-5000:] + done.stderr[-5000:]
