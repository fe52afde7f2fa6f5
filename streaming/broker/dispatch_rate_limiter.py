"""How many messages and bytes dispatchers may read (mirrors `DispatchRateLimiterAsyncTokenBucketImpl` of Pulsar 4.0.7).

A limiter limits the dispatchers of the partition, of a topic, or of a subscription. A dispatcher that finds no permits
looks again every second. Here it looks again when there are some, so that the wait costs nothing.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from streaming.broker.policies.hierarchy import DispatchRate
from streaming.broker.token_bucket import TokenBucket

BACKOFF = 1000
"""How long a dispatcher without permits waits (ms): MESSAGE_RATE_BACKOFF_MS."""


class DispatchRateLimiter(msgspec.Struct, array_like=True, gc=False):
    """The permits of a `rate`, for messages and for bytes. None: that is not limited."""

    rate: DispatchRate
    messages: TokenBucket | None = None
    bytes: TokenBucket | None = None

    @classmethod
    def of(cls, rate: DispatchRate, now: int, published: tuple[int, int] = (0, 0)) -> "DispatchRateLimiter":
        """A limiter with all permits at `now` (ms). `published`: see `follow`."""
        limiter = cls(rate)
        period = max(rate.ratePeriodInSecond, 1) * 1000
        messages, size = _rates(rate, published)
        if rate.dispatchThrottlingRateInMsg > 0:
            limiter.messages = TokenBucket.full(messages, period, now)
        if rate.dispatchThrottlingRateInByte > 0:
            limiter.bytes = TokenBucket.full(size, period, now)
        return limiter

    def follow(self, published: tuple[int, int]) -> None:
        """A rate that is relative to the publish rate: messages and bytes `published` per second now."""
        messages, size = _rates(self.rate, published)
        if self.messages is not None:
            self.messages.rate = messages
        if self.bytes is not None:
            self.bytes.rate = size

    @property
    def buckets(self) -> list[TokenBucket]:
        """The buckets of what is limited."""
        return [bucket for bucket in (self.messages, self.bytes) if bucket is not None]

    @property
    def is_empty(self) -> bool:
        """Whether there were no permits when some were last used or added."""
        return any(bucket.tokens <= 0 for bucket in self.buckets)

    def renew(self, now: int, tick: int | None) -> None:
        """Add permits. `tick`: when a dispatcher that waits for them looks next (ms), or None."""
        for bucket in self.buckets:
            bucket.renew_each_period(now, tick, BACKOFF)

    def due(self, tick: int) -> int:
        """When one who looks at `tick` (ms) and every second before and after finds permits (ms)."""
        return max(bucket.due_each_period(tick, BACKOFF) for bucket in self.buckets)

    def use(self, messages: int, size: int) -> None:
        """Take the permits of messages that were sent."""
        if self.messages is not None:
            self.messages.use(messages)
        if self.bytes is not None:
            self.bytes.use(size)


def _rates(rate: DispatchRate, published: tuple[int, int]) -> tuple[int, int]:
    messages, size = published if rate.relativeToPublishRate else (0, 0)
    return rate.dispatchThrottlingRateInMsg + messages, rate.dispatchThrottlingRateInByte + size


class ReadThrottle(msgspec.Struct, array_like=True, gc=False):
    """A subscription's own `limiter`, and when its dispatcher looks for permits again (`retry_at`, ms; −1: it does not
    wait for any)."""

    limiter: DispatchRateLimiter | None = None
    retry_at: int = -1

    def next_tick(self, now: int) -> None:
        """Look again with the next second, since something changed at `now` (ms)."""
        if self.retry_at > now:
            self.retry_at = now + 1 + (self.retry_at - now - 1) % BACKOFF


class Permits(NamedTuple):
    """How much a read may return. `bytes`: by the average size of entries."""

    entries: int
    bytes: int


def permits(
    limiters: Sequence[DispatchRateLimiter], throttle: ReadThrottle, wanted: Permits, now: int
) -> Permits | None:
    """How much of what is `wanted` a dispatcher may read now. None: nothing, until `throttle.retry_at`.

    `limiters`: those of the broker, the topic and the subscription that exist, in that order.
    """
    tick = throttle.retry_at if throttle.retry_at >= 0 else None
    entries, size = wanted
    for limiter in limiters:
        was_empty = limiter.is_empty
        limiter.renew(now, tick)
        if was_empty:
            tick = None  # until now, nobody looked at the limiters behind it
        if limiter.is_empty:
            throttle.retry_at = limiter.due(throttle.retry_at if throttle.retry_at >= 0 else now)
            return None
        entries = min([entries, *_tokens(limiter.messages)])
        size = min([size, *_tokens(limiter.bytes)])
    if throttle.retry_at <= now:
        throttle.retry_at = -1
    else:
        throttle.next_tick(now)
    return Permits(entries, size)


def _tokens(bucket: TokenBucket | None) -> Iterable[int]:
    return () if bucket is None else (bucket.tokens,)
