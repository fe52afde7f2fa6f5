"""How far the fold of a log has come."""

import time
from collections.abc import Callable

from streaming.fold.records import Records

SHORT = 4 << 20
_SOON = 1.0
"""A log of so many bytes, or that is folded in so many seconds, is short: nothing is said of it."""

Say = Callable[[str], None]


class FoldProgress:
    """Says when each tenth of a log of `size` bytes is folded, unless that takes no time."""

    def __init__(self, size: int, say: Say) -> None:
        self._size, self._say = size, say
        self._done = self._records = self._tenths = 0
        self._began, self._is_long = time.monotonic(), False
        if size >= SHORT:
            self._begin()

    def _begin(self) -> None:
        self._is_long = True
        size = f"{self._size / 2**20:,.0f} MiB" if self._size >= 1 << 20 else f"{self._size >> 10:,} KiB"
        self._say(
            f"folding {size} of the log, which came after the last checkpoint; clients can't connect yet"
        )

    def add(self, records: Records) -> None:
        """So many more records are folded."""
        self._records += len(records.offsets)
        self._done += sum(map(len, records.values))
        if not self._is_long and time.monotonic() > self._began + _SOON:
            self._begin()
        if self._is_long and (tenths := min(9, 10 * self._done // self._size)) > self._tenths:
            self._tenths = tenths
            self._say(f"{10 * tenths} % of the log is folded, {self._records:,} commands")
