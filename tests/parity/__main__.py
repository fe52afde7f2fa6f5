"""`python -m tests.parity`: runs random scenarios on a real Pulsar and on Magnetar, and compares every frame.

Exits with 1 if a difference is stable (it occurs each time), or if a scenario is missing.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from streaming.log.table import LogError
from streaming.protocol.codec import FrameError
from streaming.runtime.jars import JarsUnavailableError
from streaming.runtime.java import JavaNotFoundError
from streaming.traces.conform import TraceComparison
from streaming.traces.trace import TraceError
from tests.parity.again import Again, by_settings
from tests.parity.log import run_log, settings_of
from tests.parity.loopback import enter_namespace
from tests.parity.plan import KINDS, drawn
from tests.parity.pulsar import (
    VERSION,
    LocalPulsar,
    PulsarError,
    has_zookeeper,
    pulsar_jars,
    settings,
)
from tests.parity.scenario import Outcome, attempt, held_to, judge, shape, shrink, warm, word

_SHOWN = 3
"""How many differences of a scenario to print. Later ones mostly follow from the first."""

_ATTEMPTS = 3
"""How often to try a scenario whose broker is renewed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    parser.add_argument(
        "--kind", nargs="+", choices=KINDS, default=[*KINDS], help="(default: all)", metavar="KIND"
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many of each kind (default: 5)")
    parser.add_argument("--whole", action="store_true", help="do not shrink what differs")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        help="how many scenarios at a time on a broker, where they can (default: 1)",
    )
    parser.add_argument(
        "--keep", type=Path, help="keep every trace in this folder, not only those that differ"
    )
    parser.add_argument(
        "--judge", type=Path, metavar="FOLDER", help="compare the traces of `--keep FOLDER` again"
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="run this command log instead, such as a counterexample of `magnetar check`; the trace stays beside it",
    )
    parser.add_argument(
        "--again",
        type=Path,
        nargs="+",
        metavar="TRACE",
        help="do again what the clients of these recordings did, on another version; the traces are kept with `--keep`",
    )
    parser.add_argument(
        "--pulsar",
        default=VERSION,
        metavar="VERSION",
        help=f"the broker's version, such as 2.10.5 (default: {VERSION})",
    )
    asked = parser.parse_args()
    if asked.judge is not None:
        return _judge(asked.judge)
    # Also where it is ignored, as in the background of a shell: without cleanup, the broker would outlive us.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    scratch = Path(tempfile.mkdtemp(prefix="magnetar-parity-"))
    run = Run(scratch, asked.pulsar, keep=asked.keep, shrinks=not asked.whole, together=asked.together)
    begun = time.monotonic()
    try:
        pulsar_jars(asked.pulsar)
        if has_zookeeper(asked.pulsar):
            enter_namespace()
        if asked.log is not None:
            return run.log(asked.log)
        if asked.again is not None:
            return run.again(asked.again)
        scenarios = [(kind, asked.first + number) for kind in asked.kind for number in range(asked.seeds)]
        for config, block in groupby(scenarios, lambda scenario: drawn(*scenario)):
            run.block(config, [*block])
    except (
        PulsarError,
        JarsUnavailableError,
        JavaNotFoundError,
        LogError,
        TraceError,
        FileNotFoundError,
    ) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped: some scenarios are missing")
    finally:
        shutil.rmtree(scratch / "pulsar", ignore_errors=True)
        if not any(scratch.iterdir()):
            scratch.rmdir()
    return _summary(run.words, len(asked.kind) * asked.seeds, begun)


def _judge(folder: Path) -> int:
    words: dict[str, Counter[str]] = defaultdict(Counter)
    begun = time.monotonic()
    paths = sorted(path for path in folder.glob("*.jsonl") if "." not in path.stem)
    for path in paths:
        found, verdict = judge(path)
        words[path.stem.rpartition("-")[0]][found] += 1
        if found != "equal":
            print(_said(path.stem, found, verdict), flush=True)
    return _summary(words, len(paths), begun)


def _summary(words: dict[str, Counter[str]], scenarios: int, begun: float) -> int:
    """Print how many `scenarios` had which word, by kind. Returns the program's result."""
    for kind, counts in words.items():
        print(f"{kind}: {', '.join(f'{count} {word}' for word, count in counts.items())}")
    total = sum(words.values(), Counter[str]())
    print(f"parity: {total['equal']} of {total.total()} scenarios equal, {total['race']} races, "
          f"{total['DIFFERS']} stable differences, {total['FAILED']} not recorded; "
          f"{time.monotonic() - begun:.0f} s")  # fmt: skip
    return 0 if total["equal"] + total["race"] == scenarios else 1


def _said(name: str, found: str, verdict: TraceComparison) -> str:
    """The differences to print of a scenario: the first, or some if they are stable."""
    lines = [f"{name}: {found} ({verdict.frames} frames, {verdict.snapshots} snapshots)"]
    shown = (held_to(verdict) or verdict.differences)[: _SHOWN if found == "DIFFERS" else 1]
    return "\n".join([*lines, *(f"  step {step}: {text}" for step, text in shown)])


class Run:
    """Scenarios in a row. `words`: how many of each kind had which `Outcome.word`."""

    def __init__(
        self, scratch: Path, version: str, *, keep: Path | None, shrinks: bool, together: int
    ) -> None:
        self._version = version
        self._scratch, self._folder, self._keeps = scratch, keep or scratch, keep is not None
        self._shrinks, self._together = shrinks, together
        self._shrunk: set[str] = set()
        self.words: dict[str, Counter[str]] = defaultdict(Counter)

    def log(self, log: Path) -> int:
        """Run a log. Returns the program's result."""
        config = settings() | settings_of(log)
        with self._pulsar(config) as pulsar:
            trace = log.with_suffix(".trace.jsonl")
            verdict = run_log(pulsar, log, trace)
        print(f"{_said(log.name, word(verdict, [verdict]), verdict)}\n  {trace}")
        return 0 if verdict.equal else 1

    def again(self, recordings: list[Path]) -> int:
        """Play recordings. Returns the program's result."""
        differ = 0
        for config, traces in by_settings(recordings):
            with self._pulsar(config) as pulsar:
                player = Again(pulsar)
                for trace in traces:
                    path = self._folder / f"{trace.name}.jsonl"
                    try:
                        verdict = player.play(trace, path)
                    except (FrameError, OSError) as error:
                        print(f"{trace.name}: FAILED: {error}", flush=True)
                        differ += 1
                        continue
                    print(_said(trace.name, word(verdict, [verdict]), verdict), flush=True)
                    differ += not verdict.equal
                    if verdict.equal and not self._keeps:
                        path.unlink()
        return 1 if differ else 0

    def block(self, config: dict[str, str], scenarios: list[tuple[str, int]]) -> None:
        """Run scenarios, each a kind and a seed, on one broker."""
        with self._pulsar(settings() | config) as pulsar:
            print(f"Pulsar {self._version} is up at port {pulsar.ports.broker} {config or ''}", flush=True)
            for alone, some in groupby(scenarios, lambda scenario: KINDS[scenario[0]].alone):
                pool = ThreadPoolExecutor(1 if alone else self._together)
                try:
                    for kind, word in pool.map(lambda scenario: self._try(pulsar, *scenario), some):
                        self.words[kind][word] += 1
                finally:
                    pool.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _pulsar(self, config: dict[str, str]) -> Iterator[LocalPulsar]:
        """A warm broker."""
        with LocalPulsar(self._scratch / "pulsar", config, self._version) as pulsar:
            warm(pulsar)
            yield pulsar

    def _try(self, pulsar: LocalPulsar, kind: str, seed: int) -> tuple[str, str]:
        """Run a scenario and print one line, or more if it differs. Returns its kind and its `Outcome.word`."""
        begun = time.monotonic()
        try:
            found, recording = self._attempt(pulsar, kind, seed)
            if found == "DIFFERS" and self._shrinks and shape(recording.verdict) not in self._shrunk:
                print(f"{kind} {seed}: differs, shrinking", flush=True)
                self._shrunk.add(shape(recording.verdict))
                recording = shrink(pulsar, kind, seed, recording)
        except (FrameError, OSError) as error:
            print(f"{kind} {seed}: FAILED: {error}", flush=True)
            return kind, "FAILED"
        verdict = recording.verdict
        lines = [f"{_said(f'{kind} {seed}', found, verdict)} {time.monotonic() - begun:.0f} s"]
        if found == "DIFFERS":
            lines.append(f"  operations: {' '.join(step.operation for step in recording.steps)}")
        if not self._keeps and not held_to(verdict):
            recording.path.unlink()
        if recording.path.exists():
            version = "" if self._version == VERSION else f"PULSAR={self._version} "
            lines.append(f"  {recording.path}\n  again: make parity {version}KIND={kind} SEED={seed} N=1")
        print("\n".join(lines), flush=True)
        return kind, found

    def _attempt(self, pulsar: LocalPulsar, kind: str, seed: int) -> Outcome:
        """`attempt`, again if the broker was renewed meanwhile, as it is when another scenario made it hang."""
        for _ in range(_ATTEMPTS - 1):
            renewals = pulsar.renewals
            try:
                return attempt(pulsar, kind, seed, self._folder)
            except (FrameError, OSError):
                if pulsar.renewals == renewals:
                    raise
        return attempt(pulsar, kind, seed, self._folder)


if __name__ == "__main__":
    sys.exit(main())
