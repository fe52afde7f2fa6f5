"""A cache of decoded parts of immutable files, bounded by bytes, one per process.

It is per process because Spark unpickles a new sink for every task, while its Python worker lives longer.
"""

from collections.abc import Callable, Hashable
from operator import itemgetter
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache

T = TypeVar("T")


class ByteLru:
    """A thread-safe LRU cache. Keys must change with the file (path, size, modification time)."""

    def __init__(self, limit: int) -> None:
        """`limit` is in bytes. A value larger than that is kept alone."""
        self._limit = limit
        self._items: LRUCache[Hashable, tuple[Any, int]] = LRUCache(limit, getsizeof=itemgetter(1))
        self._lock = Lock()

    def get(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """The value of `key`. If missing, `load` provides it as (value, size in bytes)."""
        with self._lock:
            found = self._items.get(key)
        if found is None:
            value, size = load()  # outside the lock: at worst two threads load it
            found = value, min(size, self._limit)
            with self._lock:
                self._items[key] = found
        loaded: T = found[0]
        return loaded

    def __len__(self) -> int:
        return len(self._items)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._items.clear()


INDEXES = ByteLru(16 << 20)
"""Footers and indexes of entry files, which every lookup needs."""

ROWS = ByteLru(32 << 20)
"""Decoded row groups of entry files."""
