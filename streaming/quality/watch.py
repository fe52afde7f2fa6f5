"""The live check: runs Great Expectations on samples of the query's rows, in a process beside the driver.

It is a process, not a thread, because the import takes seconds and a validation about a second, which would delay the
driver's micro-batches. It runs at low priority (nice), checks samples at most once per interval, and keeps its last `KEPT`
results in ``<url>/quality/live/results.jsonl``. It ends when its standard input closes, so always with the driver.

``python -m streaming.quality.watch URL SECONDS``
"""

import os
import select
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from schemas import commands as c
from schemas.effects import KINDS as ROW_KINDS
from schemas.effects import Quarantined
from schemas.outputs import Rows
from schemas.printable import one_line
from sinks.rows import concat, unpack
from sinks.storage import Storage
from streaming.quality.column_gate import Gate
from streaming.quality.inputs import KINDS, RECORD, to_arrays
from streaming.quality.kernels import CompiledSuite
from streaming.quality.outputs import OUTPUTS, OutputRules
from streaming.quality.sink import LIVE, SAMPLE, Sample
from streaming.quality.suites import INPUTS, Suite, read_suites

KEPT = 500
"""How many results to keep."""

_RESULTS = f"{LIVE}/results.jsonl"
_QUARANTINED = ROW_KINDS[Quarantined]


class Result(msgspec.Struct):
    """One check of the samples. Times are in ms since the epoch. Counts are rows.

    `counts`: all quarantined records and rows that broke output rules since the start of the query, by rule; `broken`:
    what Great Expectations found in the sample, by rule; `disagreements`: rules for which the kernels flag other rows than
    Great Expectations does, which is a bug in Magnetar.
    """

    time: int
    batch: int
    rows: int
    counts: dict[str, int]
    broken: dict[str, int]
    disagreements: list[str]
    seconds: float


class WatchedRows(NamedTuple):
    """Rows of one kind, and their rules."""

    suite: Suite
    rules: CompiledSuite
    table: pa.Table


class Watch:
    """Checks the samples in a store on demand."""

    def __init__(self, url: str, *, kept: int = KEPT) -> None:
        """Continues the results of an earlier run. Raises `SuiteError`."""
        from streaming.quality.gx import GreatExpectations

        self._storage = Storage(url)
        self._gx = GreatExpectations()
        self._gate, self._rules = Gate(), OutputRules()
        self._inputs, self._outputs = read_suites(INPUTS), read_suites(OUTPUTS)
        self._kept = kept
        self._seen: dict[str, int] = {}
        self._counts: Counter[str] = Counter()
        self._results = read_results(url)

    def look(self) -> Result | None:
        """Validate new samples. Returns None if there are none."""
        begun = time.monotonic()
        samples: list[Sample] = []
        for info in self._storage.files(LIVE):
            if not info.path.endswith(f".{SAMPLE}") or self._seen.get(info.path) == info.mtime_ns:
                continue
            self._seen[info.path] = info.mtime_ns
            with self._storage.open(self._storage.relative(info)) as file:
                samples.append(msgspec.msgpack.decode(file.read(), type=Sample))
            self._counts.update(samples[-1].counts)
        if not samples:
            return None
        rows = concat(
            {kind: unpack(kind, packed) for kind, packed in sample.rows.items()} for sample in samples
        )
        broken: dict[str, int] = {}
        disagreements = []
        for suite, rules, table in self._subjects(rows):
            flagged = self._gx.flags(suite, table)
            columns = {name: table[name].combine_chunks() for name in suite.columns()}
            masks = rules.masks(columns, len(table))
            for bit, (rule, places) in enumerate(flagged.items()):
                own = (
                    []
                    if masks is None
                    else [row for row, mask in enumerate(masks.tolist()) if mask >> bit & 1]
                )
                broken |= {rule: len(places)} if places else {}
                if own != places:
                    disagreements.append(rule)
        now = time.time_ns() // 1_000_000
        seconds = round(time.monotonic() - begun, 3)
        batch, count = max(sample.batch for sample in samples), sum(map(len, rows.values()))
        result = Result(now, batch, count, dict(self._counts), broken, disagreements, seconds)
        self._results = [*self._results, result][-self._kept :]
        lines = b"".join(msgspec.json.encode(each) + b"\n" for each in self._results)
        self._storage.publish(_RESULTS, lambda stream: stream.write(lines))
        return result

    def _subjects(self, rows: Rows) -> Iterator[WatchedRows]:
        """Output rows by kind, and quarantined records also as commands."""
        for name, table in rows.items():
            yield WatchedRows(self._outputs[name], self._rules.kinds[name], table)
        bad = rows.get(_QUARANTINED)
        if bad is None:
            return
        commands: dict[type[Any], list[Any]] = {}
        for value in bad["payload"].to_pylist():
            try:
                command = c.decode(value)
            except c.MalformedCommand:
                continue
            commands.setdefault(type(command), []).append(command)
        yield WatchedRows(self._inputs[RECORD], self._gate.record, bad)
        for kind, own in commands.items():
            known = self._gate.kinds[kind]
            yield WatchedRows(self._inputs[KINDS[kind]], known.suite, pa.table(to_arrays(known.columns, own)))


def read_results(url: str) -> list[Result]:
    """The stored results, newest last."""
    storage = Storage(url)
    if storage.info(_RESULTS) is None:
        return []
    with storage.open(_RESULTS) as file:
        return [msgspec.json.decode(line, type=Result) for line in file.read().splitlines()]


def main(url: str, seconds: float) -> None:
    """Check once per interval until standard input closes, then once more."""
    os.nice(19)
    watch = Watch(url)
    ended = False
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], seconds)[0])
        result = watch.look()
        if result is not None and (result.broken.keys() | set(result.disagreements)):
            named = ", ".join(f"{rule}: {count}" for rule, count in result.broken.items())
            text = f"quality: broken in a sample: {named}; kernels disagree: {result.disagreements}"
            print(one_line(text), file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
