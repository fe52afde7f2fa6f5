"""Runs a scenario on the real broker, records it, compares it with Magnetar, and shrinks what differs."""

import random
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from streaming.answers.check.reduction import reduced
from streaming.traces.conform import TraceComparison, compare_trace
from streaming.traces.trace import Trace, read_trace
from tests.parity import bursts
from tests.parity.administrator import Administrator
from tests.parity.compactions import Compactions
from tests.parity.consumers import Consumers, Message
from tests.parity.plan import KINDS, Step, plan, protocol, subscriptions
from tests.parity.producers import Producers
from tests.parity.publisher import Publisher
from tests.parity.pulsar import LocalPulsar
from tests.parity.recorder import Recorder
from tests.parity.transactions import Transactions

_PATIENCE = 3
"""The factor for the usual silences when a difference is confirmed: fewer races matter more than time."""
_MOST_RECORDINGS = 60
"""How often a scenario is recorded to shrink it."""

_LATE, _HANGS = " (a delivery was due)", " (the broker hangs)"
_RACES = re.compile(
    rf"\.(totalMsgExpired|messagesConsumedCounter): |{re.escape(_LATE)}$|{re.escape(_HANGS)}$"
)
"""Differences of which a broker is not sure. Two passes of one expiry count the same messages once or twice. A reset counts those
of ledgers that a trim is deleting at the same time. For deliveries that are due, and a broker that hangs, see `compared`."""

_COMPACTED = 0.7
"""The share of consumers that ask for compacted data, where topics are compacted."""

_EARLIER = re.compile(r"msgOutCounter: recorded (\d+), ours (\d+)|ours MESSAGE .*, recorded has none$")


class Recording(NamedTuple):
    """`steps`: those that found something to do. `verdict` is that of the trace at `path`."""

    steps: list[Step]
    verdict: TraceComparison
    path: Path


class Outcome(NamedTuple):
    """`word` is `equal`, `race` or `DIFFERS`."""

    word: str
    recording: Recording


def attempt(pulsar: LocalPulsar, kind: str, seed: int, folder: Path) -> Outcome:
    """Record a scenario and, if it differs, twice more, slowly. If these differ in the same way, it is not a race but a
    difference of Magnetar. The traces stay in `folder`.

    Raises:
        FrameError: the broker sent something that the codec does not support.
        OSError: the broker is down.
    """
    path = folder / f"{kind}-{seed}.jsonl"
    once = record(pulsar, kind, seed, path)
    if not held_to(once.verdict):
        return Outcome(word(once.verdict), once)
    again = [record(pulsar, kind, seed, one, once.steps, patience=_PATIENCE) for one in _again(path)]
    found = word(once.verdict, [each.verdict for each in again])
    return Outcome(found, again[0] if found == "DIFFERS" else once)


def judge(path: Path) -> tuple[str, TraceComparison]:
    """`Outcome.word` of the traces that `attempt` left at `path`, by today's Magnetar, and the verdict on the first of them.

    Without further recordings, what differs counts as a stable difference. Raises `TraceError`.
    """
    once = compared(read_trace(path))
    again = [compared(read_trace(one)) for one in _again(path) if one.exists()] if held_to(once) else []
    return word(once, again or [once]), once


def word(once: TraceComparison, again: Sequence[TraceComparison] = ()) -> str:
    """`Outcome.word` of a scenario by the verdicts on its recording and, if that differs, on further ones."""
    if not held_to(once):
        return "equal" if once.equal else "race"
    found = {first(each) for each in again}
    return "DIFFERS" if len(found) == 1 and None not in found else "race"


def _again(path: Path) -> list[Path]:
    return [path.with_suffix(f".again-{number}.jsonl") for number in (1, 2)]


def shrink(pulsar: LocalPulsar, kind: str, seed: int, recording: Recording) -> Recording:
    """The fewest operations that still differ in the same way, by delta debugging: each candidate is recorded anew.

    Returns `recording` itself if its difference cannot be repeated. Raises as `attempt` does.
    """
    wanted, smallest, number = shape(recording.verdict), recording, 0

    def shows(steps: list[Step]) -> list[Step] | None:
        nonlocal smallest, number
        path, number = recording.path.with_name(f"{kind}-{seed}.shrunk-{number}.jsonl"), number + 1
        # With the usual silences: a race only costs a step too many.
        found = record(pulsar, kind, seed, path, steps)
        if shape(found.verdict) != wanted:
            path.unlink()
            return None
        if smallest is not recording:
            smallest.path.unlink()
        smallest = found
        return found.steps

    last = re.match(r"\d+", held_to(recording.verdict)[0][0])
    steps = shows(recording.steps if last is None else recording.steps[: int(last[0])])  # not what follows
    if steps is not None:
        reduced(steps, shows, most=_MOST_RECORDINGS - 1)
    return smallest


def record(
    pulsar: LocalPulsar,
    kind: str,
    seed: int,
    path: Path,
    steps: Sequence[Step] | None = None,
    *,
    patience: float = 1,
) -> Recording:
    """Run a scenario on the real broker, write its trace to `path`, and compare. `steps`: instead of the seed's.

    Raises as `attempt` does.
    """
    domain = "non-persistent" if kind == "non_persistent" else "persistent"
    # A snapshot of transactions outlives the namespace, and its topic would find it again.
    name = path.stem if "begin" in KINDS[kind].operations else f"{kind}-{seed}"
    recorder = Recorder(pulsar.ports, name, pulsar.config, domain=domain,
                        partitions=KINDS[kind].partitions, patience=patience, version=pulsar.version,
                        protocol=protocol(kind, seed))  # fmt: skip
    done: list[Step] = []
    try:
        scenario = Scenario(recorder, pulsar, kind, seed)
        for step in plan(kind, seed) if steps is None else steps:
            recorder.step(f"{len(done) + 1} {step.operation}")
            if not scenario.run(step):  # there was nothing to do, so nothing is recorded
                recorder.records.pop()
                continue
            recorder.snapshot()
            done.append(step)
            if steps is None and len(done) == KINDS[kind].steps:
                break
        recorder.step("the end")
        scenario.finish()
        recorder.snapshot()
        recorder.save(path, scenario.description)
    finally:
        if not recorder.close():
            pulsar.renew()
            warm(pulsar)
    return Recording(done, compared(read_trace(path)), path)


def warm(pulsar: LocalPulsar) -> None:
    """Play a scenario to a fresh broker, whose first responses take longer than the silence that ends a step."""
    steps = [*islice(plan("subscriptions", 0), 10)]
    record(pulsar, "subscriptions", 0, pulsar.directory / "warm.jsonl", steps)


class Scenario:
    """The clients and the administrator of a recording."""

    def __init__(self, recorder: Recorder, pulsar: LocalPulsar, kind: str, seed: int) -> None:
        dice = random.Random(f"{kind} {seed} settings")
        self._recorder, self._pulsar = recorder, pulsar
        types = subscriptions(kind, seed)
        self._transactions: Transactions | None = None
        if "produce" in KINDS[kind].operations:
            producers = Producers(recorder, dice, deduplicates=kind == "deduplication")
            self._parts: list[object] = [producers]
            self._reopen = producers.reopen
            self.description = producers.description
            names, delivered = ["s"], list[Message]()
        elif "burst" in KINDS[kind].operations:
            clients = bursts.Bursts(recorder)
            self._parts, self._reopen, self.description = [clients], clients.reopen, "three connections"
            names, delivered = ["s"], []
        else:
            publisher = Publisher(recorder)
            priorities = dice.choice([[0], [0, 0, 1]])
            compacts = "compact" in KINDS[kind].operations
            consumers = Consumers(recorder, publisher, types, priorities, _COMPACTED if compacts else 0)
            names, delivered = consumers.names, consumers.delivered
            self._parts = [publisher, consumers]
            self._reopen = publisher.reopen
            if "begin" in KINDS[kind].operations:
                self._transactions = Transactions(recorder, publisher, consumers)
                self._parts.append(self._transactions)
            if compacts:
                self._parts.append(Compactions(recorder, publisher, consumers))
            self.description = f"{', '.join(types.values())}, priorities {priorities}"
        self._parts.append(Administrator(recorder, names, delivered, self._restart, self._reopen))

    def run(self, step: Step) -> bool:
        """Run an operation. Returns whether there was anything to do."""
        part = next(part for part in self._parts if hasattr(part, step.operation))
        return bool(getattr(part, step.operation)(random.Random(step.number)))

    def finish(self) -> None:
        """End what would go on in the next scenario."""
        if self._transactions is not None:
            self._transactions.finish()

    def _restart(self) -> None:
        self._recorder.restart(self._pulsar)


def compared(trace: Trace) -> TraceComparison:
    """The verdict on a trace, see `bursts.compared` if it has bursts, without what may follow from a delivery that came in the next
    step.

    4.0.7 delivers delayed messages from a timer with ticks (delayedDeliveryTickTimeMillis): one tick after the last run at
    the earliest, and then at the next tick of a wheel, whose phase nobody knows. So a step that ends within two ticks after
    a message was due may have the delivery or not. Slow recordings may agree on it, because a scenario takes about the same
    time again.

    Nor a read position between two ledgers, see `_is_between`.

    Nor what follows after a broker hangs: on a non-persistent topic, the search for the next consumer of Shared may never end
    (docs/rules/producers.md §15).
    """
    if any(each.get("step", "").endswith(" burst") for each in trace.records):
        return bursts.compared(trace)
    verdict = compare_trace(trace)
    ledgers = {
        each["ledgerId"] for record in trace.records for each in record.get("internal", {}).get("ledgers", ())
    }
    verdict = verdict._replace(
        differences=[each for each in verdict.differences if not _is_between(each[1], ledgers)]
    )
    if (hung := hangs(trace)) is not None:
        steps = [each["step"] for each in trace.records if "step" in each]
        after = {*steps[steps.index(hung) :]}
        for index, (step, text) in enumerate(verdict.differences):
            if step in after:
                return verdict._replace(differences=[*verdict.differences[:index], (step, text + _HANGS)])
    due = [each["metadata"]["deliver_at_time"] for each in trace.records
           if each.get("cmd") == "SEND" and "deliver_at_time" in each["metadata"]]  # fmt: skip
    ends, name = dict[str, float](), "start"
    for each in trace.records:
        name = each.get("step", name)
        ends[name] = each["t"]
    within = 2 * int(trace.header["broker_config"]["delayedDeliveryTickTimeMillis"])
    for index, (step, text) in enumerate(verdict.differences):
        found = _EARLIER.search(text)
        earlier = found is not None and (found[1] is None or int(found[1]) < int(found[2]))
        if earlier and any(0 <= ends[step] - at < within for at in due):
            return verdict._replace(differences=[*verdict.differences[:index], (step, text + _LATE)])
    return verdict


def _is_between(text: str, ledgers: set[int]) -> bool:
    """Whether a read position differs because the recorded one is in a ledger that the topic never had: a read that waits behind a deleted
    ledger goes to the next id, which another topic has."""
    found = re.search(r"\.readPosition: recorded '(\d+):0', ours '\d+:0'$", text)
    return found is not None and int(found[1]) not in ledgers


def hangs(trace: Trace) -> str | None:
    """The step after which a broker answered none of several messages to a non-persistent topic, without closing the connection."""
    step, first, unanswered = "start", None, 0
    for each in trace.records:
        step = each.get("step", step)
        command = each.get("cmd")
        if command == "SEND":
            first, unanswered = first or step, unanswered + 1
        elif command in ("SEND_RECEIPT", "SEND_ERROR") or (command == "_TCP_CLOSE" and each["dir"] == "out"):
            first, unanswered = None, 0
    has_store = any("internal" in each for each in trace.records)
    return first if unanswered > 1 and not has_store else None


def held_to(verdict: TraceComparison) -> list[tuple[str, str]]:
    """The differences besides those of which the broker itself is not sure."""
    return [(step, text) for step, text in verdict.differences if not _RACES.search(text)]


def first(verdict: TraceComparison) -> tuple[str, str] | None:
    """The first difference that counts, without numbers (ledger ids change with each recording), or None."""
    if not (differences := held_to(verdict)):
        return None
    step, text = differences[0]
    return step, re.sub(r"\d+", "#", text)


def shape(verdict: TraceComparison) -> str:
    """What kind of difference the first one is: its text up to the values. Empty if there is none."""
    found = first(verdict)
    return "" if found is None else re.split(r"recorded|[\[{(]", found[1])[0]
