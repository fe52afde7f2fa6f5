"""The connections of which nothing is carried out because they exceed a publish rate."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from streaming.broker.context import NEVER, Throttled

_KEPT = 1024


class _Pause(NamedTuple):
    until: int
    topics: set[str]


class PausedConnections:
    """Until when each is paused (ms), and because of what it published to which topics. Operations take O(log connections) each, on
    average."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}
        self._by_time: list[tuple[int, str]] = []
        """A heap, also of pauses that are over or last longer now."""

    def __iter__(self) -> Iterator[str]:
        """The connections."""
        return iter(list(self._pauses))

    def add(self, throttled: Throttled) -> None:
        """A connection exceeds a rate. It may be paused already, because of another topic."""
        topic, connection, until = throttled
        before = self._pauses.get(connection, _Pause(0, set()))
        before.topics.add(topic)
        self._put(connection, _Pause(max(before.until, until), before.topics))

    def put_off(self, connection: str, until: int) -> None:
        """It is paused for longer."""
        self._put(connection, self._pauses[connection]._replace(until=until))

    def _put(self, connection: str, pause: _Pause) -> None:
        self._pauses[connection] = pause
        heappush(self._by_time, (pause.until, connection))
        if len(self._by_time) > 2 * len(self._pauses) + _KEPT:
            self._by_time = [(each.until, connection) for connection, each in self._pauses.items()]
            heapify(self._by_time)

    def remove(self, connection: str) -> bool:
        """It goes on. Returns whether it was paused."""
        return self._pauses.pop(connection, None) is not None

    @property
    def next(self) -> int:
        """When the first pause is over (ms). `streaming.broker.context.NEVER`: there is none."""
        while self._by_time:
            until, connection = self._by_time[0]
            if (pause := self._pauses.get(connection)) is not None and pause.until == until:
                return until
            heappop(self._by_time)
        return NEVER

    def over(self, now: int) -> Iterator[tuple[str, set[str]]]:
        """The connections whose pause is over, and their topics. Put each off, or remove it, before asking for the next."""
        while self.next <= now:
            _, connection = self._by_time[0]
            yield connection, self._pauses[connection].topics
