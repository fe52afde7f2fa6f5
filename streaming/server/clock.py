"""Where an engine's time comes from. All times are ms since the epoch."""

import time
from typing import Protocol


class Clock(Protocol):
    """The time that commands carry."""

    def now(self) -> int:
        """The time. It never goes back."""
        ...

    def seconds_until(self, due: int) -> float | None:
        """How long to wait until the clock shows `due`. None: it does not get there by itself."""
        ...


class RealClock:
    """The machine's clock. While that is set back, it stands still."""

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> int:
        """The time. It never goes back."""
        self._last = max(self._last, time.time_ns() // 1_000_000)
        return self._last

    def seconds_until(self, due: int) -> float | None:
        """How long to wait until the clock shows `due`."""
        return max(0, due - self.now()) / 1000


class HeldClock:
    """A clock that moves only when it is told to."""

    def __init__(self, start: int) -> None:
        self._now = start

    def now(self) -> int:
        """The time."""
        return self._now

    def seconds_until(self, due: int) -> float | None:
        """0 if the time has come, else None."""
        return 0.0 if due <= self._now else None

    def move_to(self, time: int) -> None:
        """Set the clock. It stays where it is if `time` has passed."""
        self._now = max(self._now, time)
