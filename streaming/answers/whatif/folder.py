"""The folder in which a what-if keeps what it needs to go on. Without pyspark, so that a wrong one is refused before pyspark is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pyarrow as pa

from schemas.undecodable import UNDECODABLE
from sinks.links import is_plain
from sinks.lock import exclusive
from sinks.outputs import WHATIF, InTheWay, check_apart, check_folder, check_nested
from sinks.storage import TEMPORARY, Damaged, Storage, plain
from sinks.sums import summed, unsummed
from streaming.answers.whatif.projection import Before, LiveState
from streaming.log.spool import Spool, pieces

BEGIN_ANEW = "Remove the folder of the what-if, and it begins anew"

CHECKPOINT = "checkpoint"
"""In the folder of a fold: Spark's."""

_BEGUN = WHATIF

BEFORE = "whatif-state"
"""What the live query had from whose state a what-if began."""


class AnotherWhatIf(InTheWay):
    """A folder is for another what-if. The text says in what they differ."""


class _Begun(msgspec.Struct):
    """How far a log went when the what-if began: its records and, if it had ingress partitions, the last offset of each. `folder`: where
    this is. `store`: that of the live query from whose state it began."""

    records: int
    ends: dict[int, int] | None
    folder: str
    store: str | None


class Folder:
    """Where a what-if keeps what it needs to go on: a folder below it for each of its folds, which come in the same order each time."""

    def __init__(self, path: Path, advice: str) -> None:
        """`advice`: a clause that says what to do if a fold fails."""
        self.path, self.advice, self._folds = path, advice, 0

    def as_begun(self, log: pa.Table, live: LiveState | None) -> tuple[pa.Table, Before | None]:
        """A log, as it is before it gets other ingress partitions or another beginning, as far as it went when the what-if began; and what
        a live query had then."""
        storage = self._storage()
        storage.sweep()
        begun = storage.read_json(_BEGUN, _Begun, "how far the log went", BEGIN_ANEW)
        if begun is None:
            return log, None if live is None else live.read()
        if begun.folder != storage.url:
            raise AnotherWhatIf(
                f"{storage.url} began as {begun.folder}, and Spark goes on only there: move it back, or choose another folder"
            )
        if begun.store != (None if live is None else live.store.url):
            raise AnotherWhatIf(
                f"{storage.url} is for a what-if from {_named(begun.store)}. Choose another folder for this one"
            )
        log = log.slice(0, begun.records) if begun.ends is None else _until(log, begun.ends)
        return log, None if live is None else _read(storage)

    def note(self, log: pa.Table, live: LiveState | None, before: Before | None) -> None:
        """What `as_begun` returned can be folded: note how far the log goes, and keep what the live query had."""
        storage = self._storage()
        if storage.info(_BEGUN) is not None:
            return
        if before is not None:
            data = msgspec.msgpack.encode(before)
            storage.publish(BEFORE, lambda stream: stream.write(summed(data)))
        store = None if live is None else live.store.url
        storage.write_json(_BEGUN, _Begun(len(log), _ends(log), storage.url, store))

    def _storage(self) -> Storage:
        return Storage(str(self.path))

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
    is_new = not (path / _BEGUN).is_file()
    if is_new and any(path.glob("fold-*")):
        raise InTheWay(f"{path} lacks {_BEGUN}. {BEGIN_ANEW}")
    check_nested(path, read)
    if is_new:
        check_folder(
            path, own=lambda name: name.startswith(f"{TEMPORARY}/") or name == BEFORE, writer="what-if"
        )


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


def _named(store: str | None) -> str:
    return "the beginning of a log" if store is None else f"the state of the query with the store {store}"


def _read(storage: Storage) -> Before:
    """What a live query had. Raises `Damaged`."""
    if storage.info(BEFORE) is None:
        why = "is missing"
    else:
        with storage.open(BEFORE) as file:
            data = unsummed(bytes(file.read()))
        why = "is damaged: its checksum is wrong"
        try:
            if data is not None:
                return msgspec.msgpack.decode(data, type=Before)
        except UNDECODABLE as error:  # another version wrote it
            why = f"can't be read: {plain(error)}"
    raise Damaged(f"{storage.url}/{BEFORE} (the state to begin with) {why}. {BEGIN_ANEW}")


def _ends(log: pa.Table) -> dict[int, int] | None:
    """The last offset of each ingress partition; None: the log has none."""
    if "partition" not in log.column_names:
        return None
    last = log.group_by("partition").aggregate([("offset", "max")])
    return dict(zip(last["partition"].to_pylist(), last["offset_max"].to_pylist(), strict=True))


def _until(log: pa.Table, ends: dict[int, int]) -> pa.Table:
    """The records of a log up to the last offset of each ingress partition."""
    if "partition" not in log.column_names:
        return log
    found = Spool(log.schema)
    for piece in pieces(log):
        partition, offset = piece["partition"].to_numpy(), piece["offset"].to_numpy()
        end = np.array([ends.get(each, -1) for each in partition.tolist()], np.int64)
        found.add(piece.filter(pa.array(offset <= end)))
    return found.table()
