"""`magnetar mirror`: a command log that follows a live cluster (docs/rules/ledgers.md §15 and §16).

The problem
    A cluster has no log of its commands. It has entries, which a reader gets, and an admin API, which shows where its subscriptions are. The
    log must have every entry once, at the position that it has on the cluster, although this process and the cluster's brokers may
    end at any time.

The idea
    One step, again and again: look at a topic, read its entries up to where it was then, write them, write a MIRROR of the look. The first
    step reads all that the topic has, so there is no other beginning. The next step begins after the last entry in the log, whoever wrote it.

    * A round takes the topics that are due, those first that have waited longest, as many as the rate of calls allows. Their records are
      merged by time, so that time in the log goes on as on the cluster, to the interval.
    * A topic that did not change is looked at less and less often, and its MIRROR is written once more, which puts the twin right.
    * Every `RESTATED_SECONDS` each topic gets a MIRROR anyway. So a start finds where each topic is near the log's end, and the twin
      compares itself with a topic that is silent. In between, a TICK says that nothing has changed.

    Nothing is written to the cluster. Readers end with their subscriptions, which are not durable, and are open only while entries are read.
"""

import heapq
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from threading import Event
from typing import Any, Literal, NamedTuple

import msgspec

from schemas.lines import Unreadable
from streaming.broker.admin_requests import topic_path
from streaming.broker.context import namespace_of
from streaming.broker.names import base_of
from streaming.mirror.journal import MirrorLog, MirrorRecord, OtherData
from streaming.mirror.last import confirmed, entry_of, is_replaced, went_back
from streaming.mirror.observation import CONNECTION, Observation, is_another, ledgers_of, observe
from streaming.mirror.policies import POLICIES, ClusterPolicies
from streaming.mirror.progress import MirrorProgress, TopicProgress, WholeChange
from streaming.mirror.reading import FIRST_LEDGER, TimedSend, known_by, known_of, read, stand_ins
from streaming.mirror.source import CALLS_PER_LOOK, FoundTopics, Look, MirroredCluster, NotMirrored
from streaming.mirror.trouble import Trouble, Troubles
from streaming.record.client import NoRight, Reader, ReadFailed, Unanswered
from streaming.record.rest import DENIED, INCOMPLETE, NOT_UNDERSTOOD, CallFailed, Rest
from streaming.record.stored import Stored
from streaming.record.unreachable import Unreachable
from streaming.runtime.clock import RealClock

RESTATED_SECONDS = 600.0
"""Each topic gets a MIRROR at least so often, as a subscription that differs for so long is put right (docs/rules/ledgers.md §16)."""

SILENT_SECONDS = 60
"""After so long without a record, a TICK says that the log's time goes on."""

_QUIET_LOOKS = 3
_QUIET_SECONDS = 120
"""After so many looks at a topic that show nothing new, and so long, a MIRROR says that the twin may be put right: what may have acted at
another time on the cluster has acted (docs/rules/ledgers.md §16)."""

SLOWEST = 16
"""A topic that does not change is looked at once in so many intervals."""

_CONFIGURED_SECONDS = 60.0
"""How often topics, settings and policies are looked for."""

_LEFT_OUT_SECONDS = 600.0
"""How often a topic is tried that can't be read."""

_CALLS_PER_POLICIES = 25
"""The GETs for the policies of one topic, about, if nobody redirects them."""

_POLICIES_SHARE = 1 / 4
"""Of the calls, for the policies of topics, however many topics are due to be looked at."""

_MOST_CALLS = 10_000
"""Per second, if the rate of calls is not limited."""

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 3.0
"""For so long the end of a mirror waits for its round."""

_THREADS = 8
_CLUSTER = "the cluster"

EntriesMode = Literal["keep", "hash", "drop", "sampled"]
"""What the log has of entries: as `streaming.traces.trace.Payloads`, or ``sampled``: nobody reads them, and others stand for them."""


class Shares:
    """How many turns there are in a round, if there are `each` on average, which may be less than one."""

    def __init__(self, each: float) -> None:
        self.each, self._left = each, 1.0

    def next(self) -> int:
        """The turns of a round that begins. What was not used of earlier rounds does not add up to more than one."""
        self._left = min(self._left + self.each, self.each + 1)
        return int(self._left)

    def spend(self, turns: int) -> None:
        """So many were taken; more than there were, if others left some."""
        self._left = max(self._left - turns, 0.0)


class Cost:
    """How many calls each of some things takes, such as the looks at topics: as many as the last ones took, with all that brokers redirect, and
    `least` at least: what is refused takes fewer, but not for ever."""

    def __init__(self, rest: Rest, least: float) -> None:
        self._rest, self._least, self.each = rest, least, least

    @contextmanager
    def of(self, things: int) -> Iterator[None]:
        """So many take their calls until the block ends."""
        before = self._rest.calls
        yield
        if things:
            self.each = max((self._rest.calls - before) / things, self._least)


class MirrorTotals(NamedTuple):
    """What a mirror has done: the topics in its log, and the entries, records and GETs since it started."""

    topics: int
    entries: int
    records: int
    calls: int


class ClusterMirror:
    """Writes `journal`, which must be open, with what a cluster shows of `given`: topics, or ``tenant/namespace`` for all in it.

    `token`: that of now, or None. `every`: the interval of looks, in seconds. `say` gets what an operator must know, a line each.
    Use it in one thread.
    """

    def __init__(
        self,
        service_url: str,
        rest: Rest,
        given: Sequence[str],
        journal: MirrorLog,
        *,
        token: Callable[[], str | None] = lambda: None,
        entries: EntriesMode = "keep",
        every: float = 10.0,
        say: Callable[[str], None],
        clock: RealClock | None = None,
    ) -> None:
        """Raises `NotMirrored`."""
        self._clock = clock or RealClock()
        self._rest, self._source = rest, MirroredCluster(rest, given, self._clock)
        self._service_url, self._token, self._journal = service_url, token, journal
        self._last_token = token()
        self._entries, self._every, self._say = entries, every, say
        self._allowed = max(int(min(rest.rate, _MOST_CALLS) * every), _CALLS_PER_POLICIES)
        self._look_cost, self._policies_cost = Cost(rest, CALLS_PER_LOOK), Cost(rest, _CALLS_PER_POLICIES)
        self._shares = Shares(0.0)
        self._slowest = max(min(every * SLOWEST, RESTATED_SECONDS / 2), every)
        self._unreachable = Unreachable()
        self._changes: list[WholeChange] = []
        """What is to be written before the next entries."""
        self._policies_at: dict[str, float] = {}
        self._troubles = Troubles(say)
        self._troubled: set[str] = set()
        """Topics."""
        self._missing: set[str] = set()
        self._refused: set[str] = set()
        """What of settings and policies is not in the log."""
        self._new_entries = self._records = 0
        self._progress = MirrorProgress((), sampled=entries == "sampled")
        self._begun = 0.0
        self._looked = 0
        """When the last round began that reached the cluster (ms)."""
        self._configured = self._restated = -RESTATED_SECONDS
        self._mark: Any = None
        self._failed: BaseException | None = None

    def find(self) -> FoundTopics:
        """What there is to mirror. Raises `NotMirrored` if there is nothing, `CallFailed` if the cluster can't say."""
        found = self._source.find()
        if found.missing and not found.topics:
            raise NotMirrored("; ".join(f"{name}: {why}" for name, why in found.missing.items()))
        return found

    def run(self, stop: Event) -> MirrorTotals:
        """Mirror until `stop` is set. Raises what the journal raises."""
        self._progress = MirrorProgress(self._journal.read(), sampled=self._entries == "sampled")
        self._progress.know(self._journal.last())
        self._began_at = self._progress.time
        self._clock.go_on(self._began_at)
        self._policies = ClusterPolicies(self._rest, goes_on=self._progress.time > 0)
        rounds = threading.Thread(target=self._rounds, args=(stop,), name="rounds", daemon=True)
        rounds.start()
        while rounds.is_alive() and not stop.is_set():
            rounds.join(_POLL_SECONDS)
        rounds.join(_PATIENCE_SECONDS)  # the cluster may leave a call without an answer
        if self._failed is not None:
            raise self._failed
        return self.totals()

    def totals(self) -> MirrorTotals:
        """What it has done."""
        return MirrorTotals(len(self._progress.topics), self._new_entries, self._records, self._rest.calls)

    def _rounds(self, stop: Event) -> None:
        try:
            while not stop.is_set():
                self._begun, now = time.monotonic(), self._clock.now()
                try:
                    self._round(stop)
                    self._looked = self._looked if stop.is_set() else now
                    self._pass_time(SILENT_SECONDS)
                    self._troubles.over(_CLUSTER)
                except CallFailed as error:
                    why = f"{error}: trying again every {self._every:g} s"
                    self._troubles.note(
                        _CLUSTER, _REFUSES if error.status in DENIED else _DOES_NOT_ANSWER, why
                    )
                self._tell()
                self._journal.flush()
                self._keep()
                stop.wait(max(self._begun + self._every - time.monotonic(), 0))
            self._pass_time()
            self._journal.flush()
        except BaseException as error:
            self._failed = error

    def _round(self, stop: Event) -> None:
        """Look at what is due, and write what is new. Raises `CallFailed` if the cluster can't be reached: then the next round goes on."""
        now, end = self._begun, self._rest.calls + self._allowed
        if (token := self._token()) != self._last_token:
            self._last_token = token
            self._allow()
        if now >= self._restated + RESTATED_SECONDS:
            self._mark, self._restated = self._journal.mark(), now
            self._changes.extend(self._progress.restate())
        if now >= self._configured + _CONFIGURED_SECONDS:
            self._changes.extend(self._configure())
            self._configured = now
        self._shares.each = self._allowed * _POLICIES_SHARE / self._policies_cost.each
        turns, share = self._policy_turns(), self._shares.next()
        reserved = min(share, len(turns)) * self._policies_cost.each
        most = max(int((end - self._rest.calls - reserved) / self._look_cost.each), 1)
        # The first round has all topics, so that their entries are merged by time.
        looks = self._looks(most if self._records else None, stop)
        left = max(end - self._rest.calls, 0)
        asked = turns[: max(int(left / self._policies_cost.each), share)]
        with self._policies_cost.of(len(asked)):
            self._changes.extend(self._topic_policies(asked))
        self._shares.spend(len(asked))
        with Reader(self._service_url, self._token, self._rest.tls, len(looks), self._unreachable) as reader:
            streams = [
                self._stream(self._progress.topics[name], look, reader) for name, look in looks.items()
            ]
            merged = heapq.merge(*streams, key=lambda record: record.time)
            record = next(merged, None)
            self._tell()  # a round may take hours
            begin = self._clock.now() if record is None else record.time
            for change in self._changes:
                self._write(MirrorRecord(begin, *change))
            self._changes.clear()
            while record is not None and not stop.is_set():
                self._write(record)
                record = next(merged, None)

    def _allow(self) -> None:
        """Another token may have other rights: what was refused is tried now."""
        self._configured = -RESTATED_SECONDS
        self._policies.allow()
        for name in self._troubled & self._progress.topics.keys():
            self._progress.topics[name].due = 0.0

    def _pass_time(self, seconds: int = 0) -> None:
        """Note that nothing has changed up to the last look, if that is for so long."""
        if self._progress.time and self._looked > self._progress.time + seconds * 1000:
            self._write(MirrorRecord(self._looked, None, {"command": "TICK"}))

    def _write(self, record: MirrorRecord) -> None:
        self._progress.time = max(self._progress.time, record.time)
        self._journal.write(record._replace(time=self._progress.time))
        self._records += 1

    def _keep(self) -> None:
        """Note that a start need not read what is before the restatement, once it is complete."""
        topics = (each for each in self._progress.topics.values() if each.created)
        if self._mark is not None and all(
            each.is_mirrored and each.stated >= self._restated for each in topics
        ):
            self._journal.keep(self._mark, self._progress.last())
            self._mark = None

    # -- what there is --------------------------------------------------------------------------------------------

    def _configure(self) -> Iterator[WholeChange]:
        """Look for topics, settings and the policies of namespaces."""
        found, progress = self._source.find(), self._progress
        selected = {*found.topics}
        for name in self._missing - found.missing.keys():
            self._troubles.over(name)
        self._missing = {*found.missing}
        for name, why in found.missing.items():
            self._troubles.note(
                name, _left_out(name if name in self._source.given else namespace_of(name)), why
            )
        yield from self._policies.of_broker()
        yield from self._policies.of_namespaces(dict.fromkeys(namespace_of(each) for each in found.topics))
        refused = dict(self._policies.refused)
        for what in self._refused - refused.keys():
            self._troubles.over(what)
        self._refused = {*refused}
        for what, why in refused.items():
            of = next((each for each in POLICIES if what.startswith(each)), what)
            self._troubles.note(what, Trouble(of, "not in the log", "are not in the log"), why)
        for name in [each for each in progress.partitioned if each not in found.partitioned]:
            if self._is_gone(name, found):
                self._policies.forget(name)
                yield progress.delete_partitioned(name)
        for name in [each for each in progress.topics if each not in found.topics]:
            if self._is_gone(name, found):
                yield self._deleted(name)
        for name, count in found.partitioned.items():
            yield from progress.set_partitions(name, count)
        for name in found.topics:
            progress.topics.setdefault(name, TopicProgress(name))
        for state in progress.topics.values():  # what the cluster does not say now, it may say later
            state.is_mirrored = state.name in selected

    def _is_gone(self, name: str, found: FoundTopics) -> bool:
        """Whether the cluster has no such topic any more, with partitions or without, as it had before."""
        if name in found.topics or name in found.partitioned:
            return True  # as the other kind
        calls = ["stats"] if base_of(name) != name else ["stats", "partitioned-stats"]
        return all(
            self._rest.call("GET", f"{topic_path(name)}/{each}").status == HTTPStatus.NOT_FOUND
            for each in calls
        )

    def _deleted(self, name: str) -> WholeChange:
        self._policies.forget(name)
        return self._progress.delete(name)

    def _looks(self, most: int | None, stop: Event) -> dict[str, Look]:
        """Look at the topics that are due, `most` at most, until `stop` is set."""
        due = [
            each for each in self._progress.topics.values() if each.is_mirrored and each.due <= self._begun
        ]
        due = sorted(due, key=lambda each: each.due)[:most]
        looks = dict[str, Look]()
        with self._look_cost.of(len(due)):
            for state, asking in _in_threads(self._look, due, stop):
                try:
                    looks[state.name] = asking.result()
                except CallFailed as error:
                    if error.status is None:
                        raise
                    state.due = self._begun + self._every
                    if error.status != HTTPStatus.NOT_FOUND:
                        self._leave_out(state, error)
                    elif state.created:
                        self._changes.append(self._deleted(state.name))
        for name, look in [*looks.items()]:
            state = self._progress.topics[name]
            try:
                look = looks[name] = self._checked(state, look)
                is_another = self._is_another(state, look)
            except (CallFailed, *NOT_UNDERSTOOD) as error:
                self._leave_out(state, error)
                del looks[name]
                continue
            if is_another:
                self._changes.append(self._deleted(name))
                self._progress.topics[name] = TopicProgress(name)
            self._changes.extend(self._progress.create(name))
        return looks

    def _look(self, name: str) -> Look:
        """Of a topic that was not looked at before, or not by this process, more can be new than what came in an interval."""
        state = self._progress.topics[name]
        history = state.look is None and self._entries == "sampled"
        # When a topic was created is asked for once, and when it may be another one.
        seen = None if state.before is None else state.before.record
        is_dated = seen is not None and (seen.created > 0 or state.is_dated)
        look = self._source.look(name, newest=seen.ledger_id if seen and is_dated else -1, history=history)
        state.is_dated = True
        return look

    def _checked(self, state: TopicProgress, look: Look) -> Look:
        """A look at a topic that has what it had. Raises `OtherData` if it has not at a second look, either, which is no race; CallFailed, and what
        is in `NOT_UNDERSTOOD`."""
        if state.last is None or went_back(state.last, look.internal) is None:
            return look
        again = self._look(state.name)
        if (shown := went_back(state.last, again.internal)) is not None:
            raise OtherData(state.name, shown)
        return again if look.created is None else again._replace(created=look.created)

    def _is_another(self, state: TopicProgress, look: Look) -> bool:
        """Whether the cluster's topic is not the one in the log. Raises what is in `NOT_UNDERSTOOD`."""
        if state.before is None:
            return False
        base, before = base_of(state.name), state.before
        if min(ledgers_of(look.internal), default=-1) <= before.record.ledger_id:
            return False
        evicts = self._policies.evicts(base)
        seen = observe(look.time, look.stats, look.internal, before, evicts=evicts, created=look.created)
        size = before.record.size + seen.record.size
        retained = self._policies.retains(base, look.time - before.time, size)
        return is_another(before.record, seen.record, retained=retained)

    def _policy_turns(self) -> list[str]:
        """The topics whose policies are to be asked for, those first that have waited longest."""
        if self._policies.are_denied:
            return []
        names = dict.fromkeys(map(base_of, self._progress.topics))
        known = {name: at for name, at in self._policies_at.items() if name in names}
        self._policies_at = {name: -_CONFIGURED_SECONDS for name in names if name not in known} | known
        due = [name for name, at in self._policies_at.items() if at + _CONFIGURED_SECONDS <= self._begun]
        return sorted(due, key=lambda name: self._policies_at[name])  # those of a round in their order

    def _topic_policies(self, names: Sequence[str]) -> Iterator[WholeChange]:
        there = {*map(base_of, self._progress.topics)}
        for name in names:
            if name not in there:  # it was deleted in this round
                continue
            yield from self._policies.of_topic(name, partitioned=name in self._progress.partitioned)
            self._policies_at.pop(name, None)
            self._policies_at[name] = self._begun

    # -- what is new of a topic -----------------------------------------------------------------------------------

    def _stream(self, state: TopicProgress, look: Look, reader: Reader) -> Iterator[MirrorRecord]:
        """What a look adds to the log: the entries up to then, and what else has changed."""
        try:
            latest = 0
            last = max(
                ((id_, entries - 1) for id_, (entries, _) in ledgers_of(look.internal).items() if entries),
                default=(-1, -1),
            )
            with closing(self._sends(state, look, reader)) as sends:
                for send in sends if last > state.read_to else ():
                    if send.position > last:
                        break
                    if send.odd is not None:
                        self._troubles.note(f"{state.name}, an entry", _ODD, send.odd)
                    if send.position[0] >= FIRST_LEDGER:
                        latest = max(latest, min(send.time, look.time))
                        yield MirrorRecord(latest, state.name, {"connection": CONNECTION, **send.command})
                        self._new_entries += 1
                        state.last = entry_of(send.command) or state.last
                    else:
                        self._troubles.note(
                            f"{state.name}, ledger 0", _LEDGER_0, "ledgers are numbered from 1 here"
                        )
                    state.read_to = send.position
            evicts = self._policies.evicts(base_of(state.name))
            seen = observe(
                look.time, look.stats, look.internal, state.before,
                read_to=state.read_to, evicts=evicts, created=look.created,
            )  # fmt: skip
        except (ReadFailed, *NOT_UNDERSTOOD) as error:
            self._leave_out(state, error)
            return
        is_new = state.before is None or _shown(seen) != _shown(state.before)
        rests = self._rests(state, look, is_new=is_new)
        if is_new or rests or state.stated < self._restated:
            resync = state.before is not None and (rests or state.stated < self._restated)
            late, unknown = self._late(state, look), self._policies.unknown(base_of(state.name))
            seen = seen._replace(
                record=msgspec.structs.replace(seen.record, resync=resync, late=late, unknown=unknown)
            )
            yield MirrorRecord(look.time, state.name, msgspec.to_builtins(seen.record))
            state.before, state.stated = seen, self._begun
        elif state.before is not None:
            state.before = state.before._replace(time=look.time)
        if self._entries == "sampled":
            state.look, state.last = look, confirmed(look.internal) or state.last
        state.interval = self._every if is_new else self._later(state)
        state.due = self._begun + state.interval
        self._troubles.over(state.name)
        self._troubled.discard(state.name)

    def _rests(self, state: TopicProgress, look: Look, *, is_new: bool) -> bool:
        """Whether nothing happens on a topic any more. Only once after each change."""
        if is_new:
            state.changed, state.quiet = look.time, 0
            return False
        state.quiet += 1
        rests = state.quiet >= _QUIET_LOOKS and 0 < state.changed <= look.time - _QUIET_SECONDS * 1000
        state.changed = 0 if rests else state.changed
        return rests

    def _late(self, state: TopicProgress, look: Look) -> int:
        """How much later than planned a look came (ms), if that was an interval or more."""
        if state.before is None:
            return 0
        # What an earlier process did not write, its last record stands for.
        before = max(state.before.time, self._began_at) if not state.interval else state.before.time
        late = look.time - before - int((state.interval or self._slowest) * 1000)
        return late if late >= self._every * 1000 else 0

    def _sends(self, state: TopicProgress, look: Look, reader: Reader) -> Generator[TimedSend]:
        if self._entries == "sampled":
            known = None
            if state.look is not None:
                known = known_of(state.look)
            elif state.before is not None:
                known = known_by(state.before, look, state.read_to)
            return stand_ins(look, state.read_to, known)
        size = look.internal["totalSize"] // max(look.internal["numberOfEntries"], 1)
        return read(self._new(state, reader, size), look, state.read_to, self._entries)

    def _new(self, state: TopicProgress, reader: Reader, size: int) -> Iterator[Stored]:
        """The entries after the last one in the log. Raises `OtherData` if that is another one now."""
        after = state.read_to
        for each in reader.entries(state.name, after, size):
            at = each.ledger, each.entry
            if at > after:
                yield each
            elif is_replaced(state.last, each):
                raise OtherData(state.name, f"entry {at[0]}:{at[1]} is another message now")

    def _later(self, state: TopicProgress) -> float:
        """The interval of a topic at which to look less often than before."""
        return min(max(state.interval * 2, self._every), self._slowest)

    # -- what an operator must know -------------------------------------------------------------------------------

    def _leave_out(self, state: TopicProgress, error: Exception) -> None:
        """A topic can't be mirrored now."""
        passes = isinstance(error, CallFailed) and error.status not in DENIED
        passes |= isinstance(error, ReadFailed) and not isinstance(error, NoRight)
        pause = self._every if passes else _LEFT_OUT_SECONDS
        if isinstance(error, Unanswered) or getattr(error, "status", None) == INCOMPLETE:
            # Each try may take as long as a broker may take.
            pause = state.interval = self._later(state)
        state.due = self._begun + pause
        broker = getattr(error, "broker", None)
        if passes:
            trouble = Trouble(_CLUSTER if broker is None else f"broker {broker}", "waits", "topics wait")
        else:  # rights are those of a namespace
            trouble = _left_out(namespace_of(state.name) if isinstance(error, OSError) else state.name)
        is_told = isinstance(error, OSError | Unreadable)
        why = str(error) if is_told else f"its stats or policies are not understood ({error!r})"
        self._troubles.note(state.name, trouble, why)
        self._troubled.add(state.name)

    def _tell(self) -> None:
        """Tell what is new of troubles."""
        for name in [*self._troubled]:
            if (state := self._progress.topics.get(name)) is None or not state.is_mirrored:
                self._troubles.over(name)
                self._troubled.discard(name)
        self._troubles.tell(time.monotonic())


_REFUSES = Trouble(_CLUSTER, "", "refuses")
_DOES_NOT_ANSWER = Trouble(_CLUSTER, "", "does not answer")
_LEDGER_0 = Trouble(_CLUSTER, "left out", "ledgers are left out")
_ODD = Trouble(_CLUSTER, "another one stands for it", "topics have entries for which others stand")


def _left_out(who: str) -> Trouble:
    return Trouble(who, "left out", "topics are left out")


def _in_threads(
    look: Callable[[str], Look], due: Sequence[TopicProgress], stop: Event
) -> Iterator[tuple[TopicProgress, Future[Look]]]:
    """The looks at topics, some at a time, until `stop` is set. Threads that wait for an answer do not keep the process from ending, as
    those of an executor would."""
    waiting = queue.SimpleQueue[tuple[TopicProgress, Future[Look]] | None]()
    asked: list[tuple[TopicProgress, Future[Look]]] = [(state, Future()) for state in due]

    def work() -> None:
        while (item := waiting.get()) is not None:
            state, future = item
            try:
                future.set_result(look(state.name))
            except Exception as error:
                future.set_exception(error)

    for item in asked:
        waiting.put(item)
    for _ in range(min(_THREADS, len(asked))):
        waiting.put(None)
        threading.Thread(target=work, name="looks", daemon=True).start()
    try:
        for state, future in asked:
            while not future.done() and not stop.is_set():
                wait([future], _POLL_SECONDS)
            if not future.done():
                return
            yield state, future
    finally:
        with suppress(queue.Empty):  # nobody looks at what is left
            while True:
                waiting.get_nowait()
        for _ in range(_THREADS):
            waiting.put(None)


def _shown(seen: Observation) -> Any:
    """What of an observation tells whether a topic changed."""
    return msgspec.structs.replace(seen.record, since=0, resync=False, late=0, unknown=[])
