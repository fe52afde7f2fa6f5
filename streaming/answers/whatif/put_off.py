"""Writes that a fault put off: which publish a later answer is for."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from schemas import effects as e
from streaming.broker.topic.abstract_topic import PendingWrite


class _PutOff(NamedTuple):
    write: PendingWrite
    number: int


class PutOffWrites:
    """The publishes of each topic whose writes wait, oldest first."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, list[_PutOff]] = defaultdict(list)

    def note(self, topic: str, pending: Sequence[PendingWrite], number: int) -> bool:
        """A publish was carried out and has no answer yet. Does its write wait? `pending`: the topic's writes that do."""
        waiting = self._waiting[topic]
        if not pending or (waiting and waiting[-1].write is pending[-1]):
            return False
        waiting.append(_PutOff(pending[-1], number))
        return True

    def answered(self, effect: e.SendReceipt | e.SendError) -> int | None:
        """The number of the publish that an answer is for; None: of none that waits."""
        lowest = effect.sequence_id
        if isinstance(effect, e.SendError) and effect.lowest_sequence_id is not None:
            lowest = effect.lowest_sequence_id
        waiting = self._waiting.get(effect.topic, [])
        for place, (write, number) in enumerate(waiting):
            if (write.producer.name, write.sequence_id) == (effect.producer_name, lowest):
                del waiting[place]
                return number
        return None

    def lost(self, topic: str) -> None:
        """The topic is closed: nothing answers the writes that wait."""
        self._waiting.pop(topic, None)
