"""`python -m tests.mirror.twin`: a real Pulsar, its mirror and the mirror's query, killed again and again, are the same in the end.

Official clients and operators do all that `tests.mirror.traffic` can, while `magnetar mirror` follows the broker into a Kafka topic and
`magnetar run` folds it. Both are killed with kill -9 at random moments, once at the same one. At rest:

* the log has every entry once and in order: those that producers have receipts for, and as many per ledger as the broker showed;
* the twin in the query's checkpoint differs from the broker in nothing that `tests.mirror.kit.differences` compares;
* the query's rows, entries and state are those of one undisturbed fold of the Kafka topic.

Meanwhile the twin's backlogs must be ones that the broker had between the twin's time and now. Exits with 1 if something is wrong. Ctrl-C
ends the traffic, and what came until then is judged.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from streaming.answers.history.folders import NotFound
from streaming.answers.history.inspection import states_at
from streaming.kafka.local import LocalKafka, free_port
from streaming.kafka.url import KafkaUrl
from streaming.record.rest import Rest
from streaming.spark.failure import QueryFailed
from streaming.spark.session import spark_session
from tests.e2e.live import MAGNETAR, LiveQuery
from tests.e2e.processes import no_nohup
from tests.mirror.judge import brokers_of, drift_of, of_entries, of_rows, read_log
from tests.mirror.kit import differences
from tests.mirror.traffic import NAMESPACE, Traffic, config
from tests.mirror.watch import EVERY, Watch
from tests.parity.pulsar import VERSION, LocalPulsar

_DOWN_SECONDS = 5.0
"""For so long a killed process is away at most."""

_REST_SECONDS = 900.0
"""For so long the twin may take to be at rest. A subscription that differs is put right after ten minutes."""

_STAYS_SECONDS = 75.0
"""After so long it must be so again: the broker's slowest check comes once a minute."""

_TWIN = "the twin"

_SLOWEST_SECONDS = 20 * EVERY
"""For so long a mirror may not look at a topic on which nothing happens, and the query takes a little."""


class Mirror:
    """`magnetar mirror` as a process that can be killed."""

    def __init__(self, folder: Path, traffic: Traffic, ingress: str) -> None:
        self._command = [
            str(MAGNETAR), "mirror", NAMESPACE, "--ingress", ingress, "--service-url", traffic.url, "--admin-url", traffic.admin_url,
            "--every", f"{EVERY:g}s",
        ]  # fmt: skip
        self._said = folder / "mirror.txt"
        self.process: subprocess.Popen[bytes] | None = None
        self.problems: list[str] = []

    def start(self) -> None:
        with self._said.open("ab") as said:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, preexec_fn=no_nohup
            )

    def kill(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            self.problems.append(f"the mirror ended with {self.process.returncode}, see {self._said}")
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        if (code := self.process.wait(120)) != 0:
            self.problems.append(f"the mirror ended with {code}, see {self._said}")
        self.process = None

    def close(self) -> None:
        if self.process is not None:
            self.kill()


def differences_of(spark: SparkSession, checkpoint: Path, traffic: Traffic) -> dict[str, Any]:
    """How the twins in a checkpoint differ from the broker's topics, by topic."""
    try:
        brokers = brokers_of(states_at(spark, checkpoint))
    except (NotFound, QueryFailed) as error:  # it has not begun, or went on meanwhile
        return {_TWIN: str(error)}
    rest = Rest(traffic.admin_url)
    found = {
        topic: differences(rest, topic, brokers[topic]) if topic in brokers else {"topic": "missing"}
        for topic in traffic.topics
    }
    return {topic: each for topic, each in found.items() if each}


def at_rest(different: Callable[[], dict[str, Any]], seconds: float, pause: float = 3.0) -> dict[str, Any]:
    """Wait until each topic has been equal to its twin once, for so long at most. Returns how the others still differ.

    Not all at a time: the broker deletes ledgers for as long as its retention says.
    """
    deadline = time.monotonic() + seconds
    left = different()
    while left and time.monotonic() < deadline:
        time.sleep(pause)
        now = different()
        left = now if _TWIN in left or _TWIN in now else {topic: now[topic] for topic in left if topic in now}
    return left


class Run:
    """One run in `folder`."""

    def __init__(self, folder: Path, version: str, seconds: float, kills: int, seed: str) -> None:
        self._folder, self._version, self._seconds, self._kills = folder, version, seconds, kills
        self._draw, self._seed = Random(seed), seed
        self.killed = Counter[str]()
        self.wrong: list[str] = []

    def __call__(self) -> list[str]:
        """What is wrong."""
        with ExitStack() as stack:
            real = stack.enter_context(LocalPulsar(self._folder / "pulsar", config(), self._version))
            kafka = LocalKafka(self._folder / "kafka")
            kafka.start()
            stack.callback(kafka.stop)
            spark = spark_session("twin", shuffle_partitions=1, master="local[1]")
            stack.callback(spark.stop)
            url = KafkaUrl(kafka.bootstrap, f"twin-{uuid4().hex[:8]}")
            ingress, metrics = f"kafka://{url.bootstrap}/{url.topic}", free_port()
            traffic = Traffic(real, self._seed, pause=2.0)
            mirror = Mirror(self._folder, traffic, ingress)
            query = LiveQuery(
                self._folder, ingress, None, "--trigger", f"{EVERY:g}s", "--metrics", str(metrics)
            )
            watch = Watch(traffic, metrics)
            stack.callback(mirror.close)
            stack.callback(query.close)
            traffic.start()
            mirror.start()
            query.start()
            watch.start()
            said("traffic")
            self._disturb(mirror, query)
            traffic.stop()
            stopped = time.monotonic()
            watch.stop.set()
            watch.join()
            watch.save(self._folder / "samples.json")
            said("traffic has ended: " + ", ".join(f"{n} {what}" for what, n in sorted(traffic.done.items())))

            def different() -> dict[str, Any]:
                return differences_of(spark, query.checkpoint, traffic)

            left = at_rest(different, _REST_SECONDS)
            seconds = time.monotonic() - stopped
            said(f"at rest after {seconds:.0f} s" if not left else f"not at rest: {left}")
            time.sleep(_STAYS_SECONDS)
            left = at_rest(different, _SLOWEST_SECONDS)
            watch.look()  # also at ledgers that had no sample
            mirror.stop()
            time.sleep(10 * EVERY)  # the query gets to the end of the log
            code = query.stop(signal.SIGTERM)
            wrong = self.wrong + [f"{topic}: twin and broker: {each}" for topic, each in left.items()]
            if code != 0:
                wrong.append(f"the query ended with {code}: {query.said()[-500:]}")
            log = read_log(url)
            acked = traffic.acked
            short = watch.short_lived(acked)
            wrong += of_entries(log.sends, acked, watch.ledgers, watch.closed, short)
            kept = {topic: {ledger for ledger, _ in sends} for topic, sends in log.sends.items()}
            unread = sum(len(ledgers - kept.get(topic, set())) for topic, ledgers in short.items())
            states = states_at(spark, query.checkpoint)
            rows, unequal = of_rows(states, query.store, log, self._folder / "expected")
            wrong += unequal
            drift = drift_of(query.store)
        entries = sum(map(len, log.sends.values()))
        judged = watch.judged(traffic.sought)
        lags = sorted(judged.lags) or [0.0]
        receipts = sum(map(len, traffic.acked.values()))
        if traffic.starts > 1:
            said(f"the clients' library crashed {traffic.starts - 1} times")
        wrong += mirror.problems + judged.beyond[:5]
        if watch.failed is not None:
            wrong.append(f"samples: {watch.failed!r}")
        said(
            f"Pulsar {self._version}, {self._seconds:.0f} s of traffic: {traffic.done['messages']:,} sends, {entries:,} entries ({receipts:,} "
            f"receipts) in {len(log.sends)} topics and {sum(map(len, watch.ledgers.values())):,} ledgers, {len(watch.backlogs)} subscriptions\n"
            f"kill -9: {', '.join(f'{n} × {what}' for what, n in sorted(self.killed.items())) or 'none'}\n"
            f"{unread} ledgers that the broker deleted before they were read\n"
            f"log: {len(log.records):,} records; output: {rows:,} rows\n"
            f"during traffic ({judged.compared:,} backlogs): {judged.largest} entries at most from the broker's of the same moment; "
            f"{median(lags):.1f} s old, {lags[len(lags) * 99 // 100]:.1f} s at the 99th percentile, {lags[-1]:.1f} s at most; a check of the twin "
            f"was ahead in {judged.ahead}; {len(judged.beyond)} not explained by the interval\n"
            f"at looks: {drift.rows} MIRROR_DRIFT rows of subscriptions, {drift.entries} entries and {drift.seconds:.1f} s at most {drift.where}\n"
            f"at rest: after {seconds:.0f} s, {len(wrong)} differences"
        )  # fmt: skip
        return wrong

    def _disturb(self, mirror: Mirror, query: LiveQuery) -> None:
        """Kill each as often as told at random moments, at the same one in the end."""
        part, begun = self._seconds / max(self._kills, 1), time.monotonic()
        events: list[tuple[float, str]] = []
        for number in range(self._kills):
            both = number == self._kills - 1
            moments = [(number + self._draw.uniform(0.1, 0.85)) * part for _ in range(2)]
            events += [(moments[0], "both")] if both else [(moments[0], "mirror"), (moments[1], "query")]
        try:
            for at, what in sorted(events):
                time.sleep(max(begun + at - time.monotonic(), 0))
                if what in ("both", "mirror"):
                    mirror.kill()
                if what in ("both", "query"):
                    if query.process is None or query.process.poll() is not None:
                        self.wrong.append(f"the query ended: {query.said()[-500:]}")
                    query.kill()
                self.killed[what] += 1
                time.sleep(self._draw.uniform(0, _DOWN_SECONDS))
                if what in ("both", "query"):
                    query.start()
                if what in ("both", "mirror"):
                    mirror.start()
                said(f"killed and started again: {what}, after {at:.0f} s")
            time.sleep(max(begun + self._seconds - time.monotonic(), 0))
        except KeyboardInterrupt:
            said("stopped: the rest is judged")
            self._seconds = time.monotonic() - begun


def said(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mirror.twin", description=__doc__.split("\n\n")[0])
    parser.add_argument("--pulsar", default=VERSION, help=f"Pulsar's version (default: {VERSION})")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="how long there is traffic (default: 3600)"
    )
    parser.add_argument("--kills", type=int, default=5, help="how often each process is killed (default: 5)")
    parser.add_argument("--seed", default=os.urandom(4).hex(), help="of traffic and kills (default: any)")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where its files stay (default: a temporary one, kept if something is wrong)",
    )
    asked = parser.parse_args()
    if asked.seconds <= 0 or asked.kills < 0:
        parser.error("--seconds must be more than 0, and --kills 0 or more")
    if asked.folder is not None and asked.folder.exists() and any(asked.folder.iterdir()):
        parser.error(f"{asked.folder} is not empty")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="magnetar-twin-"))
    folder.mkdir(parents=True, exist_ok=True)
    said(f"seed {asked.seed}, {folder}")
    wrong = Run(folder.absolute(), asked.pulsar, asked.seconds, asked.kills, asked.seed)()
    for each in wrong:
        print(each)
    if not wrong and asked.folder is None:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
