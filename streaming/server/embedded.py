"""The embedded engine: log, core, entries and clock in this process, as one ingress partition.

A round takes all commands that have come, appends them to the log, folds them, and delivers their rows. Commands that come
meanwhile wait for the next round, so the log is written once for many.

With a folder, a restart goes on where the log ends::

    <data>/commands.jsonl    every command, see `streaming.log.files`
    <data>/store             the entries as of the checkpoint, see `sinks.ledger_store`
    <data>/checkpoint        the broker's state, and how much of the log is in it
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from schemas.commands import Admin, AnyCommand, BrokerConfig, ConnectionLost, Restart, Tick, to_json
from schemas.effects import LedgerClosed, LedgerDeleted, Row, SendReceipt
from schemas.entries import EntryNotFound
from sinks.base import ForeignFiles
from sinks.ledger_store import LedgerStore
from sinks.lock import exclusive
from streaming.broker.broker import Broker
from streaming.broker.config import configuration
from streaming.broker.errors import StateVersionError
from streaming.fold import FoldError, LiveFold, Records, StateRow
from streaming.log.files import read_lines
from streaming.log.table import LogError
from streaming.rows import to_tables
from streaming.server.clock import Clock, RealClock
from streaming.server.engine import Deliver, EngineStopped, StoredEntry
from streaming.server.entries import RecentEntries

PARTITION = 0
"""The ingress partition."""

LOG, STORE, CHECKPOINT = "commands.jsonl", "store", "checkpoint"

CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_RECORDS = 100_000
"""A checkpoint follows after so much of the log. That bounds the entries in memory, and what a restart has to fold."""

RECORDS_PER_ROUND = 4096

_DATA = (SendReceipt, LedgerClosed, LedgerDeleted)
"""The effects that the ledger store takes."""


class BadData(RuntimeError):
    """A data folder can't be used. The text says why and what to do."""


class _Checkpoint(NamedTuple):
    """`batch`: how many checkpoints came before. `position`: the bytes of the log that are in `state`."""

    batch: int
    position: int
    state: StateRow


class _Pending(NamedTuple):
    topic: str | None
    value: bytes
    done: asyncio.Future[list[Row]] | None


STANDALONE = (
    Admin(method="PUT", path="/tenants/public", body={"allowedClusters": ["standalone"]}),
    Admin(method="PUT", path="/namespaces/public/default"),
)
"""What a standalone Pulsar has from its start on. With the setting `namespacesMustExist`, there is nothing else."""


class Snapshot(NamedTuple):
    """An engine as it was: `length` of its log in bytes, its last `offset`, and the time on its clock (ms)."""

    state: StateRow
    entries: RecentEntries
    length: int
    offset: int
    now: int


class EmbeddedEngine:
    """An engine of its own, see `streaming.server.engine.Engine`. Use it as an asynchronous context manager.

    Entering it raises `BadData`, `InUse` or `NotWritable` for a data folder that can't be used, and `BadSetting`.
    """

    def __init__(
        self,
        data: Path | None = None,
        *,
        clock: Clock | None = None,
        profile: str = "4.x",
        settings: Mapping[str, bool | int | float | str | None] | None = None,
        checkpoints: bool = True,
        begins_with: Sequence[AnyCommand] = (),
    ) -> None:
        """`data`: None keeps everything in memory. `settings`: by Pulsar's names, as in BROKER_CONFIG. Without `checkpoints`,
        the folder has the log alone, and the entries are in memory. `begins_with`: commands that follow the configuration in a new log."""
        self._data = data
        self._clock = clock or RealClock()
        self._config = BrokerConfig(profile=profile, settings=dict(settings or {}))  # type: ignore[arg-type]
        self._checkpoints = checkpoints
        self._begins_with = begins_with
        self._deliver: Deliver = _nobody
        self._pending: list[_Pending] = []
        self._offset = -1
        self._connections = 0
        self._life = 0
        self._stopped: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = -1
        self._scheduled = False
        self._resources = ExitStack()
        self._log: _Log | None = None

    async def __aenter__(self) -> "EmbeddedEngine":
        configuration(self._config.profile, self._config.settings)
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[NoReturn] = self._loop.create_future()
        """Has the error, as soon as the log can't be written, or the fold fails."""
        with ExitStack() as stack:
            if self._data is None:
                self._entries = RecentEntries()
                self._fold = LiveFold(PARTITION, self._entries, None)
            else:
                stack.enter_context(exclusive([str(self._data)], "magnetar serve"))
                self._log = stack.enter_context(_Log(self._data))
                try:
                    self._entries, self._fold, self._offset = self._log.recover()
                except (StateVersionError, ForeignFiles, EntryNotFound) as error:
                    raise BadData(f"{self._data}: {error}") from error
            self._resources = stack.pop_all()
        self._life = self._offset + 1
        first: list[AnyCommand] = (
            [self._config, *self._begins_with] if self._offset < 0 else [Restart(), self._config]
        )
        for command in first:
            self._append(None, to_json(command), None)
        self._round()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._stopped is None:
            self._round()
            self._stop("the engine is closed")
            if self._log is not None and self._checkpoints:
                self._log.checkpoint(self._fold, self._entries)
        self._resources.close()

    # -- the interface

    async def submit(self, topic: str | None, command: AnyCommand) -> list[Row]:
        """See `Engine.submit`."""
        done: asyncio.Future[list[Row]] = self._loop.create_future()
        self._append(topic, to_json(command), done)
        return await done

    def post(self, topic: str | None, value: bytes) -> None:
        """See `Engine.post`."""
        self._append(topic, value, None)

    def connect(self, deliver: Deliver) -> None:
        """See `Engine.connect`."""
        self._deliver = deliver

    def new_connection(self) -> str:
        """See `Engine.new_connection`."""
        self._connections += 1
        return f"{self._life}.{self._connections}"

    def entry(self, topic: str, ledger_id: int, entry_id: int) -> StoredEntry:
        """See `Engine.entry`."""
        return self._entries.get(topic, ledger_id, entry_id)

    async def topics(self, namespace: str) -> list[str]:
        """See `Engine.topics`."""
        self._round()
        return self._fold.broker.listed_topics(namespace)

    async def partitioned(self) -> Mapping[str, int]:
        """See `Engine.partitioned`."""
        self._round()
        return self._fold.broker.partitioned

    def now(self) -> int:
        """See `Engine.now`."""
        return self._clock.now()

    @property
    def broker(self) -> Broker:
        """The broker after all that was submitted, to look at."""
        self._round()
        return self._fold.broker

    # -- time

    def next_due(self) -> int:
        """The time (ms) at which the broker next does something by itself. `streaming.broker.next_effect.NEVER`: not at all."""
        self._round()
        return self._fold.broker.next_due()

    async def tick(self) -> None:
        """Do what is due by now."""
        await self.submit(None, Tick())

    # -- going back

    def snapshot(self) -> "Snapshot":
        """The broker and its entries as they are now, to `restore`."""
        self._round()
        length = 0 if self._log is None else self._log.length
        return Snapshot(self._fold.state(), self._entries.copy(), length, self._offset, self._clock.now())

    async def restore(self, snapshot: "Snapshot") -> None:
        """Go back: the log ends where it ended then. All connections are lost. The clock is the caller's to set.

        An engine that makes checkpoints can't go back.
        """
        assert not self._checkpoints
        self._round()
        if self._log is not None:
            self._log.cut(snapshot.length)
        self._entries, self._offset = snapshot.entries.copy(), snapshot.offset
        self._fold = LiveFold(PARTITION, self._entries, snapshot.state)
        for connection in self._fold.broker.connections:
            self.post(None, to_json(ConnectionLost(connection=connection)))
        self._round()

    # -- rounds

    def _append(self, topic: str | None, value: bytes, done: asyncio.Future[list[Row]] | None) -> None:
        if self._stopped is not None:
            raise EngineStopped(self._stopped)
        self._pending.append(_Pending(topic, value, done))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._stopped is None:
            self._round()

    def _round(self) -> None:
        """Fold what is pending."""
        while self._pending:
            pending, self._pending = self._pending[:RECORDS_PER_ROUND], self._pending[RECORDS_PER_ROUND:]
            try:
                self._fold_all(pending)
            except (FoldError, OSError) as error:
                self._fail(pending, error)
                return
        self._arm()

    def _fold_all(self, pending: list[_Pending]) -> None:
        first, now = self._offset + 1, self._clock.now()
        topics, values, _ = zip(*pending, strict=True)
        offsets = list(range(first, first + len(pending)))
        records = Records(offsets, [now] * len(pending), list(topics), list(values))
        if self._log is not None:
            self._log.append(records)
        self._offset = offsets[-1]
        rows = self._fold.answer(records)
        self._entries.add(rows)
        self._deliver(rows)
        for offset, each in zip(offsets, pending, strict=True):
            if each.done is not None and not each.done.done():
                each.done.set_result([row for row in rows if row.offset == offset])
        self._entries.delete(rows)
        if self._log is not None and self._checkpoints:
            self._log.note(rows)
            if self._log.is_due():
                self._log.checkpoint(self._fold, self._entries)

    def _fail(self, pending: Sequence[_Pending], error: Exception) -> None:
        self._stop(str(error))
        for each in (*pending, *self._pending):
            if each.done is not None and not each.done.done():
                each.done.set_exception(EngineStopped(str(error)))
        self._pending = []
        if not self.failed.done():
            self.failed.set_exception(error)

    def _stop(self, why: str) -> None:
        self._stopped = why
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        """Have a tick come when the broker next has something to do by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._timer_due = self._fold.broker.next_due()
        if (seconds := self._clock.seconds_until(due)) is not None:
            self._timer = self._loop.call_later(min(seconds, _LONGEST_WAIT), self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._stopped is not None:
            return
        self._clock.arrive(self._timer_due)
        if self._clock.now() >= self._timer_due:
            self._append(None, _TICK, None)
        else:
            self._arm()


_TICK = to_json(Tick())
_LONGEST_WAIT = 3600.0


def _nobody(rows: Sequence[Row]) -> None:
    pass


class _Log:
    """The files of an engine with a data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = LedgerStore(str(folder / STORE))
        self._file = -1
        self._batch = 0
        self._length = 0
        self._records = 0
        self._since = 0
        self._rows: list[Row] = []

    def __enter__(self) -> "_Log":
        self._file = os.open(self._folder / LOG, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def recover(self) -> tuple[RecentEntries, LiveFold, int]:
        """The entries and the broker at the end of the log, and the log's last offset. Raises `BadData`."""
        path = self._folder / CHECKPOINT
        before: StateRow | None = None
        if path.exists():
            try:
                saved = msgspec.msgpack.decode(path.read_bytes(), type=_Checkpoint)
            except msgspec.MsgspecError as error:
                raise BadData(f"{path} is damaged ({error}): restore {self._folder} from a copy") from None
            before, self._batch, self._since = saved.state, saved.batch + 1, saved.position
        self._store.begin(self._batch)
        entries = RecentEntries(self._store.reader(PARTITION))
        fold = LiveFold(PARTITION, entries, before)
        offset = -1 if before is None or before.offset is None else before.offset
        return entries, fold, self._fold_tail(fold, entries, offset)

    def _fold_tail(self, fold: LiveFold, entries: RecentEntries, offset: int) -> int:
        path = self._folder / LOG
        size = os.fstat(self._file).st_size
        if size < self._since:
            raise BadData(
                f"{path} has {size} bytes, and its checkpoint was made at {self._since}: restore the folder from a copy"
            )
        data = os.pread(self._file, size - self._since, self._since)
        whole = data.rfind(b"\n") + 1  # the last line may be cut off: nobody got an answer to it
        self._length = self._since + whole
        os.ftruncate(self._file, self._length)
        os.lseek(self._file, self._length, os.SEEK_SET)
        if not whole:
            return offset
        try:
            table = read_lines(data[:whole].splitlines(keepends=True), str(path))
        except LogError as error:
            raise BadData(f"{error}: restore {self._folder} from a copy") from None
        records = Records(*(table[name].to_pylist() for name in ("offset", "timestamp", "topic", "value")))
        if records.offsets[0] != offset + 1:
            raise BadData(
                f"{path} goes on with offset {records.offsets[0]} after {offset}: restore {self._folder} from a copy"
            )
        for start in range(0, len(records.offsets), RECORDS_PER_ROUND):
            stop = start + RECORDS_PER_ROUND
            part = Records(
                records.offsets[start:stop],
                records.timestamps[start:stop],
                records.topics[start:stop],
                records.values[start:stop],
            )
            rows = fold.answer(part)
            entries.add(rows)
            entries.delete(rows)
            self.note(rows)
        self._records = len(records.offsets)
        return records.offsets[-1]

    def append(self, records: Records) -> None:
        """Write records to the log. Raises `OSError`, and then none of them is in it."""
        lines = b"".join(map(_line, records.offsets, records.timestamps, records.topics, records.values))
        try:
            written = 0
            while written < len(lines):
                written += os.write(self._file, lines[written:] if written else lines)
        except OSError:
            os.ftruncate(self._file, self._length)
            raise
        self._length += len(lines)
        self._records += len(records.offsets)

    @property
    def length(self) -> int:
        """The bytes in the log."""
        return self._length

    def cut(self, length: int) -> None:
        """Forget the end of the log: it has `length` bytes then."""
        os.ftruncate(self._file, length)
        os.lseek(self._file, length, os.SEEK_SET)
        self._length = length

    def note(self, rows: Sequence[Row]) -> None:
        """Keep those of `rows` that the store takes until the next checkpoint."""
        self._rows += [row for row in rows if isinstance(row.effect, _DATA)]

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._length - self._since >= CHECKPOINT_BYTES or self._records >= CHECKPOINT_RECORDS

    def checkpoint(self, fold: LiveFold, entries: RecentEntries) -> None:
        """Store the entries, then the state that has them."""
        if self._rows:
            self._store.write(self._batch, PARTITION, to_tables(PARTITION, self._rows))
        saved = _Checkpoint(self._batch, self._length, fold.state())
        os.fsync(self._file)
        _replace(self._folder / CHECKPOINT, msgspec.msgpack.encode(saved))
        self._batch, self._since, self._records, self._rows = self._batch + 1, self._length, 0, []
        self._store.begin(self._batch)
        entries.dropped(self._store.reader(PARTITION))


def _line(offset: int, timestamp: int, topic: str | None, value: bytes) -> bytes:
    """A record as a line: the fields of its value, which is a JSON object, after its coordinates."""
    of_topic = b"" if topic is None else b',"topic":' + msgspec.json.encode(topic)
    head = b'{"partition":%d,"offset":%d,"timestamp":%d%b,' % (PARTITION, offset, timestamp, of_topic)
    return head + value[1:] + b"\n"


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that it is there as a whole or not at all."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
