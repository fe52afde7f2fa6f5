"""Replaying a command log: the whole of it through the broker, with Spark or in this process, to the same result.

A replay writes a folder::

    <out>/tables       every output row, one table per kind
    <out>/store        the entries that the topics still hold
    <out>/quarantine   records that are not commands, or break a rule of the input suites
    <out>/quality      only if output rows broke a rule, see `streaming.quality.sink`
    <out>/checkpoint   Spark's offsets and the brokers' states (not from `replay_in_process`)
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from schemas.records import RECORD, Coordinates
from sinks.lock import LOCK, exclusive
from streaming.broker.broker import Broker
from streaming.fold import BrokerType, Fold, NoSuchRecord, SetAside, set_aside_by_name, stats
from streaming.log.files import check_log, read_log
from streaming.log.partition import PARTITIONS, partition_log
from streaming.log.table import ordered, slices
from streaming.quality.gate import Judge, decode_only, judge
from streaming.runtime.java import spark_java_home

if TYPE_CHECKING:
    from sinks.base import Sink
    from sinks.ledger_store import LedgerStore
    from streaming.spark.operator import Clock
    from streaming.spark.query import Written
    from streaming.spark.session import SparkSession

RECORDS_PER_BATCH = 250_000
"""A micro-batch's records are in memory at once; so many make batches short against what they cost to start."""

STAGED = "staged"

_WRITTEN = {"tables", "store", "quarantine", "checkpoint", "quality", STAGED, "_temporary"}

Progress = Callable[[int, int, int], None]
"""Called after each micro-batch: batches done, batches in all, output rows so far."""


class NotEmptyError(FileExistsError):
    """The folder for the results has something in it."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of a replay. `records` are those of the log, of which `copied` have no topic and so went to each of the
    `partitions`; a log that has ingress partitions is taken as it is. `rows` counts output rows by kind; `stats` are those
    of `Broker.stats`, with the ingress partition; `seconds` is the time from the first record read to the last row written;
    `shift` is what `policies` added to the offsets, see `streaming.log.policies`."""

    out: Path
    records: int
    copied: int
    partitions: int
    batches: int
    seconds: float
    rows: Mapping[str, int]
    stats: list[dict[str, Any]]
    shift: int = 0


def replay_log(
    log: str | Path | pa.Table,
    out: str | Path,
    *,
    policies: str | Path | pa.Table | None = None,
    batches: int | None = None,
    partitions: int | None = None,
    clock: Clock = "log",
    cores: int = 2,
    shuffle_partitions: int | None = None,
    overwrite: bool = False,
    set_aside: Sequence[Coordinates] = (),
    quarantined: str | None = None,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
    broker: BrokerType = Broker,
    gates: bool = True,
) -> ReplayResult:
    """Replays `log` with Spark.

    Args:
        log: a file or folder (see `streaming.log.files`) or its table.
        out: the folder for the results. It must be empty or absent, unless `overwrite` is set.
        policies: a small log of ADMIN and BROKER_CONFIG commands that override those in the log, see
            `streaming.log.policies`.
        batches: the number of micro-batches; by default one per `RECORDS_PER_BATCH` records. The result does not depend
            on it.
        partitions: spread the log over this many ingress partitions, even if it has partitions already. By default a log
            keeps its own, and one without gets `PARTITIONS`.
        cores: the cores of the session that is created if `spark` is None.
        shuffle_partitions: parallel tasks; by default as many as cores and ingress partitions allow.
        set_aside: records that go to quarantine without being decoded, because Magnetar itself fails on them.
        quarantined: the store of the query that folded the log. The records that it set aside, or refused because their
            timestamps were ahead of its own time, are set aside here, too.
        gates: check records and output rows, see `streaming.quality`.

    Raises:
        LogError, FileNotFoundError: the log, or the policies (`PolicyError` names each mistake in them).
        NotEmptyError: `out` is not empty.
        InUse: another process uses `out`.
        NotWritable: `out` can't be written.
        JavaNotFoundError: there is no Java for Spark.
        NoSuchRecord: the log lacks a record to set aside.
        pyspark.errors.StreamingQueryException: a task failed; the message contains the cause.
    """
    with _results(out, overwrite) as out:
        _check_logs(log, policies)
        if spark is None:
            spark_java_home()
        loaded = load(log, policies=policies, partitions=partitions, judge=judge if gates else decode_only)
        aside = _set_aside(loaded, set_aside, quarantined)
        _clear(out)

        from streaming.spark import query, source, state
        from streaming.spark.session import spark_session

        count = pc.count_distinct(loaded.records["partition"]).as_py() or 1
        shuffle_partitions = shuffle_partitions or min(cores, count)
        if spark is None:
            spark = spark_session(
                "magnetar replay", shuffle_partitions=shuffle_partitions, master=f"local[{cores}]"
            )
        spark.conf.set("spark.sql.shuffle.partitions", shuffle_partitions)

        folder = out / STAGED
        total = source.stage(loaded.records, folder, batches=batches or _batches(loaded.records))
        store, sinks = _sinks(out, gates=gates)
        rows: Counter[str] = Counter()

        def written(batch: Written) -> None:
            for (_, kind), count in batch.rows.items():
                rows[kind] += count
            if progress is not None:
                progress(batch.batch_id + 1, total, rows.total())

        begun = time.perf_counter()
        running = query.start(
            spark,
            source.staged(spark, folder),
            sinks=sinks,
            store=store,
            checkpoint=out / "checkpoint",
            clock=clock,
            trigger=query.AVAILABLE_NOW,
            broker=broker,
            judge=judge if gates else decode_only,
            set_aside=aside,
            on_batch=written,
        )
        try:
            running.awaitTermination()
        finally:
            running.stop()
        seconds = time.perf_counter() - begun
        shutil.rmtree(folder)
        found = stats(state.partition_states(spark, out / "checkpoint"), broker=broker)
        return _result(out, loaded, total, seconds, rows, found)


def replay_in_process(
    log: str | Path | pa.Table,
    out: str | Path,
    *,
    policies: str | Path | pa.Table | None = None,
    batches: int | None = None,
    partitions: int | None = None,
    overwrite: bool = False,
    set_aside: Sequence[Coordinates] = (),
    quarantined: str | None = None,
    progress: Progress | None = None,
    broker: BrokerType = Broker,
) -> ReplayResult:
    """Like `replay` with the clock of the log, but without Spark, Java or parallelism. Writes no checkpoint."""
    with _results(out, overwrite) as out:
        _check_logs(log, policies)
        loaded = load(log, policies=policies, partitions=partitions)
        aside = _set_aside(loaded, set_aside, quarantined)
        _clear(out)
        store, sinks = _sinks(out)
        total = batches or _batches(loaded.records)
        rows: Counter[str] = Counter()
        begun = time.perf_counter()
        fold = Fold(store, broker=broker, set_aside=aside)
        for batch_id, part in enumerate(slices(loaded.records, total)):
            for sink in sinks:
                sink.begin(batch_id)
            for partition, own in fold.apply(part):
                for sink in sinks:
                    sink.write(batch_id, partition, own)
                rows.update({kind: len(table) for kind, table in own.items()})
            if progress is not None:
                progress(batch_id + 1, total, rows.total())
        seconds = time.perf_counter() - begun
        return _result(out, loaded, total, seconds, rows, stats(fold.states(), broker=broker))


def _result(
    out: Path, loaded: Loaded, batches: int, seconds: float, rows: Counter[str], found: list[dict[str, Any]]
) -> ReplayResult:
    return ReplayResult(
        out=out,
        records=loaded.logged,
        copied=loaded.copied,
        partitions=loaded.partitions,
        batches=batches,
        seconds=seconds,
        rows=dict(sorted(rows.items())),
        stats=found,
        shift=loaded.shift,
    )


class Loaded(NamedTuple):
    """A log as brokers get it (columns `RECORD`), `shift` as in `streaming.log.policies`; and what `ReplayResult` says of
    it: how many records it had (`logged`), and to how many `partitions` how many of them were copied."""

    records: pa.Table
    shift: int
    logged: int
    copied: int
    partitions: int


def load(
    log: str | Path | pa.Table,
    *,
    policies: str | Path | pa.Table | None = None,
    partitions: int | None = None,
    judge: Judge = judge,
) -> Loaded:
    """The log with ingress partitions, under `policies`, offsets rising in each partition.

    Raises `PolicyError` if a policy can't take effect. `judge` decodes the policies, see `streaming.quality.gate`.
    """
    from streaming.log.policies import pin, read_policies

    table = log if isinstance(log, pa.Table) else read_log(log)
    copied = 0
    if partitions is not None or "partition" not in table.column_names:
        partitions = partitions or PARTITIONS
        table = partition_log(table, partitions)
        if partitions > 1:  # every copied record, and no other without a topic, is in the last partition
            last = table.filter(pc.equal(table["partition"], partitions - 1))
            copied = last["topic"].null_count
    else:
        partitions = pc.count_distinct(table["partition"]).as_py()
    records, shift = ordered(table.select(RECORD.names)), 0
    if policies is not None:
        records, shift = pin(records, read_policies(policies, records, judge))
    return Loaded(records, shift, len(table) - copied * (partitions - 1), copied, partitions)


def _set_aside(loaded: Loaded, records: Sequence[Coordinates], quarantined: str | None) -> SetAside:
    """What to set aside of a log, at its offsets under `policies`. Raises `NoSuchRecord`."""
    from sinks.quarantine import read_set_aside

    found = {}
    if quarantined is not None:
        if ":/" not in quarantined and not Path(quarantined).is_dir():
            raise NoSuchRecord(
                f"{quarantined}: no such folder; give the --store of the query that folded the log"
            )
        found = read_set_aside(quarantined)
    found |= set_aside_by_name(records)
    shifted = {at._replace(offset=at.offset + loaded.shift): why for at, why in found.items()}
    own = loaded.records.filter(
        pc.is_in(loaded.records["offset"], pa.array([at.offset for at in shifted], pa.int64()))
    )
    there = set(zip(own["partition"].to_pylist(), own["offset"].to_pylist(), strict=True))
    for at in found:
        if at._replace(offset=at.offset + loaded.shift) not in there:
            raise NoSuchRecord(
                f"the log has no record {at} to set aside: give the log with the query's own partitions"
            )
    return shifted


def _batches(records: pa.Table) -> int:
    return -(-len(records) // RECORDS_PER_BATCH) or 1


def _check_logs(*logs: object) -> None:
    """Raises `LogError` or `FileNotFoundError` for a path at which no log can be, before anything is read."""
    for each in logs:
        if isinstance(each, str | Path):
            check_log(each)


@contextmanager
def _results(out: str | Path, overwrite: bool) -> Iterator[Path]:
    """The folder for the results, for this replay alone, after a check that it may be filled."""
    out = Path(out)
    with exclusive([str(out)], "magnetar replay"):
        found = {each.name for each in out.iterdir()} - {LOCK}
        if found and not overwrite:
            raise NotEmptyError(
                f"{out} isn't empty: choose another folder, or allow overwriting (--overwrite)"
            )
        if foreign := sorted(found - _WRITTEN):
            raise NotEmptyError(
                f"{out} holds what no replay wrote ({', '.join(foreign)}): remove that by hand, or choose another folder"
            )
        yield out


def _clear(out: Path) -> None:
    """Delete an earlier replay's results."""
    for each in _WRITTEN:
        if (out / each).exists():
            shutil.rmtree(out / each)


def _sinks(out: Path, *, gates: bool = True) -> tuple[LedgerStore, list[Sink]]:
    from sinks.ledger_store import LedgerStore
    from sinks.quarantine import QuarantineSink
    from sinks.tables import TableSink

    store = LedgerStore(str(out / "store"))
    sinks: list[Sink] = [store, QuarantineSink(str(out)), TableSink(str(out / "tables"))]
    if gates:
        from streaming.quality.sink import QualitySink

        sinks.append(QualitySink(str(out)))
    return store, sinks
