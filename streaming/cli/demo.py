"""`magnetar demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.replay import replay_command


def demo_command(
    out: Annotated[Path, typer.Option(help="The folder for the log and the results.")] = Path("demo"),
) -> None:
    """Replay traffic recorded from a real broker and a simulated day of a shop; show what happened and why."""
    from streaming.demo import make_log

    log = out / "log.jsonl"
    make_log(log)
    typer.echo(f"{log}: frames recorded from Apache Pulsar 4.0.7, then a simulated day of a shop\n")
    replay_command(log, out=out / "results", overwrite=True)
