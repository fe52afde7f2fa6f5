"""The `magnetar` command: a thin front.

Commands import what they need inside their bodies, so that `magnetar --help` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from streaming import __version__

app = typer.Typer(
    name="magnetar",
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
