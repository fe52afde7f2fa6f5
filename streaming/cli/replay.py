"""`magnetar replay`, and a replay's result as a table or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.printable import counted
from streaming.cli.console import console, new_table, progress, say, say_json
from streaming.cli.errors import expected_errors
from streaming.cli.options import (
    LARGEST,
    MOST_CORES,
    ClockChoice,
    Partitions,
    ProfileChoice,
    RecordsSetAside,
    TopicsSetAside,
    coordinates,
    topic_name,
)
from streaming.cli.policy_notes import say_notes

if TYPE_CHECKING:
    from rich.table import Table

    from streaming.jobs.replay import ReplayResult

_SHOWN = 40
_WIDE = 130
_NUMBERS = ("records", "copied", "partitions", "batches", "seconds", "unmatched", "rows", "stats")
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


def replay_command(
    log: Annotated[Path, typer.Argument(help="A command log: .jsonl, .jsonl.gz or Parquet.")],
    out: Annotated[Path, typer.Option(help="A new or empty folder for the results.")],
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Policies that override those in the log: YAML, a broker.conf, what pulsar-admin shows of a broker or a namespace, or "
            "a log of ADMIN and BROKER_CONFIG commands. NAMESPACE=FILE says what a file is about; FILE,FILE is both.",
        ),
    ] = None,
    profile: Annotated[
        ProfileChoice | None,
        typer.Option(
            help="The Pulsar version whose rules and defaults apply in place of the log's. What the log or --policies set stays."
        ),
    ] = None,
    batches: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LARGEST,
            help="The number of micro-batches. The default is as few as memory allows. The result does not depend on it.",
        ),
    ] = None,
    partitions: Partitions = None,
    clock: Annotated[
        ClockChoice,
        typer.Option(help="What advances time: only the timestamps in the log, or Spark's clock as well."),
    ] = ClockChoice.log,
    cores: Annotated[int, typer.Option(min=1, max=MOST_CORES, help="The number of cores for Spark.")] = 2,
    spark: Annotated[bool, typer.Option(help="Replay with Spark, or in this process.")] = True,
    quarantine: RecordsSetAside = None,
    quarantine_topic: TopicsSetAside = None,
    quarantined: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="The --store of the query that folded the log, to set aside the same records as it did.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Delete an earlier replay's results first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replay a command log: what would the broker have done?"""
    from sinks.lock import InUse, NotWritable
    from sinks.storage import BadUrl
    from streaming.fold.records import NoSuchRecord
    from streaming.jobs.replay import NotEmptyError, replay_in_process, replay_log
    from streaming.jobs.summary import what_happened
    from streaming.log.files import check_log
    from streaming.log.policy_files import PolicyError
    from streaming.log.table import LogError
    from streaming.runtime.java import JavaNotFoundError
    from streaming.spark.failure import QueryFailed, explained

    if not spark and clock != ClockChoice.log:
        raise typer.BadParameter("--no-spark has no trigger, so its clock is always the log's")
    with (
        expected_errors(
            LogError,
            PolicyError,
            FileNotFoundError,
            NoSuchRecord,
            NotEmptyError,
            InUse,
            NotWritable,
            BadUrl,
            JavaNotFoundError,
            failed=(QueryFailed,),
        ),
        progress() as bar,
        explained(f"The results in {out} are incomplete"),
    ):
        if policies is not None:
            check_log(log)
            say_notes([policies])
        task = bar.add_task("starting Spark" if spark else "reading", total=None)

        def show(done: int, total: int, rows: int) -> None:
            bar.update(task, description=f"{rows:,} rows", completed=done, total=total)

        common: dict[str, Any] = {
            "policies": policies,
            "profile": None if profile is None else profile.value,
            "batches": batches,
            "partitions": partitions,
            "overwrite": overwrite,
            "set_aside": [coordinates(each) for each in quarantine or ()],
            "topics_aside": [topic_name(each) for each in quarantine_topic or ()],
            "quarantined": quarantined,
            "progress": show,
        }
        if not spark:
            result = replay_in_process(log, out, **common)
        else:
            result = replay_log(log, out, clock=clock.value, cores=cores, **common)
    if as_json:
        say_json(to_json(result))
    else:
        terminal = console()
        terminal.print(table(result, width=terminal.width))
        say(_summary(result))
        say()
        say("What happened, and why:")
        for sentence in what_happened(result.out / "tables", copied=result.copied > 0):
            say(f"  {sentence}")
        if result.unmatched:
            say(f"  {unmatched_commands(result.unmatched)}")


def to_json(result: ReplayResult) -> str:
    """A replay's result as one JSON object: times in seconds, sizes in bytes."""
    fields = {name: getattr(result, name) for name in _NUMBERS}
    return json.dumps({"out": str(result.out)} | fields, indent=2, default=str)


def table(result: ReplayResult, *, width: int = 200, shown: int = _SHOWN) -> Table:
    """A replay's result as a table: one row per topic and subscription, `shown` at most.

    On a terminal of fewer than 130 columns, columns that hold nothing but zeros are left out.
    """
    stats = result.stats
    prefix = _common_namespace([str(each["topic"]) for each in stats])
    columns = [
        key
        for key in _COLUMNS
        if width >= _WIDE or key in ("topic", "entries", "backlog") or any(each.get(key) for each in stats)
    ]
    rows = new_table(box=None, header_style="bold", pad_edge=False, caption_justify="left")
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


def _common_namespace(topics: list[str]) -> str:
    """The namespace (with its slash) that holds all topics, or nothing."""
    namespaces = {topic[: topic.rfind("/") + 1] for topic in topics}
    return namespaces.pop() if len(namespaces) == 1 else ""


def _summary(result: ReplayResult) -> str:
    bad = result.rows.get("QUARANTINED", 0)
    unsupported = result.rows.get("UNSUPPORTED", 0)
    notes = f", {bad:,} in quarantine" * bool(bad) + f", {unsupported:,} unsupported" * bool(unsupported)
    copies = f" ({result.copied:,} without a topic, copied to {result.partitions} partitions)" * bool(
        result.copied
    )
    return (
        f"{counted(result.records, 'record')}{copies} in {result.seconds:.1f} s ({counted(result.batches, 'micro-batch')}): "
        f"{sum(result.rows.values()):,} output rows{notes}, in {result.out}"
    )


def unmatched_commands(commands: int) -> str:
    """What became of commands on messages that other policies never stored, or have dropped."""
    were = "It was" if commands == 1 else "They were"
    return (
        f"{counted(commands, 'command')} named messages that do not exist under these policies. {were} applied to those that do, or "
        "skipped."
    )


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ":".join(map(str, value))
    return str(value)
