"""The machine's clock, as far as it can be believed."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

FoldClock = Literal["log", "trigger"]
"""What advances the time of a fold: only the records, or also the timestamp of the micro-batch, which Spark keeps for a re-run."""

MAX_AHEAD_MS = 3_600_000
"""So far, or farther, a clock may not jump ahead, and the timestamp of a record may not be ahead of it. Kafka 4's default for records, too,
is an hour (``message.timestamp.after.max.ms``)."""

_MS = 1_000_000
_WORTH_SAYING_MS = 60_000

log = logging.getLogger(__name__)


def running_ns() -> int:
    """Time since some start (ns), sleep of the machine included where it is known."""
    return (
        time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns()
    )


class RealClock:
    """The machine's clock, as far as it can be believed.

    Between two readings, so much time passes as on the clock that counts since the machine's start, which nobody sets. If the machine's
    clock is `max_ahead` ms or more ahead of that, it is not followed until it comes back. If it is set back, time goes on
    at half the speed until the clock is there: what time brings is data, so time can't go back, and it never stands still. Any thread
    may read it.
    """

    def __init__(
        self,
        max_ahead: int | None = MAX_AHEAD_MS,
        *,
        machine: Callable[[], int] = time.time_ns,
        running: Callable[[], int] = running_ns,
    ) -> None:
        """`max_ahead`: None follows the machine's clock wherever it goes. `machine` and `running` give the two clocks' times (ns)."""
        self._max_ahead = None if max_ahead is None else max_ahead * _MS
        self._machine, self._running, self._reading = machine, running, threading.Lock()
        self._now, self._at = machine(), running()
        self._believed = self._now  # what the machine's clock would show if nobody had set it back
        self._said = False
        self.is_followed = True
        """Whether the machine's clock was believed at the last reading."""
        self.machine_ahead = 0
        """At the last reading, see `Clock`."""

    def now(self) -> int:
        """The time. It never goes back."""
        with self._reading:
            return self._read()

    def _read(self) -> int:
        machine, at = self._machine(), self._running()
        passed, self._at = max(0, at - self._at), at
        self._believed += passed
        self.is_followed = self._max_ahead is None or machine - self._believed < self._max_ahead
        if not self.is_followed:
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
                f"the machine's clock is {shown} ahead of Magnetar's time, too far to be followed: set it right; if it is "
                "right, start again"
            )
        if self.machine_ahead <= -_WORTH_SAYING_MS:
            return (
                f"the machine's clock is {shown} behind Magnetar's time, which runs at half speed until the clock "
                "has caught up"
            )
        return None

    def go_on(self, time: int) -> None:
        """Data has this time (ms) already: go on with it, if it is later than now."""
        self._now = max(self._now, time * _MS)

    def seconds_until(self, due: int) -> float | None:
        """How long to wait until the clock shows `due`."""
        return max(0, due - self.now()) / 1000

    def arrive(self, due: int) -> None:
        """The time of waiting for `due` is over."""
