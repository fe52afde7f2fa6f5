"""Checks a checkpoint before the query starts, because Spark's errors don't name the damaged file.

Spark writes these files atomically, but a power failure, an incomplete copy or a full disk may still truncate them. Spark
itself checks its state files when it reads them, see `streaming.spark.failure`.
"""

import json
from pathlib import Path
from typing import Any

from sinks.storage import RESTORE
from streaming.spark.failure import QueryFailed


class BadCheckpoint(QueryFailed):
    """The checkpoint is damaged, or belongs to another query."""


def check(checkpoint: str | Path, topic: str) -> None:
    """Check the files that Spark reads first. Does nothing if they don't exist yet or are not on this machine.

    Raises `BadCheckpoint`.
    """
    folder = Path(checkpoint)
    if folder.exists() and not folder.is_dir():
        raise BadCheckpoint(f"{folder} is not a folder: give the query another --checkpoint, new or its own")
    offsets = _latest(folder / "offsets")
    if offsets is None:
        return
    metadata = folder / "metadata"
    if not metadata.exists():
        raise BadCheckpoint(f"The checkpoint's file {metadata} is missing. {RESTORE}")
    _lines(metadata, 1)
    *_, last = _lines(offsets, 3)
    if not isinstance(last, dict) or not all(isinstance(each, dict) for each in last.values()):
        raise BadCheckpoint(
            f"{folder} is the checkpoint of another query: give this one its own, or a new one"
        )
    if topic not in last:
        raise BadCheckpoint(
            f"{folder} is the checkpoint of a query over topic {' and '.join(map(repr, last))}, not {topic!r}: give the "
            "query its own topic, or a new checkpoint and a new store"
        )
    if (commit := _latest(folder / "commits")) is not None:
        _lines(
            commit, 2, "Delete it and start the query again: it repeats that micro-batch, as after a crash"
        )


def committed_offsets(checkpoint: str | Path, topic: str) -> dict[int, int]:
    """Where the next uncommitted micro-batch begins, by partition of the topic; empty if none was committed or the checkpoint
    is not on this machine."""
    folder = Path(checkpoint)
    if (commit := _latest(folder / "commits")) is None:
        return {}
    *_, last = _lines(folder / "offsets" / commit.name, 3)
    return {int(partition): offset for partition, offset in last[topic].items()}


def next_batch(checkpoint: str | Path) -> int | None:
    """The micro-batch with which the query starts: the last one that was planned, unless it is committed. −1 if none was
    ever planned; None if the checkpoint is not on this machine."""
    if "://" in str(checkpoint):
        return None
    planned, committed = (_latest(Path(checkpoint) / name) for name in ("offsets", "commits"))
    if planned is None:
        return -1
    return _number(planned) + (committed is not None and committed.name == planned.name)


def _latest(folder: Path) -> Path | None:
    """The file of the last micro-batch."""
    if not folder.is_dir():
        return None
    return max((each for each in folder.iterdir() if each.name.isdigit()), key=_number, default=None)


def _number(file: Path) -> int:
    return int(file.name)


def _lines(file: Path, least: int, to_do: str = RESTORE) -> list[Any]:
    """The JSON values in the lines after the version. Raises `BadCheckpoint` if the file is truncated."""
    lines = file.read_bytes().splitlines()
    try:
        if len(lines) < least:
            raise ValueError
        return [json.loads(line) for line in (lines[1:] if least > 1 else lines)]
    except ValueError as error:
        raise BadCheckpoint(
            f"The checkpoint's file {file} ({file.stat().st_size:,} bytes) is damaged. {to_do}"
        ) from error
