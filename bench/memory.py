"""Resident memory of this process's family, from /proc (Linux)."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Resident(NamedTuple):
    """Bytes: of the JVM, of the largest Python worker, and of all workers."""

    java: int
    worker: int
    workers: int


def resident() -> Resident:
    """Now, of all that this process started and what that started."""
    page = os.sysconf("SC_PAGE_SIZE")
    java, workers = 0, [0]
    for process in descendants(os.getpid()):
        try:
            name = Path(f"/proc/{process}/comm").read_text().strip()
            size = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * page
        except (OSError, IndexError):
            continue
        if name == "java":
            java = max(java, size)
        elif name.startswith(
            "python"
        ):  # a JVM that is about to run a program is a "process" of its size, too
            workers.append(size)
    return Resident(java, max(workers), sum(workers))


def of_this_process() -> int:
    """Bytes of this process alone."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descendants(process: int) -> Iterator[int]:
    """Processes below `process`: each thread lists those that it started."""
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = listing.read_text().split()
        except OSError:
            continue
        for child in children:
            yield int(child)
            yield from descendants(int(child))
