"""Files named ``<batch>-<partition>``, for sinks that write one file per call."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from sinks.base import ForeignFiles
from sinks.storage import Storage

NAME = re.compile(r"(\d{9,})-(\d{5,})\.\w+")
"""A file's name."""


class WrittenFile(NamedTuple):
    """The micro-batch and the ingress partition whose rows a file has."""

    batch: int
    partition: int


def path(folder: str, batch_id: int, partition: int, extension: str) -> str:
    """The file of one micro-batch and ingress partition, below the sink's root. `extension` has no dot."""
    return f"{folder}/{batch_id:09d}-{partition:05d}.{extension}"


def of(path: str) -> WrittenFile | None:
    """What a file's name says, or None if it has another form, as those of compacted files do."""
    found = NAME.fullmatch(path.rpartition("/")[2])
    return None if found is None else WrittenFile(int(found[1]), int(found[2]))


def prepare(storage: Storage, folders: Iterable[str], batch_id: int) -> None:
    """Delete the remains of killed writes. Called by a sink's first `begin`. Raises `ForeignFiles`."""
    last = max((written.batch for _, written in _written(storage, folders)), default=-1)
    if last > batch_id:
        raise ForeignFiles.found(storage.url, batch_id, last)
    storage.sweep()


def clear(storage: Storage, folders: Iterable[str], batch_id: int) -> None:
    """Delete the files of a micro-batch."""
    for path, written in _written(storage, folders):
        if written.batch == batch_id:
            storage.delete(path)


def _written(storage: Storage, folders: Iterable[str]) -> list[tuple[str, WrittenFile]]:
    paths = [storage.relative(info) for folder in folders for info in storage.files(folder, named=NAME)]
    return [(path, written) for path in paths if (written := of(path)) is not None]
