"""What canaries cost, by processor time, beside the fold of their query.

``python -m bench.canaries [MESSAGES]`` folds an ingress partition of a made week in micro-batches, as a query does, and then under no, one and four
canaries, as looks do. Then it does so with dense traffic: messages that are published, delivered and acknowledged.
"""

import sys
import tempfile
import time
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bench.logs import PARTITIONS, delivered
from bench.week import week
from sinks.folded import FoldedBefore, FoldedFiles
from sinks.ledger_store import LedgerStore
from sinks.storage import Storage
from streaming.canaries.partition import Canary, CanaryPolicy, Place, looked
from streaming.fold.columns import PartitionFold
from streaming.fold.records import Records, StateRow
from streaming.log.policies import configuring, read_policies
from streaming.quality.gate import judge

BATCH, LOOK = 5_000, 12
"""Records of a micro-batch, and micro-batches of a look."""


def canary(number: int, log: pa.Table) -> Canary:
    """A canary with a TTL of some hours."""
    policies = read_policies(
        configuring(settings={"ttlDurationDefaultInSeconds": 3600 * (number + 1)}), log, judge
    )
    return Canary(f"ttl-{number}", "", 0, [CanaryPolicy.of(each) for each in policies])


def folded(log: pa.Table, folder: str) -> tuple[FoldedFiles, int, float, float]:
    """Fold a partition as its query does. Returns what it noted, of how many micro-batches, and the processor time of the fold and of the notes."""
    store, files = LedgerStore(f"{folder}/store"), FoldedFiles(Storage(f"{folder}/canaries"))
    state: StateRow | None = None
    fold = notes = 0.0
    starts = range(0, len(log), BATCH)
    for batch, start in enumerate(starts):
        part = log.slice(start, BATCH)
        began = time.process_time()
        own = PartitionFold(0, store, state)
        before, records = (
            FoldedBefore(own.clock, own.last),
            Records(*(part[name].to_pylist() for name in ("offset", "timestamp", "topic", "value"))),
        )
        own.apply(records)
        rows, state = own.rows(), own.state()
        store.write(batch, 0, rows)
        between = time.process_time()
        files.write(batch, 0, before, records, {}, None)
        fold, notes = fold + between - began, notes + time.process_time() - between
    return files, len(starts), fold, notes


def looks(files: FoldedFiles, batches: int, canaries: Sequence[Canary]) -> tuple[float, int]:
    """The processor time of all looks, and the most that is kept between two (bytes)."""
    began, kept, most = time.process_time(), None, 0
    for start in range(0, batches, LOOK):
        visits = [files.read(batch, 0) for batch in range(start, min(start + LOOK, batches))]
        found = looked(Place(0, 1), kept, canaries, visits)
        assert found is not None
        kept = found.kept
        most = max(most, len(kept.folds))
    return time.process_time() - began, most


def main(messages: int) -> None:
    """Print the tables."""
    measure("a made week", week(messages), 0)
    measure("Exclusive", delivered(messages, "Exclusive", topics=PARTITIONS), 1)
    measure("Shared, 8 consumers", delivered(messages, "Shared", consumers=8, topics=PARTITIONS), 1)


def measure(name: str, log: pa.Table, partition: int) -> None:
    """Print the table of an ingress partition."""
    log = log.filter(pc.equal(log["partition"], partition))
    with tempfile.TemporaryDirectory() as folder:
        files, batches, fold, notes = folded(log, folder)
        print(
            f"{name}: {len(log):,} records in {batches} micro-batches: fold {fold:.1f} s, notes {notes / fold:.2f} of it"
        )
        for count in (0, 1, 4):
            took, most = looks(files, batches, [canary(number, log) for number in range(count)])
            print(f"{count} canaries: {took / fold:.2f} of the fold, {most / 1e6:.1f} MB are kept")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300_000)
