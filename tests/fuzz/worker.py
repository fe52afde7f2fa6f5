"""A process that judges cases: `python -m tests.fuzz.worker FOLDER SEED EXAMPLES UNTIL`, or `… FILE` for one log.

It may hang, run out of memory or crash, so the case in hand is in FOLDER/current. What it found goes to FOLDER/lines, one
JSON object per line, and the logs of findings to FOLDER.
"""

import hashlib
import json
import pickle
import re
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.cases import Load, Log, loads, logs
from tests.fuzz.files import write
from tests.fuzz.folding import plain
from tests.fuzz.judge import Verdict, judge_load, judge_log
from tests.fuzz.limits import Finding

MEMORY = 3 << 30
"""The most that a case may allocate, in bytes."""
SHRINKING = 60
"""Seconds for making a case smaller."""
LARGEST = [1 << 14, 1 << 17, 1 << 17, 1 << 20]
"""The sizes of the largest records, by turns."""


def main(folder: Path, seed_: int, examples: int, until: float) -> None:
    plain()
    is_load = seed_ % 4 == 3
    known = set((folder / "known").read_text().splitlines())
    done: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    verdicts: list[Verdict] = []
    last: list[tuple[Log | Load, Finding, float]] = []

    @seed(seed_)
    @settings(max_examples=examples // 5 if is_load else examples, database=None, deadline=None, suppress_health_check=list(HealthCheck),
              phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False)  # fmt: skip
    @given(loads() if is_load else logs(largest=LARGEST[seed_ // 4 % len(LARGEST)]))
    def search(case: Log | Load) -> None:
        if time.time() > (last[0][2] + SHRINKING if last else until):
            return
        (folder / "current").write_bytes(pickle.dumps(case))
        done["cases"] += 1
        try:
            verdict = judge_load(case) if isinstance(case, Load) else judge_log(case)
        except Finding as finding:
            if finding.name in known:
                done["repeated"] += 1
                return
            if last and finding.name != last[0][1].name:
                return  # another one, met while shrinking
            last[:] = [(case, finding, last[0][2] if last else time.time())]
            raise
        verdicts.append(verdict)
        kinds.update(verdict.kinds)

    try:
        search()
    except Exception:  # the finding, or Hypothesis: it does not occur every time
        if not last:
            raise
        report(folder, *last[0][:2])
    worst = max(verdicts, default=Verdict(0, ""), key=lambda each: each.ratio)
    most = max(verdicts, default=Verdict(0, ""), key=lambda each: each.memory)
    say(folder, done=done, kinds=kinds, ratio=[worst.ratio, worst.kind], memory=[most.memory, most.kind])


def say(folder: Path, **facts: Any) -> None:
    with (folder / "lines").open("a") as lines:
        lines.write(json.dumps(facts) + "\n")


def report(folder: Path, case: Log | Load, finding: Finding) -> None:
    """Writes a finding and its log."""
    log = case.log(600) if isinstance(case, Load) else case
    name = re.sub(r"\W+", "-", finding.name) + "-" + hashlib.sha256(pickle.dumps(log)).hexdigest()[:8]

    def holds(back: Log) -> bool:
        return isinstance(case, Load) or found_in(back) == finding.name

    path = write(folder / name, log, holds)
    if isinstance(case, Load):
        (folder / f"{name}.load").write_text(json.dumps(case._asdict(), indent=1))
    say(folder, finding=finding.name, text=str(finding), file=str(path))


def found_in(case: Log | Load) -> str | None:
    """The name of what is wrong with a case."""
    try:
        judge_load(case) if isinstance(case, Load) else judge_log(case)
    except Finding as finding:
        return finding.name
    return None


if __name__ == "__main__":
    if sys.platform == "linux":
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    if len(sys.argv) == 2:
        sys.exit(found_in(pickle.loads(Path(sys.argv[1]).read_bytes())) is not None)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
