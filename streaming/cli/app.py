"""The `magnetar` command: its groups and commands, put together."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer

from streaming import __version__
from streaming.cli.advise import advise_command
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
                    sys.excepthook(type(end), end, end.__traceback__)
                raise SystemExit(FAILED) from None


def _end_interrupted(number: int) -> NoReturn:
    """The end of a command that a signal ended, whatever its code made of that. Threads and exit handlers have no say."""
    with suppress(OSError):
        sys.stdout.flush()
        typer.echo("magnetar: interrupted", err=True)
    os._exit(128 + number)


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
app.command("whatif")(whatif_command)
app.command("diff")(diff_command)
app.command("advise")(advise_command)
app.command("explain")(explain_command)
app.command("inspect")(inspect_command)
app.command("peek")(peek_command)
app.command("check")(check_command)
app.command("debug")(debug_command)
app.command("minimize")(minimize_command)
app.command("run")(run_command)
app.command("ui")(ui_command)
app.command("compact")(compact_command)
app.command("serve")(serve_command)
app.command("produce")(produce_command)
app.add_typer(policy_app, name="policy")
app.command("skip")(skip_command)
app.command("expire")(expire_command)
app.command("clear-backlog")(clear_backlog_command)
app.command("reset-cursor")(reset_cursor_command)
app.command("unsubscribe")(unsubscribe_command)
app.command("unload")(unload_command)
app.add_typer(kafka_app, name="kafka")
app.add_typer(state_app, name="state")
app.command("quality")(quality_command)
app.add_typer(quarantine_app, name="quarantine")
app.command("profiles")(profiles_command)
app.command("record")(record_command)
app.command("capture")(capture_command)
app.command("mirror")(mirror_command)
app.command("import")(import_command)
app.command("conform")(conform_command)

for group in (app, *(each.typer_instance for each in app.registered_groups)):
    for command in group.registered_commands if group is not None else ():
        command.cls = CheckedCommand
