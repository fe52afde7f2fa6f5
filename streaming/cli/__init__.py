"""The `magnetar` command, one module per command group. Nothing imports this package.

A module imports only typer and other light modules at its top; the body of a command imports what the command needs, so
that `magnetar --help` answers at once.
"""

import _signal  # type: ignore[import-not-found]  # `signal` takes 10 ms to import, during which Ctrl-C would print a traceback
import os
import sys


def main() -> None:
    """Runs the command line."""
    _prepare_streams()
    try:
        os.getcwd()  # noqa: PTH109 (pathlib takes time)
    except FileNotFoundError:
        sys.exit("magnetar: the current folder was removed: change to another one")
    # Until the command handles signals, Ctrl-C ends the process without a traceback.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from streaming.cli.app import app

    app()


def _prepare_streams() -> None:
    """What a command prints goes nowhere where the stream was closed, and with escapes where the encoding lacks a character."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 (pathlib takes time)
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")
