"""The `magnetar` command: its groups and commands, put together."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer

from schemas.printable import traceback_text
from streaming import __version__
from streaming.cli.advise import advise_command
from streaming.cli.canaries import canaries_command
from streaming.cli.check import check_command
from streaming.cli.compact import compact_command
from streaming.cli.debug import debug_command
from streaming.cli.demo import demo_command
from streaming.cli.errors import FAILED, Group
from streaming.cli.explain import explain_command
from streaming.cli.inspect import inspect_command, peek_command
from streaming.cli.kafka import kafka_app
from streaming.cli.minimize import minimize_command
from streaming.cli.operate import (
    clear_backlog_command,
    expire_command,
    policy_app,
    reset_cursor_command,
    skip_command,
    unload_command,
    unsubscribe_command,
)
from streaming.cli.outputs import CheckedCommand
from streaming.cli.produce import produce_command
from streaming.cli.profiles import profiles_command
from streaming.cli.quality import quality_command
from streaming.cli.quarantine import quarantine_app
from streaming.cli.record import capture_command, mirror_command, record_command
from streaming.cli.replay import replay_command
from streaming.cli.run import run_command
from streaming.cli.serve import serve_command
from streaming.cli.state import state_app
from streaming.cli.traces import conform_command, import_command
from streaming.cli.ui import ui_command
from streaming.cli.whatif import diff_command, whatif_command
from streaming.runtime.signals import ended_by, ending_signals, late_signals, undisturbed


class Application(typer.Typer):
    """The command as a process, which signals end without a traceback."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command and exits."""
        code = 0
        with late_signals(lambda: code), ending_signals():
            try:
                return super().__call__(*args, **kwargs)
            except BaseException as end:
                if (number := ended_by()) is not None:
                    _end_interrupted(number)
                if isinstance(end, SystemExit):
                    code = end.code if isinstance(end.code, int) else 0
                    raise
                code = FAILED
                with undisturbed():
                    typer.echo(traceback_text(end), err=True)
                raise SystemExit(FAILED) from None


def _end_interrupted(number: int) -> NoReturn:
    """The end of a command that a signal ended, whatever its code made of that. Threads and exit handlers have no say."""
    with suppress(OSError):
        sys.stdout.flush()
        typer.echo("magnetar: interrupted", err=True)
    os._exit(128 + number)


SUMMARY = (
    "What would another TTL, quota, retention or version of Pulsar do to your traffic, and why was a message dropped? Apache Pulsar's "
    "broker semantics, as one Spark Structured Streaming query."
)

app = Application(
    name="magnetar",
    cls=Group,
    help=SUMMARY,
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
    """See `SUMMARY`."""


COMMANDS: dict[str, dict[str, Callable[..., Any] | typer.Typer]] = {
    "Ask about a log or a query": {
        "demo": demo_command,
        "replay": replay_command,
        "whatif": whatif_command,
        "diff": diff_command,
        "advise": advise_command,
        "explain": explain_command,
        "inspect": inspect_command,
        "peek": peek_command,
        "debug": debug_command,
        "check": check_command,
        "minimize": minimize_command,
        "profiles": profiles_command,
    },
    "Follow a real Pulsar": {
        "mirror": mirror_command,
        "capture": capture_command,
        "record": record_command,
        "import": import_command,
        "conform": conform_command,
    },
    "Run the broker": {
        "run": run_command,
        "canaries": canaries_command,
        "serve": serve_command,
        "produce": produce_command,
        "ui": ui_command,
        "compact": compact_command,
        "kafka": kafka_app,
        "state": state_app,
        "quality": quality_command,
        "quarantine": quarantine_app,
    },
    "Administer its topics": {
        "policy": policy_app,
        "skip": skip_command,
        "expire": expire_command,
        "clear-backlog": clear_backlog_command,
        "reset-cursor": reset_cursor_command,
        "unsubscribe": unsubscribe_command,
        "unload": unload_command,
    },
}
"""The commands, by what they are for."""

for panel, commands in COMMANDS.items():
    for name, each in commands.items():
        if isinstance(each, typer.Typer):
            app.add_typer(each, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(each)

for group in (app, *(each.typer_instance for each in app.registered_groups)):
    for command in group.registered_commands if group is not None else ():
        command.cls = CheckedCommand
        # Terminals break lines themselves.
        command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command.callback) or "")
