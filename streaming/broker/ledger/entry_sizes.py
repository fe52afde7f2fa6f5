"""How large the entries were that a ledger took lately (mirrors `ManagedLedgerMBeanImpl`, its entry size buckets)."""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

BOUNDS = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576)
"""The largest size (bytes) in each bucket. One more bucket takes what is larger."""

NONE = [0] * (len(BOUNDS) + 2)
"""The counts of an interval without entries."""


class EntrySizes(msgspec.Struct, array_like=True, gc=False):
    """Counts of entries by bucket, then the sum of their sizes (bytes): in the present interval of the stats, and in the `last` one.

    Empty: there were no entries.
    """

    current: list[int] = []
    last: list[int] = []

    def add(self, size: int) -> None:
        """Count an entry of `size` bytes."""
        counts = self.current = self.current or NONE.copy()
        counts[bisect_left(BOUNDS, size)] += 1
        counts[-1] += size

    def add_all(self, sizes: Sequence[int]) -> int:
        """Count entries of these sizes (bytes), one or more. Returns their sum."""
        counts, total = self.current or NONE.copy(), sum(sizes)
        first, last = bisect_left(BOUNDS, min(sizes)), bisect_left(BOUNDS, max(sizes))
        if first == last:  # most often
            counts[first] += len(sizes)
        else:
            for size in sizes:
                counts[bisect_left(BOUNDS, size)] += 1
        counts[-1] += total
        self.current = counts
        return total

    def end_interval(self) -> None:
        """The present interval ends."""
        self.last, self.current = self.current, []
