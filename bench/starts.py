"""`python -m bench.starts COMMAND…`: seconds, and seconds of processor time, of a program and all that it starts, as JSON."""

import ctypes
import os
import subprocess
import sys
import time
from contextlib import suppress

import msgspec

_PR_SET_CHILD_SUBREAPER = 36


def measured(command: list[str]) -> tuple[float, float]:
    """Call it in a process without other children: it waits for them all.

    pyspark doesn't wait for its JVM, which becomes this process's child when the program ends.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError("prctl failed: starts can be measured on Linux only")
    begun, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - begun
    with suppress(ChildProcessError):
        while True:
            os.wait()
    after = os.times()
    return seconds, (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


if __name__ == "__main__":
    print(msgspec.json.encode(measured(sys.argv[1:])).decode())
