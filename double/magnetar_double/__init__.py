"""A broker for tests of applications that use Apache Pulsar: the command `magnetar-double`, and the pytest plugin beside it."""

import signal
import sys
from pathlib import Path


def main() -> None:
    """Runs the command in this process, which becomes Magnetar's."""
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # until the command handles it, Ctrl-C ends it without a traceback
    sys.path.insert(0, str(Path(__file__).parent))
    from streaming.cli.double import main as run

    run()
