"""The live query: commands from a Kafka topic, for as long as nobody stops it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from schemas.errors import MagnetarError
from schemas.records import Coordinates, TopicAside
from sinks.lock import exclusive
from streaming.broker.broker import Broker, OneOfSeveral
from streaming.fold.records import BrokerType, NoSuchRecord, StateRow, partition_metrics, set_aside_by_name
from streaming.kafka.arrivals import Arrivals
from streaming.kafka.client import administration
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.ingress import TopicWatch, check_last, claim, ensure_ingress
from streaming.kafka.retention import check_retention
from streaming.kafka.topics import are_distinct, records_within, topic_offsets
from streaming.kafka.unread import Unread
from streaming.kafka.url import KafkaUrl, KafkaUrlError
from streaming.log.partition import PARTITIONS
from streaming.runtime.clock import MAX_AHEAD_MS, FoldClock, RealClock

if TYPE_CHECKING:
    from sinks.folded import FoldedFiles
    from sinks.ledger_store import LedgerStore
    from streaming.metrics.query import BatchProgress, QueryMetrics
    from streaming.spark.query import StreamingQuery, Written
    from streaming.spark.session import SparkSession

RECORDS_PER_BATCH = 200_000
BYTES_PER_BATCH = 128 << 20
"""The most that a micro-batch takes, so that a query which is far behind doesn't need all of it in memory. Spark counts
records; how many of them are so many bytes is what the topic's average says at the start."""

_NAME = "magnetar"

FILES_SECONDS = 300.0
"""How often the files of open ledgers and of the checkpoint are counted for the metrics. Their number is bounded."""

UNREAD_SECONDS = 5.0
"""How often Kafka is asked where the topic ends. The query does not wait for the answer."""

_A_TOPIC_EACH = "ingress, responses and dead letters need separate topics"

_IDLE_SECONDS = 1.0
"""A query without traffic runs a micro-batch about so often, whatever its trigger: timers may be late by as much."""


class Beside(Protocol):
    """What folds again, beside the query, what that folds: `streaming.canaries.beside.Canaries`."""

    @property
    def folded(self) -> FoldedFiles:
        """Where the query notes what it folds."""
        ...

    def begin(
        self,
        states: Iterable[StateRow],
        batch: int,
        partitions: int,
        ledgers: LedgerStore,
        spark: SparkSession,
    ) -> None:
        """Called before the query starts, with its states as of the micro-batch `batch`, −1: none."""
        ...

    def start(self) -> None:
        """Called when it has started."""
        ...

    def committed(self, batch: int) -> None:
        """Called when a micro-batch is committed."""
        ...

    def close(self) -> None:
        """Called when it has ended, or failed to start."""
        ...


StateStore = Literal["hdfs", "rocksdb"]
"""Where Spark keeps the brokers' states between micro-batches, by Spark's own names: in the JVM's heap, or in RocksDB beside it."""

_PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


def run_query(
    ingress: str,
    checkpoint: str | Path,
    store: str,
    *,
    responses: str | None = None,
    dead_letters: str | None = None,
    config: KafkaConfig = PLAIN,
    tables: bool = True,
    keep_outputs: timedelta | None = None,
    trigger: str = "1s",
    clock: FoldClock = "trigger",
    partitions: int = PARTITIONS,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    cores: int = 2,
    state_store: StateStore = "hdfs",
    shuffle_partitions: int | None = None,
    records_per_batch: int | None = None,
    quality: bool = True,
    set_aside: Sequence[Coordinates] = (),
    topics_aside: Sequence[str] = (),
    max_ahead_ms: int | None = MAX_AHEAD_MS,
    on_batch: Callable[[Written], None] | None = None,
    on_progress: Callable[[BatchProgress], None] | None = None,
    on_start: Callable[[StreamingQuery], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    metrics: QueryMetrics | None = None,
    canaries: Beside | None = None,
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
    broker: BrokerType = Broker,
) -> None:
    """Runs the query until `stop` is set, then lets the micro-batch at hand finish.

    All arguments are checked before Spark starts.

    Args:
        ingress: ``kafka://HOST:PORT/TOPIC``; the topic is made, with `partitions`, if it is absent.
        checkpoint: Spark's offsets and the brokers' states. With the same one the query goes on where it was. A folder, or a URL that
            Spark can open: on S3, ``s3a://BUCKET/…``.
        store: a folder or URL for the entries; quarantine and, unless `tables` is false, the output tables beside
            them (``<store>/quarantine``, ``<store>/tables``).
        responses: ``kafka://HOST:PORT/TOPIC`` for the answers to clients; made if absent.
        dead_letters: ``kafka://HOST:PORT/TOPIC`` for what is quarantined, see `sinks.dead_letters`; made if absent.
        config: credentials for Kafka, the same for all topics, see `streaming.kafka.config`.
        keep_outputs: remove output rows once they are older than this, rounded up to whole days. None: keep all.
        trigger: the least time between micro-batches. As `clock` is ``trigger``, each advances the clock. Without traffic
            there is one a second at most, and the next record starts one at once.
        shuffle_partitions: parallel tasks; by default as many as cores and ingress partitions allow. 1 has the
            shortest micro-batches. Counts at the checkpoint's first micro-batch only.
        master: of the session made if `spark` is None, such as ``spark://HOST:7077``. None: a local session.
        conf: more of Spark's settings for that session.
        cores: of that session.
        state_store: where the states are. Counts at the checkpoint's first micro-batch only.
        records_per_batch: the most that a micro-batch takes; by default `RECORDS_PER_BATCH`, or fewer if they are so large
            that they would take more than `BYTES_PER_BATCH`.
        quality: check output rows too, and samples with Great Expectations in a process beside this one, see
            `streaming.quality.sink`. Commands are always checked.
        set_aside: records that go to quarantine without being decoded, because Magnetar itself fails on them.
        topics_aside: topics whose records all go there from now on, for the same reason. Their states are not decoded.
        max_ahead_ms: quarantine records whose timestamp is so much, or more, after the time of their micro-batch, instead of
            letting them take the clock along. If the machine's clock jumps ahead as far, no micro-batch folds until it is back. None:
            accept any time.
        on_note: gets sentences about the topic's retention, see `streaming.kafka.retention`, about a topic of responses or dead letters
            that somebody deleted and recreated while the query runs, and about a transaction that holds records back for a minute.
        on_batch, on_start: called on the driver. on_progress: the same after the commit of a micro-batch, in another thread.
        metrics: gets the figures of the query and its topics after each micro-batch. Those of topics that a former run left are
            read from the checkpoint first.
        canaries: fold again what the query folds, under other policies, and without an effect on it.

    Raises:
        KafkaUrlError, KafkaConfigError, BadTrigger, BadUrl: an address, the trigger or the store's URL can't be read.
        InUse: another process uses the checkpoint or the store.
        NotWritable: the checkpoint or the store can't be written.
        JavaNotFoundError, JarsUnavailableError: there is no Java for Spark, or no Kafka source.
        KafkaUnreachable: no Kafka there.
        NoSuchRecord: the topic has no such record to set aside, or the query is past it. Or what should be set aside is of a micro-batch to
            repeat whose rows are committed.
        BadCheckpoint, IngressChanged, ForeignFiles: checkpoint, store and topic don't belong together.
        TopicInUse: a topic for responses or dead letters has those of another query.
        NotWhole: the store has got only a part of another query's states, see `streaming.state.seed`.
        LogLost: Kafka has deleted records that the query has not folded.
        LeaseLost: another process took the store over while this one stalled.
        pyspark.errors.StreamingQueryException: a task failed. Started again, the query repeats the micro-batch.
    """
    from sinks import segments
    from sinks.storage import Storage
    from streaming.jobs.live_sinks import LiveSinks
    from streaming.runtime.jars import s3a_jars, spark_kafka_jars
    from streaming.runtime.java import spark_java_home
    from streaming.spark.checkpoint import check as check_checkpoint
    from streaming.spark.checkpoint import (
        check_clock,
        check_scheme,
        committed,
        committed_offsets,
        files,
        is_on_s3,
        last_committed,
    )
    from streaming.spark.trigger import SetBack, TriggerClock, interval, seconds
    from streaming.state.seed import read_seed, with_seed

    def written(batch: Written) -> None:
        if metrics is not None:
            metrics.batch(batch.rows, batch.metrics)
            if sinks.output is not None:
                metrics.files({"tables": sinks.output.files})
        if on_batch is not None:
            on_batch(batch)

    def done(batch: BatchProgress) -> None:
        batch = batch._replace(behind=unread.after(batch.read, batch.behind))
        if canaries is not None:
            canaries.committed(batch.batch_id)
        if metrics is not None:
            metrics.progress(batch)
        if on_progress is not None:
            on_progress(batch)

    def tell(machine: RealClock) -> None:
        if metrics is not None:
            metrics.clock(machine.machine_ahead / 1000, machine.is_followed)

    def count_files(found: QueryMetrics, ended: threading.Event) -> None:
        storage = Storage(store)
        while True:
            with suppress(OSError):  # it is counted again later
                found.files({"segments": segments.count(storage), "checkpoint": files(checkpoint)})
            if ended.wait(FILES_SECONDS):
                return

    def count_unread(ended: threading.Event) -> None:
        with closing(unread):
            while True:
                unread.look()
                if metrics is not None and (behind := unread.count) is not None:
                    metrics.unread(behind)
                if ended.wait(UNREAD_SECONDS):
                    return

    interval(trigger)
    if spark is None:
        check_scheme(checkpoint, conf or {})
    machine = RealClock(max_ahead_ms)
    url = KafkaUrl.parse(ingress)
    answers = KafkaUrl.parse(responses) if responses is not None else None
    letters = KafkaUrl.parse(dead_letters) if dead_letters is not None else None
    outputs = [each for each in (answers, letters) if each is not None]
    topics = [url, *outputs]
    if len(set(topics)) < len(topics):
        raise KafkaUrlError(f"{ingress}: {_A_TOPIC_EACH}")
    stop = stop or threading.Event()
    # The store of a checkpoint at a URL shows for both that they are in use: two leases would be two waits after a crash.
    folders = [store] if "://" in str(checkpoint) else [str(checkpoint), store]
    with exclusive(folders, "magnetar run") as held:
        check_checkpoint(checkpoint, url.topic)
        check_clock(checkpoint, clock)
        seed = read_seed(store)
        sinks = LiveSinks(store, tables=tables, keep_outputs=keep_outputs, quality=quality)
        planned = sinks.begin(checkpoint)
        if set_aside or topics_aside:
            sinks.check_aside(checkpoint, url.topic, set_aside, topics_aside)
        if seed is not None and planned is not None:
            seed.check(committed_offsets(checkpoint, url.topic))
        if spark is None:
            spark_java_home()
        if not are_distinct(topics, config):
            raise KafkaUrlError(f"{ingress}: {_A_TOPIC_EACH}; these addresses lead to the same Kafka")
        count = ensure_ingress(url, store, partitions, config)
        claim(outputs, store, count, config)
        if planned is not None:
            check_last(url, sinks.begun.last(), config)
            last = committed(checkpoint)
            offsets = None if last is None else last.offsets
            if offsets is None and seed is not None:
                offsets = {int(partition): offset for partition, offset in seed.seed.offsets.items()}
            for note in check_retention(url, offsets, config):
                if on_note is not None:
                    on_note(note)
        if set_aside:
            _check_set_aside(set_aside, url, config, committed_offsets(checkpoint, url.topic), store)
        if records_per_batch is None:
            records_per_batch = min(
                records_within(url, BYTES_PER_BATCH, config) or RECORDS_PER_BATCH, RECORDS_PER_BATCH
            )
        if letters is not None:
            from sinks.dead_letters import KafkaDeadLetters

            sinks.all.append(KafkaDeadLetters(letters.bootstrap, letters.topic, config))
        if answers is not None:
            from sinks.kafka import KafkaResponses

            # Last: an answer may leave only when what it tells of is stored.
            sinks.all.append(KafkaResponses(answers.bootstrap, answers.topic, config, store=sinks.ledgers))
        shuffle_partitions = shuffle_partitions or min(cores, count)
        if spark is None:
            spark_kafka_jars()
            if is_on_s3(checkpoint):
                s3a_jars()
        if stop.is_set():
            return

        from streaming.spark import progress, query, source
        from streaming.spark.failure import not_started
        from streaming.spark.operator import FoldOptions
        from streaming.spark.session import ATTEMPTS, spark_session, warm_workers
        from streaming.spark.state import committed_states

        if spark is None:
            try:
                spark = spark_session(
                    "magnetar run",
                    shuffle_partitions=shuffle_partitions,
                    master=master or f"local[{cores},{ATTEMPTS}]",
                    with_kafka=True,
                    with_s3=is_on_s3(checkpoint),
                    conf={"spark.cores.max": str(cores)} | dict(conf or {}),
                )
            except Exception as error:
                # Spark's launcher is a shell script, which ends if a service manager signals all processes.
                if not stop.is_set():
                    if isinstance(error, MagnetarError):
                        raise
                    raise not_started(error, master, conf or {}) from error
        if spark is None or stop.is_set():
            return
        spark.conf.set("spark.sql.shuffle.partitions", shuffle_partitions)
        for name, value in state_settings(state_store).items():
            spark.conf.set(name, value)
        warm_workers(spark)
        if metrics is not None or canaries is not None:
            before = [*with_seed(committed_states(spark, checkpoint), seed)]
            if metrics is not None:
                metrics.known(partition_metrics(before, broker=broker))
            if canaries is not None:
                canaries.begin(before, last_committed(checkpoint), count, sinks.ledgers, spark)
        arrivals = Arrivals(url, config, max(0.0, _IDLE_SECONDS - seconds(trigger)), stop)
        watch = TopicWatch(url, outputs, store, config, on_note or (lambda _: None))
        unread = Unread(url, config, on_note or (lambda _: None))
        watching = ExitStack()
        if metrics is not None or on_progress is not None or canaries is not None:
            watching.enter_context(progress.listening(spark, _NAME, done))
        running = query.start(
            spark,
            source.kafka(
                spark,
                url.bootstrap,
                url.topic,
                max_offsets_per_trigger=records_per_batch,
                config=config,
                partitions=count,
                offsets=None if seed is None else seed.seed.offsets,
            ),
            FoldOptions(
                sinks=sinks.all,
                store=sinks.ledgers,
                clock=clock,
                broker=OneOfSeveral if count > 1 and broker is Broker else broker,
                set_aside=set_aside_by_name(set_aside, map(TopicAside, topics_aside)),
                max_ahead_ms=max_ahead_ms,
                measured=metrics is not None,
                first_state=None if seed is None else seed.state,
                folded=None if canaries is None else canaries.folded,
            ),
            checkpoint=checkpoint,
            trigger=trigger,
            on_batch=written,
            on_idle=arrivals.wait if seconds(trigger) < _IDLE_SECONDS else None,
            name=_NAME,
            check=watch.check,
            begun=sinks.begun,
            on_end=sinks.end,
            check_time=(lambda: None) if clock == "log" else TriggerClock(machine, stop, tell).check,
        )
        ended = threading.Event()
        counting = threading.Thread(target=count_unread, args=(ended,), name="unread", daemon=True)
        counting.start()
        if metrics is not None:
            threading.Thread(target=count_files, args=(metrics, ended), name="files", daemon=True).start()
        try:
            held.on_loss(running.stop)
            if canaries is not None:
                canaries.start()
            if on_start is not None:
                on_start(running)
            query.wait(running, stop, SetBack(trigger).check)
        finally:
            ended.set()
            running.stop()
            arrivals.close()
            watch.close()
            if canaries is not None:
                canaries.close()
            counting.join(UNREAD_SECONDS)
            watching.close()
            if metrics is not None:
                metrics.stopped()
            sinks.close()
        held.check()


def state_settings(state_store: StateStore) -> dict[str, str]:
    """Spark's settings for a state store."""
    return {
        "spark.sql.streaming.stateStore.providerClass": _PROVIDERS[state_store],
        # A micro-batch writes what it changed, and maintenance the rest, in the background.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }


def _check_set_aside(
    records: Sequence[Coordinates],
    url: KafkaUrl,
    config: KafkaConfig,
    committed: Mapping[int, int],
    store: str,
) -> None:
    """Raise `NoSuchRecord` for a record that the query can't set aside any more, or that doesn't exist."""
    from sinks.quarantine import read_set_aside

    with administration(url, config) as admin:
        offsets = topic_offsets(admin, url.topic)
    before = read_set_aside(store)
    for at in records:
        if at in before and at.offset < committed.get(at.partition, 0):
            continue  # done: the option may stay in a unit file
        if at.partition not in offsets:
            raise NoSuchRecord(
                f"--quarantine {at}: topic {url.topic} has {len(offsets)} partitions, numbered from 0"
            )
        first, end = offsets[at.partition]
        if not first <= at.offset < end:
            raise NoSuchRecord(
                f"--quarantine {at}: partition {at.partition} of topic {url.topic} has offsets {first} to {end - 1}"
            )
        if at.offset < committed.get(at.partition, 0):
            raise NoSuchRecord(
                f"--quarantine {at}: the query has folded that record already, and is at offset "
                f"{committed[at.partition]} of partition {at.partition}: it can't be set aside any more"
            )
