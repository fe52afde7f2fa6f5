"""SIGINT, SIGTERM and SIGHUP (the terminal was closed) end a command, in whatever number and order, without a traceback.

Signals that come together, within `TOGETHER_SECONDS`, count as one: a terminal, a service manager and an impatient user may
each send their own. A later one ends the process at once, with the exit code 128 + its number.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TOGETHER_SECONDS = 1.0

_SHOW_CURSOR = b"\x1b[?25h"


class Stop(threading.Event):
    """Set by the first signal. `number` is that signal."""

    def __init__(self) -> None:
        super().__init__()
        self.number: int | None = None


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """An event that the first signal sets, so that work at hand can be finished. Main thread only."""
    stop = Stop()

    def first(number: int) -> None:
        stop.number = number
        # In another thread: this one may have been interrupted while it held the event's lock.
        _thread.start_new_thread(stop.set, ())

    with _handled(first):
        yield stop


@contextmanager
def ending_signals() -> Iterator[None]:
    """The first signal raises SystemExit in the main thread, with the code 128 + its number. Main thread only."""

    def first(number: int) -> None:
        raise SystemExit(128 + number)

    with _handled(first):
        yield


@contextmanager
def late_signals(code: Callable[[], int]) -> Iterator[None]:
    """Signals after the context, when only the interpreter still has to end, end the process at once with `code()`."""
    try:
        yield
    finally:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: os._exit(code()))


def end_at_once(number: int) -> None:
    """Ends the process without any more of its code. The kernel releases what it holds, and Spark's JVM ends by itself."""
    with suppress(OSError):
        if sys.__stderr__ is not None and sys.__stderr__.isatty():
            os.write(2, _SHOW_CURSOR)
        os.write(2, b"magnetar: stopped at once\n")
    os._exit(128 + number)


@contextmanager
def _handled(first: Callable[[int], None]) -> Iterator[None]:
    before = {
        number: signal.getsignal(number)
        for number in ENDING
        # With nohup, a closed terminal is no reason to end.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }
    terminals = [number for number in (1, 2) if os.isatty(number)]
    begun: float | None = None

    def handle(number: int, frame: Any) -> None:
        nonlocal begun
        if number == signal.SIGHUP:
            _leave(terminals)
        now = time.monotonic()
        if begun is None:
            begun = now
            first(number)
        elif now - begun > TOGETHER_SECONDS:
            end_at_once(number)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(terminals: list[int]) -> None:
    """Writes to a terminal that is gone would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in terminals:
        os.dup2(nowhere, number)
    os.close(nowhere)
