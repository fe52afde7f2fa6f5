"""Runs a scenario on the real broker, records it, and compares it with Magnetar."""

import random
import re
from pathlib import Path
from typing import NamedTuple

from streaming.traces.conform import Verdict, compare_trace
from streaming.traces.trace import read_trace
from tests.parity.consumers import Consumers
from tests.parity.plan import KINDS, STEPS, plan
from tests.parity.producers import Producers
from tests.parity.pulsar import Ports
from tests.parity.recorder import Recorder


class Outcome(NamedTuple):
    """`word` is `equal`, `race` or `DIFFERS`. `verdict` is that of the trace at `path`."""

    word: str
    verdict: Verdict
    path: Path


_PATIENCE = 3
"""The factor for the usual silences when a difference is confirmed: fewer races matter more than time."""


def attempt(ports: Ports, kind: str, seed: int, folder: Path) -> Outcome:
    """Record a scenario and, if it differs, twice more, slowly. If these differ in the same way, it is not a race but a
    difference of Magnetar. Traces that differ stay in `folder`.

    Raises:
        WireError: the broker sent something that `wire` doesn't support.
        OSError: the broker is down.
    """
    path = folder / f"{kind}-{seed}.jsonl"
    verdict = record(ports, kind, seed, path)
    if verdict.equal:
        path.unlink()
        return Outcome("equal", verdict, path)
    paths = [folder / f"{kind}-{seed}.again-{number}.jsonl" for number in (1, 2)]
    one, other = (record(ports, kind, seed, path, patience=_PATIENCE) for path in paths)
    if first(one) is not None and first(one) == first(other):
        return Outcome("DIFFERS", one, paths[0])
    return Outcome("race", verdict, path)


def record(
    ports: Ports, kind: str, seed: int, path: Path, *, steps: int = STEPS, patience: float = 1
) -> Verdict:
    """Run a scenario on the real broker, write its trace to `path`, and compare. Raises as `attempt` does."""
    domain = "non-persistent" if kind == "non_persistent" else "persistent"
    recorder = Recorder(ports, f"{kind}-{seed}", domain=domain, patience=patience)
    try:
        scenario = (Producers if "produce" in KINDS[kind] else Consumers)(recorder, kind, seed)
        drawn, number = plan(kind, seed), 1
        while number <= steps:
            step = next(drawn)
            recorder.step(f"{number} {step.operation}")
            if getattr(scenario, step.operation)(random.Random(step.number)):
                number += 1
            else:  # there was nothing to do, so nothing is recorded
                recorder.records.pop()
        recorder.step("the end")
        recorder.snapshot()
        recorder.save(path, scenario.description)
    finally:
        recorder.close()
    return compare_trace(read_trace(path))


def first(verdict: Verdict) -> tuple[str, str] | None:
    """The first difference without numbers (ledger ids change with each recording), or None."""
    if verdict.equal:
        return None
    step, text = verdict.differences[0]
    return step, re.sub(r"\d+", "#", text)
