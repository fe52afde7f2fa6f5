"""What `magnetar mirror` costs: itself with many topics, and the broker that it looks at.

`python -m bench.mirror` mirrors a stand-in for a cluster, an HTTP server in another process, beside the same number of GETs whose answers
nobody reads. `--rate 50` shows how far behind a mirror with so many GETs per second is. `--broker` measures the processor time of a real broker under steady traffic without a mirror, with one that samples, and
with one that reads. Ratios are of runs in the same round.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psutil
import pulsar

from bench import MAGNETAR
from bench.memory import of_this_process
from streaming.kafka.local import HOST
from streaming.mirror.journal import LogFolder
from streaming.mirror.mirror import ClusterMirror
from streaming.record.rest import Rest
from tests.parity.pulsar import LocalPulsar

NAMESPACE = "public/default"
THREADS = 8
"""As many as a mirror asks with."""
ENTRIES, SIZE, SUBSCRIPTIONS = 5, 200, 2
"""How many entries of how many bytes a topic of the stand-in gets between two looks, and how many subscriptions it has."""
BETWEEN = "/seconds-between-looks"
"""A call that only the stand-in has."""
RATE, TOPICS, WARM_SECONDS = 200, 20, 20
"""The real broker's traffic: messages per second, on so many topics with a consumer each, and how long it and the mirror run before."""


# -- the mirror itself -----------------------------------------------------------------------------------------------------


class StandIn(BaseHTTPRequestHandler):
    """The admin API of a cluster with topics that all change between two looks."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one packet, or else the mirror's system waits with its ACK
    topics: tuple[str, ...] = ()
    looks: ClassVar = defaultdict[str, int](int)
    looked: ClassVar = dict[str, float]()
    between: ClassVar = list[float]()
    """Seconds between two looks at a topic."""

    def do_GET(self) -> None:
        """Answer a call."""
        path = self.path.partition("?")[0].removeprefix("/admin/v2")
        answer = self._answer(path)
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, path: str) -> Any:
        if path == f"/persistent/{NAMESPACE}":
            return self.topics
        if path == f"/persistent/{NAMESPACE}/partitioned":
            return []
        if path == f"/namespaces/{NAMESPACE}":
            return {}
        if path == BETWEEN:
            return self.between
        topic, _, what = path.rpartition("/")
        if what == "internalStats":
            self.looks[topic] += 1
            now = time.monotonic()
            if topic in self.looked:
                self.between.append(now - self.looked[topic])
            self.looked[topic] = now
            return self._internal(self.looks[topic] * ENTRIES)
        if what == "stats":
            seen = {"type": "Shared", "consumers": [], "isDurable": True, "unackedMessages": 0}
            return {
                "msgInCounter": self.looks[topic] * ENTRIES, "publishers": [], "ongoingTxnCount": 0,
                "subscriptions": {f"s{number}": seen for number in range(SUBSCRIPTIONS)},
            }  # fmt: skip
        return None

    def _internal(self, entries: int) -> Any:
        cursor = {"markDeletePosition": f"7:{entries - ENTRIES}", "individuallyDeletedMessages": "[]"}
        return {
            "numberOfEntries": entries, "totalSize": entries * SIZE, "currentLedgerEntries": entries,
            "currentLedgerSize": entries * SIZE, "lastConfirmedEntry": f"7:{entries - 1}", "state": "LedgerOpened",
            "ledgers": [{"ledgerId": 7, "entries": 0, "size": 0}],
            "cursors": {f"s{number}": cursor for number in range(SUBSCRIPTIONS)},
        }  # fmt: skip


def serve(topics: int) -> None:
    """Serve the stand-in, and print its port."""
    StandIn.topics = tuple(f"persistent://{NAMESPACE}/topic-{number}" for number in range(topics))
    with ThreadingHTTPServer((HOST, 0), StandIn) as server:
        server.daemon_threads = True
        print(server.server_address[1], flush=True)
        server.serve_forever()


@contextmanager
def stand_in(topics: int, rate: float = 1e6) -> Iterator[Rest]:
    """A stand-in in another process, to which so many calls per second go."""
    command = [sys.executable, "-m", "bench.mirror", "--serve", "--topics", str(topics)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Rest(f"http://{HOST}:{int(process.stdout.readline())}", rate=rate)
    finally:
        process.terminate()
        process.wait()


class Round(NamedTuple):
    """A round of a mirror: its seconds, seconds of processor time, GETs, and the resident bytes after it."""

    seconds: float
    processor: float
    calls: int
    resident: int


class Measured(threading.Event):
    """Stops a mirror after so many rounds, and notes each."""

    def __init__(self, rounds: int, rest: Rest) -> None:
        super().__init__()
        self._left, self._rest = rounds, rest
        self.rounds: list[Round] = []
        self._begin()

    def wait(self, timeout: float | None = None) -> bool:
        """The mirror has ended a round."""
        seconds, processor = time.perf_counter() - self._begun, time.process_time() - self._used
        self.rounds.append(Round(seconds, processor, self._rest.calls - self._calls, of_this_process()))
        self._left -= 1
        if self._left == 0:
            self.set()
        done = super().wait(timeout)
        self._begin()
        return done

    def _begin(self) -> None:
        self._begun, self._used = time.perf_counter(), time.process_time()
        self._calls = self._rest.calls


def bare(rest: Rest, topic: str, calls: int) -> tuple[float, float]:
    """Seconds, and seconds of processor time, of so many GETs whose answers nobody reads."""
    path = f"/persistent/{NAMESPACE}/{topic}/internalStats"
    begun, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(lambda _: rest.get(path), range(calls)):
            pass
    return time.perf_counter() - begun, time.process_time() - used


def _sampling(rest: Rest, log: LogFolder, every: float) -> ClusterMirror:
    """A mirror that samples the topics of the stand-in."""
    return ClusterMirror(
        f"pulsar://{HOST}:1", rest, [NAMESPACE], log, entries="sampled", every=every, say=lambda _: None
    )


def itself(topics: int, rounds: int) -> None:
    """A mirror that samples the topics of the stand-in. The first round has no looks before it, so it is a line of its own."""
    before = of_this_process()
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder, stand_in(topics) as rest:
        measured = Measured(rounds + 1, rest)
        with LogFolder(Path(folder) / "log") as log:
            _sampling(rest, log, every=1.0).run(measured)
        print("| round | GETs | s | GETs/s | × bare GETs | by processor time | resident, MB more |")
        print("|---|---|---|---|---|---|---|")
        for number, each in enumerate(measured.rounds, 1):
            seconds, processor = bare(rest, "bare", each.calls)
            print(
                f"| {number} | {each.calls:,} | {each.seconds:.2f} | {each.calls / each.seconds:,.0f} | {each.seconds / seconds:.2f} | "
                f"{each.processor / processor:.2f} | {(each.resident - before) / 2**20:.0f} |", flush=True,
            )  # fmt: skip


def behind(topics: int, rounds: int, rate: float) -> None:
    """How long ago a mirror with a limited rate has looked at a topic, while all of them change."""
    before = of_this_process()
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder, stand_in(topics, rate) as rest:
        measured = Measured(rounds, rest)
        with LogFolder(Path(folder) / "log") as log:
            begun = time.perf_counter()
            _sampling(rest, log, every=10.0).run(measured)
            seconds = time.perf_counter() - begun
        between = sorted(Rest(rest.url).get(BETWEEN, list[float]))
    print(
        f"{topics:,} topics, {rate:g} GETs per second allowed, {rest.calls / seconds:.1f} sent, in {seconds:.0f} s"
    )
    print(f"{sum(each.processor for each in measured.rounds) / seconds:.1%} of a processor", end=", ")
    print(f"{(measured.rounds[-1].resident - before) / 2**20:.0f} MB more than before it began")
    print(
        f"seconds between two looks at a topic: {between[len(between) // 2]:.0f} at the median, {between[-1]:.0f} at most"
    )


# -- the broker ------------------------------------------------------------------------------------------------------------


def traffic(url: str, stop: threading.Event) -> None:
    """Messages at a steady rate, each acknowledged, until `stop` is set."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    names = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(TOPICS)]
    for name in names:
        client.subscribe(name, "s", message_listener=lambda consumer, message: consumer.acknowledge(message))
    producers = [client.create_producer(name) for name in names]
    begun, sent = time.monotonic(), 0
    while not stop.is_set():
        producers[sent % TOPICS].send_async(bytes(SIZE), lambda *_: None)
        sent += 1
        stop.wait(max(begun + sent / RATE - time.monotonic(), 0))
    with suppress(pulsar.PulsarException):
        for each in producers:
            each.flush()
        client.close()


@contextmanager
def mirrored(broker: LocalPulsar, folder: Path, entries: str | None) -> Iterator[None]:
    """A mirror of a broker, or none."""
    if entries is None:
        yield
        return
    urls = ["--service-url", f"pulsar://{HOST}:{broker.ports.broker}", "--admin-url", f"http://{HOST}:{broker.ports.admin}"]  # fmt: skip
    command = [MAGNETAR, "mirror", NAMESPACE, "--to", str(folder), "--entries", entries, *urls]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"the mirror ended with {process.returncode}")
    finally:
        process.terminate()
        process.wait()


def of_broker(rounds: int, seconds: float) -> None:
    """The processor time of a real broker, with and without a mirror."""
    print("| round | mirror | the broker's processor time per second, s | × without |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as scratch:
        broker = LocalPulsar(Path(scratch) / "pulsar", {})  # Pulsar's defaults
        with broker:
            stop = threading.Event()
            clients = threading.Thread(target=traffic, args=(f"pulsar://{HOST}:{broker.ports.broker}", stop))
            clients.start()
            try:
                time.sleep(2 * WARM_SECONDS)
                process = psutil.Process(broker._process.pid)
                for number in range(rounds):
                    without = 0.0
                    for entries in (None, "sampled", "read"):
                        with mirrored(broker, Path(scratch) / f"{entries}-{number}", entries):
                            time.sleep(WARM_SECONDS)
                            begun, before = time.perf_counter(), process.cpu_times()
                            time.sleep(seconds)
                            after, took = process.cpu_times(), time.perf_counter() - begun
                        used = (after.user + after.system - before.user - before.system) / took
                        without = without or used
                        print(
                            f"| {number + 1} | {entries or 'none'} | {used:.3f} | {used / without:.2f} |",
                            flush=True,
                        )
            finally:
                stop.set()
                clients.join()


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench.mirror", description=(__doc__ or "").partition("\n")[0])  # fmt: skip
    parser.add_argument("--topics", type=int, default=2000, help="the topics of the stand-in")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--rate", type=float, help="GETs per second: how far behind the mirror is then (take 40 rounds)"
    )
    parser.add_argument("--broker", action="store_true", help="measure a real broker instead (needs Maven)")
    parser.add_argument("--seconds", type=float, default=60, help="with --broker: of each measurement")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.topics)
    elif given.rate:
        behind(given.topics, given.rounds, given.rate)
    elif given.broker:
        of_broker(given.rounds, given.seconds)
    else:
        itself(given.topics, given.rounds)


if __name__ == "__main__":
    main()
