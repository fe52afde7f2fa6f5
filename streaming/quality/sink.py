"""A sink that checks rows against the output suites and writes samples for the live check. It stores no rows.

``<url>/quality/broken/<batch>-<partition>.json``  rules that output rows broke, and how often: bugs in Magnetar
``<url>/quality/live/sample-<partition>.msgpack``  with `live`: some rows of a recent micro-batch, and counts by rule
``<url>/quality/live/results.jsonl``               with `live`: results of `streaming.quality.watch`, newest last
"""

import logging
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa

from schemas.effects import KINDS, Quarantined
from schemas.outputs import Rows
from sinks import batch_files
from sinks.rows import pack
from sinks.storage import Storage
from streaming.quality.outputs import output_rules

log = logging.getLogger(__name__)

BROKEN = "quality/broken"
LIVE = "quality/live"
SAMPLE = "msgpack"
"""The extension of sample files. Each is a `Sample` in MessagePack."""

EVERY_SECONDS = 60.0
"""The minimum time between two samples of a partition, and between two runs of Great Expectations."""

LAST_SECONDS = 10.0
"""How long the end of the query waits for a last check. It runs at low priority, so on a busy machine it may take minutes."""

ROWS_PER_KIND = 200
"""The maximum rows per kind in a sample. It limits the live check to seconds per minute, whatever the traffic."""


class Sample(msgspec.Struct):
    """Some rows of a micro-batch (packed by `sinks.rows.pack`), and the counts by rule since the last sample."""

    batch: int
    counts: dict[str, int]
    rows: dict[str, bytes]


_QUARANTINED = KINDS[Quarantined]


class QualitySink:
    """Checks every row. A broken rule causes an ERROR in the log and a file, but holds up neither row nor query."""

    def __init__(
        self,
        url: str,
        *,
        live: bool = False,
        every_seconds: float = EVERY_SECONDS,
        first_seconds: float = 0,
    ) -> None:
        """`url`: a local folder or any URI that pyarrow can open.

        With `live`, the driver also starts a process that runs Great Expectations on samples, `first_seconds` after
        the first micro-batch began, because its start would slow down that of the query. Raises `SuiteError`.
        """
        self._storage = Storage(url)
        self._live, self._every = live, every_seconds
        self._sampled: dict[int, float] = {}
        self._counts: dict[int, Counter[str]] = {}
        self._watcher: subprocess.Popen[bytes] | None = None
        self._first, self._next_start = first_seconds, -1.0
        output_rules()  # fails early if a suite can't be compiled

    def __getstate__(self) -> tuple[Any, ...]:
        return self._storage, self._live, self._every

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._storage, self._live, self._every = state
        self._next_start = 0.0
        self._sampled, self._counts, self._watcher = _OF_PROCESS.setdefault(self._storage.url, ({}, {}, None))

    def begin(self, batch_id: int) -> None:
        """Start the process of the live check on the driver, when it is time.

        If it died, log a WARNING and restart it, at most once per `every_seconds`.
        """
        if not self._live:
            return
        if self._watcher is not None and self._watcher.poll() is not None:
            self._warn(self._watcher.returncode, "it is started again, and its counts begin at zero")
            self._watcher = None
        now = time.monotonic()
        if self._next_start < 0:
            self._next_start = now + self._first
        if self._watcher is None and now >= self._next_start:
            self._next_start = now + self._every
            # It ends when its standard input closes, so it never outlives the driver.
            self._watcher = subprocess.Popen(
                # -P: the folder at hand may have packages of these names.
                [sys.executable, "-P", "-m", "streaming.quality.watch", self._storage.url, str(self._every)],
                stdin=subprocess.PIPE,
                process_group=0,  # Ctrl-C is for the driver, also while this process still imports
            )

    def close(self) -> None:
        """End the process of the live check, if there is one, by force if its last check takes more than `LAST_SECONDS`.

        Log a WARNING if it died before, or by force.
        """
        if self._watcher is not None:
            try:
                self._watcher.communicate(timeout=LAST_SECONDS)
                if self._watcher.returncode:
                    self._warn(self._watcher.returncode, "the last rows were not validated")
            except subprocess.TimeoutExpired:
                self._watcher.kill()
                self._watcher.communicate()
                log.warning("the live quality check did not end within %g s: the last rows were not validated by Great "
                            "Expectations", LAST_SECONDS)  # fmt: skip
            self._watcher = None

    def _warn(self, code: int, consequence: str) -> None:
        how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        log.warning("the live quality check's process ended (%s): %s", how, consequence)

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Check the rows against the output rules and, with `live`, leave a sample of them."""
        broken = output_rules().broken(rows)
        if broken:
            for rule, count in broken.items():
                log.error("micro-batch %d, ingress partition %d: %d rows break %s. This is a mistake of Magnetar's; "
                          "the rows went on", batch_id, partition, count, rule)  # fmt: skip
            path = batch_files.path(BROKEN, batch_id, partition, "json")
            self._storage.publish(path, lambda stream: stream.write(msgspec.json.encode(broken)))
        if self._live:
            self._sample(batch_id, partition, rows, broken)

    def _sample(self, batch_id: int, partition: int, rows: Rows, broken: dict[str, int]) -> None:
        counts = self._counts.setdefault(partition, Counter())
        counts.update(broken)
        counts.update(quarantined(rows))
        now = time.monotonic()
        if now - self._sampled.get(partition, -self._every) < self._every:
            return
        self._sampled[partition] = now
        packed = {kind: pack(table) for kind, table in sample_of(rows).items()}
        sample = msgspec.msgpack.encode(Sample(batch_id, counts, packed))
        counts.clear()
        self._storage.publish(f"{LIVE}/sample-{partition:05d}.{SAMPLE}", lambda stream: stream.write(sample))


_OF_PROCESS: dict[str, Any] = {}
"""State that a worker's copies of a sink share, by URL, because Spark unpickles a sink for every task."""


def quarantined(rows: Rows) -> dict[str, int]:
    """The number of quarantined records by broken rule."""
    if _QUARANTINED not in rows:
        return {}
    counts = rows[_QUARANTINED]["rule"].value_counts().to_pylist()
    return {str(each["values"]): int(each["counts"]) for each in counts}


def sample_of(rows: Rows) -> Rows:
    """At most `ROWS_PER_KIND` rows of each kind, evenly spaced, without payloads except those of quarantined records."""
    sample = {}
    for kind, table in rows.items():
        places = range(0, len(table), -(-len(table) // ROWS_PER_KIND))
        table = pa.concat_tables(
            [table.slice(place, 1) for place in places]
        )  # `take` would copy whole columns
        if kind != _QUARANTINED and "payload" in table.column_names:
            payload = table.schema.get_field_index("payload")
            table = table.set_column(payload, table.schema.field(payload), pa.nulls(len(table), pa.binary()))
        sample[kind] = table
    return sample


def read_broken(url: str) -> dict[str, int]:
    """The number of output rows that broke each rule, over all micro-batches."""
    storage = Storage(url)
    counts: Counter[str] = Counter()
    for info in storage.files(BROKEN):
        with storage.open(storage.relative(info)) as file:
            counts.update(msgspec.json.decode(file.read(), type=dict[str, int]))
    return dict(counts)
