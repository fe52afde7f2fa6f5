"""Writes that a fault put off: which publish a later answer is for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from schemas import effects as e
from streaming.broker.broker import Broker
from streaming.broker.topic.abstract_topic import PendingWrite

P = TypeVar("P")
"""What names a publish."""


class _PutOff(NamedTuple, Generic[P]):
    write: PendingWrite
    publish: P


def pending_writes(broker: Broker, topic: str) -> Sequence[PendingWrite]:
    """The writes of a topic that wait, oldest first."""
    try:
        return broker.topic(topic).pending
    except KeyError:
        return ()


def _place(write: PendingWrite, pending: Sequence[PendingWrite]) -> int:
    return next(place for place, each in enumerate(pending) if each is write)


class PutOffWrites(Generic[P]):
    """The publishes of each topic whose writes wait, oldest first."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, list[_PutOff[P]]] = defaultdict(list)

    @classmethod
    def of(cls, kept: Mapping[str, Sequence[tuple[int, P]]], broker: Broker) -> PutOffWrites[P]:
        """Those that were `kept`, of the same broker."""
        found = cls()
        for topic, waiting in kept.items():
            pending = pending_writes(broker, topic)
            found._waiting[topic] = [_PutOff(pending[place], publish) for place, publish in waiting]
        return found

    def kept(self, broker: Broker) -> dict[str, list[tuple[int, P]]]:
        """By topic, the place of each write among those that wait, and its publish."""
        return {
            topic: [(_place(write, pending_writes(broker, topic)), publish) for write, publish in waiting]
            for topic, waiting in self._waiting.items()
        }

    def note(self, topic: str, pending: Sequence[PendingWrite], publish: P) -> bool:
        """A publish was carried out and has no answer yet. Does its write wait? `pending`: the topic's writes that do."""
        waiting = self._waiting[topic]
        if not pending or (waiting and waiting[-1].write is pending[-1]):
            return False
        waiting.append(_PutOff(pending[-1], publish))
        return True

    def answered(self, effect: e.SendReceipt | e.SendError, broker: Broker) -> P | None:
        """The publish that an answer is for; None: of none that waited. A message that is sent again meanwhile has the same
        sequence id, and an answer of its own."""
        lowest = effect.sequence_id
        if isinstance(effect, e.SendError) and effect.lowest_sequence_id is not None:
            lowest = effect.lowest_sequence_id
        waiting = self._waiting.get(effect.topic, [])
        for place, (write, publish) in enumerate(waiting):
            same = (write.producer.name, write.sequence_id) == (effect.producer_name, lowest)
            if same and not any(write is each for each in pending_writes(broker, effect.topic)):
                del waiting[place]
                return publish
        return None

    @property
    def waits(self) -> bool:
        """Whether there are any."""
        return any(self._waiting.values())

    def publishes(self, topic: str) -> list[P]:
        """Those of a topic that have no answer yet."""
        return [publish for _, publish in self._waiting.get(topic, ())]

    def lost(self, topic: str) -> None:
        """The topic is closed: nothing answers the writes that wait."""
        self._waiting.pop(topic, None)
