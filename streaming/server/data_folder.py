"""The data folder of an embedded engine: its command log in segments, its entries, and its state.

::

    <data>/commands/<first offset>.jsonl    the log, see `streaming.log.files`: one segment per checkpoint
    <data>/store                            the entries as of the checkpoint, see `sinks.ledger_store`
    <data>/checkpoint                       the broker's state at the end of a segment
    <data>/test-double                      the folder is that of a test double, see `TEST_DOUBLE`

A restart folds the segments that begin after the checkpoint. It needs no earlier ones: they are what `magnetar replay`
folds, and may be deleted.

That of a test double has the log alone, and needs no Arrow: its entries stay in memory.

What a restart reads has checksums. The last line of each write to the log ends with ``crc32``, the checksum of all that the segment got
since the one before. Lines after the last of them are of a write that a kill cut off, or of an earlier version. The checkpoint begins
with its own.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import msgspec

from schemas.effects import CompactedEntry, LedgerClosed, LedgerDeleted, Row, SendReceipt
from schemas.undecodable import UNDECODABLE
from sinks.lock import LOCK
from sinks.outputs import new_file
from sinks.sums import SUM, sealed
from streaming.fold.live import LiveFold
from streaming.fold.record_fold import without_gc
from streaming.fold.records import Records, SetAside, StateRow
from streaming.quality.gate import judge, judge_each
from streaming.server.entries import Mark, RecentEntries
from streaming.server.progress import FoldProgress, Say

if TYPE_CHECKING:
    from sinks.ledger_store import LedgerStore

PARTITION = 0
"""The ingress partition."""

COMMANDS, STORE, CHECKPOINT = "commands", "store", "checkpoint"

TEST_DOUBLE = "test-double"
"""What a test double writes first into an empty folder. A double goes on in no other folder, whose time it would move, and no other server
goes on in this one, whose time is what tests made of it."""
_NOTE = (
    b"The log in this folder is that of a test double (magnetar serve --test-double): tests move its clock.\n"
)

CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_RECORDS = 50_000
CHECKPOINT_SECONDS = 10.0
"""A checkpoint follows after so much of the log, or as soon as folding it took so long. That bounds the entries in memory, and what a
restart has to fold: twice as much."""
CHECKPOINT_PATIENCE = 8
"""While the one before is still being written, it is after so many times as much that the loop waits for it: of bytes, which are in
memory, after twice as much."""

RECORDS_PER_ROUND = 4096

_DATA = (SendReceipt, CompactedEntry, LedgerClosed, LedgerDeleted)
"""The effects that the ledger store takes."""


_HEAD = re.compile(rb"magnetar checkpoint 2 ([0-9a-f]{8})\n")
"""What a checkpoint begins with, but for those of earlier versions, which begin with `_PLAIN`."""
_PLAIN = b"\x92"
_SUM = b',"crc32":"????????"}\n'

_LINE = re.compile(
    rb'^\{"partition":%d,"offset":([0-9]{1,18}),"timestamp":(-?[0-9]{1,18})(?:,"topic":("(?:[^"\\\n]|\\.)*"))?,(".*\})$'
    % PARTITION,
    re.MULTILINE,
)
"""A line as `_lines` writes it."""

_SUMS = re.compile(SUM.pattern + rb"(?![],}])")
"""The checksums in the log: not what looks like one inside a command."""

_NAMED = _SUM[:-12]
"""The part of a checksum that is always the same."""

_ALIKE = len(_SUM.replace(b"?", b"")) - 1

log = logging.getLogger(__name__)


class BadData(RuntimeError):
    """A data folder can't be used. The text says why and what to do."""


class _Checkpoint(NamedTuple):
    """`batch`: how many checkpoints came before."""

    batch: int
    state: StateRow


class _Running(NamedTuple):
    """A checkpoint that is being written. `mark`: the entries that are in it."""

    mark: Mark
    written: Future[None]


def segment_name(offset: int) -> str:
    """The file name of the segment whose first record has this offset."""
    return f"{offset:020d}.jsonl"


class DataFolder:
    """The files of an engine. Use it as a context manager.

    Checkpoints are written in a thread: the loop only encodes the state. Methods raise `OSError` and what the store raises.
    """

    def __init__(self, folder: Path, *, fsync: bool, test_double: bool = False) -> None:
        """`fsync`: whether `sync` waits for the disk."""
        self._folder, self.fsync, self._test_double = folder, fsync, test_double
        self._commands = folder / COMMANDS
        self._store = None if test_double else _store(folder)
        self.say: Say = log.info
        """Is told how far `recover` has come."""
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._running: _Running | None = None
        self._file = -1
        self._batch = 0
        self._length = 0
        self._sum = 0
        self._records = 0
        self._seconds = 0.0
        self._rows: list[Row] = []

    def __enter__(self) -> DataFolder:
        mark = self._folder / TEST_DOUBLE
        if not mark.is_file():
            self._check_ours()
            if self._test_double:
                with new_file(mark, durable=True) as file:
                    file.write(_NOTE)
        elif not self._test_double:
            raise BadData(
                f"{self._folder} has the log of a test double, whose clock tests move: choose another folder, or add --test-double"
            )
        self._commands.mkdir(exist_ok=True)
        return self

    def _check_ours(self) -> None:
        """Raises `BadData` if the folder has files, but no log. They belong to somebody else, such as the entries of a replay, of which
        the store's files have the names. Or if it has a log, and this is a test double.
        """
        if next(self._segments(), None) is not None:
            if self._test_double:
                raise BadData(
                    f"{self._folder} has a log that no test double began, and tests would move its time: choose an empty folder, or "
                    "start without --test-double"
                )
            return
        theirs = (
            each.name
            for each in sorted(self._folder.iterdir())
            if not (each.name.startswith((".", LOCK)) or each.name == "lost+found")
            and (not each.is_dir() or any(path.is_file() for path in each.rglob("*")))
        )
        if (name := next(theirs, None)) is not None:
            raise BadData(
                f"it has {name}, and no command log: choose another folder. If it is that of a server, restore it from a backup"
            )

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        if self._file >= 0:
            os.close(self._file)

    def recover(
        self, set_aside: SetAside | None = None, *, first: int = 0
    ) -> tuple[RecentEntries, LiveFold, int]:
        """The entries and the broker at the end of the log, and the log's last offset. Raises `BadData`, `FoldError`.

        A log of fewer records than the `first` ones, those of a start in a new folder, becomes empty: that start was killed, so no
        client had connected.
        """
        path = self._folder / CHECKPOINT
        before: StateRow | None = None
        if path.exists():
            saved = self._saved(path)
            before, self._batch = saved.state, saved.batch + 1
        if self._store is None:
            entries = RecentEntries()
        else:
            self._store.begin(self._batch)
            self._store.clear(self._batch)
            entries = RecentEntries(self._store.reader(PARTITION))
        by = judge_each if self._test_double else judge
        fold = LiveFold(PARTITION, entries, before, judge=by, set_aside=set_aside)
        offset = -1 if before is None or before.offset is None else before.offset
        segments = [path for path in sorted(self._segments()) if int(path.stem) > offset]
        if path.exists() and not (segments and segments[0].name == segment_name(offset + 1)):
            missing = self._commands / segment_name(offset + 1)
            raise BadData(f"{missing} is missing: restore {self._folder} from a backup")
        if before is None and len(segments) == 1 and self._is_begun(segments[0], first):
            os.truncate(segments[0], 0)
        progress = FoldProgress(sum(path.stat().st_size for path in segments), self.say)
        with without_gc():  # as many objects stay as are made
            for path in segments:
                for records in self._records_of(path, is_last=path == segments[-1]):
                    for each in records.offsets:
                        if each != offset + 1:
                            raise BadData(
                                f"{path} continues with offset {each} after {offset}: restore "
                                f"{self._folder} from a backup"
                            )
                        offset = each
                    self._records += len(records.offsets)
                    began = time.thread_time()
                    rows = fold.answer(records)
                    self.spent(time.thread_time() - began)
                    entries.add(rows)
                    entries.delete(rows)
                    self.note(rows)
                    progress.add(records)
        self._open(segments[-1] if segments else self._commands / segment_name(offset + 1))
        return entries, fold, offset

    def _is_begun(self, path: Path, first: int) -> bool:
        """Whether a segment has nothing but some of the `first` records."""
        lines = self._checked(path, is_last=True).splitlines()
        return len(lines) < first and all(map(_LINE.match, lines))

    def _saved(self, path: Path) -> _Checkpoint:
        """Raises `BadData`."""
        if not path.is_file():
            raise BadData(
                f"{path} is not a file: {self._folder} belongs to something else, choose another folder"
            )
        data, why = path.read_bytes(), "its checksum is wrong"
        head = _HEAD.match(data)
        state = data if head is None else data[head.end() :]
        if data.startswith(_PLAIN) if head is None else int(head[1], 16) == crc32(state):
            try:
                return msgspec.msgpack.decode(state, type=_Checkpoint)
            except UNDECODABLE as error:
                why = str(error)
        raise BadData(
            f"{path} is damaged ({why}): restore {self._folder} from a backup. If {COMMANDS} has the "
            f"whole log, you can also delete {CHECKPOINT} and {STORE}: the next start recreates them"
        )

    def _segments(self) -> Iterator[Path]:
        """The segments. Raises `BadData` for what has the name of one almost."""
        for path in self._commands.glob("*.jsonl"):
            if not (path.stem.isascii() and path.stem.isdecimal() and path.is_file()):
                raise BadData(f"{path} is not a part of the log: move it elsewhere")
            yield path

    def _records_of(self, path: Path, *, is_last: bool) -> Iterator[Records]:
        """The records of a segment. The last line of the last one may be cut off: nobody got an answer to it."""
        data = self._checked(path, is_last=is_last)
        if not data:
            return
        if (columns := _columns_of(data)) is None:
            columns = self._columns_of_any(data, path)
        for start in range(0, len(columns[0]), RECORDS_PER_ROUND):
            yield Records(*(column[start : start + RECORDS_PER_ROUND] for column in columns))  # type: ignore[arg-type]

    def _columns_of_any(self, data: bytes, path: Path) -> Records:
        """The records of a segment that is not as a server of today writes it. Raises `BadData`."""
        if self._test_double:
            raise BadData(
                f"{path} has lines that no test double of this version wrote: choose an empty folder"
            )
        from streaming.log.files import read_lines
        from streaming.log.table import LogError

        try:
            table = read_lines(data.splitlines(keepends=True), str(path))
        except LogError as error:
            raise BadData(f"{error}: restore {self._folder} from a backup") from None
        if "partition" not in table.column_names:
            raise BadData(f"{path} is not a part of the log: restore {self._folder} from a backup")
        return Records(*(table[name].to_pylist() for name in ("offset", "timestamp", "topic", "value")))

    def _checked(self, path: Path, *, is_last: bool) -> bytes:
        """What a segment has in whole lines, after a look at its checksums. The last segment is cut there. Raises `BadData`."""
        data = path.read_bytes()
        # After a power failure, a file may end with zeros that nobody wrote.
        kept = data.rstrip(b"\0") if is_last else data
        end, sums = 0, 0
        for found in _SUMS.finditer(kept):
            if crc32(memoryview(kept)[end : found.start()]) != int(found[1], 16):
                raise BadData(
                    f"{path} is damaged between byte {end} and byte {found.start()} (its checksum is "
                    f"wrong): restore {self._folder} from a backup. If the machine lost power while it "
                    "served with --no-fsync, and this is the end of the file, cut it there: truncate -s "
                    f"{end} {path}"
                )
            end, sums = found.end(), sums + 1
            if kept[end : end + 1] == b"\n":
                end += 1
            elif is_last and end >= len(kept) - 1:  # only the end of the line is missing
                kept = kept[:end] + b"\n"
                end += 1
            else:
                raise BadData(f"{path} is damaged at byte {end}: restore {self._folder} from a backup")
        whole = kept.rfind(b"\n") + 1
        if whole < len(kept) and not is_last:
            raise BadData(f"{path} ends in the middle of a line: restore {self._folder} from a backup")
        rest = kept[end:whole]
        if rest and ((sums and not is_last) or _is_like_a_sum(rest[-len(_SUM) :]) or b"\0" in rest):
            raise BadData(f"{path} is damaged after byte {end}: restore {self._folder} from a backup")
        if whole < len(data):
            log.warning(
                "%s ends with %d bytes of a write that did not come to its end, which are cut off",
                path,
                len(data) - whole,
            )
        if kept[:whole] != data:
            with path.open("r+b") as file:
                file.seek(min(end, whole))
                file.write(kept[min(end, whole) : whole])
                file.truncate(whole)
        self._sum = crc32(rest)
        return kept[:whole]

    def _open(self, path: Path) -> None:
        """Append to this segment from now on."""
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._length = os.lseek(self._file, 0, os.SEEK_END)
        folder = os.open(self._commands, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def append(self, records: Records) -> None:
        """Write records to the log. Raises `OSError` and `BadData`, and then none of them is in it."""
        self._check_place()
        lines = sealed(_lines(records)[:-1], self._sum) + b"\n"
        try:
            written = 0
            while written < len(lines):
                written += os.write(self._file, lines[written:] if written else lines)
        except OSError:
            os.ftruncate(self._file, self._length)
            raise
        self._length += len(lines)
        self._sum = 0
        self._records += len(records.offsets)

    def _check_place(self) -> None:
        """Whether the log is still where its path says. Raises `BadData`: another server may be using the path by now."""
        with suppress(OSError):
            if os.path.samestat(self._path.stat(), os.fstat(self._file)):
                return
        raise BadData(
            f"{self._path} was moved or removed while this server used it: bring {self._folder} back to "
            "its place, or restore it from a backup, and start again"
        )

    def syncing(self) -> Callable[[], None]:
        """What makes durable all that was appended until now. It may run in another thread."""
        file = os.dup(self._file)

        def sync() -> None:
            try:
                os.fdatasync(file)
            finally:
                os.close(file)

        return sync

    @property
    def length(self) -> int:
        """The bytes in the segment that is being written."""
        return self._length

    def cut(self, length: int) -> None:
        """Forget the end of the segment: it has `length` bytes then, the end of a write."""
        self._sum = 0
        os.ftruncate(self._file, length)
        os.lseek(self._file, length, os.SEEK_SET)
        self._length = length

    # -- checkpoints

    def note(self, rows: Sequence[Row]) -> None:
        """Keep those of `rows` that the store takes until the next checkpoint."""
        self._rows += [row for row in rows if isinstance(row.effect, _DATA)]

    def spent(self, seconds: float) -> None:
        """So long did the fold of some records of the log take."""
        self._seconds += seconds

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint, or to wait for the one before."""
        is_busy = self._running is not None and not self._running.written.done()
        patience = CHECKPOINT_PATIENCE if is_busy else 1
        return (
            self._length >= CHECKPOINT_BYTES * min(patience, 2)
            or self._records >= CHECKPOINT_RECORDS * patience
            or self._seconds >= CHECKPOINT_SECONDS * patience
        )

    def checkpoint(self, fold: LiveFold, entries: RecentEntries) -> None:
        """Begin a checkpoint, and a new segment. If the one before is still being written, wait for it: that bounds memory."""
        if self._running is not None:
            self._running.written.exception()  # waits
            self.finish(entries)
        if self.fsync:
            os.fdatasync(self._file)  # from now on, `syncing` is about the next segment
        self._check_place()
        state, rows, file, batch = fold.state(), self._rows, self._file, self._batch
        self._batch, self._records, self._rows = batch + 1, 0, []
        self._sum, self._seconds = 0, 0.0
        self._open(self._commands / segment_name((-1 if state.offset is None else state.offset) + 1))
        written = self._thread.submit(self._write, batch, state, rows, file)
        self._running = _Running(entries.mark(), written)

    def _write(self, batch: int, state: StateRow, rows: Sequence[Row], file: int) -> None:
        """Store the entries, then the state that has them."""
        try:
            os.fsync(file)
        finally:
            os.close(file)
        assert self._store is not None
        if rows:
            from sinks.rows import to_tables

            self._store.write(batch, PARTITION, to_tables(PARTITION, rows))
        encoded = msgspec.msgpack.encode(_Checkpoint(batch, state))
        with new_file(self._folder / CHECKPOINT, replace=True, durable=True) as checkpoint:
            checkpoint.write(b"magnetar checkpoint 2 %08x\n" % crc32(encoded))
            checkpoint.write(encoded)

    def finish(self, entries: RecentEntries, *, wait: bool = False) -> None:
        """If a checkpoint is written, or once it is if `wait`: forget the entries that are in it."""
        if self._running is None or not (wait or self._running.written.done()):
            return
        assert self._store is not None
        mark, written = self._running
        self._running = None
        written.result()
        self._store.begin(self._batch)
        entries.forget(mark, self._store.reader(PARTITION))


def _store(folder: Path) -> LedgerStore:
    from sinks.ledger_store import LedgerStore

    return LedgerStore(str(folder / STORE))


def _is_like_a_sum(end: bytes) -> bool:
    """Whether the end of a line was a checksum before it was damaged. A write that was cut off has none."""
    return len(end) == len(_SUM) and sum(one == other for one, other in zip(end, _SUM, strict=True)) >= _ALIKE


def _columns_of(data: bytes) -> Records | None:
    """The records in lines that `_lines` wrote, as `read_lines` gives them, in a fraction of the time. None: others may be among them."""
    found = _LINE.findall(data) if _SUMS.search(data) else []
    if not found or len(found) != data.count(b"\n"):
        return None
    offsets, timestamps, topics, values = zip(*found, strict=True)
    size = len(_SUM) - 1
    names = {text: msgspec.json.decode(text, type=str) if text else None for text in set(topics)}
    return Records(
        list(map(int, offsets)),
        list(map(int, timestamps)),
        [names[text] for text in topics],
        [
            b"{%b}" % value[:-size] if value[-size : len(_NAMED) - size] == _NAMED else b"{" + value
            for value in values
        ],
    )


def _lines(records: Records) -> bytes:
    """A line for each record: the fields of its value, which is a JSON object, after its coordinates."""
    # Many records share a few topics.
    of_topic = {name: b',"topic":' + msgspec.json.encode(name) for name in set(records.topics)} | {None: b""}
    return b"".join(
        [
            b'{"partition":%d,"offset":%d,"timestamp":%d%b,%b\n'
            % (PARTITION, offset, timestamp, of_topic[topic], value[1:])
            for offset, timestamp, topic, value in zip(*records, strict=True)
        ]
    )
