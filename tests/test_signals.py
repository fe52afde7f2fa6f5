"""Signals end a command without a traceback, in whatever number and order."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streaming.signals import ENDING, TOGETHER_SECONDS, stop_signals
from tests.e2e.processes import no_nohup, wait_until

WORK = """
import sys, time
from streaming.signals import ending_signals, late_signals, stop_signals
print("ready", flush=True)
"""
GRACEFUL = (
    WORK.replace("print", "with stop_signals() as stop:\n  print")
    + """
  while not stop.is_set():
    time.sleep(0.01)
  time.sleep(float(sys.argv[1]))
  print("finished", flush=True)
"""
)
AT_ONCE = (
    WORK.replace("print", "with late_signals(lambda: 7), ending_signals():\n try:\n  print")
    + """
  time.sleep(60)
 finally:
  print("finished", flush=True)
  time.sleep(float(sys.argv[1]))
"""
)
LATE = WORK.replace("print", "with late_signals(lambda: 7), ending_signals(): pass\nprint") + "time.sleep(60)"

PAIRS = [[one, other] for one in ENDING for other in ENDING]
LATER = TOGETHER_SECONDS + 0.5


def signalled(program: str, numbers: Sequence[int], *, pause: float = 0, takes: float = 0) -> tuple[int, str]:
    """The exit code and the output of a program that got signals when it was ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(takes)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=no_nohup,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    for number in numbers:
        os.kill(process.pid, number)
        time.sleep(pause)
    said = process.stdout.read().decode()
    return process.wait(), said


@pytest.mark.parametrize("numbers", [*([number] for number in ENDING), *PAIRS])
def test_signals_that_come_together_are_one(numbers: list[int]) -> None:
    assert signalled(GRACEFUL, numbers, takes=0.3) == (0, "finished\n")


def signalled_later(program: str) -> list[tuple[int, str]]:
    """`signalled` for each of `PAIRS`, with a pause. All programs run at once, because the pauses are long."""

    def run(numbers: Sequence[int]) -> tuple[int, str]:
        return signalled(program, numbers, pause=LATER, takes=60)

    with ThreadPoolExecutor(len(PAIRS)) as pool:
        return [*pool.map(run, PAIRS)]


def test_a_later_one_ends_the_process_at_once() -> None:
    said = "magnetar: stopped at once\n"
    assert signalled_later(GRACEFUL) == [(128 + numbers[1], said) for numbers in PAIRS]


@pytest.mark.parametrize("numbers", PAIRS)
def test_a_command_with_nothing_to_finish(numbers: list[int]) -> None:
    code, said = signalled(AT_ONCE, numbers, takes=0.3)
    assert (code - 128 in numbers, said) == (True, "finished\n")


def test_a_later_one_ends_a_command_that_takes_long_to_end() -> None:
    said = "finished\nmagnetar: stopped at once\n"
    assert signalled_later(AT_ONCE) == [(128 + numbers[1], said) for numbers in PAIRS]


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_after_the_end_keeps_the_exit_code(number: int) -> None:
    assert signalled(LATE, [number]) == (7, "")


def test_a_terminal_that_closes(tmp_path: Path) -> None:
    """Its end is a signal, and what is written to it afterwards fails."""
    done = tmp_path / "done"
    program = GRACEFUL + f"  open({str(done)!r}, 'w').close()"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program, "0.3"])
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert done.exists()


def test_nohup(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", GRACEFUL, "0"], stdout=(tmp_path / "said").open("wb"), cwd=tmp_path
    )
    wait_until(lambda: "ready" in (tmp_path / "said").read_text(), "its start", process)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    process.terminate()
    assert process.wait() == 0


def test_the_handlers_from_before_return() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    with stop_signals() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
        assert stop.number == signal.SIGTERM
    assert [signal.getsignal(number) for number in ENDING] == before
