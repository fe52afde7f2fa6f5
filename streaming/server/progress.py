"""How far the fold of a log has come."""

from collections.abc import Callable

from streaming.fold import Records

SHORT = 4 << 20
"""A log of so many bytes is folded in less than a second: nothing is said of it."""

Say = Callable[[str], None]


class Progress:
    """Says when each tenth of a log of `size` bytes is folded."""

    def __init__(self, size: int, say: Say) -> None:
        self._size, self._say = size, say
        self._done = self._records = self._tenths = 0
        if size >= SHORT:
            say(
                f"folding {size / 2**20:,.0f} MiB of the log, which came after the last checkpoint; clients can't connect yet"
            )

    def add(self, records: Records) -> None:
        """So many more records are folded."""
        self._records += len(records.offsets)
        self._done += sum(map(len, records.values))
        if self._size >= SHORT and (tenths := min(9, 10 * self._done // self._size)) > self._tenths:
            self._tenths = tenths
            self._say(f"{10 * tenths} % of the log is folded, {self._records:,} commands")
