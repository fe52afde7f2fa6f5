"""What the page shows: a running query, or what a replay or a query left in its folders."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from sinks.base import STATE
from sinks.replayed import check_whole, read_replayed
from sinks.storage import Damaged, Storage, plain, within
from streaming.answers.history.folders import Budget, Folders
from streaming.answers.history.inspection import batch_times, batches
from streaming.answers.whatif.answer import WhatIf
from streaming.canaries.files import CanaryFiles
from streaming.fold.records import StateRow, partition_metrics
from streaming.metrics.query import BatchProgress, QueryMetrics
from streaming.metrics.topics import KnownTopic, MetricsSnapshot, TopicFigures
from streaming.ui.figures import totals
from streaming.ui.history import POINTS, SampleHistory
from streaming.ui.output_rows import flows

FLOW_SECONDS, FLOW_ROWS = 20.0, 100_000_000
"""What reading the rows of a finished replay may take, for what happened over time."""

MESSAGES = 100_000
"""About so many of the differences that canaries found are looked at, for those that are shown."""

_logger = logging.getLogger(__name__)
_REFRESH_SECONDS = 10.0
_KEPT_FLOWS = 32


class View(Protocol):
    """What the page shows. Its methods are called in many threads."""

    @property
    def tables(self) -> Storage | None:
        """Where the output rows are, if they are kept."""

    @property
    def folder(self) -> str:
        """The folder or URL about which explanations are."""

    def status(self) -> dict[str, Any]:
        """What this is, and how it is: ``kind`` (run, query or replay), ``name``, ``state``, ``changes``, and more by kind."""

    def figures(self) -> MetricsSnapshot:
        """The figures of all topics."""

    def topic(self, name: str) -> KnownTopic | None:
        """The figures of a topic."""

    def history(self, topic: str | None) -> dict[str, Any] | None:
        """What the figures were, of all topics or of one: ``times`` (ms) and lists of values."""

    def batches(self) -> list[dict[str, Any]]:
        """The last micro-batches: ``batch``, ``time`` (ms), ``seconds``, and, if they are known, ``records`` and ``phases``."""

    def states(self, partition: int | None) -> list[StateRow]:
        """The last state of an ingress partition; None: of all."""

    def canaries(self) -> WhatIf | None:
        """What the query's canaries have found, with some of the messages; None: it has none."""


class RunView:
    """A running query: its figures from the driver's memory, its states from the checkpoint."""

    def __init__(
        self,
        name: str,
        metrics: QueryMetrics,
        store: str,
        states: Callable[[int | None], list[StateRow]],
        *,
        tables: bool = True,
    ) -> None:
        """`states`: see `View.states`. `tables`: the query writes output tables."""
        self.folder, self.states = store, states
        self.tables = Storage(within(store, "tables")) if tables else None
        self._name, self._metrics = name, metrics
        self._history = SampleHistory()
        self._batches: deque[BatchProgress] = deque(maxlen=POINTS)

    def progress(self, done: BatchProgress) -> None:
        """A micro-batch is done: `streaming.jobs.run.run_query`'s `on_progress`."""
        self._batches.append(done)
        now = int(time.time() * 1000)
        if self._history.is_due(now):
            figures = self._metrics.snapshot()
            self._history.add(now, figures, totals(figures))

    def status(self) -> dict[str, Any]:
        """See `View`."""
        last = self._batches[-1] if self._batches else None
        state = "running" if self._metrics.ready else "starting" if self._metrics.healthy else "stopped"
        found = {"kind": "run", "name": self._name, "state": state, "changes": True}
        if last is not None:
            partitions = self._metrics.snapshot().partitions
            now = int(time.time() * 1000)
            lags = [self._metrics.clock_lag(each.clock, now) for each in partitions.values()]
            found |= {
                "batch": last.batch_id,
                "time": last.time,
                "behind": self._metrics.behind,
                "recordsPerSecond": last.records_per_second,
                "stateBytes": sum(each.state_bytes for each in partitions.values()),
                "clockLag": max(lags, default=None),
            }
        return found

    def canaries(self) -> WhatIf | None:
        """See `View`."""
        return CanaryFiles(self.folder).answer(MESSAGES)

    def figures(self) -> MetricsSnapshot:
        """See `View`."""
        return self._metrics.snapshot()

    def topic(self, name: str) -> KnownTopic | None:
        """See `View`."""
        return self._metrics.topic(name)

    def history(self, topic: str | None) -> dict[str, Any] | None:
        """See `View`."""
        return self._history.totals() if topic is None else self._history.topic(topic)

    def batches(self) -> list[dict[str, Any]]:
        """See `View`."""
        return [
            {
                "batch": each.batch_id,
                "time": each.time,
                "seconds": each.seconds.get("triggerExecution"),
                "records": each.records,
                "phases": each.seconds,
            }
            for each in list(self._batches)
        ]


class FolderView:
    """The folder of a finished replay, or the store and checkpoint of a query, which may run elsewhere."""

    def __init__(
        self, folder: str, found: Folders, read: Callable[[], list[StateRow]] | None, *, finished: bool
    ) -> None:
        """`read`: reads the last states; None: there are none. They are read here first. `finished`: of a replay, so that they
        do not change."""
        self.folder, self._tables = folder, found.tables
        self._checkpoint, self._read = found.checkpoint, read
        self._replayed = None if found.state is None else read_replayed(found.state)
        self._finished = finished
        self._lock = threading.Lock()
        self._flows: dict[str | None, dict[str, Any] | None] = {}
        self._commit, self._due = self._last_commit(), 0.0
        self._load()

    @property
    def tables(self) -> Storage | None:
        """See `View`. Raises `Damaged` if files of a replay were moved or removed since."""
        if self._finished:
            if not (Path(self.folder) / STATE).is_dir():
                raise Damaged(
                    f"{self.folder} was moved or removed: move it back, or restart with its new name"
                )
            check_whole(Path(self.folder))
        return self._tables

    def _load(self) -> None:
        states = [] if self._read is None else self._read()
        figures = TopicFigures()
        for measured in partition_metrics(states):
            figures.update(measured)
        self._states, self._topics = states, figures
        self._snapshot = figures.snapshot(0)
        self._flows = {}

    def _last_commit(self) -> int | None:
        return None if self._checkpoint is None else max(batches(self._checkpoint), default=None)

    def _refresh(self) -> None:
        """Read the states again in a thread, if the query has gone on, but not all the time."""
        if self._checkpoint is None or self._finished or time.monotonic() < self._due:
            return
        if not self._lock.acquire(blocking=False):
            return

        def read() -> None:
            try:
                began = time.monotonic()
                if (commit := self._last_commit()) != self._commit:
                    self._load()
                    self._commit = commit
                    self._due = time.monotonic() + max(_REFRESH_SECONDS, 5 * (time.monotonic() - began))
            except Exception as error:  # what was read before stays
                _logger.warning("The states were not read again: %s", plain(error))
                self._due = time.monotonic() + _REFRESH_SECONDS
            finally:
                self._lock.release()

        threading.Thread(target=read, name="refresh", daemon=True).start()

    def status(self) -> dict[str, Any]:
        """See `View`."""
        self._refresh()
        clock = max((each.clock for each in self._states), default=None)
        found: dict[str, Any] = {"name": self.folder, "time": clock}
        if self._finished:
            found |= {"kind": "replay", "state": "finished", "changes": False}
        else:
            state = "without states: give the --checkpoint" if self._read is None else "as last read"
            found |= {
                "kind": "query",
                "state": state,
                "changes": self._checkpoint is not None,
                "batch": self._commit,
            }
        if self._replayed is not None:
            found |= {"records": self._replayed.records, "rows": self._replayed.rows}
        found["stateBytes"] = sum(len(each.broker) for each in self._states)
        return found

    def canaries(self) -> WhatIf | None:
        """See `View`."""
        return None if self._finished else CanaryFiles(self.folder).answer(MESSAGES)

    def figures(self) -> MetricsSnapshot:
        """See `View`."""
        return self._snapshot

    def topic(self, name: str) -> KnownTopic | None:
        """See `View`."""
        return self._topics.topic(name)

    def history(self, topic: str | None) -> dict[str, Any] | None:
        """See `View`. Raises `streaming.answers.history.folders.TooMuch`."""
        if self.tables is None or self._read is None:
            return None
        known = self._flows
        if topic not in known:
            figures = self._snapshot.topics if topic is None else [self._topics.topic(topic)]
            storage = sum(each.topic.storage_size for each in figures if each is not None)
            folders = Folders.of(self.folder)
            folders.budget = Budget(FLOW_SECONDS, FLOW_ROWS)
            found = flows(folders, topic, storage)
            if len(known) >= _KEPT_FLOWS:
                known.clear()
            known[topic] = found
        return known.get(topic)

    def batches(self) -> list[dict[str, Any]]:
        """See `View`. A micro-batch takes from the file that plans it to that which commits it."""
        if self._checkpoint is None:
            return []
        times = [*batch_times(self._checkpoint).items()][-POINTS:]
        return [
            {"batch": number, "time": round(planned * 1000), "seconds": committed - planned}
            for number, (planned, committed) in times
        ]

    def states(self, partition: int | None) -> list[StateRow]:
        """See `View`."""
        return [each for each in self._states if partition in (None, each.partition)]
