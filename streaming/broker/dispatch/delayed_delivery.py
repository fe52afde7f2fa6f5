"""Delayed delivery: positions that wait for their time (mirrors `InMemoryDelayedDeliveryTracker`; rules:
dispatch_shared.md §7).

The spec rounds delivery times to buckets, as the development line does. A recorded trace (delayed_order) shows that 4.0.7
keeps them as they are: a setting.
"""

from bisect import insort

import msgspec

from streaming.broker.config import ServiceConfiguration
from streaming.broker.position import Position

NO_DELAY = -1


class DelayedDeliveryTracker(msgspec.Struct, array_like=True):
    """`buckets`: time (ms) → ascending positions. The other fields serve `pauses_all` only: `fixed` = every delay so
    far was about the same, `highest` = latest delivery time seen. `timer` = when the timer fires (ms, −1: not set),
    `fired` = when it did last."""

    buckets: dict[int, list[Position]] = {}
    fixed: bool = True
    highest: int = 0
    fired: int = 0
    timer: int = -1

    def __len__(self) -> int:
        return sum(len(positions) for positions in self.buckets.values())

    def add(self, position: Position, deliver_at: int, now: int, config: ServiceConfiguration) -> bool:
        """Keep a position until `deliver_at` (ms). False: it is to be delivered now."""
        tick, strict = config.delayedDeliveryTickTimeMillis, config.isDelayedDeliveryDeliverAtTimeStrict
        if deliver_at < 0 or deliver_at <= (now if strict else now + tick):
            self.fixed = False
            return False
        width = _bucket_width(config)
        bucket = (-(-deliver_at // width) if strict else deliver_at // width) * width
        insort(self.buckets.setdefault(bucket, []), position)
        if deliver_at < self.highest - tick:
            self.fixed = False
        self.highest = max(self.highest, deliver_at)
        return True

    def clear(self) -> None:
        """Forget the positions, but not what is known of the delays."""
        self.buckets.clear()
        self.timer = -1

    def take(self, limit: int, now: int, config: ServiceConfiguration) -> list[Position]:
        """Remove and return up to `limit` due positions, oldest buckets first."""
        horizon = _horizon(now, config)
        taken: list[Position] = []
        for bucket in sorted(self.buckets):
            if bucket > horizon or len(taken) == limit:
                break
            positions = self.buckets[bucket]
            wanted = limit - len(taken)
            taken += positions[:wanted]
            if len(positions) <= wanted:
                del self.buckets[bucket]
            else:
                self.buckets[bucket] = positions[wanted:]
        if taken and not self.buckets:
            self.fixed, self.highest = True, 0
        return taken

    def pauses_all(self, now: int, config: ServiceConfiguration) -> bool:
        """With enough messages of one fixed delay and none due, reading on would only bring more of them."""
        lookahead = config.delayedDeliveryFixedDelayDetectionLookahead
        return (
            lookahead > 0
            and self.fixed
            and len(self) >= lookahead
            and min(self.buckets) > _horizon(now, config)
        )

    def arm(self, now: int, config: ServiceConfiguration) -> None:
        """Set the timer for the first bucket. One in the past needs none: the next dispatch takes it."""
        first = min(self.buckets, default=now)
        self.timer = max(first, self.fired + config.delayedDeliveryTickTimeMillis) if first > now else -1


def _bucket_width(config: ServiceConfiguration) -> int:
    """The largest power of two that is at most the tick; 1 where times are kept as they are."""
    tick = config.delayedDeliveryTickTimeMillis
    return 1 << max(tick, 1).bit_length() - 1 if config.delayedDeliveryRoundsTimes else 1


def _horizon(now: int, config: ServiceConfiguration) -> int:
    """Buckets up to this time are due at `now`."""
    if config.isDelayedDeliveryDeliverAtTimeStrict:
        return now
    return now + config.delayedDeliveryTickTimeMillis - _bucket_width(config) + 1
