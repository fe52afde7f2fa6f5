"""The `magnetar` command: a thin front.

Commands import what they need inside their bodies, so that `magnetar --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from streaming import __version__
from streaming.cli import queries
from streaming.cli.quality import quality_command
from streaming.cli.quarantine import quarantine_app

app = typer.Typer(
    name="magnetar",
    help="Apache Pulsar's broker semantics as one Spark Structured Streaming query.",
    no_args_is_help=True,
    add_completion=False,
)
kafka_app = typer.Typer(
    help="A real Kafka broker on this machine, for trying things out.", no_args_is_help=True
)
app.add_typer(kafka_app, name="kafka")
app.add_typer(quarantine_app, name="quarantine")

KafkaDir = Annotated[Path, typer.Option("--dir", help="Where the broker keeps its data, log and state.")]
KAFKA_DIR = Path(".magnetar/kafka")


@contextmanager
def expected_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds, whose messages are written for people, into one line and exit code 1."""
    try:
        yield
    except kinds as error:
        typer.echo(f"magnetar: {error}", err=True)
        raise typer.Exit(1) from error


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"magnetar {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Apache Pulsar's broker semantics as one Spark Structured Streaming query."""


@kafka_app.command("up")
def kafka_up(
    port: Annotated[
        int, typer.Option(help="The port on 127.0.0.1 (0: any free one).", min=0, max=65535)
    ] = 9092,
    directory: KafkaDir = KAFKA_DIR,
) -> None:
    """Start it, and leave it running (2 s; the first time on a machine it fetches 44 MB)."""
    from streaming.kafka.local import LocalKafka, LocalKafkaError
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError

    with expected_errors(LocalKafkaError, JarsUnavailableError, JavaNotFoundError):
        running = LocalKafka(directory, port).start()
        typer.echo(f"Kafka is up at {running.bootstrap} (pid {running.pid}, {directory})")


@kafka_app.command("down")
def kafka_down(directory: KafkaDir = KAFKA_DIR) -> None:
    """Stop it. Its topics stay, for the next `up`."""
    from streaming.kafka.local import LocalKafka, LocalKafkaError

    kafka = LocalKafka(directory)
    with expected_errors(LocalKafkaError):
        was_up = kafka.status() is not None
        kafka.stop()
        typer.echo("Kafka is down" if was_up else f"Kafka was not up in {directory}")


@kafka_app.command("status")
def kafka_status(directory: KafkaDir = KAFKA_DIR) -> None:
    """Say whether it is up; exit code 1 if it is not."""
    from streaming.kafka.local import LocalKafka

    running = LocalKafka(directory).status()
    if running is None:
        typer.echo(f"Kafka is not up in {directory}")
        raise typer.Exit(1)
    typer.echo(f"Kafka is up at {running.bootstrap} (pid {running.pid}, {directory})")


@app.command("import")
def import_traces(
    traces: Annotated[list[Path], typer.Argument(help="Trace files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The command log to write (.jsonl).")],
) -> None:
    """Make a command log of traces recorded from a real Pulsar broker."""
    from rich.console import Console

    from streaming.traces import importer
    from streaming.traces.trace import TraceError

    console = Console(stderr=True)
    with expected_errors(TraceError), console.status("reading") as status:
        imported = importer.import_traces(traces, out, progress=lambda name: status.update(name))
    count = sum(imported.commands.values())
    typer.echo(f"{imported.traces} traces, {count:,} commands -> {out}")
    if imported.skipped:
        left_out = ", ".join(f"{number:,} {name}" for name, number in imported.skipped.most_common())
        typer.echo(f"left out, a gateway answers them: {left_out}")


@app.command("conform")
def conform(
    traces: Annotated[
        list[Path] | None, typer.Argument(help="Trace files, or folders of them; by default those we carry.")
    ] = None,
) -> None:
    """Compare Magnetar with traces recorded from a real Pulsar broker, frame by frame. Exit code 1 if any differs."""
    from rich.console import Console
    from rich.table import Table

    from streaming.traces import RECORDED
    from streaming.traces import conform as conformance
    from streaming.traces.trace import TraceError

    console = Console()
    with expected_errors(TraceError), Console(stderr=True).status("comparing") as status:
        verdicts = conformance.compare_traces(
            traces or [RECORDED], progress=lambda verdict: status.update(verdict.name)
        )
    table = Table("trace", "", "frames", "snapshots", "differences", box=None, pad_edge=False)
    for verdict in verdicts:
        mark = "[green]equal[/]" if verdict.equal else "[red]differs[/]"
        counts = (str(number) for number in (verdict.frames, verdict.snapshots, len(verdict.differences)))
        table.add_row(verdict.name, mark, *counts)
    console.print(table)
    gaps = conformance.known_gaps()
    for verdict in verdicts:
        if verdict.equal:
            continue
        step, text = verdict.differences[0]
        console.print(f"\n[bold]{verdict.name}[/], first difference, in step '{step}':", highlight=False)
        console.print(f"  {text}", markup=False, highlight=False)
        if verdict.name in gaps:
            console.print(f"  known gap: {gaps[verdict.name]}", markup=False, highlight=False)
    equal = sum(verdict.equal for verdict in verdicts)
    typer.echo(f"conform: {equal} of {len(verdicts)} traces equal")
    raise typer.Exit(0 if equal == len(verdicts) else 1)


@app.command("demo")
def demo(
    out: Annotated[Path, typer.Option(help="A folder for the log and the results.")] = Path("demo"),
) -> None:
    """Replay recorded traffic of a real broker and a made day with a slow subscription: what happened, and why."""
    from streaming.demo import explain, make_log

    log = out / "log.jsonl"
    make_log(log)
    typer.echo(f"{log}: frames recorded from Apache Pulsar 4.0.7, then a made day of a shop\n")
    queries.replay_command(log, out=out / "results", overwrite=True)
    typer.echo("\nWhat happened, and why:")
    for sentence in explain(out / "results"):
        typer.echo(f"  {sentence}")


app.command("replay")(queries.replay_command)
app.command("run")(queries.run_command)
app.command("produce")(queries.produce_command)
app.command("quality")(quality_command)
