"""`magnetar run` as a process that can be killed, and the files that it leaves."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.e2e.processes import jvm, kill, kill_session, no_nohup, wait_until, workers

MAGNETAR = Path(sys.executable).with_name("magnetar")


class LiveQuery:
    """The query of a folder, which can be started, killed and restarted with the same command line."""

    def __init__(self, folder: Path, ingress: str, responses: str | None, *options: str) -> None:
        self.folder = folder
        self.checkpoint, self.store = folder / "checkpoint", folder / "store"
        answers = [] if responses is None else ["--responses", responses]
        self._arguments = ["--ingress", ingress, *answers, "--checkpoint", str(self.checkpoint),
                           "--store", str(self.store), *options]  # fmt: skip
        self.ingress, self.responses = ingress, (responses or "").rpartition("/")[2]
        self._topic = ingress.rpartition("/")[2]
        self.environment: dict[str, str] = {}
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []

    # -- the process

    def start(self, *options: str) -> None:
        """`options`: after those of the query, for this start."""
        self.starts += 1
        with self._said().open("wb") as said:
            self.process = subprocess.Popen(
                [MAGNETAR, "run", *self._arguments, *options], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                cwd=self.folder, env=os.environ | self.environment, start_new_session=True, preexec_fn=no_nohup,
            )  # fmt: skip

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until `condition` holds. Fails with the output of the process if it ends before."""
        try:
            wait_until(condition, what, self._running())
        except AssertionError as error:
            raise AssertionError(f"start {self.starts}: {error}\n{self.said()[-3000:]}") from None

    def kill(self) -> None:
        """kill −9 of the driver, its JVM and its Python workers."""
        process, self.process = self._running(), None
        kill_session(process)

    def kill_driver(self) -> None:
        """kill −9 of the command alone. Its children must notice."""
        process, self.process = self._running(), None
        process.kill()
        # Not reaped until `close`, so that its pid, which is the session id, stays in use.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self._left.append(process)

    def kill_workers(self) -> int:
        """kill −9 of the Python workers and their daemon. Gives their number."""
        killed = workers(self._running().pid)
        for pid in killed:
            kill(pid)
        return len(killed)

    def kill_jvm(self) -> None:
        """kill −9 of Spark's JVM, as the kernel does to the largest process when memory runs out."""
        kill(jvm(self._running().pid))

    def stop(self, number: signal.Signals) -> int:
        """Send a signal (Ctrl-C to the process group, as a terminal does). Returns the exit code."""
        (os.killpg if number == signal.SIGINT else os.kill)(self._running().pid, number)
        return self.end()

    def end(self) -> int:
        """Wait for the end. Returns the exit code."""
        process = self._running()
        wait_until(lambda: process.poll() is not None, "the end of the query")
        self.process = None
        kill_session(process)  # any remaining children
        return process.returncode

    def said(self) -> str:
        """The terminal output of the last start."""
        return self._said().read_text(errors="replace")

    def close(self) -> None:
        """Make sure that nothing keeps running."""
        for process in (*self._left, *([self.process] if self.process is not None else [])):
            kill_session(process)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def _said(self) -> Path:
        return self.folder / f"said-{self.starts}.txt"

    # -- the checkpoint

    def committed(self) -> int:
        """The last committed micro-batch, or −1."""
        return last_committed(self.checkpoint)

    def begun(self) -> int:
        """The last micro-batch that was planned."""
        return last_begun(self.checkpoint)

    def stored(self) -> int:
        """The last micro-batch with entries in the store."""
        files = (
            file
            for folder in _names(self.store / "segments")
            for file in _names(self.store / "segments" / folder)
        )
        return max((int(file.split("-")[2]) for file in files), default=-1)

    def deleting(self) -> int:
        """The last micro-batch that recorded ledgers to delete."""
        return _last_batch(self.store / "deletions")

    def tabled(self) -> int:
        """The last micro-batch with receipts in their table."""
        table = self.store / "tables" / "kind=SEND_RECEIPT"
        return max((_last_batch(table / date) for date in _names(table)), default=-1)

    def consumed(self) -> dict[int, int]:
        """How many records of each ingress partition the committed micro-batches read."""
        if (last := self.committed()) < 0:
            return {}
        lines = (self.checkpoint / "offsets" / str(last)).read_text().splitlines()
        offsets = json.loads(lines[-1])[self._topic]
        return {int(partition): offset for partition, offset in offsets.items()}


def last_committed(checkpoint: Path) -> int:
    """The last committed micro-batch of a checkpoint, or −1."""
    return max(_numbers(checkpoint / "commits"), default=-1)


def last_begun(checkpoint: Path) -> int:
    """The last micro-batch of a checkpoint that was planned, or −1."""
    return max(_numbers(checkpoint / "offsets"), default=-1)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 (called often, and ten times as fast)
    except FileNotFoundError:
        return []


def _numbers(folder: Path) -> Iterator[int]:
    return map(int, filter(str.isdigit, _names(folder)))


def _last_batch(folder: Path) -> int:
    """The last batch among files named ``<batch>-<partition>``."""
    return max((int(file.split("-")[0]) for file in _names(folder)), default=-1)
