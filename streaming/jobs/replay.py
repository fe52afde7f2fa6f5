"""Replaying a command log: the whole of it through the broker, with Spark or in this process, to the same result.

A replay writes a folder::

    <out>/tables       every output row, one table per kind
    <out>/store        the entries that the topics still hold
    <out>/quarantine   records that are not commands, or break a rule of the input suites
    <out>/quality      only if output rows broke a rule, see `streaming.quality.sink`
    <out>/state        the brokers' states at the end
    <out>/checkpoint   Spark's offsets and the brokers' states (not from `replay_in_process`)

Under other policies, a log whose commands name positions is folded twice: first as it is, to know which messages these were,
and then under the policies, with the positions that the messages have there, see `streaming.log.positions`.
"""

from __future__ import annotations

import re
import shutil
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas.arguments import checked
from schemas.commands import BrokerConfig, Refused, command_in, decode_or_refuse
from schemas.records import RECORD, Coordinates, TopicAside
from sinks.base import BEGUN, STATE
from sinks.links import Link
from sinks.lock import LOCK, exclusive
from sinks.outputs import InTheWay, check_apart, check_folder, check_nested
from sinks.replayed import FILE, REPLAYED, ROWS_AND_ENTRIES, Replayed, count_files, write_replayed
from streaming.broker.broker import Broker, OneOfSeveral
from streaming.fold.columns import Fold
from streaming.fold.records import BrokerType, NoSuchRecord, SetAside, StateRow, set_aside_by_name, stats
from streaming.log.files import check_log, read_log
from streaming.log.merge import check_topics
from streaming.log.partition import PARTITIONS, partition_log
from streaming.log.policy_sources import policy_sources
from streaming.log.table import LogError, check_coordinates, digest, ordered, slices
from streaming.log.translation import TrackingBroker, Translation
from streaming.quality.gate import Judge, decode_only, judge
from streaming.runtime.clock import FoldClock
from streaming.runtime.java import spark_java_home
from streaming.state.saved import write_states

if TYPE_CHECKING:
    from sinks.base import Sink
    from sinks.ledger_store import LedgerStore
    from streaming.log.pins import PolicyCommand
    from streaming.spark.query import Written
    from streaming.spark.session import SparkSession

RECORDS_PER_BATCH, LEAST_PER_BATCH, RECORDS_PER_PARTITION = 1 << 20, 1 << 18, 1 << 16
BYTES_PER_BATCH = 256 << 20
"""The most that a micro-batch has by default. It costs half a second besides what its records cost, so it should have many. But
the JVM has all of their values, and a worker those of an ingress partition, in memory at once."""

STAGED, BASELINE = "staged", "baseline"

_WRITTEN = {"tables", "store", "quarantine", "checkpoint", "quality", STATE, STAGED, BASELINE, "_temporary"}
_FILES = re.compile(
    rf"""({BASELINE}/)?(
    {ROWS_AND_ENTRIES}
    | quarantine/[\d-]+\.parquet
    | quality/(broken/[\d-]+\.json | [\w.-]+\.html)
    | {STATE}/({re.escape(FILE)} | {re.escape(REPLAYED)})
    | {STAGED}/(\d{{8}}\.parquet | \.\d{{8}})
    | checkpoint/([\w-]+/)*\.?(metadata | schema | \d+)(\.(delta | snapshot | crc | tmp | TID\w+ | [0-9a-f-]{{36}}))*
    )""",
    re.VERBOSE,
)
"""The files of a replay. The store of a query has others, too, so it is none."""

_POSITION = b"ledger"
"""A record in which a position is has this word: in ``ledgerId``, or in the path of an admin call."""

Progress = Callable[[int, int, int], None]
"""Called after each micro-batch: batches done, batches in all, output rows so far. A log that is folded twice has twice as
many."""

OnBatch = Callable[[int, Mapping[str, int]], None]
"""Called after each micro-batch of a fold with its number and its output rows by kind."""


class NotEmptyError(InTheWay):
    """The folder for the results has something in it."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of a replay. `records` are those of the log, of which `copied` have no topic and so went to each of the
    `partitions`; a log that has ingress partitions is taken as it is. `rows` counts output rows by kind; `stats` are those
    of `Broker.stats`, with the ingress partition; `seconds` is the time from the first record read to the last row written, without copying the log for Spark;
    `shift` is what `policies` added to the offsets, because they come first; `unmatched` counts commands that named
    a message that never was under `policies`."""

    out: Path
    records: int
    copied: int
    partitions: int
    batches: int
    seconds: float
    rows: Mapping[str, int]
    stats: list[dict[str, Any]]
    shift: int = 0
    unmatched: int = 0


@checked
def replay(
    log: str | Path | pa.Table,
    out: str | Path,
    *,
    policies: str | Path | pa.Table | None = None,
    profile: str | None = None,
    batches: int | None = None,
    partitions: int | None = None,
    overwrite: bool = False,
    quarantined: str | Path | None = None,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
) -> ReplayResult:
    """Replays `log` in this process or, if there is a `spark`, with its tasks in parallel. The results are the same.

    Args:
        log: a file or folder (``.jsonl``, ``.jsonl.gz`` or Parquet), or what `read_log` returns.
        out: the folder for the results. It must be empty or absent, unless `overwrite` is set.
        policies: a file of policies in YAML, or a small log of ADMIN and BROKER_CONFIG commands. They override those in the log.
        profile: the rules and defaults of another Pulsar version. What the log or the policies set stays.
        batches: the number of micro-batches; by default as few as memory allows. The result does not depend on it.
        partitions: spread the log over this many ingress partitions. By default a log keeps its own, and one without gets 4.
        overwrite: delete an earlier replay's results first.
        quarantined: the store of the query that folded the log: set the same records aside as it did.
        progress: called after each micro-batch with the micro-batches done, those in all, and the output rows so far.
        spark: the tasks are as many as ``spark.sql.shuffle.partitions`` allows from then on: `replay` sets it to the number of
            ingress partitions, or of the session's cores if these are fewer.

    Raises `FileNotFoundError` and `MagnetarError`: `LogError` (with `PolicyError`) for the log and the policies, `InTheWay` for `out`,
    `InUse` if another process uses it, `QueryFailed` if Spark fails.
    """
    quarantined = None if quarantined is None else str(quarantined)
    if spark is None:
        return replay_in_process(
            log, out, policies=policies, profile=profile, batches=batches, partitions=partitions, overwrite=overwrite, quarantined=quarantined,
            progress=progress,
        )  # fmt: skip
    from streaming.spark.failure import explained

    with explained(f"The results in {out} are incomplete"):
        return replay_log(
            log, out, policies=policies, profile=profile, batches=batches, partitions=partitions, overwrite=overwrite, quarantined=quarantined,
            progress=progress, spark=spark, cores=spark.sparkContext.defaultParallelism,
        )  # fmt: skip


def replay_log(
    log: str | Path | pa.Table,
    out: str | Path,
    *,
    policies: str | Path | pa.Table | None = None,
    profile: str | None = None,
    batches: int | None = None,
    partitions: int | None = None,
    clock: FoldClock = "log",
    cores: int = 2,
    shuffle_partitions: int | None = None,
    overwrite: bool = False,
    set_aside: Sequence[Coordinates] = (),
    topics_aside: Sequence[str] = (),
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
        policies: a file of policies in YAML (see `streaming.log.policy_files`), a ``broker.conf`` or another file of a real cluster
            (see `streaming.log.dump_files`), or a small log of ADMIN and BROKER_CONFIG commands. Several of them: see
            `streaming.log.policy_sources`. They override those in the log, see `streaming.log.policies`.
        profile: the rules and defaults of another Pulsar version, in place of the log's and beside the policies.
        batches: the number of micro-batches; by default as few as memory allows, see `micro_batches`. The result does not
            depend on it.
        partitions: spread the log over this many ingress partitions, even if it has partitions already. By default a log
            keeps its own, and one without gets `PARTITIONS`.
        cores: the cores of the session that is created if `spark` is None.
        shuffle_partitions: parallel tasks; by default as many as cores and ingress partitions allow.
        set_aside: records that go to quarantine without being decoded, because Magnetar itself fails on them.
        topics_aside: topics whose records all go there, for the same reason.
        quarantined: the store of the query that folded the log. The records and topics that it set aside, or refused because their
            timestamps were ahead of its own time, are set aside here, too.
        broker: stands in for the broker in tests; positions in commands are then taken as they are.
        gates: check records and output rows, see `streaming.quality`.

    Raises:
        LogError, FileNotFoundError: the log, or the policies (`PolicyError` names each mistake in them).
        NotEmptyError: `out` is not empty.
        NoSuchRecord: the log lacks a record to set aside.
        InUse: another process uses `out`, or a command reads it.
        NotWritable: `out` can't be written.
        JavaNotFoundError: there is no Java for Spark.
        pyspark.errors.StreamingQueryException: a task failed; the message contains the cause.
    """
    with _results(out, overwrite, log, *_files(policies), quarantined) as out:
        _check_inputs(log, policies)
        if spark is None:
            spark_java_home()
        loaded = load(
            log,
            policies=policies,
            profile=profile,
            partitions=partitions,
            judge=judge if gates else decode_only,
        )
        aside = _set_aside(loaded, set_aside, topics_aside, quarantined)
        _clear(out)

        from streaming.spark.session import spark_session, warm_workers

        count = pc.count_distinct(loaded.records["partition"]).as_py() or 1
        shuffle_partitions = shuffle_partitions or min(cores, count)
        if spark is None:
            spark = spark_session(
                "magnetar replay", shuffle_partitions=shuffle_partitions, master=f"local[{cores}]"
            )
            warm_workers(spark)
        spark.conf.set("spark.sql.shuffle.partitions", shuffle_partitions)
        return _ReplayWithSpark(loaded, aside, out, batches, broker, gates, progress, spark, clock).run()


def replay_in_process(
    log: str | Path | pa.Table,
    out: str | Path,
    *,
    policies: str | Path | pa.Table | None = None,
    profile: str | None = None,
    batches: int | None = None,
    partitions: int | None = None,
    overwrite: bool = False,
    set_aside: Sequence[Coordinates] = (),
    topics_aside: Sequence[str] = (),
    quarantined: str | None = None,
    progress: Progress | None = None,
    broker: BrokerType = Broker,
) -> ReplayResult:
    """Like `replay_log` with the clock of the log, but without Spark, Java or parallelism. Writes no checkpoint."""
    with _results(out, overwrite, log, *_files(policies), quarantined) as out:
        _check_inputs(log, policies)
        loaded = load(log, policies=policies, profile=profile, partitions=partitions)
        aside = _set_aside(loaded, set_aside, topics_aside, quarantined)
        _clear(out)
        return _ReplayInProcess(loaded, aside, out, batches, broker, True, progress).run()


class Loaded:
    """A log as brokers get it, and what `ReplayResult` says of it.

    `records` (columns `RECORD`) are as the log has them until `pin` puts them under the `policies`. The log had `logged`
    records, of which `copied` went to each of the `partitions`. `transacts`: it turns transactions on.
    """

    def __init__(
        self,
        records: pa.Table,
        policies: list[PolicyCommand],
        logged: int,
        copied: int,
        partitions: int,
        *,
        transacts: bool,
    ) -> None:
        self.records, self.policies, self.transacts = records, policies, transacts
        self.logged, self.copied, self.partitions = logged, copied, partitions

    def needs_translation(self) -> bool:
        """Do commands name positions, which may be other messages' under the policies?"""
        return bool(self.policies) and pc.any(pc.match_substring(self.records["value"], _POSITION)).as_py()

    def pin(self) -> int:
        """Put the log under the policies. Returns what that adds to its offsets."""
        from streaming.log.pins import pin

        self.records, shift = pin(self.records, self.policies)
        return shift


@dataclass(slots=True)
class _Replay(ABC):
    log: Loaded
    aside: SetAside
    out: Path
    batches: int | None
    broker: BrokerType
    gates: bool
    progress: Progress | None
    seconds: float = field(default=0.0, init=False)

    @abstractmethod
    def fold(
        self, folder: Path, store: LedgerStore, sinks: list[Sink], broker: BrokerType, on_batch: OnBatch
    ) -> list[StateRow]:
        """Fold the log. `folder` may be used for files. Returns the last states.

        Adds the time to `seconds`.
        """

    def run(self) -> ReplayResult:
        rows: Counter[str] = Counter()
        twice = self.broker in (Broker, OneOfSeveral) and self.log.needs_translation()
        total = max(1, min(self.count_batches(), len(self.log.records)))

        def done(batches: int, written: Mapping[str, int]) -> None:
            rows.update(written)
            if self.progress is not None:
                self.progress(batches, total * (1 + twice), rows.total())

        log = digest(self.log.records)
        translation = self._translation(lambda batch_id, _: done(batch_id + 1, {})) if twice else None
        shift = self.log.pin()
        self.aside = {_shifted(at, shift): why for at, why in self.aside.items()}
        store, sinks = _sinks(self.out, gates=self.gates)
        several = self.log.partitions > 1 and self.broker is Broker
        broker = translation or (OneOfSeveral if several else self.broker)
        states = self.fold(
            self.out, store, sinks, broker, lambda batch_id, own: done(total * twice + batch_id + 1, own)
        )
        plain = states
        if translation is not None:
            plain = [each._replace(broker=translation.plain(each.broker)) for each in states]
        write_states(self.out / STATE, plain)
        result = ReplayResult(
            out=self.out,
            records=self.log.logged,
            copied=self.log.copied,
            partitions=self.log.partitions,
            batches=total,
            seconds=self.seconds,
            rows=dict(sorted(rows.items())),
            stats=stats(states, broker=broker),
            shift=shift,
            unmatched=0 if translation is None else translation.unmatched(each.broker for each in states),
        )
        replayed = Replayed(
            log=log,
            records=result.records,
            shift=shift,
            unmatched=result.unmatched,
            rows=dict(result.rows),
            files=count_files(self.out),
        )
        write_replayed(self.out / STATE, replayed)
        return result

    def _translation(self, on_batch: OnBatch) -> Translation:
        """Folds the log as it is."""
        from sinks.ledger_store import LedgerStore

        folder = self.out / BASELINE
        folder.mkdir()  # nothing is written into it if the log publishes nothing
        store = LedgerStore(str(folder / "store"))
        states = self.fold(folder, store, [store], TrackingBroker, on_batch)
        shutil.rmtree(folder)
        return Translation.of({each.partition: each.broker for each in states})

    def count_batches(self) -> int:
        """The number of micro-batches, if there are as many records."""
        return self.batches or micro_batches(self.log.records)


class _ReplayInProcess(_Replay):
    def fold(
        self, folder: Path, store: LedgerStore, sinks: list[Sink], broker: BrokerType, on_batch: OnBatch
    ) -> list[StateRow]:
        begun = time.perf_counter()
        fold = Fold(store, broker=broker, set_aside=self.aside)
        for batch_id, part in enumerate(slices(self.log.records, self.count_batches())):
            rows: Counter[str] = Counter()
            for sink in sinks:
                sink.begin(batch_id)
            for partition, own in fold.apply(part):
                for sink in sinks:
                    sink.write(batch_id, partition, own)
                rows.update({kind: len(table) for kind, table in own.items()})
            on_batch(batch_id, rows)
        self.seconds += time.perf_counter() - begun
        return fold.states()


@dataclass(slots=True)
class _ReplayWithSpark(_Replay):
    spark: SparkSession
    clock: FoldClock

    def fold(
        self, folder: Path, store: LedgerStore, sinks: list[Sink], broker: BrokerType, on_batch: OnBatch
    ) -> list[StateRow]:
        from streaming.spark import query, source, state
        from streaming.spark.operator import FoldOptions

        def written(batch: Written) -> None:
            rows: Counter[str] = Counter()
            for (_, kind), count in batch.rows.items():
                rows[kind] += count
            on_batch(batch.batch_id, rows)

        staged, checkpoint = folder / STAGED, folder / "checkpoint"
        source.stage(self.log.records, staged, batches=self.count_batches())
        link = Link(staged)  # Spark takes the address of a folder for a pattern, or for its name
        begun = time.perf_counter()
        running = query.start(
            self.spark,
            source.staged(self.spark, link.path),
            FoldOptions(
                sinks=sinks,
                store=store,
                clock=self.clock,
                broker=broker,
                judge=judge if self.gates else decode_only,
                set_aside=self.aside,
            ),
            checkpoint=checkpoint,
            trigger=query.AVAILABLE_NOW,
            on_batch=written,
        )
        try:
            running.awaitTermination()
        finally:
            running.stop()
        self.seconds += time.perf_counter() - begun
        shutil.rmtree(staged)
        return state.partition_states(self.spark, checkpoint)


def micro_batches(records: pa.Table) -> int:
    """In how many micro-batches a log (columns `RECORD`) is folded by default."""
    partitions: int = pc.count_distinct(records["partition"]).as_py()
    most = min(max(RECORDS_PER_PARTITION * partitions, LEAST_PER_BATCH), RECORDS_PER_BATCH)
    size: int = records["value"].nbytes
    return max(1, -(-len(records) // most), -(-size // BYTES_PER_BATCH))


def load(
    log: str | Path | pa.Table,
    *,
    policies: str | Path | pa.Table | None = None,
    profile: str | None = None,
    partitions: int | None = None,
    judge: Judge = judge,
) -> Loaded:
    """The log with ingress partitions, offsets rising in each, and its policies.

    Raises `LogError`, and `PolicyError` if a policy can't take effect. `judge` decodes the policies, see `streaming.quality.gate`.
    """
    from streaming.log.policies import of_profile, read_policies

    if isinstance(log, pa.Table):
        table = log
        check_coordinates(table, "the log")
    else:
        table = read_log(log)
    copied = 0
    transacts = _transacts(table)
    if partitions is not None or "partition" not in table.column_names:
        partitions = partitions or (1 if transacts else PARTITIONS)
        table = partition_log(table, partitions)
        if partitions > 1:  # every copied record, and no other without a topic, is in the last partition
            last = table.filter(pc.equal(table["partition"], partitions - 1))
            copied = last["topic"].null_count
    else:
        partitions = pc.count_distinct(table["partition"]).as_py()
        check_topics(table)
    records = ordered(table.select(RECORD.names))
    read = [] if policies is None else read_policies(policies, records, judge)
    if profile is not None:
        if named := [each.place for each in read if "profile" in each.fields]:
            raise LogError(
                f"{policies}: {named[0]} names a profile, and profile {profile} is given: leave out one of them"
            )
        read += read_policies(of_profile(profile), records, judge)
    logged = len(table) - copied * (partitions - 1)
    return Loaded(records, read, logged, copied, partitions, transacts=transacts)


def _transacts(table: pa.Table) -> bool:
    """Whether a BROKER_CONFIG of a log turns transactions on."""
    from streaming.log.pins import mentioning

    named = mentioning(table, b"transactionCoordinatorEnabled")
    commands = (command_in(decode_or_refuse(table["value"][row].as_py())) for row in named)
    return any(
        isinstance(each, BrokerConfig)
        and str(each.settings.get("transactionCoordinatorEnabled")).strip().lower() == "true"
        for each in commands
    )


def _set_aside(
    loaded: Loaded, records: Sequence[Coordinates], topics: Sequence[str], quarantined: str | None
) -> SetAside:
    """What to set aside of a log. Raises `NoSuchRecord`."""
    from sinks.quarantine import read_set_aside, read_topics_set_aside

    before: Mapping[Coordinates, Refused] = {}
    aside = [TopicAside(each) for each in topics]
    if quarantined is not None:
        if ":/" not in quarantined and not Path(quarantined).is_dir():
            raise NoSuchRecord(
                f"{quarantined}: no such folder; give the --store of the query that folded the log"
            )
        if ":/" not in quarantined and not any(
            (Path(quarantined) / name).exists() for name in (BEGUN, "quarantine", f"{STATE}/{REPLAYED}")
        ):
            raise NoSuchRecord(
                f"{quarantined} is not the store of a query: give the --store of the one that folded the log"
            )
        before = read_set_aside(quarantined)
        aside += read_topics_set_aside(quarantined)
    known = set(loaded.records["topic"].unique().to_pylist()) if topics else set()
    for each in topics:
        if each not in known:
            raise NoSuchRecord(f"--quarantine-topic {each}: the log has no record of this topic")
    wanted = [*before, *records]
    own = loaded.records.filter(
        pc.is_in(loaded.records["offset"], pa.array([at.offset for at in wanted], pa.int64()))
    )
    there = set(zip(own["partition"].to_pylist(), own["offset"].to_pylist(), strict=True))
    for at in wanted:
        if at not in there:
            raise NoSuchRecord(
                f"the log has no record {at} to set aside: give the log with the query's own partitions"
            )
    found = set_aside_by_name(records, aside)
    found.update(before.items())
    return found


def _shifted(at: Coordinates | TopicAside, shift: int) -> Coordinates | TopicAside:
    if isinstance(at, TopicAside):
        return at._replace(after=at.after + shift)
    return at._replace(offset=at.offset + shift)


def _check_inputs(log: object, policies: object) -> None:
    """Raises `LogError` or `FileNotFoundError` for a path at which no log can be, or no policies, before anything is read."""
    if isinstance(log, str | Path):
        check_log(log)
    for path in _files(policies):
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file of policies")


def _files(policies: object) -> list[Path]:
    return [path for _, path in policy_sources(policies)] if isinstance(policies, str | Path) else []


def is_own(name: str) -> bool:
    """Whether a replay may have written the file of this path below its folder."""
    return _FILES.fullmatch(name) is not None


@contextmanager
def _results(out: str | Path, overwrite: bool, *inputs: object) -> Iterator[Path]:
    """The folder for the results, for this replay alone, after a check that it may be filled."""
    out = Path(out)
    named = [each for each in inputs if isinstance(each, str | Path)]
    check_apart(out, named)
    check_nested(out, named)
    if out.is_symlink():
        check_folder(out)  # before there is a lock in it
    with exclusive([str(out)], "magnetar replay", alone=True):
        if not overwrite and {each.name for each in out.iterdir()} - {LOCK}:
            raise NotEmptyError(
                f"{out} isn't empty: choose another folder, or allow overwriting (--overwrite)"
            )
        is_replay = (out / STATE).is_dir()  # a query's store has folders of the same names
        check_folder(out, own=lambda name: is_replay and is_own(name), writer="replay")
        yield out


def _clear(out: Path) -> None:
    """Delete an earlier replay's results. The folder of the states tells that there is a replay, which has not finished: it comes first
    and stays."""
    (out / STATE).mkdir(exist_ok=True)
    for path in [*(out / STATE).iterdir(), *(out / each for each in sorted(_WRITTEN - {STATE}))]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


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
