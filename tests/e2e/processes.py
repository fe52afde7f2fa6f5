"""Waits for processes of a test, and kills them as a crash would."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from streaming.kafka.local import is_gone

PATIENCE_SECONDS = 600.0
"""A timeout. A quiet machine needs a fiftieth of it."""

_POLL_SECONDS = 0.004


def wait_until(
    condition: Callable[[], bool], what: str, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Poll `condition` until it holds. Fails after a timeout, or if `process` ends before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if process is not None and process.poll() is not None and not condition():
            raise AssertionError(f"ended with {process.returncode} before {what}")
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:.0f} s: {what}"
        time.sleep(_POLL_SECONDS)


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill `process` and its children, which must have their own session. Returns when all are gone.

    The process group isn't enough, because Spark's Python daemon creates a new one. Call it once, and soon after the process
    has ended: when all are gone, another session may get the same id.
    """
    process.kill()

    def gone() -> bool:
        members = session(process.pid)
        for pid in members:
            kill(pid)
        return not members

    wait_until(gone, f"the end of {process.args!r}")
    process.wait()


def kill(pid: int) -> None:
    """Send SIGKILL if the process still exists."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def session(leader: int) -> list[int]:
    """The processes of a session that still hold resources."""
    return [process.pid for process in _members(leader)]


def workers(leader: int) -> list[int]:
    """Spark's Python workers among a session's processes, and the daemon that forks them."""
    return [p.pid for p in _members(leader) if "streaming.spark.worker_daemon" in arguments(p)]


def jvm(leader: int) -> int:
    """Spark's JVM in a session."""
    # A process that it starts has its arguments for a moment, and a later id.
    java = min(
        (p for p in _members(leader) if "org.apache.spark.deploy.SparkSubmit" in arguments(p)),
        key=lambda p: p.pid,
    )
    return java.pid


def arguments(process: psutil.Process) -> list[str]:
    """The command line, or empty if the process is gone."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _members(leader: int) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(pid) == leader and not is_gone(pid):
                found.append(psutil.Process(pid))
    return found


def no_nohup() -> None:
    """For a new process to call: the tests may run under nohup or in the background, and an ignored signal is inherited."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
