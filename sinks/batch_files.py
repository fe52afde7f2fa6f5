"""Files named ``<batch>-<partition>``: what a sink that writes one file a call has in its folders."""

from collections.abc import Iterable

from pyarrow import fs

from sinks.base import ForeignFiles
from sinks.storage import Storage


def path(folder: str, batch_id: int, partition: int, extension: str) -> str:
    return f"{folder}/{batch_id:09d}-{partition:05d}.{extension}"


def batch_of(info: fs.FileInfo) -> int:
    """The micro-batch that a file's name says it is of."""
    return int(str(info.base_name).split("-")[0])


def prepare(storage: Storage, folders: Iterable[str], batch_id: int) -> None:
    """For a sink's first `begin`: clear what killed writes left. Raises `ForeignFiles`."""
    last = max((batch_of(info) for folder in folders for info in storage.files(folder)), default=-1)
    if last > batch_id:
        raise ForeignFiles.found(storage.url, batch_id, last)
    storage.sweep()
