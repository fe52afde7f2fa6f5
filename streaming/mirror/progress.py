"""How far a mirror has come: the topics in its log, and where each of them is. The log itself tells."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from schemas.commands import Mirror
from streaming.broker.admin_requests import topic_of, topic_path
from streaming.broker.names import base_of
from streaming.broker.persistent.topic import ENTRIES, SHADOW_SOURCE
from streaming.mirror.journal import BadLog, MirrorRecord
from streaming.mirror.last import LastEntry, entry_of
from streaming.mirror.observation import Observation
from streaming.mirror.source import Look
from streaming.record.policies import PolicyCall

SourcePosition = tuple[int, int]
"""Ledger and entry on the cluster."""

UNKNOWN_PARTITIONS = 0
"""Of a partitioned topic of which the part of the log that was read has partitions, and not their number."""

_FORCE = "?force=true"


class WholeChange(NamedTuple):
    """A command that changes a topic as a whole, or the broker (no topic)."""

    topic: str | None
    command: dict[str, Any]


class TopicProgress:
    """A topic. `created`: it is in the log. `is_mirrored`: it is still one of those that are followed. `read_to`: its last entry in the
    log. `last`: the last one there of which it is certain that the cluster had it. `is_marked`: this process has noted in the log that the topic is sampled. `is_dated`: it has asked when the topic was created.
    `before`: the last MIRROR. `look`: the last look of this process. When it is looked at next (`due`) and when its last MIRROR was
    written (`stated`), in seconds of the monotonic clock. `changed`: the time (ms) of the last look that showed something new, 0 once a
    MIRROR has said that nothing happens any more; `quiet`: the looks since then."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.created = self.is_marked = self.is_dated = False
        self.is_mirrored = True
        self.read_to: SourcePosition = (-1, -1)
        self.last: LastEntry | None = None
        self.before: Observation | None = None
        self.look: Look | None = None
        self.due = self.interval = self.stated = 0.0
        self.changed = self.quiet = 0


class MirrorProgress:
    """What is in a log. `time`: of its last record (ms), 0 for an empty log. `partitioned`: the number of partitions by topic."""

    def __init__(self, log: Iterable[MirrorRecord], *, sampled: bool) -> None:
        self.time = 0
        self.topics: dict[str, TopicProgress] = {}
        self.partitioned: dict[str, int] = {}
        self._sampled = sampled
        self._gone: set[str] = set()
        """Partitions that were deleted, of topics that are partitioned in the log."""
        for record in log:
            try:
                self._read(record)
            except (msgspec.ValidationError, AttributeError, KeyError, TypeError, ValueError) as error:
                raise BadLog(
                    f"the log has a record that no mirror wrote ({str(record)[:200]}: {error}): mirror into a new log"
                ) from None
        for base in [base_of(topic) for topic in self.topics if base_of(topic) != topic]:
            self.partitioned.setdefault(base, UNKNOWN_PARTITIONS)

    def know(self, last: Mapping[str, LastEntry]) -> None:
        """What an earlier process has noted of the topics that have nothing in the part of the log that was read."""
        for name, entry in last.items():
            if (state := self.topics.get(name)) is not None and state.last is None:
                state.last = entry

    def last(self) -> dict[str, LastEntry]:
        """What to note for `know`."""
        return {name: state.last for name, state in self.topics.items() if state.last is not None}

    def create(self, name: str) -> Iterable[WholeChange]:
        """A topic has records now. What creates it, unless it is there or its partitioned topic creates it, and what says that it is
        sampled. Each start says so again: the part of the log that it reads need not show how the topic was mirrored before."""
        state = self.topics[name]
        alone = base_of(name) == name or base_of(name) not in self.partitioned or name in self._gone
        if not state.created and alone:
            self._gone.discard(name)
            yield WholeChange(name, PolicyCall("PUT", topic_path(name), {SHADOW_SOURCE: name}).as_command())
        state.created = True
        if self._sampled and not state.is_marked:
            path = f"{topic_path(name)}/properties"
            yield WholeChange(name, PolicyCall("PUT", path, {ENTRIES: "sampled"}).as_command())
            state.is_marked = True

    def set_partitions(self, name: str, count: int) -> Iterable[WholeChange]:
        """A partitioned topic has so many partitions."""
        before, self.partitioned[name] = self.partitioned.get(name), count
        path = f"{topic_path(name)}/partitions"
        if before is None:
            properties = {SHADOW_SOURCE: name}
            yield WholeChange(
                None, PolicyCall("PUT", path, {"partitions": count, "properties": properties}).as_command()
            )
        elif before != count:
            yield WholeChange(None, PolicyCall("POST", path, count).as_command())

    def restate(self) -> Iterable[WholeChange]:
        """The partitioned topics once more, for who reads the log from here on."""
        for name, count in self.partitioned.items():
            if count != UNKNOWN_PARTITIONS:
                yield WholeChange(
                    None, PolicyCall("POST", f"{topic_path(name)}/partitions", count).as_command()
                )

    def delete(self, name: str) -> WholeChange:
        """A topic without partitions, or a partition, was deleted."""
        self.topics.pop(name, None)  # a partition without records is not there
        if base_of(name) != name:
            self._gone.add(name)  # its partitioned topic does not create it again
        return WholeChange(name, PolicyCall("DELETE", topic_path(name) + _FORCE).as_command())

    def delete_partitioned(self, name: str) -> WholeChange:
        """A partitioned topic was deleted."""
        del self.partitioned[name]
        for topic in [each for each in self.topics if base_of(each) == name != each]:
            del self.topics[topic]
        self._gone = {each for each in self._gone if base_of(each) != name}
        return WholeChange(None, PolicyCall("DELETE", f"{topic_path(name)}/partitions{_FORCE}").as_command())

    def _read(self, record: MirrorRecord) -> None:
        time, topic, command = record
        self.time = max(self.time, time)
        kind = command.get("command")
        if kind == "ADMIN":
            self._read_call(command)
        elif topic is not None and kind == "SEND" and "message_id" in command:
            id_ = command["message_id"]
            state = self._known(topic)
            state.read_to = id_["ledgerId"], id_["entryId"]
            state.last = entry_of(command) or state.last
        elif topic is not None and kind == "MIRROR":
            seen, state = msgspec.convert(command, Mirror), self._known(topic)
            earlier = None if state.before is None else state.before.record
            state.before = Observation(time, seen, earlier)
            state.read_to = max(state.read_to, seen.read_to)

    def _read_call(self, command: dict[str, Any]) -> None:
        """The inverse of what creates and deletes topics."""
        path, body = command.get("path", ""), command.get("body")
        if command.get("method") == "PUT" and isinstance(body, dict):
            if (name := body.get(SHADOW_SOURCE)) is not None:
                self._known(name)
            elif (name := (body.get("properties") or {}).get(SHADOW_SOURCE)) is not None:
                self.partitioned[name] = body["partitions"]
        elif command.get("method") == "POST" and isinstance(body, int) and path.endswith("/partitions"):
            if (name := topic_of(path)) is not None:
                self.partitioned[name] = body
        elif command.get("method") == "DELETE":
            name = topic_of(path)
            if name is not None and path == topic_path(name) + _FORCE:
                self.delete(name)
            elif name in self.partitioned and path == f"{topic_path(name)}/partitions{_FORCE}":
                self.delete_partitioned(name)

    def _known(self, name: str) -> TopicProgress:
        self._gone.discard(name)
        state = self.topics.setdefault(name, TopicProgress(name))
        state.created = True
        return state
