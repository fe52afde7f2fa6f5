"""When a client of Pulsar tries again."""

import random

INITIAL_BACKOFF, LONGEST_BACKOFF = 100, 60_000
"""The Java client's `initialBackoffIntervalNanos` and `maxBackoffIntervalNanos`, in ms."""


class Backoff:
    """When a client tries again (mirrors the Java client's `Backoff`): the interval doubles, and is shortened by up to a tenth.
    The attempt that would come after `stop` ms from the first one comes then instead, once; 0: no such attempt. `refused_at`: see
    `MadeLog.attempt`."""

    def __init__(self, dice: random.Random, stop: int) -> None:
        self._dice, self._stop = dice, stop
        self.refused_at: tuple[int, int] | None = None
        self.reset()

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next, self._first, self._stopped = INITIAL_BACKOFF, 0, self._stop <= 0

    @property
    def is_longest(self) -> bool:
        """The interval does not grow any more."""
        return self._next == LONGEST_BACKOFF

    def rest(self) -> int:
        """How much (ms) of the interval is left at a moment that has nothing to do with the attempts."""
        return max(INITIAL_BACKOFF, self._dice.randrange(self._next))

    def delay(self, now: int) -> int:
        """How long (ms) to wait from now."""
        delay = self._next
        if delay == INITIAL_BACKOFF:
            self._first = now
        self._next = min(2 * delay, LONGEST_BACKOFF)
        if not self._stopped and now - self._first + delay > self._stop:
            delay = max(INITIAL_BACKOFF, self._stop - (now - self._first))
            self._stopped = True
        return max(INITIAL_BACKOFF, delay - self._dice.randrange(delay // 10))
