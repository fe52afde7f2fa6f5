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
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.effects import KINDS, MirrorDrift, Quarantined, SendError, Tick, Unsupported
from schemas.records import RECORD
from sinks.base import Sink
from sinks.ledger_store import LedgerStore, read_entries
from sinks.quarantine import QuarantineSink, read_quarantine
from sinks.storage import Storage
from sinks.tables import TABLES, TableSink, read_table, table_files
from streaming.answers.history.folders import NotFound
from streaming.answers.history.inspection import states_at
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.fold.columns import Fold
from streaming.fold.records import StateRow, stats
from streaming.kafka.client import consuming
from streaming.kafka.local import LocalKafka, free_port
from streaming.kafka.url import KafkaUrl
from streaming.mirror.observation import ledgers_of
from streaming.record.rest import CallFailed, Rest
from streaming.spark.failure import QueryFailed
from streaming.spark.session import spark_session
from tests.e2e.live import MAGNETAR, LiveQuery
from tests.e2e.outcome import with_ticks
from tests.e2e.processes import no_nohup
from tests.mirror.kit import differences
from tests.mirror.traffic import NAMESPACE, At, Traffic, config
from tests.parity.pulsar import VERSION, LocalPulsar

EVERY = 2.0
"""The mirror's interval and the query's trigger, in seconds."""

_SAMPLE_SECONDS = 2.0
_CHECK_SECONDS = 60 + 2 * EVERY
"""The interval of the broker's slowest check, with a look before and after it."""

_DOWN_SECONDS = 5.0
"""For so long a killed process is away at most."""

_REST_SECONDS = 900.0
"""For so long the twin may take to be at rest. A subscription that differs is put right after ten minutes."""

_STAYS_SECONDS = 75.0
"""For so long it must stay so: the broker's slowest check comes once a minute."""

_SLICE = 20_000


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


class Sample(NamedTuple):
    """The backlog that the broker showed of a subscription at `time` (s)."""

    time: float
    backlog: int


class Shown(NamedTuple):
    """The backlog that the twin showed of a subscription at `time`, as the mirror's look at `since` had it (s)."""

    time: float
    since: float
    topic: str
    subscription: str
    backlog: int


class Judged(NamedTuple):
    """Of the twin's backlogs during traffic: how far they were from the broker's of the same moment, how old they were (s), how many can
    only be explained by a check of the broker that came later, and which can't be explained."""

    compared: int
    largest: int
    lags: list[float]
    ahead: int
    beyond: list[str]


class Watch(threading.Thread):
    """Samples of the broker and of the twin while there is traffic."""

    def __init__(self, traffic: Traffic, metrics: int) -> None:
        super().__init__(daemon=True)
        self.ledgers: dict[str, dict[int, int]] = defaultdict(dict)
        """By topic: the largest number of entries that the broker showed of each ledger."""
        self.backlogs: dict[tuple[str, str], list[Sample]] = defaultdict(list)
        """By topic and subscription."""
        self.shown: list[Shown] = []
        self.stop = threading.Event()
        self.failed: BaseException | None = None
        self._traffic, self._metrics, self._rest = traffic, metrics, Rest(traffic.admin_url)

    def run(self) -> None:
        try:
            while not self.stop.wait(_SAMPLE_SECONDS):
                with suppress(CallFailed):  # what is being unloaded
                    self.look()
                with suppress(OSError):  # the query was killed
                    self._look_at_twin()
        except BaseException as error:
            self.failed = error

    def look(self) -> None:
        """Ask the broker. Raises `CallFailed`."""
        for topic in self._traffic.topics:
            path = "/" + topic.replace("://", "/")
            internal = self._rest.get(f"{path}/internalStats")
            seen = self._rest.get(f"{path}/stats?getPreciseBacklog=true")["subscriptions"]
            known, now = self.ledgers[topic], time.time()
            for id_, (entries, _) in ledgers_of(internal).items():
                known[id_] = max(entries, known.get(id_, 0))
            for name, each in seen.items():
                self.backlogs[topic, name].append(Sample(now, each["msgBacklog"]))

    def _look_at_twin(self) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/metrics", timeout=5) as page:
            text, now = page.read().decode(), time.time()
        seen = {
            labels["topic"]: value
            for labels, value in _metric(text, "magnetar_mirror_source_seen_timestamp_seconds")
        }
        for labels, value in _metric(text, "pulsar_subscription_back_log"):
            if since := seen.get(labels["topic"]):
                self.shown.append(Shown(now, since, labels["topic"], labels["subscription"], int(value)))

    def judged(self) -> Judged:
        """Compare the twin's backlogs with those that the broker had from a look of the mirror before the twin's time until the twin showed
        them, with the entries that came meanwhile: they come before the look that says who has acknowledged them.

        The twin's own checks may have been ahead of the broker's, but not by more than `_CHECK_SECONDS`.
        """
        receipts = {topic: sorted(times.values()) for topic, times in self._traffic.acked.items()}
        times = {key: [each.time for each in samples] for key, samples in self.backlogs.items()}
        count = largest = ahead = 0
        lags, beyond = [], []
        for each in self.shown:
            key, begin = (each.topic, each.subscription), each.since - EVERY - _SAMPLE_SECONDS
            samples, at = self.backlogs.get(key, []), bisect_right(times.get(key, []), each.time)
            first = max(bisect_left(times.get(key, []), begin) - 1, 0)
            between = [sample.backlog for sample in samples[first:at]]
            if not between or samples[at - 1].time < begin:  # it came or went meanwhile
                continue

            came = receipts.get(each.topic, [])
            count += 1
            lags.append(each.time - each.since)
            largest = max(largest, abs(each.backlog - between[-1]))
            some = _within(came, min(begin, samples[first].time), each.time)
            if min(between) - some <= each.backlog <= max(between) + some:
                continue
            later = samples[at : bisect_right(times[key], each.time + _CHECK_SECONDS)]
            if any(
                sample.backlog - _within(came, each.time, sample.time) <= each.backlog for sample in later
            ) and each.backlog < max(between):
                ahead += 1
                continue
            beyond.append(
                f"{each.topic}, {each.subscription}: {each.backlog} at {each.time:.0f}, and the broker {min(between)} to {max(between)} in the "
                f"{each.time - begin:.0f} s before, in which {some} entries came"
            )
        return Judged(count, largest, lags, ahead, beyond)


def _within(times: list[float], since: float, to: float) -> int:
    return bisect_right(times, to) - bisect_left(times, since)


def _metric(page: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    for line in page.splitlines():
        if line.startswith(f"{name}{{"):
            labels, _, value = line.removeprefix(name).rpartition(" ")
            yield dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)


class Log(NamedTuple):
    """A Kafka topic as a log."""

    records: pa.Table
    """The columns `RECORD`."""
    sends: dict[str, list[At]]
    """By topic: the entries in their order."""


def read_log(url: KafkaUrl) -> Log:
    from kafka import TopicPartition

    columns: dict[str, list[Any]] = {name: [] for name in RECORD.names}
    sends: dict[str, list[At]] = defaultdict(list)
    with consuming(url, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        for number in sorted(consumer.partitions_for_topic(url.topic)):
            part = TopicPartition(url.topic, number)
            consumer.assign([part])
            consumer.seek(part, 0)
            end = consumer.end_offsets([part])[part]
            while consumer.position(part) < end:
                for polled in consumer.poll(timeout_ms=500).values():
                    for each in polled:
                        topic = None if each.key is None else each.key.decode()
                        for name, value in zip(
                            RECORD.names,
                            (number, each.offset, each.timestamp, topic, each.value),
                            strict=True,
                        ):
                            columns[name].append(value)
                        command = json.loads(each.value)
                        if command["command"] == "SEND":
                            id_ = command["message_id"]
                            sends[topic or ""].append((id_["ledgerId"], id_["entryId"]))
    return Log(pa.table(columns, RECORD), sends)


def of_entries(found: Log, traffic: Traffic, ledgers: dict[str, dict[int, int]]) -> Iterator[str]:
    """Where the entries in the log are not those of the broker."""
    for topic in sorted({*traffic.acked, *ledgers, *found.sends}):
        sends = found.sends.get(topic, [])
        ids = {*sends}
        if repeated := [at for at, count in Counter(sends).items() if count > 1]:
            yield f"{topic}: {len(repeated)} entries are repeated, the first: {repeated[0]}"
        if sends != sorted(sends):
            yield f"{topic}: entries are out of order"
        if lost := sorted(traffic.acked.get(topic, {}).keys() - ids):
            yield f"{topic}: {len(lost)} entries with a receipt are missing, the first: {lost[0]}"
        counts = Counter(ledger for ledger, _ in ids)
        last = dict(sorted(ids))  # the last entry by ledger
        if gaps := [ledger for ledger, count in counts.items() if count != last[ledger] + 1]:
            yield f"{topic}: {len(gaps)} ledgers have gaps, the first: {gaps[0]}"
        for ledger, entries in sorted(ledgers.get(topic, {}).items()):
            if counts[ledger] < entries:
                yield f"{topic}: {counts[ledger]} entries of ledger {ledger}, and the broker had {entries}"


def of_rows(states: list[StateRow], store: Path, found: Log, folder: Path) -> tuple[int, list[str]]:
    """The number of the query's rows, and where they are not those of one fold of its log."""
    tables, wrong = str(store / "tables"), list[str]()
    records = with_ticks(found.records, read_table(tables, KINDS[Tick]))
    ledgers = LedgerStore(str(folder))
    sinks: list[Sink] = [ledgers, QuarantineSink(str(folder)), TableSink(str(folder / "tables"))]
    fold = Fold(ledgers)
    for number, start in enumerate(range(0, len(records), _SLICE)):
        for sink in sinks:
            sink.begin(number)
        for partition, rows in fold.apply(records.slice(start, _SLICE)):
            for sink in sinks:
                sink.write(number, partition, rows)
    count = 0
    for kind in TABLES:
        mine = read_table(tables, kind)
        count += len(mine)
        written = sum(
            pq.read_metadata(store / "tables" / file).num_rows for file in table_files(Storage(tables), kind)
        )
        if written != len(mine):
            wrong.append(f"table {kind}: {written - len(mine)} rows too many in its files")
        if kind != KINDS[Tick]:
            wrong += _unequal(f"table {kind}", mine, read_table(str(folder / "tables"), kind))
    wrong += _unequal("entries", read_entries(str(store)), read_entries(str(folder)))
    wrong += _unequal("quarantine", read_quarantine(str(store)), read_quarantine(str(folder)))
    if stats(states) != stats(fold.states()):
        wrong.append("states: not those of a fold of the log")
    for effect in (Quarantined, SendError, Unsupported):
        if refused := len(read_table(tables, KINDS[effect])):
            wrong.append(f"{refused} rows {KINDS[effect]}: a twin refuses nothing")
    return count, wrong


def _unequal(name: str, mine: pa.Table, other: pa.Table) -> Iterator[str]:
    """A log that has ticks numbers its records otherwise."""
    mine, other = (
        each.drop_columns([n for n in ("offset", "ordinal") if n in each.column_names])
        for each in (mine, other)
    )
    if not mine.equals(other):
        same = next(
            (
                n
                for n, (a, b) in enumerate(zip(mine.to_batches(), other.to_batches(), strict=False))
                if a != b
            ),
            None,
        )
        yield f"{name}: {len(mine)} rows, and a fold of the log has {len(other)}; they differ (batch {same})"


class Drift(NamedTuple):
    """What MIRROR_DRIFT rows say: how many of subscriptions there are, the most entries, and for how long a backlog differed (s)."""

    rows: int
    entries: int
    seconds: float
    where: str


def drift_of(store: Path) -> Drift:
    rows = read_table(str(store / "tables"), KINDS[MirrorDrift]).to_pylist()
    since = dict[tuple[str, str], int]()
    longest, where = 0, ""
    subscriptions = [each for each in rows if each["subscription"] is not None]
    for each in subscriptions:
        key = each["topic"], each["subscription"]
        begin = since.setdefault(key, each["clock"]) if each["entries"] else since.pop(key, each["clock"])
        if each["clock"] - begin > longest:
            longest, where = each["clock"] - begin, f"{key[0]}, {key[1]}: {each['cause']}"
    return Drift(
        len(subscriptions),
        max((abs(each["entries"]) for each in subscriptions), default=0),
        longest / 1000,
        where,
    )


def brokers_of(states: list[StateRow]) -> dict[str, Broker]:
    """The twins of topics, by topic."""
    found = dict[str, Broker]()
    for state in states:
        broker = Broker.decode(state.broker, NoEntries())
        found |= dict.fromkeys(broker.topic_names(), broker)
    return found


class Run:
    """One run in `folder`. `say` gets what happens."""

    def __init__(self, folder: Path, version: str, seconds: float, kills: int, seed: str) -> None:
        self._folder, self._version, self._seconds, self._kills = folder, version, seconds, kills
        self._draw, self._seed = Random(seed), seed
        self.killed = Counter[str]()
        self.problems: list[str] = []

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
            (self._folder / "samples.json").write_bytes(
                msgspec.json.encode(
                    [
                        [*watch.backlogs.items()],
                        watch.shown,
                        [(topic, [*each.items()]) for topic, each in traffic.acked.items()],
                    ]
                )
            )
            said("traffic has ended: " + ", ".join(f"{n} {what}" for what, n in sorted(traffic.done.items())))
            rest, left = Rest(traffic.admin_url), dict[str, Any]()

            def different() -> dict[str, Any]:
                try:
                    brokers = brokers_of(states_at(spark, query.checkpoint))
                except (NotFound, QueryFailed) as error:  # it has not begun, or went on meanwhile
                    return {"the twin": str(error)}
                found = {
                    topic: differences(rest, topic, brokers[topic])
                    if topic in brokers
                    else {"topic": "missing"}
                    for topic in traffic.topics
                }
                return {topic: each for topic, each in found.items() if each}

            while (left := different()) and time.monotonic() < stopped + _REST_SECONDS:
                time.sleep(3)
            at_rest = time.monotonic() - stopped
            said(f"at rest after {at_rest:.0f} s" if not left else f"not at rest: {left}")
            time.sleep(_STAYS_SECONDS)
            watch.look()  # also at ledgers that had no sample
            mirror.stop()
            time.sleep(10 * EVERY)
            left = different()
            code = query.stop(signal.SIGTERM)
            wrong = [f"{topic}: twin and broker: {each}" for topic, each in left.items()]
            if code != 0:
                wrong.append(f"the query ended with {code}: {query.said()[-500:]}")
            log = read_log(url)
            wrong += of_entries(log, traffic, watch.ledgers)
            states = states_at(spark, query.checkpoint)
            rows, unequal = of_rows(states, query.store, log, self._folder / "expected")
            wrong += unequal
            drift = drift_of(query.store)
        entries = sum(map(len, log.sends.values()))
        judged = watch.judged()
        lags = sorted(judged.lags) or [0.0]
        receipts = sum(map(len, traffic.acked.values()))
        wrong += mirror.problems + judged.beyond[:5]
        if watch.failed is not None:
            wrong.append(f"samples: {watch.failed!r}")
        said(
            f"Pulsar {self._version}, {self._seconds:.0f} s of traffic: {traffic.done['messages']:,} sends, {entries:,} entries ({receipts:,} "
            f"receipts) in {len(log.sends)} topics and {sum(map(len, watch.ledgers.values())):,} ledgers, {len(watch.backlogs)} subscriptions\n"
            f"kill -9: {', '.join(f'{n} × {what}' for what, n in sorted(self.killed.items())) or 'none'}\n"
            f"log: {len(log.records):,} records; output: {rows:,} rows\n"
            f"during traffic ({judged.compared:,} backlogs): {judged.largest} entries at most from the broker's of the same moment; "
            f"{median(lags):.1f} s old, {lags[len(lags) * 99 // 100]:.1f} s at the 99th percentile, {lags[-1]:.1f} s at most; a check of the twin "
            f"was ahead in {judged.ahead}; {len(judged.beyond)} not explained by the interval\n"
            f"at looks: {drift.rows} MIRROR_DRIFT rows of subscriptions, {drift.entries} entries and {drift.seconds:.1f} s at most {drift.where}\n"
            f"at rest: after {at_rest:.0f} s, {len(wrong)} differences"
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
