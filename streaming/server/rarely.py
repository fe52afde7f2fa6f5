"""What clients may cause again and again is logged once a minute."""

import logging
import time
from collections.abc import Callable

SECONDS = 60.0


class Rarely:
    """Logs the first of its errors, and then one line a minute at most, which says how many there were."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: seconds since any moment."""
        self._log, self._now = log, now
        self._next = float("-inf")
        self._missed = 0

    def error(self, text: str, *args: object) -> None:
        """Log an error, without its traceback, unless there was one in the last minute."""
        now = self._now()
        if now < self._next:
            self._missed += 1
            return
        if self._missed:
            text += f" ({self._missed} more in the minute before)"
        self._next, self._missed = now + SECONDS, 0
        self._log.error(text, *args)
