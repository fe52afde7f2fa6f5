"""What a question is about: the folder of a replay, the store of a query, or a log at a moment."""

from __future__ import annotations

from pathlib import Path

from schemas.lines import LOGS
from streaming.answers.history.folders import Folders, NotFound
from streaming.answers.history.timeline import Timeline, is_folder_of_log


def is_log(path: str | Path) -> bool:
    """Whether a path names a command log, in a file or in a folder with lines, and not the folder of a replay or a query."""
    return not is_of_run(path) and (str(path).endswith(LOGS) or is_folder_of_log(path))


def is_of_run(path: str | Path) -> bool:
    """Whether a path names the folder of a replay, or the checkpoint or the store of a query, however it is called."""
    return any((Path(path) / each).exists() for each in ("state", "commits", "ingress.json"))


def opened(
    source: str | Path,
    *,
    checkpoint: str | Path | None = None,
    at: str | int | None = None,
    snapshots: str | Path | None = None,
) -> Folders:
    """What there is to explain: a log at a moment, or the last state of a replay or a query.

    Args:
        source: the `out` of a replay, the `store` of a query, or a command log.
        checkpoint: that of the query, if `source` is its store. A log and a replay have none.
        at: the moment of a log, see `Timeline.moment`. None: its end.
        snapshots: a folder for the snapshots of a log, see `Timeline`. None: one in the user's cache.

    Raises `LogError`, `FileNotFoundError`, `NotFound`, `BadCheckpoint`.
    """
    if at is not None and is_of_run(source):
        raise NotFound(f"{source} is not a log, and only a log has moments: give the log instead")
    if at is None and not is_log(source):
        return Folders.of(source, checkpoint)
    timeline = Timeline(source, snapshots)
    return timeline.folders(len(timeline) if at is None else timeline.moment(str(at)))
