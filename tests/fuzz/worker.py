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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.cases import Load, Log, loads, logs
from tests.fuzz.files import write
from tests.fuzz.folding import plain
from tests.fuzz.judge import Verdict, judge_load, judge_log
from tests.fuzz.limits import Finding
from tests.fuzz.lives import Life, lives

Case = Log | Load | Life

MEMORY = 3 << 30
"""The most that a case may allocate, in bytes."""
SHRINKING = 60
"""Seconds for making a case smaller."""
OTHERS: dict[int, Callable[[], st.SearchStrategy[Case]]] = {1: lives, 3: loads}
"""What the rounds with other seeds judge, modulo 4. All others judge logs."""
LARGEST = [1 << 14, 1 << 17, 1 << 17, 1 << 20]
"""The sizes of the largest records, by turns."""


def main(folder: Path, seed_: int, examples: int, until: float) -> None:
    plain()
    cases: st.SearchStrategy[Case] = logs(largest=LARGEST[seed_ // 4 % len(LARGEST)])
    if seed_ % 4 in OTHERS:
        examples, cases = examples // 5, OTHERS[seed_ % 4]()
    known = set((folder / "known").read_text().splitlines())
    done: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    verdicts: list[Verdict] = []
    last: list[tuple[Case, Finding, float]] = []

    @seed(seed_)
    @settings(max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck),
              phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False)  # fmt: skip
    @given(cases)
    def search(case: Case) -> None:
        if time.time() > (last[0][2] + SHRINKING if last else until):
            return
        (folder / "current").write_bytes(pickle.dumps(case))
        done["cases"] += 1
        try:
            verdict = judged(case)
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


def judged(case: Case) -> Verdict:
    """Raises `Finding`."""
    match case:
        case Load():
            return judge_load(case)
        case Life():
            return Verdict(0, f"life of {case.theme}", kinds={case.judge(): 1})
        case _:
            return judge_log(case)


def report(folder: Path, case: Case, finding: Finding) -> None:
    """Writes a finding and its log."""
    log = case.log(600) if isinstance(case, Load | Life) else case
    name = re.sub(r"\W+", "-", finding.name) + "-" + hashlib.sha256(pickle.dumps(log)).hexdigest()[:8]

    def holds(back: Log) -> bool:
        return isinstance(case, Load | Life) or found_in(back) == finding.name

    path = write(folder / name, log, holds)
    if isinstance(case, Load):
        (folder / f"{name}.load").write_text(json.dumps(case._asdict(), indent=1))
    say(folder, finding=finding.name, text=str(finding), file=str(path))


def found_in(case: Case) -> str | None:
    """The name of what is wrong with a case."""
    try:
        judged(case)
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
