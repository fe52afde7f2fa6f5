"""What `make bench` and the soak count of processes."""

import subprocess
import sys
import threading
import time

import psutil
import pytest

from bench.memory import Peaks, Resident, resident

COUNTED = """
import subprocess, sys
from bench.memory import resident
before = resident()
nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    both = resident()
    child.communicate(b"\\n")
print(before.workers, both.worker, both.workers, resident().workers)
"""


def test_a_child_counts_with_its_own_children() -> None:
    # In a process of its own: Spark's workers, which other tests start, come and go.
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True)
    before, largest, both, after = map(int, done.stdout.split())
    assert before == after == 0
    assert 0 < largest < both


def test_a_process_that_ends_while_it_is_counted_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = [psutil.Process(child.pid)]
        child.communicate(b"\n")
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: found)
    assert resident() == Resident(0, 0, 0)


def test_peaks_are_watched_to_the_end_while_processes_come_and_go() -> None:
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            subprocess.run(["true"], check=True)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        with Peaks() as peaks:
            time.sleep(1)
            with subprocess.Popen(
                [sys.executable, "-c", "x = bytearray(64 << 20); print(1, flush=True); input()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as child:
                assert child.stdout is not None
                child.stdout.readline()
                time.sleep(0.5)
                child.communicate(b"\n")
    finally:
        ended.set()
        thread.join()
    assert peaks.worker > 64 << 20
