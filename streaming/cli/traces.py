"""`magnetar import` and `magnetar conform`: traces recorded from a real Pulsar broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.errors import expected_errors

if TYPE_CHECKING:
    from streaming.traces.conform import Verdict


def import_command(
    traces: Annotated[list[Path], typer.Argument(help="Trace files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The command log to write: .jsonl or .jsonl.gz.")],
) -> None:
    """Convert traces recorded from a real Pulsar broker into a command log."""
    from rich.console import Console

    from streaming.traces.importer import import_traces
    from streaming.traces.trace import TraceError

    console = Console(stderr=True)
    with expected_errors(TraceError), console.status("reading") as status:
        imported = import_traces(traces, out, progress=lambda name: status.update(name))
    count = sum(imported.commands.values())
    typer.echo(f"{imported.traces} traces, {count:,} commands -> {out}")
    if imported.skipped:
        left_out = ", ".join(f"{number:,} {name}" for name, number in imported.skipped.most_common())
        typer.echo(f"left out, because a gateway answers them: {left_out}")


def conform_command(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Trace files, or folders of them. The default is the traces that come with Magnetar."
        ),
    ] = None,
) -> None:
    """Compare Magnetar frame by frame with traces recorded from a real Pulsar broker. The exit code is 1 if any differs."""
    from rich.console import Console
    from rich.table import Table

    from streaming.traces import RECORDED
    from streaming.traces.conform import compare_traces, known_gaps
    from streaming.traces.trace import TraceError

    console = Console()
    with expected_errors(TraceError), Console(stderr=True).status("comparing") as status:
        verdicts = compare_traces(traces or [RECORDED], progress=lambda verdict: status.update(verdict.name))
    table = Table("trace", "", "frames", "snapshots", "differences", box=None, pad_edge=False)
    for verdict in verdicts:
        mark = "[green]equal[/]" if verdict.equal else "[red]differs[/]"
        counts = (str(number) for number in (verdict.frames, verdict.snapshots, len(verdict.differences)))
        table.add_row(verdict.name, mark, *counts)
    console.print(table)
    gaps = known_gaps()
    for verdict in verdicts:
        explained_differences(verdict)
        if verdict.equal:
            continue
        first_difference(verdict)
        if verdict.name in gaps:
            console.print(f"  known gap: {gaps[verdict.name]}", markup=False, highlight=False)
    equal = sum(verdict.equal for verdict in verdicts)
    typer.echo(f"conform: {equal} of {len(verdicts)} traces equal")
    raise typer.Exit(0 if equal == len(verdicts) else 1)


def first_difference(verdict: Verdict) -> None:
    """Print the first difference of a trace."""
    from rich.console import Console

    console = Console()
    step, text = verdict.differences[0]
    console.print(f"\n[bold]{verdict.name}[/], first difference, in step '{step}':", highlight=False)
    console.print(f"  {text}", markup=False, highlight=False)


def explained_differences(verdict: Verdict) -> None:
    """Print what differs in a recording for a reason that is not Magnetar's."""
    for reason, count in sorted(verdict.explained.items()):
        typer.echo(f"{verdict.name}: {count:,} times: {reason}")
