"""Transactions of the official Java client, unchanged: the subjects of its own tests of transactions. On the embedded engine."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.server.conftest import java, running

PROGRAM = Path(__file__).with_name("JavaTransactions.java")


@pytest.mark.slow
@pytest.mark.feature("K2", "L1", "L2", "L3")
def test_transactions_of_the_java_client() -> None:
    with running(transactionCoordinatorEnabled=True, acknowledgmentAtBatchIndexLevelEnabled=True) as broker:
        command = java(PROGRAM, broker.service_url)
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert re.findall("^FAIL .*(?:\n    .*)*", done.stdout, re.M) == []
    assert len(re.findall(r"^ok +(\S+)", done.stdout, re.M)) == 23
