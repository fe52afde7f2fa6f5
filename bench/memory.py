"""Memory and processor time of this process and its children."""

import threading
import time
from abc import ABC, abstractmethod
from typing import NamedTuple, Self

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


class Used(NamedTuple):
    """Seconds of processor time of the JVMs and of the Python processes."""

    java: float
    python: float


def used(program: int | None = None) -> Used:
    """The processor time so far of this process's descendants that still live, or of a `program` (its process id) and its
    descendants."""
    root = psutil.Process(program)
    java = python = 0.0
    for process in root.children(recursive=True) + ([] if program is None else [root]):
        try:
            times, is_java = process.cpu_times(), process.name() == "java"
        except psutil.Error:
            continue
        seconds = times.user + times.system
        java, python = java + seconds * is_java, python + seconds * (not is_java)
    return Used(java, python)


class _Watch(ABC):
    """Looks at processes again and again, as long as a `with` block takes."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: between two looks."""
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._seconds):
            self._look()

    @abstractmethod
    def _look(self) -> None: ...


class Peaks(_Watch):
    """Records the peak resident size (bytes) of the JVM and of a Python worker among this process's children."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.java = self.worker = 0

    def _look(self) -> None:
        now = resident()
        self.java, self.worker = max(self.java, now.java), max(self.worker, now.worker)


class Shared(_Watch):
    """The memory of this process and its descendants, in bytes, twice a second: what they share counts once. `processor`: their seconds of
    processor time."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.sizes: list[int] = []
        self._processor: dict[int, float] = {}

    @property
    def processor(self) -> float:
        return sum(self._processor.values())

    def _look(self) -> None:
        own, total = psutil.Process(), 0
        for process in [own, *own.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
                times = process.cpu_times()
            except psutil.Error:
                continue
            self._processor[process.pid] = times.user + times.system
        self.sizes.append(total)


class Cost(NamedTuple):
    """What a run cost: seconds, seconds of processor time, and peaks of memory in bytes."""

    seconds: float
    java: float
    python: float
    java_peak: int
    worker_peak: int

    @property
    def processor(self) -> float:
        """Seconds of processor time, of all processes."""
        return self.java + self.python


class Meter(Peaks):
    """Measures a `with` block. `cost` is there after it."""

    cost: Cost

    def __enter__(self) -> Self:
        self._begun, self._used = time.perf_counter(), used()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        seconds, now = time.perf_counter() - self._begun, used()
        super().__exit__(*error)
        self.cost = Cost(
            seconds, now.java - self._used.java, now.python - self._used.python, self.java, self.worker
        )
