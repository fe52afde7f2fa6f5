"""How a line of a log, and a traceback, look: a terminal obeys nothing of them, and no name in them begins a line."""

import logging
from typing import Any

from schemas.printable import one_line, traceback_text


class Lines(logging.Formatter):
    """Puts the message of a record on one line. The lines of a traceback follow it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's line."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """The traceback of an error that is logged."""
        return "" if ei[1] is None else traceback_text(ei[1])


def last_resort() -> None:
    """What nobody handles goes to the standard error as `Lines`."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Lines())
