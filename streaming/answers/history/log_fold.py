"""The log of one ingress partition, folded record by record: to go to any moment of it, and back."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from schemas.effects import CompactedEntry, Row, SendReceipt
from schemas.entries import Entry, EntryNotFound, metadata_of
from schemas.printable import counted
from streaming.broker.broker import Broker
from streaming.fold.live import LiveFold
from streaming.fold.records import BrokerType, Records, StateRow


class LogRecord(NamedTuple):
    """A record of the partition."""

    offset: int
    timestamp: int
    topic: str | None
    value: bytes


class StateSnapshot(NamedTuple):
    """The state after the first `position` records. None: nothing was folded."""

    position: int
    state: StateRow | None


class KeptEntries:
    """The entries that a fold wrote. Folding the same log again adds nothing."""

    def __init__(self) -> None:
        self._ledgers: dict[tuple[str, int], list[Entry]] = {}

    def add(self, rows: Sequence[Row]) -> None:
        """Keep the entries that `rows` stored."""
        for row in rows:
            effect = row.effect
            if (type(effect) is SendReceipt and effect.ledger_id > 0) or type(effect) is CompactedEntry:
                metadata = metadata_of(effect)
                kept = self._ledgers.setdefault((effect.topic, effect.ledger_id), [])
                if effect.entry_id == len(kept):
                    kept.append(
                        Entry(metadata, effect.size or 0, effect.broker_timestamp, effect.payload or b"")
                    )

    def reader(self, partition: int) -> "KeptEntries":
        """The entries of the only partition."""
        return self

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[Entry]:
        """Entries `first`..`last`, both included. Raises `EntryNotFound`."""
        kept = self._ledgers.get((topic, ledger_id), [])
        if not 0 <= first <= last < len(kept):
            raise EntryNotFound(
                f"{topic} {ledger_id}:{first}..{last}: there {'is' if len(kept) == 1 else 'are'} {counted(len(kept), 'entry')}"
            )
        return kept[first : last + 1]

    def payloads(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[bytes]:
        """The payloads of entries that `read` has just read."""
        return [each.payload or b"" for each in self.read(topic, ledger_id, first, last)]


def partitions_of(records: pa.Table) -> list[int]:
    """The ingress partitions of a log (columns `schemas.records.RECORD`), in order."""
    found: list[int] = sorted(records["partition"].unique().to_pylist())
    return found


class LogFold:
    """The fold of one ingress partition of a log, record by record.

    `position` is the number of records folded so far. Entries stay readable for the whole past, so that snapshots are only
    states, and any number of them is cheap. Folding raises what `streaming.fold.live.LiveFold` raises.
    """

    def __init__(self, records: pa.Table, partition: int, *, broker: BrokerType = Broker) -> None:
        """`records`: a log (columns `schemas.records.RECORD`) with rising offsets, of which those of `partition` count."""
        own = records.filter(pc.equal(records["partition"], partition))
        self._offsets, self._timestamps = own["offset"].to_pylist(), own["timestamp"].to_pylist()
        self._topics, self._values = own["topic"], own["value"]
        self._partition, self._broker = partition, broker
        self._entries = KeptEntries()
        self.position = 0
        self._fold = LiveFold(partition, self._entries, None, broker=broker)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def broker(self) -> Broker:
        """The broker as it is now, to look at."""
        return self._fold.broker

    def record(self, index: int) -> LogRecord:
        """A record, from 0."""
        return LogRecord(
            self._offsets[index],
            self._timestamps[index],
            self._topics[index].as_py(),
            self._values[index].as_py(),
        )

    def step(self) -> list[Row]:
        """Fold the next record, and give its effects. Raises `IndexError` at the end of the log."""
        offset, timestamp, topic, value = self.record(self.position)
        rows = self._fold.answer(Records([offset], [timestamp], [topic], [value]))
        self._entries.add(rows)
        self.position += 1
        return rows

    def run(self, to: int, each: Callable[[list[Row]], object] | None = None) -> None:
        """Fold until `position` is `to`. `each` gets the effects of some records at a time, in order."""
        while self.position < to:
            stop = min(to, self.position + _TOGETHER)
            part = slice(self.position, stop)
            count = stop - self.position
            rows = self._fold.answer(
                Records(
                    self._offsets[part],
                    self._timestamps[part],
                    self._topics.slice(self.position, count).to_pylist(),
                    self._values.slice(self.position, count).to_pylist(),
                )
            )
            self._entries.add(rows)
            self.position = stop
            if each is not None:
                each(rows)

    def snapshot(self) -> StateSnapshot:
        """The state now, to `restore`."""
        return StateSnapshot(self.position, self._fold.state())

    def restore(self, snapshot: StateSnapshot) -> None:
        """Go to a snapshot of this fold."""
        self.position = snapshot.position
        self._fold = LiveFold(self._partition, self._entries, snapshot.state, broker=self._broker)


_TOGETHER = 1 << 10
"""Records whose effects are in memory together."""
