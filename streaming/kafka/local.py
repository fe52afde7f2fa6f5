"""A real Kafka broker for one machine: one process, one folder, loopback only.

`LocalKafka` is a handle on a folder, not on a process: the folder records what runs there, so that another process
(`magnetar kafka down`) can find it. The broker outlives the process that started it.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import psutil

from sinks.lock import exclusive
from sinks.outputs import new_file
from streaming.runtime.jars import kafka_broker_jars
from streaming.runtime.java import java_binary

HOST = "127.0.0.1"

_START_SECONDS = 60.0  # usually 2 s, 5 s after a kill; a loaded machine may take many times that
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.05
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_FOREVER = 2**63 - 1

_JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]  # a fast start and a small process
_LOGGING = {
    "defaultLogLevel": "warn",
    "log.kafka.server.KafkaRaftServer": "info",  # says when the broker is up
    "showDateTime": "true",
    "dateTimeFormat": "yyyy-MM-dd HH:mm:ss.SSS",
}
_UP = "Kafka Server started"
_CONFIG = "server.properties"


class LocalKafkaError(RuntimeError):
    """The broker could not do what it was asked to. The message says why and what to do."""


class NotStarted(LocalKafkaError):
    """There was no attempt to start the broker, because it is up, or its port is taken."""


@dataclass(frozen=True, slots=True)
class Running:
    """A broker process that is running."""

    pid: int
    port: int

    @property
    def bootstrap(self) -> str:
        """The address for clients, `host:port`."""
        return f"{HOST}:{self.port}"


class LocalKafka:
    """The Kafka broker of one folder: its data in `data/`, its output in `kafka.log`, its process in `kafka.json`.

    Topics are kept in the folder and survive restarts. Nothing in them expires: a command log is the truth, and records
    may carry any timestamp, past or future. Topics are not created automatically, so a misspelt name is an error.
    """

    def __init__(
        self, directory: Path | str, port: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """`port` 0: the port of the last start if it is free, else any free one. `properties` override the broker's own
        here."""
        self.directory = Path(directory).absolute()
        self.log = self.directory / "kafka.log"
        self._wanted_port = port
        self._properties = dict(properties or {})
        self._state = self.directory / "kafka.json"
        self._mark = f"-Dmagnetar.folder={self.directory}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients, `host:port`. Raises LocalKafkaError if the broker is not up."""
        return self._must_run().bootstrap

    def status(self) -> Running | None:
        """The broker that runs in this folder, whoever started it; None if there is none."""
        state = self._last()
        return state if state is not None and self._is_alive(state.pid) else None

    def start(self) -> Running:
        """Start the broker and wait until it serves clients (2 s; 5 s after a kill).

        Raises:
            NotStarted: a broker is already up in this folder, or the port is taken.
            InUse, NotWritable: another process starts one in this folder, or the folder can't be written.
            LocalKafkaError: the broker did not come up.
            JavaNotFoundError, JarsUnavailableError: there is no Java, or there are no jars.
        """
        with exclusive([str(self.directory)], "magnetar kafka up"):
            running = self.status()
            if running is not None:
                raise NotStarted(f"Kafka is already up at {running.bootstrap} (pid {running.pid})")
            last = self._last()
            port = _choose_port(self._wanted_port, last.port if last else 0)
            self.directory.mkdir(parents=True, exist_ok=True)
            settings = _properties(port, free_port()) | self._properties
            with new_file(self.directory / _CONFIG, replace=True) as config:
                config.write("".join(f"{key}={value}\n" for key, value in settings.items()).encode())
            logging = [f"-Dorg.slf4j.simpleLogger.{key}={value}" for key, value in _LOGGING.items()]
            classpath = os.pathsep.join(map(str, kafka_broker_jars()))
            java = [str(java_binary()), *_JVM, *logging, "-cp", classpath]
            with self.log.open("ab") as log:
                self._format(java, log.fileno())
                start_of_log = log.tell()
                # A session of its own: Ctrl-C in the terminal that started it must not reach it.
                # The folder as working directory: crash files land there. And Kafka gets relative paths, because it
                # splits a path at commas, and Java reads arguments in the locale's encoding.
                self._process = subprocess.Popen(
                    [*java, self._mark, "kafka.Kafka", _CONFIG],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    start_new_session=True,
                )
            running = Running(self._process.pid, port)
            with new_file(self._state, replace=True) as state:
                state.write(json.dumps(asdict(running)).encode())
            try:
                self._wait_until_up(self._process, start_of_log)
            except BaseException:  # the caller was interrupted
                self.kill()
                raise
            return running

    def stop(self) -> None:
        """Shut the broker down, by force if that takes longer than 30 s. Does nothing if it is not up."""
        running = self.status()
        if running is None:
            return
        os.kill(running.pid, signal.SIGTERM)
        if not self._wait_until_gone(running.pid):
            self.kill()

    def kill(self) -> None:
        """Kill the broker as a crash would (SIGKILL). Does nothing if it is not up."""
        running = self.status()
        if running is None:
            return
        os.kill(running.pid, signal.SIGKILL)
        if not self._wait_until_gone(running.pid):
            raise LocalKafkaError(f"Kafka (pid {running.pid}) does not exit; see {self.log}")

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until every partition has a leader.

        Raises:
            LocalKafkaError: the broker is not up, or the name is taken or illegal.
        """
        # Imported late: it takes longer than the rest of this module.
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        topic = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config or {})}
        try:
            (result,) = admin.create_topics({name: topic}, raise_errors=False)["topics"]
            if result["error_code"]:
                raise LocalKafkaError(f"Kafka did not create the topic {name!r}: {result['error_message']}")
            admin.wait_for_topics([name])
        finally:
            admin.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _must_run(self) -> Running:
        running = self.status()
        if running is None:
            raise LocalKafkaError(f"Kafka is not up in {self.directory}")
        return running

    def _last(self) -> Running | None:
        try:
            return Running(**json.loads(self._state.read_text()))
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
            return None

    def _is_alive(self, pid: int) -> bool:
        if self._process is not None and self._process.pid == pid:
            return self._process.poll() is None
        # The number alone proves nothing: after a reboot it may be anybody's.
        return _runs(pid, self._mark)

    def _is_gone(self, pid: int) -> bool:
        if self._process is not None and self._process.pid == pid:
            return self._process.poll() is not None
        return is_gone(pid)

    def _format(self, java: list[str], log: int) -> None:
        if (self.directory / "data" / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # `--cluster-id=…` in one word: an id may begin with a dash.
        format_ = [
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster}",
            "--config",
            _CONFIG,
        ]
        done = subprocess.run([*java, *format_], stdout=log, stderr=log, cwd=self.directory, check=False)
        if done.returncode != 0:
            raise LocalKafkaError(f"Kafka could not format {self.directory / 'data'}; see {self.log}")

    def _wait_until_up(self, process: subprocess.Popen[bytes], start_of_log: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            # Checked before the log is read, so that the last lines of a dead broker are not missed.
            ended = process.poll() is not None
            with self.log.open("rb") as log:
                log.seek(start_of_log)
                said = log.read().decode(errors="replace")
            if _UP in said:
                return
            if ended:
                raise LocalKafkaError(f"Kafka exited at once; the end of {self.log}:\n{said[-1500:].strip()}")
            time.sleep(_POLL_SECONDS)
        self.kill()
        raise LocalKafkaError(f"Kafka was not up after {_START_SECONDS:.0f} s; see {self.log}")

    def _wait_until_gone(self, pid: int) -> bool:
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            if self._is_gone(pid):
                return True
            time.sleep(_POLL_SECONDS)
        return False


def is_gone(pid: int) -> bool:
    """Whether a process has ended and let go of its port and files.

    Its parent may not have waited for it yet (a zombie). A zombie whose threads still end holds on to them.
    """
    try:
        process = psutil.Process(pid)
        return process.status() in _ENDED and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def _runs(pid: int, argument: str) -> bool:
    """Whether a process runs with `argument` among its arguments."""
    try:
        return argument in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _choose_port(wanted: int, last: int) -> int:
    if wanted:
        if not _is_free(wanted):
            raise NotStarted(f"port {wanted} on {HOST} is taken; choose another (0: any free one)")
        return wanted
    return last if last and _is_free(last) else free_port()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Java's server sockets do: connections of a broker that has just exited must not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _properties(port: int, controller_port: int) -> dict[str, object]:
    return {
        # Broker and controller in one process.
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": "data",
        # One broker, so one replica.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        # The default of fifty partitions each means fifty folders, and seconds at every start.
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
        # Time is data: records may be years old or years ahead. None expires or starts a new segment.
        "log.retention.ms": -1,
        "log.message.timestamp.after.max.ms": _FOREVER,
        "log.roll.ms": _FOREVER,
        # A Pulsar message may have 5 MiB; in a JSON command its payload grows by a third.
        "message.max.bytes": 16 * 1024 * 1024,
        # With the defaults, a restart after a kill waits 9 s longer, for the dead broker's session to end.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
    }
