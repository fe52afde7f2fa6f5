"""`magnetar run`, and what it shows while it runs."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.console import console
from streaming.cli.errors import expected_errors
from streaming.cli.options import (
    LARGEST,
    MAX_AHEAD,
    MOST_CORES,
    MOST_PARTITIONS,
    ClockChoice,
    IngressOption,
    KafkaConfigFile,
    KeepOutputs,
    RecordsSetAside,
    TopicsSetAside,
    cluster_master,
    coordinates,
    credentials,
    days,
    least_milliseconds,
    max_ahead_milliseconds,
    refuse_unused,
    setting,
    topic_name,
)
from streaming.runtime.signals import stop_signals

if TYPE_CHECKING:
    from rich.console import Console

    from streaming.answers.whatif.answer import WhatIf
    from streaming.fold.records import StateRow
    from streaming.metrics.query import BatchProgress, QueryMetrics
    from streaming.spark.query import Written

LABEL_SETS = 1000
EVERY = "1m"
_REPORT_EVERY_SECONDS = 10.0


class StateStoreChoice(StrEnum):
    """Spark's state stores."""

    hdfs = "hdfs"
    rocksdb = "rocksdb"


class LogFormat(StrEnum):
    """How a running query says what it does."""

    text = "text"
    json = "json"


def run_command(
    ingress: IngressOption,
    checkpoint: Annotated[
        str,
        typer.Option(
            help="The folder or s3a:// URL for Spark's offsets and state. Given the same one again, the query "
            "resumes."
        ),
    ],
    store: Annotated[str, typer.Option(help="A folder or URL for entries, output tables and quarantine.")],
    responses: Annotated[
        str | None, typer.Option(help="A topic for responses to clients: kafka://HOST:PORT/TOPIC.")
    ] = None,
    dead_letters: Annotated[
        str | None, typer.Option(help="A topic for quarantined records: kafka://HOST:PORT/TOPIC.")
    ] = None,
    kafka_config: KafkaConfigFile = None,
    trigger: Annotated[str, typer.Option(help="The shortest time between micro-batches.")] = "1s",
    clock: Annotated[
        ClockChoice,
        typer.Option(help="What advances time: only the timestamps in the log, or Spark's clock as well."),
    ] = ClockChoice.trigger,
    partitions: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_PARTITIONS,
            help="The number of partitions of the ingress topic, if it has to be created.",
        ),
    ] = 4,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Run the tasks on a Spark cluster, such as spark://HOST:7077, not in this process.",
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A setting of Spark, such as spark.executor.memory=2g. Repeatable."
        ),
    ] = None,
    cores: Annotated[int, typer.Option(min=1, max=MOST_CORES, help="The number of cores for Spark.")] = 2,
    state_store: Annotated[
        StateStoreChoice,
        typer.Option(
            help="Where Spark keeps state: its heap (hdfs), or RocksDB. Fixed by the first micro-batch."
        ),
    ] = StateStoreChoice.hdfs,
    shuffle_partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_PARTITIONS,
            help="Parallel tasks, fixed by the first micro-batch. The default is the number of ingress partitions, at most --cores. 1 gives the shortest micro-batches.",
        ),
    ] = None,
    max_offsets: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LARGEST,
            help="The largest number of records in a micro-batch. The default is 200,000, or 128 MB.",
        ),
    ] = None,
    tables: Annotated[
        bool, typer.Option(help="Also write every output row to a Delta Lake table, STORE/tables.")
    ] = True,
    keep_outputs: KeepOutputs = None,
    quality: Annotated[
        bool,
        typer.Option(
            help="Check all output rows, and check samples with Great Expectations in a separate process."
        ),
    ] = True,
    quarantine: RecordsSetAside = None,
    quarantine_topic: TopicsSetAside = None,
    max_ahead: Annotated[
        str,
        typer.Option(
            help="Quarantine records with timestamps at least this far ahead of the query's clock; off: none.",
        ),
    ] = MAX_AHEAD,
    canary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Judge other policies on the query's traffic, beside it: files as for whatif --policies. Repeatable. `magnetar canaries` shows what would differ.",
        ),
    ] = None,
    canary_every: Annotated[
        str,
        typer.Option(help="How often canaries fold what the query has folded since, such as 30s or 5m."),
    ] = EVERY,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve /metrics for Prometheus, /healthz and /readyz here. Just PORT: for this machine only.",
        ),
    ] = None,
    metrics_label_sets: Annotated[
        int,
        typer.Option(
            min=0,
            max=LARGEST,
            help="The maximum number of topics, and of subscriptions, with metrics of their own. The others "
            "are aggregated.",
        ),
    ] = LABEL_SETS,
    ui: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve a live page here, and what --metrics serves. Just PORT: for this machine only.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Serve the page at an address that other machines reach, although it requires no password.",
        ),
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            help="What to write to the standard error: text for people, or json, one line per micro-batch."
        ),
    ] = LogFormat.text,
) -> None:
    """Run the broker on a Kafka topic until Ctrl-C or SIGTERM.

    Topics are given as kafka://HOST:PORT/TOPIC.
    """
    from sinks.base import ForeignFiles
    from sinks.lock import InUse, LeaseLost, NotWritable
    from sinks.storage import BadUrl
    from streaming.canaries.beside import Canaries, CanaryError, CanarySource
    from streaming.fold.records import NoSuchRecord
    from streaming.jobs.run import run_query
    from streaming.kafka.client import KafkaUnreachable
    from streaming.kafka.config import KafkaConfigError
    from streaming.kafka.ingress import IngressChanged, TopicInUse
    from streaming.kafka.retention import LogLost
    from streaming.kafka.url import KafkaUrlError
    from streaming.log.policy_files import PolicyError
    from streaming.log.table import LogError
    from streaming.metrics.endpoint import Endpoint, EndpointError, application
    from streaming.metrics.query import QueryMetrics
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError
    from streaming.spark.failure import QueryFailed, explained
    from streaming.spark.session import submitted, submitted_session
    from streaming.spark.trigger import BadTrigger
    from streaming.state.seed import NotWhole

    set_aside = [coordinates(each) for each in quarantine or ()]
    topics_aside = [topic_name(each) for each in quarantine_topic or ()]
    max_ahead_ms = max_ahead_milliseconds(max_ahead)
    kept = None if keep_outputs is None else days(keep_outputs)
    every_ms = least_milliseconds("--canary-every", canary_every)
    settings = dict(map(setting, conf or ()))
    unmeasured = metrics is None and ui is None
    refuse_unused(
        ("--keep-outputs", kept is not None and not tables, "with --no-tables"),
        ("--insecure", insecure and ui is None, "without --ui"),
        ("--canary-every", canary_every != EVERY and not canary, "without --canary"),
        (
            "--metrics-label-sets",
            metrics_label_sets != LABEL_SETS and unmeasured,
            "without --metrics or --ui",
        ),
    )
    if submitted() and (master is not None or settings):
        raise typer.BadParameter(
            "spark-submit decides what runs where: give it --master and --conf, before the script"
        )
    live = Live(console(stderr=True)) if log_format is LogFormat.text else JsonLines()
    measured = None
    if metrics is not None or ui is not None:
        measured = QueryMetrics(metrics_label_sets, time_passes=clock is ClockChoice.trigger)
    with (
        expected_errors(
            KafkaUrlError,
            KafkaConfigError,
            NoSuchRecord,
            BadTrigger,
            BadUrl,
            InUse,
            NotWritable,
            KafkaUnreachable,
            JarsUnavailableError,
            JavaNotFoundError,
            EndpointError,
            NotWhole,
            PolicyError,
            LogError,
            CanaryError,
            FileNotFoundError,
            failed=(QueryFailed, IngressChanged, TopicInUse, ForeignFiles, LogLost, LeaseLost),
        ),
        stop_signals() as stop,
        live,
        ExitStack() as resources,
        explained("Nothing is lost: when restarted with the same checkpoint, it repeats the micro-batch"),
    ):
        canaries = None
        if canary:
            canaries = Canaries(
                store,
                [*map(CanarySource.parse, canary)],
                every=every_ms / 1000,
                on_look=(lambda *_: None) if measured is None else partial(_measure, measured),
                on_note=live.note,
            )
        folder = checkpoint if "://" in checkpoint else Path(checkpoint).absolute()
        reports = [live.progress] if isinstance(live, JsonLines) else []
        if metrics is not None and measured is not None:
            endpoint = Endpoint(metrics)
            resources.callback(endpoint.close)
            endpoint.start(application(measured))
            live.serving(endpoint.url, "metrics")
        if ui is not None and measured is not None:
            from streaming.ui.application import application as pages
            from streaming.ui.view import RunView

            view = RunView(ingress, measured, store, partial(_states, measured, folder, store), tables=tables)
            reports.append(view.progress)
            page = Endpoint(ui, option="--ui", only_loopback=not insecure)
            resources.callback(page.close)
            page.start(pages(view, elsewhere=application(measured), only_loopback=not insecure))
            live.serving(page.url, "page")

        def report(done: BatchProgress) -> None:
            for each in reports:
                each(done)

        run_query(
            ingress,
            folder,
            store,
            responses=responses,
            dead_letters=dead_letters,
            config=credentials(kafka_config),
            tables=tables,
            keep_outputs=kept,
            trigger=trigger,
            clock=clock.value,
            partitions=partitions,
            master=None if master is None else cluster_master(master),
            conf=settings,
            cores=cores,
            state_store=state_store.value,
            shuffle_partitions=shuffle_partitions,
            records_per_batch=max_offsets,
            quality=quality,
            set_aside=set_aside,
            topics_aside=topics_aside,
            max_ahead_ms=max_ahead_ms,
            on_batch=live.batch,
            on_progress=report if reports else None,
            on_start=lambda _: live.started(),
            on_note=live.note,
            metrics=measured,
            canaries=canaries,
            stop=stop,
            spark=submitted_session("magnetar run") if submitted() else None,
        )


def _measure(measured: QueryMetrics, found: WhatIf, since: Mapping[str, int]) -> None:
    """Hand what canaries found to the metrics."""
    from streaming.answers.fates import CHANGE_COLUMNS
    from streaming.metrics.query import CanaryFigures

    rows = [
        CanaryFigures(
            row["policies"], row["topic"], row["subscription"], row["backlog"], row["storage"],
            {change: count for change, column in CHANGE_COLUMNS.items() if (count := row[column])},
        )
        for row in found.summary.to_pylist()
    ]  # fmt: skip
    measured.canaries(rows, since)


def _states(
    measured: QueryMetrics, checkpoint: str | Path, store: str, partition: int | None
) -> list[StateRow]:
    """States of the running query, for the page. Raises `CannotAnswer`."""
    from streaming.spark.state import NotReadable, states_beside
    from streaming.state.seed import read_seed, with_seed
    from streaming.ui.explanation import SECONDS, CannotAnswer

    if not measured.ready:
        raise CannotAnswer("the query has not finished a micro-batch yet, or has ended")
    try:
        return [*with_seed(states_beside(checkpoint, partition, SECONDS), read_seed(store), partition)]
    except NotReadable as error:
        raise CannotAnswer(str(error)) from error


class Live:
    """What the query has done so far: on a terminal one line that updates itself, else a line every 10 s."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: Counter[str] = Counter()
        self._said = 0.0
        self._started = False
        self._status = console.status("starting")

    def __enter__(self) -> Live:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.stop()
        if error[0] is None:
            self.say("stopped")
        elif self._started:
            self.say("failed")

    def started(self) -> None:
        """Says that the query runs: `streaming.jobs.run.run_query`'s `on_start`."""
        self._started = True
        self.say("running; Ctrl-C stops it")

    def note(self, text: str) -> None:
        """Says what the user should know: `streaming.jobs.run.run_query`'s `on_note`."""
        self.say(text)

    def serving(self, url: str, what: str) -> None:
        """Says where the metrics or the page are."""
        self.say(f"{what}: {url}{'/metrics' if what == 'metrics' else '/'}")

    def batch(self, written: Written) -> None:
        """Counts what a micro-batch wrote: `streaming.jobs.run.run_query`'s `on_batch`."""
        for (_, kind), count in written.rows.items():
            self._rows[kind] += count
        counts = ", ".join(f"{count:,} {kind.lower()}" for kind, count in self._rows.most_common())
        text = f"batch {written.batch_id:,}, rows so far: {counts or 'none'}"
        self._status.update(text)
        if not self._console.is_terminal and time.monotonic() - self._said >= _REPORT_EVERY_SECONDS:
            self.say(text)

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self._said = time.monotonic()
        self._console.print(text, highlight=False)


class JsonLines:
    """The same for programs: an object per line with ``time`` and ``event``, and one for each micro-batch that is done."""

    def __init__(self) -> None:
        self._written: dict[int, dict[str, int]] = {}

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, type_: object, error: object, *_: object) -> None:
        if error is None:
            self._say("stopped")
        else:
            self._say("failed", error=f"{type(error).__name__}: {error}")

    def started(self) -> None:
        """Says that the query runs: `streaming.jobs.run.run_query`'s `on_start`."""
        self._say("started")

    def note(self, text: str) -> None:
        """Says what the user should know: `streaming.jobs.run.run_query`'s `on_note`."""
        self._say("note", text=text)

    def serving(self, url: str, what: str) -> None:
        """Says where the metrics or the page are."""
        self._say("serving", url=url, what=what)

    def batch(self, written: Written) -> None:
        """Keeps what a micro-batch wrote: `streaming.jobs.run.run_query`'s `on_batch`."""
        rows: Counter[str] = Counter()
        for (_, kind), count in written.rows.items():
            rows[kind] += count
        self._written[written.batch_id] = dict(rows)

    def progress(self, done: BatchProgress) -> None:
        """Writes the line of a micro-batch: `streaming.jobs.run.run_query`'s `on_progress`."""
        rows = self._written.get(done.batch_id, {})
        for batch_id in [each for each in self._written if each <= done.batch_id]:
            del self._written[batch_id]
        self._say(
            "batch",
            batch=done.batch_id,
            began=_iso(done.time / 1000),
            records=done.records,
            records_per_second=round(done.records_per_second, 3),
            records_behind=done.behind,
            rows=rows,
            seconds=done.seconds,
            state_store_memory_bytes=done.state_memory,
        )

    def _say(self, event: str, **fields: Any) -> None:
        line: Mapping[str, Any] = {"time": _iso(time.time()), "event": event, **fields}
        sys.stderr.write(f"{json.dumps(line)}\n")
        sys.stderr.flush()


def _iso(seconds: float) -> str:
    """A time since the epoch in ISO 8601, to the millisecond, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
