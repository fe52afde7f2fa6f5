"""The fold of a log whose positions are translated, see `streaming.log.positions`.

First `TrackingBroker` folds the log as it is, then `Translation` folds it under other policies. Each is a
`streaming.fold.records.BrokerType`, so Spark and the fold in this process run them as they run a plain broker.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from schemas import commands as c
from schemas.commands import Decoded
from schemas.entries import EntryReader
from streaming.broker.broker import Broker
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.position import EARLIEST, Position
from streaming.broker.topic.abstract_topic import PendingWrite
from streaming.log.positions import NAMING, WrittenEntries, translate

Baseline = Mapping[str, bytes]
"""What the log's own run wrote in an ingress partition: the encoded `WrittenEntries` of each topic."""

NOTHING = WrittenEntries()


class _State(msgspec.Struct, array_like=True):
    broker: bytes
    written: dict[str, bytes]
    unmatched: int


_decode = msgspec.msgpack.Decoder(_State).decode


class TrackingBroker(Broker):
    """A broker that notes which publish wrote which entry."""

    each_record = True

    def __init__(self, partition: int, entries: EntryReader) -> None:
        super().__init__(partition, entries)
        self._restore(_State(b"", {}, 0))

    @classmethod
    def decode(cls, state: bytes, entries: EntryReader) -> "TrackingBroker":
        """The broker as `encode` left it. Raises `StateVersionError`."""
        found = _decode(state)
        broker = super().decode(found.broker, entries)
        assert isinstance(broker, TrackingBroker)
        broker._restore(found)
        return broker

    def _restore(self, state: _State) -> None:
        self._encoded = state.written
        self._unmatched = state.unmatched
        self._written: dict[str, WrittenEntries] = {}

    def encode(self) -> bytes:
        """The state, with what was noted."""
        self._encoded |= {topic: written.encode() for topic, written in self._written.items()}
        return msgspec.msgpack.encode(_State(super().encode(), self._encoded, self._unmatched))

    def apply(self, offset: int, timestamp: int, topic: str | None, command: Decoded, value: bytes) -> None:
        """See `Broker.apply`."""
        if not topic or not isinstance(command, c.Publish | c.Send | c.Fault) or is_non_persistent(topic):
            super().apply(offset, timestamp, topic, command, value)
            return
        written = self._written_to(topic)
        if written is None:
            written = self._written[topic] = WrittenEntries()
        waiting = self._pending(topic) if written.waiting else []
        if len(waiting) < len(written.waiting):
            written.waiting.clear()  # they were lost when the topic was unloaded
        before = self._last_of(topic)
        super().apply(offset, timestamp, topic, command, value)
        if isinstance(command, c.Fault):
            done = len(waiting) - len(self._pending(topic))
            if command.fault == "CompleteWrites":
                for number, write in zip(written.waiting[:done], waiting[:done], strict=True):
                    assert write.position is not None
                    written.add(number, write.position)
            del written.waiting[:done]
        else:
            self._note_publish(topic, written, before)

    def _last_of(self, name: str) -> Position:
        """The last entry of a topic, which may be a marker of a transaction."""
        try:
            return self.topic(name).ledger.last_confirmed
        except KeyError:
            return EARLIEST

    def _note_publish(self, name: str, written: WrittenEntries, before: Position) -> None:
        """`before`: the topic's last entry before the publish."""
        number = written.publishes
        written.publishes += 1
        try:
            topic = self.topic(name)
        except KeyError:  # nobody could publish there yet
            return
        last = topic.ledger.last_confirmed
        if len(topic.pending) > len(written.waiting):
            written.waiting.append(number)
        elif last.entry >= 0 and last > before:
            written.add(number, last)

    def _pending(self, name: str) -> list[PendingWrite]:
        """The messages of a topic whose writes a fault put off."""
        try:
            return list(self.topic(name).pending)
        except KeyError:
            return []

    def _written_to(self, topic: str) -> WrittenEntries | None:
        found = self._written.get(topic)
        if found is None and topic in self._encoded:
            found = self._written[topic] = WrittenEntries.decode(self._encoded[topic])
        return found


class TranslatingBroker(TrackingBroker):
    """A broker under other policies. Positions in the commands are those of the `baseline`."""

    def follow(self, baseline: Baseline) -> "TranslatingBroker":
        """Translate the positions in commands from here on."""
        self._baseline = baseline
        self._baseline_of: dict[str, WrittenEntries] = {}
        return self

    def apply(self, offset: int, timestamp: int, topic: str | None, command: Decoded, value: bytes) -> None:
        """See `Broker.apply`."""
        if isinstance(command, NAMING) and topic and not is_non_persistent(topic):
            baseline = self._baseline_of.get(topic)
            if baseline is None:
                encoded = self._baseline.get(topic)
                baseline = NOTHING if encoded is None else WrittenEntries.decode(encoded)
                self._baseline_of[topic] = baseline
            translated = translate(command, baseline, self._written_to(topic) or NOTHING)
            self._unmatched += not translated.complete
            command = translated.command or c.Tick()
        super().apply(offset, timestamp, topic, command, value)


@dataclass(frozen=True)
class Translation:
    """A `BrokerType` for the fold under other policies. `baselines`: what the log's own run wrote, by ingress partition."""

    baselines: Mapping[int, Baseline]

    @classmethod
    def of(cls, states: Mapping[int, bytes]) -> "Translation":
        """For what `TrackingBroker` noted, by ingress partition, until it had these states."""
        return cls({partition: _decode(state).written for partition, state in states.items()})

    @staticmethod
    def unmatched(states: Iterable[bytes]) -> int:
        """How many commands named a message that never was under the policies, until brokers had these states."""
        return sum(_decode(state).unmatched for state in states)

    @staticmethod
    def plain(state: bytes) -> bytes:
        """The state without what only the translation needs, as `Broker` encodes it."""
        return _decode(state).broker

    def __call__(self, partition: int, entries: EntryReader) -> TranslatingBroker:
        """A new broker for an ingress partition."""
        return TranslatingBroker(partition, entries).follow(self.baselines.get(partition, {}))

    def decode(self, state: bytes, entries: EntryReader) -> TranslatingBroker:
        """The broker of an encoded state. Raises `StateVersionError`."""
        broker = TranslatingBroker.decode(state, entries)
        assert isinstance(broker, TranslatingBroker)
        return broker.follow(self.baselines.get(broker.partition, {}))
