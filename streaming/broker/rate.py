"""Rates for stats: how often an event happened in the last interval (mirrors `Rate`)."""

import msgspec

from streaming.broker.config import ServiceConfiguration


class Rate(msgspec.Struct, array_like=True, gc=False):
    """Counts of an event: `total`, `current` in interval number `interval`, and `last` in the one before."""

    total: int = 0
    interval: int = 0
    current: int = 0
    last: int = 0

    def record(self, count: int, now: int, config: ServiceConfiguration) -> None:
        """Add `count` at `now` (ms)."""
        number = _interval(now, config)
        if number != self.interval:
            self.last = self.current if number == self.interval + 1 else 0
            self.interval, self.current = number, 0
        self.current += count
        self.total += count

    def in_interval(self, now: int, config: ServiceConfiguration) -> int:
        """How many there were in the present interval until `now` (ms)."""
        return self.current if _interval(now, config) == self.interval else 0

    def per_second(self, now: int, config: ServiceConfiguration) -> float:
        """The rate per second over the last stats interval that ended by `now` (ms)."""
        number = _interval(now, config)
        if number <= self.interval:
            return self.last / _seconds(config)
        return self.current / _seconds(config) if number == self.interval + 1 else 0.0


def _seconds(config: ServiceConfiguration) -> int:
    return max(config.statsUpdateFrequencyInSecs, 1)


def _interval(now: int, config: ServiceConfiguration) -> int:
    return now // (_seconds(config) * 1000)
