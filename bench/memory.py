"""The resident memory of this process and its children."""

from typing import NamedTuple

import psutil


class Resident(NamedTuple):
    """Bytes of the JVM, of the largest Python worker, and of all workers."""

    java: int
    worker: int
    workers: int


def resident() -> Resident:
    """The memory of this process's descendants now, without those that end meanwhile."""
    java, workers = 0, [0]
    for process in psutil.Process().children(recursive=True):
        try:
            name, size = process.name(), process.memory_info().rss
        except psutil.Error:
            continue
        if name == "java":
            java = max(java, size)
        elif name.startswith("python"):  # not a fork of the JVM: before its exec, it shows the JVM's size
            workers.append(size)
    return Resident(java, max(workers), sum(workers))


def of_this_process() -> int:
    """Bytes of this process, without children."""
    return int(psutil.Process().memory_info().rss)
