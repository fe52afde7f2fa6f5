"""A log under its own and under other policies: how the fate of each message changes, and why.

Exact until the first moment at which a client would have seen something else. From there on, the recorded clients no longer
answer what happens: such topics are marked *open-loop*, with that moment.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from schemas.arguments import checked
from schemas.records import RECORD
from streaming.answers.fates import CHANGE_COLUMNS
from streaming.answers.forked import forked
from streaming.answers.quarantined import in_all
from streaming.answers.whatif import difference_table
from streaming.answers.whatif.answer import (
    BASELINE,
    SERIES,
    SUMMARY,
    Model,
    ModelledRun,
    Totals,
    WhatIf,
)
from streaming.answers.whatif.clients.history import History
from streaming.answers.whatif.clients.made_log import ClientSettings
from streaming.answers.whatif.clients.reactive import ASSUMED, react
from streaming.answers.whatif.differences import Comparison, PartitionCompared, compared, united
from streaming.answers.whatif.folder import Folder, opened
from streaming.answers.whatif.projection import LiveState, Start, partitions_of, project
from streaming.answers.whatif.rules import (
    differing_settings,
    differing_topics,
    rules_met,
)
from streaming.answers.whatif.side_by_side import NO_TRANSACTIONS, fold_reacted, fold_side_by_side
from streaming.answers.whatif.texts import is_in, ranks
from streaming.broker.config import PROFILE_OF
from streaming.jobs.replay import load
from streaming.log.files import read_log
from streaming.log.partition import by_partition
from streaming.log.pins import (
    PartitionPins,
    configurations,
    is_mirrored,
    may_be_overridden,
    of_baseline,
    pin,
    pins,
)
from streaming.log.policies import configuring, of_profile, read_policies
from streaming.log.policy_sources import name_of
from streaming.log.table import LogError
from streaming.quality.gate import judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_PROCESS = 50_000
"""A log with fewer records is folded in this process."""


class PolicySet(NamedTuple):
    """Policies under a name: files (see `streaming.log.policy_sources`), or the table of a log of ADMIN and BROKER_CONFIG commands."""

    name: str
    source: str | Path | pa.Table


@checked
def whatif(
    log: str | Path | pa.Table,
    policies: str | Path | Sequence[str | Path | PolicySet] = (),
    *,
    profile: str | None = None,
    partitions: int | None = None,
    processes: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    spark: SparkSession | None = None,
    live: LiveState | None = None,
    clients: ClientSettings | None = None,
    name: str | None = None,
    checkpoint: str | Path | None = None,
) -> WhatIf:
    """Fold `log` as it is, and under each of `policies`, in one pass.

    Args:
        log: as for `replay`.
        policies: a file, or several files or tables.
        profile: the defaults of another Pulsar version, as one more policy set: what would an upgrade change?
        partitions: as for `replay`.
        processes: fold so many ingress partitions at a time; by default as many as there are cores.
        progress: called with the records done, and in all; not if Spark models clients.
        spark: fold by a streaming query of this session, instead of in processes. Modelled clients: each ingress partition in a task.
        checkpoint: with `spark`, a folder for what the query needs to go on after a crash, with the same arguments. Tasks need it, too.
        clients: model what clients would have done; None: they act as recorded.
        live: fold the traffic of the log from the states of a live query on. Clients then act
            as recorded.
        name: what the answer calls the log, if not by its path.

    Raises `LogError`, also if there are no clients to model, `PolicyError`, `FileNotFoundError`, for what is wrong with `live`,
    `NotFound`, or with `checkpoint`, `InTheWay` and `InUse`, and `QueryFailed` if the query fails.
    """
    if live is not None and clients is not None:
        raise ValueError("clients are modelled from the start of a log, not from the state of a live query")
    if checkpoint is not None and (spark is None or clients is not None):
        raise ValueError("a checkpoint is for a streaming query: it needs Spark, and clients as recorded")
    name = name or (str(log) if isinstance(log, str | Path) else "a table")
    named = list(named_sets([policies] if isinstance(policies, str | Path) else policies, profile))
    with ExitStack() as stack:
        folder = None
        if spark is not None and clients is None:
            if checkpoint is None and not str(spark.sparkContext.master).startswith("local"):
                raise ValueError("on a cluster, name a checkpoint: a folder that all of its machines have")
            inputs = [log, *(each.source for each in named)]
            folder = stack.enter_context(opened(checkpoint, inputs))
        logged, parts, starts = _traffic(log, name, partitions, live, clients, folder)

        def fold(parts: Mapping[int, pa.Table], named: Sequence[PolicySet]) -> WhatIf:
            work = list(_works(parts, named, starts, clients))
            total = sum(map(len, parts.values()))
            found = list(_fold_all(work, processes, total, progress, spark, folder))
            return joined(name, logged, found, [each.name for each in named], clients)

        found = fold(parts, named)
        if profile is not None:
            _add_rules(found, parts, profile, fold)
    return found


def _traffic(
    log: str | Path | pa.Table,
    name: str,
    partitions: int | None,
    live: LiveState | None,
    clients: ClientSettings | None,
    folder: Folder | None,
) -> tuple[int, dict[int, pa.Table], Mapping[int, Start]]:
    """How many records a log has, and by ingress partition what there is to fold, and where its fold starts. With a `folder`, of a log as
    it was when the what-if began. Raises as `whatif`."""
    if folder is not None:
        log, before = folder.as_begun(log if isinstance(log, pa.Table) else read_log(log), live)
    else:
        before = None if live is None else live.read()
    if before is not None:
        partitions = partitions_of(before.states, partitions)
    loaded = load(log, partitions=partitions)
    if loaded.transacts:
        raise LogError(NO_TRANSACTIONS)
    if clients is not None and is_mirrored(loaded.records):
        raise LogError(
            f"{name}: a mirror wrote it, which can't see what clients send: there are none to model. Let them act as recorded"
        )
    records, starts = (loaded.records, {}) if before is None else project(loaded.records, before)
    if folder is not None:
        assert isinstance(log, pa.Table)
        folder.note(log, live, before)
    return loaded.logged, by_partition(records), starts


def _whole(parts: Mapping[int, pa.Table]) -> pa.Table:
    return pa.concat_tables([RECORD.empty_table(), *parts.values()])


def _add_rules(
    found: WhatIf,
    parts: Mapping[int, pa.Table],
    profile: str,
    fold: Callable[[Mapping[int, pa.Table], Sequence[PolicySet]], WhatIf],
) -> None:
    """Find out which rules of the profile make its differences, in the ingress partitions that have any."""
    name = found.totals[-1].policies
    settings = differing_settings(configurations(_whole(parts)), PROFILE_OF[profile])
    differ = differing_topics(found, name)
    topics = {partition: set(own["topic"].unique().to_pylist()) for partition, own in parts.items()}
    affected = parts
    # Calls about no topic are in all of them, and so are those that name theirs in the path alone.
    if set(differ) <= set().union(*topics.values()):
        affected = {partition: own for partition, own in parts.items() if topics[partition] & set(differ)}
    found.rules = rules_met(
        found,
        profile,
        settings,
        differ,
        lambda sets: fold(
            affected, [PolicySet(name, configuring(**fields)) for name, fields in sets.items()]
        ),
    )


def _works(
    parts: Mapping[int, pa.Table],
    named: Sequence[PolicySet],
    starts: Mapping[int, Start],
    clients: ClientSettings | None,
) -> Iterator[_Work]:
    """What there is to fold, by ingress partition. Raises `PolicyError`."""
    records = _whole(parts)
    policies = [read_policies(each.source, records, judge) for each in named]
    rows = may_be_overridden(records) if clients is None and policies else []
    by_set = [pins(records, each, rows) for each in policies] if clients is None else []
    baselines = of_baseline(records) if clients is None else {}
    pinned = [pin(records, each) for each in policies] if clients is not None else []
    for partition, own in parts.items():
        start = starts.get(partition)
        own_pins, baseline = [each[partition] for each in by_set], baselines.get(partition)
        if start is not None:
            own_pins = [start.under(each) for each in own_pins]
            baseline = baseline and start.under(baseline)
        logs = [
            (each.records.filter(pc.equal(each.records["partition"], partition)), each.shift)
            for each in pinned
        ]
        yield _Work(own, partition, own_pins, baseline, [each.name for each in named], start, logs, clients)


def named_sets(policies: Sequence[str | Path | PolicySet], profile: str | None) -> Iterator[PolicySet]:
    """The policy sets, each under a name of its own. Raises `LogError` if there is no such profile."""
    seen: set[str] = set()
    for each in policies:
        found = each if isinstance(each, PolicySet) else PolicySet(name_of(each), each)
        name = found.name
        number = 2
        while name in seen or name == BASELINE:
            name = f"{found.name}-{number}"
            number += 1
        seen.add(name)
        yield PolicySet(name, found.source)
    if profile is not None:
        yield PolicySet(f"profile {profile}", of_profile(profile))


class _Work(NamedTuple):
    """An ingress partition to fold: its records, the policies of each set, what is done to the log for the `baseline` (None: nothing),
    and where the fold starts (None: with nothing). With modelled `clients`, also its records under each set and how much higher their offsets are. `file`: where a large table of differences
    goes, since what a process returns is copied."""

    records: pa.Table
    partition: int
    pins: list[PartitionPins]
    baseline: PartitionPins | None
    names: list[str]
    start: Start | None
    pinned: list[tuple[pa.Table, int]]
    clients: ClientSettings | None
    file: Any = None


def _fold_all(
    work: list[_Work],
    processes: int | None,
    total: int,
    progress: Callable[[int, int], object] | None,
    spark: SparkSession | None,
    folder: Folder | None = None,
) -> Iterator[PartitionCompared]:
    done = 0

    def note(records: int) -> None:
        nonlocal done
        done += records
        if progress is not None:
            progress(done, total)

    if spark is not None and folder is not None:
        from streaming.answers.whatif import query

        parts = [
            query.Partition(each.partition, each.records, each.pins, each.names, each.start, each.baseline)
            for each in work
        ]
        yield from query.fold(spark, parts, folder.next(), folder.advice, note)
        return
    if spark is not None:
        yield from spark.sparkContext.parallelize(work, max(len(work), 1)).map(_part).toLocalIterator()
        return
    workers = min(processes or os.cpu_count() or 1, len(work))
    if workers < 2 or (processes is None and total < IN_PROCESS):
        for each in work:
            yield _part(each, note)
        return
    largest_first = sorted(work, key=lambda each: -len(each.records))
    with ExitStack() as files:
        if len(work) <= _FILES:
            largest_first = [
                each._replace(file=files.enter_context(TemporaryFile())) for each in largest_first
            ]
        for each, found in zip(largest_first, forked(_part, largest_first, workers), strict=True):
            note(len(each.records))
            yield found._replace(differences=difference_table.from_file(found.differences, each.file))


_FILES = 256
"""So many processes may have a file for their differences. Of more, they come through a pipe, into memory."""


def _part(work: _Work, progress: Callable[[int], object] | None = None) -> PartitionCompared:
    if work.clients is None:
        comparison = Comparison(work.names, work.file)
        folded = fold_side_by_side(
            work.records,
            work.partition,
            work.pins,
            progress,
            work.start,
            work.baseline,
            comparison.settle,
        )
        return compared(folded, work.names, comparison)
    history = History(work.records, work.partition)
    reacted = [
        react(work.records, pinned, shift, work.partition, history, work.clients)
        for pinned, shift in work.pinned
    ]
    folded = fold_reacted(work.records, work.partition, reacted, progress)
    return compared(folded, work.names, Comparison(work.names, work.file))


# ---- all partitions together


def joined(
    log: str,
    records: int,
    parts: Sequence[PartitionCompared],
    names: Sequence[str],
    clients: ClientSettings | None = None,
) -> WhatIf:
    """What came of all ingress partitions together."""

    def together(tables: Sequence[pa.Table], schema: pa.Schema, keys: Sequence[str]) -> pa.Table:
        table = united(tables, schema)
        plain = [
            ranks(table[key]) if pa.types.is_dictionary(schema.field(key).type) else table[key]
            for key in keys
        ]
        order = pc.sort_indices(pa.Table.from_arrays(plain, list(keys)), [(key, "ascending") for key in keys])
        return table.take(order)

    summary = together([each.summary for each in parts], SUMMARY, ("topic", "subscription"))
    differences = difference_table.together([each.differences for each in parts])
    series = together([each.series for each in parts], SERIES, ("topic", "subscription", "measure", "clock"))
    unmatched = [sum(each.unmatched[run] for each in parts) for run in range(len(names) + 1)]
    return WhatIf(
        log=log,
        records=records,
        begin=min((each.begin for each in parts), default=0),
        end=max((each.end for each in parts), default=0),
        clients="recorded" if clients is None else "reactive",
        totals=[_totals(name, summary, unmatched[run]) for run, name in enumerate((BASELINE, *names))],
        summary=summary,
        differences=differences,
        series=series,
        model=None if clients is None else _model(clients, parts, names),
        sampled=sorted(topic for each in parts for topic in each.sampled),
        compacted=[topic for each in parts for topic in each.compacted],
        quarantined=in_all(each.quarantined for each in parts),
    )


def _model(clients: ClientSettings, parts: Sequence[PartitionCompared], names: Sequence[str]) -> Model:
    def total(run: int, field: str) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for part in parts:
            counts.update(getattr(part.reacted[run], field))
        return dict(sorted(counts.items()))

    runs = [
        ModelledRun(
            name,
            sum(total(run, "own").values()),
            sum(total(run, "dropped").values()),
            sum(len(part.reacted[run].given_up) for part in parts),
        )
        for run, name in enumerate(names)
    ]
    left_out = total(0, "left_out") if names else {}
    return Model(clients, list(ASSUMED), left_out, runs)


def _totals(name: str, summary: pa.Table, unmatched: int) -> Totals:
    own = summary.filter(is_in(summary["policies"], [name]))

    def total(column: str, rows: pa.Table = own) -> int:
        return pc.sum(rows[column]).as_py() or 0

    open_ = own.filter(pc.is_valid(own["open_loop_from"]))
    topics = own.filter(pc.is_null(own["subscription"]))
    subscriptions = own.filter(pc.is_valid(own["subscription"]))
    return Totals(
        policies=name,
        differences={change: total(column) for change, column in CHANGE_COLUMNS.items()},
        unchanged=total("unchanged"),
        unjudged=sum(total(column, open_) for column in (*CHANGE_COLUMNS.values(), "unchanged")),
        open_loop_topics=len(open_.filter(pc.is_null(open_["subscription"]))),
        unmatched=unmatched,
        expired=total("expired"),
        evicted=total("evicted"),
        trimmed=total("trimmed"),
        refused=total("refused"),
        held=total("held"),
        backlog=total("backlog", subscriptions),
        storage=total("storage", topics),
        peak_storage=total("peak_storage", topics),
    )
