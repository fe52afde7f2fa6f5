"""Where an engine's time comes from. All times are ms since the epoch."""

import time
from typing import Literal, Protocol

from streaming.broker.next_effect import NEVER

Mode = Literal["held", "real", "skip"]
QUIET_SECONDS = 0.05


class Clock(Protocol):
    """The time that commands carry."""

    def now(self) -> int:
        """The time. It never goes back."""
        ...

    def seconds_until(self, due: int) -> float | None:
        """How long to wait until the clock shows `due`. None: it does not get there by itself."""
        ...

    def arrive(self, due: int) -> None:
        """The time of waiting for `due` is over."""
        ...


class RealClock:
    """The machine's clock. While that is set back, it stands still."""

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> int:
        """The time. It never goes back."""
        self._last = max(self._last, _machine_time())
        return self._last

    def seconds_until(self, due: int) -> float | None:
        """How long to wait until the clock shows `due`."""
        return max(0, due - self.now()) / 1000

    def arrive(self, due: int) -> None:
        """The time of waiting for `due` is over."""


class HeldClock:
    """A clock that a test holds: it stands still until it is moved.

    `mode` makes it go by itself. ``real``: it runs as the machine's clock does, from the time that it shows. ``skip``: whenever
    nothing has happened for `QUIET_SECONDS`, it jumps to the next time at which something is due.
    """

    def __init__(self, start: int) -> None:
        self._now = start
        self._mode: Mode = "held"
        self._ahead = 0

    @property
    def mode(self) -> Mode:
        """How the clock goes."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._now, self._mode = self.now(), mode
        self._ahead = self._now - _machine_time()

    @property
    def ahead(self) -> int:
        """How far the clock is ahead of the machine's (ms; negative: behind)."""
        return self.now() - _machine_time()

    def now(self) -> int:
        """The time."""
        if self._mode == "real":
            self._now = max(self._now, _machine_time() + self._ahead)
        return self._now

    def seconds_until(self, due: int) -> float | None:
        """How long to wait until `due`. None: until the clock is moved."""
        if self._mode == "skip" and due < NEVER:
            return QUIET_SECONDS
        if self._mode == "real":
            return max(0, due - self.now()) / 1000
        return 0.0 if due <= self._now else None

    def arrive(self, due: int) -> None:
        """The time of waiting for `due` is over."""
        if self._mode == "skip":
            self.move_to(due)

    def move_to(self, time: int) -> None:
        """Set the clock. It stays where it is if `time` has passed."""
        self._now = max(self.now(), time)
        self._ahead = self._now - _machine_time()

    def set_back(self, time: int) -> None:
        """Set the clock to any time, because the broker goes back to what it was then."""
        self._now = time
        self._ahead = time - _machine_time()


def _machine_time() -> int:
    return time.time_ns() // 1_000_000
