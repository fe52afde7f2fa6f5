"""`python -m tests.parity`: runs random scenarios on a real Pulsar 4.0.7 and on Magnetar, and compares every frame.

Exits with 1 if a difference is stable (it occurs each time), or if a scenario is missing.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from itertools import groupby, islice
from pathlib import Path

from streaming.runtime.jars import JarsUnavailableError
from streaming.runtime.java import JavaNotFoundError
from tests.parity.plan import KINDS, drawn, plan
from tests.parity.pulsar import LocalPulsar, PulsarError, settings
from tests.parity.scenario import attempt, held_to, record, shape, shrink
from tests.parity.wire import WireError

_WARM = [*islice(plan("subscriptions", 0), 10)]
_SHOWN = 3
"""How many differences of a scenario to print. Later ones mostly follow from the first."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    parser.add_argument(
        "--kind", nargs="+", choices=KINDS, default=[*KINDS], help="(default: all)", metavar="KIND"
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many of each kind (default: 5)")
    parser.add_argument("--whole", action="store_true", help="do not shrink what differs")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    asked = parser.parse_args()
    # Also where it is ignored, as in the background of a shell: without cleanup, the broker would outlive us.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="magnetar-parity-"))
    run = _Run(folder, shrinks=not asked.whole)
    begun = time.monotonic()
    try:
        scenarios = [(kind, asked.first + number) for kind in asked.kind for number in range(asked.seeds)]
        for config, block in groupby(scenarios, lambda scenario: drawn(*scenario)):
            run.block(config, [*block])
    except (PulsarError, JarsUnavailableError, JavaNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped: some scenarios are missing")
    shutil.rmtree(folder / "pulsar", ignore_errors=True)
    if not any(folder.iterdir()):
        folder.rmdir()
    for kind, words in run.words.items():
        print(f"{kind}: {', '.join(f'{count} {word}' for word, count in words.items())}")
    words = sum(run.words.values(), Counter[str]())
    print(f"parity: {words['equal']} of {words.total()} scenarios equal, {words['race']} races, "
          f"{words['DIFFERS']} stable differences, {words['FAILED']} not recorded; "
          f"{time.monotonic() - begun:.0f} s")  # fmt: skip
    whole = words.total() == len(asked.kind) * asked.seeds
    return 0 if whole and words["equal"] + words["race"] == words.total() else 1


class _Run:
    """Scenarios in a row. `words`: how many of each kind had which `Outcome.word`."""

    def __init__(self, folder: Path, *, shrinks: bool) -> None:
        self._folder, self._shrinks = folder, shrinks
        self._shrunk: set[str] = set()
        self.words: dict[str, Counter[str]] = defaultdict(Counter)

    def block(self, config: dict[str, str], scenarios: list[tuple[str, int]]) -> None:
        """Run scenarios, each a kind and a seed, on one broker."""
        begun = time.monotonic()
        with LocalPulsar(self._folder / "pulsar", settings() | config) as pulsar:
            print(f"Pulsar 4.0.7 is up at port {pulsar.ports.broker} ({time.monotonic() - begun:.0f} s) "
                  f"{config or ''}", flush=True)  # fmt: skip
            # The result is ignored: the first responses of a fresh JVM take longer than the silence that ends a step.
            record(pulsar, "subscriptions", 0, self._folder / "pulsar" / "warm.jsonl", _WARM)
            for kind, seed in scenarios:
                self.words[kind][self._try(pulsar, kind, seed)] += 1

    def _try(self, pulsar: LocalPulsar, kind: str, seed: int) -> str:
        """Run a scenario and print one line, or more if it differs. Returns its `Outcome.word`."""
        begun = time.monotonic()
        try:
            word, recording = attempt(pulsar, kind, seed, self._folder)
            if word == "DIFFERS" and self._shrinks and shape(recording.verdict) not in self._shrunk:
                print(f"{kind} {seed}: differs, shrinking", flush=True)
                self._shrunk.add(shape(recording.verdict))
                recording = shrink(pulsar, kind, seed, recording)
        except (WireError, OSError) as error:
            print(f"{kind} {seed}: FAILED: {error}", flush=True)
            return "FAILED"
        verdict = recording.verdict
        print(f"{kind} {seed}: {word} ({verdict.frames} frames, {verdict.snapshots} snapshots, "
              f"{time.monotonic() - begun:.0f} s)", flush=True)  # fmt: skip
        if word == "DIFFERS":
            print(f"  operations: {' '.join(step.operation for step in recording.steps)}")
        for step, text in (held_to(verdict) or verdict.differences)[: _SHOWN if word == "DIFFERS" else 1]:
            print(f"  step {step}: {text}")
        if recording.path.exists():
            print(f"  {recording.path}\n  again: make parity KIND={kind} SEED={seed} N=1", flush=True)
        return word


if __name__ == "__main__":
    sys.exit(main())
