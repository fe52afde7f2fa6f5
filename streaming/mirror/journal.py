"""The log that a mirror writes, and reads at its next start: where it is stands in the log itself.

A mirror restates every topic from time to time. What is before a restatement that is complete, a start does not read: `mark` and `keep`
say so. They only save time. Without them, a start reads the whole log.

Each line of a folder ends with ``crc32``, the checksum of the line and of all lines before, which readers of logs leave out. So a start notices
what was damaged, and what is missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import msgspec

from schemas.commands.nesting import is_deep
from schemas.keys import topic_of
from schemas.lines import Unreadable, readable
from schemas.undecodable import UNDECODABLE
from sinks.lock import exclusive
from sinks.outputs import check_folder, new_file
from sinks.sums import sealed, sum_of
from streaming.kafka.client import consuming
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.topics import ensure_topic, holds_records
from streaming.kafka.url import KafkaUrl
from streaming.kafka.writer import PATIENCE_SECONDS, NotWritten, SoleWriter, ToSend
from streaming.log.partition import PARTITIONS, ingress_partition
from streaming.mirror.last import LastEntry
from streaming.mirror.observation import CONNECTION
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


_WHAT_TO_DO = "restore the folder from a backup, or mirror into a new one"


class BadLog(RuntimeError):
    """A log can't be gone on with. The text says why and what to do."""


class OtherData(BadLog):
    """The cluster is not the one that the log has followed, or went back in time."""

    def __init__(self, topic: str, shown: str) -> None:
        super().__init__(
            f"{topic}: the cluster has other data than this log: {shown}. It was restored from a backup, has lost data, or is another "
            "cluster. Mirror into a new log"
        )


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
        """Add a record. It is in the log for certain when `flush` returns. Raises OSError, and `NotWritten` for one that no reader takes."""

    def flush(self) -> None:
        """Wait until what was written is in the log. Raises OSError and `NotWritten`."""

    def mark(self) -> Any:
        """Where the log ends now."""

    def keep(self, mark: Any, last: Mapping[str, LastEntry]) -> None:
        """From now on, `read` begins at `mark`. `last`: of topics, which may have no entry in the log after that."""

    def last(self) -> Mapping[str, LastEntry]:
        """What `keep` was told of the mark at which `read` began, if the log has a place for it. Comes after `read`."""


class _State(msgspec.Struct, frozen=True):
    """Where to begin to read a log folder: the number of a file, and the checksum of the lines before it. `last`: see `MirrorLog.keep`; without
    it, an earlier version wrote this."""

    read_from: int = 1
    sum: int = 0
    last: dict[str, LastEntry] = {}


class LogFolder:
    """A folder with JSON Lines, which all commands read that read logs. Raises `InTheWay` for one that no mirror has written, `InUse`, and
    OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._held = folder, ExitStack()
        self._file, self._lines = -1, bytearray()
        self._number, self._begin, self._sum = 1, 0, 0
        """The number of the file that is written, and the checksums of the lines before it and of all lines."""
        self._last: Mapping[str, LastEntry] = {}
        self._goes_on = (folder / _STATE).exists()
        check_folder(folder, own=_is_own if self._goes_on else None, writer=f"`{COMMAND}`")

    def __enter__(self) -> Self:
        self._held.enter_context(exclusive([str(self._folder)], COMMAND))
        try:
            if not self._goes_on:
                self.keep(_State(), {})
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
        state = self._read_from()
        first, self._sum, self._last = state.read_from, state.sum, state.last
        self._number = max([*self._numbers(), first])
        for number in range(first, self._number):
            yield from self._records(number)
        self._begin = self._sum
        self._open(os.O_CREAT)
        yield from self._records(self._number, self._file)

    def _read_from(self) -> _State:
        """Where to begin to read, if all files from there on are there."""
        text = (self._folder / _STATE).read_bytes()
        try:
            state = _State() if sum_of(text) is None else msgspec.json.decode(text, type=_State)
        except UNDECODABLE:
            state = _State()
        there = self._numbers()
        wanted = {*range(min([*there, state.read_from]), max([*there, state.read_from]) + 1)}
        if (there or state.read_from > 1) and (missing := wanted - there):
            raise BadLog(f"{self._folder / _name(min(missing))} is missing: {_WHAT_TO_DO}")
        return state

    def _records(self, number: int, file: int | None = None) -> Iterator[MirrorRecord]:
        """The records of a file, whose lines follow those that were read before. `file`: it is the last one, which ends after its last whole line."""
        path, whole = self._folder / _name(number), 0
        with path.open("rb") as lines:
            for line in lines:
                is_cut = not line.endswith(b"\n")
                if is_cut and file is not None:  # by a kill
                    break
                after = None if is_cut else sum_of(line[:-1], self._sum)
                if after is None:
                    raise BadLog(
                        f"{path} is damaged at byte {whole}, or lines before that are missing (or an earlier version wrote it, without "
                        f"checksums): {_WHAT_TO_DO}"
                    )
                self._sum, whole = after, whole + len(line)
                yield _parsed(line, path)
        if file is not None:
            os.ftruncate(file, whole)

    def _open(self, how: int) -> None:
        """Write to the file with the number from now on."""
        self._path = self._folder / _name(self._number)
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | how, 0o666)

    def write(self, record: MirrorRecord) -> None:
        """See `MirrorLog.write`."""
        try:
            line = readable(sealed(to_line(*record)[:-1], self._sum) + b"\n")
        except Unreadable as error:
            raise NotWritten(str(error)) from None
        self._sum = int(line[-11:-3], 16)
        self._lines += line
        if len(self._lines) > SEGMENT_BYTES:
            self.flush()

    def flush(self) -> None:
        """See `MirrorLog.flush`."""
        self._check()
        lines = memoryview(bytes(self._lines))
        self._lines.clear()
        while lines:
            lines = lines[os.write(self._file, lines) :]

    def mark(self) -> _State:
        """The file that is written. A large one is followed by another one."""
        self.flush()
        if os.fstat(self._file).st_size > SEGMENT_BYTES:
            os.close(self._file)
            self._number, self._begin = self._number + 1, self._sum
            self._open(os.O_CREAT | os.O_EXCL)
        return _State(self._number, self._begin)

    def keep(self, mark: _State, last: Mapping[str, LastEntry]) -> None:
        """See `MirrorLog.keep`."""
        state = _State(mark.read_from, mark.sum, {**last})
        with new_file(self._folder / _STATE, replace=True) as file:
            file.write(sealed(msgspec.json.encode(state)))

    def last(self) -> Mapping[str, LastEntry]:
        """See `MirrorLog.last`."""
        return self._last

    def _check(self) -> None:
        """Raises `BadLog` if the file that is written has no name any more."""
        try:
            is_there = os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise BadLog(f"{self._path} was removed while it was written: what was in it is lost")

    def _numbers(self) -> set[int]:
        return {int(path.stem) for path in self._folder.glob("*.jsonl")}


def _name(number: int) -> str:
    return f"{number:012d}.jsonl"


def _is_own(path: str) -> bool:
    stem, _, ending = path.partition(".")
    return path == _STATE or (ending == "jsonl" and len(stem) == 12 and stem.isdigit())


def _parsed(line: bytes, path: Path) -> MirrorRecord:
    try:
        fields = {} if is_deep(line) else msgspec.json.decode(line, type=dict[str, Any])
        del fields["crc32"]
        return MirrorRecord(fields.pop("timestamp"), fields.pop("topic", None), fields)
    except (*UNDECODABLE, KeyError):
        raise BadLog(f"{path} is damaged: {line[:40]!r} is not a record: {_WHAT_TO_DO}") from None


class KafkaLog:
    """An ingress topic, which is created if it does not exist. Raises `KafkaUnreachable`, `NotWritten`.

    Who enters it takes it over: a mirror that had it before, on any machine, can't write to it any more, and ends with `NotWritten`.
    """

    def __init__(self, url: KafkaUrl, config: KafkaConfig = PLAIN, partitions: int = PARTITIONS) -> None:
        self._url, self._config, self._partitions = url, config, partitions
        self._group = f"magnetar-mirror-{url.topic}"

    def __enter__(self) -> Self:
        self._failed: NotWritten | None = None
        self._commands: list[ToSend] = []
        self._size = 0
        self._kept: dict[int, int] = {}
        self._ours_at = -_OURS_SECONDS
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

        settings = {"group_id": self._group, "isolation_level": "read_committed"}
        with consuming(self._url, self._config, **settings) as consumer:
            parts = [TopicPartition(self._url.topic, each) for each in range(self._writer.partitions)]
            consumer.assign(parts)
            begins, ends = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
            self._kept = {part.partition: consumer.committed(part) or 0 for part in parts}
            seen = set[tuple[str, int]]()
            for part in parts:
                consumer.seek(part, max(self._kept[part.partition], begins[part]))
            while any(consumer.position(part) < ends[part] for part in parts):
                for records in consumer.poll(timeout_ms=_POLL_MS).values():
                    for record in records:
                        if isinstance(command := _command(record.value), dict):
                            topic = topic_of(record.key)
                            own = command.get("connection") == CONNECTION
                            if topic is not None and own and (topic, record.partition) not in seen:
                                self._check_partition(topic, record.partition)
                                seen.add((topic, record.partition))
                            yield MirrorRecord(record.timestamp, topic, command)

    def _check_partition(self, topic: str, partition: int) -> None:
        """Raises `BadLog` if the records of a topic would go on in another partition: the topic would become two."""
        if ingress_partition(topic, self._writer.partitions) != partition:
            raise BadLog(
                f"topic {self._url.topic!r} has {self._writer.partitions} partitions, and had another number when the mirror wrote of {topic} to "
                f"partition {partition}: docs/operate/partitions.md says how to get more ingress partitions"
            )

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
            self._commands.append(ToSend(record.topic, value, record.time))
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

    def keep(self, mark: dict[int, int], last: Mapping[str, LastEntry]) -> None:
        """See `MirrorLog.keep`."""
        self._kept = mark
        self.flush()

    def last(self) -> Mapping[str, LastEntry]:
        """See `MirrorLog.last`. Kafka has no place for it."""
        return {}

    def fail(self, error: NotWritten) -> None:
        """Kafka did not take a record: nothing is written any more."""
        self._failed = error


def _command(value: bytes | None) -> Any:
    """The command in a record, None for what is none: it ends in quarantine."""
    try:
        return None if value is None or is_deep(value) else msgspec.json.decode(value)
    except UNDECODABLE:
        return None
