"""The fold of a micro-batch: records of an ingress partition in, output rows as Arrow tables and the next state out.

It needs neither Spark nor pandas. Spark's operator drives one `PartitionFold` per partition and micro-batch; `Fold`
does the same for a whole micro-batch in this process.

Runs of plain publishes, or of SENDs, are folded by column (`streaming.fold.publishes`): their receipts never become objects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import Refused
from schemas.effects import KINDS, Quarantined, Row
from schemas.entries import Entry, EntryReader, PayloadReader
from schemas.metrics import PartitionMetrics
from schemas.outputs import Rows
from sinks.rows import SpooledRows, to_tables
from streaming.broker.broker import Broker
from streaming.broker.entries import no_payloads
from streaming.broker.persistent.delivery_run import Deliveries
from streaming.broker.persistent.publish.publish_run import Receipts
from streaming.fold.publishes import MESSAGES, RECEIPTS, PublishColumns
from streaming.fold.reading import read
from streaming.fold.recent_payloads import RecentPayloads
from streaming.fold.record_fold import RecordFold, without_gc
from streaming.fold.records import BrokerType, Records, SetAside, StateRow, Store
from streaming.quality.gate import Judge, judge

CHUNK_RECORDS = 1 << 16
CHUNK_BYTES = 1 << 25
"""After so many records, or bytes of their values, the effects so far are handed on, even if they are few (see
`streaming.broker.context.ROWS`): they take more room as Python objects than as Arrow columns."""

_QUARANTINED = KINDS[Quarantined]


class _Counting:
    """A store that counts, by topic, the entries that are read from it."""

    def __init__(self, store: Store, reads: Counter[str]) -> None:
        self._store, self._reads = store, reads

    def reader(self, partition: int) -> EntryReader:
        self._reader = self._store.reader(partition)
        return self

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[Entry]:
        self._reads[topic] += last + 1 - first
        return self._reader.read(topic, ledger_id, first, last)

    def payloads(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[bytes]:
        read = self._reader.payloads if isinstance(self._reader, PayloadReader) else no_payloads
        return read(topic, ledger_id, first, last)


class PartitionFold:
    """The fold of one ingress partition during one micro-batch: `apply` and `tick`, then `rows` or `chunks`, and `state`. `aside`: by offset, why
    records were quarantined unread.

    Each raises `FoldError`, and what the store raises when an entry can't be read. Both name the partition and the record.
    """

    def __init__(
        self,
        partition: int,
        store: Store,
        before: StateRow | None,
        *,
        broker: BrokerType = Broker,
        judge: Judge = judge,
        set_aside: SetAside | None = None,
        latest: int | None = None,
        measured: bool = False,
    ) -> None:
        """As `RecordFold`. `measured`: `metrics` will be asked."""
        self.aside: dict[int, Refused] = {}
        self._reads: Counter[str] = Counter()
        if measured:
            store = _Counting(store, self._reads)
        self._records = RecordFold(
            partition, store, before, broker=broker, judge=judge, set_aside=set_aside, latest=latest
        )
        self._spool = SpooledRows()
        self._publishes: PublishColumns | None = None
        self._receipts = Receipts([], [], [])
        self._deliveries = Deliveries()
        # Of the piece at hand, those that are not of runs.
        self._held: dict[str, list[pa.Table]] = {RECEIPTS: [], MESSAGES: []}
        self._topics_before = frozenset(self._records.broker.topic_names() if measured else ())
        self._quarantined: Counter[str] = Counter()
        self._records.when_full(self._convert)
        self._recent = RecentPayloads(self._spool)
        self._looked = 0, 0
        """How many receipts of runs, and how many held tables of receipts, `_recent` knows of the piece at hand."""
        self._records.find_recent_payloads(self._recent_payloads)

    @property
    def clock(self) -> int:
        """The partition's clock, ms since the epoch."""
        return self._records.broker.clock

    @property
    def last(self) -> int | None:
        """The offset of the last record; None: there was none."""
        return self._records.last

    def apply(self, records: Records) -> None:
        """Folds `records`. Also raises `OffsetError`."""
        with without_gc():
            for part in self._records.parts(records):
                aside = self._records.aside(part)
                self.aside |= aside
                for piece in _pieces(part):
                    self._fold(piece, aside)

    def tick(self, timestamp: int) -> None:
        """Advances the clock to `timestamp` (ms), as a TICK record would."""
        self._records.tick(timestamp, self._convert)

    def rows(self) -> Rows:
        """The output rows since the last call, by kind."""
        return self._spool.take_whole()

    def chunks(self) -> Iterator[Rows]:
        """The same, some thousand at a time."""
        return self._spool.take()

    def state(self) -> StateRow:
        """The state to continue from in the next micro-batch."""
        return self._records.state()

    def metrics(self, state: StateRow) -> PartitionMetrics:
        """The figures of the topics that were touched, to show, after `state` was made of all that was folded."""
        try:
            found = self._records.broker.metrics(everything=False)
            found.deleted = sorted(self._topics_before.difference(self._records.broker.topic_names()))
        except Exception as error:
            self._records.failed("measuring the topics", error)
        found.state_bytes = len(state.broker)
        found.quarantined = dict(self._quarantined)
        found.reads = dict(self._reads)
        return found

    def _fold(self, records: Records, aside: Mapping[int, Refused]) -> None:
        _, commands, self._publishes = read(self._records, records, aside, delivers=True)
        self._receipts, self._deliveries = Receipts([], [], []), Deliveries()
        self._records.fold(records, commands, aside, self._publishes, self._receipts, self._deliveries)
        self._convert()
        self._convert_runs()
        self._publishes = None

    def _convert(self) -> None:
        """Turn the effects so far into columns, which take less memory. They wait until the record at hand is done."""
        tables: dict[str, pa.Table] = {}
        if rows := self._records.broker.take():
            try:
                tables |= to_tables(self._records.partition, rows)
            except Exception as error:
                self._not_converted(rows, error)
        if _QUARANTINED in tables:
            self._quarantined.update(tables[_QUARANTINED]["rule"].to_pylist())
        if (publishes := self._publishes) is not None:
            for kind in (RECEIPTS, MESSAGES) if publishes.stretches else (RECEIPTS,):
                if kind in tables:
                    self._held[kind].append(tables.pop(kind))
        if tables:
            self._spool.append(tables)

    def _recent_payloads(self, topic: str, ledger_id: int, first: int, last: int) -> list[bytes]:
        """The payloads of entries that were stored since the micro-batch began. In the middle of a record, the effects so far become columns for
        that. The receipts of the piece at hand are in order only at its end."""
        self._convert()
        (runs, tables), held = self._looked, self._held[RECEIPTS]
        new = held[tables:]
        if self._publishes is not None and runs < len(self._receipts.rows):
            new.append(self._publishes.stored(self._receipts, runs))
        self._looked = len(self._receipts.rows), len(held)
        return self._recent.find(topic, ledger_id, first, last, new)

    def _convert_runs(self) -> None:
        """The same for the receipts and messages of a piece, of which runs give theirs by topic."""
        partition, publishes, held = self._records.partition, self._publishes, self._held
        self._held = {RECEIPTS: [], MESSAGES: []}
        tables: dict[str, pa.Table] = {}
        if publishes is not None and (held[RECEIPTS] or self._receipts.rows):
            tables[RECEIPTS] = publishes.receipts(partition, self._receipts, held[RECEIPTS])
        if publishes is not None and (held[MESSAGES] or self._deliveries.rows):
            tables[MESSAGES] = publishes.messages(partition, self._deliveries, held[MESSAGES])
        if tables:
            self._spool.append(tables)
        self._recent.end_piece()
        self._looked = 0, 0

    def _not_converted(self, rows: Sequence[Row], error: Exception) -> NoReturn:
        for row in rows:
            try:
                to_tables(self._records.partition, [row])
            except Exception as alone:
                doing = f"converting a row {KINDS[type(row.effect)]}"
                self._records.failed(doing, alone, row.offset, getattr(row.effect, "topic", None))
        self._records.failed("converting rows", error)


class Fold:
    """The fold of a log in this process: `apply` the records of each micro-batch in turn."""

    def __init__(
        self,
        store: Store,
        states: Iterable[StateRow] = (),
        *,
        broker: BrokerType = Broker,
        judge: Judge = judge,
        set_aside: SetAside | None = None,
    ) -> None:
        """`states`: to continue from. `set_aside`: see `PartitionFold`. Raises `SuiteError` if a suite of the gate can't
        be compiled."""
        judge((), ())
        self._store, self._broker, self._judge, self._set_aside = store, broker, judge, set_aside
        self._states = {each.partition: each for each in states}

    def apply(self, records: pa.Table) -> Iterator[tuple[int, Rows]]:
        """The output rows of each ingress partition that has any. `records`: columns `schemas.records.RECORD`."""
        for partition in sorted(records["partition"].unique().to_pylist()):
            own = records.filter(pc.equal(records["partition"], partition))
            fold = PartitionFold(
                partition,
                self._store,
                self._states.get(partition),
                broker=self._broker,
                judge=self._judge,
                set_aside=self._set_aside,
            )
            fold.apply(_sorted(own))
            if rows := fold.rows():
                yield partition, rows
            self._states[partition] = fold.state()

    def states(self) -> list[StateRow]:
        """The states by ingress partition."""
        return [self._states[partition] for partition in sorted(self._states)]


def _pieces(records: Records) -> Iterator[Records]:
    """The records in pieces of at most `CHUNK_RECORDS`, and of few more than `CHUNK_BYTES`."""
    ends = list(accumulate(map(len, records.values)))
    start = 0
    while start < len(ends):
        most = (ends[start - 1] if start else 0) + CHUNK_BYTES
        stop = min(bisect_right(ends, most) + 1, start + CHUNK_RECORDS, len(ends))
        yield records.piece(start, stop)
        start = stop


def _sorted(own: pa.Table) -> Records:
    offsets = own["offset"].to_numpy()
    if np.any(np.diff(offsets) < 0):
        own = own.take(np.argsort(offsets, kind="stable"))
    return Records(*(own[name].to_pylist() for name in ("offset", "timestamp", "topic", "value")))
