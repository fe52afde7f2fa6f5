"""Spark's daemon of Python workers, without useless tracebacks: `spark.python.daemon.module`.

It imports once what every worker needs, because it forks them.

When a task fails or a query stops, Spark closes its end of the worker's pipe. The worker's flush then raises a
BrokenPipeError, which pyspark prints on the terminal. Spark reports the actual error itself.
"""

import gc
import sys
import traceback

import pyspark.worker  # noqa: F401
from pyspark import daemon

import sinks.dead_letters
import sinks.quarantine
import sinks.tables  # noqa: F401
import streaming.quality.sink
import streaming.spark.operator
import streaming.spark.query  # noqa: F401
from schemas.printable import traceback_text


class Quiet:
    """Replaces the module `traceback` in `pyspark.daemon` only."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the current exception to standard error, except a broken pipe."""
        error = sys.exception()
        if error is not None and not isinstance(error, BrokenPipeError):
            print(traceback_text(error), file=sys.stderr)


if __name__ == "__main__":
    # A worker collects garbage after every task. Without this, it would go through all that was imported each time.
    gc.freeze()
    # Until then there is little to find: the columns and effects of a micro-batch are many, but hold no cycles.
    gc.set_threshold(1 << 20)
    daemon.traceback = Quiet  # type: ignore[assignment,attr-defined]
    daemon.manager()
