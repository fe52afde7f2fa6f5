"""Metrics of a running query: those of its topics, and those of the stream."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from schemas.metrics import PartitionMetrics
from streaming.metrics.durations import Durations
from streaming.metrics.topics import LABEL_SETS, KnownTopic, MetricsSnapshot, TopicFigures

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the histogram of batch times, in seconds."""

WRITE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Those of the histogram of write times."""


class BatchProgress(NamedTuple):
    """What Spark says about a micro-batch that is done.

    `time` = when it began (ms since the epoch). `seconds` by phase, with Spark's names: ``triggerExecution`` is the whole.
    `behind`: the records that it did not read in the partition of which these are most, None: unknown. `state_memory` in bytes. `read`:
    up to which offset it read, by partition of the topic.
    """

    batch_id: int
    time: int
    records: int
    seconds: dict[str, float]
    records_per_second: float
    behind: int | None
    state_memory: int
    read: Mapping[int, int]


class CanaryFigures(NamedTuple):
    """How a topic, or one of its subscriptions, fares under the policies of a canary, or as it is. `changes`: how many messages fare otherwise, by
    how. `storage` in bytes, None for a subscription."""

    policies: str
    topic: str
    subscription: str | None
    backlog: int
    storage: int | None
    changes: Mapping[str, int]


class QueryMetrics(Collector):
    """Collects what a query did since it started. Safe for several threads."""

    def __init__(self, label_sets: int = LABEL_SETS, *, time_passes: bool = True) -> None:
        """`label_sets`: see `streaming.metrics.topics`. `time_passes`: micro-batches advance the clock of all ingress
        partitions; False: records alone do."""
        self._label_sets, self._time_passes = label_sets, time_passes
        self._lock = threading.Lock()
        self._topics = TopicFigures()
        self._rows: Counter[str] = Counter()
        self._quarantined: Counter[str] = Counter()
        self._phases: dict[str, float] = {}
        self._batches = Durations(BUCKETS)
        self._writes = Durations(WRITE_BUCKETS)
        self._records = 0
        self._last: BatchProgress | None = None
        self._behind: int | None = None
        self._stopped = False
        self._clock_ahead, self._clock_followed = 0.0, True
        self._files: dict[str, int] = {}
        self._canaries: Sequence[CanaryFigures] = ()
        self._since: Mapping[str, int] = {}
        self._looked = 0.0

    def known(self, measured: Iterable[PartitionMetrics]) -> None:
        """The figures with which the query starts."""
        with self._lock:
            for each in measured:
                self._topics.update(each)

    def batch(self, rows: Mapping[tuple[int, str], int], measured: Iterable[PartitionMetrics]) -> None:
        """A micro-batch wrote rows, by (ingress partition, kind), and changed ingress partitions."""
        with self._lock:
            for (_, kind), count in rows.items():
                self._rows[kind] += count
            for each in measured:
                self._topics.update(each)
                self._quarantined.update(each.quarantined)
                if each.write_seconds is not None:
                    self._writes.add(each.write_seconds)

    def progress(self, done: BatchProgress) -> None:
        """A micro-batch is done."""
        with self._lock:
            self._last = done
            self._behind = done.behind
            self._records += done.records
            for phase, took in done.seconds.items():
                self._phases[phase] = self._phases.get(phase, 0.0) + took
            self._batches.add(done.seconds.get("triggerExecution", 0.0))

    def unread(self, behind: int) -> None:
        """`BatchProgress.behind` as it is now: without micro-batches, it grows while a transaction holds records back."""
        self._behind = behind

    @property
    def behind(self) -> int | None:
        """`BatchProgress.behind`, as it was last known."""
        return self._behind

    def files(self, counts: Mapping[str, int]) -> None:
        """How many files there are of something, by what they are. What is not named is as it was."""
        with self._lock:
            self._files |= counts

    def canaries(self, found: Sequence[CanaryFigures], since: Mapping[str, int]) -> None:
        """Canaries have looked at what the query folded. `since`: from which time on (ms) the policies of each are judged."""
        with self._lock:
            self._canaries, self._since, self._looked = found, since, time.time()

    def clock(self, ahead: float, followed: bool) -> None:
        """How far the machine's clock is ahead of the time that passed (s), and whether the query follows it."""
        self._clock_ahead, self._clock_followed = ahead, followed

    def stopped(self) -> None:
        """The query has ended or failed."""
        self._stopped = True

    @property
    def ready(self) -> bool:
        """Whether the query runs, has done a micro-batch, so that the figures are complete, and follows the machine's clock."""
        return self._last is not None and not self._stopped and self._clock_followed

    @property
    def waits_for_clock(self) -> bool:
        """Whether the machine's clock is so far ahead that no micro-batch folds."""
        return not self._clock_followed

    @property
    def healthy(self) -> bool:
        """Whether the query runs or is about to."""
        return not self._stopped

    def snapshot(self) -> MetricsSnapshot:
        """The figures of all topics. They do not change any more."""
        with self._lock:
            return self._topics.snapshot(self._passed())

    def topic(self, name: str) -> KnownTopic | None:
        """The figures of a topic."""
        with self._lock:
            return self._topics.topic(name)

    def _passed(self) -> int:
        """The time (ms) that every ingress partition has reached at least."""
        return self._last.time if self._time_passes and self._last is not None else 0

    def clock_lag(self, clock: int, now: int) -> float:
        """How many seconds a partition's clock (ms) is behind `now` (ms), never negative."""
        if self._time_passes and self._last is not None:
            clock = max(clock, self._last.time)
        return max(0.0, (now - clock) / 1000)

    def collect(self) -> list[Metric]:
        """See `prometheus_client.registry.Collector`."""
        with self._lock:
            of_topics = self._topics.collect(self._passed(), self._label_sets)
            return [*self._of_stream(), *self._of_canaries(), *of_topics]

    def _of_canaries(self) -> Iterator[Metric]:
        if not self._looked:
            return
        text = "When the canaries last looked at what the query had folded."
        yield GaugeMetricFamily("magnetar_canary_looked_timestamp_seconds", text, value=self._looked)
        since = {name: each / 1000 for name, each in self._since.items()}
        text = "From which time on the policies of a canary are judged."
        yield _family("magnetar_canary_since_timestamp_seconds", text, "policies", since)
        totals = Counter[tuple[str, str]]()
        storage = Counter[str]()
        for each in self._canaries:
            totals.update({(each.policies, change): count for change, count in each.changes.items()})
            storage[each.policies] += each.storage or 0
        changes = GaugeMetricFamily(
            "magnetar_canary_messages",
            "Messages that would fare otherwise under the policies of a canary, for all subscriptions, by how.",
            labels=["policies", "change"],
        )
        for labels, count in sorted(totals.items()):
            changes.add_metric(labels, count)
        stored = GaugeMetricFamily(
            "magnetar_canary_storage_bytes",
            "What all topics store, under the policies of a canary, and as they are (baseline).",
            labels=["policies"],
        )
        for policies, size in storage.items():
            stored.add_metric([policies], size)
        of_subscriptions = GaugeMetricFamily(
            "magnetar_canary_subscription_messages",
            "The same by subscription: those with most such messages.",
            labels=["policies", "topic", "subscription", "change"],
        )
        most = [
            each for each in self._canaries if each.subscription is not None and any(each.changes.values())
        ]
        most = sorted(most, key=lambda each: -sum(each.changes.values()))[: self._label_sets]
        for each in most:
            for change, count in each.changes.items():
                of_subscriptions.add_metric(
                    [each.policies, each.topic, each.subscription or "", change], count
                )
        yield from (changes, stored, of_subscriptions)

    def _of_stream(self) -> Iterator[Metric]:
        now = int(time.time() * 1000)
        yield _family("magnetar_output_rows_total", "Output rows since the start.", "kind", self._rows)
        yield _family(
            "magnetar_quarantined_records_total",
            "Refused records since the start.",
            "rule",
            self._quarantined,
        )
        yield CounterMetricFamily(
            "magnetar_records_total", "Commands folded since the start.", value=self._records
        )
        yield _family(
            "magnetar_batch_phase_seconds_total",
            "Time spent in phases of micro-batches, by Spark's names; triggerExecution is the whole.",
            "phase",
            self._phases,
        )
        yield self._batches.metric("magnetar_batch_seconds", "How long micro-batches took.")
        yield self._writes.metric(
            "magnetar_store_write_seconds",
            "How long a partition's rows of a micro-batch took to be written, entries and output tables.",
        )
        if self._last is not None:
            yield from _of_last(self._last)
        if self._behind is not None:
            text = "Records of the furthest-behind partition that were not read yet, also those that an open transaction holds back."
            yield GaugeMetricFamily("magnetar_records_behind", text, value=self._behind)
        if self._time_passes:
            text = "How far the machine's clock is ahead of the time that passed. While it is too far, no micro-batch folds."
            yield GaugeMetricFamily("magnetar_clock_ahead_seconds", text, value=self._clock_ahead)
        partitions = self._topics.partitions
        figures: dict[str, tuple[str, dict[str, float]]] = {
            "magnetar_clock_lag_seconds": (
                "How far the partition's clock is behind the time.",
                {str(number): self.clock_lag(each.clock, now) for number, each in partitions.items()},
            ),
            "magnetar_state_bytes": (
                "The size of the partition's state.",
                {str(number): each.state_bytes for number, each in partitions.items()},
            ),
            "magnetar_offset": (
                "The offset of the partition's last record.",
                {str(number): each.offset for number, each in partitions.items()},
            ),
        }
        for name, (text, values) in figures.items():
            yield _family(name, text, "partition", values)
        files = self._files | {"ledgers": self._topics.closed_ledgers}
        yield _family("magnetar_files", "The files of the query, by what they are.", "of", files)


def _of_last(last: BatchProgress) -> Iterator[Metric]:
    yield _family(
        "magnetar_last_batch_phase_seconds", "The phases of the last micro-batch.", "phase", last.seconds
    )
    for name, text, value in (
        ("magnetar_last_batch", "The number of the last micro-batch.", last.batch_id),
        ("magnetar_last_batch_timestamp_seconds", "When the last micro-batch began.", last.time / 1000),
        (
            "magnetar_records_per_second",
            "The rate at which the last micro-batch folded.",
            last.records_per_second,
        ),
        ("magnetar_state_store_memory_bytes", "What Spark's state stores hold in memory.", last.state_memory),
    ):
        yield GaugeMetricFamily(name, text, value=value)


def _family(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, text, labels=[label])
    for value_of, value in values.items():
        family.add_metric([value_of], value)
    return family
