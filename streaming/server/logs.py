"""What a server logs, to the standard error: without ever waiting for whoever reads it, and not more often than is of use.

A terminal that was stopped, a pager or a collector of logs may not read for hours, and clients decide how much there is to log.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from streaming.runtime.logs import Lines

MOST_WAITING = 1000
"""Lines that wait to be read. Further ones are dropped."""
MOST_A_MINUTE = 20
"""Lines of one kind: of a logger, with the same text but for what is put into it."""
_KINDS = 1000
_END_SECONDS = 1.0


class Seldom(logging.Filter):
    """Lets `MOST_A_MINUTE` records of a kind through, or one with a traceback, and says with the first one of the next minute how many there were."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: seconds since any moment."""
        super().__init__()
        self._now = now
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it."""
        kind, now = (record.name, str(record.msg).partition("\n")[0]), self._now()
        since, count = self._kinds.get(kind, (now, 0))
        most = MOST_A_MINUTE if record.exc_info is None else 1
        if now - since >= 60:
            if (missed := count - most) > 0:
                record.msg = f"{record.getMessage()} ({missed:,} more in the minute before)"
                record.args = ()
            since, count = now, 0
        if len(self._kinds) >= _KINDS:
            self._kinds.clear()
        self._kinds[kind] = since, count + 1
        return count < most


class InBackground(logging.Handler):
    """Writes to a file descriptor in a thread of its own. What does not fit is dropped, and counted."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.setFormatter(Lines())
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._descriptor, self._dropped = descriptor, 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written."""
        if self._lines.qsize() >= MOST_WAITING:
            self._dropped += 1
            return
        line = self.format(record)
        if self._dropped:
            line = f"{self._dropped:,} lines of the log were dropped, because nothing read them\n{line}"
            self._dropped = 0
        self._lines.put(f"{line}\n")

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            _write_all(self._descriptor, line.encode(errors="backslashreplace"))

    def close(self) -> None:
        """Write what waits, unless nobody reads it within a second."""
        self._lines.put(None)
        self._thread.join(_END_SECONDS)
        super().close()


def _write_all(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:  # nobody can read it any more
        return


@contextmanager
def logging_in_background() -> Iterator[None]:
    """What is logged from warnings on goes to the standard error by `InBackground`, as far as `Seldom` lets it."""
    handler = InBackground(2)
    handler.setLevel(logging.WARNING)
    handler.addFilter(Seldom())
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        handler.close()
