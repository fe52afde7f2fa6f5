"""A log at any command: snapshots of the brokers' states every so many commands or bytes, and a fold from there.

A timeline has a folder, which grows as later moments are asked for and can be deleted at any time. Several processes may use it at a
time: one folds, and the others wait for it::

    <folder>/snapshots/<commands>/    the brokers' states after so many commands, and which files of rows came with them
    <folder>/tables    the output rows
    <folder>/timeline.json    of which log these are
    <folder>/store     all entries that were ever written: a moment may need those that a later trim deleted

In memory are the log, the states of one moment, and the rows of `EVERY` commands, or of those with `BYTES`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.arguments import checked
from schemas.effects import KINDS, LedgerDeleted
from schemas.printable import counted
from schemas.records import Coordinates
from sinks.ledger_store import LedgerStore
from sinks.lock import NotWritable, hold
from sinks.outputs import InTheWay, check_folder
from sinks.replayed import FILE, ROWS_AND_ENTRIES
from sinks.storage import Damaged, Storage
from sinks.tables import TableSink, path_of
from streaming import __version__
from streaming.answers.history.folders import Folders, NotFound
from streaming.broker.state.codec import VERSION
from streaming.fold.columns import Fold
from streaming.fold.records import StateRow
from streaming.jobs.replay import load
from streaming.log.files import has_lines, read_log
from streaming.log.table import digest, taken
from streaming.runtime.cache import cache_dir
from streaming.state.saved import read_states, write_states

EVERY = 10_000
BYTES = 256 << 20
"""From one snapshot to the next are so many commands, or fewer that have so many bytes of values."""

_SNAPSHOTS = "snapshots"

_CACHED = 8
"""How many logs have snapshots in the cache."""

_CLAIM, _USED, _FOLDING, _NEW, _FILES = "timeline.json", "_used", "_folding", "new", "tables.json"
_LOCKS = {_USED, _FOLDING, "_temporary"}
_DIGITS = 18
"""Of a number of commands. Python refuses to read numbers of thousands of digits."""
_AGAIN = "Delete the folder: it is recreated"
_OWN = re.compile(
    rf"""{re.escape(_CLAIM)} | {_USED} | {_FOLDING}
    | ({_NEW} | {_SNAPSHOTS}/\d+)/({re.escape(FILE)} | {re.escape(_FILES)})
    | {ROWS_AND_ENTRIES}""",
    re.VERBOSE,
)
"""Its files."""

_SNAPSHOT = re.compile(rf"[0-9]{{12,{_DIGITS}}}")


def is_folder_of_log(path: str | Path) -> bool:
    """Whether a path names a folder with lines of a log, such as that of `magnetar mirror`."""
    return has_lines(Path(path))


class Claim(msgspec.Struct, kw_only=True, frozen=True):
    """Of which log a folder has snapshots. `log`: its digest; `commands`, `size`: how far these are apart at most, see `EVERY`;
    `encoding`: the version of the states' encoding."""

    log: str
    commands: int = 0  # earlier versions noted something else
    size: int = 0
    encoding: int


class _Files(msgspec.Struct):
    """The files of rows that came between two snapshots, below the folder of the tables."""

    tables: list[str]


class LoggedCommand(NamedTuple):
    """A command of the log, the `number`-th from 1. `timestamp` in ms. A command to the whole broker has a record in each ingress
    partition."""

    number: int
    timestamp: int
    topic: str | None
    value: bytes
    records: list[Coordinates]


class Timeline:
    """A log of `len` commands. A moment is the number of commands that were carried out before it, from 0."""

    @checked
    def __init__(
        self, log: str | Path | pa.Table, folder: str | Path | None = None, *, every: int = EVERY
    ) -> None:
        """`folder`: empty or absent, or of an earlier timeline of the same log with the same `every`. None: one in the user's cache,
        which keeps those of the last eight logs.

        Raises `LogError`, `FileNotFoundError`. All that looks at a moment raises `InTheWay` for a folder of something else.
        """
        table = log if isinstance(log, pa.Table) else read_log(log)
        records = load(table).records
        if "partition" in table.column_names:
            records = _by_time(records)
        self._records, self._first = records, _first_records(records)
        self._digest, self.every = digest(records), every
        self._folder = _cached(self._digest) if folder is None else Path(folder)
        self._again = f"Delete the folder {self._folder}: it is made again"
        self._use: IO[bytes] | None = None

    def __len__(self) -> int:
        return len(self._first) - 1

    # -- the log --------------------------------------------------------------------------------------------------

    def command(self, number: int) -> LoggedCommand:
        """The `number`-th command, from 1."""
        rows = self._slice(number - 1, number).to_pylist()
        records = [Coordinates(row["partition"], row["offset"]) for row in rows]
        return LoggedCommand(number, rows[0]["timestamp"], rows[0]["topic"], rows[0]["value"], records)

    def commands(self, start: int, stop: int) -> Iterator[list[dict[str, Any]]]:
        """The records of the commands from moment `start` to moment `stop`: a list for each command."""
        rows = self._slice(start, stop).to_pylist()
        for number in range(start, stop):
            first, end = self._first[number : number + 2] - self._first[start]
            yield rows[first:end]

    def moment(self, text: str) -> int:
        """The moment after so many commands, after the record PARTITION:OFFSET, or after the last command up to an ISO 8601
        time (UTC unless it says otherwise). Raises `NotFound`."""
        if text.isascii() and text.isdigit():
            if len(text) <= _DIGITS and int(text) <= len(self):
                return int(text)
            raise NotFound(f"{text[:_DIGITS]}: the log has {counted(len(self), 'command')}")
        if (at := Coordinates.parse(text)) is not None:
            found = (self._column("partition") == at.partition) & (self._column("offset") == at.offset)
            if not found.any():
                raise NotFound(f"the log has no record {text}")
            return int(np.searchsorted(self._first, int(found.argmax()), "right"))
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise NotFound(
                f"{text!r}: expected a number of commands, PARTITION:OFFSET, or a time such as 2026-01-01T12:00:00"
            ) from None
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
        later = self._column("timestamp")[self._first[:-1]] > time.timestamp() * 1000
        return int(later.argmax()) if later.any() else len(self)

    # -- moments --------------------------------------------------------------------------------------------------

    def states(self, moment: int) -> list[StateRow]:
        """The states at a moment by ingress partition. Folds what was never folded, and from the last snapshot before it.

        Raises `NotFound` and `TypeError`.
        """
        self.extend(moment)
        base, states = self.snapshot(moment)
        if base == moment:
            return states
        fold = Fold(self.store, states)
        for _ in fold.apply(self._slice(base, moment)):
            pass
        return fold.states()

    def snapshot(self, moment: int) -> tuple[int, list[StateRow]]:
        """The last snapshot up to a moment: when it was taken, and the states."""
        self.extend(moment)
        base, _ = self.around(moment)
        return base, self._states(base)

    def around(self, moment: int) -> tuple[int, int]:
        """When the last snapshot up to a moment was taken, and the first one after it; if there is none yet, that is the same one."""
        all_ = self._snapshots()
        base = max(each for each in all_ if each <= moment)
        return base, min((each for each in all_ if each > moment), default=base)

    def folders(self, moment: int) -> Folders:
        """The outputs, entries and states at a moment, to explain them."""
        states = self.states(moment)
        records = self._records.slice(0, self._first[moment])
        last = records.group_by("partition").aggregate([("offset", "max")]).to_pydict()
        until = dict(zip(last["partition"], last["offset_max"], strict=True))
        tables = Storage(str(self._folder / "tables"), restore=self._again)
        self._check(tables, moment)
        return Folders(tables, self.store, None, None, states, until, record=self._record)

    def _record(self, partition: int, offset: int) -> bytes:
        """The command of a record."""
        return self.command(self.moment(f"{partition}:{offset}")).value

    def _check(self, tables: Storage, moment: int) -> None:
        """Whether the rows up to a moment are all there. Raises `Damaged`."""
        there = {tables.relative(each) for each in tables.files("", recursive=True)}
        snapshots = Storage(str(self._folder / _SNAPSHOTS), restore=self._again)
        for each in sorted(self._snapshots()):
            wrote = snapshots.read_json(f"{each:012d}/{_FILES}", _Files, "the files of rows", self._again)
            if wrote is not None and (missing := sorted({*wrote.tables} - there)):
                raise Damaged(f"{tables.url}/{missing[0]} (output rows) is missing. {self._again}")
            if each >= moment:
                return

    @cached_property
    def store(self) -> LedgerStore:
        """All entries that were written up to some moment after every one that was asked for."""
        return LedgerStore(str(self._folder / "store"), restore=self._again)

    # -- folding --------------------------------------------------------------------------------------------------

    def extend(self, moment: int) -> None:
        """Fold up to the first snapshot at or after a moment. Raises `NotFound` if the log is shorter, and `TypeError`."""
        if not isinstance(moment, int) or isinstance(moment, bool):
            raise TypeError(f"{moment!r}: expected a moment, a number of commands such as 4")
        if not 0 <= moment <= len(self):
            raise NotFound(f"{moment}: the log has {counted(len(self), 'command')}")
        if self._use is None:
            claim = Claim(log=self._digest, commands=self.every, size=BYTES, encoding=VERSION)
            self._use = _claim(self._folder, claim)
        if max(self._snapshots()) < moment:
            with _locked(self._folder / _FOLDING, fcntl.LOCK_EX):
                self._fold(moment)

    def _fold(self, moment: int) -> None:
        done, batch = max(self._snapshots()), len(self._snapshots()) - 1
        tables = TableSink(str(self._folder / "tables"))
        while done < moment:
            stop = self._stop(done)
            fold = Fold(self.store, self._states(done))
            self.store.begin(batch)
            tables.begin(batch)
            written: list[str] = []
            for partition, rows in fold.apply(self._slice(done, stop)):
                tables.write(batch, partition, rows)
                written += [path_of(kind, batch, partition) for kind in rows]
                kept = {kind: table for kind, table in rows.items() if kind != KINDS[LedgerDeleted]}
                self.store.write(batch, partition, kept)
            new = self._folder / _NEW
            shutil.rmtree(new, ignore_errors=True)
            write_states(new, fold.states())
            Storage(str(new)).write_json(_FILES, _Files(tables=written))
            self._path(stop).parent.mkdir(exist_ok=True)
            new.rename(self._path(stop))
            done, batch = stop, batch + 1

    def _stop(self, moment: int) -> int:
        """Until when to fold from a snapshot on: at least one command."""
        stop = min(moment + self.every, len(self))
        sizes: Any = pc.binary_length(self._slice(moment, stop)["value"])
        fit = np.searchsorted(np.cumsum(sizes.to_numpy(), dtype=np.int64), BYTES, side="right")
        whole = int(np.searchsorted(self._first, self._first[moment] + fit, side="right")) - 1
        return min(max(whole, moment + 1), stop)

    def _states(self, moment: int) -> list[StateRow]:
        """The states of a snapshot. Raises `Damaged`."""
        if moment == 0:
            return []
        found = read_states(self._path(moment), restore=self._again)
        if found is None:
            raise Damaged(f"{self._path(moment) / FILE} (broker states) is missing. {self._again}")
        return found

    def _snapshots(self) -> list[int]:
        folder = self._folder / _SNAPSHOTS
        names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        if foreign := [each for each in names if not _SNAPSHOT.fullmatch(each)]:
            raise InTheWay(
                f"{folder} contains folders that no timeline of a log wrote ({', '.join(sorted(foreign)[:5])}): remove them by "
                "hand, or choose another folder"
            )
        return [0, *map(int, names)]

    def _path(self, moment: int) -> Path:
        return self._folder / _SNAPSHOTS / f"{moment:012d}"

    def _slice(self, start: int, stop: int) -> pa.Table:
        return self._records.slice(self._first[start], self._first[stop] - self._first[start])

    def _column(self, name: str) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self._records[name].to_numpy()
        return found


def _claim(folder: Path, claim: Claim) -> IO[bytes]:
    """Make the folder that of a log, whoever does so first. It is in use as long as the file is open."""
    check_folder(folder, own=lambda name: _OWN.fullmatch(name) is not None, writer="timeline of a log")
    used = _used(folder)
    storage = Storage(str(folder))
    with _locked(folder / _FOLDING, fcntl.LOCK_EX):
        found = storage.read_json(_CLAIM, Claim, "of which log these snapshots are", _AGAIN)
        if found is None and (others := sorted({each.name for each in folder.iterdir()} - _LOCKS)):
            raise InTheWay(
                f"{folder} contains files that no timeline wrote, or that an earlier version wrote "
                f"({', '.join(others[:5])}): choose another folder"
            )
        if found is None:
            storage.write_json(_CLAIM, claim)
        elif found != claim:
            raise InTheWay(
                f"{folder} has snapshots of another log, of this log before it changed, or of another version of Magnetar: delete it, "
                "or choose another folder"
            )
    return used


def _used(folder: Path) -> IO[bytes]:
    """The lock of a folder that another process does not forget meanwhile."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            used = (folder / _USED).open("ab")
            if hold(used.fileno(), folder / _USED, fcntl.LOCK_SH):
                return used
            used.close()


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    """Waits for the lock of a file."""
    with path.open("ab") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, how)
        yield


def forget(folder: Path) -> None:
    """Delete the folder of a timeline, unless a process uses it."""
    with suppress(OSError), (folder / _USED).open("ab") as used:
        fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for each in folder.iterdir():
            if each.name != _USED:  # with it, whoever waits for the lock knows the folder for gone
                shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink()
        (folder / _USED).unlink()
        folder.rmdir()


def _cached(digest: str) -> Path:
    """The folder of a log in the user's cache."""
    key = sha256(repr((__version__, VERSION, EVERY, BYTES, digest)).encode()).hexdigest()[:32]
    folder = cache_dir() / "timelines" / key
    if os.fsencode(folder) != str(folder).encode(errors="replace"):
        raise NotWritable(f"{str(folder)!a} is not UTF-8: name a folder for snapshots (--snapshots)")
    try:
        _touch(folder)  # the last ones used are kept
    except OSError as error:
        raise NotWritable(
            f"{error.filename}: {error.strerror}: name a folder for snapshots (--snapshots)"
        ) from error
    for each in _by_last_use(folder.parent)[_CACHED:]:
        forget(each)
    return folder


def _touch(folder: Path) -> None:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another command forgets it
            os.utime(folder)
            return


def _by_last_use(folder: Path) -> list[Path]:
    found = []
    for each in folder.iterdir():
        with suppress(FileNotFoundError):  # another command forgets it
            found.append((each.stat().st_mtime_ns, each))
    return [each for _, each in sorted(found, reverse=True)]


def _by_time(records: pa.Table) -> pa.Table:
    """Records of several partitions in the order of their times. In each partition, the order of offsets stays."""
    partition, time = records["partition"].to_numpy(), records["timestamp"].to_numpy().copy()
    for each in np.unique(partition):
        time[partition == each] = np.maximum.accumulate(time[partition == each])
    return taken(records, np.argsort(time, kind="stable"))


def _first_records(records: pa.Table) -> np.ndarray[Any, Any]:
    """The index of each command's first record, and the number of records. The copies of a command to the whole broker follow
    one another, one for each ingress partition."""
    partition, time = records["partition"].to_numpy(), records["timestamp"].to_numpy()
    whole = records["topic"].is_null().to_numpy()
    copies = np.zeros(len(records), bool)
    copies[1:] = whole[1:] & whole[:-1] & (np.diff(partition) == 1) & (np.diff(time) == 0)
    values = records["value"]
    for row in np.flatnonzero(copies):
        copies[row] = values[int(row)] == values[int(row) - 1]
    return np.append(np.flatnonzero(~copies), len(records))
