"""Files named ``<batch>-<partition>``, for sinks that write one file per call."""

from collections.abc import Iterable

from pyarrow import fs

from sinks.base import ForeignFiles
from sinks.storage import Storage


def path(folder: str, batch_id: int, partition: int, extension: str) -> str:
    """The file of one micro-batch and ingress partition, below the sink's root. `extension` has no dot."""
    return f"{folder}/{batch_id:09d}-{partition:05d}.{extension}"


def batch_of(info: fs.FileInfo) -> int:
    """The micro-batch in a file's name."""
    return int(str(info.base_name).split("-")[0])


def prepare(storage: Storage, folders: Iterable[str], batch_id: int) -> None:
    """Delete the remains of killed writes. Called by a sink's first `begin`. Raises `ForeignFiles`."""
    last = max((batch_of(info) for folder in folders for info in storage.files(folder)), default=-1)
    if last > batch_id:
        raise ForeignFiles.found(storage.url, batch_id, last)
    storage.sweep()
