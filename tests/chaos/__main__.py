"""`python -m tests.chaos`: random faults in every phase of a micro-batch must not change the result.

Exits with 1 if the outputs of a seed differ from those of the undisturbed fold.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from tests.chaos.plan import KINDS, PHASES
from tests.chaos.runner import Hit, Result, run

ERROR = 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds (default: 50)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument(
        "--jobs", type=int, default=2, help="how many seeds at a time, 1.5 GB each (default: 2)"
    )
    asked = parser.parse_args()
    # Also where it is ignored, as in the background of a shell: without cleanup, Kafka and drivers would outlive us.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    seeds = range(asked.first, asked.first + asked.seeds)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    folder = Path(tempfile.mkdtemp(prefix="magnetar-chaos-"))
    results: list[Result] = []
    begun = time.monotonic()
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    try:
        with Progress(*columns, console=console) as progress, closing(run(seeds, asked.jobs, folder)) as done:
            task = progress.add_task("", total=len(seeds))
            for result in done:
                results.append(result)
                if result.failure is not None:
                    console.print(f"[red]seed {result.seed}[/red]: {result.failure}", highlight=False)
                    console.print(f"  again: python -m tests.chaos --seeds 1 --first {result.seed}    "
                                  f"what it left: {folder / str(result.seed)}", highlight=False)  # fmt: skip
                elif not console.is_terminal:
                    console.print(f"seed {result.seed}: {len(result.hits)} faults, {result.starts} starts, "
                                  f"{result.seconds:.1f} s")  # fmt: skip
                failed = sum(each.failure is not None for each in results)
                progress.update(task, advance=1, description=f"{failed} failed")
    except KeyboardInterrupt:
        console.print(f"stopped: {len(seeds) - len(results)} seeds are missing")
    finally:
        if all(result.failure is None for result in results):
            shutil.rmtree(folder)
    console.print(_table([hit for result in results for hit in result.hits]))
    console.print(_summary(results, time.monotonic() - begun), highlight=False)
    whole = len(results) == len(seeds) and all(result.failure is None for result in results)
    return 0 if whole else ERROR


def _table(hits: list[Hit]) -> Table:
    table = Table(
        "where in a micro-batch", *KINDS,
        caption="how often × · restarts of the query · median seconds to the next finished writes",
    )  # fmt: skip
    cells: dict[tuple[str, str], list[Hit]] = defaultdict(list)
    for hit in hits:
        cells[hit.fault.kind, hit.fault.phase].append(hit)
    for phase, words in PHASES.items():
        table.add_row(words, *(_cell(cells[kind, phase]) for kind in KINDS))
    return table


def _cell(hits: list[Hit]) -> str:
    if not hits:
        return "–"
    seconds = [hit.seconds for hit in hits if hit.seconds is not None]
    return f"{len(hits)} × · {sum(hit.restarts for hit in hits)} · {median(seconds or [0]):.1f} s"


def _summary(results: list[Result], seconds: float) -> str:
    failed = sorted(result.seed for result in results if result.failure is not None)
    armed, struck = sum(each.armed for each in results), sum(len(each.hits) for each in results)
    text = (
        f"{len(results)} seeds in {seconds:.0f} s ({seconds / max(1, len(results)):.1f} s a seed), {struck} faults "
        f"(of {armed} planned: the others' moment did not come), {sum(each.starts for each in results)} starts.\n"
        f"{sum(each.rows for each in results):,} rows, entries, answers and states compared; "
        f"{sum(each.repeated for each in results):,} answers came again and were dropped by their identity.\n"
    )
    if failed:
        return f"{text}Different: {len(failed)} seeds, {', '.join(map(str, failed))}."
    return f"{text}Nothing lost, nothing doubled: all equal."


if __name__ == "__main__":
    sys.exit(main())
