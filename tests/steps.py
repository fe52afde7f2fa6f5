"""Processes that stop, or die, at each of the steps in which they change files."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from sinks.storage import Storage

KILLED, FAILED = 9, 3
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}


def in_process(call: Callable[[], Any], dies_at: int | None) -> int:
    """Do something in a process of its own, which is killed before its `dies_at`-th step. Its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(60)
    code = FAILED
    try:
        if dies_at is not None:
            at_step(dies_at, lambda: os._exit(KILLED))
        call()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def fails(call: Callable[[], Any], fails_at: int) -> bool:
    """Do something in a process of its own, whose `fails_at`-th step fails as on a full disk. False: it has fewer steps."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == FAILED
    signal.alarm(60)
    code = 0

    def fail() -> None:
        nonlocal code
        code = FAILED
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "disk")

    try:
        at_step(fails_at, fail)
        call()
    except BaseException:
        assert code == FAILED
    finally:
        os._exit(code)


def together(first: Callable[[], Any], second: Callable[[], Any], stops_at: int) -> bool:
    """Do `first` in a process that stops before its `stops_at`-th step until `second` has ended in another one, or waits for a lock.
    False: `first` has fewer steps, and `second` came after it."""
    one = os.fork()
    if not one:
        _child(first, stops_at)
    status = os.waitpid(one, os.WUNTRACED)[1]
    stopped = os.WIFSTOPPED(status)
    assert stopped or os.waitstatus_to_exitcode(status) == 0
    told, tells = os.pipe()
    two = os.fork()
    if not two:
        os.close(told)
        _tell_before_waiting(tells)
        _child(second, None)
    os.close(tells)
    os.read(told, 1)  # it waits, or has ended
    os.close(told)
    if stopped:
        os.kill(one, signal.SIGCONT)
        _ended(one)
    _ended(two)
    return stopped


def count_steps(call: Callable[[], Any]) -> int:
    """How many steps something has. It is done, in a process of its own."""
    told, tells = os.pipe()
    if not os.fork():

        def counted() -> None:
            count = 0

            def step() -> None:
                nonlocal count
                count += 1

            each_step(step, reads=True)
            call()
            os.write(tells, str(count).encode())

        _child(counted, None)
    os.close(tells)
    with os.fdopen(told, "rb") as found:
        return int(found.read())


def _child(call: Callable[[], Any], stops_at: int | None) -> None:
    signal.alarm(120)
    code = FAILED
    try:
        if stops_at is not None:
            at_step(stops_at, lambda: os.kill(os.getpid(), signal.SIGSTOP), reads=True)
        call()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _ended(pid: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _tell_before_waiting(pipe: int) -> None:
    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "fcntl.flock" and not arguments[1] & fcntl.LOCK_NB:
            try:
                fcntl.flock(arguments[0], arguments[1] | fcntl.LOCK_NB)
            except BlockingIOError:
                os.write(pipe, b"w")

    sys.addaudithook(audit)


def nth(number: int, then: Callable[[], Any]) -> Callable[[], None]:
    """A function that does `then` when it is called for the `number`-th time."""
    left = number

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            then()

    return step


def at_step(number: int, then: Callable[[], Any], *, reads: bool = False) -> None:
    """Do `then` in this process before it changes a file for the `number`-th time."""
    each_step(nth(number, then), reads=reads)


def each_step(step: Callable[[], Any], *, reads: bool = False) -> None:
    """Call `step` in this process before each change of a file. With `reads`, also when a lock is taken and a file of a store is read."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event in _EVENTS
            or event == "fcntl.flock"
            or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES)
        ):
            step()

    for name in ("write", "fsync", "fdatasync"):
        counted(os, name, step)
    for name in (
        "publish",
        "delete",
        "take",
        "sweep",
        "_create",
        "_tidy",
        *(("open", "files") if reads else ()),
    ):
        counted(Storage, name, step)
    sys.addaudithook(audit)


def counted(owner: Any, name: str, step: Callable[[], Any]) -> None:
    """Call `step` before and after each call of a function or method."""
    call = getattr(owner, name)

    def run(*arguments: Any, **named: Any) -> Any:
        step()
        result = call(*arguments, **named)
        step()
        return result

    setattr(owner, name, run)
