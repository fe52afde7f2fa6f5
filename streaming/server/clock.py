"""Where an engine's time comes from. All times are ms since the epoch."""

import logging
import time
from collections.abc import Callable
from typing import Literal, Protocol

from streaming.broker.next_effect import NEVER

Mode = Literal["held", "real", "skip"]
QUIET_SECONDS = 0.05

MAX_AHEAD_MS = 3_600_000
"""So far, or farther, a clock may not jump ahead: as far as records of a query."""

_MS = 1_000_000
_WORTH_SAYING_MS = 60_000

log = logging.getLogger(__name__)


def _running() -> int:
    """Time since some start (ns), sleep of the machine included where it is known."""
    return (
        time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns()
    )


class Clock(Protocol):
    """The time that commands carry."""

    @property
    def machine_ahead(self) -> int:
        """How far the machine's clock is ahead of this one (ms), if it should not be; negative: it is behind."""
        ...

    @property
    def trouble(self) -> str | None:
        """What is to be said of that; None: nothing."""
        ...

    def go_on(self, time: int) -> None:
        """Data has this time (ms) already."""
        ...

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
    """The machine's clock, as far as it can be believed.

    Between two readings, so much time passes as on the clock that counts since the machine's start, which nobody sets. If the machine's
    clock is `max_ahead` ms or more ahead of that, it is not followed until it comes back. If it is set back, time goes on
    at half the speed until the clock is there: what time brings is data, so time can't go back, and it never stands still.
    """

    def __init__(
        self,
        max_ahead: int | None = MAX_AHEAD_MS,
        *,
        machine: Callable[[], int] = time.time_ns,
        running: Callable[[], int] = _running,
    ) -> None:
        """`max_ahead`: None follows the machine's clock wherever it goes. `machine` and `running` give the two clocks' times (ns)."""
        self._max_ahead = None if max_ahead is None else max_ahead * _MS
        self._machine, self._running = machine, running
        self._now, self._at = machine(), running()
        self._believed = self._now  # what the machine's clock would show if nobody had set it back
        self._said = False
        self.machine_ahead = 0
        """At the last reading, see `Clock`."""

    def now(self) -> int:
        """The time. It never goes back."""
        machine, at = self._machine(), self._running()
        passed, self._at = max(0, at - self._at), at
        self._believed += passed
        if self._max_ahead is not None and machine - self._believed >= self._max_ahead:
            self._now += passed
        else:
            self._believed = max(machine, self._believed)
            self._now = max(machine, self._now + passed // 2)
        self.machine_ahead = (machine - self._now) // _MS
        self._say()
        return self._now // _MS

    def _say(self) -> None:
        """Say it once if the machine's clock is not followed, and once when it is again."""
        if abs(self.machine_ahead) < _WORTH_SAYING_MS:
            if self._said and self.machine_ahead == 0:
                log.warning("the machine's clock is followed again")
                self._said = False
        elif not self._said:
            self._said = True
            log.warning("%s", self.trouble)

    @property
    def trouble(self) -> str | None:
        """See `Clock`."""
        shown = f"{abs(self.machine_ahead) / 1000:,.0f} s"
        if self.machine_ahead >= _WORTH_SAYING_MS:
            return (
                f"the machine's clock is {shown} ahead of the broker's time, more than --max-ahead, and is not followed: set it "
                "right; if it is right, start the server again"
            )
        if self.machine_ahead <= -_WORTH_SAYING_MS:
            return f"the machine's clock is {shown} behind the broker's time, which goes on at half the speed until it is there"
        return None

    def go_on(self, time: int) -> None:
        """Data has this time (ms) already: go on with it, if it is later than now."""
        self._now = max(self._now, time * _MS)

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

    def __init__(self, start: int, machine: RealClock | None = None) -> None:
        """`machine`: what runs with the mode ``real``."""
        self._now = start
        self._mode: Mode = "held"
        self._ahead = 0
        self._machine = machine or RealClock()

    @property
    def machine_ahead(self) -> int:
        """See `Clock`."""
        return self._machine.machine_ahead if self._mode == "real" else 0

    @property
    def trouble(self) -> str | None:
        """See `Clock`."""
        return self._machine.trouble if self._mode == "real" else None

    def go_on(self, time: int) -> None:
        """Data has this time (ms) already."""
        self.move_to(time)

    @property
    def mode(self) -> Mode:
        """How the clock goes."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._now, self._mode = self.now(), mode
        self._ahead = self._now - self._machine.now()

    @property
    def ahead(self) -> int:
        """How far the clock is ahead of the machine's (ms; negative: behind)."""
        return self.now() - self._machine.now()

    def now(self) -> int:
        """The time."""
        if self._mode == "real":
            self._now = max(self._now, self._machine.now() + self._ahead)
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
        self._ahead = self._now - self._machine.now()

    def set_back(self, time: int) -> None:
        """Set the clock to any time, because the broker goes back to what it was then."""
        self._now = time
        self._ahead = time - self._machine.now()
