"""Spark's daemon of Python workers, without tracebacks that tell nothing: `spark.python.daemon.module`.

When a task fails or a query stops, Spark closes its end of the worker's pipe. The worker, flushing what it has still to
say, meets a BrokenPipeError, and pyspark prints that on the terminal. What went wrong Spark says itself.
"""

import sys
import traceback

from pyspark import daemon


class Quiet:
    """In the place of the module `traceback`, for `pyspark.daemon` alone."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()


if __name__ == "__main__":
    daemon.traceback = Quiet  # type: ignore[assignment,attr-defined]
    daemon.manager()
