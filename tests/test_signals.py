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

from streaming.kafka.local import is_gone
from streaming.runtime.signals import ENDING, TOGETHER_SECONDS, stop_signals
from tests.e2e.processes import kill_session, no_nohup, session, wait_until

WORK = """
import sys, time
from streaming.runtime.signals import ending_signals, late_signals, stop_signals
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

BUG = """
import sys, time
from streaming.cli import app as cli
show, takes = cli.traceback_text, float(sys.argv.pop())
def slow(error):
    print("ready", flush=True)
    time.sleep(takes)
    return show(error)
cli.traceback_text = slow
@cli.app.command("bug")
def bug():
    raise RuntimeError("a bug")
sys.argv.insert(1, "bug")
cli.app()
"""

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


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_does_not_hide_a_bug(number: int) -> None:
    code, said = signalled(BUG, [number], takes=0.3)
    assert code == 128 + number
    assert "RuntimeError: a bug" in said


def test_a_terminal_that_closes(tmp_path: Path) -> None:
    """Its end is a signal, and what is written to it afterwards fails."""
    done = tmp_path / "done"
    program = GRACEFUL + f"  open({str(done)!r}, 'w').close()"
    pid, terminal = pty.fork()
    if pid == 0:
        no_nohup()
        os.execv(sys.executable, [sys.executable, "-c", program, "0.3"])
    said = b""
    while not said.endswith(
        b"\n"
    ):  # the program may still be writing the end of its line, which must not fail yet
        said += os.read(terminal, 7)
    assert said == b"ready\r\n"
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


AT_AN_EVENT = """
import os, sys
from streaming.cli import main
count, (at, signals, folder) = 0, (int(sys.argv[1]), eval(sys.argv[2]), sys.argv[3])

def hook(event, arguments):
    global count
    if event in ("import", "open", "os.mkdir"):
        count += 1
        if count == at:
            for number in signals:
                os.kill(os.getpid(), number)

sys.addaudithook(hook)
sys.argv = ["magnetar", *sys.argv[4:]]
try:
    main()
finally:
    with open(os.path.join(folder, "events"), "w") as file:
        file.write(str(count))
"""
"""A command that sends signals to itself when it imports a module, or opens or makes a file, for the nth time."""

MOMENTS = 8


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    line = '{{"timestamp":1700000000000,"topic":"persistent://public/default/t","producer":"p","sequence_id":{}}}\n'
    path.write_text("".join(map(line.format, range(100))))
    return path


def test_a_signal_at_any_moment_of_a_command(tmp_path: Path, log: Path) -> None:
    """From its first import to its last file: one line or none, a code that says so, and the next start works."""

    def run(at: int, signals: Sequence[int], *options: str) -> tuple[int, str]:
        folder = tmp_path / str(at)
        folder.mkdir(exist_ok=True)
        command = ["replay", str(log), "--out", str(folder / "out"), "--no-spark", *options]
        done = subprocess.run(
            [sys.executable, "-c", AT_AN_EVENT, str(at), repr(list(map(int, signals))), str(folder), *command],
            capture_output=True, text=True, check=False, preexec_fn=no_nohup,
        )  # fmt: skip
        return done.returncode, done.stderr

    assert run(0, []) == (0, "")
    events = int((tmp_path / "0" / "events").read_text())
    moments = [1 + number * (events - 1) // MOMENTS for number in range(MOMENTS)]
    sent = [[*([number] for number in ENDING), *PAIRS[1::2]][number % 7] for number in range(MOMENTS)]
    with ThreadPoolExecutor(4) as pool:
        for at, numbers, (code, said) in zip(moments, sent, pool.map(run, moments, sent), strict=True):
            assert code in {sign for number in numbers for sign in (-number, 128 + number)}, (
                at,
                numbers,
                said,
            )
            assert said in ("", "magnetar: interrupted\n"), (at, numbers, said)
    assert run(moments[-1], [], "--overwrite") == (0, "")


SWALLOWED = """
import os, signal, time
from streaming.runtime.signals import before_end, ending_signals
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
before_end(lambda: print("released", flush=True))
with ending_signals():
    Finalized()
    time.sleep(60)
"""


def test_a_signal_in_a_finalizer_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "released\nreleased\n", "")


CHILDREN = """
import subprocess, time
from streaming.runtime.signals import ending_signals
with ending_signals():
    own = subprocess.Popen(["sleep", "600"], process_group=0, stdout=subprocess.DEVNULL)
    apart = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    print(own.pid, apart.pid, flush=True)
    time.sleep(60)
"""


def test_what_the_command_started_ends_with_it_but_for_daemons() -> None:
    process = subprocess.Popen([sys.executable, "-c", CHILDREN], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    own, apart = map(int, process.stdout.readline().split())
    process.terminate()
    assert (process.stdout.read(), process.wait()) == ("", 143)
    wait_until(lambda: is_gone(own), "the end of the child")
    assert not is_gone(apart)
    os.kill(apart, signal.SIGKILL)


TOGETHER = """
import os, signal, sys, time
from streaming.runtime import signals
signals.before_end(lambda: time.sleep(1.1))
with signals.ending_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.ENDING)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.ENDING)
"""


def test_signals_that_come_together_are_one_however_long_the_end_takes() -> None:
    process = subprocess.run([sys.executable, "-c", TOGETHER], stderr=subprocess.PIPE, text=True, check=False)
    assert (process.returncode, process.stderr) == (130, "")


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("moment", ["Java starts", "the query runs"])
def test_a_signal_to_all_processes_of_a_replay_with_spark(tmp_path: Path, log: Path, moment: str) -> None:
    out, said = tmp_path / "out", tmp_path / "said"
    command = [str(Path(sys.executable).with_name("magnetar")), "replay", str(log), "--out", str(out)]
    with said.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, start_new_session=True, preexec_fn=no_nohup
        )
    begun = {
        "Java starts": lambda: len(session(process.pid)) > 1,
        "the query runs": lambda: (out / "checkpoint" / "offsets").exists(),
    }[moment]
    wait_until(begun, moment, process)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.killpg(process.pid, number)
    assert process.wait() in (130, 143)
    left = session(process.pid)
    kill_session(process)
    assert (said.read_text(), left) == ("magnetar: interrupted\n", [])
