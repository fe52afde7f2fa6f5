"""A fold of a log in micro-batches, and what it costs."""

import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeVar

import msgspec

from schemas.commands import MessageMetadata, Publish, to_json
from schemas.entries import Entry, EntryNotFound
from schemas.outputs import Rows
from streaming.broker.position import Position
from streaming.fold.columns import PartitionFold
from streaming.fold.records import Records, StateRow
from tests.broker.kit import START
from tests.fuzz.cases import NEIGHBOUR, Log, Sent

T = TypeVar("T")

UNIT, UNIT_OUT = 64, 512
"""Bytes of a unit of a record, and of one of the tables of the rows."""


class Cost(NamedTuple):
    """What records cost: calls of functions, CPU time, the rise of the memory, and the units of what they are and put out.

    `looks`: for each topic, in how many minutes something happened there, and how many of its ledgers closed.
    """

    calls: int
    seconds: float
    memory: int = 0
    rows: int = 0
    output: int = 0
    units: int = 0
    looks: int = 0


class Memory:
    """The entries of earlier micro-batches."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], dict[int, Entry]] = {}

    def reader(self, partition: int) -> "Memory":
        return self

    def add(self, rows: Rows) -> None:
        for kind in ("SEND_RECEIPT", "COMPACTED_ENTRY"):
            for row in rows[kind].to_pylist() if kind in rows else ():
                if row["size"] is None:
                    continue
                metadata = (
                    MessageMetadata(
                        row["producer_name"],
                        row["sequence_id"],
                        row["publish_time"],
                        partition_key=row["partition_key"],
                    )
                    if row["metadata"] is None
                    else msgspec.msgpack.decode(row["metadata"], type=MessageMetadata)
                )
                ledger = self.entries.setdefault((row["topic"], row["ledger_id"]), {})
                entry = Entry(metadata, row["size"], row["broker_timestamp"], row["payload"])
                ledger[row["entry_id"]] = entry
        if (deleted := rows.get("LEDGER_DELETED")) is not None:
            for topic, ledger_id in zip(
                deleted["topic"].to_pylist(), deleted["ledger_id"].to_pylist(), strict=True
            ):
                self.entries.pop((topic, ledger_id), None)

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> list[Entry]:
        try:
            ledger = self.entries[topic, ledger_id]
            return [ledger[entry] for entry in range(first, last + 1)]
        except KeyError as missing:
            raise EntryNotFound(
                f"no entry {Position(ledger_id, first)}..{last} of {topic}: {missing}"
            ) from None

    def payloads(self, topic: str, ledger_id: int, first: int, last: int) -> list[bytes]:
        return [entry.payload or b"" for entry in self.read(topic, ledger_id, first, last)]


def records_of(log: Log, first: int) -> Records:
    """The log as the fold takes it; `first` is the first record's offset."""
    return Records(list(range(first, first + len(log))), *map(list, zip(*log, strict=True)))


class Run:
    """A fold of a log, micro-batch by micro-batch."""

    def __init__(self) -> None:
        self.store = Memory()
        self.state: StateRow | None = None
        self.offset = 0
        self.rows: list[Rows] = []

    def batch(self, log: Log, *, counted: bool = True) -> Cost:
        """Folds a micro-batch. Gives the cost of the fold, without that of the state and the store.

        To count calls takes time, too.
        """
        fold = PartitionFold(0, self.store, self.state)
        records = records_of(log, self.offset)
        self.offset += len(log)

        def run() -> list[Rows]:
            fold.apply(records)
            return list(fold.chunks())

        cost, chunks = measured(run, counted=counted)
        self.state = fold.state()
        for chunk in chunks:
            self.store.add(chunk)
        self.rows += chunks
        output = sum(len(table) + table.nbytes // UNIT_OUT for rows in chunks for table in rows.values())
        own = len(log) + sum(len(each.value) for each in log) // UNIT
        rows = sum(len(table) for chunk in chunks for table in chunk.values())
        minutes = {
            (topic, clock // 60_000)
            for chunk in chunks
            for table in chunk.values()
            for topic, clock in zip(*(table[name].to_pylist() for name in ("topic", "clock")), strict=True)
        }
        closed = sum(
            len(table) for chunk in chunks for kind, table in chunk.items() if kind == "LEDGER_CLOSED"
        )
        return cost._replace(rows=rows, output=output, units=own + output, looks=len(minutes) + closed)


def measured(call: Callable[[], T], *, counted: bool = True) -> tuple[Cost, T]:
    """The cost of a call, and its result. Calls of functions are counted, those of C as well."""
    calls = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    before = memory_peak(reset=True)
    begun = time.process_time()
    sys.setprofile(seen if counted else None)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    seconds = time.process_time() - begun
    return Cost(calls, seconds, max(0, memory_peak() - before)), result


def memory_peak(*, reset: bool = False) -> int:
    """The largest resident memory of this process since the last reset, in bytes. 0 where Linux does not say it."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) << 10


@cache
def plain() -> Cost:
    """The cost of a plain record that takes the scalar step, as hostile ones do: its event time keeps it out of publish runs."""
    number = 1000
    log = [
        Sent(START, NEIGHBOUR, to_json(Publish(producer="p", sequence_id=each, event_time=START)))
        for each in range(number)
    ]
    costs = [Run().batch(log) for _ in range(3)]
    return Cost(min(each.calls for each in costs) // number, min(each.seconds for each in costs) / number)
