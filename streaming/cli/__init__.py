"""The `magnetar` command, one module per command group. Nothing imports this package.

A module imports only typer and other light modules at its top; the body of a command imports what the command needs, so
that `magnetar --help` answers at once.
"""

import _signal  # type: ignore[import-not-found]  # `signal` takes 10 ms to import, during which Ctrl-C would print a traceback


def main() -> None:
    """Runs the command line."""
    # Until the command handles signals, Ctrl-C ends the process without a traceback.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from streaming.cli.app import app

    app()
