"""Files named ``<batch>-<partition>``, for sinks that write one file per call."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from sinks.base import ForeignFiles
from sinks.storage import Storage

_NAME = re.compile(r"(\d{9,})-(\d{5,})\.\w+")


class WrittenFile(NamedTuple):
    """The micro-batch and the ingress partition whose rows a file has."""

    batch: int
    partition: int


def path(folder: str, batch_id: int, partition: int, extension: str) -> str:
    """The file of one micro-batch and ingress partition, below the sink's root. `extension` has no dot."""
    return f"{folder}/{batch_id:09d}-{partition:05d}.{extension}"


def of(path: str) -> WrittenFile | None:
    """What a file's name says, or None if it has another form, as those of compacted files do."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return None if found is None else WrittenFile(int(found[1]), int(found[2]))


def prepare(storage: Storage, folders: Iterable[str], batch_id: int) -> None:
    """Delete the remains of killed writes. Called by a sink's first `begin`. Raises `ForeignFiles`."""
    found = (of(str(info.path)) for folder in folders for info in storage.files(folder))
    last = max((each.batch for each in found if each is not None), default=-1)
    if last > batch_id:
        raise ForeignFiles.found(storage.url, batch_id, last)
    storage.sweep()
