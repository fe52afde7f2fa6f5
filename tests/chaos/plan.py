"""What a seed determines: the traffic, the cuts into micro-batches, and the faults. Nothing else is random."""

import random
from typing import Literal, NamedTuple, get_args

import pyarrow as pa

from tests.e2e.traffic import HURRIED, Traffic

PARTITIONS = 3
"""Ingress partitions, in two tasks. So one task writes a partition before and one after the commit of its state."""

_START = 1_700_000_000_000

Kind = Literal["error", "worker", "driver", "kafka"]
"""An exception, or kill −9 of Python workers, of the driver and its JVM, or of Kafka."""

Phase = Literal["begin", "fold", "encode", "before", "within", "between", "after", "commit", "done"]
"""The phases of a micro-batch, in order."""

KINDS: tuple[Kind, ...] = get_args(Kind)
PHASES: dict[Phase, str] = {
    "begin": "planned, nothing written (driver)",
    "fold": "in the fold, before a record",
    "encode": "folded, state not handed over",
    "before": "state handed over, nothing written",
    "within": "inside a sink's write",
    "between": "between two sinks",
    "after": "all sinks written, task not done",
    "commit": "all tasks done, the table's commit not made (driver)",
    "done": "the table committed, the micro-batch not (driver)",
}

SINKS = ("store", "quarantine", "tables", "quality", "letters", "responses")
"""In the order of `streaming.jobs.run`."""

_FILES = {"store": 2, "quarantine": 1, "tables": 5}
"""The sinks that publish files. A fault happens after fewer files than this."""

TO_KAFKA = ("letters", "responses")

_WEIGHTS: dict[Kind, int] = {"error": 10, "worker": 7, "driver": 1, "kafka": 1}
"""The weights of a seed's later faults."""


class Fault(NamedTuple):
    """A fault that happens once: in the first micro-batch from number `batch` on or, in the fold, at the first record from
    `offset` on."""

    number: int
    kind: Kind
    phase: Phase
    batch: int
    partition: int
    offset: int
    sink: str
    files: int
    """Inside a write: how many files are published before the fault."""
    torn: bool
    """Inside a write: the next file is written, but not yet under its name."""
    share: float
    """Inside a write to Kafka: the fraction of the rows that is sent before the fault."""
    fatal: bool
    """Whether every attempt at the task meets it, so that the query fails. If not, the second attempt succeeds."""


class Plan(NamedTuple):
    seed: int
    records: int
    step: int
    ledger: int
    cuts: tuple[int, ...]
    """The maximum records of a micro-batch, by start of the query (the last one is for all later starts)."""
    faults: tuple[Fault, ...]
    live: bool
    """Whether the trigger's clock counts, too. The query then also runs, and is started again, while no records come."""

    def log(self, start: int = _START) -> pa.Table:
        """The traffic, columns `LOGICAL`. That of a live query is of the time (ms) at which it began, within a second: acks name the
        entries of ledgers, which roll over with time, too."""
        settings = {"managedLedgerMaxEntriesPerLedger": self.ledger} | (HURRIED if self.live else {})
        step, compacts = 1 if self.live else self.step, self.seed % 2 == 1
        return Traffic(self.seed, start, step=step, settings=settings, compacts=compacts).write(self.records)

    def cut(self, start: int) -> int:
        return self.cuts[min(start, len(self.cuts)) - 1]


def plan(seed: int) -> Plan:
    """Any 54 consecutive seeds cover each kind in each phase, errors and workers twice, since the others take seconds."""
    dice = random.Random(seed)
    records = dice.randint(250, 450)
    cuts = tuple(dice.randint(40, 150) for _ in range(8))
    firsts: list[tuple[Kind, Phase]] = [
        (kind, phase) for phase in PHASES for kind in (*KINDS, "error", "worker")
    ]
    chosen = [firsts[seed % len(firsts)]]
    chosen += (
        (dice.choices(KINDS, [_WEIGHTS[kind] for kind in KINDS])[0], dice.choice([*PHASES]))
        for _ in range(dice.randint(0, 3))
    )
    faults = [_fault(dice, number, *each, records) for number, each in enumerate(chosen)]
    # Kafka dies during writes, and a process that may still have to send dies as soon as the writes are reported as done.
    for fault in [
        each for each in faults if each.kind == "kafka" and each.phase in ("within", "between", "after")
    ]:
        faults.append(_fault(dice, len(faults), "worker", "done", records)._replace(batch=fault.batch))
    return Plan(
        seed, records, dice.randint(300, 3000), dice.randint(2, 8), cuts, tuple(faults), seed % 4 == 3
    )


def _fault(dice: random.Random, number: int, kind: Kind, phase: Phase, records: int) -> Fault:
    """`records`: the length of the log. An ingress partition has at least a quarter of them."""
    where = dice.uniform(0, 0.8)
    sinks = {"within": [*_FILES, *TO_KAFKA], "between": SINKS[1:], "begin": SINKS}
    sink = dice.choice(sinks.get(phase, [""]))
    return Fault(
        number,
        kind,
        phase,
        batch=int(where * records / 100),
        partition=dice.randrange(PARTITIONS),
        offset=int(where * records / 4),
        sink=sink,
        files=dice.randrange(_FILES.get(sink, 1)),
        torn=dice.random() < 0.5,
        share=dice.random(),
        fatal=kind in ("error", "worker")
        and phase not in ("begin", "commit", "done")
        and dice.random() < 0.5,
    )
