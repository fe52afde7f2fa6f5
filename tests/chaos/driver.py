"""A driver process: starts Spark once, then runs queries for the runner. They exchange one JSON object per line.

A query that fails leaves the session intact and is restarted in it. If a fault kills the driver, the runner must use
another one.
"""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from schemas.effects import KINDS, Tick
from sinks.base import Sink
from sinks.begun import Begun
from sinks.dead_letters import KafkaDeadLetters
from sinks.kafka import KafkaResponses
from sinks.ledger_store import LedgerStore
from sinks.quarantine import QuarantineSink
from sinks.tables import DeltaSink
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from streaming.log.partition import partition_log
from streaming.quality.sink import QualitySink, read_broken
from streaming.spark import query, source
from streaming.spark.checkpoint import Committed, committed
from streaming.spark.failure import cause
from streaming.spark.operator import FoldOptions
from streaming.spark.query import StreamingQuery
from streaming.spark.session import spark_session
from tests.chaos.compare import compare, compare_letters
from tests.chaos.faults import Faults, FaultyBrokers, FaultySink
from tests.chaos.plan import PARTITIONS, SINKS, Plan, plan
from tests.e2e.outcome import assert_same_story, of_log, of_run, read_to_the_end, with_ticks

SILENT = 3
"""How many micro-batches without records a live query runs after each start."""

_POLL_SECONDS = 0.05

MASTER = "local[2,3]"
"""Two cores, and three attempts per task, as in `streaming.jobs.run`."""


class Job(msgspec.Struct):
    """One start of a seed's query."""

    seed: int
    start: int
    folder: str
    """The folder for all output of the seed."""
    kafka: str
    """The folder of the broker."""


class Ended(msgspec.Struct):
    """How a start ended: with an error, or after all records were read and the results compared."""

    error: str | None = None
    rows: int = 0
    repeated: int = 0
    differences: list[str] = []


def topics(seed: int) -> tuple[str, str, str]:
    """The Kafka topics of a seed's commands, responses and dead letters."""
    return f"chaos-{seed}", f"chaos-{seed}-answers", f"chaos-{seed}-letters"


def honest(name: str, sink: Sink) -> Sink:
    return sink


def run(spark: SparkSession, job: Job, chaos: Plan, sabotage: Callable[[str, Sink], Sink] = honest) -> Ended:
    """Start the query of `job` and let it read all records. `sabotage` may replace a sink."""
    folder = Path(job.folder)
    store, checkpoint = folder / "store", folder / "checkpoint"
    kafka = LocalKafka(job.kafka)
    commands, answers, letters = (KafkaUrl(kafka.bootstrap, topic) for topic in topics(job.seed))
    began = folder / "began"
    if not began.exists():
        began.write_text(str(time.time_ns() // 1_000_000))
    log = chaos.log(int(began.read_text())) if chaos.live else chaos.log()
    if job.start == 1:
        ensure_topic(answers, PARTITIONS)
        ensure_topic(letters, PARTITIONS)
        produce_log(log, f"kafka://{commands.bootstrap}/{commands.topic}", partitions=PARTITIONS)
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    own = Faults(chaos.faults, folder, start=job.start, driver=os.getpid(), jvm=jvm, kafka=kafka.directory)
    ledgers = LedgerStore(str(store))
    sinks: list[Sink] = [
        ledgers,
        QuarantineSink(str(store)),
        DeltaSink(str(store / "tables")),
        QualitySink(str(store)),
        KafkaDeadLetters(letters.bootstrap, letters.topic),
        KafkaResponses(answers.bootstrap, answers.topic, store=ledgers),
    ]

    def on_batch(batch: query.Written) -> None:
        own.at("done", batch=batch.batch_id)
        own.journal.note("done", batch.batch_id)

    def start() -> StreamingQuery:
        return query.start(
            spark,
            source.kafka(
                spark,
                commands.bootstrap,
                commands.topic,
                partitions=PARTITIONS,
                max_offsets_per_trigger=chaos.cut(job.start),
            ),
            FoldOptions(
                sinks=[
                    FaultySink(sabotage(name, sink), name, own)
                    for name, sink in zip(SINKS, sinks, strict=True)
                ],
                store=ledgers,
                clock="trigger" if chaos.live else "log",
                broker=FaultyBrokers(own),
            ),
            checkpoint=checkpoint,
            trigger="0ms" if chaos.live else query.AVAILABLE_NOW,
            on_batch=on_batch,
            begun=begun,
            on_end=lambda rows, last: begun.end(sinks, rows, last),
        )

    begun = Begun(str(store))
    own.journal.note("start", job.start)
    records = partition_log(log, PARTITIONS)
    try:
        if chaos.live:
            _through_silences(start, checkpoint, Counter(records["partition"].to_pylist()))
        else:
            start().awaitTermination()
    except StreamingQueryException as error:
        return Ended(cause(str(error)))
    found = of_run(spark, store, checkpoint, answers.bootstrap, answers.topic)
    if chaos.live:
        records = with_ticks(records, found.tables[KINDS[Tick]])
    undisturbed = of_log(records, folder / "expected")
    # A replay numbers the ticks as records, so its rows have other identities.
    rows, differences = compare(found, found if chaos.live else undisturbed, store)
    if chaos.live:
        try:
            assert_same_story(found, undisturbed)
        except AssertionError as error:
            differences.append(f"not what its log replays to: {error}")
    sent, again = read_to_the_end(letters.bootstrap, letters.topic)
    differences += compare_letters(sent, (found if chaos.live else undisturbed).quarantine)
    differences += (f"{count} output rows break {rule}" for rule, count in read_broken(str(store)).items())
    return Ended(None, rows + len(sent), found.repeated + again, differences)


def _through_silences(
    start: Callable[[], StreamingQuery], checkpoint: Path, records: Mapping[int, int]
) -> None:
    """Let queries fold all records, by ingress partition, and run some micro-batches without any, again after a start.

    The last one ends between two micro-batches. Raises the error of a query.
    """

    def last() -> Committed:
        return committed(checkpoint) or Committed(-1, "", {}, True)

    _until(start(), lambda: last().offsets == records)
    for _ in range(2):
        enough = last().batch + SILENT
        _until(start(), lambda enough=enough: last().batch >= enough)  # type: ignore[misc]
    while not last().is_last:
        _until(start(), lambda: last().is_last)


def _until(running: StreamingQuery, enough: Callable[[], bool]) -> None:
    """Wait until `enough` or an error, which is raised. The query then ends after the micro-batch at hand."""
    stop = threading.Event()
    try:
        while running.isActive and not enough():
            stop.wait(_POLL_SECONDS)
        stop.set()
        query.wait(running, stop)
    finally:
        running.stop()


def main() -> None:
    # Output of Spark and its workers must not get in between, so it goes to standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    spark = spark_session("chaos", master=MASTER, shuffle_partitions=2, with_kafka=True)

    def say(ended: Ended) -> None:
        answers.write(msgspec.json.encode(ended) + b"\n")
        answers.flush()

    say(Ended())  # ready
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=Job)
        say(run(spark, job, plan(job.seed)))
    spark.stop()


if __name__ == "__main__":
    main()
