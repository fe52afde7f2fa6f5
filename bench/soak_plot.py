"""Evaluates a soak's samples: plots them, and checks whether anything grew.

Retention deletes sealed ledgers, segments are merged, Spark keeps the last hundred micro-batches in the checkpoint, and the
output table is compacted. So the number of files must not grow. Files that compaction replaced stay for an hour, for readers;
what is older counts as stale.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MB = 1 << 20

Sample = dict[str, float]
"""One line of ``samples.jsonl``, see `bench.soak.Sampler`."""

WARM_UP = 0.2
"""The fraction of the samples to skip, while caches fill, the JVM compiles and the TTL takes effect."""

ENOUGH = 30
"""The minimum number of samples after the warm-up for a verdict."""


class Quantity(NamedTuple):
    """A number in every sample that must not grow."""

    name: str
    unit: float = 1
    growth: float = 1.1
    """How many times the first third's median the last third's may be."""
    slack: float = 0
    """What is allowed on top, in the sample's own unit, because small numbers of files jump."""


PANELS: list[tuple[str, list[Quantity]]] = [
    # The JVM takes memory from the machine, and gives it back, in steps of some hundred MB. What it needs is on its heap.
    (
        "memory, MB",
        [
            Quantity("java", MB, growth=1.5),
            Quantity("heap", MB),
            Quantity("workers", MB),
            Quantity("driver", MB),
        ],
    ),
    ("state of all partitions, kB", [Quantity("state", 1024)]),
    # It also depends on the load of the machine.
    ("micro-batch, s", [Quantity("batch_seconds", growth=1.5)]),
    ("a round of the live page's answers, s", [Quantity("page_seconds", growth=1.5, slack=0.2)]),
    ("requests that the page did not answer", [Quantity("page_failures", slack=0.5)]),
    ("backlog, entries", [Quantity("backlog")]),
    (
        "files",
        [
            Quantity("ledger_files", slack=16),
            # Sixteen times as many micro-batches add one level of segments.
            Quantity("segment_files", growth=1.5, slack=16),
            Quantity("checkpoint_files", slack=16),
            Quantity("other_files", slack=16),
            # It goes up and down with each compaction, and every day begins new files.
            Quantity("table_files", growth=1.5, slack=64),
            Quantity("stale_files", slack=16),
        ],
    ),
]


def read(samples: Path) -> list[Sample]:
    """The samples of a soak, in time order."""
    return [json.loads(line) for line in samples.read_text().splitlines()]


def plot(samples: Path, file: Path) -> None:
    """Plot the samples over minutes, with one panel per group of quantities."""
    from matplotlib.figure import Figure

    found = read(samples)
    minutes = [sample["minutes"] for sample in found]
    figure = Figure(figsize=(9, 12), layout="constrained")
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    for axis, (title, quantities) in zip(axes, PANELS, strict=True):
        for each in quantities:
            values = [sample[each.name] / each.unit for sample in found]
            axis.plot(minutes, values, label=each.name, linewidth=1)
        axis.set_title(title, loc="left", fontsize=9)
        axis.set_ylim(bottom=0)
        if len(quantities) > 1:
            axis.legend(loc="lower right", fontsize=8)
    axes[-1].set_xlabel("minutes")
    figure.savefig(file)


class Verdict(NamedTuple):
    """`grew`: the quantities that grew. `lines`: a report to print."""

    passed: bool
    grew: list[str]
    lines: list[str]


def judge(samples: Sequence[Sample]) -> Verdict:
    """Compare the medians of the first and the last third after the warm-up. Too few samples fail."""
    found = samples[int(len(samples) * WARM_UP) :]
    if len(found) < ENOUGH:
        line = f"{len(found)} samples after the warm-up: too few for a verdict, which needs {ENOUGH}"
        return Verdict(False, [], [line])
    third = len(found) // 3
    grew, lines = [], [f"{'':21} {'first third':>12} {'last third':>12}"]
    for each in (quantity for _, quantities in PANELS for quantity in quantities):
        before, after = (
            statistics.median(sample[each.name] for sample in part)
            for part in (found[:third], found[-third:])
        )
        if after > before * each.growth + each.slack:
            grew.append(each.name)
        ratio = f"{after / before:.2f}" if before else "-"
        lines.append(f"{each.name:21} {before / each.unit:12,.2f} {after / each.unit:12,.2f}  {ratio}")
    records = sum(sample["records"] for sample in found)
    minutes = found[-1]["minutes"] - found[0]["minutes"]
    lines.append(f"{records:,.0f} records in {minutes:.0f} minutes")
    lines.append(f"not flat: {', '.join(grew)}" if grew else "all flat")
    return Verdict(not grew, grew, lines)
