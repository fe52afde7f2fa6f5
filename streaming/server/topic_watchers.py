"""Topic list watchers: clients that subscribe to a pattern of topics are told which topics come and go (WATCH_TOPIC_LIST).

A watcher has the persistent topics of a namespace that match its pattern, partitions included. Rows of the broker say when
the topics may have changed. The topics are then listed again, and the watcher gets the difference.

Before a query elsewhere, a server sees only rows that are for its own clients. They tell of topics that these create; for all others, it
lists the topics every few seconds while somebody watches: once for each namespace, one at a time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from schemas.effects import (
    AdminResponse,
    PartitionedMetadataResponse,
    ProducerSuccess,
    Row,
    Success,
    TopicEvent,
)
from streaming.broker.context import namespace_of
from streaming.protocol.frames import LONGEST_PATTERN, matching, topics_hash
from streaming.server.engine import Engine, EngineStopped, NoAnswer

log = logging.getLogger(__name__)

Answer = Callable[[str, dict[str, Any]], None]
"""Sends a frame to the client: its command and fields."""

_CHANGES = (TopicEvent, AdminResponse, PartitionedMetadataResponse)

_OPENED = (ProducerSuccess, Success)
"""Rows whose topic may be a new one."""

LOOK_SECONDS = 5.0
"""How long after one look at the topics the next one follows, if rows do not say all that happens to topics."""


class _Watcher:
    def __init__(self, namespace: str, pattern: str, topics: list[str], answer: Answer) -> None:
        self.namespace, self.pattern, self.topics, self.answer = namespace, pattern, topics, answer


class TopicWatchers:
    """The topic list watchers of a server's connections. `executor` applies patterns."""

    def __init__(self, engine: Engine, executor: Executor) -> None:
        self._engine, self._executor = engine, executor
        self._of: dict[str, dict[int, _Watcher]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        self._one = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._known: dict[str, set[str]] = {}

    async def watch(self, connection: str, asked: dict[str, Any], answer: Answer) -> None:
        """Answer a WATCH_TOPIC_LIST with the topics, and watch them. A watcher whose id is in use stays as it is."""
        async with self._one:  # the next WATCH_TOPIC_LIST may have the same id
            await self._watch(connection, asked, answer)

    async def _watch(self, connection: str, asked: dict[str, Any], answer: Answer) -> None:
        request, number = {"request_id": asked["request_id"]}, asked["watcher_id"]
        pattern = asked["topics_pattern"]
        of_connection = self._of.setdefault(connection, {})
        if (watcher := of_connection.get(number)) is None:
            if len(pattern) > LONGEST_PATTERN:
                text = f"Unable to create topic list watcher: Pattern longer than maximum: {LONGEST_PATTERN}"
                answer("ERROR", {**request, "error": "NotAllowedError", "message": text})
                return
            try:
                topics = await self._list(asked["namespace"], pattern)
            except ValueError as error:
                text = f"Invalid topics pattern: {error}"
                answer("ERROR", {**request, "error": "InvalidTopicName", "message": text})
                return
            except (EngineStopped, NoAnswer) as error:
                answer("ERROR", {**request, "error": "ServiceNotReady", "message": str(error)})
                return
            watcher = of_connection[number] = _Watcher(asked["namespace"], pattern, topics, answer)
        found = {**request, "watcher_id": number, "topics_hash": topics_hash(watcher.topics)}
        known = asked.get("topics_hash") == found["topics_hash"]
        answer("WATCH_TOPIC_LIST_SUCCESS", found if known else {**found, "topic": watcher.topics})
        self._look_soon()  # a topic may have come since they were listed

    def stop(self) -> None:
        """Look no more."""
        self._of.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def close(self, connection: str, number: int) -> None:
        """Forget a watcher, if it is there."""
        self._of.get(connection, {}).pop(number, None)

    def lost(self, connection: str) -> None:
        """Forget all watchers of a connection."""
        self._of.pop(connection, None)

    def count(self, connection: str) -> int:
        """The watchers of a connection."""
        return len(self._of.get(connection, ()))

    def see(self, rows: Sequence[Row]) -> None:
        """Tell the watchers what has changed, if these rows may be of such a change."""
        if self._of and any(map(self._may_change, rows)):
            self._look_soon()

    def _may_change(self, row: Row) -> bool:
        effect = row.effect
        if self._engine.shows_topic_events:
            return isinstance(effect, _CHANGES)
        if not isinstance(effect, _OPENED):
            return isinstance(effect, PartitionedMetadataResponse)
        known = self._known.get(namespace_of(effect.topic))
        return known is not None and effect.topic not in known

    def _look_soon(self) -> None:
        self._again = True
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """List the topics until nothing has changed meanwhile."""
        while self._again:
            self._again = False
            namespaces = dict.fromkeys(
                watcher.namespace for watchers in self._of.values() for watcher in watchers.values()
            )
            self._known = {name: self._known[name] for name in namespaces if name in self._known}
            for namespace in namespaces:
                try:
                    await self._look_at(namespace)
                except EngineStopped:
                    return
                except NoAnswer as error:
                    log.warning("the topics of %s can't be listed: %s", namespace, error)
                    break
        if any(self._of.values()) and not self._engine.shows_topic_events:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_soon)

    async def _look_at(self, namespace: str) -> None:
        """Tell the watchers of a namespace what has changed."""
        topics = await self._persistent(namespace)
        for connection, watchers in list(self._of.items()):
            for number, watcher in list(watchers.items()):
                if watcher.namespace == namespace:
                    found = await self._matching(watcher.pattern, topics)
                    if self._of.get(connection, {}).get(number) is watcher:
                        self._tell(number, watcher, found)

    def _tell(self, number: int, watcher: _Watcher, topics: list[str]) -> None:
        before, after = set(watcher.topics), set(topics)
        watcher.topics = topics
        if before != after:
            watcher.answer(
                "WATCH_TOPIC_UPDATE",
                {
                    "watcher_id": number,
                    "new_topics": sorted(after - before),
                    "deleted_topics": sorted(before - after),
                    "topics_hash": topics_hash(topics),
                },
            )

    async def _list(self, namespace: str, pattern: str) -> list[str]:
        """The topics of a watcher. Raises `ValueError` for a pattern that can't be applied, `EngineStopped`, `NoAnswer`."""
        return await self._matching(pattern, await self._persistent(namespace))

    async def _persistent(self, namespace: str) -> list[str]:
        found = await self._engine.topics(namespace)
        self._known[namespace] = set(found)
        return sorted(topic for topic in found if topic.startswith("persistent:"))

    async def _matching(self, pattern: str, topics: list[str]) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._executor, matching, pattern, topics)
        if found is None:
            raise ValueError("RE2 does not have it")
        return found
