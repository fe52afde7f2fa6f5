"""Why a query ended, in a sentence: what Spark says of it fills three screens, most of them Java's."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

_END_OF_STORY = "=== Streaming Query ==="
_RAISED = re.compile(r"(?:Caused by: |: )?(?:[\w$]+\.)*([A-Z][\w$]*): (.+)")
"""A line of a traceback, Python's or Java's, that names an exception and has its text."""


class QueryFailed(RuntimeError):
    """The query ended by itself. The text says why and what to do."""


@contextmanager
def explained(advice: str) -> Iterator[None]:
    """Raises `QueryFailed`, the cause and then `advice`, for a failed query and for a Spark that went away."""
    try:
        yield
    except Exception as error:
        # Imported late: who only reads logs has no need of them.
        from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import StreamingQueryException

        if isinstance(error, StreamingQueryException):
            raise QueryFailed(f"{cause(str(error))}. {advice}") from error
        if isinstance(error, Py4JError | ConnectionError) and not isinstance(error, Py4JJavaError):
            raise QueryFailed(
                f"Spark's Java process is gone: was it killed, for its memory? {advice}"
            ) from error
        raise


def cause(text: str) -> str:
    """The last exception that a `StreamingQueryException`'s text tells of, which is the first that was raised."""
    found = None
    for line in text.partition(_END_OF_STORY)[0].splitlines():
        found = _RAISED.match(line) or found
    if found is None:
        return text.partition("\n")[0].strip()
    name, words = found.groups()
    for ballast in (" SQLSTATE:", ". Consider setting 'spark."):
        words = words.partition(ballast)[0].strip().rstrip(".")
    # Java's names tell nothing that the words don't.
    return words if name == "SparkException" else f"{name}: {words}"
