"""A broker of a few lines with the real one's interface: receipts for publishing, an expiry a second, nothing else."""

from typing import NamedTuple

import msgspec

from schemas.commands import Decoded, MessageMetadata, Publish, Refused
from schemas.effects import Effect, Expired, Quarantined, Row, SendReceipt, Tick
from schemas.entries import EntryReader


class Summary(NamedTuple):
    clock: int
    topics: int
    backlog: int
    storage: int


class FakeBroker:
    aside = frozenset[str]()
    at_work: str | None = None
    each_record = True

    def __init__(self, partition: int, entries: EntryReader) -> None:
        self.partition, self.entries = partition, entries
        self.clock, self.offset, self.ordinal = 0, -1, 0
        self.topics: dict[str, list[int]] = {}  # entries, bytes, clock of the last expiry
        self.rows: list[Row] = []

    def find_recent_payloads(self, recent: object) -> None:
        """It compacts nothing."""

    @classmethod
    def decode(cls, state: bytes, entries: EntryReader) -> "FakeBroker":
        partition, clock, offset, ordinal, topics = msgspec.msgpack.decode(state)
        self = cls(partition, entries)
        self.clock, self.offset, self.ordinal, self.topics = clock, offset, ordinal, topics
        return self

    def encode(self) -> bytes:
        topics = dict(sorted(self.topics.items()))
        return msgspec.msgpack.encode((self.partition, self.clock, self.offset, self.ordinal, topics))

    def apply(self, offset: int, timestamp: int, topic: str | None, command: Decoded, value: bytes) -> None:
        self.offset, self.ordinal = offset, 0
        self._advance(timestamp)
        if isinstance(command, Refused):
            return self._emit(Quarantined(topic, command.rule, command.cause, value))
        if not isinstance(command, Publish) or topic is None:
            return None
        if command.payload == "boom":
            raise ZeroDivisionError("boom")
        payload = command.payload_bytes or command.payload.encode()
        state = self.topics.setdefault(topic, [0, 0, self.clock])
        metadata = None
        if command.key is not None:
            metadata = MessageMetadata(
                producer_name=command.producer, sequence_id=command.sequence_id, publish_time=timestamp
            )
        self._emit(
            SendReceipt(
                topic,
                "",
                None,
                command.producer,
                command.sequence_id,
                None,
                1,
                state[0],
                size=len(payload),
                messages=1,
                publish_time=timestamp,
                partition_key=command.key,
                metadata=metadata,
                payload=payload,
            )
        )
        state[0] += 1
        state[1] += len(payload)
        return None

    def tick(self, timestamp: int) -> None:
        self._advance(timestamp)
        self._emit(Tick())

    def _advance(self, timestamp: int) -> None:
        self.clock = max(self.clock, timestamp)
        for topic, state in sorted(self.topics.items()):
            if self.clock - state[2] >= 1000 and state[0]:
                state[2] = self.clock
                self._emit(Expired(topic, "s", 1, -1, 1, state[0] - 1, state[0], "ttl", "messageTTL 1 s"))

    def _emit(self, effect: Effect) -> None:
        self.rows.append(Row(self.offset, self.ordinal, self.clock, effect))
        self.ordinal += 1

    def when_full(self, full: object) -> None:
        pass  # few rows

    def take(self) -> list[Row]:
        rows, self.rows = self.rows, []
        return rows

    def summary(self) -> Summary:
        entries = sum(state[0] for state in self.topics.values())
        return Summary(self.clock, len(self.topics), entries, sum(state[1] for state in self.topics.values()))

    def stats(self) -> list[dict[str, object]]:
        return [
            {"topic": topic, "subscription": None, "entries": s[0]}
            for topic, s in sorted(self.topics.items())
        ]
