"""Several folds of the same records, decoded once, each with its own broker, which an observer watches."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from schemas.commands import Refused
from streaming.broker.broker import Broker
from streaming.broker.entries import no_payloads
from streaming.broker.persistent.delivery_run import Deliveries
from streaming.broker.persistent.publish.publish_run import Receipts
from streaming.fold.reading import ReadRecords, read
from streaming.fold.record_fold import RecordFold, without_gc
from streaming.fold.records import BrokerType, Records, StateRow, Store


@runtime_checkable
class Flushing(Protocol):
    """A broker that hands its effects to an observer."""

    def flush(self) -> None:
        """Hand on the effects so far."""
        ...


class SharedFold:
    """One of the folds. Its broker hands effects to the observer itself. Raises what `RecordFold` raises, and `NoPayloads` if a topic is
    compacted: nobody who observes keeps payloads."""

    def __init__(
        self, partition: int, store: Store, before: StateRow | None, *, broker: BrokerType = Broker
    ) -> None:
        """As `RecordFold`."""
        self._records = RecordFold(partition, store, before, broker=broker)
        self._records.when_full(self._flush)
        self.broker.find_recent_payloads(no_payloads)

    @property
    def broker(self) -> Broker:
        """The broker as it is between two calls, to look at."""
        return self._records.broker

    def read(self, records: Records, aside: Mapping[int, Refused]) -> ReadRecords:
        """Some records, for all folds whose clock and last record are this one's. `aside`: why some are quarantined unread, by offset."""
        return read(self._records, records, aside, delivers=True)

    def fold(self, shared: ReadRecords, aside: Mapping[int, Refused] = MappingProxyType({})) -> None:
        """Fold some records. The store must have the entries of those before."""
        self._records.broker.stored()
        with without_gc():
            self._records.fold(*shared[:2], aside, shared.columns, Receipts([], [], []), Deliveries())
        self._flush()

    @property
    def last(self) -> int | None:
        """The offset of the last record; None: there was none."""
        return self._records.last

    def tick(self, timestamp: int) -> None:
        """Advance the clock to `timestamp` (ms), as a TICK record would."""
        self._records.broker.stored()
        self._records.tick(timestamp, self._flush)

    def state(self) -> StateRow:
        """The state to continue from."""
        return self._records.state()

    def _flush(self) -> None:
        broker = self._records.broker
        assert isinstance(broker, Flushing)
        broker.flush()
