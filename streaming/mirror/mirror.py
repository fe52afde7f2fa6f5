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
    * A topic that did not change is looked at less and less often, and its MIRROR is not written again.
    * Every `RESTATED_SECONDS` each topic gets a MIRROR anyway. So a start finds where each topic is near the log's end, and the twin
      compares itself with a topic that is silent.

    Nothing is written to the cluster. Readers end with their subscriptions, which are not durable, and are open only while entries are read.
"""

import heapq
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from threading import Event
from typing import Any, Literal, NamedTuple

import msgspec

from schemas.commands import Mirror as MirrorCommand
from streaming.broker.admin_requests import topic_path
from streaming.broker.names import base_of
from streaming.broker.persistent.topic import SHADOW_SOURCE
from streaming.broker.position import from_text
from streaming.mirror.journal import Journal, Written
from streaming.mirror.observation import CONNECTION, Observation, observe
from streaming.mirror.policies import Change, ClusterPolicies
from streaming.mirror.reading import Position, TimedSend, read, stand_ins
from streaming.mirror.source import CALLS_PER_LOOK, Found, Look, NotMirrored, Paced, Source
from streaming.record.client import NoRight, Reader, ReadFailed
from streaming.record.rest import CallFailed, Rest

RESTATED_SECONDS = 600.0
"""Each topic gets a MIRROR at least so often, as a subscription that differs for so long is put right (docs/rules/ledgers.md §16)."""

SLOWEST = 16
"""A topic that does not change is looked at once in so many intervals."""

_CONFIGURED_SECONDS = 60.0
"""How often topics, settings and policies are looked for."""

_CALLS_PER_POLICIES = 25
"""The GETs for the policies of one topic, about."""

_THREADS = 8

Entries = Literal["keep", "hash", "drop", "sampled"]
"""What the log has of entries: as `Payloads`, or ``sampled``: nobody reads them, and others stand for them."""

SAMPLED = "magnetar.entries"
"""The property of a topic whose entries are not read. Its value is ``sampled``."""


class Mirrored(NamedTuple):
    """What a mirror has done: the topics in its log, and the entries, records and GETs since it started."""

    topics: int
    entries: int
    records: int
    calls: int


class _Topic:
    """A topic in the log. Times are in seconds of the monotonic clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.created = False
        self.read_to: Position = (-1, -1)
        self.before: Observation | None = None
        self.look: Look | None = None
        self.due = 0.0
        self.interval = 0.0
        self.stated = 0.0


class Mirror:
    """Writes `journal`, which must be open, with what `source` shows. Use it in one thread.

    `every`: the interval of looks, in seconds. `rate`: the GETs per second, at most. `say` gets what an operator must know, a line each.
    """

    def __init__(
        self,
        service_url: str,
        rest: Rest,
        given: Sequence[str],
        journal: Journal,
        *,
        token: str | None = None,
        entries: Entries = "keep",
        every: float = 10.0,
        rate: float = 50.0,
        say: Callable[[str], None],
    ) -> None:
        """Raises `NotMirrored`."""
        self._rest = Paced(rest, rate)
        self._source = Source(self._rest, given)
        self._service_url, self._token, self._journal = service_url, token, journal
        self._entries, self._every, self._rate, self._say = entries, every, rate, say
        self._topics: dict[str, _Topic] = {}
        self._partitioned: dict[str, int] = {}
        self._selected: dict[str, None] = {}
        self._policies_at: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        self._slowest = max(min(every * SLOWEST, RESTATED_SECONDS / 2), every)
        self._last = 0
        self._new_entries = self._records = 0
        self._configured = self._cycle = -RESTATED_SECONDS
        self._mark: Any = None

    def find(self) -> Found:
        """What there is to mirror. Raises `NotMirrored` if there is nothing, `CallFailed` if the cluster can't say."""
        found = self._source.find()
        if found.missing and not found.topics:
            raise NotMirrored("\n".join(f"{name}: {why}" for name, why in found.missing.items()))
        return found

    def run(self, stop: Event) -> Mirrored:
        """Mirror until `stop` is set. Raises what the journal raises."""
        goes_on = self._resume()
        self._policies = ClusterPolicies(self._rest, goes_on=goes_on)
        while not stop.is_set():
            begun = time.monotonic()
            try:
                self._round(begun, stop)
                self._solved(_CLUSTER)
            except CallFailed as error:
                self._problem(_CLUSTER, f"{error}; trying again every {self._every:g} s")
            self._journal.flush()
            self._keep()
            stop.wait(max(begun + self._every - time.monotonic(), 0))
        return Mirrored(len(self._topics), self._new_entries, self._records, self._rest.calls)

    # -- what the log has -----------------------------------------------------------------------------------------

    def _resume(self) -> bool:
        """Find out where the log is. False: it is empty."""
        for at, topic, command in self._journal.read():
            self._last = max(self._last, at)
            kind = command["command"]
            if topic is None or kind == "ADMIN":
                self._resume_from_call(command)
            elif kind == "SEND":
                self._known(topic).read_to = (
                    command["message_id"]["ledgerId"],
                    command["message_id"]["entryId"],
                )
            elif kind == "MIRROR":
                record = msgspec.convert(command, MirrorCommand)
                state = self._known(topic)
                state.before, state.read_to = Observation(at, record), max(state.read_to, record.read_to)
        for topic in self._topics:
            if base_of(topic) != topic:
                self._partitioned.setdefault(base_of(topic), 0)
        return self._last > 0

    def _resume_from_call(self, command: dict[str, Any]) -> None:
        method, path, body = command.get("method"), command.get("path", ""), command.get("body")
        if method == "PUT" and isinstance(body, dict):
            if isinstance(name := body.get(SHADOW_SOURCE), str):
                self._known(name)
            elif (name := (body.get("properties") or {}).get(SHADOW_SOURCE)) is not None:
                self._partitioned[name] = body["partitions"]
        elif method == "DELETE" and path.endswith(_FORCE):
            for topic in [each for each in self._topics if path == topic_path(each) + _FORCE]:
                del self._topics[topic]
            for topic in [
                each for each in self._partitioned if path == f"{topic_path(each)}/partitions{_FORCE}"
            ]:
                self._forget_partitioned(topic)

    def _known(self, name: str) -> _Topic:
        """A topic that is in the log."""
        state = self._topics.setdefault(name, _Topic(name))
        state.created = True
        return state

    def _forget_partitioned(self, name: str) -> None:
        del self._partitioned[name]
        for topic in [each for each in self._topics if base_of(each) == name]:
            del self._topics[topic]

    def _write(self, record: Written) -> None:
        self._last = max(self._last, record.time)
        self._journal.write(record._replace(time=self._last))
        self._records += 1

    def _keep(self) -> None:
        """Note that a start need not read what is before the restatement, once it is complete."""
        if self._mark is not None and all(
            each.stated >= self._cycle for each in self._topics.values() if each.created
        ):
            self._journal.keep(self._mark)
            self._mark = None

    # -- a round --------------------------------------------------------------------------------------------------

    def _round(self, now: float, stop: Event) -> None:
        if now >= self._cycle + RESTATED_SECONDS:
            self._mark, self._cycle = self._journal.mark(), now
        allowed = max(int(self._rate * self._every), _CALLS_PER_POLICIES)
        changes = list[Change]()
        if now >= self._configured + _CONFIGURED_SECONDS:
            changes += self._configure()
            self._configured = now
        # The first round has all topics, so that their entries are merged by time.
        most = allowed // CALLS_PER_LOOK if self._records else len(self._topics)
        looks, deleted = self._looks(now, most, stop)
        changes += deleted
        changes += self._created(looks)
        left = allowed - len(looks) * CALLS_PER_LOOK
        changes += self._topic_policies(now, max(left // _CALLS_PER_POLICIES, 1))
        with Reader(self._service_url, self._token, self._rest.tls, len(looks)) as reader:
            streams = [self._stream(self._topics[name], look, reader) for name, look in looks.items()]
            merged = heapq.merge(*streams, key=lambda record: record.time)
            first = next(merged, None)
            begin = _now() if first is None else first.time
            for topic, command in changes:
                self._write(Written(begin, topic, command))
            while first is not None and not stop.is_set():
                self._write(first)
                first = next(merged, None)

    def _configure(self) -> Iterator[Change]:
        """Look for topics, settings and the policies of namespaces. Raises `CallFailed`."""
        found = self.find()
        self._selected = dict.fromkeys(found.topics)
        for name, why in found.missing.items():
            self._problem(name, f"left out: {why}")
        yield from self._policies.of_broker()
        yield from self._policies.of_namespaces(
            dict.fromkeys("/".join(each.split("/")[2:4]) for each in found.topics)
        )
        for what, why in self._policies.refused.items():
            self._problem(what, f"not known or not applied: {what}" + (f": {why}" if why else ""))
        for name, count in found.partitioned.items():
            before = self._partitioned.get(name)
            self._partitioned[name] = count
            if before is None:
                body = {"partitions": count, "properties": self._properties(name)}
                yield Change(None, _call("PUT", f"{topic_path(name)}/partitions", body))
            elif before != count:
                yield Change(None, _call("POST", f"{topic_path(name)}/partitions", count))
        for name in [each for each in self._partitioned if each not in found.partitioned]:
            if self._is_gone(name, found):
                self._forget_partitioned(name)
                self._policies.forget(name)
                yield Change(None, _call("DELETE", f"{topic_path(name)}/partitions{_FORCE}"))
        for name in [each for each in self._topics if each not in self._selected]:
            if self._is_gone(name, found):
                yield self._deleted(name)
            else:  # it is not mirrored any more
                del self._topics[name]
        for name in found.topics:
            if name not in self._topics:
                self._topics[name] = _Topic(name)

    def _is_gone(self, name: str, found: Found) -> bool:
        status, _ = self._rest.call("GET", f"{topic_path(name)}/stats")
        return status == HTTPStatus.NOT_FOUND and name not in found.partitioned

    def _deleted(self, name: str) -> Change:
        self._topics.pop(name)
        self._policies.forget(name)
        return Change(name, _call("DELETE", topic_path(name) + _FORCE))

    def _looks(self, now: float, most: int, stop: Event) -> tuple[dict[str, Look], list[Change]]:
        """Look at the topics that are due, `most` at most. Also: the deletion of those that are gone. Raises `CallFailed` if the cluster
        can't be reached."""
        due = sorted((each for each in self._topics.values() if each.due <= now), key=lambda each: each.due)[
            :most
        ]
        looks, deleted = dict[str, Look](), list[Change]()
        with ThreadPoolExecutor(_THREADS) as pool:
            asked = [pool.submit(self._source.look, each.name) for each in due]
            for state, asking in zip(due, asked, strict=True):
                try:
                    looks[state.name] = asking.result()
                    self._solved(state.name)
                except CallFailed as error:
                    state.due = now + self._every
                    if error.status is None:
                        for each in asked:
                            each.cancel()
                        raise
                    if error.status != HTTPStatus.NOT_FOUND:
                        self._problem(state.name, f"left out: {error}")
                    elif state.created:
                        deleted.append(self._deleted(state.name))
        return looks, deleted

    def _created(self, looks: Iterable[str]) -> Iterator[Change]:
        """Topics that are new in the log."""
        for name in looks:
            state = self._topics[name]
            if not state.created and base_of(name) not in self._partitioned:
                yield Change(name, _call("PUT", topic_path(name), self._properties(name)))
            state.created = True

    def _properties(self, name: str) -> dict[str, str]:
        sampled = {SAMPLED: "sampled"} if self._entries == "sampled" else {}
        return {SHADOW_SOURCE: name, **sampled}

    def _topic_policies(self, now: float, most: int) -> Iterator[Change]:
        """The policies of topics whose turn it is, `most` at most."""
        names = dict.fromkeys(map(base_of, self._topics))
        due = [
            name
            for name in names
            if self._policies_at.get(name, -_CONFIGURED_SECONDS) + _CONFIGURED_SECONDS <= now
        ]
        for name in sorted(due, key=lambda name: self._policies_at.get(name, 0.0))[:most]:
            self._policies_at[name] = now
            yield from self._policies.of_topic(name, partitioned=name in self._partitioned)

    def _stream(self, state: _Topic, look: Look, reader: Reader) -> Iterator[Written]:
        """What a look adds to the log: the entries up to then, and what else has changed."""
        name, latest = state.name, 0
        try:
            last = from_text(look.internal["lastConfirmedEntry"])
            if last.entry >= 0 and last > state.read_to:
                with closing(self._sends(state, look, reader)) as sends:
                    for send in sends:
                        if send.position > last:
                            break
                        latest = max(latest, min(send.time, look.time))
                        yield Written(latest, name, {"connection": CONNECTION, **send.command})
                        state.read_to = send.position
                        self._new_entries += 1
            evicts = self._policies.evicts(base_of(name))
            seen = observe(
                look.time, look.stats, look.internal, state.before, read_to=state.read_to, evicts=evicts
            )
        except ReadFailed as error:
            if self._entries == "sampled":
                raise
            self._problem(name, f"left out: {error}")
            state.due = time.monotonic() + (_DENIED_SECONDS if isinstance(error, NoRight) else self._every)
            return
        except (KeyError, TypeError, ValueError) as error:
            self._problem(name, f"left out: its stats are not understood ({error!r})")
            state.due = time.monotonic() + _DENIED_SECONDS
            return
        state.look = look
        changed = state.before is None or _shown(seen) != _shown(state.before)
        if changed or state.stated < self._cycle:
            yield Written(look.time, name, msgspec.to_builtins(seen.record))
            state.before, state.stated = seen, time.monotonic()
        state.interval = self._every if changed else min(max(state.interval * 2, self._every), self._slowest)
        state.due += state.interval

    def _sends(self, state: _Topic, look: Look, reader: Reader) -> Generator[TimedSend]:
        if self._entries == "sampled":
            return stand_ins(look, state.read_to, state.look)
        return read(reader.entries(state.name, state.read_to), state.read_to, self._entries)

    # -- what an operator must know -------------------------------------------------------------------------------

    def _problem(self, what: str, text: str) -> None:
        if self._problems.get(what) != text:
            self._problems[what] = text
            self._say(text if what in text else f"{what}: {text}")

    def _solved(self, what: str) -> None:
        if self._problems.pop(what, None) is not None:
            self._say(f"{what}: goes on")


_CLUSTER = "the cluster"
_DENIED_SECONDS = 600.0
_FORCE = "?force=true"


def _shown(seen: Observation) -> MirrorCommand:
    """What of an observation tells whether a topic changed."""
    return msgspec.structs.replace(seen.record, since=0)


def _call(method: str, path: str, body: Any = None) -> dict[str, Any]:
    return {"command": "ADMIN", "method": method, "path": path, **({} if body is None else {"body": body})}


def _now() -> int:
    return time.time_ns() // 1_000_000
