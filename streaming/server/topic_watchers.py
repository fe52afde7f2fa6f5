"""Topic list watchers: clients that subscribe to a pattern of topics are told which topics come and go (WATCH_TOPIC_LIST).

A watcher has the persistent topics of a namespace that match its pattern, partitions included. Rows of the broker say when
the topics may have changed. The topics are then listed again, and the watcher gets the difference.

Watchers with the same namespace and pattern are one group. A pattern is applied once for the group, and then only to topics that
came or went. After each look at the topics, watchers rest for `REST` times as long as it took, so they take a small
share of the time, however many there are. A client that does not read is told the sum of what it missed when it reads again.

A producer that creates a topic is not told that it is ready before those who watch the topic know of it, and have subscribed, or had
`HEAD_START` to do so. On a real broker, too, watchers are told when the topic's metadata is created, and the topic takes some more time
until it is loaded. So the first message of a topic reaches a consumer of a pattern that begins at the latest one.

Before a query elsewhere, a server sees only rows that are for its own clients. They tell of topics that these create; for all others, it
lists the topics every few seconds while somebody watches: once for each namespace, one at a time.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any, NamedTuple

from schemas.effects import (
    TOPIC_CREATED,
    AdminResponse,
    PartitionedMetadataResponse,
    ProducerSuccess,
    Row,
    Success,
    TopicEvent,
)
from streaming.broker.context import namespace_of
from streaming.protocol.frames import LONGEST_PATTERN, matching, topics_hash, without_domain
from streaming.server.engine import Engine, EngineStopped, NoAnswer
from streaming.server.rarely import Rarely

log = logging.getLogger(__name__)

Answer = Callable[[str, dict[str, Any]], None]
"""Sends a frame to the client: its command and fields."""

_CHANGES = (TopicEvent, AdminResponse, PartitionedMetadataResponse)

_OPENED = (ProducerSuccess, Success)
"""Rows whose topic may be a new one."""

LOOK_SECONDS = 5.0
"""How long after one look at the topics the next one follows, if rows do not say all that happens to topics."""


HEAD_START = 0.1
"""How long (s) the producer of a new topic waits at most for those who watch it."""

REST = 9
"""How many times as long as a look at the topics took the next one waits."""

MOST_NAMES = 10_000_000
"""The most names of topics that all groups have together. A watcher of one more group is refused."""

MOST_CHANGES = 10_000
"""The most changes of a group that are kept for clients that do not read. The connection of one that missed more is closed."""

_GROUPS_AT_ONCE = 100
"""Groups whose patterns are applied before others have their turn, and before a server that stops does."""

_TOLD_AT_ONCE = 256
"""Watchers that are told before others have their turn on the loop."""


class Watching(NamedTuple):
    """A connection that watches: how to answer it, whether it reads what is sent, and how to close it."""

    connection: str
    answer: Answer
    reads: Callable[[], bool]
    close: Callable[[str], None]


TopicChanges = dict[str, bool]
"""Topics that came (True) or went."""


class _Group:
    """Watchers of the same topics. `listed`: the topics of the namespace of which `topics` are those that match."""

    def __init__(self, namespace: str, pattern: str, listed: list[str], topics: list[str]) -> None:
        self.namespace, self.pattern, self.listed, self.topics = namespace, pattern, listed, topics
        self.hash = topics_hash(topics)
        self.version = 0
        """The number of changes so far, of which `changes` has the last ones."""
        self.counted = False
        """Whether its names count: it is one of the server's groups."""
        self.changes: deque[TopicChanges] = deque()
        self._kept = 0
        self.watchers: dict[tuple[str, int], _Watcher] = {}

    def change(self, seen: "_Seen") -> None:
        """The topics of the namespace have changed, and perhaps those of the group."""
        self.listed = seen.listed
        if not seen.change:
            return
        self.topics, self.hash = seen.topics, seen.hash
        self.version += 1
        self.changes.append(seen.change)
        self._kept += len(seen.change)
        while self._kept > MOST_CHANGES and len(self.changes) > 1:
            self._kept -= len(self.changes.popleft())

    def since(self, version: int) -> TopicChanges | None:
        """The sum of the changes since a version; None: they are not kept."""
        if (count := self.version - version) > len(self.changes):
            return None
        found: dict[str, bool] = {}  # whether it is new
        for change in islice(self.changes, len(self.changes) - count, None):
            for topic, is_new in change.items():
                if found.pop(topic, is_new) == is_new:  # else it came and went, or went and came
                    found[topic] = is_new
        return found


class _Known(NamedTuple):
    """The topics of a namespace, as the engine listed them last, as a set, and those that are persistent."""

    all: list[str]
    names: set[str]
    persistent: list[str]


class _Seen(NamedTuple):
    """A group as it is with the topics that are `listed`."""

    group: _Group
    listed: list[str]
    change: TopicChanges
    topics: list[str]
    hash: str


class _Watcher:
    def __init__(self, client: Watching, number: int, group: _Group) -> None:
        self.client, self.number, self.group, self.version = client, number, group, group.version


class _Coming:
    """A topic that has just been created. `ready`: is done when its producer may know. `watchers`: those who are told of it.
    `looked`: whether all of them are. `subscribed`: who has subscribed since."""

    def __init__(self, ready: asyncio.Future[None]) -> None:
        self.ready = ready
        self.watchers = self.subscribed = 0
        self.looked = False


class TopicWatchers:
    """The topic list watchers of a server's connections. `executor` applies patterns."""

    def __init__(self, engine: Engine, executor: Executor) -> None:
        self._engine, self._executor = engine, executor
        self._of: dict[str, dict[int, _Watcher]] = {}
        self._groups: dict[tuple[str, str], _Group] = {}
        self._names = 0
        """The names of topics that the groups have together."""
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        self._one = asyncio.Lock()
        self._bugs = Rarely(log)
        self._timer: asyncio.TimerHandle | None = None
        self._known: dict[str, _Known] = {}
        self._rest_until = 0.0
        self._untold: dict[_Group, None] = {}
        """Groups of which some watchers may not know the last change."""
        self._coming: dict[str, _Coming] = {}

    async def watch(self, client: Watching, asked: dict[str, Any]) -> None:
        """Answer a WATCH_TOPIC_LIST with the topics, and watch them. A watcher whose id is in use stays as it is."""
        async with self._one:  # the next WATCH_TOPIC_LIST may have the same id
            await self._watch(client, asked)

    async def _watch(self, client: Watching, asked: dict[str, Any]) -> None:
        request, number = {"request_id": asked["request_id"]}, asked["watcher_id"]
        of_connection = self._of.setdefault(client.connection, {})
        if (watcher := of_connection.get(number)) is None:
            try:
                group = await self._group(asked["namespace"], asked["topics_pattern"])
            except _NotWatched as error:
                client.answer("ERROR", {**request, "error": error.error, "message": str(error)})
                return
            watcher = of_connection[number] = _Watcher(client, number, group)
            group.watchers[client.connection, number] = watcher
        else:
            self._tell(watcher, {})  # so that the answer is what it knows
        found = {**request, "watcher_id": number, "topics_hash": watcher.group.hash}
        known = asked.get("topics_hash") == found["topics_hash"]
        client.answer(
            "WATCH_TOPIC_LIST_SUCCESS", found if known else {**found, "topic": watcher.group.topics}
        )
        self._look_soon()  # a topic may have come since they were listed

    async def _group(self, namespace: str, pattern: str) -> _Group:
        """The watchers of a pattern, with the topics that are there now. Raises `_NotWatched`."""
        if len(without_domain(pattern)) > LONGEST_PATTERN:
            text = f"Unable to create topic list watcher: Pattern longer than maximum: {LONGEST_PATTERN}"
            raise _NotWatched("NotAllowedError", text)
        try:
            if (group := self._groups.get((namespace, pattern))) is not None:
                await self._look_at(namespace, [group], {})
                self._add(group)  # its last watcher may have gone meanwhile
                return group
            listed = await self._persistent(namespace)
            loop = asyncio.get_running_loop()
            topics = await loop.run_in_executor(self._executor, _matching, pattern, listed)
        except ValueError as error:
            raise _NotWatched("InvalidTopicName", f"Invalid topics pattern: {error}") from None
        except (EngineStopped, NoAnswer) as error:
            raise _NotWatched("ServiceNotReady", str(error)) from None
        if self._names + len(topics) > MOST_NAMES:
            raise _NotWatched(
                "TooManyRequests", f"the watchers have more than {MOST_NAMES:,} names of topics"
            )
        group = _Group(namespace, pattern, listed, topics)
        self._add(group)
        return group

    def _add(self, group: _Group) -> None:
        if self._groups.setdefault((group.namespace, group.pattern), group) is group and not group.counted:
            group.counted = True
            self._names += len(group.topics)

    def _remove(self, group: _Group) -> None:
        del self._groups[group.namespace, group.pattern]
        group.counted = False
        self._names -= len(group.topics)

    def _change(self, seen: "_Seen") -> None:
        group, before = seen.group, len(seen.group.topics)
        group.change(seen)
        if group.counted:
            self._names += len(group.topics) - before
        if seen.change:
            self._untold[group] = None
        if self._coming:
            for topic, is_new in seen.change.items():
                if is_new and (coming := self._coming.get(topic)) is not None:
                    coming.watchers += len(group.watchers)

    def stop(self) -> None:
        """Look no more."""
        self._of.clear()
        self._groups.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def close(self, connection: str, number: int) -> None:
        """Forget a watcher, if it is there."""
        if (watcher := self._of.get(connection, {}).pop(number, None)) is not None:
            group = watcher.group
            del group.watchers[connection, number]
            if not group.watchers and group.counted:
                self._remove(group)

    def lost(self, connection: str) -> None:
        """Forget all watchers of a connection."""
        for number in list(self._of.get(connection, ())):
            self.close(connection, number)
        self._of.pop(connection, None)

    def resume(self, connection: str) -> None:
        """A connection reads again: tell its watchers what they missed."""
        for watcher in list(self._of.get(connection, {}).values()):
            self._tell(watcher, {})

    def count(self, connection: str) -> int:
        """The watchers of a connection."""
        return len(self._of.get(connection, ()))

    def see(self, rows: Sequence[Row]) -> Mapping[str, asyncio.Future[None]]:
        """Tell the watchers what has changed, if these rows may be of such a change. Returns the topics that came with them and may be
        watched: as soon as its future is done, a topic's producer may know that it is ready."""
        if not self._of:
            return {}
        changes = any(map(self._may_change, rows))
        came = self._came(rows) if changes or self._coming else {}
        if changes:
            self._look_soon()
        return came

    def _came(self, rows: Sequence[Row]) -> Mapping[str, asyncio.Future[None]]:
        """The topics that came with rows, see `see`. Rows of those that subscribe are noted."""
        found = dict[str, asyncio.Future[None]]()
        loop = asyncio.get_running_loop()
        watched = {namespace for namespace, _ in self._groups}
        for row in rows:
            effect = row.effect
            if isinstance(effect, Success):
                if (coming := self._coming.get(effect.topic)) is not None:
                    coming.subscribed += 1
                    self._arrive(effect.topic)
            elif (
                self._engine.shows_topic_events
                and isinstance(effect, TopicEvent)
                and effect.cause == TOPIC_CREATED
                and effect.topic.startswith("persistent:")
                and namespace_of(effect.topic) in watched
            ):
                coming = self._coming[effect.topic] = _Coming(loop.create_future())
                found[effect.topic] = coming.ready
                loop.call_later(HEAD_START, self._ready, effect.topic, coming)
        return found

    def _arrive(self, topic: str) -> None:
        """The producer of a new topic may go on if those who watch it have subscribed."""
        coming = self._coming[topic]
        if coming.looked and coming.subscribed >= coming.watchers:
            self._ready(topic, coming)

    def _ready(self, topic: str, coming: _Coming) -> None:
        if self._coming.get(topic) is coming:
            del self._coming[topic]
        if not coming.ready.done():
            coming.ready.set_result(None)

    def _looked(self, namespace: str) -> None:
        """All who watch a namespace have been told of its topics."""
        known = self._known.get(namespace)
        for topic, coming in list(self._coming.items()):
            if known is not None and topic in known.names and namespace_of(topic) == namespace:
                coming.looked = True
                self._arrive(topic)

    def _may_change(self, row: Row) -> bool:
        effect = row.effect
        if self._engine.shows_topic_events:
            return isinstance(effect, _CHANGES)
        if not isinstance(effect, _OPENED):
            return isinstance(effect, PartitionedMetadataResponse)
        known = self._known.get(namespace_of(effect.topic))
        return known is not None and effect.topic not in known.names

    def _look_soon(self) -> None:
        self._again = True
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """List the topics until nothing has changed meanwhile."""
        while self._again:
            await asyncio.sleep(max(0.0, self._rest_until - time.monotonic()))
            self._again = False
            namespaces = dict.fromkeys(namespace for namespace, _ in self._groups)
            self._known = {name: self._known[name] for name in namespaces if name in self._known}
            began = time.monotonic()
            for namespace in namespaces:
                groups = [group for (name, _), group in self._groups.items() if name == namespace]
                differences: dict[int, _Difference] = {}
                try:
                    for start in range(0, len(groups), _GROUPS_AT_ONCE):
                        async with self._one:
                            await self._look_at(
                                namespace, groups[start : start + _GROUPS_AT_ONCE], differences
                            )
                    self._looked(namespace)
                except EngineStopped:
                    return
                except NoAnswer as error:
                    log.warning("the topics of %s can't be listed: %s", namespace, error)
                    break
                except Exception as error:
                    self._bugs.error(
                        "the watchers of %s can't be told what changed, which is a bug in Magnetar: %r",
                        namespace,
                        error,
                    )
            self._rest(began)
        if any(self._of.values()) and not self._engine.shows_topic_events:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_soon)

    def _rest(self, began: float) -> None:
        """A look that began then is over."""
        now = time.monotonic()
        self._rest_until = max(self._rest_until, now + REST * (now - began))

    async def _look_at(
        self, namespace: str, groups: Sequence[_Group], differences: "dict[int, _Difference]"
    ) -> None:
        """Tell the watchers of groups of a namespace what has changed. `differences`: see `_look`."""
        listed = await self._persistent(namespace)
        began = time.monotonic()
        if groups := [group for group in groups if group.listed is not listed]:
            loop = asyncio.get_running_loop()
            for seen in await loop.run_in_executor(self._executor, _look, groups, listed, differences):
                self._change(seen)
        try:
            await self._tell_all()
        except asyncio.CancelledError:
            self._look_soon()
            raise
        self._rest(began)

    async def _tell_all(self) -> None:
        told = 0
        while self._untold:
            group = next(iter(self._untold))
            changes: dict[int, TopicChanges | None] = {}
            for watcher in list(group.watchers.values()):
                self._tell(watcher, changes)
                told += 1
                if not told % _TOLD_AT_ONCE:
                    await asyncio.sleep(0)
            self._untold.pop(group, None)

    def _tell(self, watcher: _Watcher, changes: dict[int, TopicChanges | None]) -> None:
        """Tell a watcher what has changed, if its client reads. `changes` of its group since a version are put here, for the others."""
        group, before = watcher.group, watcher.version
        if before == group.version or not watcher.client.reads():
            return
        if before not in changes:
            changes[before] = group.since(before)
        change = changes[before]
        if change is None:
            watcher.client.close("it has not read what changed in the topics that it watches")
            return
        watcher.version = group.version
        if change:
            fields = {
                "watcher_id": watcher.number,
                "new_topics": sorted(topic for topic, is_new in change.items() if is_new),
                "deleted_topics": sorted(topic for topic, is_new in change.items() if not is_new),
                "topics_hash": group.hash,
            }
            watcher.client.answer("WATCH_TOPIC_UPDATE", fields)

    async def _persistent(self, namespace: str) -> list[str]:
        """The persistent topics of a namespace, sorted. Raises `EngineStopped`, `NoAnswer`."""
        found = await self._engine.topics(namespace)
        known = self._known.get(namespace)
        if known is None or known.all is not found:
            persistent = [topic for topic in found if topic.startswith("persistent:")]
            known = self._known[namespace] = _Known(found, set(found), persistent)
        return known.persistent


class _NotWatched(Exception):
    """A watcher is refused with an error of the protocol."""

    def __init__(self, error: str, text: str) -> None:
        super().__init__(text)
        self.error = error


class _Difference(NamedTuple):
    """What has changed between two lists of topics."""

    before: list[str]
    now: list[str]
    change: TopicChanges


def _difference(before: list[str], now: list[str]) -> _Difference:
    was, is_ = set(before), set(now)
    return _Difference(before, now, dict.fromkeys(is_ - was, True) | dict.fromkeys(was - is_, False))


def _look(groups: Sequence[_Group], listed: list[str], differences: dict[int, _Difference]) -> list[_Seen]:
    """Groups as they are with the topics that are `listed`. Runs in a thread.

    `differences`: what has changed since the list of a group, by the list's id, as most groups have the same one.
    """
    found = list[_Seen]()
    for group in groups:
        known = differences.get(id(group.listed))
        if known is None or known.before is not group.listed or known.now is not listed:
            known = differences[id(group.listed)] = _difference(group.listed, listed)
        difference = known.change
        matched = _matching(group.pattern, list(difference)) if difference else []
        change = {topic: difference[topic] for topic in matched}
        topics, hash_ = group.topics, group.hash
        if change:
            gone = {topic for topic, is_new in change.items() if not is_new}
            came = {topic for topic, is_new in change.items() if is_new}
            topics = sorted((set(topics) - gone) | came)
            hash_ = topics_hash(topics)
        found.append(_Seen(group, listed, change, topics, hash_))
    return found


def _matching(pattern: str, topics: list[str]) -> list[str]:
    """Those of the `topics` that a pattern selects. Raises `ValueError` for one that can't be applied."""
    found = matching(pattern, topics)
    if found is None:
        raise ValueError("RE2 does not have it")
    return topics if len(found) == len(topics) else found
