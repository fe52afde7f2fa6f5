"""`python -m tests.fuzz`: hostile records and growing loads must not stop the fold, nor cost more than their bounds.

Exits with 1 if there are findings. Their logs are in the folder that is printed, for `magnetar replay`; put them into
tests/fuzz/found to have them tested.
"""

import argparse
import json
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.fuzz.cases import Load, Log
from tests.fuzz.lives import Life

EXAMPLES = 100
"""Cases of a round, a fifth of that for loads. A new process takes the next round."""
PATIENCE, SLEEPS = 60, 1800
"""Seconds of processor time without a new case, and seconds at all, after which a worker hangs. It stops itself after fewer seconds of
processor time, unless C has it."""


class Totals:
    """What all rounds found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.worst: dict[str, list[Any]] = {"ratio": [0, ""], "memory": [0, ""]}
        self.findings: dict[str, str] = {}
        (folder / "known").touch()

    def add(self, line: str) -> None:
        """A line of a worker."""
        told = json.loads(line)
        if "finding" in told:
            self.found(told["finding"], told["text"], told["file"])
            return
        self.done.update(told["done"])
        self.kinds.update(told["kinds"])
        for name in self.worst:
            self.worst[name] = max(self.worst[name], told[name])

    def found(self, name: str, text: str, file: str) -> None:
        self.findings[name] = text
        print(f"FOUND {text}\n  {file}", flush=True)
        with (self.folder / "known").open("a") as known:
            known.write(name + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long (default: 10)")
    parser.add_argument(
        "--rounds", type=int, default=sys.maxsize, help=f"at most so many rounds of {EXAMPLES} cases"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6),
                        help="the first round's seed (default: any)")  # fmt: skip
    parser.add_argument("--out", type=Path, help="a folder for the findings (default: a temporary one)")
    asked = parser.parse_args()
    folder = asked.out or Path(tempfile.mkdtemp(prefix="magnetar-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    totals, begun = Totals(folder), time.time()
    until = begun + asked.minutes * 60
    try:
        for number in range(asked.rounds):
            if time.time() >= until:
                break
            work(totals, asked.seed + number, until)
            print(f"{(time.time() - begun) / 60:.1f} min, seed {asked.seed + number}: {totals.done['cases']:,} cases, "
                  f"{len(totals.findings)} findings, at most {totals.worst['ratio'][0]:.2f} of a bound", flush=True)  # fmt: skip
    except KeyboardInterrupt:
        print("stopped")
    summary(totals, asked.seed, time.time() - begun)
    return bool(totals.findings)


def work(totals: Totals, seed: int, until: float) -> None:
    """One round."""
    folder = totals.folder
    current = folder / "current"
    current.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.worker", str(folder), str(seed), str(EXAMPLES), str(until)]
    (folder / "lines").write_text("")
    with (folder / "errors").open("w") as errors:
        worker = subprocess.Popen(command, stdout=errors, stderr=errors)
        process, case, since, used = psutil.Process(worker.pid), 0.0, time.time(), 0.0
        try:
            while worker.poll() is None:
                time.sleep(0.2)
                with suppress(psutil.Error):  # it has ended
                    now, times = time.time(), process.cpu_times()
                    if current.exists() and (begun := current.stat().st_mtime) != case:
                        case, since, used = begun, now, times.user + times.system
                    if now - since > SLEEPS or times.user + times.system - used > PATIENCE:
                        worker.kill()
        finally:
            worker.kill()
            worker.wait()
    for line in (folder / "lines").read_text().splitlines():
        totals.add(line)
    if worker.returncode != 0:
        crashed(totals, worker.returncode)


def crashed(totals: Totals, code: int) -> None:
    """A worker that did not end by itself: its case is a finding."""
    errors = (totals.folder / "errors").read_text()
    if not (totals.folder / "current").exists():
        raise RuntimeError(f"the worker did not start:\n{errors[-2000:]}")
    from tests.fuzz.files import write

    case: Log | Load | Life = pickle.loads((totals.folder / "current").read_bytes())
    log = case.log(600) if isinstance(case, Load | Life) else shrunk(case, totals.folder)
    name = f"crash with {code}"
    path = write(totals.folder / f"crash-{len(totals.findings)}", log, lambda back: False)
    totals.found(name, f"{name}: {errors[-300:].strip() or 'nothing was written'}", str(path))


def shrunk(log: Log, folder: Path, seconds: float = 60, attempt: float = 20) -> Log:
    """A shorter log that crashes a process, or keeps it busy: without as many records as may be left out in the time."""
    until = time.time() + seconds
    size = len(log) // 2
    while size and time.time() < until:
        for start in range(0, len(log), size):
            shorter = log[:start] + log[start + size :]
            if shorter and time.time() < until and crashes(shorter, folder, attempt):
                log = shorter
                break
        else:
            size //= 2
    return log


def crashes(log: Log, folder: Path, seconds: float) -> bool:
    case = folder / "shrinking"
    case.write_bytes(pickle.dumps(log))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.worker", str(case)], timeout=seconds, capture_output=True
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 1)


def summary(totals: Totals, seed: int, seconds: float) -> None:
    refused = {kind: number for kind, number in totals.kinds.items() if not kind.isupper()}
    carried = {kind: number for kind, number in totals.kinds.items() if kind.isupper()}
    print(f"{totals.done['cases']:,} cases in {seconds / 60:.1f} min from seed {seed}")
    print(
        "commands carried out:", ", ".join(f"{kind} {number:,}" for kind, number in sorted(carried.items()))
    )
    print(f"rules that refused records: {len(refused)}, {sum(refused.values()):,} times")
    print("  " + ", ".join(sorted(refused)))
    (ratio, kind), (memory, by) = totals.worst["ratio"], totals.worst["memory"]
    print(f"at most {ratio:.2f} of a bound ({kind}); memory rose by at most {memory / 2**20:.0f} MB ({by})")
    for name, text in totals.findings.items():
        print(f"FOUND {text}" if name in text else f"FOUND {name}: {text}")
    print(
        f"{len(totals.findings)} findings, {totals.done['repeated']} cases with one of them again; {totals.folder}"
    )


if __name__ == "__main__":
    sys.exit(main())
