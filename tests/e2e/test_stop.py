"""Queries that are stopped, in any way, and a second one beside a running one."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinks.lock import LOCK
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from tests.e2e.live import LiveQuery
from tests.e2e.test_cli import Done, magnetar
from tests.e2e.traffic import Traffic

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

START = 1_700_000_000_000


@pytest.fixture
def query(kafka: LocalKafka, tmp_path: Path) -> Iterator[LiveQuery]:
    url = f"kafka://{kafka.bootstrap}/stop"
    produce_log(Traffic(7, START).write(400), url, partitions=2)
    # A folder whose name has what paths must not have.
    folder = tmp_path / "sp ace, ünï [x]"
    folder.mkdir()
    made = LiveQuery(folder, url, f"{url}-responses", "--trigger", "100ms", "--max-offsets", "20")
    yield made
    made.close()


def refused(done: Done, where: Path, holder: int) -> None:
    assert done.complaint.startswith(f"{where} is in use by magnetar run (pid {holder} on ")
    assert "empty" not in done.complaint


def test_signals_a_second_query_and_a_kill(query: LiveQuery, tmp_path: Path) -> None:
    def run(checkpoint: Path, store: Path) -> Done:
        return magnetar("run", "--ingress", query.ingress, "--checkpoint", checkpoint, "--store", store)

    query.start()
    query.wait(lambda: query.committed() >= 1, "two micro-batches")
    assert query.process is not None
    holder = query.process.pid
    refused(run(query.checkpoint, query.store), query.checkpoint, holder)
    refused(run(tmp_path / "other", query.store), query.store, holder)
    refused(run(query.checkpoint, tmp_path / "other"), query.checkpoint, holder)
    assert not (tmp_path / "other").exists()
    at_hand = query.begun()
    # As a terminal and a service manager do at once, to all processes of the group.
    for number in (signal.SIGINT, signal.SIGTERM):
        os.killpg(holder, number)
    assert query.end() == 0
    assert "Traceback" not in query.said()
    # The micro-batch at hand was finished. The next one may have begun before the query stopped.
    assert at_hand <= query.committed() <= query.begun() <= query.committed() + 1
    assert not [*query.folder.rglob(LOCK), *query.folder.rglob("_temporary")]

    query.start()
    before = query.committed()
    query.wait(lambda: query.committed() > before, "a micro-batch")
    query.kill()  # its lock ends with it
    query.start()
    before = query.committed()
    query.wait(lambda: query.committed() > before, "a micro-batch after the kill")
    assert query.process is not None
    os.killpg(query.process.pid, signal.SIGHUP)
    assert query.end() == 0
    assert "Traceback" not in query.said()
