"""`magnetar inspect` and `magnetar peek`: the state of the brokers, and the entries of a subscription."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.console import console, new_table, say, say_json
from streaming.cli.errors import expected_errors
from streaming.cli.options import (
    AT,
    LARGEST,
    SnapshotsFolder,
    check_at,
    opened_folders,
)

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 40


class ShowChoice(StrEnum):
    """Which entries of a subscription."""

    backlog = "backlog"
    inflight = "inflight"
    delayed = "delayed"
    holes = "holes"


def inspect_command(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="The --checkpoint of a query, running or not (a folder, or an s3a:// URL), or a command log."
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Argument(help="Show this topic's stats and internal stats, as Pulsar's admin API does."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=0, max=LARGEST, help="The state after this micro-batch. The default is the last."),
    ] = None,
    diff: Annotated[
        tuple[int, int] | None,
        typer.Option(
            metavar="N M",
            help="Show what changed between the states after micro-batches N and M. For a log: after N and M "
            "commands.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="The --store of the query. Needed if the query began from other states (magnetar state): it has those of partitions "
            "without records since."
        ),
    ] = None,
    at: Annotated[str | None, AT] = None,
    snapshots: SnapshotsFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the state of the brokers after a micro-batch, without touching the query, or after any command of a log.

    Spark keeps the states of the last 100 micro-batches.
    """
    from sinks.base import ForeignFiles
    from sinks.storage import BadUrl
    from streaming.answers.explain.opened import is_log
    from streaming.answers.history.folders import NotFound
    from streaming.answers.history.inspection import (
        check_batches,
        differences,
        sampled_topics,
        states_at,
        topic_stats,
        views,
    )
    from streaming.answers.history.timeline import Timeline
    from streaming.answers.sampled import sampled_note
    from streaming.broker.errors import StateVersionError
    from streaming.kafka.ingress import noted_topic
    from streaming.log.table import LogError
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError, spark_java_home
    from streaming.spark.checkpoint import BadCheckpoint, is_on_s3
    from streaming.spark.failure import QueryFailed
    from streaming.spark.session import spark_session

    if diff is not None and (batch is not None or topic is not None or at is not None):
        raise typer.BadParameter("--diff compares whole states: omit the topic, --batch and --at")
    check_at(checkpoint, at)
    of_log = at is not None or is_log(checkpoint)
    if of_log and store is not None:
        raise typer.BadParameter("--store applies to a checkpoint, not to a log")
    if of_log and batch is not None:
        raise typer.BadParameter("a log has no micro-batches: give --at instead of --batch")
    if snapshots is not None and not of_log:
        raise typer.BadParameter("--snapshots applies to a log: give the log instead of the checkpoint")
    with expected_errors(
        NotFound, BadCheckpoint, BadUrl, ForeignFiles, StateVersionError, JarsUnavailableError, JavaNotFoundError, LogError,
        FileNotFoundError, failed=(QueryFailed,),
    ):  # fmt: skip
        if of_log:
            timeline = Timeline(checkpoint, snapshots)
            moments = [str(len(timeline)) if at is None else at] if diff is None else [*map(str, diff)]
            found_states = [timeline.states(timeline.moment(each)) for each in moments]
        else:
            check_batches(checkpoint, *(diff or ([] if batch is None else [batch])))
            if store is not None and noted_topic(store) is None:
                raise NotFound(f"{store} is not the --store of a query")
            spark_java_home()
            spark = spark_session(
                "magnetar inspect", shuffle_partitions=1, master="local[1]", with_s3=is_on_s3(checkpoint)
            )
            found_states = [states_at(spark, checkpoint, each, store=store) for each in diff or (batch,)]
        if diff is not None:
            found = {"differences": differences(*found_states)}
        elif topic is not None:
            stats = topic_stats(found_states[0], topic)
            if stats["sampled"]:
                say(*sampled_note([stats["topic"]]), err=True)
            say_json(json.dumps(stats, indent=2))
            return
        else:
            found = views(found_states[0])
        note = sampled_note(sampled_topics(found_states[-1]))
    if note:
        say(*note, err=as_json)
    if as_json:
        say_json(json.dumps({name: table.to_pylist() for name, table in found.items()}, indent=2))
        return
    terminal = console()
    for name, table in found.items():
        if len(table):
            terminal.print(_table(name, table.to_pylist()))
    if not any(map(len, found.values())):
        say("Nothing changed." if diff is not None else "There are no topics.")


def peek_command(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="The --out of a replay, the --store of a query, or a command log."
        ),
    ],
    topic: Annotated[str, typer.Argument(help="A topic. persistent://public/default/ can be omitted.")],
    subscription: Annotated[str, typer.Argument(help="A subscription of the topic.")],
    number: Annotated[int, typer.Option("-n", min=1, max=LARGEST, help="How many entries to show.")] = 10,
    show: Annotated[
        ShowChoice,
        typer.Option(
            help="Which entries: the backlog, those in flight, delayed ones, or acked ones above the "
            "mark-delete position."
        ),
    ] = ShowChoice.backlog,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="The --checkpoint of the query (a folder, or an s3a:// URL), if DIR is not a replay's folder."
        ),
    ] = None,
    at: Annotated[str | None, AT] = None,
    snapshots: SnapshotsFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the first entries of a subscription, and the state of each."""
    from schemas.entries import EntryNotFound
    from sinks.storage import BadUrl
    from streaming.answers.explain.delivery import peek
    from streaming.answers.history.folders import NotFound
    from streaming.answers.sampled import sampled_note
    from streaming.broker.errors import StateVersionError
    from streaming.log.table import LogError
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError
    from streaming.spark.checkpoint import BadCheckpoint
    from streaming.spark.failure import QueryFailed

    with expected_errors(
        NotFound, EntryNotFound, BadCheckpoint, BadUrl, StateVersionError, JarsUnavailableError, JavaNotFoundError, LogError,
        FileNotFoundError, failed=(QueryFailed,),
    ):  # fmt: skip
        folders = opened_folders(folder, checkpoint, at, snapshots)
        with folders.unchanged():
            name = folders.topic(topic)
            found = peek(folders, name, subscription, show.value, number)
    if b"sampled" in (found.schema.metadata or {}):
        say(*sampled_note([name]), err=as_json)
    if as_json:
        say_json(json.dumps(found.to_pylist(), indent=2))
        return
    if len(found):
        console().print(_table(f"{show.value} of {subscription}", found.to_pylist()))
    else:
        say(f"{subscription} has no such entries.")


def _table(title: str, rows: list[dict[str, Any]]) -> Table:

    shown = new_table(box=None, title=title, title_justify="left", header_style="bold", pad_edge=False)
    for name in rows[0]:
        shown.add_column(name, overflow="fold")
    for row in rows[:_SHOWN]:
        shown.add_row(*map(_cell, row.values()))
    if len(rows) > _SHOWN:
        shown.caption = f"{len(rows) - _SHOWN:,} more rows: see --json"
    return shown


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
