"""Checks a checkpoint before the query starts, because Spark's errors don't name the damaged file.

Spark writes these files atomically, but a power failure, an incomplete copy or a full disk may still truncate them. Spark
itself checks its state files when it reads them, see `streaming.spark.failure`.
"""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from sinks.base import ForeignFiles
from sinks.begun import Begun, Planned
from sinks.storage import RESTORE, BadUrl, Storage
from streaming.runtime.clock import FoldClock
from streaming.spark.failure import QueryFailed

_S3A = "s3a://"
_NOT_SPARKS = ("s3", "s3n")
_SCHEMES = frozenset(
    [
        "file",
        "s3a",
        "hdfs",
        "webhdfs",
        "swebhdfs",
        "viewfs",
        "gs",
        "abfs",
        "abfss",
        "wasb",
        "wasbs",
        "oss",
        "cosn",
        "obs",
        "ofs",
        "o3fs",
    ]
)
"""Those of Hadoop's file systems, with Spark's name of S3. Some need a library of their own."""
_STATE = "state/0/_metadata/metadata"
"""Where Spark says how many partitions the state has."""

_SCHEMA, _TIMEOUT = "state/0/0/_metadata/schema", b'"timeoutTimestamp"'
"""Where Spark says what it keeps with a state, and a field of it."""


class BadCheckpoint(QueryFailed):
    """The checkpoint is damaged, or belongs to another query."""


class NoTopic(BadCheckpoint):
    """The checkpoint is that of a query over something else than a topic in Kafka."""


def opened(checkpoint: str | Path) -> Storage | None:
    """The checkpoint's folder, or None if only Spark can open it. Spark's ``s3a://`` is ``s3://`` for everybody else, and Spark can open
    nothing of that name. Raises `BadUrl`."""
    url = str(checkpoint)
    scheme, found, rest = url.partition("://")
    if found and scheme.lower() in _NOT_SPARKS:
        raise BadUrl(f"{url} can't be a checkpoint: write {_S3A}{rest}, which is what Spark calls S3")
    if url.startswith(_S3A):
        return Storage(f"s3://{url.removeprefix(_S3A)}")
    return None if "://" in url else Storage(url)


def check_scheme(checkpoint: str | Path, conf: Mapping[str, str]) -> None:
    """Raises `BadUrl` for a URL that a session of our own can't open. `conf`: the user's settings, which may bring another file system."""
    opened(checkpoint)
    scheme, found, _ = str(checkpoint).partition("://")
    others = any(name.startswith(f"spark.hadoop.fs.{scheme}.") for name in conf)
    if found and scheme not in _SCHEMES and not others:
        raise BadUrl(
            f"{checkpoint} can't be a checkpoint: give a folder, or the URL of a file system of Hadoop's, such as {_S3A}"
        )


def noted(checkpoint: str | Path, folder: Literal["offsets", "commits"]) -> dict[int, float]:
    """The micro-batches that the checkpoint notes as planned (`offsets`) or committed, and when, in seconds since the epoch.

    Empty if there is no checkpoint. Raises `BadCheckpoint` if only Spark can open it.
    """
    storage = opened(checkpoint)
    if storage is None:
        raise BadCheckpoint(f"{checkpoint} can't be opened: give a folder, or an {_S3A} URL")
    found = ((PurePosixPath(str(info.path)).name, info.mtime_ns) for info in storage.files(folder))
    return {int(name): ns / 1e9 for name, ns in found if name.isdigit()}


def files(checkpoint: str | Path) -> int:
    """How many files the checkpoint has, of which Spark deletes the old ones; 0 if only Spark can open it."""
    storage = opened(checkpoint)
    if storage is None:
        return 0
    return sum(len(storage.files(folder, recursive=True)) for folder in ("offsets", "commits", "state"))


def is_on_s3(checkpoint: str | Path) -> bool:
    """Whether Spark needs its S3 client, and another way than renaming to write files at once."""
    return str(checkpoint).startswith(_S3A)


def check(checkpoint: str | Path, topic: str | None) -> None:
    """Check the files that Spark reads first. Does nothing if they don't exist yet or only Spark can open them.

    `topic`: that of the query in Kafka. None: it has another source, of which Spark says whether it is the same.

    Raises `BadCheckpoint`.
    """
    if (storage := opened(checkpoint)) is None:
        return
    if storage.folder is not None and storage.folder.exists() and not storage.folder.is_dir():
        raise BadCheckpoint(
            f"{checkpoint} is not a folder: give the query its own --checkpoint, or a new one"
        )
    offsets = _latest(storage, "offsets")
    if offsets is None:
        return
    if storage.info("metadata") is None:
        raise BadCheckpoint(f"The checkpoint's file {storage.url}/metadata is missing. {RESTORE}")
    _lines(storage, "metadata", 1)
    *_, last = _lines(storage, f"offsets/{offsets}", 3)
    if topic is not None and not _is_of_kafka(last):
        raise BadCheckpoint(
            f"{checkpoint} is the checkpoint of another query: give this one its own, or a new one"
        )
    if topic is not None and topic not in last:
        raise BadCheckpoint(
            f"{checkpoint} is the checkpoint of a query over topic {' and '.join(map(repr, last))}, not {topic!r}: give the "
            "query its own topic, or a new checkpoint and a new store"
        )
    if (commit := _latest(storage, "commits")) is not None:
        _lines(
            storage,
            f"commits/{commit}",
            2,
            "Delete it and start the query again: it repeats that micro-batch, as after a crash",
        )


def check_clock(checkpoint: str | Path, clock: FoldClock) -> None:
    """Raises `BadCheckpoint` if the query of a checkpoint has had another clock: Spark keeps a time with each state only for one of them.
    Does nothing if only Spark can open it."""
    storage = opened(checkpoint)
    if storage is None or storage.info(_SCHEMA) is None:
        return
    with storage.open(_SCHEMA) as file:
        before = "trigger" if _TIMEOUT in bytes(file.read()) else "log"
    if before != clock:
        raise BadCheckpoint(
            f"{checkpoint} is the checkpoint of a query with the clock {before!r}, not {clock!r}: start it with the clock {before!r}, or "
            "give this query a new checkpoint and a new store"
        )


def check_state(checkpoint: str | Path) -> None:
    """Whether the folder of each partition of the state is there, and no other: Spark's source of states reads as many as its metadata
    says, and says nothing of the others. Does nothing if there is no state yet, or only Spark can open it. Raises `BadCheckpoint`."""
    storage = opened(checkpoint)
    if storage is None or _latest(storage, "commits") is None or storage.info(_STATE) is None:
        return
    (found,) = _lines(storage, _STATE, 2)
    try:
        count = int(found["stateStoreInfo"][0]["numPartitions"])
    except (LookupError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"The checkpoint's file {storage.url}/{_STATE} is damaged. {RESTORE}") from error
    for partition in range(count):
        if not storage.files(folder := f"state/0/{partition}"):
            raise BadCheckpoint(
                f"The checkpoint's folder {storage.url}/{folder} is empty or missing. {RESTORE}"
            )
    if storage.files(f"state/0/{count}"):  # their numbers have no gaps
        raise BadCheckpoint(f"The checkpoint's file {storage.url}/{_STATE} is damaged. {RESTORE}")


class Committed(NamedTuple):
    """The last committed micro-batch: its number, the query's topic, and by partition the first offset that is not folded.

    `is_last`: no other one was begun since.
    """

    batch: int
    topic: str
    offsets: dict[int, int]
    is_last: bool


def committed(checkpoint: str | Path, store: str | None = None) -> Committed | None:
    """The last committed micro-batch; None if there is none or only Spark can open the checkpoint.

    `store`: that of its query, which notes the same (`check_begun`). Nothing else tells whether the offsets are right. Raises `NoTopic`,
    `BadCheckpoint`, and with a `store` also `ForeignFiles` and `Damaged`.
    """
    last = _last(checkpoint, store)
    if last is None:
        return None
    planned, noted = last
    topics = noted.topics()
    if len(topics) != 1:
        raise NoTopic(
            f"{checkpoint} is the checkpoint of a query that reads no topic in Kafka, such as one of magnetar.start: "
            "give that of a magnetar run"
        )
    ((topic, offsets),) = topics.items()
    return Committed(noted.batch, topic, offsets, planned == noted.batch)


def check_store(checkpoint: str | Path, store: str) -> None:
    """Whether a store is that of a checkpoint's query, which may run meanwhile. Does nothing if only Spark can open the checkpoint. Raises
    `ForeignFiles`, `Damaged`, `BadCheckpoint`."""
    _last(checkpoint, store)


def _last(checkpoint: str | Path, store: str | None) -> "tuple[int | None, _Noted] | None":
    """The number of the last planned micro-batch, and what is noted of the last committed one. None: there is none, or only Spark can open
    the checkpoint."""
    storage = opened(checkpoint)
    if storage is None or (commit := _latest(storage, "commits")) is None:
        return None
    planned, noted = _latest(storage, "offsets"), _Noted.read(storage, commit)
    if store is not None:
        try:
            _check_begun(Begun(store), planned, noted)
        except ForeignFiles:
            if _latest(storage, "commits") == commit:
                raise
            return _last(checkpoint, store)  # the query went on meanwhile
    return planned, noted


def check_begun(checkpoint: str | Path, begun: Begun) -> None:
    """Whether store and checkpoint are of the same time, and have the same last committed micro-batch. Does nothing if only Spark can open
    the checkpoint. Raises `ForeignFiles`, `Damaged`, `BadCheckpoint`."""
    if (storage := opened(checkpoint)) is None:
        return
    planned, commit = _latest(storage, "offsets"), _latest(storage, "commits")
    _check_begun(begun, planned, None if commit is None else _Noted.read(storage, commit))


def _check_begun(begun: Begun, planned: int | None, last: "_Noted | None") -> None:
    begun.check(-1 if planned is None else planned, -1 if last is None else last.batch)
    if last is not None:
        begun.check_same(last.planned())


def committed_offsets(checkpoint: str | Path, topic: str) -> dict[int, int]:
    """Where the next uncommitted micro-batch begins, by partition of the topic; empty if none was committed or only Spark can
    open the checkpoint. Raises `BadCheckpoint`."""
    return _offsets(checkpoint, "commits", topic)


def planned_offsets(checkpoint: str | Path, topic: str) -> dict[int, int]:
    """The same of the last micro-batch that was planned, committed or not."""
    return _offsets(checkpoint, "offsets", topic)


def _offsets(checkpoint: str | Path, of: Literal["offsets", "commits"], topic: str) -> dict[int, int]:
    storage = opened(checkpoint)
    if storage is None or (batch := _latest(storage, of)) is None:
        return {}
    return _Noted.read(storage, batch).topics()[topic]


class _Noted(NamedTuple):
    """What Spark notes of a planned micro-batch: when that was, and up to where it has the records of each source."""

    storage: Storage
    path: str
    batch: int
    metadata: Any
    sources: list[bytes]

    @classmethod
    def read(cls, storage: Storage, batch: int) -> "_Noted":
        """Raises `BadCheckpoint`."""
        texts = _texts(storage, path := f"offsets/{batch}")
        metadata, *_ = _values(storage, path, texts, 3)
        return cls(storage, path, batch, metadata, texts[2:])

    def planned(self) -> Planned:
        """As `query.start` notes it, which has the offsets of Spark's `OffsetSeq.toString`. Raises `BadCheckpoint`."""
        try:
            time = int(self.metadata.get("batchTimestampMs", 0))
        except (AttributeError, TypeError, ValueError) as error:
            raise _damaged(self.storage, self.path) from error
        offsets = ", ".join(each.decode(errors="replace") for each in self.sources)
        return Planned(self.batch, time, f"[{offsets}]")

    def topics(self) -> dict[str, dict[int, int]]:
        """The offsets by topic in Kafka and partition; empty if it has another source. Raises `BadCheckpoint`."""
        found = json.loads(self.sources[-1])
        if not _is_of_kafka(found):
            return {}
        for offsets in found.values():
            partitions = {*map(str, range(len(offsets)))}
            if offsets.keys() != partitions or any(type(each) is not int for each in offsets.values()):
                raise _damaged(self.storage, self.path)
        return {topic: {int(each): at for each, at in offsets.items()} for topic, offsets in found.items()}


def last_planned(checkpoint: str | Path) -> int | None:
    """The last micro-batch that was planned, committed or not. −1 if none was; None if only Spark can open the checkpoint."""
    if (storage := opened(checkpoint)) is None:
        return None
    planned = _latest(storage, "offsets")
    return -1 if planned is None else planned


def last_committed(checkpoint: str | Path) -> int:
    """The last micro-batch that was committed. −1 if none was, or only Spark can open the checkpoint."""
    storage = opened(checkpoint)
    committed = None if storage is None else _latest(storage, "commits")
    return -1 if committed is None else committed


def _latest(storage: Storage, folder: str) -> int | None:
    """The last micro-batch of which there is a file."""
    names = (PurePosixPath(str(info.path)).name for info in storage.files(folder))
    return max((int(name) for name in names if name.isdigit()), default=None)


def _lines(storage: Storage, path: str, least: int, to_do: str = RESTORE) -> list[Any]:
    """The JSON values in the lines after the version. Raises `BadCheckpoint` if the file is truncated or missing."""
    return _values(storage, path, _texts(storage, path, to_do), least, to_do)


def _values(storage: Storage, path: str, lines: list[bytes], least: int, to_do: str = RESTORE) -> list[Any]:
    try:
        if len(lines) < least:
            raise ValueError
        return [json.loads(line) for line in (lines[1:] if least > 1 else lines)]
    except ValueError as error:
        raise _damaged(storage, path, to_do) from error


def _texts(storage: Storage, path: str, to_do: str = RESTORE) -> list[bytes]:
    """All lines."""
    try:
        with storage.open(path) as file:
            return bytes(file.read()).splitlines()
    except FileNotFoundError as error:
        raise BadCheckpoint(f"The checkpoint's file {storage.url}/{path} is missing. {to_do}") from error


def _damaged(storage: Storage, path: str, to_do: str = RESTORE) -> BadCheckpoint:
    info = storage.info(path)
    size = "" if info is None else f" ({info.size:,} bytes)"
    return BadCheckpoint(f"The checkpoint's file {storage.url}/{path}{size} is damaged. {to_do}")


def _is_of_kafka(offsets: Any) -> bool:
    return isinstance(offsets, dict) and all(isinstance(each, dict) for each in offsets.values())
