"""`magnetar demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.console import say
from streaming.cli.errors import expected_errors
from streaming.cli.replay import replay_command


def demo_command(
    out: Annotated[Path, typer.Option(help="The folder for the log and the results.")] = Path("demo"),
) -> None:
    """Replay traffic recorded from a real broker and a simulated day of a shop; show what happened and why."""
    from sinks.lock import InUse, NotWritable, exclusive
    from streaming.jobs.demo import RESULTS, make_log
    from streaming.runtime.java import JavaNotFoundError, spark_java_home

    log = out / "log.jsonl"
    with expected_errors(InUse, NotWritable, JavaNotFoundError), exclusive([str(out)], "magnetar demo"):
        spark_java_home()
        make_log(log)
    say(f"{log}: frames recorded from Apache Pulsar 4.0.7, then a simulated day of a shop", "")
    replay_command(log, out=out / RESULTS, overwrite=True)
