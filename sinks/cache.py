"""A cache of decoded pieces of immutable files, bounded by bytes, one for the process.

One for the process because Spark unpickles a new sink for every task while its Python worker lives on.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")


class ByteLru:
    """Least recently used goes first. Keys must change when the file does (path, size, modification time)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._items: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """The value under `key`; if there is none, that of `load`, which gives (value, bytes)."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                value: T = self._items[key][0]
                return value
        value, weight = load()  # outside of the lock: twice the work at worst
        with self._lock:
            if key in self._items:
                self._used -= self._items.pop(key)[1]
            self._items[key] = value, weight
            self._used += weight
            while self._used > self._limit and len(self._items) > 1:
                self._used -= self._items.popitem(last=False)[1][1]
        return value

    def __len__(self) -> int:
        return len(self._items)

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
            self._used = 0


INDEXES = ByteLru(16 << 20)
"""Footers and indexes of entry files: what a lookup needs."""

ROWS = ByteLru(32 << 20)
"""Decoded row groups of entry files."""
