"""Injects faults at given points of a micro-batch: sinks and a broker that check at each step whether a fault is due.

Everything here is pickled to Spark's workers. The history is in files, because a process that meets a fault dies:
``<folder>/spent/<fault>``, so that a fault happens once, and ``<folder>/journal``, one JSON object per line.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa

from schemas.entries import EntryReader
from schemas.outputs import Rows
from sinks.base import CommittingSink, Sink
from sinks.storage import Storage
from streaming.broker.broker import Broker
from streaming.kafka.local import LocalKafka
from tests.chaos.plan import SINKS, TO_KAFKA, Fault, Phase
from tests.e2e.processes import kill, workers
from tests.rows import by_kind, together


class Injected(RuntimeError):
    """The error that a fault raises."""


class Event(msgspec.Struct):
    """A line of the journal. `at` is `time.monotonic` (s), which is the same in all processes of the machine."""

    what: str
    """``start``: of the query; ``hit``: by a fault; ``done``: with the writes of a micro-batch."""
    at: float
    number: int
    """The number of the start, the fault or the micro-batch."""


class Journal:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal"

    def note(self, what: str, number: int) -> None:
        line = msgspec.json.encode(Event(what, time.monotonic(), number)) + b"\n"
        # A single appending write is atomic, whatever other processes write and whichever dies.
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def events(self) -> list[Event]:
        if not self._path.exists():
            return []
        return [msgspec.json.decode(line, type=Event) for line in self._path.read_bytes().splitlines()]


class Faults:
    """The faults of a seed, for one start of its query."""

    def __init__(
        self, faults: Sequence[Fault], folder: Path, *, start: int, driver: int, jvm: int, kafka: Path
    ) -> None:
        """`driver`, `jvm`: process ids; `kafka`: the folder of the broker."""
        self._faults, self._start = tuple(faults), start
        self._spent = folder / "spent"
        self._spent.mkdir(exist_ok=True)
        self._driver, self._jvm, self._kafka = driver, jvm, kafka
        self.journal = Journal(folder)

    def at(
        self, phase: Phase, *, batch: int | None = None, partition: int | None = None,
        offset: int | None = None, sink: str = "",
    ) -> None:  # fmt: skip
        """Called at every point where a fault can happen. Usually none does."""
        for fault in self.due(phase, batch=batch, partition=partition, offset=offset, sink=sink):
            self.strike(fault)

    def due(
        self, phase: Phase, *, batch: int | None = None, partition: int | None = None,
        offset: int | None = None, sink: str = "",
    ) -> Iterator[Fault]:  # fmt: skip
        """The faults that are due and not spent. Points outside the driver have a partition."""
        for fault in self._faults:
            if (
                fault.phase == phase
                and sink == fault.sink
                and (partition is None or partition == fault.partition)
                and (batch is None or batch >= fault.batch)
                and (offset is None or offset >= fault.offset)
                and not self._is_spent(fault)
            ):
                yield fault

    def strike(self, fault: Fault) -> None:
        if not self._claim(fault):
            return
        match fault.kind:
            case "error":
                raise Injected(f"injected: fault {fault.number}, {fault.phase} {fault.sink}")
            case "worker" if os.getpid() == self._driver:  # its workers are idle now and wait to be reused
                for pid in workers(self._driver):
                    kill(pid)
            case "worker":
                kill(os.getpid())
            case "driver":
                for pid in (self._jvm, self._driver, os.getpid()):
                    kill(pid)
            case "kafka":
                LocalKafka(self._kafka).kill()

    def _is_spent(self, fault: Fault) -> bool:
        try:
            struck = (self._spent / str(fault.number)).read_text()
        except FileNotFoundError:
            return False
        return not fault.fatal or struck != str(self._start)

    def _claim(self, fault: Fault) -> bool:
        """Whether to strike: only the first caller does, even among simultaneous ones."""
        try:
            with (self._spent / str(fault.number)).open("x") as file:
                file.write(str(self._start))
        except FileExistsError:
            return not self._is_spent(fault)
        self.journal.note("hit", fault.number)
        return True


class FaultySink:
    """Wraps a sink of the query, with faults around and in its writes."""

    def __init__(self, sink: Sink, name: str, faults: Faults) -> None:
        self._sink, self._name, self._faults = sink, name, faults

    def begin(self, batch_id: int) -> None:
        self._faults.at("begin", batch=batch_id, sink=self._name)
        self._sink.begin(batch_id)

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        if self._name == SINKS[0]:
            self._faults.at("before", batch=batch_id, partition=partition)
        else:
            self._faults.at("between", batch=batch_id, partition=partition, sink=self._name)
        due = self._faults.due("within", batch=batch_id, partition=partition, sink=self._name)
        fault = next(due, None)
        if fault is None:
            self._sink.write(batch_id, partition, rows)
        elif self._name in TO_KAFKA:
            # Send some rows, as if the write got that far. If the process survives the fault, it sends them again.
            table = together(rows)
            self._sink.write(batch_id, partition, by_kind(table.slice(0, int(fault.share * len(table)))))
            self._faults.strike(fault)
            self._sink.write(batch_id, partition, rows)
        else:
            with self._between_files(fault):
                self._sink.write(batch_id, partition, rows)
        if self._name == SINKS[-1]:
            self._faults.at("after", batch=batch_id, partition=partition)

    def commit(self, batch_id: int, rows: Mapping[tuple[int, str], int]) -> None:
        if isinstance(self._sink, CommittingSink):
            self._faults.at("commit", batch=batch_id)
            self._sink.commit(batch_id, rows)

    @contextmanager
    def _between_files(self, fault: Fault) -> Iterator[None]:
        publish = Storage.publish
        left = fault.files

        def struck(storage: Storage, path: str, write: Any) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                return publish(storage, path, write)
            if not fault.torn:
                self._faults.strike(fault)
                return publish(storage, path, write)

            def torn(stream: pa.NativeFile) -> None:
                write(stream)
                self._faults.strike(fault)

            return publish(storage, path, torn)

        with patch.object(Storage, "publish", struck):
            yield


class FaultyBroker(Broker):
    """The broker of the query, with faults in its fold."""

    faults: Faults
    each_record = True

    def apply(self, offset: int, *rest: Any) -> None:
        self.faults.at("fold", partition=self.partition, offset=offset)
        super().apply(offset, *rest)

    def encode(self) -> bytes:
        encoded = super().encode()
        self.faults.at("encode", partition=self.partition, offset=self.offset)
        return encoded


class FaultyBrokers:
    """Creates faulty brokers: a `streaming.fold.records.BrokerType`."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def __call__(self, partition: int, entries: EntryReader) -> FaultyBroker:
        return self._with_faults(FaultyBroker(partition, entries))

    def decode(self, state: bytes, entries: EntryReader) -> FaultyBroker:
        return self._with_faults(FaultyBroker.decode(state, entries))

    def _with_faults(self, broker: Any) -> FaultyBroker:
        broker.faults = self._faults
        return broker  # type: ignore[no-any-return]
