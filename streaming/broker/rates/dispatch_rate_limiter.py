"""How many messages and bytes dispatchers may read (mirrors `DispatchRateLimiterAsyncTokenBucketImpl` of Pulsar 4.0.7, and
`DispatchRateLimiterClassicImpl`, which is the only one before).

A limiter limits the dispatchers of the partition, of a topic, or of a subscription. A dispatcher that finds no permits
looks again every second. Here it looks again when there are some, so that the wait costs nothing. Of many that wait for the same
permits, the first one to look takes them, so the others need not look.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from streaming.broker.policies.hierarchy import DispatchRate
from streaming.broker.rates.token_bucket import TokenBucket

BACKOFF = 1000
"""How long a dispatcher without permits waits (ms): MESSAGE_RATE_BACKOFF_MS."""


Waiting = tuple[str, str]
"""A dispatcher that waits for permits: its topic and its subscription."""


class DispatchRateLimiter(msgspec.Struct, array_like=True, gc=False):
    """The permits of a `rate`, for messages and for bytes. None: that is not limited.

    `waiting`: the dispatchers that wait for permits that they share, by the millisecond of the second at which they look, those of the
    same one in the order in which they began. `looked`: when one of them looked last (ms).

    `windows`: it is the classic one. Permits come when a window of the period begins. The first window begins when permits are first used
    (`TokenBucket.last` is −1 before), or when a policy changes, which gives no permits. `following`: the messages and bytes of the next
    window.
    """

    rate: DispatchRate
    messages: TokenBucket | None = None
    bytes: TokenBucket | None = None
    waiting: dict[int, dict[Waiting, None]] = msgspec.field(default_factory=dict)
    looked: int = 0
    windows: bool = False
    following: tuple[int, int] = (0, 0)

    @classmethod
    def of(
        cls, rate: DispatchRate, now: int, published: tuple[int, int] = (0, 0), *, windows: bool = False
    ) -> "DispatchRateLimiter":
        """A limiter with all permits at `now` (ms). `published`: see `follow`."""
        limiter = cls(rate, windows=windows)
        if windows:
            limiter.change(rate, now)
            return limiter
        period = _period(rate)
        messages, size = _rates(rate, published)
        if rate.dispatchThrottlingRateInMsg > 0:
            limiter.messages = TokenBucket.full(messages, period, now)
        if rate.dispatchThrottlingRateInByte > 0:
            limiter.bytes = TokenBucket.full(size, period, now)
        return limiter

    def change(self, rate: DispatchRate, now: int) -> None:
        """A policy changed at `now` (ms), and the rate may be another one: new windows begin. What had no limit before has all permits."""
        self.renew(now, None)
        self.rate, self.following, period = rate, _rates(rate, (0, 0)), _period(rate)
        self.messages, self.bytes = (
            _window(bucket, most, period, now)
            for bucket, most in zip((self.messages, self.bytes), self.following, strict=True)
        )

    def follow(self, published: tuple[int, int], now: int) -> None:
        """A rate that is relative to the publish rate: messages and bytes `published` per second at `now` (ms)."""
        messages, size = _rates(self.rate, published)
        if self.windows:
            self.renew(now, None)
            self.following = messages, size
            return
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
        if self.windows:
            for bucket, following in self._windows():
                bucket.renew_windows(now, following)
            return
        for bucket in self.buckets:
            bucket.renew_each_period(now, tick, BACKOFF)

    def due(self, tick: int) -> int:
        """When one who looks at `tick` (ms) and every second before and after finds permits (ms)."""
        if self.windows:
            begins = self._begins()
            return begins + (tick - begins) % BACKOFF
        return max(bucket.due_each_period(tick, BACKOFF) for bucket in self.buckets)

    def _windows(self) -> list[tuple[TokenBucket, int]]:
        """What is limited, and how much of it the next window has."""
        both = zip((self.messages, self.bytes), self.following, strict=True)
        return [(bucket, following) for bucket, following in both if bucket is not None]

    def _begins(self) -> int:
        """When there are permits of everything (ms)."""
        return max(bucket.next_window(following) for bucket, following in self._windows())

    def enter(self, dispatcher: Waiting, tick: int) -> None:
        """A dispatcher waits, which looks at `tick` (ms) and every second after. One that waits already keeps its place."""
        self.waiting.setdefault(tick % BACKOFF, {})[dispatcher] = None

    def leave(self, dispatcher: Waiting, tick: int) -> None:
        """A dispatcher waits no longer, if it did."""
        moment = tick % BACKOFF
        if dispatcher in (looking := self.waiting.get(moment, {})):
            del looking[dispatcher]
            if not looking:
                del self.waiting[moment]

    def forget(self, topic: str) -> None:
        """The dispatchers of a topic wait no longer."""
        for moment, looking in list(self.waiting.items()):
            for dispatcher in [each for each in looking if each[0] == topic]:
                self.leave(dispatcher, moment)

    def first_look(self) -> tuple[int, Waiting] | None:
        """When a waiting dispatcher next finds permits (ms), and which. Whoever looks first after a period is over adds the permits
        and takes them."""
        if not self.waiting:
            return None
        empty = self.is_empty
        since = self.looked
        if empty:
            since = (
                self._begins()
                if self.windows
                else max(bucket.last + bucket.period for bucket in self.buckets)
            )
        look = since + min([(moment - since) % BACKOFF for moment in self.waiting])
        return self.due(look) if empty else look, next(iter(self.waiting[look % BACKOFF]))

    def use(self, messages: int, size: int, now: int) -> None:
        """Take the permits of messages that were sent at `now` (ms)."""
        if self.windows:
            self.renew(now, None)
            for bucket in self.buckets:
                bucket.last = bucket.last if bucket.last >= 0 else now
        if self.messages is not None:
            self.messages.use(messages)
        if self.bytes is not None:
            self.bytes.use(size)


def _period(rate: DispatchRate) -> int:
    """The period of a rate (ms)."""
    return max(rate.ratePeriodInSecond, 1) * 1000


def _window(bucket: TokenBucket | None, most: int, period: int, now: int) -> TokenBucket | None:
    """What a change of a policy makes of a bucket."""
    if most <= 0:
        return None
    if bucket is None:
        return TokenBucket(most, period, -1, most)
    bucket.restart(most, period, now)
    return bucket


def _rates(rate: DispatchRate, published: tuple[int, int]) -> tuple[int, int]:
    messages, size = published if rate.relativeToPublishRate else (0, 0)
    return rate.dispatchThrottlingRateInMsg + messages, rate.dispatchThrottlingRateInByte + size


class ReadThrottle(msgspec.Struct, array_like=True, gc=False):
    """A subscription's own `limiter`, and when its dispatcher looks for permits again (`retry_at`, ms; −1: it does not
    wait for any).

    `queued`: it waits for permits of a shared limiter, whose `first_look` tells when it is its turn. It looks at `caught_up_at`
    in any case (ms; −1: never), since nothing may limit it any more.
    """

    limiter: DispatchRateLimiter | None = None
    retry_at: int = -1
    queued: bool = False
    caught_up_at: int = -1

    @property
    def due(self) -> int:
        """When the dispatcher looks even if it isn't its turn (ms), or −1."""
        return self.caught_up_at if self.queued else self.retry_at

    def waits(self, now: int) -> bool:
        """Whether the dispatcher looks for permits later than now (ms)."""
        return self.queued or self.retry_at > now

    def next_tick(self, now: int) -> None:
        """Look again with the next second, since something changed at `now` (ms)."""
        if self.waits(now):
            self.retry_at = now + 1 + (self.retry_at - now - 1) % BACKOFF


class Permits(NamedTuple):
    """How much a read may return. `bytes`: by the average size of entries."""

    entries: int
    bytes: int


def permits(
    limiters: Sequence[DispatchRateLimiter],
    throttle: ReadThrottle,
    dispatcher: Waiting,
    wanted: Permits,
    now: int,
) -> Permits | None:
    """How much of what is `wanted` a `dispatcher` may read now. None: nothing, until `throttle.retry_at` or its turn.

    `limiters`: those of the broker, the topic and the subscription that exist, in that order.
    """
    if throttle.retry_at <= now:
        throttle.next_tick(now)
    tick = throttle.retry_at if throttle.retry_at >= 0 else None
    entries, size = wanted
    for limiter in limiters:
        was_empty = limiter.is_empty
        if (first := limiter.first_look()) is not None:
            limiter.looked = now
        limiter.renew(now, tick if first is None else first[0])
        if was_empty:
            tick = None  # until now, nobody looked at the limiters behind it
        if limiter.is_empty:
            _wait(limiters, limiter, throttle, dispatcher, now)
            return None
        entries = min([entries, *_tokens(limiter.messages)])
        size = min([size, *_tokens(limiter.bytes)])
    if throttle.waits(now):
        throttle.next_tick(now)
    else:
        throttle.retry_at = -1
    return Permits(entries, size)


def _wait(
    limiters: Sequence[DispatchRateLimiter],
    empty: DispatchRateLimiter,
    throttle: ReadThrottle,
    dispatcher: Waiting,
    now: int,
) -> None:
    tick = throttle.retry_at if throttle.retry_at >= 0 else now
    throttle.retry_at, throttle.caught_up_at = empty.due(tick), -1
    throttle.queued = empty is not throttle.limiter
    for limiter in limiters:
        if limiter is empty and throttle.queued:
            limiter.enter(dispatcher, tick)
        else:
            limiter.leave(dispatcher, tick)


def _tokens(bucket: TokenBucket | None) -> Iterable[int]:
    return () if bucket is None else (bucket.tokens,)
