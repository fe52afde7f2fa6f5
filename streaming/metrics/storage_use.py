"""How long topics' writes took, and what was read of them, in intervals of the stats."""

from bisect import bisect_left

_BOUNDS = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0)
_BUCKETS = ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000", "overflow")
"""Seconds, and how Pulsar names them, in ms."""

_PREFIX = "pulsar_storage_write_latency"
_NAMES = [f"{_PREFIX}_{bucket}" for bucket in _BUCKETS]
_WRITES = (
    "Entries that were written in the last interval, by how long it took: a server's until they were in its log (and on the disk, "
    "unless --no-fsync), a query's the write of its partition in the micro-batch. In ms"
)
WRITES = dict.fromkeys(_NAMES, f"{_WRITES}.") | {
    f"{_PREFIX}_count": "All of the last interval.",
    f"{_PREFIX}_sum": "How long they took, added up over the entries, in microseconds as in Pulsar.",
}
"""What is known of writes, with descriptions."""

READS = {
    "pulsar_storage_read_rate": "Entries read from the store, per second over the last interval, without those in memory."
}

_Figures = list[float]
_SECONDS, _READ = len(_BUCKETS), len(_BUCKETS) + 1


class StorageUse:
    """What topics wrote and read in the present interval and the one before. It knows only topics that did. An interval is named by its
    number. Not safe for several threads."""

    def __init__(self, *, writes: bool = True) -> None:
        """`writes`: something is written, so that it has latencies."""
        self._writes = writes
        self._number = -1
        self._current: dict[str, _Figures] = {}
        self._last: dict[str, _Figures] = {}

    def wrote(self, topic: str, entries: int, seconds: float, interval: int) -> None:
        """A write with some entries of a topic took so long."""
        figures = self._of(topic, interval)
        figures[bisect_left(_BOUNDS, seconds)] += entries
        figures[_SECONDS] += seconds * entries

    def read(self, topic: str, entries: int, interval: int) -> None:
        """Entries of a topic were read from the store."""
        self._of(topic, interval)[_READ] += entries

    def _of(self, topic: str, interval: int) -> _Figures:
        if interval != self._number:
            self._last = self._current if interval == self._number + 1 else {}
            self._current, self._number = {}, interval
        found = self._current.get(topic)
        if found is None:
            found = self._current[topic] = [0] * (_READ + 1)
        return found

    def values(self, topic: str, at: int, length: int) -> dict[str, float]:
        """The metrics of the last whole interval at a time (ms). `length`: of an interval, in ms."""
        now = at // length
        shown = {self._number: self._last, self._number + 1: self._current}.get(now, {})
        figures = shown.get(topic) or [0] * (_READ + 1)
        found = {"pulsar_storage_read_rate": figures[_READ] * 1000 / length}
        if self._writes:
            counts = figures[:_SECONDS]
            found |= zip(_NAMES, counts, strict=True)
            found |= {f"{_PREFIX}_count": sum(counts), f"{_PREFIX}_sum": round(figures[_SECONDS] * 1e6)}
        return found
