"""The live query over a streaming DataFrame of the user's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.arguments import checked
from sinks.lock import exclusive
from streaming.broker.broker import OneOfSeveral
from streaming.kafka.ingress import ensure_dataframe
from streaming.log.partition import PARTITIONS
from streaming.runtime.clock import MAX_AHEAD_MS, FoldClock, RealClock

if TYPE_CHECKING:
    from streaming.spark.dataframes import DataFrame
    from streaming.spark.query import StreamingQuery, Written
    from streaming.spark.session import SparkSession


@checked
def start(
    commands: DataFrame,
    *,
    checkpoint: str | Path,
    store: str | Path,
    partitions: int = PARTITIONS,
    clock: FoldClock = "trigger",
    trigger: str = "1s",
    tables: bool = True,
    keep_outputs: timedelta | None = None,
    quality: bool = True,
    max_ahead_ms: int | None = MAX_AHEAD_MS,
    shuffle_partitions: int | None = None,
    name: str | None = None,
    on_batch: Callable[[Written], None] | None = None,
) -> StreamingQuery:
    """Start a query that folds a stream of commands, and writes what comes out to `store`, exactly once.

    Started again with the same `checkpoint` and `store`, it goes on where it was. They are locked until it has ended.

    Args:
        commands: a streaming DataFrame with these columns and no others:

            * ``offset``, an integer from 0 on. In each ingress partition, offsets rise from record to record, and from micro-batch to
              micro-batch; gaps are allowed. Kafka's do, and so does a number that a database gave each row.
            * ``timestamp``, ms since the epoch, or Spark's timestamp: when the command came. It moves the clock.
            * ``topic``, the full name of a Pulsar topic. Null: the command is to the whole broker.
            * ``value``, the command in JSON (text or binary) or MessagePack. What is not a command is quarantined.
            * ``partition``, an integer below `partitions`; may be left out. All commands of a topic are in one partition, and one
              without a topic is in each. Without this column, a topic's partition is crc32 of its name mod `partitions`, and a
              command to the whole broker goes to each of them.

            Its source gives the same rows again for a micro-batch that is repeated, as files, Kafka and Delta do, and all columns are
            computed from these rows alone.
        checkpoint: a folder for Spark's offsets and the brokers' states, or a URL that Spark can open.
        store: a folder or URL for the entries; ``<store>/tables`` is the Delta table of output rows, ``<store>/quarantine`` has what
            was refused.
        partitions: the number of ingress partitions. It can't change later.
        clock: what advances time. ``trigger``: the commands' timestamps, and the time of each micro-batch, so that messages
            expire while nothing comes. ``log``: timestamps alone, for commands of the past.
        trigger: the least time between micro-batches, such as ``500ms``. ``availableNow``: fold what is there, and end. Time then goes on
            only in micro-batches with commands: a start that finds none does not look at the time.
        tables: write the table of output rows.
        keep_outputs: remove rows once they are older than this, rounded up to whole days. None: keep all.
        quality: check the output rows, samples of them in a process beside this one.
        max_ahead_ms: quarantine commands that are so much, or more, ahead of their micro-batch. None: accept any time.
            Only for the clock ``trigger``.
        shuffle_partitions: parallel tasks. The default is `partitions`, or the number of the session's cores if that is less. Counts at
            the checkpoint's first micro-batch only.
        name: that of the query in Spark.
        on_batch: called with the number of each micro-batch and what it wrote, after it was written and before Spark commits
            it. It may be called again for the same micro-batch after a crash. If it raises, the query fails.

    Raises:
        ValueError: an argument has no effect together with another one.
        BadCommands: columns are wrong or missing, or `commands` is no stream.
        InUse: another query uses checkpoint or store.
        MagnetarError: the trigger or the store's URL can't be read, checkpoint or store can't be written, or checkpoint, store and
            `partitions` do not belong together.

    All of that is raised before the query starts. What ends it later is in its ``exception()``.
    """
    from streaming.jobs.live_sinks import LiveSinks
    from streaming.spark import query
    from streaming.spark.checkpoint import check, check_clock
    from streaming.spark.dataframes import packed
    from streaming.spark.operator import FoldOptions
    from streaming.spark.trigger import SetBack, TriggerClock, interval
    from streaming.state.seed import NotWhole, read_seed

    if trigger != query.AVAILABLE_NOW:
        interval(trigger)
    source = packed(commands, partitions, streaming=True)
    if keep_outputs is not None and not tables:
        raise ValueError("start: keep_outputs has no effect without tables: leave it out")
    if clock == "log" and max_ahead_ms not in (None, MAX_AHEAD_MS):
        raise ValueError("start: max_ahead_ms has no effect with the clock log: leave it out")
    spark, store = commands.sparkSession, str(store)
    live = clock == "trigger"
    if shuffle_partitions is None:
        shuffle_partitions = min(partitions, spark.sparkContext.defaultParallelism)
    # The store of a checkpoint at a URL shows for both that they are in use, see `run_query`.
    folders = [store] if "://" in str(checkpoint) else [str(checkpoint), store]
    stopped = threading.Event()
    with ExitStack() as stack:
        held = stack.enter_context(exclusive(folders, "magnetar.start"))
        check(checkpoint, None)
        check_clock(checkpoint, clock)
        if read_seed(store) is not None:
            raise NotWhole(
                f"{store} has the states of a magnetar run, which goes on from them: use a new one"
            )
        sinks = LiveSinks(store, tables=tables, keep_outputs=keep_outputs, quality=quality)
        stack.callback(sinks.close)
        sinks.begin(checkpoint)
        ensure_dataframe(store, partitions)
        settings = {"spark.sql.shuffle.partitions": str(shuffle_partitions)}
        if trigger == query.AVAILABLE_NOW:
            # Spark has timeouts to look for after each micro-batch, and would never end.
            settings["spark.sql.streaming.noDataMicroBatches.enabled"] = "false"
        with _set(spark, settings):
            running = query.start(
                spark,
                source,
                FoldOptions(
                    sinks=sinks.all,
                    store=sinks.ledgers,
                    clock=clock,
                    broker=OneOfSeveral,  # as far as is known
                    max_ahead_ms=max_ahead_ms if live else None,
                ),
                checkpoint=checkpoint,
                trigger=trigger,
                on_batch=on_batch,
                name=name,
                check=held.check,
                begun=sinks.begun,
                on_end=sinks.end,
                check_time=TriggerClock(RealClock(max_ahead_ms), stopped).check if live else (lambda: None),
            )
        held.on_loss(running.stop)
        watch = SetBack("0ms" if trigger == query.AVAILABLE_NOW else trigger)
        return query.Owner(running, stopped, stack.pop_all(), watch.check)


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for a query that starts meanwhile, which keeps them."""
    before = {name: str(spark.conf.get(name)) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
