"""When a broker stops reading from a producer's connection (mirrors `PublishRateLimiterImpl` of Pulsar 4.0.7, and that of 3.0.7 with its
`PrecisePublishLimiter`; docs/rules/producers.md §16).

The commands of a log have been read already, so a limit delays and refuses nothing here. A server holds back what it has not
carried out yet, see `Broker.watch_throttled`.
"""

from typing import Self

import msgspec
from msgspec.structs import replace

from streaming.broker.policies.hierarchy import PublishRate
from streaming.broker.rates.token_bucket import TokenBucket

_PERIOD = 1000
_FILL = 100
"""A connection is read again once there is a permit, and at least this fraction of all."""


class PublishWindow(msgspec.Struct, array_like=True, gc=False):
    """What was published in a second (before 4.0).

    `tick`: how often the broker looks at it (ms); 0: with each message, which is the precise limiter. `begin`: of the second (ms); −1: it begins with a
    message. `over`: when more was published than the rate allows (ms), −1: it was not, or the limiter is precise.
    """

    tick: int
    begin: int
    messages: int = 0
    size: int = 0
    over: int = -1

    @classmethod
    def of(cls, tick: int, now: int) -> Self:
        """A second that begins at `now` (ms), or with the next message."""
        return cls(tick, now if tick else -1)

    def exceeded(self, rate: PublishRate, messages: int, size: int, now: int) -> bool:
        """Count a message at `now` (ms). Returns whether its connection is to be read no more."""
        self.renew(rate, now)
        self.messages += messages
        most, most_bytes = rate.publishThrottlingRateInMsg, rate.publishThrottlingRateInByte
        if not self.tick:
            if 0 < most <= self.messages:
                return True  # quirk: its bytes do not count then
            self.size += size
            return 0 < most_bytes <= self.size
        self.size += size
        noticed = self.over >= 0 and self._looks(now) > self._looks(self.over)
        if self.over < 0 and (0 < most < self.messages or 0 < most_bytes < self.size):
            self.over = now
        return noticed

    def _looks(self, at: int) -> int:
        return (at - self.begin) // self.tick

    def renew(self, rate: PublishRate, now: int) -> None:
        """Begin the second that `now` (ms) is in. What was too much for the precise limiter counts in the next one, too."""
        if self.begin < 0:
            self.begin = now
        passed = (now - self.begin) // _PERIOD
        if passed:
            self.begin += passed * _PERIOD
            most, most_bytes = rate.publishThrottlingRateInMsg, rate.publishThrottlingRateInByte
            self.messages = 0 if self.tick else max(self.messages - passed * most, 0)
            self.size = 0 if self.tick else max(self.size - passed * most_bytes, 0)
            self.over = -1

    def wait(self, rate: PublishRate, now: int) -> int:
        """How long a connection is not read (ms). 0: it is."""
        self.renew(rate, now)
        if self.tick:
            seconds = int(self.over >= 0)
        else:
            counts = (
                (self.messages, rate.publishThrottlingRateInMsg),
                (self.size, rate.publishThrottlingRateInByte),
            )
            seconds = max(count // most for count, most in counts if most > 0)
        return max(self.begin + seconds * _PERIOD - now, 0)


class PublishRateLimiter(msgspec.Struct, array_like=True):
    """The permits of a `rate` (None: no limit), for messages and for bytes, or before 4.0 a `window`. `paused`: the connections that are not
    read `until` a time (ms)."""

    rate: PublishRate | None = None
    messages: TokenBucket | None = None
    bytes: TokenBucket | None = None
    paused: dict[str, None] = msgspec.field(default_factory=dict)
    until: int = -1
    window: PublishWindow | None = None

    @classmethod
    def of(cls, rate: PublishRate | None, now: int, tick: int | None = None) -> Self:
        """A limiter with all permits at `now` (ms). `tick`: that of a `PublishWindow`, None: it is a bucket."""
        limiter = cls(rate)
        if tick is not None:
            limiter.window = None if rate is None else PublishWindow.of(tick, now)
            return limiter
        if rate is not None and rate.publishThrottlingRateInMsg > 0:
            limiter.messages = TokenBucket.full(rate.publishThrottlingRateInMsg, _PERIOD, now)
        if rate is not None and rate.publishThrottlingRateInByte > 0:
            limiter.bytes = TokenBucket.full(rate.publishThrottlingRateInByte, _PERIOD, now)
        return limiter

    def exceeded(self, messages: int, size: int, now: int) -> bool:
        """Take the permits of a message at `now` (ms). Returns whether none are left."""
        if self.paused and now >= self.until:
            self._resume(now)
        if self.window is not None and self.rate is not None:
            return self.window.exceeded(self.rate, max(messages, 0), size, now)
        used = [(self.messages, max(messages, 0)), (self.bytes, size)]
        for bucket, tokens in used:
            if bucket is not None:
                bucket.renew(now)
                bucket.use(tokens)
        return any(bucket is not None and bucket.tokens <= 0 for bucket, _ in used)

    def pause(self, connection: str, now: int) -> None:
        """Stop reading from a connection at `now` (ms)."""
        if not self.paused:
            self.until = now + self._wait(now)
        self.paused[connection] = None

    def paused_until(self, connection: str, now: int) -> int:
        """Until when (ms) a connection is not read, as it looks at `now`. 0: it is read. Changes nothing."""
        if connection not in self.paused:
            return 0
        if now < self.until:
            return self.until
        messages, size = (None if each is None else replace(each) for each in (self.messages, self.bytes))
        window = None if self.window is None else replace(self.window)
        wait = PublishRateLimiter(self.rate, messages, size, window=window)._wait(now)
        return now + wait if wait else 0

    def _resume(self, now: int) -> None:
        wait = self._wait(now)
        self.until = now + wait
        if not wait:
            self.paused.clear()

    def _wait(self, now: int) -> int:
        if self.window is not None and self.rate is not None:
            return self.window.wait(self.rate, now)
        buckets = [bucket for bucket in (self.messages, self.bytes) if bucket is not None]
        for bucket in buckets:
            bucket.renew(now)
        return max((bucket.wait(max(bucket.rate // _FILL, 1)) for bucket in buckets), default=0)
