"""A query's trigger: its interval, and its clock. Without pyspark, so that a wrong interval is refused before pyspark is imported."""

import math
import re
import threading
import time
from collections.abc import Callable

from schemas.errors import MagnetarError
from streaming.runtime.clock import RealClock, running_ns

LONGEST_HOURS = 24

_AGAIN_SECONDS = 1.0
_MOST_BACK_SECONDS = 60.0
"""A query that stands still for less goes on by itself sooner than one that is started again."""

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
_IN_HOUR = {"milliseconds": 3_600_000, "seconds": 3_600, "minutes": 60, "hours": 1}
_INTERVAL = re.compile(r" *([0-9]{1,18}) *([a-z]+) *")


class BadTrigger(MagnetarError, ValueError):
    """The text is not an interval."""


class ClockJumped(MagnetarError, RuntimeError):
    """The machine's clock was not to be believed. The text says what to do."""


class TriggerClock:
    """Lets no micro-batch fold while the machine's clock is far ahead: it would take all brokers along, and time never goes back."""

    def __init__(
        self, machine: RealClock, stop: threading.Event, tell: Callable[[RealClock], None] = lambda _: None
    ) -> None:
        """`tell` gets the clock after each reading. `stop` ends a wait."""
        self._machine, self._stop, self._tell = machine, stop, tell

    def check(self) -> None:
        """Call it before a micro-batch folds. Returns if its time, which Spark has read by now, can be believed.

        If not, waits until the machine's clock is back. Then the time that Spark has noted is still wrong, so it raises
        `ClockJumped`: the next start forgets that micro-batch.
        """
        if self._read():
            return
        while not self._stop.wait(_AGAIN_SECONDS):
            if self._read():
                raise ClockJumped(
                    "the machine's clock was far ahead, and is back. Nothing was folded meanwhile, and nothing is lost: start the query "
                    "again"
                )
        raise ClockJumped(f"stopped while {self._machine.trouble}")

    def _read(self) -> bool:
        self._machine.now()
        self._tell(self._machine)
        return self._machine.is_followed


class SetBack:
    """Notices that the machine's clock is set back. By that clock, Spark waits for the time of the next micro-batch: as long as the jump, and
    in silence."""

    def __init__(
        self,
        trigger: str,
        *,
        machine: Callable[[], int] = time.time_ns,
        running: Callable[[], int] = running_ns,
    ) -> None:
        """`trigger`: the query's. `machine` and `running` give the times (ns) of the machine's clock, and of one that nobody sets."""
        every = seconds(trigger)
        self._most_ns = max(_MOST_BACK_SECONDS, every) * 1e9 if every else math.inf
        self._machine, self._running = machine, running
        self._apart = machine() - running()

    def check(self) -> None:
        """Call it often. Raises `ClockJumped` if the clock was set back since the last call, by a minute and a trigger's interval or more."""
        before, self._apart = self._apart, self._machine() - self._running()
        if before - self._apart >= self._most_ns:
            raise ClockJumped(
                f"the machine's clock was set back by {(before - self._apart) / 1e9:,.0f} s, for which Spark would wait. Nothing is lost: "
                "start the query again"
            )


def seconds(text: str) -> float:
    """A trigger's interval in seconds. Raises `BadTrigger`."""
    count, unit = interval(text).split()
    return 3600 * int(count) / _IN_HOUR[unit]


def interval(text: str) -> str:
    """A trigger's interval in Spark's syntax: ``1s`` → ``1 seconds``. Raises `BadTrigger`."""
    found = _INTERVAL.fullmatch(text)
    unit = "" if found is None else _UNITS.get(found[2], found[2])
    if found is None or unit not in _IN_HOUR:
        raise BadTrigger(f"trigger {text!r}: expected a number and a unit, such as 500ms, 1s or 2m")
    if int(found[1]) > LONGEST_HOURS * _IN_HOUR[unit]:
        raise BadTrigger(f"trigger {text!r}: the longest is {LONGEST_HOURS}h")
    return f"{int(found[1])} {unit}"
