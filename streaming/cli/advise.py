"""`magnetar advise`: the smallest TTL, quotas and retention that lose nothing of what was consumed."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.printable import counted
from streaming.cli.console import console, new_table, progress, say, say_json
from streaming.cli.errors import expected_errors
from streaming.cli.options import MOST_CORES, AnswerFolder, Partitions

if TYPE_CHECKING:
    from rich.table import Table

    from streaming.answers.advise.needs import Advice

_SHOWN, _CURVES, _POINTS = 20, 6, 6


class PolicyNumber(StrEnum):
    """What can be searched."""

    messageTTL = "messageTTL"
    limitSize = "limitSize"
    limitTime = "limitTime"
    retentionTimeInMinutes = "retentionTimeInMinutes"
    retentionSizeInMB = "retentionSizeInMB"


def advise_command(
    log: Annotated[Path, typer.Argument(help="A command log: .jsonl, .jsonl.gz or Parquet.")],
    policy: Annotated[
        list[PolicyNumber] | None,
        typer.Option(help="Search only this policy. Repeatable. The default is all of them."),
    ] = None,
    out: AnswerFolder = None,
    partitions: Partitions = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_CORES,
            help="How many ingress partitions to search in parallel. The default is the number of cores.",
        ),
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Fold the log only once. The TTL and quotas are exact for plain traffic, but nothing confirms them.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Find the smallest TTL, backlog quotas and retention that lose nothing that was consumed, and what smaller values lose."""
    from schemas.entries import EntryNotFound
    from sinks.outputs import filling
    from streaming.answers.advise.needs import advise, to_json, write
    from streaming.answers.advise.report import report
    from streaming.answers.advise.search import ESTIMATED, POLICY_NAMES
    from streaming.log.table import LogError

    chosen = [name for name in POLICY_NAMES if not policy or name in policy]
    if estimate and not set(chosen) & set(ESTIMATED):
        raise typer.BadParameter(
            f"there are estimates of {', '.join(ESTIMATED)} only", param_hint="--estimate"
        )
    with expected_errors(LogError, FileNotFoundError, failed=(EntryNotFound,)), progress() as bar:
        bar.add_task("folding", total=None)
        found = advise(log, policies=chosen, partitions=partitions, processes=processes, estimate=estimate)
        if out is not None:
            with filling(out):
                write(found, out)
                (out / "report.html").write_text(report(found), encoding="utf-8")
    if as_json:
        say_json(to_json(found))
        return
    _print(found)
    if out is not None:
        say()
        say(f"The tables are in {out}; {out / 'report.html'} shows the curves.")


def _print(found: Advice) -> None:
    terminal = console()
    terminal.print(needs_table(found))
    if (curves := curves_table(found)) is not None:
        terminal.print()
        terminal.print(curves)
    for text in notes(found):
        say(text)


def needs_table(found: Advice) -> Table:
    """A row per topic, subscription, partitioned topic and namespace, a column per policy."""
    from streaming.answers.advise.report import TITLES, by_owner, consumed, value_text
    from streaming.answers.advise.search import POLICY_NAMES
    from streaming.answers.whatif.page import short_name

    policies = [name for name in POLICY_NAMES if any(each.policy == name for each in found.needs)]
    table = new_table(box=None, header_style="bold", pad_edge=False, caption_justify="left")
    for name in ("of", "name", "subscription"):
        table.add_column(name, overflow="fold")
    for name in ("consumed", "backlog", *(TITLES[policy] for policy in policies)):
        table.add_column(name, justify="right")
    owners = list(by_owner(found.needs))
    for first, own in owners[:_SHOWN]:
        table.add_row(
            first.level, short_name(first.name), first.subscription or "", f"{consumed(own):,}", f"{first.waiting:,}",
            *(value_text(own[name]) if name in own else "" for name in policies),
        )  # fmt: skip
    if len(owners) > _SHOWN:
        table.caption = f"{len(owners) - _SHOWN:,} more rows: see --json or --out"
    return table


def curves_table(found: Advice) -> Table | None:
    """What some values lose and store, for the topics and policies of which a value loses something."""
    from streaming.answers.advise.report import TITLES, thinned
    from streaming.answers.whatif.page import short_name

    chosen = [each for each in found.curves if any(point.lost for point in each.points)]
    if not chosen:
        return None
    table = new_table(box=None, header_style="bold", pad_edge=False, caption_justify="left")
    table.add_column("topic", overflow="fold")
    table.add_column("policy")
    for name in ("value", "lost", "unknown", "peak storage, B", "storage, B"):
        table.add_column(name, justify="right")
    for each in chosen[:_CURVES]:
        for number, point in enumerate(thinned(each.points, _POINTS)):
            table.add_row(
                "" if number else short_name(each.topic), "" if number else TITLES[each.policy], f"{point.value:,} {each.unit}",
                f"{point.lost:,}", f"{point.unknown:,}" if point.unknown else "", f"{point.peak_storage:,}", f"{point.storage:,}",
            )  # fmt: skip
    if len(chosen) > _CURVES:
        table.caption = f"{len(chosen) - _CURVES:,} more curves: see --json or --out"
    return table


def notes(found: Advice) -> list[str]:
    """The window, and what the answer does not know."""
    from streaming.answers.advise.report import ESTIMATES, has_estimates
    from streaming.answers.quarantined import quarantine_note
    from streaming.answers.sampled import sampled_note
    from streaming.answers.whatif.page import clock_text, window_text

    folded = counted(found.folds, "fold")
    texts = [
        f"\n{window_text(found.records, found.begin, found.end)}; {folded}; clients as recorded.",
        *quarantine_note(found.quarantined),
        *sampled_note(found.sampled),
        *([ESTIMATES] if has_estimates(found) else []),
    ]
    for each in found.needs:
        if each.level == "topic" and each.unknown and each.exact_until is not None:
            texts.append(
                f"{each.name.removeprefix('persistent://')}: with a {each.policy} of {each.smallest:,} {each.unit}, a client would have "
                f"seen something else at {clock_text(each.exact_until)}; {counted(each.unknown, 'message')} acked later are judged "
                "by the recorded commands."
            )
        elif each.level == "topic" and each.text.startswith("something"):
            texts.append(f"{each.name.removeprefix('persistent://')}: {each.policy}: {each.text}")
    return texts
