"""`python -m tests.parity`: runs random scenarios on a real Pulsar 4.0.7 and on Magnetar, and compares every frame.

Exits with 1 if a difference is stable (it occurs each time), or if a scenario is missing.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from streaming.runtime.jars import JarsUnavailableError
from streaming.runtime.java import JavaNotFoundError
from tests.parity.plan import KINDS
from tests.parity.pulsar import LocalPulsar, Ports, PulsarError
from tests.parity.scenario import attempt, record
from tests.parity.wire import WireError

_SHOWN = 3
"""How many differences of a scenario to print. Later ones mostly follow from the first."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    parser.add_argument(
        "--kind", nargs="+", choices=KINDS, default=[*KINDS], help="(default: all)", metavar="KIND"
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many of each kind (default: 5)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    asked = parser.parse_args()
    # Also where it is ignored, as in the background of a shell: without cleanup, the broker would outlive us.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="magnetar-parity-"))
    words: Counter[str] = Counter()
    begun = time.monotonic()
    try:
        with LocalPulsar(folder / "pulsar") as pulsar:
            print(
                f"Pulsar 4.0.7 is up at port {pulsar.ports.broker} ({time.monotonic() - begun:.0f} s)",
                flush=True,
            )
            # The result is ignored: the first responses of a fresh JVM take longer than the silence that ends a step.
            record(pulsar.ports, "shared", 0, folder / "pulsar" / "warm.jsonl")
            for kind in asked.kind:
                for seed in range(asked.first, asked.first + asked.seeds):
                    words[_try(pulsar.ports, kind, seed, folder)] += 1
    except (PulsarError, JarsUnavailableError, JavaNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped: some scenarios are missing")
    shutil.rmtree(folder / "pulsar", ignore_errors=True)
    if not any(folder.iterdir()):
        folder.rmdir()
    print(f"parity: {words['equal']} of {words.total()} scenarios equal, {words['race']} races, "
          f"{words['DIFFERS']} stable differences, {words['FAILED']} not recorded; "
          f"{time.monotonic() - begun:.0f} s")  # fmt: skip
    whole = words.total() == len(asked.kind) * asked.seeds
    return 0 if whole and words["equal"] + words["race"] == words.total() else 1


def _try(ports: Ports, kind: str, seed: int, folder: Path) -> str:
    """Run a scenario and print one line, or more if it differs. Returns its `Outcome.word`."""
    begun = time.monotonic()
    try:
        word, verdict, path = attempt(ports, kind, seed, folder)
    except (WireError, OSError) as error:
        print(f"{kind} {seed}: FAILED: {error}", flush=True)
        return "FAILED"
    print(f"{kind} {seed}: {word} ({verdict.frames} frames, {verdict.snapshots} snapshots, "
          f"{time.monotonic() - begun:.0f} s)", flush=True)  # fmt: skip
    for step, text in verdict.differences[: _SHOWN if word == "DIFFERS" else 1]:
        print(f"  step {step}: {text}")
    if not verdict.equal:
        print(f"  {path}\n  again: make parity KIND={kind} SEED={seed} N=1", flush=True)
    return word


if __name__ == "__main__":
    sys.exit(main())
