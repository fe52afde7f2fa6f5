"""A what-if as one Structured Streaming query: of logs that are larger than memory, stopped and gone on with anywhere.

The idea
    An operator folds the records of an ingress partition as they are, and under each policy set, side by side. Its state is what these folds
    need to go on (`SideBySide.keep`). Differences leave it as soon as they are settled: each micro-batch writes those of a partition to a
    file of its own. What is left when the log ends, tasks make of the last states.

What a crash leaves
    The log is cut into files before the query starts, so a micro-batch that is repeated has the same records, and writes the same file again.
    A note says what the folder is for, and is written when all of them are there. The same command goes on with what is committed; another
    one is refused.

The same rows
    Records are folded in pieces, and what is drawn depends on where these end (`piece_size`). A micro-batch has whole pieces of each
    ingress partition, so the rows are those of a fold of the whole log.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from schemas.commands import to_binary
from sinks import batch_files
from sinks.links import Link
from sinks.parquet import fragment, options
from sinks.storage import Damaged, Storage
from streaming import __version__
from streaming.answers.whatif.difference_table import CODED, gathered
from streaming.answers.whatif.differences import PartitionCompared
from streaming.answers.whatif.folder import BEGIN_ANEW, CHECKPOINT, AnotherWhatIf
from streaming.answers.whatif.folds import Folds, from_bytes, to_bytes
from streaming.answers.whatif.projection import Start
from streaming.answers.whatif.side_by_side import piece_size
from streaming.jobs.replay import micro_batches
from streaming.log.pins import PartitionPins
from streaming.log.table import digest
from streaming.spark import source
from streaming.spark.failure import explained
from streaming.spark.operator import batch_id
from streaming.spark.packing import unpack_table
from streaming.spark.state import state

_STATE = "kept binary"
_FOLDED = "partition int, records bigint"
_ENDED = "partition int, differences bigint, answer binary"

_STAGED, _ROWS, _NOTE = "staged", "differences", "whatif.json"

_QUERY = {
    # Each state has all that is not settled, and nobody reads an earlier one.
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.maxBatchesToRetainInMemory": "1",
}
_ONE_AT_A_TIME = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"}


class Partition(NamedTuple):
    """An ingress partition to fold: its records (columns `RECORD`), the policies of each set, their names, where the fold starts, and what is
    done to the log for the baseline, see `SideBySide`."""

    partition: int
    records: pa.Table
    pins: Sequence[PartitionPins]
    names: Sequence[str]
    start: Start | None
    baseline: PartitionPins | None

    def folds(self, size: int, kept: bytes | None) -> Folds:
        """Its folds, in pieces of `size`. `kept`: what those before kept."""
        return Folds(self.partition, self.names, self.pins, self.start, self.baseline, size, kept)


class _Note(msgspec.Struct):
    """What the folder of a fold is for: the version that made it, digests of the records and of what they are folded under, and how many
    records each micro-batch has."""

    version: str
    log: str
    under: str
    batches: list[int]


def fold(
    spark: SparkSession,
    partitions: Sequence[Partition],
    folder: Path,
    advice: str,
    progress: Callable[[int], object] = lambda _: None,
) -> Iterator[PartitionCompared]:
    """Fold ingress partitions by a query, or go on with it. Tasks need its `folder`, too. `advice`: see `Folder`. `progress` gets the
    records of each micro-batch.

    Raises `AnotherWhatIf`, `QueryFailed`, and `Damaged`.
    """
    if not partitions:
        return
    storage = Storage(str(folder), restore=BEGIN_ANEW)
    batches = _begun(partitions, folder, storage)
    shared = spark.sparkContext.broadcast(
        {
            each.partition: (each._replace(records=each.records.slice(0, 0)), piece_size(len(each.records)))
            for each in partitions
        }
    )
    tasks = min(spark.sparkContext.defaultParallelism, len(partitions))
    try:
        with explained(advice):
            with _settings(spark, _QUERY | {"spark.sql.shuffle.partitions": str(tasks)}):
                _run(spark, folder, _operator(shared, storage), batches, progress)
            with _settings(spark, _ONE_AT_A_TIME), state(spark, folder / CHECKPOINT) as states:
                ended = states.mapInPandas(_end(shared, storage, len(batches)), _ENDED).collect()
    finally:
        shared.destroy()
    for each in sorted(ended):
        found = from_bytes(each.answer)
        found = found._replace(differences=gathered(found.differences, _rows(storage, each.partition)))
        if len(found.differences.rows or ()) != each.differences:
            raise Damaged(f"{folder}/{_ROWS} lacks rows of ingress partition {each.partition}. {BEGIN_ANEW}")
        yield found


def _begun(partitions: Sequence[Partition], folder: Path, storage: Storage) -> list[int]:
    """Make the files of the micro-batches, unless a folder has them, and say how many records each has."""
    records = pa.concat_tables([each.records for each in partitions])
    asked = _Note(__version__, digest(records), _under(partitions), [])
    storage.sweep()
    note = storage.read_json(_NOTE, _Note, "what the folder is for", BEGIN_ANEW)
    if note is None:
        note = msgspec.structs.replace(
            asked, batches=_stage(partitions, micro_batches(records), folder / _STAGED)
        )
        storage.write_json(_NOTE, note)
    differ = {
        f"Magnetar {note.version} made it, and this is {asked.version}": note.version != asked.version,
        "the log had other records": note.log != asked.log,
        "the policies, or the state to begin with, were others": note.under != asked.under,
    }
    if whys := [why for why, differs in differ.items() if differs]:
        raise AnotherWhatIf(
            f"{folder.parent} is for another what-if: {'; '.join(whys)}. Choose another folder for this one"
        )
    return note.batches


def _under(partitions: Iterable[Partition]) -> str:
    """A digest of what partitions are folded under, and from."""
    found = blake2b(digest_size=16)
    for each in partitions:
        start = each.start
        pins = [*each.pins, each.baseline, *(() if start is None else (start.recorded, start.now))]
        before = None if start is None or start.state is None else start.state.broker
        found.update(msgspec.msgpack.encode([each.partition, each.names, before, [*map(_plain, pins)]]))
    return found.hexdigest()


def _plain(pins: PartitionPins | None) -> Any:
    if pins is None:
        return None
    front = [(topic, to_binary(command)) for topic, command in pins.front]
    return front, sorted(pins.dropped), sorted((at, to_binary(each)) for at, each in pins.replaced.items())


def _stage(partitions: Sequence[Partition], batches: int, folder: Path) -> list[int]:
    """Write a file for each of at most so many micro-batches, with whole pieces of each partition. Returns how many records each has."""
    shutil.rmtree(folder, ignore_errors=True)  # a start that was killed left it
    folder.mkdir(parents=True)
    steps = [_step(len(each.records), batches) for each in partitions]
    counts = list[int]()
    for place in range(batches):
        parts = [own.records.slice(place * step, step) for own, step in zip(partitions, steps, strict=True)]
        if count := sum(map(len, parts)):
            source.stage_batch(pa.concat_tables(parts), folder, place + 1)
            counts.append(count)
    return counts


def _step(records: int, batches: int) -> int:
    """How many records of a partition are in each of so many micro-batches, but for the last ones: whole pieces."""
    size = piece_size(records)
    return size * -(-records // (size * batches))


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for a while."""
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))


def _run(
    spark: SparkSession,
    folder: Path,
    operator: Any,
    batches: Sequence[int],
    progress: Callable[[int], object],
) -> None:
    """Fold what is not folded yet."""

    def write(batch: DataFrame, number: int) -> None:
        batch.collect()  # which runs the operator
        progress(batches[number])

    link = Link(folder / _STAGED)  # of a temporary folder, Spark might take the address for a pattern
    running = (
        source.staged(spark, link.path)
        .groupBy("partition", "slot")
        .applyInPandasWithState(operator, _FOLDED, _STATE, "append", GroupStateTimeout.NoTimeout)
        .writeStream.trigger(availableNow=True)
        .outputMode("append")
        .option("checkpointLocation", str(folder / CHECKPOINT))
        .foreachBatch(write)
        .start()
    )
    try:
        running.awaitTermination()
    finally:
        running.stop()


def _operator(shared: Any, storage: Storage) -> Any:
    """The function for applyInPandasWithState. `shared`: the partitions and their sizes of pieces, as a broadcast."""

    def fold(
        key: tuple[Any, ...], frames: Iterable[pd.DataFrame], group: GroupState
    ) -> Iterator[pd.DataFrame]:
        partition = int(key[0])
        of, size = shared.value[partition]
        own = of.folds(size, bytes(group.get[0]) if group.exists else None)
        records = unpack_table(frames)
        own.fold(records)
        _write(storage, batch_id(), partition, own.take())
        group.update((own.keep(),))
        yield pd.DataFrame({"partition": np.array([partition], np.int32), "records": [len(records)]})

    return fold


def _end(shared: Any, storage: Storage, number: int) -> Any:
    """The function for mapInPandas over the last states. `number`: the files of their differences have it in place of a micro-batch's."""

    def end(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            for partition, kept in zip(frame["partition"].tolist(), frame["kept"], strict=True):
                of, size = shared.value[partition]
                own = of.folds(size, bytes(kept))
                found, rows = own.end()
                _write(storage, number, partition, rows)
                yield pd.DataFrame(
                    {
                        "partition": np.array([partition], np.int32),
                        "differences": [own.settled],
                        "answer": [to_bytes(found)],
                    }
                )

    return end


def _write(storage: Storage, number: int, partition: int, rows: pa.Table) -> None:
    def write(stream: pa.NativeFile) -> None:
        with pq.ParquetWriter(stream, CODED, **options(CODED, "zstd")) as writer:
            writer.write_table(rows)

    if len(rows):
        storage.publish(batch_files.path(_ROWS, number, partition, "parquet"), write)


def _rows(storage: Storage, partition: int) -> Iterator[pa.Table]:
    """The rows of a partition, a file at a time."""
    for info in storage.files(_ROWS, named=batch_files.NAME):
        path = storage.relative(info)
        written = batch_files.of(path)
        if written is not None and written.partition == partition:
            with fragment(storage, path) as file:
                yield file.to_table().cast(CODED)
