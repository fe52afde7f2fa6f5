"""`magnetar serve` beside a real broker, with Pulsar's own `pulsar-perf` in front of each. Maven fetches both."""

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

from streaming.kafka.local import HOST, LocalKafka
from streaming.runtime.java import java_binary
from tests.parity.pulsar import LocalPulsar, jars_of

WORKLOADS = {
    "unbatched, 1,000 outstanding": ("-db", "-r", "1000000", "-o", "1000"),
    "batched, 20,000 outstanding": ("-r", "1000000", "-o", "20000"),
    "unbatched, 1,000 messages/s": ("-db", "-r", "1000", "-o", "1000"),
}
"""Options of ``pulsar-perf produce``, besides messages of 100 bytes from one producer."""

_POM = Path(__file__).parent / "perf" / "pom.xml"
_INTERVAL = 10
"""Seconds between two lines of pulsar-perf."""
_RATE = re.compile(r"Throughput produced:.*? msg ---\s*([\d.]+) msg/s")
_LATENCY = re.compile(r"Throughput produced:.*Latency: mean:.*? med:\s*([\d.]+).*?99pct:\s*([\d.]+)")


class Perf(NamedTuple):
    """Messages/s, latencies (ms), and the broker's processor time (µs) per message. Medians of the intervals after the first."""

    rate: float
    p50: float
    p99: float
    processor: float


class Broker(NamedTuple):
    """A broker that serves."""

    url: str
    process: psutil.Process


@contextmanager
def magnetar(folder: Path, *options: str) -> Iterator[Broker]:
    """`magnetar serve` with a data folder and fsync."""
    command = ["-c", "from streaming.cli import main; main()", "serve", "--listen", f"{HOST}:0", "--admin-listen", f"{HOST}:0",
               "--data", str(folder), *options]  # fmt: skip
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        yield Broker(
            process.stderr.readline().split()[2].replace("localhost", HOST), psutil.Process(process.pid)
        )
    finally:
        process.terminate()
        process.wait()


@contextmanager
def pulsar(folder: Path) -> Iterator[Broker]:
    """A real broker with Java's optimising compiler, whose bookie syncs its journal."""
    broker = LocalPulsar(folder, {"journalSyncData": "true"})
    broker.java_options = ["-Xmx1g", "-XX:MaxDirectMemorySize=1g"]
    with broker:
        yield Broker(f"pulsar://{HOST}:{broker.ports.broker}", psutil.Process(broker._process.pid))


def produce(broker: Broker, folder: Path, topic: str, seconds: int, options: tuple[str, ...]) -> Perf:
    """Run ``pulsar-perf produce`` for so long."""
    config = folder / "client.conf"
    config.write_text(f"brokerServiceUrl={broker.url}\n")
    command = [str(java_binary()), "-Xmx1g", "-cp", f"{jars_of(_POM, 'pulsar-perf')}/*",
               "org.apache.pulsar.testclient.PulsarPerfTestTool", str(config), "produce", "-u", broker.url, "-s", "100",
               "-time", str(seconds), *options, topic]  # fmt: skip
    before = broker.process.cpu_times()
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120, check=True)
    after = broker.process.cpu_times()
    used = after.user + after.system - before.user - before.system
    rates = [float(each) for each in _RATE.findall(done.stdout)]
    latencies = [(float(p50), float(p99)) for p50, p99 in _LATENCY.findall(done.stdout)][1:]
    if not latencies:
        raise RuntimeError(f"pulsar-perf said nothing after {seconds} s: {done.stdout[-2000:]}")
    p50s, p99s = zip(*latencies, strict=True)
    sent = _INTERVAL * sum(rates)
    return Perf(
        statistics.median(rates[1:]), statistics.median(p50s), statistics.median(p99s), 1e6 * used / sent
    )


def rounds(folder: Path, count: int, seconds: int) -> Iterator[tuple[str, Perf, Perf]]:
    """Each workload on Magnetar and on the real broker, one after the other, so many times. Both are up all the time."""
    with magnetar(folder / "magnetar") as own, pulsar(folder / "pulsar") as real:
        for number in range(count):
            for name, options in WORKLOADS.items():
                first, second = (
                    produce(broker, folder, f"{name[:5]}-{number}", seconds, options)
                    for broker in (own, real)
                )
                yield name, first, second


def on_spark(folder: Path, seconds: int) -> tuple[Perf, float]:
    """1,000 messages/s to `magnetar serve --engine spark`, and the median time of a micro-batch meanwhile (ms)."""
    kafka = LocalKafka(folder / "kafka")
    try:
        url, data = f"kafka://{kafka.start().bootstrap}", folder / "spark"
        options = ("--engine", "spark", "--ingress", f"{url}/commands", "--responses", f"{url}/responses")
        with magnetar(data, *options, "--trigger", "0s") as broker:
            produce(broker, folder, "warm", 2 * _INTERVAL, WORKLOADS["unbatched, 1,000 messages/s"])
            begun = time.time()
            found = produce(broker, folder, "steady", seconds, WORKLOADS["unbatched, 1,000 messages/s"])
            ends = sorted(each.stat().st_mtime for each in data.glob("checkpoint/commits/[0-9]*"))
    finally:
        kafka.stop()
    times = [after - before for before, after in pairwise(end for end in ends if end > begun)]
    return found, 1000 * statistics.median(times)
