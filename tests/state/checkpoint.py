"""A Spark checkpoint and its store, as a release of Magnetar left them in the middle of a replay.

``tests/golden/<release>/checkpoint.tar.gz`` has the folder of a replay and the remaining micro-batches. Spark stores the
paths of the files it has read; the archive has `NOWHERE` in place of their folder.
"""

import io
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from schemas.records import RECORD
from sinks.base import Sink
from sinks.ledger_store import LedgerStore
from sinks.quarantine import QuarantineSink
from sinks.tables import TableSink
from streaming.fold.columns import Fold
from streaming.fold.records import StateRow
from streaming.log.partition import partition_log
from streaming.log.table import slices
from streaming.spark import query, source
from streaming.spark.operator import FoldOptions
from tests.broker.kit import START
from tests.e2e.traffic import Traffic
from tests.state.golden import GOLDEN

ARCHIVE = "checkpoint.tar.gz"
RELEASES = sorted(file.parent for file in GOLDEN.glob(f"*/{ARCHIVE}"))
NOWHERE = "file:///magnetar-golden"
STAGED, TO_COME = "staged", "to-come"
NOTES = Path("checkpoint", "sources", "0")
"""Where Spark keeps the names of the files it has read."""

PARTITIONS, RECORDS, BATCHES, DONE = 2, 220, 4, 2


def record(spark: SparkSession, folder: Path) -> None:
    """Replay half of a log with the current code."""
    log = partition_log(Traffic(9, START).write(RECORDS), PARTITIONS)
    source.stage(log, folder / STAGED, batches=BATCHES)
    (folder / TO_COME).mkdir()
    staged = sorted((folder / STAGED).iterdir())
    for file, part in list(zip(staged, slices(log, BATCHES), strict=True))[DONE:]:
        pq.write_table(part, folder / TO_COME / file.name)
        shutil.copystat(file, folder / TO_COME / file.name)
        file.unlink()
    _replay(spark, folder)


def go_on(spark: SparkSession, folder: Path) -> None:
    """Replay the rest with the current code."""
    for file in (folder / TO_COME).iterdir():
        source.write(pq.read_table(file, schema=RECORD), folder / STAGED / file.name)
        shutil.copystat(file, folder / STAGED / file.name)
    _replay(spark, folder)


def go_on_in_process(states: list[StateRow], folder: Path) -> list[StateRow]:
    """Replay the rest without Spark, as one micro-batch on `states`, into the store and tables of `folder`."""
    log = [pq.read_table(file, schema=RECORD) for file in sorted((folder / TO_COME).iterdir())]
    store, sinks = _sinks(folder)
    fold = Fold(store, states=states)
    for sink in sinks:
        sink.begin(DONE)
    for partition, rows in fold.apply(pa.concat_tables(log)):
        for sink in sinks:
            sink.write(DONE, partition, rows)
    return fold.states()


def pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz", compresslevel=9) as tar:
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            data = file.read_bytes()
            if file.parent == folder / NOTES:
                data = data.replace(folder.as_uri().encode(), NOWHERE.encode())
                assert data.count(b'"path"') == data.count(NOWHERE.encode()), data
            entry = tarfile.TarInfo(str(file.relative_to(folder)))
            entry.size, entry.mtime = (
                len(data),
                int(file.stat().st_mtime),
            )  # Spark reads files in order of age
            tar.addfile(entry, io.BytesIO(data))


def unpack(archive: Path, folder: Path) -> None:
    """Unpack `archive` to `folder`, as if it had been created there."""
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 and older have none
        tar.extractall(folder)
    for file in (folder / NOTES).iterdir():
        file.write_bytes(file.read_bytes().replace(NOWHERE.encode(), folder.as_uri().encode()))


def _replay(spark: SparkSession, folder: Path) -> None:
    store, sinks = _sinks(folder)
    spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    query.start(
        spark, source.staged(spark, folder / STAGED), FoldOptions(sinks=sinks, store=store, clock="log"),
        checkpoint=folder / "checkpoint", trigger=query.AVAILABLE_NOW,
    ).awaitTermination()  # fmt: skip


def _sinks(folder: Path) -> tuple[LedgerStore, list[Sink]]:
    store = LedgerStore(str(folder / "store"))
    return store, [store, QuarantineSink(str(folder)), TableSink(str(folder / "tables"))]
