"""The log that is made: records, which the other broker folds as soon as they are made, and the time in which clients act.

`reactive` explains the whole.
"""

from __future__ import annotations

import heapq
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from schemas import commands as c
from schemas import effects as e
from schemas.commands import Decoded, to_binary
from schemas.records import RECORD
from schemas.units import LATEST_TIME
from streaming.answers.whatif.clients.backoff import Backoff
from streaming.answers.whatif.clients.history import (
    DecodedRecord,
    History,
    MessagePositions,
    NumberedPublish,
    PublishNumbers,
    message_of,
)
from streaming.answers.whatif.observed import Ints
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.position import Position
from streaming.log.positions import NAMING, translate

OWN_REQUESTS = 1 << 62
"""Request ids of the model's own commands begin here; clients count from 0 or from a random number below."""


class ClientSettings(msgspec.Struct, frozen=True):
    """What the log does not say of its clients. The defaults are those of the Java client.

    `send_timeout` in ms; 0: producers never give up. `max_pending_messages`: how many messages a producer holds; 0: no limit.
    More fail at once, or with `block_if_queue_full` wait in the application.
    """

    seed: int = 0
    send_timeout: int = 30_000
    max_pending_messages: int = 0
    block_if_queue_full: bool = False


class MadeLog:
    """The log of a run.

    * `log`, `offsets`: the records of the log as it is, and their offsets. `history`: what its clients did.
    * `now`: the clock (ms). `reached`: how many records of the log were reached.
    * `topics`: the position of each message in this run, by its number in its topic. `moved_topics`: where positions differ from
      the log's, once a message is lost or late.
    * `numbers`: its `unstored` are messages that the log's client sent more than once, and that are not stored here.
    * `requests`: whose a request is. `broker`: the other broker; `see` shows the clients what it answered.
    * the others: see `Reacted`.
    """

    def __init__(
        self, records: pa.Table, partition: int, history: History, settings: ClientSettings, see: Callable[[], None]
    ) -> None:  # fmt: skip
        self.log, self.history, self.settings = records, history, settings
        self.offsets: Ints = records["offset"].to_numpy()
        self.first = int(self.offsets[0]) if len(self.offsets) else 0
        self.broker = Broker(partition, NoEntries())
        self.numbers = PublishNumbers(self.broker)
        self.topics: dict[str, MessagePositions] = defaultdict(MessagePositions)
        self.moved_topics: set[str] = set()
        self.requests: dict[tuple[str, str, int], object] = {}
        self.reached = self.now = 0
        self.origins, self.after = array("q"), array("q")
        self.given_up: dict[int, str] = {}
        self.own: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.unmatched = 0
        self._partition, self._see = partition, see
        self._changes: Counter[str | None] = Counter()
        self._waiting: dict[str, list[tuple[Backoff, Any]]] = {}
        self._attempting = False
        self._events: list[tuple[int, int, Any]] = []
        self._event = self._request = 0
        self._next = self.first
        self._rows: tuple[list[int], list[int], list[str | None], list[bytes]] = ([], [], [], [])

    def advance(self, until: int) -> None:
        """Let the broker's timers and the clients act before `until` (ms)."""
        if until > LATEST_TIME:
            return
        while True:
            due = self.broker.next_due()
            event = self._events[0][0] if self._events else until
            if self.broker.clock < due < until and due <= event:
                self.broker.tick(due)
                self._see()
            elif event < until:
                self.now, _, act = heapq.heappop(self._events)
                self.now = max(self.now, self.broker.clock)
                act[0](*act[1:])
            else:
                return

    def at(self, time: int, *act: Any) -> None:
        """Call `act[0]` with the rest of `act` at a time (ms)."""
        self._event += 1
        heapq.heappush(self._events, (time, self._event, act))

    # -- clients that the broker does not let in ------------------------------------------------------------------

    def changed(self, topic: str | None) -> None:
        """Something has happened on a topic, or (None) on any."""
        self._changes[topic] += 1
        for name in [*self._waiting] if topic is None else [topic]:
            for backoff, act in self._waiting.pop(name, ()):
                self.at(self.now + backoff.rest(), *act)

    def attempt(self, topic: str, backoff: Backoff, attempt: Callable[[], None], *again: Any) -> None:
        """A client tries to come back to a topic. That changes nothing there, unless it is let in.

        Once its interval grows no more, the attempt is not made that would be refused as the last one, each minute: `again[0]` is called
        with the rest of `again`, as `at` does, within an interval after something has happened that may let the client in.
        """
        if backoff.is_longest and backoff.refused_at == self._version(topic):
            self._waiting.setdefault(topic, []).append((backoff, again))
            return
        self._attempting = True
        try:
            attempt()
        finally:
            self._attempting = False
        backoff.refused_at = self._version(topic)

    def _version(self, topic: str) -> tuple[int, int]:
        """It is another one once something has happened that may let in a client which a topic has refused."""
        return self._changes[topic], self._changes[None]

    def dice(self, *what: object) -> random.Random:
        """Randomness for `what`, by the seed."""
        return random.Random(" ".join(map(str, (self.settings.seed, *what))))

    def emit(
        self, timestamp: int, topic: str | None, command: Decoded, value: bytes | None, origin: int, offset: int = 0
    ) -> None:  # fmt: skip
        """Add a record, let the broker carry it out, and let clients see what it answers."""
        offset = max(offset, self._next)
        self._next = offset + 1
        encoded = to_binary(command) if value is None else value  # type: ignore[arg-type]
        offsets, timestamps, topics, values = self._rows
        offsets.append(offset)
        timestamps.append(timestamp)
        topics.append(topic)
        values.append(encoded)
        self.origins.append(origin)
        self.after.append(self.reached)
        inner = c.command_in(command)
        number = -1
        if topic is not None and isinstance(inner, c.Publish | c.Send) and not is_non_persistent(topic):
            number = self.history.topics[topic].number_of(origin)
            message = message_of(topic, inner)
            self.numbers.begin(number, message)
            if message in self.history.repeated:
                self.numbers.unstored.add(message)
        if not self._attempting:
            self.changed(topic)
        self.broker.apply(offset, timestamp, topic, command, encoded)
        self._see()
        waits = self.numbers.end()
        if number >= 0 and topic is not None and not waits and self.topics[topic].position_of(number) is None:
            self._compare_entry(topic, number, None)

    def _compare_entry(self, topic: str, number: int, position: Position | None) -> None:
        """Does a message have the position that it has in the log?"""
        if self.history.topics[topic].positions.position_of(number) != position:
            self.moved_topics.add(topic)

    def own_request(self) -> int:
        """The id of the next request of the model itself."""
        self._request += 1
        return OWN_REQUESTS + self._request

    def send_own(self, topic: str, command: Any, origin: int = -1) -> None:
        """A command of the model itself, now."""
        self.own[_name(command)] += 1
        self.emit(self.now, topic, command, None, origin)

    def pass_on(self, record: DecodedRecord, origin: int, command: Any) -> None:
        """A record of the log, as it is or with another command."""
        same = command is record.inner
        self.emit(
            record.timestamp, record.topic, record.command if same else command, record.value if same else None, origin,
            record.offset,
        )  # fmt: skip

    def drop(self, command: Any) -> None:
        """A command of the log that its client would not have sent."""
        self.dropped[_name(command)] += 1

    def translated(self, topic: str, record: DecodedRecord, origin: int, command: Any) -> None:
        """A command that may name positions of the log."""
        if isinstance(command, NAMING) and topic in self.moved_topics:
            own = self.topics[topic]
            found = translate(command, self.history.topics[topic].written, own)  # type: ignore[arg-type]
            self.unmatched += not found.complete
            if found.command is None:
                self.drop(command)
                return
            command = found.command
        self.pass_on(record, origin, command)

    def stored(self, effect: e.SendReceipt) -> NumberedPublish | None:
        """A message has got its position. The publish that the receipt is for."""
        published = self.numbers.answered(effect)
        if published is not None and effect.ledger_id > 0:
            position = Position(effect.ledger_id, effect.entry_id)
            self.topics[effect.topic].add(published.number, position)
            self._compare_entry(effect.topic, published.number, position)
        return published

    def records(self) -> pa.Table:
        """The log, with the columns of `RECORD`."""
        offsets, timestamps, topics, values = self._rows
        return pa.table(
            {
                "partition": pa.array([self._partition] * len(offsets), pa.int32()),
                "offset": pa.array(offsets, pa.int64()),
                "timestamp": pa.array(timestamps, pa.int64()),
                "topic": pa.array(topics, pa.string()),
                "value": pa.array(values, pa.binary()),
            },
            schema=RECORD,
        )


def _name(command: Any) -> str:
    """A command's name."""
    return str(type(command).__struct_config__.tag or "PUBLISH")
