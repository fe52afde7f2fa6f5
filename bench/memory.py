"""Resident memory of this process and of all that it started."""

from typing import NamedTuple

import psutil


class Resident(NamedTuple):
    """Bytes: of the JVM, of the largest Python worker, and of all workers."""

    java: int
    worker: int
    workers: int


def resident() -> Resident:
    """The memory of all processes below this one, now. Those that end meanwhile are left out."""
    java, workers = 0, [0]
    for process in psutil.Process().children(recursive=True):
        try:
            name, size = process.name(), process.memory_info().rss
        except psutil.Error:
            continue
        if name == "java":
            java = max(java, size)
        elif name.startswith("python"):  # a fork of the JVM that is about to run a program has its size, too
            workers.append(size)
    return Resident(java, max(workers), sum(workers))


def of_this_process() -> int:
    """Bytes of this process alone."""
    return int(psutil.Process().memory_info().rss)
