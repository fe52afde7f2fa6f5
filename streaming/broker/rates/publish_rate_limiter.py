"""When a broker stops reading from a producer's connection (mirrors `PublishRateLimiterImpl` of Pulsar 4.0.7).

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


class PublishRateLimiter(msgspec.Struct, array_like=True):
    """The permits of a `rate` (None: no limit), for messages and for bytes. `paused`: the connections that are not read
    `until` a time (ms)."""

    rate: PublishRate | None = None
    messages: TokenBucket | None = None
    bytes: TokenBucket | None = None
    paused: dict[str, None] = msgspec.field(default_factory=dict)
    until: int = -1

    @classmethod
    def of(cls, rate: PublishRate | None, now: int) -> Self:
        """A limiter with all permits at `now` (ms)."""
        limiter = cls(rate)
        if rate is not None and rate.publishThrottlingRateInMsg > 0:
            limiter.messages = TokenBucket.full(rate.publishThrottlingRateInMsg, _PERIOD, now)
        if rate is not None and rate.publishThrottlingRateInByte > 0:
            limiter.bytes = TokenBucket.full(rate.publishThrottlingRateInByte, _PERIOD, now)
        return limiter

    def exceeded(self, messages: int, size: int, now: int) -> bool:
        """Take the permits of a message at `now` (ms). Returns whether none are left."""
        if self.paused and now >= self.until:
            self._resume(now)
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
        wait = PublishRateLimiter(None, messages, size)._wait(now)
        return now + wait if wait else 0

    def _resume(self, now: int) -> None:
        wait = self._wait(now)
        self.until = now + wait
        if not wait:
            self.paused.clear()

    def _wait(self, now: int) -> int:
        buckets = [bucket for bucket in (self.messages, self.bytes) if bucket is not None]
        for bucket in buckets:
            bucket.renew(now)
        return max((bucket.wait(max(bucket.rate // _FILL, 1)) for bucket in buckets), default=0)
