"""`python -m tests.chaos.canaries`: kill -9 a query and its four canaries again and again, and they find what `whatif` finds.

The query runs as a user starts it, on a Kafka that stays. The log comes in pieces, one for each kill. Half of the kills come at any moment after
the start, when canaries may still fold what they have missed, and half while micro-batches and looks go on. In the end, the differences and
counts of the canaries must be those of `whatif` on the whole log, and the query must have what its log replays to. Exits with 1 otherwise.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from sinks.ledger_store import read_entries
from sinks.quarantine import read_quarantine
from sinks.tables import TABLES, read_table
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.canaries.files import CanaryFiles
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.log.partition import partition_log
from streaming.spark.checkpoint import Committed, committed
from tests.chaos.compare import compare
from tests.chaos.plan import PARTITIONS
from tests.e2e.outcome import Outcome, of_log
from tests.e2e.processes import kill_session, no_nohup, wait_until
from tests.e2e.traffic import Traffic

POLICIES = {
    "ttl": "broker: {ttlDurationDefaultInSeconds: 30}",
    "quota": "broker: {backlogQuotaDefaultLimitBytes: 1000, backlogQuotaDefaultRetentionPolicy: consumer_backlog_eviction}",
    "retention": "broker: {defaultRetentionTimeInMinutes: 10, defaultRetentionSizeInMB: 10}",
    "unacked": "broker: {maxUnackedMessagesPerConsumer: 3}",
}

_RECORDS = 150
"""Of each piece of the log."""

_START = 1_700_000_000_000
_SECONDS = 8.0
"""A kill comes at most so long after the moment from which on it may come."""


class Query:
    """A query with canaries, and a log that comes to it piece by piece."""

    def __init__(self, folder: Path, kafka: LocalKafka, log: pa.Table, seed: int) -> None:
        self.checkpoint, self.store = folder / "checkpoint", folder / "store"
        self._folder, self._ingress = folder, f"kafka://{kafka.bootstrap}/commands"
        self._log, self._sent, self._dice = log, 0, random.Random(seed)
        self._command = [
            "--ingress",
            self._ingress,
            "--checkpoint",
            str(self.checkpoint),
            "--store",
            str(self.store),
            "--clock",
            "log",
        ]
        for name, policies in POLICIES.items():
            (folder / f"{name}.yaml").write_text(policies)
            self._command += ["--canary", f"{name}={folder / name}.yaml"]
        self._said = folder / "said.txt"

    def send(self) -> None:
        """The next piece of the log."""
        produce_log(self._log.slice(self._sent, _RECORDS), self._ingress, partitions=PARTITIONS)
        self._sent += _RECORDS

    def start(self) -> subprocess.Popen[bytes]:
        """Start the query, or start it again."""
        with self._said.open("ab") as said:
            return subprocess.Popen(
                [str(Path(sys.executable).with_name("magnetar")), "run", *self._command, "--trigger", "0s", "--canary-every", "1s",
                 "--max-ahead", "off", "--max-offsets", "50", "--shuffle-partitions", "2"],
                stdout=said, stderr=said, preexec_fn=no_nohup, start_new_session=True,
            )  # fmt: skip

    def kill(self, *, runs: bool) -> float:
        """Start it, and kill it at any moment, or (`runs`) at any moment after its next micro-batch. Returns after how many seconds."""
        process, began, batch = self.start(), time.monotonic(), self._batch()
        if runs:
            wait_until(lambda: self._batch() > batch, "a micro-batch", process)
        time.sleep(self._dice.uniform(0, _SECONDS))
        assert process.poll() is None, self.said()
        kill_session(process)
        return time.monotonic() - began

    def finish(self) -> None:
        """Let it fold all, and its canaries what it has folded."""
        process, records = self.start(), len(partition_log(self._log, PARTITIONS))
        wait_until(lambda: sum(self._committed().offsets.values()) == records, "the end of the log", process)
        wait_until(lambda: self._looked() == self._batch(), "a look at all of it", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0, self.said()

    def said(self) -> str:
        """What its processes have printed."""
        return self._said.read_text(errors="replace")

    def _committed(self) -> Committed:
        return committed(self.checkpoint) or Committed(-1, "", {}, True)

    def _batch(self) -> int:
        return self._committed().batch

    def _looked(self) -> int:
        marker = CanaryFiles(str(self.store)).marker()
        return -1 if marker is None else marker.batch


def differences(query: Query, log: pa.Table, folder: Path) -> list[str]:
    """What is otherwise than it should be."""
    store, records = str(query.store), partition_log(log, PARTITIONS)
    own = Outcome(
        {kind: read_table(f"{store}/tables", kind) for kind in TABLES}, read_entries(store), read_quarantine(store), {}, []
    )  # fmt: skip
    _, wrong = compare(
        own, of_log(records, folder / "replayed")._replace(responses={}, states=[]), query.store
    )
    if "begin anew" in query.said() or "canaries stop" in query.said():
        wrong.append("the canaries began anew, or stopped")
    found = CanaryFiles(store).answer()
    expected = whatif(
        log, [PolicySet(name, folder / f"{name}.yaml") for name in POLICIES], partitions=PARTITIONS
    )
    if found is None:
        return [*wrong, "the canaries have no answer"]
    if not any(each.differences for each in expected.totals[1:]):
        wrong.append("the policies changed nothing")
    if found.totals != expected.totals:
        wrong.append(f"totals: {found.totals} rather than {expected.totals}")
    rows, others = (table.to_pylist() for table in (found.differences, expected.differences))
    wrong += [f"difference {row} {text}" for ours, theirs, text in ((rows, others, "is not there"), (others, rows, "is missing"))
              for row in ours if row not in theirs][:3]  # fmt: skip
    if len(rows) != len(others):
        wrong.append(f"{len(rows)} differences rather than {len(others)}")
    return wrong


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.canaries", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the log and the kills (default: 0)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-canaries-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        kafka = LocalKafka(folder / "kafka")
        kafka.start()
        try:
            log = (
                Traffic(asked.seed, _START)
                .write((asked.kills + 1) * _RECORDS)
                .slice(0, (asked.kills + 1) * _RECORDS)
            )
            query = Query(folder, kafka, log, asked.seed)
            for number in range(asked.kills):
                query.send()
                took = query.kill(runs=number % 2 == 1)
                print(f"kill {number + 1}, {took:.1f} s after the start", flush=True)
            query.send()
            query.finish()
        finally:
            kafka.kill()
        wrong = differences(query, log, folder)
        print(
            *wrong,
            f"{len(log):,} records, {asked.kills} kills: {'different' if wrong else 'all equal'}",
            sep="\n",
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
