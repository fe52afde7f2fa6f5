"""SIGINT, SIGTERM and SIGHUP (the terminal was closed) end a command, in whatever number and order, without a traceback.

Signals that come together, within `TOGETHER_SECONDS`, count as one: a terminal, a service manager and an impatient user may
each send their own. A later one ends the process at once, with the exit code 128 + its number.
"""

from __future__ import annotations

import _thread
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TypeVar

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TOGETHER_SECONDS = 1.0

_SHOW_CURSOR = b"\x1b[?25h"
_IMPORT = "<frozen importlib._bootstrap>"
_AGAIN_SECONDS = 0.02
_PATIENCE_SECONDS = 10.0
"""How long a command that a signal ends may take to release what it holds."""

T = TypeVar("T")


class Stop(threading.Event):
    """Set by the first signal. `number` is that signal."""

    def __init__(self) -> None:
        super().__init__()
        self.number: int | None = None


class _Process:
    """What signals have done to this process."""

    handlers = 0
    """How many contexts handle signals now, one within the other."""
    begun: float | None = None
    """When the first signal came."""
    ended_by: int | None = None
    """The signal that raised SystemExit, or is about to."""
    before_end: Callable[[], None] | None = None


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
    """The first signal raises SystemExit in the main thread, with the code 128 + its number. Main thread only.

    It also ends all processes that this one started, but for those in a session of their own. From then on nothing but the command
    itself prints or logs. A command that takes longer than `_PATIENCE_SECONDS` to end is ended at once.
    """

    def first(number: int) -> None:
        _Process.ended_by = number
        _silence()
        signal.signal(signal.SIGALRM, _raise)
        _raise(signal.SIGALRM, sys._getframe())

    with _handled(first):
        yield


def ended_by() -> int | None:
    """The signal because of which the command ends before it is done."""
    return _Process.ended_by


def before_end(call: Callable[[], None]) -> None:
    """Have `call` called at the end of a command that a signal ends, before the processes that it started are killed."""
    _Process.before_end = call


def in_thread(call: Callable[[], T]) -> T:
    """Run `call` in another thread and wait. A signal interrupts the wait, and never the call."""
    from concurrent.futures import Future

    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result()


@contextmanager
def late_signals(code: Callable[[], int]) -> Iterator[None]:
    """Signals after the context, when only the interpreter still has to end, end the process at once with `code()`."""
    try:
        yield
    finally:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: os._exit(code()))


def is_read(descriptor: int) -> bool:
    """Whether a line can be written without waiting for a reader."""
    return bool(select.select([], [descriptor], [], 0)[1])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait until the context ends, so that what it prints is whole."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def end_at_once(number: int) -> NoReturn:
    """Ends the process without any more of its code, and the processes that it started. The kernel releases what it holds."""
    _kill_children()
    with suppress(OSError, ValueError):
        if is_read(2):
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
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a fork, whose parent says what there is to say
            os._exit(128 + number)
        if number == signal.SIGHUP:
            _leave(terminals)
        now = time.monotonic()
        if _Process.begun is None:
            _Process.begun = now
            first(number)
        elif now - _Process.begun > TOGETHER_SECONDS:
            end_at_once(number)

    _Process.handlers += 1
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _Process.handlers -= 1
        if not _Process.handlers:
            _Process.begun = None


def _raise(_: int, frame: FrameType | None) -> None:
    """Raise SystemExit where that is safe: for C code that imports, any exception may mean that a module is missing."""
    number = _Process.ended_by
    assert number is not None
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
            return
        frame = frame.f_back
    # What swallows the exception, or does not end in spite of it, does not keep the process alive.
    signal.signal(signal.SIGALRM, lambda *_: end_at_once(number))
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE_SECONDS)
    if _Process.before_end is not None:
        _Process.before_end()
    _kill_children()
    # Python calls the handlers of signals that came together one after the other: this one's end is when the next begins.
    _Process.begun = time.monotonic()
    raise SystemExit(128 + number)


def _silence() -> None:
    """From now on, libraries complain only about the end itself."""
    logging.disable()
    threading.excepthook = lambda *_: None

    def unraisable(found: Any) -> None:
        if isinstance(found.exc_value, SystemExit):  # raised in a finalizer, which swallowed it
            signal.signal(signal.SIGALRM, _raise)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)

    sys.unraisablehook = unraisable


def _kill_children() -> None:
    """Kill what this process started, as far as it is in the same session."""
    if not _has_children():
        return
    # Whatever happens here, such as a second signal during the import, this process ends.
    with suppress(Exception):
        import psutil

        session = os.getsid(0)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(child.pid) == session:
                    child.kill()


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except AttributeError:  # not on macOS
        return True
    return True


def _leave(terminals: list[int]) -> None:
    """Writes to a terminal that is gone would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in terminals:
        os.dup2(nowhere, number)
    os.close(nowhere)
