"""What a soak's samples say: the plot, and whether anything grew.

Some numbers of files are bounded, some are not. Sealed ledgers go with retention, and segments are merged, so their files
must not become more; nor must the checkpoint's, of which Spark keeps the last hundred micro-batches, and what else is in
the store. Output tables get files with every micro-batch and nothing merges them: their number is expected to grow, and
only the number of files that a micro-batch adds is judged.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MB = 1 << 20

Sample = dict[str, float]
"""One line of ``samples.jsonl``, see `bench.soak.Sampler`."""

WARM_UP = 0.2
"""The part of the time that is left out: caches fill, the JVM compiles, the TTL begins to bite."""

ENOUGH = 30
"""The least number of samples after the warm-up to judge by."""


class Quantity(NamedTuple):
    """A number in every sample that must not grow."""

    name: str
    unit: float = 1
    growth: float = 1.1
    """The last third's median may be at most so many times the first third's,"""
    slack: float = 0
    """and so much more, in the sample's own unit: small numbers of files jump."""


PANELS: list[tuple[str, list[Quantity]]] = [
    ("memory, MB", [Quantity("java", MB), Quantity("workers", MB), Quantity("driver", MB)]),
    ("state of all partitions, kB", [Quantity("state", 1024)]),
    # It depends on what else the machine does.
    ("micro-batch, s", [Quantity("batch_seconds", growth=1.5)]),
    ("backlog, entries", [Quantity("backlog")]),
    (
        "files",
        [
            Quantity("ledger_files", slack=16),
            # Sixteen times the micro-batches make one more level of segments.
            Quantity("segment_files", growth=1.5, slack=16),
            Quantity("checkpoint_files", slack=16),
            Quantity("other_files", slack=16),
        ],
    ),
    ("new files of tables per micro-batch", [Quantity("table_files_per_batch")]),
]


def read(samples: Path) -> list[Sample]:
    """The samples of a soak, in order of time."""
    return list(with_rates([json.loads(line) for line in samples.read_text().splitlines()]))


def with_rates(samples: Sequence[Sample]) -> Iterator[Sample]:
    """The samples with the files that each micro-batch since the one before added to the output tables."""
    before: Sample = {"table_files": 0, "batch": -1}
    for sample in samples:
        files, batches = (sample[name] - before[name] for name in ("table_files", "batch"))
        yield sample | {"table_files_per_batch": files / batches}
        before = sample


def plot(samples: Path, file: Path) -> None:
    """Draws them, one panel per group of quantities, over minutes."""
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
    """`grew`: the quantities that did. `lines`: a report for people."""

    passed: bool
    grew: list[str]
    lines: list[str]


def judge(samples: Sequence[Sample]) -> Verdict:
    """Compares the medians of the first and the last third after the warm-up. Too few samples don't pass."""
    found = samples[int(len(samples) * WARM_UP) :]
    if len(found) < ENOUGH:
        line = f"{len(found)} samples after the warm-up: too few to say what grows, {ENOUGH} are needed"
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
    tables = found[-1]["table_files"]
    lines.append(
        f"{records:,.0f} records in {minutes:.0f} minutes; {tables:,.0f} files of tables, never merged"
    )
    lines.append(f"not flat: {', '.join(grew)}" if grew else "all flat")
    return Verdict(not grew, grew, lines)
