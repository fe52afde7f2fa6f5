"""A disk that is really full. `test_faults_store` runs this in a separate mount namespace (``unshare -rm``).

It writes the same micro-batches to two folders. Before each write to the second one, it fills the disk up to a few pages,
until the write succeeds, and checks what failed writes leave. In the end, both folders must be equal. Prints the errors of
the failed writes.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sinks.base import Sink
from sinks.ledger_store import LedgerStore
from sinks.quarantine import QuarantineSink
from sinks.storage import NotStored
from sinks.tables import TableSink
from streaming.fold.columns import Fold
from streaming.log.partition import partition_log
from streaming.log.table import slices
from tests.e2e.traffic import Traffic
from tests.sinks.helpers import tree

Rows = list[tuple[int, pa.Table]]
_PAGE = 4096
_BALLAST = "ballast"


def main(folder: Path) -> None:
    whole, disk = folder / "whole", folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True)
    dice = random.Random(3)
    batches = write_all(whole)
    said: list[str] = []
    seen: dict[Path, int] = {}
    for batch_id, rows in enumerate(batches):
        for pages in sorted(dice.sample(range(30), 2)):
            fill(disk, pages)
            try:
                write(disk, batch_id, rows)
            except NotStored as error:
                said.append(str(error))
            assert_whole(disk / "store", seen)
            (disk / _BALLAST).unlink()
        write(disk, batch_id, rows)
    assert contents(disk / "store") == contents(whole / "store")
    print(json.dumps(said))


def contents(store: Path) -> tuple[object, ...]:
    """The contents of a store. Segments count by their entries, because another attempt may have merged or deleted some."""
    ledgers = LedgerStore(str(store))
    files = {name: data for name, data in tree(store).items() if not name.startswith("segments/")}
    return files, ledgers.scan(), ledgers.ledgers()


def write_all(folder: Path) -> list[Rows]:
    """Write the micro-batches of a log. Returns the rows that the query passes to its sinks."""
    records = partition_log(Traffic(1, 1_700_000_000_000).write(400), 3)
    fold = Fold(LedgerStore(str(folder / "store")))
    batches = []
    for batch_id, part in enumerate(slices(records, 24)):
        batches.append(list(fold.apply(part)))
        write(folder, batch_id, batches[-1])
    return batches


def write(folder: Path, batch_id: int, rows: Rows) -> None:
    """Write a batch with new sinks, as a restarted query does."""
    url = str(folder / "store")
    sinks: list[Sink] = [LedgerStore(url), QuarantineSink(url), TableSink(f"{url}/tables")]
    for sink in sinks:
        sink.begin(batch_id)
    for partition, table in rows:
        for sink in sinks:
            sink.write(batch_id, partition, table)


def fill(disk: Path, pages: int) -> None:
    """Fill the disk except for some pages."""
    free = os.statvfs(disk).f_bavail
    (disk / _BALLAST).write_bytes(bytes(max(0, free - pages) * _PAGE))


def assert_whole(store: Path, seen: dict[Path, int]) -> None:
    """No incomplete file is visible or takes up space that is needed. `seen`: the files checked, and their times."""
    for path in store.rglob("*"):
        if path.is_file() and seen.get(path) != (time := path.stat().st_mtime_ns):
            seen[path] = time
            assert "_temporary" not in path.parts
            if path.suffix == ".parquet":
                pq.read_table(path, partitioning=None)
            else:
                json.loads(path.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
