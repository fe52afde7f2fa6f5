"""`magnetar import` and `magnetar conform`: traces recorded from a real Pulsar broker."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.printable import one_line
from streaming.cli.console import console, new_table, say
from streaming.cli.errors import expected_errors

if TYPE_CHECKING:
    from streaming.traces.conform import TraceComparison


def import_command(
    traces: Annotated[list[Path], typer.Argument(help="Trace files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The command log to write: .jsonl or .jsonl.gz.")],
) -> None:
    """Convert traces recorded from a real Pulsar broker into a command log."""
    from streaming.traces.importer import import_traces
    from streaming.traces.trace import TraceError

    with expected_errors(TraceError), console(stderr=True).status("reading") as status:
        imported = import_traces(traces, out, progress=lambda name: status.update(name))
    count = sum(imported.commands.values())
    say(f"{imported.traces} traces, {count:,} commands -> {out}")
    missing_profiles(imported.stand_ins)
    if imported.skipped:
        left_out = ", ".join(f"{number:,} {name}" for name, number in imported.skipped.most_common())
        say(f"skipped, because a gateway answers them: {left_out}")
    for what, number in imported.lacking.most_common():
        say(f"{number:,} times: {what}")


def conform_command(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Trace files, or folders of them. The default is the traces that come with Magnetar."
        ),
    ] = None,
) -> None:
    """Compare Magnetar frame by frame with traces recorded from a real Pulsar broker. The exit code is 1 if any differs."""
    from streaming.traces import RECORDED
    from streaming.traces.conform import compare_traces, known_gaps
    from streaming.traces.trace import TraceError

    terminal = console()
    with expected_errors(TraceError), console(stderr=True).status("comparing") as status:
        verdicts = compare_traces(traces or [RECORDED], progress=lambda verdict: status.update(verdict.name))
    from rich.text import Text

    table = new_table("trace", "", "frames", "snapshots", "differences", box=None, pad_edge=False)
    for verdict in verdicts:
        mark = Text("equal", "green") if verdict.equal else Text("differs", "red")
        counts = (str(number) for number in (verdict.frames, verdict.snapshots, len(verdict.differences)))
        table.add_row(verdict.name, mark, *counts)
    terminal.print(table)
    gaps = known_gaps()
    for verdict in verdicts:
        explained_differences(verdict)
        if verdict.equal:
            continue
        first_difference(verdict)
        if verdict.name in gaps:
            terminal.print(f"  known gap: {gaps[verdict.name]}", markup=False, highlight=False)
    missing_profiles(verdict.stand_in for verdict in verdicts)
    equal = sum(verdict.equal for verdict in verdicts)
    say(f"conform: {equal} of {len(verdicts)} traces equal")
    raise typer.Exit(0 if equal == len(verdicts) else 1)


def missing_profiles(stand_ins: Iterable[str | None]) -> None:
    """Say once for each version of Pulsar that it has no profile of its own."""
    for each in sorted(set(filter(None, stand_ins))):
        say(f"not there: {one_line(each)}")


def first_difference(verdict: TraceComparison) -> None:
    """Print the first difference of a trace."""
    terminal = console()
    step, text = verdict.differences[0]
    terminal.print(
        f"\n{one_line(verdict.name)}, first difference, in step '{one_line(step)}':",
        markup=False,
        highlight=False,
    )
    terminal.print(f"  {one_line(text)}", markup=False, highlight=False)


def explained_differences(verdict: TraceComparison) -> None:
    """Print what differs in a recording for a reason that is not Magnetar's."""
    for reason, count in sorted(verdict.explained.items()):
        say(f"{verdict.name}: {count:,} times: {reason}")
