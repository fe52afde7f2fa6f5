"""The embedded engine: log, core, entries and clock in this process, as one ingress partition.

A round folds commands that have come, appends them to the log, and delivers their rows. Commands that come meanwhile wait for the
next round, so the log is written once for many. What a command costs is known once it is folded: a publish may have a thousand
deliveries. So a round ends after some time, the commands that are left wait for the next one, and the connections that have had
least come first (`streaming.server.fair_queue`). The log has the commands in the order in which they were folded.

With a data folder (`streaming.server.data_folder`), a restart goes on where the log ends. Rows wait until their commands are on
the disk: while it writes, the next rounds fold, and are then written together.
"""

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate, islice
from math import inf
from pathlib import Path
from typing import NamedTuple, NoReturn

from schemas.commands import (
    Ack,
    Admin,
    AnyCommand,
    BrokerConfig,
    ConnectionLost,
    Publish,
    Restart,
    Send,
    Tick,
    to_json,
)
from schemas.effects import TOPIC_SET_ASIDE, AdminResponse, Quarantined, Row, TopicEvent
from schemas.entries import EntryNotFound
from schemas.metrics import PartitionMetrics
from sinks.base import ForeignFiles
from sinks.lock import exclusive
from sinks.outputs import name_full
from streaming.broker.broker import Broker
from streaming.broker.config import configuration
from streaming.broker.context import NEVER, Throttled
from streaming.broker.errors import StateVersionError
from streaming.broker.rates.rate import seconds_of_interval
from streaming.broker.topic.abstract_topic import Attached
from streaming.fold.live import LiveFold
from streaming.fold.records import Records, SetAside, StateRow
from streaming.metrics.durations import Durations
from streaming.metrics.server import BOUNDS
from streaming.metrics.storage_use import StorageUse
from streaming.protocol.plain import LONGEST_TOPIC
from streaming.quality.gate import judge, judge_each
from streaming.runtime.clock import RealClock
from streaming.server.clock import Clock, HeldClock
from streaming.server.data_folder import PARTITION, RECORDS_PER_ROUND, BadData, DataFolder
from streaming.server.engine import Deliver, EngineStopped, Greeting, StoredEntry, tell_failure
from streaming.server.entries import RecentEntries
from streaming.server.fair_queue import FairQueue, TakenTurn
from streaming.server.paused import PausedConnections
from streaming.server.progress import Say


class _Pending(NamedTuple):
    """Records that come together: one, a run, of which `known` has the commands, or none, to know when those before are folded."""

    topic: str | None
    values: list[bytes]
    known: Sequence[Send | Ack] | None
    done: asyncio.Future[list[Row]] | None
    delivered: Callable[[int], None] | None


class _Round(NamedTuple):
    """Commands that are folded, and their rows, which wait to be delivered. `stored`: how many entries they stored, by topic.
    `at`: when they went to the log, in seconds of the monotonic clock."""

    pending: "list[_Pending]"
    first: int
    rows: list[Row]
    stored: dict[str, int]
    at: float


_Commands = FairQueue[str | None, _Pending]

_ROUND_SECONDS = 0.05
"""After so long, a round ends. As many records as the last ones that took so long are folded together."""
_TURN_SECONDS = 0.1
"""After so long, others have their turn on the loop."""
_RECORD_SECONDS, _ROW_SECONDS = 5e-5, 1.5e-5
"""What a command costs of which nothing is known, and a row."""
_LAST_SECONDS = 1.0
"""So long may a server that stops carry out commands which came. Whoever sent the others has no answer, and sends them again."""
_UNDELIVERED = 100_000
"""Rows that may wait for the disk before more commands are folded."""

STANDALONE = (
    Admin(method="PUT", path="/tenants/public", body={"allowedClusters": ["standalone"]}),
    Admin(method="PUT", path="/namespaces/public/default"),
    Admin(method="PUT", path="/tenants/pulsar", body={"allowedClusters": ["standalone"]}),
    Admin(method="PUT", path="/namespaces/pulsar/system"),
)
"""What a standalone Pulsar has from its start on. With the setting `namespacesMustExist`, there is nothing else."""


class Snapshot(NamedTuple):
    """An engine as it was: `length` of its log in bytes, its last `offset`, and the time on its clock (ms). `state`: None before the first
    record."""

    state: StateRow | None
    entries: RecentEntries
    length: int
    offset: int
    now: int


class EmbeddedEngine:
    """An engine of its own, see `streaming.server.engine.Engine`. Use it as an asynchronous context manager.

    Entering it raises `BadData`, `InUse` or `NotWritable` for a data folder that can't be used, and `BadSetting`.
    """

    shows_topic_events = True
    answers_in_order = True

    def __init__(
        self,
        data: Path | None = None,
        *,
        clock: Clock | None = None,
        profile: str = "4.x",
        settings: Mapping[str, bool | int | float | str | None] | None = None,
        test_double: bool = False,
        fsync: bool = True,
        begins_with: Sequence[AnyCommand] = (),
        set_aside: SetAside | None = None,
        say: Say | None = None,
    ) -> None:
        """`data`: None keeps everything in memory. `settings`: by Pulsar's names, as in BROKER_CONFIG. `test_double`: it can
        go back, and its folder has the log alone, without fsync, with the entries in memory. `fsync`: rows leave when their commands are on the disk, and not
        only in the log. `begins_with`: commands that follow the configuration in a new log. `set_aside`: see `PartitionFold`. `say`: is
        told how far the fold of the log has come when the engine is entered."""
        self._data = data
        self.clock = clock or RealClock()
        self._config = BrokerConfig(profile=profile, settings=dict(settings or {}))  # type: ignore[arg-type]
        self._test_double, self._fsync = test_double, fsync and not test_double
        self._begins_with, self._say = begins_with, say
        self._set_aside = set_aside
        self._judge = judge_each if test_double else judge
        self._deliver: Deliver = _nobody
        self._waiting = _Commands()
        self._paused = PausedConnections()
        self._throttled: list[Throttled] = []
        self._offset = -1
        self._connections = 0
        self._life = 0
        self._stopped: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = -1
        self._scheduled = False
        self._resources = ExitStack()
        self._log: DataFolder | None = None
        self._folded: deque[_Round] = deque()
        self._undelivered = self._durable = 0
        """The rows of what is folded, and the rounds of it that may be delivered."""
        self._syncing = self._closing = False
        self._lists: dict[tuple[str, bool], list[str]] = {}
        """The topics of namespaces that were asked for since a topic came or went."""
        self._most = RECORDS_PER_ROUND
        self._partitioned = 0
        self.written = None if data is None else Durations(BOUNDS)
        self.storage = StorageUse(writes=data is not None)
        """What the topics wrote to the log, and what was read of them from the store."""

    async def __aenter__(self) -> "EmbeddedEngine":
        configuration(self._config.profile, self._config.settings)
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[NoReturn] = self._loop.create_future()
        """Has the error, as soon as the log can't be written, or the fold fails."""
        with ExitStack() as stack:
            if self._data is None:
                self._entries = RecentEntries()
                self._fold = self._new_fold(None)
            else:
                stack.enter_context(exclusive([str(self._data)], "magnetar serve"))
                try:
                    self._log = stack.enter_context(
                        DataFolder(self._data, fsync=self._fsync, test_double=self._test_double)
                    )
                    self._log.say = self._say or self._log.say
                    self._entries, self._fold, self._offset = self._log.recover(
                        self._set_aside, first=1 + len(self._begins_with)
                    )
                except _BAD_DATA as error:
                    raise BadData(f"{self._data}: {error}") from error
            self._resources = stack.pop_all()
        self._throttled = self._fold.broker.watch_throttled()
        self.greeting: asyncio.Future[Greeting] = self._loop.create_future()
        self._life = self._offset + 1
        self.clock.go_on(self._fold.broker.clock)
        try:
            await self._begin()
        except EngineStopped:
            self._resources.close()
            self.failed.result()  # says more
            raise
        self.greeting.set_result(Greeting.of(self._fold.broker.config))
        if self._set_aside and self._log is not None and not self._test_double:
            # From now on, the state says what is set aside, and the next start needs no option.
            self._log.checkpoint(self._fold, self._entries)
        return self

    def _new_fold(self, before: StateRow | None) -> LiveFold:
        return LiveFold(PARTITION, self._entries, before, judge=self._judge, set_aside=self._set_aside)

    async def _begin(self) -> None:
        first: list[AnyCommand] = (
            [self._config, *self._begins_with] if self._offset < 0 else [Restart(), self._config]
        )
        done = [self._submitted(None, command) for command in first]
        self._round()  # before any client's command
        await asyncio.gather(*done)

    async def __aexit__(self, *_: object) -> None:
        if self._stopped is None:
            self._closing = True
            self._round(_LAST_SECONDS)
            while self._folded and self._stopped is None:
                await asyncio.sleep(0.001)
        with self._resources:
            if self._stopped is None:
                self._stop("the engine is closed")
                self._give_up(EngineStopped("the engine is closed"))
                if self._log is not None and not self._test_double:
                    self._log.checkpoint(self._fold, self._entries)
                    self._log.finish(self._entries, wait=True)

    # -- the interface

    async def submit(
        self, topic: str | None, command: AnyCommand | Publish, connection: str | None = None
    ) -> list[Row]:
        """See `Engine.submit`."""
        return await self._submitted(topic, command, connection)

    def _submitted(
        self, topic: str | None, command: AnyCommand | Publish, connection: str | None = None
    ) -> asyncio.Future[list[Row]]:
        done: asyncio.Future[list[Row]] = self._loop.create_future()
        self._append(connection, _Pending(topic, [to_json(command)], None, done, None))
        return done

    def post(
        self,
        connection: str,
        topic: str | None,
        value: bytes,
        done: Callable[[], None] | None = None,
        answers: int = 0,
    ) -> None:
        """See `Engine.post`."""
        delivered = None if done is None else lambda _: done()
        key = connection
        if value.startswith(_LOST):
            unwanted = _is_flow  # nobody would get what they bring
            if self._release(connection):
                unwanted = _is_command  # a broker never reads what it had not read by then
            for each in self._waiting.drop(connection, unwanted):
                if each.delivered is not None:
                    each.delivered(len(each.values))
            if connection not in self._waiting:
                key = _LOSSES
        self._append(key, _Pending(topic, [value], None, None, delivered), answers)

    def post_run(self, topic: str, commands: Sequence[Send | Ack], done: Callable[[int], None]) -> None:
        """See `Engine.post_run`. These commands are not decoded and checked again."""
        known = commands if len(topic) <= LONGEST_TOPIC else None
        values = list(map(to_json, commands))
        self._append(commands[0].connection, _Pending(topic, values, known, None, done))

    def connect(self, deliver: Deliver) -> None:
        """See `Engine.connect`."""
        self._deliver = deliver

    def new_connection(self) -> str:
        """See `Engine.new_connection`."""
        self._connections += 1
        return f"{self._life}.{self._connections}"

    def has_attached(self, connection: str, attached: Attached) -> bool | None:
        """See `Engine.has_attached`."""
        return self._fold.broker.has_attached(connection, attached)

    def entry(self, topic: str, ledger_id: int, entry_id: int) -> StoredEntry:
        """See `Engine.entry`."""
        try:
            return self._entries.get(topic, ledger_id, entry_id)
        except OSError as error:
            self._fail([], error)
            raise EngineStopped(str(error)) from error

    async def topics(
        self, namespace: str, connection: str | None = None, *, to_client: bool = False
    ) -> list[str]:
        """See `Engine.topics`. It is the same list until a topic comes or goes."""
        await self._reached(connection)
        broker = self._fold.broker
        if (
            len(broker.partitioned) != self._partitioned
        ):  # they come by lookups, too, of which no row says whether
            self._lists.clear()
            self._partitioned = len(broker.partitioned)
        found = self._lists.get((namespace, to_client))
        if found is None:
            if len(self._lists) >= _LISTS:
                self._lists.clear()
            found = broker.listed_topics(namespace, to_client=to_client)
            self._lists[namespace, to_client] = found
        return found

    async def partitions(self, topic: str) -> int:
        """See `Engine.partitions`."""
        await self._reached(None)
        return self._fold.broker.partitioned.get(topic, 0)

    async def _reached(self, connection: str | None) -> None:
        """Wait until all that a connection has posted is carried out."""
        done: asyncio.Future[list[Row]] = self._loop.create_future()
        self._append(connection, _Pending(None, [], None, done, None))
        await done

    def metrics(self) -> PartitionMetrics:
        """The figures of all topics after what is folded."""
        return self._fold.broker.metrics(everything=True)

    def now(self) -> int:
        """See `Engine.now`."""
        return self.clock.now()

    @property
    def unanswered(self) -> None:
        """See `Engine.unanswered`."""
        return

    @property
    def folded(self) -> Broker:
        """The broker after what is folded, to look at. Others may have submitted more."""
        return self._fold.broker

    @property
    def broker(self) -> Broker:
        """The broker after all that was submitted, to look at."""
        self._round()
        return self._fold.broker

    # -- time

    def next_due(self) -> int:
        """The time (ms) at which the broker next does something by itself. `streaming.broker.context.NEVER`: not at all."""
        self._round()
        return self._next_due()

    def _next_due(self) -> int:
        return min(self._fold.broker.next_due(), self._paused.next)

    @property
    def resumes_at(self) -> int:
        """When commands are next carried out that a publish rate holds back (ms). `streaming.broker.context.NEVER`: there are none."""
        return self._paused.next

    async def tick(self) -> None:
        """Do what is due by now."""
        await self.submit(None, Tick())

    # -- going back

    def snapshot(self) -> "Snapshot":
        """The broker and its entries as they are now, to `restore`."""
        self._round()
        length = 0 if self._log is None else self._log.length
        return Snapshot(self._fold.state(), self._entries.copy(), length, self._offset, self.clock.now())

    async def restore(self, snapshot: "Snapshot") -> None:
        """Go back: the log ends where it ended then, and the clock shows what it showed. All connections are lost.

        Only a test double can go back, and only a clock that is held.
        """
        assert self._test_double
        assert isinstance(self.clock, HeldClock)
        self._round()
        self.clock.set_back(snapshot.now)
        if self._log is not None:
            self._log.cut(snapshot.length)
        self._release_all()
        self._entries, self._offset = snapshot.entries.copy(), snapshot.offset
        self._fold = self._new_fold(snapshot.state)
        self._throttled = self._fold.broker.watch_throttled()
        self._lists.clear()
        for connection in self._fold.broker.connections:
            self.post(connection, None, to_json(ConnectionLost(connection=connection)))
        self._round()

    async def reset(self, now: int) -> None:
        """Be as after a start at this time with an empty folder, see `restore`."""
        await self.restore(Snapshot(None, RecentEntries(), 0, -1, now))
        await self._begin()

    # -- rounds

    def _append(self, key: str | None, pending: _Pending, answers: int = 0) -> None:
        if self._stopped is not None:
            raise EngineStopped(self._stopped)
        topic, values, _, _, _ = pending
        if topic is not None and values[0].startswith(_SEND):
            answers = len(values) * self._fold.broker.fan_out(topic)
        self._waiting.put(key, pending, _RECORD_SECONDS * len(values) + _ROW_SECONDS * answers)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._stopped is not None:
            return
        self._deliver_durable(time.monotonic() + _TURN_SECONDS)
        if self._may_fold():
            self._round(_TURN_SECONDS)
        if self._durable or (self._waiting and self._may_fold()):
            self._schedule()

    def _may_fold(self) -> bool:
        return self._stopped is None and not self._closing and self._undelivered < _UNDELIVERED

    def _round(self, seconds: float = inf) -> None:
        """Fold what waits, until so many seconds are over."""
        self._release_due()
        now = time.monotonic()
        until = now + seconds
        while self._waiting and now < until:
            taken: list[TakenTurn[str | None, _Pending]] = []
            records = 0
            while self._waiting and records < self._most:
                taken.append(self._waiting.take())
                records += len(taken[-1].item.values)
            try:
                self._fold_some(taken, min(until, now + _ROUND_SECONDS) if seconds < inf else inf)
            except Exception as error:
                self._fail([each.item for each in taken], error)
                return
            now = time.monotonic()
        self._arm()

    def _fold_some(self, taken: list[TakenTurn[str | None, _Pending]], until: float) -> None:
        """Fold commands, those that are not folded by then wait again."""
        first, now = self._offset + 1, self.clock.now()
        topics: list[str | None] = []
        values: list[bytes] = []
        known: list[Send | Ack | None] = []
        for _, (topic, own, commands, _, _), _ in taken:
            topics += [topic] * len(own)
            values += own
            known += [None] * len(own) if commands is None else commands
        records = Records(list(range(first, first + len(values))), [now] * len(values), topics, values)
        done = [0]
        times = [time.monotonic()]

        def goes_on(folded: int) -> bool:
            if not folded:  # the gate has judged all of them
                times[0] = time.monotonic()
                return True
            done.append(folded)
            times.append(time.monotonic())
            return times[-1] < until and not self._throttled

        began = time.thread_time()
        try:
            rows = self._fold.answer(records, known, goes_on) if values else []
        except Exception:
            self._log_all(records)  # the next start fails there, too, and says what to do
            raise
        took = time.thread_time() - began
        folded = done[-1]
        if values:
            self._most = round(min(max(folded * _ROUND_SECONDS / (took + 1e-9), 1), RECORDS_PER_ROUND))
        self._pause()
        logged = time.monotonic()
        self._log_all(records if folded == len(values) else records.piece(0, folded))
        self._offset += folded
        stored = self._entries.add(rows)
        if read := self._entries.take_read():
            for topic, entries in read.items():
                self.storage.read(topic, entries, self._interval())
        if self._lists and any(map(_may_change_topics, rows)):
            self._lists.clear()
        if folded == len(values) and not self._waiting:  # nobody else wants anything
            self._waiting.forget()
            pending = [each.item for each in taken]
        else:
            pending = self._settle(taken, done, times)
        self._folded.append(_Round(pending, first, rows, stored, logged))
        self._undelivered += len(rows)
        nothing_new = not values and self._durable == len(self._folded) - 1
        if self._log is None or not self._log.fsync or nothing_new:
            self._durable = len(self._folded)
            if self._log is not None and not self._log.fsync:
                self._wrote([self._folded[-1]])
            self._deliver_durable(inf)
        elif not self._syncing:
            self._sync()
        if self._log is not None:
            self._log.spent(took)
            if not self._test_double:
                self._log.note(rows)
                self._log.finish(self._entries)
                if self._log.is_due():
                    self._log.checkpoint(self._fold, self._entries)

    # -- publish rates

    def _pause(self) -> None:
        """Hold back what connections send that exceed a publish rate."""
        for each in self._throttled:
            if not each.connection.startswith(f"{self._life}."):
                continue  # a log's own, or nobody's, as of messages through REST
            self._waiting.hold(each.connection)
            self._paused.add(each)
        self._throttled.clear()

    def _release_due(self) -> None:
        if self._paused.next == NEVER:
            return  # without a look at the clock, as in almost every round
        now, throttled_until = self.clock.now(), self._fold.broker.throttled_until
        for connection, topics in self._paused.over(now):
            until = max(throttled_until(topic, connection, now) for topic in topics)
            if until > now:  # others have used the rate meanwhile
                self._paused.put_off(connection, until)
            else:
                self._release(connection)

    def _release_all(self) -> None:
        for connection in self._paused:
            self._release(connection)

    def _release(self, connection: str) -> bool:
        """Carry out again what a connection sends. Returns whether it was held back."""
        if not self._paused.remove(connection):
            return False
        self._waiting.release(connection)
        return True

    def _settle(
        self, taken: list[TakenTurn[str | None, _Pending]], done: list[int], times: list[float]
    ) -> list[_Pending]:
        """Those of the commands that are folded. Where `done` says how many are at each of `times`. The others wait again."""
        ends = list(accumulate(len(each.item.values) for each in taken))
        folded = done[-1]
        whole = bisect_right(ends, folded)
        costs: list[tuple[TakenTurn[str | None, _Pending], float]] = []
        pending = [each.item for each in taken[:whole]]
        at = times[0]
        for each, end in zip(taken[:whole], ends, strict=False):
            until = times[bisect_left(done, end)]
            costs.append((each, until - at))
            at = until
        for each in reversed(taken[whole + 1 :]):
            self._waiting.put_back(each)
        if whole < len(taken):
            each = taken[whole]
            part = folded - (ends[whole - 1] if whole else 0)
            if not part:
                self._waiting.put_back(each)
            else:
                topic, values, known, future, delivered = each.item
                cost = times[-1] - at
                pending.append(_Pending(topic, values[:part], known and known[:part], future, delivered))
                rest = _Pending(topic, values[part:], known and known[part:], future, delivered)
                left = cost / part * len(rest.values)
                self._waiting.put_back(each._replace(item=rest), cost=left)
                costs.append((each._replace(cost=0.0), cost))
        self._waiting.spent(costs)
        return pending

    def _log_all(self, records: Records) -> None:
        if self._log is not None and records.values:
            began = time.monotonic()
            self._log.append(records)
            if self.written is not None and not self._log.fsync:
                self.written.add(time.monotonic() - began)

    def _wrote(self, rounds: Iterable[_Round]) -> None:
        """Rounds are in the log, on the disk if that was asked for."""
        now, interval = time.monotonic(), self._interval()
        for each in rounds:
            for topic, entries in each.stored.items():
                self.storage.wrote(topic, entries, now - each.at, interval)

    def _interval(self) -> int:
        """The number of the present interval of the stats."""
        return self.clock.now() // (seconds_of_interval(self._fold.broker.config) * 1000)

    def _sync(self) -> None:
        """Have the rounds so far written to the disk, and then deliver them."""
        assert self._log is not None
        rounds, began = len(self._folded) - self._durable, time.monotonic()
        self._syncing = True
        written = self._loop.run_in_executor(None, self._log.syncing())
        written.add_done_callback(lambda done: self._synced(rounds, began, done))

    def _synced(self, rounds: int, began: float, done: asyncio.Future[None]) -> None:
        self._syncing = False
        if self.written is not None:
            self.written.add(time.monotonic() - began)
        if (error := done.exception()) is not None:
            self._fail([], error)
        elif self._stopped is None:
            self._wrote(islice(self._folded, self._durable, self._durable + rounds))
            self._durable += rounds
            self._deliver_durable(time.monotonic() + _TURN_SECONDS)
            if self._stopped is None and len(self._folded) > self._durable:
                self._sync()
            self._schedule()

    def _deliver_durable(self, until: float) -> None:
        """Deliver the rows of rounds that are durable, until then."""
        try:
            while self._durable and self._stopped is None and time.monotonic() < until:
                self._deliver_one(*self._folded[0][:3])
        except Exception as bug:
            self._fail([], bug)

    def _deliver_one(self, pending: list[_Pending], first: int, rows: list[Row]) -> None:
        self._deliver(rows)
        if self._stopped is not None:
            return
        self._folded.popleft()
        self._durable -= 1
        self._undelivered -= len(rows)
        offset = first
        for each in pending:
            if each.delivered is not None:
                each.delivered(len(each.values))
            elif each.done is not None and not each.done.done():
                own = [row for row in rows if row.offset == offset] if each.values else []
                each.done.set_result(own)
            offset += len(each.values)
        self._entries.delete(rows)

    def _fail(self, pending: Sequence[_Pending], error: BaseException) -> None:
        if self._data is not None and isinstance(error, _BAD_DATA):
            cause, error = error, BadData(f"{self._data}: {error}")
            error.__cause__ = cause
        self._stop(str(error))
        self._give_up(EngineStopped(str(error)), pending)
        if self._data is not None and isinstance(error, OSError):  # clients need not know where it is
            name_full(error, self._data)
        tell_failure(self.failed, error)

    def _give_up(self, why: EngineStopped, pending: Sequence[_Pending] = ()) -> None:
        """Nobody gets an answer any more."""
        waiting = [each for round_ in self._folded for each in round_.pending]
        self._folded.clear()
        self._durable = 0
        self._release_all()
        while self._waiting:
            waiting.append(self._waiting.take().item)
        for each in (*waiting, *pending):
            if each.done is not None and not each.done.done():
                each.done.set_exception(why)

    def _stop(self, why: str) -> None:
        self._stopped = why
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        """Have a tick come when the broker next has something to do by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._timer_due = self._next_due()
        if (seconds := self.clock.seconds_until(due)) is not None:
            self._timer = self._loop.call_later(min(seconds, _LONGEST_WAIT), self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._stopped is not None:
            return
        self.clock.arrive(self._timer_due)
        if self.clock.now() >= self._timer_due:
            self._append(_CLOCK, _Pending(None, [_TICK], None, None, None))
        else:
            self._arm()


_BAD_DATA = (StateVersionError, ForeignFiles, EntryNotFound)
"""What the data folder raises that somebody damaged."""


def _may_change_topics(row: Row) -> bool:
    """Whether a topic may have come or gone with a row, or a partitioned one may be another."""
    effect = row.effect
    if type(effect) is AdminResponse:
        return not effect.cause.startswith("GET ")
    return type(effect) is TopicEvent or (type(effect) is Quarantined and effect.rule == TOPIC_SET_ASIDE)


_LISTS = 64
"""The namespaces whose topics are kept."""

_SEND = b'{"command":"SEND",'
_FLOW = b'{"command":"FLOW",'
_LOST = b'{"command":"CONNECTION_LOST",'
_LOSSES, _CLOCK = "losses", "the clock"
"""Whose the lost connections are that had nothing under way: whoever comes back at once finds its former connection gone, however busy that
was. And whose the ticks are."""
_TICK = to_json(Tick())
_LONGEST_WAIT = 3600.0


def _is_flow(pending: _Pending) -> bool:
    return bool(pending.values) and pending.values[0].startswith(_FLOW)


def _is_command(pending: _Pending) -> bool:
    return pending.done is None


def _nobody(rows: Sequence[Row]) -> None:
    pass
