"""`magnetar quality`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.printable import counted, one_line
from streaming.cli.console import console, new_table, say
from streaming.cli.errors import expected_errors

if TYPE_CHECKING:
    from rich.console import Console

    from streaming.quality.check import Report

_REASONS = 5


def quality_command(
    path: Annotated[
        Path, typer.Argument(metavar="DIR", help="The output folder of a replay or run, or a command log.")
    ],
    docs: Annotated[
        Path | None,
        typer.Option(help="Where to write Data Docs. The default is DIR/quality, or LOG.quality."),
    ] = None,
) -> None:
    """Run the expectation suites over a log or an output folder and write Data Docs. The exit code is 1 if a rule is broken."""
    from sinks.lock import InUse, NotWritable, exclusive
    from sinks.outputs import check_folder
    from streaming.log.table import LogError
    from streaming.quality import data_docs
    from streaming.quality.check import NothingToCheck, check
    from streaming.quality.sink import BROKEN, LIVE
    from streaming.quality.suites import SuiteError

    folder = docs or (
        path / "quality" if (path / "tables").is_dir() else path.with_name(f"{path.name}.quality")
    )

    def is_own(name: str) -> bool:  # what a live query's checks leave there goes on beside the pages
        return data_docs.is_page(folder / name) or f"quality/{name}".startswith((f"{BROKEN}/", f"{LIVE}/"))

    with expected_errors(InUse):
        check_folder(folder, own=is_own, writer="magnetar quality")
    with (
        expected_errors(
            InUse, NotWritable, LogError, FileNotFoundError, NothingToCheck, failed=(SuiteError,)
        ),
        exclusive([str(folder)], "magnetar quality"),
        console(stderr=True).status("reading") as status,
    ):
        report = check(path, progress=status.update)
        status.update("writing Data Docs")
        notes = [f"{reason}: {counted(count, 'record')}" for reason, count in report.malformed.items()]
        notes += [f"quarantined by {rule}: {count:,}" for rule, count in report.quarantined.items()]
        index = data_docs.write(
            folder, f"Quality of {path.name}", [each.page for each in report.checked], notes
        )
    _show(report, console())
    say(f"Data Docs: {index.absolute().as_uri()}")
    raise typer.Exit(0 if report.holds else 1)


def _show(report: Report, terminal: Console) -> None:

    from rich.text import Text

    table = new_table("suite", "", box=None, pad_edge=False, header_style="bold")
    for title in ("rows", "rules", "broken", "times"):
        table.add_column(title, justify="right")
    for each in report.checked:
        mark = Text("broken", "red") if each.broken else Text("holds", "green")
        if not each.agrees:
            mark = Text("Great Expectations disagrees", "red")
        flagged = sum(each.broken.values())
        numbers = (each.rows, len(each.suite.expectations), len(each.broken), flagged)
        table.add_row(each.suite.name, mark, *(f"{number:,}" for number in numbers))
    terminal.print(table)
    for each in report.checked:
        for rule, count in each.broken.items():
            terminal.print(f"\n[bold]{rule}[/]: {counted(count, 'time')}", highlight=False)
            for example in each.examples[rule]:
                terminal.print(f"  {one_line(str(example))}", markup=False, highlight=False)
    for title, counts in (
        ("malformed", report.malformed),
        ("quarantined by the query", report.quarantined),
    ):
        if counts:
            terminal.print(f"\n[bold]{counted(sum(counts.values()), 'record')} {title}[/]", highlight=False)
            for reason, count in sorted(counts.items(), key=lambda item: -item[1])[:_REASONS]:
                terminal.print(f"  {count:,}: {one_line(reason)}", markup=False, highlight=False)
    rows = sum(each.rows for each in report.checked if each.suite.kind != "RECORD")
    verdict = "all rules hold" if report.holds else "rules are broken"
    terminal.print(f"\n{rows:,} {report.what}, {len(report.checked)} suites: {verdict}", highlight=False)
