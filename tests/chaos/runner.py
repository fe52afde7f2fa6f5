"""Runs seeds: starts Kafka and driver processes, and restarts a query until it has read all records and was compared."""

import os
import random
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
from kafka import KafkaAdminClient

from streaming.kafka.local import HOST, LocalKafka, LocalKafkaError
from tests.chaos.driver import Ended, Job, topics
from tests.chaos.faults import Event, Journal
from tests.chaos.plan import Fault, Kind, Plan, plan
from tests.e2e.processes import kill_session

PATIENCE_SECONDS = 300.0
"""The timeout for one start of a query, which takes 3 s on a quiet machine."""

_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""These options halve the CPU time of a driver that runs for minutes."""

_ROOT = Path(__file__).parents[2]
_POLL_SECONDS = 0.05

_CAUSES: dict[Kind, tuple[str, ...]] = {
    "error": ("injected",),
    # Spark notices idle workers that were killed when it reuses them, one attempt per worker.
    "worker": ("Python worker exited unexpectedly", "Stream closed", "Broken pipe", "Connection reset"),
    "kafka": ("Kafka", "kafka", "did not take responses", "TimeoutException"),
    "driver": (),
}
"""The errors of a failed query for each kind of fault. Any other error is a bug that a restart would hide."""


class Hit(NamedTuple):
    """A fault that happened, and its cost until the writes of the next micro-batch (None: there was none)."""

    fault: Fault
    restarts: int
    seconds: float | None


class Result(NamedTuple):
    seed: int
    seconds: float
    starts: int
    armed: int
    hits: list[Hit]
    rows: int
    repeated: int
    failure: str | None


class Failed(Exception):
    """A seed found a bug. The text describes it."""


class Broker:
    """A Kafka broker that is restarted whenever it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kafka = LocalKafka(folder, _port())
        self._kafka.start()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def up(self) -> None:
        """Wait until it is up."""
        with self._lock:
            while self._kafka.status() is None:
                try:
                    self._kafka.start()
                except LocalKafkaError as error:
                    print(f"Kafka: {error}", file=sys.stderr)
                    time.sleep(1)

    def delete(self, names: tuple[str, ...]) -> None:
        """Delete topics, because each one slows down a restart."""
        admin = KafkaAdminClient(bootstrap_servers=self._kafka.bootstrap)
        try:
            admin.delete_topics(list(names))
        finally:
            admin.close()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._kafka.kill()

    def _watch(self) -> None:
        while not self._closing.wait(_POLL_SECONDS):
            self.up()


def _port() -> int:
    """A free port outside the range for outgoing connections.

    Inside that range, a client that tries to reach a stopped broker may connect to itself and block the broker's port.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port := random.randrange(first // 2, first)))
            except OSError:
                continue
            return port


class Driver:
    """A process of `tests.chaos.driver`."""

    def __init__(self, folder: Path, number: int) -> None:
        self._said = folder / f"driver-{number}.txt"
        self.ready = False
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.driver"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=said, cwd=folder, env=os.environ | {"PYTHONPATH": str(_ROOT), "JAVA_TOOL_OPTIONS": _JVM}, start_new_session=True,
            )  # fmt: skip

    def run(self, job: Job) -> Ended | None:
        """Run a job. Returns None if the process died. Raises `Failed` after a timeout."""
        if not self.ready:
            if self._answer() is None:
                raise Failed(f"a driver did not start: {self.said()}")
            self.ready = True
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Ended | None:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE_SECONDS)[0]:
            raise Failed(f"no end within {PATIENCE_SECONDS:.0f} s")
        line = self._process.stdout.readline()
        return msgspec.json.decode(line, type=Ended) if line else None

    def said(self) -> str:
        return self._said.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        kill_session(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Drivers:
    """Keeps one spare driver while one may still be needed, so that no seed waits for Spark to start."""

    def __init__(self, folder: Path, needed: int) -> None:
        self._folder = folder
        self._needed = needed
        self._numbers = count()
        self._lock = threading.Lock()
        self._spare: Driver | None = None
        self._taken: list[Driver] = []
        self._closed = False

    def take(self) -> Driver:
        with self._lock:
            if self._closed:
                raise Failed("stopped")
            driver, self._spare = self._spare or self._new(), None
            self._taken.append(driver)
            self._needed -= 1
            if self._needed > 0:
                self._spare = self._new()
            return driver

    def give_up(self, driver: Driver) -> None:
        with self._lock:
            if self._closed:
                return
            self._taken.remove(driver)
        driver.close()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for driver in (*self._taken, *([] if self._spare is None else [self._spare])):
                driver.close()

    def _new(self) -> Driver:
        return Driver(self._folder, next(self._numbers))


class Slot:
    """The resources that one seed uses at a time."""

    def __init__(self, folder: Path, broker: Broker, drivers: Drivers) -> None:
        self._folder, self._broker, self._drivers = folder, broker, drivers
        self._driver: Driver | None = None

    def run(self, seed: int) -> Result:
        """Run a seed to its end. Keeps its files if it failed."""
        begun = time.monotonic()
        chaos = plan(seed)
        folder = self._folder / str(seed)
        folder.mkdir()
        failure = None
        ended = Ended()
        try:
            ended = self._to_the_end(chaos, folder)
            failure = "; ".join(ended.differences) or None
        except Failed as error:
            failure = str(error)
            self._drop_driver()
        events = Journal(folder).events()
        starts = sum(event.what == "start" for event in events)
        if failure is None:
            self._broker.up()
            self._broker.delete(topics(seed))
            shutil.rmtree(folder)
        return Result(seed, time.monotonic() - begun, starts, len(chaos.faults), [*hits(chaos, events)],
                      ended.rows, ended.repeated, failure)  # fmt: skip

    def _to_the_end(self, chaos: Plan, folder: Path) -> Ended:
        # A fault ends a query once. A killed Kafka may also end the next start, if it isn't up again by then.
        for start in range(1, 3 * len(chaos.faults) + 2):
            self._broker.up()
            self._driver = self._driver or self._drivers.take()
            ended = self._driver.run(Job(chaos.seed, start, str(folder), str(self._broker.folder)))
            struck = {fault.kind for fault in _since_start(chaos, Journal(folder).events())}
            if ended is None:
                said = self._driver.said()
                self._drop_driver()
                if "driver" not in struck:
                    raise Failed(f"start {start}: the driver ended by itself: {said}")
            elif ended.error is None:
                return ended
            elif not any(text in ended.error for kind in struck for text in _CAUSES[kind]):
                raise Failed(f"start {start}: ended with an error that no fault explains: {ended.error}")
        raise Failed(f"not done after {start} starts")

    def _drop_driver(self) -> None:
        if self._driver is not None:
            self._drivers.give_up(self._driver)
            self._driver = None


def run(seeds: Sequence[int], jobs: int, folder: Path) -> Generator[Result, None, None]:
    """The results of `seeds` in order of completion, `jobs` at a time. Always close it, so that nothing keeps running."""
    killed = sum(fault.kind == "driver" for seed in seeds for fault in plan(seed).faults)
    drivers = Drivers(folder, min(jobs, len(seeds)) + killed)
    brokers: list[Broker] = []
    free: list[Slot] = []
    stop = threading.Event()

    def one(seed: int) -> Result | None:
        if stop.is_set():
            return None
        slot = free.pop()
        try:
            return slot.run(seed)
        finally:
            free.append(slot)

    try:
        for number in range(jobs):
            brokers.append(Broker(folder / f"kafka-{number}"))
            free.append(Slot(folder, brokers[-1], drivers))
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for future in as_completed([pool.submit(one, seed) for seed in seeds]):
                    if (result := future.result()) is not None:
                        yield result
            finally:
                stop.set()
                drivers.close()  # wakes those that wait for a driver
    finally:
        drivers.close()
        for broker in brokers:
            broker.close()


def hits(chaos: Plan, events: list[Event]) -> Iterator[Hit]:
    """The faults that happened, in order."""
    for at, event in enumerate(events):
        if event.what != "hit":
            continue
        restarts, seconds = 0, None
        for later in events[at + 1 :]:
            restarts += later.what == "start"
            if later.what == "done":
                seconds = later.at - event.at
                break
        yield Hit(chaos.faults[event.number], restarts, seconds)


def _since_start(chaos: Plan, events: list[Event]) -> Iterator[Fault]:
    for event in reversed(events):
        if event.what == "start":
            return
        if event.what == "hit":
            yield chaos.faults[event.number]
