"""What a soak's samples say: the plot, and whether anything grew."""

import json
import statistics
from pathlib import Path
from typing import Any

MB = 1 << 20
WARM_UP = 0.2
"""The part of the time that is left out: caches fill, the JVM compiles, the TTL begins to bite."""

FLAT = {"batch_seconds": 1.5}
"""The last third's median may be at most so many times the first third's; by default `FLAT_OF_THE_REST`. A micro-batch's
time depends on what else the machine does."""

FLAT_OF_THE_REST = 1.1

ENOUGH = 30
"""Samples after the warm-up, to say anything."""

PANELS: list[tuple[str, dict[str, float]]] = [
    ("memory, MB", {"java": MB, "workers": MB, "driver": MB}),
    ("state of all partitions, kB", {"state": 1024}),
    ("micro-batch, s", {"batch_seconds": 1}),
    ("backlog, entries", {"backlog": 1}),
]


def read(samples: Path) -> list[dict[str, Any]]:
    """The samples of a soak, in order of time."""
    return [json.loads(line) for line in samples.read_text().splitlines()]


def plot(samples: Path, file: Path) -> None:
    """Draws them, one panel a quantity, over minutes."""
    from matplotlib.figure import Figure

    found = read(samples)
    minutes = [sample["minutes"] for sample in found]
    figure = Figure(figsize=(9, 8), layout="constrained")
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    for axis, (title, columns) in zip(axes, PANELS, strict=True):
        for name, unit in columns.items():
            axis.plot(minutes, [sample[name] / unit for sample in found], label=name, linewidth=1)
        axis.set_title(title, loc="left", fontsize=9)
        axis.set_ylim(bottom=0)
        if len(columns) > 1:
            axis.legend(loc="lower right", fontsize=8)
    axes[-1].set_xlabel("minutes")
    figure.savefig(file)


def judge(samples: Path) -> int:
    """Prints each quantity's medians of the first and the last third; 1 if one grew by more than `FLAT`, else 0."""
    found = read(samples)
    found = found[int(len(found) * WARM_UP) :]
    if len(found) < ENOUGH:
        print(f"{len(found)} samples: too few to say what grows")
        return 0
    third = len(found) // 3
    grew = []
    for _, columns in PANELS:
        for name, unit in columns.items():
            before, after = (
                statistics.median(sample[name] for sample in part) / unit
                for part in (found[:third], found[-third:])
            )
            if after > before * FLAT.get(name, FLAT_OF_THE_REST):
                grew.append(name)
            print(f"{name:15} {before:12,.2f} {after:12,.2f}  {after / before:.2f}")
    records = sum(sample["records"] for sample in found)
    print(f"{records:,} records in {found[-1]['minutes'] - found[0]['minutes']:.0f} minutes")
    print(f"not flat: {', '.join(grew)}" if grew else "all flat")
    return 1 if grew else 0
