"""Spark's standalone cluster on this machine, from pyspark's own jars: a master and workers, each a process of its own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import psutil

from streaming.kafka.local import HOST, free_port
from streaming.runtime.java import spark_java_home
from tests.e2e.processes import kill, kill_session, session, wait_until

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_SCALA = "2.13"
_JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
EXECUTOR = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
}
"""Settings for executors that fit on a machine with many of them."""


def _home() -> Path:
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    return Path(pyspark.origin).parent


class Standalone:
    """A master that keeps its state in a folder, and workers with a core each. `environment`: more variables for the workers,
    whose executors and Python inherit them."""

    def __init__(self, folder: Path, environment: dict[str, str], workers: int = 2) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"spark://{HOST}:{self.port}"
        self._environment = environment
        self._count = workers
        self.master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._old: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the master and the workers, and wait until the master knows them all."""
        self.start_master()
        for _ in range(self._count):
            self.start_worker()

    def start_master(self) -> None:
        """Start the master, or start it again after its end: with what it knew before."""
        said = (
            self._log("master").read_text(errors="replace").count(_UP) if self._log("master").exists() else 0
        )
        recovery = self.folder / "recovery"
        options = [
            "-Dspark.deploy.recoveryMode=FILESYSTEM",
            f"-Dspark.deploy.recoveryDirectory={recovery}",
            "-Dspark.worker.timeout=20",
            "-Dspark.master.rest.enabled=false",
        ]
        self.master = self._start(
            "master",
            _MASTER,
            options,
            "--host",
            HOST,
            "--port",
            str(self.port),
            "--webui-port",
            str(free_port()),
        )
        wait_until(lambda: self._said("master", _UP) > said, "the master", self.master)

    def start_worker(self) -> None:
        """Start one more worker, and wait until the master knows it."""
        name = f"worker-{len(self.workers) + len(self._old)}"
        worker = self._start(
            name, _WORKER, [], "--host", HOST, "--webui-port", str(free_port()), "--cores", "1", "--memory", "1g",
            "--work-dir", str(self.folder / name), self.url,
        )  # fmt: skip
        self.workers.append(worker)
        wait_until(lambda: self._said(name, "Successfully registered with master") > 0, "a worker", worker)

    def kill_master(self) -> None:
        """kill −9 of the master. The workers and executors go on."""
        assert self.master is not None
        kill_session(self.master)
        self.master = None

    def kill_worker(self, number: int) -> None:
        """kill −9 of a worker with its executors and their Python, as when its machine ends."""
        worker = self.workers.pop(number)
        self._old.append(worker)
        kill_session(worker)

    def kill_executor(self, number: int) -> int:
        """kill −9 of the executors of a worker, which starts new ones. Gives their number."""
        return self._kill(number, "CoarseGrainedExecutorBackend")

    def kill_python(self, number: int) -> int:
        """kill −9 of the Python workers of a worker's executors, and of the daemon that forks them. Gives their number."""
        return self._kill(number, "streaming.spark.worker_daemon")

    def _kill(self, number: int, argument: str) -> int:
        found = [
            pid for pid in session(self.workers[number].pid) if any(argument in a for a in _arguments(pid))
        ]
        for pid in found:
            kill(pid)
        return len(found)

    def close(self) -> None:
        for process in (*self.workers, *([self.master] if self.master is not None else [])):
            kill_session(process)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, name: str, main: str, options: list[str], *arguments: str) -> subprocess.Popen[bytes]:
        java = spark_java_home()
        # The executors must get Magnetar from the query, and a test looks at the bytecode that they write of it.
        left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        inherited = {name: value for name, value in os.environ.items() if name not in left_out}
        environment = inherited | self._environment | {
            "JAVA_HOME": str(java), "SPARK_HOME": str(_home()), "SPARK_LOCAL_IP": HOST, "SPARK_SCALA_VERSION": _SCALA,
            "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._log(name).open("ab") as log:
            return subprocess.Popen(
                [str(Path(java) / "bin" / "java"), *_JVM, *options, "-cp", f"{_home()}/jars/*", main, *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=environment, start_new_session=True,
            )  # fmt: skip

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _said(self, name: str, text: str) -> int:
        return self._log(name).read_text(errors="replace").count(text)


_UP = "I have been elected leader"


def _arguments(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []
