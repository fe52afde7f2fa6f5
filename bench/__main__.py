"""`make bench`: what Magnetar costs beside the limit, the naive way and a real broker. A table, and JSON.

Rounds are interleaved: each runs every contender once, and a ratio is of runs in the same round. Ratios are given by the
clock and by processor time, which a busy machine disturbs less.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from bench import MAGNETAR, core, live, logs, pulsar, server
from bench.logs import publishes as publishes
from bench.memory import Cost
from bench.replays import identity, magnetar, naive, run
from streaming.kafka.local import LocalKafka
from streaming.log.files import write_log
from streaming.spark.session import spark_session

BACKLOG = "backlog"


class Result(msgspec.Struct):
    """A line of the table: what was wanted and what was measured, once per round. `processor`: by processor time."""

    workload: str
    wanted: str
    measured: list[float]
    unit: str
    processor: list[float] = []
    peak_java: int = 0
    peak_worker: int = 0

    def line(self) -> str:
        """As a row of a table in Markdown."""
        peaks = " / ".join(f"{peak / 2**20:,.0f}" for peak in (self.peak_java, self.peak_worker) if peak)
        by = _spread(self.processor) if self.processor else ""
        measured = f"{_spread(self.measured)} {self.unit}" if self.measured else ""
        return f"| {self.workload} | {self.wanted} | {measured} | {by} | {peaks} |"


def _spread(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 2 if middle >= 0.1 else 4
    text = f"**{middle:,.{digits}f}**"
    return text if len(values) == 1 else f"{text} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


class Bench:
    """The results so far, and where to measure."""

    def __init__(self, folder: Path, rounds: int, scale: int, cores: int) -> None:
        """`scale`: how many records a large log has."""
        self.folder, self.rounds, self.scale, self.cores = folder, rounds, scale, cores
        self.results: list[Result] = []

    def add(self, *fields: Any, **more: Any) -> None:
        """Note a result, and print it."""
        self.results.append(Result(*fields, **more))
        print(self.results[-1].line(), flush=True)

    # -- replays with Spark -------------------------------------------------------------------------------------------

    def replays(self) -> None:
        """Each workload beside the identity over the same log."""
        size = self.scale
        small = size // 5
        many = {"topics": 10_000, "producers": 10_000}
        fast = {"per_second": 10_000}
        contenders: dict[str, tuple[str, pa.Table]] = {
            "publish with dedup, 64 topics": ("≥ 0.9", logs.publishes(size)),
            "publish with dedup, 10,000 topics": ("≥ 0.7 of the 64-topic rate", logs.publishes(size, **many)),
            "publish with dedup, 64 topics, 10,000/s": ("≥ 0.9", logs.publishes(size, **fast)),
            "publish with dedup, 10,000 topics, 10,000/s": (
                "≥ 0.7 of the 64-topic rate",
                logs.publishes(size, **many, **fast),
            ),
            "publish and ack, Exclusive": ("≥ 0.5", logs.delivered(small, "Exclusive")),
            "publish and ack, Shared, 8 consumers": ("≥ 0.35", logs.delivered(small, "Shared", consumers=8)),
            "the same, 20 % acked late": ("≥ 0.35", logs.delivered(small, "Shared", consumers=8, holes=0.2)),
            "publish and ack, Key_Shared, 8 consumers, 10,000 keys": (
                "≥ 0.35",
                logs.delivered(small, "Key_Shared", consumers=8, keys=10_000),
            ),
            "batches of 1,000 messages": ("", logs.sends(small // 4, messages=1000, payload=10_000)),
        }
        spark = spark_session("magnetar bench", shuffle_partitions=self.cores, master=f"local[{self.cores}]")
        costs: dict[str, list[tuple[Cost, Cost]]] = {name: [] for name in contenders}
        naives: list[Cost] = []
        first, (_, plain) = next(iter(contenders.items()))
        try:
            for operator in (identity, magnetar):
                run(operator, spark, plain.slice(0, 20_000), self.folder / "warm")
            for number in range(self.rounds):
                for name, (_, records) in contenders.items():
                    pair = [run(each, spark, records, self.folder / "run") for each in (identity, magnetar)]
                    costs[name].append((pair[0], pair[1]))
                naives.append(run(naive, spark, plain.slice(0, size // 10), self.folder / "run"))
                print(f"round {number + 1} of {self.rounds}", file=sys.stderr, flush=True)
        finally:
            spark.stop()
        for name, (wanted, _) in contenders.items():
            pairs = costs[name]
            peaks = {
                "peak_java": max(own.java_peak for _, own in pairs),
                "peak_worker": max(own.worker_peak for _, own in pairs),
            }
            if wanted.endswith("rate"):
                few = costs[name.replace("10,000 topics", "64 topics")]
                self.add(
                    name, wanted, [a.seconds / b.seconds for (_, a), (_, b) in zip(few, pairs, strict=True)],
                    "of it", [a.processor / b.processor for (_, a), (_, b) in zip(few, pairs, strict=True)], **peaks,
                )  # fmt: skip
            elif wanted:
                self.add(
                    name, f"{wanted} of identity", [a.seconds / b.seconds for a, b in pairs], "of identity",
                    [a.processor / b.processor for a, b in pairs], **peaks,
                )  # fmt: skip
            else:
                self.add(name, "≥ 1 million messages/s", [small // 4 * 1e-3 / b.seconds for _, b in pairs],
                         "million messages/s", **peaks)  # fmt: skip
        tenth = [(b, own) for b, (_, own) in zip(naives, costs[first], strict=True)]
        self.add(
            first, "≥ 10 × naive", [10 * b.seconds / own.seconds for b, own in tenth], "× naive",
            [10 * b.processor / own.processor for b, own in tenth],
        )  # fmt: skip
        self.add(first, "", [len(plain) / own.seconds for _, own in costs[first]], "records/s",
                 [1e6 * own.processor / len(plain) for _, own in costs[first]])  # fmt: skip
        slowest = "publish and ack, Shared, 8 consumers"
        rates = [len(contenders[slowest][1]) / own.seconds for _, own in costs[slowest]]
        self.add(
            "replay of a recorded day (1,000 commands/s)", "≥ 50 × real time", [rate / 1000 for rate in rates],
            "× real time, with 8 Shared consumers",
        )  # fmt: skip

    # -- the core alone -----------------------------------------------------------------------------------------------

    def backlogs(self) -> None:
        """What a backlog costs."""
        sizes = (0, 1_000_000, 10_000_000)
        found: dict[int, list[core.Backlog]] = {size: [] for size in sizes}
        for _ in range(self.rounds):
            for size in sizes:
                found[size].append(_alone(core.Backlog, "backlog", size))
        for size in sizes[1:]:
            pairs = list(zip(found[0], found[size], strict=True))
            name = f"a backlog of {size // 10**6} million behind a stuck subscription"
            self.add(f"{name}: batch", "1 ± 0.1", [], "", [b.seconds / a.seconds for a, b in pairs])
            self.add(f"{name}: memory", "1 ± 0.1", [b.resident / a.resident for a, b in pairs], "of none")
            self.add(
                f"{name}: state", "1 ± 0.1", [float(b.state - a.state) for a, b in pairs[:1]], "bytes more"
            )
        for rule in ("TTL", "quota", "retention"):
            runs = [core.expiry(10_000_000, rule) for _ in range(self.rounds)]
            self.add(
                f"{rule} takes 10 million entries in one check", "< 100 ms", [1000 * r.seconds for r in runs],
                f"ms of processor time, {runs[0].reads:,} entries read",
            )  # fmt: skip
        fresh, later = (
            core.restart(size, self.folder / f"restart-{size}") for size in (10_000, 10 * self.scale + 10_000)
        )
        self.add(
            f"restart with {later.entries // 10**6} million entries: the first batch of a partition", "1.5 × of none", [1000 * later.seconds],
            f"ms of processor time ({1000 * fresh.seconds:.0f} ms with {fresh.entries:,})",
        )  # fmt: skip
        read = [core.reading(self.scale // 5, self.folder / f"reading-{n}") for n in range(self.rounds)]
        self.add(
            "a slow consumer reads a stored backlog: core and store", "", [1e6 * r.seconds / r.entries for r in read],
            "µs of processor time per entry",
        )  # fmt: skip

    # -- live ---------------------------------------------------------------------------------------------------------

    def live(self, seconds: float) -> None:
        """`magnetar run` beside the echo, on Kafka."""
        kafka = LocalKafka(self.folder / "kafka")
        kafka.start()
        try:
            both: list[tuple[live.Live, live.Live]] = []
            drained: list[tuple[live.Drained, live.Drained]] = []
            records = logs.sends(self.scale // 5)
            for number in range(self.rounds):
                own, echo = (
                    live.live(
                        each, kafka, self.folder / f"{each}-{number}", rate=100, seconds=seconds, idle=20
                    )
                    for each in live.PROGRAMS
                )
                both.append((own, echo))
                own_drain, echo_drain = (
                    live.drain(each, kafka, self.folder / f"{each}-drain-{number}", records, self.cores)
                    for each in live.PROGRAMS
                )
                drained.append((own_drain, echo_drain))
        finally:
            kafka.stop()
        self.add("Kafka to Kafka, an answer to each SEND", "≥ 0.7 of the echo", [b.seconds / a.seconds for a, b in drained],
                 "of the echo", [b.processor / a.processor for a, b in drained])  # fmt: skip
        self.add("latency, 100 commands/s: p50", "≤ 1.5 × echo", [a.p50 / b.p50 for a, b in both],
                 f"× echo ({both[0][0].p50:.2f} s and {both[0][1].p50:.2f} s)")  # fmt: skip
        self.add("latency, 100 commands/s: p99", "≤ 3 × echo", [a.p99 / b.p99 for a, b in both],
                 f"× echo ({both[0][0].p99:.2f} s and {both[0][1].p99:.2f} s)")  # fmt: skip
        self.add("magnetar run, to the first answer", "≤ 1.3 × echo", [a.start / b.start for a, b in both],
                 f"× echo ({both[0][0].start:.1f} s and {both[0][1].start:.1f} s)",
                 [a.start_processor / b.start_processor for a, b in both])  # fmt: skip
        self.add("idle at trigger 0", "≤ 1.2 × echo", [], "", [a.idle / b.idle for a, b in both])

    def starts(self) -> None:
        """`magnetar replay` on a log of ten records, beside a bare session with one query."""
        log = self.folder / "ten.jsonl"
        write_log(log, logs.publishes(10, partitions=1, topics=1, producers=1))
        bare = (
            "from pyspark.sql import SparkSession as S\n"
            "S.builder.master('local[2]').getOrCreate().range(10).selectExpr('sum(id)').collect()"
        )
        ratios, processors, shown = [], [], ""
        for number in range(self.rounds):
            own = _timed([MAGNETAR, "replay", str(log), "--out", str(self.folder / f"start-{number}")])
            other = _timed([sys.executable, "-c", bare])
            ratios.append(own[0] / other[0])
            processors.append(own[1] / other[1])
            shown = f"{own[0]:.1f} s and {other[0]:.1f} s"
        self.add(
            "magnetar replay of a tiny log",
            "≤ 1.3 × a bare session and query",
            ratios,
            f"× ({shown})",
            processors,
        )

    def pulsar(self) -> None:
        """A real broker: processor time per entry."""
        for batches_of, name in ((1, "unbatched"), (100, "in batches of 100")):
            count = self.scale // 10 // (1 if batches_of == 1 else 20)
            found = [pulsar.publish(count, logs.PAYLOAD, batches_of) for _ in range(self.rounds)]
            self.add(
                f"a real Pulsar broker, publish with dedup, {name}", "", [f.messages / f.seconds for f in found], "messages/s",
                [1e6 * f.processor / f.messages for f in found],
            )  # fmt: skip

    def server(self, seconds: int) -> None:
        """`magnetar serve` beside a real broker, with `pulsar-perf` in front of each."""
        wanted = ("≥ 20,000", "≥ 150,000", "")
        found: dict[str, list[tuple[server.Perf, server.Perf]]] = {name: [] for name in server.WORKLOADS}
        for name, own, real in server.rounds(self.folder, self.rounds, seconds):
            found[name].append((own, real))
            print(f"{name}: {own}, Pulsar {real}", file=sys.stderr, flush=True)
        for (name, pairs), rate in zip(found.items(), wanted, strict=True):
            name = f"magnetar serve, pulsar-perf {name}"
            self.add(
                name, rate, [own.rate for own, _ in pairs], "messages/s", [own.processor for own, _ in pairs]
            )
            self.add(f"{name}: the same, Pulsar", "", [real.rate for _, real in pairs], "messages/s",
                     [real.processor for _, real in pairs])  # fmt: skip
            shown = ", ".join(f"{own.p50:.1f} and {real.p50:.1f}" for own, real in pairs)
            self.add(f"{name}: p50", "≤ 2 × Pulsar" if not rate else "", [own.p50 / real.p50 for own, real in pairs],
                     f"× Pulsar ({shown} ms)")  # fmt: skip
        spark = [server.on_spark(self.folder / f"spark-{number}", seconds) for number in range(self.rounds)]
        shown = ", ".join(f"{each.p50:.0f} and {batch:.0f}" for each, batch in spark)
        self.add("magnetar serve --engine spark, pulsar-perf unbatched, 1,000 messages/s: p50", "≤ 2 micro-batches",
                 [each.p50 / batch for each, batch in spark], f"micro-batches ({shown} ms)")  # fmt: skip

    def growth(self) -> None:
        """Processor time and state by the shape of the load, and a plot of them."""
        found = []
        for what, values in core.SHAPES.items():
            for value in values:
                each = _alone(core.Growth, what, value, self.scale // 5)
                self.add(f"growth: {what} {value:,}", "", [each.microseconds], f"µs per publish (fold alone), {each.state:,} bytes of state",
                         peak_worker=each.resident)  # fmt: skip
                found.append(each)
        for entries in (1_000, 100_000, 10_000_000):
            behind = _alone(core.Backlog, "backlog", entries)
            found.append(
                core.Growth(
                    BACKLOG, entries, 1e6 * behind.seconds / core.BATCH, behind.state, behind.resident
                )
            )
            self.add(f"growth: backlog {entries:,}", "", [found[-1].microseconds], "µs per publish, delivery and ack (fold alone)",
                     peak_worker=behind.resident)  # fmt: skip
        plot(found, Path("docs/develop/growth.svg"))


LABELS = {"payload": "bytes of payload", BACKLOG: "unread entries\n(delivered and acked elsewhere)"}


def plot(found: Sequence[core.Growth], file: Path) -> None:
    """One panel for each quantity that grows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 2.8), layout="constrained")
    shapes = list(dict.fromkeys(each.what for each in found))
    for axis, what in zip(figure.subplots(1, len(shapes), sharey=True), shapes, strict=True):
        own = [each for each in found if each.what == what]
        axis.plot([each.value for each in own], [each.microseconds for each in own], marker="o")
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_xlabel(LABELS.get(what, what))
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("µs per publish, fold alone")
    figure.savefig(file)


T = TypeVar("T")


def _alone(type_: type[T], *words: object) -> T:
    """What `bench.core` measures in a process of its own."""
    command = [sys.executable, "-m", "bench.core", *map(str, words)]
    return msgspec.json.decode(subprocess.run(command, check=True, capture_output=True).stdout, type=type_)


def _timed(command: list[str]) -> tuple[float, float]:
    """Seconds, and seconds of processor time, of a program and all that it started."""
    found = subprocess.run([sys.executable, "-m", "bench.starts", *command], check=True, capture_output=True)
    return msgspec.json.decode(found.stdout, type=tuple[float, float])


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--long", action="store_true", help="a million records, five rounds, and a real Pulsar broker"
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--records", type=int, help="of a large log")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument(
        "--only", nargs="*", help="some of: replays backlogs live starts pulsar server growth"
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        rounds = given.rounds or (5 if given.long else 2)
        bench = Bench(
            Path(folder), rounds, given.records or (1_000_000 if given.long else 250_000), given.cores
        )
        parts: dict[str, Callable[[], None]] = {
            "replays": bench.replays,
            "backlogs": bench.backlogs,
            "live": lambda: bench.live(120 if given.long else 20),
            "starts": bench.starts,
        }
        more: dict[str, Callable[[], None]] = {
            "pulsar": bench.pulsar,
            "server": lambda: bench.server(65 if given.long else 35),
            "growth": bench.growth,
        }
        print(
            "| workload | wanted | measured | by processor time | peak JVM / worker, MB |\n|---|---|---|---|---|"
        )
        for name, part in (parts | more).items():
            if name in given.only if given.only else (given.long or name in parts):
                part()
        if given.json:
            given.json.write_bytes(msgspec.json.format(msgspec.json.encode(bench.results)))


if __name__ == "__main__":
    main()
