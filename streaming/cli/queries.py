"""The commands `magnetar replay`, `run` and `produce`, for typer. They import what they need when they are called."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from streaming.kafka.config import KafkaConfig
    from streaming.replay import ReplayResult
    from streaming.spark.query import Written

_SHOWN = 40
_WIDE = 130
_SAY_EVERY_SECONDS = 10.0
_COLUMNS = {
    "topic": "topic",
    "subscription": "subscription",
    "entries": "entries",
    "duplicates": "duplicates",
    "unknown": "unknown",
    "dispatched": "dispatched",
    "acked": "acked",
    "expired": "expired",
    "evicted": "evicted",
    "trimmed": "trimmed",
    "backlog": "backlog",
    "storage": "storage, B",
    "mark_delete": "mark-delete",
}


class ClockChoice(StrEnum):
    """What advances time."""

    log = "log"
    trigger = "trigger"


LogArgument = Annotated[Path, typer.Argument(help="A command log: .jsonl, .jsonl.gz or Parquet.")]
Ingress = Annotated[str, typer.Option(help="The commands' topic, kafka://HOST:PORT/TOPIC.")]
KafkaConfigFile = Annotated[
    Path | None, typer.Option(help="Kafka's properties for TLS and passwords, see docs/security.md.")
]


def replay_command(
    log: LogArgument,
    out: Annotated[Path, typer.Option(help="A new or empty folder for the results.")],
    policies: Annotated[
        Path | None, typer.Option(help="ADMIN and BROKER_CONFIG commands put over the log's own.")
    ] = None,
    batches: Annotated[
        int | None, typer.Option(min=1, help="Micro-batches (the result doesn't depend on it).")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Ingress partitions; by default the log's, or 4.")
    ] = None,
    clock: Annotated[ClockChoice, typer.Option(help="What advances time.")] = ClockChoice.log,
    cores: Annotated[int, typer.Option(min=1, help="Spark's cores.")] = 2,
    spark: Annotated[bool, typer.Option(help="With Spark, or in this process.")] = True,
    overwrite: Annotated[bool, typer.Option(help="Remove an earlier replay's results first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replay a command log: what a broker would have done."""
    from streaming.cli.app import expected_errors
    from streaming.log.table import LogError
    from streaming.replay import NotEmptyError, replay, replay_in_process
    from streaming.runtime.java import JavaNotFoundError
    from streaming.spark.failure import QueryFailed, explained

    with (
        expected_errors(LogError, FileNotFoundError, NotEmptyError, JavaNotFoundError, QueryFailed),
        _progress() as bar,
        explained(f"The results in {out} are not complete"),
    ):
        task = bar.add_task("starting Spark" if spark else "reading", total=None)

        def show(done: int, total: int, rows: int) -> None:
            bar.update(task, description=f"{rows:,} rows", completed=done, total=total)

        common: dict[str, Any] = {
            "policies": policies,
            "batches": batches,
            "partitions": partitions,
            "overwrite": overwrite,
            "progress": show,
        }
        if not spark:
            if clock != ClockChoice.log:
                raise typer.BadParameter("--no-spark has no trigger: its clock is the log's")
            result = replay_in_process(log, out, **common)
        else:
            result = replay(log, out, clock=clock.value, cores=cores, **common)
    if as_json:
        typer.echo(to_json(result))
    else:
        console = _console()
        console.print(table(result, width=console.width), _closing(result), sep="\n")


def run_command(
    ingress: Ingress,
    checkpoint: Annotated[
        Path, typer.Option(help="Spark's offsets and state; with the same one it goes on.")
    ],
    store: Annotated[str, typer.Option(help="A folder or URL for entries, tables and quarantine.")],
    responses: Annotated[
        str | None, typer.Option(help="A topic for answers, kafka://HOST:PORT/TOPIC.")
    ] = None,
    dead_letters: Annotated[
        str | None, typer.Option(help="A topic for quarantined records, kafka://HOST:PORT/TOPIC.")
    ] = None,
    kafka_config: KafkaConfigFile = None,
    trigger: Annotated[str, typer.Option(help="The least time between micro-batches.")] = "1s",
    clock: Annotated[ClockChoice, typer.Option(help="What advances time.")] = ClockChoice.trigger,
    partitions: Annotated[int, typer.Option(min=1, help="Of the ingress topic, if it is made now.")] = 4,
    cores: Annotated[int, typer.Option(min=1, help="Spark's cores.")] = 2,
    shuffle_partitions: Annotated[
        int | None, typer.Option(min=1, help="Parallel tasks, fixed by the first batch; 1 is quickest.")
    ] = None,
    max_offsets: Annotated[
        int | None,
        typer.Option(min=1, help="Records that a micro-batch takes at most; by default 200,000, or 128 MB."),
    ] = None,
    tables: Annotated[bool, typer.Option(help="Write every output row to tables too.")] = True,
    quality: Annotated[
        bool, typer.Option(help="Check output rows, and samples with Great Expectations beside the query.")
    ] = True,
) -> None:
    """Run the broker over a Kafka topic until Ctrl-C or SIGTERM."""
    from streaming.cli.app import expected_errors
    from streaming.kafka.client import KafkaUnreachable
    from streaming.kafka.config import KafkaConfigError
    from streaming.kafka.ingress import IngressChanged
    from streaming.kafka.url import KafkaUrlError
    from streaming.run import run, stop_signals
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError
    from streaming.spark.failure import QueryFailed, explained
    from streaming.spark.query import BadTrigger

    live = Live(_console(stderr=True))
    with (
        expected_errors(
            KafkaUrlError,
            KafkaConfigError,
            KafkaUnreachable,
            BadTrigger,
            JarsUnavailableError,
            JavaNotFoundError,
            IngressChanged,
            QueryFailed,
        ),
        stop_signals() as stop,
        live,
        explained("Nothing is lost: started again with the same checkpoint, it repeats the micro-batch"),
    ):
        run(
            ingress,
            checkpoint.absolute(),
            store,
            responses=responses,
            dead_letters=dead_letters,
            config=credentials(kafka_config),
            tables=tables,
            trigger=trigger,
            clock=clock.value,
            partitions=partitions,
            cores=cores,
            shuffle_partitions=shuffle_partitions,
            records_a_batch=max_offsets,
            quality=quality,
            on_batch=live.batch,
            on_start=lambda _: live.say("running; Ctrl-C stops it"),
            stop=stop,
        )


def produce_command(
    log: Annotated[
        str,
        typer.Argument(
            help="A command log: .jsonl, .jsonl.gz, Parquet, or a topic, kafka://HOST:PORT/TOPIC."
        ),
    ],
    ingress: Ingress,
    kafka_config: KafkaConfigFile = None,
    partitions: Annotated[int | None, typer.Option(min=1, help="Of the topic, if it is made now.")] = None,
    ticks: Annotated[
        str | None, typer.Option(help="Of a log that is a topic: the store of the query on it.")
    ] = None,
    paced: Annotated[bool, typer.Option(help="In real time, by the log's timestamps.")] = False,
) -> None:
    """Send a command log to a Kafka topic. From one topic to another it gets other partitions."""
    from streaming.cli.app import expected_errors
    from streaming.kafka.client import KafkaUnreachable
    from streaming.kafka.config import KafkaConfigError
    from streaming.kafka.produce import NotProduced, produce_log
    from streaming.kafka.repartition import repartition_topic
    from streaming.kafka.url import KafkaUrlError
    from streaming.log.table import LogError
    from streaming.run import stop_signals

    topic = log.startswith("kafka://")
    if ticks is not None and not topic:
        raise typer.BadParameter("--ticks is for a log that is a topic, kafka://HOST:PORT/TOPIC")
    notes: list[str] = []
    with (
        expected_errors(
            LogError, FileNotFoundError, KafkaUrlError, KafkaConfigError, KafkaUnreachable, NotProduced
        ),
        stop_signals() as stop,
        _progress() as bar,
    ):
        task = bar.add_task("reading", total=None)
        begun = time.perf_counter()
        common: dict[str, Any] = {
            "partitions": partitions,
            "config": credentials(kafka_config),
            "paced": paced,
            "progress": lambda done, total: bar.update(task, description="sent", completed=done, total=total),
            "stop": stop,
        }
        if topic:
            _, sent, notes = repartition_topic(log, ingress, store=ticks, **common)
        else:
            sent = produce_log(log, ingress, **common)
    for note in notes:
        typer.echo(f"magnetar: {note}", err=True)
    typer.echo(f"{sent:,} records in {time.perf_counter() - begun:.1f} s to {ingress}")


def credentials(file: Path | None) -> KafkaConfig:
    """What a ``--kafka-config`` says; a file that anybody can read gets a word on the standard error. Raises
    `KafkaConfigError`."""
    from streaming.kafka.config import KafkaConfig

    config = KafkaConfig.of(file)
    if config.is_open:
        typer.echo(
            f"magnetar: every user of this machine can read the passwords in {file}: chmod 600 {file}",
            err=True,
        )
    return config


class Live:
    """What the query has done so far: one line that renews itself on a terminal, else a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: Counter[str] = Counter()
        self._said = 0.0
        self._status = console.status("starting Spark")

    def __enter__(self) -> Live:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.stop()
        self.say("stopped" if error[0] is None else "failed")

    def batch(self, written: Written) -> None:
        """For `streaming.run.run`'s `on_batch`."""
        for (_, kind), count in written.rows.items():
            self._rows[kind] += count
        counts = ", ".join(f"{count:,} {kind.lower()}" for kind, count in self._rows.most_common(6))
        text = f"batch {written.batch_id:,}: {counts or 'nothing yet'}"
        self._status.update(text)
        if not self._console.is_terminal and time.monotonic() - self._said >= _SAY_EVERY_SECONDS:
            self.say(text)

    def say(self, text: str) -> None:
        """A line of its own, that stays."""
        self._said = time.monotonic()
        self._console.print(text, highlight=False)


def to_json(result: ReplayResult) -> str:
    """A replay's result for machines: one object, times in seconds, sizes in bytes."""
    fields = {name: getattr(result, name) for name in ("records", "batches", "seconds", "rows", "stats")}
    return json.dumps({"out": str(result.out)} | fields, indent=2, default=str)


def table(result: ReplayResult, *, width: int = 200, shown: int = _SHOWN) -> Table:
    """A replay's result for people: a row a topic and subscription. Below `_WIDE` characters columns of nothing but
    zeros are left out."""
    from rich.table import Table

    stats = result.stats
    prefix = _common_folder([str(each["topic"]) for each in stats])
    columns = [
        key
        for key in _COLUMNS
        if width >= _WIDE or key in ("topic", "entries", "backlog") or any(each.get(key) for each in stats)
    ]
    rows = Table(box=None, header_style="bold", pad_edge=False, caption_justify="left")
    for key in columns:
        text = key in ("topic", "subscription", "mark_delete")
        rows.add_column(_COLUMNS[key], justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for each in stats[:shown]:
        rows.add_row(str(each["topic"])[len(prefix):], *(_cell(each.get(key)) for key in columns[1:]))  # fmt: skip
    notes = [f"topics are in {prefix}"] * bool(prefix)
    if len(stats) > shown:
        notes.append(f"{len(stats) - shown:,} more rows: see --json")
    rows.caption = "; ".join(notes) or None
    return rows


def _common_folder(topics: list[str]) -> str:
    """The namespace (up to the slash) that all topics are in, if there is one."""
    folders = {topic[: topic.rfind("/") + 1] for topic in topics}
    return folders.pop() if len(folders) == 1 else ""


def _closing(result: ReplayResult) -> str:
    bad = result.rows.get("QUARANTINED", 0)
    unsupported = result.rows.get("UNSUPPORTED", 0)
    notes = f", {bad:,} in quarantine" * bool(bad) + f", {unsupported:,} unsupported" * bool(unsupported)
    return (
        f"{result.records:,} records in {result.seconds:.1f} s ({result.batches:,} micro-batches): "
        f"{sum(result.rows.values()):,} output rows{notes}, in {result.out}"
    )


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ":".join(map(str, value))
    return str(value)


def _progress() -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = _console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    # A table cut to 80 columns is of no use in a file.
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 200
    return Console(stderr=stderr, width=width)
