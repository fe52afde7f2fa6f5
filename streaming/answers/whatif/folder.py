"""The folder in which a what-if keeps what it needs to go on. Without pyspark, so that a wrong one is refused before pyspark is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pyarrow as pa

from sinks.links import is_plain
from sinks.lock import exclusive
from sinks.outputs import WHATIF, InTheWay, check_apart, check_folder, check_nested
from sinks.storage import TEMPORARY, Storage

BEGIN_ANEW = "Remove the folder of the what-if, and it begins anew"

CHECKPOINT = "checkpoint"
"""In the folder of a fold: Spark's."""

_LOG = WHATIF


class AnotherWhatIf(InTheWay):
    """A folder is for another what-if. The text says in what they differ."""


class _Log(msgspec.Struct):
    """How far a log went when the what-if began: its records, and the last offset of each ingress partition. `folder`: where this is."""

    records: int
    last: dict[int, int]
    folder: str


class Folder:
    """Where a what-if keeps what it needs to go on: a folder below it for each of its folds, which come in the same order each time."""

    def __init__(self, path: Path, advice: str) -> None:
        """`advice`: a clause that says what to do if a fold fails."""
        self.path, self.advice, self._folds = path, advice, 0

    def as_begun(self, logged: int, parts: Mapping[int, pa.Table]) -> tuple[int, dict[int, pa.Table]]:
        """How many records a log had when the what-if began, and these, by ingress partition. It may have grown."""
        storage = Storage(str(self.path))
        storage.sweep()
        begun, folder = storage.read_json(_LOG, _Log, "how far the log went", BEGIN_ANEW), storage.url
        if begun is None:
            last = {partition: own["offset"][-1].as_py() for partition, own in parts.items()}
            begun = _Log(logged, last, folder)
            storage.write_json(_LOG, begun)
        if begun.folder != folder:
            raise AnotherWhatIf(
                f"{folder} began as {begun.folder}, and Spark goes on only there: move it back, or choose another folder"
            )
        return begun.records, {
            partition: own.slice(
                0, int(np.searchsorted(own["offset"].to_numpy(), begun.last[partition], side="right"))
            )
            for partition, own in parts.items()
            if partition in begun.last
        }

    def next(self) -> Path:
        """The folder of the next fold."""
        self._folds += 1
        return self.path / f"fold-{self._folds}"


def check(path: str | Path, inputs: Iterable[object] = (), out: str | Path | None = None) -> None:
    """A folder is new, empty, or that of a what-if, and apart from what is read and written. Raises `InTheWay`."""
    path, read = Path(path), [each for each in inputs if isinstance(each, str | Path)]
    if not is_plain(path):
        raise InTheWay(
            f"{path.absolute()}: Spark can't go on in a folder whose path has other characters than letters, digits and / . = - _: choose another folder"
        )
    check_apart(path, read)
    if out is not None:
        check_apart(path, [out], "an output")
    is_new = not (path / _LOG).is_file()
    if is_new and any(path.glob("fold-*")):
        raise InTheWay(f"{path} lacks {_LOG}. {BEGIN_ANEW}")
    check_nested(path, read)
    if is_new:
        check_folder(path, own=lambda name: name.startswith(f"{TEMPORARY}/"), writer="what-if")


@contextmanager
def opened(path: str | Path | None, inputs: Iterable[object]) -> Iterator[Folder]:
    """The folder of a what-if, for this process alone; None: one that is gone then. Raises `InTheWay` and `InUse`."""
    if path is None:
        with TemporaryDirectory(prefix="magnetar-") as temporary:
            yield Folder(Path(temporary), "With a checkpoint, a what-if goes on after a failure")
        return
    check(path, inputs)
    with exclusive([str(path)], "magnetar whatif", alone=True):
        check(path, inputs)  # another process may have come first
        yield Folder(
            Path(path),
            f"What is folded is in {path}: the same command goes on from there. If it can't, remove the folder",
        )
