"""Delayed delivery: positions that wait for their delivery time (mirrors `InMemoryDelayedDeliveryTracker`; rules:
docs/rules/shared.md §9, §10).

Versions after 4.0 round delivery times to buckets. A recorded trace (delayed_order) shows that 4.0.7 keeps exact times.
The setting `delayedDeliveryRoundsTimes` selects one of the two.
"""

from sys import maxsize

import msgspec

from schemas.units import LATEST_TIME
from streaming.broker.config import ServiceConfiguration
from streaming.broker.dispatch.sorted_blocks import TimedPositions
from streaming.broker.position import Position


class DelayedDeliveryTracker(msgspec.Struct, array_like=True):
    """`waiting` = positions by bucket, which is a time (ms). `timer` = when the timer fires (ms; −1 if not set), `fired` =
    when it last fired (ms).

    `tick` = the precision of delivery times that a policy of the topic or its namespace sets (ms); None: that of the broker.
    quirk: a new policy counts from the next message that is read or released on (`resetTickTime`).

    Only `pauses_all` uses the other fields: `fixed` = all delays so far were about equal, `highest` = the latest
    delivery time seen (ms).
    """

    waiting: TimedPositions = msgspec.field(default_factory=TimedPositions)
    fixed: bool = True
    highest: int = 0
    fired: int = 0
    timer: int = -1
    tick: int | None = None

    def __len__(self) -> int:
        return len(self.waiting)

    def add(
        self,
        position: Position,
        deliver_at: int | None,
        now: int,
        config: ServiceConfiguration,
        policy: int | None = None,
    ) -> bool:
        """Keep a position until `deliver_at` (ms). Returns False if it should be delivered now. `policy`: the `tick` from
        now on."""
        self.tick = policy
        if deliver_at is None or deliver_at < 0:
            self.fixed = False
            return False
        deliver_at = min(deliver_at, LATEST_TIME)  # it waits for ever
        tick, strict = self._tick(config), config.isDelayedDeliveryDeliverAtTimeStrict
        if deliver_at <= (now if strict else now + tick):
            self.fixed = False
            return False
        width = self._bucket_width(config)
        bucket = (-(-deliver_at // width) if strict else deliver_at // width) * width
        self.waiting.add((bucket, *position))
        if deliver_at < self.highest - tick:
            self.fixed = False
        self.highest = max(self.highest, deliver_at)
        return True

    def clear(self) -> None:
        """Forget the positions, but keep what detects a fixed delay."""
        self.waiting.clear()
        self.timer = -1

    def take(
        self, limit: int, now: int, config: ServiceConfiguration, policy: int | None = None
    ) -> list[Position]:
        """Remove and return up to `limit` due positions, oldest buckets first. If there are any, `policy` is the `tick`
        from now on."""
        first = self.first
        if first is None or first > self._horizon(now, config):
            return []
        self.tick = policy
        taken = self.waiting.take_to((self._horizon(now, config), maxsize, maxsize), limit)
        if taken and not self.waiting:
            self.fixed, self.highest = True, 0
        return [Position(ledger, entry) for _, ledger, entry in taken]

    @property
    def first(self) -> int | None:
        """The earliest bucket (ms), or None if nothing waits."""
        return self.waiting.first(1)[0][0] if self.waiting else None

    def pauses_all(self, now: int, config: ServiceConfiguration) -> bool:
        """Whether to stop reading: many messages have one fixed delay and none is due, so reads would only add more."""
        lookahead = config.delayedDeliveryFixedDelayDetectionLookahead
        if lookahead <= 0 or not self.fixed or len(self.waiting) < lookahead:
            return False
        first = self.first
        return first is not None and first > self._horizon(now, config)

    def arm(self, now: int, config: ServiceConfiguration) -> None:
        """Set the timer for the first bucket, unless that bucket is past: the next dispatch takes it anyway."""
        first = self.first if self.waiting.length else None
        self.timer = -1 if first is None or first <= now else max(first, self.fired + self._tick(config))

    def _tick(self, config: ServiceConfiguration) -> int:
        return config.delayedDeliveryTickTimeMillis if self.tick is None else self.tick

    def _bucket_width(self, config: ServiceConfiguration) -> int:
        """The width of a bucket (ms): the largest power of two up to the tick, or 1 if times are exact."""
        return 1 << max(self._tick(config), 1).bit_length() - 1 if config.delayedDeliveryRoundsTimes else 1

    def _horizon(self, now: int, config: ServiceConfiguration) -> int:
        """The latest bucket (ms) that is due at `now`."""
        if config.isDelayedDeliveryDeliverAtTimeStrict:
            return now
        return now + self._tick(config) - self._bucket_width(config) + 1
