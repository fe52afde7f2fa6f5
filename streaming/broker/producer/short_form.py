"""When producers of the short form leave. No connection says that they are gone, so it is their silence that says it.

One that has published nothing for longer than brokerDeduplicationProducerInactivityTimeoutMinutes leaves in the next round of the
check `inactiveProducers`, which also makes deduplication forget it. Its next message registers it again.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

from streaming.broker.producer.producer import Producer
from streaming.broker.rates.rate import ProducerCounters


class ShortFormProducers:
    """A topic's producers of the short form, by when they published last. Not a part of the state, but made from it.

    A heap has a time for each, since which it may have been silent. If it published since, that is noticed when it is first.
    So a question costs something only for those that published since the last one.
    """

    def __init__(self, producers: Mapping[str, Producer], counters: Mapping[str, ProducerCounters]) -> None:
        """The arguments are the topic's own."""
        self._producers, self._counters = producers, counters
        self._heap = [(self._since(name), name) for name in producers if self._is_there(name)]
        heapify(self._heap)
        self._names = {name for _, name in self._heap}

    def add(self, producer: Producer) -> None:
        """A producer has registered."""
        if producer.producer_id is None and producer.name not in self._names:
            self._names.add(producer.name)
            heappush(self._heap, (producer.created, producer.name))

    def first(self) -> tuple[int, str] | None:
        """The one that has been silent for longest: since when (ms), and its name. None: there are none."""
        while self._heap:
            since, name = self._heap[0]
            if not self._is_there(name):
                heappop(self._heap)
                self._names.remove(name)
            elif (last := self._since(name)) > since:
                heapreplace(self._heap, (last, name))
            else:
                return since, name
        return None

    def since(self) -> dict[str, int]:
        """Since when each has been silent (ms)."""
        return {name: self._since(name) for name in self._producers if self._is_there(name)}

    def _is_there(self, name: str) -> bool:
        producer = self._producers.get(name)
        return producer is not None and producer.producer_id is None

    def _since(self, name: str) -> int:
        created, counters = self._producers[name].created, self._counters.get(name)
        return created if counters is None else max(created, counters.last)
