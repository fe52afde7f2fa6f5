"""The folder for what is fetched or built once a machine, and the lock that guards it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/magnetar`, or `~/.cache/magnetar`. It may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME")
    # The XDG rule: a relative value is to be ignored.
    base = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    return base / "magnetar"


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file `path` against every other process and thread; waits for its turn.

    The lock is the kernel's: a holder that dies releases it. The file stays, for removing it would
    let two later comers lock two different files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
