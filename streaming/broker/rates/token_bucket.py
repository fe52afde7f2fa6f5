"""Permits that renew with the clock (mirrors `AsyncTokenBucket` of Pulsar 4.0.7)."""

import msgspec

_NANOS = 1_000_000
"""Nanoseconds in a millisecond."""

RESOLUTION = 16
"""How often a bucket adds tokens, at most, unless its user says otherwise (ms)."""


class TokenBucket(msgspec.Struct, array_like=True, gc=False):
    """`rate` tokens per `period` (ms), and no more than `rate` at once. `tokens` may be negative: what was used counts, even
    if there were fewer. `last` = when tokens were last added (ms), `remainder` = time since then that was too short for
    another one (ns).

    Pulsar's clock counts nanoseconds, and nothing happens exactly a period after something else, so that a comparison
    with `>` is as good as `≥`. In virtual time it must be `≥`.
    """

    rate: int
    period: int
    last: int
    tokens: int
    remainder: int = 0

    @classmethod
    def full(cls, rate: int, period: int, now: int) -> "TokenBucket":
        """A bucket that is filled at `now` (ms). `rate` must be positive."""
        return cls(rate, period, now, rate)

    def renew(self, now: int, resolution: int = RESOLUTION) -> int:
        """Add the tokens that are due at `now` (ms), not more often than every `resolution` ms. Returns the tokens."""
        elapsed = (now - self.last) * _NANOS
        one = self.period * _NANOS // self.rate
        if elapsed >= (one - self.remainder if one > resolution * _NANOS else resolution * _NANOS):
            self._add(now)
        return self.tokens

    def _add(self, now: int) -> None:
        elapsed, period = (now - self.last) * _NANOS + self.remainder, self.period * _NANOS
        added = elapsed * self.rate // period
        self.remainder = elapsed - added * period // self.rate
        self.tokens = min(self.tokens + added, self.rate)
        self.last = now

    def use(self, tokens: int) -> None:
        """Take tokens, whether there are so many or not."""
        self.tokens -= tokens

    def wait(self, tokens: int) -> int:
        """How long it takes until there are so many tokens, if they are renewed all the time (ms)."""
        return max(-(-(tokens - self.tokens) * self.period // self.rate), 0)

    # -- tokens once per period, for those that look every so often -----------------------------------------------

    def renew_each_period(self, now: int, tick: int | None, interval: int) -> int:
        """Add the tokens of whole periods, as someone does who looks now and looked every `interval` ms before.

        `tick`: any of the times at which they looked or will look (ms), None if they look now only. Without a loop over
        the periods. Returns the tokens.
        """
        if tick is not None and (first := self._first_look(tick, interval)) <= now:
            self._add(first + (now - first) // self.period * self.period)
        if now - self.last >= self.period:
            self._add(now)
        return self.tokens

    def due_each_period(self, tick: int, interval: int) -> int:
        """When one who looks at `tick` (ms) and every `interval` ms before and after it, and at no other time, finds a
        token (ms)."""
        first = self._first_look(tick, interval)
        period = self.period * _NANOS
        missing = -((self.tokens - 1) * period // self.rate) - self.remainder - (first - self.last) * _NANOS
        return first + max(-(-missing // period), 0) * self.period

    # -- windows that begin with the first use ----------------------------------------------------------------------------

    def renew_windows(self, now: int, following: int) -> None:
        """Add the tokens of the windows of a period that have begun by `now` (ms), whether or not anybody looks (mirrors `RateLimiter`,
        which Pulsar used before 4.0). The next ones have `following` tokens."""
        windows = (now - self.last) // self.period
        if self.last < 0 or windows <= 0:
            return
        over = max(max(-self.tokens, 0) - (windows - 1) * following, 0)
        self.rate, self.tokens = following, following - over
        self.last += windows * self.period

    def next_window(self, following: int) -> int:
        """When a window begins in which there are tokens (ms)."""
        return self.last if self.tokens > 0 else self.last + (-self.tokens // following + 1) * self.period

    def restart(self, rate: int, period: int, now: int) -> None:
        """A window with another rate or period begins at `now` (ms). What was used of the last one still counts."""
        self.tokens += rate - self.rate
        self.rate, self.period, self.last = rate, period, now

    def _first_look(self, tick: int, interval: int) -> int:
        """The first look at which a period is over. The period must be a multiple of the interval."""
        due = self.last + self.period
        return due + (tick - due) % interval
