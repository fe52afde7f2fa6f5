"""What clients may cause again and again is logged once a minute."""

import logging
import time
from collections.abc import Callable

SECONDS = 60.0


class Rarely:
    """Logs the first of its lines, and then one a minute at most, which says how many there were."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: seconds since any moment."""
        self._log, self._now = log, now
        self._next = float("-inf")
        self._missed = 0

    def error(self, text: str, *args: object) -> None:
        """Log an error, without its traceback, unless there was a line in the last minute."""
        self._line(logging.ERROR, text, args)

    def warning(self, text: str, *args: object) -> None:
        """The same for a warning."""
        self._line(logging.WARNING, text, args)

    def _line(self, level: int, text: str, args: tuple[object, ...]) -> None:
        now = self._now()
        if now < self._next:
            self._missed += 1
            return
        if self._missed:
            text += f" ({self._missed} more in the minute before)"
        self._next, self._missed = now + SECONDS, 0
        self._log.log(level, text, *args)
