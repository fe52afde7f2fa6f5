"""Explains in a sentence why a query ended. Spark's own message fills three screens, mostly with Java."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from schemas.entries import EntryNotFound
from schemas.errors import MagnetarError
from sinks.s3 import failed
from sinks.storage import RESTORE, Damaged, NotStored
from streaming.broker.errors import StateVersionError
from streaming.fold.records import FoldError, OffsetError
from streaming.spark.trigger import ClockJumped

_END_OF_STORY = "=== Streaming Query ==="
_RAISED = re.compile(r"(?:Caused by: |: )?(?:[\w$]+\.)*([A-Z][\w$]*): (.+)")
"""A line of a Python or Java traceback with the name and the text of an exception."""

_SAY_ALL = {
    "ClockJumped",
    "Damaged",
    "EntryNotFound",
    "FoldError",
    "ForeignFiles",
    "IngressChanged",
    "LogLost",
    "OffsetError",
    "StateVersionError",
}
"""Our exceptions whose text ends with what to do."""


class QueryFailed(MagnetarError, RuntimeError):
    """The query failed or can't start. The text says why and what to do."""


class _Known(NamedTuple):
    """A failure for which Spark's message is long or unhelpful."""

    told: re.Pattern[str]
    happened: str
    to_do: str | None = None
    """What to do, or None for the general advice."""


_ANEW = "give the query a new checkpoint and a new store, and it starts with what Kafka has"
_ROOM = (
    "Free some space, and restart the query with the same checkpoint: nothing is lost, it repeats the "
    "micro-batch"
)
_KNOWN = [
    _Known(
        re.compile(r"Could not read records in offset (\[\d+, \d+\)) for topic partition (\S+)"),
        r"Kafka deleted records before they were read, of offsets \1 of partition \2",
        f"Nothing is skipped silently: {_ANEW}. Then let the topic keep records longer than the query may be down",
    ),
    _Known(
        re.compile(r"Partition (\S+) offset was changed from (\d+) to (\d+)"),
        r"Records up to offset \2 of Kafka's partition \1 were read, and now it ends at \3: the topic was deleted "
        "and recreated, or Kafka lost records",
        f"Nothing is skipped silently: {_ANEW}",
    ),
    _Known(
        re.compile(r"Partitions Set\((.+?)\) have been deleted"),
        r"Kafka has no partitions \1 any more: the topic was deleted, or recreated with fewer",
        f"Nothing is skipped silently: {_ANEW}",
    ),
    _Known(
        re.compile(r"UnknownTopicOrPartitionException"),
        "Kafka no longer has the ingress topic: it was deleted",
        f"What was in it and not read is gone. Write to another topic, or create it anew: {_ANEW}",
    ),
    _Known(
        re.compile(r"Failed to read log file (?:file:)?(.+?)\. Incomplete log file"),
        r"The checkpoint's file \1 is damaged",
        RESTORE,
    ),
    _Known(
        re.compile(r"CHECKPOINT_MISSING_METADATA_FILE\] Checkpoint location (?:file:)?(.+?) is in an"),
        r"The checkpoint's file \1/metadata is missing",
        RESTORE,
    ),
    _Known(
        re.compile(r"MISSING_STATE_DIRECTORY"),
        "The checkpoint's folder 'state' is empty or missing",
        RESTORE,
    ),
    _Known(
        re.compile(r"CANNOT_READ_(?:DELTA|SNAPSHOT)_FILE_\w+\].+? file (?:file:)?(.+?) of \w+\[", re.DOTALL),
        r"The checkpoint's file \1 is missing or damaged",
        RESTORE,
    ),
    # Spark does not name the file.
    _Known(
        re.compile(r"\[CANNOT_LOAD_STATE_STORE"),
        "A file in the checkpoint's folder 'state' is damaged",
        RESTORE,
    ),
    _Known(
        re.compile(r"kafka\.common\.errors\.TimeoutException: (.+?)\.?$", re.MULTILINE),
        r"Kafka did not answer for so long that the query gave up (\1)",
    ),
    _Known(
        re.compile(
            r"(\w+ on s3a://\S+): software\.amazon\.awssdk\.\S+: (.+?) \(SDK Attempt Count", re.DOTALL
        ),
        r"S3 failed for so long that the query gave up (\1: \2)",
    ),
    _Known(
        re.compile(r"ArithmeticException: long overflow"),
        "A record of the ingress topic has a timestamp beyond the years that Spark can hold",
        "Copy the topic, where the record gets another one, for a query with a new checkpoint and a new store: magnetar produce kafka://OLD "
        "--ingress kafka://NEW. Topics that Magnetar creates take no such record",
    ),
    _Known(re.compile(r"NotStored: (.+: No space left on device)"), r"\1", _ROOM),
    _Known(
        re.compile(r"No space left on device"),
        "A disk is full: the checkpoint's, or that of temporary files (No space left on device)",
        _ROOM,
    ),
]


@contextmanager
def explained(advice: str) -> Iterator[None]:
    """Raise `QueryFailed`, with the cause and what to do, if the query fails or Spark's process is gone.

    `advice`: a clause that says what to do about unknown failures.
    """
    try:
        yield
    except Exception as error:
        if isinstance(
            error, ClockJumped | Damaged | EntryNotFound | FoldError | OffsetError | StateVersionError
        ):
            raise QueryFailed(str(error)) from error
        if isinstance(error, NotStored):
            raise QueryFailed(f"{error}. {advice}") from error
        if isinstance(error, OSError) and (of_s3 := failed(str(error))) is not None:
            raise QueryFailed(f"{of_s3}. {advice}") from error
        # Then the error is not Spark's. The import would take seconds on a busy machine.
        if "pyspark" not in sys.modules:
            raise

        from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkRuntimeError
        from pyspark.errors.exceptions.captured import CapturedException

        if isinstance(error, CapturedException | Py4JJavaError):
            raise QueryFailed(explanation(str(error), advice)) from error
        if isinstance(error, PySparkRuntimeError):
            raise QueryFailed(
                f"Spark failed: {str(error).strip().splitlines()[0].rstrip('.')}. {advice}"
            ) from error
        if isinstance(error, Py4JError | ConnectionError):
            raise QueryFailed(
                f"Spark's Java process is gone: was it killed for using too much memory? {advice}"
            ) from error
        raise


def not_started(error: Exception, master: str | None, conf: Mapping[str, str]) -> QueryFailed:
    """The error for a session that did not start. `master` and `conf`: what the user said of it. Values may be secrets."""
    options = [*(["--master"] if master is not None else ()), *(f"--conf {name}" for name in conf)]
    to_do = f"Check {', '.join(options)}" if options else "Check Java, and how much memory is free"
    said = cause(str(error)).strip().rstrip(".")
    return QueryFailed(
        f"Spark did not start: {said}. Nothing was folded. {to_do}; what Java says, if anything, is above"
    )


def explanation(text: str, advice: str) -> str:
    """The cause and what to do, from the text of a Spark exception."""
    story = text.partition(_END_OF_STORY)[0]
    if (raised := _first_raised(story)) is not None and raised[0] in _SAY_ALL:
        return raised[1]
    for known in _KNOWN:
        if found := known.told.search(story):
            return f"{found.expand(known.happened)}. {known.to_do or advice}"
    if (of_s3 := failed(story)) is not None:
        return f"{of_s3}. {advice}"
    return f"{cause(text)}. {advice}"


def cause(text: str) -> str:
    """The last exception in the text of a Spark exception, which was raised first."""
    story = text.partition(_END_OF_STORY)[0]
    raised = _first_raised(story)
    if raised is None:
        return story.partition("\n")[0].strip()
    name, words = raised
    # The name adds nothing to the text.
    is_known = name in ("NotStored", "ResponsesNotSent", "DeadLettersNotSent", "SparkException")
    return words if is_known else f"{name}: {words}"


def _first_raised(story: str) -> tuple[str, str] | None:
    """The name and the text of that exception."""
    found = None
    for line in story.splitlines():
        found = _RAISED.match(line) or found
    if found is None:
        return None
    name, words = found.groups()
    for ballast in (" SQLSTATE:", ". Consider setting 'spark."):
        words = words.partition(ballast)[0].strip().rstrip(".")
    return name, words
