"""The `magnetar` command, one module per command group. Nothing imports this package.

A module imports only typer and other light modules at its top; the body of a command imports what the command needs, so
that `magnetar --help` answers at once.
"""

import signal


def main() -> None:
    """Runs the command line."""
    # Until the command handles signals, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from streaming.cli.app import app

    app()
