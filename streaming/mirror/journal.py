"""The log that a mirror writes, and reads at its next start: where it is stands in the log itself.

A mirror restates every topic from time to time. What is before a restatement that is complete, a start does not read: `mark` and `keep`
say so. They only save time. Without them, a start reads the whole log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import msgspec

from schemas.commands.nesting import is_deep
from schemas.keys import topic_of
from schemas.undecodable import UNDECODABLE
from sinks.lock import exclusive
from sinks.outputs import check_folder, new_file
from streaming.kafka.client import consuming
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.topics import ensure_topic, holds_records
from streaming.kafka.url import KafkaUrl
from streaming.kafka.writer import PATIENCE_SECONDS, Command, NotWritten, SoleWriter
from streaming.log.partition import PARTITIONS
from streaming.traces.importer import to_line

COMMAND = "magnetar mirror"
SEGMENT_BYTES = 64 << 20
"""A file of a log folder is followed by another one from this size on."""

_STATE = "mirror.json"
_POLL_MS = 1000
_WAIT_SECONDS = 1.0
_OURS_SECONDS = 1.0
"""So long a mirror believes that Kafka's topic is still its own."""

_TOGETHER_BYTES = 4 << 20
"""Commands on topics are written to Kafka in transactions of about so many bytes, if there are so many."""

_AFTER_ERROR_SECONDS = 3.0


class BadLog(RuntimeError):
    """A log can't be gone on with. The text says why and what to do."""


class MirrorRecord(NamedTuple):
    """A record of the log. `time`: in ms."""

    time: int
    topic: str | None
    command: dict[str, Any]


class MirrorLog(AbstractContextManager["MirrorLog"], Protocol):
    """A log, used by one process at a time, as a context manager."""

    def goes_on(self) -> bool:
        """Whether a mirror has begun it before. Also known before it is used."""

    def read(self) -> Iterator[MirrorRecord]:
        """The records from the last `keep` on. Comes first."""

    def write(self, record: MirrorRecord) -> None:
        """Add a record. It is in the log for certain when `flush` returns."""

    def flush(self) -> None:
        """Wait until what was written is in the log. Raises OSError and `NotWritten`."""

    def mark(self) -> Any:
        """Where the log ends now."""

    def keep(self, mark: Any) -> None:
        """From now on, `read` begins at `mark`."""


class LogFolder:
    """A folder with JSON Lines, which all commands read that read logs. Raises `InTheWay` for one that no mirror has written, `InUse`, and
    OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._held = folder, ExitStack()
        self._file, self._lines = -1, bytearray()
        self._goes_on = (folder / _STATE).exists()
        check_folder(folder, own=_is_own if self._goes_on else None, writer=f"`{COMMAND}`")

    def __enter__(self) -> Self:
        self._held.enter_context(exclusive([str(self._folder)], COMMAND))
        try:
            if not self._goes_on:
                self.keep(_name(1))
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._held.close()

    def goes_on(self) -> bool:
        """See `MirrorLog.goes_on`."""
        return self._goes_on

    def read(self) -> Iterator[MirrorRecord]:
        """See `MirrorLog.read`."""
        try:
            first = msgspec.json.decode((self._folder / _STATE).read_bytes(), type=_State).read_from
        except UNDECODABLE:
            first = ""
        if not (self._folder / first).is_file():
            first = ""  # then all of it is read
        *before, last = [name for name in self._names() if name >= first] or [_name(1)]
        for name in before:
            yield from (_parsed(line, self._folder / name) for line in _lines(self._folder / name))
        self._path = path = self._folder / last
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        whole = 0
        for line in _lines(path):
            if line.endswith(b"\n"):  # or else a kill cut it off
                whole += len(line)
                yield _parsed(line, path)
        os.ftruncate(self._file, whole)

    def write(self, record: MirrorRecord) -> None:
        """See `MirrorLog.write`."""
        self._lines += to_line(*record)
        if len(self._lines) > SEGMENT_BYTES:
            self.flush()

    def flush(self) -> None:
        """See `MirrorLog.flush`."""
        self._check()
        lines = memoryview(bytes(self._lines))
        self._lines.clear()
        while lines:
            lines = lines[os.write(self._file, lines) :]

    def mark(self) -> str:
        """The file that is written. A large one is followed by another one."""
        self.flush()
        (*_, name) = self._names()
        if os.fstat(self._file).st_size > SEGMENT_BYTES:
            name = _name(int(name.partition(".")[0]) + 1)
            os.close(self._file)
            self._path = self._folder / name
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        return name

    def keep(self, mark: str) -> None:
        """See `MirrorLog.keep`."""
        with new_file(self._folder / _STATE, replace=True) as file:
            file.write(msgspec.json.encode(_State(mark)))

    def _check(self) -> None:
        """Raises `BadLog` if the file that is written has no name any more."""
        try:
            is_there = os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise BadLog(f"{self._path} was removed while it was written: what was in it is lost")

    def _names(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob("*.jsonl"))


class _State(msgspec.Struct):
    read_from: str


def _name(number: int) -> str:
    return f"{number:012d}.jsonl"


def _is_own(path: str) -> bool:
    stem, _, ending = path.partition(".")
    return path == _STATE or (ending == "jsonl" and len(stem) == 12 and stem.isdigit())


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _parsed(line: bytes, path: Path) -> MirrorRecord:
    try:
        fields = {} if is_deep(line) else msgspec.json.decode(line, type=dict[str, Any])
        return MirrorRecord(fields.pop("timestamp"), fields.pop("topic", None), fields)
    except (*UNDECODABLE, KeyError):
        raise BadLog(f"{path} is damaged: {line[:40]!r} is not a record. Mirror into a new folder") from None


class KafkaLog:
    """An ingress topic, which is created if it does not exist. Raises `KafkaUnreachable`, `NotWritten`.

    Who enters it takes it over: a mirror that had it before, on any machine, can't write to it any more, and ends with `NotWritten`.
    """

    def __init__(self, url: KafkaUrl, config: KafkaConfig = PLAIN, partitions: int = PARTITIONS) -> None:
        self._url, self._config, self._partitions = url, config, partitions
        self._group = f"magnetar-mirror-{url.topic}"
        self._failed: NotWritten | None = None
        self._commands: list[Command] = []
        self._size = 0
        self._kept: dict[int, int] = {}
        self._ours_at = -_OURS_SECONDS

    def __enter__(self) -> Self:
        ensure_topic(self._url, self._partitions, self._config)
        self._writer = SoleWriter(self._url, self._config, self.fail, self._group)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        from kafka.errors import KafkaError

        try:
            if kind is None and self._commands:
                self.flush()
        finally:
            with suppress(KafkaError) if kind is not None else nullcontext():
                self._writer.close(PATIENCE_SECONDS if kind is None else _AFTER_ERROR_SECONDS)

    def goes_on(self) -> bool:
        """See `MirrorLog.goes_on`."""
        return holds_records(self._url, self._config)

    @property
    def largest(self) -> int:
        """The bytes of the largest command that the topic takes."""
        return self._writer.largest

    def read(self) -> Iterator[MirrorRecord]:
        """See `MirrorLog.read`."""
        from kafka import TopicPartition

        settings = {
            "group_id": self._group,
            "isolation_level": "read_committed",
            "auto_offset_reset": "earliest",
        }
        with consuming(self._url, self._config, **settings) as consumer:
            parts = [TopicPartition(self._url.topic, each) for each in range(self._writer.partitions)]
            consumer.assign(parts)
            ends = consumer.end_offsets(parts)
            self._kept = {part.partition: consumer.committed(part) or 0 for part in parts}
            for part in parts:
                consumer.seek(part, self._kept[part.partition])
            while any(consumer.position(part) < ends[part] for part in parts):
                for records in consumer.poll(timeout_ms=_POLL_MS).values():
                    for record in records:
                        if isinstance(command := _command(record.value), dict):
                            yield MirrorRecord(record.timestamp, topic_of(record.key), command)

    def write(self, record: MirrorRecord) -> None:
        """See `MirrorLog.write`."""
        if self._failed is not None:
            raise self._failed
        value = msgspec.json.encode(record.command)
        if len(value) > self.largest:
            raise NotWritten(
                f"a {record.command['command']} on {record.topic} has {len(value):,} bytes, and Kafka's topic {self._url.topic!r} takes "
                f"{self.largest:,}: raise its max.message.bytes and start the mirror again, which goes on"
            )
        if record.topic is None:
            # Other writers have the same turn for these, so that is not what shows that the topic is ours.
            if self._commands or time.monotonic() > self._ours_at + _OURS_SECONDS:
                self.flush()
            done = self._writer.send_to_all([value], record.time)
            while not (wait([done], _WAIT_SECONDS).done or self._failed):  # what comes next is under it
                pass
        else:
            self._commands.append(Command(record.topic, value, record.time))
            self._size += len(value)
            if self._size > _TOGETHER_BYTES:
                self.flush()

    def flush(self) -> None:
        """See `MirrorLog.flush`."""
        if self._failed is not None:
            raise self._failed
        self._writer.transact(self._commands, self._kept)
        self._commands.clear()
        self._size, self._ours_at = 0, time.monotonic()

    def mark(self) -> dict[int, int]:
        """The ends of the partitions."""
        from kafka import TopicPartition

        self.flush()
        with consuming(self._url, self._config) as consumer:
            parts = [TopicPartition(self._url.topic, each) for each in range(self._writer.partitions)]
            return {part.partition: end for part, end in consumer.end_offsets(parts).items()}

    def keep(self, mark: dict[int, int]) -> None:
        """See `MirrorLog.keep`."""
        self._kept = mark
        self.flush()

    def fail(self, error: NotWritten) -> None:
        """Kafka did not take a record: nothing is written any more."""
        self._failed = error


def _command(value: bytes | None) -> Any:
    """The command in a record, None for what is none: it ends in quarantine."""
    try:
        return None if value is None or is_deep(value) else msgspec.json.decode(value)
    except UNDECODABLE:
        return None
