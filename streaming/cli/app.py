"""The `magnetar` command: its groups and commands, put together."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from streaming import __version__
from streaming.cli.demo import demo_command
from streaming.cli.errors import Group
from streaming.cli.explain import explain_command
from streaming.cli.inspect import inspect_command, peek_command
from streaming.cli.kafka import kafka_app
from streaming.cli.produce import produce_command
from streaming.cli.quality import quality_command
from streaming.cli.quarantine import quarantine_app
from streaming.cli.record import capture_command, record_command
from streaming.cli.replay import replay_command
from streaming.cli.run import run_command
from streaming.cli.serve import serve_command
from streaming.cli.traces import conform_command, import_command
from streaming.signals import ending_signals, late_signals


class Application(typer.Typer):
    """The command as a process, which signals end without a traceback."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command and exits."""
        code = 0
        with late_signals(lambda: code), ending_signals():
            try:
                return super().__call__(*args, **kwargs)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
                if code > _SIGNALLED:
                    typer.echo("magnetar: interrupted", err=True)
                raise


_SIGNALLED = 128

app = Application(
    name="magnetar",
    cls=Group,
    help="Apache Pulsar's broker semantics as one Spark Structured Streaming query.",
    no_args_is_help=True,
    add_completion=False,
)


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


app.command("demo")(demo_command)
app.command("replay")(replay_command)
app.command("explain")(explain_command)
app.command("inspect")(inspect_command)
app.command("peek")(peek_command)
app.command("run")(run_command)
app.command("serve")(serve_command)
app.command("produce")(produce_command)
app.add_typer(kafka_app, name="kafka")
app.command("quality")(quality_command)
app.add_typer(quarantine_app, name="quarantine")
app.command("record")(record_command)
app.command("capture")(capture_command)
app.command("import")(import_command)
app.command("conform")(conform_command)
