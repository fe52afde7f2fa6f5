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
            return self.last / seconds_of_interval(config)
        return self.current / seconds_of_interval(config) if number == self.interval + 1 else 0.0


class Rates(msgspec.Struct, array_like=True, gc=False):
    """The rates of a producer or consumer in the last interval (mirrors `Rate.calculateRate`).

    `since` = when its present interval began (ms), `counted` = its totals until then, `per_second` = its rates. Empty: zeros.
    """

    since: int = 0
    counted: tuple[int, ...] = ()
    per_second: tuple[float, ...] = ()

    def close(self, until: int, totals: tuple[int, ...]) -> None:
        """The interval ends at `until` (ms). `totals`: what was counted so far, always in the same order."""
        if totals != self.counted or any(self.per_second):
            self.per_second, self.counted = self.closed(until, totals), totals
        self.since = until

    def closed(self, until: int, totals: tuple[int, ...]) -> tuple[float, ...]:
        """`per_second` as `close` would leave it."""
        seconds = (until - self.since) / 1000
        if seconds <= 0:
            return self.per_second
        counted = self.counted or (0,) * len(totals)
        return tuple([(now - before) / seconds for now, before in zip(totals, counted, strict=True)])

    def named(self, *names: str) -> dict[str, float]:
        """The rates by names, in the order of the totals."""
        return dict(zip(names, self.per_second or (0.0,) * len(names), strict=True))


class ProducerCounters(msgspec.Struct, array_like=True, gc=False):
    """What was acknowledged to a producer: messages, bytes, how many of these messages were chunks, and when the last one came (ms)."""

    rates: Rates
    messages_in: int = 0
    bytes_in: int = 0
    chunks_in: int = 0
    last: int = 0

    def end_interval(self, until: int) -> tuple[float, ...]:
        """Compute and return the rates of the interval that ends at `until` (ms). Empty: zeros."""
        self.rates.close(until, (self.messages_in, self.bytes_in, self.chunks_in))
        return self.rates.per_second

    def next_rates(self, until: int) -> tuple[float, ...]:
        """The rates that `end_interval` would compute."""
        return self.rates.closed(until, (self.messages_in, self.bytes_in, self.chunks_in))


def end_of_interval(now: int, config: ServiceConfiguration) -> int:
    """When the interval ends in which `now` is (ms)."""
    return (_interval(now, config) + 1) * seconds_of_interval(config) * 1000


def seconds_of_interval(config: ServiceConfiguration) -> int:
    """The length of an interval."""
    return max(config.statsUpdateFrequencyInSecs, 1)


def _interval(now: int, config: ServiceConfiguration) -> int:
    return now // (seconds_of_interval(config) * 1000)
